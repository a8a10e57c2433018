"""What does a variant cost? A training step with each norm, block and stem, relative to the plain.

    python benchmarks/variants.py [name ...] [--width 192 --heads 3 --side 8 --batch 64]
                                  [--rounds 15] [--devices cpu cuda bf16]

Forward and backward. Norms and blocks: one block of ViT-Ti on the 8x8 patches of a 32 px image.
Stems: a ViT of two such blocks (the conv stem's, too, which saves one) on the images, and the
share that the stem alone takes of its step. float32 on the CPU, one thread, as a worker has it; on
a GPU where there is one, float32 (cuda) and bfloat16 (bf16). The variants take turns, so that what
else the machine does hits all; a ratio is the median over the rounds of those to the plain one of
the same round. Goals: norms of one token 1.1, DTN 1.5.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ablate.planning import compose
from ablate.run import choices
from ablate.run.build import build_run
from ablate.training import model

# As the launcher sets them, before a process starts: memory that was freed is kept.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "8589934592", "MALLOC_TRIM_THRESHOLD_": "34359738368"}
DEVICES = {"cpu": ("cpu", False), "cuda": ("cuda", False), "bf16": ("cuda", True)}
GOALS = {"dtn": 1.5, "dtn_var": 1.5, "dtn_pool": 1.5}
GOAL = 1.1  # of a norm that mixes no tokens
FORMS = {"groupnorm, token": "norm.scope=token", "scalenorm, scalar": "norm.gain=scalar"}
PATCH, BLOCKS = 4, 2


def vit(asked: argparse.Namespace, depth: int, *words: str) -> model.Host:
    """A ViT as these words choose it, small random weights, fitted on random images."""
    sizes = f"model.width={asked.width} model.heads={asked.heads} data.size={PATCH * asked.side}"
    shape = f"data=cifar10 model.arch=Ti/{PATCH} model.pool=gap model.depth={depth} {sizes}"
    with tempfile.TemporaryDirectory() as store:
        tree, _ = compose.resolve_run([*shape.split(), *words], Path(store))
    built = model.build(build_run(tree))
    generator = torch.Generator().manual_seed(0)
    for parameter in built.parameters():
        nn.init.normal_(parameter, 0, 0.05, generator=generator)
    built.fit([images(asked)])
    return built


def images(asked: argparse.Namespace) -> Tensor:
    """(B, H, W, C) in [-1, 1]."""
    return 2 * torch.rand(asked.batch, *[PATCH * asked.side] * 2, 3) - 1


def blocks(asked: argparse.Namespace, kind: str, names: list[str]) -> dict[str, nn.Module]:
    """{name: a block of this norm, or of this kind}."""
    words = {
        name: (f"{kind}={name.partition(',')[0]}", *FORMS.get(name, "").split()) for name in names
    }
    return {name: vit(asked, 1, *words[name]).blocks[0] for name in names}


def stems(asked: argparse.Namespace, names: list[str]) -> dict[str, nn.Module]:
    """{name: a ViT, name + " alone": its stem, with what that does behind the positions}."""
    modules: dict[str, nn.Module] = {}
    for name in names:
        whole = vit(asked, BLOCKS, f"stem={name}")
        if saved := BLOCKS - len(whole.blocks):
            whole = vit(asked, BLOCKS + saved, f"stem={name}")
        after = [getattr(whole.stem, late, nn.Identity()) for late in ("after_posemb", "after_cls")]
        modules |= {name: whole, f"{name} alone": nn.Sequential(whole.stem, *after)}
    return modules


def measure(
    modules: Mapping[str, nn.Module], x: Tensor, bfloat16: bool, rounds: int
) -> dict[str, list[float]]:
    """{name: seconds of a step}, one a round."""
    seconds: dict[str, list[float]] = {name: [] for name in modules}
    kind = x.device.type
    steps = 1 if kind == "cpu" else 20  # a GPU's queue is filled before it is waited for
    for turn in range(-3, rounds):
        for name, module in modules.items():
            start = time.perf_counter()
            for _ in range(steps):
                module.zero_grad()
                with torch.autocast(kind, torch.bfloat16, enabled=bfloat16):
                    y = module(x)
                y.square().mean().backward()
            if kind == "cuda":
                torch.cuda.synchronize()
            if turn >= 0:
                seconds[name].append((time.perf_counter() - start) / steps)
    return seconds


def ratio(mine: list[float], theirs: list[float]) -> float:
    """The median of those of the same round."""
    return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag, default in (("width", 192), ("heads", 3), ("side", 8), ("batch", 64), ("rounds", 15)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    there = list(DEVICES) if torch.cuda.is_available() else ["cpu"]
    parser.add_argument("--devices", nargs="+", choices=DEVICES, default=there)
    parser.add_argument("names", nargs="*", metavar="name", help="a variant, or norm, block, stem")
    asked = parser.parse_args()
    known = {"norm": [*choices.NORMS, *FORMS], "block": [*choices.BLOCKS], "stem": [*choices.STEMS]}
    for word in asked.names:
        if word not in [*known, *(name for names in known.values() for name in names)]:
            parser.error(f"{word}: no norm, block or stem of this name")
    if not os.environ.keys() >= MALLOC.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **MALLOC})
    torch.set_num_threads(1)
    for kind, all_names in known.items():
        plain = choices.DEFAULTS[kind]
        wanted = [n for n in all_names if not asked.names or {kind, n} & {*asked.names}]
        if not wanted:
            continue
        names = [plain, *(n for n in wanted if n != plain)]
        if kind == "stem":
            what, modules, x = f"ViT of {BLOCKS} blocks", stems(asked, names), images(asked)
        else:
            what, modules = "block", blocks(asked, kind, names)
            x = torch.randn(asked.batch, asked.side**2, asked.width)
        for device in asked.devices:
            place, bfloat16 = DEVICES[device]
            for module in modules.values():
                module.to(place)
            seconds = measure(modules, x.to(place), bfloat16, asked.rounds)
            print(
                f"{device}: a step of a {what}, width {asked.width}, {asked.side}x{asked.side} "
                f"tokens, batch {asked.batch}, with {kind}={plain}: "
                f"{1e3 * statistics.median(seconds[plain]):.1f} ms"
            )
            for name in names:
                line = f"  {name:18} {ratio(seconds[name], seconds[plain]):.2f}"
                if kind == "stem":
                    share = ratio(seconds[f"{name} alone"], seconds[name])
                    line += f"  (the stem: {100 * share:.0f} % of it)"
                mixing = any(getattr(m, "mixes_tokens", False) for m in modules[name].modules())
                goal = GOALS.get(name, None if mixing else GOAL) if kind == "norm" else None
                print(line + (f"  (goal: {goal})" if goal else ""))


if __name__ == "__main__":
    main()
