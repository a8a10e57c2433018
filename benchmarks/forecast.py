"""Does `plan` foretell what a run takes? Its seconds against those of the finished runs.

    python benchmarks/forecast.py [ROUNDS]      (default 3; two minutes each)

A round plans, trains two variants at once, and plans again, each in a fresh store; the forecast is
the mean of both plans, the truth the mean of the runs' own seconds, and what counts the median of
the rounds' ratios: other work on the machine moves single ones. Aim: between 0.85 and 1.15.

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


def ablate(words: list[str], place: Path) -> str:
    """What a command prints on the store `place`."""
    environment = {**os.environ, "PYTHONPATH": str(HERE), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words, "--store", str(place)],
        env=environment,
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


def forecast(words: list[str], place: Path) -> float:
    """Seconds of a run that the plan tells, all of it timed anew."""
    cells = json.loads(ablate(["plan", *words, "--format", "json"], place))["variants"]
    return statistics.mean(cell["seconds"] for cell in cells)


def once(words: list[str], folder: Path, turn: int) -> tuple[float, float]:
    """(forecast, truth) of a round."""
    words = [*words, "stem=none,dpn", f"seeds=[{turn}]"]  # two runs
    before = forecast(words, store(folder, f"before{turn}"))
    trained = store(folder, f"trained{turn}")
    ablate(["sweep", *words, "--yes"], trained)
    results = [json.loads(path.read_text()) for path in trained.glob("runs/*/result.json")]
    after = forecast(words, store(folder, f"after{turn}"))
    return (before + after) / 2, statistics.mean(result["seconds"] for result in results)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    for name, words in CASES.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            told = [once(words, folder, turn) for turn in range(rounds)]
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
