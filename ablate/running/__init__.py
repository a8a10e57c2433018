"""From a plan to finished runs: the driver, its launchers and its loggers."""

from __future__ import annotations

from typing import Protocol

from ablate.store.progress import SweepProgress


class View(Protocol):
    """Shows a drive to a reader. `say`: an event; `show`: the progress, several times a second."""

    def say(self, text: str) -> None: ...

    def show(self, progress: SweepProgress) -> None: ...
