"""The queries of an open ledger.

Used by `store/ledger.py`, whose `Ledger` has all of them, and so by whoever opens a ledger: the
driver, `status`, `table`, `verify`, `merge`, the live page. Their tables are in its `_SCHEMA`.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ablate.planning import Plan
from ablate.run import FINAL_STATUSES
from ablate.shared import Failure
from ablate.store.events import (
    FORGOTTEN,
    PLAN,
    PLAN_OF,
    PLANNING_EVENTS,
    Event,
    Look,
    RunState,
    damaged,
    event_detail,
    holds,
    plan_detail,
    state_of,
)
from ablate.store.folder import StoreFolder
from ablate.store.looks import LOOK

EVENT_TYPES = (int, float, str, str, str, str)  # an event with its number and its seal


class EarlierRuns(NamedTuple):
    """The runs of a sweep's earlier plans, each mapped to the seeds of its plan, in words.

    `kept_runs`: the runs that `gc` keeps. `given_up`: the runs that --replace gave up. A run that
    was given up, and that a later plan had and lost again, is in both and is kept.
    """

    kept_runs: dict[str, str]
    given_up: dict[str, str]


class Queries:
    """The methods of a ledger that only read, on an open connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def rows(self, types: tuple[type, ...], query: str, args: Sequence[Any] = ()) -> list[Any]:
        """Return the rows that a query selects, with values of these types.

        Raises DatabaseError for values that were never written: SQLite notices damage to the
        structure of its pages, but not to the values in them.
        """
        try:
            rows = self._db.execute(query, args).fetchall()
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" in str(error):
                raise damaged("a text in it is none") from error
            raise
        for row in rows:
            if tuple(map(type, row)) != types:
                raise damaged(f"a value in it has another type: {row!r:.80}")
        return rows

    def states(self, runs: Iterable[str] | None = None) -> dict[str, RunState]:
        """Return the state of each of `runs` that the ledger knows; None means all runs."""
        query = "SELECT id, status, attempts, oom, hung, step FROM run"
        types = (str, str, int, int, int, int)
        if runs is None:
            return {row[0]: state_of(*row[1:]) for row in self.rows(types, query)}
        ids = list(runs)
        if len(ids) > 100:
            everything = self.states()
            return {run: everything[run] for run in ids if run in everything}
        marks = ",".join("?" * len(ids))
        rows = self.rows(types, f"{query} WHERE id IN ({marks})", ids)
        return {row[0]: state_of(*row[1:]) for row in rows}

    def sweeps(self) -> list[str]:
        """List the names of the sweeps, the last driven first."""
        rows = self.rows((str,), "SELECT name FROM sweep ORDER BY driven DESC")
        return [name for (name,) in rows]

    def sweeps_of(self, runs: Iterable[str]) -> list[str]:
        """List the sweeps whose last plan contains one of these runs, in the order of `sweeps`."""
        query = "SELECT DISTINCT sweep FROM planned WHERE run = ?"
        having = {sweep for run in runs for (sweep,) in self.rows((str,), query, (run,))}
        return [sweep for sweep in self.sweeps() if sweep in having]

    def ended(self) -> dict[str, tuple[int, int]]:
        """Map each sweep to (number of runs that have ended, number of planned runs)."""
        statuses = ", ".join(f"'{status}'" for status in FINAL_STATUSES)
        query = f"""SELECT sweep, SUM(status IN ({statuses})), COUNT(*) FROM planned JOIN run
            ON id = run GROUP BY sweep"""
        return {name: (some, total) for name, some, total in self.rows((str, int, int), query)}

    def drive_times(self) -> dict[str, float]:
        """Map each sweep to the time when it was last driven, in seconds since 1970."""
        return dict(self.rows((str, float), "SELECT name, driven FROM sweep"))

    def run_times(self, sweep: str) -> dict[str, tuple[float, float | None]]:
        """Map each run of the sweep's last plan that was ever started to the times of its last
        start and of the end of that, None before it; in seconds since 1970."""
        query = """SELECT event.run, kind, at FROM planned JOIN event ON event.run = planned.run
            WHERE sweep = ? ORDER BY number"""
        times: dict[str, tuple[float, float | None]] = {}
        for run, kind, timestamp in self.rows((str, str, float), query, (sweep,)):
            if kind == "started":
                times[run] = timestamp, None
            elif run in times and times[run][1] is None:
                times[run] = times[run][0], timestamp
        return times

    def knew(self, sweep: str) -> bool:
        """Return whether the sweep was ever the first to plan a run. Events of a forgotten sweep
        stay."""
        query = "SELECT 1 FROM event WHERE kind = 'planned' AND detail = ? LIMIT 1"
        return bool(self.rows((int,), query, (json.dumps({"sweep": sweep}),)))

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read everything inside this context as of one moment, whatever the driver writes
        meanwhile."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    def planned(self, sweep: str) -> list[tuple[int, str]]:
        """List (position, run) of the sweep's last plan."""
        query = "SELECT position, run FROM planned WHERE sweep = ? ORDER BY position"
        return self.rows((int, str), query, (sweep,))

    def dropped_runs(self, plan: Plan) -> list[str]:
        """List the runs of the sweep's last plan that this plan lacks."""
        runs = {run.id for run in plan.runs()}
        return list(dict.fromkeys(run for _, run in self.planned(plan.name) if run not in runs))

    def earlier(self, sweep: str) -> EarlierRuns:
        """Return the runs that an earlier plan of the sweep had and a later one lacked.

        The present plan may have them again.
        """
        query = "SELECT kind, detail FROM event WHERE run = ? ORDER BY number"
        earlier_runs, seeds = EarlierRuns({}, {}), ""
        for kind, text in self.rows((str, str), query, (PLAN_OF + sweep,)):
            detail = event_detail(kind, text)
            if kind == FORGOTTEN:
                earlier_runs = EarlierRuns({}, {})
            elif kind == PLAN:
                earlier_runs.kept_runs.update(dict.fromkeys(detail.get("left", ()), seeds))
                seeds = detail["with"]
                if "replaces" in detail:
                    earlier_runs = EarlierRuns(
                        {}, {**earlier_runs.given_up, **earlier_runs.kept_runs}
                    )
        return earlier_runs

    def replaces(self, sweep: str, sha256: str) -> bool:
        """Return whether a crash cut off `Ledger.replace` after it had written the plan's file.

        `sha256`: the hash of the file.
        """
        with contextlib.suppress(Failure):
            match self.plan_events(sweep):
                case [(kind, {"replaces": True, **told}), *_] if kind == PLANNING_EVENTS:
                    return bool(told["sha256"] == sha256)
        return False

    def plan_events(self, sweep: str) -> list[tuple[str, dict[str, Any]]]:
        """List (kind, detail) of the newest events of a sweep's plan, back to the last one written.

        The newest comes first. A plan that was announced since may or may not be in the file: a
        crash came between. Raises Failure where one of these events is not as it was written.
        """
        query = (
            "SELECT number, at, run, kind, detail, seal FROM event WHERE run = ? "
            "ORDER BY number DESC"
        )
        events: list[tuple[str, dict[str, Any]]] = []
        for number, *event, seal in self.rows(EVENT_TYPES, query, (PLAN_OF + sweep,)):
            _, _, kind, detail = event
            fields = plan_detail(detail) if self._is_intact(number, tuple(event), seal) else None
            if fields is None:
                raise self._changed(number, f"the plan of {sweep!r}")
            events.append((kind, fields))
            if kind == PLAN:
                break
        return events

    def imported_sheets(self, sweep: str) -> set[tuple[str, str]]:
        """Return (path, sha256) of every sheet from which this store imported runs of the sweep.

        Only its own imports count: `merge` brings no such event. A damaged event vouches for no
        sheet.
        """
        query = "SELECT kind, detail FROM event WHERE run = ? ORDER BY number"
        sheets: set[tuple[str, str]] = set()
        for kind, text in self.rows((str, str), query, (PLAN_OF + sweep,)):
            with contextlib.suppress(sqlite3.DatabaseError):
                match event_detail(kind, text):
                    case {"sheet": [str(file), str(sha256)]}:
                        sheets.add((file, sha256))
        return sheets

    def _is_intact(self, number: int, event: Event, seal: str) -> bool:
        """Return whether the event, and its place in the chain of seals, are as they were
        written."""
        query = "SELECT seal FROM event WHERE number < ? ORDER BY number DESC LIMIT 1"
        rows = self.rows((str,), query, (number,))
        return holds(rows[0][0] if rows else "", event, seal)

    def plan_seals(self, sweep: str) -> list[str]:
        """List the hashes that the sweep's plan file may have; [] where none was sealed.

        Raises Failure as `plan_events` does.
        """
        return [detail["sha256"] for _, detail in self.plan_events(sweep)]

    def event_subject(self, event: int) -> str:
        """Return the subject of the event with this number: a run, "plan of NAME", or "" for a
        look."""
        rows = self._db.execute("SELECT run FROM event WHERE number = ?", (event,))
        return "".join(str(run) for (run,) in rows)

    def lacks_its_end(self) -> bool:
        """Return whether the last events were removed: their seals go with them, SQLite's count
        stays."""
        query = "SELECT (SELECT seq FROM sqlite_sequence), (SELECT max(number) FROM event)"
        sequence_number, last_number = self._db.execute(query).fetchone()
        return bool(sequence_number != last_number)

    def events(self, run: str) -> list[tuple[float, str, dict[str, Any]]]:
        """List (time, kind, detail) of a run's events, the oldest first."""
        query = "SELECT at, kind, detail FROM event WHERE run = ? ORDER BY number"
        return [
            (timestamp, kind, event_detail(kind, detail))
            for timestamp, kind, detail in self.rows((float, str, str), query, (run,))
        ]

    def looks(self) -> list[Look]:
        """List the looks of all sweeps, the oldest first, each once. Raises Failure as
        `dated_looks` does."""
        return [look for _, look in self.dated_looks()]

    def _changed(self, number: int, subject: str) -> Failure:
        """Return the error for an event that is not as it was written."""
        _, _, path = self._db.execute("PRAGMA database_list").fetchone()
        file, folder = Path(path), Path.cwd()
        if file.is_relative_to(folder):  # as it is typed
            file = file.relative_to(folder)
        return Failure(
            f"{file}: event {number}, {subject}, was changed, or an event before it was removed; "
            f"{StoreFolder(file.parent).repair_remedy}"
        )

    def dated_looks(self) -> list[tuple[float, Look]]:
        """List (time, look) in the order of `looks`.

        Looks of another store were appended later than they were read, so they are ordered by time.
        Raises Failure where a look is not as it was written.
        """
        looks_by_text: dict[str, tuple[float, Look]] = {}
        for number, timestamp, *rest, detail, seal in self._look_rows():
            if not self._is_intact(number, (timestamp, *rest, detail), seal):
                raise self._changed(number, "a look")
            looks_by_text.setdefault(detail, (timestamp, event_detail(LOOK, detail)))
        return [*looks_by_text.values()]

    def _look_rows(self) -> list[Any]:
        query = (
            "SELECT number, at, run, kind, detail, seal FROM event WHERE run = '' "
            "ORDER BY at, number"
        )
        return self.rows(EVENT_TYPES, query)

    def looks_text(self) -> bytes:
        """Return the content of `looks.jsonl`: one look per line, including looks with a broken
        seal."""
        looks = dict.fromkeys(json.dumps(event_detail(LOOK, row[4])) for row in self._look_rows())
        return "".join(f"{look}\n" for look in looks).encode()

    def last_detail(self, kind: str) -> dict[str, dict[str, Any]]:
        """Map each run to the detail of its newest event of this kind."""
        query = "SELECT run, detail FROM event WHERE kind = ? ORDER BY number"
        return {
            run: event_detail(kind, text) for run, text in self.rows((str, str), query, (kind,))
        }

    def starts(self, runs: Collection[str]) -> dict[str, tuple[int, int | None]]:
        """Map each of `runs` that was ever started to (number of starts, last attempt).

        The attempt is a number, or None where the run last started on the driver's host.
        """
        query = "SELECT run, detail FROM event WHERE kind = 'started' ORDER BY number"
        starts_by_run: dict[str, tuple[int, int | None]] = {}
        for run, text in self.rows((str, str), query):
            if run in runs:
                attempt = event_detail("started", text).get("attempt")
                starts_by_run[run] = starts_by_run.get(run, (0, None))[0] + 1, attempt
        return starts_by_run

    def seals(self, runs: Sequence[str] = ()) -> dict[str, str]:
        """Map each run to the recorded hash of its result, where it has one that still counts.

        No `runs` means all runs.
        """
        marks = ",".join("?" * len(runs))
        rows = self.rows(
            (str, str),
            f"SELECT event.run, event.detail FROM run JOIN event ON event.run = run.id "
            f"WHERE event.kind = run.status AND run.status IN {FINAL_STATUSES} "
            + (f"AND run.id IN ({marks}) " if runs else "")
            + "ORDER BY event.number",
            runs,
        )
        return {run: event_detail("finished", text)["result_sha256"] for run, text in rows}

    def broken_seals(self) -> list[int]:
        """List the numbers of events that are not as they were written, or that follow a removed
        event."""
        rows = self.rows(
            (float, str, str, str, str, int),
            "SELECT at, run, kind, detail, seal, number FROM event ORDER BY number",
        )
        broken, previous_seal = [], ""
        for timestamp, run, kind, detail, seal, number in rows:
            if not holds(previous_seal, (timestamp, run, kind, detail), seal):
                broken.append(number)
            previous_seal = seal
        return broken
