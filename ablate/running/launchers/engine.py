"""What an engine of jobs is asked for, and asked in threads: the driver waits for no answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

AT_ONCE = 4  # questions how a job ended


class Engine(Protocol):
    """What places jobs on hosts. Each method may take long, and is called in a thread."""

    def submit(self, count: int, without: Collection[str]) -> list[str]:
        """Ask for so many jobs, on none of these hosts, each of which starts pilots; their ids.
        Raises Failure with a line that says why there are none."""

    def states(self) -> Mapping[str, bool] | None:
        """Of every job of this store that has not ended: does it run? None: no answer now."""

    def ended(self, job: str) -> str:
        """How a job ended, in the engine's words; "" where it does not know."""

    def cancel(self, jobs: Collection[str]) -> None:
        """End them."""

    def log(self, job: str) -> str:
        """Where its output is."""


class Asked:
    """An engine, asked without waiting."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1)  # one after the other, as they were asked
        self._ends = ThreadPoolExecutor(AT_ONCE)
        self._ended: dict[str, Future[str]] = {}

    def states(self) -> Future[Mapping[str, bool] | None]:
        return self._thread.submit(self._engine.states)

    def submit(self, count: int, without: Collection[str]) -> Future[list[str]]:
        return self._thread.submit(self._engine.submit, count, without)

    def cancel(self, jobs: Collection[str]) -> Future[None]:
        return self._thread.submit(self._engine.cancel, jobs)

    def ended(self, job: str) -> str | None:
        """How it ended, once that is answered; None until then. It is asked anew after each answer:
        the next one may know more."""
        if job not in self._ended:
            self._ended[job] = self._ends.submit(self._engine.ended, job)
        return self._ended.pop(job).result() if self._ended[job].done() else None

    def log(self, job: str) -> str:
        return self._engine.log(job)

    def free(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._ends.shutdown(wait=False, cancel_futures=True)
