"""Makes the table of a plan from the results of its runs: numbers and words.

The same plan, results and looks give the same table, in whatever order the results were read.

Used by `reading.py` (`ablate table`, `report`, `export`), api/publishing.py (`ablate plot`) and
audit/verify.py (`ablate verify`). Other numbers or notes also need `python tests/test_formats.py`
(tests/golden/table.*) and `python tests/study_page.py --reprint` (the bundles in docs/studies).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.analysis import captions, pairing, stats
from ablate.analysis.across import Arrays, averages, blocks
from ablate.analysis.captions import look_notes
from ablate.analysis.effects import change_effects, placement_effects
from ablate.analysis.evidence import ColumnEvidence, Evidence
from ablate.analysis.footnotes import column_notes, entry_notes, mixtures, rounding_notes
from ablate.analysis.judged_row import JudgedRow
from ablate.analysis.judging import (
    Detail,
    gain_alpha,
    hide_empty,
    is_partial,
    judged_by,
    method_of,
    shown_gain,
)
from ablate.analysis.noise_notes import noise_notes
from ablate.analysis.note import Note, Sentence, notes
from ablate.analysis.paper import WIDE, paper_notes, recipe_notes
from ablate.analysis.row_contrasts import contrast_blocks
from ablate.analysis.scores import (
    Correct,
    Scores,
    Values,
    mean_by_replicate,
    sets_of,
)
from ablate.analysis.sequential import ColumnCourse, follow, judged_gains, means_alone
from ablate.analysis.sequential import notes as course_notes
from ablate.analysis.summary import Summary, p_values
from ablate.analysis.table import (
    Against,
    Beside,
    Cost,
    Entry,
    Other,
    Resolution,
    Sizes,
    Table,
    TableColumn,
    TableRow,
)
from ablate.analysis.targets import sequence_block, target_differences
from ablate.analysis.trained_on import by_column, data_names, trained_on
from ablate.planning import Plan, WidePlace, wide_places
from ablate.run import Metric
from ablate.shared import Failure
from ablate.store import PastLooks


@dataclass(frozen=True)
class Extras:
    """Further content of a table, beyond its metric and gains. `also`: further metrics; `sizes`: of
    cells whose results lack them; `cost`: times and memory; `paper`: published figures by (row,
    column), from `published_figures`; `population`: gains for new seeds and images."""

    also: tuple[str, ...] = ()
    sizes: Sizes = field(default_factory=dict)
    cost: bool = False
    paper: Mapping[tuple[str, str], Beside] = field(default_factory=dict)
    population: bool = False


NO_EXTRAS = Extras()


def make_table(
    evidence: Evidence,
    past: PastLooks | None = None,
    *,
    courses: Mapping[str, ColumnCourse] | None = None,
    detail: Detail = Detail.INTERVALS,
    strict: bool = False,
    extras: Extras = NO_EXTRAS,
) -> Table:
    """Make the table of a sweep.

    Only `analysis.reading` may ask for verdicts (`detail`), since it records the look; `verify`
    and figures ask for intervals at most. `past`: earlier looks at these runs; `courses`: the looks
    of each column of the sweep, computed here where None; `detail`: the most that is shown of
    gains. `strict` withholds the verdicts of a table that has changed since a look at its runs, or
    was read at more seeds; it raises Failure where runs of a column are of other machines or code.
    """
    plan, cells, withheld = evidence.plan, evidence.cells, evidence.withheld
    means = detail is Detail.MEANS or plan.smoke
    if means:
        courses = {}
    elif courses is None:
        courses = follow(evidence, past)
    waits = any(scores.missing for scores in cells.values())
    complete = not waits and not any(course.next_seeds for course in courses.values())
    ready = not means and (complete or any(course.history for course in courses.values()))
    # Looks before stay looks, also where a run that they counted is withheld by now.
    noted = ready or (bool(withheld) and not means)
    look_texts, withheld_words = _looks_before(plan, past, strict) if noted else ([], False)
    if not ready:
        detail = Detail.MEANS
    elif withheld_words or plan.conditions:
        detail = min(detail, Detail.INTERVALS)
    # Changes have intervals, their cells have not.
    row_detail = detail if plan.changes is None else Detail.MEANS
    row_courses = courses if plan.changes is None else {}
    has_gains = plan.analysis.target is None
    reads_images = ready and has_gains and (extras.population or plan.spread == "images")
    making = Making(plan, extras, reads_images, row_detail, past)
    if strict:
        for column in evidence.columns:
            _refuse_mixed(column.column.label, column.scores)
    columns = _columns(making, evidence, row_courses, bool(courses))
    variants_read = past.read_over_baselines() if past is not None else 0
    images = evidence.images() if reads_images else None
    arrays = Arrays(evidence, detail, images, bool(courses), variants_read)
    averaged: tuple[Summary, ...] = ()
    if has_gains:
        averaged = _summaries(plan, arrays, courses)
        below = (*contrast_blocks(evidence, detail, past, courses, reads_images), *averaged)
    else:
        below = sequence_block(plan, columns, detail)
    if means or not (complete or (courses and plan.changes is not None)):
        below = tuple(block.without_intervals() for block in below)
    has_blocks = bool(averaged) and row_detail >= Detail.INTERVALS
    verdicts = [entry.verdict for column in columns for entry in column.entries]
    verdicts += [line.verdict for block in below for line in block.lines]
    has_verdicts = any(verdicts)
    return Table(
        sweep=plan.name,
        title=plan.title,
        trained_on=trained_on(plan, cells, columns),
        data=data_names(cells),
        metric=plan.metric.key,
        baseline=plan.baseline,
        baseline_words=plan.baseline_words,
        seeds=plan.counted_seeds,
        repeats=plan.repeats,
        family=plan.analysis.family,
        complete=complete,
        alpha=plan.analysis.alpha,
        gain_alpha=gain_alpha(plan.analysis),
        rows=tuple(TableRow(row.label, row.family) for row in plan.rows),
        columns=tuple(_placed(plan, columns)),
        notes=(
            *notes("smoke", captions.smoke_notes(plan)),
            *notes("warning", captions.withheld_notes(plan, withheld)),
            *captions.warnings(plan, list(cells.values()), columns, detail),
            *notes("warning", captions.two_seed_notes(plan, columns, below)),
            *notes("warning", look_texts),
            *notes("warning", course_notes(plan, courses.values(), has_blocks, past)),
            *notes("warning", paper_notes(columns, extras.paper)),
            *notes("warning", recipe_notes(plan, extras.paper)),
            *notes("caption", _explanations(evidence, columns, below, row_detail, has_verdicts)),
            *(noise_notes(plan, columns, courses) if row_detail >= Detail.INTERVALS else ()),
            *dict.fromkeys(making.notes),
        ),
        blocks=below,
        paper=next((figure.table for figure in extras.paper.values()), ""),
        withheld=withheld,
        task=plan.cells[0].spec.task_name,
        choice=plan.task,
        groups=tuple(group.name for group in plan.groups),
        target=plan.analysis.target,
    )


def _columns(
    making: Making, evidence: Evidence, courses: Mapping[str, ColumnCourse], has_looks: bool
) -> list[TableColumn]:
    """Return the columns of the sweep, each with those of the same runs on the sets of `eval.also`
    behind it, which no look judges."""
    columns: list[TableColumn] = []
    for column in evidence.columns:
        course = courses.get(column.column.label)
        columns.append(_column(making, column, making.detail, course))
        set_detail = min(making.detail, Detail.INTERVALS) if has_looks else making.detail
        for same_runs in evidence.on_other_sets(column):
            set_column = _column(making, same_runs, set_detail)
            columns.append(dataclasses.replace(set_column, beside=has_looks))
    return columns


def _summaries(
    plan: Plan,
    arrays: Arrays,
    courses: Mapping[str, ColumnCourse],
) -> tuple[Summary, ...]:
    """Return the blocks below the cells: the effects of changes, or averages over columns,
    contrasts and effects of placements. Without blocks of seeds there is none: no column shares a
    seed with another."""
    if plan.changes is not None:
        return change_effects(arrays, plan.changes, courses)
    if plan.design.blocks:
        return (*averages(arrays), *blocks(arrays), *placement_effects(arrays))
    return ()


def _looks_before(plan: Plan, past: PastLooks | None, strict: bool) -> tuple[list[Sentence], bool]:
    """Return the notes on the looks before, and whether `strict` withholds verdicts by them."""
    columns = past.present.columns if past is not None else ()
    return look_notes(
        plan, past, {column: method_of(plan, column, past) for column in columns}, strict
    )


def _explanations(
    evidence: Evidence,
    columns: Sequence[TableColumn],
    blocks: Sequence[Summary],
    detail: Detail,
    has_verdicts: bool,
) -> Iterator[Sentence]:
    """Yield the explanations of the numbers. `detail`: what is shown of the gains of rows;
    `has_verdicts`: see `captions.caption`."""
    plan, cells = evidence.plan, evidence.cells
    yield from captions.caption(plan, columns, blocks, detail, has_verdicts)
    yield from by_column(plan, cells)
    yield from rounding_notes(plan, cells)
    if detail >= Detail.INTERVALS:
        yield from pairing.advice(evidence)


@dataclass(frozen=True)
class Making:
    """The inputs that all columns share, apart from their scores. `reads_images`: whether to read
    which images runs get right; `detail`: what is shown of the gains of rows; `past`: the looks
    before; `notes`: the footnotes so far."""

    plan: Plan
    extras: Extras
    reads_images: bool
    detail: Detail
    past: PastLooks | None
    notes: list[Note] = field(default_factory=list)

    @property
    def has_intervals(self) -> bool:
        """True if gains have intervals and p-values."""
        return self.detail >= Detail.INTERVALS


def _placed(plan: Plan, columns: Sequence[TableColumn]) -> list[TableColumn]:
    """Return the columns with their places in a wide table: a column on another set follows its
    own."""
    places = wide_places(plan.columns)
    group_places = {
        h: (group.name, name) for group in plan.groups for h, name in group.headings.items()
    }
    placed_columns, place = [], WidePlace("", "")
    for column in columns:
        place = place if column.on else places[column.label]
        group, wide = group_places.get(place.heading, ("", place.heading))
        wide = f"{wide} on {column.on}".strip() if column.on else wide
        placed_columns.append(dataclasses.replace(column, arch=place.arch, wide=wide, group=group))
    return placed_columns


def _column(
    making: Making,
    evidence: ColumnEvidence,
    detail: Detail,
    course: ColumnCourse | None = None,
) -> TableColumn:
    """Make a column. `detail`: what may be shown of its gains; `course`: of a sweep with looks."""
    plan, column, block, on = making.plan, evidence.column, evidence.scores, evidence.on
    label = block[0].cell.column if on else column.label
    making.notes.extend(column_notes(block, label))
    right = evidence.images if making.reads_images else Correct(None)
    method = method_of(plan, column.label, making.past, is_on_other_set=bool(on))
    target = plan.analysis.target
    if target is None:
        gains = judged_gains(evidence, method, right.right, course)
    else:
        gains = target_differences(evidence, target, method)
    if not making.has_intervals:
        gains = means_alone(gains)
    lacking = right.lacking or (course.lacking if course else "")
    spread_kind = judged_by(plan, method, len(block), lacking)
    population_gains = _population(making, block, method, gains, right.right)
    base = next((scores for scores in block if not plan.is_judged(scores.cell.row)), None)
    if course is None and (gains.void or (base and is_partial(plan, base))):
        detail = min(detail, Detail.INTERVALS)  # gains over the remaining runs alone
    entries = []
    alike = gains.likeness or (None,) * len(block)
    for scores, gain, population_gain, like in zip(
        block, gains.rows, population_gains, alike, strict=True
    ):
        looked = course.rows.get(scores.cell.row) if course else None
        against = _fisher(scores, base) if making.has_intervals else None
        row = JudgedRow(plan, scores, base, gain, against, looked, detail, spread_kind == "images")
        making.notes.extend(entry_notes(row))
        entries.append(_entry(making, row, population_gain, like))
    tested = [result["test"] for scores in block for result in scores.results if "test" in result]
    default_heading = (
        f"on {block[0].cell.spec.tree['data']['name']}"
        if sets_of(plan, column.label) and not on
        else ""
    )
    heading = column.heading or default_heading
    return TableColumn(
        label=label,
        heading=(f"{heading} on {on}" if column.label else label) if on else heading,
        entries=tuple(entries),
        contrasts=method.contrasts,
        judged_by=spread_kind,
        spreads=gains.spreads,
        df=gains.df,
        kept_rows=gains.kept_rows,
        test_sizes=tuple(sorted({int(test["n"]) for test in tested if "n" in test})),
        ranks=_ranks(plan, entries) if making.has_intervals else None,
        tripped=gains.tripped,
        baseline_ratio=gains.ratio,
        flips=gains.flips,
        void=gains.void,
        forecast=_forecast(plan, gains, method, entries),
        on=on,
        lacking=lacking,
    )


def _forecast(
    plan: Plan, gains: stats.ColumnGains, method: stats.Method, entries: Sequence[Entry]
) -> Resolution | None:
    """Forecast the gain that twice as many seeds would resolve. None unless some verdict is "can't
    tell", the rows share a known spread above 0, and more seeds would be judged in the same way."""
    n = plan.n
    unclear = any(entry.verdict == stats.CANT_TELL for entry in entries)
    if not unclear or not gains.shared_sd or gains.tripped or plan.tune is not None:
        return None
    spread = stats.Spread(gains.shared_sd, gains.shared_df)
    if spread.barely_known:
        return None
    resolution = stats.resolution(spread, n, 2 * n, method, gains.fixed)
    return Resolution(2 * n, resolution.expected, resolution.low, resolution.high)


