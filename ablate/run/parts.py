"""The kinds of parts that a run may take from the user's own code, by import path `module:name`:
the table `PART_KINDS`. A row has a kind's key, its template, its contract and its page.

A norm, stem, block or whole model is a section, which holds its settings, version and folder
itself. For every other kind, the value of a key is the import path, and fields next to it hold
these three. A new kind also needs these fields in `sections`, a file of its name in `templates/`, a
section on its page, and a place in the drawing there (`tests/parts_page.py`).

Tasks, designs and formats come from outside this package, too: `ablate_tasks/NAME.py`, in any
folder of Python's path, brings the task NAME. Such a folder is a namespace package, so there may be
several.

Used by plans (run/build.py, run/plugin.py), `ablate new` (planning/templates.py) and the worker
(training/plugin.py). The drawing and table of docs/extending.md are written by tests/parts_page.py;
tests/test_contract.py needs a case for each kind.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from ablate.shared import UserError

_IMPORT_PATH = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"


def is_plugin(name: Any) -> TypeGuard[str]:
    """Return whether a name is an import path, `package.module:Class`."""
    return isinstance(name, str) and re.fullmatch(_IMPORT_PATH, name) is not None


@dataclass(frozen=True)
class PartKind:
    """A kind of part that a run may name by import path.

    name: what `ablate new` calls it; the file of its template. key: the key of a run that names a
    part. line: a line of help. example: the words of a command that tries $name:$Name. heading: of
    its section in docs/extending.md.

    built: the arguments that ablate gives to the class, separated by commas. called: those that it
    gives to the method `method`, or to the function. returns: the result that it expects then.
    keeps_shape: that result has the shape and type of the first argument, which `plan` checks.

    function: a function will do in place of a class. several: the key holds a list; the settings,
    versions and folders are then by name. acts_early: the part acts in the first steps of a
    training. has_roles: it is a module of the shipped model whose parameters start by their roles.
    passed: of the parameters of the class, those that ablate sets by a field of the section, with
    that field. reserved: the fields of the section besides these that are no settings. library:
    the prefix of a library's models, which are no import paths.
    """

    name: str
    key: str
    line: str
    example: str
    heading: str
    built: str
    called: str
    returns: str
    method: str = "forward"
    keeps_shape: bool = False
    function: bool = False
    several: bool = False
    acts_early: bool = True
    has_roles: bool = False
    passed: tuple[tuple[str, str], ...] = ()
    reserved: tuple[str, ...] = ()
    library: str = ""

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]

    @property
    def field(self) -> str:
        return self.key.partition(".")[2] or "name"

    @property
    def is_section(self) -> bool:
        """True if the part is a whole section, which holds its settings itself."""
        return "." not in self.key

    @property
    def page(self) -> str:
        """The section on it of a page, from the root of the repository."""
        return f"docs/extending.md#{self.heading.lower().replace(' ', '-').replace(',', '')}"

    @property
    def computed(self) -> tuple[str, str]:
        """The names of the fields of its version and its folder."""
        return f"{self._prefix}version", f"{self._prefix}folder"

    @property
    def settings(self) -> str:
        """The name of the field of its settings."""
        return f"{self._prefix}settings"

    @property
    def _prefix(self) -> str:
        return "" if self.field == "name" else f"{self.field}_"

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of its fields in the section."""
        return (self.field, self.settings, *self.computed)

    @property
    def call_arguments(self) -> int | None:
        """The number of arguments that ablate passes to a function, whose other parameters are
        settings; None where a function is not accepted."""
        return _number(self.called) if self.function else None

    @property
    def build_arguments(self) -> int | None:
        """The number of arguments that ablate passes by position to a class, whose other parameters
        are settings; None where only keyword-only parameters are."""
        return None if self.is_section else _number(self.built)

    def of_library(self, name: Any) -> bool:
        """Return whether a name means a model of the library."""
        return bool(self.library) and isinstance(name, str) and name.startswith(self.library)

    def accepts(self, name: Any) -> bool:
        """Return whether a name means code of the user's or of an installed package."""
        return self.of_library(name) or is_plugin(name)

    def used(self, tree: Mapping[str, Any]) -> list[UsedPart]:
        """List the parts of this kind that the completed plain tree of a run has by import path."""
        section = tree.get(self.section) or {}
        version, folder = (section.get(key) for key in self.computed)
        if version is None:
            return []
        part_names, settings = section[self.field], section.get(self.settings) or {}
        if self.is_section:
            reserved_keys = (self.field, *self.computed, *self.reserved)
            settings = {key: section[key] for key in section if key not in reserved_keys}
        if not self.several:
            return [UsedPart(self.key, part_names, settings, version, folder)]
        return [
            UsedPart(
                self.key,
                name,
                settings.get(short_name, {}),
                version[short_name],
                (folder or {}).get(short_name),
            )
            for name in part_names or ()
            for short_name in [part_name(name)]
        ]


