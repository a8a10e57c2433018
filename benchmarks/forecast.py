"""Does `plan` foretell what a run takes? Its seconds against those of the finished runs.

    python benchmarks/forecast.py [ROUNDS]      (default 3; about a minute each)

A round plans, trains on all slots at once, and plans again in a fresh store; the forecast is the
mean of both plans, the truth the mean of the runs' own seconds, and what counts the median of the
rounds' ratios: other work on the machine moves single ones. Aim: between 0.85 and 1.15.

ABLATE_DATA: folder that holds cifar10/*.parquet.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import CIFAR10, HERE

COMMAND = "from ablate.cli import main; main()"
CIFAR = ["data=cifar10", f"data.path={CIFAR10}", "recipe=cifar"]
CASES = {
    "digits, mu/4, a whole quick run": ["data=digits"],
    "cifar10, mu/4": [*CIFAR, "model.arch=mu/4", "train.steps=60", "train.batch=128"],
    "cifar10, Ti/4, micro_batch=auto": [
        *CIFAR,
        *("model.arch=Ti/4", "model.depth=4", "train.steps=12", "train.batch=128"),
        *("data.validation=500", "data.test=500"),
    ],
}


def ablate(words: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(HERE), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return done.stdout


def forecast(words: list[str], folder: Path) -> float:
    """Seconds of a run that the plan tells, all of it timed anew."""
    (folder / "runs" / "cache" / "costs.json").unlink(missing_ok=True)
    tree = json.loads(ablate(["plan", *words, "--format", "json"], folder))
    return statistics.mean(variant["cells"][0]["seconds"] for variant in tree["variants"])


def once(words: list[str], folder: Path, turn: int, cores: int) -> tuple[float, float]:
    """(forecast, truth) of a round, whose seeds nobody has trained."""
    seeds = range(cores * turn, cores * (turn + 1))
    before = forecast([*words, f"seeds={[*seeds]}"], folder)
    ablate(["sweep", *words, f"seeds={[*seeds]}", "--as", f"round{turn}", "--yes"], folder)
    results = [json.loads(path.read_text()) for path in folder.glob("runs/runs/*/result.json")]
    truth = statistics.mean(result["seconds"] for result in results[-cores:])
    for path in folder.glob("runs/runs/*/result.json"):
        path.rename(path.with_name("told.json"))  # each round reads its own
    (folder / "runs" / "ledger.sqlite").unlink(missing_ok=True)
    after = forecast([*words, f"seeds={[seed + 1000 for seed in seeds]}"], folder)
    return (before + after) / 2, truth


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, load {os.getloadavg()[0]:.1f}")
    for name, words in CASES.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            ablate(["data", "prepare", *words[:2]], folder) if words[1:] else None
            told = [once(words, folder, turn, cores) for turn in range(rounds)]
        ratios = [forecast / truth for forecast, truth in told]
        seconds = ", ".join(f"{forecast:.1f}/{truth:.1f}" for forecast, truth in told)
        print(
            f"{name}: plan / truth {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f}-{max(ratios):.2f}; seconds {seconds})",
            flush=True,
        )
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
