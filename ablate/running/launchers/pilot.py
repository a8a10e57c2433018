"""A pilot: holds a job's devices on some host, and trains the attempts that the driver gives it.

It forks workers as the local launcher does, speaks with the driver through files (see
`ablate.store.pilots`), and never opens the ledger. When no driver is alive it finishes what it
holds, takes nothing new, and ends; so it does when the time ahead of its job is too short.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.running.launchers import Slot
from ablate.running.launchers.local import Local
from ablate.running.launchers.node_cache import NodeCache
from ablate.shared.files import FULL
from ablate.shared.rundir import ATTEMPTS, EXIT_AWAY, EXIT_TAKEN, RunDir
from ablate.shared.signals import noted
from ablate.store.pilots import BEAT_S, STALE_S, PilotDir, prove, read_object

IDLE_S = 30.0  # without a run, while none waits, before its devices are handed back


def fly(root: Path, settings: Mapping[str, Any], job: str, host: str, left_s: float | None) -> None:
    """Be a pilot of the store in `root`, for a job on a host, until the job may end.

    `left_s`: seconds until the job's limit, None where nobody knows. A signal, before the limit or
    for a job of more importance, asks the workers for checkpoints. Raises Failure where this host
    does not see the driver's store.
    """
    with noted(signal.SIGUSR2, signal.SIGTERM, signal.SIGINT) as heard:
        prove(root, settings["token"])
        name = f"{host}-{job}-{secrets.token_hex(2)}"
        _Pilot(root, name, settings, job, host, left_s).work(heard)


class _Pilot:
    def __init__(
        self,
        root: Path,
        name: str,
        settings: Mapping[str, Any],
        job: str,
        host: str,
        left_s: float | None,
    ) -> None:
        self.root, self.job, self.host = root, job, host
        self.folder = PilotDir(root / "pilots" / name)
        self.until = None if left_s is None else time.monotonic() + left_s
        # Less than this ahead, and a run would hardly outlive its first checkpoint.
        self.short_s = settings["grace_s"] + settings["checkpoint_s"]
        if left_s is not None:  # a job that is short from the start still trains
            self.short_s = min(self.short_s, left_s / 2)
        self.settings = {**settings}
        self.cache = NodeCache(root / "cache", settings["cache"])
        self.own: dict[str, Slot] = {}  # of this host, by the name that the driver knows
        self.orders: dict[str, str] = {}  # attempt -> slot, as the driver says
        self.working: dict[str, RunDir] = {}  # by attempt
        self.slots: dict[str, str] = {}  # attempt -> slot
        self.codes: dict[str, int] = {}  # told by the fork server, no proof of death
        self.ended: dict[str, int] = {}
        self.stopped: set[tuple[str, bool]] = set()
        self.remarks: list[str] = []
        self.beats = 0
        self.beaten_at = self.heard_at = self.busy_at = time.monotonic()
        self.driver: dict[str, Any] = {}

    def work(self, heard: list[int]) -> None:
        self.local = Local(self.settings, self.cache.path, tied=True)
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

    def _find_slots(self) -> None:
        host, name = self.host, self.folder.id
        slots, wanted = list(self.local.slots), self.settings["gpus"]
        if wanted and self.settings["devices"] != "cpu" and slots[0].device == "cpu":
            self.remarks = [f"{host}: not used: no GPU is seen there", *self.local.devices.remarks]
            return
        if slots[0].device == "cpu":
            slots = slots[: self.settings["cpus"]]
        why = self.local.unfit(slots)
        self.remarks = [f"{host}/{slot}: not used: {line}" for slot, line in why.items()]
        own = [
            dataclasses.replace(slot, name=f"{name}/{slot.name}", place=f"{host}/{slot.place}")
            for slot in slots
            if slot.name not in why
        ]
        self.own = {slot.name: slot for slot in own}

    def _step(self, heard: list[int]) -> bool:
        """A moment of its life; False: its last."""
        self._reap()
        orders = self.folder.orders()
        self._listen()
        leaving = bool(heard) or not self.own or bool(orders.get("close"))
        leaving = leaving or bool(self.driver.get("done")) or self._is_short()
        alone = time.monotonic() - self.heard_at > STALE_S
        self._obey(orders, takes=not (leaving or alone), refuses=leaving)
        if heard:
            for attempt in self.working:
                self._stop(attempt, now=False)
        now = time.monotonic()
        if self.working or self.driver.get("waiting", 1):
            self.busy_at = now
        if now - self.beaten_at >= BEAT_S or self.ended.keys() & orders.get("runs", {}).keys():
            self._beat(open=not leaving)
        idle = now - self.busy_at > IDLE_S
        return bool(self.working) or not (leaving or alone or idle)

    def _is_short(self) -> bool:
        return self.until is not None and self.until - time.monotonic() < self.short_s

    def _listen(self) -> None:
        told = read_object(self.root / "pilots" / "driver.json")
        if told and told != self.driver:
            self.driver, self.heard_at = told, time.monotonic()

    def _obey(self, orders: Mapping[str, Any], takes: bool, refuses: bool) -> None:
        self.orders = given = orders.get("runs", {})
        self.settings |= orders.get("settings", {})
        self.ended = {a: code for a, code in self.ended.items() if a in given}  # else it was read
        for attempt, slot in given.items():
            if attempt in self.working or attempt in self.ended:
                continue
            if refuses or slot not in self.own:
                self.ended[attempt] = EXIT_AWAY
            elif takes and slot not in self.slots.values():
                self._start(attempt, slot)
        for attempt, now in self.folder.stops().items():
            self._stop(attempt, now)

    def _start(self, attempt: str, slot: str) -> None:
        folder = RunDir(self.root / ATTEMPTS / attempt)
        if self.cache.has(folder):
            self.local.start(folder, self.own[slot])
            self.working[attempt], self.slots[attempt] = folder, slot

    def _stop(self, attempt: str, now: bool) -> None:
        if attempt in self.working and (attempt, now) not in self.stopped:
            self.stopped.add((attempt, now))
            self.local.stop(self.working[attempt], now)

    def _reap(self) -> None:
        """A code is no proof of death: the lock is, on this host."""
        told = self.local.poll(0.1)
        self.codes |= {a: told[f.id] for a, f in self.working.items() if f.id in told}
        for attempt, code in list(self.codes.items()):
            if code == EXIT_TAKEN or not self.local.alive(self.working[attempt]):
                self.ended[attempt] = code
                for known in (self.codes, self.working, self.slots):
                    known.pop(attempt)

    def _beat(self, open: bool = False, over: bool = False) -> None:
        self.beats += 1
        self.beaten_at = time.monotonic()
        slots = [[s.name, s.place, s.device] for s in self.own.values()]
        notes = {attempt: self.local.notes(folder) for attempt, folder in self.working.items()}
        waiting = self.orders.keys() - self.working.keys() - self.ended.keys()
        notes |= {attempt: {"phase": "data", "beat": self.beats} for attempt in waiting}
        tree = {"beat": self.beats, "job": self.job, "host": self.host, "pid": os.getpid()}
        tree |= {"slots": slots, "open": open, "over": over, "remarks": self.remarks}
        try:
            self.folder.write_beat({**tree, "runs": notes, "ended": self.ended})
        except OSError as error:
            if error.errno not in FULL:  # else the next one tells
                raise
            self.heard_at = self.beaten_at  # who can't write is silent, and not dead
