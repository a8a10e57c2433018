"""`ablate import`: makes a sweep from results that were trained elsewhere.

Everything is checked before anything is written. Each run gets a folder, which is written under
another name and renamed when it is whole. Then the ledger records all runs, in one transaction, and
then the plan is written as a driver writes it. A kill at any moment leaves a store that opens, and
the same command goes on.

Used by `ablate import` (cli/importing.py) and `Store.add_runs` of Python (api/nouns.py). A new
field of `SheetDeclaration` also needs an option and an argument there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ablate.audit.copies import whole_folder
from ablate.audit.sheet import FRAME, Sheet, SheetRun, runs_of
from ablate.audit.sheet_metrics import (
    declare_metrics,
    means_the_same,
    parse_metric,
    unlike_their_share,
)
from ablate.audit.sheet_notes import (
    equal_lines,
    errors_as_shares,
    is_same_but_where,
    is_same_sheet,
    removed_runs,
    undeclared_differences,
)
from ablate.planning import (
    Analysis,
    Cell,
    Column,
    DeclaredImport,
    Imported,
    Plan,
    PlannedRun,
    Row,
    SheetKeys,
    SheetSource,
    check_sweep_name,
)
from ablate.run import (
    FINAL_STATUSES,
    IMPORT_EVENT,
    PREDICTS,
    TRAINER,
    OwnSpec,
    RunDir,
    imported_tree,
)
from ablate.running import hold_driver_lock
from ablate.shared import (
    Failure,
    UserError,
    count_text,
    make_folder,
    to_json,
    unknown_value,
)
from ablate.store import History, Ledger, Store, StreamFile, fold_history, result_detail

MOST_LISTED = 3  # changed numbers that an error names
Values = Mapping[str, float]  # by metric; {} of a run that diverged


@dataclass(frozen=True)
class Imports:
    """The outcome of an import: how many rows, columns and runs, and what the sheet hides.

    `brought`: the runs that were imported. `there`: the runs that the store had already.
    `diverged`: the diverged among both. `notes`: lines on what the sheet hides.
    """

    sweep: str
    rows: int
    columns: int
    brought: int
    there: int
    diverged: int
    notes: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield the lines to print: a summary, then the notes."""
        grid = f"{count_text(self.rows, 'row')}, {count_text(self.columns, 'column')}"
        repeats = f", {self.there:,} here already" if self.there else ""
        ill = f", {self.diverged:,} of these diverged" if self.diverged else ""
        yield f"{self.sweep}: {grid}; {count_text(self.brought, 'run')} imported{repeats}{ill}"
        yield from (f"note: {note}" for note in self.notes)


@dataclass(frozen=True)
class SheetDeclaration:
    """The user's declarations about a sheet: the sweep's name, and what the sheet has.

    `metrics`: "acc:more:%", or "acc=COLUMN:more:%" where the column has another name than the
    metric. The first metric is the table's. `layout`: the keys of the sheet but those of metrics.
    `target`: a number that means are judged against, in the place of gains over a baseline.
    """

    name: str
    metrics: Sequence[str]
    layout: SheetKeys
    baseline: str | None = None
    target: float | None = None
    command: DeclaredImport | None = None  # None: a frame of Python, which no command reads

    @property
    def keys(self) -> SheetKeys:
        """How to read the sheet. Raises UserError for a metric that can't be parsed, and for a
        name that two have."""
        metric_columns: dict[str, str] = {}
        epochs = self.layout.epochs
        for text in self.metrics:
            key, column, options = parse_metric(text)
            if key in metric_columns:
                raise UserError(
                    f"--metric {key}: was given twice; NAME=COLUMN:more gives the other one "
                    f"another name"
                )
            metric_columns[key] = column
            if epochs == f"best:{column}":
                epochs = f"{epochs}:{options['direction']}"
        if not metric_columns:
            raise UserError("--metric: missing; give KEY:more or KEY:less, such as acc:more:%")
        return replace(self.layout, metrics=metric_columns, epochs=epochs)


