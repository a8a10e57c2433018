"""More seeds of the baseline than of the rows: gains without seed blocks, their error in simulated
tables, and what files, words, tables and `plan --detect` say."""

import dataclasses
import json
import math
import sys

import numpy as np
import pytest
from conftest import Shell
from scipy import stats as oracle
from test_table import entries, finished, make_plan, tabulate

from ablate.analysis import stats
from ablate.analysis.stats import Method, unblocked
from ablate.cli import main
from ablate.planning.analysis_keys import Analysis
from ablate.planning.baseline_seeds import MOST_TIMES
from ablate.planning.expand import plan as planning
from ablate.planning.plan import Plan
from ablate.planning.unite import unite
from ablate.shared.errors import UserError
from ablate.store.looks import InterimLook, changes, look, read

# --- Gains --------------------------------------------------------------------------------------


def method(variants, n0, **settings):
    return Method(contrasts=variants, comparisons=variants, baseline_seeds=n0, **settings)


def rows_of(y, n):
    """The first row whole, of the others n seeds."""
    y = y.copy()
    y[..., 1:, n:] = np.nan
    return y


def test_a_gain_has_the_variance_of_both_means():
    y = rows_of(np.random.default_rng(3).normal(90, 1, (4, 9)), 4)
    found = stats.column_gains(y, 0, method(3, 9, screen=False, spread="pooled"))
    variants = y[1:, :4].var(1, ddof=1)
    assert not any(gain.own for gain in found.rows[1:])  # of this draw
    a, b = variants.mean() / 4, y[0].var(ddof=1) / 9
    df = (a + b) ** 2 / (a**2 / 9 + b**2 / 8)
    half = oracle.t.ppf(1 - 0.05 / 6, df) * math.sqrt(a + b)
    for row, gain in enumerate(found.rows[1:], start=1):
        mean = y[row, :4].mean() - y[0].mean()
        assert (gain.gain.mean, gain.gain.n) == (pytest.approx(mean), 4)
        assert (gain.gain.low, gain.gain.high) == pytest.approx((mean - half, mean + half))
        assert gain.p == pytest.approx(min(1, 6 * oracle.t.sf(abs(mean) / math.sqrt(a + b), df)))
    assert (found.spread, found.df) == (pytest.approx(math.sqrt(variants.mean())), 9)


@pytest.mark.parametrize("why", ["noisy", "unstable", "welch"])
def test_a_row_by_itself_is_welchs(why):
    y = np.random.default_rng(4).normal(90, 1, (5, 12))
    y[2] += [9, -9, 7, -8, 6, 0, 0, 0, 0, 0, 0, 0] if why == "noisy" else 0
    y = rows_of(y, 5)
    shaky = np.array([False, False, why == "unstable", False, False])
    how = method(4, 12, spread="welch" if why == "welch" else "pooled")
    found = stats.column_gains(y, 0, how, shaky)
    test = oracle.ttest_ind(y[2, :5], y[0], equal_var=False)
    ends = test.confidence_interval(1 - 0.05 / 4)
    assert (found.rows[2].gain.low, found.rows[2].gain.high) == pytest.approx((ends.low, ends.high))
    assert found.rows[2].own == {"noisy": "outlier", "unstable": "instability", "welch": ""}[why]
    without = stats.column_gains(np.delete(y, 2, 0), 0, dataclasses.replace(how, comparisons=4))
    if why != "welch":  # it has left the pool of the others
        assert found.rows[1].gain == without.rows[1].gain
        assert found.spread == without.spread


def test_an_unstable_baseline_voids_the_column_and_one_variant_is_paired():
    y = rows_of(np.random.default_rng(5).normal(90, 1, (3, 7)), 4)
    found = stats.column_gains(y, 0, method(2, 7), np.array([True, False, False]))
    assert found.void
    assert [gain.gain.low for gain in found.rows[1:]] == [None, None]
    one = stats.column_gains(y[:2], 0, method(1, 7)).rows[1].gain
    test = oracle.ttest_rel(y[1, :4], y[0, :4]).confidence_interval()
    assert (one.n, one.low, one.high) == (4, pytest.approx(test.low), pytest.approx(test.high))


# --- The family-wise error ----------------------------------------------------------------------

