"""Where a sweep stands, and who watches it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ablate.planning.plan import Plan, PlannedRun
from ablate.running.launchers import Slot
from ablate.shared.rundir import RunDir
from ablate.store.ledger import FINAL


@dataclass
class Working:
    """A run that has a worker."""

    run: PlannedRun
    folder: RunDir
    slot: Slot | None  # None: adopted, on a slot that this launcher does not have
    child: bool  # our own: the launcher will tell when it ends
    notes: dict[str, Any] = field(default_factory=dict)
    noted_at: float = 0.0  # monotonic: when the notes last changed
    killed: bool = False
    judged: int = 0  # bytes of its metrics when the search last judged it


@dataclass
class Progress:
    """Where a sweep stands."""

    total: int  # with the runs that a search will still ask for
    counts: Mapping[str, int]
    working: list[Working]
    waiting: str | None = None  # why nothing is started

    @property
    def done(self) -> int:
        return sum(self.counts.get(status, 0) for status in FINAL)


class View(Protocol):
    """Somebody watching. `say` is an event, `show` comes several times a second."""

    def say(self, text: str) -> None: ...

    def show(self, progress: Progress) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """How a drive ended: with which plan, counts by status, the signal that stopped it, if one did.

    `retired`: places given up because runs lost their device on them.
    """

    plan: Plan
    total: int
    counts: Mapping[str, int]
    signal: int | None
    retired: tuple[str, ...] = ()

    @property
    def done(self) -> int:
        return sum(self.counts.get(status, 0) for status in FINAL)
