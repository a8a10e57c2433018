"""The same searches for every variant: real trials killed and resumed, a planted objective,
replicates, rounds, stages, and every mistake in a `tune:` named in one line."""

import dataclasses
import itertools
import json
import math
import random
import re
import shutil
from collections.abc import Iterable
from typing import Any

import numpy as np
import optuna
import pytest
import scipy.stats
from conftest import Shell, records
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from simulation import DRAWS, family, family_wise_error, searched
from support.processes import disturb
from support.tables import notes_of, tabulate
from support.tuning import BEST, FILE, declare_tuning, planted_result, simulate

import ablate
from ablate.analysis import stats
from ablate.analysis.headline import table_headline
from ablate.analysis.scores import short_number
from ablate.planning.cell import FIRST_TUNING_SEED
from ablate.planning.expand import plan_from_words as make_plan
from ablate.planning.plan import Plan, before_searches
from ablate.planning.search import Search
from ablate.shared.errors import UserError
from ablate.store.store import Store

pytestmark = pytest.mark.whole


def read(shell: Shell, name: str = "lr") -> Plan:
    plan = Store(shell.folder / "runs").read_plan(name)
    assert plan is not None
    return plan


@pytest.fixture
def plan_of(here):
    """`plan_of("seeds=5", text=..., trials=24)`: the plan of a file, before anything is tried."""

    def made(*words: str, text: str = FILE, trials: int = 6) -> Plan:
        declare_tuning(here, text, trials)
        return make_plan(["lr", *words], store=here / "runs")[0]

    return made


def of(plan: Plan, row: str, search: int) -> list[Any]:
    """The trials of a search."""
    return [t for t in plan.trials if (t.cell.row, t.search) == (row, search)]


def runs_of(trials: Iterable[Any]) -> list[str]:
    return [run for trial in trials for run in trial.cell.ids.values()]


def choices(plan: Plan) -> list[tuple[Any, Any]]:
    return [(cell, choice) for cell in plan.cells for choice in cell.chosen]


CHOSEN = "chosen.optim.lr"
TRIALS = 30  # of three searches, of which seeds 0 and 1 take two
EACH = TRIALS // 3  # past the nine that are spread over the range

# --- Real trials --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> Shell:
    shell = Shell(tmp_path_factory.mktemp("calm"))
    declare_tuning(shell.folder, trials=TRIALS)
    shell("sweep", "lr", "launcher=inline")
    return shell


@pytest.mark.faults
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_search_that_is_killed_has_the_same_trials_choice_and_table(calm, tmp_path, kills):
    shell = Shell(tmp_path)
    declare_tuning(tmp_path, trials=TRIALS)
    shutil.copytree(calm.folder / "runs" / "cache", tmp_path / "runs" / "cache")
    disturb(shell, ("sweep", "lr", "launcher.attempts=1000"), random.Random(3), kills)
    done = shell("sweep", "lr", "launcher=inline")
    assert "stopped" not in done.out
    assert read(shell).trials == read(calm).trials
    assert read(shell).cells == read(calm).cells
    for words in (("table", "lr"), ("table", "lr", "--format", "tidy")):
        assert shell(*words).out == calm(*words).out


COLUMNS = "seeds: 2\nacross: [before: {tune: none}, found: {}, longer: {train.epochs: 3}]"
IN_PART = FILE.replace("seeds: 2", COLUMNS).replace(
    "{log: [1e-4, 3e-2]}}\n  trials: TRIALS", "{choices: [1e-3, 3e-3, 1e-2]}}\n  sampler: grid"
)


