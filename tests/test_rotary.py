"""Rotary positions: against timm's, alone and in its attention, and what they leave as it is."""

from __future__ import annotations

import pytest
import tiny
import torch

from ablate.training.model import build
from ablate.training.model.count import describe
from ablate.training.model.rotary import Rotary
from ablate.training.model.sublayers import Attention, AttentionParts

GRID, HEADS, HEAD_DIM = (3, 5), 2, 24
WIDTH = HEADS * HEAD_DIM


def tokens(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_places_as_shares_of_the_image_are_timms_of_dinov3(oracle):
    theirs = oracle("timm.layers.pos_embed_sincos").RotaryEmbeddingDinoV3(
        HEAD_DIM, feat_shape=list(GRID), rotate_half=False
    )
    x = tokens(2, HEADS, 2 + 15, HEAD_DIM)
    rotated = Rotary(GRID, HEAD_DIM, 2, "rope2d_dinov3")(x)
    rotate = oracle("timm.layers.pos_embed_sincos").apply_rot_embed_cat
    tiny.close(rotated[:, :, 2:], rotate(x[:, :, 2:], theirs.get_embed()), 1e-6)


def test_a_compiled_rotation_is_the_same():
    rotary, x = Rotary(GRID, HEAD_DIM, 1), tokens(2, HEADS, 1 + 15, HEAD_DIM)
    compiled = torch.compile(rotary, backend="eager", fullgraph=True)
    tiny.close(compiled(x), rotary(x), 1e-6)


def timms(oracle, grid=GRID, reference=None):
    """timm's table for the grid, (N, 2 d): sines, cosines."""
    rotary = oracle("timm.layers.pos_embed_sincos").RotaryEmbeddingCat(
        HEAD_DIM, in_pixels=False, feat_shape=list(grid), ref_feat_shape=reference
    )
    return rotary.get_embed()


@pytest.mark.parametrize(("side", "same"), [(16, True), (14, False)])
def test_places_are_eva02s_on_its_grid_of_reference_alone(oracle, side, same):
    x = tokens(1, HEADS, side**2, HEAD_DIM)
    rotate = oracle("timm.layers.pos_embed_sincos").apply_rot_embed_cat
    theirs = rotate(x, timms(oracle, (side, side), [16, 16]))
    rotated = Rotary((side, side), HEAD_DIM, 0)(x)
    assert torch.allclose(rotated, theirs, atol=1e-5) == same


@pytest.mark.parametrize("before", [0, 3])
def test_patches_are_rotated_as_timms_and_the_tokens_before_them_are_not(oracle, before):
    x = tokens(2, HEADS, before + 15, HEAD_DIM)
    rotated = Rotary(GRID, HEAD_DIM, before)(x)
    rotate = oracle("timm.layers.pos_embed_sincos").apply_rot_embed_cat
    tiny.close(rotated[:, :, before:], rotate(x[:, :, before:], timms(oracle)), 1e-6)
    assert torch.equal(rotated[:, :, :before], x[:, :, :before])


def test_attention_with_rotary_positions_is_timms_of_eva(oracle):
    ours = Attention(WIDTH, HEADS, HEAD_DIM, parts=AttentionParts(rotary=Rotary(GRID, HEAD_DIM, 3)))
    tiny.scramble(ours)
    theirs = oracle("timm.models.eva").EvaAttention(
        WIDTH, HEADS, num_prefix_tokens=3, scale_norm=False, qkv_bias=True
    )
    with torch.no_grad():
        ours.qkv.bias[WIDTH : 2 * WIDTH] = 0  # theirs has none of keys
        theirs.qkv.weight.copy_(ours.qkv.weight)
        theirs.q_bias.copy_(ours.qkv.bias[:WIDTH])
        theirs.v_bias.copy_(ours.qkv.bias[2 * WIDTH :])
    theirs.proj.load_state_dict(ours.out.state_dict())
    x, y = (tokens(2, 3 + 15, WIDTH).requires_grad_() for _ in range(2))
    mine, others = ours(x), theirs(y, rope=timms(oracle))
    tiny.close(mine, others, 1e-6)
    weight = tokens(2, 3 + 15, WIDTH, seed=1)
    gradients = [
        torch.autograd.grad((contexts * weight).sum(), (inputs, layer.qkv.weight))
        for contexts, inputs, layer in ((mine, x, ours), (others, y, theirs))
    ]
    tiny.close(*gradients, 1e-5)


def test_a_score_depends_on_the_offset_of_two_patches_alone():
    rotary = Rotary((6, 7), HEAD_DIM, 0).double()
    q, k = (tokens(1, 1, 1, HEAD_DIM, seed=seed).double() for seed in (1, 2))
    scores = rotary(q.expand(1, 1, 42, -1)) @ rotary(k.expand(1, 1, 42, -1)).mT
    scores = scores.view(6, 7, 6, 7)
    tiny.close(scores[1:, 2:, 1:, 2:], scores[:-1, :-2, :-1, :-2], 1e-5)  # of float32 tables
    assert (scores[0, 0] - scores[0, 0, 0, 0]).abs().flatten()[1:].min() > 1e-3


def test_rotary_positions_add_nothing_that_is_learned_or_saved():
    plain, rotary = (tiny.run({"model.posemb": name}) for name in ("none", "rope2d"))
    assert build(plain).state_dict().keys() == build(rotary).state_dict().keys()
    for size in ("parameters", "multiply_adds"):
        assert describe(plain)[size] == describe(rotary)[size]


@pytest.mark.parametrize(
    "changes",
    [
        {"model.registers": 2, "model.qk_norm": True},
        {"model.pool": "map"},
        {"model.depth": 3, **tiny.LATE},
        {"block": "subln"},
        {"task": "contrastive", "text": tiny.TEXT},
    ],
    ids=tiny.names,
)
def test_every_block_of_the_images_rotates_by_the_same_table(changes):
    model = build(tiny.run({"model.posemb": "rope2d", "model.depth": 2, **changes}))
    image = getattr(model, "image", model)
    tables = [block.attn.f.rotary for block in image.blocks]
    assert isinstance(tables[0], Rotary)
    assert all(table is tables[0] for table in tables)
    if image is not model:
        assert not any(isinstance(part, Rotary) for part in model.text.modules())
    assert image(tiny.images(2, tiny.run())).isfinite().all()


def test_rotations_are_computed_in_float32_and_attention_in_bfloat16():
    run = tiny.run({"model.posemb": "rope2d"})
    model = build(run)
    tiny.scramble(model)
    layer = model.blocks[0].attn.f
    x = tokens(2, 5, 32)
    q, k, v = layer.parts(x)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = layer.parts(x)
    assert {part.dtype for part in rounded} == {torch.bfloat16}
    for exact, part in zip((q, k, v), rounded, strict=True):
        torch.testing.assert_close(part.float(), exact, atol=0.05, rtol=0.02)
