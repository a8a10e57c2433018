"""What observes a sweep while it is driven: loggers, and a shell command that tells somebody.

They look on through the view of the drive, and through the folders of runs: the drive knows nothing
of them, waits for nothing of them, and ends as it would without.
"""

from __future__ import annotations

import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from ablate.planning.logger import Aside
from ablate.running import View
from ablate.running.loggers import Feeders
from ablate.shared.errors import Failure, UserError
from ablate.store.progress import GIVEN_UP, SweepProgress, turn_of_child

FORMAT = 1  # of the summary; raised when a reader of the old would be wrong
MOST = 20  # runs that a summary names
LIMIT_S = 60.0  # for a command
APART_S = 60.0  # between two summaries of failures: what fails meanwhile is told together
END_S = 5.0  # for the last command, until ours ends without it


class Notifier:
    """Runs `notify=COMMAND`, a shell command that gets a summary as JSON on standard input. It runs
    apart from the drive; nothing depends on how it ends. `say`: a warning where it fails, once."""

    def __init__(self, command: str, say: Callable[[str], None]) -> None:
        self._command, self._say = command, say
        self._running: dict[subprocess.Popen[bytes], float] = {}  # since when
        self._failed = False
        self._began = -APART_S

    def is_free(self) -> bool:
        """May a failure be told now?"""
        self._look()
        return not self._running and time.monotonic() - self._began >= APART_S

    def send(self, summary: Mapping[str, Any]) -> None:
        """Start the command; return at once. It is no argument: lists of processes show those."""
        self._began = time.monotonic()
        try:
            with tempfile.TemporaryFile() as script, tempfile.TemporaryFile() as given:
                for file, text in ((script, self._command), (given, json.dumps(summary))):
                    file.write(f"{text}\n".encode())
                    file.seek(0)
                shell = ["sh", f"/dev/fd/{script.fileno()}"]
                process = subprocess.Popen(
                    ["timeout", "--signal=KILL", f"{LIMIT_S}", *shell],
                    stdin=given,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[script.fileno()],
                    start_new_session=True,
                )
            self._running[process] = self._began
        except OSError as error:
            self._warn(str(error))

    def close(self) -> None:
        """Wait for a moment, for a warning; a command that takes longer ends by itself."""
        until = time.monotonic() + END_S
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

    def _warn(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            self._say(f"warning: notify: {why}; the sweep does not depend on it")


class Observers:
    """As a `with` block around a drive: once there is a plan it starts the loggers, and in the end
    it lets them go."""

    def __init__(self, aside: Aside, store: Path, sweep: str, say: Callable[[str], None]) -> None:
        self._aside, self._store, self._sweep, self._say = aside, store.absolute(), sweep, say
        self._lines: list[str] = []  # of warnings, not shown yet
        self._feeders: Feeders | None = None
        self._notifier = Notifier(aside.notify, self._lines.append) if aside.notify else None
        self._progress: SweepProgress | None = None
        self._told: set[str] = set()  # runs that were given up, as far as it was told
        self._verdicts: tuple[str, Sequence[Mapping[str, Any]]] = "", ()

    def __enter__(self) -> Observers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Tell of the end; not of a drive that never began, since somebody said no."""
        began = self._progress is not None or isinstance(error, UserError | Failure | OSError)
        if self._notifier is not None and began:
            self._notifier.send(self._summary("end", error))
        if self._feeders is not None:
            self._feeders.close()
        if self._notifier is not None:
            self._notifier.close()
        for line in self._lines:
            self._say(line)

    def beside(self, view: View) -> View:
        """Return the view of a drive, by which the progress is seen here, too."""
        return _Observed(view, self) if self._aside.loggers or self._notifier else view

    def see(self, progress: SweepProgress, view: View) -> None:
        """Look at the progress; several times a second."""
        first, self._progress = self._progress is None, progress
        lost = self._lost()
        if first:
            self._told = lost  # by earlier drives
            loggers, say = self._aside.loggers, self._lines.append
            self._feeders = Feeders(loggers, self._store, self._sweep, say)
        if self._feeders is not None:
            self._feeders.look()
        if self._notifier is not None and lost - self._told and self._notifier.is_free():
            self._notifier.send(self._summary("failure", None))
            self._told = lost
        while self._lines:
            view.say(self._lines.pop(0))

    def read(self, line: str, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Keep the verdicts of the complete sweep; they were read, and their look is recorded."""
        self._verdicts = line, verdicts

    def _lost(self) -> set[str]:
        """Return the runs that are given up: none of them is started again by itself."""
        progress = self._progress
        if progress is None or not any(progress.counts.get(status) for status in GIVEN_UP):
            return set()
        states = progress.states.items()
        return {run for run, s in states if s.status in GIVEN_UP and turn_of_child(s) == "never"}

    def _summary(self, event: str, error: BaseException | None) -> dict[str, Any]:
        """`event`: failure | end. `exit` and `error` are the command's, in the end."""
        progress, lost = self._progress, self._lost()
        message = str(error) if isinstance(error, UserError | Failure | OSError) else None
        line, verdicts = self._verdicts
        if message is not None:
            line = f"{message.removeprefix(f'{self._sweep}: ')}."
        if progress is not None:
            given_up = f", {len(lost)} given up" if lost else ""
            line = f"{progress.done} of {progress.total} runs are done{given_up}. {line}".strip()
        return {
            "format": FORMAT,
            "event": event,
            "sweep": self._sweep,
            "store": str(self._store),
            "host": platform.node(),
            "at": time.time(),
            "line": f"{self._sweep}: {line}",
            "done": progress.done if progress is not None else 0,
            "total": progress.total if progress is not None else None,
            "states": dict(progress.counts) if progress is not None else {},
            "lost": [
                {"run": run, "status": progress.status(run)}
                for run in sorted(lost)[:MOST]
                if progress is not None
            ],
            "exit": _exit_code(error) if event == "end" else None,
            "error": message,
            "verdicts": list(verdicts),
        }


class _Observed:
    """See `View`."""

    def __init__(self, view: View, observers: Observers) -> None:
        self._view, self._observers = view, observers

    def say(self, text: str) -> None:
        self._view.say(text)

    def show(self, progress: SweepProgress) -> None:
        self._view.show(progress)
        self._observers.see(progress, self._view)


def _exit_code(error: BaseException | None) -> int:
    """Return that of the command that ends with this error."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return 0 if error is None else 130
    return int(getattr(error, "exit_code", 2 if isinstance(error, UserError) else 1))
