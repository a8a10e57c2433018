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
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
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
    """One setting of a choice: its type (as in an annotation), default and a line of help.

    One with a `host` takes, where it is not given (null), the value of that field of `Model`. One
    that was `added` to a choice when runs of it were there already has a default that means "as
    before" and is left out of `Run.id` while it has it.
    """

    type: Any
    default: Any
    line: str
    host: str | None = None
    added: bool = False


@dataclass(frozen=True)
class Choice:
    """One thing that may be chosen by name."""

    line: str
    source: str
    path: str
    params: Mapping[str, Param] = dataclasses.field(default_factory=dict)
    brings: tuple[str, ...] = ()  # groups that it decides itself: nothing may be chosen in them
    everywhere: bool = False  # a norm: takes the place of the final norm, too


Placement = Literal["pre", "post", "pre+post"]

_NORM_EPS = Param(float, 1e-5, "added to the variance")
_GROUPS = Param(int | None, None, "groups of channels; null: one a head")
_DTN = {
    "eps": _NORM_EPS,
    "locality_init": Param(bool, True, "heads start looking around their token; false: anywhere"),
}

NORMS: dict[str, Choice] = {
    "layernorm": Choice(
        "(x - mean) / sqrt(var + eps) over the channels of a token, then scale and bias",
        "Ba, Kiros, Hinton 2016 (arXiv 1607.06450); eps as in flax and DeiT",
        "ablate.model.norm:LayerNorm",
        {
            "eps": Param(float, None, "added to the variance; null: the host's", host="norm_eps"),
            "affine": Param(bool, True, "learn a scale and a bias"),
        },
    ),
    "rmsnorm": Choice(
        "scale * x / sqrt(mean(x^2) + eps) over the channels of a token: no centring, no bias",
        "Zhang, Sennrich 2019 (arXiv 1910.07467); eps as in flax",
        "ablate.model.norm:RMSNorm",
        {"eps": Param(float, 1e-6, "added to the mean square")},
    ),
    "batchnorm": Choice(
        "each channel over all tokens of the batch; running statistics in evaluation",
        "Ioffe, Szegedy 2015 (arXiv 1502.03167); on tokens as DTN/us_instancenorm.py",
        "ablate.model.norm:BatchNorm",
        {"eps": _NORM_EPS, "momentum": Param(float, 0.1, "share of a batch in the running values")},
    ),
    "instancenorm": Choice(
        "each channel over the tokens of one image",
        "Ulyanov, Vedaldi, Lempitsky 2016 (arXiv 1607.08022); DTN/us_instancenorm.py",
        "ablate.model.norm:InstanceNorm",
        {
            "eps": _NORM_EPS,
            "unbiased": Param(bool, True, "variance by N - 1 (DTN's); false: by N (torch's)"),
        },
    ),
    "groupnorm": Choice(
        "groups of channels over all tokens of one image, or of each token",
        "Wu, He 2018 (arXiv 1803.08494); DTN/us_groupnorm.py, powernorm/mask_groupnorm.py",
        "ablate.model.norm:GroupNorm",
        {
            "eps": _NORM_EPS,
            "groups": _GROUPS,
            "scope": Param(
                Literal["sequence", "token"], "sequence", "a group holds all tokens, or one"
            ),
        },
    ),
    "switchnorm": Choice(
        "a learned mixture of the statistics of instance, layer and batch norm",
        "Luo et al. 2018 (arXiv 1806.10779), switchable_norm.py; tokens as its image (assumed)",
        "ablate.model.norm:SwitchNorm",
        {
            "eps": _NORM_EPS,
            "momentum": Param(float, 0.9, "share of the running values that a step keeps"),
            "layer": Param(
                Literal["sample", "token"], "sample", "layer norm's part: of all tokens, or of one"
            ),
        },
    ),
    "scalenorm": Choice(
        "gain * x / max(||x||, eps) over the channels of a token",
        "Nguyen, Salazar 2019 (arXiv 1910.05895); DTN/us_scalenorm.py",
        "ablate.model.norm:ScaleNorm",
        {
            "gain": Param(
                Literal["vector", "scalar"], "vector", "a gain a channel (DTN's), or one in all"
            ),
            "eps": Param(float, 1e-5, "the least length to divide by"),
        },
    ),
    "powernorm": Choice(
        "x / sqrt(quadratic mean) of each channel over the batch, running after a warm-up",
        "Shen et al. 2020 (arXiv 2003.07845), powernorm/mask_powernorm.py",
        "ablate.model.norm:PowerNorm",
        {
            "eps": Param(float, 1e-5, "added to the mean squares"),
            "groups": _GROUPS,
            "warmup": Param(int, 10_000, "steps that use the batch's own quadratic mean"),
        },
    ),
    "dtn": Choice(
        "a token's statistics mixed with those of the tokens around it, weighted by position",
        "Shao et al. 2022 (arXiv 2112.02624), DTN/dtn.py",
        "ablate.model.norm:DTN",
        _DTN,
    ),
    "dtn_var": Choice(
        "dtn that mixes variances only",
        "Shao et al. 2022 (arXiv 2112.02624), DTN/dtn.py only_var",
        "ablate.model.norm:DTNVar",
        _DTN,
    ),
    "dtn_pool": Choice(
        "dtn whose surroundings are those of a coarser grid",
        "Shao et al. 2022 (arXiv 2112.02624), DTN/dtn.py",
        "ablate.model.norm:DTNPool",
        {**_DTN, "pool": Param(int, 14, "side of the coarse grid")},
    ),
    "dyt": Choice(
        "scale * tanh(alpha * x) + bias: no statistics",
        "Zhu et al. 2025 (arXiv 2503.10622), DyT/dynamic_tanh.py",
        "ablate.model.norm:DynamicTanh",
        {"alpha": Param(float, 0.5, "what the learned alpha starts at")},
        everywhere=True,
    ),
    "affine": Choice("scale * x + bias: no normalisation", "-", "ablate.model.norm:Affine"),
    "identity": Choice("x itself: no normalisation", "-", "ablate.model.norm:Identity"),
}

