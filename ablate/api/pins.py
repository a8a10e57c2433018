"""Pinned code: files and functions that no proposal of a stream may change, such as the evaluation.

A pin is FILE or FILE:NAME, each a pattern: 'eval.py', 'data/*', 'train.py:eval*'. NAME matches
functions and classes, also inside others ("Model.evaluate"), and names that are bound at the top of
a file or class by anything else, so that no later assignment replaces a function. An assignment to
something in a name, `Model.evaluate = f` or `LIMITS[0] = 1`, changes that name, wherever it stands.
Local variables, comments and layout don't count. What no assignment of the file does is not seen:
calls such as `setattr` or `LIMITS.append`, objects under a second name, and other files.

Used by api/stream.py.
"""

from __future__ import annotations

import ast
import fnmatch
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablate.shared import UserError, read_file, unknown_value

Functions = (ast.FunctionDef, ast.AsyncFunctionDef)
Definitions = (*Functions, ast.ClassDef)
Contents = Mapping[str, Mapping[str, bytes]]  # pin -> path in the folder -> the file's bytes


def read_pinned(patterns: Sequence[str], folder: Path, store: Path) -> dict[str, dict[str, bytes]]:
    """Read the files that each pin matches in a folder, by their paths there. Those in the store,
    which has copies of pinned files, in `.git` and in `__pycache__` are never pinned. Raises
    UserError for a pin that names no file, or one outside the folder."""
    contents = {}
    for pattern in patterns:
        file_pattern = pattern.partition(":")[0]
        if not Path(file_pattern).parts:
            raise UserError(
                f"--pin {pattern}: expected FILE or FILE:NAME, got no file; for all Python files "
                f"write '**/*.py'"
            )
        if Path(file_pattern).is_absolute() or ".." in Path(file_pattern).parts:
            raise UserError(f"--pin {pattern}: expected files within {folder}")
        *folder_patterns, file_name = Path(file_pattern).parts
        if "**" in file_name or any("**" in part and part != "**" for part in folder_patterns):
            raise UserError(  # Python 3.13 matches files by it, an earlier one none or refuses it
                f"--pin {pattern}: expected '**/' before a file name, such as '**/*.py' or "
                f"'data/**/*'"
            )
        try:
            files = sorted(
                file
                for file in folder.glob(file_pattern)
                if file.is_file()
                and not {".git", "__pycache__"} & {*file.relative_to(folder).parts}
                and not file.parent.resolve().is_relative_to(store.resolve())
            )
        except ValueError as error:
            raise UserError(f"--pin {pattern}: {error}") from error
        contents[pattern] = {file.relative_to(folder).as_posix(): read_file(file) for file in files}
    return contents


def hash_pins(contents: Contents) -> dict[str, dict[str, str]]:
    """Return, for each pin, the hash of everything that it matches, by name. Raises UserError for a
    pin that matches nothing and, where it has a NAME, for a file that is no Python or has a star
    import."""
    pins = {}
    for pattern in contents:
        pins[pattern] = dict(_hashes(pattern, contents[pattern]))
        if not pins[pattern]:
            raise _matches_nothing(pattern, contents[pattern])
    return pins


def check_pins(pins: Mapping[str, Mapping[str, str]], contents: Contents) -> None:
    """Raise UserError where something pinned was changed, removed or added; and as `hash_pins`
    does."""
    for pattern, hashes in pins.items():
        hashes_now = dict(_hashes(pattern, contents[pattern]))
        for name in {**hashes, **hashes_now}:
            if hashes.get(name) != hashes_now.get(name):
                change = "was changed" if name in hashes_now else "was removed"
                change = change if name in hashes else "was added"
                raise UserError(
                    f"{name}: {change}, but {pattern} is pinned: no proposal may change it; undo "
                    f"that, or start another stream"
                )


def _matches_nothing(pattern: str, files: Mapping[str, bytes]) -> UserError:
    file_pattern, _, name_pattern = pattern.partition(":")
    if not files:
        return UserError(f"--pin {pattern}: no such file here; give a path or a pattern within it")
    names = [name for path in files for name in _definitions(_parsed(pattern, path, files[path]))]
    return unknown_value(f"--pin {pattern}", name_pattern, names, f"a name in {file_pattern}:")


def _hashes(pattern: str, files: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    _, colon, name_pattern = pattern.partition(":")
    for path, content in files.items():
        if not colon:
            yield path, hashlib.sha256(content).hexdigest()
            continue
        for name, nodes in _definitions(_parsed(pattern, path, content)).items():
            if fnmatch.fnmatchcase(name, name_pattern):
                text = "\n".join(map(_syntax_text, nodes))
                yield f"{path}:{name}", hashlib.sha256(text.encode()).hexdigest()


def _parsed(pattern: str, path: str, content: bytes) -> ast.Module:
    """Return the syntax tree of a file with pinned names. Raises UserError where it is no Python,
    and for a star import, which may bind any of these names."""
    try:
        tree = ast.parse(content, path)
    except (SyntaxError, ValueError) as error:
        raise UserError(f"--pin {pattern}: {path}: {error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            raise UserError(
                f"{path}, line {node.lineno}: a star import may replace what {pattern} pins; "
                f"import each name, or pin all of {path}"
            )
    return tree


def _syntax_text(node: ast.AST) -> str:
    """Return a syntax tree as text, the same in every version of Python. Fields that are None or an
    empty list are left out, and empty strings within an f-string: versions differ in them."""
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.JoinedStr):
        fields["values"] = [
            part
            for part in node.values
            if not (isinstance(part, ast.Constant) and part.value == "")  # of Python 3.12
        ]
    parts = [
        f"{key}={_field_text(value)}" for key, value in fields.items() if value not in (None, [])
    ]
    return f"{type(node).__name__}({', '.join(parts)})"


