"""What must hold between the fields of a run. What holds for one stands with it, in `spec`.

Each raises UserError: one line with the dotted key, its value, what it does not go with, and the
remedy.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from ablate.shared.choices import ARCHS, BLOCKS, CHOICES, DEFAULTS, OPTIMIZERS
from ablate.shared.errors import UserError, unknown
from ablate.shared.masks import check_masks
from ablate.shared.metrics import TASKS
from ablate.shared.parts import ACT, PARTS, is_plugin
from ablate.shared.recipe import Augment, Optim, Train
from ablate.shared.schema import added
from ablate.shared.sections import Chosen, Data, Model, Whole
from ablate.shared.spec import Run

GELUS = ("gelu", "geglu")  # the activations of which `model.gelu` says something

WHOLE_PROBES = ("gradnorm", "fewshot")  # that look at no part of a model

# What a model without a class token says of one.
NO_CLS = {"cls": "include", "cls_at": None, "cls_posemb": False}


def check(run: Run) -> None:
    """What types and bounds alone do not say. Raises UserError."""
    if run.task not in TASKS:
        raise unknown("task", run.task, TASKS)
    versions = run.own_probes.versions if run.own_probes is not None else None
    if {*filter(is_plugin, run.probe)} != {*(versions or ())}:
        raise UserError("own_probes: expected a version of each probe that is the user's own")
    _data(run.data)
    _also(run)
    _input(run)
    if isinstance(run.model, Whole):
        _whole(run, run.model)
    else:
        _shipped(run, run.model)
    _optim(run.optim, run.model)
    _parts(run)
    _lengths(run.train)
    _batch(run.train, run.augment)
    _view(run)
    check_masks(run)
    _start(run)
    _texts(run)


def _shipped(run: Run, model: Model) -> None:
    """The ViT, or the MLP."""
    _patches(run.data, model)
    _choices(run, model)
    if model.kind == "mlp":
        _mlp(run, model)
    else:
        _class_token(model)
    _model(model)


def _whole(run: Run, model: Whole) -> None:
    """A model that we know nothing of but its name."""
    for name in run.probe:
        if name not in WHOLE_PROBES:
            raise UserError(
                f"probe: {name}: looks into the shipped models, not into model={model.name}; "
                f"leave it out"
            )
    if run.train.micro_batch == "auto":
        raise UserError(
            f"train.micro_batch: auto splits a batch as the machine needs it, and model="
            f"{model.name} may draw and take statistics by what it is shown at once; "
            f"set train.micro_batch=N, or null, for all rows"
        )


def _data(data: Data) -> None:
    for key in ("train", "validation"):
        if getattr(data, key) is None:
            raise UserError(f"data.{key}: is null, so there is nothing to learn from; give a split")
    for key in ("validation", "test"):
        share = getattr(data, key)
        if isinstance(share, float) and share >= 1:
            raise UserError(
                f"data.{key}: a share must be less than 1, got {share}; "
                f"a whole number is a count, a text a split's name"
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
    _labels(data, "data.")
    if data.cache == "encoded" and data.source != "datasets":
        raise UserError(
            f"data.cache: images of data={data.name} are in no files, so there are no bytes of "
            f"their own to keep; leave it out"
        )
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


def _labels(data: Data, place: str) -> None:
    if data.text is not None and data.order != "stored":
        raise UserError(
            f"{place}order: {data.order} is for images that have classes, and those of "
            f"data={data.name} have texts; leave it out"
        )
    if data.source == "coloured" and data.label not in (None, "digit"):
        raise UserError(
            f"{place}label: data={data.name} has the label digit, of 10 classes, and null, of its "
            f"100 captions; got {data.label!r}"
        )
    if data.rule is not None and (data.source != "datasets" or data.text is not None):
        raise UserError(
            f"{place}rule: {data.rule} makes classes of a column of labels, and data={data.name} "
            f"has none; leave it out"
        )


SHOWN = ("size", "channels", "cache_size", "cache")  # what decides what is shown of an image


def _also(run: Run) -> None:
    """Sets that are tested on as the run's own is, each under a name of its own."""
    data = run.data
    names = [other.name for other in run.eval.also]
    for other in run.eval.also:
        place = f"eval.also: {other.name}"
        if re.fullmatch(r"\w[\w.+-]*", other.name) is None:
            raise UserError(f"{place}: expected a name of letters, digits, '.', '+', '-' and '_'")
        if [data.name, *names].count(other.name) > 1:
            raise UserError(f"{place}: two sets have this name; give one of them another")
        if other.train is not None or not isinstance(other.test, str):
            raise UserError(f"{place}: expected a set that is only tested on, with a split `test`")
        if other.classes > TASKS[run.task].among(data.classes, other.classes):
            raise UserError(
                f"{place}: has {other.classes} classes, data={data.name} has {data.classes}: its "
                f"labels must be among the classes that are learnt"
            )
        _labels(other, f"{place}: ")
        if other.cache == "encoded" and other.source != "datasets":
            raise UserError(
                f"{place}: its images are in no files, so there are no bytes of their own to keep; "
                f"leave it out, or give data.cache=decoded"
            )
        for key in SHOWN:
            theirs, ours = getattr(other, key), getattr(data, key)
            if theirs != ours:
                raise UserError(
                    f"{place}: data.{key} is {theirs}, and {ours} in data={data.name}; give both "
                    f"the same"
                )


