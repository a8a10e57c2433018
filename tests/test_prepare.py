"""Decoding a set: by one thread or several, killed and gone on with, on a full disk; by command.

Real processes and real images; where one is killed, it is by a real signal.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import PIL
import pyarrow
import pytest
from conftest import ABLATE, contents, refused, wait_for
from pyarrow import parquet
from support.data_sections import DIGITS, describe
from support.decoding import LOAD, kill_decoding, save_section
from support.images import cells, folders, noise, png, take, write_parquet

from ablate.data import building, cache, source
from ablate.planning.compose import resolve_data
from ablate.run.sections import Data
from ablate.shared.errors import Failure
from ablate.shared.files import Lock, read_sealed


@pytest.fixture
def sample(data_folder):
    """500 real photographs."""
    slices = {"train": "train[:400]", "validation": "train[400:450]", "test": "train[-50:]"}
    settings = {"name": "imagenet_sample", "size": 48, "cache_size": 64, "classes": 1000}
    return describe(path=data_folder("imagenet_sample"), **settings, **slices)


def built(data: Data, folder: Path, **more: Any) -> dict[str, bytes]:
    """What a decoded set's files hold."""
    return contents(cache.prepare_cache(data, folder, **more).folder)


def counted(data: Data, folder: Path, **more: Any) -> tuple[int, dict[str, bytes]]:
    """The first number of images that were said to be done, and what the files hold."""
    reports: list[int] = []
    found = built(data, folder, progress=lambda done, total: reports.append(done), **more)
    return reports[0], found


# --- Threads ------------------------------------------------------------------------------------


def test_several_threads_write_the_bytes_that_one_writes(tmp_path):
    folders(tmp_path / "images", "abc", 70)
    (tmp_path / "tables").mkdir()
    for name, rows in (("train", range(200)), ("test", range(200, 230))):
        images = [png(noise(i, (9 + i % 7, 8))) for i in rows]
        write_parquet(tmp_path / "tables" / f"{name}.parquet", images, [i % 3 for i in rows])
    for data in (
        describe(path=tmp_path / "images", test=0.2, validation=0.1),
        describe(path=tmp_path / "tables", cache_size=16, train="train[:150]", validation="test"),
        describe(**DIGITS),
    ):
        one, two = (built(data, tmp_path / f"{n}", threads=n) for n in (1, 2))
        assert one == two
        assert one["train.images.npy"]


def test_all_bad_images_are_named_at_once_in_order(tmp_path):
    root = tmp_path / "images"
    folders(root, "abc", 100)
    bad = [f"{folder}/{number}.png" for folder in "ac" for number in range(60, 71)]  # chunks apart
    for name in bad:
        (root / name).write_bytes((root / name).read_bytes()[:40])
    data = describe(path=root, validation=20, test=5)
    for threads in (1, 3):
        said = "^data: 22 of 300 images can't be read; mend or remove them, or leave them out with "
        with refused(rf"{said}data\.broken=skip: ") as raised:
            cache.prepare_cache(data, tmp_path / "cache", threads=threads)
        line = str(raised.value)
        assert re.findall(r"images/(./\d+.png): not a readable image: ", line) == bad[:20]
        assert line.endswith("; and 2 more")
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_table_is_read_a_row_group_at_a_time(tmp_path):
    """Memory must not grow with a file: of several groups pyarrow would keep all it has read."""
    each = cells([os.urandom(200_000) for _ in range(10)])
    table = pyarrow.table({"image": each, "label": [i % 3 for i in range(10)]})
    with parquet.ParquetWriter(tmp_path / "train.parquet", table.schema) as writer:
        for _ in range(20):
            writer.write_table(table)
    examples = source.open_source(describe(path=tmp_path, test=5)).parts["train"].examples
    begun = pyarrow.total_allocated_bytes()
    kept = [pyarrow.total_allocated_bytes() - begun for _ in examples()]
    assert len(kept) == 200  # 40 MB
    assert max(kept) < 10_000_000
    rows = [(example.place, example.label) for example in examples(188)]
    assert rows == [(f"row {i} of {tmp_path}/train.parquet", i % 10 % 3) for i in range(188, 200)]


# --- Killed, and gone on with -------------------------------------------------------------------


def at_once(data: Data, folder: Path) -> None:
    """Killed by the first that its journal has."""
    kill_decoding(data, folder, lambda done, noted: done > 0 and noted != "", threads=2)
    assert cache.inspect_data(data, folder).decoded_images > 0


