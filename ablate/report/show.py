"""Prints `show`: one run, or two runs side by side.

Any file of a run folder may be torn or missing: `show` says so, and shows the rest. The log of a
run is printed whole, as it grows, or its end. The output of workers is in log.txt, the lines of all
attempts one below the other.

Used by cli/looking.py (`ablate show`), by `trees.py`, for its JSON, and by `page.py`. A new fact of
code or environment may also need words in `page.py` (WORDS); the bundles of `ablate export` get it
through `count_provenance`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ablate.analysis import parent_words, trained_elsewhere
from ablate.planning import PlannedRun
from ablate.report.text import activity, announce, duration, sparkline
from ablate.run import (
    DEFAULT_TASK,
    FINAL_STATUSES,
    IMPORT_EVENT,
    TASKS,
    RunDir,
    RunSpec,
    TaskChoice,
)
from ablate.shared import Failure, Notes, is_number
from ablate.store import (
    Ledger,
    RunRecord,
    RunState,
    Store,
    driver_of,
    load_record,
    sweeps_of_run,
    turn_of_child,
    worker_notes,
)

# --- One run ------------------------------------------------------------------------------------


def describe_run(store: Store, ledger: Ledger, run: str) -> str:
    """Write labels, status, attempts, result, curves, provenance and configuration of a run."""
    record = load_record(store, ledger, run)
    folder = record.folder
    spec = configuration(record)
    notes = worker_notes(store, run)
    status = "planned" if record.state is None else record.state.status
    has_begun = status != "planned"
    has_ended = status in FINAL_STATUSES

    # What a section says where it has no lines.
    withheld = f"withheld: {record.withheld}" if record.withheld else ""
    no_result = withheld or _absence(folder.result, has_ended)
    elsewhere = trained_elsewhere([spec] if spec is not None else [])
    no_curves = withheld or elsewhere or _absence(folder.metrics, has_ended)
    no_facts = elsewhere or _absence(folder.env, has_begun)
    if record.unsealed and not elsewhere:
        no_facts = f"withheld: {record.unsealed}"

    metrics = [] if record.withheld else folder.read_metrics()
    curves = _curves(metrics, TASKS[DEFAULT_TASK] if spec is None else spec.task)
    heading = "configuration"
    if _spec(record) is None:
        heading += f", as planned ({_absence(folder.run, has_begun)})"

    lines = [f"run {run}: {record.label}"]
    for sweep, planned in record.planned:
        lines.append(f"  of {sweep}: {planned.label}{_trial(planned)}")
    lines += _start(record, spec)
    lines.append(f"  in {folder.path}" if folder.path.is_dir() else f"  in {folder.path} (missing)")
    lines += _section(f"status: {_status(record, notes)}", map(_event, record.events))
    lines += _section("attempts", _attempts(record, notes), no_facts)
    lines += _section("result", _grouped_lines(_pick(leaves(record.result), RESULT)), no_result)
    lines += _section("curves", curves, no_curves)
    lines += _section("provenance", _grouped_lines(facts(record)), no_facts)
    lines += _section(heading, yaml_lines(tree_of(spec), _yaml_width()))
    return "\n".join(lines)


def _grouped_lines(texts: Mapping[str, str]) -> list[str]:
    """Return a line for each section: "packages: numpy 2.1, torch 2.13"."""
    return [f"{section}: {text}" for section, text in grouped(texts).items()]


def _trial(planned: PlannedRun) -> str:
    return "" if planned.trial is None else ", a tuning trial"


def _start(record: RunRecord, spec: RunSpec | None) -> list[str]:
    """Return the line that names the run or the weights that a run starts from; [] where it starts
    from scratch."""
    words = "" if spec is None else parent_words(spec)
    if not words:
        return []
    parent = record.run.parent() if record.planned else None
    if parent is not None:
        words = f"{parent.label}, run {parent.id}: {words}"
    return [f"  starts from {words}"]


def _section(title: str, lines: Iterable[str], placeholder: str = "") -> list[str]:
    indented_lines = [f"  {line}" for line in lines]
    if not indented_lines and placeholder:
        indented_lines = [f"  {placeholder}"]
    return ["", title, *indented_lines]


def _absence(path: Path, expected: bool) -> str:
    if expected or path.exists():
        return f"{path.name}: missing or not whole"
    return "none yet"


def _spec(record: RunRecord) -> RunSpec | None:
    """Read the configuration in run.json; None if it is empty or not whole."""
    try:
        tree = record.folder.read_spec()
    except ValueError:
        return None
    return RunSpec.of(tree) if tree else None


def configuration(record: RunRecord) -> RunSpec | None:
    """Return the configuration in run.json, else as planned; None if neither is known."""
    spec = _spec(record)
    if spec is None and record.planned:
        return record.run.spec
    return spec


def tree_of(spec: RunSpec | None) -> Mapping[str, Any] | None:
    """Return the plain tree of a configuration; None where it is not known."""
    return None if spec is None else spec.tree


def _status(record: RunRecord, notes: Notes | None) -> str:
    """Return the status in words. `notes`: of its worker, None without a living worker."""
    if record.state is None:
        return "not in the ledger"
    if notes is None:
        return record.state.status
    return f"{record.state.status}, running: {activity(notes)}"


def _event(event: tuple[float, str, dict[str, Any]]) -> str:
    moment, kind, detail = event
    facts = {key: value for key, value in detail.items() if key != "result_sha256"}
    text = f"{_time(moment)} {kind}"
    facts_text = ", ".join(f"{key} {text}" for key, text in leaves(facts).items())
    return f"{text}: {facts_text}" if facts_text else text


def _attempts(record: RunRecord, notes: Notes | None) -> list[str]:
    worker = None if notes is None else notes.pid
    lines = []
    for number, attempt in enumerate(record.attempts, 1):
        start, ended = attempt.get("at"), attempt.get("ended")
        period = _time(start)
        if is_number(start) and is_number(ended):
            period += f", {duration(ended - start)}"
        place = f"from step {attempt.get('from_step', '?')} on {attempt.get('slot', '?')}"
        lines.append(f"{number}. {period}, {place}: {_end(attempt, worker)}")
    return lines


def _end(attempt: Mapping[str, Any], worker: object) -> str:
    """Say how an attempt ended; `worker`: the process id of the living worker."""
    match attempt:
        case {"exit": exit, "error": error}:
            return f"{exit}: {error}"
        case {"exit": exit}:
            return str(exit)
        case {"pid": pid}:
            return "running" if pid == worker else "killed without an error message"
    return "not noted"


def _curves(metrics: Sequence[Mapping[str, Any]], task: TaskChoice) -> list[str]:
    """Draw a line each for training loss, metrics that every run has, and learning rate."""
    always = [metric for metric in task.metrics if not metric.needs]
    minimized = [f"val_{metric.key}" for metric in always if metric.sign < 0]
    maximized = [f"val_{metric.key}" for metric in always if metric.sign > 0]
    rows = []
    for name in ("train_loss", *minimized, *maximized, "lr"):
        values = [line[name] for line in metrics if is_number(line.get(name))]
        if not values:
            continue
        if name == "train_loss" or name in minimized:
            best = f"lowest {min(values):.4g}"
        else:
            best = f"highest {max(values):.4g}"
        words = f"first {values[0]:.4g}, last {values[-1]:.4g}, {best}"
        rows.append((name, sparkline(values), words))
    return _columns(rows)


YAML_WIDTH = 96
YAML_EXTRA = 26  # characters of a printed line, at most, that yaml's width does not count


def _yaml_width() -> int:
    """Return the width that fits the terminal; the usual width elsewhere."""
    if not sys.stdout.isatty():
        return YAML_WIDTH
    return min(YAML_WIDTH, shutil.get_terminal_size().columns - YAML_EXTRA)


def yaml_lines(tree: Mapping[str, Any] | None, width: int = YAML_WIDTH) -> list[str]:
    """Write a tree as lines of yaml of about `width` characters."""
    import yaml

    if tree is None:
        return []
    text = yaml.safe_dump(
        dict(tree), default_flow_style=None, sort_keys=False, width=width, allow_unicode=True
    )
    return str(text).splitlines()


# --- Two runs -----------------------------------------------------------------------------------

# Keys of facts, by section of a comparison.
CODE = ("digest", "plugins", "packages", "python", "git")
ENVIRONMENT = (
    "device",
    "driver",
    "threads",
    "kernel",
    "micro_batch",
    "execution",
    "platform",
    "host",
)
# Facts come from the notes of all attempts; those of FROM_RESULT from the result, if it has them.
FROM_ATTEMPTS = (*CODE, *ENVIRONMENT, "fingerprint", "command", "folder")
FROM_RESULT = ("digest", "plugins", "device", "kernel", "micro_batch", "execution")
EDITED = "withheld: env.json is not the file that the run wrote"
RESULT = (
    "status",
    "step",
    "test",
    "also",
    "validation",
    "train_loss",
    "prior_loss",
    "collapsed",
    "seconds",
    "images_per_s",
    "peak_bytes",
    "utilisation",
)


def compare_runs(store: Store, ledger: Ledger, first_id: str, second_id: str) -> str:
    """Write the differences of two runs in configuration, data, code, environment; both results."""
    runs = [load_record(store, ledger, run) for run in (first_id, second_id)]
    sections = {
        title: [_texts(side) for side in both_sides] for title, both_sides in sides(runs).items()
    }
    results = sections.pop("result")
    specs = map(configuration, runs)
    is_elsewhere = trained_elsewhere(spec for spec in specs if spec is not None)
    lines = [" against ".join(f"{record.label} ({record.folder.id})" for record in runs)]
    for title, texts in sections.items():
        if title == "data" and not any(texts) and all(map(_spec, runs)):
            continue  # runs of the user's own trainers have no data section
        if title != "configuration" and is_elsewhere:
            continue
        differences = []
        for record, side in zip(runs, texts, strict=True):
            if not side:
                is_spec = title in ("configuration", "data")
                file = record.folder.run if is_spec else record.folder.env
                differences.append(f"{file}: missing or not whole")
        if not differences:
            here, there = texts
            keys = [key for key in here | there if here.get(key) != there.get(key)]
            differences = _side_by_side(texts, keys)
        lines += _section(title, differences, "no difference")
    lines += _section("result", _side_by_side(results, list(results[0] | results[1])), "none yet")
    for record in runs:
        for reason in (record.withheld, record.unsealed):
            if reason:
                lines.append(f"  withheld: {reason}")
    return "\n".join(lines)


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(key, value) for key, value in values.items()}


def sides(runs: Sequence[RunRecord]) -> dict[str, list[dict[str, Any]]]:
    """Return the values of each run by section and dotted key, for `compare_runs`."""
    run_facts = [facts(record) for record in runs]
    specs = [flat(tree_of(configuration(record))) for record in runs]
    data = []
    for spec in specs:
        fingerprint = spec.pop("data.fingerprint", None)
        data.append({} if fingerprint is None else {"data.fingerprint": fingerprint})
    return {
        "configuration": specs,
        "data": data,
        "code": [_pick(texts, CODE) for texts in run_facts],
        "environment": [_pick(texts, ENVIRONMENT) for texts in run_facts],
        "result": [_pick(flat(record.result), RESULT) for record in runs],
    }


def _side_by_side(sides: Sequence[Mapping[str, str]], keys: Iterable[str]) -> list[str]:
    rows = []
    for key in keys:
        texts = [side.get(key, "-") for side in sides]
        rows.append([key, *texts])
    return _columns(rows)


def facts(record: RunRecord) -> dict[str, str]:
    """Return code, machine and command of a run by dotted key. Values that changed between attempts
    are joined by " + ". Facts in the result take precedence."""
    merged: dict[str, dict[str, None]] = {}
    for attempt in record.attempts:
        attempt_facts: dict[str, Any] = {}
        if isinstance(attempt.get("origin"), dict):
            attempt_facts |= attempt["origin"]
        attempt_facts |= attempt  # its `host` is the worker's, that of `origin` the driver's
        for key, text in _pick(leaves(attempt_facts), FROM_ATTEMPTS).items():
            merged.setdefault(key, {})[text] = None
    newest = _pick(leaves(record.result), FROM_RESULT)
    joined_texts = {key: " + ".join(texts) for key, texts in merged.items()} | newest
    if record.unsealed:
        joined_texts["attempts"] = EDITED
    return joined_texts


def count_provenance(runs: Sequence[RunRecord]) -> dict[str, Counter[str]]:
    """Count code, machine and command of runs: for each fact its texts with the number of runs."""
    texts: dict[str, Counter[str]] = {}
    for record in runs:
        for key, text in facts(record).items():
            texts.setdefault(key, Counter())[text] += 1
    return texts


def _pick(texts: Mapping[str, Any], sections: Iterable[str]) -> dict[str, Any]:
    """Pick the dotted keys that are in one of the sections, in the order of the sections; no hash
    of a file."""
    picked = {}
    for section in sections:
        for key, text in texts.items():
            if key.partition(".")[0] == section and not key.endswith("sha256"):
                picked[key] = text
    return picked


# --- Values as text -----------------------------------------------------------------------------


def flat(tree: Any, place: str = "") -> dict[str, Any]:
    """Return every leaf of a plain tree by its dotted key, without nulls."""
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        return {place: tree}
    values: dict[str, Any] = {}
    for name, value in tree.items():
        values |= flat(value, f"{place}.{name}" if place else name)
    return values


def leaves(tree: Any) -> dict[str, str]:
    """Return `flat` with each leaf as text."""
    return {key: _text(key, leaf) for key, leaf in flat(tree).items()}


def _text(key: str, value: Any) -> str:
    if key == "command" and isinstance(value, list):
        return shlex.join(map(str, value))
    if is_number(value):
        match key:
            case "seconds":
                return duration(value) if value >= 60 else f"{value:.3g} s"
            case "peak_bytes":
                return f"{value / 2**20:,.0f} MiB"
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    return value if isinstance(value, str) else json.dumps(value)


def _time(moment: Any) -> str:
    if not is_number(moment) or not 0 <= moment < 1e11:
        return "?"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def grouped(texts: Mapping[str, str]) -> dict[str, str]:
    """Join the texts of each section: {"packages.numpy": "2.1", "packages.torch": "2.13"} becomes
    {"packages": "numpy 2.1, torch 2.13"}."""
    sections: dict[str, list[str]] = {}
    for key, text in texts.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"{name} {text}".strip())
    return {section: ", ".join(parts) for section, parts in sections.items()}


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align texts in columns, to the left."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


# --- The log of a run ---------------------------------------------------------------------------

TAIL_LINES, TAIL_BYTES = 40, 8_000  # at most, of the end of a log
POLL_S = 0.2  # between looks at a log that grows


@dataclass(frozen=True)
class RunLog:
    """The log of a run, log.txt, which is copied to `out`."""

    store: Store
    run: str
    out: BinaryIO

    def print(self) -> None:
        """Copy what is there. Raises Failure for a run without a log."""
        folder = self.store.rundir(self.run)
        _copy(folder, self.out, 0)
        _check(folder)

    def follow(self, ledger: Ledger) -> None:
        """Copy the log as it grows, over all attempts, until the run has ended: it has its result
        or was given up, or nobody trains it and nobody drives a sweep of it.

        Raises Failure for a run that has ended without a log.
        """
        folder = self.store.rundir(self.run)
        place = 0
        sweeps = {sweep for sweep, _ in sweeps_of_run(self.store, ledger, self.run)}
        goes_on = True
        while goes_on:
            # Asked before copying, so that the last lines of a run that has just ended are copied,
            # too.
            goes_on = _goes_on(self.store, ledger, self.run, sweeps)
            place = _copy(folder, self.out, place)
            if goes_on:
                time.sleep(POLL_S)
        _check(folder)
        if not folder.has_result() and _may_start(ledger, self.run):
            announce(
                "it has not ended, and nobody trains it now; the same `ablate sweep` goes on with "
                "it"
            )


def tail(folder: RunDir) -> str:
    """Return the last lines of a run's log."""
    try:
        with open(folder.log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "no log"
    return "\n".join(text.splitlines()[-TAIL_LINES:]) or "an empty log"


def _copy(folder: RunDir, out: BinaryIO, place: int) -> int:
    """Copy what lies behind `place`, and return the place behind it. An attempt on another host has
    a log of its own, which begins with a copy of the log before it."""
    with contextlib.suppress(FileNotFoundError), open(folder.log, "rb") as file:
        file.seek(min(place, os.fstat(file.fileno()).st_size))
        shutil.copyfileobj(file, out)
        out.flush()
        return file.tell()
    return place


def _goes_on(store: Store, ledger: Ledger, run: str, sweeps: Collection[str]) -> bool:
    """Return whether a worker trains the run, or the driver of one of its sweeps will start it."""
    folder = store.rundir(run)
    if store.liveness.alive(folder):
        return True
    driver = driver_of(store)
    if driver is None or driver.sweep not in (None, *sweeps) or folder.has_result():
        return False
    return _may_start(ledger, run)


def _may_start(ledger: Ledger, run: str) -> bool:
    return turn_of_child(ledger.states([run]).get(run, RunState())) == "later"


def _check(folder: RunDir) -> None:
    if not folder.log.exists():
        raise Failure(f"{folder.log}: no log; {_why_no_log(folder)}")


def _why_no_log(folder: RunDir) -> str:
    result = folder.read_result()
    if result is None:
        return "the run has not begun"
    if result.get("origin") == IMPORT_EVENT:
        return "the run was trained elsewhere"
    return "the file was removed, or left where the run was trained"
