"""Chooses the sentences of a caption on what the noise of a column's gains was estimated from.

english/noise.py puts them into words. Used by `tabulate.py`, for every command that shows a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ablate.analysis.note import Note, notes, sentence
from ablate.analysis.sequential import ColumnCourse, noise_of_looks
from ablate.analysis.table import TableColumn
from ablate.planning import Plan


def noise_notes(
    plan: Plan, columns: Sequence[TableColumn], courses: Mapping[str, ColumnCourse]
) -> Iterator[Note]:
    """Yield what the caption says of each column's spread: a noisy baseline, which widens
    intervals, and why images don't determine the spread, where they might. A reason that all
    columns share comes once, without their names. `courses`: of a sweep with looks, by column."""
    lacking = {column.label: _lacking_images(plan, column) for column in columns}
    is_shared = len({*lacking.values()}) == 1
    for column in columns:
        place = (None, column.label)
        course = None if column.on else courses.get(column.label)
        if course is not None:
            at_looks = noise_of_looks(plan, course, column.heading)
            yield from notes("caption", at_looks, place)
        elif column.tripped:
            baseline_noise = sentence(
                "noise.baseline",
                column=column.heading,
                ratio=column.baseline_ratio,
                by_images=column.judged_by == "images",
            )
            yield from notes("caption", [baseline_noise], place)
        key, reason = lacking[column.label]
        if reason:
            heading = "" if is_shared else column.heading
            examples = plan.task.examples
            fact = sentence(key, column=heading, examples=examples, reason=reason)
            yield from notes("caption", [fact], place)


def _lacking_images(plan: Plan, column: TableColumn) -> tuple[str, str]:
    """Return the key of the sentence that says what a column loses where its spread can't be
    measured on images, and why it can't; the reason is "" if it can, or if nothing is lost."""
    if plan.spread == "images" and column.lacking:
        if len(column.entries) > 2:
            return "noise.lacking", column.lacking
        if column.judged_by == "paired":
            # The variance of a lone gain is at least that of its flips, where these are known.
            return "noise.no-floor", column.lacking
    return "", ""
