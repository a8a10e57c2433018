"""What shows a drive to its reader, as the driver sees it."""

from __future__ import annotations

from typing import Protocol

from ablate.store import SweepProgress


class View(Protocol):
    """Shows a drive to a reader. `say`: an event; `show`: the progress, several times a second."""

    def say(self, text: str) -> None: ...

    def show(self, progress: SweepProgress) -> None: ...
