"""`ablate diff`: what differs between two sweeps, and between a sweep and its file as it is now."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from ablate.cli import app
from ablate.planning import expand
from ablate.planning.plan import Plan
from ablate.report.diff import compare_sweeps
from ablate.shared.errors import UserError
from ablate.store.ledger import Ledger
from ablate.store.record import RunRecord
from ablate.store.store import Store

GOLDEN = Path(__file__).parent / "golden"
FILE = """title: first
base: {recipe: quick, data: digits, model.depth: 2}
across: {model.arch: [mu/4, mu/2]}
seeds: 3
variants: [{plain: {}}, {post: {block.attn: post}}, {dpn: {stem: dpn}}]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(text: str, *words: str) -> Plan:
    Path("x.yaml").write_text(text)
    return expand.plan(["x", *words], store=Path("runs"))[0]


def lines(one: Plan, other: Plan) -> list[str]:
    found = compare_sweeps(one, other, other.name)
    assert json.loads(json.dumps(found.tree()))
    return list(found.lines())


def test_a_plan_does_not_differ_from_itself():
    one = plan(FILE)
    assert lines(one, one) == [
        "x against x",
        "runs: 18 against 18; 18 are the same",
        "\nno difference",
    ]


def test_every_part_that_differs_is_named_once():
    one = plan(FILE)
    other = FILE.replace("first", "second").replace("seeds: 3", "seeds: [0, 1]")
    other = other.replace("plain:", "base:").replace("mu/2", "mu/1").replace("depth: 2", "depth: 3")
    other += "analysis: {margin: 0.5}\n"
    assert lines(one, plan(other)) == [
        "x against x",
        "runs: 18 against 12; 0 are the same",
        "\nrows",
        "  + base",
        "  - plain",
        "\ncolumns",
        "  + mu/1",
        "  - mu/2",
        "\ndeclared",
        "  title: first -> second",
        "  baseline: plain -> base",
        "  seeds: [0,1,2] -> [0,1]",
        "\nanalysis",
        "  margin: - -> 0.5",
        "\nconfiguration",
        "  model.depth: 2 -> 3",
    ]


def test_other_labels_are_the_same_rows_and_a_key_names_the_cells_that_it_differs_in():
    one = plan(FILE)
    other = plan(FILE.replace("plain:", "base:").replace("attn: post", "attn: pre+post"))
    assert lines(one, other)[1:] == [
        "runs: 18 against 18; 12 are the same",
        "\nrows",
        "  plain -> base (the same runs)",
        "\ndeclared",
        "  baseline: plain -> base",
        "\nconfiguration",
        "  block.attn: post -> pre+post (post@mu/4, post@mu/2)",
    ]
    found = compare_sweeps(one, other, "x")
    assert found.rows.renamed == {"plain": "base"}
    assert found.configuration == {
        "block.attn": [(("post", "pre+post"), ("post@mu/4", "post@mu/2"))]
    }


def test_other_images_are_named_by_their_fingerprint():
    one = plan(FILE)

    def elsewhere(cell):
        data = {**cell.spec["data"], "fingerprint": "0" * 16}
        return dataclasses.replace(cell, spec={**cell.spec, "data": data})

    other = dataclasses.replace(one, cells=tuple(map(elsewhere, one.cells)))
    was = one.cells[0].spec["data"]["fingerprint"]
    assert lines(one, other)[2:] == ["\ndata", f"  data.fingerprint: {was} -> {'0' * 16}"]


def ask(capsys, *words: str) -> str:
    capsys.readouterr()
    app(("diff", *words), standalone_mode=False)
    return capsys.readouterr().out


def test_a_sweep_against_its_file_and_another_name(folder, capsys):
    store, made = Store(folder / "runs"), plan(FILE, "seeds=2")
    with Ledger.driving(store) as ledger:
        store.write_plan(made)
        ledger.plan(made)
    assert "no difference" in ask(capsys, made.name)
    Path("x.yaml").write_text(FILE.replace("depth: 2", "depth: 1"))
    said = ask(capsys, "x")
    assert said.startswith("x against x as it is planned now\nruns: 12 against 12; 0 are the same")
    assert "model.depth: 2 -> 1" in said
    told = json.loads(ask(capsys, "x", "--format", "json"))
    assert told["configuration"] == {"model.depth": [[[2, 1], []]]}
    assert told["declared"] == {}  # the words have the seeds
    with pytest.raises(UserError, match=r"sweep: expected one driven in runs: x, got 'y'"):
        ask(capsys, "x", "y")


def test_what_trained_the_runs_is_compared_where_both_have_runs(folder, capsys):
    store = Store(shutil.copytree(GOLDEN / "store", folder / "runs"))
    made = store.read_plan("fixture")
    other = dataclasses.replace(made, name="again", rows=made.rows[:1], cells=made.cells[:1])
    with Ledger.driving(store) as ledger:
        ledger.announce(other)
        store.write_plan(other)
        ledger.plan(other)
    told = json.loads(ask(capsys, "fixture", "again", "--format", "json"))
    assert (told["shared"], told["rows"]["removed"], told["code"]) == (3, ["post"], {})

    def ran(*digests: str) -> list[RunRecord]:
        return [RunRecord(store.rundir("a"), result={"digest": d, "threads": 1}) for d in digests]

    found = compare_sweeps(made, made, "x", [ran("d1", "d1"), ran("d1", "d2")])
    assert found.code == {"digest": ("d1", "d1 + d2")}
    assert list(found.lines())[-2:] == ["\ncode", "  digest: d1 -> d1 + d2"]
    assert compare_sweeps(made, made, "x", [ran("d1"), []]).code == {}
