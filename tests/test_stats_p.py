"""p-values and what is counted: Holm, Dunnett, sign flips, Fisher, Kendall; curves and words."""

import itertools
import math
import subprocess
import sys
import time
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as oracle
from simulation import DRAWS, family, simulate

from ablate.analysis import stats
from ablate.analysis.stats import Method

# --- p-values of gains --------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(2, 6),
    n=st.integers(2, 6),
    spread=st.sampled_from(["images", "one way"]),
    columns=st.integers(1, 3),
)
def test_p_is_at_most_alpha_where_the_interval_excludes_0(seed, rows, n, spread, columns):
    rng = np.random.default_rng(seed)
    right = rng.random((rows, n, 50)) < np.linspace(0.5, 0.9, rows)[:, None, None]
    y, flips = 100 * right.mean(-1), stats.Flips((right,))
    method = Method(spread, contrasts=columns * (rows - 1), variants=rows - 1)
    for row in stats.column_gains(y, 0, method, None, flips).rows[1:]:
        if row.p is None:
            assert not row.gain.sd
            continue
        assert row.raw_p * (1 - 1e-9) <= row.p <= 1
        if not row.own_reason:
            assert (row.p < 0.05) == (row.gain.low > 0 or row.gain.high < 0)


def test_p_is_students_times_the_contrasts():
    y = np.random.default_rng(20).normal(0, 1, (4, 5)) + np.array([[0], [1], [2], [0.1]])
    found = stats.column_gains(y, 0, Method(contrasts=6, variants=3))
    assert (found.kept_rows, found.df) == (4, 16)
    for row in found.rows[1:]:
        t = row.gain.mean / math.sqrt(2 * y.var(1, ddof=1).mean() / 5)
        assert row.raw_p == pytest.approx(2 * oracle.t.sf(abs(t), 16))
        assert row.p == pytest.approx(min(1, 6 * row.raw_p))


def test_p_of_two_rows_is_that_of_a_paired_t():
    y = np.random.default_rng(21).normal(0, 1, (2, 4))
    expected = oracle.ttest_rel(y[1], y[0]).pvalue
    for spread in ("images", "one way", "paired"):
        row = stats.column_gains(y, 0, Method(spread)).rows[1]
        assert (row.p, row.raw_p) == (pytest.approx(expected), pytest.approx(expected))


def test_own_spreads_have_holms_p():
    y = np.random.default_rng(22).normal(0, 1, (5, 6)) + np.array([[0], [2], [1.5], [0.4], [1]])
    found = stats.column_gains(y, 0, family(5, spread="paired")).rows[1:]
    raw = [oracle.ttest_rel(row, y[0]).pvalue for row in y[1:]]
    assert [row.raw_p for row in found] == pytest.approx(raw)
    expected, so_far = {}, 0.0
    for step, k in enumerate(np.argsort(raw)):
        so_far = max(so_far, (4 - step) * raw[k])
        expected[k] = min(1.0, so_far)
    assert [row.p for row in found] == pytest.approx([expected[k] for k in range(4)])


def test_a_row_judged_by_its_own_spread_has_holms_p_and_its_neighbours_that_of_the_interval():
    y = np.random.default_rng(23).normal(0, 1, (5, 6)) + np.array([[0], [40], [30], [0], [0]])
    y[2] += np.array([20, -20, 10, -10, 5, -5])
    rows = stats.column_gains(y, 0, family(5)).rows
    assert [row.own_reason for row in rows[1:]] == ["", "outlier", "", ""]
    rank = sorted(row.raw_p for row in rows[1:]).index(rows[2].raw_p)
    assert 0 < rank < 3
    assert rows[2].raw_p == pytest.approx(oracle.ttest_rel(y[2], y[0]).pvalue)
    assert rows[2].p == pytest.approx((4 - rank) * rows[2].raw_p)
    assert rows[1].p == pytest.approx(4 * rows[1].raw_p)


def test_what_has_no_spread_or_one_seed_has_no_p():
    y = np.array([[90.0, 90.0], [91.0, 91.0], [92.0, np.nan]])
    for row in stats.column_gains(y, 0, Method("paired", contrasts=2, variants=2)).rows[1:]:
        assert (row.raw_p, row.p, row.sign_flip) == (None, None, None)


