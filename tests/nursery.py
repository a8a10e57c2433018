"""The process that fork servers are forked from where a test's command needs one: most of starting
a server is to load torch. It is a script of its own, so that it has loaded what a server loads and
nothing else; whoever starts a server as users do starts it by `Shell.start` or `Shell.process`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

# Read when a process starts, or by libraries as they are loaded: malloc's change no result, KMP_ is
# not that of the OpenMP in use, and scikit-learn sets some as it is loaded.
AT_START = ("PYTHON", "LD_", "OMP_", "GOMP_", "MKL_")


class Server:
    """A forked server, as a `Popen` of it would be."""

    def __init__(self, pid: int, handle: int) -> None:
        self.pid, self._handle, self.returncode = pid, handle, None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._handle], [], [], 0)[0]:
            self._ended()
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            select.select([self._handle], [], [])
            self._ended()
        return self.returncode

    def _ended(self) -> None:
        """Which code it ended with, the nursery alone knows, and nobody asks."""
        os.close(self._handle)
        self.returncode = 0


class Nursery:
    """In the place of `subprocess`, where `ForkServer` starts its process. Its own is started with
    the first server that it is asked for."""

    DEVNULL = subprocess.DEVNULL

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._has: dict[str, str] = {}

    def Popen(self, line: Sequence[str], *, stdin: int, env: Mapping[str, str], **more: Any) -> Any:
        """A server, by `subprocess` where the environment would have loaded other libraries."""
        if self._line is None:
            self._line = self._opened()
        if _at_start(env) != self._has:
            return subprocess.Popen(line, stdin=stdin, env=env, **more)
        request = {
            "tied": "tied" in line,
            "folder": os.getcwd(),
            "environment": dict(env),
            "cores": [*os.sched_getaffinity(0)],
        }
        socket.send_fds(self._line, [json.dumps(request).encode()], [stdin, 2])
        pid, handles, _, _ = socket.recv_fds(self._line, 64, 1)
        return Server(int(pid), *handles)

    def _opened(self) -> socket.socket:
        from ablate.running.launchers.local import CPU

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {**os.environ, **CPU}
        self._has = _at_start(env)
        with theirs:
            words = [sys.executable, "-P", __file__]
            self._process = subprocess.Popen(words, stdin=theirs.fileno(), env=env)
        return ours

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._process.wait()


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(AT_START)}


def live() -> None:
    """Fork a server for each request on standard input, until that closes."""
    import gc

    from ablate.running.launchers import server
    from ablate.training import worker

    worker.preload()
    gc.collect()
    gc.freeze()
    line = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        content, files, _, _ = socket.recv_fds(line, 1 << 18, 2)
        if not content:
            return
        if not (pid := os.fork()):
            _become(server, json.loads(content), *files)
        handle = os.pidfd_open(pid)
        socket.send_fds(line, [str(pid).encode()], [handle])
        for file in (handle, *files):
            os.close(file)


def _become(server, request: dict, stdin: int, stderr: int) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(stderr, 2)
        os.closerange(3, 1024)
        os.sched_setaffinity(0, request["cores"])
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        server.serve(request["tied"])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


if __name__ == "__main__":
    live()
