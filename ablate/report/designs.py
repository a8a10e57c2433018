"""Compares the designs that the changes of a sweep may have: cells, runs, cost, and what each can
detect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablate.analysis import stats
from ablate.planning.changes import KINDS, Changes, subsets
from ablate.planning.plan import Plan
from ablate.report.power import SeedSpread
from ablate.report.status import show_grid
from ablate.report.text import device_time
from ablate.running.estimate import Costs
from ablate.shared.errors import UserError


@dataclass(frozen=True)
class DesignForecast:
    """One design. `device_seconds`: of all of its runs, a cell taking what those of the plan take
    on average; None: not known yet. `smallest`: by column, the gain of a change that it detects
    with `stats.POWER`; None with too few seeds for verdicts. `seeds`: that --detect takes, of the
    column that needs most; None where nothing was asked, or beyond `stats.MOST_SEEDS`."""

    design: str
    cells: int
    runs: int
    device_seconds: float | None
    smallest: Mapping[str, float | None]
    seeds: int | None


def compare_designs(
    plan: Plan, costs: Costs, detect: float | None, spreads: Mapping[str, SeedSpread]
) -> list[DesignForecast]:
    """Forecast every design that there is for so many changes, none for a plan without."""
    found, changes = [], plan.changes
    if changes is None:
        return []
    every = [costs.seconds[cell.row, cell.column] for cell in plan.cells]
    timed = [seconds for seconds in every if seconds is not None]
    for design in KINDS:
        try:
            cells = len(subsets(changes.names, design))
        except UserError:  # not for so many changes
            continue
        runs = cells * len(plan.columns) * plan.n
        enough = None
        if detect is not None:
            counts = range(2, stats.MOST_SEEDS + 1)
            worst = max(known.spread.sd for known in spreads.values())
            gains = ((n, _smallest(plan, changes, design, cells, n, worst)) for n in counts)
            enough = next((n for n, gain in gains if gain is not None and gain <= detect), None)
        found.append(
            DesignForecast(
                design,
                cells,
                runs,
                runs * sum(timed) / len(timed) if len(timed) == len(every) else None,
                {
                    label: _smallest(plan, changes, design, cells, plan.n, known.spread.sd)
                    for label, known in spreads.items()
                },
                enough,
            )
        )
    return found


def _smallest(
    plan: Plan, changes: Changes, design: str, cells: int, n: int, sd: float
) -> float | None:
    """The gain of one change that has POWER, if cells are alike; None without verdicts."""
    of = Changes(changes.names, design)  # type: ignore[arg-type]
    images = plan.spread == "images"
    if of.crossed:
        fewest, squares = stats.FEWEST_BY_IMAGES if images else stats.FEWEST_SEEDS, 4 / cells
        df = (cells - 1) * (n - 1) if images else n - 1
    else:
        fewest, squares = stats.FEWEST_SEEDS, 2.0
        df = (len(of.names) + 1) * (n - 1) if plan.spread != "paired" else n - 1
    if n < fewest:
        return None
    return stats.smallest_gain(sd * math.sqrt(squares / n), df, plan.analysis.alpha, of.contrasts)


def show_designs(plan: Plan, found: Sequence[DesignForecast], detect: float | None) -> None:
    """Print the designs side by side, the plan's own marked."""
    assert plan.changes is not None
    points = plan.metric.points
    head = ["cells", "runs", "cost", f"detects, {points}"]
    head += [f"seeds for {detect:g}"] if detect is not None else []
    print(f"\ndesigns of these {len(plan.changes.names)} changes, with {plan.seeds_said}:")
    show_grid(
        ("design", *head),
        [
            (
                one.design + " (this one)" * (one.design == plan.changes.design),
                f"{one.cells:,}",
                f"{one.runs:,}",
                "?" if one.device_seconds is None else device_time(one.device_seconds),
                " / ".join(
                    "no verdicts" if gain is None else f"{gain:.2g}"
                    for gain in dict.fromkeys(one.smallest.values())
                ),
                *[_seeds(one.seeds)] * (detect is not None),
            )
            for one in found
        ],
    )
    print(
        f"detects: the gain of one change that gets a verdict in {100 * stats.POWER:.0f} % of "
        f"sweeps, if cells spread alike"
    )


def _seeds(seeds: int | None) -> str:
    return f">{stats.MOST_SEEDS}" if seeds is None else str(seeds)
