"""A pilot holds a job's devices on a host, and trains the attempts that the driver gives it.

It forks workers as the local launcher does, communicates with the driver through files (see
`ablate.store.pilots`), and never opens the ledger. When no driver is alive, or its job has too
little time left, it finishes what it holds, takes nothing new, and ends.

The jobs of launchers/engine.py start its main program on each node. A new message also needs
store/pilots.py and launchers/pilots.py, the driver's side.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ablate.run import (
    ATTEMPTS_FOLDER,
    EXIT_AWAY,
    EXIT_TAKEN,
    META_FILE,
    RunDir,
    RunSpec,
    decoded,
)
from ablate.running.launchers import Slot
from ablate.running.launchers.engine import output_of, seconds
from ablate.running.launchers.local import Local
from ablate.shared import (
    DISK_FULL_ERRORS,
    Failure,
    Lock,
    Notes,
    UserError,
    make_folder,
    noted_signals,
    to_json,
    write_whole,
)
from ablate.store import BEAT_S, STALE_S, PilotDir, check_proof, read_beat
from ablate.version import __version__

IDLE_S = 30.0  # without a run, while none waits, before its devices are handed back


def fly(root: Path, settings: Mapping[str, Any], job: str, host: str, left_s: float | None) -> None:
    """Run a pilot of the store in `root`, for a job on a host, until the job may end.

    `left_s`: seconds until the job's limit, None where it is unknown. A signal, before the limit or
    for a more important job, makes the workers write checkpoints. Raises Failure where this host
    does not see the driver's store.
    """
    with noted_signals(signal.SIGUSR2, signal.SIGTERM, signal.SIGINT) as heard:
        check_proof(root, settings["token"])
        name = f"{host}-{job}-{secrets.token_hex(2)}"
        _Pilot(root, name, {**settings}, job, host, left_s).work(heard)


def look(root: Path, settings: Mapping[str, Any], job: str, host: str, name: str) -> None:
    """Write what a pilot would see on this host, for `SiteJob.facts`, to NAME.json. Raises Failure
    where it does not see the store."""
    check_proof(root, settings["token"])
    pilot = _Pilot(root, f"{host}-{job}", {**settings}, job, host, None)
    pilot.local = pilot._local()
    try:
        pilot._find_slots()
    finally:
        pilot.local.free()
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = None
    facts = {
        "host": host,
        "python": platform.python_version(),
        "executable": sys.executable,
        "ablate": __version__,
        "torch": torch,
        "clock": time.time(),
        "slots": [slot.place for slot in pilot.slots_by_name.values()],
        "remarks": pilot.remarks,
    }
    write_whole(root / "pilots" / "jobs" / f"{name}.json", to_json(facts))


@dataclass
class _Pilot:
    root: Path
    id: str
    settings: dict[str, Any]
    job: str
    host: str
    left_s: float | None
    slots_by_name: dict[str, Slot] = field(default_factory=dict)  # as the driver names them
    orders: dict[str, str] = field(default_factory=dict)  # attempt -> slot, as the driver says
    working: dict[str, RunDir] = field(default_factory=dict)  # by attempt
    slots: dict[str, str] = field(default_factory=dict)  # attempt -> slot
    exit_codes: dict[str, int] = field(
        default_factory=dict
    )  # of the fork server, no proof of death
    ended: dict[str, int] = field(default_factory=dict)
    stopped: set[tuple[str, bool]] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)
    driver: dict[str, Any] = field(default_factory=dict)
    beats: int = 0

    def __post_init__(self) -> None:
        self.folder = PilotDir(self.root / "pilots" / self.id)
        self.cache = NodeCache(self.root / "cache", self.settings["cache"])
        self.beaten_at = self.heard_at = self.busy_at = moment = time.monotonic()
        # Less than this ahead, and a run would hardly outlive its first checkpoint; but a job that
        # is short from the start still trains.
        left_s = math.inf if self.left_s is None else self.left_s
        short_s = min(self.settings["grace_s"] + self.settings["checkpoint_s"], left_s / 2)
        self.short_at = moment + left_s - short_s
        # Not every engine sends a signal before the limit.
        grace_s = self.settings["grace_s"]
        self.leaves_at = moment + left_s - grace_s if left_s > grace_s else math.inf

    def work(self, heard: list[int]) -> None:
        self.local = self._local()
        self.folder.create()
        try:
            self._find_slots()
            self._beat(open=True)
            while self._step(heard):
                pass
            self._beat(over=True)
        except FileNotFoundError:  # given up for dead: what is trained here is never read
            for folder in self.working.values():
                self.local.stop(folder, now=True)
        finally:
            self.local.free()

    def _local(self) -> Local:
        """Return the launcher of this host. A node with fewer GPUs than a run needs is not used.

        Where the engine isolates no devices, a pilot sees all GPUs of its host and takes those that
        its job asked for.
        """
        settings, most_gpus = self.settings, self.settings["gpus"]
        try:
            return Local(settings, self.cache.path, tied=True, most_gpus=most_gpus)
        except UserError as error:
            self.remarks = [f"{self.host}: not used: {error}"]
            settings = {**settings, "gpus_per_run": 1}
            return Local(settings, self.cache.path, tied=True, most_gpus=most_gpus)

    def _find_slots(self) -> None:
        host, name = self.host, self.folder.id
        slots, gpus = list(self.local.slots), self.settings["gpus"]
        if gpus and self.settings["devices"] != "cpu" and slots[0].device == "cpu":
            self.remarks = [f"{host}: not used: no GPU is seen there", *self.local.devices.remarks]
        if self.remarks:
            return
        if slots[0].device == "cpu":
            slots = slots[: self.settings["cpus"]]
        reasons = self.local.unfit(slots)
        self.remarks = [f"{host}/{slot}: not used: {line}" for slot, line in reasons.items()]
        for slot in slots:
            if slot.name not in reasons:
                key, place = f"{name}/{slot.name}", f"{host}/{slot.place}"
                group = [f"{name}/{device}" for device in slot.group]
                self.slots_by_name[key] = replace(slot, name=key, place=place, group=group)

    def _step(self, heard: list[int]) -> bool:
        """Do one round of work. Returns False after the last."""
        self._reap()
        orders = self.folder.orders()
        self._listen()
        leaving = bool(heard) or not self.slots_by_name or bool(orders.get("close"))
        leaving = leaving or bool(self.driver.get("done")) or time.monotonic() > self.short_at
        alone = time.monotonic() - self.heard_at > STALE_S
        self._obey(orders, takes=not (leaving or alone), refuses=leaving)
        if heard or time.monotonic() > self.leaves_at:
            for attempt in self.working:
                self._stop(attempt, now=False)
        moment = time.monotonic()
        if self.working or self.driver.get("waiting", 1):
            self.busy_at = moment
        if moment - self.beaten_at >= BEAT_S or self.ended.keys() & orders.get("runs", {}).keys():
            self._beat(open=not leaving)
        idle = moment - self.busy_at > IDLE_S
        return bool(self.working) or not (leaving or alone or idle)

    def _listen(self) -> None:
        beat = read_beat(self.root / "pilots" / "driver.json")
        if beat and beat != self.driver:
            self.driver, self.heard_at = beat, time.monotonic()

    def _obey(self, orders: Mapping[str, Any], takes: bool, refuses: bool) -> None:
        self.orders = assignments = orders.get("runs", {})
        self.settings |= orders.get("settings", {})
        # what is ordered no more was read
        self.ended = {a: code for a, code in self.ended.items() if a in assignments}
        for attempt, slot in assignments.items():
            if attempt in self.working or attempt in self.ended:
                continue
            if refuses or slot not in self.slots_by_name:
                self.ended[attempt] = EXIT_AWAY
            elif takes and self.slots_by_name[slot].takes.isdisjoint(self._taken_devices()):
                self._start(attempt, slot, orders.get("shares", {}).get(attempt))
        for attempt, at_once in self.folder.stops().items():
            self._stop(attempt, at_once)

    def _start(self, attempt: str, slot: str, share: float | None) -> None:
        """Start a worker. `share`: of the device's memory, None for that of the slot."""
        folder = RunDir(self.root / ATTEMPTS_FOLDER / attempt)
        if self.cache.has(folder):
            own_slot = self.slots_by_name[slot]
            self.local.start(folder, replace(own_slot, share=share or own_slot.share))
            self.working[attempt], self.slots[attempt] = folder, slot

    def _taken_devices(self) -> frozenset[str]:
        devices: set[str] = set()
        for slot in self.slots.values():
            devices |= self.slots_by_name[slot].takes
        return frozenset(devices)

    def _stop(self, attempt: str, now: bool) -> None:
        if attempt in self.working and (attempt, now) not in self.stopped:
            self.stopped.add((attempt, now))
            self.local.stop(self.working[attempt], now)

    def _reap(self) -> None:
        """Note the workers that have ended. An exit code is no proof of death: the lock is, on this
        host."""
        codes_by_run = self.local.poll(0.1)
        for attempt, folder in self.working.items():
            if folder.id in codes_by_run:
                self.exit_codes[attempt] = codes_by_run[folder.id]
        for attempt, code in list(self.exit_codes.items()):
            if code == EXIT_TAKEN or not self.local.alive(self.working[attempt]):
                self.ended[attempt] = code
                for table in (self.exit_codes, self.working, self.slots):
                    table.pop(attempt)

    def _beat(self, open: bool = False, over: bool = False) -> None:
        self.beats += 1
        self.beaten_at = time.monotonic()
        slots = [asdict(slot) for slot in self.slots_by_name.values()]
        notes = {
            attempt: self.local.notes(folder).tree() for attempt, folder in self.working.items()
        }
        waiting = self.orders.keys() - self.working.keys() - self.ended.keys()
        notes |= dict.fromkeys(waiting, Notes(phase="data", beat=self.beats).tree())
        tree = {"beat": self.beats, "job": self.job, "host": self.host, "pid": os.getpid()}
        tree |= {"slots": slots, "open": open, "over": over, "remarks": self.remarks}
        try:
            self.folder.write_beat({**tree, "runs": notes, "ended": self.ended})
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:  # else the next one tells
                raise
            self.heard_at = self.beaten_at  # who can't write is silent, and not dead


