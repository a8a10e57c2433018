"""Sites on which sweeps are tested: an engine, how it is asked, and its parts that may die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import grid_engine
import pytest
import slurm_cluster
import workstations
from conftest import Shell, wait_for
from fake_site import FakeSite
from grid_engine import GridEngine
from slurm_cluster import SlurmCluster
from workstations import Workstations

from ablate.store.pilots import store_token
from support.daemons import short_folder
from support.far_sweeps import CPU, OFTEN, ROWS, share_data


class Site:
    """An engine on this host. `settings`: of its launcher; `words`: of a sweep there;
    `environment`: of who asks it."""

    engine: str
    settings: Mapping[str, Any] = {}
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

    def jobs_of(self, root: Path) -> list[str]:
        """The jobs of a store that wait or run."""
        token = store_token(root)
        return self.jobs(f"ablate-{token}") if token else []

    def closed_queue(self) -> AbstractContextManager[None]:
        """Jobs are taken meanwhile, and none starts."""
        raise NotImplementedError

    def state(self) -> str:
        """Of its jobs and hosts, for people."""
        raise NotImplementedError

    def end(self) -> None:
        """End the engine, and all that it runs."""
        raise NotImplementedError


class RealSite(Site):
    """An engine whose own programs are here."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.environment = cluster, cluster.environment

    def state(self) -> str:
        return self.cluster.state()

    def end(self) -> None:
        self.cluster.end()


class SlurmSite(RealSite):
    engine = "slurm"
    words = ("launcher=slurm", *CPU, "launcher.jobs=2")
    cluster: SlurmCluster

    def jobs(self, name: str) -> list[str]:
        return self.cluster.output("squeue", "-h", "-r", "-n", name, "-o", "%i").split()

    @contextmanager
    def closed_queue(self) -> Iterator[None]:
        partition = self.cluster.output("sinfo", "-h", "-o", "%R").split()[0]
        change = ("scontrol", "update", f"PartitionName={partition}")
        self.cluster.output(*change, "State=DOWN")
        try:
            yield
        finally:
            self.cluster.output(*change, "State=UP")


class GridEngineSite(RealSite):
    engine = "sge"
    words = ("launcher=sge", *CPU, "launcher.jobs=2")
    cluster: GridEngine

    def kill_pilot(self, beat: dict[str, Any]) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has gone this moment
            os.kill(beat["pid"], signal.SIGKILL)

    def kill_daemon(self, beat: dict[str, Any]) -> None:
        self.cluster.kill("execd")
        self.cluster.start_node()
        self.cluster.wait_for_node()

    def cancel(self, job: str) -> None:
        self.cluster.output("qdel", job)

    def jobs(self, name: str) -> list[str]:
        return self.cluster.jobs(name)

    @contextmanager
    def closed_queue(self) -> Iterator[None]:
        self.cluster.output("qmod", "-d", "all.q")
        try:
            yield
        finally:
            self.cluster.output("qmod", "-e", "all.q")


class SshSite(RealSite):
    engine = "ssh"
    cluster: Workstations

    def __init__(self, hosts: Workstations) -> None:
        super().__init__(hosts)
        names = ",".join(hosts.names)
        self.settings = {"hosts": names}
        self.words = ("launcher=ssh", *CPU, f"launcher.hosts=[{names}]", "launcher.jobs=2")

    def kill_pilot(self, beat: dict[str, Any]) -> None:
        self.cluster.kill(beat["host"], beat["pid"])

    def kill_daemon(self, beat: dict[str, Any]) -> None:
        self.cluster.kill_sshd(beat["host"])
        self.cluster.start_sshd(beat["host"])

    def cancel(self, job: str) -> None:
        host, _, pid = job.partition(":")
        self.cluster.output(host, "kill", "-9", f"-{pid}")

    def jobs(self, name: str) -> list[str]:
        return [
            f"{host}:{line.split()[0]}"
            for host in self.cluster.names
            for line in self.cluster.output(host, "pgrep", "-f", f"'{name}[ ]'").splitlines()
        ]


class ProcessSite(Site):
    """An engine whose clients are `fake_site`'s."""

    def __init__(self, engine: str, fakes: FakeSite) -> None:
        self.engine, self.fakes, self.environment = engine, fakes, fakes.environment
        self.words = (f"launcher={engine}", *CPU, "launcher.jobs=2", *FAKE_ENGINES[engine])

    def kill_pilot(self, beat: dict[str, Any]) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has gone this moment
            os.kill(beat["pid"], signal.SIGKILL)

    def cancel(self, job: str) -> None:
        by_id = {job.number: job for job in self.fakes.jobs()}
        by_id[int(job)].kill()

    def jobs(self, name: str) -> list[str]:
        listed = [job for job in self.fakes.jobs() if job.code is None]
        return [str(job.number) for job in listed if job.facts["name"].startswith(name)]

    def end(self) -> None:
        self.fakes.end()

    def state(self) -> str:
        jobs = self.fakes.jobs()
        return "\n".join(f"{job.number} {job.code} {job.facts} {job.output()}" for job in jobs)


# name -> what else a sweep there needs
FAKE_ENGINES: dict[str, tuple[str, ...]] = {
    "pbs": (),
    "lsf": (),
    "kubernetes": (
        "launcher.image=lab/ablate",
        "launcher.claim=store",
        "launcher.mount=/",
        f"launcher.python={sys.executable}",
    ),
    "skypilot": ("launcher.volume=store", "launcher.mount=/"),
}
# name -> why it can't be had here, and how it is made in an empty folder
SITES: dict[str, tuple[Callable[[], str], Callable[[Path], Site]]] = {
    "slurm": (slurm_cluster.lacks, lambda base: SlurmSite(SlurmCluster(base, nodes=1))),
    "sge": (grid_engine.lacks, lambda base: GridEngineSite(GridEngine(base))),
    "ssh": (workstations.lacks, lambda base: SshSite(Workstations(base))),
}


@contextmanager
def started_site(engine: str) -> Iterator[Site]:
    """A site of SITES; a test is skipped where it can't be had."""
    lacks, make = SITES[engine]
    if lacks():
        pytest.skip(lacks())
    with short_folder() as base:
        site = make(base)
        try:
            yield site
        finally:
            site.end()


class FarSweeps:
    """Starts the sweep of `far_sweeps` on a site, and leaves nothing there."""

    def __init__(self, shell: Shell, site: Site, calm: Shell) -> None:
        self._shell, self._site, self._calm = shell, site, calm
        self._started: list[subprocess.Popen] = []

    def __call__(
        self, *words: str, sleep: float = 0.06, limits: Sequence[str] = OFTEN
    ) -> subprocess.Popen:
        share_data(self._shell, self._calm)
        setup = f"launcher.setup='export OMP_NUM_THREADS=1 SLEEP={sleep}'"
        given = {word.partition("=")[0] for word in words}
        site_words = [word for word in self._site.words if word.partition("=")[0] not in given]
        words = ("sweep", *ROWS, *limits, *site_words, setup, "seeds=2", *words)
        self._started.append(self._shell.start(*words, **self._site.environment))
        return self._started[-1]

    def jobs(self) -> list[str]:
        """The jobs of the store that wait or run."""
        return self._site.jobs_of(self._shell.folder / "runs")

    def end(self) -> None:
        print(self._site.state())  # which is shown where the test failed
        for path in sorted(self._shell.folder.glob("*.out")):
            print(path.read_text()[-4000:])
        for process in self._started:
            process.kill()
            process.wait()
        for job in self.jobs():
            self._site.cancel(job)
        wait_for(lambda: not self.jobs())
