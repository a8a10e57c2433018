"""The batch of a step, from the step's number alone: which images, and how each is changed.

The data is uint8, on the device where it fits. The order of an epoch depends on (seed, epoch). The
changes of an image depend on (seed, kind of change, step, row in the global batch). So no state is
kept: a resumed run sees the batches that the uninterrupted one saw, and so do all variants of a
seed, on any device.

Shapes: B images of a global batch, stored H x W, shown size x size, C channels; channels last.

Where the data isn't on the device that trains, each batch is gathered and sent while the one before
it is trained on.

One thread fetches one batch after another. Other threads, as many as there are cores for, decode or
copy its rows into one of RING pinned buffers; a stream of its own copies the buffer to the device.
There are only two waits: the step waits, on the device, for the copy; the thread waits for a buffer
until the last copy from it is made. Each row has its place, so the speed of the threads changes no
bit.

Used by `training/loop.py`, `training/training.py` and `training/task/`, in the workers of
`ablate sweep`. A change of the order or of what is drawn also needs `DRAWS` in `run/spec.py`
raised.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate.data.augment import colour, layout, mix
from ablate.data.draws import Draws
from ablate.data.image_changes import Change, ImageView, changes_of, erasing, in_blocks, normalise
from ablate.data.picture_crop import Cut, Cuts, MaskedCuts, pixels
from ablate.data.splits import AnySplit, EncodedSplit, MaskedSplit, Split
from ablate.run import Augment
from ablate.shared import UserError

AHEAD = 1  # batches fetched beyond the current one
RING = AHEAD + 1  # buffers: one is filled while the other is sent

BatchRequest = tuple[AnySplit, Tensor, Cut | None]  # the split, its rows, and their cut


class CudaLink:
    """Sends batches from pinned memory to a GPU, on a stream of its own, so that a copy overlaps
    with the kernels of a step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def send(self, batch: Split) -> tuple[Split, torch.cuda.Event]:
        """Start the copy of a batch to the device. Returns, without waiting, the batch on the
        device and an event that marks the end of the copy."""
        # A thread begins on GPU 0, where leaving the stream would open a context for another GPU.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            device_batch, event = batch.to(self._device), torch.cuda.Event(blocking=True)
            event.record(self._stream)
        return device_batch, event

    def wait_sent(self, event: torch.cuda.Event) -> None:
        """Wait until that copy is made: then its buffer is free."""
        event.synchronize()

    def receive(self, batch: Split, event: torch.cuda.Event) -> None:
        """Make the device wait for the copy before it runs later kernels."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for part in (batch.images, batch.labels, batch.aspects):
            part.record_stream(stream)  # its memory was taken by the other stream
        # A step reads labels as they are, on the default stream, and `stream` may be that of
        # training/inputs_ahead.py.
        batch.labels.record_stream(torch.cuda.default_stream(self._device))


class Feed:
    """The batches that `request_of(number)` describes, each on the device: `fetch(number)` returns
    one.

    Numbers may come in any order; the next one costs least. `end` is one more than the last.
    `request_of` is called by one thread at a time. An error in making a batch is raised by the
    `fetch` that wants it.
    """

    def __init__(
        self,
        request_of: Callable[[int], BatchRequest],
        device: torch.device,
        end: int | None = None,
        threads: int | None = None,
        link: CudaLink | None = None,
    ) -> None:
        self._request_of, self._end = request_of, end
        self._link = CudaLink(device) if link is None and device.type == "cuda" else link
        threads = gathering_threads(device) if threads is None else threads
        self._map = _threads("gather", threads, os.getpid()).map if threads > 1 else map
        self._fetcher = _threads("fetch", 1, os.getpid())
        self._coming: dict[int, Future[tuple[Split, Any]]] = {}
        self._buffers: list[tuple[Split, Any]] = []  # in a link's ring: its copy's event with each
        self._gathered = 0

    def fetch(self, number: int) -> Split:
        """Return a batch, and begin to fetch the next. Raises the error that gathering it
        raised."""
        last_number = number + AHEAD if self._end is None else min(number + AHEAD, self._end - 1)
        self._coming = {
            n: self._coming.get(n) or self._fetcher.submit(self._bring, n)
            for n in range(number, last_number + 1)
        }
        batch, event = self._coming.pop(number).result()
        if self._link is not None:
            self._link.receive(batch, event)
        return batch

    def close(self) -> None:
        """Cancel the batches that are not begun: no more are needed."""
        for coming in self._coming.values():
            coming.cancel()

    def _bring(self, number: int) -> tuple[Split, Any]:
        split, rows, cut = self._request_of(number)
        if self._link is None:
            batch = split.empty(len(rows), cut)
            split.gather(rows, cut, batch, self._map)
            return batch, None
        place, self._gathered = self._gathered % RING, self._gathered + 1
        buffer = self._buffer(place, split, rows, cut)
        try:
            split.gather(rows, cut, buffer, self._map)
        except BaseException:
            self._buffers, self._gathered = [], 0  # other threads may still write to this one
            raise
        device_batch, event = self._link.send(buffer)
        self._buffers[place] = (self._buffers[place][0], event)
        return device_batch, event

    def _buffer(self, place: int, split: AnySplit, rows: Tensor, cut: Cut | None) -> Split:
        """Return the buffer `place` of the ring, cut to the length of `rows`. Waits until the last
        copy from it is made; makes a new one where it is missing or too short."""
        if place < len(self._buffers):
            buffer, event = self._buffers[place]
            if event is not None:
                self._link.wait_sent(event)  # type: ignore[union-attr]
            if len(buffer) >= len(rows):
                return buffer.take(slice(0, len(rows)))
        buffer = split.empty(len(rows), cut, pinned=torch.cuda.is_available())
        self._buffers[place : place + 1] = [(buffer, None)]
        return buffer


@functools.cache
def _threads(prefix: str, number: int, process: int) -> ThreadPoolExecutor:
    """Return a pool of `number` threads, shared by all feeds of a process, since malloc keeps for
    each thread the memory that it once took.

    `process` is part of the key: a forked process has none of its parent's threads.
    """
    return ThreadPoolExecutor(number, prefix)


_gpu_share = 1.0  # of a GPU and its cores, which other processes use, too
_launcher_gpus = 1  # GPUs of the launcher, whose workers share its cores
HOST_GPUS = Path("/proc/driver/nvidia/gpus")  # a folder for each


def gathering_threads(device: torch.device) -> int:
    """Return how many threads gather batches: on a CPU as many as train; else this process's share
    of the GPU's cores, less one, which launches kernels.

    Where a job has part of the host's cores, its GPUs share them; else all GPUs of the host do.
    """
    if device.type == "cpu":
        return torch.get_num_threads()
    cores, gpus = len(os.sched_getaffinity(0)), _launcher_gpus
    if cores == os.cpu_count():
        gpus = max(gpus, len([*HOST_GPUS.glob("*")]))
    return max(1, int(cores // gpus * _gpu_share) - 1)


Extra = Callable[[Tensor, Draws, int], Tensor]
SHARE = 0.3  # of a device's free memory that a split may take


def has_masks(split: AnySplit) -> bool:
    """Return whether the label of an image is a mask."""
    return isinstance(split, MaskedSplit) or (isinstance(split, Split) and split.labels.ndim == 3)


def _image_pixels(extents: Tensor, size: int) -> Tensor:
    """Return bool (B, size, size): whether a pixel lies in the first rows and columns, as many as
    `extents` (B, 2) has."""
    tall, wide = (layout.count(size, extents.device) < extents[:, side, None] for side in (0, 1))
    return tall[:, :, None] & wide[:, None, :]


def whole_square(split: AnySplit) -> ImageView:
    """Return the view that shows stored squares as they are."""
    assert isinstance(split, Split)  # whole images have no size in common
    return ImageView(split.images.shape[1])


def resident_split(split: AnySplit, device: torch.device) -> AnySplit:
    """Return the split on the device, if it takes no more than SHARE of the memory that is free for
    this process; else as it is."""
    if isinstance(split, EncodedSplit):
        return split
    if device.type != "cuda":
        return split.to(device)
    free, total = torch.cuda.mem_get_info(device)
    allowed = total * torch.cuda.get_per_process_memory_fraction(device)  # other runs have the rest
    room = min(free, allowed - torch.cuda.memory_reserved(device))
    return split.to(device) if split.images.nbytes <= SHARE * room else split


def _in_a_row(numbers: Iterable[int]) -> list[list[int]]:
    """Split the numbers into lists of consecutive ones."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] + 1 == number:
            parts[-1].append(number)
        else:
            parts.append([number])
    return parts


