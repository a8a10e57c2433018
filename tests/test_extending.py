"""Ideas that people bring, tried as the pages say: in a fresh folder, from a sweep to its table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest
from conftest import Shell
from pages import blocks, commands

import ablate

BUDGET = ("seeds=3", "train.epochs=1", "launcher=inline")


def command(page: str, begins: str) -> list[str]:
    """The words of the only command of a page that begins so, without its number of seeds."""
    [words] = [words for words in commands(page) if " ".join(words).startswith(begins)]
    return [word for word in words if not word.startswith("seeds=")]


def rows(table: str) -> dict[str, list[str]]:
    """The rows of a Markdown table by their labels, without footnote marks."""
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return {label.strip(" ¹²³⁴˒"): [cell.strip() for cell in cells] for label, *cells in lines}


def check_gain(shell: Shell, table: str, row: str, baseline: str) -> Mapping[str, int]:
    """The table has the row's gain, an interval around it, as its raw results give it; the
    parameters of both."""
    frame = ablate.Store(shell.folder / "runs").sweep().to_pandas().set_index("row")
    means = 100 * frame.groupby("row").top1.mean()
    _, gain, *_ = rows(table)[row]
    number, low, high = map(float, re.findall(r"[+-]?[\d.]+", gain))
    assert number == pytest.approx(means[row] - means[baseline], abs=0.006)
    assert low < number < high
    assert len(frame.loc[row]) == len(frame.loc[baseline]) == 3
    return frame.groupby("row").parameters.first()


@pytest.mark.whole
def test_lion_against_adamw_each_at_its_own_rate(shell):
    text = blocks("file")["sweeps/lion.yaml"]
    (shell.folder / "sweeps").mkdir()
    small = text.replace("trials: 48", "trials: 15").replace("train.epochs: 7", "train.steps: 9")
    (shell.folder / "sweeps" / "lion.yaml").write_text(small)
    table = shell(*command("docs/tuning.md", "sweep lion"), *BUDGET).out
    size = check_gain(shell, table, "Lion", "AdamW")
    assert size["Lion"] == size["AdamW"]
    chosen = rows(shell(*command("docs/tuning.md", "table lion"), "--format", "md").out)
    assert chosen["variant"][-2:] == ["optim.lr", "optim.wd"]
    for row in ("AdamW", "Lion"):  # of each of the three searches, within the range
        *_, rates, decays = chosen[row]
        assert all(1e-5 <= float(rate) <= 1e-2 for rate in rates.split(", "))
        assert len(rates.split(", ")) == len(decays.split(", ")) == 3
    searches = json.loads(shell("trials", "lion", "--format", "json").out)["searches"]
    shared = [(each["row"], each["seeds"]) for each in searches]
    assert shared == [(row, [seed]) for row in ("AdamW", "Lion") for seed in range(3)]


@pytest.mark.whole
def test_a_gated_mlp_of_the_same_size(shell):
    table = shell(*command("docs/placements.md", "sweep model.act"), *BUDGET).out
    size = check_gain(shell, table, "swiglu", "gelu")
    # 8/3 of a width of 32 is no multiple of 8: 88 inside for 85.33, and three biases for two
    assert size["swiglu"] == pytest.approx(size["gelu"], rel=0.03)


@pytest.mark.whole
def test_registers(shell):
    table = shell(*command("docs/placements.md", "sweep model.registers"), *BUDGET).out
    size = check_gain(shell, table, "registers=4", "registers=0")
    assert size["registers=4"] - size["registers=0"] == 4 * 32


# --- A task, a design and a format, from files outside the package ----------------------------

TASK = '''
"""Which half of the classes an image is of, as the control half knows it."""

from ablate.run.metrics.metric import Metric, TaskChoice


def score(table, classes):
    hits = int((table["said"] == table["label"]).sum())
    return {"n": len(table), "half": hits / len(table)}


TASK = TaskChoice(
    line="which half of the classes an image is of",
    path="ablate_tasks._halves:Halves",
    metrics=(Metric("half", "accuracy of halves", "halves", "%", "points", 100.0, 2,
                    lambda classes: 0.5, most=100.0, is_share=True),),
    score=score,
    outputs=lambda classes: 1,
    prior="the shares of the halves",
    keeps="said, label",
)
'''
TRAINED = '''
"""Which half of the classes an image is of: a logistic regression of the model's output."""

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from ablate.training.task import Task
from ablate_tasks.halves import score


class Halves(Task):
    def __init__(self, run):
        self.classes = run.data.classes

    def inputs(self, batches, step, dtype):
        images, labels = batches.at(step)
        return images.to(dtype), (2 * labels >= self.classes).to(dtype)

    def loss(self, outputs, target):
        return binary_cross_entropy_with_logits(outputs.float()[:, 0], target.float())

    def prior_loss(self, train):
        share = (2 * train.labels >= self.classes).double().mean()
        return float(-torch.xlogy(share, share) - torch.xlogy(1 - share, 1 - share))

    def evaluate(self, predict, batches):
        parts = []
        for images, labels in batches:
            part = np.empty(len(labels), [("said", "?"), ("label", "?")])
            part["said"] = (predict(images)[:, 0] > 0).cpu()
            part["label"] = (2 * labels >= self.classes).cpu()
            parts.append(part)
        table = np.concatenate(parts)
        return score(table, self.classes), table