def test_holm_by_hand():
    """Four tests; a family of six with two that have no result; simulations side by side."""
    p = np.array([0.01, 0.04, 0.03, 0.005])
    assert stats.holm(p, 4) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm(p, 6) == pytest.approx([0.05, 0.12, 0.12, 0.03])
    some = stats.holm(np.array([[np.nan, 0.01, 0.9], [0.02, 0.5, np.nan]]), 3)
    assert some[0, 1:] == pytest.approx([0.03, 1.0])
    assert some[1, :2] == pytest.approx([0.06, 1.0])
    assert np.isnan(some[[0, 1], [0, 2]]).all()


@pytest.mark.parametrize("n", [3, 5])
def test_holm_keeps_the_family_wise_error_whichever_gains_are_true(n):
    """One variant with 3x the spread, seeds that correlate, half the gains true and found."""
    for correlation, gains in ((0.0, 0), (0.0, 4), (0.6, 0), (0.6, 4)):
        y = simulate(np.random.default_rng(25), 9, n, correlation)
        y[:, 8] *= 3
        y[:, 1 : 1 + gains] += 1000
        found = stats.fit(y, family(9, spread="paired"))
        raw = stats.raw_p(found.gain, found.variances.v, found.variances.df, n)[:, 1:]
        rejected = stats.holm(raw, 8) < 0.05
        assert rejected[:, :gains].all()
        assert rejected[:, gains:].any(-1).mean() <= 0.055


# --- Counted ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_sign_flips_are_scipys_permutation_test(n):
    rng, every = np.random.default_rng(28), {"permutation_type": "samples", "n_resamples": np.inf}
    for differences in (rng.normal(0.8, 1, n), rng.integers(-2, 4, n).astype(float)):
        found = stats.sign_flip(differences)
        expected = oracle.permutation_test((differences,), np.mean, axis=-1, **every)
        assert found.p == pytest.approx(expected.pvalue)
        assert found.floor == 2 / 2**n


def test_sign_flips_reach_their_floor_and_end_at_twenty_seeds():
    assert stats.sign_flip([0.1, 0.2, 0.3]) == (0.25, 0.25, True)
    assert stats.sign_flip([-0.1, -0.2, -0.3, -0.1, -0.5]).p == 0.0625
    assert stats.sign_flip([0.1 + 0.2, -0.3]).p == 1  # but for rounding the mean is 0
    assert stats.sign_flip(np.ones(20)).p == 2 / 2**20
    assert stats.sign_flip(np.ones(21)) is None
    assert stats.sign_flip([0.7]) == (1, 1, True)
    assert stats.sign_flip([]) is None


def test_gains_have_their_sign_flip():
    y = np.random.default_rng(30).normal(0, 1, (3, 5)) + np.array([[0], [9], [0.3]])
    y[2, 1] = np.nan
    for spread in ("pooled", "paired", "welch"):
        rows = stats.column_gains(y, 0, family(3, spread=spread)).rows
        assert rows[1].sign_flip == (2 / 32, 2 / 32, True)
        assert rows[2].sign_flip == stats.sign_flip((y[2] - y[0])[[0, 2, 3, 4]])


def test_fishers_test_is_scipys_and_its_floor_the_least_of_all_tables():
    for n, m in itertools.product((1, 3, 4, 5), (3, 4, 7)):
        expected = {
            (k, j): oracle.fisher_exact([[k, n - k], [j, m - j]]).pvalue
            for k in range(n + 1)
            for j in range(m + 1)
        }
        for (k, j), p in expected.items():
            found = stats.fisher(k, n, j, m)
            assert found.p == pytest.approx(p, rel=1e-9)
            assert found.floor == pytest.approx(min(expected.values()), rel=1e-9)
            assert found.tested == (min(n, m) >= 4)


def by_enumeration(x, y):
    orders = np.array(list(itertools.permutations(y)), dtype=float)
    i, j = np.triu_indices(len(x), 1)
    scores = (np.sign(x[i] - x[j]) * np.sign(orders[:, i] - orders[:, j])).sum(1)
    return (np.abs(scores) >= abs(scores[0])).mean()


@settings(max_examples=40, deadline=None)
@given(n=st.integers(5, 12), seed=st.integers(0, 10**6))
def test_kendalls_tau_without_ties_is_scipys(n, seed):
    x, y = np.random.default_rng(seed).normal(0, 1, (2, n))
    y += x
    expected = oracle.kendalltau(x, y, method="exact")
    found = stats.kendall(x, y)
    scipys = (pytest.approx(expected.statistic), pytest.approx(expected.pvalue), n)
    assert astuple(found) == scipys


