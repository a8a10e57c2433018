"""Simulated results, for the tests of the statistics."""

import functools
import math
from typing import NamedTuple

import numpy as np

from ablate.analysis import stats

DRAWS = 20_000


def simulate(rng, rows, n, correlation=0.0, draws=DRAWS):
    """Results (draws, rows, n) without any gain: unit variance, seed blocks correlated so."""
    own = rng.standard_normal((draws, rows, n))
    seeds = rng.standard_normal((draws, 1, n))
    return math.sqrt(1 - correlation) * own + math.sqrt(correlation) * seeds


def searched(rng, trials, searches, sharpness, draws=DRAWS):
    """How good the winners are of searches of ten rows, (draws, 10, searches): each row has an
    optimum of its own, and what is tried is the same for all rows of a search."""
    best = rng.uniform(0.3, 0.7, (draws, 10, 1, 1))
    tried = rng.random((draws, 1, searches, trials))
    quality = -sharpness * (tried - best) ** 2
    winner = (quality + rng.standard_normal(quality.shape)).argmax(-1)
    return np.take_along_axis(quality, winner[..., None], -1)[..., 0]


def family(rows, **settings):
    """The method of a column of so many rows, the baseline included."""
    return stats.Method(contrasts=rows - 1, comparisons=rows - 1, **settings)


def family_wise_error(y, method):
    found = stats.fit(y, 0, method)
    return (abs(found.gain) > found.half)[:, 1:].any(-1).mean()


class Classified(NamedTuple):
    """Simulated accuracies of rows on the same images: y (draws, rows, n) in %, what they tend to
    over seeds (draws, rows), and which images each run gets right, summed up."""

    y: np.ndarray
    truth: np.ndarray
    noise: stats.Noise


def classify(rng, accuracies, sharpness, n, images, draws, block=0.0):
    """Accuracies of such rows; `block` moves all rows of a seed, in standard deviations."""
    at_once = max(1, 4_000_000 // (len(accuracies) * n * images))
    parts = []
    for start in range(0, draws, at_once):
        some = min(at_once, draws - start)
        right, truth = answers(rng, accuracies, sharpness, n, images, some)
        found = stats.noise(right)
        parts.append((right.mean(-1) * 100, truth, found.flips, found.squares))
    y, truth, flips, squares = (np.concatenate(part) for part in zip(*parts, strict=True))
    noise = stats.Noise(flips, squares, 100 / images)
    y += block * np.sqrt(noise.variance.mean()) * rng.standard_normal((draws, 1, n))
    return Classified(y, truth, noise)


def answers(rng, accuracies, sharpness, n, images, draws):
    """Rows (R) of these accuracies. An image's chance to be right is a logistic function of how
    easy it is, 80 % of which the rows share: the sharper, the fewer images flip between seeds.
    Which images each run gets right (draws, R, n, images), and what accuracies tend to (draws, R).
    """
    means = np.array([_mean(a, s) for a, s in zip(accuracies, sharpness, strict=True)])[:, None]
    sharp = np.array(sharpness, dtype=np.float32)[:, None]
    alike, own = np.float32(math.sqrt(0.8)), np.float32(math.sqrt(0.2))
    easy = alike * rng.standard_normal((draws, 1, images), np.float32)
    easy = easy + own * rng.standard_normal((draws, len(accuracies), images), np.float32)
    chance = 1 / (1 + np.exp(-(means.astype(np.float32) + sharp * easy)))
    right = rng.random((draws, len(accuracies), n, images), np.float32) < chance[:, :, None]
    return right, chance.mean(-1, dtype=float) * 100


@functools.cache
def _mean(accuracy, sharpness):
    """Of the logistic's argument, so that the chance to be right averages to `accuracy`."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(201)
    low, high = -60.0, 80.0
    for _ in range(80):
        middle = (low + high) / 2
        share = (weights / (1 + np.exp(-(middle + sharpness * nodes)))).sum() / weights.sum()
        low, high = (middle, high) if share < accuracy else (low, middle)
    return low


def moved(rng, made, rows):
    """The same, with a run-wide shift in these rows: three times the spread that images tell."""
    y = made.y.copy()
    for row in rows:
        sd = math.sqrt(8 * made.noise.variance[:, row].mean())
        y[:, row] += sd * rng.standard_normal(y[:, row].shape)
    return made._replace(y=y)


class Judged(NamedTuple):
    """The share of tables in which some gain is wrongly told, and of those that tell the last row's
    gain, were it `effect` standard deviations of a run larger."""

    error: float
    power: float


def judged(made, effect=3.0, **settings):
    """By the method of a column, with these settings."""
    found = stats.fit(made.y, 0, family(made.y.shape[1], **settings), made.noise)
    off = found.gain - (made.truth - made.truth[:, :1])
    larger = effect * math.sqrt(made.noise.variance[:, -1].mean())
    return Judged(
        float((np.abs(off) > found.half)[:, 1:].any(-1).mean()),
        float((off[:, -1] + larger > found.half[:, -1]).mean()),
    )
