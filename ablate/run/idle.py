"""Keys that a run does not read, given its other keys: their values do not change its id.

A rule names keys and says, of a run's plain tree, when they have no effect. A key that changes even
the last bit of a weight or of a measurement counts as read.

Used by run/spec.py and analysis/paper.py, for ids. Plans (planning/settings.py) refuse the keys of
`switched_off` and `unread_by`; other idle keys are accepted, and left out of the id. A new
rule changes the ids of the runs that it holds for; tests/test_unread.py trains to find keys that
need one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ablate.run import metrics
from ablate.run.choices import BLOCKS, NORMS, OPTIMIZERS, PER_RECIPE, STEMS

Tree = Mapping[str, Any]

# Keys that set the same length: the first that is given counts.
LENGTH_KEYS = (
    ("train.steps", "train.examples", "train.epochs"),
    ("optim.warmup_steps", "optim.warmup_examples", "optim.warmup_epochs"),
    ("optim.cooldown_steps", "optim.cooldown_epochs"),
)

STEP_SECTIONS = ("model", "norm", "stem", "block", "augment", "probe", "task", "text")
STEP_KEYS = {
    "data": ("fingerprint", "size", "channels", "classes", "labels"),
    "optim": ("name", "b1", "lr_mult"),
}


def step_settings(tree: Tree) -> dict[str, Any]:
    """Return the settings of a run's plain tree that decide the memory and speed of its step; its
    length, rates and seed do not."""
    lengths = {key for keys in LENGTH_KEYS for key in keys}
    settings: dict[str, Any] = {section: tree.get(section) for section in STEP_SECTIONS}
    for section, keys in STEP_KEYS.items():
        settings[section] = {key: tree[section].get(key) for key in keys}
    settings["train"] = {
        key: value for key, value in tree["train"].items() if f"train.{key}" not in lengths
    }
    return settings


def idle_keys(tree: Tree) -> dict[str, Any]:
    """Name the keys that a run of this plain tree doesn't read, dotted, each with the one value
    that it has in the run's id."""
    unused_lengths = {
        key: None for keys in LENGTH_KEYS for key in keys if key != _length(tree, keys)
    }
    rules = (rule.values for rule in RULES if not rule.switches and rule.holds(tree))
    return {**unused_lengths, **{key: value for values in rules for key, value in values.items()}}


def switched_off(tree: Tree) -> dict[str, tuple[str, ...]]:
    """Name the keys, dotted, that only say more of what is off, each with its switches."""
    rules = [rule for rule in RULES if rule.switches and rule.holds(tree)]
    return {key: rule.switches for rule in rules for key in rule.values}


def unread_by(optimizer: str) -> tuple[str, ...]:
    """Name the keys of `optim` that every recipe gives and this optimiser doesn't read. An
    optimiser given by import path reads none of them."""
    optimizer_keys: Collection[str] = OPTIMIZERS[optimizer].keys if optimizer in OPTIMIZERS else ()
    return tuple(key for key in PER_RECIPE if key not in optimizer_keys)


def without_idle(tree: Tree) -> dict[str, Any]:
    """Copy the plain tree of a run as its id has it: without what its optimiser doesn't read, other
    keys that nothing reads at one value, and a whole batch at once spelled null."""
    id_tree = dict(tree)
    unread_keys = unread_by(tree["optim"].get("name", "adamw"))
    id_tree["optim"] = {
        key: value for key, value in tree["optim"].items() if key not in unread_keys
    }
    for key, value in idle_keys(tree).items():
        section, _, name = key.partition(".")
        if name in id_tree.get(section, ()):
            id_tree[section] = {**id_tree[section], name: value}
    if tree["train"].get("micro_batch") == tree["train"].get("batch"):
        id_tree["train"] = {**id_tree["train"], "micro_batch": None}
    return id_tree


# --- Rules --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IdleRule:
    """Keys that have no effect in a run for whose plain tree `holds` returns true. `values`: the
    value of each in the id of such a run, as a rule its default.

    `switches`: the keys that switch on the feature which these keys refine. Recipes give such
    refinements in any case, and ids include them; a user who types one without its switch gets an
    error.
    """

    values: Mapping[str, Any]
    holds: Callable[[Tree], bool]
    switches: tuple[str, ...] = ()


def _length(tree: Tree, keys: tuple[str, ...]) -> str:
    """Name the key that sets one length: the first that is given, else the last."""
    present_keys = (key for key in keys if _value_at(tree, key) is not None)
    return next(present_keys, keys[-1])


def _value_at(tree: Tree, key: str, default: Any = None) -> Any:
    """Return the value of a dotted key; its default where it was left out."""
    section, _, name = key.partition(".")
    return (tree.get(section) or {}).get(name, default)


def _without_warmup(tree: Tree) -> bool:
    return bool(_value_at(tree, _length(tree, LENGTH_KEYS[1])) == 0)


def _without_cooldown(tree: Tree) -> bool:
    return not _value_at(tree, _length(tree, LENGTH_KEYS[2]))


def _is_still(tree: Tree) -> bool:
    """Return whether no augmentation moves the images that are evaluated."""
    return not any(_value_at(tree, f"augment.{key}") for key in ("rotate", "translate", "zoom_out"))


