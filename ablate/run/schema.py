"""The schema of plain trees: the values that each key may have, and the only way from a tree to
values.

What a key declares stands with its field: `lr: Annotated[float, Key("peak rate", above=0)]`. The
type declares the rest, a `Literal` its choices. Constraints between several fields stand in
`checks`.

Used by run/build.py, and by every reader of settings (planning/: data, launchers, loggers, search).
Each section of a run declares its keys with it in run/sections.py.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, get_args, get_origin

from ablate.run.parts import is_plugin
from ablate.shared import (
    LARGEST_INTEGER,
    UserError,
    spelling,
    unknown_value,
)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The bounds of a number; None: no bound. A text and a null are not bounded."""

    above: int | None = None
    least: int | None = None
    below: int | None = None
    most: int | None = None

    def read_checked(self, value: Any, hint: Any, place: str) -> Any:
        """Read a value as `read_value` does, and check its bounds. Raise UserError, also for "???",
        by which a file says that a value must be given."""
        if value == "???":
            raise _missing(place)
        value = read_value(value, hint, place)
        self.check(value, place)
        return value

    def check(self, value: Any, place: str) -> None:
        """Raise UserError, which `place` begins, for a number outside the bounds."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        if (
            (self.above is not None and not value > self.above)
            or (self.least is not None and not value >= self.least)
            or (self.below is not None and not value < self.below)
            or (self.most is not None and not value <= self.most)
        ):
            raise UserError(f"{place}: must be {self}, got {spelling(value)}")

    def __str__(self) -> str:
        words = (
            ("more than", self.above),
            ("at least", self.least),
            ("less than", self.below),
            ("at most", self.most),
        )
        return " and ".join(f"{word} {bound:,}" for word, bound in words if bound is not None)


@dataclass(frozen=True)
class Key(Bounds):
    """The declaration of a key. `line`: its effect, with its unit; `form`: for a list, how one is
    written; `identity`: whether its value is part of a run's id; `place`: whether it is the path of
    a file or folder, which is no part of it either."""

    line: str
    form: str = ""
    identity: bool = True
    place: bool = False


class PlainValue(ABC):
    """A value that files hold as a plain tree."""

    tree: Mapping[str, Any]

    @staticmethod
    @abstractmethod
    def of(tree: Mapping[str, Any]) -> Any:
        """Return the value that a plain tree holds. Nothing is checked."""


@dataclass(frozen=True)
class Param(Bounds):
    """A setting of a choice: its type (as in an annotation), default, a line of help, bounds.

    A setting with a `host` takes, where it is not given (null), the value of that field of `Model`.
    """

    type: Any
    default: Any
    line: str
    host: str | None = None


@functools.cache  # evaluating annotations takes longer than all the rest of `build_run`
def field_types(cls: Any) -> dict[str, Any]:
    """Return the evaluated types of a dataclass' fields."""
    return typing.get_type_hints(cls)


@functools.cache
def field_keys(cls: Any) -> dict[str, Key]:
    """Return the `Key` of each field of a dataclass that has one, by the field's name."""
    return {
        name: annotation
        for name, hint in typing.get_type_hints(cls, include_extras=True).items()
        for annotation in getattr(hint, "__metadata__", ())
        if isinstance(annotation, Key)
    }


@functools.cache
def added_fields(cls: Any) -> dict[str, Any]:
    """Return the defaults of those fields of a dataclass that have one. An id leaves out a field
    with its default."""
    makers = {field.name: field.default_factory for field in dataclasses.fields(cls)}
    factory_defaults = {
        name: make() for name, make in makers.items() if make is not dataclasses.MISSING
    }
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    return factory_defaults | {
        k: value for k, value in defaults.items() if value is not dataclasses.MISSING
    }


@functools.cache
def computed(cls: Any) -> frozenset[str]:
    """Return the fields of a dataclass that are computed from others, as their lines say."""
    return frozenset(
        name for name, annotation in field_keys(cls).items() if annotation.line.endswith("computed")
    )


