"""What `ablate doctor` finds: of the machine, of the store, and of resuming on your own config."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from ablate.audit.doctor import machine, rehearsal, stored
from ablate.audit.doctor.finding import Finding, Findings
from ablate.planning.plan import spec_parents
from ablate.running.launchers import Ask, Slot
from ablate.shared.errors import Failure, UserError
from ablate.store.store import Store

__all__ = ["Finding", "examine", "examine_store", "show", "tree"]


def examine(
    store: Store,
    settings: Mapping[str, Any],
    slots: Sequence[Slot],
    label: str,
    specs: Sequence[Mapping[str, Any]],
    ask: Ask,
) -> Findings:
    """Every check, each told as soon as it is known.

    `settings`: the launcher group, `slots`: what that launcher has, `specs`: plain trees, first
    that of the run called `label`, which is rehearsed, or the eldest run that it starts from; of
    the others the data is looked for. `ask`: a process of its own answers each question.
    """
    above = [[*spec_parents(spec)] for spec in specs]
    label += ".from" * len(above[0])
    first = [specs[0], *above[0]][-1]
    specs = [*specs, *chain.from_iterable(above)]
    yield from _safely("versions", machine.versions)
    yield from _safely("devices", lambda: machine.devices(settings, slots, specs[0]))
    yield from _safely("memory", machine.memory)
    yield from examine_store(store)
    if (yield from _safely("data", lambda: rehearsal.data(store, specs, ask))):
        yield from _safely("resume", lambda: rehearsal.resume(store, slots, label, first, ask))


def examine_store(store: Store) -> Findings:
    """The checks of the store alone."""
    yield from _safely("disk", lambda: stored.disk(store))
    if store.root.is_dir():
        yield from _safely("ledger", lambda: stored.content(store))
    else:
        yield Finding("ok", "store", f"{store.root} is not there yet: `ablate sweep` makes it")


def _safely(what: str, check: Callable[[], Findings]) -> Generator[Finding, None, bool]:
    """A check that can't be made is a problem of its own, and the others go on. Was it made?"""
    try:
        yield from check()
        return True
    except (UserError, Failure) as error:
        yield Finding("problem", what, str(error))
    except sqlite3.Error as error:
        yield Finding("problem", what, f"ledger.db: {error}")
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        yield Finding("problem", what, f"{place}{error.strerror or error}")
    return False


def show(findings: Iterator[Finding]) -> list[Finding]:
    """Print each as it comes, in colours on a terminal; returns them all."""
    shown = []
    for finding in findings:
        shown.append(finding)
        _print(finding)
    return shown


def tree(findings: Sequence[Finding], repaired: Sequence[str]) -> dict[str, Any]:
    """For `--format json`: findings: {level (ok, warning, problem), check, text}; repaired: lines
    on what --repair did."""
    return {
        "findings": [
            {"level": finding.level, "check": finding.what, "text": finding.text}
            for finding in findings
            if finding.level != "..."
        ],
        "repaired": list(repaired),
    }


COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red", "...": "dim"}


def _print(finding: Finding) -> None:
    if not sys.stdout.isatty():  # whatever FORCE_COLOR says
        print(f"{finding.level:8} {finding.what:9} {finding.text}", flush=True)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))  # long texts wrap in their own column
    for width in (8, 9, None):
        grid.add_column(width=width)
    style = COLOURS[finding.level]
    grid.add_row(Text(finding.level, style), Text(finding.what), Text(finding.text))
    Console().print(grid)
