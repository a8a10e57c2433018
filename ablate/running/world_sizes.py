"""The number of devices that share a run: which numbers are possible, and which is best where
`launcher.gpus_per_run=auto` leaves it open.

A result is the same on any number of devices, so a forecast of the end decides.

Used by `ablate plan` (running/estimate.py) and `ablate sweep` (running/driver.py). The numbers that
there may be are `WORLD_SIZES` of run/checks.py and `World` of planning/launcher.py, which must
agree.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ablate.planning import Cell, PlannedRun
from ablate.run import (
    LEAST_MICRO_BATCHES,
    OwnSpec,
    build_run,
    check_ranks,
    micro_batch_at_most,
)
from ablate.running.launchers import Launcher
from ablate.running.work import CellWork
from ablate.shared import UserError

NEAR = 1.1  # of the earliest end: up to here fewer devices a run are as good
# Assumptions: seconds until the ranks of a run have met, and bytes a second between two of them, on
# a GPU between PCIe and NVLink.
MEETING_S = 5.0
EXCHANGED = {"cpu": 1e9, "cuda": 1e11}

Group = tuple[str, bool]  # a column; True: what its runs start from
Worlds = Mapping[Group, int]  # how many devices a run has
Settled = Mapping[tuple[str, str], Mapping[str, Any]]  # see `ablate.running.preflight`


def group_of(cell: Cell) -> Group:
    """Return the group of the cell's runs: all runs of a group get the same number of devices."""
    return cell.column, ".from" in cell.row


def world_of(worlds: Worlds, run: PlannedRun) -> int:
    """Return the number of devices that the run gets."""
    return worlds.get((run.cell.column, run.above > 0), 1)