# The fields next to a key that takes an import path (`parts.FIELD_KINDS`).
Settings = Annotated[Mapping[str, Any] | None, Key("KEY: value of that parameter of module:name")]
Version = Annotated[str | None, Key("of module:name: its code's, or its package's; computed")]
Folder = Annotated[
    str | None,
    Key("where module:name lies; null: an installed package; computed", place=True),
]


# --- From plain trees to values -----------------------------------------------------------------


def check_keys(
    place: str,
    tree: Iterable[Any],
    keys: Collection[str],
    dot: str = ".",
    expectation: str = "a key among",
) -> None:
    """Raise UserError for a key of the tree that is not among `keys`."""
    for key in tree:
        if key not in keys:
            raise unknown_value(f"{place}{dot}{key}", str(key), keys, expectation)


def same_keys(
    place: str,
    tree: Any,
    expected: Collection[str],
    added: Collection[str] = (),
    computed: Collection[str] = (),
) -> None:
    """Raise UserError where `tree` has other keys than those expected. `added`: keys that may be
    missing; `computed`: keys that nobody types, so that no error lists them."""
    if not isinstance(tree, Mapping):
        raise UserError(
            f"{place or 'config'}: expected settings (key: value), got {spelling(tree)}"
        )
    dot = f"{place}." if place else ""
    typed = [name for name in expected if name not in computed]
    check_keys(dot, [key for key in tree if key not in computed], typed, "")
    for name in expected:
        if tree.get(name, "???") == "???" and (name in tree or name not in added):
            raise _missing(f"{dot}{name}")


def _missing(place: str) -> UserError:
    return UserError(f"{place}: missing; give {place}=VALUE")


def read_section(cls: Any, tree: Any, place: str) -> Any:
    """Make a dataclass from its plain tree. Raise UserError, one line with the dotted key, the
    value and what was expected."""
    types = field_types(cls)
    # By its keys alone: a text of a plan may be "???", a key that a file must give may not.
    keys = dict.fromkeys(tree) if isinstance(tree, Mapping) else tree
    same_keys(place, keys, types, added_fields(cls), computed(cls))
    return cls(**{k: read_field(cls, k, tree[k], f"{place}.{k}") for k in types if k in tree})


def read_field(cls: Any, key: str, value: Any, place: str) -> Any:
    """Return the value of a field, read as its type and within its bounds. Raise UserError as
    `read_section` does."""
    annotation, hint = field_keys(cls).get(key), field_types(cls)[key]
    if annotation is None:
        return read_value(value, hint, place)
    if annotation.form and not isinstance(value, list | tuple | None):
        raise UserError(f"{place}: expected {annotation.form}, got {spelling(value)}")
    return annotation.read_checked(value, hint, place)


