"""Philox 4x32-10 in Triton, for a GPU: a thread draws its numbers in registers, where torch's
operations on whole tensors move some 200 bytes of memory for each number. The bits are those of
`draws.philox`, which explains the generator.

It is loaded on a GPU alone. With TRITON_INTERPRET=1 it runs on a CPU, for tests.

Used by `data/draws.py`, whose `philox` must draw the same bits (`tests/test_philox_kernel.py`), and
for dropout by `training/model/drop.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COUNTERS = 256  # of a program; each yields eight lanes


@triton.jit
def philox(c0, c1, c2, k0, k1):
    """Return the four words, uint32, at the counters (c0, c1, c2, 0)."""
    c3 = c0 * 0
    for _ in tl.static_range(10):
        low = c0 * 0xD2511F53
        lower = c2 * 0xCD9E8D57
        c0, c2 = (
            tl.umulhi(c2, 0xCD9E8D57) ^ c1 ^ k0,
            tl.umulhi(c0, 0xD2511F53) ^ c3 ^ k1,
        )
        c1 = lower
        c3 = low
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def words_of(row, block, step, key0, key1):
    """Return the four words of each block of a row, where row and step are pointers."""
    c0 = block.to(tl.uint32)
    zero = c0 * 0
    c1 = zero + tl.load(row).to(tl.uint32)
    c2 = zero + tl.load(step).to(tl.uint32)
    return philox(c0, c1, c2, zero + key0.to(tl.uint32), zero + key1.to(tl.uint32))


@triton.jit
def halves_of(word):
    """Return the int32 lanes (COUNTERS, 2) of words (COUNTERS,): the lower half, then the upper
    one, each as a number from -32,768 on."""
    shift = tl.arange(0, 2)[None, :] * 16
    half = ((word[:, None] >> shift.to(tl.uint32)) & 0xFFFF).to(tl.int32)
    return tl.where(half >= 32768, half - 65536, half)


@triton.jit(do_not_specialize=["key0", "key1"])
def _lanes(out, rows, step, key0, key1, count, blocks, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    words = words_of(rows + row, block, step, key0, key1)
    for j in tl.static_range(4):
        at = (j * blocks + block)[:, None] * 2 + tl.arange(0, 2)[None, :]
        inside = (block < blocks)[:, None] & (at < count)
        tl.store(out + row * count + at, halves_of(words[j]).to(tl.int16), mask=inside)


def lanes(secret: tuple[int, int], step: Tensor, rows: Tensor, count: int) -> Tensor:
    """Do the same as `Draws.lanes_at`, by one kernel: int16 (rows, count)."""
    out = torch.empty((len(rows), count), dtype=torch.int16, device=rows.device)
    blocks = -(-count // 8)
    grid = (len(rows), triton.cdiv(blocks, COUNTERS))
    _lanes[grid](out, rows, step, *signed(secret), count, blocks, BLOCK=COUNTERS)
    return out


@triton.jit(do_not_specialize=["key0", "key1", "limit", "scale"])
def _drop(x, y, rows, step, key0, key1, count, blocks, limit, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    words = words_of(rows + row, block, step, key0, key1)
    for j in tl.static_range(4):
        at = (j * blocks + block)[:, None] * 2 + tl.arange(0, 2)[None, :]
        inside = (block < blocks)[:, None] & (at < count)
        value = tl.load(x + row * count + at, mask=inside, other=0).to(tl.float32) * scale
        value = tl.where(halves_of(words[j]) < limit, 0.0, value)
        tl.store(y + row * count + at, value.to(y.dtype.element_ty), mask=inside)


def drop(
    x: Tensor, secret: tuple[int, int], step: Tensor, rows: Tensor, limit: int, scale: float
) -> Tensor:
    """Return `x.masked_fill(dropped, 0) * scale` for x (rows, ...) in float32 or bfloat16.

    Dropped are the elements whose lanes are below `limit`; `secret`, `step` and `rows` are the
    place of these lanes, see `Draws.lanes_at`. No mask is written to memory.
    """
    x = x.contiguous()
    y = torch.empty_like(x)
    count = x[0].numel()
    blocks = -(-count // 8)
    grid = (len(rows), triton.cdiv(blocks, COUNTERS))
    _drop[grid](x, y, rows, step, *signed(secret), count, blocks, limit, scale, BLOCK=COUNTERS)
    return y


def signed(secret: tuple[int, int]) -> tuple[int, int]:
    """Return the key as two int32: Triton compiles a kernel for each width of an argument."""
    first, second = (word - (word >> 31 << 32) for word in secret)
    return first, second
