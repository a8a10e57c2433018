"""Which runs can be shared among several ranks to the same bits."""

from __future__ import annotations

from collections.abc import Iterator

from ablate.shared.errors import UserError
from ablate.shared.metrics import TASKS
from ablate.shared.spec import Run

WORLDS = (1, 2, 4, 8)  # how many ranks there may be
LEAST = 8  # micro-batches of a step where the machine decides, so that each of these fits
IN_ORDER = 4  # micro-batches from which on statistics are taken in behind all of them


def sizes(per_run: int | str, devices: int) -> list[int]:
    """List how many devices a run may have, of so many."""
    return [n for n in WORLDS if n <= devices] if per_run == "auto" else [int(per_run)]


def check_ranks(run: Run, micro_batch: int, world: int, statistics: bool = False) -> None:
    """Raises UserError where so many ranks would not give the bits of one: each takes as many
    micro-batches, whose gradients are summed in a balanced tree. `statistics`: has the model
    running ones?"""
    if world == 1 or not TASKS[run.task].trains:
        return
    parts = run.train.batch // micro_batch
    if parts & (parts - 1):
        raise UserError(
            f"train.micro_batch: {world} ranks share a power of two of micro-batches, and a batch "
            f"of {run.train.batch} has {parts} of {micro_batch}; give one rank, or "
            f"another train.micro_batch"
        )
    if parts % world:
        fit = ", ".join(str(n) for n in WORLDS if parts % n == 0)
        raise UserError(
            f"train.micro_batch: {world} ranks can't share the {parts} micro-batches of a step "
            f"(batch {run.train.batch}, {micro_batch} at once); ranks that can: {fit}; or give "
            f"train.micro_batch=N"
        )
    if statistics and parts < IN_ORDER:
        raise UserError(
            f"train.micro_batch: running statistics of {parts} micro-batches can't be gathered; "
            f"give at most {run.train.batch // IN_ORDER}, or one rank"
        )
    if run.norm is not None and run.norm.name == "powernorm":
        raise UserError(
            "norm: powernorm reads in each micro-batch what the one before it has left, so its "
            "runs take one rank"
        )


def divisors(batch: int) -> Iterator[int]:
    """The batch, then each time the largest divisor of it that is at most half the one before."""
    size = batch
    while size > 1:
        yield size
        size = next(part for part in range(size // 2, 0, -1) if batch % part == 0)
    yield 1
