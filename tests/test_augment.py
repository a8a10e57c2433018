"""Crops, erasing, mixing and the MNIST set, against torch, torchvision, timm and PIL."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats

from ablate.data.augment import colour, crop, mix, randaugment, warp
from ablate.data.augment.mix import BETA, beta


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(count: int, batch: int, seed: int) -> torch.Tensor:
    """(count, B): U[0, 1)."""
    return torch.rand((count, batch), generator=seeded(seed))


def normals(rows: range, values: int) -> torch.Tensor:
    """N(0, 1) by the row alone."""
    return torch.stack([torch.randn(values, generator=seeded(100 * row)) for row in rows])


def noise(batch: int, height: int = 16, width: int = 16, channels: int = 3) -> torch.Tensor:
    shape = (batch, height, width, channels)
    return torch.randint(0, 256, shape, generator=seeded(0), dtype=torch.uint8)


def last(images: torch.Tensor) -> torch.Tensor:
    """(B, H, W, C) of torch's (B, C, H, W)."""
    return images.permute(0, 2, 3, 1)


def apart(got: torch.Tensor, expected: torch.Tensor) -> int:
    assert got.dtype == expected.dtype == torch.uint8
    return (got.int() - expected.int()).abs().max().item()


# --- Where to crop ------------------------------------------------------------------------------


def tf_box(aspect: float, area: tuple[float, float], draw: random.Random) -> tuple[float, ...]:
    """sample_distorted_bounding_box_op.cc, one image, its pixels as small as can be."""
    width, height = aspect, 1.0
    for _ in range(100):
        ratio = draw.uniform(0.75, 1.33)
        low = math.sqrt(area[0] * width * height / ratio)
        high = min(math.sqrt(area[1] * width * height / ratio), height, width / ratio)
        tall = draw.uniform(low, high) if low < high else high
        if tall * tall * ratio >= area[0] * width * height * (1 - 1e-9):
            wide = tall * ratio
            top, left = draw.uniform(0, height - tall), draw.uniform(0, width - wide)
            return top / height, left / width, tall / height, wide / width
    return 0.0, 0.0, 1.0, 1.0


@pytest.mark.parametrize("aspect", [1.0, 0.45, 2.6, 20.0, 1 / 22])
def test_inception_boxes_have_tfs_law(aspect):
    """20 and 1 / 22: of the ratios only some fit."""
    numbers = drawn(crop.INCEPTION, 3000, 1)
    ours = crop.inception_boxes(torch.full((3000,), aspect), numbers).numpy()
    draw = random.Random(0)
    theirs = np.array([tf_box(aspect, (0.05, 1.0), draw) for _ in range(3000)])
    for one, other in (
        *zip(ours.T, theirs.T, strict=True),
        (ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]),
        (ours[:, 3] / ours[:, 2], theirs[:, 3] / theirs[:, 2]),
        (ours[:, 0] / (1.001 - ours[:, 2]), theirs[:, 0] / (1.001 - theirs[:, 2])),
    ):
        assert stats.ks_2samp(one, other).pvalue > 0.005


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.01, 0.9), st.floats(0.0, 0.1))
def test_inception_boxes_are_within_what_is_asked(seed, low, span):
    area, ratio = (low, low + span), (0.6, 1.5)
    aspect = torch.rand(200, generator=seeded(seed)) * 3 + 0.3
    numbers = drawn(crop.INCEPTION, 200, seed + 1)
    boxes = crop.inception_boxes(aspect, numbers, area, ratio)
    _, _, height, width = boxes.unbind(1)
    assert boxes[:, :2].min() >= 0
    assert (boxes[:, :2] + boxes[:, 2:]).max() <= 1 + 1e-6
    whole = (height == 1) & (width == 1)
    share, shape = height * width, width / height * aspect
    assert (whole | ((share > area[0] - 1e-5) & (share < area[1] + 1e-5))).all()
    assert (whole | ((shape > ratio[0] - 1e-4) & (shape < ratio[1] + 1e-4))).all()


