"""How many runs an hour? One `ablate sweep` from the shell against what people do today.

    python benchmarks/runs.py [--steps 200] [--seeds 2] [--rounds 2] [--precision bf16]
    python benchmarks/runs.py --memory
    python benchmarks/runs.py --against REV [--steps 200] [--seeds 2] [--rounds 5]

The same trainings on two cores: a ViT of width 64 and 4 blocks, its pool a class token or the mean
over tokens, its GELU the exact one (timm's own), times the seeds; CIFAR-10, batch 128, AdamW,
warm-up and cosine, clipping, flip and pad-crop; then the 10,000 test images. Theirs: a fresh
process a training, timm's VisionTransformer from our initial weights in float32, JPEG files through
DataLoaders; (a) one after another, two threads and two loading workers, (b) two at once with one of
each. Ours: the command until its table is printed, in a fresh store whose data is decoded; in
bfloat16 where the CPU has instructions for it, else in float32 as theirs; it measures validation
images, too.

They take turns, each round with new seeds; a ratio is the median over the rounds. Accuracy, a mean
over seeds [95 % interval of Student's t] of the mean of a seed's trainings, should be the same for
all. On a shared machine four processes get more than two: there the ratio of CPU times says more.
Theirs take seconds to load torch and timm: few steps favour us. Goals: 3 times (a), 2 times (b).

--memory: the peak of a worker that trains a Ti/4 on CIFAR-10 as recipe=cifar does, two steps of
them, in either precision. Goal: less than 2 GB. The images that an epoch maps, 0.14 GB shared by
all workers, are not all in it.

--against: our sweep by this tree and by that of a revision, in turns; of clock and CPU times the
medians over the rounds, and the median of the rounds' ratios.
ABLATE_DATA: folder that holds cifar10/*.parquet.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from checks import COMMAND, cpu_s, trees_of
from input import DATA, JpegFiles
from PIL import Image
from step import has_bf16, timm_vit
from torch.utils.data import DataLoader

from ablate.data import source
from ablate.planning.compose import resolve_run
from ablate.run import sections
from ablate.run.build import build_run
from ablate.store.store import Store
from ablate.training.model import build
from ablate.training.model.export import to_timm
from ablate.training.optim import learning_rate, lengths

DATASET = f"data.path={DATA / 'cifar10'}"
WORDS = f"""data=cifar10 {DATASET} recipe=quick model.arch=mu/4 model.width=64 model.depth=4
    model.heads=2 model.rep=false model.gelu=erf optim.lr=1e-3 optim.wd=0.05 optim.b2=0.999
    train.batch=128 train.label_smoothing=0 augment.flip=true augment.crop_pad=4
    eval.every=1000""".split()
SHORT = f"""data=cifar10 {DATASET} data.validation=1000 data.test='test[:1000]' recipe=cifar
    model.arch=Ti/4 train.steps=2 seeds=1""".split()
POOLS = ("tok", "gap")
CORES = 2
OURS = "ablate"
MOST_GB = 2
GOALS = {"(a) timm, one after another": 3, "(b) timm, two at once": 2}


class TestFiles(JpegFiles):
    """A file an image, as it is."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[i]) as file:
            pixels = torch.from_numpy(np.array(file.convert("RGB"))).permute(2, 0, 1).contiguous()
        return pixels.float().div(255).sub(0.5).div(0.5), self.labels[i]


def write_images(data: sections.Data, folder: Path) -> None:
    """Our training and test images, their JPEG bytes as they are in the parquet files."""
    datasets = []
    for split, kind in (("train", JpegFiles), ("test", TestFiles)):
        stored, rows = source.cut(data, source.rows(data))[split]
        examples = [*source.open_source(data).parts[stored].examples()]
        files = [folder / f"{split}{row}.jpg" for row in rows]
        for file, row in zip(files, rows, strict=True):
            file.write_bytes(examples[row].image)
        datasets.append(kind(files, [examples[row].label for row in rows]))
    (folder / "datasets").write_bytes(pickle.dumps(datasets))


