"""The commands, thin: they read words, call the half below, print. `--help` loads typer only."""

from __future__ import annotations

import os
import sqlite3
import sys
import traceback
from typing import Annotated

import typer

from ablate import __version__
from ablate.cli import driving, keeping, looking, publishing, tuning
from ablate.spec import Failure, UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Does this change to a Vision Transformer help, and how sure are we?",
)
data = typer.Typer(no_args_is_help=True, help="The images that runs learn from.")

for command in (
    driving.sweep,
    driving.plan,
    driving.stop,
    looking.status,
    looking.show,
    looking.table,
    looking.plot,
    tuning.trials,
    publishing.report,
    publishing.export,
):
    app.command()(command)
app.command(name="list")(looking.list_)
app.command()(looking.config)
for keeper in (keeping.doctor, keeping.verify, keeping.gc):
    app.command()(keeper)
app.add_typer(data, name="data")
data.command()(keeping.prepare)


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """`ablate`: exit code 2 for the user's mistake, 1 for a failure, each with one line."""
    try:
        app(standalone_mode=True)
    except (UserError, Failure) as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        print(f"ablate: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except BrokenPipeError:  # `ablate table | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except sqlite3.Error as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        broken = not isinstance(error, sqlite3.OperationalError)
        remedy = "; `ablate doctor --repair` makes it again from the run folders" if broken else ""
        print(f"ablate: the store's ledger.db: {error}{remedy}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:  # a store that is a file, or can't be written to
        if "--debug" in sys.argv:
            traceback.print_exc()
        place = f"{error.filename}: " if error.filename else ""
        print(f"ablate: {place}{error.strerror or error}", file=sys.stderr)
        sys.exit(1)
