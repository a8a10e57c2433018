"""Writes docs/json.md: `python tests/json_page.py`, with `.` and `tests` on the path.

docs/json.keys has the words of the page. `### entry = Entry` is an object that is made of a
dataclass, whose fields and types are read here; the other objects stand there as KEY | TYPE |
MEANING. A key whose name says what it is has no meaning.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from conftest import REPOSITORY

from ablate.analysis import across, note, paper, stats, table
from ablate.analysis.english import WRITERS
from ablate.api import stream_answers
from ablate.audit import merge
from ablate.cli.answers import JSON_VERSION
from ablate.planning import cell
from ablate.run import metrics
from ablate.store.events import Status
from ablate.store.progress import BLOCKED

OF_STATS = [
    import_module(f"{stats.__name__}.{name}")
    for name in ("effects", "estimate", "gains", "power", "spread", "until")
]
SCOPE = {
    name: value
    for module in (metrics, *OF_STATS, cell, paper, across, merge, note, stream_answers, table)
    for name, value in vars(module).items()
} | {"Callable": Callable}
PLAIN = {str: "text", int: "whole", float: "number", bool: "yes/no"}
# What the trees leave out, where it is empty or always: `ablate.report.formats.tidy.table_tree`.
ABSENT = {
    "task",
    "groups",
    "on",
    "group",
    "lacking",
    "beside",
    "population",
    "target",
    "difference",
    "between",
}
WITHOUT = {
    "Table": {"choice", "words", "notes", "full_table"},
    "TableColumn": {"arch", "wide"},
    "SummaryLine": {"by_seed"},
}
ONLY = {"Metric": ("name", "unit", "points", "scale", "sign", "neutral", "own")}
MARKS = {"footnotes": "list of whole"}
ADDED = {
    "Table": {
        **dict.fromkeys(("caption", "notes", "footnotes"), "list of [sentence]"),
        "own": "map of [measure] or absent",
    },
    "Sentence": {"text": "text"},
    "StreamLog": {"sentence": "text"},
    "TableRow": MARKS,
    "TableColumn": MARKS,
    "Entry": {**MARKS, "gain_footnotes": "list of whole"},
}


class Key(NamedTuple):
    name: str
    type: str
    meaning: str = ""


def types_of(of: type, named: Mapping[type, str]) -> dict[str, str]:
    """Key -> its type, of the JSON of a dataclass."""

    def said(hint: Any) -> str:
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if origin in (types.UnionType, typing.Union):
            [some] = [part for part in inner if part is not types.NoneType]
            return f"{said(some)} or null"
        if origin is tuple:
            return f"{'list' if inner[-1] is Ellipsis else 'pair'} of {said(inner[0])}"
        if origin is list:
            return f"list of {said(inner[0])}"
        if origin is not None:
            return "tree" if inner[1] is Any else f"map of {said(inner[1])}"
        return PLAIN.get(hint) or f"[{named[hint]}]"

    hints = typing.get_type_hints(of, globalns=SCOPE)
    fields = ONLY.get(of.__name__) or [f.name for f in dataclasses.fields(of)]
    kept = [name for name in fields if name not in WITHOUT.get(of.__name__, ())]
    found = {key: said(hints[key]) for key in kept}
    for key in ABSENT & found.keys():
        found[key] = found[key].removesuffix(" or null") + " or absent"
    return {**found, **ADDED.get(of.__name__, {})}


def rows(lines: list[str], of: type | None, named: Mapping[type, str]) -> Iterator[Key]:
    given = [[part.strip() for part in line.split(" | ")] for line in lines]
    if of is None:
        yield from (Key(*parts) for parts in given)
        return
    meanings = {parts[0]: parts[1] for parts in given}
    found = types_of(of, named)
    assert meanings.keys() <= found.keys(), meanings.keys() - found.keys()
    yield from (Key(key, kind, meanings.get(key, "")) for key, kind in found.items())


def section(text: str, named: Mapping[type, str]) -> Iterator[str]:
    head, *rest = text.strip().splitlines()
    marks, title = head.split(" ", 1)
    name, _, of = title.partition(" = ")
    yield f"{marks} `{name}`"
    yield ""
    for line in rest:
        if line.startswith("~ "):
            yield from (line[2:], "")
    yield from ("| key | type | meaning |", "|---|---|---|")
    if marks == "##":
        yield "| `version` | whole | |"
    lines = [line for line in rest if line and not line.startswith("~ ")]
    for key in rows(lines, SCOPE[of] if of else None, named):
        kind = re.sub(r"\[(\w+)\]", r"[\1](#\1)", key.type)
        yield f"| `{key.name}` | {kind} | {key.meaning + ' ' if key.meaning else ''}|"


def sentence_keys() -> str:
    """Say which values a sentence of each key has."""
    keys = []
    for key, writer in sorted(WRITERS.items()):
        names = ", ".join(inspect.signature(writer).parameters)
        keys.append(f"`{key}` ({names})" if names else f"`{key}`")
    return f"The keys, with the names of their values: {', '.join(keys)}."


def written() -> str:
    """The page."""
    text = (REPOSITORY / "docs" / "json.keys").read_text()
    head, *sections = re.split(r"^(?=##)", text, flags=re.MULTILINE)
    head = head.replace("VERSION", str(JSON_VERSION))
    states = [f"`{state}`" for state in (*typing.get_args(Status), BLOCKED)]
    said = f"A *state* is {', '.join(states[:-1])} or {states[-1]}."
    head = head.replace("STATES", textwrap.fill(said, 130))
    sections = [part.replace("KEYS", sentence_keys()) for part in sections]
    classes = re.findall(r"^##+ (.+) = (\w+)$", text, re.MULTILINE)
    named = {SCOPE[of]: name for name, of in classes}
    parts = ["\n".join(section(part, named)) for part in sections]
    return (
        "\n\n".join(
            [
                "# JSON for scripts",
                "[All pages](README.md)",
                "<!-- Written by tests/json_page.py from the code and docs/json.keys. -->",
                head.strip(),
                *parts,
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    (REPOSITORY / "docs" / "json.md").write_text(written())
