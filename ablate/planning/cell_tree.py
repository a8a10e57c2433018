"""Cells and searches as plain values, for the file of a plan, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.planning.cell import Cell, Tune, TuningStage, TuningWinner


def cell_tree(cell: Cell) -> dict[str, Any]:
    return {**vars(cell), "chosen": [vars(choice) for choice in cell.chosen]}


def cell_of(tree: Mapping[str, Any]) -> Cell:
    return Cell(
        tree["row"],
        tree["column"],
        tree["spec"],
        {int(seed): run for seed, run in tree["ids"].items()},
        tuple(tree["overrides"]),
        tuple(map(_choice, tree["chosen"])),
        tuple(tree["specs"]),
        tuple(tree["seeds"]),
    )


def _choice(tree: Mapping[str, Any]) -> TuningWinner:
    lists = {key: tuple(tree[key]) for key in ("edges", "seeds", "noise")}
    return TuningWinner(**{**tree, **lists})


def tune_of(tree: Mapping[str, Any] | None) -> Tune | None:
    if tree is None:
        return None
    stages = tuple(
        TuningStage(
            {k: {how: tuple(v) for how, v in d.items()} for k, d in stage["space"].items()},
            stage["trials"],
            stage["at"],
        )
        for stage in tree["stages"]
    )
    return Tune(**{**tree, "stages": stages})
