"""Randomness with nothing to save: every draw has a place, and the place alone decides it.

A seed and a purpose are a key of Philox; the step (or the epoch), the row of the global batch and
the number of the draw are its counter. So a draw is the same on every device, however a batch is
split and however many threads fetch it; a resumed run draws what the uninterrupted one drew; all
variants of a seed share every draw whose place they share, however many draws others make.

A row's draws hang on its place in the step's global batch, not on the image's number in its set:
the copies of an image in one batch (`augment.repeats`) are to be changed each in its own way, and
no image numbers have to reach the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor

from ablate.training.philox import MASK, philox

# Counters at a time. On a CPU what they take stays in its cache, on a GPU they fill it.
CHUNK = {"cpu": 1 << 16}
ON_A_GPU = 1 << 22
STEPS = 256  # at most, that are drawn for at once: a call of Philox takes 100 small operations


def key(*parts: int | str) -> int:
    """63 bits from the parts, in order: `key(seed, "init", "head.weight")`."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def uniform(words: Tensor) -> Tensor:
    """float32 in [0, 1), exactly: the upper 24 bits of each word over 2^24."""
    return (words >> 8).to(torch.float32).mul_(2.0**-24)


class Draws:
    """The draws of a seed, on one device."""

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.seed = seed
        self.device = torch.device(device)
        self._chunk = CHUNK.get(self.device.type, ON_A_GPU)
        self._windows: dict[Hashable, tuple[int, Any]] = {}

    def words(self, purpose: str, step: int, rows: range, count: int, steps: int = 1) -> Tensor:
        """int64 (steps, count, rows): the first `count` words of each row, from `step` on."""
        row, block = self._range(rows), self._range(range(-(-count // 4)))[:, None]
        at = self._range(range(step, step + steps))[:, None, None]
        four = philox((block, row, at, torch.zeros_like(row)), self._secret(purpose))
        return torch.stack(four, 2).flatten(1, 2)[:, :count]

    def uniform(self, purpose: str, step: int, count: int, batch: int) -> Tensor:
        """float32 (count, batch): U[0, 1), `count` for each row of the global batch of a step."""

        def draw(steps: int) -> Tensor:
            return uniform(self.words(purpose, step, range(batch), count, steps))

        return self.ahead((purpose, count, batch), step, -(-count // 4) * batch, draw)

    def precise(self, purpose: str, step: int, count: int, steps: int = 1) -> Tensor:
        """float64 (steps, count): U[0, 1) in 53 bits, of a whole step."""
        words = self.words(purpose, step, range(1), 2 * count, steps).view(steps, count, 2)
        whole = ((words[..., 0] << 32) | words[..., 1]) >> 11
        return (whole & ((1 << 53) - 1)).to(torch.float64).mul_(2.0**-53)

    def ahead(self, what: Hashable, step: int, counters: int, draw: Callable[[int], Any]) -> Any:
        """What is drawn for a step, kept from a call that drew for several: `draw(steps)` gives one
        for each, from this step on. `counters`: of a step. It changes no draw, only its cost."""
        first, window = self._windows.get(what, (0, ()))
        if not first <= step < first + len(window):
            window = draw(max(1, min(STEPS, self._chunk // counters)))
            self._windows[what] = first, window = step, window
        return window[step - first]

    def lanes(self, purpose: str, step: int, rows: range, count: int) -> Tensor:
        """int16 (rows, count): 16 bits for each of the `count` elements of a row, from -32,768 on.

        Eight of a counter, and rows apart: what some rows take is their share of what all do.
        """
        blocks = -(-count // 8)
        made = torch.empty((len(rows), 4, blocks), dtype=torch.int32, device=self.device)
        secret, at = self._secret(purpose), torch.full((), step, device=self.device)
        for some in _parts(len(rows), max(1, self._chunk // blocks)):
            row = self._range(rows[some.start : some.stop])[:, None]
            for part in _parts(blocks, self._chunk):
                words = philox((self._range(part), row, at, torch.zeros_like(at)), secret)
                for j, word in enumerate(words):
                    made[some.start : some.stop, j, part.start : part.stop] = word
        return made.view(torch.int16).view(len(rows), 8 * blocks)[:, :count]

    def order(self, epoch: int, n: int) -> Tensor:
        """int64 (n,), on the CPU: a permutation, each as likely. Words of 64 bits sorted; of two
        that are equal, the earlier comes first."""
        made = torch.empty((2, -(-n // 2)), dtype=torch.int64)
        secret, zero = self._secret("order"), torch.zeros((), dtype=torch.int64)
        for part in _parts(made.shape[1], CHUNK["cpu"]):
            counter = torch.arange(part.start, part.stop), zero, torch.tensor(epoch), zero
            a, b, c, d = philox(counter, secret)
            made[0, part.start : part.stop] = (a << 32) | b
            made[1, part.start : part.stop] = (c << 32) | d
        return made.view(-1)[:n].argsort(stable=True)

    def _secret(self, purpose: str) -> tuple[int, int]:
        whole = key(self.seed, purpose)
        return whole & MASK, whole >> 32

    def _range(self, numbers: range) -> Tensor:
        return torch.arange(numbers.start, numbers.stop, device=self.device)


def _parts(n: int, size: int) -> Iterator[range]:
    return (range(first, min(first + size, n)) for first in range(0, n, size))


class StepKey:
    """Where training stands, for draws made inside the model (dropout, drop-path): the step, and
    which `rows` of the global batch a micro-batch has."""

    def __init__(self, draws: Draws, batch: int) -> None:
        self.draws = draws
        self.batch = batch
        self.step = 0
        self.rows = slice(None)

    def dropped(self, site: str, shape: tuple[int, ...], share: int) -> Tensor:
        """bool of `shape`, whose first axis is `rows`: True with probability share / 65536."""
        lanes = self.draws.lanes(f"mask {site}", self.step, self._rows(), prod(shape[1:]))
        return (lanes < share - 32768).view(shape)

    def kept(self, site: str, rate: float, dtype: torch.dtype) -> Tensor:
        """(rows,): 1 / (1 - rate), but 0 with probability `rate`."""

        def draw(steps: int) -> Tensor:
            words = self.draws.words(f"mask {site}", self.step, range(self.batch), 1, steps)
            return (uniform(words[:, 0]) >= rate).to(dtype).div_(1 - rate)

        return self.draws.ahead((site, rate, dtype), self.step, self.batch, draw)[self.rows]

    def _rows(self) -> range:
        return range(self.batch)[self.rows]
