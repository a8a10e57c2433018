"""Decisions that depend on the machine but are the same for all runs of a column: how many images
fit into memory at once, and whether deterministic algorithms are worth their time.

Used by training/answers.py, which running/preflight.py asks (`settle`, `load`) before the first run
of `ablate sweep`. A new decision also needs its key in `SETTLED_KEYS` and `_is_decision` there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ablate.data import prepare_cache, resident_split
from ablate.run import Run
from ablate.training import calibrate
from ablate.training.calibrate import Load, random_split, smaller
from ablate.training.numerics import choose
from ablate.training.resume_check import deterministic_ratio
from ablate.training.training import Training

WORTH = 1.1  # times as long as without that a step with deterministic algorithms may take
FEW = 2  # images that tell what a shape of model does


def settle(
    runs: Sequence[Run],
    wants: Sequence[str],
    known: Mapping[str, Any],
    cache: Path,
    device: torch.device,
    parts: int = 1,
) -> dict[str, Any]:
    """Return {"micro_batch", "deterministic"}, as far as `wants` names them and the runs can tell;
    on a GPU also "memory", the device's free and total bytes when the micro-batch was tried.
    `known` is an earlier decision, which these runs join: no larger micro-batch than there, and no
    determinism where there is none. The first run is the baseline. `parts` is the least number of
    micro-batches of a batch.

    A run that can't be tried tells nothing: it fails when it is trained.
    """
    decision: dict[str, Any] = {}
    if "deterministic" in wants:  # first: it decides which kernels are tried below
        was_worth = known.get("deterministic", True)
        decision["deterministic"] = was_worth and _is_worth(runs, known, device)
    if "micro_batch" in wants:
        run = _largest(runs, device, decision)
        if run is not None:
            batch = run.train.batch
            limit = min(known.get("micro_batch", batch), max(1, batch // parts))
            free_and_total = memory(device)
            decision["micro_batch"] = _images(run, decision, limit, cache, device)
            if free_and_total:
                decision["memory"] = free_and_total
        elif "micro_batch" in known:
            decision["micro_batch"] = known["micro_batch"]
    return decision


def memory(device: torch.device) -> list[int]:
    """Return a GPU's free and total bytes; [] for a CPU."""
    if device.type != "cuda":
        return []
    return list(torch.cuda.mem_get_info(device))


def _is_worth(runs: Sequence[Run], known: Mapping[str, Any], device: torch.device) -> bool:
    """Return whether deterministic algorithms exist for all runs and cost the baseline little."""
    for run in runs:
        strict = replace(run, train=replace(run.train, deterministic=True))
        try:
            for training in _small(strict, device, {}):
                training.step()
        except Exception as error:
            if "deterministic" in str(error):  # torch names the operator that has none
                return False
    try:
        return "deterministic" in known or deterministic_ratio(runs[0], device) <= WORTH
    except Exception:  # the baseline fails by itself when it is trained
        return True


def _kept(run: Run, device: torch.device, found: Mapping[str, Any]) -> float:
    """Return the bytes that the backward pass of an image needs."""
    (training,) = _small(run, device, found)
    images, target = training.inputs()
    rows = slice(0, FEW)
    return calibrate.kept_bytes(
        images[rows].clone(), training.model, lambda some: training.part(some, target, rows)
    )


def _small(run: Run, device: torch.device, found: Mapping[str, Any]) -> Iterator[Training]:
    """Yield a training of the run with a batch of a few random images."""
    choose(run, device, found).use()
    few = min(FEW, run.train.batch)
    yield Training(smaller(run, few), random_split(run.data, few, device), device)


def load_of(
    runs: Sequence[Run], settled: Mapping[str, Any], cache: Path, device: torch.device
) -> Load:
    """Return the load that the largest of the runs is for a GPU. `settled`: the decision for their
    column. Raises as the training does."""
    run = _largest(runs, device, settled) or runs[0]
    choose(run, device, settled).use()
    training = _training(run, cache, device)
    training.micro_batch = settled.get("micro_batch") or training.micro_batch or run.train.batch
    return calibrate.load(training)


def _largest(runs: Sequence[Run], device: torch.device, decision: Mapping[str, Any]) -> Run | None:
    """Return the run whose images keep the most memory; None where none can be tried."""
    sizes = {}
    for run in runs:
        with suppress(Exception):
            sizes[_kept(run, device, decision), run.train.batch] = run
    if not sizes:
        return None
    return sizes[max(sizes)]


def _images(
    run: Run, found: Mapping[str, Any], at_most: int, cache: Path, device: torch.device
) -> int:
    """Return how many of the run's images fit at once, with its data where training keeps it."""
    choose(run, device, found).use()
    return calibrate.micro_batch(_training(run, cache, device), at_most)


def _training(run: Run, cache: Path, device: torch.device) -> Training:
    """Return a training of the run, with its data where training keeps it."""
    cached = prepare_cache(run.data, cache)
    splits = [
        resident_split(cached.split(name), device) for name in ("train", "validation", "test")
    ]
    return Training(run, splits[0], device)
