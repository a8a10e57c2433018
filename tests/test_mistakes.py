"""Mistakes as people type them: each is one line that names the place, the value and the remedy,
with exit code 2 and no traceback."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

PROGRAM = "conf/trainer/p.yaml"
YAML = {
    "command": "python p.py {seed} {folder} {v} {flag} {clip} {steps}",
    "keys": {"v": 0, "flag": False, "clip": {"default": None, "type": "float"}, "steps": 3},
    "result": {"file": "result.json"},
    "metrics": {"acc": {"direction": "more"}},
    "code": ["p.py"],
}


def mistake(done, *parts: str) -> str:
    """The one line on standard error, which has each of these parts."""
    assert done.err.startswith("ablate"), done.err
    assert done.err.count("\n") == 1, done.err
    assert "Traceback" not in done.err + done.out
    for part in parts:
        assert part in done.err
    return done.err


@pytest.fixture
def program(shell):
    """A folder with a program and its yaml."""
    (shell.folder / "p.py").write_text("")
    declare(shell.folder)
    return shell


def declare(folder: Path, **changes: object) -> None:
    (folder / "conf" / "trainer").mkdir(parents=True, exist_ok=True)
    (folder / PROGRAM).write_text(json.dumps({**YAML, **changes}))


# What was typed; the place, the value, and the remedy (or the choice that was meant).
WORDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("config", "optim.lr_=0.1"): ("optim.lr_: ", "'lr_' (did you mean 'lr'?)"),
    ("config", "train.precision=fp16"): ("train.precision: ", "'fp16'", "bf16"),
    ("config", "optim.clip=None"): ("optim.clip: ", "'None'", "write null"),
    ("config", "train.steps=1e3"): ("train.steps: ", "1000.0", "write 1000"),
    ("config", "augment.flip=yes"): ("augment.flip: ", "'yes'", "write true"),
    ("config", "stem=none,dpn"): ("stem=none,dpn: ", "one run", "stem=none"),
    ("config", "stem=non"): ("stem: ", "'non'", "did you mean 'none'"),
    ("config", "stem.eps=1"): ("stem.eps: ", "'eps'", "name"),
    ("config", "learning_rate=0.1"): ("learning_rate: ", "optim.lr"),
    ("config", "optim.name=sgd", "optim.b2=0.9"): ("optim.b2: ", "0.9", "leave it out"),
    ("plan", "task=contrastive", "stem=none,dpn"): ("text: ", "task=contrastive", "recipe=lit"),
    ("plan", "stem=none,dpn", "sedes=3"): ("sedes: ", "seeds=VALUE"),
    ("plan", "stem=none,dpn", "seed=3"): ("seed: ", "seeds=[3]"),
    ("plan", "stem=[none,dpn]"): ("stem=[none,dpn]: ", "stem=none,dpn"),
    ("plan", "stem=dpn"): ("stem=dpn: ", "stem=none,dpn"),
    ("plan", "optim.+lr=0.1,0.2"): ("optim.+lr=0.1,0.2: ", "optim.lr=0.1,0.2"),
    ("plan", "optim.name=sgd", "optim.b2=0.9,0.99"): ("optim.b2: ", "optim.name=sgd", "leave it"),
    ("plan", "quickstrat"): ("quickstrat", "quickstart"),
    ("show", "--amp#0"): ("--amp#0: ", "-- "),
    ("show", "-amp#0"): ("-amp#0: ", "-- '-amp#0'"),
    ("plan", "stem=none,dpn", "--as=-x"): ("--as: ", "-x", "another name"),
    ("gate", "log", "--", "-x"): ("-x: ", "first a letter"),
    ("run", "--", "-amp#0"): ("--skip", "ablate sweep NAME"),
    ("new", "trainr", "x"): ("trainr", "trainer"),
    ("stem=none,dpn",): ("stem=none,dpn: ", "ablate sweep stem=none,dpn"),
}


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_words_that_are_wrong_are_one_line_with_the_remedy(shell, words):
    mistake(shell(*words, code=2), *WORDS[words])


def test_no_key_that_is_computed_is_offered(shell):
    line = mistake(shell("config", "optim.lr_=0.1", code=2))
    assert line.index("did you mean") < line.index("expected")  # among so many names the guess
    assert "warmup_epochs" in line
    assert not {"version", "folder", "schedule_version"} & {*line.replace(",", " ").split()}


def test_a_number_is_no_guess_for_another_number(shell):
    assert "did you mean 'fp64'" not in mistake(shell("config", "train.precision=fp16", code=2))


def test_no_label_of_a_variant_stands_where_a_key_is_expected(shell, program):
    line = mistake(shell("plan", "task=contrastive", "stem=none,dpn", code=2))
    assert line.startswith("ablate: text: ")
    declare(shell.folder, command="python p.py {folder} {v}", keys={"v": False})
    line = mistake(shell("plan", "trainer=p", "trainer.v=false,true", "seeds=2", code=2), "{seed}")
    assert line.startswith("ablate: seeds: ")


# --- Programs -----------------------------------------------------------------------------------

SETTINGS = {
    "trainer.clip=None,0.1": ("trainer.clip: ", "'None'", "write null"),
    "trainer.steps=1e3,3": ("trainer.steps: ", "1000.0", "write 1000"),
    "trainer.flag=yes,true": ("trainer.flag: ", "'yes'", "write true"),
    "trainer.w=1,2": ("trainer.w: ", "'w'", "v"),
    "v=1,2": ("v: ", "trainer.v"),
}


@pytest.mark.parametrize("word", SETTINGS)
def test_settings_of_a_program_that_are_wrong_are_one_line(program, word):
    mistake(program("plan", "trainer=p", word, code=2), *SETTINGS[word])


YAMLS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "a metric without a direction": (
        {"metrics": {"acc": {}}},
        ("trainer.metrics.acc.direction: ", "more or less"),
    ),
    "percents": (
        {"metrics": {"acc": {"direction": "more", "unit": "%", "range": [0, 100]}}},
        ("trainer.metrics.acc.range: ", "[0.0, 100.0]", "`scale: 1`"),
    ),
    "a key of metrics that there is not": (
        {"metrics": {"acc": {"direction": "more", "units": "%"}}},
        ("trainer.metrics.acc.units: ", "'units'", "did you mean 'unit'"),
    ),
    "no seed": (
        {"command": "python p.py {folder} {v}", "keys": {"v": 0}},
        ("seeds: ", "python p.py {folder} {v}", "seeds=1"),
    ),
    "a field that there is not": (
        {"comand": "python p.py"},
        ("trainer.comand: ", "'comand'", "did you mean 'command'"),
    ),
    "a default null without a type": (
        {"keys": {"v": 0, "clip": None}},
        ("trainer.keys.clip: ", "null has no type", "type: int|float"),
    ),
}


@pytest.mark.parametrize("name", YAMLS)
def test_a_trainers_yaml_that_is_wrong_is_one_line(program, name):
    changes, parts = YAMLS[name]
    declare(program.folder, **changes)
    mistake(program("plan", "trainer=p", "trainer.v=0,1", code=2), *parts)


def test_one_run_of_a_program_is_planned_by_words(program):
    out = program("plan", "trainer=p", "seeds=1").out
    assert "1 run" in out
    out = program("plan", "trainer=p", "trainer.v=1", "seeds=2").out
    assert "2 runs" in out


# --- Hydra applications -------------------------------------------------------------------------

APP = """
import hydra

