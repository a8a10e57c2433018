"""The spec of a run: everything that its training depends on, as the plain tree that plans and
`run.json` hold, and the questions that this tree answers.

A spec without a seed stands for all runs of a cell. It is complete: tables are made from it, and it
is checked years later, without any file of the user's. An id is a hash of what the training depends
on. It leaves out where data and code lie, and settings without effect.

Used by most rooms of the control half: every cell and run of a plan has one (planning/cell.py). A
change of `identity` changes ids, so stores find no earlier run; tests/test_config.py has golden
ids.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from ablate.run import metrics, own
from ablate.run.choices import CHOICES, OPTIMIZERS
from ablate.run.idle import step_settings, without_idle
from ablate.run.metrics import Metric, TaskChoice
from ablate.run.parts import PART_KINDS, UsedPart
from ablate.run.schema import PlainValue, added_fields, field_keys
from ablate.run.sections import SECTIONS, Plugin, Whole

Tree = Mapping[str, Any]

# Part of the id of every run that takes steps. Increased when the same configuration would train
# differently.
DRAWS = 2

# Keys left out of a run's tree where they have their defaults.
LEFT_OUT = ("task", "parent", "weights", "own_probes", "text", "inferred", "not_followed")


@dataclass(frozen=True)
class RunSpec(PlainValue):
    """The spec of a run with its seed, or of all runs of a cell, without a seed."""

    tree: Tree  # never changed

    @staticmethod
    def of(tree: Tree) -> RunSpec:
        """Return the spec that a plain tree holds, whoever trains the run. Nothing is checked."""
        return OwnSpec(tree) if own.TRAINER in tree else ShippedSpec(tree)

    # --- Its runs ---

    def with_seed(self, seed: int) -> Self:
        """Return the spec of the cell's run with this seed. A parent without a seed of its own
        takes that of its child."""
        return type(self)({**self.tree, "seed": seed})

    def with_parent_seed(self, seed: int) -> Self:
        """Return a cell's spec whose parent has this seed, unless it has one of its own."""
        return self

    def without_seed(self, like: RunSpec) -> Self:
        """Return the spec of the cell of this run. A parent keeps its seed only if it has one in
        `like`, another spec of the same cell."""
        return type(self)({key: value for key, value in self.tree.items() if key != "seed"})

    @property
    @abstractmethod
    def identity(self) -> str:
        """Canonical JSON of everything in the id but the seed: equal for all seeds of a cell."""

    @property
    def step_identity(self) -> str:
        """Canonical JSON of what decides the memory and speed of a step: equal for runs that differ
        in length, rates and seed alone. A trainer of the user's own has none."""
        return json.dumps(step_settings(self.tree), sort_keys=True)

    @property
    def id(self) -> str:
        """The id of a run: 16 hex digits of a sha256 of what its training depends on. Data counts
        by its content, a parent by what its own id is a hash of."""
        return _run_id(self.identity, self.tree["seed"])

    def ids(self, seeds: Iterable[int]) -> dict[int, str]:
        """Return the ids of a cell's runs by seed."""
        identity = self.identity
        return {seed: _run_id(identity, seed) for seed in seeds}

    @property
    @abstractmethod
    def places(self) -> list[str]:
        """The paths of files and folders, which say whose machine it was."""

    @abstractmethod
    def without_places(self) -> Self:
        """Return the spec without `places`. The id stays."""

    @abstractmethod
    def with_code_in(self, folder: str, origin: str) -> Self:
        """Return the spec whose code lies in `folder` where it lay in `origin`. The id stays."""

    @property
    def parent(self) -> RunSpec | None:
        """The spec of the run whose weights this one starts from. Without a seed, it has that of
        its child."""
        return None

    def ancestors(self) -> Iterator[RunSpec]:
        """Yield the specs of the runs that this one starts from, the nearest first."""
        parent = self.parent
        while parent is not None:
            yield parent
            parent = parent.parent

    # --- Who trains it ---

    @property
    def is_command(self) -> bool:
        """True if a program of the user's trains the run."""
        return False

    @property
    def wants_torch(self) -> bool:
        """True if a process that has loaded torch is to fork its worker."""
        return True

    @property
    def flags(self) -> dict[str, str]:
        """The word of each flag of a program, by its key."""
        keys = self.tree["keys"]
        return {key: keys[key]["flag"] for key in keys if "flag" in keys[key]}

    @property
    def is_imported(self) -> bool:
        """True if the run was trained elsewhere, and its numbers come from a sheet."""
        return False

    # --- What it learns ---

    @property
    @abstractmethod
    def task_name(self) -> str:
        """The name of the task, known here or not."""

    @property
    @abstractmethod
    def task(self) -> TaskChoice:
        """The task. Raises LookupError where it is not known here."""

    @property
    def has_task(self) -> bool:
        """True if the task is known here, and has metrics."""
        try:
            return bool(self.task.metrics)
        except (LookupError, TypeError, AttributeError, ValueError):
            return False

    @property
    @abstractmethod
    def trains(self) -> bool:
        """True if the run takes steps."""

    @property
    def also(self) -> list[Tree]:
        """The sections of the sets on which the run is tested in addition to its own."""
        return list(self.tree.get("eval", {}).get("also", ()))

    @property
    def datasets(self) -> list[Tree]:
        """The sections of all sets that the run is known to read, its own first."""
        return []

    @property
    def classes(self) -> int:
        """The number of classes of its data; 0 where the tree names no data."""
        return 0

    @property
    def guesses(self) -> int:
        """The number of classes among which a guess chooses in the test; 0 where the tree names no
        data."""
        return 0

    @property
    def whole_model(self) -> str | None:
        """The name of the whole model; None for the shipped model, of norms, stems and blocks."""
        return None

    @property
    def probes(self) -> list[str]:
        """The names of the probes."""
        return list(self.tree.get("probe", ()))

    @property
    def own_parts(self) -> list[UsedPart]:
        """The parts that the tree names by import path, and models of timm."""
        return []

    # --- What its results say ---

    def marks_examples(self, metric: str) -> bool:
        """Return whether the predictions of a run mark the test examples that make up this metric.
        They do where it is the share of examples that the run got right."""
        return False

    @abstractmethod
    def result_of(self, lines: Sequence[Tree]) -> dict[str, Any]:
        """Return the part of a finished run's result that the lines of `metrics.jsonl` give."""

    @abstractmethod
    def share_done(self, line: Tree) -> float:
        """Return the share of the whole training that was done at a line of `metrics.jsonl`."""

    @abstractmethod
    def worst(self, metric: Metric) -> float | None:
        """Return the raw value of a metric that a diverged run gets in a search; None where its
        trainer declares neither chance nor range."""


