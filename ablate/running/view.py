"""The interface through which a driver shows a drive to its reader.

Used by running/driver.py, which calls it. Views of the terminal are in report/live.py, of a
notebook in report/notebook.py: a new method also needs these, and running/loggers/__init__.py,
which wraps them.
"""

from __future__ import annotations

from typing import Protocol

from ablate.store import SweepProgress


class View(Protocol):
    """A view shows a drive to a reader. `say`: an event; `show`: the progress, several times a
    second."""

    def say(self, text: str) -> None: ...

    def show(self, progress: SweepProgress) -> None: ...
