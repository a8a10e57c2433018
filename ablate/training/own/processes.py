"""The processes that a run of the user's own code started, wherever they went.

Each has a tag in its environment that names the run. By it a process is found even when the worker
that started it is dead, and when it has left its parent, its group and its session. A worker that
was forked is also the parent of whatever its descendants leave behind, so it also finds those that
have cleared their environment.

Used by training/own/command.py and training/own/work.py, for every run of
`ablate sweep trainer=NAME`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from ablate.run import RunDir
from ablate.shared import adopt_orphans, file_identity

TAG = "ABLATE_RUN"  # in the environment of all of them
DEATH_S = 30.0  # for what was killed to be gone
LOOK_S, LOOK_SHARE = 2.0, 0.01  # between two looks for them, and the share of time that looks take
TICKS = os.sysconf("SC_CLK_TCK")


def machine() -> str:
    """Return a text that is equal where processes see one another: in one boot of one kernel and
    one process namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def tag_of(rundir: RunDir) -> str:
    """Return the tag of a run: the same for all its attempts, whichever path leads to its store (a
    link, a second mount)."""
    runs = rundir.runs
    device, inode = file_identity(runs) or (0, 0)
    return f"{device}-{inode}-{rundir.id}"


def processes_of(tag: str, parent: int | None = None) -> list[int]:
    """List the live processes of a run, without this one: those that have its tag, and all that
    descend from them or from `parent`."""
    entry = f"{TAG}={tag}".encode()
    parents: dict[int, int] = {}
    members = set[int]() if parent is None else {parent}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            pid = int(folder.name)
            _, _, stat = (folder / "stat").read_bytes().rpartition(b")")
            state, parent_pid = stat.split()[:2]
            if state in b"ZX":
                continue
            parents[pid] = int(parent_pid)
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                members.add(pid)
    while True:
        children = {pid for pid, parent_pid in parents.items() if parent_pid in members}
        if children <= members:
            break
        members |= children
    return sorted(members - {os.getpid()})


def end_processes(tag: str, parent: int | None = None) -> None:
    """Kill all of `processes_of`, until none lives. Raises TimeoutError where some don't die."""
    until = time.monotonic() + DEATH_S
    while alive := processes_of(tag, parent):
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise TimeoutError(
                f"process {', '.join(str(pid) for pid in alive)} of an attempt at this run was "
                f"killed and does not end"
            )
        time.sleep(0.01)


class Processes:
    """The processes of one run, as its worker sees them."""

    def __init__(self, rundir: RunDir, adopts: bool) -> None:
        """`adopts`: all descendants of this process are the run's, and it becomes the parent of
        orphans."""
        self.tag = tag_of(rundir)
        self._parent = os.getpid() if adopts else None
        self._pids: list[int] = []
        self._look_at = 0.0
        if adopts:
            adopt_orphans()

    def end(self) -> None:
        """Kill them all. Raises as `end_processes`."""
        end_processes(self.tag, self._parent)

    def send(self, number: int) -> None:
        """Send a signal to each of them."""
        for pid in processes_of(self.tag, self._parent):
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the processes that live, updated from time to time: one that
        was just started may be missing."""
        clock_s = time.monotonic()
        if clock_s >= self._look_at:
            self._pids = processes_of(self.tag, self._parent)
            self._look_at = clock_s + max(LOOK_S, (time.monotonic() - clock_s) / LOOK_SHARE)
        total = 0.0
        for pid in self._pids:
            with contextlib.suppress(OSError, IndexError, ValueError):
                _, _, stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")
                user_ticks, system_ticks = stat.split()[11:13]  # proc_pid_stat(5)
                total += (int(user_ticks) + int(system_ticks)) / TICKS
        return total
