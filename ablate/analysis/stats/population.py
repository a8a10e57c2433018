"""A gain for new seeds and new images: of the population that the test set was drawn from."""

from __future__ import annotations

import math

from scipy.special import stdtrit

from ablate.analysis.stats.estimate import Bools, Estimate
from ablate.analysis.stats.predictions import PERCENT


def population_gain(right: Bools, baseline: Bools, alpha: float = 0.05) -> Estimate:
    """The gain in accuracy, in points, by which images each seed gets right: (n, N) of a row and of
    the baseline, seeds and images in the same order, n, N >= 2.

    Seeds and images are crossed random effects on the differences: the variance of their mean is
    (MS_s + MS_i - MS_e) / (n N), its df by Satterthwaite (1946); never less than by seeds alone.
    """
    d = PERCENT * (right.astype(float) - baseline)
    n, images = d.shape
    mean = float(d.mean())
    by_seed, by_image = d.mean(1, keepdims=True), d.mean(0, keepdims=True)
    df_e = (n - 1) * (images - 1)
    ms_s = images * float(by_seed.var(ddof=1))
    ms_i = n * float(by_image.var(ddof=1))
    ms_e = float(((d - by_seed - by_image + mean) ** 2).sum()) / df_e
    total, df = ms_s, n - 1.0
    if ms_i > ms_e:
        total += ms_i - ms_e
        df = total**2 / (ms_s**2 / (n - 1) + ms_i**2 / (images - 1) + ms_e**2 / df_e)
    se = math.sqrt(total / (n * images))
    half = float(stdtrit(df, 1 - alpha / 2)) * se
    return Estimate(mean, mean - half, mean + half, n, se * math.sqrt(n))
