"""Weights of the plain ViT and of DeiT under the names of timm's VisionTransformer, and back; those
of DINOv3, which timm has as an Eva, are read through dinov3.py.

timm reads images (B, C, H, W); ours are (B, H, W, C) and its patches' values lie in that order.

Used by training/answers.py for `ablate export --weights RUN --names timm`, and by
training/starting_weights.py for runs with `from.names=timm`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from ablate.run import (
    TASKS,
    Run,
    ShippedRun,
    Whole,
    shipped,
)
from ablate.shared import UserError
from ablate.training.model.dinov3 import as_vision_transformer
from ablate.training.model.sublayers import ACTS, Gated, activation
from ablate.training.model.vit import TIMMS, resize

# Ours -> timm's, of each block.
BLOCK = {
    "attn.pre": "norm1",
    "attn.f.qkv": "attn.qkv",
    "attn.f.out": "attn.proj",
    "mlp.pre": "norm2",
    "mlp.f.fc1": "mlp.fc1",
    "mlp.f.fc2": "mlp.fc2",
}

QK_NORM = {"attn.f.q_norm": "attn.q_norm", "attn.f.k_norm": "attn.k_norm"}
DINOV3 = "rope2d_dinov3"  # the positions of DINOv3, by which its weights are known
MAP = {"pool.q": "q", "pool.kv": "kv", "pool.proj": "proj", "pool.norm": "norm"}
MAP |= {"pool.mlp.fc1": "mlp.fc1", "pool.mlp.fc2": "mlp.fc2"}


def timm_arguments(run: Run) -> dict[str, Any]:
    """Return the arguments with which timm's VisionTransformer(**...) is the run's model, as plain
    data.

    Plain data can't say its norm_layer, which is torch's LayerNorm with eps = `model.norm_eps`, nor
    a class of MLPs: `mlp_layer` is the name of a class in timm.layers. Raises UserError for a model
    that timm does not have.
    """
    lacks = TASKS[run.task].unlike_timm
    if lacks:
        raise UserError(f"task: timm's VisionTransformer has no {lacks}, task={run.task} has")
    run = _check(run)
    model = run.model
    has_cls = model.pool == "tok"
    act = activation(model.act)
    gelu = {"tanh": "gelu_tanh", "erf": "gelu"}[model.gelu]
    arguments = {
        "img_size": run.data.size,
        "patch_size": model.patch,
        "in_chans": run.data.channels,
        "num_classes": run.data.classes,
        "embed_dim": model.width,
        "depth": model.depth,
        "num_heads": model.heads,
        "mlp_ratio": model.mlp_ratio,
        "qkv_bias": model.qkv_bias,
        "act_layer": {"gelu": gelu, "geglu": gelu, "swiglu": "silu"}.get(model.act, model.act),
        "class_token": has_cls,
        "global_pool": {"tok": "token", "gap": "avg", "map": "map"}[model.pool],
        "no_embed_class": not model.cls_posemb,
        "fc_norm": False,
    }
    if isinstance(act, Gated):
        outputs = act.inputs * act.hidden(int(model.width * model.mlp_ratio))
        # Half a channel more than the first layer has: timm rounds down.
        arguments |= {"mlp_layer": "SwiGLUPacked", "mlp_ratio": (outputs + 0.5) / model.width}
    if model.registers:
        arguments["reg_tokens"] = model.registers
    if model.layerscale is not None:
        arguments["init_values"] = model.layerscale
    if model.qk_norm:
        arguments["qk_norm"] = True
    return arguments


def to_timm(run: Run, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return timm's state dict, made from ours. Raises UserError for a model that timm does not
    have."""
    run = _check(run)
    theirs = {timm_name: state[name] for name, timm_name in _renamed(run).items()}
    kernel = state["stem.dense.weight"]  # (D, K), K = (row, column, channel)
    side, channels = run.model.patch, run.data.channels
    theirs["patch_embed.proj.weight"] = kernel.unflatten(1, (side, side, channels)).permute(
        0, 3, 1, 2
    )
    if run.model.cls_posemb:
        positions = [state["cls.posemb"]]
        if run.model.registers:  # timm's have positions, too, where its class token has one
            positions.append(torch.zeros_like(state["registers.token"]))
        positions.append(state["posemb"])
        theirs["pos_embed"] = torch.cat(positions, 1)
    return {name: tensor.contiguous() for name, tensor in theirs.items()}


