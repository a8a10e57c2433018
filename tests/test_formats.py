"""What tables print: each format as agreed (`golden/table.*`), and what --show and the rest change.

The golden files are written by `python tests/test_formats.py`; read what changed before it is kept.
"""

import json
import re
import shutil
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
from conftest import records
from support.plans import with_sections
from support.planted_sweeps import golden, planted_sweep, whole
from support.tables import entries, finished, make_plan, note, notes_of, tabulate, text_of

from ablate.analysis import stats
from ablate.analysis.note import FOOTNOTES
from ablate.planning.cell import Column
from ablate.planning.design import Fixed, Looks
from ablate.report.formats import DEFAULT_SHOW, check_show, grid, latex, render_table
from ablate.report.formats.latex import escape
from ablate.run.metrics import TASKS
from ablate.shared.errors import UserError

GOLDEN = Path(__file__).parent / "golden"
ENDINGS = {
    **{"rich": "txt", "md": "md", "latex": "tex", "html": "html"},
    **{"csv": "csv", "tidy": "tidy.csv", "json": "json"},
}
DATA = ("csv", "tidy", "json")
WORDS = [format for format in ENDINGS if format not in DATA]


# --- As agreed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("format", WORDS)
def test_what_readers_see_is_as_agreed(format):
    assert golden(format) == (GOLDEN / f"table.{ENDINGS[format]}").read_text()


def near(found, expected):
    """Equal but for the last digits of numbers, which depend on the libraries' versions."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(near(found[k], expected[k]) for k in found)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(near, found, expected))
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=1e-9, abs=1e-9)
    return found == expected


def test_what_programs_read_is_as_agreed():
    assert near(json.loads(golden("json")), json.loads((GOLDEN / "table.json").read_text()))

    def lines(text):
        return [{key: number(cell) for key, cell in row.items()} for row in records(text)]

    for format in ("csv", "tidy"):
        expected = (GOLDEN / f"table.{ENDINGS[format]}").read_text()
        assert near(lines(golden(format)), lines(expected)), format


def number(cell):
    """Return the cell of a CSV as a number, if it is one."""
    try:
        return float(cell)
    except ValueError:
        return cell


# --- The two layers of notes ---------------------------------------------------------------------


def test_short_notes_leave_out_how_numbers_are_computed_and_the_marks_of_that():
    """`full` has every text of the table and a mark for each footnote; `short` those that are not
    exact, and the command that prints the others; `none` no text and no mark."""
    table = whole()
    placed = [note for note in table.notes if note.place in table.notes_by_place]
    exact = {note.text for note in placed if note.is_exact}
    plain = {note.text for note in placed if not note.is_exact}
    assert exact
    assert plain
    short, full, none = (
        " ".join(text_of(table, "md", notes=notes).split()) for notes in ("short", "full", "none")
    )
    for text in map(grid._prose, exact):
        assert (text in full, text in short, text in none) == (True, False, False)
    for text in map(grid._prose, plain):
        assert (text in full, text in short, text in none) == (True, True, False)
    for printed, notes in ((full, placed), (short, [n for n in placed if not n.is_exact])):
        marked = {note.text for note in notes if note.kind in FOOTNOTES}
        for number in range(1, len(marked) + 1):
            assert printed.count(grid.marks((number,))) >= 2  # in the grid and below
        assert grid.marks((len(marked) + 1,)) not in printed
    assert f"`ablate table {table.sweep} --notes full`" in short
    assert "--notes full" not in full + none
    assert not set("⁰¹²³⁴⁵⁶⁷⁸⁹") & set(none)


def test_the_report_folds_how_numbers_are_computed():
    table = whole()
    [fragment] = re.findall(r"<details>.*?</details>", text_of(table, "html"), re.DOTALL)
    for fact in table.notes:
        if fact.place in table.notes_by_place:
            assert (grid.prose(fact.text) in fragment) == fact.is_exact, fact.text


def test_a_caption_of_the_users_own_is_the_whole_caption():
    table = whole()
    assert table.trained_on in text_of(table, "latex")
    text = text_of(table, "latex", floated=latex.LatexFloat(caption="Mine."))
    assert r"\caption{Mine." in text
    assert table.trained_on not in text


@pytest.mark.parametrize(
    ("label", "source"),
    [
        ("val_loss", "val_loss"),
        ("a__b", "a__b"),
        ("_a_", r"\_a\_"),
        ("a_ b", r"a\_ b"),
        ("a_*b*", r"a\_\*b\*"),
    ],
)
def test_an_underscore_within_a_word_stays_as_written(label, source):
    """By CommonMark it opens and closes no emphasis there."""
    assert grid._escape_markdown(label) == source


@pytest.mark.parametrize(
    ("label", "source"),
    [
        ("$5", "$5"),
        ("${lr} of ${a}", "<span>$</span>{lr} of <span>$</span>{a}"),
    ],
)
def test_dollars_are_no_formula(label, source):
    """As GitHub's page "Writing mathematical expressions" has it."""
    assert grid._escape_markdown(label) == source