def test_a_column_without_searches_is_trained_as_it_is_and_equal_trials_are_trained_once(shell):
    declare_tuning(shell.folder, IN_PART)
    shell("sweep", "lr", "launcher=inline")
    plan, store = read(shell), Store(shell.folder / "runs")
    tried = {column: {} for column in ("before", "found", "longer")}
    for t in plan.trials:
        tried[t.cell.column][t.cell.row, t.search, t.number] = [*t.cell.ids.values()]
    assert tried["before"] == {}
    assert len(tried["found"]) == 2 * 2 * 3  # rows, searches, choices
    assert tried["found"] == tried["longer"]
    assert len([*store.runs.iterdir()]) <= 12 + 2 * 3 * 2  # a winner may be what others are, too
    for cell in plan.cells:
        epochs = 3 if cell.column == "longer" else 2
        for place, seed in enumerate(plan.seeds):
            spec = store.rundir(cell.ids[seed]).read_spec()
            lr = 3e-3 if cell.column == "before" else cell.chosen[place].params["optim.lr"]
            assert (spec["train"]["epochs"], spec["optim"]["lr"]) == (epochs, lr)
        assert len(cell.chosen) == (0 if cell.column == "before" else 2)
    chosen = {(cell.row, cell.column): cell.chosen for cell in plan.cells}
    assert all(chosen[row, "found"] == chosen[row, "longer"] for row in ("pre", "post"))
    again = shell("table", "lr").out
    assert "Tuned in the same way for every variant, except in before: optim.lr, by" in again
    trials = shell("trials", "lr").out
    assert "before" not in trials
    assert trials.startswith("**tuned. Trained on digits, 8 px, 1 epoch.**")  # not as long as runs
    shell("verify", "lr")
    shell("sweep", "lr", "launcher=inline")
    assert read(shell).cells == plan.cells
    kept = {(c.row, c.column) for c in before_searches(plan).cells if c.ids}
    assert kept == {("pre", "before"), ("post", "before")}


def test_looks_give_seeds_to_a_column_without_searches(plan_of):
    plan = plan_of(text=IN_PART.replace("seeds: 2", "until: {looks: [5, 8], margin: 1.0}"))
    most = plan.design.at_most(plan)
    assert {c.column: len(c.ids) for c in most.cells if c.column == "before"} == {"before": 8}
    assert {len(most.planned(cell)) for cell in most.cells} == {8}


def test_choosing_is_not_reporting_and_every_seed_has_a_search_of_its_own(calm):
    plan = read(calm)
    assert len(plan.trials) == 2 * 2 * EACH == plan.expected_trials
    assert plan.to_come == 0
    described = json.loads((calm.folder / "runs" / "cache" / "costs.json").read_text())
    assert not any("step_s" in answer for answer in described.values())  # so short: not timed
    store = Store(calm.folder / "runs")
    table = calm("table", "lr", "--show", "gain,chosen", "--notes", "full").out
    facts = calm.facts("lr")
    for cell in plan.cells:
        assert set(cell.ids) == {0, 1}
        assert [choice.search for choice in cell.chosen] == [0, 1]
        for seed, choice in enumerate(cell.chosen):
            reported, rate = store.rundir(cell.ids[seed]).read_spec(), choice.params["optim.lr"]
            assert (reported["train"]["epochs"], reported["optim"]["lr"]) == (2, rate)
            mine = of(plan, cell.row, seed)
            assert [t.number for t in mine] == list(range(EACH))
            assert {s for t in mine for s in t.cell.ids} == {FIRST_TUNING_SEED + seed}
            assert {t.cell.spec.tree["train"]["epochs"] for t in mine} == {1}
            assert mine[0].params == {"optim.lr": 3e-3}  # the recipe's own
            ended = [store.rundir(run).read_result() for run in runs_of(mine)]
            scores = [result["validation"]["top1"] for result in ended]
            assert [trial.score for trial in mine] == scores
            assert [t.error for t in mine] == [math.sqrt(p * (1 - p) / 300) for p in scores]
            assert (choice.value, choice.trial) == (max(scores), scores.index(max(scores)))
            one, other = sorted(scores)[-2:]
            errors = math.sqrt(one * (1 - one) / 300 + other * (1 - other) / 300)
            assert choice.noise == (("optim.lr",) if other - one <= errors else ())
            rates = [math.log(trial.params["optim.lr"]) for trial in mine]
            share = (max(rates) - min(rates)) / math.log(3e-2 / 1e-4)
            assert choice.explored == {"optim.lr": pytest.approx(share)}
            assert share > 0.75
            images = 1197 // 64 * 64  # of an epoch
            [forward] = {result["multiply_adds"] for result in ended}
            assert choice.multiply_adds == EACH * 3 * images * forward
            told = [f["value"] for f in facts if f["row"] == cell.row and f["seed"] == str(seed)]
            assert repr(rate) in told
        chosen = ", ".join(f"{choice.params['optim.lr']:.3g}" for choice in cell.chosen)
        assert f"| {chosen}" in table
        used = sum(choice.multiply_adds for choice in cell.chosen)
        assert f"best of {EACH} trials each; {short_number(used)} multiply-adds" in table
    explored = r"\(sampler tpe\), which explored at least \d+ %"
    assert re.search(f"2 searches of {EACH} trials {explored}", table)
    assert "n counts searches" in table


