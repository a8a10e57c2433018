"""Does `plan` foretell what a run takes? Its seconds against those of the finished runs.

    python benchmarks/forecast.py [ROUNDS] [--wall]      (default 3; two minutes each)

A round plans, trains two variants, one after the other, and plans again, each in a fresh store and
in one process. The forecast is the mean of both plans, the truth the mean of the runs' own seconds,
and what counts the median of the rounds' ratios. Seconds are of the process' CPU time, one thread,
so that other work on the machine does not count; with --wall they are of the clock. Aim: between
0.85 and 1.15.

ABLATE_DATA: folder that holds cifar10/*.parquet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import CIFAR10, HERE

MAIN = "from ablate.cli import main; main()"
CPU_TIME = f"import time; time.perf_counter = time.monotonic = time.process_time; {MAIN}"
CIFAR = ["data=cifar10", f"data.path={CIFAR10}", "recipe=cifar"]
FEW = ["data.validation=500", "data.test=500"]
CASES = {
    "digits, mu/4, the whole recipe": ["data=digits"],
    "cifar10, mu/4, 60 steps of 128 in bf16": [
        *(*CIFAR, "model.arch=mu/4", "train.steps=60", "train.batch=128"),
    ],
    "cifar10, Ti/2 with 4 blocks, 6 steps of 64 in fp32": [
        *(*CIFAR, *FEW, "model.arch=Ti/2", "model.depth=4", "train.precision=fp32"),
        *("train.steps=6", "train.batch=64"),
    ],
}


def ablate(command: str, words: list[str], place: Path) -> str:
    """What a command prints on the store `place`."""
    environment = {**os.environ, "PYTHONPATH": str(HERE), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", command, *words, "launcher=inline", "--store", str(place)],
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return done.stdout


def store(folder: Path, name: str) -> Path:
    """A fresh one, with the decoded data and nothing that was timed."""
    made, cache = folder / name, folder / "cache"
    cache.mkdir(exist_ok=True)
    (cache / "costs.json").unlink(missing_ok=True)
    made.mkdir()
    (made / "cache").symlink_to(cache)
    return made


def forecast(command: str, words: list[str], place: Path) -> float:
    """Seconds of a run that the plan tells, all of it timed anew."""
    cells = json.loads(ablate(command, ["plan", *words, "--format", "json"], place))["variants"]
    return statistics.mean(cell["seconds"] for cell in cells)


def once(command: str, words: list[str], folder: Path, turn: int) -> tuple[float, float]:
    """(forecast, truth) of a round."""
    words = [*words, "stem=none,dpn", f"seeds=[{turn}]"]
    before = forecast(command, words, store(folder, f"before{turn}"))
    trained = store(folder, f"trained{turn}")
    ablate(command, ["sweep", *words, "--yes"], trained)
    results = [json.loads(path.read_text()) for path in trained.glob("runs/*/result.json")]
    after = forecast(command, words, store(folder, f"after{turn}"))
    return (before + after) / 2, statistics.mean(result["seconds"] for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--wall", action="store_true", help="by the clock, on an idle machine")
    asked = parser.parse_args()
    rounds, wall, command = asked.rounds, asked.wall, MAIN if asked.wall else CPU_TIME
    clock = "seconds of the clock" if wall else "CPU seconds"
    print(f"{rounds} rounds, {clock}, load {os.getloadavg()[0]:.1f}", flush=True)
    for name, words in CASES.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            sized = [*words, "stem=none,dpn", "seeds=1"]
            ablate(MAIN, ["sweep", *sized, "--yes"], store(folder, "decoded"))
            told = [once(command, words, folder, turn) for turn in range(rounds)]
        ratios = [forecast / truth for forecast, truth in told]
        seconds = ", ".join(f"{forecast:.1f}/{truth:.1f}" for forecast, truth in told)
        print(
            f"{name}: plan / truth {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f}-{max(ratios):.2f}; {seconds})",
            flush=True,
        )
    print(f"load after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
