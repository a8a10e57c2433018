"""Files, written whole or not at all, and JSON in them; and a lock on a folder, which dies with its
holder and holds the holder's notes.

Used by all rooms.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import math
import os
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeGuard

from ablate.shared.notes import Notes

_temporary = itertools.count()
DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)  # what a full disk answers
DEEPEST_TREE = 50  # levels of what is written here


def write_whole(path: Path, *content: bytes | memoryview) -> None:
    """Write `path` so that a reader finds all of `content` or what was there before.

    `os.replace`, since a reader may look between two steps; fsync of the file, since a power cut
    may keep the name and lose the bytes; fsync of the folder, since it may lose the name. The
    temporary name is unique, so that a crash here blocks no later write.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{next(_temporary)}")
    try:
        with open(temporary, "wb") as file:
            for part in content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make the folder and those above it that are missing, so that each new name survives a power
    cut."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def file_identity(file: Path | str | int) -> tuple[int, int] | None:
    """Return (device, inode) of a file, which stay the same when it is renamed; None where no file
    has this name any more."""
    try:
        status = os.stat(file)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
            return None
        raise
    return status.st_dev, status.st_ino


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class NotRegular(OSError):
    """The error for a pipe or a device where a file should be: reading it might never end."""


MOST_BYTES = 1 << 31  # of a file that is read whole: none that ablate writes has as many


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading. Raise NotRegular for anything else, rather than wait for a
    pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(errno.EINVAL, "is no regular file", str(path))
    return open(descriptor, "rb")


def read_file(path: Path) -> bytes:
    """Return all bytes of a regular file. Raise errors as `open_file` does."""
    with open_file(path) as file:
        return file.read()


def to_json(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hex. Raise OSError where it can't be read, NotRegular
    (see `open_file`) where it is a pipe."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """Return the parsed file; None where it is missing, no regular file, torn, not JSON, larger
    than MOST_BYTES or nested deeper than DEEPEST_TREE."""
    return _parsed(path)[0]


def read_hashed(path: Path) -> tuple[Any, str]:
    """Return what `read_json` returns, and the sha256 of the bytes that were parsed, in hex."""
    tree, content = _parsed(path)
    return tree, hashlib.sha256(content).hexdigest()


def _parsed(path: Path) -> tuple[Any, bytes]:
    try:
        if path.stat().st_size > MOST_BYTES:
            return None, b""
        content = read_file(path)
        tree = json.loads(content)
    except (FileNotFoundError, NotADirectoryError, NotRegular, ValueError, RecursionError):
        return None, b""
    return tree if is_shallow(tree) else None, content


BLANK = "0" * 64


def write_sealed(path: Path, tree: Mapping[str, Any]) -> None:
    """Write a JSON object that holds the sha256 of its own file, computed with BLANK in the hash's
    place."""
    content = json.dumps({"seal": BLANK, **tree}).encode()
    write_whole(path, content.replace(BLANK.encode(), _seal_of(content).encode(), 1))


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Return the object that `write_sealed` wrote; None where there is none, or the file was
    changed."""
    tree, content = _parsed(path)
    seal = tree.pop("seal", None) if isinstance(tree, dict) else None
    if not isinstance(seal, str):  # other JSON
        return None
    is_intact = _seal_of(content.replace(seal.encode(), BLANK.encode(), 1)) == seal
    return tree if is_intact else None


def _seal_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def is_shallow(tree: Any) -> bool:
    """Return whether a tree is nested at most DEEPEST_TREE levels deep, so that recursion over it
    is safe. Nothing that is written here is deeper."""
    level = [tree] if isinstance(tree, dict | list) else []
    for _ in range(DEEPEST_TREE):
        level = [
            part
            for parts in level
            for part in (parts.values() if isinstance(parts, dict) else parts)
            if isinstance(part, dict | list)
        ]
        if not level:
            return True
    return False


# The largest whole number that is written. Plans, run files, the ledger (SQLite) and tables of
# numpy and pandas hold it exactly; each of them fails, or rounds, above it.
LARGEST_INTEGER = 2**63 - 1


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number that may be written, an int at most LARGEST_INTEGER
    in size. A bool is none."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and abs(value) <= LARGEST_INTEGER


class Lock:
    """A file that is locked while its holder lives: the kernel releases the lock when the holder
    dies.

    `flock` belongs to the open file, which a forked child would inherit; so children of a holder
    are started by spawn or forkserver. The file holds the holder's notes (see `Notes`): a JSON
    object, written in place by one write and padded with blanks to the length of longer notes
    before. Readers take torn notes for none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._notes = Notes()

    def acquire(self, wait_s: float = 0.0) -> bool:
        """Take the lock, trying for `wait_s` seconds. Return False if somebody else holds it."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
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
        """Return whether the file held here is the one that others find under its name; True where
        none is held."""
        if self._descriptor is None:
            return True
        return file_identity(self.path) == file_identity(self._descriptor)

    def note(self, **notes: Any) -> None:
        """Add to the holder's notes. Nobody relies on notes being whole, or on disk. Raise
        TypeError for a word that `Notes` lacks."""
        assert self._descriptor is not None
        self._notes = replace(self._notes, **notes)
        size = os.fstat(self._descriptor).st_size
        os.pwrite(self._descriptor, json.dumps(self._notes.tree()).encode().ljust(size), 0)

    def add(self, **notes: Any) -> None:
        """Add notes that the last holder could no longer write itself. Write nothing while somebody
        holds the lock."""
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
    def hold(self, wait_s: float = 3600.0) -> Iterator[None]:
        """Hold the lock during a `with` block. Raise TimeoutError after `wait_s` seconds."""
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
        """Return whether a living process holds the lock. A probe shares it for a moment; probes
        don't take one another for holders."""
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
        """Send a signal to the process that holds the lock and has noted its pid. Return False if
        there is none."""
        pid = self.notes().pid
        if pid is None:
            return False  # not yet begun: ask again
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                # The pid may be another process's by now; the lock tells, and the descriptor
                # then stays with the process that held it.
                if self.is_held() and self.notes().pid == pid:
                    signal.pidfd_send_signal(descriptor, number)
                    return True
            finally:
                os.close(descriptor)
        return False

    def notes(self) -> Notes:
        """Return what the last holder noted; empty notes where the file is not whole."""
        return Notes.from_tree(read_json(self.path))
