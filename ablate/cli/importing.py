"""The command that brings results from elsewhere: import.

Used by cli/__init__.py, which adds it; the work is in audit/. A new option of how a sheet is read
is a field of `SheetKeys` (planning/design.py), and needs docs/options.md, which
tests/options_page.py writes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from ablate.cli.answers import print_json
from ablate.cli.options import RUNS, StoreDir, TextFormat, argument, flag, number, option
from ablate.cli.selection import store_at
from ablate.shared import UserError, printable

Sources = Annotated[
    list[Path],
    argument(
        "SHEET",
        "File .csv, .tsv, .txt, .json, .jsonl or .parquet, or several; or a folder of MLflow, of "
        "TensorBoard, or of jobs with --result.",
    ),
]
RowColumn = Annotated[str | None, option("COLUMN", "Column that names the variant.")]
MetricColumns = Annotated[
    list[str] | None,
    option(
        "KEY:more|less:UNIT",
        "Column of a metric, which values are better, and the unit, such as acc:more:%; "
        "NAME=COLUMN renames it. The first is the table's.",
    ),
]
SweepName = Annotated[
    str | None, option("NAME", "Name for the sweep (default: that of the file or folder).", "--as")
]
ColumnColumn = Annotated[
    str | None, option("COLUMN", "Column whose values become columns of the table.")
]
SeedColumn = Annotated[
    str | None,
    option("COLUMN", "Column of seeds, if runs with the same seed can be compared in pairs."),
]
Baseline = Annotated[str | None, option("ROW", "Baseline (default: the first variant).")]
Target = Annotated[
    float | None,
    option("NUMBER", "Judge each row's mean against it; no baseline is needed.", parser=number),
]
PredictionsColumn = Annotated[
    str | None, option("COLUMN", "Column that names files of predictions (.npy).")
]
Result = Annotated[
    str | None,
    option("FILE", "File in which each job of a folder left numbers, such as metrics.csv."),
]
Wide = Annotated[
    list[str] | None,
    option(
        "PATTERN",
        "Pattern of the columns that hold one run each, such as 'seed_*'; give one per metric, in "
        "their order.",
    ),
]
Split = Annotated[
    list[str] | None,
    option(
        "COLUMN=PATTERN",
        "Split a text into columns, such as 'run={model}/{seed}'; * stands for any text; can be "
        "repeated.",
    ),
]
Conditions = Annotated[
    list[str] | None,
    option(
        "COLUMN=VALUE",
        "Count only lines with this value; != leaves them out; can be repeated.",
        "--where",
    ),
]
Epochs = Annotated[
    str | None,
    option(
        "last|best:COLUMN:more|less",
        "Line that counts, of a run with several lines.",
    ),
]
RunColumn = Annotated[
    str | None,
    option(
        "COLUMN", "With --epochs: column that tells the runs of a row apart, if --seed doesn't."
    ),
]
Ignore = Annotated[
    list[str] | None,
    option(
        "COLUMN",
        "Keep a column, or a pattern such as 'train_*', out of the notes; can be repeated.",
    ),
]
Decimal = Annotated[str | None, option("MARK", "Decimal mark: a point (default) or a comma.")]
Comment = Annotated[
    str | None, option("TEXT", "Leave out lines that begin with this text, such as '#'.")
]
Encoding = Annotated[
    str | None, option("NAME", "Encoding (default: utf-8), such as utf-16 or latin-1.")
]


Loop = Annotated[
    bool,
    flag(
        "--loop",
        "Only say how many keeps of a loop's log (commit, metric, status) could be noise.",
    ),
]


def import_(
    sources: Sources,
    row: RowColumn = None,
    metric: MetricColumns = None,
    name: SweepName = None,
    column: ColumnColumn = None,
    seed: SeedColumn = None,
    baseline: Baseline = None,
    target: Target = None,
    predictions: PredictionsColumn = None,
    result: Result = None,
    wide: Wide = None,
    split: Split = None,
    conditions: Conditions = None,
    epochs: Epochs = None,
    run: RunColumn = None,
    ignore: Ignore = None,
    decimal: Decimal = None,
    comment: Comment = None,
    encoding: Encoding = None,
    loop: Loop = False,
    format: TextFormat = "text",
    store: StoreDir = RUNS,
) -> None:
    """Import results that were trained elsewhere, as a sweep. The same command extends it.

    Every number is kept with the hash of the sheet; a changed number is refused.
    """
    from ablate.audit import SheetDeclaration, import_under_lock, read_sheet
    from ablate.planning import DeclaredImport, SheetKeys

    if decimal not in (None, ".", ","):
        raise UserError(f"--decimal {decimal}: expected a point or a comma")
    layout_options = {
        "row": row,
        "column": column,
        "seed": seed,
        "predictions": predictions,
        "result": result,
        "wide": wide,
        "split": split,
        "where": conditions,
        "epochs": epochs,
        "run": run,
        "ignore": ignore,
        "decimal": decimal,
        "comment": comment,
        "encoding": encoding,
    }
    given_options: dict[str, Any] = {}
    arguments: list[tuple[str, str]] = []
    options = {"as": name, **layout_options, "baseline": baseline, "metric": metric}
    options["target"] = None if target is None else repr(target)
    if loop:
        _tell_loop(sources, metric or [], options)
        return
    for key, value in options.items():
        if value is None:
            continue
        texts = [value] if isinstance(value, str) else value
        arguments += [(f"--{key}", text) for text in texts]
        if key in layout_options:
            given_options[key] = value if isinstance(value, str) else tuple(value)
    if not row or not metric:
        columns = read_sheet(sources, SheetKeys(**{"row": "", **given_options})).columns
        missing = "--metric COLUMN:more (or :less)" if row else "--row COLUMN"
        raise UserError(f"{missing}: is missing; the sheet has the columns {', '.join(columns)}")
    layout = SheetKeys(**given_options)
    sheet_file, *other_sheets = map(str, sources)
    declaration = SheetDeclaration(
        name or "",
        metric or [],
        layout,
        baseline,
        target,
        command=DeclaredImport(sheet_file, tuple(arguments), tuple(other_sheets)),
    )
    sheet = read_sheet(sources, declaration.keys)
    if name is None:
        declaration = dataclasses.replace(declaration, name=sheet.default_name)
    report = import_under_lock(store_at(store), sheet, declaration)
    if format == "json":
        print_json({"store": str(store), "source": sheet.name, **dataclasses.asdict(report)})
        return
    print("\n".join(map(printable, report.lines())))


LOOP_OPTIONS = ("decimal", "comment", "encoding")  # that `--loop` takes, but for --metric


def _tell_loop(sources: list[Path], metrics: list[str], options: Mapping[str, Any]) -> None:
    """Say how many keeps of a loop's log could be noise; nothing is imported. Raises UserError for
    an option that only an import has."""
    from ablate.audit import read_loop
    from ablate.planning import SheetKeys

    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in ("metric", *LOOP_OPTIONS):
            raise UserError(f"--{key}: --loop takes no such option; leave one of them out")
    if len(sources) > 1 or len(metrics) > 1:
        raise UserError("--loop: reads one log and one metric; give one of each")
    keys = SheetKeys("", **{key: given[key] for key in LOOP_OPTIONS if key in given})
    log = read_loop(sources[0], metrics[0] if metrics else None, keys)
    print("\n".join(map(printable, log.lines())))
    print_json(log.tree())
