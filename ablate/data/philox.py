"""Philox 4x32-10: four random words for a counter of four words and a key of two.

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011), section 3.3 and
table 2. A word is 32 bits, 0 to 2^32 - 1, held in int64. Integers alone, elementwise: the same bits
on every device, with nothing kept between calls, no host synchronisation, and no random state for a
captured graph to lose.
"""

from __future__ import annotations

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85  # what a round adds to the key: the golden ratio, and sqrt(3) - 1
ROUNDS = 10

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[int | Tensor, int | Tensor]) -> Words:
    """The four words at `counter`, int64 tensors that broadcast. Key words may be tensors, too, of
    a shape that the counter's includes."""
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
