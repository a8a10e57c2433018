"""Norms on tokens. Each is built as `Norm(shape, **settings)`.

NORMS in run/choices.py maps the names that a user types to these classes and lists their settings:
a new norm needs an entry there. A norm may declare the traits in NormTraits of model/traits.py. Its
`group` is how many values are normalised together; a norm over the batch leaves it undeclared, as
it depends on the size of the batch.

Used by model/block.py, model/stem.py and model/vit.py, and by `norm=NAME` through run/choices.py.
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
    DynamicErf,
    DynamicTanh,
    ExcludeCls,
    Identity,
    LayerNorm,
    RMSNorm,
    ScaleNorm,
)