def _patches(data: Data, model: Model) -> None:
    if data.size % model.patch:
        fits = [p for p in range(1, data.size + 1) if data.size % p == 0]
        raise UserError(
            f"model.arch: patch {model.patch} does not divide the {data.size}x{data.size} images "
            f"of data={data.name}; patches that do: {', '.join(map(str, fits))}"
        )


def _choices(run: Run, model: Model) -> None:
    """Nothing is chosen where it would have no effect."""
    name = run.block.name if run.block else ""
    block = BLOCKS.get(name)
    brought = dict.fromkeys(block.brings if block else (), f"block={name}")
    if model.kind == "mlp":
        brought |= dict.fromkeys(("stem", "block"), f"model.arch={model.arch}")
    for group, by in brought.items():
        default = _default(group, model)
        if getattr(run, group) != default:
            raise UserError(
                f"{group}: {by} has none to choose; "
                f"leave {group} out (it is {default.name} by default)"
            )


def _default(group: str, model: Model) -> Chosen:
    """What is chosen of the group where nothing is said."""
    name = DEFAULTS[group]
    settings: dict[str, Any] = {
        key: param.default if param.host is None else getattr(model, param.host)
        for key, param in CHOICES[group][name].params.items()
    }
    return Chosen(name, settings)


def _mlp(run: Run, model: Model) -> None:
    own = {"arch", "kind", "patch", "width", "depth", "head_dim", "head_bias", "init"}
    own |= {"norm_eps", "input"}
    expected = dataclasses.asdict(ARCHS["mlp"]) | NO_CLS
    expected |= {"final_norm": "keep", "dropout": 0.0, "drop_path": 0.0}
    expected |= {"act": "gelu", "registers": 0, "layerscale": None, "qk_norm": False}
    expected |= dict.fromkeys((ACT.settings, *ACT.computed))
    for key, value in dataclasses.asdict(model).items():
        if key not in own and value != expected[key]:
            raise UserError(f"model.{key}: model.arch={model.arch} has none; leave it out")
    for name in ("attention", "tokens"):
        if name in run.probe:
            raise UserError(f"probe: {name}: model.arch={model.arch} has none; leave it out")


def _class_token(model: Model) -> None:
    if model.pool != "tok":
        for key, value in NO_CLS.items():
            if getattr(model, key) != value:
                raise UserError(
                    f"model.{key}: there is no class token with model.pool={model.pool}; "
                    f"leave it out"
                )
    if model.cls != "late":
        if model.cls_at is not None:
            raise UserError(
                f"model.cls_at: is for model.cls=late, got model.cls={model.cls}; leave it out"
            )
    elif model.cls_at is None or not 0 < model.cls_at < model.depth:
        raise UserError(
            f"model.cls_at: the class token must join before a block from 1 to depth - 1, got "
            f"{model.cls_at} with model.depth={model.depth}; set model.cls_at or model.depth"
        )


def _model(model: Model) -> None:
    if model.act not in GELUS and model.gelu != "tanh":
        raise UserError(f"model.gelu: model.act={model.act} has no GELU; leave it out")
    if model.posemb == "sincos2d" and (model.width % 4 or model.width < 8):
        raise UserError(
            f"model.posemb: sincos2d needs a width divisible by 4 and of at least 8, "
            f"got {model.width}"
        )
    if int(model.width * model.mlp_ratio) != model.width * model.mlp_ratio:
        raise UserError(
            f"model.mlp_ratio: {model.mlp_ratio} x width {model.width} is not a whole number"
        )


def _input(run: Run) -> None:
    if run.model.input == "imagenet" and run.data.channels != 3:
        raise UserError(
            f"model.input: imagenet is the mean of three channels, data={run.data.name} has "
            f"{run.data.channels}; set model.input=range or unit"
        )


