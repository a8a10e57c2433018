"""How far the build of a cache is, for whoever goes on where it was killed.

    journal.json, sealed
        of       what else there is would be another build's
        done     {stored split: row}: all rows before it are decoded and on the disk
        broken   which of them could not be read
        sha256   by array, of its bytes as far as they are done

Rows are decoded in the order in which each array has them, so what is done of an array is how it
begins. Its hash grows with it, and is compared before a build goes on and once more at its end:
what rotted in between would be sealed as if it had been decoded so.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import PIL

from ablate.data.decode_pool import Array, Line
from ablate.data.splits import FORMAT
from ablate.shared.files import read_sealed, sync_folder, write_sealed

JOURNAL = "journal.json"
_JOURNAL_S = 10.0  # what a killed build loses at most

Done = dict[str, int]  # by stored split, the row before which all is decoded


def noted(path: Path, rows: dict[str, int]) -> dict[str, Any] | None:
    """A journal of so many rows of each stored split, beside arrays of the sizes that it states."""
    content = read_sealed(path)
    if content is None or content["of"] != _of(rows, content["of"]["bytes"]):
        return None
    arrays = {path.parent / name: size for name, size in content["of"]["bytes"].items()}
    if not all(array.exists() and array.stat().st_size == size for array, size in arrays.items()):
        return None
    return content


def _of(rows: dict[str, int], sizes: dict[str, int]) -> dict[str, Any]:
    return {"format": FORMAT, "pillow": PIL.__version__, "rows": rows, "bytes": sizes}


class BuildJournal:
    """Written by a thread of its own, since the disk may take seconds to have it all.

    rows: of each stored split. finished: of each array, how many of its rows are done.
    """

    def __init__(
        self,
        path: Path,
        arrays: list[Array],
        rows: dict[str, int],
        finished: Callable[[Done], list[int]],
    ) -> None:
        self.path = path
        self._arrays, self._finished = arrays, finished
        self._of = _of(rows, {array.path.name: array.bytes for array in arrays})
        self._hashed = _Hashed(arrays)
        self._noted_at = time.monotonic()
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def read(self) -> tuple[Done, list[Line]]:
        """({}, []) where there is nothing to go on with. The arrays themselves are not read."""
        content = noted(self.path, self._of["rows"])
        if content is None or content["of"] != self._of:
            return {}, []
        done: Done = content["done"]
        lines: list[Line] = content["broken"]
        return done, [(line, [(split, row) for split, row in places]) for line, places in lines]

    def damage(self) -> list[str]:
        """The arrays in which what is noted as done is not as it was written. All of it is read."""
        content = read_sealed(self.path)
        if content is None:
            return []
        self._hashed = _Hashed(self._arrays)
        found, noted = self._hashed.until(self._finished(content["done"])), content["sha256"]
        return [name for name, digest in found.items() if digest != noted[name]]

    def note(self, done: Done, broken: list[Line]) -> None:
        """Now and then: what it is told in between is left out."""
        if time.monotonic() - self._noted_at < _JOURNAL_S:
            return
        if self._writing is not None:
            if not self._writing.done():
                return
            self._writing.result()  # raises what writing it did
        self._noted_at = time.monotonic()
        self._writing = self._writer.submit(self._write, dict(done), list(broken))

    def close(self) -> None:
        self._writer.shutdown()

    def begin(self) -> None:
        """Nothing is done: what an earlier build noted is of arrays that are about to be others."""
        self._hashed = _Hashed(self._arrays)
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def remove(self) -> None:
        """For good: the arrays are about to be none that it speaks of."""
        self.close()
        self.begin()

    def _write(self, done: Done, broken: list[Line]) -> None:
        for array in self._arrays:
            array.sync()
        hashes = self._hashed.until(self._finished(done))
        content = {"of": self._of, "done": done, "broken": broken, "sha256": hashes}
        with contextlib.suppress(OSError):  # the arrays have their room, even on a full disk
            write_sealed(self.path, content)


class _Hashed:
    """How arrays begin: the hash of a beginning, which is read on where it was longer last time."""

    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays
        self._digests = [hashlib.sha256() for _ in arrays]
        self._ends = [0] * len(arrays)

    def until(self, rows: list[int]) -> dict[str, str]:
        """By array, the sha256 of its header and so many rows: as many as last time, or more."""
        for n, (array, digest) in enumerate(zip(self._arrays, self._digests, strict=True)):
            for part in array.parts(self._ends[n], rows[n]):
                digest.update(part)
                self._ends[n] += len(part)
        return {
            array.path.name: digest.hexdigest()
            for array, digest in zip(self._arrays, self._digests, strict=True)
        }