# --- The plan -------------------------------------------------------------------------------------


def declare_plan(
    sheet: Sheet, runs: Sequence[SheetRun], declaration: SheetDeclaration, old: Plan | None
) -> Plan:
    """Return the plan of a sheet's runs and of the runs of earlier sheets, which `old` has.

    Raises UserError for a baseline that is no row, or that lacks a column, and for metrics or seeds
    that differ from those of `old`.
    """
    metrics = declare_metrics(sheet, runs, declaration.metrics)
    has_seeds = declaration.layout.seed is not None
    predicts = has_seeds and all(run.marks_examples for run in runs)
    earlier_baseline = old.baseline if old is not None else runs[0].row
    baseline = earlier_baseline if declaration.baseline is None else declaration.baseline
    analysis = _analysis(declaration, old)
    source = _source_of(sheet, runs, declaration, predicts, baseline)
    sources = [source]
    places = [(run.row, run.column, run.seed) for run in runs]
    row_labels: list[str] = []
    column_labels: list[str] = []
    if old is not None:
        assert isinstance(old.design, Imported)
        _check_same(old, old.design, metrics, sheet, declaration)
        old_tree = old.cells[0].spec.tree
        metrics = old_tree["metrics"]
        predicts = predicts and old_tree["code"][PREDICTS]
        old_sources = [
            sheet_source
            for sheet_source in old.design.sources
            if not _is_reread(sheet_source, source, {*_places_of(old)} <= {*places})
        ]
        sources = [*old_sources, source]
        places = [*_places_of(old), *places]
        row_labels = [row.label for row in old.rows]
        column_labels = [column.label for column in old.columns]
    places = list(dict.fromkeys(places))  # without repeats, in their order
    row_labels = list(dict.fromkeys([*row_labels, *(row for row, _, _ in places)]))
    column_labels = list(dict.fromkeys([*column_labels, *(column for _, column, _ in places)]))
    if baseline not in row_labels:
        raise unknown_value("--baseline", baseline, row_labels)
    seeds: dict[tuple[str, str], list[int]] = {}
    for row, column, seed in places:
        seeds.setdefault((row, column), []).append(seed)
    for column in column_labels:
        if analysis.target is None and (baseline, column) not in seeds:
            raise UserError(
                f"{sheet.name}: {declaration.layout.column} {column!r} has no run of the baseline "
                f"{baseline!r}: gains are taken within a column; leave its lines out, give "
                f"--baseline, or give --target NUMBER, which needs no baseline"
            )
    cells = []
    for column in column_labels:
        for row in row_labels:
            if (row, column) in seeds:
                tree = imported_tree(declaration.name, row, column, metrics, predicts)
                spec = OwnSpec(tree)
                cells.append(Cell(row, column, spec, spec.ids(sorted(seeds[row, column]))))
    plan = Plan(
        name=declaration.name,
        title=declaration.name,
        declared=declaration.command or DeclaredImport(sheet.name, (("--as", declaration.name),)),
        rows=tuple(Row(label, {f"{TRAINER}.row": label}) for label in row_labels),
        columns=tuple(
            Column(label, {f"{TRAINER}.column": label} if declaration.layout.column else {})
            for label in column_labels
        ),
        cells=tuple(cells),
        baseline=baseline,
        seeds=tuple(sorted({seed for _, _, seed in places})),
        analysis=analysis,
        design=Imported(has_seeds, tuple(sources)),
    )
    plan.check_analysis("analysis.contrasts.")
    return plan


def _analysis(declaration: SheetDeclaration, old: Plan | None) -> Analysis:
    """Return the analysis of a sheet, with the target that was declared now or before. Raises
    UserError for a baseline of means that are judged against a target."""
    analysis = Analysis() if old is None else old.analysis
    if declaration.target is not None:
        analysis = replace(analysis, target=declaration.target)
    if declaration.baseline is not None and analysis.target is not None:
        raise UserError(
            f"--baseline {declaration.baseline}: means are judged against the target "
            f"{analysis.target:.10g}, and no row is a baseline; leave it out"
        )
    return analysis


