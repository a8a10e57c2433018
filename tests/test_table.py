"""The gain table: planted sweeps get the planted words, in every format, always the same bytes."""

import dataclasses
import functools
import io
import json
import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from rich.console import Console
from test_past_looks import spec as own_spec

from ablate.analysis import stats
from ablate.analysis import tabulate as making
from ablate.analysis.across import PValues
from ablate.analysis.table import WARNINGS
from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Cell, Column, Row
from ablate.planning.expand import plan as expand
from ablate.planning.plan import Plan
from ablate.report.formats import CSV_FIELDS, DEFAULT, render
from ablate.report.formats.layout import sheet
from ablate.shared.errors import UserError
from ablate.store.looks import PastLooks, look

tabulate = functools.partial(making.tabulate, words=True)  # as `report.reading` has it

SPEC = {
    "data": {"name": "digits", "size": 8, "classes": 10},
    "augment": {},
    "optim": {},
    "train": {
        **{"steps": None, "examples": None, "epochs": 6.0},
        **{"precision": "fp32", "deterministic": True},
    },
    "eval": {},
}

TEXTS = ("md", "latex", "html", "csv", "json")


def make_plan(rows, columns=("",), seeds=3, families=None, confounds=None, **analysis):
    families, confounds = families or {}, confounds or {}
    cells = tuple(
        Cell(r, c, SPEC, {s: f"{r}@{c}#{s}" for s in range(seeds)}) for c in columns for r in rows
    )
    return Plan(
        name="planted",
        title="A planted sweep",
        words=(),
        rows=tuple(Row(r, {}, families.get(r), confounds.get(r, ())) for r in rows),
        columns=tuple(Column(c, {}) for c in columns),
        cells=cells,
        baseline=rows[0],
        seeds=tuple(range(seeds)),
        analysis=Analysis(**analysis),
    )


def finished(top1, **more):
    test = {"n": 300, "loss": 1 - top1, "top1": top1}
    result = {"status": "finished", "collapsed": False, "test": test, "device": "cpu"}
    result["train"] = {"n": 1197}
    return {**result, "kernel": "sdpa", "execution": "eager", "digest": "d1", "threads": 1, **more}


def plant(plan, values):
    """Results: row -> top-1 in per cent by seed, the same in every column."""
    return {
        run: finished(values[cell.row][seed] / 100)
        for cell in plan.cells
        for seed, run in cell.ids.items()
    }


PLANTED_TWO = {"base": [90, 91, 92], "near": [93, 93.5, 94]}
BLOCKS = np.array([-0.1, 0.0, 0.1])
PLANTED = {
    "base": 90 + BLOCKS + [0.05, -0.05, 0.0],
    "better": 92 + BLOCKS + [-0.05, 0.0, 0.05],
    "worse": 88 + BLOCKS + [0.0, 0.05, -0.05],
    "same": 90.0 + BLOCKS + [-0.05, 0.05, 0.0],
    "at least": 90.1 + BLOCKS + [0.05, 0.0, -0.05],
    "unclear": 89.9 + BLOCKS + [0.0, -0.05, 0.05],
}


def half_width(y, contrasts, alpha=0.05):
    """Of a gain where all rows of y (R, n) share one spread, without seed blocks."""
    rows, n = np.shape(y)
    t = scipy.stats.t.ppf(1 - alpha / (2 * contrasts), rows * (n - 1))
    return t * math.sqrt(2 * np.var(y, axis=1, ddof=1).mean() / n)


def entries(table):
    return {entry.row: entry for entry in table.entries}


def printed(table, width=100):
    console = Console(file=io.StringIO(), width=width)
    console.print(render(table, "rich"))
    return console.file.getvalue()


def every_text(table):
    """Spaces and line breaks apart, what each format says."""
    texts = [printed(table), *(render(table, name) for name in TEXTS)]
    return [" ".join(text.replace("\\%", "%").split()) for text in texts]


# --- Verdicts -----------------------------------------------------------------------------------


def test_planted_gains_get_the_planted_verdicts():
    half = half_width([*PLANTED.values()], 5)
    margin = round(half + 0.05, 2)  # gains of 0 and +-0.1 are on either side of it
    plan = make_plan(list(PLANTED), margin=margin)
    table = tabulate(plan, plant(plan, PLANTED))
    assert {row: entry.verdict for row, entry in entries(table).items()} == {
        "base": None,
        "better": "helps",
        "worse": "hurts",
        "same": f"same within {margin:g}",
        "at least": f"no worse than {margin:g}",
        "unclear": "can't tell",
    }
    assert table.complete
    assert table.is_look


def test_the_numbers_are_those_of_stats():
    plan = make_plan(list(PLANTED), margin=0.3)
    found = entries(tabulate(plan, plant(plan, PLANTED)))
    y = np.array([PLANTED[row] for row in PLANTED])
    method = stats.Method(contrasts=5, comparisons=5)
    gains = stats.column_gains(y, 0, method)
    for row, gain in zip(PLANTED, gains.rows, strict=True):
        accuracy = stats.mean_interval(PLANTED[row])
        assert dataclasses.astuple(found[row].accuracy) == pytest.approx(
            dataclasses.astuple(accuracy)
        )
        if gain:
            assert dataclasses.astuple(found[row].gain) == pytest.approx(
                dataclasses.astuple(gain.gain)
            )
            assert found[row].pool == "kept"
    assert found["base"].gain is None


