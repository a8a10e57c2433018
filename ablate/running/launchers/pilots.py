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
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate.run import EXIT_AWAY, RunDir, open_world_sizes
from ablate.running.gpus import GpuSet
from ablate.running.launchers import Progress, Slot, Tree, silent, usable
from ablate.running.launchers.fork import ForkServer
from ablate.running.launchers.jobs import Engine, Jobs
from ablate.running.launchers.local import CPU, check_groups, fixed_runs
from ablate.running.launchers.pilot_steps import Fleet, Orders, PilotBeat, PilotState, pilot_step
from ablate.shared import (
    DISK_FULL_ERRORS,
    Notes,
    count_text,
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


class PilotLauncher:
    """The launcher of an engine's pilots."""

    remote = True
    devices = GpuSet()

    def __init__(self, settings: Tree, cache: Path, engine: Callable[[str], Engine]) -> None:
        """`engine` makes the engine from the token of the store."""
        gpus = settings["gpus"] if settings["devices"] != "cpu" else 0
        supply = "runs train on CPUs"
        if gpus:
            supply = f"a node's job has {count_text(gpus, 'GPU')} (launcher.gpus)"
        check_groups(fixed_runs(settings["runs_per_gpu"]), settings["gpus_per_run"], gpus, supply)
        self._settings, self._root, self._engine = settings, cache.parent.absolute(), engine
        self._fleet = Fleet(store_token(self._root) or secrets.token_hex(8))
        self._jobs = Jobs(settings["name"], engine(self._fleet.token))
        self._server = ForkServer(CPU)  # for questions, which this host answers
        self._beat = DriverBeat(self._root, BEAT_S)

    @property
    def slots(self) -> Sequence[Slot]:
        return self._fleet.slots

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
        pilot = self._fleet.pilot_of(slot)
        if pilot is None or run.attempt is None:  # it went away this moment
            exit_codes = {**self._fleet.exit_codes, run.id: EXIT_AWAY}
            self._fleet = replace(self._fleet, exit_codes=exit_codes)
            return
        self._order(pilot, pilot.orders.add(run.attempt, slot))

    def poll(self, wait_s: float = 0.0) -> dict[str, int]:
        until = time.monotonic() + wait_s
        while True:
            if time.monotonic() - self._fleet.looked_at >= LOOK_S:
                self._look()
            remaining_s = until - time.monotonic()
            if self._fleet.exit_codes or remaining_s <= 0:
                break
            time.sleep(min(remaining_s, 0.05))
        exit_codes = dict(self._fleet.exit_codes)
        if exit_codes:
            self._fleet = replace(self._fleet, exit_codes={})
        return exit_codes

    def alive(self, run: RunDir) -> bool:
        if run.attempt is None:
            return HostLock().alive(run)  # trained here by another launcher
        return run.attempt in self._fleet.holders

    def notes(self, run: RunDir) -> Notes:
        pilot = self._fleet.holders.get(run.attempt or "")
        worker_notes = {} if pilot is None else pilot.beat.get("runs", {})
        return Notes.from_tree(worker_notes.get(run.attempt)) or run.lock.notes()

    def stop(self, run: RunDir, now: bool = False) -> None:
        pilot = self._fleet.holders.get(run.attempt or "")
        if run.attempt is None:
            HostLock().stop(run, now)
        elif pilot is not None and pilot.orders.stop.get(run.attempt) is not now:
            orders = pilot.orders
            self._order(pilot, replace(orders, stop={**orders.stop, run.attempt: now}))

    def _order(self, pilot: PilotState, orders: Orders) -> None:
        """Write the orders of a pilot; while the disk is full, each look tries again."""
        settings = {key: self._settings.get(key) for key in ("checkpoint_s", "origin")}
        is_late = False
        try:
            self._folder(pilot).write_orders({**orders.tree(), "settings": settings})
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            is_late = True
        self._fleet = self._fleet.put(replace(pilot, orders=orders, is_late=is_late))

    def _folder(self, pilot: PilotState) -> PilotDir:
        return PilotDir(self._root / "pilots" / pilot.id)

    # --- Pilots ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read every pilot's files, and the engine's answer if it has come.

        Only the process that drives does so: before that another driver gives the orders, and the
        files may be old by the time it ends.
        """
        if not self._fleet.is_driven:
            return
        moment = time.monotonic()
        self._fleet = replace(self._fleet, looked_at=moment)
        self._beat.check()
        if self._beat.full is not None:  # while the disk is full nobody can write beats
            for pilot in self._fleet.pilots.values():
                self._fleet = self._fleet.put(replace(pilot, heard_at=moment))
        self._jobs.hear(self._fleet.jobs, bool(self.slots), moment)
        for folder in Pilots(self._root / "pilots").pilots():
            if folder.id not in self._fleet.pilots:
                orders = Orders.of(folder.orders())  # of a driver that is dead
                heard_at = moment if folder.is_fresh() else moment - STALE_S
                self._fleet = self._fleet.put(PilotState(folder.id, orders, heard_at))
        for pilot in list(self._fleet.pilots.values()):
            self._step(self._hear(pilot, moment), moment)

    def _hear(self, pilot: PilotState, now: float) -> PilotState:
        """Read the beat of a pilot, and count its job among those that were seen."""
        folder = self._folder(pilot)
        beat = folder.beat()
        is_first = not pilot.beat
        newer = pilot.hear(beat, not is_first or folder.is_fresh(), now)
        if newer is not pilot:
            remarks = beat.get("remarks", ()) if is_first else ()
            is_of_use = is_first and bool(newer.slots)
            self._jobs.meet(newer.job, str(beat.get("host", "")), remarks, is_of_use)
            self._fleet = self._fleet.put(newer)
        return newer

    def _step(self, pilot: PilotState, now: float) -> None:
        """Carry out what follows from what is heard of a pilot."""
        running = self._jobs.running
        is_listed = None
        if running is not None:
            is_listed = pilot.job in running
        beat = PilotBeat(pilot.beat, pilot.heard_at, is_listed)
        step = pilot_step(beat, pilot.orders, now)
        if step.asks and (end := self._jobs.ended(pilot.job)) is not None:
            step = pilot_step(replace(beat, end=end), pilot.orders, now)
        if step.cancels:
            self._jobs.cancel([pilot.job])
        if step.reason:
            self._jobs.lines.append(f"pilot {pilot.id} is gone: {step.reason}")
        if step.is_gone or step.exit_codes:
            self._fleet = self._fleet.advance(pilot, step)
        if step.is_gone:
            self._jobs.leave(pilot.job, now)
            self._folder(pilot).remove()
        elif step.exit_codes or pilot.is_late:
            self._order(pilot, step.orders)

    # --- The engine -----------------------------------------------------------------------------

    def _begin(self) -> None:
        """Take the pilots over from the previous driver, who may have begun after this launcher was
        made."""
        make_folder(self._root / "pilots")
        token = store_token(self._root) or self._fleet.token
        if token != self._fleet.token:
            self._jobs = Jobs(self._settings["name"], self._engine(token))
        write_proof(self._root, token)
        self._beat.begin()
        self._fleet = replace(self._fleet, token=token, is_driven=True)
        self._look()
        for pilot in self._fleet.pilots.values():
            self._order(pilot, pilot.orders)  # with this driver's settings

    def offer(self, waiting: int, excluded_places: Collection[str]) -> Sequence[str]:
        if not self._fleet.is_driven:
            self._begin()
        self._beat.waiting = waiting
        if self._beat.full is not None:
            raise self._beat.full
        for pilot in self._fleet.pilots.values():
            if pilot.slots and not usable(pilot.slots, excluded_places) and not pilot.orders.close:
                self._order(pilot, replace(pilot.orders, close=True))
        if self._jobs.may_submit(time.monotonic()):
            self._fit(excluded_places)
        lines, self._jobs.lines = self._jobs.lines, []
        return lines

    def _fit(self, excluded_places: Collection[str]) -> None:
        """Request as many jobs as the runs need, `jobs` at most."""
        waiting = self._beat.waiting
        held_count = sum(pilot.device_count for pilot in self._fleet.open_pilots) // self.worlds[0]
        needed_count = math.ceil((waiting + held_count) / self._a_job)
        jobs = {pilot.job for pilot in self._fleet.open_pilots} | self._jobs.unseen.keys()
        lacking = min(self._settings["jobs"], needed_count) - len(jobs)
        if waiting and lacking > 0:
            if not self._fleet.is_proven:  # once the data is decoded: a node has to see it
                write_proof(self._root, self._fleet.token)
                self._fleet = replace(self._fleet, is_proven=True)
            self._jobs.submit(lacking, {place.partition("/")[0] for place in excluded_places})
        if not waiting:
            self._jobs.cancel_unseen(time.monotonic())

    def free(self) -> None:
        """Cancel the jobs that still wait. Pilots end by themselves when they hold no run."""
        self._jobs.end(cancel=self._fleet.is_driven and self._beat.end())
        self._server.free()
