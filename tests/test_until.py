"""Seeds where they are needed: boundaries, one look, and what a whole course of looks errs."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats
from simulation import EFFECT, resampled, stopped

from ablate.analysis import stats
from ablate.analysis.stats import Decision, Sequential

LOOKS = (5, 8, 12)

# Of the simulations behind docs/statistics.md: contrasts, looks -> critical values.
PUBLISHED = {
    (1, LOOKS): (2.3110, 2.3271, 2.2007),
    (2, LOOKS): (2.5617, 2.5945, 2.4832),
    (9, LOOKS): (3.0466, 3.1019, 3.0114),
    (20, LOOKS): (3.2790, 3.3418, 3.2584),
    (9, (5, 8, 12, 20)): (3.1970, 3.2573, 3.1716, 2.9907),
}


@pytest.mark.parametrize(("contrasts", "looks"), PUBLISHED)
def test_the_boundaries_are_the_published_ones(contrasts, looks):
    found = stats.boundaries(looks, 0.05 / contrasts)
    assert found == pytest.approx(PUBLISHED[contrasts, looks], abs=1e-4)
    first = 2 * scipy_stats.norm.sf(found[0])
    assert first == pytest.approx(0.05 / contrasts * looks[0] / looks[-1], rel=1e-12)


def test_two_looks_spend_alpha_by_scipys_bivariate_normal():
    assert stats.boundaries((7,), 0.05) == pytest.approx((scipy_stats.norm.isf(0.025),), abs=1e-9)
    a, b = stats.boundaries((1, 2), 0.05)
    both = scipy_stats.multivariate_normal(cov=[[1, math.sqrt(0.5)], [math.sqrt(0.5), 1]])
    inside = both.cdf([a, b]) - both.cdf([-a, b]) - both.cdf([a, -b]) + both.cdf([-a, -b])
    assert 1 - inside == pytest.approx(0.05, abs=1e-5)


def course(y, method, unstable=None, images=None):
    """(the state after the last look, runs trained) of tables (S, R, N), the baseline first."""
    state, runs, before = stats.before_looks(y.shape[1], (len(y),)), np.zeros(len(y)), 0
    for look, n in enumerate(method.looks):
        runs += (state.active.sum(-1) + state.active.any(-1)) * (n - before)
        before = n
        shaky = None if unstable is None else unstable[..., :n].any(-1)
        _, state = stats.take_look(y[..., :n], look, state, method, shaky, images)
    return state, runs


def test_rows_that_stopped_need_no_more_seeds():
    """NaN where a row was not trained any more, or diverged, changes nothing."""
    rng = np.random.default_rng(3)
    y = rng.standard_normal((200, 10, 12)) + np.array([0, *[0] * 6, 1, 2, 3])[:, None]
    unstable = rng.random(y.shape) < 0.02
    unstable[:, 0] = False
    method = Sequential(LOOKS, 1.5, contrasts=9)
    whole, _ = course(y, method, unstable)
    holes = np.where(unstable, np.nan, y)
    state = stats.before_looks(10, (200,))
    for look, (n, last) in enumerate(zip(LOOKS, (0, *LOOKS), strict=False)):
        gone = ~state.active
        gone[:, 0] = ~state.active.any(-1)
        holes[..., last:][gone] = np.nan
        _, state = stats.take_look(holes[..., :n], look, state, method, unstable[..., :n].any(-1))
    assert (state.decided == whole.decided).all()


@pytest.mark.parametrize("spread", ["images", "one way", "paired"])
def test_a_look_is_a_table_of_the_active_rows_at_the_boundarys_level(spread):
    rng = np.random.default_rng(4)
    right = rng.random((40, 6, 12, 200)) < 0.9
    right[:, 1] &= rng.random((40, 12, 200)) < 0.8  # is told at once
    y, method = 100 * right.mean(-1), Sequential(LOOKS, spread=spread, contrasts=5)

    def images(tables, rows, n):
        return stats.ImageFlips.from_right(right[tables][:, rows][..., :n, :])

    state = stats.before_looks(6, (40,))
    for look, n in enumerate(LOOKS[:2]):
        before = state
        found, state = stats.take_look(y[..., :n], look, before, method, None, images)
        for table, active in enumerate(before.active):
            rows = [0, *np.flatnonzero(active)]
            if len(rows) < 3:
                continue
            known = stats.ImageFlips.from_right(right[table][rows][:, :n])
            expected = stats.fit(y[table][rows][:, :n], method.method_at(look), known)
            assert found.sd[table, rows[1:]] == pytest.approx(expected.sd[1:])
            assert found.half[table, rows[1:]] == pytest.approx(expected.half[1:])
            assert np.isnan(np.delete(found.half[table], rows[1:])).all()
            of_rows = ("is_own", "out", "vague", "ratios")
            for name in of_rows if spread != "paired" else of_rows[:3]:
                known_flags = getattr(expected.variances, name)[1:]
                assert getattr(found, name)[table, rows[1:]] == pytest.approx(known_flags)
        z = stats.boundaries(LOOKS, 0.05 / 5)[look]
        assert method.method_at(look).alpha == pytest.approx(2 * scipy_stats.norm.sf(z))
    assert not before.active[:, 1].any()


def test_one_variant_is_a_paired_t():
    y = np.random.default_rng(5).standard_normal((2, 5))
    found, _ = stats.take_look(y, 0, stats.before_looks(2), Sequential(LOOKS))
    t = scipy_stats.t.isf(0.05 * 5 / 12 / 2, 4)
    assert found.half[1] == pytest.approx(t * (y[1] - y[0]).std(ddof=1) / math.sqrt(5))


def test_equal_gains_in_all_seeds_are_not_told():
    y = np.array([[0.1, 0.2, 0.3, 0.4, 0.5]] * 2)
    y[1] += 0.3
    for margin in (None, 0.5):
        method = Sequential(LOOKS, margin, "paired")
        _, state = stats.take_look(y, 0, stats.before_looks(2), method)
        assert state.decided[1] == Decision.UNDECIDED
        assert state.active[1]


def test_an_unstable_baseline_ends_the_column_and_what_was_told_stands():
    rng = np.random.default_rng(6)
    y = rng.standard_normal((5, 12)) + np.array([[0], [9], [0], [0], [0]])
    unstable = np.zeros((5, 12), dtype=bool)
    unstable[0, 6] = True
    state, runs = course(y[None], Sequential(LOOKS, contrasts=4), unstable[None])
    assert state.decided[0].tolist() == [0, Decision.BETTER, 0, 0, 0]
    assert runs == 5 * 5 + 4 * 3


# --- What a course errs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "variants"),
    [(400, 9), *(pytest.param(2_000, k, marks=pytest.mark.slow) for k in (3, 9))],
)
def test_rows_that_gain_the_margin_stop_often_and_are_seldom_denied_it(tables, variants):
    """So that a row stops is no verdict; the words come from the interval over all looks."""
    found = stopped(np.random.default_rng(8), variants, 1.5, LOOKS, tables)
    assert found.stops > 0.25
    assert found.denied <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / tables)


SCENARIOS = {
    "equal spreads": {},
    "baseline at 3x": {"noisy": [0]},
    "one row at 3x": {"noisy": [1]},
    "two rows at 3x": {"noisy": [1, 2]},
    "half of the rows at 3x": {"noisy": "half"},
    "baseline and one row at 3x": {"noisy": [0, 1]},
    "variants correlated .6": {"shared": 0.6},
    "variants correlated .9": {"shared": 0.9},
    "all rows correlated .6": {"blocks": 0.6},
    "collapsed runs": {"collapsed": 0.03},
}


def scenario(name, variants, draws, gains=0.0):
    """Tables (S, R, 12) and their collapsed runs: the baseline first, unit variance else."""
    what = SCENARIOS[name]
    rng = np.random.default_rng(20230301)
    y = rng.standard_normal((draws, variants + 1, LOOKS[-1]))
    for key, rows in (("shared", slice(1, None)), ("blocks", slice(None))):
        if rho := what.get(key):
            block = rng.standard_normal((draws, 1, LOOKS[-1]))
            y[:, rows] = math.sqrt(rho) * block + math.sqrt(1 - rho) * y[:, rows]
    noisy = what.get("noisy", [])
    y[:, range(1, 1 + variants // 2) if noisy == "half" else noisy] *= 3
    y[:, 1:] += np.reshape(gains, (-1, 1))
    unstable = rng.random(y.shape) < what.get("collapsed", 0.0)
    unstable[:, 0] = False
    return y - 20 * unstable, unstable


def falsely_told(state):
    return np.isin(state.decided, (Decision.BETTER, Decision.WORSE)).any(-1).mean()


@pytest.mark.whole
@pytest.mark.parametrize("tables", [400, pytest.param(2_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("data", "rows", "joint"),
    [
        ("digits", ["plain70"] * 10, False),
        ("digits", ["short70"] + ["plain70"] * 9, False),
        ("digits", ["plain70"] * 5 + ["short70"] * 5, False),
        ("digits", ["plain", "wd", "lr", "rms", "dpn", "short"], True),
        pytest.param("mnist", ["plain"] * 10, False, marks=pytest.mark.slow),
        pytest.param("mnist", ["short"] + ["plain"] * 9, False, marks=pytest.mark.slow),
    ],
    ids=["alike", "base short", "half short", "copies and far rows", "mnist", "mnist base short"],
)
def test_a_course_of_real_runs_keeps_the_family_wise_error(data, rows, joint, tables):
    names = [f"{data}.{row}" for row in rows]
    wrong = done = 0
    for made in resampled(np.random.default_rng(7), names, 12, tables, joint):
        right = made.right
        y = made.y - (made.truth - made.truth[:, :1])[..., None]  # no gains

        def images(tables, some, n, right=right):
            return stats.ImageFlips.from_right(right[tables][:, some][..., :n, :])

        method = Sequential(
            LOOKS, 1.5 * made.effect / EFFECT[12], "images", contrasts=len(rows) - 1
        )
        state, _ = course(y, method, None, images)
        wrong += falsely_told(state) * len(y)
        done += len(y)
    assert wrong / done <= 0.065


BOUNDS = {"equal spreads": 0.05, "two rows at 3x": 0.085}


@pytest.mark.whole
@pytest.mark.parametrize("spread", ["one way", pytest.param("paired", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_course_without_images_keeps_the_family_wise_error(name, spread):
    y, unstable = scenario(name, 9, 4_000)
    state, _ = course(y, Sequential(LOOKS, 1.5, spread, contrasts=9), unstable)
    assert falsely_told(state) <= BOUNDS.get(name, 0.067)


@pytest.mark.whole
@pytest.mark.parametrize(("gain", "runs"), [(0, 67), (1.5, 97), (3, 62)])
def test_the_runs_that_a_plan_expects_are_simulated(gain, runs):
    found = stats.runs_until(Sequential(LOOKS, 1.5, contrasts=9), 9, gain)
    assert found == pytest.approx(runs, rel=0.08)
