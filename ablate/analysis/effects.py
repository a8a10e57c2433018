"""Computes what the changes of a design do, and the placement grid as a design of two factors.

Both are effects of cells with levels: `stats.design_effects` judges them. What a change gains alone
and among all others are gains over a cell, `none` or `all`, judged as the rows of a column are.

Used by `tabulate.py`, for every table of a sweep of changes or of a placement grid. A new kind of
block also needs its place in the maps of kinds in report/formats/layout.py and tidy.py;
report/plot/changes.py draws two of them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ablate.analysis import stats
from ablate.analysis.across import Arrays, joined_note
from ablate.analysis.change_gains import (
    JudgedChanges,
    basis_note,
    cell_rows,
    effects_by_seed,
    judge_changes,
    merge_cells,
    to_array,
)
from ablate.analysis.judging import Detail, is_wide
from ablate.analysis.scores import Scores
from ablate.analysis.sequential import ColumnCourse
from ablate.analysis.summary import Summary
from ablate.planning import ALL_BUT, MAIN_EFFECT, Cell, Changes, Plan, effect_label
from ablate.shared import amount_text

TOGETHER = ("more than their sum", "less than their sum")
WHOLE_GAIN = "whole gain"  # of all changes, over none
SHARED_OUT = 6  # changes at most of which Shapley values are computed


# --- Changes ------------------------------------------------------------------------------------


def change_effects(
    arrays: Arrays,
    changes: Changes,
    courses: Mapping[str, ColumnCourse],
) -> tuple[Summary, ...]:
    """Compute a block of what each change does, for every column; below a crossed design a block of
    pairs, and below a full one of Shapley values. Columns whose baseline is unstable have none.
    `courses`: of a sweep with looks, which judged the changes."""
    summaries = []
    for c, column in enumerate(arrays.plan.columns):
        if arrays.unstable[c, cell_rows(arrays.plan, changes)[changes.baseline]]:
            continue
        suffix = f", {column.heading}" if column.heading else ""
        course = courses.get(column.label)
        blocks = [_changes_block(arrays, changes, c, course)]
        if changes.crossed and course is None:  # whose looks tell main effects only
            blocks += filter(None, _crossed(arrays, changes, c))
        codes = _codes(arrays.plan, changes, column.label, arrays.evidence.cells)
        blocks = [_with_codes(block, codes) for block in blocks]
        summaries += [
            replace(block, name=column.label, title=f"{block.title}{suffix}") for block in blocks
        ]
    return tuple(block for block in summaries if block.lines)


def _codes(
    plan: Plan, changes: Changes, column: str, cells: Mapping[tuple[str, str], Scores]
) -> dict[str, str]:
    """Say by change of a crossed design which version of the training code alone trained all cells
    with it, or all without it, where others trained the rest: its effect is of both. The whole gain
    is, where different versions trained the cells that it compares."""
    rows = cell_rows(plan, changes)
    levels = changes.levels([*rows]) if changes.crossed else []
    of_cell = [
        {str(result["digest"]) for result in cells[label, column].results if "digest" in result}
        for label in (plan.rows[row].label for row in rows.values())
        if (label, column) in cells
    ]
    digests = set[str]().union(*of_cell)
    if len(digests) < 2 or len(of_cell) != len(levels):
        return {}
    codes = {}
    for k, name in enumerate(changes.names):
        sides = [
            set[str]().union(*(c for c, on in zip(of_cell, levels, strict=True) if on[k] == level))
            for level in (1, 0)
        ]
        phrases = [
            f"{preposition} it code {next(iter(side))} alone"
            for side, preposition in zip(sides, ("with", "without"), strict=True)
            if len(side) == 1
        ]
        if phrases and sides[0] != sides[1]:
            codes[name] = ", ".join(phrases)
    codes_by_levels = dict(zip(map(tuple, levels), of_cell, strict=True))
    codes_of_all, codes_of_none = (
        codes_by_levels.get((level,) * len(changes.names)) for level in (1, 0)
    )
    if codes_of_all and codes_of_none and codes_of_all != codes_of_none:
        texts = [", ".join(sorted(versions)) for versions in (codes_of_all, codes_of_none)]
        codes[WHOLE_GAIN] = f"with all code {texts[0]}, without any code {texts[1]}"
    return codes


def _with_codes(block: Summary, codes: Mapping[str, str]) -> Summary:
    """Return the block, with the code of its change on each line, or the codes of its pair."""
    lines = []
    for line in block.lines:
        names = [name for name in codes if name in re.split(" x | or ", line.label)]
        if block.kind != "pair":
            names = [name for name in names if name == line.label]
        phrases = (
            codes[n] if len(names) == 1 and n == line.label else f"{n}: {codes[n]}" for n in names
        )
        lines.append(replace(line, code="; ".join(phrases)))
    return replace(block, lines=tuple(lines))


MEANINGS = {
    "alone": "alone: the gain of the change over none",
    "among all": f"among all: the gain of all changes over {ALL_BUT}it",
    MAIN_EFFECT: "main effect: the mean of cells with the change minus the mean of cells without",
}


def gain_sign(plan: Plan) -> str:
    """Return the end of the words for a difference: its sign where less is better, "" elsewhere."""
    return ", with the sign of a gain: above 0 is better" if plan.metric.sign < 0 else ""


def _changes_block(
    arrays: Arrays, changes: Changes, c: int, course: ColumnCourse | None
) -> Summary:
    """Return the block of the changes' effects in the column of index c; with a `course`, the
    effects are those that its looks judged."""
    index, column = cell_rows(arrays.plan, changes), arrays.plan.columns[c].label
    method = arrays.method(changes.contrasts, len(arrays.plan.columns))
    if course is not None:
        gains = {place: row.gain for place, row in course.changes.items()}
        judged_changes = JudgedChanges(gains, [])
        by_images = arrays.plan.spread == "images" and not course.lacking
    else:
        right = arrays.images([c])
        by_images = right is not None
        judged_changes = judge_changes(
            arrays.plan,
            changes,
            arrays.y[c],
            method,
            arrays.unstable[c],
            right[0] if right else None,
        )
    is_complete = not arrays.omitted[c][[*index.values()]].any()
    seeds = effects_by_seed(arrays.plan, changes, arrays.y[c])
    lines = []
    for (name, part), gain in judged_changes.gains.items():
        line = arrays.line(
            name,
            column,
            gain,
            judgeable=is_complete,
            part=part,
            by_seed=seeds[name, part],
        )
        lines.append(line)
    lines.sort(key=lambda line: changes.names.index(line.label))
    if course is not None:
        verdicts = {
            place: row.verdict for place, row in course.changes.items() if arrays.looks_judge
        }
        lines = [replace(line, verdict=verdicts.get((line.label, line.part))) for line in lines]
    stops: dict[str, list[str]] = {}
    for place, row in course.changes.items() if course is not None else ():
        if row.unlikely is not None:
            stops.setdefault(f"stopped {row.stop}", []).append(effect_label(*place))
    stopped = [f"{', '.join(labels)} {stop}" for stop, labels in stops.items()]
    meanings = [
        MEANINGS[part] + gain_sign(arrays.plan) * (part == MAIN_EFFECT) for part in changes.parts
    ]
    by_label = {effect_label(*place): gain for place, gain in judged_changes.gains.items()}
    return Summary(
        kind="change",
        name="",
        title="What each change does",
        note=joined_note(
            *dict.fromkeys(
                [*meanings, *stopped, hidden_intervals(arrays.plan, by_label, arrays.detail)]
            )
        ),
        contrasts=method.contrasts,
        lines=tuple(lines),
        basis=joined_note(
            *dict.fromkeys([*judged_changes.notes, own_reasons(arrays.plan, by_label, by_images)])
        ),
    )


def _crossed(arrays: Arrays, changes: Changes, c: int) -> Iterator[Summary | None]:
    """Yield interactions and, of a full factorial, Shapley values."""
    names, levels = changes.names, to_array(changes.levels([*changes.rows])).astype(int)
    index, family = cell_rows(arrays.plan, changes), len(arrays.plan.columns)

    def block(
        heading: Heading, weights: Mapping[str, stats.Floats], **options: Any
    ) -> Summary | None:
        rows, merged = merge_cells(index, [*weights.values()])
        merged_weights = dict(zip(weights, merged, strict=True))
        return _effects(arrays, c, rows, merged_weights, heading, family, **options)

    pairs = {
        " or ".join(f"{names[a]} x {names[b]}" for a, b in alike): stats.pair_effect(
            levels, *alike[0]
        )
        for alike in changes.aliases()
    }
    meaning = "what two changes do together, beyond the sum of what each does"
    heading = Heading("pair", "", "Pairs of changes", meaning)
    yield block(heading, pairs, margin=False, words=TOGETHER)
    if changes.design == "factorial" and len(names) <= SHARED_OUT:
        shares = {name: stats.shapley(levels, k) for k, name in enumerate(names)}
        whole_gain = {WHOLE_GAIN: stats.total(to_array(shares.values()), 0)}
        meaning = (
            "what each change adds, averaged over the orders of adding them (Shapley's value); "
            "they sum to the whole gain, that of all changes over none"
        )
        title = "Shares of the whole gain"
        caution = (
            "shares rest mostly on the cells with none and with all changes, so their intervals "
            "may be much wider than those of main effects"
        )
        heading = Heading("shapley", "", title, meaning, caution)
        yield block(heading, shares | whole_gain, has_verdict=lambda _: False)


class Heading(NamedTuple):
    """The heading of a block of effects. `meaning`: what the effects are, in words; `caution`: what
    full notes say of their intervals."""

    kind: str
    name: str
    title: str
    meaning: str
    caution: str = ""


def _effects(
    arrays: Arrays,
    column: int,
    rows: Sequence[int],
    weights: Mapping[str, stats.Floats],
    heading: Heading,
    family: int = 1,
    has_verdict: Callable[[str], bool] = lambda _: True,
    **line_options: Any,
) -> Summary | None:
    """Compute a block of the contrasts with these weights of cells, which lie in these rows; None
    where no seeds determine them. `has_verdict`: which of them have verdicts; `line_options`: see
    `Arrays.line`."""
    plan, right = arrays.plan, arrays.images([column])
    method = arrays.method(len(weights), family)
    effects = stats.design_effects(
        arrays.y[column][rows],
        to_array(weights.values()),
        method,
        arrays.unstable[column][rows],
        right[0][rows] if right else None,
    )
    if effects is None:
        return None
    is_complete = not arrays.omitted[column][rows].any()
    column_label = plan.columns[column].label
    lines = (
        arrays.line(
            label,
            column_label,
            effect,
            judgeable=is_complete and has_verdict(label),
            **line_options,
        )
        for label, effect in zip(weights, effects.gains, strict=True)
    )
    gains = dict(zip(weights, effects.gains, strict=True))
    return Summary(
        kind=heading.kind,
        name=heading.name,
        title=heading.title,
        note=joined_note(heading.meaning, hidden_intervals(plan, gains, arrays.detail)),
        contrasts=method.contrasts,
        lines=tuple(lines),
        basis=joined_note(
            heading.caution,
            basis_note(plan, rows, effects),
            own_reasons(plan, gains, effects.by_images),
        ),
    )


def own_reasons(plan: Plan, gains: Mapping[str, stats.RowGain], by_images: bool) -> str:
    """Name the effects that are judged by their own spread, and why. `by_images`: whether images
    tell what spread is usual, and not the other rows alone."""
    beyond = [
        f"{label} ({gain.ratio:.1f} times)" if gain.ratio is not None else label
        for label, gain in gains.items()
        if gain.own_reason in ("spread", "outlier")
    ]
    vague = [label for label, gain in gains.items() if gain.own_reason == "vague"]
    examples = plan.task.examples
    kind = "a paired t" if plan.design.blocks else "Welch's t"
    usual = f"{examples} suggest" if by_images else "the other rows have"
    reasons = []
    if beyond:
        reasons.append(
            f"judged by {kind} of its own, for more spread over {plan.repeats} than {usual}: "
            f"{', '.join(beyond)}"
        )
    if vague:
        reasons.append(
            f"judged by a paired t of its own, since seeds say more than {examples}: "
            f"{', '.join(vague)}"
        )
    return joined_note(*reasons)


def hidden_intervals(plan: Plan, gains: Mapping[str, stats.RowGain], detail: Detail) -> str:
    """Name the effects whose interval is too wide to be shown; "" where there is none, or where
    `detail` has no interval."""
    wide = [label for label, gain in gains.items() if is_wide(gain.gain, plan.metric)]
    if not wide or detail < Detail.INTERVALS:
        return ""
    most = plan.metric.most
    limit = amount_text(f"{most:g}", plan.metric.points) if most is not None else ""
    return f"-: the interval of {', '.join(wide)} is wider than {limit}"


# --- The placement grid -------------------------------------------------------------------------

PLACEMENTS = ("pre", "post", "pre+post")
READINGS = {"residual": "LN after the addition", "branch": "LN on the branch"}


def placement_effects(arrays: Arrays) -> tuple[Summary, ...]:
    """Compute a block for every column and value of `block.post` with rows of all nine placements:
    effects against pre, and of attention x MLP beyond their sum, nine cells' eight effects."""
    plan, summaries, weights = arrays.plan, [], _placement_weights()
    for c, column in enumerate(plan.columns):
        cells = [cell for cell in plan.cells if cell.column == column.label]
        for reading, words in READINGS.items() if not arrays.unstable[c, arrays.baseline] else ():
            for labels in _grids(cells, reading):
                rows = [arrays.row(label) for label in labels]
                if arrays.unstable[c, rows[0]]:
                    continue
                base_words = "" if labels[0] == plan.baseline else f" over {labels[0]}"
                suffix = f", {column.label}" if column.label else ""
                block = _effects(
                    arrays,
                    c,
                    rows,
                    weights,
                    Heading(
                        "placement",
                        reading + base_words,
                        f"Placement, {words}{base_words}{suffix}",
                        "effects against pre, averaged over the placements of the other part; "
                        "x: the effect of both beyond their sum",
                    ),
                    has_verdict=lambda label: " x " not in label,
                    margin=False,
                )
                summaries += [block] if block is not None else []
    return tuple(summaries)


