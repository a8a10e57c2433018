"""Average gains and contrasts between columns: against least squares by hand."""

import math

import numpy as np
import pytest
from scipy import stats as oracle
from simulation import family

from ablate.analysis import stats
from ablate.analysis.stats import Method

# --- The average gain ---------------------------------------------------------------------------


def test_an_average_is_over_columns_a_seed_first_then_over_seeds():
    rng = np.random.default_rng(50)
    y = rng.normal(90, 1, (4, 3, 5)) + rng.normal(0, 5, (4, 1, 1)) + rng.normal(0, 2, 5)
    found = stats.average_gains(y, 1, Method("paired", contrasts=2, variants=2))
    assert found[1] is None
    for row in (0, 2):
        differences = y[:, row] - y[:, 1]  # by column and seed
        for ours, axis in ((found[row].gain.gain, 0), (found[row].sampled, 1)):
            test = oracle.ttest_1samp(differences.mean(axis), 0)
            ends = test.confidence_interval(1 - 0.05 / 2)
            assert (ours.low, ours.high) == pytest.approx((ends.low, ends.high))
            assert (ours.mean, ours.n) == (pytest.approx(differences.mean()), (5, 4)[axis])
        assert found[row].columns == (0, 1, 2, 3)


def test_an_average_pools_its_rows_as_a_column_does():
    y = np.random.default_rng(51).normal(90, 1, (3, 6, 4))
    for method in (family(6), family(6, spread="paired")):
        found = stats.average_gains(y, 0, method)
        expected = stats.column_gains(y.mean(0), 0, method).rows
        for average, gain in zip(found[1:], expected[1:], strict=True):
            ends = average.gain.gain.low, average.gain.gain.high
            assert average.gain.own_reason == gain.own_reason
            assert ends == pytest.approx((gain.gain.low, gain.gain.high))


def test_a_column_without_all_its_seeds_is_not_averaged():
    y = np.random.default_rng(52).normal(90, 1, (3, 4, 4))
    y[1, 2, 3] = np.nan  # of row 2
    y[:, 3, 0] = np.nan  # row 3 has no column left
    found = stats.average_gains(y, 0, family(4))
    assert [average and average.columns for average in found] == [None, (0, 1, 2), (0, 2), None]
    # Row 2 is fitted beside the rows that have its columns; row 1 beside those that have all.
    two = stats.average_gains(y[[0, 2], :3], 0, Method(contrasts=3, variants=3))
    assert found[2].gain == two[2].gain
    three = stats.average_gains(y[:, :2], 0, Method(contrasts=3, variants=3))
    assert found[1].gain == three[1].gain
    y[:, 0, 2] = np.nan  # the baseline
    assert stats.average_gains(y, 0, family(4)) == (None, None, None, None)


def test_an_unstable_row_is_averaged_by_its_own_spread():
    y = np.random.default_rng(53).normal(90, 1, (2, 4, 5))
    unstable = np.zeros((2, 4), dtype=bool)
    unstable[1, 2] = True
    found = stats.average_gains(y, 0, family(4), unstable)
    assert [average.gain.own_reason == "instability" for average in found[1:]] == [
        False,
        True,
        False,
    ]


def test_a_column_with_an_unstable_baseline_is_not_averaged():
    y = np.random.default_rng(53).normal(90, 1, (3, 4, 5))
    unstable = np.zeros((3, 4), dtype=bool)
    unstable[1, 0] = True
    found = stats.average_gains(y, 0, family(4), unstable)
    assert [average.columns for average in found[1:]] == [(0, 2)] * 3
    assert [a and a.gain for a in found] == [
        a and a.gain for a in stats.average_gains(y[[0, 2]], 0, family(4))
    ]
    unstable[:, 0] = True
    assert stats.average_gains(y, 0, family(4), unstable) == (None,) * 4


@pytest.mark.slow
def test_a_noisy_baseline_is_seen_in_the_average_and_between_columns():
    """Of 2,000 tables without a gain; a baseline that no screen looks at errs in .21 to .23."""
    y = np.random.default_rng(65).normal(90, 1, (2000, 2, 10, 5))
    y[:, :, 0] += np.random.default_rng(66).normal(0, math.sqrt(8), (2000, 2, 5))
    wrong = []
    for table in y:
        average = [a.gain.gain for a in stats.average_gains(table, 0, family(10))[1:]]
        changes = [row.gain for row in stats.changes(*table, 0, family(10)).rows[1:]]
        wrong.append([any(g.low > 0 or g.high < 0 for g in found) for found in (average, changes)])
    assert (np.mean(wrong, axis=0) <= 0.062).all()  # .052, and twice the standard error