def _run_id(identity: str, seed: int) -> str:
    return hashlib.sha256(f"{identity}#{seed}".encode()).hexdigest()[:16]


# --- Runs of ablate's own training ----------------------------------------------------------------


class ShippedSpec(RunSpec):
    """The spec of a run that ablate trains: the sections of a `Run` as plain values."""

    def with_seed(self, seed: int) -> Self:
        tree = {**self.tree, "seed": seed}
        if self.parent is not None:
            tree["parent"] = self.parent.with_seed(self.tree["parent"].get("seed", seed)).tree
        return type(self)(tree)

    def with_parent_seed(self, seed: int) -> Self:
        if self.parent is None:
            return self
        return type(self)({**self.tree, "parent": {"seed": seed, **self.parent.tree}})

    def without_seed(self, like: RunSpec) -> Self:
        tree = {key: value for key, value in self.tree.items() if key != "seed"}
        if self.parent is not None and like.parent is not None:
            parent = dict(self.parent.without_seed(like.parent).tree)
            if "seed" in like.parent.tree:
                parent["seed"] = self.parent.tree["seed"]
            tree["parent"] = parent
        return type(self)(tree)

    @property
    def identity(self) -> str:
        # Fields with their defaults are left out: so ids stay when a field is added.
        tree = self.tree
        excluded_keys = ("seed", "probe", *LEFT_OUT)
        content = {key: value for key, value in self.effective.items() if key not in excluded_keys}
        if self.trains:
            content["train"] = {**content["train"], "draws": DRAWS}
            if _may_split(tree["train"]):
                content["train"]["sum"] = "tree"
        extra: dict[str, Any] = {}
        if tree.get("probe"):
            extra["probe"] = tree["probe"]
        if tree.get("own_probes") is not None:
            extra["own_probes"] = tree["own_probes"]["versions"]
        if self.task_name != metrics.DEFAULT_TASK:
            extra["task"] = tree["task"]
        if self.parent is not None:
            extra["parent"] = json.loads(self.parent.identity)
            parent_seed = self.parent.tree.get("seed")
            if parent_seed not in (None, tree.get("seed")):
                extra["parent"]["seed"] = parent_seed
        for section in ("weights", "text"):
            if tree.get(section) is not None:
                extra[section] = _without_keys(tree[section], _extra_keys(SECTIONS[section]))
        content = {
            section: _identity_fields(section, settings) for section, settings in content.items()
        }
        if self.also:
            content["eval"]["also"] = [_identity_fields("data", data) for data in self.also]
        return json.dumps(content | extra, sort_keys=True, separators=(",", ":"))

    @property
    def places(self) -> list[str]:
        values = [
            settings[key]
            for section, settings in self.tree.items()
            for key in _place_keys(section, settings)
        ]
        values += [data.get("path") for data in self.also]
        places: list[str] = [] if self.parent is None else self.parent.places
        for value in values:
            places += value.values() if isinstance(value, Mapping) else [value]
        return [place for place in places if place is not None]

    def without_places(self) -> Self:
        tree: dict[str, Any] = {}
        for section, settings in self.tree.items():
            keys = _place_keys(section, settings)
            tree[section] = {**settings, **dict.fromkeys(keys)} if keys else settings
        if self.also:
            also = [{**data, "path": None} for data in self.also]
            tree["eval"] = {**tree["eval"], "also": also}
        if self.parent is not None:
            tree["parent"] = self.parent.without_places().tree
        return type(self)(tree)

    def with_code_in(self, folder: str, origin: str) -> Self:
        tree = dict(self.tree)
        for section, settings in self.tree.items():
            moved = {}
            for key in _place_keys(section, settings):
                place = settings[key]
                if isinstance(place, Mapping):
                    moved[key] = {name: _moved(p, folder, origin) for name, p in place.items()}
                else:
                    moved[key] = _moved(place, folder, origin)
            if moved:
                tree[section] = {**settings, **moved}
        if self.parent is not None:
            tree["parent"] = self.parent.with_code_in(folder, origin).tree
        return type(self)(tree)

    def ids(self, seeds: Iterable[int]) -> dict[int, str]:
        if self.parent is not None:  # a parent with a seed of its own is another's for most seeds
            return {seed: self.with_seed(seed).id for seed in seeds}
        return super().ids(seeds)

    @property
    def parent(self) -> ShippedSpec | None:
        tree = self.tree.get("parent")
        return None if tree is None else ShippedSpec(tree)

    @property
    def task_name(self) -> str:
        return str(self.tree.get("task", metrics.DEFAULT_TASK))

    @property
    def task(self) -> TaskChoice:
        return metrics.TASKS[self.task_name]

    @property
    def trains(self) -> bool:
        # A task that is not known here is assumed to.
        task = metrics.TASKS.get(self.task_name)
        return task is None or task.trains

    @property
    def datasets(self) -> list[Tree]:
        return [self.tree["data"], *self.also]

    @property
    def classes(self) -> int:
        return int(self.tree["data"]["classes"])

    @property
    def guesses(self) -> int:
        task = metrics.TASKS.get(self.task_name)
        if task is None:
            return self.classes
        return task.among(self.classes, self.tree["data"].get("test_classes"))

    @property
    def own_parts(self) -> list[UsedPart]:
        return [used for kind in PART_KINDS for used in kind.used(self.tree)]

    @property
    def whole_model(self) -> str | None:
        name = self.tree["model"].get("name")
        return None if name is None else str(name)

    def result_of(self, lines: Sequence[Tree]) -> dict[str, Any]:
        # The last line has the step, the training loss, and the scores on validation.
        line = lines[-1] if lines else {}
        scores = {name[4:]: line[name] for name in line if name.startswith("val_")}
        return {
            "step": line.get("step"),
            "train_loss": line.get("train_loss"),
            "validation": scores,
        }

    def share_done(self, line: Tree) -> float:
        train = self.tree["train"]
        if train["steps"] is not None:
            return float(line["step"] / train["steps"])
        if train["examples"] is not None:
            return float(line["step"] * train["batch"] / train["examples"])
        return float(line["epoch"] / train["epochs"])

    def worst(self, metric: Metric) -> float | None:
        return metric.chance(self.guesses)

    @property
    def effective(self) -> dict[str, Any]:
        """The tree without what has no effect in it: keys that nothing reads and, where the run
        takes no steps, keys of how steps are taken."""
        tree = without_idle(self.tree)
        if self.trains:
            return tree
        evaluated = {key: value for key, value in tree["eval"].items() if key != "every"}
        is_cut = tree["data"].get("cache") == "encoded"  # by the style of whole pictures
        style = {key: v for key, v in tree["augment"].items() if is_cut and key == "style"}
        return {
            **{key: value for key, value in tree.items() if key != "optim"},
            "train": {key: tree["train"][key] for key in ("precision", "deterministic")},
            "augment": tree["augment"] if evaluated.get("augment") else style,
            "eval": evaluated,
        }


