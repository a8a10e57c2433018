"""From a step's number to its batch: which images, and how each is changed. Nothing is kept.

The data is uint8, on the device where it fits. An epoch's order hangs on (seed, epoch), what is
done to an image on (seed, what, step, its place in the global batch): so a resumed run sees the
batches that the uninterrupted one saw, and so do all variants of a seed.

Shapes: B images of a global batch, stored H x W, shown size x size, C channels; channels last.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from ablate.shared.errors import UserError
from ablate.shared.spec import Augment, Run
from ablate.training.data import augment as changes
from ablate.training.data.cached import Split
from ablate.training.keyed import Draws

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's channels, in [0, 1]
SHARE = 0.3  # of a device's free memory that a split may take


@dataclass(frozen=True)
class ImageView:
    """How an image is shown: its side in pixels, what 8 bits become, and what evaluation cuts, of
    the image or (`squeezed`) of its square."""

    size: int
    input: str = "range"
    crop: float = 1.0
    squeezed: bool = False

    @property
    def name(self) -> str:
        """What tells views of one dataset apart, as part of a file's name."""
        return f"{self.input}.{self.crop}" + ".squeezed" * self.squeezed

    @classmethod
    def of(cls, run: Run) -> ImageView:
        squeezed = run.eval.aspect == "squeeze"
        return cls(run.data.size, run.model.input, run.eval.crop, squeezed)

    def centred(self, images: torch.Tensor, aspects: torch.Tensor) -> torch.Tensor:
        """The central square of each image: uint8 (B, H, W, C) to (B, size, size, C)."""
        if self.crop == 1 and images.shape[1:3] == (self.size, self.size):
            return images
        boxes = changes.centre_boxes(
            torch.ones_like(aspects) if self.squeezed else aspects, self.crop
        )
        return changes.resize_area(images, boxes, self.size)


def order(draws: Draws, epoch: int, n: int) -> torch.Tensor:
    """int64 (n,): the permutation in which an epoch visits the examples."""
    return torch.randperm(n, generator=draws.at("order", epoch), device=draws.device)


def normalise(images: torch.Tensor, input: str = "range") -> torch.Tensor:
    """float32 from uint8, same shape: x / 127.5 - 1 (range), x / 255 (unit), or that by ImageNet's
    mean and standard deviation (imagenet)."""
    if input == "range":
        return images.to(torch.float32).div_(127.5).sub_(1)  # in place: twice as fast on a CPU
    values = images.to(torch.float32).div_(255)
    if input == "imagenet":
        values.sub_(values.new_tensor(MEAN)).div_(values.new_tensor(STD))
    return values


def resident(split: Split, device: torch.device) -> Split:
    """The split on the device, if it takes no more than SHARE of its free memory; else as it is."""
    if device.type != "cuda":
        return split.to(device)
    free, _ = torch.cuda.mem_get_info(device)
    return split.to(device) if split.images.nbytes <= SHARE * free else split


