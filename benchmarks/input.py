"""How fast are training batches made? Ours against a torch DataLoader over JPEG files.

    python benchmarks/input.py [--images 10000] [--rounds 5]

Both make shuffled CIFAR-10 batches, flipped and pad-cropped, as float tensors, on one thread in
one process: ours from the decoded cache, the DataLoader (num_workers=0) from the same images as
JPEG files, opened, decoded, cropped, flipped and converted one by one. They take turns, so that
what else the machine does hits both; medians over the rounds. Building the cache, which is done
once for all runs, is not counted but printed. ABLATE_DATA: folder that holds cifar10/*.parquet.
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
from ablate.data.batches import Batches
from ablate.fingerprint import fingerprint
from ablate.keyed import Draws
from ablate.spec import Augment, Data

DATA = Path(os.environ.get("ABLATE_DATA", Path(__file__).parents[2] / "shared" / "data"))
BATCH, PAD, GOAL = 128, 4, 30


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


def cifar10() -> Data:
    plain: dict[str, Any] = {
        "name": "cifar10",
        "source": "datasets",
        "path": str(DATA / "cifar10"),
        "hub": None,
        "revision": None,
        "image": None,
        "label": None,
        "size": 32,
        "channels": 3,
        "classes": 10,
        "train": "train",
        "validation": 5000,
        "test": "test",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000, help="JPEG files to write")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = cifar10()
    with tempfile.TemporaryDirectory() as temporary:
        start = time.perf_counter()
        cached = cache.prepare(data, Path(temporary))
        print(
            f"decoded {sum(cached.counts.values()):,} images in {time.perf_counter() - start:.1f} s"
        )
        files = jpeg_files(data, Path(temporary), asked.images)
        loader = DataLoader(files, BATCH, shuffle=True, drop_last=True, num_workers=0)
        batches = Batches(cached.split("train"), BATCH, Augment(flip=True, crop_pad=PAD), Draws(0))

        def theirs(_: int) -> int:
            return sum(len(labels) for _, labels in loader)

        def ours(turn: int) -> int:
            epoch = range(turn * batches.steps_per_epoch, (turn + 1) * batches.steps_per_epoch)
            return sum(len(batches.at(step)[1]) for step in epoch)

        rates: dict[str, list[float]] = {"DataLoader": [], "ablate": []}
        for turn in range(asked.rounds + 1):  # the first one warms the page cache
            for name, epoch in (("DataLoader", theirs), ("ablate", ours)):
                start = time.perf_counter()
                images = epoch(turn)
                if turn:
                    rates[name].append(images / (time.perf_counter() - start))
    for name, seen in rates.items():
        spread = f"{min(seen):,.0f}-{max(seen):,.0f}"
        print(f"{name:10} {statistics.median(seen):>10,.0f} images/s ({spread})")
    ratio = statistics.median(rates["ablate"]) / statistics.median(rates["DataLoader"])
    print(f"ratio {ratio:.1f} (goal: {GOAL})")


if __name__ == "__main__":
    main()
