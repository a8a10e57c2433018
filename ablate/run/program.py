"""A program that trains a run by itself, and knows nothing of us: its command, as
`conf/trainer/NAME.yaml` declares it.

    command: python train.py --lr {lr} --seed {seed} --out {folder}   # one argument a placeholder
    keys: {lr: 6e-4}
    metrics: {val_loss: {direction: less}}
    result: {file: result.json}        # in {folder}; others: run/result_source.py

The contents of its code are in the id of its runs, never a commit: the same content is the same
run. Nothing of it runs here.

Used by plans (run/trainer.py, planning/expand.py), by `ablate new trainer`
(planning/program_yaml.py) and by the worker (training/own/command.py). A new field of `Program` is
also named in `ADDED`, so that ids stay, and carried out in that worker.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from ablate.run.own import TRAINER, code_file_hash
from ablate.run.result_source import Result, check_pattern, check_result
from ablate.run.schema import read_section
from ablate.run.spec import OwnSpec
from ablate.shared import (
    UserError,
    read_file,
    system,
    unknown_value,
)

SEED_PLACE, FOLDER_PLACE, OVERRIDES = "seed", "folder", "overrides"
PLACEHOLDERS = {
    SEED_PLACE: "the seed of the run",
    FOLDER_PLACE: "a folder of the run's own",
    "gpus": "the number of GPUs that it may use",
    "threads": "the number of threads that it may use",
    OVERRIDES: "each setting as KEY=VALUE",
}
# What of a working folder is ours, and no code of the program.
OURS = ("sweeps/", "conf/trainer/", "conf/launcher/")
LOGS = (".log", ".out", ".err")  # names of untracked files that commands are redirected to
MOST_FILES = 1000  # that git names: more are hardly the code of one program
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Curves:
    """A table that grows while the program trains, one line for each step.

    file: its name, or a pattern, says whether it is csv or jsonl.
    """

    file: str
    step: str = "step"


@dataclass(frozen=True)
class Program:
    """A program as a yaml declares it. Names of files are relative to the run's folder.

    result: where its result is; resume: words that are added to the command where the files that
    they name in the folder exist; code, data: patterns of files where the user works; grace_s:
    seconds between SIGTERM and SIGKILL; env: variables, whose values may have placeholders; cwd,
    stdin: the folder that it starts in, and the file of its standard input, relative to where the
    user works.
    """

    command: str | tuple[str, ...]
    result: Result
    predictions: str | None = None
    curves: Curves | None = None
    resume: str | tuple[str, ...] | None = None
    code: tuple[str, ...] | None = None
    data: tuple[str, ...] = ()
    grace_s: float = 30.0
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    stdin: str | None = None

    @property
    def plain(self) -> dict[str, Any]:
        """The plain tree that a run keeps: all but the command, and `ADDED` only where given."""
        tree = dataclasses.asdict(self) | {"result": self.result.plain}
        return {
            key: value
            for key, value in tree.items()
            if key != "command" and (key not in ADDED or value is not None)
        }

    def environment(self, settings: Mapping[str, Any], places: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables that the yaml declares, with their placeholders filled."""
        values = {key: argument_text(value) for key, value in {**settings, **places}.items()}
        return {key: text.format_map(values) for key, text in (self.env or {}).items()}


FIELDS = tuple(field.name for field in dataclasses.fields(Program))
# Fields that a run's tree, and its id, have only where they are given.
ADDED = ("env", "cwd", "stdin")


def read_program(tree: Mapping[str, Any]) -> Program:
    """Read the program from a yaml's section, or from a run's tree. Raise UserError, one line."""
    program: Program = read_section(Program, tree, TRAINER)
    inside = {
        "result.file": program.result.file,
        "result.tensorboard": program.result.tensorboard,
        "predictions": program.predictions,
        "curves.file": None if program.curves is None else program.curves.file,
    }
    for key, name in inside.items():
        if name is not None and (not name or Path(name).is_absolute() or ".." in Path(name).parts):
            raise UserError(f"{TRAINER}.{key}: expected a file within {{folder}}, got {name!r}")
    for key in ("cwd", "stdin"):
        path = getattr(program, key)
        if path is not None and (Path(path).is_absolute() or ".." in Path(path).parts):
            raise UserError(f"{TRAINER}.{key}: expected a path within this folder, got {path!r}")
    return program


def program_of(spec: OwnSpec) -> Program:
    """Return the program of a run's spec, whose trainer is its command."""
    return read_program({"command": spec.trainer, **spec.tree["code"]["program"]})


