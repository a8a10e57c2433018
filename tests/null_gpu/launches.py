"""Counts what a step of every part launches on a null GPU, how often it waits, and its peak of
memory.

    build/null-gpu/null python tests/null_gpu/launches.py             # print the page
    build/null-gpu/null python tests/null_gpu/launches.py --reprint   # write it to its file
    build/null-gpu/null python tests/null_gpu/launches.py recipe=cifar data=cifar10 model.arch=Ti/4

The last command prints the counts of one run. The page is benchmarks/results/launches.txt; `make
null-gpu` makes the command `null` (build.py).

Used by test_launches.py, which compares the page with its file, and by step_peaks.py.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import counters
import torch

from ablate.data.splits import Split
from ablate.planning.compose import resolve_run
from ablate.run.build import build_run
from ablate.run.choices import BLOCKS, NORMS, OPTIMIZERS, PROBES, STEMS
from ablate.run.run import Run
from ablate.training.calibrate import random_split
from ablate.training.device import device_of
from ablate.training.numerics import choose
from ablate.training.training import Training

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PAGE = REPOSITORY / "benchmarks" / "results" / "launches.txt"
WARM, STEPS = 3, 10  # steps before those that are counted, and these
SMALL = "recipe=quick data=digits data.channels=3 data.size=32 train.batch=64 model.arch=mu/4 "
SMALL += "model.depth=2 train.precision=bf16"
AVERAGED = f"{SMALL} model.pool=gap"  # some stems and norms have no class token
CHANGES = (
    *("train.precision=fp32", "train.precision=tf32", "train.precision=fp64"),
    *("train.deterministic=true", "train.micro_batch=16", "train.ema=0.99", "optim.clip=null"),
    *("model.dropout=0.1", "model.drop_path=0.1", "model.registers=4", "model.posemb=sincos2d"),
    "model.posemb=rope2d",
    *("augment.three=true", "augment.mixup=0.2", "model.arch=mlp/3x100 model.depth=3"),
)
# Recipes that have rates for some archs alone.
OF_ARCHS = {"augreg": "S/16", "deit3": "S/16", "i21k": "Ti/16"}
OTHER_DATA = {"vtab": "data=vtab_cifar100 data.size=32"}
POOLS = ("tok", "gap", "map")
TEXTS = "text.arch=mu text.depth=2 text.tokens=words text.vocab=32"
EVALUATION = "an evaluation of two batches"  # segmentation reads what it computes, and can't
PARENT = "from.data=mnist5k from.train.epochs=10"
WHOLE = "train.micro_batch=null"
CIFAR = f"recipe=cifar data=cifar10 {WHOLE}"
IMAGENET = f"data=imagenet1k {WHOLE}"

HEADER = """\
A step of every part on a null GPU (tests/null_gpu): kernels, products of matrices, waits for the
GPU, copies from or to the host, and the peak of memory beside the images, from before the first
step on. torch {torch}, as for an H100; the mean of {steps} steps after {warm}. An evaluation is
counted as a whole, without a peak: its images come from a thread, at whose pace memory is freed.

All of it is exact, because torch itself launches the kernels and allocates the memory. Other on a
GPU are convolutions and batch norms, which take cuDNN's kernels and workspaces there and torch's
own here. Dropout's Triton kernel is counted as the one launch that it is, although it can't run
here. A product is one call of cuBLAS, which may launch more than one kernel.

The waits of adafactor are torch's: its optimiser reads two norms of each parameter on the host
(torch/optim/_adafactor.py). An evaluation waits for the predictions of each batch.

An H100 (gpu.txt) has the same peaks: 3.1 GB for Ti/4, 16.5 GB for S/16 dtn. Others are larger
there by what the case before had left, since memory was not freed between cases.

