"""No key that a run doesn't read makes another run: over all choices each key is changed, and where
a whole small training leaves the same bits, the id is the same or the key is refused."""

from __future__ import annotations

import hashlib
import json
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import pytest
import tiny
import torch
from support.masks import masked_settings

from ablate.data.image_changes import ImageView
from ablate.planning.compose import resolve_run
from ablate.run import choices, schema
from ablate.run.idle import idle_keys, switched_off
from ablate.run.run import Run
from ablate.run.sections import Augment, Eval, Model, Optim, Train
from ablate.shared.errors import UserError
from ablate.training.calibrate import random_split
from ablate.training.model import build
from ablate.training.model.host import Host
from ablate.training.model.traits import NormTraits, StemTraits, traits
from ablate.training.training import Training

CPU = torch.device("cpu")
CACHES = ("decoded", "encoded")
SECTIONS = {"model": Model, "optim": Optim, "train": Train, "augment": Augment, "eval": Eval}
# Four steps, the first of them a warm-up.
SMALL: dict[str, Any] = {
    **{"train.batch": 4, "train.epochs": 2, "optim.warmup_epochs": 0.5, "eval.batch": 12},
    **{"model.depth": 2, "optim.lr": 0.01},
}
# Keys that are no part of this test: what others stand for, what is the machine's, and what only
# the loop around a training reads.
APART = {
    *("model.arch", "model.kind", "model.patch"),
    *("train.compile", "train.deterministic", "eval.every", "eval.batch", "eval.augment"),
}
AROUND = ("model", "optim", "train", "augment", "eval", "norm", "stem", "block")

# A run -> the sections whose keys are changed in it.
BASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "plain": ({}, AROUND),
    **{f"optim={n}": ({"optim.name": n}, ("optim",)) for n in choices.OPTIMIZERS},
}
MORE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    **{f"norm={n}": ({"norm": n}, ("norm", "model")) for n in choices.NORMS if "dtn" not in n},
    "norm=dtn": ({"norm": "dtn", **tiny.LATE}, ("norm", "model")),
    "norm=dtn_var": ({"norm": "dtn_var", **tiny.LATE}, ("norm", "model")),
    "norm=dtn_pool": ({"norm": "dtn_pool", "norm.pool": 1, **tiny.LATE}, ("norm", "model")),
    "norm=powernorm": ({"norm": "powernorm", "norm.warmup": 2}, ("norm", "model")),
    **{f"stem={n}": ({"stem": n}, ("stem", "model")) for n in choices.STEMS},
    **{f"block={n}": ({"block": n}, ("block", "model")) for n in choices.BLOCKS},
    "block=mixln": ({"block": "mixln", "model.depth": 4}, ("block", "model")),  # one of four
    **{
        f"schedule={n}": ({"optim.schedule": n}, ("optim",)) for n in ("linear", "constant", "poly")
    },
    "schedule=rsqrt": ({"optim.schedule": "rsqrt", "optim.timescale": 1}, ("optim",)),
    "no warm-up": ({"optim.warmup_epochs": 0}, ("optim",)),
    "steps": ({"train.steps": 5, "optim.warmup_steps": 2}, ("optim", "train")),
    "examples": ({"train.examples": 20, "optim.warmup_examples": 4}, ("optim", "train")),
    "cooldown": ({"optim.cooldown_steps": 1, "train.epochs": 4}, ("optim",)),
    "no decay": ({"optim.wd": 0.0}, ("optim",)),
    "sigmoid": ({"train.loss": "sigmoid"}, ("train",)),
    "smoothed": ({"train.label_smoothing": 0.1}, ("train",)),
    "averaged": ({"train.ema": 0.9}, ("train",)),
    "in parts": ({"train.micro_batch": 2}, ("train",)),
    "randaug": ({"augment.randaug": 1, "augment.flip": True}, ("augment",)),
    "three": ({"augment.three": True}, ("augment",)),
    "cropped": ({"augment.crop_area": 0.3}, ("augment",)),
    "mixed": ({"augment.mixup": 0.5}, ("augment", "train")),
    "rotated": ({"augment.rotate": 30.0, "eval.augment": True}, ("augment",)),
    "gap": ({"model.pool": "gap"}, ("model", "block")),
    "map": ({"model.pool": "map"}, ("model",)),
    "late": (tiny.LATE, ("model",)),
    "past the norm": ({"model.cls": "exclude", "norm": "batchnorm"}, ("model",)),
    "sincos": ({"model.posemb": "sincos2d"}, ("model",)),
    "rotary": ({"model.posemb": "rope2d"}, ("model",)),
    "relu": ({"model.act": "relu"}, ("model",)),
    "gated": ({"model.act": "geglu"}, ("model",)),
    "drop-path": ({"model.drop_path": 0.5}, ("model",)),
    "one block": ({"model.depth": 1}, ("model",)),
    "registers": ({"model.registers": 2}, ("model",)),
    "no final norm": ({"model.final_norm": "drop", "norm": "rmsnorm"}, ("model",)),
    "post": ({"block.attn": "post"}, ("model", "block")),
    "post in the stem": ({"stem": "post_posemb", "model.pool": "gap"}, ("stem",)),
    "mlp": ({"model.arch": "mlp/3x16", "model.depth": None}, ("model", "norm", "train")),
    "contrastive": ({"task": "contrastive", "text": tiny.TEXT}, ("model", "train")),
}


