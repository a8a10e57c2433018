"""The shipped sweeps at their digits scale run through and print their tables: one seed and a few
steps here, whole in `make soak`."""

from __future__ import annotations

import csv
import io

import pytest

# name -> (rows, columns) at the digits scale
DIGITS = {
    "table6": (8, 1),
    "dtn_table2": (8, 1),
    "bnffn_depth": (2, 4),
    "dnn_bn": (2, 2),
    "stems": (13, 1),
    "dtn_table1": (2, 2),
    "table1": (2, 2),
    "table1_384": (2, 1),
    "table2": (2, 2),
    "figure1": (20, 1),
    "figure2": (2, 1),
    "figure3": (1, 1),
}
QUICK = ("table6", "dtn_table2", "bnffn_depth", "dnn_bn")  # the others: whole, in the soak


def through(shell, name: str, *words: str) -> tuple[int, int]:
    """Run it; how many rows and columns of its table have a value."""
    done = shell("sweep", name, "launcher=inline", "--scale", "digits", *words)
    assert "failed" not in done.out
    facts = csv.DictReader(io.StringIO(shell("table", "--format", "csv").out))
    cells = {(f["row"], f["column"]) for f in facts if f["quantity"] in ("top1", "fewshot25")}
    rows, columns = {row for row, _ in cells}, {column for _, column in cells}
    return len(rows), len(columns)


@pytest.mark.parametrize("name", QUICK)
def test_a_published_table_runs_through_on_digits(shell, name):
    assert through(shell, name, "seeds=1", "train.steps=5") == DIGITS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", DIGITS)
def test_the_whole_digits_scale(shell, name):
    assert through(shell, name) == DIGITS[name]


@pytest.mark.parametrize("name", ["table1_384", "table2"])
def test_what_starts_from_a_run_runs_through_on_digits(shell, name):
    short = ("seeds=1", "train.steps=5", "optim.warmup_steps=1", "from.train.steps=45")
    assert through(shell, name, *short) == DIGITS[name]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("table1_384", 30.0), ("table2", 30.0)])
def test_what_starts_from_a_run_has_learnt(shell, name, least):
    """Of ten classes."""
    through(shell, name)
    facts = csv.DictReader(io.StringIO(shell("table", "--format", "csv").out))
    assert all(float(f["value"]) > least for f in facts if f["quantity"] == "top1")


@pytest.mark.parametrize(
    ("words", "least"),
    [
        (("seeds=1", "from.train.steps=60", "from.optim.warmup_epochs=0.5"), (25.0, 45.0)),
        pytest.param((), (45.0, 80.0), marks=pytest.mark.slow),
    ],
    ids=["short", "whole"],
)
def test_features_of_mnist_are_worth_something(shell, words, least):
    """25-shot, of ten classes: on other digits, which the models have not seen, and on MNIST."""
    assert through(shell, "table1_fewshot", *words) == (2, 2)
    facts = csv.DictReader(io.StringIO(shell("table", "--format", "csv").out))
    values = [(f["column"], float(f["value"])) for f in facts if f["quantity"] == "fewshot25"]
    for column, value in values:
        assert value > least[column == "MNIST"], column
