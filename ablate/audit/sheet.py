"""Reads a sheet of results that were made elsewhere, whatever its form, to runs.

A sheet is csv, tsv, jsonl, parquet, a pandas frame, or the folder of a Hydra multirun: its lines
have a place that errors name, and values by the names of its columns.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.planning.design import Imported
from ablate.planning.plan import Plan
from ablate.shared.errors import UserError, unknown
from ablate.shared.files import read_file

Line = tuple[str, Mapping[str, Any]]  # "line 4", its values by column
FRAME = "a pandas frame"


@dataclass(frozen=True)
class SheetKeys:
    """Which columns of a sheet say what. `metrics`: by the name that a metric gets; `predictions`
    names files; `result`: the file of each job of a Hydra multirun."""

    row: str
    metrics: Mapping[str, str]
    column: str | None = None
    seed: str | None = None
    predictions: str | None = None
    result: str | None = None

    @property
    def used(self) -> list[str]:
        places = (self.row, self.column, self.seed, self.predictions, *self.metrics.values())
        return [name for name in places if name is not None]


@dataclass(frozen=True)
class Sheet:
    """Its lines, the names of its columns, and the hash of its bytes. `folder`: files that it names
    lie from there."""

    name: str
    columns: Sequence[str]
    lines: Sequence[Line]
    sha256: str
    folder: Path


@dataclass(frozen=True)
class SheetRun:
    """One run of a sheet. `values`: by metric, as the sheet has them; not finite of a run that
    diverged. `others`: the values of the columns that nobody asked for."""

    place: str
    row: str
    column: str
    seed: int
    values: Mapping[str, float]
    decimals: int = 0  # of its values, as they are written
    predictions: Path | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def diverged(self) -> bool:
        return not all(map(math.isfinite, self.values.values()))

    @property
    def label(self) -> str:
        return f"{self.row}{f'@{self.column}' * bool(self.column)}#{self.seed}"


# --- The forms of a sheet -------------------------------------------------------------------------


def read_sheet(source: Path, result: str | None = None) -> Sheet:
    """Read a file, or the folder of a Hydra multirun, whose jobs left a file `result`. Raises
    UserError for another form, and for a file that is none of its form."""
    if source.is_dir():
        return _read_multirun(source, result)
    if result is not None:
        raise UserError(f"--result: is of a Hydra multirun's jobs, and {source} is a file")
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".jsonl": _read_jsonl}
    readers |= {".parquet": _read_parquet}
    if source.suffix not in readers:
        forms = ", ".join(readers)
        raise UserError(f"{source}: expected a file {forms}, or the folder of a Hydra multirun")
    try:
        content = read_file(source)
    except FileNotFoundError:
        raise UserError(f"{source}: no such file") from None
    lines = readers[source.suffix](content, str(source))
    return _sheet(str(source), lines, hashlib.sha256(content).hexdigest(), source.parent)


def read_frame(frame: Any) -> Sheet:
    """Read a pandas frame. Its hash is that of its csv."""
    columns = [str(name) for name in frame.columns]
    lines = _of_frame(frame.set_axis(columns, axis=1))
    content = frame.to_csv(index=False).encode()
    return _sheet(FRAME, lines, hashlib.sha256(content).hexdigest(), Path.cwd())


def _sheet(name: str, lines: Sequence[Line], sha256: str, folder: Path) -> Sheet:
    if not lines:
        raise UserError(f"{name}: has no line with values")
    columns = dict.fromkeys(itertools.chain.from_iterable(values for _, values in lines))
    return Sheet(name, list(columns), lines, sha256, folder)


def _read_csv(content: bytes, name: str) -> list[Line]:
    text = _decoded(content, name)
    head = text.partition("\n")[0]
    between = max(",\t;", key=head.count)  # of as many the first
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=between, strict=True)
    lines: list[Line] = []
    try:
        columns = [part.strip() for part in next(rows, [])]
        if twice := [part for part, often in Counter(columns).items() if often > 1]:
            raise UserError(f"{name}: line 1: two columns are named {twice[0]!r}")
        for row in rows:
            place = f"line {rows.line_num}"
            if len(row) != len(columns) and row:
                raise UserError(f"{name}: {place}: has {len(row)} values of {len(columns)} columns")
            if any(part.strip() for part in row):
                values = (part.strip() for part in row)
                lines.append((place, dict(zip(columns, values, strict=True))))
    except csv.Error as error:
        raise UserError(f"{name}: line {rows.line_num}: is no csv ({error})") from error
    return lines


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: byte {error.start} is no UTF-8") from error


def _read_jsonl(content: bytes, name: str) -> list[Line]:
    lines: list[Line] = []
    for number, text in enumerate(_decoded(content, name).splitlines(), 1):
        if text.strip():
            place = f"line {number}"
            lines.append((place, _flat(_json(text, f"{name}: {place}"))))
    return lines


def _json(text: str, place: str) -> Mapping[str, Any]:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: is no JSON ({error})") from error
    if not isinstance(tree, dict):
        raise UserError(f"{place}: expected an object such as {{...}}, got {text.strip()[:40]!r}")
    return tree


def _flat(tree: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    """By dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        inner = isinstance(value, Mapping)
        found |= _flat(value, f"{above}{key}.") if inner else {f"{above}{key}": value}
    return found


