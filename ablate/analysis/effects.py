"""Computes what the changes of a design do, and the placement grid as a design of two factors.

Both are effects of cells with levels: `stats.design_effects` judges them. What a change gains alone
and among all others are gains over a cell, `none` or `all`, judged as the rows of a column are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ablate.analysis import stats
from ablate.analysis.across import Arrays, Summary, SummaryLine, joined_note, noisy
from ablate.planning.cell import Cell
from ablate.planning.changes import BUT, MAIN_EFFECT, Changes
from ablate.planning.plan import Plan

if TYPE_CHECKING:  # numpy, which `--help` does without
    from ablate.analysis.course import ColumnCourse

BY_IMAGES = "by which examples flip between seeds"
BY_SEEDS = "each effect by its own spread over seeds"
TOGETHER = ("more than their sum", "less than their sum")
SHARED_OUT = 6  # changes of which Shapley values are told, at most


# --- Changes ------------------------------------------------------------------------------------


def change_effects(
    arrays: Arrays, changes: Changes, courses: Mapping[str, ColumnCourse]
) -> tuple[Summary, ...]:
    """Compute a block of what each change does, for every column; below a crossed design a block of
    pairs, and below a full one of Shapley values. Columns whose baseline is unstable have none.
    `courses`: of a sweep with looks, which judged the changes."""
    found = []
    for c, column in enumerate(arrays.plan.columns):
        if arrays.unstable[c, cell_rows(arrays.plan, changes)[changes.baseline]]:
            continue
        at = f", {column.heading}" if column.heading else ""
        found += [
            replace(block, name=column.label, title=f"{block.title}{at}")
            for block in _Cells(arrays, changes, c, courses.get(column.label)).blocks()
        ]
    return tuple(block for block in found if block.lines)


class JudgedChanges(NamedTuple):
    """What each change does, by its name and what is told of it; seeds without which there are no
    verdicts; and notes on how it was judged."""

    gains: dict[tuple[str, str], stats.RowGain]
    fewest: int
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
        levels = _array(changes.levels([*index])).astype(int)
        weights = [stats.level_effect(levels, k) for k in range(len(changes.names))]
        rows, merged = _merged(index, weights)
        found = stats.design_effects(
            y[rows], merged, method, unstable[rows], None if right is None else right[rows]
        )
        if found is None:
            return JudgedChanges({}, stats.FEWEST_SEEDS, [])
        places = [(name, MAIN_EFFECT) for name in changes.names]
        gains = dict(zip(places, found.gains, strict=True))
        return JudgedChanges(gains, found.fewest, [_how(plan, rows, found)])
    labels = {frozenset(on): label for label, on in changes.rows.items()}
    every = frozenset(changes.names)
    compared = {
        "alone": (frozenset[str](), [frozenset([name]) for name in changes.names], 1.0),
        "among all": (every, [every - {name} for name in changes.names], -1.0),
    }
    gains, notes = {}, []
    for part in changes.parts:
        base, others, sign = compared[part]
        rows = [index[labels[on]] for on in (base, *others)]
        flips = None if right is None else stats.Flips((right[rows],))
        column = stats.column_gains(sign * y[rows], 0, method, unstable[rows], flips)
        notes += [noisy([column.ratio])] * column.tripped
        told = zip(changes.names, column.rows[1:], strict=True)
        gains |= {(name, part): gain for name, gain in told if gain is not None}
    return JudgedChanges(gains, stats.FEWEST_SEEDS, notes)


def cell_rows(plan: Plan, changes: Changes) -> dict[str, int]:
    """The row of each cell, by its label; equal cells have one row."""
    places = {label: r for r, row in enumerate(plan.rows) for label in (row.label, *row.aliases)}
    return {label: places[label] for label in changes.rows}


def _merged(
    index: Mapping[str, int], weights: Sequence[stats.Floats]
) -> tuple[list[int], stats.Floats]:
    """The rows of cells, each once, and the weights of these."""
    import numpy as np

    rows = list(dict.fromkeys(index.values()))
    same = np.array([[place == row for row in rows] for place in index.values()])
    return rows, np.array(weights) @ same


MEANINGS = {
    "alone": "alone: over none",
    "among all": f"among all: all, over {BUT}it",
    MAIN_EFFECT: "main effect: the mean of the cells with the change, minus that of those without",
}


class _Cells:
    """The cells of a design in a column."""

    def __init__(
        self, arrays: Arrays, changes: Changes, column: int, course: ColumnCourse | None
    ) -> None:
        self._arrays, self._changes, self._column = arrays, changes, column
        self._course = course
        self._index = cell_rows(arrays.plan, changes)
        self._family = len(arrays.plan.columns)

    def blocks(self) -> Iterator[Summary]:
        """Yield what each change does; below a crossed design, whose looks tell main effects only,
        pairs and Shapley values."""
        yield self._changes_block()
        if self._changes.crossed and self._course is None:
            yield from self._crossed()

    def _changes_block(self) -> Summary:
        arrays, changes, c = self._arrays, self._changes, self._column
        words = {part: MEANINGS[part] for part in changes.parts}
        if self._course is not None:
            gains = {place: row.gain for place, row in self._course.changes.items()}
            found = JudgedChanges(gains, 0, [])
        else:
            right = arrays.images([c])
            found = judge_changes(
                arrays.plan,
                changes,
                arrays.y[c],
                arrays.method(changes.contrasts, self._family),
                arrays.unstable[c],
                right[0] if right else None,
            )
        partial = bool(arrays.omitted[c][[*self._index.values()]].any())
        lines = [
            arrays.line(
                name,
                arrays.plan.columns[c].label,
                gain,
                given=not partial,
                fewest=found.fewest,
                part=part,
            )
            for (name, part), gain in found.gains.items()
        ]
        lines.sort(key=lambda line: changes.names.index(line.label))
        if self._course is not None:
            looked = self._course.changes
            lines = [
                replace(
                    line,
                    verdict=looked[line.label, line.part].verdict if arrays.looks_judge else None,
                )
                for line in lines
            ]
        return self._summary(
            "change", "What each change does", [*words.values(), *found.notes], lines
        )

    def _crossed(self) -> Iterator[Summary]:
        """Yield interactions and, of a full factorial, Shapley values."""
        import numpy as np

        changes, names = self._changes, self._changes.names
        levels = np.array(changes.levels([*changes.rows]))
        pairs = {
            " or ".join(f"{names[a]} x {names[b]}" for a, b in pairs): stats.pair_effect(
                levels, *pairs[0]
            )
            for pairs in changes.aliases()
        }
        yield from self._effects(
            "pair",
            "Pairs of changes",
            "what two changes do together beyond the sum of what each does",
            pairs,
            words=TOGETHER,
        )
        if changes.design == "factorial" and len(names) <= SHARED_OUT:
            shares = {name: stats.shapley(levels, k) for k, name in enumerate(names)}
            yield from self._effects(
                "shapley",
                "Shares of the whole gain",
                "Shapley values: what a change adds, averaged over the orders in which all may be "
                "added; they sum to the whole gain, all over none",
                {**shares, "whole gain": np.sum([*shares.values()], axis=0)},
                told=False,
            )

    def _effects(
        self,
        kind: str,
        title: str,
        meaning: str,
        weights: dict[str, stats.Floats],
        words: tuple[str, str] | None = None,
        told: bool = True,
    ) -> Iterator[Summary]:
        """Yield a block of the contrasts with these weights of cells. `told`: with verdicts."""
        arrays, c = self._arrays, self._column
        rows, merged = _merged(self._index, [*weights.values()])
        found = _judge(arrays, c, rows, merged, self._family)
        if found is None:
            return
        partial = bool(arrays.omitted[c][rows].any())
        lines = [
            arrays.line(
                label,
                arrays.plan.columns[c].label,
                effect,
                given=told and not partial,
                margin=words is None,
                words=words,
                fewest=found.fewest,
            )
            for label, effect in zip(weights, found.gains, strict=True)
        ]
        yield self._summary(kind, title, [meaning, _how(arrays.plan, rows, found)], lines)

    def _summary(
        self, kind: str, title: str, notes: Sequence[str], lines: Sequence[SummaryLine]
    ) -> Summary:
        count = self._changes.contrasts if kind == "change" else len(lines)
        contrasts = self._arrays.method(count, self._family).contrasts
        return Summary(kind, "", title, joined_note(*dict.fromkeys(notes)), contrasts, tuple(lines))


def _judge(
    arrays: Arrays, column: int, rows: Sequence[int], weights: stats.Floats, family: int = 1
) -> stats.DesignEffects | None:
    right = arrays.images([column])
    return stats.design_effects(
        arrays.y[column][rows],
        weights,
        arrays.method(len(weights), family),
        arrays.unstable[column][rows],
        right[0][rows] if right else None,
    )


def _how(plan: Plan, rows: Sequence[int], found: stats.DesignEffects) -> str:
    """Say by what the effects are judged."""
    if not found.by_images:
        return BY_SEEDS
    labels = [plan.rows[rows[cell]].label for cell in found.noisy]
    return joined_note(
        BY_IMAGES.replace("examples", plan.task.examples),
        f"the spread of {', '.join(labels)} is out of line, and counts whole" if labels else "",
    )


# --- The placement grid -------------------------------------------------------------------------

PLACEMENTS = ("pre", "post", "pre+post")
READINGS = {"residual": "LN after the addition", "branch": "LN on the branch"}


def placement_effects(arrays: Arrays) -> tuple[Summary, ...]:
    """Compute a block for every column and value of `block.post` with rows of all nine placements:
    effects against pre, and of attention x MLP beyond their sum, nine cells' eight effects."""
    plan, found = arrays.plan, []
    by_column: dict[str, list[Cell]] = {}
    for cell in plan.cells:
        by_column.setdefault(cell.column, []).append(cell)
    weights = _placement_weights()
    for c, column in enumerate(plan.columns):
        if arrays.unstable[c, arrays.baseline]:
            continue
        for reading, words in READINGS.items():
            for labels in _grids(by_column.get(column.label, []), reading):
                rows = [arrays.row(label) for label in labels]
                if arrays.unstable[c, rows[0]]:
                    continue
                effects = _judge(arrays, c, rows, _array(weights.values()))
                if effects is None:
                    continue
                partial = bool(arrays.omitted[c][rows].any())
                over = "" if labels[0] == plan.baseline else f" over {labels[0]}"
                title = f"Placement, {words}{over}"
                found.append(
                    Summary(
                        kind="placement",
                        name=reading + over,
                        title=f"{title}, {column.label}" if column.label else title,
                        note=joined_note(
                            "effects against pre, averaged over the other's placements; "
                            "x: the effect beyond their sum",
                            _how(plan, rows, effects),
                        ),
                        contrasts=arrays.method(len(weights)).contrasts,
                        lines=tuple(
                            arrays.line(
                                label,
                                column.label,
                                effect,
                                given=" x " not in label and not partial,
                                margin=False,
                            )
                            for label, effect in zip(weights, effects.gains, strict=True)
                        ),
                    )
                )
    return tuple(found)


