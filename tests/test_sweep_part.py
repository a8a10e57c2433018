"""A part of a sweep file, `NAME rows=... columns=...`: which runs it has, what it compares, and
that it shares its runs with the whole sweep."""

from __future__ import annotations

import json
import re

import pytest

import ablate
from ablate.planning.expand import plan_from_words
from ablate.shared.errors import UserError

FILE = """
title: Stems, by patch
base: {recipe: quick, data: digits, model.arch: mu/4, train.epochs: 1}
across: {model.patch: [2, 4, 8]}
seeds: 2
variants:
  - plain: {}
  - dpn: {stem: dpn}
  - rms: {norm: rmsnorm}
  - rms again: {norm: rmsnorm}
groups: {small: [model.patch=2], large: [model.patch=4, model.patch=8]}
analysis:
  contrasts:
    to 4: {across: model.patch, from: 2, to: 4}
    to 8: {across: model.patch, from: 2, to: 8}
"""
ODD = """
base: {recipe: quick, data: digits, model.arch: mu/4}
across:
  - "e1, A": {train.epochs: 1}
  - "e1, B": {train.epochs: 1, train.batch: 32}
  - "e2, A": {train.epochs: 2}
  - "e2, B": {train.epochs: 2, train.batch: 32}
variants:
  - plain: {}
  - "1e-3": {optim.lr: 0.001}
  - "0.010": {optim.lr: 0.01}
  - "True": {optim.lr: 0.02}
"""
DESIGN = """
base: {recipe: quick, data: digits, model.arch: mu/4}
changes:
  dpn: {stem: dpn}
  rms: {norm: rmsnorm}
"""
TUNED = """
base: {recipe: quick, data: digits, model.arch: mu/4}
across: [untuned: {train.epochs: 1, tune: none}, tuned: {train.epochs: 2}]
variants: [plain: {}, dpn: {stem: dpn}]
tune: {trials: 15, space: {optim.lr: {log: [1e-4, 0.1]}}}
"""


@pytest.fixture
def plan_of(here):
    (here / "sweeps").mkdir()
    (here / "sweeps" / "parts.yaml").write_text(FILE)
    (here / "sweeps" / "factors.yaml").write_text(DESIGN)
    (here / "sweeps" / "searched.yaml").write_text(TUNED)

    def plan(*words):
        return plan_from_words(words, store=here / "runs")[0]

    return plan


def places(plan):
    return {(cell.row, cell.column) for cell in plan.cells}


def ids(plan):
    return {(cell.row, cell.column): cell.ids for cell in plan.cells}


def test_a_part_has_the_baseline_and_the_runs_of_the_whole(plan_of):
    whole, part = plan_of("parts"), plan_of("parts", "rows=rms", "columns=4,8")
    assert places(part) == {(row, column) for row in ("plain", "rms") for column in ("4", "8")}
    assert ids(part) == {place: ids(whole)[place] for place in places(part)}
    assert part.baseline == "plain"
    assert [column.label for column in part.columns] == ["4", "8"]
    assert [group.name for group in part.groups] == ["large"]
    assert [count.split() for count in part.notes[-1].partition(": ")[2].split(", ")] == [
        ["2", "of", "3", "rows"],
        ["2", "of", "3", "columns"],
    ]
    one_column = plan_of("parts", "columns=8")
    assert one_column.groups == ()  # a heading over a single column says nothing
    assert one_column.notes[-1].partition(": ")[2].split() == ["1", "of", "3", "columns"]
    assert part.analysis.contrasts == {}
    assert [*plan_of("parts", "columns=2,8").analysis.contrasts] == ["to 8"]
    assert places(plan_of("parts", "rows='rms again'")) == places(plan_of("parts", "rows=rms"))


def test_a_part_without_searched_columns_has_no_search(plan_of):
    whole, part = plan_of("searched"), plan_of("searched", "columns=untuned")
    assert part.tune is None
    assert ids(part) == {place: ids(whole)[place] for place in places(part)}
    for words in (["columns=tuned"], ["rows=dpn"], ["columns=tuned,untuned"]):
        assert plan_of("searched", *words).tune == whole.tune


def test_a_part_has_one_name_however_it_is_typed(plan_of):
    spellings = (
        ["rows=rms,dpn", "columns=8,4"],
        ["columns=4,8", "rows=dpn,rms"],
        ["rows='rms',\"dpn\",plain,rms", "columns='4', 8"],
        ["columns=model.patch=8,model.patch=4", "rows=dpn, rms"],
    )
    names = {plan_of("parts", *words).name for words in spellings}
    assert len(names) == 1
    assert names.isdisjoint({"parts", plan_of("parts", "columns=4").name})
    assert plan_of("parts", "columns=2,4,8", "rows=dpn,rms,rms again").name == "parts"


def test_labels_with_commas_and_labels_like_numbers_are_themselves(plan_of, here):
    (here / "sweeps" / "odd.yaml").write_text(ODD)
    assert places(plan_of("odd", "columns=e1, A,e2, B")) == {
        (row, column) for row in ("plain", "1e-3", "0.010", "True") for column in ("e1, A", "e2, B")
    }
    one, other = (plan_of("odd", f"columns={text}") for text in ("e1, A,e2, B", "e1, B,e2, A"))
    assert one.name != other.name
    assert places(one).isdisjoint(places(other))
    assert plan_of("odd", "columns='e2, B','e1, A'").name == one.name
    assert plan_of(*one.declared.texts).name == one.name  # as commands print it
    for label in ("1e-3", "0.010", "True"):
        assert {row for row, _ in places(plan_of("odd", f"rows={label}"))} == {"plain", label}


def test_what_a_sweep_lacks_is_named(plan_of):
    for words, message in (
        (["parts", "rows=dnp"], r"rows: .* plain, dpn, rms, .*'dnp' .*'dpn'"),
        (["parts", "columns=16"], r"columns: .* 2, 4, 8, .*'16'"),
        (["parts", "rows=plain"], r"rows: plain .*baseline"),
        (["factors", "rows=dpn"], r"rows: "),
        (["factors", "columns=a"], r"columns: .*factors"),
        (["stem=none,dpn", "data=digits", "rows=dpn"], r"rows=dpn: .* NAME"),
        (["parts", "rows.a=dpn"], r"rows\.a: "),
    ):
        with pytest.raises(UserError) as caught:
            plan_of(*words)
        assert re.match(message, str(caught.value))


def test_python_chooses_as_words_do(plan_of):
    sweep = ablate.Sweep("parts", rows=("rms", "dpn"), columns=4)
    assert sweep.name == plan_of("parts", "rows=rms,dpn", "columns=4").name


@pytest.mark.whole
def test_the_whole_trains_what_its_part_has_not(plan_of, shell):
    shell("sweep", "parts", "rows=dpn", "columns=4")
    times = {path: path.stat().st_mtime_ns for path in shell.folder.rglob("result.json")}
    assert len(times) == 4
    shell("sweep", "parts", "rows=dpn,rms", "columns=4,8")
    assert len([*shell.folder.rglob("result.json")]) == 12
    assert {path: path.stat().st_mtime_ns for path in times} == times
    for words in (["parts", "rows=plain,dpn", "columns=4"], ["parts+columns=4+rows=dpn"]):
        table = json.loads(shell("table", *words, "--format", "json").out)
        assert [row["label"] for row in table["rows"]] == ["plain", "dpn"]
    shell("sweep", "parts+columns=4+rows=dpn", "seeds=3")  # its name stands for its words
    assert len([*shell.folder.rglob("result.json")]) == 14
