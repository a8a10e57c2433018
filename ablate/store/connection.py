"""The ledger's file: opened, its version, and a transaction."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ablate.shared.errors import Failure, UserError, other_format
from ablate.version import FORMAT

PATIENCE_S = 10.0  # for the end of another host's transaction


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk rolls back by itself
            db.execute("ROLLBACK")
        raise


class _Connection(sqlite3.Connection):
    def execute(self, *args: Any) -> sqlite3.Cursor:
        """Raises DatabaseError, too, where SQLite quotes a damaged schema that is no text: Python
        can't read that message."""
        try:
            return super().execute(*args)
        except UnicodeDecodeError as error:
            broken = sqlite3.DatabaseError(f"damaged: {error}")
            broken.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise broken from error


def connect(file: Path, mode: str, timeout: float = 30) -> sqlite3.Connection:
    """To a ledger, by SQLite's mode: it is there, but for `rwc`. Transactions are begun by hand."""
    uri = f"{file.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(
        uri, uri=True, timeout=timeout, isolation_level=None, factory=_Connection
    )


# Whatever else a mount may be, it may be another host's disk: the memory that SQLite's WAL shares
# between processes is not shared there.
_OWN_DISKS = {
    *("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs"),
    *("tmpfs", "xfs", "zfs"),
}


def journal_mode(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """WAL where the disk of `folder` is this host's own, so that readers and the driver don't wait
    for each other; elsewhere DELETE, which asks for locks alone."""
    try:
        text = mounts.read_text()
    except OSError:  # not Linux
        return "WAL"
    kinds = {}
    for line in text.splitlines():
        first, _, last = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), first.split()[4])
        kinds[Path(point)] = last.split()[0]  # the last mounted there covers the others
    place = folder.resolve()
    kind = next((kinds[p] for p in (place, *place.parents) if p in kinds), "")
    return "WAL" if kind in _OWN_DISKS else "DELETE"


def open_reader(file: Path, elsewhere: bool = False) -> sqlite3.Connection:
    """To read. Where nothing can be written SQLite lacks what readers and writers share, unless a
    writer has it open: then the file is read as it stands.

    `elsewhere`: another host writes, whose locks may not reach this one. SQLite would take the
    journal of its transaction for a dead writer's, and roll it back: it must not write.
    """
    if elsewhere and not _has_wal(file):
        return _beside(file)
    if os.access(file.parent, os.W_OK):
        return connect(file, "rwc")
    connection = connect(file, "ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_master")
    except sqlite3.OperationalError:
        connection.close()
        return connect(file, "ro&immutable=1")
    return connection


def _has_wal(file: Path) -> bool:
    """Has it a write-ahead log? It is on a disk of this host then, where locks are seen."""
    with open(file, "rb") as content:
        return content.read(19)[18:] == b"\2"  # the version that a writer needs


def _beside(file: Path) -> sqlite3.Connection:
    """A connection that never writes, opened between two transactions of the writer."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        connection = connect(file, "ro")
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            return connection
        except sqlite3.OperationalError as error:
            connection.close()
            if time.monotonic() > deadline:
                raise Failure(f"{file}: another host writes it ({error}); try again") from error
        time.sleep(0.02)


def is_begun(file: Path) -> bool:
    """Is there anything in the ledger? True where that can't be told: whoever opens it will say
    so."""
    with (
        contextlib.closing(connect(file, "rwc")) as db,
        contextlib.suppress(sqlite3.DatabaseError),
    ):
        return db.execute("SELECT 1 FROM sqlite_master").fetchone() is not None
    return True


def check_version(db: sqlite3.Connection, file: Path) -> None:
    """Raises Failure for a ledger of another format, UserError for what is no whole ledger."""
    try:
        version = db.execute("SELECT version FROM meta").fetchone()[0]
        if type(version) is not int:
            raise TypeError("no version in it")
    except (sqlite3.DatabaseError, TypeError) as error:
        raise UserError(
            f"{file}: is not a whole ledger ({error}); "
            f"`ablate doctor --repair` rebuilds it from the run folders"
        ) from error
    if version != FORMAT:
        raise other_ledger(file, version)


def other_ledger(file: Path, version: int) -> Failure:
    return other_format(file, version, "begin a new store with --store DIR")
