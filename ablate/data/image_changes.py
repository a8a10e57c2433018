"""The view of an image, and the random changes that a training makes first: the draws of each image
of a batch, and their application.

Shapes: B images of a global batch, stored H x W, shown size x size, C channels; channels last.

Used by `data/batches.py`. A new change also needs its key in `run/sections.py` (`Augment`) and in
`running/work.py` (`CHANGES`), and in `run/checks.py` (`_OF_IMAGES`) where masks don't follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ablate.data.augment import colour, crop, layout, mix, operate, randaugment, three, warp
from ablate.data.draws import Draws, uniform_of
from ablate.data.picture_crop import Centre, Style, random_boxes
from ablate.data.splits import AnySplit, Split
from ablate.run import Augment, Data, Run

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's channels, in [0, 1]


@dataclass(frozen=True)
class ImageView:
    """The way in which images are shown.

    `size`: the side in pixels; `input`: the scale of the values, see `normalise`; `crop`: the share
    that evaluation cuts, of the image or (`squeezed`) of its square. `anamorphic`: are the stored
    squares whole images of any shape (`data.cache_size`)? `cut_style`: the style in which whole
    pictures are cut; None where squares are stored.
    """

    size: int
    input: str = "range"
    crop: float = 1.0
    squeezed: bool = False
    cut_style: Style | None = None
    anamorphic: bool = False

    @property
    def name(self) -> str:
        """The part of a file name that distinguishes views of one dataset."""
        name = f"{self.input}.{self.crop}" + ".squeezed" * self.squeezed
        if self.anamorphic and not self.squeezed:
            name += ".centre"
        return name if self.cut_style is None else f"{name}.{self.size}.{self.cut_style}"

    @classmethod
    def from_run(cls, run: Run) -> ImageView:
        """Return the view of the run's own set."""
        squeezed = run.eval.aspect == "squeeze"
        style = run.augment.style if run.data.cache == "encoded" else None
        anamorphic = run.data.cache_size is not None
        return cls(run.data.size, run.model.input, run.eval.crop, squeezed, style, anamorphic)

    def of_set(self, data: Data) -> ImageView:
        """Return the view of a set of `eval.also`, which may have a crop of its own."""
        return self if data.crop is None else replace(self, crop=data.crop)

    @property
    def centre(self) -> Centre:
        """The cut that evaluation makes of whole pictures."""
        return Centre(self.size, self.crop, self.squeezed, self.cut_style or "tf")

    @property
    def without_crop(self) -> ImageView:
        """The same view for images that are cut already, so that no more is cut."""
        return replace(self, crop=1.0)

    def centred(self, images: Tensor, aspects: Tensor) -> Tensor:
        """Cut the central square of each image: uint8 (B, H, W, C) to (B, size, size, C)."""
        is_shape_kept = self.squeezed or not self.anamorphic
        if self.crop == 1 and is_shape_kept and images.shape[1:3] == (self.size, self.size):
            return images
        boxes = crop.centre_boxes(torch.ones_like(aspects) if self.squeezed else aspects, self.crop)
        return crop.resize_area(images, boxes, self.size)


def normalise(images: Tensor, input: str = "range") -> Tensor:
    """Return float32 values of levels x, same shape: x / 127.5 - 1 (range), x / 255 (unit), or the
    latter less ImageNet's mean and over its standard deviation (imagenet).

    The bits are the same everywhere: a GPU divides by a tensor, where by a number it would multiply
    with the inverse.
    """

    def constant(*values: float) -> Tensor:
        return layout.constants_on(values, images.device)

    scale = constant(127.5 if input == "range" else 255.0)
    values = images.to(torch.float32).div_(scale)  # in place: twice as fast on a CPU
    if input == "range":
        values.sub_(1)
    elif input == "imagenet":
        values.sub_(constant(*MEAN)).div_(constant(*STD))
    return values


def normal(draws: Draws, step: int, rows: range, values: int) -> Tensor:
    """Return float32 (rows, values) from N(0, 1): `values` for each row of a step's global
    batch."""
    return layout.normal_of(draws.lanes("noise", step, rows, values))


Change = Callable[[Tensor, slice], Tensor]  # of the images at these rows

# Values of images that are changed at once. The operators of RandAugment, all at once on a GPU,
# take some 27 bytes for each: 1.8 GB.
AT_ONCE = 1 << 26


