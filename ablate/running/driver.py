"""Drives a plan: decides the next step of every run, keeps the slots full, records events.

`ablate sweep` makes a `Drive`. Two pure functions, `next_step` and `assign`, decide from the
records alone, so the same command starts, resumes and extends a sweep. A diverged run has a result,
and is not retried.

Used by `ablate sweep` and by `Sweep.train` of Python (api/training.py). The decisions themselves
are in running/next_step.py and running/board.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ablate.planning import Grower, Plan, PlannedRun
from ablate.run import (
    DEVICE_LOST,
    DISK_FULL,
    EXIT_AWAY,
    EXIT_DISK_FULL,
    NO_DEVICE,
    NO_WORD,
    STOPPED,
    WRONG_UNIT,
    Metric,
    RunDir,
)
from ablate.running import attempts
from ablate.running.board import ActiveRun, Board, Folders, PlaceHealth
from ablate.running.disk import Disk
from ablate.running.launchers import Launcher, Slot, usable
from ablate.running.next_step import assign, is_death, next_step
from ablate.running.orders import carry_out, decide
from ablate.running.preflight import Decisions, decision_for
from ablate.running.time_left import TimeLeft
from ablate.running.view import LastingView, View
from ablate.running.world_sizes import Worlds, world_of
from ablate.shared import (
    DISK_FULL_ERRORS,
    ENDING_SIGNALS,
    Failure,
    noted_signals,
    signal_words,
)
from ablate.store import (
    Driver,
    Ledger,
    Liveness,
    Store,
    SweepProgress,
    Worker,
    blocked_runs,
    count_blocked,
    result_detail,
)

UNASKED = (
    "its worker got SIGTERM, which ablate had not sent: `kill`, the machine, or a program that "
    "signals its own process group (killpg, `kill 0`)"
)
DIED = "died"  # in place of the reason that a worker gave, once its end counts as an attempt
END_S = 10.0  # for killed workers to end
UNENDING_S = 60.0  # after SIGKILL: the kernel waits for a device or a file system
UNENDING = (
    f"its process goes on {UNENDING_S:.0f} s after SIGKILL, as where its GPU or its file system "
    f"gives no answer"
)


@dataclass(frozen=True)
class Outcome:
    """The end of a drive: its plan, its progress, and the signal that stopped it, if any.

    `retired`: the places that were given up because runs lost their device there. `stopped`: why
    the drive stopped by itself, with runs left. `misread`: a wrong declaration of a metric, by
    which the results of all runs would be misread, so that the drive stopped.
    """

    plan: Plan
    progress: SweepProgress
    signal: int | None
    retired: tuple[str, ...] = ()
    stopped: str | None = None
    misread: str | None = None

    @property
    def ended(self) -> str:
        """The way in which its driver ended, in words for `status`; "" where it drove to the
        end."""
        if self.signal is not None:
            return f"was stopped by {signal.Signals(self.signal).name}"
        reason = self.misread or self.stopped
        return f"ended: {reason}" if reason else ""


@dataclass
class Drive:
    """A drive of a plan, which trains its missing runs.

    `settings`: the launcher group. `search` may add runs after every result. `decisions`: from
    `preflight.settle_devices`. `worlds`: the number of devices of a run, where
    `launcher.gpus_per_run=auto` leaves it open.
    """

    plan: Plan
    store: Store
    ledger: Ledger
    launcher: Launcher
    settings: Mapping[str, Any]
    view: View
    search: Grower | None = None
    decisions: Decisions = field(default_factory=dict)
    worlds: Worlds = field(default_factory=dict)

    def run(self, retry: Sequence[str] = ()) -> Outcome:
        """Train the missing runs of the plan. Returns when no run is left, or after a signal.

        Runs whose status is in `retry` start afresh. SIGINT, SIGTERM and SIGHUP stop the workers,
        each with a checkpoint; a second one kills them.
        """
        self.max_attempts = self.settings["attempts"]
        self.hang_s = self.settings["hang_s"]
        self.results = 0  # recorded since the search was asked
        self.misread: str | None = None  # why no result can be read as its metrics are declared
        self.folders = Folders(self.store, self.ledger, self.launcher.remote)
        # Off this host the launcher knows more than the store: it has the engine's word, too.
        self.liveness: Liveness = self.launcher if self.launcher.remote else self.store.liveness
        with noted_signals(*ENDING_SIGNALS) as self.signals:
            self.view = LastingView(self.view, self.signals)
            self.disk = Disk(self.store, self.view.say)
            self.board = Board(self.ledger, self.disk, self.signals)
            self.time_left = TimeLeft(self.store)
            self.places = PlaceHealth(self.view.say, self.board)
            with self._store_in_place():
                self._train(retry)
        progress = self._progress()
        self.view.show(progress)
        return Outcome(
            self.plan,
            progress,
            signal=next(iter(self.signals), None),
            retired=tuple(self.places.retired),
            stopped=self.places.stopped,
            misread=self.misread,
        )

    def _train(self, retry: Sequence[str]) -> None:
        self._offer()
        self._take(self.plan, retry)
        self._check_earlier_units()
        while not (self.signals or self.places.stopped or self.misread):
            self.disk.check_store()
            self._obey()
            self._grow()  # at first by results that workers of a driver before left meanwhile
            if not (self.board.pending or self.board.active or self._owes_growth()):
                break
            self._offer()
            self._fill()
            if not self.board.active and self._has_no_place():
                break
            self.view.show(self._progress())
            self._watch(self.launcher.poll(0.2))
            self._stop_waiting()
            if self.store.asked_to_stop():
                self.signals.append(signal.SIGTERM)
        self._wind_down()

    def _take(self, plan: Plan, retry: Sequence[str] = ()) -> None:
        """Record a plan, and take the next step of its new runs."""
        self.ledger.announce(plan)
        self.store.write_plan(plan)
        self.ledger.plan(plan)
        self.plan = plan
        new = self.board.add(plan)
        self.folders.add(new)
        for run in new:
            if self.board.states[run].status in retry:
                self.board.record(run, "retried")
            self._settle(run)

    def _grow(self) -> None:
        if self.search is None or self.signals or self.disk.waiting:
            return
        if self.search.prunes:
            self._prune(self.search)
        # A look, trials and a bigger plan are kilobytes, written only where there is room for all:
        # none of them can be asked for again.
        if self.results and self.disk.has_room_now():
            self.results = 0
            bigger = self.search.grow(self._recorded_result, self.store.metrics)
            if bigger is not None:
                self._take(bigger)

    def _owes_growth(self) -> bool:
        """Return whether results wait for a search or a look, since the disk is full."""
        return self.search is not None and self.results > 0

    def _prune(self, search: Grower) -> None:
        """Let the search judge every run with a worker that has new metrics."""
        for run, active in self.board.active.items():
            size = active.folder.metrics_size()
            if size == active.judged_bytes:
                continue
            step = search.prune(run, active.folder.read_metrics())
            if step is not None:
                try:
                    active.folder.write_prune(step)
                except OSError as error:
                    if error.errno not in DISK_FULL_ERRORS:
                        raise
                    self.disk.ran_out()
                    return
            active.judged_bytes = size

    def _recorded_result(self, run: str) -> dict[str, Any] | None:
        """Return the result of a run, as it was recorded. Raises Failure where it was edited."""
        return self.store.result(run, self.ledger.seals([run]).get(run))

    # --- What `ablate run` orders ---

    def _obey(self) -> None:
        for order, runs, file in self.store.orders():
            for run in runs:
                if run in self.board.runs:
                    self._obey_one(order, run)
                else:
                    carry_out(self.store, self.ledger, order, run)
            file.unlink(missing_ok=True)

    def _obey_one(self, order: str, run: str) -> None:
        state, label = self.board.states[run], self.board.runs[run].label
        effect = decide(self.store, self.ledger, order, run, state)
        if effect.event is None:
            return  # whoever ordered it says why
        self.board.record(run, effect.event, **effect.detail)
        self.view.say(f"{effect.event}: {label}, by `ablate run`")
        if run not in self.board.active:  # else `_watch` stops its worker
            self.board.drop(run)
            self._settle(run)
        if order == "undo":  # its children were blocked, or still wait for its worker to stop
            for child in self.board.children(run):
                self.board.drop(child)
                self._settle(child)

    # --- One run ---

    def _settle(self, run: str, exit_reason: str | None = None) -> None:
        """Take the steps of `next_step` until none is left."""
        folder = self.store.rundir(run)
        while True:
            if exit_reason is None and self.board.states[run].status == "started":
                exit_reason = self.liveness.notes(folder).exit
            alive = self.liveness.alive(folder)  # first: a result that it left meanwhile is seen
            result, refusal = folder.examine_result()
            step = next_step(
                self.board.states[run],
                result=result is not None,
                refused=bool(refusal),
                alive=alive,
                exit_reason=exit_reason,
                max_attempts=self.max_attempts,
            )
            if result is not None and step.record == "result":
                attempts.publish(self.store, run)
                self._record_result(run, folder, result)
            elif refusal and step.record is not None and step.action == "again":
                self._refuse(run, folder, step.record, refusal)
                exit_reason = DIED
            elif step.record is not None:
                reason = exit_reason or self.liveness.notes(folder).error
                self.board.record(run, step.record, reason=reason)
                if step.record in ("failed", "oom"):
                    error = self._error(folder)
                    self._say(step.record, run, error)
                    if exit_reason == WRONG_UNIT:  # so do all runs, however long they train
                        self.misread = f"run {self.board.runs[run].label}: {error}"
            if step.action == "again":
                continue
            if step.action == "start":
                self.board.put(run)
            elif step.action in ("adopt", "wait"):
                self._adopt(run, folder)
            break
        for child in self.board.freed_by(run):
            self._settle(child)

    def _record_result(self, run: str, folder: RunDir, result: Mapping[str, Any]) -> None:
        self.board.record(run, result["status"], **result_detail(folder, result))
        self.results += 1
        self._check_units(run, result)
        self.view.say(result_line(self.board.runs[run], result, self.plan.task.metrics[0]))

    def _check_units(self, run: str, result: Mapping[str, Any]) -> None:
        """Set `misread` where a result has percents and its metric is declared to hold shares. The
        result itself is right, and stays: the declaration has to change."""
        for metric in self.plan.task.metrics:
            value = result.get("test", {}).get(metric.key)
            if value is None:
                continue
            reason = metric.no_share(value)
            if reason:
                self.misread = f"run {self.board.runs[run].label}: {reason}"

    def _check_earlier_units(self) -> None:
        """Check one result of an earlier drive, so that none trains in vain."""
        for run, state in self.board.states.items():
            if state.status == "finished":
                self._check_units(run, self.store.rundir(run).read_result() or {})
                return

    def _refuse(self, run: str, folder: RunDir, event: str, problem: str) -> None:
        """Remove a file in a result's place that is no result, once that is recorded: after a crash
        between the two it is recorded again."""
        problem = f"its result was refused: {folder.result} {problem}"
        self.board.record(run, event, step=folder.newest_step(), reason=problem)
        folder.lock.add(error=problem)
        self._say(event, run, problem)
        folder.result.unlink(missing_ok=True)

    def _say(self, event: str, run: str, text: str) -> None:
        self.view.say(f"{event}: {self.board.runs[run].label}: {text}")

    def _error(self, folder: RunDir) -> str:
        error = self.liveness.notes(folder).error or NO_WORD
        return f"{error} (see {self.store.rundir(folder.id).log})"

    def _adopt(self, run: str, folder: RunDir) -> None:
        if self.board.states[run].status not in ("started", "skipped"):
            self.board.record(run, "started", step=folder.newest_step())
        name = self.liveness.notes(folder).slot
        slot = next((slot for slot in self.launcher.slots if slot.name == name), None)
        planned = self.board.runs[run]
        self.board.active[run] = ActiveRun(planned, folder, slot, self.liveness, False, since=0.0)

    # --- Slots ---

    def _fill(self) -> None:
        """Start the runs that fit on free slots."""
        if self.disk.lacks(self.board.pending):
            return
        while not self.signals:
            start = self._next_start()
            if start is None:
                return
            run, slot = start
            self.board.pending.remove(run)
            current = self.store.rundir(run)
            if self.liveness.alive(current) or current.has_result():  # another driver's
                self._settle(run)
                continue
            planned = self.board.runs[run]
            try:
                folder, attempt = self.folders.begin(run)
                folder.create(planned.spec.tree)
                folder.lock.clear()  # an old worker's last words are not the new one's
                step = folder.newest_step()
                self.board.record(run, "started", step=step, slot=slot.name, **attempt)
                self.folders.note_begun(run, **attempt)
            except OSError as error:
                if error.errno not in DISK_FULL_ERRORS:
                    raise
                self.board.pending.insert(0, run)
                self.disk.ran_out()
                return
            # A run that trains in this process would not hear of a signal that has come already.
            starts = not self.signals
            neighbours = self.board.neighbours(slot)
            self.board.active[run] = ActiveRun(
                planned, folder, slot, self.launcher, child=starts, neighbours=neighbours
            )
            if starts:
                self.launcher.start(folder, slot, decision_for(self.decisions, planned))

    def _offer(self) -> None:
        try:
            devices = len(self.board.pending)
            if self.worlds:
                devices = sum(self._worlds().values())
            for line in self.launcher.offer(devices, self.places.retired):
                self.view.say(line)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            self.disk.ran_out()

    def _next_start(self) -> tuple[str, Slot] | None:
        board = self.board
        undivided = self.places.undivided
        held_slots = {
            run: active.slot
            for run, active in board.active.items()
            if not active.leaves or (active.slot is not None and active.slot.place in undivided)
        }
        return assign(
            board.pending,
            held_slots,
            self.launcher.slots,
            board.states,
            self.places,
            self._worlds() if self.worlds else {},
        )

    def _worlds(self) -> dict[str, int]:
        """Map each run that waits to the number of devices that it gets."""
        return {run: world_of(self.worlds, self.board.runs[run]) for run in self.board.pending}

    def _has_no_place(self) -> bool:
        """Return whether no place is left, nor any to come."""
        usable_slots = usable(self.launcher.slots, self.places.retired)
        return not (usable_slots or self.launcher.remote)

    # --- Watching ---

    def _watch(self, exit_codes: Mapping[str, int]) -> None:
        moment = time.monotonic()
        for run, active in list(self.board.active.items()):
            active.exit_code = exit_codes.get(run, active.exit_code)
            if run in exit_codes or not active.child:
                if active.liveness.alive(active.folder):
                    active.child = False  # a code is no proof of death
                else:
                    self._end(run, active)
                    continue
            if self.board.states[run].status == "skipped":
                active.stop()
            notes = active.liveness.notes(active.folder)
            if notes != active.notes:
                active.notes, active.noted_at = notes, moment
            elif moment - active.noted_at > self.hang_s and not active.is_hung:
                active.is_hung = True
                active.stop(now=True)
            killed_at = active.killed_at
            if killed_at is not None and moment - killed_at > UNENDING_S and not active.is_left:
                self._leave(run, active)

    def _leave(self, run: str, active: ActiveRun) -> None:
        """Wait no longer for a worker that SIGKILL does not end: the kernel itself waits for a GPU
        that fell off the bus, say, or for a file system whose server is gone. Its slot stays taken,
        and other runs keep off its GPU."""
        active.is_left = True
        self._say("not ended", run, UNENDING)
        if active.slot is not None and active.slot.device != "cpu":
            self.places.give_up(active.slot.place, f"{active.run.label}: {UNENDING}")

    def _stop_waiting(self) -> None:
        """Stop the sweep where all workers were left, and no run can start."""
        left = [active.run.label for active in self.board.active.values() if active.is_left]
        if left and len(left) == len(self.board.active) and self._next_start() is None:
            self.places.stopped = f"{left[0]}: {UNENDING}"

    def _end(self, run: str, active: ActiveRun) -> None:
        del self.board.active[run]
        folder, exit_code = active.folder, active.exit_code
        if exit_code not in (None, EXIT_AWAY):
            self.folders.ended(folder)
        exit_reason = active.liveness.notes(folder).exit
        if not exit_reason:
            exit_reason = DISK_FULL if exit_code == EXIT_DISK_FULL else None
        if self.board.states[run].status == "skipped":  # as it was asked to
            self._settle(run, exit_reason)
            return
        died = False
        if folder.has_result():
            if active.slot is not None:
                self.places.note_result(active.slot.place)
        elif active.is_hung:
            error = f"no sign of life for {self.hang_s:.0f} s (launcher.hang_s), so it was killed"
            folder.lock.add(error=error)
            self.board.record(run, "hung")
            self._say("hung", run, self._error(folder))
        else:
            died = self._judge_end(run, active, exit_reason)
            if died and exit_reason in (STOPPED, DISK_FULL):
                exit_reason = DIED
        if not self.signals or folder.has_result():
            has_attempts = self.board.states[run].attempts < self.max_attempts
            self.places.judge(active, exit_reason, died, has_attempts)
        self._settle(run, exit_reason)

    def _judge_end(self, run: str, active: ActiveRun, exit_reason: str | None) -> bool:
        """Note the end of a worker that left no result: record it where it counts as an attempt,
        and note a full disk or a place without a working device. Returns whether it counts."""
        folder, exit_code = active.folder, active.exit_code
        was_asked = active.is_stopping or bool(self.signals)
        if self.launcher.remote:  # a job that ends stops its workers
            was_asked |= exit_reason == STOPPED
        room = exit_reason == DISK_FULL and self.disk.is_plenty([run, *self.board.active])
        died = is_death(exit_reason, exit_code, was_asked=was_asked, room=room)
        if died:
            if exit_reason is None and not active.liveness.notes(folder).error:
                folder.lock.add(error=exit_words(exit_code or 0))
            elif exit_reason == STOPPED:
                folder.lock.add(error=UNASKED)
            details = {} if exit_reason is None else {"reason": exit_reason}
            self.board.record(run, "died", step=folder.newest_step(), code=exit_code, **details)
            self._say(exit_reason or "died", run, self._error(folder))
        elif exit_reason == DISK_FULL:
            self.disk.ran_out()
        if exit_reason == DEVICE_LOST and active.slot is not None:
            self.places.note_lost_device(run, active.slot.place)
        elif exit_reason == NO_DEVICE and active.slot is not None:
            reason = f"{active.run.label}: {self._error(folder)}"
            self.places.note_no_device(active, active.slot, reason)
        return died

    # --- Stopping, and telling ---

    def _wind_down(self) -> None:
        """Stop every worker with a checkpoint after a signal; kill them after a second one."""
        if self.board.active:
            self.view.say("stopping: workers write their checkpoints (a second signal kills them)")
        while not all(active.is_left for active in self.board.active.values()):
            self.disk.check_store()
            if self.store.asked_to_stop():  # `ablate stop` of another host, which may be the second
                self.signals.append(signal.SIGTERM)
            at_once = len(self.signals) > 1
            for active in self.board.active.values():
                active.stop(at_once)
            self.view.show(self._progress())
            self._watch(self.launcher.poll(0.2))

    @contextmanager
    def _store_in_place(self) -> Iterator[None]:
        """Turn an error in the `with` block into the loss of the store, where the store is lost.
        Then the workers are killed: what they would write belongs to nobody, or to another
        store."""
        try:
            self.disk.check_store()
            yield
        except (Failure, OSError, sqlite3.Error) as error:
            if self.disk.has_store():
                raise
            active = self.board.active
            for run in active.values():
                with contextlib.suppress(OSError):
                    run.stop(now=True)
            remaining = set(active)
            until = time.monotonic() + END_S
            while remaining and not self.launcher.remote and time.monotonic() < until:
                remaining -= self.launcher.poll(0.2).keys()
                remaining -= {run for run in remaining if not active[run].child}
            try:
                self.disk.check_store()
            except Failure as lost:
                raise lost from error

    def _progress(self) -> SweepProgress:
        board = self.board
        stuck = blocked_runs(board.states, board.parents)
        progress = SweepProgress(
            sweep=self.plan.name,
            total=len(board.runs) + self.plan.to_come,
            counts=count_blocked(board.counts, stuck, board.states),
            workers=[Worker(a.run, a.slot_name, a.notes, a.folder) for a in board.active.values()],
            waiting=self.disk.waiting,
            states=board.states,
            blocked=stuck,
            driver=Driver(os.getpid(), self.plan.name),
            standing=self.search.standing if self.search is not None else {},
        )
        left_s = self.time_left.seconds(self.plan, progress, self.ledger)
        return dataclasses.replace(progress, left_s=left_s)


def exit_words(exit_code: int) -> str:
    """Describe a worker's exit code."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    words = signal_words(-exit_code)
    if -exit_code == signal.SIGKILL:
        return f"{words}, which the kernel sends where memory runs out"
    return words


def result_line(run: PlannedRun, result: Mapping[str, Any], metric: Metric) -> str:
    """Describe a run's end. `metric`: the name of the validation score in the line."""
    if result["status"] != "finished":
        return f"{result['status']} at step {result.get('step')}: {run.label}"
    scores = result.get("validation")
    figure = ""
    if not scores:
        figure = ", which logged no validation"
    elif scores.get(metric.key) is not None:
        figure = f", validation {metric.printed(scores[metric.key])}"
    seconds = result.get("seconds", 0)
    return f"finished: {run.label}{figure}, {seconds:.0f} s"
