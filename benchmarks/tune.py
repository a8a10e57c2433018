"""What a search costs the driver: ask and tell of 1,000 trials, against trainings of 30 s.

python benchmarks/tune.py [TRIALS]      aim: under 1 % of a training, whichever sampler
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ablate.sweep import plan as make_plan
from ablate.tune import Search

TRAINING_S = 30.0
FILE = """
base: {recipe: quick, data: digits, model.arch: mu/4}
variants: [{pre: {}}, {post: {block.attn: post}}]
tune:
  space:
    optim.lr: {log: [1e-4, 1e-1]}
    optim.wd: {log: [1e-3, 1]}
    model.dropout: {uniform: [0, 0.5]}
"""


def search_s(sampler: str, trials: int) -> float:
    """Seconds a trial of two searches, all results being there at once."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "many.yaml"
        file.write_text(FILE)
        words = [str(file), f"tune.trials={trials}", f"tune.sampler={sampler}", "seeds=1"]
        plan, _ = make_plan(words, store=Path(place))
    search, results, spent = Search(plan), {}, 0.0
    while True:
        before = time.perf_counter()
        bigger = search.grow(results.get, lambda run: [])
        spent += time.perf_counter() - before
        if bigger is None:
            return spent / (2 * trials)
        for run in bigger.runs():
            results.setdefault(run.id, result(run.cell.spec))


def result(spec: Any) -> dict[str, Any]:
    off = math.log10(spec["optim"]["lr"] / 3e-3) ** 2 + math.log10(spec["optim"]["wd"] / 0.1) ** 2
    return {"status": "finished", "validation": {"top1": 0.9 - 0.1 * off, "loss": off}}


if __name__ == "__main__":
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    for sampler in ("tpe", "random", "cmaes"):
        each = search_s(sampler, trials)
        share = 100 * each / TRAINING_S
        print(
            f"{sampler}: {1e3 * each:.1f} ms a trial, {share:.3f} % of {TRAINING_S:.0f} s (aim 1 %)"
        )
