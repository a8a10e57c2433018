"""Verifies the decoded datasets of a sweep, and that its runs were trained and tested on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ablate.planning.cell import PlannedRun
from ablate.shared import decoded
from ablate.shared.files import read_json
from ablate.shared.spec import also_of, datasets_of
from ablate.store.store import Store

# By run: data_sha256 by the name in `eval.also`, "": of its own; one that diverged read no other.
Read = Mapping[str, Mapping[str, object]]


def check_data(runs: Iterable[PlannedRun], store: Store, read: Read) -> tuple[list[str], list[str]]:
    """Return the findings, and a note on each set that could not be checked. `read`: the hashes of
    what runs say they read."""
    findings, notes, runs = [], [], list(runs)
    told = (data for run in runs for data in datasets_of(run.cell.spec))
    sets = {data["fingerprint"]: data for data in told}
    for fingerprint, data in sets.items():
        name, home = f"data={data['name']}", store.cache / fingerprint
        if not home.is_dir():
            notes.append(f"{name} is not decoded here, so it was not checked")
            continue
        wrong = decoded.damage(home)
        if wrong is not None:
            findings.append(f"{name}: {home}: {wrong}; the same `ablate sweep` decodes it again")
        elif others := _of_other_bytes(
            runs, fingerprint, decoded.digest(read_json(home / decoded.META)), read
        ):
            findings.append(
                f"{name}: {len(others):,} runs ({others[0]}, ...) were trained on other bytes than "
                f"{home} has now: another version of Pillow decoded it"
            )
    return findings, notes


def _of_other_bytes(
    runs: Iterable[PlannedRun], fingerprint: str, sha256: str, read: Read
) -> list[str]:
    """The runs that read other bytes of the set than it has now."""
    return [
        run.id
        for run in runs
        for name, data in zip(
            ("", *(other["name"] for other in also_of(run.cell.spec))),
            datasets_of(run.cell.spec),
            strict=True,
        )
        if data["fingerprint"] == fingerprint and read.get(run.id, {}).get(name, sha256) != sha256
    ]
