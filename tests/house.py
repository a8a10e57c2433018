"""Measures how hard the house is to hold in one's head; test_house.py bounds each figure.

These are thermometers: a name that dodges the list of empty ones, or a door that exports
everything, is worse than what it hides.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

# Participles, pronouns, prepositions and adverbs: as names they don't say what the value is.
EMPTY = """
    about after again all and another any apart aside asked at before begun beside by chosen
    counted declared done drawn driven each else every first found from given gone got grown had
    has have held here how in judged kept known last least left less listed made more most named
    needed next none now obj of one ones only other others over own raised read recalled res
    rounded said same sealed seen sent shared shown so spelled still such taken that them then
    there these thing things this those thrown to told too under unread unseen wanted what
    whatever when where which who whoever whole whose why with within without written yet
"""
EMPTY_NAMES = frozenset(EMPTY.split())
# First words of docstrings that lean on a name instead of saying what a function does.
PRONOUNS = frozenset(
    (
        "as",
        "by",
        "from",
        "in",
        "of",
        "one",
        "that",
        "those",
        "what",
        "whether",
        "which",
        "who",
        "whose",
    )
)
MOST_PARAMETERS = 7
SENTENCE_WORDS = 4
COMPREHENSIONS = (ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)
PACKED = (*COMPREHENSIONS, ast.IfExp, ast.Starred, ast.NamedExpr)


@dataclass(frozen=True)
class File:
    """A module of a package. `path`: relative to the package, `room`: its first folder, or ""."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.path.parts[0] if len(self.path.parts) > 1 else ""


