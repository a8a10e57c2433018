"""Cells and searches as plain values, for the file of a plan, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.planning.cell import FIRST_TUNING_SEED, Cell, Tune, TuningStage, TuningWinner


def cell_tree(cell: Cell) -> dict[str, Any]:
    tree = {**vars(cell), "chosen": [vars(choice) for choice in cell.chosen]}
    if not cell.seeds:  # which older plans lack
        del tree["seeds"]
    return tree


def cell_of(tree: Mapping[str, Any]) -> Cell:
    chosen, specs = tree.get("chosen") or [], tree.get("specs", ())
    ids = {int(seed): run for seed, run in tree["ids"].items()}
    if isinstance(chosen, Mapping):  # of an older version: one search, each trial with a seed
        seed = FIRST_TUNING_SEED + chosen["trial"]
        chosen, specs = [{**chosen, "seed": seed, "seeds": list(ids)}], [tree["spec"]]
    return Cell(
        tree["row"],
        tree["column"],
        tree["spec"],
        ids,
        tuple(tree["overrides"]),
        tuple(map(_choice, chosen)),
        tuple(specs),
        tuple(tree.get("seeds", ())),
    )


def _choice(tree: Mapping[str, Any]) -> TuningWinner:
    lists = {key: tuple(tree.get(key, ())) for key in ("edges", "seeds", "noise")}
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
    # Older versions searched once.
    return Tune(**{"repeats": 1, **tree, "stages": stages})
