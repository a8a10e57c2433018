"""What a sweep can tell before it is run: its spread, and forecasts against fresh simulations."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as oracle
from simulation import DRAWS, family, simulate

from ablate.analysis import stats
from ablate.analysis.stats import Method, Spread
from ablate.analysis.stats.power import _threshold_gains

# --- The spread of what has finished ------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 6),
    n=st.integers(1, 5),
    missing=st.floats(0, 0.6),
)
def test_the_spread_is_that_of_least_squares_with_cells_missing(seed, rows, n, missing):
    rng = np.random.default_rng(seed)
    y = 90 + rng.normal(0, 1, (rows, n)) + rng.normal(0, 5, (rows, 1)) + rng.normal(0, 5, n)
    y[rng.random((rows, n)) < missing] = np.nan
    r, s = np.nonzero(~np.isnan(y))
    design = np.zeros((len(r), rows + n))
    design[np.arange(len(r)), r] = design[np.arange(len(r)), rows + s] = 1
    solution, _, rank, _ = np.linalg.lstsq(design, y[r, s], rcond=None)
    df = len(r) - rank
    found = stats.residual_spread(y)
    if df < 1:
        assert found is None
    else:
        expected = math.sqrt(((y[r, s] - design @ solution) ** 2).sum() / df)
        assert found == Spread(pytest.approx(expected), df)


def test_equal_results_have_no_spread():
    assert stats.residual_spread(np.array([[90.1, 91.3, 90.7], [90.3, 91.5, 90.9]])) is None


def test_its_interval_is_that_of_chi_square_and_below_eight_df_it_is_barely_known():
    low, expected, high = Spread(0.3, 6).interval
    assert expected == 0.3
    assert low == pytest.approx(0.3 * math.sqrt(6 / oracle.chi2.ppf(0.9, 6)))
    assert high == pytest.approx(0.3 * math.sqrt(6 / oracle.chi2.ppf(0.1, 6)))
    assert Spread(0.3).interval == (0.3, 0.3, 0.3)  # assumed: not known at all
    known = [Spread(0.3, 7).barely_known, Spread(0.3, 8).barely_known, Spread(0.3).barely_known]
    assert known == [True, False, False]


# --- Forecasts ----------------------------------------------------------------------------------


def power_of(effect, n, method, correlation=0.0, seed=42, draws=DRAWS):
    """Of the table's own function on fresh results: the share of tables that say `helps`."""
    y = simulate(np.random.default_rng(seed), method.variants + 1, n, correlation, draws)
    y /= math.sqrt(1 - correlation)  # residuals of spread 1
    y[:, 1] += effect
    found = stats.fit(y, method)
    return (found.gain - found.half > 0)[:, 1].mean()


FORECASTS = [
    (family(9), 3, 3.0, 0.0),
    (family(9), 3, 2.0, 0.6),
    (family(9), 5, 1.0, 0.3),
    (family(9, spread="paired"), 3, 3.0, 0.0),
    (family(9, spread="paired"), 6, 2.5, 0.3),
    (family(9), 5, 2.0, 0.5),
    (family(2), 3, 3.0, 0.2),
    (Method(contrasts=12, variants=3, alpha=0.025), 4, 2.0, 0.0),
]


@pytest.mark.whole
@pytest.mark.parametrize(("method", "n", "effect", "correlation"), FORECASTS)
def test_a_forecast_is_within_two_points_of_a_fresh_simulation(method, n, effect, correlation):
    found = stats.detect(0.3 * effect, n, Spread(0.3), method, correlation)
    expected = power_of(effect, n, method, correlation)
    assert found.power.expected == pytest.approx(expected, abs=0.02)
    # The smallest gain is the one with 80 % power.
    again = power_of(found.smallest.expected / 0.3, n, method, correlation, seed=43)
    assert again == pytest.approx(0.8, abs=0.02)


