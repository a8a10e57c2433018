"""How fast are training batches made? Ours against a torch DataLoader over JPEG files, and the
second epoch, from the cache, against the first, that decodes.

    python benchmarks/input.py [--images 10000] [--rounds 5]

Small images. Both make shuffled CIFAR-10 batches, flipped and pad-cropped, as float tensors, on one
thread in one process: ours from the decoded cache, the DataLoader (num_workers=0) from the same
images as JPEG files, opened, decoded, cropped, flipped and converted one by one. They take turns,
so that what else the machine does hits both; medians over the rounds. Building the cache, which is
done once for all runs, is not counted but printed.

Photographs. 1,000 of ImageNet, the shorter side 256 (the originals are larger, and decode slower),
cached at 256x256. The first epoch decodes them, in one process, and then does what the second does:
read shuffled batches of bytes, as a GPU is sent them; or make batches of floats from them, of whole
squares or as AugReg shows them (inception crops at 224, flipped), on the GPU if there is one. Then
decoding alone, by one process of the pool and by two. All take turns.

ABLATE_DATA: folder that holds cifar10/*.parquet and imagenet_sample/*.parquet.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset

from ablate.data import cache, source
from ablate.data.batches import Batches, View
from ablate.fingerprint import fingerprint
from ablate.keyed import Draws
from ablate.spec import Augment, Data

DATA = Path(os.environ.get("ABLATE_DATA", Path(__file__).parents[2] / "shared" / "data"))
BATCH, PAD, GOAL, EPOCHS_GOAL = 128, 4, 30, 5


class JpegFiles(Dataset):
    """What people do: a file an image, each augmented by itself."""

    def __init__(self, files: list[Path], labels: list[int]) -> None:
        self.files, self.labels = files, labels

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[i]) as file:
            image = ImageOps.expand(file.convert("RGB"), PAD)
        left, top = random.randint(0, 2 * PAD), random.randint(0, 2 * PAD)
        image = image.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
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
    return Data(**plain, fingerprint=fingerprint(plain))


def jpeg_files(data: Data, folder: Path, number: int) -> JpegFiles:
    """The first training images, their JPEG bytes as they are in the parquet file."""
    files, labels = [], []
    for i, example in zip(
        range(number), source.open_source(data).parts["train"].examples(), strict=False
    ):
        assert isinstance(example.image, bytes)
        files.append(folder / f"{i}.jpg")
        files[-1].write_bytes(example.image)
        labels.append(example.label)
    return JpegFiles(files, labels)


def small_images(number: int, rounds: int) -> None:
    data = stored("cifar10", size=32, classes=10, validation=5000, test="test")
    with tempfile.TemporaryDirectory() as temporary:
        start = time.perf_counter()
        cached = cache.prepare(data, Path(temporary))
        print(
            f"decoded {sum(cached.counts.values()):,} images in {time.perf_counter() - start:.1f} s"
        )
        files = jpeg_files(data, Path(temporary), number)
        loader = DataLoader(files, BATCH, shuffle=True, drop_last=True, num_workers=0)
        batches = Batches(cached.split("train"), BATCH, Augment(flip=True, crop_pad=PAD), Draws(0))

        def theirs(_: int) -> int:
            return sum(len(labels) for _, labels in loader)

        def ours(turn: int) -> int:
            epoch = range(turn * batches.steps_per_epoch, (turn + 1) * batches.steps_per_epoch)
            return sum(len(batches.at(step)[1]) for step in epoch)

        rates: dict[str, list[float]] = {"DataLoader": [], "ablate": []}
        for turn in range(rounds + 1):  # the first one warms the page cache
            for name, epoch in (("DataLoader", theirs), ("ablate", ours)):
                start = time.perf_counter()
                images = epoch(turn)
                if turn:
                    rates[name].append(images / (time.perf_counter() - start))
    show(rates)
    ratio = statistics.median(rates["ablate"]) / statistics.median(rates["DataLoader"])
    print(f"ratio {ratio:.1f} (goal: {GOAL})")


def photographs(rounds: int) -> None:
    shares = {"validation": 20, "test": 20}
    data = stored("imagenet_sample", size=224, cache_size=256, classes=1000, **shares)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    views: dict[str, tuple[Augment, View] | None] = {
        "bytes": None,
        "floats": (Augment(flip=False, crop_pad=0), View(256)),
        "AugReg's": (Augment(flip=True, crop_pad=0, crop_area=0.05), View(224)),
    }
    rates: dict[str, list[float]] = {"1 process": [], "2 processes": []}
    ratios: dict[str, list[float]] = {name: [] for name in views}
    for turn in range(rounds + 1):  # the first one warms the page cache
        with tempfile.TemporaryDirectory() as temporary:
            start = time.perf_counter()
            cached = cache.prepare(data, Path(temporary), processes=0)
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
        for processes, name in ((1, "1 process"), (2, "2 processes")):
            with tempfile.TemporaryDirectory() as temporary:
                start = time.perf_counter()
                counts = cache.prepare(data, Path(temporary), processes=processes).counts
                if turn:
                    rates[name].append(sum(counts.values()) / (time.perf_counter() - start))
    show(rates)
    ratio = statistics.median(rates["2 processes"]) / statistics.median(rates["1 process"])
    print(f"decoding by two processes against one: ratio {ratio:.2f}")
    for name, seen in ratios.items():
        goal = f" (goal: {EPOCHS_GOAL})" if name == "bytes" else f", on {device.type}"
        print(f"{name}, second epoch against first: ratio {statistics.median(seen):.1f}{goal}")


def show(rates: dict[str, list[float]]) -> None:
    for name, seen in rates.items():
        spread = f"{min(seen):,.0f}-{max(seen):,.0f}"
        print(f"{name:16} {statistics.median(seen):>10,.0f} images/s ({spread})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000, help="JPEG files to write")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    small_images(asked.images, asked.rounds)
    photographs(asked.rounds)


if __name__ == "__main__":
    main()
