"""The gain table of a sweep: from a plan and the results of its runs to numbers and words.

`tabulate` computes everything that a table says; `formats` only sets it. The same plan, results
and looks give the same table, in whatever order the results were read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablate.plan import Analysis, Cell, Plan
from ablate.spec import Failure, UserError

if TYPE_CHECKING:  # numpy and scipy, which `--help` does without
    from ablate.stats import ColumnGains, Estimate, Method, RowGain

Results = Mapping[str, Mapping[str, Any] | None]  # run id -> result.json, None or absent: no result


@dataclass(frozen=True)
class Metric:
    """How a metric is named and printed. `sign`: -1 where less is better."""

    name: str
    unit: str  # of a value
    points: str  # of a difference
    scale: float
    decimals: int
    sign: int = 1


METRICS = {
    "top1": Metric("top-1 accuracy", "%", "points", 100.0, 2),
    "top5": Metric("top-5 accuracy", "%", "points", 100.0, 2),
    "loss": Metric("test loss", "", "nats", 1.0, 4, sign=-1),
}

# What the machine chose, by its key in result.json (the precision: the recipe's): a column that
# mixes it says so, and `--strict` refuses it.
MACHINE = {
    "device": "device",
    "kernel": "attention kernel",
    "precision": "precision",
    "threads": "number of threads",
    "micro_batch": "micro-batch",
    "digest": "version of the training code",
    "torch": "version of torch",
}
CODE = ("digest", "plugins")  # "d1+d2": a run that went on under other code


@dataclass(frozen=True)
class Entry:
    """One row in one column. Footnotes are numbers, from 1."""

    row: str
    column: str
    planned: int  # runs
    values: Mapping[int, float]  # the metric by seed: what the mean is of
    missing: tuple[int, ...]  # seeds without a result
    diverged: tuple[int, ...]
    collapsed: tuple[int, ...]
    accuracy: Estimate | None  # the metric, whichever it is
    gain: Estimate | None  # None for the baseline
    pool: str  # "kept", or why the row left the pooled spread; "" where nothing is pooled
    verdict: str | None  # None where none is given
    seeds_needed: int | None  # to tell; with "can't tell" None means more than stats.MOST_SEEDS
    footnotes: tuple[int, ...]

    @property
    def n(self) -> int:
        """Independent trainings behind the gain; behind the mean where there is no gain."""
        estimate = self.gain or self.accuracy
        return estimate.n if estimate else 0


@dataclass(frozen=True)
class TableRow:
    """A variant."""

    label: str
    family: str | None
    footnotes: tuple[int, ...]


@dataclass(frozen=True)
class TableColumn:
    """One value of `across`, and what its gains are judged by."""

    label: str
    entries: tuple[Entry, ...]  # in the rows' order; excluded cells have none
    contrasts: int  # in the family
    spread: float | None
    df: int | None
    pooled_rows: int
    correlation: Estimate | None
    test_sizes: tuple[int, ...]  # images; more than one where rows were tested on different sets
    footnotes: tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """All that a table says. `caption` and `notes` are lines; `footnotes` are numbered from 1."""

    sweep: str
    title: str
    metric: str
    baseline: str
    seeds: tuple[int, ...]
    complete: bool
    alpha: float  # of an interval of the metric
    gain_alpha: float  # of a family of gains
    rows: tuple[TableRow, ...]
    columns: tuple[TableColumn, ...]
    caption: tuple[str, ...]
    notes: tuple[str, ...]
    footnotes: tuple[str, ...]

    @property
    def entries(self) -> list[Entry]:
        return [entry for column in self.columns for entry in column.entries]

    @property
    def is_look(self) -> bool:
        """Does it print a verdict? Then it is a look, to be recorded in `looks`."""
        return any(entry.verdict is not None for entry in self.entries)


def tabulate(
    plan: Plan, results: Results, looks: Iterable[Sequence[int]] = (), *, strict: bool = False
) -> Table:
    """The table of `plan`. `looks`: the sets of seeds at which its verdicts were printed before.

    `strict` withholds the verdicts of a table whose seeds grew after an undeclared look, and raises
    Failure where the runs of a column are of different machines or code.
    """
    analysis = plan.analysis
    footnotes = _Footnotes()
    scores = {(cell.row, cell.column): _scores(cell, plan, results) for cell in plan.cells}
    complete = not any(score.missing for score in scores.values())
    look_note = _look_note(plan, looks)
    judge = complete and not (strict and look_note)
    columns = []
    for column in plan.columns:
        keys = [(row.label, column.label) for row in plan.rows]
        block = [scores[key] for key in keys if key in scores]
        if strict:
            _refuse_mixed(column.label, block)
        columns.append(_column(plan, column.label, block, judge, footnotes))
    rows = tuple(
        TableRow(row.label, row.family, footnotes.of(_row_notes(row.confounds)))
        for row in plan.rows
    )
    return Table(
        sweep=plan.name,
        title=plan.title,
        metric=analysis.metric,
        baseline=plan.baseline,
        seeds=plan.seeds,
        complete=complete,
        alpha=analysis.alpha,
        gain_alpha=_gain_alpha(analysis),
        rows=rows,
        columns=tuple(columns),
        caption=tuple(_caption(plan, columns)),
        notes=tuple(_notes(plan, list(scores.values()), columns, look_note, strict)),
        footnotes=tuple(footnotes.texts),
    )


class _Footnotes:
    """Texts numbered as they first appear; equal ones share a number."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def of(self, texts: Iterable[str]) -> tuple[int, ...]:
        for text in texts:
            if text not in self.texts:
                self.texts.append(text)
        return tuple(self.texts.index(text) + 1 for text in texts)


