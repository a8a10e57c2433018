"""The jobs of an engine, as the driver knows them: what a site refuses, and jobs that it lists
late. Engines are stand-ins, and the clock is the test's own."""

import contextlib
import itertools

import pytest

from ablate.running.launchers.jobs import AGAIN_S, MOST_UNSEEN, JobEnd, Jobs
from ablate.shared.errors import Failure


class Full:
    """An engine with one job, which refuses any other while `reason` is not empty."""

    silence = ""

    def __init__(self) -> None:
        self.reason, self.asked = "too many jobs", 0
        self.listed, self.end = {"1": True}, JobEnd("CANCELLED", "lost")

    def submit(self, count: int, excluded_hosts: object) -> list[str]:
        self.asked += 1
        if self.reason:
            raise Failure(self.reason)
        return ["2"]

    def states(self) -> dict[str, bool]:
        return self.listed

    def ended(self, job: str) -> JobEnd:
        return self.end

    def log(self, job: str) -> str:
        return job


def test_a_refusal_is_said_once_and_asked_again_after_ever_longer_waits():
    full = Full()
    jobs = Jobs("slurm", full)  # type: ignore[arg-type]
    times: list[float] = []

    def drive(until: float, begin: float) -> None:
        now = begin
        while now < until:
            jobs.hear({"1"}, True, now)
            if jobs.may_submit(now):
                times.append(now)
                jobs.submit(1, ())
                jobs._submitted.exception(5)
            now += 5

    drive(3000, 0)
    assert len(jobs.lines) == 1
    assert "too many jobs" in jobs.lines[0]
    waits = [later - now for now, later in itertools.pairwise(times)]
    assert waits[0] >= AGAIN_S
    assert all(later >= 1.8 * now for now, later in itertools.pairwise(waits))
    full.reason = "closed for repair"
    drive(12_000, 3000)
    assert len(jobs.lines) == 2
    full.reason, before = "", full.asked
    drive(24_000, 12_000)
    assert full.asked > before + 2  # accepted: asked as before
    jobs.end(cancel=False)


def test_a_refusal_ends_no_sweep_while_a_host_is_silent():
    """The silent host may be back, and its pilots are given up meanwhile."""
    for silence, ends in ((" (no route to two)", False), ("", True)):
        full = Full()
        full.silence, full.listed = silence, {}
        jobs = Jobs("ssh", full)  # type: ignore[arg-type]
        jobs.submit(1, ())
        jobs._submitted.exception(5)
        with pytest.raises(Failure) if ends else contextlib.nullcontext():
            jobs.hear((), False, 0.0)
        assert ends or jobs.lines


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"listed": {"1": True}}, {"listed": {}}),
        ({"silence": " (no route to two)"}, {"silence": ""}),
    ],
    ids=["a job has ended", "a host is back"],
)
def test_what_leaves_room_is_followed_by_a_request_at_once(before, after):
    full = Full()
    vars(full).update(before)
    jobs = Jobs("ssh", full)  # type: ignore[arg-type]
    times: list[float] = []
    for now in range(0, 1010, 5):
        jobs.hear({"1"}, True, now)
        if jobs._states_answer is not None:
            jobs._states_answer.result(5)
        if jobs.may_submit(now):
            times.append(now)
            jobs.submit(1, ())
            jobs._submitted.exception(5)
        if now == 960:
            vars(full).update(after)
    [again] = [now for now in times if now > 960]  # the next would be later than 1800
    assert again <= 980
    jobs.end(cancel=False)


def test_a_job_that_is_listed_late_has_not_ended():
    """As `bjobs` does, which answers from what it knew before; asked again, it knows nothing."""
    late = Full()
    late.reason, late.listed, late.end = "", {}, JobEnd()
    jobs = Jobs("lsf", late)  # type: ignore[arg-type]

    def drive(begin: int, end: int) -> None:
        for now in range(begin, end, 5):
            jobs.hear((), True, now)
            if jobs._states_answer is not None:
                jobs._states_answer.result(5)
            for answer in [*jobs._ended.values()]:
                answer.result(5)

    jobs.submit(1, ())
    jobs._submitted.result(5)
    drive(0, 25)
    assert jobs.unseen.keys() == {"2"}
    late.listed = {"2": False}
    drive(25, 60)
    assert jobs.unseen.keys() == {"2"}
    assert jobs.lines == []
    late.listed = {}
    drive(60, 90)
    assert jobs.unseen == {}
    assert len(jobs.lines) == 1
    jobs.end(cancel=False)


def test_a_job_without_a_slot_is_one_failure_and_its_host_is_left_out():
    """Whatever its pilots say of how many GPUs. Three such jobs in a row are too many."""
    full = Full()
    jobs = Jobs("slurm", full)  # type: ignore[arg-type]

    def drive() -> None:
        for now in (0, 6):  # asked, and answered
            jobs.hear({"1"}, False, now)
            jobs._states_answer.result(5)

    for job, host in (("2", "n2"), ("3", "n3")):
        jobs.meet(job, host, [f"{host}/gpu:{n}: not used: a fault" for n in range(4)], False)
        jobs.meet(job, host, [], False)  # later beats
    assert (len(jobs.lines), [*jobs.failures], jobs.unfit_hosts) == (8, ["2", "3"], {"n2", "n3"})
    drive()
    jobs.meet("4", "n4", ["n4/gpu:0: not used: a fault"], True)  # it has others
    assert (jobs.failures, jobs.unfit_hosts) == ({}, {"n2", "n3"})
    for number in range(MOST_UNSEEN):
        jobs.meet(f"1{number}", "n5", ["n5/gpu:0: not used: a fault"], False)
    with pytest.raises(Failure) as ended:
        drive()
    assert "n5/gpu:0" in str(ended.value)
    jobs.end(cancel=False)


def test_a_refusal_for_the_hosts_that_are_left_out_says_why_they_are():
    full = Full()
    full.listed = {}
    jobs = Jobs("slurm", full)  # type: ignore[arg-type]
    jobs.meet("1", "n1", ["n1/gpu:0: not used: a fault"], False)
    jobs.submit(1, ())
    jobs._submitted.exception(5)
    with pytest.raises(Failure) as refused:
        jobs.hear((), False, 0.0)
    for reason in ("n1/gpu:0", full.reason):
        assert reason in str(refused.value)


class Queue:
    """An engine that takes jobs, and starts none."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def submit(self, count, excluded_hosts):
        return [str(number) for number in range(count)]

    def cancel(self, jobs):
        self.cancelled += jobs


@pytest.mark.parametrize("cancel", [True, False])
def test_a_job_that_no_answer_lists_yet_goes_when_its_sweep_ends(cancel):
    queue = Queue()
    jobs = Jobs("own", queue)  # type: ignore[arg-type]
    jobs.submit(2, ())
    jobs.end(cancel)
    assert queue.cancelled == (["0", "1"] if cancel else [])
