"""Runs for tests that need no composition: the plain tree of conf/, small."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from ablate.run import choices, plugin
from ablate.run.build import build_run
from ablate.run.run import Run
from ablate.training.model import Host, build

PLACEMENTS = get_args(choices.Placement)
READINGS = ("residual", "branch")
MODES = list(itertools.product(PLACEMENTS, PLACEMENTS, READINGS))  # attn, mlp, post

# Every norm, every stem and every placement, each beside the others' defaults and, norm by norm and
# stem by stem, beside one placement that has all norms: two at a time says what there is to say.
EVERYWHERE = {"block.attn": "pre+post", "block.mlp": "pre+post", "block.post": "branch"}
VARIANTS: list[dict[str, Any]] = [
    *({"block.attn": a, "block.mlp": m, "block.post": p} for a, m, p in MODES),
    *({"block": block} for block in choices.BLOCKS),
    *({"norm": norm, **places} for norm in choices.NORMS for places in ({}, EVERYWHERE)),
    *({"stem": stem, **places} for stem in choices.STEMS for places in ({}, EVERYWHERE)),
]
# What norms of tokens need that mix them on a grid.
LATE = {"model.cls": "late", "model.cls_at": 1}

# A text tower, of `task=contrastive`.
TEXT: dict[str, Any] = {
    **{"arch": "mu", "width": None, "depth": 2, "heads": None, "length": 6, "vocab": 32},
    **{"tokens": "words", "prompts": ["{}"]},
}

_TREE: dict[str, Any] = {
    "data": {
        **{"name": "digits", "source": "sklearn", "path": None, "hub": None, "revision": None},
        **{"image": None, "label": None, "size": 8, "channels": 3, "classes": 10},
        **{"train": "train", "validation": 300, "test": 300, "fingerprint": "0"},
    },
    "model": {
        **{"arch": "mu/4", "patch": None, "width": None, "depth": None, "heads": None},
        **{"head_dim": None, "mlp_ratio": None, "pool": None, "rep": None, "posemb": None},
        **{"final_norm": "keep", "dropout": 0.0, "drop_path": 0.0, "head_bias": 0.0},
    },
    "optim": {
        **{"lr": 1e-3, "wd": 0.05, "b1": 0.9, "b2": 0.99, "eps": 1e-8, "clip": 1.0},
        **{"warmup_epochs": 4, "schedule": "cosine"},
    },
    "train": {
        **{"epochs": 1, "steps": None, "batch": 8, "micro_batch": None, "precision": "fp32"},
        **{"deterministic": False, "label_smoothing": 0.0},
    },
    "augment": {"flip": False, "crop_pad": 0},
    "eval": {"every": 1, "batch": 500},
    **{"norm": "layernorm", "stem": "none", "block": "vit", "seed": 0},
}


def run(changes: Mapping[str, Any] | None = None) -> Run:
    """A run of ViT-mu/4 on 8x8 colour images, changed: `run({"block.attn": "post"})`."""
    tree = copy.deepcopy(_TREE)
    changes = changes or {}
    for kind, table in choices.CHOICES.items():
        name = changes.get(kind, tree[kind])
        tree[kind] = {"name": name, **{k: p.default for k, p in table[name].params.items()}}
    for key in [key for key in changes if key not in choices.CHOICES]:
        *sections, leaf = key.split(".")
        section = tree
        for part in sections:
            section = section[part]
        section[leaf] = changes[key]
    return build_run(tree)


def run_with_parts(**changes: Any) -> Run:
    """Return a small run with parts of the working folder's code, as composing makes it:
    `run_with_parts(train__loss="own:loss")`."""
    values = {key.replace("__", "."): value for key, value in changes.items()}
    tree: dict[str, dict[str, Any]] = {"optim": {"lr": 1e-3, "wd": 0.05}}
    for key, value in values.items():
        section, _, field = key.partition(".")
        tree.setdefault(section, {})[field] = value
    for section, fields in plugin.complete(tree, Path.cwd()).items():
        values |= {f"{section}.{field}": value for field, value in fields.items()}
    return run(values)


def names(variant: Mapping[str, Any]) -> str:
    """A variant as a test's id."""
    return "-".join(f"{key.rpartition('.')[2]}={value}" for key, value in variant.items())


def built(run: Run) -> Host:
    """The run's model, fitted on a few random images where it needs that."""
    model = build(run)
    model.fit([images(64, run, seed=1)])
    return model


def scramble(module: nn.Module, seed: int = 0) -> None:
    """Random values for every parameter, so that none is at a value that hides a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            values = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(values / parameter.shape[-1] ** 0.5)


def images(batch: int, run: Run, seed: int = 0) -> Tensor:
    """(B, H, W, C) in [-1, 1]."""
    shape = (batch, run.data.size, run.data.size, run.data.channels)
    return 2 * torch.rand(shape, generator=torch.Generator().manual_seed(seed)) - 1


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-10) -> None:
    """Equal but for rounding in double precision."""
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