class House:
    """The files of a package in `root`, whose folder has the package's name."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def files(self) -> list[File]:
        texts = ((path, path.read_text()) for path in sorted(self.root.rglob("*.py")))
        return [File(path.relative_to(self.root), text, ast.parse(text)) for path, text in texts]

    @cached_property
    def rooms(self) -> set[str]:
        return {file.room for file in self.files} - {""}

    def _nodes(self) -> Iterator[ast.AST]:
        for file in self.files:
            yield from ast.walk(file.tree)

    @cached_property
    def code_lines(self) -> int:
        """Lines with code: no blank lines, comments or docstrings."""
        total = 0
        for file in self.files:
            lines = {
                number
                for number, line in enumerate(file.text.splitlines(), 1)
                if line.strip() and not line.strip().startswith("#")
            }
            for text in docstrings(file.tree):
                lines -= set(range(text.lineno, text.end_lineno + 1))
            total += len(lines)
        return total

    @cached_property
    def taken(self) -> dict[tuple[str, str], set[str]]:
        """(room, name) -> the files of other rooms that use the name.

        A name of a module that a door shows, as `looks.peek`, counts like any other.
        """
        names: dict[tuple[str, str], set[str]] = defaultdict(set)
        for file in self.files:
            for module, name in _imports(file, self.root.name):
                room = module.split(".")[1]
                if room == file.room or room not in self.rooms:
                    continue
                if self._is_module(f"{module}.{name}") and not self._defines(module, name):
                    for attribute in _attributes(file.tree, name):
                        names[room, f"{name}.{attribute}"].add(str(file.path))
                else:
                    names[room, name].add(str(file.path))
        return names

    @cached_property
    def past_doors(self) -> list[str]:
        """The imports that reach into a room, as "file: module.name"."""
        reaching = []
        for file in self.files:
            for module, name in _imports(file, self.root.name):
                parts = module.split(".")
                if parts[1] in self.rooms - {file.room} and len(parts) > 2:
                    reaching.append(f"{file.path}: {module}.{name}")
        return reaching

    def _is_module(self, dotted: str) -> bool:
        path = self.root.parent.joinpath(*dotted.split("."))
        return path.with_suffix(".py").exists() or (path / "__init__.py").exists()

    def _defines(self, module: str, name: str) -> bool:
        """Does a package bind a name that is also one of its modules?"""
        path = self.root.parent.joinpath(*module.split("."), "__init__.py")
        if not path.exists() or len(module.split(".")) == 2:
            return False
        bound = (node for node in ast.walk(ast.parse(path.read_text())))
        return any(isinstance(node, ast.FunctionDef) and node.name == name for node in bound)

    @cached_property
    def circles(self) -> dict[str, int]:
        """The number of modules of each room that import one another in a circle, also those that
        import only for types or late. A room without one is left out."""
        counts: dict[str, int] = {}
        graph = self._imported_modules()
        for room in self.rooms:
            names = {name for name in graph if name.split(".")[1] == room}
            reached = {name: _reachable(graph, name, names) for name in names}
            if in_circle := [name for name in names if name in reached[name]]:
                counts[room] = len(in_circle)
        return counts

    def _imported_modules(self) -> dict[str, set[str]]:
        """Return the modules that each module of a room imports from its own room; the room's door
        is none of them."""
        graph: dict[str, set[str]] = {}
        for file in self.files:
            parts = [self.root.name, *file.path.with_suffix("").parts]
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            door = f"{self.root.name}.{file.room}"
            if not file.room or module == door:
                continue
            edges = set()
            for source, name in _imports(file, self.root.name):
                target = f"{source}.{name}" if self._is_module(f"{source}.{name}") else source
                if target.startswith(f"{door}."):
                    edges.add(target)
            graph[module] = edges
        return graph

    @property
    def empty_names(self) -> float:
        """The share of all bindings, in %, that don't say what the value is."""
        names = [name for node in self._nodes() for name in _bindings(node) if name != "__all__"]
        empty = [name for name in names if name.strip("_").lower() in EMPTY_NAMES]
        return 100 * len(empty) / len(names)

    @property
    def density(self) -> float:
        """Expressions a line of code, those of annotations aside."""
        nodes = 0
        for file in self.files:
            annotations = {
                id(inner)
                for node in ast.walk(file.tree)
                for field in ("annotation", "returns")
                if isinstance(part := getattr(node, field, None), ast.AST)
                for inner in ast.walk(part)
            }
            nodes += sum(
                isinstance(node, ast.expr) and id(node) not in annotations
                for node in ast.walk(file.tree)
            )
        return nodes / self.code_lines

    @property
    def packed(self) -> float:
        """Comprehensions, ternaries, stars and walruses a thousand lines of code."""
        return 1000 * sum(isinstance(node, PACKED) for node in self._nodes()) / self.code_lines

    @property
    def pronoun_docstrings(self) -> int:
        count = 0
        for file in self.files:
            for text in docstrings(file.tree):
                words = text.value.value.split()
                count += bool(words) and words[0].lower().strip("`,.:;") in PRONOUNS
        return count

    @property
    def long_signatures(self) -> list[str]:
        """Functions with more than MOST_PARAMETERS parameters, `self` aside. A kernel of a GPU
        takes its pointers and sizes one by one, and so does `forward(ctx, ...)` of an autograd
        function its tensors: torch knows their gradients by their positions."""
        functions = []
        for node in self._nodes():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if any("triton.jit" in ast.unparse(each) for each in node.decorator_list):
                    continue
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                names = {argument.arg for argument in arguments} - {"self", "cls"}
                if node.name == "forward" and "ctx" in names:
                    continue
                if len(names) > MOST_PARAMETERS:
                    functions.append(node.name)
        return functions


def pinned_sentences(folder: Path) -> int:
    """Count what pins a sentence in the tests of a folder: asserts that compare a text of
    SENTENCE_WORDS words or more, and `match=` of `pytest.raises`."""
    count = 0
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert):
                count += any(_is_sentence(inner) for inner in ast.walk(node.test))
            elif isinstance(node, ast.keyword):
                count += node.arg == "match"
    return count


def docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            yield node.body[0]


def _is_sentence(node: ast.AST) -> bool:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    return len(node.value.split()) >= SENTENCE_WORDS


def _imports(file: File, package: str) -> Iterator[tuple[str, str]]:
    """(module, name) of every `from PACKAGE.x import y`."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            for alias in node.names:
                yield node.module, alias.name


def _reachable(graph: dict[str, set[str]], start: str, within: set[str]) -> set[str]:
    """Return the names to which one or more edges lead from `start`, all of them `within`."""
    reached: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        name = waiting.pop()
        if name in within and name not in reached:
            reached.add(name)
            waiting += graph[name]
    return reached


def _attributes(tree: ast.AST, module: str) -> set[str]:
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == module
    }


def _bindings(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [node.attr]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    return []
