"""The same search for every variant: real trials killed and resumed, a planted objective, rounds,
stages, and every mistake in a `tune:` named in one line."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from conftest import Shell
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from test_kill import disturb
from test_table import tabulate

from ablate import stats
from ablate.ledger import Store
from ablate.plan import FIRST_TUNING_SEED, Plan
from ablate.report.scores import short
from ablate.spec import UserError
from ablate.sweep import plan as make_plan
from ablate.tune import Search

FILE = """
title: tuned
base: {recipe: quick, data: digits, model.arch: mu/4, model.depth: 1, train.epochs: 2}
variants:
  - pre: {}
  - post: {block.attn: post, block.mlp: post}
seeds: 2
tune:
  space: {optim.lr: {log: [1e-4, 3e-2]}}
  trials: TRIALS
  at: {train.epochs: 1}
"""


def declared(folder: Path, text: str = FILE, trials: int = 6, name: str = "lr") -> None:
    (folder / "sweeps").mkdir(exist_ok=True)
    (folder / "sweeps" / f"{name}.yaml").write_text(text.replace("TRIALS", str(trials)))


def read(shell: Shell, name: str = "lr") -> Plan:
    plan = Store(shell.folder / "runs").read_plan(name)
    assert plan is not None
    return plan


CHOSEN = "chosen.optim.lr"
TRIALS = 24  # past the ten that TPE draws at random

# --- Real trials --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> Shell:
    shell = Shell(tmp_path_factory.mktemp("calm"))
    declared(shell.folder, trials=TRIALS)
    shell("sweep", "lr")
    return shell


def test_a_search_killed_five_times_has_the_same_trials_choice_and_table(calm, tmp_path):
    shell = Shell(tmp_path)
    declared(tmp_path, trials=TRIALS)
    shutil.copytree(calm.folder / "runs" / "cache", tmp_path / "runs" / "cache")
    disturb(shell, ("sweep", "lr", "launcher.attempts=1000"), random.Random(3), kills=5)
    done = shell("sweep", "lr")
    assert "stopped" not in done.out
    assert read(shell).trials == read(calm).trials
    assert read(shell).cells == read(calm).cells
    for words in (("table", "lr"), ("table", "lr", "--format", "csv")):
        assert shell(*words).out == calm(*words).out


def test_choosing_is_not_reporting(calm):
    plan = read(calm)
    assert len(plan.trials) == 2 * TRIALS == plan.expected_trials
    assert plan.to_come == 0
    described = json.loads((calm.folder / "runs" / "cache" / "costs.json").read_text())
    assert not any("step_s" in answer for answer in described.values())  # so short: not timed
    seeds = {seed for trial in plan.trials for seed in trial.cell.ids}
    assert seeds == {FIRST_TUNING_SEED + n for n in range(TRIALS)}
    for cell in plan.cells:
        assert cell.chosen is not None
        assert set(cell.ids) == {0, 1}
        assert cell.spec["train"]["epochs"] == 2
        assert cell.spec["optim"]["lr"] == cell.chosen.params["optim.lr"]
        mine = [t for t in plan.trials if t.cell.row == cell.row]
        assert {t.cell.spec["train"]["epochs"] for t in mine} == {1}
        assert mine[0].params == {"optim.lr": 3e-3}  # the recipe's own
        store = Store(calm.folder / "runs")
        scores = [
            result["validation"]["top1"]
            for trial in mine
            for run in trial.cell.ids.values()
            if (result := store.result(run))
        ]
        assert cell.chosen.value == max(scores)
        assert [trial.score for trial in mine] == scores
        assert cell.chosen.trial == scores.index(max(scores))
        [result] = {r["multiply_adds"] for run in cell.ids.values() if (r := store.result(run))}
        images = 1197 // 64 * 64  # of an epoch
        assert cell.chosen.multiply_adds == TRIALS * 3 * images * result
        shown = calm("table", "lr", "--show", "gain,chosen").out
        assert f"{cell.chosen.params['optim.lr']:.3g}" in shown
        best = f"#{FIRST_TUNING_SEED + cell.chosen.trial}, best of {TRIALS} trials; "
        assert f"{best}{short(cell.chosen.multiply_adds)} multiply-adds" in shown
        facts = csv.DictReader(io.StringIO(calm("table", "lr", "--format", "csv").out))
        values = [f["value"] for f in facts if (f["row"], f["quantity"]) == (cell.row, CHOSEN)]
        assert values == [repr(cell.chosen.params["optim.lr"])]


def test_more_seeds_add_no_trials_and_more_trials_extend_the_search(calm, tmp_path):
    shell = Shell(tmp_path)
    shutil.copytree(calm.folder / "runs", tmp_path / "runs")
    declared(tmp_path, trials=TRIALS)
    before = read(shell)
    more = shell("sweep", "lr", "seeds=3")
    assert more.out.count("finished: ") == 2
    assert read(shell).trials == before.trials
    shell("sweep", "lr", "seeds=3", f"tune.trials={TRIALS + 2}")
    after = read(shell).trials
    assert len(after) == 2 * (TRIALS + 2)
    for row in ("pre", "post"):
        old, new = ([t for t in p if t.cell.row == row] for p in (before.trials, after))
        assert new[:TRIALS] == old


def test_untuned_and_tuned_stand_side_by_side(calm):
    untuned = calm("sweep", "lr", "tune=none")
    assert "sweep: lr+tune=none" in untuned.out
    assert "Tuned" not in calm("table", "lr+tune=none").out
    assert "Tuned" in calm("table", "lr").out


def test_trials_are_runs_like_any_other(calm):
    trial = read(calm).trials[3]
    [(seed, run)] = trial.cell.ids.items()
    assert f"run {run}: {trial.cell.row}#{seed}" in calm("show", f"{trial.cell.row}#{seed}").out
    assert "nothing" in calm("gc", "--yes").out
    assert Store(calm.folder / "runs").result(run) is not None
    assert "nothing wrong" in calm("verify", "lr").out


def test_the_studies_open_with_plain_optuna(calm):
    journal = JournalFileBackend(str(calm.folder / "runs" / "studies" / "lr.log"))
    storage = JournalStorage(journal)
    names = optuna.get_all_study_names(storage)
    assert sorted(names) == ["post", "pre"]
    for cell in read(calm).cells:
        study = optuna.load_study(study_name=cell.row, storage=storage)
        assert len(study.trials) == TRIALS
        assert cell.chosen is not None
        assert study.best_params == cell.chosen.params
        assert study.best_trial.number == cell.chosen.trial
        mine = [t for t in read(calm).trials if t.cell.row == cell.row]
        runs = [run for trial in mine for run in trial.cell.ids.values()]
        assert [trial.user_attrs["run"] for trial in study.trials] == runs


def test_the_ranking_against_the_budget_is_drawn(calm):
    calm("plot", "lr", "tuning", "--out", "tuning.svg")
    drawn = (calm.folder / "tuning.svg").read_text()
    for cell in read(calm).cells:
        assert f"{cell.row}: best of {TRIALS} trials" in drawn
    assert "needs a sweep" in calm("list", "plots").out
    calm("sweep", "lr", "tune=none")
    assert "nothing is tuned" in calm("plot", "lr+tune=none", "tuning", code=2).err


def test_the_best_of_k_draws_is_that_of_all_draws():
    scores = [0.1, 0.4, 0.4, 0.9]
    mean, low, high = stats.expected_best(np.array(scores))
    for k in (1, 2, 3):
        best = [max(draw) for draw in itertools.product(scores, repeat=k)]
        assert mean[k - 1] == pytest.approx(np.mean(best))
        assert low[k - 1] == np.quantile(best, 0.1, method="inverted_cdf")
        assert high[k - 1] == np.quantile(best, 0.9, method="inverted_cdf")


@pytest.mark.slow
def test_one_after_another_gives_the_same_trials_as_two_at_a_time(tmp_path):
    shells = []
    for launcher in ("inline", "local"):
        folder = tmp_path / launcher
        folder.mkdir()
        shells.append(Shell(folder))
        declared(folder)
        shells[-1]("sweep", "lr", f"launcher={launcher}")
    first, second = (read(shell) for shell in shells)
    assert first.trials == second.trials
    assert first.cells == second.cells
    assert {row: sum(t.cell.row == row for t in first.trials) for row in ("pre", "post")} == {
        "pre": 6,
        "post": 6,
    }


PRUNED = FILE.replace("at: {train.epochs: 1}", "at: {train.epochs: 24}\n  pruner: median")


@pytest.mark.slow
def test_pruned_trials_are_a_state_of_their_own_and_cost_what_they_used(calm, tmp_path):
    """Killed and two at a time, and one after another: the same trials pruned at the same steps,
    though who was faster differs. The runs last long enough for the driver to see them."""
    shells = []
    for name, words in (("killed", ("launcher.attempts=1000",)), ("one", ())):
        folder = tmp_path / name
        folder.mkdir()
        shell = Shell(folder)
        shells.append(shell)
        declared(folder, PRUNED, trials=TRIALS)
        shutil.copytree(calm.folder / "runs" / "cache", folder / "runs" / "cache")
        if name == "killed":
            disturb(shell, ("sweep", "lr", *words), random.Random(5), kills=3)
        shell("sweep", "lr", *words, *(("launcher=inline",) if name == "one" else ()))
    first, *others = [read(shell) for shell in shells]
    for other in others:
        assert other.trials == first.trials
        assert other.cells == first.cells
    store = Store(shells[0].folder / "runs")
    results = [store.result(run) for trial in first.trials for run in trial.cell.ids.values()]
    early = [result for result in results if result and result["status"] == "pruned"]
    assert early
    assert "diverged" not in shells[0]("table", "lr").out
    for cell in first.cells:
        assert cell.chosen is not None
        assert cell.chosen.spent < TRIALS
    for result in early:
        assert result["step"] < 24 * 18
    assert "nothing wrong" in shells[0]("verify", "lr").out


# --- A planted objective ------------------------------------------------------------------------

BEST = {"pre": 3e-3, "post": 1e-3}
TOP = {"pre": 0.90, "post": 0.93}  # post is better, at its own best rate only


def planted(row: str, tree: Any, seed: int) -> dict[str, Any]:
    """A result: accuracy falls with the distance of log lr from the row's best."""
    off = math.log10(tree["optim"]["lr"] / BEST[row])
    top1 = TOP[row] - 0.15 * off**2 + random.Random(f"{row}{seed}").gauss(0, 2e-3)
    return {
        **{"status": "finished", "step": 1, "seconds": 1.0, "collapsed": False},
        "validation": {"top1": top1, "loss": 1 - top1},
        "test": {"top1": top1, "loss": 1 - top1, "n": 300},
    }