def test_what_can_not_be_told_says_what_more_seeds_would_resolve():
    plan = make_plan(list(PLANTED))
    table = tabulate(plan, plant(plan, PLANTED))
    assert entries(table)["unclear"].verdict == "can't tell"
    found = table.columns[0].forecast
    y = np.array([PLANTED[row] for row in PLANTED])
    sd = math.sqrt(y.var(1, ddof=1).mean())  # 6 rows x 3 seeds, no blocks: 12 df
    half = scipy.stats.t.ppf(1 - 0.05 / 10, 30) * sd * math.sqrt(2 / 6)
    assert (found.seeds, found.half) == (6, pytest.approx(half))
    assert found.low < half < found.high
    text = render(table, "md")
    assert f"6 seeds would resolve gains of about {half:.2f} points" in text
    assert "18 more runs: `ablate sweep seeds=6`" in text
    few = make_plan(list(PLANTED)[:3])  # 2 variants, 3 seeds: 4 df
    few = tabulate(few, plant(few, PLANTED | {"better": PLANTED["base"] + [0.1, -0.1, 0.05]}))
    assert "can't tell" in {entry.verdict for entry in few.entries}
    assert few.columns[0].forecast is None


def test_the_command_for_more_seeds_is_the_one_that_was_typed():
    plan = dataclasses.replace(
        make_plan(list(PLANTED)),
        words=("placement", "optim.lr=0.1", "seeds=[0, 1, 2]", "--scale", "digits"),
    )
    text = render(tabulate(plan, plant(plan, PLANTED)), "md")
    assert "`ablate sweep placement optim.lr=0.1 seeds=6 --scale digits`" in text
    ids = {s + 4: run for cell in plan.cells for s, run in cell.ids.items()}
    cells = [dataclasses.replace(c, ids={s + 4: i for s, i in c.ids.items()}) for c in plan.cells]
    later = dataclasses.replace(plan, seeds=(4, 5, 6), cells=tuple(cells))
    assert set(ids) == set(later.seeds)
    text = render(tabulate(later, plant(plan, PLANTED)), "md")
    assert "'seeds=[4,5,6,0,1,2]'" in text


def test_the_same_predictions_in_every_seed_did_nothing():
    plan = make_plan(list(PLANTED))
    results = plant(plan, PLANTED | {"unclear": PLANTED["base"]})
    for seed in range(3):
        for row in ("base", "unclear"):
            results[f"{row}@#{seed}"]["predictions_sha256"] = f"digest {seed}"
    table = tabulate(plan, results)
    assert entries(table)["unclear"].verdict == "did nothing"
    for text in every_text(table):
        assert "did nothing" in text
    results["unclear@#2"]["predictions_sha256"] = "another"
    assert entries(tabulate(plan, results))["unclear"].verdict == "can't tell"


def test_two_seeds_give_intervals_and_no_verdicts():
    plan = make_plan(list(PLANTED), seeds=2)
    table = tabulate(plan, plant(plan, PLANTED))
    better = entries(table)["better"]
    assert better.gain.low is not None
    assert (better.verdict, table.has_verdicts, table.is_look) == (None, False, True)
    assert "n = 2: intervals, no verdicts." in table.texts(*WARNINGS)


def test_intervals_end_where_accuracies_do_and_say_so():
    plan = make_plan(["base", "near"])
    table = tabulate(plan, plant(plan, {"base": [90, 91, 92], "near": [100, 99.3, 99.9]}))
    near = entries(table)["near"].accuracy
    assert (near.low < 99, near.high) == (True, 100.0)
    told = "Intervals of the mean are cut at 0 and 100 %."
    assert told in sheet(table, DEFAULT, False, 0).caption
    assert not any("cut at" in note for note in table.texts(*WARNINGS))  # a report would warn of it
    inside = tabulate(plan, plant(plan, PLANTED_TWO))
    for other, show in ((table, ("gain", "ci")), (table, ("accuracy", "gain")), (inside, DEFAULT)):
        assert told not in sheet(other, show, False, 0).caption


def test_an_interval_as_wide_as_the_scale_is_not_printed():
    """Two seeds of a row out of line, twenty contrasts: +-1850 points."""
    rows = ["base", *(f"r{k}" for k in range(20))]
    rng = np.random.default_rng(1)
    plan = make_plan(rows, seeds=2)
    values = {row: 90 + rng.normal(0, 0.2, 2) for row in rows} | {"r3": [90, 60]}
    table = tabulate(plan, plant(plan, values))
    wild = entries(table)["r3"]
    assert (wild.gain.low, wild.gain.high) == (None, None)
    assert entries(table)["r4"].gain.low is not None
    for text in every_text(table):
        assert "wider than 100 points" in text
    plan = make_plan(["base", "row"], ("S/4", "Ti/4"))
    results = plant(plan, {"base": [90, 90.1, 90.2], "row": [91, 91.2, 91.1]})
    for seed in range(3):
        results[f"row@Ti/4#{seed}"]["test"]["top1"] -= 0.4
    (line,) = tabulate(plan, results).blocks[0].lines
    assert (line.sampled.low, line.gain.low is None) == (None, False)


