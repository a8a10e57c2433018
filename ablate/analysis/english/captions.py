"""The sentences of a caption, and the warnings about a whole table or a column of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablate.analysis.english.footnotes import diverged_run
from ablate.analysis.english.registry import write, writes
from ablate.analysis.english.words import (
    capitalized,
    confidence_level,
    first_few,
    plural,
    prefixed,
)

Values = Mapping[str, Any]

# By how a column is judged: where runs of rows share seeds, and where they share nothing.
METHODS = {
    "images": "each row's own spread, from which {examples} change between its seeds",
    "one way": "one spread of all rows, without seed blocks: too wide where seeds correlate",
    "paired": "paired t",
}
METHODS_WITHOUT_SEEDS = {
    "one way": "one spread of all rows, whose runs share no seeds",
    "welch": "Welch's t, for runs share no seeds",
}


# --- The caption --------------------------------------------------------------------------------


@writes("metric")
def metric(metric: Values, alpha: float, test: Values, seeds: bool, interval: Values | None) -> str:
    """Explain means and gains. `metric`: its name, unit and direction; `test`: what was tested;
    `seeds`: whether runs have seeds; `interval`: see `_interval_words`, None without intervals."""
    if metric["neutral"]:
        direction = ", neither direction being better"
    else:
        direction = ", lower being better" if metric["lower"] else ""
    repeats, intervals = ("seeds", "training seeds") if seeds else ("runs", "the runs of the sheet")
    interval_words = _interval_words(seeds, **interval) if interval is not None else ""
    return (
        f"{capitalized(metric['name'])}: mean over {repeats} [{confidence_level(alpha)} Student "
        f"t]; {metric['contrast']} in {metric['points']}{direction}{interval_words}. Intervals are "
        f"over {intervals}; {_tested(**test)}."
    )


def _tested(on: str, sizes: Sequence[int], examples: str, untested: str) -> str:
    """Say what numbers are of. `on`: that in words, "" for a test set of one of these `sizes`;
    `untested`: the words where no size is known."""
    if on or not sizes:
        return on or untested
    return f"one split, one test set of {' or '.join(map(str, sizes))} {examples}"


def _interval_words(
    seeds: bool,
    alpha: float,
    family: Values,
    looks: Sequence[int],
    methods: Sequence[str],
    examples: str,
) -> str:
    """Say what the intervals of gains are: `methods` are those by which columns are judged."""
    texts = METHODS if seeds else METHODS_WITHOUT_SEEDS
    spreads = " or ".join(texts[method] for method in methods).format(examples=examples)
    return (
        f" [{confidence_level(alpha)}, simultaneous over the {family_words(**family)}"
        f"{_looks_words(looks)}; {spreads}]"
    )


def family_words(contrasts: Sequence[int], scope: str) -> str:
    """Name the family of simultaneous intervals: "9 contrasts of a column". `scope`: "column" or
    "table"."""
    noun = "contrast" if contrasts == [1] else "contrasts"
    scope_words = "a column" if scope == "column" else "the table"
    return f"{' or '.join(map(str, contrasts))} {noun} of {scope_words}"


def _looks_words(looks: Sequence[int]) -> str:
    if not looks:
        return ""
    return f" and the looks at {', '.join(map(str, looks[:-1]))} and {looks[-1]} seeds"


@writes("interval.of-mean-and-gain")
def interval_of_mean_and_gain() -> str:
    return (
        "The interval of a mean is of its row's own results alone; that of a gain is of the "
        "spread that is named above: one may be much wider than the other suggests."
    )


@writes("changes.no-cell-verdicts")
def changes_no_cell_verdicts() -> str:
    return "Cells have no verdicts of their own; changes have."


@writes("metric.measured")
def metric_measured(text: str) -> str:
    """`text`: how the metric is measured, as its author says."""
    return text


@writes("task.tested")
def task_tested(text: str) -> str:
    """`text`: how the task tests, as its author says."""
    return text


@writes("other-sets")
def other_sets(sets: Sequence[str], family: str) -> str:
    """`family`: that of the gains on other sets: "own", "shared" or, with looks, "none"."""
    judgement = {
        "own": "a family of its own",
        "shared": "in the same family",
        "none": "without verdicts, for looks are at the run's own test set",
    }[family]
    return (
        f"The columns on {first_few(sets)} test the same runs on other images or labels. Each "
        f"of these columns is {judgement}; averages and contrasts use the run's own test set only."
    )


@writes("population")
def population(alpha: float, family: Values) -> str:
    return (
        f"For new images, too: the interval of the gain for new training seeds and for new images "
        f"that are drawn independently, as the test images were (crossed random effects) "
        f"[{confidence_level(alpha)}, simultaneous over the {family_words(**family)}]."
    )


@writes("population.lacking")
def population_lacking(column: str, reason: str) -> str:
    return f"{f'{column}: n' if column else 'N'}o interval for new images, since {reason}."


@writes("parents")
def parents(start: Values) -> str:
    """`start`: see `parent_words`."""
    return f"Runs start from {parent_words(**start)}."


def parent_words(
    weights: str = "",
    data: str = "",
    length: float = 0,
    unit: str = "",
    seed: int | None = None,
    parent: Values | None = None,
) -> str:
    """Say what a run starts from: a file (`weights`: its sha256) or a run on `data` of this length
    and seed (None: that of each run), which itself starts from `parent`."""
    if weights:
        return f"the weights of a file (sha256 {weights[:12]})"
    if not data:
        return ""
    length_words = f"{length:,g} {unit[: -1 if length == 1 else None]}"
    seed_words = f"seed {seed}" if seed is not None else "their own seed"
    origin = parent_words(**parent) if parent else ""
    further = f", which starts from {origin}" if origin else ""
    return f"the weights of a run on {data} ({length_words}) with {seed_words}{further}"


@writes("tuned")
def tuned(
    keys: Sequence[str],
    searches: Values,
    trials: int,
    sampler: str,
    explored: float | None,
    chosen_on: Values,
    untuned: Sequence[str],
) -> str:
    """State the tuned keys, the trials, the explored share of the ranges, and what n counts.
    `searches`: their `number` in words, and whether gains `compare` them; `explored`: the least
    share of a range; `chosen_on`: whether on `parents`, and by which `metric` of the user's;
    `untuned`: columns."""
    coverage = ""
    if explored is not None:
        coverage = f"; at least {100 * explored:.0f} % of each range is explored"
    metric_words = f" by {chosen_on['metric']}" if chosen_on["metric"] else ""
    untuned_words = f", but in {', '.join(untuned)}" if untuned else ""
    n_meaning = (
        "n counts searches"
        if searches["compared"]
        else "intervals are conditional on the chosen settings"
    )
    return (
        f"Tuned in the same way for every variant{untuned_words}: {', '.join(keys)}; "
        f"{searches['number']} of {plural(trials, 'trial')} (sampler {sampler}){coverage}; "
        f"settings are chosen on validation{' of the parents' * chosen_on['parents']}"
        f"{metric_words}, with other seeds; {n_meaning}."
    )


@writes("part")
def part(counts: Sequence[Values]) -> str:
    """`counts`: the numbers of rows, columns or cells (`noun`) that are `shown`, and in `total`."""
    parts = [f"{count['shown']} of {count['total']} {count['noun']}" for count in counts]
    return (
        f"{' and '.join(parts)} shown; intervals, verdicts and counts are those of the whole table."
    )


@writes("part.blocks")
def part_blocks() -> str:
    return "Averages and contrasts over more than is shown are left out."


@writes("part.sorted")
def part_sorted(columns: int) -> str:
    criterion = "their mean gain over the columns shown" if columns > 1 else "gain"
    return f"Rows are sorted by {criterion}, the baseline first."


# --- The spread of a column ---------------------------------------------------------------------


@writes("noise.baseline")
def noise_baseline(column: str, ratio: float | None) -> str:
    """`ratio`: of the baseline's spread to that of the rows, None where these have none."""
    return _of_column(column, f"{noisy_words(ratio)}.")


