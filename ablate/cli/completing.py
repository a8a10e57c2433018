"""The names that TAB offers beyond commands and options, which typer knows. The scripts that
`ablate --install-completion` installs ask for them: nothing is composed, no ledger is opened."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import typer

from ablate.shared.errors import UserError

DECLARED = ("sweep", "plan", "config", "doctor")  # of sweep files; others are of driven sweeps
MORE_KEYS = ("data", "launcher", "logger", "model", "probe", "recipe", "seeds", "trainer")


def words(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of sweeps; keys, once a letter is typed; the choices of a key such as `norm=`."""
    from ablate.planning.sweep_paths import sweep_files
    from ablate.report.listing import key_lines
    from ablate.shared.choices import CHOICES

    before = [word for word in ctx.params.get("words") or () if word != "="]
    key, equals, _ = incomplete.partition("=")
    if equals:
        return [f"{key}={name}" for name in CHOICES.get(key, ())]
    if before and before[-1] in CHOICES:  # bash takes what stands behind `=` for a word of its own
        return list(CHOICES[before[-1]])
    section = "" if ctx.info_name in DECLARED else "analysis."  # of what is driven: how it is read
    keys = dict.fromkeys(line.partition("=")[0] for line, *_ in key_lines({}) if "=" in line)
    known = (key for key in (*keys, *MORE_KEYS) if key.startswith(section))
    names = [f"{key}=" for key in known] if incomplete else []
    if not before:
        names += sweep_files() if ctx.info_name in DECLARED else _driven(ctx)
    if ctx.info_name == "plot":
        from ablate.report.plot import KINDS

        names += KINDS
    return names


def scales(ctx: typer.Context) -> list[str]:
    """The scales of the sweep file that the words name, which typer leaves in `args` behind
    `--scale`."""
    from ablate.planning.sweep_file import load
    from ablate.planning.sweep_paths import find

    with contextlib.suppress(UserError, KeyError):
        return [*load(find([*(ctx.params.get("words") or ()), *ctx.args, ""][0]))[1]["scales"]]
    return []


def kinds() -> list[str]:
    """What `ablate list` lists."""
    from ablate.report.listing import KINDS

    return ["sweeps", *KINDS, "keys"]


def _driven(ctx: typer.Context) -> Iterator[str]:
    """A name with a space is left out: bash would take it for two words."""
    from ablate.store.folder import StoreFolder

    store = ctx.params.get("store") or os.environ.get("ABLATE_STORE") or "runs"
    for path in StoreFolder(Path(store)).plans():
        with contextlib.suppress(OSError, ValueError, KeyError):
            name = json.loads(path.read_bytes())["name"]
            yield from [name] * (" " not in name)
