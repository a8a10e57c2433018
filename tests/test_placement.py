"""The nine placements in both readings of "post": against REFERENCE B.1 written out, and others."""

import itertools
from functools import partial

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import nn

from ablate.data.draws import Draws
from ablate.training.model.block import PLACES, Block, Layer
from ablate.training.model.drop import StepKey
from ablate.training.model.norm import LayerNorm, Shape

WIDTH, HEADS, HIDDEN, TOKENS = 12, 3, 20, 5
SHAPE = Shape(WIDTH, HEADS, grid=(2, 2), cls=1)


def block(attn, mlp, post, norm=LayerNorm, dropout=0.0, drop_path=0.0, seed=0):
    """A block in float64 with random weights: the same ones for what blocks share."""
    layer = Layer(SHAPE, WIDTH // HEADS, HIDDEN, dropout, drop_path, norm)
    built = Block(layer, attn=attn, mlp=mlp, post=post).double()
    for path, module in built.named_modules():
        if not isinstance(module, LayerNorm) and path.count(".") == 2:
            tiny.scramble(module, seed + sum(map(ord, path)))
    for seed_, norm_ in enumerate(norms(built)):
        nn.init.normal_(norm_.weight, 1, 0.5, generator=torch.Generator().manual_seed(2 * seed_))
        nn.init.normal_(norm_.bias, 0, 0.5, generator=torch.Generator().manual_seed(2 * seed_ + 1))
    return built


def norms(module):
    """In the order in which REFERENCE B.1 numbers them."""
    return [m for m in module.modules() if isinstance(m, LayerNorm)]


def tokens():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, TOKENS, WIDTH, dtype=torch.float64, generator=generator)
    return 2 * x + 1  # neither centred nor scaled


# --- REFERENCE B.1, row by row ------------------------------------------------------------------

RESIDUAL = {
    ("pre", "pre"): lambda x, SA, MLP, N: (x1 := x + SA(N[1](x))) + MLP(N[2](x1)),
    ("pre", "post"): lambda x, SA, MLP, N: N[2]((x1 := x + SA(N[1](x))) + MLP(x1)),
    ("pre", "pre+post"): lambda x, SA, MLP, N: N[3]((x1 := x + SA(N[1](x))) + MLP(N[2](x1))),
    ("post", "pre"): lambda x, SA, MLP, N: (x1 := N[1](x + SA(x))) + MLP(N[2](x1)),
    ("post", "post"): lambda x, SA, MLP, N: N[2]((x1 := N[1](x + SA(x))) + MLP(x1)),
    ("post", "pre+post"): lambda x, SA, MLP, N: N[3]((x1 := N[1](x + SA(x))) + MLP(N[2](x1))),
    ("pre+post", "pre"): lambda x, SA, MLP, N: (x1 := N[2](x + SA(N[1](x)))) + MLP(N[3](x1)),
    ("pre+post", "post"): lambda x, SA, MLP, N: N[3]((x1 := N[2](x + SA(N[1](x)))) + MLP(x1)),
    ("pre+post",) * 2: lambda x, SA, MLP, N: N[4]((y := N[2](x + SA(N[1](x)))) + MLP(N[3](y))),
}
BRANCH = {
    ("pre", "pre"): lambda x, SA, MLP, N: (x1 := x + SA(N[1](x))) + MLP(N[2](x1)),
    ("pre", "post"): lambda x, SA, MLP, N: (x1 := x + SA(N[1](x))) + N[2](MLP(x1)),
    ("pre", "pre+post"): lambda x, SA, MLP, N: (x1 := x + SA(N[1](x))) + N[3](MLP(N[2](x1))),
    ("post", "pre"): lambda x, SA, MLP, N: (x1 := x + N[1](SA(x))) + MLP(N[2](x1)),
    ("post", "post"): lambda x, SA, MLP, N: (x1 := x + N[1](SA(x))) + N[2](MLP(x1)),
    ("post", "pre+post"): lambda x, SA, MLP, N: (x1 := x + N[1](SA(x))) + N[3](MLP(N[2](x1))),
    ("pre+post", "pre"): lambda x, SA, MLP, N: (x1 := x + N[2](SA(N[1](x)))) + MLP(N[3](x1)),
    ("pre+post", "post"): lambda x, SA, MLP, N: (x1 := x + N[2](SA(N[1](x)))) + N[3](MLP(x1)),
    ("pre+post",) * 2: lambda x, SA, MLP, N: (y := x + N[2](SA(N[1](x)))) + N[4](MLP(N[3](y))),
}
EQUATIONS = {"residual": RESIDUAL, "branch": BRANCH}


def primitives(built):
    """SA, MLP and the numbered norms of a block, in torch's own functions."""
    attention, mlp = built.attn.f, built.mlp.f

    def SA(x):
        qkv, out = attention.qkv, attention.out
        shared = (WIDTH, HEADS, qkv.weight, qkv.bias, None, None, False, 0.0, out.weight, out.bias)
        q = x.transpose(0, 1)
        y, _ = F.multi_head_attention_forward(q, q, q, *shared, need_weights=False)
        return y.transpose(0, 1)

    def MLP(x):
        hidden = F.gelu(F.linear(x, mlp.fc1.weight, mlp.fc1.bias), approximate="tanh")
        return F.linear(hidden, mlp.fc2.weight, mlp.fc2.bias)

    def normalise(norm):
        return lambda x: F.layer_norm(x, (WIDTH,), norm.weight, norm.bias, 1e-6)

    return SA, MLP, [None, *map(normalise, norms(built))]


