"""`seeds: {precision: 0.5}`: two stages. The first counts the seeds, the second judges by the first
one's spread: exact where spreads are equal; the count is sealed, and no kill changes it."""

import json
import math

import numpy as np
import pytest
from conftest import Shell
from scipy import stats as oracle
from test_seeding import Planted, counts, declared, driven, grown, looks_of

from ablate.analysis import stats
from ablate.analysis.course import STOPPED, courses_of, told_by
from ablate.analysis.stats import Method
from ablate.analysis.tabulate import tabulate
from ablate.planning.expand import plan as make_plan
from ablate.planning.plan import Plan
from ablate.planning.until import at_most
from ablate.shared.errors import UserError
from ablate.store.looks import InterimLook, changes, look, read

FIRST, MOST = 5, 30

# --- The interval -------------------------------------------------------------------------------


def by_stages(y, precision, baseline=0):
    """(fit of all rows by their own numbers of seeds, as parts; those numbers)."""
    variants = y.shape[-2] - 1
    method = Method(contrasts=variants, comparisons=variants)
    first = stats.first_stage(y[..., :FIRST], baseline)
    n = first.seeds(method, precision, FIRST, MOST).astype(int)
    told = np.zeros(len(y), dtype=bool)
    widest = np.zeros(len(y))
    for seeds in np.unique(n):
        at = n == seeds
        mine = stats.FirstStage(first.variance[at], first.df[at])
        found = stats.fit(y[at][..., :seeds], baseline, method)
        found = stats.second_stage(found, mine, method, int(seeds))
        told[at] = (np.abs(found.gain) > found.half)[:, 1:].any(-1)
        alone = found.own | found.pool.tripped[..., None]
        widest[at] = np.where(alone, 0.0, found.half)[:, 1:].max(-1)
    return told, widest, n


def test_the_seeds_and_the_half_width_are_steins():
    y = np.random.default_rng(2).normal(90, 1, (2, 40))
    first = stats.first_stage(y[:, :FIRST], 0)
    gains = (y[1] - y[0])[:FIRST]
    t = oracle.t.ppf(0.975, FIRST - 1)
    n = first.seeds(Method(), 0.8, FIRST, 100)
    assert n == math.ceil((t * gains.std(ddof=1) / 0.8) ** 2) > FIRST
    assert first.half(Method(), int(n)) == pytest.approx(t * gains.std(ddof=1) / math.sqrt(n))
    assert first.half(Method(), int(n)) <= 0.8 < first.half(Method(), int(n) - 1)
    assert first.seeds(Method(), 0.8, FIRST, 7) == 7
    assert first.seeds(Method(), 99.0, FIRST, 7) == FIRST


@pytest.mark.parametrize(("variants", "low", "high"), [(1, 0.045, 0.055), (9, 0.02, 0.055)])
def test_intervals_cover_all_rows_at_once_where_spreads_are_equal(variants, low, high):
    wrong, most = [], 0.0
    for part in range(10):
        y = np.random.default_rng(part).standard_normal((2_000, variants + 1, MOST))
        told, widest, n = by_stages(y, 1.4)
        wrong.append(told.mean())
        most = max(most, widest[n < MOST].max())
    assert low <= np.mean(wrong) <= high
    assert 1.3 < most <= 1.4 + 1e-12


# Bounds: those of `pooled` at five seeds.
UNEQUAL = {
    "baseline 3x": (0, 1, 0.052),
    "baseline 2x": (0, 1, 0.083),
    "one row 3x": (1, 2, 0.063),
    "two rows 3x": (1, 3, 0.089),
    "half 3x": (1, 5, 0.066),
}


@pytest.mark.parametrize("name", UNEQUAL)
@pytest.mark.parametrize(
    "tables", [pytest.param(3_000, id="few"), pytest.param(20_000, marks=pytest.mark.slow)]
)
def test_the_family_wise_error_where_spreads_are_not_equal(name, tables):
    start, stop, bound = UNEQUAL[name]
    wrong = []
    for part in range(0, tables, 1_000):
        y = np.random.default_rng(part).standard_normal((1_000, 10, MOST))
        y[:, start:stop] *= 2 if "2x" in name else 3
        wrong.append(by_stages(y, 2.0)[0].mean())
    assert np.mean(wrong) <= bound + 2 * math.sqrt(bound / tables)


# --- Files and words ----------------------------------------------------------------------------

FILE = """
base: {recipe: quick, data: digits, model.arch: mu/4, model.depth: 1, train.epochs: 1}
across: {train.batch: [64, 128]}
variants: [{plain: {}}, {DPN: {stem: dpn}}, {asleep: {optim.lr: 3e-4}}]
seeds: {precision: 1.5, most: 9}
scales: {fixed: {seeds: 2}, fine: {seeds: {precision: 0.1}}}
"""