# Bounds: those of blocks ("Pooled, exactly"), at as many seeds of a row.
SCENARIOS = {
    "equal": (0.053, 0.053),
    "all correlated .6": (0.048, 0.048),
    "baseline 3x": (0.093, 0.052),
    "baseline 2x": (0.099, 0.083),
    "baseline 1/3": (0.060, 0.060),
    "variants correlated .9": (0.076, 0.058),
    "one row 3x": (0.073, 0.067),
    "two rows 3x": (0.108, 0.089),
    "half 3x": (0.076, 0.069),
    "baseline and one 3x": (0.105, 0.072),
}


def simulated(name, variants, n, n0, tables, seed=7):
    """Tables without any gain."""
    rng = np.random.default_rng(seed)
    sd = np.ones(variants + 1)
    if name.startswith("baseline"):
        sd[0] = {"3x": 3, "2x": 2, "1/3": 1 / 3, "and one 3x": 3}[name.partition(" ")[2]]
    noisy = {"one row 3x": 1, "baseline and one 3x": 1, "two rows 3x": 2, "half 3x": variants // 2}
    sd[1 : 1 + noisy.get(name, 0)] = 3
    y = rng.standard_normal((tables, variants + 1, n0))
    shared = rng.standard_normal((tables, 1, n0))
    if name == "all correlated .6":
        y = math.sqrt(0.4) * y + math.sqrt(0.6) * shared
    if name == "variants correlated .9":
        y[:, 1:] = math.sqrt(0.1) * y[:, 1:] + math.sqrt(0.9) * shared
    return rows_of(y * sd[:, None], n)


def wrong(name, variants, n, n0, tables):
    parts = []
    for part in range(0, tables, 2_000):
        y = simulated(name, variants, n, n0, min(2_000, tables - part), seed=part)
        found = stats.fit(y, 0, method(variants, n0))
        parts.append((np.abs(found.gain) > found.half)[:, 1:].any(-1))
    return np.concatenate(parts).mean()


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_family_wise_error(name):
    bound = SCENARIOS[name][0]
    assert wrong(name, 9, 3, 9, 6_000) <= bound + 2 * math.sqrt(bound / 6_000)


@pytest.mark.slow
@pytest.mark.parametrize("variants", [2, 9, 20])
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_family_wise_error_of_many_tables(name, variants):
    for n, n0 in ((3, 9), (4, 9), (4, 12), (5, 12), (5, 15)):
        assert wrong(name, variants, n, n0, 20_000) <= SCENARIOS[name][n > 3] + 0.004 * (n == 4)


def test_more_seeds_of_the_baseline_take_fewer_runs_where_seeds_do_not_correlate():
    nine = Method(contrasts=9, comparisons=9)
    design = stats.fewest_runs(2.0, 8, 1.0, nine)
    assert design.runs(9) <= 72 < 10 * 8
    y = np.random.default_rng(11).standard_normal((3_000, 10, design.baseline_seeds))
    y[:, 1] += 2
    found = stats.fit(rows_of(y, design.seeds), 0, method(9, design.baseline_seeds))
    assert (found.gain - found.half > 0)[:, 1].mean() == pytest.approx(0.8, abs=0.03)
    assert stats.fewest_runs(2.0, 8, 1.0, nine, correlation=0.6) is None
    assert stats.fewest_runs(2.0, 8, 1.0, Method()) is None


# --- Files and words ----------------------------------------------------------------------------

FILE = """
base: {data: digits, model.arch: mu/4, model.depth: 1, train.epochs: 1}
across: {train.batch: [32, 64]}
variants: [{plain: {}}, {DPN: {stem: dpn}}, {LN: {stem: pre}}]
seeds: 3
baseline_seeds: 5
scales: {large: {seeds: 4}, wide: {seeds: 4, baseline_seeds: [0, 1, 2, 3, 7]}}
"""


@pytest.fixture
def planned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def planned(*words, text=FILE, **options):
        (tmp_path / "more.yaml").write_text(text)
        return planning(["more.yaml", *words], store=tmp_path / "runs", **options)[0]

    return planned


def test_the_baseline_has_more_seeds_in_every_column(planned):
    plan = planned()
    assert (plan.seeds, plan.shared_seeds, plan.n) == ((0, 1, 2, 3, 4), (0, 1, 2), 3)
    seeds = {(cell.row, cell.column): [*cell.ids] for cell in plan.cells}
    assert {row: seeds[row, "64"] for row in ("plain", "DPN")} == {
        "plain": [0, 1, 2, 3, 4],
        "DPN": [0, 1, 2],
    }
    assert len([*plan.runs()]) == 2 * (5 + 3 + 3)
    assert Plan.from_tree(json.loads(plan.to_bytes())).checked() == plan
    same = planned("baseline_seeds=none", "seeds=5")
    assert (same.baseline_seeds, same.name) == (0, plan.name)
    assert "baseline_seeds" not in same.to_tree()
    assert {c.ids[0] for c in same.cells} == {c.ids[0] for c in plan.cells}
    assert same.cell("plain", "64").ids == plan.cell("plain", "64").ids
    assert planned(scale="large").baseline_seeds == 0
    wide = planned(scale="wide")
    assert (wide.seeds, wide.baseline_seeds) == ((0, 1, 2, 3, 7), 5)
    assert planned("baseline_seeds=6", scale="large").baseline_seeds == 6
    assert MOST_TIMES == unblocked.MOST_TIMES  # of what is planned, of what is looked for


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["seeds=5"], {}, "baseline_seeds: expected more than the 5 seeds of the rows, got 5; "),
        (["seeds=6"], {}, "expected more than the 6 seeds of the rows, got 5"),
        (["seeds=[0,1,9]"], {}, "got [0, 1, 2, 3, 4] without 9"),
        (
            ["baseline_seeds=10"],
            {},
            "at most 3 seeds of the baseline for each of a row, 9 beside",
        ),
        (["seeds=2"], {}, "expected at least 3 seeds of the rows, got 2"),
        ([], {"until": 12}, "baseline_seeds: goes without until and seeds.precision, "),
        (["analysis.spread=paired"], {}, "analysis.spread: paired pairs each seed with the basel"),
        (["analysis.spread=predictions"], {}, "predictions is of seed blocks, so it goes without"),
        (["analysis.looks=[3,5]"], {}, "analysis.looks: goes without baseline_seeds"),
        (["analysis.screen=false"], {}, "analysis.screen: goes without baseline_seeds"),
        (["baseline_seeds=5,7"], {}, "write baseline_seeds=[5,7]"),
    ],
)
def test_mistakes(planned, words, options, message):
    with pytest.raises(UserError) as caught:
        planned(*words, **options)
    assert message in str(caught.value)


