"""Batches on their way to the device that trains: each is gathered, and sent, while the one before
it is trained on.

A thread asks for one batch after the other. Others, as many as there are cores for, decode or copy
its rows into one of RING pinned buffers; a stream of its own copies that to the device. Nobody
waits but for what is needed: the step for the copy, on the device's side; the thread for a buffer
from which the last copy is still being made. Which thread was the faster changes no bit: each row
has its place.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate.data.picture_crop import Cut
from ablate.data.splits import AnySplit, Split

AHEAD = 1  # batches beyond the one that is asked for
RING = AHEAD + 1  # buffers: one is filled while the other is sent

Wanted = tuple[AnySplit, Tensor, Cut | None]  # of which split, which rows, cut how


class CudaLink:
    """Brings batches from pinned memory to a GPU, by a stream of its own: so a copy runs beside the
    kernels of a step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def send(self, batch: Split) -> tuple[Split, torch.cuda.Event]:
        """The batch as it will be on the device, and an event: when it is. Waits for nothing."""
        with torch.cuda.stream(self._stream):
            there, event = batch.to(self._device), torch.cuda.Event(blocking=True)
            event.record(self._stream)
        return there, event

    def sent(self, event: torch.cuda.Event) -> None:
        """Waits until that copy is made: then its buffer is free."""
        event.synchronize()

    def receive(self, batch: Split, event: torch.cuda.Event) -> None:
        """Has the device wait for the copy, before it goes on with what it is told next."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for part in (batch.images, batch.labels, batch.aspects):
            part.record_stream(stream)  # its memory was taken by the other stream


class Feed:
    """The batches that `wanted(number)` describes: `at(number)` is one, on the device.

    Any number may be asked for, the next one costs least; `end` is behind the last. `wanted` is
    called by one thread at a time. What goes wrong with a batch is raised where it is asked for.
    """

    def __init__(
        self,
        wanted: Callable[[int], Wanted],
        device: torch.device,
        end: int | None = None,
        threads: int | None = None,
        link: CudaLink | None = None,
    ) -> None:
        self._wanted, self._end = wanted, end
        self._link = CudaLink(device) if link is None and device.type == "cuda" else link
        threads = gathering_threads(device) if threads is None else threads
        self._each = _threads("gather", threads, os.getpid()).map if threads > 1 else map
        self._fetcher = _threads("fetch", 1, os.getpid())
        self._coming: dict[int, Future[tuple[Split, Any]]] = {}
        self._buffers: list[tuple[Split, Any]] = []  # in a link's ring: its copy's event with each
        self._gathered = 0

    def at(self, number: int) -> Split:
        """Raises what gathering it did."""
        last = number + AHEAD if self._end is None else min(number + AHEAD, self._end - 1)
        self._coming = {
            n: self._coming.get(n) or self._fetcher.submit(self._bring, n)
            for n in range(number, last + 1)
        }
        batch, event = self._coming.pop(number).result()
        if self._link is not None:
            self._link.receive(batch, event)
        return batch

    def close(self) -> None:
        """Nothing more is asked for."""
        for coming in self._coming.values():
            coming.cancel()

    def _bring(self, number: int) -> tuple[Split, Any]:
        split, rows, cut = self._wanted(number)
        if self._link is None:
            batch = split.empty(len(rows), cut)
            split.gather(rows, cut, batch, self._each)
            return batch, None
        place, self._gathered = self._gathered % RING, self._gathered + 1
        buffer = self._buffer(place, split, rows, cut)
        try:
            split.gather(rows, cut, buffer, self._each)
        except BaseException:
            self._buffers, self._gathered = [], 0  # other threads may still write to this one
            raise
        there, event = self._link.send(buffer)
        self._buffers[place] = (self._buffers[place][0], event)
        return there, event

    def _buffer(self, place: int, split: AnySplit, rows: Tensor, cut: Cut | None) -> Split:
        """One of the ring, as long as `rows`, once nothing is copied from it any more."""
        if place < len(self._buffers):
            whole, event = self._buffers[place]
            if event is not None:
                self._link.sent(event)  # type: ignore[union-attr]
            if len(whole) >= len(rows):
                return whole.take(slice(0, len(rows)))
        whole = split.empty(len(rows), cut, pinned=torch.cuda.is_available())
        self._buffers[place : place + 1] = [(whole, None)]
        return whole


@functools.cache
def _threads(what: str, number: int, process: int) -> ThreadPoolExecutor:
    """The same for all feeds of a process: malloc keeps for each thread what it once took. A
    process that was forked has none of its parent's threads."""
    return ThreadPoolExecutor(number, what)


def gathering_threads(device: torch.device) -> int:
    """On a CPU as many as train; else this GPU's share of the cores, but one, which launches."""
    if device.type == "cpu":
        return torch.get_num_threads()
    gpus = len([*Path("/proc/driver/nvidia/gpus").glob("*")]) or 1
    return max(1, len(os.sched_getaffinity(0)) // gpus - 1)
