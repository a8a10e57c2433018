"""Sizes of a run's model that only torch can tell, and checks of the shapes that the user's classes
return: on the meta device, without weights, data or arithmetic.

A whole model is built with its weights and run once, on black images.

Used by training/answers.py for the sizes and costs of `ablate plan` and `ablate sweep`, and by
training/journal.py for the result of a run. A changed key of `describe` must also be changed in
running/estimate.py (`_is_answer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ablate.run import (
    TASKS,
    Run,
    ShippedRun,
    Whole,
    parts,
    shipped,
)
from ablate.shared import UserError
from ablate.training.model import build
from ablate.training.model.norm.mixing import has_statistics
from ablate.training.model.stem import Patches
from ablate.training.model.traits import StemTraits, Traits, traits
from ablate.training.model.vit import ViT
from ablate.training.model.whole_model import check_outputs, features, of_timm
from ablate.training.plugin import by_path, line_of, load

aten = torch.ops.aten


def _like(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty(x.shape)


def _broadcast(x: Any, y: Any, **_: Any) -> Tensor:
    both = torch.broadcast_tensors(*(part for part in (x, y) if isinstance(part, Tensor)))
    return torch.empty(both[0].shape, dtype=torch.result_type(x, y), device="meta")


def _quotient(x: Any, y: Any) -> Any:
    quotient = _broadcast(x, y)
    return quotient if quotient.is_floating_point() or quotient.is_complex() else NotImplemented


def _added(bias: Tensor, x: Tensor, y: Tensor, **_: Any) -> Any:
    fits = x.shape[1] == y.shape[0] and bias.shape == y.shape[1:] and x.dtype == y.dtype
    return x.new_empty(x.shape[0], y.shape[1]) if fits else NotImplemented


def _product(x: Tensor, y: Tensor) -> Any:
    fits = x.shape[0] == y.shape[0] and x.shape[2] == y.shape[1] and x.dtype == y.dtype
    return x.new_empty(*x.shape[:2], y.shape[2]) if fits else NotImplemented


def _compared(x: Tensor, *_: Any) -> Any:
    return torch.empty_like(x, dtype=torch.bool)


def _normalised(x: Tensor, shape: list[int], *_: Any) -> Any:
    if list(x.shape[-len(shape) :]) != list(shape):
        return NotImplemented
    of_each = x.new_empty(*x.shape[: -len(shape)], *(1 for _ in shape))
    return _like(x), of_each, of_each.clone()


def _reduced(x: Tensor, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
    """Return an empty tensor of the shape of a mean or a variance over `dims`, where None and []
    mean all dimensions; NotImplemented where x lacks one of them."""
    if dims is None or dims == []:
        dims = range(x.dim())
    elif any(not -x.dim() <= dim < x.dim() for dim in dims):
        return NotImplemented
    reduced_dims = {dim % x.dim() for dim in dims}
    shape = [
        1 if dim in reduced_dims else n
        for dim, n in enumerate(x.shape)
        if keepdim or dim not in reduced_dims
    ]
    return x.new_empty(shape)


def _norm(x: Tensor, order: Any = 2, *dims: Any, **options: Any) -> Any:
    return _reduced(x, *dims, **options)


def _variance_and_mean(x: Tensor, *dims: Any, **options: Any) -> Any:
    moment = _reduced(x, *dims, **options)
    return moment if moment is NotImplemented else (moment, _like(moment))


def _batch_norm(x: Tensor, *args: Any) -> Any:
    training, of_each = args[4], x.shape[1]
    return NotImplemented if training else (_like(x), x.new_empty(of_each), x.new_empty(of_each))


def _group_norm(x: Tensor, *args: Any) -> Any:
    _, _, images, _, _, groups, _ = args
    return _like(x), x.new_empty(images, groups), x.new_empty(images, groups)


def _joined(parts: list[Tensor], dim: int = 0) -> Any:
    shapes = [list(part.shape) for part in parts]
    if len({(part.dim(), part.dtype) for part in parts}) != 1:
        return NotImplemented
    if not -len(shapes[0]) <= dim < len(shapes[0]):
        return NotImplemented
    length = sum(shape.pop(dim) for shape in shapes)
    if any(shape != shapes[0] for shape in shapes):
        return NotImplemented
    shape = list(parts[0].shape)
    shape[dim] = length
    return parts[0].new_empty(shape)


def _of_floats(shape: Callable[..., Any]) -> Callable[..., Any]:
    """Return `shape` for floating-point arguments, and NotImplemented for all others and for a
    given dtype: the type of a result is then not that of its first argument."""

    def result(*args: Any, **kwargs: Any) -> Any:
        has_floats = all(map(_is_of_floats, [*args, *kwargs.values()]))
        return shape(*args, **kwargs) if has_floats else NotImplemented

    return result


def _is_of_floats(argument: Any) -> bool:
    """Return False for a tensor or a list with one of another type, a complex number, a dtype."""
    if isinstance(argument, list):
        return all(map(_is_of_floats, argument))
    if isinstance(argument, Tensor):
        return argument.is_floating_point()
    return not isinstance(argument, complex | torch.dtype)


FLOAT_SHAPES: dict[Any, Callable[..., Any]] = {
    aten.addmm.default: _added,
    aten.bmm.default: _product,
    aten.cat.default: _joined,
    aten.gt.Scalar: _compared,
    aten.linalg_vector_norm.default: _norm,
    aten.mean.dim: _reduced,
    aten.mul.Scalar: _like,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_group_norm.default: _group_norm,
    aten.native_layer_norm.default: _normalised,
    aten.var.correction: _reduced,
    aten.var_mean.correction: _variance_and_mean,
    aten.silu.default: _like,
    aten._safe_softmax.default: _like,
    aten.sub.Tensor: _broadcast,
    **dict.fromkeys((aten.abs.default, aten.clamp.default, aten.exp.default), _like),
    aten.erf.default: _like,
    **dict.fromkeys((aten.pow.Tensor_Scalar, aten.rsqrt.default, aten.sqrt.default), _like),
    **dict.fromkeys((aten.gelu.default, aten.relu.default, aten.sigmoid.default), _like),
    **dict.fromkeys((aten.neg.default, aten.reciprocal.default, aten.tanh.default), _like),
}
# The results of what most models are made of; NotImplemented: torch says what is wrong. It works
# all of these out in Python, at up to a millisecond a call, and loads torch.compile for that: as
# long as torch itself, at every start.
SHAPES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((aten.add.Tensor, aten.mul.Tensor), _broadcast),
    aten.div.Tensor: _quotient,
    **{operator: _of_floats(shape) for operator, shape in FLOAT_SHAPES.items()},
}


def describe(run: Run) -> dict[str, Any]:
    """Return the sizes of the run's model: `parameters`; `multiply_adds` of the forward pass of one
    image; `launches`, the kernels that a forward pass launches, whatever the number of images;
    `groups`; and `statistics`, whether it keeps running statistics.

    `groups` maps the path of each norm to the number of values that it normalises together.
    Multiply-adds are those of matrix products (and convolutions), as papers print them. Raises
    UserError for a combination of choices that cannot be built, and where a class of the user's own
    returns an output of the wrong shape.
    """
    if isinstance(run.model, Whole):
        return _described(run, run.model)
    model = build(run, device="meta").eval()
    hold_to_shapes(model, shipped(run))
    groups = {path: traits(module, Traits).group for path, module in model.named_modules()}
    image = torch.empty(1, run.data.size, run.data.size, run.data.channels, device="meta")
    with _Counter(SHAPES) as counter, torch.no_grad():
        if run.text is None:
            model(image)
        else:
            model(image, torch.zeros(1, run.text.length, dtype=torch.int64, device="meta"))
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "multiply_adds": counter.multiply_adds,
        "launches": counter.launches,
        "groups": {path: group for path, group in groups.items() if group is not None},
        "statistics": has_statistics(model),
    }


def _described(run: Run, model: Whole) -> dict[str, Any]:
    """Return `describe` of a whole model. It is run on two black images: whether it works without
    values is unknown, and the meta device would load torch.compile for it."""
    net = build(run).eval()
    images = torch.zeros(2, run.data.size, run.data.size, run.data.channels)
    outputs = TASKS[run.task].outputs(run.data.classes)
    with of_timm(model, run.data), torch.no_grad():
        with _as_products(), _Counter({}) as counter:
            check_outputs(net, net(images), (len(images), outputs))
        # A probe that has a task's name does what that task does.
        if any(name in TASKS and not TASKS[name].trains for name in (run.task, *run.probe)):
            features(net, images)
    return {
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "multiply_adds": counter.multiply_adds // len(images),
        "launches": counter.launches,
        "groups": {},
        "statistics": has_statistics(net),
    }


@contextmanager
def _as_products() -> Iterator[None]:
    """Make attention call matrix products: a CPU's own kernel of it is not counted, nor the one
    operator that computes a layer of nn.TransformerEncoder in evaluation."""
    was_enabled = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        mha.set_fastpath_enabled(was_enabled)


NO_KERNEL = ("empty", "new_empty", "_unsafe_view", "detach")  # like views; at most they take memory


class QuickShapes(TorchDispatchMode):
    """Gives the results of some operators itself: empty tensors of the right shape."""

    def __init__(self, shapes: Mapping[Any, Callable[..., Any]]) -> None:
        """`shapes` maps an operator to a function that returns an empty result of the right shape,
        which takes the operator's place."""
        super().__init__()
        self._shapes = shapes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the first operation loads torch.compile, to tell it to skip this class

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = NotImplemented
        if func in self._shapes:
            out = self._shapes[func](*args, **kwargs)
        return func(*args, **kwargs) if out is NotImplemented else out


