"""Follows a sweep with looks: what each look decided, from the results of runs alone.

Nothing of a course is kept: it is followed again from the first look on whenever results come, so
that a driver that was killed decides the same, and a table shows what the driver decided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablate.analysis.across import pooled_gains
from ablate.analysis.captions import count
from ablate.analysis.methods import sequential_of
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
    GOES_ON, or STOPPED."""

    seeds: int
    word: str
    gain: RowGain

    def note(self, told: bool) -> str:
        """Of a table: at which look it was decided. Without `told` verdicts are withheld, and so is
        that it was."""
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
    baseline's own over the variants', where it is out of line.
    """

    label: str
    rows: Mapping[str, RowCourse]
    told: tuple[tuple[int, Mapping[str, str]], ...] = ()
    next: int | None = None
    spread: float | None = None
    df: int | None = None
    ratio: float | None = None

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
        found[column.label] = _column(plan, column.label, block)
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
        if np.isnan(half):
            differences = y[row] - y[baseline]
            differences = differences[~np.isnan(differences)]
            mean = float(differences.mean()) if len(differences) else 0.0
            estimate = stats.Estimate(mean, None, None, len(differences))
        else:
            estimate = stats.Estimate(mean, mean - half, mean + half, y.shape[1], sd)
        own: Reason = "outlier" if state.out[row] else "spread" if state.own[row] else ""
        found.append(stats.RowGain(estimate, own))
    return found


def look_events(plan: Plan, courses: Mapping[str, ColumnCourse]) -> Iterator[InterimLook]:
    """Every look so far, the one at the fewest seeds first, as the ledger is to have it."""
    now = looks.look(plan)
    told = [(n, c.label, words) for c in courses.values() for n, words in c.told]
    for n, label, words in sorted(told, key=lambda one: one[0]):
        decided: dict[str, Any] = {"column": label, "rows": dict(words)}
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
    found = [_line(n, course.label, words) for n, words in course.told]
    if course.ratio is not None:
        at = f"{course.label}: " if course.label else ""
        found.append(f"{at}{pooled_gains(course.ratio)}{_until_the_end(plan, course)}")
    return found


def _line(seeds: int, column: str, rows: Mapping[str, str]) -> str:
    """ "look at 5 seeds: helps: dpn; goes on: post, pre+post"."""
    by_word: dict[str, list[str]] = {}
    for row, word in rows.items():
        by_word.setdefault(word, []).append(row)
    told = "; ".join(f"{word}: {', '.join(labels)}" for word, labels in by_word.items())
    return f"look at {seeds} seeds{f' of {column}' if column else ''}: {told}"


def notes(plan: Plan, courses: Iterable[ColumnCourse]) -> Iterator[str]:
    """Say of a table what its looks have left open."""
    for course in courses:
        at = f"{heading}: " if (heading := plan.heading(course.label)) else ""
        if course.next is not None and not course.told:
            yield f"{at}no look yet; the first is at {plan.until[0]} seeds."
        elif course.next is not None:
            yield (
                f"{at}{count(len(course.active), 'row')} undecided; the next look is at "
                f"{course.next} seeds; the same `ablate sweep` goes on"
                f"{_until_the_end(plan, course)}."
            )


def _until_the_end(plan: Plan, course: ColumnCourse) -> str:
    """The greatest number of runs that are left after the last look."""
    if course.next is None:
        return ""
    runs = (len(course.active) + 1) * (plan.until[-1] - course.told[-1][0])
    return f"; until the end: at most {count(runs, 'more run')}"
