"""Estimates the cost of a plan: the size of each variant, and the device-seconds of the missing
runs.

The cost of a user's own trainer is unknown before a run of it has finished.

Used by `ablate plan` and at the start of `ablate sweep` (api/training.py), and for the sizes in
`ablate table` (cli/printing.py). The torch side is `answer_describe` in training/answers.py;
report/planned.py prints the costs.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.planning import LR_FACTORS, Cell, Plan
from ablate.run import LENGTH_KEYS, OwnSpec, own_code
from ablate.running.answer_cache import AnswerCache
from ablate.running.decoding import decode_seconds, decoding_lines
from ablate.running.devices import Devices
from ablate.running.gpu_memory import (
    Card,
    StepMemory,
    cell_label,
    is_forecast,
    memory_line,
    memory_warnings,
    smallest_card,
    step_memories,
)
from ablate.running.launchers import Launcher
from ablate.running.next_step import closed_runs
from ablate.running.work import CellWork, searched, time_a_seed, time_left, works_of
from ablate.running.world_sizes import (
    Worlds,
    beside_seconds,
    end,
    group_of,
    open_to,
    rounding_lines,
    run_seconds,
    share,
)
from ablate.shared import HostHardware, UserError, count_text, is_number
from ablate.store import RunState, Store, blocked_runs, run_parents
from ablate.version import __version__

SMALLEST_GROUP = 8  # a norm over fewer values says little but its sign
UNKNOWN_COST = "unknown until a run of it has finished: its trainer alone knows what it does"


@dataclass(frozen=True)
class Costs:
    """The estimated costs of a plan.

    `described` and `seconds` have, by (row, column), the worker's description of a cell and the
    seconds of one of its runs; they cover parents (`Plan.parents`), too. `basis`: where the seconds
    come from.
    """

    described: Mapping[tuple[str, str], Mapping[str, Any]]
    seconds: Mapping[tuple[str, str], float | None]  # None: no data yet, or nothing was timed
    basis: str
    left_s: float  # device-seconds of all runs that are left; inf: beyond a month, not timed
    hardware: str = ""  # "2 slots", "8 x h100": what runs them
    wall_s: float = 0.0  # of all that is left, there
    searches: Sequence[float] = ()  # multiply-adds of every cell's, nothing pruned
    # By column, of one seed of every row: its run, its search, and the parents of both.
    seed_s: Mapping[str, float | None] = field(default_factory=dict)
    notes: Sequence[str] = ()  # of `shared_weights`, `warmup_lines`, devices and decoding
    worlds: Worlds = field(default_factory=dict)  # devices of a run, where `auto` decides
    memories: Mapping[tuple[str, str], StepMemory] = field(default_factory=dict)  # of a GPU's step
    card: Card | None = None  # the GPU that must have that memory

    @property
    def memory_line(self) -> str:
        """The memory of the step that takes the most; "" where it is not known."""
        return memory_line(self.memories, self.card)

    def warnings(self) -> list[str]:
        """List the worker's warnings, and the norms over so few values that little but their signs
        is left."""
        lines = {text: text for a in self.described.values() for text in a.get("warnings", ())}
        for (row, _), answer in self.described.items():
            for site, group in answer["groups"].items():
                if group < SMALLEST_GROUP:
                    lines.setdefault(row, f"{row}: {site} normalises over {group} values only")
        return [*lines.values(), *memory_warnings(self.memories, self.card)]


def mean_seconds(
    cell: Cell, finished: Mapping[str, Mapping[str, Any]], sharing: int | None = None
) -> float | None:
    """Average the device-seconds of the finished runs of a cell; None without one. `sharing`: how
    many runs share a device in the forecast; a run that shared one with others took its part of
    the time. None: as many as then."""
    durations: list[float] = []
    for run in cell.ids.values():
        detail = finished.get(run, {})
        if is_number(detail.get("seconds")):
            device_seconds = detail["seconds"] * (detail.get("ranks") or 1)
            if sharing is not None and "share" in detail:
                device_seconds *= detail["share"] * sharing
            durations.append(device_seconds)
    if not durations:
        return None
    return sum(durations) / len(durations)


def own_costs(
    plan: Plan,
    closed: Collection[str],
    finished: Mapping[str, Mapping[str, Any]],
    places: int,
    hardware: str,
    ranks: int = 1,
) -> Costs:
    """Estimate the costs of a plan whose trainer is the user's own.

    A cell without a finished run is taken to need as long as the average of the others; a trial as
    long as a run. Before any run has finished nothing is known (`basis` says so). `closed`: the
    runs that are not trained any more. `hardware`: the slots, or the devices that would train, on
    which no time is known but that of runs here; `ranks`: the devices of each run.
    """
    seconds: dict[tuple[str, str], float | None] = {}
    for cell in plan.cells:
        device_seconds = mean_seconds(cell, finished)
        a_run = None if device_seconds is None else device_seconds / ranks
        seconds[cell.row, cell.column] = a_run
    durations = [duration for duration in seconds.values() if duration is not None]
    typical = sum(durations) / len(durations) if durations else 0.0
    remaining_s = plan.to_come * typical
    for run in plan.runs():
        if run.id not in closed:
            a_run = seconds[run.cell.row, run.cell.column]
            remaining_s += typical if a_run is None else a_run
    seeds: dict[str, float | None] = {}
    for column in plan.columns:
        cells = [cell for cell in plan.cells if cell.column == column.label]
        seed_costs = []
        for cell in cells:
            a_run = seconds[cell.row, cell.column]
            if a_run is not None:
                trials_a_seed = plan.trials_of(cell) / len(cell.seeds or plan.seeds)
                seed_costs.append(a_run * (1 + trials_a_seed))
        all_known = len(seed_costs) == len(cells)
        seeds[column.label] = ranks * sum(seed_costs) if all_known else None
    nothing: dict[str, Any] = {
        "parameters": None,
        "multiply_adds": None,
        "groups": {},
        "warnings": [],
    }
    return Costs(
        described=dict.fromkeys(seconds, nothing),
        seconds=seconds,
        basis="from finished runs" if durations else UNKNOWN_COST,
        left_s=ranks * remaining_s,
        hardware=hardware,
        wall_s=remaining_s / places,
        seed_s=seeds,
    )


def shared_weights(plan: Plan, described: Mapping[tuple[str, str], Mapping[str, Any]]) -> list[str]:
    """List a line for every row that is a whole model, or is compared with one: how many of its
    initial weights equal the baseline's, by name and by value.

    Returns [] where all rows are the shipped model, whose weights of equal names are equal.
    """
    cells = {(cell.row, cell.column): cell for cell in plan.cells}
    lines = {}
    for (row, column), cell in cells.items():
        base = cells.get((plan.baseline, column))
        if base is None or base is cell or (plan.baseline, column) not in described:
            continue
        ours = described[row, column].get("initial")
        theirs = described[plan.baseline, column].get("initial")
        if not (cell.spec.whole_model or base.spec.whole_model) or ours is None or theirs is None:
            continue
        equal = total = 0
        for name, (digest, size) in ours.items():
            total += size
            if name in theirs and theirs[name][0] == digest:
                equal += size
        lines[row] = (
            f"{row}: {equal:,} of {total:,} weights begin as the "
            f"baseline's of the same name; batches and augmentation are the same in all rows"
        )
    return list(lines.values())


def warmup_lines(
    cells: Sequence[Cell], described: Mapping[tuple[str, str], Mapping[str, Any]]
) -> list[str]:
    """List a line for each warm-up that is as long as the training or longer, with the steps of the
    first training that has it; `cells`: those of a plan, and what their runs start from."""
    places: dict[tuple[str, float], list[tuple[str, str]]] = {}
    for cell in cells:
        place, optim = (cell.row, cell.column), cell.spec.tree["optim"]
        if described[place].get("warmup") is not None:
            values = [(key, optim.get(key.removeprefix("optim."))) for key in LENGTH_KEYS[1]]
            setting = next((key, value) for key, value in values if value is not None)
            places.setdefault(setting, []).append(place)
    lines = []
    for (key, value), group in places.items():
        owners = ""
        if len(group) < len(cells):
            other_cells = count_text(len(group) - 1, "other cell") if len(group) > 1 else ""
            owners = f" of {' and '.join(filter(None, [cell_label(group[0]), other_cells]))}"
        steps = count_text(described[group[0]]["warmup"], "step")
        lines.append(
            f"{key}: {value:,.10g} is as long as the training{owners} ({steps}) or longer, so the "
            f"rate never falls; give less, or train longer"
        )
    return lines


DEVICES = ("cpu", "cuda")
DESCRIPTION = 3  # of cells; raised when `describe` gives another answer for the same cell
CALIBRATED = 6  # cells measured at most; others are scaled from the nearest in size
SLOWEST = 1e9  # multiply-adds a second in training, on any machine
FASTEST = {"cpu": 1e12, "cuda": 1e15}  # on one slot: beyond a core with AMX, and a B200 in bf16
MONTH_S = 30 * 86400.0
TIMES = {"step_s", "image_s", "busy"}  # of a calibration, see `Times` of training/calibrate.py


def estimate_costs(
    plan: Plan,
    store: Store,
    launcher: Launcher,
    states: Mapping[str, RunState],
    finished: Mapping[str, Mapping[str, Any]],
    *,
    from_s: float = 0.0,
    on: Devices | None = None,
) -> Costs:
    """Estimate the costs of a plan. Asks the launcher for unknown sizes and times.

    `finished`: the details of the runs' "finished" events (seconds). Steps are not timed for a plan
    that surely takes less than `from_s` device-seconds, whose remaining time may be given as 0, nor
    for a plan that surely takes over a month on all slots. With `on` nothing is timed at all. Of
    several ranks each is assumed to need its share of the time of one, plus the exchange of data at
    an assumed rate, until runs have finished, whose own times are used. Raises UserError for a
    combination that can't be built, or can't be shared.
    """
    if on is None:
        worlds, device, places = launcher.worlds, launcher.device, launcher.most
        hardware = count_text(places, "slot")
    else:
        worlds, device, places = on.worlds, "cuda", on.count // on.worlds[0]
        hardware = f"{on.count} x {on.name}"
    closed = _closed(plan, states)
    if isinstance(plan.cells[0].spec, OwnSpec):
        return own_costs(plan, closed, finished, places, hardware, worlds[0])
    card, sharing = None, None
    has_gpus = on is None and device == "cuda" and not launcher.remote
    if on is not None:
        card = on.card
    elif has_gpus:
        sharing = round(1 / launcher.slots[0].share)
        card = smallest_card(launcher.devices.gpus, sharing)
    cells = [*plan.cells, *plan.parents(), *searched(plan)]
    answers = _Answers(store, launcher, device, card)
    answers.describe(_factored(plan))
    answers.describe(cells, initial=any(cell.spec.whole_model for cell in cells))
    statistics = [(cell.row, cell.column) for cell in cells if answers[cell]["statistics"]]
    options = open_to(cells, worlds, {}, statistics)
    works = works_of(plan, closed, cells, [answers[cell] for cell in cells])
    devices = places * worlds[0]
    beyond = False  # takes more than a month
    basis = "from finished runs"
    for work in works:
        work.seconds = on.seconds(work) if on else mean_seconds(work.cell, finished, sharing)
        if on or work.seconds is None:
            work.beside_s = beside_seconds(work, device)
    unknown = [work for work in works if work.seconds is None]
    if on:
        basis = on.basis(sorted({cell.spec.tree["train"]["precision"] for cell in cells}))
    elif unknown:
        beyond = time_left(works, FASTEST[device]) > MONTH_S * devices
        if launcher.remote and device != "cpu":  # there is none here to time
            basis = "a lower bound, at the highest rate of any GPU, until runs have finished"
            for work in unknown:
                if work.multiply_adds is not None:
                    work.seconds = work.multiply_adds / FASTEST[device]
        else:
            basis = "by a short calibration"
            if not beyond and time_left(works, SLOWEST) >= from_s:
                answers.time(cells, finished)
                for work in unknown:
                    work.seconds = answers.seconds(work, cells, sharing)
        if worlds[0] > 1:
            basis += f", shared evenly by {worlds[0]} ranks"
    decoding = []
    if has_gpus:  # of runs that have finished the time has it already
        cores = len(os.sched_getaffinity(0)) / devices
        decoding = decoding_lines(unknown, cores)
        for work in unknown:
            if work.seconds is not None:
                work.seconds = max(work.seconds, decode_seconds(work, cores))
    stopped = beyond and any(work.seconds is None for work in works)
    shares = share(works, options, devices, FASTEST[device])
    wall_s = math.inf if stopped else end(works, devices, shares)
    for work in works:
        work.ranks = shares.get(group_of(work.cell), 1)
        work.seconds = run_seconds(work, work.ranks)
    described = {(cell.row, cell.column): answers[cell] for cell in cells}
    notes = shared_weights(plan, described) + warmup_lines(cells, described)
    if on is not None:
        notes += on.bound(works) + decoding_lines(works)
    else:
        notes += rounding_lines(cells, launcher) + decoding
    return Costs(
        described=described,
        seconds={(work.cell.row, work.cell.column): work.seconds for work in works},
        basis=basis,
        left_s=math.inf if stopped else time_left(works),
        hardware=hardware,
        wall_s=wall_s,
        searches=[work.search for work in works if work.search is not None],
        seed_s=time_a_seed(works),
        notes=notes,
        worlds=shares if len(worlds) > 1 else {},
        memories=step_memories(cells, described, card, worlds),
        card=card,
    )


def _closed(plan: Plan, states: Mapping[str, RunState]) -> set[str]:
    """Return the runs of a plan that a driver leaves."""
    runs = list(plan.runs())
    known = {run.id: states.get(run.id, RunState()) for run in runs}
    return closed_runs(known, blocked_runs(known, run_parents(runs)))


def estimate_sizes(
    plan: Plan, store: Store, results: Mapping[str, Mapping[str, Any] | None]
) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return parameters and multiply-adds of every cell whose results lack them. A cell whose code
    can't be read is left out."""
    if isinstance(plan.cells[0].spec, OwnSpec):  # nobody but its trainer knows
        return {}
    cached = _cache(store).answers()
    lacking = {}
    answers: dict[tuple[str, str], Mapping[str, Any]] = {}
    for cell in plan.cells:
        if any("parameters" in (results.get(run) or {}) for run in cell.ids.values()):
            continue
        keys = _size_keys(cell)
        answer = next((cached[key] for key in keys if key in cached), None)
        if answer is not None:
            answers[cell.row, cell.column] = answer
        elif keys:
            lacking[keys[0]] = cell
    if lacking:
        from ablate.running.launchers.fork import ForkServer

        with ForkServer() as server:
            new = server.ask("describe", _question(store, lacking, DEVICES[0]))
        answers |= {(cell.row, cell.column): new[key] for key, cell in lacking.items()}
    return answers


