"""The pilots of a driver as values, and what follows from a beat: pure functions.

Used by launchers/pilots.py, which reads the files, asks the engine and carries out a `PilotStep`.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ablate.run import EXIT_AWAY
from ablate.running.launchers import Slot
from ablate.running.launchers.jobs import JobEnd
from ablate.store import STALE_S

# How long a pilot may be silent once the engine no longer lists its job, which the engine may just
# have forgotten.
GONE_S = 10.0


@dataclass(frozen=True)
class Orders:
    """The orders of a pilot. runs: attempt -> slot, of those whose end it has not reported; stop:
    the attempts among them that shall stop, and whether at once; close: it takes no more; shares:
    the part of its device's memory that an attempt has."""

    runs: Mapping[str, str] = field(default_factory=dict)
    stop: Mapping[str, bool] = field(default_factory=dict)
    close: bool = False
    shares: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(tree: Mapping[str, Any]) -> Orders:
        """Return the orders that a driver has written."""
        return Orders(
            tree.get("runs", {}),
            tree.get("stop", {}),
            bool(tree.get("close")),
            tree.get("shares", {}),
        )

    def tree(self) -> dict[str, Any]:
        return {
            "runs": dict(self.runs),
            "stop": dict(self.stop),
            "close": self.close,
            "shares": dict(self.shares),
        }

    def add(self, attempt: str, slot: Slot) -> Orders:
        """Return the orders with an attempt on a slot."""
        return replace(
            self,
            runs={**self.runs, attempt: slot.name},
            shares={**self.shares, attempt: slot.share},
        )

    def drop(self, attempts: Mapping[str, int]) -> Orders:
        """Return the orders without attempts that have ended."""
        runs = {attempt: slot for attempt, slot in self.runs.items() if attempt not in attempts}
        stop = {attempt: at_once for attempt, at_once in self.stop.items() if attempt in runs}
        shares = {attempt: share for attempt, share in self.shares.items() if attempt in runs}
        return replace(self, runs=runs, stop=stop, shares=shares)


@dataclass(frozen=True)
class PilotBeat:
    """The news of a pilot. content: its last beat, {} before the first; heard_at: when its
    driver saw a new one, in seconds of a monotonic clock; is_listed: whether its engine lists its
    job, None where it has not answered; end: how the job ended, None where that is not known."""

    content: Mapping[str, Any]
    heard_at: float
    is_listed: bool | None = None
    end: JobEnd | None = None


@dataclass(frozen=True)
class PilotStep:
    """The consequences of a beat.

    orders: those from now on; exit_codes: of attempts that have ended, once each; is_gone: the
    pilot has ended, or is given up for dead; asks: the engine is to be asked how the job ended;
    cancels: the job is to be ended, since it may still run; reason: why the pilot is given up.
    """

    orders: Orders
    exit_codes: Mapping[str, int]
    is_gone: bool = False
    asks: bool = False
    cancels: bool = False
    reason: str = ""


def pilot_step(beat: PilotBeat, orders: Orders, now: float) -> PilotStep:
    """Decide what follows from the last beat of a pilot. The first rule that fits holds."""
    reported = {
        attempt: exit_code
        for attempt, exit_code in beat.content.get("ended", {}).items()
        if attempt in orders.runs
    }
    remaining = orders.drop(reported) if reported else orders
    if beat.content.get("over"):
        return _last_step(remaining, reported, EXIT_AWAY)
    silent_s = now - beat.heard_at
    is_stale, is_forgotten = silent_s > STALE_S, beat.is_listed is False
    if not (is_stale or (is_forgotten and silent_s > GONE_S)):
        return PilotStep(remaining, reported)
    if not is_forgotten:
        return replace(
            _last_step(remaining, reported, EXIT_AWAY), cancels=True, reason="no sign of life"
        )
    if beat.end is None and not is_stale:
        return PilotStep(remaining, reported, asks=True)
    end = beat.end or JobEnd()
    # What takes a job down with it is a death of its runs; what takes the host away is none.
    exit_code = -int(signal.SIGKILL) if end.kind == "failed" else EXIT_AWAY
    words = f" ({end.words})" if end.words else ""
    reason = f"its job {beat.content.get('job', '')} has ended{words}"
    return replace(_last_step(remaining, reported, exit_code), asks=beat.end is None, reason=reason)


