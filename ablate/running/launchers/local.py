"""Trains on this machine: one new process a run, forked from a server that has torch loaded.

`inline` trains one run at a time in the driver's own process, for debuggers and tests.

Used by `ablate sweep` with launcher=local or inline (named in planning/launcher.py `LAUNCHERS`,
where their settings are), by pilots (launchers/pilot.py) and by `ablate doctor` (cli/keeping.py).
tests/launcher_contract.py states what it owes the driver.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate.run import EXIT_AWAY, RunDir, open_world_sizes
from ablate.running.gpus import Gpu, find
from ablate.running.launchers import Progress, Slot, Tree, packed, silent, worker_options
from ablate.running.launchers.fork import ForkServer
from ablate.running.launchers.server import work_on
from ablate.shared import ENDING_SIGNALS, UserError, count_text, noted_signals
from ablate.store import HostLock

# Activations are no longer mapped and unmapped at every step: 1.2-1.3x on CPU. Read by malloc when
# a process starts, so they must be set before the server does; a forked child is too late.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(8 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 30),
}

CPU = {**MALLOC, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class Here(HostLock):
    """The common part of the launchers whose workers are processes of this host."""

    remote = False
    slots: Sequence[Slot]

    @property
    def device(self) -> str:
        return self.slots[0].device

    @property
    def worlds(self) -> Sequence[int]:
        return sorted({slot.ranks for slot in self.slots})

    @property
    def most(self) -> int:
        return sum(slot.ranks == self.slots[0].ranks for slot in self.slots)

    def offer(self, waiting: int, excluded_places: Collection[str]) -> Sequence[str]:
        return ()


class Local(Here):
    """A launcher of workers on this host: one for each GPU (`runs_per_gpu` for more); without a
    GPU, one with a single thread for each core."""

    def __init__(
        self, settings: Tree, cache: Path, tied: bool = False, most_gpus: int | None = None
    ) -> None:
        """`tied`: the workers stop when this process dies; `most_gpus`: the number of GPUs that are
        used of those that are seen, the first ones; None: all."""
        self._settings, self._cache = settings, cache
        devices = settings["devices"]
        if most_gpus == 0:
            devices = "cpu"
        visible = find(devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
        self.devices = replace(visible, gpus=visible.gpus[:most_gpus])
        per_run = settings.get("gpus_per_run", 1), settings.get("cores_per_run", 1)
        self.slots = slots(self.devices.gpus, fixed_runs(settings["runs_per_gpu"]), *per_run)
        self._server = ForkServer(worker_environment(self.slots), self._died, tied)
        self._children: set[str] = set()
        self._stopping: set[str] = set()  # to stop: once, as HostLock does
        self._lost: set[str] = set()  # their server died, not reported yet

    def warm(self) -> None:
        self._server.warm()

    def ask(self, verb: str, question: Tree, progress: Progress = silent) -> dict[str, Any]:
        return self._server.ask(verb, question, progress, self.slots[0].environment)

    def unfit(self, slots: Sequence[Slot]) -> dict[str, str]:
        return self._server.unfit(slots)

    def start(self, run: RunDir, slot: Slot, settled: Tree | None = None) -> None:
        options = worker_options(slot, self._settings, self._cache, settled)
        options["gpus"] = max(len(self.devices.gpus), 1)
        request = {
            "run": str(run.path),
            "log": str(run.log),
            "environment": slot.environment,
            "options": options,
        }
        try:
            self._server.tell(request)
        except OSError:  # the server died; its workers go on
            self._server.restart()
            self._server.tell(request)
        self._children.add(run.id)
        self._stopping.discard(run.id)

    def poll(self, wait_s: float = 0.0) -> dict[str, int]:
        exit_codes, self._lost = dict.fromkeys(self._lost, 255), set()
        line = self._server.line
        while select.select([line] if line else [], [], [], 0.0 if exit_codes else wait_s)[0]:
            try:
                message = self._server.hear()
            except OSError:
                self._server.restart()
                return exit_codes | self.poll()
            exit_codes[message["run"]] = message["exit"]
            self._children.discard(message["run"])
        return exit_codes

    def stop(self, run: RunDir, now: bool = False) -> None:
        if run.id in self._children:  # its parent, the server, can't mistake it
            if not now and run.id in self._stopping:
                return
            if not now and run.lock.is_held():
                run.ask_to_stop()
            number = signal.SIGKILL if now else signal.SIGTERM
            with contextlib.suppress(OSError):
                self._server.tell({"run": run.id, "signal": int(number)})
                self._stopping.add(run.id)
                return
        super().stop(run, now)

    def free(self) -> None:
        """End the server. Workers have sessions of their own, and continue."""
        self._server.free(kill=not self._children)
        self._children = set()

    def _died(self) -> None:
        """Note that the server is dead: from now on the locks of its workers answer for them."""
        self._lost |= self._children
        self._children = set()


def worker_environment(slots: Sequence[Slot]) -> dict[str, str]:
    """Return the environment variables that a worker's process needs from its start."""
    if slots[0].device == "cpu":
        return CPU
    return {  # read when CUDA starts
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # deterministic cuBLAS
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as nvidia-smi counts; else the fastest is first
    }


