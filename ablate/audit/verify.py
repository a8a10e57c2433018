"""Does a table say what the raw files say? Every number of it is made again from them.

Per run: `run.json` is what its id is a hash of; the hashes in `result.json` are those of the files;
its numbers are those of `predictions.npy` and `metrics.jsonl`; it is the file that was recorded in
the ledger, whose events, states and plan agree. Then the table is made twice, and compared.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ablate.analysis.tabulate import tabulate
from ablate.planning.plan import Plan, PlannedRun
from ablate.report.formats import render
from ablate.shared import decoded, spec
from ablate.shared.errors import Failure, UserError
from ablate.shared.files import is_number, read_file, read_json, sha256_of
from ablate.shared.metrics import TASKS
from ablate.shared.rundir import FINAL, RunDir
from ablate.shared.spec import classes_of, task_of
from ablate.store.events import History, RunState
from ablate.store.ledger import Ledger
from ablate.store.record import Recorded, folded
from ablate.store.store import Store

SINGLE = 2**-23  # relative rounding of the losses in files of older versions


@dataclass
class Verified:
    """What was found wrong, a line each; `notes` are lines on what could not be checked."""

    runs: int = 0  # that have a result
    numbers: int = 0  # of the table
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify(plan: Plan, store: Store, ledger: Ledger) -> Verified:
    """Check the plan's runs and its table. Nothing is changed. One run's files at a time."""
    check = _Check(plan, store)
    with ledger.still():
        check.ledger(ledger)
    for run in check.runs.values():
        check.run(run)
        check.trial(run)
    try:
        plan.checked()
    except ValueError as error:  # nothing can be made of its configurations
        check.found.findings.append(f"{store.plan_path(plan.name).name}: {error}")
    else:
        check.data()
        check.table()
    check.say_what_was_not_checked()
    return check.found


def remake(
    plan: Plan, store: Store, histories: Mapping[str, History]
) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """The results of the plan's runs, made again from their raw files; what is wrong with those.

    For what was taken out of a store, without ledger and weights.
    """
    check = _Check(plan, store, weights=False)
    for run, history in histories.items():
        check.states[run], last = folded(history)
        if last is not None:
            check.last[run] = last
    for planned in check.runs.values():
        check.run(planned)
    return check.remade, check.found.findings


class _Check:
    def __init__(self, plan: Plan, store: Store, weights: bool = True) -> None:
        self.plan, self.store, self.weights = plan, store, weights
        self.runs = {run.id: run for run in plan.runs()}
        self.found = Verified()
        self.states: dict[str, RunState] = {}
        self.last: dict[str, Recorded] = {}  # by run: the event of its result
        self.recorded: dict[str, Mapping[str, Any]] = {}  # what result.json says, by run
        self.remade: dict[str, Mapping[str, Any]] = {}  # what the raw files say
        self.trained_on: dict[str, object] = {}  # data_sha256, by run; None in older results
        self.unchecked: Counter[str] = Counter()  # what older versions did not write

    def finding(self, run: PlannedRun, where: Path | str, what: str) -> None:
        name = where.name if isinstance(where, Path) else where
        self.found.findings.append(f"{run.id} {run.label}: {name}: {what}")

    # --- The ledger -----------------------------------------------------------------------------

    def ledger(self, ledger: Ledger) -> None:
        """Seals, plan, events and states; what is needed of them later is kept."""
        place = self.store.ledger.name
        for number in ledger.broken_seals():
            self.found.findings.append(
                f"{ledger.about(number) or 'a look'}: {place}: event {number} is not as it was "
                f"written, or one before it was taken out"
            )
        if ledger.lacks_its_end():
            self.found.findings.append(f"{place}: its last events were taken out")
        self._looks(ledger)
        self._plan(ledger)
        if ledger.planned(self.plan.name) != list(enumerate(r.id for r in self.plan.runs())):
            self.found.findings.append(
                f"{place}: its planned runs of {self.plan.name!r} are not those of "
                f"{self.store.plan_path(self.plan.name)}"
            )
        self.states = ledger.states(self.runs)
        for run in self.runs.values():
            if run.id not in self.states:
                self.finding(run, place, "does not know this run")
                continue
            try:
                state, last = folded(ledger.events(run.id))
            except sqlite3.DatabaseError as error:
                self.finding(run, place, f"an event of it can't be read ({error})")
                continue
            row = dataclasses.asdict(self.states[run.id])
            for key, value in dataclasses.asdict(state).items():
                if value != row[key]:
                    self.finding(
                        run, place, f"{key} is {row[key]!r} in its row, by its events {value!r}"
                    )
            if last is not None:
                self.last[run.id] = last

    def _plan(self, ledger: Ledger) -> None:
        """Is its file the one that was planned?"""
        path = self.store.plan_path(self.plan.name)
        try:
            told = ledger.plan_events(self.plan.name)
        except Failure as error:
            self.found.findings.append(str(error))
            return
        if not (told or ledger.seals_plans()):
            self.found.notes.append(f"{path.name}: was planned before plans were sealed")
        elif sha256_of(path) not in [detail["sha256"] for _, detail in told]:
            self.found.findings.append(
                f"{path.name}: is not the plan that was sealed in {self.store.ledger.name}; the "
                f"same `ablate sweep` writes it again"
            )
        elif "rebuilt" in told[-1][1]:
            self.found.notes.append(
                f"{path.name}: was taken from its file as it lay there, when the ledger was "
                f"migrated or made again: until the same `ablate sweep` seals it nobody knows "
                f"whether it was edited before"
            )

    def _looks(self, ledger: Ledger) -> None:
        """Is the file that says at what verdicts were read what the ledger says?"""
        path = self.store.looks
        said = path.read_bytes() if path.exists() else b""
        lines = zip_longest(said.splitlines(True), ledger.looks_text().splitlines(True))
        wrong = [number for number, (line, known) in enumerate(lines, 1) if line != known]
        if wrong:
            where = f"line {wrong[0]}" if path.exists() else "missing: it"
            self.found.findings.append(
                f"{path.name}: {where} is not what {self.store.ledger.name} says, which is what "
                f"counts; the next look writes the file again"
            )

    # --- A run ----------------------------------------------------------------------------------

    def run(self, run: PlannedRun) -> None:
        """Everything in its folder, and what the ledger says of its result."""
        folder = self.store.rundir(run.id)
        if _id(run.spec()) != run.id:
            self.finding(run, self.store.plan_path(self.plan.name), "the spec is another run's")
        result = folder.read_result()
        status = self.states.get(run.id, RunState()).status
        if result is None:
            if status in FINAL:
                self.finding(
                    run,
                    folder.result,
                    f"{_what_lacks(folder.result)}, and the ledger says {status}; "
                    f"the same `ablate sweep` trains it again",
                )
            else:
                self._unfinished(run, folder, status)
            return
        self.found.runs += 1
        self.trained_on[run.id] = result.get("data_sha256")
        self._result(run, folder, result, status)
        self._spec(run, folder)
        self._env(run, folder, result)
        last = self._metrics(run, folder, result)
        for name, sha256 in result.get("probes_sha256", {}).items():
            self._hash(run, folder.probe(name), sha256)
        if result["status"] != "finished":
            self.recorded[run.id] = self.remade[run.id] = result
            return
        if self.weights:
            self._hash(run, folder.weights, result.get("weights_sha256"))
        whole = self._hash(run, folder.predictions, result.get("predictions_sha256"))
        test = self._test(run, folder, result) if whole else None
        if last is not None and test is not None:
            collapsed = result.get("collapsed")
            if is_number(last["train_loss"]) and is_number(result.get("prior_loss")):
                collapsed = last["train_loss"] >= result["prior_loss"]
            self.recorded[run.id] = result
            self.remade[run.id] = {**result, **last, "test": test, "collapsed": collapsed}

    def _unfinished(self, run: PlannedRun, folder: RunDir, status: str) -> None:
        """No finding: the same sweep goes on with it, or begins again."""
        self.unchecked["have no result yet"] += 1
        torn = [path for path in (folder.result, folder.run) if path.exists()]
        for path in torn:
            if path == folder.result or not isinstance(read_json(path), dict):
                what = f"{path.name} is {_what_lacks(path)}"
                self.found.notes.append(f"{run.id} {run.label} ({status}): {what}")

    def _result(
        self, run: PlannedRun, folder: RunDir, result: Mapping[str, Any], status: str
    ) -> None:
        if run.id not in self.last or status not in FINAL:
            self.unchecked["have a result that the ledger has not recorded yet"] += 1
            return
        kind, detail = self.last[run.id]
        if "result_sha256" not in detail:
            self.unchecked["were recorded before results were sealed"] += 1
        elif detail["result_sha256"] == sha256_of(folder.result) and "rebuilt" in detail:
            self.unchecked["were recorded from their files when the ledger was made again"] += 1
        elif detail["result_sha256"] != sha256_of(folder.result):
            self.finding(run, folder.result, "is not the file that was recorded in the ledger")
        told = {"status": kind, **{key: detail.get(key) for key in ("seconds", "device")}}
        for key, value in told.items():
            if value != result.get(key):
                self.finding(
                    run,
                    folder.result,
                    f"{key} is {result.get(key)}, in the ledger it is {value}",
                )

    def _spec(self, run: PlannedRun, folder: RunDir) -> None:
        content = read_json(folder.run)
        if not isinstance(content, dict):
            self.finding(run, folder.run, _what_lacks(folder.run))
        elif content.get("id") != run.id or (
            content.get("spec") != run.spec() and _id(content.get("spec")) != run.id
        ):
            self.finding(run, folder.run, "is another run's: its id is no hash of what it says")

    def _env(self, run: PlannedRun, folder: RunDir, result: Mapping[str, Any]) -> None:
        if "env_sha256" not in result:
            self.unchecked["ended before env.json was sealed: it is not covered"] += 1
        elif folder.sealed_attempts(result)[1]:
            what = "is not the file that was written: result.json has its hash"
            self.finding(run, folder.env, what if folder.env.exists() else "missing")

    def _metrics(
        self, run: PlannedRun, folder: RunDir, result: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """What the last line makes of the result; None where the file does not count."""
        if "metrics_sha256" not in result:
            self.unchecked["were written before metrics were sealed"] += 1
            if not folder.metrics.exists():
                self.finding(run, folder.metrics, "missing")
        elif not self._hash(run, folder.metrics, result["metrics_sha256"]):
            return None
        if result["status"] != "finished":
            return {}
        lines = folder.read_metrics()
        line = lines[-1] if lines else {}
        made = {
            "step": line.get("step"),
            "train_loss": line.get("train_loss"),
            "validation": {name[4:]: line[name] for name in line if name.startswith("val_")},
        }
        for key, value in made.items():
            if value != result.get(key):
                self.finding(
                    run,
                    folder.metrics,
                    f"{key} of the last line is {value}, result.json says {result.get(key)}",
                )
        return made

    def _test(
        self, run: PlannedRun, folder: RunDir, result: Mapping[str, Any]
    ) -> dict[str, float] | None:
        """The test metrics of the predictions; None where a table can't be made of them."""
        import numpy as np

        try:
            table = np.load(io.BytesIO(read_file(folder.predictions)))
            tree = run.spec()  # of a parent: its task may be another than the plan's
            made = TASKS[task_of(tree)].score(table, classes_of(tree))
        except Exception as error:  # whatever numpy says of bytes that are not its own
            self.finding(run, folder.predictions, f"can't be read ({error})")
            return None
        said = result.get("test")
        if not isinstance(said, dict) or {k for k in said if is_number(said[k])} != made.keys():
            self.finding(run, folder.result, f"test is {said}, the predictions' is {made}")
            return None
        for key in made.keys() & {*table.dtype.names}:  # older files keep it in four bytes
            if table.dtype[key].itemsize == 4:
                self.unchecked[f"keep their {key} in single precision: the test's is so, too"] += 1
                if abs(made[key] - said[key]) <= SINGLE * abs(made[key]):
                    made[key] = said[key]
        for key, value in made.items():
            if value != said[key]:
                self.finding(
                    run, folder.result, f"test {key} is {said[key]}, the predictions' is {value}"
                )
        return made

    def _hash(self, run: PlannedRun, path: Path, expected: object) -> bool:
        """Does the file have the hash that result.json says?"""
        try:
            same = sha256_of(path) == expected
        except FileNotFoundError:
            self.finding(run, path, "missing")
            return False
        if not same:
            self.finding(run, path, "is not the file that was written: result.json has its hash")
        return same

    def trial(self, run: PlannedRun) -> None:
        """Was its search told what the raw files say?"""
        if run.trial is None or run.trial.state != "finished" or run.id not in self.remade:
            return
        name = self.plan.judged.key
        score = self.remade[run.id]["validation"].get(name)
        if score != run.trial.score:
            self.finding(
                run,
                self.store.plan_path(self.plan.name),
                f"its search was told a validation {name} of {run.trial.score}, the raw files say "
                f"{score}",
            )

    # --- The data -------------------------------------------------------------------------------

    def data(self) -> None:
        """Are the decoded sets as they were written, and what the runs were trained on?"""
        sets = {cell.spec["data"]["fingerprint"]: cell.spec["data"] for cell in self.plan.cells}
        for fingerprint, data in sets.items():
            name, home = f"data={data['name']}", self.store.cache / fingerprint
            if not home.is_dir():
                self.found.notes.append(f"{name} is not decoded here: it was not checked")
                continue
            wrong = decoded.damage(home)
            if wrong == decoded.OLDER:
                self.found.notes.append(f"{name} {wrong}: it was not checked")
            elif wrong is not None:
                self.found.findings.append(
                    f"{name}: {home}: {wrong}; the same `ablate sweep` decodes it again"
                )
            else:
                self._trained_on(fingerprint, name, decoded.digest(read_json(home / decoded.META)))

    def _trained_on(self, fingerprint: str, name: str, sha256: str) -> None:
        others = [
            run.id
            for run in self.runs.values()
            if run.cell.spec["data"]["fingerprint"] == fingerprint
            and self.trained_on.get(run.id) not in (None, sha256)
        ]
        if others:
            self.found.findings.append(
                f"{name}: {len(others):,} runs ({others[0]}, ...) were trained on other bytes than "
                f"{self.store.cache / fingerprint} has now: another Pillow decoded it"
            )

    # --- The table ------------------------------------------------------------------------------

    def table(self) -> None:
        """Made from what result.json says, and from the raw files: every number is the same."""
        tables = (
            tabulate(self.plan, results, curves=lambda run: self.store.rundir(run).read_metrics())
            for results in (self.recorded, self.remade)
        )
        said, made = ([*csv.reader(io.StringIO(render(t, "csv")))][1:] for t in tables)
        self.found.numbers = sum(value != "" for *_, value, _ in made)
        differ = [pair for pair in zip_longest(said, made) if pair[0] != pair[1]]
        if differ:
            first, other = ((" ".join(filter(None, line or []))) or "nothing" for line in differ[0])
            self.found.findings.append(
                f"the table: {len(differ)} of its lines are not those of the raw files; the first: "
                f"{first!r}, and of the raw files {other!r}"
            )

    def say_what_was_not_checked(self) -> None:
        for what, number in self.unchecked.items():
            self.found.notes.append(f"{number:,} of {len(self.runs):,} runs {what}")


def _id(tree: Any) -> str | None:
    """The id of the run that a plain tree says; None where it says none."""
    try:
        return spec.run_id(spec.tree_identity(tree), tree["seed"])
    except (UserError, LookupError, TypeError, AttributeError, ValueError):
        return None


def _what_lacks(path: Path) -> str:
    """Of a file that can't be read as what it should be."""
    if not path.exists():
        return "missing"
    return "torn" if read_json(path) is None else "not what a worker writes"
