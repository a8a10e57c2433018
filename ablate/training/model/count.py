"""What only torch can tell of a run, told without weights, data or arithmetic."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from ablate.shared import spec
from ablate.training.model import build
from ablate.training.model.traits import Traits, traits

aten = torch.ops.aten
# Whose shapes torch works out in Python, at up to a millisecond a call: most of a description.
SLOW = {
    aten.add.Tensor,
    aten.addmm.default,
    aten.gelu.default,
    aten.mul.Scalar,
    aten.native_layer_norm.default,
    aten._safe_softmax.default,
}


def describe(run: spec.Run) -> dict[str, Any]:
    """Of the run's model: `parameters`, `multiply_adds` of one image's forward, and `groups`.

    `groups` is {path of a norm: how many values it normalises together}. Multiply-adds are those
    of matrix products (and convolutions), as papers print them. A combination of choices that
    cannot be built raises UserError.
    """
    model = build(run, device="meta").eval()
    groups = {path: traits(module, Traits).group for path, module in model.named_modules()}
    image = torch.empty(1, run.data.size, run.data.size, run.data.channels, device="meta")
    with _ShapesOnce(), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "multiply_adds": counter.get_total_flops() // 2,
        "groups": {path: group for path, group in groups.items() if group is not None},
    }


class _ShapesOnce(TorchDispatchMode):
    """On the meta device a result is a shape: those of the slow operations are asked for once."""

    known: ClassVar[dict[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in SLOW:
            return func(*args, **kwargs)
        key = (func, *map(_shape, args), *((name, _shape(x)) for name, x in kwargs.items()))
        if key not in self.known:
            self.known[key] = func(*args, **kwargs)
        return tree_map(torch.empty_like, self.known[key])


def _shape(x: Any) -> Any:
    return (x.shape, x.stride(), x.dtype) if isinstance(x, torch.Tensor) else repr(x)
