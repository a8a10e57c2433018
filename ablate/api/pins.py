"""Pinned code: files and functions that no proposal of a stream may change, such as the evaluation.

A pin is FILE or FILE:NAME, each a pattern: 'eval.py', 'data/*', 'train.py:eval*'. NAME matches
functions and classes, also inside others ("Model.evaluate"), and names that are assigned at the top
of a file, so that no later assignment replaces a function. Comments and layout don't count.

Used by api/stream.py.
"""

from __future__ import annotations

import ast
import fnmatch
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ablate.run import parse_source
from ablate.shared import UserError, read_file, unknown_value

Definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def read_pins(patterns: Sequence[str], folder: Path) -> dict[str, dict[str, str]]:
    """Return, for each pin, the hash of everything that it matches, by name. Raises UserError for a
    pin that matches nothing, and for a file that is no Python where the pin has a NAME."""
    pins = {}
    for pattern in patterns:
        pins[pattern] = dict(_hashes(pattern, folder))
        if not pins[pattern]:
            raise _matches_nothing(pattern, folder)
    return pins


def check_pins(pins: Mapping[str, Mapping[str, str]], folder: Path) -> None:
    """Raise UserError where something pinned was changed, removed or added in a folder."""
    for pattern, hashes in pins.items():
        hashes_now = dict(_hashes(pattern, folder))
        for name in {**hashes, **hashes_now}:
            if hashes.get(name) != hashes_now.get(name):
                change = "was changed" if name in hashes_now else "was removed"
                change = change if name in hashes else "was added"
                raise UserError(
                    f"{name}: {change}, but {pattern} is pinned: no proposal may change it; undo "
                    f"that, or start another stream"
                )


def _matches_nothing(pattern: str, folder: Path) -> UserError:
    file_pattern, _, name_pattern = pattern.partition(":")
    files = [file for file in sorted(folder.glob(file_pattern)) if file.is_file()]
    place = f"--pin {pattern}"
    if not files:
        return UserError(f"{place}: no such file in {folder}; give a path or a pattern within it")
    names = [name for file in files for name in _definitions(parse_source(file, f"{place}: "))]
    return unknown_value(place, name_pattern, names, f"a name in {file_pattern}:")


def _hashes(pattern: str, folder: Path) -> Iterator[tuple[str, str]]:
    file_pattern, colon, name_pattern = pattern.partition(":")
    if Path(file_pattern).is_absolute() or ".." in Path(file_pattern).parts:
        raise UserError(f"--pin {pattern}: expected files within {folder}")
    for file in sorted(folder.glob(file_pattern)):
        if not file.is_file():
            continue
        path = file.relative_to(folder).as_posix()
        if not colon:
            yield path, hashlib.sha256(read_file(file)).hexdigest()
            continue
        for name, nodes in _definitions(parse_source(file, f"--pin {pattern}: ")).items():
            if fnmatch.fnmatchcase(name, name_pattern):
                text = "\n".join(map(ast.dump, nodes))
                yield f"{path}:{name}", hashlib.sha256(text.encode()).hexdigest()


def _definitions(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    """Return the statements that define each name: all of them, for the last one counts."""
    definitions: dict[str, list[ast.stmt]] = {}

    def visit(body: Sequence[ast.stmt], prefix: str) -> None:
        for node in body:
            for name in _names(node):
                definitions.setdefault(f"{prefix}{name}", []).append(node)
            for field in ("body", "orelse", "finalbody"):
                inner = getattr(node, field, None)
                if isinstance(inner, list):
                    inside = f"{prefix}{node.name}." if isinstance(node, Definitions) else prefix
                    visit(inner, inside)
            for handler in getattr(node, "handlers", ()):
                visit(handler.body, prefix)

    visit(tree.body, "")
    return definitions


def _names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, Definitions):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))
