"""Make plans with planted results, their gain tables, and the text of these in each format."""

from __future__ import annotations

import io
import json

import numpy as np
from rich.console import Console

from ablate.analysis import english
from ablate.analysis.evidence import Evidence, RunFiles
from ablate.analysis.judging import Detail
from ablate.analysis.note import EVERYWHERE, Note
from ablate.analysis.tabulate import Extras, make_table
from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Cell, Column, Row
from ablate.planning.plan import Plan
from ablate.report.formats import render_table
from ablate.run.spec import RunSpec


def tabulate(
    plan, results, past=None, detail=Detail.VERDICTS, strict=False, withheld=None, **options
):
    """Make a table as `analysis.reading` does, without recording a look. `options`: readers of
    files, by the fields of `RunFiles`, and the fields of `Extras`."""
    files = RunFiles(**{key: options.pop(key) for key in RunFiles._fields if key in options})
    extras = Extras(**options)
    evidence = Evidence.collect(plan, results, files, extras.also, withheld)
    table = make_table(evidence, past, detail=detail, strict=strict, extras=extras)
    check_sentences(table)
    return table


def check_sentences(table):
    """Check that JSON, whose maps have no order, has all that the table's sentences are made of."""
    for each in table.notes:
        values = json.loads(json.dumps(each.values, sort_keys=True))
        assert values == each.values, each
        assert english.write(each.key, values) == each.text, each


def note(kind, text, place=EVERYWHERE):
    """Make a note of any text."""
    return Note("metric.measured", {"text": text}, kind, place)


SPEC = {
    "data": {"name": "digits", "size": 8, "classes": 10},
    "augment": {},
    "optim": {},
    "train": {
        **{"steps": None, "examples": None, "epochs": 6.0},
        **{"precision": "fp32", "deterministic": True},
    },
    "eval": {},
}
TEXTS = ("md", "latex", "html", "csv", "tidy", "json")


def make_plan(rows, columns=("",), seeds=3, families=None, confounds=None, **analysis):
    """Make a plan of these rows, the first the baseline; its runs are named row@column#seed."""
    families, confounds = families or {}, confounds or {}
    cells = tuple(
        Cell(r, c, RunSpec.of(SPEC), {s: f"{r}@{c}#{s}" for s in range(seeds)})
        for c in columns
        for r in rows
    )
    return Plan(
        name="planted",
        title="A planted sweep",
        rows=tuple(Row(r, {}, families.get(r), confounds.get(r, ())) for r in rows),
        columns=tuple(Column(c, {}) for c in columns),
        cells=cells,
        baseline=rows[0],
        seeds=tuple(range(seeds)),
        analysis=Analysis(**analysis),
    )


def finished(top1, **more):
    """Make the result of a finished run with this top-1, a fraction."""
    test = {"n": 300, "loss": 1 - top1, "top1": top1}
    result = {"status": "finished", "collapsed": False, "test": test, "device": "cpu"}
    result["train"] = {"n": 1197}
    return {**result, "kernel": "sdpa", "execution": "eager", "digest": "d1", "threads": 1, **more}


def plant(plan, values):
    """Make the plan's results. `values`: row -> top-1 in per cent by seed, for every column."""
    return {
        run: finished(values[cell.row][seed] / 100)
        for cell in plan.cells
        for seed, run in cell.ids.items()
    }


PLANTED_TWO = {"base": [90, 91, 92], "near": [93, 93.5, 94]}
BLOCKS = np.array([-0.1, 0.0, 0.1])
PLANTED = {
    "base": 90 + BLOCKS + [0.05, -0.05, 0.0],
    "better": 92 + BLOCKS + [-0.05, 0.0, 0.05],
    "worse": 88 + BLOCKS + [0.0, 0.05, -0.05],
    "same": 90.0 + BLOCKS + [-0.05, 0.05, 0.0],
    "at least": 90.1 + BLOCKS + [0.05, 0.0, -0.05],
    "unclear": 89.9 + BLOCKS + [0.0, -0.05, 0.05],
}


def notes_of(table, key, place=None):
    """Return the notes of a table that state this fact, each text once. `place`: on it alone."""
    notes = (each for each in table.notes if each.key == key and place in (None, each.place))
    return [*{each.text: each for each in notes}.values()]


def entries(table):
    """Index a table's entries by row."""
    return {entry.row: entry for entry in table.entries}


def printed(table, width=100, **options):
    """Print a table as a terminal of this width shows it. `options`: see `render_table`."""
    console = Console(file=io.StringIO(), width=width)
    console.print(render_table(table, "rich", **options))
    return console.file.getvalue()


def every_text(table):
    """Render a table in every format, each as a line with single spaces."""
    full = {"notes": "full"}
    texts = [printed(table, **full), *(render_table(table, name, **full) for name in TEXTS)]
    return [" ".join(text.replace("\\%", "%").split()) for text in texts]


def noted_texts(table):
    """Of `every_text`, those that have the notes of a table: all but csv."""
    texts = dict(zip(("rich", *TEXTS), every_text(table), strict=True))
    return [text for format, text in texts.items() if format != "csv"]


def text_of(table, format, **how):
    """Render a table in a format; as a terminal shows it where that is `rich`."""
    made = render_table(table, format, **how)
    if format != "rich":
        return made
    console = Console(file=io.StringIO(), width=how.get("width", 100))
    console.print(made)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹˒"


def grids(text):
    """Read the grids of a Markdown table: rows of cells, without footnote marks and rules."""
    found = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip().rstrip(RAISED) for cell in line.strip("|").split(" | ")]
            found[-1].append([cell.strip("|* ") for cell in cells])
        elif found[-1]:
            found.append([])
    return [[row for row in grid if "---" not in row[0]] for grid in found if grid]
