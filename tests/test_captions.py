"""Images with captions: folders of tables and images, what is read of them, and what is refused."""

from __future__ import annotations

import csv
import hashlib
import re
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from conftest import refused
from PIL import Image

from ablate.data.cache import prepare_cache
from ablate.planning.expand import plan_from_words as make_plan
from ablate.run.metrics.contrastive import contrastive_scores
from ablate.run.run import Run
from ablate.run.rundir import RunDir
from ablate.store.store import Store
from ablate.training import answers
from ablate.training.attempt import TrainingStopped
from ablate.training.loop import Machine, train
from ablate.training.task import contrastive
from ablate.training.task.contrastive import Contrastive, canonical

CPU = torch.device("cpu")


def image_text(folder, split: str, rows: list[tuple[int, str]]) -> None:
    """A table and its images: of one shade each, 8x8."""
    home = folder / "images" / split
    home.mkdir(parents=True)
    with open(folder / f"{split}.csv", "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "text"])
        for number, (shade, text) in enumerate(rows):
            Image.new("RGB", (8, 8), (shade, number, 0)).save(home / f"{number}.png")
            writer.writerow([f"images/{split}/{number}.png", text])


@pytest.fixture
def captioned(here):
    folder = here / "captioned"
    kinds = [(0, "A dark, red thing!"), (120, "a middling thing"), (250, "some bright thing")]
    image_text(folder, "train", [(shade + n, text) for shade, text in kinds for n in range(4)])
    image_text(folder, "test", [(1, kinds[0][1]), (2, "a dark blue thing"), (251, kinds[2][1])])
    return folder


WORDS = (
    *("stem=none,dpn", "task=contrastive", "recipe=lit", "data=imagetext", "data.validation=2"),
    *("data.size=8", "model.arch=mu/4", "text.arch=mu", "text.tokens=words", "train.batch=8"),
    *("train.precision=fp32", "seeds=1", "augment.randaug=0"),
)
ALSO = ("train.steps=5", "optim.warmup_steps=1", "eval.also=[./shades]")


def planned(folder, *words: str):
    return make_plan([*WORDS, f"data.path={folder}", *words], store=Path("runs"))[0]


def captions_run(folder, *words: str) -> Run:
    return next(iter(planned(folder, *words).runs())).run()


def prepared(folder, *words: str, cache: str = "cache"):
    return prepare_cache(captions_run(folder, *words).data, Path(cache))


def edit(file, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))


def test_a_table_of_paths_and_texts_is_a_set_whose_classes_are_its_texts(captioned):
    run = captions_run(captioned)
    assert (run.data.classes, run.data.test_classes) == (4, 3)
    cached = prepare_cache(run.data, Path("cache"))
    train, test = cached.split("train"), cached.split("test")
    texts = ("A dark, red thing!", "a middling thing", "some bright thing", "a dark blue thing")
    assert train.names == texts
    assert test.labels.tolist() == [0, 3, 2]
    assert test.images[:, 0, 0, 0].tolist() == [1, 2, 251]
    assert (train.images[:, 0, 0, 0] // 100).tolist() == train.labels.tolist()
    tokens = Contrastive(run)._tokens(train)
    assert 2 in tokens(["a dark blue thing"])  # blue is in no training text


def test_what_the_set_is_hangs_on_images_and_texts_not_on_its_place(captioned, tmp_path):
    first = captions_run(captioned).data.fingerprint
    moved = shutil.copytree(captioned, tmp_path / "moved")
    assert captions_run(moved).data.fingerprint == first
    edit(captioned / "train.csv", "bright", "light")
    other = captions_run(captioned).data.fingerprint
    Image.new("RGB", (8, 8), (9, 9, 9)).save(captioned / "images" / "train" / "0.png")
    assert len({first, other, captions_run(captioned).data.fingerprint}) == 3


def test_parquet_of_paths_and_of_images_says_the_same(captioned, tmp_path):
    expected = prepared(captioned)
    for image in (False, True):
        folder = shutil.copytree(captioned, tmp_path / f"parquet{image}")
        for split in ("train", "test"):
            table = pandas.read_csv(folder / f"{split}.csv")
            if image:
                each = [{"bytes": (folder / path).read_bytes()} for path in table.path]
                table = pandas.DataFrame({"image": each, "text": table.text})
            table.to_parquet(folder / f"{split}.parquet")
            (folder / f"{split}.csv").unlink()
        if image:
            shutil.rmtree(folder / "images")
        found = prepared(folder, *["data.image=image"] * image)
        for split in ("train", "validation", "test"):
            one, other = found.split(split), expected.split(split)
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.labels, other.labels)
            assert one.names == other.names


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("text", "words", r"^data\.text: expected a column of .*train\.csv"),
        ("path", "file", r"^data\.image: expected a column of .*train\.csv"),
        ("a middling thing", " ", r"^data\.text: row 4 of .* has no text"),
        ('"', "", r"^data\.path: row 0 of .*: has 3 cells, and the table 2 columns; put a text"),
        ("images/train/3", "../3", r"^data\.image: row 3 of .* lies outside"),
        ("train/3.png", "train/x.png", r"^data\.image: row 3 of .*no such file"),
    ],
)
def test_a_table_that_can_t_be_read_is_told_in_a_line(captioned, old, new, said):
    edit(captioned / "train.csv", old, new)
    with refused(said):
        prepared(captioned)


