"""The norms: against others' implementations and their equations written out, and properties."""

import importlib
import itertools
from math import isqrt, sqrt

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ablate.run import choices
from ablate.shared.errors import UserError
from ablate.training.model import norm as norms
from ablate.training.model.norm import ExcludeCls, Shape

WIDTH, HEADS, SIDE = 12, 3, 3
TOKENS = SIDE**2
SHAPE = Shape(WIDTH, HEADS, grid=(SIDE, SIDE), cls=0)
DTNS = ("dtn", "dtn_var", "dtn_pool")
BATCH = ("batchnorm", "switchnorm", "powernorm")

# Every norm as the table has it by default, and its other forms.
FORMS = {name: (name, {}) for name in choices.NORMS} | {
    "layernorm, no affine": ("layernorm", {"affine": False}),
    "instancenorm, biased": ("instancenorm", {"unbiased": False}),
    "groupnorm, token": ("groupnorm", {"scope": "token"}),
    "groupnorm, 4 groups": ("groupnorm", {"groups": 4}),
    "switchnorm, token": ("switchnorm", {"layer": "token"}),
    "scalenorm, scalar": ("scalenorm", {"gain": "scalar"}),
    "powernorm, trained": ("powernorm", {"warmup": 0, "groups": 2}),
    "dtn_pool, 1": ("dtn_pool", {"pool": 1}),
}
forms = pytest.mark.parametrize("form", FORMS)


def make(name, shape=SHAPE, **settings):
    """The norm of the table, in float64, its parameters random: none hides a mistake."""
    choice = choices.NORMS[name]
    module, _, cls = choice.path.partition(":")
    defaults = {key: p.default for key, p in choice.params.items() if p.host is None}
    norm = getattr(importlib.import_module(module), cls)(shape, **{**defaults, **settings})
    generator = torch.Generator().manual_seed(1)
    for parameter in norm.parameters():
        nn.init.normal_(parameter, 0.3, 0.5, generator=generator)
    return norm.double()


def form_of(form, shape=SHAPE):
    name, settings = FORMS[form]
    return make(name, shape, **settings)


def random_like(x, seed):
    return torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed))


def at_init(name, shape=SHAPE, seed=0, **settings):
    """The norm as training starts: by `initialise` where it has a say, else by its roles."""
    norm = make(name, shape, **settings).float()
    generator = torch.Generator().manual_seed(seed)
    for module in norm.modules():
        for key, parameter in module.named_parameters(recurse=False):
            values = torch.full(parameter.shape, torch.nan)
            own = getattr(module, "initialise", None)
            if own is None or not own(key, values, generator):
                values.fill_({"scale": 1.0, "offset": 0.0}[module.roles[key]])
            parameter.data.copy_(values)
    return norm.double()


def tokens(batch=4, number=TOKENS, width=WIDTH, seed=3):
    """Neither centred nor scaled, and no two channels, tokens or images alike."""
    generator = torch.Generator().manual_seed(seed)
    x, scale, shift = (
        torch.randn(shape, dtype=torch.float64, generator=generator)
        for shape in ((batch, number, width), (width,), (batch, number, 1))
    )
    return x * scale.exp() + shift + 0.5


def assert_same(norm, expected, x=None, atol=1e-10):
    """`norm(x)` and `expected(x, *parameters)`: equal outputs, equal gradients of everything."""
    x = tokens() if x is None else x
    parameters = dict(norm.named_parameters())
    inputs = [x.clone().requires_grad_(), *parameters.values()]
    ours = norm(inputs[0])
    theirs = expected(inputs[0], **{name.replace(".", "_"): p for name, p in parameters.items()})
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=1e-10)
    weight = random_like(ours, 5)
    gradients = [
        torch.autograd.grad((y * weight).sum(), inputs, allow_unused=True, materialize_grads=True)
        for y in (ours, theirs)
    ]
    for name, mine, others in zip(["x", *parameters], *gradients, strict=True):
        said = f"d{name}: {{}}".format
        torch.testing.assert_close(mine, others, atol=atol, rtol=1e-9, msg=said)


# --- others' implementations --------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"eps": 0.1}, {"affine": False}])
def test_layernorm_is_torchs(settings):
    def expected(x, weight=None, bias=None):
        return torch.layer_norm(x, (WIDTH,), weight, bias, settings.get("eps", 1e-6))

    assert_same(make("layernorm", **settings), expected, tokens() * 1e-3)  # small: eps shows


