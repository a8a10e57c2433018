"""What test clusters share: ports that are free, and waiting for what a daemon does."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def lacking(programs: Sequence[str]) -> str:
    """Why daemons of these programs can't be had here, "" where they can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [program for program in programs if shutil.which(program) is None]
    return f"needs {', '.join(missing)}" if missing else ""


def output(words: Sequence[str], environment: Mapping[str, str], seconds: float = 15) -> str:
    """What a command prints, "" where it fails, or takes longer."""
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout if done.returncode == 0 else ""


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """An empty folder whose name leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(prefix="a", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def run_beside(what: str, missing: str, start: Callable[[Path], Any]) -> int:
    """Run the command of this process's arguments beside a cluster; its exit code. `missing`: why
    there can be none."""
    if missing:
        sys.exit(f"no {what}: {missing}")
    with short_folder() as base:
        cluster = start(base)
        try:
            return subprocess.run(sys.argv[1:], env=cluster.environment, check=False).returncode
        finally:
            cluster.end()


def free_ports(count: int) -> list[int]:
    """Free ones, below those that connections get: a daemon comes back to its port."""
    below = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports: list[int] = []
    for port in random.sample(range(min(10_000, below // 2), below), 100):
        with contextlib.suppress(OSError), socket.socket() as tried:
            tried.bind(("", port))
            ports.append(port)
    return ports[:count]


def answers(port: int, host: str = "127.0.0.1") -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False


def until(condition: Callable[[], object], what: str, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come up")
        time.sleep(0.1)


def end_process(pid_file: Path, number: int = signal.SIGKILL) -> None:
    """Send the daemon of a PID file a signal; return when it is gone."""
    pid = int(pid_file.read_text())
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    until(lambda: not Path(f"/proc/{pid}/exe").exists(), f"the end of {pid_file.stem}")
