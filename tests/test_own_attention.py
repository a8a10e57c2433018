"""Attention and positions of the user's own, and a model without positions."""

from __future__ import annotations

import pytest
import tiny
import torch
from pages import blocks

from ablate.planning import compose
from ablate.shared.errors import UserError
from ablate.training.answers import amiss
from ablate.training.model import build
from ablate.training.model.count import describe
from ablate.training.model.export import timm_arguments
from ablate.training.starting_weights import begin, check_start

SOURCE = """
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self, shape):
        super().__init__()

    def forward(self, q, k, v):
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
        return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)

class Sees(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape

    def forward(self, q, k, v):
        heads, tokens, width = q.shape[1:]
        h, w = self.shape.grid
        assert (heads, width) == (self.shape.heads, self.shape.width)
        assert tokens == self.shape.cls + h * w
        return v

class Short(nn.Module):
    def __init__(self, shape):
        super().__init__()

    def forward(self, q, k, v):
        return v[:, :, 1:]

class Added(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.table = nn.Parameter(torch.ones(shape.grid[0] * shape.grid[1], shape.width))

    def forward(self, x):
        return x + self.table

class Square(nn.Module):
    def __init__(self, shape):
        super().__init__()

    def forward(self, x):
        return torch.cat([x, x], 1)

class Callable:
    def __init__(self, shape):
        pass
"""


@pytest.fixture(autouse=True)
def folder(users):
    pages = ("myattention.py", "mypositions.py")
    return users({"own_core.py": SOURCE, **{name: blocks("file")[name] for name in pages}})


def scrambled(**changes):
    model = build(tiny.run_with_parts(**changes)).double().eval()
    tiny.scramble(model)
    return model


@pytest.mark.parametrize("pool", ["tok", "gap", "map"])
def test_plain_attention_is_the_built_in_one(pool):
    settings = {"model__pool": pool, "model__registers": 2, "model__qk_norm": True}
    ours = scrambled(**settings)
    theirs = scrambled(**settings, model__attention="own_core:Plain")
    images = tiny.images(3, tiny.run_with_parts()).double()
    tiny.close(ours(images), theirs(images))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    counts = [
        describe(tiny.run_with_parts(**settings, **more))
        for more in ({}, {"model__attention": "own_core:Plain"})
    ]
    for key in ("parameters", "multiply_adds"):
        assert counts[0][key] == counts[1][key]


@pytest.mark.parametrize("pool", ["tok", "gap"])
def test_a_relative_bias_is_one_number_for_each_head_and_offset(pool):
    """Against a loop over all pairs of patches; the class token has no bias."""
    changes = {"data__size": 12, "model__heads": 2, "model__pool": pool}
    model = scrambled(**changes, model__attention="myattention:RelativeBias")
    layer = model.blocks[0].attn.f
    before = int(pool == "tok")
    bias = torch.zeros(2, before + 9, before + 9, dtype=torch.float64)
    for query in range(9):
        for key in range(9):
            down, right = query // 3 - key // 3, query % 3 - key % 3
            offset = (down + 2) * 5 + right + 2
            bias[:, before + query, before + key] = layer.core.table.detach()[:, offset]
    x = torch.randn(2, before + 9, 32, dtype=torch.float64)
    q, k, v = layer.parts(x)
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / 4 + bias
    contexts = torch.einsum("bhqk,bhkd->bqhd", scores.softmax(-1), v).flatten(2)
    tiny.close(layer(x), layer.out(contexts))


@pytest.mark.parametrize(
    "changes",
    [
        {"model__pool": "tok", "model__registers": 3},
        {"model__cls": "late", "model__cls_at": 1, "model__depth": 2},
    ],
)
def test_attention_is_built_for_the_tokens_that_it_gets(changes):
    build(tiny.run_with_parts(model__attention="own_core:Sees", **changes))(
        tiny.images(2, tiny.run_with_parts())
    )


def test_without_positions_patches_may_change_places():
    images = tiny.images(2, tiny.run_with_parts())  # of four patches
    turned = images.unflatten(1, (2, 4)).flip(1).flatten(1, 2)  # the upper two and the lower two
    for posemb, same in (("none", True), ("learn", False), ("sincos2d", False), ("rope2d", False)):
        model = scrambled(model__posemb=posemb, model__pool="gap", model__depth=2)
        a, b = model(images.double()), model(turned.double())
        assert torch.allclose(a, b, atol=1e-10) == same
    assert "posemb" not in scrambled(model__posemb="none").state_dict()


