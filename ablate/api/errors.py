"""Errors that one line explains, wherever Python shows them: a notebook, a script, `python -c`.

Used by `import ablate` (ablate/__init__.py), by the nouns (api/nouns.py, api/tables.py; `explained`
stands on their methods), and `failure_of` by every command (cli/__init__.py).
"""

from __future__ import annotations

import functools
import inspect
import re
import signal
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from types import TracebackType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from ablate.shared import (
    DISK_FULL_ERRORS,
    Failure,
    NoRoom,
    TryAgain,
    UserError,
    unknown_value,
)

Call = TypeVar("Call", bound=Callable[..., object])
NUMBERS: Mapping[Any, type] = {int: Integral, float: Real}  # numpy's are numbers, too
BREAKDOWNS = (sqlite3.Error, OSError)
PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)  # another process writes


def failure_of(error: BaseException) -> Failure:
    """Return the failure that a ledger or a file which can't be read or written is: one line with
    its place and, where there is one, the remedy. It is a TryAgain where another process writes the
    ledger, and where the disk is full."""
    if isinstance(error, sqlite3.Error):
        file = vars(error).get("ledger")  # None: not opened by `Ledger`
        ledger = file or "the store's ledger.db"
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # an extended code has more bits
        if code in PASSING:
            return TryAgain(f"{ledger}: {error}; wait for the process that writes it")
        if code == sqlite3.SQLITE_FULL:
            return NoRoom(f"{ledger}: {error}; free some space")
        remedy = ""
        if not isinstance(error, sqlite3.OperationalError):  # damaged
            from ablate.store import StoreFolder

            store = StoreFolder(file.parent if file else StoreFolder.default_root())
            command = store.command("doctor", "--repair")
            remedy = f"; `{command}` rebuilds it from the run folders"
        return Failure(f"{ledger}: {error}{remedy}")
    assert isinstance(error, OSError)
    place = f"{error.filename}: " if error.filename else ""
    if error.errno in DISK_FULL_ERRORS:
        return NoRoom(f"{place}{error.strerror}; free some space")
    return Failure(f"{place}{error.strerror or error}")


def stopped(line: str, number: int = signal.SIGINT) -> KeyboardInterrupt:
    """Return the error for Ctrl-C, or for another signal of this number that asks to stop, which a
    notebook shows as one line. Its `signal_number` is what a command's exit code says.

    It is no subclass, since Python ends a script by SIGINT for a KeyboardInterrupt alone, and a
    shell's loop over scripts ends with it.
    """
    error = KeyboardInterrupt(line)
    vars(error)["_render_traceback_"] = lambda: [f"KeyboardInterrupt: {line}"]
    vars(error)["signal_number"] = number
    return error


# Options of the commands that Python calls otherwise, and those that are a value of an argument.
ARGUMENTS = {
    **{"as": "name", "by": "grouping", "change": "changes", "metric": "metrics"},
    **{"each": "each=True", "replace": "replace=True", "no-wide": "wide=False"},
}
_CHANGE = "--change 'NAME: key=value ...'"
_PLACE = re.compile(r"^--([a-z-]+) ([^:`]+): ")  # an option with the value that it was given
_OPTION = re.compile(r"(?<![\w`-])--([a-z][a-z-]*)(?: ([A-Z]+|\d+)\b)?")


def in_python(line: str) -> str:
    """Return a line of a command with the options that it speaks of as arguments of Python:
    "--as NAME" is "name=NAME". Commands in backquotes stay as they are."""
    line = line.replace(_CHANGE, "changes={NAME: {KEY: VALUE}}")
    line = _PLACE.sub(lambda match: f"{_argument(match[1])}={match[2]}: ", line)
    parts = line.split("`")
    parts[::2] = [_OPTION.sub(_argument_of, part) for part in parts[::2]]
    return "`".join(parts)


def _argument_of(match: re.Match[str]) -> str:
    name, value = _argument(match[1]), match[2]
    return name if value is None else f"{name}={value}"


