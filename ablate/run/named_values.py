"""Values that keys take by name and that have no section of their own, each with a line and its
source. Norms, stems, blocks and probes, which have one, are in `choices`.

Used by report/listing.py (`ablate list`). The names are those of the annotations in sections.py; a
new one needs its entry here, too (tests/test_named_values.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ablate.run.choices import OPTIMIZERS
from ablate.run.schema import field_keys
from ablate.run.sections import Augment


@dataclass(frozen=True)
class NamedValue:
    """A value of a key: a line of help, and a citation ("-": none)."""

    line: str
    source: str = "-"


_BIG_VISION = "big_vision/utils.py create_learning_rate_schedule"
_VIT = "Dosovitskiy et al. 2021 (arXiv 2010.11929)"
_GATED = "Shazeer 2020 (arXiv 2002.05202)"

# Fields of `augment` that turn an augmentation on, in the order in which images meet them. Their
# lines are those of the keys.
AUGMENTATIONS: dict[str, str] = {
    "flip": "Krizhevsky, Sutskever, Hinton 2012",
    "crop_pad": "He et al. 2016 (arXiv 1512.03385), section 4.2",
    "crop_area": "Szegedy et al. 2015 (arXiv 1409.4842); big_vision inception_crop, timm",
    "randaug": "Cubuk et al. 2020 (arXiv 1909.13719)",
    "jitter": "torchvision ColorJitter",
    "three": "Touvron et al. 2022 (DeiT III, arXiv 2204.07118), deit/augment.py",
    "rotate": "BatchNorm_in_Transformers_CV",
    "translate": "BatchNorm_in_Transformers_CV",
    "zoom_out": "BatchNorm_in_Transformers_CV",
    "erase": "Zhong et al. 2020 (arXiv 1708.04896), timm RandomErasing",
    "mixup": "Zhang et al. 2018 (arXiv 1710.09412)",
    "cutmix": "Yun et al. 2019 (arXiv 1905.04899)",
    "repeats": "Hoffer et al. 2020 (arXiv 1901.09335)",
    "rescale": "mmsegmentation RandomResize",
    "class_share": "mmsegmentation RandomCrop cat_max_ratio",
    "photometric": "mmsegmentation PhotoMetricDistortion",
}

# kind -> (how one is chosen on the command line, its values)
NAMED_VALUES: dict[str, tuple[str, dict[str, NamedValue]]] = {
    "optimizers": (
        "optim.name=NAME",
        {name: NamedValue(moves.line, moves.source) for name, moves in OPTIMIZERS.items()},
    ),
    "activations": (
        "model.act=NAME",
        {
            "gelu": NamedValue(
                "GELU, exact or its tanh approximation: model.gelu",
                "Hendrycks, Gimpel 2016 (arXiv 1606.08415)",
            ),
            "relu": NamedValue("max(x, 0)", "Nair, Hinton 2010"),
            "relu2": NamedValue("max(x, 0)^2", "So et al. 2021 (Primer, arXiv 2109.08668)"),
            "silu": NamedValue("x sigmoid(x)", "Elfwing et al. 2017 (arXiv 1702.03118)"),
            "swiglu": NamedValue("gated by silu, 2/3 of the MLP's width", _GATED),
            "geglu": NamedValue("gated by GELU, 2/3 of the MLP's width", _GATED),
        },
    ),
    "attentions": (
        "model.attention=NAME",
        {
            "softmax": NamedValue(
                "softmax(q k^T / sqrt(d)) v in every head",
                "Vaswani et al. 2017 (arXiv 1706.03762)",
            )
        },
    ),
    "positions": (
        "model.posemb=NAME",
        {
            "none": NamedValue("the patches have no positions"),
            "learn": NamedValue("a learned vector for each place, added to the patch", _VIT),
            "sincos2d": NamedValue(
                "sines and cosines of row and column, added to the patch; nothing is learned",
                "Beyer et al. 2022 (arXiv 2205.01580), big_vision posemb_sincos_2d",
            ),
            "rope2d": NamedValue(
                "axial RoPE: queries and keys of patches rotated by row and column in every block",
                "Su et al. 2021 (arXiv 2104.09864); for two axes Heo et al. 2024 (arXiv "
                "2403.13298), whose base is 100, here 10,000",
            ),
            "rope2d_dinov3": NamedValue(
                "axial RoPE by the patch's place as a share of the image, not by its number",
                "Simeoni et al. 2025 (DINOv3, arXiv 2508.10104)",
            ),
        },
    ),
    "pools": (
        "model.pool=NAME",
        {
            "tok": NamedValue("the head reads a class token", _VIT),
            "gap": NamedValue(
                "the head reads the mean over tokens", "Beyer et al. 2022 (arXiv 2205.01580)"
            ),
            "map": NamedValue(
                "the head reads what a learned query attends to, through an MLP",
                "Zhai et al. 2022 (arXiv 2106.04560), big_vision MAPHead",
            ),
        },
    ),
    "inits": (
        "model.init=NAME",
        {
            "big_vision": NamedValue("initial weights as flax draws them", "big_vision/models/"),
            "deit": NamedValue(
                "normal with a standard deviation of 0.02, truncated", "deit/models.py, timm"
            ),
            "torch": NamedValue("initial weights as torch's layers draw them", "torch.nn"),
        },
    ),
    "schedules": (
        "optim.schedule=NAME",
        {
            "cosine": NamedValue(
                "half a cosine from optim.lr to optim.min_lr",
                "Loshchilov, Hutter 2017 (arXiv 1608.03983)",
            ),
            "linear": NamedValue("a line from optim.lr to optim.min_lr", _BIG_VISION),
            "rsqrt": NamedValue(
                "1 / sqrt(1 + step / optim.timescale), linear in the cooldown",
                f"Zhai et al. 2022 (arXiv 2106.04560), {_BIG_VISION}",
            ),
            "constant": NamedValue("optim.lr, linear in the cooldown", _BIG_VISION),
            "poly": NamedValue(
                "(1 - share done)^0.9", "Strudel et al. 2021 (Segmenter, arXiv 2105.05633)"
            ),
        },
    ),
    "losses": (
        "train.loss=NAME",
        {
            "softmax": NamedValue("cross-entropy of one class among all"),
            "sigmoid": NamedValue(
                "binary cross-entropy of each class, summed",
                "Beyer et al. 2020 (arXiv 2006.07159), big_vision sigmoid_xent",
            ),
        },
    ),
    "augmentations": (
        "augment.NAME=VALUE",
        {
            name: NamedValue(field_keys(Augment)[name].line, source)
            for name, source in AUGMENTATIONS.items()
        },
    ),
}