# --- Decoded data on a disk of the node: `launcher.cache` -----------------------------------------


class NodeCache:
    """The decoded data of one pilot. `path`: the folder that its workers read; `node_folder`: a
    folder on a disk of the node, where "~" is the home there, "" to read the shared cache."""

    def __init__(self, shared_cache: Path, node_folder: str) -> None:
        self._shared_cache = shared_cache
        self.path = Path(node_folder).expanduser() if node_folder else shared_cache
        self._copies: dict[str, threading.Thread] = {}
        self._copied: set[str] = set()  # copied at some time

    def has(self, run: RunDir) -> bool:
        """Return whether the run can be trained now. Sets that are not on the node are copied in
        the background, once a node."""
        if self.path == self._shared_cache:
            return True
        try:
            spec = RunSpec.of(run.read_spec())
            fingerprints = {str(data["fingerprint"]) for data in spec.datasets}
        except (ValueError, LookupError):
            return True  # its worker says what is wrong
        # a list, so that all copies begin at once
        return not [fingerprint for fingerprint in fingerprints if not self._is_there(fingerprint)]

    def _is_there(self, fingerprint: str) -> bool:
        """Return whether a set is copied, or can't be. A copy that a worker has discarded is made
        again."""
        thread = self._copies.get(fingerprint)
        if thread is not None and thread.is_alive():
            return False
        lost = not (self.path / fingerprint / META_FILE).exists()
        if thread is not None and not (lost and fingerprint in self._copied):
            return True
        self._copied.discard(fingerprint)
        self._copies[fingerprint] = threading.Thread(
            target=self._copy, args=(fingerprint,), daemon=True
        )
        self._copies[fingerprint].start()
        return False

    def _copy(self, fingerprint: str) -> None:
        """Copy a set, checked by its hashes, or not at all: then workers decode the data
        themselves."""
        target = self.path / fingerprint
        make_folder(self.path)
        with Lock(self.path / f"{fingerprint}.copy").hold(), contextlib.suppress(OSError):
            if target.exists() and decoded.damage(target) is None:
                self._copied.add(fingerprint)
                return
            new = target.with_name(f".{fingerprint}.{os.getpid()}")
            for old in (new, target):
                shutil.rmtree(old, ignore_errors=True)
            try:
                shutil.copytree(self._shared_cache / fingerprint, new)
                if decoded.damage(new) is None:
                    os.rename(new, target)
                    self._copied.add(fingerprint)
            finally:
                shutil.rmtree(new, ignore_errors=True)


# --- The main program of a job --------------------------------------------------------------------


def main(tree: Mapping[str, Any]) -> None:
    """Run a pilot, as `FileEngine` asks for it: a job calls this on each of its nodes.

    `tree`: root, settings; job, host: texts with places for variables of the environment;
    time_left: the words of a command. Raises Failure where there is no such variable.
    """
    names = {**os.environ, "PID": str(os.getpid())}
    try:
        job, host = (tree[key].format_map(names) for key in ("job", "host"))
        words = [word.format_map(names) for word in tree["time_left"]]
    except KeyError as error:
        raise Failure(f"{platform.node()}: jobs here have no variable {error.args[0]}") from error
    settings = tree["settings"]
    answer = output_of(words) if words else None
    limit = settings.get("time", "") if answer is None else answer.strip()
    host = host or platform.node()
    if tree["look"]:
        look(Path(tree["root"]), settings, job, host, tree["look"])
    else:
        fly(Path(tree["root"]), settings, job, host, seconds(limit))


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except (Failure, UserError) as error:
        sys.exit(f"ablate: {error}")