def test_where_no_ratio_fits_the_whole_image_is_taken():
    aspect = torch.tensor([30.0, 1.0, 1 / 30])
    boxes = crop.inception_boxes(aspect, drawn(crop.INCEPTION, 3, 0))
    assert torch.equal(boxes[[0, 2]], torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 2))
    assert boxes[1, 2:].max() < 1


@pytest.mark.parametrize("aspect", [1.0, 0.4, 3.0, 12.0])
def test_resized_crop_boxes_have_torchvisions_law(aspect, oracle):
    theirs = oracle("torchvision.transforms.v2").RandomResizedCrop(8)
    size = (10_000, round(10_000 * aspect))
    torch.manual_seed(0)
    blank = torch.empty((1, *size), device="meta")
    made = [theirs.make_params([blank]) for _ in range(1500)]
    expected = np.array([[p["top"], p["left"], p["height"], p["width"]] for p in made])
    expected = expected / np.array([*size, *size])
    numbers = drawn(crop.RESIZED_CROP, 6000, 2)
    got = crop.resized_crop_boxes(torch.full((6000,), aspect), numbers).double().numpy()
    if aspect == 12:  # mostly none of 10 fits
        central = np.array([0, (1 - 4 / 3 / 12) / 2, 1, 4 / 3 / 12])
        fallen = [(np.abs(b - central).max(1) < 1e-3).mean() for b in (got, expected)]
        assert abs(fallen[0] - fallen[1]) < 0.05
        assert fallen[0] > 0.3
    # rounded: where none fits both take the same box, but for the pixels of one
    columns = [[*b.T.round(3), (b[:, 2] * b[:, 3]).round(3)] for b in (got, expected)]
    for one, other in zip(*columns, strict=True):
        assert stats.ks_2samp(one, other).pvalue > 0.005


def test_centre_boxes_are_central_squares_of_the_original():
    boxes = crop.centre_boxes(torch.tensor([1.0, 2.0, 0.5]), 0.875)
    wide, tall = [0.0625, 0.28125, 0.875, 0.4375], [0.28125, 0.0625, 0.4375, 0.875]
    assert boxes.tolist() == [[0.0625, 0.0625, 0.875, 0.875], wide, tall]


# --- What a crop shows --------------------------------------------------------------------------


def slices(images: torch.Tensor, boxes: torch.Tensor) -> list[torch.Tensor]:
    """(1, C, h, w) each; boxes in whole pixels."""
    planes = images.permute(0, 3, 1, 2).double()
    return [
        planes[b : b + 1, :, top : top + height, left : left + width]
        for b, (top, left, height, width) in enumerate(boxes.tolist())
    ]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [5, 16, 24])
def test_crop_and_resize_is_torchs_bilinear_of_the_slice(channels, size):
    images = noise(6, 16, 12, channels)
    boxes = torch.tensor(
        [[0, 0, 16, 12], [3, 2, 10, 7], [15, 11, 1, 1], [0, 5, 2, 7], [9, 0, 7, 12], [4, 4, 5, 5]]
    )
    parts = slices(images, boxes)
    exact = last(torch.cat([F.interpolate(part, (size, size), mode="bilinear") for part in parts]))
    at_once = crop.sample(images, *spans(boxes), size)
    torch.testing.assert_close(at_once.double(), exact, rtol=0, atol=0.5 + 1e-3)
    sure = (exact % 1 - 0.5).abs() > 1e-3  # neither a tie
    assert torch.equal(at_once[sure], exact.add(0.5).byte()[sure])
    got = crop.crop_and_resize(images, boxes / torch.tensor([16, 12, 16, 12]), size)
    assert got.is_contiguous()
    assert apart(got, at_once) <= 1  # rounded once more, between the axes
    assert (got.double() - exact).mean().abs() < 0.1
    if size == 16 and channels == 3:
        square = noise(2)
        box = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(2, 1)
        assert torch.equal(crop.crop_and_resize(square, box, 16), square)
        assert torch.equal(crop.resize_area(square, box, 16), square)


def spans(boxes: torch.Tensor) -> torch.Tensor:
    """(2, 2, B): where they start, of rows and of columns, and how long they are."""
    return boxes.float().T.reshape(2, 2, -1)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 20), st.integers(3, 20))
