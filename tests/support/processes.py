"""Find, kill, freeze and fork processes; those of a sweep by the locks that they hold."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from conftest import ABLATE, Shell, wait_for

from ablate.shared.files import Lock


def held_runs(folder: Path) -> dict[int, str]:
    """Process ids of this store's living workers, by the lock files they hold open, and their runs.
    A command opens these files, too, for a moment, to look at them."""
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                for descriptor in (process / "fd").iterdir():
                    target = os.readlink(descriptor)
                    if target.startswith(f"{folder}/runs/runs/") and target.endswith("/lock"):
                        if ABLATE.encode() not in (process / "cmdline").read_bytes().split(b"\0"):
                            found[int(process.name)] = Path(target).parent.name
                        break
    return found


def workers(folder: Path) -> list[int]:
    return [*held_runs(folder)]


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def freeze(pids: list[int]) -> list[int]:
    """Those that live, stopped by now: a signal takes a while to arrive."""

    def state(pid: int) -> str:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return "gone"

    kill(pids, signal.SIGSTOP)
    wait_for(lambda: all(state(pid) in ("T", "Z", "X", "gone") for pid in pids))
    return [pid for pid in pids if state(pid) == "T"]


def freeze_workers(shell: Shell) -> list[int]:
    """Workers at work that do nothing until `thaw`: what happens meanwhile is no race. They have
    noted who they are: nobody can know or tell of one that has just taken its lock."""

    def at_work() -> list[int]:
        found = held_runs(shell.folder)
        pids = freeze([*found])
        locks = (Lock(shell.folder / "runs" / "runs" / found[pid] / "lock") for pid in pids)
        if pids and {lock.notes().pid for lock in locks} == {*pids}:
            return pids
        thaw(pids)
        return []

    return wait_for(at_work)


def thaw(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def die(driver: subprocess.Popen) -> None:
    driver.kill()
    driver.wait()


def disturb(shell: Shell, words: tuple[str, ...], moment: random.Random, kills: int) -> None:
    """Start the command and kill driver, workers or both at a random moment, so many times."""
    for _ in range(kills):
        driver = shell.start(*words)
        time.sleep(moment.choice([moment.uniform(0.05, 1.0), moment.uniform(1.0, 4.0)]))
        victim = moment.choice(["driver", "workers", "both"])
        if victim != "driver":
            kill(workers(shell.folder))
            if victim == "workers":
                time.sleep(moment.uniform(0, 1))
        die(driver)


def family(pid: int) -> Iterator[int]:
    """A process and its children, theirs, too."""
    yield pid
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in file.read_text().split():
            yield from family(int(child))


def forked(*works: Callable[[], Any]) -> list[subprocess.CompletedProcess[str]]:
    """How these end, all at once, each in a process of its own that has loaded what we have."""
    with contextlib.ExitStack() as stack:
        pids, files = [], []
        for work in works:
            files.append([stack.enter_context(tempfile.TemporaryFile("w+")) for _ in "oe"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which none needs
                pids.append(os.fork())
            if not pids[-1]:
                _child(work, *files[-1])
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        return [
            subprocess.CompletedProcess((), code, *(file.seek(0) or file.read() for file in both))
            for code, both in zip(codes, files, strict=True)
        ]


def _child(work: Callable[[], Any], out: TextIO, err: TextIO) -> None:
    """Prints what `work` returns, where that is something."""
    code = 1
    try:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        if (found := work()) is not None:
            print(found, flush=True)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)
