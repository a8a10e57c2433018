"""Operators on levels and places, against PIL and timm; RandAugment, and what it draws."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats

from ablate.data.augment import colour, randaugment, warp
from ablate.data.augment.operate import DrawnLayer, grouped, masked, settled
from ablate.data.augment.randaugment import TF, TF_LAYER, TIMM, TIMM_LAYER, Drawn


def pictures(channels: int = 3, height: int = 24, width: int = 20) -> torch.Tensor:
    """uint8 (7, H, W, C) that operators treat differently: noise, ramps, dark, flat, two levels."""
    draw, shape = np.random.default_rng(0), (height, width, channels)
    across = np.linspace(0, 255, width)[None, :, None] * np.ones(shape)
    down = np.linspace(200, 30, height)[:, None, None] * np.linspace(1, 0.3, channels)
    made = [draw.integers(0, 256, shape), across, np.broadcast_to(down, shape)]
    made += [draw.integers(10, 60, shape), np.full(shape, 77), draw.choice([3, 250], shape)]
    made += [np.clip(draw.normal(90, 25, shape), 0, 255)]
    return torch.from_numpy(np.stack(made).astype(np.uint8))


def drawing(*shape: int, seed: int = 0) -> torch.Tensor:
    """U[0, 1)."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def tf(images: torch.Tensor, numbers: torch.Tensor, magnitude: float) -> Any:
    layers = [randaugment.tf_layer(some, images.shape[1:3], magnitude) for some in numbers]
    return randaugment.tf_randaugment(images, layers)


def timm_style(images: torch.Tensor, numbers: torch.Tensor, fill: float, **options: float) -> Any:
    layers = [randaugment.timm_layer(some, images.shape[1:3], **options) for some in numbers]
    return randaugment.timm_randaugment(images, layers, fill)


def pil(image: torch.Tensor) -> Image.Image:
    levels = image.numpy()
    return Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels)


def through_pil(images, operator, *parameters):
    """An image after the other through a function of PIL images."""
    rows = enumerate(images)
    done = [np.asarray(operator(pil(one), *(p[b] for p in parameters))) for b, one in rows]
    return torch.from_numpy(np.stack(done)).view(images.shape)


