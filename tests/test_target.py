"""A target in the place of a baseline: `analysis.target`."""

import dataclasses
import itertools
import json
import re

import numpy as np
import pytest
from conftest import REPOSITORY
from scipy import stats as oracle
from support.looks import planned
from support.svg import texts
from support.tables import entries, finished, grids, make_plan, notes_of, plant, tabulate, text_of

from ablate.analysis import stats
from ablate.analysis.stats import Method
from ablate.analysis.summary import GOOD_FROM
from ablate.api.tables import Table
from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Column
from ablate.planning.plan import Plan
from ablate.report.formats.parts import fates
from ablate.store import looks
from ablate.store.looks import PastLooks

# Validation loss of a speedrun at four numbers of steps, 20 seeds each, to be below 3.28
# (KellerJordan/modded-nanogpt, pull request 321): means, standard deviations, and its two-sided p.
RECORD = {
    2745: (3.279254, 0.000889, 0.00135),
    2750: (3.278856, 0.000884, 0.000014),
    2755: (3.278449, 0.000887, 2.3e-7),
    2775: (3.276930, 0.000893, 3.6e-12),
}
TARGET = 3.28
ABOVE, BELOW = stats.TARGET
WORDS = ("--row", "method", "--column", "step", "--seed", "seed", "--metric", "loss:less")


def good_from(column):
    return f"{GOOD_FROM}{column} on"


def values_of(mean, sd, n, rng):
    """Make n values with exactly this mean and standard deviation."""
    values = rng.normal(size=n)
    return mean + sd * (values - values.mean()) / values.std(ddof=1)


@pytest.fixture
def record(run, here):
    """Import the losses of the record as one row, and return them by step; `rows`: further rows, by
    what is added to each loss."""

    def bring(steps=(*RECORD,), **rows):
        rng = np.random.default_rng(321)
        by_step = {step: values_of(*RECORD[step][:2], 20, rng) for step in steps}
        lines = ["method,step,seed,loss"]
        for row, shift in {"pr321": 0.0, **rows}.items():
            for step, losses in by_step.items():
                lines += [
                    f"{row},{step},{seed},{loss + shift!r}"
                    for seed, loss in enumerate(losses.tolist())
                ]
        (here / "runs.csv").write_text("\n".join(lines) + "\n")
        run("import", "runs.csv", "--as", "record", *WORDS)
        return by_step

    return bring


def table(run, *words):
    text = run("table", "record", *words, "--format", "json")
    return json.loads(text[text.index("{") :])


def answers(tree):
    """Return (column, verdict) of each row in the block on the first column that holds."""
    lines = [block["lines"] for block in tree["blocks"] if block["kind"] == "sequence"]
    return {line["label"]: (line["column"], line["verdict"]) for line in itertools.chain(*lines)}


# --- One row ------------------------------------------------------------------------------------


def test_a_difference_has_scipys_one_sample_t_at_its_share_of_the_error():
    values = np.random.default_rng(2).normal(3, 1, 7)
    test = oracle.ttest_1samp(values, 2.5)
    low, high = test.confidence_interval(1 - 0.05 / 4)
    difference = stats.target_difference(values, 2.5, Method(contrasts=4))
    assert difference.gain.mean == pytest.approx(values.mean() - 2.5, abs=1e-12)
    assert (difference.gain.low, difference.gain.high) == pytest.approx(
        (low - 2.5, high - 2.5), abs=1e-12
    )
    assert difference.raw_p == pytest.approx(test.pvalue, abs=1e-12)
    assert difference.p == pytest.approx(min(1, 4 * test.pvalue), abs=1e-12)


def test_equal_values_have_no_spread_to_judge_by():
    plan = make_plan(["base", "even"], target=85.0)
    table = tabulate(plan, plant(plan, {"base": [90, 91, 92], "even": [90, 90, 90]}))
    even = entries(table)["even"]
    assert (even.difference.low, even.verdict) == (None, "can't tell")
    assert entries(table)["base"].verdict == ABOVE


def test_two_seeds_have_an_interval_and_no_verdict():
    plan = make_plan(["base"], seeds=2, target=50.0)
    table = tabulate(plan, plant(plan, {"base": [90, 90.1]}))
    base = entries(table)["base"]
    assert base.difference.low < base.difference.mean
    assert base.verdict is None


