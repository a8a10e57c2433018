"""What a search costs the driver: 1,000 trials in a store, against trainings of 30 s.

    python benchmarks/tune.py [TRIALS]

Two studies of TRIALS (500) each: to ask and tell, to note every round in the store and the ledger,
and, with a pruner, to judge each trial at ten validations. Aim: under 1 % of a training.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ablate.planning.expand import plan_from_words as make_plan
from ablate.planning.search import Search
from ablate.run.spec import RunSpec
from ablate.store.ledger import Ledger
from ablate.store.store import Store

TRAINING_S = 30.0
VALIDATIONS = 10
FILE = """
base: {recipe: quick, data: digits, model.arch: mu/4}
variants: [{pre: {}}, {post: {block.attn: post}}]
tune:
  space:
    optim.lr: {log: [1e-4, 1e-1]}
    optim.wd: {log: [1e-3, 1]}
    model.dropout: {uniform: [0, 0.5]}
"""


def search_s(sampler: str, pruner: str, trials: int) -> float:
    """Seconds a trial of two searches, all results being there at once."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "many.yaml"
        file.write_text(FILE)
        settings = {"trials": trials, "sampler": sampler, "pruner": pruner, "repeats": 1}
        words = [str(file), "seeds=1", *(f"tune.{key}={value}" for key, value in settings.items())]
        store = Store(Path(place))
        plan, _ = make_plan(words, store=store.root)
        search, results, curves, spent = Search(plan), {}, {}, 0.0
        with Ledger.driving(store) as ledger:
            while True:
                before = time.perf_counter()
                bigger = search.grow(results.get, curves.__getitem__)
                if bigger is not None:
                    store.write_plan(bigger)
                    ledger.plan(bigger)
                spent += time.perf_counter() - before
                if bigger is None:
                    return spent / (2 * trials)
                for run in bigger.runs():
                    if run.id in results:
                        continue
                    results[run.id] = result(run.cell.spec)
                    curves[run.id] = curve(results[run.id])
                    before = time.perf_counter()
                    for seen in range(1, VALIDATIONS):
                        search.prune(run.id, curves[run.id][:seen])
                    spent += time.perf_counter() - before


def result(spec: RunSpec) -> dict[str, Any]:
    optim = spec.tree["optim"]
    off = math.log10(optim["lr"] / 3e-3) ** 2 + math.log10(optim["wd"] / 0.1) ** 2
    scores = {"top1": 0.9 - 0.1 * off, "loss": off}
    return {"status": "finished", "step": VALIDATIONS, "validation": scores}


def curve(result: dict[str, Any]) -> list[dict[str, Any]]:
    top1 = result["validation"]["top1"]
    return [
        {"step": n, "epoch": n, "val_top1": top1 * n / VALIDATIONS}
        for n in range(1, VALIDATIONS + 1)
    ]


if __name__ == "__main__":
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    for sampler, pruner in (
        *((sampler, "none") for sampler in ("tpe", "random", "cmaes")),
        *(("tpe", pruner) for pruner in ("median", "hyperband")),
    ):
        each = search_s(sampler, pruner, trials)
        share = 100 * each / TRAINING_S
        name = sampler if pruner == "none" else f"{sampler}, {pruner}"
        print(f"{name}: {1e3 * each:.1f} ms a trial, {share:.3f} % of {TRAINING_S:.0f} s (aim 1 %)")