def _source_of(
    sheet: Sheet,
    runs: Sequence[SheetRun],
    declaration: SheetDeclaration,
    predicts: bool,
    baseline: str,
) -> SheetSource:
    """Return what the plan keeps of a sheet: its file, its keys, and lines on what it hides."""
    hides = [*sheet.notes, *undeclared_differences(runs, baseline)]
    if declaration.layout.seed is None:
        hides += equal_lines(sheet)
    if predicts:
        hides += unlike_their_share(runs, declaration.metrics[0])
    return SheetSource(
        file=sheet.path,
        sha256=sheet.sha256,
        lines=len(sheet.lines),
        read=sheet.keys,
        hides=tuple(hides),
    )


def _is_reread(old: SheetSource, new: SheetSource, has_all_runs: bool) -> bool:
    """Return whether a new source takes the place of an old one: it is the same sheet with no fewer
    lines. It has to have all runs of the plan (`has_all_runs`) if it is a frame, which has no
    place, or if `where` chooses other lines of it."""
    if is_same_sheet(old, new.file, new.read):
        return has_all_runs if new.file == FRAME else old.lines <= new.lines
    return has_all_runs and is_same_but_where(old, new.file, new.read)


def _files_of(plan: Plan) -> set[str]:
    """Return the files and folders that a plan was imported from."""
    assert isinstance(plan.design, Imported)
    return {source.file for source in plan.design.sources}


def _places_of(plan: Plan) -> list[tuple[str, str, int]]:
    """Return (row, column, seed) of each run of a plan, seed by seed."""
    return [
        (cell.row, cell.column, seed)
        for seed in plan.seeds
        for cell in plan.cells
        if seed in cell.ids
    ]


def _check_same(
    old: Plan,
    design: Imported,
    metrics: Sequence[Mapping[str, Any]],
    sheet: Sheet,
    declaration: SheetDeclaration,
) -> None:
    """Raise UserError where the sheet and the old plan were declared differently.

    They must have the same metrics, and either both or neither must have seeds, and columns.
    """
    old_metrics, layout = old.cells[0].spec.tree["metrics"], declaration.layout
    agreements = {
        "metric": means_the_same(old_metrics, metrics, sheet, declaration.metrics),
        "seed": design.blocks == (layout.seed is not None),
        "column": bool(design.sources[0].read.column) == (layout.column is not None),
    }
    for option in agreements:
        if not agreements[option]:
            command = old.repeat_command(lambda *words: shlex.join(["ablate", *words]))
            raise UserError(
                f"--{option}: means something else than in `{command}`, which {old.name} was "
                f"imported by; do as there, or give --as NAME"
            )


# --- Its runs, here -------------------------------------------------------------------------------


def import_under_lock(store: Store, sheet: Sheet, declaration: SheetDeclaration) -> Imports:
    """Import a sheet as `import_sheet` does, and take the driver's lock for that.

    Raises Failure where another process holds the lock.
    """
    check_sweep_name(declaration.name, is_new=not store.plan_path(declaration.name).exists())
    StreamFile.refuse_sweep(store, declaration.name)
    make_folder(store.root)
    with hold_driver_lock(store, "import"), Ledger.driving(store) as ledger:
        return import_sheet(store, ledger, sheet, declaration)


