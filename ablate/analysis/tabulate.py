"""Makes the table of a plan from the results of its runs: numbers and words.

The same plan, results and looks give the same table, in whatever order the results were read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablate.analysis import captions
from ablate.analysis.across import (
    Arrays,
    Summary,
    averages,
    blocks,
    hide_empty,
    is_partial,
    is_wide,
    p_values,
    verdict_of,
    wide,
)
from ablate.analysis.captions import gain_alpha, look_notes
from ablate.analysis.correct import Correct, Predictions, Rights
from ablate.analysis.course import ColumnCourse, follow, judged_gains, means_alone
from ablate.analysis.course import notes as course_notes
from ablate.analysis.footnotes import (
    Footnotes,
    data_notes,
    entry_notes,
    gain_notes,
    mixtures,
    row_notes,
)
from ablate.analysis.methods import judged_by, method_of
from ablate.analysis.paper import WIDE, Beside, paper_notes, recipe_notes
from ablate.analysis.scores import (
    Curves,
    Probes,
    Results,
    Scores,
    all_scores,
    blocks_of,
    by_replicate,
    on_set,
    results_on,
    scores,
    sets_of,
)
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
from ablate.analysis.trained_on import by_column, data_names, trained_on
from ablate.planning.cell import Column, WidePlace, wide_places
from ablate.planning.plan import Plan
from ablate.shared.errors import Failure
from ablate.shared.metrics import Metric
from ablate.shared.spec import task_of
from ablate.store.past_looks import PastLooks

if TYPE_CHECKING:  # numpy and scipy, which `--help` does without
    from ablate.analysis.course import RowCourse
    from ablate.analysis.stats import ColumnGains, Estimate, Exact, Method, RowGain
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
    courses = {} if means else follow(plan, cells, results, predictions, past)
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
    if means or not complete:
        below = tuple(block.without_intervals() for block in below)
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
        details=tuple(captions.details(plan, columns)) if told else (),
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
    if not plan.design.blocks:  # no column shares a seed with another
        return ()
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
    gains = judged_gains(plan, block, method, right.right, course)
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


@dataclass(frozen=True)
class Extra:
    """Facts beside the results: sizes of cells whose results lack them, whether times and memory
    are asked for, published figures by (row, column), which images are right, whether gains for
    new images, too, are asked for, whether gains have intervals and p-values, and the looks
    before."""

    sizes: Sizes
    cost: bool
    paper: Mapping[tuple[str, str], Beside]
    right: Callable[[Sequence[Scores], str], Correct]  # of a column, on a set of `eval.also`
    population: bool
    told: bool
    past: PastLooks | None


def make_entry(
    plan: Plan,
    found: Scores,
    gain: RowGain | None,
    base: Scores | None,
    judge: bool,
    footnotes: Footnotes,
    extra: Extra,
    course: RowCourse | None = None,
    population: Estimate | None = None,
    likeness: float | None = None,
    by_images: bool = False,
) -> Entry:
    """`base`: the scores of the baseline; None without one. `judge`: is there a verdict? `course`:
    of a sweep with looks what they decided, whose `gain` it is. `population`: the gain for new
    seeds and images, where it is asked for. `by_images`: is the column judged by images?"""
    from ablate.analysis import stats

    analysis, where = plan.analysis, (found.cell.row, found.cell.column)
    given = judge and not is_partial(plan, found)
    verdict = verdict_of(gain.gain, analysis.margin, given, plan.metric.neutral) if gain else None
    if gain and verdict == stats.CANT_TELL and gain.stands_out:
        verdict = stats.UNSTABLE
    if course is not None:
        verdict = course.verdict if judge else None
    if verdict is not None and _same_predictions(found, base):
        verdict = stats.DID_NOTHING
    against = _fisher(found, base) if extra.told else None
    unstable = f"{len(base.unstable)} of {len(base.results)}" if base else ""
    texts = entry_notes(plan, found, gain, base, against, unstable)
    of_gain = [course.note(judge)] if course is not None else []
    of_gain += gain_notes(plan, found, gain, verdict, base, by_images)
    accuracy = _estimate(by_replicate(found.main, plan), analysis.alpha, plan.metric)
    gained = hide_empty(gain.gain, plan.metric) if gain else None
    if gain and is_wide(gain.gain, plan.metric):
        of_gain.append(f"{wide(plan.metric)}.")
    numbers = footnotes.of([*texts, *of_gain])
    noted = (result for result in found.results if "parameters" in result)
    size = next(noted, extra.sizes.get(where, {}))
    return Entry(
        row=where[0],
        column=where[1],
        planned=len(plan.planned(found.cell)),
        values=found.main.by_seed,
        missing=found.missing,
        diverged=tuple(found.diverged),
        collapsed=found.collapsed,
        accuracy=accuracy,
        gain=gained,
        pool=(gain.own or "kept") if gain and plan.spread != "paired" and extra.told else "",
        verdict=verdict,
        footnotes=numbers,
        gain_footnotes=numbers[len(texts) :],
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
        population=hide_empty(population, plan.metric) if population else None,
        likeness=likeness,
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
    mine, theirs = digests  # which may have more seeds
    return all(mine) and mine == theirs[: len(mine)]


def _fisher(found: Scores, base: Scores | None) -> Exact | None:
    """Compare the unstable runs of a row and of the baseline; None if neither has one."""
    from ablate.analysis import stats

    if base is None or found is base or not (found.unstable or base.unstable):
        return None
    n, m = len(found.results), len(base.results)  # finished or diverged
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
        inside: bool | None = gain.low <= theirs <= gain.high
        if inside and gain.high - gain.low > WIDE * abs(theirs):
            inside = None
        return Against(beside, agreement, inside=inside)
    value = accuracy.mean - beside.value if accuracy and beside.value is not None else None
    more = gain.mean - theirs if gain and theirs is not None else None
    return Against(beside, None, value, more)