# --- Each format --------------------------------------------------------------------------------


@pytest.mark.parametrize("format", [*WORDS, "tidy", "json"])
def test_an_unfinished_table_says_so_and_what_is_missing(format):
    text = " ".join(text_of(tabulate(*planted_sweep(complete=False)), format).split())
    assert "UNFINISHED: 1 of 42 runs missing (1 of as good)" in text
    if format in WORDS:
        assert "(unfinished)" in text
        assert "1/3 missing" in text
    assert not any(bold in text for bold in (r"\textbf{", "<strong>+", "**+"))  # no word yet


def test_csv_is_the_table_with_numbers_in_full():
    """The oracle is the JSON of the same table; the columns are those that the page documents."""
    table = whole()
    lines = records(render_table(table, "csv"))
    assert [*lines[0]] == [
        *("row", "column", "metric", "mean", "low", "high"),
        *("gain", "gain_low", "gain_high", "n", "verdict"),
    ]
    places = [(line["row"], line["column"], line["metric"]) for line in lines]
    assert len({*places}) == len(places)
    data = json.loads(render_table(table, "json"))
    expected = []
    for entry in (entry for column in data["columns"] for entry in column["entries"]):
        place = {"row": entry["row"], "column": entry["column"]}
        gain = entry["gain"] if entry["row"] != data["baseline"] else None
        n = (entry["gain"] or entry["accuracy"])["n"]
        expected.append(
            {
                **{**place, "metric": data["metric"], **ends(entry["accuracy"])},
                **{**ends(gain, "gain", "gain_"), "n": str(n), "verdict": entry["verdict"] or ""},
            }
        )
        for name, other in entry["others"].items():
            expected.append(
                {
                    **{**place, "metric": name, **ends(other["estimate"])},
                    **{**ends(None, "gain", "gain_"), "verdict": ""},
                    "n": str(other["estimate"]["n"]),
                }
            )
    place_of = itemgetter("row", "column", "metric")
    assert sorted(lines[: len(expected)], key=place_of) == sorted(expected, key=place_of)
    effects = [line for block in data["blocks"] for line in block["lines"]]
    for line, effect in zip(lines[len(expected) :], effects, strict=True):
        assert (line["row"], line["mean"]) == (effect["label"], "")
        assert {key: line[key] for key in GAIN} == ends(effect["gain"], "gain", "gain_")


GAIN = ("gain", "gain_low", "gain_high")


def ends(estimate, mean="mean", prefix=""):
    """Return the cells of a CSV for an estimate, empty for numbers that are not known."""
    parts = {mean: "mean", f"{prefix}low": "low", f"{prefix}high": "high"}
    numbers = {key: (estimate or {}).get(part) for key, part in parts.items()}
    return {key: "" if value is None else repr(value) for key, value in numbers.items()}


def test_csv_of_an_unfinished_table_has_no_interval_of_a_gain_and_no_verdict():
    lines = records(render_table(tabulate(*planted_sweep(complete=False)), "csv"))
    assert any(line["gain"] for line in lines)
    assert not any(line[key] for line in lines for key in ("gain_low", "gain_high", "verdict"))


