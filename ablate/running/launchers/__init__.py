"""Starts workers and answers for them: one small protocol, one table of launchers.

A launcher offers slots, which may come and go; the driver gives runs to slots. The launcher answers
for the workers that it started. The folder of a run outlives the launcher: through it
`Store.liveness` answers a later driver, which adopts the workers, and every reader.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ablate.planning import LAUNCHERS
from ablate.running.gpus import GpuSet
from ablate.shared import RunDir, UserError, unknown_value
from ablate.store import Liveness


@dataclass(frozen=True)
class Slot:
    """Room for one worker. Slots of one `place` share a device, and its memory."""

    name: str
    place: str
    device: str  # cpu | cuda
    visible: str | None = None  # CUDA_VISIBLE_DEVICES of the worker
    ranks: int = 1  # processes of its run, each with a device of its own
    group: Sequence[str] = ()  # the slots of one device each of which it takes the room

    @property
    def takes(self) -> frozenset[str]:
        """Return the names of slots that no other worker may have beside it."""
        return frozenset(self.group or (self.name,))

    @property
    def environment(self) -> dict[str, str]:
        """What a process that uses it has, beside what all have, before it starts CUDA."""
        return {} if self.visible is None else {"CUDA_VISIBLE_DEVICES": self.visible}


def usable(slots: Sequence[Slot], without: Collection[str]) -> list[Slot]:
    """List the slots on none of the places `without`, nor on a group with a slot of one."""
    out = {slot.name for slot in slots if slot.place in without}
    return [slot for slot in slots if slot.name not in out and slot.takes.isdisjoint(out)]


Tree = Mapping[str, Any]  # JSON
Progress = Callable[[int, int], None]  # (done, total)


def silent(done: int, total: int) -> None:
    """Show no progress."""


class Ask(Protocol):
    """Asks the training half a question, JSON both ways: see `ablate.training.answers`."""

    def __call__(self, verb: str, question: Tree, progress: Progress = ..., /) -> dict[str, Any]:
        """Answer the question `verb`. Some answers call `progress`. Raises UserError with one line
        for the user's mistakes, NoRoom for a full disk, Failure for anything else."""


class Launcher(Liveness, Protocol):
    """Starts workers, answers for them and stops them, as the driver sees it.
    `tests/launcher_contract.py` tests every launcher."""

    slots: Sequence[Slot]  # offered now
    devices: GpuSet  # the GPUs of this host behind its slots, and remarks

    @property
    def remote(self) -> bool:
        """Are its workers on other hosts? Then each attempt has a folder of its own (see
        `ablate.running.attempts`), and slots come and go."""

    @property
    def device(self) -> str:
        """Of its slots, also of those that are to come: cpu | cuda."""

    @property
    def worlds(self) -> Sequence[int]:
        """How many processes may share a run: one number, or with `auto` several, from 1 on. Of
        these there are slots for each number that there are devices for."""

    @property
    def most(self) -> int:
        """How many slots for the least of `worlds` it offers at most."""

    def offer(self, waiting: int, without: Collection[str]) -> Sequence[str]:
        """Runs wait for so many slots of the least of `worlds`, on none of the places `without`:
        see to it that there are more, or fewer. Returns lines to say. Raises Failure where none can
        be had any more, and OSError while the store's disk is full."""

    def warm(self) -> None:
        """Begin to load the modules that workers need; return at once."""

    def ask(self, verb: str, question: Tree, progress: Progress = ..., /) -> dict[str, Any]:
        """See Ask."""

    def unfit(self, slots: Sequence[Slot]) -> dict[str, str]:
        """Say why no worker can use a device, by the name of its slot, without those that can. One
        small kernel runs on each, in a process of its own, all at once; nothing for a CPU."""

    def start(self, run: RunDir, slot: Slot, settled: Tree | None = None) -> None:
        """Start a worker on a folder with a run.json; return at once, or when the worker ends.
        `settled`: what was decided for the run, see `ablate.running.preflight`."""

    def poll(self, wait_s: float = 0.0) -> dict[str, int]:
        """Return {run id: exit code} of own workers that ended since the last poll.

        Waits up to `wait_s` seconds for the first. A code is no proof of death: `alive` is.
        EXIT_AWAY where there is no code, since the place of the worker is gone.
        """

    def free(self) -> None:
        """End helper processes. Workers that still run are left alone."""


def make_launcher(settings: Tree, cache: Path) -> Launcher:
    """Make the launcher that `settings` names (the `launcher` group). `cache`: of decoded data.

    `settings` may have an `origin`, which workers note in their runs: see ablate.api.training.
    """
    name = settings["name"]
    if name not in LAUNCHERS:
        raise unknown_value("launcher", name, LAUNCHERS)
    module, _, attribute = LAUNCHERS[name].path.partition(":")
    launcher: Launcher = getattr(importlib.import_module(module), attribute)(settings, cache)
    return launcher


def make_local_launcher(settings: Tree, cache: Path) -> Launcher:
    """Make it as `make` does, for commands that train on this host alone. Raises UserError for
    others."""
    launcher = make_launcher(settings, cache)
    if launcher.remote:
        launcher.free()
        raise UserError(
            f"launcher={settings['name']}: this command trains on this host; give launcher=local"
        )
    return launcher


def worker_options(
    slot: Slot, settings: Tree, cache: Path, settled: Tree | None = None
) -> dict[str, Any]:
    """Return the options of a worker, beside its folder. Only `settled` changes bits."""
    return {
        "settled": {**(settled or {})},
        "share": 1 / settings.get("runs_per_gpu", 1),
        "slot": slot.name,
        "device": slot.device,
        "ranks": slot.ranks,
        "threads": 1 if slot.device == "cpu" else 4,
        "cache": str(cache),
        "checkpoint_s": settings["checkpoint_s"],
        "origin": settings.get("origin"),
    }
