"""The spread that a sweep has by default: each row's own where its predictions tell it, else
pooled; and the pooled one that verdicts of older versions were read by stays."""

from __future__ import annotations

import dataclasses

import pytest
from conftest import Shell
from test_predictions import ROWS, SWEEP, gains, planted
from test_table import make_plan, tabulate

from ablate.planning.expand import plan as expanded
from ablate.planning.plan import Plan
from ablate.planning.unite import unite
from ablate.report.power import forecast
from ablate.running.costs import Costs
from ablate.shared.errors import UserError
from ablate.store import looks
from ablate.store.ledger import Ledger
from ablate.store.store import Store

SEVERAL = "stem=none,dpn,pre"


@pytest.mark.parametrize(
    ("words", "spread"),
    [
        ((SEVERAL,), "predictions"),
        ((SEVERAL, "data=digits,mnist5k", "seeds=[3,4]"), "predictions"),
        (("stem=none,dpn", "data=digits,mnist5k"), "pooled"),  # one variant a column
        ((SEVERAL, "analysis.metric=loss"), "pooled"),
        ((SEVERAL, "analysis.metric=top5"), "pooled"),
        ((SEVERAL, "analysis.screen=false"), "pooled"),
        ((SEVERAL, "analysis.looks=[3,5]", "analysis.family=table"), "predictions"),
        ((SEVERAL, "analysis.spread=paired"), "paired"),
        ((SEVERAL, "analysis.spread=pooled"), "pooled"),
        ((SEVERAL, "task=fewshot", "from.train.steps=1"), "pooled"),
        (("figure2", "--scale", "digits"), "pooled"),  # of norms of gradients
    ],
    ids=" ".join,
)
def test_what_auto_comes_to(words, spread, tmp_path):
    scale = words[2] if "--scale" in words else None
    made, _ = expanded(words[:1] if scale else words, store=tmp_path, scale=scale)
    assert made.spread == spread
    assert Plan.from_tree(made.to_tree()).spread == spread


def test_looks_have_the_pooled_spread_that_they_had(tmp_path):
    made, _ = expanded([SEVERAL], store=tmp_path, until=9)
    assert made.analysis.spread == made.spread == "pooled"


def test_a_table_by_default_is_that_of_the_predictions_and_of_another_metric_pooled():
    plan, results, predictions, *_ = planted(spread="auto")
    by_default, said, pooled = (
        tabulate(
            dataclasses.replace(plan, analysis=dataclasses.replace(plan.analysis, spread=spread)),
            results,
            predictions=predictions,
        )
        for spread in ("auto", "predictions", "pooled")
    )
    assert by_default == said != pooled
    loss = dataclasses.replace(plan.analysis, metric="loss")
    table = tabulate(dataclasses.replace(plan, analysis=loss), results, predictions=predictions)
    assert "seed blocks, pooled spread" in table.caption[0]
    assert all(column.spreads is None and not column.lacking for column in table.columns)
    refused = dataclasses.replace(plan, analysis=dataclasses.replace(loss, spread="predictions"))
    with pytest.raises(UserError, match="which makes top1 of classify, not loss"):
        tabulate(refused, results, predictions=predictions)


def test_a_table_without_any_predictions_says_that_it_is_pooled():
    plan, results, *_ = planted(spread="auto")
    table = tabulate(plan, results, predictions=lambda run, on, sha256: None)
    assert [e.gain for e in table.entries] == [
        e.gain for e in tabulate(make_plan(ROWS), results).entries
    ]
    assert "seed blocks, pooled spread" in table.caption[0]
    assert "one spread for all rows, since seed 0 of base has no predictions" in table.details[0]
    empty = tabulate(plan, {}, predictions=lambda run, on, sha256: None)
    assert "each row's spread from its predictions" in empty.caption[0]
    assert "since" not in " ".join(empty.details)