@pytest.fixture
def planned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def planned(*words, text=FILE, **options):
        declared(tmp_path, text)
        return make_plan(["few", *words], store=tmp_path / "runs", **options)[0]

    return planned


def test_a_plan_begins_with_the_first_stage(planned):
    plan = planned()
    assert (plan.until, plan.precision, plan.seeds) == ((5, 9), 1.5, (0, 1, 2, 3, 4))
    assert Plan.from_tree(json.loads(plan.to_bytes())).checked() == plan
    assert len([*at_most(plan).runs()]) == 6 * 9
    assert planned("seeds.most=20").until == (5, 20)
    words = planned("seeds.precision=2", "seeds.most=20")
    assert (words.until, words.precision, words.name) == ((5, 20), 2, plan.name)
    fixed = planned("seeds=4")
    assert (fixed.until, fixed.precision, len(fixed.seeds)) == ((), None, 4)
    assert "precision" not in fixed.to_tree()
    assert planned(scale="fixed").precision is None
    assert (planned(scale="fine").precision, planned(scale="fine").until) == (0.1, (5, 30))
    looks = planned(until=12)
    assert (looks.until, looks.precision) == ((5, 8, 12), None)


@pytest.mark.parametrize(
    ("instead", "words", "message"),
    [
        ("{precision: 0}", [], "seeds.precision: "),
        ("{most: 9}", [], "seeds.precision: missing; expected seeds: {precision: 0.5, most: 30}"),
        ("{precision: none}", [], "seeds.precision: "),
        ("{precision: 1, most: 4}", [], "seeds.most: expected a number of seeds, at least the 5 "),
        ("{precision: 1, first: 3}", [], "seeds.first: "),
        ("{precision: 1}\nuntil: {}", [], "until: stands without seeds"),
        ("{precision: 1}", ["analysis.spread=paired"], "goes with analysis.spread=pooled, not pai"),
        ("{precision: 1}", ["analysis.looks=[3,5]"], "goes without analysis.looks"),
        ("3", ["seeds.most=9"], "seeds.precision: missing"),
        ("{precision: 1}", ["seeds=3", "seeds.most=9"], "gives out the seeds"),
        ("{precision: 1}", ["baseline_seeds=9"], "goes without until and seeds.precision"),
    ],
)
def test_mistakes_are_one_line(planned, instead, words, message):
    with pytest.raises(UserError) as caught:
        planned(*words, text=FILE.replace("{precision: 1.5, most: 9}", instead))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# --- The two stages -----------------------------------------------------------------------------


def values(seed, gains=(0, 4, 0.3), columns=("64", "128"), spread=1.0):
    rng = np.random.default_rng(seed)
    rows = ("plain", "DPN", "asleep")
    return {
        (row, column): 60 + gain + spread * rng.standard_normal(9)
        for column in columns
        for row, gain in zip(rows, gains, strict=True)
    }


def table_of(y, column):
    return np.array([y[row, column] for row in ("plain", "DPN", "asleep")])


def test_a_column_gets_the_seeds_that_its_first_stage_asks_for(planned, tmp_path):
    plan, method = planned(), Method(contrasts=2, comparisons=2)
    different = set()
    for seed in range(6):
        y = values(seed)
        found, said = grown(plan, Planted(plan, y), tmp_path)
        for column in ("64", "128"):
            first = stats.first_stage(table_of(y, column)[:, :5], 0)
            n = int(first.seeds(method, 1.5, 5, 9))
            different.add(n)
            assert {k: v for k, v in counts(found).items() if k[1] == column} == dict.fromkeys(
                [(row, column) for row in ("plain", "DPN", "asleep")], n
            )
            line = f"first stage of {column}, 5 seeds: {n} in all are needed; goes on: DPN, asleep"
            assert (line in said) == (n > 5)
    assert len(different) > 2


def test_the_count_is_recorded_and_a_driver_that_was_killed_counts_the_same(planned, tmp_path):
    plan, events = planned("seeds.precision=1"), []
    results = Planted(plan, values(1))
    once, _ = grown(plan, results, tmp_path, events.append)
    again, _ = grown(plan, results, tmp_path)
    assert once.cells == again.cells
    stages = [e["decided"] for e in events if "total" in e["decided"]]
    assert {(e["column"], e["total"]) for e in stages} == {
        (column, n) for (row, column), n in counts(once).items() if row == "plain" and n > 5
    }
    looks = [
        InterimLook(tuple(e["seeds"]), {k: e[k] for k in look(plan).at}, e["decided"])
        for e in events
    ]
    told = [*told_by(plan, looks)]
    assert len([line for line in told if line.startswith("first stage of ")]) == len(stages) > 0
    assert changes(looks[0], look(planned("seeds.precision=2"))) == ["precision: 1.0 -> 2.0"]
    assert changes(looks[0], look(planned("seeds=5", "analysis.spread=pooled")))[0].startswith(
        "until: "
    )