def test_more_seeds_are_more_searches_of_that_size_and_more_trials_extend_them(calm, shell):
    shutil.copytree(calm.folder / "runs", shell.folder / "runs")
    declare_tuning(shell.folder, trials=TRIALS)
    before = read(shell)
    more = shell("sweep", "lr", "seeds=3", "launcher=inline")
    assert more.out.count("finished: ") == 2 * (EACH + 1)
    assert [t for t in read(shell).trials if t.search < 2] == list(before.trials)
    for old, new in zip(before.cells, read(shell).cells, strict=True):
        assert new.chosen[:2] == old.chosen
        assert old.ids.items() < new.ids.items()
    shell("sweep", "lr", f"tune.trials={TRIALS + 3}", "launcher=inline")
    for row, search in itertools.product(("pre", "post"), (0, 1)):
        extended = of(read(shell), row, search)
        assert len(extended) == EACH + 1
        assert extended[:EACH] == of(before, row, search)


def test_untuned_and_tuned_stand_side_by_side(calm):
    untuned = calm("sweep", "lr", "tune=none", "launcher=inline")
    assert "sweep: lr+tune=none" in untuned.out
    assert "Tuned" not in calm("table", "lr+tune=none").out
    assert "Tuned" in calm("table", "lr").out
    for words in (("trials", "lr+tune=none"), ("plot", "lr+tune=none", "tuning")):
        assert "nothing is tuned" in calm(*words, code=2).err


def test_trials_are_runs_like_any_other(calm):
    trial = read(calm).trials[7]
    [(seed, run)] = trial.cell.ids.items()
    label = f"{trial.cell.row}#{seed}.{trial.number}"
    shown = calm("show", label).out
    assert f"run {run}: {label}" in shown
    assert "a tuning trial" in shown
    assert "nothing" in calm("gc", "--yes").out
    assert Store(calm.folder / "runs").result(run) is not None
    assert "nothing wrong" in calm("verify", "lr").out


def test_a_score_that_was_changed_in_the_plan_is_found(calm, shell):
    shutil.copytree(calm.folder / "runs", shell.folder / "runs")
    plan = read(shell)
    better = dataclasses.replace(plan.trials[5], score=0.99)
    trials = (*plan.trials[:5], better, *plan.trials[6:])
    Store(shell.folder / "runs").write_plan(dataclasses.replace(plan, trials=trials))
    found = shell("verify", "lr", code=1).out
    assert "a validation top1 of 0.99 for this trial, but the raw files have" in found


def test_the_studies_open_with_plain_optuna(calm):
    journal = JournalFileBackend(str(calm.folder / "runs" / "studies" / "lr.log"))
    storage, plan = JournalStorage(journal), read(calm)
    searches = {f"{cell.row} search {c.search}": (cell, c) for cell, c in choices(plan)}
    assert sorted(optuna.get_all_study_names(storage)) == sorted(searches)
    for name, (cell, choice) in searches.items():
        study = optuna.load_study(study_name=name, storage=storage)
        assert study.best_params == choice.params
        assert study.best_trial.number == choice.trial
        runs = runs_of(of(plan, cell.row, choice.search))
        assert [trial.user_attrs["run"] for trial in study.trials] == runs
        assert len(runs) == EACH


def test_trials_tells_what_was_tried(calm):
    plan = read(calm)
    rows = {row["id"]: row for row in records(calm("trials", "lr", "--format", "csv").out)}
    whole = json.loads(calm("trials", "lr", "--format", "json").out)
    entries = {entry["id"]: entry for entry in whole["trials"]}
    said = calm.process("trials", "lr").out
    assert len(rows) == len(entries) == len(whole["trials"]) == len(plan.trials)
    for trial in plan.trials:
        [(seed, run)] = trial.cell.ids.items()
        row, entry, rate = rows[run], entries[run], trial.params["optim.lr"]
        won = plan.cell(trial.cell.row, "").chosen[trial.search].trial == trial.number
        assert float(row["optim.lr"]) == entry["settings"]["optim.lr"] == rate
        assert float(row["score"]) == entry["score"] == pytest.approx(100 * trial.score)
        assert float(row["error"]) == entry["error"] == pytest.approx(100 * trial.error)
        assert row["state"] == entry["state"] == "finished"
        assert (row["chosen"] == "True") == entry["chosen"] == won
        assert (row["row"], int(row["search"])) == (trial.cell.row, trial.search)
        scored = f"{100 * trial.score:.2f} | {100 * trial.error:.2f} | finished | "
        told = f"| #{seed}.{trial.number} | {rate:.3g} | {scored}{'chosen' * won}"
        assert told in said
    noise = {(cell.row, choice.search): [*choice.noise] for cell, choice in choices(plan)}
    assert {(s["row"], s["search"]): s["noise"] for s in whole["searches"]} == noise
    assert "explored share of the range: optim.lr" in said
    assert ("chosen by chance" in said) == any(noise.values())


