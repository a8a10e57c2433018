"""Sweeps with looks whose settings are tuned: each seed that a look gives out brings a search."""

import dataclasses
import json
import random
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import Shell
from support.processes import disturb
from support.seeding import declare_seeding, seeds_given

from ablate.analysis.seeding import Seeding
from ablate.api import training
from ablate.planning.cell import FIRST_TUNING_SEED
from ablate.planning.expand import plan_from_words as make_plan
from ablate.planning.plan import Plan, before_searches
from ablate.planning.search import Search
from ablate.planning.unite import unite_plans
from ablate.shared.errors import UserError
from ablate.store.ledger import Ledger
from ablate.store.look_differences import look_changes
from ablate.store.looks import look
from ablate.store.store import Store

FILE = """
title: few seeds, tuned
base: {recipe: quick, data: digits, model.arch: mu/4, model.depth: 1, train.epochs: 2,
       optim.warmup_epochs: 0}
variants:
  - plain: {}
  - DPN: {stem: dpn}
  - asleep: {model.depth: 2, optim.wd: 60}
until: {looks: [5, 7, 9], margin: 1}
tune:
  space: {optim.lr: {choices: [3e-3, 1e-2]}}
  sampler: grid
  at: {train.epochs: 1}
"""
LOOKS = (5, 7, 9)
UNTIL = "until: {looks: [5, 7, 9], margin: 1}"
ROWS = ("plain", "DPN", "asleep")
GAINS = (0, 1.5, -9)
EACH = 2  # trials of a search


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """The plan of a sweep file."""
    monkeypatch.chdir(tmp_path)

    def planned(*words, text=FILE, **options) -> Plan:
        declare_seeding(tmp_path, text)
        return make_plan(["few", *words], store=tmp_path / "runs", **options)[0]

    return planned