def _last_step(orders: Orders, reported: Mapping[str, int], exit_code: int) -> PilotStep:
    """Return the last step of a pilot: all that it still had ends with this code."""
    exit_codes = {**reported, **dict.fromkeys(orders.runs, exit_code)}
    return PilotStep(Orders(close=True), exit_codes, is_gone=True)


@dataclass(frozen=True)
class PilotState:
    """A pilot, as its driver knows it. is_late: its newest orders are not written, since the disk
    is full."""

    id: str
    orders: Orders
    heard_at: float
    beat: Mapping[str, Any] = field(default_factory=dict)
    slots: Sequence[Slot] = ()
    is_late: bool = False

    @property
    def job(self) -> str:
        return str(self.beat.get("job", ""))

    @property
    def device_count(self) -> int:
        """The number of devices that its runs have."""
        ranks = {slot.name: slot.ranks for slot in self.slots}
        return sum(ranks.get(slot, 1) for slot in self.orders.runs.values())

    @property
    def is_open(self) -> bool:
        """True if it takes more runs."""
        return bool(self.beat.get("open")) and not self.orders.close

    def hear(self, beat: Mapping[str, Any], is_fresh: bool, moment: float) -> PilotState:
        """Return the pilot once this beat was read. `is_fresh`: its file is new by this host's
        clock, which counts for the first one only: it may be old."""
        if not beat or beat == self.beat:
            return self
        is_new = beat.get("beat") != self.beat.get("beat") and (bool(self.beat) or is_fresh)
        return replace(
            self,
            beat=beat,
            heard_at=moment if is_new else self.heard_at,
            slots=tuple(Slot(**slot) for slot in beat.get("slots", ())),
        )


@dataclass(frozen=True)
class Fleet:
    """The pilots of a store, by their ids, as its driver knows them at a moment.

    token: the store's; exit_codes: of workers that have ended since the last poll, by run;
    looked_at: when the files were last read; is_driven: by this process, which else only asks what
    a sweep would cost; is_proven: nodes can check by now whether they see the store's data.
    """

    token: str
    pilots: Mapping[str, PilotState] = field(default_factory=dict)
    exit_codes: Mapping[str, int] = field(default_factory=dict)
    looked_at: float = float("-inf")
    is_driven: bool = False
    is_proven: bool = False

    @cached_property
    def open_pilots(self) -> list[PilotState]:
        return [pilot for pilot in self.pilots.values() if pilot.is_open]

    @cached_property
    def slots(self) -> list[Slot]:
        """The slots of pilots that take more runs."""
        return [slot for pilot in self.open_pilots for slot in pilot.slots]

    @cached_property
    def holders(self) -> dict[str, PilotState]:
        """The pilot of each attempt that has not ended."""
        return {attempt: pilot for pilot in self.pilots.values() for attempt in pilot.orders.runs}

    @property
    def jobs(self) -> set[str]:
        return {pilot.job for pilot in self.pilots.values()}

    def pilot_of(self, slot: Slot) -> PilotState | None:
        """Return the pilot that has a slot of this name, whatever share of the memory the run
        has."""
        for pilot in self.pilots.values():
            if any(its_slot.name == slot.name for its_slot in pilot.slots):
                return pilot
        return None

    def put(self, pilot: PilotState) -> Fleet:
        """Return the fleet with this pilot in the place of the one of its id."""
        return replace(self, pilots={**self.pilots, pilot.id: pilot})

    def advance(self, pilot: PilotState, step: PilotStep) -> Fleet:
        """Return the fleet after a step of a pilot."""
        pilots = {**self.pilots, pilot.id: replace(pilot, orders=step.orders)}
        if step.is_gone:
            del pilots[pilot.id]
        exit_codes = {run_of(attempt): code for attempt, code in step.exit_codes.items()}
        return replace(self, pilots=pilots, exit_codes={**self.exit_codes, **exit_codes})


def run_of(attempt: str) -> str:
    """Return the id of an attempt's run: attempts are named NUMBER/ID."""
    return attempt.rpartition("/")[2]