def test_it_needs_two_variants_and_no_searches(planned):
    one = FILE.replace(", {LN: {stem: pre}}", "")
    with pytest.raises(UserError, match="two rows or more beside the baseline, got 1"):
        planned(text=one)
    tuned = FILE + "tune: {space: {optim.lr: {log: [1e-4, 1e-2]}}, trials: 15}\n"
    with pytest.raises(UserError, match="goes without tune, whose searches"):
        planned(text=tuned)


def test_merged_plans_have_the_seeds_of_both(planned):
    plan = planned()
    more = planned("seeds=4")
    assert unite(plan, more) == more == unite(more, plan)
    with pytest.raises(ValueError, match="baseline_seeds"):
        unite(plan, planned("baseline_seeds=6"))


# --- Tables -------------------------------------------------------------------------------------

ROWS = {
    "base": [90.0, 90.2, 89.9, 90.1, 90.4, 89.8],
    "better": [92.0, 92.3, 91.9],
    "same": [90.1, 89.9, 90.0],
    "other": [90.4, 90.1, 89.9],
}


def plan_of(rows=ROWS, columns=("",), **analysis):
    plan = make_plan([*rows], columns, seeds=3, **analysis)
    cells = tuple(
        dataclasses.replace(c, ids={s: f"{c.row}@{c.column}#{s}" for s in range(len(rows[c.row]))})
        for c in plan.cells
    )
    n0 = len(rows["base"])
    return dataclasses.replace(plan, cells=cells, seeds=tuple(range(n0)), baseline_seeds=n0)


def results_of(plan, rows=ROWS):
    return {
        run: finished(rows[cell.row][seed] / 100)
        for cell in plan.cells
        for seed, run in cell.ids.items()
    }


def test_a_table_says_how_many_seeds_each_gain_is_of():
    plan = plan_of()
    table = tabulate(plan, results_of(plan))
    of = entries(table)
    assert {row: entry.n for row, entry in of.items()} == {
        **{"base": 6, "better": 3, "same": 3, "other": 3}
    }
    assert of["better"].gain.mean == pytest.approx(np.mean(ROWS["better"]) - np.mean(ROWS["base"]))
    assert (of["better"].verdict, of["same"].verdict) == ("helps", "can't tell")
    assert "3 seeds against 6 of base: one spread of the variants, the baseline's" in " ".join(
        table.caption
    )
    assert table.complete
    assert len(table.seeds) == 3
    lacking = results_of(plan)
    del lacking["base@#5"]
    table = tabulate(plan, lacking)
    assert not table.complete
    assert "1 of 15 runs missing" in table.notes[0]
    assert entries(table)["better"].verdict is None