def test_a_look_is_of_the_spread_that_judges(tmp_path):
    """So a word that says the default is no other analysis, nor is the plan of an older version."""

    def plan(*words):
        return expanded(words, store=tmp_path, name="x")[0]

    def look(*words):
        return looks.look(plan(*words))

    several, one, pooled = (SEVERAL,), ("stem=none,dpn",), "analysis.spread=pooled"
    assert look(*several) == look(*several, "analysis.spread=predictions")
    assert look(*one) == look(*one, pooled)
    loss = look(*several, "analysis.metric=loss")
    assert looks.changes(look(*several, pooled), loss) == ["metric: top1 -> loss"]
    assert unite(plan(*one), plan(*one, pooled)).spread == "pooled"
    with pytest.raises(ValueError, match=r"^analysis$"):
        unite(plan(*several), plan(*several, pooled))


def test_a_forecast_says_that_it_is_pooled():
    def lines(**analysis):
        plan = make_plan(ROWS, **analysis)
        cost = Costs({}, {}, "", 0.0, seed_s={"": 36.0 * len(plan.cells)})
        detection = forecast(plan, 0.5, 0.4, cost, {}, lambda run: [])
        return detection.tree()["method"], [*detection.lines()]

    (method, found), (plain, pooled) = lines(spread="auto"), lines(spread="pooled")
    assert method == plain == "pooled"
    assert "spread: pooled):" in found[0]
    assert "each row's spread from its predictions, which no forecast has" in found[1]
    assert [found[0], *found[2:]] == pooled
    assert lines(spread="paired")[0] == "paired"


# --- Plans of older versions --------------------------------------------------------------------


@pytest.fixture(scope="module")
def driven(tmp_path_factory) -> Shell:
    shell = Shell(tmp_path_factory.mktemp("spread"))
    shell("sweep", *SWEEP, "--as", "mine")
    return shell


def test_a_word_that_says_the_default_is_no_other_value(driven):
    assert Store(driven.folder / "runs").read_plan("mine").analysis.spread == "auto"
    driven("status", "mine", "analysis.spread=predictions")
    assert "driven with another value" in driven("status", "analysis.spread=pooled", code=2).err


def aged(shell: Shell) -> Store:
    """The store, its plan as older versions wrote it, and no verdict read."""
    store = Store(shell.folder / "runs")
    plan = store.read_plan("mine")
    pooled = dataclasses.replace(plan, analysis=dataclasses.replace(plan.analysis, spread="pooled"))
    store.ledger.unlink()
    store.looks.unlink()
    with Ledger.driving(store) as ledger:
        ledger.announce(pooled)
        store.write_plan(pooled)
        ledger.plan(pooled)
    return store


def test_a_sweep_keeps_the_pooled_spread_that_its_verdicts_were_read_by(driven):
    new = driven("table", "--format", "csv").out
    assert "each row's spread from its predictions" in driven("table").out
    aged(driven)
    old = driven("table", "--format", "csv").out
    assert "seed blocks, pooled spread" in driven("table").out
    assert gains(old) != gains(new)
    note = "note: verdicts of this sweep were read by a pooled spread, which stays"
    for _ in range(2):
        again = driven("sweep", *SWEEP, "--as", "mine").out
        assert again.count(note) == 1
        assert "Changed since" not in again
        assert driven("table", "--format", "csv").out == old
    changed = driven("table", "analysis.spread=auto").out
    assert "analysis.spread: pooled -> predictions." in " ".join(changed.split())


def test_one_without_verdicts_has_the_new_default(driven):
    aged(driven)
    again = driven("sweep", *SWEEP, "--as", "mine").out
    assert "note: verdicts" not in again
    assert "each row's spread from its predictions" in " ".join(again.split())


def test_a_plan_that_is_none_is_written_again(driven):
    store = Store(driven.folder / "runs")
    store.plan_path("mine").write_text('{"title": "x"}')
    assert "9 finished" in driven("plan", *SWEEP, "--as", "mine").out
    driven("sweep", *SWEEP, "--as", "mine")
    plan = store.read_plan("mine")
    assert plan is not None
    assert plan.spread == "predictions"
