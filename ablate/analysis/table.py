"""The gain table of a sweep: from a plan and the results of its runs to numbers and words.

`tabulate` computes everything that a table says; `formats` only sets it. The same plan, results
and looks give the same table, in whatever order the results were read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ablate.analysis import captions
from ablate.analysis.across import (
    Arrays,
    Block,
    PValues,
    blocks,
    is_partial,
    p_values,
    shown,
    verdict_of,
    wide,
)
from ablate.analysis.captions import MACHINE, Footnotes, gain_alpha, level
from ablate.analysis.scores import Curves, Results, Scores, by_replicate, scores
from ablate.planning.cell import Choice, Column
from ablate.planning.plan import Plan
from ablate.shared.errors import Failure
from ablate.shared.metrics import DEFAULT, TASKS, Metric
from ablate.shared.spec import task_of
from ablate.store.looks import Look

if TYPE_CHECKING:  # numpy and scipy, which `--help` does without
    from ablate.analysis.paper import Beside
    from ablate.analysis.stats import ColumnGains, Estimate, Exact, Method, RowGain

__all__ = [
    "MACHINE",
    "Cost",
    "Curves",
    "Entry",
    "Other",
    "Results",
    "Table",
    "TableColumn",
    "TableRow",
    "level",
    "method_of",
    "tabulate",
]

Sizes = Mapping[tuple[str, str], Mapping[str, Any]]  # (row, column) -> parameters, multiply_adds


@dataclass(frozen=True)
class Other:
    """Another metric of an entry. `never`: runs that never reached its threshold."""

    values: Mapping[int, float]
    estimate: Estimate | None
    never: tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """What the finished runs of an entry took; means of runs but for the sum and the peak."""

    device_s: float  # of all of them
    run_s: float
    images_per_s: float | None
    peak_bytes: int | None
    utilisation: float | None  # of the device's arithmetic


@dataclass(frozen=True)
class Against:
    """An entry beside the paper. Differences are ours less theirs, where both are comparable."""

    published: Beside
    agreement: str | None  # of the gains' directions; None where it can't be said
    value: float | None = None
    gain: float | None = None
    inside: bool | None = None  # does the published gain lie in our interval?
    said: Estimate | None = None  # the published gain, its +- being 95 % intervals


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
    pool: str  # "kept", or why the row is judged by its own spread; "" where nothing is pooled
    verdict: str | None  # None where none is given
    footnotes: tuple[int, ...]
    ratio: float | None = None  # of its own spread to the other rows', where it is judged by it
    never: tuple[int, ...] = ()  # finished, but never reached the metric's threshold
    others: Mapping[str, Other] = field(default_factory=dict)
    p_values: PValues = field(default_factory=PValues)
    parameters: int | None = None
    multiply_adds: int | None = None  # of one image
    cost: Cost | None = None  # where asked for
    against: Against | None = None
    chosen: tuple[Choice, ...] = ()  # what tuning chose, one a search

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
    heading: str  # the label; of a bare number with its key
    entries: tuple[Entry, ...]  # in the rows' order; excluded cells have none
    contrasts: int  # in the family
    spread: float | None
    df: int | None
    pooled_rows: int
    correlation: Estimate | None
    test_sizes: tuple[int, ...]  # images; more than one where rows were tested on different sets
    footnotes: tuple[int, ...]
    ranks: Ranks | None = None  # of the published gains against ours
    baseline_ratio: float | None = None  # of its spread to the variants', where gains are pooled
    void: bool = False  # the baseline is unstable: no verdicts
    forecast: Resolution | None = None  # where a verdict is "can't tell", and the spread is known


@dataclass(frozen=True)
class Resolution:
    """What more seeds would resolve: the half-width of a gain's interval, its 80 % range."""

    seeds: int
    half: float
    low: float
    high: float


@dataclass(frozen=True)
class Ranks:
    """Kendall's tau over n rows, with its exact p."""

    tau: float
    p: float
    n: int


