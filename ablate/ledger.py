"""Which sweep planned which run, and what happened to it: one SQLite file, one writer.

Events are appended and never changed; the state of a run is their fold, kept beside them in the
same transaction. Only the driver writes, under the driver's lock; everybody may read. The ledger is
no truth about files: a lost one is planned anew, and the folders say what is finished.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ablate.plan import Plan, file_name
from ablate.rundir import Lock, RunDir, read_json, to_json, write_whole
from ablate.spec import UserError

Status = Literal[
    "planned", "started", "interrupted", "finished", "diverged", "pruned", "failed", "oom", "hung"
]
FINAL = ("finished", "diverged", "pruned")  # results: a retry would give the same bits


@dataclass(frozen=True)
class RunState:
    """The fold of a run's events."""

    status: Status = "planned"
    attempts: int = 0  # deaths without a newer checkpoint
    oom: int = 0
    hung: int = 0
    step: int = 0  # newest checkpoint when the last worker started or died


def fold(state: RunState, kind: str, detail: dict[str, Any]) -> RunState:
    """What one more event makes of a run's state."""
    change = dataclasses.replace
    match kind:
        case "planned":
            return state
        case "started":
            return change(state, status="started", step=detail["step"])
        case "died":
            worse = detail["step"] <= state.step  # no newer checkpoint: it may never get on
            return change(state, attempts=state.attempts + worse, step=detail["step"])
        case "oom":
            return change(state, status="oom", oom=state.oom + 1)
        case "hung":
            return change(state, status="hung", hung=state.hung + 1)
        case "retried":
            return RunState(status="interrupted", step=state.step)
        case "interrupted" | "finished" | "diverged" | "pruned" | "failed":
            return change(state, status=kind)
    raise ValueError(f"unknown event {kind!r}")


class Store:
    """Where everything of a store lies. Only this class knows the names."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ledger = root / "ledger.db"
        self.driver = Lock(root / "driver.lock")
        self.looks = root / "looks.jsonl"
        self.cache = root / "cache"

    def rundir(self, run: str) -> RunDir:
        if not (run.isalnum() and run.isascii()):
            raise ValueError(f"not a run id: {run!r}")
        return RunDir(self.root / "runs" / run)

    def plan_path(self, name: str) -> Path:
        return self.root / "sweeps" / f"{file_name(name)}.json"

    def write_plan(self, plan: Plan) -> None:
        path = self.plan_path(plan.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, to_json(plan.to_tree()))

    def read_plan(self, name: str) -> Plan | None:
        tree = read_json(self.plan_path(name))
        return Plan.from_tree(tree) if tree is not None else None


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
    kind TEXT NOT NULL, detail TEXT NOT NULL);
CREATE INDEX event_run ON event (run);
"""
VERSION = 1


