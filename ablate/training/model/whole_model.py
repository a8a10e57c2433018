"""Whole models: one of timm's, or a class of the user's own, in place of the shipped one.

A whole model is a module of torch, unchanged, its parameters under its own names. It gets images as
torch's models read them, (B, C, H, W) in float, and returns (B, outputs).

Used by `build` (model/__init__.py) for `model=timm:NAME` and `model=module:Class`;
training/optim.py, training/starting_weights.py and task/__init__.py ask about either kind of model.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from ablate.data import draw_key
from ablate.run import (
    TIMM,
    Data,
    UsedPart,
    Whole,
)
from ablate.shared import (
    UserError,
    did_you_mean,
    install_command,
    unknown_value,
)
from ablate.training.model.host import Host
from ablate.training.plugin import load

HEAD = "head"  # the submodule that a class of the user's own calls so


@dataclass(frozen=True)
class Images:
    """The images that a model takes: squares of `size` x `size` pixels, with `channels` colours."""

    size: int
    channels: int


def build_whole(model: Whole, images: Images, outputs: int, seed: int) -> nn.Module:
    """Return the model on the CPU, with the weights that its constructor gives it under this seed:
    models constructed alike have the same weights. Raises UserError where it can't be made."""
    with torch.random.fork_rng([]):
        torch.manual_seed(draw_key(seed, "init"))
        if model.folder is None:
            net = _of_timm(model, images, outputs)
        else:
            cls = load(UsedPart("model", model.name, model.settings, model.version, model.folder))
            net = cls(images, outputs, **model.settings)
    if not isinstance(net, nn.Module):
        raise UserError(f"model: {model.name}: is no torch.nn.Module")
    _untied(net, model.name)
    net.register_forward_pre_hook(_as_torch)
    return net


