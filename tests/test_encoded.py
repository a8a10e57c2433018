"""Files' own bytes instead of squares: kept whole, decoded for each batch, cut as papers cut them.

What is shown is compared with Pillow's own whole picture, cropped and resized: by Pillow in
floating point, or by box means that are counted out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from conftest import contents, refused
from PIL import Image, ImageOps
from pyarrow import parquet
from support.data_sections import describe
from support.decoding import kill_decoding
from support.images import folders, jpeg, noise, png, write_parquet

from ablate.data import batches, cache
from ablate.data.augment.crop import inception_boxes, resized_crop_boxes
from ablate.data.batches import Batches, evaluation_batches
from ablate.data.draws import Draws
from ablate.data.image_changes import ImageView
from ablate.data.picture import BrokenImage
from ablate.data.picture_crop import Centre
from ablate.data.splits import Split, open_cached
from ablate.run import RunSpec, decoded
from ablate.run.decoded import SPLITS
from ablate.run.fingerprint import data_fingerprint
from ablate.run.rundir import RunDir
from ablate.run.sections import Augment, Data
from ablate.running.launchers.fork import check_data
from ablate.training import attempt, worker
from ablate.training.attempt import EXIT_ROTTEN, EXIT_STOPPED

SHAPES = [(40, 30), (30, 44), (64, 64), (17, 90), (90, 23), (26, 25)]  # width, height


def picture(seed: int, size: tuple[int, int]) -> Image.Image:
    """Colours that change smoothly, so that a place off by one shows, and is no rounding."""
    return noise(seed, (9, 7)).resize(size, Image.Resampling.BICUBIC)


def turned(image: Image.Image) -> bytes:
    """A JPEG that lies on its side, and says so."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return jpeg(image, exif=exif)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """36 training images of all shapes, every fifth a JPEG that lies on its side; 7 test images."""
    folder = tmp_path_factory.mktemp("files")
    for name, first, number in (("train", 0, 36), ("test", 36, 7)):
        rows = range(first, first + number)
        images = [(png if i % 5 else turned)(picture(i, SHAPES[i % len(SHAPES)])) for i in rows]
        write_parquet(folder / f"{name}.parquet", images, [i % 3 for i in rows])
    return folder


def own_bytes(files: Path, split: str) -> list[bytes]:
    cells = parquet.read_table(files / f"{split}.parquet").column("image").to_pylist()
    return [cell["bytes"] for cell in cells]


def upright(content: bytes) -> Image.Image:
    with Image.open(io.BytesIO(content)) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


SPLIT = {"train": "train[:30]", "validation": "train[30:]", "test": "test"}


def sample(files: Path, **more: Any) -> Data:
    return describe(path=files, cache="encoded", **SPLIT, **more)


@pytest.fixture(scope="module")
def train(files, tmp_path_factory):
    return cache.prepare_cache(sample(files), tmp_path_factory.mktemp("cache")).split("train")


# --- What is kept -------------------------------------------------------------------------------


def test_each_file_is_kept_byte_for_byte_by_however_many_threads(files, tmp_path):
    data = sample(files)
    seen = cache.inspect_data(data, tmp_path / "one")
    assert seen.counts == {"train": 30, "validation": 6, "test": 7}
    one, two = (cache.prepare_cache(data, tmp_path / f"{n}", threads=n) for n in (1, 2))
    assert abs(seen.bytes / one.bytes - 1) < 0.2  # told before a file was read
    kept = ("encoded", "offsets", "shapes", "labels")
    names = {"meta.json", *(f"{split}.{what}.npy" for split in SPLITS for what in kept)}
    assert contents(one.folder).keys() == names
    assert contents(one.folder) == contents(two.folder)
    stored = own_bytes(files, "train")
    for split, own in (("train", stored[:30]), ("validation", stored[30:])):
        content = np.load(one.folder / f"{split}.encoded.npy").tobytes()
        assert content == b"".join(own)
        shapes = [upright(content).size[::-1] for content in own]
        got = one.split(split)
        assert [tuple(shape) for shape in got.shapes.tolist()] == shapes
        torch.testing.assert_close(got.aspects, torch.tensor([w / h for h, w in shapes]))
    assert one.split("test").labels.tolist() == [i % 3 for i in range(36, 43)]
    assert decoded.damage(one.folder) is None


def test_one_file_serves_all_sizes_and_is_no_other_form_s(files, tmp_path):
    data = sample(files)
    assert sample(files, size=16).fingerprint == data.fingerprint
    others = [describe(path=files, **SPLIT, **more) for more in ({}, {"size": 16})]
    prints = {data.fingerprint, sample(files, channels=1).fingerprint}
    assert len({*prints, *(other.fingerprint for other in others)}) == 4
    cache.prepare_cache(data, tmp_path)
    moved = dataclasses.replace(others[0], fingerprint=data.fingerprint)
    assert open_cached(moved, tmp_path) is None  # moved by hand: not taken for it


def test_the_default_means_as_before():
    path = {"data.source": "datasets", "data.path": "images"}
    before = tiny.run(path)
    ids = [tiny.run({**path, "data.cache": kept}).id for kept in ("decoded", "encoded")]
    assert before.id == ids[0] != ids[1]
    tree = before.spec.tree
    del tree["data"]["cache"]
    assert RunSpec.of(tree).identity == before.spec.identity


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"data.source": "sklearn"}, r"^data\.cache: images of data=\w+ are in no files, so "),
        ({"data.cache_size": 64}, r"^data\.cache_size: 64, but with data\.cache=encoded no image"),
        ({"eval.augment": True}, r"^eval\.augment: changes a whole set once, so it must be dec"),
        ({"data.cache": "jpeg"}, r"^data\.cache: expected one of decoded, encoded, got 'jpeg'"),
    ],
)
def test_what_can_t_be_is_refused_in_a_line(changes, line):
    there = {"data.source": "datasets", "data.path": "images", "data.cache": "encoded"}
    tiny.run({**there, "eval.aspect": "squeeze"})  # there is something to squeeze
    with refused(line):
        tiny.run(there | changes)


# --- What is shown: every law, by Pillow --------------------------------------------------------


def bilinear(image: Image.Image, tall: int, wide: int) -> np.ndarray:
    """Without antialiasing, half-pixel centres, in floating point: (tall, wide, 3)."""
    to = (wide, tall), Image.Transform.EXTENT, (0, 0, *image.size), Image.BILINEAR
    return np.stack([band.convert("F").transform(*to) for band in image.split()], 2)


def box_means(image: Image.Image, tall: int, wide: int) -> np.ndarray:
    """The mean of what each of tall x wide pixels covers, counted out in whole numbers."""
    levels = np.asarray(image).astype(np.int64)
    for axis, (there, size) in enumerate(((image.height, tall), (image.width, wide))):
        many = np.repeat(levels, size, axis).swapaxes(0, axis)
        sums = many.reshape(size, there, *many.shape[1:]).sum(1)
        levels = sums.swapaxes(0, axis)
    return levels / (image.height * image.width)


def boxes_in_pixels(boxes: torch.Tensor, images: list[Image.Image]) -> list[tuple[int, ...]]:
    """(left, top, right, bottom): edges at the nearest whole pixels."""
    found = []
    for (top, left, height, width), image in zip(boxes.tolist(), images, strict=True):
        x, y = round(left * image.width), round(top * image.height)
        end = round((left + width) * image.width), round((top + height) * image.height)
        found.append((x, y, max(x + 1, end[0]), max(y + 1, end[1])))
    return found


@pytest.mark.parametrize(("style", "repeats"), [("tf", 1), ("timm", 1), ("timm", 3)])
def test_training_crops_are_cut_from_the_whole_picture(files, train, style, repeats):
    size, batch, step = 12, 15, 3
    augment = Augment(flip=False, crop_pad=0, crop_area=0.05, style=style, repeats=repeats)
    view = ImageView(size, cut_style=style)
    shown, labels = Batches(train, batch, augment, Draws(7), view).at(step)
    some = batch // repeats  # 2 steps are an epoch
    rows = Draws(7).order(1, 30)[some : 2 * some].repeat(repeats).tolist()
    images = [upright(own_bytes(files, "train")[row]) for row in rows]
    assert labels.tolist() == [row % 3 for row in rows]
    aspects = torch.tensor([image.width / image.height for image in images])
    law, count = (inception_boxes, 4) if style == "tf" else (resized_crop_boxes, 22)
    boxes = law(aspects, Draws(7).uniform("crop", step, count, batch), (0.05, 1.0))
    for place, box in enumerate(boxes_in_pixels(boxes, images)):
        part = images[place].crop(box)
        levels = ((shown[place] + 1) * 127.5).numpy()
        if style == "tf":
            assert np.abs(levels - bilinear(part, size, size)).max() <= 1.01  # rounded twice
        else:
            expected = part.resize((size, size), Image.Resampling.BICUBIC)
            np.testing.assert_allclose(levels, np.asarray(expected), atol=1e-4)


@pytest.mark.parametrize("squeezed", [False, True])
@pytest.mark.parametrize("style", ["tf", "timm"])
@pytest.mark.parametrize("share", [1.0, 0.75])
def test_evaluation_resizes_the_whole_picture_and_shows_its_centre(
    files, train, style, squeezed, share
):
    size = 12
    side = round(size / share)
    view = ImageView(size, crop=share, squeezed=squeezed, cut_style=style)
    shown = torch.cat([images for images, _ in evaluation_batches(train, 7, view)])
    plain = Augment(flip=False, crop_pad=0)  # what training shows without crops
    trained, _ = Batches(train, 30, plain, Draws(0), view).at(0)
    assert torch.equal(trained, shown[Draws(0).order(0, 30)])
    for content, image in zip(own_bytes(files, "train"), shown, strict=False):
        whole = upright(content)
        short = min(whole.size)
        if squeezed:
            wide = tall = side
        elif style == "tf":
            wide, tall = (round(length * (side / short)) for length in whole.size)
        else:
            wide, tall = (int(side * length / short) for length in whole.size)
        if style == "timm":
            resized = np.asarray(whole.resize((wide, tall), Image.Resampling.BICUBIC), float)
            x, y = round((wide - size) / 2), round((tall - size) / 2)
        else:
            resized = bilinear(whole, tall, wide) if squeezed else box_means(whole, tall, wide)
            x, y = (wide - size) // 2, (tall - size) // 2
        expected = resized[y : y + size, x : x + size]
        levels = ((image + 1) * 127.5).numpy()
        off = 1.01 if squeezed and style == "tf" else 0.501  # rounded twice, or once
        assert np.abs(levels - expected).max() <= off


@pytest.mark.parametrize("squeezed", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.9, 0.875, 0.7, 0.56])
def test_evaluation_in_timm_s_style_is_its_own_transform(files, oracle, squeezed, share):
    """The side is cut off: 14 / 0.9 = 15.6 is 15; 14 / 0.56 is 24, being below 25 in floats."""
    timm, mode = oracle("timm.data.transforms_factory"), "squash" if squeezed else "center"
    for size in (12, 14, 28):
        own = timm.transforms_imagenet_eval(size, share, mode, None, "bicubic", normalize=False)
        for image in map(upright, own_bytes(files, "test")):
            shown = Centre(size, share, squeezed, "timm").show(0, image)
            np.testing.assert_array_equal(shown, own(image).permute(1, 2, 0).numpy())


def test_what_follows_the_crop_is_drawn_as_it_is_for_squares(train):
    """Squares of the crops, changed as squares are, are what encoded images become."""
    view = ImageView(12, cut_style="tf")
    rest = Augment(flip=True, crop_pad=1, randaug=2, jitter=0.3, erase=0.5)
    cut = Augment(flip=False, crop_pad=0, crop_area=0.2)
    crops, _ = Batches(train, 30, cut, Draws(5), view).at(0)
    squares = torch.empty_like(crops, dtype=torch.uint8)
    squares[Draws(5).order(0, 30)] = ((crops + 1) * 127.5).round().to(torch.uint8)
    whole = dataclasses.replace(rest, crop_area=0.2)
    got, _ = Batches(train, 30, whole, Draws(5), view).at(0)
    expected, _ = Batches(Split(squares, train.labels, torch.ones(30)), 30, rest, Draws(5)).at(0)
    assert torch.equal(got, expected)


# --- Threads, memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["tf", "timm"])
def test_batches_are_the_same_whoever_decodes_and_after_a_resume(train, style, monkeypatch):
    view = ImageView(12, cut_style=style, crop=0.75)
    augment = Augment(flip=True, crop_pad=0, crop_area=0.05, style=style, randaug=1, repeats=2)
    seen = []
    for threads in (1, 2, 4):
        monkeypatch.setattr(batches, "gathering_threads", lambda device, n=threads: n)
        straight, resumed = (Batches(train, 12, augment, Draws(2), view) for _ in "12")
        steps = [straight.at(step) for step in range(5)]
        for step in (3, 4):
            assert all(map(torch.equal, resumed.at(step), steps[step]))
        shown = [images for images, _ in evaluation_batches(train, 7, view)]
        seen.append(torch.cat([*shown, *(images for images, _ in steps)]))
    assert all(torch.equal(seen[0], other) for other in seen[1:])


def test_a_set_is_streamed_and_not_kept_in_memory(tmp_path):
    """36 MB of images, of which each epoch reads all."""
    for i in range(14):
        (home := tmp_path / "files" / "abc"[i % 3]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (1000, 1000), (i, i, i)).save(home / f"{i}.bmp")
    data = describe(path=tmp_path / "files", cache="encoded", validation=1, test=1)
    split = cache.prepare_cache(data, tmp_path / "cache", threads=1).split("train")
    view = ImageView(8, cut_style="tf")

    def resident(what):
        status = Path("/proc/self/status").read_text()
        return int(re.search(rf"^Rss{what}:\s+(\d+)", status, re.M)[1])

    assert len([*evaluation_batches(split.take(slice(0, 1)), 1, view)]) == 1
    mapped, held = [resident("File")], []
    for _ in range(3):
        assert len([*evaluation_batches(split, 1, view)]) == 12
        mapped.append(resident("File"))
        held.append(resident("Anon"))
    assert max(mapped) - mapped[0] < 8_000  # kB
    assert max(held) - held[0] < 40_000  # of 72 MB read since


# --- Damage and broken pictures -----------------------------------------------------------------


def test_rot_is_found_named_and_mended_to_the_same_bytes(files, tmp_path):
    data, said = sample(files), []
    home = cache.prepare_cache(data, tmp_path / "cache").folder
    whole = contents(home)
    for name in ("train.encoded.npy", "test.offsets.npy", "validation.shapes.npy", "meta.json"):
        rotten = bytearray(whole[name])
        rotten[-9] ^= 1
        (home / name).write_bytes(rotten)
        assert name in (decoded.damage(home) or "")
        check_data(dataclasses.asdict(data), tmp_path, said.append)
        assert name in said[-1]
        assert open_cached(data, tmp_path / "cache") is None
        cache.prepare_cache(data, tmp_path / "cache")
        assert contents(home) == whole
    torn = home / "test.encoded.npy"
    os.truncate(torn, torn.stat().st_size - 1)
    assert open_cached(data, tmp_path / "cache") is None


def test_broken_pictures_are_named_and_left_out_as_they_are_of_squares(tmp_path):
    folders(tmp_path / "images", "abc", 20)
    for name in ("a/3", "b/7", "b/19", "c/0"):
        file = tmp_path / "images" / f"{name}.png"
        file.write_bytes(file.read_bytes()[:60] if name != "b/7" else b"")
    lines, ends, told = [], [], []
    for kept, threads in (("decoded", 1), ("encoded", 1), ("encoded", 2)):
        settings = {"path": tmp_path / "images", "validation": 10, "test": 9, "cache": kept}
        with refused("^data: 4 of 60 images can't be read; ") as raised:
            cache.prepare_cache(describe(**settings), tmp_path / "cache")
        lines.append(str(raised.value))
        data = describe(**settings, broken="skip")
        ends.append(cache.prepare_cache(data, tmp_path / f"{threads}", threads=threads))
        assert decoded.damage(ends[-1].folder) is None
        meta = json.loads((ends[-1].folder / "meta.json").read_text())
        labels = [ends[-1].split(split).labels.tolist() for split in SPLITS]
        told.append(([meta[key] for key in ("left_out", "counts", "overlap")], labels))
    assert lines[0] == lines[1] == lines[2]
    assert told[0] == told[1] == told[2]
    assert sum(map(len, meta["left_out"].values())) == 4
    for split in SPLITS:  # what is left are whole pictures, each at its place
        squares, rows = (end.split(split) for end in ends[:2])
        for row in range(len(rows)):
            np.testing.assert_array_equal(rows.picture(row), squares.images[row])


def test_a_killed_build_is_gone_on_with_and_gives_the_bytes_of_a_calm_one(tmp_path):
    folders(tmp_path / "images", "abc", 20)
    (tmp_path / "images" / "a" / "1.png").write_bytes(b"words")
    data = describe(path=tmp_path / "images", cache="encoded", test=9, broken="skip")
    folder = tmp_path / "cache"
    kill_decoding(data, folder, lambda done, _: done > 20, chunk=8)
    left = cache.inspect_data(data, folder)
    assert 0 < left.decoded_images < 60
    rotten = shutil.copytree(folder, tmp_path / "rotten")
    with open(rotten / f".{data.fingerprint}.building/train.offsets.npy", "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\1")
    calm = contents(cache.prepare_cache(data, tmp_path / "calm").folder)
    for home, first in (
        (rotten, 0),
        (folder, left.decoded_images),
    ):  # the rotten one is begun again
        reports = []
        cached = cache.prepare_cache(data, home, lambda done, _, seen=reports: seen.append(done))
        assert reports[0] == first
        assert contents(cached.folder) == calm


# --- A run --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(files):
    """The tree of a tiny run on crops of whole pictures."""
    settings = {key: value for key, value in vars(sample(files)).items() if key != "fingerprint"}
    changes = {
        **{f"data.{key}": value for key, value in settings.items()},
        **{"data.fingerprint": "", "model.depth": 1, "model.width": 16, "model.heads": 2},
        **{"train.epochs": 3, "train.batch": 10, "eval.crop": 0.75, "augment.crop_area": 0.1},
    }
    tree = tiny.run(changes).spec.tree
    tree["data"]["fingerprint"] = data_fingerprint(settings)
    tree["model"]["patch"] = None
    return tree


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def work(tree: dict[str, Any], folder: Path, expected: int = 0) -> RunDir:
    """Trained, or gone on with, until the worker ends with that code."""
    rundir = RunDir(folder)
    if not folder.exists():
        rundir.create(tree)
    options = {"slot": "cpu", "device": "cpu", "threads": 1, "checkpoint_s": 1e9}
    code = worker.work(str(folder), {**options, "cache": str(folder.parent / "cache")})
    assert code == expected, rundir.log.read_text()
    return rundir


def test_a_run_ends_with_the_same_bits_by_one_thread_or_two_and_resumed(run, tmp_path, monkeypatch):
    steps, ends = itertools.count(1), []
    asked = contextlib.nullcontext(lambda: next(steps) == 5)  # in the middle of an epoch
    with monkeypatch.context() as patch:
        patch.setattr(attempt, "stop_signals", lambda rundir: asked)
        work(run, tmp_path / "2", EXIT_STOPPED)
    for number in (1, 2):
        monkeypatch.setattr(batches, "gathering_threads", lambda device, n=number: n)
        rundir = work(run, tmp_path / f"{number}")
        ends.append((rundir.weights.read_bytes(), rundir.predictions.read_bytes()))
    assert "training from step 5 of 9" in rundir.log.read_text()
    assert ends[0] == ends[1]


def test_bytes_that_rot_under_a_run_are_no_fault_of_its(run, tmp_path):
    """It begins again, on data that is kept anew."""
    home = tmp_path / "cache" / run["data"]["fingerprint"]
    cache.prepare_cache(Data(**run["data"]), tmp_path / "cache")
    whole = (home / "train.encoded.npy").read_bytes()
    with open(home / "train.encoded.npy", "r+b") as file:
        file.seek(200)
        file.write(bytes(len(whole) - 400))
    split = cache.prepare_cache(Data(**run["data"]), tmp_path / "cache").split("train")
    with pytest.raises(
        BrokenImage, match=r"bytes [\d,]+ to [\d,]+ of .*train\.encoded\.npy: not a r"
    ):
        split.picture(10)
    work(run, tmp_path / "run", EXIT_ROTTEN)
    work(run, tmp_path / "run")
    assert (home / "train.encoded.npy").read_bytes() == whole
