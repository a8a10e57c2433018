"""Follows a sweep with looks: what each look decided, from the results of runs alone.

Nothing of a course is kept: it is followed again from the first look on whenever results come, so
that a driver that was killed decides the same, and a table shows what the driver decided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ablate.analysis.across import pooled_gains, verdict_of
from ablate.analysis.captions import count
from ablate.analysis.methods import method_of, sequential_of
from ablate.analysis.scores import Curves, Probes, Results, Scores, all_scores
from ablate.planning.plan import Plan
from ablate.planning.until import Standing
from ablate.store import looks
from ablate.store.looks import InterimLook

if TYPE_CHECKING:  # numpy and scipy
    from ablate.analysis.stats import LookFit, LookState, RowGain
    from ablate.analysis.stats.estimate import Bools, Floats
    from ablate.analysis.stats.gains import Reason

GOES_ON = "goes on"
STOPPED = "no verdict (a run diverged, collapsed or missed the threshold)"  # or the baseline's did

Cells = Mapping[tuple[str, str], Scores]  # (row, column) -> its scores


@dataclass(frozen=True)
class RowCourse:
    """What the last look at a row, at `seeds` of them, found and decided. `word`: its verdict, or
    GOES_ON, or STOPPED. `said`: of two stages, what there is to say of the row."""

    seeds: int
    word: str
    gain: RowGain
    said: str | None = None

    def note(self, told: bool) -> str:
        """Of a table: at which look it was decided. Without `told` verdicts are withheld, and so is
        that it was."""
        if self.said is not None:
            return self.said
        if self.word == GOES_ON:
            return f"Undecided at the look at {self.seeds} seeds: more seeds are given out."
        what = "Stopped" if self.word == STOPPED else "Decided" if told else "Judged"
        own = "; the row's spread is out of line, and judged by itself" if self.gain.own else ""
        return f"{what} at the look at {self.seeds} seeds{own}."

    @property
    def verdict(self) -> str | None:
        return None if self.word in (GOES_ON, STOPPED) else self.word


@dataclass(frozen=True)
class ColumnCourse:
    """The looks at a column so far. `next`: the seeds of the look to come, None where it has ended.

    `told`: of each look, its seeds and the words on the rows that it was at. `spread`, with `df`:
    the standard deviation of a result that the pool's rows shared at the last look; or `ratio`, the
    baseline's own over the variants', where it is out of line. Of two stages `total` is the number
    of seeds that the first asks for, which its `spread` is of, and `half` the half-width they give.
    """

    label: str
    rows: Mapping[str, RowCourse]
    told: tuple[tuple[int, Mapping[str, str]], ...] = ()
    next: int | None = None
    spread: float | None = None
    df: int | None = None
    ratio: float | None = None
    total: int | None = None
    half: float | None = None

    @property
    def active(self) -> list[str]:
        """The rows that go on; before the first look this is not known."""
        return [row for row, course in self.rows.items() if course.word == GOES_ON]


def follow(plan: Plan, cells: Cells) -> dict[str, ColumnCourse]:
    """The course of every column, by its label, as far as results go."""
    found = {}
    for column in plan.columns:
        keys = [(row.label, column.label) for row in plan.rows]
        block = [cells[key] for key in keys if key in cells]
        two = plan.precision is not None
        found[column.label] = (_stages if two else _column)(plan, column.label, block)
    return found


def courses_of(
    plan: Plan, results: Results, curves: Curves, probes: Probes
) -> dict[str, ColumnCourse]:
    """The course of every column of a plan whose results these are."""
    return follow(plan, all_scores(plan, results, (), curves, probes))


def _column(plan: Plan, label: str, block: Sequence[Scores]) -> ColumnCourse:
    import numpy as np

    from ablate.analysis import stats

    rows = [found.cell.row for found in block]
    baseline = rows.index(plan.baseline)
    y, unstable = _arrays(plan, block)
    method = sequential_of(plan, label)
    state = stats.before_looks(len(rows), baseline)
    courses: dict[str, RowCourse] = {}
    told: list[tuple[int, Mapping[str, str]]] = []
    spread = df = ratio = None
    for n in plan.until:
        needed = state.active.copy()
        needed[baseline] = True
        if not state.active.any() or not _known(y, unstable)[needed, :n].all():
            break
        shaky = np.asarray(unstable[:, :n].any(-1))
        fit, after = stats.take_look(y[:, :n], baseline, state, method, shaky)
        words = _words(plan, rows, state, after, last=n == plan.until[-1])
        gains = _gains(y[:, :n], baseline, fit, after)
        courses |= {row: RowCourse(n, word, gains[rows.index(row)]) for row, word in words.items()}
        told.append((n, words))
        shared = np.flatnonzero(~np.isnan(fit.sd) & ~after.own)
        if after.tripped:
            spread, df, ratio = None, None, float(fit.ratio)
        elif method.spread == "pooled" and shared.size:
            spread, df = float(fit.sd[shared[0]]) / math.sqrt(2), round(float(fit.df[shared[0]]))
        state = after
    left = plan.until[len(told) :] if state.active.any() else ()
    following = left[0] if left else None
    return ColumnCourse(label, courses, tuple(told), following, spread, df, ratio)


def _stages(plan: Plan, label: str, block: Sequence[Scores]) -> ColumnCourse:
    """The first of two stages, which counts the seeds, and the second, which judges the rows."""
    import numpy as np

    from ablate.analysis import stats

    rows = [found.cell.row for found in block]
    baseline = rows.index(plan.baseline)
    y, unstable = _arrays(plan, block)
    least, most = plan.until
    assert plan.precision is not None
    if len(rows) < 2 or not _known(y, unstable)[:, :least].all():
        return ColumnCourse(label, {}, next=least if len(rows) > 1 else None)
    method, others = method_of(plan, label), [row for row in range(len(rows)) if row != baseline]
    shaky = np.asarray(unstable[:, :least].any(-1))
    stable = [row for row in others if not shaky[row] and not shaky[baseline]]
    early = {rows[r]: _without_interval(y[:, :least], r, baseline) for r in others}
    stopped = {rows[r]: RowCourse(least, STOPPED, early[rows[r]], "") for r in others}
    if not stable:
        return ColumnCourse(label, stopped, ((least, dict.fromkeys(stopped, STOPPED)),))
    first = stats.first_stage(y[[baseline, *stable], :least], 0)
    n = int(first.seeds(method, plan.precision, least, most))
    half = float(first.half(method, n))
    spread, df = math.sqrt(float(first.variance) / 2), round(float(first.df))
    words = {rows[r]: GOES_ON if r in stable else STOPPED for r in others}
    told = [(least, words)] * (n > least)
    if not _known(y, unstable)[[baseline, *stable], :n].all():
        courses = {row: RowCourse(least, word, early[row], "") for row, word in words.items()}
        return ColumnCourse(label, courses, tuple(told), n, spread, df, None, n, half)
    shaky = np.asarray(unstable[:, :n].any(-1))
    gains = stats.column_gains(y[:, :n], baseline, method, shaky, first=first)
    courses = {}
    for r in others:
        gain = gains.rows[r]
        assert gain is not None  # it has the seeds of the first stage
        word = STOPPED if shaky[r] or gains.void else _word(plan, gain)
        courses[rows[r]] = RowCourse(n, word, gain, _wider(plan, gain))
    told.append((n, {row: courses[row].word for row, word in words.items() if word == GOES_ON}))
    if gains.ratio is not None:
        return ColumnCourse(label, courses, tuple(told), ratio=gains.ratio, total=n, half=half)
    return ColumnCourse(label, courses, tuple(told), None, spread, df, None, n, half)


def _word(plan: Plan, gain: RowGain) -> str:
    from ablate.analysis import stats

    words = stats.NEUTRAL if plan.metric.neutral else stats.BETTER
    word = verdict_of(gain.gain, plan.analysis.margin, True, words) or stats.CANT_TELL
    return stats.UNSTABLE if word == stats.CANT_TELL and gain.stands_out else word


def _wider(plan: Plan, gain: RowGain) -> str:
    """Say of a row that its interval is wider than was asked for by a spread that is not its."""
    found = gain.gain
    if not gain.own or found.low is None or found.high is None or plan.precision is None:
        return ""
    if found.high - found.low <= 2 * plan.precision:
        return ""
    return (
        f"The interval is wider than +-{plan.precision:g} {plan.metric.points}: the seeds were "
        f"counted by the other rows' spread."
    )


def _without_interval(y: Floats, row: int, baseline: int) -> RowGain:
    import numpy as np

    from ablate.analysis import stats

    differences = y[row] - y[baseline]
    differences = differences[~np.isnan(differences)]
    mean = float(differences.mean()) if len(differences) else 0.0
    return stats.RowGain(stats.Estimate(mean, None, None, len(differences)))


def _arrays(plan: Plan, block: Sequence[Scores]) -> tuple[Floats, Bools]:
    """Results (R, n_max), positive if better, NaN where missing; and which runs diverged,
    collapsed, or never reached the metric's threshold."""
    import numpy as np

    shape = (len(block), plan.until[-1])
    y, unstable = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    for row, found in enumerate(block):
        for seed, value in found.main.by_seed.items():
            y[row, seed] = plan.metric.sign * value
        unstable[row, [*found.unstable, *found.main.never]] = True
    return y, unstable