def slots(
    gpus: Sequence[Gpu],
    runs_per_gpu: int,
    gpus_per_run: int | str = 1,
    cores_per_run: int | str = 1,
) -> list[Slot]:
    """Make `runs_per_gpu` slots on each GPU, or one on each group of so many GPUs, or of cores;
    "auto": on the groups of every size. CUDA shows a process one slice (MIG) at most, so slices
    have no groups.

    There are never more threads than cores, except for one run with more ranks than that. Raises
    UserError for numbers that can't be had here.
    """
    if gpus and cores_per_run != 1:
        raise UserError("launcher.cores_per_run: needs launcher.devices=cpu, for there are GPUs")
    verb = "is" if len(gpus) == 1 else "are"
    supply = f"{count_text(len(gpus), 'GPU')} {verb} used here"
    check_groups(runs_per_gpu, gpus_per_run, len(gpus), supply)
    slices = [gpu for gpu in gpus if gpu.uuid.startswith("MIG-")]
    if slices:
        if gpus_per_run not in ("auto", 1):
            raise UserError(
                f"launcher.gpus_per_run: got {gpus_per_run}, but gpu:{slices[0].index} is a MIG "
                f"slice, and CUDA shows a process only one; give 1, or choose whole GPUs by "
                f"launcher.devices"
            )
        gpus_per_run = 1
    kind, per_run = ("gpu", gpus_per_run) if gpus else ("cpu", cores_per_run)
    cores = max(len(os.sched_getaffinity(0)), 1 if per_run == "auto" else int(per_run))
    indices = [gpu.index for gpu in gpus] or [str(core) for core in range(cores)]
    groups = [
        range(start, start + size)
        for size in open_world_sizes(per_run, len(indices))
        for start in range(0, len(indices) - size + 1, size)
    ]
    single_slots = [
        Slot(
            name=name,
            place=name if gpus else "cpu",
            device="cuda" if gpus else "cpu",
            visible=",".join(gpus[n].uuid for n in group) if gpus else None,
            ranks=len(group),
            group=[f"{kind}:{indices[n]}" for n in group] if len(group) > 1 else (),
        )
        for group in groups
        for name in [f"{kind}:{'+'.join(indices[n] for n in group)}"]
    ]
    return packed(single_slots, runs_per_gpu) if gpus else single_slots


def fixed_runs(runs_per_gpu: int | str) -> int:
    """Return `launcher.runs_per_gpu` as a number: 1 for "auto", until it is decided."""
    return 1 if runs_per_gpu == "auto" else int(runs_per_gpu)


def check_groups(runs_per_gpu: int, gpus_per_run: int | str, gpus: int, there: str) -> None:
    """Raise UserError where GPUs can't be grouped so; `there`: how many there are, in words."""
    if gpus_per_run != "auto" and int(gpus_per_run) > max(gpus, 1):
        advice = f"give at most {max(gpus, 1)}, or auto"
        raise UserError(f"launcher.gpus_per_run: {gpus_per_run}, and {there}; {advice}")
    if gpus_per_run != 1 and runs_per_gpu > 1:
        raise UserError("launcher.gpus_per_run: a run has its GPUs alone; leave runs_per_gpu out")


class Inline(Here):
    """A launcher that trains one run at a time in this process: `start` returns when the run is
    done. Everything is loaded here; torch, too, if the run wants it.

    A signal during a run reaches the worker itself; no worker is left to stop afterwards.
    """

    def __init__(self, settings: Tree, cache: Path) -> None:
        self.devices = find(settings["devices"], os.environ.get("CUDA_VISIBLE_DEVICES"))
        gpus = self.devices.gpus
        if len(gpus) > 1:
            raise UserError(
                f"launcher.devices: launcher=inline trains on one, got "
                f"{', '.join(gpu.index for gpu in gpus)}"
            )
        self.slots = slots(gpus, 1) if gpus else [Slot("inline", "cpu", "cpu")]
        self._settings, self._cache = settings, cache
        self._exit_codes: dict[str, int] = {}

    def warm(self) -> None:
        """Do nothing: torch loads in this process, with the first question or run."""

    def ask(self, verb: str, question: Tree, progress: Progress = silent) -> dict[str, Any]:
        answer: dict[str, Any] = self._worker().answer(verb, question, progress)
        return answer

    def unfit(self, slots: Sequence[Slot]) -> dict[str, str]:
        questions = {slot.name: {"device": slot.device} for slot in slots if slot.device != "cpu"}
        reasons = {
            name: self.ask("kernel", question)["why"] for name, question in questions.items()
        }
        return {name: line for name, line in reasons.items() if line}

    def start(self, run: RunDir, slot: Slot, settled: Tree | None = None) -> None:
        with noted_signals(*ENDING_SIGNALS) as signals:
            work = work_on(str(run.path), self._worker)  # torch takes seconds to load
        if signals:  # the worker would not hear of them
            self._exit_codes[run.id] = EXIT_AWAY
            for number in signals:
                signal.raise_signal(number)
            return
        options = worker_options(slot, self._settings, self._cache, settled)
        self._exit_codes[run.id] = work(str(run.path), options)

    def poll(self, wait_s: float = 0.0) -> dict[str, int]:
        exit_codes, self._exit_codes = self._exit_codes, {}
        return exit_codes

    def free(self) -> None:
        pass

    def _worker(self) -> Any:
        """Import the worker by name, since the process boundary is here. Variables that CUDA reads
        when it starts are set before."""
        if self.slots[0].device != "cpu":
            os.environ.update({**worker_environment(self.slots), **self.slots[0].environment})
        return importlib.import_module("ablate.training.worker")