class ProbeKind(PartKind):
    """Probes, which a run lists by name; `own_probes` has their versions and their folder."""

    def used(self, tree: Mapping[str, Any]) -> list[UsedPart]:
        probes = tree.get("own_probes") or {"versions": {}}
        return [
            UsedPart(self.key, name, {}, probe_version, probes["folder"])
            for name, probe_version in probes["versions"].items()
        ]


def _number(arguments: str) -> int:
    return len(arguments.split(",")) if arguments else 0


@dataclass(frozen=True)
class UsedPart:
    """A part by import path, as a run has it. `folder`: None for an installed package."""

    key: str
    name: str
    settings: Mapping[str, Any]
    version: str
    folder: str | None


def part_name(name: str) -> str:
    """Return the name after the module's, of an import path."""
    return name.partition(":")[2]


TIMM = "timm:"  # how whole models of timm's begin, which are no import paths
_MODULES = "A norm, stem or block of your own"

NORM = PartKind(
    name="norm",
    key="norm",
    line="a norm",
    example="norm=layernorm,$name:$Name",
    heading=_MODULES,
    built="shape",
    called="x",
    returns="tokens (B, N, D) of the shape of its input",
    keeps_shape=True,
    has_roles=True,
)
STEM = PartKind(
    name="stem",
    key="stem",
    line="a stem: images to tokens",
    example="stem=none,$name:$Name",
    heading=_MODULES,
    built="patches, width",
    called="images",
    returns="a token for each patch (B, N, D)",
    has_roles=True,
)
BLOCK = PartKind(
    name="block",
    key="block",
    line="a block of the encoder",
    example="block=vit,$name:$Name",
    heading=_MODULES,
    built="layer",
    called="x",
    returns="tokens (B, N, D) of the shape of its input; tokens are added by model.registers, or "
    "by a stem that says tokens_added",
    keeps_shape=True,
    has_roles=True,
)
ACTIVATION = PartKind(
    name="activation",
    key="model.act",
    line="an activation of the MLPs",
    example="model.act=gelu,$name:$Name",
    heading="An activation of your own",
    built="",
    called="x",
    returns="values of the shape of its input",
    function=True,
)
ATTENTION = PartKind(
    name="attention",
    key="model.attention",
    line="attention: contexts of queries, keys and values",
    example="model.attention=softmax,$name:$Name",
    heading="Attention of your own",
    built="shape",
    called="q, k, v",
    returns="contexts (B, H, N, d) of the shape of q",
    keeps_shape=True,
    has_roles=True,
)
POSITIONS = PartKind(
    name="posemb",
    key="model.posemb",
    line="positions of the patches",
    example="model.posemb=learn,$name:$Name",
    heading="Positions of your own",
    built="shape",
    called="x",
    returns="tokens (B, h*w, D) of the shape of the patches",
    keeps_shape=True,
    has_roles=True,
)
MODEL = PartKind(
    name="model",
    key="model",
    line="a whole model",
    example="model=mu/4,$name:$Name",
    heading="A model of your own",
    built="images, outputs",
    called="images",
    returns="logits (B, outputs)",
    reserved=("input",),
    library=TIMM,
)
OPTIMIZER = PartKind(
    name="optimizer",
    key="optim.name",
    line="an optimiser",
    example="optim.name=adamw,$name:$Name",
    heading="An optimiser of your own",
    built="params",
    called="",
    returns="nothing: it moves the weights",
    method="step",
    passed=(("lr", "lr"), ("weight_decay", "wd")),
)
SCHEDULE = PartKind(
    name="schedule",
    key="optim.schedule",
    line="a schedule of the rate",
    example="optim.schedule=cosine,$name:$name",
    heading="A schedule of your own",
    built="",
    called="step, total",
    returns="the factor on optim.lr",
    method="__call__",
    function=True,
    acts_early=False,
)
LOSS = PartKind(
    name="loss",
    key="train.loss",
    line="a loss",
    example="train.loss=softmax,$name:$name",
    heading="A loss of your own",
    built="",
    called="logits, target",
    returns="the mean over rows",
    function=True,
)
AUGMENTATION = PartKind(
    name="augmentation",
    key="augment.extra",
    line="an augmentation",
    example="augment.extra=null,[$name:$Name]",
    heading="An augmentation of your own",
    built="",
    called="images, draw",
    returns="images (B, H, W, C) of the shape of its input",
    method="__call__",
    function=True,
    several=True,
)
PROBE = ProbeKind(
    name="probe",
    key="probe",
    line="a probe, which measures more of a run than its metrics",
    example="stem=none,dpn probe=[$name:$Name] analysis.metric=$Name:distance",
    heading="A probe of your own",
    built="run, model, total",
    called="steps",
    returns="arrays by name",
    method="arrays",
    several=True,
)
PART_KINDS = (
    *(NORM, STEM, BLOCK, MODEL, PROBE, OPTIMIZER, SCHEDULE, LOSS),
    *(ACTIVATION, ATTENTION, POSITIONS, AUGMENTATION),
)
FIELD_KINDS = tuple(kind for kind in PART_KINDS if not kind.is_section)