def check_program(
    program: Program, keys: Collection[str], metrics: Sequence[Mapping[str, Any]]
) -> None:
    """Raise UserError where the command, the keys and the metrics do not fit one another."""
    words = split_command(program.command, "command")
    if not words:
        raise UserError(f"{TRAINER}.command: expected a program and its arguments, got nothing")
    used = {name for word in words for name in _names(word, keys, "command")}
    for variable, value in (program.env or {}).items():
        used.update(_names(value, keys, f"env.{variable}"))
    for key in keys:
        if key in PLACEHOLDERS and OVERRIDES not in used:
            raise UserError(
                f"{TRAINER}.keys.{key}: {{{key}}} is {PLACEHOLDERS[key]}; choose another name"
            )
    resume = [] if program.resume is None else split_command(program.resume, "resume")
    for word in resume:
        _names(word, keys, "resume")
    if program.curves is not None:
        check_pattern(program.curves.file, "curves.file")
    if OVERRIDES in used and f"{{{OVERRIDES}}}" not in words:
        raise UserError(f"{TRAINER}.command: {{{OVERRIDES}}} is to be a word of its own")
    if OVERRIDES not in used and (idle := [key for key in keys if key not in used]):
        raise UserError(
            f"{TRAINER}.keys.{idle[0]}: the command has no {{{idle[0]}}}, so that it would change "
            f"nothing"
        )
    files = [program.result.path, program.predictions, program.curves]
    if FOLDER_PLACE not in used and any(file is not None for file in files):
        raise UserError(
            f"{TRAINER}.command: has no {{{FOLDER_PLACE}}}, where its files are looked for: "
            f"add it, or read the output by result: {{lines: ...}}"
        )
    check_result(program.result, metrics)
    table = program.result.path if program.result.is_table else None
    if table and program.resume and program.result.is_pattern:
        raise UserError(
            f"{TRAINER}.result: {table}: is a pattern, and a program that goes on by `resume` may "
            f"leave a second file or folder that it matches; have the program always write to one "
            f"place (Lightning: version=''), and name that, or leave `resume` out"
        )
    if (
        table
        and program.result.file
        and program.resume
        and program.result.best
        and program.result.step is None
    ):
        raise UserError(
            f"{TRAINER}.result.step: missing; name the column of steps of {table}, by which rows "
            f"that `resume` makes the program write again are known"
        )


def command_text(command: str | Sequence[str]) -> str:
    """Return a command as one text, the name of its runs' trainer."""
    return command if isinstance(command, str) else shlex.join(command)


def split_command(command: str | Sequence[str], key: str) -> list[str]:
    """Return the words of a command, split as a shell does; a list is taken as it is."""
    if not isinstance(command, str):
        return list(command)
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UserError(f"{TRAINER}.{key}: {command!r}: {error}") from error


def _names(word: str, keys: Collection[str], key: str) -> list[str]:
    """List the placeholders of a word. Raise UserError for one that nothing fills."""
    try:
        parts = [part[1:] for part in Formatter().parse(word) if part[1] is not None]
    except ValueError as error:
        raise _braces(word, key) from error
    names = []
    for name, form, conversion in parts:
        is_list = name is not None and word == f"{{*{name[1:]}}}"
        plain_name = str(name).removeprefix("*") if is_list else str(name)
        if form or conversion or not plain_name.isidentifier():
            raise _braces(word, key)
        if plain_name not in keys and plain_name not in PLACEHOLDERS:
            raise unknown_value(f"{TRAINER}.{key}: {{{name}}}", plain_name, [*keys, *PLACEHOLDERS])
        names.append(plain_name)
    return names


def _braces(word: str, key: str) -> UserError:
    return UserError(
        f"{TRAINER}.{key}: {word}: expected a placeholder such as {{lr}}; {{{{ and }}}} are braces"
    )


def takes_seed(spec: OwnSpec) -> bool:
    """Return whether the command of a run, or a variable that it is given, has the seed."""
    variables = (program_of(spec).env or {}).values()
    return takes(spec.trainer, SEED_PLACE) or takes([*variables], SEED_PLACE)


def takes(command: str | Sequence[str], place: str) -> bool:
    """Return whether the command has this placeholder."""
    return any(
        part[1] in (place, f"*{place}")
        for word in split_command(command, "command")
        for part in Formatter().parse(word)
    )