@pytest.mark.whole
@pytest.mark.parametrize(
    "method", [family(9), family(5, spread="images"), family(5, spread="paired"), Method()]
)
@pytest.mark.parametrize("effect", [1.5, 4.0])
def test_the_seeds_are_the_fewest_with_80_percent_power(method, effect):
    n = stats.detect(effect, 3, Spread(1.0), method).seeds.expected
    assert power_of(effect, n, method) >= 0.79
    assert n == 3 or power_of(effect, n - 1, method) < 0.81


def test_a_range_is_over_the_interval_of_the_spread():
    method, spread = family(9), Spread(0.3, 16)
    found = stats.detect(0.6, 4, spread, method)
    for k, sd in enumerate(spread.interval):
        alone = stats.detect(0.6, 4, Spread(sd), method)
        assert [x[k] for x in (found.power, found.smallest, found.seeds)] == [
            alone.power.expected,
            alone.smallest.expected,
            alone.seeds.expected,
        ]
    assert found.power.low > found.power.expected > found.power.high
    assert found.smallest.low < found.smallest.expected < found.smallest.high
    assert found.seeds.low < found.seeds.expected < found.seeds.high


def test_points_and_spreads_scale_together_and_the_answer_repeats():
    method = family(6)
    one = stats.detect(1.5, 3, Spread(1.0), method)
    _threshold_gains.cache_clear()
    ten = stats.detect(15.0, 3, Spread(10.0), method)
    assert (ten.power, ten.seeds) == (one.power, one.seeds)
    assert ten.smallest.expected == pytest.approx(10 * one.smallest.expected)


@pytest.mark.whole
def test_more_than_a_hundred_seeds_is_none():
    seeds = stats.detect(0.42, 3, Spread(1.0, 12), Method()).seeds
    assert seeds.low is not None
    assert seeds.high is None
    # G*Power 3.1 has 90 for a paired t with d = 0.3.
    one = stats.detect(0.3 * math.sqrt(2), 3, Spread(1.0), Method("paired")).seeds.expected
    assert one == pytest.approx(90, abs=2)


def test_seed_blocks_cost_only_one_way():
    for spread in ("images", "paired"):
        method = family(4, spread=spread)
        apart = stats.detect(2.0, 4, Spread(1.0), method, 0.0).power.expected
        assert stats.detect(2.0, 4, Spread(1.0), method, 0.6).power.expected == apart
    method = family(4)
    apart = stats.detect(2.5, 4, Spread(1.0), method, 0.0).power.expected
    assert stats.detect(2.5, 4, Spread(1.0), method, 0.6).power.expected < apart - 0.1
    assert stats.detect(2.5, 4, Spread(1.0), method, -0.2).power.expected == apart


# --- What more seeds would resolve --------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize(("n", "more"), [(3, 6), (3, 10), (5, 10)])
def test_the_resolution_of_more_seeds_is_forecast_with_its_band(n, more):
    """The median within 5 %, the band holds 70 to 82 % where no screen trips."""
    method = family(10)
    y = simulate(np.random.default_rng(45), 10, more)
    now, then = stats.fit(y[..., :n], method), stats.fit(y, method)
    plain = ~now.variances.tripped & ~then.variances.tripped & ~then.variances.is_own[:, -1]
    ratios, held = [], []
    for v, df, half in zip(
        now.variances.shared_v[plain, -1],
        now.variances.shared_df[plain, -1],
        then.half[plain, -1],
        strict=True,
    ):
        found = stats.resolution(Spread(math.sqrt(v / 2), df), n, more, method)
        ratios.append(half / found.expected)
        held.append(found.low <= half <= found.high)
    assert np.median(ratios) == pytest.approx(1, abs=0.05)
    assert 0.70 <= np.mean(held) <= 0.82


def test_the_resolution_is_students_half_width():
    found = stats.resolution(Spread(0.5, 18), 3, 6, family(10))
    half = oracle.t.ppf(1 - 0.05 / 18, 45) * 0.5 * math.sqrt(2 / 6)
    assert found.expected == pytest.approx(half)
    tails = oracle.f.ppf([0.1, 0.9], 45 - 18, 18)
    assert (found.low, found.high) == tuple(
        pytest.approx(half * math.sqrt(18 / 45 + 27 / 45 * tail)) for tail in tails
    )