def test_one_column_says_nothing_of_other_architectures():
    found = stats.average_gains(np.random.default_rng(54).normal(0, 1, (1, 2, 3)), 0, Method())
    assert (found[1].sampled.low, found[1].sampled.n) == (None, 1)
    assert found[1].gain.gain.n == 3


@pytest.mark.whole
def test_an_average_covers_what_it_says():
    """Gains that differ by column: over these columns the one interval holds, over others the
    other, which the first would miss.
    """
    rng, held = np.random.default_rng(55), []
    for _ in range(1000):
        gains = rng.normal(0.7, 2, 4)
        y = rng.normal(0, 1, (4, 2, 5))
        y[:, 1] += gains[:, None]
        found = stats.average_gains(y, 0, Method())[1]
        fixed, sampled = found.gain.gain, found.sampled
        true = (fixed, gains.mean()), (sampled, 0.7), (fixed, 0.7)
        held.append([one.low <= gain <= one.high for one, gain in true])
    these, others, missed = np.mean(held, axis=0)
    assert (these, others) == pytest.approx((0.95, 0.95), abs=0.02)
    assert missed < 0.7


# --- Between columns ----------------------------------------------------------------------------


def test_a_change_of_gain_is_a_paired_t_of_differences_of_differences():
    rng = np.random.default_rng(56)
    before, after = rng.normal(90, 1, (2, 3, 6)) + rng.normal(0, 5, (2, 1, 6))
    found = stats.changes(before, after, 0, Method("paired", contrasts=2, variants=2)).rows
    assert found[0] is None
    for row in (1, 2):
        test = oracle.ttest_rel(after[row] - after[0], before[row] - before[0])
        ends = test.confidence_interval(1 - 0.05 / 2)
        gain = found[row].gain
        assert (gain.low, gain.high) == pytest.approx((ends.low, ends.high))


def test_changes_have_the_variance_of_differences_of_a_row_over_seeds():
    rows, n = 5, 4
    y = np.random.default_rng(57).normal(90, 1, (2, rows, n))
    variance = np.mean([np.var(y[1, r] - y[0, r], ddof=1) for r in range(rows)])
    half = oracle.t.ppf(1 - 0.05 / 8, rows * (n - 1)) * math.sqrt(2 * variance / n)
    for row, change in enumerate(stats.changes(y[0], y[1], 0, family(rows)).rows):
        if row:
            by_hand = (y[1, row] - y[1, 0] - y[0, row] + y[0, 0]).mean()
            assert change.own_reason == ""
            assert change.gain.mean == pytest.approx(by_hand)
            assert change.gain.high - change.gain.mean == pytest.approx(half)


def test_averages_and_changes_are_judged_by_the_images_of_their_columns():
    rng = np.random.default_rng(58)
    right = [rng.random((4, 5, size)) < 0.8 for size in (100, 250, 60)]
    y = np.array([100 * column.mean(-1) for column in right])
    method = family(4, spread="images")
    made = {
        (1 / 3,) * 3: [a and a.gain for a in stats.average_gains(y, 0, method, None, right)],
        (-1.0, 1.0): stats.changes(y[0], y[1], 0, method, None, right[:2]).rows,
    }
    for weights, rows in made.items():
        some = range(len(weights))
        images = stats.ImageFlips.combined(
            [stats.ImageFlips.from_right(right[c]) for c in some], weights
        )
        found = stats.fit(sum(weights[c] * y[c] for c in some), method, images)
        for row in (1, 2, 3):
            assert rows[row].gain.mean == pytest.approx(found.gain[row])
            assert rows[row].gain.sd == pytest.approx(found.sd[row])
            assert rows[row].df == pytest.approx(found.variances.df[row])


def test_a_change_is_over_the_seeds_of_both_columns():
    before, after = np.random.default_rng(58).normal(90, 1, (2, 3, 5))
    before[1, 0] = after[1, 4] = np.nan
    found = stats.changes(before, after, 0, family(3)).rows
    assert [change and change.gain.n for change in found] == [None, 3, 5]
    unstable = np.array([False, True, False])
    assert stats.changes(before, after, 0, family(3), unstable).rows[1].own_reason == "instability"