def write_trainings(words: list[str], seeds: range, folder: Path) -> dict[str, Path]:
    """{run id: what a process of theirs reads}: the run and its initial weights in timm's names."""
    trainings = {}
    for pool, seed in itertools.product(POOLS, seeds):
        tree, run_id = resolve_run([*words, f"model.pool={pool}", f"seed={seed}"], folder)
        run = build_run(tree)
        path = trainings[run_id] = folder / f"{run_id}.pt"
        torch.save({"run": tree, "state": to_timm(run, build(run).state_dict())}, path)
    return trainings


def train(training: Path, threads: int) -> float:
    """One training as people write it, in this process. Returns its test accuracy."""
    torch.set_num_threads(threads)
    start = torch.load(training)
    run = build_run(start["run"])
    torch.manual_seed(run.seed)
    model = timm_vit(run)  # lets timm be imported
    from timm.optim import create_optimizer_v2

    model.load_state_dict(start["state"])
    images, tested = pickle.loads((training.parent / "datasets").read_bytes())
    batch, optim = run.train.batch, run.optim
    shuffled = DataLoader(images, batch, shuffle=True, drop_last=True, num_workers=threads)
    betas = optim.b1, optim.b2
    optimizer = create_optimizer_v2(model, "adamw", optim.lr, optim.wd, betas=betas)
    steps = lengths(optim, run.train, len(shuffled))
    batches = (pair for _ in itertools.count() for pair in shuffled)
    for step, (images, labels) in enumerate(itertools.islice(batches, steps.total)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(optim, step, steps)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
        optimizer.step()
    batches.close()
    model.eval()
    with torch.inference_mode():
        shown = DataLoader(tested, run.eval.batch, num_workers=threads)
        right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in shown)
    return right / len(tested)


