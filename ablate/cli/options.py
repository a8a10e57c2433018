"""How the commands' options are declared, and those that several commands take."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ablate.cli import completing
from ablate.shared import extensions
from ablate.shared.errors import expected


def flag(name: str, help: str) -> Any:
    """An option that is there or not."""
    return typer.Option(name, help=help)


def option(metavar: str | None, help: str, *names: str, **more: Any) -> Any:
    """An option with a value. `names`: where they are not those of the parameter."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def argument(metavar: str | None, help: str, complete: Callable[..., Any] | None = None) -> Any:
    """An argument. `complete` lists what TAB offers."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete)


def _parser(kind: type[Any], what: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise typer.BadParameter(f"expected {what}, got {text!r}") from None

    return parse


number, whole = _parser(float, "a number"), _parser(int, "a whole number")  # values of options


def format_of(*formats: str, default: str = "") -> Any:
    """The option --format that takes one of these."""

    def parse(text: str) -> str:
        if text not in formats:
            raise typer.BadParameter(expected(text, formats))
        return text

    help, names = f"Output format{default}.", [*formats]
    complete: Any = lambda: names  # noqa: E731
    return option("|".join(names), help, "--format", parser=parse, autocompletion=complete)


READABLE = " (default: rich on a terminal, md elsewhere)"
TextFormat = Annotated[str, format_of("text", "json")]
YamlFormat = Annotated[str, format_of("yaml", "json")]
TrialsFormat = Annotated[str | None, format_of("rich", "md", "csv", "json", default=READABLE)]
TableFormat = Annotated[
    str | None,
    format_of(
        *("rich", "md", "latex", "html", "csv", "json"),
        *extensions.names("ablate_formats"),
        default=READABLE,
    ),
]
Rows = Annotated[
    str | None, option("A,B", "Rows to show; intervals stay those of the whole sweep.")
]
RunName = Annotated[str, argument("RUN", "LABEL@COLUMN#SEED, or the beginning of an id.")]
Scale = Annotated[
    str | None,
    option(None, "Scale of the sweep file to use.", "--scale", autocompletion=completing.scales),
]
StoreDir = Annotated[
    Path, option(None, "Folder of runs and results.", "--store", envvar="ABLATE_STORE")
]
RUNS = Path("runs")


def flat(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer takes it: each field of a dataclass, such as a Selection, is a parameter
    of its own.

    --store and --debug stand last. `main` looks for --debug by itself, since words that can't be
    read reach no command.
    """
    groups: dict[str, Any] = {}
    params: dict[str, inspect.Parameter] = {}
    for name, param in inspect.signature(command, eval_str=True).parameters.items():
        if dataclasses.is_dataclass(group := param.annotation):
            groups[name] = group
            hints = get_type_hints(group, include_extras=True)
            for part in _fields(group):
                made = part.default_factory
                default = part.default if made is dataclasses.MISSING else made()
                params[part.name] = _param(part.name, hints[part.name], default)
        else:
            params[name] = _param(name, param.annotation, param.default)
    if "store" in params:
        params["store"] = params.pop("store")
    params["debug"] = _param(
        "debug", Annotated[bool, flag("--debug", "Show the traceback of an error.")], False
    )

    @functools.wraps(command)
    def run(debug: bool, **given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{part.name: given.pop(part.name) for part in _fields(group)})
        command(**given)

    run.__signature__ = inspect.Signature([*params.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {}  # typer would evaluate them once more
    return run


def _fields(group: Any) -> list[dataclasses.Field[Any]]:
    return [part for part in dataclasses.fields(group) if part.init]


def _param(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
