"""Randomness with nothing to save: every draw has a place, and the place alone decides it.

A seed and a purpose are a key of Philox; the step (or the epoch), the row of the global batch and
the number of the draw are its counter. So a draw is the same on every device, however a batch is
split and however many threads fetch it; a resumed run draws what the uninterrupted one drew; all
variants of a seed share every draw whose place they share, however many draws others make.

A row's draws depend on its place in the step's global batch, not on the image's number in its set.
So the copies of an image in one batch (`augment.repeats`) are each changed in their own way, and no
image numbers have to reach the device.

Used by `data/batches.py`, `data/image_changes.py` and, for weights and dropout, `training/model/`.
A change of the bits also needs `data/philox_kernel.py`, which draws the same on a GPU, and `DRAWS`
in `run/spec.py` raised.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

# Counters at a time. On a CPU what they take stays in its cache, on a GPU they fill it.
CHUNK = {"cpu": 1 << 16}
ON_A_GPU = 1 << 22
STEPS = 256  # at most, that are drawn for at once: a call of Philox takes 100 small operations


def draw_key(*parts: int | str) -> int:
    """Return 63 bits that depend on the parts and their order:
    `draw_key(seed, "init", "head.weight")`."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def uniform_of(words: Tensor) -> Tensor:
    """Return float32 in [0, 1), exactly: the upper 24 bits of each word over 2^24."""
    return (words >> 8).to(torch.float32).mul_(2.0**-24)


