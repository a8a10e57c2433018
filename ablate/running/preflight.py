"""Checks and decisions before the first run.

Devices that can't compute are not used, and runs with damaged files are put aside, so that they are
trained again. Choices that depend on the machine and yet change bits are made once for each column:
`train.micro_batch=auto` and `train.deterministic=auto` have one value for all runs of a column, in
whatever order they run and however often the sweep is stopped. A decision is kept in the store's
cache by the shape of the column's baseline and by the device.

Used by `ablate sweep`, at its start (api/training.py); `take_decisions` by `ablate merge`
(audit/merge.py). The measurements are made in training/column_decision.py and
training/calibrate.py; audit/rerun.py reads `SETTLED_KEYS` from results.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from ablate.planning import Cell, Plan, PlannedRun
from ablate.run import (
    LEAST_MICRO_BATCHES,
    OwnSpec,
    RunSpec,
)
from ablate.running.answer_cache import AnswerCache
from ablate.running.gpus import NoAnswer, busy
from ablate.running.launchers import MOST_SHARING, Launcher, Slot, packed, usable
from ablate.shared import (
    Failure,
    UserError,
    is_number,
    make_folder,
    read_json,
    sync_folder,
)
from ablate.store import (
    FROM_BUNDLE,
    RETRY_REMEDY,
    Ledger,
    RunState,
    Store,
    living_notes,
    result_detail,
)


def drop_unfit_slots(launcher: Launcher, held: Collection[str], say: Callable[[str], None]) -> None:
    """Remove the slots whose devices can't run a small kernel, and report a line for each reason.

    `held`: the names of slots on which workers of another driver still train: their devices work,
    and may have no room for more. Raises Failure where no slot is left. Slots on other hosts are
    tried there, as they come.
    """
    if launcher.remote:
        return
    slots = launcher.slots
    held_places = {name.rpartition(".")[0] for name in held}  # of slots that share a GPU
    works: set[str] = set()  # slots and places
    for slot in slots:
        if slot.name in held or slot.place in held_places:
            works |= slot.takes | {slot.place}
    untried = {s.place: s for s in slots if works.isdisjoint(s.takes | {s.place})}
    reasons = launcher.unfit(list(untried.values()))
    unfit = {place: reasons[slot.name] for place, slot in untried.items() if slot.name in reasons}
    places_by_reason: dict[str, list[str]] = {}
    for place, reason in unfit.items():
        places_by_reason.setdefault(reason, []).append(place)
    lines = [f"{', '.join(places)}: {reason}" for reason, places in places_by_reason.items()]
    usable_slots = usable(slots, unfit)
    if not usable_slots:
        raise Failure(f"no device can be used: {'; '.join(lines)}")
    for line in lines:
        say(f"not used: {line}")
    launcher.slots = usable_slots


def gpus_in_use(launcher: Launcher, store: Store, states: Mapping[str, RunState]) -> list[str]:
    """List a line for each GPU that others use. Ours are this process, the workers, their ranks,
    and what a worker has started: each leads a session, but for one in this process."""
    ours = {os.getpid()}
    for notes in living_notes(store, states):
        if notes.pid is not None:
            ours.add(notes.pid)
        ours |= {int(pid) for pid in (notes.ranks or "").split() if pid.isdigit()}
    with contextlib.suppress(NoAnswer):  # which the launcher's remarks say
        return busy(launcher.devices.gpus, ours)
    return []


def check_parents(runs: Iterable[PlannedRun], store: Store) -> None:
    """Raise Failure where a run would start from weights that differ from those that were
    trained."""
    parents = []
    for run in runs:
        if not store.rundir(run.id).has_result():
            parent = run.parent()
            if parent is not None:
                parents.append(parent)
    withheld = store.results(parents, weights=True).withheld
    if withheld:
        reasons = "; ".join(withheld.values())
        raise Failure(f"other runs start from damaged ones: {reasons}; {RETRY_REMEDY}")


def set_damaged_aside(runs: Iterable[PlannedRun], store: Store, ledger: Ledger) -> Iterator[str]:
    """Move the folder of every ended run with a file that differs from what the run left into
    `damaged/`; yields a line for each. Call it in the driver's turn.

    There is one rename a run, then the event: after a crash between the two the run's folder is
    lost, and the next driver trains it again as such.
    """
    runs = list(runs)
    checks = dict.fromkeys(("curves", "probes", "predictions", "weights"), True)
    results, withheld = store.results(runs, **checks)
    recorded = ledger.last_detail("finished")
    for planned in runs:
        result = results[planned.id]
        if result is None:
            continue
        detail = recorded.get(planned.id) or result_detail(store.rundir(planned.id), result)
        if fault := _fault_of_other_files(planned, store, result, FROM_BUNDLE in detail):
            withheld[planned.id] = f"{planned.label}: {fault}"
    for run, reason in withheld.items():
        folder = store.rundir(run)
        if folder.path.is_symlink() or store.liveness.alive(folder):
            continue  # its driver judges an attempt that has not ended
        make_folder(store.damaged)
        places = (store.damaged / f"{run}-{n}" for n in itertools.count(1))
        place = next(place for place in places if not os.path.lexists(place))
        folder.path.rename(place)
        sync_folder(store.damaged)
        sync_folder(store.runs)
        if run in ledger.states([run]):
            ledger.record(run, "interrupted", reason=reason)
        yield f"put aside: {reason}; its folder is {place} now"


def _fault_of_other_files(
    run: PlannedRun, store: Store, result: Mapping[str, Any], from_bundle: bool
) -> str:
    """Return why `env.json` or `run.json` is not what the run left, or which predictions or weights
    are gone; "" where all is well. Results are not withheld for these, but `verify` names them.

    `from_bundle`: whether the run came from a bundle, which has no weights.
    """
    folder = store.rundir(run.id)
    if unsealed := folder.sealed_attempts(result)[1]:
        return unsealed
    if not run.is_recorded_in(read_json(folder.run)):
        return f"{folder.run} is not the file that the run wrote"
    if folder.thinned.exists():  # by a lean bundle, which leaves predictions and weights out
        return ""
    hashes = {folder.predictions: result.get("predictions_sha256")}
    for name, set_result in (result.get("also") or {}).items():
        hashes[folder.predictions_on(name)] = set_result.get("predictions_sha256")
    if not from_bundle:
        hashes[folder.weights] = result.get("weights_sha256")
    for path, sha256 in hashes.items():
        if sha256 and not path.exists():
            return f"{path}: missing"
    return ""


def settle_devices(
    plan: Plan,
    store: Store,
    launcher: Launcher,
    settings: Mapping[str, Any],
    say: Callable[[str], None],
) -> Decisions:
    """Measure what the runs of a plan take of this machine's devices, and decide by it what their
    settings leave open: the decisions of each column, see `settle_auto_keys`, and how many runs
    share a GPU. `settings`: the launcher group. Raises as `Launcher.ask`."""
    measure_rates(plan, store, launcher)
    decisions = settle_auto_keys(plan, store, launcher, say)
    pack_gpus(plan, store, launcher, settings, decisions, say)
    return decisions


SETTLED_KEYS = ("micro_batch", "deterministic")
Decisions = Mapping[tuple[str, str], Mapping[str, Any]]  # by row and column


def measure_rates(plan: Plan, store: Store, launcher: Launcher) -> None:
    """Measure the rate of matrix products on the first GPU, in each precision of the plan, before
    runs share it: once for a store and kind of GPU. A worker that finds no rate measures it
    itself."""
    if launcher.remote or launcher.device == "cpu":
        return
    gpus = launcher.devices.gpus
    model = gpus[0].model if gpus else ""
    rates = AnswerCache(store.cache / "rates.json", is_number).answers()
    specs = {
        cell.spec.tree["train"]["precision"]: cell.spec
        for cell in plan.cells
        if not isinstance(cell.spec, OwnSpec)
    }
    for precision, spec in specs.items():
        if f"{model}, {precision}" not in rates:
            question = {"spec": spec.with_seed(0).tree, "cache": str(store.cache)}
            with contextlib.suppress(Failure):  # a run that fails, too, says why
                launcher.ask("rate", {**question, "device": launcher.device})


def settle_auto_keys(
    plan: Plan, store: Store, launcher: Launcher, say: Callable[[str], None]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Map (row, column) to {"micro_batch": images at once, "deterministic"}, as far as the runs
    leave these open. A parent has its row of `Plan.parents`.

    Asks the launcher, on its first slot, about shapes without a decision. Raises as `Launcher.ask`.
    For workers on other hosts there is no device to ask before the first run: each run takes the
    micro-batch that fits where it runs, and determinism is on. `say` is called with a line for each
    micro-batch that was tried on a GPU, with its memory.
    """
    if launcher.remote:
        return {}
    slot = launcher.slots[0]
    share = sum((s.place, s.ranks) == (slot.place, slot.ranks) for s in launcher.slots)
    gpus = launcher.devices.gpus
    hardware = f"{slot.device} {gpus[0].model if gpus else ''} {share}"
    cache = _cache(store)
    cached = cache.answers()
    decisions: dict[tuple[str, str], dict[str, Any]] = {}
    for cells in _columns(plan):
        open_ = _open_keys(cells, slot.device)
        if not open_:
            continue
        baseline = next((cell for cell in cells if cell.row == plan.baseline), cells[0])
        name = _hash(f"{hardware} {shape(baseline.spec)}")
        decision = cached.get(name, {"shapes": []})
        new = {}
        for cell in (baseline, *cells):
            key = shape(cell.spec)
            if key not in decision["shapes"]:
                new[key] = cell.spec
        if new or any(key not in decision for key in open_):
            specs = list(new.values()) or [baseline.spec]
            question = {
                "specs": [spec.with_seed(0).tree for spec in specs],
                "wants": open_,
                "known": {key: decision[key] for key in open_ if key in decision},
                "cache": str(store.cache),
                "device": slot.device,
                "share": 1 / share,
                "parts": LEAST_MICRO_BATCHES if max(launcher.worlds) > 1 else 1,
            }
            decision = {**decision, **launcher.ask("settle", question)}
            decision["shapes"] = list(dict.fromkeys([*decision["shapes"], *new]))
            cached = cache.add({name: decision})
            if "memory" in decision:
                label = ", ".join(part for part in (baseline.row, baseline.column) if part)
                say(_memory_line(label, decision, slot, cache))
        answer = {key: decision[key] for key in open_ if key in decision}
        decisions |= {(cell.row, cell.column): answer for cell in cells}
    return decisions


