"""Verifies what a ledger says of a sweep as a whole: seals of its events, the plan, the looks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from ablate.planning.plan import Plan
from ablate.shared.errors import Failure
from ablate.shared.files import sha256_of
from ablate.store.events import PLANNING
from ablate.store.ledger import Ledger
from ablate.store.store import Store


def check_ledger(plan: Plan, store: Store, ledger: Ledger) -> tuple[list[str], list[str]]:
    """Return the findings, and a note on each fact that could not be checked."""
    findings = [*_seals(store, ledger), *_looks(store, ledger)]
    notes: list[str] = []
    path = store.plan_path(plan.name)
    announced = False
    try:
        told = ledger.plan_events(plan.name)
    except Failure as error:
        findings.append(str(error))
    else:
        last, detail = told[0] if told else ("", {})
        announced = last == PLANNING and detail["sha256"] == sha256_of(path)
        if sha256_of(path) not in [detail["sha256"] for _, detail in told]:
            findings.append(
                f"{path.name}: differs from the plan that {store.ledger.name} has sealed; the same "
                f"`ablate sweep` writes it again"
            )
        elif "rebuilt" in told[-1][1]:
            notes.append(
                f"{path.name}: was read from its file when the ledger was rebuilt, so "
                f"an earlier edit can't be found; the same `ablate sweep` seals the plan"
            )
    if ledger.planned(plan.name) == list(enumerate(run.id for run in plan.runs())):
        return findings, notes
    if announced:
        notes.append(f"{path.name}: a crash came when it was written; the same command goes on")
    else:
        findings.append(
            f"{store.ledger.name}: its planned runs of {plan.name!r} differ from the runs of {path}"
        )
    return findings, notes


def _seals(store: Store, ledger: Ledger) -> Iterator[str]:
    place = store.ledger.name
    for number in ledger.broken_seals():
        yield (
            f"{ledger.about(number) or 'a look'}: {place}: event {number} was changed, or an event "
            f"before it was removed"
        )
    if ledger.lacks_its_end():
        yield f"{place}: its last events were removed"


def _looks(store: Store, ledger: Ledger) -> Iterator[str]:
    """Check the file of looks against the ledger."""
    path = store.looks
    said = path.read_bytes() if path.exists() else b""
    lines = zip_longest(said.splitlines(True), ledger.looks_text().splitlines(True))
    wrong = [number for number, (line, known) in enumerate(lines, 1) if line != known]
    if wrong:
        where = f"line {wrong[0]}" if path.exists() else "the missing file"
        yield (
            f"{path.name}: {where} differs from {store.ledger.name}, which counts; the next look "
            f"writes the file again"
        )
