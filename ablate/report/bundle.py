"""A sweep as a folder that a reviewer recomputes from, without the store it was trained in.

`export` copies the raw files, and makes everything else in the bundle out of these copies; `Bundle`
reads it again. The bundle is built beside its place and gets its name when it is whole.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate import __version__
from ablate.ledger import FINAL, Ledger, Look, Store, Unrecorded
from ablate.plan import Plan
from ablate.report.find import computed, driven, instance, sweeps
from ablate.report.formats import FORMATS, render
from ablate.report.frames import curves_frame, runs_frame
from ablate.report.gather import Known, gather, histories, provenance
from ablate.report.page import page
from ablate.report.plot import figures
from ablate.report.reading import Reading, read
from ablate.report.show import History
from ablate.report.table import Results
from ablate.report.verify import folded, remake
from ablate.rundir import RunDir, is_number, read_json, to_json
from ablate.spec import Failure, UserError, unknown

FORMAT = 2  # of a bundle; 1 did not say of which analysis verdicts were read
EXTENSIONS = {"latex": "tex"}  # of a table's format; else its name
COMPUTES = ("numpy", "scipy", "pandas", "pyarrow", "matplotlib")  # a table, a curve, a figure

README = """\
{title}

The sweep {name} as ablate {version} exported it. ablate: pip install ablate-sweep

From the raw files alone, the table again (every result is made again from predictions/ and
metrics.jsonl, and checked against the hashes that were taken when it was trained):

    ablate table --from .
    ablate table --from . --format csv | cmp - table.csv

In Python: ablate.load(store=".") and ablate.load(store=".", curves=True) are pandas frames,
with trials=True those of runs.csv and curves.parquet.

report.html        all of it to read, in one file
table.*            the gains, in every format; table.csv has one exact number a line
runs.csv           a row a run: id, row, column, seed, settings, status, test metrics, cost; one
                   with a number under `trial` was a search's: it chose settings by `score`, on
                   validation; no table has it
curves.parquet     a row a run and evaluation: losses, accuracies, learning rate
figures/           what is drawn in the report

Raw files:
sweep.json         the plan: rows, columns, seeds, analysis, and every run's whole configuration
specs/ID/          of a run: run.json what was asked for, result.json what came of it, env.json
                   where and how each attempt ran, metrics.jsonl its curves, probe-*.npz what its
                   probes saw; log.txt where it failed
predictions/ID.npy per test example: predicted class, rank of the true class, loss
events.json        what the ledger noted of each run
looks.jsonl        at which seeds, of which rows and analysis verdicts were read, these the last
diffs/             what git had not committed when runs were trained, where env.json names it
environment.json   versions that trained, and versions that made this bundle

The weights are not here: they stay in the store.
"""


class _BundledRun(RunDir):
    """A run's files as a bundle has them: predictions lie together."""

    def __init__(self, path: Path, predictions: Path) -> None:
        super().__init__(path)
        vars(self)["predictions"] = predictions


class Bundle(Store):
    """A bundle is a store of one sweep, whose ledger is a file of events."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.events = root / "events.json"
        self.environment = root / "environment.json"

    def rundir(self, run: str) -> RunDir:
        name = super().rundir(run).id
        return _BundledRun(self.root / "specs" / name, self.root / "predictions" / f"{name}.npy")

    def plan_path(self, name: str) -> Path:
        return self.root / "sweep.json"

    @property
    def is_one(self) -> bool:
        environment = read_json(self.environment)
        return isinstance(environment, dict) and is_number(environment.get("bundle"))

    def read(self) -> tuple[Plan, dict[str, History]]:
        """The plan, and every run's events. Raises UserError for what is no bundle."""
        if not self.is_one:
            raise UserError(f"{self.root}: no bundle of `ablate export DIR`")
        plan = self.read_plan("")
        if plan is None:
            raise Failure(f"{self.plan_path('')}: missing or not whole")
        return computed(self, plan), self._told()

    def _told(self) -> dict[str, History]:
        events = read_json(self.events)
        try:
            told: dict[str, History] = {
                run: [(at, kind, detail) for at, kind, detail in events[run]] for run in events
            }
            for at, kind, detail in itertools.chain.from_iterable(told.values()):
                if not (is_number(at) and isinstance(kind, str) and isinstance(detail, dict)):
                    raise ValueError
            for history in told.values():
                folded(history)
            return told
        except (ValueError, LookupError, TypeError) as error:
            raise Failure(
                f"{self.events}: not whole, or not what `ablate export` writes"
            ) from error

    def seals(self) -> dict[str, str]:
        last = {run: history[-1] for run, history in self._told().items() if history}
        return {
            run: str(detail["result_sha256"])
            for run, (_, kind, detail) in last.items()
            if kind in FINAL and "result_sha256" in detail
        }

    def read_looks(self, sweep: str) -> list[Look]:
        return self.looks_view()

    def add_look(self, look: Look) -> None:
        """A bundle is never written: it has the look that its export was, and no other's words."""
        environment = read_json(self.environment)
        if environment["bundle"] > 1 and look not in self.looks_view():
            raise Unrecorded(environment.get("withheld") or "the bundle carries other verdicts")

    def recompute(self, plan: Plan, told: Mapping[str, History]) -> Results:
        """Every result from the raw files. Raises Failure where these aren't what was exported."""
        results, findings = remake(plan, self, told)
        if findings:
            more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
            raise Failure(f"{findings[0]}{more}")
        return results