def as_read(tree: Tree) -> dict[str, Any]:
    """Return the tree of a run, and of its ancestors in it, without the keys of `optim` that only
    other optimisers read."""
    reduced_tree = dict(tree)
    if "optim" in tree:
        moves = OPTIMIZERS.get(str(tree["optim"]["name"]))
        all_keys = {key for optimizer in OPTIMIZERS.values() for key in optimizer.keys}
        idle = all_keys - {*(moves.keys if moves else ())}
        reduced_tree["optim"] = {
            key: value for key, value in tree["optim"].items() if key not in idle
        }
    if tree.get("parent") is not None:
        reduced_tree["parent"] = as_read(tree["parent"])
    return reduced_tree


def _may_split(train: Tree) -> bool:
    """Return whether a batch may be four micro-batches or more, whose gradients are summed in a
    tree."""
    micro = train["micro_batch"]
    return micro == "auto" or (micro is not None and train["batch"] >= 4 * micro)


def _identity_fields(section: str, settings: Tree) -> dict[str, Any]:
    """Return the fields of a section that are part of the id, but for the sets of `eval.also`."""
    section_type = _type_of(section, settings)
    defaults = added_fields(section_type) if section in SECTIONS else {}
    fields = {}
    for name, value in _without_keys(settings, _extra_keys(section_type)).items():
        is_default = name in defaults and value == defaults[name]
        if not is_default and (section, name) != ("eval", "also"):
            fields[name] = value
    return fields