@pytest.mark.whole
def test_a_killed_build_is_gone_on_with_and_gives_the_same_bytes(tmp_path, sample):
    folder = tmp_path / "cache"
    killed_at = kill_decoding(
        sample, folder, lambda done, noted: done > 150 and noted != "", threads=2
    )
    assert not Lock(folder / f"{sample.fingerprint}.lock").is_held()  # by no child of the dead
    kept = cache.inspect_data(sample, folder)
    assert 0 < kept.decoded_images <= killed_at
    assert not kept.is_complete
    assert kept.counts == {"train": 400, "validation": 50, "test": 50}

    cache.prepare_cache(describe(**DIGITS), folder)  # another set's builder leaves it alone
    calm = built(sample, tmp_path / "calm", threads=2)
    assert counted(sample, folder, threads=1) == (kept.decoded_images, calm)
    assert not list(folder.glob(".*"))


def test_a_build_goes_on_only_with_what_is_its_own(tmp_path, monkeypatch):
    folders(tmp_path / "images", "abc", 60)
    data = describe(path=tmp_path / "images", test=10)
    folder, building = tmp_path / "cache", f".{data.fingerprint}.building"
    at_once(data, folder)
    calm = built(data, tmp_path / "calm")

    def unsealed(left):
        (left / "journal.json").write_text(json.dumps(read_sealed(left / "journal.json")))

    for number, damage in enumerate(
        (
            unsealed,
            lambda left: os.truncate(left / "journal.json", 20),
            lambda left: os.truncate(left / "test.images.npy", 100),
            lambda left: monkeypatch.setattr(PIL, "__version__", "1.0"),
        )
    ):
        copy = shutil.copytree(folder, tmp_path / f"{number}")
        damage(copy / building)
        assert cache.inspect_data(data, copy).decoded_images == 0
        assert counted(data, copy) == (0, calm)


@pytest.mark.parametrize("split", ["train", "test"])
def test_what_rotted_in_a_half_built_cache_is_decoded_again(tmp_path, capsys, split):
    """One bit of an image that was decoded before the kill."""
    folders(tmp_path / "images", "abc", 60)
    data = describe(path=tmp_path / "images", test=60)
    folder = tmp_path / "cache"
    at_once(data, folder)
    file = folder / f".{data.fingerprint}.building" / f"{split}.images.npy"
    content = bytearray(file.read_bytes())
    assert content[130] > 0  # of the first image, which is decoded
    content[130] ^= 1
    file.write_bytes(content)
    first, found = counted(data, folder)
    line = f"data={data.name}: {file.name}: what was decoded so far is not the bytes that were "
    assert capsys.readouterr().err == f"{line}written; decoding from the beginning\n"
    assert (first, found) == (0, built(data, tmp_path / "calm"))


def test_what_rots_while_it_is_built_is_not_sealed(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "_JOURNAL_S", 0)
    monkeypatch.setattr(building, "_REPORT", 1)
    folders(tmp_path / "images", "abc", 60)
    data = describe(path=tmp_path / "images", test=10)
    left = tmp_path / "cache" / f".{data.fingerprint}.building"
    rotten = []

    def rot(done, total):
        while not rotten and done and not (left / "journal.json").exists():
            time.sleep(0.01)
        if done and not rotten:
            labels = left / "train.labels.npy"
            rotten.append(labels.read_bytes())
            labels.write_bytes(rotten[0][:-8] + b"\1" + rotten[0][-7:])

    with pytest.raises(Failure, match=r": train.labels.npy: what was decoded a while ago is not "):
        cache.prepare_cache(data, tmp_path / "cache", rot)
    assert built(data, tmp_path / "cache") == built(data, tmp_path / "calm")


def test_a_build_goes_on_after_its_files_were_away(tmp_path, monkeypatch):
    """As those of a file server that is restarted."""
    monkeypatch.setattr(building, "_JOURNAL_S", 0)
    monkeypatch.setattr(building, "_REPORT", 1)
    images, away = tmp_path / "images", tmp_path / "away"
    folders(images, "abc", 200)
    data = describe(path=images, test=10)
    left = tmp_path / "cache" / f".{data.fingerprint}.building"

    def unmount(done, total):
        wait_for(lambda: not done or (left / "journal.json").exists())
        if done and not away.exists():
            images.rename(away)

    with refused("No such file"):
        cache.prepare_cache(data, tmp_path / "cache", unmount, threads=1)
    away.rename(images)
    resumed_at, content = counted(data, tmp_path / "cache")
    assert resumed_at > 0
    assert content == built(data, tmp_path / "calm")


def test_what_a_killed_build_left_goes_after_a_week(tmp_path):
    left = tmp_path / ".0123456789abcdef.building"
    left.mkdir()
    (left / "journal.json").write_text("{}")
    cache.prepare_cache(describe(**DIGITS), tmp_path)
    assert left.exists()
    old = time.time() - 8 * 86400
    os.utime(left / "journal.json", (old, old))
    cache.prepare_cache(describe(**(DIGITS | {"test": 299})), tmp_path)
    assert not left.exists()


