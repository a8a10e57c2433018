"""What does it cost that rows are tried before they are planned? `ablate plan` in a fresh store,
with and without, in turns.

python benchmarks/rehearsal.py      about 3 minutes on one core
    aims: 10 variants of a small model, each with a class of the user's own, in under 10 s;
    figure1 at paper scale at most 1.05 times as long as without; a plan made before, 1.05 times

CPU time, user and system, of a command and all processes that it waited for: on a machine that has
other work, elapsed time says more of that. Medians of interleaved rounds.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path

from checks import COMMAND, HERE, cpu_s

ROUNDS = 5
WITHOUT = f"""
from ablate.running import rehearse
rehearse.rehearse_rows = lambda *_, **__: rehearse.Rehearsals({{}}, [])
{COMMAND}
"""
OWN = """
import torch
from torch import nn

class MeanNorm(nn.Module):
    mixes_tokens = False
    roles = {"weight": "scale"}

    def __init__(self, shape, *, eps: float = 1e-6, power: float = 1.0):
        super().__init__()
        self.eps, self.power = eps, power
        self.weight = nn.Parameter(torch.empty(shape.width))

    def forward(self, x):
        return self.weight * x / (x.abs().mean(-1, keepdim=True) ** self.power + self.eps)
"""
POWERS = ",".join(f"0.{n}" for n in range(1, 10))
TEN = ["norm=own:MeanNorm", f"norm.power=1,{POWERS}"]


def compare(name: str, place: Path, words: list[str], fresh: bool) -> None:
    took: dict[str, list[float]] = {WITHOUT: [], COMMAND: []}
    elapsed: list[float] = []
    for number in range(ROUNDS + (not fresh)):
        for code, times in took.items():
            store = place / f"runs-{code == COMMAND}"
            if fresh:
                shutil.rmtree(store, ignore_errors=True)
            start = time.perf_counter()
            spent = cpu_s(HERE, code, "plan", *words, "--store", str(store), folder=place)
            if fresh or number:  # else it was the round that makes what is not fresh
                times.append(spent)
                elapsed += [time.perf_counter() - start] * (code == COMMAND)
    before, after = (statistics.median(times) for times in took.values())
    print(
        f"{name}: {after:.2f} s of CPU, {before:.2f} s without: ratio {after / before:.2f} "
        f"(medians of {ROUNDS}; elapsed {statistics.median(elapsed):.1f} s)",
        flush=True,
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "own.py").write_text(OWN)
        compare("10 variants with a class of one's own", place, TEN, fresh=True)
        compare("the same, made before", place, TEN, fresh=False)
        compare("figure1 at paper scale", place, ["figure1"], fresh=True)
        compare("figure1 of digits, 20 rows", place, ["figure1", "--scale", "smoke"], fresh=True)


if __name__ == "__main__":
    main()
