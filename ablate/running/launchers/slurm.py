"""Slurm as the engine of pilots: jobs by submitit, states by squeue, ends by sacct or scontrol."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.running.launchers.pilot import fly
from ablate.running.launchers.pilots import PilotLauncher
from ablate.shared.errors import Failure, UserError
from ablate.shared.system import installing

PATIENCE_S = 20.0  # for an answer; a controller that is down gives none
PLACE, LIMITS = ("partition", "account", "qos", "constraint"), ("time", "mem")
_ENDED = "COMPLETING"  # squeue still has it, and its processes are gone or going


def slurm(settings: Mapping[str, Any], cache: Path) -> PilotLauncher:
    """Make the launcher `slurm`. Raises UserError where submitit is not installed."""
    root = cache.parent.absolute()
    return PilotLauncher(settings, cache, functools.partial(Slurm, settings, root))


class Slurm:
    """See Engine. The jobs of a store have its token in their name, whoever submitted them."""

    def __init__(self, settings: Mapping[str, Any], root: Path, token: str) -> None:
        try:
            import submitit
        except ImportError as error:
            raise UserError(
                f"launcher=slurm: needs submitit ({error}); {installing('slurm')}"
            ) from error
        self._settings, self._root = {**settings, "token": token}, root
        self._name = f"ablate-{token}"
        self._folder = root / "pilots" / "jobs"
        self._executor = submitit.SlurmExecutor
        self._parameters = _parameters(settings, self._name)

    def submit(self, count: int, without: Collection[str]) -> list[str]:
        more = {"exclude": ",".join(sorted(without))} if without else {}
        try:
            executor = self._executor(self._folder, max_num_timeout=0)
            executor.update_parameters(**self._parameters, **more)
            with executor.batch():
                jobs = [executor.submit(_pilot, self._root, self._settings) for _ in range(count)]
            return [job.job_id for job in jobs]
        except (RuntimeError, OSError) as error:  # submitit's own are RuntimeErrors
            lines = re.findall(r"error: (.*)", str(error)) or str(error).strip().split("\n")
            raise Failure(f"launcher=slurm: sbatch: {lines[-1]}") from error

    def states(self) -> Mapping[str, bool] | None:
        output = output_of("squeue", "-h", "-r", "-n", self._name, "-o", "%i %T")
        if output is None:
            return None
        lines = [line.split() for line in output.splitlines()]
        return {job: state == "RUNNING" for job, state in lines if state != _ENDED}

    def ended(self, job: str) -> str:
        output = output_of("sacct", "-n", "-X", "-P", "-j", job, "-o", "State")
        if output and output.strip():
            return output.splitlines()[-1].strip()
        state = re.search(r"JobState=(\w+)", output_of("scontrol", "-o", "show", "job", job) or "")
        return state[1] if state else ""

    def cancel(self, jobs: Collection[str]) -> None:
        output_of("scancel", *jobs)

    def log(self, job: str) -> str:
        return str(self._folder / f"{job}_0_log.err")


def _parameters(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return submitit's parameters. Raises UserError for a limit that leaves no time to train."""
    limit, grace = seconds(settings["time"]), settings["grace_s"]
    if limit is not None and limit <= grace:
        raise UserError(
            f"launcher.time: {settings['time']} is not more than launcher.grace_s={grace}, which "
            f"is kept for checkpoints"
        )
    # submitit would write the time as minutes
    own = {key: settings[key] for key in LIMITS if settings[key]} | _words(settings)
    gpus, cpus = settings["gpus"], settings["cpus"]
    return {
        "job_name": name,
        "nodes": settings["nodes"],
        "ntasks_per_node": 1,
        "cpus_per_task": max(gpus, 1) * cpus,
        **({"gpus_per_node": gpus} if gpus else {}),
        **{key: settings[key] for key in PLACE if settings[key]},
        "signal_delay_s": settings["grace_s"],
        "array_parallelism": settings["jobs"],
        "setup": settings["setup"].splitlines() or None,
        "stderr_to_stdout": False,
        "additional_parameters": {"requeue": True, **own},
    }


def _words(settings: Mapping[str, Any]) -> dict[str, str | bool]:
    """Parse `launcher.sbatch` by option; True for one without a value."""
    words = [word.partition("=") for word in shlex.split(settings["sbatch"])]
    return {key.removeprefix("--"): value if equals else True for key, equals, value in words}


_TRAINS = ("cpus", "exclusive", "gpu", "gres", "nodes", "ntasks", "tres")  # what a driver needs not


def submit_driver(command: Sequence[str], log: Path, settings: Mapping[str, Any]) -> str:
    """Submit a driver's command as a job that needs no GPU, and hears of its limit in time to stop
    its pilots' runs; the job's id. Raises Failure with sbatch's word."""
    given = {key: settings[key] for key in (*PLACE, *LIMITS) if settings[key]}
    given |= {key: value for key, value in _words(settings).items() if not key.startswith(_TRAINS)}
    options = [f"--{key}" if value is True else f"--{key}={value}" for key, value in given.items()]
    # `exec`: the signal is for the driver itself.
    text = f"cd {shlex.quote(os.getcwd())}\n{settings['setup']}\nexec {shlex.join(command)}"
    words = ["sbatch", "--parsable", "--job-name=ablate-driver", "--cpus-per-task=2", *options]
    words += ["--signal=B:TERM@120", f"--output={log}", "--open-mode=append", f"--wrap={text}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Failure(
            f"--detach job: sbatch: {error.strerror}; start ablate on a host that can ask for "
            f"jobs, or give --detach here"
        ) from error
    if done.returncode != 0:
        lines = [f"sbatch ended with {done.returncode}", *done.stderr.strip().splitlines()]
        raise Failure(f"--detach job: {lines[-1]}")
    return done.stdout.strip().partition(";")[0]


def check() -> None:
    """Raise Failure where this host can't ask for jobs."""
    where = "start ablate on a host that can ask for jobs, such as a login node"
    for program in ("sbatch", "squeue"):
        if shutil.which(program) is None:
            raise Failure(f"launcher=slurm: {program}: not found on PATH; {where}")
    if output_of("squeue", "-h", "-n", "ablate-driver", "-o", "%i") is None:
        raise Failure(f"launcher=slurm: the cluster gives no answer; {where}")


def _pilot(root: Path, settings: Mapping[str, Any]) -> None:
    """Fly a pilot: a job calls this on each of its nodes."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{task}" if array else os.environ["SLURM_JOB_ID"]
    left = output_of("squeue", "-h", "-j", os.environ["SLURM_JOB_ID"], "-o", "%L") or ""
    fly(root, settings, job, os.environ["SLURMD_NODENAME"], seconds(left.strip()))


def seconds(limit: str) -> float | None:
    """Parse sbatch's --time, or squeue's time left: minutes, MINUTES:SECONDS, H:MM:SS, D-HH and
    longer. None for others: no limit, or no word of it."""
    days, dash, rest = limit.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in (*parts, days or "0")) or len(parts) > 3:
        return None
    short = not dash and len(parts) < 3  # no hours
    hours, minutes, secs = [*[0.0] * short, *map(float, parts), 0.0, 0.0][:3]
    return ((float(days or 0) * 24 + hours) * 60 + minutes) * 60 + secs


def output_of(*words: str) -> str | None:
    """Return what a command of Slurm's prints; None where it fails, is not there, or takes too
    long."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