def test_one_by_one_crops_are_those_at_once(seed, height, width):
    images = noise(20, height, width)
    aspect = torch.rand(20, generator=seeded(seed)) + 0.5
    boxes = crop.inception_boxes(aspect, drawn(crop.INCEPTION, 20, seed))
    sides = torch.tensor([[height], [width]])
    whole = crop.pixel_span(*spans(boxes) * sides, sides)
    for size in (4, 11):
        got = crop.resize_slices(images, *whole, size)
        at_once = crop.sample(images, *whole, size)
        assert apart(got, at_once) <= 1
        assert torch.equal(crop.crop_and_resize(images, boxes, size), got)


def test_boxes_are_rounded_to_whole_pixels_within_the_image():
    spans = [(0, 16), (3.4, 5.2), (3.4, 5.0), (2.6, 0.1), (15.8, 0.2), (15.4, 0.6), (0.3, 0.1)]
    start, length = torch.tensor(spans).unbind(1)
    first, many = crop.pixel_span(start, length, torch.tensor(16))
    assert first.tolist() == [0, 3, 3, 3, 15, 15, 0]
    assert many.tolist() == [16, 6, 5, 1, 1, 1, 1]
    start = torch.rand(5000, generator=seeded(0)) * 16
    length = (16 - start) * torch.rand(5000, generator=seeded(1))
    first, many = crop.pixel_span(start, length, torch.tensor(16))
    assert (first >= 0).all()
    assert (many >= 1).all()
    assert (first + many <= 16).all()
    assert ((first - start).abs() <= 0.5).logical_or(first == 15).all()
    large = length > 2
    assert ((many - length).abs() <= 1)[large].all()
    assert abs((many - length)[large].mean()) < 0.05  # neither wider nor narrower


