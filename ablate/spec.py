"""What a run is, and what may be chosen. Plain values and the standard library only.

Both halves import this file: the control half to validate what the user asked for before anything
starts, the training half to read it back from `run.json`. What may be chosen (norms, stems, blocks,
sizes) is data here: a name, a line, a citation, its settings and the import path of its class. The
classes live in `ablate/model`; a test checks that the two agree.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin


class UserError(Exception):
    """A mistake of the user's: one line that names the place, the value and the remedy. Exit 2."""


class Failure(Exception):
    """Something broke that the user did not do wrong: one line. Exit 1."""


def unknown(
    place: str, value: object, choices: Iterable[object], what: str = "one of"
) -> UserError:
    """The error for a value outside its choices, with the nearest one where there is one."""
    names = [str(choice) for choice in choices]
    near = difflib.get_close_matches(value, names, n=1) if isinstance(value, str) else []
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return UserError(f"{place}: expected {what} {', '.join(names)}, got {value!r}{hint}")


# --- What may be chosen -------------------------------------------------------------------------


@dataclass(frozen=True)
class Param:
    """One setting of a choice: its type (as in an annotation), default and a line of help."""

    type: Any
    default: Any
    line: str


@dataclass(frozen=True)
class Choice:
    """One thing that may be chosen by name."""

    line: str
    source: str
    path: str
    params: Mapping[str, Param] = dataclasses.field(default_factory=dict)


Placement = Literal["pre", "post", "pre+post"]

NORMS: dict[str, Choice] = {
    "layernorm": Choice(
        "(x - mean) / sqrt(var + eps) over the channels of a token, then scale and bias",
        "Ba, Kiros, Hinton 2016 (arXiv 1607.06450); eps as in flax and DeiT",
        "ablate.model.norm:LayerNorm",
        {
            "eps": Param(float, 1e-6, "added to the variance"),
            "affine": Param(bool, True, "learn a scale and a bias"),
        },
    ),
    "identity": Choice("x itself: no normalisation", "-", "ablate.model.norm:Identity"),
}

STEMS: dict[str, Choice] = {
    "none": Choice(
        "patches -> dense, nothing normalised: the plain ViT",
        "Dosovitskiy et al. 2021 (arXiv 2010.11929)",
        "ablate.model.stem:Plain",
    ),
    "dpn": Choice(
        "LN -> dense -> LN: Dual PatchNorm",
        "Kumar, Dehghani, Houlsby 2023 (arXiv 2302.01327), Eq. 3-4",
        "ablate.model.stem:DualPatchNorm",
        {"eps": Param(float, 1e-6, "of both LayerNorms")},
    ),
}

BLOCKS: dict[str, Choice] = {
    "vit": Choice(
        "self-attention and MLP, each with norms before, after, or both",
        "Dual PatchNorm (arXiv 2302.01327), section 4.1",
        "ablate.model.block:Block",
        {
            "attn": Param(Placement, "pre", "where the norms of self-attention stand"),
            "mlp": Param(Placement, "pre", "where the norms of the MLP stand"),
            "post": Param(
                Literal["residual", "branch"],
                "residual",
                "a post norm follows the addition (residual) or precedes it (branch)",
            ),
        },
    ),
}

# Groups whose options are generated from these tables: a new entry needs no file in conf/.
CHOICES: dict[str, dict[str, Choice]] = {"norm": NORMS, "stem": STEMS, "block": BLOCKS}


@dataclass(frozen=True)
class Arch:
    """A size: what `model.arch=NAME/PATCH` stands for. Any field can be overridden in `model`.

    One with a `patch` of its own is `model.arch=NAME`.
    """

    width: int
    depth: int
    heads: int
    source: str
    mlp_ratio: float = 4.0
    rep: bool = False
    patch: int | None = None


_BIG_VISION = "big_vision/models/vit.py decode_variant; arXiv 2106.04560, Table 2"
ARCHS: dict[str, Arch] = {
    "mu": Arch(32, 1, 2, _BIG_VISION),
    "Ti": Arch(192, 12, 3, _BIG_VISION),
    "S": Arch(384, 12, 6, _BIG_VISION),
    "B": Arch(768, 12, 12, _BIG_VISION),
    "L": Arch(1024, 24, 16, _BIG_VISION),
    "H": Arch(1280, 32, 16, _BIG_VISION),
}


