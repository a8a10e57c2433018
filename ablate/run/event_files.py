"""The scalars and settings in TensorBoard's event files.

A program's result may be the last step of its event files, and `ablate import` reads folders of
them. Both need TensorBoard's own reader, from the extra `tensorboard`.

Used by training/own/result_table.py and audit/trackers.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.shared import UserError, install_command

SCALARS, HPARAMS = "scalars", "hparams"  # plugins of TensorBoard


@dataclass(frozen=True)
class Events:
    """The content of a run's event files.

    by_step: the scalars of each step, by tag, the steps in order; settings: those of `add_hparams`.
    """

    by_step: dict[int, dict[str, float]]
    settings: dict[str, Any]


def read_events(files: Iterable[Path], place: str) -> Events:
    """Read the event files of a run, which are in the order of their times, whoever wrote them.

    A tag that goes back to a step, in a later file or in the same, loses what it had from there on,
    as in TensorBoard. Raises UserError at `place` without the package.
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        need = f"needs tensorboard: {install_command('tensorboard')}"
        raise UserError(f"{place}: {need}") from None
    plugins: dict[str, str] = {}  # by tag; a writer may name it only once
    by_tag: dict[str, dict[int, float]] = {}
    settings: dict[str, Any] = {}
    for file in files:
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                plugin_data = value.metadata.plugin_data
                plugin = plugins.setdefault(value.tag, plugin_data.plugin_name)
                if plugin == HPARAMS:
                    settings |= _hyperparameters(plugin_data.content)
                elif plugin == SCALARS:
                    steps = by_tag.setdefault(value.tag, {})
                    while steps and next(reversed(steps)) >= event.step:
                        steps.popitem()
                    steps[event.step] = float(make_ndarray(value.tensor).item())
    by_step: dict[int, dict[str, float]] = {}
    for tag, steps in by_tag.items():
        for step, number in steps.items():
            by_step.setdefault(step, {})[tag] = number
    return Events({step: by_step[step] for step in sorted(by_step)}, settings)


def _hyperparameters(content: bytes) -> dict[str, Any]:
    """Return the settings in a message of TensorBoard's plugin; most of its messages have none."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    settings = HParamsPluginData.FromString(content).session_start_info.hparams
    return {
        key: getattr(setting, setting.WhichOneof("kind") or "string_value")
        for key, setting in sorted(settings.items())
    }
