"""Follows a sweep with looks: what each look decided, from the results of runs alone.

Nothing of a course is kept: it is followed again from the first look on whenever results come, so
that a driver that was killed decides the same, and a table shows what the driver decided.

Used by `seeding.py` (`ablate sweep`), `tabulate.py` (tables) and report/status.py
(`ablate status`). The decision itself is made in stats/until.py; sentences on it are in
english/looks.py.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ablate.analysis import stats
from ablate.analysis.change_gains import judge_changes
from ablate.analysis.english import looks as english
from ablate.analysis.evidence import ColumnEvidence, Evidence
from ablate.analysis.judging import sequential_of
from ablate.analysis.note import Sentence, sentence
from ablate.analysis.scores import Correct, Results
from ablate.planning import Changes, Plan, Standing, effect_label
from ablate.store import InterimLook, PastLooks, looks

GOES_ON = "goes on"
STOPPED = "no verdict (a run diverged, collapsed or missed the threshold)"  # or the baseline's did

UNLIKELY = " (a gain of the margin was unlikely)"  # after the verdict of a row that it stopped


@dataclass(frozen=True)
class RowCourse:
    """The decision and the gain of the last look at a row or a change, which was at `seeds` seeds.
    `word`: its verdict, with UNLIKELY appended where futility alone stopped it, or GOES_ON, or
    STOPPED. `unlikely`: the margin, where the row got no more seeds because a gain of the margin
    was unlikely. `alone`: no other row was left at that look, so no spread of several rows by
    images could be estimated, and the row has its paired t."""

    seeds: int
    word: str
    gain: stats.RowGain
    unlikely: float | None = None
    alone: bool = False

    def note(self, with_verdicts: bool) -> Sentence:
        """Return the note of a table that says at which look the row was decided. Unless
        `with_verdicts`, verdicts are withheld, so the note doesn't say whether the look decided."""
        if self.word == GOES_ON:
            return sentence("look.goes-on", seeds=self.seeds)
        judged_by = "own" if self.gain.own_reason else "rows"
        if self.alone:
            judged_by = "alone"
        if self.unlikely is not None:
            return sentence(
                "look.stopped",
                seeds=self.seeds,
                margin=self.unlikely,
                share=stats.FUTILITY,
                judged_by=judged_by,
            )
        outcome = "decided" if with_verdicts else "judged"
        if self.word == STOPPED:
            outcome = "stopped"
        return sentence("look.ended", seeds=self.seeds, outcome=outcome, judged_by=judged_by)

    @property
    def stop(self) -> str:
        """The reason why a row that stopped for futility got no more seeds."""
        assert self.unlikely is not None
        return english.stop_words(self.seeds, self.unlikely, stats.FUTILITY)

    @property
    def verdict(self) -> str | None:
        return None if self.word in (GOES_ON, STOPPED) else self.word.removesuffix(UNLIKELY)


@dataclass(frozen=True)
class ColumnCourse:
    """The looks at a column so far. `next_seeds`: the seeds of the look to come, None where the
    column has ended. `spreads`: the spreads by which the last look judged rows, without their
    gains. `history`: for each look, its seeds and the words on the rows that it judged.
    `noisy_looks`: the looks at which the baseline's spread was beyond the limit of the screen, by
    their seeds, with `ratio` of `stats.ColumnGains`. `lacking`: why images determined no spread, so
    that rows were judged in pairs. `contrasts`: those between rows, by their `difference`, as the
    look judged them that was the first to exclude 0, or the last at which both rows had all
    seeds."""

    label: str
    rows: Mapping[str, RowCourse]
    spreads: stats.ColumnGains
    history: tuple[tuple[int, Mapping[str, str]], ...] = ()
    next_seeds: int | None = None
    noisy_looks: Mapping[int, float | None] = field(default_factory=dict)
    lacking: str = ""
    changes: Mapping[tuple[str, str], RowCourse] = field(default_factory=dict)  # (change, part)
    contrasts: Mapping[str, stats.RowGain] = field(default_factory=dict)

    @property
    def deciding_noise(self) -> dict[int, float | None]:
        """The noisy looks that widened the interval of some row: the last look at it, which didn't
        judge it by its own spread."""
        deciding = {course.seeds for course in self.rows.values() if not course.gain.own_reason}
        return {seeds: ratio for seeds, ratio in self.noisy_looks.items() if seeds in deciding}

    @property
    def active(self) -> list[str]:
        """The rows that go on, or the changes; before the first look this is not known."""
        changes = {effect_label(*place): course for place, course in self.changes.items()}
        return [label for label, c in {**self.rows, **changes}.items() if c.word == GOES_ON]

    def asks(self, plan: Plan) -> list[str]:
        """Return the rows that get the seeds of the next look: those that go on, and the baseline.
        For changes, these are all rows, for each cell contributes to every change."""
        if plan.changes is not None:
            return [cell.row for cell in plan.cells if cell.column == self.label]
        return [plan.baseline, *self.active]