@hydra.main(version_base=None, config_path="app_conf", config_name="config")
def main(cfg): ...

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def app(shell, monkeypatch):
    """A Hydra application, whose trainer takes all of its keys."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (shell.folder / "app.py").write_text(APP)
    command = "python app.py {overrides} +seed={seed} hydra.run.dir={folder}"
    changes = {"command": command, "keys": "hydra", "code": ["app.py"]}
    declare(shell.folder, **changes)
    return shell


def configure(folder: Path, **files: object) -> None:
    for name, content in files.items():
        path = folder / "app_conf" / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("defaults", "value"),
    [
        (["_self_", {"override hydra/job_logging": "colorlog"}], "colorlog"),  # of a plugin
        (["_self_", {"db": "mysql"}], "mysql"),
    ],
)
def test_what_the_application_can_not_compose_is_told_by_its_own_command(app, defaults, value):
    configure(app.folder, config={"defaults": defaults, "width": 8})
    done = app("plan", "trainer=p", "trainer.width=8,9", code=2)
    mistake(done, "trainer.keys: hydra: python app.py --help: ", value)


@pytest.mark.whole
def test_an_optional_group_without_such_an_option_is_no_key(app):
    optional = {"optional server_db": "${server}_${db}"}
    defaults = [{"server": "apache"}, {"db": "mysql"}, optional, "_self_"]
    configure(
        app.folder,
        config={"defaults": defaults, "width": 8},
        server__apache={"port": 80},
        db__mysql={"user": "me"},
        server_db__apache_sqlite={"path": "x"},
    )
    assert "2 runs" in app("plan", "trainer=p", "trainer.width=8,9", "seeds=1").out


@pytest.mark.whole
def test_a_group_that_the_defaults_lack_is_added(app):
    configure(
        app.folder,
        config={"width": 8},
        experiment__small={"width": 4},
        experiment__large={"width": 16},
    )
    words = ("trainer=p", "seeds=1")
    out = app("plan", *words, "trainer.experiment=small,large").out
    assert "2 runs" in out
    done = app("plan", *words, "trainer.experiment=small,lage", code=2)
    mistake(done, "trainer.experiment: ", "'lage'", "did you mean 'large'")


@pytest.mark.whole
def test_groups_of_an_application_are_no_trainers_and_ours_are_none_of_its(app, recwarn):
    """Its configuration lies where our trainers do."""
    (app.folder / "app.py").write_text(APP.replace("app_conf", "conf"))
    command = "python app.py {overrides} +seed={seed} hydra.run.dir={folder}"
    declare(app.folder, command=command, keys="hydra", code=["app.py"])
    for name, content in {
        "config": {"defaults": [{"trainer": "cpu"}, {"norm": "layernorm"}, "_self_"], "width": 8},
        "trainer/cpu": {"max_epochs": 3},
        "trainer/gpu": {"max_epochs": 3, "devices": 1},
        "norm/layernorm": {"epsilon": 1},
    }.items():
        path = app.folder / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    done = app("plan", "trainer=p", "trainer.trainer=cpu,gpu", "seeds=1")
    assert "2 runs" in done.out
    assert "Warning" not in done.err
    assert not [w for w in recwarn if "hydra" in str(w.message).lower()]
    line = mistake(app("plan", "trainer=x", "trainer.v=0,1", code=2), "trainer: ", "'x'")
    assert "cpu" not in line
    listed = app("list", "trainers").out
    assert "p" in listed.split()
    assert not {"cpu", "gpu"} & {*listed.split()}
