"""How often is some verdict wrong? Figures of docs/statistics.md: designs, pairs of rows, contrasts
between rows, looks.

    python benchmarks/errors.py [TABLES] [PART ...]      (default 2,000, and all parts)
        15 minutes on one idle core

Tables are resampled from 590 real trainings (tests/populations.npz) or drawn.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from simulation import (
    DESIGNS,
    PAIRS,
    cells,
    contrasts_error,
    judged_effects,
    judged_pairs,
    pairs_of_rows,
    resampled,
    simulate,
    stopped,
)

from ablate.analysis.stats import spread

LEVELS = np.array([*itertools.product((0, 1), repeat=4)])
COMMON = (0.0, 4.0)  # points that all cells with one change share


def designs(tables: int) -> None:
    """Main effects of 2^4 cells."""
    for case in DESIGNS:
        errors = [
            judged_effects(cells(case, np.random.default_rng(12), n, tables, 16), LEVELS).error
            for n in (2, 3, 5)
        ]
        print(f"{case}: error {said(errors)} at n = 2, 3, 5", flush=True)


def screen(tables: int) -> None:
    """Main effects of 2^4 cells, with and without the screen of effects."""
    level, case = spread.OWN_EFFECT, "real"
    for common, n in itertools.product(COMMON, (2, 3, 5)):
        found = []
        for spread.OWN_EFFECT in (level, 1.0):
            made = cells(case, np.random.default_rng(12), n, tables, 16, common)
            found.append(judged_effects(made, LEVELS))
        spread.OWN_EFFECT = level
        wide = np.median(found[0].halves, 0) / np.median(found[1].halves, 0)
        ratio = found[0].halves / found[1].halves
        print(
            f"{case}, {common:g} points common to one change, n = {n}: error "
            f"{said([one.error for one in found])} with and without the effects' screen; "
            f"half-widths, median {wide.min():.2f} to {wide.max():.2f} times, mean "
            f"{ratio.mean():.2f}; {(ratio > 1.001).mean():.2f} of effects by their own spread",
            flush=True,
        )


def pairs(tables: int) -> None:
    """One variant: by images, and its paired t."""
    for names, n in itertools.product(PAIRS, (3, 5, 10)):
        made = pairs_of_rows(np.random.default_rng(13), names, n, tables)
        images, paired = (judged_pairs(made, by) for by in ("images", "paired"))
        print(
            f"{names[1]} over {names[0]}, n = {n}: error / power {images.error:.3f} / "
            f"{images.power:.2f}, paired t {paired.error:.3f} / {paired.power:.2f}",
            flush=True,
        )


def contrasts(tables: int) -> None:
    """Four gains and the six contrasts of four variants, as one family."""
    plain, short = "digits.plain70", "digits.short70"
    cases = {
        "digits, rows alike": [plain] * 5,
        "two variants trained short": [plain] * 3 + [short] * 2,
        "the baseline short": [short] + [plain] * 4,
    }
    for case, rows in cases.items():
        errors = [
            contrasts_error(resampled(np.random.default_rng(15), rows, n, tables), "images")
            for n in (3, 5, 10)
        ]
        print(f"{case}: error {said(errors)} at n = 3, 5, 10", flush=True)
    for correlation, by in itertools.product((0.0, 0.6), ("one way", "paired")):
        errors = [
            contrasts_error([simulate(np.random.default_rng(16), 5, n, correlation, tables)], by)
            for n in (3, 5, 10)
        ]
        print(
            f"Gaussian, correlation {correlation:g}, {by}: error {said(errors)} at n = 3, 5, 10",
            flush=True,
        )


def looks(tables: int) -> None:
    """Rows that all gain the margin, looks at 5, 8 and 12 seeds."""
    for variants, margin in itertools.product((3, 9), (1.0, 1.5, 2.0)):
        found = stopped(np.random.default_rng(14), variants, margin, (5, 8, 12), tables)
        print(
            f"{variants} rows that gain the margin, {margin:g} sd: some row stops in "
            f"{found.stops:.3f}, some verdict denies the gain in {found.denied:.3f}",
            flush=True,
        )


def said(shares: list[float]) -> str:
    return " ".join(f"{share:.3f}" for share in shares)


PARTS = {
    "designs": designs,
    "screen": screen,
    "pairs": pairs,
    "contrasts": contrasts,
    "looks": looks,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", type=int, nargs="?", default=2000, metavar="TABLES")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    given = parser.parse_args()
    for part in given.parts or PARTS:
        print(
            f"{part}: {given.tables} tables, a standard error of at most "
            f"{math.sqrt(0.25 / given.tables):.3f}"
        )
        PARTS[part](given.tables)


if __name__ == "__main__":
    main()
