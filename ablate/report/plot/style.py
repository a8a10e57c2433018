"""Sets the style of every figure, and writes its file: letters, sizes, fixed bytes.

Used by `__init__.py` and by all files here that draw. The figures of the bundles in docs/studies
are drawn anew by `python tests/study_page.py --reprint`.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, font_scalings, get_font
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from matplotlib.transforms import ScaledTranslation

from ablate.analysis import Table
from ablate.planning import Plan
from ablate.report.plot.form import GREY, LETTERS, OF_CHANGES, STYLES, WIDEST, FigureForm, Size
from ablate.shared import UserError

LINES, SPACED = 4, 1.2  # of notes that any figure has room for; from line to line, in letters
SMALL = 0.4  # inches of a panel: below, nothing can be read
FOREST_PAD = 0.2  # inches around a forest: words at the right of a panel are not names of the next
GAP = 0.08  # inches between notes, a legend and the panels
OVERLAP = 0.3  # of a line: its ascenders and descenders
SIDE = 0.36, 0.8  # of the width and height of a figure: a larger legend is below the panels
LEAST_WIDTH = 6.2  # inches of a page: notes below narrower ones are long and thin
SCALE = 2.2  # inches: the least width of a scale next to names and words

RC: dict[Any, Any] = {
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "figure.titlesize": "medium",
    "font.size": LETTERS,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 2.6,  # a period of the longest dashes
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    "path.simplify": False,  # every point that was measured is in the file
    "pdf.fonttype": 42,  # whole TrueType fonts: publishers refuse Type 3
    "ps.fonttype": 42,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a label's $ is a $
}


@contextlib.contextmanager
def styled(name: str, style: str = "page") -> Iterator[None]:
    """Set our style without the user's matplotlibrc, so that the same runs give the same bytes.
    `name` keeps the ids of several figures in one page apart. Letters that the font lacks cause no
    warnings, see `Drawing.missing_letters`."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC | STYLES[style].rc | {"svg.hashsalt": name})
        yield


@dataclass(frozen=True)
class Subject:
    """The subject of a figure of a kind, in this form. `heading`: names it."""

    plan: Plan
    table: Table
    form: FigureForm
    kind: str
    heading: str


LETTER = 0.6  # its width, of its size, on average
PLACES = 6  # decimals of a panel's place, of the figure's size


class SteadyLayout(ConstrainedLayoutEngine):
    """The constrained layout, with the places of panels rounded: the last bits of its solver differ
    from figure to figure, and the names in an SVG are hashes of these places."""

    def execute(self, fig: Figure) -> Any:
        result = super().execute(fig)
        for axes in fig.axes:
            x, y, width, height = axes.get_position(original=True).bounds
            place = (
                round(x, PLACES),
                round(y, PLACES),
                round(width, PLACES),
                round(height, PLACES),
            )
            axes.set_position(place, which="original")
            axes.set_in_layout(True)  # which `set_position` ends
        return result