def noisy_words(ratio: float | None) -> str:
    times = f"{ratio:.1f} times" if ratio is not None else "far above"
    return f"the baseline's spread is {times} what the rows have, and counts whole in each gain"


@writes("noise.lacking")
def noise_lacking(column: str, examples: str, reason: str) -> str:
    """`reason`: why examples don't determine the spread."""
    return _of_column(column, f"the spread is not from {examples}, since {reason}.")


@writes("noise.no-floor")
def noise_no_floor(column: str, examples: str, reason: str) -> str:
    """`reason`: why the interval of a lone gain takes nothing from examples."""
    return _of_column(
        column,
        f"the interval of the gain doesn't allow for {examples} that change between seeds, and "
        f"may be too narrow, since {reason}.",
    )


def _of_column(column: str, clause: str) -> str:
    return prefixed(column, clause) if column else capitalized(clause)


# --- Warnings -----------------------------------------------------------------------------------


@writes("unfinished")
def unfinished(missing: int, planned: int, rows: Sequence[Values], looks: bool) -> str:
    """`rows`: each `row` with its `missing` runs; rows with equal counts share a number."""
    by_count: dict[int, list[str]] = {}
    for entry in rows:
        by_count.setdefault(entry["missing"], []).append(entry["row"])
    parts = [f"{n} of {first_few(labels)}" for n, labels in sorted(by_count.items(), reverse=True)]
    consequence = "Gains have no intervals and no verdicts before every run has a result."
    if looks:
        consequence = "The next look waits until every run of its column has a result."
    return (
        f"UNFINISHED: {missing} of {plural(planned, 'run')} missing ({'; '.join(parts)}). "
        f"{consequence}"
    )


