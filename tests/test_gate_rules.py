"""How a proposal of a stream is judged: against the prototype by which the procedure was simulated
(`golden/gate_streams.json` is what it printed), against scipy, and by simulation."""

import json
import random
import statistics

import numpy as np
import pytest
from conftest import REPOSITORY
from scipy.stats import f as f_distribution
from scipy.stats import t as t_distribution

from ablate.analysis.stats import (
    GateLook,
    GateRules,
    Need,
    Pool,
    next_step_of,
    self_pairs,
    spread_of,
)
from benchmarks.gate import WORLDS, Simulation

PINS = json.loads((REPOSITORY / "tests" / "golden" / "gate_streams.json").read_text())
# By stream: seed, proposals, margin, every n-th one simplifies, runs at most, every n-th is noisy
STREAMS = {
    "steady": (1, 40, None, 0, 12, 0),
    "margin": (2, 40, 1.0, 0, 12, 0),
    "long": (3, 25, None, 0, 30, 0),
    "simplify": (4, 40, None, 2, 12, 0),
    "noisy": (5, 40, None, 0, 12, 4),
    "short": (6, 40, 2.0, 0, 8, 0),
}


def looks_of(name):
    """Play the stream that the prototype played, and yield each look."""
    seed, count, margin, simplifies, most, noisy = STREAMS[name]
    draw = random.Random(seed)
    level, baseline, pool = 0.0, [], Pool()
    for number in range(count):
        effect = draw.choice([0, 0, 0, -0.5, 1, 2, 3])
        spread = 3.0 if noisy and number % noisy == 0 else 1.0
        loss = 1.5 if simplifies and number % simplifies == 0 else None
        rules = GateRules(margin=margin, simplify=loss, most=most)
        proposal, looks = [], []
        while True:
            step = next_step_of(proposal, baseline, pool, looks, rules)
            if isinstance(step, Need):
                if len(baseline) < step.baseline_runs:
                    baseline.append(level + draw.gauss(0, 1))
                else:
                    proposal.append(level + effect + draw.gauss(0, spread))
                continue
            looks.append(step.runs)
            yield number, step
            if step.word != "goes on":
                break
        replaced = proposal
        if step.word == "keep" and loss is None:
            replaced, baseline = baseline, []
            level += effect
        pool = pool.with_runs(replaced)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_judged_as_the_prototype_judged_it(name):
    found = [
        [number, look.runs, look.baseline_runs, look.word, look.gain, look.p]
        for number, look in looks_of(name)
    ]
    assert [line[:4] for line in found] == [line[:4] for line in PINS[name]]
    for line, pin in zip(found, PINS[name], strict=True):
        assert line[4:] == pytest.approx(pin[4:], abs=1e-9)


def test_the_interval_is_students_of_the_moderated_variances():
    draw = np.random.default_rng(0)
    proposal, baseline = draw.normal(2, 1, 8).tolist(), draw.normal(0, 1, 16).tolist()
    pool = Pool(41.0, 40)
    look = next_step_of(proposal, baseline, pool, (1, 2, 4), GateRules())
    shared_df = 55
    shared = (41 + 15 * statistics.variance(baseline)) / shared_df
    own = (6 * shared + 7 * statistics.variance(proposal)) / 13 / 8
    other = (6 * shared + 15 * statistics.variance(baseline)) / 21 / 16
    df = (own + other) ** 2 / (own**2 / 13 + other**2 / 21)
    low, high = t_distribution.interval(0.95, df, look.gain, (own + other) ** 0.5)
    assert (look.low, look.high) == pytest.approx((low, high), abs=1e-12)
    assert look.p == pytest.approx(
        t_distribution.sf(look.gain / (own + other) ** 0.5, df), abs=1e-12
    )


def test_a_noisy_proposal_is_judged_by_its_own_spread():
    baseline, pool = [0.0, 1.0] * 4, Pool(25.0, 100)
    shared = (25 + 2) / 107
    other = (6 * shared + 2) / 13 / 8
    bound = f_distribution.ppf(0.9, 3, 107) * shared
    for factor, is_own in ((0.99, False), (1.01, True)):
        half = (3 * factor * bound / 4) ** 0.5
        proposal = [5 - half, 5 + half] * 2
        look = next_step_of(proposal, baseline, pool, (1, 2), GateRules())
        own = factor * bound if is_own else (6 * shared + 3 * factor * bound) / 9
        own, own_df = own / 4, 3 if is_own else 9
        df = (own + other) ** 2 / (own**2 / own_df + other**2 / 13)
        width = 2 * t_distribution.ppf(0.975, df) * (own + other) ** 0.5
        assert look.high - look.low == pytest.approx(width, abs=1e-12)


