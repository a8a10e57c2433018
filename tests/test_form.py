"""The form of figures: what goes onto paper has its size, its fonts and no caption; a row keeps its
colour whichever rows and kinds are drawn."""

import re
import warnings
from dataclasses import replace
from itertools import pairwise

import matplotlib.colors
import numpy as np
import pytest
from support.svg import marks, texts
from support.tables import finished, make_plan, note, plant, tabulate

from ablate.planning import read_labels
from ablate.planning.cell import Column, Row
from ablate.planning.plan import Plan
from ablate.report.plot import DrawnFigure, FigureForm, Nothing, draw_figure
from ablate.report.plot.across import across
from ablate.report.plot.form import inks
from ablate.report.plot.gains import gain
from ablate.report.plot.style import styled
from ablate.report.watch.curves import on_dark
from ablate.shared.errors import UserError

COLUMN = (3.3, 2.4)


def planted(rows, seeds=5):
    labels = ["base", *(f"row number {n}" for n in range(1, rows + 1))]
    plan = make_plan(labels, seeds=seeds)
    noise = np.random.default_rng(0)
    values = {row: 90 + noise.normal() + noise.normal(0, 0.3, seeds) for row in labels}
    return plan, tabulate(plan, plant(plan, values))


def two_columns():
    """Of two columns the names of rows are in a legend."""
    rows = ["base", *(f"row number {n} with a long name of words" for n in range(1, 9))]
    plan = make_plan(rows, ("S/4", "B/4"))
    return plan, tabulate(plan, plant(plan, {row: [90, 91, 92 + len(row) % 3] for row in rows}))


def drawn(rows, kind, form, format="svg") -> DrawnFigure:
    return draw_figure(*planted(rows), kind, lambda run: pytest.fail("reads no run"), format, form)


def plain(kind, text):
    """Make a note of any text, which short notes have too."""
    return note(kind, text).followed_by(())


def colours(svg: str) -> dict[str, set[str]]:
    """Row -> the colours of the strokes and fills of its marks, but white."""
    found: dict[str, set[str]] = {}
    for title, group in marks(svg):
        row = re.match(r"base|row number \d+", title)[0]
        styles = " ".join(element.get("style", "") for element in group.iter())
        hexes = set(re.findall("(?:stroke|fill): (#[0-9a-f]{6})", styles)) - {"#ffffff"}
        found.setdefault(row, set()).update(hexes)
    return found


# --- Of a paper ---------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["gain", "forest"])
def test_a_pdf_has_its_size_and_whole_fonts(kind):
    made = drawn(20, kind, FigureForm("paper", COLUMN), "pdf").content
    (box,) = re.findall(rb"/MediaBox \[ ([^]]+) \]", made)
    assert [float(side) / 72 for side in box.split()] == pytest.approx([0, 0, *COLUMN])
    assert b"/Type3" not in made
    fonts = re.findall(rb"/Type /FontDescriptor", made)
    assert len(fonts) == len(re.findall(rb"/FontFile2 \d+ 0 R", made)) > 0  # TrueType, embedded
    assert set(re.findall(rb"/Subtype /(\w*Type\w*)", made)) == {b"Type0", b"CIDFontType2"}


@pytest.mark.whole
@pytest.mark.parametrize("rows", [2, 10, 20])
@pytest.mark.parametrize("kind", ["gain", "forest"])
def test_a_column_of_a_paper_holds_twenty_rows_in_letters_of_seven_points(rows, kind):
    """matplotlib's SVG is in points, and so are its pixels."""
    made = drawn(rows, kind, FigureForm("paper", COLUMN))
    svg = made.content.decode()
    assert 'viewBox="0 0 237.6 172.8"' in svg
    sizes = {float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)}
    assert min(sizes) >= 7
    labels = texts(svg)
    for label in (f"row number {n}" for n in range(1, rows + 1)):
        assert labels.count(label) == 1
    assert not any("Gain over" in label or "interval" in label for label in labels)
    trained = "Trained on digits, 1,197 images at 8 px, 6 epochs; n = 5."
    begins = f"Gain over base: top-1 accuracy. A planted sweep. {trained} A gain above"
    assert made.caption.startswith(begins)
    assert f"joint for the {rows} comparisons of a column" in made.caption


