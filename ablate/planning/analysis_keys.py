"""`analysis:` of a sweep file: how its table is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from ablate.planning import own_metric
from ablate.shared.metrics import TASKS
from ablate.shared.schema import Key

METRICS = tuple(dict.fromkeys(name for task in TASKS.values() for name in task.names))


def is_metric(name: str) -> bool:
    return any(task.find(name) for task in TASKS.values()) or own_metric.is_own(name)


@dataclass(frozen=True)
class Analysis:
    """How the table is computed (docs/statistics.md); fixed before results exist."""

    # "": the first that the task declares.
    metric: Annotated[
        str, Key("what is compared: a metric of the test set, PROBE:NUMBER, or module:function")
    ] = ""
    spread: Annotated[
        Literal["auto", "paired"],
        Key("spread of a gain: auto, told by images or shared by rows; paired: each row's own"),
    ] = "auto"
    family: Annotated[
        Literal["column", "table"], Key("which contrasts an interval is simultaneous over")
    ] = "column"
    margin: Annotated[
        float | None, Key("points: adds the verdicts no worse than and same within", above=0)
    ] = None
    alpha: Annotated[float, Key("the error of a family", above=0, below=1)] = 0.05
    looks: Annotated[
        tuple[int, ...], Key("declared numbers of seeds at which a verdict is read")
    ] = ()
    diverged: Annotated[
        Literal["omit", "chance"], Key("a diverged run is left out, or scored at chance")
    ] = "omit"
    contrasts: Annotated[
        Mapping[str, Mapping[str, Any]], Key("by how much gains change between columns")
    ] = field(default_factory=dict)
