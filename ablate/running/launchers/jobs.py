"""The jobs of an engine, as the driver knows them: requested, waiting, running, gone.

Requests to the engine and its answers are in threads: the driver waits for no answer. What the
site refuses is said once, in its own words, and requested again after ever longer waits.

Used by launchers/pilots.py. `Engine` is what an engine has to do; launchers/engine.py carries out
those that are files.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from ablate.shared import Failure

AT_ONCE = 4  # questions how a job ended
ASK_S = 5.0  # between two questions to the engine
AGAIN_S = 60.0  # after it refused a job; twice as long after each further refusal
MOST_AGAIN_S = 3600.0
LEAVES_S = 30.0  # between a pilot's last word and the end of its job
LISTED_S = 30.0  # since its request, before a job of which nothing is known is taken to have ended
UNANSWERED = 3  # questions in a row, before a line says so, or ends what never began
MOST_UNSEEN = 3  # jobs in a row that ended before their pilots were seen: no more are requested


@dataclass(frozen=True)
class JobEnd:
    """The end of a job. words: the engine's, "" where it knows nothing; kind: failed (its runs died
    with it), lost (it was taken away, by hand or with its host), or ended."""

    words: str = ""
    kind: str = "ended"


class Engine(Protocol):
    """An engine that places jobs on hosts. Each method may take long, and is called in a thread."""

    silence: str  # why the last question had no answer, or none from some hosts, in brackets, or ""

    def submit(self, count: int, excluded_hosts: Collection[str]) -> list[str]:
        """Request `count` jobs, on none of the `excluded_hosts`, each of which starts pilots.
        Returns their ids. Raises Failure with a line that says why there are none."""

    def states(self) -> Mapping[str, bool] | None:
        """Map every job of this store that has not ended to whether it runs; None where there is no
        answer now."""

    def ended(self, job: str) -> JobEnd:
        """Return how a job ended."""

    def cancel(self, jobs: Collection[str]) -> None:
        """End the jobs."""

    def log(self, job: str) -> str:
        """Return the place of a job's output, in words."""