def test_equal_runs_are_never_kept_and_say_nothing_of_the_spread():
    baseline = [0.0, 1.0, 0.5, 0.2, 0.8, 0.4, 0.6, 0.1]
    look = next_step_of([9.5] * 4, baseline, Pool(5.0, 20), (1, 2), GateRules())
    assert (look.word, look.reason) == ("undecided", "bits")
    assert Pool(5.0, 20).with_runs([9.5] * 12) == Pool(5.0, 20)


def test_a_stream_without_any_spread_is_undecided():
    look = next_step_of([1.0], [0.0] * 8, Pool(), (), GateRules())
    assert (look.word, look.reason) == ("undecided", "constant")
    look = next_step_of([1.0], [0.0], self_pairs([3.0] * 12), (), GateRules(pairs=True))
    assert (look.word, look.reason) == ("undecided", "constant")


@pytest.mark.parametrize("level", [0.7, 0.1, 91.3])
def test_an_equal_baseline_has_no_spread_by_rounding(level):
    """The mean of eight equal numbers is rounded to another number."""
    proposal = [level + gain for gain in (0.3, 0.5, 0.2, 0.4)]
    look = next_step_of(proposal, [level] * 8, Pool(), (1, 2), GateRules())
    assert (look.word, look.reason) == ("undecided", "constant")


def test_pairs_are_judged_by_their_differences():
    baseline = [10.0, -4.0, 3.0, 7.0]
    shifts = [2.0, 2.5, 1.8, 2.2]
    proposal = [one + shift for one, shift in zip(baseline, shifts, strict=True)]
    pool = Pool(0.5, 5)
    assert next_step_of([], [], pool, (), GateRules(pairs=True)) == Need(1, 1)
    look = next_step_of(proposal, baseline, pool, (1, 2), GateRules(pairs=True))
    variance = (5 * 0.1 + 3 * statistics.variance(shifts)) / 8
    assert look.p == pytest.approx(
        t_distribution.sf(statistics.fmean(shifts) / (variance / 4) ** 0.5, 8), abs=1e-12
    )
    assert spread_of(pool, (), pairs=True) == pytest.approx(0.05**0.5)


def test_a_simplification_is_kept_where_it_is_no_worse():
    draw = np.random.default_rng(3)
    baseline, proposal = draw.normal(0, 0.1, 24).tolist(), draw.normal(-0.2, 0.1, 12).tolist()
    rules = GateRules(simplify=1.0)
    assert next_step_of(proposal, baseline, Pool(1.0, 90), (1, 2), rules).word == "keep"
    assert next_step_of(proposal, baseline, Pool(1.0, 90), (1, 2), GateRules()).word == "discard"


def test_a_longer_stream_of_looks_takes_no_new_chance():
    """The shares of all looks are the level, and the first three stay as they are."""
    from ablate.analysis.stats import KEEPING_LOOKS

    assert sum(KEEPING_LOOKS.values()) == pytest.approx(1.0)
    assert GateRules(most=30).looks[:5] == GateRules().looks == (1, 2, 4, 8, 12)


def first_keeps(draws, count, least):
    """Return how many first proposals of streams, without any gain, are kept where none is
    discarded early."""
    kept = 0
    rules = GateRules(margin=-2 * least)
    for _ in range(count):
        baseline, proposal = draws.normal(size=24).tolist(), draws.normal(size=12).tolist()
        looks = []
        for runs in rules.looks:
            given = baseline[: max(8, min(2 * runs, 40))]
            look = next_step_of(proposal[:runs], given, Pool(), looks, rules)
            looks.append(runs)
            assert isinstance(look, GateLook)
            if look.word != "goes on":
                kept += look.word == "keep"
                break
    return kept


@pytest.mark.slow
def test_the_first_proposal_of_a_stream_errs_at_most_at_its_level():
    """Nothing is discarded early, so the whole level of looks 4, 8 and 12 is spent: .0075."""
    count = 40_000
    error = first_keeps(np.random.default_rng(1), count, least=1e9) / count
    assert error <= 0.01 + 3 * (0.01 / count) ** 0.5


@pytest.mark.slow
def test_false_keeps_and_power_over_streams():
    """docs/how-to/keep-or-discard.md; the prototype's are .065 per 100, 1.86 runs, .13 .81 .98."""
    for world, runs in (("A", 1.86), ("C", 1.71)):
        outcome = Simulation(WORLDS[world], streams=60, seed=1).play()
        assert outcome.runs_each == pytest.approx(runs, abs=0.06)
        assert outcome.false_keeps_per_100 <= 0.16
    for gain, power in ((1.0, 0.13), (2.0, 0.81), (3.0, 0.98)):
        outcome = Simulation({0.0: 0.95, gain: 0.05}, streams=60, seed=2).play()
        count = outcome.counts[gain]
        assert outcome.power(gain) == pytest.approx(power, abs=0.02 + 2 * (0.2 / count) ** 0.5)
