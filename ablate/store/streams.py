"""The file of a stream: one sealed event a line, appended and synced, in `streams/NAME.jsonl`.

Each line holds a hash of itself and of all lines before it. A line that a crash cut off is none.
Whoever appends holds the stream's lock for that moment, reads what others have written, and decides
by it; so two proposals may be judged at once. The file is no part of the ledger: a lost ledger
loses no stream, and merging stores copies it.

Used by api/stream.py and audit/streams.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.shared import Failure, Lock, TryAgain, UserError, make_folder, read_file, sync_folder
from ablate.store.code_copies import CodeCopies
from ablate.store.folder import StoreFolder
from ablate.store.stream_record import StreamRecord, folded

LOCK_WAIT_S = 60.0  # for another process to append its event


class StreamFile:
    """The events of the stream `name` of a store."""

    def __init__(self, store: StoreFolder, name: str) -> None:
        if not _is_name(name):
            raise UserError(
                f"{name}: expected a stream's name of letters, digits, - and _, first a letter"
            )
        self.name, self._store = name, store
        self.path = store.streams / f"{name}.jsonl"
        self._lock = Lock(store.streams / f".{name}.lock")

    @staticmethod
    def of_store(store: StoreFolder) -> list[StreamFile]:
        """List the streams of a store, by name. A file that has no stream's name, such as a copy
        that a user made, is none."""
        paths: list[Path] = sorted(store.streams.glob("*.jsonl")) if store.streams.is_dir() else []
        files = [StreamFile(store, path.stem) for path in paths if _is_name(path.stem)]
        return [file for file in files if file.exists()]

    @staticmethod
    def refuse_sweep(store: StoreFolder, name: str) -> None:
        """Raise UserError where a new sweep would have the name of a stream: `verify NAME` would
        mean either."""
        if store.plan_path(name).exists():
            return
        if name in (file.name for file in StreamFile.of_store(store)):
            raise UserError(f"{name}: is the name of a stream here; give another with --as NAME")

    @property
    def copies(self) -> CodeCopies:
        """The copies of code in its store."""
        return CodeCopies(self._store)

    def exists(self) -> bool:
        """Return whether the stream has begun, which it does with its first whole line: a crash
        before that leaves a file without one."""
        return self.path.exists() and b"\n" in read_file(self.path)

    def events(self) -> list[dict[str, Any]]:
        """Return the events, without their seals.

        Raises Failure for a line that was edited, or that follows one that was removed.
        """
        return self._parsed()[0]

    def record(self) -> StreamRecord:
        """Return the stream as it stands. Raises Failure for a file that no stream wrote."""
        try:
            return folded(self.name, self.events())
        except (LookupError, TypeError, ValueError) as error:
            raise Failure(f"{self.path}: is no stream's file: {error}") from error

    def pools(self) -> Iterator[tuple[float, int]]:
        """Yield the pool that each proposal has to begin with, by the events before its own."""
        events = self.events()
        for position, event in enumerate(events):
            if event["kind"] == "open":
                yield folded(self.name, events[:position]).pool

    @contextlib.contextmanager
    def appending(self) -> Iterator[StreamWriter]:
        """Hold the stream's lock, and give what appends to it. Raises TryAgain where another
        process keeps the lock."""
        make_folder(self.path.parent)
        if not self._lock.acquire(LOCK_WAIT_S):
            raise TryAgain(f"{self.path}: another process holds its lock; try again")
        try:
            yield StreamWriter(self)
        finally:
            self._lock.release()

    def _parsed(self) -> tuple[list[dict[str, Any]], str, int]:
        """Return the events, the last seal, and the number of bytes that whole lines have."""
        content = read_file(self.path) if self.path.exists() else b""
        whole_bytes = content.rfind(b"\n") + 1
        events, last_seal = [], ""
        for number, line in enumerate(content[:whole_bytes].splitlines(), 1):
            try:
                event = json.loads(line)
                seal = event.pop("seal")
            except (ValueError, AttributeError, KeyError, TypeError):
                seal, event = None, {}
            last_seal = seal_after(last_seal, event)
            if seal != last_seal:
                raise Failure(f"{self.path}: line {number} was edited, or one before it removed")
            events.append(event)
        return events, last_seal, whole_bytes


def _is_name(name: str) -> bool:
    return name.replace("-", "_").isidentifier() and not name.startswith("-")


class StreamWriter:
    """Appends to a stream's file, under its lock."""

    def __init__(self, file: StreamFile) -> None:
        self._file = file

    def append(self, kind: str, **fields: Any) -> StreamRecord:
        """Append an event, which is on the disk when this returns; return the stream with it.
        Raises OSError where it can't be written whole: the next append cuts off what was."""
        _, last_seal, whole_bytes = self._file._parsed()
        event = {"kind": kind, "at": round(time.time(), 3), **fields}
        event["seal"] = seal_after(last_seal, json.loads(json.dumps(event)))
        is_new = not self._file.exists()
        descriptor = os.open(self._file.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.ftruncate(descriptor, whole_bytes)  # what a crash cut off
            line, position = json.dumps(event, sort_keys=True).encode() + b"\n", whole_bytes
            while line:  # a write may be short, and the next one says why
                written_bytes = os.pwrite(descriptor, line, position)
                line, position = line[written_bytes:], position + written_bytes
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_folder(self._file.path.parent)
        return self._file.record()


def seal_after(last_seal: str, event: Mapping[str, Any]) -> str:
    """Return the seal of an event that follows the one with `last_seal`."""
    text = last_seal + json.dumps(event, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