class Batches:
    """The global batches of a training: `batches.at(step)`.

    An epoch has floor(n / batch) steps; what is left over waits for another epoch's order. `draws`
    are on the device that trains; so is `split`, or else (`ahead`) each batch is fetched while the
    one before it is trained on.
    """

    def __init__(
        self,
        split: Split,
        batch: int,
        augment: Augment,
        draws: Draws,
        view: ImageView | None = None,
        ahead: bool = False,
    ) -> None:
        if batch > len(split):
            raise UserError(
                f"train.batch: {batch} is more than the {len(split)} training images; "
                f"give at most {len(split)}"
            )
        self.steps_per_epoch = len(split) // batch
        self._split = split
        self._batch = batch
        self._augment = augment
        self._draws = draws
        self._view = view or ImageView(split.images.shape[1])
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)
        self._fetcher = ThreadPoolExecutor(1) if ahead else None
        self._fetched: dict[int, Future[Split]] = {}

    def at(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """images float32 (B, size, size, C) as `view` says and labels int64 (B,) of step 0, 1..."""
        rows = self._get(step)
        images = change(rows.images, rows.aspects, self._augment, self._view, self._draws, step)
        images = normalise(images, self._view.input)
        if self._augment.erase:
            generator = self._draws.at("erase", step)
            images = changes.random_erasing(images, generator, self._augment.erase)
        return images, rows.labels

    def mixed(
        self, images: torch.Tensor, targets: torch.Tensor, step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """mixup and cutmix of the global batch: images as they come, targets (B, classes)."""
        generator = self._draws.at("mix", step)
        mixup, cutmix = self._augment.mixup, self._augment.cutmix
        own = changes.kept(images.shape[1], images.shape[2], generator, mixup, cutmix)
        return changes.mix(images, targets, own)

    def _get(self, step: int) -> Split:
        """The stored rows of a step, on the device."""
        if self._fetcher is None:
            return self._split.take(self._rows(step))
        fetched = self._fetched.get(step) or self._fetch(self._fetcher, step)
        self._fetched = {step + 1: self._fetch(self._fetcher, step + 1)}
        return fetched.result().to(self._draws.device)

    def _fetch(self, fetcher: ThreadPoolExecutor, step: int) -> Future[Split]:
        rows = self._rows(step).to(self._split.images.device)
        return fetcher.submit(lambda: self._split.take(rows).pinned())

    def _rows(self, step: int) -> torch.Tensor:
        """Which examples a step sees: with `repeats` r some B / r of them, one after the other and
        then again, so that neighbours are different images. (DeiT's sampler, deit/samplers.py,
        deals the copies of an image out to different devices.)"""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = order(self._draws, epoch, len(self._split)), epoch
        distinct = -(-self._batch // self._augment.repeats)
        rows = self._order[place * distinct : (place + 1) * distinct]
        return rows.repeat(self._augment.repeats)[: self._batch]


def change(
    images: torch.Tensor,
    aspects: torch.Tensor,
    spec: Augment,
    view: ImageView,
    draws: Draws,
    step: int,
) -> torch.Tensor:
    """Crop, flip, shake, jitter, RandAugment, as `spec` says, each image of the global batch by
    draws of its own: uint8 (B, H, W, C) to (B, size, size, C).

    Each has a key of its own, so that turning one on moves no other.
    """
    if spec.crop_area is None:
        images = view.centred(images, aspects)
    else:
        boxes = changes.inception_boxes if spec.style == "tf" else changes.resized_crop_boxes
        area = (spec.crop_area, 1.0)
        chosen = boxes(aspects, draws.at("crop", step), area)
        images = changes.crop_and_resize(images, chosen, view.size)
    images = augment(images, spec, draws, step)
    images = shaken(images, spec, draws.at("shake", step))
    if spec.jitter:
        images = changes.colour_jitter(images, spec.jitter, draws.at("jitter", step))
    if spec.randaug:
        generator = draws.at("randaug", step)
        if spec.style == "tf":
            return changes.tf_randaugment(
                images, generator, spec.randaug, spec.randaug_magnitude, spec.randaug_levels
            )
        fill = images.new_tensor([round(255 * mean) for mean in MEAN])
        return changes.timm_randaugment(
            images,
            generator,
            fill if view.input == "imagenet" else 128,
            spec.randaug_magnitude,
            layers=spec.randaug,
        )
    return images


def shaken(images: torch.Tensor, spec: Augment, generator: torch.Generator) -> torch.Tensor:
    """Rotated, moved and zoomed out as `spec` says: uint8 (B, H, W, C) to the same."""
    if not (spec.rotate or spec.translate or spec.zoom_out):
        return images
    return changes.shake(images, generator, spec.rotate, spec.translate, spec.zoom_out)


def augment(images: torch.Tensor, spec: Augment, draws: Draws, step: int) -> torch.Tensor:
    """Each image of the global batch flipped with probability 1/2, then zero-padded and cropped
    back at a random offset, as `spec` says: uint8 (B, H, W, C) to the same.

    All draws are made whatever `spec` asks for, so that turning the flip on moves no crop.
    """
    if not spec.flip and not spec.crop_pad:
        return images
    uniform = torch.rand((3, len(images)), generator=draws.at("augment", step), device=draws.device)
    flip = (uniform[0] < 0.5) & spec.flip
    if not spec.crop_pad:
        return changes.flip(images, flip)
    # float32 U[0, 1) times k never rounds up to k: 1 - 2^-24 is as far as U goes.
    offset = (uniform[1:] * (2 * spec.crop_pad + 1)).long()
    return flip_and_crop(images, flip, offset[0], offset[1], spec.crop_pad)


def flip_and_crop(
    images: torch.Tensor, flip: torch.Tensor, top: torch.Tensor, left: torch.Tensor, pad: int
) -> torch.Tensor:
    """Image b, mirrored where flip[b], zero-padded by `pad`, cropped at (top[b], left[b]).

    uint8 (B, H, W, C) to the same; flip bool (B,), top and left int64 (B,) in 0..2 pad.
    One gather of image rows: padded images, and behind them their mirror images, are seen as a
    matrix whose row r is the W*C bytes from pixel r on (its rows overlap), and index_select, which
    copies such a row at once, takes H rows for each image. Indexing windows and torch.where go
    byte by byte: 5 times slower on a CPU.
    """
    batch, height, width, channels = images.shape
    tall, wide = height + 2 * pad, width + 2 * pad
    padded = images.new_zeros((2, batch, tall, wide, channels))
    inner = padded[:, :, pad : pad + height, pad : pad + width]
    inner[0] = images
    inner[1] = images.flip(2)
    pixels = 2 * batch * tall * wide
    windows = padded.as_strided((pixels - width + 1, width * channels), (channels, 1))
    image = torch.arange(batch, device=images.device) + batch * flip
    line = (image * tall + top)[:, None] + torch.arange(height, device=images.device)
    first = line * wide + left[:, None]
    return windows.index_select(0, first.view(-1)).view(images.shape)


BLOCK = 500  # images that share a draw's key, when a set is shaken once for all


def shaken_once(split: Split, spec: Augment) -> Split:
    """A set for evaluation, shaken as in training: by an image's place in it alone, so that it is
    the same set in every run, whatever its seed."""
    draws = Draws(0, split.images.device)
    rest = -len(split) % BLOCK  # the last block is filled up: as many draws for it as for others
    filled = torch.cat([split.images, split.images.new_zeros((rest, *split.images.shape[1:]))])
    blocks = [
        shaken(block, spec, draws.at("evaluation", number))
        for number, block in enumerate(filled.split(BLOCK))
    ]
    return Split(torch.cat(blocks)[: len(split)], split.labels, split.aspects)


def evaluation_batches(
    split: Split, size: int, view: ImageView | None = None, device: torch.device | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Every example once, in stored order, its centre: images float32 (<= size, H, W, C) as `view`
    says, and labels int64; the last batch may be smaller."""
    view = view or ImageView(split.images.shape[1])
    for start in range(0, len(split), size):
        rows = split.take(slice(start, start + size)).to(device or split.images.device)
        yield normalise(view.centred(rows.images, rows.aspects), view.input), rows.labels
