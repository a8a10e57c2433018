"""On this machine: a fork server that has torch loaded, one fresh process a run.

Starting an interpreter that imports torch takes over a second, forking one takes milliseconds. The
server is ours and not multiprocessing's: that one makes every child import the command's main
module again, and joins children at exit, whereas our workers shall outlive their driver.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from ablate.running.launchers import Slot, worker_options
from ablate.shared.rundir import RunDir
from ablate.store.liveness import HostLock

# Activations are no longer mapped and unmapped at every step: 1.2-1.3x on CPU. Read by malloc when
# a process starts, so they must be set before the server does; a forked child is too late.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(8 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 30),
}


class Local(HostLock):
    """One worker a GPU (`runs_per_gpu` for more); without a GPU one a core, one thread each."""

    def __init__(self, settings: Mapping[str, Any], cache: Path) -> None:
        self._settings, self._cache = settings, cache
        self.slots = slots(gpus(), settings["runs_per_gpu"])
        self._server: subprocess.Popen[bytes] | None = None
        self._children: set[str] = set()
        self._lost: set[str] = set()  # whose server died, not told yet
        self._buffer = b""

    def warm(self) -> None:
        self._pipes()

    def start(self, run: RunDir, slot: Slot) -> None:
        request = {
            "run": str(run.path),
            "log": str(run.log),
            "environment": {} if slot.visible is None else {"CUDA_VISIBLE_DEVICES": slot.visible},
            "options": worker_options(slot, self._settings, self._cache),
        }
        line = json.dumps(request).encode() + b"\n"
        try:
            self._pipes()[0].write(line)
        except BrokenPipeError:  # the server died; its workers go on
            self._restart()
            self._pipes()[0].write(line)
        self._children.add(run.id)

    def poll(self, wait_s: float = 0.0) -> dict[str, int]:
        exits, self._lost = dict.fromkeys(self._lost, 255), set()
        if self._server is None:
            select.select([], [], [], 0.0 if exits else wait_s)
            return exits
        out = self._pipes()[1]
        while select.select([out], [], [], 0.0 if exits else wait_s)[0]:
            chunk = os.read(out.fileno(), 1 << 16)
            if not chunk:
                self._restart()
                return exits | self.poll()
            *lines, self._buffer = (self._buffer + chunk).split(b"\n")
            for line in lines:
                answer = json.loads(line)
                exits[answer["run"]] = answer["exit"]
                self._children.discard(answer["run"])
        return exits

    def stop(self, run: RunDir, now: bool = False) -> None:
        if run.id in self._children:  # its parent, the server, can't mistake it
            request = {"run": run.id, "signal": int(signal.SIGKILL if now else signal.SIGTERM)}
            with contextlib.suppress(BrokenPipeError):
                self._pipes()[0].write(json.dumps(request).encode() + b"\n")
                return
        super().stop(run, now)

    def free(self) -> None:
        """The server ends when its input does; workers have sessions of their own."""
        if self._server is not None:
            for pipe in self._pipes():
                pipe.close()
            if not self._children:  # it may still be loading
                self._server.kill()
            self._server.wait()
            self._server, self._children = None, set()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-m", "ablate.running.launchers.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # the terminal's Ctrl-C is the driver's to handle
                env={**os.environ, **environment(self.slots)},
            )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        return self._server.stdin, self._server.stdout

    def _restart(self) -> None:
        """After the server's death: it can no longer tell of its workers; their locks can."""
        assert self._server is not None
        self._server.kill()
        self._server.wait()
        for pipe in self._pipes():
            pipe.close()
        self._lost |= self._children
        self._server, self._buffer, self._children = None, b"", set()


def environment(slots: list[Slot]) -> dict[str, str]:
    """What workers need in place before their interpreter starts."""
    if slots[0].device == "cpu":
        return {**MALLOC, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # deterministic cuBLAS, read when CUDA starts


def gpus() -> list[str]:
    """The GPUs that this process may use: an outer CUDA_VISIBLE_DEVICES is honoured."""
    outer = os.environ.get("CUDA_VISIBLE_DEVICES")
    if outer is not None:
        names = outer.replace(" ", "").split(",")
        # CUDA sees none from the first invalid one on
        return list(itertools.takewhile(lambda gpu: gpu not in ("", "-1"), names))
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=index", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    return [line.strip() for line in answer.stdout.splitlines() if line.strip().isdigit()]


def slots(gpus: list[str], runs_per_gpu: int) -> list[Slot]:
    """One slot a GPU times `runs_per_gpu`, or one a core: never more threads than cores."""
    if not gpus:
        cores = len(os.sched_getaffinity(0))
        return [Slot(f"cpu:{core}", "cpu", "cpu") for core in range(cores)]
    return [
        Slot(f"gpu:{gpu}" + (f".{place}" if runs_per_gpu > 1 else ""), f"gpu:{gpu}", "cuda", gpu)
        for place in range(runs_per_gpu)
        for gpu in gpus
    ]
