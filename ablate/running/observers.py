"""What a sweep has at its side while it is driven: loggers, and a command that tells somebody.

It looks on through the view of the drive, and through the folders of runs: the drive knows nothing
of it, waits for nothing of it, and ends as it would without.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ablate.planning.logger import Aside
from ablate.running import View
from ablate.running.loggers import Feeders
from ablate.running.notify import Notifier
from ablate.shared.errors import Failure, UserError
from ablate.store.progress import GIVEN_UP, SweepProgress, turn_of_child

FORMAT = 1  # of the summary; raised when a reader of the old would be wrong
MOST = 20  # runs that a summary names


class Observers:
    """As a `with` block around a drive: once there is a plan it starts the loggers, and in the end
    it lets them go."""

    def __init__(self, aside: Aside, store: Path, sweep: str, say: Callable[[str], None]) -> None:
        self._aside, self._store, self._sweep, self._say = aside, store.absolute(), sweep, say
        self._feeders: Feeders | None = None
        self._notifier = Notifier(aside.notify, self._tell) if aside.notify else None
        self._progress: SweepProgress | None = None
        self._known: set[str] = set()  # runs that were given up, as far as it was told
        self._verdicts: tuple[str, Sequence[Mapping[str, Any]]] = "", ()

    def __enter__(self) -> Observers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """A drive that never began, since somebody said no, is told to nobody."""
        began = self._progress is not None or isinstance(error, UserError | Failure | OSError)
        if self._notifier is not None and began:
            self._notifier.send(self._summary("end", error))
        if self._feeders is not None:
            self._feeders.close()
        if self._notifier is not None:
            self._notifier.close()

    def beside(self, view: View) -> View:
        """The view of a drive, by which the progress is seen here, too."""
        return _Seen(view, self) if self._aside.loggers or self._notifier else view

    def see(self, progress: SweepProgress, view: View) -> None:
        """Several times a second."""
        first, self._progress = self._progress is None, progress
        say, self._say = self._say, view.say  # which knows where its bars stand
        if first:
            self._known = self._lost()  # by earlier drives
            self._feeders = Feeders(self._aside.loggers, self._store, self._sweep, self._tell)
        if self._feeders is not None:
            self._feeders.look()
        if self._notifier is not None:
            lost = self._lost()
            if lost - self._known and self._notifier.is_free():
                self._notifier.send(self._summary("failure", None))
                self._known = lost
        self._say = say

    def read(self, line: str, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """The verdicts of the complete sweep were read, and their look is recorded."""
        self._verdicts = line, verdicts

    def _tell(self, line: str) -> None:
        self._say(line)

    def _lost(self) -> set[str]:
        """The runs that are given up: none of them is started again by itself."""
        assert self._progress is not None
        if not any(self._progress.counts.get(status) for status in GIVEN_UP):
            return set()
        states = self._progress.states.items()
        return {run for run, s in states if s.status in GIVEN_UP and turn_of_child(s) == "never"}

    def _summary(self, event: str, error: BaseException | None) -> dict[str, Any]:
        """`event`: failure | end. `exit` and `error` are the command's, in the end."""
        about = {"format": FORMAT, "event": event, "sweep": self._sweep, "store": str(self._store)}
        about |= {"host": platform.node(), "at": time.time()}
        line, verdicts = self._verdicts
        sentences, progress, lost = [], self._progress, set[str]()
        if progress is not None:
            lost = self._lost()
            given_up = f", {len(lost)} given up" if lost else ""
            sentences.append(f"{progress.done} of {progress.total} runs are done{given_up}.")
        said = str(error) if isinstance(error, UserError | Failure | OSError) else None
        sentences += [f"{said.removeprefix(f'{self._sweep}: ')}."] if said else [line]
        return {
            **about,
            "line": f"{self._sweep}: {' '.join(filter(None, sentences))}",
            "done": progress.done if progress is not None else 0,
            "total": progress.total if progress is not None else None,
            "states": dict(progress.counts) if progress is not None else {},
            "lost": [
                {"run": run, "status": progress.status(run)}
                for run in sorted(lost)[:MOST]
                if progress is not None
            ],
            "exit": _code(error) if event == "end" else None,
            "error": said,
            "verdicts": list(verdicts),
        }


class _Seen:
    """See `View`."""

    def __init__(self, view: View, observers: Observers) -> None:
        self._view, self._observers = view, observers

    def say(self, text: str) -> None:
        self._view.say(text)

    def show(self, progress: SweepProgress) -> None:
        self._view.show(progress)
        self._observers.see(progress, self._view)


def _code(error: BaseException | None) -> int:
    """Of the command that ends with it."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return 0 if error is None else 130
    return int(getattr(error, "exit_code", 2 if isinstance(error, UserError) else 1))
