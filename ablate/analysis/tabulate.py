"""Makes the table of a plan from the results of its runs: numbers and words.

The same plan, results and looks give the same table, in whatever order the results were read.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ablate.analysis import captions, details
from ablate.analysis.across import Arrays, Summary, blocks, is_partial
from ablate.analysis.also import on_set, results_on, sets_of
from ablate.analysis.averages import averages
from ablate.analysis.captions import gain_alpha
from ablate.analysis.correct import Correct, Predictions, correct
from ablate.analysis.course import ColumnCourse, follow
from ablate.analysis.course import notes as course_notes
from ablate.analysis.entry import Extra, make_entry
from ablate.analysis.footnotes import Footnotes, data_notes, mixtures, row_notes
from ablate.analysis.methods import method_of
from ablate.analysis.paper import paper_notes
from ablate.analysis.scores import Curves, Probes, Results, Scores, all_scores, by_replicate, scores
from ablate.analysis.table import (
    Entry,
    Ranks,
    Resolution,
    Sizes,
    Table,
    TableColumn,
    TableRow,
)
from ablate.analysis.trends import trends
from ablate.planning.cell import Column, WidePlace, wide_places
from ablate.planning.plan import Plan
from ablate.shared.errors import Failure
from ablate.shared.spec import task_of
from ablate.store.looks import InterimLook

if TYPE_CHECKING:  # numpy and scipy, which `--help` does without
    from ablate.analysis.paper import Beside
    from ablate.analysis.stats import ColumnGains, Estimate, Method, RowGain
    from ablate.analysis.stats.estimate import Bools


def tabulate(
    plan: Plan,
    results: Results,
    looks: Sequence[InterimLook] = (),
    *,
    words: bool = False,
    strict: bool = False,
    also: Sequence[str] = (),
    curves: Curves | None = None,
    probes: Probes | None = None,
    sizes: Sizes | None = None,
    cost: bool = False,
    paper: Mapping[tuple[str, str], Beside] | None = None,
    withheld: Mapping[str, str] | None = None,
    older: int = 0,
    predictions: Predictions | None = None,
    population: bool = False,
) -> Table:
    """Make the table of `plan`. Verdicts are for `analysis.reading` alone, which records the look
    and passes `words`. `looks`: earlier looks.

    `strict` withholds the verdicts of a table whose seeds grew after an undeclared look, or that
    has changed since, and raises Failure where the runs of a column are of different machines or
    code. `also`: metrics beside the plan's. `curves`: reads the lines of `metrics.jsonl`, for
    `auc` and `epochs_to`; `probes`: the files of probes, for their numbers. `sizes`: of cells whose
    results lack them. `cost`: adds times and memory. `paper`: from `analysis.paper.beside`.
    `withheld`: from `Store.results`; such runs have no result here. `older`: how many of its runs
    the store also has with the draws of an older version. `predictions`: reads what runs predicted;
    `population`: adds gains for new seeds and images.
    """
    analysis, footnotes = plan.analysis, Footnotes()
    cells = all_scores(plan, results, also, curves, probes)
    courses = follow(plan, cells) if plan.until else {}
    waits = any(found.missing for found in cells.values())
    complete = not waits and not any(course.next for course in courses.values())
    look_note = captions.look_note(plan, looks, [method_of(plan, c.label) for c in plan.columns])
    judge = words and (complete or bool(courses)) and not (strict and look_note)
    judge = judge and not (plan.one_search or plan.one_parent)
    right = functools.partial(_right, plan, results, predictions, population)
    extra = Extra(sizes or {}, cost, paper or {}, right, population)
    columns: list[TableColumn] = []
    for column, block in _blocks(plan, cells):
        if strict:
            _refuse_mixed(column.label, block)
        course = courses.get(column.label)
        columns.append(_column(plan, column, block, judge, footnotes, extra, course))
        for name, other in _on_others(plan, column.label, block, results, also, curves):
            made = _column(plan, column, other, judge and not courses, footnotes, extra, on=name)
            columns.append(_named(made, other[0].cell.column, name, beside=bool(courses)))
    below = _below(plan, cells, columns, judge and not courses)
    return Table(
        sweep=plan.name,
        title=plan.title,
        metric=plan.metric.key,
        baseline=plan.baseline,
        seeds=plan.counted_seeds,
        family=analysis.family,
        complete=complete,
        alpha=analysis.alpha,
        gain_alpha=gain_alpha(analysis),
        rows=tuple(_rows(plan, footnotes)),
        columns=tuple(_placed(plan, columns)),
        caption=tuple(captions.caption(plan, columns)),
        details=tuple(details.details(plan, columns)),
        notes=(
            *captions.withheld(withheld or {}),
            *captions.older_draws(plan, older),
            *captions.notes(plan, list(cells.values()), columns, look_note, strict),
            *_of_looks(plan, courses, below),
            *paper_notes(columns, extra.paper),
        ),
        footnotes=tuple(footnotes.numbers),
        blocks=below,
        paper=next((beside.table for beside in extra.paper.values()), ""),
        withheld=withheld or {},
        task=task_of(plan.cells[0].spec),
        choice=plan.task,
        groups=tuple(group.name for group in plan.groups),
    )


def _rows(plan: Plan, footnotes: Footnotes) -> Iterator[TableRow]:
    for row in plan.rows:
        yield TableRow(row.label, row.family, footnotes.of(row_notes(row.confounds)))


def _below(
    plan: Plan,
    cells: Mapping[tuple[str, str], Scores],
    columns: Sequence[TableColumn],
    judge: bool,
) -> tuple[Summary, ...]:
    """Compute the blocks below the columns."""
    arrays = Arrays.of(_shared(plan), cells, judge, gain_alpha(plan.analysis))
    verdicts = {(e.row, e.column): e.verdict for column in columns for e in column.entries}
    return (*averages(arrays), *blocks(arrays), *trends(arrays, verdicts))


def _blocks(
    plan: Plan, cells: Mapping[tuple[str, str], Scores]
) -> Iterator[tuple[Column, list[Scores]]]:
    """Each column, with the scores of its rows."""
    for column in plan.columns:
        keys = [(row.label, column.label) for row in plan.rows]
        yield column, [cells[key] for key in keys if key in cells]


def _on_others(
    plan: Plan,
    column: str,
    block: Sequence[Scores],
    results: Results,
    also: Sequence[str],
    curves: Curves | None,
) -> Iterator[tuple[str, list[Scores]]]:
    """By set of `eval.also`: the scores of the same runs on it."""
    for name in sets_of(plan, column):
        tested = results_on(results, name)
        yield name, [scores(on_set(s.cell, name), plan, tested, also, curves) for s in block]


def _named(column: TableColumn, label: str, on: str, beside: bool) -> TableColumn:
    """A column of the scores on another set, under its name."""
    heading = f"{column.heading} on {on}" if column.label else label
    return dataclasses.replace(column, label=label, heading=heading, on=on, beside=beside)


def _placed(plan: Plan, columns: Sequence[TableColumn]) -> list[TableColumn]:
    """The columns with their places in a wide table: one on another set is beside its own."""
    places = wide_places(plan.columns)
    shown = {h: (group.name, name) for group in plan.groups for h, name in group.headings.items()}
    found, own = [], WidePlace("", "")
    for column in columns:
        own = own if column.on else places[column.label]
        group, wide = shown.get(own.heading, ("", own.heading))
        wide = f"{wide} on {column.on}".strip() if column.on else wide
        found.append(dataclasses.replace(column, arch=own.arch, wide=wide, group=group))
    return found


def _right(
    plan: Plan,
    results: Results,
    predictions: Predictions | None,
    population: bool,
    block: Sequence[Scores],
    on: str,
) -> Correct:
    """Which images the runs of a column get right, if anything asks for it."""
    if not population and plan.spread != "predictions":
        return Correct(None)
    if predictions is None:
        return Correct(None, "no predictions are read here")
    return correct(plan, block, results, on, predictions)


def _column(
    plan: Plan,
    of: Column,
    block: Sequence[Scores],
    judge: bool,
    footnotes: Footnotes,
    extra: Extra,
    course: ColumnCourse | None = None,
    on: str = "",
) -> TableColumn:
    """`on`: the set of `eval.also` that the scores are of."""
    mixed = [sentence for _, sentence in mixtures(block)]
    column_footnotes = footnotes.of([*mixed, *data_notes(block)])
    right = extra.right(block, on)
    if right.lacking and plan.spread == "predictions":
        pooled = dataclasses.replace(plan.analysis, spread="pooled")
        plan = dataclasses.replace(plan, analysis=pooled)
    method = method_of(plan, of.label)
    with_all = _shared(plan) if plan.until else plan
    gains = _gains(with_all, block, method, None if plan.until else right.right)
    if plan.until:
        gains = _by_looks(course, block, gains)
    everybodys = (
        _population(plan, block, method, right.right) if extra.population else [None] * len(block)
    )
    base = next((found for found in block if found.cell.row == plan.baseline), None)
    if course is None and (gains.void or (base and is_partial(plan, base))):
        judge = False  # over survivors: no fair contest
    confounds = {row.label: row.confounds for row in plan.rows}
    entries = []
    for found, gain, wider in zip(block, gains.rows, everybodys, strict=True):
        footnotes.of(row_notes(confounds[found.cell.row]))  # numbered where it first shows
        told = course.rows.get(found.cell.row) if course else None
        entries.append(make_entry(plan, found, gain, base, judge, footnotes, extra, told, wider))
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
        test_sizes=tuple(sorted({int(test["n"]) for test in tested if "n" in test})),
        footnotes=column_footnotes,
        ranks=_ranks(plan, entries),
        baseline_ratio=gains.ratio,
        void=gains.void,
        forecast=_forecast(plan, gains, method, entries),
        spreads=gains.spreads,
        lacking=right.lacking,
    )


def _forecast(
    plan: Plan, gains: ColumnGains, method: Method, entries: Sequence[Entry]
) -> Resolution | None:
    """Forecast the gain that twice as many seeds would resolve. None unless some verdict is "can't
    tell", the rows share a known spread, and more seeds would be judged in the same way."""
    from ablate.analysis import stats

    n = plan.n
    unclear = any(entry.verdict == stats.CANT_TELL for entry in entries)
    if (
        plan.until
        or plan.baseline_seeds
        or not unclear
        or gains.spread is None
        or gains.ratio is not None
        or plan.tune is not None
    ):
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


