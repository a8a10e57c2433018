"""What strangers' folders hold: formats, depths, what is no picture at all, what is broken."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import time
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
from conftest import ABLATE, Shell, contents, refused, wait_for
from numpy.testing import assert_array_equal
from PIL import Image
from support.data_sections import PLAIN, describe
from support.decoding import kill_decoding
from support.images import folders, jpeg, noise, png, stored, write_plain

from ablate.analysis.footnotes import data_notes
from ablate.data import cache, picture, source
from ablate.data.picture import FORMATS, BrokenImage, Example, decode
from ablate.planning.cell import Cell
from ablate.planning.compose import Composer
from ablate.planning.data_section import complete
from ablate.run.decoded import SPLITS
from ablate.run.fingerprint import data_fingerprint
from ablate.run.rundir import RunDir
from ablate.run.sections import Data
from ablate.run.spec import RunSpec
from ablate.running.disk import retry_on_full_disk
from ablate.shared.errors import NoRoom, UserError
from ablate.store.store import Store


def read(content: bytes, channels: int = 3) -> np.ndarray:
    return decode(Example("test", content, 0), 8, channels)


# --- Formats ------------------------------------------------------------------------------------


def test_every_format_that_is_named_is_read_as_pillow_reads_it():
    two = {"save_all": True, "append_images": [noise(1)]}
    files = [stored(noise(0), kind) for kind in FORMATS]
    files += [stored(noise(0), kind, **two) for kind in ("GIF", "MPO")]  # of the first
    files += [stored(noise(0, mode="L"), kind) for kind in ("PPM", "JPEG", "TIFF", "PNG")]
    for content in files:
        with Image.open(io.BytesIO(content)) as image:
            assert_array_equal(read(content), image.convert("RGB"))


def test_no_other_decoder_sees_what_a_stranger_sent():
    for kind in ("ICO", "TGA", "JPEG2000", "PCX", "SGI", "DDS", "EPS"):
        content = stored(noise(0, (16, 16), "RGBA" if kind == "ICO" else "RGB"), kind)
        with Image.open(io.BytesIO(content)) as image:
            assert image.format == kind  # Pillow alone would
        with pytest.raises(
            BrokenImage, match=r"not a readable image: no whole PNG, JPEG, .* or \w+$"
        ):
            read(content)


@pytest.mark.parametrize("suffix", ["jfif", "avif", "JFIF"])
def test_pictures_by_other_names_are_read(tmp_path, suffix):
    folders(tmp_path / "images", "abc", 4)
    kind = "JPEG" if suffix.lower() == "jfif" else "AVIF"
    if kind not in FORMATS:
        pytest.skip("this Pillow reads no AVIF")
    content = stored(noise(77), kind)
    (tmp_path / "images" / "b" / f"x.{suffix}").write_bytes(content)
    cached = cache.prepare_cache(describe(path=tmp_path / "images", test=2), tmp_path / "cache")
    assert sum(cached.counts.values()) == 13
    shown = {i.numpy().tobytes() for s in SPLITS for i in cached.split(s).images}
    assert read(content).tobytes() in shown


def test_what_may_be_a_picture_and_is_not_read_is_counted(tmp_path):
    folders(tmp_path / "images", "ab", 12)
    for name in ("a/1.heic", "a/2.HEIC", "b/1.jxl", "b/.3.heic", "b/notes.txt"):
        (tmp_path / "images" / name).write_bytes(b"something")
    composer = Composer(tmp_path / "store")
    tree = {**PLAIN, "path": str(tmp_path / "images"), "classes": None, "test": 4}
    for size in (8, 16):  # said once
        composer.run({**composer.tree([]), "data": tree | {"size": size}})
    line = "images that are not read: 2 .heic, 1 .jxl; convert them to PNG or JPEG"
    split = "data=mine: 2 classes; images: 15 to train on, 5 to validate on, 4 to test on"
    assert composer.notes == [f"data=mine: {tmp_path}/images: {line}", split]
    for name in ("a", "b"):
        (tmp_path / "images" / name).rename(tmp_path / name)
    (tmp_path / "images" / "1.heic").write_bytes(b"something")
    with refused(r"nor images in folders \(.* not read: 1 .heic; convert "):
        describe(path=tmp_path / "images")


# --- Depths -------------------------------------------------------------------------------------


def tiff(pixels: np.ndarray, bits: int, order: str) -> bytes:
    """Grey, uncompressed, one strip, written by hand. `order`: "<" or ">"."""
    height, width = pixels.shape
    if bits == 12:  # two pixels in three bytes, the higher bits first, whatever the byte order
        a, b = pixels.reshape(-1, 2).astype(int).T
        strip = np.stack([a >> 4, (a & 15) << 4 | b >> 8, b & 255], 1).astype(np.uint8).tobytes()
    else:
        strip = pixels.astype(f"{order}u2").tobytes()
    tags = [(256, width), (257, height), (258, bits), (259, 1), (262, 1), (273, 0), (277, 1)]
    tags += [(278, height), (279, len(strip))]
    offset = 8 + 2 + 12 * len(tags) + 4
    out = struct.pack(f"{order}2sHI", b"II" if order == "<" else b"MM", 42, 8)
    out += struct.pack(f"{order}H", len(tags))
    for tag, value in tags:
        out += struct.pack(f"{order}HHII", tag, 4, 1, offset if tag == 273 else value)
    return out + struct.pack(f"{order}I", 0) + strip


def deep_png(pixels: np.ndarray) -> bytes:
    """16-bit grey, by hand."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", *pixels.shape[::-1], 16, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_grey_of_12_and_16_bits_keeps_its_range():
    ramp = np.arange(64).reshape(8, 8)
    for bits in (12, 16):
        pixels = ramp * ((1 << bits) - 1) // 63  # from black to white
        expected = pixels // 2 ** (bits - 8)
        assert (expected.min(), expected.max()) == (0, 255)
        files = {"PGM": b"P5 8 8 %d\n" % ((1 << bits) - 1) + pixels.astype(">u2").tobytes()}
        if bits == 12:
            files["TIFF"] = tiff(pixels, 12, "<")
        else:
            image = Image.fromarray(pixels.astype(np.uint16))
            files |= {kind: stored(image, kind) for kind in ("PNG", "TIFF")}
            files |= {f"TIFF {order}": tiff(pixels, 16, order) for order in "<>"}
            files["PNG by hand"] = deep_png(pixels)
        for name, content in files.items():
            got = read(content, 1)[..., 0].astype(int)
            # PGM is scaled to 16 bits by Pillow first: 4095 to 65535, rounded.
            slack = int(name == "PGM" and bits == 12)
            assert np.abs(got - expected).max() <= slack, (name, bits)
            assert_array_equal(read(content)[..., 2], got)


