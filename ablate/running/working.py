"""A run of a drive that has a worker."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ablate.planning.cell import PlannedRun
from ablate.running.launchers import Slot
from ablate.shared.rundir import CHECK, RunDir
from ablate.store.liveness import Liveness


@dataclass
class Working:
    run: PlannedRun
    folder: RunDir
    slot: Slot | None  # None: adopted, on a slot that this launcher does not have
    by: Liveness  # who answers for the worker: the launcher, of one that was adopted the store
    child: bool  # our own: the launcher will tell when it ends
    notes: dict[str, Any] = field(default_factory=dict)
    noted_at: float = field(default_factory=time.monotonic)  # when the notes last changed
    since: float = field(default_factory=time.monotonic)  # 0: adopted, so for a while
    code: int | None = None  # of its process, as far as the launcher has told it
    asked: bool = False  # to stop
    killed: bool = False
    judged: int = 0  # bytes of its metrics when the search last judged it

    def stop(self, now: bool = False) -> None:
        self.asked = True
        self.by.stop(self.folder, now)

    @property
    def error(self) -> str:
        """Why it left without a result, as it noted."""
        self.notes = self.by.notes(self.folder)
        return str(self.notes.get("error", "its worker died without an error message"))

    @property
    def leaves(self) -> bool:
        """Has it done with its GPU? What is left are the hashes of its data: the next run starts
        meanwhile. On a CPU these take the core that the next run would have."""
        gpu = self.slot is not None and self.slot.device != "cpu"
        return gpu and self.notes.get("phase") == CHECK

    @property
    def place(self) -> str:
        """The name of its slot, as far as it is known."""
        return self.slot.name if self.slot is not None else str(self.notes.get("slot", "?"))

    @property
    def stepped(self) -> bool:
        """Has it made a step?"""
        return bool(self.notes.get("step", 0) > self.notes.get("from_step", 0))
