"""The interface through which a driver shows a drive to its reader.

Used by running/driver.py, which calls it. Views of the terminal are in report/live.py, of a
notebook in report/notebook.py: a new method also needs these, and running/loggers/__init__.py,
which wraps them.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ablate.shared import DISK_FULL_ERRORS
from ablate.store import SweepProgress

NO_READER = (errno.EPIPE, errno.EIO)  # of a pipe whose reader ended, of a terminal that was closed


class View(Protocol):
    """A view shows a drive to a reader. `say`: an event; `show`: the progress, several times a
    second."""

    def say(self, text: str) -> None: ...

    def show(self, progress: SweepProgress) -> None: ...


class LastingView:
    """A view that outlives its reader: `tee`, which the same Ctrl-C ends, or a terminal that is
    closed. From then on it is silent, and the drive stops its workers as after SIGHUP.

    A line that finds a full disk, where the output is a file, is lost.
    """

    def __init__(self, view: View, signals: list[int]) -> None:
        """`signals`: those that the drive has heard; SIGHUP is added, unless another one stops the
        drive already."""
        self._view, self._signals = view, signals
        self._has_reader = True

    def say(self, text: str) -> None:
        self._write(partial(self._view.say, text))

    def show(self, progress: SweepProgress) -> None:
        self._write(partial(self._view.show, progress))

    def _write(self, write: Callable[[], None]) -> None:
        if not self._has_reader:
            return
        try:
            write()
        except OSError as error:
            if error.errno in NO_READER:
                self._has_reader = False
                if not self._signals:
                    self._signals.append(signal.SIGHUP)
            elif error.errno not in DISK_FULL_ERRORS:
                raise
