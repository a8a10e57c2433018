"""Errors that one line explains, wherever Python shows them: a notebook, a script, `python -c`."""

from __future__ import annotations

import functools
import sqlite3
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from ablate.shared import Failure, UserError

Call = TypeVar("Call", bound=Callable[..., object])
BREAKDOWNS = (sqlite3.Error, OSError)


def failure_of(error: BaseException) -> Failure:
    """Return the failure that a ledger or a file which can't be read or written is: one line with
    its place and, where there is one, the remedy."""
    if isinstance(error, sqlite3.Error):
        damaged = not isinstance(error, sqlite3.OperationalError)
        remedy = "; `ablate doctor --repair` rebuilds it from the run folders" if damaged else ""
        return Failure(f"the store's ledger.db: {error}{remedy}")
    assert isinstance(error, OSError)
    place = f"{error.filename}: " if error.filename else ""
    return Failure(f"{place}{error.strerror or error}")


def stopped(line: str) -> KeyboardInterrupt:
    """Return the error for Ctrl-C, which a notebook shows as one line.

    It is no subclass, since Python ends a script by SIGINT for a KeyboardInterrupt alone, and a
    shell's loop over scripts ends with it.
    """
    error = KeyboardInterrupt(line)
    vars(error)["_render_traceback_"] = lambda: [f"KeyboardInterrupt: {line}"]
    return error


def explained(call: Call) -> Call:
    """Make a call of the interface raise what breaks as a Failure, and Ctrl-C with a line."""

    @functools.wraps(call)
    def run(*args: object, **options: object) -> object:
        try:
            return call(*args, **options)
        except KeyboardInterrupt as error:
            raise (error if error.args else stopped("stopped")) from None
        except BREAKDOWNS as error:
            raise failure_of(error) from error

    return run  # type: ignore[return-value]


def explain_in_scripts() -> None:
    """Let Python print an error that one line explains, and that nothing catches, as that line on
    standard error, without a traceback. All other errors are printed as before."""
    previous = sys.excepthook
    if getattr(previous, "explains", False):
        return

    def hook(
        kind: type[BaseException], error: BaseException, frames: TracebackType | None
    ) -> None:
        if isinstance(error, UserError | Failure):
            print(error.line, file=sys.stderr)
        elif isinstance(error, KeyboardInterrupt) and "_render_traceback_" in vars(error):
            print(f"KeyboardInterrupt: {error}", file=sys.stderr)
        else:
            previous(kind, error, frames)

    vars(hook)["explains"] = True
    sys.excepthook = hook
