"""Table 3 of Dual PatchNorm: a rate for each row and set, chosen on 200 images; its groups."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest
import yaml
from conftest import REPOSITORY, Shell
from test_kill import kill, wait_for, workers

from ablate.planning import expand
from ablate.planning.plan import Plan

DIGITS = ("table3", "--scale", "digits", "launcher.devices=cpu")
SHORT = ("train.steps=40", "optim.warmup_steps=4", "from.train.steps=45")


@pytest.fixture(scope="module")
def table_3(tmp_path_factory) -> Plan:
    """At paper scale."""
    with contextlib.chdir(tmp_path_factory.mktemp("table3")):
        return expand.plan(["table3"], store=Path("runs"))[0]


def test_each_row_and_set_is_searched_and_the_parents_are_those_of_table_1(table_3, tmp_path):
    with contextlib.chdir(tmp_path):
        one, _ = expand.plan(["table1"], store=Path("runs"))
    assert len(table_3.cells) == 2 * 2 * 19
    parents = {run for cell in table_3.parents() for run in cell.ids.values()}
    assert len(parents) == 2 * 2 * 3
    assert parents <= {run for cell in one.cells for run in cell.ids.values()}
    assert table_3.tune is not None
    assert table_3.tune.searches(table_3.seeds) == {0: (0,), 1: (1,), 2: (2,)}
    [stage] = table_3.tune.stages
    assert (stage.space, stage.trials) == ({"optim.lr": {"choices": (3e-4, 1e-3, 3e-3)}}, 3)


def test_a_run_is_as_appendix_e_says(table_3):
    """2,500 steps, batch 512, rate 3e-4, momentum .9, clip 1, 800 images (REFERENCE E.3, E.9)."""
    for cell in table_3.cells:
        tree = cell.spec
        assert (tree["train"]["steps"], tree["train"]["batch"]) == (2500, 512)
        assert {
            k: tree["optim"][k] for k in ("name", "lr", "b1", "wd", "clip", "warmup_steps")
        } == {**{"name": "sgd", "lr": 3e-4, "b1": 0.9, "wd": 0.0, "clip": 1.0, "warmup_steps": 200}}
        assert (tree["data"]["size"], tree["eval"]["aspect"]) == (224, "squeeze")
        assert tree["data"]["train"] == "train[:800]"
        assert not tree["augment"]["flip"]
        assert tree["augment"]["crop_area"] is None
        assert (tree["model"]["dropout"], tree["model"]["drop_path"]) == (0.0, 0.0)
        assert tree["parent"]["train"]["examples"] == 380_506_500


def test_the_groups_are_vtab_s(table_3):
    assert {group.name: len(group.headings) for group in table_3.groups} == {
        **{"Natural": 7, "Specialized": 4, "Structured": 8}
    }


def few_columns(shell: Shell) -> None:
    """The shipped file, with the first architecture of its small scale alone."""
    content = yaml.safe_load((REPOSITORY / "sweeps" / "table3.yaml").read_text())
    small = content["scales"]["digits"]
    small["across"] = small["across"][::2]
    (shell.folder / "sweeps").mkdir()
    (shell.folder / "sweeps" / "table3.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def killed_once(shell: Shell, *words: str) -> None:
    """The sweep at the small scale, whole, its driver and workers killed on the way."""
    driver = shell.start("sweep", *DIGITS, *words)
    wait_for(lambda: len([*shell.folder.glob("runs/runs/*/result.json")]) > 12, 240)
    kill([driver.pid, *workers(shell.folder)])
    assert driver.wait() == -signal.SIGKILL
    shell("sweep", *DIGITS, *words)
    shell("verify")


@pytest.mark.faults
def test_one_search_as_in_the_paper_gives_intervals_and_no_words(shell: Shell):
    """`tune.repeats=1`: all seeds take the rate that one search chose; after a kill, too."""
    few_columns(shell)
    killed_once(shell, *SHORT, "tune.repeats=1")
    assert len([*shell.folder.glob("runs/runs/*/result.json")]) == 6 + 6 * 3 + 6 * 3
    facts = shell.facts()
    assert len([f for f in facts if f["quantity"] == "gain.low" and f["value"]]) == 3
    assert not [f for f in facts if f["quantity"] == "verdict" and f["text"]]
    shown = shell("table", "--format", "md").out
    assert "**Grey**" in shown
    assert "**Coloured**" in shown
    assert " of 2 |" in shown
    assert "helps in" not in shown


@pytest.mark.slow
def test_the_rates_are_the_same_after_a_kill(shell: Shell):
    killed_once(shell, *SHORT)
    calm = Shell(shell.folder / "calm")
    calm.folder.mkdir()
    calm("sweep", *DIGITS, *SHORT)
    assert calm.facts() == shell.facts()