def simulate(plan: Plan) -> tuple[Plan, dict[str, Any]]:
    """The plan's whole search, every run answered by the planted objective."""
    results: dict[str, Any] = {}
    search = Search(plan) if plan.tune else None
    total = len(list(plan.runs())) + plan.to_come
    while True:
        plan = (search and search.grow(results.get, lambda _: [])) or plan
        assert len(list(plan.runs())) + plan.to_come == total  # from the first moment on
        new = [run for run in plan.runs() if run.id not in results]
        if not new:
            return plan, results
        for run in reversed(new):  # whoever ends first changes nothing
            results[run.id] = planted(run.cell.row, run.cell.spec, run.seed)


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_the_planted_order_is_found_with_tuning_and_missed_without(tmp_path, monkeypatch, sampler):
    monkeypatch.chdir(tmp_path)
    declared(tmp_path, trials=24)
    verdicts = {}
    for words in (["tune=none"], [f"tune.sampler={sampler}"]):
        plan, _ = make_plan(["lr", "seeds=5", *words], store=tmp_path / "runs")
        plan, results = simulate(plan)
        [column] = tabulate(plan, results).columns
        verdicts[words[0]] = {entry.row: entry.verdict for entry in column.entries}["post"]
        for cell in plan.cells:
            if cell.chosen is not None:
                assert abs(math.log10(cell.chosen.params["optim.lr"] / BEST[cell.row])) < 0.3
    assert verdicts == {"tune=none": "hurts", f"tune.sampler={sampler}": "helps"}