def table_from(plan, results):
    courses = courses_of(plan, results.results, lambda run: (), lambda run, probe: None)
    return courses, tabulate(plan, results.results, words=True)


def test_the_table_has_the_intervals_of_the_first_stage(planned, tmp_path):
    plan, method = planned(), Method(contrasts=2, comparisons=2)
    y = values(1)
    results = Planted(plan, y)
    whole, _ = grown(plan, results, tmp_path)
    courses, table = table_from(whole, results)
    for column in table.columns:
        found = table_of(y, column.label)
        first = stats.first_stage(found[:, :5], 0)
        n = int(first.seeds(method, 1.5, 5, 9))
        half, of = first.half(method, n), {entry.row: entry for entry in column.entries}
        assert {row: entry.n for row, entry in of.items()} == dict.fromkeys(of, n)
        for row, index in (("DPN", 1), ("asleep", 2)):
            gain, mean = of[row].gain, (found[index, :n] - found[0, :n]).mean()
            assert (gain.low, gain.high) == pytest.approx((mean - half, mean + half))
        assert of["DPN"].verdict == "helps"
        assert column.df == courses[column.label].df == 8
    assert table.complete
    assert "seeds counted, by the spread of the first 5, for +-1.5" in table.caption[0]
    assert any(" in all, which give +-" in note for note in table.notes)


def test_before_the_second_stage_there_are_no_intervals(planned, tmp_path):
    plan = planned("seeds.precision=0.01", "seeds.most=9")
    results = Planted(plan, values(1), missing={("DPN", "64", 8)})
    whole, _ = grown(plan, results, tmp_path)
    assert set(counts(whole).values()) == {9}
    courses, table = table_from(whole, results)
    assert courses["64"].next == 9
    of = {(e.row, e.column): e for e in table.entries}
    assert of["DPN", "64"].gain.low is None
    assert of["DPN", "128"].gain.low is not None
    assert of["DPN", "64"].verdict is None
    notes = " ".join(table.notes)
    assert "64: +-0.01 points takes more than the 9 seeds allowed, which give +-" in notes
    assert "The next stage waits until every run" in notes


def test_an_unstable_row_gets_no_more_and_an_unstable_baseline_ends_its_column(planned, tmp_path):
    plan = planned("seeds.precision=0.01", "seeds.most=9")
    status = {("DPN", "64", 2): "diverged", ("plain", "128", 1): "diverged"}
    results = Planted(plan, values(1), status=status)
    whole, _ = grown(plan, results, tmp_path)
    assert counts(whole) == {
        **{("plain", "64"): 9, ("DPN", "64"): 5, ("asleep", "64"): 9},
        **dict.fromkeys([(row, "128") for row in ("plain", "DPN", "asleep")], 5),
    }
    courses, table = table_from(whole, results)
    assert courses["64"].rows["DPN"].word == STOPPED
    assert {row.word for row in courses["128"].rows.values()} == {STOPPED}
    assert {e.verdict for e in table.entries if e.column == "128"} == {None}
    assert courses["128"].next is None


def test_a_sweep_counts_its_seeds_and_trains_them(tmp_path):
    shell = Shell(tmp_path)
    declared(tmp_path, FILE.replace("across: {train.batch: [64, 128]}\n", ""))
    ahead = shell("plan", "few", "launcher=inline", "--spread", "1").out
    assert "two stages: 5 seeds, then as many as intervals of +-1.5 points take, at most 9" in ahead
    assert "15 runs (15 planned)" in ahead
    said = shell("sweep", "few", "launcher=inline", "seeds.precision=0.5", "seeds.most=6").out
    assert "first stage, 5 seeds: 6 in all are needed" in said
    assert "takes more than the 6 seeds allowed" in said
    plan = driven(shell)
    assert {len(cell.ids) for cell in plan.cells} == {6}
    assert [one.decided.get("total") for one in read(looks_of(shell))] == [6, None]
    assert plan.until == (5, 6)
    wrong = shell("table", "few", "seeds.precision=2", code=2).err
    assert "seeds.precision=2: few was driven with other stages" in wrong
