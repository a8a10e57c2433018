"""How contrasts are judged: those of a column by the declaration and the looks before, a gain by
its interval.

Used by `tabulate.py` and `across.py`, for every table, by `sequential.py`, for looks, and by
report/power.py and report/designs.py (`ablate plan`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter

from ablate.analysis import stats
from ablate.analysis.scores import Scores, sets_of
from ablate.planning import Analysis, Imported, Plan
from ablate.run import Metric
from ablate.store import PastLooks


class Detail(enum.IntEnum):
    """The most that may be shown of gains: their means alone, also intervals, also verdicts."""

    MEANS = 0
    INTERVALS = 1
    VERDICTS = 2


def gain_alpha(analysis: Analysis) -> float:
    """Return the alpha of gains: declared looks share alpha (Bonferroni)."""
    return analysis.alpha / max(1, len(analysis.looks))


def method_of(
    plan: Plan, column: str, past: PastLooks | None = None, is_on_other_set: bool = False
) -> stats.Method:
    """Return the method that judges a column. All planned contrasts count, whatever the results,
    and all variants that were read with them. `past`: the looks before; None counts none;
    `is_on_other_set`: on a set of `eval.also`, where rows are compared with the baseline alone."""
    analysis = plan.analysis
    gains = Counter(cell.column for cell in plan.cells if plan.is_judged(cell.row))
    if (changes := plan.changes) is not None:  # cells have no verdicts
        gains = Counter(dict.fromkeys(gains, changes.contrasts))
    variants = max(1, gains[column])
    contrasts = Counter(gains)  # with those between rows
    for label in gains:
        rows = [cell.row for cell in plan.cells if cell.column == label]
        contrasts[label] += len(plan.contrasts_in(rows))
    if past is not None:
        for label in gains:
            gains[label] = max(gains[label], past.gains(label))
            contrasts[label] = max(contrasts[label], past.contrasts(label))
    if analysis.family == "column":
        family = (gains if is_on_other_set else contrasts)[column]
    else:
        judges_sets = plan.design.judges_other_sets
        sets = {label: len(sets_of(plan, label)) * judges_sets for label in gains}
        family = sum(contrasts[label] + sets[label] * gains[label] for label in gains)
    return stats.Method(
        spread=plan.spread,
        alpha=gain_alpha(analysis),
        contrasts=max(1, family),
        variants=variants,
        blocks=plan.design.blocks,
    )


def sequential_of(plan: Plan, column: str, past: PastLooks | None = None) -> stats.Sequential:
    """Return the method of the looks at a column, of a sweep that has looks. Without images rows
    are judged in pairs: with one spread of all rows, two noisy ones of nine err .07 over looks."""
    analysis = plan.analysis
    return stats.Sequential(
        looks=plan.design.seed_counts,
        margin=analysis.margin,
        spread="images" if plan.spread == "images" else "paired",
        alpha=analysis.alpha,
        contrasts=method_of(plan, column, past).contrasts,
    )


def judged_by(plan: Plan, method: stats.Method, rows: int, lacking: str) -> str:
    """Say how a column of so many rows was judged: one variant by its paired t, and in another way
    where images are `lacking`; against a target each row by its own one-sample t."""
    if plan.analysis.target is not None:
        return "one sample"
    if not plan.design.blocks:
        return "welch" if rows < 3 or method.spread == "paired" else "one way"
    if rows < 3:
        return "paired"
    if method.spread == "images" and not lacking:
        return "images"
    return "paired" if method.spread == "paired" else plan.design.without_images


def is_partial(plan: Plan, scores: Scores) -> bool:
    """Return whether the values leave out runs that diverged or never reached a threshold; if so,
    there is no verdict."""
    return bool(scores.main.never) or (bool(scores.diverged) and plan.analysis.diverged == "omit")


def verdict_words(plan: Plan) -> tuple[str, str]:
    """Return the words for a gain above 0 and below 0, by the metric and by who trained; under a
    target those for a mean above it and below it."""
    if plan.analysis.target is not None:
        return stats.TARGET
    if plan.metric.neutral:
        return stats.NEUTRAL
    return stats.COMPARED if isinstance(plan.design, Imported) else stats.BETTER


def verdict_of(
    gain: stats.Estimate,
    margin: float | None,
    judgeable: bool,
    words: tuple[str, str] | None = None,
) -> str | None:
    """Return the verdict on a gain; None if it isn't `judgeable`, has no interval, or has fewer
    than FEWEST_SEEDS seeds. `words`: of an interval above 0 and of one below 0, by default
    helps and hurts."""
    if not judgeable or gain.low is None or gain.high is None or gain.n < stats.FEWEST_SEEDS:
        return None
    # Equal gains in all seeds have no spread: accuracies are counts, so that this is rounding.
    if not gain.sd:
        return stats.CANT_TELL
    return stats.verdict(gain.low, gain.high, margin, words or stats.BETTER)


def shown_gain(gain: stats.RowGain, metric: Metric) -> stats.Estimate:
    """Return a gain with the degrees of freedom of its interval, as tables show it."""
    return hide_empty(dataclasses.replace(gain.gain, df=gain.df), metric)


def hide_empty(gain: stats.Estimate, metric: Metric) -> stats.Estimate:
    """Remove an interval that says nothing: of a gain without a spread, or as wide as the whole
    scale of the metric."""
    nothing = gain.sd == 0 or is_wide(gain, metric)
    return dataclasses.replace(gain, low=None, high=None) if nothing else gain


def is_wide(gain: stats.Estimate, metric: Metric) -> bool:
    """Return whether the interval is as wide as the whole scale of the metric."""
    if metric.most is None or gain.low is None or gain.high is None:
        return False
    return gain.low <= 0 <= gain.high and gain.high - gain.low > metric.most
