"""Whether a run's step is compiled, by torch.compile, and where that code is kept.

Compiled are a micro-batch's forward pass and loss in one graph and its backward pass in another,
without a break. The update is not: it is ten fused kernels, which a compiler leaves as they are and
copies the weights for.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch

from ablate.shared.errors import UserError
from ablate.shared.parts import PROBE
from ablate.shared.sections import Whole
from ablate.shared.spec import Run
from ablate.training import faults
from ablate.training.plugin import by_path
from ablate.training.training import Training

FOLDER = "compiled"  # in the store's cache
# Multiply-adds, backward passes among them.
STEP = 1e9  # of a step: of a shorter one, calling it takes as much as is gained
REPAYS = 5e13  # of a run, half an hour of a core: beyond, it gains more than it costs


def missing(device: torch.device) -> str | None:
    """What a compiled step needs and this machine has not; None: it has all."""
    if device.type == "cuda":
        return None if importlib.util.find_spec("triton") else "triton"
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"a C++ compiler ({compiler}; CXX names another)"
    headers = Path(sysconfig.get_paths()["include"])
    return None if (headers / "Python.h").exists() else f"Python's headers ({headers}/Python.h)"


def check_compile(run: Run, device: torch.device) -> None:
    """Raises UserError where the run is to be compiled and can't be, for want of a compiler."""
    if run.train.compile is True and (lacks := missing(device)) is not None:
        raise UserError(f"train.compile: true needs {lacks}; install it, or set train.compile=auto")


def repays(run: Run, steps: int, multiply_adds: int, device: torch.device) -> bool:
    """Does compiling gain more than it costs? `auto`, by the run alone and not by the machine's
    speed, so that the runs of a column agree. Not with dropout, where it loses, nor in bfloat16 or
    in short steps, where it gained in one measurement and lost in another (benchmarks/results/
    compiled.txt); nor on a GPU, where nobody has measured it. Never with a whole model or
    classes of the user's own, which may do what can't be captured."""
    own = any(used.key != PROBE.key for used in by_path(run))
    each = 3 * multiply_adds * run.train.batch
    if own or isinstance(run.model, Whole):
        return False
    plain = run.train.precision == "fp32" and not run.model.dropout
    return device.type == "cpu" and plain and each >= STEP and each * steps >= REPAYS


def compile_step(
    training: Training,
    multiply_adds: int,
    cache: Path,
    beat: Callable[..., None],
    say: Callable[[str], None],
    execution: str | None = None,
) -> None:
    """Have the training compiled, if its run is to be: decided before its first step, and kept by
    its checkpoints, for the bits are others. `execution`: "eager" or "compiled", where the run is
    trained again as it was. Raises UserError, see `check_compile`."""
    run, device, asked = training.run, training.device, training.run.train.compile
    check_compile(run, device)
    begins, wanted, lacks = training.steps == 0, training.compiled, missing(device)
    if begins:
        repaid = asked == "auto" and repays(run, training.lengths.total, multiply_adds, device)
        wanted = asked is True or (repaid and lacks is None)
        wanted = wanted if execution is None else execution == "compiled"
    if not wanted:
        return
    if lacks is not None:
        say(f"warning: began with compiled steps and goes on without: this machine lacks {lacks}")
        return
    # Read when torch loads its compiler. Its pool of processes would be each worker's own.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str((cache / FOLDER).absolute())
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    beat(phase="compile")
    from torch import _dynamo  # which takes as long as torch itself

    _dynamo.reset()  # of the runs before it in this process it keeps a few
    training.compile()
    if begins and asked == "auto" and (why := _hindered(training)) is not None:
        say(f"not compiled: {why}")
        training.uncompile()
    else:
        say("steps are compiled")


def _hindered(training: Training) -> str | None:
    """Why there is no compiled step, in a line; the training is as it was before."""
    tensors, state = training.state()
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    try:
        training.step()
    except Exception as error:
        return faults.line(error)
    else:
        return None
    finally:
        training.load(before, state)