def test_a_column_of_bare_numbers_is_headed_by_what_they_are():
    plan = make_plan(["base", "other"], ("1", "2"))
    columns = tuple(Column(c.label, {"model.depth": int(c.label)}) for c in plan.columns)
    results = {run: finished(0.9 + 0.01 * seed) for c in plan.cells for seed, run in c.ids.items()}
    table = tabulate(replace(plan, columns=columns), results)
    text = render_table(table, "md")
    assert "*model.depth=1*" in text
    assert "*model.depth=2*" in text
    assert [column.label for column in table.columns] == ["1", "2"]
    assert Column("true", {"train.compile": True}).heading == "train.compile=true"


LURES = ("=cmd|'/c calc'!A1", "@octocat", "+1-2", "![x](http://e.org/p.png)", "[x]: http://e.org")


def test_no_viewer_runs_or_fetches_what_a_label_says():
    rows = ["pre", *LURES, "-1"]
    plan = make_plan(rows)
    results = {run: finished(0.9) for cell in plan.cells for run in cell.ids.values()}
    lures = tuple(note("footnote", lure, ("pre", "")) for lure in LURES)
    table = replace(tabulate(plan, results), title=LURES[-1], notes=lures)
    read = {row["row"] for row in records(render_table(table, "tidy"))}
    assert read - {""} == {f"'{row}" if row in LURES[:3] else row for row in rows}

    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").enable("table").parse(render_table(table, "md"))
    inline = [child for token in tokens for child in token.children or ()]
    assert not {"link_open", "image"} & {child.type for child in inline}
    texts = [[c.content for c in t.children if c.type == "text"] for t in tokens if t.children]
    assert set(rows) <= {"".join(parts) for parts in texts}
    assert not any("@octo" in part for parts in texts for part in parts)  # who would be told


def test_latex_is_escaped():
    assert escape("50 % of_a & {b} -- [x]") == r"50 \% of\_a \& \{b\} -{}- [x]"
    assert escape("--- ?` !``") == "-{}-{}- ?{}` !{}``"
    assert escape("a,,b") == "a,{},b"
    assert escape("?“") == "?{}``"
    assert escape("中") == r"\texttt{U+4E2D}"
    assert escape("σ ≤ λΩ → µ…") == r"$\sigma$ $\leq$ $\lambda$$\Omega$ $\to$ $\mu$\ldots{}"
    asked = render_table(replace(whole(), title="Does it help?"), "latex")
    data = "Trained on digits, 1,197 images at 8 px, 6 epochs; n = 2 to 3."
    assert rf"\caption{{Does it help? {data} S/4.}}" in asked


def test_a_command_in_a_note_is_code_and_no_paper_prints_it():
    said = "by -0.5 of 2. Others: less; 42 more runs: `ablate sweep a_b norm=<x> seeds=-1`."
    texts = (said, "Again: `ablate sweep b`.", "`norm=x` stays.")
    table = replace(whole(), notes=tuple(note("warning", text) for text in texts))
    code = "42 more runs: <code>ablate sweep a_b norm=&lt;x&gt; seeds=-1"
    assert f"by -0.5 of 2. Others: less; {code}" in render_table(table, "html")
    below = render_table(table, "latex").split(r"\smallskip\raggedright")[-1]
    assert r"by $-$0.5 of 2. Others: less." in below
    assert r"\texttt{norm=x} stays." in below
    assert "ablate sweep" not in below


@pytest.mark.parametrize(
    ("said", "printed"),
    [
        (
            "Withheld runs count as missing; `ablate sweep ... --retry damaged` trains it again.",
            "Withheld runs count as missing.",
        ),
        (
            "2 rows go on, at 5 seeds: run the same `ablate sweep`; until the end: at most 4 runs.",
            "2 rows go on, at 5 seeds; until the end: at most 4 runs.",
        ),
        ("Is it? `ablate table x` says. Yes!", "Is it? Yes!"),
        (
            "Share of “easy” images among “all” images.",
            "Share of ``easy'' images among ``all'' images.",
        ),
    ],
)
def test_a_paper_keeps_the_facts_of_a_sentence_with_a_command(said, printed):
    table = replace(whole(), notes=(note("warning", said),))
    assert f"\\raggedright\n{printed}\\par" in render_table(table, "latex")


