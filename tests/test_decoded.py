"""What is trained on is what was decoded: a byte changed in a decoded set is named, and the set is
decoded again before anything trains."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.data_sections import DIGITS, describe
from support.images import folders

from ablate.data.cache import prepare_cache
from ablate.data.splits import open_cached
from ablate.run import decoded
from ablate.run.rundir import RunDir
from ablate.running.launchers.fork import check_data
from ablate.shared.files import to_json

DATA = describe(**DIGITS)
WORDS = ("sweep", "optim.lr=0.001,0.002", "model.arch=mu/4", "model.depth=1", "train.steps=4")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    return prepare_cache(DATA, store / "cache").folder


@pytest.fixture
def home(whole, tmp_path):
    """A copy of a decoded set, in a store of its own."""
    return shutil.copytree(whole, tmp_path / "cache" / whole.name)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_every_file_is_hashed_block_by_block(home, tmp_path, monkeypatch):
    monkeypatch.setattr(decoded, "BLOCK", 1000)
    for path in home.glob("*.npy"):
        content = path.read_bytes()
        blocks = [content[at : at + 1000] for at in range(0, len(content), 1000)]
        expected = [hashlib.sha256(block).hexdigest() for block in blocks]
        assert decoded.hashes(home, {path.name: len(content)}) == {path.name: expected}
    small = prepare_cache(DATA, tmp_path / "small").folder
    beats: list[None] = []
    assert decoded.damage(small, beat=lambda: beats.append(None)) is None
    digests = json.loads((small / "meta.json").read_text())["sha256"]
    assert len(beats) == sum(map(len, digests.values())) > len(digests)


def test_a_flipped_bit_is_named_wherever_it_is(home):
    assert decoded.damage(home) is None
    for path in sorted(home.iterdir()):
        size = path.stat().st_size
        for place in (0, size // 2, size - 1):
            flip(path, place)
            assert path.name in str(decoded.damage(home)), (path.name, place)
            flip(path, place)
    assert decoded.damage(home) is None
    for path in sorted(home.glob("*.npy")):
        path.rename(home / "away")
        assert decoded.damage(home) == f"{path.name} is missing"
        (home / "away").rename(path)


@pytest.mark.parametrize("content", ["[]", "{", "{}", '{"sha256": 1}', '{"seal": []}', "3"])
def test_a_meta_file_that_is_not_ours_is_no_decoded_set(home, content):
    (home / "meta.json").write_text(content)
    assert decoded.damage(home) is not None
    assert open_cached(DATA, home.parent) is None


def test_what_is_half_trained_on_a_damaged_set_begins_again(home, tmp_path):
    rundirs = [RunDir(tmp_path / "runs" / name) for name in ("half", "other")]
    for rundir, data in zip(rundirs, (home.name, "another"), strict=True):
        rundir.create({"data": {"fingerprint": data}})
        rundir.write_checkpoint(3, b"a checkpoint")
    said: list[str] = []
    data = {"name": "digits", "fingerprint": home.name}
    check_data(data, tmp_path, said.append)
    assert said == []
    flip(home / "train.labels.npy", -1)
    check_data(data, tmp_path, said.append)
    (line,) = said
    assert "train.labels.npy: not the bytes that were written; decoding it again" in line
    assert open_cached(DATA, home.parent) is None
    assert [rundir.distrust.exists() for rundir in rundirs] == [True, False]


@pytest.mark.whole
def test_zeroed_labels_are_found_and_trained_on_by_nobody(shell):
    """The same run before and after: the labels it is trained on are the unharmed ones."""
    shell(*WORDS, "seeds=1", "launcher=inline", "--as", "tiny")
    (labels,) = (shell.folder / "runs" / "cache").glob("*/train.labels.npy")
    run = RunDir(next((shell.folder / "runs" / "runs").iterdir()))
    before, unharmed = run.read_result(), labels.read_bytes()
    meta = json.loads((labels.parent / "meta.json").read_text())
    files = labels.parent.glob("*.npy")  # each is smaller than a block
    hashes = {path.name: [hashlib.sha256(path.read_bytes()).hexdigest()] for path in files}
    assert hashes == meta["sha256"]
    assert before["data_sha256"] == hashlib.sha256(to_json(hashes)).hexdigest()

    zeroed = np.load(labels)
    zeroed[:600] = 0
    np.save(labels, zeroed)
    assert labels.stat().st_size == len(unharmed)
    found = shell("verify", "tiny", code=1)
    assert "train.labels.npy: not the bytes that were written" in found.out
    run.result.unlink()  # so that it is trained again
    again = shell(*WORDS, "seeds=1", "launcher=inline", "--as", "tiny")
    assert "train.labels.npy: not the bytes that were written; decoding it again" in again.out
    assert labels.read_bytes() == unharmed
    after = run.read_result()
    for key in ("data_sha256", "test", "weights_sha256", "train_loss"):
        assert before[key] == after[key], key

    bare = {key: meta[key] for key in meta if key not in ("sha256", "seal")}
    (labels.parent / "meta.json").write_bytes(to_json(bare))
    assert "meta.json is damaged" in shell("verify", "tiny", code=1).out
    assert "meta.json is damaged; decoding it again" in shell("data", "prepare", "digits").out
    assert json.loads((labels.parent / "meta.json").read_text()) == meta


def test_a_picture_in_two_splits_is_counted_and_refused_where_that_is_asked(shell):
    images = shell.folder / "images"
    for split, seed in (("train", 0), ("test", 1000)):
        folders(images / split, "ab", 20, seed=seed)
    for number in (3, 7):  # by another name, and of another class
        shutil.copy(images / f"train/a/{number}.png", images / f"test/b/x{number}.png")
    words = ("data", "prepare", "imagefolder", "data.path=images", "data.size=8")
    line = "2 of 42 test images are in another split, too, pixel for pixel"
    refused = shell(*words, "data.overlap=error", code=2).err
    assert f"data.overlap: data=imagefolder: {line}; remove the images" in refused
    assert f"data=imagefolder: {line}\n" in shell(*words).out
