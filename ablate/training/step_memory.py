"""The GPU memory of a training step, counted on the meta device: no weights, data or arithmetic.

A step takes most at one of three points. Between the forward and the backward pass of the
micro-batch before which most sums of gradients are kept, all that autograd keeps is there; it is
counted tensor by tensor. Where the backward pass has ended, every gradient is. And some optimisers
need room to update. What torch's allocator reserves beyond that is not counted: for the inputs of
the next step (training/inputs_ahead.py) up to an eighth of the GPU's memory.

Used by training/answers.py for `ablate plan` on GPUs. tests/test_step_memory.py has peaks that
torch counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from ablate.run import TASKS, Data, Optim, Run, Whole, batch_divisors
from ablate.training.bfloat16 import round_weights, rounded_weights
from ablate.training.micro_batches import most_sums
from ablate.training.model import Host, build
from ablate.training.model.count import SHAPES, QuickShapes
from ablate.training.model.drop import StepKey
from ablate.training.optim import decay_names, factors
from ablate.training.task import make_task
from ablate.training.training import DTYPES

META = torch.device("meta")
SIZES = (2, 4)  # images: autograd keeps a constant, and as much for each image
WORKSPACE = 32 << 20  # bytes that torch gives cuBLAS on an H100 (ATen/cuda/CublasHandlePool.cpp)


@dataclass(frozen=True)
class StepPeaks:
    """The bytes that the backward pass needs of each image, and the peak of a step's memory in
    bytes by the number of images computed at once: for `train.micro_batch` and for all that `auto`
    may choose. A peak is what torch's allocator gives out, as `peak_bytes` of result.json; a set
    that stays on the GPU is not in it."""

    image_bytes: float
    peak_bytes: dict[str, int]


def count_peaks(run: Run) -> StepPeaks | None:
    """Return the memory of a run's step.

    Return None where it is not known: for a whole model, which may need values to compute, for
    pairs of images and texts, whose loss compares all of a batch, and for a task without steps.
    """
    if isinstance(run.model, Whole) or run.text is not None or not TASKS[run.task].trains:
        return None
    batch, dtype = run.train.batch, DTYPES[run.train.precision]
    weights_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    # On a GPU dropout keeps no mask: see `Dropped`.
    model = build(replace(run, model=replace(run.model, dropout=0.0)), META).to(weights_dtype)
    assert isinstance(model, Host)
    scales = factors(model, run.optim)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(scales[name] != 0)
    model.train()
    turning = [_turning_bytes(run, model, images) for images in SIZES]
    image_bytes = (turning[1] - turning[0]) / (SIZES[1] - SIZES[0])
    weights = sum(parameter.nbytes for parameter in model.parameters())
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    copies = 0  # of weights, in bfloat16
    if dtype == torch.bfloat16:
        copies = sum(weight.numel() for weight in rounded_weights(model).values()) * dtype.itemsize
    moments, moves = _optimizer_bytes(model, run.optim)
    standing = WORKSPACE + weights + moments + copies
    standing += _image_bytes(run.data, weights_dtype) * batch
    standing += sum(buffer.nbytes for buffer in model.buffers())
    if run.train.ema is not None:
        standing += weights
    peaks = {}
    sizes = set(batch_divisors(batch))
    if isinstance(run.train.micro_batch, int):
        sizes.add(run.train.micro_batch)
    for images in sorted(sizes, reverse=True):
        sums = most_sums(batch // images) * gradients
        forward_end = sums + turning[0] + image_bytes * (images - SIZES[0])
        backward_end = sums + gradients + copies  # the gradients of copies, before they widen
        update = gradients + moves
        peaks[str(images)] = round(standing + max(forward_end, backward_end, update))
    return StepPeaks(image_bytes, peaks)


def _image_bytes(data: Data, dtype: torch.dtype) -> int:
    """Return the bytes of an image as the model sees it: the whole batch stays until the step
    ends."""
    return data.size**2 * data.channels * dtype.itemsize


def _optimizer_bytes(model: nn.Module, optim: Optim) -> tuple[int, int]:
    """Return the bytes that an optimiser keeps of the model from step to step, and those that it
    takes besides while it updates. One by import path is taken for an adamw."""
    decays = decay_names(model)
    moments = 0.0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        in_block = name in decays and parameter.ndim == 2 and name.startswith("blocks.")
        match optim.name:
            case "sgd":
                number = float(optim.b1 != 0)
            case "lion":
                number = 1.0
            case "muon":
                number = 2.0 - in_block
            case "adafactor_bv":
                number = 0.5  # in bfloat16; its mean squares of rows and columns are few
            case "adafactor":
                number = 0.0
            case _:
                number = 2.0
        moments += number * parameter.nbytes
    moves = 0
    if optim.name == "lion":  # of all parameters: see `Fused._lion`
        moves = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    elif optim.name == "lamb":  # roots and updates of those that decay: see `Lamb`
        decaying = [p for name, p in model.named_parameters() if name in decays]
        moves = 2 * sum(p.nbytes for p in decaying if p.requires_grad)
    return round(moments), moves


def _turning_bytes(run: Run, model: Host, images: int) -> int:
    """Return what is there when the backward pass of so many images begins, weights apart: what
    autograd keeps, and two gradients of the size of its largest tensor."""
    model.bind(UnkeyedMasks(images))
    data, dtype = run.data, DTYPES[run.train.precision]
    inputs = torch.empty(images, data.size, data.size, data.channels, device=META)
    inputs = inputs.to(next(model.parameters()).dtype)
    label_shape = [images] if data.labels == "classes" else [images, 1 + data.size**2]
    target = torch.empty(label_shape, dtype=torch.int64, device=META)
    saved: dict[int, Tensor] = {}  # by storage: several operators keep the same tensor

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    task = make_task(run)
    to_round = rounded_weights(model) if dtype == torch.bfloat16 else {}
    with QuickShapes(TRAINING_SHAPES), saved_tensors_hooks(keep, lambda tensor: tensor):
        weights = round_weights(to_round, dtype)
        with GpuKernels(dtype):
            arguments = task.arguments(inputs, target)
            outputs = functional_call(model, weights, arguments, tie_weights=False)
        task.loss(outputs, target)
    for tensor in (inputs, *model.parameters(), *model.buffers(), *weights.values()):
        saved.pop(tensor.untyped_storage()._cdata, None)
    sizes = [tensor.untyped_storage().nbytes() for tensor in saved.values()]
    return sum(sizes) + 2 * max(sizes)


class UnkeyedMasks(StepKey):
    """The factors of stochastic depth as shapes: none is drawn."""

    def __init__(self, images: int) -> None:
        self._factors = torch.empty(images, device=META)

    def meet(self, site: str, rate: float | None = None) -> None:
        """Do nothing."""

    def kept(self, site: str) -> Tensor:
        """Return the factors of the site, (images,)."""
        return self._factors


aten = torch.ops.aten


def _alike(x: Tensor, *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype or x.dtype)


def _multiplied(x: Tensor, y: Any) -> Any:
    # A product lies in memory as its first factor does, and attention's result then as well: that
    # decides what rotated queries and keys keep.
    return torch.empty_like(x) if x.is_complex() else SHAPES[aten.mul.Tensor](x, y)


def _losses(x: Tensor, target: Tensor, weight: Any, reduction: int, *_: Any) -> Any:
    return x.new_empty(len(x) if reduction == 0 else ()), x.new_empty(())


def _added_product(x: Tensor, y: Tensor, z: Tensor, **_: Any) -> Tensor:
    shape = torch.broadcast_tensors(x, y, z)[0].shape
    return x.new_empty(shape, dtype=torch.result_type(x, y))


# The results of what a training adds to `SHAPES`, for the reason given there.
TRAINING_SHAPES: dict[Any, Callable[..., Any]] = {
    **SHAPES,
    aten.addcmul.default: _added_product,
    aten.bitwise_not.default: _alike,
    aten.empty_like.default: _alike,
    aten.eq.Scalar: lambda x, _: x.new_empty(x.shape, dtype=torch.bool),
    aten.log_sigmoid_forward.default: lambda x: (_alike(x), x.new_empty(0)),
    aten._log_softmax.default: _alike,
    aten.mean.default: lambda x: x.new_empty(()),
    aten.mul.Tensor: _multiplied,
    aten.nll_loss_forward.default: _losses,
    aten.rsub.Scalar: _alike,
}


# --- As a GPU computes ----------------------------------------------------------------------------

# By autocast on a GPU (ATen/autocast_mode.h): what models here call of its lists.
BF16_CALLS = {F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, Tensor.matmul}
BF16_CALLS |= {Tensor.__matmul__, torch.bmm, torch.baddbmm, torch.addmm, torch.einsum}
FP32_CALLS = {F.layer_norm, F.group_norm, F.softmax, torch.softmax, Tensor.softmax}


class GpuKernels(TorchFunctionMode):
    """Calls on the meta device keep for the backward pass what they would keep on a GPU: in the
    types of autocast, which ignores the meta device, and by its fused kernels."""

    def __init__(self, dtype: torch.dtype) -> None:
        """`dtype`: that of the run's arithmetic."""
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._dtype == torch.bfloat16 and func in BF16_CALLS:
            args = _cast(args, torch.bfloat16)
        elif self._dtype == torch.bfloat16 and func in FP32_CALLS:
            args = _cast(args, torch.float32)
        if func is F.scaled_dot_product_attention and self._dtype != torch.float64:
            return FusedAttention.apply(*args[:3])
        if func is F.rms_norm:  # its kernel keeps its input and a number for each row
            func = F.layer_norm
        return func(*args, **(kwargs or {}))


def _cast(arguments: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    cast = []
    for argument in arguments:
        if isinstance(argument, Tensor) and argument.dtype in (torch.float32, torch.bfloat16):
            cast.append(argument.to(dtype))
        else:
            cast.append(argument)
    return tuple(cast)


class FusedAttention(torch.autograd.Function):
    """Attention of q, k, v (B, H, N, d), as shapes: it keeps these, the result and a number for
    each row, as torch's fused kernels do."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.is_contiguous():  # the contexts lie in memory as q does
            contexts = q.new_empty(q.shape)
        else:
            contexts = q.new_empty(q.transpose(1, 2).shape).transpose(1, 2)
        ctx.save_for_backward(q, k, v, contexts, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return contexts
