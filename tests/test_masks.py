"""Images with masks: what is kept of them, and that both are cut, scaled and mirrored alike.

Geometry is read off the pictures themselves: their red is the column of a pixel and their green its
row, and a mask is a checkerboard of columns and rows. So a crop says where each of its pixels is
from, and what its class must be.
"""

from __future__ import annotations

import colorsys
import dataclasses
import itertools
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from conftest import contents, refused
from numpy.testing import assert_array_equal
from PIL import ExifTags, Image
from support.data_sections import describe
from support.decoding import kill_decoding
from support.images import jpeg, noise, png, stored
from support.masks import (
    BLOCK,
    CLASSES,
    MASKS,
    checkers,
    image_and_mask,
    masked_data,
    masked_settings,
    write_masks,
)

from ablate.data import batches, cache
from ablate.data.augment import colour as colours
from ablate.data.augment.colour import PHOTOMETRIC, photometric
from ablate.data.batches import Batches, evaluation_batches
from ablate.data.draws import Draws
from ablate.data.image_changes import ImageView
from ablate.data.mask import classes
from ablate.data.picture import Example
from ablate.data.picture_crop import FLIP, PLACE, UNIFORMS, MaskedCrops, nearest, resized_shape
from ablate.data.source import fraction_rows
from ablate.data.splits import MaskedSplit
from ablate.planning.compose import resolve_run
from ablate.run import decoded
from ablate.run.sections import NO_CLASS, Augment, Data

SHAPES = [(96, 70), (60, 100), (48, 48), (130, 40)]  # width, height


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """24 pictures of four shapes with their masks, and 4 to test on."""
    folder = tmp_path_factory.mktemp("masks")
    for name, number in (("train", 24), ("test", 4)):
        pairs = [image_and_mask(*SHAPES[n % len(SHAPES)]) for n in range(number)]
        write_masks(folder / f"{name}.parquet", *([png(one[n]) for one in pairs] for n in (0, 1)))
    return folder


@pytest.fixture(scope="module")
def train(files, tmp_path_factory):
    return cache.prepare_cache(masked_data(files), tmp_path_factory.mktemp("cache")).split("train")


def release(folder: Path, shapes: dict[str, tuple[int, int]], names: str) -> None:
    """Folders of images and annotations, PNG."""
    for kind, n in (("images", 0), ("annotations", 1)):
        for split, shape in shapes.items():
            (home := folder / kind / split).mkdir(parents=True)
            for name in names:
                image_and_mask(*shape)[n].save(home / f"{name}.png")


# --- What is kept -------------------------------------------------------------------------------


def test_pictures_and_masks_are_kept_as_large_as_they_are(files, tmp_path):
    data = masked_data(files)
    for number in (1, 2):  # by a thread, and by two
        found = cache.prepare_cache(data, tmp_path / f"{number}", threads=number)
        assert found.counts == {"train": 20, "validation": 4, "test": 4}
        test = found.split("test")
        assert isinstance(test, MaskedSplit)
        for row, shape in enumerate(SHAPES):
            image, mask = image_and_mask(*shape)
            assert_array_equal(test.picture(row), image)
            assert_array_equal(test.mask(row), mask)
            pixels = [(np.asarray(mask) == n).sum() for n in range(CLASSES)]
            assert test.labels[row].tolist() == pixels
    assert cache.inspect_data(data, tmp_path / "2").bytes == found.bytes


def test_a_folder_of_images_and_annotations_is_read_as_its_release_has_it(tmp_path):
    release(tmp_path / "ade", {"training": SHAPES[0], "validation": SHAPES[1]}, "abc")
    split = {"train": "training", "validation": "validation[:1]", "test": "validation[1:]"}
    found = cache.prepare_cache(masked_data(tmp_path / "ade", **split), tmp_path / "cache")
    assert found.counts == {"train": 3, "validation": 1, "test": 2}
    assert_array_equal(found.split("test").mask(1), image_and_mask(*SHAPES[1])[1])
    (tmp_path / "ade/annotations/training/b.png").unlink()
    with refused(r"images/training/b.png: has no mask of its name"):
        cache.prepare_cache(masked_data(tmp_path / "ade", **split), tmp_path / "other")


