"""What a plan costs: parameters and multiply-adds a variant, device-seconds of what is missing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate import __version__, spec
from ablate.launch import Launcher
from ablate.launch.ask import ask
from ablate.ledger import FINAL, RunState, Store
from ablate.plan import Cell, Plan
from ablate.rundir import read_json, to_json, write_whole

EVALUATION = 1.15  # what validation and starting add to the steps' time; measured on digits
DEVICES = ("cpu", "cuda")
CALIBRATED = 6  # cells measured at most; others are scaled from the nearest in size
SLOWEST = 1e9  # multiply-adds a second in training, on any machine
SMALLEST_GROUP = 8  # a norm over fewer values says little but its sign


@dataclass(frozen=True)
class Costs:
    """By (row, column): the worker's description; seconds a run, and how they are known."""

    described: Mapping[tuple[str, str], Mapping[str, Any]]
    seconds: Mapping[tuple[str, str], float | None]  # None: the data is not fetched yet
    measured: bool  # all from finished runs; else some from a calibration
    left_s: float  # device-seconds of all runs that are not done
    searches: Sequence[float] = ()  # multiply-adds of all of a cell's, nothing pruned

    def warnings(self) -> list[str]:
        """What the worker warns of, and norms over too few values to say more than a sign."""
        found = {text: text for a in self.described.values() for text in a.get("warnings", ())}
        for (row, _), answer in self.described.items():
            for site, group in answer["groups"].items():
                if group < SMALLEST_GROUP:
                    found.setdefault(row, f"{row}: {site} normalises over {group} values only")
        return list(found.values())


def costs(
    plan: Plan,
    store: Store,
    launcher: Launcher,
    states: Mapping[str, RunState],
    finished: Mapping[str, Mapping[str, Any]],
    *,
    from_s: float = 0.0,
) -> Costs:
    """The plan's costs; asks a worker process for what is not known yet.

    `finished`: the details of the runs' "finished" events (seconds). Steps are not measured for a
    plan that surely takes less than `from_s` device-seconds: what is left of it may be told as 0.
    Raises UserError for a combination that cannot be built.
    """
    device = launcher.slots[0].device
    known = _described(plan, store, device, finished, measure=from_s == 0)
    if from_s and _most(plan, [known[_key(cell, device)] for cell in plan.cells]) >= from_s:
        known = _described(plan, store, device, finished, measure=True)
    described = {(cell.row, cell.column): known[_key(cell, device)] for cell in plan.cells}
    rates = {
        answer["multiply_adds"]: answer["step_s"] / (answer["multiply_adds"] * _batch(cell))
        for cell in plan.cells
        if "step_s" in (answer := known[_key(cell, device)])
    }
    seconds: dict[tuple[str, str], float | None] = {}
    measured, left, searches = True, 0.0, []
    asked: dict[tuple[str, str], list[Cell]] = {}
    for trial in plan.trials:
        asked.setdefault((trial.cell.row, trial.cell.column), []).append(trial.cell)
    for cell in plan.cells:
        done = [finished[run]["seconds"] for run in cell.ids.values() if run in finished]
        if done:
            each: float | None = sum(done) / len(done)
        else:
            each, measured = _estimate(cell, known[_key(cell, device)], rates), False
        seconds[cell.row, cell.column] = each
        # of seeds whose settings are not chosen yet the runs are to come
        runs = [cell.ids.get(seed, "") for seed in plan.seeds]
        missing = [run for run in runs if states.get(run, RunState()).status not in FINAL]
        examples = known[_key(cell, device)]["examples"]
        if plan.tune is not None and each is not None and examples is not None:
            trials = asked[cell.row, cell.column]
            total = plan.tune.total(plan.seeds)
            images = total * _images(trials[0].spec, examples["train"])
            searches.append(3 * images * known[_key(cell, device)]["multiply_adds"])
            left += each * _search_left(total, cell, trials, states, examples["train"])
        left += (each or 0.0) * len(missing)
    return Costs(described, seconds, measured, left, searches)


