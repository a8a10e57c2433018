"""Slurm, as an engine of pilots (`pilots.Engine`) and for a job in which the driver itself runs.

Used by `ablate sweep launcher=slurm` and `--detach job` (running/detach.py), and on nodes as the
program of a pilot. The settings are in planning/launcher.py; what maps them to options of sbatch is
in launchers/slurm_jobs.py (SITE), in `pilot_options` and, for the driver, in `submit_driver`.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.running.launchers import slurm_jobs
from ablate.running.launchers.pilot import fly
from ablate.running.launchers.pilots import PilotLauncher
from ablate.running.launchers.slurm_jobs import (
    Option,
    SlurmJob,
    given_settings,
    seconds,
    site_options,
)
from ablate.shared import Failure, UserError, make_folder

PILOT = "ablate.running.launchers.slurm"  # this module, whose main program is a pilot


def slurm(settings: Mapping[str, Any], cache: Path) -> PilotLauncher:
    """Make the launcher `slurm`. Raises UserError for a limit that leaves no time to train."""
    root = cache.parent.absolute()
    return PilotLauncher(settings, cache, functools.partial(Slurm, settings, root))


class Slurm:
    """The engine of Slurm: see `pilots.Engine`. The jobs of a store have its token in their name,
    whoever submitted them."""

    def __init__(self, settings: Mapping[str, Any], root: Path, token: str) -> None:
        self._settings, self._root, self._token = settings, root, token
        self._name = f"ablate-{token}"
        self._folder = root / "pilots" / "jobs"
        self._options = pilot_options(settings)

    def submit(self, count: int, without: Collection[str]) -> list[str]:
        try:
            make_folder(self._folder)
        except OSError as error:
            raise Failure(f"launcher=slurm: {self._folder}: {error.strerror}") from error
        return self.job(count, without).submit()

    def job(self, count: int, without: Collection[str] = ()) -> SlurmJob:
        """Return a job, an array of `count` jobs if that is more than 1, on none of the hosts
        `without`, with one pilot on each node."""
        job_id = "%A_%a" if count > 1 else "%j"
        first_log, task_log = (f"{self._folder}/{job_id}_{node}_log" for node in ("0", "%t"))
        job_options: dict[str, Option] = {
            "job-name": self._name,
            "output": f"{first_log}.out",
            "error": f"{first_log}.err",
            "open-mode": "append",  # a job that is requeued keeps what it wrote before
        }
        if without:
            job_options["exclude"] = ",".join(sorted(without))
        logs = ("--output", f"{task_log}.out", "--error", f"{task_log}.err")
        return SlurmJob(
            place="launcher=slurm",
            options={**job_options, **self._options},
            setup=self._settings["setup"],
            command=shlex.join(["srun", "--unbuffered", *logs, *self._pilot()]),
            given=given_settings(self._settings, "nodes", "gpus", "cpus"),
            count=count,
        )

    def _pilot(self) -> list[str]:
        """Return the command of a pilot.

        Everybody on a node can read it, so it lacks the private settings: `launcher.setup` and
        `launcher.sbatch`, and the driver's command. That command, which runs record, reaches the
        pilot with its orders.
        """
        private = ("setup", "sbatch", "origin")  # `origin` has the driver's command
        settings = {key: value for key, value in self._settings.items() if key not in private}
        tree = {"root": str(self._root), "settings": {**settings, "token": self._token}}
        # -P: import no module from the working directory
        return [sys.executable, "-P", "-u", "-m", PILOT, json.dumps(tree)]

    def states(self) -> Mapping[str, bool] | None:
        return slurm_jobs.states(self._name)

    def ended(self, job: str) -> str:
        return slurm_jobs.ended(job)

    def cancel(self, jobs: Collection[str]) -> None:
        slurm_jobs.cancel(jobs)

    def log(self, job: str) -> str:
        return str(self._folder / f"{job}_0_log.err")


def pilot_options(settings: Mapping[str, Any]) -> dict[str, Option]:
    """Return sbatch's options of a pilot's job, without its name and logs. Raises UserError for a
    limit that leaves no time to train."""
    limit, grace = seconds(settings["time"]), settings["grace_s"]
    if limit is not None and limit <= grace:
        raise UserError(
            f"launcher.time: {settings['time']} is not more than launcher.grace_s={grace}, which "
            f"is kept for checkpoints"
        )
    gpus, cpus = settings["gpus"], settings["cpus"]
    return {
        "nodes": settings["nodes"],
        "ntasks-per-node": 1,
        "cpus-per-task": max(gpus, 1) * cpus,
        **({"gpus-per-node": gpus} if gpus else {}),
        "signal": f"USR2@{grace}",  # to the steps of the job: its pilots
        "requeue": True,
        **site_options(settings),
    }


# Prefixes of sbatch's options that the job of a driver does not need.
_FOR_TRAINING = ("cpus", "exclusive", "gpu", "gres", "nodes", "ntasks", "tres")


def submit_driver(command: Sequence[str], log: Path, settings: Mapping[str, Any]) -> str:
    """Submit a driver's command as a job that needs no GPU, and gets a signal before its limit, in
    time to stop its pilots' runs. Returns the job's id. Raises Failure where there is no sbatch, or
    where it refuses."""
    site = {k: v for k, v in site_options(settings).items() if not k.startswith(_FOR_TRAINING)}
    options: dict[str, Option] = {
        "job-name": "ablate-driver",
        "cpus-per-task": 2,
        **site,
        "signal": "B:TERM@120",
        "output": str(log),
        "open-mode": "append",
    }
    setup = f"cd {shlex.quote(os.getcwd())}\n{settings['setup']}"
    # `exec`: the signal is for the driver itself.
    line = f"exec {shlex.join(command)}"
    [job] = SlurmJob("--detach job", options, setup, line, given_settings(settings)).submit()
    return job


def _run_pilot(root: str, settings: Mapping[str, Any]) -> None:
    """Run a pilot: a job calls this on each of its nodes."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job_id = os.environ["SLURM_JOB_ID"]
    job = f"{array}_{task}" if array else job_id
    fly(Path(root), settings, job, os.environ["SLURMD_NODENAME"], slurm_jobs.time_left(job_id))


if __name__ == "__main__":
    try:
        _run_pilot(**json.loads(sys.argv[1]))
    except (Failure, UserError) as error:
        sys.exit(f"ablate: {error}")
