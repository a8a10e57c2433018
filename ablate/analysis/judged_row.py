"""A row of a column as its judgement sees it: scores, gain, looks, and the verdict they give.

Used by `tabulate.py`, which makes one for each row of a column, and by `footnotes.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ablate.analysis import stats
from ablate.analysis.judging import Detail, is_partial, verdict_of, verdict_words
from ablate.analysis.scores import Scores
from ablate.analysis.sequential import RowCourse
from ablate.planning import Plan


@dataclass(frozen=True)
class JudgedRow:
    """A row of a column, with the facts from which its verdict, its entry and its footnotes are
    made. `base`: the scores of the baseline; `gain`: None for the baseline; `against`: Fisher's
    test of the row's diverged and collapsed runs; `course`: the decisions of looks, in a sweep that
    has them; `detail`: what may be
    shown of gains; `by_images`: whether the column is judged by
    images."""

    plan: Plan
    scores: Scores
    base: Scores | None
    gain: stats.RowGain | None
    against: stats.Exact | None
    course: RowCourse | None
    detail: Detail
    by_images: bool

    @property
    def judge(self) -> bool:
        """True if the column has verdicts."""
        return self.detail is Detail.VERDICTS

    @property
    def place(self) -> tuple[str, str]:
        return self.scores.cell.row, self.scores.cell.column

    @property
    def judgeable(self) -> bool:
        """True if the row may have a verdict."""
        return self.judge and not is_partial(self.plan, self.scores)

    @property
    def verdict(self) -> str | None:
        gain, analysis, words = self.gain, self.plan.analysis, verdict_words(self.plan)
        margin = analysis.margin if analysis.target is None else None
        verdict = verdict_of(gain.gain, margin, self.judgeable, words) if gain else None
        if gain and verdict == stats.CANT_TELL and gain.stands_out:
            verdict = stats.UNSTABLE
        if self.course is not None:
            verdict = self.course.verdict if self.judge else None
        return stats.DID_NOTHING if verdict is not None and self._did_nothing else verdict

    @property
    def _did_nothing(self) -> bool:
        """True if the predictions of every seed that both have are those of the baseline, bit for
        bit."""
        mine, theirs = (self._predictions(scores) for scores in (self.scores, self.base))
        # Runs of a sheet without seeds have no pairs: each of the row counts.
        seeds = mine.keys() & theirs.keys() if self.plan.design.blocks else mine.keys()
        return bool(seeds) and all(mine[s] and mine[s] == theirs.get(s) for s in seeds)

    def _predictions(self, scores: Scores | None) -> dict[int, str | None]:
        """Return the hash of the predictions of each run with a result, by its seed; None where it
        has no predictions."""
        if scores is None:
            return {}
        seeds = [s for s in self.plan.planned(scores.cell) if s not in scores.missing]
        hashes = (result.get("predictions_sha256") for result in scores.results)
        return dict(zip(seeds, hashes, strict=True))
