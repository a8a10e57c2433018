"""What does it cost that everything read is checked? Whole commands of this tree against those of
the tree before decoded data and results had hashes, in turns: the start of a drive (decoded data is
read and hashed once) to the end of two trainings of one step, and `table` of many finished runs.

    python benchmarks/checks.py [REV] [RUNS ...]      (default: 40b353d 1000)

CPU time, user and system, of a command and all processes that it waited for: on a machine that has
other work, elapsed time says more of that. Medians of interleaved rounds. Goal for `table`: 1.3.

ABLATE_DATA: folder that holds cifar10/*.parquet; the digits where there is none.
"""

from __future__ import annotations

import io
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
BEFORE = "40b353d"
ROUNDS = 5
COMMAND = "from ablate.cli import main; main()"
FILL = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from store import Store, fill
fill(Store(Path(sys.argv[2])), int(sys.argv[3]))
"""
CIFAR10 = Path(os.environ.get("ABLATE_DATA", HERE.parent / "shared" / "data")) / "cifar10"
# What is tested on is cut from train, so that little of the time is that of testing.
IMAGES = ["data=cifar10", f"data.path={CIFAR10}", "data.validation=500", "data.test=500"]
DRIVE = ["model.arch=mu/4", "model.depth=1", "train.steps=1", "seeds=1", "stem=none,dpn"]


def cpu_s(tree: Path, code: str, *words: str, folder: Path) -> float:
    """Seconds of CPU that Python takes for the code, with that tree's ablate."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, (tree, words)
    return usage.ru_utime + usage.ru_stime


def compare(name: str, once: Callable[[Path], float], trees: dict[str, Path]) -> None:
    took: dict[str, list[float]] = {which: [] for which in trees}
    for _ in range(ROUNDS):
        for which, tree in trees.items():
            took[which].append(once(tree))
    before, after = (statistics.median(took[which]) for which in ("before", "after"))
    print(
        f"{name}: {before:.2f} s before, {after:.2f} s now: ratio {after / before:.2f} "
        f"(medians of {ROUNDS})",
        flush=True,
    )


def drive(trees: dict[str, Path], place: Path) -> None:
    images = IMAGES if CIFAR10.is_dir() else ["data=digits"]

    def once(tree: Path) -> float:
        store = place / f"drive-{tree.name}"
        store.mkdir(exist_ok=True)
        for entry in store.iterdir():
            if entry.is_dir() and entry.name != "cache":
                shutil.rmtree(entry)
            elif entry.is_file():
                entry.unlink()
        words = ["sweep", *DRIVE, *images, "--store", str(store)]
        return cpu_s(tree, COMMAND, *words, folder=place)

    for tree in trees.values():  # decodes
        once(tree)
    caches = (place / f"drive-{tree.name}" / "cache" for tree in trees.values())
    sizes = [sum(f.stat().st_size for f in cache.rglob("*.npy")) for cache in caches]
    compare(f"sweep of 2 runs of one step, on {sizes[-1] / 1e6:.0f} MB", once, trees)


def table(trees: dict[str, Path], place: Path, runs: int) -> None:
    for tree in trees.values():
        store = place / f"table-{tree.name}-{runs}"
        cpu_s(tree, FILL, str(tree / "benchmarks"), str(store), str(runs), folder=place)

    def once(tree: Path) -> float:
        store = place / f"table-{tree.name}-{runs}"
        words = ["table", "--format", "tidy", "--store", str(store)]
        return cpu_s(tree, COMMAND, *words, folder=place)

    compare(f"table of {runs:,} runs", once, trees)


def trees_of(revision: str, place: Path) -> dict[str, Path]:
    """This tree, and below `place` that of a revision."""
    archive = subprocess.run(
        ["git", "archive", revision], cwd=HERE, capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(place / "before", filter="data")
    return {"before": place / "before", "after": HERE}


def main() -> None:
    revision, *sizes = sys.argv[1:] or [BEFORE]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        trees = trees_of(revision, place)
        drive(trees, place)
        for runs in map(int, sizes or ["1000"]):
            table(trees, place, runs)


if __name__ == "__main__":
    main()
