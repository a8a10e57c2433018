"""Figures read by their marks: the numbers of the table stand where the axes say, names and panels
have room, and what the table doesn't resolve is grey or says why."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text
from support.declared import split_line
from support.plans import with_sections
from support.tables import finished, make_plan, plant, tabulate

from ablate.analysis import stats
from ablate.analysis.effects import TOGETHER
from ablate.planning import expand
from ablate.planning.cell import Column
from ablate.report.page import render_page
from ablate.report.plot import FIGURE_KINDS, FigureForm
from ablate.report.plot.across import across
from ablate.report.plot.changes import EXPECTED, FADED, changes, pairs
from ablate.report.plot.curves import curves
from ablate.report.plot.form import COLOURS, NotYet, inks
from ablate.report.plot.gains import forest, gain
from ablate.report.plot.probes import gradnorm
from ablate.report.plot.style import styled

SETTINGS = {"dpn": "stem=dpn", "rms": "norm=rmsnorm", "swiglu": "model.act=swiglu"}
LONG = "normalised queries and keys with a learned temperature, a head"  # 62 letters
PAPER = FigureForm("paper")


def draw(kind, plan, table, form=None, rundir=lambda run: pytest.fail("reads no run")):
    """Draw a figure and lay it out as its file has it."""
    form = form or FigureForm()
    with styled(kind.__name__, form.style):
        sheet = kind(plan, table, rundir, form)
        sheet.content("png")
        sheet.figure.draw_without_rendering()
    return sheet


def points(axes):
    """The marks of means in a forest or a panel of gains: (x, y, colour) of each."""
    lines = (line for line in axes.lines if len(line.get_xdata()) == 1 and not is_dots(line))
    return [(line.get_xdata()[0], line.get_ydata()[0], line.get_color()) for line in lines]


def is_dots(line):
    """Whether these are the small dots of seeds, which are paler than the mark of their mean."""
    return line.get_alpha() is not None


def bars(axes, across):
    """The intervals at this place across them: (low, high) of each."""
    lines = ((line, [*line.get_xdata()], [*line.get_ydata()]) for line in axes.lines)
    return [tuple(x) for line, x, y in lines if y == [across, across] and not is_dots(line)]


def names_on_axis(axes):
    return [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]


def overlaps(boxes):
    return [(a, b) for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]


def shrunk(box):
    """A box without the ascenders and descenders of its letters."""
    return box.padded(-0.15 * box.height)


def sown(rows, columns=("",), seeds=3, spread=0.3, **analysis):
    """A plan of these rows, and its table of planted results."""
    plan = make_plan(["base", *rows], columns, seeds=seeds, **analysis)
    noise = np.random.default_rng(3)
    mean = {row: 80 + n * 0.7 for n, row in enumerate(["base", *rows])}
    results = {
        run: finished((mean[cell.row] + noise.normal(0, spread)) / 100)
        for cell in plan.cells
        for run in cell.ids.values()
    }
    return plan, tabulate(plan, results)


def designed(
    names=("dpn", "rms", "swiglu"), design="factorial", seeds=3, together=-4.0, columns=()
):
    """A plan of changes with planted effects, and its table. `together`: what the first and the
    last gain beyond their sum."""
    labels = dict(zip(names, SETTINGS.values(), strict=False))
    given = [x for name, setting in labels.items() for x in ("--change", f"{name}: {setting}")]
    words = ["data=digits", "train.steps=40", "model.width=16", "model.heads=2", f"seeds={seeds}"]
    own, options = split_line([*words, *columns, *given, "--design", design])
    across = ("model.arch",) if columns else ()
    options = {"change": options["change"], "design": design, "across": across}
    plan = expand.plan_from_words(own, store=Path("runs"), **options)[0]
    effects, noise = dict(zip(names, (3.0, 0.0, -2.0), strict=False)), np.random.default_rng(5)
    block = noise.normal(0, 0.3, seeds)
    results = {}
    for cell in plan.cells:
        on = plan.changes.rows[cell.row]
        mean = 70 + sum(effects[name] for name in on) + together * ({names[0], names[-1]} <= {*on})
        for n, run in enumerate(cell.ids.values()):
            results[run] = finished((mean + block[n] + noise.normal(0, 0.2)) / 100)
    return plan, tabulate(plan, results)


# --- Gains --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [FigureForm(), PAPER], ids=["page", "paper"])
@pytest.mark.parametrize("rows", [1, 12])
def test_gains_of_one_column_have_their_names_on_the_axis(form, rows):
    names = [f"row {n}" for n in range(rows)]
    plan, table = sown(names)
    sheet = draw(gain, plan, table, form)
    ((axes,),) = sheet.panels
    assert names_on_axis(axes) == names
    assert not sheet.figure.legends
    gains = {entry.row: entry.gain for entry in table.entries if entry.gain}
    colours = inks(plan)
    expected = [(gains[row].mean, n, colours[row].colour) for n, row in enumerate(names)]
    assert [point for point in points(axes) if point in expected] == expected
    for n, row in enumerate(names):
        assert (gains[row].low, gains[row].high) in bars(axes, n)
    assert axes.get_xlabel() == "gain, points"


@pytest.mark.whole
@pytest.mark.parametrize("form", [FigureForm(), PAPER], ids=["page", "paper"])
@pytest.mark.parametrize("kind", [gain, forest])
def test_long_names_leave_the_scale_its_room_and_cover_nothing(kind, form):
    """Names of 60 letters once covered the panel, or left none."""
    names = [f"{LONG} {n}" for n in range(12)]
    sheet = draw(kind, *sown(names), form)
    ((axes,),) = sheet.panels
    assert names_on_axis(axes) == names
    assert axes.bbox.width > 0.2 * sheet.figure.bbox.width
    labels = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert min(box.x0 for box in labels) >= 0
    assert max(box.x1 for box in labels) <= axes.bbox.x0
    assert not overlaps([shrunk(box) for box in labels])
    words = [text.get_window_extent() for text in axes.texts]
    assert all(axes.bbox.x1 <= box.x0 and box.x1 <= sheet.figure.bbox.x1 for box in words)


@pytest.mark.whole
@pytest.mark.parametrize("form", [FigureForm(), PAPER], ids=["page", "paper"])
@pytest.mark.parametrize(("rows", "long"), [(12, False), (12, True), (1, False)])
def test_nine_columns_go_on_below_with_legible_headings(rows, long, form):
    names = [f"{LONG if long else 'row'} {n}" for n in range(rows)]
    headings = [f"column {n}" for n in range(9)]
    plan, table = sown(names, headings)
    sheet = draw(gain, plan, table, form)
    shown = [label for (axes,) in sheet.panels for label in axes.get_xticklabels()]
    assert [label.get_text() for label in shown] == headings
    assert not overlaps([label.get_window_extent() for label in shown])
    assert sheet.figure.get_figwidth() < 11
    assert len({axes.get_ylim() for (axes,) in sheet.panels}) == 1
    means = {(e.row, e.column): e.gain.mean for e in table.entries if e.gain}
    colours = inks(plan)
    width = len(sheet.panels[0][0].get_xticks())
    for (row, column), mean in means.items():
        line, place = divmod(headings.index(column), width)
        near = [
            (y, colour) for x, y, colour in points(sheet.panels[line][0]) if abs(x - place) < 0.5
        ]
        assert (mean, colours[row].colour) in near
    (legend,) = sheet.figure.legends
    assert [t.get_text().replace("\n", " ") for t in legend.get_texts()] == names
    box = legend.get_window_extent()
    assert not [axes for (axes,) in sheet.panels if axes.bbox.overlaps(box)]
    assert box.x0 >= 0
    assert box.x1 <= sheet.figure.bbox.x1
    assert box.y0 >= max((text.get_window_extent().y1 for text in notes_of(sheet)), default=0)


def notes_of(sheet):
    """The texts below the panels."""
    return [text for text in sheet.figure.texts if text is not sheet.figure._suptitle]


def said(sheet):
    return " ".join(" ".join(text.get_text().split()) for text in sheet.figure.texts)


def test_a_missing_interval_has_its_mark_and_its_reason():
    """The table hides an interval that is wider than the whole scale."""
    plan, table = wild()
    hidden = [entry.row for entry in table.entries if entry.gain and entry.gain.low is None]
    assert hidden == ["wild"]
    for kind in (gain, forest):
        sheet = draw(kind, plan, table)
        ((axes,),) = sheet.panels
        (mark,) = [text for text in axes.texts if text.get_text() == "[-]"]
        gains = {entry.row: entry.gain.mean for entry in table.entries if entry.gain}
        assert mark.xy == (gains["wild"], 1)
        assert len(bars(axes, 0)) == 1
        assert not bars(axes, 1)
        assert re.search(r"\[-\], .*points: wild", said(sheet))
        assert "Bars: 95 %" in said(sheet)


def wild():
    """A row whose two seeds differ so much that its interval is hidden, and one that has one."""
    plan = make_plan(["base", "tame", "wild"], seeds=2, spread="paired")
    values = {"base": [50.0, 50.2], "tame": [51.0, 51.3], "wild": [40.0, 75.0]}
    return plan, tabulate(plan, plant(plan, values))


def test_a_figure_without_intervals_promises_no_bars():
    plan = make_plan(["base", "other"], seeds=1)
    one_seed = plan, tabulate(plan, plant(plan, {"base": [90.0], "other": [91.0]}))
    for (drawn_plan, table), reason in ((one_seed, "a single seed"), (designed(), "changes")):
        sheet = draw(gain, drawn_plan, table)
        assert "Bars:" not in said(sheet)
        assert re.search(f"No gain .*{reason}", said(sheet))


@pytest.mark.parametrize(
    ("smoke", "values", "reason"),
    [(True, [90.0, 91.0], "smoke"), (False, [90.0, 90.0], "equal"), (False, [90.0], "single")],
)
def test_a_figure_states_why_means_have_no_bars(smoke, values, reason):
    plan = make_plan(["base", "other"], ("1", "2"), len(values))
    columns = tuple(Column(c.label, {"model.depth": int(c.label)}) for c in plan.columns)
    plan = replace(plan, columns=columns, smoke=smoke)
    results = plant(plan, {"base": values, "other": values})
    lines = said(draw(across, plan, tabulate(plan, results)))
    reasons = {"smoke": "smoke test has", "equal": "seeds are equal", "single": "single seed"}
    assert [name for name, words in reasons.items() if words in lines] == [reason]


def test_runs_without_a_recorded_step_are_left_out_of_gradient_norms():
    plan = make_plan(["base", "other"], seeds=2)
    cells = tuple(with_sections(cell, probe=["gradnorm"]) for cell in plan.cells)
    plan = replace(plan, cells=cells)
    table = tabulate(plan, plant(plan, {"base": [90.0, 91], "other": [92.0, 93]}))
    groups = np.array(["embedding", "blocks.0.attn", "head"])

    def rundir(run, rows):
        steps = np.arange(5 * run.startswith(rows))
        arrays = {"steps": steps, "groups": groups, "norms": np.ones((len(steps), 3), "f4")}
        return SimpleNamespace(read_probe=lambda probe: arrays)

    sheet = draw(gradnorm, plan, table, rundir=lambda run: rundir(run, "base"))
    assert [*sheet.names] == ["base"]
    with pytest.raises(NotYet):
        draw(gradnorm, plan, table, rundir=lambda run: rundir(run, "none"))


# --- Changes ------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("design", ["factorial", "one_at_a_time", "leave_one_out", "both"])
def test_changes_have_their_values_verdicts_and_seeds_on_an_axis(design):
    plan, table = designed(design=design)
    (block,) = [block for block in table.blocks if block.kind == "change"]
    metric = table.metric_of()
    sheet = draw(changes, plan, table)
    ((axes,),) = sheet.panels
    assert axes.get_xlabel() == "gain, points"
    assert len(axes.get_xticks()) > 2
    assert names_on_axis(axes) == [line.full_label for line in block.lines]
    verdicts = {line.verdict for line in block.lines}
    assert verdicts > {"can't tell"}
    assert verdicts & {"helps", "hurts"}
    for n, line in enumerate(block.lines):
        gain = line.gain
        assert (gain.low, gain.high) in bars(axes, n)
        assert (gain.mean, n) in [(x, y) for x, y, _ in points(axes)]
        text = next(text for text in axes.texts if text.get_position()[1] == n)
        interval = metric.interval(gain.low, gain.high, sign=True)
        assert text.get_text() == f"{metric.text(gain.mean, sign=True)} {interval} {line.verdict}"
        by_seed = line.by_seed
        assert [*by_seed] == [0, 1, 2]
        assert np.mean([*by_seed.values()]) == pytest.approx(gain.mean, abs=1e-9)
        dots = [[*x.get_xdata()] for x in axes.lines if is_dots(x)]
        assert [*by_seed.values()] in dots


def test_changes_of_a_paper_have_verdicts_alone():
    plan, table = designed()
    ((axes,),) = draw(changes, plan, table, PAPER).panels
    (block,) = [block for block in table.blocks if block.kind == "change"]
    assert [text.get_text() for text in axes.texts] == [line.verdict for line in block.lines]


def test_columns_of_changes_share_a_scale():
    plan, table = designed(columns=("model.arch=mu/4,mu/2",))
    sheet = draw(changes, plan, table)
    assert len(sheet.panels) == 2
    assert len({axes.get_xlim() for (axes,) in sheet.panels}) == 1


def test_one_wide_interval_of_a_change_is_cut():
    plan, table = designed()
    block = next(block for block in table.blocks if block.kind == "change")
    first, *others = block.lines
    wide = replace(first, gain=replace(first.gain, low=-900.0, high=900.0))
    blocks = (replace(block, lines=(wide, *others)), *table.blocks[1:])
    sheet = draw(changes, plan, replace(table, blocks=blocks))
    ((axes,),) = sheet.panels
    low, high = axes.get_xlim()
    assert -50 < low < high < 50
    assert "arrows: dpn" in said(sheet)
    assert "Cut at" not in said(draw(changes, plan, table))


# --- Pairs --------------------------------------------------------------------------------------


def pair_lines(table):
    (block,) = [block for block in table.blocks if block.kind == "pair"]
    return block.lines


def test_pairs_share_a_scale_and_show_the_interval_of_each_effect():
    plan, table = designed()
    sheet = draw(pairs, plan, table)
    means = {e.row: e.accuracy.mean for e in table.entries}
    cells = {frozenset(on): means[label] for label, on in plan.changes.rows.items()}
    panels = [axes for (axes,) in sheet.panels]
    assert len(panels) == len(pair_lines(table)) == 3
    assert len({axes.get_ylim() for axes in panels}) == 1
    for axes, line in zip(panels, pair_lines(table), strict=True):
        change, other_change = line.label.split(" x ")
        corner = {
            (a, b): np.mean(
                [y for on, y in cells.items() if ((change in on), (other_change in on)) == (a, b)]
            )
            for a in (False, True)
            for b in (False, True)
        }
        drawn = [[*x.get_ydata()] for x in axes.lines if [*x.get_xdata()] == [0, 1]]
        assert drawn == [pytest.approx([corner[False, b], corner[True, b]]) for b in (False, True)]
        additive = corner[True, False] + corner[False, True] - corner[False, False]
        (dotted,) = [x for x in axes.lines if [*x.get_xdata()] == [0, EXPECTED]]
        assert [*dotted.get_ydata()] == pytest.approx([corner[False, True], additive])
        (bar,) = [x for x in axes.lines if [*x.get_xdata()] == [EXPECTED] * 2]
        ends = [additive + line.gain.low, additive + line.gain.high]
        assert [*bar.get_ydata()] == pytest.approx(ends)
        assert line.verdict in axes.get_title("left")
        assert table.metric_of().text(line.gain.mean, sign=True) in axes.get_title("left")


@pytest.mark.whole
def test_a_pair_that_is_not_distinguished_from_zero_is_grey():
    plan, table = designed()
    verdicts = [line.verdict for line in pair_lines(table)]
    assert verdicts == [stats.CANT_TELL, TOGETHER[1], stats.CANT_TELL]
    for (axes,), verdict in zip(draw(pairs, plan, table).panels, verdicts, strict=True):
        colours = {to_hex(line.get_color()).upper() for line in axes.lines}
        assert colours == ({FADED} if verdict == "can't tell" else {*COLOURS[:2]})


def test_pairs_without_intervals_are_grey_and_say_so():
    """Of a sweep whose first look is still to come, say."""
    plan, table = designed()
    bare = replace(table, blocks=tuple(block.without_intervals() for block in table.blocks))
    sheet = draw(pairs, plan, bare)
    for (axes,) in sheet.panels:
        assert {to_hex(line.get_color()).upper() for line in axes.lines} == {FADED}
        assert not [line for line in axes.lines if [*line.get_xdata()] == [EXPECTED] * 2]
    assert "No pair has" in said(sheet)
    assert "Bars:" not in said(sheet)


def test_wide_intervals_leave_the_means_their_scale():
    plan, table = designed()
    blocks = tuple(
        replace(block, lines=tuple(widen(line) for line in block.lines)) for block in table.blocks
    )
    sheet = draw(pairs, plan, replace(table, blocks=blocks))
    low, high = sheet.panels[0][0].get_ylim()
    means = [y for (axes,) in sheet.panels for x in axes.lines[-4:] for y in x.get_ydata()]
    assert high - low < 4 * (max(means) - min(means))
    assert "An arrow:" in said(sheet)


def widen(line):
    return replace(line, gain=replace(line.gain, low=-90.0, high=90.0))


def test_pairs_are_a_look():
    """Their intervals are of test scores."""
    assert FIGURE_KINDS["pairs"].gives_intervals


@pytest.mark.whole
def test_long_names_of_changes_leave_the_panels_their_room():
    plan, table = designed(("a dual patch norm", LONG, "gated"))
    for kind in (changes, pairs):
        for form in (FigureForm(), PAPER):
            sheet = draw(kind, plan, table, form)
            share = sheet.figure.bbox.width / len(sheet.axes[0])
            assert all(axes.bbox.width > 0.2 * share for (axes,) in sheet.panels)
            assert not overlaps(boxes_of_titles(sheet))


def boxes_of_titles(sheet):
    """Where the titles of panels are, at their left."""
    boxes = []
    for parts in sheet.panels:
        title = parts[0].get_title(loc="left")
        if not title:
            continue
        (text,) = [
            child
            for child in parts[0].get_children()
            if isinstance(child, Text) and child.get_text() == title
        ]
        boxes.append(text.get_window_extent())
    return boxes


@pytest.mark.whole
@pytest.mark.parametrize("form", [FigureForm(), PAPER], ids=["page", "paper"])
def test_long_headings_of_columns_end_before_the_next_panel(form):
    """They once ran over one another and out of the figure."""
    headings = [f"ViT-S/16, {LONG}, after {n} epochs of pre-training" for n in range(3)]
    sheet = draw(forest, *sown(["row"], headings), form)
    boxes = boxes_of_titles(sheet)
    assert len(boxes) == 3
    assert not overlaps(boxes)
    assert max(box.x1 for box in boxes) <= sheet.figure.bbox.x1
    shown = [parts[0].get_title(loc="left").replace("\n", " ") for parts in sheet.panels]
    assert shown == headings
    plain = draw(forest, *sown(["row"], ["a", "b", "c"]), form)
    room, usual = (sheet.panels[0][0].bbox.height for sheet in (sheet, plain))
    assert room > 0.9 * usual  # the figure grows


# --- Curves -------------------------------------------------------------------------------------


def trained(plan, epochs=4):
    """Folders of runs with metrics: run -> folder. A run's accuracy is in steps of its seed."""
    lines_by_run = {
        run: [
            {
                "epoch": float(e),
                "train_loss": 1 / e + 0.01 * seed,
                "val_top1": 0.1 * e + 0.01 * seed,
            }
            for e in range(1, epochs + 1)
        ]
        for cell in plan.cells
        for seed, run in cell.ids.items()
    }
    return lambda run: SimpleNamespace(read_metrics=lambda: lines_by_run[run])