def _refuse_mixed(column: str, block: Sequence[Scores]) -> None:
    """Raise Failure for mixed runs (--strict). Micro-batches may differ: models whose results
    depend on them refuse them."""
    mixed = [difference.text for key, difference in mixtures(block) if key != "micro_batch"]
    if mixed:
        raise Failure(f"--strict: {f'{column}: ' if column else ''}{' '.join(mixed)}")


def _population(
    making: Making,
    block: Sequence[Scores],
    method: stats.Method,
    gains: stats.ColumnGains,
    right: stats.Bools | None,
) -> list[stats.Estimate | None]:
    """Compute each row's gain for new seeds and images, if the table gives it, over the two or more
    seeds where it and the baseline finished; None where one of its runs or of the baseline's
    diverged or collapsed."""
    plan = making.plan
    labels = [scores.cell.row for scores in block]
    if (
        not (making.extras.population and making.has_intervals)
        or plan.baseline not in labels
        or right is None
    ):
        return [None] * len(block)
    base_index = labels.index(plan.baseline)
    estimates: list[stats.Estimate | None] = []
    for row, scored in enumerate(block):
        both = {*scored.main.by_seed} & {*block[base_index].main.by_seed}
        seeds = [s for s, seed in enumerate(plan.seeds) if seed in both]
        gain = gains.rows[row]
        if gain is None or len(seeds) < 2 or scored.unstable or block[base_index].unstable:
            estimates.append(None)
            continue
        share = method.alpha / method.contrasts
        estimates.append(
            stats.population_gain(right[row, seeds], right[base_index, seeds], gain, share)
        )
    return estimates