@pytest.mark.parametrize(
    ("ignore", "levels", "expected"),
    [
        (0, [0, 1, 2, 3, 255], [NO_CLASS, 0, 1, 2, NO_CLASS]),  # ADE20k
        (3, [0, 1, 2, 3, 255], [0, 1, 2, NO_CLASS, NO_CLASS]),  # CamVid
        (1, [0, 1, 2, 3, 255], [0, NO_CLASS, 1, 2, NO_CLASS]),
        (None, [0, 1, 2, 0, 255], [0, 1, 2, 0, NO_CLASS]),
    ],
)
def test_levels_become_classes(ignore, levels, expected):
    data = describe(**MASKS, hub="a/b", ignore=ignore)
    grey = Image.fromarray(np.array([levels], np.uint8))
    palette = grey.convert("P")
    palette.putdata(levels)
    palette.putpalette([7, 7, 7] * 256)  # colours say nothing
    for mask in (grey, palette):
        assert classes(Example("it", png(mask), None), data).tolist() == [expected]
    wrong = Image.fromarray(np.array([[0, 0], [0, 4]], np.uint8))
    with refused(r"data.label: it: pixel \(1, 1\) has level 4: expected"):
        classes(Example("it", png(wrong), None), data)


def test_what_is_no_mask_is_named_and_left_out(tmp_path):
    image, mask = image_and_mask(40, 30)
    bad = {
        png(mask.transpose(Image.Transpose.ROTATE_90)): "row 1 of .*: has 30x40 pix.* image 40x30",
        png(image): "the mask in row 2 of .*one number a pixel, this is RGB",
        jpeg(mask): "row 3 of .*stored without losses, and JPEG is not",
        b"words": "the mask in row 4 of .*no whole PNG",
    }
    masks = [png(mask), *bad, *[png(mask)] * 7]
    write_masks(tmp_path / "data" / "train.parquet", [png(image)] * 12, masks)
    settings = {"validation": 2, "test": 2}
    with refused("4 of 12 images can't be read") as raised:
        cache.prepare_cache(masked_data(tmp_path / "data", **settings), tmp_path / "cache")
    assert all(re.search(said, str(raised.value)) for said in bad.values())
    data = masked_data(tmp_path / "data", **settings, broken="skip")
    found = cache.prepare_cache(data, tmp_path / "cache")
    assert sum(found.counts.values()) == 8
    for name in decoded.SPLITS:
        rows = found.split(name)
        assert len(rows.lengths) == len(rows.labels) == len(rows) == found.counts[name]
        for row in range(len(rows)):
            assert_array_equal(rows.mask(row), mask)


def test_a_mask_belongs_to_the_upright_image(tmp_path):
    """As mmsegmentation reads the two: EXIF turns the image, and not the mask. One that was drawn
    on the image as it is stored has another size, unless it is square."""
    image, mask = image_and_mask(96, 70)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # by a quarter, to be seen upright
    turned = [each.transpose(Image.Transpose.ROTATE_90) for each in (image, mask)]

    def prepared(mask):
        write_masks(
            tmp_path / "set/train.parquet", [stored(turned[0], "PNG", exif=exif)] * 6, [mask] * 6
        )
        return cache.prepare_cache(
            masked_data(tmp_path / "set", validation=1, test=1), tmp_path / "cache"
        )

    split = prepared(png(mask)).split("train")
    assert_array_equal(split.picture(0), image)
    assert_array_equal(split.mask(0), mask)
    with refused(r"has 70x96 pixels, its image 96x70 \(upright, if its EXIF"):
        prepared(png(turned[1]))


