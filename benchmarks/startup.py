"""How soon a command answers, and how soon a local worker holds its run.

python benchmarks/startup.py      about 30 s; medians of interleaved runs, one thread each

(a) `ablate --help` against a bare Typer and Rich program with as many commands; aim: within 2x.
(b) from `Local.start` to the worker holding its run's lock, the fork server warm, against a fresh
    interpreter that imports torch; aim: at least 30x faster.
(c) a TAB behind `ablate sweep norm=lay` against `ablate --help`; aim: within 2x.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import typer

from ablate import cli
from ablate.planning.compose import resolve_run
from ablate.run.rundir import RunDir
from ablate.running.launchers.local import Local

BARE = """
import typer
from rich.console import Console

console = Console()
app = typer.Typer(add_completion=False)

{commands}

app()
"""
COMMAND = """
@app.command()
def command{n}(words: list[str] = typer.Argument(None), store: str = "runs", debug: bool = False):
    '''Command number {n}.'''
    console.print(words)
"""
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
LAUNCHER = {"devices": "cpu", "runs_per_gpu": 1, "checkpoint_s": 60.0}


def seconds(command: list[str], **environment: str) -> float:
    """How long a command takes that prints nothing to us."""
    env = {**os.environ, **environment}
    start = time.perf_counter()
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    )
    return time.perf_counter() - start


def worker_start(launcher: Local, run: RunDir, spec: dict[str, object]) -> float:
    """From `start` until the run's lock is held; the worker is then killed."""
    run.create(spec)
    start = time.perf_counter()
    launcher.start(run, launcher.slots[0])
    while not run.lock.is_held():
        time.sleep(0.0002)
    took = time.perf_counter() - start
    launcher.stop(run, now=True)
    while run.id not in launcher.poll(0.1):
        pass
    return took


def report(what: str, ours: list[float], other: list[float], aim: str) -> float:
    """Prints a line; returns the ratio of the medians, ours over the other."""
    ratio = statistics.median(ours) / statistics.median(other)
    print(
        f"{what}: {1000 * statistics.median(ours):.1f} ms against "
        f"{1000 * statistics.median(other):.1f} ms: ratio {ratio:.3f}, 1/ratio {1 / ratio:.1f} "
        f"(aim: {aim}; n = {len(ours)})"
    )
    return ratio


def help_times(folder: Path, repeats: int) -> tuple[list[float], list[float]]:
    """(`ablate --help`, the bare program's `--help`), interleaved."""
    commands = len(typer.main.get_group(cli.app).commands)
    bare = folder / "bare.py"
    bare.write_text(BARE.format(commands="".join(COMMAND.format(n=n) for n in range(commands))))
    ablate = [str(Path(sys.executable).with_name("ablate")), "--help"]
    ours, other = [], []
    for n in range(repeats + 1):
        times = seconds(ablate), seconds([sys.executable, str(bare), "--help"])
        if n:  # the first pair reads the files from disk
            ours.append(times[0])
            other.append(times[1])
    return ours, other


def tab_times(words: str, repeats: int) -> tuple[list[float], list[float]]:
    """(a TAB behind these words as bash breaks them, `ablate --help`), interleaved."""
    ablate = str(Path(sys.executable).with_name("ablate"))
    typed = {"COMP_WORDS": words.replace(" ", "\n"), "COMP_CWORD": str(words.count(" "))}
    ours, other = [], []
    for n in range(repeats + 1):
        times = (
            seconds([ablate], _ABLATE_COMPLETE="complete_bash", **typed),
            seconds([ablate, "--help"]),
        )
        if n:
            ours.append(times[0])
            other.append(times[1])
    return ours, other


def worker_times(folder: Path, repeats: int) -> tuple[list[float], list[float]]:
    """(a worker's start, a fresh interpreter with torch), interleaved."""
    spec, _ = resolve_run(["train.steps=100000"], folder)
    launcher = Local(LAUNCHER, folder / "cache")
    ours, other = [], []
    try:
        for n in range(repeats + 1):
            run = RunDir(folder / "runs" / f"{n:016x}")
            took = worker_start(launcher, run, spec)
            fresh = seconds([sys.executable, "-c", "import torch"])
            if n:  # the first start waits for the fork server itself to load torch
                ours.append(took)
                other.append(fresh)
    finally:
        launcher.free()
    return ours, other


def main() -> int:
    os.environ.update(THREADS)  # of every process that is measured
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        helped = report("(a) ablate --help against bare", *help_times(folder, 15), "ratio <= 2")
        tab = report("(c) TAB against --help", *tab_times("ablate sweep norm = lay", 15), "<= 2")
        started = report(
            "(b) a worker's start against a fresh torch", *worker_times(folder, 11), "1/ratio >= 30"
        )
    return int(helped > 2 or started > 1 / 30 or tab > 2)


if __name__ == "__main__":
    sys.exit(main())