def known_work(plan: Plan, store: Store) -> dict[tuple[str, str], float]:
    """Return the multiply-adds of a training of each cell; {} where the store's cache doesn't
    describe every cell, where code can't be read, and for a trainer of the user's own."""
    if isinstance(plan.cells[0].spec, OwnSpec):
        return {}
    cached = _cache(store).answers()
    if not cached:
        return {}
    answers = []
    for cell in plan.cells:
        answer = next((cached[key] for key in _size_keys(cell) if key in cached), None)
        if answer is None:
            return {}
        answers.append(answer)
    works = works_of(plan, (), plan.cells, answers)
    return {
        (work.cell.row, work.cell.column): work.multiply_adds
        for work in works
        if work.multiply_adds is not None
    }


def _factored(plan: Plan) -> list[Cell]:
    """Return a trial of each cell whose search multiplies learning rates by path, since its model
    may lack such a path."""
    first_trials = {(trial.cell.row, trial.cell.column): trial for trial in reversed(plan.trials)}
    return [
        trial.cell
        for trial in first_trials.values()
        if any(LR_FACTORS in key for key in trial.params)
    ]


class _Answers:
    """The descriptions of cells by a worker of a device, kept in the store's cache; those with
    times by the model of GPU or CPU, too. `card`: the GPU that must have the memory of their
    steps."""

    def __init__(self, store: Store, launcher: Launcher, device: str, card: Card | None) -> None:
        self._store, self._launcher, self._device, self._card = store, launcher, device, card
        self._descriptions = _cache(store).answers()

    def __getitem__(self, cell: Cell) -> dict[str, Any]:
        answer: dict[str, Any] = self._descriptions[_key(cell, self._device)]
        return answer

    def describe(self, cells: Sequence[Cell], initial: bool = False) -> None:
        """Ask about the cells that have no description yet. `initial`: also about their initial
        weights."""
        new = {}
        for cell in cells:
            key = _key(cell, self._device)
            description = self._descriptions.get(key, {})
            needs = {"initial"} if initial else set()
            if self._needs_memory(cell):
                needs.add("step")
            if description.get("examples") is None:
                new[key] = cell  # a hub set that was not fetched then may be fetched by now
            elif not description.keys() >= needs:
                new[key] = cell
        self._learn(new, initial=initial)

    def time(self, cells: Sequence[Cell], finished: Mapping[str, Any]) -> None:
        """Time a step for some cells without finished runs, in each precision, unless a cell with
        the same step has a time."""
        unmeasured: dict[str, dict[str, Cell]] = {}
        for cell in cells:
            if self[cell]["examples"] is not None and mean_seconds(cell, finished) is None:
                unmeasured.setdefault(_precision(cell), {})[self._time_key(cell)] = cell
        sample = {}
        for precision, alike in unmeasured.items():
            timed_steps = {cell.spec.step_identity for cell in self._timed(cells, precision)}
            interval = math.ceil(len(alike) * len(unmeasured) / CALIBRATED)
            for key, cell in list(alike.items())[::interval]:
                if cell.spec.step_identity not in timed_steps:
                    sample[key] = cell
        self._learn(sample, calibrate=sorted(sample))

    def seconds(self, work: CellWork, cells: Sequence[Cell], sharing: int | None) -> float | None:
        """Estimate the seconds of a training from the times of its cell or, without, from those of
        the cell of `cells` in its precision that is nearest in size; None without one. Of those of
        about one size it is one with the same step or, without, with the same data work. `sharing`:
        how many runs share a device, which computes for one at a time; None: one."""
        size = self[work.cell]["multiply_adds"]
        timed = self._timed([work.cell]) or self._timed(cells, _precision(work.cell))
        if work.multiply_adds is None or not timed:
            return None

        def distance(cell: Cell) -> tuple[int, bool, bool, float]:
            ratio = abs(math.log2(self[cell]["multiply_adds"] / size))
            spec, work_spec = cell.spec, work.cell.spec
            other_step = spec.step_identity != work_spec.step_identity
            return (
                round(ratio),
                other_step,
                spec.tree["augment"] != work_spec.tree["augment"],
                ratio,
            )

        nearest = min(timed, key=distance)
        answer = self._descriptions[self._time_key(nearest)]
        step_size = answer["multiply_adds"] * nearest.spec.tree["train"]["batch"]
        step, image = answer["step_s"] / step_size, answer["image_s"] / answer["multiply_adds"]
        alone = work.multiply_adds / 3 * step + work.evaluated * size * image
        return float(alone * max(1.0, (sharing or 1) * answer["busy"]))

    def _timed(self, cells: Iterable[Cell], precision: str = "") -> list[Cell]:
        """List the cells that have times; with `precision`, those in it."""
        timed = []
        for cell in cells:
            answer = self._descriptions.get(self._time_key(cell), {})
            if answer.keys() >= TIMES and precision in ("", _precision(cell)):
                timed.append(cell)
        return timed

    @functools.cached_property  # not for other hardware, on which nothing is timed
    def _model(self) -> str:
        gpus = self._launcher.devices.gpus
        return gpus[0].model if gpus else HostHardware.read().cpu_model

    def _time_key(self, cell: Cell) -> str:
        return _key(cell, f"{self._device} {self._model}")

    def _needs_memory(self, cell: Cell) -> bool:
        return self._device == "cuda" and is_forecast(cell, self._card)

    def _learn(self, cells: Mapping[str, Cell], **details: Any) -> None:
        if cells:
            peaks = sorted(key for key, cell in cells.items() if self._needs_memory(cell))
            question = _question(self._store, cells, self._device, peaks=peaks, **details)
            answers = self._launcher.ask("describe", question)
            self._descriptions |= _cache(self._store).add(answers)


