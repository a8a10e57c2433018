"""Says what runs were trained on, from the runs themselves: a title only says what somebody wrote
into a sweep file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablate.analysis import imports
from ablate.analysis.scores import Scores, blocks_of
from ablate.planning.cell import spec_parents
from ablate.planning.plan import Plan
from ablate.shared.own import is_command, is_own, name_of
from ablate.shared.spec import datasets_of, trains

if TYPE_CHECKING:
    from ablate.analysis.table import TableColumn

THEN = ", then "  # before what a parent's child learns
NAMED = 3  # data sets; of more their number is said


Cells = Mapping[tuple[str, str], Scores]  # by row and column


def data_names(cells: Cells) -> str:
    """Name the data of these cells, what parents learned first: "imagenet21k, then digits"."""
    return _data_of(score.cell.spec for score in cells.values())


def trained_on(plan: Plan, cells: Cells, columns: Iterable[TableColumn]) -> str:
    """State data, images, resolution, length and n: "Trained on mnist5k, 4,000 images at 28 px, 8
    epochs; n = 3." """
    n = {entry.n for column in columns for entry in column.entries} - {0}
    return f"{_training(plan, [*cells.values()])}; n = {_span(n or {len(plan.counted_seeds)})}."


def _data_of(specs: Iterable[Mapping[str, Any]]) -> str:
    found = dict.fromkeys(map(_data, specs))
    if len(found) > NAMED:
        return f"{len(found)} data sets"
    return "; ".join(found) if any(THEN in one for one in found) else listed([*found])


def by_column(plan: Plan, cells: Cells) -> Iterator[str]:
    """Where columns differ in what they were trained on, a line for each kind of them."""
    found: dict[str, list[str]] = {}
    for column, block in blocks_of(plan, cells):
        found.setdefault(_training(plan, block), []).append(column.heading)
    if len(found) > 1:
        for said, headings in found.items():
            yield f"{', '.join(headings)}: {said[0].lower()}{said[1:]}."


def _training(plan: Plan, cells: Sequence[Scores]) -> str:
    images = {
        result["train"]["n"] for score in cells for result in score.results if "train" in result
    }
    return training(plan, [score.cell.spec for score in cells], images)


def training(plan: Plan, specs: Sequence[Mapping[str, Any]], images: Collection[int] = ()) -> str:
    """State data, images where their numbers are known, resolution and length of runs of these
    trees: "Trained on mnist5k, 28 px, 8 epochs"."""
    if elsewhere := imports.trained(specs):
        return elsewhere
    if any(map(is_own, specs)):
        checked = all(not is_command(spec) or spec["code"]["data"] for spec in specs)
        unchecked = "" if checked else ", on data that were not checked"
        return f"Trained by {listed([*dict.fromkeys(map(name_of, specs))])}{unchecked}"
    parts = [_data_of(specs)]
    size = f"{_span({spec['data']['size'] for spec in specs})} px"
    parts.append(f"{_span(images)} {plan.task.examples} at {size}" if images else size)
    lengths: dict[str, set[float]] = {}
    for spec in specs:
        if not trains(spec):  # its parent's length is told
            continue
        number, unit = length_of(spec["train"])
        lengths.setdefault(unit, set()).add(number)
    for unit, numbers in lengths.items():
        parts.append(f"{_span(numbers)} {unit[:-1] if numbers == {1} else unit}")
    return f"Trained on {', '.join(parts)}"


def length_of(train: Mapping[str, Any]) -> tuple[float, str]:
    """How long a run is: a number, of steps, examples or epochs."""
    return next((train[unit], unit) for unit in ("steps", "examples", "epochs") if train[unit])


def _data(spec: Mapping[str, Any]) -> str:
    read = map(datasets_of, (spec, *spec_parents(spec)))
    names = [own["name"] for own, *_ in filter(None, read)]
    return THEN.join(dict.fromkeys(reversed(names)))


def _span(numbers: Iterable[float]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least:,g}" if least == most else f"{least:,g} to {most:,g}"


def listed(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
