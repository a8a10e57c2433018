"""Numbers of a table are the same bits in any order of images, seeds and rows.

So they are on any processor: where the order of a sum doesn't matter, the kernel that a library
chooses for it doesn't either.
"""

import numpy as np
import pytest
from simulation import family

from ablate.analysis import stats
from ablate.analysis.stats import Flips, ImageFlips, Method

ROWS, SEEDS, IMAGES = 6, 7, 911  # no power of 2: thirds and sevenths are rounded
KEPT = np.arange(ROWS), np.arange(SEEDS), np.arange(IMAGES)


def drawn(seed=0, rows=ROWS):
    """Which images runs get right (rows, SEEDS, IMAGES); row 3 has few flips, row 4 a bad run."""
    rng = np.random.default_rng(seed)
    right = rng.random((rows, SEEDS, IMAGES)) < rng.uniform(0.6, 0.95, (rows, 1, 1))
    if rows > 4:
        right[3] = right[0]
        right[4, 2, :300] = False
    return right


def orders(which):
    """Orders (rows, seeds, images), in which `which` of the three are shuffled."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        yield tuple(
            rng.permutation(axis) if name in which else axis
            for name, axis in zip(("rows", "seeds", "images"), KEPT, strict=True)
        )


def bits(found):
    """Every number of a result, written in full."""
    if isinstance(found, np.ndarray):
        return found.dtype.str, found.tolist()
    return repr(found)


@pytest.mark.parametrize("which", [("images",), ("seeds",), ("images", "seeds")])
def test_flips_are_the_same_bits_in_any_order(which):
    right = drawn()
    expected = ImageFlips.from_right(right)
    for rows, seeds, images in orders(which):
        found = ImageFlips.from_right(right[np.ix_(rows, seeds, images)])
        for name, one, other in zip(ImageFlips._fields, found, expected, strict=True):
            assert bits(one) == bits(other), name


@pytest.mark.parametrize("spread", ["images", "one way", "paired"])
@pytest.mark.parametrize("number", [2, ROWS])
def test_gains_are_the_same_bits_in_any_order_of_seeds_images_and_rows(spread, number):
    right, method = drawn(rows=number), family(number, spread=spread)
    noise = np.random.default_rng(1).normal(0, 0.3, right.shape[:2])

    def gains(rows, seeds, images):
        some = right[np.ix_(rows, seeds, images)]
        y = (100 * right.mean(-1) + noise)[np.ix_(rows, seeds)]
        baseline = [*rows].index(0)
        return stats.column_gains(y, baseline, method, None, Flips((some,)))

    expected = gains(np.arange(number), *KEPT[1:])
    for rows, seeds, images in orders(("rows", "seeds", "images")):
        rows = rows[rows < number]
        found = gains(rows, seeds, images)
        for place, row in enumerate(rows):
            assert bits(found.rows[place]) == bits(expected.rows[row])
        assert bits(found.spreads) == bits(expected.spreads)
        assert bits((found.shared_sd, found.flips, found.ratio)) == bits(
            (expected.shared_sd, expected.flips, expected.ratio)
        )


def test_averages_are_the_same_bits_in_any_order_of_columns_seeds_and_images():
    several, method = [drawn(seed) for seed in range(3)], family(ROWS, spread="images")

    def averages(columns, seeds, images):
        right = [several[c][:, seeds][..., images] for c in columns]
        y = np.array([100 * some.mean(-1) for some in right])
        return [
            average and (average.gain, average.sampled)
            for average in stats.average_gains(y, 0, method, None, right)
        ]

    expected = averages([0, 1, 2], *KEPT[1:])
    for columns in ([2, 0, 1], [1, 2, 0]):
        for _, seeds, images in orders(("seeds", "images")):
            assert bits(averages(columns, seeds, images)) == bits(expected)


def test_effects_of_a_design_are_the_same_bits_in_any_order_of_cells_seeds_and_images():
    levels = np.array([[a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1)])
    rng = np.random.default_rng(3)
    right = rng.random((8, SEEDS, IMAGES)) < rng.uniform(0.6, 0.95, (8, 1, 1))
    right[5, 2, :500] = False  # a cell out of line

    def effects(cells, seeds, images):
        weights = [stats.level_effect(levels, k) for k in range(3)]
        weights += [stats.shapley(levels, k) for k in range(3)]
        some = right[np.ix_(cells, seeds, images)]
        y = 100 * some.mean(-1)
        return stats.design_effects(
            y, np.array(weights)[:, cells], Method("images", contrasts=6), right=some
        ).gains

    expected = effects(np.arange(8), *KEPT[1:])
    for seed, (_, seeds, images) in enumerate(orders(("seeds", "images"))):
        cells = np.random.default_rng(seed).permutation(8)
        assert bits(effects(cells, seeds, images)) == bits(expected)


def test_a_gain_for_new_images_is_the_same_bits_in_any_order():
    right = drawn()
    y = 100 * right.mean(-1)
    gain = stats.column_gains(y, 0, family(ROWS, spread="images"), None, Flips((right,))).rows[1]
    expected = stats.population_gain(right[1], right[0], gain)
    for _, seeds, images in orders(("seeds", "images")):
        some = right[:, seeds][..., images]
        assert bits(stats.population_gain(some[1], some[0], gain)) == bits(expected)


def test_means_and_correlations_are_the_same_bits_in_any_order():
    y = 100 * drawn().mean(-1)
    unequal = np.where(np.arange(SEEDS) < np.array([7, 3, 4, 5, 6, 7])[:, None], y, np.nan)

    def found(rows, seeds):
        return (
            stats.mean_interval(y[1, seeds]),
            stats.seed_correlation(y[np.ix_(rows, seeds)]),
            bits(stats.one_way(unequal[:, seeds], blocks=False).v),
        )

    for rows, seeds, _ in orders(("rows", "seeds")):
        assert bits(found(rows, seeds)) == bits(found(*KEPT[:2]))