@dataclass(frozen=True)
class _ColumnLooks:
    """The evidence of a column as its looks take it: results `y` (R, n_max), positive if better,
    NaN where missing; `unstable` (R, n_max), the runs that diverged, collapsed, or never reached
    the metric's threshold; `order`: the rows of `column`, as `y` has them."""

    plan: Plan
    column: ColumnEvidence
    order: list[int]
    y: stats.Floats
    unstable: stats.Bools
    method: stats.Sequential

    @property
    def label(self) -> str:
        return self.column.column.label

    @property
    def rows(self) -> list[str]:
        return [self.column.scores[index].cell.row for index in self.order]

    @property
    def ended(self) -> stats.Bools:
        """The runs (R, n_max) that have a result or are unstable: nothing more will come of
        them."""
        import numpy as np

        return ~np.isnan(self.y) | self.unstable

    def right(self) -> Correct:
        """Read the images that runs get right, in the order of `y`."""
        right, lacking = self.column.images
        return Correct(None if right is None else right[self.order], lacking)


def follow(evidence: Evidence, past: PastLooks | None = None) -> dict[str, ColumnCourse]:
    """Follow every column as far as results go; return its course by its label, {} without looks.
    `past`: the looks before."""
    plan, courses = evidence.plan, {}
    for column in evidence.columns if plan.design.seed_counts else ():
        order = [*range(len(column.scores))]
        if plan.changes is None:  # the baseline comes first
            order.sort(key=lambda index: column.scores[index].cell.row != plan.baseline)
        label = column.column.label
        method = sequential_of(plan, label, past)
        column_looks = _ColumnLooks(plan, column, order, *_arrays(column, order), method)
        changes = plan.changes
        courses[label] = (
            _follow_rows(column_looks)
            if changes is None
            else _follow_changes(column_looks, changes)
        )
    return courses


def _follow_rows(evidence: _ColumnLooks) -> ColumnCourse:
    """Follow the rows of a column, the baseline first."""
    import numpy as np

    plan, y, method = evidence.plan, evidence.y, evidence.method
    state = stats.before_looks(len(evidence.rows))
    courses: dict[str, RowCourse] = {}
    contrasts: dict[str, stats.RowGain] = {}
    history: list[tuple[int, Mapping[str, str]]] = []
    noisy_looks: dict[int, float | None] = {}
    column_gains, lacking, images = stats.ColumnGains(()), "", None
    for look, n in enumerate(plan.design.seed_counts):
        needed_rows = state.active.copy()
        needed_rows[0] = True
        if not state.active.any() or not evidence.ended[needed_rows, :n].all():
            break
        if look == 0 and method.spread == "images":
            images, lacking = _images(evidence)
            if images is None:
                method = replace(method, spread="paired")
        shaky = np.asarray(evidence.unstable[:, :n].any(-1))
        fit, next_state = stats.take_look(y[:, :n], look, state, method, shaky, images)
        gains = dict(zip(evidence.rows, _gains(y[:, :n], fit), strict=True))
        decisions = dict(
            zip(evidence.rows, map(stats.Decision, next_state.decided.tolist()), strict=True)
        )
        is_last = n == plan.design.seed_counts[-1]
        looked = {
            row: _course(plan, n, gains[row], decisions[row], bool(going), is_last)
            for row, active, going in zip(
                evidence.rows, state.active, next_state.active, strict=True
            )
            if active
        }
        judged_rows = ~np.isnan(fit.sd)
        if method.spread == "images" and judged_rows.sum() == 1 and len(evidence.rows) > 2:
            looked = {row: replace(course, alone=True) for row, course in looked.items()}
        courses |= looked
        contrasts |= _contrasts(evidence, method.method_at(look), shaky, n, contrasts)
        history.append((n, {row: course.word for row, course in looked.items()}))
        if judged_rows.any():
            row_spreads = fit.sd[judged_rows] / math.sqrt(2)
            spreads = float(row_spreads.min()), float(row_spreads.max())
            column_gains = replace(
                column_gains, spreads=spreads, df=float(np.median(fit.df[judged_rows]))
            )
        if not np.isnan(fit.ratio):
            noisy_looks[n] = float(fit.ratio) if np.isfinite(fit.ratio) else None
        state = next_state
    later_looks = plan.design.seed_counts[len(history) :] if state.active.any() else ()
    following = later_looks[0] if later_looks else None
    return ColumnCourse(
        evidence.label,
        courses,
        column_gains,
        tuple(history),
        following,
        noisy_looks,
        lacking,
        contrasts=contrasts,
    )


