"""The fork server: `python -m ablate.running.launchers.server`.

It loads the worker once, by name, reads one JSON request a line on standard input, and forks a
process for each; it answers {"run": id, "exit": code} when that process ends, and passes signals
to it where asked. When its input closes, its driver is gone or done: it ends, and the workers go
on.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any


def serve() -> None:
    worker = importlib.import_module("ablate.training.worker")
    worker.preload()
    gc.collect()
    gc.freeze()  # or every child's collector touches, and so copies, all of this process's pages
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, str] = {}
    buffer = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 1 << 12)
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            answer = {"run": children.pop(pid), "exit": os.waitstatus_to_exitcode(status)}
            os.write(1, json.dumps(answer).encode() + b"\n")
        if 0 in ready:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if "signal" in request:  # not yet reaped, so the pid is still the child's
                    for pid, run in children.items():
                        if run == request["run"]:
                            os.kill(pid, request["signal"])
                    continue
                pid = os.fork()
                if pid == 0:
                    become_worker(worker, request)
                children[pid] = Path(request["run"]).name


def become_worker(worker: Any, request: dict[str, Any]) -> None:
    """In the forked child: a session of its own, nothing inherited, work, exit. Never returns."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.closerange(3, 1024)
        os.environ.update(request["environment"])
        code = worker.work(request["run"], request["options"])
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):  # a full disk must not change the exit code
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