def kind_of(key: str) -> PartKind:
    """Return the kind of the parts that a key names, such as "augment.extra"."""
    return next(kind for kind in PART_KINDS if kind.key == key)


def own_parts(key: str, section: Any) -> list[UsedPart]:
    """List the parts that `key`, such as "augment.extra", names by import path in its section of a
    checked run."""
    kind = kind_of(key)
    return kind.used({kind.section: vars(section)})


def own_part(key: str, section: Any) -> UsedPart | None:
    """Return the part that `key`, such as "model.act", names by import path in its section of a
    checked run; None where it names one of ablate's own."""
    return next(iter(own_parts(key, section)), None)


# The constant that each module of a namespace package declares, by the package.
SAYS = {"ablate_tasks": "TASK", "ablate_designs": "DESIGN", "ablate_formats": "FORMAT"}


def names(folder: str) -> list[str]:
    """List the modules of the namespace package, without those named `_NAME`, which only others
    import."""
    modules = (module.name for module in pkgutil.iter_modules(_places(folder)))
    return sorted(name for name in modules if not name.startswith("_"))


def extend(table: dict[str, Any], folder: str, kind: Any) -> None:
    """Add to the table what each module of the namespace package declares, a `kind`, under the
    module's name. Raise UserError for a module that can't be imported, declares none, or has a name
    of ablate's own."""
    for name in names(folder):
        place = f"{folder}/{name}.py"
        if name in table:
            raise UserError(f"{place}: ablate has a {name} of its own; rename the file")
        try:
            brought = getattr(importlib.import_module(f"{folder}.{name}"), SAYS[folder])
        except Exception as error:
            raise UserError(f"{place}: {type(error).__name__}: {error}") from error
        if not isinstance(brought, kind):
            raise UserError(f"{place}: {SAYS[folder]}: expected {kind.__name__}, got {brought!r}")
        table[name] = brought


def files(folder: str) -> Iterator[Path]:
    """Yield every Python file of the namespace package, by name."""
    python_files = (file for place in _places(folder) for file in Path(place).rglob("*.py"))
    yield from sorted(python_files, key=lambda file: file.name)


def _places(folder: str) -> list[str]:
    spec = importlib.util.find_spec(folder)
    return [*(spec.submodule_search_locations or ())] if spec else []
