"""A sweep before it trains, as Python shows it: its design, and the forecast of its runs.

Used by `Sweep.design` and `Sweep.plan` of Python (api/nouns.py). docs/python.md shows what they
print, and tests/test_api.py runs that page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from ablate.shared import count_text

if TYPE_CHECKING:
    import pandas as pd

    from ablate.planning import Plan
    from ablate.report import PlanForecast


def html_grid(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of HTML, which a notebook sets in its own style."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = ("".join(f"<td>{escape(str(value))}</td>" for value in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True, repr=False)
class Design:
    """The rows, columns and seeds of a sweep. `rows`, `columns`: label -> the settings that differ;
    a sweep without columns has one, "". `looks`: the numbers of seeds at which rows are judged,
    and get more seeds without a verdict; () where gains are judged once every run has a result."""

    rows: Mapping[str, Mapping[str, Any]]
    columns: Mapping[str, Mapping[str, Any]]
    baseline: str | None
    seeds: tuple[int, ...]
    looks: tuple[int, ...]

    @classmethod
    def of_plan(cls, plan: Plan) -> Design:
        """Return the design that a plan has by now."""
        rows = {row.label: row.settings for row in plan.rows}
        columns = {column.label: column.settings for column in plan.columns}
        looks = tuple(plan.design.seed_counts) if plan.design.grows else ()
        return cls(rows, columns, plan.baseline, tuple(plan.seeds), looks)

    @property
    def text(self) -> str:
        """The design in a line: "2 rows x 1 column x 3 seeds, baseline 'none'"."""
        sizes = [count_text(len(self.rows), "row"), count_text(len(self.columns), "column")]
        text = " x ".join([*sizes, count_text(len(self.seeds), "seed")])
        if not self.looks:
            return f"{text}, baseline {self.baseline!r}"
        counts = ", ".join(map(str, self.looks))
        return f"{text} so far, baseline {self.baseline!r}, looks at {counts} seeds"

    def __repr__(self) -> str:
        return f"<ablate.Design: {self.text}>"

    def _repr_html_(self) -> str:
        keys = list(dict.fromkeys(key for settings in self.rows.values() for key in settings))
        rows = [
            [row, *(settings.get(key, "") for key in keys)] for row, settings in self.rows.items()
        ]
        return f"<p>{escape(self.text)}</p>{html_grid(['row', *keys], rows)}"


class Forecast:
    """The runs that a sweep would train, and how long they take: the text of `ablate plan`."""

    def __init__(self, forecast: PlanForecast) -> None:
        self._forecast = forecast

    @property
    def data(self) -> dict[str, Any]:
        """Every number, with the keys of `ablate plan --format json`."""
        from ablate.report import trees

        return trees.of_plan(self._forecast)

    def __repr__(self) -> str:
        return self._forecast.text

    def _repr_html_(self) -> str:
        lines = "".join(f"<div>{escape(line)}</div>" for line in self._forecast.lines())
        plan = self._forecast.plan
        title = "" if plan.title == plan.name else f"<p>{escape(plan.title)}</p>"
        return f"<p><b>{escape(plan.name)}</b></p>{title}{html_grid(*self._forecast.grid())}{lines}"

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each row and column: `row`, `column`, `parameters`, `multiply_adds` (of
        an image), `seconds` (of a run; missing where nothing was timed), `peak_bytes` (of a step on
        a GPU; missing on a CPU), and the number of runs, `runs`, of which `left` are still to
        train."""
        import pandas as pd

        from ablate.run import FINAL_STATUSES

        frame = pd.DataFrame(self.data["variants"])
        states = frame.pop("states")
        frame["runs"] = [len(runs) for runs in frame.pop("runs")]
        frame["left"] = [
            number - sum(count for state, count in counts.items() if state in FINAL_STATUSES)
            for number, counts in zip(frame["runs"], states, strict=True)
        ]
        frame["peak_bytes"] = [memory and memory["peak_bytes"] for memory in frame.pop("memory")]
        sizes = ["parameters", "multiply_adds", "seconds", "peak_bytes"]
        names = ["row", "column", *sizes, "runs", "left"]
        return frame[names].astype({"seconds": float, "peak_bytes": "Int64"})