# --- What a run is ------------------------------------------------------------------------------
# No field has a default: what a run is stands in full in its run.json, and conf/ supplies the
# defaults. A field added later gets a default that means "as before" and is left out of `Run.id`
# while it has that value, so the ids of old runs stay.


@dataclass(frozen=True)
class Chosen:
    """A choice made: its name and every setting."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Data:
    """From what is learnt. Images are square, `size` x `size` x `channels`, 8 bit."""

    name: str
    source: Literal["sklearn", "datasets"]
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


@dataclass(frozen=True)
class Optim:
    """AdamW; `wd` decays dense kernels only and is multiplied by the learning rate."""

    lr: float
    wd: float
    b1: float
    b2: float
    eps: float
    clip: float | None  # global gradient norm; None: no clipping
    warmup_epochs: float
    schedule: Literal["cosine", "constant"]


@dataclass(frozen=True)
class Train:
    """How long and in what arithmetic. `steps`, where given, wins over `epochs`."""

    epochs: float
    steps: int | None
    batch: int
    micro_batch: int | None  # None: the whole batch at once
    precision: Literal["fp32", "bf16", "fp64"]
    deterministic: bool
    label_smoothing: float


@dataclass(frozen=True)
class Augment:
    """Random changes of training images, drawn per image."""

    flip: bool
    crop_pad: int  # zero-pad by this many pixels on each side, crop back; 0: off


@dataclass(frozen=True)
class Eval:
    """When validation is measured. Test is measured once, at the end."""

    every: int  # epochs
    batch: int


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

    @property
    def id(self) -> str:
        """16 hex digits: sha256 of what the training depends on, the data by its content."""
        return run_id(identity(self), self.seed)


# Where a thing lies, and names for what other fields say in full, are not what a run is.
NOT_IDENTITY = {("data", "path"), ("model", "arch")}


def identity(run: Run) -> str:
    """Canonical JSON of everything in the id but the seed: equal for all seeds of a cell."""
    return tree_identity(to_tree(run))


def tree_identity(tree: Mapping[str, Any]) -> str:
    """`identity`, of what `to_tree` made of a run."""
    kept = {key: value for key, value in tree.items() if key != "seed"}
    for section, key in NOT_IDENTITY:
        kept[section] = {k: v for k, v in kept[section].items() if k != key}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))


def run_id(identity: str, seed: int) -> str:
    """The id of one seed of a cell, given the cell's `identity`."""
    return hashlib.sha256(f"{identity}#{seed}".encode()).hexdigest()[:16]


def to_tree(spec: Any) -> dict[str, Any]:
    """Plain dicts of a spec, for JSON. A choice is written flat: name and settings."""
    tree: dict[str, Any] = {}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if isinstance(value, Chosen):
            tree[field.name] = {"name": value.name, **value.settings}
        elif dataclasses.is_dataclass(value):
            tree[field.name] = to_tree(value)
        else:
            tree[field.name] = value
    return tree


# --- From a plain tree to a Run -----------------------------------------------------------------

RECIPE_SECTIONS = ("optim", "train", "data", "augment", "eval")  # a variant's key here: a confound


def build(tree: Mapping[str, Any]) -> Run:
    """A validated `Run` from the plain tree that composition made.

    Raises UserError, one line with the dotted key, the value and what was expected: for unknown
    and missing keys, wrong types, values out of range and impossible geometry.
    """
    _same_keys("", tree, hints(Run))
    data = section(Data, tree["data"], "data")
    model = section(Model, _expand(tree["model"], data), "model")
    chosen = {kind: _chosen(kind, tree[kind]) for kind in CHOICES}
    run = Run(
        data=data,
        model=model,
        **chosen,
        optim=section(Optim, tree["optim"], "optim"),
        train=section(Train, tree["train"], "train"),
        augment=section(Augment, tree["augment"], "augment"),
        eval=section(Eval, tree["eval"], "eval"),
        seed=coerce(tree["seed"], int, "seed"),
    )
    _check(run)
    return run


def with_seed(run: Run, seed: int) -> Run:
    """The same cell under another seed."""
    return dataclasses.replace(run, seed=seed)


def _same_keys(place: str, tree: Any, expected: Iterable[str]) -> None:
    if not isinstance(tree, Mapping):
        raise UserError(f"{place or 'config'}: expected settings (key: value), got {tree!r}")
    names = list(expected)
    dot = f"{place}." if place else ""
    for key in tree:
        if key not in names:
            raise unknown(f"{dot}{key}", key, names, "a key among")
    for name in names:
        if name not in tree or tree[name] == "???":
            raise UserError(f"{dot}{name}: missing; give {dot}{name}=VALUE")