def test_two_of_a_name_and_masks_without_images_are_refused(tmp_path):
    release(tmp_path / "set", {"train": (48, 48), "test": (48, 48)}, "abcde")
    image_and_mask(48, 48)[0].save(tmp_path / "set" / "images" / "train" / "a.jpg")
    with refused(r"^data\.path: .*train/a\.png: has the name of a\.jpg"):
        cache.prepare_cache(masked_data(tmp_path / "set", validation=1), tmp_path / "cache")
    (tmp_path / "set" / "images").rename(tmp_path / "set" / "pictures")
    said = r"^data\.path: .*set: holds annotations and no images: .* or call a class that has this"
    for words in (["data=imagefolder"], ["data=imagefolder", "data.labels=masks", "task=segment"]):
        with refused(said):
            resolve_run([*words, f"data.path={tmp_path / 'set'}"], tmp_path / "runs")


def test_masks_of_no_class_at_all_are_refused(tmp_path):
    nothing = png(Image.new("L", (40, 30), 255))
    write_masks(
        tmp_path / "data" / "train.parquet", [png(image_and_mask(40, 30)[0])] * 9, [nothing] * 9
    )
    with refused(r"data.label: no pixel of the train images"):
        cache.prepare_cache(masked_data(tmp_path / "data", test=2), tmp_path / "cache")


def test_a_killed_build_is_gone_on_with_and_rot_is_found(files, tmp_path):
    data, folder = masked_data(files), tmp_path / "cache"
    kill_decoding(data, folder, lambda done, _: done > 9, chunk=4)
    left = cache.inspect_data(data, folder)
    assert 0 < left.decoded_images < 28

    def gone_on_with(folder, expected):
        reports = []
        cached = cache.prepare_cache(data, folder, lambda done, total: reports.append(done))
        assert reports[0] == expected
        return cached

    for what in ("lengths", "labels"):  # damaged among what is done: begun again
        rotten = shutil.copytree(folder, tmp_path / what)
        with open(rotten / f".{data.fingerprint}.building/train.{what}.npy", "r+b") as file:
            file.seek(128)
            file.write(b"\7\7")
        gone_on_with(rotten, 0)
    calm = cache.prepare_cache(data, tmp_path / "calm")
    assert contents(gone_on_with(folder, left.decoded_images).folder) == contents(calm.folder)
    assert decoded.damage(calm.folder) is None
    with open(calm.folder / "train.lengths.npy", "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\1")
    assert "train.lengths.npy" in str(decoded.damage(calm.folder))


# --- Which of them are learnt from --------------------------------------------------------------


