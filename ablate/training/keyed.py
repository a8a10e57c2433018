"""Randomness with nothing to save: every draw has a key, and the key alone decides it.

A resumed run draws what the uninterrupted one drew, with no generator state in the checkpoint; all
variants of a seed share every draw whose key they share, however many draws others make.
"""

from __future__ import annotations

import hashlib

import torch


def key(*parts: int | str) -> int:
    """63 bits from the parts, in order: `key(seed, "init", "head.weight")`."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


class Draws:
    """Kept generators, one a device: re-seeding one costs microseconds, torch.manual_seed 100."""

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.seed = seed
        self.device = torch.device(device)
        self._generator = torch.Generator(self.device)

    def at(self, *parts: int | str) -> torch.Generator:
        """The generator, re-seeded by (seed, *parts): valid until the next call."""
        return self._generator.manual_seed(key(self.seed, *parts))


class StepKey:
    """Where training stands, for draws made inside the model (dropout, drop-path).

    Masks are drawn for the whole global batch, of which a micro-batch takes its `rows`, so that
    splitting a batch changes no mask.
    """

    def __init__(self, draws: Draws) -> None:
        self.draws = draws
        self.step = 0
        self.batch = 0
        self.rows = slice(None)

    def uniform(self, site: str, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """U[0, 1) of `shape`, whose first axis is this micro-batch's rows of the global batch."""
        generator = self.draws.at("mask", self.step, site)
        whole = torch.rand((self.batch, *shape[1:]), generator=generator, device=like.device)
        return whole[self.rows]
