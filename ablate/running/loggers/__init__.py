"""Loggers hand runs on to other tools: TensorBoard, W&B, MLflow, JSON lines.

Each is a process of its own, which reads the folders of runs as any reader may (`feed`). The driver
only starts it and checks whether it lives: a service that is slow or dead costs a sweep nothing.

Loggers, and the shell command of `notify`, observe a sweep while it is driven, through the view of
the drive and the folders of runs. The drive knows nothing of them, waits for none, and ends as it
would without them.

Used by `ablate sweep` (cli/driving.py) and `Sweep.train` of Python (api/nouns.py). The settings of
loggers and `notify` are in planning/logger.py: a new logger needs a file here and its entry in
`LOGGERS` there.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from ablate.planning import LOGGERS, LoggerSettings
from ablate.running.view import View
from ablate.shared import Failure, UserError, count_text, make_folder
from ablate.store import GIVEN_UP, SweepProgress, turn_of_child

END_S = 10.0  # how long `Feeders.close` waits for loggers to send their last pages


def check_loggers_installed(names: Sequence[str]) -> None:
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
            folder = Path(settings["folder"] or store / "logs").expanduser().absolute()
            request = {"logger": name, "settings": dict(settings), "folder": str(folder)}
            request |= {"store": str(store.absolute()), "sweep": sweep}
            self._logs[name] = folder / f"{name}.log"
            try:
                make_folder(folder)
                self._processes[name] = _start(request, self._logs[name])
            except OSError as error:
                self._warn(name, str(error))

    def look(self) -> None:
        """Report the loggers that have died, each once."""
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                self._warn_of_death(name)

    def close(self) -> None:
        """Tell the loggers to send what is left and to exit. Wait up to END_S, then leave them
        running."""
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
        """Report the last line of a dead logger's log. A log that somebody has removed costs the
        sweep nothing."""
        _close_input(self._processes.pop(name))
        log, lines = self._logs[name], list[str]()
        with suppress(OSError):
            lines = log.read_bytes().decode(errors="replace").splitlines()
        last_line = next((line.strip() for line in reversed(lines) if line.strip()), "no word")
        self._warn(name, f"{last_line} (see {log})")

    def _warn(self, name: str, reason: str) -> None:
        self._say(
            f"warning: logger={name} has stopped: {reason}; the sweep goes on without it; run "
            f"the same command again to send it what is missing"
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
    """Close its standard input, which says that the driver has ended."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()


# --- The command of `notify` ----------------------------------------------------------------------

FORMAT = 1  # of the summary; raised when a reader of the old would be wrong
MOST_RUNS = 20  # runs that a summary names
LIMIT_S = 60.0  # how long a command may run
APART_S = 60.0  # at least, before a summary of failures; failures meanwhile share the next one
NOTIFY_S = 5.0  # how long `Notifier.close` waits for the last command


class Notifier:
    """Runs `notify=COMMAND`, a shell command that gets a summary as JSON on standard input.

    The command runs apart from the drive, and nothing depends on how it ends. `say` gets a warning
    when it first fails.
    """

    def __init__(self, command: str, say: Callable[[str], None]) -> None:
        self._command, self._say = command, say
        self._running: dict[subprocess.Popen[bytes], float] = {}  # since when
        self._failed = False
        self._began = -APART_S

    def is_free(self) -> bool:
        """Return whether a failure may be reported now."""
        self._look()
        return not self._running and time.monotonic() - self._began >= APART_S

    def send(self, summary: Mapping[str, Any]) -> None:
        """Start the command; return at once. The command is no argument of the shell, since lists
        of processes show arguments."""
        self._began = time.monotonic()
        try:
            with tempfile.TemporaryFile() as script, tempfile.TemporaryFile() as summary_file:
                for file, text in ((script, self._command), (summary_file, json.dumps(summary))):
                    file.write(f"{text}\n".encode())
                    file.seek(0)
                shell = ["sh", f"/dev/fd/{script.fileno()}"]
                process = subprocess.Popen(
                    ["timeout", "--signal=KILL", f"{LIMIT_S}", *shell],
                    stdin=summary_file,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[script.fileno()],
                    start_new_session=True,
                )
            self._running[process] = self._began
        except OSError as error:
            self._warn(str(error))

    def close(self) -> None:
        """Wait for a moment, so that a warning can come; a command that takes longer ends by
        itself."""
        until = time.monotonic() + NOTIFY_S
        for process in self._running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        self._look()

    def _look(self) -> None:
        for process in [process for process in self._running if process.poll() is not None]:
            since = self._running.pop(process)
            if time.monotonic() - since >= LIMIT_S and process.returncode in (-9, 137):
                self._warn(f"the command took more than {LIMIT_S:.0f} s, and was killed")
            elif process.returncode != 0:
                self._warn(f"the command ended with exit code {process.returncode}")

    def _warn(self, problem: str) -> None:
        if not self._failed:
            self._failed = True
            self._say(f"warning: notify: {problem}; the sweep does not depend on it")