def _contrasts(
    evidence: _ColumnLooks,
    method: stats.Method,
    shaky: stats.Bools,
    n: int,
    earlier: Mapping[str, stats.RowGain],
) -> dict[str, stats.RowGain]:
    """Judge the contrasts between rows that have all seeds of a look at n seeds, and that no
    `earlier` look decided. `method`: of this look; `shaky` (R,): the rows that are unstable."""
    flips = None
    if method.spread == "images" and (right := evidence.right().right) is not None:
        flips = stats.Flips((right[:, :n],))
    pairs: dict[str, tuple[int, int]] = {}
    for contrast in evidence.plan.contrasts_in(evidence.rows):
        rows = evidence.rows.index(contrast.row), evidence.rows.index(contrast.base)
        earlier_gain = earlier.get(contrast.difference)
        is_decided = earlier_gain is not None and earlier_gain.gain.excludes_zero
        if not is_decided and evidence.ended[list(rows), :n].all():
            pairs[contrast.difference] = rows
    gains = stats.contrast_gains(evidence.y[:, :n], [*pairs.values()], method, shaky, flips)
    return {name: gain for name, gain in zip(pairs, gains, strict=True) if gain is not None}


def _follow_changes(evidence: _ColumnLooks, changes: Changes) -> ColumnCourse:
    """Follow the changes of a column. Every cell contributes to every change, so all cells have the
    seeds of a look, until each change is decided, or a gain of the margin is unlikely."""
    import numpy as np

    plan = evidence.plan
    right, lacking = evidence.right() if evidence.method.spread == "images" else (None, "")
    courses: dict[tuple[str, str], RowCourse] = {}
    history: list[tuple[int, Mapping[str, str]]] = []

    def goes_on() -> bool:
        return not history or any(row.word == GOES_ON for row in courses.values())

    for look, n in enumerate(plan.design.seed_counts):
        if not goes_on() or not evidence.ended[:, :n].all():
            break
        shaky = np.asarray(evidence.unstable[:, :n].any(1))
        right_so_far = None if right is None else right[:, :n]
        judged_changes = judge_changes(
            plan, changes, evidence.y[:, :n], evidence.method.method_at(look), shaky, right_so_far
        )
        for place, gain in judged_changes.gains.items():
            if look == 0 or courses[place].word == GOES_ON:
                is_last = n == plan.design.seed_counts[-1]
                decision = stats.Decision.UNSTABLE if shaky.any() else _decided(plan, gain)
                going = decision == stats.Decision.UNDECIDED
                courses[place] = _course(plan, n, gain, decision, going, is_last)
        looked = {effect_label(*place): row for place, row in courses.items() if row.seeds == n}
        history.append((n, {label: row.word for label, row in looked.items()}))
    later_looks = plan.design.seed_counts[len(history) :]
    following = later_looks[0] if later_looks and goes_on() else None
    no_gains = stats.ColumnGains(())
    return ColumnCourse(
        evidence.label,
        {},
        no_gains,
        tuple(history),
        following,
        lacking=lacking,
        changes=courses,
    )


def _decided(plan: Plan, gain: stats.RowGain) -> stats.Decision:
    """Decide on a change by its interval at a look."""
    estimate, margin = gain.gain, plan.analysis.margin
    if estimate.excludes_zero:
        return stats.Decision.BETTER if estimate.mean > 0 else stats.Decision.WORSE
    is_judged = estimate.half is not None and bool(estimate.sd)
    if is_judged and margin is not None and stats.is_futile(estimate, gain.df or 1.0, margin):
        return stats.Decision.FUTILE
    return stats.Decision.UNDECIDED


def _course(
    plan: Plan, n: int, gain: stats.RowGain, decision: stats.Decision, going: bool, is_last: bool
) -> RowCourse:
    """Say what a look at n seeds decided on a row or a change. `going`: it has no verdict, and
    the baseline is stable; `is_last`: there is no later look."""
    margin = plan.analysis.margin
    if decision == stats.Decision.FUTILE and margin is not None:
        word = stats.stopped_word(gain.gain, margin)
        return RowCourse(n, word + UNLIKELY * (word == stats.CANT_TELL), gain, margin)
    better, worse = stats.NEUTRAL if plan.metric.neutral else stats.BETTER
    words = {stats.Decision.BETTER: better, stats.Decision.WORSE: worse}
    open_word = STOPPED if not going else stats.CANT_TELL if is_last else GOES_ON
    if decision == stats.Decision.UNSTABLE:
        open_word = STOPPED
    return RowCourse(n, words.get(decision, open_word), gain)


