"""Which sweep planned which run, what happened to it, which verdicts were read: one SQLite file.

Events are appended and never changed, each sealed with a hash of all before it; the state of a run
is their fold, kept beside them in the same transaction. Two write: the driver, under its lock, and
whoever prints a verdict, who appends a look in a transaction of its own, also beside a driver;
everybody may read. The ledger is no truth about files: a lost one is made again from the sweeps'
plans, the run folders, which say what is finished, and `looks.jsonl`, which is a view of its looks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ablate.planning.plan import Plan, PlannedRun, file_name
from ablate.shared.errors import Failure, UserError
from ablate.shared.files import make_folder, read_file, read_json, sha256_of, write_whole
from ablate.shared.lock import Lock
from ablate.shared.rundir import FINAL as FINAL
from ablate.shared.rundir import RunDir
from ablate.store.connection import (
    VERSION,
    check_version,
    connect,
    open_reader,
    transaction,
    version_of,
)
from ablate.store.events import (
    LOOK,
    PLAN,
    PLAN_OF,
    PLANNING,
    Look,
    Row,
    RunState,
    fold,
    is_look,
    sealed,
)
from ablate.store.liveness import HostLock, Liveness
from ablate.store.queries import Queries

REMEDY = "remove the run's folder, and the same `ablate sweep` trains it again"  # what was edited


class Unrecorded(Exception):
    """A look can't be recorded, so no verdict may be printed; says why."""


class Sound(NamedTuple):
    """Results by run, None where there is none; and of those that are withheld, since a file is
    not the one that the run left, a line that names it."""

    results: dict[str, dict[str, Any] | None]
    withheld: dict[str, str]


class Store:
    """Where everything of a store lies. Only this class knows the names."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = root / "runs"
        self.ledger = root / "ledger.db"
        self.driver = Lock(root / "driver.lock")
        self.liveness: Liveness = HostLock()  # of its runs' workers, whoever started them
        self.looks = root / "looks.jsonl"
        self.cache = root / "cache"
        self.studies = root / "studies"  # searches, for optuna-dashboard
        self.trash = root / "trash"  # removed by one rename, then file by file
        self.reruns = root / "reruns"  # runs trained a second time, to compare bits
        self.rerunning = Lock(root / "rerun.lock")  # held by whoever does so
        self.diffs = root / "diffs"  # what was not committed when a sweep was driven

    def rundir(self, run: str) -> RunDir:
        if not (run.isalnum() and run.isascii()):
            raise ValueError(f"not a run id: {run!r}")
        return RunDir(self.runs / run)

    def folders(self) -> set[str]:
        """The ids of all runs that have a folder: one look, however many there are."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return {name for name in os.listdir(self.runs) if name.isalnum()}
        return set()

    def seals(self) -> dict[str, str]:
        """The hash of every result that is recorded, by run: older versions took none."""
        if not self.ledger.exists() and not self.plans():
            return {}
        with Ledger.reading(self) as ledger:
            return ledger.seals()

    def results(
        self, runs: Iterable[PlannedRun], curves: bool = False, probes: bool = False
    ) -> Sound:
        """What every reader that prints numbers reads: each result is the file that was recorded,
        with `curves` so are its metrics, with `probes` what they measured; others are withheld."""
        seals, sound = self.seals(), Sound({}, {})
        for run in runs:
            if run.id in sound.results:
                continue
            folder = self.rundir(run.id)
            sound.results[run.id], why = folder.sealed_result(seals.get(run.id), curves, probes)
            if why:
                sound.withheld[run.id] = f"{run.label}: {why}"
        return sound

    def result(self, run: str, sha256: str | None = None) -> dict[str, Any] | None:
        """A run's result for a search, or None while it has none. `sha256`: of the one that is
        recorded. Raises Failure where a file is not the one that the run left."""
        folder = self.rundir(run)
        result, why = folder.sealed_result(sha256, curves=True)
        if why:
            raise Failure(f"{why}, and a search needs it; {REMEDY}")
        return result

    def metrics(self, run: str) -> list[dict[str, Any]]:
        """The lines of a run's metrics."""
        return self.rundir(run).read_metrics()

    def plan_path(self, name: str) -> Path:
        return self.root / "sweeps" / f"{file_name(name)}.json"

    def plans(self) -> list[Path]:
        """The files of all plans, the last driven first."""
        found = (self.root / "sweeps").glob("*.json")
        return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)

    def write_plan(self, plan: Plan) -> None:
        path = self.plan_path(plan.name)
        make_folder(path.parent)
        write_whole(path, plan.to_bytes())

    def read_plan(self, name: str) -> Plan | None:
        """The plan as it lies there, None where it is missing or torn. Raises Failure for other
        JSON. Whoever goes by it asks `Ledger.sealed_plan`, but for who writes it again."""
        path = self.plan_path(name)
        tree = read_json(path)
        try:
            return Plan.from_tree(tree) if tree is not None else None
        except ValueError as error:
            raise Failure(f"{path}: {error}; the same `ablate sweep` writes it again") from error

    # --- Looks ----------------------------------------------------------------------------------

    def read_looks(self, sweep: str) -> list[Look]:
        """At which verdicts of the sweep were read, the oldest first."""
        with Ledger.reading(self) as ledger:
            return [look for look in ledger.looks() if look["sweep"] == sweep]

    def add_look(self, look: Look) -> None:
        """Record it, unless it is there: on disk when this returns. Raises Unrecorded."""
        host = self.driver.notes().get("host", platform.node())
        if host != platform.node() and self.driver.is_held():  # no shared memory with that SQLite
            raise Unrecorded(f"{host} drives the store, and only that machine can write the ledger")
        if not os.access(self.root, os.W_OK):
            raise Unrecorded("the store is not writable")
        try:
            written = None
            while written != (file := self.ledger.stat().st_ino):  # or it was made again meanwhile
                with contextlib.closing(connect(self.ledger, "rw")) as connection:
                    connection.execute("PRAGMA synchronous = FULL")
                    Ledger(connection).look(self, look)
                written = file
        except (sqlite3.OperationalError, OSError) as error:  # read-only, full, locked for long
            raise Unrecorded(str(error)) from error

    def looks_view(self) -> list[Look]:
        """Every whole line of `looks.jsonl`; one that a crash of an older version tore is none."""
        try:
            lines = read_file(self.looks).split(b"\n")
        except FileNotFoundError:
            return []
        looks = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                looks.append(json.loads(line))
        return [look for look in looks if is_look(look)]


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
    """What can be read of a ledger that is made again."""

    events: Sequence[Row] = ()  # as far as their seals hold
    states: Mapping[str, RunState] = {}  # their fold
    whole: bool = False  # are these all events: what they say counts, whatever lies in the files
    looks: Sequence[Look] = ()  # further ones
    planned: Mapping[str, tuple[float, Sequence[str]]] = {}  # by sweep: when driven, its runs