def test_less_loss_is_a_gain():
    plan = make_plan(list(PLANTED), metric="loss")
    table = tabulate(plan, plant(plan, PLANTED))
    better = entries(table)["better"]
    assert better.verdict == "helps"
    assert better.gain.mean == pytest.approx(0.02)
    assert better.accuracy.mean == pytest.approx(0.08)
    assert "0.0800" in render(table, "md")
    assert "lower" in table.texts("caption")[0]


def test_a_metric_that_was_not_measured_is_the_users_mistake():
    plan = make_plan(list(PLANTED), metric="top5")
    with pytest.raises(UserError, match=r"^analysis\.metric: top5 was not measured for 'base'"):
        tabulate(plan, plant(plan, PLANTED))


def test_a_family_is_a_column_or_the_table():
    rows, columns = list(PLANTED), ("S/4", "Ti/4")
    plan = make_plan(rows, columns)
    column = tabulate(plan, plant(plan, PLANTED))
    plan = make_plan(rows, columns, family="table")
    whole = tabulate(plan, plant(plan, PLANTED))
    assert [c.contrasts for c in column.columns] == [5, 5]
    assert [c.contrasts for c in whole.columns] == [10, 10]
    assert "the 10 contrasts of the table" in whole.texts("caption")[0]
    assert entries(whole)["better"].gain.low < entries(column)["better"].gain.low


def test_every_column_has_its_own_spread():
    plan = make_plan(list(PLANTED), ("S/4", "Ti/4"))
    results = plant(plan, PLANTED)
    for cell in plan.cells:
        if cell.column == "Ti/4":
            for seed, run in cell.ids.items():
                results[run] = finished(0.5 + (PLANTED[cell.row][seed] / 100 - 0.9) * 3)
    table = tabulate(plan, results)
    (small, _), (large, _) = (column.spreads for column in table.columns)
    assert large == pytest.approx(3 * small)
    assert any(line.startswith("Ti/4: spread") for line in table.texts("detail"))


# --- What went wrong ----------------------------------------------------------------------------


def diverging(**analysis):
    plan = make_plan(list(PLANTED), **analysis)
    results = plant(plan, PLANTED)
    results["better@#1"] = {"status": "diverged", "step": 120, "collapsed": False}
    return tabulate(plan, results)


def test_a_diverged_row_shows_its_survivors_and_no_verdict():
    table = diverging()
    entry = entries(table)["better"]
    assert (entry.diverged, entry.pool, entry.verdict, entry.n) == ((1,), "instability", None, 2)
    assert entry.accuracy.mean == pytest.approx(PLANTED["better"][[0, 2]].mean())
    assert table.complete  # diverging is a result
    assert entries(table)["worse"].verdict == "hurts"
    for text in every_text(table):
        assert "seed 1 at step 120" in text
    assert "| 1/3 diverged" in render(table, "md")


def test_divergence_scored_at_chance_has_an_interval_and_a_verdict():
    table = diverging(diverged="chance")
    entry = entries(table)["better"]
    assert entry.values[1] == 10.0
    assert (entry.n, entry.verdict, entry.pool) == (3, "unstable", "instability")
    assert "scored at chance" in render(table, "md")


def test_a_row_far_from_zero_by_eye_is_unstable_and_says_what_would_decide():
    plan = make_plan(list(PLANTED))
    table = tabulate(plan, plant(plan, PLANTED | {"worse": [88, 45, 37]}))
    worse = entries(table)["worse"]
    assert (worse.verdict, worse.pool) == ("unstable", "outlier")
    assert worse.gain.low is None  # wider than 100 points
    (note,) = [text for text in table.on(worse.row, worse.column) if "Unstable" in text]
    assert f"{worse.ratio:.1f} times as large" in note
    assert "seed 0 is farthest" in note  # the only one like the others
    d = np.array([88, 45, 37]) - PLANTED["base"]
    n = next(
        n
        for n in range(2, 100)
        if scipy.stats.t.ppf(1 - 0.05 / 10, n - 1) * d.std(ddof=1) / math.sqrt(n) < -d.mean()
    )
    assert f"{n} seeds of this spread would resolve a gain as large" in note


def test_a_row_that_always_diverged_has_nothing_but_its_count():
    plan = make_plan(list(PLANTED))
    results = plant(plan, PLANTED)
    results |= {f"worse@#{s}": {"status": "diverged", "step": 1} for s in range(3)}
    table = tabulate(plan, results)
    entry = entries(table)["worse"]
    assert (entry.accuracy, entry.gain, entry.n) == (None, None, 0)
    assert "| worse | - | - | 0 | 3/3 diverged" in render(table, "md")
    assert entries(table)["better"].verdict == "helps"


