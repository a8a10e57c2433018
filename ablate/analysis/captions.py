"""Chooses the sentences of a table's caption, warnings and notes, with their values.

english/captions.py and english/looks.py put them into words.

Used by `tabulate.py`, for every command that shows a table. A new sentence also needs its writer in
english/, and `python tests/json_page.py`, which lists its key in docs/json.md.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ablate.analysis import stats, trained_on
from ablate.analysis.english import captions as english
from ablate.analysis.english import looks
from ablate.analysis.footnotes import diverged_runs
from ablate.analysis.judging import Detail, gain_alpha, verdict_words
from ablate.analysis.note import Note, Sentence, notes, sentence
from ablate.analysis.scores import Scores
from ablate.analysis.summary import Summary
from ablate.analysis.table import TableColumn, better_side
from ablate.analysis.trained_on import length_of
from ablate.planning import ONE_SEARCH, Plan, Tune
from ablate.run import OwnSpec, RunSpec, program_of
from ablate.store import FEWEST_FOR_SPREAD, PastLooks, SeedCounts, look_changes, retry_remedy


def joint_words(plan: Plan, columns: Sequence[TableColumn]) -> str:
    """Say for what the intervals of gains hold together, "" where each stands alone: "joint for the
    9 comparisons of a column"."""
    return english.joint_words(**_family(plan, columns), looks=plan.design.seed_counts)


def _family(plan: Plan, columns: Sequence[TableColumn]) -> dict[str, Any]:
    contrasts = sorted({column.contrasts for column in columns})
    return {"contrasts": contrasts, "scope": plan.analysis.family}


# --- The caption --------------------------------------------------------------------------------


def caption(
    plan: Plan,
    columns: Sequence[TableColumn],
    blocks: Sequence[Summary],
    detail: Detail,
    has_verdicts: bool,
) -> Iterator[Sentence]:
    """Explain the numbers of a table. `detail`: what is shown of the gains of rows;
    `has_verdicts`: whether a row or an effect has one."""
    has_intervals = detail >= Detail.INTERVALS
    reading, computation = _metric(plan, columns, blocks, has_intervals)
    if plan.analysis.target is not None:
        reading, computation = _target(plan, columns, plan.analysis.target, has_intervals)
    yield reading
    if has_verdicts and plan.analysis.target is not None:
        unused = [f"analysis.{key}" for key in plan.analysis.unused]
        yield sentence("verdicts.target", better=better_side(plan.metric), unused=unused)
    elif has_verdicts:
        words, between_rows = verdict_words(plan), None
        if any(block.kind == "row_contrast" for block in blocks) and words == stats.BETTER:
            between_rows = [*stats.COMPARED]
        margin = plan.analysis.margin
        yield sentence("verdicts", words=[*words], margin=margin, between_rows=between_rows)
    if has_intervals:
        yield from _resolution(plan, columns)
    yield computation
    if has_intervals and any(c.spreads and c.judged_by != "paired" for c in columns):
        yield sentence("interval.of-mean-and-gain")
    if plan.changes is not None and plan.n >= stats.FEWEST_SEEDS:
        yield sentence("changes.no-cell-verdicts")
    if plan.metric.how:
        yield sentence("metric.measured", text=plan.metric.how)
    if plan.task.how:
        yield sentence("task.tested", text=plan.task.how)
    yield from _rows_of_results(plan)
    yield from _other_sets(plan, columns)
    yield from _population(plan, columns)
    starts: list[dict[str, Any]] = []
    for cell in plan.cells:
        start = _start(cell.spec)
        if start and start not in starts:
            starts.append(start)
    for start in starts:
        yield sentence("parents", start=start)
    if plan.tune is not None:
        yield from _tuned(plan, plan.tune)