def _read_parquet(content: bytes, name: str) -> list[Line]:
    import pandas as pd

    try:
        return _of_frame(pd.read_parquet(io.BytesIO(content)))
    except Exception as error:  # whatever pyarrow says of bytes that are not its own
        raise UserError(f"{name}: is no parquet file ({error})") from error


def _of_frame(frame: Any) -> list[Line]:
    return [
        (f"row {number}", {str(key): _plain(value) for key, value in record.items()})
        for number, record in enumerate(frame.to_dict("records"))
    ]


def _plain(value: Any) -> Any:
    """Of a number or a text of numpy's, Python's own."""
    return value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else value


OVERRIDES = Path(".hydra", "overrides.yaml")


def _read_multirun(folder: Path, result: str | None) -> Sheet:
    """Every job below the folder that left overrides and a file `result`."""
    import yaml

    jobs = sorted(path.parent.parent for path in folder.rglob(str(OVERRIDES)))
    if not jobs:
        raise UserError(f"{folder}: no job of a Hydra multirun, with {OVERRIDES}, lies there")
    if result is None:
        raise UserError(f"{folder}: --result FILE: missing; which file has each job's numbers?")
    lines, hashed = [], hashlib.sha256()
    jobs.sort(key=lambda job: [(len(part), part) for part in job.relative_to(folder).parts])
    for job in jobs:
        place = f"job {job.relative_to(folder)}"
        try:
            both = read_file(job / OVERRIDES), read_file(job / result)
        except FileNotFoundError as error:
            where = f"{folder}: {place}"
            raise UserError(f"{where}: has no {result}; remove the job, or let it end") from error
        for content in both:
            hashed.update(hashlib.sha256(content).digest())
        numbers = _yaml(both[1], f"{folder}: {place}: {result}", dict)
        words = _yaml(both[0], f"{folder}: {place}: {OVERRIDES}", list)
        said = (str(word).lstrip("+~").partition("=") for word in words)
        typed = {key: yaml.safe_load(value) for key, _, value in said}
        lines.append((place, {**_flat(numbers), **typed}))
    return _sheet(str(folder), lines, hashed.hexdigest(), folder)


def _yaml(content: bytes, place: str, kind: type) -> Any:
    """JSON is yaml, too, but for numbers such as NaN."""
    import yaml

    text = _decoded(content, place)
    try:
        tree = json.loads(text) if place.endswith(".json") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{place}: can't be read ({error!s:.80})".replace("\n", " ")) from error
    if not isinstance(tree, kind):
        what = "keys and values" if kind is dict else "a list"
        raise UserError(f"{place}: expected {what}, got {text.strip()[:40]!r}")
    return tree


# --- Its runs -------------------------------------------------------------------------------------


def runs_of(sheet: Sheet, keys: SheetKeys) -> list[SheetRun]:
    """The runs of a sheet, in its order. Without a column of seeds those of a row are numbered.

    Raises UserError, place first, for a column that it has not, a line that lacks a value, a
    number that is none, and two lines of one run.
    """
    for name in keys.used:
        if name not in sheet.columns:
            raise unknown(f"{sheet.name}: columns", name, sheet.columns)
    if twice := [name for name, often in Counter(keys.used).items() if often > 1]:
        raise UserError(f"{sheet.name}: {twice[0]}: was given for two things")
    numbers: Counter[tuple[str, str]] = Counter()
    seen: dict[tuple[str, str, int], str] = {}
    found = []
    for place, values in sheet.lines:
        run = _run(sheet, keys, place, values, numbers)
        where = run.row, run.column, run.seed
        if where in seen:
            raise UserError(
                f"{sheet.name}: {seen[where]} and {place} are of the same run, {run.label}: leave "
                f"one of them out"
            )
        seen[where] = place
        found.append(run)
    return found


def _run(
    sheet: Sheet,
    keys: SheetKeys,
    place: str,
    values: Mapping[str, Any],
    numbers: Counter[tuple[str, str]],
) -> SheetRun:
    def at(name: str) -> str:
        return f"{sheet.name}: {place}: {name}"

    row = _label(values.get(keys.row), at(keys.row))
    column = _label(values.get(keys.column), at(keys.column)) if keys.column else ""
    if keys.seed is None:
        seed = numbers[row, column]
        numbers[row, column] += 1
    else:
        seed = _seed(values.get(keys.seed), at(keys.seed))
    given = {key: values.get(name) for key, name in keys.metrics.items()}
    predictions = None
    if keys.predictions is not None:
        named = _label(values.get(keys.predictions), at(keys.predictions))
        predictions = sheet.folder / named
        if not predictions.is_file():
            raise UserError(f"{at(keys.predictions)}: {named}: no such file")
    return SheetRun(
        place=place,
        row=row,
        column=column,
        seed=seed,
        values={key: _number(value, at(keys.metrics[key])) for key, value in given.items()},
        decimals=max(map(_decimals, given.values())),
        predictions=predictions,
        others={key: value for key, value in values.items() if key not in keys.used},
    )


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _label(value: Any, place: str) -> str:
    text = str(int(value) if isinstance(value, float) and value.is_integer() else value)
    if _is_empty(value) or not text.isprintable() or not text.strip():
        raise UserError(
            f"{place}: expected a name, got {'nothing' if _is_empty(value) else repr(text)}"
        )
    return text


