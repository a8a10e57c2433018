"""What can be read of an open ledger."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ablate.planning import Plan
from ablate.shared import FINAL_STATUSES, Failure
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
from ablate.store.looks import LOOK

SEALED = (int, float, str, str, str, str)  # an event with its number and its seal


def _changed(number: int, what: str) -> Failure:
    return Failure(
        f"ledger.db: event {number}, {what}, was changed, or an event before it was removed; "
        f"`ablate doctor --repair` rebuilds the ledger"
    )


class EarlierRuns(NamedTuple):
    """Of earlier plans of a sweep, each with the seeds of its plan, in words: `gc` keeps some, and
    --replace gave up others. What a later plan lost again is in both, and kept."""

    kept: dict[str, str]
    given_up: dict[str, str]


class Queries:
    """Reads an open ledger."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def rows(self, types: tuple[type, ...], query: str, args: Sequence[Any] = ()) -> list[Any]:
        """What the query finds. Raises DatabaseError for what was never written: SQLite notices
        damage of its pages' structure, not of what stands in them."""
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
        """The state of each of `runs` that the ledger knows; of all runs for None."""
        query = "SELECT id, status, attempts, oom, hung, step FROM run"
        types = (str, str, int, int, int, int)
        if runs is None:
            return {row[0]: state_of(*row[1:]) for row in self.rows(types, query)}
        wanted = list(runs)
        if len(wanted) > 100:
            everything = self.states()
            return {run: everything[run] for run in wanted if run in everything}
        marks = ",".join("?" * len(wanted))
        rows = self.rows(types, f"{query} WHERE id IN ({marks})", wanted)
        return {row[0]: state_of(*row[1:]) for row in rows}

    def sweeps(self) -> list[str]:
        """Names, the last driven first."""
        rows = self.rows((str,), "SELECT name FROM sweep ORDER BY driven DESC")
        return [name for (name,) in rows]

    def sweeps_of(self, runs: Iterable[str]) -> list[str]:
        """Those that planned one of these runs last, in the order of `sweeps`."""
        query = "SELECT DISTINCT sweep FROM planned WHERE run = ?"
        having = {sweep for run in runs for (sweep,) in self.rows((str,), query, (run,))}
        return [sweep for sweep in self.sweeps() if sweep in having]

    def ended(self) -> dict[str, tuple[int, int]]:
        """(runs that have ended, planned runs) of each sweep."""
        done = ", ".join(f"'{status}'" for status in FINAL_STATUSES)
        query = f"""SELECT sweep, SUM(status IN ({done})), COUNT(*) FROM planned JOIN run
            ON id = run GROUP BY sweep"""
        return {name: (some, of) for name, some, of in self.rows((str, int, int), query)}

    def driven(self) -> dict[str, float]:
        """When each sweep was driven last."""
        return dict(self.rows((str, float), "SELECT name, driven FROM sweep"))

    def knew(self, sweep: str) -> bool:
        """Was it ever the first to plan a run? Events stay when it is forgotten."""
        query = "SELECT 1 FROM event WHERE kind = 'planned' AND detail = ? LIMIT 1"
        return bool(self.rows((int,), query, (json.dumps({"sweep": sweep}),)))

    @contextmanager
    def still(self) -> Iterator[None]:
        """All that is read inside is of one moment, whatever the driver writes meanwhile."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    def planned(self, sweep: str) -> list[tuple[int, str]]:
        """(position, run) of what the sweep planned last."""
        query = "SELECT position, run FROM planned WHERE sweep = ? ORDER BY position"
        return self.rows((int, str), query, (sweep,))

    def left(self, plan: Plan) -> list[str]:
        """The runs that the sweep planned last, and would lack by this plan."""
        runs = {run.id for run in plan.runs()}
        return list(dict.fromkeys(run for _, run in self.planned(plan.name) if run not in runs))

    def earlier(self, sweep: str) -> EarlierRuns:
        """The runs that a plan of the sweep had, and a later one had not. That of now may have them
        again."""
        query = "SELECT kind, detail FROM event WHERE run = ? ORDER BY number"
        found, seeds = EarlierRuns({}, {}), ""
        for kind, text in self.rows((str, str), query, (PLAN_OF + sweep,)):
            detail = event_detail(kind, text)
            if kind == FORGOTTEN:
                found = EarlierRuns({}, {})
            elif kind == PLAN:
                found.kept.update(dict.fromkeys(detail.get("left", ()), seeds))
                seeds = detail["with"]
                if "replaces" in detail:
                    found = EarlierRuns({}, {**found.given_up, **found.kept})
        return found

    def replaces(self, sweep: str, sha256: str) -> bool:
        """Has a crash cut off `Ledger.replace`, once the file of the plan was written? `sha256`: of
        the file."""
        with contextlib.suppress(Failure):
            match self.plan_events(sweep):
                case [(kind, {"replaces": True, **told}), *_] if kind == PLANNING_EVENTS:
                    return bool(told["sha256"] == sha256)
        return False

    def plan_events(self, sweep: str) -> list[tuple[str, dict[str, Any]]]:
        """(kind, detail) of the newest events of its plan, back to when it was last written; what
        was announced since may be in its file, too, or not: a crash came between.

        Raises Failure where one of these events is not as it was written.
        """
        query = (
            "SELECT number, at, run, kind, detail, seal FROM event WHERE run = ? "
            "ORDER BY number DESC"
        )
        found: list[tuple[str, dict[str, Any]]] = []
        for number, *event, seal in self.rows(SEALED, query, (PLAN_OF + sweep,)):
            _, _, kind, detail = event
            told = plan_detail(detail) if self._held(number, tuple(event), seal) else None
            if told is None:
                raise _changed(number, f"the plan of {sweep!r}")
            found.append((kind, told))
            if kind == PLAN:
                break
        return found

    def imported_sheets(self, sweep: str) -> set[tuple[str, str]]:
        """(path, sha256) of every sheet from which this store imported runs of the sweep itself;
        `merge` brings no such event, and one that was damaged vouches for no sheet."""
        query = "SELECT kind, detail FROM event WHERE run = ? ORDER BY number"
        found: set[tuple[str, str]] = set()
        for kind, text in self.rows((str, str), query, (PLAN_OF + sweep,)):
            with contextlib.suppress(sqlite3.DatabaseError):
                match event_detail(kind, text):
                    case {"sheet": [str(file), str(sha256)]}:
                        found.add((file, sha256))
        return found

    def _held(self, number: int, event: Event, seal: str) -> bool:
        """Is the event as it was written, behind the one that it was written behind?"""
        before = "SELECT seal FROM event WHERE number < ? ORDER BY number DESC LIMIT 1"
        last = self.rows((str,), before, (number,))
        return holds(last[0][0] if last else "", event, seal)

    def plan_seals(self, sweep: str) -> list[str]:
        """The hashes of which the file of its plan has one; [] where none was sealed. Raises
        Failure, see `plan_events`."""
        return [detail["sha256"] for _, detail in self.plan_events(sweep)]

    def about(self, event: int) -> str:
        """What an event, by its number, is about: a run, "plan of NAME", or "" for a look."""
        rows = self._db.execute("SELECT run FROM event WHERE number = ?", (event,))
        return "".join(str(run) for (run,) in rows)

    def lacks_its_end(self) -> bool:
        """Were the last events taken out? Their seals went with them, SQLite's count did not."""
        query = "SELECT (SELECT seq FROM sqlite_sequence), (SELECT max(number) FROM event)"
        counted, last = self._db.execute(query).fetchone()
        return bool(counted != last)

    def events(self, run: str) -> list[tuple[float, str, dict[str, Any]]]:
        """(time, kind, detail) of a run, oldest first."""
        query = "SELECT at, kind, detail FROM event WHERE run = ? ORDER BY number"
        return [
            (at, kind, event_detail(kind, detail))
            for at, kind, detail in self.rows((float, str, str), query, (run,))
        ]

    def looks(self) -> list[Look]:
        """At which verdicts were read, of all sweeps, the oldest first, each once."""
        return [look for _, look in self.dated_looks()]

    def dated_looks(self) -> list[tuple[float, Look]]:
        """(time, look), as `looks`: those of another store were appended later than they were
        read. Raises Failure where one is not as it was written."""
        first: dict[str, tuple[float, Look]] = {}
        for number, at, *rest, detail, seal in self._look_rows():
            if not self._held(number, (at, *rest, detail), seal):
                raise _changed(number, "a look")
            first.setdefault(detail, (at, event_detail(LOOK, detail)))
        return [*first.values()]

    def _look_rows(self) -> list[Any]:
        query = (
            "SELECT number, at, run, kind, detail, seal FROM event WHERE run = '' "
            "ORDER BY at, number"
        )
        return self.rows(SEALED, query)

    def looks_text(self) -> bytes:
        """What `looks.jsonl` is: a look a line, whether its seal holds or not."""
        looks = dict.fromkeys(json.dumps(event_detail(LOOK, row[4])) for row in self._look_rows())
        return "".join(f"{look}\n" for look in looks).encode()

    def newest(self, events: int) -> list[str]:
        """The runs that the newest `events` are about, the last first."""
        query = "SELECT run FROM event ORDER BY number DESC LIMIT ?"
        return list(dict.fromkeys(run for (run,) in self.rows((str,), query, (events,))))

    def last_detail(self, kind: str) -> dict[str, dict[str, Any]]:
        """Each run's newest event of that kind, as its detail."""
        query = "SELECT run, detail FROM event WHERE kind = ? ORDER BY number"
        return {
            run: event_detail(kind, text) for run, text in self.rows((str, str), query, (kind,))
        }

    def starts(self, runs: Collection[str]) -> dict[str, tuple[int, int | None]]:
        """How often each of `runs` was started, and which attempt the last was, None where it was
        one on the driver's host; those that never were are left out."""
        query = "SELECT run, detail FROM event WHERE kind = 'started' ORDER BY number"
        found: dict[str, tuple[int, int | None]] = {}
        for run, text in self.rows((str, str), query):
            if run in runs:
                attempt = event_detail("started", text).get("attempt")
                found[run] = found.get(run, (0, None))[0] + 1, attempt
        return found

    def seals(self, runs: Sequence[str] = ()) -> dict[str, str]:
        """The hash of each run's result as it was recorded, where it was and still counts; of all
        runs where none are named."""
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
        """The numbers of events that are not as they were written, or that follow one taken out."""
        rows = self.rows(
            (float, str, str, str, str, int),
            "SELECT at, run, kind, detail, seal, number FROM event ORDER BY number",
        )
        broken, before = [], ""
        for at, run, kind, detail, seal, number in rows:
            if not holds(before, (at, run, kind, detail), seal):
                broken.append(number)
            before = seal
        return broken