EVALUATIONS = 9


def learns(result: dict[str, Any]) -> list[dict[str, Any]]:
    """A curve that ends in the result's validation."""
    top1 = result["validation"]["top1"]
    return [
        {"step": step, "epoch": step, "val_top1": top1 * (1 - math.exp(-step / 3)), "val_loss": 0.0}
        for step in range(1, EVALUATIONS + 1)
    ]


def race(plan: Plan, stopped: bool) -> tuple[Plan, int]:
    """The plan's whole search on curves: `stopped`, every trial ends at the step after which it is
    found not to be worth going on; else the driver is too late each time. And how many steps."""
    results: dict[str, Any] = {}
    lines: dict[str, Any] = {}
    search, steps = Search(plan), 0
    while True:
        plan = search.grow(results.get, lambda run: lines[run]) or plan
        new = [run for run in plan.runs() if run.id not in results]
        if not new:
            return plan, steps
        for run in new:
            told = planted(run.cell.row, run.cell.spec, run.seed)
            results[run.id] = {**told, "step": EVALUATIONS, "multiply_adds": 10}
            lines[run.id] = curve = learns(results[run.id])
            ends = (search.prune(run.id, curve[:seen]) for seen in range(1, EVALUATIONS + 1))
            end = next((step for step in ends if step), None)
            if stopped and end is not None:
                lines[run.id] = curve[:end]
                results[run.id] = {**results[run.id], "status": "pruned"}
            if run.id not in [i for cell in plan.cells for i in cell.ids.values()]:
                steps += len(lines[run.id])


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_pruning_saves_steps_and_is_the_same_search_whoever_is_faster(
    tmp_path, monkeypatch, pruner
):
    monkeypatch.chdir(tmp_path)
    text = FILE.replace("train.epochs: 1}", f"train.epochs: {EVALUATIONS}}}\n  pruner: {pruner}")
    declared(tmp_path, text, trials=TRIALS)
    plan, _ = make_plan(["lr"], store=tmp_path / "runs")
    late, whole = race(plan, stopped=False)
    quick, steps = race(plan, stopped=True)
    assert quick == late
    assert whole == 2 * TRIALS * EVALUATIONS
    spent = [cell.chosen.spent for cell in quick.cells if cell.chosen]
    assert sum(spent) == pytest.approx(steps / EVALUATIONS)  # nothing is counted but what ran
    assert max(spent) < 0.8 * TRIALS
    forwards = sum(cell.chosen.multiply_adds for cell in quick.cells if cell.chosen) / 3
    assert forwards == steps * plan.cells[0].spec["train"]["batch"] * 10
    for cell in quick.cells:
        assert cell.chosen is not None
        assert abs(math.log10(cell.chosen.params["optim.lr"] / BEST[cell.row])) < 0.3


