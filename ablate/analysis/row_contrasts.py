"""Judges contrasts between two rows of each column, as gains are judged and in their family.

Used by `tabulate.py`, for every table of a sweep with such contrasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ablate.analysis import stats
from ablate.analysis.across import joined_note
from ablate.analysis.effects import gain_sign, hidden_intervals, own_reasons
from ablate.analysis.evidence import ColumnEvidence, Evidence
from ablate.analysis.judging import Detail, is_partial, judged_by, method_of, shown_gain, verdict_of
from ablate.analysis.sequential import ColumnCourse
from ablate.analysis.summary import Summary, SummaryLine, p_values
from ablate.store import PastLooks


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
    plan, comparisons = evidence.plan, 1
    lines = list[SummaryLine]()
    basis = dict[bool, dict[str, stats.RowGain]]({True: {}, False: {}})  # by images, or without
    for column in evidence.columns:
        method = method_of(plan, column.column.label, past)
        comparisons = max(comparisons, method.contrasts)
        course = courses.get(column.column.label)
        has_verdicts = detail is Detail.VERDICTS
        by_images = _is_by_images(column, method, course, reads_images)
        for line, gain in _judge(column, method, course, reads_images and not courses):
            lines.append(line if has_verdicts else replace(line, verdict=None))
            basis[by_images][f"{line.label} {line.column}".strip()] = gain
    if not lines:
        return ()
    return (
        Summary(
            kind="row_contrast",
            name="row_contrast",
            title="Contrasts between rows",
            note=joined_note(
                "the first row minus the second, among the comparisons of the gains above"
                + gain_sign(plan),
                hidden_intervals(plan, basis[True] | basis[False], detail),
            ),
            contrasts=comparisons,
            lines=tuple(lines),
            basis=joined_note(*(own_reasons(plan, some, by) for by, some in basis.items())),
        ),
    )


def _is_by_images(
    column: ColumnEvidence, method: stats.Method, course: ColumnCourse | None, reads_images: bool
) -> bool:
    """Return whether the contrasts of a column are judged by images, as its gains are."""
    lacking = column.images.lacking if reads_images and course is None else ""
    lacking = course.lacking if course is not None else lacking
    return judged_by(column.plan, method, len(column.scores), lacking) == "images"


def _judge(
    column: ColumnEvidence, method: stats.Method, course: ColumnCourse | None, reads_images: bool
) -> Iterator[tuple[SummaryLine, stats.RowGain]]:
    """Yield the contrasts of a column whose rows share a run, with their gains as they were judged:
    by its looks, with means alone before these did, in a sweep that has looks."""
    plan, scores = column.plan, {scores.cell.row: scores for scores in column.scores}
    labels, contrasts = list(scores), plan.contrasts_in(scores)
    if not contrasts:
        return
    flips = None
    if reads_images and column.images.right is not None:
        flips = stats.Flips((column.images.right,))
    words = stats.NEUTRAL if plan.metric.neutral else stats.COMPARED
    pairs = [(labels.index(contrast.row), labels.index(contrast.base)) for contrast in contrasts]
    gains = stats.contrast_gains(column.means(plan), pairs, method, column.unstable, flips)
    for contrast, gain in zip(contrasts, gains, strict=True):
        if course is not None and gain is not None:
            alone = stats.RowGain(stats.Estimate(gain.gain.mean, None, None, gain.gain.n))
            gain = course.contrasts.get(contrast.difference, alone)
        if gain is not None:
            between = contrast.row, contrast.base
            judgeable = not any(is_partial(plan, scores[row]) for row in between)
            line = SummaryLine(
                label=contrast.label,
                column=column.column.label,
                gain=shown_gain(gain, plan.metric),
                verdict=verdict_of(gain.gain, plan.analysis.margin, judgeable, words),
                p_values=p_values(gain),
                between=between,
            )
            yield line, gain
