"""`ablate import`: makes a sweep from results that were trained elsewhere.

Everything is checked before anything is written. Each run gets a folder, which is written under
another name and renamed when it is whole. Then the ledger records all runs, in one transaction, and
then the plan is written as a driver writes it. A kill at any moment leaves a store that opens, and
the same command goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.analysis import is_share
from ablate.audit.bundle import Bundle
from ablate.audit.merge import whole_folder
from ablate.audit.sheet import FRAME, Sheet, SheetRun, equal_lines, runs_of, undeclared_differences
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
from ablate.report import count_text
from ablate.run import (
    DIRECTIONS,
    FINAL_STATUSES,
    IMPORT_EVENT,
    PREDICTS,
    TAKEN_NAMES,
    TRAINER,
    OwnSpec,
    RunDir,
    declared_metric,
    imported_tree,
)
from ablate.running import hold_driver_lock
from ablate.shared import (
    Failure,
    UserError,
    make_folder,
    sha256_of,
    to_json,
    unknown_value,
)
from ablate.store import History, Ledger, Store, fold_history, result_detail

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
    """The user's declarations about a sheet: what its columns mean, and the sweep's name.

    `metrics`: "acc:more:%", or "acc=COLUMN:more:%" where the column has another name than the
    metric. The first metric is the table's.
    """

    name: str
    row: str
    metrics: Sequence[str]
    column: str | None = None
    seed: str | None = None
    baseline: str | None = None
    predictions: str | None = None
    result: str | None = None
    command: DeclaredImport | None = None  # None: a frame of Python, which no command reads

    @property
    def keys(self) -> SheetKeys:
        """The names of the columns to read. Raises UserError for a metric that can't be parsed."""
        metrics = {key: column for key, column, _ in map(_metric, self.metrics)}
        if not metrics:
            raise UserError("--metric: missing; give KEY:more or KEY:less, such as acc:more:%")
        return SheetKeys(self.row, metrics, self.column, self.seed, self.predictions, self.result)


def _metric(text: str) -> tuple[str, str, dict[str, Any]]:
    """Parse "acc=test/acc:more:%" into (name, column, {"direction": ..., "unit": ...}).

    Raises UserError where it can't be parsed, or where the name can't be a metric's.
    """
    assignment, _, rest = text.partition(":")
    key, _, column = assignment.partition("=")
    direction, _, unit = rest.partition(":")
    place = f"--metric {text}"
    if direction not in DIRECTIONS:
        raise UserError(
            f"{place}: expected KEY:more or KEY:less, and a unit, such as acc:more:%: which values "
            f"are better?"
        )
    if not key.isidentifier() or key in TAKEN_NAMES:
        raise UserError(f"{place}: {key!r} can't be a metric's name; write accuracy={key}:{rest}")
    return key, column or key, {"direction": direction, "unit": unit}


# --- The plan -------------------------------------------------------------------------------------