def _question(
    store: Store,
    cells: Mapping[str, Cell],
    device: str,
    calibrate: Sequence[str] = (),
    peaks: Sequence[str] = (),
    **details: Any,
) -> dict[str, Any]:
    specs = {key: cells[key].spec.with_seed(0).tree for key in sorted(cells)}
    return {
        "specs": specs,
        "calibrate": list(calibrate),
        "peaks": list(peaks),
        "cache": str(store.cache),
        "device": device,
        **details,
    }


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
            numbers = [parameters, size, launches]
            numbers += [tree.get(key, 0) for key in TIMES]
            numbers.append(tree.get("warmup") or 0)
            if examples is not None:
                numbers.append(examples["train"])
            warnings_are_list = isinstance(tree.get("warnings", []), list)
            if not _is_step(tree.get("step")):
                return False
            return all(map(is_number, numbers)) and size > 0 and warnings_are_list
    return False


def _is_step(tree: Any) -> bool:
    match tree:
        case None:
            return True
        case {"image_bytes": image_bytes, "peak_bytes": dict() as peaks}:
            return all(map(is_number, [image_bytes, *peaks.values()]))
    return False


def _precision(cell: Cell) -> str:
    return str(cell.spec.tree["train"]["precision"])


def _key(cell: Cell, device: str) -> str:
    identity = f"{__version__} {DESCRIPTION} {device} {cell.spec.identity}{own_code(cell.spec)}"
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _size_keys(cell: Cell) -> list[str]:
    """List the keys of a cell's descriptions, in each of which its size is the same. [] where a
    file of the user's, who may be editing it, can't be read: a view goes on without the size."""
    try:
        return [_key(cell, device) for device in DEVICES]
    except (OSError, UserError):
        return []
