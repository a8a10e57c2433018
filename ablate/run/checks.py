"""Constraints between the fields of a run. Constraints on a single field stand with its
declaration, in `spec` and `sections`.

Each check raises UserError: one line with the dotted key, its value, what it conflicts with, and
the remedy.

The module also checks which runs several ranks can share and still compute the same bits as one.

Used by run/build.py wherever a run is read: in plans and in the worker. The functions on ranks are
used where these are assigned (running/world_sizes.py) and where they train (training/loop.py).
`WORLD_SIZES` must agree with `World` of planning/launcher.py.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

from ablate.run.choices import ARCHS, BLOCKS, CHOICES, DEFAULTS, OPTIMIZERS
from ablate.run.dataset import REAL
from ablate.run.metrics import DEFAULT_TASK, TASKS, tasks_for_labels
from ablate.run.parts import FIELD_KINDS, is_plugin
from ablate.run.run import Run
from ablate.run.schema import added_fields
from ablate.run.sections import NO_CLASS, Augment, Chosen, Data, Eval, Model, Optim, Train, Whole
from ablate.shared import UserError, count_text, unknown_value

GELUS = ("gelu", "geglu")  # the activations to which `model.gelu` applies

WHOLE_PROBES = ("gradnorm", "fewshot", "knn")  # need no knowledge of the parts of a model

# The keys on the class token, as they are in a model without one.
CLASS_TOKEN_OFF = {"cls": "include", "cls_at": None, "cls_posemb": False}


def check(run: Run) -> None:
    """Raise UserError where a run breaks a constraint that types and bounds alone do not
    express."""
    if run.task not in TASKS:
        raise unknown_value("task", run.task, TASKS)
    versions = run.own_probes.versions if run.own_probes is not None else None
    if {*filter(is_plugin, run.probe)} != {*(versions or ())}:
        raise UserError("own_probes: expected a version of each probe that is the user's own")
    _data(run.data)
    _also(run)
    if run.model.input == "imagenet" and run.data.channels != 3:
        raise UserError(
            f"model.input: imagenet is the mean of three channels, data={run.data.name} has "
            f"{run.data.channels}; set model.input=range or unit"
        )
    if isinstance(run.model, Whole):
        _whole_model(run, run.model)
    else:
        _shipped(run, run.model)
    _optim(run.optim, run.model)
    _parts(run)
    _steps(run.train, run.augment)
    _view(run)
    _masks(run)
    _start(run)
    _texts(run)


def _require_defaults(section: Any, defaults: Mapping[str, Any], place: str, reason: str) -> None:
    """Raise UserError for a key that has no effect but is set to something other than its default.
    `reason`: why it has none, for the error."""
    for key, value in defaults.items():
        if getattr(section, key) != value:
            raise UserError(f"{place}{key}: {reason}; leave it out")


def _refuse_probes(run: Run, reason: str, but: Container[str] = ()) -> None:
    for probe in run.probe:
        if probe not in but:
            raise UserError(f"probe: {probe}: {reason}; leave it out")


# --- Data ---------------------------------------------------------------------------------------


def _data(data: Data) -> None:
    for key, use in (("train", "learn from"), ("validation", "validate on")):
        if getattr(data, key) is None:
            raise UserError(f"data.{key}: is null, so there is nothing to {use}; give a split")
    for key in ("validation", "test"):
        share = getattr(data, key)
        if isinstance(share, float) and share >= 1:
            raise UserError(
                f"data.{key}: a share must be less than 1, got {share}; "
                f"a whole number is a count, a text a split's name"
            )
    for key in ("crop", "among", "corruptions"):
        if getattr(data, key) != added_fields(Data)[key]:
            raise UserError(
                f"data.{key}: is of a set in eval.also, and data={data.name} is trained on; "
                f"leave it out"
            )
    for split, number in (data.rows or {}).items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UserError(f"data.rows.{split}: expected a number of images, got {number!r}")
    lacks = data.path is None and data.rows is None
    if data.text is not None and (data.source != "datasets" or lacks):
        raise UserError(
            f"data.text: is for tables in a folder, and data={data.name} has none; give "
            f"data.path=FOLDER, or leave it out"
        )
    _content(data, "data.")
    if data.cache == "encoded" and data.cache_size is not None:
        raise UserError(
            f"data.cache_size: {data.cache_size}, but with data.cache=encoded no image is squeezed "
            f"into a square; leave it out, or give data.cache=decoded"
        )
    if data.cache_size is not None and data.cache_size < data.size:
        raise UserError(
            f"data.cache_size: {data.cache_size} is less than data.size {data.size}; "
            f"images would be blown up"
        )


def _content(data: Data, place: str) -> None:
    """Check the keys of a set that a run learns from or is tested on. Raise UserError for one that
    does not fit its source; `place` begins the key in the error."""
    if data.text is not None:
        reason = f"{data.order} is for images that have classes, and those of data={data.name} have"
        _require_defaults(data, {"order": "stored"}, place, f"{reason} texts")
    if data.source == "coloured" and data.label not in (None, "digit"):
        raise UserError(
            f"{place}label: data={data.name} has the label digit, of 10 classes, and null, of its "
            f"100 captions; got {data.label!r}"
        )
    if data.source != "datasets" or data.text is not None:
        reason = f"{data.rule} makes classes of a column of labels, and data={data.name} has none"
        _require_defaults(data, {"rule": None}, place, reason)
    if data.cache == "encoded" and data.source != "datasets":
        raise UserError(
            f"{place}cache: images of data={data.name} are in no files, so there are no bytes of "
            f"their own to keep; give data.cache=decoded"
        )


SHOWN_KEYS = ("size", "channels", "cache_size", "cache")  # what decides what is shown of an image


def _also(run: Run) -> None:
    """Check the sets of `eval.also`. Raise UserError unless each has a name of its own, is only
    tested on, has no class beyond those that are learnt, and is shown to the model as the run's own
    set is (SHOWN_KEYS)."""
    data = run.data
    names = [test_set.name for test_set in run.eval.also]
    for test_set in run.eval.also:
        place = f"eval.also: {test_set.name}"
        if re.fullmatch(r"\w[\w.+-]*", test_set.name) is None:
            raise UserError(f"{place}: expected a name of letters, digits, '.', '+', '-' and '_'")
        if [data.name, *names].count(test_set.name) > 1:
            raise UserError(f"{place}: two sets have this name; give one of them another")
        if test_set.train is not None or not isinstance(test_set.test, str):
            raise UserError(f"{place}: expected a set that is only tested on, with a split `test`")
        if test_set.classes > TASKS[run.task].among(data.classes, test_set.classes):
            raise UserError(
                f"{place}: has {test_set.classes} classes, data={data.name} has {data.classes}: "
                f"its labels must be among the classes that are learnt"
            )
        if test_set.label == REAL and not TASKS[run.task].label_sets:
            raise UserError(
                f"{place}: its images have several classes each, and task={run.task} compares a "
                f"prediction with one; leave the set out"
            )
        if test_set.among == "own" and run.task != DEFAULT_TASK:
            raise UserError(
                f"{place}: data.among: own is for task={DEFAULT_TASK}; leave the set out"
            )
        if test_set.corruptions and test_set.broken == "skip":
            raise UserError(
                f"{place}: data.broken: skip would leave corruptions with different numbers of "
                f"images; give data.broken=error"
            )
        _content(test_set, f"{place}: ")
        for key in SHOWN_KEYS:
            theirs, ours = getattr(test_set, key), getattr(data, key)
            if theirs != ours:
                raise UserError(
                    f"{place}: data.{key} is {theirs}, and {ours} in data={data.name}; give both "
                    f"the same"
                )


def _view(run: Run) -> None:
    is_encoded = run.data.cache == "encoded"
    if run.eval.aspect == "squeeze" and run.data.cache_size is None and not is_encoded:
        raise UserError(
            f"eval.aspect: images of data={run.data.name} are cut to squares, so there is nothing "
            f"to squeeze; set data.cache_size, or data.cache=encoded"
        )
    if run.eval.augment and is_encoded:
        raise UserError(
            "eval.augment: changes a whole set once, so it must be decoded; give data.cache=decoded"
        )


# --- Model --------------------------------------------------------------------------------------


def _whole_model(run: Run, model: Whole) -> None:
    """Check a model of which nothing but its name is known."""
    _refuse_probes(run, f"looks into the shipped models, not into model={model.name}", WHOLE_PROBES)
    if run.train.micro_batch == "auto":
        raise UserError(
            f"train.micro_batch: auto splits a batch as the machine needs it, and what model="
            f"{model.name} computes may depend on the rows that it is shown at once; "
            f"set train.micro_batch=N, or null, for all rows"
        )


def _shipped(run: Run, model: Model) -> None:
    """Check a run of the shipped model, a ViT or an MLP."""
    size = run.data.size
    if size % model.patch:
        fits = ", ".join(str(patch) for patch in range(1, size + 1) if size % patch == 0)
        raise UserError(
            f"model.arch: patch {model.patch} does not divide the {size}x{size} images "
            f"of data={run.data.name}; patches that do: {fits}"
        )
    _choices(run, model)
    if model.kind == "mlp":
        _mlp(run, model)
    else:
        _class_token(model)
    if model.attention != "softmax":
        for probe in run.probe:
            if probe == "attention":
                raise UserError(
                    f"probe: attention: computes the weights of model.attention=softmax again, and "
                    f"can't know those of {model.attention}; leave it out"
                )
    if model.act not in GELUS:
        _require_defaults(model, {"gelu": "tanh"}, "model.", f"model.act={model.act} has no GELU")
    if model.posemb == "sincos2d" and (model.width % 4 or model.width < 8):
        raise UserError(
            f"model.posemb: sincos2d needs a width divisible by 4 and of at least 8, "
            f"got {model.width}"
        )
    if model.posemb in ("rope2d", "rope2d_dinov3") and model.head_dim % 4:
        raise UserError(
            f"model.posemb: {model.posemb} rotates pairs of channels by row and by column, so a "
            f"head needs a multiple of 4 channels, got {model.head_dim}; set model.head_dim or "
            f"model.heads"
        )
    if int(model.width * model.mlp_ratio) != model.width * model.mlp_ratio:
        raise UserError(
            f"model.mlp_ratio: {model.mlp_ratio} x width {model.width} is not a whole number"
        )


def _choices(run: Run, model: Model) -> None:
    """Raise UserError for a choice of norm, stem or block that would have no effect."""
    name = run.block.name if run.block else ""
    block = BLOCKS.get(name)
    brought = dict.fromkeys(block.brings if block else (), f"block={name}")
    if model.kind == "mlp":
        brought |= dict.fromkeys(("stem", "block"), f"model.arch={model.arch}")
    for group, setting in brought.items():
        default = _default(group, model)
        if getattr(run, group) != default:
            raise UserError(
                f"{group}: {setting} has none to choose; "
                f"leave {group} out (it is {default.name} by default)"
            )
    if name == "hybridnorm":
        reason = "block=hybridnorm has norms of its own on queries, keys and values"
        _require_defaults(model, {"qk_norm": False}, "model.", reason)


def _default(group: str, model: Model) -> Chosen:
    """Return the default choice of a group. A setting with a host takes the value of that field of
    `model`."""
    name = DEFAULTS[group]
    settings: dict[str, Any] = {
        key: param.default if param.host is None else getattr(model, param.host)
        for key, param in CHOICES[group][name].params.items()
    }
    return Chosen(name, settings)


def _mlp(run: Run, model: Model) -> None:
    mlp_keys = {"arch", "kind", "patch", "width", "depth", "head_bias", "init", "norm_eps", "input"}
    neutral_values = dataclasses.asdict(ARCHS["mlp"]) | CLASS_TOKEN_OFF
    neutral_values |= {"final_norm": "keep", "dropout": 0.0, "drop_path": 0.0}
    neutral_values |= {"act": "gelu", "registers": 0, "layerscale": None, "qk_norm": False}
    neutral_values |= {"head_dim": model.width}  # of the one head that its size says
    neutral_values |= {"attention": "softmax"}
    for part in FIELD_KINDS:
        if part.section == "model":
            neutral_values |= dict.fromkeys((part.settings, *part.computed))
    defaults = {key: neutral_values[key] for key in vars(model) if key not in mlp_keys}
    reason = f"model.arch={model.arch} has none"
    _require_defaults(model, defaults, "model.", reason)
    _refuse_probes(run, reason, {*run.probe} - {"attention", "tokens"})


def _class_token(model: Model) -> None:
    if model.pool != "tok":
        reason = f"there is no class token with model.pool={model.pool}"
        _require_defaults(model, CLASS_TOKEN_OFF, "model.", reason)
    if model.cls != "late":
        reason = f"is for model.cls=late, got model.cls={model.cls}"
        _require_defaults(model, {"cls_at": None}, "model.", reason)
    elif model.cls_at is None or not 0 < model.cls_at < model.depth:
        raise UserError(
            f"model.cls_at: the class token must join before a block from 1 to depth - 1, got "
            f"{model.cls_at} with model.depth={model.depth}; set model.cls_at or model.depth"
        )


# --- Recipe -------------------------------------------------------------------------------------


def _optim(optim: Optim, model: Model | Whole) -> None:
    if optim.name not in OPTIMIZERS and optim.version is None:
        raise unknown_value("optim.name", optim.name, [*OPTIMIZERS, "module:Class"])
    for key in ("warmup_lr", "min_lr"):
        rate = getattr(optim, key)
        if rate > optim.lr:
            raise UserError(f"optim.{key}: must be at most optim.lr ({optim.lr}), got {rate}")
    if optim.name in ("sgd", "lamb") and optim.decay == "independent":
        raise UserError(
            f"optim.decay: independent is for optimizers that decay weights apart from the "
            f"gradient, such as adamw; with optim.name={optim.name} give optim.decay=by_lr"
        )
    if optim.name == "lamb" and optim.wd == 0:
        raise UserError(
            "optim.wd: lamb rescales only the steps of weights that decay; without decay it is "
            "adamw; give more than 0, or optim.name=adamw"
        )
    for key, default in added_fields(Optim).items():
        readers = [name for name, moves in OPTIMIZERS.items() if key in moves.keys]
        if readers and optim.name not in readers:
            reason = f"is for optim.name={' or '.join(readers)}, got optim.name={optim.name}"
            _require_defaults(optim, {key: default}, "optim.", reason)
    if optim.name == "muon" and (isinstance(model, Whole) or model.kind == "mlp"):
        suffix = f"={model.name}" if isinstance(model, Whole) else f".arch={model.arch}"
        raise UserError(
            f"optim.name: muon moves matrices in blocks, and model{suffix} has none; "
            f"give another, such as adamw"
        )


def _parts(run: Run) -> None:
    """Raise UserError for settings, a version or a folder of a part that is not given by import
    path, and for a list of parts with a name that is no import path."""
    for part in FIELD_KINDS:
        section = getattr(run, part.section)
        name = getattr(section, part.field, None)  # a whole model has no fields
        import_paths = name or () if part.several else ()
        for import_path in import_paths:
            if not is_plugin(import_path):
                raise UserError(
                    f"{part.key}: expected names such as module:name, got {import_path!r}"
                )
        if name is None or part.several or is_plugin(name):
            continue
        defaults = dict.fromkeys((part.settings, *part.computed))
        reason = f"is for {part.key}=module:name, got {part.key}={name}"
        _require_defaults(section, defaults, f"{part.section}.", reason)


def _steps(train: Train, augment: Augment) -> None:
    if train.steps is None and train.examples is None and not train.epochs > 0:
        raise UserError(f"train.epochs: must be more than 0, got {train.epochs}")
    if augment.repeats > train.batch:
        raise UserError(
            f"augment.repeats: must be at most train.batch ({train.batch}), got {augment.repeats}"
        )
    if isinstance(train.micro_batch, int) and train.batch % train.micro_batch:
        raise UserError(
            f"train.micro_batch: {train.micro_batch} does not divide train.batch {train.batch}"
        )


def _start(run: Run) -> None:
    if not TASKS[run.task].trains and run.parent is None and run.weights is None:
        raise UserError(
            f"task: {run.task} trains nothing and needs weights to start from; give from.KEY=VALUE "
            f"(keys of a run that is trained first) or from.weights=FILE"
        )
    if not TASKS[run.task].trains:
        reason = f"task={run.task} takes no steps, so there is no gradient to measure"
        _refuse_probes(run, reason, {*run.probe} - {"gradnorm"})


# --- Tasks --------------------------------------------------------------------------------------

_OF_MASKS = {
    "data": ("ignore", "fraction"),
    "augment": ("rescale", "class_share", "photometric"),
    "eval": ("stride",),
}
# What changes or shows images without their masks.
_OF_IMAGES = {
    "data": ("rule",),
    "augment": (
        *("crop_area", "randaug", "three", "jitter", "rotate", "translate", "zoom_out"),
        *("erase", "mixup", "cutmix", "extra"),
    ),
    "eval": ("crop", "augment", "aspect", "also"),
}
_LEARNT = {"masks": "masks", "classes": "a class an image"}


def _masks(run: Run) -> None:
    """Check that data and keys for masks are used only with a task that learns from masks."""
    task, data = TASKS[run.task], run.data
    masks = data.labels == "masks"
    if data.labels != task.labels:
        raise UserError(
            f"task: {run.task} learns from {_LEARNT[task.labels]}, and data={data.name} has "
            f"{_LEARNT[data.labels]}; give task={', '.join(tasks_for_labels(data.labels))}, or "
            f"other data"
        )
    image_kind = "images without masks" if masks else "images with masks (data.labels=masks)"
    for section, keys in (_OF_IMAGES if masks else _OF_MASKS).items():
        field_defaults = added_fields({"data": Data, "augment": Augment, "eval": Eval}[section])
        defaults = {key: field_defaults[key] for key in keys}
        _require_defaults(getattr(run, section), defaults, f"{section}.", f"is for {image_kind}")
    if masks:
        _mask_task(run, data)


def _mask_task(run: Run, data: Data) -> None:
    if data.cache != "encoded":
        raise UserError(
            f"data.cache: {data.cache} keeps squares, and masks need whole images; give "
            f"data.cache=encoded"
        )
    if data.classes >= NO_CLASS:
        raise UserError(
            f"data.classes: masks of 8 bits have at most {NO_CLASS - 1} classes, got {data.classes}"
        )
    if isinstance(run.model, Whole):
        raise UserError(f"model: task={run.task} decodes the tokens of a ViT; give model=vit")
    if run.model.kind != "vit":
        raise UserError(
            f"model.arch: {run.model.arch} has no tokens of patches to decode; give SIZE/PATCH"
        )
    for place, value, expected in (
        ("augment.crop_pad", run.augment.crop_pad, 0),
        ("augment.repeats", run.augment.repeats, 1),
        ("train.loss", run.train.loss, "softmax"),
    ):
        if value != expected:
            raise UserError(f"{place}: task={run.task} has none, got {value!r}; give {expected}")
    if data.channels != 3:
        reason = f"moves hues, and data={data.name} is grey"
        _require_defaults(run.augment, {"photometric": False}, "augment.", reason)
    _refuse_probes(run, "reads one vector an image", TASKS[run.task].probed)
    stem = "" if run.stem is None else run.stem.name
    if stem.startswith("whiten") and run.parent is None and run.weights is None:
        raise UserError(
            f"stem: {stem} is measured on images of one size, and data={data.name} "
            f"has many; start from a run that measured it (from.KEY=VALUE), or give another stem"
        )
    if run.eval.stride is not None and run.eval.stride > data.size:
        raise UserError(
            f"eval.stride: {run.eval.stride} is more than a window (data.size={data.size}) and "
            f"would leave pixels out"
        )


def _texts(run: Run) -> None:
    """Check that a run has a text tower if its task reads texts, and only then."""
    if not TASKS[run.task].reads_text:
        if run.text is not None:
            raise UserError(
                f"text: task={run.task} reads no texts; leave text.KEY and recipe=lit out"
            )
        return
    if run.text is None:
        raise UserError(
            f"text: task={run.task} needs a text tower; give recipe=lit, or every text.KEY=VALUE"
        )
    if isinstance(run.model, Whole):
        raise UserError(f"task: {run.task} needs a ViT, got model={run.model.name}")
    if run.model.kind != "vit":
        raise UserError(f"task: {run.task} needs a ViT, got model.arch={run.model.arch}")
    if run.text.width % run.text.heads:
        raise UserError(f"text.heads: {run.text.heads} heads do not divide width {run.text.width}")
    for prompt in run.text.prompts or ("",):
        if prompt.count("{}") != 1:
            raise UserError(f"text.prompts: expected texts with one {{}} each, got {prompt!r}")
    _refuse_probes(run, f"task={run.task} has none")
    frozen = (run.optim.lr_mult or {}).get("image") == 0
    if run.train.micro_batch not in (None, run.train.batch) and not frozen:
        raise UserError(
            f"train.micro_batch: task={run.task} runs the image tower twice on a batch that is "
            f"split, which may give two results while the tower trains; got "
            f"{run.train.micro_batch}, set train.micro_batch=null or optim.lr_mult.image=0"
        )
    if run.augment.mixup or run.augment.cutmix or run.train.label_smoothing:
        raise UserError(
            f"task: {run.task} has no classes to mix or to smooth; set augment.mixup=0, "
            f"augment.cutmix=0 and train.label_smoothing=0"
        )
    if run.train.loss != "softmax":
        raise UserError(f"train.loss: task={run.task} has softmax alone, got {run.train.loss}")


# --- Ranks --------------------------------------------------------------------------------------

WORLD_SIZES = (1, 2, 4, 8)  # how many ranks there may be
# Micro-batches of a step, at least, where the machine decides: each of WORLD_SIZES can share them.
LEAST_MICRO_BATCHES = 8
ORDERED_FROM = 4  # micro-batches from which on statistics are taken in behind all of them


def open_world_sizes(per_run: int | str, devices: int) -> list[int]:
    """List the numbers of devices that a run may use where there are `devices`. `per_run`: the only
    such number, or "auto": every one of WORLD_SIZES that fits."""
    return [n for n in WORLD_SIZES if n <= devices] if per_run == "auto" else [int(per_run)]


def check_ranks(run: Run, micro_batch: int, world: int, statistics: bool = False) -> None:
    """Raise UserError where `world` ranks would not compute the same bits as one. Each rank takes
    the same number of micro-batches, whose gradients are summed in a balanced tree. `statistics`:
    whether the model has running statistics."""
    if world == 1 or not TASKS[run.task].trains:
        return
    parts = run.train.batch // micro_batch
    if parts & (parts - 1):
        raise UserError(
            f"train.micro_batch: {world} ranks share a power of two of micro-batches, and a batch "
            f"of {run.train.batch} has {parts} of {micro_batch}; give one rank, or "
            f"another train.micro_batch"
        )
    if parts % world:
        fit = ", ".join(str(n) for n in WORLD_SIZES if parts % n == 0)
        raise UserError(
            f"train.micro_batch: {world} ranks can't share the "
            f"{count_text(parts, 'micro-batch')} of a step (batch {run.train.batch}, {micro_batch} "
            f"at once); ranks that can: {fit}; or give train.micro_batch=N"
        )
    if statistics and parts < ORDERED_FROM:
        raise UserError(
            f"train.micro_batch: running statistics of {parts} micro-batches can't be gathered; "
            f"give at most {run.train.batch // ORDERED_FROM}, or one rank"
        )
    if run.norm is not None and run.norm.name == "powernorm":
        raise UserError(
            "norm: powernorm reads in each micro-batch what the one before it has left, so its "
            "runs take one rank"
        )


def batch_divisors(batch: int, at_most: int | None = None) -> Iterator[int]:
    """Yield the batch size, then repeatedly the largest of its divisors that is at most half the
    one before, down to 1: with `at_most`, sizes above it are left out; 1 always stays."""
    size = batch
    while size > 1:
        if at_most is None or size <= at_most:
            yield size
        size = next(part for part in range(size // 2, 0, -1) if batch % part == 0)
    yield 1
