"""Verifies a sweep: every number of its table is recomputed from the raw files.

Per run: the id is the hash of `run.json`; the hashes in `result.json` are those of the files; its
numbers are those of `predictions.npy` and `metrics.jsonl`; it is the file that was recorded in the
ledger; and events, states and plan of the ledger agree. Then the table is made twice and compared.

Used by `ablate verify` (cli/keeping.py) and, for a bundle, by audit/bundle.py and
audit/bundle_check.py; `faults` also by `ablate merge` (audit/merge.py).
"""

from __future__ import annotations

import csv
import dataclasses
import io
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ablate.analysis import Evidence, Results, RunFiles, make_table, with_own_metrics
from ablate.audit.sheet import check_sheets
from ablate.planning import Plan, PlannedRun
from ablate.report import render_table
from ablate.run import (
    FINAL_STATUSES,
    META_FILE,
    OwnSpec,
    RunDir,
    decoded,
)
from ablate.shared import (
    Failure,
    UserError,
    count_text,
    is_number,
    read_json,
    sha256_of,
)
from ablate.store import (
    FROM_BUNDLE,
    PLANNING_EVENTS,
    WRITES_AGAIN,
    History,
    Ledger,
    RecordedResult,
    RunState,
    Store,
    fold_history,
    result_detail,
    retry_remedy,
)


@dataclass
class Verified:
    """The outcome of a verification.

    `findings`: a line for each fault. `notes`: a line for each fact that could not be checked.
    """

    runs: int = 0  # that have a result
    numbers: int = 0  # of the table
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, findings: Iterable[str], notes: Iterable[str]) -> None:
        self.findings += findings
        self.notes += notes


def verify_plan(plan: Plan, store: Store, ledger: Ledger) -> Verified:
    """Check the plan's runs and its table, reading one run's files at a time. Nothing is
    changed."""
    check = _Check(plan, store)
    with ledger.snapshot():
        check.ledger(ledger)
        sheets = ledger.imported_sheets(plan.name)
    for run in check.runs.values():
        check.run(run)
        check.trial(run)
    try:
        plan.checked()
    except ValueError as error:  # nothing can be made of its configurations
        check.report.findings.append(f"{store.plan_path(plan.name).name}: {error}")
    else:
        check.report.add(*check_data(check.runs.values(), store, check.data_hashes))
        check.report.add(*check_sheets(plan, check.recorded, sheets))
        check.table()
    check.say_what_was_not_checked()
    return check.report


def remake(
    plan: Plan, store: Store, histories: Mapping[str, History]
) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """Recompute the results of the plan's runs from their raw files.

    Returns (results by run, findings). It is for files outside a store, without ledger and weights.
    """
    check = _check_of(plan, store, histories, weights=False)
    for planned in check.runs.values():
        check.run(planned)
    return check.remade, check.report.findings


def faults(
    plan: Plan, store: Store, histories: Mapping[str, History], weights: bool
) -> dict[str, list[str]]:
    """Return the findings on the files of each run of the plan, by its id; [] for a sound run.

    `weights`: whether the runs' weights are present, so that they can be checked.
    """
    check, findings = _check_of(plan, store, histories, weights), {}
    for run in check.runs.values():
        count = len(check.report.findings)
        check.run(run)
        findings[run.id] = check.report.findings[count:]
    return findings


def _check_of(plan: Plan, store: Store, histories: Mapping[str, History], weights: bool) -> _Check:
    """Return the check of a plan, given the histories of its runs."""
    check = _Check(plan, store, weights)
    for run, history in histories.items():
        check.states[run], last_result = fold_history(history)
        if last_result is not None:
            check.last_results[run] = last_result
    return check


