"""`ablate doctor --repair`: rebuilds the ledger from its remains, the plans and the run folders.

The new ledger is put in the place of the old one by the last step, one rename: a kill at any moment
leaves either the old ledger or the new one.

Used by `cli/keeping.py`. The new ledger is filled by `build` in `store/ledger.py`: a new table
needs both.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ablate.shared import Failure, count_text, sync_folder, write_whole
from ablate.store.events import (
    PLAN,
    PLAN_OF,
    Look,
    Row,
    RunState,
    event_detail,
    fold,
    holds,
    plan_detail,
)
from ablate.store.ledger import Ledger, Remains, connect_ledger, other_ledger_error
from ablate.store.looks import LOOK, is_look
from ablate.store.store import Store
from ablate.version import FORMAT

UNREADABLE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR)
BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
DAMAGE = (sqlite3.Error, ValueError, LookupError, TypeError, AttributeError, RecursionError)
BUSY_S = 5.0  # readers are gone in milliseconds, but for those that watch


@dataclass
class Repaired:
    """The outcome of a repair.

    `backup`: the path of the old ledger, None where there was none. `events`: how many of its
    events are kept. `lines`: what could not be read, or was taken from files because its seal could
    not be read.
    """

    backup: Path | None = None
    events: int = 0
    lines: list[str] = field(default_factory=list)


def repair_ledger(store: Store) -> Repaired:
    """Rebuild the ledger, under the driver's lock.

    Raises Failure where another process keeps reading the old ledger, and where that has another
    format.
    """
    report = Repaired()
    with _opened(store, report) as old, contextlib.closing(sqlite3.connect(":memory:")) as new:
        remains = _remains(old, store, report)
        ledger = Ledger(new)
        plans, runs = ledger.build(store, remains)
        new.commit()
        report.events = len(remains.events)
        for sweep in plans:
            report.lines.append(
                f"{store.plan_path(sweep)}: taken from its file, since no seal of it could be read"
            )
        if runs:
            files, pronoun = ("its file", "it") if len(runs) == 1 else ("their files", "them")
            report.lines.append(
                f"{count_text(len(runs), 'result')} taken from {files}, since no hash of {pronoun} "
                f"could be read"
            )
        report.backup = _put_aside(store)
        write_whole(store.ledger, new.serialize())
    with Ledger.driving(store) as ledger:
        ledger.write_view(store)
    return report


@contextmanager
def _opened(store: Store, report: Repaired) -> Iterator[sqlite3.Connection | None]:
    """Open the old ledger exclusively, with its write-ahead log merged into it.

    Yields None where there is no ledger, or where SQLite can't read the file.
    """
    if not store.ledger.exists():
        yield None
        return
    with contextlib.closing(connect_ledger(store.ledger, "rw", BUSY_S)) as db:
        db.text_factory = bytes
        old: sqlite3.Connection | None = db
        if (version := _version(db)) != FORMAT:
            raise other_ledger_error(store.ledger, version)
        try:
            db.execute("PRAGMA journal_mode = DELETE")
            db.execute("BEGIN EXCLUSIVE")
        except sqlite3.DatabaseError as error:
            code = error.sqlite_errorcode & 0xFF
            if code in BUSY:
                raise Failure(
                    f"{store.ledger}: another process reads it (`status --watch`?); end it first"
                ) from error
            if code not in UNREADABLE:
                raise
            report.lines.append(f"{store.ledger}: can't be read ({error})")
            old = None
        yield old


def _remains(old: sqlite3.Connection | None, store: Store, report: Repaired) -> Remains:
    if old is None:
        return Remains(looks=store.looks_view())
    events, states, broken = _events(old)
    if broken:
        report.lines.append(f"{store.ledger}: {broken}")
    looks = [*_looks(old, events), *store.looks_view()] if broken else []
    planned: dict[str, tuple[float, list[str]]] = {}
    try:
        for name, drive_time in old.execute("SELECT name, driven FROM sweep"):
            query = "SELECT run FROM planned WHERE sweep = ? ORDER BY position"
            runs = [row[0].decode() for row in old.execute(query, (name.decode(),))]
            planned[name.decode()] = float(drive_time), runs
    except (sqlite3.Error, AttributeError, TypeError, ValueError) as error:
        report.lines.append(f"{store.ledger}: its sweeps can't be read ({error})")
    dropped_runs = _dropped_runs(old, events) if broken else {}
    return Remains(events, states, not broken, looks, planned, dropped_runs)


def _version(old: sqlite3.Connection) -> int:
    """Return the format version of the ledger, or FORMAT where it can't be read."""
    with contextlib.suppress(sqlite3.Error, TypeError, ValueError):
        return int(old.execute("SELECT version FROM meta").fetchone()[0])
    return FORMAT