def test_the_table_has_every_placement():
    chosen = set(itertools.product(tiny.PLACEMENTS, tiny.READINGS))
    assert PLACES.keys() == chosen | {("none", post) for post in tiny.READINGS}
    assert all(equations.keys() == {m[:2] for m in tiny.MODES} for equations in EQUATIONS.values())


@pytest.mark.parametrize("mode", tiny.MODES, ids="-".join)
def test_a_placement_is_its_equation(mode):
    attn, mlp, post = mode
    built = block(*mode)
    x, y = tokens().requires_grad_(), tokens().requires_grad_()
    ours, theirs = built(x), EQUATIONS[post][attn, mlp](y, *primitives(built))
    torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-11)
    weights = [x, *built.parameters()]
    weight = torch.randn_like(ours)
    mine = torch.autograd.grad((ours * weight).sum(), weights)
    others = torch.autograd.grad((theirs * weight).sum(), [y, *built.parameters()])
    torch.testing.assert_close(mine, others, atol=1e-10, rtol=1e-10)


# --- other people's blocks ----------------------------------------------------------------------


@pytest.mark.parametrize(("placement", "norm_first"), [("pre", True), ("post", False)])
def test_pre_pre_and_post_post_are_torchs_encoder_layers(placement, norm_first):
    ours = block(placement, placement, "residual")
    options = {"layer_norm_eps": 1e-6, "batch_first": True, "norm_first": norm_first}
    gelu = partial(F.gelu, approximate="tanh")
    theirs = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, gelu, **options).double()
    mine = dict(ours.named_parameters())
    pairs = {"self_attn.in_proj_": "attn.f.qkv.", "self_attn.out_proj.": "attn.f.out."}
    pairs |= {"linear1.": "mlp.f.fc1.", "linear2.": "mlp.f.fc2."}
    pairs |= {"norm1.": f"attn.{placement}.", "norm2.": f"mlp.{placement}."}
    pairs = {a + kind: b + kind for a, b in pairs.items() for kind in ("weight", "bias")}
    theirs.load_state_dict({name: mine[pair].detach() for name, pair in pairs.items()})
    x, y = tokens().requires_grad_(), tokens().requires_grad_()
    out, expected = ours.train()(x), theirs.train()(y)
    torch.testing.assert_close(out, expected, atol=1e-11, rtol=1e-11)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, atol=1e-10, rtol=1e-10)
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(mine[pairs[name]].grad, parameter.grad, atol=1e-10, rtol=1e-10)


def test_post_post_on_the_branch_is_timms_res_post_block(oracle):
    theirs = oracle("timm.models.vision_transformer").ResPostBlock(
        *(WIDTH, HEADS, HIDDEN / WIDTH, True),
        act_layer=partial(nn.GELU, approximate="tanh"),
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    )
    ours = block("post", "post", "branch")
    renames = {"attn.f.out": "attn.proj", "attn.f": "attn", "attn.branch": "norm1"}
    renames |= {"mlp.f": "mlp", "mlp.branch": "norm2"}
    state = {}
    for name, value in ours.state_dict().items():
        old = next(old for old in renames if name.startswith(old))
        state[name.replace(old, renames[old])] = value
    theirs.double().load_state_dict(state)
    x = tokens()
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-11, rtol=1e-11)


# --- properties (REFERENCE H) -------------------------------------------------------------------


def drops(built, batch):
    at = StepKey(Draws(0), batch, torch.float64)
    for path, module in built.named_modules():
        if hasattr(module, "site"):
            module.site = path
            module.bind(at)
    return at


@pytest.mark.parametrize("placement", tiny.PLACEMENTS)
@pytest.mark.parametrize("post", tiny.READINGS)
def test_the_branch_is_normed_dropped_out_then_dropped_whole_then_added(placement, post):
    residual = block(placement, "pre", post, dropout=0.3, drop_path=0.4).train().attn
    x = tokens()
    at = drops(residual, batch=len(x))
    out = residual(x)
    inner = residual.branch(residual.f(residual.pre(x)))
    share = round(0.3 * 65536)
    element = ~at.dropped("dropout", x.shape, share)
    example = at.kept("drop_path").view(-1, 1, 1)
    assert 0 < (example > 0).sum() < len(x)
    expected = residual.post(x + inner * element / (1 - share / 65536) * example)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    survivors = residual.eval()(x)
    torch.testing.assert_close(survivors, residual.post(x + inner), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("mode", tiny.MODES, ids="-".join)
def test_an_example_dropped_whole_passes_by_unless_normed_after_the_addition(mode):
    x = tokens()
    built = block(*mode, drop_path=0.7).train()
    at = drops(built, batch=len(x))
    attn, mlp = (at.kept(f"{f}.drop_path") == 0 for f in ("attn", "mlp"))
    passed = attn & mlp
    assert 0 < passed.sum() < len(x)
    untouched = torch.equal(built(x)[passed], x[passed])
    assert untouched is (mode[2] == "branch" or mode[:2] == ("pre", "pre"))
