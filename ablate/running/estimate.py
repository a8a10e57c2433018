"""Estimates the cost of a plan: size of each variant, device-seconds of the missing runs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.planning.cell import Cell
from ablate.planning.plan import Plan
from ablate.planning.space import FACTORS
from ablate.running.costs import Costs, mean_seconds, own_costs
from ablate.running.devices import Devices
from ablate.running.launchers import Ask, Launcher
from ablate.running.pairing import paired
from ablate.running.work import CellWork, searched, time_a_seed, time_left, works_of
from ablate.shared import spec
from ablate.shared.files import is_number, make_folder, read_sealed, write_sealed
from ablate.shared.own import is_own
from ablate.shared.plugin import own_code
from ablate.store.events import RunState
from ablate.store.store import Store
from ablate.version import __version__

DEVICES = ("cpu", "cuda")
CALIBRATED = 6  # cells measured at most; others are scaled from the nearest in size
SLOWEST = 1e9  # multiply-adds a second in training, on any machine
FASTEST = {"cpu": 1e12, "cuda": 1e15}  # on one slot: beyond a core with AMX, and a B200 in bf16
MONTH_S = 30 * 86400.0


def costs(
    plan: Plan,
    store: Store,
    launcher: Launcher,
    states: Mapping[str, RunState],
    finished: Mapping[str, Mapping[str, Any]],
    *,
    from_s: float = 0.0,
    on: Devices | None = None,
) -> Costs:
    """Estimate the costs of a plan; asks the launcher for unknown sizes and times.

    `finished`: the details of the runs' "finished" events (seconds). Steps are not timed for a plan
    that surely takes less than `from_s` device-seconds, whose time left may be given as 0, nor for
    a plan that surely takes over a month on all slots. With `on` nothing is timed at all. Raises
    UserError for a combination that can't be built.
    """
    device = launcher.device if on is None else "cuda"
    places = launcher.most if on is None else on.count
    if is_own(plan.cells[0].spec):
        return own_costs(plan, states, finished, places, "slot" if on is None else on.name)
    cells = [*plan.cells, *plan.parents(), *searched(plan)]
    _described(_factored(plan), store, launcher.ask, device)
    whole = any(spec.whole_of(cell.spec) for cell in cells)
    known = _described(cells, store, launcher.ask, device, whole)
    works = works_of(plan, states, cells, [known[_key(cell, device)] for cell in cells])
    seconds: list[float | None]
    if on is not None:
        seconds = [on.seconds(work) for work in works]
        how = on.basis(sorted({cell.spec["train"]["precision"] for cell in cells}))
        beyond = False
    else:
        seconds = [mean_seconds(cell, finished) for cell in cells]
        how = "from finished runs" if None not in seconds else "by a short calibration"
        beyond = time_left(works, seconds, FASTEST[device]) > MONTH_S * places
        if None in seconds and launcher.remote and device != "cpu":  # there is none here to time
            how = "a lower bound, at the highest rate of any GPU, until runs have finished"
            rate = FASTEST[device]
            seconds = [
                work.each / rate if told is None and work.each is not None else told
                for work, told in zip(works, seconds, strict=True)
            ]
        elif None in seconds and not beyond and time_left(works, seconds, SLOWEST) >= from_s:
            known = _timed(cells, store, launcher.ask, device, finished, known)
            rates = _rates(cells, known, device)
            seconds = [
                _estimate(work, rates, known[_key(work.cell, device)]) if told is None else told
                for work, told in zip(works, seconds, strict=True)
            ]
    left_s = math.inf if beyond and None in seconds else time_left(works, seconds)
    longest = max((s for s, w in zip(seconds, works, strict=True) if s and w.left), default=0.0)
    return Costs(
        described=(told := {(c.row, c.column): known[_key(c, device)] for c in cells}),
        seconds={(c.row, c.column): s for c, s in zip(cells, seconds, strict=True)},
        how=how,
        left_s=left_s,
        where=f"{places} slot{'s'[: places != 1]}" if on is None else f"{places} x {on.name}",
        wall_s=max(left_s / places, longest),
        searches=[work.search for work in works if work.search is not None],
        seed_s=time_a_seed(works, seconds),
        notes=[*paired(plan, told), *(on.bound(works) if on is not None else ())],
    )


def sizes(
    plan: Plan, store: Store, results: Mapping[str, Mapping[str, Any] | None]
) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return parameters and multiply-adds of every cell whose results lack them."""
    known = _known(store)
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    if is_own(plan.cells[0].spec):  # nobody but its trainer knows
        return found
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
            "specs": {key: spec.seeded(cell.spec, 0) for key, cell in lacking.items()},
            "calibrate": [],
            "cache": str(store.cache),
            "device": DEVICES[0],
        }
        from ablate.running.launchers.fork import ForkServer

        with ForkServer() as server:
            answers = server.ask("describe", question)
        found |= {(cell.row, cell.column): answers[key] for key, cell in lacking.items()}
    return found


