"""What watching costs: the share of a core that the driver takes while its workers train, and of a
worker's time that checkpoints take at the default interval.

    python benchmarks/driver.py [SECONDS]      (default: 60 of training)
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save

from ablate.planning.compose import resolve_run
from ablate.run.build import build_run
from ablate.run.rundir import Metrics, RunDir
from ablate.training.calibrate import random_split, smaller
from ablate.training.journal import save_checkpoint
from ablate.training.training import Training

ABLATE = str(Path(sys.executable).with_name("ablate"))
INTERVAL_S = 60.0  # launcher.checkpoint_s
ROUNDS = 9


def cpu_s(pid: int) -> float:
    """Of the process itself, not of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def driver(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as place:
        words = ("sweep", "block.attn=pre,post", "train.epochs=100000", "--yes")
        with open(Path(place) / "out", "wb") as out:
            process = subprocess.Popen([ABLATE, *words], cwd=place, stdout=out, stderr=out)
        while not list(Path(place).glob("runs/runs/*/metrics.jsonl")):
            time.sleep(0.1)
        time.sleep(2)
        before, start = cpu_s(process.pid), time.monotonic()
        time.sleep(seconds)
        share = (cpu_s(process.pid) - before) / (time.monotonic() - start)
        process.send_signal(signal.SIGINT)
        process.wait()
        print(f"driver: {100 * share:.2f} % of a core while 2 workers train (goal 1 %)")


def checkpoint(arch: str) -> None:
    words = [f"model.arch={arch}", "data=imagenet1k", "recipe=augreg"]
    with tempfile.TemporaryDirectory() as place:
        run = smaller(build_run(resolve_run(words, Path(place))[0]), 1)
        device = torch.device("cpu")
        training = Training(run, random_split(run.data, 1, device), device)
        training.step()  # moments are part of a checkpoint
        folder = RunDir(Path(place))
        metrics = Metrics(folder.metrics)

        def sealed() -> None:
            save_checkpoint(folder, training, metrics)

        def plain() -> None:
            """The same bytes without a seal."""
            folder.write_checkpoint(1, 0, save(tensors, {"progress": "{}"}))

        sealed()
        path = folder.checkpoints()[0][1]
        size, tensors = path.stat().st_size, load_file(path)
        times: dict[str, list[float]] = {"sealed": [], "plain": []}
        for _ in range(ROUNDS):
            for name, write in (("sealed", sealed), ("plain", plain)):
                before = time.monotonic()
                write()
                times[name].append(time.monotonic() - before)
        took = statistics.median(times["sealed"])
        ratio = took / statistics.median(times["plain"])
        interval = max(INTERVAL_S, 50 * took)
        print(
            f"checkpoint of {arch}: {size / 1e6:,.0f} MB in {took:.2f} s, every {interval:.0f} s: "
            f"{100 * took / (took + interval):.2f} % of the time (goal 2 %); "
            f"{ratio:.2f} times what it takes without its hash"
        )


if __name__ == "__main__":
    for arch in ("Ti/16", "S/16", "B/16"):
        checkpoint(arch)
    driver(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
