"""Drives a plan: decides the next step of every run, keeps the slots full, records events.

One pure function decides the next step, `next_step`, and another the slot, `assign`: the same
command starts, resumes and extends.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.planning.cell import PlannedRun
from ablate.planning.plan import Plan
from ablate.planning.search import Grower
from ablate.running.assign import assign
from ablate.running.folders import Folders
from ablate.running.launchers import Launcher, Slot
from ablate.running.next_step import is_death, next_step
from ablate.running.orders import carry_out, decide, detail_of
from ablate.running.outcome import Outcome
from ablate.running.places import PlaceHistory
from ablate.running.presence import Presence
from ablate.running.queue import RunQueue
from ablate.running.room import Room
from ablate.running.settle import Decisions, settled
from ablate.running.states import RunStates
from ablate.running.told import View, summary, words_of
from ablate.running.working import Working
from ablate.shared.files import FULL
from ablate.shared.rundir import (
    DISK_FULL,
    EXIT_AWAY,
    EXIT_DISK_FULL,
    LOST,
    NO_DEVICE,
    STOPPED,
    RunDir,
)
from ablate.shared.signals import ENDING, noted
from ablate.store.events import HELD
from ablate.store.ledger import Ledger, result_detail
from ablate.store.liveness import Liveness
from ablate.store.progress import (
    Driver,
    SweepProgress,
    Worker,
    blocked,
    with_blocked,
)
from ablate.store.store import Store

UNASKED = "its worker stopped, which nobody had asked it to"
DIED = "died"  # what a worker's word comes to that counts as an attempt


def drive(
    plan: Plan,
    store: Store,
    ledger: Ledger,
    launcher: Launcher,
    settings: Mapping[str, Any],
    view: View,
    retry: Sequence[str] = (),
    search: Grower | None = None,
    decisions: Decisions | None = None,
) -> Outcome:
    """Train the missing runs of a plan. Returns when no run is left, or after a signal.

    `settings`: the launcher group. Runs whose status is in `retry` start afresh. `search` may add
    runs after every result. `decisions`: from `settle`. SIGINT, SIGTERM and SIGHUP stop the
    workers, each with a checkpoint; a second one kills them.
    """
    return _Drive(plan, store, ledger, launcher, settings, view, search, decisions or {}).run(retry)


class _Drive:
    def __init__(
        self,
        plan: Plan,
        store: Store,
        ledger: Ledger,
        launcher: Launcher,
        settings: Mapping[str, Any],
        view: View,
        search: Grower | None,
        decisions: Decisions,
    ) -> None:
        self.store, self.ledger, self.launcher, self.view = store, ledger, launcher, view
        self.attempts, self.hang_s = settings["attempts"], settings["hang_s"]
        self.plan, self.search, self.decisions = plan, search, decisions
        self.runs: dict[str, PlannedRun] = {}
        self.results = 0  # recorded since the search was asked
        self.working: dict[str, Working] = {}
        self.room, self.presence = Room(store, view.say), Presence(store, launcher)
        self.places = PlaceHistory(view.say, self.runs)
        self.folders = Folders(store, ledger, launcher.remote)
        # Off this host the launcher knows more than the store: it has the engine's word, too.
        self.liveness: Liveness = launcher if launcher.remote else store.liveness

    def run(self, retry: Sequence[str]) -> Outcome:
        with noted(*ENDING) as self.signals:
            self.kept = RunStates(self.ledger, self.room, self.signals)
            self.queue = RunQueue(self.kept.states, self.ledger.wanted())
            with self.presence.kept(self.working):
                self._train(retry)
        self.view.show(now := self._progress())
        first = next(iter(self.signals), None)
        return Outcome(self.plan, now, first, tuple(self.places.retired), self.places.stopped)

    def _train(self, retry: Sequence[str]) -> None:
        self._offer()
        self._take(self.plan, retry)
        while not (self.signals or self.places.stopped):
            self.presence.check()
            self._obey()
            if not (self.queue.pending or self.working):
                break
            self._offer()
            self._fill()
            if not self.working and self._nowhere():
                break
            self.view.show(self._progress())
            self._watch(self.launcher.poll(0.2))
            self._grow()
            if self.store.asked_to_stop():
                self.signals.append(signal.SIGTERM)
        self._wind_down()

    def _take(self, plan: Plan, retry: Sequence[str] = ()) -> None:
        """Record a plan, and take the next step of its new runs."""
        self.ledger.announce(plan)
        self.store.write_plan(plan)
        self.ledger.plan(plan)
        self.plan = plan
        new = {run.id: run for run in plan.runs() if run.id not in self.runs}
        self.runs |= new
        self.queue.add(new.values())
        self.kept.add(new)
        self.folders.add(new)
        for run in new:
            if self.kept.states[run].status in retry:
                self.kept.record(run, "retried")
            self._settle(run)

    def _grow(self) -> None:
        if self.search is None or self.signals:
            return
        for run, worker in self.working.items() if self.search.prunes else ():
            size = worker.folder.metrics_size()
            if size != worker.judged:
                worker.judged = size
                step = self.search.prune(run, worker.folder.read_metrics())
                if step is not None:
                    worker.folder.write_prune(step)
        if self.results:
            self.results = 0
            bigger = self.search.grow(self.folders.result, self.store.metrics)
            if bigger is not None:
                self._take(bigger)

    # --- What `ablate run` orders ---

    def _obey(self) -> None:
        for order, runs, file in self.store.orders():
            for run in runs:
                if run in self.runs:
                    self._do(order, run)
                else:
                    carry_out(self.store, self.ledger, order, run)
            file.unlink(missing_ok=True)

    def _do(self, order: str, run: str) -> None:
        state, label = self.kept.states[run], self.runs[run].label
        alive = run in self.working or self.liveness.alive(self.store.rundir(run))
        event = decide(self.store, self.ledger, order, run, state, alive).event
        if event is None:
            return  # whoever ordered it says why
        self.kept.record(run, event, **detail_of(self.store, self.ledger, event, run, state))
        self.view.say(f"{event}: {label}, by `ablate run`")
        if order == "first":
            self.queue.want(run)
        elif run not in self.working:  # else `_watch` stops its worker
            self.queue.drop(run)
            self._settle(run)
        if order == "undo":  # what was blocked, or still waits where its worker has not stopped yet
            for child in self.queue.children(run):
                self.queue.drop(child)
                self._settle(child)

    # --- One run ---

    def _settle(self, run: str, exit: str | None = None) -> None:
        """Take the steps of `next_step` until none is left."""
        folder = self.store.rundir(run)
        while True:
            if exit is None and self.kept.states[run].status == "started":
                exit = self.liveness.notes(folder).get("exit")
            alive = self.liveness.alive(folder)  # first: a result that it left meanwhile is seen
            result, refusal = folder.examine_result()
            step = next_step(
                self.kept.states[run],
                result=result is not None,
                refused=bool(refusal),
                alive=alive,
                exit=exit,
                attempts=self.attempts,
            )
            if result is not None and step.record == "result":
                self.folders.publish(run)
                self._record_result(run, folder, result)
            elif refusal and step.record is not None and step.then == "again":
                self._refuse(run, folder, step.record, refusal)
                exit = DIED
            elif step.record is not None:
                self.kept.record(
                    run, step.record, reason=exit or self.liveness.notes(folder).get("error")
                )
                if step.record in ("failed", "oom"):
                    self.view.say(f"{step.record}: {self.runs[run].label}: {self._why(folder)}")
            if step.then == "again":
                continue
            if step.then == "start":
                self.queue.put(run)
            elif step.then in ("adopt", "wait"):
                self._adopt(run, folder)
            break
        for child in self.queue.freed_by(run):
            self._settle(child)

    def _record_result(self, run: str, folder: RunDir, result: Mapping[str, Any]) -> None:
        self.kept.record(run, result["status"], **result_detail(folder, result))
        self.results += 1
        self.view.say(summary(self.runs[run], result, self.plan.task.metrics[0]))

    def _refuse(self, run: str, folder: RunDir, event: str, why: str) -> None:
        """Remove what lies in a result's place, once that is recorded: after a crash between the
        two it is recorded again."""
        why = f"its result was refused: {folder.result} {why}"
        self.kept.record(run, event, step=folder.newest_step(), reason=why)
        folder.lock.add(error=why)
        self.view.say(f"{event}: {self.runs[run].label}: {why}")
        folder.result.unlink(missing_ok=True)

    def _why(self, folder: RunDir) -> str:
        error = self.liveness.notes(folder).get("error", "its worker died without an error message")
        return f"{error} (see {self.store.rundir(folder.id).log})"

    def _adopt(self, run: str, folder: RunDir) -> None:
        if self.kept.states[run].status not in ("started", *HELD):
            self.kept.record(run, "started", step=folder.newest_step())
        name = self.liveness.notes(folder).get("slot")
        slot = next((slot for slot in self.launcher.slots if slot.name == name), None)
        self.working[run] = Working(self.runs[run], folder, slot, self.liveness, False, since=0.0)

    # --- Slots ---

    def _fill(self) -> None:
        """Start the runs that fit on free slots."""
        if self.room.lacks(self.queue.pending):
            return
        while not self.signals and (found := self._next()) is not None:
            run, slot = found
            self.queue.pending.remove(run)
            current = self.store.rundir(run)
            if self.liveness.alive(current) or current.has_result():  # of another driver; given up
                self._settle(run)
                continue
            try:
                folder, attempt = self.folders.begin(run)
                folder.create(self.runs[run].spec())
                folder.lock.clear()  # an old worker's last words are not the new one's
                step = folder.newest_step()
                self.kept.record(run, "started", step=step, slot=slot.name, **attempt)
                self.folders.began(run)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self.queue.pending.insert(0, run)
                self.room.ran_out()
                return
            self.working[run] = Working(self.runs[run], folder, slot, self.launcher, child=True)
            self.launcher.start(folder, slot, settled(self.decisions, self.runs[run]))

    def _offer(self) -> None:
        try:
            for line in self.launcher.offer(len(self.queue.pending), self.places.retired):
                self.view.say(line)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.room.ran_out()

    def _next(self) -> tuple[str, Slot] | None:
        working = {run: worker.slot for run, worker in self.working.items() if not worker.leaves}
        slots, states, queue = self.launcher.slots, self.kept.states, self.queue
        lost, retired = self.places.lost, self.places.retired
        return assign(queue.pending, working, slots, states, lost, retired, queue.first)

    def _nowhere(self) -> bool:
        """Is no place left, nor any to come?"""
        left = {slot.place for slot in self.launcher.slots}.difference(self.places.retired)
        return not (left or self.launcher.remote)

    # --- Watching ---

    def _watch(self, exits: Mapping[str, int]) -> None:
        now = time.monotonic()
        for run, worker in list(self.working.items()):
            worker.code = exits.get(run, worker.code)
            if run in exits or not worker.child:
                if worker.by.alive(worker.folder):
                    worker.child = False  # a code is no proof of death
                else:
                    self._ended(run, worker)
                    continue
            if self.kept.states[run].status in HELD:
                worker.stop()
            notes = worker.by.notes(worker.folder)
            if notes != worker.notes:
                worker.notes, worker.noted_at = notes, now
            elif now - worker.noted_at > self.hang_s and not worker.killed:
                worker.killed = True
                worker.stop(now=True)

    def _ended(self, run: str, worker: Working) -> None:
        del self.working[run]
        folder, code = worker.folder, worker.code
        if code not in (None, EXIT_AWAY):
            self.folders.ended(folder)
        exit = worker.by.notes(folder).get("exit")
        exit = exit or (DISK_FULL if code == EXIT_DISK_FULL else None)
        if self.kept.states[run].status in HELD:  # as it was asked to
            self._settle(run, exit)
            return
        died = False
        if folder.has_result():
            if worker.slot is not None:
                self.places.works(worker.slot.place)
        elif worker.killed:
            self.kept.record(run, "hung")
            self.view.say(f"hung: {worker.run.label}: no sign of life for {self.hang_s:.0f} s")
        else:
            died = self._left(run, worker, exit)
            exit = DIED if died and exit in (STOPPED, DISK_FULL) else exit
        if not self.signals or folder.has_result():
            more = self.kept.states[run].attempts < self.attempts
            self.places.ended(worker, exit, died, more, self.kept.states, self.working.values())
        self._settle(run, exit)

    def _left(self, run: str, worker: Working, exit: str | None) -> bool:
        """Record that a worker left without a result, where that counts as an attempt."""
        folder, code = worker.folder, worker.code
        asked = worker.asked or bool(self.signals)
        asked |= exit == STOPPED and self.launcher.remote  # a job that ends stops its workers
        room = exit == DISK_FULL and self.room.is_plenty([run, *self.working])
        died = is_death(exit, code, asked=asked, room=room)
        if died:
            if exit in (None, STOPPED):
                folder.lock.add(error=words_of(code or 0) if exit is None else UNASKED)
            why = {} if exit is None else {"reason": exit}
            self.kept.record(run, "died", step=folder.newest_step(), code=code, **why)
            self.view.say(f"{exit or 'died'}: {worker.run.label}: {self._why(folder)}")
        elif exit == DISK_FULL:
            self.room.ran_out()
        if exit == LOST and worker.slot is not None:
            self.places.blame(run, worker.slot.place)
        elif exit == NO_DEVICE and worker.slot is not None:
            self.places.give_up(worker.slot.place, f"{worker.run.label}: {self._why(folder)}")
        return died

    # --- Stopping, and telling ---

    def _wind_down(self) -> None:
        """After a signal: every worker checkpoints and stops; after a second one it is killed."""
        if self.working:
            self.view.say("stopping: workers write their checkpoints (a second signal kills them)")
        while self.working:
            self.presence.check()
            now = len(self.signals) > 1
            for worker in self.working.values():
                worker.stop(now)
            self.view.show(self._progress())
            self._watch(self.launcher.poll(0.2))

    def _progress(self) -> SweepProgress:
        stuck = blocked(self.kept.states, self.queue.parents)
        return SweepProgress(
            sweep=self.plan.name,
            total=len(self.runs) + self.plan.to_come,
            counts=with_blocked(self.kept.counts, stuck, self.kept.states),
            workers=[Worker(w.run, w.place, w.notes, w.folder) for w in self.working.values()],
            waiting=self.room.waiting,
            states=self.kept.states,
            blocked=stuck,
            driver=Driver(os.getpid(), self.plan.name),
            standing=self.search.standing if self.search is not None else {},
        )