def test_a_table_of_one_text_has_nothing_to_tell_apart(captioned):
    for split in ("train", "test"):
        file = captioned / f"{split}.csv"
        file.write_text(re.sub(r"png,.*", "png,one thing", file.read_text()))
    with refused(r"^data\.text: each text is a class, .* \('one thing'\)"):
        captions_run(captioned)


def test_a_plan_says_that_images_are_classified_among_all_texts_of_the_set(captioned):
    def remarks():
        return [note for note in planned(captioned).notes if "classified" in note]

    assert not remarks()
    (captioned / "test.csv").unlink()
    (note,) = remarks()
    assert "all 3 texts" in note
    assert "test*.csv" in note


@pytest.mark.parametrize("path", ["images/train/plain", "images/.hidden/0.png", ".0.png"])
def test_an_image_that_the_fingerprint_does_not_know_is_refused(captioned, path):
    """It could be changed, and the runs would be those of before."""
    (captioned / path).parent.mkdir(exist_ok=True)
    (captioned / "images/train/0.png").rename(captioned / path)
    edit(captioned / "train.csv", "images/train/0.png", path)
    with refused(rf"^data\.image: row 0 of .*: {re.escape(path)}: is passed over: .*rename it"):
        prepared(captioned)


def test_images_that_are_links_are_those_that_they_lead_to(captioned, tmp_path):
    """And a path is what its text says, wherever `..` would lead behind a link."""
    expected = prepared(captioned).split("train")
    home = tmp_path / "else" / "where"
    home.parent.mkdir()
    (captioned / "images" / "train").rename(home)
    (home / "0.png").rename(tmp_path / "0.png")
    (home / "0.png").symlink_to(tmp_path / "0.png")
    (captioned / "images" / "train").symlink_to(home)
    edit(captioned / "train.csv", "images/train/1.", "images/train/../train/1.")
    before = captions_run(captioned).data.fingerprint
    found = prepared(captioned, cache="another").split("train")
    assert torch.equal(found.images, expected.images)
    Image.new("RGB", (8, 8), (9, 9, 9)).save(tmp_path / "0.png")
    assert captions_run(captioned).data.fingerprint != before


def test_a_byte_order_mark_is_no_part_of_a_column_s_name(captioned):
    file = captioned / "train.csv"
    file.write_text(file.read_text(), encoding="utf-8-sig")
    assert captions_run(captioned).data.classes == 4