class Draws:
    """The draws of a seed, on one device."""

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.seed = seed
        self.device = torch.device(device)
        self._chunk = CHUNK.get(self.device.type, ON_A_GPU)
        self._windows: dict[Hashable, tuple[int, Any]] = {}

    def words(self, purpose: str, step: int, rows: range, count: int, steps: int = 1) -> Tensor:
        """Return the first `count` words of each row, for `steps` steps from `step` on: int64
        (steps, count, rows)."""
        row, block = self._range(rows), self._range(range(-(-count // 4)))[:, None]
        step_numbers = self._range(range(step, step + steps))[:, None, None]
        four = philox((block, row, step_numbers, torch.zeros_like(row)), self.secret(purpose))
        return torch.stack(four, 2).flatten(1, 2)[:, :count]

    def uniform(self, purpose: str, step: int, count: int, batch: int) -> Tensor:
        """Return float32 (count, batch) from U[0, 1): `count` numbers for each row of the global
        batch of a step."""

        def draw(steps: int) -> Tensor:
            return uniform_of(self.words(purpose, step, range(batch), count, steps))

        return self.ahead((purpose, count, batch), step, -(-count // 4) * batch, draw)

    def precise(self, purpose: str, step: int, count: int, steps: int = 1) -> Tensor:
        """Return float64 (steps, count) from U[0, 1) in 53 bits: `count` numbers for each whole
        step, for `steps` steps from `step` on."""
        words = self.words(purpose, step, range(1), 2 * count, steps).view(steps, count, 2)
        bits = ((words[..., 0] << 32) | words[..., 1]) >> 11
        return (bits & ((1 << 53) - 1)).to(torch.float64).mul_(2.0**-53)

    def ahead(self, what: Hashable, step: int, counters: int, draw: Callable[[int], Any]) -> Any:
        """Return the draws of a step, from a call of `draw` that drew for several steps at once.

        `draw(steps)` returns a sequence with one item for each step, from `step` on; it is kept
        under the key `what` until a step outside it is needed. `counters`: the counters of Philox
        that one step takes, which limit the steps of a call. This changes no draw, only its cost.
        """
        window_start, window = self._windows.get(what, (0, ()))
        if not window_start <= step < window_start + len(window):
            window = draw(max(1, min(STEPS, self._chunk // counters)))
            self._windows[what] = window_start, window = step, window
        return window[step - window_start]

    def lanes(self, purpose: str, step: int, rows: range, count: int) -> Tensor:
        """Return int16 (rows, count): 16 random bits for each of the `count` elements of a row, as
        a number from -32,768 on.

        A counter yields eight of them, and rows have counters of their own: the lanes of some rows
        are those that these rows have among all.
        """
        step_counter = torch.full((), step, device=self.device)
        return self.lanes_at(self.secret(purpose), step_counter, self._range(rows), count)

    def lanes_at(self, secret: tuple[int, int], step: Tensor, rows: Tensor, count: int) -> Tensor:
        """Do the same as `lanes` for int64 tensors, step () and rows (rows,), so that a step can be
        captured."""
        if (kernel := self.kernel) is not None:
            return kernel.lanes(secret, step, rows, count)
        return self.lanes_by_operations(secret, step, rows, count)

    @property
    def kernel(self) -> ModuleType | None:
        """`philox_kernel`, where a GPU draws by it. A step that is being compiled does not: its
        compiler makes one kernel of the operations."""
        if self.device.type != "cuda" or torch.compiler.is_compiling():
            return None
        return kernel_on(self.device)

    def lanes_by_operations(
        self, secret: tuple[int, int], step: Tensor, rows: Tensor, count: int
    ) -> Tensor:
        """Do the same as `lanes_at` by torch's operations, which every device has.

        Under a compiler all counters are worked out at once: it keeps nothing between one operation
        and the next.
        """
        blocks = -(-count // 8)
        chunk = len(rows) * blocks if torch.compiler.is_compiling() else self._chunk
        lanes = torch.empty((len(rows), 4, blocks), dtype=torch.int32, device=self.device)
        for some in _parts(len(rows), max(1, chunk // blocks)):
            row = rows[some.start : some.stop, None]
            for part in _parts(blocks, chunk):
                words = philox((self._range(part), row, step, torch.zeros_like(step)), secret)
                for j, word in enumerate(words):
                    lanes[some.start : some.stop, j, part.start : part.stop] = word
        return lanes.view(torch.int16).view(len(rows), 8 * blocks)[:, :count]

    def order(self, epoch: int, n: int) -> Tensor:
        """Return a random permutation, int64 (n,), on the CPU; each is equally likely.

        It sorts words of 64 bits; of two equal words, the earlier comes first.
        """
        keys = torch.empty((2, -(-n // 2)), dtype=torch.int64)
        secret, zero = self.secret("order"), torch.zeros((), dtype=torch.int64)
        for part in _parts(keys.shape[1], CHUNK["cpu"]):
            counter = torch.arange(part.start, part.stop), zero, torch.tensor(epoch), zero
            a, b, c, d = philox(counter, secret)
            keys[0, part.start : part.stop] = (a << 32) | b
            keys[1, part.start : part.stop] = (c << 32) | d
        return keys.view(-1)[:n].argsort(stable=True)

    def secret(self, purpose: str) -> tuple[int, int]:
        """Return the key of a purpose, as Philox takes it."""
        key = draw_key(self.seed, purpose)
        return key & MASK, key >> 32

    def _range(self, numbers: range) -> Tensor:
        return torch.arange(numbers.start, numbers.stop, device=self.device)


@cache
def kernel_on(device: torch.device) -> ModuleType | None:
    """Return the module `philox_kernel`, if it draws the bits of torch's operations on this device;
    else warn and return None. It is tried once in a process."""
    draws = Draws(0, device)
    step = torch.full((), 2**31 + 5, device=device)
    place = draws.secret("trial"), step, torch.arange(3, 9, device=device), 4099
    try:
        from ablate.data import philox_kernel

        if torch.equal(philox_kernel.lanes(*place), draws.lanes_by_operations(*place)):
            return philox_kernel
        reason = "its bits differ from those of torch's operations"
    except Exception as error:  # no Triton, or none of the C compilers that it calls
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    warnings.warn(
        f"random masks take torch's operations, by which a step of a ViT-B/16 with dropout takes "
        f"three times as long: the Triton kernel can't be used ({reason}); install triton, and a C "
        f"compiler such as gcc",
        stacklevel=2,
    )
    return None


def _parts(n: int, size: int) -> Iterator[range]:
    return (range(start, min(start + size, n)) for start in range(0, n, size))


# --- Philox 4x32-10 -------------------------------------------------------------------------------

# Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011), section 3.3 and
# table 2. A word is 32 bits, 0 to 2^32 - 1, held in int64. Integers alone, elementwise: the same
# bits on every device, with nothing kept between calls, no host synchronisation, and no random
# state for a captured graph to lose.

MASK = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85  # what a round adds to the key: the golden ratio, and sqrt(3) - 1
ROUNDS = 10

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[int | Tensor, int | Tensor]) -> Words:
    """Return the four words at `counter`, int64 tensors that broadcast. Key words may be tensors,
    too, of a shape that broadcasts to the counter's."""
    c0, c1, c2, c3 = torch.broadcast_tensors(*counter)
    k0, k1 = key
    for _ in range(ROUNDS):
        # A product wraps at 2^64, sign and all; its upper half is right once it is masked, and the
        # lower one goes unmasked into what is masked next round.
        low, lower = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0 = (lower >> 32).bitwise_xor_(c1).bitwise_xor_(k0).bitwise_and_(MASK)
        c2 = (low >> 32).bitwise_xor_(c3).bitwise_xor_(k1).bitwise_and_(MASK)
        c1, c3 = lower, low
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1.bitwise_and_(MASK), c2, c3.bitwise_and_(MASK)
