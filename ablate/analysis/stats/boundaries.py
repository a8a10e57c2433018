"""Critical values for reading one comparison several times, its error kept."""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.special import ndtr

NODES = 200  # of Gauss-Legendre, over the region in which a comparison goes on
LARGEST = 12.0  # of |z|: beyond it lies less than any alpha
HALVINGS = 60  # of [0, LARGEST]: to the last bit


@functools.cache
def boundaries(looks: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """|z| beyond which a two-sided comparison is told from 0 at each of `looks`, increasing n.

    Up to a look at n seeds it spends alpha n / n_max (Lan & DeMets 1983). The distribution of the
    sum of all seeds, where no earlier look has told it, is carried from look to look by quadrature
    (Armitage, McPherson & Rowe 1969).
    """
    x, weights = np.polynomial.legendre.leggauss(NODES)
    sums, chances = np.zeros(1), np.ones(1)  # before the first look: no seeds, their sum is 0
    found, before = [], 0.0
    for time, last in zip(looks, (0, *looks), strict=False):
        end = time / looks[-1]
        step, new = math.sqrt(end - before), alpha * (time - last) / looks[-1]
        low, high = 0.0, LARGEST
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            edge = middle * math.sqrt(end)
            beyond = ndtr((sums - edge) / step) + ndtr((-edge - sums) / step)
            low, high = (middle, high) if chances @ beyond > new else (low, middle)
        found.append(high)
        later = high * math.sqrt(end) * x
        moved = np.exp(-(((later[:, None] - sums) / step) ** 2) / 2) @ chances
        chances = high * math.sqrt(end) * weights * moved / (step * math.sqrt(2 * math.pi))
        sums, before = later, end
    return tuple(found)
