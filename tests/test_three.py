"""3-Augment: against PIL, operator by operator, and the law by which images draw them."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from PIL import Image, ImageFilter, ImageOps
from scipy import stats

from ablate.data.augment import layout, three
from ablate.data.draws import Draws
from ablate.data.image_changes import ImageView, changes_of, in_blocks

CHANNELS = pytest.mark.parametrize("channels", [1, 3])


def noise(batch: int, height: int, width: int, channels: int, seed: int = 0) -> torch.Tensor:
    """Half of it is noise, half of it smooth."""
    generator = np.random.default_rng(seed)
    levels = generator.integers(0, 256, (batch, height, width, channels))
    levels[::2] = levels[::2].cumsum(2) // 9 % 256
    return torch.from_numpy(levels.astype(np.uint8))


def through_pil(images, operator, parameters):
    results = []
    for image, parameter in zip(images.numpy(), parameters, strict=True):
        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        results.append(np.asarray(operator(picture, parameter)).reshape(image.shape))
    return torch.from_numpy(np.stack(results))


def blurred(picture, radius):
    return picture.filter(ImageFilter.GaussianBlur(radius))


@CHANNELS
@pytest.mark.parametrize("size", [(24, 20), (1, 7), (2, 3), (33, 64)])
def test_the_blur_is_pils(channels, size):
    images = noise(200, *size, channels)
    radii = torch.linspace(0.1, 2.0, 200)
    got = three.gaussian_blur(images, radii)
    assert torch.equal(got, through_pil(images, blurred, radii.tolist()))


def test_the_blur_of_white_stays_white_and_that_of_black_black():
    radii = torch.linspace(0.1, 2.0, 50)
    for level in (0, 255):
        images = torch.full((50, 9, 9, 1), level, dtype=torch.uint8)
        assert torch.equal(three.gaussian_blur(images, radii), images)


@CHANNELS
def test_an_image_is_made_grey_solarized_or_blurred_as_by_pil(channels):
    images = noise(60, 24, 20, channels)
    uniform = torch.rand(three.THREE, 60, generator=torch.Generator().manual_seed(1))
    got = three.three_augment(images, uniform)
    radii = (0.1 + uniform[1] * 1.9).tolist()

    def change(picture, place):
        if uniform[0, place] < 1 / 3:
            return picture.convert("L").convert(picture.mode)
        if uniform[0, place] < 2 / 3:
            return ImageOps.solarize(picture)
        return blurred(picture, radii[place])

    assert torch.equal(got, through_pil(images, change, range(60)))


def test_all_at_once_it_is_what_it_is_by_groups(monkeypatch):
    images, uniform = noise(40, 24, 20, 3), Draws(3).uniform("three", 0, three.THREE, 40)
    expected = three.three_augment(images, uniform)
    monkeypatch.setattr(layout, "by_groups", lambda images: False)
    assert torch.equal(three.three_augment(images, uniform), expected)


def test_choices_are_equally_likely_and_the_last_number_is_one_of_three():
    uniform = Draws(0).uniform("three", 0, three.THREE, 6000)
    uniform[0, 0] = 1 - 2.0**-24
    ramp = torch.arange(0, 255, 5, dtype=torch.uint8).view(1, 1, 51, 1)
    images = torch.cat([ramp, ramp // 2, ramp // 3], 3).expand(6000, -1, -1, -1)
    got = three.three_augment(images.contiguous(), uniform)
    is_grey = (got[..., 0] == got[..., 1]).flatten(1).all(1)
    is_solarized = (got[:, 0, -1, 0] < 10) & ~is_grey
    counts = [int(is_grey.sum()), int(is_solarized.sum())]
    counts.append(6000 - sum(counts))
    assert stats.chisquare(counts).pvalue > 0.01
    assert not is_grey[0]
    assert not is_solarized[0]


def test_it_comes_between_flip_and_jitter_and_moves_no_other_draw():
    def changed(**keys):
        run = tiny.run({f"augment.{key}": value for key, value in keys.items()})
        images, aspects = noise(12, 8, 8, 3), torch.ones(12)
        changes = changes_of(aspects, run.augment, ImageView.from_run(run), Draws(0), 5)
        return changes, in_blocks(images, changes)

    uniform = Draws(0).uniform("three", 5, three.THREE, 12)
    flip, _ = changed(flip=True)
    jitter, _ = changed(jitter=0.3)
    images = in_blocks(noise(12, 8, 8, 3), flip)
    expected = jitter[-1](three.three_augment(images, uniform), slice(0, 12))
    assert torch.equal(changed(flip=True, jitter=0.3, three=True)[1], expected)
