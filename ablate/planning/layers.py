"""Settings with the place where each was written; and which of them are about the model.

`model=NAME`: NAME is a size of the shipped model, and then `model.arch` by another word, or a whole
model. A whole model replaces what lower layers say of the model; what is said beside it or above it
is its own: its settings, and no norm, stem or block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ablate.shared.build import none_chosen
from ablate.shared.choices import ARCHS, CHOICES
from ablate.shared.errors import UserError, unknown
from ablate.shared.plugin import is_whole_name


class SettingsLayer(NamedTuple):
    """Settings (`recipe: quick, optim.lr: 0.1`) and where they were written ("": command line)."""

    place: str
    settings: Mapping[str, Any]


Layers = Sequence[SettingsLayer]  # the later over the earlier


INPUT = "model.input"  # how images are shown: a key of every model


def with_one_model(layers: Layers) -> Layers:
    """The layers with one model: `model` is in them for a whole model alone. Raises UserError for
    what is said beside a whole model and is not its own."""
    named = [n for n, layer in enumerate(layers) if "model" in layer.settings]
    if not named:
        return layers
    last = named[-1]
    name = layers[last].settings["model"]
    if not is_whole_name(name):
        return [_of_shipped(layer) for layer in layers]
    none_chosen((key for layer in layers[last:] for key in layer.settings), name)
    below = [SettingsLayer(place, _without_model(said)) for place, said in layers[:last]]
    return [*below, *layers[last:]]


def _of_shipped(layer: SettingsLayer) -> SettingsLayer:
    """`model=S/16` as `model.arch=S/16`; a whole model of a lower layer, and its settings, fall."""
    said = dict(layer.settings)
    if "model" not in said:
        return layer
    name = said.pop("model")
    if is_whole_name(name):
        kept = {k: v for k, v in said.items() if not k.startswith("model.") or k == INPUT}
        return SettingsLayer(layer.place, kept)
    if not isinstance(name, str) or ("/" not in name and name not in ARCHS):
        raise UserError(
            f"model: expected a size such as S/16, timm:NAME or module:Class, got {name!r}"
        )
    if "model.arch" in said:
        raise UserError(f"model.arch: is said by model={name}; leave it out")
    return SettingsLayer(layer.place, {**said, "model.arch": name})


def _without_model(said: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in said.items()
        if key == INPUT or key.partition(".")[0] not in ("model", *CHOICES)
    }


def put_whole_model(tree: dict[str, Any], name: str) -> None:
    """Put the whole model `name` into a composed tree, in the place of the shipped one. Raises
    UserError where the recipe hangs on the size of that."""
    if "by_arch" in tree:
        raise unknown("model", name, tree["by_arch"], "for this recipe one of")
    tree["model"] = {"name": name, "input": tree["model"].get("input") or "range"}
    for kind in CHOICES:
        tree.pop(kind, None)