class Jobs:
    """The jobs of a store. `name`: the launcher's; `now`, in all methods: seconds of a monotonic
    clock."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.running: Mapping[str, bool] | None = None  # job -> does it run? The engine's last word
        self.unseen: dict[str, float] = {}  # jobs without a pilot so far, and since when
        self.failures: dict[str, str] = {}  # jobs in a row that were of no use, and why
        self.unfit_hosts: set[str] = set()  # those whose pilots offered no slot
        self.lines: list[str] = []  # to be said
        self.not_before = -math.inf  # no job is requested until then
        self._name, self._engine = name, engine
        self._thread = ThreadPoolExecutor(1)  # one after the other, as they were asked
        self._ends = ThreadPoolExecutor(AT_ONCE)
        self._ended: dict[str, Future[JobEnd]] = {}
        self._left_at: dict[str, float] = {}  # jobs whose pilots have left, and when
        self._states_answer: Future[Mapping[str, bool] | None] | None = None
        self._asked_at = -math.inf
        self._submitted: Future[list[str]] | None = None
        self._refusal, self._again_s = "", AGAIN_S  # the last one, and the wait after the next
        self._answered = False  # has it ever?
        self._silence = ""  # the engine's, at its last answer
        self._unanswered = 0  # questions in a row

    def hear(self, piloted: Collection[str], used: bool, now: float) -> None:
        """Take the engine's answers that have come, and ask again. `piloted`: jobs whose pilots
        are known; `used`: there are slots.

        Raises Failure where no job can be had, or none is of use.
        """
        if self._states_answer is not None and self._states_answer.done():
            before, silence = self.running or {}, self._silence
            self.running, self._silence = self._states_answer.result(), self._engine.silence
            self._states_answer = None
            self._unanswered = 0 if self.running is not None else self._unanswered + 1
            if self.running is not None:
                self._answered = True
                has_room = not before.keys() <= self.running.keys()  # a job has ended
                if self._refusal and (has_room or self._silence != silence):  # a host is back
                    self.not_before, self._again_s = min(self.not_before, now), AGAIN_S
                self._count_unseen(self.running, piloted, used, now)
            elif self._unanswered == UNANSWERED:
                if not (self._answered or piloted):
                    raise Failure(
                        f"launcher={self._name}: the cluster gives no answer"
                        f"{self._engine.silence}; start ablate on a host that can ask for jobs"
                    )
                self.lines.append(
                    f"the cluster gives no answer{self._engine.silence}; runs that train go on"
                )
        if self._states_answer is None and now - self._asked_at > ASK_S:
            self._asked_at, self._states_answer = now, self._thread.submit(self._engine.states)
        if self._submitted is not None and self._submitted.done():
            submitted, self._submitted = self._submitted, None
            self.not_before = now + ASK_S
            try:
                self.unseen |= dict.fromkeys(submitted.result(), now)
                self._refusal, self._again_s = "", AGAIN_S
            except Failure as error:
                # A silent host may be back: its jobs are no longer listed.
                if not (piloted or self.unseen or self._engine.silence):
                    if self.failures:  # the hosts that are left out may be why
                        raise Failure(f"{self._no_node}; {error}") from error
                    raise
                if str(error) != self._refusal:
                    self.lines.append(f"{error}; the sweep goes on, and asks again later")
                self._refusal = str(error)
                self.not_before = now + self._again_s
                self._again_s = min(2 * self._again_s, MOST_AGAIN_S)
            # An answer from before lacks these jobs.
            self._states_answer, self._asked_at = None, -math.inf

    def _count_unseen(
        self, running: Mapping[str, bool], piloted: Collection[str], used: bool, now: float
    ) -> None:
        """Note the jobs whose pilots have not been seen yet, and those that ended before they were.
        Raises Failure where too many ended so."""
        for job in [job for job in self.unseen if job not in running]:
            ending = self.ended(job)
            if ending is None:
                continue
            if not ending.words and now - self.unseen[job] < LISTED_S:
                continue
            del self.unseen[job]
            if job not in self._left_at and ending.kind != "lost":
                words = ending.words or "nobody knows how"
                report = f"ended before its pilot was seen ({words})"
                self.failures[job] = f"job {job} {report}: see {self._engine.log(job)}"
                self.lines.append(self.failures[job])
        for job, runs in running.items():
            ends = runs and now - self._left_at.get(job, -math.inf) < LEAVES_S
            if job not in piloted and not ends:  # one that was requeued comes again
                self.unseen.setdefault(job, now)
        if len(self.failures) >= MOST_UNSEEN and not used:
            raise Failure(self._no_node)

    @property
    def _no_node(self) -> str:
        return f"no node can be used: {list(self.failures.values())[-1]}"

    def meet(self, job: str, host: str, remarks: Sequence[str], is_of_use: bool) -> None:
        """Note that a pilot of this job is seen on a host. `remarks`: what it says of the host at
        first; `is_of_use`: it offers slots, so that earlier failures no longer count. With remarks
        and no slot it is a failure, and no further job is requested there."""
        self.unseen.pop(job, None)
        self.lines += remarks
        if is_of_use:
            self.failures = {}
        elif remarks:
            self.failures[job] = remarks[0]
            self.unfit_hosts.add(host)

    def leave(self, job: str, now: float) -> None:
        """Note that a pilot of this job is gone."""
        self._left_at[job] = now

    def ended(self, job: str) -> JobEnd | None:
        """Return how a job ended, once the engine has answered; None until then. Each answer is
        used once: the next one may know more."""
        if job not in self._ended:
            self._ended[job] = self._ends.submit(self._engine.ended, job)
        return self._ended.pop(job).result() if self._ended[job].done() else None

    def may_submit(self, now: float) -> bool:
        """Return whether jobs may be requested now; not before it is known which there are."""
        return self.running is not None and self._submitted is None and now > self.not_before

    def submit(self, count: int, excluded_hosts: Collection[str]) -> None:
        hosts = self.unfit_hosts.union(excluded_hosts)
        self._submitted = self._thread.submit(self._engine.submit, count, hosts)

    def cancel(self, jobs: Collection[str]) -> Future[None]:
        return self._thread.submit(self._engine.cancel, jobs)

    def cancel_unseen(self, now: float) -> None:
        """End the jobs that wait in the engine's queue, since no run waits for them."""
        queued = [job for job in self.unseen if not (self.running or {}).get(job, True)]
        if queued:
            self.cancel(queued)
            self.not_before = now + ASK_S

    def end(self, cancel: bool) -> None:
        """Stop asking the engine. `cancel`: first end the jobs that wait in its queue."""
        if cancel:
            running = self.running or {}
            queued = {job for job, runs in running.items() if not runs}
            queued |= self._without_pilot() - running.keys()
            if queued:
                self.cancel(sorted(queued)).result()
        self.unseen, self.running, self._submitted = {}, None, None  # a second call has no jobs
        self._thread.shutdown(cancel_futures=True)
        self._ends.shutdown(wait=False, cancel_futures=True)

    def _without_pilot(self) -> set[str]:
        """Return the jobs without a pilot, among them those that the engine has not listed yet."""
        if self._submitted is None:
            return {*self.unseen}
        try:
            return {*self.unseen, *self._submitted.result()}
        except Failure:
            return {*self.unseen}
