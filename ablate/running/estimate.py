"""Estimates the cost of a plan: size of each variant, device-seconds of the missing runs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ablate.planning.cell import Cell
from ablate.planning.plan import Plan
from ablate.planning.space import FACTORS
from ablate.running.answers import AnswerCache
from ablate.running.costs import Costs, mean_seconds, own_costs, shared_weights
from ablate.running.devices import Devices
from ablate.running.launchers import Ask, Launcher
from ablate.running.sharing import (
    beside_seconds,
    end,
    group_of,
    open_to,
    rounded,
    run_seconds,
    share,
)
from ablate.running.work import CellWork, searched, time_a_seed, time_left, works_of
from ablate.shared import spec
from ablate.shared.files import is_number
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
    a plan that surely takes over a month on all slots. With `on` nothing is timed at all. Of
    several ranks each is taken to have its share of what one takes, and what they exchange at an
    assumed rate, until runs have finished, whose times are their own. Raises UserError for a
    combination that can't be built, or not be shared.
    """
    worlds = launcher.worlds if on is None else on.worlds
    device, places = launcher.device, launcher.most
    if on is not None:
        device, places = "cuda", on.count // worlds[0]
    where = f"{on.count} x {on.name}" if on else f"{places} slot{'s' if places != 1 else ''}"
    if is_own(plan.cells[0].spec):
        return own_costs(plan, states, finished, places, where, worlds[0])
    cells = [*plan.cells, *plan.parents(), *searched(plan)]
    answers = _Answers(store, launcher.ask, device)
    answers.describe(_factored(plan))
    answers.describe(cells, initial=any(spec.whole_of(cell.spec) for cell in cells))
    notes = rounded(cells, launcher) if on is None else []
    statistics = [(cell.row, cell.column) for cell in cells if answers[cell]["statistics"]]
    options = open_to(cells, worlds, {}, statistics)
    works = works_of(plan, states, cells, [answers[cell] for cell in cells])
    beyond, how, devices = False, "from finished runs", places * worlds[0]
    for work in works:
        work.seconds = on.seconds(work) if on else mean_seconds(work.cell, finished)
        if on or work.seconds is None:
            work.beside_s = beside_seconds(work, device)
    unknown = [work for work in works if work.seconds is None]
    if on:
        how = on.basis(sorted({cell.spec["train"]["precision"] for cell in cells}))
    elif unknown:
        beyond = time_left(works, FASTEST[device]) > MONTH_S * devices
        if launcher.remote and device != "cpu":  # there is none here to time
            how = "a lower bound, at the highest rate of any GPU, until runs have finished"
            for work in unknown:
                work.seconds = None if work.each is None else work.each / FASTEST[device]
        else:
            how = "by a short calibration"
            if not beyond and time_left(works, SLOWEST) >= from_s:
                answers.time(cells, finished)
                for work in unknown:
                    work.seconds = answers.seconds(work, cells)
        how += f", shared evenly by {worlds[0]} ranks" if worlds[0] > 1 else ""
    stopped = beyond and any(work.seconds is None for work in works)
    shared = share(works, options, devices, FASTEST[device])
    wall_s = math.inf if stopped else end(works, devices, shared)
    for work in works:
        work.ranks = shared.get(group_of(work.cell), 1)
        work.seconds = run_seconds(work, work.ranks)
    described = {(cell.row, cell.column): answers[cell] for cell in cells}
    return Costs(
        described=described,
        seconds={(work.cell.row, work.cell.column): work.seconds for work in works},
        how=how,
        left_s=math.inf if stopped else time_left(works),
        where=where,
        wall_s=wall_s,
        searches=[work.search for work in works if work.search is not None],
        seed_s=time_a_seed(works),
        notes=[*shared_weights(plan, described), *notes, *(on.bound(works) if on else ())],
        worlds=shared if len(worlds) > 1 else {},
    )