def _factored(plan: Plan) -> list[Cell]:
    """Of each cell whose search multiplies learning rates by path a trial: its model may lack that
    path."""
    first = {(trial.cell.row, trial.cell.column): trial for trial in reversed(plan.trials)}
    return [trial.cell for trial in first.values() if any(FACTORS in key for key in trial.params)]


Rates = Mapping[int, tuple[float, float]]


def _rates(cells: Sequence[Cell], known: Mapping[str, Any], device: str) -> Rates:
    """Map multiply-adds of a forward to seconds per multiply-add of it, in a step and evaluated,
    for all timed cells."""
    return {
        (size := answer["multiply_adds"]): (
            answer["step_s"] / (size * cell.spec["train"]["batch"]),
            answer["image_s"] / size,
        )
        for cell in cells
        if _is_timed(answer := known[_key(cell, device)])
    }


def _estimate(work: CellWork, rates: Rates, answer: Mapping[str, Any]) -> float | None:
    if work.each is None or not rates:
        return None
    size = answer["multiply_adds"]
    step, image = rates[min(rates, key=lambda other: abs(other - size))]
    return float(work.each / 3 * step + work.evaluated * size * image)


def _is_timed(answer: Mapping[str, Any]) -> bool:
    return "step_s" in answer and "image_s" in answer


def _described(
    cells: Sequence[Cell], store: Store, ask: Ask, device: str, initial: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the worker's answer for every cell, from the store's cache where possible."""
    known = _known(store)
    # A hub set that was not fetched then may be fetched by now.
    new = {
        key: cell
        for key, cell in ((_key(cell, device), cell) for cell in cells)
        if known.get(key, {}).get("examples") is None or (initial and "initial" not in known[key])
    }
    return known | _asked(store, ask, device, new, [], initial) if new else known


def _timed(
    cells: Sequence[Cell],
    store: Store,
    ask: Ask,
    device: str,
    finished: Mapping[str, Any],
    known: dict[str, dict[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Add the time of a step for some cells without finished runs, unless a cell of about the same
    size has one."""
    by_key = {_key(cell, device): cell for cell in cells}
    sizes = [known[key]["multiply_adds"] for key in by_key if _is_timed(known[key])]
    unmeasured = [
        key
        for key, cell in by_key.items()
        if known[key]["examples"] is not None and mean_seconds(cell, finished) is None
    ]
    chosen = {
        key: by_key[key]
        for key in _spread(unmeasured)
        if not any(0.5 <= size / known[key]["multiply_adds"] <= 2 for size in sizes)
    }
    initial = any("initial" in known[key] for key in chosen)
    return known | _asked(store, ask, device, chosen, list(chosen), initial) if chosen else known


def _asked(
    store: Store, ask: Ask, device: str, cells: Mapping[str, Cell], timed: list[str], initial: bool
) -> dict[str, dict[str, Any]]:
    """Ask the worker about cells, and keep the answers in the store's cache."""
    question = {
        "specs": {key: spec.seeded(cells[key].spec, 0) for key in sorted(cells)},
        "calibrate": sorted(timed),
        "initial": initial,
        "cache": str(store.cache),
        "device": device,
    }
    answers: dict[str, dict[str, Any]] = ask("describe", question)
    path = _cache(store)
    make_folder(path.parent)
    write_sealed(path, _known(store) | answers)
    return answers


def _known(store: Store) -> dict[str, dict[str, Any]]:
    """Read the answers in the store's cache, without malformed ones."""
    return {k: v for k, v in (read_sealed(_cache(store)) or {}).items() if _is_answer(v)}


def _is_answer(tree: Any) -> bool:
    match tree:
        case {
            "parameters": parameters,
            "multiply_adds": size,
            "launches": launches,
            "examples": examples,
        }:
            train = {"train": 0} if examples is None else examples
            return (
                is_number(parameters)
                and is_number(size)
                and is_number(launches)
                and size > 0
                and isinstance(train, dict)
                and is_number(train.get("train"))
                and all(is_number(tree.get(key, 0)) for key in ("step_s", "image_s"))
                and isinstance(tree.get("warnings", []), list)
            )
    return False


def _cache(store: Store) -> Path:
    return store.cache / "costs.json"


def _spread(keys: list[str]) -> list[str]:
    """Pick some of the keys, evenly spaced in the plan."""
    return keys[:: max(1, -(-len(keys) // CALIBRATED))]


def _key(cell: Cell, device: str) -> str:
    what = f"{__version__} {device} {spec.tree_identity(cell.spec)}{own_code(cell.spec)}"
    return hashlib.sha256(what.encode()).hexdigest()[:16]