def _known(y: Floats, unstable: Bools) -> Bools:
    import numpy as np

    return np.asarray(~np.isnan(y) | unstable)


def _words(
    plan: Plan, rows: Sequence[str], before: LookState, after: LookState, last: bool
) -> dict[str, str]:
    """What a look says of the rows that it was at."""
    from ablate.analysis import stats

    better, worse = stats.NEUTRAL if plan.metric.neutral else stats.BETTER
    said = {
        stats.Decision.BETTER: better,
        stats.Decision.WORSE: worse,
        stats.Decision.LESS: f"less than {plan.analysis.margin:g}" if plan.analysis.margin else "",
        stats.Decision.UNSTABLE: STOPPED,
    }
    words = {}
    for index, row in enumerate(rows):
        if not before.active[index]:
            continue
        decision = stats.Decision(int(after.decided[index]))
        if decision == stats.Decision.UNDECIDED and not after.active[index]:
            words[row] = STOPPED  # by the baseline
        elif decision == stats.Decision.UNDECIDED:
            words[row] = stats.CANT_TELL if last else GOES_ON
        else:
            words[row] = said[decision]
    return words


def _gains(y: Floats, baseline: int, fit: LookFit, state: LookState) -> list[RowGain]:
    """Of every row, by the interval that holds over all looks; without one where it was not
    judged."""
    import numpy as np

    from ablate.analysis import stats

    found = []
    for row in range(len(y)):
        mean, half, sd = (float(part[row]) for part in (fit.gain, fit.half, fit.sd))
        own: Reason = "outlier" if state.out[row] else "spread" if state.own[row] else ""
        if np.isnan(half):
            found.append(replace(_without_interval(y, row, baseline), own=own))
            continue
        estimate = stats.Estimate(mean, mean - half, mean + half, y.shape[1], sd)
        found.append(stats.RowGain(estimate, own))
    return found


