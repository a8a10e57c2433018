"""Recognises runs that are the same by their results, whatever their ids.

An id hashes what was trained, including the name of an imported sheet and the code of a program. So
the same numbers get another id under another name, or when a program is trained again to the same
bits after a comment in it was edited. But numbers that were read once have been read. So a look
keeps a mark of each result next to the ids, and before looks are compared, every row that has the
results of an earlier row gets the ids of that row.

A mark is "WEAK/STRONG": hashes of (seed, value), and of (test set, seed, value, predictions).
Predictions identify a run reliably, so one equal mark suffices. Values are rounded, and two values
of one seed can be equal by chance, so without predictions two seeds must agree. Rows that differ in
any seed that both have are different rows.

Used by `store/looks.py`, wherever a look is recorded or compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ablate.planning import Cell, Plan
from ablate.run import OwnSpec

if TYPE_CHECKING:  # which has marks
    from ablate.store.looks import InterimLook, ReadColumn, ReadRow

Results = Mapping[str, Mapping[str, Any] | None]  # what result.json says, by run
DIGITS = 9  # of a value: shares and percents of one number agree in these
FEWEST_WEAK = 2  # seeds whose values agree by chance in no two rows of a store


def result_marks(
    plan: Plan, cell: Cell, runs: Mapping[int, str], results: Results
) -> dict[int, str]:
    """Return the mark of each run of a cell that has a result, by seed. `runs`: seed -> id."""
    marks = {seed: _mark(plan, cell, seed, results.get(run) or {}) for seed, run in runs.items()}
    return {seed: mark for seed, mark in marks.items() if mark}


def _mark(plan: Plan, cell: Cell, seed: int, result: Mapping[str, Any]) -> str:
    """Return the mark of a result; "" if it says nothing of the metric, as for a run that
    diverged."""
    metric, test = plan.metric, result.get("test") or {}
    has_own_trainer = isinstance(cell.spec, OwnSpec)
    value = None
    # The loss of a set that is read again in a bundle may differ in its last digits.
    if (has_own_trainer or metric.is_share) and metric.key in test and not metric.own:
        value = f"{metric.scale * test[metric.key]:.{DIGITS}g}"
    weak = "" if value is None else _hash(seed, value)
    strong = ""
    if sha256 := result.get("predictions_sha256"):
        sets = [data["fingerprint"] for data in cell.spec.datasets[:1]]
        strong = _hash(sets, seed, value if has_own_trainer else None, sha256)
    return f"{weak}/{strong}" if weak or strong else ""


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _agree(mark: str, other_mark: str) -> tuple[bool, bool]:
    """Compare two marks; return (whether they are equal, whether by predictions).

    Predictions are compared where both marks have them, values otherwise. (False, False) where the
    marks have nothing in common.
    """
    (weak, strong), (weak_there, strong_there) = mark.split("/"), other_mark.split("/")
    if strong and strong_there:
        return strong == strong_there, True
    return bool(weak) and weak == weak_there, False


@dataclass(eq=False)  # two rows may have no runs yet
class _KnownRow:
    """A row as it was first read: its spec, and by seed the ids and the marks of its runs."""

    spec: str
    runs: dict[int, str] = field(default_factory=dict)
    marks: dict[int, str] = field(default_factory=dict)

    def is_row_of(self, marks: Mapping[int, str]) -> bool:
        """Return whether runs with these marks have the same results in every seed that both have.

        One seed must agree by predictions, or FEWEST_WEAK seeds by values.
        """
        shared_seeds = self.marks.keys() & marks.keys()
        agreed = [_agree(self.marks[seed], marks[seed]) for seed in shared_seeds]
        surely = any(by_predictions for _, by_predictions in agreed)
        return all(equal for equal, _ in agreed) and (surely or len(agreed) >= FEWEST_WEAK)


class SameRuns:
    """The rows that looks have read, the first look first, and the ids under which later looks have
    them."""

    def __init__(self) -> None:
        self._by_spec: dict[str, _KnownRow] = {}
        self._by_mark: dict[str, list[_KnownRow]] = {}  # by one half of a mark
        self._ids: dict[str, str] = {}  # of a run -> that of the first with its result

    def renamed(self, look: InterimLook) -> InterimLook:
        """Return the look, its rows with known results under the spec and ids that were first read.

        Rows of one look are never united.
        """
        columns = {label: self._column(column) for label, column in look.columns.items()}
        is_unchanged = all(columns[label] is column for label, column in look.columns.items())
        return look if is_unchanged else replace(look, columns=columns)

    def _column(self, column: ReadColumn) -> ReadColumn:
        rows: dict[str, ReadRow] = {}
        taken_rows = [
            row for read_row in column.rows.values() if (row := self._by_spec.get(read_row.spec))
        ]
        baseline = column.baseline.marks
        for label, read_row in column.rows.items():
            # A change that did nothing has the baseline's results: they say nothing of who it is.
            is_copy = (
                bool(read_row.marks)
                and read_row is not column.baseline
                and read_row.marks
                == {seed: mark for seed, mark in baseline.items() if seed in read_row.marks}
            )
            known_row = self._by_spec.get(read_row.spec)
            if known_row is None and not is_copy:
                known_row = next(
                    (row for row in self._like(read_row.marks) if row not in taken_rows), None
                )
            if known_row is None:
                known_row = _KnownRow(read_row.spec)
            taken_rows.append(known_row)
            self._by_spec[read_row.spec] = known_row
            rows[label] = self._row(read_row, known_row, {} if is_copy else read_row.marks)
        if all(rows[label] is read_row for label, read_row in column.rows.items()):
            return column
        return replace(column, rows=rows)

    def _like(self, marks: Mapping[int, str]) -> Iterator[_KnownRow]:
        """Yield the known rows with these results, the first read first."""
        checked_rows: list[_KnownRow] = []
        for mark in marks.values():
            for half in mark.split("/"):
                for row in self._by_mark.get(half, ()) if half else ():
                    if row not in checked_rows:
                        checked_rows.append(row)
                        if row.is_row_of(marks):
                            yield row

    def _row(self, read_row: ReadRow, known_row: _KnownRow, marks: Mapping[int, str]) -> ReadRow:
        """Return the row under the spec and the ids of the known row, which gains its other
        runs."""
        runs = {}
        for seed, run in read_row.runs.items():
            if run not in self._ids:
                both = seed in marks and seed in known_row.marks
                is_same = both and _agree(known_row.marks[seed], marks[seed])[0]
                self._ids[run] = known_row.runs.get(seed, run) if is_same else run
            runs[seed] = self._ids[run]
            known_row.runs.setdefault(seed, runs[seed])
        for seed, mark in marks.items():
            if seed not in known_row.marks:
                known_row.marks[seed] = mark
                for half in filter(None, mark.split("/")):
                    self._by_mark.setdefault(half, []).append(known_row)
        if known_row.spec == read_row.spec and runs == read_row.runs:
            return read_row
        return replace(read_row, spec=known_row.spec, runs=runs)


def with_first_ids(
    looks: Sequence[InterimLook], present: InterimLook
) -> tuple[list[InterimLook], InterimLook]:
    """Return the looks (the first read first) and the present one, same results under the same
    ids."""
    same_runs = SameRuns()
    return [same_runs.renamed(look) for look in looks], same_runs.renamed(present)
