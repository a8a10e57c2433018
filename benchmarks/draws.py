"""What do draws cost that are the same everywhere? A step of this tree against one of the tree
whose draws came from torch's generators, in turns: its input alone, and whole steps of models
without masks, with drop-path and with dropout.

    python benchmarks/draws.py [REV] [ROUNDS]      (default: 8137b28 15)

CPU time of one thread, as a worker has it: on a machine that has other work, elapsed time says more
of that. A turn is as many steps as take about a third of a second; medians over the rounds, and of
the rounds' ratios. Goal: 1.0 where there is no dropout.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import IO, cast

from step import as_a_worker

HERE = Path(__file__).resolve().parent.parent
BEFORE = "8137b28"
TURN_S = 0.3
IMAGES = ["data.channels=3", "data.size=32", "model.arch=mu/4"]
SMALL = [*IMAGES, "recipe=cifar", "train.precision=fp32", "train.batch=128", "model.drop_path=0"]
DEEP = [*IMAGES, "train.batch=64", "model.depth=4", "model.width=96", "model.heads=3"]
PLAIN = ["augment.mixup=0", "augment.cutmix=0", "augment.randaug=0"]
TF = ["augment.style=tf", "augment.randaug=2", *PLAIN[:2]]
CASES = {
    "input, nothing": (True, [*IMAGES, "train.batch=64"]),
    "input, flip and crop": (True, [*SMALL, *PLAIN]),
    "input, flip and crop, mixup, cutmix": (True, [*SMALL, "augment.randaug=0"]),
    "input, RandAugment of timm's, too": (True, [*SMALL, *PLAIN[:2]]),
    "input, RandAugment of TensorFlow's": (True, [*SMALL, *TF]),
    "step of the quick start": (False, ["recipe=quick"]),
    "step, 4 blocks of width 96": (False, DEEP),
    "step, and drop-path": (False, [*DEEP, "model.drop_path=0.1"]),
    "step, and dropout": (False, [*DEEP, "model.dropout=0.1"]),
    "step, and dropout, in 4 micro-batches": (
        False,
        [*DEEP, "model.dropout=0.1", "train.micro_batch=16"],
    ),
}
TIMER = """
import json, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from ablate.planning.compose import resolve_run
from ablate.run.build import build_run
from ablate.training.calibrate import random_split
from ablate.training.training import Training

cpu, turn_s, made = torch.device("cpu"), float(sys.argv[1]), {}

def prepare(name, only_input, words):
    run = build_run(resolve_run(words, Path("runs"))[0])
    training = Training(run, random_split(run.data, 8192, cpu), cpu)
    training.micro_batch = training.micro_batch or run.train.batch
    def once():
        if only_input:
            training.inputs()
            training._at.step += 1
        else:
            training.step()
    for _ in range(3):
        once()
    start = time.process_time()
    for _ in range(3):
        once()
    made[name] = once, max(1, round(3 * turn_s / (time.process_time() - start)))

for line in sys.stdin:
    name, only_input, words = json.loads(line)
    if name not in made:
        prepare(name, only_input, words)
    once, times = made[name]
    start = time.process_time()
    for _ in range(times):
        once()
    print((time.process_time() - start) / times, flush=True)
"""


def main() -> None:
    revision = sys.argv[1] if len(sys.argv) > 1 else BEFORE
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        packed = subprocess.run(
            ["git", "archive", revision, "ablate", "conf", "sweeps"],
            cwd=HERE,
            check=True,
            capture_output=True,
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder / "before", filter="data")
        timers = [start(tree, folder) for tree in (folder / "before", HERE)]
        for name, (only_input, words) in CASES.items():
            question = json.dumps([name, only_input, words])
            took = [[ask(timer, question) for timer in timers] for _ in range(rounds + 1)][1:]
            before, now = (1000 * statistics.median(side) for side in zip(*took, strict=True))
            ratio = statistics.median(b / a for a, b in took)
            print(f"{name:40} {before:8.2f} ms {now:8.2f} ms  ratio {ratio:.2f}", flush=True)
        for timer in timers:
            timer.communicate()


def start(tree: Path, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TIMER, str(TURN_S)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(timer: subprocess.Popen[str], question: str) -> float:
    print(question, file=cast(IO[str], timer.stdin), flush=True)
    return float(cast(IO[str], timer.stdout).readline())


if __name__ == "__main__":
    as_a_worker()
    main()
