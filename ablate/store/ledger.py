"""The ledger: one SQLite file of sweeps, their planned runs, the events of runs, and looks.

Events are appended and never changed, each sealed with a hash of all events before it. The state of
a run is the fold of its events, kept in a table that the same transaction updates. There are two
writers: the driver, under its lock, and whoever prints a verdict, who appends a look in a
transaction of its own, even while a driver runs. Everybody may read. The ledger is no authority on
files. A lost one is made again from the sweeps' plans, from the run folders, which say what is
finished, and from `looks.jsonl`, which is a view of its looks.

Used by `running/driver.py`, which records events, and by all commands that read a store
(`cli/selection.py`). A change of its tables also needs `FORMAT` in `version.py` raised and
`tests/golden/write_store.py` run, and `store/repair.py`, which rebuilds them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import re
import shlex
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ablate.planning import Plan
from ablate.shared import (
    Failure,
    NotThere,
    TryAgain,
    UserError,
    make_folder,
    other_format_error,
    read_json,
    sha256_of,
    write_whole,
)
from ablate.store.events import (
    FORGOTTEN,
    PLAN,
    PLAN_OF,
    PLANNING_EVENTS,
    History,
    Look,
    Row,
    RunState,
    fold,
    is_id,
    result_detail,
    sealed_events,
)
from ablate.store.folder import WRITES_AGAIN, StoreFolder
from ablate.store.looks import LOOK
from ablate.store.pilots import beats_elsewhere
from ablate.store.queries import Queries
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
        """Execute a statement; raise DatabaseError also where a damaged schema is not text.

        SQLite quotes the schema in its error message, and Python then fails to decode that message.
        """
        try:
            return super().execute(*args)
        except UnicodeDecodeError as error:
            broken = sqlite3.DatabaseError(f"damaged: {error}")
            broken.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise broken from error


@contextmanager
def _errors_with_file(file: Path) -> Iterator[None]:
    """Give SQLite's errors the path of the ledger, as `ledger`: SQLite names no file."""
    try:
        yield
    except sqlite3.Error as error:
        vars(error)["ledger"] = file
        raise


def connect_ledger(file: Path, mode: str, timeout: float = 30) -> sqlite3.Connection:
    """Connect to a ledger in one of SQLite's open modes; only `rwc` creates a missing file.

    Transactions are begun by hand. `timeout`: seconds to wait for a lock.
    """
    if mode == "rwc":  # SQLite would leave out the group, whatever the umask says
        with contextlib.suppress(FileExistsError):
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
            os.close(os.open(file, flags, 0o666))
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
    """Return SQLite's journal mode for a ledger in `folder`: "WAL" or "DELETE".

    WAL is for a disk of this host's own: readers and the driver don't wait for each other.
    Elsewhere it is DELETE, which needs only file locks. Where `mounts` can't be read (not Linux),
    it is WAL.
    """
    try:
        text = mounts.read_text()
    except OSError:  # not Linux
        return "WAL"
    kinds = {}
    for line in text.splitlines():
        mount_part, _, type_part = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount_part.split()[4])
        kinds[Path(point)] = type_part.split()[0]  # the last mounted there covers the others
    place = folder.resolve()
    kind = next((kinds[p] for p in (place, *place.parents) if p in kinds), "")
    return "WAL" if kind in _OWN_DISKS else "DELETE"


def open_reader(file: Path, elsewhere: bool = False) -> sqlite3.Connection:
    """Open a connection for reading.

    In a folder that is not writable, SQLite lacks the files that readers and writers share, unless
    a writer has the ledger open: then the file is read as it stands.

    `elsewhere`: another host writes the ledger, and its locks may not reach this one. SQLite would
    take the journal of that host's transaction for a dead writer's and roll it back, so it must not
    write.
    """
    if elsewhere and not _has_wal(file):
        return _open_between_writes(file)
    if os.access(file.parent, os.W_OK):
        return connect_ledger(file, "rwc")
    connection = connect_ledger(file, "ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_master")
    except sqlite3.OperationalError:
        connection.close()
        return connect_ledger(file, "ro&immutable=1")
    return connection


def _has_wal(file: Path) -> bool:
    """Return whether the ledger uses a write-ahead log.

    If so, it is on a disk of this host, where locks are visible.
    """
    with open(file, "rb") as content:
        return content.read(19)[18:] == b"\2"  # the version that a writer needs