def test_load_has_reports_alone_and_no_test_scores_of_trials(calm):
    plan, sweep = read(calm), ablate.Store(calm.folder / "runs").sweep("lr")
    frame, whole = sweep.to_pandas(), sweep.to_pandas(trials=True)
    assert sorted(frame.id) == sorted(run for cell in plan.cells for run in cell.ids.values())
    assert sorted(run.id for run in sweep.runs()) == sorted(frame.id)
    for run in frame.itertuples():
        choice = plan.cell(run.row, "").chosen[run.seed]
        assert frame["optim.lr"][run.Index] == choice.params["optim.lr"]
        assert run.search == run.seed
    assert "train.epochs" not in frame  # all were trained as long
    tried = whole[whole.trial.notna()]
    assert len(whole) == len(tried) + len(frame)
    assert tried[["top1", "loss", "test_n"]].isna().all(axis=None)
    scores = {run: t.score for t in plan.trials for run in t.cell.ids.values()}
    assert dict(zip(tried.id, tried.score, strict=True)) == scores
    assert set(whole["train.epochs"]) == {1, 2}
    assert set(sweep.to_pandas(curves=True).id) == set(frame.id)
    assert set(sweep.to_pandas(curves=True, trials=True).id) == set(whole.id)


def test_the_ranking_against_the_budget_is_drawn(calm):
    calm("plot", "lr", "tuning", "--out", "tuning.svg")
    drawn = (calm.folder / "tuning.svg").read_text()
    for cell in read(calm).cells:
        assert f"{cell.row}: best of {2 * EACH} trials" in drawn
    assert "needs a sweep" in calm("list", "plots").out


def test_the_best_of_k_draws_is_that_of_all_draws():
    scores = [0.1, 0.4, 0.4, 0.9]
    mean, low, high = stats.expected_best(np.array(scores))
    for k in (1, 2, 3):
        best = [max(draw) for draw in itertools.product(scores, repeat=k)]
        assert mean[k - 1] == pytest.approx(np.mean(best))
        assert low[k - 1] == np.quantile(best, 0.1, method="inverted_cdf")
        assert high[k - 1] == np.quantile(best, 0.9, method="inverted_cdf")


PRUNED = FILE.replace("at: {train.epochs: 1}", "at: {train.epochs: 24}\n  pruner: median")


@pytest.mark.slow
def test_pruned_trials_are_a_state_of_their_own_and_cost_what_they_used(calm, tmp_path):
    """Killed and two at a time, and one after another: the same trials pruned at the same steps,
    though who was faster differs. The runs last long enough for the driver to see them."""
    shells = [Shell(tmp_path / name) for name in ("killed", "one")]
    for shell, word in zip(shells, ("launcher.attempts=1000", "launcher=inline"), strict=True):
        shell.folder.mkdir()
        declare_tuning(shell.folder, PRUNED, trials=TRIALS)
        shutil.copytree(calm.folder / "runs" / "cache", shell.folder / "runs" / "cache")
        if shell is shells[0]:
            disturb(shell, ("sweep", "lr", word), random.Random(5), kills=3)
        shell("sweep", "lr", word)
    first, other = map(read, shells)
    assert (other.trials, other.cells) == (first.trials, first.cells)
    store = Store(shells[0].folder / "runs")
    results = [store.result(run) for run in runs_of(first.trials)]
    early = [result for result in results if result and result["status"] == "pruned"]
    assert early
    assert "diverged" not in shells[0]("table", "lr").out
    assert sum(choice.spent for _, choice in choices(first)) < 4 * EACH
    assert all(result["step"] < 24 * 18 for result in early)
    assert "nothing wrong" in shells[0]("verify", "lr").out


