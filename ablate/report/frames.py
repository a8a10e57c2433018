"""Runs and curves of a sweep as tidy pandas frames. `ablate.load` says what their columns are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablate.plan import Column, Plan, Row
from ablate.report.gather import Known, setting, trials

if TYPE_CHECKING:
    import pandas as pd

PLACE = ("sweep", "row", "column", "seed", "id")
TEST = ("top1", "top5", "loss")
TOLD = (
    *("step", "train_loss", "collapsed", "seconds", "device"),
    *("parameters", "multiply_adds"),
)


def runs_frame(plan: Plan, runs: Sequence[Known]) -> pd.DataFrame:
    """A row a planned run, in the plan's order."""
    numbers = trials(plan)
    families = {row.label: row.family for row in plan.rows}
    chosen: list[Row | Column] = [*plan.rows, *plan.columns]
    keys = dict.fromkeys(key for part in chosen for key in part.settings)
    rows = []
    for known in runs:
        result, cell = known.result, known.run.cell
        test = result.get("test") or {}
        rows.append(
            {
                **_place(plan, known),
                "family": families[cell.row],
                **({"trial": numbers.get(known.run.id)} if plan.tune else {}),
                **{key: _scalar(setting(cell.spec, key)) for key in keys},
                "status": known.status,
                **{name: test.get(name) for name in TEST},
                "test_n": test.get("n"),
                **{name: result.get(name) for name in TOLD},
            }
        )
    return _frame(rows)


def curves_frame(plan: Plan, runs: Sequence[Known]) -> pd.DataFrame:
    """A row a line of a run's metrics.jsonl."""
    import pandas as pd

    rows = [
        {**_place(plan, known), **{key: value for key, value in line.items() if _is_plain(value)}}
        for known in runs
        for line in known.seen.folder.read_metrics()
    ]
    return pd.DataFrame(rows, columns=None if rows else [*PLACE, "step"])


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Columns of whole numbers stay so where some are missing."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    for name in frame.columns:
        kinds = {type(row[name]) for row in rows}
        if kinds == {int, type(None)}:
            frame[name] = pd.array([row[name] for row in rows], dtype="Int64")
    return frame


def _place(plan: Plan, known: Known) -> dict[str, Any]:
    run = known.run
    return dict(
        zip(PLACE, (plan.name, run.cell.row, run.cell.column, run.seed, run.id), strict=True)
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _scalar(value: Any) -> Any:
    return value if _is_plain(value) else json.dumps(value)