def import_sheet(
    store: Store, ledger: Ledger, sheet: Sheet, declaration: SheetDeclaration
) -> Imports:
    """Bring the runs of a sheet into a store, under the driver's lock.

    Raises UserError, before anything is written, for a mistake in the sheet or in its declaration,
    for numbers that differ from those of an earlier import, and for the name of a sweep that was
    trained here.
    """
    runs = runs_of(sheet)
    old = _old_plan(store, ledger, declaration.name)
    if old is not None:
        notes = removed_runs(sheet, runs, old, ledger, store)
        sheet = replace(sheet, notes=(*sheet.notes, *notes))
    plan = declare_plan(sheet, runs, declaration, old)
    planned = {(run.cell.row, run.cell.column, run.seed): run for run in plan.runs()}
    runs_by_id = {planned[run.row, run.column, run.seed].id: run for run in runs}
    old_values = _recorded(ledger, runs_by_id)
    _check_numbers(sheet, plan, old, runs_by_id, old_values, store)
    plan.readable_bytes()  # before anything is written: a plan that can't be read stops the store
    seals = ledger.seals([*runs_by_id])
    lacking = [
        run
        for run in plan.runs()
        if run.id in runs_by_id and not _is_whole(store, run.id, seals, old_values)
    ]
    make_folder(store.runs)
    for run in lacking:
        with whole_folder(store, run.id) as folder:
            _write_run(folder, run, runs_by_id[run.id], sheet)
    os.sync()  # thousands of files: all at once
    histories: dict[str, History] = {}
    for run in lacking:
        sheet_run = runs_by_id[run.id]
        detail = result_detail(store.rundir(run.id), _read_back(store, run, sheet_run))
        detail[IMPORT_EVENT] = {**_origin(sheet_run, sheet), "test": sheet_run.results}
        history: list[tuple[float, str, dict[str, Any]]] = []
        if not ledger.events(run.id):
            history.append((time.time(), "planned", {"sweep": plan.name}))
        kind = "diverged" if sheet_run.diverged else "finished"
        history.append((time.time(), kind, detail))
        histories[run.id] = history
    ledger.bring(histories, {run.id: plan.name for run in plan.runs()}, ())
    ledger.announce(plan)
    store.write_plan(plan)
    assert isinstance(plan.design, Imported)
    source = plan.design.sources[-1]
    ledger.plan(plan, sheet=[source.file, source.sha256])
    diverged = sum(run.diverged for run in runs)
    shares = errors_as_shares(runs, plan.cells[0].spec.tree["metrics"], declaration.metrics)
    return Imports(
        sweep=plan.name,
        rows=len(plan.rows),
        columns=len(plan.columns),
        brought=len(lacking),
        there=len(runs) - len(lacking),
        diverged=diverged,
        notes=tuple(shares) + source.hides,
    )


def _read_back(store: Store, run: PlannedRun, sheet_run: SheetRun) -> Mapping[str, Any]:
    """Read the result of a run from its folder. Raises Failure where it differs from the
    sheet's."""
    folder = store.rundir(run.id)
    result, fault = folder.sealed_result(None, curves=True, predictions=True)
    if result is None or fault or result.get("test", {}) != sheet_run.results:
        raise Failure(f"{folder.path}: is not what was written; is the disk sound?")
    return result


def _old_plan(store: Store, ledger: Ledger, name: str) -> Plan | None:
    """Return the plan of an earlier import with this name, None where there is none.

    Also None where the plan's file can't be read: the ledger has the numbers, and the import writes
    the plan again. Raises UserError or Failure for a sweep that was trained here.
    """
    try:
        old = ledger.sealed_plan(store, name)
    except Failure:
        runs = [run for _, run in ledger.planned(name)]
        if not any(IMPORT_EVENT in detail for run in runs for _, _, detail in ledger.events(run)):
            raise  # the sweep was trained here
        return None
    if old is not None and not isinstance(old.design, Imported):
        raise UserError(f"--as {name}: is the name of a sweep that was trained here; give another")
    return old


def _recorded(ledger: Ledger, runs: Mapping[str, SheetRun]) -> dict[str, Values]:
    """Map each of these runs that was imported before to the numbers that were recorded then."""
    recorded_values = {}
    for run in ledger.states(runs):
        state, last_result = fold_history(ledger.events(run))
        if last_result is None or state.status not in FINAL_STATUSES:
            continue
        _, detail = last_result
        if IMPORT_EVENT in detail:
            recorded_values[run] = detail[IMPORT_EVENT]["test"]
    return recorded_values


