"""How often is some row wrongly told where scores are coarse, few, missing or tied?

    python benchmarks/corners.py [TABLES]      (default 20,000; 2,000 where seeds are missing)

Tables of a baseline and nine rows without any gain, as classification gives them: images that every
training gets right, and some that each gets right by chance, all by itself. 5 % is allowed.
"""

from __future__ import annotations

import sys

import numpy as np

from ablate.analysis import stats

ROWS = 10
FLIPS = {  # images -> those that a training gets right by chance, and the chance
    "100 images, 1 of which flips": (100, 1, 0.5),
    "100 images, 2 of which flip": (100, 2, 0.5),
    "100 images, 4 of which flip": (100, 4, 0.5),
    "1,000 images, 20 of which are wrong in 1 training of 20": (1000, 20, 0.95),
    "30 images, each right in 8 of 10 trainings": (30, 30, 0.8),
    "300 images, 60 of which flip": (300, 60, 0.5),
}
AT_ONCE = 10_000_000  # images
METHODS = {name: {"spread": name} for name in ("images", "one way", "paired")}


def told(gain: np.ndarray, half: np.ndarray, sd: np.ndarray) -> float:
    """The share of tables (..., rows) with some verdict; without a spread there is none."""
    return float(((np.abs(gain) > half) & (sd > 0)).any(-1).mean())


def method(**settings: str) -> stats.Method:
    return stats.Method(contrasts=ROWS - 1, comparisons=ROWS - 1, **settings)


def answers(rng: np.random.Generator, case: str, n: int, tables: int) -> np.ndarray:
    """Which images each run gets right (tables, rows, n, images)."""
    images, chancy, chance = FLIPS[case]
    right = np.ones((tables, ROWS, n, images), dtype=bool)
    right[..., :chancy] = rng.random((tables, ROWS, n, chancy), np.float32) < chance
    return right


def coarse(tables: int) -> None:
    rng = np.random.default_rng(0)
    for case in FLIPS:
        for n in (3, 5, 12):
            wrong = dict.fromkeys(METHODS, 0.0)
            some = max(1, AT_ONCE // (ROWS * n * FLIPS[case][0]))
            for start in range(0, tables, some):
                right = answers(rng, case, n, min(some, tables - start))
                y, images = 100 * right.mean(-1), stats.ImageFlips.from_right(right)
                for name, settings in METHODS.items():
                    fit = stats.fit(y, method(**settings), images)
                    share = told(fit.gain[:, 1:], fit.half[:, 1:], fit.sd[:, 1:])
                    wrong[name] += share * len(y) / tables
            shown = ", ".join(f"{name} {error:.3f}" for name, error in wrong.items())
            print(f"{case}, {n} seeds: {shown}", flush=True)


def missing(tables: int) -> None:
    """Seeds without a result: any in ten, or half of the seeds of one row."""
    rng = np.random.default_rng(1)
    for case, lacking in (("one result in ten", None), ("half of a row", 1)):
        for n in (3, 5, 12):
            wrong = dict.fromkeys(METHODS, 0)
            for _ in range(tables):  # without images
                y = rng.standard_normal((ROWS, n))
                if lacking is None:
                    y[rng.random(y.shape) < 0.1] = np.nan
                else:
                    y[lacking, : n // 2] = np.nan
                for name, settings in METHODS.items():
                    gains = stats.column_gains(y, 0, method(**settings)).rows
                    wrong[name] += any(map(_is_told, gains))
            shown = ", ".join(f"{name} {error / tables:.3f}" for name, error in wrong.items())
            print(f"missing: {case}, {n} seeds: {shown}", flush=True)


def _is_told(row: stats.RowGain | None) -> bool:
    gain = row.gain if row else None
    if gain is None or gain.low is None or not gain.sd or gain.n < stats.FEWEST_SEEDS:
        return False
    return gain.low > 0 or gain.high < 0


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    coarse(number)
    missing(number // 10)