# --- The results of a cell ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Scores:
    """What came of the runs of a cell, by seed."""

    cell: Cell
    values: Mapping[int, float]
    missing: tuple[int, ...]
    diverged: Mapping[int, int | None]  # seed -> step
    collapsed: tuple[int, ...]
    results: tuple[Mapping[str, Any], ...]


def _scores(cell: Cell, plan: Plan, results: Results) -> _Scores:
    values: dict[int, float] = {}
    diverged: dict[int, int | None] = {}
    missing, collapsed, found = [], [], []
    for seed in plan.seeds:
        result = results.get(cell.ids[seed])
        status = result["status"] if result else None
        if result is None or status not in ("finished", "diverged"):
            missing.append(seed)
            continue
        found.append(result)
        if status == "diverged":
            diverged[seed] = result.get("step")
            if plan.analysis.diverged == "chance":
                values[seed] = _chance(plan.analysis.metric, cell)
        else:
            values[seed] = _value(plan.analysis.metric, result, cell)
            if result.get("collapsed"):
                collapsed.append(seed)
    return _Scores(cell, values, tuple(missing), diverged, tuple(collapsed), tuple(found))


def _value(metric: str, result: Mapping[str, Any], cell: Cell) -> float:
    value = result["test"].get(metric)
    if value is None:
        raise UserError(
            f"analysis.metric: {metric} was not measured for {cell.row!r} "
            f"(top5 needs at least 10 classes); choose top1 or loss"
        )
    return float(value) * METRICS[metric].scale


def _chance(metric: str, cell: Cell) -> float:
    """What guessing gets: every class as likely as any other."""
    classes = int(cell.spec["data"]["classes"])
    if metric == "loss":
        return math.log(classes)
    return METRICS[metric].scale * min(5 if metric == "top5" else 1, classes) / classes


# --- A column -----------------------------------------------------------------------------------


def _column(
    plan: Plan,
    label: str,
    block: Sequence[_Scores],
    judge: bool,
    footnotes: _Footnotes,
) -> TableColumn:
    column_footnotes = footnotes.of([sentence for _, sentence in _mixed(block)])
    method = _method(plan, label)
    gains = _gains(plan, block, method)
    if plan.analysis.diverged == "omit":  # gains over a baseline's survivors are no fair contest
        judge &= not any(s.diverged for s in block if s.cell.row == plan.baseline)
    confounds = {row.label: row.confounds for row in plan.rows}
    entries = []
    for scores, gain in zip(block, gains.rows, strict=True):
        footnotes.of(_row_notes(confounds[scores.cell.row]))  # numbered where it first shows
        entries.append(_entry(plan, scores, gain, judge, footnotes))
    tested = [result["test"] for scores in block for result in scores.results if "test" in result]
    return TableColumn(
        label=label,
        entries=tuple(entries),
        contrasts=method.contrasts,
        spread=gains.spread,
        df=gains.df,
        pooled_rows=gains.kept,
        correlation=gains.correlation,
        test_sizes=tuple(sorted({int(test["n"]) for test in tested})),
        footnotes=column_footnotes,
    )


