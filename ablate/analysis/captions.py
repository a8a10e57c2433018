"""Writes the caption and the warnings of a table, and what a part or a layout of it says of itself.
Computes nothing."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ablate.analysis import stats, trained_on
from ablate.analysis.across import noisy
from ablate.analysis.judging import Detail, gain_alpha
from ablate.analysis.scores import Scores
from ablate.analysis.table import Note, TableColumn, notes
from ablate.analysis.trained_on import length_of
from ablate.planning import FIRST_TUNING_SEED, ONE_SEARCH, Plan, Tune
from ablate.store import FEWEST_FOR_SPREAD, PastLooks, SeedCounts, look_changes, retry_remedy


def confidence_level(alpha: float) -> str:
    return f"{100 * (1 - alpha):.4g} %"


def family_words(plan: Plan, columns: Sequence[TableColumn]) -> str:
    """Name the family of simultaneous intervals: "9 contrasts of a column"."""
    counts = sorted({column.contrasts for column in columns})
    noun = "contrast" if counts == [1] else "contrasts"
    scope = "a column" if plan.analysis.family == "column" else "the table"
    return f"{' or '.join(map(str, counts))} {noun} of {scope}"


# --- The caption --------------------------------------------------------------------------------


def caption(plan: Plan, columns: Sequence[TableColumn], detail: Detail) -> list[str]:
    """Explain the numbers of a table. `detail`: what is shown of gains."""
    has_intervals = detail >= Detail.INTERVALS
    analysis, metric = plan.analysis, plan.metric
    sizes = sorted({size for column in columns for size in column.test_sizes})
    number = " or ".join(map(str, sizes))
    tested = (
        f"one split, one test set of {number} {plan.task.examples}" if sizes else plan.task.untested
    )
    tested = metric.on or ("of the fixed validation set" if metric.of_curve else tested)
    name = metric.name[0].upper() + metric.name[1:]
    direction = ", lower being better" if metric.sign < 0 else ""
    direction = ", neither direction being better" if metric.neutral else direction
    blocks = plan.design.blocks
    methods, usual = (METHODS, plan.spread) if blocks else (trained_on.METHODS, "one way")
    spreads = " or ".join(dict.fromkeys(methods[column.judged_by] for column in columns))
    repeats, intervals = (
        ("seeds", "training seeds") if blocks else ("runs", "the runs of the sheet")
    )
    interval_words = (
        f" [{confidence_level(gain_alpha(analysis))}, simultaneous over the "
        f"{family_words(plan, columns)}{plan.design.family}; "
        f"{(spreads or methods[usual]).format(examples=plan.task.examples)}]"
    )
    lines = [
        f"{name}: mean over {repeats} [{confidence_level(analysis.alpha)} Student t]; "
        f"{metric.contrast_with(plan.baseline)} in {metric.points}{direction}"
        f"{interval_words * has_intervals}. Intervals are over {intervals}; {tested}."
    ]
    if has_intervals and any(c.spreads and c.judged_by != "paired" for c in columns):
        lines.append(
            "The interval of a mean is of its row's own results alone; that of a gain is of the "
            "spread that is named above: one may be much wider than the other suggests."
        )
    if plan.changes is not None and plan.n >= stats.FEWEST_SEEDS:
        lines.append("Cells have no verdicts of their own; changes have.")
    lines += filter(None, [metric.how, plan.task.how, _also(plan, columns)])
    lines += _population(plan, columns)
    parents = dict.fromkeys(parent_words(cell.spec) for cell in plan.cells)
    lines += [f"Runs start from {words}." for words in parents if words]
    if plan.tune is not None:
        lines.append(_tuned(plan, plan.tune))
    return lines


def _population(plan: Plan, columns: Sequence[TableColumn]) -> Iterator[str]:
    """Explain the gains for new seeds and images, if the table has them; name the columns that have
    none."""
    has_population = any(entry.population for column in columns for entry in column.entries)
    lacking = {column.heading: column.lacking for column in columns if column.lacking}
    if not has_population:
        return
    yield (
        f"For new images, too: the interval of the gain for new training seeds and for new images "
        f"that are drawn independently, as the test images were (crossed random effects) "
        f"[{confidence_level(gain_alpha(plan.analysis))}, simultaneous over the "
        f"{family_words(plan, columns)}]."
    )
    for heading, reason in lacking.items():
        yield f"{f'{heading}: n' if heading else 'N'}o interval for new images, since {reason}."


def _also(plan: Plan, columns: Sequence[TableColumn]) -> str:
    """State which columns are of the same runs."""
    sets = dict.fromkeys(column.on for column in columns if column.on)
    if not sets:
        return ""
    family = "a family of its own" if plan.analysis.family == "column" else "in the same family"
    family = plan.design.on_other_sets or family
    return (
        f"The columns on {first_few([*sets])} test the same runs on other images or labels. Each "
        f"of these columns is {family}; averages and contrasts use the run's own test set only."
    )


def parent_words(spec: Mapping[str, Any]) -> str:
    """Say what a run of this tree starts from: "a run on cifar10 (40 epochs) of its own seed"."""
    if (weights := spec.get("weights")) is not None:
        return f"the weights of a file (sha256 {weights['sha256'][:12]})"
    if (parent := spec.get("parent")) is None:
        return ""
    number, unit = length_of(parent["train"])
    length = f"{number:,g} {unit[: -1 if number == 1 else None]}"
    seed_words = f"seed {parent['seed']}" if "seed" in parent else "their own seed"
    origin = parent_words(parent)
    further = f", which starts from {origin}" if origin else ""
    return f"the weights of a run on {parent['data']['name']} ({length}) with {seed_words}{further}"


def _tuned(plan: Plan, tune: Tune) -> str:
    """State the tuned keys, the trials, the explored share of the ranges, and what n counts."""
    keys = ", ".join(dict.fromkeys(key for stage in tune.stages for key in stage.space))
    metric_words = f" by {plan.objective.name}" if plan.metric.own else ""  # which needs a test set
    shares = [share for cell in plan.cells for c in cell.chosen for share in c.explored.values()]
    coverage = f"; at least {100 * min(shares):.0f} % of each range is explored" if shares else ""
    n_meaning = (
        "intervals are conditional on the chosen settings"
        if ONE_SEARCH in plan.conditions
        else "n counts searches"
    )
    untuned_columns = ", ".join(column.label for column in plan.columns if not column.tuned)
    untuned = f", but in {untuned_columns}" if untuned_columns else ""
    return (
        f"Tuned in the same way for every variant{untuned}: {keys}; {plan.searches_said} of "
        f"{plural(tune.trials_each, 'trial')} (sampler {tune.sampler}){coverage}; settings are "
        f"chosen on validation{' of the parents' * tune.parents}{metric_words}, with other seeds; "
        f"{n_meaning}."
    )


def capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def with_words(plan: Plan, *replacements: str) -> str:
    """Return the command that drove the plan, with some words replaced; of an import none."""
    if not plan.design.trains:
        return shlex.join(["ablate", *plan.command])
    return shlex.join(["ablate", "sweep", *replaced_words(plan, *replacements)])


def replaced_words(plan: Plan, *replacements: str) -> list[str]:
    """Return the words that drove the plan, with some replaced."""
    keys = [word.partition("=")[0] for word in replacements]
    words = [word for word in plan.words if word.partition("=")[0] not in keys]
    place = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    return [*words[:place], *replacements, *words[place:]]


METHODS = {
    "images": "each row's own spread, from which {examples} change between its seeds",
    "one way": "one spread of all rows, without seed blocks: too wide where seeds correlate",
    "paired": "paired t",
}


# --- Notes --------------------------------------------------------------------------------------


def warnings(
    plan: Plan,
    cells: Sequence[Scores],
    columns: Sequence[TableColumn],
    detail: Detail,
) -> list[Note]:
    """List the facts that a reader must know before believing any number. `detail`: what is shown
    of gains."""
    missing = Counter[str]()
    for score in cells:
        missing[score.cell.row] += len(score.missing)
    unfinished = [Note("unfinished", _unfinished(plan, missing))] if missing.total() else []
    texts = [*trained_on.notes(plan)]
    if plan.skipped:
        exclusion = "The table leaves out these seeds"
        if plan.unevenly_skipped:
            exclusion = "Gains leave out these seeds, means are of all runs that there are"
        texts.append(
            f"{plural(len(plan.skipped), 'run')} skipped by the user: "
            f"{first_few([*plan.skipped])}. {exclusion}; `ablate run RUN --undo` lets them train."
        )
    if any(entry.n == 1 for column in columns for entry in column.entries):
        texts.append("n = 1: no interval.")
    texts += [condition.note for condition in plan.conditions]
    if plan.n == 2:
        texts.append("n = 2: intervals, no verdicts.")
    for column in columns:
        if column.void and not column.on:
            texts += _void(
                plan, column, [s for s in cells if s.cell.column == column.label], detail
            )
    return [*unfinished, *notes("warning", texts)]


def withheld_notes(plan: Plan, runs: Mapping[str, str]) -> Iterator[str]:
    """Yield a note on every run whose files were changed after the run. `runs`: id -> why."""
    for line in runs.values():
        yield f"Withheld: {line}."
    if runs:
        yield f"Withheld runs count as missing; {retry_remedy(plan)}."


def _void(
    plan: Plan, column: TableColumn, block: Sequence[Scores], detail: Detail
) -> Iterator[str]:
    """Name the runs of the baseline that void a column, and what can be said without verdicts."""
    base = next(score for score in block if score.cell.row == plan.baseline)
    prefix = f"{column.heading}: " if column.heading else ""
    fates = [
        f"seed {seed} diverged" + (f" at step {step}" if step is not None else "")
        for seed, step in base.diverged.items()
    ] + [f"seed {seed} collapsed" for seed in base.collapsed]
    yield (
        f"{prefix}{plan.design.void}: in the baseline {plan.baseline}, {', '.join(fates)}, so "
        f"gains over the baseline don't measure the variants."
    )
    n = len(base.results)
    groups: dict[tuple[int, int], list[str]] = {}
    for score in block:
        if score is not base and score.results:
            groups.setdefault((len(score.unstable), len(score.results)), []).append(score.cell.row)
    parts = []
    for (k, m), rows in groups.items():
        test = stats.fisher(k, m, len(base.unstable), n)
        p = (
            f", Fisher's exact p = {test.p:.2g}"
            if test.tested and detail >= Detail.INTERVALS
            else ""
        )
        parts.append(f"{k} of {m} of {first_few(rows)}{p}")
    yield (
        f"{prefix}{len(base.unstable)} of {n} runs of {plan.baseline} diverged or collapsed, "
        f"against {'; '.join(parts)}."
    )
    rate, columns = (
        base.cell.spec.tree.get("optim", {}).get("lr"),
        [c.settings for c in plan.columns],
    )
    if any("optim.lr" in s for s in (*(r.settings for r in plan.rows), *columns)):
        yield (
            f"{prefix}The sweep compares learning rates, so the baseline's failure may be a "
            f"finding."
        )
    elif rate is not None:
        yield (
            f"{prefix}The baseline may train at a lower learning rate: "
            f"`{with_words(plan, f'optim.lr={rate / 3:.2g}')}`."
        )


def _unfinished(plan: Plan, missing: Counter[str]) -> str:
    """Count the missing runs by row; rows with equal counts share a number."""
    by_count: dict[int, list[str]] = {}
    for row, lacking in missing.items():
        if lacking:
            by_count.setdefault(lacking, []).append(row)
    parts = [f"{n} of {first_few(rows)}" for n, rows in sorted(by_count.items(), reverse=True)]
    planned = sum(len(plan.planned(cell)) for cell in plan.cells)
    return (
        f"UNFINISHED: {missing.total()} of {plural(planned, 'run')} missing "
        f"({'; '.join(parts)}). {plan.design.unfinished}"
    )


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def first_few(rows: Sequence[str], limit: int = 8) -> str:
    """List labels, of many the first few."""
    remainder = f" and {len(rows) - limit} more" if len(rows) > limit else ""
    return ", ".join(rows[:limit]) + remainder


STRICT = "--strict: verdicts withheld."


def look_notes(
    plan: Plan, past: PastLooks | None, methods: Mapping[str, stats.Method], strict: bool
) -> tuple[list[str], bool]:
    """Return the notes on a table, and whether `strict` withholds its verdicts. `methods`: of the
    columns that have gains, where looks are known."""
    texts, grave = list[str](), list(_left_out(plan))
    if past is not None:
        counts = {column: past.counts(column) for column in methods}
        changed = list(_changed(past))
        texts += _by_column(
            plan, methods, lambda column: _among(past, column, methods[column].contrasts)
        )
        texts += (*_read_at(plan, counts, methods), *changed)
        texts += _by_column(plan, methods, lambda column: _shared_baseline_note(plan, past, column))
        grave += changed
        grave += [
            column
            for column in counts
            if not counts[column].are_declared and counts[column].has_more
        ]
    withheld = strict and bool(grave)
    return [*texts, *_left_out(plan), *[STRICT] * withheld], withheld


def _by_column(
    plan: Plan, columns: Mapping[str, stats.Method], note: Callable[[str], str]
) -> Iterator[str]:
    """Yield the note on every column; columns with the same note share one."""
    alike: dict[str, list[str]] = {}
    for column in columns:
        alike.setdefault(note(column), []).append(plan.heading(column))
    for text, headings in alike.items():
        if text:
            yield text if len(headings) == len(columns) else f"{first_few(headings)}: {text}"


def _among(past: PastLooks, column: str, contrasts: int) -> str:
    count = past.contrasts(column)
    if count <= len(past.ours(column)):
        return ""
    return (
        f"These runs were read before, in {first_few(past.other_sweeps(column))}, among {count} "
        f"variants: judged as {contrasts} contrasts."
    )


def _read_at(
    plan: Plan, counts: Mapping[str, SeedCounts], methods: Mapping[str, stats.Method]
) -> Iterator[str]:
    """Yield a note if verdicts, or means of an unfinished table, were also read at other numbers of
    seeds, which were not declared."""
    alike: dict[str, list[str]] = {}
    for column, seed_counts in counts.items():
        if len(seed_counts.numbers) > 1 and not seed_counts.are_declared:
            alike.setdefault(_other_readings(seed_counts), []).append(column)
    for opening, columns in alike.items():
        errors = [stats.look_error(counts[c].numbers, _widened_method(methods[c])) for c in columns]
        by_column = plan.analysis.family == "column"
        error = max(errors) if by_column else 1 - math.prod(1 - e for e in errors)
        scope = " of a column" if len(errors) > 1 and by_column else ""
        part = f"{first_few([plan.heading(c) for c in columns])}: " * (len(columns) < len(methods))
        yield (
            f"{part}{opening}: the chance of a false verdict on some variant{scope} is about "
            f"{100 * error:.0f} %. Looks that are declared beforehand (analysis.looks) share alpha."
        )


def _widened_method(method: stats.Method) -> stats.Method:
    """Return the method for a column that has all variants that were read."""
    return dataclasses.replace(method, comparisons=max(method.contrasts, method.comparisons))


def _what_was_read(n: int) -> str:
    """Name what a complete table of n seeds shows at most."""
    if n < FEWEST_FOR_SPREAD:
        return "Means"
    return "Intervals" if n < stats.FEWEST_SEEDS else "Verdicts"


def _other_readings(counts: SeedCounts) -> str:
    """Write where else runs were read: "Verdicts on these runs were also read at n = 3 (sweep
    corr)"."""
    verdicts, means = (
        ", ".join(
            f"{n} (sweep{'s'[: len(sweeps) > 1]} {first_few(sweeps)})"
            for n, sweeps in sorted(some.items())
        )
        for some in (counts.verdicts, counts.means)
    )
    if not verdicts:
        return f"Means of these runs were also seen at n = {means}, before all had a result"
    means_words = f", and means at n = {means}" if means else ""
    subject = _what_was_read(max(counts.verdicts))
    on = "on" if subject == "Verdicts" else "of"
    return f"{subject} {on} these runs were also read at n = {verdicts}{means_words}"


