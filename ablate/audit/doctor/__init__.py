"""`ablate doctor`: checks of the machine, of the store, and of bit-exact resume of a config.

Used by `ablate doctor` (cli/keeping.py). A check is a generator of findings in machine.py,
stored.py or resume_check.py, and is called in `run_checks` here; docs/json.keys describes
`findings_tree`.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from ablate.audit.doctor import machine, resume_check, site, stored
from ablate.audit.doctor.machine import PROGRESS, Finding, Findings, Unfit
from ablate.audit.doctor.null_tables import JudgedColumn, null_tables
from ablate.report import make_console
from ablate.run import RunSpec
from ablate.running import Ask, SiteJob, Slot
from ablate.shared import Failure, UserError
from ablate.store import Store

__all__ = [
    "Finding",
    "run_checks",
    "check_store",
    "null_tables",
    "print_findings",
    "findings_tree",
]


def run_checks(
    store: Store,
    settings: Mapping[str, Any],
    slots: Sequence[Slot],
    label: str,
    specs: Sequence[RunSpec],
    ask: Ask,
    unfit: Unfit,
) -> Findings:
    """Make every check; yield each finding as soon as it is known.

    `settings`: the launcher group. `slots`: the launcher's slots. The data of all `specs` and of
    their ancestors is checked, but resume only for the oldest ancestor of `specs[0]`, or for that
    run itself if it has none; `label` names `specs[0]`. `ask`: answers each question in a process
    of its own. `unfit`: maps slots that can't train to the reason (see `machine.kernels`).
    """
    ancestors = [[*spec.ancestors()] for spec in specs]
    root_spec = [specs[0], *ancestors[0]][-1]
    root_label = label + ".from" * len(ancestors[0])  # of the parent's parent: LABEL.from.from
    all_specs = [*specs, *chain.from_iterable(ancestors)]
    yield from _safely("versions", machine.versions)
    yield from _safely("extras", machine.extras)
    yield from _safely("devices", lambda: machine.devices(settings, slots, specs[0]))
    yield from _safely("gpu", lambda: machine.kernels(slots, unfit))
    yield from _safely("memory", machine.memory)
    yield from check_store(store)
    if (yield from _safely("data", lambda: resume_check.data(store, all_specs, ask))):
        check = partial(resume_check.resume, store, slots, root_label, root_spec, ask)
        yield from _safely("resume", check)


def check_store(store: Store, cluster: Mapping[str, Any] | None = None) -> Findings:
    """Make the checks of the store alone; first those of a cluster, by a job of its launcher (one
    on each host that the settings name), where its settings are given."""
    if cluster is not None:
        for settings in SiteJob.settings_of_each(cluster):
            yield from _safely("submit", partial(site.cluster, store, settings))
    yield from _safely("disk", lambda: stored.disk(store))
    if store.root.is_dir():
        yield from _safely("ledger", lambda: stored.content(store))
    else:
        yield Finding("ok", "store", f"{store.root} does not exist yet; `ablate sweep` makes it")


def _safely(name: str, check: Callable[[], Findings]) -> Generator[Finding, None, bool]:
    """Make one check, and return whether it ended. An error in it is a finding, and the
    other checks go on."""
    try:
        yield from check()
        return True
    except (UserError, Failure) as error:
        yield Finding("problem", name, str(error))
    except sqlite3.Error as error:
        yield Finding("problem", name, f"ledger.db: {error}")
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        yield Finding("problem", name, f"{place}{error.strerror or error}")
    return False


def print_findings(findings: Iterator[Finding]) -> list[Finding]:
    """Print each finding as it comes, in colours on a terminal; return all findings."""
    printed_findings = []
    for finding in findings:
        printed_findings.append(finding)
        _print(finding)
    return printed_findings


def findings_tree(findings: Sequence[Finding], repaired: Sequence[str]) -> dict[str, Any]:
    """Findings for `--format json`. findings: {level (ok, warning, problem), check, text};
    repaired: lines on what --repair did; statistics: the columns that --statistics judged."""
    return {
        "findings": [
            {"level": finding.level, "check": finding.check, "text": finding.text}
            for finding in findings
            if finding.level != PROGRESS
        ],
        "repaired": list(repaired),
        "statistics": [
            finding.numbers for finding in findings if isinstance(finding, JudgedColumn)
        ],
    }


COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red", PROGRESS: "dim"}


def _print(finding: Finding) -> None:
    if not sys.stdout.isatty():  # whatever FORCE_COLOR says
        print(f"{finding.level:8} {finding.check:9} {finding.text}", flush=True)
        return
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))  # long texts wrap in their own column
    for width in (8, 9, None):
        grid.add_column(width=width)
    style = COLOURS[finding.level]
    grid.add_row(Text(finding.level, style), Text(finding.check), Text(finding.text))
    make_console().print(grid)
