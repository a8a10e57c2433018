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

import torch
from conftest import ABLATE, Shell, wait_for

from ablate.shared.files import Lock


def held_runs(folder: Path) -> dict[int, str]:
    """List the living workers of the store in `folder`/runs: their process ids and their runs, by
    the lock files that they hold open. Commands, which open these files for a moment, are left out.
    """
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
    """List the process ids of the living workers of the store in `folder`/runs."""
    return [*held_runs(folder)]


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to those of these processes that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def freeze(pids: list[int]) -> list[int]:
    """Stop these processes, wait until each has stopped or ended, and return the stopped ones."""

    def state(pid: int) -> str:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return "gone"

    kill(pids, signal.SIGSTOP)
    wait_for(lambda: all(state(pid) in ("T", "Z", "X", "gone") for pid in pids))
    return [pid for pid in pids if state(pid) == "T"]


def freeze_workers(shell: Shell) -> list[int]:
    """Stop the workers that train, until `thaw`, and return their process ids: what happens
    meanwhile is no race. Waits until each has noted its process id in its run's lock."""

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
    """Let stopped processes go on."""
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def die(driver: subprocess.Popen) -> None:
    """Kill a driver and wait for its end."""
    driver.kill()
    driver.wait()


def disturb(shell: Shell, words: tuple[str, ...], moment: random.Random, kills: int) -> None:
    """Start the command and kill driver, workers or both at a random moment, `kills` times."""
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
    """List a process and all its descendants."""
    yield pid
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in file.read_text().split():
            yield from family(int(child))


def forked(*works: Callable[[], Any]) -> list[subprocess.CompletedProcess[str]]:
    """Run these functions at once, each in a fork of this process; return their exit codes and what
    they printed."""
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
    """Run `work` in a fork, print what it returns unless that is None, and end the process."""
    code = 1
    try:
        torch.set_num_threads(1)  # a fork has none of OpenMP's threads, and waits for them for ever
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
