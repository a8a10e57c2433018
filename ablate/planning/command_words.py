"""The yaml of a program as a trainer, from the words of a command: `ablate new trainer "..."`."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.planning.hydra_app import keys_of
from ablate.shared import git
from ablate.shared.errors import UserError
from ablate.shared.program import PLACES, split
from ablate.shared.source import local_files

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
    """name: of the trainer; text: of its yaml; key, values: what a first sweep may vary."""

    name: str
    text: str
    key: str
    values: str


def declare(command: str, folder: Path) -> Declaration:
    """The declaration of a command as it is typed: the value of each flag becomes a setting, of one
    that is called seed or a folder a placeholder. Raises UserError for a command without words."""
    words = split(command, "command")
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
    said = "{" + ", ".join(f"{name}: {_yaml(value)}" for name, value in keys.items()) + "}"
    code = _files(folder, script)
    if code and "hydra.main" in (folder / script).read_text(errors="replace"):
        plain = [word for word in template if "=" not in word]
        template = [*plain, "{overrides}", "seed={seed}", "hydra.run.dir={folder}"]
        declares, _ = keys_of(words, {})
        said, code = "hydra", [*code, "'conf/**/*.yaml'"]
        groups = {name: each["choices"] for name, each in declares.items() if "choices" in each}
        several = {name: ",".join(options) for name, options in groups.items() if len(options) > 1}
        key, values = next(iter(several.items()), (key, values))
    known = git.ask("ls-files", cwd=folder) is not None
    text = YAML.format(
        command=command,
        template=_yaml(" ".join(map(_quoted, template))),
        keys=said,
        result=FILE if any("{folder}" in word for word in template) else LINES,
        code="" if known or not code else CODE.format(files=", ".join(code)),
    )
    stem = re.sub(r"\W", "_", Path(script).stem) or "program"
    return Declaration(stem, text, key, values)


def _files(folder: Path, script: str) -> list[str]:
    """The script and the modules of the folder that it imports; [] where it is no file."""
    if not (folder / script).is_file():
        return []
    if not script.endswith(".py"):
        return [script]
    files = local_files(folder / script, folder)
    return [file.relative_to(folder).as_posix() for file in files]


def _place(flag: str, value: str, keys: dict[str, Any]) -> str:
    """The placeholder of a flag's value, which is added to the keys where it is a setting."""
    from yaml import YAMLError, safe_load

    name = re.sub(r"\W", "_", flag.lstrip("-"))
    if _SEED.fullmatch(name) or (name == "s" and value.isdecimal()):
        return "{seed}"
    if _FOLDER.fullmatch(name) or name == "o":
        return "{folder}"
    if name in PLACES or not name.isidentifier() or name == "name":
        name = f"{name}_"
    try:
        keys[name] = float(value) if "e" in value and _NUMBER.fullmatch(value) else safe_load(value)
    except YAMLError:
        keys[name] = value
    if not isinstance(keys[name], bool | int | float | str):
        keys[name] = value
    return f"{{{name}}}"


def _double(value: Any) -> Any:
    """Another value that a setting may have."""
    if isinstance(value, bool):
        return str(not value).lower()
    return 2 * value if isinstance(value, int | float) else f"{value}2"


def _quoted(word: str) -> str:
    """As a shell reads it, placeholders as they are."""
    return word if re.fullmatch(r"[\w{}=./:,@%+-]+", word) else shlex.quote(word)


def _yaml(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_./][\w {}=./@%+-]*", value):
        return value if value.lower() not in ("true", "false", "null", "yes", "no") else repr(value)
    return json.dumps(value)