MOUNT = 'mount -t tmpfs -o size=64k none "$FOLDER"'
PREPARED = f"""{LOAD}
decoded = []
for threads in (1, 2):
    try:
        cache.prepare_cache(data, folder, lambda done, total: decoded.append(done), threads=threads)
    except OSError as error:
        print(error.errno, decoded, sorted(p.name for p in folder.iterdir()), error.filename)
"""


@pytest.mark.whole
def test_a_full_disk_says_how_much_is_needed_and_leaves_nothing(tmp_path):
    (tiny := tmp_path / "tiny").mkdir()
    data = describe(**DIGITS)
    environment = os.environ | {"FOLDER": str(tiny), "DATA": save_section(data, tmp_path)}
    environment |= {"SCRIPT": PREPARED, "OMP_NUM_THREADS": "1"}

    def in_tmpfs(command):
        words = ["unshare", "-rm", "sh", "-c", f"{MOUNT} && {command}"]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    if not shutil.which("unshare") or in_tmpfs("true").returncode:
        pytest.skip("may not mount a small tmpfs (unshare -rm)")
    said = in_tmpfs(f'exec {sys.executable} -c "$SCRIPT"')
    assert said.stderr == ""
    line = f"{tiny}: data=digits takes 130.2 kB decoded, 65.5 kB are free"
    assert said.stdout == f"{errno.ENOSPC} [] ['{data.fingerprint}.lock'] {line}\n" * 2


# --- ablate data prepare ------------------------------------------------------------------------


@pytest.mark.whole
def test_a_set_is_decoded_ahead_and_then_it_is_there(shell, data_folder):
    take(data_folder("imagenet_sample"), shell.folder / "photos", train=120)
    words = ("data", "prepare", "imagenet1k", "data.path=photos", "data.cache_size=64")
    words += ("data.cache=decoded", "data.size=48", "--store", "kept")
    first = shell(*words).out.splitlines()
    folder = next((shell.folder / "kept" / "cache").glob("*/meta.json")).parent
    images = f"120 images (train 96, validation 12, test 12), 1.5 MB in kept/cache/{folder.name}"
    note = f"note: data=imagenet1k: {shell.folder}/photos has only split 'train': "
    assert first[0].startswith(note + "validation and test are cut from it, a tenth each")
    assert first[1].startswith(f"data=imagenet1k: {images}; ")
    assert first[1].endswith(" are free")
    assert first[2:] == [
        "decoding data=imagenet1k: 120 of 120 images",
        f"data=imagenet1k is decoded: {images}",
    ]
    assert shell(*words).out.splitlines() == [first[0], first[3]]


def test_mistakes_in_what_to_prepare_are_told_in_one_line(here):
    folders(here / "one", ["cat"], 1)
    for line, told in (
        (
            "cifra10",
            "data: got 'cifra10' (did you mean 'cifar10'?), expected one of ade20k, camvid, ",
        ),
        ("cifar10 data.path=nowhere", f"data.path: {here}/nowhere: no such folder"),
        ("cifar10 model.depth=3", "model.depth: belongs to a run; "),
        ("cifar10 data.channels=2", "data.channels: expected one of 1, 3, got 2"),
        ("cifar10 data.size=0", "data.size: must be more than 0 and at most 65,536, got 0"),
        ("cifar10 data.cache_size=16", "data.cache_size: 16 is less than data.size 32"),
        ("cifar10 data.train='train[5]'", "data.train: expected a split, or a slice of one"),
        ("imagefolder data.path=one", f"data.path: {here}/one: expected a folder for each of at"),
    ):
        name, *words = line.split()
        with refused(f"^{re.escape(told)}.*$"):
            resolve_data(name, words, Path("runs"))


@pytest.mark.whole
def test_ctrl_c_ends_it_in_a_line(shell, data_folder):
    words = ("data", "prepare", "imagenet1k", f"data.path={data_folder('imagenet_sample')}")
    out, err = shell.folder / "out", shell.folder / "err"
    with open(out, "wb") as stdout, open(err, "wb") as stderr:
        streams = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": stderr}
        # A terminal sends Ctrl-C to all of it.
        process = subprocess.Popen(
            [ABLATE, *words], cwd=shell.folder, start_new_session=True, **streams
        )

    def is_building():
        assert process.poll() is None, err.read_text()
        return any((shell.folder / "runs" / "cache").glob(".*.building/train.encoded.npy"))

    wait_for(is_building, 120)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    assert out.read_text().endswith("stopped; the same command goes on\n")
    assert err.read_text() == "data=imagenet1k: looking for files\n"