def theirs(trainings: dict[str, Path], at_once: int) -> list[float]:
    """Test accuracies of the trainings, so many processes at once."""
    command = [sys.executable, __file__, "--threads", str(CORES // at_once), "--train"]
    process = partial(subprocess.run, check=True, stdout=subprocess.PIPE)
    with ThreadPoolExecutor(at_once) as pool:
        ended = pool.map(process, ([*command, str(path)] for path in trainings.values()))
        return [float(done.stdout) for done in ended]


def shell(words: list[str], store: Path) -> None:
    """`ablate` with these words."""
    command = [Path(sys.executable).with_name("ablate"), *words, "--store", store]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def ours(trainings: dict[str, Path], words: list[str], seeds: range, store: Store) -> list[float]:
    """Test accuracies of the same runs, by one command."""
    shell(["sweep", *words, f"model.pool={','.join(POOLS)}", f"seeds={[*seeds]}"], store.root)
    return [store.rundir(run_id).read_result()["test"]["top1"] for run_id in trainings]


def memory() -> None:
    """Prints the peak of each precision's workers."""
    for precision in ("bf16", "fp32"):
        with tempfile.TemporaryDirectory() as temporary:
            store = Store(Path(temporary))
            words = [*SHORT, f"train.precision={precision}"]
            shell(["sweep", *words, f"model.pool={','.join(POOLS)}"], store.root)
            results = [
                json.loads(file.read_text()) for file in store.root.glob("runs/*/result.json")
            ]
        peak = max(result["peak_bytes"] for result in results) / 1e9
        parts = results[0]["micro_batch"]
        print(f"{precision}: peak {peak:.2f} GB, {parts} images at once (goal: {MOST_GB} GB)")


def against(revision: str, words: list[str], seeds: int, rounds: int) -> None:
    """Prints what the same sweep takes by either tree."""
    took: dict[str, list[tuple[float, float]]] = defaultdict(list)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        for turn, (name, tree) in itertools.product(
            range(rounds + 1), trees_of(revision, place).items()
        ):
            store = place / f"{name}-{turn}"
            store.mkdir()
            (place / f"{name}-cache").mkdir(exist_ok=True)
            (store / "cache").symlink_to(place / f"{name}-cache")
            sweep = [*words, f"model.pool={','.join(POOLS)}"]
            sweep += [f"seeds={[*range(turn * seeds, (turn + 1) * seeds)]}", "--store", str(store)]
            start = time.perf_counter()
            busy = cpu_s(tree, COMMAND, "sweep", *sweep, folder=place)
            if turn:  # the first one decodes
                took[name].append((time.perf_counter() - start, busy))
    print(f"{len(POOLS) * seeds} runs a sweep, {rounds} rounds, load {before:.1f} before, "
          f"{os.getloadavg()[0]:.1f} after")  # fmt: skip
    for name, times in took.items():
        wall, busy = np.median(times, axis=0)
        print(f"{name}: {wall:.1f} s, {busy:.1f} s of CPU")
    wall, busy = np.median(np.divide(took["after"], took["before"]), axis=0)
    print(f"after / before {revision}: {wall:.2f}, of CPU {busy:.2f}")


def clocks() -> np.ndarray:
    """(2,): the wall's seconds, and the CPU's of all processes that this one has waited for."""
    return np.array([time.perf_counter(), sum(os.times()[2:4])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag, default in (("steps", 200), ("seeds", 2), ("rounds", 2), ("threads", 1)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    parser.add_argument("--train", type=Path, help="train this, with --threads: one of theirs")
    parser.add_argument("--precision", default="bf16" if has_bf16() else "fp32", help="ours")
    parser.add_argument("--memory", action="store_true", help="the peak of a worker, nothing else")
    parser.add_argument("--against", metavar="REV", help="our sweep by that tree and by this one")
    asked = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if asked.train:
        print(train(asked.train, asked.threads))
        return
    if asked.memory:
        memory()
        return
    from ablate.analysis.stats import mean_interval  # scipy, which their processes don't need

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    long = [f"train.steps={asked.steps}", f"optim.warmup_steps={asked.steps // 10}"]
    words = [*WORDS, *long, f"train.precision={asked.precision}"]
    if asked.against:
        against(asked.against, words, asked.seeds, asked.rounds)
        return
    before = os.getloadavg()[0]
    seconds, accuracies = defaultdict(list), defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        start = clocks()
        shell(["data", "prepare", "cifar10", DATASET], folder)
        print(f"decoded, once for all sweeps, in {(clocks() - start)[0]:.1f} s")
        write_images(build_run(resolve_run(words, folder)[0]).data, folder)
        for turn in range(asked.rounds):
            seeds = range(turn * asked.seeds, (turn + 1) * asked.seeds)
            trainings = write_trainings(words, seeds, folder)
            store = Store(folder / f"round{turn}")
            store.root.mkdir()
            store.cache.symlink_to(Store(folder).cache)
            sides = {name: partial(theirs, trainings, i) for i, name in enumerate(GOALS, 1)}
            sides[OURS] = partial(ours, trainings, words, seeds, store)
            for name, side in sides.items():
                start = clocks()
                top1 = side()
                seconds[name].append(clocks() - start)
                print(f"round {turn}: {name}, {seconds[name][-1][0]:.0f} s", flush=True)
                accuracies[name] += (100 * np.reshape(top1, (len(POOLS), -1)).mean(0)).tolist()
    print(
        f"{len(trainings)} runs of {asked.steps} steps on {CORES} cores, {asked.rounds} rounds,"
        f" ours in {asked.precision}; load before {before:.1f}, after {os.getloadavg()[0]:.1f}"
    )
    for name, taken in seconds.items():
        wall, busy = np.transpose(taken)
        rates, top1 = 3600 * len(trainings) / wall, mean_interval(accuracies[name])
        interval = "" if top1.low is None else f" [{top1.low:.1f}, {top1.high:.1f}]"
        print(
            f"{name:27} {np.median(rates):>4.0f} runs an hour ({min(rates):.0f}-{max(rates):.0f}) "
            f"on {sum(busy) / sum(wall):.1f} cores, accuracy {top1.mean:.1f} %{interval}"
        )
    for name, goal in GOALS.items():
        by_wall, by_cpu = np.median(np.divide(seconds[name], seconds[OURS]), axis=0)
        print(f"ratio to {name}: {by_wall:.1f} (goal: {goal}), of CPU times {by_cpu:.1f}")


if __name__ == "__main__":
    main()