# --- What stands in it --------------------------------------------------------------------------


def test_show_chooses_columns_in_its_order():
    text = render_table(whole(), "md", show=check_show("n, gain,macs,params,top5,loss"))
    head = next(line for line in text.splitlines() if line.startswith("| variant"))
    assert head == "| variant | n | gain¹ | multiply-adds | params | top5 % | loss |"
    row = next(line for line in text.splitlines() if line.startswith("| helps"))
    assert re.search(r"\| 3 \| \*\*\+\d.\d\d\*\* \| 4.6 G \| 22.1 M \| 99.00 \| 0.08", row)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gian", "did you mean 'gain'"),
        ("epochs_to:2", "--show: got 'epochs_to:2' (did you mean 'epochs_to:SHARE'?)"),
        ("epochs_to", "epochs_to:SHARE"),
        ("ci", "add accuracy or gain"),
        ("", "--show: expected one of accuracy, gain"),
    ],
)
def test_a_wrong_show_names_what_may_be_shown(text, said):
    with pytest.raises(UserError, match=re.escape(said)):
        check_show(text)


def test_columns_stand_side_by_side_where_they_fit():
    table = whole()
    text = render_table(table, "md", show=("gain", "verdict"))
    assert "| variant | S/4: gain¹ | S/4: verdict | B/4: gain | B/4: verdict |" in text
    assert re.search(r"\| helps \| \*\*\+2.00\*\* \| helps \| \*\*\+2.49\*\* \| helps \|", text)
    wide = render_table(table, "latex", show=("gain",))
    assert r"\multicolumn{1}{c}{S/4} & \multicolumn{1}{c}{B/4}" in wide
    assert r"\cmidrule(lr){2-2}" in wide
    assert '<th scope="colgroup" colspan="1">S/4</th>' in render_table(
        table, "html", show=("gain",)
    )
    assert "**S/4**" in render_table(table, "md")  # with intervals they don't fit


def test_few_rows_share_one_grid():
    plan = make_plan(["a", "b"], ("x", "y", "z", "w"))
    results = {r: finished(0.9 + s / 100) for c in plan.cells for s, r in c.ids.items()}
    text = render_table(tabulate(plan, results), "md")
    assert text.count("| variant |") == 2  # and the average
    assert "| *w* |  |  |  |  |\n| a |" in text


def test_transposed_the_variants_are_columns():
    table = whole()
    text = render_table(table, "md", transpose=True, show=("gain", "n"))
    assert "| pre | helps | hurts" in text.splitlines()[4]
    assert "| *B/4* |" in text
    assert re.search(r"\| gain \|  \| \*\*\+2.49\*\* \| -2.0\d \|", text)
    one = render_table(table, "md", transpose=True, show=("gain",))
    assert re.search(r"\| B/4 \|  \| \*\*\+2.49\*\* \| -2.0\d \|", one)