class _Check:
    def __init__(self, plan: Plan, store: Store, weights: bool = True) -> None:
        self.plan, self.store, self.weights = plan, store, weights
        self.runs = {run.id: run for run in plan.runs()}
        self.report = Verified()
        self.states: dict[str, RunState] = {}
        self.last_results: dict[str, RecordedResult] = {}  # by run: the event of its result
        self.recorded: dict[str, Mapping[str, Any]] = {}  # what result.json says, by run
        self.remade: dict[str, Mapping[str, Any]] = {}  # what the raw files say
        self.data_hashes: dict[str, dict[str, object]] = {}
        self.unchecked: Counter[str] = Counter()  # what, and of how many runs

    def finding(self, run: PlannedRun, place: Path | str, problem: str) -> None:
        name = place.name if isinstance(place, Path) else place
        self.report.findings.append(f"{run.id} {run.label}: {name}: {problem}")

    # --- The ledger -----------------------------------------------------------------------------

    def ledger(self, ledger: Ledger) -> None:
        """Seals, plan, events and states; what is needed of them later is kept."""
        self.report.add(*check_ledger(self.plan, self.store, ledger))
        place, remedy = self.store.ledger.name, self.store.repair_remedy
        self.states = ledger.states(self.runs)
        for run in self.runs.values():
            if run.id not in self.states:
                self.finding(run, place, f"lacks this run; {remedy}")
                continue
            try:
                state, last_result = fold_history(ledger.events(run.id))
            except sqlite3.DatabaseError as error:
                fault = f"an event of this run can't be read ({error})"
                self.finding(run, place, f"{fault}; {remedy}")
                continue
            row = dataclasses.asdict(self.states[run.id])
            for key, value in dataclasses.asdict(state).items():
                if value != row[key]:
                    fault = f"{key} is {row[key]!r} in its row, but {value!r} by its events"
                    self.finding(run, place, f"{fault}; {remedy}")
            if last_result is not None:
                self.last_results[run.id] = last_result

    # --- A run ----------------------------------------------------------------------------------

    def run(self, run: PlannedRun) -> None:
        """Check every file of a run, and its result against the ledger. A file that can't be read
        is a finding, too, so that it keeps no other run from being checked."""
        folder = self.store.rundir(run.id)
        try:
            self._check_files(run, folder)
        except OSError as error:
            path = Path(error.filename or folder.path)
            self.finding(run, path, error.strerror or str(error))

    def _check_files(self, run: PlannedRun, folder: RunDir) -> None:
        if not run.has_own_spec:
            self.finding(run, self.store.plan_path(self.plan.name), "the spec is another run's")
        result = folder.read_result()
        status = self.states.get(run.id, RunState()).status
        if result is None:
            if status in FINAL_STATUSES:
                fault = f"{_what_lacks(folder.result)}, but the ledger has {status}"
                self.finding(run, folder.result, f"{fault}; {retry_remedy(self.plan)}")
            else:
                self._unfinished(run, folder, status)
            return
        self.report.runs += 1
        also = {
            name: also_result.get("data_sha256")
            for name, also_result in (result.get("also") or {}).items()
        }
        self.data_hashes[run.id] = {"": result.get("data_sha256"), **also}
        self._result(run, folder, result, status)
        self._spec(run, folder)
        self._env(run, folder, result)
        self._start(run, folder, result)
        last_metrics = self._metrics(run, folder, result)
        hashes = result.get("probes_sha256") or {}
        probed = [self._hash(run, folder.probe(name), sha256) for name, sha256 in hashes.items()]
        if result["status"] != "finished":
            self.recorded[run.id] = self.remade[run.id] = result
            return
        if isinstance(run.cell.spec, OwnSpec):
            sha256 = result.get("predictions_sha256")  # what they say, its trainer alone knows
            if (
                not sha256 or self._hash(run, folder.predictions, sha256)
            ) and last_metrics is not None:
                self.recorded[run.id], self.remade[run.id] = result, {**result, **last_metrics}
            return
        if self.weights:
            self._bundled(run, folder, result)
        tests = {"": self._test(run, folder.predictions, result, "test")}
        also_results = result.get("also") or {}
        for name in (dataset["name"] for dataset in run.cell.spec.also):
            path, part = folder.predictions_on(name), f"also.{name}.test"
            tests[name] = self._test(run, path, also_results.get(name, {}), part)
        if last_metrics is not None and None not in tests.values() and all(probed):
            collapsed = result.get("collapsed")
            if is_number(last_metrics["train_loss"]) and is_number(result.get("prior_loss")):
                collapsed = last_metrics["train_loss"] >= result["prior_loss"]
            self.recorded[run.id] = result
            also = {
                name: {**also_results[name], "test": test} for name, test in tests.items() if name
            }
            remade_parts = {**last_metrics, "test": tests[""], "collapsed": collapsed, "also": also}
            self.remade[run.id] = {**result, **remade_parts}

    def _unfinished(self, run: PlannedRun, folder: RunDir, status: str) -> None:
        """Note a run without a result. It is no finding: the same sweep trains it."""
        self.unchecked["were skipped" if status == "skipped" else "have no result yet"] += 1
        torn = [path for path in (folder.result, folder.run) if path.exists()]
        for path in torn:
            if path == folder.result or not isinstance(read_json(path), dict):
                fault = f"{path.name} is {_what_lacks(path)}"
                self.report.notes.append(f"{run.id} {run.label} ({status}): {fault}")

    def _result(
        self, run: PlannedRun, folder: RunDir, result: Mapping[str, Any], status: str
    ) -> None:
        if run.id not in self.last_results or status not in FINAL_STATUSES:
            self.unchecked["have a result that the ledger has not recorded yet"] += 1
            return
        kind, detail = self.last_results[run.id]
        if detail["result_sha256"] == sha256_of(folder.result) and "rebuilt" in detail:
            self.unchecked["were recorded from their files when the ledger was rebuilt"] += 1
        elif detail["result_sha256"] != sha256_of(folder.result):
            self.finding(run, folder.result, "differs from the file that the ledger recorded")
        ledger_values = {"status": kind, **{key: detail.get(key) for key in ("seconds", "device")}}
        for key, value in ledger_values.items():
            if value != result.get(key):
                words = f"{key} is {result.get(key)}, but {value} in the ledger"
                self.finding(run, folder.result, words)

    def _spec(self, run: PlannedRun, folder: RunDir) -> None:
        content = read_json(folder.run)
        if not isinstance(content, dict):
            self.finding(run, folder.run, _what_lacks(folder.run))
        elif not run.is_recorded_in(content):
            self.finding(run, folder.run, "is another run's: the id is not the hash of its spec")

    def _env(self, run: PlannedRun, folder: RunDir, result: Mapping[str, Any]) -> None:
        if folder.sealed_attempts(result)[1]:
            fault = "differs from the file that the run wrote, by the hash in result.json"
            self.finding(run, folder.env, fault if folder.env.exists() else "missing")

    def _bundled(self, run: PlannedRun, folder: RunDir, result: Mapping[str, Any]) -> None:
        """Check the weights, which a run from a bundle may lack, and the list of its files that a
        lean bundle had thinned."""
        recorded = self.last_results.get(run.id)
        event = recorded[1] if recorded is not None else result_detail(folder, result)
        bundled = event.get(FROM_BUNDLE)
        if folder.thinned.exists():
            self.unchecked["came from a lean bundle, with thinned files and no weights"] += 1
            if bundled != sha256_of(folder.thinned) and "rebuilt" not in event:
                self.finding(run, folder.thinned, "differs from the file that `ablate merge` wrote")
        elif bundled is not None and not folder.weights.exists():
            self.unchecked["came from a bundle, which has no weights"] += 1
        else:
            self._hash(run, folder.weights, result.get("weights_sha256"))

    def _start(self, run: PlannedRun, folder: RunDir, result: Mapping[str, Any]) -> None:
        parent = run.parent()
        parent_result = self.recorded.get(parent.id) if parent is not None else None
        if parent_result is not None and result.get("start_sha256") != parent_result.get(
            "weights_sha256"
        ):
            self.finding(run, folder.result, "started from other weights than its parent has now")

    def _metrics(
        self, run: PlannedRun, folder: RunDir, result: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the part of the result that the last line gives; None if the file is wrong."""
        if not self._hash(run, folder.metrics, result.get("metrics_sha256")):
            return None
        if result["status"] != "finished":
            return {}
        lines = folder.read_metrics()
        last_values = run.cell.spec.result_of(lines)
        for key, value in last_values.items():
            if value != result.get(key):
                words = f"{key} of the last line is {value}, but {result.get(key)} in result.json"
                self.finding(run, folder.metrics, words)
        return last_values

    def _test(
        self, run: PlannedRun, path: Path, result: Mapping[str, Any], part: str
    ) -> dict[str, float] | None:
        """Recompute the test metrics, `part` of the result, from the predictions; None if they
        can't be computed."""
        folder = self.store.rundir(run.id)
        place = folder.result
        if not self._hash(run, path, result.get("predictions_sha256")):
            return None
        try:
            spec = run.spec  # of a parent: its task may be another than the plan's
            stored_metrics = result.get("test")
            remade_metrics = folder.score(path, spec.task, spec.classes, stored_metrics or {})
        except Exception as error:  # whatever numpy says of bytes that are not its own
            self.finding(run, path, f"can't be read ({error})")
            return None
        if (
            not isinstance(stored_metrics, dict)
            or {k for k in stored_metrics if is_number(stored_metrics[k])} != remade_metrics.keys()
        ):
            self.finding(
                run, place, f"{part} is {stored_metrics}, but {remade_metrics} by the predictions"
            )
            return None
        for key, value in remade_metrics.items():
            if value != stored_metrics[key]:
                words = f"{part} {key} is {stored_metrics[key]}, but {value} by the predictions"
                self.finding(run, place, words)
        return remade_metrics

    def _hash(self, run: PlannedRun, path: Path, expected: object) -> bool:
        """Return whether the file has the hash that result.json says; note a finding otherwise."""
        try:
            is_same = self.store.rundir(run.id).hash_of(path) == expected
        except FileNotFoundError:
            self.finding(run, path, "missing")
            return False
        if not is_same:
            self.finding(
                run, path, "differs from the file that the run wrote, by the hash in result.json"
            )
        return is_same

    def trial(self, run: PlannedRun) -> None:
        """Check the score that a trial gave to its search."""
        if run.trial is None or run.trial.state != "finished" or run.id not in self.remade:
            return
        name = self.plan.objective.key
        score = self.remade[run.id]["validation"].get(name)
        if score != run.trial.score:
            self.finding(
                run,
                self.store.plan_path(self.plan.name),
                f"the search has a validation {name} of {run.trial.score} for this trial, but the "
                f"raw files have {score}",
            )

    # --- The table ------------------------------------------------------------------------------

    def table(self) -> None:
        """Make the table from the results and from the raw files, and compare every number."""
        try:
            recorded_lines, remade_lines = map(self._lines, (self.recorded, self.remade))
        except (UserError, Failure) as error:
            self.report.findings.append(str(error))
            return
        if self.remade:  # else its numbers are those of the plan alone
            self.report.numbers = sum(value != "" for *_, value, _ in remade_lines)
        differ = [pair for pair in zip_longest(recorded_lines, remade_lines) if pair[0] != pair[1]]
        if differ:
            recorded_line, remade_line = (
                (" ".join(filter(None, line or []))) or "nothing" for line in differ[0]
            )
            self.report.findings.append(
                f"the table: {len(differ)} of its lines differ from the raw files; the first is "
                f"{recorded_line!r}, but {remade_line!r} by the raw files"
            )

    def _lines(self, results: Results) -> list[list[str]]:
        plan, store = self.plan, self.store
        results = with_own_metrics(plan, results, store)
        files = RunFiles(store.metrics, store.probe, store.predictions)
        table = make_table(Evidence.collect(plan, results, files))
        return [*csv.reader(io.StringIO(render_table(table, "tidy")))][1:]

    def say_what_was_not_checked(self) -> None:
        for condition, number in self.unchecked.items():
            self.report.notes.append(
                f"{number:,} of {count_text(len(self.runs), 'run')} {condition}"
            )


def _what_lacks(path: Path) -> str:
    """Describe a file that can't be read: missing, torn, or not a worker's."""
    if not path.exists():
        return "missing"
    return "torn" if read_json(path) is None else "not what a worker writes"


# --- Decoded datasets -----------------------------------------------------------------------------

# By run: data_sha256 by the name in `eval.also`, "": of its own; one that diverged read no other.
DataHashes = Mapping[str, Mapping[str, object]]


def check_data(
    runs: Iterable[PlannedRun], store: Store, data_hashes: DataHashes
) -> tuple[list[str], list[str]]:
    """Check the decoded datasets; return findings, and notes on those that could not be checked.

    `data_hashes`: for each run, the hashes of the data that it says it read.
    """
    findings, notes, runs = [], [], list(runs)
    datasets = (data for run in runs for data in run.cell.spec.datasets)
    sets = {data["fingerprint"]: data for data in datasets}
    for fingerprint, data in sets.items():
        name, home = f"data={data['name']}", store.cache / fingerprint
        if not home.is_dir():
            notes.append(f"{name} is not decoded here, so it was not checked")
            continue
        wrong = decoded.damage(home)
        if wrong is not None:
            findings.append(f"{name}: {home}: {wrong}; the same `ablate sweep` decodes it again")
        elif run_ids := _of_other_bytes(
            runs, fingerprint, decoded.digest(read_json(home / META_FILE)), data_hashes
        ):
            findings.append(
                f"{name}: {count_text(len(run_ids), 'run')} (first {run_ids[0]}) trained on other "
                f"bytes than {home} has now: another version of Pillow decoded it"
            )
    return findings, notes


def _of_other_bytes(
    runs: Iterable[PlannedRun], fingerprint: str, sha256: str, data_hashes: DataHashes
) -> list[str]:
    """List the runs that read other bytes of a dataset than it has now."""
    return [
        run.id
        for run in runs
        for name, data in zip(
            ("", *(dataset["name"] for dataset in run.cell.spec.also)),
            run.cell.spec.datasets,
            strict=True,
        )
        if data["fingerprint"] == fingerprint
        and data_hashes.get(run.id, {}).get(name, sha256) != sha256
    ]


# --- The ledger as a whole ------------------------------------------------------------------------


def check_ledger(plan: Plan, store: Store, ledger: Ledger) -> tuple[list[str], list[str]]:
    """Check the ledger as a whole; return findings, and notes on what could not be checked."""
    findings = [*_seals(store, ledger), *_looks(store, ledger)]
    notes: list[str] = []
    path = store.plan_path(plan.name)
    announced = False
    try:
        events = ledger.plan_events(plan.name)
    except Failure as error:
        findings.append(str(error))
    else:
        last_kind, detail = events[0] if events else ("", {})
        announced = last_kind == PLANNING_EVENTS and detail["sha256"] == sha256_of(path)
        if sha256_of(path) not in [detail["sha256"] for _, detail in events]:
            findings.append(
                f"{path.name}: differs from the plan that {store.ledger.name} has sealed; "
                f"{WRITES_AGAIN}"
            )
        elif "rebuilt" in events[-1][1]:
            notes.append(
                f"{path.name}: was read from its file when the ledger was rebuilt, so "
                f"an earlier edit can't be found; the same `ablate sweep` seals the plan"
            )
    if ledger.planned(plan.name) == list(enumerate(run.id for run in plan.runs())):
        return findings, notes
    if announced:
        notes.append(f"{path.name}: a crash came when it was written; the same command goes on")
    else:
        findings.append(
            f"{store.ledger.name}: its planned runs of {plan.name!r} differ from the runs of "
            f"{path}; {store.repair_remedy}"
        )
    return findings, notes


def _seals(store: Store, ledger: Ledger) -> Iterator[str]:
    place = store.ledger.name
    for number in ledger.broken_seals():
        yield (
            f"{ledger.event_subject(number) or 'a look'}: {place}: event {number} was changed, "
            f"or an event before it was removed; {store.repair_remedy}"
        )
    if ledger.lacks_its_end():
        yield f"{place}: its last events were removed; {store.repair_remedy}"


def _looks(store: Store, ledger: Ledger) -> Iterator[str]:
    """Check the file of looks against the ledger."""
    path = store.looks
    content = path.read_bytes() if path.exists() else b""
    lines = zip_longest(content.splitlines(True), ledger.looks_text().splitlines(True))
    wrong = [number for number, (line, ledger_line) in enumerate(lines, 1) if line != ledger_line]
    if wrong:
        place = f"line {wrong[0]}" if path.exists() else "the missing file"
        yield (
            f"{path.name}: {place} differs from {store.ledger.name}, which counts; the next look "
            f"writes the file again"
        )
