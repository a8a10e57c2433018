"""Four changes by two designs of as many runs: python benchmarks/designs.py [FOLDER]
Does a design detect what `plan` says?           python benchmarks/designs.py power [TABLES]

The first trains a factorial (16 cells x 3 seeds) and one change at a time (5 cells x 10 seeds: two
runs more) on mnist5k, about four minutes on two cores, and prints what each tells of each change:
the gain, its interval, the ratio of half-widths. The store stays in FOLDER.

The second trains nothing. Of tables of real runs and of drawn ones (tests/simulation.py) it prints
the main effect that `plan` says is detected, given the spread between seeds, and the share of
tables that find an effect as large: aim: .65 to .95. With 1,000 tables (default) about a minute.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from checks import HERE

import ablate

CHANGES = {
    "Dual PatchNorm": {"stem": "dpn"},
    "RMSNorm": {"norm": "rmsnorm"},
    "SwiGLU": {"model.act": "swiglu"},
    "registers": {"model.registers": 4},
}
KEYS = {"data": "mnist5k", "model": {"arch": "mu/7"}, "train": {"epochs": 6}}
DESIGNS = {"factorial": 3, "one_at_a_time": 10}
PARTS = {"factorial": "main effect", "one_at_a_time": "alone"}


def effects(store: Path, design: str) -> dict[str, Any]:
    """What the design tells of each change, by its name."""
    made = ablate.Sweep(
        store=store, name=design, changes=CHANGES, design=design, seeds=DESIGNS[design], **KEYS
    )
    blocks = made.train().table().data.blocks
    lines = [line for block in blocks if block.kind == "change" for line in block.lines]
    return {line.label: line for line in lines if line.part == PARTS[design]}


def show_power(tables: int) -> None:
    """Print the power at the gain that `plan` says, and at its upper end."""
    sys.path.insert(0, str(HERE / "tests"))
    from simulation import FORECAST_DESIGNS, forecast_power

    print(f"{'population':42}{'cells':>6}{'n':>3}{'detects':>9}{'power':>7}{'to':>7}{'power':>7}")
    for case in FORECAST_DESIGNS:
        for changes in (3, 4):
            for n in (3, 5):
                gain, power, upper, at_upper = forecast_power(case, changes, n, tables)
                print(
                    f"{case:42}{2**changes:6}{n:3}{gain:9.2f}{power:7.2f}{upper:7.2f}"
                    f"{at_upper:7.2f}",
                    flush=True,
                )


def main() -> None:
    if sys.argv[1:2] == ["power"]:
        show_power(int(sys.argv[2]) if len(sys.argv) > 2 else 1_000)
        return
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    found = {design: effects(folder, design) for design in DESIGNS}
    print(
        f"{'change':16}" + "".join(f"{design:>34}" for design in DESIGNS) + f"{'half-widths':>14}"
    )
    for name in CHANGES:
        gains = [found[design][name].gain for design in DESIGNS]
        halves = [(gain.high - gain.low) / 2 for gain in gains]
        texts = [f"{g.mean:+.2f} [{g.low:+.2f}, {g.high:+.2f}]" for g in gains]
        words = [found[design][name].verdict for design in DESIGNS]
        cells = "".join(f"{f'{t} {w}':>34}" for t, w in zip(texts, words, strict=True))
        print(f"{name:16}{cells}{halves[0] / halves[1]:14.2f}")


if __name__ == "__main__":
    main()