@dataclass(frozen=True)
class Table:
    """All that a table says. `caption` and `notes` are lines; `footnotes` are numbered from 1."""

    sweep: str
    title: str
    metric: str
    baseline: str
    seeds: tuple[int, ...]
    family: str
    complete: bool
    alpha: float  # of an interval of the metric
    gain_alpha: float  # of a family of gains
    rows: tuple[TableRow, ...]
    columns: tuple[TableColumn, ...]
    caption: tuple[str, ...]
    notes: tuple[str, ...]
    footnotes: tuple[str, ...]
    blocks: tuple[Block, ...] = ()  # averages, contrasts between columns, the placement grid
    paper: str = ""  # the published table beside it
    withheld: Mapping[str, str] = field(default_factory=dict)  # runs that count as missing -> why
    task: str = DEFAULT

    def of(self, name: str | None = None) -> Metric:
        """The metric that it is of, or another of its columns."""
        metric = TASKS[self.task].find(name or self.metric)
        assert metric is not None
        return metric

    @property
    def entries(self) -> list[Entry]:
        return [entry for column in self.columns for entry in column.entries]

    @property
    def is_look(self) -> bool:
        """Does it print a verdict? Then it is a look, which the ledger records."""
        verdicts = [entry.verdict for entry in self.entries]
        verdicts += [line.verdict for block in self.blocks for line in block.lines]
        return any(verdict is not None for verdict in verdicts)


def tabulate(
    plan: Plan,
    results: Results,
    looks: Sequence[Look] = (),
    *,
    words: bool = False,
    strict: bool = False,
    also: Sequence[str] = (),
    curves: Curves | None = None,
    sizes: Sizes | None = None,
    cost: bool = False,
    paper: Mapping[tuple[str, str], Beside] | None = None,
    withheld: Mapping[str, str] | None = None,
) -> Table:
    """The table of `plan`, with verdicts for `report.reading` only, which records that they were
    read: it alone passes `words`. `looks`: at which they were read before.

    `strict` withholds the verdicts of a table whose seeds grew after an undeclared look or that
    has changed since, and raises Failure where the runs of a column are of different machines or
    code. `also`: metrics beside
    the plan's; `curves` gives the lines of `metrics.jsonl` that `auc` and `epochs_to` are of.
    `sizes`: of cells whose results don't say them. `cost`: with times and memory, too. `paper`:
    what `report.paper.beside` found. `withheld`: of `Store.results`, whose runs have no
    result here.
    """
    analysis = plan.analysis
    footnotes = Footnotes()
    cells = {
        (cell.row, cell.column): scores(cell, plan, results, also, curves) for cell in plan.cells
    }
    complete = not any(found.missing for found in cells.values())
    methods = [method_of(plan, column.label) for column in plan.columns]
    look_note = captions.look_note(plan, looks, methods)
    judge = words and complete and not plan.one_search and not (strict and look_note)
    extra = _Extra(sizes or {}, cost, paper or {})
    columns = []
    for column in plan.columns:
        keys = [(row.label, column.label) for row in plan.rows]
        block = [cells[key] for key in keys if key in cells]
        if strict:
            _refuse_mixed(column.label, block)
        columns.append(_column(plan, column, block, judge, footnotes, extra))
    rows = tuple(
        TableRow(row.label, row.family, footnotes.of(captions.row_notes(row.confounds)))
        for row in plan.rows
    )
    arrays = Arrays.of(plan, cells, judge, gain_alpha(analysis))
    notes = captions.notes(plan, list(cells.values()), columns, look_note, strict)
    return Table(
        sweep=plan.name,
        title=plan.title,
        metric=plan.metric.key,
        baseline=plan.baseline,
        seeds=plan.seeds,
        family=analysis.family,
        complete=complete,
        alpha=analysis.alpha,
        gain_alpha=gain_alpha(analysis),
        rows=rows,
        columns=tuple(columns),
        caption=tuple(captions.caption(plan, columns)),
        notes=(
            *captions.withheld(withheld or {}),
            *notes,
            *captions.paper_notes(columns, extra.paper),
        ),
        footnotes=tuple(footnotes.numbers),
        blocks=blocks(arrays),
        paper=next((beside.table for beside in extra.paper.values()), ""),
        withheld=withheld or {},
        task=task_of(plan.cells[0].spec),
    )


