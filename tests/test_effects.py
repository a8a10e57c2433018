"""Effects of the factors of a design: against statsmodels' least squares, brute force, published
designs, and by simulation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as oracle
from simulation import (
    DESIGNS,
    FORECAST_DESIGNS,
    cells,
    forecast_power,
    judged_effects,
)

from ablate.analysis import stats
from ablate.analysis.stats import Method
from ablate.planning.changes import GENERATORS, Changes, cell_label, design_cells


def changes_of(count, design):
    names = tuple("ABCDEFGHIJKLMNOP"[:count])
    cells = design_cells(names, design)
    return Changes(names, design, {cell_label(names, on, design): on for on in cells})


def levels_of(count, design):
    made = changes_of(count, design)
    return np.array(made.levels([*made.rows]))


def product(*sizes):
    return np.array([*itertools.product(*map(range, sizes))])


# --- Weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(50))
def test_weights_are_those_of_least_squares_on_the_coded_cells(seed):
    """Coded -1/2 and 1/2, a coefficient is a main effect, that of a product an interaction."""
    fit = pytest.importorskip("statsmodels.api").OLS
    rng = np.random.default_rng(seed)
    design = ("factorial", "fractional")[seed % 2]
    count = int(rng.integers(2, 6) if design == "factorial" else rng.integers(5, 17))
    levels = levels_of(count, design)
    y, coded = rng.normal(0, 3, len(levels)), levels - 0.5
    columns = {(k,): coded[:, k] for k in range(count)}
    for pairs in changes_of(count, design).aliases():
        columns[pairs[0]] = coded[:, pairs[0][0]] * coded[:, pairs[0][1]]
    if design == "factorial":
        for size in range(3, count + 1):
            for some in itertools.combinations(range(count), size):
                columns[some] = coded[:, some].prod(1)
    model = fit(y, np.column_stack([np.ones(len(y)), *columns.values()])).fit()
    found = dict(zip(columns, model.params[1:], strict=True))
    for k in range(count):
        assert stats.level_effect(levels, k) @ y == pytest.approx(found[k,], abs=1e-10)
    for pairs in changes_of(count, design).aliases():
        effect = stats.pair_effect(levels, *pairs[0]) @ y
        assert effect == pytest.approx(found[pairs[0]], abs=1e-10)


def test_effects_of_several_levels_are_means_over_the_others():
    levels, y = product(3, 2, 4), np.random.default_rng(1).normal(0, 1, 24)
    cells = y.reshape(3, 2, 4)
    for factor, size in enumerate((3, 2, 4)):
        for level in range(1, size):
            expected = np.take(cells, level, factor).mean() - np.take(cells, 0, factor).mean()
            assert stats.level_effect(levels, factor, level) @ y == pytest.approx(expected)
    a, c = cells.mean(1)[2], cells.mean(1)[0]
    expected = (a[3] - a[0]) - (c[3] - c[0])
    assert stats.pair_effect(levels, 0, 2, 2, 3) @ y == pytest.approx(expected)


@pytest.mark.parametrize("count", range(2, 7))
def test_shapley_values_are_means_over_all_orders_and_sum_to_the_whole_gain(count):
    levels = levels_of(count, "factorial")
    y = np.random.default_rng(count).normal(0, 2, len(levels))
    value = {frozenset(np.flatnonzero(cell)): y[k] for k, cell in enumerate(levels)}
    added = {k: [] for k in range(count)}
    for order in itertools.permutations(range(count)):
        for place, k in enumerate(order):
            added[k].append(value[frozenset(order[: place + 1])] - value[frozenset(order[:place])])
    found = [stats.shapley(levels, k) @ y for k in range(count)]
    assert found == [pytest.approx(np.mean(added[k]), abs=1e-10) for k in range(count)]
    assert sum(found) == pytest.approx(value[frozenset(range(count))] - value[frozenset()])


# Pairs that stand together, and how many do, as tables of 2^(k-p) designs have it.
ALIASED = {5: (10, 1), 8: (7, 4), 16: (15, 8)}


@pytest.mark.parametrize("count", GENERATORS)
def test_a_fraction_has_main_effects_clear_of_pairs(count):
    made = changes_of(count, "fractional")
    levels = levels_of(count, "fractional")
    assert len(levels) == (16 if count <= 8 else 32)
    assert made.rows["none"] == ()
    signs = 2 * levels - 1
    assert (signs.T @ signs == len(levels) * np.eye(count)).all()
    pairs = {p: signs[:, p[0]] * signs[:, p[1]] for p in itertools.combinations(range(count), 2)}
    assert not np.any(signs.T @ np.column_stack([*pairs.values()]))
    assert not np.any(np.ones(len(levels)) @ np.column_stack([*pairs.values()]))
    groups = made.aliases()
    assert sorted(itertools.chain(*groups)) == sorted(pairs)
    assert np.linalg.matrix_rank(np.column_stack([*pairs.values()])) == len(groups)
    if count in ALIASED:
        assert (len(groups), len(groups[0])) == ALIASED[count]


# --- Intervals ----------------------------------------------------------------------------------


@pytest.mark.whole
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), a=st.integers(2, 4), b=st.integers(2, 3), n=st.integers(2, 5))
def test_effects_without_images_each_have_their_own_spread(seed, a, b, n):
    rng, levels = np.random.default_rng(seed), product(a, b)
    y = 90 + rng.normal(0, 1, (a * b, n)) + rng.normal(0, 3, n)
    weights = [stats.level_effect(levels, 0, i) for i in range(1, a)]
    weights.append(stats.pair_effect(levels, 0, 1))
    found = stats.design_effects(y, np.array(weights), Method(alpha=0.1, contrasts=a))
    assert not found.by_images
    for effect, each in zip(found.gains, weights, strict=True):
        test = oracle.ttest_1samp(each @ y, 0)
        expected = test.confidence_interval(1 - 0.1 / a)
        assert (effect.gain.low, effect.gain.high) == pytest.approx((expected.low, expected.high))
        assert (effect.df, effect.raw_p) == (n - 1, pytest.approx(test.pvalue))


def test_effects_with_images_have_the_flips_of_their_contrasts_and_the_shift():
    """F = a'Fa of the contrast's own flips, W = a'Wa, its df by Satterthwaite."""
    levels = product(2, 3)
    weights = np.array([stats.level_effect(levels, 0), stats.pair_effect(levels, 0, 1, 1, 2)])
    found = None
    for seed in range(20):  # until no cell is out of line
        right = np.random.default_rng(seed).random((6, 4, 200)) < 0.8
        y = 100 * right.mean(-1) + np.random.default_rng(seed).normal(0, 2, (6, 4))
        found = stats.design_effects(y, weights, Method("images"), right=right)
        if not found.noisy:
            break
    assert found.by_images
    m, shift = (
        stats.ImageFlips.from_right(right).covariance,
        stats.ImageFlips.from_right(right).shift,
    )
    kappa = np.clip(m / np.sqrt(np.outer(np.diag(m), np.diag(m))), 0, 1)
    scale = 1 / np.diag(m)
    a = np.diag(scale) - np.outer(scale, scale) / scale.sum()
    for effect, each in zip(found.gains, weights, strict=True):
        flips = np.einsum("r,rsi->si", each, right.astype(float)).var(0, ddof=1)
        one = (each**2).sum() / 8
        f, pairs = (flips.sum() + one) / 4, []
        for power in (2, 6):  # the shift that cells share: as rows do, or more
            w = np.outer(shift, shift) * (1 - (1 - kappa) ** power)
            u2 = max(0, (np.trace(a @ np.cov(y)) - np.trace(a @ m)) / np.trace(a @ w))
            av = a @ (m + u2 * w)
            error = 2 * np.trace(av @ av) / (3 * np.trace(a @ w) ** 2)
            wide = each @ w @ each
            v = f + u2 * wide
            noise = ((flips**2).sum() + one**2) / 16 / 2 + wide**2 * error / 2
            pairs.append((v, v**2 / noise))
        assert effect.gain.sd**2 == pytest.approx(max(pairs)[0], rel=1e-6)
        assert effect.df == pytest.approx(max(pairs)[1], rel=1e-6)