def _field_text(value: object) -> str:
    if isinstance(value, ast.AST):
        return _syntax_text(value)
    if isinstance(value, list):
        return f"[{', '.join([_field_text(item) for item in value])}]"
    return ascii(value)  # as repr, whose escapes differ by the version of Unicode


# --- The names of a file --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scope:
    """The body of a module, a class or a function. prefix: of the names that it binds. owner: the
    outermost function around it; without one, the class. local_names: variables of the functions
    around it."""

    prefix: str = ""
    owner: ast.stmt | None = None
    in_function: bool = False
    local_names: frozenset[str] = frozenset()

    def inner(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> _Scope:
        """Return the scope of a function or class that is defined in this one."""
        prefix = f"{self.prefix}{node.name}."
        owner = self.owner if isinstance(self.owner, Functions) else node
        if isinstance(node, ast.ClassDef):
            return _Scope(prefix, owner, False, self.local_names)
        return _Scope(prefix, owner, True, _local_names(node, self.local_names))


def _definitions(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    """Return the statements that define or change each name: all of them, for the last one counts.
    A function that assigns a global name, or something in one, is one of that name's. What replaces
    a class changes the names in it, too."""
    definitions: dict[str, list[ast.stmt]] = {}
    replaced: dict[str, list[ast.stmt]] = {}

    def add(names: Iterable[str], node: ast.stmt) -> None:
        for name in dict.fromkeys(names):
            definitions.setdefault(name, []).append(node)

    def replace(names: Iterable[str], node: ast.stmt) -> None:
        for name in dict.fromkeys(names):
            replaced.setdefault(name, []).append(node)

    def visit(body: Iterator[ast.stmt], scope: _Scope) -> None:
        for node in body:
            bound = [f"{scope.prefix}{name}" for name in _bound_names(node)]
            changed = [*_changed_names(node)]
            if isinstance(node, Definitions):
                for name in bound:
                    if name in definitions:  # it takes the place of the first one
                        replace([name], node)
                add(bound, node)
            elif not scope.in_function:
                add([*bound, *(f"{scope.prefix}{name}" for name in changed)], node)
                replace(bound, node)
            if scope.owner is not None:
                owner = scope.owner if isinstance(scope.owner, Functions) else node
                foreign = (n for n in changed if n.partition(".")[0] not in scope.local_names)
                add(foreign, owner)
                if isinstance(node, ast.Global):
                    add(node.names, scope.owner)
                    replace(node.names, scope.owner)
            visit(_statements(node), scope.inner(node) if isinstance(node, Definitions) else scope)

    visit(_statements(tree), _Scope())
    for name, nodes in definitions.items():
        for outer in _outer_names(name):
            nodes.extend(replaced.get(outer, ()))
    return definitions


def _outer_names(name: str) -> Iterator[str]:
    """Yield a and a.b, those around a.b.c."""
    while name := name.rpartition(".")[0]:
        yield name


def _local_names(
    function: ast.FunctionDef | ast.AsyncFunctionDef, outer_names: frozenset[str]
) -> frozenset[str]:
    """Return the variables that a function has or sees of those around it, and no global ones."""
    given = function.args
    parameters = (*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg)
    names = {parameter.arg for parameter in parameters if parameter is not None}
    global_names: set[str] = set()

    def visit(body: Iterator[ast.stmt]) -> None:
        for node in body:
            names.update(_bound_names(node))
            if isinstance(node, ast.Global):
                global_names.update(node.names)
            if not isinstance(node, Definitions):
                visit(_statements(node))

    visit(_statements(function))
    return (outer_names | names) - global_names


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements directly inside a node, those of its `except` and `case` among them."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.stmt):
            yield inner
        elif isinstance(inner, ast.excepthandler | ast.match_case):
            yield from _statements(inner)


def _expressions(node: ast.AST, is_target: bool = False) -> Iterator[ast.AST]:
    """Yield what a statement holds besides inner statements, and besides the variables of
    comprehensions. `is_target`: the node is in the target of one."""
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.stmt):
            in_target = is_target or (isinstance(node, ast.comprehension) and inner is node.target)
            if not (in_target and isinstance(inner, ast.Name)):
                yield inner
            yield from _expressions(inner, in_target)


def _bound_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds."""
    if isinstance(node, Definitions):
        yield node.name
    for part in _expressions(node):
        match part:
            case ast.alias(name=name, asname=other_name):
                yield other_name or name.partition(".")[0]
            case ast.Name(ctx=ast.Store() | ast.Del()):
                yield part.id
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name


def _changed_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names in which a statement binds or deletes something: `Model.evaluate = f` changes
    Model and Model.evaluate, `LIMITS[0] = 1` LIMITS."""
    for part in _expressions(node):
        match part:
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                yield from _dotted_names(part)
            case ast.Subscript(ctx=ast.Store() | ast.Del()):
                yield from _dotted_names(part.value)


def _dotted_names(node: ast.expr) -> list[str]:
    """Return the names of `a.b.c`: a, a.b and a.b.c; those of `a[0]`: a."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Subscript):
        return _dotted_names(node.value)
    if not isinstance(node, ast.Attribute):
        return []
    outer_names = _dotted_names(node.value)
    return outer_names and [*outer_names, f"{outer_names[-1]}.{node.attr}"]
