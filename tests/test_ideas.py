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


def test_a_gated_mlp_of_the_same_size(shell):
    words = command("docs/placements.md", "sweep model.act")
    table = shell(*words, *BUDGET).out
    size = check_gain(shell, table, "swiglu", "gelu")
    # 8/3 of a width of 32 is no multiple of 8: 88 inside for 85.33, and three biases for two
    assert size["swiglu"] == pytest.approx(size["gelu"], rel=0.03)


def test_registers(shell):
    table = shell(*command("docs/placements.md", "sweep model.registers"), *BUDGET).out
    size = check_gain(shell, table, "4", "0")
    assert size["4"] - size["0"] == 4 * 32