class Ledger:
    """An open ledger. `Ledger.driving` opens it for the driver, `Ledger.reading` for a look."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    @classmethod
    @contextmanager
    def reading(cls, store: Store) -> Iterator[Ledger]:
        """For commands that only look. Raises UserError where there is no store."""
        if not store.ledger.exists():
            raise UserError(
                f"no store at {store.root}: start with `ablate sweep quickstart`, "
                f"or name one with --store DIR (or ABLATE_STORE)"
            )
        connection = sqlite3.connect(store.ledger, timeout=30)
        try:
            connection.execute("PRAGMA query_only = ON")
            _check_version(connection, store)
            yield cls(connection)
        finally:
            connection.close()

    @classmethod
    @contextmanager
    def driving(cls, store: Store) -> Iterator[Ledger]:
        """For the driver, who holds `store.driver` already."""
        store.root.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(store.ledger, timeout=30, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")  # readers and the driver don't wait
            connection.execute("PRAGMA synchronous = FULL")
            with _transaction(connection):
                if not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        connection.execute(statement)
                    connection.execute("INSERT INTO meta VALUES (?)", (VERSION,))
            _check_version(connection, store)
            yield cls(connection)
        finally:
            connection.close()

    # --- Written by the driver ------------------------------------------------------------------

    def plan(self, plan: Plan) -> None:
        """Note what the sweep plans now; runs it planned before stay what they are."""
        runs = [run.id for run in plan.runs()]
        with _transaction(self._db) as db:
            db.execute("INSERT OR REPLACE INTO sweep VALUES (?, ?)", (plan.name, time.time()))
            db.execute("DELETE FROM planned WHERE sweep = ?", (plan.name,))
            db.executemany(
                "INSERT INTO planned VALUES (?, ?, ?)",
                ((plan.name, position, run) for position, run in enumerate(runs)),
            )
            known = {row[0] for row in db.execute("SELECT id FROM run")}
            fresh = dict.fromkeys(run for run in runs if run not in known)
            db.executemany("INSERT INTO run VALUES (?, 'planned', 0, 0, 0, 0)", zip(fresh))
            db.executemany(
                "INSERT INTO event (at, run, kind, detail) VALUES (?, ?, 'planned', ?)",
                ((time.time(), run, json.dumps({"sweep": plan.name})) for run in fresh),
            )

    def record(self, run: str, kind: str, **detail: Any) -> RunState:
        """Append an event; returns the run's state after it."""
        with _transaction(self._db) as db:
            state = fold(self.states([run])[run], kind, detail)
            db.execute(
                "INSERT INTO event (at, run, kind, detail) VALUES (?, ?, ?, ?)",
                (time.time(), run, kind, json.dumps(detail)),
            )
            db.execute(
                "UPDATE run SET status = ?, attempts = ?, oom = ?, hung = ?, step = ? WHERE id = ?",
                (*dataclasses.astuple(state), run),
            )
        return state

    # --- Read by everybody ----------------------------------------------------------------------

    def states(self, runs: Iterable[str] | None = None) -> dict[str, RunState]:
        """The state of each of `runs` that the ledger knows; of all runs for None."""
        query = "SELECT id, status, attempts, oom, hung, step FROM run"
        if runs is None:
            return {row[0]: RunState(*row[1:]) for row in self._db.execute(query)}
        wanted = list(runs)
        if len(wanted) > 100:
            everything = self.states()
            return {run: everything[run] for run in wanted if run in everything}
        marks = ",".join("?" * len(wanted))
        rows = self._db.execute(f"{query} WHERE id IN ({marks})", wanted)
        return {row[0]: RunState(*row[1:]) for row in rows}

    def sweeps(self) -> list[str]:
        """Names, the last driven first."""
        return [row[0] for row in self._db.execute("SELECT name FROM sweep ORDER BY driven DESC")]

    def events(self, run: str) -> list[tuple[float, str, dict[str, Any]]]:
        """(time, kind, detail) of a run, oldest first."""
        query = "SELECT at, kind, detail FROM event WHERE run = ? ORDER BY number"
        return [
            (at, kind, json.loads(detail)) for at, kind, detail in self._db.execute(query, (run,))
        ]

    def last_detail(self, kind: str) -> dict[str, dict[str, Any]]:
        """Each run's newest event of that kind, as its detail."""
        query = "SELECT run, detail FROM event WHERE kind = ? ORDER BY number"
        return {run: json.loads(detail) for run, detail in self._db.execute(query, (kind,))}


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk rolls back by itself
            db.execute("ROLLBACK")
        raise


def _check_version(db: sqlite3.Connection, store: Store) -> None:
    try:
        version = db.execute("SELECT version FROM meta").fetchone()[0]
    except (sqlite3.DatabaseError, TypeError) as error:
        raise UserError(
            f"{store.ledger}: no ledger of ablate, or one not begun yet ({error}); "
            f"`ablate sweep` begins it"
        ) from error
    if version != VERSION:
        raise UserError(
            f"{store.ledger}: written by another version of ablate (format {version}, "
            f"this one reads {VERSION})"
        )