def open_to(
    cells: Iterable[Cell],
    worlds: Sequence[int],
    settled: Settled,
    statistics: Collection[tuple[str, str]] = (),
) -> dict[Group, list[int]]:
    """Map each group to the numbers among `worlds` that suit the runs of all its cells.

    `settled`: the decisions for these cells; without them a micro-batch is as large as it may be.
    `statistics`: the cells, by (row, column), whose models keep running statistics. Raises
    UserError, with the reason, where a group has no number left.
    """
    groups: dict[Group, list[int]] = {}
    for cell in cells:
        if [*worlds] == [1] or isinstance(cell.spec, OwnSpec):  # its trainer shares it, or does not
            continue
        place = cell.row, cell.column
        run = build_run(cell.spec.with_seed(0).tree)
        micro, batch = run.train.micro_batch, run.train.batch
        if micro == "auto":
            limit = settled.get(place, {}).get("micro_batch", batch // LEAST_MICRO_BATCHES)
            micro = micro_batch_at_most(batch, limit)
        group = groups.setdefault(group_of(cell), [*worlds])
        for world in [*group]:
            try:
                check_ranks(run, int(micro or batch), world, place in statistics)
            except UserError as error:
                group.remove(world)
                if not group:
                    row, column = place
                    place_name = f"row {row}" + (f", column {column}" if column else "")
                    raise UserError(f"{error} ({place_name})") from error
    return groups


def narrow_worlds(
    worlds: Worlds, cells: Iterable[Cell], launcher: Launcher, settled: Settled
) -> Worlds:
    """Return `worlds`, lowered where a column's settled micro-batch allows fewer devices. Raises
    UserError as `open_to`."""
    options = open_to(cells, launcher.worlds, settled)
    narrowed = {}
    for group, world in worlds.items():
        allowed = [option for option in options.get(group, [1]) if option <= world]
        narrowed[group] = max(allowed)
    return narrowed


def rounding_lines(cells: Iterable[Cell], launcher: Launcher) -> list[str]:
    """List a line for the columns whose runs, shared by several ranks, equal those on one only up
    to rounding.

    A CPU always gives the same bits. The choice of `train.deterministic=auto` is not foreseen.
    """
    world = max(launcher.worlds)
    if world == 1:
        return []
    models = {gpu.model: None for gpu in launcher.devices.gpus}
    columns_by_reason: dict[str, dict[str, None]] = {}
    for cell in cells:
        reasons = []
        if cell.spec.tree["train"]["deterministic"] is False and launcher.device != "cpu":
            reasons.append("train.deterministic=false")
        if len(models) > 1:
            reasons.append(f"GPUs differ: {', '.join(models)}")
        if reasons:
            columns_by_reason.setdefault("; ".join(reasons), {})[cell.column] = None
    ranks = f"{world} ranks" if len(launcher.worlds) == 1 else "several ranks"
    lines = []
    for reason, columns in columns_by_reason.items():
        runs = f"{', '.join(columns)} runs".strip()  # a sole column has no name
        lines.append(f"{runs} on {ranks} equal those on one up to rounding ({reason})")
    return lines


# --- A forecast -----------------------------------------------------------------------------------


def beside_seconds(work: CellWork, device: str) -> float:
    """Return the seconds that several ranks of a run need for work that a single one doesn't have:
    meeting, and exchanging data."""
    return MEETING_S + work.exchanged / EXCHANGED[device]


def run_seconds(work: CellWork, world: int) -> float | None:
    """Return the seconds of a run on `world` devices; None where those on one are unknown."""
    if work.seconds is None:
        return None
    return work.seconds / world + (work.beside_s if world > 1 else 0.0)


def end(works: Sequence[CellWork], devices: int, worlds: Worlds) -> float:
    """Return the seconds until all remaining runs have ended: the longest first, each on the
    devices that are free first. Runs of unknown time take none."""
    free = [0.0] * devices
    runs = []
    for work in works:
        world = worlds.get(group_of(work.cell), 1)
        seconds = run_seconds(work, world) or 0.0
        runs.append((seconds, world, work.trainings_left))
    for seconds, world, remaining in sorted(runs, reverse=True):
        number = math.ceil(remaining)  # short trials count in part
        for _ in range(number):
            ends_at = free[world - 1] + seconds * remaining / number
            free[:world] = [ends_at] * world
            free.sort()
    return free[-1]


def share(
    works: Sequence[CellWork], options: Mapping[Group, Collection[int]], devices: int, rate: float
) -> Worlds:
    """Choose for each group how many devices share a run.

    Under a limit on the seconds of a run, each group takes its smallest option that keeps all runs
    within the limit. The result is that of the largest limit with which everything ends within a
    tenth of the earliest end of any limit. `rate`: multiply-adds a second of a device, for runs
    whose time is unknown.
    """
    takes: dict[Group, dict[int, float]] = {
        group: dict.fromkeys(sorted(worlds), 0.0) for group, worlds in options.items()
    }
    works = [_timed_at(rate, work) for work in works]
    for work in works:
        for world, longest in takes.get(group_of(work.cell), {}).items():
            seconds = run_seconds(work, world) or 0.0
            takes[group_of(work.cell)][world] = max(longest, seconds)
    ends: dict[float, tuple[float, Worlds]] = {}
    limits = {seconds for group in takes.values() for seconds in group.values()}
    for limit in limits:
        worlds = {group: _smallest(takes_s, limit) for group, takes_s in takes.items()}
        ends[limit] = end(works, devices, worlds), worlds
    if not ends:
        return {}
    soonest = min(end_s for end_s, _ in ends.values())
    good_limits = [limit for limit, (end_s, _) in ends.items() if end_s <= NEAR * soonest]
    _, chosen_worlds = ends[max(good_limits)]
    return chosen_worlds


def _timed_at(rate: float, work: CellWork) -> CellWork:
    """Return the work with the time that it takes at `rate`, where its time is unknown."""
    if work.seconds is None and work.multiply_adds:
        return replace(work, seconds=work.multiply_adds / rate)
    return work


def _smallest(seconds_by_world: Mapping[int, float], limit: float) -> int:
    """Return the smallest number of devices that keeps a run within the limit; where none does, the
    number that makes it fastest."""
    for world, seconds in seconds_by_world.items():
        if seconds <= limit:
            return world
    return min(seconds_by_world, key=seconds_by_world.__getitem__)
