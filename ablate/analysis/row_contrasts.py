"""Judges contrasts between two rows of each column, as gains are judged and in their family.

Used by `tabulate.py`, for every table of a sweep with such contrasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ablate.analysis import stats
from ablate.analysis.across import joined_note
from ablate.analysis.effects import hidden_intervals, own_reasons
from ablate.analysis.evidence import ColumnEvidence, Evidence
from ablate.analysis.judging import Detail, is_partial, method_of, shown_gain, verdict_of
from ablate.analysis.sequential import ColumnCourse
from ablate.analysis.summary import Summary, SummaryLine, p_values
from ablate.store import PastLooks


class JudgedContrast(NamedTuple):
    """A contrast in a column. `gain`: of its first row over its second; `judgeable`: it may have a
    verdict."""

    label: str
    column: str
    gain: stats.RowGain
    judgeable: bool


def contrast_blocks(
    evidence: Evidence,
    detail: Detail,
    past: PastLooks | None,
    courses: Mapping[str, ColumnCourse],
    reads_images: bool,
) -> tuple[Summary, ...]:
    """Make the block of contrasts between rows, () without any. `detail`: what may be shown of
    them; `past`: the looks before; `courses`: the looks of each column, in a sweep that has them;
    `reads_images`: whether to read which images runs get right."""
    plan = evidence.plan
    words = stats.COMPARED
    if plan.metric.neutral:
        words = stats.NEUTRAL
    judgements, comparisons = list[JudgedContrast](), 1
    for column in evidence.columns:
        method = method_of(plan, column.column.label, past)
        comparisons = max(comparisons, method.contrasts)
        course = courses.get(column.column.label)
        judgements += _judge(column, method, course, reads_images and not courses)
    lines, gains = list[SummaryLine](), dict[str, stats.RowGain]()
    for contrast in judgements:
        judgeable = contrast.judgeable and detail is Detail.VERDICTS
        margin, gain = plan.analysis.margin, contrast.gain
        line = SummaryLine(
            label=contrast.label,
            column=contrast.column,
            gain=shown_gain(gain, plan.metric),
            verdict=verdict_of(gain.gain, margin, judgeable, words),
            p_values=p_values(gain),
        )
        lines.append(line)
        gains[f"{line.label} {line.column}".strip()] = gain
    if not lines:
        return ()
    return (
        Summary(
            kind="row_contrast",
            name="row_contrast",
            title="Contrasts between rows",
            note=joined_note(
                "the first row minus the second, among the comparisons of the gains above",
                hidden_intervals(plan, gains),
            ),
            contrasts=comparisons,
            lines=tuple(lines),
            basis=own_reasons(plan, gains),
        ),
    )


def _judge(
    column: ColumnEvidence, method: stats.Method, course: ColumnCourse | None, reads_images: bool
) -> Iterator[JudgedContrast]:
    """Yield the contrasts of a column whose rows share a run: as its looks judged them, with means
    alone before these did, in a sweep that has looks."""
    plan, scores = column.plan, {scores.cell.row: scores for scores in column.scores}
    labels, contrasts = list(scores), plan.contrasts_in(scores)
    if not contrasts:
        return
    flips = None
    if reads_images and column.images.right is not None:
        flips = stats.Flips((column.images.right,))
    y = column.means(plan)
    for contrast in contrasts:
        rows = labels.index(contrast.row), labels.index(contrast.base)
        gain = stats.contrast_gain(y, rows, method, column.unstable, flips)
        if course is not None and gain is not None:
            alone = stats.RowGain(stats.Estimate(gain.gain.mean, None, None, gain.gain.n))
            gain = course.contrasts.get(contrast.difference, alone)
        if gain is not None:
            partial = is_partial(plan, scores[contrast.row])
            partial = partial or is_partial(plan, scores[contrast.base])
            yield JudgedContrast(contrast.label, column.column.label, gain, not partial)
