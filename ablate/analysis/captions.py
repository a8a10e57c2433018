"""Writes the caption and the notes of a table. Computes nothing."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablate.analysis.scores import Scores
from ablate.analysis.trained_on import length_of
from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Tune
from ablate.planning.design import ONE_SEARCH
from ablate.planning.plan import Plan
from ablate.store.store import REMEDY

if TYPE_CHECKING:
    from ablate.analysis.table import TableColumn


def gain_alpha(analysis: Analysis) -> float:
    """Return the alpha of gains: declared looks share alpha (Bonferroni)."""
    return analysis.alpha / max(1, len(analysis.looks))


def level(alpha: float) -> str:
    return f"{100 * (1 - alpha):.4g} %"


def family(plan: Plan, columns: Sequence[TableColumn]) -> str:
    """Name the family of simultaneous intervals: "9 contrasts of a column"."""
    counts = sorted({column.contrasts for column in columns})
    noun = "contrast" if counts == [1] else "contrasts"
    of = "a column" if plan.analysis.family == "column" else "the table"
    return f"{' or '.join(map(str, counts))} {noun} of {of}"


# --- The caption --------------------------------------------------------------------------------


def caption(plan: Plan, columns: Sequence[TableColumn], judged: bool) -> list[str]:
    """Explain the numbers of a table. `judged`: have gains intervals?"""
    analysis, of = plan.analysis, plan.metric
    sizes = sorted({size for column in columns for size in column.test_sizes})
    number = " or ".join(map(str, sizes))
    tested = (
        f"one split, one test set of {number} {plan.task.examples}" if sizes else plan.task.untested
    )
    tested = of.on or ("of the fixed validation set" if of.of_curve else tested)
    name = of.name[0].upper() + of.name[1:]
    less = ", lower being better" if of.sign < 0 else ""
    less = ", neither direction being better" if of.neutral else less
    how = (
        f" [{level(gain_alpha(analysis))}, simultaneous over the {family(plan, columns)}"
        f"{plan.design.family}; {_method(plan, columns)}]"
    )
    lines = [
        f"{name}: mean over seeds [{level(analysis.alpha)} Student t]; {of.over(plan.baseline)} "
        f"in {of.points}{less}{how * judged}. Intervals are over training seeds; {tested}."
    ]
    lines += filter(None, [of.how, plan.task.how, _also(plan, columns)])
    lines += _population(plan, columns)
    lines += _started(plan)
    if plan.tune is not None:
        lines.append(_tuned(plan, plan.tune))
    return lines


def _population(plan: Plan, columns: Sequence[TableColumn]) -> Iterator[str]:
    """Explain the gains for new seeds and images, if they are asked for; name the columns that
    have none."""
    asked = any(entry.population for column in columns for entry in column.entries)
    lacking = {column.heading: column.lacking for column in columns if column.lacking}
    if not asked:
        return
    yield (
        f"For new images, too: the interval of the gain for new training seeds and for new images "
        f"that are drawn independently, as the test images were (crossed random effects) "
        f"[{level(gain_alpha(plan.analysis))}, simultaneous over the {family(plan, columns)}]."
    )
    for heading, why in lacking.items():
        yield f"{f'{heading}: n' if heading else 'N'}o interval for new images, since {why}."


def _also(plan: Plan, columns: Sequence[TableColumn]) -> str:
    """State which columns are of the same runs."""
    sets = dict.fromkeys(column.on for column in columns if column.on)
    if not sets:
        return ""
    family = "a family of its own" if plan.analysis.family == "column" else "in the same family"
    family = plan.design.on_other_sets or family
    return (
        f"The columns on {names([*sets])} test the same runs on other images or labels. Each of "
        f"these columns is {family}; averages and contrasts use the run's own test set only."
    )


def _started(plan: Plan) -> Iterator[str]:
    """State what runs start from."""
    for spec in dict.fromkeys(parent_words(cell.spec) for cell in plan.cells):
        if spec:
            yield f"Runs start from {spec}."


def parent_words(spec: Mapping[str, Any]) -> str:
    """Say what a run of this tree starts from: "a run on cifar10 (40 epochs) of its own seed"."""
    if (weights := spec.get("weights")) is not None:
        return f"the weights of a file (sha256 {weights['sha256'][:12]})"
    if (parent := spec.get("parent")) is None:
        return ""
    number, unit = length_of(parent["train"])
    length = f"{number:,g} {unit[: -1 if number == 1 else None]}"
    whose = f"seed {parent['seed']}" if "seed" in parent else "their own seed"
    before = parent_words(parent)
    further = f", which starts from {before}" if before else ""
    return f"the weights of a run on {parent['data']['name']} ({length}) with {whose}{further}"


def _tuned(plan: Plan, tune: Tune) -> str:
    """State the tuned keys, the trials, the explored share of the ranges, and what n counts."""
    keys = ", ".join(dict.fromkeys(key for stage in tune.stages for key in stage.space))
    by = f" by {plan.judged.name}" if plan.metric.own else ""  # which needs a test set
    shares = [share for cell in plan.cells for c in cell.chosen for share in c.explored.values()]
    least = f"; at least {100 * min(shares):.0f} % of each range is explored" if shares else ""
    counted = (
        "intervals are conditional on the chosen settings"
        if ONE_SEARCH in plan.conditions
        else "n counts searches"
    )
    without = ", ".join(column.label for column in plan.columns if not column.tuned)
    untuned = f", but in {without}" if without else ""
    return (
        f"Tuned in the same way for every variant{untuned}: {keys}; {plan.searches_said} of "
        f"{count(tune.trials_each, 'trial')} (sampler {tune.sampler}){least}; settings are chosen "
        f"on validation{' of the parents' * tune.parents}{by}, with other seeds; {counted}."
    )


def sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def with_words(plan: Plan, *said: str) -> str:
    """Return the command that drove the plan, with some words replaced."""
    return shlex.join(["ablate", "sweep", *other_words(plan, *said)])


def other_words(plan: Plan, *said: str) -> list[str]:
    """Return the words that drove the plan, with some replaced."""
    keys = [word.partition("=")[0] for word in said]
    words = [other for other in plan.words if other.partition("=")[0] not in keys]
    place = next((i for i, other in enumerate(words) if other.startswith("--")), len(words))
    return [*words[:place], *said, *words[place:]]


METHODS = {
    "images": "each row's own spread, from which images change between its seeds",
    "one way": "one spread of all rows, without seed blocks: too wide where seeds correlate",
    "paired": "paired t",
}


def _method(plan: Plan, columns: Sequence[TableColumn]) -> str:
    used = dict.fromkeys(column.judged_by for column in columns)
    return " or ".join(METHODS[name] for name in used) or METHODS[plan.spread]


# --- Notes --------------------------------------------------------------------------------------


def notes(
    plan: Plan,
    cells: Sequence[Scores],
    columns: Sequence[TableColumn],
    judged: bool,
) -> list[str]:
    """List what a reader must know before believing any number. `judged`: have gains intervals?"""
    found = []
    missing = Counter[str]()
    for score in cells:
        missing[score.cell.row] += len(score.missing)
    if missing.total():
        found.append(_unfinished(plan, missing))
    if plan.skipped:
        without = "The table leaves out these seeds"
        if plan.unevenly_skipped:
            without = "Gains leave out these seeds, means are of all runs that there are"
        found.append(
            f"{count(len(plan.skipped), 'run')} skipped by the user: {names([*plan.skipped])}. "
            f"{without}; `ablate run RUN --undo` lets them train."
        )
    if any(entry.n == 1 for column in columns for entry in column.entries):
        found.append("n = 1: no interval.")
    found += [condition.note for condition in plan.conditions]
    if plan.n == 2:
        found.append("n = 2: intervals, no verdicts.")
    for column in columns:
        if column.void and not column.on:
            found += _void(
                plan, column, [s for s in cells if s.cell.column == column.label], judged
            )
    return found


def withheld(runs: Mapping[str, str]) -> Iterator[str]:
    """Yield a note on every run whose files were changed after the run. `runs`: id -> why."""
    for line in runs.values():
        yield f"Withheld: {line}."
    if runs:
        yield f"Withheld runs count as missing; {REMEDY}."


def _void(plan: Plan, column: TableColumn, block: Sequence[Scores], judged: bool) -> Iterator[str]:
    """Name the runs of the baseline that void a column, and what can be said without verdicts."""
    from ablate.analysis import stats

    base = next(score for score in block if score.cell.row == plan.baseline)
    at = f"{column.heading}: " if column.heading else ""
    fates = [
        f"seed {seed} diverged" + (f" at step {step}" if step is not None else "")
        for seed, step in base.diverged.items()
    ] + [f"seed {seed} collapsed" for seed in base.collapsed]
    yield (
        f"{at}{plan.design.void}: in the baseline {plan.baseline}, {', '.join(fates)}, so gains "
        f"over the baseline don't measure the variants."
    )
    n = len(base.results)
    groups: dict[tuple[int, int], list[str]] = {}
    for score in block:
        if score is not base and score.results:
            groups.setdefault((len(score.unstable), len(score.results)), []).append(score.cell.row)
    parts = []
    for (k, m), rows in groups.items():
        test = stats.fisher(k, m, len(base.unstable), n)
        p = f", Fisher's exact p = {test.p:.2g}" if test.tested and judged else ""
        parts.append(f"{k} of {m} of {names(rows)}{p}")
    yield (
        f"{at}{len(base.unstable)} of {n} runs of {plan.baseline} diverged or collapsed, against "
        f"{'; '.join(parts)}."
    )
    rate, columns = base.cell.spec.get("optim", {}).get("lr"), [c.settings for c in plan.columns]
    if any("optim.lr" in s for s in (*(r.settings for r in plan.rows), *columns)):
        yield f"{at}The sweep compares learning rates, so the baseline's failure may be a finding."
    elif rate is not None:
        yield (
            f"{at}The baseline may train at a lower learning rate: "
            f"`{with_words(plan, f'optim.lr={rate / 3:.2g}')}`."
        )


def _unfinished(plan: Plan, missing: Counter[str]) -> str:
    """Count the missing runs by row; rows with equal counts share a number."""
    by_count: dict[int, list[str]] = {}
    for row, lacking in missing.items():
        if lacking:
            by_count.setdefault(lacking, []).append(row)
    parts = [f"{n} of {names(rows)}" for n, rows in sorted(by_count.items(), reverse=True)]
    planned = sum(len(plan.planned(cell)) for cell in plan.cells)
    return (
        f"UNFINISHED: {missing.total()} of {count(planned, 'run')} missing "
        f"({'; '.join(parts)}). {plan.design.unfinished}"
    )


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def names(rows: Sequence[str], most: int = 8) -> str:
    """List labels, of many the first few."""
    more = f" and {len(rows) - most} more" if len(rows) > most else ""
    return ", ".join(rows[:most]) + more
