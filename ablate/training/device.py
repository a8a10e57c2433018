"""The device of a name, with its index.

Used by training/worker.py, training/training.py, training/answers.py and training/resume_check.py.
"""

from __future__ import annotations

import torch


def device_of(name: str | torch.device) -> torch.device:
    """Return "cpu", or the GPU of a name with its index: torch distinguishes "cuda" from the
    "cuda:0" of its tensors, and some of its functions refuse one without an index."""
    device = torch.device(name)
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
