"""`table A B`: two sweeps side by side, each with the numbers of its own table and no others."""

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from conftest import records
from rich.console import Console
from test_table import BLOCKS, SPEC, make_plan, plant, tabulate
from test_wide import grids

from ablate.planning.cell import Column
from ablate.report.chosen import choose
from ablate.report.formats import render, render_pair
from ablate.report.formats.grid import split
from ablate.report.formats.layout import beside
from ablate.report.pair import SharedRow, pair
from ablate.shared.errors import UserError
from ablate.store.ledger import Ledger

SHOW = ("gain", "ci", "n", "verdict")


def sown(name, rows, seeds=3, **how):
    """A sweep of rows: label -> (stem, points above the first)."""
    plan = make_plan(list(rows), seeds=seeds, **how)
    data = {**SPEC["data"], "name": name}
    cells = tuple(
        replace(
            cell,
            spec={**SPEC, "data": data, "stem": {"name": rows[cell.row][0]}},
            ids={s: f"{name}:{run}" for s, run in cell.ids.items()},
        )
        for cell in plan.cells
    )
    plan = replace(plan, name=name, title=f"Of {name}", cells=cells)
    noise = np.random.default_rng(len(name)).normal(0, 0.1, (len(rows), seeds))
    gains = np.reshape([more for _, more in rows.values()], (-1, 1))
    scores = 80 + gains + np.resize(BLOCKS, seeds) + noise
    return plan, tabulate(plan, plant(plan, dict(zip(rows, scores, strict=True))))


A = {"base": ("none", 0), "dpn": ("dpn", 2), "pre": ("pre", -1), "alone": ("post", 1)}
B = {"plain": ("none", 0), "Dual": ("dpn", -3), "pre": ("rmsnorm", 1), "new": ("post_posemb", 0)}


@pytest.fixture(scope="module")
def two():
    (plan, table), (other_plan, other) = sown("cifar", A), sown("imagenette", B, 5)
    return (table, other), (plan, other_plan)


def test_rows_are_matched_by_label_and_else_by_what_they_change(two):
    tables, plans = two
    made = pair(tables, plans)
    assert made.rows == (
        SharedRow(("base", "plain"), "baseline"),
        SharedRow(("dpn", "Dual"), "change"),
        SharedRow(("pre", "pre"), "label", ("stem.name",)),
    )
    assert made.only_rows == (("alone",), ("new",))
    text = render_pair(made, "md")
    assert "of their baselines: dpn of cifar is Dual of imagenette." in text
    assert "Of one label, but of another change of the baseline: pre (stem.name)." in text
    assert "Only in cifar: the row alone." in text
    assert "Only in imagenette: the row new." in text
    assert "The configurations of the baselines differ in data.name." in text
    assert "gains are over base in cifar and over plain in imagenette" in text
    rows = tuple(replace(r, aliases=("alone",) * (r.label == "new")) for r in plans[1].rows)
    aliased = replace(plans[1], rows=rows)
    assert pair(tables, (plans[0], aliased)).rows[-1].labels == ("alone", "new")


def test_every_number_is_that_of_the_sweep_s_own_table(two):
    """Family, interval and verdict: three contrasts of cifar, three of imagenette, not two."""
    tables, plans = two
    made = pair(tables, plans)
    [grid] = grids(render_pair(made, "md", show=SHOW))
    heads = ("gain [95 % CI]", "n", "verdict")
    assert grid[0][1:] == [f"{name}: {head}" for name in ("cifar", "imagenette") for head in heads]
    own = [{row[0]: row[1:] for row in grids(render(t, "md", show=SHOW))[0]} for t in tables]
    for line, shared in zip(grid[1:], made.rows, strict=True):
        ours, theirs = (of[label] for of, label in zip(own, shared.labels, strict=True))
        assert line == [shared.labels[0], *ours, *theirs]
    assert [row[2] for row in grid[1:]] == ["3"] * 3
    assert [row[5] for row in grid[1:]] == ["5"] * 3
    assert (grid[2][3], grid[2][6]) == ("helps", "hurts")
    for part, whole in zip(made.tables, tables, strict=True):
        assert [c.contrasts for c in part.columns] == [c.contrasts for c in whole.columns] == [3]