def test_an_unfinished_sweep_says_so_in_a_paper_too():
    plan, table = planted(2)
    unfinished = replace(table, notes=(plain("unfinished", "UNFINISHED: 1 of 15 runs missing"),))
    form = FigureForm("paper", captioned=False)
    made = draw_figure(plan, unfinished, "gain", lambda run: None, form=form)
    assert "UNFINISHED: 1 of 15 runs missing" in " ".join(texts(made.content.decode()))


def test_a_figure_leaves_to_full_notes_how_numbers_are_computed():
    plan, table = planted(2)
    how = [note("warning", "This is exact."), plain("warning", "This is plain.")]
    made = draw_figure(plan, replace(table, notes=tuple(how)), "gain", lambda run: None)
    said = " ".join(texts(made.content.decode()))
    assert ("This is exact." in said, "This is plain." in said) == (False, True)


@pytest.mark.parametrize(
    ("form", "heading", "notes"),
    [
        (FigureForm(), True, True),
        (FigureForm(captioned=False), False, False),
        (FigureForm("paper"), False, False),
        (FigureForm("slides"), True, False),
    ],
    ids=["page", "no caption", "paper", "slides"],
)
def test_what_is_written_on_a_figure_or_left_to_its_caption(form, heading, notes):
    made = drawn(2, "gain", form)
    said = " ".join(texts(made.content.decode()))
    assert ("Gain over base: top-1 accuracy" in said) == heading
    assert ("intervals over training seeds" in said) == notes
    assert ("intervals over training seeds" in made.caption) != notes


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("forest", FigureForm("paper", (3.3, 1.2))),
        ("gain", FigureForm("paper", (1, 1))),
        ("gain", FigureForm("page", (1, 1))),  # whose notes and legend take more than all of it
        ("gain", FigureForm("page", (1.2, 9))),  # which is narrower than a name of the legend
        ("gain", FigureForm("page", (4, 3))),  # whose legend would cover the heading
    ],
)
def test_a_size_without_room_is_refused(kind, form):
    with pytest.raises(UserError, match=rf"--size .*: too small for the letters of the {kind} f"):
        draw_figure(*two_columns(), kind, lambda run: pytest.fail("reads no run"), form=form)


@pytest.mark.parametrize(("format", "lines"), [("svg", 0), ("png", 1)])
def test_letters_that_the_font_lacks_are_named_in_one_line(format, lines, capsys):
    plan = make_plan(["base", "naïve", "中文, 中"])
    table = tabulate(plan, plant(plan, {row.label: [90, 91, 93] for row in plan.rows}))
    with warnings.catch_warnings(action="error"):
        content = draw_figure(plan, table, "gain", lambda run: pytest.fail("reads no run"), format)
    announced = capsys.readouterr().err.splitlines()
    assert ["中文:" in line for line in announced] == [True] * lines
    assert ("中文, 中" in content.content.decode(errors="ignore")) == (format == "svg")


# --- Rows ---------------------------------------------------------------------------------------


def test_a_row_has_its_colour_whichever_rows_and_kinds_are_drawn():
    whole = colours(drawn(20, "gain", FigureForm()).content.decode())
    plan, _ = planted(20)
    assert whole == {row: {ink.colour.lower()} for row, ink in inks(plan).items() if row != "base"}
    chosen = ("row number 3", "row number 17")
    for kind, style in (("gain", "paper"), ("forest", "page"), ("forest", "slides")):
        some = colours(drawn(20, kind, FigureForm(style, rows=chosen)).content.decode())
        assert some == {row: whole[row] for row in chosen}


def test_rows_are_shown_of_the_whole_family():
    plan, table = planted(6)
    some = draw_figure(
        plan, table, "forest", lambda run: None, form=FigureForm(rows=("row number 2",))
    )
    svg = some.content.decode()
    entry = next(e for e in table.entries if e.row == "row number 2")
    title, *_ = (title for title, _ in marks(svg))
    assert f"[{entry.gain.low:+.2f}, {entry.gain.high:+.2f}] {entry.verdict}, n = 5" in title
    said = " ".join(texts(svg))
    assert "joint for the 6 comparisons of a column of the whole sweep, whichever" in said
    assert "Rows shown: 1 of 7." in said
    assert "row number 3" not in said
    with pytest.raises(Nothing, match="no row of these has a gain; these have: row number 1, row"):
        draw_figure(plan, table, "gain", lambda run: None, form=FigureForm(rows=("base",)))


