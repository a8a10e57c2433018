"""What a command costs before and beside the training, against another revision's.

    python benchmarks/start.py [REV] [--rounds N]      default: HEAD, 9 rounds; 4 minutes idle

A sweep of two short runs on digits in a fresh store, the same with nothing to do, its table, and
`--help`: medians of interleaved rounds, the first of each left out. CPU seconds are those of all
processes that a command started, also of workers that outlive it; on a busy machine they say more
than the time on the clock.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SWEEP = ("sweep", "block.attn=pre,post", "train.steps=3", "seeds=1", "--as", "two")
COLD = "cold sweep of two runs"
SHORT = 3  # times as many of a short command: noise is larger beside it
COMMANDS = {
    COLD: SWEEP,
    "nothing to do": SWEEP,
    "table": ("table", "two"),
    "--help": ("--help",),
}
MAIN = "from ablate.cli import main; main()"
PR_SET_CHILD_SUBREAPER = 36


def cost(tree: Path, folder: Path, words: tuple[str, ...]) -> tuple[float, float]:
    """(CPU seconds, seconds) of `ablate WORDS` of that tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as after the first command of a user
    line = [sys.executable, "-P", "-c", MAIN, *words]
    before, begun = _cpu_s(), time.perf_counter()
    subprocess.run(line, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    took = time.perf_counter() - begun
    while True:
        try:
            os.wait()  # those whose parent is dead are ours
        except ChildProcessError:
            return _cpu_s() - before, took


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rev", nargs="?", default="HEAD")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "then").mkdir()
        archive = ["git", "-C", str(REPOSITORY), "archive", given.rev]
        content = subprocess.run(archive, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "x", "-C", str(folder / "then")], input=content, check=True)
        for part in ("ablate", "conf", "sweeps"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / part, folder / "now" / part, ignore=ignored)
        trees = {which: folder / which for which in ("now", "then")}
        costs: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for n in range(given.rounds + 1):
            for which in trees:
                (folder / f"in {which}").mkdir()
            for what, words in COMMANDS.items():
                for repeat in range(1 if what == COLD else SHORT):
                    for which in sorted(trees, reverse=(n + repeat) % 2 == 1):
                        found = cost(trees[which], folder / f"in {which}", words)
                        if n:  # the first round reads and compiles files
                            costs.setdefault((what, which), []).append(found)
            for which in trees:
                shutil.rmtree(folder / f"in {which}")
    print(f"against {given.rev}, n = {given.rounds}, {SHORT} times as many where it is short")
    for what in COMMANDS:
        text = []
        for kind, place in (("CPU", 0), ("clock", 1)):
            now, then = (
                statistics.median(found[place] for found in costs[what, which])
                for which in ("now", "then")
            )
            text.append(f"{kind} {now:.2f} s against {then:.2f} s: ratio {now / then:.2f}")
        print(f"{what}: {'; '.join(text)}")


if __name__ == "__main__":
    main()