def _open_between_writes(file: Path) -> sqlite3.Connection:
    """Open a connection that never writes, between two transactions of a writer on another host.

    Raises TryAgain if no such moment comes within PATIENCE_S.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        connection = connect_ledger(file, "ro")
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            return connection
        except sqlite3.OperationalError as error:
            connection.close()
            if time.monotonic() > deadline:
                raise TryAgain(f"{file}: another host writes it ({error}); try again") from error
        time.sleep(0.02)


def is_begun(file: Path) -> bool:
    """Return whether the ledger has any content; True where it is damaged.

    Whoever opens a damaged ledger reports that.
    """
    with (
        contextlib.closing(connect_ledger(file, "rwc")) as db,
        contextlib.suppress(sqlite3.DatabaseError),
    ):
        return db.execute("SELECT 1 FROM sqlite_master").fetchone() is not None
    return True


def check_version(db: sqlite3.Connection, file: Path) -> None:
    """Raise Failure for a ledger of another format, and for a file that is no whole ledger."""
    try:
        version = db.execute("SELECT version FROM meta").fetchone()[0]
        if type(version) is not int:
            raise TypeError("no version in it")
    except (sqlite3.DatabaseError, TypeError) as error:
        command = StoreFolder(file.parent).command("doctor", "--repair")
        raise Failure(
            f"{file}: is not a whole ledger ({error}); `{command}` rebuilds it from the run folders"
        ) from error
    if version != FORMAT:
        raise other_ledger_error(file, version)


def other_ledger_error(file: Path, version: int) -> Failure:
    return other_format_error(file, version, "begin a new store with --store DIR")


class Unrecorded(Exception):
    """A look can't be recorded, so no verdict may be printed. The message says why."""


_SCHEMA = """
CREATE TABLE meta (version INTEGER NOT NULL);
CREATE TABLE sweep (name TEXT PRIMARY KEY, driven REAL NOT NULL);
CREATE TABLE planned (
    sweep TEXT NOT NULL, position INTEGER NOT NULL, run TEXT NOT NULL,
    PRIMARY KEY (sweep, position)) WITHOUT ROWID;
CREATE TABLE run (
    id TEXT PRIMARY KEY, status TEXT NOT NULL, attempts INTEGER NOT NULL, oom INTEGER NOT NULL,
    hung INTEGER NOT NULL, step INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE event (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, run TEXT NOT NULL,
    kind TEXT NOT NULL, detail TEXT NOT NULL, seal TEXT NOT NULL);
CREATE INDEX event_run ON event (run);
"""


class Remains(NamedTuple):
    """The readable parts of a ledger that is made again."""

    events: Sequence[Row] = ()  # as far as their seals hold
    states: Mapping[str, RunState] = {}  # their fold
    # True if these are all events: then what they say counts, whatever lies in the files
    is_complete: bool = False
    looks: Sequence[Look] = ()  # further ones
    planned: Mapping[str, tuple[float, Sequence[str]]] = {}  # by sweep: when driven, its runs
    dropped_runs: Mapping[str, Sequence[str]] = {}  # by sweep: of earlier plans, by further events


