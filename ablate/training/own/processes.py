"""The processes of a program: those that it started, wherever they went, end with its run.

Each has the run's folder in its environment, by which it is found even when the worker that began
it is dead, and when it has left its parent, its group and its session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

TAG = "ABLATE_RUN"  # in the environment of all of them
DEATH_S = 30.0  # for what was killed to be gone
TICKS = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Make this process the parent of what its children leave behind (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def machine() -> str:
    """Equal where processes see one another: one boot of one kernel, one namespace of them."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def of_run(folder: str) -> list[int]:
    """The processes of that run that live, but for this one: those that have its tag, and all that
    descend from them or from this one."""
    tag = f"{TAG}={folder}".encode()
    parents: dict[int, int] = {}
    members: set[int] = set()
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            pid = int(each.name)
            state, parent = (each / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state in b"ZX":
                continue
            parents[pid] = int(parent)
            if tag in (each / "environ").read_bytes().split(b"\0"):
                members.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in members} - members:
        members |= more
    return sorted(members - {os.getpid()})


def send(folder: str, number: int) -> None:
    """Send a signal to all of them."""
    for pid in of_run(folder):
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def end(folder: str) -> None:
    """Kill all of them, until none lives. Raises TimeoutError where some don't die."""
    until = time.monotonic() + DEATH_S
    while alive := of_run(folder):
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise TimeoutError(
                f"process {', '.join(map(str, alive))} of an attempt at this run was killed and "
                f"does not end"
            )
        time.sleep(0.01)


def cpu_seconds(folder: str) -> float:
    """What they have computed so far, those that ended not counted."""
    total = 0.0
    for pid in of_run(folder):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parts = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            total += sum(map(int, parts[11:13])) / TICKS  # utime, stime: proc_pid_stat(5)
    return total