def _metric(
    plan: Plan, columns: Sequence[TableColumn], blocks: Sequence[Summary], has_intervals: bool
) -> tuple[Sentence, Sentence]:
    """Explain means, gains and their intervals: what they are, and how they are computed."""
    metric, seeds = plan.metric, plan.design.blocks
    usual = plan.spread if seeds else "one way"
    interval = {
        "alpha": gain_alpha(plan.analysis),
        "family": _family(plan, columns),
        "looks": [*plan.design.seed_counts],
        "methods": [*dict.fromkeys(column.judged_by for column in columns)] or [usual],
        "examples": plan.task.examples,
    }
    values: dict[str, Any] = {
        "metric": {
            "name": metric.name,
            "contrast": metric.contrast_with(plan.baseline_words),
            "points": metric.points,
            "lower": metric.sign < 0,
            "neutral": metric.neutral,
        },
        "alpha": plan.analysis.alpha,
        "seeds": seeds,
        "interval": interval if has_intervals else None,
    }
    test = {
        "on": metric.on or ("of the fixed validation set" if metric.of_curve else ""),
        "sizes": sorted({size for column in columns for size in column.test_sizes}),
        "examples": plan.task.examples,
        "untested": plan.task.untested,
    }
    lines = [line for block in blocks for line in block.lines]
    has_effects = plan.changes is not None and any(line.gain.low is not None for line in lines)
    effects = gain_alpha(plan.analysis) if has_effects else None
    # Of gains and of means: a gain is on fewer seeds than its row where the baseline lacks some.
    counts = [
        {n for e in column.entries for n in (e.n, e.accuracy.n if e.accuracy else 0) if n}
        for column in columns
    ]
    uneven = seeds and any(len(numbers) > 1 for numbers in counts)
    values |= _sample(plan, columns)
    reading_values = {**values, "alpha": None if plan.smoke else values["alpha"]}
    reading = sentence("reading", **reading_values, effects=effects, uneven=uneven)
    return reading, sentence("metric", **values, test=test)


def _sample(plan: Plan, columns: Sequence[TableColumn]) -> dict[str, Any]:
    """Return what the means of a table are of, where that is not several seeds: searches, or one
    run each, which has no intervals."""
    counts = {e.accuracy.n for column in columns for e in column.entries if e.accuracy}
    if counts == {1} and plan.repeats != "searches":
        return {"alpha": None, "interval": None, "repeats": english.NO_REPEATS}
    return {"repeats": "searches"} if plan.repeats == "searches" else {}


def _target(
    plan: Plan, columns: Sequence[TableColumn], target: float, has_intervals: bool
) -> tuple[Sentence, Sentence]:
    """Explain means, their differences from the target, and how both intervals are computed."""
    metric = plan.metric
    values: dict[str, Any] = {
        "target": target,
        "metric": {
            "name": metric.name,
            "unit": metric.unit,
            "points": metric.points,
            "lower": metric.sign < 0,
            "neutral": metric.neutral,
        },
        "alpha": plan.analysis.alpha,
        "seeds": plan.design.blocks,
        "interval": None,
    }
    if has_intervals:
        family = _family(plan, columns)
        values["interval"] = {"alpha": gain_alpha(plan.analysis), "family": family, "looks": []}
    values |= _sample(plan, columns)
    reading_values = {**values, "alpha": None if plan.smoke else values["alpha"]}
    return sentence("reading.target", **reading_values), sentence("metric.target", **values)


def _resolution(plan: Plan, columns: Sequence[TableColumn]) -> Iterator[Sentence]:
    """Say how large a gain must be to stand out from the noise, by the usual width of the intervals
    of a column."""
    described, seeds = [], set[int]()
    for column in columns:
        gains = [entry.gain for entry in column.entries if entry.gain]
        halves = [gain.half for gain in gains if gain.half is not None]
        if not halves:
            continue
        seeds |= {gain.n for gain in gains}
        forecast = column.forecast
        described.append(
            {
                "heading": column.heading,
                "half": statistics.median(halves),
                "share": column.flips if column.judged_by == "images" else 0.0,
                "size": column.test_sizes[0] if len(column.test_sizes) == 1 else 0,
                "examples": plan.task.examples,
                "with_more": {"seeds": forecast.seeds, "half": forecast.half} if forecast else None,
            }
        )
    if described:
        yield sentence(
            "noise.resolution",
            columns=described,
            points=plan.metric.points,
            seeds=seeds.pop() if len(seeds) == 1 and plan.design.blocks else None,
            **_repeats_value(plan),
        )


def _population(plan: Plan, columns: Sequence[TableColumn]) -> Iterator[Sentence]:
    """Explain the gains for new seeds and images, if the table has them; name the columns that have
    none."""
    if not any(entry.population for column in columns for entry in column.entries):
        return
    yield sentence("population", alpha=gain_alpha(plan.analysis), family=_family(plan, columns))
    lacking = {column.heading: column.lacking for column in columns if column.lacking}
    for heading, reason in lacking.items():
        yield sentence("population.lacking", column=heading, reason=reason)


def _other_sets(plan: Plan, columns: Sequence[TableColumn]) -> Iterator[Sentence]:
    """State which columns are further test sets (`eval.also`) of the same runs."""
    sets = dict.fromkeys(column.on for column in columns if column.on)
    if sets:
        family = "own" if plan.analysis.family == "column" else "shared"
        family = family if plan.design.judges_other_sets else "none"
        yield sentence("other-sets", sets=[*sets], family=family)


