"""The yaml of a program as a trainer, from its command as somebody types it: for `ablate new
trainer "COMMAND"`, of `templates`.

Options become settings, an option without a value a flag, the seed and the folder placeholders.
What was written is played back: filled with its defaults it has to be the typed command, word by
word. Otherwise nothing is written.

Used by `planning/templates.py`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ablate.planning.hydra_app import Composed, HydraApp
from ablate.planning.typed_command import read_typed_command
from ablate.run import (
    FOLDER_PLACE,
    PLACEHOLDERS,
    SEED_PLACE,
    fill_command,
    local_files,
)
from ablate.shared import UserError, system

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_SETTING = re.compile(r"((?:--?)?[A-Za-z_][\w./-]*)=(.*)", re.DOTALL)
_INTEGER = re.compile(r"-?(0|[1-9]\d*)")
_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_SCRIPT = re.compile(r".*\.(py|sh|bash|jl|R|rb|pl|lua|js|ts)")
_SEED = re.compile(r"(\w+_)?seed(_everything)?|random_state")
_FOLDER = re.compile(
    r"(out|output|save|log|run|result|work|checkpoint|job|exp|experiment)s?_?"
    r"(dir|directory|folder|path)"
    r"|out|outputs?|results?|logs|runs|checkpoints?|folder|default_root_dir|logging_dir"
)
# A number, a truth value, a file, or a setting.
_NO_FOLDER = re.compile(r"-?[\d.]+|true|false|yes|no|on|off|.*\.[a-z]\w{0,7}|.*=.*", re.IGNORECASE)
# A word alone may be a command of the program, such as `run`.
_FOLDER_ALONE = re.compile(r"(out|outputs?|results?|runs|logs|checkpoints?|out_?dir)/?")
# Parts of names of numbers that an ablation seldom varies.
_NO_SIZE = re.compile(
    r"arg|iter|step|epoch|interval|every|worker|thread|gpu|nproc|device|rank|port"
)
_SWITCHES = {"True": "False", "False": "True", "yes": "no", "no": "yes", "on": "off", "off": "on"}
_MODULE = ("-m", "--module")  # before the name of a module of Python
_MULTIRUN = ("-m", "--multirun")  # of Hydra
_LAUNCHERS = ("torch.distributed.launch", "torch.distributed.run", "accelerate.commands.launch")
_CODE = ("-c", "-jar")  # after an interpreter, before what it runs
# Programs that start another one, after words of their own.
_STARTERS = ("uv", "conda", "mamba", "micromamba", "poetry", "pixi", "pdm", "hatch", "pipenv")

FILE, LINES = "{file: result.json}", r"{lines: 'loss=(?P<loss>\S+)'}"
YAML = """\
# {title}
command: {command}
{env}keys: {keys}
# {{file: result.json}}, {{file: metrics.csv}}, {{tensorboard: FOLDER}} or {{lines: PATTERN}}
result: {result}
metrics: {{loss: {{direction: less}}}} # one that the result has; more or less: which is better
{code}"""
NO_SEED = (
    "no seed was found in the command; put {seed} where the program takes it, as in --seed={seed}"
)
NO_FOLDER = (
    "no output folder was found in the command; if the program writes files, put {folder} where it "
    "takes their folder"
)
NO_FILE = "no file {file} was found here; correct the path in the command, or write the file"
CODE = "code: [{files}] # by default every file that git knows; here is no git repository\n"


@dataclass(frozen=True)
class Declaration:
    """The declaration of a program as a trainer.

    name: of the trainer; text: of its yaml; try_it: the words that vary a setting, and seeds=1
    where the command has no seed; notes: what to complete in `command`.
    """

    name: str
    text: str
    try_it: str
    notes: tuple[str, ...]


@dataclass
class _Options:
    """The options of a command, as they are read.

    template: the words of the yaml's command; keys: the declaration of each setting, as the yaml
    has it; typed: what the words were that became a placeholder, by its name.
    """

    template: list[str] = field(default_factory=list)
    keys: dict[str, Any] = field(default_factory=dict)
    typed: dict[str, str] = field(default_factory=dict)


def declare(command: str, folder: Path, name: str | None = None) -> Declaration:
    """Return the declaration of a command as it is typed in `folder`.

    `name`: of the trainer; by default that of the script. Raises UserError, one line: for a command
    without words or one that needs a shell, and for one that its declaration would not play back.
    """
    env, words = read_typed_command(command, folder)
    if not words:
        raise UserError("new trainer: expected a command, such as 'python train.py --lr 0.1'")
    start = _script_place(words)
    script = words[start]
    options = _Options([_escaped(word) for word in words[: start + 1]])
    is_module = start > 0 and words[start - 1] in _MODULE
    file = _module_file(folder, script, env) if is_module else script
    files = _files(folder, file)
    if files and "hydra.main" in (folder / file).read_text(errors="replace"):
        constants, seed_key = _hydra_constants(words[start + 1 :])
        options.template += [*constants, "{overrides}"]
        composed = HydraApp([*options.template], folder, env).compose([])
        _add_hydra(composed, seed_key, options)
        keys_text, try_it = "hydra", _first_hydra_sweep(composed, constants)
        files += _config_patterns(composed, folder)
    else:
        _add_options(words[start + 1 :], options)
        _play_back(words, options)
        keys_text, try_it = _flow(options.keys), _first_sweep(options.keys)
    _check_interpolations(options, env)
    env_template = {
        key: f"{{{SEED_PLACE}}}" if _SEED.fullmatch(key.lower()) else _escaped(value)
        for key, value in env.items()
    }
    has_folder = _has(FOLDER_PLACE, options.template)
    notes = []
    if _SCRIPT.fullmatch(script) and not (folder / script).exists():
        notes.append(NO_FILE.format(file=script))
    if not _has(SEED_PLACE, [*options.template, *env_template.values()]):
        notes.append(NO_SEED)
        try_it = f"{try_it} seeds=1".strip()
    if not has_folder:
        notes.append(NO_FOLDER)
    in_git = system.ask_git("ls-files", cwd=folder) is not None
    text = YAML.format(
        title=" ".join(command.replace("\\\n", " ").split()),
        command=_yaml(" ".join(map(_quoted, options.template))),
        env=f"env: {_flow(env_template)}\n" if env_template else "",
        keys=keys_text,
        result=FILE if has_folder else LINES,
        code="" if in_git or not files else CODE.format(files=", ".join(files)),
    )
    stem = script.rpartition(".")[2] if is_module else Path(script).stem
    if words[start - 1] in _CODE and start > 0:
        stem = Path(words[0]).stem
    return Declaration(name or re.sub(r"\W", "_", stem) or "program", text, try_it, tuple(notes))


def _has(place: str, words: Sequence[str]) -> bool:
    return any(f"{{{place}}}" in word for word in words)


# --- Reading the typed command ------------------------------------------------------------------


def _script_place(words: Sequence[str]) -> int:
    """Return the index of the word that names the program.

    That is the first script, or the module after `-m`, unless it launches another; the code after
    `sh -c`; else the first word, after those of a starter such as `uv run`.
    """
    if len(words) > 2 and words[1] in _CODE:
        return 2
    for n, word in enumerate(words):
        if n and words[n - 1] in _MODULE and word not in _LAUNCHERS:
            return n
        if _SCRIPT.fullmatch(word):
            return n
    if Path(words[0]).name not in _STARTERS:
        return 0
    plain = [n for n, word in enumerate(words[1:], 1) if not word.startswith("-")]
    return plain[min(1, len(plain) - 1)] if plain else 0


def _add_options(words: Sequence[str], options: _Options) -> None:
    """Add the words after the script to the options."""
    names = _names(words)
    n = 0
    while n < len(words):
        word = words[n]
        n += 1
        if setting := _SETTING.fullmatch(word):
            place = _place(options, names, setting[1], setting[2])
            options.template.append(f"{setting[1]}={place}")
        elif _OPTION.fullmatch(word) and not _NUMBER.fullmatch(word):
            values = _values(words[n:])
            n += len(values)
            if not values:
                options.template.append(_flag_place(options, names, word))
                continue
            options.template.append(word)
            if values == [""]:  # an empty placeholder would be left out
                options.template.append("")
            elif len(values) == 1:
                options.template.append(_place(options, names, word, values[0]))
            else:
                options.template.append(_list_place(options, names, word, values))
        elif _FOLDER_ALONE.fullmatch(word):
            options.template.append(_place(options, names, "folder", word))
        elif _NUMBER.fullmatch(word):
            options.template.append(_place(options, names, f"arg{n}", word))
        else:
            options.template.append(_escaped(word))


def _values(words: Sequence[str]) -> list[str]:
    """Return the words that are the values of the option before them: one, or several numbers."""
    numbers = []
    for word in words:
        if not _NUMBER.fullmatch(word):
            break
        numbers.append(word)
    if numbers:
        return numbers
    return [words[0]] if words and not words[0].startswith("-") else []


def _names(words: Sequence[str]) -> dict[str, str]:
    """Return the name of the setting of each option: the last part of a dotted one, where that is
    of one option only."""
    typed = [word.partition("=")[0] for word in words if word.startswith("-") or "=" in word]
    parts = [option.lstrip("-").rpartition(".")[2] for option in dict.fromkeys(typed)]
    names = {}
    for option, part in zip(dict.fromkeys(typed), parts, strict=True):
        name = part if parts.count(part) == 1 else option.lstrip("-")
        names[option] = re.sub(r"\W", "_", name)
    return names


def _place(options: _Options, names: Mapping[str, str], option: str, value: str) -> str:
    """Return the placeholder of an option's value, and add its setting."""
    name = names.get(option, option)
    lower = name.lower()
    if _SEED.fullmatch(lower):
        return _known_place(options, SEED_PLACE, value)
    if option == "hydra.run.dir" or (
        (_FOLDER.fullmatch(lower) or lower == "o") and not _NO_FOLDER.fullmatch(value)
    ):
        return _known_place(options, FOLDER_PLACE, value)
    name = _free_name(options, name)
    options.keys[name] = _declaration_of(value)
    options.typed[name] = value
    return f"{{{name}}}"