# --- The record ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "step"), [(0.001, "2750"), (0.05, "2745")])
def test_the_record_is_good_from_its_own_step_on(run, record, alpha, step):
    by_step = record()
    tree = table(run, f"analysis.target={TARGET}", f"analysis.alpha={alpha}")
    assert answers(tree) == {"pr321": (step, good_from(step))}
    for column in tree["columns"]:
        number = int(column["label"])
        [entry] = column["entries"]
        test = oracle.ttest_1samp(by_step[number], TARGET)
        low, high = test.confidence_interval(1 - alpha)
        difference = entry["difference"]
        assert (difference["low"], difference["high"]) == pytest.approx(
            (low - TARGET, high - TARGET), abs=1e-10
        )
        assert entry["p_values"]["raw"] == pytest.approx(test.pvalue, rel=1e-6)
        assert entry["p_values"]["raw"] == pytest.approx(RECORD[number][2], rel=0.04)
        is_below = test.pvalue < alpha
        assert entry["verdict"] == (BELOW if is_below else "can't tell")
        assert (column["contrasts"], difference["n"]) == (1, 20)
    text = run("table", "record", f"analysis.target={TARGET}", f"analysis.alpha={alpha}")
    assert text.count(good_from(step)) == 2  # the sentence, and the line below


def test_rows_share_the_error_and_have_answers_of_their_own(run, record):
    by_step = record(slow=0.0008, late=0.01)
    tree = table(run, f"analysis.target={TARGET}")
    assert [column["contrasts"] for column in tree["columns"]] == [3] * 4
    assert answers(tree) == {
        "pr321": ("2745", good_from("2745")),
        "slow": ("2755", good_from("2755")),
        "late": ("2775", ABOVE),
    }
    [entry] = [e for e in tree["columns"][1]["entries"] if e["row"] == "slow"]
    test = oracle.ttest_1samp(by_step[2750] + 0.0008, TARGET)
    low, high = test.confidence_interval(1 - 0.05 / 3)
    assert entry["difference"]["low"] == pytest.approx(low - TARGET, abs=1e-9)
    assert entry["difference"]["high"] == pytest.approx(high - TARGET, abs=1e-9)


def test_a_sheet_of_one_row_and_column_is_a_look(run, record):
    record(steps=(2750,))
    first = table(run, f"analysis.target={TARGET}")
    assert answers(first) == {}
    assert [note for note in first["notes"] if note["key"].startswith("looks")] == []
    later = table(run, "analysis.target=3.279")
    [changed] = [note for note in later["notes"] if note["key"] == "looks.changed"]
    [change] = changed["values"]["changes"]
    assert change.split(": ") == ["analysis.target", "3.28 -> 3.279"]
    assert [column["contrasts"] for column in later["columns"]] == [2]
    [among] = [note for note in later["notes"] if note["key"] == "looks.among"]
    assert among["values"]["noun"] == "comparison"
    assert (among["values"]["sweeps"], among["values"]["compared"]) == ([""], 2)
    withheld = table(run, "analysis.target=3.279", "--strict")
    assert withheld["columns"][0]["entries"][0]["verdict"] is None


def test_the_example_of_the_page_is_scipys():
    page = (REPOSITORY / "docs" / "statistics.md").read_text()
    example = page.partition("### A mean against a target")[2].partition("###")[0]
    rows = [
        line.strip("| ").split(" | ") for line in example.splitlines() if line.startswith("| 27")
    ]
    assert [(int(row[0]), float(row[1]), float(row[2])) for row in rows] == [
        (step, mean, sd) for step, (mean, sd, _) in RECORD.items()
    ]
    for _, mean, sd, _, _, interval, _ in rows:
        low, high = oracle.t.interval(1 - 0.001, 19, float(mean) - TARGET, float(sd) / 20**0.5)
        printed = [float(end) for end in interval.strip("[]").split(", ")]
        assert printed == [round(low, 5), round(high, 5)]


# --- Tables -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "target", "bold"),
    [("top1", 90.0, {"high": True, "low": False}), ("loss", 0.1, {"high": True, "low": False})],
)
def test_the_better_side_is_bold(metric, target, bold):
    plan = make_plan(["high", "low"], metric=metric, target=target)
    table = tabulate(plan, plant(plan, {"high": [95, 95.1, 95.3], "low": [85, 85.1, 85.3]}))
    above = {"top1": "high", "loss": "low"}[metric]
    for row, entry in entries(table).items():
        side = "above" if row == above else "below"
        assert entry.verdict == f"{side} the target"
        assert (entry.difference.mean > 0) == (side == "above")
        assert entry.gain is None
    cells = {
        row: f"**{'' if d.mean < 0 else '+'}"
        for row, d in ((r, e.difference) for r, e in entries(table).items())
    }
    lines = text_of(table, "md").splitlines()
    for row, is_bold in bold.items():
        [line] = [line for line in lines if line.startswith(f"| {row} ")]
        assert (cells[row] in line) == is_bold


