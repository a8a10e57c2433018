"""`--rows`, `--columns`, `--where` and `--sort` choose what is shown, never the family: each number
that is shown is that of the whole table, to the byte."""

import dataclasses
import itertools
import json
import re

import pytest
from support.plans import with_sections
from support.planted_sweeps import grouped_sweep, planted_sweep
from support.tables import make_plan, notes_of, plant, tabulate, text_of

from ablate.planning.cell import Column
from ablate.report.formats import render_table
from ablate.report.selection import choose_part
from ablate.shared.errors import UserError

SET = {"helps": {"stem": "dpn"}, "hurts": {"stem": "dpn", "optim.lr": 0.1}, "as good": {"lr": 2}}
HOW = ({}, {"transpose": True}, {"wide": True, "show": ("accuracy", "gain")})
CHOICES = (
    {"rows": "hurts,diverges"},
    {"columns": "B/4"},
    {"rows": "hurts,wild_100%,helps", "sort": "gain"},
    {"conditions": ["stem=dpn"]},
    {"conditions": ["lr=2"], "rows": "as good,collapses", "columns": "S/4,B/4"},
)


def planted():
    """The sweep of `test_formats`, with rows that set keys."""
    plan, results = planted_sweep()
    rows = tuple(dataclasses.replace(row, settings=SET.get(row.label, {})) for row in plan.rows)
    base = {"stem": {"name": "none"}, "optim": {"lr": 0.003}}
    cells = tuple(with_sections(cell, **base) for cell in plan.cells)
    plan = dataclasses.replace(plan, rows=rows, cells=cells)
    return plan, tabulate(plan, results, cost=True)


def shown(table):
    return {(entry.row, entry.column) for entry in table.entries}


def cells_of(text):
    """The cells of a Markdown table with a number, without the marks of footnotes."""
    cells = (cell for line in text.splitlines() if line[:1] == "|" for cell in line.split("|"))
    found = (re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹˒]", "", cell).strip() for cell in cells)
    return {cell for cell in found if re.search(r"\d", cell) and not re.match(r"\*[^*]", cell)}


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_every_number_shown_is_that_of_the_whole_table(choice):
    plan, whole = planted()
    part = choose_part(whole, plan, **choice)
    assert shown(part) < shown(whole)
    facts = [line for line in render_table(whole, "tidy").splitlines() if ",note," not in line]
    ours = [line for line in render_table(part, "tidy").splitlines() if ",note," not in line]
    assert [line.split(",")[4] for line in ours if line not in facts] == ["caption"]
    for row, column in shown(part):  # no fact of a cell that is shown is left out
        theirs = [fact for fact in facts if fact.startswith(f"planted,{column},{row},")]
        assert len(theirs) > 5
        assert {*theirs} <= {*ours}
    before, after = (json.loads(render_table(table, "json")) for table in (whole, part))
    for column in after["columns"]:
        [same] = [other for other in before["columns"] if other["label"] == column["label"]]
        for key in column.keys() - {"entries", "footnotes"}:
            assert column[key] == same[key]
    assert (after["seeds"], after["gain_alpha"]) == (before["seeds"], before["gain_alpha"])
    for how in HOW:
        assert cells_of(render_table(part, "md", **how)) <= cells_of(
            render_table(whole, "md", **how)
        )
    [caption] = notes_of(part, "joined")
    metric, extent, *_ = caption.values["sentences"]
    assert metric["values"]["interval"]["family"]["contrasts"] == [6]
    [count, *_] = extent["values"]["counts"]
    assert len(part.rows) in (7, count["shown"])
    for format in ("md", "rich", "latex", "html"):
        said = " ".join(text_of(part, format).split())
        assert f"{len(part.rows)} of 7 rows" in said or len(part.rows) == 7
        assert caption.text in said.replace("\\", "")


def test_the_first_sentence_and_counts_are_of_the_whole_table():
    plan, whole = planted()
    part = choose_part(whole, plan, rows="helps")
    first = [render_table(table, "md").splitlines()[2] for table in (whole, part)]
    assert first[0] == first[1]
    assert "comparisons" in first[0]
    plan, results = grouped_sweep()
    part = choose_part(tabulate(plan, results), plan, columns="pets, S/4,pets, B/4")
    text = render_table(part, "md")
    assert "| variant | Pets | against vit |" in text
    assert "| dpn | 72.00 | helps in 1 of 2 (hurts in 1) |" in text
    counts = notes_of(part, "joined")[0].values["sentences"][1]["values"]["counts"]
    assert counts == [{"noun": "columns", "shown": 2, "total": 6}]
    assert "left out" in text  # averages are over all six


def test_rows_are_sorted_by_the_mean_gain_of_what_is_shown_the_baseline_first():
    plan, whole = planted()
    for columns in (None, "S/4"):
        part = choose_part(whole, plan, sort="gain", columns=columns)
        gains = {}
        for entry in part.entries:
            gains.setdefault(entry.row, []).append(entry.gain.mean if entry.gain else 1e9)
        assert part.rows[0].label == "pre"
        order = [row.label for row in part.rows]
        assert order == sorted(order, key=lambda row: -sum(gains[row]))
        for column in part.columns:
            assert [entry.row for entry in column.entries] == order
    assert not any(row.family for row in part.rows)
    with pytest.raises(UserError, match="--sort: expected one of gain, got 'gian'"):
        choose_part(whole, plan, sort="gian")


