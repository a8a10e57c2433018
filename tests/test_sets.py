"""`ablate sweep` on real CIFAR-10, MNIST and a folder of images: trained, tabulated, and the same
whatever path names the data, whether it is decoded already, and however many workers there are."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Shell, records, refused
from PIL import Image
from pyarrow import parquet
from support.images import take

from ablate.data import cache, source
from ablate.planning.compose import resolve_data
from ablate.planning.expand import plan_from_words
from ablate.run.sections import Data

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]

# Three sets, a column each. {place}: before the sets' folders.
SETS = """\
title: Three real sets
base: {{model.depth: 1, train.steps: 3, train.batch: 16}}
across:
  - CIFAR-10: {{data: cifar10, data.path: {place}cifar10, data.validation: 20, model.arch: mu/8}}
  - MNIST: {{data: mnist, data.path: {place}mnist, data.validation: 20, model.arch: mu/7}}
  - folder: {{data: imagefolder, data.path: {place}pictures, data.test: 0.2, model.arch: mu/8}}
variants: [{{pre: {{}}}}, {{post: {{block.attn: post}}}}]
seeds: 1
"""


def unpack(parquet_file: Path, folder: Path) -> None:
    """A set in a parquet file as class folders of image files."""
    table = parquet.read_table(parquet_file)
    image, label = (next(n for n in table.column_names if kind in n) for kind in ("im", "label"))
    rows = zip(table[image].to_pylist(), table[label].to_pylist(), strict=True)
    for number, (cell, name) in enumerate(rows):
        with Image.open(io.BytesIO(cell["bytes"])) as picture:
            file = folder / CLASSES[name] / f"{number:03}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            picture.save(file)


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """What is started in here has one core, so that the launcher has one slot."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def runs(shell: Shell, name: str) -> dict[tuple[str, str], dict[str, str]]:
    """(row, column) -> seed -> run id, as planned."""
    plan = json.loads((shell.folder / "runs" / "sweeps" / f"{name}.json").read_text())
    return {(cell["row"], cell["column"]): cell["ids"] for cell in plan["cells"]}


def slots(shell: Shell) -> set[str]:
    """On which slots the store's runs were trained."""
    locks = (shell.folder / "runs" / "runs").glob("*/lock")
    return {json.loads(lock.read_text())["slot"] for lock in locks}


@pytest.mark.whole
def test_parquet_and_folders_give_one_table_whatever_path_cache_and_workers(tmp_path, data_folder):
    here, there = Shell(tmp_path / "here"), Shell(tmp_path / "there")
    here.folder.mkdir()
    there.folder.mkdir()
    take(data_folder("cifar10"), here.folder / "cifar10", train=200, test=60)
    take(data_folder("mnist"), here.folder / "mnist", train=200, test=60)
    unpack(here.folder / "cifar10" / "train.parquet", here.folder / "pictures")

    # Absolute paths, nothing decoded yet, a worker a core.
    (here.folder / "sets.yaml").write_text(SETS.format(place=f"{here.folder}/"))
    done = here("sweep", "sets.yaml").out
    assert done.count("finished:") == 6
    for name, images in (("cifar10", 260), ("mnist", 260), ("imagefolder", 200)):
        assert f"decoding data={name}: {images} of {images} images" in done
    assert all(column in done[done.index("**") :] for column in ("CIFAR-10", "MNIST", "folder"))
    assert "missing" not in done

    # Relative paths to the same files elsewhere, decoded already, one worker.
    for name in ("cifar10", "mnist", "pictures"):
        shutil.copytree(here.folder / name, there.folder / name)
    (there.folder / "sets.yaml").write_text(SETS.format(place=""))
    shutil.copytree(here.folder / "runs" / "cache", there.folder / "runs" / "cache")
    with one_core():
        again = there("sweep", "sets.yaml").out
    assert again.count("finished:") == 6
    assert "decoding" not in again
    assert slots(there) == {"cpu:0"}
    assert len(slots(here)) == min(len(os.sched_getaffinity(0)), 6)

    assert runs(here, "sets") == runs(there, "sets")
    tables = [shell("table", "--format", "tidy").out for shell in (here, there)]
    assert tables[0] == tables[1]
    facts = records(tables[0])
    sizes = {f["column"]: f["value"] for f in facts if f["quantity"] == "test.n"}
    assert sizes == {"CIFAR-10": "60", "MNIST": "60", "folder": "40"}
    assert sum(f["quantity"] == "top1.run" for f in facts) == 6


