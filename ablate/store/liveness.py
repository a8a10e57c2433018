"""The one door to workers: is a run's worker alive, what does it say, and stopping it.

Whoever can know answers: for a worker on this host the lock of its folder, which the kernel frees
when it dies; for an attempt elsewhere, which the `started` event and the link to its folder name,
the pilot that holds it. A launcher answers for the workers of its own, `Store.liveness` for all
others, which is whom drivers ask of workers that they adopt, and readers of every one.
"""

from __future__ import annotations

import platform
import signal
from pathlib import Path
from typing import Any, Protocol

from ablate.shared.rundir import RunDir
from ablate.store.pilots import Pilots, is_fresh


class Liveness(Protocol):
    """Answers for the workers of runs. `tests/launcher_contract.py` holds every launcher to it."""

    def alive(self, run: RunDir) -> bool:
        """Has the run a worker that lives? On this host true only while it does, false only once it
        is gone. Elsewhere false also where it was given up for dead: what it still writes is never
        read."""

    def notes(self, run: RunDir) -> dict[str, Any]:
        """What its worker notes of itself: pid, slot, phase, step, total; the last one's stay, with
        how it ended (exit, error). {} where there is nothing whole."""

    def stop(self, run: RunDir, now: bool = False) -> None:
        """Ask its worker to checkpoint and stop, if one lives; `now`: kill it."""


class HostLock:
    """The answer on this host: the kernel frees a run's lock when the worker that holds it dies.

    Where locks don't reach other hosts, a worker that notes another one is taken for dead once it
    has noted nothing for a minute: until then nobody else may write into its folder.
    """

    def alive(self, run: RunDir) -> bool:
        return run.lock.is_held() or self._noted_elsewhere(run)

    def notes(self, run: RunDir) -> dict[str, Any]:
        return run.lock.notes()

    def stop(self, run: RunDir, now: bool = False) -> None:
        if self.host(run) is None:  # the number of a process there is another one's here
            run.lock.signal(signal.SIGKILL if now else signal.SIGTERM)

    def host(self, run: RunDir) -> str | None:
        """Of its last worker, None where that is this one."""
        host = run.lock.notes().get("host")
        return None if host == platform.node() else host

    def _noted_elsewhere(self, run: RunDir) -> bool:
        if not is_fresh(run.lock.path) or self.host(run) is None:
            return False
        return "exit" not in run.lock.notes() and not run.has_result()


class WhoCanKnow:
    """The answer of a store for any run of it."""

    def __init__(self, pilots: Path) -> None:
        self._here, self._elsewhere = HostLock(), Pilots(pilots)

    def alive(self, run: RunDir) -> bool:
        return self._of(run).alive(run)

    def notes(self, run: RunDir) -> dict[str, Any]:
        return self._of(run).notes(run)

    def stop(self, run: RunDir, now: bool = False) -> None:
        self._of(run).stop(run, now)

    def _of(self, run: RunDir) -> Liveness:
        return self._here if run.attempt is None else self._elsewhere
