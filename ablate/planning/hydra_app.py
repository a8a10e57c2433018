"""The keys of another Hydra application, as its own configuration composes them: `keys: hydra`.

Used by `planning/compose.py` for runs of such a trainer, and by `planning/program_yaml.py` for
`ablate new trainer "COMMAND"`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.planning.conf import composed, hydra_errors, without_ours
from ablate.planning.settings import leaves
from ablate.run import TRAINER, hydra_override, parse_source
from ablate.shared import UserError, unknown_value

WAY_OUT = (
    "install where ablate is what the application needs for that, or write `keys: {KEY: DEFAULT}` "
    "of the keys that you vary, instead of `keys: hydra`"
)
KINDS = {bool: "bool", int: "int", float: "float", str: "str", list: "list"}


@dataclass(frozen=True)
class Composed:
    """The result of composing an application's configuration from overrides.

    options: what each group may be, including groups that its list of defaults lacks; choices: what
    each group is; values: by dotted key; derived: the keys of interpolations; missing: the keys
    that have no value yet.
    """

    options: Mapping[str, Sequence[str]]
    choices: Mapping[str, str]
    values: dict[str, Any]
    derived: Sequence[str]
    missing: Sequence[str]


def keys_of(
    words: Sequence[str], run_settings: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return the declaration of each key of an application, and the overrides of a run.

    A declaration is as a yaml's `keys` has it, with the key's value as default; the overrides are
    the words that give the application what it would not have by itself.

    words: of the command, one of which is the script with `@hydra.main`; run_settings: what is
    set in a run, by group or dotted key. Raises UserError, one line, for a key that the application
    does not have.
    """
    folder, name = main_config(words)
    constants = _constants(words)
    try:
        default = _compose(folder, name, constants)
    except UserError as error:
        raise UserError(f"{error}; {WAY_OUT}") from error
    group_choices = {key: value for key, value in run_settings.items() if key in default.options}
    for key, value in group_choices.items():
        if value not in default.options[key]:
            raise unknown_value(f"{TRAINER}.{key}", value, default.options[key])
    groups = []
    for key, value in group_choices.items():
        if key not in default.choices:
            groups.append(f"+{key}={value}")
        elif default.choices[key] != value:
            groups.append(f"{key}={value}")
    composed = _compose(folder, name, [*constants, *groups])
    settings = {key: value for key, value in run_settings.items() if key not in group_choices}
    keys = [*composed.values, *composed.derived, *composed.missing]
    for key in settings:
        if key not in keys:
            all_keys = [*composed.options, *keys]
            raise unknown_value(f"{TRAINER}.{key}", key, all_keys, "a key among")
    for key in composed.missing:
        if key not in settings:
            raise UserError(f"{TRAINER}.{key}: missing; give {TRAINER}.{key}=VALUE")
    changed_values = {
        key: value
        for key, value in settings.items()
        if key not in composed.values or composed.values[key] != value
    }
    overrides = groups + [hydra_override(key, value) for key, value in changed_values.items()]
    if changed_values:
        _compose(folder, name, [*constants, *overrides])
    declares: dict[str, Any] = {}
    for key, choice in composed.choices.items():
        # An optional default from an interpolation may name a file that does not exist.
        if choice in composed.options[key]:
            declares[key] = {"default": choice, "choices": [*composed.options[key]]}
    for key, value in (composed.values | changed_values).items():
        default_value = composed.values.get(key)
        kind = KINDS.get(type(value if default_value is None else default_value), "str")
        declares[key] = {"default": value, "type": kind, "nullable": default_value is None}
    return declares, overrides


def _constants(words: Sequence[str]) -> list[str]:
    """Return the overrides that the command always has: KEY=VALUE after the script."""
    script = next(n for n, word in enumerate(words) if word.endswith(".py"))
    return [
        word
        for word in words[script + 1 :]
        if "=" in word and "{" not in word and not word.startswith(("-", "hydra."))
    ]


def main_config(words: Sequence[str]) -> tuple[Path, str]:
    """Return the folder and the name of the main config, from the script's `@hydra.main`.

    Raises UserError where the command has no script, or the script no such decorator with plain
    texts.
    """
    script = next((Path(word) for word in words if word.endswith(".py")), None)
    if script is None or not script.is_file():
        raise UserError(f"{TRAINER}.keys: hydra: the command names no script, such as train.py")
    for node in ast.walk(parse_source(script, f"{TRAINER}.keys: hydra: ")):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("hydra.main"):
            arguments = dict(zip(("config_path", "config_name"), node.args, strict=False))
            arguments |= {word.arg: word.value for word in node.keywords if word.arg is not None}
            path = _text(arguments.get("config_path"))
            name = _text(arguments.get("config_name"))
            if path is not None and name is not None:
                return (script.parent / path).resolve(), name.removesuffix(".yaml")
    raise UserError(
        f"{TRAINER}.keys: hydra: {script} has no @hydra.main(config_path=..., config_name=...) of "
        f"plain texts; write the keys: {{KEY: DEFAULT}}"
    )


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _compose(folder: Path, name: str, overrides: list[str]) -> Composed:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.object_type import ObjectType

    config = " ".join([f"{folder}/{name}.yaml", *overrides])
    location = f"{TRAINER}.keys: hydra: {config}"
    with (
        hydra_errors(location),
        without_ours(),
        initialize_config_dir(str(folder), version_base=None),
    ):
        tree, group_choices = composed(name, overrides)
        choices = {key: str(value) for key, value in group_choices.items() if value is not None}
        loader = GlobalHydra.instance().config_loader()
        groups = {*choices, *loader.list_groups("")} - {"hydra"}
        options = {key: loader.get_group_options(key, ObjectType.CONFIG) for key in sorted(groups)}
    values: dict[str, Any] = {}
    missing: list[str] = []
    derived: list[str] = []
    for key, value in leaves(tree):
        if key == "name" or value == {}:  # "name" is ours
            continue
        if value == "???":
            missing.append(key)
        elif "${" in repr(value):
            derived.append(key)
        else:
            values[key] = value
    return Composed(options, choices, values, derived, missing)