def test_smaller_fractions_are_within_larger_ones(files, tmp_path):
    rows = [
        fraction_rows(masked_data(files, fraction=f), 20_010)
        for f in (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
    ]
    assert [len(some) for some in rows] == [1251, 2501, 5002, 10005, 20010]
    for fewer, more in itertools.pairwise(rows):
        assert {*fewer.tolist()} < {*more.tolist()}
        assert (np.diff(fewer) > 0).all()
    assert abs(rows[0].mean() - 20_010 / 2) < 600  # from all of it, not from its beginning
    half = masked_data(files, fraction=0.5)
    assert half.fingerprint == masked_data(files).fingerprint  # decoded once
    assert cache.count_examples(half, tmp_path) == {"train": 10, "validation": 4, "test": 4}


# --- What is shown ------------------------------------------------------------------------------


def shown(split: MaskedSplit, *steps: int, **augment: Any) -> list[tuple[Any, Any]]:
    augment, view = {"flip": False, "crop_pad": 0, **augment}, ImageView(48, "unit", cut_style="tf")
    batches = Batches(split, 10, Augment(**augment), Draws(3), view)
    return [batches.at(step) for step in steps]


GEOMETRY = {"flip": True, "rescale": 2.0, "class_share": 0.75}


def test_masks_stay_on_their_pixels_through_scaling_crops_mirrors_and_padding(train):
    mirrored = padded = enlarged = 0
    for images, masks in shown(train, *range(8), **GEOMETRY):
        assert images.shape == (10, 48, 48, 3)
        for image, mask in zip((255 * images).numpy(), masks.numpy(), strict=True):
            inside = image[..., 2] > 190  # blue is 200 in pictures and 0 where they are padded
            assert (image[~inside] == 0).all()
            assert (mask[~inside] == NO_CLASS).all()
            tall, wide = inside.any(1).sum(), inside.any(0).sum()
            assert inside[:tall, :wide].all()  # padded at the right and below
            columns, rows = image[:tall, :wide, 0], image[:tall, :wide, 1]
            # Within a block, away from its edges: two source pixels are more than any rounding.
            inner = [np.abs(p % BLOCK - BLOCK / 2) < BLOCK / 2 - 2 for p in (columns, rows)]
            sure = inner[0] & inner[1] & (np.abs(columns - BLOCK / 2) > 2)
            assert sure.mean() > 0.2
            expected = checkers(rows.round().astype(int), columns.round().astype(int))
            assert_array_equal(mask[:tall, :wide][sure], expected[sure])
            step = np.diff(columns.mean(0)).mean()
            mirrored += step < 0
            enlarged += abs(step) < 0.9
            padded += (tall, wide) != (48, 48)
    assert 25 < mirrored < 55  # of 80, half
    assert padded > 10
    assert enlarged > 20


def test_colours_change_and_nothing_moves(train):
    blues = set()
    plain_ones = shown(train, 0, 1, 2, **GEOMETRY)
    coloured = shown(train, 0, 1, 2, **GEOMETRY, photometric=True)
    for (plain, mask), (changed, same) in zip(plain_ones, coloured, strict=True):
        assert torch.equal(mask, same)
        assert (plain - changed).abs().max() > 0.1
        blues.add(tuple(changed[:, 0, 0, 2].tolist()))  # 200 in every picture
        padding = (plain == 0).all(3)
        assert (changed[padding] == 0).all()
        # A pixel's colour hangs on that pixel alone.
        where = torch.rand(48, 48).argsort(1)[None, :, :, None].expand(10, -1, -1, 3)
        levels, uniform = (255 * plain).round().to(torch.uint8), torch.rand(PHOTOMETRIC, 10)
        expected = photometric(levels, uniform).gather(2, where)
        assert torch.equal(photometric(levels.gather(2, where), uniform), expected)
    assert len(blues) == 3  # other draws each step
    assert min(len(set(row)) for row in blues) > 5  # and for each image


def test_batches_are_the_same_whoever_decodes_and_after_a_resume(train, monkeypatch):
    seen = []
    for threads in (1, 3):
        monkeypatch.setattr(batches, "gathering_threads", lambda device, n=threads: n)
        seen.append(shown(train, 0, 1, 2, 3, **GEOMETRY, photometric=True))
    for one, other in zip(*seen, strict=True):
        assert all(map(torch.equal, one, other))
    resumed = shown(train, 3, 1, **GEOMETRY, photometric=True)
    assert all(torch.equal(resumed[n][0], seen[0][step][0]) for n, step in enumerate((3, 1)))


def test_evaluation_shows_whole_pictures_one_at_a_time(train):
    view = ImageView(48, "imagenet", cut_style="tf")
    for row, (image, mask) in enumerate(evaluation_batches(train, 4, view)):
        picture = np.asarray(train.picture(row)) / 255
        expected = (picture - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
        np.testing.assert_allclose(image[0].numpy(), expected, atol=1e-5)
        assert_array_equal(mask[0], train.mask(row))


# --- Where crops are, and how large -------------------------------------------------------------


def crops(draws: np.ndarray, size: int, **augment: Any) -> MaskedCrops:
    return MaskedCrops([*draws], size, Augment(**{"flip": False, "crop_pad": 0, **augment}))


def test_sizes_are_those_of_the_reference():
    """(int(2048 u), int(512 u)), the factor that fits both, sides rounded half up."""
    for u, (tall, wide) in itertools.product((0.5, 1.0, 1.37, 1.9), ((512, 683), (300, 2000))):
        longer, shorter = int(2048 * u), int(512 * u)
        factor = min(longer / max(tall, wide), shorter / min(tall, wide))
        expected = int(tall * factor + 0.5), int(wide * factor + 0.5)
        assert resized_shape(tall, wide, 512, u) == expected
    assert resized_shape(300, 2000, 512, 1.0) == (307, 2048)
    assert resized_shape(240, 320, 240, 1.0) == (240, 320)


def test_pictures_are_scaled_bilinearly_and_masks_to_the_nearest():
    """As torch does, in floating point: a level apart."""
    picture = noise(1, (37, 26))
    mask = np.random.default_rng(0).integers(0, CLASSES, (26, 37)).astype(np.uint8)
    planes = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float()
    for u in (0.0, 0.3, 0.99):
        draws = np.zeros((1, UNIFORMS))
        draws[0, 0] = u
        pixels, labels = crops(draws, 200, rescale=2.0).show_both(0, picture, mask)
        size = resized_shape(26, 37, 200, 0.5 + 1.5 * u)
        expected = F.interpolate(planes, size, mode="bilinear")[0].permute(1, 2, 0)
        assert np.abs(pixels - expected[:200, :200].numpy()).max() <= 1.01
        near = F.interpolate(torch.from_numpy(mask)[None, None].float(), size)[0, 0]
        assert_array_equal(labels, near[:200, :200])
    assert nearest(4, 8).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def first_fitting(mask: np.ndarray, size: int, uniform: np.ndarray) -> tuple[int, int]:
    """The rule of mmsegmentation's RandomCrop, step by step."""
    for u, v in uniform.reshape(-1, 2):
        top, left = (int(x * (n - size + 1)) for x, n in zip((u, v), mask.shape, strict=True))
        part = mask[top : top + size, left : left + size]
        found, pixels = np.unique(part, return_counts=True)
        pixels = pixels[found != NO_CLASS]
        if len(pixels) > 1 and pixels.max() / pixels.sum() < 0.75:
            break
    return top, left


def test_crops_of_mostly_one_class_are_drawn_again():
    mask = np.zeros((60, 80), np.uint8)
    mask[30:, 40:], mask[:10] = 1, NO_CLASS
    picture, random = image_and_mask(80, 60)[0], np.random.default_rng(1)
    many, redrawn, stood = random.random((300, UNIFORMS)), 0, 0
    for n, uniform in enumerate(many):
        pixels, labels = crops(many, 24, class_share=0.75).show_both(n, picture, mask)
        top, left = first_fitting(mask, 24, uniform[PLACE:FLIP])
        assert (pixels[0, 0, 1], pixels[0, 0, 0]) == (top, left)
        assert_array_equal(labels, mask[top : top + 24, left : left + 24])
        redrawn += int(uniform[PLACE] * 37) != top
        stood += (labels == 1).sum() <= 0.25 * (labels != NO_CLASS).sum()
    assert FLIP - PLACE == 2 * 11  # a first one, and ten more
    assert redrawn > 200
    assert 0 < stood < 60  # eleven draws in vain: the last one stands


# --- Photometric distortion ---------------------------------------------------------------------


def test_hues_and_saturations_are_the_standard_librarys():
    levels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 3, 20, 20))).float()
    hue, saturation, value = colours.to_hsv(levels)
    back = colours.from_hsv(hue, saturation, value)
    for y, x in itertools.product(range(20), repeat=2):
        h, s, v = colorsys.rgb_to_hsv(*(levels[0, :, y, x] / 255).tolist())
        apart = abs(float(hue[0, y, x]) - 180 * h)
        assert min(apart, 180 - apart) <= 0.5 + 1e-3
        assert float(saturation[0, y, x]) == pytest.approx(255 * s, abs=0.5 + 1e-3)
        assert float(value[0, y, x]) == pytest.approx(255 * v, abs=1e-3)
        whole = (float(hue[0, y, x]) / 180, float(saturation[0, y, x]) / 255, v)
        expected = [255 * part for part in colorsys.hsv_to_rgb(*whole)]
        assert back[0, :, y, x].tolist() == pytest.approx(expected, abs=0.5 + 1e-2)
    assert torch.equal(colours.turned(levels, torch.tensor([180.0])), back)
    assert (colours.saturated(levels, torch.tensor([0.0])) == levels.amax(1)).all()  # grey


