"""An engine whose jobs are processes of this host: all of a cluster but its queue."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from ablate.running.launchers.jobs import JobEnd
from ablate.running.launchers.pilots import PilotLauncher

FLY = """
import json, sys
from pathlib import Path
from ablate.running.launchers import pilot

root, settings, job, left, pilot.STALE_S = json.loads(sys.argv[1])
pilot.BEAT_S = 0.2
pilot.fly(Path(root), settings, job, "host" + job, left)
"""


class Processes:
    """See `ablate.running.launchers.jobs.Engine`. `limit`: seconds that a job may take;
    `stale_s`: without a driver, before a pilot takes nothing new."""

    silence = ""

    def __init__(self, settings: Mapping, root: Path, token: str) -> None:
        self.settings, self.root = {**settings, "token": token}, root
        self.jobs: dict[str, subprocess.Popen] = {}
        self.cancelled: set[str] = set()
        self.limit: float | None = None
        self.stale_s = 60.0

    def submit(self, count: int, excluded_hosts: Collection[str]) -> list[str]:
        names = [str(len(self.jobs) + n) for n in range(count)]
        for name in names:
            words = [str(self.root), self.settings, name, self.limit, self.stale_s]
            with open(self.log(name), "wb") as log:
                self.jobs[name] = subprocess.Popen(
                    [sys.executable, "-c", FLY, json.dumps(words)], stdout=log, stderr=log
                )
        return names

    def states(self) -> Mapping[str, bool] | None:
        return {name: True for name, job in self.jobs.items() if job.poll() is None}

    def ended(self, job: str) -> JobEnd:
        if job in self.cancelled:
            return JobEnd("CANCELLED", "lost")
        return JobEnd("COMPLETED") if self.jobs[job].poll() == 0 else JobEnd("NODE_FAIL", "lost")

    def cancel(self, jobs: Collection[str]) -> None:
        for job in jobs:
            self.cancelled.add(job)
            if self.jobs[job].poll() is None:
                os.kill(self.jobs[job].pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the jobs that are left, and wait until they are gone."""
        self.cancel(self.jobs)
        for job in self.jobs.values():
            job.wait()

    def log(self, job: str) -> str:
        return str(self.root / f"job-{job}.log")


def launcher(settings: Mapping, root: Path) -> tuple[PilotLauncher, Processes]:
    """A launcher of pilots on this host, and its engine."""
    made: list[Processes] = []

    def engine(token: str) -> Processes:
        made.append(Processes(settings, root, token))
        return made[0]

    return PilotLauncher(settings, root / "cache", engine), made[0]
