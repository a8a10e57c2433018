"""Jobs of a Slurm cluster: every call of sbatch, squeue, sacct, scontrol and scancel is here.

Used by `ablate sweep launcher=slurm` (running/launchers/slurm.py) and `--detach job`
(running/detach.py). A new key of `SITE` also needs its setting in planning/launcher.py.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ablate.shared import Failure, UserError

PATIENCE_S = 20.0  # for an answer; a controller that is down gives none
SITE = ("partition", "account", "qos", "constraint", "time", "mem")  # launcher.KEY: sbatch --KEY
WHERE = "start ablate on a host that can ask for jobs, such as a login node"
_ENDED = "COMPLETING"  # squeue still has it, and its processes are gone or going

Option = str | int | Literal[True]  # True: an option without a value


@dataclass(frozen=True)
class SlurmJob:
    """A batch job, or an array of `count` equal ones.

    `place` names the setting that requested it in messages, as in "launcher=slurm". `options` are
    sbatch's, by long name. The script runs `setup`, then `command`, whose exit code is the job's:
    lines of bash. `given` are the launcher's settings behind the options, as `KEY=VALUE`: what a
    user can change where sbatch refuses.
    """

    place: str
    options: Mapping[str, Option]
    setup: str
    command: str
    given: Sequence[str] = ()
    count: int = 1

    def script(self) -> str:
        return "\n".join(["#!/bin/bash", *self.setup.splitlines(), self.command, ""])

    def words(self) -> list[str]:
        """Return the command that submits the job. Options are words of the command, since SBATCH_
        variables of the environment override those of a script, and a job must have its name."""
        options = dict(self.options)
        if self.count > 1:
            options["array"] = f"0-{self.count - 1}"
        words = ["sbatch", "--parsable"]
        for key, value in options.items():
            words.append(f"--{key}" if value is True else f"--{key}={value}")
        return words

    def submit(self) -> list[str]:
        """Submit the job and return the id of each. Raises Failure where there is no sbatch, or
        where it refuses."""
        try:
            completed = subprocess.run(
                self.words(), input=self.script(), capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise Failure(f"{self.place}: sbatch: {error.strerror}; {WHERE}") from error
        if completed.returncode != 0:
            reason = refusal(completed.stderr) or f"ended with {completed.returncode}"
            request = f" (asked with {' '.join(self.given)})" if self.given else ""
            remedy = "change the setting that it refuses, or try again later"
            raise Failure(f"{self.place}: sbatch: {reason}{request}; {remedy}")
        # "7;cluster" where there are several clusters
        job = completed.stdout.strip().partition(";")[0]
        if self.count == 1:
            return [job]
        return [f"{job}_{number}" for number in range(self.count)]


def refusal(output: str) -> str:
    """Return sbatch's reasons in one line, from what it wrote to standard error; "" for none.

    Several errors are joined: the last is often general, and an earlier one has the value.
    """
    lines = output.strip().splitlines()
    errors = re.findall(r"(?:error|fatal): (.*)", "\n".join(lines))
    sbatch_lines = [line.removeprefix("sbatch: ") for line in lines if line.startswith("sbatch: ")]
    return "; ".join(errors or sbatch_lines or lines[-1:])


def site_options(settings: Mapping[str, Any]) -> dict[str, Option]:
    """Return sbatch's options that a site wants for every job: the launcher's SITE keys, then those
    of `launcher.sbatch`. Raises UserError where its quotes don't match."""
    try:
        words = shlex.split(settings["sbatch"])
    except ValueError as error:
        raise UserError(
            f"launcher.sbatch: {settings['sbatch']}: {error}; give keys as in reservation=vit "
            f"hint=compute_bound"
        ) from error
    options: dict[str, Option] = {key: settings[key] for key in SITE if settings[key]}
    for word in words:
        key, equals, value = word.partition("=")
        options[key.removeprefix("--").replace("_", "-")] = value if equals else True
    return options


def given_settings(settings: Mapping[str, Any], *keys: str) -> list[str]:
    """Return `launcher.KEY=VALUE` for SITE, `launcher.sbatch` and further keys, except for empty
    ones."""
    names = [key for key in (*SITE, "sbatch", *keys) if settings[key]]
    return [shlex.quote(f"launcher.{key}={settings[key]}") for key in names]


def check_cluster() -> None:
    """Raise Failure where this host can't ask for jobs."""
    for program in ("sbatch", "squeue"):
        if shutil.which(program) is None:
            raise Failure(f"launcher=slurm: {program}: not found on PATH; {WHERE}")
    if _output("squeue", "-h", "-n", "ablate-driver", "-o", "%i") is None:
        raise Failure(f"launcher=slurm: the cluster gives no answer; {WHERE}")


def states(name: str) -> dict[str, bool] | None:
    """Map every job of this name that has not ended to whether it runs; None where there is no
    answer now."""
    output = _output("squeue", "-h", "-r", "-n", name, "-o", "%i %T")
    if output is None:
        return None
    lines = [line.split() for line in output.splitlines()]
    return {job: state == "RUNNING" for job, state in lines if state != _ENDED}


def ended(job: str) -> str:
    """Return how a job ended, in Slurm's words; "" where neither its accounts nor its controller
    know."""
    output = _output("sacct", "-n", "-X", "-P", "-j", job, "-o", "State")
    if output and output.strip():
        return output.splitlines()[-1].strip()
    description = _output("scontrol", "-o", "show", "job", job) or ""
    state = re.search(r"JobState=(\w+)", description)
    return state[1] if state else ""


def time_left(job: str) -> float | None:
    """Return the seconds until a job's limit; None for no limit, or no answer."""
    limit = _output("squeue", "-h", "-j", job, "-o", "%L") or ""
    return seconds(limit.strip())


def cancel(jobs: Collection[str]) -> None:
    _output("scancel", *jobs)


def seconds(limit: str) -> float | None:
    """Parse sbatch's --time, or squeue's time left: minutes, MINUTES:SECONDS, H:MM:SS, D-HH and
    longer. Returns None for other texts, such as no limit."""
    days, dash, clock = limit.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in (*parts, days or "0")) or len(parts) > 3:
        return None
    numbers = [float(part) for part in parts]
    if not dash and len(parts) < 3:
        numbers.insert(0, 0.0)  # no hours
    numbers += [0.0] * (3 - len(numbers))
    hours, minutes, secs = numbers
    return ((float(days or 0) * 24 + hours) * 60 + minutes) * 60 + secs


def _output(*words: str) -> str | None:
    """Return what a command of Slurm prints; None where it fails, is not there, or takes longer
    than PATIENCE_S."""
    try:
        completed = subprocess.run(
            words, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return completed.stdout if completed.returncode == 0 else None