def export(plan: Plan, store: Store, told: Mapping[str, History], folder: Path) -> None:
    """Write the bundle of a sweep. Its verdicts are a look, which the store keeps.

    Raises UserError where `folder` holds anything but an earlier bundle, which is replaced, and
    Failure where a run's files are not those that it left, or the disk is full.
    """
    folder = folder.resolve()
    if not folder.parent.is_dir():
        raise UserError(f"{folder.parent}: no such folder")
    earlier = Bundle(folder).is_one
    if not earlier and folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder}: is there already, and no earlier export; name another folder")
    made = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        made.mkdir()
        _fill(Bundle(made), plan, store, told)
        os.sync()  # thousands of files: all at once
        _replace(made, folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _replace(made: Path, folder: Path) -> None:
    if not folder.exists() or not any(folder.iterdir()):
        made.rename(folder)
        return
    aside = made.with_name(f"{made.name}.old")
    folder.rename(aside)
    try:
        made.rename(folder)
    except OSError:
        aside.rename(folder)
        raise
    shutil.rmtree(aside)


def _fill(bundle: Bundle, plan: Plan, store: Store, told: Mapping[str, History]) -> None:
    """The raw files as copies, and all else made of these."""
    _copy(bundle, plan, store, told)
    results = bundle.recompute(plan, told)
    runs = gather(plan, bundle, told)
    reading = read(plan, store, results, curves=lambda run: bundle.rundir(run).read_metrics())
    table = reading.table
    drawn = figures(plan, table, bundle.rundir)
    title = plan.title or plan.name
    texts = {
        **{
            f"table.{EXTENSIONS.get(format, format)}": render(table, format)
            for format in FORMATS
            if format != "rich"
        },
        **{f"figures/{name}.svg": svg for name, svg in drawn.items()},
        "runs.csv": runs_frame(plan, runs, trials=True).to_csv(index=False, lineterminator="\n"),
        "report.html": page(plan, table, runs, reading.looks, drawn),
        "README.txt": README.format(title=title, name=plan.name, version=__version__),
    }
    for name, text in texts.items():
        path = bundle.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
    curves_frame(plan, runs, trials=True).to_parquet(bundle.root / "curves.parquet", index=False)
    looks = (json.dumps(look.event(plan.name)) for look in reading.looks)
    bundle.looks.write_text("".join(f"{look}\n" for look in looks))
    bundle.environment.write_bytes(to_json(_environment(plan, runs, reading)))


def _copy(bundle: Bundle, plan: Plan, store: Store, told: Mapping[str, History]) -> None:
    bundle.write_plan(plan)
    bundle.events.write_text(json.dumps(told, indent=1))
    (bundle.root / "specs").mkdir()
    (bundle.root / "predictions").mkdir()
    for run in plan.runs():
        source, target = store.rundir(run.id), bundle.rundir(run.id)
        target.path.mkdir()
        # The result first: where it is there, nothing of the others changes any more.
        names = ("result", "run", "env", "metrics", "predictions")
        for name in names:
            _copy_file(getattr(source, name), getattr(target, name))
        for probe in run.cell.spec.get("probe", ()):
            _copy_file(source.probe(probe), target.probe(probe))
        if not target.has_result():
            _copy_file(source.log, target.log)
        for attempt in target.read_attempts():
            _copy_diff(attempt, store, bundle)


def _copy_file(source: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(source, target)


def _copy_diff(attempt: Mapping[str, Any], store: Store, bundle: Bundle) -> None:
    match attempt:
        case {"origin": {"git": {"diff": str(name)}}}:
            bundle.diffs.mkdir(exist_ok=True)
            _copy_file(store.diffs / Path(name).name, bundle.diffs / Path(name).name)


def _environment(plan: Plan, runs: Sequence[Known], reading: Reading) -> dict[str, Any]:
    return {
        "bundle": FORMAT,
        "sweep": plan.name,
        "ablate": __version__,
        "withheld": reading.withheld,
        "made_with": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in COMPUTES},
        },
        "trained_with": provenance(runs),
    }


def opened(root: Path, name: str | None) -> tuple[Plan, Store, Mapping[str, History]]:
    """A sweep of a store, the last driven one for None, or the one of a bundle."""
    bundle = Bundle(root)
    if bundle.is_one:
        plan, told = bundle.read()
        if name not in (None, plan.name):
            raise unknown("sweep", name, [plan.name], f"that of {root}:")
        return plan, bundle, told
    store = Store(root)
    with Ledger.reading(store) as ledger:
        known = sweeps(store, ledger)
        plan = driven(store, known, (instance(name, known) or name) if name else known[0])
        return computed(store, plan), store, histories(plan, ledger)