@dataclass(frozen=True)
class Delivery:
    """How the batches reach the process that trains on them.

    `ahead`: each is fetched while the one before it is trained on; else the split is on the device
    that trains. `rows`: the rows of each global batch that this process gets, where other processes
    have the rest; None: all rows. `sum_over_rows` then sums a count over all rows.
    """

    ahead: bool = False
    rows: slice | None = None
    sum_over_rows: Callable[[Tensor], Tensor] = lambda count: count


class Batches:
    """The global batches of a training: `batches.at(step)`.

    An epoch has floor(n / batch) steps; the images left over wait for another epoch's order.
    `draws` are on the device that trains. Encoded images are always fetched ahead, as crops. The
    label of an image is a class, or a mask.
    """

    @staticmethod
    def share_gpu(share: float, launcher_gpus: int = 1) -> None:
        """Gather batches for a GPU by this share of its cores from now on, in this process: other
        runs on it use the rest. `launcher_gpus`: the number of GPUs that share the cores of this
        process, its own included."""
        global _gpu_share, _launcher_gpus
        _gpu_share, _launcher_gpus = share, launcher_gpus

    def __init__(
        self,
        split: AnySplit,
        batch: int,
        augment: Augment,
        draws: Draws,
        view: ImageView | None = None,
        extra: Extra | None = None,
        delivery: Delivery = Delivery(),
    ) -> None:
        """`extra`: a change of the levels of a whole batch, uint8 to float32, at a step. Raises
        UserError where a batch has more images than the split."""
        if batch > len(split):
            raise UserError(
                f"train.batch: {batch} is more than the {len(split)} training images; "
                f"give at most {len(split)}"
            )
        self.steps_per_epoch = len(split) // batch
        self.split = split
        self.size = batch
        self._augment = augment
        self._draws = draws
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)
        self._on_host = Draws(draws.seed)
        self._cut: Callable[[Tensor, int], Cut] | None = None
        self._view = view or whole_square(split)
        if isinstance(split, EncodedSplit):
            host = Draws(draws.seed)
            if isinstance(split, MaskedSplit):
                self._cut = MaskedCuts(self._view.size, augment, host)
            else:
                self._cut = Cuts(split.shapes, self._view.centre, augment, host)
            self._view, self._augment = self._view.without_crop, replace(augment, crop_area=None)
        self._feed: Feed | None = None
        if delivery.ahead or self._cut is not None:
            self._feed = Feed(self._request, draws.device)
        self._extra = extra
        self.rows = slice(0, batch) if delivery.rows is None else delivery.rows
        self.sum_over_rows = delivery.sum_over_rows
        mixes_images = bool(augment.mixup or augment.cutmix)
        places = list(range(self.rows.start, self.rows.stop))
        if mixes_images and not self._is_whole:
            # Each image is mixed with the one before it in the batch, so that one is read, too.
            places.insert(0, (self.rows.start - 1) % batch)
        self._places = torch.tensor(places)
        read_rows = range(batch) if extra else places
        self._read_spans = [slice(part[0], part[-1] + 1) for part in _in_a_row(read_rows)]

    @property
    def _is_whole(self) -> bool:
        return self.rows == slice(0, self.size)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the batch of `step` (0, 1, ...): images float32 (B, size, size, C), scaled as
        `view` says, and labels int64 (B,).

        With masks the labels are int64 (B, size, size), and an image is 0 where it is padded. With
        a share of the rows the batch has only these; if images are mixed, the row before them comes
        first, as `mixed` needs it.
        """
        rows = self._get(step)
        images = rows.images
        if has_masks(rows):
            return self._with_masks(rows, step)
        aspects = rows.aspects
        if len(aspects) < self.size:  # what is drawn is drawn for all
            aspects = aspects.new_ones(self.size)
            aspects[
                torch.cat([torch.arange(part.start, part.stop) for part in self._read_spans])
            ] = rows.aspects
        changes = changes_of(aspects, self._augment, self._view, self._draws, step)
        if self._extra:  # it sees the whole batch
            images, changes = self._extra(self._through(images, changes), self._draws, step), []
        changes.append(lambda images, rows: normalise(images, self._view.input))
        if self._augment.erase:
            changes.append(erasing(self.size, self._augment.erase, self._draws, step))
        images, labels = self._through(images, changes), rows.labels
        if len(images) > len(self._places):
            images, labels = (part[self._places.to(part.device)] for part in (images, labels))
        return images, labels

    def _through(self, images: Tensor, changes: Sequence[Change]) -> Tensor:
        """Return the images that were read, after all changes in `changes`."""
        parts = images.split([part.stop - part.start for part in self._read_spans])
        changed = [
            in_blocks(some, changes, part.start)
            for some, part in zip(parts, self._read_spans, strict=True)
        ]
        return changed[0] if len(changed) == 1 else torch.cat(changed)

    def _with_masks(self, rows: Split, step: int) -> tuple[Tensor, Tensor]:
        images = rows.images
        if self._augment.photometric:
            uniform = self._draws.uniform("photometric", step, colour.PHOTOMETRIC, self.size)
            images = colour.photometric(images, uniform[:, self.rows])
        values = normalise(images, self._view.input)
        return values.mul_(
            _image_pixels(rows.aspects, images.shape[1])[..., None]
        ), rows.labels.long()

    def mixed(self, images: Tensor, targets: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Mix the images and the targets (B, classes) of a batch, as `at` returns its images, by
        mixup and cutmix of the global batch."""
        height, width = images.shape[1:3]
        shares = mix.own_shares(height, width, self._mixture(step, images))
        return mix.mix(images, targets, shares, self._is_whole)

    def _mixture(self, step: int, images: Tensor) -> Tensor:
        """Return the mixture of a step on the device, float64 (5,), computed on the host: see
        `mix.Mixture`."""
        height, width = images.shape[1:3]
        strengths = self._augment.mixup, self._augment.cutmix

        def draw(steps: int) -> Tensor:
            uniforms_by_step = self._on_host.precise("mix", step, mix.MIXTURE, steps).tolist()
            mixtures = [
                mix.mixture(height, width, uniforms, *strengths) for uniforms in uniforms_by_step
            ]
            return torch.tensor(mixtures, dtype=torch.float64).to(self._draws.device)

        return self._draws.ahead("mix", step, 2 * mix.MIXTURE, draw)

    def _get(self, step: int) -> Split:
        """Return the stored rows of a step, on the device."""
        if self._feed is not None:
            return self._feed.fetch(step)
        split, rows, _ = self._request(step)
        assert isinstance(split, Split)
        return split.take(rows)

    def _request(self, step: int) -> BatchRequest:
        rows = self._rows(step)
        cut = None if self._cut is None else self._cut(rows, step)
        if self._is_whole or self._extra:
            return self.split, rows, cut
        return self.split, rows[self._places], None if cut is None else cut.take(self._places)

    def _rows(self, step: int) -> Tensor:
        """Return the stored rows that a step sees, int64 (B,), in their order in the global batch.

        With `repeats` r these are B / r different images (rounded up), one after another and then
        again, so that neighbours are different images. (DeiT's sampler, deit/samplers.py, sends the
        copies of an image to different devices.)
        """
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            order = self._on_host.order(epoch, len(self.split))
            self._order, self._epoch = order.to(self.split.device), epoch
        distinct = -(-self.size // self._augment.repeats)
        rows = self._order[place * distinct : (place + 1) * distinct]
        if distinct == self.size:
            return rows
        return rows.repeat(self._augment.repeats)[: self.size]


def evaluation_batches(
    split: AnySplit,
    size: int,
    view: ImageView | None = None,
    device: torch.device | None = None,
    share: Callable[[int], slice] = slice,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every example once, in stored order: central squares float32 (<= size, H, W, C), scaled
    as `view` says, and labels int64. The last batch may be smaller.

    With masks it yields one whole image at a time, and its mask uint8 (1, H, W). `share(n)`: the
    slice of n batches to yield.
    """
    view = view or whole_square(split)
    if has_masks(split):
        for row in range(len(split))[share(len(split))]:
            if isinstance(split, MaskedSplit):
                image, mask = pixels(split.picture(row)), torch.from_numpy(split.mask(row))
            else:  # random images, to tell what one takes
                assert isinstance(split, Split)
                image, mask = split.images[row], split.labels[row]
            yield normalise(image[None].to(device), view.input), mask[None].to(device)
        return
    firsts = range(0, len(split), size)
    firsts = firsts[share(len(firsts))]
    if isinstance(split, Split) and split.device == (device or split.device):
        parts: Iterator[Split] = (split.take(slice(n, n + size)) for n in firsts)
    else:
        cut = view.centre if isinstance(split, EncodedSplit) else None
        parts = _fed(split, firsts, cut, device or split.device)
        view = view if cut is None else view.without_crop
    for rows in parts:
        yield normalise(view.centred(rows.images, rows.aspects), view.input), rows.labels


def _fed(split: AnySplit, firsts: range, cut: Cut | None, device: torch.device) -> Iterator[Split]:
    """Yield the rows from each of the `firsts` on, on the device, each part fetched while the one
    before it is used."""
    rows = torch.arange(len(split))
    parts = [rows[start : start + firsts.step] for start in firsts]
    feed = Feed(lambda number: (split, parts[number], cut), device, len(parts))
    try:
        for number in range(len(parts)):
            yield feed.fetch(number)
    finally:
        feed.close()
