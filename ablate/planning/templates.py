"""Small working files of the user's own, for `ablate new`, and the commands that try them.

Used by `cli/choosing.py`.
"""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from ablate.planning.conf import shipped_folder
from ablate.planning.hydra_app import keys_of
from ablate.shared import (
    PLACEHOLDERS,
    UserError,
    local_files,
    make_folder,
    split_command,
    system,
    unknown_value,
)

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
    "norm": _part("a norm", "norm", "norm=layernorm,$name:$Name"),
    "stem": _part("a stem: images to tokens", "stem", "stem=none,$name:$Name"),
    "block": _part("a block of the encoder", "block", "block=vit,$name:$Name"),
    "activation": _part("an activation of the MLPs", "activation", "model.act=gelu,$name:$Name"),
    "attention": _part(
        "attention: contexts of queries, keys and values",
        "attention",
        "model.attention=softmax,$name:$Name",
    ),
    "posemb": _part("positions of the patches", "posemb", "model.posemb=learn,$name:$Name"),
    "model": _part("a whole model", "model", "model=mu/4,$name:$Name"),
    "optimizer": _part("an optimiser", "optimizer", "optim.name=adamw,$name:$Name"),
    "schedule": _part("a schedule of the rate", "schedule", "optim.schedule=cosine,$name:$name"),
    "loss": _part("a loss", "loss", "train.loss=softmax,$name:$name"),
    "augmentation": _part("an augmentation", "augmentation", "augment.extra=null,[$name:$Name]"),
    "metric": _part(
        "a metric, from predictions", "metric", "stem=none,dpn analysis.metric=$name:$name"
    ),
    "probe": _part(
        "a probe, which measures more of a run than its metrics",
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


def write_template(kind: str, name: str) -> Written:
    """Write the files of a kind into the working folder.

    Raises UserError, before anything is written, for an unknown kind, a name that can't be one, or
    one that something else has: a file, an installed module, what ships.
    """
    if kind not in KINDS:
        raise unknown_value("new", kind, KINDS)
    if kind == "trainer" and " " in name:
        return _write_command(name)
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
            raise UserError(f"new {kind}: {path} exists; choose another name")
        top, *rest = path.parts
        if rest and shipped_folder(top).joinpath(*rest).exists():
            raise UserError(f"new {kind}: a {kind} called {name} ships; choose another name")
    return _write(texts, words["command"])


def _write_command(command: str) -> Written:
    """Write the yaml of a program as a trainer. Raises UserError where that file exists."""
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
    """Return the name of a class: "MyNorm" for my_norm. Capitals stay as they are."""
    parts = filter(None, re.split(r"[_-]", name))
    return "".join(part[0].upper() + part[1:] for part in parts) or name


# --- A program as a trainer, from the words of its command ----------------------------------------

_FLAG = re.compile(r"--?[A-Za-z][\w-]*")
_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?")
_SEED = re.compile(r"((random|rng|manual)_?)?seed")
_FOLDER = re.compile(
    r"(out|output|save|log|run|results?|work|checkpoint)_?(dir|folder|path)?|folder"
)

YAML = """\
# {command}
command: {template}
keys: {keys}
# {{file: a JSON object in the folder}} or {{lines: the last match on the output}}
result: {result}
metrics: {{loss: {{direction: less}}}} # one that the result has; more or less: which is better
{code}"""
FILE, LINES = "{file: result.json}", r"{lines: 'loss=(?P<loss>\S+)'}"
CODE = "code: [{files}] # by default every file that git knows; here is no git repository\n"


@dataclass(frozen=True)
class Declaration:
    """The declaration of a program as a trainer.

    name: of the trainer; text: of its yaml; key, values: what a first sweep may vary.
    """

    name: str
    text: str
    key: str
    values: str


def declare(command: str, folder: Path) -> Declaration:
    """Return the declaration of a command as it is typed.

    The value of each flag becomes a setting; where the flag is called seed or a folder, it becomes
    a placeholder. Raises UserError for a command without words.
    """
    words = split_command(command, "command")
    if not words:
        raise UserError("new trainer: expected a command, such as 'python train.py --lr 0.1'")
    script = next((word for word in words[1:] if re.search(r"\.\w+$", word)), words[0])
    keys: dict[str, Any] = {}
    template: list[str] = []
    flag = ""
    for n, word in enumerate(words):
        name, equal, value = word.partition("=")
        if equal and re.fullmatch(r"(--?)?[\w.-]+", name):
            template.append(f"{name}={_place(name, value, keys)}")
            flag = ""
        elif flag and not _FLAG.fullmatch(word):
            template.append(_place(flag, word, keys))
            flag = ""
        elif n and (_FOLDER.fullmatch(word) or _NUMBER.fullmatch(word)):
            template.append(_place(word if _FOLDER.fullmatch(word) else f"arg{n}", word, keys))
        else:
            template.append(word.replace("{", "{{").replace("}", "}}"))
            flag = word if _FLAG.fullmatch(word) and word != "-m" and word != "-c" else ""
    numbers = [key for key, value in keys.items() if isinstance(value, int | float)]
    key = next(iter([*numbers, *keys]), "")
    values = f"{keys[key]},{_double(keys[key])}" if key else ""
    keys_text = "{" + ", ".join(f"{name}: {_yaml(value)}" for name, value in keys.items()) + "}"
    code = _files(folder, script)
    if code and "hydra.main" in (folder / script).read_text(errors="replace"):
        plain = [word for word in template if "=" not in word]
        template = [*plain, "{overrides}", "seed={seed}", "hydra.run.dir={folder}"]
        declares, _ = keys_of(words, {})
        keys_text, code = "hydra", [*code, "'conf/**/*.yaml'"]
        groups = {
            name: declaration["choices"]
            for name, declaration in declares.items()
            if "choices" in declaration
        }
        several = {name: ",".join(options) for name, options in groups.items() if len(options) > 1}
        key, values = next(iter(several.items()), (key, values))
    in_git = system.ask_git("ls-files", cwd=folder) is not None
    text = YAML.format(
        command=command,
        template=_yaml(" ".join(map(_quoted, template))),
        keys=keys_text,
        result=FILE if any("{folder}" in word for word in template) else LINES,
        code="" if in_git or not code else CODE.format(files=", ".join(code)),
    )
    stem = re.sub(r"\W", "_", Path(script).stem) or "program"
    return Declaration(stem, text, key, values)


def _files(folder: Path, script: str) -> list[str]:
    """Return the script and the modules of the folder that it imports; [] where it is no file."""
    if not (folder / script).is_file():
        return []
    if not script.endswith(".py"):
        return [script]
    files = local_files(folder / script, folder)
    return [file.relative_to(folder).as_posix() for file in files]


def _place(flag: str, value: str, keys: dict[str, Any]) -> str:
    """Return the placeholder of a flag's value, and add it to `keys` where it is a setting."""
    from yaml import YAMLError, safe_load

    name = re.sub(r"\W", "_", flag.lstrip("-"))
    if _SEED.fullmatch(name) or (name == "s" and value.isdecimal()):
        return "{seed}"
    if _FOLDER.fullmatch(name) or name == "o":
        return "{folder}"
    if name in PLACEHOLDERS or not name.isidentifier() or name == "name":
        name = f"{name}_"
    try:
        keys[name] = float(value) if "e" in value and _NUMBER.fullmatch(value) else safe_load(value)
    except YAMLError:
        keys[name] = value
    if not isinstance(keys[name], bool | int | float | str):
        keys[name] = value
    return f"{{{name}}}"


def _double(value: Any) -> Any:
    """Return another value for a setting: twice a number, the opposite of a truth value."""
    if isinstance(value, bool):
        return str(not value).lower()
    return 2 * value if isinstance(value, int | float) else f"{value}2"


def _quoted(word: str) -> str:
    """Return a word as a shell reads it, with placeholders as they are."""
    return word if re.fullmatch(r"[\w{}=./:,@%+-]+", word) else shlex.quote(word)


def _yaml(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_./][\w {}=./@%+-]*", value):
        return value if value.lower() not in ("true", "false", "null", "yes", "no") else repr(value)
    return json.dumps(value)
