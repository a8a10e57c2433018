"""Judges what each change of a design gains in a column: averaged over the cells of a crossed
design, or against the cell with none or all of the changes.

Tables, looks and the comparison of designs judge by it; interactions are in `effects`.

Used by `effects.py` (tables), `sequential.py` (looks) and report/designs.py (`ablate plan`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ablate.analysis import stats
from ablate.analysis.across import joined_note, noisy
from ablate.planning import MAIN_EFFECT, Changes, Plan

BY_IMAGES = "noise from examples that are right with one seed and wrong with another"
BY_SEEDS = "each effect is judged by its own spread over seeds"


class JudgedChanges(NamedTuple):
    """The gains of changes, by (name of the change, part of it), and notes on how they were
    judged."""

    gains: dict[tuple[str, str], stats.RowGain]
    notes: list[str]


def judge_changes(
    plan: Plan,
    changes: Changes,
    y: stats.Floats,
    method: stats.Method,
    unstable: stats.Bools,
    right: stats.Bools | None,
) -> JudgedChanges:
    """Judge what each change does in a column, by y (R, S) of the rows of the plan. `right`
    (R, S, N): which images runs get right."""
    index = cell_rows(plan, changes)
    if changes.crossed:
        weights = effect_weights(changes)
        rows, merged = merge_cells(index, [*weights.values()])
        effects = stats.design_effects(
            y[rows], merged, method, unstable[rows], None if right is None else right[rows]
        )
        if effects is None:
            return JudgedChanges({}, [])
        gains = dict(zip(weights, effects.gains, strict=True))
        return JudgedChanges(gains, [basis_note(plan, rows, effects)])
    labels = {frozenset(on): label for label, on in changes.rows.items()}
    all_names = frozenset(changes.names)
    # part -> the cell to compare with, the cells compared, the sign that makes it a gain
    compared = {
        "alone": (frozenset[str](), [frozenset([name]) for name in changes.names], 1.0),
        "among all": (all_names, [all_names - {name} for name in changes.names], -1.0),
    }
    gains, notes = {}, []
    for part in changes.parts:
        base, variants, sign = compared[part]
        rows = [index[labels[on]] for on in (base, *variants)]
        flips = None if right is None else stats.Flips((right[rows],))
        column = stats.column_gains(sign * y[rows], 0, method, unstable[rows], flips)
        if column.tripped:
            notes.append(noisy([column.ratio], by_images=right is not None))
        row_gains = zip(changes.names, column.rows[1:], strict=True)
        gains |= {(name, part): gain for name, gain in row_gains if gain is not None}
    return JudgedChanges(gains, notes)


def effect_weights(changes: Changes) -> dict[tuple[str, str], stats.Floats]:
    """Return the weights of the cells, in the order of `changes.rows`, in what each change gains,
    by (name of the change, part of it)."""
    cells = [frozenset(on) for on in changes.rows.values()]
    if changes.crossed:
        levels = to_array(changes.levels([*changes.rows])).astype(int)
        return {
            (name, MAIN_EFFECT): stats.level_effect(levels, k)
            for k, name in enumerate(changes.names)
        }
    all_names = frozenset(changes.names)
    weights = {}
    for name in changes.names:
        # part -> the cell with the change, and the cell without it
        compared = {
            "alone": (frozenset([name]), frozenset[str]()),
            "among all": (all_names, all_names - {name}),
        }
        for part in changes.parts:
            has_change, has_not = compared[part]
            signs = [float(on == has_change) - float(on == has_not) for on in cells]
            weights[name, part] = to_array(signs)
    return weights


def effects_by_seed(
    plan: Plan, changes: Changes, y: stats.Floats
) -> dict[tuple[str, str], dict[int, float]]:
    """Compute what each change gains with each seed that all cells of the effect have finished, by
    (name of the change, part of it), from y (R, S) of the rows of the plan."""
    import numpy as np

    index = cell_rows(plan, changes)
    weights = effect_weights(changes)
    rows, merged = merge_cells(index, [*weights.values()])
    effects = {}
    for place, row_weights in zip(weights, merged, strict=True):
        used = row_weights != 0
        by_seed = row_weights[used] @ y[rows][used]
        finished = np.flatnonzero(~np.isnan(by_seed))
        effects[place] = {plan.seeds[s]: float(by_seed[s]) for s in finished}
    return effects


def cell_rows(plan: Plan, changes: Changes) -> dict[str, int]:
    """Return the index of the row of each cell, by the cell's label; equal cells have one row."""
    places = {row.label: place for place, row in enumerate(plan.rows)}
    return {label: places[plan.row_names[label]] for label in changes.rows}


def merge_cells(
    index: Mapping[str, int], weights: Sequence[stats.Floats]
) -> tuple[list[int], stats.Floats]:
    """Return the rows of cells, each once, and the weights of these."""
    import numpy as np

    rows = list(dict.fromkeys(index.values()))
    membership = np.array([[place == row for row in rows] for place in index.values()])
    return rows, stats.total(np.array(weights)[:, :, None] * membership, 1)


def basis_note(plan: Plan, rows: Sequence[int], effects: stats.DesignEffects) -> str:
    """Return the note on what the noise of the effects was estimated from."""
    if not effects.by_images:
        return BY_SEEDS
    labels = [plan.rows[rows[cell]].label for cell in effects.noisy]
    return joined_note(
        BY_IMAGES.replace("examples", plan.task.examples),
        f"{', '.join(labels)} varied much more between seeds than other cells, which is added to "
        f"every effect"
        if labels
        else "",
    )


def to_array(weights: Iterable[Any]) -> stats.Floats:
    """Return weights as an array."""
    import numpy as np

    return np.array([*weights])