def test_the_columns_of_a_table_are_mean_difference_n_and_verdict():
    plan = make_plan(["base", "a"], target=90.0)
    table = tabulate(plan, plant(plan, {"base": [95, 95.1, 95.3], "a": [89, 90, 91.2]}))
    [grid] = grids(text_of(table, "md"))
    assert [heading.partition(" [")[0] for heading in grid[0]] == [
        "variant", "top1 %", "mean minus 90", "n", "verdict",
    ]  # fmt: skip
    assert [row[-1] for row in grid[1:]] == [ABOVE, "can't tell"]


def test_a_diverged_run_costs_its_row_mean_and_verdict_and_no_other_row():
    plan = make_plan(["base", "a"], seeds=4, target=90.0)
    results = plant(plan, {"base": [95, 95.1, 95.3, 95.2], "a": [95, 95.1, 95.3, 95.2]})
    results["base@#1"] = {"status": "diverged", "step": 7}
    table = tabulate(plan, results)
    base, other = (entries(table)[row] for row in ("base", "a"))
    assert (base.accuracy, base.difference, base.verdict) == (None, None, None)
    [note] = notes_of(table, "not-reached")
    assert note.values == {
        **{"diverged": [{"seed": 1, "step": 7}], "never": []},
        **{"planned": 4, "has_side": True},
    }
    [grid] = grids(text_of(table, "md"))
    assert [cell.rstrip("¹") for cell in grid[1]] == ["base", "-", "-", "0", "1/4 not reached"]
    assert other.verdict == ABOVE
    scored = tabulate(
        dataclasses.replace(plan, analysis=Analysis(target=90.0, diverged="chance")), results
    )
    assert entries(scored)["base"].difference.n == 4
    assert entries(scored)["base"].verdict == "can't tell"


HOURS = ("--row", "method", "--column", "step", "--seed", "seed", "--metric", "hours:less:h")


@pytest.fixture
def hours(here):
    """Write a sheet of hours to a target. One run of the first row never reached it, and the row
    lacks the last column."""
    lines = [f"adam,{step},{seed},{5 - step + 0.1 * seed}" for step in (1, 2) for seed in range(4)]
    lines += [f"muon,1,{seed},{value}" for seed, value in enumerate((2.1, "inf", 2.2, 2.3))]
    (here / "hours.csv").write_text("\n".join(["method,step,seed,hours", *lines[::-1]]) + "\n")


def test_a_sheet_with_a_target_needs_no_baseline_and_counts_the_runs_that_missed_it(run, hours):
    bring = ("import", "hours.csv", "--as", "record", *HOURS)
    assert "--target" in run(*bring, code=2)  # the first row lacks a column
    run(*bring, "--target", "5.8")
    tree = table(run)
    assert tree["target"] == 5.8
    assert answers(tree) == {"adam": ("1", good_from("1"))}
    [muon] = [e for c in tree["columns"] for e in c["entries"] if e["row"] == "muon"]
    assert (muon["accuracy"], muon["verdict"]) == (None, None)
    text = run("table", "record")
    assert "1/4 not reached" in text
    assert "2.2" not in text  # the mean of the three others
    run(*bring)  # again: the target stays
    assert table(run)["target"] == 5.8
    line = run("table", "record", "analysis.target=null", code=2)
    assert [part for part in ("analysis.target", "'2'") if part not in line] == []
    for kind in ("gain", "forest"):
        line = run("plot", "record", kind, code=2)
        assert "analysis.target" in line


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--target", "inf"), "expected a finite number"),
        (("--target", "5", "--baseline", "adam"), "--baseline adam"),
    ],
)
def test_a_mistake_at_import_is_one_line(run, hours, words, part):
    line = run("import", "hours.csv", "--as", "record", *HOURS, *words, code=2)
    assert part in line
    assert len(line.splitlines()) == 1


def test_a_threshold_that_was_never_reached_is_counted():
    plan = make_plan(["base", "a"], seeds=4, target=90.0)
    results = plant(plan, {"base": [95, 95.1, 95.3, 95.2], "a": [95, 95.1, 95.3, 95.2]})
    table = tabulate(plan, results)
    entry = dataclasses.replace(entries(table)["a"], accuracy=None, never=(0, 2), diverged=(1,))
    assert [*fates(entry, table)] == ["3/4 not reached"]
    without = dataclasses.replace(table, target=None)
    assert [*fates(entry, without)] == ["1/4 diverged"]


