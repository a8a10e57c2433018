"""Reads the metrics of runs while they are trained: each byte once, and only of files that grew."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Any

from ablate.shared.rundir import RunDir, parse_lines


@dataclass
class _Read:
    """The lines of a file so far. `inode`, `size`: of the file as it was read."""

    inode: int = 0
    size: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)


class GrowingMetrics:
    """The lines of `metrics.jsonl` of any number of runs, as these grow."""

    def __init__(self) -> None:
        self._known: dict[str, _Read] = {}

    def lines(self, folder: RunDir) -> list[dict[str, Any]]:
        """Every whole line, in the order of steps; [] without a file. A worker that resumes puts
        another file in its place: that one is read from its beginning."""
        known = self._known.setdefault(folder.id, _Read())
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            now = os.stat(folder.metrics)
            if now.st_ino != known.inode or now.st_size < known.size:
                known = self._known[folder.id] = _Read(now.st_ino)
            if now.st_size > known.size:
                self._read_on(known, folder)
        return known.lines

    def _read_on(self, known: _Read, folder: RunDir) -> None:
        with open(folder.metrics, "rb") as file:
            if os.fstat(file.fileno()).st_ino != known.inode:  # replaced meanwhile: the next time
                return
            file.seek(known.size)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        known.size += len(whole)
        known.lines += parse_lines(whole)