def _rows_of_results(plan: Plan) -> Iterator[Sentence]:
    """State which row of a table is a run's result, where programs leave tables."""
    results: list[dict[str, Any]] = []
    for spec in (cell.spec for cell in plan.cells):
        if isinstance(spec, OwnSpec) and spec.is_command:
            result = program_of(spec).result
            if result.is_table and result.plain not in results:
                results.append(result.plain)
    for plain in results:
        place = {name: plain[name] for name in ("file", "tensorboard") if name in plain}
        yield sentence("result.row", place=place, best=plain.get("best"))


def parent_words(spec: RunSpec) -> str:
    """Say what a run with this spec starts from: "a run on cifar10 (40 epochs) of its own seed"."""
    return english.parent_words(**_start(spec))


def _start(spec: RunSpec) -> dict[str, Any]:
    """Return what a run with this spec starts from: a file, or a run and what that starts from."""
    weights = spec.tree.get("weights")
    if weights is not None:
        return {"weights": weights["sha256"]}
    parent = spec.parent
    if parent is None:
        return {}
    length, unit = length_of(parent.tree["train"])
    return {
        "data": parent.tree["data"]["name"],
        "length": length,
        "unit": unit,
        "seed": parent.tree.get("seed"),
        "parent": _start(parent),
    }


def _tuned(plan: Plan, tune: Tune) -> Iterator[Sentence]:
    """State what was tuned, with how many trials; and how settings were searched and chosen."""
    shares = [share for cell in plan.cells for c in cell.chosen for share in c.explored.values()]
    compared = ONE_SEARCH not in plan.conditions
    yield sentence(
        "tuned.keys",
        keys=[*dict.fromkeys(key for stage in tune.stages for key in stage.space)],
        trials=tune.trials_each,
        compared=compared,
        untuned=[column.label for column in plan.columns if not column.tuned],
    )
    yield sentence(
        "tuned",
        searches=plan.searches_said,
        trials=tune.trials_each,
        sampler=tune.sampler,
        explored=min(shares, default=None),
        chosen_on={
            "parents": tune.parents,
            "metric": plan.objective.name if plan.metric.own else "",  # which needs a test set
        },
        compared=compared,
    )


# --- Notes --------------------------------------------------------------------------------------


def smoke_notes(plan: Plan) -> Iterator[Sentence]:
    """Yield the sentence that a smoke test begins with; none for any other sweep."""
    if plan.smoke:
        yield sentence("smoke", paper=bool(plan.paper))


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
    unfinished = [_unfinished(plan, missing)] if missing.total() else []
    return [
        *notes("unfinished", unfinished),
        *notes("warning", _warnings(plan, cells, columns, detail)),
    ]


def _warnings(
    plan: Plan,
    cells: Sequence[Scores],
    columns: Sequence[TableColumn],
    detail: Detail,
) -> Iterator[Sentence]:
    yield from trained_on.notes(plan)
    if plan.skipped:
        yield sentence("skipped", runs=[*plan.skipped], uneven=bool(plan.unevenly_skipped))
    if not plan.smoke and any(entry.n == 1 for column in columns for entry in column.entries):
        yield _few_seeds(plan, 1, [])
    for condition in plan.conditions:
        yield sentence("condition", factor=condition.factor)
    for column in columns:
        if column.void and not column.on:
            block = [score for score in cells if score.cell.column == column.label]
            yield from _void(plan, column, block, detail)


def two_seed_notes(
    plan: Plan, columns: Sequence[TableColumn], blocks: Sequence[Summary]
) -> Iterator[Sentence]:
    """Say that two seeds are few, and name the gains whose interval comes from these seeds alone,
    and is very wide."""
    if plan.n != 2 or plan.smoke:
        return
    gains = [
        (entry.row, column.heading, entry.gain) for column in columns for entry in column.entries
    ]
    headings = {column.label: column.heading for column in columns}
    gains += [
        (
            f"the average of {line.label}" if block.kind == "average" else line.label,
            headings.get(line.column, line.column),
            line.gain,
        )
        for block in blocks
        for line in block.lines
    ]
    alone: dict[str, dict[str, Any]] = {}
    for row, heading, gain in gains:
        label = f"{row} in {heading}" if heading and len(columns) > 1 else row
        has_interval = gain is not None and gain.low is not None and gain.df is not None
        if gain is not None and has_interval and gain.n == 2 and (gain.df or 0) <= 1:
            alone.setdefault(label, {"label": label, "low": gain.low, "high": gain.high})
    yield _few_seeds(plan, 2, [*alone.values()])