_EPS = Param(float, None, "of the norms; null: the host's", host="norm_eps")
_KIND = {"kind": Param(Literal["zca", "pca"], "zca", "rotated back (zca) or not (pca)")}
_STEM_ABLATION = "Dual PatchNorm (arXiv 2302.01327), section 7, Table 6"
_DPN_APPENDIX = "Dual PatchNorm (arXiv 2302.01327), appendix A; no formula is given"
_ASSUMED = "named in Dual PatchNorm (arXiv 2302.01327); definition assumed, none is public"

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
        {"eps": _EPS},
    ),
    "pre": Choice(
        "LN -> dense: the first half of Dual PatchNorm",
        _STEM_ABLATION,
        "ablate.model.stem:PreNorm",
        {"eps": _EPS},
    ),
    "post": Choice(
        "dense -> LN: the second half of Dual PatchNorm; PreLayerNorm of Kim et al.",
        f"{_STEM_ABLATION}; Kim et al. 2021 with bias=false, as Dual PatchNorm sums it up",
        "ablate.model.stem:PostNorm",
        {"eps": _EPS, "bias": Param(bool, True, "a bias in the dense layer")},
    ),
    "post_posemb": Choice(
        "dense, positions added -> LN",
        f"{_STEM_ABLATION}; CLIP's ln_pre (arXiv 2103.00020)",
        "ablate.model.stem:PostPosembNorm",
        {
            "eps": _EPS,
            "cls": Param(
                Literal["patches", "include_cls"],
                "patches",
                "is the class token normed with them (as in CLIP)?",
            ),
        },
    ),
    "only_learnable": Choice(
        "scale and bias -> dense -> scale and bias: Dual PatchNorm without its statistics",
        _STEM_ABLATION,
        "ablate.model.stem:OnlyLearnable",
    ),
    "no_learnable": Choice(
        "Dual PatchNorm without scales and biases",
        _STEM_ABLATION,
        "ablate.model.stem:NoLearnable",
        {"eps": _EPS},
    ),
    "rmsnorm": Choice(
        "RMSNorm -> dense -> RMSNorm",
        _STEM_ABLATION,
        "ablate.model.stem:DualRMSNorm",
        {"eps": _EPS},
    ),
    "conv": Choice(
        "3x3 convolutions with BatchNorm and ReLU, then dense; one block fewer",
        "Xiao et al. 2021 (arXiv 2106.14881), pycls/models/vit.py",
        "ablate.model.conv:ConvStem",
    ),
    "whiten": Choice(
        "patches decorrelated by a map fitted on the training images -> dense",
        _DPN_APPENDIX,
        "ablate.model.whiten:WhitenStem",
        _KIND,
    ),
    "whiten_ln": Choice(
        "patches decorrelated by a map fitted on the training images -> LN -> dense",
        _DPN_APPENDIX,
        "ablate.model.whiten:WhitenNormStem",
        {**_KIND, "eps": _EPS},
    ),
    "image_ln": Choice(
        "all values of an image standardised together, then patches -> dense",
        _ASSUMED,
        "ablate.model.stem:ImageNorm",
        {"eps": _EPS},
    ),
    "patch_ln": Choice(
        "all values of a patch standardised together, then dense",
        _ASSUMED,
        "ablate.model.stem:PatchNorm",
        {"eps": _EPS},
    ),
}

