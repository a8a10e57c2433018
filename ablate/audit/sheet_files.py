"""Files that a sheet names: predictions, and the files that the jobs of a multirun left.

A sheet may come from a stranger, and the files that it names are copied into the store and its
exports. So each must lie in the sheet's own folder, by its name and behind links, and must have the
format that it is read as.

Used by `ablate import` (audit/sheet.py and audit/job_folders.py).
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.shared import (
    MOST_BYTES,
    NotRegular,
    UserError,
    read_file,
)


def file_within(folder: Path, name: str, place: str) -> Path:
    """Return the path of a file in a folder, by its relative path.

    Raises UserError for a path that leads out of the folder (absolute, by `..`, by a link), and
    where no file is there.
    """
    relative_path = Path(name)
    path = folder / relative_path
    try:
        real = Path(os.path.realpath(path))
        outside = relative_path.is_absolute() or ".." in relative_path.parts
        if outside or not real.is_relative_to(os.path.realpath(folder)):
            raise UserError(
                f"{place}: expected a file in {folder} or below it, got {name!r}; copy it there"
            )
        if not real.is_file():
            raise UserError(f"{place}: {name}: no such file in {folder}")
    except (OSError, ValueError) as error:  # a name too long, a NUL in it
        raise UserError(f"{place}: {name!r:.80}: is no file's name ({error!s:.80})") from error
    return path


@dataclass(frozen=True)
class PredictionsFile:
    """A file of predictions as it was checked.

    `right`: the share of right examples, where each value says right or wrong; None where the
    values say something else.
    """

    path: Path
    sha256: str
    right: float | None

    def content(self) -> bytes:
        """Read the file. Raises UserError if it was changed since it was checked."""
        content = read_file(self.path)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise UserError(f"{self.path}: was changed meanwhile; import again")
        return content


def read_predictions(path: Path, place: str) -> PredictionsFile:
    """Read and check a file of predictions.

    Raises UserError for anything but a .npy array of numbers, bools or texts without pickled
    objects, and for an array with no values.
    """
    import numpy as np

    expected = "expected an array of numpy.save"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{place}: {path.name}: has more than {MOST_BYTES:,} bytes")
        content = read_file(path)
        shape, dtype, begin = _header(content)
        if dtype.hasobject:
            raise UserError(
                f"{place}: {path.name}: {expected}, got pickled objects, which aren't opened"
            )
        if not shape or not math.prod(shape):
            raise UserError(f"{place}: {path.name}: {expected} with an example each, got {shape}")
        if math.prod(shape) * dtype.itemsize != len(content) - begin:
            raise UserError(f"{place}: {path.name}: is cut, or longer than its header says")
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except NotRegular as error:
        raise UserError(f"{place}: {path.name}: {error.strerror}") from error
    except (OSError, ValueError, EOFError, SyntaxError, TypeError, RecursionError) as error:
        raise UserError(f"{place}: {path.name}: {expected} ({error!s:.80})") from error
    return PredictionsFile(path, hashlib.sha256(content).hexdigest(), _share_right(array))


def _header(content: bytes) -> tuple[tuple[int, ...], Any, int]:
    """Read shape, dtype and the offset of the values of a .npy file. Raises ValueError for
    others."""
    from numpy.lib import format as npy

    file = io.BytesIO(content)
    major, _ = npy.read_magic(file)
    read_header = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
    shape, _, dtype = read_header(file)
    return shape, dtype, file.tell()


def _share_right(array: Any) -> float | None:
    """Return the share of true values of an array that says of each example whether it is right.

    Returns None for an array that says something else.
    """
    if array.ndim != 1 or array.dtype.kind not in "bui" or not ((array == 0) | (array == 1)).all():
        return None
    return float(array.mean())
