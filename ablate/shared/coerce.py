"""Values as their annotated types: what the plain trees of runs and settings hold."""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, get_args, get_origin

from ablate.shared.errors import UserError, unknown
from ablate.shared.parts import is_plugin


def coerce(value: Any, hint: Any, place: str) -> Any:
    """`value` as the annotated type: an int is taken for a float, nothing else is guessed.

    Raises UserError where it is not of that type, or a number that JSON can't hold.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{place}: expected a finite number, got {value!r}")
    if hint is Any:
        return value
    options = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    names = [name for each in options if get_origin(each) is Literal for name in get_args(each)]
    if value == "pre_post" and "pre+post" in names:  # a shell-friendly spelling
        return "pre+post"
    if isinstance(value, Mapping) and Mapping[str, float] in options:
        return _factors(value, place)
    if isinstance(value, Mapping) and Mapping[str, Any] in options:
        return dict(value) or None
    if value is not None and tuple[str, ...] in options:
        return _names(value, place)
    if int in options:
        value = _thousands(value)
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise UserError(f"{place}: expected a number of 63 bits, got {value.bit_length()}")
    of_table = str in options and bool(names)  # one of these names, or an import path
    if (value in names and type(value) in map(type, names)) or (of_table and is_plugin(value)):
        return value
    if of_table or (options == (hint,) and names):
        raise unknown(place, value, [*names, *["module:name"] * of_table])
    if type(value) in options:
        return value
    if float in options and type(value) is int:
        return float(value)
    *first, last = " or ".join(map(_type_name, options)).split(" or ")
    expected = " or ".join(filter(None, (", ".join(first), last)))
    raise UserError(f"{place}: expected {expected}, got {value!r}")


def _names(value: Any, place: str) -> tuple[str, ...] | None:
    """Import paths, each once; None for none."""
    if not isinstance(value, list | tuple):
        raise UserError(f"{place}: expected a list such as [module:name], got {value!r}")
    for name in value:
        if not is_plugin(name):
            raise UserError(f"{place}: expected names such as module:name, got {name!r}")
    return tuple(value) or None


def _factors(tree: Mapping[str, Any], place: str) -> dict[str, float] | None:
    """{dotted path: factor}, however deep the paths are written; None for none."""
    found: dict[str, float] = {}
    for key, value in tree.items():
        below = f"{place}.{key}"
        if isinstance(value, Mapping):
            inner = _factors(value, below) or {}
            found |= {f"{key}.{path}": factor for path, factor in inner.items()}
        else:
            found[str(key)] = coerce(value, float, below)
            if found[str(key)] < 0:
                raise UserError(f"{below}: must be at least 0, got {value!r}")
    return dict(sorted(found.items())) or None


def _thousands(value: Any) -> Any:
    """20000 for "20k", 1500000 for "1.5M"; whatever else comes is returned as it is."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?)([kM])", value) if isinstance(value, str) else None
    if number is None:
        return value
    exact = Decimal(number[1]) * {"k": 1000, "M": 1_000_000}[number[2]]
    return int(exact) if exact == int(exact) else value


def _type_name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    if hint == Mapping[str, float]:
        return "PATH: number"
    if hint == Mapping[str, Any]:
        return "KEY: value"
    return "null" if hint is type(None) else _TYPES[hint]


_TYPES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