def _changed(past: PastLooks) -> Iterator[str]:
    """Yield a note if the table has changed since the first look at its runs."""
    first_look = past.first_look()
    if first_look is not None and (parts := look_changes(first_look, past.present)):
        place = f" in {first_look.sweep}" if first_look.sweep != past.present.sweep else ""
        subject = _what_was_read(first_look.n).lower()
        rows_only = all(part.startswith("rows: ") for part in parts)
        yield (
            f"Changed since {subject} were first read{place}, at n = {first_look.n}: "
            f"{'; '.join(parts)}. The change was made with results in view: "
            + ("all variants are counted." if rows_only else "its error is unknown.")
        )


def _left_out(plan: Plan) -> Iterator[str]:
    """Yield a note if the user skipped runs while curves of their seed could be seen."""
    begun_count = sum(bool(detail.get("begun")) for detail in plan.skipped.values())
    seen_count = sum(bool(detail.get("seen")) for detail in plan.skipped.values())
    if begun_count or seen_count:
        parts = (f"{begun_count} had begun",) * bool(begun_count)
        parts += (f"of {seen_count} the seed had begun in another row",) * bool(seen_count)
        yield (
            f"Of the runs that the user skipped {', and '.join(parts)}: seeds were left out with "
            f"curves in view, so the error of the verdicts is unknown."
        )