def _gains(plan: Plan, block: Sequence[Scores], method: Method, right: Bools | None) -> ColumnGains:
    """Compute the gains of a column, positive if better; none without a baseline."""
    import numpy as np

    from ablate.analysis import stats

    labels = [found.cell.row for found in block]
    if plan.baseline not in labels:
        return stats.ColumnGains((None,) * len(block))
    sign = plan.metric.sign
    y = np.array([[sign * value for value in by_replicate(found.main, plan)] for found in block])
    unstable = np.array([bool(found.unstable) for found in block])
    return stats.column_gains(y, labels.index(plan.baseline), method, unstable, right)


def _population(
    plan: Plan, block: Sequence[Scores], method: Method, right: Bools | None
) -> list[Estimate | None]:
    """Compute each row's gain for new seeds and images over the seeds where it and the baseline
    finished, two or more; None where one of its runs or of the baseline's diverged or collapsed."""
    from ablate.analysis import stats

    labels = [found.cell.row for found in block]
    if plan.baseline not in labels or right is None:
        return [None] * len(block)
    at = labels.index(plan.baseline)
    found: list[Estimate | None] = []
    for row, scored in enumerate(block):
        both = {*scored.main.by_seed} & {*block[at].main.by_seed}
        seeds = [s for s, seed in enumerate(plan.seeds) if seed in both]
        if row == at or len(seeds) < 2 or scored.unstable or block[at].unstable:
            found.append(None)
            continue
        share = method.alpha / method.contrasts
        found.append(stats.population_gain(right[row, seeds], right[at, seeds], share))
    return found