def test_a_noisy_row_is_told_by_its_own_and_says_so():
    rows = {**ROWS, "other": [85.0, 99.0, 80.0]}
    plan = plan_of(rows)
    table = tabulate(plan, results_of(plan, rows))
    assert entries(table)["other"].pool == "outlier"
    assert any("leaves the pool and has its own Welch interval" in n for n in table.footnotes)


def test_averages_are_of_the_shared_seeds_as_blocks():
    plan = plan_of(columns=("a", "b"))
    table = tabulate(plan, results_of(plan))
    [average] = [block for block in table.blocks if block.kind == "average"]
    of = {line.label: line for line in average.lines}
    assert of["better"].gain.n == 3
    three = {row: values[:3] for row, values in ROWS.items()}
    blocked = make_plan([*ROWS], ("a", "b"), seeds=3)
    [same] = [b for b in tabulate(blocked, results_of(blocked, three)).blocks if b == average]
    assert same.lines == average.lines
    assert any("of the 3 seeds that all cells share" in note for note in table.notes)


def test_more_seeds_of_the_baseline_are_a_changed_analysis(planned):
    before = planned("baseline_seeds=none", "analysis.spread=pooled")
    plan = planned("analysis.spread=pooled")
    [seen] = read([look(before).event("more")])
    assert changes(seen, look(plan)) == ["baseline_seeds: none -> 5"]
    assert changes(look(plan), look(before)) == ["baseline_seeds: 5 -> none"]
    [seen] = read([look(planned("baseline_seeds=none")).event("more")])
    assert changes(seen, look(plan)) == [
        "analysis.spread: predictions -> pooled",  # which is the default without them
        "baseline_seeds: none -> 5",
    ]
    assert seen.seeds == look(plan).seeds == (0, 1, 2)


def test_more_seeds_of_the_rows_after_a_look_are_noted():
    plan, seen = plan_of(), InterimLook((0, 1, 2))
    rows = {row: [*values, values[0]] if row != "base" else values for row, values in ROWS.items()}
    later = plan_of(rows)
    notes = tabulate(later, results_of(later, rows), [seen]).notes
    assert any("Seeds were added after verdicts were read at n = 3" in note for note in notes)
    assert tabulate(plan, results_of(plan), [seen]).notes == ()


def test_an_analysis_of_pairs_is_refused_for_a_table_too():
    plan = dataclasses.replace(plan_of(), analysis=Analysis(spread="paired"))
    with pytest.raises(UserError, match="so it goes without baseline_seeds"):
        tabulate(plan, results_of(plan))


# --- Commands -----------------------------------------------------------------------------------

WORDS = ("stem=none,dpn,pre", "data=digits", "model.arch=mu/4", "model.depth=1", "train.epochs=1")


def test_detect_names_the_design_with_fewer_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("plan", *WORDS, "block.mlp=pre,post", "launcher=inline", "--detect", "3")
    monkeypatch.setattr(sys, "argv", ["ablate", *words, "--spread", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    [line] = [text for text in capsys.readouterr().out.splitlines() if "baseline_seeds=" in text]
    assert "runs, not " in line
    assert "if seeds don't correlate: `ablate sweep stem=none,dpn,pre" in line


def test_a_driven_sweep_gets_more_of_its_baseline_and_nothing_else(tmp_path):
    shell = Shell(tmp_path)
    shell("sweep", *WORDS, "launcher=inline", "--as", "few")
    more = shell("sweep", *WORDS, "launcher=inline", "baseline_seeds=5", "--as", "few").out
    ended = [line.split(",")[0] for line in more.splitlines() if line.startswith("finished: ")]
    assert sorted(ended) == ["finished: none#3", "finished: none#4"]
    assert "baseline\\_seeds: none -> 5" in more
    assert (
        "3 variants x 3 seeds (none: 5) = 11 runs"
        in shell("plan", *WORDS, "baseline_seeds=5", "--as", "few").out
    )
    pairs = shell("table", "few", "--show", "gain,population", code=2).err
    assert "--show population: is of pairs of runs, which the baseline's own seeds" in pairs
    wrong = shell("table", *WORDS, "baseline_seeds=6", "--as", "few", code=2).err
    assert "few was driven with 3 seeds (none: 5), and all of them are shown" in wrong
