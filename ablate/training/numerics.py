"""The way a device computes: TF32, the kernel of attention, cuDNN's choice, determinism.

Each is chosen and set here, so that nothing depends on a default of torch, and noted in the result.

A step may be compiled by torch.compile. A micro-batch's forward pass and loss are compiled as one
graph and its backward pass as another, without a break. The update is not compiled: it consists of
ten fused kernels, which a compiler leaves as they are, but copies the weights for.

Used by training/worker.py and training/loop.py for every run of `ablate sweep`. A new field of
`Numerics` is a key of result.json, so it should also get its type in run/rundir.py `_RESULT` and
its words in analysis/footnotes.py `MACHINE_FACTS`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils.deterministic
from torch.backends import cuda, cudnn

from ablate.run import Run, Whole
from ablate.shared import UserError
from ablate.training.model import sublayers
from ablate.training.training import DTYPES, Training

TF32_SINCE = (8, 0)  # compute capability: Ampere (NVIDIA A100 white paper); before it is ignored
# Kernels of torch's attention on a GPU. cuDNN's is left out: its backward pass has no deterministic
# form, and torch asks cuDNN for a plan at each new shape. Of the others the math of matrix products
# takes any shape; the fused ones sum in one order where deterministic algorithms are wanted
# (ATen/native/transformers/cuda/attention_backward.cu), in the mode "error" alone.
SWITCHES = {
    "flash": (cuda.flash_sdp_enabled, cuda.enable_flash_sdp, cuda.can_use_flash_attention),
    "efficient": (
        cuda.mem_efficient_sdp_enabled,
        cuda.enable_mem_efficient_sdp,
        cuda.can_use_efficient_attention,
    ),
    "math": (cuda.math_sdp_enabled, cuda.enable_math_sdp, lambda *_: True),
}


@dataclass(frozen=True)
class Numerics:
    """The choices for a run, under their names in result.json. None: a CPU has no such choice."""

    deterministic: bool
    kernel: str  # of attention: explicit, sdpa (torch's own on a CPU), flash, efficient, math
    tf32: bool | None = None  # of float32 products, in matrix products and convolutions
    cudnn_benchmark: bool | None = None

    def use(self) -> None:
        """Set the choices, for this process."""
        deterministic_algorithms(self.deterministic)
        if self.tf32 is None:
            return
        precision = "tf32" if self.tf32 else "ieee"
        cuda.matmul.fp32_precision = precision
        cudnn.conv.fp32_precision = precision  # type: ignore[attr-defined]
        cudnn.benchmark = bool(self.cudnn_benchmark)
        cuda.enable_cudnn_sdp(False)
        for name, (_, enable, _) in SWITCHES.items():
            # Math, too: torch takes it last, for a shape of a class of the user's own.
            enable(name in (*self.kernel.split(" or "), "math"))


def choose(run: Run, device: torch.device, settled: Mapping[str, Any] | None = None) -> Numerics:
    """Return the run's choices on the device. `settled`: see `settle`; where it has no entry,
    `train.deterministic=auto` is on.

    Raises UserError where the device has no products in the run's precision.
    """
    check(run, device)
    deterministic = run.train.deterministic
    if deterministic == "auto":
        deterministic = (settled or {}).get("deterministic", True)
    if device.type != "cuda":
        return Numerics(deterministic, sublayers.kernel(device, DTYPES[run.train.precision]))
    tf32 = run.train.precision == "tf32"
    # cuDNN may find another algorithm fastest the next time: no two processes have the same bits.
    return Numerics(deterministic, kernel(run, device), tf32, not deterministic)


def check(run: Run, device: torch.device) -> None:
    """Raise UserError where the device has no products in the run's precision: it would train in
    another precision than its id says."""
    if run.train.precision != "tf32":
        return
    reason = "a CPU has none"
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability >= TF32_SINCE:
            return
        reason = f"this one has {capability[0]}.{capability[1]}"
    raise UserError(
        f"train.precision: tf32 needs a GPU of compute capability 8.0 (A100) or later, and "
        f"{reason}; give train.precision=fp32"
    )


def kernel(run: Run, device: torch.device) -> str:
    """Return the kernel of attention on a GPU: flash in bfloat16, efficient in float32, and math in
    float64 and wherever torch has no fused kernel for the shape or the GPU. For a whole model,
    which may have any shapes, "flash or math" and "efficient or math" leave that to torch."""
    model, dtype = run.model, DTYPES[run.train.precision]
    preferred = {torch.bfloat16: "flash", torch.float32: "efficient"}.get(dtype, "math")
    if isinstance(model, Whole):  # it may have any shapes, and masks: torch takes what fits
        return "math" if preferred == "math" else f"{preferred} or math"
    if model.kind == "mlp":
        return "math"
    patches = (run.data.size // model.patch) ** 2
    tokens = patches + (model.pool == "tok") + model.registers
    shape = (2, model.heads, tokens, model.head_dim)
    q, k, v = (torch.empty(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(3))
    was, enable, can_use = SWITCHES[preferred]
    was_enabled = was()
    enable(True)  # torch can't use one that is switched off
    try:
        can = can_use(cuda.SDPAParams(q, k, v, None, 0.0, False, False))
    finally:
        enable(was_enabled)
    return preferred if can else "math"


def deterministic_algorithms(enabled: bool) -> None:
    """Switch deterministic algorithms on or off as torch.use_deterministic_algorithms does. That
    function also informs torch.compile, and loads it to do so, which takes as long as loading torch
    itself, at every start. New memory is not filled: nothing reads it."""
    torch.set_deterministic_debug_mode("error" if enabled else "default")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


FOLDER = "compiled"  # in the store's cache


def missing(device: torch.device) -> str | None:
    """Return what a compiled step needs and this machine lacks; None where it lacks nothing."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "triton"
        return None
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"a C++ compiler ({compiler}; CXX names another)"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        return f"Python's headers ({header})"
    return None


def check_compile(run: Run, device: torch.device) -> None:
    """Raise UserError where the run is to be compiled and can't be, for want of a compiler."""
    if not run.train.compile:
        return
    lacks = missing(device)
    if lacks is not None:
        raise UserError(
            f"train.compile: true needs {lacks}; install it, or leave train.compile=false"
        )


def compile_step(
    training: Training, cache: Path, beat: Callable[..., None], say: Callable[[str], None]
) -> None:
    """Have the training's steps compiled, if its run asks for it. Raises UserError, see
    `check_compile`."""
    if not training.run.train.compile:
        return
    check_compile(training.run, training.device)
    # Read when torch loads its compiler. Its pool of processes would be each worker's own.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str((cache / FOLDER).absolute())
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    beat(phase="compile")
    from torch import _dynamo  # which takes as long as torch itself

    _dynamo.reset()  # of the runs before it in this process it keeps a few
    training.compile()
    say("steps are compiled")