def declare_plan(
    sheet: Sheet, runs: Sequence[SheetRun], declaration: SheetDeclaration, old: Plan | None
) -> Plan:
    """Return the plan of a sheet's runs and of the runs of earlier sheets, which `old` has.

    Raises UserError for a baseline that is no row, or that lacks a column, and for metrics or seeds
    that differ from those of `old`.
    """
    metrics = _metrics(sheet, runs, declaration)
    blocks = declaration.seed is not None
    predicts = blocks and all(run.marks_examples for run in runs)
    lines = [*undeclared_differences(runs), *([] if blocks else equal_lines(sheet))]
    lines += _unlike_their_share(runs, declaration) if predicts else []
    source = SheetSource(
        os.path.abspath(sheet.name) if sheet.name != FRAME else FRAME,
        *(sheet.sha256, len(sheet.lines), declaration.keys, tuple(lines)),
    )
    sources, places = [source], [(run.row, run.column, run.seed) for run in runs]
    rows, columns = [], []
    if old is not None:
        assert isinstance(old.design, Imported)
        _check_same(old, old.design, metrics, declaration)
        metrics = old.cells[0].spec.tree["metrics"]
        predicts = predicts and old.cells[0].spec.tree["code"][PREDICTS]
        sources = [
            *(old_source for old_source in old.design.sources if old_source.file != source.file),
            source,
        ]
        old_places = [(c.row, c.column, s) for s in old.seeds for c in old.cells if s in c.ids]
        places = list(dict.fromkeys([*old_places, *places]))
        rows, columns = [r.label for r in old.rows], [c.label for c in old.columns]
    rows = list(dict.fromkeys([*rows, *(row for row, _, _ in places)]))
    columns = list(dict.fromkeys([*columns, *(column for _, column, _ in places)]))
    baseline = declaration.baseline or (old.baseline if old is not None else rows[0])
    if baseline not in rows:
        raise unknown_value("--baseline", baseline, rows)
    seeds: dict[tuple[str, str], list[int]] = {}
    for row, column, seed in places:
        seeds.setdefault((row, column), []).append(seed)
    for column in columns:
        if (baseline, column) not in seeds:
            raise UserError(
                f"{sheet.name}: {declaration.column} {column!r} has no run of the baseline "
                f"{baseline!r}: gains are taken within a column; leave its lines out, or give "
                f"--baseline"
            )
    return Plan(
        name=declaration.name,
        title=declaration.name,
        declared=declaration.command or DeclaredImport(sheet.name, (("--as", declaration.name),)),
        rows=tuple(Row(row, {f"{TRAINER}.row": row}) for row in rows),
        columns=tuple(
            Column(column, {f"{TRAINER}.column": column} if declaration.column else {})
            for column in columns
        ),
        cells=tuple(
            _cell(declaration.name, row, column, sorted(seeds[row, column]), metrics, predicts)
            for column in columns
            for row in rows
            if (row, column) in seeds
        ),
        baseline=baseline,
        seeds=tuple(sorted({seed for _, _, seed in places})),
        analysis=old.analysis if old is not None else Analysis(),
        design=Imported(blocks, tuple(sources)),
    )


def _cell(
    name: str,
    row: str,
    column: str,
    seeds: Sequence[int],
    metrics: Sequence[Mapping[str, Any]],
    predicts: bool,
) -> Cell:
    spec = OwnSpec(imported_tree(name, row, column, metrics, predicts))
    return Cell(row, column, spec, spec.ids(seeds))


def _metrics(
    sheet: Sheet, runs: Sequence[SheetRun], declaration: SheetDeclaration
) -> list[dict[str, Any]]:
    """Return the declaration of each metric: name, direction, unit, and its scale or its decimals.

    Raises UserError for values in % of which some are shares and some are percents, and where a
    metric after the first is called accuracy.
    """
    metrics = []
    for key, _, options in map(_metric, declaration.metrics):
        if options["unit"] == "%":
            options["scale"] = _percent_scale(sheet, runs, key, declaration.keys.metrics[key])
        else:
            options["decimals"] = min(4, 1 + max(run.decimals for run in runs))
        metrics.append(declared_metric(key, options))
    if "accuracy" in [metric["key"] for metric in metrics[1:]]:  # as --show calls the first one
        raise UserError("--metric accuracy: goes first, or is called otherwise: top1=accuracy:more")
    return metrics


FAR = 10.0  # a value so many times below the usual percents is a share, and no small percent


def _percent_scale(sheet: Sheet, runs: Sequence[SheetRun], key: str, column: str) -> float:
    """Return the factor that makes percents of a metric's values: 100.0 or 1.0.

    It is 100.0 for shares: all values lie from -1 to 1. Raises UserError for a sheet that mixes
    shares and percents, since their mean would mean nothing.
    """
    sizes = {run.place: abs(run.values[key]) for run in runs if not run.diverged}
    percents = {place: size for place, size in sizes.items() if size > 1}
    if not percents:
        return 100.0
    usual = statistics.median(percents.values())
    shares = {place: size for place, size in sizes.items() if 0 < size <= 1 and FAR * size < usual}
    if shares:
        is_share = len(shares) <= len(percents)
        fewer, unit, usual_units = (
            (shares, "share", "percents") if is_share else (percents, "percent", "shares")
        )
        place, size = next(iter(fewer.items()))
        suffix = f" (and {len(fewer) - 1} more lines)" if len(fewer) > 1 else ""
        raise UserError(
            f"{sheet.name}: {place}{suffix}: {column}: {size:g} looks like a {unit} among "
            f"{usual_units}; write all values as shares from 0 to 1, or all as percents"
        )
    return 1.0