@pytest.mark.parametrize("scored", ["omit", "chance"])
@pytest.mark.parametrize("fate", ["diverged", "collapsed"])
def test_an_unstable_baseline_voids_its_column(scored, fate):
    plan = make_plan(
        list(PLANTED),
        ("S/4", "Ti/4", "B/4"),
        seeds=4,
        diverged=scored,
        margin=0.3,
        contrasts={"more": {"across": "optim.lr", "from": 1, "to": 2}},
    )
    columns = tuple(Column(c.label, {"optim.lr": n + 1}) for n, c in enumerate(plan.columns))
    plan = dataclasses.replace(plan, columns=columns)
    results = plant(plan, {row: [*values, values[0]] for row, values in PLANTED.items()})
    sound = tabulate(plan, results)
    assert {block.kind for block in sound.blocks} == {"average", "contrast"}
    if fate == "diverged":
        results["base@S/4#2"] = {"status": "diverged", "step": 7}
    else:
        results["base@S/4#2"] |= finished(0.2, collapsed=True)
    results["worse@S/4#0"]["collapsed"] = True
    table = tabulate(plan, results)
    void, whole, _ = table.columns
    assert (void.void, whole.void) == (True, False)
    for entry in void.entries:
        assert (entry.verdict, entry.gain and entry.gain.low) == (None, None)
    assert whole.entries == sound.columns[1].entries
    assert table.complete
    (average,) = table.blocks  # and no contrast
    assert {line.columns for line in average.lines} == {("Ti/4", "B/4")}
    assert "Average over the 2 columns" in average.title
    assert "without S/4: its baseline is unstable" in average.note
    for text in every_text(table):
        assert f"S/4: no verdicts: in the baseline base, seed 2 {fate}" in text
        assert "1 of 4 runs of base diverged or collapsed, against 0 of 4 of better, same" in text
        p = scipy.stats.fisher_exact([[1, 3], [0, 4]]).pvalue
        assert f"Fisher's exact p = {p:.2g}" in text


def test_a_void_column_says_a_rate_at_which_the_baseline_may_hold():
    plan = make_plan(list(PLANTED))
    cells = [dataclasses.replace(c, spec={**c.spec, "optim": {"lr": 0.003}}) for c in plan.cells]
    plan = dataclasses.replace(plan, cells=tuple(cells), words=("mine",))
    results = plant(plan, PLANTED) | {"base@#0": {"status": "diverged", "step": 7}}
    assert "`ablate sweep mine optim.lr=0.001`" in render(tabulate(plan, results), "md")
    rates = dataclasses.replace(plan, columns=(Column("", {"optim.lr": 0.003}),))
    notes = " ".join(tabulate(rates, results).texts(*WARNINGS))
    assert "optim.lr=0.001" not in notes
    assert "The sweep compares learning rates" in notes


def test_a_noisy_baseline_counts_in_each_gain_and_the_caption_says_so():
    rows = [*PLANTED, "a", "b", "c"]
    plan = make_plan(rows, seeds=5)
    rng = np.random.default_rng(3)
    values = {row: rng.normal(90, 0.1, 5) for row in rows} | {"base": [90, 91, 88, 92, 89]}
    table = tabulate(plan, plant(plan, values))
    ratio = table.columns[0].baseline_ratio
    assert ratio > 5
    assert table.columns[0].forecast is None
    for text in every_text(table):
        assert f"the baseline's spread is {ratio:.1f} times what the rows have" in text


def test_a_collapsed_run_does_not_hide_what_other_rows_show():
    """Its row leaves the pool: left in the fit, 1/R of its fall would be noise in all residuals."""
    plan = make_plan(list(PLANTED))
    results = plant(plan, {**PLANTED, "worse": [88.0, 20.0, 88.1]})
    results["worse@#1"]["collapsed"] = True
    table = tabulate(plan, results)
    judged = entries(table)
    assert judged["better"].verdict == "helps"
    assert judged["worse"].pool == "instability"
    assert judged["worse"].n == 3
    assert table.columns[0].spreads[0] < 0.2


def test_collapsed_runs_are_counted_named_and_kept():
    plan = make_plan(list(PLANTED))
    results = plant(plan, PLANTED)
    results["worse@#0"]["collapsed"] = results["worse@#2"]["collapsed"] = True
    table = tabulate(plan, results)
    entry = entries(table)["worse"]
    assert (entry.collapsed, entry.n, entry.verdict) == ((0, 2), 3, "hurts")
    assert "hurts; 2/3 collapsed" in render(table, "md")
    for text in every_text(table):
        assert "Collapsed: seeds 0, 2" in text


def test_an_unfinished_sweep_says_what_is_missing_and_gives_no_verdict():
    plan = make_plan(list(PLANTED))
    results = plant(plan, PLANTED)
    results["worse@#2"] = None
    del results["same@#2"], results["same@#1"]
    table = tabulate(plan, results)
    assert not table.complete
    assert not table.is_look
    assert not any(entry.verdict for entry in table.entries)
    for text in every_text(table):
        assert "UNFINISHED: 3 of 18 runs missing (2 of same; 1 of worse)" in text
    markdown = render(table, "md")
    assert "1/3 missing" in markdown
    assert "**+" not in markdown
    assert entries(table)["worse"].n == 2


def test_one_seed_has_no_interval_and_never_nan():
    plan = make_plan(list(PLANTED), seeds=1)
    table = tabulate(plan, plant(plan, PLANTED))
    assert not table.is_look
    assert "| better | 91.85 [-] | +1.90 [-] | 1 | - |" in render(table, "md")
    for text in every_text(table):
        assert "n = 1: no interval" in text
        assert "nan" not in text.lower()


