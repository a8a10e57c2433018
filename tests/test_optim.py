"""How weights move: optimisers, the rate over a run, lengths in steps, averaged weights."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from ablate.run.choices import OPTIMIZERS
from ablate.run.sections import Optim
from ablate.shared.errors import UserError
from ablate.training.answers import warmup_steps
from ablate.training.model import build
from ablate.training.optim import (
    Average,
    Lengths,
    decay_names,
    factors,
    learning_rate,
    lengths,
    make_optimizer,
)
from ablate.training.task import classify


def optim(**changes: Any) -> Optim:
    return tiny.run({f"optim.{key}": value for key, value in changes.items()}).optim


def rates(lengths: Lengths, **changes: Any) -> list[float]:
    chosen = optim(**changes)
    return [learning_rate(chosen, step, lengths) for step in range(lengths.total + 1)]


# --- Lengths ------------------------------------------------------------------------------------

IMAGENET = {"train.batch": 4096, "train.epochs": 300}
COOL = {"optim.cooldown_epochs": 2}


@pytest.mark.parametrize(
    ("settings", "epoch", "expected"),
    [
        ({"train.epochs": 28}, 18, (504, 72, 0)),
        ({"train.epochs": 2.5, "optim.warmup_epochs": 0.3}, 7, (18, 2, 0)),  # 17.5, 2.1
        ({"train.epochs": 0.01}, 7, (1, 1, 0)),  # at least one step, warm-up cut to fit
        ({"train.epochs": 3}, 7, (21, 21, 0)),  # a warm-up of 4 epochs
        ({"train.epochs": 5, "train.steps": 33, "train.examples": 999}, 7, (33, 28, 0)),
        ({"train.epochs": 5, "train.examples": 118}, 7, (15, 15, 0)),  # batches of 8: 14.75
        ({"train.examples": 3}, 7, (1, 1, 0)),
        ({**IMAGENET, "optim.warmup_steps": 10_000}, 309, (92_700, 10_000, 0)),
        ({**IMAGENET, "train.examples": 300 * 1_268_355}, 309, (92_897, 1236, 0)),
        ({"train.epochs": 9, "optim.warmup_examples": 93}, 7, (63, 12, 0)),  # 11.6
        ({"train.epochs": 9, "optim.warmup_examples": 9, "optim.warmup_steps": 5}, 7, (63, 5, 0)),
        ({"train.epochs": 9, "optim.warmup_steps": 0}, 7, (63, 0, 0)),  # nought is a length, too
        ({"train.epochs": 9, "optim.cooldown_epochs": 1.5}, 7, (63, 28, 10)),  # 10.5
        ({"train.epochs": 9, **COOL, "optim.cooldown_steps": 3}, 7, (63, 28, 3)),
        ({"train.epochs": 5, "optim.cooldown_epochs": 4}, 7, (35, 28, 7)),  # cut to fit
    ],
)
def test_lengths_in_steps(settings, epoch, expected):
    run = tiny.run(settings)
    assert lengths(run.optim, run.train, epoch) == expected


@pytest.mark.parametrize(
    ("settings", "images", "steps"),  # batches of 8
    [
        ({"train.epochs": 5}, 56, None),  # a warm-up of 4 epochs
        ({"train.epochs": 4}, 56, 28),
        ({"train.epochs": 3}, 56, 21),
        ({"train.epochs": 3}, None, None),  # of images that are not counted yet
        ({"train.epochs": 3, "optim.warmup_steps": 20}, 56, None),
        ({"train.epochs": 3, "optim.warmup_steps": 99}, 56, 21),
        ({"train.steps": 30, "optim.warmup_examples": 240}, 56, 30),
        ({"train.epochs": 3, "optim.warmup_steps": 0}, 56, None),
    ],
)
def test_a_warm_up_that_lasts_to_the_end_is_found(settings, images, steps):
    examples = None if images is None else {"train": images}
    run = tiny.run(settings)
    assert warmup_steps(run, examples) == steps
    assert warmup_steps(replace(run, task="knn"), examples) is None  # which takes no steps


# --- Schedule -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "warmup"), [(100, 10), (100, 0), (7, 7), (1, 0), (50, 49)])
@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_what_runs_had_before_they_have_to_the_last_bit(schedule, total, warmup):
    expected = []
    for step in range(total):
        rate = min(1.0, step / warmup) if warmup else 1.0
        if schedule == "cosine":
            done = min(max((step - warmup) / max(total - warmup, 1), 0.0), 1.0)
            rate *= 0.5 * (1 + math.cos(math.pi * done))
        expected.append(0.003 * rate)
    assert rates(Lengths(total, warmup, 0), schedule=schedule, lr=0.003)[:-1] == expected


@pytest.mark.parametrize("schedule", ["cosine", "linear", "rsqrt", "constant"])
@pytest.mark.parametrize("cooldown", [0, 20])
def test_a_schedule_begins_at_0_peaks_after_the_warm_up_and_ends_at_0(schedule, cooldown):
    got = rates(Lengths(100, 10, cooldown), schedule=schedule, lr=2.0)
    assert got[0] == 0
    assert got[5] == 1.0
    assert got[10] == max(got) == 2.0
    assert (got[100] == 0) == (schedule in ("cosine", "linear") or cooldown > 0)


@pytest.mark.parametrize(
    ("schedule", "theirs", "own"),
    [
        ("cosine", {"sched": "cosine"}, {}),
        ("linear", {"sched": "poly", "decay_rate": 1.0}, {}),
        ("rsqrt", {"sched": "rsqrt", "stable_timescale": 6}, {"timescale": 6}),
        ("constant", {"sched": "wsd", "decay_fn": "linear"}, {}),
    ],
)
@pytest.mark.parametrize("min_lr", [0.0, 1e-5, 4e-4])
def test_schedules_equal_timms(schedule, theirs, own, min_lr, oracle):
    """With a warm-up from above 0 and a cooldown. timm's wsd and rsqrt call the cooldown decay."""
    factory = oracle("timm.scheduler.scheduler_factory")
    total, warmup, cooldown = 60, 10, 15
    parts = {"decay_epochs": cooldown, "num_epochs": total - warmup}
    if schedule in ("cosine", "linear"):
        parts = {"cooldown_epochs": cooldown, "num_epochs": total - warmup - cooldown}
    scheduler, steps = factory.create_scheduler_v2(
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1e-3),
        **{**parts, **theirs, "warmup_epochs": warmup, "warmup_lr": 1e-6, "min_lr": min_lr},
        warmup_prefix=True,
    )
    assert steps == total
    got = rates(
        Lengths(total, warmup, cooldown),
        **{"schedule": schedule, "lr": 1e-3, "warmup_lr": 1e-6, "min_lr": min_lr, **own},
    )
    expected = [scheduler._get_lr(step)[0] for step in range(total)]
    assert got[:-1] == pytest.approx(expected, rel=1e-12)


