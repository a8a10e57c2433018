"""What a training took: time, memory, and how much of the device it used."""

from __future__ import annotations

import resource
import time
from statistics import median

import torch


def cost(seconds: float, images: int, device: torch.device) -> dict[str, float]:
    """`seconds` over all attempts, `images_per_s`, evaluation included, and `peak_bytes`."""
    return {
        "seconds": seconds,
        "images_per_s": images / seconds,
        "peak_bytes": peak_bytes(device),
    }


def peak_bytes(device: torch.device) -> int:
    """The most memory at once, of the device: a GPU's tensors, a CPU process's pages."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def utilisation(
    multiply_adds: int, images_per_s: float, device: torch.device, dtype: torch.dtype
) -> float:
    """The model's multiply-adds a second, three times those of a forward, against those of a
    matrix product on the same device, type and threads (PaLM, arXiv 2204.02311, appendix B)."""
    return 3 * multiply_adds * images_per_s / matmul_rate(device, dtype)


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Multiply-adds a second of a large square product: the median of a few, after one."""
    side = 8192 if device.type == "cuda" else 512
    a, b = (torch.ones((side, side), device=device, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(4):
        start = time.perf_counter()
        (a @ b)[0, 0].item()  # waits for the device
        times.append(time.perf_counter() - start)
    return float(side**3 / median(times[1:]))