def _images(evidence: _ColumnLooks) -> tuple[stats.ImagesAt | None, str]:
    """Return a function that gives a look the image flips of its rows, and ""; or None and the
    reason, where the images that runs get right are not known."""
    import numpy as np

    right, lacking = evidence.right()
    if right is None:
        return None, lacking

    def images(tables: object, rows: list[int], n: int) -> stats.ImageFlips:
        return stats.ImageFlips.from_right(right[np.ix_(rows, range(n))][None])

    return images, ""


def _arrays(column: ColumnEvidence, order: Sequence[int]) -> tuple[stats.Floats, stats.Bools]:
    """Return `y` and `unstable` of `_ColumnLooks`."""
    import numpy as np

    plan = column.plan
    shape = (len(order), plan.design.seed_counts[-1])
    y, unstable = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    place = {seed: index for index, seed in enumerate(plan.design.reach(plan.seeds))}
    places = [place[seed] for seed in plan.seeds]
    y[:, places] = column.y[order]
    unstable[:, places] = column.failed[order]
    return y, unstable


def _gains(y: stats.Floats, fit: stats.LookFit) -> list[stats.RowGain]:
    """Return the gain of every row, with the interval that holds at all looks at once; without an
    interval where the look did not judge the row."""
    import numpy as np

    gains = []
    for row in range(len(y)):
        mean, half, sd = (float(part[row]) for part in (fit.gain, fit.half, fit.sd))
        if np.isnan(half):
            differences = y[row] - y[0]
            differences = differences[~np.isnan(differences)]
            mean = float(stats.mean(differences)) if len(differences) else 0.0
            gains.append(stats.RowGain(stats.Estimate(mean, None, None, len(differences))))
            continue
        estimate = stats.Estimate(mean, mean - half, mean + half, y.shape[1], sd)
        reason = stats.own_reason(fit.is_own[row], fit.out[row], fit.vague[row])
        ratio = math.sqrt(fit.ratios[row]) if reason in ("spread", "outlier") else math.inf
        known_ratio = ratio if math.isfinite(ratio) else None
        gains.append(stats.RowGain(estimate, reason, known_ratio, df=float(fit.df[row])))
    return gains


def look_events(
    plan: Plan, courses: Mapping[str, ColumnCourse], past: PastLooks, results: Results
) -> Iterator[InterimLook]:
    """Yield every look so far, in the form that the ledger records, the one at the fewest seeds
    first."""
    decided_looks = [(n, c.label, words) for c in courses.values() for n, words in c.history]
    for n, label, words in sorted(decided_looks, key=lambda entry: entry[0]):
        yield looks.until_look(plan, label, n, words, past.contrasts(label), results)


def recorded_decisions(plan: Plan, interim_looks: Iterable[InterimLook]) -> Iterator[str]:
    """Say of every recorded look of the plan that gave out seeds what it decided; looks under
    another analysis are left out."""
    for look in _of_plan(plan, interim_looks):
        for label, column in look.columns.items():
            if column.decided:
                yield _line(column.n, label, column.decided).text


def latest_decisions(plan: Plan, interim_looks: Iterable[InterimLook]) -> Standing:
    """Return the decision of the newest look at each row: (seeds, word) by row and column label,
    (0, GOES_ON) in a column that had no look yet; {} before the first look. Only looks that gave
    out seeds count; looks under another analysis don't."""
    standing: dict[str, dict[str, tuple[int, str]]] = {}
    for look in _of_plan(plan, interim_looks):
        for label, column in look.columns.items():
            for row, word in column.decided.items():
                standing.setdefault(row, {})[label] = column.n, word
    for row, columns in standing.items():
        for label in (column.label for column in plan.columns):
            if plan.changes is not None or plan.cell(row, label) is not None:
                columns.setdefault(label, (0, GOES_ON))
    return standing


def _of_plan(plan: Plan, interim_looks: Iterable[InterimLook]) -> Iterator[InterimLook]:
    """Yield the looks under the plan's own analysis that gave out seeds."""
    deciding = [
        look for look in interim_looks if any(column.decided for column in look.columns.values())
    ]
    current = looks.look(plan) if deciding else None
    return (look for look in deciding if current and look.is_of(current))