# --- Optimisers ---------------------------------------------------------------------------------

# Five steps of optax 0.2.8 in float64 at the rates lr * S, gradients as in `five_steps`:
#   independent: chain(scale_by_adam(b1, b2, eps), scale(lr), add_decayed_weights(wd, {kernel}),
#                      scale_by_schedule(S), scale(-1)), which is big_vision/optax.py
#   by_lr:       adamw(lr * S, b1, b2, eps, weight_decay=wd, mask={kernel})
S = (0.0, 0.5, 1.0, 0.75, 0.25)
OPTAX = {
    "independent": ([2.9771759250080905, -1.9981254479101311], 0.9962086015254406),
    "by_lr": ([2.984575582266371, -2.0030737967188594], 0.9962086015254406),
}


@pytest.mark.parametrize("decay", OPTAX)
def test_adamw_equals_optax(decay):
    model = nn.Linear(2, 1).double()
    chosen = optim(lr=1e-2, wd=1e-3, b1=0.9, b2=0.99, eps=1e-8, decay=decay)
    model.load_state_dict({"weight": torch.tensor([[3.0, -2.0]]), "bias": torch.ones(1)})
    optimizer = make_optimizer(model, chosen)
    for t, share in enumerate(S):
        kernel = [[math.sin(t + 1.0), 2 * math.cos(2.0 * t)]]
        model.weight.grad = torch.tensor(kernel, dtype=torch.float64)
        model.bias.grad = torch.tensor([math.sin(3.0 * t + 1)], dtype=torch.float64)
        optimizer.set_rate(share * chosen.lr)
        optimizer.step()
    kernel, bias = OPTAX[decay]
    assert model.weight[0].tolist() == pytest.approx(kernel, rel=1e-12)
    assert model.bias.item() == pytest.approx(bias, rel=1e-12)