def _known_place(options: _Options, place: str, value: str) -> str:
    """Return a placeholder that ablate fills; the value itself where an option before it had
    another one."""
    if options.typed.setdefault(place, value) != value:
        return _escaped(value)
    return f"{{{place}}}"


def _list_place(
    options: _Options, names: Mapping[str, str], option: str, values: Sequence[str]
) -> str:
    name = _free_name(options, names[option])
    options.keys[name] = [_number(value) for value in values]
    options.typed[name] = " ".join(values)
    return f"{{*{name}}}"


def _flag_place(options: _Options, names: Mapping[str, str], option: str) -> str:
    name = _free_name(options, names[option])
    options.keys[name] = {"flag": option, "default": True}
    options.typed[name] = option
    return f"{{{name}}}"


def _free_name(options: _Options, name: str) -> str:
    """Return the name, with underscores where it is a placeholder's, another setting's, or none."""
    if not name.isidentifier():
        name = f"arg_{name}"
    while name in PLACEHOLDERS or name in options.keys or name == "name":
        name = f"{name}_"
    return name


def _declaration_of(value: str) -> Any:
    """Return the declaration of a setting with this value: a number, true or false, or a text. A
    truth value that JSON spells otherwise is a text with two choices, so that its spelling
    stays."""
    if _NUMBER.fullmatch(value):
        return _number(value)
    if value in ("true", "false"):
        return value == "true"
    if value in _SWITCHES:
        return {"default": value, "choices": [value, _SWITCHES[value]]}
    return value