def look_events(plan: Plan, courses: Mapping[str, ColumnCourse]) -> Iterator[InterimLook]:
    """Every look so far, the one at the fewest seeds first, as the ledger is to have it."""
    now = looks.look(plan)
    told = [(n, c, words) for c in courses.values() for n, words in c.told]
    for n, course, words in sorted(told, key=lambda one: one[0]):
        decided: dict[str, Any] = {"column": course.label, "rows": dict(words)}
        if course.total is not None and n < course.total:
            decided["total"] = course.total
        yield InterimLook(tuple(range(n)), now.at, decided)


def told_by(plan: Plan, seen: Iterable[InterimLook]) -> Iterator[str]:
    """Say of every recorded look of the plan that gave out seeds what it decided; looks under
    another analysis are left out."""
    if not plan.until:
        return
    now = looks.look(plan)
    for look in seen:
        if look.decided and look.at == now.at:
            yield _line(len(look.seeds), **look.decided)


def standing(plan: Plan, seen: Iterable[InterimLook]) -> Standing:
    """What the newest look at each row said. Only looks that gave out seeds count, and no looks
    under another analysis."""
    found: dict[str, dict[str, tuple[int, str]]] = {}
    now = looks.look(plan) if plan.until else None
    for look in seen:
        if now is not None and look.decided and look.at == now.at:
            for row, word in look.decided["rows"].items():
                found.setdefault(row, {})[look.decided["column"]] = len(look.seeds), word
    return found


