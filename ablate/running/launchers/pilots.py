"""Trains on other hosts: an engine places pilots, and the driver gives each its runs through files.

This is the driver's side; `pilot` is the side of a node, and `store.pilots` has the files between
them. An engine has to do little (`Engine`). Every promise to a run is kept here and in
`ablate.store`: a pilot that is given up for dead is fenced, whatever it still does.

Used by `ablate sweep launcher=slurm` (running/launchers/slurm.py). A new message also needs
store/pilots.py and launchers/pilot.py, the side of a node.
"""

from __future__ import annotations

import math
import secrets
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ablate.run import EXIT_AWAY, RunDir, open_world_sizes
from ablate.running.gpus import GpuSet
from ablate.running.launchers import Progress, Slot, Tree, silent, usable
from ablate.running.launchers.fork import ForkServer
from ablate.running.launchers.local import CPU, check_groups, fixed_runs
from ablate.shared import (
    DISK_FULL_ERRORS,
    Failure,
    Notes,
    make_folder,
)
from ablate.store import (
    BEAT_S,
    LOOK_S,
    STALE_S,
    DriverBeat,
    HostLock,
    PilotDir,
    Pilots,
    store_token,
    write_proof,
)

# How long a pilot may be silent once the engine no longer lists its job, which the engine may just
# have forgotten.
GONE_S = 10.0
SILENT = "no sign of life"


@dataclass
class _Pilot:
    """A pilot, as its driver knows it."""

    folder: PilotDir
    slot_names: dict[str, str]  # by attempt, as ordered
    beat: Mapping[str, Any] = field(default_factory=dict)
    heard_at: float = field(default_factory=time.monotonic)
    stops: dict[str, bool] = field(default_factory=dict)
    close: bool = False
    late: bool = False  # its newest orders are not written: the disk is full
    slots: Sequence[Slot] = ()

    @property
    def job(self) -> str:
        return str(self.beat.get("job", ""))

    @property
    def held(self) -> int:
        """The number of devices that its runs have."""
        ranks = {slot.name: slot.ranks for slot in self.slots}
        return sum(ranks.get(slot, 1) for slot in self.slot_names.values())

    @property
    def is_open(self) -> bool:
        return bool(self.beat.get("open")) and not self.close