def test_a_table_without_any_result_is_a_table():
    plan = make_plan(list(PLANTED), ("S/4", "Ti/4"))
    for text in every_text(tabulate(plan, {})):
        assert "36 of 36 runs missing" in text


def test_a_row_out_of_line_has_its_own_interval_and_a_footnote():
    plan = make_plan(list(PLANTED))
    table = tabulate(plan, plant(plan, PLANTED | {"worse": [80, 88, 84]}))
    entry = entries(table)["worse"]
    assert entry.pool == "outlier"
    assert table.columns[0].kept_rows == 5
    for text in every_text(table):
        assert f"spread is {entry.ratio:.1f} times what the other rows have (F test, 0.1 %)" in text
        assert "tells nothing of the other rows' spread" in text
    mild = tabulate(plan, plant(plan, PLANTED | {"worse": [87.9, 88.4, 88.2]}))
    assert (entries(mild)["worse"].pool, mild.columns[0].kept_rows) == ("spread", 6)
    assert "still tells of the other rows' spread" in render(mild, "md")


def test_rows_with_their_own_spread_have_no_pool():
    plan = make_plan(list(PLANTED), spread="paired")
    table = tabulate(plan, plant(plan, PLANTED))
    assert {entry.pool for entry in table.entries} == {""}
    differences = np.array([PLANTED[row] - PLANTED["base"] for row in PLANTED if row != "base"])
    own = np.sqrt(differences.var(1, ddof=1) / 2)
    assert table.columns[0].spreads == pytest.approx((own.min(), own.max()), abs=1e-9)
    assert table.texts("detail")[0].startswith("Each row's own spread")


def test_equal_gains_in_all_seeds_are_no_certainty():
    plan = make_plan(["base", "lucky"], spread="paired")
    table = tabulate(plan, plant(plan, {"base": [90, 91, 90], "lucky": [91, 92, 91]}))
    assert entries(table)["lucky"].verdict == "can't tell"
    assert "there is no spread" in render(table, "md")


# --- Footnotes ----------------------------------------------------------------------------------


def test_confounds_overrides_and_mixed_machines_are_footnoted_in_every_format():
    plan = make_plan(list(PLANTED), confounds={"better": ("optim.lr",)})
    overrides = {"same": ("train.batch",)}
    cells = (dataclasses.replace(c, overrides=overrides.get(c.row, ())) for c in plan.cells)
    plan = dataclasses.replace(plan, cells=tuple(cells))
    results = plant(plan, PLANTED)
    results["worse@#1"] |= {"device": "NVIDIA H200", "kernel": "explicit"}
    results["better@#1"]["execution"] = "compiled"
    results["base@#0"]["digest"] = "d2"
    table = tabulate(plan, results)
    for text in every_text(table):
        assert "Confound: the row sets optim.lr" in text
        assert "change the recipe of this cell: train.batch" in text
        assert "differ in their device: cpu (17 runs), NVIDIA H200 (1 run: worse)" in text
        assert "differ in their attention kernel: sdpa (17 runs), explicit (1 run: worse)" in text
        assert "execution of the step: eager (17 runs), compiled (1 run: better)" in text
        assert "differ in their version of the training code: d1 (17 runs), d2 (1 run" in text
    markdown = render(table, "md")
    assert "gain [95 % CI]¹˒²˒³˒⁴" in markdown
    assert "| better⁵ |" in markdown
    assert "same within" not in markdown
    assert "- ⁵ Confound" in markdown


def test_a_clean_table_has_no_footnotes():
    plan = make_plan(list(PLANTED))
    table = tabulate(plan, plant(plan, PLANTED))
    assert (table.footnotes, table.texts(*WARNINGS)) == ({}, ())


# --- Looks --------------------------------------------------------------------------------------


def grown(seeds=5, columns=("",), **analysis):
    """`seeds` of five; rows of their own specs."""
    plan = make_plan(list(PLANTED), columns, seeds, **analysis)
    values = {row: np.append(PLANTED[row], PLANTED[row][:2] + 0.05) for row in PLANTED}
    cells = (dataclasses.replace(c, spec=own_spec(c.row, c.column)) for c in plan.cells)
    return dataclasses.replace(plan, cells=tuple(cells)), plant(plan, values)


def before(plan, *earlier, **named):
    """The looks at these plans, before the one at `plan`."""
    seen = [dataclasses.replace(look(one), **named) for one in earlier]
    return PastLooks(seen, look(plan))


def part(plan, *rows):
    """The plan, of these rows alone."""
    kept = tuple(row for row in plan.rows if row.label in rows)
    cells = tuple(cell for cell in plan.cells if cell.row in rows)
    return dataclasses.replace(plan, rows=kept, cells=cells)


def test_a_table_that_was_read_at_other_seeds_says_what_that_costs():
    plan, results = grown()
    fresh = tabulate(plan, results)
    assert fresh.texts(*WARNINGS) == ()
    assert tabulate(plan, results, before(plan, plan)) == fresh  # the same look again
    table = tabulate(plan, results, before(plan, grown(3)[0], sweep="early"))
    for text in every_text(table):
        assert "were also read at n = 3 (sweep early): the chance of a false verdict" in text
        assert "on some variant is about 6 %" in text
    assert entries(table) == entries(fresh)
    fewer, results = grown(3)
    table = tabulate(fewer, results, before(fewer, plan))
    assert "were also read at n = 5 (sweep planted)" in table.texts(*WARNINGS)[0]