def apart(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    assert got.dtype == expected.dtype == torch.uint8
    return (got.int() - expected.int()).abs()


CHANNELS = pytest.mark.parametrize("channels", [1, 3])
FACTORS = torch.tensor([0.1, 0.46, 0.73, 1.0, 1.27, 1.9, 2.8])

# --- Operators on levels ------------------------------------------------------------------------


@CHANNELS
@pytest.mark.parametrize("name", ["Brightness", "Contrast", "Color", "Sharpness"])
def test_enhancements_are_pils_each_image_by_its_own_factor(name, channels):
    images, theirs = pictures(channels), getattr(ImageEnhance, name)
    ours = colour.saturation if name == "Color" else getattr(colour, name.lower())
    for turn in range(len(FACTORS)):
        factors = FACTORS.roll(turn)
        expected = through_pil(images, lambda i, f: theirs(i).enhance(f.item()), factors)
        assert torch.equal(ours(images, factors), expected), turn


@CHANNELS
def test_equalize_and_invert_are_pils(channels):
    # steps of 16, of 1 (with levels beyond 255), and of 0
    for height, width in ((70, 61), (20, 19), (15, 15)):
        images = pictures(channels, height, width)
        assert torch.equal(colour.equalize(images), through_pil(images, ImageOps.equalize))
        assert torch.equal(colour.invert(images), through_pil(images, ImageOps.invert))


@CHANNELS
def test_autocontrast_is_pils_but_for_its_floats(channels):
    images = pictures(channels)
    got = colour.autocontrast(images)
    distance = apart(got, through_pil(images, ImageOps.autocontrast))
    assert distance.max() <= 1
    assert (distance > 0).float().mean() < 0.02
    for image, stretched in zip(images, got, strict=True):
        for plane, result in zip(image.unbind(2), stretched.unbind(2), strict=True):
            low, high = plane.min().item(), plane.max().item()
            exact = plane if high == low else (255 * (plane.int() - low) // (high - low)).byte()
            assert torch.equal(result, exact)


def test_autocontrast_is_exact_for_every_range():
    """All low, high and levels between: 255 (x - low) is divided by every span there is."""
    spans = torch.arange(1, 256)
    images = torch.stack([torch.arange(256).clamp(max=s) for s in spans]).to(torch.uint8)
    got = colour.autocontrast(images.view(255, 16, 16, 1)).view(255, 256)
    expected = torch.arange(256).clamp(max=spans[:, None]) * 255 // spans[:, None]
    assert torch.equal(got.long(), expected)


@CHANNELS
def test_bits_and_thresholds_are_pils(channels, oracle):
    timm = oracle("timm.data.auto_augment")
    images = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).repeat(9, 1, 1, channels)
    bits = torch.arange(9)
    kept = colour.posterize(images, bits)
    assert kept[0].max() == 0  # PIL refuses 0
    assert torch.equal(kept[1:], through_pil(images[1:], ImageOps.posterize, bits[1:].tolist()))
    for thresholds in ([0, 1, 26, 127, 128, 129, 255, 256, 384], [7] * 8 + [200]):
        got = colour.solarize(images, torch.tensor(thresholds))
        assert torch.equal(got, through_pil(images, ImageOps.solarize, thresholds))
    additions = [0, 1, 64, 99, 110, 128, 165, 220, 255]
    got = colour.solarize_add(images, torch.tensor(additions))
    assert torch.equal(got, through_pil(images, timm.solarize_add, additions))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_grey_is_pils_for_any_colour(seed):
    images = np.random.default_rng(seed).integers(0, 256, (1, 40, 40, 3), dtype=np.uint8)
    planes = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    expected = np.asarray(Image.fromarray(images[0]).convert("L"), np.float32)
    np.testing.assert_array_equal(colour.grey(planes)[0, 0], expected)


def test_jitter_is_brightness_contrast_saturation_by_uniform_factors(oracle):
    v2 = oracle("torchvision.transforms.v2.functional")
    images = pictures().repeat(3, 1, 1, 1)
    uniform = drawing(3, 21, seed=3)
    got = colour.colour_jitter(images, 0.4, uniform)
    factors = (1 + 0.4 * (2 * uniform - 1)).tolist()

    def chain(image, b):
        image = v2.adjust_brightness(image, factors[0][b])
        image = v2.adjust_contrast(image, factors[1][b])
        return v2.adjust_saturation(image, factors[2][b])

    assert torch.equal(got, through_pil(images, chain, range(21)))
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(colour, "brightness", lambda x, f: seen.append(f) or x)
        colour.colour_jitter(images.new_zeros((4000, 1, 1, 3)), 1.5, drawing(3, 4000))
    assert stats.kstest(seen[0], stats.uniform(0, 2.5).cdf).pvalue > 0.01  # never below 0


# --- Warps --------------------------------------------------------------------------------------

ANGLES = torch.tensor([0.0, 27.0, -27.0, 3.3, 90.0, 180.0, -141.0])
FACTOR = torch.tensor([0.3013, -0.3017, 0.2719, 0.0, -0.0523, 0.4511, -0.6037])  # no ties


@CHANNELS
def test_warps_are_pils(channels):
    images = pictures(channels)
    height, width = images.shape[1:3]
    fill = 128 if channels == 1 else (124, 116, 104)
    ours = torch.tensor(fill, dtype=torch.uint8).view(-1)
    zeros, shifts = torch.zeros(7), FACTOR * 30

    def affine(*six, by):
        return lambda image, _: image.transform(image.size, Image.AFFINE, six, by, fillcolor=fill)

    def turned(angle, by):
        return lambda image, _: image.rotate(angle, by, fillcolor=fill)

    cases = [
        (warp.rotation(ANGLES, height, width), turned, ANGLES),
        (warp.shear_x(FACTOR, warp.CORNER), lambda f, by: affine(1, f, 0, 0, 1, 0, by=by), FACTOR),
        (warp.shear_y(FACTOR, warp.CORNER), lambda f, by: affine(1, 0, 0, f, 1, 0, by=by), FACTOR),
        (warp.translation(shifts, zeros), lambda t, by: affine(1, 0, t, 0, 1, 0, by=by), shifts),
        (warp.translation(zeros, shifts), lambda t, by: affine(1, 0, 0, 0, 1, t, by=by), shifts),
    ]  # fmt: skip
    for number, (matrix, operator, parameters) in enumerate(cases):
        for ours_by, by in ((warp.warp, Image.NEAREST), (warp.warp_bilinear, Image.BILINEAR)):
            each = zip(images.split(1), parameters.tolist(), strict=True)
            expected = torch.cat([through_pil(one, operator(p, by), [0]) for one, p in each])
            distance = apart(ours_by(images, matrix, ours), expected)
            far = (distance.amax(3) > (by == Image.BILINEAR)).float().mean()
            assert far < 0.003, (number, by, far)  # PIL's nearest counts in 1 / 65536 pixels


def test_between_pixels_levels_are_rounded():
    image = torch.tensor([10, 13, 13, 10], dtype=torch.uint8).view(1, 1, 4, 1).expand(2, 4, 4, 1)
    moved = warp.translation(torch.tensor([0.5, 0.25]), torch.zeros(2))
    seen = warp.warp_bilinear(image, moved, 0)[:, 2, :, 0]
    assert seen.tolist() == [[12, 13, 12, 0], [11, 13, 12, 10]]  # from 11.5, 10.75 and 12.25


def test_flip_mirrors_those_of_the_mask():
    images = pictures()
    mask = torch.tensor([True, False, False, True, True, False, True])
    for batch in (images, images.float()):
        got = warp.flip(batch, mask)
        for b in range(7):
            assert torch.equal(got[b], batch[b].flip(1) if mask[b] else batch[b])


# --- RandAugment --------------------------------------------------------------------------------


def drawn(batch, magnitude, sign=1.0, row=0.5, column=0.5):
    full = [torch.full((batch,), v) for v in (sign, row, column)]
    return Drawn(torch.full((batch,), magnitude, dtype=torch.float64), *full)


MAGNITUDES = (0, 5, 10, 15, 20)


def rescaled(image: np.ndarray) -> np.ndarray:
    """A channel (H, W) stretched to 0..255 in float32, as the script does it."""
    low, high = np.float32(image.min()), np.float32(image.max())
    if high == low:
        return image
    scale = np.float32(255) / (high - low)
    stretched = image.astype(np.float32) * scale + -low * scale
    return np.clip(stretched, 0, 255).astype(np.uint8)


def mixed(base: np.ndarray, image: np.ndarray, factor: float) -> np.ndarray:
    base, image = base.astype(np.float32), image.astype(np.float32)
    return np.clip(base + np.float32(factor) * (image - base), 0, 255).astype(np.uint8)


def projected(image: np.ndarray, six: tuple[float, ...]) -> np.ndarray:
    """ImageProjectiveTransform, nearest: halves away from 0; 128 where that is outside."""
    height, width, _ = image.shape
    down, across = np.mgrid[:height, :width].astype(np.float32)
    a, b, c, d, e, f = np.float32(six)
    places = [a * across + b * down + c, d * across + e * down + f]
    x, y = (np.trunc(v + np.copysign(np.float32(0.5), v)).astype(int) for v in places)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    seen = image[y.clip(0, height - 1), x.clip(0, width - 1)]
    return np.where(inside[..., None], seen, np.uint8(128))


def executed(name: str, image: np.ndarray, magnitude: float, sign: float) -> np.ndarray:
    """big_vision/pp/autoaugment.py stated in numpy: uint8 (H, W, 3) to the same.

    What meets a uint8 is one: `uint8()` wraps, and shifts end at 7. Cutout's place is (1/4, 3/4).
    """
    height, width, _ = image.shape
    level, pixels = magnitude / 10, height * width
    factor = level * 1.8 + 0.1

    def uint8(number: int) -> np.uint8:
        return np.array([number]).astype(np.uint8)[0]

    def shift() -> np.uint8:
        return min(uint8(8 - int(level * 4)), np.uint8(7))

    def grey() -> np.ndarray:
        return np.floor(image / 255 @ [0.2989, 0.587, 0.114] * 255.5)[..., None]

    def smooth() -> np.ndarray:
        around = np.lib.stride_tricks.sliding_window_view(image.astype(int), (3, 3), (0, 1))
        base = image.copy()
        base[1:-1, 1:-1] = (around.sum((-1, -2)) + 4 * image[1:-1, 1:-1].astype(int)) // 13
        return base

    def turned() -> tuple[float, ...]:
        angle = np.float32(np.deg2rad(sign * level * 30))
        cos, sin, right, bottom = np.cos(angle), np.sin(angle), width - 1, height - 1
        x, y = right - (cos * right - sin * bottom), bottom - (sin * right + cos * bottom)
        return cos, -sin, x / 2, sin, cos, y / 2

    def hole() -> np.ndarray:
        half, row, column = int(level * 40), height // 4, width * 3 // 4
        done = image.copy()
        done[max(0, row - half) : row + half, max(0, column - half) : column + half] = 128
        return done

    shear, move = sign * level * 0.3, sign * level * 100
    operators: dict[str, Callable[[], np.ndarray]] = {
        "AutoContrast": lambda: np.stack([rescaled(c) for c in np.moveaxis(image, 2, 0)], 2),
        "Equalize": lambda: np.asarray(ImageOps.equalize(Image.fromarray(image))),
        "Invert": lambda: uint8(255) - image,
        "Rotate": lambda: projected(image, turned()),
        "Posterize": lambda: image >> shift() << shift(),
        "Solarize": lambda: np.where(image < uint8(int(level * 256)), image, uint8(255) - image),
        "Color": lambda: mixed(grey(), image, factor),
        "Contrast": lambda: mixed(np.full_like(image, min(pixels // 256, 255)), image, factor),
        "Brightness": lambda: mixed(np.zeros_like(image), image, factor),
        "Sharpness": lambda: mixed(smooth(), image, factor),
        "ShearX": lambda: projected(image, (1, shear, 0, 0, 1, 0)),
        "ShearY": lambda: projected(image, (1, 0, 0, shear, 1, 0)),
        "TranslateX": lambda: projected(image, (1, 0, move, 0, 1, 0)),
        "TranslateY": lambda: projected(image, (1, 0, 0, 0, 1, move)),
        "Cutout": hole,
        "SolarizeAdd": lambda: np.where(
            image < 128, (image.astype(np.int64) + int(level * 110)).clip(0, 255), image
        ).astype(np.uint8),
    }
    assert list(TF) == list(operators)
    return operators[name]()


# Of levels that may differ: where a place is halfway between two pixels, or a float32 grey nearly a
# whole number.
SHARES = dict.fromkeys(("Rotate", "ShearX", "ShearY"), 0.003) | {"Color": 1e-5}


@pytest.mark.parametrize("size", [224, 32])
@pytest.mark.parametrize("magnitude", [*MAGNITUDES, 24])  # whose shift wraps
def test_tf_operators_are_those_that_the_script_executes(magnitude, size):
    images = pictures(height=size, width=size)[[0, 3, 6]]
    for name, operator in TF.items():
        for sign in (-1.0, 1.0):
            got = operator(images, drawn(3, magnitude, sign, row=0.25, column=0.75), 128)
            expected = np.stack([executed(name, i, magnitude, sign) for i in images.numpy()])
            far = (apart(got, torch.from_numpy(expected)) > 0).float().mean()
            assert far <= SHARES.get(name, 0), (name, sign)


def test_contrast_of_large_images_is_about_white():
    flat = torch.full((1, 512, 512, 3), 255, dtype=torch.uint8)
    assert torch.equal(TF["Contrast"](flat, drawn(1, 15), 128), flat)  # any other one moves


def checksum(operator: Callable[[int], np.ndarray]) -> int:
    """Of all magnitudes, one after the other."""
    return zlib.crc32(b"".join(np.asarray(operator(m)).tobytes() for m in MAGNITUDES))


# Computed with TensorFlow 2.21 (tf.data): the operators of big_vision/pp/autoaugment.py on
# `formula`, 224 and 32 pixels wide, sign +1. Not Sharpness, whose sums hang on TensorFlow's build.
TENSORFLOW = {
    "AutoContrast": (1638050691, 2461699669),
    "Equalize": (696004390, 2109513534),
    "Invert": (496165805, 2975981186),
    "Posterize": (3209122138, 3663708838),
    "Solarize": (1701440872, 266813374),
    "Color": (2320593088, 285737095),
    "Contrast": (2045321648, 2001800306),
    "Brightness": (3777147868, 2315219722),
    "SolarizeAdd": (1067224733, 2446179509),
    "ShearX": (4081804941, 1812090999),
    "ShearY": (2867073736, 299031052),
    "TranslateX": (235524680, 2736752001),
    "TranslateY": (1426196138, 2736752001),
}


def formula(size: int) -> np.ndarray:
    row, column, channel = np.ogrid[:size, :size, :3]
    level = (row * 7 + column * 13 + channel * 29 + row * column // 5) % 256
    return (level * (3 + channel) // 6 + 5 * channel + 11).astype(np.uint8)


def test_operators_give_the_bits_that_they_gave_in_tensorflow():
    for name, expected in TENSORFLOW.items():
        for size, one in zip((224, 32), expected, strict=True):
            image = torch.from_numpy(formula(size))[None]
            ours = checksum(lambda m, i=image, n=name: TF[n](i, drawn(1, m), 128).numpy())
            assert ours == one, (name, size)
            assert checksum(lambda m, i=image, n=name: executed(n, i[0].numpy(), m, 1)) == one


@CHANNELS
@pytest.mark.parametrize("magnitude", [0.0, 2.2, 7.9, 9.0, 9.9])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_timm_operators_are_timms(channels, magnitude, sign, oracle, monkeypatch):
    timm = oracle("timm.data.auto_augment")
    assert list(TIMM) == timm._RAND_INCREASING_TRANSFORMS
    monkeypatch.setattr(timm, "_randomly_negate", lambda level: sign * level)
    images = pictures(channels)
    mean = (124, 116, 104) if channels == 3 else 120
    settings = {"img_mean": mean, "interpolation": Image.BILINEAR}
    fill = torch.tensor(mean).view(-1)
    for name, operator in TIMM.items():
        theirs = timm.AugmentOp(name, prob=1.0, magnitude=magnitude, hparams=settings)
        expected = through_pil(images, theirs)
        distance = apart(operator(images, drawn(7, magnitude, sign), fill), expected)
        assert (distance.amax(3) > 1).float().mean() < 0.003, name
        if name not in ("AutoContrast", "Rotate", "ShearX", "ShearY"):
            assert distance.max() <= name.startswith("Translate"), name


def test_timm_leaves_no_bits_at_the_top():
    assert TIMM["PosterizeIncreasing"](pictures(), drawn(7, 10.0), 0).max() == 0


@CHANNELS
@pytest.mark.parametrize("table", [TF, TIMM], ids=["tf", "timm"])
def test_each_image_is_changed_as_if_alone(channels, table):
    images, uniform = pictures(channels).repeat(5, 1, 1, 1), drawing(3, 35)
    told = Drawn(10 * uniform[0].double(), (uniform[1] < 0.5) * 2.0 - 1, uniform[1], uniform[2])
    choice = torch.arange(35) % (len(table) + 1)
    before = images.clone()
    got = randaugment.operate(images, DrawnLayer(choice, told, {}), table.values(), 128)
    assert torch.equal(images, before)
    operators = [*table.values(), lambda image, *_: image]
    for b in range(35):
        alone = operators[choice[b]](images[b : b + 1], Drawn(*(v[b : b + 1] for v in told)), 128)
        assert torch.equal(got[b], alone[0]), (b, choice[b])
    changed = (got != images).flatten(1).any(1)
    assert len(set(choice[changed].tolist())) > len(table) - 3  # not that nothing happens


@CHANNELS
@pytest.mark.parametrize("table", [TF, TIMM], ids=["tf", "timm"])
@pytest.mark.parametrize("size", [(24, 20), (2, 9)])
def test_all_at_once_they_are_what_they_are_by_groups(channels, table, size):
    """Every operator, at magnitudes whose parameters are cut, wrap and are refused elsewhere."""
    images = pictures(channels, *size).repeat(40, 1, 1, 1)
    for seed, most in enumerate((10.0, 20.0)):
        uniform = drawing(4, 280, seed=seed)
        magnitude = (most * uniform[0].double()).where(uniform[0] < 0.7, most)
        told = Drawn(magnitude, randaugment.sign(uniform[1]), uniform[2], uniform[3])
        choice = torch.arange(280) % (len(table) + 1)
        operators = tuple(table.values())
        layer = settled(choice, told, operators, *size)
        for fill in (128, torch.tensor([7.0, 99.0, 250.0][:channels])):
            expected = grouped(images, layer, operators, fill)
            assert torch.equal(masked(images, layer, operators, fill), expected)


def chi2(counts: torch.Tensor) -> float:
    """p-value of equal chances."""
    return stats.chisquare(counts.numpy()).pvalue


def marked(table: dict) -> dict:
    """Operators that push their number onto a pixel: what was drawn, layer after layer."""
    return {
        name: lambda x, d, fill, number=number: x * (len(table) + 1) + number + 1
        for number, name in enumerate(table)
    }


def told(table: dict, seen: list[tuple[int, Drawn]]) -> dict:
    """Operators that only note what they are told."""
    return {
        name: lambda x, d, fill, number=number: seen.append((number, d)) or x
        for number, name in enumerate(table)
    }


def signs_are_even_for_each(seen: list[tuple[int, Drawn]]) -> bool:
    joint = [[(d.sign == s).sum() for s in (-1, 1)] for _, d in seen]
    return stats.chisquare(np.array(joint).ravel()).pvalue > 0.01


def test_tf_draws_two_operators_evenly_and_apart(monkeypatch):
    monkeypatch.setattr(randaugment, "TF", marked(TF))
    images = torch.zeros((25_600, 1, 1, 1), dtype=torch.int64)
    pairs = tf(images, drawing(2, TF_LAYER, len(images), seed=5), 9).view(-1)
    first, second = pairs // 17, pairs % 17
    joint = ((first - 1) * 16 + second - 1).bincount(minlength=256)
    assert len(joint) == 256  # none is spared
    assert chi2(joint) > 0.01


def test_tf_signs_and_places_are_even(monkeypatch):
    seen: list[tuple[int, Drawn]] = []
    monkeypatch.setattr(randaugment, "TF", told(TF, seen))
    tf(torch.zeros((8000, 1, 1, 1)), drawing(1, TF_LAYER, 8000, seed=2), 7.5)
    magnitude, _, row, column = (torch.cat(v) for v in zip(*(d for _, d in seen), strict=True))
    assert (magnitude == 7.5).all()
    assert signs_are_even_for_each(seen)
    assert stats.kstest(row, "uniform").pvalue > 0.01
    assert stats.kstest(column, "uniform").pvalue > 0.01
    number = torch.cat([torch.full_like(d.sign, n) for n, d in seen])
    columns = torch.stack([number, torch.cat([d.sign for _, d in seen]), row, column])
    assert (columns.corrcoef() - torch.eye(4)).abs().max() < 3.3 / 8000**0.5


def test_timm_draws_operators_magnitudes_and_signs(oracle, monkeypatch):
    monkeypatch.setattr(randaugment, "TIMM", marked(TIMM))
    images = torch.zeros((24_000, 1, 1, 1), dtype=torch.int64)
    pairs = timm_style(images, drawing(2, TIMM_LAYER, len(images), seed=1), 0).view(-1)
    spared, once, twice = pairs == 0, (pairs > 0) & (pairs < 16), pairs[pairs > 15]
    layers = [spared.sum().item(), once.sum().item(), len(twice)]
    assert stats.chisquare(layers, [6000, 12000, 6000]).pvalue > 0.01  # 1/4, 1/2, 1/4
    assert chi2(((twice // 16 - 1) * 15 + twice % 16 - 1).bincount(minlength=225)) > 0.01
    assert chi2(pairs[once].bincount()[1:]) > 0.01

    seen: list[tuple[int, Drawn]] = []
    monkeypatch.setattr(randaugment, "TIMM", told(TIMM, seen))
    timm_style(images, drawing(1, TIMM_LAYER, len(images), seed=4), 0)
    magnitude = torch.cat([d.magnitude for _, d in seen])
    timm = oracle("timm.data.auto_augment")
    random.seed(0)
    theirs: list[float] = []
    monkeypatch.setitem(timm.LEVEL_TO_ARG, "Invert", lambda level, _: theirs.append(level) or ())
    invert = timm.AugmentOp("Invert", 1.0, 9, timm._HPARAMS_DEFAULT | {"magnitude_std": 0.5})
    for _ in range(12_000):
        invert(Image.new("L", (1, 1)))
    assert stats.ks_2samp(magnitude, theirs).pvalue > 0.01
    assert abs((magnitude == 10).double().mean() - stats.norm.sf(2)) < 0.005  # clamped
    assert signs_are_even_for_each(seen)
    # an image's layers have nothing to do with one another
    magnitudes, signs = torch.zeros(2, 2, 24_000)

    def note(x, d, fill, layer):
        magnitudes[layer, x.view(-1)], signs[layer, x.view(-1)] = d.magnitude.float(), d.sign
        return x

    calls = iter(range(30))
    every = dict.fromkeys(TIMM, lambda x, d, fill: note(x, d, fill, next(calls) // 15))
    monkeypatch.setattr(randaugment, "TIMM", every)
    numbers = torch.arange(24_000).view(-1, 1, 1, 1)
    timm_style(numbers, drawing(2, TIMM_LAYER, len(numbers), seed=4), 0, probability=1.0)
    for values in (magnitudes, signs):
        assert values.corrcoef()[0, 1].abs() < 3.3 / 24_000**0.5
