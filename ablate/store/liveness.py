"""The one door to workers: is a run's worker alive, what does it say, and stopping it.

Whoever started a worker answers for it: a launcher for those of its own, `Store.liveness` for all
others, which is whom drivers ask of workers that they adopt, and readers of every one.
"""

from __future__ import annotations

import signal
from typing import Any, Protocol

from ablate.shared.rundir import RunDir


class Liveness(Protocol):
    """Answers for the workers of runs. `tests/launcher_contract.py` holds every launcher to it."""

    def alive(self, run: RunDir) -> bool:
        """Has the run a worker that lives? True only while it does, false only once it is gone."""

    def notes(self, run: RunDir) -> dict[str, Any]:
        """What its worker notes of itself: pid, slot, phase, step, total; the last one's stay, with
        how it ended (exit, error). {} where there is nothing whole."""

    def stop(self, run: RunDir, now: bool = False) -> None:
        """Ask its worker to checkpoint and stop, if one lives; `now`: kill it."""


class HostLock:
    """The answer on this host: the kernel frees a run's lock when the worker that holds it dies."""

    def alive(self, run: RunDir) -> bool:
        return run.lock.is_held()

    def notes(self, run: RunDir) -> dict[str, Any]:
        return run.lock.notes()

    def stop(self, run: RunDir, now: bool = False) -> None:
        run.lock.signal(signal.SIGKILL if now else signal.SIGTERM)