def _method(plan: Plan, column: str) -> Method:
    """How a column is judged. Contrasts count as planned: they don't depend on results."""
    from ablate import stats

    analysis = plan.analysis
    contrasts = [cell.column for cell in plan.cells if cell.row != plan.baseline]
    comparisons = max(1, contrasts.count(column))
    return stats.Method(
        spread=analysis.spread,
        screen=analysis.screen,
        alpha=_gain_alpha(analysis),
        contrasts=comparisons if analysis.family == "column" else max(1, len(contrasts)),
        comparisons=comparisons,
    )


def _gains(plan: Plan, block: Sequence[_Scores], method: Method) -> ColumnGains:
    """The column's gains, positive where better; none where it has no baseline."""
    import numpy as np

    from ablate import stats

    labels = [scores.cell.row for scores in block]
    if plan.baseline not in labels:
        return stats.ColumnGains((None,) * len(block), None, None, 0, None)
    sign = METRICS[plan.analysis.metric].sign
    y = np.array(
        [[sign * scores.values.get(seed, math.nan) for seed in plan.seeds] for scores in block]
    )
    unstable = np.array([bool(scores.diverged or scores.collapsed) for scores in block])
    baseline = labels.index(plan.baseline)
    return stats.column_gains(y, baseline, method, unstable, plan.analysis.margin)


def _entry(
    plan: Plan,
    scores: _Scores,
    gain: RowGain | None,
    judge: bool,
    footnotes: _Footnotes,
) -> Entry:
    from ablate import stats

    analysis = plan.analysis
    values = list(scores.values.values())
    omitted = bool(scores.diverged) and analysis.diverged == "omit"
    verdict = None
    if judge and gain and not omitted and gain.gain.low is not None and gain.gain.high is not None:
        # Equal gains in all seeds have no spread: accuracies are counts, so that this is rounding.
        low, high = (gain.gain.low, gain.gain.high) if gain.gain.sd else (-math.inf, math.inf)
        verdict = stats.verdict(low, high, analysis.margin)
    return Entry(
        row=scores.cell.row,
        column=scores.cell.column,
        planned=len(plan.seeds),
        values=scores.values,
        missing=scores.missing,
        diverged=tuple(scores.diverged),
        collapsed=scores.collapsed,
        accuracy=stats.mean_interval(values, analysis.alpha) if values else None,
        gain=gain.gain if gain else None,
        pool=(gain.left or "kept") if gain and analysis.spread == "pooled" else "",
        verdict=verdict,
        seeds_needed=gain.seeds_needed if gain and verdict == stats.CANT_TELL else None,
        footnotes=footnotes.of(_entry_notes(plan, scores, gain)),
    )


def _entry_notes(plan: Plan, scores: _Scores, gain: RowGain | None) -> list[str]:
    metric = METRICS[plan.analysis.metric]
    notes = []
    if scores.cell.overrides:
        keys = ", ".join(scores.cell.overrides)
        notes.append(f"The sweep's overrides change the recipe of this cell: {keys}.")
    if scores.diverged:
        notes.append(_diverged_note(plan, scores, gain))
    if scores.collapsed:
        notes.append(
            f"Collapsed: {_seeds(scores.collapsed)} ended with a training loss no lower than that "
            f"of the class prior; kept in the mean{_left(gain)}."
        )
    if gain and gain.left == "spread" and gain.spread is not None:
        notes.append(
            f"Left the pool: its spread of {gain.spread:.{metric.decimals}f} is out of line with "
            f"the other rows' (F test, 5 %); its own paired interval."
        )
    if gain and gain.gain.sd == 0:
        notes.append("The same gain in every seed: no spread to judge by.")
    return notes


