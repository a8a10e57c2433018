"""The sentences of a caption, and the warnings about a whole table or a column of it.

Used by `write` in `registry.py`, for sentences that analysis/captions.py and report/selection.py
choose. A new writer also needs `python tests/json_page.py`, which lists its key in docs/json.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablate.analysis.english.footnotes import diverged_run
from ablate.analysis.english.registry import write, writes
from ablate.analysis.english.words import (
    capitalized,
    confidence_level,
    first_few,
    join_words,
    prefixed,
    seed_names,
    significant,
)
from ablate.shared import amount_text, count_text

Values = Mapping[str, Any]

NAMED_COLUMNS = 3  # whose resolution is named one by one
NO_REPEATS = "none"  # the value of `repeats` of a table whose rows have one run each
LEAST_SHARE = 0.1  # of the noise that comes from the test set, to be worth a sentence

# What tells how noisy a gain is, by how a column is judged: where runs of rows share seeds, and
# where they share nothing.
METHODS = {
    "images": "the test {examples} that are right with one {repeat} and wrong with another",
    "one way": "one variance of all rows, without pairs of {repeats} (too wide where {repeats} "
    "correlate)",
    "paired": "its own differences from the baseline, {repeat} by {repeat} (paired t)",
}
METHODS_WITHOUT_SEEDS = {
    "one way": "one variance of all rows, whose runs share no seeds",
    "welch": "its own runs and those of the baseline (Welch's t; runs share no seeds)",
}


# --- The caption --------------------------------------------------------------------------------


@writes("reading")
def reading(
    metric: Values,
    alpha: float | None,
    seeds: bool,
    interval: Values | None,
    effects: float | None,
    uneven: bool,
    repeats: str = "seeds",
) -> str:
    """Say what the numbers of a table are. The values are those of `metric`, which is exact, but
    for `alpha`, None where means have no intervals; and `effects`: the alpha of the intervals of
    effects of changes, None without such intervals; `uneven`: whether rows of a column differ in
    their number of seeds, so that a gain is no difference of the means."""
    difference, separator, gain_interval = metric["contrast"], " ", ""
    if uneven:
        difference, separator = f"{difference}, on the {repeats} that both have", ", "
    if interval is not None:
        gain_interval = f" [{_together(interval)}]"
    if effects is not None:
        difference, separator = "effects", " "
        gain_interval = f" [{confidence_level(effects)} interval, joint for the lines of a table]"
    mean = _mean_words(seeds, repeats)
    return (
        f"{capitalized(metric['name'])}: {mean}{_interval_words(alpha)}; "
        f"{difference}{_in_units(metric, separator)}{_direction(metric)}{gain_interval}."
    )


def _mean_words(seeds: bool, repeats: str) -> str:
    """Say over what the means of a table are. The values are those of `metric`."""
    if repeats == NO_REPEATS:
        return "one run a row"
    if repeats == "searches":
        return "mean over searches, each the mean of its seeds"
    return f"mean over {'seeds' if seeds else 'runs'}"


def _together(interval: Values) -> str:
    """Say which intervals of gains hold together. `interval`: see `_noise_words`."""
    together = joint_words(**interval["family"], looks=interval["looks"])
    level = f"{confidence_level(interval['alpha'])} interval"
    return f"{level}, {together}" if together else level


def joint_words(contrasts: Sequence[int], scope: str, looks: Sequence[int]) -> str:
    """Say for what the intervals of gains hold together, "" where each stands alone. `contrasts`,
    `scope`: see `family_words`."""
    number = f"the {contrasts[0]} comparisons" if len(contrasts) == 1 else "all comparisons"
    scope_words = "a column" if scope == "column" else "the table"
    wholes = [f"{number} of {scope_words}"] if contrasts != [1] else []
    wholes += ["every look"] if looks else []
    return f"joint for {' and '.join(wholes)}" if wholes else ""


def _interval_words(alpha: float | None) -> str:
    """Say that a mean has an interval: " [95 % interval]"; "" without one."""
    return "" if alpha is None else f" [{confidence_level(alpha)} interval]"


def _in_units(metric: Values, separator: str) -> str:
    """Name the units of a difference, after the separator; "" for a plain number, as of a ratio."""
    unit = amount_text("", metric["points"])
    return f"{separator}in {unit}" if unit else ""


def _direction(metric: Values) -> str:
    if metric["neutral"]:
        return ", neither direction being better"
    return ", lower being better" if metric["lower"] else ""


@writes("metric", exact=True)
def metric(
    metric: Values,
    alpha: float | None,
    test: Values,
    seeds: bool,
    interval: Values | None,
    repeats: str = "seeds",
) -> str:
    """Say how intervals are computed. `metric`: its name, unit and direction; `test`: what was
    tested; `seeds`: whether runs have seeds; `interval`: see `_noise_words`, None without
    intervals; `repeats`: what n counts where runs have seeds: these, or "searches", each of several
    seeds; NO_REPEATS where every row has one run, so that there are no intervals."""
    if repeats == NO_REPEATS:
        return f"{capitalized(_tested(**test))}."
    scope = "new runs like those of the sheet"
    if seeds:
        scope = "new searches" if repeats == "searches" else "new training seeds"
    noise = f" {_noise_words(seeds, repeats, **interval)}" if interval is not None else ""
    return (
        f"A mean's interval is Student's t of its own {repeats if seeds else 'runs'}.{noise} "
        f"Intervals are about {scope}; {_tested(**test)}."
    )


@writes("reading.target")
def reading_target(
    target: float,
    metric: Values,
    alpha: float | None,
    seeds: bool,
    interval: Values | None,
    repeats: str = "seeds",
) -> str:
    """Say what the numbers of a table with a target are. `metric`: its name, units and direction;
    `alpha`: of the means' intervals, None without intervals, as `interval`: the alpha and the
    family of those of the differences; `repeats`: see `metric`."""
    difference_interval = f" [{_together(interval)}]" if interval is not None else ""
    target_text = amount_text(f"{target:.10g}", metric["unit"])
    mean = _mean_words(seeds, repeats)
    return (
        f"{capitalized(metric['name'])}: {mean}{_interval_words(alpha)}; "
        f"{'run' if repeats == NO_REPEATS else 'mean'} minus the target, {target_text}"
        f"{_in_units(metric, ', ')}{_direction(metric)}{difference_interval}."
    )


@writes("metric.target", exact=True)
def metric_target(
    target: float,
    metric: Values,
    alpha: float | None,
    seeds: bool,
    interval: Values | None,
    repeats: str = "seeds",
) -> str:
    """Say how the intervals of a table with a target are computed. The values are those of
    `reading.target`."""
    if repeats == NO_REPEATS:
        return "The target is a number without noise."
    shared_error = ""
    if interval is not None:
        error = f"an error rate of {100 * interval['alpha']:.4g} %"
        shared_error = f"; the {family_words(**interval['family'])} share {error}"
        if interval["family"]["contrasts"] == [1]:
            shared_error = f"; that of the difference has {error}"
    return (
        f"Both intervals are Student's t of a row's own {repeats if seeds else 'runs'}, for one "
        f"sample{shared_error}. The target is a number without noise."
    )


@writes("verdicts.target")
def verdicts_target(better: str, unused: Sequence[str]) -> str:
    """`better`: the verdict of the better side, "" where no side is better; `unused`: keys that are
    set and are of gains."""
    rules = [
        f"{word}{' (bold)' * (word == better)} = interval of the difference {place} 0"
        for word, place in (("above the target", "above"), ("below the target", "below"))
    ]
    exception = ""
    if unused:
        several = len(unused) > 1
        exception = (
            f" {join_words(unused)} {'apply' if several else 'applies'} to gains only, so "
            f"{'they are' if several else 'it is'} not used here."
        )
    return f"Verdict: {', '.join(rules)}; else can't tell.{exception}"


def _tested(on: str, sizes: Sequence[int], examples: str, untested: str) -> str:
    """Say what numbers are of. `on`: that in words, "" for a test set of one of these `sizes`;
    `untested`: the words where no size is known."""
    if on or not sizes:
        return on or untested
    return f"one split, one test set of {' or '.join(map(str, sizes))} {examples}"


def _noise_words(
    seeds: bool,
    repeats: str,
    alpha: float,
    family: Values,
    looks: Sequence[int],
    methods: Sequence[str],
    examples: str,
) -> str:
    """Say how the intervals of gains are made: `methods` are those by which columns are judged."""
    texts = METHODS if seeds else METHODS_WITHOUT_SEEDS
    repeat = "search" if repeats == "searches" else "seed"
    sources = " or ".join(texts[method] for method in methods)
    sources = sources.format(examples=examples, repeat=repeat, repeats=repeats)
    error = f"an error rate of {100 * alpha:.4g} %"
    if family["contrasts"] == [1] and not looks:
        return f"A gain's interval takes its noise from {sources}, and has {error}."
    return (
        f"A gain's interval takes its noise from {sources}; the {family_words(**family)}"
        f"{_looks_words(looks)} share {error}."
    )


@writes("result.row")
def result_row(place: Values, best: Values | None) -> str:
    """Say which row of a program's table is its result. `place`: its file, or the folder of event
    files."""
    if "tensorboard" in place:
        row = f"step in TensorBoard's files of {place['tensorboard']}"
    else:
        row = f"row of {place['file']}"
    if best is None:
        return f"A run's result is that of the last {row}."
    extreme = {"more": "highest", "less": "lowest"}[best["direction"]]
    return f"A run's result is that of the {row} with the {extreme} {best['key']}."


def family_words(contrasts: Sequence[int], scope: str) -> str:
    """Name the family of simultaneous intervals: "9 comparisons of a column". `scope`: "column" or
    "table"."""
    noun = "comparison" if contrasts == [1] else "comparisons"
    scope_words = "a column" if scope == "column" else "the table"
    return f"{' or '.join(map(str, contrasts))} {noun} of {scope_words}"


def _looks_words(looks: Sequence[int]) -> str:
    if not looks:
        return ""
    return f" and the looks at {', '.join(map(str, looks[:-1]))} and {looks[-1]} seeds"


@writes("interval.of-mean-and-gain", exact=True)
def interval_of_mean_and_gain() -> str:
    return (
        "The interval of a mean comes from its row alone, that of a gain from the noise named "
        "above, so one may be much wider than the other suggests."
    )


@writes("changes.no-cell-verdicts", exact=True)
def changes_no_cell_verdicts() -> str:
    return "Verdicts are about changes, not about single cells."


@writes("metric.measured", exact=True)
def metric_measured(text: str) -> str:
    """`text`: how the metric is measured, as its author says."""
    return text


@writes("task.tested", exact=True)
def task_tested(text: str) -> str:
    """`text`: how the task tests, as its author says."""
    return text


@writes("other-sets")
def other_sets(sets: Sequence[str], family: str) -> str:
    """`family`: that of the gains on other sets: "own", "shared" or, with looks, "none"."""
    judgement = {
        "own": "each of these columns is judged as a family of its own",
        "shared": "they are judged in the same family",
        "none": "they have no verdicts, since looks are at the run's own test set",
    }[family]
    return (
        f"Columns on {first_few(sets)}: the same runs, tested on other images or labels; "
        f"{judgement}. Averages and contrasts use the run's own test set only."
    )


@writes("population")
def population(alpha: float, family: Values) -> str:
    return (
        f"The gain for new images, too, allows for new training seeds and for new test images, "
        f"drawn independently as these were (crossed random effects; {confidence_level(alpha)}, "
        f"for the {family_words(**family)} together)."
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
    seed_words = f"seed {seed}" if seed is not None else "the same seed"
    origin = parent_words(**parent) if parent else ""
    further = f", which starts from {origin}" if origin else ""
    return f"the weights of a run on {data} ({length_words}) with {seed_words}{further}"


@writes("part")
def part(counts: Sequence[Values]) -> str:
    """`counts`: the numbers of rows, columns or cells (`noun`) that are `shown`, and in `total`."""
    parts = [f"{count['shown']} of {count['total']} {count['noun']}" for count in counts]
    return (
        f"{' and '.join(parts)} shown. Intervals, verdicts and counts are those of the whole table."
    )


@writes("part.blocks")
def part_blocks() -> str:
    return "Averages and contrasts that include what is hidden are left out."


@writes("part.sorted", exact=True)
def part_sorted(columns: int) -> str:
    criterion = "their mean gain over the columns shown" if columns > 1 else "gain"
    return f"Rows are sorted by {criterion}, the baseline first."


@writes("part.sorted-by-difference", exact=True)
def part_sorted_by_difference() -> str:
    return "Rows are sorted by their mean over the columns shown, the better first."


# --- The spread of a column ---------------------------------------------------------------------


@writes("noise.resolution")
def noise_resolution(
    columns: Sequence[Values], points: str, seeds: int | None, repeats: str = "seeds"
) -> str:
    """Say how large a gain must be to stand out. `columns`: of each its `heading`, the usual
    `half` width of an interval, the `share` of the variance that comes from the test set, of `size`
    `examples` (0: not known), and the `half` width `with_more` `seeds` (None: not forecast);
    `seeds`: of every row, None where rows differ; `repeats`: what is counted."""
    halves = [column["half"] for column in columns]
    if len(columns) == 1:
        size = f"±{amount_text(significant(halves[0]), points)}"
    elif len(columns) <= NAMED_COLUMNS:
        size_texts = [f"±{significant(c['half'])} in {c['heading']}" for c in columns]
        size = ", ".join(size_texts)
        if unit := amount_text("", points):
            size += f" ({unit})"
    else:
        most = amount_text(significant(max(halves)), points)
        size = f"±{significant(min(halves))} to ±{most}, by column"
    with_seeds = f"With {seeds} {repeats}, gains" if seeds is not None else "Gains"
    text = f"{with_seeds} are known to about {size}"
    if len(columns) > 1:
        return f"{text}: a true gain of that size in its column is missed half of the time."
    [column] = columns
    forecast = column["with_more"]
    if forecast is not None:
        text += f" (with {forecast['seeds']}, about ±{significant(forecast['half'])})"
    text += ": a true gain of that size is missed half of the time"
    if column["share"] >= LEAST_SHARE and column["size"]:
        text += (
            f". {100 * column['share']:.0f} % of a gain's variance between seeds comes from "
            f"counting on only {column['size']} test {column['examples']}"
        )
    return f"{text}."


@writes("verdicts")
def verdicts(words: Sequence[str], margin: float | None, between_rows: Sequence[str] | None) -> str:
    """`words`: those for an interval above 0 and below 0; `margin`: None without one;
    `between_rows`: the words that contrasts between rows have in their place, None where these are
    the same or there are none."""
    above, below = words
    is_neutral = above == "higher"  # a metric without a better direction: nothing is bold
    bold, change = ("", "difference") if is_neutral else (" (bold)", "gain")
    rules = [f"{above}{bold} = interval of the {change} above 0", f"{below} = below 0"]
    if margin is not None:
        rules.append(f"same = within ±{margin:g} (analysis.margin)")
        if not is_neutral:
            rules.append(f"no worse = above -{margin:g}")
    text = f"Verdict, the first that holds: {', '.join(rules)}; else can't tell."
    if between_rows is None:
        return text
    return f"{text} Between two rows, {' and '.join(between_rows)} stand for {above} and {below}."


# --- Warnings -----------------------------------------------------------------------------------


@writes("smoke")
def smoke(paper: bool) -> str:
    """`paper`: whether the sweep is of a published table."""
    subject = "the paper" if paper else "its question"
    return (
        f"A smoke test: it shows that the sweep runs, and says nothing about {subject}. "
        f"No gain is judged."
    )


@writes("unfinished")
def unfinished(missing: int, planned: int, rows: Sequence[Values], looks: bool) -> str:
    """`rows`: each `row` with its `missing` runs; rows with equal counts share a number."""
    by_count: dict[int, list[str]] = {}
    for entry in rows:
        by_count.setdefault(entry["missing"], []).append(entry["row"])
    parts = [
        f"{n} {'each ' * (len(labels) > 1)}of {first_few(labels)}"
        for n, labels in sorted(by_count.items(), reverse=True)
    ]
    consequence = "Gains get intervals and verdicts once every run has a result."
    if looks:
        consequence = "The next look waits until every run of its column has a result."
    return (
        f"UNFINISHED: {missing} of {count_text(planned, 'run')} missing ({'; '.join(parts)}). "
        f"{consequence}"
    )


@writes("skipped")
def skipped(runs: Sequence[str], uneven: bool) -> str:
    """`uneven`: whether rows differ in the seeds that were skipped."""
    numbers = {label.rpartition("#")[2] for label in runs}
    seeds = "this seed" if len(numbers) == 1 else "these seeds"
    exclusion = f"The table leaves out {seeds}"
    if uneven:
        exclusion = f"Gains leave out {seeds}; means are of all finished runs"
    return (
        f"{count_text(len(runs), 'run')} skipped by the user: {first_few(runs)}. {exclusion}; "
        f"`ablate run RUN --undo` lets {'it' if len(runs) == 1 else 'them'} train."
    )


def _end(value: float, decimals: int) -> str:
    """Return an end of an interval as tables print it: with its sign, and never as -0.00."""
    exact = (f"{value:+.{decimals + more}f}" for more in range(7))
    return next((text for text in exact if float(text)), f"{0:+.{decimals}f}")


@writes("few-seeds")
def few_seeds(n: int, gains: Sequence[Values], decimals: int, repeats: str = "seeds") -> str:
    """`gains`: of rows and effects that are judged by their own two seeds, each its `label` and the
    ends `low` and `high` of its interval; `repeats`: what n counts."""
    if n == 1:
        return "One run has no interval (n = 1)."
    text = f"No verdicts, which take three {repeats} (n = 2)"
    if not gains:
        return f"{text}."
    intervals = [
        f"{gain['label']} [{_end(gain['low'], decimals)}, {_end(gain['high'], decimals)}]"
        for gain in gains
    ]
    return (
        f"{text}. The intervals of means, and of {first_few(intervals)}, rest on the two "
        f"{repeats} alone, which say almost nothing about noise."
    )


@writes("condition")
def condition(factor: str) -> str:
    """`factor`: what all seeds of a row share: one "search" or one "parent"."""
    return {
        "search": (
            "Each row has one search, so intervals hold for the chosen settings only, and there "
            "are no verdicts; tune.repeats=3 compares methods."
        ),
        "parent": (
            "Each row starts from one parent, so its interval holds for that parent's weights "
            "only, and there are no verdicts; without from.seed each seed has a parent of its own."
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
    if collapsed:
        fates.append(f"{seed_names(collapsed)} collapsed")
    verdicts = "no further verdicts" if looks else "no verdicts"
    return prefixed(
        column,
        f"{verdicts}: in the baseline {baseline}, {join_words(fates)}, so gains over it don't "
        "measure the variants.",
    )


def _diverged_fate(run: Values) -> str:
    seed, _, step = diverged_run(run).partition(" at ")
    return f"{seed} diverged" + (f" at {step}" if step else "")


@writes("void.rows")
def void_rows(
    column: str, baseline: str, unstable: int, runs: int, variants: Sequence[Values]
) -> str:
    """`variants`: of `rows` with equal counts, the number of `unstable` runs and of all `runs`, and
    Fisher's exact `p` against the baseline, None where it isn't shown. There is none where no
    variant has a result."""
    parts = [
        f"{group['unstable']} of {group['runs']} of {first_few(group['rows'])}"
        + (f", Fisher's exact p = {group['p']:.2g}" if group["p"] is not None else "")
        for group in variants
    ]
    text = f"{unstable} of {count_text(runs, 'run')} of {baseline} diverged or collapsed"
    if parts:
        text += f"; of the variants, {'; '.join(parts)}"
    return prefixed(column, f"{text}.")


@writes("void.compares-rates")
def void_compares_rates(column: str) -> str:
    return prefixed(
        column,
        "The sweep compares learning rates, so the baseline's failure may be a finding.",
    )


@writes("void.lower-rate")
def void_lower_rate(column: str, rate: float) -> str:
    text = f"The baseline may train at a lower learning rate, such as `optim.lr={rate:g}`."
    return prefixed(column, text)


@writes("looks.unrecorded")
def looks_unrecorded(reason: str) -> str:
    return f"Verdicts are withheld, since this look can't be recorded ({reason})."


@writes("joined")
def joined(sentences: Sequence[Values]) -> str:
    """Write several sentences as one text. `sentences`: the `key` and `values` of each."""
    return " ".join(write(sentence["key"], sentence["values"]) for sentence in sentences)
