"""The sentences on published figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from ablate.analysis.english.registry import writes
from ablate.analysis.english.words import first_few, prefixed


@writes("paper")
def paper(table: str, has_pm: bool, wide: float) -> str:
    """`has_pm`: whether figures have a +-; `wide`: an interval that is so many times as wide as the
    published gain says nothing."""
    pm = ""
    if has_pm:
        pm = (
            " The paper calls its +- a 95 % interval over at least 3 runs; the printed values fit "
            "a standard error."
        )
    return (
        f"Beside it: {table}, with its gains.{pm} Where data, resolution, steps and recipe match, "
        f"a cell has our value minus the published value. Elsewhere a cell says whether our gain "
        f"has the direction of the published gain (can't tell: our interval includes 0, or the "
        f"published gain is 0), and whether the published gain lies in our interval (says nothing: "
        f"in one that is wider than {wide} times the published gain)."
    )


@writes("paper.comparable")
def paper_comparable(columns: Sequence[str]) -> str:
    return f"Comparable: {first_few(columns)}."


@writes("paper.not-subtracted")
def paper_not_subtracted(columns: Sequence[str], reason: str) -> str:
    return f"Not subtracted, {reason}: {first_few(columns)}."


@writes("paper.ranks")
def paper_ranks(column: str, tau: float, p: float, rows: int) -> str:
    return prefixed(
        column,
        f"rank agreement of the gains, Kendall's tau {tau:+.2f} (exact p = {p:.2g}, {rows} rows).",
    )


@writes("recipe")
def recipe(caveat: str, lines: str) -> str:
    """`caveat`: "inferred" or "not followed"."""
    return f"{caveat.capitalize()} in our recipe: {lines}."