def test_declared_looks_share_alpha_and_need_no_note():
    plan, results = grown(looks=(3, 5))
    three = grown(3, looks=(3, 5))[0]
    table = tabulate(plan, results, before(plan, three), strict=True)
    assert table.texts(*WARNINGS) == ()
    assert table.is_look
    assert table.gain_alpha == 0.025
    assert "gain [97.5 % CI]" in render(table, "md")
    undeclared = tabulate(plan, results, before(plan, three, grown(4, looks=(3, 5))[0]))
    said = "read at n = 3 (sweep planted), 4 (sweep planted): the chance"
    assert said in undeclared.texts(*WARNINGS)[0]
    plan, results = grown()
    assert entries(tabulate(plan, results))["same"].gain.low > entries(table)["same"].gain.low


def test_sweeps_over_one_baseline_are_told_and_judged_apart_but_for_their_average():
    plan, results = grown(columns=("S", "Ti"))
    one, *others = (part(plan, "base", row) for row in list(PLANTED)[1:])
    seen = [dataclasses.replace(look(other), sweep=f"s{n}") for n, other in enumerate(others)]
    table = tabulate(one, results, PastLooks(seen, look(one)), strict=True)
    assert table.texts(*WARNINGS) == (
        "5 variants in 5 sweeps were read against these baseline runs, each sweep as its own "
        "family: .05 each.",
    )
    assert table.has_verdicts
    assert [column.contrasts for column in table.columns] == [1, 1]
    [average] = table.blocks
    assert average.contrasts == 5
    assert tabulate(one, results).blocks[0].contrasts == 1


def test_a_table_wide_family_counts_the_variants_of_every_column():
    plan, results = grown(columns=("S", "Ti"), family="table")
    best = part(plan, "base", "better", "worse")
    table = tabulate(best, results, before(best, plan))
    assert [column.contrasts for column in table.columns] == [10, 10]
    assert "planted, among 5 variants: judged as 10 contrasts." in table.texts(*WARNINGS)[0]


def test_only_the_columns_that_differ_are_named():
    plan, results = grown(columns=("S", "Ti"))
    cells = tuple(c for c in plan.cells if c.column == "S" or c.row in ("base", "better"))
    odd = dataclasses.replace(plan, cells=cells)
    table = tabulate(odd, results, before(odd, plan))
    assert table.texts(*WARNINGS)[0].startswith(
        "Ti: These runs were read before, in planted, among 5"
    )
    assert "cells: -worse@Ti, -same@Ti, -at least@Ti, -unclear@Ti" in table.texts(*WARNINGS)[1]


def test_means_alone_have_no_interval_p_or_word_in_any_format():
    plan, results = grown(columns=("S", "Ti"), diverged="chance")
    results["worse@S#1"] = {"status": "diverged", "step": 3}
    whole = tabulate(plan, results)
    assert whole.is_look
    unfinished = tabulate(plan, {**results, "same@Ti#4": None})
    for table in (tabulate(plan, results, means=True), unfinished):
        assert not table.is_look
        assert {entry.gain.low for entry in table.contrasts} == {None}
        assert {entry.gain.sd for entry in table.contrasts} == {None}
        assert {entry.p_values for entry in table.entries} == {PValues()}
        assert [line.gain.low for block in table.blocks for line in block.lines][:1] == [None]
        assert table.texts("detail") == ()
        for text in every_text(table):
            assert not any(word in text for word in ("helps", "hurts", "Fisher", "correlation"))
            assert "simultaneous" not in text
        assert "| better | 91.99 [91.84, 92.14] | +1.99 [-] | 5 |" in render(table, "md")
        csv = render(table, "csv")
        assert ",gain," in csv
        assert not any(f",{name}," in csv for name in ("gain.low", "gain.p", "gain.sd", "verdict"))
        gains = {e.row: e.gain.mean for e in table.columns[0].entries if e.gain}
        assert gains == {e.row: e.gain.mean for e in whole.columns[0].entries if e.gain}


# --- Formats ------------------------------------------------------------------------------------


def full():
    """A bit of everything, in two columns."""
    plan = make_plan(
        list(PLANTED),
        ("S/4", "Ti/4"),
        families={"worse": "a family", "same": "a family"},
        confounds={"better": ("optim.lr",)},
        margin=0.3,
    )
    results = plant(plan, PLANTED)
    results["worse@S/4#1"] = {"status": "diverged", "step": 12}
    results["same@Ti/4#0"]["collapsed"] = True
    return plan, results