def test_a_cell_out_of_line_puts_its_own_excess_into_each_effect_by_its_weight():
    rng, levels = np.random.default_rng(61), product(2, 2, 2)
    right = rng.random((8, 5, 300)) < 0.8
    y = 100 * right.mean(-1)
    weights = np.array([stats.level_effect(levels, 0), stats.pair_effect(levels, 0, 1)])
    calm = stats.design_effects(y, weights, Method("images"), right=right)
    y[3] += [30, -30, 20, -20, 0]
    found = stats.design_effects(y, weights, Method("images"), right=right)
    assert (calm.noisy, found.noisy) == ((), (3,))
    more = [a.gain.sd**2 - b.gain.sd**2 for a, b in zip(found.gains, calm.gains, strict=True)]
    spread = np.var(y[3] - np.delete(y, 3, 0).mean(0), ddof=1)
    assert more == pytest.approx([spread / 16, spread / 4], rel=0.05)


def test_an_unstable_cell_leaves_each_effect_its_own_spread():
    rng, levels = np.random.default_rng(62), product(2, 3)
    right = rng.random((6, 4, 100)) < 0.8
    y, unstable = 100 * right.mean(-1), np.arange(6) == 4
    weights = np.array([stats.level_effect(levels, 1)])
    found = stats.design_effects(y, weights, Method("images"), unstable, right)
    alone = stats.design_effects(y, weights, Method("paired"))
    assert (found.by_images, found.gains[0].own_reason) == (False, "instability")
    assert found.gains[0].gain == alone.gains[0].gain


