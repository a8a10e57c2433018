"""The further sets that models of ImageNet are tested on, in the layouts in which they are
published: which class each image has, and which name the set."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refused
from PIL import Image

from ablate.data.cache import match_classes, prepare_cache
from ablate.planning.compose import resolve_data, resolve_run
from ablate.run.build import build_run
from ablate.store.store import Store
from ablate.training.task.classify import evaluate

IDS = [f"n{number:08}" for number in range(1440764, 1440776)]  # twelve: 10 is before 2 by name


def picture(file: Path, number: int) -> None:
    """A grey picture whose level says its class."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), 20 * number, np.uint8)).save(file)


@pytest.fixture
def folder(here):
    for number, name in enumerate(IDS):
        for copy in range(3):
            picture(here / "train" / name / f"{copy}.png", number)
        picture(here / "imagenetv2" / str(number) / "a.png", number)
        for corruption in ("fog", "blur"):
            picture(here / "imagenet-c" / corruption / "3" / name / "a.png", number)
        if number in (2, 10, 11):
            picture(here / "imagenet-r" / name / "a.png", number)
    return here


def matched(here: Path, *sets: str) -> dict[str, dict[int, int]]:
    """By the name of each set: the learnt class of each level of grey."""
    words = ["data=imagefolder", "data.path=train", "data.size=8", "model.arch=mu/4"]
    tree, _ = resolve_run([*words, f"eval.also=[{','.join(sets)}]"], here / "runs")
    run = build_run(tree)
    learnt = prepare_cache(run.data, here / "cache")
    classes = {}
    for data in run.eval.also:
        cached = prepare_cache(data, here / "cache")
        numbers, _ = match_classes(data, cached, run.data, learnt)
        split = cached.split("test")
        levels = split.images[:, 0, 0, 0].tolist()
        labels = [numbers[label] for label in split.labels.tolist()]
        classes[data.name] = dict(zip(levels, labels, strict=True))
    return classes


EVERY = {20 * number: number for number in range(12)}


def real(home: Path, rows: list[list[int]]) -> None:
    """Images of validation, the first of class 0, and so on, with ReaL's labels."""
    for number, name in enumerate(IDS):
        picture(home / name / f"ILSVRC2012_val_{number + 1:08}.png", number)
    (home / "real.json").write_text(json.dumps(rows))


ROWS = [[0], [1, 5], [], [7, 3, 11], [4], [2], *[[number] for number in range(6, 12)]]


def test_real_is_right_where_a_prediction_is_among_the_labels(folder):
    real(folder / "imagenet-real", ROWS)
    assert matched(folder, "./imagenet-real")["imagenet-real"] == {
        20 * number: (sorted(row) + [min(row)] * 2)[:3] for number, row in enumerate(ROWS) if row
    }


def test_an_image_has_the_rank_of_its_likeliest_label():
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0], [0.0, 3.0, 2.0, 1.0], [5.0, 3.0, 2.0, 1.0]])
    labels = torch.tensor([[2, 1], [3, 2], [3, 3]])
    scores, table = evaluate([(logits, labels)])
    assert table["rank"].tolist() == [0, 1, 3]
    assert table["label"].tolist() == [1, 2, 3]
    assert scores["top1"] == pytest.approx(1 / 3)
    one = evaluate([(logits, torch.tensor([1, 2, 3]))])
    assert (one[1] == table).all()


@pytest.mark.parametrize(
    ("rows", "message"),
    [(table, r"real\.json") for table in (ROWS[:5], [[12]], [[-1], *ROWS[1:]])],
)
def test_a_table_that_is_not_of_these_images_is_refused(rows, message, folder):
    real(folder / "imagenet-real", rows)
    with refused(message):
        matched(folder, "./imagenet-real")


