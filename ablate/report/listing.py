"""What `ablate list` prints: everything that may be chosen, by name, with a line and its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ablate.analysis import paper
from ablate.planning.conf import shipped
from ablate.planning.launcher import DRIVER, LAUNCHERS
from ablate.report.plot import KINDS as PLOTS
from ablate.shared import choices
from ablate.shared.choices import Choice, Param
from ablate.shared.errors import unknown

Lines = Iterator[tuple[str, str, str]]


def _choices(table: dict[str, Choice]) -> Lines:
    for name, choice in table.items():
        keys = ", ".join(f"{key}={param.default}" for key, param in choice.params.items())
        yield name, choice.line + (f" [{keys}]" if keys else ""), choice.source


def _launchers() -> Lines:
    """Each with its settings, then those that every one has."""
    for name, choice in LAUNCHERS.items():
        yield name, choice.line, choice.source
        yield from _params(choice.params)
    yield "each", "also has", "-"
    yield from _params(DRIVER)


def _params(params: Mapping[str, Param]) -> Lines:
    for key, param in params.items():
        yield f"  launcher.{key}={param.default}", param.line, "-"


def _archs() -> Lines:
    for name, arch in choices.ARCHS.items():
        size = f"width {arch.width}, depth {arch.depth}, {arch.heads} heads"
        yield name if arch.patch else f"{name}/PATCH", size, arch.source


def _files(group: str) -> Lines:
    """Options that are files in conf/, the user's first; the line is their first sentence."""
    found: dict[str, Path] = {}
    for folder in (Path("conf"), shipped("conf")):
        for path in sorted((folder / group).glob("*.yaml")):
            found.setdefault(path.stem, path)
    for name, path in sorted(found.items()):
        comment = " ".join(
            line.strip("# ")
            for line in path.read_text().splitlines()
            if line.startswith("#") and "@package" not in line
        )
        yield name, comment.partition(". ")[0].rstrip("."), str(path)


# How a kind is chosen on the command line, and its lines.
KINDS: dict[str, tuple[str, Callable[[], Lines]]] = {
    "norms": ("norm=", lambda: _choices(choices.NORMS)),
    "stems": ("stem=", lambda: _choices(choices.STEMS)),
    "blocks": ("block=", lambda: _choices(choices.BLOCKS)),
    "archs": ("model.arch=", _archs),
    "data": ("data=", lambda: _files("data")),
    "recipes": ("recipe=", lambda: _files("recipe")),
    "launchers": ("launcher=", _launchers),
    "paper": ("ablate table paper:NAME", paper.listing),
    "probes": ("probe=[NAME, ...]", lambda: _choices(choices.PROBES)),
    "plots": (
        "ablate plot [SWEEP] NAME",
        lambda: ((name, kind.line, kind.source) for name, kind in PLOTS.items()),
    ),
}


def listing(kind: str | None, sweeps: Callable[[], Lines]) -> str:
    """The lines of one kind, or of all for None. `sweeps` gives (name, title, file).

    Raises UserError for a kind that there is not.
    """
    kinds = {"sweeps": ("ablate sweep ", sweeps), **KINDS}
    if kind is not None and kind not in kinds:
        raise unknown("list", kind, kinds)
    parts = []
    for name in [kind] if kind else kinds:
        how, lines = kinds[name]
        own = f", or {how}module:Class of your own" if how.rstrip("=") in choices.CHOICES else ""
        if "NAME" not in how:
            how = f"{how}NAME"
        part = [f"{name}  ({how}{own})"]
        for choice, line, source in lines():
            part.append(f"  {choice:<12} {line}" + (f"  -- {source}" if source != "-" else ""))
        parts.append("\n".join(part))
    return "\n\n".join(parts)