def test_effects_are_over_the_seeds_that_every_cell_has():
    y = np.random.default_rng(64).normal(0, 1, (4, 4))
    y[2, 1] = np.nan
    weights = np.array([stats.level_effect(product(2, 2), 0)])
    found = stats.design_effects(y, weights, Method())
    assert found.seeds == (0, 2, 3)
    assert found.gains == stats.design_effects(y[:, [0, 2, 3]], weights, Method()).gains
    y[0, [0, 2]] = np.nan
    assert stats.design_effects(y, weights, Method()) is None


# --- Errors -------------------------------------------------------------------------------------


MOST, SLOW = 0.06, pytest.mark.slow


@pytest.mark.whole
@pytest.mark.parametrize(
    ("tables", "n", "count"),
    [
        pytest.param(tables, n, count, marks=() if (tables, count) == (400, 4) and n < 5 else SLOW)
        for tables, counts in ((400, (4, 3)), (20_000, (2, 3, 4)))
        for n in (2, 3, 5)
        for count in counts
    ],
)
@pytest.mark.parametrize("case", DESIGNS)
def test_main_effects_by_images_err_at_most_so(case, tables, n, count):
    """The table of docs/statistics.md: 20,000 tables each."""
    rng = np.random.default_rng(11 if tables == 400 else 12)
    error = judged_effects(cells(case, rng, n, tables, 2**count), product(*[2] * count)).error
    print(f"{case}, 2^{count}, n = {n}: {error:.4f}")
    doubt = 3 * math.sqrt(MOST * (1 - MOST) / tables) if tables == 400 else 0.005
    assert error <= MOST + doubt


BEYOND_FLIPS = {2: 0.11, 3: 0.08, 5: 0.04}  # what main effects err where seeds change a change


@pytest.mark.whole
@pytest.mark.parametrize(
    ("tables", "n"), [(300, 3), (300, 5), *(pytest.param(2_000, n, marks=SLOW) for n in (2, 3, 5))]
)
@pytest.mark.parametrize("case", ["real", "real, mnist"])
def test_what_a_seed_does_to_one_change_in_all_cells_is_seen(case, tables, n):
    """A part of 4 points that all cells with one change share is in no cell's own squares and in no
    flips: without the effects' own screen the error is .3."""
    made = cells(case, np.random.default_rng(15), n, tables, 16, common=4.0)
    most = BEYOND_FLIPS[n]
    error = judged_effects(made, product(2, 2, 2, 2)).error
    assert error <= most + 3 * math.sqrt(most * (1 - most) / tables)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("tables", "n"), [(150, 3), *(pytest.param(2_000, n, marks=SLOW) for n in (2, 3, 5))]
)
def test_the_screen_of_effects_costs_little_where_there_is_nothing_to_see(tables, n, monkeypatch):
    """The median half-width, and the share of effects that it judges by their own spread."""
    halves = []
    for level in (stats.spread.OWN_EFFECT, 1.0):
        monkeypatch.setattr(stats.spread, "OWN_EFFECT", level)
        made = cells("real", np.random.default_rng(16), n, tables, 16)
        halves.append(judged_effects(made, product(2, 2, 2, 2)).halves)
    assert (np.median(halves[0], 0) <= 1.26 * np.median(halves[1], 0)).all()
    assert (halves[0] > 1.001 * halves[1]).mean() <= 0.2