def _check_numbers(
    sheet: Sheet,
    plan: Plan,
    old: Plan | None,
    runs: Mapping[str, SheetRun],
    old_values: Mapping[str, Values],
    store: Store,
) -> None:
    """Raise UserError where a number differs from that of an earlier import."""
    changed = []
    for id, run in runs.items():
        if id not in old_values:
            continue
        for key in run.values:
            old_value = old_values[id].get(key)
            new_value = run.results.get(key)
            if old_value != new_value:
                changed.append(
                    f"{sheet.name}: {run.place}: {run.label}: {key} was "
                    f"{_value_text(old_value)}, and is {_value_text(new_value)}"
                )
    if changed:
        assert isinstance(plan.design, Imported)
        suffix = f"; and {len(changed) - MOST_LISTED} more" if len(changed) > MOST_LISTED else ""
        numbered = "" if plan.design.blocks else " (without --seed runs have the sheet's order)"
        raise UserError(
            f"{'; '.join(changed[:MOST_LISTED])}{suffix}{numbered}: nothing was imported; "
            f"{_remedy_of_order(plan.design, old)}`{store.command('gc', plan.name)}` forgets the "
            f"old numbers, --as NAME keeps both"
        )


def _remedy_of_order(design: Imported, old: Plan | None) -> str:
    """Return how runs without seeds are added that another sheet than those of the old plan has; ""
    for other changes of numbers. The last source of the design is the new sheet."""
    source = design.sources[-1]
    if design.blocks:
        return ""
    if source.file == FRAME:
        return "to add runs, give one frame of all (`pd.concat`); "
    if old is None or source.file in _files_of(old):
        return ""
    if not all(s.read.files or os.path.isfile(s.file) for s in design.sources):
        return ""  # folders aren't read together
    return "to add its runs, give all files in one command; "


def _value_text(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.12g}"


def _is_whole(
    store: Store, run: str, seals: Mapping[str, str], old_values: Mapping[str, Values]
) -> bool:
    """Return whether the run was imported before and all of its files are as they were recorded."""
    if run not in old_values:
        return False
    result, fault = store.rundir(run).sealed_result(seals.get(run), curves=True, predictions=True)
    return result is not None and not fault


def _write_run(folder: RunDir, run: PlannedRun, sheet_run: SheetRun, sheet: Sheet) -> None:
    """Write the files of a run into `folder`: spec, environment, metrics, predictions, result."""
    metric_lines: list[dict[str, Any]] = []
    if not sheet_run.diverged:
        scores = {f"test_{key}": value for key, value in sheet_run.results.items()}
        metric_lines.append({"step": 0, **scores})
    contents = {
        folder.run: to_json({"id": run.id, "spec": run.spec.tree}),
        folder.env: to_json({"attempts": [], IMPORT_EVENT: _origin(sheet_run, sheet)}),
        folder.metrics: b"".join(map(_line, metric_lines)),
    }
    if sheet_run.predictions is not None:
        contents[folder.predictions] = sheet_run.predictions.content()
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
    result = {
        "status": "diverged" if sheet_run.diverged else "finished",
        "origin": IMPORT_EVENT,
        "declared": list(sheet_run.values),
        "metrics_sha256": hashes[folder.metrics],
        "env_sha256": hashes[folder.env],
        "predictions_sha256": hashes.get(folder.predictions),
    }
    if not sheet_run.diverged:
        result |= run.spec.result_of(metric_lines)
    contents[folder.result] = to_json(result)
    for path, content in contents.items():
        path.write_bytes(content)


def _origin(sheet_run: SheetRun, sheet: Sheet) -> dict[str, Any]:
    """Return the origin of a run's numbers: file and hash of the sheet, and the line."""
    return {"file": sheet.name, "sha256": sheet.sha256, "place": sheet_run.place}


def _line(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"