# --- A planted objective ------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_the_planted_order_is_found_with_tuning_and_missed_without(plan_of, sampler):
    for word, verdict in (("tune=none", "hurts"), (f"tune.sampler={sampler}", "helps")):
        plan, results = simulate(plan_of("seeds=5", word, trials=24))
        [column] = tabulate(plan, results).columns
        assert {entry.row: entry.verdict for entry in column.entries}["post"] == verdict
        for cell, choice in choices(plan):
            assert abs(math.log10(choice.params["optim.lr"] / BEST[cell.row])) < 0.3


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
            told = planted_result(run.cell.row, run.cell.spec, run.seed)
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
def test_pruning_saves_steps_and_is_the_same_search_whoever_is_faster(plan_of, pruner):
    text = FILE.replace("train.epochs: 1}", f"train.epochs: {EVALUATIONS}}}\n  pruner: {pruner}")
    plan = plan_of(text=text, trials=72)
    late, whole = race(plan, stopped=False)
    quick, steps = race(plan, stopped=True)
    assert quick == late
    assert whole == 4 * 24 * EVALUATIONS
    spent = [choice.spent for _, choice in choices(quick)]
    assert sum(spent) == pytest.approx(steps / EVALUATIONS)  # nothing is counted but what ran
    assert max(spent) < 0.8 * 24
    forwards = sum(choice.multiply_adds for _, choice in choices(quick)) / 3
    assert forwards == steps * plan.cells[0].spec.tree["train"]["batch"] * 10
    for cell, choice in choices(quick):
        assert abs(math.log10(choice.params["optim.lr"] / BEST[cell.row])) < 0.3


def test_searches_with_other_pruning_share_no_trial(plan_of):
    """One that ended early in a search would be no result for another, which goes on with it."""
    text = FILE.replace("train.epochs: 1}", f"train.epochs: {EVALUATIONS}}}\n  pruner: median")
    words = ((), ("tune.pruner=none",), ("tune.round=6",), ("tune.pruner=hyperband",))
    runs = [set(runs_of(race(plan_of(*w, text=text, trials=24), True)[0].trials)) for w in words]
    assert all(not a & b for a, b in itertools.combinations(runs, 2))
    more = set(runs_of(race(plan_of(text=text, trials=48), True)[0].trials))
    assert runs[0] < more  # a larger budget goes on from what was tried


def test_a_choice_at_the_edge_of_its_range_is_marked(plan_of):
    text = FILE.replace("1e-4, 3e-2", "2.95e-3, 3e-2")
    plan, results = simulate(plan_of(text=text, trials=36))
    assert [choice.edges for choice in plan.cell("post", "").chosen] == [("optim.lr",)] * 2
    doubts = notes_of(tabulate(plan, results), "tuned.doubts", ("post", ""))
    assert [note.values["edges"] for note in doubts] == [[{"key": "optim.lr", "searches": 2}]]


STAGES = """
  stages:
    - trials: 6
      space: {optim.lr: {choices: [3e-4, 1e-3, 3e-3]}, model.dropout: {choices: [0.0, 0.1]}}
    - {space: {optim.wd: {choices: [0.0, 0.05]}}}
  sampler: grid
"""


def test_stages_fix_the_winners_of_the_one_before_and_a_grid_is_never_divided(plan_of):
    text = FILE[: FILE.index("  space:")] + STAGES.lstrip("\n")
    plan, results = simulate(plan_of("seeds=3", text=text))
    for row, search in itertools.product(("pre", "post"), range(3)):
        mine = of(plan, row, search)
        first, second = ([t for t in mine if t.stage == stage] for stage in (0, 1))
        assert len({tuple(t.params.values()) for t in first}) == len(first) == 6
        assert [t.number for t in first + second] == list(range(8))
        assert {t.cell.spec.tree["optim"]["lr"] for t in second} == {BEST[row]}
        choice = plan.cell(row, "").chosen[search]
        assert set(choice.params) == {"optim.lr", "model.dropout", "optim.wd"}
        assert choice.trials == 8
        assert choice.spent == 7  # the second stage begins with the winner of the first
        assert choice.explored == dict.fromkeys(choice.params, 1.0)
    runs = [run.id for run in plan.runs()]
    assert len(runs) == len(set(runs)) == len(results) == 2 * 3 * (7 + 1)
    assert len({run.label for run in plan.tried()}) == 2 * 3 * 8