@dataclass(frozen=True)
class _Extra:
    """What is known beside the results."""

    sizes: Sizes
    cost: bool
    paper: Mapping[tuple[str, str], Beside]


# --- A column -----------------------------------------------------------------------------------


def _column(
    plan: Plan,
    of: Column,
    block: Sequence[Scores],
    judge: bool,
    footnotes: Footnotes,
    extra: _Extra,
) -> TableColumn:
    mixed = [sentence for _, sentence in captions.mixed(block)]
    column_footnotes = footnotes.of([*mixed, *captions.data_notes(block)])
    method = method_of(plan, of.label)
    gains = _gains(plan, block, method)
    base = next((found for found in block if found.cell.row == plan.baseline), None)
    if gains.void or (base and is_partial(plan, base)):  # over survivors: no fair contest
        judge = False
    confounds = {row.label: row.confounds for row in plan.rows}
    entries = []
    for found, gain in zip(block, gains.rows, strict=True):
        footnotes.of(captions.row_notes(confounds[found.cell.row]))  # numbered where it first shows
        entries.append(_entry(plan, found, gain, base, judge, footnotes, extra))
    tested = [result["test"] for found in block for result in found.results if "test" in result]
    return TableColumn(
        label=of.label,
        heading=of.heading,
        entries=tuple(entries),
        contrasts=method.contrasts,
        spread=gains.spread,
        df=gains.df,
        pooled_rows=gains.kept,
        correlation=gains.correlation,
        test_sizes=tuple(sorted({int(test["n"]) for test in tested})),
        footnotes=column_footnotes,
        ranks=_ranks(plan, entries),
        baseline_ratio=gains.ratio,
        void=gains.void,
        forecast=_forecast(plan, gains, method, entries),
    )


def _forecast(
    plan: Plan, gains: ColumnGains, method: Method, entries: Sequence[Entry]
) -> Resolution | None:
    """What twice as many seeds would resolve, where that is asked and can be told: rows share a
    spread that is known, and more seeds would be judged in the same way."""
    from ablate.analysis import stats

    n = len(plan.seeds)
    unclear = any(entry.verdict == stats.CANT_TELL for entry in entries)
    if not unclear or gains.spread is None or gains.ratio is not None or plan.tune is not None:
        return None
    spread = stats.Spread(gains.spread, gains.df)
    if spread.barely_known:
        return None
    found = stats.resolution(spread, n, 2 * n, method)
    return Resolution(2 * n, found.expected, found.low, found.high)


def _refuse_mixed(column: str, block: Sequence[Scores]) -> None:
    """For --strict. Batches may be split differently: what would notice refuses to be split."""
    mixed = [sentence for key, sentence in captions.mixed(block) if key != "micro_batch"]
    if mixed:
        raise Failure(f"--strict: {f'{column}: ' if column else ''}{' '.join(mixed)}")


def method_of(plan: Plan, column: str) -> Method:
    """How a column is judged. Contrasts count as planned: they don't depend on results."""
    from ablate.analysis import stats

    analysis = plan.analysis
    contrasts = [cell.column for cell in plan.cells if cell.row != plan.baseline]
    comparisons = max(1, contrasts.count(column))
    return stats.Method(
        spread=analysis.spread,
        screen=analysis.screen,
        alpha=gain_alpha(analysis),
        contrasts=comparisons if analysis.family == "column" else max(1, len(contrasts)),
        comparisons=comparisons,
    )


def _gains(plan: Plan, block: Sequence[Scores], method: Method) -> ColumnGains:
    """The column's gains, positive where better; none where it has no baseline."""
    import numpy as np

    from ablate.analysis import stats

    labels = [found.cell.row for found in block]
    if plan.baseline not in labels:
        return stats.ColumnGains((None,) * len(block))
    sign = plan.metric.sign
    y = np.array([[sign * value for value in by_replicate(found.main, plan)] for found in block])
    unstable = np.array([bool(found.unstable) for found in block])
    return stats.column_gains(y, labels.index(plan.baseline), method, unstable)