def _placement_weights() -> dict[str, stats.Floats]:
    """The effects of nine placements as weights of the cells, by name."""
    import numpy as np

    levels = np.array([*itertools.product(range(3), repeat=2)])
    found = {
        f"{name} {PLACEMENTS[level]}": stats.level_effect(levels, factor, level)
        for factor, name in enumerate(("attention", "MLP"))
        for level in (1, 2)
    }
    return found | {
        f"attention {PLACEMENTS[i]} x MLP {PLACEMENTS[j]}": stats.pair_effect(levels, 0, 1, i, j)
        for i in (1, 2)
        for j in (1, 2)
    }


def _array(weights: Iterable[Any]) -> stats.Floats:
    import numpy as np

    return np.array([*weights])


def _grids(cells: Sequence[Cell], reading: str) -> Iterable[tuple[str, ...]]:
    """Yield the nine labels, attention x MLP, of rows that differ in their placement alone."""
    if len(cells) < len(PLACEMENTS) ** 2:
        return
    groups: dict[str, dict[tuple[str, str], str]] = {}
    for cell in cells:
        block = cell.spec.get("block", {})
        place = (block.get("attn"), block.get("mlp"))
        if block.get("name") != "vit" or (place != ("pre", "pre") and block["post"] != reading):
            continue
        placing = {k: v for k, v in block.items() if k not in ("attn", "mlp", "post")}
        rest = repr({**cell.spec, "block": placing})
        groups.setdefault(rest, {}).setdefault(place, cell.row)
    for group in groups.values():
        places = [(a, m) for a in PLACEMENTS for m in PLACEMENTS]
        if all(place in group for place in places):
            yield tuple(group[place] for place in places)