def test_a_deep_photo_is_turned_upright_with_its_depth():
    pixels = np.arange(64).reshape(8, 8) * 4095 // 63
    content = tiff(pixels, 12, "<")
    with Image.open(io.BytesIO(content)) as image:
        assert image.mode == "I;16"
        assert np.asarray(image).max() == 4095  # what would be all but black, cut to its high byte
    turned = bytearray(content)
    at = turned.index(struct.pack("<H", 277))  # samples a pixel: 1 is the default
    turned[at : at + 12] = struct.pack("<HHII", 274, 3, 1, 3)  # upside down
    assert_array_equal(read(bytes(turned), 1)[..., 0], (pixels >> 4)[::-1, ::-1])


def test_pixels_of_no_known_range_are_refused():
    signed = bytearray(tiff(np.zeros((8, 8), dtype=int), 16, "<"))
    at = signed.index(struct.pack("<HH", 277, 4))
    signed[at : at + 12] = struct.pack("<HHII", 339, 4, 1, 2)  # sample format: signed
    real, whole = (np.zeros((8, 8), dtype=kind) for kind in (np.float32, np.int32))
    for content, kind in (
        (stored(Image.fromarray(real), "TIFF"), "floating-point"),
        (stored(Image.fromarray(whole), "TIFF"), "32-bit or signed"),
        (bytes(signed), "32-bit or signed"),
    ):
        with pytest.raises(
            BrokenImage, match=f"{kind} pixels have no known range; store 8 or 16 bits"
        ):
            read(content)


