"""Makes the table of a plan from the results of its runs: numbers and words.

The same plan, results and looks give the same table, in whatever order the results were read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ablate.analysis import captions, details
from ablate.analysis.across import Arrays, Summary, blocks, is_partial
from ablate.analysis.also import on_set, results_on, sets_of
from ablate.analysis.averages import averages
from ablate.analysis.captions import gain_alpha
from ablate.analysis.correct import Predictions, Rights
from ablate.analysis.course import ColumnCourse
from ablate.analysis.course import notes as course_notes
from ablate.analysis.entry import Extra, make_entry
from ablate.analysis.footnotes import Footnotes, data_notes, mixtures, row_notes
from ablate.analysis.judges import judge_of, means_alone
from ablate.analysis.look_notes import look_notes
from ablate.analysis.methods import judged_by, method_of
from ablate.analysis.paper import paper_notes, recipe_notes
from ablate.analysis.scores import (
    Curves,
    Probes,
    Results,
    Scores,
    all_scores,
    blocks_of,
    scores,
)
from ablate.analysis.table import (
    Entry,
    Ranks,
    Resolution,
    Sizes,
    Table,
    TableColumn,
    TableRow,
)
from ablate.analysis.trained_on import by_column, data_names, trained_on
from ablate.planning.cell import Column, WidePlace, wide_places
from ablate.planning.plan import Plan
from ablate.shared.errors import Failure
from ablate.shared.spec import task_of
from ablate.store.past_looks import PastLooks

if TYPE_CHECKING:  # numpy and scipy, which `--help` does without
    from ablate.analysis.paper import Beside
    from ablate.analysis.stats import ColumnGains, Estimate, Method
    from ablate.analysis.stats.estimate import Bools


def tabulate(
    plan: Plan,
    results: Results,
    past: PastLooks | None = None,
    *,
    words: bool = False,
    means: bool = False,
    strict: bool = False,
    also: Sequence[str] = (),
    curves: Curves | None = None,
    probes: Probes | None = None,
    sizes: Sizes | None = None,
    cost: bool = False,
    paper: Mapping[tuple[str, str], Beside] | None = None,
    withheld: Mapping[str, str] | None = None,
    predictions: Predictions | None = None,
    population: bool = False,
) -> Table:
    """Make the table of `plan`. Verdicts are for `analysis.reading` alone, which records the look
    and passes `words`. `past`: looks before. `means`: no intervals of gains. `strict` withholds the
    verdicts of a table that has changed since a look at its runs, or was read at more seeds;
    Failure where runs of a column are of other machines or code. `also`: metrics beside the plan's.
    `curves`, `probes`, `predictions` read these files. `sizes`: of cells whose results lack them.
    `cost` adds times and memory. `paper`: from `analysis.paper.beside`. `withheld`: runs without a
    result here. `population` adds gains for new seeds and images."""
    footnotes = Footnotes()
    cells = all_scores(plan, results, also, curves, probes)
    courses = {} if means else judge_of(plan).courses(plan, cells, results, predictions, past)
    waits = any(found.missing for found in cells.values())
    complete = not waits and not any(course.next for course in courses.values())
    told = not means and (complete or any(course.told for course in courses.values()))
    before, withheld_words = _before(plan, past, strict) if told else ([], False)
    judge = words and told and not (withheld_words or plan.conditions)
    right = Rights(plan, results, predictions if told else None, population, told)
    extra = Extra(sizes or {}, cost, paper or {}, right.of, population and told, told, past)
    columns: list[TableColumn] = []
    for column, block in blocks_of(plan, cells):
        if strict:
            _refuse_mixed(column.label, block)
        course = courses.get(column.label)
        columns.append(_column(plan, column, block, judge, footnotes, extra, course))
        for name, other in _on_others(plan, column.label, block, results, also, curves):
            made = _column(plan, column, other, judge and not courses, footnotes, extra, on=name)
            columns.append(_named(made, other[0].cell.column, name, beside=bool(courses)))
    below = _below(plan, cells, columns, judge and not courses, right, past)
    below = below if complete and not means else _without_intervals(below)
    return Table(
        sweep=plan.name,
        title=plan.title,
        trained_on=trained_on(plan, cells, columns),
        data=data_names(cells),
        metric=plan.metric.key,
        baseline=plan.baseline,
        seeds=plan.counted_seeds,
        family=plan.analysis.family,
        complete=complete,
        alpha=plan.analysis.alpha,
        gain_alpha=gain_alpha(plan.analysis),
        rows=tuple(_rows(plan, footnotes)),
        columns=tuple(_placed(plan, columns)),
        caption=(*captions.caption(plan, columns, told), *by_column(plan, cells)),
        details=tuple(details.details(plan, columns)) if told else (),
        notes=(
            *captions.withheld(withheld or {}),
            *captions.notes(plan, list(cells.values()), columns, told),
            *before,
            *_of_looks(plan, courses, below),
            *paper_notes(columns, extra.paper),
            *recipe_notes(plan, extra.paper),
        ),
        footnotes=tuple(footnotes.numbers),
        blocks=below,
        paper=next((beside.table for beside in extra.paper.values()), ""),
        withheld=withheld or {},
        task=task_of(plan.cells[0].spec),
        choice=plan.task,
        groups=tuple(group.name for group in plan.groups),
    )


def _before(plan: Plan, past: PastLooks | None, strict: bool) -> tuple[list[str], bool]:
    """The notes on the looks before, and whether `strict` withholds the words."""
    methods = {at: method_of(plan, at, past) for at in past.now.columns} if past else {}
    return look_notes(plan, past, methods, strict)


def _without_intervals(below: tuple[Summary, ...]) -> tuple[Summary, ...]:
    return tuple(block.without_intervals() for block in below)


def _rows(plan: Plan, footnotes: Footnotes) -> Iterator[TableRow]:
    for row in plan.rows:
        yield TableRow(row.label, row.family, footnotes.of(row_notes(row.confounds)))


def _below(
    plan: Plan,
    cells: Mapping[tuple[str, str], Scores],
    columns: Sequence[TableColumn],
    judge: bool,
    right: Rights,
    past: PastLooks | None,
) -> tuple[Summary, ...]:
    """Compute the blocks below the columns."""
    shared = plan.design.compared(plan)
    images = right.by_column(cells, shared.seeds)
    arrays = Arrays.of(shared, cells, judge, gain_alpha(plan.analysis), images, past)
    return (*averages(arrays), *blocks(arrays))


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
    method = method_of(plan, of.label, extra.past)
    gains = judge_of(plan).gains(plan, block, method, right.right, course)
    if not extra.told:
        gains = means_alone(gains)
    lacking = right.lacking or (course.lacking if course else "")
    how = judged_by(plan, method, len(block), lacking)
    everybodys = (
        _population(plan, block, method, gains, right.right)
        if extra.population
        else [None] * len(block)
    )
    base = next((found for found in block if found.cell.row == plan.baseline), None)
    if course is None and (gains.void or (base and is_partial(plan, base))):
        judge = False  # over survivors: no fair contest
    confounds = {row.label: row.confounds for row in plan.rows}
    entries = []
    alike = gains.likeness or (None,) * len(block)
    for found, gain, wider, like in zip(block, gains.rows, everybodys, alike, strict=True):
        footnotes.of(row_notes(confounds[found.cell.row]))  # numbered where it first shows
        told = course.rows.get(found.cell.row) if course else None
        entries.append(
            make_entry(
                *(plan, found, gain, base, judge, footnotes, extra, told, wider, like),
                by_images=how == "images",
            )
        )
    tested = [result["test"] for found in block for result in found.results if "test" in result]
    own = f"on {block[0].cell.spec['data']['name']}" if sets_of(plan, of.label) else ""
    return TableColumn(
        label=of.label,
        heading=of.heading or own,
        entries=tuple(entries),
        contrasts=method.contrasts,
        judged_by=how,
        spreads=gains.spreads,
        df=gains.df,
        kept_rows=gains.kept,
        test_sizes=tuple(sorted({int(test["n"]) for test in tested if "n" in test})),
        footnotes=column_footnotes,
        ranks=_ranks(plan, entries) if extra.told else None,
        tripped=gains.tripped,
        baseline_ratio=gains.ratio,
        flips=gains.flips,
        void=gains.void,
        forecast=_forecast(plan, gains, method, entries),
        lacking=lacking,
    )


def _forecast(
    plan: Plan, gains: ColumnGains, method: Method, entries: Sequence[Entry]
) -> Resolution | None:
    """Forecast the gain that twice as many seeds would resolve. None unless some verdict is "can't
    tell", the rows share a known spread, and more seeds would be judged in the same way."""
    from ablate.analysis import stats

    n = plan.n
    unclear = any(entry.verdict == stats.CANT_TELL for entry in entries)
    if not unclear or gains.shared is None or gains.tripped or plan.tune is not None:
        return None
    spread = stats.Spread(gains.shared, gains.shared_df)
    if spread.barely_known:
        return None
    found = stats.resolution(spread, n, 2 * n, method, gains.fixed)
    return Resolution(2 * n, found.expected, found.low, found.high)


def _refuse_mixed(column: str, block: Sequence[Scores]) -> None:
    """Raise Failure for mixed runs (--strict). Micro-batches may differ: models whose results
    depend on them refuse them."""
    mixed = [sentence for key, sentence in mixtures(block) if key != "micro_batch"]
    if mixed:
        raise Failure(f"--strict: {f'{column}: ' if column else ''}{' '.join(mixed)}")


def _population(
    plan: Plan,
    block: Sequence[Scores],
    method: Method,
    gains: ColumnGains,
    right: Bools | None,
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
        gain = gains.rows[row]
        if gain is None or len(seeds) < 2 or scored.unstable or block[at].unstable:
            found.append(None)
            continue
        share = method.alpha / method.contrasts
        found.append(stats.population_gain(right[row, seeds], right[at, seeds], gain, share))
    return found


def _of_looks(
    plan: Plan, courses: Mapping[str, ColumnCourse], below: Sequence[Summary]
) -> Iterator[str]:
    """Say what looks have left open, and of which seeds the blocks below the columns are."""
    yield from course_notes(plan, courses.values())
    if courses and below:
        yield (
            f"Below the columns: of the {len(plan.shared_seeds)} seeds that all cells share, and "
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
