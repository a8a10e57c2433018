"""A layer of RandAugment: each image goes through the operator that it drew, in groups or all at
once.

An operator is a function of its images, uint8 (b, H, W, C), and of their draws, (b,) each. On a CPU
the images that drew an operator go through it together. A GPU would have to be waited for, to learn
how many these are; so there operators of one kind are merged. All that map levels become one table
lookup, all that blend an image with a duller one become one blend, and all that move pixels become
one warp. Each image has its own table, base and matrix, and a mask says which of the three results
is its own. The bits are the same either way.

Used by `data/augment/randaugment.py`. A new kind of operator needs both ways, `grouped` and
`masked`, with the same bits: `tests/test_randaugment.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ablate.data.augment import colour, layout


class Drawn(NamedTuple):
    """The random numbers of each image, (b,): a magnitude, a sign of -1 or 1, and a place (row,
    column) for Cutout in U[0, 1).

    The magnitude is float64, since its last digit can decide the result of int().
    """

    magnitude: Tensor
    sign: Tensor
    row: Tensor
    column: Tensor

    def level(self, maximum: float) -> Tensor:
        """Return float32 (b,): 0 at magnitude 0, `maximum` at 10, and in proportion."""
        return (self.magnitude / 10 * maximum).float()

    def factor(self) -> Tensor:
        """Return float32 (b,): 0.1 at magnitude 0, 1.9 at 10.

        It is worked out in float64: a last digit decides where the product with a level is a whole
        number.
        """
        return (self.magnitude / 10 * 1.8 + 0.1).float()

    def integer_level(self, maximum: float) -> Tensor:
        """Return int32 (b,): the level, its fraction cut off."""
        return (self.magnitude / 10 * maximum).int()

    def signed(self, maximum: float) -> Tensor:
        """Return float32 (b,): the level times the sign."""
        return self.level(maximum) * self.sign


Fill = float | Tensor  # a level, or (C,)
Operator = Callable[[Tensor, Drawn, Fill], Tensor]


class Pictures:
    """Images uint8 (B, H, W, C), and the forms of them that several operators use."""

    def __init__(self, images: Tensor) -> None:
        self.images, self.levels = images, images.float()
        self.planes = self.levels.permute(0, 3, 1, 2)

    @cached_property
    def grey(self) -> Tensor:
        """The grey of the images as PIL computes it: (B, 1, H, W)."""
        return colour.grey(self.planes)


@dataclass(frozen=True)
class Levels:
    """An operator that maps each level to another, whatever else is in the image."""

    change: Callable[[Tensor, Drawn], Tensor]

    def __call__(self, images: Tensor, draws: Drawn, fill: Fill) -> Tensor:
        return self.change(images, draws)


@dataclass(frozen=True)
class Counted:
    """An operator that maps each level to another by the histogram of its channel. `table` returns
    the map, uint8 (B C, 256)."""

    change: Callable[[Tensor], Tensor]
    table: Callable[[colour.Counts], Tensor]

    def __call__(self, images: Tensor, draws: Drawn, fill: Fill) -> Tensor:
        return self.change(images)


@dataclass(frozen=True)
class Blended:
    """An operator that mixes each image with a duller one by a factor.

    `base` returns the duller image, float, of a shape that broadcasts to (B, H, W, C); None where
    it is black.
    """

    change: Callable[[Tensor, Tensor], Tensor]
    base: Callable[[Pictures], Tensor | float | None]
    factor: Callable[[Drawn], Tensor]

    def __call__(self, images: Tensor, draws: Drawn, fill: Fill) -> Tensor:
        return self.change(images, self.factor(draws))


@dataclass(frozen=True)
class Warped:
    """An operator that shows each image through a matrix (B, 2, 3), which may depend on the image's
    height and width."""

    see: Callable[[Tensor, Tensor, Fill], Tensor]
    matrix: Callable[[Drawn, int, int], Tensor]

    def __call__(self, images: Tensor, draws: Drawn, fill: Fill) -> Tensor:
        return self.see(images, self.matrix(draws, *images.shape[1:3]), fill)


@dataclass(frozen=True)
class DrawnLayer:
    """The draws of one layer for each of its images.

    `choice`: the number of the image's operator, int64 (B,); the number past the last stands for no
    operator. `fixed`: the tensors that `masked` needs and that depend on the draws alone, by name.
    """

    choice: Tensor
    draws: Drawn
    fixed: Mapping[str, Tensor]

    def unstacked(self) -> Iterator[DrawnLayer]:
        """Yield the layers of a stack (n, B, ...), one by one."""
        for i in range(len(self.choice)):
            draws = Drawn(*(values[i] for values in self.draws))
            yield DrawnLayer(self.choice[i], draws, {k: part[i] for k, part in self.fixed.items()})

    def stacked(self, *shape: int) -> DrawnLayer:
        """Return the layer with its first axis split into the axes `shape`: (N, ...) becomes
        (*shape, ...)."""
        return self._mapped_layer(lambda part: part.view(*shape, *part.shape[1:]))

    def at_rows(self, rows: slice) -> DrawnLayer:
        """Return the layer of the images at `rows` alone."""
        return self._mapped_layer(lambda part: part[rows])

    def _mapped_layer(self, change: Callable[[Tensor], Tensor]) -> DrawnLayer:
        fixed = {key: change(part) for key, part in self.fixed.items()}
        return DrawnLayer(change(self.choice), Drawn(*map(change, self.draws)), fixed)


def operate(
    images: Tensor, layer: DrawnLayer, operators: Collection[Operator], fill: Fill
) -> Tensor:
    """Send each image through the operator that it drew."""
    form = grouped if layout.by_groups(images) else masked
    return form(images, layer, tuple(operators), fill)


def grouped(images: Tensor, layer: DrawnLayer, operators: Sequence[Operator], fill: Fill) -> Tensor:
    """Do the same as `operate`, operator by operator.

    The images are sorted first, so that each operator takes a slice: index_copy_ of scattered
    images is slow.
    """
    order = layer.choice.argsort(stable=True)
    counts = layer.choice.bincount(minlength=len(operators) + 1).tolist()
    pieces = images.index_select(0, order).split(counts)
    draw_pieces = zip(
        *(part.index_select(0, order).split(counts) for part in layer.draws), strict=True
    )
    changed_pieces = [
        operator(piece, Drawn(*values), fill) if len(piece) else piece
        for operator, piece, values in zip(
            (*operators, unchanged), pieces, draw_pieces, strict=True
        )
    ]
    return torch.cat(changed_pieces).index_select(0, order.argsort())


def unchanged(images: Tensor, draws: Drawn, fill: Fill) -> Tensor:
    """Return the images as they are: the operator of images that drew none."""
    return images


# --- All at once --------------------------------------------------------------------------------

SETTLED = 64  # counters of Philox that take as much memory as to settle one image


def settled(
    choice: Tensor, draws: Drawn, operators: Collection[Operator], height: int, width: int
) -> DrawnLayer:
    """Return a layer with everything that `masked` needs and that depends on the draws alone.

    It takes any number of images of height x width, so that the layers of many steps can be settled
    at once.
    """
    kinds, fixed = _Kinds(tuple(operators)), {}
    for name, numbers in kinds.masks.items():
        fixed[name] = _by_choice([i in numbers for i in range(kinds.many)], choice, torch.bool)
    fixed["place"] = _place(kinds.by_histogram, choice, kinds.many)
    if kinds.levels:
        ramp = layout.count(256, choice.device, torch.uint8)
        ramps = ramp.view(1, 1, 256, 1).expand(len(choice), 1, 256, 1)
        tables = [operator.change(ramps, draws).view(-1, 256) for operator in kinds.levels.values()]
        place = _place(kinds.levels, choice, kinds.many)
        fixed["table"] = _rows_at(place, [ramps.view(-1, 256), *tables])
    if kinds.warped:
        matrices = [operator.matrix(draws, height, width) for operator in kinds.warped.values()]
        identity = layout.constants_on((1, 0, 0, 0, 1, 0), choice.device).view(1, 2, 3)
        place = _place(kinds.warped, choice, kinds.many)
        fixed["matrix"] = _rows_at(place, [identity.expand_as(matrices[0]), *matrices])
    for operator in kinds.blended.values():
        fixed["factor"] = operator.factor(draws)  # the same for all
    return DrawnLayer(choice, draws, fixed)


def masked(images: Tensor, layer: DrawnLayer, operators: Sequence[Operator], fill: Fill) -> Tensor:
    """Do the same as `operate` without waiting for the device: with a fixed number of kernels,
    whatever was drawn. `layer` must come from `settled`."""
    kinds, fixed = _Kinds(operators), layer.fixed

    def pick(name: str, changed: Tensor, otherwise: Tensor | float) -> Tensor:
        return changed.where(fixed[name].view(-1, 1, 1, 1), otherwise)

    result = images
    if kinds.levels or kinds.by_histogram:
        result = _mapped(images, kinds, fixed)
    if kinds.blended:
        pictures, base = Pictures(images), layout.constants_on((0.0,), images.device)
        for number, operator in kinds.blended.items():
            operator_base = operator.base(pictures)
            if operator_base is not None:
                base = torch.where(fixed[f"{number}"].view(-1, 1, 1, 1), operator_base, base)
        result = pick("blended", colour.blend(base, images, fixed["factor"]), result)
    if kinds.warped:
        see = next(iter(kinds.warped.values())).see
        result = pick("warped", see(images, fixed["matrix"], fill), result)
    for number in kinds.other_numbers:
        changed = operators[number](images, layer.draws, fill)
        result = pick(f"{number}", changed, result)
    return result


class _Kinds:
    """The operators of a layer, sorted by kind, with their numbers."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.many = len(operators) + 1  # one more is to be spared
        self.levels = {
            i: operator for i, operator in enumerate(operators) if isinstance(operator, Levels)
        }
        self.by_histogram = {
            i: operator for i, operator in enumerate(operators) if isinstance(operator, Counted)
        }
        self.blended = {
            i: operator for i, operator in enumerate(operators) if isinstance(operator, Blended)
        }
        self.warped = {
            i: operator for i, operator in enumerate(operators) if isinstance(operator, Warped)
        }
        alike = self.levels, self.by_histogram, self.blended, self.warped
        self.other_numbers = [
            i for i in range(len(operators)) if not any(i in kind for kind in alike)
        ]

    @property
    def masks(self) -> dict[str, Collection[int]]:
        """The operators, by number, that share a mask over the images, by the name of the mask.

        "blended" and "warped" cover all operators of their kind. Each blended operator, and each
        that is of no kind, also has a mask of its own, named by its number.
        """
        alone = {f"{number}": (number,) for number in (*self.blended, *self.other_numbers)}
        return {"blended": self.blended, "warped": self.warped, **alone}


