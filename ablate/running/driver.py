"""Drives a plan: decides what comes next for every run, keeps the slots full, records events.

What comes next is one pure function, `step.next_step`: the same command starts, resumes and
extends.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ablate.planning.plan import Plan, PlannedRun
from ablate.running.launchers import Launcher, Slot
from ablate.running.next_step import next_step
from ablate.running.progress import Outcome, Progress, View, Working
from ablate.shared.files import FULL
from ablate.shared.metrics import Metric
from ablate.shared.rundir import DISK_FULL, EXIT_DISK_FULL, EXIT_TAKEN, LOST, ROTTEN, RunDir
from ablate.shared.signals import ENDING, noted
from ablate.store.ledger import FINAL, Ledger, RunState, Store, result_detail

# A full disk has room again when it has so much, and room for checkpoints: little at first, since a
# quota may be small, then each time twice as much, up to the most.
SPARE_BYTES, MOST_SPARE_BYTES = 1 << 20, 64 << 20
LOSSES = 2  # different runs that lose their device on a place before it is given up
Results = Callable[[str], Mapping[str, Any] | None]  # run id -> its result, once it has one
Metrics = Callable[[str], Sequence[Mapping[str, Any]]]  # run id -> the lines of its metrics


class Search(Protocol):
    """What a plan grows by while it is driven."""

    def grow(self, results: Results, metrics: Metrics) -> Plan | None:
        """A plan with more runs, in the light of new results; None where there is nothing new."""

    def prune(self, run: str, metrics: Sequence[Mapping[str, Any]]) -> int | None:
        """The step after which a running training is not worth going on; None: it is."""


def drive(
    plan: Plan,
    store: Store,
    ledger: Ledger,
    launcher: Launcher,
    settings: Mapping[str, Any],
    view: View,
    retry: Sequence[str] = (),
    search: Search | None = None,
) -> Outcome:
    """Train what the plan lacks. Returns when nothing is left to do, or after a signal.

    `settings` is the launcher group; runs whose status is in `retry` are started afresh; `search`
    is asked after every result whether there is more to train. SIGINT, SIGTERM and SIGHUP stop the
    workers, each with a checkpoint; a second one kills them.
    """
    return _Drive(plan, store, ledger, launcher, settings, view, search).run(retry)


class _Drive:
    def __init__(
        self,
        plan: Plan,
        store: Store,
        ledger: Ledger,
        launcher: Launcher,
        settings: Mapping[str, Any],
        view: View,
        search: Search | None,
    ) -> None:
        self.store, self.ledger, self.launcher, self.view = store, ledger, launcher, view
        self.attempts, self.hang_s = settings["attempts"], settings["hang_s"]
        self.plan, self.search = plan, search
        self.runs: dict[str, PlannedRun] = {}
        self.states: dict[str, RunState] = {}
        self.counts: Counter[str] = Counter()
        self.results = 0  # recorded since the search was asked
        self.pending: list[str] = []
        self.working: dict[str, Working] = {}
        self.pause: str | None = None
        self.spare = SPARE_BYTES
        self.probed_at = 0.0
        self.lost: dict[str, set[str]] = {}  # place -> runs that lost their device there
        self.retired: dict[str, None] = {}  # places given up
        self.signals: list[int] = []

    def run(self, retry: Sequence[str]) -> Outcome:
        with noted(*ENDING) as self.signals:
            self._take(self.plan, retry)
            while (self.pending or self.working) and not self.signals:
                self._fill()
                if not self.working and len(self.retired) == len(self._places()):
                    break
                self.view.show(self._progress())
                self._watch(self.launcher.poll(0.2))
                self._grow()
            self._wind_down()
        now = self._progress()
        self.view.show(now)
        first = self.signals[0] if self.signals else None
        return Outcome(self.plan, now.total, now.counts, first, tuple(self.retired))

    def _take(self, plan: Plan, retry: Sequence[str] = ()) -> None:
        """Note a plan, and do what its runs need that are new here."""
        self.ledger.announce(plan)
        self.store.write_plan(plan)
        self.ledger.plan(plan)
        self.plan = plan
        new = {run.id: run for run in plan.runs() if run.id not in self.runs}
        states = self.ledger.states(new)
        self.runs |= new
        self.states |= states
        self.counts.update(str(state.status) for state in states.values())
        for run in new:
            if self.states[run].status in retry:
                self._record(run, "retried")
            self._settle(run)

    def _grow(self) -> None:
        if self.search is None or self.signals:
            return
        for run, worker in self.working.items():
            size = worker.folder.metrics_size()
            if size != worker.judged:
                worker.judged = size
                step = self.search.prune(run, worker.folder.read_metrics())
                if step is not None:
                    worker.folder.write_prune(step)
        if self.results:
            self.results = 0
            bigger = self.search.grow(self._result, self.store.metrics)
            if bigger is not None:
                self._take(bigger)

    def _result(self, run: str) -> dict[str, Any] | None:
        return self.store.result(run, self.ledger.seals([run]).get(run))

    # --- One run ---

    def _settle(self, run: str, exit: str | None = None) -> None:
        """Do what `next_step` says until it says nothing new."""
        folder = self.store.rundir(run)
        while True:
            if exit is None and self.states[run].status == "started":
                exit = folder.lock.notes().get("exit")
            step = next_step(
                self.states[run],
                result=self._has_result(run, folder),
                alive=folder.lock.is_held(),
                exit=exit,
                attempts=self.attempts,
            )
            if step.record == "result":
                self._record_result(run, folder)
            elif step.record is not None:
                self._record(run, step.record, reason=exit or folder.lock.notes().get("error"))
                if step.record in ("failed", "oom"):
                    self.view.say(f"{step.record}: {self.runs[run].label}: {self._why(folder)}")
            if step.then == "again":
                continue
            if step.then == "start":
                self.pending.append(run)
            elif step.then in ("adopt", "wait"):
                self._adopt(run, folder)
            return

    def _has_result(self, run: str, folder: RunDir) -> bool:
        """A recorded result must still be whole; a new one is read when it is recorded."""
        if self.states[run].status in FINAL:
            return folder.read_result() is not None
        return folder.has_result()

    def _record(self, run: str, kind: str, **detail: Any) -> None:
        """Append an event; on a full disk wait until there is room, or a signal."""
        while True:
            try:
                state = self.ledger.record(run, kind, **detail)
                self.counts[self.states[run].status] -= 1
                self.counts[state.status] += 1
                self.states[run] = state
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL or self.signals:
                    raise
                self._pause()
                time.sleep(1)

    def _record_result(self, run: str, folder: RunDir) -> None:
        result = folder.read_result()
        if result is None:  # a name without whole content: a disk that lied; train it again
            folder.result.unlink()
            self._record(run, "interrupted", reason="result.json was not whole")
            self.pending.append(run)
            return
        self._record(run, result["status"], **result_detail(folder, result))
        self.results += 1
        self.view.say(_summary(self.runs[run], result, self.plan.task.metrics[0]))

    def _why(self, folder: RunDir) -> str:
        error = folder.lock.notes().get("error", "died without a word")
        return f"{error} (see {folder.log})"

    def _adopt(self, run: str, folder: RunDir) -> None:
        if self.states[run].status != "started":
            self._record(run, "started", step=newest(folder))
        name = folder.lock.notes().get("slot")
        slot = next((slot for slot in self.launcher.slots if slot.name == name), None)
        now = time.monotonic()
        self.working[run] = Working(self.runs[run], folder, slot, child=False, noted_at=now)

    # --- Slots ---

    def _fill(self) -> None:
        """Start what fits. A run that was out of memory comes last, alone on its place."""
        if self._paused():
            return
        self.pending.sort(key=lambda run: self.states[run].status == "oom")
        while not self.signals and (found := self._next()) is not None:
            run, slot = found
            self.pending.remove(run)
            folder = self.store.rundir(run)
            if folder.lock.is_held():  # a worker of a driver that died a moment ago
                self._settle(run)
                continue
            try:
                folder.create(self.runs[run].spec())
                folder.lock.clear()  # an old worker's last words are not the new one's
                self._record(run, "started", step=newest(folder), slot=slot.name)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self.pending.insert(0, run)
                self._pause()
                return
            self.working[run] = Working(
                self.runs[run], folder, slot, child=True, noted_at=time.monotonic()
            )
            self.launcher.start(folder, slot)

    def _next(self) -> tuple[str, Slot] | None:
        """The first run that there is a slot for, and the slot."""
        taken = {w.slot.name for w in self.working.values() if w.slot}
        reserved = {
            w.slot.place for run, w in self.working.items() if w.slot and self.states[run].oom
        }
        free = [
            slot
            for slot in self.launcher.slots
            if slot.name not in taken
            and slot.place not in reserved
            and slot.place not in self.retired
        ]
        if len(free) <= sum(w.slot is None for w in self.working.values()):  # strangers' slots
            return None
        for run in self.pending:
            for slot in free:
                if self._fits(run, slot):
                    return run, slot
        return None

    def _fits(self, run: str, slot: Slot) -> bool:
        """Alone on its place after it was out of memory; elsewhere after it lost its device."""
        if self.states[run].status == "oom":
            return all(w.slot is None or w.slot.place != slot.place for w in self.working.values())
        elsewhere = self._places() - self.retired.keys() - {slot.place}
        return run not in self.lost.get(slot.place, ()) or not elsewhere

    def _places(self) -> set[str]:
        return {slot.place for slot in self.launcher.slots}

    def _blame(self, run: str, place: str) -> None:
        """A run lost its device. One that does so on two places is itself to blame; a place where
        two different runs do is given up."""
        if any(run in runs for other, runs in self.lost.items() if other != place):
            for runs in self.lost.values():
                runs.discard(run)
            return
        self.lost.setdefault(place, set()).add(run)
        if len(self.lost[place]) >= LOSSES:
            self.retired[place] = None
            self.view.say(f"{place} is given up: {LOSSES} runs lost their device there")

    # --- Watching ---

    def _watch(self, exits: Mapping[str, int]) -> None:
        now = time.monotonic()
        for run, worker in list(self.working.items()):
            if run in exits or not worker.child:
                if worker.folder.lock.is_held():
                    worker.child = False  # a code is no proof of death
                else:
                    self._ended(run, worker, exits.get(run))
                    continue
            notes = worker.folder.lock.notes()
            if notes != worker.notes:
                worker.notes, worker.noted_at = notes, now
            elif now - worker.noted_at > self.hang_s and not worker.killed:
                worker.killed = True
                self.launcher.stop(worker.folder, now=True)

    def _ended(self, run: str, worker: Working, code: int | None) -> None:
        del self.working[run]
        folder = worker.folder
        exit = folder.lock.notes().get("exit") or (DISK_FULL if code == EXIT_DISK_FULL else None)
        if not folder.has_result():
            if worker.killed:
                self._record(run, "hung")
                self.view.say(f"hung: {worker.run.label}: no sign of life for {self.hang_s:.0f} s")
            elif exit == DISK_FULL:
                self._pause()
            elif exit in (LOST, ROTTEN):
                self._record(run, "died", step=newest(folder), code=code, reason=exit)
                self.view.say(f"{exit}: {worker.run.label}: {self._why(folder)}")
                if exit == LOST and worker.slot is not None:
                    self._blame(run, worker.slot.place)
            elif exit is None and code is not None and code != EXIT_TAKEN and not self.signals:
                self._record(run, "died", step=newest(folder), code=code)
                self.view.say(f"died: {worker.run.label}: {_code(code)} (see {folder.log})")
        elif worker.slot is not None:
            self.lost.pop(worker.slot.place, None)  # it works
        self._settle(run, exit)

    # --- Pausing and stopping ---

    def _pause(self) -> None:
        if self.pause is None:
            self.pause = full(self.store)
            self.view.say(self.pause)

    def _paused(self) -> bool:
        if self.pause and time.monotonic() - self.probed_at > 1:
            self.probed_at = time.monotonic()
            sizes = [path.stat().st_size for run in self.pending for path in self._newest(run)]
            if has_room(self.store.root, self.spare + 2 * max(sizes, default=0)):
                self.pause = None
                self.spare = min(2 * self.spare, MOST_SPARE_BYTES)
                self.view.say(ROOM_AGAIN)
        return self.pause is not None

    def _newest(self, run: str) -> list[Path]:
        return [path for _, path in self.store.rundir(run).checkpoints()[:1]]

    def _wind_down(self) -> None:
        """After a signal: every worker checkpoints and stops; after a second one it is killed."""
        if self.working:
            self.view.say("stopping: workers write their checkpoints (again: at once)")
        while self.working:
            now = len(self.signals) > 1
            for worker in self.working.values():
                self.launcher.stop(worker.folder, now)
            self.view.show(self._progress())
            self._watch(self.launcher.poll(0.2))

    def _progress(self) -> Progress:
        counts = {status: count for status, count in self.counts.items() if count}
        total = len(self.runs) + self.plan.to_come
        return Progress(total, counts, list(self.working.values()), self.pause)


def full(store: Store) -> str:
    """What is said while nothing can be written."""
    return f"the disk of {store.root} is full: make space, the sweep goes on"


ROOM_AGAIN = "there is room again: the sweep goes on"


def has_room(folder: Path, size: int) -> bool:
    """Can `size` bytes be written there? Tried, since a quota is not seen in what is free."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return False
    return True


def newest(folder: RunDir) -> int:
    """The step of the newest checkpoint, 0 for none."""
    return max((step for step, _ in folder.checkpoints()), default=0)


def _code(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _summary(run: PlannedRun, result: Mapping[str, Any], metric: Metric) -> str:
    """A run's end in words; `metric`: of the validation score that is told."""
    label = run.label
    if result["status"] != "finished":
        return f"{result['status']} at step {result.get('step')}: {label}"
    score = result.get("validation", {}).get(metric.key)
    figure = "" if score is None else f", validation {metric.told(score)}"
    return f"finished: {label}{figure}, {result.get('seconds', 0):.0f} s"
