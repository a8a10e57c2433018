"""The command that writes files to begin with: new."""

from __future__ import annotations

from typing import Annotated

import typer


def new(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="norm, stem, block, activation, model, optimizer, schedule, loss, augmentation, "
            "metric, probe, trainer, sweep, recipe or data.",
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the file.")],
) -> None:
    """Write a small working file of your own, and print the command that tries it."""
    from ablate.planning.templates import write

    written = write(kind, name)
    for path in written.files:
        print(f"wrote {path}")
    print(f"try it: {written.command}")