def test_the_csv_reads_back_as_the_table():
    table = tabulate(*full())
    frame = pd.read_csv(io.StringIO(render(table, "csv")), keep_default_na=False)
    assert tuple(frame.columns) == CSV_FIELDS
    assert set(frame["sweep"]) == {"planted"}
    index = ["column", "row", "seed", "quantity"]
    tidy = frame[~frame["quantity"].isin(["note", "caption"])].set_index(index)
    assert tidy.index.is_unique

    def value(column, row, quantity, seed=""):
        return float(tidy.loc[(column, row, str(seed), quantity), "value"])

    for entry in table.entries:
        where = (entry.column, entry.row)
        for seed, run in entry.values.items():
            assert value(*where, "top1.run", seed) == run
        for quantity, estimate in (("top1", entry.accuracy), ("gain", entry.gain)):
            if estimate:
                assert value(*where, quantity) == estimate.mean
                for name in ("low", "high", "sd", "n"):
                    if (known := getattr(estimate, name)) is None:  # equal gains have no interval
                        assert (*where, "", f"{quantity}.{name}") not in tidy.index
                    else:
                        assert value(*where, f"{quantity}.{name}") == known
        assert value(*where, "runs.diverged") == len(entry.diverged)
        assert value(*where, "runs.collapsed") == len(entry.collapsed)
        if entry.verdict:
            assert tidy.loc[(*where, "", "verdict"), "text"] == entry.verdict
        else:
            assert (*where, "", "verdict") not in tidy.index
    for column in table.columns:
        assert value(column.label, "", "spread.least") == column.spreads[0]
        assert value(column.label, "", "spread.most") == column.spreads[1]
        assert value(column.label, "", "spread.df") == column.df
        assert tidy.loc[(column.label, "", "", "spread.by"), "text"] == column.judged_by
        assert value(column.label, "", "test.n") == 300


def test_the_json_is_the_table():
    table = tabulate(*full())
    tree = dataclasses.asdict(table)
    del tree["task"], tree["choice"]  # said where it is none of classification's
    for column in tree["columns"]:
        assert (column.pop("on"), column.pop("group")) == ("", "")  # so are these
        assert [entry.pop("population") for entry in column["entries"]] == [None] * 6
        assert column.pop("wide") == column["label"]  # a layout's words are left out
        assert (column.pop("arch"), column.pop("beside")) == ("", False)
    assert tree.pop("whole") is None  # of a part, what it is a part of
    assert (tree.pop("wide"), tree.pop("groups"), tree.pop("words")) == (False, (), ())
    assert tree.pop("first") == 1  # footnote; the notes are said by their kinds
    tree["notes"] = table.texts(*WARNINGS)
    tree["caption"] = table.texts("caption", "detail")
    tree["footnotes"] = list(table.footnotes)
    for row in tree["rows"]:
        row["footnotes"] = table.marks(row["label"], None)
    for column in tree["columns"]:
        column["footnotes"] = table.marks(None, column["label"])
        for entry in column["entries"]:
            place = entry["row"], column["label"]
            entry["footnotes"] = table.marks(*place)
            entry["gain_footnotes"] = table.marks(*place, "gain")
    assert json.loads(render(table, "json")) == json.loads(json.dumps(tree))


def test_the_terminals_table_fits_a_hundred_columns():
    table = tabulate(*full())
    text = printed(table)
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    for entry in table.entries:
        if entry.gain and entry.gain.low is None:
            assert f"{entry.gain.mean:+.2f} [-]" in text
        elif entry.gain:
            assert f"{entry.gain.mean:+.2f} [{entry.gain.low:+.2f}, {entry.gain.high:+.2f}]" in text


def test_an_unknown_format_names_the_choices():
    with pytest.raises(UserError, match="--format: expected one of rich, md, latex, html, csv"):
        render(tabulate(*full()), "mdd")


@pytest.mark.parametrize("format", TEXTS)
def test_the_bytes_do_not_depend_on_the_order_of_reading(format):
    plan, results = full()
    first = render(tabulate(plan, results), format)
    backwards = dict(reversed(results.items()))
    stats.look_error.cache_clear()
    assert render(tabulate(plan, backwards), format) == first
    tree = json.loads(plan.to_bytes())
    ids = {run.id: f"{n:x}" for n, run in enumerate(plan.runs())}  # as folders may be named
    for cell in tree["cells"]:
        cell["ids"] = {seed: ids[run] for seed, run in cell["ids"].items()}
    renamed = {ids[run]: result for run, result in backwards.items()}
    assert render(tabulate(Plan.from_tree(tree), renamed), format) == first


def test_chance_is_a_guess():
    plan = make_plan(["a", "b"], diverged="chance", metric="loss")
    results = {run: {"status": "diverged"} for cell in plan.cells for run in cell.ids.values()}
    table = tabulate(plan, results)
    assert entries(table)["b"].accuracy.mean == pytest.approx(math.log(10))


def test_a_loss_that_no_variance_can_be_taken_of_is_left_out_and_named():
    plan = make_plan(["base", "row"])
    results = plant(plan, {"base": [90, 91, 92], "row": [91, 92, 93.5]})
    results["row@#1"]["test"]["loss"] = 1e200
    table = tabulate(plan, results)
    assert [entry.n for entry in table.entries] == [3, 3]
    assert "inf" not in render(table, "json") + render(table, "csv")
    note = "The test loss of this row is left out: 1e+200 in seed 1; no interval can be computed "
    note += "beyond 1e+60."
    for format in ("md", "latex", "html", "json"):
        text = render(table, format).replace("\\", "")
        assert note in text, format
    results["row@#2"]["test"]["loss"] = math.nan
    results["row@#0"]["test"]["top5"] = None  # not measured, which is no such value
    notes = tabulate(plan, results).footnotes
    (note,) = [text for text in notes if "left out" in text]
    assert "test loss" in note
    assert ": 1e+200 in seed 1, nan in seed 2; " in note
    results["row@#2"]["test"]["loss"] = 0.1
    with pytest.raises(UserError, match=r"metric: loss of 'row' is 1e\+200 in seed 1: no interval"):
        tabulate(make_plan(["base", "row"], metric="loss"), results)
    results["row@#1"]["test"]["loss"] = 1e50
    text = render(tabulate(make_plan(["base", "row"], metric="loss"), results), "md")
    assert "| row | 3.33e+49 [" in text


