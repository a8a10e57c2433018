"""A training loop of the user's own, declared by `conf/trainer/NAME.yaml` and read as text: nothing
of it runs here.

    name: mytrain:main   # def main(settings, run), of mytrain.py where the user works
    keys: {width: 64, lr: 0.003, act: {default: relu, choices: [relu, gelu]}}
    metrics: {accuracy: {direction: more, unit: "%", range: [0, 1], chance: 0.1}}
    fork_safe: false

A hash of its file and of every file of that folder that it imports is in the id of its runs, and so
are the versions of the distributions that these files import.

Used by plans (planning/compose.py, run/build.py) and by workers of the user's trainers
(training/own/work.py, training/own/command.py). A new field of the yaml also needs its name in
`FIELDS` (of a command: in `Program` of run/program.py) and its use in training/own/.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ablate.run import program
from ablate.run.fingerprint import FINGERPRINTS_FILE, FileHashes
from ablate.run.own import (
    RESULT_KEY,
    TRAINER,
    code_file_hash,
    declared_metric,
)
from ablate.run.parts import is_plugin
from ablate.run.run import OwnRun, Run
from ablate.run.schema import check_keys, read_field, read_value, same_keys
from ablate.run.source import distributions, find_definition, find_source, local_files
from ablate.run.spec import OwnSpec
from ablate.shared import UserError, unknown_value

FIELDS = ("name", "keys", "metrics", "fork_safe")
COMMAND_FIELDS = ("keys", "metrics", *program.FIELDS)
KEY_FIELDS = ("default", "type", "choices", "nullable", "flag")
TYPES = {"int": int, "float": float, "bool": bool, "str": str, "list": list}
EXAMPLE = "metrics: {accuracy: {direction: more, unit: '%', range: [0, 1]}}"
_KEY = re.compile(r"[^\W\d]\w*([./][^\W\d]\w*)*")  # dotted, of a Hydra application
FORM = "{default: VALUE, type: int|float|bool|str|list, choices: [...], nullable: true}"


def build_own(spec: OwnSpec) -> OwnRun:
    """Build a validated `OwnRun` from its spec. Raise UserError, one line with the dotted key."""
    tree = spec.tree
    trainer, keys = tree[TRAINER], tree["keys"]
    same_keys(TRAINER, trainer, ["name", *keys])
    seed = read_field(Run, "seed", tree["seed"], "seed")
    settings = {key: _checked(trainer[key], keys[key], f"{TRAINER}.{key}") for key in keys}
    if spec.is_command:
        overrides = tree["code"].get("overrides")
        if overrides is not None:  # all other settings stay in the application's own configuration
            program.check_settings({word.partition("=")[0]: word for word in overrides})
        else:
            program.check_settings(settings)
    section = {"name": trainer["name"], **settings}
    return OwnRun(section, dict(keys), tuple(tree["metrics"]), dict(tree["code"]), seed)


def _checked(value: Any, declaration: Mapping[str, Any], place: str) -> Any:
    """Return the value of a setting, read as the type that its key declares."""
    if value is None and declaration["nullable"]:
        return None
    if "flag" in declaration and value in ("on", "off"):
        return value == "on"
    choices = declaration["choices"]
    if choices is not None and isinstance(choices[0], str) and not isinstance(value, str):
        # A sweep file's `False` is a truth value, where a choice is the text "False".
        json_text = json.dumps(value).lower()
        value = next((choice for choice in choices if choice.lower() == json_text), value)
    kind: Any = TYPES[declaration["type"]] if choices is None else Literal[tuple(choices)]
    return read_value(value, kind | None if declaration["nullable"] else kind, place)


# --- What a yaml declares -----------------------------------------------------------------------


def declared_tree(
    name: str, section: Any, settings: Mapping[str, Any], of_hydra: bool = False
) -> dict[str, Any]:
    """Return the tree of a run, without its code's hashes and its seed, from the section that
    `conf/trainer/NAME.yaml` makes and the given settings (`trainer.KEY`). of_hydra: whether its
    keys are those that a Hydra application has. Raise UserError, one line."""
    if not isinstance(section, Mapping):
        raise UserError(f"{TRAINER}: conf/trainer/{name}.yaml: expected name:, keys:, metrics:")
    is_program = "command" in section
    fields = COMMAND_FIELDS if is_program else FIELDS
    check_keys(TRAINER, section, fields, expectation=f"in conf/trainer/{name}.yaml one of")
    function = section["command"] if is_program else section.get("name")
    if not (is_program or is_plugin(function)):
        raise UserError(
            f"{TRAINER}.name: expected module:function, got {function!r}; a program has command: "
            f"instead"
        )
    keys, defaults = {}, {}
    for key, declaration in _mapping(section.get("keys", {}), "keys").items():
        if not (of_hydra or (isinstance(key, str) and _KEY.fullmatch(key))) or key == "name":
            raise UserError(f"{TRAINER}.keys.{key}: expected a name such as width, got {key!r}")
        keys[key], defaults[key] = _key(key, declaration)
    metrics = _mapping(section.get("metrics", {}), "metrics")
    if not metrics:
        raise UserError(
            f"{TRAINER}.metrics: missing; conf/trainer/{name}.yaml has to declare what is "
            f"measured, such as {EXAMPLE}"
        )
    if "accuracy" in [*metrics][1:]:  # as --show calls the first one
        raise UserError(f"{TRAINER}.metrics.accuracy: goes first, or is called otherwise")
    check_keys(TRAINER, settings, keys, expectation=f"a key of conf/trainer/{name}.yaml, among")
    code: dict[str, Any] = {
        "fork_safe": read_value(section.get("fork_safe", False), bool, f"{TRAINER}.fork_safe")
    }
    # A list: which is the first counts, and JSON sorts keys.
    declarations = [declared_metric(key, metric) for key, metric in metrics.items()]
    if is_program:
        declares = program.read_program(
            {key: section[key] for key in program.FIELDS if key in section}
        )
        program.check_program(declares, keys, declarations)
        function = program.command_text(declares.command)
        code = {"fork_safe": True, "program": declares.plain}
    elif keyed := [metric["key"] for metric in declarations if RESULT_KEY in metric]:
        raise UserError(
            f"{TRAINER}.metrics.{keyed[0]}.key: is for a program; a function gives "
            f"run.result({keyed[0]}=...)"
        )
    return {
        TRAINER: {"name": function, **defaults, **settings},
        "keys": keys,
        "metrics": declarations,
        "code": code,
    }


def undeclared(name: str) -> UserError:
    """Make the error for a function that no yaml declares."""
    stem = name.partition(":")[0].rpartition(".")[2]
    return UserError(
        f"{TRAINER}: {name}: has to be declared: write `name: {name}`, `keys: {{...}}` and "
        f"`{EXAMPLE}` into conf/trainer/{stem}.yaml, and give trainer={stem}"
    )


def _mapping(section: Any, field: str) -> Mapping[Any, Any]:
    if not isinstance(section, Mapping):
        raise UserError(f"{TRAINER}.{field}: expected {{name: ...}}, got {section!r}")
    return section


def _key(key: str, declaration: Any) -> tuple[dict[str, Any], Any]:
    """Return (the values that a setting may have, its default)."""
    place = f"{TRAINER}.keys.{key}"
    if not isinstance(declaration, Mapping):
        declaration = {"default": declaration}
    check_keys(place, declaration, KEY_FIELDS)
    if "flag" in declaration:
        return _flag(declaration, place)
    default = declaration.get("default", "???")
    choices = declaration.get("choices")
    if choices is not None and (not isinstance(choices, list) or not choices):
        raise UserError(f"{place}.choices: expected a list of values, got {choices!r}")
    kinds = {kind: name for name, kind in TYPES.items()}
    example = choices[0] if choices else default
    name = declaration.get("type", kinds.get(type(example)) if example != "???" else None)
    if name is None:
        reason = "null has no type" if default is None else "it has no default"
        raise UserError(f"{place}: {reason}: write {FORM}")
    if name not in TYPES:
        raise unknown_value(f"{place}.type", name, TYPES)
    nullable = read_value(declaration.get("nullable", default is None), bool, f"{place}.nullable")
    domain = {"type": name, "choices": choices, "nullable": nullable}
    if default != "???":
        default = _checked(default, domain, f"{place}.default")
    return domain, default


def _flag(declaration: Mapping[str, Any], place: str) -> tuple[dict[str, Any], bool]:
    """Return (the values of a flag, its default). It is a word of the command, such as --amp, that
    is there or not."""
    for key in declaration:
        if key not in ("flag", "default"):
            raise UserError(
                f"{place}.{key}: a flag has {{flag: --WORD, default: true}} and no more"
            )
    flag = read_value(declaration["flag"], str, f"{place}.flag")
    if not flag:
        raise UserError(f"{place}.flag: expected a word such as --amp, got ''")
    domain = {"type": "bool", "choices": None, "nullable": False, "flag": flag}
    return domain, _checked(declaration.get("default", False), domain, f"{place}.default")


# --- Its code -----------------------------------------------------------------------------------


def code_of(spec: OwnSpec, folder: Path, store: Path) -> dict[str, Any]:
    """Return what a declared spec's `code` says of its files in `folder`: hashes of `files` by
    path, versions of `packages`, and the folder itself.

    The files of a command are those of `program.code_of`; it has no packages, but hashes of its
    `data`. The files of a function are those of `local_files`. Raise UserError where there is no
    such file or function, and for a file that is no Python.
    """
    if spec.is_command:
        declares = program.program_of(spec)
        program.check_folder(declares, folder)
        data = program.data_files(declares, folder)
        return {
            "files": program.code_of(declares, folder, store),
            "packages": {},
            "data": data_hashes(data, folder, store / FINGERPRINTS_FILE.parent),
            "folder": str(folder),
        }
    name = spec.trainer
    main_file = find_source(TRAINER, name, folder)
    files = local_files(main_file, folder)
    _check_function(name, main_file)
    hashes = {
        file.relative_to(folder).as_posix(): code_file_hash(file.read_bytes()) for file in files
    }
    return {
        "files": dict(sorted(hashes.items())),
        "packages": distributions(files, folder),
        "folder": str(folder),
    }


def data_hashes(data: Sequence[str], folder: Path, cache: Path) -> dict[str, str]:
    """Return the sha256 of each of these files of the folder. Hashes are remembered in the cache of
    a store."""
    if not data:
        return {}
    hashes = FileHashes(cache / FINGERPRINTS_FILE.name).hashes(
        [str(folder / n) for n in data], f"{TRAINER}.data"
    )
    return dict(zip(data, hashes, strict=True))


def _check_function(name: str, file: Path) -> None:
    function = find_definition(TRAINER, name, file, ast.FunctionDef)
    assert isinstance(function, ast.FunctionDef)
    args = function.args
    if len(args.posonlyargs + args.args) != 2 or any(d is None for d in args.kw_defaults):
        raise UserError(
            f"{TRAINER}: {name}: {file}:{function.lineno}: expected "
            f"def {function.name}(settings, run)"
        )
