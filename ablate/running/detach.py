"""Leaves the driver of a sweep behind: in the background of this host, or in a job of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.shared.errors import Failure, UserError
from ablate.shared.files import make_folder
from ablate.store.progress import driver_of
from ablate.store.store import Store

WHERE = ("here", "job")


def detach(where: str, words: Sequence[str], store: Store, settings: Mapping[str, Any]) -> str:
    """Start `ablate WORDS` without this terminal; a line that says where it is.

    `where`: "here" | "job". Raises UserError for a job without Slurm, Failure where the driver ends
    at once.
    """
    if where == "job" and settings["name"] != "slurm":
        raise UserError("--detach job: needs launcher=slurm")
    make_folder(store.root)
    log = store.root.absolute() / "driver.log"
    command = [sys.executable, "-P", "-c", "from ablate.cli import main; main()", *words]
    if where == "job":
        return f"{_submitted(command, log, settings)}; log: {log}"
    with open(log, "ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    while (driver := driver_of(store)) is None or driver.pid is None:
        if process.poll() is not None:
            if process.returncode == 0:
                break  # nothing was left to train
            raise Failure(f"the driver ended at once: {_last_line(log)}")
        time.sleep(0.05)
    return f"process {process.pid} drives {store.root}; log: {log}"


def _submitted(command: Sequence[str], log: Path, settings: Mapping[str, Any]) -> str:
    """A job that needs no GPU, and hears of its limit in time to stop its pilots' runs."""
    own = {key: settings[key] for key in ("partition", "account", "qos", "time") if settings[key]}
    options = [f"--{key}={value}" for key, value in own.items()]
    # `exec`: the signal is for the driver itself.
    text = f"cd {shlex.quote(os.getcwd())}\n{settings['setup']}\nexec {shlex.join(command)}"
    done = subprocess.run(
        [
            *("sbatch", "--parsable", "--job-name=ablate-driver", "--cpus-per-task=2"),
            *("--signal=B:TERM@120", f"--output={log}", "--open-mode=append", *options),
            f"--wrap={text}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Failure(f"--detach job: {done.stderr.strip().splitlines()[-1]}")
    return f"job {done.stdout.strip().partition(';')[0]} drives {settings['name']} runs"


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "no word")
