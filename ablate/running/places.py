"""The health of places: which are given up, and when a drive stops as runs fail there alike.

`blame`, `gives_up`, `failure_kind` and `failures_alike` are pure, as are `next_step` and `assign`.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ablate.planning.cell import PlannedRun
from ablate.running.board import ActiveRun, Board
from ablate.shared.result import FINAL
from ablate.shared.rundir import FAILED, LOST, OOM, ROTTEN

LOSSES = 2  # variants, and runs, that lose their device on a place before it is given up
IN_A_ROW = 3  # runs, of as many variants, that fail alike: the cause is none of theirs
AT_MOST = 30  # runs, of several variants, that fail alike in a row, whatever has worked before
AT_ONCE_S = 30.0  # a run that went on for longer, and made a step, has worked for a while

Lost = Mapping[str, frozenset[str]]  # place -> runs that lost their device there
Variant = tuple[str, str]  # row and column: what a run shares with the runs of other seeds


def variant(run: PlannedRun) -> Variant:
    return run.cell.row, run.cell.column


# --- Lost devices -------------------------------------------------------------------------------


def blame(lost: Lost, run: str, place: str) -> Lost:
    """Return the losses by place after `run` lost its device on `place`. A run that loses
    devices on two places is itself to blame, and counts against no place."""
    if any(run in runs for other, runs in lost.items() if other != place):
        return {other: runs - {run} for other, runs in lost.items()}
    return {**lost, place: lost.get(place, frozenset()) | {run}}


def gives_up(runs: Collection[str], variants: Mapping[str, object]) -> bool:
    """Are these runs, which lost their device on a place, enough to give it up? Not where all are
    seeds of one variant, whose own code may break devices, unless there is no other.

    `variants`: of every run of the sweep.
    """
    enough = min(LOSSES, len(set(variants.values())))
    return len(runs) >= LOSSES and len({variants[run] for run in runs}) >= enough


# --- Runs that fail alike -----------------------------------------------------------------------


@dataclass(frozen=True)
class Ending:
    """How a run ended on a place. `failure`: the way in which it failed at once; "": it worked.
    `spared`: a signal ended it, as of a kernel that lacks memory, and it has attempts left."""

    run: str
    variant: Variant
    failure: str
    spared: bool = False


def failure_kind(reason: str, error: str, seconds: float, stepped: bool) -> str:
    """Return `Ending.failure` of a run without a result: why it left, and its error but for its
    numbers. `stepped`: it made a step."""
    if stepped and seconds >= AT_ONCE_S:
        return ""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", f"{reason}: {error}")


def failures_alike(
    endings: Sequence[Ending], variants: int, proven: Collection[Variant], works: bool
) -> int:
    """Count the runs that failed at once in the same way, back from the last of one place's
    endings, where they end the sweep; 0 where they don't, as their variants may be at fault.

    `variants`: how many the sweep has. `proven`: those that have a result. `works`: a worker there
    has made a step. Where something has worked in this drive, a variant that never has may well be
    broken, and others go on, but for `AT_MOST`.
    """
    last = endings[-1].failure
    row = [*itertools.takewhile(lambda e: last and e.failure == last, reversed(endings))]
    works = works or not all(ending.failure for ending in endings)
    counted = [e for e in row if not e.spared and (not works or e.variant in proven)]
    over = any(
        len({ending.run for ending in of}) >= runs
        # one variant that fails with each of its seeds counts once
        and len({ending.variant for ending in of}) >= min(IN_A_ROW, variants)
        for of, runs in ((counted, IN_A_ROW), (row, AT_MOST))
    )
    return len({ending.run for ending in row}) if over else 0


class PlaceHealth:
    """What happened on each place of a drive, so far."""

    def __init__(self, say: Callable[[str], None], board: Board) -> None:
        self.lost: Lost = {}
        self.retired: dict[str, None] = {}  # given up
        self.stopped: str | None = None  # why the sweep shall stop
        self._endings: dict[str, list[Ending]] = {}  # by place
        self._say, self._board = say, board

    def works(self, place: str) -> None:
        """Note that a run left a result there: earlier losses count no longer."""
        self.lost = {**self.lost, place: frozenset()}

    def blame(self, run: str, place: str) -> None:
        """Note that `run` lost its device there."""
        self.lost = blame(self.lost, run, place)
        lost = self.lost.get(place, frozenset())
        if gives_up(lost, {id: variant(planned) for id, planned in self._board.runs.items()}):
            self.give_up(place, f"{len(lost)} runs lost their device there")

    def give_up(self, place: str, why: str) -> None:
        if place not in self.retired:
            self.retired[place] = None
            self._say(f"{place} is given up: {why}")

    def judge(self, ended: ActiveRun, exit: str | None, died: bool, more: bool) -> None:
        """A worker ended: set `stopped` where runs fail alike, one after another. `died`: the end
        counted as an attempt; `more`: its run has further attempts."""
        if ended.slot is None:
            return
        place, failure = ended.slot.place, ""
        if not ended.folder.has_result():
            if exit not in (FAILED, OOM) and (not died or exit in (LOST, ROTTEN)):
                return
            seconds = time.monotonic() - ended.since
            failure = failure_kind(exit or "died", ended.error, seconds, ended.stepped)
        spared = more and exit is None and (ended.code or 0) < 0
        endings = self._endings.setdefault(place, [])
        endings.append(Ending(ended.run.id, variant(ended.run), failure, spared))
        if not failure:
            return
        runs, states = self._board.runs.values(), self._board.states
        active = self._board.active.values()
        row = failures_alike(
            endings,
            len({variant(run) for run in runs}),
            {variant(run) for run in runs if states[run.id].status in FINAL},
            any(a.stepped for a in active if a.slot is not None and a.slot.place == place),
        )
        if row:
            why = f"failed at once on {place}, all alike ({ended.error})"
            self.stopped = f"{row} runs in a row {why}"
