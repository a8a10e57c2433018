"""How fast are training batches made? Ours against a torch DataLoader over JPEG files, and the
second epoch, from the cache, against the first, that decodes.

    python benchmarks/input.py [--images 10000] [--rounds 5] [--whole]

Small images. Both make shuffled CIFAR-10 batches, flipped and pad-cropped, as float tensors, in two
processes of one thread: ours, two workers, from the decoded cache; a DataLoader with num_workers=2
from the same images as JPEG files, opened, decoded, cropped, flipped and converted one by one. Then
with RandAugment (rand-m9-mstd0.5-inc1) on both sides, timm's own on PIL images there. Building the
cache, which is done once for all runs, is not counted but printed.

Photographs. 1,000 of ImageNet, the shorter side 256 (the originals are larger, and decode slower),
cached at 256x256. The first epoch decodes them, in one process, and then does what the second does:
read shuffled batches of bytes, as a GPU is sent them; or make batches of floats from them, of whole
squares or as AugReg shows them (inception crops at 224, flipped), on the GPU if there is one. Then
RandAugment of the crops on a CPU's one thread, ours and timm's; and decoding alone, by one process
of the pool and by two. From files' own bytes (data.cache=encoded): AugReg's batches by one thread
that gathers and by two, DeiT's crops, and the evaluation of either form, on a CPU; images a second,
and milliseconds of CPU time an image.

All take turns, so that what else the machine does hits all; medians over the rounds.
ABLATE_DATA: folder that holds cifar10/*.parquet and imagenet_sample/*.parquet.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from step import as_a_worker, let_timm_load
from torch.utils.data import DataLoader, Dataset

from ablate.data import batches, cache, source
from ablate.data.augment import randaugment
from ablate.data.batches import Batches, evaluation_batches
from ablate.data.draws import Draws
from ablate.data.image_changes import ImageView, changes_of, in_blocks
from ablate.run.fingerprint import data_fingerprint
from ablate.run.sections import Augment, Data
from ablate.training.device import device_of

DATA = Path(os.environ.get("ABLATE_DATA", Path(__file__).parents[2] / "shared" / "data"))
BATCH, PAD, EPOCHS_GOAL = 128, 4, 5
PLAIN = Augment(flip=True, crop_pad=PAD)
RANDAUGMENT = Augment(flip=True, crop_pad=PAD, style="timm", randaug=2, randaug_magnitude=9)
SMALL = {"flip and crop": (PLAIN, 15), "RandAugment, too": (RANDAUGMENT, 4)}


class JpegFiles(Dataset):
    """What people do: a file an image, each augmented by itself."""

    def __init__(
        self,
        files: list[Path],
        labels: list[int],
        more: Callable[[Image.Image], Image.Image] | None = None,
    ) -> None:
        self.files, self.labels, self.more = files, labels, more

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[i]) as file:
            image = ImageOps.expand(file.convert("RGB"), PAD)
        left, top = random.randint(0, 2 * PAD), random.randint(0, 2 * PAD)
        image = image.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.more is not None:
            image = self.more(image)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels.float().div(255).sub(0.5).div(0.5), self.labels[i]


def stored(name: str, **settings: Any) -> Data:
    plain: dict[str, Any] = {
        "name": name,
        "source": "datasets",
        "path": str(DATA / name),
        "hub": None,
        "revision": None,
        "image": None,
        "label": None,
        "channels": 3,
        "train": "train",
        **settings,
    }
    return Data(**plain, fingerprint=data_fingerprint(plain))


def pil_randaugment(side: int) -> Callable[[Image.Image], Image.Image]:
    """timm's rand-m9-mstd0.5-inc1 of PIL images, filled with grey, bilinear as ours."""
    let_timm_load()
    from timm.data.auto_augment import rand_augment_transform

    settings = {"translate_const": int(0.45 * side), "img_mean": (128, 128, 128)}
    settings["interpolation"] = Image.Resampling.BILINEAR
    transform = rand_augment_transform("rand-m9-mstd0.5-inc1", settings)

    def one(image: Image.Image) -> Image.Image:
        try:
            return transform(image)
        except ValueError:  # today's Pillow refuses to posterize to 0 bits, as magnitude 10 does
            return image

    return one


def jpeg_files(data: Data, folder: Path, number: int) -> tuple[list[Path], list[int]]:
    """The first training images, their JPEG bytes as they are in the parquet file; the labels."""
    files, labels = [], []
    for i, example in zip(
        range(number), source.open_source(data).parts["train"].examples(), strict=False
    ):
        assert isinstance(example.image, bytes)
        files.append(folder / f"{i}.jpg")
        files[-1].write_bytes(example.image)
        labels.append(example.label)
    return files, labels


_batches: dict[str, Batches] = {}  # of a process that makes ours