def _lstm_flops(x: Tensor, of_inputs: Tensor, of_states: Tensor, *_: Any, **__: Any) -> int:
    """Return the flops of a CPU's layer of nn.LSTM in one direction on inputs (T, B, I)."""
    return 2 * x.shape[0] * x.shape[1] * (of_inputs.numel() + of_states.numel())


FLOPS: dict[Any, Callable[..., int]] = {**flop_registry, aten.mkldnn_rnn_layer: _lstm_flops}


class _Counter(QuickShapes):
    """Counts multiply-adds of matrix products, as torch's FlopCounterMode does (which also looks up
    the module of each), and operators for which a GPU launches a kernel."""

    def __init__(self, shapes: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__(shapes)
        self.multiply_adds = 0
        self.launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if not func.is_view and not func.overloadpacket.__name__.startswith(NO_KERNEL):
            self.launches += 1
        flops = FLOPS.get(func.overloadpacket)
        if flops is not None:
            self.multiply_adds += flops(*args, **(kwargs or {}), out_val=out) // 2
        return out


# --- Shapes that classes of the user give ---------------------------------------------------------

Expected = Callable[[Tensor], tuple[int, ...]]


def hold_to_shapes(model: nn.Module, run: ShippedRun) -> None:
    """Make every forward pass of the model raise UserError where a class of the user's own returns
    a shape or type other than its kind requires. The hooks stay, so use this on a model that is
    thrown away."""
    for used in by_path(run):
        kind = parts.kind_of(used.key)
        if kind.keeps_shape:
            cls = load(used)
            place, location = f"{used.key}: {used.name}: forward", line_of(cls, "forward")
            for module in model.modules():
                if type(module) is cls:
                    _hold(module, place, _like_input, f"expected {kind.returns}", location)
    if run.stem.plugin is not None and isinstance(model, ViT):
        _hold_stem(model, run)


def _hold_stem(model: ViT, run: ShippedRun) -> None:
    patches = Patches(run.data.size, run.model.patch, run.data.channels)
    stem_traits, place = traits(model.stem, StemTraits), f"stem: {run.stem.name}"
    location = line_of(type(model.stem), "forward")
    tokens = patches.number + stem_traits.tokens_added

    def expected(images: Tensor) -> tuple[int, ...]:
        return len(images), tokens, run.model.width

    added = f" and before them the {stem_traits.tokens_added} of its tokens_added" * (
        tokens > patches.number
    )
    remedy = f"a stem gives a token for each of the {patches.number} patches{added}; "
    remedy += "one that adds tokens puts them first and says tokens_added = N"
    _hold(model.stem, f"{place}: forward", expected, remedy, location)
    for name in ("after_posemb", "after_cls"):
        remedy = f"{name} gives what has the shape of its input"
        _hold(getattr(stem_traits, name), f"{place}: {name}", _like_input, remedy, location)


def _like_input(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def _hold(module: nn.Module, place: str, expected: Expected, remedy: str, location: str) -> None:
    """Make the module refuse an output whose shape is not `expected(input)`, or whose type is not
    its input's."""

    def look(_: nn.Module, inputs: tuple[Any, ...], out: Any) -> None:
        if not isinstance(out, Tensor):
            raise UserError(f"{place} gives a {type(out).__name__} and not a tensor ({location})")
        x = inputs[0]
        if tuple(out.shape) != expected(x):
            raise UserError(
                f"{place} gives {tuple(out.shape)} and not {expected(x)}: {remedy} ({location})"
            )
        if out.dtype != x.dtype:
            ours, theirs = (str(t.dtype).removeprefix("torch.") for t in (x, out))
            raise UserError(
                f"{place} gives {theirs} and not {ours}, the type of its input ({location})"
            )

    module.register_forward_hook(look)