def _seed(value: Any, place: str) -> int:
    try:
        if not _is_empty(value) and float(value) == int(float(value)) >= 0:
            return int(float(value))
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(f"{place}: expected a seed, a whole number from 0 on, got {value!r}")


def _number(value: Any, place: str) -> float:
    if value is None or value == "":
        raise UserError(
            f"{place}: is empty: leave the line of a run without a result out; of one that "
            f"diverged write nan"
        )
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise UserError(f"{place}: expected a number, got {value!r}")


def _decimals(value: Any) -> int:
    """How many are written: of "93.10" two."""
    text = value if isinstance(value, str) else repr(value)
    return len(text.partition(".")[2]) if "e" not in text.lower() else 0


# --- What its numbers promise ---------------------------------------------------------------------


def check_sheets(
    plan: Plan, results: Mapping[str, Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """Return findings on runs whose numbers are not those of the sheets that a plan was imported
    from, and notes on what can't be checked. `results`: of those runs that have one."""
    if not isinstance(plan.design, Imported):
        return [], []
    ids = {(run.cell.row, run.cell.column, run.seed): run for run in plan.runs()}
    findings = []
    notes = ["trained elsewhere: the numbers are those of the sheet, and nothing can retrain them"]
    for source in plan.design.sources:
        keys = SheetKeys(**source.read)
        try:
            sheet = read_sheet(Path(source.file), keys.result)
            if sheet.sha256 != source.sha256:
                raise UserError("")
        except (UserError, OSError):
            what = "is another file by now" if Path(source.file).exists() else "is not here"
            notes.append(f"{source.file}: {what}: its numbers are those that the ledger sealed")
            continue
        for of in runs_of(sheet, keys):
            run, numbers = ids.get((of.row, of.column, of.seed)), {} if of.diverged else of.values
            if run is None or run.id not in results:
                continue
            if (test := results[run.id].get("test", {})) != numbers:
                has = f"{test}, but {numbers} in {sheet.name}: {of.place}"
                findings.append(f"{run.id} {run.label}: {has}")
    return findings, notes


# --- What it hides --------------------------------------------------------------------------------

OWN_EACH = 0.5  # of the runs have a value of their own: a time, a name
SHOWN = 3  # labels that a line names


def hidden(runs: Sequence[SheetRun]) -> list[str]:
    """Lines on the other columns of a sheet in which runs of one column of the table differ."""
    lines, scattered, within = [], [], []
    for name in dict.fromkeys(key for run in runs for key in run.others):
        values = {run.label: repr(run.others.get(name)) for run in runs}
        odd: list[SheetRun] = []
        for column in dict.fromkeys(run.column for run in runs):
            block = [run for run in runs if run.column == column]
            has: dict[str, Counter[str]] = {}
            for run in block:
                has.setdefault(run.row, Counter())[values[run.label]] += 1
            alike = {tuple(sorted((v, n / c.total()) for v, n in c.items())) for c in has.values()}
            if len(alike) > 1:  # else every row has as much of each value
                [(usual, _)] = sum(has.values(), Counter()).most_common(1)
                odd += [run for run in block if values[run.label] != usual]
            elif any(len(counts) > 1 for counts in has.values()):
                within.append(name)
        if len({*values.values()}) > max(2, OWN_EACH * len(runs)):
            scattered.append(name)
        elif odd:
            rows = list(dict.fromkeys(run.row for run in odd))
            more = f" and {len(rows) - SHOWN} more rows" if len(rows) > SHOWN else ""
            lines.append(
                f"{name} differs in {len(odd)} of {len(runs)} runs ({', '.join(rows[:SHOWN])}"
                f"{more}), so a gain may come from {name}"
            )
    if within := [name for name in dict.fromkeys(within) if name not in scattered]:
        lines.append(f"runs of one row differ in {', '.join(within)}, and count as repeats")
    if scattered:
        lines.append(f"nearly every run has its own {', '.join(scattered)}")
    return lines


def equal_lines(sheet: Sheet) -> list[str]:
    """A line on lines that are the same in every column: without seeds they may be copies."""
    places: dict[str, list[str]] = {}
    for place, values in sheet.lines:
        places.setdefault(repr(values), []).append(place)
    same = [", ".join(some) for some in places.values() if len(some) > 1]
    return [f"the same in every column: {'; '.join(same[:SHOWN])}"] if same else []
