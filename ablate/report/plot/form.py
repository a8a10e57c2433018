"""What the command line says about a figure, whatever the figure shows: style, size, rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ablate.planning.cell import Row
from ablate.shared.errors import UserError, unknown

LEAST, MOST = 1.0, 40.0  # inches of a side
COLUMN, BOTH = 3.3, 6.8  # inches: a column of a two-column paper, and both
PANEL = 2.2  # inches: the least width of a panel
OF_PAGE = 0.5  # height of a figure of a paper, of that of a page

Size = tuple[float, float]  # width and height in inches


@dataclass(frozen=True)
class Style:
    """Where a figure goes: what is written on it, and its settings of matplotlib."""

    heading: bool
    notes: bool
    rc: dict[Any, Any]


STYLES = {
    "page": Style(True, True, {}),
    "paper": Style(
        False,
        False,
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
        True,
        False,
        {"font.size": 15, "lines.linewidth": 2.2, "lines.markersize": 7},
    ),
}


@dataclass(frozen=True)
class Form:
    """The form of a figure. `size`: inches, None for as much as its content takes; `captioned`:
    are heading and notes written where the style has them? `rows`: labels, None for all; `by`:
    "family", whose rows share a style; `highlight`: the label of a row that stands out."""

    style: str = "page"
    size: Size | None = None
    captioned: bool = True
    rows: tuple[str, ...] | None = None
    by: str | None = None
    highlight: str | None = None

    def __post_init__(self) -> None:
        """Raises UserError for an unknown style, and for rows by anything but their family."""
        if self.style not in STYLES:
            raise unknown("--style", self.style, STYLES)
        if self.by not in (None, "family"):
            raise unknown("--by", self.by, ["family"])

    @property
    def heading(self) -> bool:
        return self.captioned and STYLES[self.style].heading

    @property
    def notes(self) -> bool:
        return self.captioned and STYLES[self.style].notes

    def shows(self, row: str) -> bool:
        return self.rows is None or row in self.rows

    def style_of(self, row: Row) -> str:
        """The name of the style that marks of the row have, and the legend: rows of a family share
        one where figures are drawn by family, but for a row that stands out."""
        alone = self.by is None or row.label == self.highlight
        return row.label if alone else row.family or row.label

    def across(self, panels: int, most: int) -> tuple[int, int]:
        """(lines, panels in a line): `most` are legible on a page, as many as have room else."""
        if self.style != "page" or self.size is not None:
            most = max(1, min(most, int(self._width(panels) // PANEL)))
        return -(-panels // most), min(panels, most)

    def _width(self, panels: int) -> float:
        if self.size is not None:
            return self.size[0]
        return 10.0 if self.style == "slides" else COLUMN if panels == 1 else BOTH

    def inches(self, page: Size, panels: int) -> Size:
        """The size of a figure that on a page would have the size `page`."""
        if self.size is not None:
            return self.size
        if self.style == "page":
            return page
        if self.style == "slides":
            return 10.0, 5.6
        return self._width(panels), max(2.4, OF_PAGE * page[1])


def read_size(text: str) -> Size:
    """Read "3.3x2.4", width and height in inches; raises UserError."""
    found = re.fullmatch(r"(\d*\.?\d+)x(\d*\.?\d+)", text.strip())
    size = (float(found[1]), float(found[2])) if found else (0.0, 0.0)
    if not all(LEAST <= side <= MOST for side in size):
        raise UserError(
            f"--size: expected WIDTHxHEIGHT in inches, each from {LEAST:g} to {MOST:g}, such as "
            f"3.3x2.4, got {text!r}"
        )
    return size