def _ranks(plan: Plan, entries: Sequence[Entry]) -> stats.RankAgreement | None:
    """Compute how well our gains rank the rows of a column as the published ones do."""
    pairs = []
    for entry in entries:
        if entry.against is None or not entry.against.published.same_subject:
            continue
        theirs = entry.against.published.gain
        ours = 0.0 if entry.row == plan.baseline else entry.gain.mean if entry.gain else None
        if entry.row == plan.baseline:
            theirs = 0.0
        if ours is not None and theirs is not None:
            pairs.append((ours, theirs))
    return stats.kendall(*zip(*pairs, strict=True)) if pairs else None


def _entry(
    making: Making, row: JudgedRow, population: stats.Estimate | None, likeness: float | None
) -> Entry:
    plan, scores, gain, against = making.plan, row.scores, row.gain, row.against
    has_target = plan.analysis.target is not None
    accuracy = None
    if not (has_target and is_partial(plan, scores)):  # see `target_differences`
        accuracy = _estimate(plan, scores.main, plan.metric)
    noted = (result for result in scores.results if "parameters" in result)
    size = next(noted, making.extras.sizes.get(row.place, {}))
    contrast = shown_gain(gain, plan.metric) if gain else None
    return Entry(
        row=row.place[0],
        column=row.place[1],
        planned=len(plan.planned(scores.cell)),
        values=scores.main.by_seed,
        missing=scores.missing,
        diverged=tuple(scores.diverged),
        collapsed=scores.collapsed,
        accuracy=accuracy,
        gain=None if has_target else contrast,
        difference=contrast if has_target else None,
        pool=(gain.own_reason or "kept")
        if gain and plan.spread != "paired" and making.has_intervals
        else "",
        verdict=row.verdict,
        ratio=gain.ratio if gain else None,
        never=scores.main.never,
        others={
            name: Other(v.by_seed, _estimate(plan, v, plan.metric_named(name, "--show")), v.never)
            for name, v in scores.other_values.items()
        },
        p_values=p_values(gain, against),
        parameters=size.get("parameters"),
        multiply_adds=size.get("multiply_adds"),
        cost=_cost(scores.results) if making.extras.cost else None,
        against=_against(
            making.extras.paper.get(row.place),
            accuracy,
            gain.gain if gain and not has_target else None,
            row.judgeable,
        ),
        chosen=scores.cell.chosen,
        population=hide_empty(population, plan.metric) if population else None,
        likeness=likeness,
    )


