"""Contrasts between two rows: `contrasts: {NAME: {from: ROW, to: ROW}}`, and `--contrast "A - B"`.

A contrast of `analysis.contrasts` that names `across` is the change of gains between two columns;
one without is the difference of two rows in each column, to minus from, a comparison as a gain is.

Used by `expand.py`, `declaration.py` and cli/looking.py, which read contrasts, by store/looks.py
and analysis/judging.py, which count them, and by analysis/row_contrasts.py, which judges them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ablate.shared import UserError, unknown_value

if TYPE_CHECKING:
    from ablate.planning.plan import Plan

ACROSS_COLUMNS = frozenset({"across", "from", "to"})  # keys of a contrast between two columns
BETWEEN_ROWS = frozenset({"from", "to"})  # and between two rows
MINUS = " - "
FORM = "'ROW - ROW'"


class RowContrast(NamedTuple):
    """The difference of two rows: `row` minus `base`, labels both. `name`: its key in
    `analysis.contrasts`."""

    name: str
    row: str
    base: str

    @property
    def difference(self) -> str:
        return f"{self.row}{MINUS}{self.base}"

    @property
    def label(self) -> str:
        """The difference, after its name where that is another."""
        is_named = self.name != self.difference
        return f"{self.name}: {self.difference}" if is_named else self.difference


def row_contrasts(contrasts: Mapping[str, Mapping[str, Any]]) -> list[RowContrast]:
    """List the contrasts between rows among those of an analysis."""
    return [
        RowContrast(name, contrast["to"], contrast["from"])
        for name, contrast in contrasts.items()
        if set(contrast) == BETWEEN_ROWS
    ]


def column_contrasts(contrasts: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the contrasts between columns among those of an analysis, by name."""
    return {name: some for name, some in contrasts.items() if set(some) == ACROSS_COLUMNS}


def check_row_contrasts(
    place: str, contrasts: Sequence[RowContrast], rows: Sequence[str], baseline: str
) -> None:
    """Raise UserError for a contrast with a row that is none of `rows`, of a row with itself, with
    the baseline, and for the second of two that compare the same rows. `place`: what errors say
    before a contrast's name."""
    earlier_names: dict[frozenset[str], str] = {}
    for contrast in contrasts:
        where = f"{place}{contrast.name}"
        for label in (contrast.row, contrast.base):
            if label not in rows:
                raise unknown_value(where, label, rows, "a row among")
        if contrast.row == contrast.base:
            raise UserError(f"{where}: {contrast.row} minus itself is 0; name two rows")
        if baseline in (contrast.row, contrast.base):
            variant = contrast.base if contrast.row == baseline else contrast.row
            raise UserError(
                f"{where}: {baseline} is the baseline, so this is the gain of {variant}, which the "
                f"table has; name two other rows"
            )
        earlier = earlier_names.setdefault(frozenset((contrast.row, contrast.base)), contrast.name)
        if earlier != contrast.name:
            raise UserError(f"{where}: compares the rows of {earlier!r} again; remove one of them")


def check_plan_contrasts(plan: Plan, place: str) -> None:
    """Raise UserError for contrasts between rows that a plan can't have; `place`: as above."""
    contrasts = row_contrasts(plan.analysis.contrasts)
    if contrasts and plan.changes is not None:
        raise UserError(
            f"{place}{contrasts[0].name}: {plan.name} is a design, whose table judges changes and "
            f"no rows; remove the contrast"
        )
    check_row_contrasts(place, contrasts, [row.label for row in plan.rows], plan.baseline)


def with_contrasts(plan: Plan, texts: Sequence[str], option: str) -> Plan:
    """Return a plan whose table also has these contrasts, each as "ROW - ROW"; one that the table
    has stays as it is. `option`: that gives them. Raises UserError for what is no contrast between
    rows of the plan, and where the plan's design keeps its analysis."""
    names = {alias: row.label for row in plan.rows for alias in (row.label, *row.aliases)}
    present = {contrast[1:] for contrast in row_contrasts(plan.analysis.contrasts)}
    contrasts = dict(plan.analysis.contrasts)
    for text in texts:
        row, base = _split(text, names, option)
        if (row, base) not in present:
            contrasts[f"{row}{MINUS}{base}"] = {"from": base, "to": row}
    changed_plan = replace(plan, analysis=replace(plan.analysis, contrasts=contrasts))
    check_plan_contrasts(changed_plan, f"{option} ")
    if contrasts != plan.analysis.contrasts:
        plan.design.check_change(plan, "contrasts")
    return changed_plan


def _split(text: str, names: Mapping[str, str], option: str) -> tuple[str, str]:
    """Split "ROW - ROW" into two labels of rows, which may have " - " themselves. `names`: label or
    alias of each row -> its label."""
    splits = list(_splits(text))
    if not splits:
        raise UserError(f"{option}: expected {FORM}, two rows of {', '.join(names)}, got {text!r}")
    known = [sum(part in names for part in parts) for parts in splits]
    row, base = splits[known.index(max(known))]
    return names.get(row, row), names.get(base, base)


def _splits(text: str) -> Iterator[tuple[str, str]]:
    words = text.split(MINUS)
    for k in range(1, len(words)):
        yield MINUS.join(words[:k]).strip(), MINUS.join(words[k:]).strip()
