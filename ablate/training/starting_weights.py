"""The weights that a training starts from: its parent's final ones, or those of a file.

All of them are taken over, including the class token, norms and the representation layer. Only the
head starts anew, kernel and bias at zero (a Segmenter's as it is initialised), and positions are
resized (big_vision/models/vit.py `load`, with `dont_load=['head/kernel', 'head/bias']`, and
`scipy.ndimage.zoom(order=1)`). Positions of a file with timm's names are resampled as timm does
(model/export.py).

Used by training/loop.py and training/training.py for runs with `from`, and by training/answers.py,
which checks the shapes before `ablate sweep` starts. A part with parameters of the grid's size also
needs a method `resize` (model/traits.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from ablate.run import (
    Run,
    RunDir,
    Weights,
    Whole,
)
from ablate.shared import UserError, read_file
from ablate.training.model import Host, Segmenter, Towers, build
from ablate.training.model.export import from_timm
from ablate.training.model.traits import Traits, same_values, traits
from ablate.training.model.whole_model import HEAD, heads

BEHIND = ("norm.", "rep.", "pool.")  # between the tokens and a head: a Segmenter has none of it

Shapes = Mapping[str, torch.Size]


def start_of(run: Run, rundir: RunDir) -> dict[str, Tensor] | None:
    """Return the tensors that the run's model starts from, under our names; None where it starts
    anew.

    Raises UserError, naming the file, where it is missing or not the one that was planned.
    """
    if run.parent is not None:
        folder = rundir.of_parent(run.parent.id)
        result = folder.read_result()
        if result is None or result["status"] != "finished":
            raise UserError(f"{folder.path}: the run that this one starts from has not finished")
        remedy = "remove its folder, and the same `ablate sweep` trains it again"
        return _load_file(folder.weights, result["weights_sha256"], remedy)
    if run.weights is None:
        return None
    return _of_file(run, run.weights)


def _of_file(run: Run, weights: Weights) -> dict[str, Tensor]:
    tensors = _load_file(Path(str(weights.path)), weights.sha256, "plan the sweep again")
    if weights.names == "timm" and not isinstance(run.model, Whole):
        return from_timm(run, tensors)
    return tensors


def start_sha256(run: Run, rundir: RunDir) -> str | None:
    """Return the hash of the file of weights that the run starts from, or None."""
    if run.parent is not None:
        result = rundir.of_parent(run.parent.id).read_result() or {}
        return result.get("weights_sha256")
    if run.weights is None:
        return None
    return run.weights.sha256


def _load_file(path: Path, sha256: str, remedy: str) -> dict[str, Tensor]:
    try:
        content = read_file(path)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror}); {remedy}") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"{path}: is not the file that was recorded; {remedy}")
    try:
        return load(content)
    except SafetensorError as error:
        raise UserError(f"{path}: is no file of safetensors ({error})") from error


def check_start(run: Run) -> None:
    """Raise UserError where the weights of the run's parent or file do not fit its model."""
    if run.parent is None and run.weights is None:
        return
    model = image_tower(build(run, device="meta"))
    own_shapes, anew = _shapes(model), heads(model)
    if not isinstance(model, Host) and not any(_is_in(name, anew) for name in own_shapes):
        raise UserError(
            f"from: {type(model).__name__} has no submodule {' or '.join(anew)}, which begins anew "
            f"where a run starts from other weights; call its last layer so"
        )
    if run.parent is not None:
        shapes = _shapes(build(run.parent, device="meta"))
        tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
        check_shapes(own_shapes, _shapes_of(fit_tensors(model, tensors)), anew)
    if run.weights is not None:
        tensors = _of_file(run, run.weights)
        check_shapes(own_shapes, _shapes_of(fit_tensors(model, tensors)), anew)


def begin(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give the model these weights, as at its first step. Raises UserError where a name or a shape
    doesn't fit; then nothing has changed."""
    model = image_tower(model)
    anew = heads(model)
    tensors = fit_tensors(model, tensors)
    check_shapes(_shapes(model), _shapes_of(tensors), anew)
    with torch.no_grad():
        for name, weights in model.state_dict().items():
            if _is_in(name, anew):
                # A whole model's, and a decoder's, are as they were drawn.
                if isinstance(model, Host) and not isinstance(model, Segmenter):
                    weights.zero_()
            else:
                weights.copy_(tensors[name])


def image_tower(model: nn.Module) -> nn.Module:
    """Return the part of a model that starts from other weights: its image tower, or all of it."""
    return model.image if isinstance(model, Towers) else model


def check_shapes(ours: Shapes, theirs: Shapes, anew: Collection[str] = (HEAD,)) -> None:
    """Raise UserError for the first name or shape that differs, ignoring the heads in `anew`. First
    means by the alphabet: safetensors reads a file in another order
    each time."""
    for name in sorted({*ours, *theirs}):
        if _is_in(name, anew):
            continue
        if name not in theirs:
            raise UserError(f"from: has no weights for {name} of this model")
        if name not in ours:
            raise UserError(f"from: has weights {name}, which this model has not")
        own_shape, their_shape = ours[name], theirs[name]
        if own_shape != their_shape:
            raise UserError(
                f"from: {name} has the shape {list(their_shape)}, and in this model "
                f"{list(own_shape)}"
            )


def _is_in(name: str, paths: Collection[str]) -> bool:
    return any(name.startswith(f"{path}.") for path in paths)


def fit_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that the model takes over: without those of a classifier that a Segmenter
    lacks, and resized where their module can do so (`traits.Traits.resize`). Raises UserError for a
    tensor of another shape whose class is the user's own and has no such method."""
    shapes, anew = _shapes(model), heads(model)
    used_tensors = dict(tensors)
    if isinstance(model, Segmenter):
        used_tensors = {
            name: values for name, values in tensors.items() if not name.startswith(BEHIND)
        }
    for name, values in used_tensors.items():
        if name not in shapes or values.shape == shapes[name] or _is_in(name, anew):
            continue
        path, _, own_name = name.rpartition(".")
        owner = model.get_submodule(path)
        method = traits(owner, Traits).resize
        if isinstance(model, Host) and method is same_values and _is_own(owner):
            raise UserError(
                f"from: {name} has the shape {list(values.shape)}, and in this model "
                f"{list(shapes[name])}; if the grid is another one, give {type(owner).__name__} a "
                f"method resize(self, name, values) that returns the values for its grid"
            )
        used_tensors[name] = method(own_name, values)
    return used_tensors


def _is_own(module: nn.Module) -> bool:
    return not type(module).__module__.startswith(("ablate.", "torch."))


def _shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return _shapes_of(model.state_dict())
