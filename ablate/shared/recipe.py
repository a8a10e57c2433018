"""The sections of a run that are its recipe: optimiser, training, augmentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ablate.shared.schema import Folder, Key, Settings, Version

# Defaults are as `sections` says.


@dataclass(frozen=True)
class Optim:
    """How weights move. Only kernels of dense and convolutional layers decay."""

    lr: Annotated[float, Key("the peak learning rate", above=0)]
    wd: Annotated[float, Key("weight decay", least=0)]
    b1: Annotated[
        float,
        Key(
            "adamw: decay of the mean gradient; sgd: momentum; lion: momentum's share in a step",
            least=0,
            below=1,
        ),
    ]
    b2: Annotated[
        float,
        Key("adamw: decay of the mean squared gradient; lion: of the momentum", least=0, below=1),
    ]
    eps: Annotated[float, Key("adamw: added to the root of the mean square", above=0)]
    clip: Annotated[float | None, Key("the largest global gradient norm; null: any", above=0)]
    warmup_epochs: Annotated[float, Key("length of the linear warm-up, in epochs", least=0)]
    schedule: Annotated[
        Literal["cosine", "linear", "rsqrt", "constant", "poly"] | str,
        Key("the rate after the warm-up, or module:name of a factor on optim.lr"),
    ]
    name: Annotated[
        str, Key("adamw, sgd, lion, adafactor, adafactor_bv, muon, or a torch.optim module:Class")
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
    # Compiled arithmetic may differ in the last bits: who says true or false asks for certain bits,
    # and that is another run. `auto` is what all runs were before; which it took is in the result.
    compile: Annotated[
        Literal["auto", True, False],
        Key("compile the step; auto: on a CPU, where the run is so long that it repays"),
    ] = "auto"


@dataclass(frozen=True)
class Augment:
    """Random changes of training images, drawn per image, in this order."""

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
    extra_folder: Annotated[  # not part of the id
        Mapping[str, Any] | None, Key("where each lies; null: an installed package; computed")
    ] = None