_NORMFORMER = "Shleifer, Weston, Ott 2021 (arXiv 2110.09456), fairseq transformer_layer.py"
_RES_SCALE = {"res_scale": Param(bool, False, "scale the MLP's skip connection, each channel")}

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
    "normformer": Choice(
        "norms before each sublayer, after self-attention and after the MLP's activation",
        f"{_NORMFORMER}; its norms only, as in Dual PatchNorm, section 5.2",
        "ablate.model.block:NormFormer",
        _RES_SCALE,
    ),
    "normformer_full": Choice(
        "normformer and a learned scale of each head before the output projection",
        _NORMFORMER,
        "ablate.model.block:NormFormerFull",
        _RES_SCALE,
    ),
    "subln": Choice(
        "norms before each sublayer and before its output projection; larger initial weights",
        "Wang et al. 2022 (arXiv 2210.06423), torchscale encoder.py",
        "ablate.model.block:SubLN",
        {
            "mlp_ln": Param(
                Literal["post_act", "pre_act"],
                "post_act",
                "the MLP's inner norm after its activation (torchscale) or before it",
            ),
            "init_gain": Param(bool, True, "v, out and MLP start sqrt(ln(2 depth)) larger"),
        },
    ),
    "bnffn": Choice(
        "BatchNorm inside the MLP, before its activation, and no norm before it: ViTBNFFN",
        "BatchNorm_in_Transformers_CV (model/vitbnffn.py)",
        "ablate.model.block:BatchNormFFN",
    ),
    "vitbn": Choice(
        "every norm, the final one too, a BatchNorm of one channel over all values: ViTBN",
        "BatchNorm_in_Transformers_CV",
        "ablate.model.block:BatchNormBlock",
        brings=("norm",),
    ),
}

# Groups whose options are generated from these tables: a new entry needs no file in conf/.
CHOICES: dict[str, dict[str, Choice]] = {"norm": NORMS, "stem": STEMS, "block": BLOCKS}


@dataclass(frozen=True)
class Arch:
    """A host: what `model.arch=NAME/PATCH` stands for. Any field can be overridden in `model`.

    One with a `patch` of its own is `model.arch=NAME`; an MLP is `model.arch=mlp/DEPTHxWIDTH`.
    """

    width: int
    depth: int
    heads: int
    source: str
    mlp_ratio: float = 4.0
    rep: bool = False
    patch: int | None = None
    kind: Literal["vit", "mlp"] = "vit"
    head_dim: int | None = None  # width / heads
    pool: Literal["tok", "gap"] = "tok"
    posemb: Literal["learn", "sincos2d"] = "learn"
    cls: Literal["include", "exclude", "late"] = "include"
    cls_posemb: bool = False
    qkv_bias: bool = True
    gelu: Literal["tanh", "erf"] = "tanh"
    init: Literal["big_vision", "deit", "torch"] = "big_vision"
    norm_eps: float = 1e-6


