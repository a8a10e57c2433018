"""Do the runs of a plan measure what is asked of them, and which command trains runs that do?"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Literal

from ablate.shared.errors import UserError
from ablate.shared.metrics import DEFAULT, TASKS, Metric
from ablate.shared.own import marks_examples
from ablate.shared.parts import is_plugin

if TYPE_CHECKING:
    from ablate.planning.plan import Plan

Spread = Literal["images", "one way", "paired"]
FEWEST_AT_ONCE = 5  # seeds: with fewer, a family of several columns is judged in pairs


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


def spread_of(plan: Plan) -> Spread:
    """By which a plan's gains are judged: what `analysis.spread` says, `auto` being `images` where
    the metric counts right and wrong test images, else `one way`.

    It is `paired` where these err above .06 (docs/statistics.md): over several columns at once, and
    at declared looks, without images; with images over several columns by few seeds.
    """
    analysis, several = plan.analysis, len(plan.columns) > 1
    at_once = analysis.family == "table" and several
    if analysis.spread == "paired":
        return "paired"
    if no_images(plan, plan.metric):
        return "paired" if at_once or analysis.looks else "one way"
    return "paired" if at_once and plan.n < FEWEST_AT_ONCE else "images"


def no_images(plan: Plan, metric: Metric) -> str:
    """Why the images that runs get right say nothing of this metric; "" where they do."""
    for cell in plan.cells[:1]:
        if marks_examples(cell.spec, metric.key):
            continue
        if not metric.right_within:
            made = " and ".join(m.key for m in TASKS[DEFAULT].metrics if m.right_within)
            return f"says which images are right, which makes {made} of {DEFAULT}, not {metric.key}"
    return "is not tried for tuned sweeps, whose n counts searches" if plan.tune else ""


def again(plan: Plan, probe: str = "") -> str:
    """Return the command of the sweep; with `probe` of the sweep whose runs measure that, too."""
    if not probe:
        return f"`{shlex.join(['ablate', *plan.command])}`"
    asked = {name for cell in plan.cells for name in cell.spec.get("probe", ())}
    kept = [word for word in plan.words if not word.startswith("probe=")]
    if "--as" in kept:  # other runs: another sweep
        del kept[kept.index("--as") : kept.index("--as") + 2]
    word = f"probe=[{','.join(sorted({*asked, probe}))}]"
    return f"`{shlex.join(['ablate', 'sweep', *kept, word])}`"
