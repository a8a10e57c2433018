"""What TAB offers: commands, options, sweeps, keys, choices, runs. The scripts that
`ablate --install-completion` installs, which are typer's, ask for it and read the answer.

No command is run, nothing is composed and no ledger is opened: TAB answers as soon as `--help`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ASKED = "_ABLATE_COMPLETE"  # a shell's script sets it: complete_bash, complete_zsh, complete_fish
BREAKS = "=:"  # bash takes what is between for words of their own

DRIVEN = ("status", "table", "trials", "plot", "report", "export", "verify", "stop")
DECLARED = ("sweep", "plan", "doctor", "config")
KEYED = (*DRIVEN, *DECLARED)
RUN_OPTIONS = ("--rerun", "--weights")


def answer(group: Any, environment: Mapping[str, str]) -> int:
    """Print what may stand where the cursor is, as the shell that asks reads it; the exit code.
    `group`: the command line, as click has it."""
    shell = environment[ASKED].removeprefix("complete_")
    try:
        words, last, quoted = _typed(shell, environment)
        found = [*dict.fromkeys(offers(group, words, last))]
    except Exception:  # a TAB prints no error, whatever lies in the folder
        words, last, quoted, found = [], "", False, []
    if shell == "bash":
        print("\n".join(_for_bash(found, last, quoted)))
    elif shell == "zsh":
        print(_for_zsh(found))
    elif environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return int(not found)
    else:
        print("\n".join(word for word in found if not _is_word(word)))
    return 0


# --- What a shell says, and how it is answered --------------------------------------------------


def _typed(shell: str, environment: Mapping[str, str]) -> tuple[list[str], str, bool]:
    """(the words behind `ablate`, the one at the cursor, does that begin with a quote?)."""
    if shell != "bash":
        text = environment.get("_TYPER_COMPLETE_ARGS", "")
        words = _unquoted(text)[1:]
        if not text or text[-1].isspace():
            return words, "", False
        return words[:-1], words[-1] if words else "", False
    raw = environment["COMP_WORDS"].split("\n")[: int(environment["COMP_CWORD"]) + 1]
    joined: list[str] = []
    for at, word in enumerate(raw):  # norm = lay: one word, which bash broke
        if at > 1 and (_breaks(word) or (word and _breaks(raw[at - 1]))):
            joined[-1] += word
        else:
            joined.append(word)
    *words, last = joined[1:] or [""]
    plain = ["".join(_unquoted(word)) for word in (*words, last)]
    return plain[:-1], plain[-1], last[:1] in ("'", '"')


def _breaks(word: str) -> bool:
    return bool(word) and not word.strip(BREAKS)


def _unquoted(text: str) -> list[str]:
    """Split as a shell does; what begins with a quote may end without one."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[str] = []
    try:
        found += lexer
    except ValueError:
        found.append(lexer.token or "")
    return found


def _for_bash(found: Sequence[str], last: str, quoted: bool) -> Iterator[str]:
    """What stands behind the last `=` or `:`, which is all that bash replaces; within quotes it
    replaces all."""
    done = 0 if quoted else max(last.rfind(mark) for mark in BREAKS) + 1
    for word in found:
        rest = word[done:]
        yield rest if quoted else re.sub(r"""([\s'"\\$`&|;<>()*?{}!~])""", r"\\\1", rest)


def _for_zsh(found: Sequence[str]) -> str:
    """What zsh evaluates. No space follows what goes on."""
    words = [word for word in found if not _is_word(word)]
    if not words:
        return "_files"
    going = [word for word in words if word.endswith(("=", ".", ":"))]
    ended = [word for word in words if word not in going]
    lines = [shlex.join(["compadd", "-S", "", "--", *going])] if going else []
    lines += [shlex.join(["compadd", "--", *ended])] if ended else []
    return "; ".join(lines)


def _is_word(word: str) -> bool:
    from ablate.report.key_choices import WORDS

    return "=" in word and word.partition("=")[2] in WORDS