@pytest.mark.whole
@pytest.mark.parametrize(
    ("columns", "grid"), [(1, (1, 1)), (3, (1, 3)), (4, (2, 2)), (5, (2, 3)), (9, (3, 3))]
)
def test_curves_are_in_a_grid_that_fills_its_sheet(columns, grid):
    headings = [f"column {n}" for n in range(columns)] if columns > 1 else [""]
    plan, table = sown(["row 1", "row 2"], headings)
    sheet = draw(curves, plan, table, rundir=trained(plan))
    lines, across = grid
    assert (len(sheet.axes), len(sheet.axes[0])) == (2 * lines, across)  # loss and accuracy
    assert [parts[0].get_title("left") for parts in sheet.panels] == headings
    colours = inks(plan)
    for loss, accuracy in sheet.panels:
        for axes in (loss, accuracy):
            assert [x.get_color() for x in axes.lines] == [ink.colour for ink in colours.values()]
            assert len({(x.get_linestyle(), x.get_marker()) for x in axes.lines}) == 3
            assert len(axes.collections) == 3  # a band each
        for line in accuracy.lines:
            assert [*line.get_ydata()] == pytest.approx([11, 21, 31, 41])  # of seeds 0, 1, 2
        band = accuracy.collections[0].get_paths()[0].vertices
        at_first = [y for x, y in band if x == 1]
        assert (min(at_first), max(at_first)) == pytest.approx((10, 12))
    legends = [*sheet.figure.legends, *filter(None, (a.get_legend() for a in sheet.figure.axes))]
    (legend,) = legends
    assert [text.get_text() for text in legend.get_texts()] == ["base", "row 1", "row 2"]
    box = legend.get_window_extent()
    shown = [axes for parts in sheet.panels for axes in parts]
    assert not [axes for axes in shown if axes.bbox.overlaps(box)]
    assert (not sheet.figure.legends) == (columns == 5)  # in the empty place, where there is one


def test_a_report_of_changes_says_nothing_of_rows_without_intervals():
    """Its changes have them; where rows should have them, the report says that none has."""

    def first_element(plan, table):
        page = render_page(plan, table, [], (), {})
        return page.partition('id="gains"')[2].partition("</h2>")[2].split()[:2]

    plan, table = designed()
    assert any(line.verdict for line in table.blocks[0].lines)
    remark = ["<p", 'class="quiet">No']
    assert first_element(plan, table) != remark
    assert first_element(replace(plan, changes=None), table) == remark
