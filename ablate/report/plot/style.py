"""Sets the style of every figure, and writes its file: colours, marks, sizes, fixed bytes.

Colours are those of Okabe and Ito (2008), told apart by every kind of colour vision, less the
yellow, which white paper swallows. What differs in colour differs in marker, fill and dashes, too,
so that a figure is read in grey.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ablate.analysis.table import Table
from ablate.planning.plan import Plan

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">")
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1.2)), (0, (5, 1, 1, 1, 1, 1)))
BLACK, GREY = "#000000", "#666666"
MAP = "cividis"  # light and dark in order, whatever the eye

RC: dict[Any, Any] = {
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "figure.titlesize": "medium",
    "font.size": 9,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 2.6,  # a period of the longest dashes
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    "path.simplify": False,  # every point that was measured is in the file
    "pdf.fonttype": 42,  # text that can be searched and edited
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a label's $ is a $
}


@dataclass(frozen=True)
class Ink:
    """The colour, mark and dashes of a row, the same in every figure of its sweep."""

    colour: str
    marker: str
    dashes: Any
    filled: bool

    def mark(self, **more: Any) -> dict[str, Any]:
        """Arguments of `Axes.plot`, for points."""
        face = self.colour if self.filled else "white"
        return {"color": self.colour, "marker": self.marker, "markerfacecolor": face, **more}

    def line(self, **more: Any) -> dict[str, Any]:
        """... and for lines."""
        return {"color": self.colour, "linestyle": self.dashes, **more}


def inks(plan: Plan) -> dict[str, Ink]:
    """Choose the style of each row. The baseline is black; any two of the first 20 others differ in
    grey, too."""
    found = {plan.baseline: Ink(BLACK, "o", "-", True)}
    for n, row in enumerate(row.label for row in plan.rows if row.label != plan.baseline):
        found[row] = Ink(
            COLOURS[n % len(COLOURS)],
            MARKERS[(n + 1) % len(MARKERS)],
            DASHES[(n + 1) % len(DASHES)],
            filled=(n + 1) // len(MARKERS) % 2 == 0,
        )
    return found


@contextlib.contextmanager
def styled(name: str) -> Iterator[None]:
    """Set our style without the user's matplotlibrc, so that the same runs give the same bytes.

    `name` keeps the ids of figures apart that stand in one page.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC | {"svg.hashsalt": name})
        yield


class Drawing:
    """A figure: panels, and marks with titles that a pointer shows (SVG)."""

    def __init__(
        self,
        plan: Plan,
        table: Table,
        kind: str,
        heading: str,
        panels: tuple[int, int],
        size: tuple[float, float],
    ) -> None:
        """`heading`: what is drawn; `panels`: rows and columns; `size`: inches. The sweep's title
        is the first line below; an unfinished sweep says so above."""
        self.kind = kind
        self.letters = 13 * size[0]  # of a line
        self.figure = Figure(figsize=size, layout="constrained")
        self.axes: list[list[Axes]] = self.figure.subplots(*panels, squeeze=False).tolist()
        missing = [note for note in table.notes if note.startswith("UNFINISHED")]
        self.figure.suptitle(_wrapped([heading, *missing], self.letters))
        self._title = f"Sweep {plan.name}" if plan.title == plan.name else plan.title
        self._titles: list[str] = []

    def columns(self, count: int, parts: int = 1) -> list[list[Axes]]:
        """The panels of `count` columns, (column, part): parts lie one below the other, and columns
        that have no place in a line go on in the next. What is left over is taken away."""
        across = len(self.axes[0])
        found = [
            [self.axes[n // across * parts + part][n % across] for part in range(parts)]
            for n in range(len(self.axes) // parts * across)
        ]
        for spare in itertools.chain(*found[count:]):
            spare.remove()
        return found[:count]

    def tell(self, artist: Artist, text: str) -> None:
        """Name a mark."""
        artist.set_gid(f"{self.kind}-{len(self._titles)}")
        self._titles.append(text)

    def foot(self, *lines: str) -> None:
        """Write the title and the explanation below the panels."""
        text = _wrapped([self._title, *lines], 1.25 * self.letters)
        self.figure.supxlabel(text, x=0.01, ha="left", fontsize="small", color=GREY)

    def legend(self, entries: dict[str, Any]) -> None:
        """Write the names of marks beside the panels."""
        self.figure.legend(
            entries.values(), entries.keys(), loc="outside right center", fontsize="small"
        )

    def content(self, format: str) -> bytes:
        """Return the file: svg, pdf or png. The same figure has the same bytes."""
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


def folded(count: int, most: int) -> tuple[int, int]:
    """(lines, panels in a line) of `count` panels: a page shows no more than `most` legibly."""
    return -(-count // most), min(count, most)


def _wrapped(lines: list[str], letters: float) -> str:
    return "\n".join(part for line in lines for part in textwrap.wrap(line, int(letters)))


def mosaic(axes: Axes, maps: Any, low: float, high: float) -> Any:
    """Maps (n, h, w) side by side, a place apart, in one panel; returns the image. The middle of
    map i is at x = i (w + 1) + (w - 1) / 2."""
    import numpy as np

    number, height, width = maps.shape
    whole = np.full((height, number, width + 1), np.nan)
    whole[:, :, :width] = maps.transpose(1, 0, 2)
    whole = whole.reshape(height, -1)[:, :-1]
    image = axes.imshow(whole, cmap=MAP, vmin=low, vmax=high, interpolation="nearest")
    axes.set_axis_off()
    return image