def _open_keys(cells: Iterable[Cell], device: str) -> list[str]:
    """List the keys of SETTLED_KEYS that one of the cells leaves open."""
    keys = []
    for key in SETTLED_KEYS:
        if key == "deterministic" and device == "cpu":
            continue  # it costs nothing there
        if any(cell.spec.tree["train"][key] == "auto" for cell in cells):
            keys.append(key)
    return keys


# --- Runs that share a GPU ------------------------------------------------------------------------

CONTEXT = 0.8e9  # bytes of a GPU that a process takes besides its tensors: libraries, kernels
HEADROOM = 1.1  # a run's later steps may take a little more memory than its first ones


def pack_gpus(
    plan: Plan,
    store: Store,
    launcher: Launcher,
    settings: Mapping[str, Any],
    decisions: Decisions,
    say: Callable[[str], None],
) -> None:
    """Where `launcher.runs_per_gpu=auto`, give each GPU as many slots as keep it busy.

    The host can launch the kernels of a small model more slowly than a GPU computes them; then
    several runs share the GPU, each launched by a core of its own. The first GPU times the largest
    run of each column, once for a store and kind of GPU; the column that takes the GPU most decides
    for all. Where a column can't be timed, or takes no steps, nothing is shared.
    """
    is_auto = settings.get("runs_per_gpu") == "auto"
    if not is_auto or launcher.remote or launcher.device == "cpu" or max(launcher.worlds) > 1:
        return
    columns = [*_columns(plan)]
    if not all(cells[0].spec.task.trains for cells in columns):
        return
    slot, gpus = launcher.slots[0], launcher.devices.gpus
    spare_cores = len(os.sched_getaffinity(0)) - 1  # one is for the driver
    cores = max(1, spare_cores // max(1, len(gpus)))
    model = gpus[0].model if gpus else ""
    cache = AnswerCache(store.cache / "packed.json", is_load)
    cached = cache.answers()
    loads: list[Mapping[str, Any]] = []
    for cells in columns:
        shapes = {shape(cell.spec): cell.spec for cell in cells}
        decided = decisions.get((cells[0].row, cells[0].column), {})
        name = _hash(f"{model} {sorted(shapes)} {json.dumps(decided, sort_keys=True)}")
        if name not in cached:
            question = {
                "specs": [spec.with_seed(0).tree for spec in shapes.values()],
                "settled": decided,
                "cache": str(store.cache),
                "device": slot.device,
            }
            try:
                cached = cache.add({name: launcher.ask("load", question)})
            except (Failure, UserError) as error:
                say(f"runs share no GPU: launcher.runs_per_gpu=auto could not time a step: {error}")
                return
        loads.append(cached[name])
    runs = min((runs_that_share(load, cores) for load in loads), default=1)
    if runs == 1:
        return
    launcher.slots = packed(launcher.slots, runs)
    step_s = sum(load["step_s"] for load in loads)
    device_s = sum(load["device_s"] for load in loads)
    busy_percent = 100 * device_s / step_s
    say(
        f"{runs} runs share each GPU, which one run keeps busy for "
        f"{busy_percent:.0f} % of its time (launcher.runs_per_gpu=auto)"
    )


def runs_that_share(load: Mapping[str, Any], cores: int) -> int:
    """Return how many runs of a `load` keep a GPU busy, and fit into its memory. `load`: see
    `calibrate.Load`; `cores`: that can launch kernels for this GPU, one a run."""
    busy_runs: int = round(load["step_s"] / load["device_s"])
    room: float = load["total_bytes"] / (HEADROOM * load["peak_bytes"] + CONTEXT)
    return max(1, min(busy_runs, math.floor(room), cores, MOST_SHARING))


def is_load(tree: Any) -> bool:
    if not isinstance(tree, dict):
        return False
    for key in ("step_s", "device_s", "peak_bytes", "total_bytes"):
        if not is_number(tree.get(key)) or tree[key] <= 0:
            return False
    return True


# --- The line about a micro-batch -----------------------------------------------------------------

OTHERS = 0.1  # of a GPU's memory: where others use more, a micro-batch may be too small for good


def _memory_line(column: str, decision: Mapping[str, Any], slot: Slot, cache: AnswerCache) -> str:
    """Describe the memory in which a micro-batch was tried, and the remedy where others used much
    of it."""
    free, total = decision["memory"]
    free_gb, total_gb, used_gb = free / 1e9, total / 1e9, (total - free) / 1e9
    fits = (
        f"{column}: train.micro_batch=auto is {decision['micro_batch']} on {slot.place}, where "
        f"{free_gb:.1f} of {total_gb:.1f} GB were free"
    )
    if total - free <= OTHERS * total:
        return fits
    return (
        f"warning: {fits}: others use {used_gb:.1f} GB; the column keeps it, so for a "
        f"larger one stop the sweep, free the GPU and delete {cache.path}"
    )


def take_decisions(store: Store, source: Store) -> None:
    """Copy the decisions of another store that this one has not made, so that later runs on the
    same device are like the other's."""
    cache = _cache(store)
    theirs = _cache(source).answers()
    new_names = theirs.keys() - cache.answers().keys()
    if new_names:
        cache.add({name: theirs[name] for name in new_names})


def decision_for(decisions: Decisions, run: PlannedRun) -> Mapping[str, Any]:
    """Return the decisions for a run; {} where there are none."""
    return decisions.get((run.cell.row + ".from" * run.above, run.cell.column), {})


def _columns(plan: Plan) -> Iterable[list[Cell]]:
    """List the groups of cells whose runs should be alike: those of a column, and those that they
    start from."""
    columns: dict[tuple[str, bool], list[Cell]] = {}
    for cell in plan.cells:
        if not isinstance(cell.spec, OwnSpec):  # which leaves nothing open
            columns.setdefault((cell.column, False), []).append(cell)
    for parent in plan.parents():
        columns.setdefault((parent.column, True), []).append(parent)
    return columns.values()


def shape(spec: RunSpec) -> str:
    """Return a hash of the settings that decide the memory and speed of a run's step."""
    return _hash(spec.step_identity)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cache(store: Store) -> AnswerCache:
    return AnswerCache(store.cache / "settled.json", _is_decision)


def _is_decision(tree: Any) -> bool:
    return (
        isinstance(tree, dict)
        and isinstance(tree.get("shapes"), list)
        and is_number(tree.get("micro_batch", 1))
        and _is_memory(tree.get("memory", [1, 1]))
        and isinstance(tree.get("deterministic", True), bool)
    )


def _is_memory(tree: Any) -> bool:
    return isinstance(tree, list) and len(tree) == 2 and all(map(is_number, tree))