# --- Searches are what is replicated ------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_the_first_rounds_are_spread_over_the_range_and_every_search_has_its_own(plan_of, sampler):
    def asked(*words: str) -> Plan:
        """With the first round of every search."""
        plan = plan_of(f"tune.sampler={sampler}", *words, trials=27)
        return Search(plan).grow({}.get, lambda _: [])

    def points(plan: Plan, row: str, search: int) -> list[float]:
        return [trial.params["optim.lr"] for trial in of(plan, row, search)]

    def parts(rates: list[float], number: int) -> list[int]:
        """In which of so many parts of the range they lie."""
        width = math.log(3e-2 / 1e-4)
        return sorted(int(number * math.log(rate / 1e-4) / width) for rate in rates)

    plan, moved = asked(), asked("tune.seed=1")
    ended, _ = simulate(plan)
    for search in (0, 1):
        default, *others = points(plan, "pre", search)
        assert default == 3e-3
        assert points(plan, "post", search) == [default, *others]
        assert parts(others, 4) == [0, 1, 2, 3]
        assert parts(points(ended, "pre", search)[1:], 8) == list(range(8))
    first = set(points(plan, "pre", 0)[1:])
    assert not first & {*points(plan, "pre", 1), *points(moved, "pre", 0)[1:]}
    # the default is trained with other seeds, too
    assert not set(runs_of(plan.trials)) & set(runs_of(moved.trials))


@pytest.mark.parametrize(
    ("seeds", "words", "each", "searches"),
    [
        (2, (), 8, {0: (0,), 1: (1,)}),
        (2, ("seeds=5",), 8, {seed: (seed,) for seed in range(5)}),
        (2, ("seeds=5", "tune.repeats=2"), 12, {0: (0, 2, 4), 1: (1, 3)}),
        (2, ("seeds=5", "tune.repeats=1"), 24, {0: (0, 1, 2, 3, 4)}),
        (4, ("seeds=[7,9]",), 6, {7: (7,), 9: (9,)}),
    ],
)
def test_a_search_has_its_size_by_what_is_declared_and_more_seeds_are_more_of_them(
    plan_of, seeds, words, each, searches
):
    plan = plan_of(*words, text=FILE.replace("seeds: 2", f"seeds: {seeds}"), trials=24)
    assert (plan.tune.trials_each, plan.tune.searches(plan.seeds)) == (each, searches)


def test_seeds_that_share_a_search_are_averaged_and_n_counts_searches(plan_of):
    plan, results = simulate(plan_of("tune.repeats=3", "seeds=7", trials=15))
    assert plan.replicates == ((0, 3, 6), (1, 4), (2, 5))
    [column] = tabulate(plan, results).columns
    y = {
        cell.row: [
            np.mean([100 * results[cell.ids[s]]["test"]["top1"] for s in seeds])
            for seeds in plan.replicates
        ]
        for cell in plan.cells
    }
    pre, post = column.entries
    assert pre.accuracy.mean == pytest.approx(np.mean(y["pre"]))
    assert pre.accuracy.n == post.gain.n == 3
    expected = scipy.stats.ttest_rel(y["post"], y["pre"]).confidence_interval(0.95)
    assert (post.gain.low, post.gain.high) == pytest.approx((expected.low, expected.high))
    assert len(pre.values) == 7  # told one by one


@pytest.mark.parametrize(("repeats", "verdict", "n"), [(3, "helps", 3), (1, None, 6)])
def test_one_search_compares_settings_and_gives_no_verdict(plan_of, repeats, verdict, n):
    plan, results = simulate(plan_of(f"tune.repeats={repeats}", "seeds=6", trials=15))
    table = tabulate(plan, results)
    [(told, gain)] = [(entry.verdict, entry.gain) for entry in table.entries if entry.gain]
    assert (told, gain.n) == (verdict, n)
    assert table.is_look  # intervals are read, too
    counted = "searches" if verdict else "seeds"
    assert table.repeats == counted
    assert (f"over 3 {counted}" in table_headline(table)) == (verdict is not None)
    [resolution] = notes_of(table, "noise.resolution")
    assert f"{n} {counted}, " in resolution.text
    factors = [note.values["factor"] for note in notes_of(table, "condition")]
    assert factors == ["search"] * (repeats == 1)
    [tuned] = notes_of(table, "tuned")
    assert tuned.values["compared"] == (repeats == 3)
    for key in ("reading", "metric"):  # "mean over searches", "search by search"
        [caption] = notes_of(table, key)
        assert caption.values.get("repeats", "seeds") == counted
        assert {*re.findall(r"(?:mean over|by) (seed|search)", caption.text)} == {
            "search" if repeats == 3 else "seed"
        }


