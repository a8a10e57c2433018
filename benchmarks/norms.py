"""What does a norm cost? A training step of a ViT block with each, relative to LayerNorm's.

    python benchmarks/norms.py [--width 192 --heads 3 --side 8 --batch 64] [--rounds 15] [name ...]

One pre-norm block of ViT-Ti on the 8x8 patches of a 32 px image: forward and backward, float32. On
the CPU one thread, as a worker has it; on a GPU where there is one, also under bfloat16. The norms
take turns, so that what else the machine does hits all; a ratio is the median over the rounds of
those to the LayerNorm of the same round. Goals: norms of one token 1.1, DTN 1.5.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from functools import partial

import torch

from ablate import choices
from ablate.model import norm as norms
from ablate.model.block import Block, Layer

# As the launcher sets them, before a process starts: memory that was freed is kept.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "8589934592", "MALLOC_TRIM_THRESHOLD_": "34359738368"}
GOALS = {"dtn": 1.5, "dtn_var": 1.5, "dtn_pool": 1.5}
GOAL = 1.1  # of a norm that mixes no tokens


def block(name: str, settings: dict[str, object], asked: argparse.Namespace) -> Block:
    """A block with this norm before each sublayer, small random weights."""
    shape = norms.Shape(asked.width, asked.heads, (asked.side, asked.side), cls=0)
    cls = getattr(norms, choices.NORMS[name].path.partition(":")[2])
    built = Block(
        Layer(
            shape, asked.width // asked.heads, 4 * asked.width, 0.0, 0.0, partial(cls, **settings)
        )
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, 0, 0.05, generator=generator)
    return built


def measure(
    blocks: dict[str, Block], device: torch.device, bfloat16: bool, asked: argparse.Namespace
) -> dict[str, list[float]]:
    """{name: seconds of a step}, one a round."""
    x = torch.randn(asked.batch, asked.side**2, asked.width, device=device)
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    steps = 1 if device.type == "cpu" else 20  # a GPU's queue is filled before it is waited for
    for turn in range(-3, asked.rounds):
        for name, built in blocks.items():
            start = time.perf_counter()
            for _ in range(steps):
                built.zero_grad()
                with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                    y = built(x)
                y.square().mean().backward()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 0:
                seconds[name].append((time.perf_counter() - start) / steps)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag, default in (("width", 192), ("heads", 3), ("side", 8), ("batch", 64), ("rounds", 15)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    parser.add_argument("names", nargs="*", metavar="name", help="norms to time; none: all")
    asked = parser.parse_args()
    if not os.environ.keys() >= MALLOC.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **MALLOC})
    torch.set_num_threads(1)
    wanted = {name: (name, {}) for name in choices.NORMS}
    wanted["groupnorm, token"] = ("groupnorm", {"scope": "token"})
    wanted["scalenorm, scalar"] = ("scalenorm", {"gain": "scalar"})
    wanted = {
        k: v for k, v in wanted.items() if not asked.names or k in ["layernorm", *asked.names]
    }
    devices = [("cpu", False)]
    if torch.cuda.is_available():
        devices += [("cuda", False), ("cuda", True)]
    for kind, bfloat16 in devices:
        device = torch.device(kind)
        blocks = {name: block(*chosen, asked).to(device) for name, chosen in wanted.items()}
        seconds = measure(blocks, device, bfloat16, asked)
        baseline = seconds["layernorm"]
        print(
            f"{kind}{' bfloat16' * bfloat16}: a step of a block of width {asked.width}, "
            f"{asked.side}x{asked.side} tokens, batch {asked.batch}, with layernorm: "
            f"{1e3 * statistics.median(baseline):.1f} ms"
        )
        for name, seen in seconds.items():
            ratios = [mine / theirs for mine, theirs in zip(seen, baseline, strict=True)]
            of_token = not any(getattr(m, "mixes_tokens", False) for m in blocks[name].modules())
            goal = GOALS.get(name, GOAL if of_token else None)
            aim = f"  (goal: {goal})" if goal else ""
            print(f"  {name:18} {statistics.median(ratios):.2f}{aim}")


if __name__ == "__main__":
    main()