def test_each_part_is_what_it_says_half_of_the_time():
    """One part at a time, on whole levels, against numpy."""
    images = torch.from_numpy(np.random.default_rng(2).integers(0, 256, (4, 8, 8, 3))).byte()

    def changed(images, drawn):
        uniform = torch.full((PHOTOMETRIC, 4), 0.9)  # off
        for row, values in drawn.items():
            uniform[row] = torch.tensor(values)
        return photometric(images, uniform)

    assert torch.equal(changed(images, {}), images)
    shift = np.array([-32.0, -16.0, 0.0, 19.2], np.float32).reshape(4, 1, 1, 1)
    expected = np.clip(images.numpy() + shift, 0, 255).astype(np.uint8)
    assert_array_equal(changed(images, {1: 0.1, 2: [0.0, 0.25, 0.5, 0.8]}), expected)
    factor = np.array([0.5, 0.75, 1.0, 1.25], np.float32).reshape(4, 1, 1, 1)
    expected = np.clip(images.numpy() * factor, 0, 255).astype(np.uint8)
    for order in (0.2, 0.8):  # before colours or after them: alone the same
        found = changed(images, {0: order, 3: 0.1, 4: [0.0, 0.25, 0.5, 0.75]})
        assert_array_equal(found, expected)
    grey = images[..., :1].expand(-1, -1, -1, 3)
    assert torch.equal(changed(grey, dict.fromkeys(range(5, PHOTOMETRIC), 0.1)), grey)  # no hue
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).expand(4, 1, 1, 3)
    found = changed(red, {7: 0.1, 8: [0.0, 0.25, 0.5, 0.999]})[:, 0, 0]
    for rgb, half_degrees in zip(found.tolist(), (-18, -9, 0, 17), strict=True):
        expected = colorsys.hsv_to_rgb(half_degrees % 180 / 180, 1, 1)
        assert rgb == pytest.approx([255 * part for part in expected], abs=0.6)