class PilotLauncher:
    """The launcher of an engine's pilots."""

    remote = True
    devices = GpuSet()

    def __init__(self, settings: Tree, cache: Path, engine: Callable[[str], Engine]) -> None:
        """`engine` makes the engine from the token of the store."""
        gpus = settings["gpus"] if settings["devices"] != "cpu" else 0
        supply = f"a node's job has {gpus} GPUs (launcher.gpus)" if gpus else "runs train on CPUs"
        check_groups(fixed_runs(settings["runs_per_gpu"]), settings["gpus_per_run"], gpus, supply)
        self.slots: Sequence[Slot] = ()
        self._settings, self._root, self._engine = settings, cache.parent.absolute(), engine
        self._all = Pilots(self._root / "pilots")
        self._token = store_token(self._root) or secrets.token_hex(8)
        self._jobs = Jobs(settings["name"], engine(self._token))
        self._server = ForkServer(CPU)  # for questions, which this host answers
        self._pilots: dict[str, _Pilot] = {}
        self._given: dict[str, _Pilot] = {}  # by attempt, also when it has ended
        self._exit_codes: dict[str, int] = {}
        self._looked_at = -math.inf
        self._beat = DriverBeat(self._root, BEAT_S)
        self._proven = False
        self._drives = False  # or somebody only asks what a sweep would cost

    @property
    def device(self) -> str:
        return "cuda" if self._settings["gpus"] and self._settings["devices"] != "cpu" else "cpu"

    @property
    def worlds(self) -> Sequence[int]:
        settings = self._settings
        return open_world_sizes(
            settings["gpus_per_run"], settings["gpus"] if self.device == "cuda" else 1
        )

    @property
    def most(self) -> int:
        return int(self._settings["jobs"]) * self._a_job

    @property
    def _a_job(self) -> int:
        """The number of slots in one job, for the least of `worlds`."""
        settings = self._settings
        groups = settings["gpus"] // self.worlds[0] * fixed_runs(settings["runs_per_gpu"])
        return int(settings["nodes"] * (groups if self.device == "cuda" else settings["cpus"]))

    def warm(self) -> None:
        self._server.warm()

    def ask(self, verb: str, question: Tree, progress: Progress = silent) -> dict[str, Any]:
        return self._server.ask(verb, question, progress)

    def unfit(self, slots: Sequence[Slot]) -> dict[str, str]:
        """Return {}: each pilot tries its own devices."""
        return {}

    # --- Runs -----------------------------------------------------------------------------------

    def start(self, run: RunDir, slot: Slot, settled: Tree | None = None) -> None:
        pilot = next((p for p in self._pilots.values() if slot in p.slots), None)
        if pilot is None or run.attempt is None:  # it went away this moment
            self._exit_codes[run.id] = EXIT_AWAY
            return
        pilot.slot_names[run.attempt] = slot.name
        self._given[run.attempt] = pilot
        self._order(pilot)

    def poll(self, wait_s: float = 0.0) -> dict[str, int]:
        until = time.monotonic() + wait_s
        while True:
            if time.monotonic() - self._looked_at >= LOOK_S:
                self._look()
            remaining_s = until - time.monotonic()
            if self._exit_codes or remaining_s <= 0:
                break
            time.sleep(min(remaining_s, 0.05))
        exit_codes, self._exit_codes = self._exit_codes, {}
        return exit_codes

    def alive(self, run: RunDir) -> bool:
        if run.attempt is None:
            return HostLock().alive(run)  # trained here by another launcher
        return self._holder(run) is not None

    def notes(self, run: RunDir) -> Notes:
        pilot = self._holder(run)
        worker_notes = {} if pilot is None else pilot.beat.get("runs", {})
        return Notes.from_tree(worker_notes.get(run.attempt)) or run.lock.notes()

    def stop(self, run: RunDir, now: bool = False) -> None:
        pilot = self._holder(run)
        if run.attempt is None:
            HostLock().stop(run, now)
        elif pilot is not None and pilot.stops.get(run.attempt) is not now:
            pilot.stops[run.attempt] = now
            self._order(pilot)

    def _holder(self, run: RunDir) -> _Pilot | None:
        pilot = self._given.get(run.attempt or "")
        return pilot if pilot is not None and run.attempt in pilot.slot_names else None

    def _order(self, pilot: _Pilot) -> None:
        pilot.stops = {
            attempt: at_once
            for attempt, at_once in pilot.stops.items()
            if attempt in pilot.slot_names
        }
        orders = {
            "runs": pilot.slot_names,
            "stop": pilot.stops,
            "close": pilot.close,
            "settings": {key: self._settings.get(key) for key in ("checkpoint_s", "origin")},
        }
        try:
            pilot.folder.write_orders(orders)
            pilot.late = False
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            pilot.late = True  # the next look tries again

    # --- Pilots ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read every pilot's files, and the engine's answer if it has come.

        Only the process that drives does so: before that another driver gives the orders, and the
        files may be old by the time it ends.
        """
        if not self._drives:
            return
        self._looked_at = moment = time.monotonic()
        self._beat.check()
        if self._beat.full is not None:  # while the disk is full nobody can write beats
            for pilot in self._pilots.values():
                pilot.heard_at = moment
        self._jobs.hear({pilot.job for pilot in self._pilots.values()}, bool(self.slots), moment)
        for folder in self._all.pilots():
            if folder.id not in self._pilots:
                orders = folder.orders()  # of a driver that is dead
                pilot = _Pilot(
                    folder,
                    slot_names=orders.get("runs", {}),
                    heard_at=moment if folder.is_fresh() else moment - STALE_S,
                    stops=orders.get("stop", {}),
                    close=bool(orders.get("close")),
                )
                self._pilots[folder.id] = pilot
                self._given |= dict.fromkeys(pilot.slot_names, pilot)
        for pilot in list(self._pilots.values()):
            beat = pilot.folder.beat()
            if beat and beat != pilot.beat:
                self._heard(pilot, beat, moment)
            if pilot.late:
                self._order(pilot)
            exit_code = self._gone(pilot, moment)
            if exit_code is not None:
                for attempt in pilot.slot_names:
                    self._exit_codes[_run_of(attempt)] = exit_code
                pilot.slot_names = {}
                self._jobs.leave(pilot.job, moment)
                del self._pilots[pilot.folder.id]
                pilot.folder.remove()
        self.slots = [slot for pilot in self._open_pilots for slot in pilot.slots]

    @property
    def _open_pilots(self) -> list[_Pilot]:
        """The pilots that take more runs."""
        return [pilot for pilot in self._pilots.values() if pilot.is_open]

    def _heard(self, pilot: _Pilot, beat: Mapping[str, Any], now: float) -> None:
        if not pilot.beat:  # the first time
            remarks = [*beat.get("remarks", ())]
            self._jobs.lines += remarks
            if beat.get("slots"):
                self._jobs.failures = []
            else:
                self._jobs.failures += remarks
        if beat.get("beat") != pilot.beat.get("beat") and (pilot.beat or pilot.folder.is_fresh()):
            pilot.heard_at = now
        pilot.beat = beat
        self._jobs.unseen.pop(pilot.job, None)
        pilot.slots = [Slot(**slot) for slot in beat.get("slots", ())]
        has_ended = False
        for attempt, exit_code in beat.get("ended", {}).items():
            if attempt in pilot.slot_names:
                del pilot.slot_names[attempt]
                self._exit_codes[_run_of(attempt)] = exit_code
                has_ended = True
        if has_ended:
            self._order(pilot)

    def _gone(self, pilot: _Pilot, now: float) -> int | None:
        """Return the exit code for the workers of a pilot that has ended, or is given up for dead;
        None for other pilots."""
        if pilot.beat.get("over"):
            return EXIT_AWAY
        silent_s = now - pilot.heard_at
        forgotten = self._jobs.running is not None and pilot.job not in self._jobs.running
        stale, ending = silent_s > STALE_S, SILENT
        if not (stale or (forgotten and silent_s > GONE_S)):
            return None
        if forgotten:
            answer = self._jobs.ended(pilot.job)
            if answer is None and not stale:
                return None
            ending = answer or ""
        else:
            self._jobs.cancel([pilot.job])
        self._jobs.lines.append(_farewell(pilot, ending))
        # What takes a job down with it is a death of its runs; what takes the host away is none.
        return -int(signal.SIGKILL) if ending.startswith(("FAILED", "OUT_OF_MEMORY")) else EXIT_AWAY

    # --- The engine -----------------------------------------------------------------------------

    def _begin(self) -> None:
        """Take the pilots over from the previous driver, who may have begun after this launcher was
        made."""
        make_folder(self._all.path)
        token = store_token(self._root)
        if token not in (None, self._token):
            self._token, self._jobs = token, Jobs(self._settings["name"], self._engine(token))
        write_proof(self._root, self._token)
        self._beat.begin()
        self._drives = True
        self._look()
        for pilot in self._pilots.values():
            self._order(pilot)  # with this driver's settings

    def offer(self, waiting: int, without: Collection[str]) -> Sequence[str]:
        if not self._drives:
            self._begin()
        self._beat.waiting = waiting
        if self._beat.full is not None:
            raise self._beat.full
        for pilot in self._pilots.values():
            if pilot.slots and not usable(pilot.slots, without) and not pilot.close:
                pilot.close = True
                self._order(pilot)
        if self._jobs.may_submit(time.monotonic()):
            self._fit(without)
        lines, self._jobs.lines = self._jobs.lines, []
        return lines

    def _fit(self, without: Collection[str]) -> None:
        """Request as many jobs as the runs need, `jobs` at most."""
        waiting = self._beat.waiting
        held_count = sum(pilot.held for pilot in self._open_pilots) // self.worlds[0]
        needed_count = math.ceil((waiting + held_count) / self._a_job)
        jobs = {pilot.job for pilot in self._open_pilots} | self._jobs.unseen.keys()
        lacking = min(self._settings["jobs"], needed_count) - len(jobs)
        if waiting and lacking > 0:
            if not self._proven:  # once the data is decoded: a node that doesn't see it is refused
                write_proof(self._root, self._token)
                self._proven = True
            self._jobs.submit(lacking, {place.partition("/")[0] for place in without})
        if not waiting:
            self._jobs.cancel_unseen(time.monotonic())

    def free(self) -> None:
        """Cancel the jobs that still wait. Pilots end by themselves when they hold no run."""
        self._jobs.end(cancel=self._drives and self._beat.end())
        self._server.free()


def _run_of(attempt: str) -> str:
    """Return the id of an attempt's run: attempts are named NUMBER/ID."""
    return attempt.rpartition("/")[2]