def gradients(model: nn.Module, step: int) -> None:
    """The same for every model of a shape."""
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


@pytest.mark.parametrize("b1", [0.0, 0.9])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_the_optimisers_are_torchs_bit_for_bit(name, b1):
    """Weights and what is kept of each, its names too; one weight has no gradient at all, and the
    others are of two types."""
    chosen = optim(name=name, lr=0.05, wd=0.1, b1=b1, eps=1e-3)
    models = [nn.Sequential(nn.Linear(37, 11), nn.Linear(11, 5).double()) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizer = make_optimizer(models[0], chosen)
    kernels, others = ([getattr(part, key) for part in models[1]] for key in ("weight", "bias"))
    groups = [{"params": kernels, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    if name == "adamw":
        betas = {"betas": (b1, chosen.b2), "eps": chosen.eps}
        theirs = torch.optim.AdamW(groups, lr=0.05, fused=True, **betas)
    else:
        theirs = torch.optim.SGD(groups, lr=0.05, momentum=b1, fused=True)
    for step in range(4):
        optimizer.zero_grad()
        for model in models:
            gradients(model, step)
            model[1].bias.grad = None
        optimizer.set_rate(0.05 / (step + 1))
        for group in theirs.param_groups:
            group["lr"] = 0.05 / (step + 1)
        optimizer.step()
        theirs.step()
    for ours, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(ours, other)
        kept = {key: value for key, value in theirs.state[other].items() if value is not None}
        assert (own := optimizer.state.get(ours, {})).keys() == kept.keys()
        assert all(torch.equal(own[key], value) for key, value in kept.items())
    assert len(optimizer.state) == (3 if name == "adamw" or b1 else 0)
    optimizer.zero_grad()
    assert all(p.grad is None for p in models[0].parameters())


def against(chosen: Optim, theirs: Any, run: Any = None, atol: float = 1e-7) -> None:
    """Four steps of a model by us, and by the optimisers that `theirs` makes of a copy of it."""
    ours, copied = build(run or tiny.run()), build(run or tiny.run())
    optimizer, others = make_optimizer(ours, chosen), theirs(copied)
    for step, share in enumerate((1.0, 0.5, 0.0, 0.25)):
        gradients(ours, step)
        gradients(copied, step)
        optimizer.set_rate(share * chosen.lr)
        optimizer.step()
        for other in others:
            for group in other.param_groups:
                group["lr"] = share * chosen.lr
            other.step()
    expected = dict(copied.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter, expected[name], rtol=1e-6, atol=atol, msg=name)


def split(model: nn.Module, wd: float, matrices: bool | None = None) -> list[dict[str, Any]]:
    """The groups of all parameters, or of those that are (no) matrices in blocks, by whether they
    decay."""
    decay, found = decay_names(model), ([], [])
    kernels = (".qkv.weight", ".out.weight", ".fc1.weight", ".fc2.weight")
    for name, parameter in model.named_parameters():
        if matrices in (None, name.startswith("blocks.") and name.endswith(kernels)):
            found[name not in decay].append(parameter)
    shares = zip(found, (wd, 0.0), strict=True)
    return [{"params": part, "weight_decay": share} for part, share in shares if part]


@pytest.mark.parametrize("eps", [1e-8, 0.1])
def test_lamb_equals_timms(oracle, eps):
    """The head starts at zero: its step has no length to be a share of."""
    chosen = optim(name="lamb", lr=0.1, wd=0.3, b2=0.98, eps=eps)
    settings = {"lr": 0.1, "betas": (chosen.b1, 0.98), "eps": eps, "max_grad_norm": None}
    against(chosen, lambda m: [oracle("timm.optim").Lamb(split(m, 0.3), **settings)])


def test_a_step_of_lamb_is_a_share_of_the_weight():
    model = nn.Linear(3, 2, dtype=torch.float64)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, optim(name="lamb", lr=0.01, wd=0.3, eps=1e-8))
    gradients(model, 1)
    optimizer.set_rate(0.01)
    optimizer.step()
    moved = model.weight - before["weight"]
    assert moved.norm().item() == pytest.approx(0.01 * before["weight"].norm().item(), rel=1e-9)
    sign = model.weight.grad.sign() + 0.3 * before["weight"]  # Adam's first step, and decay
    assert torch.allclose(moved / moved.norm(), -sign / sign.norm(), atol=1e-6)
    assert torch.allclose(model.bias - before["bias"], -0.01 * model.bias.grad.sign(), atol=1e-7)


def test_lion_equals_timms(oracle):
    lion, chosen = oracle("timm.optim.lion").Lion, optim(name="lion", lr=0.1, wd=0.3, b2=0.98)
    against(chosen, lambda m: [lion(split(m, 0.3), lr=0.1, betas=(chosen.b1, 0.98))])


@pytest.mark.parametrize("adjust_lr", ["original", "match_rms_adamw"])
def test_muon_moves_matrices_in_blocks_as_timms_does_and_adamw_the_rest(adjust_lr, oracle):
    muon = oracle("timm.optim.muon").Muon
    chosen = optim(name="muon", lr=0.1, wd=0.3, momentum=0.8, adjust_lr=adjust_lr)

    def theirs(model):
        matrices = split(model, 0.3, matrices=True)
        assert [len(group["params"]) for group in matrices] == [8]
        settings = {"momentum": 0.8, "nesterov": True, "adjust_lr_fn": adjust_lr}
        betas = {"betas": (chosen.b1, chosen.b2), "eps": chosen.eps}
        return [
            muon(matrices, lr=0.1, ns_coefficients="original", **settings),
            torch.optim.AdamW(split(model, 0.3, matrices=False), lr=0.1, **betas),
        ]

    # Torch orthogonalises in bfloat16, whose last bit is the order of a sum.
    against(chosen, theirs, tiny.run({"model.depth": 2}), atol=1e-3)


PARTS = ["stem", "posemb", "cls", "blocks", "norm", "head"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "lion", "momentum": 0.9}, r"momentum: is for optim\.name=muon, got .*; leave it"),
        ({"name": "adamw", "adjust_lr": "original"}, r"adjust_lr: is for optim\.name=muon, got"),
        ({"name": "muon", "beta2_decay": -1}, r"beta2_decay: is .*=adafactor or adafactor_bv, got"),
        (
            {"name": "sgd", "clip_threshold": 2.0},
            r"clip_threshold: is for optim\.name=adafactor, g",
        ),
        ({"name": "sgd", "decay": "independent"}, "decay: .*adamw.*optim.decay=by_lr"),
        ({"name": "lamb", "decay": "independent"}, "decay: .*adamw.*optim.decay=by_lr"),
        ({"name": "lamb", "wd": 0.0}, "wd: lamb .*optim.name=adamw"),
        ({"name": "muon", "lr_mult": {"blocks": 0}}, "name: muon: every matrix in blocks is froz"),
        ({"lr_mult": {"head": -1}}, r"lr_mult\.head: .*at least 0"),
        ({"lr_mult": {"head": "x"}}, r"lr_mult\.head: .*expected a number"),
        ({"lr_mult": {"haed": 0}}, r"lr_mult\.haed: .*, expected a part of the model, .*head"),
        ({"lr_mult": {"blocks.9": 0}}, r"lr_mult\.blocks\.9: .* 0, got '9'$"),
        ({"lr_mult": {"block.0": 0}}, r"lr_mult\.block\.0: .*'block' .*'blocks'"),
        ({"lr_mult": dict.fromkeys(PARTS, 0)}, "lr_mult: .*freezes every"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, said):
    with pytest.raises(UserError, match=rf"^optim\.{said}"):
        make_optimizer(build(tiny.run()), optim(**changes))


def test_muon_needs_matrices_in_blocks():
    with pytest.raises(UserError, match=r"^optim\.name: muon moves matrices in blocks, and model"):
        tiny.run({"optim.name": "muon", "model.arch": "mlp/2x8", "model.pool": "gap"})


def test_adafactor_by_hand():
    """Kernel (2, 4), all gradients g, so g / root mean square is 1: the step is
    rms(kernel) * min(rate, 1 / sqrt(t)). The bias, at 0, moves by the least size, 1e-3."""
    model = nn.Linear(4, 2, dtype=torch.float64)
    nn.init.constant_(model.weight, 2.0)
    nn.init.zeros_(model.bias)
    optimizer = make_optimizer(model, optim(name="adafactor", lr=2.0, wd=0.05))
    expected, bias = 2.0, 0.0
    for step, rate in enumerate((2.0, 0.1, 0.5), start=1):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.set_rate(rate)
        optimizer.step()
        relative = min(rate, step**-0.5)
        expected = expected * (1 - rate * 0.05) - max(1e-3, abs(expected)) * relative
        bias -= max(1e-3, abs(bias)) * relative
        assert torch.allclose(model.weight, torch.full_like(model.weight, expected), rtol=1e-12)
        assert torch.allclose(model.bias, torch.full_like(model.bias, bias), rtol=1e-12)


def test_adafactors_keys_reach_it():
    def moved(**settings):
        model = nn.Linear(4, 2)
        nn.init.ones_(model.weight)
        optimizer = make_optimizer(model, optim(name="adafactor", lr=0.1, wd=0.0, **settings))
        for step in range(2):
            gradients(model, step)
            optimizer.step()
        return model.weight.detach()

    plain = moved()
    assert torch.equal(plain, moved(beta2_decay=-0.8, clip_threshold=1.0))
    assert not torch.equal(plain, moved(beta2_decay=-0.3))
    assert not torch.equal(plain, moved(clip_threshold=1.5))


@pytest.mark.parametrize(
    ("name", "unread", "read"),
    [
        ("lion", ["eps"], ["b2"]),
        ("adafactor", ["eps", "b1", "b2"], ["beta2_decay"]),
        ("adafactor_bv", ["eps"], ["b1", "b2"]),
        ("adamw", [], ["eps"]),
        ("lamb", [], ["b1", "b2", "eps"]),
        ("sgd", ["eps", "b2"], ["b1"]),
        ("muon", [], ["eps", "momentum"]),
    ],
)
def test_what_an_optimiser_does_not_read_is_no_part_of_the_id(name, unread, read):
    plain = {"optim.name": name}
    for key in (*unread, *read):
        value = -0.5 if key == "beta2_decay" else 0.5
        other = tiny.run({**plain, f"optim.{key}": value})
        assert (other.id == tiny.run(plain).id) is (key in unread), key


@pytest.mark.parametrize("stem", ["dpn", "conv"])
def test_kernels_decay_and_nothing_else(stem):
    """By their shape: of the parameters with two axes only positions and class token are none."""
    size = {"data.size": 32, "model.arch": "mu/16", "model.depth": 2}
    model = build(tiny.run({**size, "stem": stem, "model.rep": True, "model.pool": "tok"}))
    shapes = {name: p.ndim for name, p in model.named_parameters() if "posemb" not in name}
    cls = {name for name in shapes if "cls" in name}
    assert cls
    assert decay_names(model) == {name for name, axes in shapes.items() if axes >= 2} - cls


# --- Averaged weights ---------------------------------------------------------------------------


def moved(model: nn.Module, seed: int) -> None:
    """As if a step had been taken: other weights, other statistics."""
    tiny.scramble(model, seed)
    model(torch.randn(9, 3, generator=torch.Generator().manual_seed(seed)))


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_the_average_equals_timms(oracle):
    model = small()
    average = Average(model, 0.9)
    theirs = oracle("timm.utils.model_ema").ModelEmaV3(model, decay=0.9)
    for seed in range(5):
        moved(model, seed)
        average.update()
        theirs.update(model)
    expected = dict(theirs.module.named_parameters())
    assert average.weights.keys() == expected.keys()
    for name, weights in average.weights.items():
        assert torch.equal(weights, expected[name]), name


@pytest.mark.parametrize("decay", [0.5, None])
def test_a_shown_average_is_in_the_model_until_the_end_whatever_happens(decay):
    model = small()
    average = Average(model, decay)
    moved(model, 1)
    average.update()
    own = {name: value.clone() for name, value in model.state_dict().items()}
    weights = {name: value.clone() for name, value in average.weights.items()}
    assert weights.keys() == (dict(model.named_parameters()).keys() if decay else set())
    with contextlib.suppress(ZeroDivisionError), average.applied():
        for name, value in model.state_dict().items():
            assert torch.equal(value, weights.get(name, own[name])), name  # buffers are its own
            assert torch.equal(value, own[name]) == (name not in weights), name
        raise ZeroDivisionError
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, weights[name]) for name, value in average.weights.items())