def lines(plan: Plan, course: ColumnCourse) -> list[str]:
    """Say what every look at a column decided, and what a noisy baseline costs from now on."""
    total = course.total or 0
    found = [
        _line(n, course.label, words, total if n < total else None) for n, words in course.told
    ]
    if course.ratio is not None:
        at = f"{course.label}: " if course.label else ""
        found.append(f"{at}{pooled_gains(course.ratio)}{_until_the_end(plan, course)}")
    return found


def _line(seeds: int, column: str, rows: Mapping[str, str], total: int | None = None) -> str:
    """ "look at 5 seeds: helps: dpn; goes on: post, pre+post"; of the first of two stages, `total`
    is the number of seeds that it asks for."""
    by_word: dict[str, list[str]] = {}
    for row, word in rows.items():
        by_word.setdefault(word, []).append(row)
    told = "; ".join(f"{word}: {', '.join(labels)}" for word, labels in by_word.items())
    of = f" of {column}" if column else ""
    if total is not None:
        return f"first stage{of}, {seeds} seeds: {total} in all are needed; {told}"
    return f"look at {seeds} seeds{of}: {told}"


def notes(plan: Plan, courses: Iterable[ColumnCourse]) -> Iterator[str]:
    """Say of a table what its looks have left open."""
    for course in courses:
        at = f"{heading}: " if (heading := plan.heading(course.label)) else ""
        if plan.precision is not None:
            yield from (f"{at}{text}" for text in _of_stages(plan, course))
        elif course.next is not None and not course.told:
            yield f"{at}no look yet; the first is at {plan.until[0]} seeds."
        elif course.next is not None:
            yield (
                f"{at}{count(len(course.active), 'row')} undecided; the next look is at "
                f"{course.next} seeds; the same `ablate sweep` goes on"
                f"{_until_the_end(plan, course)}."
            )


def _of_stages(plan: Plan, course: ColumnCourse) -> Iterator[str]:
    first, most = plan.until
    if course.total is None or course.half is None:
        if course.next is not None:
            yield f"the first stage, of {first} seeds, has not ended."
        return
    left = "; the same `ablate sweep` goes on" if course.next is not None else ""
    wanted = f"+-{plan.precision:g} {plan.metric.points}"
    half = f"+-{course.half:.{plan.metric.decimals}f} {plan.metric.points}"
    if course.half > (plan.precision or 0.0) and course.total == most:
        yield f"{wanted} takes more than the {most} seeds allowed, which give {half}{left}."
    else:
        yield f"the first {first} seeds ask for {course.total} in all, which give {half}{left}."


def _until_the_end(plan: Plan, course: ColumnCourse) -> str:
    """The greatest number of runs that are left after the last look."""
    if course.next is None:
        return ""
    runs = (len(course.active) + 1) * (plan.until[-1] - course.told[-1][0])
    return f"; until the end: at most {count(runs, 'more run')}"
