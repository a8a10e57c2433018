"""From a plan to finished runs: the driver, its launchers and its loggers. Here are what these
share: the view of a drive, and answers of the training half, kept in the store's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ablate.shared.files import make_folder, read_sealed, write_sealed
from ablate.store.progress import SweepProgress


class View(Protocol):
    """Shows a drive to a reader. `say`: an event; `show`: the progress, several times a second."""

    def say(self, text: str) -> None: ...

    def show(self, progress: SweepProgress) -> None: ...


class AnswerCache:
    """Answers by key. `is_answer`: malformed ones are left out."""

    def __init__(self, path: Path, is_answer: Callable[[Any], bool]) -> None:
        self.path, self._is_answer = path, is_answer

    def read(self) -> dict[str, Any]:
        """Return the answers; {} where the file is missing or not whole."""
        answers = read_sealed(self.path) or {}
        return {key: answer for key, answer in answers.items() if self._is_answer(answer)}

    def add(self, answers: Mapping[str, Any]) -> dict[str, Any]:
        """Write these beside those that are there, and return all."""
        every = {**self.read(), **answers}
        make_folder(self.path.parent)
        write_sealed(self.path, every)
        return every
