"""The tree of a run."""

from __future__ import annotations

from typing import Any

# A run as `run.json` keeps it. What stands here has been trained somewhere: it never changes.
GOLDEN_RUN: dict[str, Any] = {
    "data": {
        **{"name": "digits", "source": "sklearn", "path": None, "hub": None, "revision": None},
        **{"image": None, "label": None, "size": 8, "channels": 1, "classes": 10},
        **{"train": "train", "validation": 300, "test": 300, "fingerprint": "0123456789abcdef"},
    },
    "model": {
        **{"arch": "mu/4", "patch": 4, "width": 48, "depth": 4, "heads": 2, "head_dim": 24},
        **{"mlp_ratio": 4.0, "pool": "tok", "rep": False, "posemb": "learn"},
        **{"final_norm": "keep", "dropout": 0.0, "drop_path": 0.0, "head_bias": 0.0},
    },
    "norm": {"name": "layernorm", "eps": 1e-6, "affine": True},
    "stem": {"name": "none"},
    "block": {"name": "vit", "attn": "pre", "mlp": "pre", "post": "residual"},
    "optim": {
        **{"lr": 0.003, "wd": 0.05, "b1": 0.9, "b2": 0.99, "eps": 1e-8, "clip": 1.0},
        **{"warmup_epochs": 4.0, "schedule": "cosine"},
    },
    "train": {
        **{"epochs": 40.0, "steps": None, "batch": 96, "micro_batch": None, "precision": "fp32"},
        **{"deterministic": False, "label_smoothing": 0.1},
    },
    "augment": {"flip": False, "crop_pad": 0},
    "eval": {"every": 1, "batch": 500},
    "seed": 0,
}
