"""Construction of a `Run` from a plain tree: sections and their keys, types, bounds, and the model
that an arch stands for.

Used by every plan (planning/compose.py, planning/cell.py), so by `ablate sweep` and `ablate plan`,
and by the worker, which builds its run again (training/worker.py). Checks between fields are in
run/checks.py, those of a single field in its declaration in run/sections.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ablate.run.checks import CLASS_TOKEN_OFF, GELUS, check
from ablate.run.choices import ARCHS, CHOICES, PROBES
from ablate.run.metrics.probed import probe_name
from ablate.run.parts import is_plugin
from ablate.run.run import UNTYPED, OwnRun, Run
from ablate.run.schema import (
    added_fields,
    computed,
    field_keys,
    field_types,
    read_field,
    read_section,
    read_settings,
    same_keys,
)
from ablate.run.sections import Chosen, Data, Model, Optim, Plugin, Text, Train, Whole
from ablate.run.spec import OwnSpec, RunSpec
from ablate.run.trainer import build_own
from ablate.shared import UserError, nearest_name, unknown_value

PLUGIN_KEYS = tuple(field.name for field in dataclasses.fields(Plugin))
WHOLE_KEYS = ("name", "version", "folder", "input")  # of every whole model


def validated_run(spec: RunSpec) -> Run | OwnRun:
    """Build the run of a spec, whoever trains it. Raises UserError as `build_run` and `build_own`
    do."""
    return build_own(spec) if isinstance(spec, OwnSpec) else build_run(spec.tree)


def build_run(tree: Mapping[str, Any]) -> Run:
    """Build a validated `Run` from the plain tree that composition made.

    Raise UserError, one line with the dotted key, the value and what was expected, for unknown and
    missing keys, wrong types, values out of range and impossible geometry.
    """
    is_whole_model = is_whole(tree.get("model"))
    parts = [key for key in field_types(Run) if not (is_whole_model and key in CHOICES)]
    if is_whole_model:
        none_chosen(tree, tree["model"]["name"])
    for key in tree:
        if key not in parts and (candidates := _homes(key)):
            raise UserError(f"{key}: is no key; did you mean {' or '.join(candidates)}?")
    _check_homes(tree)
    typed = [key for key in parts if key in tree or key not in UNTYPED]
    same_keys("", tree, typed, added_fields(Run))
    data = read_section(Data, tree["data"], "data")
    model = _model(tree["model"], data)
    fields = {"data": data, "model": model, "parent": _parent(tree.get("parent"))}
    for kind in CHOICES:
        fields[kind] = _read_choice(kind, tree[kind], model) if isinstance(model, Model) else None
    filled = {**tree, "text": _text(tree.get("text"))}
    fields |= {
        key: read_field(Run, key, filled[key], "from" if key == "weights" else key)
        for key in filled
        if key not in fields
    }
    run = Run(**{**fields, "probe": _probes(fields.get("probe", ()))})
    check(run)
    return run


def is_whole(section: Any) -> bool:
    """Return whether this is the section of a model other than the shipped one: only such a section
    has a name."""
    return isinstance(section, Mapping) and "name" in section


def none_chosen(tree: Iterable[str], name: Any) -> None:
    """Raise UserError for a norm, a stem or a block that is given with the whole model `name`.
    `tree`: the keys of a run, dotted or not."""
    for key in tree:
        if key.partition(".")[0] in CHOICES:
            raise UserError(f"{key}: model={name} brings its own; leave it out")


def _model(tree: Mapping[str, Any], data: Data) -> Model | Whole:
    if not is_whole(tree):
        shipped: Model = read_section(Model, _expand(tree, data), "model")
        return shipped
    fields = {key: value for key, value in tree.items() if key in WHOLE_KEYS}
    settings = {key: value for key, value in tree.items() if key not in WHOLE_KEYS}
    model: Whole = read_section(Whole, {**fields, "settings": settings}, "model")
    return model


# --- Keys ----


# What others call a key, where its name alone does not lead to ours.
HABITS = {
    **{"batch_size": "train.batch", "max_epochs": "train.epochs", "num_epochs": "train.epochs"},
    **{"learning_rate": "optim.lr", "weight_decay": "optim.wd", "embed_dim": "model.width"},
    **{"num_heads": "model.heads", "num_layers": "model.depth"},
}


def _homes(key: Any) -> list[str]:
    """List the dotted keys that may be meant by `key`, an unknown key of a run: what HABITS says,
    else the keys of sections with this name or, if no section has a similar name, with the name
    nearest to it."""
    if key in HABITS:
        return [HABITS[key]]
    sections = {name: cls for name, cls in field_types(Run).items() if isinstance(cls, type)}
    sections["model"] = Model
    fields = {name: field_keys(cls) for name, cls in sections.items() if name not in CHOICES}
    params = {
        kind: {k for c in table.values() for k in c.params} for kind, table in CHOICES.items()
    }
    dotted_keys = [(name, below) for name, keys in {**fields, **params}.items() for below in keys]
    if nearest_name(key, field_types(Run)) is None:
        key = nearest_name(
            key, [below for _, below in dotted_keys], 0.8
        )  # of so many keys one is always like it
    return [f"{name}.{below}" for name, below in dotted_keys if below == key]


def _check_homes(tree: Mapping[str, Any]) -> None:
    """Raise UserError for a key that has its home in another section, such as train.lr."""
    for section, cls in (("model", Model), ("optim", Optim), ("train", Train)):
        settings = tree.get(section)
        if not isinstance(settings, Mapping) or (is_whole(settings) and section == "model"):
            continue
        for key in settings:
            if key in field_types(cls):
                continue
            homes = _homes(key)
            if any(key in HABITS or home.endswith(f".{key}") for home in homes):
                raise UserError(f"{section}.{key}: is no key; did you mean {' or '.join(homes)}?")


def _read_choice(kind: str, tree: Any, model: Model) -> Chosen:
    table = CHOICES[kind]
    if isinstance(tree, str):  # a name where settings stand: what an unknown group choice leaves
        raise unknown_value(kind, tree, table)
    name = tree.get("name") if isinstance(tree, Mapping) else tree
    if is_plugin(name):
        origin = {key: value for key, value in tree.items() if key in PLUGIN_KEYS}
        settings = {k: v for k, v in tree.items() if k != "name" and k not in PLUGIN_KEYS}
        return Chosen(name, settings, read_section(Plugin, origin, kind))
    if not isinstance(name, str) or name not in table:
        raise unknown_value(kind, name, [*table, "module:Class"])
    params = table[name].params
    same_keys(kind, tree, ["name", *params])
    hosts = {
        key: getattr(model, param.host)
        for key, param in params.items()
        if param.host is not None and tree.get(key, param.default) is None
    }
    return Chosen(name, read_settings(kind, params, {**tree, **hosts}))


def _text(tree: Any) -> Any:
    """Return the section of texts, or None, with each null replaced by the value of the text
    tower's size."""
    if tree is None:
        return None
    same_keys("text", tree, field_types(Text))
    sizes = {name: vars(arch) for name, arch in ARCHS.items() if arch.kind == "vit"}
    if tree["arch"] not in sizes:
        raise unknown_value("text.arch", tree["arch"], sizes, "a size among")
    defaults = {key: sizes[tree["arch"]][key] for key in ("width", "depth", "heads")}
    return {key: defaults.get(key) if value is None else value for key, value in tree.items()}


