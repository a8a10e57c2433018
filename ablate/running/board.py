"""The board of a drive: the state of every run, the runs that wait, and the runs with a worker.

The health of places decides which places are given up, and when a drive stops because runs fail
alike on a place.

`blame`, `gives_up`, `failure_kind` and `failures_alike` are pure, as are `next_step` and `assign`
in next_step.py.

Used by `ablate sweep` (running/driver.py); `PlaceRecord` also by running/next_step.py.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

from ablate.planning import Plan, PlannedRun
from ablate.run import (
    CHECK_PHASE,
    DATA_DAMAGED,
    DEVICE_LOST,
    FAILED,
    FINAL_STATUSES,
    NO_WORD,
    OOM,
    RANK_KILLED,
    WRONG_UNIT,
    RunDir,
)
from ablate.running import attempts
from ablate.running.disk import Disk
from ablate.running.launchers import Slot
from ablate.shared import Notes
from ablate.store import Ledger, Liveness, RunState, Store, run_parents, turn_of_child


@dataclass
class ActiveRun:
    """A run with a worker."""

    run: PlannedRun
    folder: RunDir
    slot: Slot | None  # None: adopted, on a slot that this launcher does not have
    # It answers for the worker: the launcher or, where the run was adopted, the store.
    liveness: Liveness
    child: bool  # our own: the launcher will report its end
    notes: Notes = field(default_factory=Notes)
    noted_at: float = field(default_factory=time.monotonic)  # when the notes last changed
    since: float = field(default_factory=time.monotonic)  # its start; 0: adopted, so long ago
    exit_code: int | None = None  # of its process, if the launcher has reported it
    is_stopping: bool = False  # it was asked to stop
    is_hung: bool = False  # it gave no sign of life, and was killed
    killed_at: float | None = None  # when it got SIGKILL
    is_left: bool = False  # SIGKILL does not end it, and nobody waits for it any longer
    judged_bytes: int = 0  # bytes of its metrics when the search last judged it
    neighbours: Collection[str] = ()  # as `Board.neighbours` gave them when it started

    def stop(self, now: bool = False) -> None:
        self.is_stopping = True
        if now and self.killed_at is None:
            self.killed_at = time.monotonic()
        self.liveness.stop(self.folder, now)

    @property
    def error(self) -> str:
        """The reason that its worker noted for leaving without a result."""
        self.notes = self.liveness.notes(self.folder)
        return self.notes.error or NO_WORD

    @property
    def leaves(self) -> bool:
        """True once the run no longer needs its GPU. Only the hashes of its data are left to
        compute, so the next run starts meanwhile. On a CPU they take the core that the next run
        would have."""
        gpu = self.slot is not None and self.slot.device != "cpu"
        return gpu and self.notes.phase == CHECK_PHASE

    @property
    def slot_name(self) -> str:
        """The name of its slot, as far as it is known; else "?"."""
        return self.slot.name if self.slot is not None else self.notes.slot or "?"

    @property
    def stepped(self) -> bool:
        """True once the run has made a step."""
        return (self.notes.step or 0) > (self.notes.from_step or 0)


class Board:
    """The runs of a drive, by id.

    `states` are those of the ledger, where every change is recorded first. `pending`: the runs that
    may start, in their order; `parents`: run -> the run that it starts from; `active`: the runs
    with a worker. `stopping`: the signals that have come.
    """

    def __init__(self, ledger: Ledger, disk: Disk, stopping: Sized) -> None:
        self.runs: dict[str, PlannedRun] = {}
        self.states: dict[str, RunState] = {}
        self.active: dict[str, ActiveRun] = {}
        self.parents: dict[str, str] = {}
        self.pending: list[str] = []
        self._waiting: dict[str, list[str]] = {}  # parent -> runs that start once it has finished
        self._counts: Counter[str] = Counter()
        self._ledger, self._disk, self._stopping = ledger, disk, stopping

    @property
    def counts(self) -> dict[str, int]:
        """The number of runs by status; kept up to date, since it is read several times a
        second."""
        return {status: count for status, count in self._counts.items() if count}

    def add(self, plan: Plan) -> list[str]:
        """Add the runs of a plan that are new, and return them; none of them waits yet."""
        new = {run.id: run for run in plan.runs() if run.id not in self.runs}
        states = self._ledger.states(new)
        self._counts.update(str(state.status) for state in states.values())
        self.runs |= new
        self.states |= states
        self.parents |= run_parents(new.values())
        return [*new]

    def record(self, run: str, kind: str, **detail: Any) -> None:
        """Append an event. On a full disk, wait until there is room, or raise once a signal has
        come."""
        while True:
            try:
                state = self._ledger.record(run, kind, **detail)
                self._counts[self.states[run].status] -= 1
                self._counts[state.status] += 1
                self.states[run] = state
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL or self._stopping:
                    raise
                self._disk.ran_out()
                time.sleep(1)

    def put(self, run: str) -> None:
        """Let a run start when there is room, and not before its parent has finished."""
        parent = self.parents.get(run)
        turn = "now" if parent is None else turn_of_child(self.states[parent])
        if turn == "now":
            self.pending.append(run)
        elif turn == "later" and parent is not None:
            self._waiting.setdefault(parent, []).append(run)

    def drop(self, run: str) -> None:
        """Remove a run from those that wait, if it is one."""
        for runs in (self.pending, *self._waiting.values()):
            if run in runs:
                runs.remove(run)

    def freed_by(self, parent: str) -> list[str]:
        """Return the runs that waited for this one, once it is known whether they may start."""
        if turn_of_child(self.states[parent]) == "later":
            return []
        return self._waiting.pop(parent, [])

    def neighbours(self, slot: Slot) -> set[str]:
        """Return the places of the runs with a worker that have a device of this slot, too."""
        return {
            active.slot.place
            for active in self.active.values()
            if active.slot is not None
            and (active.slot.place == slot.place or active.slot.takes & slot.takes)
        }

    def children(self, parent: str) -> list[str]:
        """Return the runs that start from this one."""
        return [run for run, run_parent in self.parents.items() if run_parent == parent]


class Folders:
    """The folders in which the workers of a drive write: those of the runs, or one for each
    attempt.

    An attempt on another host can be given up for dead and still write: see
    `ablate.running.attempts`. The `started` event names the attempt, so that a later driver knows
    which one counts. `remote`: workers are on other hosts.
    """

    def __init__(self, store: Store, ledger: Ledger, remote: bool) -> None:
        self._store, self._ledger, self._remote = store, ledger, remote
        self._starts: dict[str, int] = {}  # how often each run was started
        self._previous: dict[str, str | None] = {}  # the attempt that the newest one goes on from
        self._ended: set[str] = set()  # attempts that left an exit code

    def add(self, runs: Collection[str]) -> None:
        """Take over runs as their last driver left them."""
        for run, (count, attempt) in self._ledger.starts(runs).items():
            self._starts[run] = count
            if attempt is not None:
                attempts.appoint(self._store, run, attempt)

    def begin(self, run: str) -> tuple[RunDir, dict[str, int]]:
        """Make the folder of a new attempt. Returns it and the details of the `started` event."""
        self._previous[run] = self._store.rundir(run).attempt
        if not self._remote:
            attempts.bring_home(self._store, run)
            return self._store.rundir(run), {}
        folder, number = attempts.fork(self._store, run, self._starts.get(run, 0) + 1)
        return folder, {"attempt": number}

    def note_begun(self, run: str, attempt: int | None = None) -> None:
        """Note that the ledger names the attempt now, and remove the one before it if that has
        ended."""
        self._starts[run] = self._starts.get(run, 0) + 1
        if attempt is not None:
            attempts.appoint(self._store, run, attempt)
        if self._previous[run] in self._ended:
            attempts.forget(self._store, self._previous[run])

    def ended(self, folder: RunDir) -> None:
        """Note that the worker in this folder has surely ended: it left an exit code."""
        if folder.attempt is not None:
            self._ended.add(folder.attempt)


LOSSES = 2  # variants, and runs, that lose their device on a place before it is given up
# How many runs in a row, of IN_A_ROW variants or of all, must fail alike to end the sweep.
IN_A_ROW = 3  # where no variant is to blame: each has worked elsewhere, or nothing has worked yet
ALIKE_ANYWAY = 30  # whatever has worked before
AT_ONCE_S = 30.0  # a run that went on for longer, and made a step, has worked for a while

Lost = Mapping[str, frozenset[str]]  # place -> runs that lost their device there
Variant = tuple[str, str]  # row and column: what a run shares with the runs of other seeds


def variant(run: PlannedRun) -> Variant:
    return run.cell.row, run.cell.column


# --- Lost devices -------------------------------------------------------------------------------


def blame(
    lost: Lost, culprits: frozenset[str], run: str, place: str
) -> tuple[Lost, frozenset[str]]:
    """Return the losses by place, and the culprits, after `run` lost its device on `place`. A run
    that loses devices on two places is itself to blame: it is a culprit from then on, and counts
    against no place."""
    if any(run in runs for lost_place, runs in lost.items() if lost_place != place):
        culprits |= {run}
    runs_here = lost.get(place, frozenset()) | {run}
    all_lost = {**lost, place: runs_here}
    return {any_place: runs - culprits for any_place, runs in all_lost.items()}, culprits


def gives_up(runs: Collection[str], variants: Mapping[str, object]) -> bool:
    """Return whether the runs that lost their device on a place are enough to give it up.

    They are not where all are seeds of one variant, whose own code may break devices, unless the
    sweep has no other. `variants`: by run, for every run of the sweep.
    """
    if len(runs) < LOSSES:
        return False
    enough = min(LOSSES, len(set(variants.values())))
    losers = {variants[run] for run in runs}
    return len(losers) >= enough


# --- Runs that fail alike -----------------------------------------------------------------------


@dataclass(frozen=True)
class Ending:
    """The end of a run on a place. `failure`: the way in which it failed at once; "" where it
    worked. `spared`: a signal killed it, as where memory runs out, and it has attempts left."""

    run: str
    variant: Variant
    failure: str
    spared: bool = False


def failure_kind(reason: str, error: str, seconds: float, stepped: bool) -> str:
    """Return `Ending.failure` of a run without a result: its reason and its error, with the numbers
    replaced. "" for a run that went on for a while. `stepped`: it made a step."""
    if stepped and seconds >= AT_ONCE_S:
        return ""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", f"{reason}: {error}")


def failures_alike(
    endings: Sequence[Ending], variants: int, proven: Collection[Variant], works: bool
) -> int:
    """Count the last runs of a place that failed at once in the same way, if they are enough to end
    the sweep; else return 0, as their variants may be at fault.

    `endings`: those of one place, in order. `variants`: how many the sweep has. `proven`: the
    variants that have a result. `works`: a worker there has made a step. Once something has worked
    in this drive, a variant that never has may well be broken itself; only ALIKE_ANYWAY failures in
    a row then end the sweep.
    """
    failure = endings[-1].failure
    if not failure:
        return 0
    row: list[Ending] = []  # the newest endings, up to the first that is not alike
    for ending in reversed(endings):
        if ending.failure != failure:
            break
        row.append(ending)
    has_worked = works or any(not ending.failure for ending in endings)
    conclusive = []
    for ending in row:
        if not ending.spared and (ending.variant in proven or not has_worked):
            conclusive.append(ending)
    # A variant that fails with each of its seeds counts once.
    enough_variants = min(IN_A_ROW, variants)
    if _are_enough(conclusive, IN_A_ROW, enough_variants) or _are_enough(
        row, ALIKE_ANYWAY, enough_variants
    ):
        return len({ending.run for ending in row})
    return 0


def _are_enough(endings: Sequence[Ending], runs: int, variants: int) -> bool:
    """Return whether the endings are of so many different runs and variants, or more."""
    ended_runs = {ending.run for ending in endings}
    ended_variants = {ending.variant for ending in endings}
    return len(ended_runs) >= runs and len(ended_variants) >= variants


@dataclass
class PlaceRecord:
    """Knowledge of the places of a drive. `lost`: the runs that lost their device on each place;
    `retired`: the places that are given up, in this order; `undivided`: those whose device one
    process at a time can use."""

    lost: Lost = field(default_factory=dict)
    retired: dict[str, None] = field(default_factory=dict)
    undivided: set[str] = field(default_factory=set)


class PlaceHealth(PlaceRecord):
    """The record of places, and the successes and failures on each. It decides which places are
    given up, and when the sweep must stop."""

    def __init__(self, say: Callable[[str], None], board: Board) -> None:
        super().__init__()
        self.stopped: str | None = None  # why the sweep shall stop
        self._culprits: frozenset[str] = frozenset()  # see `blame`
        self._endings: dict[str, list[Ending]] = {}  # by place
        self._say, self._board = say, board

    def note_result(self, place: str) -> None:
        """Note that a run left a result on this place: earlier losses no longer count."""
        self.lost = {**self.lost, place: frozenset()}

    def note_lost_device(self, run: str, place: str) -> None:
        """Note that `run` lost its device on this place."""
        self.lost, self._culprits = blame(self.lost, self._culprits, run, place)
        lost = self.lost.get(place, frozenset())
        variants = {id: variant(planned) for id, planned in self._board.runs.items()}
        if gives_up(lost, variants):
            self.give_up(place, f"{len(lost)} runs lost their device there")

    def note_no_device(self, ended: ActiveRun, slot: Slot, reason: str) -> None:
        """Note that a run got no device on its slot. Where another run had one there, the device
        takes one process only (CUDA's compute mode "exclusive process"): from now on one run at a
        time trains there. Elsewhere the place is given up."""
        neighbours = {*ended.neighbours, *self._board.neighbours(slot)}
        if not neighbours:
            self.give_up(slot.place, reason)
        elif slot.place not in self.undivided:
            self.undivided |= {slot.place, *neighbours}
            self._say(f"{slot.place} trains one run at a time from now on: {reason}")

    def give_up(self, place: str, reason: str) -> None:
        if place not in self.retired:
            self.retired[place] = None
            self._say(f"{place} is given up: {reason}")

    def judge(
        self, ended: ActiveRun, exit_reason: str | None, died: bool, has_attempts: bool
    ) -> None:
        """Note the end of a worker, and set `stopped` where runs fail alike, one after another.
        `died`: the end counted as an attempt; `has_attempts`: its run has further attempts."""
        if ended.slot is None:
            return
        place = ended.slot.place
        failure = ""
        if not ended.folder.has_result():
            blames_other = exit_reason in (DEVICE_LOST, DATA_DAMAGED)  # a device, or the data
            is_failure = exit_reason in (FAILED, WRONG_UNIT, OOM) or (died and not blames_other)
            if not is_failure:
                return
            seconds = time.monotonic() - ended.since
            failure = failure_kind(exit_reason or "died", ended.error, seconds, ended.stepped)
        killed = exit_reason == RANK_KILLED or (exit_reason is None and (ended.exit_code or 0) < 0)
        spared = has_attempts and killed
        endings = self._endings.setdefault(place, [])
        endings.append(Ending(ended.run.id, variant(ended.run), failure, spared))
        if not failure:
            return
        runs, states = self._board.runs.values(), self._board.states
        works = False
        for active in self._board.active.values():
            if active.slot is not None and active.slot.place == place and active.stepped:
                works = True
        count = failures_alike(
            endings,
            variants=len({variant(run) for run in runs}),
            proven={variant(run) for run in runs if states[run.id].status in FINAL_STATUSES},
            works=works,
        )
        if count:
            reason = f"failed at once on {place}, all alike ({ended.error})"
            self.stopped = f"{count} runs in a row {reason}: no single variant is the cause"
