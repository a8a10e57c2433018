"""Batches on their way to a device: in time, in order, and never from a buffer that is in use.

The device is a stand-in that makes a copy only when it is waited for, as a stream may: who reuses a
buffer too early, or reads a batch before it is there, gets other bytes.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ablate.data import batches
from ablate.data.batches import RING, Batches, CudaLink, Delivery, Feed
from ablate.data.draws import Draws
from ablate.data.splits import Split
from ablate.run.sections import Augment

CPU = torch.device("cpu")


def numbered(n: int) -> Split:
    """Image i is all i."""
    images = torch.arange(n, dtype=torch.uint8)[:, None, None, None].expand(n, 4, 4, 3)
    return Split(images.contiguous(), torch.arange(n), torch.ones(n))


class Slow:
    """A stream that copies nothing before somebody waits for it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._lock = threading.Lock()
        self._sent = 0

    def send(self, batch: Split) -> tuple[Split, Callable[[], None]]:
        parts = (batch.images, batch.labels, batch.aspects)
        copies = [torch.zeros_like(part) for part in parts]
        number, done = self._sent, []
        self._sent += 1
        self.told.append(f"send {number}")

        def copy(why: str) -> None:
            with self._lock:
                self.told.append(f"{why} {number}")
                if not done:
                    done.append(True)
                    for to, part in zip(copies, parts, strict=True):
                        to.copy_(part)

        return Split(*copies), copy

    def wait_sent(self, event: Any) -> None:
        event("sent")

    def receive(self, batch: Split, event: Any) -> None:
        event("receive")


def rows_of(number: int) -> torch.Tensor:
    return torch.arange(5 * number, 5 * number + 5)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_batch_arrives_whole_however_late_it_is_copied(threads):
    split, link = numbered(200), Slow()
    fed = Feed(lambda n: (split, rows_of(n), None), CPU, 40, threads, link)
    kept = []
    for number in range(40):
        kept.append(fed.fetch(number))
        assert torch.equal(kept[-1].labels, rows_of(number))
        assert torch.equal(kept[-1].images[:, 0, 0, 0].long(), rows_of(number))
    assert torch.cat([batch.labels for batch in kept]).tolist() == list(range(200))  # not reused
    told = link.told
    for number in range(40):
        assert told.index(f"send {number}") < told.index(f"receive {number}")
        if number + RING < 40:  # its buffer is free before it is filled again
            assert told.index(f"sent {number}") < told.index(f"send {number + RING}")


def test_a_link_keeps_labels_for_the_stream_of_the_steps(monkeypatch):
    """Steps read labels as they are, on the default stream, while all else of a batch is read on
    the stream that computes inputs."""
    streams: dict[str, list[Any]] = {"images": [], "labels": [], "aspects": []}
    parts = {name: SimpleNamespace(record_stream=streams[name].append) for name in streams}
    inputs = SimpleNamespace(wait_event=lambda event: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: inputs)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "steps")
    CudaLink(torch.device("cuda")).receive(SimpleNamespace(**parts), None)
    assert streams == {"images": [inputs], "labels": [inputs, "steps"], "aspects": [inputs]}


def test_a_shorter_last_batch_fits_and_nothing_is_asked_for_behind_it():
    split, asked = numbered(12), []

    def wanted(number):
        asked.append(number)
        return split, torch.arange(12).split(5)[number], None

    for link in (None, Slow()):
        asked.clear()
        fed = Feed(wanted, CPU, 3, link=link)
        assert torch.cat([fed.fetch(n).labels for n in range(3)]).tolist() == list(range(12))
        fed.close()
        assert asked == [0, 1, 2]


THREADS_AFTER_GATHERING = """
import os, threading, torch
from concurrent.futures import ThreadPoolExecutor
from ablate.data.splits import Split
torch.set_num_threads(4)
pixels = torch.zeros(4096, 32, 32, 3, dtype=torch.uint8)
split = Split(pixels, torch.zeros(4096, dtype=torch.int64), torch.ones(4096))
pool, all_started = ThreadPoolExecutor(4), threading.Barrier(4)
list(pool.map(lambda _: all_started.wait(), range(4)))
threads = os.listdir("/proc/self/task")
split.gather(torch.arange(4096), None, split.empty(4096, None), pool.map)
print(len(os.listdir("/proc/self/task")) - len(threads))
"""


@pytest.mark.whole
def test_threads_that_gather_start_no_others():
    """A team of OpenMP in each of 15 threads would be 60 spinning threads, and the thread that
    launches a GPU's kernels would have to wait for a core."""
    code = [sys.executable, "-c", THREADS_AFTER_GATHERING]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


