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
from ablate.running.work import SEARCHED
from ablate.running.world_sizes import Group, group_of
from ablate.shared import count_text

Place = tuple[str, str]  # row and column of a cell
# As the training half has them: `MARGIN` and `SHARED` of training/calibrate.py, `SHARE` of
# data/batches.py.
TRIAL_SHARE = 0.9  # of the memory that a run has, for a step that `auto` tries
SHARED_SHARE = 0.95  # of a GPU's memory, for the runs that share it
SPLIT_SHARE = 0.3  # of a GPU's free memory, for a split that stays there
PARENT = ".from"  # behind the row of runs that others start from


@dataclass(frozen=True)
class Card:
    """A kind of GPU, its memory in bytes, and how many runs share it."""

    name: str
    memory_bytes: float
    runs: int = 1

    @property
    def run_bytes(self) -> float:
        """The memory that each run may take, as `limit` of training/calibrate.py has it."""
        if self.runs == 1:
            return self.memory_bytes
        return SHARED_SHARE * self.memory_bytes / self.runs

    def __str__(self) -> str:
        """The memory of a run as text: "80 GB of h100"."""
        text = f"{self.run_bytes / 1e9:.0f} GB of {self.name}"
        if self.runs == 1:
            return text
        return f"{text} that each of {self.runs} runs has"


@dataclass(frozen=True)
class StepMemory:
    """The memory that a step of a cell's runs takes at its peak, in bytes, for a `micro_batch` of
    images computed at once, which `train.micro_batch=auto` chooses if `is_auto`. `fits`: has the
    GPU so much? `fitting`: the micro-batches that the trial of `auto` would take, the largest
    first. Both are None where no GPU is known."""

    micro_batch: int
    peak_bytes: int
    fits: bool | None
    fitting: Sequence[int] | None
    is_auto: bool


def smallest_card(gpus: Sequence[Gpu], runs: int) -> Card | None:
    """Return the GPU of this machine that has the least memory, shared by so many runs; None where
    there is none, where nvidia-smi doesn't say, and for slices, of which it gives the whole
    GPU's."""
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
            cards.append(Card(gpu.model, int(mebibytes) * 2**20, runs))
    return min(cards, key=lambda card: card.memory_bytes, default=None)


def is_forecast(cell: Cell, card: Card | None) -> bool:
    """Return whether `step_memories` can tell a cell's memory: what `auto` chooses depends on the
    GPU."""
    return card is not None or cell.spec.tree["train"]["micro_batch"] != "auto"


