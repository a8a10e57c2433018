"""The learned scales of norms (Dual PatchNorm, arXiv 2302.01327, Fig. 3).

Used by `probe=[scales]`, through run/choices.py `PROBES`. The arrays are read in
run/metrics/probed.py for tables and in report/plot/probes.py for `ablate plot`: both look for the
parameter `FIRST_SCALE`.
"""

from __future__ import annotations

import numpy as np

from ablate.run import Run
from ablate.training.model import Host
from ablate.training.model.traits import Traits, traits
from ablate.training.probes.probe import Evaluate, Probe


class Scales(Probe):
    """gamma of every norm, and whatever else is a learned scale, of the model that is measured.

    Arrays: float32, each by its parameter's name. `stem.before.weight` is (K,), of the values of a
    patch in the order (row * P + column) * C + channel: reshaped to (P, P, C) it is Fig. 3.
    """

    def __init__(self, run: Run, model: Host, total: int) -> None:
        self._scales = {
            name: parameter
            for name, parameter in model.named_parameters()
            if _role(model, name) == "scale"
        }
        self._arrays: dict[str, np.ndarray] = {}

    def end(self, evaluate: Evaluate) -> None:
        self._arrays = {
            name: scale.detach().float().cpu().numpy().copy()
            for name, scale in self._scales.items()
        }

    def arrays(self, steps: int) -> dict[str, np.ndarray]:
        return self._arrays


def _role(model: Host, name: str) -> str | None:
    path, _, own_name = name.rpartition(".")
    return traits(model.get_submodule(path), Traits).roles.get(own_name)