@pytest.mark.parametrize(
    ("cores", "share", "launcher_gpus", "threads"),
    [
        (16, 1.0, 1, 15),  # a job has 16 of the cores, and one GPU
        (32, 1.0, 4, 7),  # or four, each with a run
        (32, 0.5, 4, 3),
        (64, 1.0, 1, 7),  # all cores: the host's other GPUs may be used, too
        (2, 1.0, 4, 1),
    ],
)
def test_the_gpus_of_a_job_share_its_cores(
    monkeypatch, tmp_path, cores, share, launcher_gpus, threads
):
    """On a host of 64 cores and 8 GPUs."""
    for gpu in range(8):
        (tmp_path / str(gpu)).mkdir()
    for name, value in (("HOST_GPUS", tmp_path), ("_gpu_share", 1.0), ("_launcher_gpus", 1)):
        monkeypatch.setattr(batches, name, value)
    monkeypatch.setattr(batches.os, "sched_getaffinity", lambda pid: range(cores))
    monkeypatch.setattr(batches.os, "cpu_count", lambda: 64)
    Batches.share_gpu(share, launcher_gpus)
    assert batches.gathering_threads(torch.device("cuda")) == threads


THREADS_OF_A_RUN = """
import os, sys, time
from contextlib import nullcontext
import torch
from ablate.data.batches import Batches, Feed
from ablate.data.splits import Split

class Slow(Split):
    def gather(self, rows, cut, out, map):
        list(map(lambda row: time.sleep(0.01), range(200)))

class Link:
    def send(self, batch): return batch, None
    def wait_sent(self, event): pass
    def receive(self, batch, event): pass

runs, cores = map(int, sys.argv[1:])
os.sched_getaffinity = lambda pid: range(cores)
split = Slow(torch.zeros(8, 2, 2, 3, dtype=torch.uint8), torch.zeros(8).long(), torch.ones(8))
threads = os.listdir("/proc/self/task")
Batches.share_gpu(1 / runs)
Feed(lambda n: (split, torch.arange(8), None), torch.device("cuda"), 1, link=Link()).fetch(0)
print(len(os.listdir("/proc/self/task")) - len(threads))
"""


@pytest.mark.whole
def test_runs_that_share_a_gpu_gather_by_no_more_threads_than_cores():
    """Three runs on 12 cores: each has a thread that launches kernels and three that gather. One
    more fetches, which waits while others gather."""
    code = [sys.executable, "-c", THREADS_OF_A_RUN, "3", "12"]
    processes = [subprocess.Popen(code, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    threads = [int(process.communicate()[0]) for process in processes]
    assert threads == [3 + 1] * 3


@pytest.mark.parametrize("bad", [2, 3])  # at either place of the ring
@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_comes_in_the_step_that_needed_the_batch(threads, bad):
    split = numbered(40)
    torn = int(rows_of(bad)[0])

    class Torn(Split):
        def gather(self, rows, *rest):
            if torn in rows.tolist():
                raise OSError(f"page {torn}")
            super().gather(rows, *rest)

    pages = Torn(**vars(split))
    fed = Feed(lambda n: (pages, rows_of(n), None), CPU, threads=threads, link=Slow())
    for number in range(bad):
        assert fed.fetch(number).labels.tolist() == rows_of(number).tolist()
    for _ in range(2):  # asked for again, it is tried again
        with pytest.raises(OSError, match=f"page {torn}"):
            fed.fetch(bad)
    assert fed.fetch(bad + 1).labels.tolist() == rows_of(bad + 1).tolist()


def test_a_batch_is_gathered_while_the_one_before_it_is_used():
    split, begun = numbered(40), threading.Event()

    def wanted(number):
        if number == 1:
            begun.set()
        return split, rows_of(number), None

    Feed(wanted, CPU, threads=1).fetch(0)
    assert begun.wait(60)


def test_threads_and_links_change_no_bit_of_a_training(monkeypatch):
    spec = Augment(flip=True, crop_pad=1, randaug=1, mixup=0.2, repeats=2)
    split = numbered(43)
    plain = Batches(split, 20, spec, Draws(0))
    for threads in (1, 2):
        monkeypatch.setattr(batches, "gathering_threads", lambda device, n=threads: n)
        fed = Batches(split, 20, spec, Draws(0), delivery=Delivery(ahead=True))
        resumed = Batches(split, 20, spec, Draws(0), delivery=Delivery(ahead=True))
        for step in (0, 1, 2, 5, 6, 0):
            for other in (fed, resumed) if step == 5 else (fed,):
                assert all(map(torch.equal, plain.at(step), other.at(step)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_same_on_a_gpu():
    split = numbered(200)
    fed = Feed(lambda n: (split, rows_of(n), None), torch.device("cuda"), 40, 3)
    seen = [fed.fetch(number).images[:, 0, 0, 0] for number in range(40)]
    assert torch.cat(seen).tolist() == list(range(200))