def _mapped(images: Tensor, kinds: _Kinds, fixed: Mapping[str, Tensor]) -> Tensor:
    """Apply all operators that map levels, through one table (C, 256) for each image."""
    batch, channels, device = len(images), images.shape[3], images.device
    entry = colour.entries(images, torch.int64)
    shape = batch, channels, 256
    if kinds.levels:
        level_table = fixed["table"].view(batch, 1, 256).expand(shape)
    else:
        level_table = layout.count(256, device, torch.uint8).expand(shape)
    if not kinds.by_histogram:
        return colour.through(level_table.contiguous(), entry).view(images.shape)
    increment = layout.constants_on((1,), device, torch.int64).expand(entry.numel())
    histogram = torch.zeros(batch * channels * 256, dtype=torch.int64, device=device)
    histogram = histogram.scatter_add_(0, entry.view(-1), increment).view(-1, 256)
    counts = colour.Counts(histogram)
    tables = [operator.table(counts).view(shape) for operator in kinds.by_histogram.values()]
    return colour.through(_rows_at(fixed["place"], [level_table, *tables]), entry).view(
        images.shape
    )


def _by_choice(table: Sequence[int], choice: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the entry of `table` at each choice, (B,)."""
    return layout.constants_on(tuple(table), choice.device, dtype).index_select(0, choice)


def _place(numbers: Collection[int], choice: Tensor, many: int) -> Tensor:
    """Return the place of each choice among `numbers`, int64 (B,): 1 for the first, 2 for the
    second, ...; 0 where it isn't there."""
    places = {number: place for place, number in enumerate(numbers, start=1)}
    return _by_choice([places.get(i, 0) for i in range(many)], choice, torch.int64)


def _rows_at(place: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Return (B, ...), whose row b is row b of parts[place[b]]. All parts have one shape."""
    shape = parts[0].shape
    index = place.view(1, -1, *(1,) * (len(shape) - 1)).expand(1, *shape)
    return torch.stack(list(parts)).gather(0, index)[0]
