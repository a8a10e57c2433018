"""Runs the driver of a sweep without this terminal: in the background of this host, or in a job of
its own.

Used by `ablate sweep --detach` (cli/driving.py). A new place also needs the parser and
the help of that option.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.running.launchers.engine import FileEngine
from ablate.shared import Failure, TryAgain, UserError, make_folder
from ablate.store import Store, driver_of, store_token

BEHIND_S = 5.0  # after these, a new process is taken to be waiting for the running driver
PATIENCE_S = 60.0  # how long to wait for the plan, before which the driver may decode data


def detach_driver(
    place: str,
    words: Sequence[str],
    sweep: str,
    store: Store,
    settings: Mapping[str, Any],
    stop_mark: int,
) -> str:
    """Start `ablate WORDS`, which drives `sweep`, without this terminal. Returns a line on how far
    it has come.

    `place`: "here" | "job"; `stop_mark`: the store's when the command began. Returns once the plan
    is recorded, or with a line that says why it is not yet. Raises UserError where the launcher has
    no job for drivers, and Failure where the cluster gives no answer. A driver that ends at once
    raises the error of its exit code.
    """
    engine, root = None, store.root.absolute()
    if "engine" in settings:
        engine = FileEngine(settings, root, store_token(root) or "driver")
    if place == "job" and (engine is None or not engine.takes_drivers):
        name = settings["name"]
        own = "" if engine is None else f", or a driver in conf/launcher/{name}.yaml"
        raise UserError(
            f"--detach job: launcher={name} has no jobs for drivers; give --detach here, or "
            f"launcher=slurm{own}"
        )
    if engine is not None:
        engine.check()
    make_folder(store.root)
    log = root / "driver.log"
    command = [sys.executable, "-P", "-m", "ablate", *words]  # its runs record `ablate WORDS`
    if place == "job":
        assert engine is not None
        variables = [f"{key}={text}" for key, text in store.handed_on(stop_mark).items()]
        job = engine.submit_driver(["env", *variables, *command], log)
        cancel = shlex.join(engine.cancel_words(job))
        store.note_submitted(sweep, job, cancel)
        return f"job {job} drives {store.root}; log: {log}"
    old_stamp = store.plan_stamp(sweep)  # it changes when the new driver writes its plan
    with open(log, "ab") as file:
        begins = file.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **store.handed_on(stop_mark)},
        )
    process_name, since = f"process {process.pid}", time.monotonic()
    while True:
        code, driver = process.poll(), driver_of(store)
        waited = time.monotonic() - since
        if code is not None:
            if code != 0:
                kind = {2: UserError, os.EX_TEMPFAIL: TryAgain}.get(code, Failure)
                raise kind(f"the driver ended at once: {_last_line(log, begins)}")
            return f"{process_name} drove {store.root}, and has ended; log: {log}"
        driver_pid = driver.pid if driver is not None else None
        if driver_pid == process.pid:
            if store.plan_stamp(sweep) != old_stamp:
                return f"{process_name} drives {store.root}; log: {log}"
            if waited > PATIENCE_S:
                return f"{process_name} prepares {store.root}; log: {log}"
        elif driver_pid is None and waited > PATIENCE_S:
            return f"{process_name} has not begun: {_last_line(log, begins)}; log: {log}"
        elif driver_pid is not None and waited > BEHIND_S:
            return (
                f"{process_name} waits behind process {driver_pid}, which drives {store.root}; "
                f"log: {log}"
            )
        time.sleep(0.05)


def _last_line(log: Path, begins: int) -> str:
    """Return the last line that was written from the byte `begins` on."""
    lines = log.read_bytes()[begins:].decode(errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "no word")