@functools.cache  # evaluating annotations takes longer than all the rest of `build`
def hints(cls: Any) -> dict[str, Any]:
    """The evaluated annotations of a dataclass."""
    return typing.get_type_hints(cls)


def section(cls: Any, tree: Any, place: str) -> Any:
    """A dataclass from its plain tree. Raises UserError as `build` does."""
    _same_keys(place, tree, hints(cls))
    return cls(
        **{key: coerce(tree[key], hint, f"{place}.{key}") for key, hint in hints(cls).items()}
    )


def _chosen(kind: str, tree: Any) -> Chosen:
    table = CHOICES[kind]
    if isinstance(tree, str):  # a name where settings stand: what an unknown group choice leaves
        raise unknown(kind, tree, table)
    name = tree.get("name") if isinstance(tree, Mapping) else tree
    if not isinstance(name, str) or name not in table:
        raise unknown(kind, name, table)
    params = table[name].params
    _same_keys(kind, tree, ["name", *params])
    settings = {key: coerce(tree[key], p.type, f"{kind}.{key}") for key, p in params.items()}
    return Chosen(name, settings)


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
    if get_origin(hint) in (typing.Union, types.UnionType):
        options = get_args(hint)
        for option in options:
            if option is type(None):
                if value is None:
                    return None
            elif isinstance(value, option) and not isinstance(value, bool):
                return value
        wide = [option for option in options if option is float]
        if wide and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        names = " or ".join("null" if o is type(None) else _TYPES[o] for o in options)
        raise UserError(f"{place}: expected {names}, got {value!r}")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise UserError(f"{place}: expected {_TYPES[hint]}, got {value!r}")
    return value


_TYPES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _expand(tree: Any, data: Data) -> dict[str, Any]:
    """`model.arch` spelled out: every null in `model` takes the architecture's value."""
    _same_keys("model", tree, hints(Model))
    arch = tree["arch"]
    if isinstance(arch, str) and arch in ARCHS and ARCHS[arch].patch is not None:
        defaults: dict[str, Any] = dataclasses.asdict(ARCHS[arch])
    else:
        size, slash, patch = str(arch).rpartition("/")
        if not slash or not patch.isdecimal() or int(patch) == 0:
            raise UserError(
                f"model.arch: expected SIZE/PATCH such as S/16 (sizes: {', '.join(ARCHS)}), "
                f"got {arch!r}"
            )
        if size not in ARCHS:
            raise unknown("model.arch", size, ARCHS, "a size among")
        defaults = dataclasses.asdict(ARCHS[size]) | {"patch": int(patch)}
    model: dict[str, Any] = {k: defaults.get(k) if v is None else v for k, v in tree.items()}
    if model["head_dim"] is None:
        width, heads = model["width"], model["heads"]
        for key, value in (("width", width), ("heads", heads)):
            _positive(f"model.{key}", coerce(value, int, f"model.{key}"))
        if width % heads:
            raise UserError(
                f"model.heads: {heads} heads do not divide width {width}: "
                f"set model.heads to a divisor, or model.head_dim"
            )
        model["head_dim"] = width // heads
    return model


def _positive(place: str, value: float) -> None:
    if not value > 0:
        raise UserError(f"{place}: must be more than 0, got {value}")


def _check(run: Run) -> None:
    """What types alone do not say."""
    data, model, train, optim = run.data, run.model, run.train, run.optim
    for place, value in (
        ("data.size", data.size),
        ("data.channels", data.channels),
        ("model.patch", model.patch),
        ("model.width", model.width),
        ("model.depth", model.depth),
        ("model.heads", model.heads),
        ("model.head_dim", model.head_dim),
        ("model.mlp_ratio", model.mlp_ratio),
        ("optim.lr", optim.lr),
        ("optim.eps", optim.eps),
        ("train.batch", train.batch),
        ("eval.every", run.eval.every),
        ("eval.batch", run.eval.batch),
    ):
        _positive(place, value)
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
        ("augment.crop_pad", run.augment.crop_pad),
        ("seed", run.seed),
    ):
        if value < 0:
            raise UserError(f"{place}: must not be negative, got {value}")
    if train.steps is None:
        _positive("train.epochs", train.epochs)
    else:
        _positive("train.steps", train.steps)
    if optim.clip is not None:
        _positive("optim.clip", optim.clip)
    if train.micro_batch is not None:
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
