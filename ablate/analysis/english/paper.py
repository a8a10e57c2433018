"""The sentences on published figures and ours.

Used by `write` in `registry.py`, for sentences that analysis/paper.py chooses. A new writer also
needs `python tests/json_page.py`, which lists its key in docs/json.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from ablate.analysis.english.registry import writes
from ablate.analysis.english.words import first_few, prefixed


@writes("paper", exact=True)
def paper(table: str, has_pm: bool, wide: float) -> str:
    """`has_pm`: whether figures have a +-; `wide`: an interval that is so many times as wide as the
    published gain is too wide to compare with."""
    pm = ""
    if has_pm:
        pm = (
            " The paper calls its +- a 95 % interval over at least 3 runs; its values look like "
            "standard errors."
        )
    return (
        f"Published figures are of {table}.{pm} Where data, resolution, steps and recipe match, "
        f"a cell has our value minus the published one. Where only data and architecture match, "
        f"it says whether our gain has the published direction (can't tell: our interval includes "
        f"0, or the published gain is 0), and whether the published gain lies in our interval "
        f"(too wide: the interval is wider than {wide} times the published gain). Elsewhere, where "
        f"data or architecture are others, the published figure stands alone (not compared)."
    )


@writes("paper.comparable")
def paper_comparable(columns: Sequence[str]) -> str:
    return f"Comparable with the paper: {first_few(columns)}."


@writes("paper.not-subtracted")
def paper_not_subtracted(columns: Sequence[str], reason: str) -> str:
    return f"Not comparable, {reason}: {first_few(columns)}."


@writes("paper.ranks")
def paper_ranks(column: str, tau: float, p: float, rows: int) -> str:
    return prefixed(
        column,
        f"rank agreement with the paper's gains: Kendall's tau {tau:+.2f} (exact p = {p:.2g}, "
        f"{rows} rows).",
    )


@writes("recipe", exact=True)
def recipe(caveat: str, lines: str) -> str:
    """`caveat`: "inferred" or "not followed"."""
    return f"{caveat.capitalize()} in our recipe: {lines}."
