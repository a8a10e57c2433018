"""Loggers hand runs on to other tools: TensorBoard, W&B, MLflow, JSON lines.

Each is a process of its own, which reads the folders of runs as any reader may (`feed`). The driver
starts it and looks whether it lives, no more: a service that is slow or dead costs a sweep nothing.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ablate.planning.logger import LOGGERS
from ablate.shared.errors import UserError
from ablate.shared.files import make_folder

END_S = 10.0  # for the last pages, until the command goes on without them


def check_installed(names: Sequence[str]) -> None:
    """Raise UserError for a logger whose package is missing."""
    for name in names:
        if (remedy := LOGGERS[name].source) == "-":
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # or a folder that is called so
            raise UserError(f"logger={name}: needs {remedy}")


class Feeders:
    """The processes of a sweep's loggers. `loggers`: settings by name."""

    def __init__(
        self,
        loggers: Mapping[str, Mapping[str, Any]],
        store: Path,
        sweep: str,
        say: Callable[[str], None],
    ) -> None:
        self._say = say
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: dict[str, Path] = {}
        for name, settings in loggers.items():
            folder = Path(settings["folder"] or store / "logs").absolute()
            request = {"logger": name, "settings": dict(settings), "folder": str(folder)}
            request |= {"store": str(store.absolute()), "sweep": sweep}
            self._logs[name] = folder / f"{name}.log"
            try:
                make_folder(folder)
                self._processes[name] = _start(request, self._logs[name])
            except OSError as error:
                self._warn(name, str(error))

    def look(self) -> None:
        """Tell of those that have died, once."""
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                self._warn_of_death(name)

    def close(self) -> None:
        """Have them hand on what is there, and end; wait for a moment, and leave them to it."""
        until = time.monotonic() + END_S
        for process in self._processes.values():
            _close_input(process)
        for name, process in list(self._processes.items()):
            try:
                if process.wait(max(0.0, until - time.monotonic())) != 0:
                    self._warn_of_death(name)
            except subprocess.TimeoutExpired:
                self._say(
                    f"logger={name}: process {process.pid} hands on the rest, and ends by itself"
                )
        self._processes = {}

    def _warn_of_death(self, name: str) -> None:
        """Say the last line of its log; one that somebody has removed costs the sweep nothing."""
        _close_input(self._processes.pop(name))
        log, lines = self._logs[name], list[str]()
        with suppress(OSError):
            lines = log.read_bytes().decode(errors="replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no word")
        self._warn(name, f"{last} (see {log})")

    def _warn(self, name: str, why: str) -> None:
        self._say(
            f"warning: logger={name} has stopped: {why}; nothing else depends on it, and the same "
            f"command hands on what it lacks"
        )


def _start(request: Mapping[str, Any], log: Path) -> subprocess.Popen[bytes]:
    with open(log, "wb") as file:
        process = subprocess.Popen(
            # -P: W&B's own folder, which may lie in this one, is no package
            [sys.executable, "-P", "-m", "ablate.running.loggers.feed"],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            start_new_session=True,  # the terminal's Ctrl-C is the driver's to handle
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it is dead, which `look` sees
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
    return process


def _close_input(process: subprocess.Popen[bytes]) -> None:
    """Tell it that the driver has ended."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
