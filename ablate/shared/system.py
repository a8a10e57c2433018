"""Access to the system around ablate: packages, git, signals.

Packages: the command that installs a package for the one feature that needs it. It keeps what is
installed already: without constraints, pip may replace the torch that everything else was tested
with. Git: questions about the folder that we are in. Programs: what they print, and why they
failed. Signals: those that end a command, noted for whoever looks.

A new entry of `EXTRAS` also needs [project.optional-dependencies] in pyproject.toml, which
tests/test_install.py compares.

Used by most rooms: signals by the driver and the workers, git by plans and `ablate sweep`, programs
by plans, workers and for nvidia-smi, install commands by errors and `ablate doctor`.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

EXTRAS = {  # of pyproject.toml, but for `dev`: what needs it, and the packages
    "timm": ("model=timm:NAME", "timm>=1.0"),
    "text": ("texts by byte-pair encoding", "tokenizers>=0.20"),
    "tensorboard": ("logger=tensorboard, and results in its files", "tensorboard>=2.18"),
    "wandb": ("logger=wandb", "wandb>=0.22"),
    "mcp": ("ablate mcp", "mcp>=2.0"),
    "mlflow": ("logger=mlflow, and the import of its folders", "mlflow-skinny>=3.9"),
}


def install_command(extra: str) -> str:
    """Return the shell command that installs the packages of an extra."""
    return package_install_command(EXTRAS[extra][1])


def package_install_command(need: str) -> str:
    """Return the shell command that installs a package; `need`: as pip takes it."""
    return f"pip install -c \"$(ablate doctor --constraints)\" '{need}'"


_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Make this process the parent of orphans among its descendants (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


GIT_S = 10.0  # a question that takes longer is given up


def ask_git(*words: str, cwd: str | os.PathLike[str] | None = None) -> bytes | None:
    """Return git's answer; None outside a repository, without git, or past the limit."""
    try:
        process = subprocess.run(
            ["git", *words],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_S,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # we only look
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout if process.returncode == 0 else None


def run_in_session(
    words: Sequence[str],
    timeout_s: float,
    *,
    stderr: int = subprocess.PIPE,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program without input in a session of its own, and return what it printed.

    Whatever ends the wait for it, the limit or Ctrl-C, also kills what it started. Raises
    subprocess.TimeoutExpired, and OSError where it can't be started.
    """
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        cwd=cwd,
        env=env,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # a driver may not let go of it
            process.communicate(timeout=1)
        raise
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


LAST_LINES = 50  # of an output, that may name the cause of a failure
# "KeyError: 'x'", "pkg.errors.ConfigKeyError: ...": as Python ends a traceback.
_ERROR = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: |$)")
_AFTER_TRACEBACK = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:: |$)")  # of any name
_TRACEBACK = "Traceback (most recent call last)"
_HINT = re.compile(r"HYDRA_FULL_ERROR|^(?:hint|note|tip|help|warning)\b", re.IGNORECASE)


def failure_cause(lines: Sequence[str]) -> str:
    """Return the line of an output that says why a program failed: the last line of an exception,
    or else the last one that is no hint."""
    messages = [line for line in lines[-LAST_LINES:] if not _HINT.search(line.strip())]
    traced, error_lines = False, []
    for line in messages:
        traced |= line.lstrip().startswith(_TRACEBACK)
        is_error = _ERROR.match(line) or (traced and _AFTER_TRACEBACK.match(line))
        if is_error and not line.startswith(_TRACEBACK):
            error_lines.append(line)
    for candidates in (error_lines, messages, lines):
        if candidates:
            return candidates[-1].strip()
    return "it printed nothing"


def signal_words(number: int) -> str:
    """Name a signal: "signal SIGTERM", or "signal number 37" where it has no name."""
    try:
        return f"signal {signal.Signals(number).name}"
    except ValueError:
        return f"signal number {number}"


ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def noted_signals(*numbers: signal.Signals, interrupting: bool = False) -> Iterator[list[int]]:
    """Note signals while a `with` block runs; afterwards, put the previous handlers back. The value
    is a list of the signals that have come so far.

    `interrupting`: each signal also raises KeyboardInterrupt, once its previous handler was called.
    Signals that this process was started to ignore stay ignored: SIGHUP under `nohup`, SIGINT in
    the background of a script.
    """
    heard: list[int] = []
    previous_handlers: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if interrupting:
            previous_handler = previous_handlers.get(number)
            if callable(previous_handler):
                previous_handler(number, frame)
            raise KeyboardInterrupt

    try:
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous_handlers[number] = signal.signal(number, note)
        yield heard
    finally:
        for noted, handler in previous_handlers.items():
            signal.signal(noted, handler)
