"""Table 3 of Dual PatchNorm: a rate for each row and set, chosen on 200 images; its groups."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest
import yaml
from conftest import REPOSITORY, Shell, wait_for
from support.processes import kill, workers

from ablate.planning import expand

SMOKE = ("table3", "--scale", "smoke", "launcher.devices=cpu")
SHORT = ("seeds=3", "train.steps=40", "optim.warmup_steps=4", "from.train.steps=45")


@pytest.fixture(scope="module")
def table_3(tmp_path_factory):
    """At paper scale."""
    with contextlib.chdir(tmp_path_factory.mktemp("table3")):
        return expand.plan_from_words(["table3"], store=Path("runs"))[0]


@pytest.mark.whole
def test_each_row_and_set_is_searched_and_the_parents_are_those_of_table_1(table_3, tmp_path):
    with contextlib.chdir(tmp_path):
        one, _ = expand.plan_from_words(["table1"], store=Path("runs"))
    assert len(table_3.cells) == 2 * 2 * 19
    parents = {run for cell in table_3.parents() for run in cell.ids.values()}
    assert len(parents) == 2 * 2 * 3
    assert parents <= {run for cell in one.cells for run in cell.ids.values()}
    assert table_3.tune is not None
    assert table_3.tune.searches(table_3.seeds) == {0: (0,), 1: (1,), 2: (2,)}
    [stage] = table_3.tune.stages
    assert (stage.space, stage.trials) == ({"optim.lr": {"choices": (3e-4, 1e-3, 3e-3)}}, 3)


APPENDIX_E = {
    "train": {"steps": 2500, "batch": 512},
    "optim": {"name": "sgd", "lr": 3e-4, "b1": 0.9, "wd": 0.0, "clip": 1.0, "warmup_steps": 200},
    "data": {"size": 224, "train": "train[:800]"},
    "eval": {"aspect": "squeeze"},
    "augment": {"flip": False, "crop_area": None},
    "model": {"dropout": 0.0, "drop_path": 0.0},
}


@pytest.mark.whole
def test_a_run_is_as_appendix_e_says(table_3):
    """2,500 steps, batch 512, rate 3e-4, momentum .9, clip 1, 800 images (REFERENCE E.3, E.9)."""
    for cell in table_3.cells:
        tree = cell.spec.tree
        for section, expected in APPENDIX_E.items():
            assert {**tree[section], **expected} == tree[section]
        assert tree["parent"]["train"]["examples"] == 380_506_500


def test_the_groups_are_vtab_s(table_3):
    found = {group.name: len(group.headings) for group in table_3.groups}
    assert found == {"Natural": 7, "Specialized": 4, "Structured": 8}


def few_columns(shell: Shell) -> None:
    """The shipped file, with the first architecture of its small scale alone."""
    content = yaml.safe_load((REPOSITORY / "sweeps" / "table3.yaml").read_text())
    small = content["scales"]["smoke"]
    small["across"] = small["across"][::2]
    del small["smoke"]  # a table with intervals
    (shell.folder / "sweeps").mkdir()
    (shell.folder / "sweeps" / "table3.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def killed_once(shell: Shell, *words: str) -> None:
    """The sweep at the small scale, whole, its driver and workers killed on the way."""
    driver = shell.start("sweep", *SMOKE, *words)
    wait_for(lambda: len([*shell.folder.glob("runs/runs/*/result.json")]) > 12, 240)
    kill([driver.pid, *workers(shell.folder)])
    assert driver.wait() == -signal.SIGKILL
    shell("sweep", *SMOKE, *words)
    shell("verify")


@pytest.mark.faults
@pytest.mark.slow
def test_one_search_as_in_the_paper_gives_intervals_and_no_words(shell):
    """`tune.repeats=1`: all seeds take the rate that one search chose; after a kill, too."""
    few_columns(shell)
    killed_once(shell, *SHORT, "tune.repeats=1")
    assert len([*shell.folder.glob("runs/runs/*/result.json")]) == 6 + 6 * 3 + 6 * 3
    facts = shell.facts()
    assert len([f for f in facts if f["quantity"] == "gain.low" and f["value"]]) == 3
    assert not [f for f in facts if f["quantity"] == "verdict" and f["text"]]
    shown = shell("table", "--format", "md").out
    assert all(text in shown for text in ("**Grey**", "**Coloured**", " of 2 |"))
    assert "helps in" not in shown


@pytest.mark.slow
def test_the_rates_are_the_same_after_a_kill(shell):
    killed_once(shell, *SHORT)
    calm = Shell(shell.folder / "calm")
    calm.folder.mkdir()
    calm("sweep", *SMOKE, *SHORT)
    assert calm.facts() == shell.facts()