def _farewell(pilot: _Pilot, how: str) -> str:
    """Return the line on a pilot that is given up. `how`: how its job ended, in the engine's
    words."""
    ending = f"its job {pilot.job} has ended" + (f" ({how})" if how else "")
    return f"pilot {pilot.folder.id} is gone: {how if how == SILENT else ending}"


# --- The jobs of an engine ------------------------------------------------------------------------

# Requests to the engine and its answers, in threads: the driver waits for no answer.

AT_ONCE = 4  # questions how a job ended
ASK_S = 5.0  # between two questions to the engine
AGAIN_S = 60.0  # after it refused a job
LEAVES_S = 30.0  # between a pilot's last word and the end of its job
UNANSWERED = 3  # questions in a row, before a line says so, or ends what never began
UNSEEN = 3  # jobs in a row that ended before their pilots were seen: no more are requested
_TAKEN_AWAY = ("CANCELLED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL")  # whose pilots are not at fault


class Engine(Protocol):
    """An engine that places jobs on hosts. Each method may take long, and is called in a thread."""

    def submit(self, count: int, without: Collection[str]) -> list[str]:
        """Request `count` jobs, on none of the hosts `without`, each of which starts pilots.
        Returns their ids. Raises Failure with a line that says why there are none."""

    def states(self) -> Mapping[str, bool] | None:
        """Map every job of this store that has not ended to whether it runs; None where there is no
        answer now."""

    def ended(self, job: str) -> str:
        """Return how a job ended, in the engine's words; "" where it does not know."""

    def cancel(self, jobs: Collection[str]) -> None:
        """End the jobs."""

    def log(self, job: str) -> str:
        """Return the place of a job's output, in words."""