def from_timm(run: Run, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our state dict, made from timm's; without a head where theirs has none, as those of
    DINOv2, DINOv3 and SigLIP. Learned positions are those of the run's grid.

    Raises UserError for a model that timm does not have, and for weights of another model.
    """
    of_dinov3 = not isinstance(run.model, Whole) and run.model.posemb == DINOV3
    run = _check(run, DINOV3 if of_dinov3 else "learn")
    if of_dinov3:
        state = as_vision_transformer(state, run.model.head_dim)
    names = {
        name: timm_name
        for name, timm_name in _renamed(run).items()
        if timm_name in state or not timm_name.startswith("head.")
    }
    _check_names(state, {*names.values(), "patch_embed.proj.weight"})
    ours = {name: state[timm_name] for name, timm_name in names.items()}
    kernel = state["patch_embed.proj.weight"]  # (D, C, P, P)
    ours["stem.dense.weight"] = kernel.permute(0, 2, 3, 1).flatten(1)
    if not of_dinov3:
        prefix = 1 + run.model.registers if run.model.cls_posemb else 0
        positions = state["pos_embed"]
        ours["posemb"] = _resized(positions[:, prefix:], run.data.size // run.model.patch)
        if run.model.cls_posemb:
            ours["cls.posemb"] = positions[:, :1]
        if run.model.cls_posemb and run.model.registers:
            ours["registers.token"] = state["reg_token"] + positions[:, 1:prefix]
    return {name: tensor.contiguous() for name, tensor in ours.items()}


def _resized(positions: Tensor, side: int) -> Tensor:
    """Return the positions of a square grid, (1, h*h, D), on one of `side` rows, (1, side*side, D),
    as timm loads them.

    DINOv2's own code (dinov2/models/vision_transformer.py `interpolate_pos_encoding`) does not
    antialias, except for its models with registers. Raises UserError where the file's positions
    fill no square.
    """
    number = positions.shape[1]
    old_side = isqrt(number)
    if not number or old_side**2 != number:
        raise UserError(
            f"from: pos_embed of timm's has positions of {number} patches, which fill no square; "
            f"see model.cls_posemb and model.registers"
        )
    if old_side == side:
        return positions
    return resize(positions.float(), side**2, TIMMS).to(positions.dtype)


def _check_names(state: Mapping[str, Tensor], names: Collection[str]) -> None:
    """Raise UserError unless a file of timm's has weights of these names, and besides them at most
    a head's."""
    keys = "model.registers, model.layerscale, model.pool, model.depth, model.qkv_bias"
    hint = f"see {keys} and model.posemb"
    if missing := sorted({*names} - state.keys()):
        raise UserError(f"from: has no {missing[0]} of timm's, which this model has; {hint}")
    for name in sorted(state.keys() - {*names}):
        if not name.startswith("head."):
            raise UserError(f"from: has {name} of timm's, which this model has not; {hint}")


def _renamed(run: ShippedRun) -> dict[str, str]:
    """Return {our name: timm's name} of the parameters that differ in name only."""
    layers = {"head": "head", "norm": "norm"}
    if run.model.pool == "map":
        layers |= {ours: f"attn_pool.{theirs}" for ours, theirs in MAP.items()}
    block = dict(BLOCK)
    if run.model.qk_norm:
        block |= QK_NORM
    for i in range(run.model.depth):
        for ours, theirs in block.items():
            layers[f"blocks.{i}.{ours}"] = f"blocks.{i}.{theirs}"
    names = {}
    for ours, theirs in layers.items():
        names[f"{ours}.weight"] = f"{theirs}.weight"
        if run.model.qkv_bias or not ours.endswith("qkv"):
            names[f"{ours}.bias"] = f"{theirs}.bias"
    names["stem.dense.bias"] = "patch_embed.proj.bias"
    if run.model.posemb == "learn":
        names["posemb"] = "pos_embed"
    if run.model.registers:
        names["registers.token"] = "reg_token"
    if run.model.pool == "tok":
        names["cls.token"] = "cls_token"
    if run.model.pool == "map":
        names["pool.probe"] = "attn_pool.latent"
    if run.model.layerscale is not None:
        for i in range(run.model.depth):
            for ours, theirs in (("attn.ls", "ls1"), ("mlp.ls", "ls2")):
                names[f"blocks.{i}.{ours}.gamma"] = f"blocks.{i}.{theirs}.gamma"
    return names


def _check(run: Run, posemb: str = "learn") -> ShippedRun:
    """Return the run; raise UserError for a model that timm's VisionTransformer cannot be, given
    positions of the kind `posemb`."""
    if isinstance(run.model, Whole):
        raise UserError(f"timm: model={run.model.name} has its own names; give --names ablate")
    run = shipped(run)
    model = run.model
    requirements = {
        "model.kind": (model.kind, "vit"),
        "norm": (run.norm.name, "layernorm"),
        "stem": (run.stem.name, "none"),
        "block": (run.block.name, "vit"),
        "block.attn": (run.block.settings.get("attn"), "pre"),
        "block.mlp": (run.block.settings.get("mlp"), "pre"),
        "norm.affine": (run.norm.settings.get("affine"), True),
        "norm.eps": (run.norm.settings.get("eps"), model.norm_eps),
        "model.rep": (model.rep, False),
        "model.posemb": (model.posemb, posemb),
        "model.attention": (model.attention, "softmax"),
        "model.cls": (model.cls, "include"),
        "model.final_norm": (model.final_norm == "drop", False),
        "model.head_dim": (model.head_dim * model.heads, model.width),
    }
    if posemb == DINOV3:  # its timm's pools mean over the patches of a model with a class token
        requirements |= {"model.pool": (model.pool, "tok"), "model.qk_norm": (model.qk_norm, False)}
    if model.act not in ACTS or model.act == "relu2":
        raise UserError(f"model.act: timm has no {model.act!r}")
    if model.pool == "map":  # timm's attends to registers, too, and has no gate
        requirements["model.registers"] = (model.registers, 0)
        if model.act in ("swiglu", "geglu"):
            raise UserError(
                f"model.act: timm's attention pooling takes no gated activation, got {model.act!r}"
            )
    for key, (value, expected) in requirements.items():
        if value != expected:
            raise UserError(f"{key}: timm's VisionTransformer has {expected!r} only, got {value!r}")
    return run