def test_equal_trials_are_one_run_that_is_paid_once(plan_of):
    text = FILE.replace("log: [1e-4, 3e-2]", "choices: [1e-3, 3e-3]")
    plan = plan_of(text=text.replace("epochs: 1}", "epochs: 9}\n  pruner: median"), trials=36)
    late, whole = race(plan, stopped=False)
    quick, _ = race(plan, stopped=True)
    assert quick == late
    assert whole == 2 * 2 * 2 * EVALUATIONS
    for cell, choice in choices(quick):
        mine = of(quick, cell.row, choice.search)
        assert choice.trials == len(mine) == 12
        assert choice.spent <= 2
        assert choice.trial == next(t.number for t in mine if t.params == choice.params)
    ids = [run.id for run in quick.runs()]
    assert len(ids) == len(set(ids)) == 2 * 2 * (2 + 1)
    told = {(run, t.score, t.state) for t in quick.trials for run in t.cell.ids.values()}
    assert len(told) == 2 * 2 * 2


@pytest.mark.parametrize("sharpness", [10, 40, 160])
def test_replicated_searches_keep_the_promise_that_one_search_breaks(sharpness):
    rng = np.random.default_rng(sharpness)
    method = family(10)
    y = searched(rng, 8, 3, sharpness)
    assert family_wise_error(y + rng.standard_normal(y.shape), method) <= 0.042
    y = searched(rng, 24, 1, sharpness)
    assert family_wise_error(y + rng.standard_normal((DRAWS, 10, 3)), method) > 0.06


RANGE, MANY = "log: [1e-4, 3e-2]", "trials: 15"
OTHERS = "whose other columns have some; here remove tune"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (RANGE, "log: [1e-2, 3e-2]", "the baseline has 0.003"),
        (RANGE, "log: [0, 1]", "expected 0 < low < high, got [0, 1]"),
        (RANGE, "lgo: [1e-4, 1]", "did you mean 'log'?"),
        (RANGE, "choices: [1, 2]", "add it to the choices [1, 2]"),
        ("optim.lr:", "optim.rl:", "optim.rl: no such key"),
        (MANY, "trials: 0", "must be at least 1, got 0"),
        (MANY, f"{MANY}\n  round: 100000000000", "must be at least 1 and at most 10,000"),
        (MANY, "trails: 15", "did you mean 'trials'?"),
        (MANY, f"{MANY}\n  sampler: grid", "grid needs choices for optim.lr"),
        (MANY, f"{MANY}\n  sampler: bayes", "bayes"),
        (MANY, "trials: 14", "14 trials for 3 searches, and of fewer than 5"),
        (MANY, "trials: 14", "give at least 15, or tune.repeats=1"),
        (MANY, "trials: 4\n  repeats: 1", "4 trials for 1 search, and of fewer than 5"),
        (MANY, f"{MANY}\n  repeats: 0", "tune.repeats: must be at least 1, got 0"),
        (MANY, f"{MANY}\n  repeats: 3", "give seeds=3, or tune.repeats=2"),
        ("seeds: 2", "seeds: 4", "15 trials for 4 searches"),
        (
            f"{{{RANGE}}}}}\n  {MANY}",
            "{choices: [1e-3, 3e-3]}}\n  trials: 6\n  sampler: grid",
            "the grid has 2 points, which every search covers, got 6; leave trials out",
        ),
        ("- pre: {}", "- pre: {optim.lr: 1e-3}", "sets optim.lr, which `tune:` searches"),
        ("epochs: 1}", "epochs: -1}", "train.epochs"),
        ("seeds: 2", "seeds: 2\nacross: [c: {tune: 3}]", "across[0]: tune: expected none, for a"),
        ("seeds: 2", "seeds: 2\nacross: [c: {tune: none}]", OTHERS),
    ],
)
def test_mistakes_are_said_in_a_line_before_anything_trains(plan_of, old, new, said):
    text = FILE.replace("TRIALS", "15")
    assert old in text
    with pytest.raises(UserError) as error:
        Search(plan_of(text=text.replace(old, new))).grow({}.get, lambda _: [])
    assert said in str(error.value)
    assert "\n" not in str(error.value)
