"""Properties that all figures share, without matplotlib: the options of the command line; colour,
mark and dashes of each row; the runs that are drawn.

The first six colours are those of Okabe and Ito (2008), less the yellow, which is hard to see on
white paper. The others were chosen one by one, each as far as possible from all before it: in
CIELAB, for full colour vision and for each kind of colour blindness (Machado et al. 2009). Rows
differ in marker, fill and dashes, too, so that a figure can be read in grey.

Used by all files here, cli/looking.py (the options of `ablate plot`) and watch/answers.py
(colours). A new colour may also need its shade in watch/curves.py `ON_DARK`; a new style also needs
its name in the option `style` of cli/looking.py.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ablate.analysis import Table
from ablate.planning import Plan, PlannedRun, Row
from ablate.run import RunDir
from ablate.shared import UserError, unknown_value

LEAST_SIDE, MOST_SIDE = 1.0, 40.0  # inches of a side
COLUMN, BOTH = 3.3, 6.8  # inches: a column of a two-column paper, and both
PANEL = 2.2  # inches: the least width of a panel
WIDEST = 10.8  # inches of a page: wider ones are scaled down until nobody can read their letters
LETTERS = 9.0  # points of a page's letters
OF_CHANGES = ("changes", "pairs")  # kinds of figures that show changes, whichever rows these have
OF_PAGE = 0.5  # height of a figure of a paper, of that of a page

Size = tuple[float, float]  # width and height in inches


@dataclass(frozen=True)
class Style:
    """The use of a figure, for a page or a paper, say: the words on it, and its settings of
    matplotlib."""

    heading: bool
    notes: bool
    name_letters: int  # at most in a line of a row's name
    rc: dict[Any, Any]


STYLES = {
    "page": Style(True, True, 32, {}),
    "paper": Style(
        False,
        False,
        22,
        {
            "font.size": 8.5,  # of which small is 7.1
            "axes.labelsize": "small",
            "axes.linewidth": 0.6,
            "axes.titlesize": "small",
            "figure.titlesize": "small",
            "lines.linewidth": 1.0,
            "lines.markersize": 3.5,
            "savefig.dpi": 600,
            "xtick.labelsize": "small",
            "ytick.labelsize": "small",
        },
    ),
    "slides": Style(
        True, False, 24, {"font.size": 15, "lines.linewidth": 2.2, "lines.markersize": 7}
    ),
}


@dataclass(frozen=True)
class FigureForm:
    """The form of a figure. `size`: inches, None for as much as its content takes; `captioned`:
    whether heading and notes are written where the style has them; `rows`: labels, None for all;
    `grouping`: "family", if rows of a family share a style; `highlight`: the label of a row that
    stands out."""

    style: str = "page"
    size: Size | None = None
    captioned: bool = True
    rows: tuple[str, ...] | None = None
    grouping: str | None = None
    highlight: str | None = None

    def __post_init__(self) -> None:
        """Raise UserError for an unknown style, for a side that is too short or too long, and for
        rows by anything but their family."""
        if self.style not in STYLES:
            raise unknown_value("--style", self.style, STYLES)
        if self.size is not None and not all(LEAST_SIDE <= side <= MOST_SIDE for side in self.size):
            raise size_error("x".join(f"{side:g}" for side in self.size))
        if self.grouping not in (None, "family"):
            raise unknown_value("--by", self.grouping, ["family"])

    @staticmethod
    def read_size(text: str) -> Size:
        """Read "3.3x2.4", width and height in inches; raises UserError."""
        match = re.fullmatch(r"(\d*\.?\d+)x(\d*\.?\d+)", text.strip())
        if match is None:
            raise size_error(text)
        return float(match[1]), float(match[2])

    @property
    def heading(self) -> bool:
        return self.captioned and STYLES[self.style].heading

    @property
    def notes(self) -> bool:
        return self.captioned and STYLES[self.style].notes

    def of_sweep(self, plan: Plan, kind: str) -> FigureForm:
        """Return the form with the labels that rows of the sweep have, in its order and with its
        baseline. Raises UserError for a row that the sweep lacks, for the baseline as the row that
        stands out, and for an option that this kind of figure lacks."""
        if kind != "gain" and (self.grouping or self.highlight):
            option = "--by" if self.grouping else "--highlight"
            raise UserError(f"{option}: is of the figure gain; leave it out")
        if kind in OF_CHANGES and self.rows is not None:
            raise UserError(f"--rows: the figure {kind} has no rows; leave it out")
        labels = [row.label for row in plan.rows]
        names = plan.row_names
        rows, highlight = self.rows, self.highlight
        if rows is not None:
            for name in rows:
                if name not in names:
                    raise unknown_value("--rows", name, labels)
            selection = {plan.baseline, *(names[name] for name in rows)}
            rows = tuple(label for label in labels if label in selection)
        if highlight is not None:
            candidates = [label for label in rows or labels if label != plan.baseline]
            highlight = names.get(highlight, highlight)
            if highlight not in candidates:
                raise unknown_value("--highlight", self.highlight, candidates)
        return replace(self, rows=rows, highlight=highlight)

    def shows(self, row: str) -> bool:
        return self.rows is None or row in self.rows

    def style_of(self, row: Row) -> str:
        """Return the name of the style that the row has in marks and in the legend: rows of a
        family share one where figures are drawn by family, except for a row that stands out."""
        alone = self.grouping is None or row.label == self.highlight
        return row.label if alone else row.family or row.label

    def across(self, panels: int, most_across: int) -> tuple[int, int]:
        """Return (lines, panels in a line), with as many panels in each line as in the others where
        that takes no further line. On a page of its usual size at most `most_across` panels, which
        are legible, are side by side; else as many of these as have room."""
        if self.style != "page" or self.size is not None:
            most_across = max(1, min(most_across, int(self._width(panels) // PANEL)))
        lines = -(-panels // most_across)
        return lines, -(-panels // lines)

    def wrapped_name(self, name: str) -> str:
        """Return the name of a row in as few lines as are short enough for the style, about as long
        as one another."""
        most_letters = STYLES[self.style].name_letters
        lines = textwrap.wrap(name, most_letters)
        if len(lines) < 2:
            return name
        for letters in range(-(-len(name) // len(lines)), most_letters):
            if len(shorter_lines := textwrap.wrap(name, letters)) == len(lines):
                return "\n".join(shorter_lines)
        return "\n".join(lines)

    def line_height(self, names: Iterable[str]) -> float:
        """Return the inches between two rows, named as here, in a figure of the size of a page."""
        most_lines = max((self.wrapped_name(name).count("\n") + 1 for name in names), default=1)
        if self.style == "page":
            return max(0.3, 0.1 + 0.16 * most_lines)
        return max(0.3, (0.05 + 0.125 * most_lines) / OF_PAGE)

    def _width(self, panels: int) -> float:
        if self.size is not None:
            return self.size[0]
        return 10.0 if self.style == "slides" else COLUMN if panels == 1 else BOTH

    def rooms_for_columns(self) -> tuple[float, ...]:
        """Return the inches that columns of gains may take side by side, in letters as large as a
        page's: in a figure of the usual width, and in a wider one where the style has it."""
        if self.style == "page" and self.size is None:
            return (WIDEST - 2.6,)
        has_two_widths = self.style == "paper" and self.size is None
        widths = (COLUMN, BOTH) if has_two_widths else (self._width(1),)
        smaller = LETTERS / STYLES[self.style].rc.get("font.size", LETTERS)
        return tuple(smaller * (width - 0.6) for width in widths)

    def inches(self, page: Size, panels: int) -> Size:
        """Return the size in inches of a figure that would have the size `page` on a page."""
        if self.size is not None:
            return self.size
        if self.style == "page":
            return page
        if self.style == "slides":
            return 10.0, 5.6
        return self._width(panels), max(2.4, OF_PAGE * page[1])