# --- The sweep, as loggers and `notify` see it ----------------------------------------------------


class Observers:
    """A context manager around a drive: it starts the loggers once the drive has a plan, and closes
    them at the end."""

    def __init__(
        self, settings: LoggerSettings, store: Path, sweep: str, say: Callable[[str], None]
    ) -> None:
        self._settings, self._store, self._sweep, self._say = settings, store.absolute(), sweep, say
        self._lines: list[str] = []  # of warnings, not shown yet
        self._feeders: Feeders | None = None
        self._notifier = Notifier(settings.notify, self._lines.append) if settings.notify else None
        self._progress: SweepProgress | None = None
        self._reported: set[str] = set()  # runs reported as given up
        self._verdicts: tuple[str, Sequence[Mapping[str, Any]]] = "", ()

    def __enter__(self) -> Observers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Report the end, unless the drive never began because somebody declined."""
        began = self._progress is not None or isinstance(error, UserError | Failure | OSError)
        if self._notifier is not None and began:
            self._notifier.send(self._summary("end", error))
        if self._feeders is not None:
            self._feeders.close()
        if self._notifier is not None:
            self._notifier.close()
        for line in self._lines:
            self._say(line)

    def observed(self, view: View) -> View:
        """Return a view of the drive that shows its progress to these observers, too."""
        return _Observed(view, self) if self._settings.loggers or self._notifier else view

    def see(self, progress: SweepProgress, view: View) -> None:
        """Look at the progress; called several times a second."""
        is_first_look, self._progress = self._progress is None, progress
        lost = self._lost()
        if is_first_look:
            self._reported = lost  # by earlier drives
            loggers, say = self._settings.loggers, self._lines.append
            self._feeders = Feeders(loggers, self._store, self._sweep, say)
        if self._feeders is not None:
            self._feeders.look()
        if self._notifier is not None and lost - self._reported and self._notifier.is_free():
            self._notifier.send(self._summary("failure", None))
            self._reported = lost
        while self._lines:
            view.say(self._lines.pop(0))

    def keep_verdicts(self, line: str, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Keep the verdicts of the complete sweep; the user's look at them is already recorded."""
        self._verdicts = line, verdicts

    def _lost(self) -> set[str]:
        """Return the runs that are given up: none of them starts again by itself."""
        progress = self._progress
        if progress is None or not any(progress.counts.get(status) for status in GIVEN_UP):
            return set()
        states = progress.states.items()
        return {run for run, s in states if s.status in GIVEN_UP and turn_of_child(s) == "never"}

    def _summary(self, event: str, error: BaseException | None) -> dict[str, Any]:
        """Return the summary for `notify`. `event`: failure | end. At the end, `exit` and `error`
        are the command's."""
        progress, lost = self._progress, self._lost()
        message = str(error) if isinstance(error, UserError | Failure | OSError) else None
        line, verdicts = self._verdicts
        if message is not None:
            line = f"{message.removeprefix(f'{self._sweep}: ')}."
        if progress is not None:
            given_up = f", {len(lost)} given up" if lost else ""
            total = count_text(progress.total, "run")
            line = f"{progress.ended_count} of {total} done{given_up}. {line}".strip()
        return {
            "format": FORMAT,
            "event": event,
            "sweep": self._sweep,
            "store": str(self._store),
            "host": platform.node(),
            "at": time.time(),
            "line": f"{self._sweep}: {line}",
            "done": progress.ended_count if progress is not None else 0,
            "total": progress.total if progress is not None else None,
            "states": dict(progress.counts) if progress is not None else {},
            "lost": [
                {"run": run, "status": progress.status(run)}
                for run in sorted(lost)[:MOST_RUNS]
                if progress is not None
            ],
            "exit": _exit_code(error) if event == "end" else None,
            "error": message,
            "verdicts": list(verdicts),
        }


class _Observed:
    """A view that passes everything on to another, and shows the progress to the observers, too."""

    def __init__(self, view: View, observers: Observers) -> None:
        self._view, self._observers = view, observers

    def say(self, text: str) -> None:
        self._view.say(text)

    def show(self, progress: SweepProgress) -> None:
        self._view.show(progress)
        self._observers.see(progress, self._view)


def _exit_code(error: BaseException | None) -> int:
    """Return the exit code of a command that ends with this error."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return 0 if error is None else 130
    return int(getattr(error, "exit_code", 2 if isinstance(error, UserError) else 1))
