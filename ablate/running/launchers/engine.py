"""The jobs of an engine: what it is asked for, and what is heard of it. It is asked in threads: the
driver waits for no answer."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from ablate.shared.errors import Failure

AT_ONCE = 4  # questions how a job ended
ASK_S = 5.0  # between two questions to the engine
AGAIN_S = 60.0  # after it refused a job
LEAVES_S = 30.0  # between a pilot's last word and the end of its job
UNANSWERED = 3  # questions in a row, before a line says so, or ends what never began
UNSEEN = 3  # jobs in a row that ended before anybody saw their pilots: no more are asked for
_TAKEN_AWAY = ("CANCELLED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL")  # whose pilots are not at fault


class Engine(Protocol):
    """What places jobs on hosts. Each method may take long, and is called in a thread."""

    def submit(self, count: int, without: Collection[str]) -> list[str]:
        """Ask for so many jobs, on none of these hosts, each of which starts pilots; their ids.
        Raises Failure with a line that says why there are none."""

    def states(self) -> Mapping[str, bool] | None:
        """Map every job of this store that has not ended to: does it run? None: no answer now."""

    def ended(self, job: str) -> str:
        """Say how a job ended, in the engine's words; "" where it does not know."""

    def cancel(self, jobs: Collection[str]) -> None:
        """End them."""

    def log(self, job: str) -> str:
        """Say where its output is."""


class Jobs:
    """The jobs of a store. `name`: of the launcher; `now`, everywhere: seconds of a monotonic
    clock."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.running: Mapping[str, bool] | None = None  # job -> does it run? The engine's last word
        self.unseen: dict[str, None] = {}  # jobs without a pilot so far
        self.failures: list[str] = []  # why jobs in a row were of no use
        self.lines: list[str] = []  # to be said
        self.not_before = -math.inf  # no job is asked for until then
        self._name, self._engine = name, engine
        self._thread = ThreadPoolExecutor(1)  # one after the other, as they were asked
        self._ends = ThreadPoolExecutor(AT_ONCE)
        self._ended: dict[str, Future[str]] = {}
        self._left: dict[str, float] = {}  # jobs whose pilots have left, and when
        self._asked: Future[Mapping[str, bool] | None] | None = None
        self._asked_at = -math.inf
        self._submitted: Future[list[str]] | None = None
        self._answered = False  # has it ever?
        self._unanswered = 0  # questions in a row

    def hear(self, flying: Collection[str], used: bool, now: float) -> None:
        """Take the answers that are there by now, and ask again. `flying`: jobs whose pilots are
        known; `used`: there are slots. Raises Failure where no job can be had, or is of use."""
        if self._asked is not None and self._asked.done():
            self.running, self._asked = self._asked.result(), None
            self._unanswered = 0 if self.running is not None else self._unanswered + 1
            if self.running is not None:
                self._answered = True
                self._count_unseen(self.running, flying, used, now)
            elif self._unanswered == UNANSWERED:
                if not (self._answered or flying):
                    raise Failure(
                        f"launcher={self._name}: the cluster gives no answer; start ablate on a "
                        f"host that can ask for jobs"
                    )
                self.lines.append("the cluster gives no answer; runs that train go on")
        if self._asked is None and now - self._asked_at > ASK_S:
            self._asked_at, self._asked = now, self._thread.submit(self._engine.states)
        if self._submitted is not None and self._submitted.done():
            submitted, self._submitted = self._submitted, None
            self.not_before = now + ASK_S
            try:
                self.unseen |= dict.fromkeys(submitted.result())
            except Failure as error:
                if not (flying or self.unseen):
                    raise
                self.lines.append(f"{error}; asking again in a minute")
                self.not_before = now + AGAIN_S
            self._asked, self._asked_at = None, -math.inf  # an answer from before lacks these jobs

    def _count_unseen(
        self, running: Mapping[str, bool], flying: Collection[str], used: bool, now: float
    ) -> None:
        """Note the jobs from which no pilot has come yet, and those that ended so."""
        for job in [job for job in self.unseen if job not in running]:
            how = self.ended(job)
            if how is None:
                continue
            del self.unseen[job]
            if job not in self._left and not how.startswith(_TAKEN_AWAY):
                what = f"ended before its pilot was seen ({how or 'nobody knows how'})"
                self.failures.append(f"job {job} {what}: see {self._engine.log(job)}")
                self.lines.append(self.failures[-1])
        for job, runs in running.items():
            ends = runs and now - self._left.get(job, -math.inf) < LEAVES_S
            if job not in flying and not ends:  # one that was requeued comes again
                self.unseen[job] = None
        if len(self.failures) >= UNSEEN and not used:
            raise Failure(f"no node can be used: {self.failures[-1]}")

    def leave(self, job: str, now: float) -> None:
        """Note that a pilot of this job is gone."""
        self._left[job] = now

    def ended(self, job: str) -> str | None:
        """Say how it ended, once that is answered; None until then. It is asked anew after each
        answer: the next one may know more."""
        if job not in self._ended:
            self._ended[job] = self._ends.submit(self._engine.ended, job)
        return self._ended.pop(job).result() if self._ended[job].done() else None

    def may_submit(self, now: float) -> bool:
        """Is it time to ask for jobs? Once it is known which there are."""
        return self.running is not None and self._submitted is None and now > self.not_before

    def submit(self, count: int, without: Collection[str]) -> None:
        self._submitted = self._thread.submit(self._engine.submit, count, without)

    def cancel(self, jobs: Collection[str]) -> Future[None]:
        return self._thread.submit(self._engine.cancel, jobs)

    def cancel_unseen(self, now: float) -> None:
        """End the jobs that wait in the engine's queue, since no run waits for them."""
        queued = [job for job in self.unseen if not (self.running or {}).get(job, True)]
        if queued:
            self.cancel(queued)
            self.not_before = now + ASK_S

    def end(self, cancel: bool) -> None:
        """Ask no more; `cancel`: first end the jobs that wait in the engine's queue."""
        queued = [job for job, runs in (self.running or {}).items() if not runs]
        if queued and cancel:
            self.cancel(queued).result()
        self._thread.shutdown(cancel_futures=True)
        self._ends.shutdown(wait=False, cancel_futures=True)