def _estimate(plan: Plan, values: Values, metric: Metric) -> stats.Estimate | None:
    """Compute the mean and its interval, which is cut at the ends of the metric's scale. A smoke
    test has no interval."""
    numbers = [value for value in mean_by_replicate(values, plan) if not math.isnan(value)]
    if not numbers:
        return None
    estimate, limit = stats.mean_interval(numbers, plan.analysis.alpha), metric.most
    if plan.smoke:
        return dataclasses.replace(estimate, low=None, high=None)
    if limit is None or estimate.low is None or estimate.high is None:
        return estimate
    return dataclasses.replace(estimate, low=max(estimate.low, 0.0), high=min(estimate.high, limit))


def _fisher(scores: Scores, base: Scores | None) -> stats.Exact | None:
    """Compare the unstable runs of a row and of the baseline; None if neither has one."""
    if base is None or scores is base or not (scores.unstable or base.unstable):
        return None
    n, m = len(scores.results), len(base.results)  # finished or diverged
    return stats.fisher(len(scores.unstable), n, len(base.unstable), m) if n and m else None


def _cost(results: Sequence[Mapping[str, Any]]) -> Cost | None:
    """Sum up the cost of finished runs; None without such runs or without notes of cost."""
    finished = [r for r in results if r["status"] == "finished" and "seconds" in r]
    if not finished:
        return None

    def noted(key: str) -> list[Any]:
        return [r[key] for r in finished if r.get(key) is not None]

    def mean(values: Sequence[float]) -> float | None:
        return math.fsum(values) / len(values) if values else None

    seconds = math.fsum(noted("seconds"))
    return Cost(
        device_s=math.fsum(r["seconds"] * (r.get("ranks") or 1) for r in finished),
        run_s=seconds / len(finished),
        images_per_s=mean(noted("images_per_s")),
        peak_bytes=max(noted("peak_bytes"), default=None),
        utilisation=mean(noted("utilisation")),
    )


def _against(
    published: Beside | None,
    accuracy: stats.Estimate | None,
    gain: stats.Estimate | None,
    judgeable: bool,
) -> Against | None:
    """Compare an entry with its published figure: subtract comparable values, else compare the
    directions of gains; of another subject there is nothing to compare."""
    if published is None:
        return None
    theirs = published.gain
    if published.differs:
        if not published.same_subject:
            return Against(published, None)
        if not judgeable or theirs is None or not gain or gain.low is None or gain.high is None:
            return Against(published, None)
        agreement = stats.agreement(gain.low, gain.high, theirs)
        inside: bool | None = gain.low <= theirs <= gain.high
        if inside and gain.high - gain.low > WIDE * abs(theirs):
            inside = None
        return Against(published, agreement, inside=inside)
    value = accuracy.mean - published.value if accuracy and published.value is not None else None
    difference = gain.mean - theirs if gain and theirs is not None else None
    return Against(published, None, value, difference)