Written by `build/null-gpu/null python tests/null_gpu/launches.py --reprint`; `make null-gpu`
compares it.
"""


def sections() -> dict[str, dict[str, str]]:
    """Return the words of every run that is measured, by its name, in sections."""
    recipes = {}
    for path in sorted((REPOSITORY / "conf" / "recipe").glob("*.yaml")):
        recipe = path.stem
        if recipe in ("lit", "segment"):  # among tasks
            continue
        words = f"recipe={recipe} data=cifar10 train.batch=64 model.depth=2 {WHOLE}"
        arch = OF_ARCHS.get(recipe, "mu/4")
        recipes[recipe] = changed(words, f"model.arch={arch} {OTHER_DATA.get(recipe, '')}")
    contrastive = changed(SMALL, f"recipe=lit task=contrastive {WHOLE} {TEXTS}")
    segment = f"recipe=segment data=ade20k data.size=32 model.arch=mu/4 {WHOLE}"
    return {
        "a step": {"plain": SMALL, **{words: changed(SMALL, words) for words in CHANGES}},
        "norm": {name: changed(AVERAGED, f"norm={name}") for name in NORMS},
        "stem": {name: changed(AVERAGED, f"stem={name}") for name in STEMS},
        "block": {name: changed(AVERAGED, f"block={name}") for name in BLOCKS},
        "model.pool": {pool: changed(SMALL, f"model.pool={pool}") for pool in POOLS},
        "optim.name": {name: changed(SMALL, f"optim.name={name}") for name in OPTIMIZERS},
        "probe": {name: changed(SMALL, f"probe=[{name}]") for name in PROBES},
        "recipe": recipes,
        "task": {"contrastive": contrastive, "segment": segment},
        EVALUATION: {
            "classify": changed(SMALL, "eval.batch=32"),
            "fewshot": changed(SMALL, f"task=fewshot eval.batch=32 {PARENT}"),
            "contrastive": changed(contrastive, "eval.batch=32"),
        },
        "as papers have them": {
            "Ti/4, batch 512": f"{CIFAR} model.arch=Ti/4",
            "S/4, batch 512": f"{CIFAR} model.arch=S/4",
            "S/16 augreg, batch 512": f"recipe=augreg {IMAGENET} model.arch=S/16 train.batch=512",
            "S/16 deit, batch 512": f"recipe=deit {IMAGENET} model.arch=S/16 train.batch=512",
            "B/16 augreg, batch 256": f"recipe=augreg {IMAGENET} model.arch=B/16 train.batch=256",
            "S/16 dtn, batch 256": f"recipe=dtn {IMAGENET} model.arch=S/16 train.batch=256",
        },
    }


def changed(words: str, changes: str) -> str:
    """Return the words of a run with some keys changed."""
    settings = dict(word.split("=", 1) for word in f"{words} {changes}".split())
    return " ".join(f"{key}={value}" for key, value in settings.items())


@dataclass(frozen=True)
class StepCounts:
    """The counts of a step, means of several. `copies`: from the host and to it. `peak_bytes`: None
    of an evaluation."""

    kernels: float
    products: float
    waits: float
    copies: float
    peak_bytes: int | None

    def __str__(self) -> str:
        figures = f"{self.kernels:6g} kernels {self.products:4g} products {self.waits:3g} waits "
        peak = "" if self.peak_bytes is None else f" {self.peak_bytes / 1e6:9,.1f} MB"
        return f"{figures}{self.copies:3g} copies{peak}"


def measure(words: str) -> StepCounts:
    """Train the run of these words for some steps, and return the counts of one. The process must
    not have used the GPU before."""
    training, image_bytes = begin(words, device_of("cuda"))
    for _ in range(WARM):
        training.step()
    torch.cuda.synchronize()
    counters.reset()
    for _ in range(STEPS):
        training.step()
    return counted(STEPS, image_bytes)


def measure_evaluation(words: str) -> StepCounts:
    """Evaluate two batches of the run of these words, and return the counts. The process must not
    have used the GPU before."""
    training, _ = begin(words, torch.device("cpu"))
    split = training.train.take(slice(2 * training.run.eval.batch))
    training.evaluate(split)
    torch.cuda.synchronize()
    counters.reset()
    training.evaluate(split)
    return replace(counted(1), peak_bytes=None)


def begin(words: str, place: torch.device) -> tuple[Training, int]:
    """Begin to train the run of these words, as a worker would. `place`: where its images are; the
    bytes that they take of the GPU's memory are returned, too."""
    torch.set_num_threads(1)
    torch.manual_seed(0)  # of the labels, of which shots are drawn
    device = device_of("cuda")
    run = build_run(resolve_run(words.split(), Path("runs"))[0])
    choose(run, device).use()
    split = images(run, place)
    image_bytes = torch.cuda.memory_allocated()
    training = Training(run, split, device)
    training.micro_batch = training.micro_batch or run.train.batch
    return training, image_bytes


def counted(times: int, image_bytes: int = 0) -> StepCounts:
    """Return the counts since they were reset, as those of one of so many times."""
    numbers = counters.read()
    return StepCounts(
        kernels=numbers["launches"] / times,
        products=numbers["products"] / times,
        waits=counters.waits(numbers) / times,
        copies=counters.host_copies(numbers) / times,
        peak_bytes=torch.cuda.max_memory_allocated() - image_bytes,
    )


def images(run: Run, place: torch.device) -> Split:
    """Return images for all steps without a second epoch, whose order would be copied."""
    split = random_split(run.data, run.train.batch * (WARM + STEPS + 1), place)
    if run.text is None:
        return split
    texts = tuple(f"a picture of number {number}" for number in range(run.data.classes))
    return replace(split, names=texts)


def lines() -> Iterator[str]:
    """Yield the page's lines below its header. Each run has a process of its own, as its memory
    depends on what was there before."""
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        pending = {}
        for title, section in sections().items():
            function = measure_evaluation if title == EVALUATION else measure
            pending[title] = [pool.apply_async(function, (words,)) for words in section.values()]
        for title, section in sections().items():
            yield f"\n== {title}"
            for name, counts in zip(section, pending[title], strict=True):
                yield f"{name:26}{counts.get()}"


def page() -> str:
    """Return the whole page."""
    header = HEADER.format(torch=torch.__version__, steps=STEPS, warm=WARM)
    return header + "\n".join(lines()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="of one run")
    parser.add_argument("--reprint", action="store_true", help="write the page to its file")
    arguments = parser.parse_args()
    if arguments.words:
        print(measure(" ".join(arguments.words)))
    elif arguments.reprint:
        PAGE.write_text(page())
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
