"""The commands, thin: they read words, call the half below, print. `--help` loads typer only."""

from __future__ import annotations

import signal
import sys

_OURS = [arg.rpartition("/")[2] for arg in sys.argv[:1]] == ["ablate"] and (
    signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _OURS:  # until `main` answers it, Ctrl-C ends the process without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import errno  # noqa: E402
import os  # noqa: E402
import sqlite3  # noqa: E402
import threading  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Callable  # noqa: E402
from types import FrameType  # noqa: E402
from typing import Annotated  # noqa: E402

import typer  # noqa: E402

from ablate.cli import (  # noqa: E402
    choosing,
    driving,
    gate,
    help_texts,
    importing,
    keeping,
    looking,
    publishing,
    serving,
)
from ablate.cli.answers import Answer, asks_for_json  # noqa: E402
from ablate.cli.mistakes import UsageError, in_words  # noqa: E402
from ablate.report import gate_output  # noqa: E402
from ablate.shared import (  # noqa: E402
    ENDING_SIGNALS,
    Failure,
    TryAgain,
    UserError,
    printable,
)
from ablate.version import __version__  # noqa: E402

app = typer.Typer(
    cls=help_texts.TypelessGroup,
    pretty_exceptions_enable=False,
    help="Does this change to a Vision Transformer help, and how sure are we?\n\n"
    "Begin with the quick start: ablate sweep quickstart",
)
data = typer.Typer(cls=help_texts.TypelessGroup, help="Prepare datasets.")

GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Train": (
        *(driving.sweep, driving.plan, driving.stop, driving.run),
        *(choosing.new, choosing.list_, choosing.config),
    ),
    "Look": (
        *(looking.status, looking.watch, looking.show, looking.table, looking.plot),
        *(looking.trials, serving.mcp),
    ),
    "Share": (publishing.report, publishing.export, keeping.merge, importing.import_),
    "Keep": (keeping.doctor, keeping.verify, keeping.gc),
}
for group, commands in GROUPS.items():
    for command in commands:
        help_texts.add(app, command, group)
app.add_typer(data, name="data", rich_help_panel="Keep")
help_texts.add(data, choosing.prepare, group="data")
stream = typer.Typer(
    cls=help_texts.TypelessGroup,
    help="Keep or discard a stream of changes, with few false keeps.",
)
app.add_typer(stream, name="gate", rich_help_panel="Train")
for command in (gate.start, gate.try_, gate.log, gate.show, gate.restore):
    help_texts.add(stream, command, group="gate")


def _version(is_set: bool) -> None:
    if is_set:
        print(__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)
        raise typer.Exit(2)


EXIT_FAILURE, EXIT_MISTAKE = 1, 2
EXIT_TRY_AGAIN = os.EX_TEMPFAIL  # 75

_heard: list[int] = []


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, as Python's own handler does, and note the signal: a library that it
    interrupts may end with any other error."""
    _heard.append(number)
    raise KeyboardInterrupt


def _interrupt_code() -> int:
    """Return the exit code of a command that was interrupted: 128 + the signal."""
    return 128 + next(iter(_heard), signal.SIGINT)


def _dropped(unraisable: sys.UnraisableHookArgs) -> None:
    """Send a Ctrl-C again that Python dropped, because it came in a destructor or in the callback
    of a weak reference, as each import has one."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


def main() -> None:
    """Run `ablate` and exit: with 2 for the user's mistake, 75 for what can't be had now and 1 for
    another failure, each with one line of text; silently, as other commands do, with 130 after
    Ctrl-C, 143 after SIGTERM and 129 after SIGHUP, and with 141 where nobody reads the output.
    Under `--format json` each but the last also prints an object."""
    try:
        for number in ENDING_SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _interrupt)
        if _OURS:
            sys.unraisablehook = _dropped
        _open_closed()
        with gate_output():
            code = _answer() if asks_for_json(sys.argv[1:]) else _run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _interrupt_code()
    except Exception as error:
        if lost_reader := _lost_reader(error):
            code = 128 + lost_reader
            for stream in (sys.stdout, sys.stderr):  # what they still hold nobody can read
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        elif _heard:
            code = _interrupt_code()
        else:
            raise
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL)  # while the interpreter ends
    sys.exit(code)


def _lost_reader(error: Exception) -> int | None:
    """Return the signal that stands for an output that nobody reads: SIGPIPE for `ablate table |
    head`, SIGHUP for a terminal that was closed. Return None for any other error."""
    if isinstance(error, BrokenPipeError):
        return signal.SIGPIPE
    if isinstance(error, OSError) and error.errno == errno.EIO:
        return signal.SIGHUP
    return None


def _open_closed() -> None:
    """Open the null device for each standard stream that the shell closed (`>&-`): else the next
    file that is opened would take its number, and workers would print into that file."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def _answer() -> int:
    """Run the command with one object as its output, and return its exit code."""
    with Answer(sys.stdout) as answer:
        try:
            code = _run()
        except KeyboardInterrupt:
            code = _interrupt_code()
        except (BrokenPipeError, SystemExit):
            raise
        except Exception as error:  # of ours: the traceback is for whoever mends it
            if _heard:  # a library that a signal interrupted ended with it
                code = _interrupt_code()
            else:
                traceback.print_exc()
                code, answer.error = EXIT_FAILURE, Failure(f"{type(error).__name__}: {error}")
        if code > 128:
            name = signal.Signals(code - 128).name
            answer.error = TryAgain(f"stopped by {name}; give the same command again")
        answer.print()
    return code


def _run() -> int:
    """Run the command and return its exit code."""
    try:
        code: int = app(prog_name="ablate", standalone_mode=False) or 0
        return _interrupt_code() if code == 128 + signal.SIGINT else code  # typer says 130 of all
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer and rich would say 1
            raise BrokenPipeError from ended
        raise
    except UsageError as error:
        command, _, problem = in_words(error).partition(": ")
        return _fail(UserError(problem), command)
    except (UserError, Failure) as error:
        return _fail(error)
    except typer.Abort:  # Ctrl-C, or no more input, where it asked
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        raise
    except (sqlite3.Error, OSError) as error:  # damaged, not writable, no folder
        from ablate.api import failure_of

        return _fail(failure_of(error))


def _fail(error: UserError | Failure, command: str = "ablate") -> int:
    """Print an error in one line, keep it for the answer, and return the exit code."""
    if _heard:
        raise KeyboardInterrupt
    if "--debug" in sys.argv:
        traceback.print_exc()
    error.args = (error.in_command or str(error), *error.args[1:])
    if Answer.current is not None:
        Answer.current.error = error
    print(printable(f"{command}: {error}"), file=sys.stderr)
    if isinstance(error, UserError):
        return EXIT_MISTAKE
    return EXIT_TRY_AGAIN if error.retry else EXIT_FAILURE
