"""The board of a drive: the state of every run, the runs that wait, and the runs with a worker."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Sized
from dataclasses import dataclass, field
from typing import Any

from ablate.planning.cell import PlannedRun
from ablate.planning.plan import Plan
from ablate.running.disk import Disk
from ablate.running.launchers import Slot
from ablate.shared.rundir import CHECK, RunDir
from ablate.store import attempts
from ablate.store.events import RunState
from ablate.store.ledger import Ledger
from ablate.store.liveness import Liveness
from ablate.store.progress import parents_of, turn_of_child
from ablate.store.store import Store


@dataclass
class ActiveRun:
    """A run with a worker."""

    run: PlannedRun
    folder: RunDir
    slot: Slot | None  # None: adopted, on a slot that this launcher does not have
    by: Liveness  # who answers for the worker: the launcher, of one that was adopted the store
    child: bool  # our own: the launcher will tell when it ends
    notes: dict[str, Any] = field(default_factory=dict)
    noted_at: float = field(default_factory=time.monotonic)  # when the notes last changed
    since: float = field(default_factory=time.monotonic)  # 0: adopted, so for a while
    code: int | None = None  # of its process, as far as the launcher has told it
    asked: bool = False  # to stop
    killed: bool = False
    judged: int = 0  # bytes of its metrics when the search last judged it

    def stop(self, now: bool = False) -> None:
        self.asked = True
        self.by.stop(self.folder, now)

    @property
    def error(self) -> str:
        """Return why it left without a result, as it noted."""
        self.notes = self.by.notes(self.folder)
        return str(self.notes.get("error", "its worker died without an error message"))

    @property
    def leaves(self) -> bool:
        """Has it done with its GPU? What is left are the hashes of its data: the next run starts
        meanwhile. On a CPU these take the core that the next run would have."""
        gpu = self.slot is not None and self.slot.device != "cpu"
        return gpu and self.notes.get("phase") == CHECK

    @property
    def place(self) -> str:
        """Return the name of its slot, as far as it is known."""
        return self.slot.name if self.slot is not None else str(self.notes.get("slot", "?"))

    @property
    def stepped(self) -> bool:
        """Has it made a step?"""
        return bool(self.notes.get("step", 0) > self.notes.get("from_step", 0))


class Board:
    """The runs of a drive, by id.

    `states` are the ledger's, where every change is recorded first. `pending`: runs that may start,
    in their order; `wanted`: runs that the user wants before others, see `assign`; `parents`: run
    -> the one that it starts from; `active`: runs with a worker. `stopping`: signals that came.
    """

    def __init__(self, ledger: Ledger, disk: Disk, stopping: Sized) -> None:
        self.runs: dict[str, PlannedRun] = {}
        self.states: dict[str, RunState] = {}
        self.active: dict[str, ActiveRun] = {}
        self.parents: dict[str, str] = {}
        self.pending: list[str] = []
        self.wanted = ledger.wanted()
        self._waiting: dict[str, list[str]] = {}  # parent -> runs that start once it has finished
        self._counts: Counter[str] = Counter()
        self._ledger, self._disk, self._stopping = ledger, disk, stopping

    @property
    def counts(self) -> dict[str, int]:
        """Count runs by status; kept, since it is read several times a second."""
        return {status: count for status, count in self._counts.items() if count}

    def add(self, plan: Plan) -> list[str]:
        """Add the runs of a plan that are new, and return them; none of them waits yet."""
        new = {run.id: run for run in plan.runs() if run.id not in self.runs}
        states = self._ledger.states(new)
        self._counts.update(str(state.status) for state in states.values())
        self.runs |= new
        self.states |= states
        self.parents |= parents_of(new.values())
        return [*new]

    def record(self, run: str, kind: str, **detail: Any) -> None:
        """Append an event; on a full disk wait until there is room, or a signal."""
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
        """Let it start when there is room, and not before its parent has finished."""
        parent = self.parents.get(run)
        turn = "now" if parent is None else turn_of_child(self.states[parent])
        if turn == "now":
            self.pending.append(run)
        elif turn == "later" and parent is not None:
            self._waiting.setdefault(parent, []).append(run)

    def drop(self, run: str) -> None:
        """Let it wait no longer, if it did."""
        for runs in (self.pending, *self._waiting.values()):
            if run in runs:
                runs.remove(run)

    def freed_by(self, parent: str) -> list[str]:
        """Return the runs that waited for this one, once it is known whether they may start."""
        later = turn_of_child(self.states[parent]) == "later"
        return [] if later else self._waiting.pop(parent, [])

    def children(self, parent: str) -> list[str]:
        """Return the runs that start from this one."""
        return [run for run, its in self.parents.items() if its == parent]

    def want(self, run: str) -> None:
        """Put it before all others, and with it what it starts from."""
        above: str | None = run
        while above is not None:
            self.wanted = [above, *(other for other in self.wanted if other != above)]
            above = self.parents.get(above)


class Folders:
    """Where the workers of a drive write: in the folders of runs, or each attempt in its own.

    An attempt on another host can be given up for dead and write on: see `ablate.store.attempts`.
    The `started` event names the attempt, so that a later driver knows which one counts. `remote`:
    workers are on other hosts.
    """

    def __init__(self, store: Store, ledger: Ledger, remote: bool) -> None:
        self._store, self._ledger, self._remote = store, ledger, remote
        self._starts: dict[str, int] = {}  # how often each run was started
        self._before: dict[str, str | None] = {}  # the attempt that the newest one goes on from
        self._ended: set[str] = set()  # attempts that left an exit code

    def add(self, runs: Collection[str]) -> None:
        """Take runs on as their last driver left them."""
        for run, (count, attempt) in self._ledger.starts(runs).items():
            self._starts[run] = count
            if attempt is not None:
                attempts.appoint(self._store, run, attempt)

    def begin(self, run: str) -> tuple[RunDir, dict[str, int]]:
        """Return the folder of a new attempt, and what the `started` event says of it."""
        self._before[run] = self._store.rundir(run).attempt
        if not self._remote:
            attempts.bring_home(self._store, run)
            return self._store.rundir(run), {}
        folder, number = attempts.fork(self._store, run, self._starts.get(run, 0) + 1)
        return folder, {"attempt": number}

    def began(self, run: str, attempt: int | None = None) -> None:
        """Note that the ledger names the attempt now."""
        self._starts[run] = self._starts.get(run, 0) + 1
        if attempt is not None:
            attempts.appoint(self._store, run, attempt)
        if self._before[run] in self._ended:
            attempts.forget(self._store, self._before[run])

    def ended(self, folder: RunDir) -> None:
        """Note that its worker has surely ended: it left an exit code."""
        if folder.attempt is not None:
            self._ended.add(folder.attempt)
