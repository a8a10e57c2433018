"""How often do tables err on real trainings? Rows of CIFAR-10, resampled, beside `paired`.

    python benchmarks/spread.py [--store FOLDER] [--seeds 20] [--tables 2000] [KEY=VALUE ...]
        about 45 minutes on one idle core; ABLATE_DATA: folder that holds cifar10/*.parquet
    aim: errors of at most .075 with 3 seeds and .065 with more

One sweep of a small model on 12,500 images: rows near the plain one (averaged weights, the rate),
apart from it (RMSNorm, Dual PatchNorm), trained half as long and twice as long. With --store a
second call finds the runs there; KEY=VALUE are words of `ablate sweep`, as launcher=inline.

Tables are made of these runs. Rows of their own seeds: each row draws runs with replacement. Shared
seeds: a seed is drawn for all rows. Disjoint seeds: rows of one name without a seed in common. From
each gain the true difference of its rows, that of the means of all seeds, is taken: what is told
from zero then is an error. Power is that of the first variant for a gain of 3, 2 and 1.4 standard
deviations with 3, 5 and 10 seeds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from checks import CIFAR10, COMMAND
from numpy.typing import NDArray

from ablate.analysis import stats
from ablate.planning.expand import plan_from_words
from ablate.store.store import Store

FILE = f"""
title: rows near one another, apart, short and long, on a part of CIFAR-10
base:
  recipe: quick
  data: cifar10
  data.path: {CIFAR10.resolve()}
  data.train: 'train[:12500]'
  data.validation: 500
  data.test: 'test[:1500]'
  model.arch: mu/8
  model.depth: 2
  optim.lr: 1e-2
  optim.warmup_epochs: 1
  train.epochs: 8
  train.batch: 128
  train.label_smoothing: 0.1
  augment.flip: true
  eval.every: 1000
variants:
  - plain: {{}}
  - EMA .9: {{train.ema: 0.9}}
  - EMA .99: {{train.ema: 0.99}}
  - rate +1 %: {{optim.lr: 0.0101}}
  - wd 0: {{optim.wd: 0}}
  - RMSNorm: {{norm: rmsnorm}}
  - Dual PatchNorm: {{stem: dpn}}
  - short: {{train.epochs: 4}}
  - long: {{train.epochs: 16}}
"""
ROWS = ("plain", "EMA .9", "EMA .99", "rate +1 %", "wd 0", "RMSNorm", "Dual PatchNorm", "short")
OWN = {  # rows of their own seeds
    "alike": ("plain",) * 10,
    "half short": ("plain",) * 5 + ("short",) * 5,
    "short baseline": ("short",) + ("plain",) * 9,
    "two short": ("plain",) * 8 + ("short",) * 2,
    "rest short": ("plain",) + ("short",) * 9,
    "half long": ("plain",) * 5 + ("long",) * 5,
}
SHARED = {
    "all rows": (*ROWS, "long"),
    "near rows": ROWS[:4],
    "short baseline": ("short", *ROWS[:7]),
}
GAIN = {3: 3.0, 5: 2.0, 10: 1.4}  # standard deviations
AT_ONCE = 100  # tables
Bits = NDArray[np.bool_]


class Tables(NamedTuple):
    """Which images runs get right (T, R, n, N), and the true percentages (R,) of the rows."""

    right: Bits
    true: NDArray[np.float64]


def populations(folder: Path, store: Path, seeds: int, words: list[str]) -> dict[str, Bits]:
    """Train the sweep: which images the runs of each row get right, (seeds, N)."""
    name = "spread.yaml"
    (folder / name).write_text(FILE)
    asked = [name, f"seeds={seeds}", *words, "--as", "spread", "--store", str(store)]
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", COMMAND, "sweep", *asked, "--yes"]
    subprocess.run(command, check=True, cwd=folder, env=path, stdout=subprocess.DEVNULL)
    os.chdir(folder)
    made, kept = plan_from_words([name, f"seeds={seeds}"], store=store)[0], Store(store)
    found = {}
    for cell in made.cells:
        files = [kept.rundir(run).predictions for run in cell.ids.values()]
        found[cell.row] = np.array([np.load(file)["rank"] == 0 for file in files])
    return found


def drawn(
    of: dict[str, Bits], rows: tuple[str, ...], n: int, tables: int, how: str
) -> Iterator[Tables]:
    rng = np.random.default_rng(0)
    seeds = min(map(len, of.values()))
    true = np.array([100 * of[row].mean() for row in rows])
    for _ in range(-(-tables // AT_ONCE)):
        shape = (AT_ONCE, len(rows), n)
        if how == "shared":
            places = np.broadcast_to(rng.integers(0, seeds, (AT_ONCE, 1, n)), shape)
        elif how == "disjoint":
            every = rng.permuted(np.tile(np.arange(seeds), (AT_ONCE, 1)), axis=1)
            places = every[:, : len(rows) * n].reshape(shape)
        else:
            places = rng.integers(0, seeds, shape)
        picked = [of[row][places[:, r]] for r, row in enumerate(rows)]
        yield Tables(np.stack(picked, axis=1), true)


def judge(
    of: dict[str, Bits], rows: tuple[str, ...], n: int, tables: int, how: str
) -> dict[str, tuple[float, float]]:
    """Of each method the share of tables that err, and its power."""
    first, second = (100 * of[row].mean(1) for row in rows[:2])
    one = (second - first).std(ddof=1) if how == "shared" else np.hypot(first.std(), second.std())
    gain = GAIN[n] * float(one) / np.sqrt(2)
    wrong = dict.fromkeys(("images", "one way", "paired"), 0)
    told, number, k = dict(wrong), 0, len(rows) - 1
    for right, true in drawn(of, rows, n, tables, how):
        y, images = 100 * right.mean(-1), stats.ImageFlips.from_right(right)
        number += len(y)
        for spread in wrong:
            method = stats.Method(spread=spread, contrasts=k, comparisons=k)
            fit = stats.fit(y, method, images)
            away = fit.gain - (true - true[0])
            wrong[spread] += int(
                ((np.abs(away) > fit.half) & (fit.variances.v > 0))[:, 1:].any(-1).sum()
            )
            told[spread] += int((away[:, 1] + gain > fit.half[:, 1]).sum())
    return {spread: (wrong[spread] / number, told[spread] / number) for spread in wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tables", type=int, default=2000)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        store = (given.store or folder / "runs").absolute()
        of = populations(folder, store, given.seeds, given.words)
        os.chdir(store.parent)
    for row, right in of.items():
        scores = 100 * right.mean(1)
        both = np.corrcoef(scores, 100 * of["plain"].mean(1))[0, 1]
        print(f"{row}: {scores.mean():.2f} %, sd {scores.std(ddof=1):.2f}, with plain {both:.2f}")
    cases = [("own seeds", *case) for case in OWN.items()]
    cases += [("shared", *case) for case in SHARED.items()]
    print(f"error / power of {given.tables} tables")
    for n in GAIN:
        if (k := given.seeds // n - 1) > 1:
            cases.append(("disjoint", "alike", ("plain",) * (k + 1)))
        for how, name, rows in cases:
            if how != "disjoint" or len(rows) * n <= given.seeds < (len(rows) + 1) * n:
                found = judge(of, rows, n, given.tables, how)
                said = [f"{by} {error:.3f}/{told:.2f}" for by, (error, told) in found.items()]
                print(f"n = {n}, K = {len(rows) - 1}, {how}, {name}: {', '.join(said)}", flush=True)


if __name__ == "__main__":
    main()
