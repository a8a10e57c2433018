"""Settings with the place where each was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class SettingsLayer(NamedTuple):
    """Settings (`recipe: quick, optim.lr: 0.1`) and where they were written ("": command line)."""

    place: str
    settings: Mapping[str, Any]


Layers = Sequence[SettingsLayer]  # the later over the earlier
