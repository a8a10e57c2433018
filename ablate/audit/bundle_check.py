"""Checks a bundle for `verify DIR`: every file against the manifest, and recomputed files."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate.analysis import captions
from ablate.analysis.own import functions, measure
from ablate.analysis.scores import Results
from ablate.audit.bundle import Bundle, is_regular, sha256_of
from ablate.audit.export import RAW, computing_versions, derived_files
from ablate.audit.lean import note
from ablate.audit.verify import Verified, remake
from ablate.planning.analysis_keys import read_own_metric
from ablate.planning.plan import Plan
from ablate.report.formats import ENDINGS, OURS
from ablate.shared.errors import Failure
from ablate.shared.files import read_json
from ablate.shared.source import file_of

NUMBERS = ("table.csv", "runs.csv", "curves.parquet")  # that every version makes alike


def check(bundle: Bundle) -> Verified:
    """Check every file against the manifest, and recompute every derived file from the raw files.

    Nothing is written. In a bundle of other versions of packages, files that these may write
    differently are notes.
    """
    found = Verified()
    wrong = dict(_unlike(bundle))
    found.findings += [f"{name}: {what}" for name, what in wrong.items()]
    if not bundle.is_one and bundle.environment.name not in wrong:
        found.findings.append(f"{bundle.environment.name}: says no format of a bundle")
    if strange := [name for name in bundle.names() if not is_regular(bundle.root / name)]:
        found.findings.append(
            f"{captions.names(strange, 4)}: not a regular file, so nothing was recomputed"
        )
        return found
    try:
        plan, told = bundle.read_unsealed()
        if told.keys() != {run.id for run in plan.runs()}:
            found.findings.append(
                f"{bundle.events.name}: its runs differ from the runs of the plan"
            )
        results, findings = remake(plan, bundle, told)
        found.findings += findings
        found.runs = len(results)
        if findings or any(name.partition("/")[0] in RAW for name in wrong):
            found.notes.append(
                "no table, figure or page was recomputed, since raw files have findings"
            )
            return found
        environment = read_json(bundle.environment)
        if bundle.is_lean:
            found.notes.append(note(plan))
        else:
            _own(plan, bundle, results, found)
        makers = {key: environment[key] for key in ("bundle", "ablate", "made_with")}
        made = derived_files(bundle, plan, told, results, bundle, makers)
        for ending, format in ENDINGS.items():  # of one that was added here, later
            if format not in OURS and not (bundle.root / f"table.{ending}").exists():
                del made[f"table.{ending}"]
    except Exception as error:  # whatever comes of reading what somebody else wrote
        first = str(error).partition("\n")[0]
        found.findings.append(
            f"{bundle.root}: can't be recomputed ({type(error).__name__}: {first})"
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
            f"{captions.names(words, 4)}: the bytes differ here, with {_versions(here)}; the "
            f"bundle was made with {_versions(makers)}"
        )
    found.findings += [
        f"{name}: differs from the file that the raw files give"
        for name in differ
        if name not in words
    ]
    if alike:
        extra = (_made_names(bundle) & {*bundle.names()}) - made.keys()
        found.findings += [
            f"{name}: the raw files don't give this file"
            for name in sorted(extra)
            if name not in wrong
        ]
    return found


def _own(plan: Plan, bundle: Bundle, results: Results, found: Verified) -> None:
    """Compute metrics of the author's own again, where the code that made them lies in the folder
    that we are in: what comes with a bundle is not run by itself."""
    for name in functions(plan):
        said = plan.own[name]
        here = Path.cwd()
        now = read_own_metric(name, here, "verify") if file_of(here, name) is not None else said
        if now["version"] != said["version"] or not now["folder"]:
            found.notes.append(
                f"{name}: its values are as exported, since its code, version {said['version']}, "
                f"is not in this folder; with a copy of {bundle.code} here it is run again"
            )
        elif measure(replace(plan, own={name: now}), results, bundle, name) != bundle.own_values(
            name
        ):
            found.findings.append(f"{bundle.own.name}: the predictions give other {name}")


def _unlike(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """Yield (file, fault) by the manifest."""
    try:
        listed = bundle.read_manifest()
    except Failure:
        yield bundle.manifest.name, "missing, or changed after the export"
        return
    names = bundle.names()
    for name in sorted(listed.keys() - set(names)):
        yield name, "missing"
    for name in names:
        if name not in listed:
            yield name, "not in the manifest, so it was added later"
        elif sha256_of(bundle.root / name) != listed[name]:
            yield name, "changed after the export"


def _made_names(bundle: Bundle) -> set[str]:
    """List the places of derived files, whether they exist or not."""
    tables = {f"table.{ending}" for ending in ENDINGS}
    figures = {name for name in bundle.names() if name.startswith("figures/")}
    return tables | figures | {"runs.csv", "curves.parquet", "report.html", "README.txt"}


# What is printed in full (csv, JSON). Another processor adds and takes logarithms in other orders,
# so its last digits differ; a digit that anybody reads doesn't.
NUMBER = re.compile(r"-?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]\d+)")
ALIKE = 1e-9  # relative


def _same(path: Path, made: bytes) -> bool:
    """Are the bytes equal, but for the last digits of long numbers? Of a parquet file: the
    values?"""
    if not path.is_file():
        return False
    said = path.read_bytes()
    if said == made:
        return True
    if path.suffix == ".parquet":
        import pandas as pd

        try:
            return pd.read_parquet(io.BytesIO(said)).equals(pd.read_parquet(io.BytesIO(made)))
        except Exception:  # whatever pyarrow says of bytes that are not its own
            return False
    one, other = (text.decode(errors="replace") for text in (said, made))
    if NUMBER.split(one) != NUMBER.split(other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(
        a == b or math.isclose(float(a), float(b), rel_tol=ALIKE, abs_tol=1e-15) for a, b in pairs
    )


def _versions(makers: Mapping[str, Any]) -> str:
    others = (f"{name} {version}" for name, version in makers["made_with"].items())
    return ", ".join([f"ablate {makers['ablate']} (format {makers['bundle']})", *others])
