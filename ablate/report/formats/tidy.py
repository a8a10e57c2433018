"""Writes every fact of a table for other programs, with exact numbers.

Used by `__init__.py` here (`ablate table --format tidy`), cli/printing.py (`--format json`) and
audit/verify.py, which compares tables by their tidy lines. Another fact also needs
`python tests/test_formats.py` (tests/golden) and `python tests/study_page.py --reprint` (the
bundles in docs/studies).
"""

from __future__ import annotations

import csv as writers
import dataclasses
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ablate.analysis import (
    WARNING_KINDS,
    Against,
    Cost,
    Entry,
    PValues,
    Resolution,
    Summary,
    Table,
    TableColumn,
    TableRow,
)
from ablate.planning import TuningWinner
from ablate.run import DEFAULT_TASK, threshold
from ablate.shared import to_json

if TYPE_CHECKING:
    from ablate.analysis import Estimate

CSV_FIELDS = ("sweep", "column", "row", "seed", "quantity", "value", "text")

Value = float | str | None
Fact = tuple[str, str, int | str, str, Value]  # column, row, seed, quantity, value
Facts = Iterator[tuple[str, Value]]  # quantity, value


def table_tree(table: Table) -> dict[str, Any]:
    """Return the whole `Table` as a plain tree."""
    tree = dataclasses.asdict(dataclasses.replace(table, full_table=None))
    del tree["full_table"]
    del tree["choice"]  # which the task names
    del tree["words"]  # how it is asked for is no fact
    tree["notes"] = [note.tree() for note in table.unmarked_notes(*WARNING_KINDS)]
    tree["caption"] = [note.tree() for note in table.unmarked_notes("caption")]
    tree["footnotes"] = [note.tree() for note in table.marked_notes]
    for row in tree["rows"]:
        row["footnotes"] = table.marks(row["label"], None)
    if not table.groups:
        del tree["groups"]
    if table.target is None:
        del tree["target"]
    if table.task == DEFAULT_TASK:  # only another is said
        del tree["task"]
    keys = ("name", "unit", "points", "scale", "sign", "neutral", "own")
    if table.choice.user_metrics:
        tree["own"] = {
            name: {key: getattr(metric, key) for key in keys}
            for name, metric in table.choice.user_metrics.items()
        }
    for block in tree["blocks"]:
        for line in block["lines"]:
            del line["by_seed"]  # of figures
            if not line["between"]:
                del line["between"]
    for column in tree["columns"]:
        column["footnotes"] = table.marks(None, column["label"])
        del column["arch"], column["wide"]  # parts of its label
        # Nor which is of the own test set, of no group, without lack, or judged.
        for key in ("on", "group", "lacking", "beside"):
            if not column[key]:
                del column[key]
        for entry in column["entries"]:
            entry["footnotes"] = table.marks(entry["row"], column["label"])
            entry["gain_footnotes"] = table.marks(entry["row"], column["label"], "gain")
            for key in ("population", "difference"):
                if not entry[key]:
                    del entry[key]
    return tree


def json(table: Table) -> str:
    """Write the whole `Table` as JSON."""
    return to_json(table_tree(table)).decode()


def csv(table: Table) -> str:
    """Write tidy CSV: `quantity` names the content of `value` (a number) or `text` (words).

    An empty row means of the column, an empty row and column of the table; `seed` is given for
    the quantities METRIC.run and chosen.*, which are of one run. What a table has no number for
    has no line.
    """
    lines: list[Sequence[object]] = [CSV_FIELDS]
    for *place, value in _facts(table):
        text = isinstance(value, str)
        lines.append((table.sweep, *place, "" if text else value, value if text else ""))
    return csv_text(lines)


def csv_text(lines: Iterable[Sequence[object]]) -> str:
    """Write lines of cells, None as an empty one."""
    file = io.StringIO()
    writer = writers.writer(file, lineterminator="\n")
    writer.writerows(map(inert_cell, line) for line in lines)
    return file.getvalue()


