"""Do commands on a store stay cheap as it grows? `status` and `table` of finished runs, as whole
commands, against a process that reads as many small files once; the start of a sweep that has
nothing left to do; the share of a core that a driver takes while its workers train.

    python benchmarks/store.py [RUNS ...]      (default: 100 1000 10000)
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ablate.planning.expand import plan_from_words as make_plan
from ablate.shared.files import to_json
from ablate.store.ledger import Ledger
from ablate.store.store import Store

ABLATE = str(Path(sys.executable).with_name("ablate"))
SEEDS = 10
READ = """
import json, pathlib, sys
for path in pathlib.Path(sys.argv[1]).glob("runs/*/result.json"):
    json.loads(path.read_bytes())
"""


def words(runs: int) -> list[str]:
    rates = ",".join(f"{1e-3 + 1e-6 * n:.6f}" for n in range(runs // SEEDS))
    return [f"optim.lr={rates}", "recipe=quick", f"seeds={SEEDS}", "--as", "many"]


def fill(store: Store, runs: int) -> None:
    """A store as `runs` finished trainings leave it, but for their weights and predictions."""
    draw = random.Random(0)
    *plain, _, name = words(runs)
    plan, _ = make_plan(plain, store=store.root, name=name)
    store.write_plan(plan)
    for run in plan.runs():
        folder = store.rundir(run.id)
        folder.path.mkdir(parents=True)
        folder.run.write_bytes(to_json({"format": 1, "id": run.id, "spec": run.spec.tree}))
        folder.lock.path.write_text('{"pid": 1}')
        top1 = draw.gauss(0.9, 0.01)
        result = {
            **{"status": "finished", "step": 9, "seconds": 9.0, "collapsed": False, "digest": "a"},
            **{"device": "cpu", "threads": 1, "torch": "2", "kernel": "k", "micro_batch": 9},
            **{"train_loss": 0.1, "prior_loss": 2.3, "fingerprint": "f", "plugins": {}},
            "test": {"top1": top1, "top5": 1.0, "loss": 0.1, "n": 300},
            "validation": {"top1": top1, "loss": 0.1},
        }
        folder.result.write_bytes(to_json(result))
    with Ledger.driving(store):  # made from the folders
        pass


def seconds(command: list[str], folder: Path) -> float:
    before = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - before


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]] or [100, 1000, 10_000]
    for runs in sizes:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            before = time.perf_counter()
            fill(Store(folder / "runs"), runs)
            made = time.perf_counter() - before
            commands = {
                "read": [sys.executable, "-c", READ, "runs"],
                "status": [ABLATE, "status"],
                "table": [ABLATE, "table", "--format", "tidy"],
                "sweep": [ABLATE, "sweep", *words(runs)],
            }
            took: dict[str, list[float]] = {name: [] for name in commands}
            for _ in range(3):
                for name, command in commands.items():
                    took[name].append(seconds(command, folder))
            median = {name: statistics.median(times) for name, times in took.items()}
            ratios = {name: median[name] / median["read"] for name in median if name != "read"}
            print(
                f"{runs:>6} runs: reading their results once {median['read']:.2f} s; "
                + ", ".join(f"{name} {median[name]:.2f} s = {r:.1f}x" for name, r in ratios.items())
                + f" (made in {made:.0f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
