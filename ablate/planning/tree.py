"""The plain tree of a run: dotted keys in it, what two of them may not say; and a name as a file
name."""

from __future__ import annotations

import hashlib
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from ablate.planning.overrides import show
from ablate.shared import spec
from ablate.shared.errors import UserError, unknown


def by_arch(tree: dict[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings that a recipe has for one architecture, taken out of the tree.

    Raises UserError where it has none for this one.
    """
    rows = tree.pop("by_arch")
    arch = str(values.get("model.arch", tree["model"]["arch"]))
    if not isinstance(rows, Mapping) or not all(isinstance(r, Mapping) for r in rows.values()):
        raise UserError("by_arch: expected SIZE/PATCH: {key: value, ...}, one per line")
    if arch not in rows:
        raise unknown("model.arch", arch, rows, "for this recipe one of")
    settings: Mapping[str, Any] = rows[arch]
    return settings


def same_length(key: str) -> tuple[str, ...]:
    """The keys that say the same length as `key` does, in another unit."""
    return next((keys for keys in spec.LENGTHS if key in keys), ())


def no_length_in_vain(tree: Mapping[str, Any], height: Mapping[str, int]) -> None:
    """Raises UserError for a length that has no effect beside another, unless that one was given
    over it: in a higher layer (`height`)."""
    for keys in spec.LENGTHS:
        given = [key for key in keys if value_at(tree, key) is not None]
        for key in given[1:]:
            first = given[0]
            if key in height and height[key] >= height.get(first, -1):
                both = height[key] == height.get(first)
                remedy = "give one of them" if both else f"leave it out, or add {first}=null"
                raise UserError(
                    f"{key}: {show(value_at(tree, key))} has no effect beside "
                    f"{first}={show(value_at(tree, first))}; {remedy}"
                )


def no_key_in_vain(tree: Mapping[str, Any], height: Mapping[str, int]) -> None:
    """Raises UserError for a key that the optimiser doesn't read, unless the optimiser was given
    over it."""
    if not isinstance(tree.get("optim"), Mapping):
        return
    for key in (f"optim.{key}" for key in spec.unread(tree)):
        if height.get(key, -1) >= height.get("optim.name", 0):
            raise UserError(
                f"{key}: {show(value_at(tree, key))} has no effect with "
                f"optim.name={value_at(tree, 'optim.name')}; leave it out"
            )


def value_at(tree: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None where there is none. The last part may have dots in it: a
    path of `optim.lr_mult`."""
    part, _, rest = key.partition(".")
    if key in tree or not isinstance(below := tree.get(part), Mapping):
        return tree.get(key)
    return value_at(below, rest)


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; what lies on the way is copied, since composed trees are shared."""
    *parents, last = key.split(".")
    section = tree
    for n, parent in enumerate(parents):
        below = section.get(parent, {})
        if not isinstance(below, dict):
            raise UserError(f"{key}: {'.'.join(parents[: n + 1])} is a value, not a section")
        section[parent] = dict(below)
        section = section[parent]
    section[last] = value


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of all that is no section, or an empty one."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def file_name(name: str) -> str:
    """A sweep's name as a file name: it can't leave its folder, nor be too long for one."""
    quoted = urllib.parse.quote(name, safe="+=@, ")
    if quoted in (".", "..", ""):
        quoted = quoted.replace(".", "%2E") or "%"
    if len(quoted) > 200:
        quoted = f"{quoted[:180]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return quoted