def _events(old: sqlite3.Connection) -> tuple[list[Row], dict[str, RunState], str]:
    """Return the events before the first damaged one, the states of their runs, and the fault.

    The fault is a text that says what is wrong and how many events are kept; "" for a whole ledger.
    """
    events: list[Row] = []
    states: dict[str, RunState] = {}
    previous_seal, number = "", 0
    try:
        query = "SELECT number, at, run, kind, detail, seal FROM event ORDER BY number"
        for number, timestamp, *texts in old.execute(query):
            run, kind, detail, seal = (text.decode() for text in texts)
            if not holds(previous_seal, (timestamp, run, kind, detail), seal):
                raise ValueError(f"event {number} was changed")
            if run.startswith(PLAN_OF) and plan_detail(detail) is None:
                raise ValueError(f"event {number} names no plan")
            fields = event_detail(kind, detail)
            if run and not run.startswith(PLAN_OF):
                states[run] = fold(states.get(run, RunState()), kind, fields)
            events.append((number, timestamp, run, kind, detail, seal))
            previous_seal = seal
        sequence_row = old.execute(
            "SELECT seq FROM sqlite_sequence WHERE name = 'event'"
        ).fetchone()
        if sequence_row is not None and sequence_row[0] != (events[-1][0] if events else 0):
            raise ValueError("its last events were removed")
    except DAMAGE as error:
        verb = "are" if len(events) > 1 else "is"
        count = count_text(len(events), "event") if events else "no event"
        return events, states, f"{error}: {count} {verb} kept"
    return events, states, ""


def _looks(old: sqlite3.Connection, events: list[Row]) -> list[Look]:
    """Return the looks after the last event that is kept, as far as they can be read."""
    looks = []
    query = "SELECT detail FROM event WHERE number > ? AND kind = ? ORDER BY number"
    with contextlib.suppress(sqlite3.Error):
        for (detail,) in old.execute(query, (events[-1][0] if events else 0, LOOK)):
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                looks.append(json.loads(detail))
    return [look for look in looks if is_look(look)]


def _dropped_runs(old: sqlite3.Connection, events: list[Row]) -> dict[str, list[str]]:
    """Map each sweep to the runs of its earlier plans, from events after the last one that is kept.

    These are the runs that can be read, even if --replace gave them up.
    """
    dropped_runs: dict[str, list[str]] = {}
    query = "SELECT run, detail FROM event WHERE number > ? AND kind = ? ORDER BY number"
    with contextlib.suppress(sqlite3.Error):
        for plan, text in old.execute(query, (events[-1][0] if events else 0, PLAN)):
            with contextlib.suppress(ValueError, AttributeError):
                detail = plan_detail(text.decode()) or {}
                sweep = plan.decode().removeprefix(PLAN_OF)
                dropped_runs.setdefault(sweep, []).extend(detail.get("left", ()))
    return dropped_runs


def _put_aside(store: Store) -> Path | None:
    """Give the old ledger a second name that contains the time, and return that path.

    Returns None where there is no ledger. The ledger keeps its own name until the new one takes
    that. Files of SQLite that could not be merged into it are renamed, or they would be taken for
    the new ledger's.
    """
    backup = None
    if store.ledger.exists():
        stem = f"{store.ledger.name}.broken-{time.strftime('%Y-%m-%dT%H-%M-%S')}"
        names = (stem if n == 1 else f"{stem}-{n}" for n in itertools.count(1))
        paths = (store.ledger.with_name(name) for name in names)
        backup = next(path for path in paths if not path.exists())
        os.link(store.ledger, backup)
        sync_folder(store.root)
    for suffix in ("-wal", "-shm", "-journal"):
        part = store.ledger.with_name(store.ledger.name + suffix)
        if part.exists():
            base_path = backup or store.ledger.with_name(f"{store.ledger.name}.lost")
            part.rename(base_path.with_name(base_path.name + suffix))
    return backup
