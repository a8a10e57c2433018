"""How many runs does `until` save, and does it say the same? Real trainings, against 12 seeds.

    python benchmarks/until.py [--store FOLDER]      5 minutes on 2 busy cores
    aim: at most three quarters of the runs, and no word that contradicts the fixed sweep's

Ten rows, some of which differ by construction, in four columns of small models on digits. The fixed
sweep trains all 12 seeds; looks at 5, 8 and 12 seeds then find those runs there, and each sweep is
counted by what it planned. Words contradict each other where a row helps in one sweep and hurts in
the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

MARGIN = 2.5  # points
FILE = """
title: rows that differ, and rows that don't
base: {recipe: quick, data: digits, model.arch: mu/4, optim.warmup_epochs: 0, optim.lr: 3e-3}
across: {model.depth: [1, 2], train.epochs: [4, 8]}
variants:
  - plain: {}
  - each: {stem: [dpn, whiten], norm: [rmsnorm, identity], block.attn: [post, pre+post]}
  - slow: {optim.lr: 1e-3}
  - fast: {optim.lr: 1e-2}
  - wide: {model.mlp_ratio: 8}
seeds: 12
"""
COMMAND = "import sys; from ablate.cli import main; main()"


def table(folder: Path, store: Path, *words: str) -> tuple[int, dict[tuple[str, str], str]]:
    """Train a sweep: how many runs it planned, and its words by row and column."""
    name = words[words.index("--as") + 1]
    _run(folder, "sweep", *words, "--yes", "--store", str(store))
    tree = json.loads(_run(folder, "table", name, "--format", "json", "--store", str(store)))
    planned = sum(e["planned"] for column in tree["columns"] for e in column["entries"])
    return planned, {
        (entry["row"], entry["column"]): entry["verdict"] or "no verdict"
        for column in tree["columns"]
        for entry in column["entries"]
        if entry["row"] != tree["baseline"]
    }


def _run(folder: Path, *words: str) -> Any:
    command = [sys.executable, "-c", COMMAND, *words]
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, check=True, cwd=folder, env=path, stdout=subprocess.PIPE)
    return done.stdout.decode()


def contradicts(one: str, other: str) -> bool:
    return {one, other} == {"helps", "hurts"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        store = (given.store or folder / "runs").absolute()
        (folder / "differ.yaml").write_text(FILE)
        margin = f"analysis.margin={MARGIN}"
        runs, words = table(folder, store, "differ.yaml", margin, "--as", "fixed")
        looks = ("--until", "12", "--margin", str(MARGIN), "--as", "looks")
        fewer, found = table(folder, store, "differ.yaml", *looks)
    for name, said in (("12 seeds", words), ("looks", found)):
        counts = ", ".join(f"{n} {word}" for word, n in Counter(said.values()).most_common())
        print(f"{name}: {runs if said is words else fewer} runs; {counts}")
    against = [key for key, word in words.items() if contradicts(word, found[key])]
    print(f"runs: {fewer / runs:.2f} of the fixed sweep's; contradicting words: {len(against)}")
    for row, column in against:
        key = row, column
        print(f"  {row} at {column}: {words[key]} with 12 seeds, {found[key]} by looks")


if __name__ == "__main__":
    main()