# --- No pictures at all -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "folder"])
@pytest.mark.timeout(60)
def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path, monkeypatch, kind):
    folders(tmp_path / "images", "abc", 4)
    odd = tmp_path / "images" / "b" / "odd.png"
    if kind == "fifo":
        os.mkfifo(odd)
    elif kind == "socket":
        monkeypatch.chdir(odd.parent)  # a socket's path is short
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(odd.name)
    elif kind == "device":
        odd.symlink_to("/dev/zero")
    else:
        odd.mkdir()
        noise(0).save(odd / "inside.png")
    what = "is a folder with an image's name" if kind == "folder" else "is no regular file"
    for broken in ("error", "skip"):
        with refused(rf"^data\.path: {odd}: {what}"):
            describe(path=tmp_path / "images", test=2, broken=broken)
    data = tables(tmp_path, {"bytes": None, "path": str(odd)})
    with refused(rf"^data: row \d+ of .*{odd}\): is no regular file$"):
        cache.prepare_cache(data, tmp_path / "cache")


def tables(tmp_path: Path, cell: dict[str, Any]) -> Data:
    """A table of twelve such cells."""
    write_plain(tmp_path / "tables" / "train.parquet", [cell] * 12, label=[0, 1, 2] * 4)
    return describe(path=tmp_path / "tables", test=2, broken="skip")


# --- Broken -------------------------------------------------------------------------------------