class Ledger(Queries):
    """An open ledger. `Ledger.driving` opens it for the driver, `Ledger.reading` for a look."""

    @classmethod
    @contextmanager
    def reading(cls, store: Store) -> Iterator[Ledger]:
        """For commands that only look. Raises UserError where there is no store.

        A ledger that is missing beside its plans, or that an older version wrote, is mended first.
        """
        if not store.ledger.exists() and not store.plans():
            raise UserError(
                f"no store at {store.root}: start with `ablate sweep quickstart`, "
                f"or give its folder with --store DIR (or ABLATE_STORE)"
            )
        if not (store.ledger.exists() and version_of(store.ledger) == VERSION):
            _mend(store)
        with contextlib.closing(open_reader(store.ledger)) as connection:
            connection.execute("PRAGMA query_only = ON")
            version = check_version(connection, store.ledger)
            yield cls(connection, store.looks_view() if version < 3 else None)

    @classmethod
    @contextmanager
    def driving(cls, store: Store) -> Iterator[Ledger]:
        """For the driver, who holds `store.driver` already. A lost ledger is made again."""
        make_folder(store.root)
        connection = sqlite3.connect(store.ledger, timeout=30, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")  # readers and the driver don't wait
            connection.execute("PRAGMA synchronous = FULL")
            ledger = cls(connection)
            with transaction(connection):
                new = not ledger.rows((int,), "SELECT 1 FROM sqlite_master LIMIT 1")
                if new:
                    ledger.build(store, Remains(looks=store.looks_view()))
                if _migrate(connection, store) or new:
                    ledger.write_view(store)
            yield ledger
        finally:
            connection.close()

    def build(self, store: Store, old: Remains) -> tuple[list[str], list[str]]:
        """Fill an empty file with what is left of a ledger and what the files know: every plan, and
        a result for every folder that has one. Inside a transaction.

        Returns (sweeps, runs) whose plan or result was taken from its file as it lies there, since
        no seal says what it was.
        """
        db = self._db
        for statement in filter(str.strip, _SCHEMA.split(";")):
            db.execute(statement)
        db.execute("INSERT INTO meta VALUES (?)", (VERSION,))
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

    def _take_plans(self, store: Store, old: Remains) -> list[str]:
        taken = []
        for path in reversed(store.plans()):
            try:
                plan = Plan.from_tree(read_json(path))
            except ValueError:  # doctor names it; its `ablate sweep` mends it
                continue
            seals, sha256 = self.plan_seals(plan.name), sha256_of(path)
            if path != store.plan_path(plan.name) or (seals and old.whole and sha256 not in seals):
                continue  # another's, or edited
            self._plan(plan, driven=path.stat().st_mtime)
            if sha256 not in seals:
                self._seal_file(plan.name, sha256)
                taken.append(plan.name)
        for name in old.planned.keys() - set(self.sweeps()):
            self._note(name, *old.planned[name])
        return taken

    def _take_results(self, store: Store, old: Remains) -> list[str]:
        if old.whole:
            return []
        seals, taken = self.seals(), []
        for run, state in self.states().items():
            result = store.rundir(run).read_result()
            if result is None:
                continue
            detail = {**result_detail(store.rundir(run), result), "rebuilt": True}
            if state.status not in FINAL or seals.get(run) not in (None, detail["result_sha256"]):
                taken.append((run, result["status"], detail))
        self._append(taken)
        return [run for run, _, _ in taken]

    def _seal_file(self, sweep: str, sha256: str) -> None:
        """Of a plan that nobody has sealed when it was written."""
        self._seal([(PLAN_OF + sweep, PLAN, {"sha256": sha256, "rebuilt": True})])

    # --- Written by the driver ------------------------------------------------------------------

    def announce(self, plan: Plan) -> None:
        """Seal that this plan is about to be written: a file that a crash leaves is known."""
        with transaction(self._db):
            self._seal_plan(plan, PLANNING)

    def plan(self, plan: Plan) -> None:
        """Note, and seal, what the sweep plans now, once it is written; runs it planned before stay
        what they are."""
        with transaction(self._db):
            self._plan(plan, driven=time.time())
            self._seal_plan(plan, PLAN)

    def _seal_plan(self, plan: Plan, kind: str) -> None:
        """Unless it is what was sealed last, as it was written."""
        detail = {"sha256": hashlib.sha256(plan.to_bytes()).hexdigest()}
        with contextlib.suppress(Failure):
            if self.plan_events(plan.name)[:1] == [(PLAN, detail)]:
                return
        self._seal([(PLAN_OF + plan.name, kind, detail)])

    def _plan(self, plan: Plan, driven: float) -> None:
        runs = [run.id for run in plan.runs()]
        self._note(plan.name, driven, runs)
        db = self._db
        known = {row[0] for row in db.execute("SELECT id FROM run")}
        fresh = dict.fromkeys(run for run in runs if run not in known)
        db.executemany("INSERT INTO run VALUES (?, 'planned', 0, 0, 0, 0)", zip(fresh))
        self._append([(run, "planned", {"sweep": plan.name}) for run in fresh])

    def _note(self, sweep: str, driven: float, runs: Sequence[str]) -> None:
        db = self._db
        db.execute("INSERT OR REPLACE INTO sweep VALUES (?, ?)", (sweep, driven))
        db.execute("DELETE FROM planned WHERE sweep = ?", (sweep,))
        db.executemany(
            "INSERT INTO planned VALUES (?, ?, ?)",
            ((sweep, position, run) for position, run in enumerate(runs)),
        )

    def record(self, run: str, kind: str, **detail: Any) -> RunState:
        """Append an event; returns the run's state after it."""
        with transaction(self._db):
            return self._append([(run, kind, detail)])[run]

    def forget(self, sweep: str) -> None:
        """Its runs stay known, and what happened to them."""
        with transaction(self._db) as db:
            db.execute("DELETE FROM planned WHERE sweep = ?", (sweep,))
            db.execute("DELETE FROM sweep WHERE name = ?", (sweep,))

    def _append(self, events: Sequence[tuple[str, str, dict[str, Any]]]) -> dict[str, RunState]:
        """Append (run, kind, detail), inside a transaction; the states of those runs after it."""
        states = self.states({run for run, _, _ in events})
        for run, kind, detail in events:
            states[run] = fold(states[run], kind, detail)
        self._seal(events)
        self._db.executemany(
            "UPDATE run SET status = ?, attempts = ?, oom = ?, hung = ?, step = ? WHERE id = ?",
            ((*dataclasses.astuple(state), run) for run, state in states.items()),
        )
        return states

    def _seal(self, events: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
        """Append (run, kind, detail) to the chain, inside a transaction that no other is in."""
        last = self.rows((str,), "SELECT seal FROM event ORDER BY number DESC LIMIT 1")
        now = time.time()
        rows = ((now, run, kind, json.dumps(detail)) for run, kind, detail in events)
        self._db.executemany(
            "INSERT INTO event (at, run, kind, detail, seal) VALUES (?, ?, ?, ?, ?)",
            sealed(last[0][0] if last else "", rows),
        )

    # --- Written by whoever reads a verdict -----------------------------------------------------

    def look(self, store: Store, look: Look) -> None:
        """Append a look that is not there yet; then the view is written anew from the ledger."""
        with transaction(self._db):
            if check_version(self._db, store.ledger) < VERSION:
                raise Unrecorded(f"{store.ledger.name} has an older format; a driver migrates it")
            if look not in self.looks():
                self._seal([("", LOOK, look)])
        with transaction(self._db):  # whoever writes the view last has seen all looks
            self.write_view(store)

    def write_view(self, store: Store) -> None:
        """`looks.jsonl`, where it is not what the ledger says."""
        view = self.looks_text()
        if view != (store.looks.read_bytes() if store.looks.exists() else b""):
            write_whole(store.looks, view)

    # --- Read by everybody ----------------------------------------------------------------------

    def sealed_plan(self, store: Store, sweep: str) -> Plan | None:
        """The plan, None where it is missing or torn. Raises Failure for other JSON, and where the
        file is not the one that was planned."""
        path, before = store.plan_path(sweep), ""
        while (plan := store.read_plan(sweep)) is not None:
            sha256, seals = sha256_of(path), self.plan_seals(sweep)
            if sha256 in seals or not (seals or self.seals_plans()):
                break
            if sha256 == before:  # else a driver has written it between the two looks
                what = "was edited after it was planned" if seals else "was never planned here"
                raise Failure(f"{path}: {what}; the same `ablate sweep` writes it again")
            before = sha256
        return plan


def result_detail(folder: RunDir, result: Mapping[str, Any]) -> dict[str, Any]:
    """What the event of a result keeps of it; its hash shows later whether the file is the same."""
    return {
        "seconds": result.get("seconds"),
        "device": result.get("device"),
        "result_sha256": sha256_of(folder.result),
    }


def _migrate(db: sqlite3.Connection, store: Store) -> bool:
    """From an older version's format to this one's, inside a transaction; was it older? UserError
    for others."""
    found = version = check_version(db, store.ledger)
    if version == 1:  # events had no seals
        db.execute("ALTER TABLE event ADD COLUMN seal TEXT NOT NULL DEFAULT ''")
        numbers, events = [], []
        for number, *event in db.execute(
            "SELECT number, at, run, kind, detail FROM event ORDER BY number"
        ):
            numbers.append(number)
            events.append(tuple(event))
        seals = (event[-1] for event in sealed("", events))
        db.executemany(
            "UPDATE event SET seal = ? WHERE number = ?", zip(seals, numbers, strict=True)
        )
        version = 2
    if version == 2:  # looks were lines of a file, of seeds alone
        Ledger(db)._seal([("", LOOK, look) for look in store.looks_view()])
        version = 3
    if version == 3:  # plans had no seals
        for sweep in Ledger(db).sweeps():
            with contextlib.suppress(Failure):  # no plan: nothing goes by it
                if store.read_plan(sweep) is not None:
                    Ledger(db)._seal_file(sweep, sha256_of(store.plan_path(sweep)))
        db.execute("UPDATE meta SET version = ?", (VERSION,))
    return found < VERSION


def _mend(store: Store) -> None:
    """Make a lost ledger, migrate an old one: not beside a driver, who does it, nor read-only."""
    if os.access(store.root, os.W_OK) and store.driver.acquire(wait_s=1.0):
        try:
            with Ledger.driving(store):
                pass
        finally:
            store.driver.release()