# --- Rates by path, and what is frozen ----------------------------------------------------------


def stepped(changes: dict[str, Any], steps: int = 3) -> tuple[nn.Module, nn.Module]:
    """(a model as it was, the same after some steps on the same images)."""
    run = tiny.run(changes)
    before, after = build(run), build(run)
    optimizer = make_optimizer(after, run.optim)
    for step in range(steps):
        optimizer.set_rate(run.optim.lr)
        optimizer.zero_grad()
        classify.loss(after(tiny.images(4, run, step)), torch.arange(4), 0.0).backward()
        torch.nn.utils.clip_grad_norm_(after.parameters(), 1.0)
        optimizer.step()
    return before, after


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_frozen_weights_keep_their_bits_and_all_others_move(name):
    changes = {"optim.name": name, "optim.lr": 0.1, "optim.wd": 0.5, "model.head_bias": 0.1}
    before, after = stepped({**changes, "optim.lr_mult": {"stem": 0, "blocks": {"0.attn": 0}}})
    still = {
        key for key, p in after.named_parameters() if torch.equal(p, before.get_parameter(key))
    }
    paths = ("stem.", "blocks.0.attn.")
    frozen = {key for key, _ in after.named_parameters() if key.startswith(paths)}
    assert frozen
    assert frozen <= still
    assert not {"head.weight", "posemb", "blocks.0.mlp.f.fc1.weight"} & still