class Ledger(Queries):
    """An open ledger: the SQLite file of a store's sealed events.

    `Ledger.driving` opens it for the driver, `Ledger.reading` for commands that only read.
    """

    @classmethod
    @contextmanager
    def reading(cls, store: StoreFolder, may_write: bool = True) -> Iterator[Ledger]:
        """Open the ledger for commands that only read.

        If plans exist but the ledger is missing, it is made again first: in memory where the store
        can't be written, or may not be, by `may_write`. Raises UserError where there is no store,
        and Failure for a ledger of another format or a file that is no whole ledger.
        """
        if not store.ledger.exists() and not store.plans():
            raise _no_store(store)
        elsewhere = store.ledger.exists() and bool(beats_elsewhere(store.root))
        if not elsewhere and _is_lost(store):
            if may_write:
                _make_again(store)
            if _is_lost(store):
                with cls._in_memory(store) as ledger:
                    yield ledger
                return
        with (
            _errors_with_file(store.ledger),
            contextlib.closing(open_reader(store.ledger, elsewhere)) as connection,
        ):
            connection.execute("PRAGMA query_only = ON")
            check_version(connection, store.ledger)
            yield cls(connection)

    @classmethod
    @contextmanager
    def _in_memory(cls, store: StoreFolder) -> Iterator[Ledger]:
        db = sqlite3.connect(":memory:", isolation_level=None)
        with contextlib.closing(db):
            ledger = cls(db)
            with transaction(db):
                ledger.build(store, Remains(looks=store.looks_view()))
            db.execute("PRAGMA query_only = ON")
            yield ledger

    @classmethod
    @contextmanager
    def driving(cls, store: StoreFolder) -> Iterator[Ledger]:
        """Open the ledger for the driver, who already holds `store.driver`.

        A lost ledger is made again. Raises Failure for a ledger of another format, and for a file
        that is no whole ledger.
        """
        make_folder(store.root)
        with (
            _errors_with_file(store.ledger),
            contextlib.closing(connect_ledger(store.ledger, "rwc")) as connection,
        ):
            ledger = cls(connection)
            new = not ledger.rows((int,), "SELECT 1 FROM sqlite_master LIMIT 1")
            if not new:
                check_version(connection, store.ledger)
            connection.execute(f"PRAGMA journal_mode = {journal_mode(store.root)}")
            connection.execute("PRAGMA synchronous = FULL")
            if new:
                with transaction(connection):
                    ledger.build(store, Remains(looks=store.looks_view()))
                    ledger.write_view(store)
            yield ledger

    def build(self, store: StoreFolder, old: Remains) -> tuple[list[str], list[str]]:
        """Fill an empty file with the remains of a ledger and with what files say.

        Must be called inside a transaction. The files are every plan, and the result in every
        folder that has one. Returns (sweeps, runs) whose plan or result was accepted from its file
        as it is, since no seal says what it was.
        """
        db = self._db
        for statement in filter(str.strip, _SCHEMA.split(";")):
            db.execute(statement)
        db.execute("INSERT INTO meta VALUES (?)", (FORMAT,))
        db.executemany("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?)", old.events)
        states = ((run, *dataclasses.astuple(state)) for run, state in old.states.items())
        db.executemany("INSERT INTO run VALUES (?, ?, ?, ?, ?, ?)", states)
        plans = self._take_plans(store, old)
        runs = self._take_results(store, old)
        looks = self.looks()
        for look in old.looks:
            if look not in looks:
                looks.append(look)
                self._seal([("", LOOK, look)])
        return plans, runs

    def _take_plans(self, store: StoreFolder, old: Remains) -> list[str]:
        sweeps = []
        for path in reversed(store.plans()):
            try:
                plan = Plan.from_tree(read_json(path))
            except ValueError:  # doctor names it; its `ablate sweep` mends it
                continue
            seals, sha256 = self.plan_seals(plan.name), sha256_of(path)
            if path != store.plan_path(plan.name) or (
                seals and old.is_complete and sha256 not in seals
            ):
                continue  # another's, or edited
            self._note(plan.name, *old.planned.get(plan.name, (0.0, ())))
            dropped_runs = list(
                filter(is_id, (*self.dropped_runs(plan), *old.dropped_runs.get(plan.name, ())))
            )
            self._plan(plan, driven_at=path.stat().st_mtime)
            if dropped_runs or sha256 not in seals:
                self._seal_file(plan, sha256, dropped_runs)
            if sha256 not in seals:
                sweeps.append(plan.name)
        for name in old.planned.keys() - set(self.sweeps()):
            self._note(name, *old.planned[name])
        return sweeps

    def _take_results(self, store: StoreFolder, old: Remains) -> list[str]:
        if old.is_complete:
            return []
        seals, events = self.seals(), []
        for run in self.states():
            result = store.rundir(run).read_result()
            if result is None:
                continue
            detail = {**result_detail(store.rundir(run), result), "rebuilt": True}
            if seals.get(run) != detail["result_sha256"]:
                events.append((run, result["status"], detail))
        self._append(events)
        return [run for run, _, _ in events]

    def _seal_file(self, plan: Plan, sha256: str, dropped_runs: Sequence[str]) -> None:
        """Seal a plan file that has no seal from the time when it was written."""
        detail = {
            "sha256": sha256,
            "with": plan.design.drive_text(plan.seeds),
            "rebuilt": True,
            "left": [*dropped_runs],
        }
        self._seal([(PLAN_OF + plan.name, PLAN, detail)])

    # --- Written by the driver ------------------------------------------------------------------

    def announce(self, plan: Plan, **fields: Any) -> None:
        """Seal that this plan is about to be written, so that the file is known if a crash
        follows."""
        with transaction(self._db):
            self._seal_plan(plan, PLANNING_EVENTS, fields)

    def plan(self, plan: Plan, driven_at: float | None = None, **fields: Any) -> None:
        """Record and seal what the sweep plans now, once the plan's file is written.

        Runs that the sweep planned before keep their states and stay: see `earlier`. `driven_at`:
        the time of the drive, in seconds since 1970; None for now. `fields`: further keys of the
        event's detail.
        """
        with transaction(self._db):
            if dropped_runs := self.dropped_runs(plan):
                fields["left"] = dropped_runs
            self._plan(plan, time.time() if driven_at is None else driven_at)
            self._seal_plan(plan, PLAN, fields)

    def replace(self, store: StoreFolder, plan: Plan) -> None:
        """Write a plan that gives up the runs of earlier plans.

        A crash leaves either the previous plan, with nothing given up, or a file for which
        `replaces` returns True, so that the driver goes on.
        """
        self.announce(plan, replaces=True)
        store.write_plan(plan)
        self.plan(plan, replaces=True)

    def _seal_plan(self, plan: Plan, kind: str, fields: Mapping[str, Any]) -> None:
        """Seal the plan, unless the last sealed plan is the same and there is nothing to add."""
        sha256 = hashlib.sha256(plan.to_bytes()).hexdigest()
        with contextlib.suppress(Failure):
            last_kind, detail = next(iter(self.plan_events(plan.name)), ("", {}))
            is_sealed = last_kind == PLAN and detail["sha256"] == sha256 and "rebuilt" not in detail
            if is_sealed and not fields:
                return
        detail = {"sha256": sha256, "with": plan.design.drive_text(plan.seeds), **fields}
        self._seal([(PLAN_OF + plan.name, kind, detail)])

    def _plan(self, plan: Plan, driven_at: float) -> None:
        runs = [run.id for run in plan.runs()]
        self._note(plan.name, driven_at, runs)
        db = self._db
        known_runs = {row[0] for row in db.execute("SELECT id FROM run")}
        fresh = dict.fromkeys(run for run in runs if run not in known_runs)
        db.executemany("INSERT INTO run VALUES (?, 'planned', 0, 0, 0, 0)", zip(fresh))
        self._append([(run, "planned", {"sweep": plan.name}) for run in fresh])

    def _note(self, sweep: str, driven_at: float, runs: Sequence[str]) -> None:
        db = self._db
        db.execute("INSERT OR REPLACE INTO sweep VALUES (?, ?)", (sweep, driven_at))
        db.execute("DELETE FROM planned WHERE sweep = ?", (sweep,))
        db.executemany(
            "INSERT INTO planned VALUES (?, ?, ?)",
            ((sweep, position, run) for position, run in enumerate(runs)),
        )

    def record(self, run: str, kind: str, **detail: Any) -> RunState:
        """Append an event; return the state of its run after it."""
        with transaction(self._db):
            return self._append([(run, kind, detail)])[run]

    def bring(
        self,
        histories: Mapping[str, History],
        planned: Mapping[str, str],
        looks: Iterable[tuple[float, Look]],
    ) -> None:
        """Append the events and looks of another ledger, with their times, in one transaction.

        `histories`: the events of each run. `planned`: the sweep of each planned run, known here or
        not. `looks`: (time, look); a look that this ledger has at the same or an earlier time is
        left out.
        """
        with transaction(self._db) as db:
            states = self.states()
            fresh = [run for run in {**histories, **planned} if run not in states]
            db.executemany("INSERT INTO run VALUES (?, 'planned', 0, 0, 0, 0)", zip(fresh))
            dated_events = [
                (float(timestamp), (run, kind, d))
                for run, h in histories.items()
                for timestamp, kind, d in h
            ]
            self._append(
                [event for _, event in dated_events], [timestamp for timestamp, _ in dated_events]
            )
            lacking = [run for run in fresh if run not in histories]
            self._append([(run, "planned", {"sweep": planned[run]}) for run in lacking])
            first_times = {json.dumps(look): timestamp for timestamp, look in self.dated_looks()}
            for timestamp, look in looks:
                text = json.dumps(look)
                if first_times.get(text, math.inf) > timestamp:
                    self._seal([("", LOOK, look)], [timestamp])
                    first_times[text] = timestamp

    def forget(self, sweep: str) -> None:
        """Remove a sweep and the list of its runs. The runs stay known, with their events."""
        with transaction(self._db) as db:
            if sweep in self.sweeps():
                self._seal([(PLAN_OF + sweep, FORGOTTEN, {"sha256": "", "with": ""})])
            db.execute("DELETE FROM planned WHERE sweep = ?", (sweep,))
            db.execute("DELETE FROM sweep WHERE name = ?", (sweep,))

    def _append(
        self, events: Sequence[tuple[str, str, dict[str, Any]]], times: Iterable[float] = ()
    ) -> dict[str, RunState]:
        """Append (run, kind, detail) inside a transaction; return the states of these runs after
        it."""
        states = self.states({run for run, _, _ in events})
        for run, kind, detail in events:
            states[run] = fold(states[run], kind, detail)
        self._seal(events, times)
        self._db.executemany(
            "UPDATE run SET status = ?, attempts = ?, oom = ?, hung = ?, step = ? WHERE id = ?",
            ((*dataclasses.astuple(state), run) for run, state in states.items()),
        )
        return states

    def _seal(
        self, events: Iterable[tuple[str, str, dict[str, Any]]], times: Iterable[float] = ()
    ) -> None:
        """Append (run, kind, detail) to the chain of seals.

        Must be called inside a transaction that excludes other writers. `times`: the time of each
        event, where that is not now.
        """
        seals = self.rows((str,), "SELECT seal FROM event ORDER BY number DESC LIMIT 1")
        dated = zip(times or itertools.repeat(time.time()), events, strict=False)
        rows = (
            (timestamp, run, kind, json.dumps(detail)) for timestamp, (run, kind, detail) in dated
        )
        self._db.executemany(
            "INSERT INTO event (at, run, kind, detail, seal) VALUES (?, ?, ?, ?, ?)",
            sealed_events(seals[0][0] if seals else "", rows),
        )

    # --- Written by whoever reads a verdict -----------------------------------------------------

    def look(self, store: StoreFolder, look: Look) -> None:
        """Append a look unless the ledger has it, then write `looks.jsonl` again from the
        ledger."""
        with transaction(self._db):
            check_version(self._db, store.ledger)
            if look not in self.looks():
                self._seal([("", LOOK, look)])
        with transaction(self._db):  # whoever writes the view last has seen all looks
            self.write_view(store)

    def write_view(self, store: StoreFolder) -> None:
        """Write `looks.jsonl`, unless it already says what the ledger says."""
        view = self.looks_text()
        if view != (store.looks.read_bytes() if store.looks.exists() else b""):
            write_whole(store.looks, view)

    # --- Read by everybody ----------------------------------------------------------------------

    def sealed_plan(self, store: StoreFolder, sweep: str) -> Plan | None:
        """Read the plan of a sweep; None where its file is missing or torn.

        Raises Failure for other JSON, and where the file is not the one that was planned.
        """
        path, previous_sha256 = store.plan_path(sweep), ""
        while True:
            (plan, sha256), seals = store.hashed_plan(sweep), self.plan_seals(sweep)
            if plan is None or sha256 in seals:
                return plan
            if sha256 == previous_sha256:  # else a driver has written it between the two looks
                fault = "was edited after it was planned" if seals else "was never planned here"
                raise Failure(f"{path}: {fault}; {WRITES_AGAIN}")
            previous_sha256 = sha256


def _no_store(store: StoreFolder) -> UserError:
    """Return the error for a folder that is no store, with the remedy."""
    no = f"no store at {store.root}"
    if store.is_bundle:
        table = shlex.join(["ablate", "table", "--from", str(store.root)])
        return UserError(f"{no}: this is a bundle of `ablate export`; `{table}` shows its table")
    place = "give its folder with --store DIR (or ABLATE_STORE)"
    return NotThere(f"{no}: start with `ablate sweep quickstart`, or {place}")


def _is_lost(store: StoreFolder) -> bool:
    return not (store.ledger.exists() and is_begun(store.ledger))


def _make_again(store: StoreFolder) -> None:
    """Make a lost ledger again, unless the store is read-only or a driver, who does so, runs."""
    if os.access(store.root, os.W_OK) and store.take_turn(1.0):
        try:
            with Ledger.driving(store):
                pass
        finally:
            store.driver.release()