def bomb() -> bytes:
    """A PNG that says that it has 2.5 billion pixels."""
    content = bytearray(png(noise(0)))
    content[16:24] = struct.pack(">II", 50_000, 50_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


BROKEN = {
    "a/truncated.jpg": lambda: jpeg(noise(0, (64, 64)))[:900],
    "a/empty.png": lambda: b"",
    "b/text.png": lambda: b"some words\n",
    "c/bomb.png": bomb,
}


@pytest.fixture
def spoilt(tmp_path):
    """60 images of three classes, four of them broken, each in its own way."""
    root = tmp_path / "images"
    folders(root, "abc", 20)
    for (name, content), number in zip(BROKEN.items(), (3, 19, 0, 7), strict=True):
        (root / name[0] / f"{number}.png").unlink()
        (root / name).write_bytes(content())
    return root


SPOILT: dict[str, Any] = {"test": 0.3, "validation": 0.2}


def expected_of(data: Any) -> dict[str, tuple[np.ndarray, list[int], list[str]]]:
    """By split: images, labels and the names of what is left out; file by file, with Pillow."""
    root, found = Path(data.path), {}
    files = sorted(str(file.relative_to(root)) for file in root.glob("*/*"))
    for split, (_, rows) in source.cut(data, {"train": len(files)}).items():
        names = [files[row] for row in rows]
        kept = [name for name in names if name not in BROKEN]
        images = [np.asarray(Image.open(root / name).convert("RGB")) for name in kept]
        lost = [name for name in names if name in BROKEN]
        found[split] = np.stack(images), ["abc".index(name[0]) for name in kept], lost
    return found


def test_broken_pictures_are_left_out_where_that_is_asked(tmp_path, spoilt):
    with pytest.raises(UserError) as refused:
        cache.prepare_cache(describe(path=spoilt, **SPOILT), tmp_path / "cache")
    line = str(refused.value)
    assert line.startswith("data: 4 of 60 images can't be read; mend or remove them, or leave them")
    assert "with data.broken=skip: " in line
    data = describe(path=spoilt, broken="skip", **SPOILT)
    expected = expected_of(data)
    assert sum(len(lost) for *_, lost in expected.values()) == 4
    assert expected["train"][2]  # else this tests little
    cached, other = (cache.prepare_cache(data, tmp_path / f"{n}", threads=n) for n in (1, 3))
    assert contents(cached.folder) == contents(other.folder)
    for split, (images, labels, _) in expected.items():
        got = cached.split(split)
        assert_array_equal(got.images, images)
        assert got.labels.tolist() == labels
        assert cached.counts[split] == len(labels)
        np.load(cached.folder / f"{split}.images.npy")  # its size is what its header says
    left_out = json.loads((cached.folder / "meta.json").read_text())["left_out"]
    found = {split: [line.partition(": ")[0] for line in left_out[split]] for split in left_out}
    assert found == {split: lost for split, (_, _, lost) in expected.items() if lost}


def test_shapes_stay_with_their_images(tmp_path):
    images: list[bytes | None] = [png(noise(i, (8 + i, 16))) for i in range(24)]
    images[0], images[5], images[22] = None, b"words", None
    write_plain(tmp_path / "tables" / "train.parquet", images, label=[i % 3 for i in range(24)])
    settings = {"train": "train[:18]", "validation": "train[18:]", "test": "train[18:]"}
    data = describe(path=tmp_path / "tables", cache_size=12, broken="skip", **settings)
    cached = cache.prepare_cache(data, tmp_path / "cache")
    kept = {"train": [*range(1, 5), *range(6, 18)], "test": [18, 19, 20, 21, 23]}
    kept["validation"] = kept["test"]
    for split, rows in kept.items():
        got = cached.split(split)
        np.testing.assert_allclose(got.aspects, [(8 + row) / 16 for row in rows])
        assert got.labels.tolist() == [row % 3 for row in rows]
    left_out = json.loads((cached.folder / "meta.json").read_text())["left_out"]
    assert [len(left_out[split]) for split in SPLITS] == [2, 1, 1]
    assert left_out["test"] == ["row 22 of train.parquet: not a readable image: none there"]


def test_skip_is_part_of_what_a_run_is_and_error_is_as_before(spoilt):
    plain = PLAIN | {"path": str(spoilt)}
    assert data_fingerprint(plain | {"broken": "error"}) == data_fingerprint(plain)
    assert data_fingerprint(plain | {"broken": "skip"}) != data_fingerprint(plain)
    ids = [tiny.run({"data.broken": broken}).id for broken in ("error", "skip")]
    assert tiny.run().id == ids[0] != ids[1]
    with refused(r"^data\.broken: expected one of error, skip, got 'no'"):
        tiny.run({"data.broken": "no"})


def test_skip_leaves_out_no_class_and_no_split(tmp_path):
    folders(tmp_path / "images", "abc", 6)
    for number in range(6):
        (tmp_path / "images" / "b" / f"{number}.png").write_bytes(b"")
    data = describe(path=tmp_path / "images", test=3, validation=3, broken="skip")
    with refused(r"^data\.broken: none of the images of class b of data=sm"):
        cache.prepare_cache(data, tmp_path / "cache")
    folders(tmp_path / "apart" / "train", "abc", 6)
    folders(tmp_path / "apart" / "test", "a", 1)
    (tmp_path / "apart" / "test" / "a" / "0.png").write_bytes(b"")
    data = describe(path=tmp_path / "apart", validation=2, broken="skip")
    with refused(r"^data\.broken: none of the test images of data=small"):
        cache.prepare_cache(data, tmp_path / "cache")
    assert {file.suffix for file in (tmp_path / "cache").iterdir()} == {".lock"}


def test_what_is_wrong_with_the_machine_is_left_out_by_nobody(tmp_path, spoilt, monkeypatch):
    with refused(r"\(/no/such\): No such file or directory$"):
        cache.prepare_cache(
            tables(tmp_path, {"bytes": None, "path": "/no/such"}), tmp_path / "cache"
        )

    def no_memory(*arguments, **more):
        raise MemoryError

    monkeypatch.setattr(Image, "open", no_memory)
    data = describe(path=spoilt, broken="skip", **SPOILT)
    with pytest.raises(Exception, match="too little memory to decode it"):
        cache.prepare_cache(data, tmp_path / "cache", threads=1)


@pytest.mark.parametrize("at", ["journal", "drop"])
def test_a_build_killed_while_it_skips_gives_the_same_bytes(tmp_path, spoilt, at):
    data, folder = describe(path=spoilt, broken="skip", **SPOILT), tmp_path / "cache"
    drop = picture.Array.drop

    def dropping(array, rows):
        os.ftruncate = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # all rows have moved
        drop(array, rows)

    def before():
        if at == "drop":
            picture.Array.drop = dropping

    def when(done, noted):
        return at == "journal" and "truncated" in noted

    kill_decoding(data, folder, when, 8, before=before)
    assert (cache.inspect_data(data, folder).decoded_images > 0) == (at == "journal")
    resumed, calm = cache.prepare_cache(data, folder), cache.prepare_cache(data, tmp_path / "calm")
    assert contents(resumed.folder) == contents(calm.folder)


EXTRA_AND_VAL = [
    "extra (2 images): data.test=extra tests on it, data.validation=extra validates",
    "val (6 images): data.test=val tests on it, data.validation=val validates on it",
]


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        ({"validation": 0.1, "test": 0.25}, EXTRA_AND_VAL),
        ({"validation": 3, "test": "val"}, ["extra (2 images): data.validation=extra validates"]),
        ({"train": "train[:60%]", "validation": "train[60%:]", "test": "val[:4]"}, ["extra"]),
    ],
)
def test_a_folder_is_said_as_it_is_cut(tmp_path, settings, unused):
    for split, number in (("train", 10), ("val", 3), ("extra", 1)):
        folders(tmp_path / split, "ab", number)
    (tmp_path / "notes").mkdir()
    notes: list[str] = []
    tree = {**PLAIN, "path": str(tmp_path), "classes": None, **settings}
    section = Data(**complete(tree, None, notes))
    parts = source.cut(section, source.rows(section))
    counts = [f"{len(parts[split][1])} to {split}" for split in ("train", "validation", "test")]
    first, *others = notes
    said = ", ".join(counts).replace("validation", "validate")
    assert first == f"data=mine: 2 classes; images: {said.replace(',', ' on,')} on"
    for line, begins in zip(others, unused, strict=True):
        assert line.startswith(f"data=mine: no key names the folder {begins}")


