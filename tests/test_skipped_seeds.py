"""A seed that the user has skipped in every cell: the table is that of the other seeds, in its rows
and in every block below them."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from support.plans import with_sections
from support.tables import finished, make_plan, tabulate

from ablate.planning.cell import Column, PlannedRun
from ablate.planning.changes import Changes, cell_label, design_cells
from ablate.planning.plan import Plan

PLACES = [*itertools.product(("pre", "post", "pre+post"), repeat=2)]


def skip(plan: Plan, seed: int) -> Plan:
    """Skip a seed in every cell, as `find.without_skipped` does."""
    labels = {PlannedRun("", cell, seed).label: {"status": "planned"} for cell in plan.cells}
    cells = (
        replace(cell, ids={s: run for s, run in cell.ids.items() if s != seed})
        for cell in plan.cells
    )
    return replace(plan, cells=tuple(cells), skipped=labels)


def columns_plan(seeds: int) -> Plan:
    contrasts = {"more": {"across": "optim.lr", "from": 1, "to": 2}}
    plan = make_plan(["base", "a", "b"], ("S", "B"), seeds, contrasts=contrasts, margin=0.5)
    return replace(plan, columns=(Column("S", {"optim.lr": 1}), Column("B", {"optim.lr": 2})))


def changes_plan(seeds: int) -> Plan:
    names = ("p", "q", "r")
    rows = {cell_label(names, on, "factorial"): on for on in design_cells(names, "factorial")}
    plan = make_plan([*rows], ("S", "B"), seeds)
    return replace(plan, changes=Changes(names, "factorial", rows))


def placement_plan(seeds: int) -> Plan:
    plan = make_plan([f"{attn} {mlp}" for attn, mlp in PLACES], ("S", "B"), seeds)
    places = itertools.cycle(PLACES)
    cells = (
        with_sections(cell, block={"name": "vit", "attn": attn, "mlp": mlp, "post": "residual"})
        for cell, (attn, mlp) in zip(plan.cells, places, strict=False)
    )
    return replace(plan, cells=tuple(cells))


def table(plan: Plan):
    """The plan's table; a run's result depends on its row, column and seed alone."""
    results = {}
    rows, columns = [row.label for row in plan.rows], [column.label for column in plan.columns]
    for cell in plan.cells:
        for seed, run in cell.ids.items():
            row = rows.index(cell.row)
            noise = np.random.default_rng([row, columns.index(cell.column), seed]).normal()
            results[run] = finished(0.7 + 0.02 * row + 0.002 * noise)
    return tabulate(plan, results)


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (columns_plan, {"average", "contrast"}),
        (changes_plan, {"change", "pair", "shapley"}),
        (placement_plan, {"average", "placement"}),
    ],
)
def test_blocks_are_those_of_the_other_seeds_with_their_verdicts(make, kinds):
    found, expected = table(skip(make(5), 4)), table(make(4))
    assert {block.kind for block in expected.blocks} == kinds
    assert any(line.verdict for block in expected.blocks for line in block.lines)
    assert found.blocks == expected.blocks


def test_a_seed_skipped_in_one_cell_alone_withholds_its_verdicts():
    plan = columns_plan(5)
    [first, *_] = skip(plan, 4).cells
    uneven = replace(plan, cells=(first, *plan.cells[1:]), skipped={"base@S#4": {}})
    [contrast] = [block for block in table(uneven).blocks if block.kind == "contrast"]
    assert [line.verdict for line in contrast.lines] == [None, None]


def test_n_counts_the_seeds_that_some_cell_has():
    assert skip(columns_plan(5), 4).n == 4
    assert columns_plan(5).n == 5