def open_batches(data: Data, folder: Path) -> None:
    torch.set_num_threads(1)
    split = cache.prepare_cache(data, folder).split("train")
    for name, (spec, _) in SMALL.items():
        _batches[name] = Batches(split, BATCH, spec, Draws(0))


def make_epoch(name: str, number: int) -> int:
    """Images made."""
    made = _batches[name]
    epoch = range(number * made.steps_per_epoch, (number + 1) * made.steps_per_epoch)
    return sum(len(made.at(step)[1]) for step in epoch)


def small_images(number: int, rounds: int) -> None:
    data = stored("cifar10", size=32, classes=10, validation=5000, test="test")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        start = time.perf_counter()
        counts = cache.prepare_cache(data, folder).counts
        print(f"decoded {sum(counts.values()):,} images in {time.perf_counter() - start:.1f} s")
        files, labels = jpeg_files(data, folder, number)
        loaders = {
            name: DataLoader(
                JpegFiles(files, labels, pil_randaugment(32) if spec.randaug else None),
                BATCH,
                shuffle=True,
                drop_last=True,
                num_workers=2,
                persistent_workers=True,
            )
            for name, (spec, _) in SMALL.items()
        }
        rates: dict[str, list[float]] = {}
        spawning = multiprocessing.get_context("spawn")
        with spawning.Pool(2, open_batches, (data, folder)) as pool:

            def theirs(name: str, _: int) -> int:
                return sum(len(labels) for _, labels in loaders[name])

            def ours(name: str, turn: int) -> int:
                epochs = [(name, 2 * turn), (name, 2 * turn + 1)]
                return sum(pool.starmap(make_epoch, epochs, chunksize=1))

            for turn in range(rounds + 1):  # the first one warms the page cache
                for name in SMALL:
                    for side, epoch in (("DataLoader", theirs), ("ablate", ours)):
                        start = time.perf_counter()
                        images = epoch(name, turn)
                        if turn:
                            rate = images / (time.perf_counter() - start)
                            rates.setdefault(f"{side}, {name}", []).append(rate)
    show(rates)
    for name, (_, goal) in SMALL.items():
        pairs = zip(rates[f"ablate, {name}"], rates[f"DataLoader, {name}"], strict=True)
        print(f"{name}: ratio {statistics.median(a / b for a, b in pairs):.1f} (goal: {goal})")


def photographs(rounds: int) -> None:
    shares = {"validation": 20, "test": 20}
    data = stored("imagenet_sample", size=224, cache_size=256, classes=1000, **shares)
    device = device_of("cuda" if torch.cuda.is_available() else "cpu")
    augreg = Augment(flip=True, crop_pad=0, crop_area=0.05)
    views: dict[str, tuple[Augment, ImageView] | None] = {
        "bytes": None,
        "floats": (Augment(flip=False, crop_pad=0), ImageView(256)),
        "AugReg's": (augreg, ImageView(224)),
    }
    rates: dict[str, list[float]] = {"1 thread": [], "2 threads": []}
    ratios: dict[str, list[float]] = {name: [] for name in views}
    transform = pil_randaugment(224)
    for turn in range(rounds + 1):  # the first one warms the page cache
        with tempfile.TemporaryDirectory() as temporary:
            start = time.perf_counter()
            cached = cache.prepare_cache(data, Path(temporary), threads=1)
            decoding = (time.perf_counter() - start) / sum(cached.counts.values())
            split = cached.split("train").to(device)
            for name, view in views.items():
                start = time.perf_counter()
                if view is None:
                    rows = torch.randperm(len(split), device=device)
                    images = sum(len(split.take(part)) for part in rows.split(BATCH))
                else:
                    made = Batches(split, BATCH, view[0], Draws(0, device), view[1])
                    images = sum(len(made.at(step)[1]) for step in range(made.steps_per_epoch))
                if device.type == "cuda":
                    torch.cuda.synchronize()
                second = (time.perf_counter() - start) / images
                if turn:
                    ratios[name].append((decoding + second) / second)
                    rates.setdefault(name, []).append(1 / second)
            some = cached.split("train").take(torch.arange(BATCH))
            made = changes_of(some.aspects, augreg, ImageView(224), Draws(0), turn)
            crops = in_blocks(some.images, made)
            numbers = Draws(0).uniform("randaug", turn, 2 * randaugment.TIMM_LAYER, BATCH)
            pictures = [Image.fromarray(crop.numpy()) for crop in crops]
            start = time.perf_counter()
            layers = numbers.view(2, randaugment.TIMM_LAYER, BATCH)
            made = [randaugment.timm_layer(layer, (224, 224)) for layer in layers]
            randaugment.timm_randaugment(crops, made, 128)
            middle = time.perf_counter()
            for picture in pictures:
                transform(picture)
            if turn:
                spent = {"ablate": middle - start, "PIL": time.perf_counter() - middle}
                for side, seconds in spent.items():
                    rates.setdefault(f"{side}, RandAugment", []).append(BATCH / seconds)
        for threads, name in ((1, "1 thread"), (2, "2 threads")):
            with tempfile.TemporaryDirectory() as temporary:
                start = time.perf_counter()
                counts = cache.prepare_cache(data, Path(temporary), threads=threads).counts
                if turn:
                    rates[name].append(sum(counts.values()) / (time.perf_counter() - start))
    show(rates)
    ratio = statistics.median(rates["2 threads"]) / statistics.median(rates["1 thread"])
    print(f"decoding by two threads against one: ratio {ratio:.2f}")
    pairs = zip(rates["ablate, RandAugment"], rates["PIL, RandAugment"], strict=True)
    print(f"RandAugment at 224: ratio {statistics.median(a / b for a, b in pairs):.2f}")
    for name, seen in ratios.items():
        ratio = statistics.median(seen)
        print(f"{name}, second epoch against first: ratio {ratio:.1f} (goal: {EPOCHS_GOAL})")


