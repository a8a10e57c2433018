"""Do classes of the user's own give what their kind is to give? Told in their file and line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ablate.shared.errors import UserError
from ablate.shared.spec import ShippedRun
from ablate.training.model.stem import Patches
from ablate.training.model.traits import StemTraits, traits
from ablate.training.model.vit import ViT
from ablate.training.plugin import by_path, line_of, load

Expected = Callable[[Tensor], tuple[int, ...]]

REMEDIES = {
    "norm": "a norm gives what has the shape of its input",
    "block": "a block gives what has the shape of its input; tokens are added by model.registers, "
    "or by a stem that says tokens_added",
}


def hold_to_shapes(model: nn.Module, run: ShippedRun) -> None:
    """From now on a forward pass raises UserError where a class of the user's own gives another
    shape or type than its kind is to give. For a model that is thrown away."""
    for kind, remedy in REMEDIES.items():
        chosen = getattr(run, kind)
        if chosen.plugin is not None:
            cls = next(load(used) for used in by_path(run) if used.key == kind)
            place, where = f"{kind}: {chosen.name}: forward", line_of(cls, "forward")
            for module in model.modules():
                if type(module) is cls:
                    _hold(module, place, _like_input, remedy, where)
    if run.stem.plugin is not None and isinstance(model, ViT):
        _hold_stem(model, run)


def _hold_stem(model: ViT, run: ShippedRun) -> None:
    patches = Patches(run.data.size, run.model.patch, run.data.channels)
    said, place = traits(model.stem, StemTraits), f"stem: {run.stem.name}"
    where = line_of(type(model.stem), "forward")
    tokens = patches.number + said.tokens_added

    def expected(images: Tensor) -> tuple[int, ...]:
        return len(images), tokens, run.model.width

    added = f" and before them the {said.tokens_added} of its tokens_added" * (
        tokens > patches.number
    )
    remedy = f"a stem gives a token for each of the {patches.number} patches{added}; "
    remedy += "one that adds tokens puts them first and says tokens_added = N"
    _hold(model.stem, f"{place}: forward", expected, remedy, where)
    for name in ("after_posemb", "after_cls"):
        remedy = f"{name} gives what has the shape of its input"
        _hold(getattr(said, name), f"{place}: {name}", _like_input, remedy, where)


def _like_input(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def _hold(module: nn.Module, place: str, expected: Expected, remedy: str, where: str) -> None:
    """Have the module refuse an output that is not as `expected` says, given its input."""

    def look(_: nn.Module, given: tuple[Any, ...], out: Any) -> None:
        if not isinstance(out, Tensor):
            raise UserError(f"{place} gives a {type(out).__name__} and not a tensor ({where})")
        x = given[0]
        if tuple(out.shape) != expected(x):
            raise UserError(
                f"{place} gives {tuple(out.shape)} and not {expected(x)}: {remedy} ({where})"
            )
        if out.dtype != x.dtype:
            ours, theirs = (str(t.dtype).removeprefix("torch.") for t in (x, out))
            raise UserError(
                f"{place} gives {theirs} and not {ours}, the type of its input ({where})"
            )

    module.register_forward_hook(look)
