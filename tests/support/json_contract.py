"""docs/json.md as a contract: `check_object` compares a document with the keys of its section."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "json.md").read_text()
PLAIN = {
    "text": (str,),
    "number": (int, float),
    "whole": (int,),
    "yes/no": (bool,),
    "tree": (dict,),
}


class Type(NamedTuple):
    """`of`: what a list, a map or a pair holds; `name`: of an object, or a plain type."""

    name: str
    of: Type | None = None
    null: bool = False
    absent: bool = False

    @classmethod
    def read(cls, text: str) -> Type:
        bare = text.removesuffix(" or absent")
        core = bare.removesuffix(" or null")
        about = {"null": core != bare, "absent": bare != text}
        if found := re.fullmatch(r"(list|map|pair) of (.+)", core):
            return cls(found[1], cls.read(found[2]), **about)
        if found := re.fullmatch(r"\[(\w+)\]\(#\1\)", core):
            return cls(f"#{found[1]}", **about)
        assert core in PLAIN, text
        return cls(core, **about)


def _sections() -> dict[str, dict[str, Type]]:
    """Name of a command or an object -> its keys."""
    parts = re.split(r"^##+ `([^`]+)`$", PAGE, flags=re.MULTILINE)[1:]
    row = re.compile(r"^\| `([^`]+)` \| (.+?) \| .*\|$", re.MULTILINE)
    return {
        name: {key: Type.read(of) for key, of in row.findall(text)}
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


SECTIONS = _sections()
Seen = set[tuple[str, str]]  # sections and keys that were printed


ERROR_KEYS = ("error", "place", "fix", "retry")


def check_document(document: Any, section: str, seen: Seen) -> None:
    """The keys of an error may be in any document."""
    assert isinstance(document, dict), document
    if section != "error" and "error" in document:
        error = {key: document[key] for key in (*ERROR_KEYS, "version")}
        check_object(error, "error", "error", seen)
        document = {key: value for key, value in document.items() if key not in ERROR_KEYS}
    check_object(document, section, section, seen)


def check(value: Any, of: Type, place: str, seen: Seen) -> None:
    if value is None:
        assert of.null, f"{place} is null"
    elif of.name.startswith("#"):
        check_object(value, of.name[1:], place, seen)
    elif of.of is None:
        assert isinstance(value, PLAIN[of.name]), f"{place}: {value!r} is no {of.name}"
        assert isinstance(value, bool) == (of.name == "yes/no"), f"{place}: {value!r}"
    else:
        assert isinstance(value, dict if of.name == "map" else list), f"{place}: {value!r}"
        assert of.name != "pair" or len(value) == 2, place
        for inner in value.values() if of.name == "map" else value:
            check(inner, of.of, f"{place}[]", seen)


def check_object(value: Any, section: str, place: str, seen: Seen, inside: str = "") -> None:
    """A dotted key of the page is a key of an object inside."""
    assert isinstance(value, dict), place
    keys = {k.removeprefix(inside): k for k in SECTIONS[section] if k.startswith(inside)}
    heads = {key.partition(".")[0] for key in keys}
    if "*" not in heads:
        assert value.keys() <= heads, f"{place}: not on the page: {value.keys() - heads}"
    for key, inner in value.items():
        here = f"{place}.{key}"
        if key in keys or ("*" in keys and key not in heads):
            whole = keys.get(key) or keys["*"]
            seen.add((section, whole))
            check(inner, SECTIONS[section][whole], here, seen)
        else:
            check_object(inner, section, here, seen, f"{inside}{key}.")
    for head in heads - {"*"} - value.keys():
        of = SECTIONS[section].get(inside + head)
        inner = head == "version" and place != section  # a document has it once
        assert inner or (of is not None and of.absent), f"{place} lacks {head}"