def test_an_unfinished_table_has_means_alone():
    plan = make_plan(["base", "a"], target=90.0)
    results = plant(plan, {"base": [95, 95.1, 95.3], "a": [95, 95.1, 95.3]})
    results["a@#2"] = None
    table = tabulate(plan, results)
    assert not table.complete
    assert [(e.difference.low, e.verdict, e.p_values.raw) for e in table.entries] == [
        (None,) * 3
    ] * 2


def test_every_format_and_the_report_have_the_difference(run, record, here):
    record()
    words = (f"analysis.target={TARGET}",)
    exact = table(run, *words)["columns"][1]["entries"][0]["difference"]["low"]
    tidy = run("table", "record", *words, "--format", "tidy")
    assert f"record,2750,pr321,,difference.low,{exact!r}," in tidy
    assert f"record,2745,pr321,,sequence.verdict,,{good_from(2745)}" in tidy
    csv = run("table", "record", *words, "--format", "csv")
    assert csv.splitlines()[0].split(",")[6:9] == [
        "difference",
        "difference_low",
        "difference_high",
    ]
    assert repr(exact) in csv
    for form in ("md", "latex", "html"):
        text = run("table", "record", *words, "--format", form)
        assert [part for part in (f"{-exact:.4f}", BELOW) if part not in text] == [], form
    run("report", "record", *words)
    page = (here / "record.html").read_text()
    assert good_from(2745) in page
    assert "No row has" not in page


def test_verify_recomputes_a_target_of_a_bundle(run, record):
    record()
    run("export", "record", f"analysis.target={TARGET}", "handed")
    run("verify", "handed")
    again = run("table", "--from", "handed", "--format", "json")
    assert answers(json.loads(again[again.index("{") :])) == {"pr321": ("2745", good_from("2745"))}


def test_a_frame_has_differences_in_the_place_of_gains():
    plan = make_plan(["base", "a"], target=90.0)
    table = tabulate(plan, plant(plan, {"base": [95, 95.1, 95.3], "a": [89, 90, 91.2]}))
    frame = Table(table).to_pandas()
    assert [*frame.difference] == [entry.difference.mean for entry in table.entries]
    half = oracle.t.ppf(1 - 0.05 / 4, frame.difference_df) * frame.difference_sd / 3**0.5
    assert [*frame.difference_high - frame.difference] == pytest.approx([*half])
    assert [*frame.difference_n] == [3, 3]


def test_rows_are_chosen_and_sorted_without_a_baseline(run, record):
    record(slow=0.0008, fast=-0.0008)
    tree = table(run, f"analysis.target={TARGET}", "--sort", "gain")
    assert [row["label"] for row in tree["rows"]] == ["fast", "pr321", "slow"]
    tree = table(run, f"analysis.target={TARGET}", "--rows", "slow,fast")
    assert [row["label"] for row in tree["rows"]] == ["slow", "fast"]


# --- From which column on -----------------------------------------------------------------------


def ordered(numbers, means, target=90.0, rows=("a",)):
    """Tabulate rows whose columns stand for numbers. `means`: of a row in each column."""
    labels = [str(number) for number in numbers]
    plan = make_plan(list(rows), labels, seeds=3, target=target)
    columns = tuple(Column(str(n), {"train.steps": n}) for n in numbers)
    plan = dataclasses.replace(plan, columns=columns)
    noise = [-0.1, 0.0, 0.1]
    results = {
        run: finished((mean + noise[seed]) / 100)
        for cell in plan.cells
        for mean in [means[labels.index(cell.column)]]
        for seed, run in cell.ids.items()
    }
    return tabulate(plan, results)


def block_lines(table):
    return [
        (line.column, line.verdict)
        for block in table.blocks
        if block.kind == "sequence"
        for line in block.lines
    ]


@pytest.mark.parametrize(
    ("numbers", "means", "column", "verdict"),
    [
        ((1, 2, 3), (91, 92, 93), "train.steps=1", good_from("train.steps=1")),
        ((1, 2, 3), (91, 90, 93), "train.steps=3", good_from("train.steps=3")),
        ((1, 2, 3), (91, 92, 90), "train.steps=3", "can't tell"),
        ((1, 2, 3), (91, 92, 80), "train.steps=3", BELOW),
        ((30, 4, 200), (91, 80, 91), "train.steps=30", good_from("train.steps=30")),
    ],
)
def test_the_sequence_goes_back_from_the_largest_number_until_a_column_fails(
    numbers, means, column, verdict
):
    assert block_lines(ordered(numbers, means)) == [(column, verdict)]


