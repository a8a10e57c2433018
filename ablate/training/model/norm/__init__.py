"""Norms on tokens. Each is built as `Norm(shape, **settings)`; its settings are listed in
choices.NORMS.

A norm may declare the traits in `traits.NormTraits`. A norm over the batch normalises as many
values as the batch has, and declares no `group`.
"""

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
    ExcludeCls,
    Identity,
    LayerNorm,
    RMSNorm,
    ScaleNorm,
)
