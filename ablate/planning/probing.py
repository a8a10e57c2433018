"""Do the runs of a plan measure what is asked of them, and which command trains runs that do?"""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Literal

from ablate.shared.errors import UserError
from ablate.shared.metrics import DEFAULT, TASKS, Metric
from ablate.shared.own import is_own
from ablate.shared.parts import is_plugin
from ablate.shared.spec import task_of

if TYPE_CHECKING:
    from ablate.planning.analysis_keys import Analysis
    from ablate.planning.plan import Plan

# Spreads that more seeds of the baseline tell nothing.
BLOCKED = {"paired": "pairs each seed with the baseline's", "predictions": "is of seed blocks"}

Spread = Literal["pooled", "predictions", "paired", "welch"]


def check_measured(plan: Plan, metric: Metric, place: str) -> None:
    """Raises UserError for a number of a probe that runs of the plan are without."""
    if not metric.probe:
        return
    without = (c.row for c in plan.cells if metric.probe not in c.spec.get("probe", ()))
    if rows := list(dict.fromkeys(without)):
        more = f" and {len(rows) - 1} more row{'s'[: len(rows) > 2]}" if len(rows) > 1 else ""
        raise UserError(
            f"{place}: {metric.key}: the runs of {rows[0]!r}{more} do not measure {metric.probe}; "
            f"{again(plan, metric.probe)} trains runs that do: new ones, with ids of their own"
        )


def check_layer(plan: Plan, metric: Metric, place: str) -> None:
    """Raises UserError for a number of a layer that a row is known not to have. How many layers a
    class of the user's own has, only its runs tell."""
    for cell in plan.cells if metric.layer else ():
        if "depth" not in cell.spec["model"]:
            continue  # a whole model: it has no such probe either
        depth = cell.spec["model"]["depth"]
        if depth < metric.layer and not is_plugin(cell.spec["block"]["name"]):
            raise UserError(
                f"{place}: {cell.row!r} has no {metric.key}: its model has "
                f"{depth} layer{'s'[: depth > 1]}; choose another metric, or other rows"
            )


def check_spread(plan: Plan, metric: Metric, place: str = "analysis.spread") -> None:
    """Raises UserError for a spread from predictions where it can't be told, or is not tried; and
    for an analysis that more seeds of the baseline can't go with."""
    if plan.baseline_seeds:
        _check_unblocked(plan.analysis, place.rpartition(".")[0])
    if plan.analysis.spread != "predictions":
        return
    why = no_images(plan, metric)
    if not plan.analysis.screen:
        why = "needs both screens; leave analysis.screen out"
    if why:
        raise UserError(f"{place}: predictions {why}; choose pooled, paired or welch")


def spread_of(plan: Plan) -> Spread:
    """What `analysis.spread` says. `auto` is the spread from predictions, but for a metric or a
    sweep without it, and where one variant a column is judged by its paired t anyway."""
    said = plan.analysis.spread
    if said != "auto":
        return said
    rows = Counter(cell.column for cell in plan.cells)
    several = max(rows.values(), default=0) > 2  # than the baseline and a row
    blocked = several and plan.analysis.screen and not plan.baseline_seeds
    told = blocked and not no_images(plan, plan.metric)
    return "predictions" if told else "pooled"


def _check_unblocked(analysis: Analysis, place: str) -> None:
    """Raises UserError for an analysis that needs seed blocks. `place`: of the section."""
    if why := BLOCKED.get(analysis.spread):
        raise UserError(
            f"{place}.spread: {analysis.spread} {why}, so it goes without baseline_seeds; choose "
            f"pooled or welch"
        )
    for key in ("looks", "screen"):
        if getattr(analysis, key) != getattr(type(analysis)(), key):
            raise UserError(f"{place}.{key}: goes without baseline_seeds; leave one of them away")


def no_images(plan: Plan, metric: Metric) -> str:
    """Why the images that runs get right say nothing of this metric; "" where they do."""
    for cell in plan.cells[:1]:
        if (
            metric.key != TASKS[DEFAULT].metrics[0].key
            or is_own(cell.spec)
            or task_of(cell.spec) != DEFAULT
        ):
            return f"says which images are right, which makes top1 of {DEFAULT}, not {metric.key}"
    if plan.until:
        return "is not tried for sweeps with looks"
    if plan.baseline_seeds:
        return "is of pairs of runs, which the baseline's own seeds have none of"
    return "is not tried for tuned sweeps, whose n counts searches" if plan.tune else ""


def again(plan: Plan, probe: str = "") -> str:
    """Return the command of the sweep; with `probe` of the sweep whose runs measure that, too."""
    if not probe:
        return f"`{shlex.join(['ablate', 'sweep', *plan.words])}`"
    asked = {name for cell in plan.cells for name in cell.spec.get("probe", ())}
    kept = [word for word in plan.words if not word.startswith("probe=")]
    if "--as" in kept:  # other runs: another sweep
        del kept[kept.index("--as") : kept.index("--as") + 2]
    word = f"probe=[{','.join(sorted({*asked, probe}))}]"
    return f"`{shlex.join(['ablate', 'sweep', *kept, word])}`"