@pytest.mark.whole
def test_a_run_is_tested_on_real(folder, shell):
    real(folder / "imagenet-real", ROWS)
    words = ["stem=none,dpn", "data=imagefolder", "data.path=train", "data.size=8"]
    words += ["model.arch=mu/4", "recipe=quick", "train.steps=20", "train.batch=12", "seeds=1"]
    shell("sweep", *words, "eval.also=[./imagenet-real]", "launcher=inline", "--as", "r")
    found = shell.facts("r")
    assert {"on imagenet-real"} <= {fact["column"] for fact in found}
    for run in Store(Path("runs")).read_plan("r").runs():
        rundir = Store(Path("runs")).rundir(run.id)
        table = np.load(rundir.predictions_on("imagenet-real"))
        labelled = [row for row in ROWS if row]
        assert len(table) == len(labelled)
        hits = [predicted in row for predicted, row in zip(table["class"], labelled, strict=True)]
        assert ((table["rank"] == 0) == hits).all()
    assert "nothing wrong" in shell("verify", "r").out


TINY = ("data=tiny_imagenet", "data.classes=12", "data.size=8", "model.arch=mu/4")


def tiny_imagenet(home: Path) -> Path:
    """Tiny-ImageNet's layout as published, with every class twice in `val`."""
    lines = []
    for number, name in enumerate(IDS):
        for copy in range(10):
            picture(home / "train" / name / "images" / f"{name}_{copy}.JPEG", number)
        (home / "train" / name / f"{name}_boxes.txt").write_text("a 0 0 8 8\n")
    for image in range(24):
        number = (5 * image) % 12
        picture(home / "val" / "images" / f"val_{image}.JPEG", number)
        picture(home / "test" / "images" / f"test_{image}.JPEG", 0)
        lines.append(f"val_{image}.JPEG\t{IDS[number]}\t0\t0\t8\t8\n")
    (home / "val" / "val_annotations.txt").write_text("".join(lines))
    return home


def test_tiny_imagenet_is_read_as_it_is_published(here):
    home = tiny_imagenet(here / "tiny")
    words = [*TINY[:2], f"data.path={home}", *TINY[2:]]
    _, notes = resolve_data("tiny_imagenet", words[1:3], here / "runs")
    assert ["108", "12", "24"] in [re.findall(r"\b\d+\b", note)[-3:] for note in notes]
    run = build_run(resolve_run(words, here / "runs")[0])
    cached = prepare_cache(run.data, here / "cache")
    assert cached.counts == {"train": 108, "validation": 12, "test": 24}
    for split, number in (("train", 9), ("validation", 1), ("test", 2)):
        part = cached.split(split)
        assert np.bincount(part.labels).tolist() == [number] * 12
        levels = part.images[:, 0, 0, 0].int()
        assert ((levels - 20 * part.labels).abs() < 5).all()  # of JPEG
    table = home / "val" / "val_annotations.txt"
    table.write_text(table.read_text().replace(IDS[0], IDS[1], 1))
    assert build_run(resolve_run(words, here / "runs")[0]).id != run.id


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("val_0.JPEG", r"line 1 of .*val_annotations.txt: .* got 'val_0.JPEG'$"),
        ("other.JPEG\tn01440764", r"val_0.JPEG: has no line in val_annotations.txt$"),
        ("val_0.JPEG\tn1", r"val_0.JPEG: 'n1' is no class of the training split"),
    ],
)
def test_an_image_of_tiny_imagenet_without_a_class_is_named(line, message, here):
    home = tiny_imagenet(here / "tiny")
    table = home / "val" / "val_annotations.txt"
    table.write_text(table.read_text().replace(f"val_0.JPEG\t{IDS[0]}\t0\t0\t8\t8", line))
    run = build_run(resolve_run([*TINY, f"data.path={home}"], here / "runs")[0])
    with refused(message):
        prepare_cache(run.data, here / "cache")


def test_imagenet_v2_has_the_numbers_of_its_folders(folder):
    assert matched(folder, "./imagenetv2") == {"imagenetv2": EVERY}


def test_imagenet_c_has_a_name_for_each_corruption_and_severity(folder):
    sets = matched(folder, "imagenet-c/fog/3", "imagenet-c/blur/3")
    assert sets == {"fog-3": EVERY, "blur-3": EVERY}


def test_imagenet_r_is_classified_among_all_classes(folder):
    assert matched(folder, "./imagenet-r") == {"imagenet-r": {40: 2, 200: 10, 220: 11}}
