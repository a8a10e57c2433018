"""The GPU memory that a step of each cell's runs takes, and whether a GPU has it.

Used by running/estimate.py for the costs of `ablate plan`, which report/planned.py prints. The
peaks are counted in training/step_memory.py. A GPU of `ablate plan --on` has its memory in `PEAKS`
(running/devices.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.planning import Cell
from ablate.run import LEAST_MICRO_BATCHES, batch_divisors
from ablate.running.gpus import Gpu, NoAnswer, rows
from ablate.running.world_sizes import Group, group_of
from ablate.shared import count_text

Place = tuple[str, str]  # row and column of a cell
# As the training half has them: `MARGIN` of training/calibrate.py and `SHARE` of data/batches.py.
STEP_SHARE = 0.9  # of a GPU's memory, for a step
SPLIT_SHARE = 0.3  # of its free memory, for a split that stays there
PARENT = ".from"  # behind the row of runs that others start from


@dataclass(frozen=True)
class Card:
    """A kind of GPU, and its memory in bytes."""

    name: str
    memory_bytes: float

    @property
    def gigabytes(self) -> str:
        """The memory as text: "80 GB"."""
        return f"{self.memory_bytes / 1e9:.0f} GB"


@dataclass(frozen=True)
class StepMemory:
    """The memory that a step of a cell's runs takes at its peak, in bytes, for a `micro_batch` of
    images computed at once, which `train.micro_batch=auto` chooses if `is_auto`. `fitting`: the
    largest micro-batch that fits into the GPU, 0 where not one image does; None where no GPU is
    known."""

    micro_batch: int
    peak_bytes: int
    fitting: int | None
    is_auto: bool

    @property
    def fits(self) -> bool:
        """True where the GPU has it, or none is known."""
        return self.fitting is None or self.micro_batch <= self.fitting


def smallest_card(gpus: Sequence[Gpu]) -> Card | None:
    """Return the GPU of this machine that has the least memory; None where there is none, where
    nvidia-smi doesn't say, and for slices, of which it gives the whole GPU's."""
    if not gpus:
        return None
    try:
        sizes = dict(rows("uuid", "memory.total"))
    except NoAnswer:
        return None
    cards = []
    for gpu in gpus:
        if gpu.uuid != gpu.board:
            return None
        mebibytes = sizes.get(gpu.uuid, "")
        if mebibytes.isdigit():
            cards.append(Card(gpu.model, int(mebibytes) * 2**20))
    return min(cards, key=lambda card: card.memory_bytes, default=None)


def step_memories(
    cells: Iterable[Cell],
    described: Mapping[Place, Mapping[str, Any]],
    card: Card | None,
    worlds: Sequence[int],
) -> dict[Place, StepMemory]:
    """Return what a step of each cell's runs takes, where that is known. `described`: the worker's
    descriptions; `worlds`: how many GPUs a run may have."""
    memories = {}
    columns: dict[Group, list[Cell]] = {}  # whose runs share what `auto` chooses
    for cell in cells:
        if described[cell.row, cell.column].get("peak_bytes") is not None:
            columns.setdefault(group_of(cell), []).append(cell)
    for column in columns.values():
        answers = [described[cell.row, cell.column] for cell in column]
        pairs = list(zip(column, answers, strict=True))
        fitting = [_fitting(cell, answer, card) for cell, answer in pairs]
        limit = min((n for n in fitting if n is not None), default=None)
        for (cell, answer), number in zip(pairs, fitting, strict=True):
            train, peaks = cell.spec.tree["train"], answer["peak_bytes"]
            batch, setting = train["batch"], train["micro_batch"]
            images = batch if setting is None else setting
            if setting == "auto":
                if limit is None:
                    continue
                if max(worlds) > 1:
                    limit = min(limit, batch // LEAST_MICRO_BATCHES)
                images = next(n for n in batch_divisors(batch) if n <= max(1, limit))
            peak_bytes = peaks[str(images)] + _resident_bytes(cell, answer["examples"], card)
            memories[cell.row, cell.column] = StepMemory(
                images, peak_bytes, number, setting == "auto"
            )
    return memories


def _fitting(cell: Cell, answer: Mapping[str, Any], card: Card | None) -> int | None:
    """Return the most images that fit into the GPU at once; None where no GPU is known."""
    if card is None:
        return None
    room = STEP_SHARE * card.memory_bytes - _resident_bytes(cell, answer["examples"], card)
    sizes = batch_divisors(cell.spec.tree["train"]["batch"])
    return next((size for size in sizes if answer["peak_bytes"][str(size)] <= room), 0)


def _resident_bytes(cell: Cell, examples: Mapping[str, int] | None, card: Card | None) -> int:
    """Return the bytes of the splits that stay on the GPU while a run trains: decoded squares that
    take a small part of its free memory."""
    data = cell.spec.tree["data"]
    if card is None or examples is None or data["cache"] == "encoded" or data["labels"] == "masks":
        return 0
    image_bytes = data["channels"] * (data["cache_size"] or data["size"]) ** 2
    resident = 0
    for number in examples.values():
        split_bytes = number * image_bytes
        if split_bytes <= SPLIT_SHARE * (card.memory_bytes - resident):
            resident += split_bytes
    return resident


# --- In words -------------------------------------------------------------------------------------


def memory_line(memories: Mapping[Place, StepMemory], card: Card | None) -> str:
    """Describe the step that takes the most; "" where none is known, and where one doesn't fit, as
    `memory_warnings` say."""
    if not memories or not all(memory.fits for memory in memories.values()):
        return ""
    place, memory = _largest(memories)
    unit, bound, label, chooser = "GB", "", "", ""
    if card is not None:
        unit = f"of the {card.gigabytes} of {card.name}"
    if memory.peak_bytes < 1e9:
        return f"memory: a step takes under 1 {unit}"
    if len(memories) > 1:
        bound, label = "at most ", f" ({_label(place)})"
    if memory.is_auto:
        chooser = " by train.micro_batch=auto"
    return (
        f"memory: a step takes {bound}about {memory.peak_bytes / 1e9:,.0f} {unit}, with "
        f"{count_text(memory.micro_batch, 'image')} at once{chooser}{label}"
    )


def memory_warnings(memories: Mapping[Place, StepMemory], card: Card | None) -> list[str]:
    """List a line on the largest step that doesn't fit, with the remedy."""
    too_large = {place: memory for place, memory in memories.items() if not memory.fits}
    if not too_large or card is None:
        return []
    place, memory = _largest(too_large)
    label = _label(place)
    if len(too_large) > 1:
        label += f" and {count_text(len(too_large) - 1, 'other cell')}"
    remedy = f"train.micro_batch=auto, or {memory.fitting:,}"
    if not memory.fitting:
        remedy = "a smaller model, or a GPU with more memory"
    return [
        f"{label}: a step takes about {memory.peak_bytes / 1e9:,.0f} GB with "
        f"{count_text(memory.micro_batch, 'image')} at once, more than fits into the "
        f"{card.gigabytes} of {card.name}; give {remedy}"
    ]


def _largest(memories: Mapping[Place, StepMemory]) -> tuple[Place, StepMemory]:
    return max(memories.items(), key=lambda item: item[1].peak_bytes)


def _label(place: Place) -> str:
    row, column = place
    row, parent, _ = row.partition(PARENT)
    if parent:
        row = f"the parent of {row}"
    return f"{row}, {column}" if column else row