def _shared(plan: Plan) -> Plan:
    """The plan with the seeds that all of its cells have: where looks gave some cells more, or the
    baseline has more, what is computed over cells is of these."""
    if not (plan.until or plan.baseline_seeds):
        return plan
    return dataclasses.replace(plan, seeds=plan.shared_seeds)


def _by_looks(
    course: ColumnCourse | None, block: Sequence[Scores], gains: ColumnGains
) -> ColumnGains:
    """The gains as looks judged them; before the first, and on other sets, without intervals."""
    from ablate.analysis import stats

    def gain(row: str, shared: RowGain | None) -> RowGain | None:
        if course is not None and row in course.rows:
            return course.rows[row].gain
        if shared is None:
            return None
        return stats.RowGain(stats.Estimate(shared.gain.mean, None, None, shared.gain.n))

    rows = (gain(found.cell.row, one) for found, one in zip(block, gains.rows, strict=True))
    spread, df, ratio = (course.spread, course.df, course.ratio) if course else (None, None, None)
    return dataclasses.replace(gains, rows=tuple(rows), spread=spread, df=df, ratio=ratio)


def _of_looks(
    plan: Plan, courses: Mapping[str, ColumnCourse], below: Sequence[Summary]
) -> Iterator[str]:
    """Say what looks have left open, and of which seeds the blocks below the columns are."""
    yield from course_notes(plan, courses.values())
    if plan.baseline_seeds and below:
        yield f"Below the columns: of the {plan.n} seeds that all cells share, as blocks."
    if plan.until and below:
        yield (
            f"Below the columns: of the {len(_shared(plan).seeds)} seeds that all cells share, and "
            f"without verdicts, for looks give verdicts on rows of a column only."
        )


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