def fill_command(
    command: str | Sequence[str],
    settings: Mapping[str, Any],
    places: Mapping[str, Any],
    overrides: Sequence[str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the words of the command with each placeholder filled, one argument each.

    `{*KEY}` becomes a word for each element of a list. A flag's word is left out where its setting
    is false, and so is a word that is a placeholder alone and empty. overrides: the words for
    {overrides}, where they are not all settings; flags: the word of each flag, by its key.
    """
    values = {key: argument_text(value) for key, value in {**settings, **places}.items()}
    for key, flag in (flags or {}).items():
        values[key] = flag if settings[key] else ""
    words: list[str] = []
    for word in split_command(command, "command"):
        name = word[1:-1]
        if word == f"{{{OVERRIDES}}}":
            default_overrides = [hydra_override(key, value) for key, value in settings.items()]
            words += default_overrides if overrides is None else overrides
        elif word == f"{{{name}}}" and name.startswith("*"):
            words += [argument_text(element) for element in settings[name[1:]]]
        elif not (word == f"{{{name}}}" and name.isidentifier() and not values[name]):
            words.append(word.format_map(values))
    return words


def resume_words(
    program: Program, settings: Mapping[str, Any], places: Mapping[str, Any]
) -> list[str]:
    """Return the words that continue an attempt; [] where the folder lacks a file that they
    name."""
    if program.resume is None:
        return []
    words = split_command(program.resume, "resume")
    folder_words = [_path_word(word) for word in words if takes([word], FOLDER_PLACE)]
    paths = fill_command(folder_words, settings, places)
    return fill_command(words, settings, places) if all(map(os.path.exists, paths)) else []


def _path_word(word: str) -> str:
    """Return the part of a command's word that names a file in the run's folder: that of
    `--resume={folder}/last.pt` begins after the equals sign. The filled word may have others, in
    the folder's own name."""
    option, _, file = word.partition(f"{{{FOLDER_PLACE}}}")
    return f"{option.rpartition('=')[2]}{{{FOLDER_PLACE}}}{file}"


def argument_text(value: Any) -> str:
    """Return a setting as an argument: a text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def hydra_override(key: str, value: Any) -> str:
    """Return KEY=VALUE in Hydra's grammar. A text that it would read as something else is
    quoted."""
    if isinstance(value, list):
        return f"{key}=[{','.join(hydra_override('', element)[1:] for element in value)}]"
    if not isinstance(value, str) or (_PLAIN.fullmatch(value) and value.lower() not in _WORDS):
        return f"{key}={argument_text(value)}"
    # A backslash is doubled where it stands before a quote.
    text = re.sub(r"(\\*)('|$)", lambda match: 2 * match[1] + ("\\'" if match[2] else ""), value)
    return f"{key}='{text}'"


_PLAIN = re.compile(r"[A-Za-z_/][\w/.@%+-]*", re.ASCII)
_WORDS = ("true", "false", "null", "nan", "inf")


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise UserError for a setting with a control character, which no argument should hold."""
    for key, value in settings.items():
        if control := _CONTROL.search(argument_text(value)):
            raise UserError(
                f"{TRAINER}.{key}: {value!r} holds the control character {control[0]!r}"
            )


# --- Its code and data --------------------------------------------------------------------------


def code_of(program: Program, folder: Path, store: Path) -> dict[str, str]:
    """Return the hash of each file of the program's code, by its path in `folder`.

    These are the files that the patterns of `code` name or, without patterns, those that git tracks
    or would add; never those in `store`, which each run changes. Raise UserError where a
    pattern names no file, and where neither patterns nor git say what the code is.
    """
    if program.code is not None:
        files = _matching(program.code, "code", folder, store)
    else:
        files = {name for name in _by_git(folder) if not (folder / name).is_relative_to(store)}
        if len(files) > MOST_FILES:
            raise UserError(
                f"{TRAINER}.code: git names {len(files):,} files in {folder}; say which are the "
                f"program's, such as code: [train.py, 'model/*.py']"
            )
    files = {name for name in files if not name.startswith(OURS)}
    return {name: code_file_hash(read_file(folder / name)) for name in sorted(files)}


def check_folder(program: Program, folder: Path) -> None:
    """Raise UserError where the folder that the program starts in is not there."""
    if program.cwd is not None and not (folder / program.cwd).is_dir():
        raise UserError(f"{TRAINER}.cwd: {program.cwd}: no such folder in {folder}")


def data_files(program: Program, folder: Path) -> list[str]:
    """List the files that `data` names, in order. Raise UserError where a pattern names none."""
    files = _matching(program.data, "data", folder)
    if program.stdin is not None:
        files |= _matching([program.stdin], "stdin", folder)
    return sorted(files)


def _matching(
    patterns: Iterable[str], key: str, folder: Path, store: Path | None = None
) -> set[str]:
    names: set[str] = set()
    for pattern in patterns:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise UserError(
                f"{TRAINER}.{key}: {pattern}: expected files within {folder}; work in a folder "
                f"above them, with `cwd: {folder.name}` in the yaml"
            )
        check_pattern(pattern, key)
        if (folder / pattern).is_dir():  # all that lies in it
            pattern = f"{pattern.rstrip('/')}/**/*"
        files = [
            file
            for file in folder.glob(pattern)
            if file.is_file()
            and "__pycache__" not in file.parts
            and not (store is not None and file.is_relative_to(store))
        ]
        if not files:
            raise UserError(f"{TRAINER}.{key}: {pattern}: no such file in {folder}")
        names.update(file.relative_to(folder).as_posix() for file in files)
    return names


def _by_git(folder: Path) -> Iterator[str]:
    """Yield the files that git tracks, and those that it would add, without logs."""
    for options in (("--cached",), ("--others", "--exclude-standard")):
        listing = system.ask_git("ls-files", "-z", *options, cwd=folder)
        if listing is None:
            raise UserError(
                f"{TRAINER}.code: missing, and git knows nothing of {folder}; write "
                f"`code: [FILE, ...]` into the yaml of the trainer, or type `git init`"
            )
        for name in filter(None, listing.decode("utf-8", "surrogateescape").split("\0")):
            if (path := folder / name).is_file():
                if options[0] == "--cached" or not name.endswith(LOGS):
                    yield name
            elif path.is_dir() and not path.is_symlink():  # a repository within this one
                yield from (f"{name.rstrip('/')}/{below}" for below in _by_git(path))