def bits(run: Run) -> str:
    """A hash of what a whole training leaves, and of its predictions."""
    torch.manual_seed(0)  # of the images alone
    split = random_split(run.data, 2 * run.train.batch, CPU)
    training = Training(run, split, CPU)
    if isinstance(training.model, Host):
        training.model.fit([tiny.images(64, run, seed=1)])
    for _ in range(training.lengths.total):
        training.step()
    _, predictions = training.evaluate(split)
    digest = hashlib.sha256(predictions.tobytes())
    tensors, _ = training.state()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def others(hint: Any, value: Any) -> Iterator[Any]:
    """Other values of a key of this type."""
    options = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for option in options:
        if get_origin(option) is Literal:
            yield from (name for name in get_args(option) if name not in (value, "auto"))
        elif option is bool:
            yield not value
        elif option is int:
            yield from (2, 3) if value is None else (value + 1, max(1, 2 * value))
        elif option is float:
            yield from (
                (1e-4, 8e-3, 0.25, 30.0) if not value else (value / 2, 0.8 * value, -value / 2)
            )


def keys_of(run: Run, sections: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    """The type and the value of each key of these sections."""
    found = {}
    for section in sections:
        if section in SECTIONS:
            of = getattr(run, section)
            hints = schema.field_types(SECTIONS[section])
            found |= {f"{section}.{key}": (hints[key], getattr(of, key)) for key in hints}
        else:
            chosen = getattr(run, section)
            params = choices.CHOICES[section][chosen.name].params
            found |= {
                f"{section}.{key}": (param.type, chosen.settings[key])
                for key, param in params.items()
            }
    computed = ("settings", "version", "folder")
    return {k: v for k, v in found.items() if k not in APART and not k.endswith(computed)}


def changed(base: Mapping[str, Any], key: str, value: Any) -> Run | None:
    """The run with another value of a key; None where it is refused."""
    try:
        return tiny.run({**base, key: value})
    except UserError:
        return None


def in_vain(settings: Mapping[str, Any], sections: tuple[str, ...]) -> list[str]:
    """The keys of which no other value moves a bit, though each makes another id."""
    base = {key: value for key, value in {**SMALL, **settings}.items() if value is not None}
    run = tiny.run(base)
    plain, found = bits(run), []
    refused = switched_off(run.spec.tree)
    for key, (hint, value) in keys_of(run, sections).items():
        if key in refused:
            continue
        made = [changed(base, key, other) for other in others(hint, value)]
        runs = [other for other in made if other is not None]
        if runs and all(other.id != run.id for other in runs):
            try:
                same = all(bits(other) == plain for other in runs)
            except UserError:  # a model that can't be built
                continue
            found += [key] * same
    return found


@pytest.mark.whole
@pytest.mark.parametrize("name", BASES)
def test_no_key_that_a_run_does_not_read_makes_another_id(name):
    assert in_vain(*BASES[name]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_no_key_that_a_run_does_not_read_makes_another_id_in_any_choice(name):
    assert in_vain(*MORE[name]) == []


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({}, "block.post", "branch"),
        ({}, "model.cls", "exclude"),
        ({}, "optim.timescale", 3),
        ({}, "eval.augment", True),
        ({}, "train.micro_batch", 8),  # the whole batch
        ({"train.steps": 9}, "train.epochs", 3),
        ({"optim.warmup_steps": 0}, "optim.warmup_lr", 1e-4),
        ({"optim.wd": 0.0}, "optim.decay", "independent"),
        ({"optim.schedule": "constant"}, "optim.min_lr", 1e-4),
        ({"model.depth": 2, "stem": "conv"}, "model.drop_path", 0.5),
        ({"model.pool": "gap", "stem": "post_posemb"}, "stem.cls", "include_cls"),
        ({"norm": "groupnorm"}, "norm.groups", 2),  # as many as there are heads
    ],
)
def test_ids_are_equal_where_a_key_has_no_effect_and_differ_where_it_has(settings, key, value):
    assert tiny.run({**settings, key: value}).id == tiny.run(settings).id
    read = {
        **{"block.attn": "post", "norm": "batchnorm", "optim.schedule": "rsqrt"},
        **{"augment.randaug": 1, "augment.rotate": 5.0, "train.batch": 16, "optim.wd": 0.1},
        **{"optim.warmup_steps": 1, "train.steps": None, "model.depth": 4, "model.pool": "tok"},
        **{"model.heads": 4, "model.width": 32, "stem": settings.get("stem", "none")},
    }
    if "norm" in settings:
        read["norm"] = settings["norm"]
    assert tiny.run({**read, key: value}).id != tiny.run(read).id


