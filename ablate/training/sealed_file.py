"""Tensors as a safetensors file with a sha256 of itself: a damaged file is recognised and not read.

The hash is of the whole file, with BLANK in its own place in the header's metadata.

Used by training/journal.py for checkpoints, by training/own/handle.py for the state of the user's
own trainers, and by model/whiten.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

if TYPE_CHECKING:  # torch, which a trainer of the user's own may do without
    import numpy as np
    from torch import Tensor

BLANK = "0" * 64


class Rotten(Exception):
    """Raised for a file that is not as it was written."""


def to_bytes(tensors: Mapping[str, Tensor], **metadata: str) -> tuple[bytes, memoryview]:
    """Return the file's two parts, the header and the tensors; `metadata` is kept in the header."""
    from safetensors.torch import save

    return _insert_seal(save(dict(tensors), {**metadata, "sha256": BLANK}))


def arrays_to_bytes(arrays: Mapping[str, np.ndarray], **metadata: str) -> tuple[bytes, memoryview]:
    """Return the two parts of a file of numpy's arrays, without torch; otherwise as `to_bytes`."""
    from safetensors.numpy import save

    return _insert_seal(save(dict(arrays), {**metadata, "sha256": BLANK}))


def _insert_seal(content: bytes) -> tuple[bytes, memoryview]:
    seal = hashlib.sha256(content).hexdigest()
    end = 8 + int.from_bytes(content[:8], "little")
    return content[:end].replace(BLANK.encode(), seal.encode()), memoryview(content)[end:]


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the arrays of a file that `arrays_to_bytes` made, without torch; otherwise as
    `read_tensors`."""
    return _read_file(path, "np")


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file, and what was kept in its header. Raises OSError where there is
    no file or it can't be read, Rotten where it is not as it was written."""
    return _read_file(path, "pt")


def _read_file(path: Path, framework: str) -> tuple[Any, dict[str, str]]:
    try:
        with safe_open(path, framework=framework) as file:
            metadata = file.metadata() or {}
            seal = metadata.pop("sha256")
            if _sha256(path, seal) != seal:
                raise Rotten(path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, KeyError) as error:
        raise Rotten(path) from error
    return tensors, metadata


def _sha256(path: Path, seal: str) -> str:
    with open(path, "rb") as file:
        length = file.read(8)
        header = file.read(int.from_bytes(length, "little"))
        digest = hashlib.sha256(length + header.replace(seal.encode(), BLANK.encode()))
        return hashlib.file_digest(file, lambda: digest).hexdigest()
