"""Says what runs were trained on, from the runs themselves: a title only says what somebody wrote
into a sweep file. And what tables say of runs that were trained elsewhere. Computes nothing.

Used by `tabulate.py` and `captions.py`, for every table, by report/show.py and report/trials.py.
Sentences on imported runs are in english/imports.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from ablate.analysis.english.words import join_words
from ablate.analysis.note import Sentence, sentence
from ablate.analysis.scores import Scores, blocks_of
from ablate.analysis.table import TableColumn
from ablate.planning import Imported, Plan
from ablate.run import OwnSpec, RunSpec

ELSEWHERE = "trained elsewhere, not verified"
LONGEST_TRAINER = 100  # letters of a command that a caption has


def trained_elsewhere(specs: Iterable[RunSpec]) -> str:
    """Return "Trained elsewhere, not verified" if some of these runs are imported, and ""
    otherwise."""
    if any(spec.is_imported for spec in specs):
        return f"{ELSEWHERE[0].upper()}{ELSEWHERE[1:]}"
    return ""


def notes(plan: Plan) -> Iterator[Sentence]:
    """State what the numbers are of, and what the sheet hides."""
    design = plan.design
    if not isinstance(design, Imported):
        return
    files = [
        {"name": Path(source.file).name, "lines": source.lines, "sha256": source.sha256}
        for source in design.sources
    ]
    yield sentence("sheet.source", files=files)
    if not design.blocks:
        yield sentence("sheet.no-seeds")
        if len(plan.columns) > 1 and plan.analysis.target is None:
            yield sentence("sheet.no-averages")
    for source in design.sources:
        for line in source.hides:
            yield sentence("sheet.hides", line=line)
    yield from _uneven(plan, design)


def _uneven(plan: Plan, design: Imported) -> Iterator[Sentence]:
    """State which cells lack seeds that others of their column have, which rows have runs without a
    run of the baseline, and which cells have one run."""
    lacking, unpaired, alone = [], [], []
    for column in plan.columns:
        cells = [cell for cell in plan.cells if cell.column == column.label]
        seeds = sorted({seed for cell in cells for seed in cell.ids})
        baseline_seeds = {seed for cell in cells if cell.row == plan.baseline for seed in cell.ids}
        for cell in cells:
            place = f"{cell.row}@{cell.column}" if len(plan.columns) > 1 else cell.row
            if absent := [seed for seed in seeds if seed not in cell.ids]:
                lacking.append({"place": place, "seeds": absent})
            pairs = len(baseline_seeds & cell.ids.keys())
            has_gain = plan.analysis.target is None and cell.row != plan.baseline
            if has_gain and pairs < len(cell.ids):
                unpaired.append({"place": place, "pairs": pairs, "runs": len(cell.ids)})
            if len(cell.ids) == 1:
                alone.append(place)
    if lacking and design.blocks:
        yield sentence("sheet.lacks-seeds", cells=lacking, unpaired=unpaired)
    if alone:
        yield sentence("sheet.single-runs", cells=alone)
    if len(plan.rows) * len(plan.columns) > len(plan.cells):
        empty = [
            f"{row.label}@{column.label}"
            for row in plan.rows
            for column in plan.columns
            if plan.cell(row.label, column.label) is None
        ]
        yield sentence("sheet.no-runs", cells=empty)


PHASE_SEPARATOR = ", then "  # before what a parent's child learns
NAMED_SETS = 3  # data sets; of more their number is said


Cells = Mapping[tuple[str, str], Scores]  # by row and column


def data_names(cells: Cells) -> str:
    """Name the data of these cells, what parents learned first: "imagenet21k, then digits"."""
    return _data_of(score.cell.spec for score in cells.values())


def trained_on(plan: Plan, cells: Cells, columns: Iterable[TableColumn]) -> str:
    """State data, images, resolution, length and n: "Trained on mnist5k, 4,000 images at 28 px, 8
    epochs; n = 3." """
    n = {entry.n for column in columns for entry in column.entries} - {0}
    return f"{_training(plan, [*cells.values()])}; n = {_span(n or {len(plan.counted_seeds)})}."


def _data_of(specs: Iterable[RunSpec]) -> str:
    descriptions = dict.fromkeys(map(_data, specs))
    if len(descriptions) > NAMED_SETS:
        return f"{len(descriptions)} data sets"
    return (
        "; ".join(descriptions)
        if any(PHASE_SEPARATOR in description for description in descriptions)
        else join_words([*descriptions])
    )


def by_column(plan: Plan, cells: Cells) -> Iterator[Sentence]:
    """Where columns differ in what they were trained on, a sentence for each kind."""
    headings_by_training: dict[str, list[str]] = {}
    for column, block in blocks_of(plan, cells):
        headings_by_training.setdefault(_training(plan, block), []).append(column.heading)
    if len(headings_by_training) > 1:
        for training, headings in headings_by_training.items():
            yield sentence("trained-on.columns", columns=headings, training=training)


def _training(plan: Plan, cells: Sequence[Scores]) -> str:
    images = {
        result["train"]["n"] for score in cells for result in score.results if "train" in result
    }
    return trained_on_words(plan, [score.cell.spec for score in cells], images)


def trained_on_words(plan: Plan, specs: Sequence[RunSpec], images: Collection[int] = ()) -> str:
    """State data, images where their numbers are known, resolution and length of runs with these
    specs: "Trained on mnist5k, 28 px, 8 epochs"."""
    if elsewhere := trained_elsewhere(specs):
        return elsewhere
    own_specs = [spec for spec in specs if isinstance(spec, OwnSpec)]
    if own_specs:
        checked = all(not spec.is_command or spec.tree["code"]["data"] for spec in own_specs)
        unchecked = "" if checked else ", on data that were not checked"
        trainers = dict.fromkeys(
            shorten(spec.trainer, LONGEST_TRAINER, placeholder=" ...") for spec in own_specs
        )
        return f"Trained by {join_words([*trainers])}{unchecked}"
    parts = [_data_of(specs)]
    size = f"{_span({spec.tree['data']['size'] for spec in specs})} px"
    parts.append(f"{_span(images)} {plan.task.examples} at {size}" if images else size)
    lengths: dict[str, set[float]] = {}
    for spec in specs:
        if not spec.trains:  # the length is that of its parent
            continue
        number, unit = length_of(spec.tree["train"])
        lengths.setdefault(unit, set()).add(number)
    for unit, numbers in lengths.items():
        parts.append(f"{_span(numbers)} {unit[:-1] if numbers == {1} else unit}")
    return f"Trained on {', '.join(parts)}"


def length_of(train: Mapping[str, Any]) -> tuple[float, str]:
    """How long a run is: a number, of steps, examples or epochs."""
    return next((train[unit], unit) for unit in ("steps", "examples", "epochs") if train[unit])


def _data(spec: RunSpec) -> str:
    data_sets = (run_spec.datasets[:1] for run_spec in (spec, *spec.ancestors()))
    names = [data_set["name"] for own_set in data_sets for data_set in own_set]
    return PHASE_SEPARATOR.join(dict.fromkeys(reversed(names)))


def _span(numbers: Iterable[float]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,g}" if low == high else f"{low:,g} to {high:,g}"