def _placement_weights() -> dict[str, stats.Floats]:
    """Return the effects of nine placements as weights of the cells, by name."""
    import numpy as np

    levels = np.array([*itertools.product(range(3), repeat=2)])
    weights = {
        f"{name} {PLACEMENTS[level]}": stats.level_effect(levels, factor, level)
        for factor, name in enumerate(("attention", "MLP"))
        for level in (1, 2)
    }
    return weights | {
        f"attention {PLACEMENTS[i]} x MLP {PLACEMENTS[j]}": stats.pair_effect(levels, 0, 1, i, j)
        for i in (1, 2)
        for j in (1, 2)
    }


def _grids(cells: Sequence[Cell], reading: str) -> Iterable[tuple[str, ...]]:
    """Yield the nine labels, attention x MLP, of rows that differ in their placement alone."""
    if len(cells) < len(PLACEMENTS) ** 2:
        return
    groups: dict[str, dict[tuple[str, str], str]] = {}
    for cell in cells:
        block = cell.spec.tree.get("block", {})
        place = (block.get("attn"), block.get("mlp"))
        if block.get("name") != "vit" or (place != ("pre", "pre") and block["post"] != reading):
            continue
        placing = {k: v for k, v in block.items() if k not in ("attn", "mlp", "post")}
        rest = repr({**cell.spec.tree, "block": placing})
        groups.setdefault(rest, {}).setdefault(place, cell.row)
    for group in groups.values():
        places = [(a, m) for a in PLACEMENTS for m in PLACEMENTS]
        if all(place in group for place in places):
            yield tuple(group[place] for place in places)
