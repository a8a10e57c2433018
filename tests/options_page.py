"""Writes docs/options.md, the commands and options as `--help` has them:
`python tests/options_page.py`, with `.` and `tests` on the path."""

from collections.abc import Iterator

import typer
from conftest import REPOSITORY

from ablate import cli
from ablate.cli import help_texts

MANY = 8  # commands that share an option which is told once, above all


def commands() -> Iterator[tuple[str, typer.core.TyperCommand]]:
    """Every command, subcommands in their place."""
    for name, command in typer.main.get_command(cli.app).commands.items():
        inner = getattr(command, "commands", {})
        yield from {f"{name} {sub}": one for sub, one in inner.items()}.items() or [(name, command)]


def options(command: typer.core.TyperCommand) -> dict[str, str]:
    """An option as it is typed -> its help."""
    found = {}
    for param in command.params:
        names = [n for n in (*param.opts, *param.secondary_opts) if n.startswith("-")]
        if names and param.name != "help":
            value = param.metavar or param.name.upper()
            typed = f"`{', '.join(names)}{'' if param.is_flag else f' {value}'}`"
            text = " ".join((param.help or "").split())
            found[typed.replace("|", "\\|")] = text.replace("|", "\\|")
    return found


def table(rows: dict[str, str]) -> list[str]:
    return ["| option | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())]


def written() -> str:
    """The page."""
    each = {name: options(command) for name, command in commands()}
    told = [(name, row) for rows in each.values() for name, row in rows.items()]
    shared = {name: text for name, text in told if told.count((name, text)) >= MANY}
    lines = ["# Commands and options", "", "[All pages](README.md)", ""]
    lines += ["<!-- Written by tests/options_page.py from `ablate COMMAND --help`. -->", ""]
    lines += ["Most commands take these; `ablate COMMAND --help` says which."]
    lines += ["", *table(shared)]
    for name, command in commands():
        example = help_texts.EXAMPLES[name]
        lines += [
            "",
            f"## `ablate {name}`",
            "",
            f"{command.short_help} Example: `ablate {example}`",
        ]
        own = {name: text for name, text in each[name].items() if shared.get(name) != text}
        if own:
            lines += ["", *table(own)]
    own = options(typer.main.get_command(cli.app))
    lines += ["", "## `ablate` itself", "", *table(own)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (REPOSITORY / "docs" / "options.md").write_text(written())