def test_rmsnorm_is_torchs():
    x = tokens() * 1e-3  # small: the place of eps shows
    assert_same(make("rmsnorm"), lambda x, weight: F.rms_norm(x, (WIDTH,), weight, 1e-6), x)


def on_channels(module):
    """A torch module for (B, D, N), with our parameters instead of its own: its affine is off."""
    return lambda x, weight, bias: module(x.transpose(1, 2)).transpose(1, 2) * weight + bias


@pytest.mark.parametrize("settings", [{}, {"eps": 0.1, "momentum": 0.3}])
def test_batchnorm_is_torchs_over_batch_and_tokens(settings):
    torchs = {"eps": 1e-5, "momentum": 0.1, "affine": False, "dtype": torch.float64}
    theirs = nn.BatchNorm1d(WIDTH, **{**torchs, **settings})
    ours = make("batchnorm", **settings)
    for seed in range(3):
        assert_same(ours, on_channels(theirs), tokens(seed=seed))
    torch.testing.assert_close(ours.mean, theirs.running_mean, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(ours.var, theirs.running_var, atol=1e-12, rtol=1e-12)
    ours.eval()
    theirs.eval()
    assert_same(ours, on_channels(theirs), tokens(batch=1))


def test_instancenorm_is_torchs_but_for_the_unbiased_variance():
    theirs = on_channels(nn.InstanceNorm1d(WIDTH, eps=1e-5))
    assert_same(make("instancenorm", unbiased=False), theirs)

    def rescaled(x, weight, bias):
        biased = x.var(1, correction=0, keepdim=True)
        factor = (biased + 1e-5).sqrt() / (biased * TOKENS / (TOKENS - 1) + 1e-5).sqrt()
        return theirs(x, factor * weight, bias)

    assert_same(make("instancenorm"), rescaled)


@pytest.mark.parametrize("groups", [None, 1, 4, WIDTH])
def test_groupnorm_is_torchs(groups):
    theirs = nn.GroupNorm(groups or HEADS, WIDTH, eps=1e-5, affine=False)
    assert_same(make("groupnorm", groups=groups), on_channels(theirs))
    if groups != WIDTH:  # one value a group: its output is 0

        def each_token(x, weight, bias):
            return theirs(x.flatten(0, 1)).view(x.shape) * weight + bias

        assert_same(make("groupnorm", groups=groups, scope="token"), each_token)


def test_scalenorm_is_x_transformers(oracle):
    theirs = oracle("x_transformers.x_transformers").ScaleNorm(WIDTH).double()
    ours = make("scalenorm", gain="scalar")

    def expected(x, weight):  # theirs is (sqrt(D) g) x / ||x||
        parameters = {"g": weight / sqrt(WIDTH)}
        return torch.func.functional_call(theirs, parameters, (x,))

    assert_same(ours, expected)
    torch.testing.assert_close(at_init("scalenorm", gain="scalar")(tokens()), theirs(tokens()))
    torch.testing.assert_close(at_init("scalenorm")(tokens()), theirs(tokens()))


@pytest.mark.parametrize("gain", ["vector", "scalar"])
def test_scalenorm_is_its_equation_above_and_below_eps(gain):
    def expected(x, weight):
        length = x.square().sum(-1, keepdim=True).sqrt()
        return weight * x / torch.where(length > 1e-5, length, 1e-5)

    x = tokens()
    x[0] *= 3e-7
    assert (x[0].norm(dim=-1) < 1e-5).all()
    assert_same(make("scalenorm", gain=gain), expected, x, atol=1e-9)


def test_dyt_is_x_transformers(oracle):
    theirs = oracle("x_transformers.x_transformers").DynamicTanh(WIDTH, init_alpha=0.5).double()
    torch.testing.assert_close(at_init("dyt")(tokens()), theirs(tokens()))

    def expected(x, weight, bias, alpha):
        parameters = {"gamma": weight, "beta": bias, "pre_tanh_scale": alpha}
        assert parameters.keys() == dict(theirs.named_parameters()).keys()
        return torch.func.functional_call(theirs, parameters, (x,))

    assert_same(make("dyt"), expected)


def test_derf_is_x_transformers(oracle):
    theirs = oracle("x_transformers.x_transformers").Derf(WIDTH).double()
    torch.testing.assert_close(at_init("derf")(tokens()), theirs(tokens()))

    def expected(x, weight, bias, alpha, shift):
        parameters = {"gamma": weight, "beta": bias, "alpha": alpha, "s": shift}
        assert parameters.keys() == dict(theirs.named_parameters()).keys()
        return torch.func.functional_call(theirs, parameters, (x,))

    assert_same(make("derf"), expected)
    started = at_init("derf", alpha=0.8, shift=-0.2)
    assert (started.alpha.item(), started.shift.item()) == pytest.approx((0.8, -0.2))


def test_affine_and_identity_measure_nothing():
    assert_same(make("affine"), lambda x, weight, bias: x * weight + bias)
    x = tokens()
    assert make("identity")(x) is x


# --- switchnorm: REFERENCE D.1 as loops ---------------------------------------------------------


def switch_statistics(x):
    """{kind: (mean, var)}, of each image and channel, from single values."""
    channels = [list(channel) for image in x for channel in image.T]
    means = [sum(channel) / len(channel) for channel in channels]
    vars_ = [
        sum((value - mean) ** 2 for value in channel) / (len(channel) - 1)
        for mean, channel in zip(means, channels, strict=True)
    ]
    mean_in, var_in = (torch.stack(s).view(len(x), -1) for s in (means, vars_))
    square = var_in + mean_in**2
    mean_ln, mean_bn = mean_in.mean(1, keepdim=True), mean_in.mean(0, keepdim=True)
    var_ln = square.mean(1, keepdim=True) - mean_ln**2
    var_bn = square.mean(0, keepdim=True) - mean_bn**2
    return (mean_in, var_in), (mean_ln, var_ln), (mean_bn, var_bn)


def switch(x, statistics, weight, bias, mean_logits, var_logits):
    def weighed(logits, parts):
        total = sum(share * s for share, s in zip(logits.softmax(0), parts, strict=True))
        return total[:, None] if total.ndim == 2 else total

    mean, var = map(weighed, (mean_logits, var_logits), zip(*statistics, strict=True))
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def scaled(x, groups, eps=1e-5):
    """Each group of channels divided by its root mean square."""
    parts = [p / (p.square().mean(-1, keepdim=True) + eps).sqrt() for p in x.chunk(groups, -1)]
    return torch.cat(parts, -1)


def test_switchnorm_is_its_equation():
    ours = make("switchnorm")
    mean, var = torch.zeros(2, 1, WIDTH, dtype=torch.float64)
    for seed in range(3):
        x = tokens(seed=seed)
        assert_same(ours, lambda x, **p: switch(x, switch_statistics(x), **p), x)
        _, _, batch = switch_statistics(x)
        mean, var = 0.9 * mean + 0.1 * batch[0], 0.9 * var + 0.1 * batch[1]
        torch.testing.assert_close(ours.mean, mean[0], atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(ours.var, var[0], atol=1e-12, rtol=1e-12)
    ours.eval()
    kept = mean.expand(2, -1), var.expand(2, -1)
    x = tokens(batch=2, seed=9)
    assert_same(ours, lambda x, **p: switch(x, (*switch_statistics(x)[:2], kept), **p), x)
    torch.testing.assert_close(ours.mean, mean[0], atol=1e-12, rtol=1e-12)  # it has not moved


def test_switchnorm_may_take_layer_norms_part_of_each_token():
    def expected(x, **parameters):
        instance, _, batch = (tuple(s[:, None] for s in part) for part in switch_statistics(x))
        token = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
        return switch(x, (instance, token, batch), **parameters)

    assert_same(make("switchnorm", layer="token"), expected)


# --- powernorm: REFERENCE D.2, step by step -----------------------------------------------------


class Power:
    """Forward, buffers and the backward formula, with a state of its own."""

    def __init__(self, width, groups, warmup, eps=1e-5):
        self.groups, self.warmup, self.eps = groups, warmup, eps
        self.phi, self.nu = torch.ones(2, width, dtype=torch.float64) * torch.tensor([[1], [0]])
        self.t = 0

    def train(self, x, gamma, beta, dy):
        """(y, dx, dgamma, dbeta), one step."""
        self.t += 1
        t, divided = self.t, scaled(x, self.groups, self.eps)
        hat = divided.detach()
        psi = hat.square().flatten(0, 1).mean(0)
        z = hat / (psi if t <= self.warmup else self.phi).add(self.eps).sqrt()
        if t < self.warmup:
            self.phi = self.phi * (t - 1) / t + psi / t
        self.phi = 0.9 * self.phi + 0.1 * psi
        g_hat = gamma * dy - 0.1 * self.nu * z
        self.nu = self.nu + (g_hat * z).flatten(0, 1).mean(0)
        (dx,) = torch.autograd.grad(divided, x, g_hat / (psi + self.eps).sqrt())
        return gamma * z + beta, dx, (dy * z).sum((0, 1)), dy.sum((0, 1))


@pytest.mark.parametrize("warmup", [0, 1, 3, 10_000])
@pytest.mark.parametrize("groups", [None, 1, 4])
def test_powernorm_is_its_equations_over_several_steps(warmup, groups):
    ours = make("powernorm", warmup=warmup, groups=groups)
    theirs = Power(WIDTH, groups or HEADS, warmup)
    gamma, beta = ours.weight.detach(), ours.bias.detach()
    for seed in range(6):
        x = tokens(seed=seed).requires_grad_()
        dy = random_like(x, seed)
        expected = theirs.train(x, gamma, beta, dy)
        y = ours(x)
        gradients = torch.autograd.grad(y, [x, ours.weight, ours.bias], dy)
        torch.testing.assert_close((y, *gradients), expected, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(ours.phi, theirs.phi, atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(ours.nu, theirs.nu, atol=1e-12, rtol=1e-12)
    x = tokens(batch=2, seed=9)
    expected = scaled(x, theirs.groups) / (theirs.phi + 1e-5).sqrt() * gamma + beta
    torch.testing.assert_close(ours.eval()(x), expected, atol=1e-11, rtol=1e-11)
    assert (ours.steps, ours.phi.tolist()) == (6, pytest.approx(theirs.phi.tolist()))
    assert ours.nu.abs().min() > 1e-4  # it did take part


# --- dtn: REFERENCE D.3 as loops over heads and tokens ------------------------------------------


def position_weights(w, c, side):
    """[h][b][a]: softmax over a of w_h . (dx, dy, dx^2 + dy^2) + c_h, (dx, dy) = pos_b - pos_a."""
    places = [(column, row) for row in range(side) for column in range(side)]

    def score(w_h, c_h, dx, dy):
        return w_h[0] * dx + w_h[1] * dy + w_h[2] * (dx**2 + dy**2) + c_h

    def row(w_h, c_h, x_b, y_b):
        terms = torch.stack([score(w_h, c_h, x_b - x_a, y_b - y_a) for x_a, y_a in places]).exp()
        return terms / terms.sum()

    return [[row(w_h, c_h, *b) for b in places] for w_h, c_h in zip(w, c, strict=True)]


def dtn(
    x, weight, bias, var_gate, positions_weight, positions_bias, mean_gate=None, pool=None, eps=1e-5
):
    heads, side = len(var_gate), isqrt(x.shape[1])
    coarse = min(pool or side, side)
    step = side // coarse
    positions = position_weights(positions_weight, positions_bias, coarse)
    images = []
    for image in x:
        whole = scaled(image, heads, eps)
        mean_ln, var_ln = whole.mean(-1), whole.var(-1, correction=1)
        outs = []
        for h, part in enumerate(whole.chunk(heads, -1)):
            grid = part.view(side, side, -1)
            pooled = [
                grid[r * step : (r + 1) * step, c * step : (c + 1) * step].flatten(0, 1).mean(0)
                for r, c in itertools.product(range(coarse), repeat=2)
            ]
            rows = []
            for token, value in enumerate(part):
                share = positions[h][token // side // step * coarse + token % side // step]
                m = sum(p * v for p, v in zip(share, pooled, strict=True))
                s = sum(p * v**2 for p, v in zip(share, pooled, strict=True)) - m**2
                open_ = 1 if mean_gate is None else 1 / (1 + (-mean_gate[h]).exp())
                mean = open_ * mean_ln[token] + (1 - open_) * m
                open_ = 1 / (1 + (-var_gate[h]).exp())
                var = open_ * var_ln[token] + (1 - open_) * s
                rows.append((value - mean) / (var + eps).sqrt())
            outs.append(torch.stack(rows))
        images.append(torch.cat(outs, -1))
    return torch.stack(images) * weight + bias


# The grid is no finer than dtn_pool's own, so that it is dtn.
@pytest.mark.parametrize("name", DTNS)
def test_dtn_is_its_equation(name):
    assert_same(make(name), dtn, tokens(batch=2))
    assert_same(make(name, eps=0.3), lambda x, **p: dtn(x, **p, eps=0.3), tokens(batch=2) * 0.1)


@pytest.mark.parametrize("pool", [1, 2, 4])
def test_dtn_pool_is_its_equation(pool):
    shape = Shape(WIDTH, HEADS, (4, 4), 0)
    ours, x = make("dtn_pool", shape, pool=pool), tokens(2, 16)
    assert_same(ours, lambda x, **p: dtn(x, **p, pool=pool), x)


def shares(norm):
    """(H, N, N), [h, b, a]: what one token after the other gives to all."""
    heads, number = len(norm.var_gate), norm.positions.offsets.shape[0] ** 2
    ones = torch.eye(number, dtype=torch.float64).expand(heads, -1, -1)[:, :, None]
    return norms.dtn.around(ones.contiguous(), *norm.positions.shares()).squeeze(2)


@pytest.mark.parametrize("heads", [1, 4, 9, 16])
def test_local_heads_start_with_a_bump_beside_their_token(heads):
    """P_h(a -> b) ~ exp(-||b - a - c_h||^2), c_h = (h2 - m, h1 - m), h = h1 + k h2, m = (k-1)/2."""
    side, k = 7, isqrt(heads)
    ours = at_init("dtn", Shape(2 * heads, heads, (side, side), 0))
    assert not ours.positions.bias.any()
    middle = side // 2 * side + side // 2
    row, column = torch.meshgrid(*2 * [torch.arange(side).double()], indexing="ij")
    for h2, h1 in itertools.product(range(k), repeat=2):
        cx, cy = h2 - (k - 1) / 2, h1 - (k - 1) / 2
        bump = (-((3 - column - cx) ** 2) - (3 - row - cy) ** 2).exp().flatten()
        share = shares(ours)[h1 + k * h2, middle]
        torch.testing.assert_close(share, bump / bump.sum(), atol=1e-9, rtol=1e-6)
        if k % 2:  # the bump's centre is a token
            assert share.argmax() == middle - cx - side * cy


@pytest.mark.parametrize(("heads", "local"), [(6, 4), (12, 9), (16, 16), (3, 1)])
def test_only_a_square_number_of_heads_starts_local(heads, local):
    shape = Shape(2 * heads, heads, (4, 4), 0)
    weight = at_init("dtn", shape).positions.weight
    assert (weight[:local, 2] == -1).all()
    assert (weight[local:].abs() < 0.1).all()
    assert weight[local:].all()
    unlocal = [at_init("dtn", shape, s, locality_init=False) for s in range(20)]
    nowhere = torch.cat([norm.positions.weight for norm in unlocal])
    assert nowhere.abs().max() < 0.1
    assert nowhere.std().item() == pytest.approx(0.02, rel=0.15)


COUNTS = {  # values that are normalised together, parameters
    "layernorm": (WIDTH, 2 * WIDTH),
    "layernorm, no affine": (WIDTH, 0),
    "rmsnorm": (WIDTH, WIDTH),
    "scalenorm": (WIDTH, WIDTH),
    "scalenorm, scalar": (WIDTH, 1),
    "batchnorm": (None, 2 * WIDTH),
    "instancenorm": (TOKENS, 2 * WIDTH),
    "instancenorm, biased": (TOKENS, 2 * WIDTH),
    "switchnorm": (TOKENS, 2 * WIDTH + 6),
    "switchnorm, token": (TOKENS, 2 * WIDTH + 6),
    "groupnorm": (TOKENS * WIDTH // HEADS, 2 * WIDTH),
    "groupnorm, token": (WIDTH // HEADS, 2 * WIDTH),
    "groupnorm, 4 groups": (TOKENS * WIDTH // 4, 2 * WIDTH),
    "powernorm": (WIDTH // HEADS, 2 * WIDTH),
    "powernorm, trained": (WIDTH // 2, 2 * WIDTH),
    "dtn": (WIDTH // HEADS, 2 * WIDTH + 6 * HEADS),
    "dtn_var": (WIDTH // HEADS, 2 * WIDTH + 5 * HEADS),
    "dtn_pool": (WIDTH // HEADS, 2 * WIDTH + 6 * HEADS),
    "dtn_pool, 1": (WIDTH // HEADS, 2 * WIDTH + 6 * HEADS),
    "dyt": (None, 2 * WIDTH + 1),
    "derf": (None, 2 * WIDTH + 2),
    "affine": (None, 2 * WIDTH),
    "identity": (None, 0),
}


@forms
def test_a_norm_says_its_group_and_has_as_many_parameters_as_published(form):
    norm = form_of(form)
    count = sum(p.numel() for p in norm.parameters())
    assert (getattr(norm, "group", None), count) == COUNTS[form]


def test_dtn_stays_finite_where_rounding_takes_its_variance_below_zero():
    """Equal tokens and closed gates: the variance is q - m^2 = 0, but for rounding."""
    ours = make("dtn", Shape(768, 1, (8, 8), 0)).float()
    nn.init.constant_(ours.var_gate, -100)
    x = torch.zeros(8, 64, 768)
    x[..., 5] = 1
    x.requires_grad_()
    values = norms.shape.rms(x, 1e-5).permute(1, 0, 2)[None]
    mean, square = ours.surroundings(values.contiguous())
    assert (square - mean.square()).min() < -1e-5  # or this is no test
    y = ours(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


# --- properties of all --------------------------------------------------------------------------


def meets(form, axis):
    """Does the output at index 0 of an axis change with the input at the other indices?"""
    x = tokens()
    other = x.clone()
    other.movedim(axis, 0)[1:] *= -2
    y, changed = (form_of(form)(x).movedim(axis, 0)[0] for x in (x, other))
    return not torch.allclose(y, changed, atol=1e-9)


# Without a warm-up powernorm has the batch in its running values only, one step late.
@pytest.mark.parametrize("form", [form for form in FORMS if form != "powernorm, trained"])
def test_what_a_norm_says_of_mixing_is_so(form):
    norm = form_of(form)
    assert norm.mixes_tokens is meets(form, axis=1)
    assert norm.batch_statistics is meets(form, axis=0) is (FORMS[form][0] in BATCH)


@forms
def test_in_evaluation_examples_do_not_meet(form):
    norm, x = form_of(form), tokens()
    norm(tokens(seed=8))
    norm.eval()
    torch.testing.assert_close(norm(x)[1:2], norm(x[1:2]), atol=1e-12, rtol=1e-12)


@forms
def test_norms_do_not_know_the_tokens_order_unless_they_look_at_the_grid(form):
    norm, x = form_of(form), tokens()
    order = torch.tensor([3, 0, 4, 8, 1, 2, 7, 6, 5])
    y = norm(x)
    if form == "powernorm, trained":
        norm = form_of(form)  # its state moved
    same = torch.allclose(norm(x[:, order]), y[:, order], atol=1e-10)
    assert same is (FORMS[form][0] not in DTNS or form == "dtn_pool, 1")


@forms
def test_every_norm_starts_at_scale_one_and_offset_zero(form):
    name, settings = FORMS[form]
    norm = at_init(name, **settings)
    starts = {"weight": sqrt(WIDTH) if name == "scalenorm" else 1, "bias": 0}
    starts |= {"mean_logits": 1, "var_logits": 1, "mean_gate": 0, "var_gate": 0}
    for key, parameter in norm.named_parameters():
        if key in starts:
            assert parameter.tolist() == pytest.approx([starts[key]] * len(parameter)), key


@forms
def test_running_statistics_travel_in_the_state_dict(form):
    norm, copy = form_of(form), form_of(form)
    for seed in range(3):
        norm(tokens(seed=seed).requires_grad_()).square().sum().backward()
    copy.load_state_dict({name: value.clone() for name, value in norm.state_dict().items()})
    for mode in (True, False):
        outcomes = []
        for module in (norm, copy):
            x = tokens(seed=7).requires_grad_()
            y = module.train(mode)(x)
            outcomes.append((y, *torch.autograd.grad(y.square().sum(), x)))
        assert all(map(torch.equal, *outcomes))


@forms
def test_half_precision_outside_changes_no_statistics(form):
    x, norm = tokens().bfloat16(), form_of(form).float()
    torch.testing.assert_close(
        norm(x.float()).double(), form_of(form)(x.double()), atol=1e-4, rtol=1e-4
    )
    with torch.autocast("cpu", torch.bfloat16):
        inside = form_of(form).float()(x.float())
        half = form_of(form).float()(x)
    again = form_of(form).float()(x.float())
    assert torch.equal(inside, again)
    if form.startswith("layernorm"):  # torch's: float32 inside, rounded at the end
        torch.testing.assert_close(half.float(), again, atol=0, rtol=2**-8)
    elif form != "identity":
        assert torch.equal(half, again)


@forms
def test_training_in_half_precision_gives_finite_gradients(form):
    norm = form_of(form).float()
    x = tokens().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = norm(x)
    y.float().square().sum().backward()
    assert x.grad.dtype == torch.bfloat16
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in norm.parameters())


@forms
def test_on_the_meta_device(form):
    name, settings = FORMS[form]
    with torch.device("meta"):
        norm = make(name, **settings)
    x = torch.empty(1, TOKENS, WIDTH, device="meta", dtype=torch.float64)
    assert norm.eval()(x).shape == x.shape


class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += 1
        return function(*args, **(kwargs or {}))


@forms
def test_no_norm_loops_over_images_tokens_or_heads(form):
    def operations(batch, shape):
        x = tokens(batch, shape.tokens, shape.width).requires_grad_()
        norm = form_of(form, shape)
        with Count() as count:
            norm(x).sum().backward()
        return count.operations

    big = Shape(24, 6, (6, 6), 0)
    if form == "dtn_pool":  # pooling or none, alike in both
        big = Shape(24, 6, (5, 5), 0)
    assert operations(8, big) == operations(4, SHAPE)


# --- the class token ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in choices.NORMS if name not in DTNS])
def test_a_class_token_may_be_among_the_tokens(name):
    shape = Shape(WIDTH, HEADS, (SIDE, SIDE), cls=1)
    assert make(name, shape)(tokens(number=TOKENS + 1)).shape == (4, TOKENS + 1, WIDTH)


@forms
def test_an_excluded_class_token_has_a_norm_of_its_own(form):
    patches, token = form_of(form), make("layernorm")
    x = tokens(number=TOKENS + 1)
    y = ExcludeCls(patches, token).eval()(x)
    assert torch.equal(y[:, 1:], patches(x[:, 1:]))
    assert torch.equal(y[:, :1], token(x[:, :1]))


GRID, ONE = (SIDE, SIDE), Shape(WIDTH, HEADS, (1, 1), 0)
DIVIDE = "groups do not divide width 12"
WRONG = [
    *((name, Shape(WIDTH, HEADS, GRID, 1), {},
       f"norm={name}: .*model.cls=late or model.cls=exclude")
      for name in DTNS),
    *((name, Shape(WIDTH, HEADS, (3, 4), 0), {}, f"norm={name}: needs a square grid.*got 3x4")
      for name in DTNS),
    *((name, Shape(WIDTH, 5, GRID, 0), {}, f"model.heads: 5 {DIVIDE}") for name in DTNS),
    *((name, SHAPE, {"groups": n}, f"norm.groups: {n} {DIVIDE}; .*: 1, 2, 3, 4, 6, 12$")
      for name in ("groupnorm", "powernorm") for n in (5, 0, -1, 24)),
    *(("dtn_pool", SHAPE, {"pool": n}, f"norm.pool: {n} does not divide.*: 1, 3$")
      for n in (2, 0, -1)),
    *((name, ONE, {}, f"norm={name}: .* at least 2 tokens, got 1")
      for name in ("instancenorm", "switchnorm")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "settings", "told"), WRONG)
def test_what_a_norm_can_not_be_is_told(name, shape, settings, told):
    with pytest.raises(UserError, match=told):
        make(name, shape, **settings)


def test_one_token_has_a_biased_variance():
    make("instancenorm", ONE, unbiased=False)


# --- what cannot be -----------------------------------------------------------------------------