def size_error(text: str) -> UserError:
    """Return the error for a text that is no size, or for a size with a side out of bounds."""
    return UserError(
        f"--size: expected a width and a height from {LEAST_SIDE:g} to {MOST_SIDE:g} inches, such "
        f"as 3.3x2.4, got {text!r}"
    )


RunDirs = Callable[[str], RunDir]  # a run's id -> its folder
Arrays = Mapping[str, Any]
ByCell = dict[tuple[str, str], dict[int, Arrays]]  # (row, column) -> seed -> arrays


class Nothing(UserError):
    """There is no data to draw."""


class NotYet(Nothing):
    """There is no data to draw yet: the sweep makes it, or one whose runs measure `probe`, too."""

    def __init__(self, text: str, probe: str = "") -> None:
        super().__init__(text)
        self.probe = probe


def probed(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm, probe: str) -> ByCell:
    """Read the measurements of a probe, in the plan's order, without cells that have none.

    Raises NotYet where no run has any.
    """
    arrays_by_cell: ByCell = {}
    for run in in_order(plan, table, form):
        arrays = rundir(run.id).read_probe(probe) if probe in run.cell.spec.probes else {}
        if arrays:
            arrays_by_cell.setdefault((run.cell.row, run.cell.column), {})[run.seed] = arrays
    if arrays_by_cell:
        return arrays_by_cell
    if any(probe in cell.spec.probes for cell in plan.cells):
        raise NotYet(f"{plan.name}: no run has measured {probe} yet")
    raise NotYet(f"{plan.name}: its runs did not measure {probe}", probe)