def test_added_positions_are_learned_ones():
    ours, own = (
        scrambled(),
        build(tiny.run_with_parts(model__posemb="own_core:Added")).double().eval(),
    )
    weights = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    weights["posemb.table"] = weights.pop("posemb")[0]
    own.load_state_dict(weights)
    images = tiny.images(3, tiny.run_with_parts()).double()
    tiny.close(ours(images), own(images))


def parent_of(own: str, size: int = 16):
    parent = tiny.run_with_parts(model__posemb=own, data__size=size)
    model = build(parent)
    tiny.scramble(model)
    return model.state_dict()


def test_positions_of_another_grid_are_resized_by_their_method():
    child = build(tiny.run_with_parts(model__posemb="mypositions:Axial", data__size=28))
    weights = parent_of("mypositions:Axial")  # a grid of 4 x 4 becomes one of 7 x 7
    begin(child, weights)
    rows = weights["posemb.rows"]
    assert torch.allclose(child.posemb.rows[::2], rows, atol=1e-6)
    assert torch.allclose(child.posemb.rows[1::2], (rows[1:] + rows[:-1]) / 2, atol=1e-6)


def test_positions_of_another_grid_without_a_method_are_refused():
    child = build(tiny.run_with_parts(model__posemb="own_core:Added", data__size=28))
    with pytest.raises(UserError) as error:
        begin(child, parent_of("own_core:Added"))
    line = str(error.value)
    assert "\n" not in line
    for said in ("posemb.table", "[16, 32]", "[49, 32]", "Added", "resize"):
        assert said in line
    begin(
        build(tiny.run_with_parts(model__posemb="own_core:Added", data__size=16)),
        parent_of("own_core:Added"),
    )


def test_positions_of_another_grid_are_refused_when_they_are_planned():
    from dataclasses import replace

    for own, refused in (("own_core:Added", True), ("mypositions:Axial", False)):
        child = tiny.run_with_parts(model__posemb=own, data__size=28)
        child = replace(child, parent=tiny.run_with_parts(model__posemb=own, data__size=16))
        if refused:
            with pytest.raises(UserError) as error:
                check_start(child)
            assert "posemb.table" in str(error.value)
        else:
            check_start(child)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model__attention": "own_core:Short"}, ["model.attention", "Short", "shape of q"]),
        ({"model__posemb": "own_core:Square"}, ["model.posemb", "Square", "shape of the patches"]),
        ({"model__posemb": "own_core:Callable"}, ["model.posemb", "Callable", "torch.nn.Module"]),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(changes, said):
    with pytest.raises(UserError) as error:
        describe(tiny.run_with_parts(**changes))
    assert "\n" not in str(error.value)
    assert all(part in str(error.value) for part in said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "model.attention=own_core:Plain probe=[attention]",
            ["attention", "own_core:Plain", "leave"],
        ),
        ("model.attention=sofmax", ["model.attention", "softmax", "module:name"]),
        ("model.posemb=non", ["model.posemb", "'none'"]),
        (
            "model.attention_settings.a=1",
            ["model.attention_settings", "model.attention=module:name"],
        ),
        ("model.arch=mlp/2x8 model.attention=own_core:Plain", ["model.attention", "leave it out"]),
        ("model.arch=mlp/2x8 model.posemb=none", ["model.posemb", "leave it out"]),
    ],
)
def test_what_can_not_be_is_refused_in_a_line(words, said, tmp_path):
    with pytest.raises(UserError) as error:
        compose.resolve_run(words.split(), tmp_path)
    assert "\n" not in str(error.value)
    assert all(part in str(error.value) for part in said), str(error.value)


def test_timm_has_no_attention_of_ones_own():
    with pytest.raises(UserError) as error:
        timm_arguments(tiny.run_with_parts(model__attention="own_core:Plain"))
    assert str(error.value).startswith("model.attention:")
    assert amiss(tiny.run_with_parts(model__attention="myattention:RelativeBias")) == []


def test_initial_values_depend_on_seed_and_place_alone():
    def tables(**changes):
        model = build(
            tiny.run_with_parts(
                model__attention="myattention:RelativeBias", model__depth=2, **changes
            )
        )
        return [block.attn.f.core.table.detach() for block in model.blocks]

    plain, other = tables(), tables(norm="rmsnorm")
    assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))
    assert not torch.equal(plain[0], plain[1])
    assert not torch.equal(plain[0], tables(seed=1)[0])