def in_blocks(images: Tensor, changes: Sequence[Change], start: int = 0) -> Tensor:
    """Apply the changes, one after the other, to images (B, ...), at most AT_ONCE values at a time:
    changes take many times the memory of their results.

    The bits are the same for every size of block, as an image's changes depend on its own numbers
    alone. `start`: the row of the first image in the global batch.
    """

    def through(images: Tensor, rows: slice) -> Tensor:
        for change in changes:
            images = change(images, slice(start + rows.start, start + rows.stop))
        return images

    block = max(1, AT_ONCE // max(1, images[0].numel()))
    if len(images) <= block:
        return through(images, slice(0, len(images)))
    changed = torch.empty(0)
    for first_row in range(0, len(images), block):
        rows = slice(first_row, min(first_row + block, len(images)))
        some = through(images[rows], rows)
        if first_row == 0:
            changed = some.new_empty(len(images), *some.shape[1:])
        changed[rows] = some
    return changed


def changes_of(
    aspects: Tensor, spec: Augment, view: ImageView, draws: Draws, step: int
) -> list[Change]:
    """List the changes that `spec` has: crop, flip, shake, 3-Augment, jitter, RandAugment, each
    image of the global batch by draws of its own.

    Each change has a key of its own, so that turning one on moves no other.
    """

    def uniforms(purpose: str, count: int) -> Tensor:
        return draws.uniform(purpose, step, count, len(aspects))

    changes: list[Change] = []
    if spec.crop_area is None:
        changes.append(lambda images, rows: view.centred(images, aspects[rows]))
    else:
        boxes = random_boxes(aspects, spec, draws, step)
        changes.append(lambda images, rows: crop.crop_and_resize(images, boxes[rows], view.size))
    if spec.flip or spec.crop_pad:
        moves = uniforms("augment", AUGMENT)
        changes.append(lambda images, rows: augment(images, spec, moves[:, rows]))
    if spec.rotate or spec.translate or spec.zoom_out:
        shakes = uniforms("shake", warp.SHAKE)
        changes.append(lambda images, rows: shake(images, spec, shakes[:, rows]))
    if spec.three:
        numbers = uniforms("three", three.THREE)
        changes.append(lambda images, rows: three.three_augment(images, numbers[:, rows]))
    if spec.jitter:
        jitters = uniforms("jitter", colour.JITTER)
        changes.append(
            lambda images, rows: colour.colour_jitter(images, spec.jitter, jitters[:, rows])
        )
    if spec.randaug:
        changes.append(randaugment_change(len(aspects), spec, view, draws, step))
    return changes


def randaugment_change(
    batch: int, spec: Augment, view: ImageView, draws: Draws, step: int
) -> Change:
    """Return RandAugment in the style of `spec`: uint8 (B, size, size, C) to the same."""
    size, many = (view.size, view.size), spec.randaug

    def draw(steps: int) -> list[list[operate.DrawnLayer]]:
        """Draw the layers of each step. Everything that depends on draws alone is computed for all
        steps at once."""
        per_layer = randaugment.TF_LAYER if spec.style == "tf" else randaugment.TIMM_LAYER
        words = draws.words("randaug", step, range(batch), many * per_layer, steps)
        numbers = uniform_of(words).view(steps * many, per_layer, batch).transpose(0, 1).flatten(1)
        if spec.style == "tf":
            flat_layers = randaugment.tf_layer(numbers, size, spec.randaug_magnitude)
        else:
            flat_layers = randaugment.timm_layer(numbers, size, spec.randaug_magnitude)
        return [
            [*layers.unstacked()] for layers in flat_layers.stacked(steps, many, batch).unstacked()
        ]

    alone = 2 if draws.device.type == "cpu" else operate.SETTLED
    kind = spec.style, many, spec.randaug_magnitude
    layers = draws.ahead(("randaug", kind, size, batch), step, batch * many * alone, draw)

    def changed(images: Tensor, rows: slice) -> Tensor:
        some = [layer.at_rows(rows) for layer in layers]
        if spec.style == "tf":
            return randaugment.tf_randaugment(images, some)
        mean = tuple(round(255 * mean) for mean in MEAN) if view.input == "imagenet" else (128,)
        return randaugment.timm_randaugment(images, some, layout.constants_on(mean, images.device))

    return changed


def erasing(batch: int, probability: float, draws: Draws, step: int) -> Change:
    """Return random erasing of normalised images, in place."""
    numbers = draws.uniform("erase", step, mix.ERASING, batch)

    def changed(images: Tensor, rows: slice) -> Tensor:
        def noise(some: range, values: int) -> Tensor:
            global_rows = range(rows.start + some.start, rows.start + some.stop)
            return normal(draws, step, global_rows, values)

        return mix.random_erasing(images, numbers[:, rows], noise, probability)

    return changed


def shake(images: Tensor, spec: Augment, uniform: Tensor) -> Tensor:
    """Rotate, move and zoom out images as `spec` says: uint8 (B, H, W, C) to the same."""
    return warp.shake(images, uniform, spec.rotate, spec.translate, spec.zoom_out)


AUGMENT = 3  # uniforms that an image takes


def augment(images: Tensor, spec: Augment, uniform: Tensor) -> Tensor:
    """Flip each image with probability 1/2, then pad it with zeros and crop it back at a random
    offset, as `spec` says: uint8 (B, H, W, C) to the same, by `uniform` (AUGMENT, B).

    Each number has one meaning, whatever `spec` has: turning the flip on moves no crop.
    """
    flip = uniform[0] < (0.5 if spec.flip else 0.0)
    if not spec.crop_pad:
        return warp.flip(images, flip)
    # float32 U[0, 1) times k never rounds up to k: 1 - 2^-24 is as far as U goes.
    offset = (uniform[1:] * (2 * spec.crop_pad + 1)).long()
    return warp.flip_and_crop(images, flip, offset[0], offset[1], spec.crop_pad)


BLOCK = 500  # images at once, when a set is shaken once for all


def shake_once(split: AnySplit, spec: Augment) -> AnySplit:
    """Shake a set for evaluation as in training.

    The draws depend on an image's place in the set alone, and are made on the CPU, so that the set
    is the same in every run, whatever its seed and device.
    """
    if not (spec.rotate or spec.translate or spec.zoom_out):
        return split
    assert isinstance(split, Split)  # `checks` refuses to shake what is not decoded
    uniform = Draws(0).uniform("evaluation", 0, warp.SHAKE, len(split))
    blocks = zip(split.images.split(BLOCK), uniform.split(BLOCK, 1), strict=True)
    images = torch.cat([shake(images, spec, numbers) for images, numbers in blocks])
    return replace(split, images=images)
