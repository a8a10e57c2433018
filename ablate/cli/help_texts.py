"""The pages that `--help` shows: an example first, and no Python types.

Used by cli/__init__.py, which adds each command with it. A new example also has to stand on a page
of the manual (tests/test_docs.py), and in docs/options.md, which tests/options_page.py writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer
import typer.core

from ablate.cli.options import flat

# By command; each is typed on a page of the manual, too.
EXAMPLES = {
    "sweep": "sweep quickstart",
    "plan": "plan quickstart",
    "stop": "stop",
    "run": "run 'Dual PatchNorm#7' --skip",
    "new": "new norm my_norm",
    "list": "list stems",
    "config": "config stem=dpn model.depth=6",
    "status": "status quickstart",
    "watch": "watch quickstart",
    "show": "show 'Dual PatchNorm#2'",
    "table": "table quickstart --show gain,n,verdict --format md",
    "plot": "plot quickstart gain",
    "trials": "trials table7@smoke",
    "mcp": "mcp --allow sweep",
    "report": "report quickstart",
    "export": "export quickstart handed-on",
    "merge": "merge handed-on --store both",
    "import": "import runs.csv --as paper2 --row method --column dataset --seed seed "
    "--metric acc:more:% --baseline base",
    "doctor": "doctor",
    "verify": "verify quickstart",
    "gc": "gc",
    "data prepare": "data prepare digits",
    "gate start": "gate start idea trainer=line --pin line.py:evaluate",
    "gate try": "gate try idea --note 'ten times the steps'",
    "gate log": "gate log idea",
    "gate show": "gate show idea 1",
    "gate restore": "gate restore idea 1 .",
}


def add(
    app: typer.Typer, command: Callable[..., None], panel: str | None = None, group: str = ""
) -> None:
    """Add a command. Its help begins with an example; lists of commands have its first sentences.

    `panel`: the heading that it stands below in the list; `group`: the words before its name, of a
    command whose name another one has, too.
    """
    name = command.__name__.rstrip("_")
    text = inspect.getdoc(command) or ""
    example = EXAMPLES[f"{group} {name}".strip()]
    decorate = app.command(
        name=name,
        cls=TypelessCommand,
        help=f"Example: ablate {example}\n\n{text}",
        short_help=" ".join(text.partition("\n\n")[0].split()),
        rich_help_panel=panel,
    )
    decorate(flat(command))


class TypelessCommand(typer.core.TyperCommand):
    """A command whose help says what the values of an option mean, not their types in Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class TypelessGroup(typer.core.TyperGroup):
    """A group of such commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _without_types(params: list[Any]) -> list[Any]:
    """Take the types off flags and arguments, where typer shows `<bool>` and `<list[str]>`. Typer
    has no setting for it: an empty metavar does it for flags, and a method for arguments."""
    for param in params:
        if isinstance(param, typer.core.TyperArgument):
            vars(param)["display_type_rich"] = _no_type
        elif param.is_flag:
            param.metavar = ""
    return params


def _no_type(ctx: Any) -> None:
    return None
