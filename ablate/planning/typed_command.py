"""The words of a command as somebody types it, or copies it from a README.

Runs start without a shell. So what only a shell can do, such as `&&` or `~/data`, is refused in one
line with the way that works.

Used by `planning/program_yaml.py`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ablate.run import split_command
from ablate.shared import UserError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OF_A_DEVICE = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "WORLD_SIZE", "RANK", "LOCAL_RANK")
_QUOTED = "\0"  # stands for a letter that a shell takes as it is
_NO_SHELL = "needs a shell, and runs start without one"
_SH = "write sh -c '...'"
# What prepares a shell for the command after && -> what to write instead.
_PREPARATIONS = (
    (r"cd\s+(\S+)", "leave it out, and write `cwd: {}` into the yaml"),
    (r"(?:source|\.)\s+(\S+)/bin/activate", "leave it out, and write {}/bin/python for python"),
    (r"(?:conda|mamba)\s+activate\s+(\S+)", "leave it out, and write conda run -n {} python"),
    (r"(?:export\s+)?([A-Za-z_]\w*=\S*)", "write {} in front of the program"),
)
# First words of a command that no run can have -> what to write instead.
_FIRST_WORDS = {
    "$": "leave the prompt out",
    ">": "leave the prompt out",
    "!": "leave it out",
    "time": "leave it out: each run's time is kept",
    "sbatch": "it ends before the program does; give the command that the job starts, and "
    "launcher=slurm",
}


def read_typed_command(command: str, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return the variables in front of a command that is typed in `folder`, and its words.

    A backslash at the end of a line continues it. Raises UserError, one line, for what needs a
    shell, and for variables that each run is given.
    """
    command = command.replace("\\\n", "").strip()
    first_word = (command.split() or [""])[0]
    if first_word in _FIRST_WORDS:
        raise UserError(f"new trainer: {first_word}: {_FIRST_WORDS[first_word]}")
    plain = _without_quoted(command)
    _check_operators(command, plain)
    words = split_command(command, "command")
    for word, plain_word in zip(words, plain.split(), strict=False):
        _check_expansion(word, plain_word, folder)
    return _split_env(words)


def _without_quoted(command: str) -> str:
    """Return the command with `_QUOTED` for each letter that is quoted or escaped, and for quotes;
    within double quotes $ and ` keep their meaning."""
    letters = []
    quote = ""
    escaped = False
    for letter in command:
        if escaped:
            escaped = False
            letters.append(_QUOTED)
        elif letter == "\\" and quote != "'":
            escaped = True
            letters.append(_QUOTED)
        elif quote:
            letters.append(letter if quote == '"' and letter in "$`" else _QUOTED)
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
            letters.append(_QUOTED)
        else:
            letters.append(letter)
    return "".join(letters)


def _check_operators(command: str, plain: str) -> None:
    """Raise UserError for operators of a shell, and for variables and commands to be filled in."""
    for preparation, remedy in _PREPARATIONS:
        match = re.match(rf"({preparation})\s*(&&|;|\n)", command)
        if match and plain[match.start(3)] != _QUOTED:
            raise UserError(
                f"new trainer: {match[1]} {match[3].strip()} {_NO_SHELL}; {remedy.format(match[2])}"
            )
    if match := re.search(r"(?:^|\s)#", plain):
        raise UserError(
            f"new trainer: {command[match.start() :].strip()}: is a comment; leave it out"
        )
    if "\n" in plain:
        raise UserError(f"new trainer: several lines are several commands; give one, or {_SH}")
    if match := re.search(r"[|&;<>`]+", plain):
        remedy = _SH
        if ">" in match[0] or (match[0] == "&" and match.end() == len(plain)):
            remedy = "leave it out: log.txt of a run keeps what it prints"
        elif match[0] == "<":
            remedy = "leave it out, and write `stdin: FILE` into the yaml"
        raise UserError(f"new trainer: {match[0]}: {_NO_SHELL}; {remedy}")
    for match in re.finditer(r"\$", plain):
        if re.match(r"\$[\w({]", command[match.start() :]):
            word = command[match.start() :].split()[0].rstrip("\"'")
            raise UserError(f"new trainer: {word}: {_NO_SHELL}; write the value itself, or {_SH}")


def _check_expansion(word: str, plain_word: str, folder: Path) -> None:
    """Raise UserError for a word that a shell would replace by a path, or by several words."""
    remedy = ""
    if re.match(r"~(/|$)", plain_word):
        remedy = f"write {os.path.expanduser(word)}"
    elif re.search(r"\{[^{}]*(,|\.\.)[^{}]*\}", plain_word):
        remedy = "write each word, or quote it if the program is to have it as it is"
    elif re.search(r"[*?\[]", plain_word) and glob.glob(word, root_dir=folder):
        remedy = "write the files, or quote it if the program is to have it as it is"
    if remedy:
        raise UserError(f"new trainer: {word}: {_NO_SHELL}; {remedy}")


def _split_env(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split off the variables that stand in front of a command, also after `env`."""
    is_env = len(words) > 1 and words[0] == "env" and _ASSIGNMENT.fullmatch(words[1]) is not None
    rest = list(words[is_env:])
    env: dict[str, str] = {}
    while rest and (assignment := _ASSIGNMENT.fullmatch(rest[0])):
        env[assignment[1]] = assignment[2]
        del rest[0]
    for key in _OF_A_DEVICE:
        if key in env:
            raise UserError(
                f"new trainer: {key}={env[key]}: leave it out; each run is given its own devices "
                f"and threads"
            )
    return env, rest
