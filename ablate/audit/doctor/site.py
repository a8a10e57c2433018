"""Checks a cluster by one job: whether it is accepted and starts, and what it sees there.

Used by `ablate doctor launcher=NAME` with the launcher of a cluster (audit/doctor/__init__.py).
"""

from __future__ import annotations

import platform
import re
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from ablate.audit.doctor.machine import PROGRESS, Finding, Findings, some
from ablate.running import SiteJob
from ablate.store import Store
from ablate.version import __version__

PATIENCE_S = 300.0  # for a job to start, and as long again for its answer
GONE_S = 30.0  # before a job that is not listed has ended: some engines list a new one late
CLOCKS_S = 30.0  # by which clocks may differ
ASK_S = 2.0  # between two questions to the engine


def cluster(store: Store, settings: Mapping[str, Any]) -> Findings:
    """Ask for one job and report what it sees. Raises UserError and Failure as SiteJob does."""
    begun_at = time.time()
    job = SiteJob(settings, store.root)
    try:
        yield Finding(PROGRESS, "queue", f"job {job.job} is accepted; waiting for it")
        facts = yield from _await(job, settings)
        if facts is not None:
            yield from _facts(facts, settings, begun_at, time.time())
    finally:
        job.end()


def _await(job: SiteJob, settings: Mapping[str, Any]) -> Any:
    """Wait for the answer of the job and return it; None where it does not come, which findings
    explain."""
    since, runs_since, gone_since = time.monotonic(), None, None
    while (facts := job.facts()) is None:
        moment, state = time.monotonic(), job.state()
        if state == "running" and runs_since is None:
            runs_since = moment
        if state == "gone" and gone_since is None:
            gone_since = moment
        elif state in ("waiting", "running"):
            gone_since = None
        if gone_since is not None and (job.ending() or moment - gone_since > GONE_S):
            facts = job.facts()  # it may have written just before it ended
            if facts is None:
                yield _ended(job, settings)
                return None
            break
        if runs_since is None and moment - since > PATIENCE_S:
            yield Finding("problem", "queue", _never_started(job, settings))
            return None
        if runs_since is not None and moment - runs_since > PATIENCE_S:
            yield Finding(
                "problem", "store", f"job {job.job} runs, and has not written here; see {job.log}"
            )
            return None
        time.sleep(ASK_S)
    waited = time.monotonic() - since
    yield Finding("ok", "queue", f"job {job.job} answered after {waited:.0f} s")
    return facts


def _ended(job: SiteJob, settings: Mapping[str, Any]) -> Finding:
    """Say why a job has ended without an answer."""
    lines, python = job.output(), settings["python"] or sys.executable
    output = "\n".join(lines)
    if match := re.search(r"No module named '([\w.]+)'", output):
        text = f"job {job.job}: {python} has no {match[1]} there; install it, or give"
        return Finding("problem", "python", f"{text} launcher.python; see {job.log}")
    if re.search(rf"{re.escape(python)}\W*(No such file|command not found)", output):
        text = f"job {job.job}: no {python} there; give launcher.python, that of the hosts"
        return Finding("problem", "python", f"{text}; see {job.log}")
    ending = job.ending()
    state = f" ({ending})" if ending else ""
    own_lines = [line for line in lines if line.startswith("ablate: ")]
    reason = "".join(f": {line.removeprefix('ablate: ')}" for line in (own_lines or lines)[-1:])
    text = f"job {job.job} ended{state} without an answer{reason}; see {job.log}"
    return Finding("problem", "store", text)


def _never_started(job: SiteJob, settings: Mapping[str, Any]) -> str:
    keys = [key for key in ("time", "gpus", "cpus", "mem", "nodes") if settings.get(key)]
    request = " ".join(f"launcher.{key}={settings[key]}" for key in keys)
    return (
        f"job {job.job} did not start within {PATIENCE_S / 60:g} minutes, and is cancelled; ask "
        f"for less than {request}, or ask the site how long its queue is"
    )


def _facts(
    facts: Mapping[str, Any], settings: Mapping[str, Any], begun_at: float, ended_at: float
) -> Findings:
    """Compare what the job has seen with what is here."""
    host = facts["host"]
    yield Finding("ok", "store", f"{host} sees the store")
    slots, remarks = facts["slots"], facts["remarks"]
    for remark in remarks:
        yield Finding("problem", "devices", remark)
    if slots:
        yield Finding("ok", "devices", f"{host}: at once {some(slots, 'run')}")
    yield _versions("python", facts["python"], platform.python_version(), host)
    yield _versions("ablate", facts["ablate"], __version__, host)
    if facts["torch"] is None:
        text = f"{host}: no torch in {facts['executable']}; install it, or give launcher.python"
        yield Finding("problem", "torch", text)
    else:
        try:
            expected = metadata.version("torch")
        except metadata.PackageNotFoundError:
            expected = facts["torch"]
        yield _versions("torch", facts["torch"], expected, host)
    early, late = begun_at - facts["clock"], facts["clock"] - ended_at
    if max(early, late) > CLOCKS_S:
        text = (
            f"{host}: its clock is {max(early, late):.0f} s {'behind' if early > late else 'ahead'}"
        )
        yield Finding("problem", "clock", f"{text}; set it (most hosts do so by NTP)")
    else:
        yield Finding("ok", "clock", f"{host}: its clock is that of this host")


def _versions(check: str, version: str, expected: str, host: str) -> Finding:
    if version == expected:
        return Finding("ok", check, f"{host}: {version}")
    text = f"{host}: {version}, and {expected} on this host; results may differ in the last bits"
    return Finding("warning", check, text)
