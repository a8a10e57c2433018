"""`verify DIR`: is every file of a bundle as it was exported, and what the raw files make?"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.audit.bundle import Bundle, is_regular, sha256_of
from ablate.audit.export import EXTENSIONS, RAW, computing_versions, derived_files
from ablate.audit.verify import Verified, remake
from ablate.report.formats import FORMATS
from ablate.shared.errors import Failure
from ablate.shared.files import read_json

NUMBERS = ("table.csv", "runs.csv", "curves.parquet")  # that every version makes alike


def check(bundle: Bundle) -> Verified:
    """Is every file as the manifest says, and every derived one what the raw files make?

    Nothing is written. Of an older version's bundle, without a manifest, only numbers are made
    again; of one that other versions made, what these may write otherwise is a note.
    """
    found = Verified()
    wrong = dict(_unlike(bundle, found))
    found.findings += [f"{name}: {what}" for name, what in wrong.items()]
    if strange := [name for name in bundle.names() if not is_regular(bundle.root / name)]:
        found.findings.append(f"{_list(strange)}: no regular file, so nothing was made again")
        return found
    try:
        plan, told = bundle.read_unsealed()
        if told.keys() != {run.id for run in plan.runs()}:
            found.findings.append(f"{bundle.events.name}: has other runs than the plan")
        results, findings = remake(plan, bundle, told)
        found.findings += findings
        found.runs = len(results)
        if findings or any(name.partition("/")[0] in RAW for name in wrong):
            found.notes.append("no table, figure or page was made again: the raw files come first")
            return found
        environment = read_json(bundle.environment)
        makers = {key: environment[key] for key in ("bundle", "ablate", "made_with")}
        made = derived_files(bundle, plan, told, results, bundle, makers)
    except Exception as error:  # whatever comes of reading what somebody else wrote
        first = str(error).partition("\n")[0]
        found.findings.append(
            f"{bundle.root}: can't be made again ({type(error).__name__}: {first})"
        )
        return found
    found.numbers = (
        sum(line[-2] != "" for line in csv.reader(io.StringIO(made["table.csv"].decode()))) - 1
    )
    differ = [
        name for name in made if name not in wrong and not _same(bundle.root / name, made[name])
    ]
    here = computing_versions()
    alike = makers == here
    words = [name for name in differ if not (alike or name in NUMBERS)]
    if words:
        found.notes.append(
            f"{_list(words)}: other bytes here, where {_versions(here)} would make them; "
            f"the bundle is of {_versions(makers)}"
        )
    found.findings += [
        f"{name}: is not what the raw files make" for name in differ if name not in words
    ]
    if alike:
        extra = _made_names(bundle) - made.keys()
        found.findings += [
            f"{name}: nothing makes it" for name in sorted(extra) if name not in wrong
        ]
    return found


def _unlike(bundle: Bundle, found: Verified) -> Iterator[tuple[str, str]]:
    """(file, what is wrong with it), by the manifest."""
    if not bundle.is_sealed and bundle.is_one:
        found.notes.append(
            f"the bundle has format {bundle.format}, without a manifest: whether events.json, "
            f"env.json and figures are as they were exported can't be said"
        )
        return
    try:
        listed = bundle.read_manifest()
    except Failure:
        yield bundle.manifest.name, "missing, or not as it was exported"
        return
    names = bundle.names()
    for name in sorted(listed.keys() - set(names)):
        yield name, "missing"
    for name in names:
        if name not in listed:
            yield name, "not in the manifest: it was added later"
        elif sha256_of(bundle.root / name) != listed[name]:
            yield name, "not as it was exported"


def _made_names(bundle: Bundle) -> set[str]:
    """The places of derived files, there or not, that nothing else is made of."""
    tables = {f"table.{EXTENSIONS.get(format, format)}" for format in FORMATS if format != "rich"}
    figures = {name for name in bundle.names() if name.startswith("figures/")}
    return tables | figures | {"runs.csv", "curves.parquet", "report.html", "README.txt"}


def _same(path: Path, made: bytes) -> bool:
    """Are the bytes the same, or of a parquet file the values?"""
    if not path.is_file():
        return False
    said = path.read_bytes()
    if said == made or path.suffix != ".parquet":
        return said == made
    import pandas as pd

    try:
        return pd.read_parquet(io.BytesIO(said)).equals(pd.read_parquet(io.BytesIO(made)))
    except Exception:  # whatever pyarrow says of bytes that are not its own
        return False


def _versions(makers: Mapping[str, Any]) -> str:
    others = (f"{name} {version}" for name, version in makers["made_with"].items())
    return ", ".join([f"ablate {makers['ablate']} (format {makers['bundle']})", *others])


def _list(names: Collection[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join([*names][:most]) + more