def sizes(
    plan: Plan, store: Store, results: Mapping[str, Mapping[str, Any] | None]
) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return parameters and multiply-adds of every cell whose results lack them."""
    if is_own(plan.cells[0].spec):  # nobody but its trainer knows
        return {}
    known, lacking = _cache(store).read(), {}
    answers: dict[tuple[str, str], Mapping[str, Any]] = {}
    for cell in plan.cells:
        if any("parameters" in (results.get(run) or {}) for run in cell.ids.values()):
            continue
        keys = [_key(cell, device) for device in DEVICES]  # a size is the same on each
        answer = next((known[key] for key in keys if key in known), None)
        if answer is None:
            lacking[keys[0]] = cell
        else:
            answers[cell.row, cell.column] = answer
    if lacking:
        from ablate.running.launchers.fork import ForkServer

        with ForkServer() as server:
            new = server.ask("describe", _question(store, lacking, DEVICES[0]))
        answers |= {(cell.row, cell.column): new[key] for key, cell in lacking.items()}
    return answers


def _factored(plan: Plan) -> list[Cell]:
    """Return a trial of each cell whose search multiplies learning rates by path: its model may
    lack that path."""
    first = {(trial.cell.row, trial.cell.column): trial for trial in reversed(plan.trials)}
    return [trial.cell for trial in first.values() if any(FACTORS in key for key in trial.params)]


class _Answers:
    """What a device's worker says of cells; kept in the store's cache."""

    def __init__(self, store: Store, ask: Ask, device: str) -> None:
        self._store, self._ask, self._device = store, ask, device
        self._known = _cache(store).read()

    def __getitem__(self, cell: Cell) -> dict[str, Any]:
        answer: dict[str, Any] = self._known[_key(cell, self._device)]
        return answer

    def describe(self, cells: Sequence[Cell], initial: bool = False) -> None:
        """Ask about cells that nobody asked about. `initial`: of their initial weights, too."""
        keys = {_key(cell, self._device): cell for cell in cells}
        # A hub set that was not fetched then may be fetched by now.
        new = {
            key: cell
            for key, cell in keys.items()
            if self._known.get(key, {}).get("examples") is None
            or (initial and "initial" not in self._known[key])
        }
        self._learn(new, initial=initial)

    def time(self, cells: Sequence[Cell], finished: Mapping[str, Any]) -> None:
        """Time a step for some cells without finished runs, unless a cell of about the same size
        has a time."""
        timed = self._rates(cells)
        unmeasured = {
            _key(cell, self._device): cell
            for cell in cells
            if self[cell]["examples"] is not None and mean_seconds(cell, finished) is None
        }
        spread = [*unmeasured.items()][:: max(1, -(-len(unmeasured) // CALIBRATED))]
        chosen = {
            key: cell
            for key, cell in spread
            if not any(0.5 <= size / self[cell]["multiply_adds"] <= 2 for size in timed)
        }
        initial = any("initial" in self[cell] for cell in chosen.values())
        self._learn(chosen, calibrate=sorted(chosen), initial=initial)

    def seconds(self, work: CellWork, cells: Sequence[Cell]) -> float | None:
        """Estimate the seconds of a training by the cell of `cells` with a time that is nearest in
        size; None without one."""
        size, rates = self[work.cell]["multiply_adds"], self._rates(cells)
        if work.each is None or not rates:
            return None
        step, image = rates[min(rates, key=lambda other: abs(other - size))]
        return float(work.each / 3 * step + work.evaluated * size * image)

    def _rates(self, cells: Iterable[Cell]) -> dict[int, tuple[float, float]]:
        """Map multiply-adds of a forward to seconds for each, in a step and evaluated."""
        return {
            (size := answer["multiply_adds"]): (
                answer["step_s"] / (size * cell.spec["train"]["batch"]),
                answer["image_s"] / size,
            )
            for cell in cells
            if "step_s" in (answer := self[cell]) and "image_s" in answer
        }

    def _learn(self, cells: Mapping[str, Cell], **more: Any) -> None:
        if cells:
            question = _question(self._store, cells, self._device, **more)
            self._known |= _cache(self._store).add(self._ask("describe", question))


def _question(
    store: Store, cells: Mapping[str, Cell], device: str, calibrate: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    specs = {key: spec.seeded(cells[key].spec, 0) for key in sorted(cells)}
    tree = {"specs": specs, "calibrate": [*calibrate], "cache": str(store.cache), "device": device}
    return tree | more


def _cache(store: Store) -> AnswerCache:
    return AnswerCache(store.cache / "costs.json", _is_answer)


def _is_answer(tree: Any) -> bool:
    match tree:
        case {
            "parameters": parameters,
            "multiply_adds": size,
            "launches": launches,
            "statistics": bool(),
            "examples": None | {"train": _} as examples,
        }:
            numbers = [parameters, size, launches, (examples or {"train": 0})["train"]]
            numbers += [tree.get(key, 0) for key in ("step_s", "image_s")]
            listed = isinstance(tree.get("warnings", []), list)
            return all(map(is_number, numbers)) and size > 0 and listed
    return False


def _key(cell: Cell, device: str) -> str:
    what = f"{__version__} {device} {spec.tree_identity(cell.spec)}{own_code(cell.spec)}"
    return hashlib.sha256(what.encode()).hexdigest()[:16]
