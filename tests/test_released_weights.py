"""Weights as timm releases them, without a head: the same features as timm's own classes, at random
weights and a small size."""

from __future__ import annotations

import pytest
import tiny
import torch
from safetensors.torch import save_file

from ablate.shared.errors import UserError
from ablate.training.model import build
from ablate.training.model.export import from_timm

SIZE = {"model.width": 48, "model.depth": 3, "model.heads": 3}
DINOV2 = {"model.arch": "deit_s/14", "data.size": 28, "model.layerscale": 1e-5}
REGISTERS = {**DINOV2, "model.registers": 4, "model.cls_posemb": False}
SIGLIP = {"model.arch": "B/16", "data.size": 32, "model.gelu": "erf"}
RELEASED = {
    "vit_small_patch14_dinov2": DINOV2,
    "vit_small_patch14_reg4_dinov2": REGISTERS,
    "vit_base_patch16_siglip_224": {**SIGLIP, "model.pool": "map"},
    "vit_base_patch16_siglip_gap_224": {**SIGLIP, "model.pool": "gap"},
}


def released(oracle, name: str, size: int):
    """timm's model of this name, at our size and with random weights."""
    sizes = {"embed_dim": 48, "depth": 3, "num_heads": 3, "img_size": size}
    model = oracle("timm").create_model(name, pretrained=False, **sizes).eval()
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
    ("name", "changes", "message"),
    [
        ("vit_small_patch14_reg4_dinov2", {"model.registers": 0}, "^from: has reg_token of timm's"),
        ("vit_small_patch14_reg4_dinov2", {"model.layerscale": None}, "^from: has blocks.0.ls1.ga"),
        (
            "vit_small_patch14_reg4_dinov2",
            {"model.depth": 4},
            "^from: has no blocks.3.*.depth",
        ),
        ("vit_base_patch16_siglip_224", {"model.pool": "gap"}, "^from: has attn_pool.kv.bias of"),
    ],
)
def test_weights_of_another_model_are_refused(name, changes, message, oracle):
    run = tiny.run({**SIZE, **RELEASED[name], **changes})
    with pytest.raises(UserError, match=message):
        from_timm(run, released(oracle, name, run.data.size).state_dict())


@pytest.mark.whole
def test_few_shots_of_released_weights_are_measured(shell, oracle):
    theirs = released(oracle, "vit_small_patch14_reg4_dinov2", 28)
    save_file(theirs.state_dict(), shell.folder / "dinov2.safetensors")
    keys = {**SIZE, **REGISTERS, "from.names": "timm", "from.weights": "dinov2.safetensors"}
    keys |= {"recipe": "quick", "data": "digits", "data.channels": 3, "task": "fewshot"}
    words = [f"{key}={'false' if value is False else value}" for key, value in keys.items()]
    done = shell("sweep", *words, "model.gelu=erf,tanh", "seeds=1")
    assert "25-shot" in done.out