def _extra_keys(section_type: Any) -> set[str]:
    """Return the fields of a section that are not part of the id."""
    keys = field_keys(section_type)
    return {name for name, key in keys.items() if key.place or not key.identity}


def _place_keys(section: str, settings: Any) -> list[str]:
    """Return the keys of a section that hold the path of a file or folder."""
    if not isinstance(settings, Mapping) or section not in (*SECTIONS, *CHOICES):
        return []
    keys = field_keys(_type_of(section, settings))
    return [name for name in settings if name in keys and keys[name].place]


def _moved(place: Any, folder: str, origin: str) -> Any:
    return folder if place == origin else place


def _without_keys(settings: Tree, keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in keys}


def _type_of(section: str, settings: Tree) -> Any:
    """Return the class whose fields a section of a run's tree has. Raises LookupError for an
    unknown section."""
    if section in CHOICES:
        return Plugin
    if section == "model" and "name" in settings:
        return Whole
    return SECTIONS[section]


# --- Runs of the user's own training --------------------------------------------------------------

JUDGED_BY = ("key", "direction", "range", "chance")  # keys of a metric by which results are judged
READ_FROM = ("result", "predictions")  # keys of a program that say where its result is read
STARTED_WITH = ("env", "cwd", "stdin")  # keys of a program that say how it is started


def _judged_by(metric: Tree) -> dict[str, Any]:
    """Return what of a declared metric decides its number."""
    keys = [*JUDGED_BY, own.RESULT_KEY] if own.RESULT_KEY in metric else JUDGED_BY
    return {key: metric[key] for key in keys}