def _few_seeds(plan: Plan, n: int, gains: Sequence[Mapping[str, Any]]) -> Sentence:
    decimals = plan.metric.decimals
    return sentence("few-seeds", n=n, gains=gains, decimals=decimals, **_repeats_value(plan))


def _repeats_value(plan: Plan) -> dict[str, str]:
    """Return the value of a sentence that says what n counts, where that is not seeds: the JSON of
    all other tables, which bundles hold, stays as it was."""
    return {} if plan.repeats == "seeds" else {"repeats": plan.repeats}


def withheld_notes(plan: Plan, runs: Mapping[str, str]) -> Iterator[Sentence]:
    """Yield a note on every run whose files were changed after the run. `runs`: id -> why."""
    for line in runs.values():
        yield sentence("withheld", run=line)
    if runs:
        yield sentence("withheld.missing", remedy=retry_remedy(plan))


def _void(
    plan: Plan, column: TableColumn, block: Sequence[Scores], detail: Detail
) -> Iterator[Sentence]:
    """Name the runs of the baseline that void a column, and what can be said without verdicts."""
    base = next(score for score in block if score.cell.row == plan.baseline)
    heading = column.heading
    yield sentence(
        "void",
        column=heading,
        baseline=plan.baseline_words,
        diverged=diverged_runs(base),
        collapsed=[*base.collapsed],
        looks=bool(plan.design.seed_counts),
    )
    n = len(base.results)
    groups: dict[tuple[int, int], list[str]] = {}
    for score in block:
        if score is not base and score.results:
            groups.setdefault((len(score.unstable), len(score.results)), []).append(score.cell.row)
    variants = []
    for (k, m), rows in groups.items():
        test = stats.fisher(k, m, len(base.unstable), n)
        p = test.p if test.tested and detail >= Detail.INTERVALS else None
        variants.append({"unstable": k, "runs": m, "rows": rows, "p": p})
    yield sentence(
        "void.rows",
        column=heading,
        baseline=plan.baseline_words,
        unstable=len(base.unstable),
        runs=n,
        variants=variants,
    )
    rate = base.cell.spec.tree.get("optim", {}).get("lr")
    columns = [column.settings for column in plan.columns]
    if any("optim.lr" in s for s in (*(r.settings for r in plan.rows), *columns)):
        yield sentence("void.compares-rates", column=heading)
    elif rate is not None:
        yield sentence("void.lower-rate", column=heading, rate=float(f"{rate / 3:.2g}"))


def _unfinished(plan: Plan, missing: Counter[str]) -> Sentence:
    """Count the missing runs by row."""
    return sentence(
        "unfinished",
        missing=missing.total(),
        planned=sum(len(plan.planned(cell)) for cell in plan.cells),
        rows=[{"row": row, "missing": lacking} for row, lacking in missing.items() if lacking],
        looks=bool(plan.design.seed_counts),
    )


def look_notes(
    plan: Plan, past: PastLooks | None, methods: Mapping[str, stats.Method], strict: bool
) -> tuple[list[Sentence], bool]:
    """Return the notes on earlier looks at a table's runs, and whether `strict` withholds its
    verdicts. `methods`: by column, for those that have gains; {} where looks are not known."""
    sentences, left_out = list[Sentence](), _left_out(plan)
    is_grave = bool(left_out)
    if past is not None:
        counts = {column: past.counts(column) for column in methods}
        changed = _changed(past)
        is_error_known = not changed or changed[0].values["known_error"] != ""
        sentences += _by_column(
            plan, methods, lambda column: _among(past, column, methods[column].contrasts)
        )
        # Of each column, with all that was read in it; the family may be of all columns.
        all_read = {
            column: dataclasses.replace(
                method, variants=max(method.variants, past.contrasts(column))
            )
            for column, method in methods.items()
        }
        sentences += (*_read_at(plan, counts, all_read, is_error_known), *changed)
        sentences += _by_column(
            plan, methods, lambda column: _shared_baseline_note(plan, past, column)
        )
        undeclared = (c for c in counts.values() if not c.are_declared and c.has_more)
        is_grave = is_grave or bool(changed) or any(undeclared)
    sentences += left_out
    withheld = strict and is_grave
    if withheld:
        sentences.append(sentence("looks.strict"))
    return sentences, withheld


def _by_column(
    plan: Plan,
    columns: Mapping[str, stats.Method],
    find: Callable[[str], tuple[str, dict[str, Any]] | None],
) -> Iterator[Sentence]:
    """Yield the sentence on every column; columns with equal values share one, which names them
    unless they are all. `find`: returns the key and the values for a column, None without one."""
    alike: list[tuple[tuple[str, dict[str, Any]], list[str]]] = []
    for column in columns:
        if (fact := find(column)) is None:
            continue
        headings = next((labels for noted, labels in alike if noted == fact), None)
        if headings is None:
            headings = []
            alike.append((fact, headings))
        headings.append(plan.heading(column))
    for (key, values), headings in alike:
        yield sentence(key, columns=headings if len(headings) < len(columns) else [], **values)


