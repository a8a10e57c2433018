"""Who holds a folder: a lock that dies with its holder, and the holder's notes in it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate.shared.files import identity, is_number, is_text, read_json

_NOTES = dict.fromkeys(("pid", "step", "total", "done", "from_step", "from_at"), is_number)


class Lock:
    """A file that is locked while its holder lives: the kernel lets go when the holder dies.

    `flock` belongs to the open file, which a forked child would inherit: children of a holder are
    started by spawn or forkserver. The file's content is the holder's notes (a JSON object: pid,
    progress, how it ended), written in place by one write, with blanks up to the end of longer ones
    before: readers take torn notes for none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._notes: dict[str, Any] = {}

    def acquire(self, wait_s: float = 0.0) -> bool:
        """Take the lock, trying for `wait_s` seconds; False if somebody else holds it."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return False
                time.sleep(0.01)
            else:
                self._descriptor = descriptor
                return True

    def is_in_place(self) -> bool:
        """Is the file that is held here, if any, the one that others find under its name?"""
        if self._descriptor is None:
            return True
        return identity(self.path) == identity(self._descriptor)

    def note(self, **notes: Any) -> None:
        """Add to the holder's notes; nothing here is relied on to be whole, or on disk."""
        assert self._descriptor is not None
        self._notes |= notes
        size = os.fstat(self._descriptor).st_size
        os.pwrite(self._descriptor, json.dumps(self._notes).encode().ljust(size), 0)

    def add(self, **notes: Any) -> None:
        """What the last holder could not note any more; nothing while somebody holds it."""
        with contextlib.suppress(OSError):
            if self.acquire():
                try:
                    self._notes = self.notes()
                    self.note(**notes)
                finally:
                    self.release()

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)  # closing frees the lock
            self._descriptor = None

    @contextlib.contextmanager
    def held(self, wait_s: float = 3600.0) -> Iterator[None]:
        """The lock for a `with` block; TimeoutError after `wait_s` seconds."""
        if not self.acquire(wait_s):
            raise TimeoutError(f"{self.path}: still locked after {wait_s:.0f} s")
        try:
            yield
        finally:
            self.release()

    def clear(self) -> None:
        """Forget the last holder's notes."""
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self.path, 0)

    def is_held(self) -> bool:
        """Does a living process hold it? Probes share it for a moment and don't see each other."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)  # a store may be read-only
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def signal(self, number: int) -> bool:
        """Send a signal to the process that holds it, which has noted its pid; False for none."""
        pid = self.notes().get("pid")
        if not isinstance(pid, int):
            return False  # not yet begun: ask again
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                # The pid may be another process's by now; the lock tells, and the descriptor
                # then stays with the process that held it.
                if self.is_held() and self.notes().get("pid") == pid:
                    signal.pidfd_send_signal(descriptor, number)
                    return True
            finally:
                os.close(descriptor)
        return False

    def notes(self) -> dict[str, Any]:
        """What the last holder noted; {} where there is nothing whole."""
        notes = read_json(self.path)
        if not isinstance(notes, dict):
            return {}
        return {k: v for k, v in notes.items() if _NOTES.get(k, is_text)(v)}