def _left(gain: RowGain | None) -> str:
    unstable = gain is not None and gain.left == "instability"
    return "; left the pool, its own paired interval" if unstable else ""


def _diverged_note(plan: Plan, scores: _Scores, gain: RowGain | None) -> str:
    runs = ", ".join(
        f"seed {seed}" + (f" at step {step}" if step is not None else "")
        for seed, step in scores.diverged.items()
    )
    left = _left(gain)
    if plan.analysis.diverged == "chance":
        return f"Diverged: {runs}; scored at chance{left}."
    if scores.cell.row == plan.baseline:
        return f"Diverged: {runs}; gains are over the baseline's survivors, so no verdicts{left}."
    return f"Diverged: {runs}; mean and gain are of the survivors, so no verdict{left}."


def _row_notes(confounds: Sequence[str]) -> list[str]:
    if not confounds:
        return []
    return [f"A confound: sets {', '.join(confounds)}, which belongs to the recipe."]


def _mixed(block: Sequence[_Scores]) -> list[tuple[str, str]]:
    """(key, sentence) for all that the runs of a column differ in beside what was planned."""
    used: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for scores in block:
        for result in scores.results:
            for key, name, value in _circumstances(scores.cell, result):
                values = used.setdefault((key, name), {})
                values.setdefault(str(value), Counter())[scores.cell.row] += 1
    mixed = []
    for (key, name), values in used.items():
        changed = key in CODE and any("+" in value for value in values)  # while a run trained
        if len(values) > 1 or changed:
            ranked = sorted(values.items(), key=lambda item: (-item[1].total(), item[0]))
            parts = [
                f"{value} ({_count(rows.total(), 'run')}"
                + (f": {_names(list(rows))})" if position else ")")
                for position, (value, rows) in enumerate(ranked)
            ]
            mixed.append((key, f"Runs differ in their {name}: {', '.join(parts)}."))
    return mixed


def _refuse_mixed(column: str, block: Sequence[_Scores]) -> None:
    """For --strict. Batches may be split differently: what would notice refuses to be split."""
    mixed = [sentence for key, sentence in _mixed(block) if key != "micro_batch"]
    if mixed:
        raise Failure(f"--strict: {f'{column}: ' if column else ''}{' '.join(mixed)}")


