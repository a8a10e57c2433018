"""Answers of the training half, kept in a store's cache.

Used by running/estimate.py, running/rehearse.py and running/preflight.py, before `ablate plan`
prints and before `ablate sweep` trains. The answers are made in training/answers.py; a new field
there also needs the `_is_...` function of the file that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ablate.shared import make_folder, read_sealed, write_sealed


class AnswerCache:
    """A file of answers by key. `is_answer` checks each; malformed ones are left out."""

    def __init__(self, path: Path, is_answer: Callable[[Any], bool]) -> None:
        self.path, self._is_answer = path, is_answer

    def answers(self) -> dict[str, Any]:
        """Return the answers; {} where the file is missing or not whole."""
        answers = read_sealed(self.path) or {}
        return {key: answer for key, answer in answers.items() if self._is_answer(answer)}

    def add(self, answers: Mapping[str, Any]) -> dict[str, Any]:
        """Write these answers in addition to the earlier ones, and return all."""
        merged = {**self.answers(), **answers}
        make_folder(self.path.parent)
        write_sealed(self.path, merged)
        return merged