@pytest.mark.parametrize(
    ("word", "switch"),
    [
        ("augment.style=timm", "augment.randaug"),
        ("augment.style=timm", "augment.crop_area"),
        ("augment.randaug_magnitude=3", "augment.randaug"),
    ],
)
def test_a_key_that_says_more_of_what_is_off_is_refused_in_one_line(word, switch, tmp_path):
    with pytest.raises(UserError) as caught:
        resolve_run([word], tmp_path)  # the recipe has both switched off
    key, _, value = word.partition("=")
    assert str(caught.value).startswith(f"{key}: {value} has no effect without ")
    assert switch in str(caught.value)
    on = {"augment.randaug": "1", "augment.crop_area": "0.3"}[switch]
    resolve_run([word, f"{switch}={on}"], tmp_path)
    off = {"augment.randaug": "0", "augment.crop_area": "null"}
    resolve_run(
        [word, *(f"{key}={value}" for key, value in off.items())], tmp_path
    )  # as config prints


@pytest.mark.parametrize("key", ["rep", "final_norm", "head_bias", "norm_eps"])
def test_a_decoder_of_masks_has_nothing_of_what_a_classifier_has_behind_the_tokens(key):
    other = {"rep": True, "final_norm": "drop", "head_bias": 3.0, "norm_eps": 0.1}[key]
    plain = {**masked_settings(), "norm": "rmsnorm", "model.depth": 2}
    one, two = tiny.run(plain), tiny.run({**plain, f"model.{key}": other})
    models = [build(run) for run in (one, two)]
    weights = [model.state_dict() for model in models]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert torch.equal(*(model(tiny.images(4, one)) for model in models))
    assert one.id == two.id


def test_a_task_that_trains_nothing_drops_nothing():
    plain = {"task": "fewshot", "weights": {"path": "x", "sha256": "0"}}
    assert tiny.run(plain).id == tiny.run({**plain, "model.dropout": 0.5}).id
    assert tiny.run(plain).id != tiny.run({**plain, "model.rep": True}).id


@pytest.mark.parametrize("task", ["fewshot", "knn"])
def test_a_task_that_trains_nothing_shows_whole_pictures_in_a_style_of_its_id(task):
    plain = {"task": task, "weights": {"path": "x", "sha256": "0"}, "data.source": "datasets"}
    styles = [{**plain, "augment.style": style} for style in ("tf", "timm")]
    squares, pictures = ([tiny.run({**s, "data.cache": c}) for s in styles] for c in CACHES)
    assert squares[0].id == squares[1].id
    assert pictures[0].id != pictures[1].id
    assert ImageView.from_run(pictures[0]) != ImageView.from_run(pictures[1])
    # As it was before styles were in such ids: of the default style they stay.
    assert json.loads(pictures[0].spec.identity)["augment"] == {}


@pytest.mark.parametrize("name", choices.NORMS)
def test_the_choices_say_which_norms_compute_each_token_alone(name):
    """Of which the model's own norms are the oracle."""
    late = tiny.LATE if "dtn" in name else {}
    for scope in ("sequence", "token") if name == "groupnorm" else (None,):
        settings = {} if scope is None else {"norm.scope": scope}
        run = tiny.run({"norm": name, "model.depth": 2, **late, **settings})
        norm = build(run).blocks[0].attn.pre
        alone = not traits(norm, NormTraits).mixes_tokens
        excluded = tiny.run({"norm": name, "model.cls": "exclude", **settings})
        assert ("model.cls" in idle_keys(excluded.spec.tree)) is alone


@pytest.mark.parametrize("final_norm", ["keep", "drop"])
@pytest.mark.parametrize("cls", [{}, {"model.cls": "exclude"}, tiny.LATE], ids=tiny.names)
@pytest.mark.parametrize(
    "choice",
    [
        *({"norm": name} for name in choices.NORMS if "dtn" not in name),
        *({"block": name} for name in choices.BLOCKS),
    ],
    ids=tiny.names,
)
def test_the_eps_of_layernorms_is_in_the_id_where_a_module_has_it(choice, cls, final_norm):
    other, settings = 0.123, {"model.depth": 4, "model.final_norm": final_norm, **choice, **cls}
    for kind, name in choice.items():  # which have the model's eps where they are given none
        if "eps" in choices.CHOICES[kind][name].params:
            settings[f"{kind}.eps"] = 0.01
    run = tiny.run({**settings, "model.norm_eps": other})
    has_it = any(getattr(module, "eps", None) == other for module in build(run).modules())
    assert (run.id != tiny.run({**settings, "model.norm_eps": 0.2}).id) is has_it


@pytest.mark.parametrize("name", choices.STEMS)
def test_the_choices_say_how_many_blocks_a_stem_saves(name):
    model = build(tiny.run({"stem": name, "model.depth": 2}))
    assert traits(model.stem, StemTraits).blocks_saved == choices.STEMS[name].saves_blocks
