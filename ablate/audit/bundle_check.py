"""Checks a bundle for `verify DIR`: every file against the manifest, and recomputed files.

Used by `ablate verify DIR` (cli/keeping.py). A new derived file of audit/export.py also needs its
name in `_made_names` here, and a new ending its entry in `LEAVES`.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate.analysis import Results, first_few, measure_own, own_metrics
from ablate.audit.bundle import Bundle, is_regular
from ablate.audit.export import RAW, computing_versions, derived_files
from ablate.audit.lean import note
from ablate.audit.verify import Verified, remake
from ablate.planning import Plan, read_own_metric
from ablate.report import FORMAT_ENDINGS, OUR_FORMATS
from ablate.run import source_file
from ablate.shared import Failure, read_json

TIDY = "table.tidy.csv"
NUMBERS = ("table.csv", TIDY, "runs.csv", "curves.parquet")  # that every version makes alike


def check_bundle(bundle: Bundle) -> Verified:
    """Check every file against the manifest, and recompute every derived file from the raw files.

    Nothing is written. In a bundle of other versions of packages, files that these may write
    differently are notes.
    """
    report = Verified()
    wrong = dict(_unlike(bundle))
    report.findings += [f"{name}: {fault}" for name, fault in wrong.items()]
    if not bundle.is_bundle and bundle.environment.name not in wrong:
        report.findings.append(f"{bundle.environment.name}: says no format of a bundle")
    if strange := [name for name in bundle.names() if not is_regular(bundle.root / name)]:
        report.findings.append(
            f"{first_few(strange, 4)}: not a regular file, so nothing was recomputed"
        )
        return report
    try:
        plan, histories = bundle.read_unsealed()
        if histories.keys() != {run.id for run in plan.runs()}:
            report.findings.append(
                f"{bundle.events.name}: its runs differ from the runs of the plan"
            )
        results, findings = remake(plan, bundle, histories)
        report.findings += findings
        report.runs = len(results)
        if findings or any(name.partition("/")[0] in RAW for name in wrong):
            report.notes.append(
                "no table, figure or page was recomputed, since raw files have findings"
            )
            return report
        environment = read_json(bundle.environment)
        if bundle.is_lean:
            report.notes.append(note(plan))
        else:
            _check_own_metrics(plan, bundle, results, report)
        makers = {key: environment[key] for key in ("bundle", "ablate", "made_with")}
        contents = derived_files(bundle, plan, histories, results, bundle, makers)
        for ending, format in FORMAT_ENDINGS.items():  # of one that was added here, later
            if format not in OUR_FORMATS and not (bundle.root / f"table.{ending}").exists():
                del contents[f"table.{ending}"]
        sealed_names = bundle.read_manifest() if bundle.manifest.name not in wrong else contents
        if missing_names := [name for name in contents if name not in sealed_names]:
            report.findings.append(
                f"{bundle.root}: was exported by an older ablate, which wrote no "
                f"{first_few(missing_names, 4)}; export the sweep again"
            )
            return report
    except Exception as error:  # whatever comes of reading what somebody else wrote
        first_line = str(error).partition("\n")[0]
        report.findings.append(
            f"{bundle.root}: can't be recomputed ({type(error).__name__}: {first_line})"
        )
        return report
    if results:  # else its numbers are those of the plan alone
        lines = csv.reader(io.StringIO(contents[TIDY].decode()))
        report.numbers = sum(line[-2] != "" for line in lines) - 1
    logarithms = plan.metric.probe == LOGARITHMS
    differ = [
        name
        for name in contents
        if name not in wrong and not _is_reproduced(bundle.root / name, contents[name], logarithms)
    ]
    local_makers = computing_versions()
    alike = makers == local_makers
    words = [name for name in differ if not (alike or name in NUMBERS)]
    if words:
        report.notes.append(
            f"{first_few(words, 4)}: the bytes differ here, with {_versions(local_makers)}; the "
            f"bundle was made with {_versions(makers)}"
        )
    report.findings += [
        f"{name}: differs from the file that the raw files give"
        for name in differ
        if name not in words
    ]
    if alike:
        extra = (_made_names(bundle) & {*bundle.names()}) - contents.keys()
        report.findings += [
            f"{name}: the raw files don't give this file"
            for name in sorted(extra)
            if name not in wrong
        ]
    return report


def _check_own_metrics(plan: Plan, bundle: Bundle, results: Results, report: Verified) -> None:
    """Recompute metrics of the author's own, where the current folder has the code that made them.

    Code that comes with a bundle is never run by itself.
    """
    for name in own_metrics(plan):
        declaration = plan.own[name]
        folder = Path.cwd()
        local_declaration = (
            read_own_metric(name, folder, "verify")
            if source_file(folder, name) is not None
            else declaration
        )
        if (
            local_declaration["version"] != declaration["version"]
            or not local_declaration["folder"]
        ):
            report.notes.append(
                f"{name}: its values are as exported, since its code, version "
                f"{declaration['version']}, is not in this folder; with a copy of {bundle.code} "
                f"here it is run again"
            )
        elif measure_own(
            replace(plan, own={name: local_declaration}), results, bundle, name
        ) != bundle.own_values(name):
            report.findings.append(
                f"{bundle.own_metrics_file.name}: the predictions give other {name}"
            )


def _unlike(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """Yield (file, fault) for each file that differs from the manifest."""
    try:
        hashes, edited_files = bundle.read_manifest(), bundle.edited_files()
    except Failure:
        yield bundle.manifest.name, "missing, or changed after the export"
        return
    for name in sorted(hashes.keys() - set(bundle.names())):
        yield name, "missing"
    yield from edited_files.items()


def _made_names(bundle: Bundle) -> set[str]:
    """Return the places of all files that can be derived, whether they exist or not."""
    tables = {f"table.{ending}" for ending in FORMAT_ENDINGS}
    figures = {name for name in bundle.names() if name.startswith("figures/")}
    return tables | figures | {"runs.csv", "curves.parquet", "report.html", "README.txt"}


# Numbers that are written in full, whose last digits are those of a processor's logarithms or of
# quantiles: ends of intervals, p-values, forecasts, and the error of several looks in a sentence.
# All other numbers are the same everywhere.
UNSTABLE_DIGITS = {"low", "high", "gain_low", "gain_high", "p", "raw", "forecast", "error"}
LOGARITHMS = "gradnorm"  # a probe of them
ALIKE = 1e-9  # relative
NUMBER = re.compile(r"-?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]\d+)")
DRAWN_ID = re.compile(r"\bp[0-9a-f]{10}\b")  # matplotlib hashes coordinates for it
Leaf = tuple[str, object]  # the name of a number or a text, "gain.low", and itself


def _is_reproduced(path: Path, expected: bytes, logarithms: bool = False) -> bool:
    """Return whether a file is what the raw files give.

    Its bytes must be the same, except for the last digits of numbers in `UNSTABLE_DIGITS` (of all
    numbers where the table has `logarithms`) and of coordinates in a figure. A parquet file must
    have the same values.
    """
    if not path.is_file():
        return False
    content = path.read_bytes()
    if content == expected:
        return True
    try:
        if path.suffix == ".parquet":
            import pandas as pd

            return pd.read_parquet(io.BytesIO(content)).equals(
                pd.read_parquet(io.BytesIO(expected))
            )
        leaves = LEAVES.get(path.suffix, _of_text)
        pairs = zip(leaves(content.decode()), leaves(expected.decode()), strict=True)
        return all(
            name == remade_name and (a == b or ((logarithms or _is_rounded(name)) and _alike(a, b)))
            for (name, a), (remade_name, b) in pairs
        )
    except Exception:  # whatever a reader says of bytes that are not its own
        return False


def _is_rounded(name: str) -> bool:
    parts = name.split(".")
    return not UNSTABLE_DIGITS.isdisjoint(parts) or parts[0].startswith(LOGARITHMS)


def _alike(a: object, b: object) -> bool:
    return math.isclose(float(str(a)), float(str(b)), rel_tol=ALIKE, abs_tol=1e-15)


def _of_text(text: str) -> Iterator[Leaf]:
    yield "text", text


def _of_csv(text: str) -> Iterator[Leaf]:
    """Yield (name, cell) for each cell of a table.

    The name is the column's, or the line's quantity in a table with one quantity per line.
    """
    for line in csv.DictReader(io.StringIO(text)):
        quantity = line.get("quantity")
        for column, cell in line.items():
            yield quantity if quantity and column == "value" else column, cell


def _of_json(text: str) -> Iterator[Leaf]:
    def leaves(tree: object, name: str) -> Iterator[Leaf]:
        if isinstance(tree, dict):
            yield name, [*tree]
            for key, value in tree.items():
                yield from leaves(value, f"{name}.{key}")
        elif isinstance(tree, list):
            yield name, len(tree)
            for value in tree:
                yield from leaves(value, name)
        else:
            yield name, tree

    return leaves(json.loads(text), "")


def _of_drawing(text: str) -> Iterator[Leaf]:
    """Yield the text of a figure between its numbers, then the numbers.

    The numbers are ends of intervals and positions of letters. Generated ids are replaced by their
    order of appearance.
    """
    ids = {name: f"#{index}" for index, name in enumerate(dict.fromkeys(DRAWN_ID.findall(text)))}
    text = DRAWN_ID.sub(lambda match: ids[match[0]], text)
    yield from (("text", part) for part in NUMBER.split(text))
    yield from (("low", number) for number in NUMBER.findall(text))


LEAVES = {".csv": _of_csv, ".json": _of_json, ".svg": _of_drawing, ".html": _of_drawing}


def _versions(makers: Mapping[str, Any]) -> str:
    packages = (f"{name} {version}" for name, version in makers["made_with"].items())
    return ", ".join([f"ablate {makers['ablate']} (format {makers['bundle']})", *packages])
