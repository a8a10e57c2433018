"""The statistics against oracles that aren't ours, and what they promise, by simulation."""

import math

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as oracle
from simulation import family, family_wise_error, simulate

from ablate.analysis import stats
from ablate.analysis.stats import Estimate, Method

# --- Oracles ------------------------------------------------------------------------------------


def test_the_quantiles_are_those_of_scipy_stats():
    df, p = np.array([1, 2, 9, 40, 1000]), np.array([0.9, 0.975, 0.999, 1 - 1e-5, 0.6])
    assert np.allclose(scipy.special.stdtrit(df, p), oracle.t.ppf(p, df), rtol=1e-10)
    assert np.allclose(scipy.special.fdtri(df, 7, p), oracle.f.ppf(p, df, 7), rtol=1e-10)


def test_a_mean_has_students_interval():
    x = np.random.default_rng(0).normal(93, 1, 5)
    found = stats.mean_interval(x, 0.1)
    expected = oracle.ttest_1samp(x, 0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert (found.mean, found.n) == (pytest.approx(x.mean()), 5)
    assert found.sd == pytest.approx(x.std(ddof=1))
    assert found.se == pytest.approx(oracle.sem(x))


def test_one_value_has_no_interval():
    assert stats.mean_interval([93.0]) == Estimate(93.0, None, None, 1)
    assert stats.mean_interval([93.0]).se is None


def test_paired_and_welch_are_scipys_at_alpha_over_contrasts():
    y = np.random.default_rng(1).normal(0, [[1], [1], [4]], (3, 6))
    for spread in ("paired", "welch"):
        found = stats.column_gains(y, 1, Method(spread, contrasts=4))
        assert found.rows[1] is None
        assert found.spread is None
        for row in (0, 2):
            if spread == "paired":
                test = oracle.ttest_rel(y[row], y[1])
            else:
                test = oracle.ttest_ind(y[row], y[1], equal_var=False)
            expected = test.confidence_interval(1 - 0.05 / 4)
            gain = found.rows[row].gain
            assert (gain.low, gain.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
            assert gain.mean == pytest.approx(y[row].mean() - y[1].mean())


def by_hand(y, screen, contrasts):
    """STATISTICS, "Pooled, exactly", in the slowest way: least squares, loops, scipy.stats.

    (low, high) of each variant, why it is judged by its own spread, whether the baseline's screen
    tripped, its ratio.
    """
    rows, n = y.shape
    t = lambda df: oracle.t.ppf(1 - 0.05 / (2 * contrasts), df)  # noqa: E731
    design = np.zeros((rows, n, rows + n))
    for r in range(rows):
        for s in range(n):
            design[r, s, [r, rows + s]] = 1
    flat = design.reshape(rows * n, -1)
    solution = np.linalg.lstsq(flat, y.ravel(), rcond=None)[0]
    residuals = (y.ravel() - flat @ solution).reshape(rows, n)
    v = [rows / (rows - 1) * (residuals[r] ** 2).sum() / (n - 1) for r in range(rows)]
    own = {}
    for r in range(1, rows) if screen else ():
        f = v[r] / np.mean([v[k] for k in range(rows) if k != r])
        if oracle.f.cdf(f, n - 1, (rows - 1) * (n - 1)) > 0.95:
            out = oracle.f.cdf(f, n - 1, (rows - 1) * (n - 1)) > 0.999
            own[r] = "outlier" if out else "spread"
    pool = [r for r in range(1, rows) if own.get(r) != "outlier"]
    k = len(pool)
    tripped, ratio, half = False, None, None
    if k:
        centred = y - y.mean(1, keepdims=True)
        m = [np.mean([centred[r, s] for r in pool]) for s in range(n)]
        ss = sum((centred[r, s] - m[s]) ** 2 for r in pool for s in range(n))
        q = k / (k + 1) * sum((centred[0, s] - m[s]) ** 2 for s in range(n))
        if k >= 2 and screen:
            f = q / (n - 1) / (ss / ((k - 1) * (n - 1)))
            level = 0.90 if n < 5 else 0.95
            tripped = oracle.f.cdf(f, n - 1, (k - 1) * (n - 1)) > level
        if tripped:
            msw = ss / ((k - 1) * (n - 1))
            msb = k * np.var([m[s] - centred[0, s] for s in range(n)], ddof=1)
            tau = (msb + (k - 1) * msw) / k
            df = (msb + (k - 1) * msw) ** 2 / (msb**2 / (n - 1) + (k - 1) * msw**2 / (n - 1))
            half = t(df) * np.sqrt(tau / n)
            ratio = np.sqrt(max(0, np.var(centred[0] - m, ddof=1) - msw / k) / msw)
        else:
            df = k * (n - 1)
            constant = t(df) if screen else stats.dunnett(rows - 1, df, 0.05)
            half = constant * np.sqrt(2 * (ss + q) / df / n)
    intervals = {}
    for r in range(1, rows):
        d = y[r] - y[0]
        mine = t(n - 1) * d.std(ddof=1) / np.sqrt(n) if r in own else half
        intervals[r] = (d.mean() - mine, d.mean() + mine)
    return intervals, own, tripped, ratio


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(2, 7),
    n=st.integers(2, 6),
    noisy=st.floats(0.5, 12.0),
    baseline=st.sampled_from([0.0, 0.0, 4.0, 9.0]),
    screen=st.booleans(),
)
def test_pooled_blocks_are_the_two_way_fit_with_both_screens(
    seed, rows, n, noisy, baseline, screen
):
    rng = np.random.default_rng(seed)
    y = rng.normal(90, 1, (rows, n)) + rng.normal(0, 2, (rows, 1)) + rng.normal(0, 1, n)
    y[-1] += rng.normal(0, noisy, n)
    y[0] += rng.normal(0, baseline, n)
    expected, own, tripped, ratio = by_hand(y, screen, rows - 1)
    found = stats.column_gains(y, 0, family(rows, screen=screen))
    assert (found.ratio is not None) == tripped
    assert found.ratio == (pytest.approx(ratio) if tripped else None)
    for r in range(1, rows):
        assert found.rows[r].own == own.get(r, "")
        assert (found.rows[r].gain.low, found.rows[r].gain.high) == pytest.approx(expected[r])
    out = [r for r in own if own[r] == "outlier"]
    assert found.kept == rows - len(out)
    if not tripped and found.kept > 1:
        alike = np.delete(y, out, axis=0)
        both = alike - alike.mean(1, keepdims=True) - alike.mean(0) + alike.mean()
        assert found.df == (len(alike) - 1) * (n - 1)
        assert found.spread == pytest.approx(np.sqrt((both**2).sum() / found.df))


def test_two_rows_pooled_are_a_paired_t():
    y = np.random.default_rng(2).normal(0, 1, (2, 4))
    expected = oracle.ttest_rel(y[1], y[0]).confidence_interval(0.95)
    for screen in (True, False):
        gain = stats.column_gains(y, 0, Method(screen=screen)).rows[1].gain
        assert (gain.low, gain.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("alpha", "df", "published"),
    [  # Dunnett 1964 (Biometrics 20), two-sided, 1 to 9 comparisons
        (0.05, 5, "2.57 3.03 3.29 3.48 3.62 3.73 3.82 3.90 3.97"),
        (0.05, 10, "2.23 2.57 2.76 2.89 2.99 3.07 3.14 3.19 3.24"),
        (0.05, 20, "2.09 2.38 2.54 2.65 2.73 2.80 2.86 2.90 2.95"),
        (0.05, 10**6, "1.96 2.21 2.35 2.44 2.51 2.57 2.61 2.65 2.69"),
        (0.01, 10, "3.17 3.53 3.74 3.88 3.99 4.08 4.16 4.22 4.28"),
    ],
)
def test_dunnetts_constant_is_the_published_one(alpha, df, published):
    for comparisons, value in enumerate(published.split(), start=1):
        assert stats.dunnett(comparisons, df, alpha) == pytest.approx(float(value), abs=0.0065)


@pytest.mark.parametrize(("rows", "n"), [(3, 3), (6, 4), (10, 3)])
def test_dunnetts_constant_is_scipys(rows, n):
    """scipy's intervals are of independent groups: the constant is their half-width in se."""
    y = np.random.default_rng(3).normal(0, 1, (rows, n))
    found = oracle.dunnett(*y[1:], control=y[0], rng=np.random.default_rng(0))
    interval = found.confidence_interval(0.95)
    se = math.sqrt(2 * y.var(axis=1, ddof=1).mean() / n)
    constant = stats.dunnett(rows - 1, rows * (n - 1), 0.05)
    assert (interval.high - interval.low) / 2 / se == pytest.approx(constant, rel=3e-3)


def test_dunnetts_constant_is_a_multivariate_t():
    rng = np.random.default_rng(4)
    z = rng.standard_normal((400_000, 9))
    s = np.sqrt(rng.chisquare(16, 400_000) / 16)
    largest = np.abs((z[:, 1:] - z[:, :1]) / math.sqrt(2)).max(1) / s
    assert (largest > stats.dunnett(8, 16, 0.05)).mean() == pytest.approx(0.05, abs=0.0012)


# --- What they promise --------------------------------------------------------------------------


def test_students_intervals_cover():
    rng = np.random.default_rng(5)
    for n in (3, 5):
        y = simulate(rng, 2, n, 0.4)
        found = stats.fit(y, 0, Method("paired"))
        assert 0.945 <= (np.abs(found.gain[:, 1]) <= found.half[:, 1]).mean() <= 0.955
        half = oracle.t.ppf(0.975, n - 1) * y[:, 0].std(-1, ddof=1) / math.sqrt(n)
        assert 0.945 <= (np.abs(y[:, 0].mean(-1)) <= half).mean() <= 0.955


@pytest.mark.parametrize("correlation", [0.0, 0.6])
@pytest.mark.parametrize("n", [3, 5])
def test_pooled_intervals_without_the_screen_cover_all_rows_at_once(n, correlation):
    y = simulate(np.random.default_rng(6), 9, n, correlation)
    error = family_wise_error(y, family(9, screen=False))
    assert 0.045 <= error <= 0.055


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("ratio", [1, 3])
def test_welchs_intervals_cover_independent_seeds(n, ratio):
    y = simulate(np.random.default_rng(7), 2, n)
    y[:, 1] *= ratio
    assert 0.945 <= 1 - family_wise_error(y, Method("welch")) <= 0.97


def test_welchs_intervals_are_conservative_where_seeds_correlate():
    y = simulate(np.random.default_rng(8), 2, 5, 0.6)
    assert 1 - family_wise_error(y, Method("welch")) >= 0.98


SCENARIOS = {  # rows x spread; blocks of all, of the variants
    "equal": {},
    "seeds correlated .6": {"blocks": 0.6},
    "baseline 3x": {"noisy": [0]},
    "baseline 2x": {"noisy": [0], "times": 2},
    "variants correlated .9, baseline not": {"variants": 0.9},
    "one row 3x": {"noisy": [1]},
    "two rows 3x": {"noisy": [1, 2]},
    "half of the rows 3x": {"noisy": [1, 2, 3, 4]},
    "baseline and one row 3x": {"noisy": [0, 1]},
}
SEEDS = (3, 5, 10)
BOUNDS = {  # family-wise error, at most: STATISTICS, "What a correct program shows"
    9: {
        "equal": (0.042, 0.042, 0.042),
        "seeds correlated .6": (0.048, 0.048, 0.048),
        "baseline 3x": (0.093, 0.052, 0.025),
        "baseline 2x": (0.099, 0.083, 0.045),
        "variants correlated .9, baseline not": (0.076, 0.058, 0.040),
        "one row 3x": (0.073, 0.063, 0.045),
        "two rows 3x": (0.108, 0.089, 0.053),
        "half of the rows 3x": (0.076, 0.066, 0.057),
        "baseline and one row 3x": (0.105, 0.066, 0.064),
    },
    20: {"equal": (0.042, 0.042, 0.042), "baseline 3x": (0.096, 0.050, 0.020)},
    2: {"equal": (0.047, 0.047, 0.047), "baseline 3x": (0.071, 0.068, 0.048)},
}


def scenario(name, variants, n, seed=9):
    kind, rng = SCENARIOS[name], np.random.default_rng(seed)
    y = simulate(rng, variants + 1, n, kind.get("blocks", 0.0))
    if "variants" in kind:
        y[:, 1:] = simulate(rng, variants, n, kind["variants"])
    y[:, kind.get("noisy", [])] *= kind.get("times", 3)
    return y


@pytest.mark.parametrize(
    ("variants", "name"), [(variants, name) for variants in BOUNDS for name in BOUNDS[variants]]
)
def test_the_pool_with_both_screens_keeps_the_family_wise_error(variants, name):
    for n, most in zip(SEEDS, BOUNDS[variants][name], strict=True):
        y = scenario(name, variants, n)
        assert family_wise_error(y, family(variants + 1)) <= most
    if name == "baseline 3x":  # what they are for: without them it is the same at any n
        assert family_wise_error(y, family(variants + 1, screen=False)) > most + 0.03


@pytest.mark.parametrize(("n", "level"), [(3, 0.10), (5, 0.05), (10, 0.05)])
def test_the_baselines_screen_trips_at_its_level_where_spreads_are_equal(n, level):
    for name in ("equal", "seeds correlated .6"):
        tripped = stats.fit(scenario(name, 9, n), 0, family(10)).pool.tripped
        assert tripped.mean() == pytest.approx(level, abs=0.007)


def test_the_baselines_ratio_is_that_of_the_spreads():
    y = scenario("baseline 3x", 9, 10)
    pool = stats.fit(y, 0, family(10)).pool
    assert np.median(pool.ratio) == pytest.approx(3, rel=0.05)


def test_a_collapsed_baseline_run_voids_every_table():
    """By any spread: no interval, so no word; and it would have been wrong in most tables."""
    y = simulate(np.random.default_rng(10), 21, 5, draws=300)
    y[:, 0, 2] -= 30
    unstable = np.arange(21) == 0
    for spread in ("pooled", "paired", "welch"):
        for table in y[:: 1 if spread == "pooled" else 30]:
            found = stats.column_gains(table, 0, family(21, spread=spread), unstable)
            assert found.void
            assert all(row.gain.low is None and row.p is None for row in found.rows[1:])
    unseen = stats.fit(y, 0, family(21, screen=False))
    assert (unseen.gain > unseen.half)[:, 1:].any(-1).mean() > 0.5


@pytest.mark.parametrize("noise", [1, 3])
@pytest.mark.parametrize("n", [3, 5])
def test_paired_keeps_the_family_wise_error_always(n, noise):
    y = simulate(np.random.default_rng(11), 9, n, 0.3)
    y[:, 3:5] *= noise
    assert family_wise_error(y, family(9, spread="paired")) <= 0.055


def test_declared_looks_keep_the_family_wise_error():
    y = simulate(np.random.default_rng(12), 9, 5, 0.3)
    method = family(9, alpha=0.05 / 2)
    told = [stats.fit(y[..., :n], 0, method) for n in (3, 5)]
    wrong = np.any([(np.abs(f.gain) > f.half)[:, 1:].any(-1) for f in told], axis=0)
    assert wrong.mean() <= 0.055


def test_the_default_finds_a_gain_that_pairing_misses():
    y = simulate(np.random.default_rng(13), 9, 3)
    y[:, 1] += 3
    power = {}
    for name, method in (
        ("pooled", family(9)),
        ("Dunnett", family(9, screen=False)),
        ("paired", family(9, spread="paired")),
    ):
        found = stats.fit(y, 0, method)
        power[name] = (found.gain - found.half > 0)[:, 1].mean()
    assert power["pooled"] == pytest.approx(0.59, abs=0.02)  # what the screens cost
    assert power["Dunnett"] == pytest.approx(0.75, abs=0.02)
    assert power["paired"] < 0.15


@pytest.mark.parametrize(("n", "effect", "power"), [(3, 3, 0.58), (5, 2, 0.53), (10, 1.4, 0.55)])
def test_what_the_screens_leave_of_the_power(n, effect, power):
    y = scenario("equal", 9, n)
    y[:, 1] += effect
    found = stats.fit(y, 0, family(10))
    assert (found.gain - found.half > 0)[:, 1].mean() >= power


@pytest.mark.parametrize(
    ("looks", "rows", "error"),
    [
        ((3, 5), 2, 0.086),
        ((3, 5, 10), 2, 0.120),
        (tuple(range(3, 11)), 2, 0.167),
        ((3, 5), 10, 0.085),
    ],
)
def test_looking_again_inflates_the_error_of_the_family(looks, rows, error):
    assert stats.look_error(looks, family(rows, screen=False)) == pytest.approx(error, abs=0.007)


def test_the_error_of_looks_is_that_of_scipys_tests():
    """Nine variants: a two-way ANOVA and the quantiles of scipy's multivariate t."""
    y = simulate(np.random.default_rng(14), 10, 5, 0.3)
    told = np.zeros(len(y), dtype=bool)
    for n, quantile in ((3, 2.977), (5, 2.826)):
        some = y[..., :n]
        residual = some - some.mean(-1, keepdims=True) - some.mean(-2, keepdims=True)
        residual += some.mean((-1, -2), keepdims=True)
        error = np.sqrt((residual**2).sum((-1, -2)) / (9 * (n - 1)) * 2 / n)
        gains = (some - some[:, :1]).mean(-1)[:, 1:]
        told |= (abs(gains) > quantile * error[:, None]).any(-1)
    found = stats.look_error((3, 5), family(10, screen=False))
    assert found == pytest.approx(told.mean(), abs=0.008)


def test_one_look_has_its_nominal_error_and_looks_have_no_order():
    assert stats.look_error((4,), family(10, screen=False)) == pytest.approx(0.05, abs=0.006)
    assert stats.look_error((5, 3), family(10)) == stats.look_error((3, 5), family(10))
    assert stats.look_error((3, 5), family(10)) == pytest.approx(0.059, abs=0.006)
    assert stats.look_error((3, 5), family(10, alpha=0.025)) < 0.05


# --- The seed correlation -----------------------------------------------------------------------


def test_the_seed_correlation_is_the_consistency_icc():
    """Shrout & Fleiss 1979, Table 2: six targets, four judges; ICC(3,1) is .71 (.34, .95 by R)."""
    y = np.array([[9, 6, 8, 7, 10, 6], [2, 1, 4, 1, 5, 2], [5, 3, 6, 2, 6, 4], [8, 2, 8, 6, 9, 7]])
    found = stats.seed_correlation(y.astype(float))
    assert found.mean == pytest.approx(0.71, abs=0.005)
    assert (found.low, found.high) == pytest.approx((0.3425, 0.9459), abs=0.0005)
    assert found.n == 6


def test_the_interval_of_the_seed_correlation_covers():
    y = simulate(np.random.default_rng(14), 9, 5, 0.37, draws=4000)
    found = [stats.seed_correlation(draw) for draw in y]
    assert np.mean([c.low <= 0.37 <= c.high for c in found]) == pytest.approx(0.95, abs=0.012)


# --- Missing, diverged, degenerate --------------------------------------------------------------


def test_a_row_with_missing_seeds_is_fitted_on_those_it_shares():
    y = np.random.default_rng(15).normal(90, 1, (5, 4))
    y[3, 1] = np.nan
    found = stats.column_gains(y, 0, family(5))
    alone = stats.column_gains(y[:, [0, 2, 3]], 0, family(5))
    assert found.rows[3] == alone.rows[3]
    assert found.rows[3].gain.n == 3
    others = stats.column_gains(y[[0, 1, 2, 4]], 0, Method(contrasts=4, comparisons=4))
    assert [found.rows[r] for r in (1, 2, 4)] == list(others.rows[1:])
    assert (found.spread, found.df, found.kept) == (others.spread, 9, 4)


def test_a_diverged_row_leaves_the_pool_and_the_fit():
    y = np.random.default_rng(16).normal(90, 1, (5, 4))
    y[2, 0] = y[0, 3] = np.nan
    diverged = np.array([False, False, True, False, False])
    found = stats.column_gains(y, 0, family(5), diverged)
    assert [row and row.own for row in found.rows] == [None, "", "instability", "", ""]
    expected = oracle.ttest_rel(y[2, 1:3], y[0, 1:3]).confidence_interval(1 - 0.05 / 4)
    gain = found.rows[2].gain
    assert (gain.low, gain.high, gain.n) == (*map(pytest.approx, expected), 2)
    assert found.kept == 4
    unscreened = stats.column_gains(y, 0, family(5, screen=False), diverged)
    assert not any(row.own for row in unscreened.rows[1:])


def test_what_can_not_be_estimated_is_none():
    y = np.full((3, 3), np.nan)
    assert stats.column_gains(y, 0, family(3)).rows == (None, None, None)
    y[:2, 0] = 90, 91
    found = stats.column_gains(y, 0, family(3))
    assert found.rows[1].gain == Estimate(1.0, None, None, 1)
    assert found.rows[2] is None
    assert (found.spread, found.df, found.correlation) == (None, None, None)


@pytest.mark.parametrize("spread", ["pooled", "paired", "welch"])
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
    assert (row.own, row.stands_out) == ("outlier", True)
    assert row.gain.high > 0
    d = y[1] - y[0]
    for n, told in ((row.decides - 1, False), (row.decides, True)):
        half = oracle.t.ppf(1 - 0.05 / 14, n - 1) * d.std(ddof=1) / math.sqrt(n)
        assert (half < abs(d.mean())) == told
    others = stats.column_gains(y, 0, family(8)).rows[2:]
    assert not any(other.stands_out or other.own for other in others)


def test_a_noisy_row_without_a_gain_does_not_stand_out():
    y = np.random.default_rng(18).normal(90, 0.3, (8, 3))
    y[1] += [-6, 6, 0.2]
    row = stats.column_gains(y, 0, family(8)).rows[1]
    assert row.own
    assert not row.stands_out
    f = row.ratio**2
    whole = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
    squares = (whole**2).sum(1)
    assert f == pytest.approx(squares[1] / np.delete(squares, 1).mean())
