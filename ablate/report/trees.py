"""Makes the plain trees of `--format json`; docs/json.md is their contract, written from
docs/json.keys by tests/json_page.py. Every key is always present.

Times are seconds since 1970, durations are seconds, and null is an unknown value.

Used by cli/driving.py (`ablate plan`), cli/looking.py (`ablate status`, `ablate show`) and
api/forecast.py. A new key also needs its line in docs/json.keys, then `python tests/json_page.py`;
a key that goes or changes raises JSON_VERSION in cli/printing.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ablate.report.show import configuration, sides, tree_of
from ablate.report.status import SweepView
from ablate.running import group_of
from ablate.store import GIVEN_UP, Ledger, RunState, Store, load_record

if TYPE_CHECKING:
    from ablate.report.designs import DesignForecast
    from ablate.report.planned import PlanForecast
    from ablate.report.power import Detection, Outlook


def of_plan(
    forecast: PlanForecast,
    detection: Detection | None = None,
    ahead: Outlook | None = None,
    designs: Sequence[DesignForecast] = (),
    withheld: Iterable[str] = (),
) -> dict[str, Any]:
    """Keys: sweep, title, words; total: runs, planned and to come; states: {status: runs}; to_come;
    variants: a cell each, with its size, what a step costs in steps of the baseline, seconds a run
    and, where `auto` decides, devices of a run; memory: null or what a step takes of a GPU; left:
    device_seconds and wall_seconds (null: more than a month), where, how; gpu: null or name and
    memory_bytes; launcher: name and settings; tuning: null or the search;
    detect: null or the answer to --detect; until: null or the runs that looks may
    take; designs: of the changes, each with its forecast; withheld: runs whose results are not
    used; notes, warnings, those on devices among them.
    """
    plan, states, costs = forecast.plan, forecast.states, forecast.costs
    tune, rehearsals = plan.tune, forecast.rehearsals
    memories = {place: asdict(memory) for place, memory in costs.memories.items()}
    return {
        "sweep": plan.name,
        "title": plan.title,
        "words": list(plan.words),
        "total": sum(1 for _ in plan.runs()) + plan.to_come,
        "states": _counts((run.id for run in plan.runs()), states),
        "to_come": plan.to_come,
        "baseline": plan.baseline,
        "seeds": list(plan.seeds),
        "variants": [
            {
                "row": cell.row,
                "column": cell.column,
                "aliases": [
                    alias for row in plan.rows if row.label == cell.row for alias in row.aliases
                ],
                "parameters": costs.described[cell.row, cell.column]["parameters"],
                "multiply_adds": costs.described[cell.row, cell.column]["multiply_adds"],
                "step": rehearsals.steps.get((cell.row, cell.column)),
                "seconds": costs.seconds[cell.row, cell.column],
                "devices": costs.worlds.get(group_of(cell)),
                "memory": memories.get((cell.row, cell.column)),
                "states": _counts(cell.ids.values(), states),
                "runs": {str(seed): run for seed, run in cell.ids.items()},
            }
            for cell in plan.cells
        ],
        "left": {
            "device_seconds": costs.left_s,
            "wall_seconds": costs.wall_s,
            "where": costs.hardware,
            "how": costs.basis,
        },
        "gpu": None if costs.card is None else asdict(costs.card),
        "launcher": {k: v for k, v in forecast.launcher.items() if k != "engine"},
        "tuning": None
        if tune is None
        else {
            "keys": list(dict.fromkeys(key for stage in tune.stages for key in stage.space)),
            "sampler": tune.sampler,
            "searches": sum(len(plan.searches(cell)) for cell in plan.cells),
            "chosen": sum(len(cell.chosen) for cell in plan.cells),
            "trials": plan.expected_trials,
            "multiply_adds": list(costs.searches),
        },
        "detect": None if detection is None else detection.tree(),
        "until": None if ahead is None else ahead.tree(),
        "designs": [asdict(design) for design in designs],
        "withheld": list(withheld),
        "notes": [*plan.notes, *costs.notes],
        "warnings": [*costs.warnings(), *rehearsals.warnings, *forecast.amiss],
    }


def of_status(view: SweepView, withheld: Iterable[str]) -> dict[str, Any]:
    """Keys: sweep; driven: does a process drive it; submitted: the job that is to; total, done,
    states: {status: runs}; variants: {row, states}; running: {run, label, slot, phase, step,
    total}; failed: {run, label, status, error, log}; withheld: lines.
    """
    plan, progress, store = view.plan, view.progress, view.store
    return {
        "sweep": plan.name,
        "driven": progress.is_driven,
        "submitted": None if progress.submitted is None else progress.submitted.job,
        "total": progress.total,
        "done": progress.ended_count,
        "to_come": plan.to_come,
        "states": dict(progress.counts),
        "variants": [
            {
                "row": row.label,
                "states": _counts(
                    (run.id for run in view.runs if run.cell.row == row.label), progress.states
                ),
            }
            for row in plan.rows
        ],
        "running": [
            {
                "run": worker.run.id,
                "label": worker.run.label,
                "slot": worker.slot,
                **{key: getattr(worker.notes, key) for key in ("phase", "step", "total")},
            }
            for worker in progress.workers
        ],
        "failed": [
            {
                "run": run.id,
                "label": run.label,
                "status": progress.states[run.id].status,
                "error": store.liveness.notes(store.rundir(run.id)).error,
                "log": str(store.rundir(run.id).log),
            }
            for run in view.runs
            if progress.states[run.id].status in GIVEN_UP
        ],
        "withheld": list(withheld),
    }


def of_run(store: Store, ledger: Ledger, run: str) -> dict[str, Any]:
    """Keys: run, label, folder; sweeps: {sweep, label, trial}; status (null: not in the ledger);
    alive: does a worker train it; events: {at, kind, detail}; attempts, result, configuration as
    in their files (null: missing or not whole); metrics: the lines of validations; withheld: why
    result and attempts are not shown.
    """
    record = load_record(store, ledger, run)
    return {
        "run": run,
        "label": record.label,
        "folder": str(record.folder.path),
        "sweeps": [
            {"sweep": sweep, "label": planned.label, "trial": planned.trial is not None}
            for sweep, planned in record.planned
        ],
        "status": None if record.state is None else record.state.status,
        "alive": store.liveness.alive(record.folder),
        "events": [
            {"at": moment, "kind": kind, "detail": detail} for moment, kind, detail in record.events
        ],
        "attempts": list(record.attempts),
        "result": record.result or None,
        "metrics": [] if record.withheld else list(record.folder.read_metrics()),
        "withheld": [reason for reason in (record.withheld, record.unsealed) if reason],
        "configuration": tree_of(configuration(record)),
    }


def of_runs(store: Store, ledger: Ledger, runs: Sequence[str]) -> dict[str, Any]:
    """Keys: runs: ids; labels; differs: {configuration, data, code, environment}, each {key: [one,
    other]} (null: absent); results: {key: [one, other]}.
    """
    records = [load_record(store, ledger, run) for run in runs]
    sections = sides(records)
    results = sections.pop("result")
    return {
        "runs": list(runs),
        "labels": [record.label for record in records],
        "differs": {
            name: {key: pair for key, pair in _pairs(two).items() if pair[0] != pair[1]}
            for name, two in sections.items()
        },
        "results": _pairs(results),
        "withheld": [
            reason for record in records for reason in (record.withheld, record.unsealed) if reason
        ],
    }


def _pairs(two: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {key: [side.get(key) for side in two] for key in {**two[0], **two[1]}}


def _counts(runs: Iterable[str], states: Mapping[str, RunState]) -> dict[str, int]:
    return dict(Counter(states.get(run, RunState()).status for run in runs))
