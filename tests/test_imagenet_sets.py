"""The further sets that models of ImageNet are tested on, in the layouts in which they are
published: which class each image has, and which name the set."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import refused
from PIL import Image

from ablate.analysis.scores import on_set
from ablate.data.batches import Feed
from ablate.data.cache import match_labels, prepare_cache
from ablate.data.image_changes import ImageView
from ablate.data.splits import AnySplit
from ablate.planning.compose import resolve_data, resolve_run
from ablate.planning.conf import shipped_folder
from ablate.planning.expand import plan_from_words
from ablate.run.build import build_run
from ablate.store.store import Store
from ablate.training.loop import relabel
from ablate.training.task.classify import evaluate
from ablate.training.training import Training

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


LEARNT = ("data=imagefolder", "data.path=train", "data.size=8", "model.arch=mu/4")


def matched(here: Path, *sets: str) -> dict[str, dict[int, int]]:
    """By the name of each set: the learnt class of each level of grey."""
    tree, _ = resolve_run([*LEARNT, f"eval.also=[{','.join(sets)}]"], here / "runs")
    run = build_run(tree)
    learnt = prepare_cache(run.data, here / "cache")
    classes = {}
    for data in run.eval.also:
        cached = prepare_cache(data, here / "cache")
        numbers, _ = match_labels(data, cached, run.data, learnt)
        split = cached.split("test")
        levels = split.images[:, 0, 0, 0].tolist()
        labels = [numbers[label] for label in split.labels.tolist()]
        classes[data.name] = dict(zip(levels, labels, strict=True))
    return classes


EVERY = {20 * number: number for number in range(12)}


def real(home: Path, rows: list[list[int]], images: int = 12) -> None:
    """Images of validation, the first of class 0, and so on, with ReaL's labels."""
    for number in range(images):
        name = f"ILSVRC2012_val_{number + 1:08}.png"
        picture(home / IDS[number % 12] / name, number % 12)
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


