"""Tells somebody of a sweep: `notify=` is a shell command, which gets a summary as JSON on standard
input. It runs apart from the drive, at most LIMIT_S seconds; nothing depends on how it ends.

This module is also that process, `python -m`: it is told the command on standard input, so that no
list of processes has it before the shell does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

LIMIT_S = 60.0  # for a command
APART_S = 60.0  # between two words of failures, at least: what fails meanwhile is told together
END_S = 5.0  # for the last command, until ours ends without it


class Notifier:
    """Runs the command. `say`: a warning where it fails, once."""

    def __init__(self, command: str, say: Callable[[str], None]) -> None:
        self._command, self._say = command, say
        # Each with what it printed: a file, so that nobody waits for a pipe.
        self._running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        self._failed = False
        self._began = -APART_S

    def is_free(self) -> bool:
        """May a failure be told now?"""
        self._look()
        return not self._running and time.monotonic() - self._began >= APART_S

    def send(self, summary: Mapping[str, Any]) -> None:
        """Start the command; return at once."""
        self._began = time.monotonic()
        try:
            with tempfile.TemporaryFile() as given:
                given.write(json.dumps({"command": self._command, "summary": summary}).encode())
                given.seek(0)
                said = tempfile.TemporaryFile()  # noqa: SIM115 - `_look` closes it
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "ablate.running.notify"],
                    stdin=given,
                    stdout=said,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            self._running.append((process, said))
        except OSError as error:
            self._warn(str(error))

    def close(self) -> None:
        """Wait for a moment, for a warning; one that takes longer ends by itself."""
        until = time.monotonic() + END_S
        for process, _ in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        self._look()

    def _look(self) -> None:
        for process, said in [ended for ended in self._running if ended[0].poll() is not None]:
            self._running.remove((process, said))
            with said:
                said.seek(0)
                if why := said.read().decode(errors="replace").strip():
                    self._warn(why)

    def _warn(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            self._say(f"warning: notify: {why}; the sweep does not depend on it")


def main() -> None:
    """Run the command that standard input tells, and print why it failed, if it did."""
    told = json.loads(sys.stdin.buffer.read())
    with tempfile.TemporaryFile() as summary:
        summary.write(json.dumps(told["summary"]).encode() + b"\n")
        summary.seek(0)
        process = subprocess.Popen(
            told["command"],
            shell=True,
            stdin=summary,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(f"the command took more than {LIMIT_S:.0f} s, and was killed", flush=True)
            return
    if code != 0:
        print(f"the command ended with exit code {code}", flush=True)


if __name__ == "__main__":
    main()