def test_a_run_whose_texts_are_other_tokens_now_is_not_gone_on_with(
    captioned, tmp_path, monkeypatch
):
    """As byte pairs that another version of `tokenizers` learns."""
    run, rundir = captions_run(captioned, "train.steps=3"), RunDir(tmp_path / "run")
    rundir.path.mkdir()

    def trained(stop):
        machine = Machine(CPU, Path("cache"), 1e9, lambda: stop, lambda **notes: None, print)
        return train(run, rundir, machine)

    with pytest.raises(TrainingStopped):
        trained(stop=True)
    with monkeypatch.context() as patched:
        patched.setattr(contrastive, "UNKNOWN", 0)
        with refused(r"^text\.tokens: .*checkpoint-1.*: was trained with oth"):
            trained(stop=False)
    result = trained(stop=False)
    split = prepare_cache(run.data, Path("cache")).split("train")
    numbers = Contrastive(run)._tokens(split)([canonical(name) for name in split.names])
    assert result["tokens_sha256"] == hashlib.sha256(numbers.tobytes()).hexdigest()


def shades(folder, *names: str) -> None:
    """Class folders of two images each."""
    for number, name in enumerate(names):
        home = folder / name
        home.mkdir(parents=True)
        for one in range(2):
            Image.new("RGB", (8, 8), (120 * number, one, 9)).save(home / f"{one}.png")


def test_a_set_without_names_of_classes_is_refused_before_anything_trains(captioned, tmp_path):
    """By the plan; before the first run, of a set that only then was fetched; by a run itself."""
    (tmp_path / "shades").mkdir()
    shades(tmp_path / "drawn", "dark")
    each = [{"bytes": file.read_bytes()} for file in sorted((tmp_path / "drawn/dark").iterdir())]
    table = pandas.DataFrame({"image": each, "label": [0, 1]})
    table.to_parquet(tmp_path / "shades" / "test.parquet")
    run, stepped = captions_run(captioned, *ALSO), []
    machine = Machine(CPU, tmp_path / "cache", 0.0, bool, lambda **notes: None, stepped.append)
    tree = run.spec.tree
    sets = {"data": tree["data"], "other": tree["eval"]["also"][0], "texts": True}
    for what in (
        lambda: described(run),
        lambda: answers.answer_beside({**sets, "cache": tmp_path / "cache"}, print),
        lambda: train(run, RunDir(tmp_path / "run"), machine),
    ):
        with refused(r"^eval\.also: shades: texts ask for classes by"):
            what()
    assert not stepped


def test_a_plan_says_that_texts_ask_by_ids_of_wordnet(captioned, tmp_path):
    shades(tmp_path / "shades", "n01440764", "n01443537")
    (said,) = described(captions_run(captioned, *ALSO))["warnings"]
    assert said.startswith("eval.also: shades: its classes are called by WordNet's ids")


def described(run) -> dict:
    specs = {"it": run.spec.tree}
    question = {
        "specs": specs,
        "calibrate": [],
        "peaks": [],
        "cache": Path("cache"),
        "device": "cpu",
    }
    return answers.answer_describe(question, print)["it"]


def test_another_set_is_asked_for_its_own_classes(captioned, shell, monkeypatch):
    """`eval.also`: class folders, whose names no training text has."""
    asked, evaluate = [], Contrastive.evaluate

    def told(self, predict, batches):
        asked.append(predict.data.name)
        return evaluate(self, predict, batches)

    monkeypatch.setattr(Contrastive, "evaluate", told)
    shades(shell.folder / "shades", "dark", "middling", "bright, light")
    words = (*WORDS, f"data.path={captioned}", *ALSO, "launcher=inline", "--as", "c")
    shell("sweep", *words)
    store = Store(shell.folder / "runs")
    rundir = store.rundir(next(iter(store.read_plan("c").runs())).id)
    told = rundir.read_result()["also"]["shades"]["test"]
    rows = np.load(next(rundir.path.glob("predictions*shades*")))
    assert rows["label"].tolist() == [0, 0, 1, 1, 2, 2]
    assert told["n"] == 6
    assert contrastive_scores(rows, 3) == told
    assert asked[-3:] == ["imagetext", "imagetext", "shades"]
    assert "nothing wrong" in shell("verify").out
    assert "on shades" in shell("table").out