'''
DESIGN = '''
"""A replication: seeds that no earlier sweep has had, from `first` on."""

from dataclasses import dataclass, replace

from ablate.planning.design import Fixed
from ablate.shared.errors import UserError


@dataclass(frozen=True)
class Fresh(Fixed):
    first: int = 0
    count: int = 3

    @classmethod
    def parse(cls, raw, place):
        return cls(**raw)

    @classmethod
    def of_tree(cls, tree):
        return cls(**tree["fresh"])

    def tree(self):
        return {"fresh": {"first": self.first, "count": self.count}}

    def apply_to(self, sweep, words, margin):
        if "seeds" in words:
            raise UserError("seeds: fresh gives them out; remove one of the two")
        seeds = range(self.first, self.first + self.count)
        return replace(sweep, seeds=tuple(seeds))


DESIGN = Fresh
'''
FORMAT = '''
"""Org mode: what readers see, in pipes."""

from ablate.report.formats.grid import TableFormat


def org(made):
    lines = [f"#+CAPTION: {made.heading}"]
    for grid in made.grids:
        for cells in (grid.headings, *(line.cells for line in grid.lines)):
            lines.append(f"| {' | '.join(cell.text for cell in cells)} |")
    return "\\n".join(lines) + "\\n"


FORMAT = TableFormat(org, "org")
'''
SWEEP = """
title: Again, with other seeds
base: {task: halves, recipe: quick, data: digits, model: mu/4, train.steps: 3}
fresh: {first: 100, count: 2}
variants: [plain: {}, dpn: {stem: dpn}]
"""


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    """A folder for Python's path with a task of two files, a design and a format of one each."""
    folder = tmp_path_factory.mktemp("added")
    files = {"ablate_tasks/halves.py": TASK, "ablate_tasks/_halves.py": TRAINED}
    files |= {"ablate_designs/fresh.py": DESIGN, "ablate_formats/org.py": FORMAT}
    for file, text in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text)
    return folder


@pytest.mark.slow
def test_a_task_of_two_files_and_a_design_and_a_format_of_one(shell, added):
    (shell.folder / "sweeps").mkdir()
    (shell.folder / "sweeps" / "again.yaml").write_text(SWEEP)
    lines = ["sweep again launcher.devices=cpu"]  # workers are processes of their own
    lines += ["table again --format org", "export again bundle", "verify bundle", "list metrics"]
    lines = [line.split() for line in (*lines, "sweep again seeds=3")]
    done = shell.several(*lines, PYTHONPATH=str(added))
    _, table, *_, listed, refused = done
    assert [command.code for command in done[:-1]] == [0] * 5, done
    text = table.out.splitlines()
    assert text[0].startswith("#+CAPTION: Again, with other seeds. Trained on digits")
    assert [line.split("|")[1].strip() for line in text[1:]] == ["variant", "plain", "dpn"]
    assert "half %" in text[1]
    runs = [*(shell.folder / "runs").rglob("run.json")]
    seeds = [json.loads(run.read_text())["spec"]["seed"] for run in runs]
    assert sorted(seeds) == [100, 100, 101, 101]
    assert (shell.folder / "bundle" / "table.org").read_text() == table.out
    assert "half" in listed.out
    assert refused.err == "ablate: seeds: fresh gives them out; remove one of the two\n"
    assert refused.code == 2
    # Where nobody knows the design, the task or the format: only the format is not missed.
    for file, refused in (
        ("ablate_designs/fresh.py", "has fresh, which is unknown here: ablate_designs/fresh.py"),
        ("ablate_tasks/halves.py", "has task=halves, which is unknown here: ablate_tasks/halves"),
    ):
        (added / file).rename(added / "away.py")
        [without] = shell.several(["table", "again"], PYTHONPATH=str(added))
        (added / "away.py").rename(added / file)
        assert (without.code, refused in without.err) == (1, True), without
    (added / "ablate_formats" / "org.py").rename(added / "org.py")
    lines = ["verify", "bundle"], ["export", "again", "plain"]
    done = shell.several(*lines, PYTHONPATH=str(added))
    (added / "org.py").rename(added / "ablate_formats" / "org.py")
    done += shell.several(["verify", "plain"], PYTHONPATH=str(added))
    assert [command.code for command in done] == [0] * 3, done
    assert not (shell.folder / "plain" / "table.org").exists()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("ablate_tasks/classify.py", "", "ablate has a classify of its own; rename the file"),
        ("ablate_tasks/other.py", "import nowhere", "No module named 'nowhere'"),
        ("ablate_designs/other.py", "DESIGN = 3", "DESIGN: expected type, got 3"),
        ("ablate_formats/other.py", "", "has no attribute 'FORMAT'"),
    ],
)
def test_what_cannot_be_added_is_told_in_a_line(shell, tmp_path, file, text, why):
    (tmp_path / "path" / file).parent.mkdir(parents=True)
    (tmp_path / "path" / file).write_text(text)
    words = ["sweep", "stem=none,dpn", "train.steps=1", "seeds=1", "launcher=inline"]
    [done] = shell.several(words, PYTHONPATH=str(tmp_path / "path"))
    assert done.code == 2
    assert done.err.startswith(f"ablate: {file}: ")
    assert why in done.err
    assert len(done.err.splitlines()) == 1
