"""Sets beside the test set (`eval.also`): the same pictures give the same figures, by name of the
class or by its number; a column of every table; one file of predictions each, sealed."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from conftest import Shell, refused, wait_for
from PIL import Image

import ablate
from ablate.data.cache import prepare_cache
from ablate.data.picture import BrokenImage
from ablate.planning.cell import PlannedRun
from ablate.planning.compose import resolve_run
from ablate.planning.expand import plan_from_words as make_plan
from ablate.run.build import build_run
from ablate.run.rundir import RunDir
from ablate.store.store import Store
from ablate.training import worker
from ablate.training.attempt import EXIT_ROTTEN
from ablate.training.worker import Damaged, check_tested

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SETS = "eval.also=[sets/again,sets/few,sets/words]"
# Some seconds of tests, image by image, so that a signal finds a run at them.
SLOW = ("analysis.target=1", "model.patch=2", "model.depth=4", "launcher.checkpoint_s=1000")
SWEEP = ("sweep", "stem=none,dpn", "train.steps=25", "optim.warmup_epochs=0.5", "seeds=2")


def pictures(folder: Path) -> None:
    """The test images of the digits as files: all of them; of two classes, and 5 training images;
    all of them, in folders with other names."""
    data = build_run(resolve_run(["data=digits"], folder / "runs")[0]).data
    digits = prepare_cache(data, folder / "cache")
    sets = (("test", 300, "again"), ("test", 300, "few"), ("train", 20, "few"))
    for split, many, put in (*sets, ("test", 300, "words")):
        part = digits.split(split)
        for number, label in enumerate(part.labels[:many].tolist()):
            if put == "few" and label not in (3, 7):
                continue
            called = f"{label} {NAMES[label]}" if put == "words" else str(label)
            (home := folder / "sets" / put / called).mkdir(parents=True, exist_ok=True)
            pixels = part.images[number].numpy()[..., 0]
            Image.fromarray(pixels).save(home / f"{split}{number:03}.png")
    shutil.rmtree(folder / "cache")


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    shell = Shell(tmp_path_factory.mktemp("also"))
    pictures(shell.folder)
    done = shell(*SWEEP, SETS, "launcher=inline", "--as", "beside")
    assert "classes have other names (0 zero for 0)" in done.out + done.err
    return shell


@pytest.fixture
def driven(swept, monkeypatch):
    """In whose folder this process works."""
    monkeypatch.chdir(swept.folder)
    return swept


def facts(shell: Shell, *words: str) -> dict[tuple[str, ...], float]:
    keys, lines = ("column", "row", "quantity", "seed"), shell.facts(*words)
    return {tuple(f[key] for key in keys): float(f["value"]) for f in lines if f["value"]}


def planned(shell: Shell) -> dict[str, PlannedRun]:
    """By label."""
    plan, _ = make_plan([*SWEEP[1:], SETS], store=shell.folder / "runs")
    return {run.label: run for run in plan.runs()}


def runs(shell: Shell) -> dict[str, Path]:
    """By label, where they lie."""
    home = shell.folder / "runs" / "runs"
    return {label: home / run.id for label, run in planned(shell).items()}


@pytest.mark.whole
def test_the_same_pictures_have_the_same_figures(driven):
    for folder in runs(driven).values():
        result = json.loads((folder / "result.json").read_text())
        loss = result["test"].pop("loss")
        for name in ("again", "words"):  # in the order of their folders: sums are of other order
            found = result["also"][name]["test"]
            assert found.pop("loss") == pytest.approx(loss, rel=1e-6)
            assert found == result["test"]


@pytest.mark.whole
def test_classes_of_one_name_are_one_class(driven):
    """Two classes of ten, the first of which has number 0 in its folder; and what is trained on."""
    files = [*(driven.folder / "sets" / "few").glob("*/*.png")]
    trained = sum(file.name.startswith("train") for file in files)
    assert trained
    for folder in runs(driven).values():
        few = json.loads((folder / "result.json").read_text())["also"]["few"]
        table = np.load(folder / "predictions-few.npy")
        truth = [3] * len([*(driven.folder / "sets/few/3").iterdir()])
        truth += [7] * (len(files) - len(truth))
        assert few["test"]["top1"] == np.mean(table["class"] == truth)
        assert few["shared"] == {"test": [trained, len(files)]}
    table = driven("table").out
    assert f"{trained} of {len(files)} test images are training images" in table
    assert "nothing to remove" in driven("gc").out


def test_each_is_a_column_of_the_table_and_of_frames(driven):
    found = facts(driven)
    columns = {column for column, row, *_ in found if row}
    assert columns == {"", "on again", "on few", "on words"}
    for (column, row, quantity, seed), value in found.items():
        if column == "on again" and quantity.startswith(("top1", "gain")):
            assert value == pytest.approx(found["", row, quantity, seed])
    wide = facts(driven, "--show", "population")
    sd = {on: wide[on, "dpn", "population.sd", ""] for on in columns}  # by their predictions
    assert sd["on again"] == sd["on words"] == pytest.approx(sd[""])
    assert sd["on few"] != pytest.approx(sd[""])
    assert {column for column, *_ in facts(driven, "analysis.metric=auc")} == {""}
    whole = facts(driven, "analysis.family=table")
    assert {found[column, "", "contrasts", ""] for column in columns} == {1}
    assert {whole[column, "", "contrasts", ""] for column in columns} == {4}
    frame = ablate.Store().sweep("beside").to_pandas()
    assert (frame["top1@again"] == frame["top1"]).all()
    assert set(frame["test_n@words"]) == {300}
    assert "also: again.test.loss" in driven("show", "none#0").out
    table = driven("table").out
    assert all(f"| *on {name}* |" in table for name in ("digits", "again"))
    assert "on words" in (driven.folder / driven("plot", "gain").out.strip()).read_text()


def test_predictions_on_it_are_sealed(driven):
    assert "nothing wrong" in driven("verify").out
    path = runs(driven)["dpn#1"] / "predictions-again.npy"
    kept, table = path.read_bytes(), np.load(path)
    table["rank"][0] += 1
    np.save(path, table)
    assert "predictions-again.npy: differs" in driven("verify", code=1).out
    path.write_bytes(kept)


@pytest.mark.faults
def test_a_worker_hears_a_stop_during_its_tests_and_the_next_one_begins_with_them(driven):
    words = ("sweep", SETS, "seeds=1", "train.steps=3", "eval.batch=1", *SLOW)

    def command(store: str) -> tuple[str, ...]:
        shutil.copytree("runs/cache", f"{store}/cache", dirs_exist_ok=True)
        return (*words, "--store", store)

    def rundir(store: str) -> RunDir:
        [path] = Path(store, "runs").iterdir()
        return RunDir(path)

    driven(*command("calm"), "launcher=inline")
    driver = driven.start(*command("stopped"))
    wait_for(lambda: [*Path("stopped/runs").glob("*/metrics.jsonl")])
    run = rundir("stopped")
    wait_for(lambda: run.lock.notes().phase == "test")
    assert run.newest_step() == 3  # kept before the tests, whatever becomes of them
    assert run.lock.signal(signal.SIGTERM)
    assert driven.end(driver).code == 0
    first, second = run.read_attempts()
    assert (first["exit"], second["from_step"]) == ("stopped", 3)
    calm, stopped = (rundir(store).read_result() for store in ("calm", "stopped"))
    assert calm
    assert stopped
    kept = ("train_loss", "validation", "test", "also", "weights_sha256", "predictions_sha256")
    assert {key: stopped[key] for key in kept} == {key: calm[key] for key in kept}


def rot(home: Path) -> None:
    with open(home / "test.images.npy", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")


def test_what_rotted_is_not_tested_on(driven, tmp_path):
    [print] = {run.spec.tree["eval"]["also"][0]["fingerprint"] for run in planned(driven).values()}
    home = shutil.copytree(driven.folder / "runs" / "cache" / print, tmp_path / "set")
    beats: list[None] = []
    check_tested(home, 9.0, lambda: beats.append(None))
    assert beats
    rot(home)
    with pytest.raises(Damaged, match="is tested again"):
        check_tested(home, 9.0, lambda: None)
    assert not (home / "meta.json").exists()


def test_files_that_rotted_and_can_t_be_decoded_blame_the_set_that_has_them(
    driven, tmp_path, monkeypatch
):
    """Bytes that were an image when they were kept: the set is decoded again, no run has failed."""
    store = Store(shutil.copytree(driven.folder / "runs", tmp_path / "runs"))
    run = store.rundir(planned(driven)["none#0"].id)
    run.result.unlink()
    home = store.cache / run.read_spec()["eval"]["also"][0]["fingerprint"]
    rot(home)

    def train(*_):
        raise BrokenImage("data: not a readable image")

    monkeypatch.setattr(worker, "train", train)
    options = {"slot": "cpu", "device": "cpu", "threads": 1, "checkpoint_s": 1e9}
    code = worker.work(str(run.path), {**options, "cache": str(store.cache)})
    assert code == EXIT_ROTTEN
    assert not (home / "meta.json").exists()


@pytest.mark.slow
def test_a_second_training_and_a_bundle_have_them(driven):
    assert "predictions-few.npy: the same bits" in driven("verify", "--rerun", "none#0").out
    driven("export", "out", "--anonymous")
    assert "/sets" not in Path("out/sweep.json").read_text()
    bundled = driven("table", "--from", "out", "--format", "tidy")
    assert bundled.out == driven("table", "--format", "tidy").out
    assert "nothing wrong" in driven("verify", "out").out


def test_it_is_part_of_the_id_where_it_lies_is_not_and_ids_without_it_stay(driven):
    shutil.copytree("sets/few", "moved/few")

    def run_id(*words):
        return resolve_run(["train.steps=3", *words], driven.folder / "runs")[1]

    assert run_id() == run_id("eval.also=[]") != run_id("eval.also=[mnist5k]")
    assert run_id("eval.also=[sets/few]") == run_id("eval.also=[moved/few]") != run_id()
    shutil.copy(next(Path("moved/few/7").iterdir()), "moved/few/3/more.png")
    assert run_id("eval.also=[sets/few]") != run_id("eval.also=[moved/few]")


def split_in_two() -> None:
    """A folder with two splits of ten classes, and none to test on."""
    for split, number in itertools.product(("train", "val"), range(10)):
        (place := Path("split", split, str(number))).mkdir(parents=True)
        (place / "0.png").touch()


@pytest.mark.parametrize(("name", "split"), [("./split/val", "train"), ("imagenet1k:split", "val")])
def test_a_folder_is_tested_on_its_one_split_or_on_val(here, name, split):
    split_in_two()
    tree, _ = resolve_run([f"eval.also=[{name}]"], here / "runs")
    assert [tested["test"] for tested in tree["eval"]["also"]] == [split]


ENCODED = ("data=mnist", "data.cache=encoded")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("eval.also=[nosuch]",), "eval.also: expected one of ade20k, camvid, cifar10, "),
        (("eval.also=[./nosuch]",), "eval.also: ./nosuch: no such folder"),
        (("eval.also=[dark]",), "eval.also: dark: is no name of data; the folder is ./dark"),
        (("eval.also=[./dark]",), "eval.also: ./dark: data.path: dark: holds neither [^;]+$"),
        (("eval.also=[./split]",), "eval.also: ./split: no split 'test', .* as /.*/split/val$"),
        ((*ENCODED, "eval.also=[digits]"), "eval.also: digits: cache: images of data=digits are "),
        (("eval.also=[mnist5k,mnist5k]",), "eval.also: mnist5k: two sets have this name"),
        (("eval.also=[cifar100]",), "eval.also: cifar100: has 100 classes, data=digits has 10"),
        (("data.train=null",), "data.train: is null"),
    ],
)
def test_mistakes_are_told_in_a_line(here, words, said):
    Path("dark").mkdir()
    split_in_two()
    with refused("^" + said):
        resolve_run(list(words), here / "runs")


def test_what_can_t_be_compared_is_refused_before_anything_trains(driven):
    words = ["eval.also=[mnist5k],[]", "train.steps=2"]
    with refused(r"^eval\.also: must be the same for all rows"):
        make_plan(words, store=driven.folder / "runs")
    before = {*Path("runs/runs").iterdir()}
    words = ["sweep", "stem=none,dpn", "train.steps=2", "launcher=inline", "data.overlap=error"]
    said = driven(*words, "eval.also=[sets/few]", code=2).err
    assert "of its images are training images of data=digits" in said
    shutil.copytree("sets/again", "other/again")
    Path("other/again/0").rename("other/again/none")  # ten classes: 1 is the first, 9 the ninth
    said = driven(*words, "eval.also=[other/again]", code=2).err
    assert "again: the class '1' has another number than in data=digits" in said
    assert {*Path("runs/runs").iterdir()} == before
