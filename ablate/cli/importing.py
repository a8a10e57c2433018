"""The command that brings results from elsewhere: import.

Used by cli/__init__.py, which adds it; the work is in audit/. A new option of how a sheet is read
is a field of `SheetKeys` (planning/design.py), and needs docs/options.md, which
tests/options_page.py writes.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from ablate.cli.options import RUNS, StoreDir, TextFormat, argument, number, option
from ablate.cli.printing import print_json
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
RowColumn = Annotated[str, option("COLUMN", "Column that names the variant.")]
MetricColumns = Annotated[
    list[str],
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
    option("PATTERN", "Columns that hold a run each, such as 'seed_*'; one for each metric."),
]
Split = Annotated[
    list[str] | None,
    option(
        "COLUMN=PATTERN",
        "Makes columns of a text, such as 'run={model}/{seed}'; * stands for any text.",
    ),
]
Conditions = Annotated[
    list[str] | None,
    option("COLUMN=VALUE", "Only the lines with this value count; != leaves them out.", "--where"),
]
Epochs = Annotated[
    str | None,
    option(
        "last|best:COLUMN:more|less",
        "Which line of a run counts, where it has several.",
    ),
]
RunColumn = Annotated[
    str | None,
    option("COLUMN", "With --epochs: tells the runs of a row apart, where --seed does not."),
]
Ignore = Annotated[
    list[str] | None,
    option("COLUMN", "Column, or pattern such as 'train_*', that no note names."),
]
Decimal = Annotated[str, option("MARK", "Mark before decimals: a point, or a comma.")]
Comment = Annotated[
    str | None, option("TEXT", "Begins lines that are no lines of the sheet, such as '#'.")
]
Encoding = Annotated[str, option("NAME", "Encoding, such as utf-16 or latin-1.")]
POINT, UTF8 = ".", "utf-8"  # the defaults


def import_(
    sources: Sources,
    row: RowColumn,
    metric: MetricColumns,
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
    decimal: Decimal = POINT,
    comment: Comment = None,
    encoding: Encoding = UTF8,
    format: TextFormat = "text",
    store: StoreDir = RUNS,
) -> None:
    """Import results that were trained elsewhere, as a sweep. The same command extends it.

    Every number is kept with the hash of the sheet; a changed number is refused.
    """
    from ablate.audit import SheetDeclaration, import_under_lock, read_sheet
    from ablate.planning import DeclaredImport, SheetKeys

    if decimal not in (POINT, ","):
        raise UserError(f"--decimal {decimal}: expected a point or a comma")
    single_options = {"--as": name, "--row": row, "--column": column, "--seed": seed}
    single_options |= {"--baseline": baseline, "--target": None if target is None else repr(target)}
    single_options |= {"--predictions": predictions, "--result": result}
    single_options |= {"--epochs": epochs, "--run": run, "--comment": comment}
    single_options["--decimal"] = None if decimal == POINT else decimal
    single_options["--encoding"] = None if encoding == UTF8 else encoding
    arguments = [(key, text) for key, text in single_options.items() if text is not None]
    listed_options = {"--metric": metric, "--wide": wide, "--split": split, "--where": conditions}
    listed_options["--ignore"] = ignore
    for key, texts in listed_options.items():
        arguments += [(key, text) for text in texts or ()]
    layout = SheetKeys(
        row=row,
        column=column,
        seed=seed,
        predictions=predictions,
        run=run,
        result=result,
        encoding=encoding,
        decimal=decimal,
        comment=comment,
        wide=tuple(wide or ()),
        split=tuple(split or ()),
        where=tuple(conditions or ()),
        epochs=epochs,
        ignore=tuple(ignore or ()),
    )
    sheet_file, *other_sheets = map(str, sources)
    declaration = SheetDeclaration(
        name or "",
        metric,
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
