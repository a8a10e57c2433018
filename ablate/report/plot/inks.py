"""Chooses the colour, mark and dashes of each row, without matplotlib: other views use them, too.

The first six colours are those of Okabe and Ito (2008), less the yellow, which white paper
swallows. The others were chosen one by one, each as far as possible from all before it: in CIELAB,
for full colour vision and for each kind of colour blindness (Machado et al. 2009). Rows differ in
marker, fill and dashes, too, so that a figure is read in grey.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ablate.planning.plan import Plan

COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8700F0"),
    *("#692D0F", "#2D1E96", "#5A3C5A", "#C3B469", "#9678FF", "#E1004B", "#960087"),
    *("#3C693C", "#A5C3A5", "#963C00", "#961ED2", "#D200B4", "#7896F0"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">")
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1.2)), (0, (5, 1, 1, 1, 1, 1)))
BLACK, GREY = "#000000", "#666666"


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
    """The style of a place, from 1: 0 is that of what is black."""
    return Ink(
        BLACK if black else COLOURS[(place - 1) % len(COLOURS)],
        MARKERS[place % len(MARKERS)],
        DASHES[place % len(DASHES)],
        filled=place // len(MARKERS) % 2 == 0,
    )
