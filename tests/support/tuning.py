"""Declare a tuned sweep, and simulate its search."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from ablate.planning.plan import Plan
from ablate.planning.search import Search
from ablate.run.spec import RunSpec

FILE = """
title: tuned
base: {recipe: quick, data: digits, model.arch: mu/4, model.depth: 1, train.epochs: 2}
variants:
  - pre: {}
  - post: {block.attn: post, block.mlp: post}
seeds: 2
tune:
  space: {optim.lr: {log: [1e-4, 3e-2]}}
  trials: TRIALS
  at: {train.epochs: 1}
"""


def declare_tuning(folder: Path, text: str = FILE, trials: int = 6, name: str = "lr") -> None:
    """Write the sweep file NAME.yaml, by default of a sweep that tunes its learning rate."""
    (folder / "sweeps").mkdir(exist_ok=True)
    (folder / "sweeps" / f"{name}.yaml").write_text(text.replace("TRIALS", str(trials)))


BEST = {"pre": 3e-3, "post": 1e-3}
TOP = {"pre": 0.90, "post": 0.93}  # post is better, at its own best rate only


def planted_result(row: str, spec: RunSpec, seed: int) -> dict[str, Any]:
    """Make a result: accuracy falls with the distance of log lr from the row's best."""
    off = math.log10(spec.tree["optim"]["lr"] / BEST[row])
    top1 = TOP[row] - 0.15 * off**2 + random.Random(f"{row}{seed}").gauss(0, 2e-3)
    return {
        **{"status": "finished", "step": 1, "seconds": 1.0, "collapsed": False},
        "validation": {"top1": top1, "loss": 1 - top1},
        "test": {"top1": top1, "loss": 1 - top1, "n": 300},
    }


def simulate(plan: Plan) -> tuple[Plan, dict[str, Any]]:
    """Simulate the plan's whole search: each run's result is `planted_result`. Returns the grown
    plan and the results."""
    results: dict[str, Any] = {}
    search = Search(plan) if plan.tune else None
    total = len(list(plan.runs())) + plan.to_come
    while True:
        plan = (search and search.grow(results.get, lambda _: [])) or plan
        now = len(list(plan.runs())) + plan.to_come
        assert now <= total  # it never grows: equal trials are one run
        total = now
        new = [run for run in plan.runs() if run.id not in results]
        if not new:
            return plan, results
        for run in reversed(new):  # whoever ends first changes nothing
            results[run.id] = planted_result(run.cell.row, run.cell.spec, run.seed)