def test_numbers_of_a_sheet_are_an_axis_named_as_there(run, here):
    depths = ("1", "2", "12", "64")
    cells = itertools.product("ab", reversed(depths), (90.0, 90.2))
    lines = ["m,depth,acc", *(f"{row},{depth},{value}" for row, depth, value in cells)]
    sheet = "\n".join(lines) + "\n"
    for name, text in (("deep", sheet), ("twice", sheet.replace(",2,", ",1.0,"))):
        (here / f"{name}.csv").write_text(text)
        keys = ("--row", "m", "--column", "depth", "--metric", "acc:more:%", "--as", name)
        run("import", f"{name}.csv", *keys)
    run("plot", "deep", "across", "--out", "deep.svg")
    drawn = texts((here / "deep.svg").read_text())
    assert [text for text in drawn if text in depths] == [*depths]
    assert "depth" in drawn
    assert "number" in run("plot", "twice", "across", code=2)  # two columns at one place


def test_columns_without_an_order_have_no_sequence():
    plan = make_plan(["a"], ("pets", "cars"), target=90.0)
    table = tabulate(plan, plant(plan, {"a": [95, 95.1, 95.3]}))
    assert {entry.verdict for entry in table.entries} == {ABOVE}
    assert block_lines(table) == []
    mixed = [Column("d", {"model.depth": 2}), Column("e", {"train.epochs": 3})]
    plan = dataclasses.replace(make_plan(["a"], ("d", "e"), target=90.0), columns=tuple(mixed))
    assert block_lines(tabulate(plan, plant(plan, {"a": [95, 95.1, 95.3]}))) == []


def test_a_row_without_a_mean_in_the_last_column_is_named_in_the_first_sentence(run, here):
    """The best row, too: what is not there is no verdict."""
    lines = ["method,step,seed,loss"]
    for method, losses in {"A": (3.30, 3.25, 3.24), "B": (3.2, 3.1), "C": (3.3, 3.2, 3.1)}.items():
        for step, loss in zip((400, 500, 600), losses, strict=False):
            for seed in range(4):
                value = "nan" if (method, step, seed) == ("C", 600, 3) else loss + seed / 1000
                lines.append(f"{method},{step},{seed},{value}")
    (here / "s.csv").write_text("\n".join(lines) + "\n")
    run("import", "s.csv", *WORDS, "--target", "3.28")
    headline = run("table", "s").splitlines()[2]
    assert {*re.findall(r"\b[ABC]\b", headline)} == {*"ABC"}


# --- Looks --------------------------------------------------------------------------------------


def with_target(target, rows=("b", "x", "y"), **analysis):
    return dataclasses.replace(planned(rows), analysis=Analysis(target=target, **analysis))


def test_plans_and_looks_without_a_target_stay_as_they_were():
    plan = planned()
    assert "target" not in looks.look(plan).event()["analysis"]
    assert "target" not in json.loads(plan.to_bytes())["analysis"]
    read_back = Plan.from_tree(json.loads(with_target(3.28).to_bytes()))
    assert read_back.analysis.target == 3.28
    assert Plan.from_tree(json.loads(plan.to_bytes())).analysis.target is None


def test_every_row_counts_in_a_look_at_a_target():
    assert PastLooks([], looks.look(with_target(3.28))).contrasts("") == 3
    assert PastLooks([], looks.look(with_target(3.28, rows=("b",)))).contrasts("") == 1
    other_target = looks.look(with_target(3.0))
    assert PastLooks([other_target], looks.look(with_target(3.28))).contrasts("") == 6
    assert PastLooks([looks.look(with_target(3.28))] * 2, other_target).contrasts("") == 6


def test_gains_and_targets_on_the_same_runs_are_one_family():
    gains = looks.look(planned())
    target = looks.look(with_target(3.28))
    assert PastLooks([gains], target).contrasts("") == 5
    assert PastLooks([target], gains).contrasts("") == 5
    assert PastLooks([target], gains).count_over_baseline("")[1] == []
    assert PastLooks([gains], looks.look(with_target(3.28, rows=("b",)))).contrasts("") == 3