# --- A footnote explains its cell ---------------------------------------------------------------


def marks_in(text):
    return [c for c in text if c in "\u00b9\u00b2\u00b3\u2070\u2074\u2075\u2076\u2077\u2078\u2079"]


def test_a_footnote_on_a_gain_goes_where_no_gain_is_shown():
    plan = make_plan(["base", "a", "b", "wild"])
    values = dict.fromkeys(("base", "a", "b"), 90 + BLOCKS)
    table = tabulate(plan, plant(plan, {**values, "wild": np.array([80.0, 90.0, 97.0])}))
    [wild] = [entry for entry in table.entries if entry.row == "wild"]
    marks = table.marks(wild.row, wild.column)
    assert marks == table.marks(wild.row, wild.column, "gain") != ()
    hidden = render(table, "md", show=("top5", "loss"))
    assert marks_in(hidden) == []
    assert not any(note in hidden for note in table.footnotes)
    for shown in (("gain", "loss"), ("verdict", "loss")):
        [line] = [x for x in render(table, "md", show=shown).splitlines() if x.startswith("| wild")]
        _, _, gain, loss, _ = line.split("|")
        assert marks_in(gain)
        assert not marks_in(loss)


def test_a_baseline_with_a_spread_over_rows_without_any_is_not_inf_times():
    plan = make_plan(["base", "a", "b"])
    values = {"base": np.array([80.0, 90.0, 97.0]), "a": np.full(3, 91.0), "b": np.full(3, 92.0)}
    table = tabulate(plan, plant(plan, values))
    [column] = table.columns
    assert (column.tripped, column.baseline_ratio) == (True, None)
    for text in every_text(table):
        assert "inf" not in text.lower().replace("information", "")
    assert "far above what the rows have" in every_text(table)[0]


def test_nothing_without_a_spread_has_an_interval_in_any_format():
    plan = make_plan(["base", "a", "b"], spread="paired")
    values = {"base": np.full(3, 90.0), "a": np.full(3, 91.0), "b": 92 + BLOCKS}
    table = tabulate(plan, plant(plan, values))
    alike = entries(table)["a"]
    assert (alike.accuracy.low, alike.gain.low, alike.verdict) == (None, None, "can't tell")
    for text in every_text(table):
        assert "[91.00, 91.00]" not in text
        assert "[+1.00, +1.00]" not in text


def test_a_column_whose_predictions_lack_says_so_and_how_it_is_judged():
    plan = make_plan(list(PLANTED))
    table = tabulate(plan, plant(plan, PLANTED), predictions=lambda *run: None)
    assert table.columns[0].judged_by == "one way"
    assert "one spread of all rows" in table.texts("caption")[0]
    assert (
        "not from images, since seed 0 of base has no predictions.npy" in table.texts("detail")[0]
    )


CROSSED = """
base: {recipe: quick, data: digits, model.arch: mu/4}
across: {model.depth: [1, 2, 4]}
variants: [{pre: {}}, {post: {block.mlp: post}}]
analysis:
  contrasts:
    deeper: {across: model.depth, from: 1, to: 2}
    deepest: {across: model.depth, from: 1, to: 4}
"""


@pytest.mark.parametrize("until", ["", "until: {looks: [5, 8], margin: 1.0}\n"])
def test_a_sweep_crossed_by_words_has_its_contrasts_at_each_value_and_its_looks(
    tmp_path, monkeypatch, until
):
    """The gain of post is 1 point a doubling at the lower rate, and 2 at the higher, by hand."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "mine.yaml").write_text(CROSSED + until)
    words = ["mine", "optim.lr=1e-3,3e-3"]
    plan, _ = expand(words, store=tmp_path / "runs", name="other")
    assert plan.name == "other"
    assert plan.design.at == ((5, 8) if until else ())
    assert len(plan.columns) == 3 * 2
    noise = np.random.default_rng(1)
    settings = {column.label: column.settings for column in plan.columns}
    results = {}
    for run in plan.runs():
        one = settings[run.cell.column]
        slope = {1e-3: 1.0, 3e-3: 2.0}[one["optim.lr"]]
        gain = slope * np.log2(one["model.depth"]) * (run.cell.row == "post")
        results[run.id] = finished((60 + gain) / 100 + 1e-6 * noise.normal())
    found = {
        (block.name, line.column): line.gain.mean
        for block in tabulate(plan, results).blocks
        for line in block.lines
        if block.kind == "contrast"
    }
    expected = {
        (name, f"optim.lr={lr}"): slope * doublings
        for name, doublings in (("deeper", 1), ("deepest", 2))
        for lr, slope in ((0.001, 1.0), (0.003, 2.0))
    }
    assert found == {place: pytest.approx(mean, abs=0.01) for place, mean in expected.items()}