def _optim(optim: Optim, model: Model | Whole) -> None:
    if optim.name not in OPTIMIZERS and optim.version is None:
        raise unknown("optim.name", optim.name, [*OPTIMIZERS, "module:Class"])
    for key in ("warmup_lr", "min_lr"):
        rate = getattr(optim, key)
        if rate > optim.lr:
            raise UserError(f"optim.{key}: must be at most optim.lr ({optim.lr}), got {rate}")
    if optim.name == "sgd" and optim.decay == "independent":
        raise UserError(
            "optim.decay: independent is for adamw and others whose decay stands beside the "
            "gradient; with optim.name=sgd it is by_lr"
        )
    for key, default in added(Optim).items():
        readers = [name for name, moves in OPTIMIZERS.items() if key in moves.keys]
        if readers and optim.name not in readers and getattr(optim, key) != default:
            raise UserError(
                f"optim.{key}: is for optim.name={' or '.join(readers)}, "
                f"got optim.name={optim.name}; leave it out"
            )
    if optim.name == "muon" and (isinstance(model, Whole) or model.kind == "mlp"):
        named = f"={model.name}" if isinstance(model, Whole) else f".arch={model.arch}"
        raise UserError(
            f"optim.name: muon moves matrices in blocks, and model{named} has none; "
            f"give another, such as adamw"
        )


def _parts(run: Run) -> None:
    """What stands beside an import path stands beside nothing else."""
    for part in PARTS:
        section = getattr(run, part.section)
        name = getattr(section, part.field, None)  # a whole model has no fields
        for each in name or () if part.several else ():
            if not is_plugin(each):
                raise UserError(f"{part.key}: expected names such as module:name, got {each!r}")
        if name is None or part.several or is_plugin(name):
            continue
        for key in (part.settings, *part.computed):
            if getattr(section, key) is not None:
                raise UserError(
                    f"{part.section}.{key}: is for {part.key}=module:name, got "
                    f"{part.key}={name}; leave it out"
                )


def _lengths(train: Train) -> None:
    if train.steps is None and train.examples is None and not train.epochs > 0:
        raise UserError(f"train.epochs: must be more than 0, got {train.epochs}")


def _batch(train: Train, augment: Augment) -> None:
    if augment.repeats > train.batch:
        raise UserError(
            f"augment.repeats: must be at most train.batch ({train.batch}), got {augment.repeats}"
        )
    if isinstance(train.micro_batch, int) and train.batch % train.micro_batch:
        raise UserError(
            f"train.micro_batch: {train.micro_batch} does not divide train.batch {train.batch}"
        )


def _view(run: Run) -> None:
    whole = run.data.cache == "encoded"
    if run.eval.aspect == "squeeze" and run.data.cache_size is None and not whole:
        raise UserError(
            f"eval.aspect: images of data={run.data.name} are cut to squares, so there is nothing "
            f"to squeeze; set data.cache_size, or data.cache=encoded"
        )
    if run.eval.augment and whole:
        raise UserError(
            "eval.augment: changes a whole set once, so it must be decoded; give data.cache=decoded"
        )


def _start(run: Run) -> None:
    if not TASKS[run.task].trains and run.parent is None and run.weights is None:
        raise UserError(
            f"task: {run.task} trains nothing and needs weights to start from; give from.KEY=VALUE "
            f"(keys of a run that is trained first) or from.weights=FILE"
        )


def check_images(run: Run, images: int) -> None:
    """Raises UserError where the training split has not the images of a batch."""
    if TASKS[run.task].trains and run.train.batch > images:
        raise UserError(
            f"train.batch: {run.train.batch} is more than the {images} training images of "
            f"data={run.data.name}; give at most {images}"
        )


def _texts(run: Run) -> None:
    """A task that reads texts has a text tower, no other has one."""
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
    if run.probe:
        raise UserError(f"probe: {run.probe[0]}: task={run.task} has none; leave it out")
    frozen = (run.optim.lr_mult or {}).get("image") == 0
    if run.train.micro_batch not in (None, run.train.batch) and not frozen:
        raise UserError(
            f"train.micro_batch: task={run.task} computes a batch that is split twice, which an "
            f"image tower that trains may not bear; got {run.train.micro_batch}, set "
            f"train.micro_batch=null or optim.lr_mult={{image: 0}}"
        )
    if run.augment.mixup or run.augment.cutmix or run.train.label_smoothing:
        raise UserError(
            f"task: {run.task} has no classes to mix or to smooth; set augment.mixup=0, "
            f"augment.cutmix=0 and train.label_smoothing=0"
        )
    if run.train.loss != "softmax":
        raise UserError(f"train.loss: task={run.task} has softmax alone, got {run.train.loss}")