# --- What goes with what ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"task": "classify"}, r"task: classify learns from a class an image.*task=segment"),
        ({"data.labels": "classes"}, r"task: segment learns from masks.*has a class an image"),
        ({"data.cache": "decoded"}, r"data.cache: decoded keeps squares"),
        ({"augment.mixup": 0.2}, r"augment.mixup: is for images without masks"),
        ({"augment.crop_area": 0.1}, r"augment.crop_area: is for images without masks"),
        ({"augment.extra": ["torchvision.transforms:Resize"]}, r"augment.extra: is for image"),
        ({"augment.crop_pad": 2}, r"augment.crop_pad: task=segment has none, got 2"),
        ({"train.loss": "sigmoid"}, r"train.loss: task=segment has none, got 'sigmoid'"),
        ({"eval.stride": 49}, r"eval.stride: 49 is more than a window"),
        ({"eval.crop": 0.9}, r"eval.crop: is for images without masks"),
        ({"probe": ["attention"]}, r"probe: attention: reads one vector an image"),
        ({"stem": "whiten"}, r"stem: whiten is measured on images of one size"),
        ({"model.arch": "mlp/3x10"}, r"model.arch: mlp/3x10 has no tokens"),
        ({"data.classes": 255}, r"data.classes: masks of 8 bits"),
    ],
)
def test_what_can_t_be_is_refused_in_a_line(changes, line):
    with refused(line):
        tiny.run({**masked_settings(), **changes})


@pytest.mark.parametrize(
    ("key", "value"),
    [("data.fraction", 0.5), ("data.ignore", 0), ("augment.rescale", 2.0), ("eval.stride", 3)],
)
def test_keys_of_masks_are_for_masks(key, value):
    with refused(rf"{key}: is for images with masks"):
        tiny.run({key: value})
    before, after = (tiny.run({**masked_settings(), **more}) for more in ({}, {key: value}))
    assert before.id != after.id


def test_ade20k_is_described_without_its_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree, _ = resolve_run(["recipe=segment", "data=ade20k", "model.arch=B/16"], tmp_path / "runs")
    data = Data(**tree["data"])
    assert cache.count_examples(data, tmp_path) == {
        "train": 20_010,
        "validation": 200,
        "test": 2_000,
    }
    some = dataclasses.replace(data, fraction=1 / 16)
    assert cache.count_examples(some, tmp_path) == {"train": 1251, "validation": 200, "test": 2_000}
