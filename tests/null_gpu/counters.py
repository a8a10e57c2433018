"""What the null GPU counted in this process: launches, products, waits and copies.

Used by launches.py and the tests beside it.
"""

from __future__ import annotations

import ctypes
from collections import Counter

RUNTIME = ctypes.CDLL("libcudart.so.13")
RUNTIME.null_gpu_name.restype = ctypes.c_char_p
RUNTIME.null_gpu_count.restype = ctypes.c_long


def reset() -> None:
    """Set all counters to 0."""
    RUNTIME.null_gpu_reset()


def read() -> Counter[str]:
    """Return all counters by their names in runtime.c."""
    numbers: Counter[str] = Counter()
    for index in range(RUNTIME.null_gpu_counters()):
        numbers[RUNTIME.null_gpu_name(index).decode()] = RUNTIME.null_gpu_count(index)
    return numbers


def waits(numbers: Counter[str]) -> int:
    """Return how often the host waited for the device."""
    return sum(number for name, number in numbers.items() if name.endswith(" waits"))


def host_copies(numbers: Counter[str]) -> int:
    """Return how many copies there were from the host or to it."""
    return sum(number for name, number in numbers.items() if name.startswith("to "))