def _keeps_style(tree: Tree) -> bool:
    """Return whether `augment.style` has no effect: no crop, no RandAugment and no whole picture to
    cut."""
    cut = (
        _value_at(tree, "augment.crop_area") is not None
        or _value_at(tree, "data.cache") == "encoded"
    )
    return not (cut or _value_at(tree, "augment.randaug"))


def _norms_tokens_alone(tree: Tree) -> bool:
    """Return whether the norm computes each token by itself, so that the class token need not
    bypass it."""
    norm = tree.get("norm") or {}
    choice = NORMS.get(norm.get("name", ""))
    if choice is None or choice.tokenwise is None:
        return False
    return all(norm.get(key) == value for key, value in choice.tokenwise.items())


def _has_no_post_norm(tree: Tree) -> bool:
    block = tree.get("block") or {}
    places = (block.get("attn", "pre"), block.get("mlp", "pre"))
    return block.get("name") == "vit" and not any("post" in place for place in places)


def _brings_its_norm(tree: Tree) -> bool:
    """Return whether the block brings its own norm, so that `norm` is a default that nobody
    builds."""
    block = BLOCKS.get(_value_at(tree, "block.name", ""))
    return block is not None and "norm" in block.brings


def _has_one_block(tree: Tree) -> bool:
    stem = STEMS.get(_value_at(tree, "stem.name", ""))
    return stem is not None and bool(_value_at(tree, "model.depth", 0) == 1 + stem.saves_blocks)


def _has_no_class_token(tree: Tree) -> bool:
    return "name" not in tree["model"] and _value_at(tree, "model.pool", "tok") != "tok"


def _task(tree: Tree) -> metrics.TaskChoice | None:
    """Return the task of a run of the shipped model; None for a whole model, or a task unknown
    here."""
    is_whole_model = "name" in tree["model"]
    return None if is_whole_model else metrics.TASKS.get(tree.get("task", metrics.DEFAULT_TASK))


def _takes_no_steps(tree: Tree) -> bool:
    return (task := _task(tree)) is not None and not task.trains


def _decodes_tokens(tree: Tree) -> bool:
    """Return whether a decoder reads the tokens, in place of the layers that a classifier has after
    them."""
    return (task := _task(tree)) is not None and task.labels == "masks"


def _has_no_head(tree: Tree) -> bool:
    """Return whether the model has no head: an image's features are compared with a text's, or read
    by a decoder."""
    return (task := _task(tree)) is not None and (task.reads_text or _decodes_tokens(tree))


def _has_no_plain_norm(tree: Tree) -> bool:
    """Return whether the ViT's only LayerNorms are those of its norm, stem and block, which have
    their own eps."""
    norm, block = (
        table.get(_value_at(tree, f"{kind}.name", ""))
        for kind, table in (("norm", NORMS), ("block", BLOCKS))
    )
    if norm is None or block is None or _value_at(tree, "model.kind", "vit") != "vit":
        return False
    cls = _value_at(tree, "model.cls")
    past = cls == "late" or (cls == "exclude" and not _norms_tokens_alone(tree))
    past = past and not _brings_its_norm(tree)
    other_norms = past or _value_at(tree, "model.qk_norm") or _value_at(tree, "model.pool") == "map"
    dropped = _value_at(tree, "model.final_norm") == "drop" or _decodes_tokens(tree)
    return not other_norms and (dropped or norm.everywhere or block.everywhere)


RULES: tuple[IdleRule, ...] = (
    IdleRule(
        {"optim.timescale": 10_000}, lambda tree: _value_at(tree, "optim.schedule") != "rsqrt"
    ),
    IdleRule({"optim.warmup_lr": 0.0}, _without_warmup),
    IdleRule(
        {"optim.min_lr": 0.0},
        lambda tree: _value_at(tree, "optim.schedule") == "constant" and _without_cooldown(tree),
    ),
    IdleRule({"optim.decay": "by_lr"}, lambda tree: _value_at(tree, "optim.wd") == 0),
    IdleRule(
        {"augment.randaug_magnitude": 10.0},
        lambda tree: not _value_at(tree, "augment.randaug"),
        switches=("augment.randaug",),
    ),
    IdleRule(
        {"augment.style": "tf"},
        _keeps_style,
        switches=("augment.randaug", "augment.crop_area"),
    ),
    IdleRule({"eval.augment": False}, _is_still),
    IdleRule(
        {"model.cls": "include"},
        lambda tree: _value_at(tree, "model.cls") == "exclude" and _norms_tokens_alone(tree),
    ),
    IdleRule({"model.dropout": 0.0, "model.drop_path": 0.0}, _takes_no_steps),
    IdleRule({"model.final_norm": "keep", "model.rep": False}, _decodes_tokens),
    IdleRule({"model.head_bias": 0.0}, _has_no_head),
    IdleRule({"model.norm_eps": 1e-6}, _has_no_plain_norm),
    IdleRule({"norm.eps": 1e-6}, _brings_its_norm),
    IdleRule({"model.drop_path": 0.0}, _has_one_block),
    IdleRule({"block.post": "residual"}, _has_no_post_norm),
    IdleRule({"stem.cls": "patches"}, _has_no_class_token),
)