# --- What is offered ----------------------------------------------------------------------------


def offers(group: Any, words: Sequence[str], last: str) -> Iterator[str]:
    """Yield what may stand behind these words and begins with `last`."""
    command, name, rest = group, "", list(words)
    while rest and getattr(command, "commands", None):
        word = rest.pop(0)
        if not word.startswith("-"):
            command, name = command.commands[word], f"{name} {word}".strip()
    if getattr(command, "commands", None):
        names = _long(command) if last.startswith("-") else command.commands
        yield from _beginning(names, last)
        return
    given, option, places = _read(command, rest)
    if option is not None:
        yield from _beginning(_of_option(command, name, option, given, places, last), last)
    elif last.startswith("--") and "=" in last:
        option, _, begun = last.partition("=")
        found = _of_option(command, name, option, given, places, begun)
        yield from _beginning((f"{option}={value}" for value in found), last)
    elif last.startswith("-"):
        yield from _beginning((one for one in _long(command) if one not in given), last)
    else:
        yield from _of_place(name, given, places, last)


def _beginning(found: Iterable[str], last: str) -> Iterator[str]:
    return (word for word in found if word.startswith(last))


def _long(command: Any) -> list[str]:
    params = [param for param in command.params if param.param_type_name == "option"]
    names = [name for param in params for name in (*param.opts, *param.secondary_opts)]
    return [*(name for name in names if name.startswith("--")), "--help"]


def _read(command: Any, words: Sequence[str]) -> tuple[dict[str, str], str | None, list[str]]:
    """(option -> value, the option whose value comes next, the other words)."""
    flags = {n for p in command.params for n in p.opts if getattr(p, "is_flag", False)}
    flags |= {n for p in command.params for n in p.secondary_opts} | {"--help"}
    given: dict[str, str] = {}
    places: list[str] = []
    option: str | None = None
    for word in words:
        if option is not None:
            given[option], option = word, None
        elif word.startswith("--") and "=" in word:
            name, _, given[name] = word.partition("=")
        elif word.startswith("-") and word in flags:
            given[word] = ""
        elif word.startswith("-"):
            option = word
        else:
            places.append(word)
    return given, option, places


def _of_option(
    command: Any,
    name: str,
    option: str,
    given: Mapping[str, str],
    places: Sequence[str],
    last: str,
) -> Iterable[str]:
    """The values of an option; none where it takes a file, a number or a new name."""
    if option in RUN_OPTIONS or (name, option) == ("show", "--against"):
        return _runs(given)
    if option in ("--rows", "--columns", "--highlight"):
        plan = next(_plans(given, places[:1]), {})
        parts = "columns" if option == "--columns" else "rows"
        return _listed((one["label"] for one in plan.get(parts, ())), last)
    if option == "--across":
        return [word.partition("=")[0] for word in places if "=" in word]
    if option == "--scale":
        return _scales(places)
    if option == "--show":
        from ablate.planning.analysis_keys import METRICS
        from ablate.report.formats.parts import SHOW

        return _listed((*SHOW, *METRICS), last)
    if option == "--retry":
        return _listed(("failed", "oom", "hung"), last)
    param = next((param for param in command.params if option in param.opts), None)
    shown = str(getattr(param, "metavar", None) or "")
    return shown.split("|") if shown and shown == shown.lower() and ":" not in shown else ()


def _listed(values: Iterable[str], last: str) -> list[str]:
    """Values of which several are given, behind those that are there: "a,b,"."""
    head = last[: last.rfind(",") + 1]
    said = head.split(",")
    return [head + value for value in values if value not in said]