def test_curves_show_the_chosen_rows_only():
    """One run's metrics in the place of all."""

    class Metrics:
        def read_metrics(self):
            return [{"epoch": e, "train_loss": 1 / e, "val_top1": 0.5} for e in (1.0, 2.0)]

    plan, table = planted(6)
    form = FigureForm("paper", rows=("base", "row number 5"))
    made = draw_figure(plan, table, "curves", lambda run: Metrics(), form=form)
    theirs = inks(plan)["row number 5"].colour.lower()
    assert colours(made.content.decode()) == {"base": {"#000000"}, "row number 5": {theirs}}
    assert made.caption.endswith("Rows shown: 2 of 7.")
    assert "Without" not in made.caption


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("b", ["b"]),
        ("c,b", ["b", "c"]),
        ("b, pre,c", ["b, pre", "c"]),
        ("b,b,pre", ["b", "b, pre"]),
    ],
)
def test_labels_with_commas_are_read_whole(text, rows):
    assert [*read_labels("--rows", text, ["b", "b, pre", "c"])] == rows


def test_wrong_words_are_named_with_the_choices():
    with pytest.raises(UserError, match=r"--rows: expected one of dpn, rms, got 'dqn' \(did you"):
        read_labels("--rows", "rms,dqn", ["dpn", "rms"])
    with pytest.raises(UserError, match="--style: expected one of page, paper, slides, got 'pap"):
        FigureForm("papers")
    for text in ("3.3", "3.3x", "0.5x3", "3x90", "axb", "3,3x2"):
        with pytest.raises(UserError, match="--size: expected a width and a height from 1 to 40"):
            FigureForm(size=FigureForm.read_size(text))
    assert FigureForm.read_size("3.3x2.4") == COLUMN


@pytest.mark.parametrize("kind", ["changes", "pairs"])
def test_figures_of_changes_have_no_rows_to_choose(kind):
    plan, _ = planted(2)
    form = FigureForm(rows=("base",))
    assert form.of_sweep(plan, "gain").rows == ("base",)
    with pytest.raises(UserError) as error:
        form.of_sweep(plan, kind)
    assert str(error.value).startswith("--rows: ")


# --- Families -----------------------------------------------------------------------------------

FAMILIES = {"row number 1": "after", "row number 2": "after", "row number 4": "branch"}


def points_of(form):
    """Row -> the point of its gain, a matplotlib line; and the texts of the legend."""
    labels = ["base", *(f"row number {n}" for n in range(1, 6))]
    plan = make_plan(labels, families=FAMILIES)
    values = {row: [90 + n, 90.3 + 1.1 * n, 90.1 + n] for n, row in enumerate(labels)}
    table = tabulate(plan, plant(plan, values))
    with styled("families"):
        sheet = gain(plan, table, lambda run: pytest.fail("reads no run"), form)
    (axes,) = sheet.figure.axes
    means = {entry.row: entry.gain.mean for entry in table.entries if entry.gain}
    found = {
        row: line
        for row, mean in means.items()
        for line in axes.lines
        if [mean] in ([*line.get_xdata()], [*line.get_ydata()]) and line.get_marker() != "o"
    }
    if not sheet.figure.legends:  # the names are on the axis
        return found, [label.get_text() for label in axes.get_yticklabels()]
    (legend,) = sheet.figure.legends
    return found, [text.get_text() for text in legend.get_texts()]


def look(line):
    return line.get_color(), line.get_marker(), line.get_markerfacecolor()


def test_rows_of_a_family_share_a_colour_a_marker_and_a_line_of_the_legend():
    found, legend = points_of(FigureForm(grouping="family"))
    assert legend == ["after", "row number 3", "branch", "row number 5"]
    looks = {row: look(line) for row, line in found.items()}
    assert len(looks) == 5
    assert looks["row number 1"] == looks["row number 2"]
    assert len({*looks.values()}) == len({colour for colour, *_ in looks.values()}) == 4
    assert len({*map(look, points_of(FigureForm())[0].values())}) == 5


@pytest.mark.parametrize("by", [None, "family"])
def test_the_row_that_stands_out_is_large_on_top_and_itself(by):
    found, legend = points_of(FigureForm(grouping=by, highlight="row number 2"))
    bold, *others = (found[f"row number {n}"] for n in (2, 1, 3, 4, 5))
    assert all(bold.get_markersize() > one.get_markersize() for one in others)
    assert all(bold.get_zorder() > one.get_zorder() for one in others)
    assert look(bold) not in map(look, others)
    assert "row number 2" in legend
    assert (len(legend), "after" in legend) == (5, by == "family")


# --- Over a number of the columns -----------------------------------------------------------------