def test_cells_are_chosen_by_the_keys_of_rows_and_columns():
    plan, whole = planted()
    rows, columns = [row.label for row in whole.rows], ["S/4", "B/4"]

    def having(*where):
        return shown(choose_part(whole, plan, conditions=where))

    base = {("pre", column) for column in columns}
    assert having("stem=dpn") == base | {*itertools.product(("helps", "hurts"), columns)}
    assert having("stem=dpn,none") == shown(whole)
    assert having("optim.lr=1e-1") == base | {*itertools.product(("hurts",), columns)}
    assert having("stem=dpn", "optim.lr=0.003") == base | {("helps", c) for c in columns}
    # `lr` is set by columns, and by a row that wins: only that row is 2 in S/4.
    assert having("lr=1") == {(row, "S/4") for row in rows if row != "as good"}
    assert having("lr=2.0") == {("pre", "S/4"), ("as good", "S/4")} | {(r, "B/4") for r in rows}
    for where, said in (
        ("stm=dpn", r"--where: expected a key .* one of lr, stem, optim.lr, got 'stm' \(did you"),
        ("stem=dqn", r"--where stem: expected one of none, dpn, got 'dqn' \(did you mean 'dpn'"),
        ("stem", "stem: expected KEY=VALUE"),
    ):
        with pytest.raises(UserError, match=said):
            having(where)
    with pytest.raises(UserError, match="no cell of the table is in all of these"):
        choose_part(whole, plan, conditions=["stem=dpn"], rows="diverges")


def test_a_text_is_chosen_as_it_is_spelled():
    """Columns of a sheet are texts, which may look like a number or a list."""
    names = ("1.10", "1.1", "S/16, big", "big", "-12", "null", "中 & b")
    plan = make_plan(["base", "other"], names)
    columns = tuple(Column(name, {"trainer.column": name}) for name in names)
    plan = dataclasses.replace(plan, columns=columns)
    table = tabulate(plan, plant(plan, {"base": [90, 91, 92], "other": [93, 93, 94]}))

    def having(value):
        part = choose_part(table, plan, conditions=[f"trainer.column={value}"])
        return [column.label for column in part.columns]

    for name in names:
        assert having(name) == [name]
    assert having("'S/16, big'") == ["S/16, big"]
    assert having("'-12',big") == ["big", "-12"]
    assert having("1.10, null,-12") == ["1.10", "-12", "null"]
    for value in ("1.100", "bigger", "12"):
        with pytest.raises(UserError) as error:
            having(value)
        assert str(error.value).startswith("--where trainer.column: ")


def test_footnotes_are_those_of_what_is_shown_numbered_anew():
    plan, whole = planted()
    part = choose_part(whole, plan, rows="collapses")
    of = [entry for entry in whole.entries if entry.row in ("pre", "collapses")]
    assert len(part.footnotes) < len(whole.footnotes)
    places = [(row.label, None) for row in part.rows]
    places += [(None, column.label) for column in part.columns]
    places += [(entry.row, entry.column) for entry in part.entries]
    used = {number for place in places for number in part.marks(*place)}
    assert used == {*range(1, 1 + len(part.footnotes))}
    for entry, other in zip(part.entries, of, strict=True):
        assert part.on(entry.row, entry.column) == whole.on(other.row, other.column)


def test_a_column_is_named_by_its_label_or_its_heading_and_aliases_name_rows():
    plan, results = planted_sweep()
    names = {"S/4": "1", "B/4": "2"}
    columns = tuple(Column(name, {"lr": int(name)}) for name in names.values())
    cells = tuple(dataclasses.replace(cell, column=names[cell.column]) for cell in plan.cells)
    aliases = {"helps": ("better",)}
    rows = tuple(dataclasses.replace(r, aliases=aliases.get(r.label, ())) for r in plan.rows)
    plan = dataclasses.replace(plan, columns=columns, cells=cells, rows=rows)
    table = tabulate(plan, results)
    assert shown(choose_part(table, plan, columns="lr=2")) == shown(
        choose_part(table, plan, columns="2")
    )
    assert shown(choose_part(table, plan, rows="better")) == {
        (row, column) for row in ("pre", "helps") for column in "12"
    }


def test_of_a_store_and_of_a_bundle(ask, golden_store):
    assert ask("export", "fixture", "out")[0] == 0
    for where in ((), ("--from", "out")):
        code, text = ask("table", *where, "--where", "block.attn=pre", "--format", "md")
        assert (code, "| pre |" in text, "| post |" in text) == (0, True, False)
        assert "1 of 2 rows shown" in text
    code, text = ask("table", "--columns", "mu/4")
    assert (code, text.count("\n")) == (2, 1)
    assert "--columns: fixture has one column, without a name" in text
