"""Norms on tokens. Each is built as `Norm(shape, **settings)`; its settings stand in choices.NORMS.

`group` is how many values are normalised together: `ablate plan` warns where they are too few.
A norm over the batch has as many as the batch and says nothing.
"""

from ablate.training.model.norm.cls import ExcludeCls
from ablate.training.model.norm.dtn import DTN, DTNPool, DTNVar
from ablate.training.model.norm.mixing import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    OneChannelBatchNorm,
    SwitchNorm,
)
from ablate.training.model.norm.powernorm import PowerNorm
from ablate.training.model.norm.shape import MakeNorm, Norm, Shape
from ablate.training.model.norm.tokenwise import (
    Affine,
    DynamicTanh,
    Identity,
    LayerNorm,
    RMSNorm,
    ScaleNorm,
)

__all__ = [
    "DTN",
    "Affine",
    "BatchNorm",
    "DTNPool",
    "DTNVar",
    "DynamicTanh",
    "ExcludeCls",
    "GroupNorm",
    "Identity",
    "InstanceNorm",
    "LayerNorm",
    "MakeNorm",
    "Norm",
    "OneChannelBatchNorm",
    "PowerNorm",
    "RMSNorm",
    "ScaleNorm",
    "Shape",
    "SwitchNorm",
]