def _unlike_their_share(runs: Sequence[SheetRun], declaration: SheetDeclaration) -> list[str]:
    """Return a line on runs whose first metric is not the share of right examples, [] for none.

    The predictions of these runs can't tell the spread.
    """
    key, _, options = _metric(declaration.metrics[0])
    if options["unit"] != "%":
        return []
    finished = [run for run in runs if not run.diverged]
    scale = 100.0 if all(abs(run.values[key]) <= 1 for run in finished) else 1.0
    shares = [
        (run, scale * run.values[key], run.predictions.right)
        for run in finished
        if run.predictions is not None and run.predictions.right is not None
    ]
    unlike = [(run, value, right) for run, value, right in shares if not is_share(value, right)]
    if not unlike:
        return []
    run, value, right = unlike[0]
    return [
        f"{key} of {count_text(len(unlike), 'run')} is not the share of right examples (of "
        f"{run.label} it is {value:g} %, and {100 * right:.2f} % are right), so the spread is not "
        f"estimated from predictions; give two decimals at least"
    ]


MEANS = ("key", "direction", "unit", "scale")  # of a metric: what a second import must repeat


def _check_same(
    old: Plan, design: Imported, metrics: Sequence[Mapping[str, Any]], declaration: SheetDeclaration
) -> None:
    """Raise UserError where the sheet and the old plan were declared differently.

    They must have the same metrics, and either both or neither must have seeds, and columns.
    """
    both = old.cells[0].spec.tree["metrics"], metrics
    old_metrics, new_metrics = (
        [[metric[part] for part in MEANS] for metric in some] for some in both
    )
    old_options = {
        "metric": old_metrics,
        "seed": design.blocks,
        "column": bool(design.sources[0].read.column),
    }
    new_options = {
        "metric": new_metrics,
        "seed": declaration.seed is not None,
        "column": declaration.column is not None,
    }
    for option in old_options:
        if old_options[option] != new_options[option]:
            raise UserError(
                f"--{option}: means something else than in `{shlex.join(['ablate', *old.command])}`"
                f", which {old.name} was imported by; do as there, or give --as NAME"
            )


# --- Its runs, here -------------------------------------------------------------------------------


def import_under_lock(store: Store, sheet: Sheet, declaration: SheetDeclaration) -> Imports:
    """Import a sheet as `import_sheet` does, and take the driver's lock for that.

    Raises Failure where another process holds the lock.
    """
    check_sweep_name(declaration.name)
    if Bundle(store.root).is_one:
        raise UserError(f"{store.root}: is a bundle, which nothing is added to; name a store")
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
    runs = runs_of(sheet, declaration.keys)
    old = _old_plan(store, ledger, declaration.name)
    plan = declare_plan(sheet, runs, declaration, old)
    planned = {(run.cell.row, run.cell.column, run.seed): run for run in plan.runs()}
    runs_by_id = {planned[run.row, run.column, run.seed].id: run for run in runs}
    old_values = _recorded(ledger, runs_by_id)
    _check_numbers(sheet, plan, runs_by_id, old_values)
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
        detail = result_detail(store.rundir(run.id), _read_back(store, run, runs_by_id[run.id]))
        detail[IMPORT_EVENT] = {
            **_origin(runs_by_id[run.id], sheet),
            "test": _numbers(runs_by_id[run.id]),
        }
        kind = "diverged" if runs_by_id[run.id].diverged else "finished"
        new = () if ledger.events(run.id) else ((time.time(), "planned", {"sweep": plan.name}),)
        histories[run.id] = [*new, (time.time(), kind, detail)]
    ledger.bring(histories, {run.id: plan.name for run in plan.runs()}, ())
    ledger.announce(plan)
    store.write_plan(plan)
    assert isinstance(plan.design, Imported)
    source = plan.design.sources[-1]
    ledger.plan(plan, sheet=[source.file, source.sha256])
    diverged = sum(run.diverged for run in runs)
    return Imports(
        *(plan.name, len(plan.rows), len(plan.columns), len(lacking), len(runs) - len(lacking)),
        diverged=diverged,
        notes=source.hides,
    )


