"""A run whose files were edited is withheld; the looks that counted it stay looks, and the remedy
is a command that heals it."""

import re
import shutil
from pathlib import Path

import pytest
from conftest import GOLDEN

from ablate.store.store import Store

OF = ("--row", "m", "--seed", "seed", "--metric", "acc:more")


def write_sheet(seeds):
    lines = ["m,seed,acc"]
    for place, row in enumerate(("base", "x", "y")):
        lines += [f"{row},{s},{place + (s * 7 + place * 3) % 5 / 4}" for s in range(seeds)]
    Path("runs.csv").write_text("\n".join(lines) + "\n")


def damage(row="x", seed=1):
    store = Store(Path("runs"))
    cell = store.read_plan("sheet").cell(row, "")
    result = store.rundir(cell.ids[seed]).result
    result.write_text(result.read_text().replace("finished", "finishes"))


def test_earlier_looks_are_still_said_and_the_import_heals(run):
    command = ("import", "runs.csv", *OF, "--as", "sheet")
    for seeds in (3, 5):
        write_sheet(seeds)
        run(*command)
        whole = run("table", "sheet")
    [note] = [line for line in whole.splitlines() if "n = 3" in line or "3 seeds" in line]
    damage()
    text = run("table", "sheet")
    assert "Withheld" in text
    assert re.search(r"read at n = 3|at 3 seeds|n = 3", text), (note, text)
    assert "the same import writes it" in text
    assert "retry" not in text
    assert "1 run imported, 14 here already" in run(*command)
    assert run("table", "sheet") == whole


def test_runs_trained_here_are_trained_again(run):
    """And the remedy of theirs is that of the driver."""
    shutil.copytree(GOLDEN / "store", "runs")
    store = Store(Path("runs"))
    cell = store.read_plan("fixture").cells[1]
    result = store.rundir(cell.ids[1]).result
    result.write_text(result.read_text().replace("finished", "finishes"))
    assert "`ablate sweep ... --retry damaged` trains it again" in run("table")


@pytest.mark.faults
def test_looks_that_gave_out_seeds_are_still_said(run):
    """Though nothing of them can be shown, since a run that they counted is withheld."""
    words = ("block.attn=pre,post", "model.depth=1", "model.width=16", "model.heads=2")
    words += ("train.steps=4", "train.batch=32", "launcher=inline", "--until", "7")
    run("sweep", *words, "--as", "grown")
    store = Store(Path("runs"))
    result = store.rundir(store.read_plan("grown").cells[0].ids[1]).result
    result.write_text(result.read_text().replace("finished", "finishes"))
    text = run("table", "grown")
    assert re.search(r"looks were taken at (5 seeds|5 and 7 seeds|5, 7 seeds), but a run", text)
    assert "no look yet" not in text
