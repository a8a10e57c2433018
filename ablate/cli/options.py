"""How the commands' options are declared, and those that several commands take.

The names that TAB offers beyond commands and options, which typer knows. The scripts that
`ablate --install-completion` installs ask for them: nothing is composed, no ledger is opened.

Used by every command (all files of cli/ that declare options). A new option also needs
docs/options.md, which tests/options_page.py writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ablate.cli.answers import choose_keys
from ablate.run import parts
from ablate.shared import UserError, expected_words

# They take sweep files; other commands take driven sweeps.
DECLARING_COMMANDS = (
    "sweep",
    "plan",
    "config",
    "doctor",
)
MORE_KEYS = ("data", "launcher", "logger", "model", "probe", "recipe", "seeds", "trainer")


def words(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of sweeps; keys, once a letter is typed; the choices of a key such as `norm=`."""
    from ablate.planning import sweep_files
    from ablate.report import key_lines
    from ablate.run import CHOICES

    tokens = [word for word in ctx.params.get("words") or () if word != "="]
    key, equals, _ = incomplete.partition("=")
    if equals:
        return [f"{key}={name}" for name in CHOICES.get(key, ())]
    if tokens and tokens[-1] in CHOICES:  # bash takes what stands behind `=` for a word of its own
        return list(CHOICES[tokens[-1]])
    # of a driven sweep, only the keys that say how it is read
    section = "" if ctx.info_name in DECLARING_COMMANDS else "analysis."
    keys = dict.fromkeys(line.partition("=")[0] for line, *_ in key_lines({}) if "=" in line)
    candidates = (key for key in (*keys, *MORE_KEYS) if key.startswith(section))
    names = [f"{key}=" for key in candidates] if incomplete else []
    if not tokens:
        names += sweep_files() if ctx.info_name in DECLARING_COMMANDS else _sweep_names(ctx)
    if ctx.info_name == "plot":
        from ablate.report import FIGURE_KINDS

        names += FIGURE_KINDS
    return names


def scales(ctx: typer.Context) -> list[str]:
    """Return the scales of the sweep file that the words name; typer leaves these in `args` after
    `--scale`."""
    from ablate.planning import find_sweep_file, load_sweep_file

    with contextlib.suppress(UserError, KeyError):
        return [
            *load_sweep_file(find_sweep_file([*(ctx.params.get("words") or ()), *ctx.args, ""][0]))[
                1
            ]["scales"]
        ]
    return []


def kinds() -> list[str]:
    """Return the kinds of things that `ablate list` lists."""
    from ablate.report import CATALOGUE_KINDS

    return ["sweeps", *CATALOGUE_KINDS, "keys"]


def _sweep_names(ctx: typer.Context) -> Iterator[str]:
    """Yield the names of driven sweeps that TAB offers, without those with a space, which bash
    would take for two words."""
    from ablate.store import StoreFolder

    store = Path(ctx.params.get("store") or StoreFolder.default_root())
    for path in StoreFolder(store).plans():
        with contextlib.suppress(OSError, ValueError, KeyError):
            name = json.loads(path.read_bytes())["name"]
            yield from [name] * (" " not in name)


def flag(name: str, help: str) -> Any:
    """Make a flag: an option without a value."""
    return typer.Option(name, help=help)


def option(metavar: str | None, help: str, *names: str, **settings: Any) -> Any:
    """Make an option with a value. `names`: where they are not those of the parameter."""
    return typer.Option(*names, metavar=metavar, help=help, **settings)


def argument(metavar: str | None, help: str, complete: Callable[..., Any] | None = None) -> Any:
    """Make an argument. `complete` lists the values that TAB offers."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete)


def _parser(kind: type[Any], description: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise typer.BadParameter(f"expected {description}, got {text!r}") from None

    return parse


# parsers of the values of options
number, whole_number = _parser(float, "a number"), _parser(int, "a whole number")


def word_of(*words: str) -> Callable[[str], str]:
    """Make the parser of an option whose value is one of these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(expected_words(text, words))
        return text

    return parse


def format_of(*formats: str, default: str = "") -> Any:
    """Make the option --format, whose value is one of these formats."""

    help, names = f"Output format{default}.", [*formats]
    complete: Any = lambda: names  # noqa: E731
    return option(
        "|".join(names), help, "--format", parser=word_of(*formats), autocompletion=complete
    )


READABLE = " (default: rich on a terminal, md elsewhere)"
TextFormat = Annotated[str, format_of("text", "json")]
YamlFormat = Annotated[str, format_of("yaml", "json")]
TrialsFormat = Annotated[str | None, format_of("rich", "md", "csv", "json", default=READABLE)]
TableFormat = Annotated[
    str | None,
    format_of(
        *("rich", "md", "latex", "html", "csv", "tidy", "json"),
        *parts.names("ablate_formats"),
        default=READABLE,
    ),
]
Rows = Annotated[
    str | None, option("A,B", "Rows to show; intervals stay those of the whole sweep.")
]
RunName = Annotated[str, argument("RUN", "LABEL@COLUMN#SEED, or the beginning of an id.")]
Scale = Annotated[
    str | None,
    option("NAME", "Scale of the sweep file to use.", "--scale", autocompletion=scales),
]
StoreDir = Annotated[
    Path, option("DIR", "Folder of runs and results.", "--store", envvar="ABLATE_STORE")
]
Fields = Annotated[
    str | None,
    option(
        "KEY,KEY",
        "With --format json: only these keys, wherever they are, with the labels of their objects.",
        "--fields",
    ),
]
RUNS = Path("runs")


def flat(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command in the form that typer takes: each field of a dataclass, such as a
    Selection, is a parameter of its own. --fields, --store and --debug come last, behind --format,
    which each command has. `main` looks for --format and --debug by itself, since no command sees
    words that can't be read."""
    groups: dict[str, Any] = {}
    params: dict[str, inspect.Parameter] = {}
    for name, param in inspect.signature(command, eval_str=True).parameters.items():
        if dataclasses.is_dataclass(group := param.annotation):
            groups[name] = group
            hints = get_type_hints(group, include_extras=True)
            for part in _fields(group):
                factory = part.default_factory
                default = part.default if factory is dataclasses.MISSING else factory()
                params[part.name] = _param(part.name, hints[part.name], default)
        else:
            params[name] = _param(name, param.annotation, param.default)
    has_format = "format" in params
    if not has_format:
        params["format"] = _param("format", TextFormat, "text")
    params["fields"] = _param("fields", Fields, None)
    if "store" in params:
        params["store"] = params.pop("store")
    params["debug"] = _param(
        "debug", Annotated[bool, flag("--debug", "Show the traceback of an error.")], False
    )

    @functools.wraps(command)
    def run(debug: bool, fields: str | None, **values: Any) -> None:
        if fields is not None:
            choose_keys(fields)
        if not has_format:
            del values["format"]
        for name, group in groups.items():
            values[name] = group(**{part.name: values.pop(part.name) for part in _fields(group)})
        command(**values)

    run.__signature__ = inspect.Signature([*params.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {}  # typer would evaluate them once more
    return run


def _fields(group: Any) -> list[dataclasses.Field[Any]]:
    return [part for part in dataclasses.fields(group) if part.init]


def _param(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