def read_settings(
    kind: str, params: Mapping[str, Param], tree: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings that `params` describe, read from a section. Raise UserError as
    `read_section` does."""
    return {
        key: param.read_checked(tree.get(key, param.default), param.type, f"{kind}.{key}")
        for key, param in params.items()
    }


def read_value(value: Any, hint: Any, place: str) -> Any:
    """Return `value` as the annotated type. An int is taken for a float, a text such as "20k" for
    an int, a list for a tuple, a mapping for a dataclass; nothing else is guessed. An empty list or
    mapping is read as null, where null is allowed.

    Raise UserError where it is not of that type, or is a number that JSON can't hold.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{place}: expected a finite number, got {spelling(value)}")
    if hint is Any or (hint is str and type(value) is str):
        return value
    options, names = _options_of(hint)
    if value == "pre_post" and "pre+post" in names:  # a shell-friendly spelling
        return "pre+post"
    if value is not None and (parts := _parts(value, options, place)) is not None:
        return parts or (None if type(None) in options else parts)
    if int in options:
        value = _thousands(value)
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise UserError(f"{place}: expected a number of 63 bits, got {value.bit_length()}")
    of_table = str in options and bool(names)  # one of these names, or an import path
    if (value in names and type(value) in map(type, names)) or (of_table and is_plugin(value)):
        return value
    if of_table or (options == (hint,) and names):
        error = unknown_value(place, value, [*names, *["module:name"] * of_table])
        raise UserError(f"{error}{SEVERAL_VALUES if isinstance(value, list) else ''}")
    if type(value) in options:
        return value
    if float in options and type(value) is int:
        return float(value)
    *type_names, final_type = " or ".join(map(_type_name, options)).split(" or ")
    expected = " or ".join(filter(None, (", ".join(type_names), final_type)))
    raise UserError(
        f"{place}: expected {expected}, got {spelling(value)}{_spelling(value, options)}"
    )


@functools.cache  # thousands of files have values of the same few types
def _options_of(hint: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the types that a union joins, or the one type, and the names that they list."""
    options = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    names = tuple(
        name for option in options if get_origin(option) is Literal for name in get_args(option)
    )
    return options, names


def _spelling(value: Any, options: Collection[Any]) -> str:
    """Return how to write here a value as other programs spell it, for an error; "" where there is
    no hint."""
    if isinstance(value, list):
        return SEVERAL_VALUES
    if type(None) in options and value in ("None", "none", "nil", "NULL"):
        return "; write null"
    if int in options and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    if bool in options and isinstance(value, str) and value.lower() in _SWITCHES:
        return f"; write {_SWITCHES[value.lower()]}"
    if str in options and isinstance(value, bool | int | float):
        return "; put a text in quotes"
    return ""


SEVERAL_VALUES = "; several values have no brackets, and in Python they are a tuple"
_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def _parts(value: Any, options: Collection[Any], place: str) -> Any:
    """Return a mapping or a list, read as the first type that fits its kind; None where none
    does."""
    for option in options:
        origin, args = get_origin(option), get_args(option)
        if origin is tuple and isinstance(value, list | tuple):
            of_each = args[:1] * len(value) if args[1] is ... else args
            pairs = zip(value, of_each, strict=True)
            return tuple(
                read_value(part, item_type, f"{place}[{n}]")
                for n, (part, item_type) in enumerate(pairs)
            )
        if origin is Mapping and isinstance(value, Mapping):
            if args == (str, float) and type(None) in options:
                return dict(sorted(_factors(value, place)))
            return {
                int(key) if args[0] is int else read_value(key, args[0], place): read_value(
                    part, args[1], f"{place}.{key}"
                )
                for key, part in value.items()
            }
        if isinstance(option, type) and issubclass(option, PlainValue):
            return option.of(dict(value)) if isinstance(value, Mapping) else None
        if dataclasses.is_dataclass(option):
            return read_section(option, value, place)
    return None


def _factors(tree: Mapping[str, Any], place: str) -> Iterator[tuple[str, float]]:
    """Yield (dotted path, factor) for each factor of a tree, however deeply its paths are
    nested."""
    for key, value in tree.items():
        below = f"{place}.{key}"
        if isinstance(value, Mapping):
            yield from ((f"{key}.{path}", factor) for path, factor in _factors(value, below))
        elif (factor := read_value(value, float, below)) < 0:
            raise UserError(f"{below}: must be at least 0, got {spelling(value)}")
        else:
            yield str(key), factor


def fits_type(value: Any, hint: Any) -> bool:
    """Return whether a JSON value is of the annotated type, at every level."""
    try:
        read_value(value, hint, "")
    except (UserError, ValueError):
        return False
    return True


def _thousands(value: Any) -> Any:
    """Return 20000 for "20k", 1500000 for "1.5M"; any other value unchanged."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?)([kM])", value) if isinstance(value, str) else None
    if number is None:
        return value
    exact = Decimal(number[1]) * {"k": 1000, "M": 1_000_000}[number[2]]
    return int(exact) if exact == int(exact) else value


def _type_name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    return _TYPES.get(hint, str(hint))


_TYPES: dict[Any, str] = {
    **{int: "a whole number", float: "a number", str: "a text", bool: "true or false"},
    **{type(None): "null", list: "a list", tuple[str, ...]: "a list of lines of text"},
    **{Mapping[str, float]: "PATH: number", Mapping[str, Any]: "KEY: value"},
}
