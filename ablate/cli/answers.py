"""The answer of a command to a program: exactly one object on standard output under `--format
json`, also where it fails. All else that the command prints goes to standard error.

Used by cli/__init__.py, which opens an `Answer` for the command, and by every command, which calls
`print_json` once. A new key also needs its line in docs/json.keys, and docs/json.md, which
tests/json_page.py writes.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from ablate.shared import Failure, UserError, to_json

JSON_VERSION = 2  # of the keys in docs/json.md, which says when it grows
ERROR_KEYS = ("error", "place", "fix", "retry")
# Keys that say which object of a list another key is of; `--fields` keeps them with it.
LABELS = ("row", "column", "label", "name", "run", "seed")


class Answer:
    """The object that a command prints, and the stream for it. One is open at a time.

    While it is open, whatever is written to the descriptor of that stream goes to standard error:
    programs that the command starts inherit it.
    """

    current: Answer | None = None

    def __init__(self, stream: TextIO) -> None:
        self.error: UserError | Failure | None = None
        self._stream = stream
        self._tree: dict[str, Any] = {}
        self._fields: tuple[str, ...] = ()
        self._is_printed = False

    def __enter__(self) -> Answer:
        Answer.current = self
        self._context = contextlib.ExitStack()
        with contextlib.suppress(io.UnsupportedOperation):  # a stream in memory
            self._stream = self._context.enter_context(_diverted(self._stream))
        self._context.enter_context(contextlib.redirect_stdout(sys.stderr))
        return self

    def __exit__(self, *exception: object) -> None:
        self._context.close()
        Answer.current = None

    def choose(self, fields: Sequence[str]) -> None:
        """Print these keys alone, and the labels of the objects that have them."""
        self._fields = tuple(fields)

    def add(self, tree: Mapping[str, Any]) -> None:
        """Keep the keys of a tree for the end of the command."""
        self._tree |= tree

    def print(self) -> None:
        """Print the object, with the keys of the error if there is one. It is printed once."""
        if self._is_printed:
            return
        self._is_printed = True
        tree = choose_fields(self._tree, self._fields) if self._fields else self._tree
        error = {} if self.error is None else error_tree(self.error)
        if error and self._fields:
            tree.pop("absent", None)  # it failed before it could say them
        self._stream.write(_document({**tree, **error}))
        self._stream.flush()


@contextlib.contextmanager
def _diverted(stream: TextIO) -> Iterator[TextIO]:
    """Let the descriptor of a stream lead to standard error; yield a stream to where it led. Raises
    io.UnsupportedOperation for a stream without a descriptor."""
    number = stream.fileno()
    stream.flush()
    kept = os.dup(number)  # which no child inherits
    os.dup2(sys.stderr.fileno(), number)
    with open(kept, "w", encoding="utf-8") as kept_stream:
        try:
            yield kept_stream
        finally:
            os.dup2(kept, number)


def asks_for_json(words: Sequence[str]) -> bool:
    """Return whether the words of a command line ask for JSON. It reads the words themselves, since
    those that no command can read are answered in JSON, too."""
    words = words[: words.index("--")] if "--" in words else words
    return "--format=json" in words or ("--format", "json") in itertools.pairwise(words)


def is_for_programs() -> bool:
    """Return whether the command that runs answers in JSON: then nothing is asked."""
    return Answer.current is not None


def print_json(tree: Mapping[str, Any]) -> None:
    """Answer with a plain tree and its version as JSON with sorted keys: the same bytes for the
    same tree. A number that is not finite becomes null. It is printed when the command ends, with
    the keys of the error if it fails; without `--format json` nothing is."""
    if Answer.current is not None:
        Answer.current.add(tree)


def print_json_now(tree: Mapping[str, Any]) -> None:
    """Answer at once: for a command that goes on until somebody ends it."""
    print_json(tree)
    if Answer.current is not None:
        Answer.current.print()


def choose_keys(text: str) -> None:
    """Let the answer have only the keys that `--fields` lists. Raises UserError without
    `--format json`, and where it lists none."""
    if Answer.current is None:
        raise UserError("--fields: chooses keys of JSON; add --format json, or leave it out")
    fields = [field.strip() for field in text.split(",") if field.strip()]
    if not fields:
        raise UserError(f"--fields: expected keys such as gain,verdict, got {text!r}")
    Answer.current.choose(fields)


def error_tree(error: UserError | Failure) -> dict[str, Any]:
    """Return what an answer says of an error. Keys: error, the line; place, fix: parts of it, null
    where it has none; retry: may the same command succeed later."""
    return {
        "error": str(error),
        "place": error.place,
        "fix": error.fix,
        "retry": error.retry,
    }


def choose_fields(tree: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return the tree with the keys in `fields` alone, wherever they are, along with the LABELS of
    their objects. `absent` lists the fields that no object has, but for the version and the keys of
    an error."""
    present = {"version", *ERROR_KEYS}
    part = _part_with(tree, frozenset(fields), present) or {}
    absent = [field for field in fields if field not in present]
    return {**part, "absent": absent} if absent else part


def _part_with(tree: Any, fields: frozenset[str], present: set[str]) -> Any:
    """Return the part of a tree that holds the fields; None where it holds none."""
    if isinstance(tree, Mapping):
        values = {}
        for key, value in tree.items():
            if key in fields:
                present.add(key)
                values[key] = value
            elif (part := _part_with(value, fields, present)) is not None:
                values[key] = part
        labels = {key: tree[key] for key in LABELS if key in tree}
        return {**labels, **values} if values else None
    if isinstance(tree, list | tuple):
        parts = [_part_with(value, fields, present) for value in tree]
        return [part for part in parts if part is not None] or None
    return None


def _document(tree: Mapping[str, Any]) -> str:
    return to_json(_finite({"version": JSON_VERSION, **tree})).decode()


def _finite(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