def test_imagenet_is_split_as_published(tmp_path):
    tree, notes = resolve_data("imagenet1k", [], tmp_path)
    assert notes == []
    cut = source.cut(Data(**tree["data"]), {"train": 1_281_167, "validation": 50_000})
    counts = {split: (stored, len(rows)) for split, (stored, rows) in cut.items()}
    learnt = {"train": ("train", 1_268_355), "validation": ("train", 12_812)}
    assert counts == {**learnt, "test": ("validation", 50_000)}
    assert cut["validation"][1][0] == 1_268_355


def test_files_with_one_split_alone_are_cut_anew_and_the_plan_says_so(tmp_path, monkeypatch):
    def planned(*words):
        made, _ = plan_from_words(
            ["stem=none,dpn", "data.path=files", *words], store=tmp_path / "runs"
        )
        data = made.cells[0].spec.tree["data"]
        return data, [note for note in made.notes if note.startswith("data=")]

    monkeypatch.chdir(tmp_path)
    Path("files").mkdir()
    Path("files/train.parquet").write_bytes(b"any")
    data, notes = planned("data=imagenet1k")
    assert (data["train"], data["validation"], data["test"]) == ("train", 0.1, 0.1)
    assert notes == [
        f"data=imagenet1k: {tmp_path}/files has only split 'train': validation and test are cut "
        f"from it, a tenth each; not the published split"
    ]
    shares = ("data.train=train", "data.validation=0.1", "data.test=0.1")
    assert planned("data=imagenet1k", *shares) == (data, [])
    data, notes = planned("data=cifar10")
    assert (data["validation"], data["test"], len(notes)) == (5000, 0.1, 1)
    Path("files/validation.parquet").write_bytes(b"any")
    data, notes = planned("data=imagenet1k")
    assert (data["train"], data["test"], notes) == ("train[:99%]", "validation", [])
    with refused("no split 'test' in data=cifar10; present: train, valid"):
        planned("data=cifar10")


def test_a_sample_of_imagenet_is_counted_without_decoding_and_its_classes_are(
    tmp_path, data_folder
):
    words = [f"data.path={data_folder('imagenet_sample')}", "data.classes=999"]
    data = Data(**resolve_data("imagenet1k", words, tmp_path)[0]["data"])
    assert cache.count_examples(data, tmp_path) == {"train": 800, "validation": 100, "test": 100}
    with refused(r"^data\.classes: 999, but .*has 1000 classes: n01440764_tench"):
        cache.prepare_cache(data, tmp_path)


def test_the_whole_of_cifar10_is_split_as_named(tmp_path, data_folder):
    """Counted and read, not decoded: that takes a while."""
    tree, notes = resolve_data("cifar10", [f"data.path={data_folder('cifar10')}"], tmp_path)
    assert notes == []
    data, empty = Data(**tree["data"]), tmp_path / "none"
    assert cache.count_examples(data, empty) == {
        "train": 45_000,
        "validation": 5_000,
        "test": 10_000,
    }
    assert not empty.exists()
    opened = source.open_source(data)
    assert opened.class_names == CLASSES
    for split, a_class in (("train", 5_000), ("test", 1_000)):
        labels = Counter(label for _, label in opened.parts[split].labels())
        assert sorted(labels.values()) == [a_class] * 10


@pytest.mark.slow
def test_the_whole_of_cifar10_trains_and_tabulates(shell, data_folder):
    words = ("data=cifar10", f"data.path={data_folder('cifar10')}", "stem=none,dpn", "seeds=1")
    out = shell("sweep", *words, "model.arch=mu/8", "model.depth=1", "train.steps=20").out
    assert "decoding data=cifar10: 60,000 of 60,000 images" in out
    assert len(re.findall(r"^finished: ", out, re.M)) == 2
    assert "test set of 10000 images" in out
    [file] = (shell.folder / "runs" / "cache").glob("*/meta.json")
    meta = json.loads(file.read_text())
    assert meta["counts"] == {"train": 45_000, "validation": 5_000, "test": 10_000}
    assert meta["class_names"] == CLASSES
    for result in (shell.folder / "runs" / "runs").glob("*/result.json"):
        test = json.loads(result.read_text())["test"]
        assert test["n"] == 10_000
        assert 0 < test["top1"] <= test["top5"]
