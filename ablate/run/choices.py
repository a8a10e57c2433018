"""Norms, stems, blocks, optimisers, probes and archs that a run may choose, as data. The standard
library only.

A choice has a name, a line of help, a citation, its settings and the import path of its class. The
classes live in `ablate/training`; a test checks that the two agree.

Used by every plan (planning/settings.py, run/build.py), `ablate list` (report/listing.py) and the
model (training/model/__init__.py). A new choice also needs its class in training/, a new optimiser
its branch in training/optim.py, a new `Placement` its line in `PLACES` of training/model/block.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ablate.run.schema import Param


@dataclass(frozen=True)
class Choice:
    """An alternative that a run may choose by name: a norm, a stem, a block or a probe."""

    line: str
    source: str
    path: str
    params: Mapping[str, Param] = dataclasses.field(default_factory=dict)
    brings: tuple[str, ...] = ()  # groups that it decides itself: nothing may be chosen in them
    everywhere: bool = False  # a norm, or a block: its norm takes the place of the final one, too
    saves_blocks: int = 0  # a stem: how many blocks fewer the encoder has
    # Of a norm: the settings with which a token's output depends on no other token. {}: any
    # settings; None: no settings.
    tokenwise: Mapping[str, str] | None = None
    # Other names in the literature of some of its settings: name -> the settings.
    spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)


Placement = Literal["pre", "post", "pre+post"]

_NORM_EPS = Param(float, 1e-5, "added to the variance", least=0)
_GROUPS = Param(int | None, None, "groups of channels; null: one a head", host="heads")
_DTN = {
    "eps": _NORM_EPS,
    "locality_init": Param(bool, True, "heads start looking around their token; false: anywhere"),
}

NORMS: dict[str, Choice] = {
    "layernorm": Choice(
        "(x - mean) / sqrt(var + eps) over the channels of a token, then scale and bias",
        "Ba, Kiros, Hinton 2016 (arXiv 1607.06450); eps as in flax and DeiT",
        "ablate.training.model.norm:LayerNorm",
        {
            "eps": Param(
                float, None, "added to the variance; null: the host's", host="norm_eps", least=0
            ),
            "affine": Param(bool, True, "learn a scale and a bias"),
        },
        tokenwise={},
    ),
    "rmsnorm": Choice(
        "scale * x / sqrt(mean(x^2) + eps) over the channels of a token: no centring, no bias",
        "Zhang, Sennrich 2019 (arXiv 1910.07467); eps as in flax",
        "ablate.training.model.norm:RMSNorm",
        {"eps": Param(float, 1e-6, "added to the mean square", least=0)},
        tokenwise={},
    ),
    "batchnorm": Choice(
        "each channel over all tokens of the batch; running statistics in evaluation",
        "Ioffe, Szegedy 2015 (arXiv 1502.03167); on tokens as DTN/us_instancenorm.py",
        "ablate.training.model.norm:BatchNorm",
        {"eps": _NORM_EPS, "momentum": Param(float, 0.1, "share of a batch in the running values")},
    ),
    "instancenorm": Choice(
        "each channel over the tokens of one image",
        "Ulyanov, Vedaldi, Lempitsky 2016 (arXiv 1607.08022); DTN/us_instancenorm.py",
        "ablate.training.model.norm:InstanceNorm",
        {
            "eps": _NORM_EPS,
            "unbiased": Param(bool, True, "variance by N - 1 (DTN's); false: by N (torch's)"),
        },
    ),
    "groupnorm": Choice(
        "groups of channels over all tokens of one image, or of each token",
        "Wu, He 2018 (arXiv 1803.08494); DTN/us_groupnorm.py, powernorm/mask_groupnorm.py",
        "ablate.training.model.norm:GroupNorm",
        {
            "eps": _NORM_EPS,
            "groups": _GROUPS,
            "scope": Param(
                Literal["sequence", "token"], "sequence", "a group holds all tokens, or one"
            ),
        },
        tokenwise={"scope": "token"},
    ),
    "switchnorm": Choice(
        "a learned mixture of the statistics of instance, layer and batch norm",
        "Luo et al. 2018 (arXiv 1806.10779), switchable_norm.py; tokens as its image (assumed)",
        "ablate.training.model.norm:SwitchNorm",
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
        "ablate.training.model.norm:ScaleNorm",
        {
            "gain": Param(
                Literal["vector", "scalar"], "vector", "a gain a channel (DTN's), or one in all"
            ),
            "eps": Param(float, 1e-5, "the least length to divide by", least=0),
        },
        tokenwise={},
    ),
    "powernorm": Choice(
        "x / sqrt(quadratic mean) of each channel over the batch, running after a warm-up",
        "Shen et al. 2020 (arXiv 2003.07845), powernorm/mask_powernorm.py",
        "ablate.training.model.norm:PowerNorm",
        {
            "eps": Param(float, 1e-5, "added to the mean squares", least=0),
            "groups": _GROUPS,
            "warmup": Param(int, 10_000, "steps that use the batch's own quadratic mean"),
        },
    ),
    "dtn": Choice(
        "a token's statistics mixed with those of the tokens around it, weighted by position",
        "Shao et al. 2022 (arXiv 2112.02624), DTN/dtn.py",
        "ablate.training.model.norm:DTN",
        _DTN,
    ),
    "dtn_var": Choice(
        "dtn that mixes variances only",
        "Shao et al. 2022 (arXiv 2112.02624), DTN/dtn.py only_var",
        "ablate.training.model.norm:DTNVar",
        _DTN,
    ),
    "dtn_pool": Choice(
        "dtn whose surroundings are those of a coarser grid",
        "Shao et al. 2022 (arXiv 2112.02624), DTN/dtn.py",
        "ablate.training.model.norm:DTNPool",
        {**_DTN, "pool": Param(int, 14, "side of the coarse grid")},
    ),
    "dyt": Choice(
        "scale * tanh(alpha * x) + bias: no statistics",
        "Zhu et al. 2025 (arXiv 2503.10622), DyT/dynamic_tanh.py",
        "ablate.training.model.norm:DynamicTanh",
        {"alpha": Param(float, 0.5, "initial value of the learned alpha")},
        everywhere=True,
        tokenwise={},
    ),
    "derf": Choice(
        "scale * erf(alpha * x + shift) + bias: no statistics",
        "Chen et al. 2025 (arXiv 2512.10938), Eq. 10, Derf/ViT/dynamic_erf.py",
        "ablate.training.model.norm:DynamicErf",
        {
            "alpha": Param(float, 0.5, "initial value of the learned alpha"),
            "shift": Param(float, 0.0, "initial value of the learned shift"),
        },
        everywhere=True,
        tokenwise={},
    ),
    "affine": Choice(
        "scale * x + bias: no normalisation",
        "-",
        "ablate.training.model.norm:Affine",
        tokenwise={},
    ),
    "identity": Choice(
        "x itself: no normalisation",
        "-",
        "ablate.training.model.norm:Identity",
        tokenwise={},
    ),
}

_EPS = Param(float, None, "of the norms; null: the host's", host="norm_eps", least=0)
_KIND = {"kind": Param(Literal["zca", "pca"], "zca", "rotated back (zca) or not (pca)")}
_STEM_ABLATION = "Dual PatchNorm (arXiv 2302.01327), section 7, Table 6"
_DPN_APPENDIX = "Dual PatchNorm (arXiv 2302.01327), appendix A; no formula is given"
_VITBN = "BatchNorm_in_Transformers_CV (model/vitbn.py) as its code builds it"
_ASSUMED = "named in Dual PatchNorm (arXiv 2302.01327); definition assumed, none is public"

STEMS: dict[str, Choice] = {
    "none": Choice(
        "patches -> dense, nothing normalised: the plain ViT",
        "Dosovitskiy et al. 2021 (arXiv 2010.11929)",
        "ablate.training.model.stem:Plain",
    ),
    "dpn": Choice(
        "LN -> dense -> LN: Dual PatchNorm",
        "Kumar, Dehghani, Houlsby 2023 (arXiv 2302.01327), Eq. 3-4",
        "ablate.training.model.stem:DualPatchNorm",
        {"eps": _EPS},
    ),
    "pre": Choice(
        "LN -> dense: the first half of Dual PatchNorm",
        _STEM_ABLATION,
        "ablate.training.model.stem:PreNorm",
        {"eps": _EPS},
    ),
    "post": Choice(
        "dense -> LN: the second half of Dual PatchNorm; PreLayerNorm of Kim et al.",
        f"{_STEM_ABLATION}; Kim et al. 2021 with bias=false, as Dual PatchNorm sums it up",
        "ablate.training.model.stem:PostNorm",
        {"eps": _EPS, "bias": Param(bool, True, "a bias in the dense layer")},
    ),
    "post_posemb": Choice(
        "dense, positions added -> LN",
        f"{_STEM_ABLATION}; CLIP's ln_pre (arXiv 2103.00020)",
        "ablate.training.model.stem:PostPosembNorm",
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
        "ablate.training.model.stem:OnlyLearnable",
    ),
    "no_learnable": Choice(
        "Dual PatchNorm without scales and biases",
        _STEM_ABLATION,
        "ablate.training.model.stem:NoLearnable",
        {"eps": _EPS},
    ),
    "rmsnorm": Choice(
        "RMSNorm -> dense -> RMSNorm",
        _STEM_ABLATION,
        "ablate.training.model.stem:DualRMSNorm",
        {"eps": _EPS},
    ),
    "vitbn": Choice(
        "BatchNorm of one channel over all values -> dense -> the same: the stem of ViTBN",
        f"{_VITBN}, not the BatchNorm of each channel that a checkpoint there was trained with",
        "ablate.training.model.stem:DualBatchNorm",
    ),
    "conv": Choice(
        "3x3 convolutions with BatchNorm and ReLU, then dense; one block fewer",
        "Xiao et al. 2021 (arXiv 2106.14881), pycls/models/vit.py",
        "ablate.training.model.stem:ConvStem",
        saves_blocks=1,
    ),
    "hmlp": Choice(
        "each patch by itself: dense on squares of a quarter of its side, then twice on 2x2 of "
        "what that gives, each with BatchNorm, GELU between them",
        "Touvron et al. 2022 (arXiv 2203.09795), deit/models_v2.py hMLP_stem",
        "ablate.training.model.stem:HierarchicalMLP",
    ),
    "whiten": Choice(
        "patches decorrelated by a map fitted on the training images -> dense",
        _DPN_APPENDIX,
        "ablate.training.model.whiten:WhitenStem",
        _KIND,
    ),
    "whiten_ln": Choice(
        "patches decorrelated by a map fitted on the training images -> LN -> dense",
        _DPN_APPENDIX,
        "ablate.training.model.whiten:WhitenNormStem",
        {**_KIND, "eps": _EPS},
    ),
    "image_ln": Choice(
        "all values of an image standardised together, then patches -> dense",
        _ASSUMED,
        "ablate.training.model.stem:ImageNorm",
        {"eps": _EPS},
    ),
    "patch_ln": Choice(
        "all values of a patch standardised together, then dense",
        _ASSUMED,
        "ablate.training.model.stem:PatchNorm",
        {"eps": _EPS},
    ),
}

_NORMFORMER = "Shleifer, Weston, Ott 2021 (arXiv 2110.09456), fairseq transformer_layer.py"
_PRE_NORM = "block.attn=pre block.mlp=pre"
_POST_NORM = "block.attn=post block.mlp=post"
_RES_POST_NORM = f"{_POST_NORM} block.post=branch"
_PERI_LN = "block.attn=pre+post block.mlp=pre+post block.post=branch"
_RES_SCALE = {"res_scale": Param(bool, False, "scale the MLP's skip connection, each channel")}

BLOCKS: dict[str, Choice] = {
    "vit": Choice(
        "self-attention and MLP, each with norms before, after, or both",
        "Dual PatchNorm (arXiv 2302.01327), section 4.1",
        "ablate.training.model.block:Block",
        {
            "attn": Param(Placement, "pre", "where the norms of self-attention stand"),
            "mlp": Param(Placement, "pre", "where the norms of the MLP stand"),
            "post": Param(
                Literal["residual", "branch"],
                "residual",
                "a post norm follows the addition (residual) or precedes it (branch)",
            ),
        },
        spellings={
            **{"pre_ln": _PRE_NORM, "pre_norm": _PRE_NORM},
            **{"post_ln": _POST_NORM, "post_norm": _POST_NORM},
            **{"res_post_norm": _RES_POST_NORM, "swin_v2": _RES_POST_NORM},
            **{"peri_ln": _PERI_LN, "sandwich": _PERI_LN, "sandwich_ln": _PERI_LN},
        },
    ),
    "normformer": Choice(
        "norms before each sublayer, after self-attention and after the MLP's activation",
        f"{_NORMFORMER}; its norms only, as in Dual PatchNorm, section 5.2",
        "ablate.training.model.block:NormFormer",
        _RES_SCALE,
    ),
    "normformer_full": Choice(
        "normformer and a learned scale of each head before the output projection",
        _NORMFORMER,
        "ablate.training.model.block:NormFormerFull",
        _RES_SCALE,
    ),
    "subln": Choice(
        "norms before each sublayer and before its output projection; larger initial weights",
        "Wang et al. 2022 (arXiv 2210.06423), torchscale encoder.py",
        "ablate.training.model.block:SubLN",
        {
            "mlp_ln": Param(
                Literal["post_act", "pre_act"],
                "post_act",
                "the MLP's inner norm after its activation (torchscale) or before it",
            ),
            "init_gain": Param(bool, True, "v, out and MLP start sqrt(ln(2 depth)) larger"),
        },
    ),
    "lns": Choice(
        "norms before each sublayer over the root of the block's number 1, 2, ...: LayerNorm "
        "Scaling",
        "Sun et al. 2025 (arXiv 2502.05795), LayerNorm-Scaling modeling_llama.py",
        "ablate.training.model.block:LayerNormScaling",
    ),
    "mixln": Choice(
        "norms after the addition in the first blocks, before each sublayer in the others: Mix-LN",
        "Li, Yin, Liu 2024 (arXiv 2412.13795), MixLN modeling_llama.py",
        "ablate.training.model.block:MixLN",
        {
            "share": Param(
                float,
                0.25,
                "of the blocks, rounded down: norms after the addition",
                least=0,
                most=1,
            )
        },
    ),
    "hybridnorm": Choice(
        "norms of each head's queries, keys and values, and one after attention's addition, which "
        "the MLP and its skip connection share",
        "Zhuo et al. 2025 (arXiv 2503.04598), HybridNorm olmo/model.py",
        "ablate.training.model.block:HybridNorm",
        {
            "pre_first": Param(
                bool, False, "norms before each sublayer in the first block: HybridNorm*"
            )
        },
    ),
    "deepnorm": Choice(
        "norms after the addition, skip connections times (2 depth)^(1/4), smaller initial weights",
        "Wang et al. 2022 (arXiv 2203.00555), torchscale encoder.py",
        "ablate.training.model.block:DeepNorm",
        {"init_gain": Param(bool, True, "v, out and MLP start (8 depth)^(1/4) smaller")},
    ),
    "bnffn": Choice(
        "BatchNorm inside the MLP, before its activation, and no norm before it: ViTBNFFN",
        "BatchNorm_in_Transformers_CV (model/vitbnffn.py)",
        "ablate.training.model.block:BatchNormFFN",
    ),
    "vitbn": Choice(
        "every norm, the final one too, a BatchNorm of one channel over all values, the MLP's "
        "between its layers: ViTBN, whose stem is stem=vitbn",
        _VITBN,
        "ablate.training.model.block:BatchNormBlock",
        {
            "mlp": Param(
                Literal["inner", "pre"],
                "inner",
                "where the MLP's norm stands: before its activation (released), or before the MLP",
            )
        },
        brings=("norm",),
        everywhere=True,
    ),
}

# Groups whose options are generated from these tables: a new entry needs no file in conf/.
CHOICES: dict[str, dict[str, Choice]] = {"norm": NORMS, "stem": STEMS, "block": BLOCKS}
DEFAULTS = {"norm": "layernorm", "stem": "none", "block": "vit"}  # as in conf/config.yaml


@dataclass(frozen=True)
class Moves:
    """An optimiser: a line of help, a citation, and the keys of `optim` that it reads in addition
    to those that every optimiser reads."""

    line: str
    source: str
    keys: tuple[str, ...]


# The keys of `optim` that every recipe gives, though not every optimiser reads them.
PER_RECIPE = ("b1", "b2", "eps")

OPTIMIZERS: dict[str, Moves] = {
    "adamw": Moves(
        "Adam with decoupled weight decay",
        "Loshchilov, Hutter 2019 (arXiv 1711.05101)",
        ("b1", "b2", "eps"),
    ),
    "lamb": Moves(
        "adamw's step, rescaled for each weight to lr times the weight's length; what doesn't "
        "decay moves as by adamw",
        "You et al. 2020 (arXiv 1904.00962), Algorithm 2, as in apex's FusedLAMB",
        ("b1", "b2", "eps"),
    ),
    "sgd": Moves("heavy ball: b1 is its momentum", "torch.optim.SGD", ("b1",)),
    "lion": Moves(
        "the sign of gradient and momentum mixed (b1), then the momentum (b2); lr is about a "
        "tenth of adamw's, wd ten times as much",
        "Chen et al. 2023 (arXiv 2302.06675), Algorithm 2",
        ("b1", "b2"),
    ),
    "adafactor": Moves(
        "mean squares by rows and columns, rates relative to a weight's size; lr is about 1e-2, "
        "1 / sqrt(step) at most",
        "Shazeer, Stern 2018 (arXiv 1804.04235), torch.optim.Adafactor; not big_vision's",
        ("beta2_decay", "clip_threshold"),
    ),
    "adafactor_bv": Moves(
        "big_vision's: mean squares by rows and columns, of which b2 is the largest share that is "
        "kept, and a momentum, b1; rate and decay as adamw's",
        "Zhai et al. 2022 (arXiv 2106.04560), big_vision/optax.py scale_by_adafactor",
        ("b1", "b2", "beta2_decay"),
    ),
    "muon": Moves(
        "momentum made orthogonal, of the matrices in blocks as they are stored (queries, keys and "
        "values are one); adamw moves the rest",
        "Jordan et al. 2024 (kellerjordan.github.io/posts/muon), torch.optim.Muon; the rate as in "
        "Liu et al. 2025 (arXiv 2502.16982)",
        ("b1", "b2", "eps", "momentum", "adjust_lr"),
    ),
}


# What a run may measure besides its metrics: `probe=[NAME, ...]`, one file each in its folder.
PROBES: dict[str, Choice] = {
    "gradnorm": Choice(
        "norm of the gradient, before clipping, of the embedding and of every block, by step",
        "Dual PatchNorm (arXiv 2302.01327), Fig. 2 and 4; big_vision train.py l2_grads",
        "ablate.training.probes.gradnorm:GradNorm",
    ),
    "scales": Choice(
        "learned scales of all norms at the end",
        "Dual PatchNorm (arXiv 2302.01327), Fig. 3",
        "ablate.training.probes.scales:Scales",
    ),
    "attention": Choice(
        "how far each head looks on validation images at the end, in grid units",
        "DTN (arXiv 2112.02624), vit_norm.py get_attention_map, here divided by the queries",
        "ablate.training.probes.attention:AttentionDistance",
    ),
    "tokens": Choice(
        "how long the token of each place is behind each block on validation images at the end",
        "after DTN (arXiv 2112.02624): of what blocks leave, mean over images",
        "ablate.training.probes.tokens:TokenNorms",
    ),
    "fewshot": Choice(
        "accuracy of a linear classifier of 1, 5, 10 and 25 images a class, on features at the end",
        "Dual PatchNorm (arXiv 2302.01327), Tables 1 and 2; big_vision evaluators/fewshot_lsr.py",
        "ablate.training.probes.fewshot:FewShotProbe",
    ),
    "knn": Choice(
        "accuracy of a vote of the 10 and 20 nearest training images, by features at the end",
        "DINO (arXiv 2104.14294); facebookresearch/dino eval_knn.py",
        "ablate.training.probes.knn:KNNProbe",
    ),
}


@dataclass(frozen=True)
class Arch:
    """A host, for which `model.arch=NAME/PATCH` stands. `model` can override any of its fields.

    A host with a `patch` of its own is given by `model.arch=NAME`; an MLP by
    `model.arch=mlp/DEPTHxWIDTH`.
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
    pool: Literal["tok", "gap", "map"] = "tok"
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
