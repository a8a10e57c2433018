"""What a drive leaves."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from ablate.planning.plan import Plan
from ablate.store.progress import SweepProgress


@dataclass(frozen=True)
class Outcome:
    """The end of a drive: its plan, its progress, and the signal that stopped it, if any.

    `retired`: places that were given up because runs lost their device there. `stopped`: why the
    drive stopped by itself, with runs left.
    """

    plan: Plan
    progress: SweepProgress
    signal: int | None
    retired: tuple[str, ...] = ()
    stopped: str | None = None

    @property
    def ended(self) -> str:
        """How its driver did, for `status`; "" where it drove to the end."""
        if self.signal is not None:
            return f"was stopped by {signal.Signals(self.signal).name}"
        return f"ended: {self.stopped}" if self.stopped else ""
