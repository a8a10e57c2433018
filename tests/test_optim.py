"""How weights move: optimisers, the rate over a run, lengths in steps, averaged weights."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from ablate.data.batches import Batches
from ablate.shared.choices import OPTIMIZERS
from ablate.shared.errors import UserError
from ablate.shared.sections import Optim
from ablate.training import calibrate
from ablate.training.fused import Fused
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
        (
            {"train.epochs": 9, "optim.cooldown_epochs": 2, "optim.cooldown_steps": 3},
            7,
            (63, 28, 3),
        ),
        ({"train.epochs": 5, "optim.cooldown_epochs": 4}, 7, (35, 28, 7)),  # cut to fit
    ],
)
def test_lengths_in_steps(settings, epoch, expected):
    run = tiny.run(settings)
    assert lengths(run.optim, run.train, epoch) == expected


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
    model = nn.Linear(2, 1, dtype=torch.float64)
    chosen = optim(lr=1e-2, wd=1e-3, b1=0.9, b2=0.99, eps=1e-8, decay=decay)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, -2.0]]))
        model.bias.fill_(1.0)
    optimizer = make_optimizer(model, chosen)
    for t, share in enumerate(S):
        model.weight.grad = torch.tensor(
            [[math.sin(t + 1.0), 2 * math.cos(2.0 * t)]], dtype=torch.float64
        )
        model.bias.grad = torch.tensor([math.sin(3.0 * t + 1)], dtype=torch.float64)
        optimizer.set_rate(share * chosen.lr)
        optimizer.step()
    kernel, bias = OPTAX[decay]
    assert model.weight[0].tolist() == pytest.approx(kernel, rel=1e-12)
    assert model.bias.item() == pytest.approx(bias, rel=1e-12)


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
    gradients = torch.Generator().manual_seed(0)
    for step in range(4):
        optimizer.zero_grad()
        for ours, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
            if ours is not models[0][1].bias:
                ours.grad = torch.randn(ours.shape, generator=gradients).to(ours.dtype)
                other.grad = ours.grad.clone()
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


def gradients(model: nn.Module, step: int) -> None:
    """The same for every model of a shape."""
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


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


def split(model: nn.Module, names: set[str], wd: float) -> list[dict[str, Any]]:
    """The groups of these parameters, by whether they decay."""
    found: list[dict[str, Any]] = [{"params": [], "weight_decay": share} for share in (wd, 0.0)]
    for name, parameter in model.named_parameters():
        if name in names:
            found[name not in decay_names(model)]["params"].append(parameter)
    return [group for group in found if group["params"]]


def test_lion_equals_timms(oracle):
    lion, chosen = oracle("timm.optim.lion").Lion, optim(name="lion", lr=0.1, wd=0.3, b2=0.98)

    def theirs(model):
        every = {name for name, _ in model.named_parameters()}
        return [lion(split(model, every, 0.3), lr=0.1, betas=(chosen.b1, 0.98))]

    against(chosen, theirs)


@pytest.mark.parametrize("adjust_lr", ["original", "match_rms_adamw"])
def test_muon_moves_matrices_in_blocks_as_timms_does_and_adamw_the_rest(adjust_lr, oracle):
    muon = oracle("timm.optim.muon").Muon
    chosen = optim(name="muon", lr=0.1, wd=0.3, momentum=0.8, adjust_lr=adjust_lr)

    def theirs(model):
        every = {name for name, _ in model.named_parameters()}
        matrices = {
            name
            for name in every
            if name.startswith("blocks.") and name.split(".")[-2] in ("qkv", "out", "fc1", "fc2")
            if name.endswith(".weight")
        }
        assert len(matrices) == 8
        settings = {"momentum": 0.8, "nesterov": True, "adjust_lr_fn": adjust_lr}
        settings["ns_coefficients"] = "original"
        betas = {"betas": (chosen.b1, chosen.b2), "eps": chosen.eps}
        return [
            muon(split(model, matrices, 0.3), lr=0.1, **settings),
            torch.optim.AdamW(split(model, every - matrices, 0.3), lr=0.1, **betas),
        ]

    # Torch orthogonalises in bfloat16, whose last bit is the order of a sum.
    against(chosen, theirs, tiny.run({"model.depth": 2}), atol=1e-3)


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
        expected, bias = (
            expected * (1 - rate * 0.05) - max(1e-3, abs(expected)) * relative,
            bias - max(1e-3, abs(bias)) * relative,
        )
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
    ("key", "value", "name", "said"),
    [
        ("momentum", 0.9, "lion", "is for optim.name=muon, got optim.name=lion; leave it out"),
        ("adjust_lr", "original", "adamw", "is for optim.name=muon, got"),
        ("beta2_decay", -0.5, "muon", "is for optim.name=adafactor or adafactor_bv, got"),
        ("clip_threshold", 2.0, "sgd", "is for optim.name=adafactor, got"),
    ],
)
def test_a_key_of_another_optimiser_is_refused(key, value, name, said):
    with pytest.raises(UserError, match=rf"^optim\.{key}: {said}"):
        optim(name=name, **{key: value})


def test_muon_needs_matrices_in_blocks():
    with pytest.raises(UserError, match=r"^optim\.name: muon moves matrices in blocks, and model"):
        tiny.run({"optim.name": "muon", "model.arch": "mlp/2x8", "model.pool": "gap"})
    frozen = tiny.run({"optim.name": "muon", "optim.lr_mult": {"blocks": 0}})
    with pytest.raises(UserError, match=r"^optim\.name: muon: every matrix in blocks is frozen"):
        make_optimizer(build(frozen), frozen.optim)


def test_what_an_optimiser_does_not_read_is_no_part_of_the_id():
    def same(name: str, **other: Any) -> bool:
        settings = [
            {"optim.name": name, **{f"optim.{k}": v for k, v in o.items()}} for o in ({}, other)
        ]
        return len({tiny.run(one).id for one in settings}) == 1

    assert same("lion", eps=0.5)
    assert same("adafactor", eps=0.5, b1=0.5, b2=0.5)
    assert same("adafactor_bv", eps=0.5)
    assert not same("adafactor_bv", b1=0.5)
    assert not same("adafactor_bv", b2=0.5)
    for name, key in (("adamw", "eps"), ("sgd", "eps"), ("sgd", "b2"), ("muon", "eps")):
        assert not same(name, **{key: 0.5})
    assert not same("lion", b2=0.5)
    assert not same("muon", momentum=0.5)
    assert not same("adafactor", beta2_decay=-0.5)


@pytest.mark.parametrize("stem", ["dpn", "conv"])
def test_kernels_decay_and_nothing_else(stem):
    """By their shape: of the parameters with two axes only positions and class token are none."""
    size = {"data.size": 32, "model.arch": "mu/16", "model.depth": 2}
    model = build(tiny.run({**size, "stem": stem, "model.rep": True, "model.pool": "tok"}))
    shapes = {name: p.ndim for name, p in model.named_parameters() if "posemb" not in name}
    cls = {name for name in shapes if "cls" in name}
    assert cls
    assert decay_names(model) == {name for name, axes in shapes.items() if axes >= 2} - cls


def test_sgd_has_no_independent_decay():
    with pytest.raises(UserError, match=r"^optim.decay: independent is for adamw and .*by_lr"):
        optim(name="sgd", decay="independent")


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


def test_a_shown_average_is_in_the_model_until_the_end_whatever_happens():
    model = small()
    average = Average(model, 0.5)
    moved(model, 1)
    average.update()
    own = {name: value.clone() for name, value in model.state_dict().items()}
    weights = {name: value.clone() for name, value in average.weights.items()}
    with contextlib.suppress(ZeroDivisionError), average.shown():
        for name, value in model.state_dict().items():
            assert torch.equal(value, weights.get(name, own[name])), name  # buffers are its own
            assert torch.equal(value, own[name]) == (name not in weights), name
        raise ZeroDivisionError
    for name, value in model.state_dict().items():
        assert torch.equal(value, own[name]), name
    for name, value in average.weights.items():
        assert torch.equal(value, weights[name]), name


def test_without_an_average_the_models_own_weights_are_shown():
    model = small()
    average = Average(model, None)
    moved(model, 1)
    average.update()
    own = {name: value.clone() for name, value in model.state_dict().items()}
    assert average.weights == {}
    with average.shown():
        assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())


# --- What is timed ------------------------------------------------------------------------------


def test_a_timed_step_does_what_a_trained_one_does(monkeypatch):
    done = []

    def spy(owner, name):
        real = getattr(owner, name)

        def noted(*args, **kwargs):
            done.append((name, args[-1]))
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    spy(Batches, "mixed")
    spy(classify, "loss")
    spy(Fused, "step")
    spy(torch.nn.utils, "clip_grad_norm_")
    spy(Average, "update")
    monkeypatch.setattr(calibrate, "LONGEST_S", 0.0)
    settings = {"optim.name": "sgd", "train.loss": "sigmoid", "train.ema": 0.9, "optim.clip": 2.0}
    run = tiny.run(settings | {"augment.mixup": 0.2})
    assert calibrate.seconds_per_step(run, run.train.batch, torch.device("cpu")) > 0
    names = ["mixed", "loss", "clip_grad_norm_", "step", "update"]
    assert [name for name, _ in done] == names  # one step: longer than LONGEST_S
    assert [last for _, last in done[1:3]] == ["sigmoid", 2.0]


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
    changes = {"optim.name": name, "optim.lr": 0.1, "optim.wd": 0.5}
    changes["model.head_bias"] = 0.1
    before, after = stepped({**changes, "optim.lr_mult": {"stem": 0, "blocks": {"0.attn": 0}}})
    moved = {
        key for key, p in after.named_parameters() if not torch.equal(p, before.get_parameter(key))
    }
    paths = ("stem.", "blocks.0.attn.")
    frozen = {key for key, _ in after.named_parameters() if key.startswith(paths)}
    assert frozen
    assert not moved & frozen
    assert {"head.weight", "posemb", "blocks.0.mlp.f.fc1.weight"} <= moved


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


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        ({"haed": 0}, r"optim\.lr_mult\.haed: expected a path of parameters below one of .*head"),
        ({"blocks.9": 0}, r"optim\.lr_mult\.blocks\.9: expected"),
        (dict.fromkeys(["stem", "posemb", "cls", "blocks", "norm", "head"], 0), "freezes every"),
    ],
)
def test_paths_that_make_no_sense_are_named(paths, said):
    with pytest.raises(UserError, match=said):
        make_optimizer(build(tiny.run()), optim(lr_mult=paths))


@pytest.mark.parametrize(("value", "said"), [(-1, "at least 0"), ("x", "expected a number")])
def test_factors_are_numbers(value, said):
    with pytest.raises(UserError, match=rf"optim\.lr_mult\.head: .*{said}"):
        optim(lr_mult={"head": value})