class OwnSpec(RunSpec):
    """The spec of a run that a function or program of the user's trains, or that was trained
    elsewhere: the sections of an `OwnRun`."""

    @property
    def trainer(self) -> str:
        """The trainer: "module:function", the command of a program, or "imported SHEET"."""
        return str(self.tree[own.TRAINER]["name"])

    @property
    def identity(self) -> str:
        # The places of files, and the names and formats of metrics, change no number.
        tree = self.tree
        content = {
            own.TRAINER: tree[own.TRAINER],
            "code": {key: tree["code"][key] for key in ("files", "packages")},
            "metrics": [_judged_by(metric) for metric in tree["metrics"]],
        }
        if self.is_command:
            program = tree["code"]["program"]
            content["program"] = {
                key: program[key] for key in (*READ_FROM, *STARTED_WITH) if key in program
            }
            if flags := self.flags:
                content["flags"] = flags
            content["data"] = tree["code"]["data"]
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    @property
    def places(self) -> list[str]:
        folder = self.tree["code"]["folder"]
        return [] if folder is None else [folder]

    def without_places(self) -> Self:
        return type(self)({**self.tree, "code": {**self.tree["code"], "folder": None}})

    def with_code_in(self, folder: str, origin: str) -> Self:
        code = self.tree["code"]
        place = _moved(code["folder"], folder, origin)
        return type(self)({**self.tree, "code": {**code, "folder": place}})

    @property
    def is_command(self) -> bool:
        return "program" in self.tree["code"]

    @property
    def wants_torch(self) -> bool:
        # A program has an interpreter of its own; so has a function, unless it may be forked.
        return self.tree["code"]["fork_safe"] and not self.is_command

    @property
    def flags(self) -> dict[str, str]:
        """The word of each flag of a program, by its key."""
        keys = self.tree["keys"]
        return {key: keys[key]["flag"] for key in keys if "flag" in keys[key]}

    @property
    def is_imported(self) -> bool:
        return self.trainer.startswith(own.IMPORTED)

    @property
    def task_name(self) -> str:
        # Runs that measure the same in the same way share it.
        content = json.dumps(self.tree["metrics"], sort_keys=True)
        keys = ", ".join(metric["key"] for metric in self.tree["metrics"])
        return f"trainer ({keys}; declared as {own.code_file_hash(content.encode())[:6]})"

    @property
    def task(self) -> TaskChoice:
        return own.task(self.trainer, self.tree["metrics"], of_sheet=self.is_imported)

    @property
    def trains(self) -> bool:
        return True

    def marks_examples(self, metric: str) -> bool:
        # A program, or a sheet, declares this by a first metric in %.
        code = self.tree["code"]
        if self.is_command:
            predicts = code["program"]["predictions"]
        else:
            predicts = self.is_imported and code.get(own.PREDICTS)
        main_metric = self.tree["metrics"][0]
        return bool(predicts) and (main_metric.get("key"), main_metric.get("unit")) == (metric, "%")

    def result_of(self, lines: Sequence[Tree]) -> dict[str, Any]:
        # The last line is that of the test. The last values of the lines before are on validation.
        keys = [metric["key"] for metric in self.tree["metrics"]]
        test_line = lines[-1] if lines else {}
        test = {key: test_line[f"test_{key}"] for key in ("n", *keys) if f"test_{key}" in test_line}
        return {
            "step": test_line.get("step"),
            "validation": own.last_validation(keys, lines[:-1]),
            "test": test,
            "collapsed": own.no_better_than_chance(
                self.tree["metrics"][0], test.get(keys[0], math.nan)
            ),
        }

    def share_done(self, line: Tree) -> float:
        return 1.0  # only its trainer knows how long that is

    def worst(self, metric: Metric) -> float | None:
        # Chance, else the worse end of the range.
        declarations = {declaration["key"]: declaration for declaration in self.tree["metrics"]}
        declaration = declarations[metric.key]
        if declaration["chance"] is not None:
            return cast(float, declaration["chance"])
        low, high = declaration["range"] or (None, None)
        return cast(float | None, low if declaration["direction"] == "more" else high)
