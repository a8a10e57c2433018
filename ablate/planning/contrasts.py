"""Contrasts between two rows: `contrasts: {NAME: {from: ROW, to: ROW}}`, and `--contrast "A - B"`.

A contrast of `analysis.contrasts` that names `across` is the change of gains between two columns;
one without is the difference of two rows in each column, to minus from, a comparison as a gain is.

Used by `analysis_keys.py` and `plan.py`, whose `Plan.with_contrasts` is for cli/selection.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ablate.shared import UserError, unknown_value

ACROSS_COLUMNS = frozenset({"across", "from", "to"})  # keys of a contrast between two columns
BETWEEN_ROWS = frozenset({"from", "to"})  # and between two rows
CONTRAST_KEYS = (ACROSS_COLUMNS, BETWEEN_ROWS)
MINUS = " - "  # between the two sides of a difference
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
        if self.name == self.difference:
            return self.name
        return f"{self.name}: {self.difference}"


def check_row_contrasts(
    place: str, contrasts: Sequence[RowContrast], rows: Sequence[str] | None, baseline: str
) -> None:
    """Raise UserError for a contrast with a row that is none of `rows`, of a row with itself, with
    the baseline, and for the second of two that compare the same rows. `place`: what errors say
    before a contrast's name; `rows`: None for a design, whose rows are not judged."""
    earlier_names: dict[frozenset[str], str] = {}
    for contrast in contrasts:
        location = f"{place}{contrast.name}"
        if rows is None:
            raise UserError(
                f"{location}: the table of a design judges changes and no rows; remove the contrast"
            )
        for label in (contrast.row, contrast.base):
            if label not in rows:
                raise unknown_value(location, label, rows, "a row among")
        if contrast.row == contrast.base:
            raise UserError(f"{location}: {contrast.row} minus itself is 0; name two rows")
        if baseline in (contrast.row, contrast.base):
            variant = contrast.row
            if variant == baseline:
                variant = contrast.base
            raise UserError(
                f"{location}: {baseline} is the baseline, so this is the gain of {variant}, which "
                f"the table has; name two other rows"
            )
        earlier = earlier_names.setdefault(frozenset((contrast.row, contrast.base)), contrast.name)
        if earlier != contrast.name:
            raise UserError(f"{location}: compares the rows of {earlier!r} again; remove one")


def add_contrasts(
    contrasts: Mapping[str, Mapping[str, Any]],
    texts: Sequence[str],
    labels: Mapping[str, str],
    option: str,
) -> dict[str, Mapping[str, Any]]:
    """Return the contrasts of an analysis with further ones, each as "ROW - ROW"; one that is there
    stays as it is. `labels`: of rows, by label and alias; `option`: that has the texts. Raises
    UserError for a text without " - ", and for one that is the name of another contrast."""
    extended = dict(contrasts)
    for text in texts:
        row, base = _split(text, labels, option)
        name, contrast = f"{row}{MINUS}{base}", {"from": base, "to": row}
        if contrast in extended.values():
            continue
        if name in extended:
            raise UserError(
                f"{option} {name}: another contrast of the sweep has this name; rename that one"
            )
        extended[name] = contrast
    return extended


def _split(text: str, labels: Mapping[str, str], option: str) -> tuple[str, str]:
    """Split "ROW - ROW" into labels, which may have " - " themselves; what is no label stays."""
    splits = list(_splits(text))
    if not splits:
        rows = ", ".join(labels)
        raise UserError(f"{option}: expected {FORM}, two rows among {rows}, got {text!r}")

    def fitting(parts: tuple[str, str]) -> int:
        return (parts[0] in labels) + (parts[1] in labels)

    row, base = max(splits, key=fitting)
    return labels.get(row, row), labels.get(base, base)


def _splits(text: str) -> Iterator[tuple[str, str]]:
    words = text.split(MINUS)
    for k in range(1, len(words)):
        yield MINUS.join(words[:k]).strip(), MINUS.join(words[k:]).strip()