def test_a_frozen_part_is_outside_of_the_clipped_norm():
    """big_vision clips what moves: a frozen kernel's gradient changes no update."""
    _, alone = stepped({"optim.lr_mult": {"stem": 0}, "optim.name": "sgd"}, steps=1)
    run = tiny.run({"optim.name": "sgd"})
    model = build(run)
    classify.loss(model(tiny.images(4, run)), torch.arange(4), 0.0).backward()
    rest = [p for key, p in model.named_parameters() if not key.startswith("stem.")]
    norm = torch.stack([p.grad.norm() for p in rest]).norm()
    expected = model.head.weight - run.optim.lr * model.head.weight.grad / max(1.0, norm.item())
    assert torch.allclose(alone.head.weight, expected, atol=1e-7)


def test_the_longest_path_counts_and_the_rate_is_multiplied():
    scales = factors(build(tiny.run()), optim(lr_mult={"head": 10.0, "head.bias": 0.5}))
    assert (scales["head.weight"], scales["head.bias"], scales["posemb"]) == (10.0, 0.5, 1.0)
    before, once = stepped({"optim.lr_mult": {"head": 1.0}, "optim.wd": 0.0}, steps=1)
    _, tenfold = stepped({"optim.lr_mult": {"head": 10.0}, "optim.wd": 0.0}, steps=1)
    moves = [model.head.weight - before.head.weight for model in (once, tenfold)]
    assert torch.allclose(moves[1], 10 * moves[0], rtol=1e-4)
    assert torch.equal(once.posemb, tenfold.posemb)


@pytest.mark.parametrize("name", ["adamw", "lion", "adafactor", "adafactor_bv", "muon"])
def test_decay_that_is_independent_of_the_rate_stays_so(name):
    """The head starts at zero and has no gradient here but decay: wd of it, whatever its rate."""
    chosen = {"optim.name": name, "optim.decay": "independent", "optim.wd": 0.1}
    run = tiny.run({**chosen, "optim.lr_mult": {"head": 10.0}})
    model = build(run)
    torch.nn.init.ones_(model.head.weight)
    optimizer = make_optimizer(model, run.optim)
    model.head.weight.grad = torch.zeros_like(model.head.weight)
    optimizer.set_rate(run.optim.lr)
    optimizer.step()
    assert torch.allclose(model.head.weight, torch.full_like(model.head.weight, 0.9))
