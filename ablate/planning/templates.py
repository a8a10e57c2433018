"""Small working files of the user's own, for `ablate new`: what each kind is made of, and the
command that tries it."""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from ablate.planning.command_words import declare
from ablate.planning.conf import shipped
from ablate.shared.errors import UserError, unknown
from ablate.shared.files import make_folder

FOLDER = Path(__file__).resolve().parent.parent / "templates"


@dataclass(frozen=True)
class Starter:
    """What `ablate new` writes: each template and where it goes; and what to type then. In all of
    them $name is the name as it was given, $Name that of a class."""

    line: str
    files: Mapping[str, str]
    command: str


def _part(line: str, template: str, command: str) -> Starter:
    """A file of Python in the folder that the user works in."""
    return Starter(line, {f"{template}.py.txt": "$name.py"}, f"ablate plan {command}")


def _file(line: str, template: str, folder: str, command: str) -> Starter:
    return Starter(line, {f"{template}.yaml.txt": f"{folder}/$name.yaml"}, f"ablate {command}")


KINDS: dict[str, Starter] = {
    "norm": _part("a norm", "norm", "norm=layernorm,$name:$Name"),
    "stem": _part("a stem: images to tokens", "stem", "stem=none,$name:$Name"),
    "block": _part("a block of the encoder", "block", "block=vit,$name:$Name"),
    "activation": _part("an activation of the MLPs", "activation", "model.act=gelu,$name:$Name"),
    "model": _part("a whole model", "model", "model=mu/4,$name:$Name"),
    "optimizer": _part("an optimiser", "optimizer", "optim.name=adamw,$name:$Name"),
    "schedule": _part("a schedule of the rate", "schedule", "optim.schedule=cosine,$name:$name"),
    "loss": _part("a loss", "loss", "train.loss=softmax,$name:$name"),
    "augmentation": _part("an augmentation", "augmentation", "augment.extra=null,[$name:$Name]"),
    "metric": _part(
        "a metric, from predictions", "metric", "stem=none,dpn analysis.metric=$name:$name"
    ),
    "probe": _part(
        "a probe: what a training is asked beside its metrics",
        "probe",
        "stem=none,dpn probe=[$name:$Name] analysis.metric=$Name:distance",
    ),
    "trainer": Starter(
        "a training loop",
        {"trainer.py.txt": "$name.py", "trainer.yaml.txt": "conf/trainer/$name.yaml"},
        "ablate plan trainer=$name trainer.lr=1.0,0.1",
    ),
    "sweep": _file("a sweep", "sweep", "sweeps", "plan $name"),
    "recipe": _file("a recipe", "recipe", "conf/recipe", "plan stem=none,dpn recipe=$name"),
    "data": _file("a dataset", "data", "conf/data", "config data=$name"),
}


@dataclass(frozen=True)
class Written:
    """The files, in order, and the command that tries them."""

    files: tuple[Path, ...]
    command: str


def write(kind: str, name: str) -> Written:
    """Write the files of a kind into the folder that we are in.

    Raises UserError, before anything is written, for an unknown kind, a name that can't be one, or
    one that something else has: a file, an installed module, what ships.
    """
    if kind not in KINDS:
        raise unknown("new", kind, KINDS)
    if kind == "trainer" and " " in name:
        return _write_command(name)
    chosen = KINDS[kind]
    if any(place.endswith(".py") for place in chosen.files.values()):
        _check_module(kind, name)
    elif not re.fullmatch(r"[A-Za-z][\w-]*", name, re.ASCII):
        raise UserError(f"new {kind}: {name!r}: expected a name of letters, digits, - and _")
    words = {"name": name, "Name": _class_name(name)}
    words["command"] = Template(chosen.command).substitute(words)
    texts = {
        Path(Template(place).substitute(words)): Template(
            (FOLDER / template).read_text("utf-8")
        ).substitute(words)
        for template, place in chosen.files.items()
    }
    for path in texts:
        if path.exists() or path.is_symlink():
            raise UserError(f"new {kind}: {path} exists; choose another name")
        top, *rest = path.parts
        if rest and shipped(top).joinpath(*rest).exists():
            raise UserError(f"new {kind}: a {kind} called {name} ships; choose another name")
    return _write(texts, words["command"])


def _write_command(command: str) -> Written:
    """Write the yaml of a program as a trainer. Raises UserError where that file is there."""
    declares = declare(command, Path.cwd())
    path = Path("conf", "trainer", f"{declares.name}.yaml")
    if path.exists():
        raise UserError(f"new trainer: {path} exists; rename it, or the program")
    varied = f" trainer.{declares.key}={declares.values}" if declares.key else ""
    return _write({path: declares.text}, f"ablate plan trainer={declares.name}{varied}")


def _write(texts: Mapping[Path, str], command: str) -> Written:
    for path, text in texts.items():
        make_folder(path.parent)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    return Written(tuple(texts), command)


def _check_module(kind: str, name: str) -> None:
    if not (name.isidentifier() and name.isascii() and not keyword.iskeyword(name)):
        raise UserError(
            f"new {kind}: {name!r}: expected a name that Python can import, such as my_{kind}"
        )
    if importlib.util.find_spec(name) is not None and not Path(f"{name}.py").exists():
        raise UserError(f"new {kind}: an installed module is called {name}; choose another name")


def _class_name(name: str) -> str:
    """ "MyNorm" of my_norm; what has capitals keeps them."""
    parts = filter(None, re.split(r"[_-]", name))
    return "".join(part[0].upper() + part[1:] for part in parts) or name