def _as_torch(net: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Convert the images from the layout of the rest of the code: (B, H, W, C) -> (B, C, H, W)."""
    return (inputs[0].permute(0, 3, 1, 2).contiguous(),)


def _untied(net: nn.Module, name: str) -> None:
    """Raise UserError for a parameter with two names: a file of safetensors has each tensor
    once."""
    paths: dict[Tensor, str] = {}
    for path, parameter in net.named_parameters(remove_duplicate=False):
        first_path = paths.setdefault(parameter, path)
        if first_path != path:
            both = f"{first_path} and {path}"
            raise UserError(f"model: {name}: {both} are one parameter; give each its own")


# --- timm ---------------------------------------------------------------------------------------


def _of_timm(model: Whole, images: Images, outputs: int) -> nn.Module:
    timm, name = _timm(), model.name.removeprefix(TIMM)
    if not timm.is_model(name):
        raise UserError(
            f"model: timm has no model {name!r}{did_you_mean(name, timm.list_models())}"
        )
    arguments = {"num_classes": outputs, "in_chans": images.channels}
    if timm.get_pretrained_cfg(name).fixed_input_size:  # the others take any
        arguments["img_size"] = images.size
    try:
        net: nn.Module = timm.create_model(name, pretrained=False, **arguments, **model.settings)
    except TypeError as error:
        refused = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword .*'(\w+)'", str(error))
        if refused is None or refused[2] not in model.settings:
            raise _model_error(model, error) from error
        takes = signature(_class_of(timm, refused[1])).parameters
        settings = [key for key in takes if key not in arguments]
        raise unknown_value(
            f"model.{refused[2]}", refused[2], settings, f"a setting of {name}:"
        ) from error
    except Exception as error:
        raise _model_error(model, error) from error
    return net


@contextmanager
def of_timm(model: Whole, data: Data) -> Iterator[None]:
    """Within the block, raise UserError, naming the model and the images that it was shown, in
    place of any other error. The errors of a model whose code is the user's own are left as they
    are."""
    try:
        yield
    except Exception as error:
        if model.folder is not None or isinstance(error, UserError):
            raise
        description = f"{data.size}x{data.size}x{data.channels} images of data={data.name}"
        raise _model_error(model, error, f" can't be shown the {description}") from error


def _model_error(model: Whole, error: Exception, failure: str = "") -> UserError:
    message = f"{type(error).__name__}: {' '.join(str(error).split())}"
    name = model.name
    if model.settings:
        settings = ", ".join(f"{key}={value}" for key, value in model.settings.items())
        name = f"{name} with {settings}"
    return UserError(f"model: {name}{failure}: {message}")


def _class_of(timm: Any, name: str) -> Any:
    return getattr(timm.models, name, nn.Module)


_stubs: list[torch.library.Library] = []


def _timm() -> Any:
    """Return timm, imported. Raises UserError where that is not possible.

    timm imports torchvision, whose wheel has its operators in a compiled file that only loads with
    the build of torch for which it was made. timm's models use none of them, so for another build
    the operators are only declared.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        pass  # timm says what it lacks
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise UserError(f"model: torchvision can't be imported: {error}") from error
        _stubs.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            kind = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            _stubs[0].define(name + kind)
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise UserError(
            f"model: timm can't be imported ({error}); {install_command('timm')}"
        ) from error


# --- What the training asks of it ---------------------------------------------------------------


@contextmanager
def seeded(*place: int | str) -> Iterator[None]:
    """Make what is drawn within the block depend on `place` alone: seed torch's own generators, of
    the CPU and of the current GPU, by it, and restore their state afterwards."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(draw_key(*place))
        yield


def features(model: nn.Module, images: Tensor) -> Tensor:
    """Return the features that the model's head reads: (B, H, W, C) -> (B, D). Raises UserError
    where the model has no method that gives them."""
    if isinstance(model, Host):
        return model.features(images)
    (inputs,) = _as_torch(model, (images,))
    if _has_method(model, "forward_features") and _has_method(model, "forward_head"):  # timm's
        timms: Any = model
        return timms.forward_head(timms.forward_features(inputs), pre_logits=True)
    if _has_method(model, "features"):
        untyped_model: Any = model
        return untyped_model.features(inputs)
    raise UserError(
        f"model: {type(model).__name__} has no features(images), (B, C, H, W) -> (B, D), which "
        f"few-shot and k-NN classification read; give it one"
    )


def _has_method(model: nn.Module, method: str) -> bool:
    return isinstance(getattr(model, method, None), types.MethodType)


def heads(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the model's heads, which a child run does not take over but starts
    anew."""
    if isinstance(model, Host):
        return (HEAD,)
    classifier = getattr(model, "pretrained_cfg", {}).get("classifier", HEAD)
    if isinstance(classifier, str):
        return (classifier,)
    return tuple(classifier)


def kernel_names(model: nn.Module) -> set[str]:
    """Return the names of the parameters that decay, as far as names and shapes tell. These are
    kernels: parameters called `weight`, with at least two dimensions, except tables of embeddings
    and the parameters that the model itself excludes (`no_weight_decay()`, as timm has it)."""
    excluded = set()
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            excluded.add(f"{path}.weight" if path else "weight")
    if _has_method(model, "no_weight_decay"):
        untyped_model: Any = model
        excluded |= set(untyped_model.no_weight_decay())
    names = set()
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and name.endswith("weight") and name not in excluded:
            names.add(name)
    return names


def initial(model: nn.Module) -> dict[str, tuple[str, int]]:
    """Return, for each parameter by its name, a hash of its initial values and shape (12 hex
    digits), and its number of values."""
    hashes = {}
    for name, parameter in model.named_parameters():
        shape = repr(tuple(parameter.shape)).encode()
        content = parameter.detach().contiguous().numpy().tobytes()
        digest = hashlib.sha256(shape + content).hexdigest()[:12]
        hashes[name] = digest, parameter.numel()
    return hashes


def check_outputs(model: nn.Module, outputs: Any, shape: tuple[int, int]) -> None:
    """Raise UserError, naming the file and the line of the model's `forward`, where `outputs`, what
    it returned, have another shape than `shape`, (B, logits)."""
    output_shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if output_shape != shape:
        code = type(model).forward.__code__
        raise UserError(
            f"model: {type(model).__name__}.forward: expected logits {shape} of {shape[0]} images, "
            f"got {output_shape} ({code.co_filename}, line {code.co_firstlineno})"
        )
