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
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from PIL import Image, ImageOps
from test_data import describe, folders, killed, noise, png, write_parquet

from ablate.data import batches, cache
from ablate.data.augment.crop import inception_boxes, resized_crop_boxes
from ablate.data.batches import Batches, evaluation_batches
from ablate.data.draws import Draws
from ablate.data.image_changes import ImageView, normalise
from ablate.data.picture import Broken
from ablate.data.splits import EncodedSplit, open_cached
from ablate.running.launchers.fork import check
from ablate.shared import decoded, spec
from ablate.shared.decoded import SPLITS
from ablate.shared.errors import UserError
from ablate.shared.fingerprint import fingerprint
from ablate.shared.rundir import RunDir
from ablate.shared.sections import Augment, Data
from ablate.training import attempt, worker
from ablate.training.attempt import EXIT_ROTTEN, EXIT_STOPPED

SHAPES = [(40, 30), (30, 44), (64, 64), (17, 90), (90, 23), (26, 25)]  # width, height


def picture(seed: int, size: tuple[int, int]) -> Image.Image:
    """Colours that change smoothly, so that a place off by one shows, and is no rounding."""
    return noise(seed, (9, 7)).resize(size, Image.Resampling.BICUBIC)


def turned(image: Image.Image) -> bytes:
    """A JPEG that lies on its side, and says so."""
    exif, stream = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    image.save(stream, "JPEG", quality=95, exif=exif)
    return stream.getvalue()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 training images of all shapes, every fifth a JPEG that lies on its side; 7 test images."""
    folder = tmp_path_factory.mktemp("files")
    for name, first, number in (("train", 0, 36), ("test", 36, 7)):
        rows = range(first, first + number)
        made = [picture(i, SHAPES[i % len(SHAPES)]) for i in rows]
        images = [
            png(image) if i % 5 else turned(image) for i, image in zip(rows, made, strict=True)
        ]
        write_parquet(folder / f"{name}.parquet", images, [i % 3 for i in rows])
    return folder


def own_bytes(files: Path, split: str) -> list[bytes]:
    from pyarrow import parquet

    cells = parquet.read_table(files / f"{split}.parquet").column("image").to_pylist()
    return [cell["bytes"] for cell in cells]


def upright(content: bytes) -> Image.Image:
    with Image.open(io.BytesIO(content)) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


SPLIT = {"train": "train[:30]", "validation": "train[30:]", "test": "test"}


def sample(files: Path, **more: Any) -> Data:
    return describe(path=files, cache="encoded", **SPLIT, **more)


@pytest.fixture
def train(files: Path, tmp_path: Path) -> EncodedSplit:
    split = cache.prepare(sample(files), tmp_path / "cache").split("train")
    assert isinstance(split, EncodedSplit)
    return split


# --- What is kept -------------------------------------------------------------------------------


def test_each_file_is_kept_byte_for_byte_by_however_many_threads(
    files: Path, tmp_path: Path
) -> None:
    data = sample(files)
    seen = cache.look(data, tmp_path / "one")
    assert seen.counts == {"train": 30, "validation": 6, "test": 7}
    one, two = (cache.prepare(data, tmp_path / f"{n}", threads=n) for n in (1, 2))
    assert seen.bytes is not None
    assert abs(seen.bytes / one.bytes - 1) < 0.2  # told before a file was read
    names = {file.name for file in one.folder.iterdir()}
    kept = ("encoded", "offsets", "shapes", "labels")
    assert names == {"meta.json", *(f"{split}.{what}.npy" for split in SPLITS for what in kept)}
    assert {n: (one.folder / n).read_bytes() for n in names} == {
        n: (two.folder / n).read_bytes() for n in names
    }
    stored = own_bytes(files, "train")
    for split, own in (("train", stored[:30]), ("validation", stored[30:])):
        content = np.load(one.folder / f"{split}.encoded.npy").tobytes()
        assert content == b"".join(own)
        shapes = [upright(content).size[::-1] for content in own]
        got = one.split(split)
        assert isinstance(got, EncodedSplit)
        assert [tuple(shape) for shape in got.shapes.tolist()] == shapes
        torch.testing.assert_close(got.aspects, torch.tensor([w / h for h, w in shapes]))
    assert one.split("test").labels.tolist() == [i % 3 for i in range(36, 43)]
    assert decoded.damage(one.folder) is None


def test_one_file_serves_all_sizes_and_is_no_other_form_s(files: Path, tmp_path: Path) -> None:
    data = sample(files)
    assert sample(files, size=16).fingerprint == data.fingerprint
    others = [describe(path=files, **SPLIT, **more) for more in ({}, {"size": 16})]
    prints = {data.fingerprint, sample(files, channels=1).fingerprint}
    assert len({*prints, *(other.fingerprint for other in others)}) == 4
    cache.prepare(data, tmp_path)
    moved = dataclasses.replace(others[0], fingerprint=data.fingerprint)
    assert open_cached(moved, tmp_path) is None  # moved by hand: not taken for it


def test_the_default_means_as_before() -> None:
    plain, named = tiny.run(), tiny.run({"data.cache": "decoded"})
    assert plain.id == named.id
    path = {"data.source": "datasets", "data.path": "images"}
    before = tiny.run(path)
    assert before.id != tiny.run({**path, "data.cache": "encoded"}).id
    tree = spec.to_tree(before)
    del tree["data"]["cache"]
    assert spec.tree_identity(tree) == spec.identity(before)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"data.source": "sklearn"}, r"^data\.cache: images of data=\w+ are in no files, so "),
        ({"data.cache_size": 64}, r"^data\.cache_size: 64, but with data\.cache=encoded no image"),
        ({"eval.augment": True}, r"^eval\.augment: changes a whole set once, so it must be dec"),
        ({"data.cache": "jpeg"}, r"^data\.cache: expected one of decoded, encoded, got 'jpeg'"),
    ],
)
def test_what_can_t_be_is_refused_in_a_line(changes: dict[str, Any], line: str) -> None:
    there = {"data.source": "datasets", "data.path": "images", "data.cache": "encoded"}
    tiny.run({**there, "eval.aspect": "squeeze"})  # there is something to squeeze
    with pytest.raises(UserError, match=line):
        tiny.run(there | changes)


# --- What is shown: every law, by Pillow --------------------------------------------------------


def bilinear(image: Image.Image, tall: int, wide: int) -> np.ndarray:
    """Without antialiasing, half-pixel centres, in floating point: (tall, wide, 3)."""
    ends = (0, 0, image.width, image.height)
    bands = [
        band.convert("F").transform((wide, tall), Image.Transform.EXTENT, ends, Image.BILINEAR)
        for band in image.split()
    ]
    return np.stack([np.asarray(band) for band in bands], 2)


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
def test_training_crops_are_cut_from_the_whole_picture(
    files: Path, train: EncodedSplit, style: Any, repeats: int
) -> None:
    size, batch, step = 12, 15, 3
    augment = Augment(flip=False, crop_pad=0, crop_area=0.05, style=style, repeats=repeats)
    got = Batches(train, batch, augment, Draws(7), ImageView(size, whole=style))
    shown, labels = got.at(step)
    order, some = Draws(7).order(1, 30), batch // repeats  # 2 steps are an epoch
    rows = order[some : 2 * some].repeat(repeats)
    images = [upright(own_bytes(files, "train")[row]) for row in rows.tolist()]
    assert labels.tolist() == [row % 3 for row in rows.tolist()]
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
    files: Path, train: EncodedSplit, style: Any, squeezed: bool, share: float
) -> None:
    size = 12
    side = round(size / share)
    view = ImageView(size, crop=share, squeezed=squeezed, whole=style)
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


def test_what_follows_the_crop_is_drawn_as_it_is_for_squares(train: EncodedSplit) -> None:
    """Squares of the crops, changed as squares are, are what encoded images become."""
    view = ImageView(12, whole="tf")
    rest = Augment(flip=True, crop_pad=1, randaug=2, jitter=0.3, erase=0.5)
    crops, _ = Batches(
        train, 30, Augment(flip=False, crop_pad=0, crop_area=0.2), Draws(5), view
    ).at(0)
    squares = ((crops + 1) * 127.5).round().to(torch.uint8)
    whole = dataclasses.replace(rest, crop_area=0.2)
    got, _ = Batches(train, 30, whole, Draws(5), view).at(0)
    from ablate.data.splits import Split

    back = torch.empty_like(squares)
    back[Draws(5).order(0, 30)] = squares
    expected, _ = Batches(Split(back, train.labels, torch.ones(30)), 30, rest, Draws(5)).at(0)
    assert torch.equal(got, expected)
    assert normalise(squares).shape == got.shape


# --- Threads, memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["tf", "timm"])
def test_batches_are_the_same_whoever_decodes_and_after_a_resume(
    train: EncodedSplit, style: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = ImageView(12, whole=style, crop=0.75)
    augment = Augment(flip=True, crop_pad=0, crop_area=0.05, style=style, randaug=1, repeats=2)
    seen = []
    for threads in (1, 2, 4):
        monkeypatch.setattr(batches, "gathering_threads", lambda device, n=threads: n)
        straight = Batches(train, 12, augment, Draws(2), view)
        resumed = Batches(train, 12, augment, Draws(2), view)
        steps = [straight.at(step) for step in range(5)]
        for step in (3, 4):
            for one, other in zip(resumed.at(step), steps[step], strict=True):
                assert torch.equal(one, other)
        shown = torch.cat([images for images, _ in evaluation_batches(train, 7, view)])
        seen.append((torch.cat([images for images, _ in steps]), shown))
    for other in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other, strict=True))


def test_a_set_is_streamed_and_not_kept_in_memory(tmp_path: Path) -> None:
    """36 MB of images, of which each epoch reads all."""
    for i in range(14):
        (tmp_path / "files" / "abc"[i % 3]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (1000, 1000), (i, i, i)).save(tmp_path / f"files/{'abc'[i % 3]}/{i}.bmp")
    data = describe(path=tmp_path / "files", cache="encoded", validation=1, test=1)
    split = cache.prepare(data, tmp_path / "cache", threads=1).split("train")
    view = ImageView(8, whole="tf")

    def resident(what: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(what))

    assert len([*evaluation_batches(split.take(slice(0, 1)), 1, view)]) == 1
    mapped, held = [resident("RssFile:")], []
    for _ in range(3):
        assert len([*evaluation_batches(split, 1, view)]) == 12
        mapped.append(resident("RssFile:"))
        held.append(resident("RssAnon:"))
    assert max(mapped) - mapped[0] < 8_000  # kB
    assert max(held) - held[0] < 40_000  # of 72 MB read since


# --- Damage and broken pictures -----------------------------------------------------------------


def test_rot_is_found_named_and_mended_to_the_same_bytes(files: Path, tmp_path: Path) -> None:
    data, said = sample(files), []
    home = cache.prepare(data, tmp_path / "cache").folder
    whole = {file.name: file.read_bytes() for file in home.iterdir()}
    for name in ("train.encoded.npy", "test.offsets.npy", "validation.shapes.npy", "meta.json"):
        rotten = bytearray(whole[name])
        rotten[-9] ^= 1
        (home / name).write_bytes(rotten)
        assert name in (decoded.damage(home) or "")
        check(dataclasses.asdict(data), tmp_path, said.append)
        assert name in said[-1]
        assert open_cached(data, tmp_path / "cache") is None
        cache.prepare(data, tmp_path / "cache")
        assert {file.name: file.read_bytes() for file in home.iterdir()} == whole
    torn = home / "test.encoded.npy"
    os.truncate(torn, torn.stat().st_size - 1)
    assert open_cached(data, tmp_path / "cache") is None


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    folders(tmp_path / "images", "abc", 20)
    for name in ("a/3", "b/7", "b/19", "c/0"):
        file = tmp_path / "images" / f"{name}.png"
        file.write_bytes(file.read_bytes()[:60] if name != "b/7" else b"")
    return tmp_path / "images"


def test_broken_pictures_are_named_and_left_out_as_they_are_of_squares(
    spoilt: Path, tmp_path: Path
) -> None:
    lines, metas, labels = [], [], []
    for kept in ("decoded", "encoded"):
        settings = {"path": spoilt, "validation": 10, "test": 9, "cache": kept}
        with pytest.raises(UserError) as refused:
            cache.prepare(describe(**settings), tmp_path / "cache")
        lines.append(str(refused.value))
        data = describe(**settings, broken="skip")
        for threads in (1, 2) if kept == "encoded" else (1,):
            cached = cache.prepare(data, tmp_path / f"{threads}", threads=threads)
            meta = json.loads((cached.folder / "meta.json").read_text())
            metas.append({key: meta[key] for key in ("left_out", "counts", "overlap")})
            labels.append([cached.split(split).labels.tolist() for split in SPLITS])
        assert decoded.damage(cached.folder) is None
    assert lines[0] == lines[1]
    assert lines[0].startswith("data: 4 of 60 images can't be read; ")
    assert metas[0] == metas[1] == metas[2]
    assert sum(len(names) for names in metas[0]["left_out"].values()) == 4
    assert labels[0] == labels[1] == labels[2]
    squares = cache.prepare(
        describe(**settings | {"cache": "decoded"}, broken="skip"), tmp_path / "1"
    )
    for split in SPLITS:  # what is left are whole pictures, each at its place
        rows = cached.split(split)
        assert isinstance(rows, EncodedSplit)
        for row in range(len(rows)):
            expected = squares.split(split).take(torch.tensor([row])).images[0]
            np.testing.assert_array_equal(np.asarray(rows.picture(row)), expected.numpy())


def test_a_killed_build_is_gone_on_with_and_gives_the_bytes_of_a_calm_one(tmp_path: Path) -> None:
    folders(tmp_path / "images", "abc", 20)
    (tmp_path / "images" / "a" / "1.png").write_bytes(b"words")
    data = describe(path=tmp_path / "images", cache="encoded", test=9, broken="skip")
    folder = tmp_path / "cache"
    killed(data, folder, lambda done, _: done > 20, chunk=8)
    left = cache.look(data, folder)
    assert 0 < left.done < 60
    shutil.copytree(folder, tmp_path / "rotten")
    with open(tmp_path / f"rotten/.{data.fingerprint}.building/train.offsets.npy", "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\1")
    reports: list[int] = []
    cache.prepare(data, tmp_path / "rotten", lambda done, total: reports.append(done))
    assert reports[0] == 0  # begun again
    reports.clear()
    resumed = cache.prepare(data, folder, lambda done, total: reports.append(done))
    assert reports[0] == left.done
    ends = [resumed.folder, cache.prepare(data, tmp_path / "calm").folder]
    ends.append(tmp_path / "rotten" / data.fingerprint)
    one, *others = [{file.name: file.read_bytes() for file in end.iterdir()} for end in ends]
    assert all(other == one for other in others)


# --- A run --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(files: Path) -> dict[str, Any]:
    """The tree of a tiny run on crops of whole pictures."""
    settings = {key: value for key, value in vars(sample(files)).items() if key != "fingerprint"}
    made = tiny.run(
        {
            **{f"data.{key}": value for key, value in settings.items()},
            **{"data.fingerprint": "", "model.depth": 1, "model.width": 16, "model.heads": 2},
            **{"train.epochs": 3, "train.batch": 10, "eval.crop": 0.75, "augment.crop_area": 0.1},
        }
    )
    tree = spec.to_tree(made)
    tree["data"]["fingerprint"] = fingerprint(settings)
    tree["model"]["patch"] = None
    return tree


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def work(tree: dict[str, Any], folder: Path, threads: int = 1) -> tuple[int, RunDir]:
    rundir = RunDir(folder)
    if not folder.exists():
        rundir.create(tree)
    options = {"slot": "cpu", "device": "cpu", "threads": threads, "checkpoint_s": 1e9}
    options["cache"] = str(folder.parent / "cache")
    return worker.work(str(folder), options), rundir


def test_a_run_ends_with_the_same_bits_by_one_thread_or_two_and_resumed(
    run: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, ends = itertools.count(1), []
    asked = contextlib.nullcontext(lambda: next(steps) == 5)  # in the middle of an epoch
    with monkeypatch.context() as patch:
        patch.setattr(attempt, "stop_signals", lambda: asked)
        assert work(run, tmp_path / "2")[0] == EXIT_STOPPED
    for number in (1, 2):
        monkeypatch.setattr(batches, "gathering_threads", lambda device, n=number: n)
        code, rundir = work(run, tmp_path / f"{number}")
        assert code == 0, rundir.log.read_text()
        ends.append((rundir.weights.read_bytes(), rundir.predictions.read_bytes()))
    assert "training from step 5 of 9" in rundir.log.read_text()
    assert ends[0] == ends[1]


def test_bytes_that_rot_under_a_run_are_no_fault_of_its(
    run: dict[str, Any], tmp_path: Path
) -> None:
    """It begins again, on data that is kept anew."""
    home = tmp_path / "cache" / run["data"]["fingerprint"]
    cache.prepare(Data(**run["data"]), tmp_path / "cache")
    whole = (home / "train.encoded.npy").read_bytes()
    with open(home / "train.encoded.npy", "r+b") as file:
        file.seek(200)
        file.write(bytes(len(whole) - 400))
    split = cache.prepare(Data(**run["data"]), tmp_path / "cache").split("train")
    assert isinstance(split, EncodedSplit)
    with pytest.raises(Broken, match=r"bytes [\d,]+ to [\d,]+ of .*train\.encoded\.npy: not a r"):
        split.picture(10)
    code, rundir = work(run, tmp_path / "run")
    assert code == EXIT_ROTTEN, rundir.log.read_text()
    code, rundir = work(run, tmp_path / "run")
    assert code == 0
    assert (home / "train.encoded.npy").read_bytes() == whole
