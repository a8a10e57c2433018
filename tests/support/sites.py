"""Sites on which sweeps are tested: an engine, how it is asked, and its parts that may die."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import grid_engine
import slurm_cluster
import workstations
from conftest import Shell, wait_for
from fake_site import FakeSite
from grid_engine import GridEngine
from slurm_cluster import SlurmCluster
from workstations import Workstations

from ablate.store.pilots import store_token
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


class SlurmSite(Site):
    engine = "slurm"
    words = ("launcher=slurm", *CPU, "launcher.jobs=2")

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster, self.environment = cluster, cluster.environment

    def jobs(self, name: str) -> list[str]:
        return self.cluster.told("squeue", "-h", "-r", "-n", name, "-o", "%i").split()

    @contextmanager
    def closed_queue(self) -> Iterator[None]:
        partition = self.cluster.told("sinfo", "-h", "-o", "%R").split()[0]
        change = ("scontrol", "update", f"PartitionName={partition}")
        self.cluster.told(*change, "State=DOWN")
        try:
            yield
        finally:
            self.cluster.told(*change, "State=UP")


class GridEngineSite(Site):
    engine = "sge"
    words = ("launcher=sge", *CPU, "launcher.jobs=2")

    def __init__(self, cluster: GridEngine) -> None:
        self.cluster, self.environment = cluster, cluster.environment

    def kill_pilot(self, beat: dict[str, Any]) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has gone this moment
            os.kill(beat["pid"], signal.SIGKILL)

    def kill_daemon(self, beat: dict[str, Any]) -> None:
        self.cluster.kill("execd")
        self.cluster.start_node()
        self.cluster.wait_for_node()

    def cancel(self, job: str) -> None:
        self.cluster.told("qdel", job)

    def jobs(self, name: str) -> list[str]:
        return self.cluster.jobs(name)

    @contextmanager
    def closed_queue(self) -> Iterator[None]:
        self.cluster.told("qmod", "-d", "all.q")
        try:
            yield
        finally:
            self.cluster.told("qmod", "-e", "all.q")

    def state(self) -> str:
        return self.cluster.state()


class SshSite(Site):
    engine = "ssh"

    def __init__(self, hosts: Workstations) -> None:
        self.hosts, self.environment = hosts, hosts.environment
        names = ",".join(hosts.names)
        self.settings = {"hosts": names}
        self.words = ("launcher=ssh", *CPU, f"launcher.hosts=[{names}]", "launcher.jobs=2")

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
def slurm_site() -> Iterator[SlurmSite]:
    base = Path(tempfile.mkdtemp(prefix="sl", dir="/tmp"))
    try:
        cluster = SlurmCluster(base, nodes=1)
        yield SlurmSite(cluster)
        cluster.end()
    finally:
        shutil.rmtree(base, ignore_errors=True)


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
# name -> why it can't be had here, and how it is
SITES: dict[str, tuple[Callable[[], str], Callable[[], Any]]] = {
    "slurm": (slurm_cluster.lacks, slurm_site),
    "sge": (grid_engine.lacks, grid_engine_site),
    "ssh": (workstations.lacks, ssh_site),
}


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
