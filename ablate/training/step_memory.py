"""The GPU memory of a training step, counted on the meta device: no weights, data or arithmetic.

The peak comes at one of two points of a step. When the last micro-batch turns from its forward to
its backward pass, everything that the backward pass needs is there; after the backward pass every
gradient is. What the first point takes is counted, tensor by tensor, as autograd keeps them.

Used by training/answers.py for `ablate plan` on a GPU. tests/test_step_memory.py has peaks that
torch's allocator counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from ablate.run import TASKS, Data, Run, Whole, batch_divisors
from ablate.training.bfloat16 import round_weights, rounded_weights
from ablate.training.model import Host, build
from ablate.training.model.count import SHAPES, OperatorCounter
from ablate.training.model.drop import StepKey
from ablate.training.optim import factors, state_bytes
from ablate.training.task import make_task
from ablate.training.training import DTYPES

META = torch.device("meta")
COUNTED = (2, 4)  # images at once; what autograd keeps is a constant and a share of each image
WORKSPACE = 1 << 25  # bytes that cuBLAS takes on an H100 (cublasSetWorkspace: 32 MiB)


def peak_bytes(run: Run) -> dict[str, int] | None:
    """Return the peak of a step's memory in bytes, by the number of images computed at once:
    `train.micro_batch` or, where it is auto, every one that there may be. It is what torch's
    allocator gives out, as `peak_bytes` of a result. A training set that stays on the GPU is not
    in it.

    Return None where it is not known: for a whole model, which may compute by values that the meta
    device lacks, for an image-text set, whose loss compares all pairs of a batch, and for a task
    without steps.
    """
    if isinstance(run.model, Whole) or run.text is not None or not TASKS[run.task].trains:
        return None
    batch, dtype = run.train.batch, DTYPES[run.train.precision]
    weights_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    # On a GPU dropout keeps no mask: see `Dropped`.
    model = build(replace(run, model=replace(run.model, dropout=0.0)), META).to(weights_dtype)
    assert isinstance(model, Host)
    for (name, parameter), scale in zip(
        model.named_parameters(), factors(model, run.optim).values(), strict=True
    ):
        parameter.requires_grad_(scale != 0)
    sizes = batch_divisors(batch) if run.train.micro_batch == "auto" else [run.train.micro_batch]
    few, more = (_backward_bytes(run, model, images) for images in COUNTED)
    of_image = (more - few) / (COUNTED[1] - COUNTED[0])
    weights = sum(parameter.nbytes for parameter in model.parameters())
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    rounded = 0
    if dtype == torch.bfloat16:
        rounded = sum(weight.numel() for weight in rounded_weights(model).values()) * dtype.itemsize
    average = weights if run.train.ema is not None else 0
    held = weights + average + state_bytes(model, run.optim)
    held += sum(buffer.nbytes for buffer in model.buffers()) + batch * _input_bytes(run.data, weights_dtype)
    peaks = {}
    for size in sizes:
        images = size or batch
        # Of a tree of sums, those that are kept when the last micro-batch begins: `MicroBatches`.
        sums = (batch // images - 1).bit_count() * gradients
        turning = rounded + sums + few + of_image * (images - COUNTED[0])
        updating = 2 * rounded + sums + gradients  # rounded weights and their gradients
        peaks[str(images)] = round(WORKSPACE + held + max(turning, updating))
    return peaks


def _backward_bytes(run: Run, model: Host, images: int) -> int:
    """Return what there is when the backward pass of this many images begins, besides weights: what
    autograd keeps, and the two gradients of the largest of these tensors."""
    model.train()
    model.bind(UnkeyedMasks(images))
    dtype = DTYPES[run.train.precision]
    data = run.data
    inputs = torch.empty(images, data.size, data.size, data.channels, device=META)
    inputs = inputs.to(next(model.parameters()).dtype)
    label_shape = [images] if data.labels == "classes" else [images, 1 + data.size**2]
    target = torch.empty(label_shape, dtype=torch.int64, device=META)
    rounded = rounded_weights(model) if dtype == torch.bfloat16 else {}
    saved: dict[int, Tensor] = {}  # by storage: several operators keep the same tensor

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    task = make_task(run)
    with OperatorCounter(SHAPES), saved_tensors_hooks(keep, lambda tensor: tensor):
        weights = round_weights(rounded, dtype)
        with GpuKernels(dtype):
            arguments = task.arguments(inputs, target)
            outputs = functional_call(model, weights, arguments, tie_weights=False)
        task.loss(outputs, target)
    for tensor in (inputs, *model.parameters(), *model.buffers(), *weights.values()):
        saved.pop(tensor.untyped_storage()._cdata, None)
    sizes = [tensor.untyped_storage().nbytes() for tensor in saved.values()]
    return sum(sizes) + 2 * max(sizes)


def _input_bytes(data: Data, dtype: torch.dtype) -> int:
    """Return the bytes of an image of a step, as a batch of them stays until the step ends."""
    return data.size**2 * data.channels * dtype.itemsize


class UnkeyedMasks(StepKey):
    """What stochastic depth asks for, without values: factors (images,) of the meta device."""

    def __init__(self, images: int) -> None:
        self._factors = torch.empty(images, device=META)

    def meet(self, site: str, rate: float | None = None) -> None:
        """Do nothing: no mask is drawn."""

    def kept(self, site: str) -> Tensor:
        """Return the factors of the site, (images,)."""
        return self._factors


# By autocast on a GPU (ATen/autocast_mode.h); those that models here call.
ROUNDED = {F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, Tensor.matmul}
ROUNDED |= {Tensor.__matmul__, torch.bmm, torch.baddbmm, torch.addmm, torch.einsum}
UNROUNDED = {F.layer_norm, F.group_norm, F.rms_norm, F.softmax, torch.softmax, Tensor.softmax}


class GpuKernels(TorchFunctionMode):
    """Calls of torch as a GPU would compute them, for tensors of the meta device, which autocast
    ignores: what autograd keeps has the right type, and attention and RMSNorm are one kernel."""

    def __init__(self, dtype: torch.dtype) -> None:
        """`dtype`: the run's; only bfloat16 rounds."""
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._dtype == torch.bfloat16:
            if func in ROUNDED:
                args = _cast(args, torch.bfloat16)
            elif func in UNROUNDED:
                args = _cast(args, torch.float32)
        if func is F.rms_norm:  # keeps the input and a number for each row, as this does
            return F.layer_norm(args[0], args[1], *args[2:3], **kwargs)
        if func is F.scaled_dot_product_attention and args[0].dtype != torch.float64:
            return FusedAttention.apply(*args[:3])
        return func(*args, **kwargs)


def _cast(args: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(
        x.to(dtype) if isinstance(x, Tensor) and x.dtype in (torch.float32, torch.bfloat16) else x
        for x in args
    )


class FusedAttention(torch.autograd.Function):
    """The shapes of torch's fused attention: q, k, v (B, H, N, d) and what it keeps of them."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        contexts = torch.empty_like(q)
        sums = q.new_empty(q.shape[:-1], dtype=torch.float32)  # of each row, in logarithms
        ctx.save_for_backward(q, k, v, contexts, sums)
        return contexts
