"""Weights as timm releases them, without a head: the same features as timm's own classes, at random
weights and a small size, also on images of another size than the file's."""

from __future__ import annotations

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from ablate.shared.errors import UserError
from ablate.training.model import build
from ablate.training.model.export import from_timm
from ablate.training.starting_weights import begin

SIZE = {"model.width": 48, "model.depth": 3, "model.heads": 3}
DINOV2 = {"model.arch": "deit_s/14", "data.size": 28, "model.layerscale": 1e-5}
REGISTERS = {**DINOV2, "model.registers": 4, "model.cls_posemb": False}
ROTARY = {"model.posemb": "rope2d_dinov3", "model.norm_eps": 1e-5, "norm.eps": 1e-5}
DINOV3 = {
    **{"model.arch": "S/16", "data.size": 48, "model.gelu": "erf", "model.registers": 4},
    **{"model.layerscale": 1e-5, "model.qkv_bias": False, **ROTARY},
}
PLUS = {"model.act": "swiglu", "model.mlp_ratio": 6.0, "model.gelu": "tanh"}
SIGLIP = {"model.arch": "B/16", "data.size": 32, "model.gelu": "erf"}
RELEASED = {
    "vit_small_patch14_dinov2": DINOV2,
    "vit_small_patch14_reg4_dinov2": REGISTERS,
    "vit_small_patch16_dinov3": DINOV3,
    "vit_small_patch16_dinov3_qkvb": {**DINOV3, "model.qkv_bias": True},
    "vit_small_plus_patch16_dinov3": {**DINOV3, **PLUS},
    "vit_small_plus_patch16_dinov3_qkvb": {**DINOV3, **PLUS, "model.qkv_bias": True},
    "vit_base_patch16_siglip_224": {**SIGLIP, "model.pool": "map"},
    "vit_base_patch16_siglip_gap_224": {**SIGLIP, "model.pool": "gap"},
}


def released(oracle, name: str, size: int, file=None):
    """timm's model of this name, at our size, with the weights of the file; without one, random."""
    arguments = {"embed_dim": 48, "depth": 3, "num_heads": 3, "img_size": size}
    if "dinov3" in name:  # whose own features are of the class token
        arguments["global_pool"] = "token"
    if file is not None:
        arguments |= {"pretrained": True, "pretrained_cfg_overlay": {"file": str(file)}}
    model = oracle("timm").create_model(name, **arguments).eval()
    if file is None:
        tiny.scramble(model)
    return model


@pytest.mark.parametrize("name", RELEASED)
def test_features_of_released_weights_are_timms(name, oracle):
    run = tiny.run({**SIZE, **RELEASED[name]})
    theirs = released(oracle, name, run.data.size)
    assert theirs.num_classes == 0
    model = build(run).eval()
    missing, unexpected = model.load_state_dict(from_timm(run, theirs.state_dict()), strict=False)
    assert (missing, unexpected) == (["head.weight", "head.bias"], [])
    images = tiny.images(3, run)
    with torch.no_grad():
        tiny.close(model.features(images), theirs(images.permute(0, 3, 1, 2)), 1e-5)


@pytest.mark.parametrize(
    ("name", "file_size", "size"),
    [
        ("vit_small_patch14_dinov2", 518, 224),  # as released, and as few-shot reads images
        ("vit_small_patch14_dinov2", 28, 42),
        ("vit_small_patch14_reg4_dinov2", 518, 224),
        ("vit_base_patch16_siglip_224", 224, 160),
        ("vit_small_patch16_dinov3", 64, 48),
    ],
)
def test_features_on_images_of_another_size_are_timms(name, file_size, size, oracle, tmp_path):
    file = tmp_path / "released.safetensors"
    save_file(released(oracle, name, file_size).state_dict(), file)
    run = tiny.run({**SIZE, **RELEASED[name], "data.size": size})
    theirs = released(oracle, name, size, file)
    model = build(run).eval()
    begin(model, from_timm(run, load_file(file)))
    images = tiny.images(2, run)
    with torch.no_grad():
        tiny.close(model.features(images), theirs(images.permute(0, 3, 1, 2)), 1e-5)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("vit_small_patch14_reg4_dinov2", {"model.cls_posemb": True}, "^from: pos_embed of timm's"),
        ("vit_small_patch14_dinov2", {"model.cls_posemb": False}, "^from: pos_embed of timm's"),
        ("vit_small_patch14_reg4_dinov2", {"model.registers": 0}, "^from: has reg_token of timm's"),
        ("vit_small_patch14_reg4_dinov2", {"model.layerscale": None}, "^from: has blocks.0.ls1.ga"),
        (
            "vit_small_patch14_reg4_dinov2",
            {"model.depth": 4},
            "^from: has no blocks.3.*.depth",
        ),
        ("vit_small_patch16_dinov3", {"model.qkv_bias": True}, "^from: has no blocks.0.attn.qkv.b"),
        (
            "vit_small_patch16_dinov3_qkvb",
            {"model.qkv_bias": False},
            "^from: has blocks.0.attn.qkv.b",
        ),
        ("vit_small_patch16_dinov3", {"model.posemb": "learn"}, "^from: has no .*model.posemb$"),
        ("vit_small_patch16_dinov3", {"model.pool": "gap"}, "^model.pool: "),
        ("vit_base_patch16_siglip_224", {"model.pool": "gap"}, "^from: has attn_pool.kv.bias of"),
    ],
)
def test_weights_of_another_model_are_refused(name, changes, message, oracle):
    run = tiny.run({**SIZE, **RELEASED[name], **changes})
    with pytest.raises(UserError, match=message):
        from_timm(run, released(oracle, name, run.data.size).state_dict())


@pytest.mark.whole
@pytest.mark.parametrize(
    ("task", "name", "quantity"),
    [
        ("fewshot", "vit_small_patch14_reg4_dinov2", "25-shot"),
        ("knn", "vit_small_patch16_dinov3", "20-NN"),
    ],
)
def test_frozen_features_of_released_weights_are_measured(task, name, quantity, shell, oracle):
    theirs = released(oracle, name, 2 * RELEASED[name]["data.size"])
    save_file(theirs.state_dict(), shell.folder / "released.safetensors")
    keys = {**SIZE, **RELEASED[name], "from.names": "timm", "from.weights": "released.safetensors"}
    keys |= {"recipe": "quick", "data": "digits", "data.channels": 3, "task": task}
    words = [f"{key}={'false' if value is False else value}" for key, value in keys.items()]
    done = shell("sweep", *words, "optim.lr=0.1,0.2", "seeds=1")
    assert quantity in done.out
