"""What must hold of a run whose images are labelled by masks, and which keys are of masks alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.shared.errors import UserError
from ablate.shared.metrics import TASKS, learn_from
from ablate.shared.recipe import Augment
from ablate.shared.schema import added
from ablate.shared.sections import Data, Eval, Whole

if TYPE_CHECKING:
    from ablate.shared.spec import Run

NO_CLASS = 255  # in masks as they are shown: a pixel that counts nowhere

_OF_MASKS = {
    "data": ("ignore", "fraction"),
    "augment": ("rescale", "class_share", "photometric"),
    "eval": ("stride",),
}
# What changes or shows images without their masks.
_OF_IMAGES = {
    "data": ("rule",),
    "augment": (
        *("crop_area", "randaug", "jitter", "rotate", "translate", "zoom_out", "erase"),
        *("mixup", "cutmix", "extra"),
    ),
    "eval": ("crop", "augment", "aspect", "also"),
}
_LEARNT = {"masks": "masks", "classes": "a class an image"}


def check_masks(run: Run) -> None:
    """Raises UserError where masks, and keys of masks, don't go with the rest of a run."""
    task = TASKS[run.task]
    masks = run.data.labels == "masks"
    if run.data.labels != task.labels:
        raise UserError(
            f"task: {run.task} learns from {_LEARNT[task.labels]}, and data={run.data.name} has "
            f"{_LEARNT[run.data.labels]}; give task={', '.join(learn_from(run.data.labels))}, or "
            f"other data"
        )
    for section, keys in (_OF_IMAGES if masks else _OF_MASKS).items():
        before = added({"data": Data, "augment": Augment, "eval": Eval}[section])
        for key in keys:
            if getattr(getattr(run, section), key) != before[key]:
                of = "images without masks" if masks else "images with masks (data.labels=masks)"
                raise UserError(f"{section}.{key}: is for {of}; leave it out")
    if masks:
        _check_data(run.data)
        _check_run(run)


def _check_data(data: Data) -> None:
    if data.cache != "encoded":
        raise UserError(
            f"data.cache: {data.cache} keeps squares, and masks need whole images; give "
            f"data.cache=encoded"
        )
    if data.classes >= NO_CLASS:
        raise UserError(
            f"data.classes: masks of 8 bits have at most {NO_CLASS - 1} classes, got {data.classes}"
        )


def _check_run(run: Run) -> None:
    if isinstance(run.model, Whole):
        raise UserError(f"model: task={run.task} decodes the tokens of a ViT; give model=vit")
    if run.model.kind != "vit":
        raise UserError(
            f"model.arch: {run.model.arch} has no tokens of patches to decode; give SIZE/PATCH"
        )
    for place, value, expected in (
        ("augment.crop_pad", run.augment.crop_pad, 0),
        ("augment.repeats", run.augment.repeats, 1),
        ("train.loss", run.train.loss, "softmax"),
    ):
        if value != expected:
            raise UserError(f"{place}: task={run.task} has none, got {value!r}; give {expected}")
    if run.augment.photometric and run.data.channels != 3:
        raise UserError(
            f"augment.photometric: moves hues, and data={run.data.name} is grey; leave it out"
        )
    for probe in run.probe:
        if probe not in TASKS[run.task].probed:
            raise UserError(f"probe: {probe}: reads one vector an image; leave it out")
    stem = "" if run.stem is None else run.stem.name
    if stem.startswith("whiten") and run.parent is None and run.weights is None:
        raise UserError(
            f"stem: {stem} is measured on images of one size, and data={run.data.name} "
            f"has many; start from a run that measured it (from.KEY=VALUE), or give another stem"
        )
    if run.eval.stride is not None and run.eval.stride > run.data.size:
        raise UserError(
            f"eval.stride: {run.eval.stride} is more than a window (data.size={run.data.size}) and "
            f"would leave pixels out"
        )