@writes("skipped")
def skipped(runs: Sequence[str], uneven: bool) -> str:
    """`uneven`: whether rows differ in the seeds that were skipped."""
    exclusion = "The table leaves out these seeds"
    if uneven:
        exclusion = "Gains leave out these seeds, means are of all runs that there are"
    return (
        f"{plural(len(runs), 'run')} skipped by the user: {first_few(runs)}. {exclusion}; "
        f"`ablate run RUN --undo` lets them train."
    )


@writes("few-seeds")
def few_seeds(n: int) -> str:
    return "n = 1: no interval." if n == 1 else f"n = {n}: intervals, no verdicts."


@writes("condition")
def condition(factor: str) -> str:
    """`factor`: what all seeds of a row share: one "search" or one "parent"."""
    return {
        "search": (
            "One search a row: intervals are conditional on the chosen settings and don't compare "
            "methods, so there are no verdicts; tune.repeats=3 compares methods."
        ),
        "parent": (
            "One parent a row: intervals are conditional on its weights and leave out how much "
            "parents differ, so there are no verdicts; without from.seed each seed has its own."
        ),
    }[factor]


@writes("withheld")
def withheld(run: str) -> str:
    """`run`: the run, and which of its files was changed."""
    return f"Withheld: {run}."


@writes("withheld.missing")
def withheld_missing(remedy: str) -> str:
    return f"Withheld runs count as missing; {remedy}."


@writes("void")
def void(
    column: str, baseline: str, diverged: Sequence[Values], collapsed: Sequence[int], looks: bool
) -> str:
    fates = [_diverged_fate(run) for run in diverged]
    fates += [f"seed {seed} collapsed" for seed in collapsed]
    verdicts = "no further verdicts" if looks else "no verdicts"
    return prefixed(
        column,
        f"{verdicts}: in the baseline {baseline}, {', '.join(fates)}, so "
        f"gains over the baseline don't measure the variants.",
    )


def _diverged_fate(run: Values) -> str:
    seed, _, step = diverged_run(run).partition(" at ")
    return f"{seed} diverged" + (f" at {step}" if step else "")


@writes("void.rows")
def void_rows(
    column: str, baseline: str, unstable: int, runs: int, variants: Sequence[Values]
) -> str:
    """`variants`: of `rows` with equal counts, the number of `unstable` runs and of all `runs`, and
    Fisher's exact `p` against the baseline, None where it isn't shown."""
    parts = [
        f"{group['unstable']} of {group['runs']} of {first_few(group['rows'])}"
        + (f", Fisher's exact p = {group['p']:.2g}" if group["p"] is not None else "")
        for group in variants
    ]
    return prefixed(
        column,
        f"{unstable} of {runs} runs of {baseline} diverged or collapsed, "
        f"against {'; '.join(parts)}.",
    )


@writes("void.compares-rates")
def void_compares_rates(column: str) -> str:
    return prefixed(
        column,
        "The sweep compares learning rates, so the baseline's failure may be a finding.",
    )


@writes("void.lower-rate")
def void_lower_rate(column: str, command: str) -> str:
    return prefixed(column, f"The baseline may train at a lower learning rate: `{command}`.")


@writes("looks.unrecorded")
def looks_unrecorded(reason: str) -> str:
    return f"Verdicts withheld: the look can't be recorded ({reason})."


@writes("joined")
def joined(sentences: Sequence[Values]) -> str:
    """Write several sentences as one text. `sentences`: the `key` and `values` of each."""
    return " ".join(write(sentence["key"], sentence["values"]) for sentence in sentences)