def test_nothing_is_tested_between_the_sweeps(two):
    tables, plans = two
    made = pair(tables, plans)
    text = render_pair(made, "md", show=SHOW)
    numbers = {*re.findall(r"[+-]\d+\.\d+", text)}
    own = {*re.findall(r"[+-]\d+\.\d+", "".join(render(table, "md") for table in tables))}
    assert numbers <= own
    assert "No number here compares cifar with imagenette." in text
    assert "p =" not in text


@pytest.mark.parametrize("format", ["md", "rich", "latex", "html"])
def test_the_words_are_the_same_in_every_format(two, format):
    made = pair(*two)
    text = render_pair(made, format, show=SHOW, width=100)
    if format == "rich":
        console = Console(file=io.StringIO(), width=100)
        console.print(text)
        text = console.file.getvalue()
    text = " ".join(text.replace("\\%", "%").split())
    for words in ("cifar and imagenette", "Two sweeps, each read by itself", "3 rows of both"):
        assert words in text
    assert format == "latex" or "against base, over 3 seeds" in text


def test_where_both_do_not_fit_each_sweep_has_a_block_with_its_verdicts(two):
    blocks = split(beside(pair(*two), SHOW), 70).grids
    heads = [[head for head, _ in grid.spans] for grid in blocks]
    assert heads == [["", "cifar"], ["", "imagenette"]]
    for grid in blocks:
        assert [cell.text for cell in grid.headings][-2:] == ["n", "verdict"]


def test_a_part_is_chosen_of_the_first_sweep_s_rows(two):
    (first, second), plans = two
    made = pair((choose(first, plans[0], rows="dpn", sort="gain"), second), plans)
    assert [row.labels[0] for row in made.rows] == ["base", "dpn"]
    assert made.only_rows == (("alone",), ("new",))
    assert "2 of 4 rows shown" in render_pair(made, "md")


def test_footnotes_of_the_second_go_on_with_the_numbers_of_the_first():
    confounded = sown("cifar", A, confounds={"dpn": ("optim.lr",)})
    plan, _ = other = sown("imagenette", B, confounds={"Dual": ("optim.wd",)})
    results = plant(plan, {label: 80 + np.arange(5.0) * n for n, label in enumerate(B, start=1)})
    results[next(c for c in plan.cells if c.row == "pre").ids[2]] = {"status": "diverged"}
    made = pair((confounded[1], tabulate(plan, results)), (confounded[0], other[0]))
    text = render_pair(made, "md")
    marks = {
        row: re.search(rf"^\| {row}(.*?) \|.*?(\S*) \|$", text, re.M) for row in ("dpn", "pre")
    }
    assert marks["dpn"][1] == "¹˒²"
    assert re.search(r"- ¹ .*optim\.lr", text)
    assert re.search(r"- ² .*optim\.wd", text)
    [diverged] = re.findall(r"- (\S+) .*Diverged: seed 2", text)
    assert re.search(rf"^\| pre \|.*{diverged} \|$", text, re.M)


def test_columns_are_matched_by_label_and_two_alone_are_one():
    def across(name, *labels):
        plan = make_plan(["base", "dpn"], labels)
        plan = replace(plan, name=name, columns=tuple(Column(c, {"arch": c}) for c in labels))
        values = {"base": 80 + BLOCKS, "dpn": 81 + BLOCKS[::-1]}
        return plan, tabulate(plan, plant(plan, values))

    many, few, single = across("many", "S", "B"), across("few", "B", "L"), across("single", "L")
    made = pair((many[1], few[1]), (many[0], few[0]))
    assert made.columns == (("B", "B"),)
    assert made.only_columns == (("S",), ("L",))
    text = render_pair(made, "md")
    assert "Only in many: the column S." in text
    one = across("one", "M")
    made = pair((one[1], single[1]), (one[0], single[0]))
    assert made.columns == (("M", "L"),)
    assert "Columns: M of one beside L of single." in render_pair(made, "md")
    assert pair((many[1], single[1]), (many[0], single[0])).rows == ()