def sizes(
    plan: Plan, store: Store, results: Mapping[str, Mapping[str, Any] | None]
) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Parameters and multiply-adds of every cell of which no run's result says them."""
    known = read_json(store.cache / "costs.json") or {}
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    lacking = {}
    for cell in plan.cells:
        if any("parameters" in (results.get(run) or {}) for run in cell.ids.values()):
            continue
        keys = [_key(cell, device) for device in DEVICES]  # a size is the same on each
        answer = next((known[key] for key in keys if key in known), None)
        if answer is None:
            lacking[keys[0]] = cell
        else:
            found[cell.row, cell.column] = answer
    if lacking:
        question = {
            "specs": {key: {**cell.spec, "seed": 0} for key, cell in lacking.items()},
            "calibrate": [],
            "cache": str(store.cache),
            "device": DEVICES[0],
        }
        answers = ask("describe", question)
        found |= {(cell.row, cell.column): answers[key] for key, cell in lacking.items()}
    return found


def _search_left(
    total: int,
    cell: Cell,
    trials: Sequence[Cell],
    states: Mapping[str, RunState],
    examples: int,
) -> float:
    """What is left of a cell's searches, in runs of the cell: trials may be shorter."""
    done = sum(
        states.get(run, RunState()).status in FINAL
        for trial in trials
        for run in trial.ids.values()
    )
    share = _images(trials[0].spec, examples) / _images(cell.spec, examples)
    return share * (total - done)


def _most(plan: Plan, answers: Sequence[Mapping[str, Any]]) -> float:
    """Device-seconds that all runs of the plan take where they are slowest. `answers`: cells'."""
    runs = len(plan.seeds) + (plan.tune.total(plan.seeds) if plan.tune else 0)
    forward = sum(
        _images(cell.spec, answer["examples"]["train"]) * answer["multiply_adds"]
        for cell, answer in zip(plan.cells, answers, strict=True)
        if answer["examples"] is not None
    )
    return runs * 3 * float(forward) / SLOWEST


def _images(spec: Mapping[str, Any], examples: int) -> float:
    """How many a training of that spec sees; `examples` are in the training set."""
    train = spec["train"]
    epoch = examples // train["batch"] * train["batch"]
    return float(
        (train["steps"] or 0) * train["batch"] or train["examples"] or train["epochs"] * epoch
    )


def _estimate(cell: Cell, answer: Mapping[str, Any], rates: Mapping[int, float]) -> float | None:
    if answer["examples"] is None or not rates:
        return None
    size = answer["multiply_adds"]
    rate = rates[min(rates, key=lambda other: abs(other - size))]
    images = _images(cell.spec, answer["examples"]["train"])
    return float(images * size * rate * EVALUATION)


def _described(
    plan: Plan, store: Store, device: str, finished: Mapping[str, Any], measure: bool
) -> dict[str, dict[str, Any]]:
    """The worker's answer for every cell, from the store's cache as far as it goes; with `measure`
    of some a step's time, too."""
    path = store.cache / "costs.json"
    known: dict[str, dict[str, Any]] = read_json(path) or {}
    cells = {_key(cell, device): cell for cell in plan.cells}
    unmeasured = [
        key for key, cell in cells.items() if not any(run in finished for run in cell.ids.values())
    ]
    # A hub set that was not fetched then may be fetched by now.
    new = {key for key in cells if key not in known or known[key]["examples"] is None}
    timed = {key for key in cells if key not in new and "step_s" in known[key]}
    calibrate = set(_spread(unmeasured)) - timed if measure else set()
    if timed:
        calibrate &= new
    if new or calibrate:
        question = {
            "specs": {key: {**cells[key].spec, "seed": 0} for key in sorted(new | calibrate)},
            "calibrate": sorted(calibrate),
            "cache": str(store.cache),
            "device": device,
        }
        known |= ask("describe", question)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, to_json(known))
    return known


def _spread(keys: list[str]) -> list[str]:
    """Some of the keys, evenly through the plan."""
    return keys[:: max(1, -(-len(keys) // CALIBRATED))]


def _key(cell: Cell, device: str) -> str:
    identity = spec.tree_identity(cell.spec)
    return hashlib.sha256(f"{__version__} {device} {identity}".encode()).hexdigest()[:16]


def _batch(cell: Cell) -> int:
    batch: int = cell.spec["train"]["batch"]
    return batch