def over(*settings, rows=("ViT", "BN"), lacking=()):
    """The panels of the figure of columns with these settings, and the plan and table of it."""
    columns = tuple(Column(str(n), one) for n, one in enumerate(settings))
    plan = replace(make_plan(rows, [column.label for column in columns]), columns=columns)
    results = {
        f"{row}@{c}#{s}": finished(0.5 + 0.1 * r + 0.03 * c + 0.001 * (1 + c) * s)
        for r, row in enumerate(rows)
        for c in range(len(columns))
        for s in range(3)
    }
    table = tabulate(plan, results | dict.fromkeys(lacking))
    with styled("across"):
        sheet = across(plan, table, lambda run: pytest.fail("reads no run"), FigureForm())
    return sheet.figure, plan, table


def curves_of(axes):
    """The lines of a panel, without the bars: a point each at other numbers."""
    return [line for line in axes.lines if line.get_marker() not in ("", "None")]


def test_a_panel_a_row_a_line_a_rate_over_the_depths():
    """The column of rate 0.005 at depth 3 is missing, as in the published figure."""
    pairs = [(0.003, 2), (0.003, 4), (0.003, 3), (0.005, 4), (0.005, 2)]
    figure, _, table = over(*({"optim.lr": lr, "model.depth": d} for lr, d in pairs))
    means = {(e.row, pairs[int(e.column)]): e.accuracy for e in table.entries}
    assert [axes.get_title("left") for axes in figure.axes] == ["ViT", "BN"]
    for axes, row in zip(figure.axes, ("ViT", "BN"), strict=True):
        assert axes.get_xlabel() == "model.depth"
        assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "3", "4"]
        one, other = curves_of(axes)
        for line, lr, depths in ((one, 0.003, [2, 3, 4]), (other, 0.005, [2, 4])):
            assert [*map(round, line.get_xdata())] == depths
            assert [*line.get_ydata()] == [means[row, (lr, d)].mean for d in depths]
        assert look(one) != look(other)
        bars = [line for line in axes.lines if line not in (one, other)]
        drawn = {(round(line.get_xdata()[0]), *line.get_ydata()) for line in bars}
        assert drawn == {(d, means[row, p].low, means[row, p].high) for p in pairs for d in p[1:]}
    low, high = figure.axes[0].get_ylim()
    assert figure.axes[1].get_ylim() == (low, high)
    assert low < min(m.low for m in means.values()) < max(m.high for m in means.values()) < high
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == ["optim.lr=0.003", "optim.lr=0.005"]


def test_columns_of_one_number_are_one_panel_with_a_line_a_row():
    figure, plan, _ = over(*({"optim.lr": lr} for lr in (1e-4, 1e-3, 1e-2)))
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert [line.get_color() for line in curves_of(axes)] == [
        ink.colour for ink in inks(plan).values()
    ]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ViT", "BN"]


def test_a_cell_without_a_result_has_no_point():
    lacking = [f"BN@1#{seed}" for seed in range(3)]
    figure, *_ = over(*({"model.depth": d} for d in (1, 2, 3)), lacking=lacking)
    curves = curves_of(figure.axes[0])
    assert [[*map(round, line.get_xdata())] for line in curves] == [[1, 2, 3], [1, 3]]


@pytest.mark.parametrize("numbers", [(4, 8), (1, 2, 3, 4, 5), (1e-4, 1e-3, 1e-2, 1e-1)])
def test_every_mark_of_many_rows_is_inside_and_nearest_to_its_number(numbers):
    rows = tuple(f"row {n}" for n in range(12))
    figure, *_ = over(*({"optim.lr": number} for number in numbers), rows=rows)
    (axes,) = figure.axes
    figure.canvas.draw()
    to_pixels = axes.transData.transform
    ticks = to_pixels([(number, 0.5) for number in numbers])[:, 0]
    for line in curves_of(axes):
        marks = line.get_transform().transform(line.get_xydata())
        assert all(axes.bbox.contains(*mark) for mark in marks)
        nearest = abs(marks[:, :1] - ticks).argmin(axis=1)
        assert [*nearest] == [*range(len(numbers))]


def test_columns_of_two_keys_in_step_or_of_names_are_over_no_number():
    step = [{"model.width": 32, "model.depth": 1}, {"model.width": 64, "model.depth": 2}]
    for settings in (step, [{"model.arch": "mu/4"}, {"model.arch": "mu/2"}]):
        with pytest.raises(Nothing, match="planted: its columns do not differ in a number"):
            over(*settings)