def _among(past: PastLooks, column: str, contrasts: int) -> tuple[str, dict[str, Any]] | None:
    count = past.contrasts(column)
    if count <= len(past.ours(column)):
        return None
    return "looks.among", {
        "sweeps": [_other_name(past, sweep) for sweep in past.other_sweeps(column)],
        "noun": "comparison" if past.counts_more_than_gains(column) else "variant",
        "compared": count,
        "contrasts": contrasts,
    }


def _other_name(past: PastLooks, sweep: str) -> str:
    """Return the name of a sweep, "" of the table's own."""
    return sweep if sweep != past.present.sweep else ""


def _read_at(
    plan: Plan,
    counts: Mapping[str, SeedCounts],
    methods: Mapping[str, stats.Method],
    is_error_known: bool,
) -> Iterator[Sentence]:
    """Yield a note if verdicts, or means of an unfinished table, were also read at other numbers of
    seeds, which were not declared; with the error, where nothing else makes it unknown. `methods`:
    by column, with all comparisons that were read in it as its variants."""
    alike: list[tuple[dict[str, Any], list[str]]] = []
    for column, seed_counts in counts.items():
        if len(seed_counts.numbers) > 1 and not seed_counts.are_declared:
            readings = _other_readings(seed_counts)
            labels = next((columns for noted, columns in alike if noted == readings), None)
            if labels is None:
                alike.append((readings, [column]))
            else:
                labels.append(column)
    for readings, columns in alike:
        errors = [stats.look_error(counts[c].numbers, methods[c]) for c in columns]
        by_column = plan.analysis.family == "column"
        error = max(errors) if by_column else 1 - math.prod(1 - e for e in errors)
        headings = [plan.heading(c) for c in columns] if len(columns) < len(methods) else []
        if not is_error_known:
            yield sentence("looks.read-elsewhere", columns=headings, **readings)
            continue
        yield sentence(
            "looks.other-readings",
            columns=headings,
            error=error,
            of_column=len(errors) > 1 and by_column,
            **readings,
        )


def _what_was_read(n: int) -> str:
    """Name what a complete table of n seeds shows at most."""
    if n < FEWEST_FOR_SPREAD:
        return "means"
    return "intervals" if n < stats.FEWEST_SEEDS else "verdicts"


def _other_readings(counts: SeedCounts) -> dict[str, Any]:
    """Return where else runs were read, by what was read, and what it was at most."""
    verdicts, means = (
        [{"n": n, "sweeps": [*sweeps]} for n, sweeps in sorted(some.items())]
        for some in (counts.verdicts, counts.means)
    )
    subject = _what_was_read(max(counts.verdicts)) if verdicts else "means"
    return {"verdicts": verdicts, "means": means, "subject": subject}


def _changed(past: PastLooks) -> list[Sentence]:
    """Return a note if the table has changed since the first look at its runs."""
    if (first_look := past.first_look()) is None:
        return []
    changes = look_changes(first_look, past.present)
    if not changes.lines:
        return []
    place = {
        "sweep": _other_name(past, first_look.sweep),
        "n": first_look.n,
        "changes": [*changes.lines],
    }
    sentences = [
        sentence(
            "looks.changed",
            **place,
            subject=_what_was_read(first_look.n),
            known_error=changes.known_error,
        )
    ]
    if looks.only_named(changes.lines):
        sentences.append(sentence("looks.changes", **place))
    return sentences


def _left_out(plan: Plan) -> list[Sentence]:
    """Return a note if the user skipped runs while curves of their seed could be seen."""
    begun_runs = sum(bool(detail.get("begun")) for detail in plan.skipped.values())
    seen_runs = sum(bool(detail.get("seen")) for detail in plan.skipped.values())
    if not begun_runs and not seen_runs:
        return []
    return [sentence("looks.skipped-in-view", begun_runs=begun_runs, seen_runs=seen_runs)]


def _shared_baseline_note(
    plan: Plan, past: PastLooks, column: str
) -> tuple[str, dict[str, Any]] | None:
    count, sweeps = past.count_over_baseline(column)
    if not sweeps:
        return None
    families = len({*sweeps, past.present.sweep})
    values = {"variants": count, "families": families, "alpha": plan.analysis.alpha}
    return "looks.shared-baseline", values
