"""The rate of matrix products on a device, with which a run's arithmetic is compared.

Used by training/journal.py for each result, and by training/answers.py, which running/preflight.py
asks before the first run of `ablate sweep`. The name of the file and its keys are also in
`measure_rates` there.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import torch

from ablate.shared import (
    is_number,
    make_folder,
    read_sealed,
    write_sealed,
)

FILE = "rates.json"  # in the store's cache: {"device's name, train.precision": multiply-adds a s}
SIDES = {"cuda": 8192, "cpu": 512}


def matmul_rate(precision: str, dtype: torch.dtype, device: torch.device, cache: Path) -> float:
    """Return the multiply-adds a second of a large square product in `train.precision`.

    A GPU's rate is measured once and kept in `cache`: measuring takes up to seconds, and other runs
    may share the GPU. A CPU's is that of this process's threads now. `dtype` is the type of the
    factors; products of float32 have the precision that is set (see Numerics.use).
    """
    if device.type != "cuda":
        return measured(dtype, device)
    name = f"{torch.cuda.get_device_name(device)}, {precision}"
    rates = read_sealed(cache / FILE) or {}
    if not is_number(rates.get(name)):
        rates |= {name: measured(dtype, device)}
        make_folder(cache)
        write_sealed(cache / FILE, rates)
    return float(rates[name])


def measured(dtype: torch.dtype, device: torch.device) -> float:
    """Measure the rate: the median of three products, after one. The factors are normal numbers: a
    GPU has a higher clock on constants, which draw less power."""
    side = SIDES[device.type]
    generator = torch.Generator(device).manual_seed(0)
    a, b = (
        torch.randn((side, side), generator=generator, device=device, dtype=dtype) for _ in range(2)
    )
    times = []
    for _ in range(4):
        start = time.perf_counter()
        (a @ b)[0, 0].item()  # waits for the device
        times.append(time.perf_counter() - start)
    if device.type == "cuda":
        del a, b
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)  # these are no run's
    return float(side**3 / median(times[1:]))