# 35 sets of up to three of the 12 classes, and an image without any.
MANY = [[(n + k * k) % 12 for k in range(1 + n // 12)] for n in range(36)]
MANY[20] = []


def in_order(rows: list[list[int]]) -> list[list[int]]:
    """The labels of the images that have any, in the order of the files: class by class."""
    return [row for first in range(12) for row in rows[first::12] if row]


def real_split(here: Path, *words: str) -> AnySplit:
    """The images of ReaL in `many`, by name, with the classes that were learnt."""
    real(here / "many", MANY, 36)
    tree, _ = resolve_run([*LEARNT, *words, "eval.also=[imagenet_real:many]"], here / "runs")
    run = build_run(tree)
    [data] = run.eval.also
    assert data.classes == 12
    learnt, cached = (prepare_cache(part, here / "cache") for part in (run.data, data))
    return relabel(cached.split("test"), match_labels(data, cached, run.data, learnt)[0])


def test_real_may_have_more_sets_of_classes_than_classes(folder):
    assert len({tuple(sorted(row)) for row in MANY if row}) > 12
    found = [{*row} for row in real_split(folder).labels.tolist()]
    assert found == [{*row} for row in in_order(MANY)]


@pytest.mark.parametrize("cache", ["decoded", "encoded"])
def test_all_labels_of_an_image_come_with_its_batch(cache, folder):
    split = real_split(folder, f"data.cache={cache}")
    parts = torch.arange(len(split)).split(10)
    cut = ImageView(8).centre if cache == "encoded" else None
    feed = Feed(lambda number: (split, parts[number], cut), torch.device("cpu"), len(parts))
    fed = [feed.fetch(number) for number in range(len(parts))]
    assert split.labels.ndim == 2
    assert torch.equal(torch.cat([batch.labels for batch in fed]), split.labels)
    levels = torch.cat([batch.images[:, 0, 0, 0] for batch in fed]).tolist()
    rows = [number for first in range(12) for number in range(first, 36, 12) if MANY[number]]
    assert levels == [20 * (number % 12) for number in rows]


def test_the_classes_of_real_may_have_other_names_in_the_same_order(folder):
    """As the files of the hub: "tench, Tinca tinca" for n01440764."""
    for number, name in enumerate(IDS):
        (folder / "train" / name).rename(folder / "train" / f"{number:02}, a name")
    found = [{*row} for row in real_split(folder).labels.tolist()]
    assert found == [{*row} for row in in_order(MANY)]


@pytest.mark.parametrize("item", ["imagenet_real:imagenet-real", "./imagenet-real"])
@pytest.mark.parametrize("task", ["knn", "fewshot", "contrastive"])
def test_real_is_for_tasks_that_score_several_classes_an_image(task, item, folder):
    real(folder / "imagenet-real", ROWS)
    words = [*LEARNT, f"task={task}", f"eval.also=[{item}]"]
    words += [] if task == "contrastive" else ["from.recipe=quick"]
    with refused(rf"^eval\.also: imagenet.real: .* task={task} "):
        resolve_run(words, folder / "runs")


def test_images_of_several_classes_are_not_learnt_from(folder):
    real(folder / "imagenet-real", ROWS)
    with refused(r"^data\.path: .* real\.json "):
        resolve_run([LEARNT[0], "data.path=imagenet-real", *LEARNT[2:]], folder / "runs")


@pytest.mark.parametrize(
    ("rows", "message"),
    [(table, r"real\.json") for table in (ROWS[:5], [[12]], [[-1], *ROWS[1:]])],
)
def test_a_table_that_is_not_of_these_images_is_refused(rows, message, folder):
    real(folder / "imagenet-real", rows)
    with refused(message):
        matched(folder, "./imagenet-real")


@pytest.mark.whole
@pytest.mark.parametrize("cache", ["decoded", "encoded"])
def test_a_run_is_tested_on_real(cache, folder, shell):
    real(folder / "imagenet-real", MANY, 36)
    words = ["stem=none,dpn", "data=imagefolder", "data.path=train", "data.size=8"]
    words += ["model.arch=mu/4", "recipe=quick", "train.steps=20", "train.batch=12", "seeds=1"]
    words.append(f"data.cache={cache}")
    shell("sweep", *words, "eval.also=[./imagenet-real]", "launcher=inline", "--as", "r")
    found = shell.facts("r")
    assert {"on imagenet-real"} <= {fact["column"] for fact in found}
    for run in Store(Path("runs")).read_plan("r").runs():
        rundir = Store(Path("runs")).rundir(run.id)
        table = np.load(rundir.predictions_on("imagenet-real"))
        labelled = in_order(MANY)
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


# --- By name ------------------------------------------------------------------------------------

CORRUPTIONS = yaml.safe_load((shipped_folder("conf") / "data/imagenet_c.yaml").read_text())[
    "corruptions"
]
SEVERITIES = "12345"


def corrupted(home: Path) -> Path:
    """ImageNet-C as it is published, of three classes, and a corruption that isn't of the 15."""
    for place, corruption in enumerate([*CORRUPTIONS, "speckle_noise"]):
        for severity in SEVERITIES:
            for number in (0, 5, 11):
                level = (place + int(severity)) % 12
                picture(home / corruption / severity / IDS[number] / "a.png", level)
    return home


def test_a_set_by_name_is_read_as_it_is_published(folder):
    real(folder / "val", ROWS)
    corrupted(folder / "c")
    sets = ("imagenet_v2:imagenetv2", "imagenet_r:./imagenet-r", "imagenet_real:val")
    by_level = matched(folder, *sets)
    assert by_level["imagenet_v2"] == EVERY
    assert by_level["imagenet_r"] == {40: 2, 200: 10, 220: 11}
    assert by_level["imagenet_real"][20] == [1, 5, 1]
    run = build_run(resolve_run([*LEARNT, "eval.also=[imagenet_c:c]"], folder / "runs")[0])
    [data] = run.eval.also
    assert (data.classes, data.crop, len(data.corruptions)) == (3, 1.0, 15)
    split = prepare_cache(data, folder / "cache").split("test")
    assert len(split) == 15 * 5 * 3
    expected = []  # in the order of folders, by name
    for corruption in sorted(CORRUPTIONS):
        for severity in SEVERITIES:
            level = 20 * ((CORRUPTIONS.index(corruption) + int(severity)) % 12)
            expected += [(level, label) for label in range(3)]
    levels = split.images[:, 0, 0, 0].tolist()
    assert [*zip(levels, split.labels.tolist(), strict=True)] == expected


def spoil(home: Path, how: str) -> None:
    severity = home / "fog" / "3"
    if how == "missing":
        shutil.rmtree(severity)
    elif how == "an image less":
        picture(home / "fog" / "2" / IDS[0] / "b.png", 0)
    elif how == "another class":
        (severity / IDS[0]).rename(severity / IDS[1])
    else:
        picture(severity / "a.png", 0)


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("missing", "fog/3: no such folder"),
        ("an image less", "fog/2: has 4 images of 3 classes"),
        ("another class", "fog/3: has 3 images of 3 classes"),
        ("no class", "fog/3/a.png: lies in no class folder"),
    ],
)
def test_corruptions_that_do_not_weigh_the_same_are_refused(how, place, folder):
    spoil(corrupted(folder / "c"), how)
    with refused(f"^eval.also: imagenet_c:c: data.path: .*{place}"):
        resolve_run([*LEARNT, "eval.also=[imagenet_c:c]"], folder / "runs")


def test_a_folder_may_hold_a_single_corruption(folder):
    corrupted(folder / "all")
    (folder / "one").mkdir()
    (folder / "all" / "fog").rename(folder / "one" / "fog")
    file = folder / "conf" / "data" / "fog.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("defaults: [imagenet_c, _self_]\nname: fog\ncorruptions: [fog]\n")
    tree, _ = resolve_run([*LEARNT, "eval.also=[fog:one]"], folder / "runs")
    [data] = build_run(tree).eval.also
    assert (data.classes, data.corruptions) == (3, ("fog",))
    assert len(prepare_cache(data, folder / "cache").split("test")) == 15


def test_validation_images_without_the_labels_of_real_are_refused(folder):
    with refused(r"^eval\.also: imagenet_real:train: data\.label: .*real\.json"):
        resolve_run([*LEARNT, "eval.also=[imagenet_real:train]"], folder / "runs")


def test_a_set_without_its_folder_is_planned_and_not_trained(folder):
    words = ["data=imagenet1k", "model.arch=Ti/16", "stem=none,dpn", "eval.also=[imagenet_c]"]
    with refused("^eval.also: imagenet_c: .*imagenet_c:FOLDER"):
        plan_from_words(words, store=folder / "runs")
    with refused("^eval.also: imagenet_c:none: data.path: [^;]*$"):
        plan_from_words([*words[:3], "eval.also=[imagenet_c:none]"], store=folder / "runs")
    plan, _ = plan_from_words(words, store=folder / "runs", allow_missing=True)
    assert any("eval.also=[imagenet_c:FOLDER]" in note for note in plan.notes)


def test_where_a_named_set_lies_is_not_part_of_the_id(folder):
    shutil.copytree("imagenet-r", "moved")

    def run_id(item: str) -> str:
        return resolve_run([*LEARNT, f"eval.also=[{item}]"], folder / "runs")[1]

    assert run_id("imagenet_r:imagenet-r") == run_id("imagenet_r:moved")
    assert run_id("imagenet_r:moved") != run_id("./moved")


def test_a_guess_is_among_the_classes_that_a_prediction_is_among(folder):
    sets = "eval.also=[imagenet_r:./imagenet-r,imagenet_v2:imagenetv2,./imagenet-r]"
    plan, _ = plan_from_words([*LEARNT, "stem=none,dpn", sets], store=folder / "runs")
    cell = plan.cells[0]
    guesses = {name: on_set(cell, name).spec.guesses for name in ("imagenet_r", "imagenet_v2")}
    assert guesses == {"imagenet_r": 3, "imagenet_v2": 12}
    assert on_set(cell, "imagenet-r").spec.guesses == 12


def test_a_set_that_can_not_be_measured_so_is_refused(folder):
    words = [*LEARNT, "task=knn", "from.recipe=quick"]
    with refused(r"^eval\.also: imagenet_r: data\.among: "):
        resolve_run([*words, "eval.also=[imagenet_r:./imagenet-r]"], folder / "runs")
    file = folder / "conf" / "data" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("defaults: [imagenet_c, _self_]\nname: mine\nbroken: skip\n")
    corrupted(folder / "c")
    with refused(r"^eval\.also: mine: data\.broken: "):
        resolve_run([*LEARNT, "eval.also=[mine:c]"], folder / "runs")


@pytest.mark.parametrize("word", ["data.crop=0.5", "data.among=own", "data.corruptions=[fog]"])
def test_what_is_of_other_sets_is_refused_for_the_set_that_is_learnt(word, folder):
    with refused(rf"^{word.partition('=')[0]}: "):
        resolve_run([*LEARNT, word], folder / "runs")


def framed(file: Path, number: int) -> None:
    """A picture whose class only its middle says: what an evaluation crop of 1/2 leaves."""
    pixels = np.full((8, 8, 3), 255, np.uint8)
    pixels[2:6, 2:6] = 20 * number
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


@pytest.mark.parametrize("cache", ["decoded", "encoded"])
def test_a_set_with_a_crop_of_its_own_is_shown_by_it(cache, folder):
    """ImageNet-C is shown whole, the same pictures as another set by `eval.crop`."""
    for corruption in CORRUPTIONS:
        for severity in SEVERITIES:
            framed(folder / "c" / corruption / severity / IDS[3] / "a.png", 3)
            framed(folder / "c" / corruption / severity / IDS[4] / "a.png", 4)
    framed(folder / "plain" / IDS[3] / "a.png", 3)
    framed(folder / "plain" / IDS[4] / "a.png", 4)
    words = [*LEARNT, "train.batch=12", f"data.cache={cache}", "eval.crop=0.5"]
    run = build_run(resolve_run([*words, "eval.also=[imagenet_c:c,./plain]"], folder / "runs")[0])
    train = prepare_cache(run.data, folder / "cache").split("train")
    training = Training(run, train, torch.device("cpu"))
    shown = {}

    class Watch:
        def evaluate(self, predict, batches):
            shown[predict.data.name] = torch.cat([images for images, _ in batches])
            return {}, np.zeros(0)

    for data in run.eval.also:
        split = prepare_cache(data, folder / "cache").split("test")
        training.measure(split, Watch(), data)
    levels = (127.5 * (shown["imagenet_c"] + 1)).round()
    assert levels.shape == (150, 8, 8, 3)
    for picture_levels, level in zip(levels[:2], (60, 80), strict=True):
        assert (picture_levels[2:6, 2:6] == level).all()
        assert (picture_levels[0] == 255).all()
    levels = (127.5 * (shown["plain"] + 1)).round()
    assert [(levels[n] == level).all() for n, level in enumerate((60, 80))] == [True, True]


def test_imagenet_r_is_scored_over_its_own_classes():
    logits = torch.tensor([[9.0, 1.0, 8.0, 2.0], [0.0, 5.0, 8.0, 4.0], [7.0, 6.0, 9.0, 5.0]])
    labels = torch.tensor([3, 1, 3])
    scores, table = evaluate([(logits, labels)], among=torch.tensor([1, 3]))
    assert table["class"].tolist() == [3, 1, 1]
    assert table["label"].tolist() == [3, 1, 3]
    assert table["rank"].tolist() == [0, 0, 1]
    assert scores["top1"] == pytest.approx(2 / 3)
    pairs = logits[:, [1, 3]].double()
    expected = torch.nn.functional.cross_entropy(pairs, torch.tensor([1, 0, 1]))
    assert scores["loss"] == pytest.approx(float(expected))
    assert table["confidence"] == pytest.approx(pairs.softmax(1).amax(1).numpy())
    assert evaluate([(logits, labels)])[0]["top1"] == 0


@pytest.mark.whole
def test_a_run_is_tested_on_the_sets_by_name(folder, shell):
    """The oracle: loops over the predictions, with the folders' own names."""
    corrupted(folder / "c")
    for number in (2, 10, 11):  # so that it takes its own classes to be right
        for copy in range(4):
            picture(folder / "imagenet-r" / IDS[number] / f"{copy}.png", number - copy % 2)
    words = ["stem=none,dpn", *LEARNT, "recipe=quick", "train.steps=20", "train.batch=12"]
    sets = "eval.also=[imagenet_c:c,imagenet_r:./imagenet-r,imagenet_v2:imagenetv2]"
    shell("sweep", *words, "seeds=1", sets, "launcher=inline", "--as", "named")
    found = {
        (fact["column"], fact["row"]): float(fact["value"])
        for fact in shell.facts("named")
        if fact["quantity"] == "top1"
    }
    store = Store(Path("runs"))
    for run in store.read_plan("named").runs():
        rundir = store.rundir(run.id)
        result = json.loads((rundir.path / "result.json").read_text())["also"]
        table = np.load(rundir.predictions_on("imagenet_r"))
        assert {*table["class"].tolist()} <= {2, 10, 11}
        assert {*table["label"].tolist()} == {2, 10, 11}
        table = np.load(rundir.predictions_on("imagenet_c"))
        place, severities = 0, []
        for _ in range(75):  # each weighs the same
            right = [table["class"][place + n] == (0, 5, 11)[n] for n in range(3)]
            severities.append(sum(right) / 3)
            place += 3
        assert place == len(table)
        assert result["imagenet_c"]["test"]["top1"] == pytest.approx(sum(severities) / 75)
        row = run.label.partition("#")[0]
        assert found["on imagenet_c", row] == pytest.approx(100 * sum(severities) / 75)
    assert "nothing wrong" in shell("verify", "named").out
