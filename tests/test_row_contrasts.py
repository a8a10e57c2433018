"""Contrasts between two rows: `--contrast "A - B"` and `analysis.contrasts` of a sweep file."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from conftest import REPOSITORY
from scipy import stats as oracle
from simulation import contrasts_error, resampled, simulate
from support.looks import planned
from support.tables import make_plan, notes_of, plant, tabulate, text_of

import ablate
from ablate.analysis import stats
from ablate.analysis.effects import gain_sign
from ablate.analysis.judging import method_of
from ablate.analysis.stats import Flips, ImageFlips, Method
from ablate.audit.bundle import Bundle
from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Row
from ablate.planning.changes import Changes
from ablate.planning.design import Imported, Looks
from ablate.planning.expand import plan_from_words
from ablate.run.spec import RunSpec
from ablate.shared.errors import UserError
from ablate.store import looks
from ablate.store.look_differences import look_changes
from ablate.store.looks import PastLooks

A_MINUS_B = {"a - b": {"from": "b", "to": "a"}}
SHEET = {"base": 0.0, "iclp": 2.0, "random": 0.4, "half - way": 1.0}
WORDS = ("--row", "method", "--column", "data", "--metric", "acc:more:%", "--baseline", "base")


def results(seeds=5, columns=("pets", "cars")):
    """Accuracies by (row, column), over seeds that the rows share."""
    rng = np.random.default_rng(1)
    values = {}
    for column in columns:
        shared = rng.normal(0, 0.3, seeds)
        for row, gain in SHEET.items():
            values[row, column] = np.round(90 + gain + shared + rng.normal(0, 0.15, seeds), 2)
    return values


@pytest.fixture
def sheet(run, here):
    """Import a sheet of `results`, with seeds unless `--seed` is left out; return the values."""

    def bring(*words, **options):
        values = results(**options)
        lines = ["method,data,seed,acc"]
        for (row, column), accuracies in values.items():
            lines += [f"{row},{column},{s},{value}" for s, value in enumerate(accuracies)]
        (here / "runs.csv").write_text("\n".join(lines) + "\n")
        run("import", "runs.csv", "--as", "paper2", *WORDS, *words)
        return values

    return bring


def table(run, *words):
    text = run("table", "paper2", *words, "--format", "json")
    return json.loads(text[text.index("{") :])


def contrasts(tree):
    """Return the lines of the contrasts, by (label, column)."""
    lines = [block["lines"] for block in tree["blocks"] if block["kind"] == "row_contrast"]
    return {(line["label"], line["column"]): line for line in itertools.chain(*lines)}


def contrast_gain(y, rows, method, *arguments, **options):
    [gain] = stats.contrast_gains(y, [rows], method, *arguments, **options)
    return gain


# --- One contrast -------------------------------------------------------------------------------


def test_a_paired_contrast_is_scipys_paired_t_at_its_share_of_the_error():
    y = np.random.default_rng(2).normal(size=(4, 6))
    found = contrast_gain(y, (1, 3), Method("paired", contrasts=5))
    expected = oracle.ttest_rel(y[1], y[3])
    low, high = expected.confidence_interval(1 - 0.05 / 5)
    assert (found.gain.low, found.gain.high) == pytest.approx((low, high), abs=1e-12)
    assert found.raw_p == pytest.approx(expected.pvalue, abs=1e-12)
    assert found.p == pytest.approx(min(1, 5 * expected.pvalue), abs=1e-12)


def test_without_seeds_a_paired_contrast_is_welchs():
    y = np.random.default_rng(2).normal(size=(3, 6))
    found = contrast_gain(y, (1, 2), Method("paired", contrasts=3, blocks=False))
    low, high = oracle.ttest_ind(y[1], y[2], equal_var=False).confidence_interval(1 - 0.05 / 3)
    assert (found.gain.low, found.gain.high) == pytest.approx((low, high), rel=1e-4)


@pytest.mark.whole
@pytest.mark.parametrize("spread", ["one way", "images"])
def test_a_contrast_is_the_gain_over_its_second_row_by_the_wider_of_both_ways(spread):
    rows = ["digits.plain70"] * 3 + ["digits.short70"] * 2
    tables = next(resampled(np.random.default_rng(3), rows, 5, 30))
    for y, right in zip(tables.y, tables.right, strict=True):
        flips, method = Flips((right,)), Method(spread, contrasts=6)
        for a, b in itertools.combinations(range(5), 2):
            found = contrast_gain(y, (a, b), method, flips=flips)
            over = stats.column_gains(y, b, method, flips=flips).rows[a].gain
            under = stats.column_gains(y, a, method, flips=flips).rows[b].gain
            assert found.gain.mean == over.mean
            half = max(over.high - over.low, under.high - under.low) / 2
            assert (found.gain.high - found.gain.low) / 2 == pytest.approx(half, rel=1e-12)
            turned = contrast_gain(y, (b, a), method, flips=flips).gain
            assert (turned.mean, turned.low, turned.high) == pytest.approx(
                (-found.gain.mean, -found.gain.high, -found.gain.low), abs=1e-12
            )


def test_a_row_with_an_unstable_run_has_a_contrast_without_interval():
    y = np.random.default_rng(2).normal(size=(4, 6))
    for unstable in (1, 2):
        shaky = np.arange(4) == unstable
        assert contrast_gain(y, (1, 2), Method(), shaky).gain.low is None
    kept = contrast_gain(y, (1, 2), Method(), np.arange(4) == 0)  # the baseline's is no part
    assert kept.gain.low < kept.gain.mean < kept.gain.high


def test_the_example_of_the_page_is_scipys():
    page = (REPOSITORY / "docs" / "statistics.md").read_text()
    example = page.partition("### Contrasts between two rows")[2].partition("###")[0]
    differences = [
        float(x) for x in example.partition("minus random | ")[2].split(" |")[0].split(",")
    ]
    low, high = oracle.ttest_1samp(differences, 0).confidence_interval(1 - 0.05 / 4)
    assert f"[{low:+.2f}, {high:+.2f}]" in example


# --- Errors -------------------------------------------------------------------------------------

PLAIN, SHORT = "digits.plain70", "digits.short70"
CASES = {"alike": [PLAIN] * 5, "half short": [PLAIN] * 3 + [SHORT] * 2}


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize("case", CASES)
def test_gains_and_all_contrasts_keep_the_family_wise_error(case, n):
    """Four gains and the six contrasts of four variants; the bound is .05 and three standard errors
    of 1,000 tables."""
    error = contrasts_error(resampled(np.random.default_rng(4), CASES[case], n, 1000), "images")
    assert error < 0.05 + 3 * (0.05 * 0.95 / 1000) ** 0.5


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_without_images_gains_and_contrasts_keep_the_family_wise_error(correlation):
    y = simulate(np.random.default_rng(5), 5, 5, correlation, draws=4000)
    bound = 0.05 + 3 * (0.05 * 0.95 / 4000) ** 0.5
    assert contrasts_error([y], "one way") < bound
    assert contrasts_error([y], "paired") < bound
    # The six contrasts at the share of four gains alone would err more often than that.
    assert contrasts_error([y], "paired", contrasts=4) > 0.06 or correlation


def test_the_simulation_judges_as_a_table_does():
    y = simulate(np.random.default_rng(6), 4, 5, draws=40)
    method = Method(contrasts=6)
    share = [
        any(
            gain.gain.low > 0 or gain.gain.high < 0
            for gain in [
                *stats.column_gains(one, 0, method).rows[1:],
                *(contrast_gain(one, ab, method) for ab in ((1, 2), (1, 3), (2, 3))),
            ]
        )
        for one in y
    ]
    assert contrasts_error([y], "one way") == np.mean(share)


# --- Tables -------------------------------------------------------------------------------------


def test_a_contrast_joins_the_family_of_its_column(run, sheet):
    values = sheet("--seed", "seed")
    tree = table(run, "--contrast", "iclp - random", "analysis.spread=paired")
    assert [column["contrasts"] for column in tree["columns"]] == [4, 4]
    for column in ("pets", "cars"):
        line = contrasts(tree)["iclp - random", column]
        test = oracle.ttest_rel(values["iclp", column], values["random", column])
        low, high = test.confidence_interval(1 - 0.05 / 4)
        got = line["gain"]
        assert (got["low"], got["high"]) == pytest.approx((low, high), abs=1e-9)
        assert (got["n"], line["verdict"]) == (5, "better")
        gain = next(
            e["gain"]
            for c in tree["columns"]
            for e in c["entries"]
            if (e["row"], c["label"]) == ("iclp", column)
        )
        test = oracle.ttest_rel(values["iclp", column], values["base", column])
        low, high = test.confidence_interval(1 - 0.05 / 4)
        assert (gain["low"], gain["high"]) == pytest.approx((low, high), abs=1e-9)


def test_a_sheet_without_seeds_has_contrasts(run, sheet):
    values = sheet()
    tree = table(run, "--contrast", "half - way - random", "analysis.spread=paired")
    got = contrasts(tree)["half - way - random", "cars"]["gain"]
    samples = values["half - way", "cars"], values["random", "cars"]
    test = oracle.ttest_ind(*samples, equal_var=False)
    low, high = test.confidence_interval(1 - 0.05 / 4)
    assert (got["low"], got["high"]) == pytest.approx((low, high), rel=1e-4)


def test_a_smaller_metric_is_better_also_in_a_contrast():
    plan = make_plan(["base", "a", "b"], metric="loss", contrasts=A_MINUS_B)
    values = {
        "base": [50.0, 51, 52],
        "a": [70.0, 71, 72.2],
        "b": [60.0, 61, 62.1],
    }  # loss: 1 - top1
    block = tabulate(plan, plant(plan, values)).blocks[0]
    assert block.lines[0].gain.mean == pytest.approx(0.1, abs=0.001)
    assert block.lines[0].verdict == "better"


@pytest.mark.parametrize(("seeded", "runs"), [(True, 5), (False, 8)])
def test_a_contrast_with_more_spread_than_other_rows_is_not_said_to_be_judged_by_images(
    seeded, runs
):
    rows = ["base", "a", "b", "c", "d", "e"]
    plan = make_plan(rows, seeds=runs, metric="loss", contrasts=A_MINUS_B)
    plan = plan if seeded else dataclasses.replace(plan, design=Imported(False, ()))
    rng = np.random.default_rng(0)
    values = {row: 90 + rng.normal(0, 1 if row == "b" else 0.1, runs) for row in rows}
    table = tabulate(plan, plant(plan, values))
    [block] = [block for block in table.blocks if block.kind == "row_contrast"]
    assert "a - b" in block.basis
    assert plan.task.examples not in block.basis
    assert ("paired" in block.basis, "Welch" in block.basis) == (seeded, not seeded)


@pytest.mark.parametrize("metric", ["top1", "loss"])
def test_a_note_states_the_sign_of_differences_where_less_is_better(metric):
    """Of contrasts between rows and of main effects, whose words alone have the other sign."""
    compared = make_plan(["none", "a", "b", "all"], metric=metric, contrasts=A_MINUS_B)
    cells = {"none": (), "a": ("a",), "b": ("b",), "all": ("a", "b")}
    changes = Changes(("a", "b"), "factorial", cells)
    crossed = dataclasses.replace(make_plan([*cells], metric=metric), changes=changes)
    assert bool(gain_sign(compared)) == (metric == "loss")
    values = {"none": [50.0, 51, 52], "a": [60, 61, 62.1], "b": [70, 71, 72.2], "all": [80] * 3}
    for plan in (compared, crossed):
        block = tabulate(plan, plant(plan, values)).blocks[0]
        assert block.note.endswith(("without", "above")[plan is compared] + gain_sign(plan))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("iclp - rand", ["got 'rand'", "mean 'random'?"]),
        ("iclp - iclp", ["minus itself is"]),
        ("iclp-random", ["expected 'ROW - ROW'", "got 'iclp-random'"]),
        ("base - iclp", ["is the baseline", "gain of iclp"]),
    ],
)
def test_a_mistake_is_one_line_with_its_remedy(run, sheet, text, parts):
    sheet("--seed", "seed")
    line = run("table", "paper2", "--contrast", text, code=2)
    assert len(line.splitlines()) == 1
    assert [part for part in ["--contrast", *parts] if part not in line] == []


def test_the_same_two_rows_are_compared_once(run, sheet):
    sheet("--seed", "seed")
    twice = ("--contrast", "iclp - random")
    assert len(contrasts(table(run, *twice, *twice))) == 2  # a line for each column
    line = run("table", "paper2", *twice, "--contrast", "random - iclp", code=2)
    assert "again; remove one" in line


def test_a_part_of_a_table_has_the_contrasts_whose_rows_it_shows(run, sheet):
    sheet("--seed", "seed")
    words = ("--contrast", "iclp - random", "--contrast", "half - way - random")
    whole = table(run, *words)
    left_out = []

    def part(*options):
        tree = table(run, *words, *options)
        left_out.append('"part.blocks"' in json.dumps(tree["caption"]))
        lines = contrasts(tree)
        assert {key: contrasts(whole)[key] for key in lines} == lines
        return {*lines}

    first, second = "iclp - random", "half - way - random"
    assert part("--rows", "iclp,random") == {(first, "pets"), (first, "cars")}
    assert part("--columns", "cars") == {(first, "cars"), (second, "cars")}
    assert part("--rows", "random,half - way", "--columns", "pets") == {(second, "pets")}
    assert part("--rows", "iclp,half - way") == set()
    assert part("--sort", "gain") == {*contrasts(whole)}
    assert left_out == [True, True, True, True, False]  # the average needs all columns
    assert contrasts(whole)[second, "pets"]["between"] == ["half - way", "random"]


def test_every_format_and_the_report_have_contrasts(run, sheet, here):
    sheet("--seed", "seed")
    words = ("--contrast", "iclp - random")
    exact = contrasts(table(run, *words))["iclp - random", "cars"]["gain"]["low"]
    tidy = run("table", "paper2", *words, "--format", "tidy")
    assert f"paper2,cars,iclp - random,,row_contrast.low,{exact}," in tidy
    printed = dict.fromkeys(("md", "latex", "html"), f"{exact:+.2f}") | {"csv": f"{exact}"}
    for form, low in printed.items():
        text = run("table", "paper2", *words, "--format", form)
        assert [part for part in ("iclp - random", low) if part not in text] == [], form
    run("report", "paper2", *words)
    assert "iclp - random" in (here / "paper2.html").read_text()


@pytest.mark.whole
def test_verify_recomputes_the_contrasts_of_a_bundle(run, sheet, here):
    """Also those of somebody who edited a number, and knows of hashes."""
    sheet("--seed", "seed")
    run("export", "paper2", "handed", "--contrast", "iclp - random")
    run("verify", "handed")
    tidy = here / "handed" / "table.tidy.csv"
    lines = tidy.read_text().splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if "row_contrast.low" in line)
    lines[place] = lines[place].rsplit(",", 2)[0] + ",0.123,\n"
    tidy.write_text("".join(lines))
    Bundle(here / "handed").write_manifest()
    assert "table.tidy.csv: differs" in run("verify", "handed", code=1)


def test_an_export_keeps_its_comparisons(run, sheet):
    sheet("--seed", "seed")
    run("export", "paper2", "handed")
    line = run("table", "--from", "handed", "--contrast", "iclp - random", code=2)
    assert "--contrast" in line


# --- Looks --------------------------------------------------------------------------------------


def test_a_contrast_that_was_read_counts_in_later_tables_and_is_named(run, sheet):
    sheet("--seed", "seed")
    run("table", "paper2")
    added = table(run, "--contrast", "iclp - random")
    changed = next(note for note in added["notes"] if note["key"] == "looks.changed")
    assert changed["values"]["changes"][0].split(": ") == ["contrasts", "+(iclp - random)"]
    assert changed["values"]["known_error"] == "table"
    plain = table(run)
    assert [column["contrasts"] for column in plain["columns"]] == [4, 4]
    among = next(note for note in plain["notes"] if note["key"] == "looks.among")
    assert among["values"] == {
        **{"columns": [], "sweeps": [""], "noun": "comparison"},
        **{"compared": 4, "contrasts": 4},
    }
    withheld = table(run, "--contrast", "random - half - way", "--strict")
    assert {line["verdict"] for line in contrasts(withheld).values()} == {None}


def test_a_contrast_counts_once_whichever_way_round():
    def look(contrasts):
        plan = planned(("base", "a", "b"))
        return looks.look(dataclasses.replace(plan, analysis=Analysis(contrasts=contrasts)))

    past = [look(A_MINUS_B), look({"b - a": {"from": "a", "to": "b"}})]
    assert PastLooks(past, look({})).contrasts("") == 3
    assert PastLooks([], look({})).contrasts("") == 2
    assert PastLooks(past, look({})).count_over_baseline("") == (2, [])


def test_at_looks_a_contrast_is_judged_at_each_look_that_both_rows_have():
    """Rows that stop at the first look are compared there, at its boundary; a decided contrast
    keeps the look that decided it."""
    plan = make_plan(["base", "a", "b"], seeds=8, contrasts=A_MINUS_B)
    rng = np.random.default_rng(7)
    noise = rng.normal(0, 0.2, (3, 8))
    plan = dataclasses.replace(plan, design=Looks((5, 8)))
    values = {
        "base": 80 + noise[0],
        "a": 85 + noise[1],
        "b": 83 + noise[2],
    }
    table = tabulate(plan, plant(plan, values))
    line = next(block for block in table.blocks if block.kind == "row_contrast").lines[0]
    y = np.array([[100 * round(v / 100, 12) for v in values[row]] for row in ("base", "a", "b")])
    method = stats.Sequential((5, 8), spread="paired", contrasts=3).method_at(0)
    expected = contrast_gain(y[:, :5], (1, 2), method).gain
    assert (line.gain.n, line.verdict) == (5, "better")
    assert (line.gain.low, line.gain.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert not notes_of(table, "looks.below")


# --- Sweep files --------------------------------------------------------------------------------

FILE = """\
base: {data: digits, model.arch: mu/4, train.epochs: 1}
variants: [{none: {}}, {post: {block.attn: post}}, {short: {train.epochs: 2}}]
seeds: 3
analysis: {contrasts: {late: {from: %s, to: %s}}}
"""


@pytest.mark.whole
def test_a_sweep_file_declares_contrasts_between_rows(run, here):
    (here / "s.yaml").write_text(FILE % ("short", "post"))
    run("plan", "s.yaml")
    (here / "t.yaml").write_text(FILE % ("shot", "post"))
    line = run("plan", "t.yaml", code=2)
    assert [part for part in ("contrasts.late", "mean 'short'?") if part not in line] == []
    (here / "u.yaml").write_text(FILE % ("none", "post"))
    assert "is the baseline" in run("plan", "u.yaml", code=2)


def test_a_part_of_a_sweep_file_has_the_contrasts_of_its_rows(here):
    (here / "s.yaml").write_text(FILE % ("short", "post"))
    for words, names in (([], ["late"]), (["rows=post"], []), (["rows=post,short"], ["late"])):
        plan, _ = plan_from_words(["s.yaml", *words], store=here / "runs", allow_missing=True)
        assert [contrast.name for contrast in plan.analysis.row_contrasts] == names


def test_images_judge_contrasts_where_they_judge_gains():
    tables = next(resampled(np.random.default_rng(8), ["mnist.plain"] * 4, 5, 1))
    y, right = tables.y[0], tables.right[0]
    method = Method("images", contrasts=4)
    found = contrast_gain(y, (1, 2), method, flips=Flips((right,)))
    order = [[2, 0, 1, 3], [1, 0, 2, 3]]
    halves = []
    for rows in order:
        fitted = stats.fit(y[rows], method, ImageFlips.from_right(right[rows]))
        halves.append(fitted.half[2])
    assert found.gain.high - found.gain.mean == pytest.approx(max(halves), rel=1e-12)


# --- What is the same contrast ------------------------------------------------------------------


def contrasted(contrasts, rows=("base", "a", "b"), **more):
    """Return the look at a plan of these rows with these contrasts."""
    return looks.look(
        dataclasses.replace(planned(rows), analysis=Analysis(contrasts=contrasts, **more))
    )


TURNED = {"b - a": {"from": "a", "to": "b"}}
RENAMED = {"late": {"from": "b", "to": "a"}}
ACROSS = {"across": "seq", "from": 1, "to": 2}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (A_MINUS_B, RENAMED),
        (A_MINUS_B, TURNED),
        ({"x": ACROSS}, {"y": ACROSS}),
        ({"x": ACROSS}, {"x": {**ACROSS, "from": 2, "to": 1}}),
    ],
)
def test_another_name_or_order_of_a_contrast_is_no_change(before, after):
    first_look, second_look = contrasted(before), contrasted(after)
    assert first_look.is_of(second_look)
    assert look_changes(first_look, second_look).lines == []


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (A_MINUS_B, {}, "contrasts: -(a - b)"),
        (A_MINUS_B, {"a - b": {"from": "c", "to": "a"}}, "contrasts: +(a - c), -(a - b)"),
        ({"x": ACROSS}, {"x": {**ACROSS, "to": 3}}, "analysis.contrasts: "),
    ],
)
def test_another_contrast_is_a_change(before, after, change):
    rows = ("base", "a", "b", "c")
    first_look, second_look = contrasted(before, rows), contrasted(after, rows)
    assert not first_look.is_of(second_look)
    [part] = look_changes(first_look, second_look).lines
    assert part.startswith(change)


def test_a_row_with_a_new_label_keeps_its_contrast():
    plan = dataclasses.replace(planned(("base", "a", "b")), analysis=Analysis(contrasts=A_MINUS_B))
    cells = [dataclasses.replace(c, row="A" if c.row == "a" else c.row) for c in plan.cells]
    renamed = dataclasses.replace(
        plan,
        cells=tuple(cells),
        rows=tuple(Row("A" if row.label == "a" else row.label, {}) for row in plan.rows),
        analysis=Analysis(contrasts={"A - b": {"from": "b", "to": "A"}}),
    )
    assert look_changes(looks.look(plan), looks.look(renamed)).lines == []


def test_a_sweep_with_looks_is_judged_by_its_first_look_under_any_name_of_its_contrast():
    """The family is that of the first look, of 7 comparisons, and not the 3 that are counted."""
    plan = dataclasses.replace(planned(("base", "a", "b"), seeds=8), design=Looks((5, 8)))
    before = dataclasses.replace(plan, analysis=Analysis(contrasts=A_MINUS_B, spread="paired"))
    after = dataclasses.replace(plan, analysis=Analysis(contrasts=RENAMED, spread="paired"))
    first_look = looks.until_look(before, "", 5, {"a": "goes on", "b": "goes on"}, 7)
    assert PastLooks([first_look], looks.look(after)).contrasts("") == 7


def test_a_contrast_of_another_name_is_not_overwritten():
    plan = make_plan(["base", "a", "b", "c"], contrasts={"a - b": {"from": "c", "to": "a"}})
    with pytest.raises(UserError) as error:
        plan.with_contrasts(["a - b"], "--contrast")
    assert [part for part in ("a - b", "another contrast") if part not in str(error.value)] == []
    assert plan.with_contrasts(["a - c"], "--contrast") is plan


# --- What counts --------------------------------------------------------------------------------


def test_a_look_counts_its_contrasts():
    assert contrasted(A_MINUS_B).columns[""].contrasts == 3
    assert contrasted({}).columns[""].contrasts == 2


def test_a_contrast_counts_as_read_where_both_of_its_rows_were():
    plan = dataclasses.replace(planned(("base", "a", "b")), analysis=Analysis(contrasts=A_MINUS_B))
    for unread in ("a", "b"):
        results = {
            run: {"status": "finished"} if cell.row != unread else None
            for cell in plan.cells
            for run in cell.ids.values()
        }
        peek = looks.peek(plan, results)
        assert peek.comparisons(peek.columns[""]) == peek.gains(peek.columns[""])
        assert PastLooks([peek], contrasted({})).contrasts("") == 2
        assert PastLooks([peek], contrasted({})).counts_more_than_gains("") is False
    complete = looks.peek(plan, {run: {"status": "finished"} for run in results})
    assert PastLooks([complete], contrasted({})).contrasts("") == 3
    assert PastLooks([complete], contrasted({})).gains("") == 2


@pytest.mark.parametrize("diverged", ["a", "b"])
def test_a_contrast_whose_either_row_lacks_a_diverged_run_has_no_verdict(diverged):
    values = {"base": [80, 80.2, 80.1], "a": [90, 90.3, 90.1], "b": [70, 70.1, 70.3]}
    plan = make_plan(["base", "a", "b"], contrasts=A_MINUS_B)
    results = plant(plan, values)
    [line] = tabulate(plan, results).blocks[0].lines
    assert line.verdict == "better"
    results[f"{diverged}@#1"] = {"status": "diverged", "step": 120, "collapsed": False}
    [line] = tabulate(plan, results).blocks[0].lines
    assert (line.verdict, line.gain.n) == (None, 2)


@pytest.mark.parametrize("family", ["column", "table"])
def test_on_other_sets_rows_are_compared_with_the_baseline_alone(family):
    """Two columns, each with two gains and a contrast on its own set, and two gains on the other
    set: of a column 3 and 2 comparisons, of the table 10."""
    plan = planned(("base", "a", "b"), ("S", "Ti"))
    plan = dataclasses.replace(plan, analysis=Analysis(contrasts=A_MINUS_B, family=family))
    tree = plan.cells[0].spec.tree
    dark = {"eval": {**tree["eval"], "also": [{**tree["data"], "name": "dark"}]}}
    cells = tuple(
        dataclasses.replace(cell, spec=RunSpec.of({**cell.spec.tree, **dark}))
        for cell in plan.cells
    )
    plan = dataclasses.replace(plan, cells=cells)
    for past in (None, PastLooks([looks.look(plan)], looks.look(plan))):
        sizes = [method_of(plan, "S", past, is_other).contrasts for is_other in (False, True)]
        assert sizes == ([3, 2] if family == "column" else [10, 10])


def test_a_table_counts_contrasts_on_the_own_set_alone():
    plan = make_plan(["base", "a", "b"], contrasts=A_MINUS_B)
    tree = {
        **plan.cells[0].spec.tree,
        "eval": {"also": [{**plan.cells[0].spec.tree["data"], "name": "dark"}]},
    }
    cells = tuple(dataclasses.replace(cell, spec=RunSpec.of(tree)) for cell in plan.cells)
    plan = dataclasses.replace(plan, cells=cells)
    values = {"base": [80, 80.2, 80.1], "a": [90, 90.3, 90.1], "b": [70, 70.1, 70.3]}
    results = {
        run: {**result, "also": {"dark": {"test": result["test"]}}}
        for run, result in plant(plan, values).items()
    }
    columns = tabulate(plan, results).columns
    assert [(column.on, column.contrasts) for column in columns] == [("", 3), ("dark", 2)]


# --- Looks that give out seeds ------------------------------------------------------------------


def test_a_contrast_is_judged_at_later_looks_until_it_is_decided():
    """The rows go on to the second look. There the contrast that was decided keeps its first look,
    and the other is judged by all seeds, at the boundary of that look."""
    contrasts = A_MINUS_B | {"a - c": {"from": "c", "to": "a"}}
    plan = make_plan(["base", "a", "b", "c"], seeds=8, contrasts=contrasts)
    plan = dataclasses.replace(plan, design=Looks((5, 8)))
    rng = np.random.default_rng(9)
    shared, noise = rng.normal(0, 2.0, 8), rng.normal(0, 0.1, (3, 8))
    values = {
        "base": 80 + rng.normal(0, 2.0, 8),
        **{"a": 80 + shared + noise[0], "b": 79 + shared + noise[1], "c": 80 + shared + noise[2]},
    }
    table = tabulate(plan, plant(plan, values))
    lines = next(block for block in table.blocks if block.kind == "row_contrast").lines
    assert [(line.label, line.gain.n, line.verdict) for line in lines] == [
        ("a - b", 5, "better"),
        ("a - c", 8, "can't tell"),
    ]
    y = np.array([[100 * round(v / 100, 12) for v in values[row]] for row in values])
    method = stats.Sequential((5, 8), spread="paired", contrasts=5).method_at(1)
    expected = contrast_gain(y, (1, 3), method).gain
    assert (lines[1].gain.low, lines[1].gain.high) == pytest.approx(
        (expected.low, expected.high), abs=1e-6
    )


def test_a_sweep_whose_looks_gave_out_seeds_takes_no_new_contrast():
    plan = make_plan(["base", "a", "b"], seeds=8, contrasts=A_MINUS_B)
    plan = dataclasses.replace(plan, design=Looks((5, 8)))
    assert plan.with_contrasts(["a - b"], "--contrast") is plan
    bare = dataclasses.replace(plan, analysis=Analysis())
    with pytest.raises(UserError) as error:
        bare.with_contrasts(["a - b"], "--contrast")
    text = str(error.value)
    assert text.partition(":")[0] == "--contrast"
    assert "remove --contrast, or" in text
    assert "analysis.contrasts:" not in text


# --- Words --------------------------------------------------------------------------------------


def test_python_checks_contrasts_as_the_command_line_does(run, sheet, here):
    sheet("--seed", "seed")
    sweep = ablate.Store(here / "runs").sweep("paper2")
    with pytest.raises(UserError) as error:
        sweep.table(contrasts={"late": {"from": "rando", "to": "iclp"}})
    parts = ("analysis.contrasts.late: ", "'rando'", "'random'")
    assert [part for part in parts if part not in str(error.value)] == []
    block = next(
        block
        for block in sweep.table(contrasts={"late": {"from": "random", "to": "iclp"}}).data.blocks
        if block.kind == "row_contrast"
    )
    assert {tuple(line.label.split(": ")) for line in block.lines} == {("late", "iclp - random")}


def test_a_sample_of_columns_without_a_spread_has_no_figure():
    """Averages over columns are also given as if columns were a sample; where all have the same
    gain, that has no interval."""
    plan = make_plan(["base", "a", "b"], ("S", "Ti", "B"))
    values = {"base": [80, 80.5, 80.2], "a": [90, 90.3, 90.1], "b": [70, 70.1, 70.3]}
    results = plant(plan, values)
    for run, shift in (("b@S#0", 0.02), ("b@Ti#1", 0.04)):
        results[run]["test"]["top1"] += shift
    text = text_of(tabulate(plan, results), "md").partition("**Average over")[2]
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    [headings] = [line for line in lines if "variant" in line]
    place = next(i for i, heading in enumerate(headings) if "sample" in heading)
    samples = {line[1]: line[place] for line in lines if len(line) == len(headings)}
    assert samples["a"] == "-"
    assert "[" in samples["b"]