def _entry(
    plan: Plan,
    found: Scores,
    gain: RowGain | None,
    base: Scores | None,
    judge: bool,
    footnotes: Footnotes,
    extra: _Extra,
) -> Entry:
    from ablate.analysis import stats

    analysis, where = plan.analysis, (found.cell.row, found.cell.column)
    given = judge and not is_partial(plan, found)
    verdict = verdict_of(gain.gain, analysis.margin, given) if gain else None
    if gain and verdict == stats.CANT_TELL and gain.stands_out:
        verdict = stats.UNSTABLE
    if verdict is not None and _same_predictions(found, base):
        verdict = stats.DID_NOTHING
    against = _fisher(found, base)
    unstable = f"{len(base.unstable)} of {_ended(base)}" if base else ""
    texts = captions.entry_notes(plan, found, gain, verdict, base, against, unstable)
    accuracy = _estimate(by_replicate(found.main, plan), analysis.alpha, plan.metric)
    gained = shown(gain.gain, plan.metric) if gain else None
    if gain and gained != gain.gain:
        texts.append(f"{wide(plan.metric)}.")
    noted = (result for result in found.results if "parameters" in result)
    size = next(noted, extra.sizes.get(where, {}))
    return Entry(
        row=where[0],
        column=where[1],
        planned=len(plan.seeds),
        values=found.main.by_seed,
        missing=found.missing,
        diverged=tuple(found.diverged),
        collapsed=found.collapsed,
        accuracy=accuracy,
        gain=gained,
        pool=(gain.own or "kept") if gain and analysis.spread == "pooled" else "",
        verdict=verdict,
        footnotes=footnotes.of(texts),
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
    )


def _estimate(values: Sequence[float], alpha: float, metric: Metric) -> Estimate | None:
    """The mean, its interval cut where the metric ends."""
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
    return all(digests[0]) and digests[0] == digests[1]


def _ended(found: Scores) -> int:
    return len(found.results)  # finished or diverged


def _fisher(found: Scores, base: Scores | None) -> Exact | None:
    """Of the row's unstable runs against the baseline's; None where neither has one."""
    from ablate.analysis import stats

    if base is None or found is base or not (found.unstable or base.unstable):
        return None
    n, m = _ended(found), _ended(base)
    return stats.fisher(len(found.unstable), n, len(base.unstable), m) if n and m else None


def _cost(results: Sequence[Mapping[str, Any]]) -> Cost | None:
    """Of the finished runs; None where there is none, or where it was not noted."""
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


# --- Beside the paper ---------------------------------------------------------------------------


def _against(
    beside: Beside | None, accuracy: Estimate | None, gain: Estimate | None, given: bool
) -> Against | None:
    """Values are subtracted only where they are comparable; else directions are compared."""
    from ablate.analysis import stats

    if beside is None:
        return None
    theirs = beside.gain
    if beside.differs:
        if not given or theirs is None or not gain or gain.low is None or gain.high is None:
            return Against(beside, None)
        agreement = stats.agreement(gain.low, gain.high, theirs)
        return Against(beside, agreement, inside=gain.low <= theirs <= gain.high)
    value = accuracy.mean - beside.value if accuracy and beside.value is not None else None
    more = gain.mean - theirs if gain and theirs is not None else None
    return Against(beside, None, value, more)


def _ranks(plan: Plan, entries: Sequence[Entry]) -> Ranks | None:
    """Do our gains rank the rows of a column as the published ones do?"""
    from ablate.analysis import stats

    pairs = []
    for entry in entries:
        theirs = entry.against.published.gain if entry.against else None
        ours = 0.0 if entry.row == plan.baseline else entry.gain.mean if entry.gain else None
        if entry.row == plan.baseline and entry.against:
            theirs = 0.0
        if ours is not None and theirs is not None:
            pairs.append((ours, theirs))
    found = stats.kendall(*zip(*pairs, strict=True)) if pairs else None
    return Ranks(found.tau, found.p, found.n) if found else None