class Jobs:
    """The jobs of a store. `name`: the launcher's; `now`, in all methods: seconds of a monotonic
    clock."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.running: Mapping[str, bool] | None = None  # job -> does it run? The engine's last word
        self.unseen: dict[str, None] = {}  # jobs without a pilot so far
        self.failures: list[str] = []  # why jobs in a row were of no use
        self.lines: list[str] = []  # to be said
        self.not_before = -math.inf  # no job is requested until then
        self._name, self._engine = name, engine
        self._thread = ThreadPoolExecutor(1)  # one after the other, as they were asked
        self._ends = ThreadPoolExecutor(AT_ONCE)
        self._ended: dict[str, Future[str]] = {}
        self._left: dict[str, float] = {}  # jobs whose pilots have left, and when
        self._asked: Future[Mapping[str, bool] | None] | None = None
        self._asked_at = -math.inf
        self._submitted: Future[list[str]] | None = None
        self._answered = False  # has it ever?
        self._unanswered = 0  # questions in a row

    def hear(self, piloted: Collection[str], used: bool, now: float) -> None:
        """Take the engine's answers that have come, and ask again. `piloted`: jobs whose pilots
        are known; `used`: there are slots.

        Raises Failure where no job can be had, or none is of use.
        """
        if self._asked is not None and self._asked.done():
            self.running, self._asked = self._asked.result(), None
            self._unanswered = 0 if self.running is not None else self._unanswered + 1
            if self.running is not None:
                self._answered = True
                self._count_unseen(self.running, piloted, used, now)
            elif self._unanswered == UNANSWERED:
                if not (self._answered or piloted):
                    raise Failure(
                        f"launcher={self._name}: the cluster gives no answer; start ablate on a "
                        f"host that can ask for jobs"
                    )
                self.lines.append("the cluster gives no answer; runs that train go on")
        if self._asked is None and now - self._asked_at > ASK_S:
            self._asked_at, self._asked = now, self._thread.submit(self._engine.states)
        if self._submitted is not None and self._submitted.done():
            submitted, self._submitted = self._submitted, None
            self.not_before = now + ASK_S
            try:
                self.unseen |= dict.fromkeys(submitted.result())
            except Failure as error:
                if not (piloted or self.unseen):
                    raise
                self.lines.append(f"{error}; asking again in a minute")
                self.not_before = now + AGAIN_S
            self._asked, self._asked_at = None, -math.inf  # an answer from before lacks these jobs

    def _count_unseen(
        self, running: Mapping[str, bool], piloted: Collection[str], used: bool, now: float
    ) -> None:
        """Note the jobs whose pilots have not been seen yet, and those that ended before they were.
        Raises Failure where too many ended so."""
        for job in [job for job in self.unseen if job not in running]:
            ending = self.ended(job)
            if ending is None:
                continue
            del self.unseen[job]
            if job not in self._left and not ending.startswith(_TAKEN_AWAY):
                report = f"ended before its pilot was seen ({ending or 'nobody knows how'})"
                self.failures.append(f"job {job} {report}: see {self._engine.log(job)}")
                self.lines.append(self.failures[-1])
        for job, runs in running.items():
            ends = runs and now - self._left.get(job, -math.inf) < LEAVES_S
            if job not in piloted and not ends:  # one that was requeued comes again
                self.unseen[job] = None
        if len(self.failures) >= UNSEEN and not used:
            raise Failure(f"no node can be used: {self.failures[-1]}")

    def leave(self, job: str, now: float) -> None:
        """Note that a pilot of this job is gone."""
        self._left[job] = now

    def ended(self, job: str) -> str | None:
        """Return how a job ended, once the engine has answered; None until then. Each answer is
        used once: the next one may know more."""
        if job not in self._ended:
            self._ended[job] = self._ends.submit(self._engine.ended, job)
        return self._ended.pop(job).result() if self._ended[job].done() else None

    def may_submit(self, now: float) -> bool:
        """Return whether jobs may be requested now; not before it is known which there are."""
        return self.running is not None and self._submitted is None and now > self.not_before

    def submit(self, count: int, without: Collection[str]) -> None:
        self._submitted = self._thread.submit(self._engine.submit, count, without)

    def cancel(self, jobs: Collection[str]) -> Future[None]:
        return self._thread.submit(self._engine.cancel, jobs)

    def cancel_unseen(self, now: float) -> None:
        """End the jobs that wait in the engine's queue, since no run waits for them."""
        queued = [job for job in self.unseen if not (self.running or {}).get(job, True)]
        if queued:
            self.cancel(queued)
            self.not_before = now + ASK_S

    def end(self, cancel: bool) -> None:
        """Stop asking the engine. `cancel`: first end the jobs that wait in its queue."""
        queued = [job for job, runs in (self.running or {}).items() if not runs]
        if queued and cancel:
            self.cancel(queued).result()
        self._thread.shutdown(cancel_futures=True)
        self._ends.shutdown(wait=False, cancel_futures=True)