# --- Colours ------------------------------------------------------------------------------------


def lab(rgb):
    """CIELAB (n, 3) of linear RGB, D65."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = rgb.clip(0, 1) @ np.array(to_xyz).T / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], 1)


# Viénot, Brettel and Mollon (1999): what dichromats see, on linear RGB.
NO_RED = [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]
NO_GREEN = [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]


@pytest.mark.parametrize(
    ("view", "few", "all_of_them"),
    [(np.eye(3), 25, 20), (NO_RED, 15, 8), (NO_GREEN, 15, 8)],
    ids=["all colours", "no red", "no green"],
)
def test_twenty_rows_are_told_apart_by_colour(view, few, all_of_them):
    """2.3 is a just noticeable difference (CIE 1976)."""
    plan, _ = planted(20)
    colours = [ink.colour for ink in inks(plan).values()]
    distances = apart(colours, view)
    assert distances[:7, :7].min() > few
    assert distances.min() > all_of_them


def apart(colours, view):
    """Distances (n, n) between colours for somebody's eyes; from itself a colour has 1000."""
    srgb = np.array([matplotlib.colors.to_rgb(colour) for colour in colours])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = lab(linear @ np.array(view).T)
    return np.linalg.norm(seen[:, None] - seen[None], axis=-1) + 1e3 * np.eye(len(seen))


@pytest.mark.parametrize("view", [np.eye(3), NO_RED, NO_GREEN], ids=["all", "no red", "no green"])
def test_seven_rows_are_told_apart_on_the_dark_page(view):
    plan, _ = planted(6)
    colours = [on_dark(ink.colour) for ink in inks(plan).values()]
    assert apart(colours, view).min() > 15


def test_rows_are_told_apart_in_grey_by_their_place():
    rows = tuple(Row(f"row {n}", {}) for n in range(20))
    plan = Plan("p", "", rows, (), (), "row 3", (0,))
    found = inks(plan)
    assert found["row 3"].colour == "#000000"
    assert len({(ink.marker, ink.filled) for ink in found.values()}) == 20
    assert all(one.colour != other.colour for one, other in pairwise(found.values()))
    other = inks(replace(plan, baseline="row 0"))
    assert {row for row in found if found[row] != other[row]} == {"row 0", "row 3"}


@pytest.mark.parametrize("kind", ["gain", "forest"])
def test_long_notes_leave_the_panels_their_room(kind):
    """matplotlib warns where none is left, and a warning fails a test."""
    plan, table = planted(1)
    many = plain("unfinished", "UNFINISHED: " + "many runs " * 60)
    long = replace(table, notes=(many, *[plain("warning", "a note of a table. " * 40)] * 5))
    svg = draw_figure(plan, long, kind, lambda run: None).content.decode()
    assert "UNFINISHED" in " ".join(texts(svg))


# --- The command --------------------------------------------------------------------------------


@pytest.mark.whole
def test_the_command_writes_what_is_asked_or_says_what_contradicts(shell):
    words = ("stem=none,dpn", "model.depth=1", "train.steps=4", "seeds=2", "launcher=inline")
    shell("sweep", *words, "--as", "two")
    done = shell("plot", "gain", "--style", "paper", "--rows", "dpn")
    assert done.out == "two-gain.pdf\n"
    assert "for its caption: Gain over stem=none: top-1 accuracy. " in done.err
    assert "Rows shown" not in done.err  # the baseline is, too
    shell("plot", "curves", "--rows", "dpn")
    told = [title for title, _ in marks((shell.folder / "two-curves.svg").read_text())]
    assert {title.partition(":")[0] for title in told} == {"none", "dpn"}
    assert shell("plot", "gain", "--out", "gain.png").out == "gain.png\n"
    assert (shell.folder / "gain.png").read_bytes().startswith(b"\x89PNG")
    shell("plot", "gain", "--by", "family", "--highlight", "dpn")
    for words, said in (
        ("gain --rows dnp", "--rows: expected one of none, dpn, got 'dnp' (did you mean 'dpn'?)"),
        ("forest --by family", "--by: is of the figure gain; leave it out"),
        ("forest --highlight dpn", "--highlight: is of the figure gain; leave it out"),
        ("gain --highlight none", "--highlight: expected one of dpn, got 'none'"),
        ("gain --by row", "--by: expected one of family, got 'row'"),
    ):
        assert said in shell("plot", *words.split(), code=2).err
