"""Draws changes of a design: the effect of each (`changes`), and how pairs go together
(`pairs`)."""

from __future__ import annotations

import itertools
from statistics import fmean

from ablate.analysis import Summary, Table, confidence_level
from ablate.planning import Changes, Plan
from ablate.report.plot.form import BLACK, FigureForm, Nothing, RunDirs, ink_of
from ablate.report.plot.style import Drawing

ACROSS = 3  # panels of pairs in a line
DODGE = 0.16  # of a line: between what is told of a change


def changes(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw a forest: a panel for each column, a line for each change with its parts in turn, with
    simultaneous intervals."""
    plan_changes, blocks = _blocks(plan, table)
    headings = {column.label: column.heading for column in table.columns}
    sheet = Drawing.of_panels(
        *(plan, table, form, "changes"),
        heading=f"{table.metric_of().change} of each change: {table.metric_of().name}",
        titles=[headings[block.name] for block in blocks],
        most_across=2,
        panel=(4.2, 0.8 + 0.35 * len(plan_changes.names)),
        edge=(2.2, 1),
        x=f"{table.metric_of().change}, {table.metric_of().points}",
    )
    alone = len(plan_changes.parts) == 1
    for (axes,), block in zip(sheet.panels, blocks, strict=True):
        axes.axvline(0, color=BLACK, linewidth=0.8)
        for line in block.lines:
            place, gain = plan_changes.parts.index(line.part), line.gain
            ink = ink_of(place, black=alone)
            y = plan_changes.names.index(line.label) + DODGE * (
                2 * place - len(plan_changes.parts) + 1
            )
            if gain.low is not None and gain.high is not None:
                axes.plot([gain.low, gain.high], [y, y], color=ink.colour)
            (point,) = axes.plot([gain.mean], [y], **ink.mark(linestyle="none"))
            interval = table.metric_of().interval(gain.low, gain.high, sign=True)
            number = f"{table.metric_of().text(gain.mean, sign=True)} {interval}".rstrip()
            text = f"{line.full_label}: {number} {line.verdict or ''}".rstrip()
            sheet.tell(point, text, None if alone else line.part)
    sheet.name_lines(plan_changes.names)
    contrasts = " or ".join(str(n) for n in sorted({block.contrasts for block in blocks}))
    sheet.foot(
        f"Bars: {confidence_level(table.gain_alpha)} intervals over training seeds, simultaneous "
        f"over {contrasts} comparisons. {blocks[0].note[0].upper()}{blocks[0].note[1:]}.",
        *table.texts("warning"),
    )
    return sheet


def pairs(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw a panel for each pair of changes, of the first column that has effects: the mean of the
    cells with and without the one, a line for each state of the other. Parallel lines add up."""
    plan_changes, blocks = _blocks(plan, table)
    if not plan_changes.crossed:
        raise Nothing(f"{plan.name}: {plan_changes.design} has no cells of pairs; factorial has")
    label = blocks[0].name
    values = _means(table, plan_changes, label)
    some = list(itertools.combinations(plan_changes.names, 2))
    sheet = Drawing.of_panels(
        *(plan, table, form, "pairs", f"Pairs of changes: {table.metric_of().name}"),
        titles=[""] * len(some),
        most_across=ACROSS,
        panel=(2.6, 2.2),
        edge=(1.2, 1),
    )
    for (axes,), (change, other_change) in zip(sheet.panels, some, strict=True):
        for place, has_other in enumerate((False, True)):
            ys = [
                fmean(
                    y
                    for on, y in values.items()
                    if (change in on) == has_change and (other_change in on) == has_other
                )
                for has_change in (False, True)
            ]
            ink = ink_of(place)
            (line,) = axes.plot([0, 1], ys, color=ink.colour, marker=ink.marker)
            word = f"with {other_change}" if has_other else f"without {other_change}"
            sheet.tell(
                line, f"{word}: {table.metric_of().text(ys[0])} to {table.metric_of().text(ys[1])}"
            )
            axes.annotate(word, (1, ys[1]), (2, 0), textcoords="offset points", fontsize="x-small")
        axes.set_xticks([0, 1], ["without", "with"])
        axes.set_xlim(-0.2, 1.9)
        axes.set_xlabel(change)
        axes.set_ylabel(", ".join(filter(None, (table.metric_of().short, table.metric_of().unit))))
    column = next(column.heading for column in table.columns if column.label == label)
    prefix = f"{column}. " if column else ""
    sheet.foot(f"{prefix}Means of cells over seeds. Parallel lines: the two changes add up.")
    return sheet


def _blocks(plan: Plan, table: Table) -> tuple[Changes, list[Summary]]:
    if plan.changes is None:
        raise Nothing(f"{plan.name}: has variants; `--change` or a file with `changes` has changes")
    blocks = [block for block in table.blocks if block.kind == "change"]
    if not blocks:
        raise Nothing(f"{plan.name}: no effect of a change yet; two seeds of every cell tell one")
    return plan.changes, blocks


def _means(table: Table, plan_changes: Changes, label: str) -> dict[tuple[str, ...], float]:
    """Return the mean over seeds of each cell of a column, as tables print it, by the changes that
    the cell has."""
    column = next(column for column in table.columns if column.label == label)
    means = {e.row: e.accuracy.mean for e in column.entries if e.accuracy is not None}
    return {on: means[row] for row, on in plan_changes.rows.items() if row in means}
