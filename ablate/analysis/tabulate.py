"""Makes the table of a plan from the results of its runs: numbers and words.

The same plan, results and looks give the same table, in whatever order the results were read.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablate.analysis import captions
from ablate.analysis.across import (
    Arrays,
    blocks,
    hide_wide,
    is_partial,
    p_values,
    verdict_of,
    wide,
)
from ablate.analysis.also import on_set, results_on, sets_of
from ablate.analysis.captions import gain_alpha
from ablate.analysis.footnotes import Footnotes, data_notes, entry_notes, mixtures, row_notes
from ablate.analysis.scores import Curves, Results, Scores, by_replicate, scores
from ablate.analysis.table import (
    Against,
    Cost,
    Entry,
    Other,
    Ranks,
    Resolution,
    Sizes,
    Table,
    TableColumn,
    TableRow,
)
from ablate.planning.cell import Column
from ablate.planning.plan import Plan
from ablate.shared.errors import Failure
from ablate.shared.metrics import Metric
from ablate.shared.spec import task_of
from ablate.store.looks import InterimLook

if TYPE_CHECKING:  # numpy and scipy, which `--help` does without
    from ablate.analysis.paper import Beside
    from ablate.analysis.stats import ColumnGains, Estimate, Exact, Method, RowGain


def tabulate(
    plan: Plan,
    results: Results,
    looks: Sequence[InterimLook] = (),
    *,
    words: bool = False,
    strict: bool = False,
    also: Sequence[str] = (),
    curves: Curves | None = None,
    sizes: Sizes | None = None,
    cost: bool = False,
    paper: Mapping[tuple[str, str], Beside] | None = None,
    withheld: Mapping[str, str] | None = None,
    older: int = 0,
) -> Table:
    """Make the table of `plan`. Verdicts are for `analysis.reading` alone, which records the look
    and passes `words`. `looks`: earlier looks.

    `strict` withholds the verdicts of a table whose seeds grew after an undeclared look, or that
    has changed since, and raises Failure where the runs of a column are of different machines or
    code. `also`: metrics beside the plan's. `curves`: reads the lines of `metrics.jsonl`, for
    `auc` and `epochs_to`. `sizes`: of cells whose results lack them. `cost`: adds times and memory.
    `paper`: from `analysis.paper.beside`. `withheld`: from `Store.results`; such runs have no
    result here. `older`: how many of its runs the store also has with the draws of an older
    version.
    """
    analysis = plan.analysis
    footnotes = Footnotes()
    cells = {
        (cell.row, cell.column): scores(cell, plan, results, also, curves) for cell in plan.cells
    }
    complete = not any(found.missing for found in cells.values())
    methods = [method_of(plan, column.label) for column in plan.columns]
    look_note = captions.look_note(plan, looks, methods)
    judge = words and complete and not (strict and look_note)
    judge = judge and not (plan.one_search or plan.one_parent)
    extra = _Extra(sizes or {}, cost, paper or {})
    columns: list[TableColumn] = []
    for column in plan.columns:
        keys = [(row.label, column.label) for row in plan.rows]
        block = [cells[key] for key in keys if key in cells]
        if strict:
            _refuse_mixed(column.label, block)
        columns.append(_column(plan, column, block, judge, footnotes, extra))
        for name in sets_of(plan, column.label):
            tested = results_on(results, name)
            other = [scores(on_set(s.cell, name), plan, tested, also, curves) for s in block]
            made = _column(plan, column, other, judge, footnotes, extra)
            label, heading = other[0].cell.column, f"{column.heading} on {name}".strip()
            columns.append(dataclasses.replace(made, label=label, heading=heading, on=name))
    rows = tuple(
        TableRow(row.label, row.family, footnotes.of(row_notes(row.confounds))) for row in plan.rows
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
            *captions.older_draws(plan, older),
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
    """Facts beside the results."""

    sizes: Sizes
    cost: bool
    paper: Mapping[tuple[str, str], Beside]


def _column(
    plan: Plan,
    of: Column,
    block: Sequence[Scores],
    judge: bool,
    footnotes: Footnotes,
    extra: _Extra,
) -> TableColumn:
    mixed = [sentence for _, sentence in mixtures(block)]
    column_footnotes = footnotes.of([*mixed, *data_notes(block)])
    method = method_of(plan, of.label)
    gains = _gains(plan, block, method)
    base = next((found for found in block if found.cell.row == plan.baseline), None)
    if gains.void or (base and is_partial(plan, base)):  # over survivors: no fair contest
        judge = False
    confounds = {row.label: row.confounds for row in plan.rows}
    entries = []
    for found, gain in zip(block, gains.rows, strict=True):
        footnotes.of(row_notes(confounds[found.cell.row]))  # numbered where it first shows
        entries.append(_entry(plan, found, gain, base, judge, footnotes, extra))
    tested = [result["test"] for found in block for result in found.results if "test" in result]
    own = f"on {block[0].cell.spec['data']['name']}" if sets_of(plan, of.label) else ""
    return TableColumn(
        label=of.label,
        heading=of.heading or own,
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
    """Forecast the gain that twice as many seeds would resolve. None unless some verdict is "can't
    tell", the rows share a known spread, and more seeds would be judged in the same way."""
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
    """Raise Failure for mixed runs (--strict). Micro-batches may differ: models whose results
    depend on them refuse them."""
    mixed = [sentence for key, sentence in mixtures(block) if key != "micro_batch"]
    if mixed:
        raise Failure(f"--strict: {f'{column}: ' if column else ''}{' '.join(mixed)}")


def method_of(plan: Plan, column: str) -> Method:
    """Return the method that judges a column. All planned contrasts count, whatever the results."""
    from ablate.analysis import stats

    analysis = plan.analysis
    contrasts = Counter(cell.column for cell in plan.cells if cell.row != plan.baseline)
    comparisons = max(1, contrasts[column])
    whole = max(1, sum(n * (1 + len(sets_of(plan, at))) for at, n in contrasts.items()))
    return stats.Method(
        spread=analysis.spread,
        screen=analysis.screen,
        alpha=gain_alpha(analysis),
        contrasts=comparisons if analysis.family == "column" else whole,
        comparisons=comparisons,
    )


def _gains(plan: Plan, block: Sequence[Scores], method: Method) -> ColumnGains:
    """Compute the gains of a column, positive if better; none without a baseline."""
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
    texts = entry_notes(plan, found, gain, verdict, base, against, unstable)
    accuracy = _estimate(by_replicate(found.main, plan), analysis.alpha, plan.metric)
    gained = hide_wide(gain.gain, plan.metric) if gain else None
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
    return all(digests[0]) and digests[0] == digests[1]


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