def test_resize_area_is_torchs_where_pixels_divide():
    images = noise(3, 24, 18)
    boxes = torch.tensor([[0, 0, 24, 18], [4, 6, 12, 6], [12, 0, 6, 12]])
    got = crop.resize_area(images, boxes / torch.tensor([24, 18, 24, 18]), 6)
    exact = torch.cat([F.interpolate(s, (6, 6), mode="area") for s in slices(images, boxes)])
    torch.testing.assert_close(got.double(), last(exact), rtol=0, atol=0.5 + 1e-3)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_resize_area_cuts_pixels_exactly(data):
    """Each pixel 7 x 7 finer ones: what begins and ends on sevenths is a mean of whole ones."""
    images = noise(1, 12, 12)
    size = data.draw(st.integers(1, 5))
    sides = [data.draw(st.integers(7, 84 // size)) * size for _ in range(2)]
    top, left = (data.draw(st.integers(0, 84 - side)) for side in sides)
    fine = images[0].double().repeat_interleave(7, 0).repeat_interleave(7, 1)
    part = fine[top : top + sides[0], left : left + sides[1]]
    blocks = part.view(size, sides[0] // size, size, sides[1] // size, 3).mean((1, 3))
    box = torch.tensor([[top, left, *sides]]) / 84
    got = crop.resize_area(images, box, size)[0]
    torch.testing.assert_close(got.double(), blocks, rtol=0, atol=0.5 + 1e-3)


def seen_between(images: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
    """float (B, size, size, C): torch's grid_sample of square images, in boxes as if cropped: no
    nearer to a box's edge than half a pixel."""
    place = (torch.arange(size) + 0.5) / size
    edge = 0.5 / images.shape[1] / boxes[:, 2:, None]
    down, across = (boxes[:, :2, None] + place.clamp(edge, 1 - edge) * boxes[:, 2:, None]).unbind(1)
    grid = torch.stack(torch.broadcast_tensors(across[:, None], down[:, :, None]), 3) * 2 - 1
    return last(F.grid_sample(images.permute(0, 3, 1, 2).float(), grid, align_corners=False))


def test_resize_area_magnifies_bilinearly_axis_by_axis():
    images = noise(2)
    small = torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 2)  # between pixels
    got = crop.resize_area(images, small, 16)
    torch.testing.assert_close(got.float(), seen_between(images, small, 16), rtol=0, atol=0.51)
    flat = torch.tensor([[0.0, 0.25, 1.0, 0.5]] * 2)  # rows shrink, columns are magnified
    rows = images.float().view(2, 8, 2, 16, 3).mean(2)[:, :, 4:12].permute(0, 3, 1, 2)
    exact = F.interpolate(rows, (8, 8), mode="bilinear")
    got = crop.resize_area(images, flat, 8)
    torch.testing.assert_close(got.float(), last(exact), rtol=0, atol=0.51)
    wide = crop.resize_area(images, flat, 12)
    lines = F.interpolate(images.permute(0, 3, 1, 2).double()[..., 4:12], (16, 12), mode="bilinear")
    thirds = lines.repeat_interleave(3, 2).view(2, 3, 12, 4, 12).mean(3)
    torch.testing.assert_close(wide.double(), last(thirds), rtol=0, atol=0.501)


def test_each_image_is_cropped_as_if_alone():
    images, aspect = noise(20), torch.linspace(0.3, 3, 20)
    boxes = crop.inception_boxes(aspect, drawn(crop.INCEPTION, 20, 3))
    for resize in (crop.crop_and_resize, crop.resize_area):
        got = resize(images, boxes, 11)
        for b in range(20):
            alone = resize(images[b : b + 1], boxes[b : b + 1], 11)[0]
            assert apart(got[b], alone) <= 1  # bmm's sums may differ in the last bit
            assert (got[b] == alone).float().mean() > 0.99


# --- Erasing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1 / 0.3, 1.5])
def test_erased_boxes_have_timms_law(most, oracle):
    timm = oracle("timm.data.random_erasing")
    random.seed(0)
    theirs = timm.RandomErasing(probability=0.6, max_aspect=most, device="cpu")
    holes = [(theirs(torch.ones(1, 20, 14))[0] == 0).nonzero() for _ in range(3000)]
    expected = [torch.cat([gone.amin(0), gone.amax(0) + 1]) for gone in holes if len(gone)]
    options = {} if most > 3 else {"aspect": (0.3, most)}
    numbers = drawn(mix.ERASING, 8000, 1)
    ours = mix.erase_boxes(20, 14, numbers, probability=0.6, **options)
    erased = ours[ours[:, 2] > ours[:, 0]]
    assert stats.binomtest(len(erased), 8000, 0.6).pvalue > 0.01
    assert ours.min() >= 0
    assert (ours[:, 2:] <= torch.tensor([20, 14])).all()
    laws = []
    for boxes in (erased.numpy(), torch.stack(expected).numpy()):
        tall, wide = (boxes[:, 2:] - boxes[:, :2]).T
        laws.append([*boxes.T, tall * wide, tall / wide])
    for one, other in zip(*laws, strict=True):
        assert stats.ks_2samp(one, other).pvalue > 0.01


def test_what_is_as_large_as_the_image_is_never_erased():
    edges = mix.erase_boxes(8, 8, drawn(mix.ERASING, 50, 0), 1.0, area=(1.0, 1.0))
    assert torch.equal(edges[:, :2], edges[:, 2:])  # one side is 8 or more, whatever the aspect


def test_erased_pixels_are_normal_and_others_stay():
    images = torch.full((400, 20, 20, 3), 5.0)
    before, numbers = images.clone(), drawn(mix.ERASING, 400, 0)
    got = mix.random_erasing(images, numbers, normals, probability=0.5)
    assert got is images  # in place
    edges = mix.erase_boxes(20, 20, numbers, probability=0.5)
    inside = torch.zeros((400, 20, 20), dtype=torch.bool)
    for b, (top, left, bottom, right) in enumerate(edges.tolist()):
        inside[b, top:bottom, left:right] = True
    assert torch.equal(got[~inside], before[~inside])
    values = got[inside]
    assert stats.kstest(values.flatten()[:20_000], "norm").pvalue > 0.01
    assert (np.abs(np.corrcoef(values.T) - np.eye(3)) < 3.3 / len(values) ** 0.5).all()


# --- Mixing -------------------------------------------------------------------------------------


def kept(height: int, width: int, seed: int, *strengths: float, **more: float) -> torch.Tensor:
    numbers = np.random.default_rng(seed).random(mix.MIXTURE).tolist()
    made = mix.mixture(height, width, numbers, *strengths, **more)
    return mix.own_shares(height, width, torch.tensor(made, dtype=torch.float64))


@pytest.mark.parametrize("strength", [0.05, 0.2, 0.5, 0.51, 0.8, 1.0, 3.0])
def test_beta_has_its_law(strength):
    numbers = np.random.default_rng(0).random((20_000, BETA)).tolist()
    theirs = np.random.default_rng(1).beta(strength, strength, 20_000)
    assert stats.ks_2samp([beta(strength, some) for some in numbers], theirs).pvalue > 0.01
    assert beta(strength, [0.0] * BETA) in (0.0, 1.0)


@pytest.mark.parametrize("strength", [0.2, 0.5, 0.8, 1.0])
def test_mixup_keeps_the_larger_part_of_a_beta(strength):
    maps = [kept(2, 3, seed, mixup=strength) for seed in range(1500)]
    assert all((m == m[0, 0]).all() for m in maps)
    beta = stats.beta(strength, strength)
    law = stats.kstest([m[0, 0].item() for m in maps], lambda x: beta.cdf(x) - beta.cdf(1 - x))
    assert law.pvalue > 0.01


def box_of_timm(height: int, width: int, share: float, down: int, across: int) -> list[int]:
    """Top, left, bottom, right of `rand_bbox` about a centre, as in timm 0.3.2, with which DeiT was
    trained, and up to 2026. timm 1.0.31 gives odd sides their last pixel: `(side + 1) // 2`."""
    ratio = np.sqrt(1 - share)
    tall, wide = int(height * ratio), int(width * ratio)
    edges = [down - tall // 2, across - wide // 2, down + tall // 2, across + wide // 2]
    return np.clip(edges, 0, [height, width, height, width]).tolist()


@pytest.mark.parametrize(("height", "width"), [(32, 32), (224, 224), (13, 20)])
def test_boxes_of_cutmix_are_timms(height, width):
    """Of the same share and the same centre, box by box."""
    for seed in range(400):
        numbers = np.random.default_rng(seed).random(mix.MIXTURE).tolist()
        centre = int(numbers[1] * height), int(numbers[2] * width)
        expected = box_of_timm(height, width, beta(1.0, numbers[3 + BETA :]), *centre)
        left_over = torch.ones(height, width)
        left_over[expected[0] : expected[2], expected[1] : expected[3]] = 0
        assert torch.equal(kept(height, width, seed, cutmix=1.0).float(), left_over), seed


def test_switch_says_how_often_cutmix_and_off_is_off():
    both = [kept(9, 9, s, 0.8, 1.0, switch=0.3) for s in range(1500)]
    cut = [((own == 0) | (own == 1)).all().item() for own in both]
    assert stats.binomtest(sum(cut), 1500, 0.3).pvalue > 0.01
    mixed = [kept(9, 9, s, mixup=0.8) for s in range(1500)]
    for own, is_cut, alone in zip(both, cut, mixed, strict=True):
        assert is_cut or torch.equal(own, alone)  # cutmix beside it moves no mixup
    assert (kept(9, 9, 0) == 1).all()
    images, targets = torch.rand(3, 9, 9, 1), torch.rand(3, 4)
    same = mix.mix(images, targets, kept(9, 9, 0))
    assert torch.equal(same[0], images)
    assert torch.equal(same[1], targets)


def test_images_and_targets_are_mixed_with_the_one_before():
    images = torch.rand((4, 5, 6, 3), generator=seeded(0))
    targets = torch.eye(4)
    mixed, soft = mix.mix(images, targets, torch.full((5, 6), 0.75))
    for got, whole in ((mixed, images), (soft, targets)):
        torch.testing.assert_close(got, 0.75 * whole + 0.25 * whole[[3, 0, 1, 2]])
    own = torch.ones(5, 6)
    own[1:3, 2:5] = 0
    cut, soft = mix.mix(images, targets, own)
    pasted = images.clone()
    pasted[:, 1:3, 2:5] = images.roll(1, 0)[:, 1:3, 2:5]
    assert torch.equal(cut, pasted)
    torch.testing.assert_close(soft, 0.8 * targets + 0.2 * targets.roll(1, 0))


# --- The MNIST set ------------------------------------------------------------------------------


def blob(batch: int) -> torch.Tensor:
    """Strokes on black, 28 x 28 x 1, up to the edges."""
    coarse = torch.rand((batch, 1, 9, 9), generator=seeded(4))
    return (last(F.interpolate(coarse, (28, 28), mode="bicubic")) * 400 - 120).clamp(0, 255).byte()


def test_the_mnist_set_is_torchvisions_chain_on_the_same_draws(oracle):
    v2 = oracle("torchvision.transforms.v2.functional")
    images = blob(150)
    numbers = drawn(warp.SHAKE, 150, 8)
    got = warp.shake(images, numbers)
    zoomed, levels = 0, []
    for b, draws in enumerate(numbers.double().T.tolist()):
        angle, right, down, larger, chance, left, top = draws
        image = Image.fromarray(images[b, ..., 0].numpy())
        image = v2.rotate(image, -20 + 40 * angle)
        shift = [round(-5.6 + 11.2 * right), round(-5.6 + 11.2 * down)]
        image = v2.affine(image, angle=0.0, translate=shift, scale=1.0, shear=[0.0, 0.0])
        if chance < 0.2:
            zoomed += 1
            canvas = int(28 * (2 + larger))
            x, y = int((canvas - 28) * left), int((canvas - 28) * top)
            image = v2.pad(image, [x, y, canvas - 28 - x, canvas - 28 - y], fill=0)
        image = v2.resize(image, 28)
        levels.append(np.asarray(image).astype(int) - got[b, ..., 0].numpy())
    far = np.abs(np.stack(levels)) > 1
    assert far.mean() < 0.003  # PIL's nearest counts in 1 / 65536 pixels
    assert 15 < zoomed < 45


def test_shake_at_zero_changes_nothing():
    images, numbers = blob(8), drawn(warp.SHAKE, 8, 1)
    still = warp.shake(images, numbers, degrees=0.0, shift=0.0, probability=0.0)
    assert torch.equal(still, images)
    assert not torch.equal(warp.shake(images, numbers), images)


# --- All of it ----------------------------------------------------------------------------------


def test_nothing_is_made_on_another_device():
    """With a default device that holds no values, what forgets to name its device fails."""
    images, cpu = noise(6), torch.device("cpu")
    aspect, targets, mask = torch.linspace(0.5, 2, 6), torch.eye(6), torch.arange(6) % 2 == 0
    uniform, mixture = drawn(240, 6, 0), torch.tensor([1.0, 2.0, 3.0, 9.0, 8.0])
    tf, timm = uniform.view(60, 4, 6), uniform.view(40, 6, 6)
    some = normals(range(6), images[0].numel())

    def known(rows, values):
        return some[rows.start : rows.stop]

    with torch.device("meta"):
        boxes = crop.inception_boxes(aspect, uniform[:4])
        tf_layers = [randaugment.tf_layer(numbers, (16, 16), 9.0) for numbers in tf]
        timm_layers = [randaugment.timm_layer(numbers, (16, 16)) for numbers in timm]
        done = [
            crop.crop_and_resize(images, boxes, 8),
            crop.resize_area(images, crop.resized_crop_boxes(aspect, uniform[:22]), 8),
            crop.resize_area(images, crop.centre_boxes(aspect, 0.875), 8),
            warp.flip(images, mask),
            randaugment.tf_randaugment(images, tf_layers),
            randaugment.timm_randaugment(images, timm_layers, 128.0),
            colour.colour_jitter(images, 0.3, uniform[:3]),
            warp.shake(images, uniform[:7]),
            mix.random_erasing(images.float(), uniform[:23], known, 1.0),
            *mix.mix(images.float(), targets, mix.own_shares(16, 16, mixture)),
        ]
    assert all(made.device == cpu for made in done)