def inert_cell(cell: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula: such words get a leading '.

    A number has its sign, also where it is written as a text (`-1`, of a label).
    """
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _facts(table: Table) -> Iterator[Fact]:
    """Yield every fact of the table, one at a time."""
    yield "", "", "", "title", table.title
    yield "", "", "", "trained_on", table.trained_on
    yield "", "", "", "complete", int(table.complete)
    yield "", "", "", "alpha", table.alpha
    yield "", "", "", "gain.alpha", table.gain_alpha
    yield "", "", "", "seeds", len(table.seeds)
    if table.target is not None:
        yield "", "", "", "target", table.target
    yield from (("", "", "", "caption", text) for text in table.texts("caption"))
    yield from (("", "", "", "note", text) for text in table.texts(*WARNING_KINDS))
    rows = {row.label: row for row in table.rows}
    for column in table.columns:
        yield from _column(table, column)
        for entry in column.entries:
            yield from _entry(table, entry, rows[entry.row])
    for block in table.blocks:
        yield from _block(block)


def _column(table: Table, column: TableColumn) -> Iterator[Fact]:
    for quantity, value in (
        *([("group", column.group)] if column.group else []),
        ("contrasts", column.contrasts),
        ("spread.by", column.judged_by),
        *(zip(("spread.least", "spread.most"), column.spreads or (), strict=False)),
        *([("predictions.lacking", column.lacking)] if column.lacking else []),
        ("spread.df", column.df),
        ("spread.rows", column.kept_rows),
        ("spread.images", column.flips),
        ("spread.baseline_ratio", column.baseline_ratio),
        ("void", int(column.void)),
        *(_forecast(column.forecast) if column.forecast else ()),
        *(("test.n", size) for size in column.test_sizes),
        *(("note", text) for text in table.on(None, column.label)),
    ):
        yield column.label, "", "", quantity, value
    if column.ranks:
        for name, value in vars(column.ranks).items():
            yield column.label, "", "", f"paper.kendall.{name}", value


def _entry(table: Table, entry: Entry, row: TableRow) -> Iterator[Fact]:
    runs = {
        table.metric: entry.values,
        **{m: measurement.values for m, measurement in entry.others.items()},
    }
    for name, values in runs.items():
        for seed, value in values.items():
            yield entry.column, entry.row, seed, f"{name}.run", value
    for choice in entry.chosen:
        for seed in choice.seeds:
            for quantity, fact in _winner_facts(choice):
                yield entry.column, entry.row, seed, quantity, fact
    for quantity, fact in (
        ("family", row.family),
        *_estimate(table.metric, entry.accuracy),
        *(
            f
            for name, measurement in entry.others.items()
            for f in _estimate(name, measurement.estimate)
        ),
        *(
            (f"{name}.never", len(measurement.never))
            for name, measurement in entry.others.items()
            if threshold(name) is not None
        ),
        *_estimate("gain", entry.gain),
        *_estimate("difference", entry.difference),
        *_estimate("population", entry.population),
        *_p_values("gain" if table.target is None else "difference", entry.p_values),
        ("runs.planned", entry.planned),
        ("runs.missing", len(entry.missing)),
        ("runs.diverged", len(entry.diverged)),
        ("runs.collapsed", len(entry.collapsed)),
        ("runs.unstable.p", entry.p_values.fisher),
        ("runs.unstable.p.floor", entry.p_values.fisher_floor),
        ("runs.never", len(entry.never) if threshold(table.metric) is not None else None),
        ("pool", entry.pool or None),
        ("verdict", entry.verdict),
        ("spread.ratio", entry.ratio),
        ("spread.likeness", entry.likeness),
        ("parameters", entry.parameters),
        ("multiply_adds", entry.multiply_adds),
        *_searches(entry.chosen),
        *_cost(entry.cost),
        *_against(entry.against),
        *(
            ("note", text)
            for column in (None, entry.column)
            for text in table.on(row.label, column)
        ),
    ):
        if fact is not None:
            yield entry.column, entry.row, "", quantity, fact


def _forecast(resolution: Resolution) -> Facts:
    for name, value in vars(resolution).items():
        yield f"forecast.{name}", value


def _winner_facts(choice: TuningWinner) -> Facts:
    """Yield the settings that tuning chose for a run, and the doubts about them."""
    for key, value in choice.params.items():
        yield f"chosen.{key}", value
    yield "chosen.search", choice.search
    yield "chosen.trial", choice.trial
    for key, share in choice.explored.items():
        yield f"chosen.explored.{key}", share
    for name, keys in (("edge", choice.edges), ("noise", choice.noise)):
        yield from ((f"chosen.{name}", key) for key in keys)


def _searches(choices: tuple[TuningWinner, ...]) -> Facts:
    """Yield the cost of all searches of a cell; `spent` is in whole trials."""
    if choices:
        yield "search.repeats", len(choices)
        yield "search.trials", sum(choice.trials for choice in choices)
        yield "search.spent", sum(choice.spent for choice in choices)
    if adds := sum(choice.multiply_adds for choice in choices):  # own trainers tell none
        yield "search.multiply_adds", adds


def _estimate(quantity: str, estimate: Estimate | None) -> Facts:
    if estimate is None:
        return
    yield quantity, estimate.mean
    for name in ("low", "high", "sd", "df", "n"):
        if (value := getattr(estimate, name)) is not None:
            yield f"{quantity}.{name}", value


def _p_values(quantity: str, p_values: PValues) -> Facts:
    for name, value in (
        ("p", p_values.p),
        ("p.raw", p_values.raw),
        ("p.sign_flip", p_values.sign_flip),
        ("p.sign_flip.floor", p_values.sign_flip_floor),
    ):
        yield f"{quantity}.{name}", value


def _cost(cost: Cost | None) -> Facts:
    if cost:
        yield from ((f"cost.{name}", value) for name, value in vars(cost).items())


def _against(against: Against | None) -> Facts:
    if against is None:
        return
    theirs = against.published
    yield "paper", theirs.value
    yield "paper.pm", theirs.pm
    yield "paper.gain", theirs.gain
    yield "paper.column", theirs.column
    yield "paper.row", theirs.row
    yield "paper.same_subject", int(theirs.same_subject)
    yield "paper.agreement", against.agreement
    yield "paper.gain.inside", None if against.inside is None else int(against.inside)
    yield "paper.difference", against.value
    yield "paper.gain.difference", against.gain


def _block(block: Summary) -> Iterator[Fact]:
    quantity = {
        "average": "average.gain",
        "group": "group.gain",
        "contrast": f"contrast.{block.name}",
        "placement": f"placement.{block.name}",
        **dict.fromkeys(("row_contrast", "change", "pair", "shapley", "sequence"), block.kind),
    }[block.kind]
    for line in block.lines:
        prefix = f"{quantity}.{line.part}".replace(" ", "_") if line.part else quantity
        for name, value in (
            *_estimate(prefix, line.gain),
            *_estimate(f"{prefix}.sampled", line.sampled),
            *_p_values(prefix, line.p_values),
            (f"{prefix}.columns", len(line.columns) or None),
            (f"{prefix}.verdict", line.verdict),
            (f"{prefix}.code", line.code or None),
        ):
            if value is not None:
                yield line.column, line.label, "", name, value
    yield "", "", "", f"{quantity}.contrasts", block.contrasts
