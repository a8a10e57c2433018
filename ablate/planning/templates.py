"""Small working files of the user's own, for `ablate new`, and the commands that try them.

Used by `cli/choosing.py` (`ablate new`). A new entry of `KINDS`, or of `PART_KINDS` in
`run/parts.py`, also needs its text in the folder `templates/`.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from ablate.planning.conf import shipped_folder
from ablate.planning.program_yaml import declare
from ablate.run import PART_KINDS
from ablate.shared import UserError, make_folder, unknown_value

FOLDER = Path(__file__).resolve().parent.parent / "templates"


@dataclass(frozen=True)
class Starter:
    """The files of a kind that `ablate new` writes, and the command to type then.

    `files`: each template -> where it goes. In all texts, $name is the name as it was given, and
    $Name that of a class.
    """

    line: str
    files: Mapping[str, str]
    command: str


def _part(line: str, template: str, command: str) -> Starter:
    """Return the starter of a Python file in the folder that the user works in."""
    return Starter(line, {f"{template}.py.txt": "$name.py"}, f"ablate plan {command}")


def _file(line: str, template: str, folder: str, command: str) -> Starter:
    return Starter(line, {f"{template}.yaml.txt": f"{folder}/$name.yaml"}, f"ablate {command}")


KINDS: dict[str, Starter] = {
    **{kind.name: _part(kind.line, kind.name, kind.example) for kind in PART_KINDS},
    "metric": _part(
        "a metric, from predictions", "metric", "stem=none,dpn analysis.metric=$name:$name"
    ),
    "trainer": Starter(
        "a training loop",
        {"trainer.py.txt": "$name.py", "trainer.yaml.txt": "conf/trainer/$name.yaml"},
        "ablate plan trainer=$name trainer.lr=1.0,0.1",
    ),
    "sweep": _file("a sweep", "sweep", "sweeps", "plan $name"),
    "recipe": _file("a recipe", "recipe", "conf/recipe", "plan stem=none,dpn recipe=$name"),
    "skill": Starter("a page for agents", {"skill.md.txt": "SKILL.md"}, "ablate plan quickstart"),
    "data": _file("a dataset", "data", "conf/data", "config data=$name"),
}


@dataclass(frozen=True)
class Written:
    """The files, in order, the command that tries them, and what to complete in them."""

    files: tuple[Path, ...]
    command: str
    notes: tuple[str, ...] = ()


NAMELESS = ("skill",)  # kinds whose file has a name of its own


def write_template(kind: str, name: str | None, as_name: str | None = None) -> Written:
    """Write the files of a kind into the working folder.

    `name`: of what is written, or the command of a program, which has a space, a slash or a dot;
    None of a kind in NAMELESS. `as_name`: the trainer's name where `name` is a command.

    Raises UserError, before anything is written, for an unknown kind, a name that can't be one, or
    one that something else has: a file, an installed module, what ships.
    """
    if kind not in KINDS:
        raise unknown_value("new", kind, KINDS)
    if (name is None) != (kind in NAMELESS):
        raise UserError(f"new {kind}: {_name_words(kind)}")
    name = name or kind
    if as_name is not None and not re.fullmatch(r"[A-Za-z]\w*", as_name, re.ASCII):
        raise UserError(f"--as: {as_name!r}: expected a name of letters, digits and _")
    if kind == "trainer" and re.search(r"[ /]|\.\w", name):
        return _write_command(name, as_name)
    if as_name is not None:
        raise UserError(
            f"--as {as_name}: only a trainer by its command has it; here NAME is {name}"
        )
    starter = KINDS[kind]
    if any(place.endswith(".py") for place in starter.files.values()):
        _check_module(kind, name)
    elif not re.fullmatch(r"[A-Za-z][\w-]*", name, re.ASCII):
        raise UserError(f"new {kind}: {name!r}: expected a name of letters, digits, - and _")
    words = {"name": name, "Name": _class_name(name)}
    words["command"] = Template(starter.command).substitute(words)
    texts = {
        Path(Template(place).substitute(words)): Template(
            (FOLDER / template).read_text("utf-8")
        ).substitute(words)
        for template, place in starter.files.items()
    }
    for path in texts:
        if path.exists() or path.is_symlink():
            remedy = "move it away first" if kind in NAMELESS else "choose another name"
            raise UserError(f"new {kind}: {path} exists; {remedy}")
        top, *rest = path.parts
        if rest and shipped_folder(top).joinpath(*rest).exists():
            raise UserError(f"new {kind}: a {kind} called {name} ships; choose another name")
    return _write(texts, words["command"])


def _name_words(kind: str) -> str:
    if kind in NAMELESS:
        return "has a name of its own; leave NAME out"
    return f"give a name, as in `ablate new {kind} my_{kind}`"


def _write_command(command: str, name: str | None) -> Written:
    """Write the yaml of a program as a trainer. Raises UserError where that file exists."""
    declaration = declare(command, Path.cwd(), name)
    path = Path("conf", "trainer", f"{declaration.name}.yaml")
    if path.exists():
        raise UserError(f"new trainer: {path} exists; give another name by --as NAME")
    words = f"trainer={declaration.name} {declaration.try_it or 'seeds=1'}"
    return _write({path: declaration.text}, f"ablate plan {words}", declaration.notes)


def _write(texts: Mapping[Path, str], command: str, notes: tuple[str, ...] = ()) -> Written:
    for path, text in texts.items():
        make_folder(path.parent)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    return Written(tuple(texts), command, notes)


def _check_module(kind: str, name: str) -> None:
    if not (name.isidentifier() and name.isascii() and not keyword.iskeyword(name)):
        raise UserError(
            f"new {kind}: {name!r}: expected a name that Python can import, such as my_{kind}"
        )
    if importlib.util.find_spec(name) is not None and not Path(f"{name}.py").exists():
        raise UserError(f"new {kind}: an installed module is called {name}; choose another name")


def _class_name(name: str) -> str:
    """Return the name of a class: "MyNorm" for my_norm. Capitals stay as they are."""
    parts = filter(None, re.split(r"[_-]", name))
    return "".join(part[0].upper() + part[1:] for part in parts) or name