def _shared_baseline_note(plan: Plan, past: PastLooks, column: str) -> str:
    count, sweeps = past.count_over_baseline(column)
    if not sweeps:
        return ""
    families = len({*sweeps, past.present.sweep})
    alpha = f"{plan.analysis.alpha:g}".removeprefix("0")
    return (
        f"{count} variants in {families} sweeps were read against these baseline runs, each sweep "
        f"as its own family: {alpha} each."
    )


def spread_notes(plan: Plan, columns: Sequence[TableColumn]) -> Iterator[Note]:
    """Yield the qualifications of each column's spread: a noisy baseline, which widens all
    intervals, and why images don't determine the spread, where they might. A reason that all
    columns share comes once, without their names."""
    lacking = {column.label: _lacking_images(plan, column) for column in columns}
    same_reason = len({*lacking.values()}) == 1
    for column in columns:
        reason = lacking[column.label]
        if column.tripped:
            yield _spread_note(column, noisy([column.baseline_ratio]), with_heading=True)
        if reason:
            yield _spread_note(column, reason, with_heading=not same_reason)


def _spread_note(column: TableColumn, clause: str, with_heading: bool) -> Note:
    heading = column.heading if with_heading else ""
    text = f"{heading}: {clause}." if heading else capitalized(f"{clause}.")
    return Note("caption", text, (None, column.label))


def _lacking_images(plan: Plan, column: TableColumn) -> str:
    """Say why images don't determine the spread of a column, where they might; return "" if they do
    or could not."""
    if plan.spread != "images" or not column.lacking or len(column.entries) < 3:
        return ""
    return f"the spread is not from {plan.task.examples}, since {column.lacking}"


def seeds_command(plan: Plan, n: int) -> str:
    """Return the command of the sweep with n seeds, its present seeds among them."""
    new_seeds = [seed for seed in range(FIRST_TUNING_SEED) if seed not in plan.seeds]
    seeds = [*plan.seeds, *new_seeds[: n - len(plan.seeds)]]
    text = str(n) if sorted(seeds) == [*range(n)] else f"[{','.join(map(str, seeds))}]"
    return with_words(plan, f"seeds={text}")


# --- What is shown of a table -------------------------------------------------------------------
