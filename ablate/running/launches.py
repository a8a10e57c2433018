"""The kernels that a GPU launches for a training, about: what a small model takes its time for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Counted operator by operator, on tensors without values, of the shipped recipes:
# `tests/test_launches.py` holds each of them to this within a factor of two.
A_STEP = 3.7  # forward, backward and update, in launches of a forward
ALWAYS = 25  # of a step: input, loss, norm of the gradients, update
A_CHANGE = 40  # of a step that changes its images so
A_LAYER = 100  # of RandAugment
A_DROPOUT = 370  # of a block: the masks of its dropout
CHANGES = (
    *("flip", "crop_pad", "crop_area", "jitter", "rotate", "translate", "zoom_out", "erase"),
    *("mixup", "cutmix", "rescale", "photometric"),
)


def of_step(tree: Mapping[str, Any], forward: int) -> float:
    """Of one step of a run. `forward`: of one forward pass, as its model was counted."""
    augment, train, model = tree["augment"], tree["train"], tree["model"]
    changes = sum(bool(augment.get(key)) for key in CHANGES)
    dropout: float = A_DROPOUT * model["depth"] if model.get("dropout") else 0
    micro = train["micro_batch"]
    parts: float = train["batch"] / micro if isinstance(micro, int) else 1
    inputs: float = A_CHANGE * changes + A_LAYER * augment.get("randaug", 0)
    return parts * (A_STEP * forward + dropout) + ALWAYS + inputs


def of_training(
    tree: Mapping[str, Any], forward: int, trains: bool, images: float, evaluated: int
) -> float:
    """Of all steps and evaluations. `images`: that it trains on, or is shown where it doesn't
    train; `evaluated`: that it is measured on."""
    if not trains:
        return forward * images / float(tree["eval"]["batch"])
    steps = images / float(tree["train"]["batch"])
    return steps * of_step(tree, forward) + forward * evaluated / float(tree["eval"]["batch"])
