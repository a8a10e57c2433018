"""Which looks bear upon a table, by the runs that they counted: constructed ledgers against the
definition, which is written here a second time, without an index."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
import time

import pytest
from support.looks import contrasts, planned, reading, spec

from ablate.analysis.captions import _changed
from ablate.planning import Analysis
from ablate.planning.cell import Column, Row
from ablate.planning.design import Looks
from ablate.planning.plan import Plan
from ablate.store import looks
from ablate.store.look_differences import look_changes
from ablate.store.looks import InterimLook, PastLooks, ReadColumn, ReadRow


def every(now: InterimLook, *before: InterimLook) -> tuple[int, ...]:
    return PastLooks(before, now).counts("").numbers


def test_a_note_names_what_the_first_look_showed():
    """Two seeds have intervals and no verdicts."""
    for n, what in ((2, "intervals"), (3, "verdicts")):
        (note,) = _changed(PastLooks([reading("bxy", n)], reading("bx", 3)))
        assert note.key == "looks.changed"
        assert (note.values["subject"], note.values["sweep"], note.values["n"]) == (what, "", n)


# --- How many contrasts -------------------------------------------------------------------------


def test_a_crossed_design_is_read_as_its_main_effects_and_not_as_its_cells():
    """Two effects of the cells b, x, y, z, and the two variants of a table that shares its runs."""
    factorial = reading("bxyz", 2, "design", analysis={"changes": ["one", "two"]})
    assert contrasts(factorial) == 2
    assert contrasts(reading("bxq", 5), factorial) == contrasts(factorial, reading("bxq", 5)) == 4
    assert contrasts(factorial, factorial) == 2
    assert PastLooks([factorial], reading("bxq", 5)).read_over_baselines() == 4
    assert PastLooks([], factorial).read_over_baselines() == 0


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        ("bx", [], 1),
        ("bx", ["bxyz"], 3),  # the best row alone
        ("bxyz", ["bx"], 3),
        ("bx", ["bx", "bx"], 1),  # read again
        ("bxw", ["bxyz"], 4),
        ("bx", ["by", "bz"], 1),  # the baseline alone is shared
        ("bx", ["bxy", "byz", "bzw"], 4),  # x with y, y with z, z with w
        ("bx", ["byz", "bzw"], 1),
        ("cx", ["bx"], 1),  # over another baseline
        ("xb", ["bx"], 2),  # x is judged against: b and x are both read
        ("xy", ["bxy", "bz"], 2),
    ],
)
def test_contrasts_are_the_variants_that_were_read_with_these_runs(now, before, expected):
    assert contrasts(reading(now, 3), *(reading(rows, 3) for rows in before)) == expected


def test_a_peek_counts_the_variants_of_which_something_was_seen():
    peek = reading("bxyz", 0, planned=3)
    rows = dict(peek.columns[""].rows) | {"z": ReadRow("spec z", {})}
    unseen = dataclasses.replace(peek, columns={"": ReadColumn(0, 0, {}, rows)})
    assert contrasts(reading("bx", 3), peek) == 3
    assert contrasts(reading("bx", 3), unseen) == 2


def test_the_sweeps_of_the_variants_that_a_table_lacks_are_named():
    past = PastLooks([reading("bx", 3, "a"), reading("bxy", 3, "g")], reading("bx", 3, "best"))
    assert past.other_sweeps("") == ["g"]


# --- At which numbers of seeds ------------------------------------------------------------------


TWICE, UNTIL = {"looks": [3, 5]}, {"until": [5, 8]}


@pytest.mark.parametrize(
    ("first", "n", "second", "more", "declared"),
    [
        *((TWICE, 3, TWICE, 5, True), (TWICE, 4, TWICE, 5, False)),
        *((UNTIL, 5, UNTIL, 8, True), (UNTIL, 8, {"until": [5, 9]}, 9, False)),
    ],
)
def test_looks_are_declared_in_the_analysis_of_all(first, n, second, more, declared):
    before = reading("bx", n, "u", analysis=first)
    past = PastLooks([before], reading("bx", more, "u", analysis=second))
    assert past.counts("").are_declared is declared


def test_a_fixed_table_of_the_runs_of_looks_is_not_declared():
    before = [reading("bx", n, "u", analysis=UNTIL) for n in (5, 8)]
    found = PastLooks(before, reading("bx", 8, "fixed")).counts("")
    assert (found.numbers, found.are_declared, found.verdicts) == ((5, 8), False, {5: ["u"]})


def test_a_peek_counts_where_seeds_or_rows_are_not_as_planned():
    peeks = [reading("bxy", n, planned=5) for n in (2, 3, 4)]
    assert every(reading("bxy", 5), *peeks) == (5,)  # as planned
    assert every(reading("bxy", 4), *peeks) == (2, 3, 4)  # stopped
    assert every(reading("bx", 5), *peeks) == (2, 3, 4, 5)  # a row was left away
    assert every(reading("bxyz", 5), *peeks) == (2, 3, 4, 5)
    found = PastLooks([*peeks, reading("bxy", 3, "h")], reading("bxy", 4)).counts("")
    assert (found.means, found.verdicts) == ({2: ["g"], 3: ["g"]}, {3: ["h"]})


def test_a_peek_at_a_sweep_with_looks_is_as_planned_until_it_is_another():
    peek = dataclasses.replace(reading("bx", 4, planned=5, analysis=UNTIL), planned=(5, 8))
    assert every(reading("bx", 8, analysis=UNTIL), peek) == ()
    assert every(reading("bx", 5), peek) == (5,)
    assert every(reading("bx", 6), peek) == (4, 6)


# --- The baseline's runs alone ------------------------------------------------------------------


def test_sweeps_over_one_baseline_are_counted_and_stay_families():
    before = [reading(f"b{row}", 3, f"only {row}") for row in "stuvwxyz"]
    past = PastLooks(before, reading("bq", 3, "only q"))
    assert past.contrasts("") == 1
    assert past.count_over_baseline("") == (9, [look.sweep for look in before])
    assert past.read_over_baselines() == 9
    alone = PastLooks([reading("bqr", 3)], reading("bq", 3))
    assert (alone.count_over_baseline(""), alone.read_over_baselines()) == ((2, []), 2)


def test_a_row_that_is_a_baseline_elsewhere_is_no_family_over_this_one():
    past = PastLooks([reading("yb", 3)], reading("bx", 3))  # b was a variant there
    assert past.count_over_baseline("") == (1, [])


def test_peeks_and_other_metrics_are_no_families():
    before = [reading("by", 2, planned=3), reading("bz", 3, metric="loss")]
    assert PastLooks(before, reading("bx", 3)).count_over_baseline("") == (1, [])


# --- What has changed ---------------------------------------------------------------------------


def test_the_first_look_at_these_runs_is_found_whatever_its_metric_or_name():
    first = reading("bx", 3, "a", metric="loss")
    before = [reading("by", 3, "z"), reading("bx", 2, "p", planned=3), first, reading("bx", 3)]
    past = PastLooks(before, reading("bx", 3, "now"))
    assert past.first_look() is first
    assert look_changes(first, past.present).lines == ["metric: loss -> top1"]


@pytest.mark.parametrize(
    ("first", "now", "expected"),
    [
        (reading("bx", 3), reading("bx", (1, 2, 3)), ["seeds: +3, -0"]),
        (reading("bx", 4), reading("bx", (1, 2, 3)), []),
        (reading("bx", (1, 2)), reading("bx", (1, 2, 3)), []),
        (reading("bxy", 3), reading("xby", 3), ["baseline: b -> x"]),
        (
            reading("bx", 3, analysis={"margin": 0.3}),
            reading("bx", 3),
            ["analysis.margin: 0.3 -> none"],
        ),
        (reading("bx", 3), reading("bx", 3, analysis={"until": [5, 8]}), ["until: none -> [5, 8]"]),
    ],
)
def test_what_was_changed_since_a_look(first, now, expected):
    assert look_changes(first, now).lines == expected


# --- Against the definition ---------------------------------------------------------------------


def defined(now: InterimLook, before: list[InterimLook]) -> tuple[int, set[int]]:
    """K* and n read, of looks of one column, as the definition words them."""

    def runs(rows) -> set[str]:
        return {run for row in rows for run in row.runs.values()}

    mine = now.columns[""]
    family, reach = [], runs(now.variants(mine))
    while True:
        more = [
            look
            for look in before
            if not any(look is one for one in family)
            and look.metric == now.metric
            and runs(look.columns[""].rows.values()) & reach
        ]
        if not more:
            break
        family += more
        reach |= {run for look in more for run in runs(look.variants(look.columns[""]))}
    variants = {row.spec for row in now.variants(mine)}
    counts = {mine.n}
    rows = {row.spec for row in mine.rows.values()}
    for look in family:
        read = look.columns[""]
        variants |= {row.spec for row in look.variants(read) if row.runs}
        as_planned = mine.n in look.planned and {r.spec for r in read.rows.values()} == rows
        if not (look.planned and as_planned):
            counts.add(read.n)
    return len(variants), {n for n in counts if n > 1}


def test_a_thousand_random_ledgers_give_what_the_definition_gives():
    rng = random.Random(29)

    def any_look() -> InterimLook:
        rows = "".join(rng.sample("abcdefgh", rng.randint(2, 4)))
        first, n = rng.randint(0, 2), rng.randint(1, 4)
        peek = rng.random() < 0.3
        seeds = n if peek else tuple(range(first, first + n))
        metric, sweep = rng.choice(("top1", "top1", "loss")), rng.choice("stuv")
        return reading(rows, seeds, sweep, n + rng.randint(1, 2) if peek else 0, metric=metric)

    grown = 0
    for _ in range(1000):
        before = [any_look() for _ in range(rng.randint(0, 6))]
        now = reading("".join(rng.sample("abcdefgh", rng.randint(2, 4))), rng.randint(2, 4))
        past = PastLooks(before, now)
        found = past.contrasts(""), set(past.counts("").numbers)
        assert found == defined(now, before)
        grown += found[0] > len(now.variants(now.columns[""]))
        again = PastLooks(past.related(), now)  # what a bundle carries is enough
        told = (
            [p.contrasts(""), p.counts(""), p.count_over_baseline(""), p.first_look()]
            for p in (past, again)
        )
        assert next(told) == next(told)
    assert grown > 100


# --- Kept ---------------------------------------------------------------------------------------


def done(*runs: str) -> dict[str, dict]:
    """Results of these runs, and of no other."""
    return {run: {"status": "finished"} for run in runs}


def test_a_look_is_what_the_ledger_gives_back():
    plan = planned(columns=("S", "Ti"))
    for one in (
        looks.look(plan),
        looks.peek(plan, done("xS0", "bS0")),
        looks.until_look(
            dataclasses.replace(plan, design=Looks((2, 3))), "S", 2, {"x": "helps"}, 7
        ),
    ):
        event = json.loads(json.dumps(one.event()))
        assert event == one.event()
        assert looks.is_look(event)
        assert looks.parse_events([event]) == [one]
        assert looks.parse_events([event], "other") == []


def test_a_look_has_the_runs_of_each_row_the_baseline_first():
    plan = planned(rows=("x", "b"), seeds=2)
    plan = dataclasses.replace(plan, baseline="b")
    [read] = looks.look(plan).columns.values()
    assert {row: dict(found.runs) for row, found in read.rows.items()} == {
        "b": {0: "b0", 1: "b1"},
        "x": {0: "x0", 1: "x1"},
    }
    assert (read.n, read.contrasts) == (2, 1)
    assert list(read.rows) == ["b", "x"]


def test_a_column_without_a_baseline_or_a_variant_has_no_gains():
    plan = planned(columns=("S", "Ti", "B"))
    kept = [c for c in plan.cells if (c.row, c.column) != ("b", "Ti")]
    kept = [c for c in kept if c.column != "B" or c.row == "b"]
    assert list(looks.look(dataclasses.replace(plan, cells=tuple(kept))).columns) == ["S"]


def test_a_peek_has_the_seeds_that_all_rows_have_and_the_runs_of_rows_that_were_seen():
    ended = {"b0", "b1", "x0", "x1", "x2", "y1"}
    peek = looks.peek(planned(), done(*ended))
    [read] = peek.columns.values()
    assert (read.n, peek.planned) == (1, (3,))
    assert [len(row.runs) for row in read.rows.values()] == [3, 3, 3]
    [read] = looks.peek(planned(), done("b0", "x0")).columns.values()
    assert (read.n, [len(row.runs) for row in read.rows.values()]) == (0, [3, 3, 0])
    assert looks.peek(planned(), done(*ended)) == looks.peek(planned(), done(*ended, "b2"))


LOOK = looks.look(planned()).event()
ROWS = {"n": 3, "rows": {"b": {"spec": "b"}}}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (LOOK, True),
        ({**LOOK, "planned": [3, 5]}, True),
        ({**LOOK, "planned": ["3"]}, False),
        ({**LOOK, "planned": 3}, False),
        ({**LOOK, "sweep": 1}, False),
        ({**LOOK, "analysis": []}, False),
        ({key: value for key, value in LOOK.items() if key != "columns"}, False),
        ({key: value for key, value in LOOK.items() if key != "planned"}, False),
        ({**LOOK, "columns": {"": {"n": 3, "rows": {}}}}, False),
        ({**LOOK, "columns": {"": {**LOOK["columns"][""], "decided": 1}}}, False),
        ({**LOOK, "columns": {"": ROWS}}, False),
        ({**LOOK, "columns": {"": {**ROWS, "rows": {"b": {"runs": {"x": "b0"}}}}}}, False),
        (None, False),
    ],
)
def test_what_is_no_look_is_none(event, expected):
    assert looks.is_look(event) is expected


def test_a_sweep_with_looks_is_judged_as_at_its_first():
    plan = dataclasses.replace(planned(seeds=5), design=Looks((2, 3)))
    told = looks.until_look(plan, "", 2, {"x": "goes on", "y": "hurts"}, 2)
    rows = {**told.columns[""].rows, "z": ReadRow("spec z", {0: "x0"})}
    wider = dataclasses.replace(told, sweep="g", columns={"": ReadColumn(3, 3, {}, rows)})
    assert PastLooks([told, wider], looks.look(plan)).contrasts("") == 2
    assert PastLooks([wider], looks.look(plan)).contrasts("") == 3


def named(plan: Plan, labels: dict[str, str]) -> InterimLook:
    """The look at a plan, whose rows and columns have other labels."""

    def label(of: str) -> str:
        return labels.get(of, of)

    cells = tuple(
        dataclasses.replace(cell, row=label(cell.row), column=label(cell.column))
        for cell in plan.cells
    )
    rows = tuple(Row(label(row.label), {}) for row in plan.rows)
    columns = tuple(Column(label(column.label), {}) for column in plan.columns)
    made = {"rows": rows, "columns": columns, "cells": cells, "baseline": label(plan.baseline)}
    return looks.look(dataclasses.replace(plan, **made))


def test_rows_and_columns_of_other_labels_are_matched_by_what_is_trained():
    one, two = planned(columns=("S", "Ti")), planned(rows=("b", "x", "y", "z"), columns=("S", "Ti"))
    for plan, labels, expected in (
        (one, {}, []),
        (one, {"x": "other", "S": "small"}, []),
        (one, {"x": "y", "y": "x"}, []),
        (two, {"x": "other"}, ["rows: +z"]),
        (two, {"x": "z", "z": "x"}, ["rows: +x"]),
    ):
        assert look_changes(looks.look(one), named(plan, labels)).lines == expected


def test_a_row_or_column_that_was_added_removed_or_trained_otherwise_is_named():
    one, both = planned(columns=("S", "Ti")), ("S", "Ti")
    others = [cell for cell in one.cells if (cell.row, cell.column) != ("y", "S")]
    longer = dataclasses.replace(one.cell("y", "S"), spec=spec("longer", "S"))
    for other, expected in (
        (planned(rows=("b", "x"), columns=both), ["rows: -y"]),
        (planned(rows=("b", "x", "z", "y"), columns=both), ["rows: +z"]),
        (planned(rows=("b", "x", "z"), columns=both), ["rows: +z, -y"]),
        (planned(columns=("S", "Ti", "B")), ["columns: +B"]),
        (planned(columns=("Ti", "B")), ["columns: +B, -S"]),
        (dataclasses.replace(one, cells=tuple(others)), ["cells: -y@S"]),
        (dataclasses.replace(one, cells=(*others, longer)), ["what is trained: y"]),
        (planned(columns=both, seeds=4), []),
    ):
        assert look_changes(looks.look(one), looks.look(other)).lines == expected


@pytest.mark.parametrize(
    ("rows", "columns", "analysis", "known_error"),
    [
        ("bxy", "STU", {}, "column"),
        ("bxyz", "STU", {}, "column"),
        ("bxyz", "ST", {}, "table"),
        ("bxy", "SU", {}, ""),  # a column that was read is hidden
        ("bxy", "STU", {"family": "table"}, ""),
        ("bxy", "STU", {"margin": 1.0}, ""),
        ("bxy", "STU", {"target": 3.28}, ""),  # "from which column on" depends on the columns
    ],
)
def test_columns_that_are_added_keep_the_error_rate_of_each(rows, columns, analysis, known_error):
    unchanged = {key: value for key, value in analysis.items() if key != "margin"}
    first = dataclasses.replace(planned(columns=("S", "T")), analysis=Analysis(**unchanged))
    later = dataclasses.replace(planned((*rows,), (*columns,)), analysis=Analysis(**analysis))
    note, *_ = _changed(PastLooks([looks.look(first)], looks.look(later)))
    assert note.values["known_error"] == known_error


@pytest.mark.whole
def test_a_thousand_looks_of_ten_columns_are_read_in_a_moment():
    """A second on a machine that is busy: as much as the import of scipy takes."""
    plan = planned(rows=tuple("bcdefghijk"), columns=tuple("STUVWXYZAB"), seeds=5)
    events = [json.loads(json.dumps(looks.look(plan).event())) for _ in range(10)]
    many = [event | {"sweep": f"g{n}"} for n in range(100) for event in events]
    begun = time.process_time()
    past = PastLooks(looks.parse_events(many), looks.look(plan))
    for label in "STUVWXYZAB":
        assert past.contrasts(label) == 9
        assert past.counts(label).numbers == (5,)
        assert past.count_over_baseline(label) == (9, [])
    assert past.first_look() is not None
    assert time.process_time() - begun < 10


# --- Words --------------------------------------------------------------------------------------


@pytest.mark.whole
def test_what_changed_is_told_in_the_same_words_by_every_process():
    """A column became two rows: which of them it is called depends on nothing but the labels."""
    was = {"column": {"cell 1", "cell 2", "cell 3"}}
    now = {str(i): {f"cell {i}"} for i in (1, 2, 3)}
    code = f"from ablate.store.look_differences import _matched; print(_matched({was}, {now}))"
    for seed in range(6):
        environment = os.environ | {"PYTHONHASHSEED": str(seed)}
        told = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
        assert told == "{'column': '1'}\n"
