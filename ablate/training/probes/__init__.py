"""Probes: what a run measures in addition to its metrics. Each has a file and is found through
`choices.PROBES`.

A probe changes no bit of the training: it draws nothing at random and writes to nothing that the
model reads. A probe that is off is not built.

Used by training/training.py in every run with `probe=[NAME]`, and by training/answers.py before
`ablate sweep` starts. A new probe also needs its entry in run/choices.py `PROBES` and, to be in
tables, its metrics in run/metrics/probed.py `PROBE_METRICS`.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from ablate.data import AnySplit
from ablate.run import PROBES, Run, RunDir
from ablate.shared import UserError, write_whole
from ablate.training.plugin import by_path, load, object_at
from ablate.training.probes.probe import Probe

IMAGES = 500  # of validation, at least, that probes at the end look at


class Probes:
    """The probes that a run has switched on."""

    def __init__(self, run: Run, model: nn.Module, total: int) -> None:
        """Build the probes. Raises UserError where the model has nothing that a probe could look
        at."""
        self._probes: dict[str, Probe] = {}
        for name in run.probe:
            self._probes[name] = class_of(name, run)(run, model, total)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that belong in a checkpoint, by name; not copies."""
        return {
            f"{name}.{key}": tensor
            for name, probe in self._probes.items()
            for key, tensor in probe.kept().items()
        }

    def gradients(self, step: int) -> None:
        """Show the probes the gradients of this step: all are computed, none is clipped yet."""
        for probe in self._probes.values():
            probe.gradients(step)

    def end(self, data: Mapping[str, AnySplit], evaluate: Callable[..., Any]) -> None:
        """Let the probes look at the finished model. `evaluate(split, task)` shows it a split, by
        the run's task or another. Hooks see validation images: evenly spaced ones, since the stored
        order may go by class."""
        validation = data["validation"]
        hooks = [hook for probe in self._probes.values() for hook in probe.hooks()]
        try:
            if hooks:
                evaluate(validation.take(slice(None, None, max(1, len(validation) // IMAGES))))
        finally:
            for hook in hooks:
                hook.remove()
        for probe in self._probes.values():
            probe.end(partial(evaluate, data["test"]))

    def measured(self, steps: int) -> dict[str, bytes]:
        """Return, by the name of each probe, the npz file of what it measured in `steps` steps."""
        files = {}
        for name, probe in self._probes.items():
            arrays = probe.arrays(steps)
            if arrays:
                content = io.BytesIO()
                np.savez(content, allow_pickle=False, **arrays)
                files[name] = content.getvalue()
        return files

    def write(self, rundir: RunDir, steps: int) -> dict[str, str]:
        """Write what was measured in `steps` steps; return the sha256 of each file by its probe."""
        files = self.measured(steps)
        for name, content in files.items():
            write_whole(rundir.probe(name), content)
        return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def class_of(name: str, run: Run) -> Callable[..., Probe]:
    """Return the class of a probe. Raises UserError for a class of the user's own that can't be
    imported, or is no subclass of Probe."""
    if name in PROBES:
        cls = object_at(PROBES[name].path)
    else:
        cls = next(load(used) for used in by_path(run) if (used.key, used.name) == ("probe", name))
        if not (isinstance(cls, type) and issubclass(cls, Probe)):
            raise UserError(f"probe: {name}: is no subclass of {Probe.__module__}:Probe")
    probe_class: Callable[..., Probe] = cls
    return probe_class
