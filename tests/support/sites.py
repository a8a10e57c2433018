"""Sites on which sweeps are tested: an engine, how it is asked, and its parts that may die."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grid_engine
import workstations
from grid_engine import GridEngine
from workstations import Workstations

from support.far_sweeps import CPU


class Site:
    """A real engine on this host. `words`: of a sweep there; `environment`: of who asks it."""

    words: tuple[str, ...]
    environment: Mapping[str, str]

    def kill_pilot(self, beat: dict[str, Any]) -> None:
        """kill -9 of a pilot, by its beat."""
        raise NotImplementedError

    def kill_daemon(self, beat: dict[str, Any]) -> None:
        """kill -9 of what the engine has on the host of a pilot; it comes back."""
        raise NotImplementedError

    def cancel(self, job: str) -> None:
        """End a job by the engine's own command."""
        raise NotImplementedError

    def jobs(self, name: str) -> list[str]:
        """The jobs of this name that wait or run."""
        raise NotImplementedError

    def state(self) -> str:
        """Of its jobs and hosts, for people."""
        raise NotImplementedError


class GridEngineSite(Site):
    words = ("launcher=sge", *CPU, "launcher.jobs=2")

    def __init__(self, cluster: GridEngine) -> None:
        self.cluster, self.environment = cluster, cluster.environment

    def kill_pilot(self, beat: dict[str, Any]) -> None:
        os.kill(beat["pid"], signal.SIGKILL)

    def kill_daemon(self, beat: dict[str, Any]) -> None:
        self.cluster.kill("execd")
        self.cluster.start_node()
        self.cluster.wait_for_node()

    def cancel(self, job: str) -> None:
        self.cluster.told("qdel", job)

    def jobs(self, name: str) -> list[str]:
        return self.cluster.jobs(name)

    def state(self) -> str:
        return self.cluster.state()


class SshSite(Site):
    def __init__(self, hosts: Workstations) -> None:
        self.hosts, self.environment = hosts, hosts.environment
        names = ",".join(hosts.names)
        self.words = ("launcher=ssh", *CPU, f"launcher.hosts={names}", "launcher.jobs=2")

    def kill_pilot(self, beat: dict[str, Any]) -> None:
        self.hosts.kill(beat["host"], beat["pid"])

    def kill_daemon(self, beat: dict[str, Any]) -> None:
        self.hosts.kill_sshd(beat["host"])
        self.hosts.start_sshd(beat["host"])

    def cancel(self, job: str) -> None:
        host, _, pid = job.partition(":")
        self.hosts.told(host, "kill", "-9", f"-{pid}")

    def jobs(self, name: str) -> list[str]:
        return [
            f"{host}:{line.split()[0]}"
            for host in self.hosts.names
            for line in self.hosts.told(host, "pgrep", "-f", f"'{name}[ ]'").splitlines()
        ]

    def state(self) -> str:
        return self.hosts.state()


@contextmanager
def grid_engine_site() -> Iterator[GridEngineSite]:
    base = Path(tempfile.mkdtemp(prefix="ge", dir="/tmp"))
    try:
        cluster = GridEngine(base)
        yield GridEngineSite(cluster)
        cluster.end()
    finally:
        shutil.rmtree(base, ignore_errors=True)


@contextmanager
def ssh_site() -> Iterator[SshSite]:
    base = Path(tempfile.mkdtemp(prefix="ws", dir="/tmp"))
    try:
        hosts = Workstations(base)
        yield SshSite(hosts)
        hosts.end()
    finally:
        shutil.rmtree(base, ignore_errors=True)


# name -> why it can't be had here, and how it is
SITES: dict[str, tuple[Callable[[], str], Callable[[], Any]]] = {
    "sge": (grid_engine.lacks, grid_engine_site),
    "ssh": (workstations.lacks, ssh_site),
}