def _parent(tree: Mapping[str, Any] | None) -> Run | None:
    try:
        return None if tree is None else build_run(tree)
    except UserError as error:
        raise UserError(f"from.{error}") from error


def _probes(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the probes in the order of `PROBES`, then those of the user's own by name, so that the
    order in which they are given makes no other run. Raise UserError for one that is unknown or
    given twice."""
    for name in names:
        if name not in PROBES and not is_plugin(name):
            raise unknown_value("probe", name, [*PROBES, "module:Class"])
        if [probe_name(probe) for probe in names].count(probe_name(name)) > 1:
            raise UserError(f"probe: {probe_name(name)} is given twice")
    user_probes = sorted(name for name in names if name not in PROBES)
    return (*(name for name in PROBES if name in names), *user_probes)


# --- The architecture ---------------------------------------------------------------------------


def _expand(tree: Any, data: Data) -> dict[str, Any]:
    """Return the `model` section with `model.arch` expanded: each null takes the arch's value."""
    same_keys("model", tree, field_types(Model), added_fields(Model), computed(Model))
    defaults = added_fields(Model) | _arch(tree["arch"], data)
    model: dict[str, Any] = {
        key: defaults.get(key) if tree.get(key) is None else tree[key] for key in field_types(Model)
    }
    if model["pool"] != "tok":  # what the architecture says of its class token says nothing
        model |= {key: value for key, value in CLASS_TOKEN_OFF.items() if tree.get(key) is None}
    if model["act"] not in GELUS and tree.get("gelu") is None:  # nor what it says of its GELU
        model["gelu"] = added_fields(Model)["gelu"]
    for key in ("width", "heads", "depth"):
        model[key] = read_field(Model, key, model[key], f"model.{key}")
    if model["cls"] == "late" and model["cls_at"] is None:
        model["cls_at"] = model["depth"] - 2
    if model["head_dim"] is None:
        width, heads = model["width"], model["heads"]
        if width % heads:
            raise UserError(
                f"model.heads: {heads} heads do not divide width {width}: "
                f"set model.heads to a divisor, or model.head_dim"
            )
        model["head_dim"] = width // heads
    return model


def _arch(arch: Any, data: Data) -> dict[str, Any]:
    """Return the fields that `model.arch` stands for. Raise UserError for an unknown arch."""
    if isinstance(arch, str) and arch in ARCHS and ARCHS[arch].patch is not None:
        return dataclasses.asdict(ARCHS[arch])
    size, slash, rest = str(arch).rpartition("/")
    if rest.endswith("+"):  # published as S/16+
        size, rest = f"{size}+", rest[:-1]
    if size == "mlp":
        depth, x, width = rest.partition("x")
        if not (x and depth.isdecimal() and width.isdecimal()):
            raise UserError(
                f"model.arch: an MLP is mlp/DEPTHxWIDTH such as mlp/3x100, got {arch!r}"
            )
        sizes = {"depth": int(depth), "width": int(width), "patch": data.size}
        return dataclasses.asdict(ARCHS[size]) | sizes
    if not slash or not rest.isdecimal() or int(rest) == 0:
        raise UserError(
            f"model.arch: expected SIZE/PATCH such as S/16 (sizes: {', '.join(ARCHS)}), "
            f"got {arch!r}"
        )
    if size not in ARCHS:
        raise unknown_value("model.arch", size, ARCHS, "a size among")
    return dataclasses.asdict(ARCHS[size]) | {"patch": int(rest)}
