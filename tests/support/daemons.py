"""What test clusters share: ports that are free, and waiting for what a daemon does."""

import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path


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