def _circumstances(cell: Cell, result: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(key, name, value) of all that should be the same for the runs of a column."""
    known = {**result, "precision": cell.spec.get("train", {}).get("precision")}
    for key, name in MACHINE.items():
        if known.get(key) is not None:
            yield key, name, known[key]
    digests = result.get("plugins")
    own = {k: v for k, v in digests.items() if v} if isinstance(digests, dict) else {}
    if own:  # a digest is of all that was loaded from a folder: alike only for the same classes
        names = (f"{kind}={cell.spec[kind]['name']}" for kind in own)
        yield "plugins", f"code of {', '.join(names)}", "/".join(dict.fromkeys(own.values()))


# --- Words --------------------------------------------------------------------------------------


def _gain_alpha(analysis: Analysis) -> float:
    """Declared looks share alpha (Bonferroni)."""
    return analysis.alpha / max(1, len(analysis.looks))


def level(alpha: float) -> str:
    return f"{100 * (1 - alpha):.4g} %"


def number(value: float, metric: str, sign: bool = False) -> str:
    decimals = METRICS[metric].decimals
    value = round(value, decimals) + 0.0  # a rounded -0.001 is 0.00, not -0.00
    return f"{value:{'+' if sign else ''}.{decimals}f}"


def _caption(plan: Plan, columns: Sequence[TableColumn]) -> list[str]:
    from ablate import stats

    analysis, metric = plan.analysis, METRICS[plan.analysis.metric]
    direction = "higher" if metric.sign > 0 else "lower"
    family = "its column" if analysis.family == "column" else "the table"
    counts = sorted({column.contrasts for column in columns})
    contrasts = " or ".join(map(str, counts)) + (" contrast" if counts == [1] else " contrasts")
    lines = [
        f"Final {metric.name}, mean over seeds [{level(analysis.alpha)} Student t interval]; gain "
        f"over {plan.baseline} in {metric.points}, + is better ({direction}) "
        f"[{level(_gain_alpha(analysis))} interval, simultaneous over the {contrasts} of {family}; "
        f"{_method_words(analysis)}]."
    ]
    for column in columns:
        spread = _spread(plan, column)
        lines.append(f"{column.label}: {spread}" if column.label else spread.capitalize())
    lines.append("Intervals are over training seeds, with the test set fixed.")
    verdicts = {entry.verdict for column in columns for entry in column.entries}
    if stats.CANT_TELL in verdicts:
        lines.append(
            "Needs n: the seeds at which there is a verdict with 80 % power, if the gain seen is "
            "the true one."
        )
    return lines


def _method_words(analysis: Analysis) -> str:
    match analysis.spread:
        case "paired":
            return "each row's own paired t at alpha / contrasts"
        case "welch":
            return "Welch's t at alpha / contrasts"
    constant = "t at alpha / contrasts" if analysis.screen else "Dunnett's constant"
    return f"seeds as blocks, one spread a column, {constant}"


def _spread(plan: Plan, column: TableColumn) -> str:
    metric = METRICS[plan.analysis.metric]
    parts = []
    if column.spread is not None:
        parts.append(
            f"pooled spread {column.spread:.{metric.decimals}f} {metric.points} ({column.df} df, "
            f"{column.pooled_rows} of {_count(len(column.entries), 'row')})"
        )
    elif plan.analysis.spread == "pooled":
        parts.append("pooled spread unknown")
    if (r := column.correlation) and r.low is not None and r.high is not None:
        parts.append(f"seed correlation {r.mean:.2f} [{r.low:.2f}, {r.high:.2f}]")
    else:
        parts.append("seed correlation unknown")
    sizes = " or ".join(map(str, column.test_sizes))
    parts.append(f"test set of {sizes} images" if sizes else "nothing tested yet")
    return "; ".join(parts) + "."


def _notes(
    plan: Plan,
    scores: Sequence[_Scores],
    columns: Sequence[TableColumn],
    look_note: str | None,
    strict: bool,
) -> list[str]:
    notes = []
    missing = Counter[str]()
    for score in scores:
        missing[score.cell.row] += len(score.missing)
    if missing.total():
        notes.append(_unfinished(missing, sum(len(plan.seeds) for _ in scores)))
    if any(entry.n == 1 for column in columns for entry in column.entries):
        notes.append("n = 1: no interval.")
    if look_note:
        notes.append(look_note + (" --strict: verdicts withheld." if strict else ""))
    return notes


def _unfinished(missing: Counter[str], planned: int) -> str:
    """How many runs are missing, and of which rows; rows that miss as many share a count."""
    by_count: dict[int, list[str]] = {}
    for row, count in missing.items():
        if count:
            by_count.setdefault(count, []).append(row)
    parts = [f"{count} of {_names(rows)}" for count, rows in sorted(by_count.items(), reverse=True)]
    return (
        f"UNFINISHED: {missing.total()} of {_count(planned, 'run')} missing "
        f"({'; '.join(parts)}). No verdicts until they are there."
    )


def _look_note(plan: Plan, looks: Iterable[Sequence[int]]) -> str | None:
    """What reading verdicts at fewer seeds before does to the error, unless it was declared."""
    from ablate import stats

    analysis, now = plan.analysis, len(plan.seeds)
    earlier = sorted({len(seeds) for seeds in looks if set(seeds) < set(plan.seeds)})
    read = (*earlier, now)
    if not earlier or set(read) <= set(analysis.looks):
        return None
    alpha = _gain_alpha(analysis)
    return (
        f"The seeds grew after verdicts were read at n = {', '.join(map(str, earlier))}: a true "
        f"gain of nothing, read at n = {', '.join(map(str, read))}, is called a gain or a loss in "
        f"{100 * stats.look_error(read, alpha):.1f} % of contrasts instead of "
        f"{100 * analysis.alpha:.3g} %. Looks declared beforehand (analysis.looks) share alpha."
    )


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _names(rows: Sequence[str], most: int = 8) -> str:
    """Labels, the first few of many."""
    more = f" and {len(rows) - most} more" if len(rows) > most else ""
    return ", ".join(rows[:most]) + more