_BIG_VISION = "big_vision/models/vit.py decode_variant; arXiv 2106.04560, Table 2"
_PLUS = "big_vision/configs/vit_s16_i1k.py; arXiv 2205.01580"
_DEIT_HOST = partial(
    Arch, source="deit/models.py; arXiv 2012.12877", cls_posemb=True, gelu="erf", init="deit"
)
_DTN_HOST = partial(
    Arch,
    source="DTN/models/vit_norm_mix.py; arXiv 2112.02624",
    cls="late",
    qkv_bias=False,
    gelu="erf",
    init="deit",
    norm_eps=1e-5,
)
ARCHS: dict[str, Arch] = {
    "mu": Arch(32, 1, 2, _BIG_VISION),
    "Ti": Arch(192, 12, 3, _BIG_VISION),
    "S": Arch(384, 12, 6, _BIG_VISION),
    "B": Arch(768, 12, 12, _BIG_VISION),
    "L": Arch(1024, 24, 16, _BIG_VISION),
    "H": Arch(1280, 32, 16, _BIG_VISION),
    "S+": Arch(384, 12, 6, _PLUS, pool="gap", posemb="sincos2d", rep=True),
    "deit_ti": _DEIT_HOST(192, 12, 3),
    "deit_s": _DEIT_HOST(384, 12, 6),
    "deit_b": _DEIT_HOST(768, 12, 12),
    "dtn_t": _DTN_HOST(192, 12, 3),
    "dtn_t_star": _DTN_HOST(192, 12, 4),
    "dtn_s": _DTN_HOST(384, 12, 6),
    "dtn_s_star": _DTN_HOST(432, 12, 9),
    "dtn_b": _DTN_HOST(768, 12, 12),
    "dtn_b_star": _DTN_HOST(768, 12, 16),
    "mnist_vit": Arch(
        64,
        4,
        8,
        "BatchNorm_in_Transformers_CV (model/vit_org.py); its depth is varied",
        mlp_ratio=2.0,
        patch=7,
        head_dim=64,
        cls_posemb=True,
        qkv_bias=False,
        gelu="erf",
        init="torch",
        norm_eps=1e-5,
    ),
    "mlp": Arch(
        100,
        3,
        1,
        "BatchNorm_in_Transformers_CV (model/dnn.py): sigmoids, a norm before each",
        mlp_ratio=1.0,
        kind="mlp",
        pool="gap",
        init="torch",
        norm_eps=1e-5,
    ),
}


# --- What a run is ------------------------------------------------------------------------------
# What a run is stands in full in its run.json, and conf/ supplies the defaults. Only a field that
# was added later has a default here: it means "as before" and is left out of `Run.id` while the
# field has it, so old run.jsons are read and their ids stay.


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
    for section in kept:
        for key, before in _added_in(section, kept[section]).items():
            if kept[section].get(key, before) == before:
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
    )
    _check(run)
    return run


def with_seed(run: Run, seed: int) -> Run:
    """The same cell under another seed."""
    return dataclasses.replace(run, seed=seed)


def _same_keys(place: str, tree: Any, expected: Iterable[str], added: Collection[str] = ()) -> None:
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
        params = CHOICES[section][tree["name"]].params
        return {key: param.default for key, param in params.items() if param.added}
    return _added(hints(Run)[section])


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
    _same_keys(place, tree, hints(cls), _added(cls))
    return cls(
        **{
            key: coerce(tree[key], hint, f"{place}.{key}")
            for key, hint in hints(cls).items()
            if key in tree
        }
    )


def _chosen(kind: str, tree: Any, model: Model) -> Chosen:
    table = CHOICES[kind]
    if isinstance(tree, str):  # a name where settings stand: what an unknown group choice leaves
        raise unknown(kind, tree, table)
    name = tree.get("name") if isinstance(tree, Mapping) else tree
    if not isinstance(name, str) or name not in table:
        raise unknown(kind, name, table)
    params = table[name].params
    _same_keys(kind, tree, ["name", *params], [key for key, p in params.items() if p.added])
    settings = {}
    for key, param in params.items():
        value = tree.get(key, param.default)
        if value is None and param.host is not None:
            value = getattr(model, param.host)
        settings[key] = coerce(value, param.type, f"{kind}.{key}")
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
    _same_keys("model", tree, hints(Model), _added(Model))
    defaults = _arch(tree["arch"], data)
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
        ("model.norm_eps", model.norm_eps),
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
    _check_choices(run)
    if model.kind == "mlp":
        _check_mlp(model)
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


def _check_choices(run: Run) -> None:
    """Nothing is chosen where it would have no effect."""
    brought = dict.fromkeys(BLOCKS[run.block.name].brings, f"block={run.block.name}")
    if run.model.kind == "mlp":
        brought |= dict.fromkeys(("stem", "block"), f"model.arch={run.model.arch}")
    for group, by in brought.items():
        name = DEFAULTS[group]
        if getattr(run, group) != _chosen(group, _defaults(group, name), run.model):
            raise UserError(
                f"{group}: {by} has none to choose; leave {group} out (it is {name} by default)"
            )


DEFAULTS = {"norm": "layernorm", "stem": "none", "block": "vit"}  # as in conf/config.yaml


def _defaults(group: str, name: str) -> dict[str, Any]:
    params = CHOICES[group][name].params
    return {"name": name, **{key: param.default for key, param in params.items()}}


def _check_mlp(model: Model) -> None:
    own = {"arch", "kind", "patch", "width", "depth", "head_dim", "head_bias", "init", "norm_eps"}
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