def test_a_table_after_gains_is_judged_with_them(run, record):
    record(slow=0.0008)
    table(run)
    tree = table(run, f"analysis.target={TARGET}")
    assert [column["contrasts"] for column in tree["columns"]] == [3] * 4
    [changed] = [note for note in tree["notes"] if note["key"] == "looks.changed"]
    assert changed["values"]["changes"] == [f"analysis.target: none -> {TARGET}"]


# --- Mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["analysis.target=nan"], ["analysis.target", "finite"]),
        (["analysis.target=low"], ["analysis.target", "'low'"]),
        (["analysis.target=3", "--contrast", "slow - fast"], ["analysis.target", "--contrast"]),
    ],
)
def test_a_mistake_is_one_line_with_its_remedy(run, record, words, parts):
    record(slow=0.0008, fast=-0.0008)
    line = run("table", "record", *words, code=2)
    assert len(line.splitlines()) == 1
    assert [part for part in parts if part not in line] == []


FILE = """\
base: {data: digits, model.arch: mu/4, train.epochs: 1}
variants: [{none: {}}, {post: {block.attn: post}}]
analysis: {target: 94}
%s
"""


def test_a_sweep_file_declares_a_target(run, here):
    (here / "s.yaml").write_text(FILE % "seeds: 3")
    run("plan", "s.yaml")
    (here / "t.yaml").write_text(FILE % "until: {looks: [5, 8]}")
    line = run("plan", "t.yaml", code=2)
    assert [part for part in ("analysis.target", "until") if part not in line] == []


def test_margins_and_contrasts_of_a_sweep_are_not_used_and_not_counted():
    declared = {"late": {"from": "a", "to": "b"}}
    plan = make_plan(["base", "a", "b"], target=90.0, margin=50.0, contrasts=declared)
    same = [90.1, 89.9, 90.0]
    table = tabulate(plan, plant(plan, {"base": same, "a": same, "b": same}))
    assert [entry.verdict for entry in table.entries] == ["can't tell"] * 3
    assert (table.blocks, table.columns[0].contrasts) == ((), 3)
    [note] = [note for note in table.notes if note.key == "verdicts.target"]
    assert note.values["unused"] == ["analysis.margin", "analysis.contrasts"]
    other = with_target(3.28, margin=1.0, contrasts={"late": {"from": "x", "to": "y"}})
    assert PastLooks([], looks.look(other)).contrasts("") == 3


# --- Errors -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 5])
def test_the_intervals_of_all_rows_hold_together(rows):
    """Rows whose true mean is the target; the bound is .05 and three standard errors of 4,000
    tables, and a family this small uses most of its error."""
    rng, tables, errors = np.random.default_rng(4), 4000, 0
    for y in rng.normal(3.28, 0.001, (tables, rows, 5)):
        differences = [stats.target_difference(x, 3.28, Method(contrasts=rows)) for x in y]
        errors += any(not d.gain.low <= 0 <= d.gain.high for d in differences)
    spread = (0.05 * 0.95 / tables) ** 0.5
    assert abs(errors / tables - (1 - (1 - 0.05 / rows) ** rows)) < 3 * spread


@pytest.mark.slow
def test_the_first_column_that_holds_is_right_in_all_but_a_share_of_tables():
    """Three rows whose means are at the target in two columns, and above it in two later ones:
    naming one of the first two is false. One side of two has half of the error."""
    rng, tables, errors = np.random.default_rng(5), 1500, 0
    numbers, rows = (1, 2, 3, 4), ("a", "b", "c")
    plan = make_plan(list(rows), [str(n) for n in numbers], seeds=5, target=90.0)
    columns = tuple(Column(str(n), {"train.steps": n}) for n in numbers)
    plan = dataclasses.replace(plan, columns=columns)
    for _ in range(tables):
        shared = rng.normal(0, 0.3, (3, 5))
        results = {
            run: finished((90 + 5 * (c >= 2) + shared[r, s] + rng.normal(0, 0.1)) / 100)
            for c, column in enumerate(plan.columns)
            for r, row in enumerate(rows)
            for s, run in plan.cell(row, column.label).ids.items()
        }
        table = tabulate(plan, results)
        errors += any(
            column in ("train.steps=1", "train.steps=2") for column, _ in block_lines(table)
        )
    bound = 0.05 / 2
    assert 0.01 < errors / tables < bound + 3 * (bound * (1 - bound) / tables) ** 0.5


def test_a_note_says_why_equal_values_have_no_interval():
    plan = make_plan(["even"], target=85.0)
    table = tabulate(plan, plant(plan, {"even": [90, 90, 90]}))
    assert notes_of(table, "gain.no-spread")
