"""The ledger's file: opened, its version, and a transaction."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ablate.shared.errors import UserError

VERSION = 4


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


def connect(file: Path, mode: str) -> sqlite3.Connection:
    """To a ledger that is there. Transactions are begun by hand."""
    uri = f"{file.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)


def open_reader(file: Path) -> sqlite3.Connection:
    """To read. Where nothing can be written SQLite lacks what readers and writers share, unless a
    writer has it open: then the file is read as it stands."""
    if os.access(file.parent, os.W_OK):
        return sqlite3.connect(file, timeout=30)
    connection = connect(file, "ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_master")
    except sqlite3.OperationalError:
        connection.close()
        return connect(file, "ro&immutable=1")
    return connection


def version_of(file: Path) -> int:
    """Of the ledger's format, 0 while it is empty; this one's where that can't be told: whoever
    opens it will say so."""
    with (
        contextlib.closing(sqlite3.connect(file, timeout=30)) as db,
        contextlib.suppress(sqlite3.DatabaseError, TypeError, ValueError),
    ):
        begun = db.execute("SELECT 1 FROM sqlite_master").fetchone()
        return int(db.execute("SELECT version FROM meta").fetchone()[0]) if begun else 0
    return VERSION


def check_version(db: sqlite3.Connection, file: Path) -> int:
    """The ledger's version. Raises UserError for one that this ablate can't read."""
    try:
        version: int = db.execute("SELECT version FROM meta").fetchone()[0]
        if type(version) is not int:
            raise TypeError("no version in it")
    except (sqlite3.DatabaseError, TypeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{file}: is not a whole ledger ({error}); "
            f"`ablate doctor --repair` rebuilds it from the run folders"
        ) from error
    if not 1 <= version <= VERSION:
        raise UserError(
            f"{file}: written by a newer version of ablate (format {version}, "
            f"this one reads up to {VERSION})"
        )
    return version
