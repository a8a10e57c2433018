"""Gains for new seeds and new images, too: against the definition, and what they promise."""

import math

import numpy as np
import pytest
from scipy import stats as oracle

from ablate.analysis import stats
from ablate.analysis.stats import Estimate, Method


def of_seeds(row, baseline, alpha=0.05):
    """The gain over seeds alone, (n, N) right: a paired t."""
    y = 100 * np.array([baseline.mean(-1), row.mean(-1)])
    return stats.column_gains(y, 0, Method("paired", alpha)).rows[1]


def by_hand(right, baseline):
    """(MS_i, MS_e) of the differences, seed by image."""
    d = 100 * (right.astype(float) - baseline)
    n, images = d.shape
    rest = d - d.mean(1)[:, None] - d.mean(0)[None] + d.mean()
    return (
        n * sum((d[:, i].mean() - d.mean()) ** 2 for i in range(images)) / (images - 1),
        (rest**2).sum() / ((n - 1) * (images - 1)),
    )


def test_images_add_their_variance_to_that_of_seeds():
    """Var = v / n + (MS_i - MS_e) / (n N), with Satterthwaite's df of the three."""
    easy = np.random.default_rng(7).uniform(0.4, 1, (2, 1, 50))
    baseline, row = np.random.default_rng(9).random((2, 4, 50)) < easy
    alone = of_seeds(row, baseline, 0.1)
    found = stats.population_gain(row, baseline, alone, 0.1)
    by_image, rest = by_hand(row, baseline)
    total = alone.gain.sd**2 / 4 + (by_image - rest) / 200
    noise = (alone.gain.sd**2 / 4) ** 2 / 3 + (by_image**2 / 49 + rest**2 / (3 * 49)) / 200**2
    half = oracle.t.ppf(0.95, total**2 / noise) * math.sqrt(total)
    assert half > alone.gain.high - alone.gain.mean
    assert found.mean == pytest.approx(100 * (row.mean() - baseline.mean()))
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))
    assert (found.n, found.sd / math.sqrt(found.n)) == (4, pytest.approx(math.sqrt(total)))


def test_it_contains_the_interval_for_seeds_alone():
    rng = np.random.default_rng(9)
    for _ in range(200):
        n = int(rng.integers(2, 6))
        row, baseline = rng.random((2, n, 30)) < rng.uniform(0.3, 1, (2, 1, 1))
        alone = of_seeds(row, baseline)
        found = stats.population_gain(row, baseline, alone)
        if alone.gain.sd:
            assert found.low <= alone.gain.low + 1e-9
            assert found.high >= alone.gain.high - 1e-9


def test_one_seed_has_no_interval_for_images_either():
    row, baseline = np.random.default_rng(10).random((2, 1, 30)) < 0.8
    alone = of_seeds(row, baseline)
    found = stats.population_gain(row, baseline, alone)
    assert found == Estimate(alone.gain.mean, None, None, 1)


@pytest.mark.whole
@pytest.mark.parametrize("draws", [1_500, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_it_covers_new_images_too(n, draws):
    """Of two rows that are alike in the population the true gain is 0, whatever 300 images say."""
    rng = np.random.default_rng(8)
    wide = narrow = 0
    for _ in range(draws):
        easy = 1 / (1 + np.exp(-rng.normal(3.5, 4, (2, 1, 300))))
        baseline, row = rng.random((2, n, 300)) < easy
        alone = of_seeds(row, baseline)
        found = stats.population_gain(row, baseline, alone)
        wide += found.low <= 0 <= found.high
        narrow += alone.gain.low <= 0 <= alone.gain.high
    assert 0.935 <= wide / draws <= 0.985
    assert narrow / draws < 0.93