def test_an_effect_beyond_what_images_tell_has_its_own_paired_t():
    """And so has one whose seeds tell more than images and cells do; the others stay."""
    levels = product(2, 2, 2, 2)
    weights = np.array([stats.level_effect(levels, k) for k in range(4)])
    [made] = cells("real", np.random.default_rng(17), 5, 1, 16)
    y, right = made.y[0], made.right[0].astype(bool)
    moved = y + levels[:, :1] * np.array([8.0, -8.0, 4.0, -4.0, 0.0])
    method = Method("images", contrasts=4)
    calm = stats.design_effects(y, weights, method, right=right)
    found = stats.design_effects(moved, weights, method, right=right)
    assert found.by_images
    assert [gain.own_reason for gain in calm.gains] == [""] * 4
    assert [gain.own_reason for gain in found.gains] == ["spread", "", "", ""]
    effect = found.gains[0]
    test = oracle.ttest_1samp(weights[0] @ moved, 0).confidence_interval(1 - 0.05 / 4)
    assert (effect.gain.low, effect.gain.high) == pytest.approx((test.low, test.high))
    assert (effect.df, effect.ratio > 2) == (4, True)


@pytest.mark.whole
@pytest.mark.parametrize("scale", [np.ones(16), np.r_[3, np.ones(15)], np.r_[np.ones(15), 3]])
def test_main_effects_without_images_keep_their_error(scale):
    rng, levels, wrong = np.random.default_rng(13), levels_of(4, "factorial"), 0
    weights = np.array([stats.level_effect(levels, k) for k in range(4)])
    for _ in range(1500):
        y = scale[:, None] * rng.standard_normal((16, 3)) + rng.standard_normal(3)
        found = stats.design_effects(y, weights, Method(contrasts=4))
        wrong += any(effect.gain.low > 0 or effect.gain.high < 0 for effect in found.gains)
    assert wrong / 1500 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)


@pytest.mark.parametrize(("contrasts", "df"), [(1, 15), (4, 30), (4, 2), (8, 12)])
def test_the_smallest_gain_has_the_power_that_it_says(contrasts, df):
    rng, tables = np.random.default_rng(14), 40_000
    gain = stats.smallest_gain(1.0, df, 0.05, contrasts)
    critical = oracle.t.ppf(1 - 0.05 / (2 * contrasts), df)
    spread = np.sqrt(rng.chisquare(df, tables) / df)
    power = (rng.standard_normal(tables) + gain > critical * spread).mean()
    assert power == pytest.approx(stats.POWER, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("changes", [3, 4])
@pytest.mark.parametrize("case", FORECAST_DESIGNS)
def test_a_design_detects_about_what_plan_says(case, changes, n):
    """The table of docs/statistics.md, by `python benchmarks/designs.py power`."""
    found = forecast_power(case, changes, n, tables=1_000)
    print(f"{case}, 2^{changes}, n = {n}: {found}")
    assert 0.65 <= found.power <= 0.95
    assert found.upper_power >= found.power


def test_the_forecast_of_a_design_is_that_of_the_noncentral_t():
    """1.3 sd sqrt(4 / (C n)), 5 (n - 1) degrees of freedom, alpha over the contrasts; the upper end
    has the variance of cells that share .3 of what a seed does."""
    method = Method("images", contrasts=10, variants=4)
    for count, n, shared in ((8, 3, 0.0), (16, 5, 0.0), (16, 3, 0.3)):
        gain = stats.detected_effect(0.5, count, n, method, shared)
        error = 1.3 * 0.5 * math.sqrt(4 / (count * n) * (1 + shared * (count / 2 - 1)))
        df = 5 * (n - 1)
        critical = oracle.t.ppf(1 - 0.05 / (2 * 10), df)
        assert 1 - oracle.nct.cdf(critical, df, gain / error) == pytest.approx(0.8, abs=1e-6)
    assert stats.detected_effect(0.5, 8, 2, method) is None
    own = stats.detected_effect(0.5, 8, 3, Method("paired", contrasts=10))
    error, critical = 1.3 * 0.5 * math.sqrt(4 / 24), oracle.t.ppf(1 - 0.05 / 20, 2)
    assert 1 - oracle.nct.cdf(critical, 2, own / error) == pytest.approx(0.8, abs=1e-6)


def test_finished_seeds_forecast_more_by_the_spread_that_judges_them():
    method = Method("images", contrasts=4)
    gain = stats.detected_again(1.2, 12.0, 3, 5, method)
    critical = oracle.t.ppf(1 - 0.05 / 8, 24)
    assert 1 - oracle.nct.cdf(critical, 24, gain / (1.2 / 5**0.5)) == pytest.approx(0.8, abs=1e-6)
    assert stats.detected_again(1.2, 12.0, 3, 2, method) is None
