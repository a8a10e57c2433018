"""Explains words that no command can read (an unknown option, a value of the wrong kind, too few or
too many arguments) in one line, as all other mistakes are explained.

Used by cli/__init__.py, for every command whose words typer refuses.
"""

from __future__ import annotations

import re
import shlex
import sys
from typing import Any

import typer

from ablate.shared import nearest_name

UsageError: Any = typer.BadParameter.__base__  # of the click that this typer is made with


# What other tools have, by its spellings: what is typed here.
HABITS = {
    ("-m", "--multirun"): "leave it out; values with commas are a sweep: `ablate sweep KEY=A,B`",
    ("--dry-run", "--dryrun"): "`ablate plan` with the same words shows the runs and their cost",
    ("--cfg", "-c"): "`ablate config KEY=VALUE` shows the whole configuration of a run",
    ("--config-name", "-cn"): "a sweep file is named without it: `ablate sweep NAME`",
    ("--config-path", "-cp", "--config-dir", "-cd"): "leave it out; files of ./conf are found",
    ("--seeds", "--seed"): "settings have no dashes: seeds=3, or seeds=[0,1,2]",
    ("--rows", "--columns"): "a part of a sweep has no dashes: rows=A,B or columns=A,B",
    ("--resume",): "leave it out; the same `ablate sweep` goes on where it stopped",
    ("--name",): "--as NAME names a sweep",
}
HABITUAL = ("ablate", "sweep", "plan", "config")  # commands where it is meant so
# Settings, as somebody types them who takes them for options.
DASHED_SETTINGS = {"--seeds": "seeds=N", "--baseline": "baseline=LABEL"}
VERBS = {  # commands of other tools: what is here
    **dict.fromkeys(
        ("train", "resume", "start", "fit"), "`ablate sweep` trains, and goes on where it stopped"
    ),
    "init": "`ablate new sweep NAME` writes a sweep file",
    **dict.fromkeys(
        ("compare", "diff"),
        "`ablate show RUN --against RUN` compares two runs; declare rows of two sweeps as a third "
        "sweep, which shares their runs",
    ),
    "delete": "`ablate run RUN --delete` removes a run, `ablate gc NAME` a sweep",
}


def in_words(error: Any) -> str:
    """Write a UsageError as one line: "ablate table: --formt: is no option; did you mean ..."."""
    if error.ctx is None:  # of an option without its value, or with one too many
        command = " ".join(word for word in sys.argv[1:2] if not word.startswith("-"))
        return f"{f'ablate {command}'.rstrip()}: {_part(error.message)}"
    return f"{error.ctx.command_path}: {_problem(error, error.ctx)}"


def _problem(error: Any, context: typer.Context) -> str:
    if wrong := getattr(error, "option_name", None):
        typed = _as_typed(wrong)
        for spellings, advice in HABITS.items():
            if typed in spellings and context.info_name in HABITUAL:
                return f"{typed}: {advice}"
        if label := _label_as_typed(wrong):  # as flags of a program make them
            behind = shlex.quote(label)
            return f"{label}: a name that begins with a dash comes behind --, as in -- {behind}"
        options = [option for param in context.command.params for option in param.opts]
        settings = DASHED_SETTINGS if context.info_name in HABITUAL else ()
        guess = nearest_name(wrong, [*filter(_is_long, options), *settings])
        guess = DASHED_SETTINGS.get(guess or "", guess)
        question = f"did you mean {guess}? " if guess else ""
        return f"{wrong}: is no option; {question}`{context.command_path} --help` lists them"
    if param := getattr(error, "param", None):
        name = param.opts[0] if _is_long(param.opts[0]) else param.metavar or param.name
        return f"{name}: {error.message or 'is missing: ' + _part(param.help)}"
    if commands := getattr(context.command, "commands", None):
        text = _part(error.message)  # which may end in a question
        word = next(iter(re.findall(r"'(.+)'", text)), "")
        if "=" in word and context.info_name == "ablate":
            return f"{word}: a command comes first, such as `ablate sweep {shlex.quote(word)}`"
        if word in VERBS and context.info_name == "ablate":
            return f"{text.partition('.')[0]}. {VERBS[word]}"
        return f"{text}{'' if text.endswith('?') else '.'} The commands are {', '.join(commands)}"
    return f"{_part(error.message)}; {_part(context.get_usage())}"


def _as_typed(option: str) -> str:
    """Return the whole word of HABITS that was typed where click names its first letter alone: -cn
    of -c."""
    words = [word.partition("=")[0] for word in sys.argv[1:]]
    spellings = [spelling for spellings in HABITS for spelling in spellings]
    if option in words or len(option) > len("-c"):
        return option
    return next((w for w in words if w.startswith(option) and w in spellings), option)


def _label_as_typed(option: str) -> str:
    """Return the label of a run that click took for this option, "" where there is none. Of
    -bias#0 click names -b alone."""
    is_whole = _is_long(option)
    words = [option] if is_whole else [word for word in sys.argv if word.startswith(option)]
    return next((word for word in words if "#" in word or "@" in word), "")


def _is_long(option: str) -> bool:
    return option.startswith("--")


def _part(sentence: str) -> str:
    """Turn a sentence into a part of another, in one line: without its full stop, the first letter
    small unless the first word is in capitals."""
    text = " ".join(sentence.split()).rstrip(".")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]