class Planted:
    """A result for every run that is done: of a report that of its row and seed."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.y = 60 + rng.standard_normal((3, LOOKS[-1])) + np.reshape(GAINS, (3, 1))
        self.done = {}

    def finish(self, run):
        row = ROWS.index(run.cell.row)
        value = run.trial.params["optim.lr"] * 10 if run.trial else self.y[row, run.seed] / 100
        scores = {"top1": value, "n": 300}
        self.done[run.id] = {
            **{"status": "finished", "step": 18, "multiply_adds": 1.0},
            **{"validation": scores, "test": scores},
        }

    def __call__(self, run):
        return self.done.get(run)

    def drive(self, plan, folder, order):
        """One run after the other, chosen by `order` of all that are planned."""
        grower = Seeding(plan, Store(folder / "runs"), search=Search(plan))
        now = grower.grow(self, lambda run: ())
        while todo := [run for run in now.runs() if run.id not in self.done]:
            self.finish(order(todo))
            now = grower.grow(self, lambda run: ()) or now
        return now


def first(runs):
    return runs[0]


def given(plan):
    return {cell.row: len(cell.seeds) for cell in plan.cells}


@pytest.mark.whole
def test_each_seed_that_a_look_gives_out_brings_a_search_of_its_own(planned, tmp_path):
    plan = planned()
    for seed in (0, 1, 2, 6):
        results = Planted(seed)
        found = results.drive(plan, tmp_path, first)
        assert given(found) == seeds_given(results.y, ROWS, 1)
        assert given(found)["asleep"] == 5
        assert found.to_come == 0
        for cell in found.cells:
            assert tuple(cell.ids) == cell.seeds == tuple(range(len(cell.seeds)))
            assert [choice.seeds for choice in cell.chosen] == [(s,) for s in cell.seeds]
            mine = [trial for trial in found.trials if trial.cell.row == cell.row]
            assert len(mine) == EACH * len(cell.seeds)
            assert {(trial.search, *trial.cell.ids) for trial in mine} == {
                (s, FIRST_TUNING_SEED + s) for s in cell.seeds
            }
            assert cell.at_seed(cell.seeds[-1]).spec.tree["optim"]["lr"] == 1e-2
        assert Plan.from_tree(json.loads(found.to_bytes())).checked() == found


@pytest.mark.whole
def test_the_order_of_results_changes_nothing_and_a_new_driver_goes_on(planned, tmp_path):
    columns = (
        "across: {train.batch: [64, 128]}\nvariants:"  # which come to their looks in any order
    )
    plan = planned(text=FILE.replace("variants:", columns))
    calm = Planted(6)
    whole = calm.drive(plan, tmp_path, first)
    assert len(whole.seeds) > 5
    for seed in range(3):
        shuffled = Planted(6)
        found = shuffled.drive(plan, tmp_path, random.Random(seed).choice)
        assert (found.cells, found.trials) == (whole.cells, whole.trials)
    half = Planted(6)
    half.done = dict([*calm.done.items()][: len(calm.done) // 2])
    found = half.drive(plan, tmp_path, first)
    assert (found.cells, found.trials) == (whole.cells, whole.trials)


def test_seeds_that_are_not_chosen_yet_are_to_come(planned):
    few = planned()
    plan = few.design.at_most(few)
    assert plan.expected_trials == EACH * 9 * 3
    now = Search(plan).grow(lambda run: None, lambda run: ())
    assert len(now.trials) == EACH * 9 * 3
    assert now.to_come == 9 * 3
    assert now.searches_said == "9 searches"
    uneven = [
        dataclasses.replace(cell, seeds=cell.seeds[:n]) for n, cell in enumerate(now.cells, 7)
    ]
    assert dataclasses.replace(now, cells=tuple(uneven)).searches_said == "7 to 9 searches"


def test_two_stores_that_drove_it_make_one_plan_with_the_seeds_of_both(planned, tmp_path):
    plan, results = planned(), Planted(6)
    whole = results.drive(plan, tmp_path, first)
    part = Seeding(plan, Store(tmp_path), search=Search(plan)).grow(lambda r: None, lambda r: ())
    for one, other in ((whole, part), (part, whole)):
        both = unite_plans(one, other)
        assert (given(both), both.seeds) == (given(whole), whole.seeds)
        again = Search(before_searches(both)).grow(results, lambda run: ())
        assert (again.cells, again.trials) == (whole.cells, whole.trials)


def test_of_two_stores_that_gave_seeds_to_other_rows_each_row_has_those_of_both(planned, tmp_path):
    whole = Planted(6).drive(planned(), tmp_path, first)
    most = max(len(cell.seeds) for cell in whole.cells)
    long = [n for n, cell in enumerate(whole.cells) if len(cell.seeds) == most]

    def without(number: int) -> Plan:
        cells = [*whole.cells]
        cells[number] = dataclasses.replace(cells[number], seeds=cells[number].seeds[:5])
        return dataclasses.replace(whole, cells=tuple(cells))

    one, other = without(long[0]), without(long[-1])
    assert given(one) != given(whole) != given(other)
    assert given(unite_plans(one, other)) == given(unite_plans(other, one)) == given(whole)


def test_searches_have_their_size_by_the_seeds_of_the_first_look(planned):
    grid = "choices: [3e-3, 1e-2]}}\n  sampler: grid"
    text = FILE.replace(grid, "log: [1e-3, 1e-1]}}\n  trials: 30")
    assert planned(text=text).tune.trials_each == 30 // 5
    fixed = text.replace("until: {looks: [5, 7, 9], margin: 1}", "seeds: 3")
    assert planned(text=fixed).tune == planned(text=fixed, until=9).tune
    assert planned(text=fixed, until=9).tune.trials_each == 30 // 3


PARENTS = "from: {recipe: quick, data: digits, train.epochs: 20"
SEARCH = "tune: {space: {optim.lr: {choices: [3e-3, 1e-2]}}, sampler: grid, at: {train.epochs: 1}"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("sections", "epochs"),
    [  # of both rows: a run has 4 epochs, a parent 20, each of two trials 1
        (f"{SEARCH}}}", 2 * (4 + 2)),
        # Rows that differ in the child alone share parents, and so do all nine seeds.
        pytest.param(f"{PARENTS}}}", 2 * 4 + 20, marks=pytest.mark.slow),
        pytest.param(f"{PARENTS}, seed: 0}}", 2 * 4 + 20 / 9, marks=pytest.mark.slow),
        (f"{PARENTS}}}\n{SEARCH}}}", 2 * (4 + 2) + 20),
        # Both rows have the same trials, so the same winner: a sweep of them trains both once.
        (f"{PARENTS}, {SEARCH}}}}}", 2 * 4 + 2 + 20),
    ],
)
def test_hours_of_a_seed_count_its_search_and_its_parent(shell, sections, epochs):
    """On hardware that is not here: an image costs the same in every training of a model that is
    so large that the starts of its runs take less than 2 % of the time."""
    looks = "seed: 0" not in sections  # which don't go with one parent for all
    base = "{recipe: quick, data: digits, model.arch: L/1, model.depth: 48, train.epochs: 4}"
    seeds = "until: {looks: [5, 9], margin: 1}" if looks else "seeds: 9"
    rows = "variants: [{plain: {}}, {DPN: {optim.b2: 0.9}}]"
    declare_seeding(shell.folder, f"base: {base}\n{rows}\n{seeds}\n{sections}\n")
    words = ("launcher=inline", *(() if looks else ("--detect", "1")), "--on", "t4:1")
    tree = json.loads(shell("plan", "few", *words, "--spread", "1", "--format", "json").out)
    if looks:
        hours = tree["until"]["most"]["device_hours"] / 9
    else:
        hours = tree["detect"]["columns"][0]["hours_a_seed"]
    an_epoch = sum(variant["seconds"] for variant in tree["variants"]) / 8
    assert hours == pytest.approx(epochs * an_epoch / 3600, rel=0.02)


def test_a_search_that_was_declared_otherwise_is_a_changed_analysis(planned):
    for text in (FILE, FILE.replace(UNTIL, "seeds: 3")):
        plan, other = planned(text=text), planned("tune.seed=1", text=text)
        assert look_changes(look(plan), look(other)).lines == ["tune: other searches"]
    based = planned(text=FILE.replace("train.epochs: 2,", "train.epochs: 3,"))
    changes = look_changes(look(planned()), look(based))
    assert changes.lines == ["what is trained: plain, DPN, asleep"]


def test_a_long_sweep_asks_about_all_trials_of_the_last_look(planned, monkeypatch, tmp_path):
    plan, asked = planned(), []

    def costs(plan, *args, **options):
        asked.append(plan)
        raise UserError("enough")

    monkeypatch.setattr("ablate.running.estimate.estimate_costs", costs)
    with pytest.raises(UserError, match="enough"):
        training.forecast_sweep(plan, Store(tmp_path / "runs"), SimpleNamespace(worlds=[1]))
    assert len(asked[0].trials) == EACH * 9 * 3


def test_few_trials_are_answered_with_a_number_and_not_with_one_search(planned):
    text = FILE.replace("choices: [3e-3, 1e-2]}}\n  sampler: grid", "log: [1e-3, 1e-1]}}")
    with pytest.raises(UserError) as error:
        planned(text=text)
    assert str(error.value).endswith("at least 25")
    assert "24 trials" in str(error.value)


@pytest.mark.faults
@pytest.mark.slow
def test_five_kills_search_and_decide_as_none_does(tmp_path):
    calm, shell = Shell(tmp_path / "calm"), Shell(tmp_path / "killed")
    for each in (calm, shell):
        each.folder.mkdir()
        declare_seeding(each.folder, FILE)
    said = calm("sweep", "few", "launcher=inline").out
    plan = Store(calm.folder / "runs").read_plan("few")
    assert given(plan)["asleep"] == 5 < given(plan)["plain"]
    assert "look at 5 seeds: " in said
    tree = json.loads(calm("plan", "few", "--spread", "1", "--format", "json").out)
    assert tree["until"]["most"]["trials"] == EACH * 27
    # A trial has half the epochs of a run.
    seed_s = sum(variant["seconds"] * (1 + EACH / 2) for variant in tree["variants"])
    assert tree["until"]["most"]["device_hours"] == pytest.approx(9 * seed_s / 3600)
    shutil.copytree(calm.folder / "runs" / "cache", shell.folder / "runs" / "cache")
    disturb(shell, ("sweep", "few", "launcher.attempts=1000"), random.Random(5), 5)
    shell("sweep", "few", "launcher=inline")
    other = Store(shell.folder / "runs").read_plan("few")
    assert (other.cells, other.trials) == (plan.cells, plan.trials)
    told = []
    for each in (calm, shell):
        with Ledger.reading(Store(each.folder / "runs")) as ledger:
            told.append(ledger.looks())
    assert told[0] == told[1]
    for words in (("table", "few"), ("table", "few", "--format", "tidy"), ("trials", "few")):
        assert shell(*words).out == calm(*words).out
    assert "5 to " in calm("table", "few").out
    assert "nothing wrong" in shell("verify", "few").out