# --- As a user sees it --------------------------------------------------------------------------

PREPARE = ("data", "prepare", "imagefolder", "data.path=images", "data.size=8")
SWEEP = ("sweep", "optim.lr=0.001,0.002", "data=imagefolder", "data.path=images", "data.size=8")
SWEEP += ("data.broken=skip", "model.arch=mu/4", "model.depth=1", "train.batch=8", "train.steps=3")


@pytest.mark.whole
def test_what_is_left_out_or_twice_there_is_said_and_stands_in_the_table(shell):
    images = shell.folder / "images"
    for split, number, seed in (("train", 30, 0), ("test", 8, 1000)):
        folders(images / split, "ab", number, seed=seed)
    for number in range(25):
        (images / "train" / "a" / f"{number}.png").write_bytes(b"words")
    (images / "test" / "b" / "0.png").write_bytes(bomb())
    shutil.copy(images / "train" / "b" / "3.png", images / "test" / "a" / "again.png")
    (images / "test" / "a" / "1.heic").write_bytes(b"something")
    words = (*SWEEP, "data.validation=6", "seeds=1", "launcher=inline", "--as", "spoilt")
    out = shell(*words).out
    assert f"note: data=imagefolder: {images}: images that are not read: 1 .heic; convert" in out
    meta = json.loads(next((shell.folder / "runs" / "cache").glob("*/meta.json")).read_text())
    lost = {split: len(lines) for split, lines in meta["left_out"].items()}
    assert sum(lost.values()) == 26
    splits = (("train", "training", 54), ("validation", "validation", 6), ("test", "test", 17))
    assert [meta["counts"][split] + lost.get(split, 0) for split, *_ in splits] == [54, 6, 17]
    shares = [f"{lost[s]} of {whole} {kind} images" for s, kind, whole in splits if s in lost]
    left_out = f"data=imagefolder: {' and '.join(shares)} can't be read and are left out"
    twice = "data=imagefolder: 1 of 16 test images are in another split, too, pixel for pixel"
    said = next(line for line in out.splitlines() if line.startswith(left_out))
    assert said.startswith(f"{left_out}: train/a/0.png: not a readable image: no whole PNG, ")
    assert said.endswith("; and 6 more")
    assert said.count(".png: not a readable image: ") == 20
    assert f"\n{twice}\n" in out
    prepared = shell(*PREPARE, "data.broken=skip", "data.validation=6").out.splitlines()
    assert {said, twice} <= {*prepared}
    shell("export", "spoilt", "handed-on")
    shutil.rmtree(shell.folder / "runs")
    for table in (out, shell("table", "--from", "handed-on", "--format", "md").out):
        assert table.count(f"{left_out} (data.broken=skip).") == 1
        assert table.count(f"{twice}.") == 1


