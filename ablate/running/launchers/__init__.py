"""Launchers start workers and answer for them: one small protocol, one table of launchers.

A launcher offers slots, which may come and go; the driver gives runs to slots. The launcher answers
for the workers that it started. The folder of a run outlives the launcher: through it
`Store.liveness` answers a later driver, which adopts the workers, and every reader.

Used by `ablate sweep` and `ablate plan` (api/training.py) and by `ablate doctor` and `verify
--rerun` (cli/keeping.py). The launcher of a cluster is a file, conf/launcher/NAME.yaml
(planning/engine.py). One that is code needs its entry in planning/launcher.py `LAUNCHERS`. Both
have to pass tests/launcher_contract.py; a new worker option is read in training/worker.py.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ablate.planning import LAUNCHERS
from ablate.run import RunDir
from ablate.running.gpus import GpuSet
from ablate.shared import UserError, unknown_value
from ablate.store import Liveness


@dataclass(frozen=True)
class Slot:
    """The room for one worker. Slots of one `place` share a device and its memory."""

    name: str
    place: str
    device: str  # cpu | cuda
    visible: str | None = None  # CUDA_VISIBLE_DEVICES of the worker
    ranks: int = 1  # processes of its run, each with a device of its own
    group: Sequence[str] = ()  # the slots of one device each of which it takes the room
    share: float = 1.0  # of its device's memory

    @functools.cached_property  # asked for each slot at each start of a run
    def takes(self) -> frozenset[str]:
        """The names of the slots whose room it takes: no other worker may have them at the same
        time."""
        return frozenset(self.group or (self.name,))

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that a process on this slot needs in addition to the common
        ones, before it starts CUDA."""
        return {} if self.visible is None else {"CUDA_VISIBLE_DEVICES": self.visible}


def usable(slots: Sequence[Slot], excluded_places: Collection[str]) -> list[Slot]:
    """List the slots that are on none of `excluded_places`, and in no group with a slot of such a
    place."""
    if not excluded_places:
        return [*slots]
    out = {slot.name for slot in slots if slot.place in excluded_places}
    return [slot for slot in slots if slot.name not in out and slot.takes.isdisjoint(out)]


ENGINE_LAUNCHER = "ablate.running.launchers.engine:engine_launcher"  # of all files
MOST_SHARING = 8  # runs on a GPU; beyond it even the smallest model gains little


def packed(slots: Sequence[Slot], runs: int) -> list[Slot]:
    """Return this number of slots in place of each: "gpu:0.0", "gpu:0.1", ... in place of "gpu:0",
    each with its part of the memory. Those of one place lie apart, so that runs spread out."""
    if runs == 1:
        return [*slots]
    return [
        replace(slot, name=f"{slot.name}.{number}", share=slot.share / runs)
        for number in range(runs)
        for slot in slots
    ]


Tree = Mapping[str, Any]  # JSON
Progress = Callable[[int, int], None]  # (done, total)


def silent(done: int, total: int) -> None:
    """Show no progress."""


class Ask(Protocol):
    """A function that asks the training half a question, JSON both ways: see
    `ablate.training.answers`."""

    def __call__(self, verb: str, question: Tree, progress: Progress = ..., /) -> dict[str, Any]:
        """Return the answer to the question `verb`. Some answers call `progress`. Raises UserError
        with one line for the user's mistakes, NoRoom for a full disk, Failure for anything else."""


class Launcher(Liveness, Protocol):
    """A launcher starts workers, answers for them and stops them. This is the interface that the
    driver uses; `tests/launcher_contract.py` tests every launcher."""

    slots: Sequence[Slot]  # offered now
    devices: GpuSet  # the GPUs of this host behind its slots, and remarks

    @property
    def remote(self) -> bool:
        """True if its workers are on other hosts. Then each attempt has a folder of its own (see
        `ablate.running.attempts`), and slots come and go."""

    @property
    def device(self) -> str:
        """The device of all its slots, those still to come included: cpu | cuda."""

    @property
    def worlds(self) -> Sequence[int]:
        """The numbers of processes that may share a run: one number, or several with `auto`, from 1
        on. For each of them that the devices suffice for there are slots."""

    @property
    def most(self) -> int:
        """The largest number of slots that it ever offers for the least of `worlds`."""

    def offer(self, waiting: int, excluded_places: Collection[str]) -> Sequence[str]:
        """Adjust the slots to the runs that wait: they need `waiting` slots of the least of
        `worlds`, on none of the `excluded_places`.

        Returns lines for the user. Raises Failure where no slot can be had any more, and OSError
        while the store's disk is full.
        """

    def warm(self) -> None:
        """Begin to load the modules that workers need; return at once."""

    def ask(self, verb: str, question: Tree, progress: Progress = ..., /) -> dict[str, Any]:
        """Ask the training half a question: see Ask."""

    def unfit(self, slots: Sequence[Slot]) -> dict[str, str]:
        """Return, by the name of the slot, why no worker can use its device; slots that can be used
        are left out.

        One small kernel runs on each device, in a process of its own, all at once; none on a CPU.
        """

    def start(self, run: RunDir, slot: Slot, settled: Tree | None = None) -> None:
        """Start a worker on a folder with a run.json; return at once, or when the worker ends.
        `settled`: the decisions for the run, see `ablate.running.preflight`."""

    def poll(self, wait_s: float = 0.0) -> dict[str, int]:
        """Return {run id: exit code} of own workers that ended since the last poll.

        Waits up to `wait_s` seconds for the first. A code is no proof of death: `alive` gives that.
        The code is EXIT_AWAY where there is none because the worker's place is gone.
        """

    def free(self) -> None:
        """End the helper processes. Workers that still run are left alone."""


def make_launcher(settings: Tree, cache: Path, may_be_remote: bool = True) -> Launcher:
    """Make the launcher that `settings` names (the `launcher` group). `cache`: the folder of
    decoded data.

    `settings` may have an `origin`, which workers note in their runs: see ablate.api.training.
    Raises UserError for a remote launcher where the command only trains on this host.
    """
    name = settings["name"]
    if name not in LAUNCHERS and "engine" not in settings:
        raise unknown_value("launcher", name, LAUNCHERS)
    path = LAUNCHERS[name].path if name in LAUNCHERS else ENGINE_LAUNCHER
    module, _, attribute = path.partition(":")
    launcher: Launcher = getattr(importlib.import_module(module), attribute)(settings, cache)
    if launcher.remote and not may_be_remote:
        launcher.free()
        raise UserError(f"launcher={name}: this command trains on this host; give launcher=local")
    return launcher


def worker_options(
    slot: Slot, settings: Tree, cache: Path, settled: Tree | None = None
) -> dict[str, Any]:
    """Return the options of a worker, its folder apart. Only `settled` changes the bits of a
    result."""
    return {
        "settled": {**(settled or {})},
        "share": slot.share,
        "slot": slot.name,
        "device": slot.device,
        "ranks": slot.ranks,
        "threads": 1 if slot.device == "cpu" else 4,
        "cache": str(cache),
        "checkpoint_s": settings["checkpoint_s"],
        "origin": settings.get("origin"),
    }