def test_what_is_too_wide_for_a_terminal_is_shown_in_parts():
    show = ("accuracy", "ci", "params", "macs", "cost", "top5")
    text = text_of(whole(), "rich", show=show, width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert text.count(" wild_100% ") > 2
    assert "25 %" in text


def test_no_number_is_cut_however_narrow_the_terminal():
    table = whole()
    numbers = set(re.findall(r"[-+]?\d+\.\d\d", text_of(table, "rich", width=200)))
    for width in (20, 26, 40):
        narrow = text_of(table, "rich", width=width)
        assert max(map(len, narrow.splitlines())) <= width
        assert "…" not in narrow
        assert numbers <= set(re.findall(r"[-+]?\d+\.\d\d", narrow))


def test_times_are_only_there_when_asked():
    plain = tabulate(*planted_sweep())
    assert not any("60.0" in render_table(plain, format) for format in DATA)
    text = render_table(whole(), "md", show=("cost",))
    assert "| helps | 0.05 | 60 | 10 k | 2 GB | 25 % |" in text
    plan, results = planted_sweep()
    for result in results.values():
        result["ranks"] = 4
    text = render_table(tabulate(plan, results, cost=True), "md", show=("cost",))
    assert "| helps | 0.2 | 60 | 10 k | 2 GB | 25 % |" in text  # hours of devices, as in `plan`


# --- Statistics that are said -------------------------------------------------------------------


def nine():
    """The placement grid: +1 for attention post, -2 for MLP pre+post, +3 for both."""
    places = ("pre", "post", "pre+post")
    plan = make_plan([f"{a}/{m}" for a in places for m in places])
    noise = np.random.default_rng(0).normal(0, 0.02, (9, 3))
    cells, results = [], {}
    for r, cell in enumerate(plan.cells):
        attn, mlp = cell.row.split("/")
        block = {"name": "vit", "attn": attn, "mlp": mlp, "post": "residual"}
        cells.append(with_sections(cell, block=block))
        one, other = attn == "post", mlp == "pre+post"
        value = 90 + one - 2 * other + 3 * (one and other)
        results |= {run: finished((value + noise[r, s]) / 100) for s, run in cell.ids.items()}
    return replace(plan, cells=tuple(cells)), results


def test_the_placement_grid_is_a_design_of_two_factors():
    plan, results = nine()
    table = tabulate(plan, results)
    (block,) = table.blocks
    found = {line.label: line for line in block.lines}
    both = "attention post x MLP pre+post"
    for label, gain, word in (
        ("attention post", 1 + 3 / 3, "helps"),
        ("MLP pre+post", -2 + 3 / 3, "hurts"),
        ("attention pre+post", 0, "can't tell"),
        (both, 3, None),
    ):
        assert found[label].gain.mean == pytest.approx(gain, abs=0.1)
        assert found[label].verdict == word
    assert block.contrasts == 8
    assert "Placement, LN after the addition" in render_table(table, "md")
    without = replace(plan, cells=plan.cells[:-1], rows=plan.rows[:-1])
    assert tabulate(without, results).blocks == ()


def curve(values):
    return [{"epoch": float(e), "val_top1": v} for e, v in enumerate(values, start=1)]


def test_epochs_to_counts_who_never_gets_there():
    plan = make_plan(["base", "fast", "stuck"], metric="epochs_to:0.9")
    results = {run: finished(0.9) for cell in plan.cells for run in cell.ids.values()}
    firsts = {"base": (5, 5, 5), "fast": (2, 2, 3), "stuck": (4, 4, 5)}
    curves = {
        f"{row}@#{seed}": curve([0.5] * (first - 1) + [0.9] * 3)
        for row, of in firsts.items()
        for seed, first in enumerate(of)
    }
    curves["stuck@#1"] = curve([0.5, 0.6, 0.89])
    table = tabulate(plan, results, curves=curves.__getitem__, also=("auc",))
    fast, stuck = (entries(table)[row] for row in ("fast", "stuck"))
    assert fast.values == {0: 2.0, 1: 2.0, 2: 3.0}
    assert fast.gain.mean == pytest.approx(5 - 7 / 3)  # fewer epochs are better
    assert fast.verdict is not None
    assert (stuck.never, stuck.verdict, stuck.n) == ((1,), None, 2)
    assert table.complete
    text = render_table(table, "md", show=(*DEFAULT_SHOW, "auc"))
    assert "; 1/3 never" in text
    [never] = notes_of(table, "never")
    assert (never.values, never.place) == ({"seeds": [1]}, ("stuck", ""))
    assert never.text in text
    expected = stats.auc(np.array([1.0, 2, 3]), np.array([0.5, 0.6, 0.89])) * 100
    assert stuck.others["auc"].values[1] == pytest.approx(float(expected))
    assert TASKS["classify"].find("epochs_to:0.9").sign == -1
    assert notes_of(table, "metric")[0].values["metric"]["lower"]
    lacking = r"auc: run .* has 0 of the two validations that a curve needs"
    with pytest.raises(UserError, match=lacking):
        tabulate(plan, results, also=("auc",), curves=lambda run: [])


def test_a_baseline_that_never_gets_there_is_said_to_silence_its_column():
    """Also at looks; and the gain, on the seeds of both, is no longer the difference of means."""
    plan = make_plan(["base", "a", "b"], seeds=4, metric="epochs_to:0.9")
    results = {run: finished(0.9) for cell in plan.cells for run in cell.ids.values()}
    firsts = {"base": (10, 9, 12, 11), "a": (5, 20, 6, 5), "b": (10, 9, 11, 12)}
    curves = {
        f"{row}@#{seed}": curve([0.5] * (first - 1) + [0.95] * (row != "base" or seed != 1))
        for row, of in firsts.items()
        for seed, first in enumerate(of)
    }
    for design in (Fixed(), Looks((3, 4))):
        table = tabulate(replace(plan, design=design), results, curves=curves.__getitem__)
        [never] = notes_of(table, "never")
        silences = {"baseline": True, "looks": isinstance(design, Looks)}
        assert (never.values, never.place) == ({"seeds": [1], **silences}, ("base", ""))
        assert not any(entry.verdict for entry in table.entries)
        [reading] = notes_of(table, "reading")
        assert reading.values["uneven"]
    assert notes_of(tabulate(plan, results, curves=lambda run: curves["a@#0"]), "never") == []


# --- The command --------------------------------------------------------------------------------

SWEEP = ("block.attn=pre,post", "model.depth=1", "model.width=16", "model.heads=2")
SHORT = ("train.steps=4", "train.batch=32", "seeds=3")  # with these, what the stored runs are


@pytest.fixture
def stored(shell):
    """A store with six finished runs, and without decoded data, sizes and times of a machine."""
    shutil.copytree(GOLDEN / "store", shell.folder / "runs")
    return shell


def test_the_command_shows_what_is_asked(stored):
    text = stored("table", "--show", "gain,loss,params,macs,epochs_to:0.99").out
    assert "3/3 never" in text
    assert re.search(r"\| [\d.]+ k \| [\d.]+ k \|", text)  # asked of a worker
    latex = stored("table", "--format", "latex", "--transpose").out
    line = latex.splitlines()[9].removesuffix(r"\tabularnewline")
    assert [cell.strip() for cell in line.split("&")][1:] == ["pre", "post"]
    assert ",cost." not in stored("table", "--format", "tidy").out
    assert "--show: expected one of" in stored("table", "--show", "speed", code=2).err
    assert "names no published table" in stored("table", "--against", "paper", code=2).err


def test_a_metric_of_the_curve_is_an_analysis_and_is_verified(stored):
    curve = (*SWEEP, *SHORT, "analysis.metric=epochs_to:0.05", "--as", "curve")
    stored("sweep", *curve, "launcher=inline")
    assert "Epochs to 5 % validation top-1" in stored("table", "curve").out
    assert "nothing wrong" in stored("verify", "curve").out
    assert "did you mean 'auc'" in stored("plan", *SWEEP, "analysis.metric=auk", code=2).err


@pytest.mark.whole
def test_plan_forecasts_what_can_be_told(stored):
    stored("sweep", *SWEEP, *SHORT, "launcher=inline")
    text = stored("plan", *SWEEP, *SHORT, "launcher=inline", "--detect", "5").out
    assert "to detect a gain of 5 points over block.attn=pre with 80 % power" in text
    assert re.search(
        r"spread [\d.]+ points between seeds \[.*2 df, 6 finished runs\]: barely known", text
    )
    assert re.search(r"needs .* seeds a variant: .* device-hours\n", text)
    assert "--spread: needs --detect" in stored("plan", *SWEEP, "--spread", "1", code=2).err


if __name__ == "__main__":
    for name, ending in ENDINGS.items():
        (GOLDEN / f"table.{ending}").write_text(golden(name))


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.21, 1.026, "[+0.21, +1.03]"),
        (-0.97, -0.0004, "[-0.97, -0.0004]"),
        (0.0049, 0.5, "[+0.005, +0.50]"),
        (-0.00004, 0.0, "[-0.00004, +0.00]"),
        (-0.006, 1e-17, "[-0.01, +0.00]"),  # of a computation that rounds
    ],
)
def test_an_end_of_an_interval_stands_on_its_side_of_zero(low, high, text):
    top1 = TASKS["classify"].metrics[0]
    assert top1.interval(low, high, sign=True) == text
    assert top1.interval(0.0004, 0.5) == "[0.00, 0.50]"  # of values, which no verdict is about
