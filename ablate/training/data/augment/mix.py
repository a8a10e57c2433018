"""Images and their targets mixed with their neighbours': mixup, and cutmix.

One share a step for the whole global batch; the partner of image b is image b - 1 (`roll(+1)`,
big_vision/utils.py). What is kept of each pixel is a map (H, W): mixup's is constant, cutmix's 0
or 1, and its mean is what is kept of the target.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ablate.training.data.augment.erase import within
from ablate.training.data.augment.layout import lines


def kept(
    height: int,
    width: int,
    generator: Generator,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    switch: float = 0.5,
) -> Tensor:
    """float (H, W): each pixel's share of the image itself, on the generator's device, no sync.

    mixup: max(l, 1 - l), l ~ Beta(mixup, mixup) (big_vision/utils.py). cutmix: all but a box of
    1 - l of the image, l ~ Beta(cutmix, cutmix), cut where it reaches beyond the image
    (timm/data/mixup.py, rand_bbox). With both, cutmix with probability `switch`; 0 is never.
    """
    device = generator.device
    uniform = torch.rand(3, generator=generator, device=device)
    # what is off is drawn too, from a law that exists
    strength = [[mixup or 1.0] * 2, [cutmix or 1.0] * 2]
    # private, but what torch.distributions.Dirichlet calls; and it takes a generator
    share = torch._sample_dirichlet(
        torch.tensor(strength, dtype=torch.float64, device=device), generator
    )
    constant = share[0].max().float().expand(height, width)
    if not cutmix:
        return constant if mixup else torch.ones_like(constant)
    side = share[1, 1].sqrt()  # 1 - l
    tall, wide = (height * side).floor(), (width * side).floor()
    row, column = (uniform[1] * height).floor(), (uniform[2] * width).floor()
    top, left = row - (tall / 2).floor(), column - (wide / 2).floor()
    rows, columns = within(torch.stack([top, left, top + tall, left + wide])[None], height, width)
    cut = 1 - rows[0, :, None].float() * columns[0].float()
    return cut.where(uniform[0] < switch, constant) if mixup else cut


def mix(images: Tensor, targets: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """float (B, H, W, C) and targets (B, classes), each with its partner's, `own` (H, W) kept."""
    share = own.mean().to(targets.dtype)
    own = own.to(images.dtype).repeat_interleave(images.shape[3], 1)
    mixed = torch.lerp(lines(images.roll(1, 0)), lines(images), own).view(images.shape)
    return mixed, torch.lerp(targets.roll(1, 0), targets, share)