def _argument(option: str) -> str:
    return ARGUMENTS.get(option, option.replace("-", "_"))


def explained(call: Call) -> Call:
    """Make a call of the interface raise errors of one line: a UserError for arguments that it does
    not have, lacks, or can't take, a Failure for what breaks, and a KeyboardInterrupt with a line.
    What a line says of options is said of arguments."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def run(*args: object, **options: object) -> object:
        try:
            arguments = signature.bind(*args, **options).arguments
        except TypeError as error:
            raise _argument_error(call, signature, options, error) from None
        _check_types(call, signature, arguments)
        try:
            return call(*args, **options)
        except (UserError, Failure) as error:
            error.in_command = error.in_command or str(error)  # a call within has kept it
            error.args = (in_python(error.in_command), *error.args[1:])
            raise
        except KeyboardInterrupt as error:
            raise (error if error.args else stopped("stopped")) from None
        except BREAKDOWNS as error:
            raise failure_of(error) from error

    return run  # type: ignore[return-value]


def _argument_error(
    call: Callable[..., object],
    signature: inspect.Signature,
    options: Mapping[str, object],
    error: TypeError,
) -> UserError:
    """Return the error for arguments that a call does not have, or lacks."""
    place = _place(call)
    parameters = [str(name) for name in signature.parameters if name != "self"]
    for name in options:
        if name not in parameters:
            return unknown_value(place, name, parameters, "an argument among")
    starred = [_starred(signature.parameters[name]) for name in parameters]
    arguments = f"its arguments are {', '.join(starred)}" if starred else "it takes none"
    return UserError(f"{place}: {error}; {arguments}")


def _place(call: Callable[..., object]) -> str:
    """Return the name of a call as users write it: "Sweep.table"."""
    return call.__qualname__.removesuffix(".__init__")


def _starred(parameter: inspect.Parameter) -> str:
    """Return the name of a parameter, with the stars of one that takes several."""
    return str(parameter.replace(annotation=inspect.Parameter.empty)).partition("=")[0]


def _check_types(
    call: Callable[..., object], signature: inspect.Signature, arguments: Mapping[str, object]
) -> None:
    """Raise UserError for an argument of a type that the call's annotations rule out."""
    for name, value in arguments.items():
        parameter = signature.parameters[name]
        if name == "self" or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        hint = _hint(call, parameter)
        if not _is_a(value, hint):
            expectation = hint.__name__ if isinstance(hint, type) else str(hint)
            expectation = expectation.replace("collections.abc.", "").replace("typing.", "")
            raise UserError(f"{_place(call)}: {name}: expected {expectation}, got {value!r:.80}")


def _hint(call: Callable[..., object], parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter; Any where it names a module that is imported late."""
    try:
        return eval(parameter.annotation, vars(inspect.getmodule(call)))
    except NameError:
        return Any


def _is_a(value: object, hint: Any) -> bool:
    """Return whether a value may be of this type; only the entries of lists and tuples are
    checked, since others may be read once alone."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return True
    if kind in (Union, UnionType):
        return any(_is_a(value, part) for part in parts)
    if kind in NUMBERS:
        return isinstance(value, NUMBERS[kind])
    if kind is tuple:
        if not isinstance(value, Sequence) or len(value) != len(parts):
            return False
        return all(map(_is_a, value, parts))
    if kind in (Sequence, Collection):
        if isinstance(value, list | tuple):
            return all(_is_a(entry, parts[0]) for entry in value)
        return isinstance(value, Iterable)
    return isinstance(value, kind)


def explain_in_scripts() -> None:
    """Let Python print an error that one line explains, and that nothing catches, as that line on
    standard error, without a traceback. All other errors are printed as before.

    A hook of the program's own, or of its tools, which report errors, stays the only one: it gets
    every error, ours included.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _explain


def _explain(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    if isinstance(error, UserError | Failure):
        print(error.line, file=sys.stderr)
    elif isinstance(error, KeyboardInterrupt) and "_render_traceback_" in vars(error):
        print(f"KeyboardInterrupt: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, frames)