@settings(max_examples=30, deadline=None)
@given(
    x=st.lists(st.integers(0, 3), min_size=5, max_size=7),
    seed=st.integers(0, 10**6),
    tied=st.booleans(),
)
def test_kendalls_tau_with_ties_is_exact(x, seed, tied):
    rng, x = np.random.default_rng(seed), np.array(x, dtype=float)
    y = rng.integers(0, 3, len(x)).astype(float) if tied else rng.permutation(len(x)).astype(float)
    found = stats.kendall(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert found is None
        return
    assert found.tau == pytest.approx(oracle.kendalltau(x, y).statistic)
    assert found.p == pytest.approx(by_enumeration(x, y))
    turned = (pytest.approx(found.tau), pytest.approx(found.p), found.n)
    assert astuple(stats.kendall(y, x)) == turned


def test_kendalls_tau_of_many_rows_with_ties_in_both_draws_orders(monkeypatch):
    monkeypatch.setattr("ablate.analysis.stats.estimate.MOST_ORDERED", 4)
    x, y = np.array([[1.1, 0.7, 1.4, 1.4, 1.9, 0.2, 0.3], [0.9, 0.7, 1.1, 1.6, 1.3, 0.7, 0.1]])
    found = stats.kendall(x, y)
    assert found.p == pytest.approx(by_enumeration(x, y), abs=4 * math.sqrt(found.p / 1e5))
    assert found == stats.kendall(x, y)
    assert stats.kendall(np.repeat(x, 3), np.repeat(y, 3)).p == 1e-5  # what was seen counts


def test_fewer_than_five_rows_have_no_tau():
    assert stats.kendall([1, 2, 3, 4], [1, 2, 3, 4]) is None
    found = stats.kendall([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert astuple(found) == (1.0, pytest.approx(2 / 120), 5)


# --- Beside the paper ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "published", "word"),
    [
        (0.1, 0.9, 1.4, "same direction"),
        (-0.9, -0.1, -0.2, "same direction"),
        (0.1, 0.9, -0.2, "opposite direction"),
        (-0.9, -0.1, 0.2, "opposite direction"),
        (-0.1, 0.9, 1.4, "can't tell"),
        (0.0, 0.9, -1.4, "can't tell"),
        (0.1, 0.9, 0.0, "can't tell"),
    ],
)
def test_agreement_with_a_published_gain(low, high, published, word):
    assert stats.agreement(low, high, published) == word


# --- Curves -------------------------------------------------------------------------------------


def test_epochs_to_a_threshold_are_those_first_measured_there():
    epochs = np.array([1, 2, 4, 8])
    values = np.array(
        [[0.1, 0.9, 0.8, 0.95], [0.1, 0.2, 0.3, 0.4], [0.9, 1, 1, 1], [np.nan, 0.1, np.nan, 0.9]]
    )
    found = stats.epochs_to(epochs, values, 0.9)
    assert found[[0, 2, 3]].tolist() == [2, 1, 8]
    assert np.isnan(found[1])
    assert stats.epochs_to(epochs, values[0], 0.9) == 2


def test_auc_is_the_mean_value_over_the_training():
    epochs = np.array([0.0, 1, 3, 10])
    assert stats.auc(epochs, np.full(4, 0.7)) == pytest.approx(0.7)
    assert stats.auc(epochs, epochs / 10) == pytest.approx(0.5)
    values = np.random.default_rng(31).random((3, 2, 4))
    assert stats.auc(epochs, values) == pytest.approx(np.trapezoid(values, epochs) / 10)


def test_simulations_are_fast():
    """It takes a tenth of a second; a table after the other would take minutes."""
    y = simulate(np.random.default_rng(32), 9, 5, draws=DRAWS)
    start = time.process_time()
    stats.fit(y, family(9))
    assert time.process_time() - start < 1


def test_tables_are_imported_without_numpy_and_scipy():
    loads = "import sys, ablate.analysis.paper, ablate.analysis.reading; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True)
    assert "ablate.analysis.stats" in done.stdout.split()
    assert not {"numpy", "scipy"} & {*done.stdout.split()}
