"""The table of a sweep as Python has it.

Used by `Sweep.table` and `Table` of Python (api/nouns.py); `ablate table` prints by
cli/printing.py. A new column of `to_pandas` also needs its line in docs/python.md, which
tests/test_api.py compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ablate.analysis import Table as GainTable
from ablate.api.errors import explained
from ablate.report import OUR_FORMATS, render_table
from ablate.shared import unknown_value

if TYPE_CHECKING:
    import pandas as pd

READ_PARTS = ("accuracy", "gain", "ci", "pm", "n", "verdict")  # parts that every table has


class Table:
    """A table of gains with intervals and verdicts. `data`: every number of it."""

    def __init__(self, data: GainTable) -> None:
        self.data = data

    def __repr__(self) -> str:
        return self.render("md")

    def _repr_html_(self) -> str:
        return self.render("html")

    @explained
    def render(
        self,
        format: str = "md",
        *,
        show: Sequence[str] | None = None,
        transpose: bool = False,
        wide: bool | None = None,
        notes: str | None = None,
        label: str | None = None,
        caption: str | None = None,
    ) -> str:
        """Set the table in a format of `ablate table`: "md", "latex", "html", "csv", ...

        `show`: the parts that are printed, of accuracy, gain, ci, pm, n and verdict; `transpose`:
        variants become columns; `wide`: a line for each architecture and variant; `notes`: "short",
        "full" or "none", None for those of the format; `label`, `caption`: of LaTeX. Raises
        UserError for another format, part or level of notes.
        """
        from ablate.report import DEFAULT_SHOW, LatexFloat, check_show

        parts: Sequence[str] = DEFAULT_SHOW
        if show is not None:
            parts = [show] if isinstance(show, str) else show
            for part in parts:
                if part not in READ_PARTS:
                    raise unknown_value("show", part, READ_PARTS)
            parts = check_show(",".join(parts))
        if format == "rich":  # an object for a console
            raise unknown_value("format", format, [name for name in OUR_FORMATS if name != format])
        return str(
            render_table(
                self.data,
                format,
                show=parts,
                transpose=transpose,
                wide=wide,
                floated=LatexFloat(label, caption),
                notes=notes,
            )
        )

    @property
    def verdicts(self) -> dict[tuple[str, str], str]:
        """(row, column) -> verdict, where one is given; (change, column) of a design's changes."""
        return {(e.row, e.column): e.verdict for e in self.data.contrasts if e.verdict is not None}

    @explained
    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each row and column of the table, as a tidy frame.

        | column | dtype | what it holds |
        |---|---|---|
        | `column`, `row` | string | labels; "" for the column of a sweep without columns |
        | `n` | int64 | seeds of the mean |
        | `mean`, `mean_low`, `mean_high` | float64 | the metric and its interval |
        | `gain`, `gain_low`, `gain_high` | float64 | the gain and its interval |
        | `gain_sd`, `gain_df` | float64 | standard deviation and degrees of freedom of the gain |
        | `gain_n` | Int64 | seeds of the gain |
        | `verdict` | string | "helps", "can't tell", ... |

        Numbers are in the metric's printed unit (%, points), with all digits; what a row has not is
        missing (NaN, NA). A gain's interval is gain +- t(gain_df) gain_sd / sqrt(gain_n), with
        alpha divided over the contrasts of its family. A table with a target has `difference`,
        `difference_low` and so on, the mean minus the target, in the place of gains.
        """
        import pandas as pd

        name = "gain" if self.data.target is None else "difference"

        frame = pd.DataFrame(
            {
                **{"column": e.column, "row": e.row, "n": e.accuracy.n if e.accuracy else 0},
                **_interval("mean", e.accuracy),
                **_interval(name, e.contrast),
                **{f"{name}_{part}": getattr(e.contrast, part, None) for part in ("sd", "df", "n")},
                "verdict": e.verdict,
            }
            for e in self.data.entries
        )
        texts = dict.fromkeys(("column", "row", "verdict"), "string")
        headings = [heading for heading in map(str, frame) if heading.startswith(("mean", name))]
        numbers = dict.fromkeys(headings, "float64")
        return frame.astype({**texts, **numbers, "n": "int64", f"{name}_n": "Int64"})


def _interval(name: str, estimate: Any) -> dict[str, float | None]:
    """Return a mean and its interval under three names."""
    parts = {name: "mean", f"{name}_low": "low", f"{name}_high": "high"}
    return {key: getattr(estimate, part, None) for key, part in parts.items()}