def step_memories(
    cells: Iterable[Cell],
    described: Mapping[Place, Mapping[str, Any]],
    card: Card | None,
    worlds: Sequence[int],
) -> dict[Place, StepMemory]:
    """Return what a step of each cell's runs takes, where that is known. `described`: the worker's
    descriptions; `worlds`: how many GPUs a run may have."""
    memories = {}
    columns: dict[Group, list[_CountedCell]] = {}  # whose runs share what `auto` chooses
    for cell in cells:
        answer = described[cell.row, cell.column]
        if is_forecast(cell, card) and answer.get("step") is not None:
            columns.setdefault(group_of(cell), []).append(_CountedCell(cell, answer, card))
    least_parts = LEAST_MICRO_BATCHES if max(worlds) > 1 else 1
    for column in columns.values():
        # As `settle` of training/column_decision.py: what fits the largest run is for all.
        largest = max(column, key=lambda member: (member.image_bytes, member.batch))
        limit = largest.tried(largest.batch // least_parts)
        for member in column:
            memories[member.place] = member.memory(limit)
    return memories


class _CountedCell:
    """A cell whose peaks were counted, on a GPU or none."""

    def __init__(self, cell: Cell, answer: Mapping[str, Any], card: Card | None) -> None:
        train = cell.spec.tree["train"]
        self.place = cell.row, cell.column
        self.batch: int = train["batch"]
        self.image_bytes: float = answer["step"]["image_bytes"]
        self._setting: int | str | None = train["micro_batch"]
        self._card = card
        resident_bytes = _resident_bytes(cell, answer["examples"], card)
        self._peaks = {
            int(images): peak + resident_bytes
            for images, peak in answer["step"]["peak_bytes"].items()
        }

    def memory(self, limit: int) -> StepMemory:
        """Return the memory of a step, of at most `limit` images at once if `auto` chooses."""
        images = self._setting or self.batch
        if images == "auto":
            images = next(batch_divisors(self.batch, limit))
        peak_bytes = self._peaks[int(images)]
        fits = None if self._card is None else peak_bytes <= self._card.run_bytes
        return StepMemory(int(images), peak_bytes, fits, self._fitting, self._setting == "auto")

    def tried(self, limit: int) -> int:
        """Return the micro-batch at which the trial of `auto` ends, from `limit` down: it does not
        try a single image."""
        return next((size for size in self._fitting or () if size <= limit), 1)

    @property
    def _fitting(self) -> list[int] | None:
        if self._card is None:
            return None
        room = TRIAL_SHARE * self._card.run_bytes
        return [size for size in sorted(self._peaks, reverse=True) if self._peaks[size] <= room]


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
        if split_bytes <= SPLIT_SHARE * (card.run_bytes - resident):
            resident += split_bytes
    return resident


# --- In words -------------------------------------------------------------------------------------


def memory_line(memories: Mapping[Place, StepMemory], card: Card | None) -> str:
    """Describe the step that takes the most; "" where none is known, and where one doesn't fit, as
    `memory_warnings` say."""
    if not memories or any(memory.fits is False for memory in memories.values()):
        return ""
    place, memory = _largest(memories)
    of_card, bound, label, chooser = "", "", "", ""
    if card is not None:
        of_card = f" of the {card}"
    if memory.peak_bytes < 1e9:
        return f"memory: a step takes under 1 GB{of_card}"
    if len(memories) > 1:
        bound, label = "at most ", f" ({cell_label(place)})"
    if memory.is_auto:
        chooser = " by train.micro_batch=auto"
    return (
        f"memory: a step takes {bound}about {memory.peak_bytes / 1e9:,.0f}{of_card or ' GB'}, with "
        f"{count_text(memory.micro_batch, 'image')} at once{chooser}{label}"
    )


def memory_warnings(memories: Mapping[Place, StepMemory], card: Card | None) -> list[str]:
    """List a line on the largest step that doesn't fit, with the remedy."""
    too_large = {place: memory for place, memory in memories.items() if memory.fits is False}
    if not too_large or card is None:
        return []
    place, memory = _largest(too_large)
    label = cell_label(place)
    if len(too_large) > 1:
        label += f" and {count_text(len(too_large) - 1, 'other cell')}"
    return [
        f"{label}: a step takes about {memory.peak_bytes / 1e9:,.0f} GB with "
        f"{count_text(memory.micro_batch, 'image')} at once, more than fits into the {card}; give "
        f"{_remedy([*too_large.values()], card)}"
    ]


def _remedy(too_large: Sequence[StepMemory], card: Card) -> str:
    """Return settings with which every one of the steps fits."""
    choices = []
    if all(memory.fitting and not memory.is_auto for memory in too_large):
        choices.append("auto")
    common = set.intersection(*(set(memory.fitting or ()) for memory in too_large))
    if common:
        choices.append(str(max(common)))
    if choices:
        return f"train.micro_batch={', or '.join(choices)}"
    if card.runs > 1:
        return "a smaller model, a GPU with more memory, or a smaller launcher.runs_per_gpu"
    return "a smaller model, or a GPU with more memory"


def _largest(memories: Mapping[Place, StepMemory]) -> tuple[Place, StepMemory]:
    return max(memories.items(), key=lambda item: item[1].peak_bytes)


def cell_label(place: Place) -> str:
    """Return the name of a cell, or what it is to another one: "the parent of dpn, S/16"."""
    row, column = place
    label = row.removesuffix(SEARCHED)
    is_search = label != row
    generations = 0
    while label.endswith(PARENT):
        label = label.removesuffix(PARENT)
        generations += 1
    label = "the parent of " * generations + label
    if is_search:
        label = f"the search for the parent of {label}"
    return f"{label}, {column}" if column else label