def _read_back(store: Store, run: PlannedRun, sheet_run: SheetRun) -> Mapping[str, Any]:
    """Read the result of a run from its folder. Raises Failure where it differs from the
    sheet's."""
    folder = store.rundir(run.id)
    result, fault = folder.sealed_result(sha256_of(folder.result), curves=True, predictions=True)
    if result is None or fault or result.get("test", {}) != _numbers(sheet_run):
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


def _numbers(run: SheetRun) -> Values:
    return {} if run.diverged else run.values


def _recorded(ledger: Ledger, runs: Mapping[str, SheetRun]) -> dict[str, Values]:
    """Map each of these runs that was imported before to the numbers that were recorded then."""
    recorded_values = {}
    for run in ledger.states(runs):
        state, last_result = fold_history(ledger.events(run))
        if (
            last_result is not None
            and state.status in FINAL_STATUSES
            and IMPORT_EVENT in last_result[1]
        ):
            recorded_values[run] = last_result[1][IMPORT_EVENT]["test"]
    return recorded_values


def _check_numbers(
    sheet: Sheet, plan: Plan, runs: Mapping[str, SheetRun], old_values: Mapping[str, Values]
) -> None:
    """Raise UserError where a number differs from that of an earlier import."""
    changed = [
        f"{sheet.name}: {run.place}: {run.label}: {key} was "
        f"{_value_text(old_values[id].get(key))}, and is {_value_text(_numbers(run).get(key))}"
        for id, run in runs.items()
        if id in old_values
        for key in run.values
        if old_values[id].get(key) != _numbers(run).get(key)
    ]
    if changed:
        assert isinstance(plan.design, Imported)
        suffix = f"; and {len(changed) - MOST_LISTED} more" if len(changed) > MOST_LISTED else ""
        numbered = "" if plan.design.blocks else " (without --seed runs have the sheet's order)"
        raise UserError(
            f"{'; '.join(changed[:MOST_LISTED])}{suffix}{numbered}: nothing was imported; "
            f"`ablate gc {shlex.quote(plan.name)}` forgets the old numbers, --as NAME keeps both"
        )


def _value_text(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.12g}"


def _is_whole(
    store: Store, run: str, seals: Mapping[str, str], old_values: Mapping[str, Values]
) -> bool:
    """Return whether the run was imported before and all of its files are as they were recorded."""
    result, fault = store.rundir(run).sealed_result(seals.get(run), curves=True, predictions=True)
    return run in old_values and result is not None and not fault


def _write_run(folder: RunDir, run: PlannedRun, sheet_run: SheetRun, sheet: Sheet) -> None:
    """Write the files of a run into `folder`: spec, environment, metrics, predictions, result."""
    spec, numbers = run.spec, _numbers(sheet_run)
    lines = (
        [] if sheet_run.diverged else [{"step": 0, **{f"test_{k}": v for k, v in numbers.items()}}]
    )
    contents = {
        folder.run: to_json({"id": run.id, "spec": spec.tree}),
        folder.env: to_json({"attempts": [], IMPORT_EVENT: _origin(sheet_run, sheet)}),
        folder.metrics: b"".join(_line(line) for line in lines),
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
        **({} if sheet_run.diverged else spec.result_of(lines)),
    }
    for path, content in {**contents, folder.result: to_json(result)}.items():
        path.write_bytes(content)


def _origin(sheet_run: SheetRun, sheet: Sheet) -> dict[str, Any]:
    """Return the origin of a run's numbers: file and hash of the sheet, and the line."""
    return {"file": sheet.name, "sha256": sheet.sha256, "place": sheet_run.place}


def _line(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"