def in_order(plan: Plan, table: Table, form: FigureForm) -> Iterator[PlannedRun]:
    """Yield the runs of the rows shown by row, column and seed, without runs that the table
    withholds."""
    for row in filter(lambda row: form.shows(row.label), plan.rows):
        for column in plan.columns:
            if cell := plan.cell(row.label, column.label):
                for seed, run in cell.ids.items():
                    if run not in table.withheld:
                        yield PlannedRun(run, cell.at_seed(seed), seed)


def cell_name(row: str, column: str) -> str:
    """Return the name of a cell."""
    return f"{row}, {column}" if column else row


COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#8700F0",
    "#692D0F",
    "#2D1E96",
    "#5A3C5A",
    "#C3B469",
    "#9678FF",
    "#E1004B",
    "#960087",
    "#3C693C",
    "#A5C3A5",
    "#963C00",
    "#961ED2",
    "#D200B4",
    "#7896F0",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">")
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1.2)), (0, (5, 1, 1, 1, 1, 1)))
BLACK, GREY = "#000000", "#666666"
MARKS = 6  # on a line


@dataclass(frozen=True)
class Ink:
    """The colour, mark and dashes of a row, the same in every figure of its sweep."""

    colour: str
    marker: str
    dashes: Any
    filled: bool

    def mark(self, **options: Any) -> dict[str, Any]:
        """Arguments of `Axes.plot`, for points."""
        face = self.colour if self.filled else "white"
        return {"color": self.colour, "marker": self.marker, "markerfacecolor": face, **options}

    def line(self, **options: Any) -> dict[str, Any]:
        """... and for lines."""
        return {"color": self.colour, "linestyle": self.dashes, **options}

    def marked_line(self, points: int, place: int) -> dict[str, Any]:
        """... and for a line of so many points with about MARKS marks, which stand at other points
        than those of the line before it. `place`: of the line among those of its panel."""
        step = max(1, round(points / MARKS))
        return self.line() | self.mark(markevery=(place % step, step))

    def band(self) -> dict[str, Any]:
        """... and of `Axes.fill_between`."""
        return {"color": self.colour, "alpha": 0.18, "linewidth": 0}


def inks(plan: Plan, styles: Mapping[str, str] | None = None) -> dict[str, Ink]:
    """Choose the style of each row by its place in the plan, whichever rows are drawn. The baseline
    is black; any two of the first 20 others differ in colour, and in grey, too. `styles`: row ->
    the name of a style, which has the place of its first row; None: each row has its own."""
    names = [(styles or {}).get(row.label, row.label) for row in plan.rows]
    places = [[*dict.fromkeys(names)].index(name) for name in names]
    return {
        row.label: ink_of(place, row.label == plan.baseline)
        for place, row in zip(places, plan.rows, strict=True)  # the baseline is first as a rule
    }


def ink_of(place: int, black: bool = False) -> Ink:
    """Return the style of a place, counted from 1; place 0 has the style of whatever is black."""
    return Ink(
        BLACK if black else COLOURS[(place - 1) % len(COLOURS)],
        MARKERS[place % len(MARKERS)],
        DASHES[place % len(DASHES)],
        filled=place // len(MARKERS) % 2 == 0,
    )