def whole_pictures(rounds: int) -> None:
    """Files' own bytes beside squares: both forms take turns, and so do numbers of threads."""
    shares = {"validation": 20, "test": 20}
    squares = stored("imagenet_sample", size=224, cache_size=256, classes=1000, **shares)
    files = stored("imagenet_sample", size=224, cache="encoded", classes=1000, **shares)
    tf = Augment(flip=True, crop_pad=0, crop_area=0.05)
    timm = Augment(flip=True, crop_pad=0, crop_area=0.08, style="timm")
    with tempfile.TemporaryDirectory() as temporary:
        cached = {
            data.cache: cache.prepare_cache(data, Path(temporary)) for data in (squares, files)
        }
        for kept, found in cached.items():
            print(f"{kept}: {found.bytes / sum(found.counts.values()) / 1000:.0f} kB an image")
        splits = {kept: found.split("train") for kept, found in cached.items()}
        sets = {
            "AugReg's, squares": ("decoded", tf, None, 1),
            "AugReg's, files": ("encoded", tf, "tf", 1),
            "AugReg's, files, 2 threads": ("encoded", tf, "tf", 2),
            "DeiT's, squares": ("decoded", timm, None, 1),
            "DeiT's, files": ("encoded", timm, "timm", 1),
        }
        rates: dict[str, list[float]] = {}
        spent: dict[str, list[float]] = {}
        for turn in range(rounds + 1):  # the first one warms the page cache

            def timed(name: str, make: Callable[[], int], turn: int = turn) -> None:
                start, busy = time.perf_counter(), time.process_time()
                images = make()
                if turn:
                    rates.setdefault(name, []).append(images / (time.perf_counter() - start))
                    seconds = (time.process_time() - busy) / images
                    spent.setdefault(name, []).append(1000 * seconds)

            for name, (kept, spec, whole, threads) in sets.items():
                batches.gathering_threads = lambda device, n=threads: n
                made = Batches(
                    splits[kept], BATCH, spec, Draws(turn), ImageView(224, cut_style=whole)
                )
                timed(name, lambda m=made: sum(len(m.at(n)[1]) for n in range(m.steps_per_epoch)))
            batches.gathering_threads = lambda device: 1
            for name, kept, whole in (("squares", "decoded", None), ("files", "encoded", "tf")):
                shown = evaluation_batches(
                    splits[kept], BATCH, ImageView(224, crop=0.875, cut_style=whole)
                )
                timed(f"evaluation, {name}", lambda s=shown: sum(len(labels) for _, labels in s))
        for name, seen in rates.items():
            print(
                f"{name:28} {statistics.median(seen):>10,.0f} images/s "
                f"({min(seen):,.0f}-{max(seen):,.0f}), "
                f"{statistics.median(spent[name]):.2f} ms of CPU time an image"
            )
        for mine, other in (
            ("AugReg's, files", "AugReg's, squares"),
            ("AugReg's, files, 2 threads", "AugReg's, files"),
            ("DeiT's, files", "DeiT's, squares"),
            ("evaluation, files", "evaluation, squares"),
        ):
            ratio = statistics.median(a / b for a, b in zip(rates[mine], rates[other], strict=True))
            cpu = statistics.median(a / b for a, b in zip(spent[mine], spent[other], strict=True))
            print(f"{mine} against {other}: ratio {ratio:.2f}, of CPU time {cpu:.2f}")


def show(rates: dict[str, list[float]]) -> None:
    for name, seen in rates.items():
        spread = f"{min(seen):,.0f}-{max(seen):,.0f}"
        print(f"{name:28} {statistics.median(seen):>10,.0f} images/s ({spread})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000, help="JPEG files to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--whole", action="store_true", help="only squares beside files' bytes")
    asked = parser.parse_args()
    as_a_worker()
    if not asked.whole:
        small_images(asked.images, asked.rounds)
        photographs(asked.rounds)
    whole_pictures(asked.rounds)


if __name__ == "__main__":
    main()