def test_a_forged_count_is_no_result(tmp_path):
    def is_whole(**told):
        (tmp_path / "result.json").write_text(json.dumps({"status": "diverged", **told}))
        return RunDir(tmp_path).read_result() is not None

    assert is_whole(left_out={"train": [3, 50_000]})
    assert not is_whole(overlap={"<b>": [3, 4]})
    for share in (3, [3], [3, None], ["3", 4], [3, 4, 5], None):
        assert not is_whole(left_out={"train": share})


def test_a_footnote_names_rows_where_not_all_have_such_data():
    def notes(*results):
        sentences = data_notes(
            [
                SimpleNamespace(
                    cell=Cell(row, "", RunSpec.of({"data": {"name": "mine"}}), {}), results=[result]
                )
                for row, result in zip("ab", results, strict=True)
            ]
        )
        return [(sentence.key, sentence.values) for sentence in sentences]

    some = {"left_out": {"train": [3, 50_000], "test": [1, 10_000]}}
    text = "3 of 50,000 training images and 1 of 10,000 test images can't be read and are left out"
    values = {"data": "mine", "finding": text, "skipped": True}
    assert notes(some, some) == [("data.decoded", {**values, "rows": []})]
    assert notes({}, some) == [("data.decoded", {**values, "rows": ["b"]})]
    assert notes({}, {}) == []


def test_only_for_room_on_the_stores_disk_is_waited(tmp_path):
    said: list[str] = []
    needs = [0, 1000]

    def work():
        if needs:
            full = NoRoom("no space left")
            full.bytes_needed = needs.pop()
            raise full

    with pytest.raises(NoRoom):  # another disk: here there is room
        retry_on_full_disk(Store(tmp_path), said.append, work)
    assert [line.partition(";")[0] for line in said] == ["no space left", "the disk has room again"]
    retry_on_full_disk(Store(tmp_path), said.append, work)


ON_A_SMALL_DISK = """
mount -t tmpfs -o size=12m none runs
head -c 9m /dev/zero > runs/ballast
"$1" data prepare mnist5k > prepare.out 2> prepare.err || echo $? > prepare.code
ls -A runs/cache > prepare.left
exec "$@"
"""


