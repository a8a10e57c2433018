"""No text that a user reads has one of these words: they are no idiomatic English, or they point
at something that the reader has not been shown."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from conftest import REPOSITORY
from options_page import commands

from ablate import cli

# Each is a pattern; a space in it matches any white space, also the end of a line.
WORDS = (
    r"told",
    r"beside",
    r"out of line",
    r"hang(s|ing)? on",
    r"(leave|leaves|leaving)( \S*[^\s.;,]){0,3} away",
    r"(go|goes|going) without",
    r"count(s|ed|ing)? whole",
    r"by images",
    r"(is|are|was|were) asked for",
    r"of those",
    r"whose (it is|they are)",
)
OLD_ENTRIES = {"CHANGELOG.md"}  # which nobody rewrites
PAGES = ("README.md", "docs/**/*.md", "docs/json.keys", "conf/**/*.yaml", "sweeps/*.yaml")
SHIPPED = ("ablate/**/*.html", "ablate/**/*.txt", "ablate/**/*.js")
WHITE = r"[\s#]+"  # a comment goes on in the next line
BANNED = re.compile(rf"\b({'|'.join(WORDS).replace(' ', WHITE)})\b", re.IGNORECASE)
SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def banned_words(text: str, first_line: int = 1) -> Iterator[tuple[int, str]]:
    """Yield (line, word) for each banned word of a text that begins in line `first_line`."""
    for match in BANNED.finditer(text):
        yield first_line + text.count("\n", 0, match.start()), " ".join(match[0].split())


def literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each string that is no docstring. A value of an f-string is `{}`."""
    if isinstance(tree, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in tree.values]
        yield tree.lineno, "".join(parts)
    elif isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        yield tree.lineno, tree.value
    nodes = [*ast.iter_child_nodes(tree)]
    if isinstance(tree, ast.JoinedStr):
        nodes = [part for part in nodes if isinstance(part, ast.FormattedValue)]
    elif isinstance(tree, SCOPES) and ast.get_docstring(tree) is not None:
        nodes.remove(tree.body[0])
    for node in nodes:
        yield from literals(node)


def in_code(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, word) for the strings of a module. A single word is a key of JSON or of code."""
    for line, text in literals(ast.parse(path.read_text())):
        if " " in text:
            yield from ((line, word) for _, word in banned_words(text))


def in_page(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, word) for a page. The keys and classes of docs/json.keys, and a single word in
    code quotes, are names and no text."""
    text = path.read_text()
    if path.suffix == ".keys":
        text = re.sub(r"^(### .*|\w+ (?=\|))", "", text, flags=re.MULTILINE)
    yield from banned_words(re.sub(r"`\w+`", "``", text))


def in_help() -> Iterator[str]:
    """Yield "command: option: word" for what `--help` says."""
    group = typer.main.get_command(cli.app)
    groups = [group, *(each for each in group.commands.values() if hasattr(each, "commands"))]
    for name, command in [*commands(), *((each.name or "ablate", each) for each in groups)]:
        texts = {"": f"{command.help or ''} {command.short_help or ''} {command.epilog or ''}"}
        for param in command.params:
            texts[f"{param.name}: "] = f"{getattr(param, 'help', '') or ''} {param.metavar or ''}"
        for place, text in texts.items():
            yield from (f"{name}: {place}{word}" for _, word in banned_words(text))


def files(*patterns: str) -> list[Path]:
    """Return the files of these patterns that are read today, sorted."""
    paths = {path for pattern in patterns for path in REPOSITORY.glob(pattern)}
    return sorted(p for p in paths if p.relative_to(REPOSITORY).as_posix() not in OLD_ENTRIES)


def places(paths: list[Path], search) -> list[str]:
    """Return "file:line: word" for each banned word of the files."""
    assert paths
    return [
        f"{path.relative_to(REPOSITORY)}:{line}: {word}"
        for path in paths
        for line, word in search(path)
    ]


def test_the_strings_of_the_code():
    assert places(files("ablate/**/*.py"), in_code) == []


@pytest.mark.parametrize("pattern", [*PAGES, *SHIPPED])
def test_the_pages_and_the_files_that_ship(pattern):
    assert places(files(pattern), in_page) == []


def test_the_help_of_every_command():
    assert [*in_help()] == []


def test_what_is_not_read_yet_exists():
    assert {path for path in OLD_ENTRIES if not (REPOSITORY / path).is_file()} == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a line\nand one that is out\n# of line", [(2, "out # of line")]),
        ("Leave `from.seed` away, or not", [(1, "Leave `from.seed` away")]),
        ("leave one of them away", [(1, "leave one of them away")]),
        ("WAS TOLD", [(1, "TOLD")]),
        ("the images asked for are besides those", []),
    ],
)
def test_a_word_is_named_with_its_line(text, expected):
    assert [*banned_words(text)] == expected


def test_a_docstring_and_a_key_are_no_text(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        '"""Told."""\n\ndef f(key):\n    """Stand beside."""\n    print(f"{key} stands "\n'
        '        f"beside {key}")\n    return key["beside"] + ask("was told")\n'
    )
    assert [*in_code(module)] == [(5, "beside"), (7, "told")]