def _of_place(
    name: str, given: Mapping[str, str], places: Sequence[str], last: str
) -> Iterator[str]:
    """What may stand among the words of a command."""
    first = not places
    of: dict[str, Callable[[], Iterable[str]]] = {
        "show": lambda: _runs(given) if first else (),
        "list": lambda: _kinds() if first else (),
        "new": lambda: _templates() if first else (),
        "data prepare": lambda: _files("data"),
    }
    if name in of:
        yield from _beginning(of[name](), last)
        return
    if name == "plot":
        yield from _beginning(_plots(), last)
    if name in DRIVEN and (
        first or (name == "table" and len(places) == 1 and "=" not in places[0])
    ):
        yield from _beginning((plan["name"] for plan in _plans(given)), last)
    if name in DECLARED and first:
        from ablate.planning.sweep_paths import sweep_files

        yield from _beginning(sweep_files(), last)
    if name == "table" and first and last.startswith("paper"):
        from ablate.analysis.paper import tables

        yield from _beginning((f"paper:{table}" for table in tables()), last)
    if name in KEYED and (last or not first or name == "config"):
        said = {word.partition("=")[0] for word in places if "=" in word}
        read = name in DRIVEN and not said  # a name: what may be added is how runs are read
        yield from _keys(last, said, "analysis." if read else "")


def _keys(last: str, said: Iterable[str], section: str) -> Iterator[str]:
    """Keys with their `=`; a section stands for its keys until it is the only one; behind `=` the
    values, of which a list may have several."""
    from ablate.report.key_choices import WORDS, key_choices

    known = {key: of for key, of in key_choices().items() if key.startswith(section)}
    key, equals, begun = last.partition("=")
    if equals:
        head = begun[: max(begun.rfind(mark) for mark in ",[") + 1]
        values = known.get(key, ())
        yield from _beginning((f"{key}={head}{v}" for v in values if v not in WORDS), last)
        return
    keys = [one for one in known if one not in said and one.startswith(last)]
    start = last.rfind(".") + 1
    ahead = dict.fromkeys(
        one[: one.find(".", start) + 1] if "." in one[start:] else one + "=" for one in keys
    )
    while len(ahead) == 1 and (only := next(iter(ahead))).endswith("."):
        ahead = dict.fromkeys(
            f"{only}{part}{'.' if dot else '='}"
            for one in keys
            for part, dot, _ in [one.removeprefix(only).partition(".")]
        )
    yield from ahead
    if len(ahead) == 1:  # so that no space follows the `=`
        [only] = ahead
        yield from (only + value for value in known[only[:-1]])


# --- Names --------------------------------------------------------------------------------------


def _plans(given: Mapping[str, str], named: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The driven plans as their files have them, the last first; only this one, if it is named."""
    from ablate.store.folder import StoreFolder

    root = given.get("--store") or os.environ.get("ABLATE_STORE") or "runs"
    for path in StoreFolder(Path(root)).plans():
        with contextlib.suppress(OSError, ValueError):
            plan = json.loads(path.read_bytes())
            if not named or "=" in named[0] or plan["name"] == named[0]:
                yield plan


def _runs(given: Mapping[str, str]) -> Iterator[str]:
    """LABEL@COLUMN#SEED of every run, then the ids."""
    ids: list[str] = []
    for plan in _plans(given):
        for cell in plan["cells"]:
            place = f"{cell['row']}@{cell['column']}" if cell["column"] else cell["row"]
            for seed, run in cell["ids"].items():
                ids.append(run)
                yield f"{place}#{seed}"
    yield from ids


def _scales(places: Sequence[str]) -> list[str]:
    from ablate.planning.sweep_file import load
    from ablate.planning.sweep_paths import find

    return [*load(find(places[0]))[1].get("scales", ())]


def _kinds() -> list[str]:
    from ablate.report.listing import KINDS

    return ["sweeps", *KINDS, "keys"]


def _templates() -> Iterable[str]:
    from ablate.planning.templates import KINDS

    return KINDS


def _plots() -> Iterable[str]:
    from ablate.report.plot import KINDS

    return KINDS


def _files(group: str) -> Iterable[str]:
    from ablate.report.key_choices import files

    return files(group)


def asked() -> bool:
    return os.environ.get(ASKED, "").startswith(("complete_bash", "complete_zsh", "complete_fish"))


def main(group: Any) -> None:
    sys.exit(answer(group, os.environ))