def _number(value: str) -> Any:
    """Return a number; the text where a number would be spelled otherwise, such as 007."""
    if _INTEGER.fullmatch(value):
        return int(value)
    number = float(value)
    return value if value.lstrip("-").isdecimal() else number


# --- Playing it back ----------------------------------------------------------------------------


def _play_back(words: Sequence[str], options: _Options) -> None:
    """Raise UserError where the template with its defaults is not the typed command."""
    settings = {name: _default(declaration) for name, declaration in options.keys.items()}
    flags = {
        name: declaration["flag"]
        for name, declaration in options.keys.items()
        if isinstance(declaration, Mapping) and "flag" in declaration
    }
    places = {
        SEED_PLACE: options.typed.get(SEED_PLACE),
        FOLDER_PLACE: options.typed.get(FOLDER_PLACE),
    }
    played = fill_command(options.template, settings, places, flags=flags)
    for n, (typed, rendered) in enumerate(zip_longest(words, played)):
        if not _same_word(typed, rendered):
            raise UserError(
                f"new trainer: word {n + 1} of the command, {typed!r}, would become {rendered!r}; "
                f"write the yaml by hand: command:, keys:, result:, metrics:"
            )


def _check_interpolations(options: _Options, env: Mapping[str, str]) -> None:
    """Raise UserError for a text such as ${name}, which is filled in when a yaml is read."""
    for text in (*options.template, *options.typed.values(), *env.values()):
        if text != options.typed.get(FOLDER_PLACE) and "${" in text:
            raise UserError(
                f"new trainer: {text}: ${{...}} in a yaml is filled in when ablate reads it; write "
                f"the value itself"
            )