def test_a_choice_at_the_edge_of_its_range_is_marked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    declared(tmp_path, FILE.replace("1e-4, 3e-2", "2.9e-3, 3e-2"), trials=12)
    plan, _ = make_plan(["lr"], store=tmp_path / "runs")
    plan, results = simulate(plan)
    edges = {cell.row: cell.chosen.edges for cell in plan.cells if cell.chosen}
    assert edges["post"] == ("optim.lr",)
    notes = " ".join(tabulate(plan, results).footnotes)
    assert "edge" in notes


STAGES = """
  stages:
    - trials: 6
      space: {optim.lr: {choices: [3e-4, 1e-3, 3e-3]}, model.dropout: {choices: [0.0, 0.1]}}
    - {space: {optim.wd: {choices: [0.0, 0.05]}}, trials: 2}
  sampler: grid
"""


def test_stages_fix_the_winners_of_the_one_before_and_a_grid_has_every_point(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = FILE[: FILE.index("  space:")] + STAGES.lstrip("\n")
    declared(tmp_path, text)
    plan, _ = make_plan(["lr"], store=tmp_path / "runs")
    plan, _ = simulate(plan)
    for row in ("pre", "post"):
        first = [t for t in plan.trials if t.cell.row == row and t.stage == 0]
        second = [t for t in plan.trials if t.cell.row == row and t.stage == 1]
        assert len({tuple(t.params.values()) for t in first}) == len(first) == 6
        assert [t.number for t in first + second] == list(range(8))
        assert {t.cell.spec["optim"]["lr"] for t in second} == {BEST[row]}
        cell = plan.cell(row, "")
        assert cell is not None
        assert cell.chosen is not None
        assert set(cell.chosen.params) == {"optim.lr", "model.dropout", "optim.wd"}
        assert cell.chosen.trials == 8


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("log: [1e-4, 3e-2]", "log: [1e-2, 3e-2]", "the baseline has 0.003"),
        ("log: [1e-4, 3e-2]", "log: [0, 1]", "expected 0 < low < high, got [0, 1]"),
        ("log: [1e-4, 3e-2]", "lgo: [1e-4, 1]", "did you mean 'log'?"),
        ("log: [1e-4, 3e-2]", "choices: [1, 2]", "add it to the choices [1, 2]"),
        ("optim.lr:", "optim.rl:", "optim.rl: no such key"),
        ("trials: 6", "trials: 0", "expected at least 1, got 0"),
        ("trials: 6", "trails: 6", "did you mean 'trials'?"),
        ("trials: 6", "trials: 6\n  sampler: grid", "grid needs choices for optim.lr"),
        ("trials: 6", "trials: 6\n  sampler: bayes", "bayes"),
        ("- pre: {}", "- pre: {optim.lr: 1e-3}", "sets optim.lr, which `tune:` searches"),
        ("epochs: 1}", "epochs: -1}", "train.epochs"),
    ],
)
def test_mistakes_are_said_in_a_line_before_anything_trains(tmp_path, monkeypatch, old, new, said):
    monkeypatch.chdir(tmp_path)
    text = FILE.replace("TRIALS", "6")
    assert old in text
    declared(tmp_path, text.replace(old, new))

    def search() -> None:
        plan, _ = make_plan(["lr"], store=tmp_path / "runs")
        Search(plan).grow({}.get, lambda _: [])

    with pytest.raises(UserError) as error:
        search()
    assert said in str(error.value)
    assert "\n" not in str(error.value)