def test_what_can_t_be_compared_is_refused_in_a_line(two):
    tables, plans = two
    loss = sown("losses", A, metric="loss")
    with pytest.raises(UserError, match="cifar is of top1, in points; losses is of loss, in nats"):
        pair((tables[0], loss[1]), (plans[0], loss[0]))
    with pytest.raises(UserError, match="is one sweep"):
        pair((tables[0], tables[0]), (plans[0], plans[0]))


def test_sweeps_without_a_common_row_keep_their_whole_tables(two):
    tables, plans = two
    alien = sown("alien", {"x": ("none", 0), "y": ("only_learnable", 1)}, metric="loss")
    made = pair((tables[0], alien[1]), (plans[0], alien[0]))
    assert made.tables == (tables[0], alien[1])
    assert (made.rows, made.columns, made.between) == ((), (), ())
    assert made.only_rows == (("base", "dpn", "pre", "alone"), ("x", "y"))


def planned(store, plan):
    store.write_plan(plan)
    with Ledger.driving(store) as ledger:
        ledger.plan(plan)


def test_by_names_on_the_command_line(ask, golden_store):
    plan = golden_store.read_plan("fixture")
    rows = tuple(replace(r, label="after" if r.label == "post" else r.label) for r in plan.rows)
    cells = tuple(replace(c, row="after" if c.row == "post" else c.row) for c in plan.cells)
    other = replace(plan, name="stem=a,b other", rows=rows, cells=cells)
    planned(golden_store, other)
    names = ("table", "fixture", other.name)
    code, text = ask(*names)
    assert code == 0
    assert "| post | +3.89 [-9.42, +17.20] | 3 | can't tell | +3.89 [-9.42, " in text
    assert f"post of fixture is after of {other.name}" in text
    looks = {look["sweep"] for look in golden_store.read_looks()}
    assert looks == {"fixture", other.name}  # both verdicts were read
    found = json.loads(ask(*names, "--format", "json")[1])
    assert [one["sweep"] for one in found["sweeps"]] == ["fixture", other.name]
    assert found["rows"][1] == {"labels": ["post", "after"], "by": "change", "differs": []}
    facts = records(ask(*names, "--format", "csv")[1])
    assert {fact["sweep"] for fact in facts} == {"fixture", other.name}
    assert "nats" in ask(*names, "analysis.metric=loss", "--show", "gain")[1]
    for words, said in (
        (("--wide",), "--wide: is of the table of one sweep"),
        (("--scale", "x"), "names alone"),
        (("--against", "paper"), "--against: is of the table of one sweep"),
    ):
        code, text = ask(*names, *words)
        assert (code, text.count("\n")) == (2, 1)
        assert said in text
    code, text = ask("table", "fixture", "fixtur")
    assert code == 2
    assert "did you mean 'fixture'" in text


def test_one_below_the_other_on_the_command_line(ask, golden_store):
    plan = golden_store.read_plan("fixture")
    planned(golden_store, replace(plan, name="only", rows=plan.rows[:1], cells=plan.cells[:1]))
    alone = [ask("table", name, "--format", "md")[1] for name in ("fixture", "only")]
    code, text = ask("table", "fixture", "only", "--format", "md")
    assert (code, [*map(grids, text.split(alone[1]))]) == (0, [grids(alone[0]), []])
    assert text.endswith(f"\n\n{alone[1]}")
    found = json.loads(ask("table", "fixture", "only", "--format", "json")[1])
    assert [len(one["columns"][0]["entries"]) for one in found["sweeps"]] == [2, 1]
    assert (found["rows"], found["only_rows"]) == ([], [["pre", "post"], ["pre"]])
    for verb in ("diff", "compare"):
        code, text = ask(verb, "fixture", "only")
        assert (code, text.count("\n")) == (2, 1)
        assert "`ablate table A B` sets two sweeps side by side" in text