@pytest.mark.faults
def test_a_full_disk_while_a_set_is_decoded_pauses_the_sweep(shell):
    runs = shell.folder / "runs"
    runs.mkdir()
    words = ("sweep", "optim.lr=0.001,0.002", "data=mnist5k", "model.arch=mu/14", "model.depth=1")
    words += ("train.steps=2", "train.batch=8", "seeds=1", "--as", "small", "--yes")
    command = ["unshare", "-rm", "sh", "-ec", ON_A_SMALL_DISK, "sh", ABLATE, *words]
    with open(shell.folder / "out", "wb") as out:
        driver = subprocess.Popen(
            command, cwd=shell.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    said = (shell.folder / "out").read_text
    lack = "data=mnist5k takes 4.0 MB decoded, "
    try:
        wait_for(lambda: driver.poll() is not None or "free some space" in said(), 240)
        if "mount:" in said() or "unshare:" in said():
            pytest.skip("may not mount a small tmpfs (unshare -rm)")
        [line] = [line for line in said().splitlines() if "free some space, and the sweep" in line]
        assert lack in line
        assert "are free: No space left on device; " in line
        code, told, left = (
            (shell.folder / f"prepare.{kind}").read_text() for kind in ("code", "err", "left")
        )
        assert code == "75\n"
        assert told.splitlines()[-1].startswith("ablate: runs/cache: " + lack)
        assert "Traceback" not in told
        assert all(name.endswith(".lock") for name in left.splitlines())
        inside = Path(f"/proc/{driver.pid}/root{runs}")
        assert not list(inside.glob("cache/*/meta.json"))
        time.sleep(2)
        assert driver.poll() is None
        (inside / "ballast").unlink()
        assert driver.wait(240) == 0, said()
    finally:
        driver.kill()
        driver.wait()
    assert said().count("free some space") == said().count("has room again") == 1
    assert "UNFINISHED" not in said()


# --- Killed at any moment -----------------------------------------------------------------------


def killed_often(shell: Shell, tmp_path: Path, kills: int) -> None:
    """`ablate data prepare`, it alone or with all its processes, at random moments."""
    images, moment = tmp_path / "images", random.Random(kills)
    folders(images, "ab", 150)
    for number in range(3):
        os.truncate(images / "a" / f"{number}.png", 50)
    words = ("data", "prepare", "imagefolder", f"data.path={images}", "data.size=64")
    words += ("data.cache_size=200", "data.broken=skip")
    begun = time.monotonic()
    shell(*words, "--store", "calm")
    whole_s = time.monotonic() - begun

    def kept(store: str) -> dict[str, bytes]:
        """What runs read, once the build has its name; a file of the builder may be left."""
        metas = [*(shell.folder / store / "cache").glob("[!.]*/meta.json")]
        files = {meta: ["meta.json", *json.loads(meta.read_bytes())["bytes"]] for meta in metas}
        return {n: (meta.parent / n).read_bytes() for meta, names in files.items() for n in names}

    calm, died = kept("calm"), 0
    assert len(calm) == 10
    for kill in range(10 * kills):
        if kill >= kills and died:
            break
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        process = subprocess.Popen(
            [ABLATE, *words], cwd=shell.folder, start_new_session=True, **streams
        )
        with_children = moment.random() < 0.7
        time.sleep(moment.uniform(0.3, 1.0) * whole_s)
        if process.poll() is None:
            (os.killpg if with_children else os.kill)(process.pid, signal.SIGKILL)
        else:
            whole_s /= 2  # it is faster by now
        died += process.wait() == -signal.SIGKILL
        if found := kept("runs"):
            assert found == calm
            shutil.rmtree(shell.folder / "runs" / "cache")
    assert died
    shell(*words)
    assert kept("runs") == calm


@pytest.mark.faults
def test_prepare_is_killed_and_gives_the_bytes_of_a_calm_one(shell, tmp_path):
    killed_often(shell, tmp_path, 2)  # it alone once, and once with its processes


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_prepare_is_killed_very_often(shell, tmp_path):
    killed_often(shell, tmp_path, 200)