def _same_word(typed: str | None, rendered: str | None) -> bool:
    """Return whether two words are equal, or end in equal numbers (0.1 and .1)."""
    if typed == rendered or typed is None or rendered is None:
        return typed == rendered
    (key, _, value), (rendered_key, _, rendered_value) = (
        word.rpartition("=") for word in (typed, rendered)
    )
    are_numbers = _NUMBER.fullmatch(value) and _NUMBER.fullmatch(rendered_value)
    return key == rendered_key and bool(are_numbers) and float(value) == float(rendered_value)


def _default(declaration: Any) -> Any:
    return declaration["default"] if isinstance(declaration, Mapping) else declaration


# --- What to write ------------------------------------------------------------------------------


def _hydra_constants(words: Sequence[str]) -> tuple[list[str], str]:
    """Return what was typed after the script of a Hydra application, but its seed and its folder,
    and the key of that seed, "" for none.

    The words stay in the command, before {overrides}: of two values Hydra takes the later.
    """
    constants: list[str] = []
    seed_key = ""
    for word in words:
        key = word.partition("=")[0]
        if word in _MULTIRUN:
            raise UserError(
                f"new trainer: {word}: leave it out; `ablate sweep` starts a run for each value of "
                f"trainer.lr=0.1,0.2"
            )
        if not seed_key and _SEED.fullmatch(key.lstrip("+").rpartition(".")[2]):
            seed_key = key
        elif not word.startswith("hydra.run.dir="):
            constants.append(_escaped(word))
    return constants, seed_key


def _add_hydra(composed: Composed, seed_key: str, options: _Options) -> None:
    """Add the seed and the folder of a Hydra application, whose settings stand in its own
    configuration. The seed is the key that was typed, or else the application's own."""
    keys = (*composed.values, *composed.derived, *composed.missing)
    seeds = [key for key in keys if _SEED.fullmatch(key.rpartition(".")[2])]
    if not seed_key and SEED_PLACE in seeds:
        seed_key = SEED_PLACE
    if not seed_key and len(seeds) == 1:
        seed_key = seeds[0]
    if seed_key:
        options.template.append(f"{seed_key}={{{SEED_PLACE}}}")
    options.template.append(f"hydra.run.dir={{{FOLDER_PLACE}}}")


