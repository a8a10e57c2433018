"""The statistics against oracles that aren't ours, and what they promise, by simulation."""

import math

import numpy as np
import pytest
from scipy import stats as oracle
from simulation import family, simulate

from ablate.analysis import stats
from ablate.analysis.stats import Estimate, Method

# --- Oracles ------------------------------------------------------------------------------------


def test_a_mean_has_students_interval():
    x = np.random.default_rng(0).normal(93, 1, 5)
    found = stats.mean_interval(x, 0.1)
    expected = oracle.ttest_1samp(x, 0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert (found.mean, found.n) == (pytest.approx(x.mean()), 5)
    assert found.sd == pytest.approx(x.std(ddof=1))
    assert stats.mean_interval([93.0]) == Estimate(93.0, None, None, 1)


def test_paired_is_scipys_at_alpha_over_contrasts():
    y = np.random.default_rng(1).normal(0, [[1], [1], [4]], (3, 6))
    found = stats.column_gains(y, 1, Method("paired", contrasts=4))
    assert found.rows[1] is None
    for row in (0, 2):
        expected = oracle.ttest_rel(y[row], y[1]).confidence_interval(1 - 0.05 / 4)
        gain = found.rows[row].gain
        assert (gain.low, gain.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
        assert gain.mean == pytest.approx(y[row].mean() - y[1].mean())


# --- What they promise --------------------------------------------------------------------------


@pytest.mark.parametrize("spread", ["images", "one way", "paired"])
def test_a_collapsed_baseline_run_voids_the_table(spread):
    """No interval, so no word; it would have been wrong in most tables."""
    y = simulate(np.random.default_rng(10), 21, 5, draws=1)[0]
    y[0, 2] -= 30
    found = stats.column_gains(y, 0, family(21, spread=spread), np.arange(21) == 0)
    assert found.void
    assert all(row.gain.low is None and row.p is None for row in found.rows[1:])


@pytest.mark.parametrize(
    ("looks", "error"), [((3, 5), 0.086), ((3, 5, 10), 0.120), (tuple(range(3, 11)), 0.167)]
)
def test_looking_again_inflates_the_error(looks, error):
    assert stats.look_error(looks, family(2)) == pytest.approx(error, abs=0.007)


def test_the_error_of_looks_is_that_of_scipys_tests():
    """Nine variants, each with its paired t."""
    y = simulate(np.random.default_rng(14), 10, 5, 0.3)
    told = np.zeros(len(y), dtype=bool)
    for n in (3, 5):
        p = oracle.ttest_rel(y[:, 1:, :n], y[:, :1, :n], axis=-1).pvalue
        told |= (p < 0.05 / 9).any(-1)
    found = stats.look_error((3, 5), family(10, spread="paired"))
    assert found == pytest.approx(told.mean(), abs=0.008)


@pytest.mark.whole
def test_one_look_has_at_most_its_nominal_error_and_looks_have_no_order():
    assert stats.look_error((4,), family(2)) == pytest.approx(0.05, abs=0.006)
    assert stats.look_error((4,), family(10)) <= 0.05
    assert stats.look_error((5, 3), family(10)) == stats.look_error((3, 5), family(10))
    assert stats.look_error((3,), family(10)) < stats.look_error((3, 5), family(10))
    assert stats.look_error((3, 5), family(10, alpha=0.025)) < 0.05


# --- The seed correlation -----------------------------------------------------------------------


def test_the_seed_correlation_is_the_consistency_icc():
    """Shrout & Fleiss 1979, Table 2: six targets, four judges; ICC(3,1) is .71 (.34, .95 by R)."""
    y = np.array([[9, 6, 8, 7, 10, 6], [2, 1, 4, 1, 5, 2], [5, 3, 6, 2, 6, 4], [8, 2, 8, 6, 9, 7]])
    found = stats.seed_correlation(y.astype(float))
    assert found.mean == pytest.approx(0.71, abs=0.005)
    assert (found.low, found.high) == pytest.approx((0.3425, 0.9459), abs=0.0005)
    assert found.n == 6


# --- Missing, diverged, degenerate --------------------------------------------------------------


def test_a_row_with_missing_seeds_is_fitted_on_those_it_shares():
    y = np.random.default_rng(15).normal(90, 1, (5, 4))
    y[3, 1] = np.nan
    found = stats.column_gains(y, 0, family(5))
    alone = stats.column_gains(y[:, [0, 2, 3]], 0, family(5))
    assert found.rows[3] == alone.rows[3]
    assert found.rows[3].gain.n == 3
    others = stats.column_gains(y[[0, 1, 2, 4]], 0, Method(contrasts=4, variants=4))
    assert [found.rows[r] for r in (1, 2, 4)] == list(others.rows[1:])
    assert (found.spreads, found.df, found.kept_rows) == (others.spreads, others.df, 4)


def test_a_diverged_row_leaves_the_pool_and_the_fit():
    y = np.random.default_rng(16).normal(90, 1, (5, 4))
    y[2, 0] = y[0, 3] = np.nan
    diverged = np.array([False, False, True, False, False])
    found = stats.column_gains(y, 0, family(5), diverged)
    assert [row and row.own_reason for row in found.rows] == [None, "", "instability", "", ""]
    expected = oracle.ttest_rel(y[2, 1:3], y[0, 1:3]).confidence_interval(1 - 0.05 / 4)
    gain = found.rows[2].gain
    assert (gain.low, gain.high, gain.n) == (*map(pytest.approx, expected), 2)
    assert found.kept_rows == 4
    paired = stats.column_gains(y, 0, family(5, spread="paired"), diverged)
    assert not any(row.own_reason for row in paired.rows[1:])


@pytest.mark.parametrize("spread", ["images", "one way"])
def test_an_unstable_row_without_others_is_named(spread):
    y = np.random.default_rng(16).normal(90, 1, (2, 4))
    row = stats.column_gains(y, 0, Method(spread), np.array([False, True])).rows[1]
    assert (row.own_reason, row.ratio, row.stands_out) == ("instability", None, False)


def test_what_can_not_be_estimated_is_none():
    y = np.full((3, 3), np.nan)
    assert stats.column_gains(y, 0, family(3)).rows == (None, None, None)
    y[:2, 0] = 90, 91
    found = stats.column_gains(y, 0, family(3))
    assert found.rows[1].gain == Estimate(1.0, None, None, 1)
    assert found.rows[2] is None
    assert (found.spreads, found.df, found.shared_sd) == (None, None, None)


@pytest.mark.parametrize("spread", ["images", "one way", "paired"])
def test_equal_results_have_no_spread_but_for_rounding(spread):
    y = np.array([[0.97, 0.97, 0.97], [0.9733333333, 0.9733333333, 0.9733333333]]) * 100
    row = stats.column_gains(y, 0, Method(spread)).rows[1]
    assert (row.gain.sd, row.p) == (0, None)
    assert row.gain.low == row.gain.mean == row.gain.high


# --- Words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "margin", "word"),
    [
        (0.1, 0.9, None, "helps"),
        (0.01, 0.1, 0.3, "helps"),
        (-0.9, -0.1, None, "hurts"),
        (-0.2, -0.1, 0.3, "hurts"),
        (-0.2, 0.2, 0.3, "same within 0.3"),
        (-0.2, 0.9, 0.3, "no worse than 0.3"),
        (-0.2, 0.3, 0.3, "no worse than 0.3"),
        (-0.3, 0.2, 0.3, "can't tell"),
        (-0.9, 0.9, 0.3, "can't tell"),
        (-0.2, 0.2, None, "can't tell"),
        (0.0, 0.2, None, "can't tell"),
    ],
)
def test_verdicts(low, high, margin, word):
    assert stats.verdict(low, high, margin) == word


# --- Rows judged by their own spread ------------------------------------------------------------


def test_a_row_that_would_be_told_by_the_others_spread_stands_out():
    """And says at how many seeds a paired t of its spread would tell a gain as large."""
    y = np.random.default_rng(17).normal(90, 0.3, (8, 3))
    y[1] += [-1, -45, -53]
    row = stats.column_gains(y, 0, family(8)).rows[1]
    assert (row.own_reason, row.stands_out) == ("outlier", True)
    assert row.gain.high > 0
    d = y[1] - y[0]
    for n, told in ((row.decides - 1, False), (row.decides, True)):
        half = oracle.t.ppf(1 - 0.05 / 14, n - 1) * d.std(ddof=1) / math.sqrt(n)
        assert (half < abs(d.mean())) == told
    others = stats.column_gains(y, 0, family(8)).rows[2:]
    assert not any(other.stands_out or other.own_reason for other in others)


def test_a_noisy_row_without_a_gain_does_not_stand_out():
    y = np.random.default_rng(18).normal(90, 0.3, (8, 3))
    y[1] += [-6, 6, 0.2]
    row = stats.column_gains(y, 0, family(8)).rows[1]
    assert row.own_reason
    assert not row.stands_out
    variances = y.var(1, ddof=1)
    assert row.ratio**2 == pytest.approx(variances[1] / np.delete(variances, 1).mean())
