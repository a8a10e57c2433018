"""Makes an entry of a table: the scores of a row in a column, its gain and its verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablate.analysis.across import hide_empty, is_partial, is_wide, p_values, verdict_of, wide
from ablate.analysis.correct import Correct
from ablate.analysis.footnotes import Footnotes, entry_notes, gain_notes
from ablate.analysis.paper import WIDE, Beside
from ablate.analysis.scores import Scores, by_replicate
from ablate.analysis.table import Against, Cost, Entry, Other, Sizes
from ablate.planning.plan import Plan
from ablate.shared.metrics import Metric
from ablate.store.past_looks import PastLooks

if TYPE_CHECKING:  # numpy and scipy, which `--help` does without
    from ablate.analysis.course import RowCourse
    from ablate.analysis.stats import Estimate, Exact, RowGain


@dataclass(frozen=True)
class Extra:
    """Facts beside the results: sizes of cells whose results lack them, whether times and memory
    are asked for, published figures by (row, column), which images are right, whether gains for
    new images, too, are asked for, whether gains have intervals and p-values, and the looks
    before."""

    sizes: Sizes
    cost: bool
    paper: Mapping[tuple[str, str], Beside]
    right: Callable[[Sequence[Scores], str], Correct]  # of a column, on a set of `eval.also`
    population: bool
    told: bool
    past: PastLooks | None


def make_entry(
    plan: Plan,
    found: Scores,
    gain: RowGain | None,
    base: Scores | None,
    judge: bool,
    footnotes: Footnotes,
    extra: Extra,
    course: RowCourse | None = None,
    population: Estimate | None = None,
    likeness: float | None = None,
    by_images: bool = False,
) -> Entry:
    """`base`: the scores of the baseline; None without one. `judge`: is there a verdict? `course`:
    of a sweep with looks what they decided, whose `gain` it is. `population`: the gain for new
    seeds and images, where it is asked for. `by_images`: is the column judged by images?"""
    from ablate.analysis import stats

    analysis, where = plan.analysis, (found.cell.row, found.cell.column)
    given = judge and not is_partial(plan, found)
    words = stats.NEUTRAL if plan.metric.neutral else stats.BETTER
    verdict = verdict_of(gain.gain, analysis.margin, given, words) if gain else None
    if gain and verdict == stats.CANT_TELL and gain.stands_out:
        verdict = stats.UNSTABLE
    if course is not None:
        verdict = course.verdict if judge else None
    if verdict is not None and _same_predictions(found, base):
        verdict = stats.DID_NOTHING
    against = _fisher(found, base) if extra.told else None
    unstable = f"{len(base.unstable)} of {_ended(base)}" if base else ""
    texts = entry_notes(plan, found, gain, base, against, unstable)
    of_gain = [course.note(judge)] if course is not None else []
    of_gain += gain_notes(plan, found, gain, verdict, base, by_images)
    accuracy = _estimate(by_replicate(found.main, plan), analysis.alpha, plan.metric)
    gained = hide_empty(gain.gain, plan.metric) if gain else None
    if gain and is_wide(gain.gain, plan.metric):
        of_gain.append(f"{wide(plan.metric)}.")
    numbers = footnotes.of([*texts, *of_gain])
    noted = (result for result in found.results if "parameters" in result)
    size = next(noted, extra.sizes.get(where, {}))
    return Entry(
        row=where[0],
        column=where[1],
        planned=len(plan.planned(found.cell)),
        values=found.main.by_seed,
        missing=found.missing,
        diverged=tuple(found.diverged),
        collapsed=found.collapsed,
        accuracy=accuracy,
        gain=gained,
        pool=(gain.own or "kept") if gain and plan.spread != "paired" and extra.told else "",
        verdict=verdict,
        footnotes=numbers,
        gain_footnotes=numbers[len(texts) :],
        ratio=gain.ratio if gain else None,
        never=found.main.never,
        others={
            name: Other(
                v.by_seed,
                _estimate(by_replicate(v, plan), analysis.alpha, plan.named(name, "--show")),
                v.never,
            )
            for name, v in found.others.items()
        },
        p_values=dataclasses.replace(
            p_values(gain),
            fisher=against.p if against else None,
            fisher_floor=against.floor if against else None,
        ),
        parameters=size.get("parameters"),
        multiply_adds=size.get("multiply_adds"),
        cost=_cost(found.results) if extra.cost else None,
        against=_against(extra.paper.get(where), accuracy, gain.gain if gain else None, given),
        chosen=found.cell.chosen,
        population=hide_empty(population, plan.metric) if population else None,
        likeness=likeness,
    )


def _estimate(values: Sequence[float], alpha: float, metric: Metric) -> Estimate | None:
    """Compute the mean and its interval, which is cut at the ends of the metric's scale."""
    from ablate.analysis import stats

    known = [value for value in values if not math.isnan(value)]
    if not known:
        return None
    found, most = stats.mean_interval(known, alpha), metric.most
    if most is None or found.low is None or found.high is None:
        return found
    return dataclasses.replace(found, low=max(found.low, 0.0), high=min(found.high, most))


def _same_predictions(found: Scores, base: Scores | None) -> bool:
    """Are the predictions of every seed those of the baseline, bit for bit?"""
    if base is None:
        return False
    digests = [[result.get("predictions_sha256") for result in s.results] for s in (found, base)]
    mine, theirs = digests  # which may have more seeds
    return all(mine) and mine == theirs[: len(mine)]


def _ended(found: Scores) -> int:
    return len(found.results)  # finished or diverged


def _fisher(found: Scores, base: Scores | None) -> Exact | None:
    """Compare the unstable runs of a row and of the baseline; None if neither has one."""
    from ablate.analysis import stats

    if base is None or found is base or not (found.unstable or base.unstable):
        return None
    n, m = _ended(found), _ended(base)
    return stats.fisher(len(found.unstable), n, len(base.unstable), m) if n and m else None


def _cost(results: Sequence[Mapping[str, Any]]) -> Cost | None:
    """Sum up the cost of finished runs; None without such runs or without notes of cost."""
    finished = [r for r in results if r["status"] == "finished" and "seconds" in r]
    if not finished:
        return None

    def noted(key: str) -> list[Any]:
        return [r[key] for r in finished if r.get(key) is not None]

    def mean(values: Sequence[float]) -> float | None:
        return sum(values) / len(values) if values else None

    seconds = sum(noted("seconds"))
    return Cost(
        device_s=seconds,
        run_s=seconds / len(finished),
        images_per_s=mean(noted("images_per_s")),
        peak_bytes=max(noted("peak_bytes"), default=None),
        utilisation=mean(noted("utilisation")),
    )


def _against(
    beside: Beside | None, accuracy: Estimate | None, gain: Estimate | None, given: bool
) -> Against | None:
    """Compare an entry with its published figure: subtract comparable values, else compare the
    directions of gains."""
    from ablate.analysis import stats

    if beside is None:
        return None
    theirs = beside.gain
    if beside.differs:
        if not given or theirs is None or not gain or gain.low is None or gain.high is None:
            return Against(beside, None)
        agreement = stats.agreement(gain.low, gain.high, theirs)
        inside: bool | None = gain.low <= theirs <= gain.high
        if inside and gain.high - gain.low > WIDE * abs(theirs):
            inside = None
        return Against(beside, agreement, inside=inside)
    value = accuracy.mean - beside.value if accuracy and beside.value is not None else None
    more = gain.mean - theirs if gain and theirs is not None else None
    return Against(beside, None, value, more)