def _first_hydra_sweep(composed: Composed, constants: Sequence[str]) -> str:
    """Return words that vary what the command leaves open: a fraction, such as a rate, rather than
    a group; "" where there is neither."""
    typed = {word.partition("=")[0].lstrip("+") for word in constants}
    fractions = {
        key: value
        for key, value in composed.values.items()
        if isinstance(value, float) and key not in typed
    }
    if first_sweep := _first_sweep(fractions):
        return first_sweep
    for group, choice in composed.choices.items():
        choices = composed.options.get(group, ())
        if choice in choices and len(choices) > 1 and group not in typed:
            return f"trainer.{group}={','.join(choices)}"
    return ""


def _config_patterns(composed: Composed, folder: Path) -> list[str]:
    """Return the patterns of a Hydra application's files of configuration, relative to `folder`."""
    patterns = []
    for config_folder in composed.folders:
        if not config_folder.is_relative_to(folder.resolve()):
            raise UserError(
                f"new trainer: {config_folder} is outside {folder}; type the command where both "
                f"the script and its configuration lie"
            )
        patterns.append(f"'{config_folder.relative_to(folder.resolve()) / '**/*.yaml'}'")
    return patterns


def _first_sweep(keys: Mapping[str, Any]) -> str:
    """Return words that vary a setting: a fraction, such as a rate, rather than a size, that rather
    than a flag or a choice, and all of these rather than a number of steps or processes."""
    numbers = [
        name
        for name, declaration in keys.items()
        if isinstance(declaration, int | float) and not isinstance(declaration, bool)
        if declaration > 0  # twice 0 is 0, and -1 often means: none
    ]
    fractions = [name for name in numbers if isinstance(keys[name], float)]
    sizes = [name for name in numbers if not _NO_SIZE.search(name.lower())]
    switches = [name for name, declaration in keys.items() if isinstance(declaration, bool | dict)]
    for name in (*fractions, *sizes, *switches, *numbers):
        declaration = keys[name]
        values = f"{declaration},{2 * declaration}" if name in numbers else "true,false"
        if isinstance(declaration, dict) and "choices" in declaration:
            values = ",".join(declaration["choices"])
        return f"trainer.{name}={values}"
    return ""


def _module_file(folder: Path, module: str, env: Mapping[str, str]) -> str:
    """Return the file that `-m MODULE` runs, relative to `folder`; the name itself where it lies
    elsewhere."""
    path = module.replace(".", "/")
    for place in ("", *env.get("PYTHONPATH", "").split(":")):
        for file in (f"{path}.py", f"{path}/__main__.py"):
            if (folder / place / file).is_file() and not Path(place).is_absolute():
                return (Path(place) / file).as_posix()
    return module


def _files(folder: Path, script: str) -> list[str]:
    """Return the script and the modules of the folder that it imports; [] where it is no file."""
    if not (folder / script).is_file():
        return []
    if not script.endswith(".py"):
        return [script]
    files = local_files(folder / script, folder)
    return [file.relative_to(folder).as_posix() for file in files]


def _escaped(word: str) -> str:
    return word.replace("{", "{{").replace("}", "}}")


def _quoted(word: str) -> str:
    """Return a word as a shell reads it, with placeholders as they are."""
    return word if re.fullmatch(r"[\w{}*=./:,@%+-]+", word) else shlex.quote(word)


def _flow(value: Any) -> str:
    """Return a value as YAML in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    return _yaml(value)


def _yaml(value: Any) -> str:
    """Return a plain value as YAML; a text without quotes where YAML reads it as that text."""
    from yaml import YAMLError, safe_load

    if not isinstance(value, str):
        return json.dumps(value)
    if re.fullmatch(r"[\w./-][\w ./@%+=*{}-]*", value):
        try:
            if safe_load(f"[{value}]") == [value]:
                return value
        except YAMLError:
            pass
    return json.dumps(value)