def lines(plan: Plan, course: ColumnCourse) -> list[str]:
    """Say what every look at a column decided, and whose intervals a noisy baseline widened."""
    sentences = [_line(n, course.label, words) for n, words in course.history]
    sentences += noise_of_looks(plan, course, course.label)
    return [line.text.removesuffix(".") for line in sentences]


def noise_of_looks(plan: Plan, course: ColumnCourse, column: str) -> list[Sentence]:
    """Say of each noisy look how noisy the baseline was. `column`: as a heading names it."""
    by_images = plan.spread == "images" and not course.lacking
    return [
        sentence("look.noise", column=column, seeds=seeds, ratio=ratio, by_images=by_images)
        for seeds, ratio in course.deciding_noise.items()
    ]


def _line(seeds: int, column: str, rows: Mapping[str, str]) -> Sentence:
    """Say what a look decided. `rows`: row -> its decision."""
    decisions: dict[str, list[str]] = {}
    for row, word in rows.items():
        decisions.setdefault(word, []).append(row)
    return sentence(
        "look.line",
        seeds=seeds,
        column=column,
        decisions=[{"word": word, "rows": labels} for word, labels in decisions.items()],
    )


def notes(
    plan: Plan, courses: Collection[ColumnCourse], below: bool, past: PastLooks | None = None
) -> Iterator[Sentence]:
    """Say of a table which decisions its looks have left open, and from which seeds the blocks
    `below` its columns are. `past`: the looks that were recorded."""
    for course in courses:
        heading = plan.heading(course.label)
        seed_counts = past.decided_at(course.label) if past is not None else []
        if course.next_seeds is None:
            continue
        if course.history:
            yield sentence(
                "looks.next",
                column=heading,
                noun="row" if plan.changes is None else "change",
                going_on=len(course.active),
                seeds=course.next_seeds,
                more_runs=_runs_left(plan, course),
            )
        elif seed_counts:
            yield sentence("looks.lost-result", column=heading, seeds=[*seed_counts])
        else:
            yield sentence("looks.none-yet", column=heading, first_seeds=plan.design.seed_counts[0])
    if courses and below:
        yield sentence("looks.below", seeds=len(plan.shared_seeds))


def _runs_left(plan: Plan, course: ColumnCourse) -> int | None:
    """Return the greatest number of runs that are left, None after the last look."""
    if course.next_seeds is None:
        return None
    return len(course.asks(plan)) * (plan.design.seed_counts[-1] - course.history[-1][0])


def judged_gains(
    column: ColumnEvidence,
    method: stats.Method,
    right: stats.Bools | None,
    course: ColumnCourse | None,
) -> stats.ColumnGains:
    """Compute the gains of a column with their intervals: of a sweep with looks as these judged
    them, and without intervals on other sets. `right`: see `ColumnEvidence.images`."""
    plan = column.plan
    if not plan.design.seed_counts:
        return _gains_of(plan, column, method, right)
    gains = _gains_of(plan.design.compared(plan), column, method, None)
    means = means_alone(gains)
    if course is None or not course.rows:
        return means
    row_courses = (course.rows.get(scored.cell.row) for scored in column.scores)
    rows = tuple(r.gain if r else mean for r, mean in zip(row_courses, means.rows, strict=True))
    return replace(
        course.spreads,
        rows=rows,
        kept_rows=gains.kept_rows,
        tripped=bool(course.deciding_noise),
        ratio=[None, *course.deciding_noise.values()][-1],
        void=gains.void,
    )


def _gains_of(
    plan: Plan, column: ColumnEvidence, method: stats.Method, right: stats.Bools | None
) -> stats.ColumnGains:
    """Compute the gains of a column over the replicates of `plan`, positive if better; none without
    a baseline."""
    labels = [scores.cell.row for scores in column.scores]
    if plan.baseline not in labels:
        return stats.ColumnGains((None,) * len(labels))
    flips = None if right is None else stats.Flips((right,))
    y, baseline = column.means(plan), labels.index(plan.baseline)
    return stats.column_gains(y, baseline, method, column.unstable, flips)


def means_alone(gains: stats.ColumnGains) -> stats.ColumnGains:
    """Return the mean gains, without intervals."""

    def alone(row: stats.RowGain | None) -> stats.RowGain | None:
        if row is None:
            return None
        return stats.RowGain(stats.Estimate(row.gain.mean, None, None, row.gain.n))

    return stats.ColumnGains(tuple(map(alone, gains.rows)), void=gains.void)
