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
from ablate.run import GPU_SHARE, LEAST_MICRO_BATCHES, RESIDENT_SHARE, batch_divisors
from ablate.running.gpus import Gpu, NoAnswer, rows
from ablate.shared import count_text

Place = tuple[str, str]  # row and column of a cell


@dataclass(frozen=True)
class Card:
    """A kind of GPU, and its memory in bytes."""

    name: str
    memory_bytes: float

    @property
    def gigabytes(self) -> str:
        """Its memory as text: "80 GB"."""
        return f"{self.memory_bytes / 1e9:.0f} GB"


@dataclass(frozen=True)
class StepMemory:
    """The memory that a step of a cell's runs takes: bytes at its peak, for so many images computed
    at once. `fitting`: the most images that fit into the GPU; None where no GPU is known."""

    images: int
    peak_bytes: int
    fitting: int | None

    @property
    def fits(self) -> bool:
        """Whether the GPU has it, as far as one is known."""
        return self.fitting is None or self.images <= self.fitting


def smallest_card(gpus: Sequence[Gpu]) -> Card | None:
    """Return the GPU of this machine that has the least memory; None where there is none, where
    nvidia-smi doesn't say, and for slices, of which it gives the whole GPU's."""
    if any(gpu.uuid != gpu.board for gpu in gpus):
        return None
    try:
        sizes = dict(rows("uuid", "memory.total")) if gpus else {}
    except NoAnswer:
        return None
    cards = []
    for gpu in gpus:
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
    for cell in cells:
        memory = _step_memory(cell, described[cell.row, cell.column], card, max(worlds))
        if memory is not None:
            memories[cell.row, cell.column] = memory
    return memories


def _step_memory(
    cell: Cell, answer: Mapping[str, Any], card: Card | None, world: int
) -> StepMemory | None:
    peaks = answer.get("peak_bytes")
    train = cell.spec.tree["train"]
    batch, setting = train["batch"], train["micro_batch"]
    if peaks is None or (setting == "auto" and card is None):
        return None
    resident, fitting = 0, None
    if card is not None:
        resident = _resident_bytes(cell.spec.tree["data"], answer["examples"], card)
        room = GPU_SHARE * card.memory_bytes - resident
        fitting = next((n for n in batch_divisors(batch) if peaks[str(n)] <= room), 0)
    images = batch if setting is None else setting
    if setting == "auto":
        most = batch if world == 1 else batch // LEAST_MICRO_BATCHES
        images = next(n for n in batch_divisors(batch) if n <= max(1, min(most, fitting or 1)))
    return StepMemory(images, peaks[str(images)] + resident, fitting)


def _resident_bytes(data: Mapping[str, Any], examples: Mapping[str, int] | None, card: Card) -> int:
    """Return the bytes of the splits that stay on the GPU while a run trains: decoded squares that
    take a small part of its free memory."""
    if examples is None or data["cache"] == "encoded" or data["labels"] == "masks":
        return 0
    image_bytes = data["channels"] * (data["cache_size"] or data["size"]) ** 2
    resident = 0
    for number in examples.values():
        split_bytes = number * image_bytes
        if split_bytes <= RESIDENT_SHARE * (card.memory_bytes - resident):
            resident += split_bytes
    return resident


# --- In words -------------------------------------------------------------------------------------


def memory_line(memories: Mapping[Place, StepMemory], card: Card | None) -> str:
    """Describe the step that takes the most; "" where none is known, and where one doesn't fit, as
    `memory_warnings` say."""
    if not memories or not all(memory.fits for memory in memories.values()):
        return ""
    place, memory = _largest(memories)
    where = "GB" if card is None else f"of the {card.gigabytes} of {card.name}"
    whose = f" ({_label(place)})" if len(memories) > 1 else ""
    most = "" if len(memories) == 1 else "at most "
    return (
        f"memory: a step takes {most}about {_number(memory.peak_bytes)} {where}, for "
        f"{memory.images:,} images at once{whose}"
    )


def memory_warnings(memories: Mapping[Place, StepMemory], card: Card | None) -> list[str]:
    """List a line on the largest step that doesn't fit, with the remedy."""
    too_large = {place: memory for place, memory in memories.items() if not memory.fits}
    if not too_large or card is None:
        return []
    place, memory = _largest(too_large)
    others = len(too_large) - 1
    also = f", nor do {count_text(others, 'other cell')}" if others else ""
    remedy = f"train.micro_batch=auto, or {memory.fitting:,}"
    if not memory.fitting:
        remedy = "a smaller model, or a GPU with more memory"
    return [
        f"{_label(place)}: a step takes about {_number(memory.peak_bytes)} GB for "
        f"{count_text(memory.images, 'image')} at once, which does not fit into the "
        f"{card.gigabytes} of {card.name}{also}; give {remedy}"
    ]


def _largest(memories: Mapping[Place, StepMemory]) -> tuple[Place, StepMemory]:
    return max(memories.items(), key=lambda item: item[1].peak_bytes)


def _label(place: Place) -> str:
    return ", ".join(part for part in place if part)


def _number(size: int) -> str:
    """Write bytes in GB: "21", or "2.1" below 10."""
    gigabytes = size / 1e9
    return f"{gigabytes:,.0f}" if gigabytes >= 9.95 else f"{gigabytes:.1f}"
