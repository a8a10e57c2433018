"""The further sets that models of ImageNet are tested on, in the layouts in which they are
published: which class each image has, and which name the set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ablate.data.cache import match_classes, prepare_cache
from ablate.planning.compose import resolve_run
from ablate.run.build import build_run

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


def test_imagenet_v2_has_the_numbers_of_its_folders(folder):
    assert matched(folder, "./imagenetv2") == {"imagenetv2": EVERY}


def test_imagenet_c_has_a_name_for_each_corruption_and_severity(folder):
    sets = matched(folder, "imagenet-c/fog/3", "imagenet-c/blur/3")
    assert sets == {"fog-3": EVERY, "blur-3": EVERY}


def test_imagenet_r_is_classified_among_all_classes(folder):
    assert matched(folder, "./imagenet-r") == {"imagenet-r": {40: 2, 200: 10, 220: 11}}
