"""The gain table: planted sweeps get the planted words, in every format, always the same bytes."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from support.declared import declare
from support.looks import spec as own_spec
from support.plans import with_sections
from support.tables import (
    BLOCKS,
    PLANTED,
    PLANTED_TWO,
    TEXTS,
    entries,
    every_text,
    finished,
    make_plan,
    noted_texts,
    notes_of,
    plant,
    printed,
    tabulate,
)

from ablate.analysis import stats
from ablate.analysis.english import captions
from ablate.analysis.judging import Detail
from ablate.analysis.note import WARNING_KINDS
from ablate.analysis.seeding import seeds_command
from ablate.analysis.summary import PValues
from ablate.planning.cell import Column, Tune, TuningStage
from ablate.planning.expand import plan_from_words as expand
from ablate.planning.plan import Plan
from ablate.report.formats import DEFAULT_SHOW, render_table
from ablate.report.formats.layout import sheet
from ablate.report.selection import choose_part
from ablate.shared.errors import UserError
from ablate.store.looks import PastLooks, look
from ablate.store.store import Store


def half_width(y, contrasts, alpha=0.05):
    """Of a gain where all rows of y (R, n) share one spread, without seed blocks."""
    rows, n = np.shape(y)
    t = scipy.stats.t.ppf(1 - alpha / (2 * contrasts), rows * (n - 1))
    return t * math.sqrt(2 * np.var(y, axis=1, ddof=1).mean() / n)


def planted(values=PLANTED, changed=None, columns=("",), predictions=None, **analysis):
    """The table of a sweep with these top-1 by row; runs changed: a status replaces the result."""
    plan = make_plan(list(values), columns, len(values["base"]), **analysis)
    results = plant(plan, values)
    for run, change in (changed or {}).items():
        results[run] = change if not change or "status" in change else {**results[run], **change}
    return tabulate(plan, results, predictions=predictions)


def test_a_mean_is_the_same_number_wherever_a_line_has_it():
    """The average over columns, and the same if columns were a sample: their sums differ in order,
    and a half in the last digit went up in one and down in the other."""
    rng = np.random.default_rng(4)
    for _ in range(40):
        rows = {row: 90 + rng.integers(0, 9, 3) / 3 for row in ("base", "a", "b")}
        plan = make_plan(list(rows), ("S", "M", "B"), 3)
        results = plant(plan, rows)
        for result in results.values():
            result["test"]["top1"] += rng.integers(0, 3) / 300
        (block,) = [one for one in tabulate(plan, results).blocks if one.kind == "average"]
        assert all(line.sampled.mean == line.gain.mean for line in block.lines)


def test_two_seeds_have_intervals_and_nothing_else_speaks_of_verdicts():
    table = planted({"base": [90, 91], "a": [93, 92], "b": [94, 95]})
    assert "| variant | top1 % [95 % CI] | gain [95 % CI] | n |\n" in render_table(table, "md")
    [few] = notes_of(table, "few-seeds")
    assert few.values["n"] == 2
    for text in (printed(table), *(render_table(table, name) for name in ("md", "latex", "html"))):
        assert few.text in text
        assert text.lower().count("verdict") == 1


# --- Verdicts -----------------------------------------------------------------------------------


def test_planted_gains_get_the_planted_verdicts():
    half = half_width([*PLANTED.values()], 5)
    margin = round(half + 0.05, 2)  # gains of 0 and +-0.1 are on either side of it
    table = planted(margin=margin)
    assert {row: entry.verdict for row, entry in entries(table).items()} == {
        **{"base": None, "better": "helps", "worse": "hurts", "same": f"same within {margin:g}"},
        **{"at least": f"no worse than {margin:g}", "unclear": "can't tell"},
    }
    assert (table.complete, table.is_look) == (True, True)
    assert (table.footnotes, table.texts(*WARNING_KINDS)) == ({}, ())


def test_the_numbers_are_those_of_stats():
    found = entries(planted(margin=0.3))
    method = stats.Method(contrasts=5, variants=5)
    gains = stats.column_gains(np.array([*PLANTED.values()]), 0, method)
    for (row, values), gain in zip(PLANTED.items(), gains.rows, strict=True):
        expected = [(found[row].accuracy, stats.mean_interval(values))]
        if gain:
            expected.append((found[row].gain, dataclasses.replace(gain.gain, df=gain.df)))
            assert found[row].pool == "kept"
        for ours, theirs in expected:
            assert dataclasses.astuple(ours) == pytest.approx(dataclasses.astuple(theirs))
    assert found["base"].gain is None


def test_json_has_the_gain_that_more_seeds_would_resolve_where_a_verdict_is_open():
    table = planted()
    assert entries(table)["unclear"].verdict == "can't tell"
    found = table.columns[0].forecast
    y = np.array([*PLANTED.values()])
    sd = math.sqrt(y.var(1, ddof=1).mean())  # 6 rows x 3 seeds, no blocks: 12 df
    half = scipy.stats.t.ppf(1 - 0.05 / 10, 30) * sd * math.sqrt(2 / 6)
    assert (found.seeds, found.half) == (6, pytest.approx(half))
    assert found.low < half < found.high
    [column] = json.loads(render_table(table, "json"))["columns"]
    assert column["forecast"] == dataclasses.asdict(found)
    few = {row: PLANTED[row] for row in ("base", "worse")}  # 2 variants, 3 seeds: 4 df
    few = planted({**few, "better": PLANTED["base"] + [0.1, -0.1, 0.05]})
    assert "can't tell" in {entry.verdict for entry in few.entries}
    assert few.columns[0].forecast is None


def test_details_of_the_spread_are_in_json_alone():
    """How large it is, and from how many rows and degrees of freedom."""
    table = planted()
    [column] = json.loads(render_table(table, "json"))["columns"]
    least, most = (f"{spread:.2f}" for spread in column["spreads"])
    assert (column["df"], column["kept_rows"]) == (12.0, 6)
    for text in (printed(table), *(render_table(table, name) for name in ("md", "latex", "html"))):
        below = text[text.index("Top-1 accuracy: mean over seeds") :]
        assert not any(detail in below for detail in (least, most, " df", "more runs"))
    [metric] = notes_of(table, "metric")
    assert metric.values["interval"]["methods"] == ["one way"]


def test_the_command_for_more_seeds_is_the_one_that_was_typed():
    plan = dataclasses.replace(
        make_plan(list(PLANTED)),
        declared=declare("placement_2026", "optim.lr=0.1", "seeds=[0, 1, 2]", "--scale", "smoke"),
    )
    place = Store(Path("other")).command
    command = "ablate sweep placement_2026 optim.lr=0.1 seeds=6 --scale smoke --store other"
    assert seeds_command(plan, 6, place) == command
    assert seeds_command(dataclasses.replace(plan, seeds=(4, 5, 6)), 6, place) == command.replace(
        "seeds=6", "'seeds=[4,5,6,0,1,2]'"
    )


def test_the_same_predictions_in_every_seed_did_nothing():
    values = PLANTED | {"unclear": PLANTED["base"]}
    changed = {
        f"{row}@#{seed}": {"predictions_sha256": f"digest {seed}"}
        for seed in range(3)
        for row in ("base", "unclear")
    }
    table = planted(values, changed)
    assert entries(table)["unclear"].verdict == "did nothing"
    assert all("did nothing" in text for text in every_text(table))
    changed["unclear@#2"] = {"predictions_sha256": "another"}
    assert entries(planted(values, changed))["unclear"].verdict == "can't tell"


@pytest.mark.parametrize("row", ["base", "unclear"])
def test_a_row_did_nothing_in_the_seeds_that_it_shares_with_the_baseline(row):
    """Where either lacks seed 1, which the user has skipped."""
    plan, results = grown()
    plan, results = part(plan, "base", "unclear"), {**results}
    for seed in range(5):
        digest = {"predictions_sha256": f"digest {seed}"}
        results[f"unclear@#{seed}"] = {**results[f"base@#{seed}"], **digest}
        results[f"base@#{seed}"] |= digest
    skipped = dataclasses.replace(plan, skipped={f"{row}#1": {"status": "planned"}})
    unclear = entries(tabulate(skipped, results))["unclear"]
    assert (unclear.verdict, unclear.gain.n) == ("did nothing", 4)
    results["unclear@#2"] |= {"predictions_sha256": "another"}
    assert entries(tabulate(skipped, results))["unclear"].verdict == "can't tell"


def test_rows_without_any_spread_promise_nothing_of_more_seeds():
    values = {"base": [90] * 5, "a": [92] * 5, "noisy": [89, 90, 92, 88, 91]}
    table = planted(values, metric="loss")
    assert entries(table)["noisy"].verdict == "can't tell"
    assert table.columns[0].forecast is None


def test_two_seeds_give_intervals_and_no_verdicts():
    table = planted({row: values[:2] for row, values in PLANTED.items()})
    better = entries(table)["better"]
    assert better.gain.low is not None
    assert (better.verdict, table.has_verdicts, table.is_look) == (None, False, True)
    assert [few.values["n"] for few in notes_of(table, "few-seeds")] == [2]


def test_the_warning_on_two_seeds_names_the_column_of_each_interval():
    columns = ("S", "Ti")
    for some in (columns, ("",)):
        plan = make_plan(["base", "row"], some, 2, spread="paired")
        values = {"base": [[70, 71], [80, 81.5]], "row": [[75, 76.2], [82, 83]]}
        results = {
            run: finished(values[cell.row][some.index(cell.column)][seed] / 100)
            for cell in plan.cells
            for seed, run in cell.ids.items()
        }
        table = tabulate(plan, results)
        [few] = notes_of(table, "few-seeds")
        found = [(gain["label"], gain["low"]) for gain in few.values["gains"]]
        labels = ["row in S", "row in Ti", "the average of row"] if some is columns else ["row"]
        lows = [column.entries[1].gain.low for column in table.columns]
        lows += [line.gain.low for block in table.blocks for line in block.lines]
        assert found == list(zip(labels, lows, strict=True))


def test_intervals_end_where_accuracies_do_and_say_so():
    table = planted({"base": [90, 91, 92], "near": [100, 99.3, 99.9]})
    near = entries(table)["near"].accuracy
    assert (near.low < 99, near.high) == (True, 100.0)
    told = "Intervals of the mean are cut at 0 and 100 %."
    assert told in sheet(table, DEFAULT_SHOW, False, 0).caption
    assert not any(
        "cut at" in note for note in table.texts(*WARNING_KINDS)
    )  # a report would warn of it
    inside = planted(PLANTED_TWO)
    for other, show in (
        (table, ("gain", "ci")),
        (table, ("accuracy", "gain")),
        (inside, DEFAULT_SHOW),
    ):
        assert told not in sheet(other, show, False, 0).caption


def test_an_interval_as_wide_as_the_scale_is_not_printed():
    """Two seeds of a row out of line, twenty contrasts: +-1850 points."""
    rng = np.random.default_rng(1)
    values = {row: 90 + rng.normal(0, 0.2, 2) for row in ("base", *(f"r{k}" for k in range(20)))}
    table = planted(values | {"r3": [90, 60]})
    wild = entries(table)["r3"]
    assert (wild.gain.low, wild.gain.high) == (None, None)
    assert entries(table)["r4"].gain.low is not None
    [wide] = notes_of(table, "interval.wide")
    assert (wide.values["limit"], wide.place) == (100, ("r3", ""))
    assert all(wide.text in text for text in noted_texts(table))
    shifted = {f"row@Ti/4#{s}": finished(v) for s, v in enumerate((0.51, 0.512, 0.511))}
    values = {"base": [90, 90.1, 90.2], "row": [91, 91.2, 91.1]}
    (line,) = planted(values, shifted, ("S/4", "Ti/4")).blocks[0].lines
    assert (line.sampled.low, line.gain.low is None) == (None, False)


def test_less_loss_is_a_gain():
    table = planted(metric="loss")
    better = entries(table)["better"]
    assert better.verdict == "helps"
    assert better.gain.mean == pytest.approx(0.02)
    assert better.accuracy.mean == pytest.approx(0.08)
    assert "0.0800" in render_table(table, "md")
    assert notes_of(table, "metric")[0].values["metric"]["lower"]


def test_a_metric_that_was_not_measured_is_the_users_mistake():
    with pytest.raises(UserError, match=r"^analysis\.metric: top5 was not measured for 'base'"):
        planted(metric="top5")


def test_a_family_is_a_column_or_the_table():
    column, whole = (
        planted(columns=("S/4", "Ti/4"), family=family) for family in ("column", "table")
    )
    assert [c.contrasts for c in column.columns] == [5, 5]
    assert [c.contrasts for c in whole.columns] == [10, 10]
    [metric] = notes_of(whole, "metric")
    assert metric.values["interval"]["family"] == {"contrasts": [10], "scope": "table"}
    assert entries(whole)["better"].gain.low < entries(column)["better"].gain.low


# --- What went wrong ----------------------------------------------------------------------------

DIVERGED = {"status": "diverged", "step": 120, "collapsed": False}


def test_a_diverged_row_shows_its_survivors_and_no_verdict():
    table = planted(changed={"better@#1": DIVERGED})
    entry = entries(table)["better"]
    assert (entry.diverged, entry.pool, entry.verdict, entry.n) == ((1,), "instability", None, 2)
    assert entry.accuracy.mean == pytest.approx(PLANTED["better"][[0, 2]].mean())
    assert table.complete  # diverging is a result
    assert entries(table)["worse"].verdict == "hurts"


def test_where_all_runs_diverged_no_other_run_is_spoken_of():
    fates = {}
    for row, seeds in {"better": range(3), "base": range(3), "worse": [0]}.items():
        table = planted(changed={f"{row}@#{seed}": DIVERGED for seed in seeds})
        [fates[row]] = notes_of(table, "diverged")
    assert [fate.values["scored"] for fate in fates.values()] == ["none", "none", "omitted"]
    assert [row for row, fate in fates.items() if "other runs" in fate.text] == ["worse"]


def test_divergence_scored_at_chance_has_an_interval_and_a_verdict():
    table = planted(changed={"better@#1": DIVERGED}, diverged="chance")
    entry = entries(table)["better"]
    assert (entry.n, entry.verdict, entry.pool) == (3, "unstable", "instability")
    assert entry.values[1] == 10.0
    [diverged] = notes_of(table, "diverged")
    assert diverged.values["scored"] == "chance"
    assert diverged.values["runs"] == [{"seed": 1, "step": 120}]
    lost = planted(
        {"base": [1], "b": [1]},
        {"base@#0": DIVERGED, "b@#0": DIVERGED},
        diverged="chance",
        metric="loss",
    )
    assert entries(lost)["b"].accuracy.mean == pytest.approx(math.log(10))  # a guess's


def test_a_row_far_from_zero_by_eye_is_unstable_and_says_what_would_decide():
    table = planted(PLANTED | {"worse": [88, 45, 37]})
    worse = entries(table)["worse"]
    assert (worse.verdict, worse.pool) == ("unstable", "outlier")
    assert worse.gain.low is None  # wider than 100 points
    [unstable] = notes_of(table, "verdict.unstable")
    assert unstable.place == (worse.row, worse.column)
    assert unstable.values["ratio"] == worse.ratio
    assert unstable.values["seed"] == 0  # the only one like the others
    d = np.array([88, 45, 37]) - PLANTED["base"]
    n = next(
        n
        for n in range(2, 100)
        if scipy.stats.t.ppf(1 - 0.05 / 10, n - 1) * d.std(ddof=1) / math.sqrt(n) < -d.mean()
    )
    assert unstable.values["needed_seeds"] == n


def test_an_unstable_row_whose_seeds_share_searches_is_of_searches():
    tune = Tune((TuningStage({"optim.lr": {"log": (0.1, 1.0)}}, 5),), repeats=3)
    values = {row: np.repeat(of, 2) for row, of in (PLANTED | {"worse": [88, 45, 37]}).items()}
    plan = dataclasses.replace(make_plan([*values], seeds=6), tune=tune)
    by_search = {row: np.ravel(np.reshape(of, (3, 2)).T) for row, of in values.items()}
    table = tabulate(plan, plant(plan, by_search))  # searches are dealt to seeds in turn
    [unstable] = notes_of(table, "verdict.unstable")
    assert (unstable.values["searches"], unstable.values["seed"]) == (True, None)
    assert unstable.values["gain"] == pytest.approx(88 - PLANTED["base"][0])
    [metric] = notes_of(table, "metric")
    assert metric.values["repeats"] == "searches"
    assert "eed" not in unstable.text
    assert "training seeds" not in metric.text


def test_a_row_that_always_diverged_has_nothing_but_its_count():
    table = planted(changed={f"worse@#{s}": {"status": "diverged", "step": 1} for s in range(3)})
    entry = entries(table)["worse"]
    assert (entry.accuracy, entry.gain, entry.n) == (None, None, 0)
    assert "| worse | - | - | 0 | 3/3 diverged" in render_table(table, "md")
    assert entries(table)["better"].verdict == "helps"


@pytest.mark.parametrize("scored", ["omit", "chance"])
@pytest.mark.parametrize("fate", ["diverged", "collapsed"])
def test_an_unstable_baseline_voids_its_column(scored, fate):
    contrasts = {"more": {"across": "optim.lr", "from": 1, "to": 2}}
    labels = ("S/4", "Ti/4", "B/4")
    plan = make_plan(list(PLANTED), labels, 4, diverged=scored, margin=0.3, contrasts=contrasts)
    columns = tuple(Column(label, {"optim.lr": n + 1}) for n, label in enumerate(labels))
    plan = dataclasses.replace(plan, columns=columns)
    results = plant(plan, {row: [*values, values[0]] for row, values in PLANTED.items()})
    sound = tabulate(plan, results)
    assert {block.kind for block in sound.blocks} == {"average", "contrast"}
    results["base@S/4#2"] = DIVERGED if fate == "diverged" else finished(0.2, collapsed=True)
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
    p = scipy.stats.fisher_exact([[1, 3], [0, 4]]).pvalue
    [void] = notes_of(table, "void")
    [counts] = notes_of(table, "void.rows")
    diverged, collapsed = ([{"seed": 2, "step": 120}], []) if fate == "diverged" else ([], [2])
    assert (void.values["column"], void.values["baseline"]) == ("S/4", "base")
    assert (void.values["diverged"], void.values["collapsed"]) == (diverged, collapsed)
    assert (counts.values["unstable"], counts.values["runs"]) == (1, 4)
    [stable, worse] = counts.values["variants"]
    assert stable["rows"] == ["better", "same", "at least", "unclear"]
    assert (stable["unstable"], stable["runs"]) == (0, 4)
    assert stable["p"] == pytest.approx(p)
    assert (worse["rows"], worse["unstable"]) == (["worse"], 1)
    for text in noted_texts(table):
        assert void.text in text
        assert counts.text in text


def test_a_void_column_without_results_of_variants_counts_the_baselines_runs_alone():
    plan = make_plan(["base", "better"])
    results = {f"base@#{seed}": DIVERGED for seed in range(3)}
    [counts] = notes_of(tabulate(plan, results), "void.rows")
    assert counts.values["variants"] == []
    assert counts.text.count("3 of 3") == 1
    assert "variants" not in counts.text


def test_a_void_column_says_a_rate_at_which_the_baseline_may_hold():
    plan = make_plan(list(PLANTED))
    cells = [with_sections(cell, optim={"lr": 0.003}) for cell in plan.cells]
    plan = dataclasses.replace(plan, cells=tuple(cells), declared=declare("mine"))
    results = plant(plan, PLANTED) | {"base@#0": {"status": "diverged", "step": 7}}
    table = tabulate(plan, results)
    [lower] = notes_of(table, "void.lower-rate")
    assert lower.values["rate"] == 0.001
    assert "`optim.lr=0.001`" in render_table(table, "md")
    rates = dataclasses.replace(plan, columns=(Column("", {"optim.lr": 0.003}),))
    table = tabulate(rates, results)
    assert notes_of(table, "void.lower-rate") == []
    assert len(notes_of(table, "void.compares-rates")) == 1


def test_a_noisy_baseline_counts_in_each_gain_and_the_caption_says_so():
    rng = np.random.default_rng(3)
    values = {row: rng.normal(90, 0.1, 5) for row in [*PLANTED, "a", "b", "c"]}
    table = planted(values | {"base": [90, 91, 88, 92, 89]})
    ratio = table.columns[0].baseline_ratio
    assert ratio > 5
    assert table.columns[0].forecast is None
    [noise] = notes_of(table, "noise.baseline")
    assert noise.values == {"column": "", "ratio": ratio, "by_images": False}
    assert all(noise.text in text for text in noted_texts(table))


def test_a_collapsed_run_does_not_hide_what_other_rows_show():
    """Its row leaves the pool: left in the fit, 1/R of its fall would be noise in all residuals."""
    table = planted(PLANTED | {"worse": [88.0, 20.0, 88.1]}, {"worse@#1": {"collapsed": True}})
    judged = entries(table)
    assert judged["better"].verdict == "helps"
    assert (judged["worse"].pool, judged["worse"].n) == ("instability", 3)
    assert table.columns[0].spreads[0] < 0.2


def test_an_unfinished_sweep_says_what_is_missing_and_gives_no_verdict():
    table = planted(changed=dict.fromkeys(("worse@#2", "same@#2", "same@#1")))
    assert (table.complete, table.is_look) == (False, False)
    assert not any(entry.verdict for entry in table.entries)
    [unfinished] = notes_of(table, "unfinished")
    rows = [{"row": "worse", "missing": 1}, {"row": "same", "missing": 2}]
    assert unfinished.values == {"missing": 3, "planned": 18, "rows": rows, "looks": False}
    assert all(unfinished.text in text for text in noted_texts(table))
    markdown = render_table(table, "md")
    assert "1/3 missing" in markdown
    assert "**+" not in markdown
    assert entries(table)["worse"].n == 2
    nothing = tabulate(make_plan(list(PLANTED), ("S/4", "Ti/4")), {})
    [unfinished] = notes_of(nothing, "unfinished")
    assert (unfinished.values["missing"], unfinished.values["planned"]) == (36, 36)


def test_an_end_of_an_interval_is_never_minus_zero():
    gains = [{"label": "a", "low": -0.001, "high": 3.2}, {"label": "b", "low": 0.0, "high": 1.0}]
    text = captions.few_seeds(2, gains, 2)
    assert "a [-0.001, +3.20]" in text
    assert "b [+0.00, +1.00]" in text


def test_one_seed_has_no_interval_and_never_nan():
    table = planted({row: values[:1] for row, values in PLANTED.items()})
    assert not table.is_look
    assert "| better | 91.85 [-] | +1.90 [-] | 1 |\n" in render_table(table, "md")
    [few] = notes_of(table, "few-seeds")
    assert few.values["n"] == 1
    assert all(few.text in text for text in noted_texts(table))
    assert not any("nan" in text.lower() for text in every_text(table))


def test_a_row_out_of_line_has_its_own_interval_and_a_footnote():
    table = planted(PLANTED | {"worse": [80, 88, 84]})
    entry = entries(table)["worse"]
    assert (entry.pool, table.columns[0].kept_rows) == ("outlier", 5)
    [own] = notes_of(table, "spread.own")
    assert (own.values["reason"], own.values["ratio"]) == ("outlier", entry.ratio)
    assert all(own.text in text for text in noted_texts(table))
    mild = planted(PLANTED | {"worse": [87.9, 88.4, 88.2]})
    assert (entries(mild)["worse"].pool, mild.columns[0].kept_rows) == ("spread", 6)
    assert [own.values["reason"] for own in notes_of(mild, "spread.own")] == ["spread"]


def test_rows_with_their_own_spread_have_no_pool():
    table = planted(spread="paired")
    assert {entry.pool for entry in table.entries} == {""}
    differences = np.array([PLANTED[row] - PLANTED["base"] for row in PLANTED if row != "base"])
    own = np.sqrt(differences.var(1, ddof=1) / 2)
    assert table.columns[0].spreads == pytest.approx((own.min(), own.max()), abs=1e-9)
    assert table.columns[0].judged_by == "paired"
    assert notes_of(table, "metric")[0].values["interval"]["methods"] == ["paired"]


def test_confounds_overrides_and_mixed_machines_are_footnoted():
    plan = make_plan(list(PLANTED), confounds={"better": ("optim.lr",)})
    cells = (
        dataclasses.replace(c, overrides=("train.batch",) * (c.row == "same")) for c in plan.cells
    )
    plan = dataclasses.replace(plan, cells=tuple(cells))
    results = plant(plan, PLANTED)
    results["worse@#1"] |= {"device": "NVIDIA H200", "kernel": "explicit"}
    results["better@#1"]["execution"] = "compiled"
    results["base@#0"]["digest"] = "d2"
    text = render_table(tabulate(plan, results), "md")
    for said in (
        "- ⁵ Confounded: the row also sets optim.lr",
        "change the recipe of this cell: train.batch",
        "differ in their device: cpu (17 runs), NVIDIA H200 (1 run: worse)",
        "differ in their attention kernel: sdpa (17 runs), explicit (1 run: worse)",
        "execution of the step: eager (17 runs), compiled (1 run: better)",
        "differ in their version of the training code: d1 (17 runs), d2 (1 run",
        "gain [95 % CI]¹˒²˒³˒⁴",
        "| better⁵ |",
    ):
        assert said in text
    assert "same within" not in text


# --- Looks --------------------------------------------------------------------------------------


def grown(seeds=5, columns=("",), **analysis):
    """`seeds` of five; rows of their own specs."""
    plan = make_plan(list(PLANTED), columns, seeds, **analysis)
    values = {row: np.append(PLANTED[row], PLANTED[row][:2] + 0.05) for row in PLANTED}
    cells = (dataclasses.replace(c, spec=own_spec(c.row, c.column)) for c in plan.cells)
    return dataclasses.replace(plan, cells=tuple(cells)), plant(plan, values)


def before(plan, *earlier):
    """The looks at these plans, before the one at `plan`."""
    return PastLooks([look(one) for one in earlier], look(plan))


def part(plan, *rows):
    """The plan, of these rows alone."""
    kept = tuple(row for row in plan.rows if row.label in rows)
    cells = tuple(cell for cell in plan.cells if cell.row in rows)
    return dataclasses.replace(plan, rows=kept, cells=cells)


def test_declared_looks_share_alpha_and_need_no_note():
    plan, results = grown(looks=(3, 5))
    three = grown(3, looks=(3, 5))[0]
    table = tabulate(plan, results, before(plan, three), strict=True)
    assert table.texts(*WARNING_KINDS) == ()
    assert table.is_look
    assert table.gain_alpha == 0.025
    assert "gain [97.5 % CI]" in render_table(table, "md")
    undeclared = tabulate(plan, results, before(plan, three, grown(4, looks=(3, 5))[0]))
    [readings] = notes_of(undeclared, "looks.other-readings")
    assert readings.values["verdicts"] == [{"n": n, "sweeps": ["planted"]} for n in (3, 4)]
    plan, results = grown()
    assert entries(tabulate(plan, results))["same"].gain.low > entries(table)["same"].gain.low


def test_sweeps_over_one_baseline_are_told_and_judged_apart_but_for_their_average():
    plan, results = grown(columns=("S", "Ti"))
    one, *others = (part(plan, "base", row) for row in list(PLANTED)[1:])
    seen = [dataclasses.replace(look(other), sweep=f"s{n}") for n, other in enumerate(others)]
    table = tabulate(one, results, PastLooks(seen, look(one)), strict=True)
    [note] = table.unmarked_notes(*WARNING_KINDS)
    assert note.key == "looks.shared-baseline"
    assert note.values == {"columns": [], "variants": 5, "families": 5, "alpha": 0.05}
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
    first, *_ = table.unmarked_notes(*WARNING_KINDS)
    assert first.key == "looks.among"
    assert (first.values["compared"], first.values["contrasts"]) == (5, 10)


def test_the_error_of_a_table_wide_family_counts_each_comparison_in_its_own_column():
    """Where five variants were read in each of two columns, two of which are in the table."""
    wide = {"columns": ("S", "Ti"), "family": "table", "spread": "paired"}
    plan, results = grown(**wide)
    best, three = (part(p, "base", "better", "worse") for p in (plan, grown(3, **wide)[0]))
    for earlier, variants in (((three,), 2), ((three, plan), 5)):
        table = tabulate(best, results, before(best, *earlier))
        method = stats.Method("paired", contrasts=2 * variants, variants=variants)
        [readings] = notes_of(table, "looks.other-readings")
        expected = 1 - (1 - stats.look_error((3, 5), method)) ** 2
        assert readings.values["error"] == pytest.approx(expected)


def test_only_the_columns_that_differ_are_named():
    plan, results = grown(columns=("S", "Ti"))
    cells = tuple(c for c in plan.cells if c.column == "S" or c.row in ("base", "better"))
    odd = dataclasses.replace(plan, cells=cells)
    table = tabulate(odd, results, before(odd, plan))
    among, changed, *_ = table.unmarked_notes(*WARNING_KINDS)
    assert among.key == "looks.among"
    assert (among.values["columns"], among.values["sweeps"]) == (["Ti"], [""])
    assert (among.values["noun"], among.values["compared"]) == ("variant", 5)
    assert changed.key == "looks.changed"
    [change] = [text for text in changed.values["changes"] if text.startswith("cells: ")]
    lacking = change.removeprefix("cells: ").split(", ")
    assert lacking == [f"-{row}@Ti" for row in ("worse", "same", "at least", "unclear")]


def test_means_alone_have_no_interval_p_or_word_in_any_format():
    plan, results = grown(columns=("S", "Ti"), diverged="chance")
    results["worse@S#1"] = {"status": "diverged", "step": 3}
    whole = tabulate(plan, results)
    assert whole.is_look
    means = {e.row: e.gain.mean for e in whole.columns[0].entries if e.gain}
    lacking = tabulate(plan, {**results, "same@Ti#4": None})
    for table in (tabulate(plan, results, detail=Detail.MEANS), lacking):
        assert not table.is_look
        gains = [entry.gain for entry in table.contrasts] + [table.blocks[0].lines[0].gain]
        assert {(gain.low, gain.sd) for gain in gains[:-1]} == {(None, None)}
        assert gains[-1].low is None
        assert {entry.p_values for entry in table.entries} == {PValues()}
        assert not any(column.spreads or column.forecast for column in table.columns)
        words = ("helps", "hurts", "Fisher", "correlation", "simultaneous")
        for text in every_text(table):
            assert not any(word in text for word in words)
        assert "| better | 91.99 [91.84, 92.14] | +1.99 [-] | 5 |" in render_table(table, "md")
        csv = render_table(table, "tidy")
        assert ",gain," in csv
        assert not any(f",{name}," in csv for name in ("gain.low", "gain.p", "gain.sd", "verdict"))
        assert {e.row: e.gain.mean for e in table.columns[0].entries if e.gain} == means


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


@pytest.mark.parametrize("format", TEXTS)
def test_the_bytes_do_not_depend_on_the_order_of_reading(format):
    plan, results = full()
    first = render_table(tabulate(plan, results), format)
    backwards = dict(reversed(results.items()))
    stats.look_error.cache_clear()
    assert render_table(tabulate(plan, backwards), format) == first
    tree = json.loads(plan.to_bytes())
    ids = {run.id: f"{n:x}" for n, run in enumerate(plan.runs())}  # as folders may be named
    for cell in tree["cells"]:
        cell["ids"] = {seed: ids[run] for seed, run in cell["ids"].items()}
    renamed = {ids[run]: result for run, result in backwards.items()}
    assert render_table(tabulate(Plan.from_tree(tree), renamed), format) == first


def test_a_loss_that_no_variance_can_be_taken_of_is_left_out_and_named():
    plan, by_loss = make_plan(["base", "row"]), make_plan(["base", "row"], metric="loss")
    results = plant(plan, {"base": [90, 91, 92], "row": [91, 92, 93.5]})
    results["row@#1"]["test"]["loss"] = 1e200
    table = tabulate(plan, results)
    assert [entry.n for entry in table.entries] == [3, 3]
    assert "inf" not in render_table(table, "json") + render_table(table, "tidy")
    [beyond] = notes_of(table, "beyond")
    assert beyond.values["values"] == [{"seed": 1, "value": "1e+200"}]
    assert (beyond.values["metric"], beyond.values["largest"]) == ("test loss", 1e60)
    for format in ("md", "latex", "html", "json"):
        assert beyond.text in render_table(table, format).replace("\\", ""), format
    results["row@#2"]["test"]["loss"] = math.nan
    results["row@#0"]["test"]["top5"] = None  # not measured, which is no such value
    [beyond] = notes_of(tabulate(plan, results), "beyond")
    values = {value["seed"]: value["value"] for value in beyond.values["values"]}
    assert values == {1: "1e+200", 2: "nan"}
    results["row@#2"]["test"]["loss"] = 0.1
    with pytest.raises(UserError, match=r"metric: loss of 'row' is 1e\+200 in seed 1: no interval"):
        tabulate(by_loss, results)
    results["row@#1"]["test"]["loss"] = 1e50
    assert "| row | 3.33e+49 [" in render_table(tabulate(by_loss, results), "md")


# --- A footnote explains its cell ---------------------------------------------------------------


def marks_in(text):
    return [c for c in text if c in "\u00b9\u00b2\u00b3\u2070\u2074\u2075\u2076\u2077\u2078\u2079"]


def test_a_footnote_on_a_gain_goes_where_no_gain_is_shown():
    values = dict.fromkeys(("base", "a", "b"), 90 + BLOCKS)
    table = planted({**values, "wild": np.array([80.0, 90.0, 97.0])})
    wild = entries(table)["wild"]
    marks = table.marks(wild.row, wild.column)
    assert marks == table.marks(wild.row, wild.column, "gain") != ()
    hidden = render_table(table, "md", show=("top5", "loss"))
    assert marks_in(hidden) == []
    assert not any(note in hidden for note in table.footnotes)
    for shown in (("gain", "loss"), ("verdict", "loss")):
        [line] = [
            x for x in render_table(table, "md", show=shown).splitlines() if x.startswith("| wild")
        ]
        _, _, gain, loss, _ = line.split("|")
        assert marks_in(gain)
        assert not marks_in(loss)


def test_a_baseline_with_a_spread_over_rows_without_any_is_not_inf_times():
    base = np.array([80.0, 90.0, 97.0])
    table = planted({"base": base, "a": np.full(3, 91.0), "b": np.full(3, 92.0)})
    [column] = table.columns
    assert (column.tripped, column.baseline_ratio) == (True, None)
    texts = [text.lower().replace("information", "") for text in every_text(table)]
    assert not any("inf" in text for text in texts)
    [noise] = notes_of(table, "noise.baseline")
    assert noise.values["ratio"] is None
    assert all(noise.text in text for text in noted_texts(table))


def test_nothing_without_a_spread_has_an_interval_in_any_format():
    values = {"base": np.full(3, 90.0), "a": np.full(3, 91.0), "b": 92 + BLOCKS}
    table = planted(values, spread="paired")
    alike = entries(table)["a"]
    assert (alike.accuracy.low, alike.gain.low, alike.verdict) == (None, None, "can't tell")
    assert [same.place for same in notes_of(table, "gain.no-spread")] == [("a", "")]
    for text in every_text(table):
        assert "[91.00, 91.00]" not in text
        assert "[+1.00, +1.00]" not in text


def test_a_column_whose_predictions_lack_says_so_and_how_it_is_judged():
    table = planted(predictions=lambda *run: None)
    assert table.columns[0].judged_by == "one way"
    assert notes_of(table, "metric")[0].values["interval"]["methods"] == ["one way"]
    [lacking] = notes_of(table, "noise.lacking")
    assert lacking.values["reason"] == "seed 0 of base has no predictions.npy"
    assert all(lacking.text in text for text in noted_texts(table))


def test_a_reason_why_images_tell_no_spread_names_the_columns_that_it_is_of():
    """Of all columns it names none, and stands once."""
    plan = make_plan(list(PLANTED), ("S/4", "Ti/4"))
    results = plant(plan, PLANTED)
    reason = "seed 0 of base has no predictions.npy"
    every = tabulate(plan, results, predictions=lambda *run: None)
    [lacking] = notes_of(every, "noise.lacking")
    assert (lacking.values["column"], lacking.values["reason"]) == ("", reason)
    assert every.texts("caption").count(lacking.text) == 1

    def read(run, on, sha256):
        return None if "@S/4#" in run else np.rec.fromarrays([np.zeros(300)], names="rank")

    some = tabulate(plan, results, predictions=read)
    assert [column.judged_by for column in some.columns] == ["one way", "images"]
    [lacking] = notes_of(some, "noise.lacking")
    assert (lacking.values["column"], lacking.values["reason"]) == ("S/4", reason)
    part = choose_part(some, plan, columns="Ti/4")
    assert not any(lacking.text in text for text in part.texts("caption"))


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
def test_a_sweep_crossed_by_words_has_its_contrasts_at_each_value_and_its_looks(here, until):
    """The gain of post is 1 point a doubling at the lower rate, and 2 at the higher, by hand."""
    (here / "sweeps").mkdir()
    (here / "sweeps" / "mine.yaml").write_text(CROSSED + until)
    plan, _ = expand(["mine", "optim.lr=1e-3,3e-3"], store=here / "runs", name="other")
    assert plan.name == "other"
    assert plan.design.seed_counts == ((5, 8) if until else ())
    assert len(plan.columns) == 3 * 2
    noise = np.random.default_rng(1)
    settings = {column.label: column.settings for column in plan.columns}
    results = {}
    for run in plan.runs():
        one = settings[run.cell.column]
        doublings = np.log2(one["model.depth"]) * (run.cell.row == "post")
        gain = {1e-3: 1.0, 3e-3: 2.0}[one["optim.lr"]] * doublings
        results[run.id] = finished((60 + gain) / 100 + 1e-6 * noise.normal())
    found = {
        (block.name, line.column): line.gain.mean
        for block in tabulate(plan, results).blocks
        for line in block.lines
        if block.kind == "contrast"
    }
    assert found == {
        ("deeper", "optim.lr=0.001"): pytest.approx(1, abs=0.01),
        ("deeper", "optim.lr=0.003"): pytest.approx(2, abs=0.01),
        ("deepest", "optim.lr=0.001"): pytest.approx(2, abs=0.01),
        ("deepest", "optim.lr=0.003"): pytest.approx(4, abs=0.01),
    }