class Drawing:
    """A figure: panels, and marks with titles that a pointer shows (SVG)."""

    def __init__(
        self,
        subject: Subject,
        panels: tuple[int, int],
        size: Size,
        wide: bool = False,
    ) -> None:
        """Prepare a figure. `panels`: rows and columns; `size`: of a page, in inches; `wide`:
        whether it takes both columns of a paper, as several panels side by side do. The sweep's
        title is the first line below; an unfinished sweep says so above, in any form."""
        plan, table, form, heading = subject.plan, subject.table, subject.form, subject.heading
        self.kind, self._form = subject.kind, form
        size = form.inches(size, panels[1] + wide)
        self.letters = 13 * size[0] * RC["font.size"] / matplotlib.rcParams["font.size"]  # a line's
        self.figure = Figure(figsize=size, layout=SteadyLayout())
        self.axes: list[list[Axes]] = self.figure.subplots(*panels, squeeze=False).tolist()
        above = [*([heading] if form.heading else []), *table.texts("smoke", "unfinished")]
        self._grow(self.figure.suptitle(_wrapped(above, self.letters)), 1)
        title = f"Sweep {plan.name}" if plan.title == plan.name else plan.title
        self._subject = (title, table.trained_on)
        self.panels = [[axes] for line in self.axes for axes in line]  # (column, part)
        self._spare: list[Axes] = []  # an empty place among the panels, for the legend
        self.names: dict[str, Any] = {}  # of the legend: a row -> its mark
        self._notes: Text | None = None
        self._legend: Legend | None = None
        self._legend_is_below = False
        self._legend_width = 0.0  # inches of a line of one name
        self._titles: list[str] = []
        self._lines = [heading]
        some = form.rows is not None and len(form.rows) < len(plan.rows)
        self._rows_shown = (
            f"Rows shown: {len(form.rows or ())} of {len(plan.rows)}." if some else ""
        )

    @classmethod
    def of_panels(
        cls,
        subject: Subject,
        titles: Sequence[str],
        most_across: int,
        panel: Size,
        edge: Size = (2.6, 0.0),
        x: str = "",
        y: Sequence[str] = ("",),
    ) -> Drawing:
        """Prepare a figure with a panel for each title, of the size `panel`, `most_across` side by
        side on a page, next to an `edge`. `x`, `y`: names of axes; with several `y` each has a part
        of the panel, one below the other."""
        lines, across = subject.form.across(len(titles), most_across)
        size = edge[0] + panel[0] * across, edge[1] + panel[1] * lines
        sheet = cls(subject, (len(y) * lines, across), size)
        places = [(n // across * len(y), n % across) for n in range(lines * across)]
        columns = [[sheet.axes[down + i][column] for i in range(len(y))] for down, column in places]
        for spare in itertools.chain(*columns[len(titles) :]):
            spare.set_axis_off()
        sheet.panels, sheet._spare = columns[: len(titles)], [c[0] for c in columns[len(titles) :]]
        for n, parts in enumerate(sheet.panels):
            parts[-1].set_xlabel(x)
            for axes, name in zip(parts, y if n % across == 0 else (), strict=False):
                axes.set_ylabel(name)
        sheet._write_titles(titles, across, 1 - edge[0] / size[0])
        return sheet

    def _write_titles(self, titles: Sequence[str], across: int, share: float) -> None:
        """Write the title of each panel, in lines that end where the next panel begins. `share`: of
        the figure's width, which its panels take together."""
        width = 72 * share * self.figure.get_figwidth() / across
        labels = [
            parts[0].set_title(title, loc="left")
            for parts, title in zip(self.panels, titles, strict=True)
        ]
        for label in labels:
            letters = width / (LETTER * float(label.get_fontsize()))
            label.set_text(_wrapped([label.get_text()], max(8, letters)))
        for start in range(0, len(labels), across):
            line = labels[start : start + across]
            self._grow(max(line, key=lambda label: label.get_text().count("\n")), 1)

    @classmethod
    def of_lines(
        cls,
        subject: Subject,
        titles: Sequence[str],
        names: Sequence[str],
        words: Sequence[str],
        x: str,
    ) -> Drawing:
        """Prepare a forest: a panel for each title, two side by side where a page has room for
        them, and in each a line for every one of the names, the first on top. `words`: all that
        `write_right` will write."""
        form = subject.form
        letter = matplotlib.rcParams["font.size"] * font_scalings[_line_size(form)]
        name_width = max(_inches(form.wrapped_name(name), letter) for name in names)
        right = max((_inches(text, letter) for text in words), default=0.0)
        edge = 0.3 + name_width, 1.0
        scale = SCALE if len(titles) > 1 else max(SCALE, LEAST_WIDTH - edge[0] - right)
        panel = scale + right + 0.2, 0.8 + form.line_height(names) * len(names)
        fit = form.style != "page" or edge[0] + 2 * panel[0] <= WIDEST
        sheet = cls.of_panels(
            subject,
            titles,
            most_across=2 if fit else 1,
            panel=panel,
            edge=edge,
            x=x,
        )
        if len(sheet.axes[0]) > 1:
            engine = sheet.figure.get_layout_engine()
            assert isinstance(engine, ConstrainedLayoutEngine)
            engine.set(w_pad=FOREST_PAD)
        sheet._name_lines(names)
        return sheet

    def write_right(self, axes: Axes, line: float, text: str) -> None:
        """Write a text at the right of a line of a forest."""
        axes.text(
            1.02,
            line,
            text,
            transform=axes.get_yaxis_transform(),
            va="center_baseline",
            fontsize=_line_size(self._form),
        )

    def _name_lines(self, names: Sequence[str]) -> None:
        """Make a forest of the panels: a line for each of the names, the first on top."""
        for n, (axes,) in enumerate(self.panels):
            wrapped_names = [self._form.wrapped_name(name) for name in names]
            labels = [""] * len(names) if n % len(self.axes[0]) else wrapped_names
            axes.set_yticks(range(len(names)), labels)
            axes.tick_params(axis="y", length=0)
            axes.set_ylim(len(names) - 0.5, -0.5)
            axes.grid(axis="y", visible=False)
            axes.spines["left"].set_visible(False)

    def tell(self, artist: Artist, text: str, row: str | None = None) -> None:
        """Title a mark with its meaning; the first mark of a `row` is in the legend."""
        artist.set_gid(f"{self.kind}-{len(self._titles)}")
        self._titles.append(text)
        if row is not None:
            self.names.setdefault(row, artist)

    def dots(self, axes: Axes, x: Any, y: Any, colour: str, direction: tuple[int, int]) -> Artist:
        """Draw small dots next to their places, so that a mark there hides none. `direction`: in
        which they are moved."""
        marker = matplotlib.rcParams["lines.markersize"]  # points
        dx, dy = (0.8 * marker * way / 72 for way in direction)
        moved = axes.transData + ScaledTranslation(dx, dy, self.figure.dpi_scale_trans)
        size = {"markersize": 0.5 * marker, "markeredgewidth": 0}
        (artist,) = axes.plot(x, y, "o", color=colour, alpha=0.7, transform=moved, **size)
        return artist

    def foot(self, *lines: str, length: float | None = None) -> None:
        """Draw the legend, and write the title and the explanation below the panels, where the form
        has notes. `length`: of a handle of the legend, in letters."""
        if self.names:
            self._draw_legend(length)
        lines = tuple(filter(None, (*self._subject, *lines, self._rows_shown)))
        self._lines += lines
        if self._form.notes:
            text = _wrapped(lines, 1.25 * self.letters)
            self._notes = self.figure.text(
                0.01,
                0.01,
                text,
                ha="left",
                va="bottom",
                fontsize="small",
                color=GREY,
            )
            self._grow(self._notes, LINES)

    def _grow(self, text: Text, lines: int) -> None:
        """Make room for the lines of a text beyond these, which the size of a figure allows for:
        else a long note takes the room of the panels."""
        extra_lines = text.get_text().count("\n") + 1 - lines
        if extra_lines > 0 and self._form.size is None:
            line = SPACED * float(text.get_fontsize()) / 72
            self.figure.set_figheight(self.figure.get_figheight() + extra_lines * line)

    @property
    def caption(self) -> str:
        """The title and explanation that a figure without notes leaves to the caption of a paper,
        as sentences; "" where the figure shows them itself."""
        ends = (".", "?", "!", ":")
        lines = (line if line.endswith(ends) else f"{line}." for line in self._lines)
        return "" if self._form.notes else " ".join(lines)

    def _draw_legend(self, length: float | None) -> None:
        """Write the names of marks: in an empty place among the panels, else at their side, else
        below them, where they are too long or too many."""
        letter = font_scalings["small"] * matplotlib.rcParams["font.size"]
        names = [self._form.wrapped_name(name) for name in self.names]
        handle = 2.6 if length is None else length
        width = max(_inches(name, letter) for name in names) + (handle + 1.5) * letter / 72
        self._legend_width = width
        height = sum(_height(name, letter, 1.3) for name in names)
        inches = self.figure.get_size_inches()
        options: dict[str, Any] = {
            "fontsize": "small",
            "handlelength": length,
            "borderpad": 0,
            "borderaxespad": 0.2,
        }
        share = inches / (len(self.axes[0]), len(self.axes))
        if self._spare and width < share[0] and height < len(self.panels[0]) * share[1]:
            legend = self._spare[0].legend(self.names.values(), names, loc="upper left", **options)
            legend.set_in_layout(False)
            return
        if width <= SIDE[0] * inches[0] and height <= SIDE[1] * inches[1]:
            self._legend = self.figure.legend(
                self.names.values(), names, loc="center right", labelspacing=0.2, **options
            )
            return
        across = min(len(names), max(1, int((inches[0] - 0.1) / (width + 1.5 * letter / 72))))
        options |= {"ncols": across, "columnspacing": 1.5, "labelspacing": 0.3}
        self._legend = self.figure.legend(self.names.values(), names, loc="lower center", **options)
        self._legend_is_below = True
        if self._form.size is None:
            self.figure.set_figheight(inches[1] + height / across + 0.1)

    def _lay_out(self) -> bool:
        """Place the notes at the foot of the figure, the legend above them or at the side, and the
        panels in the rest: by itself matplotlib places notes and a legend in the same room. Return
        whether a rest is left, without which matplotlib can't draw."""
        inches, engine = self.figure.get_size_inches(), self.figure.get_layout_engine()
        to_figure = self.figure.transFigure.inverted().transform_bbox
        bottom, right = 0.0, 1.0
        if self._notes is not None:
            bottom = to_figure(self._notes.get_window_extent()).y1 + GAP / inches[1]
        if self._legend is not None:
            box = to_figure(self._legend.get_window_extent())
            anchor = (0, bottom, 1, 1 if self._legend_is_below else 1 - bottom)
            self._legend.set_bbox_to_anchor(anchor, self.figure.transFigure)
            if self._legend_is_below:
                bottom += box.height + 2 * GAP / inches[1]
            else:
                right -= box.width + 2 * GAP / inches[0]
        assert isinstance(engine, ConstrainedLayoutEngine)
        engine.set(rect=(0, bottom, right, 1 - bottom))
        return bottom < 1 and right > 0

    def content(self, format: str) -> bytes:
        """Return the content of the file: svg, pdf or png. The same figure has the same bytes.
        Raises UserError where the size that the user gave is too small."""
        if self._form.style != "page":
            self._fold()
        has_room = self._lay_out()
        if self._form.size is not None and not (has_room and self._fits()):
            width, height = self._form.size
            fewer = "" if self.kind in OF_CHANGES else ", or fewer rows with --rows"
            raise UserError(
                f"--size {width:g}x{height:g}: too small for the letters of the {self.kind} "
                f"figure; give a larger size{fewer}"
            )
        content = io.BytesIO()
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
        self.figure.savefig(content, format=format, metadata=undated[format])
        if format != "svg":
            return content.getvalue()
        text = content.getvalue().decode()
        for number, title in enumerate(self._titles):
            place = f'<g id="{self.kind}-{number}">'
            text = text.replace(place, f"{place}<title>{escape(title)}</title>", 1)
        return text.encode()

    def missing_letters(self) -> str:
        """Return the letters that the font of the figure lacks, each once: a PDF or a PNG has boxes
        in their place, an SVG keeps them as text."""
        charmap = get_font(findfont(FontProperties())).get_charmap()
        texts = (artist.get_text() for artist in self.figure.findobj(Text))
        letters = dict.fromkeys(itertools.chain.from_iterable(texts))
        return "".join(
            letter for letter in letters if letter.isprintable() and ord(letter) not in charmap
        )

    def _fold(self) -> None:
        """Fold the names of axes to their panels, whose sizes are about those of equal shares."""
        lines, across = len(self.axes), len(self.axes[0])
        width, height = (72 * side for side in self.figure.get_size_inches())
        for axes in self.figure.axes:
            for label, share in (
                (axes.yaxis.label, height / lines),
                (axes.xaxis.label, width / across),
            ):
                size = label.get_fontproperties().get_size_in_points()
                letters = 0.75 * share / (LETTER * size)
                label.set_text(_wrapped([label.get_text()], max(8, letters)))

    def _fits(self) -> bool:
        """Return whether every panel has room, and no letters leave the figure or cover others."""
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter("always")
            self.figure.draw_without_rendering()
        if any("constrained_layout" in str(warning.message) for warning in records):
            return False
        if self._legend_width > self.figure.get_figwidth():
            return False
        inch, bounds = self.figure.dpi, self.figure.bbox
        for axes in self.figure.axes:
            if axes.bbox.width < SMALL * inch or axes.bbox.height < SMALL * inch:
                return False
            labels = [label.get_window_extent() for label in axes.get_yticklabels()]
            ends = sorted((box.y0, box.y1) for box in labels if box.width)
            if any(b[0] < a[1] - OVERLAP * (a[1] - a[0]) for a, b in itertools.pairwise(ends)):
                return False
        legends = [*self.figure.legends, *(axes.get_legend() for axes in self.figure.axes)]
        legend_boxes = [legend.get_window_extent() for legend in filter(None, legends)]
        texts = [text for text in self.figure.texts if text.get_text()]
        text_boxes = [text.get_window_extent() for text in texts]
        axes_names = [a.label for axes in self.figure.axes for a in (axes.xaxis, axes.yaxis)]
        boxes = [*legend_boxes, *text_boxes, *(name.get_window_extent() for name in axes_names)]
        return all(
            bounds.y0 <= box.y0 and box.y1 <= bounds.y1 for box in boxes if box.height
        ) and not any(box.count_overlaps(text_boxes) for box in legend_boxes)


def _wrapped(lines: Sequence[str], letters: float) -> str:
    return "\n".join(part for line in lines for part in textwrap.wrap(line, int(letters)))


def _line_size(form: FigureForm) -> str:
    """Return the size of letters at both sides of a line of a forest."""
    return "medium" if form.style == "page" else "small"


def _inches(text: str, letter: float) -> float:
    """Return the width of a text, in letters of so many points: that of its longest line."""
    font = FontProperties(size=letter)
    widths = (
        text_to_path.get_text_width_height_descent(line, font, False)[0]
        for line in text.split("\n")
    )
    return float(max(widths)) / 72


def _height(text: str, letter: float, spaced: float) -> float:
    """Return the height of a text, in inches. `spaced`: from line to line, in letters."""
    return spaced * letter * (text.count("\n") + 1) / 72
