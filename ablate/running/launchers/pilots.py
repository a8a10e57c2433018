"""Trains on other hosts: an engine places pilots, and the driver gives each its runs through files.

This is the driver's side; `pilot` is the side of a node, and `store.pilots` has the files between
them. An engine has to do little (`jobs.Engine`). Every promise to a run is kept here and in
`ablate.store`: a pilot that is given up for dead is fenced, whatever it still does.

Used by `ablate sweep` with the launcher of a cluster (launchers/engine.py). A new message also
needs store/pilots.py and launchers/pilot.py, the side of a node.
"""

from __future__ import annotations

import math
import secrets
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.run import EXIT_AWAY, RunDir, open_world_sizes
from ablate.running.gpus import GpuSet
from ablate.running.launchers import Progress, Slot, Tree, silent, usable
from ablate.running.launchers.fork import ForkServer
from ablate.running.launchers.jobs import Engine, JobEnd, Jobs
from ablate.running.launchers.local import CPU, check_groups, fixed_runs
from ablate.shared import (
    DISK_FULL_ERRORS,
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
        return int(
            settings.get("nodes", 1) * (groups if self.device == "cuda" else settings["cpus"])
        )

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
        stale, end = silent_s > STALE_S, JobEnd()
        if not (stale or (forgotten and silent_s > GONE_S)):
            return None
        if forgotten:
            answer = self._jobs.ended(pilot.job)
            if answer is None and not stale:
                return None
            end = answer or end
        else:
            self._jobs.cancel([pilot.job])
        self._jobs.lines.append(_farewell(pilot, end if forgotten else None))
        # What takes a job down with it is a death of its runs; what takes the host away is none.
        return -int(signal.SIGKILL) if end.kind == "failed" else EXIT_AWAY

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


def _farewell(pilot: _Pilot, end: JobEnd | None) -> str:
    """Return the line on a pilot that is given up. `end`: its job's; None: it is only silent."""
    if end is None:
        return f"pilot {pilot.folder.id} is gone: no sign of life"
    how = f" ({end.words})" if end.words else ""
    return f"pilot {pilot.folder.id} is gone: its job {pilot.job} has ended{how}"
