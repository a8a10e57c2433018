"""Sweeps with looks: seeds go to the rows that go on after a look, the same after any kill;
looks are sealed once; tables, `status` and `plan` say what was decided; mistakes are one line."""

import dataclasses
import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import Shell, refused
from support.processes import disturb
from support.seeding import FILE, LOOKS, declare_seeding, seeds_given
from support.tables import notes_of, tabulate

import ablate
from ablate.analysis import english, reading, seeding, stats
from ablate.analysis.evidence import Evidence, RunFiles
from ablate.analysis.headline import false_words, table_headline, wins
from ablate.analysis.judging import sequential_of
from ablate.analysis.note import WARNING_KINDS
from ablate.analysis.seeding import Seeding
from ablate.analysis.sequential import (
    STOPPED,
    follow,
    latest_decisions,
    look_events,
    recorded_decisions,
)
from ablate.planning.design import USUAL, Fixed, Looks, looks_to
from ablate.planning.expand import plan_from_words as make_plan
from ablate.planning.plan import Plan
from ablate.report.formats import render_table
from ablate.report.power import seed_spreads, simulate_looks
from ablate.running import Costs, disk
from ablate.shared.errors import UserError
from ablate.store import looks
from ablate.store.ledger import Ledger
from ablate.store.looks import PastLooks, look
from ablate.store.store import Store

pytestmark = pytest.mark.whole

DECIDED = {"DPN": "helps"}


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    shell = Shell(tmp_path_factory.mktemp("calm"))
    declare_seeding(shell.folder)
    (shell.folder / "said").write_text(shell("sweep", "few", "launcher=inline").out)
    return shell


def driven(shell, name="few"):
    plan = Store(shell.folder / "runs").read_plan(name)
    assert plan is not None
    return plan


def looks_of(shell):
    store = Store(shell.folder / "runs")
    with Ledger.reading(store) as ledger:
        return ledger.looks()


def test_a_look_waits_for_a_full_disk(calm, shell, monkeypatch):
    """The disk is full after each fifth run, as after the last one of a look; soon it has room."""
    tries: dict[int, int] = {}

    def has_room(folder: Path, size: int) -> bool:
        finished = len([*folder.glob("runs/*/result.json")])
        tries[finished] = tries.get(finished, 0) + 1
        return finished % 5 > 0 or tries[finished] > 1

    monkeypatch.setattr(disk, "has_room", has_room)
    shutil.copytree(calm.folder / "runs" / "cache", shell.folder / "runs" / "cache")
    declare_seeding(shell.folder)
    said = shell("sweep", "few", "launcher=inline").out
    assert said.count("room again") >= 2
    assert all(count > 1 for finished, count in tries.items() if finished % 5 == 0)
    assert driven(shell).cells == driven(calm).cells
    assert [look["columns"] for look in looks_of(shell)] == [
        look["columns"] for look in looks_of(calm)
    ]


# --- Words and files ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "looks"),
    [
        *((7, (5, 7)), (8, (5, 8)), (9, (5, 9)), (10, (5, 8, 10)), (12, (5, 8, 12))),
        *((13, (5, 8, 13)), (14, (5, 8, 12, 14)), (30, USUAL), (40, (*USUAL, 40))),
    ],
)
def test_the_looks_of_a_last_one(last, looks):
    assert looks_to(last) == looks


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """The plan of a sweep file under options."""
    monkeypatch.chdir(tmp_path)

    def planned(*words, text=FILE, **options) -> Plan:
        declare_seeding(tmp_path, text)
        return make_plan(["few", *words], store=tmp_path / "runs", **options)[0]

    return planned


def test_a_plan_begins_with_the_seeds_of_the_first_look_and_comes_back_from_its_file(planned):
    plan = planned()
    assert (plan.design.seed_counts, plan.seeds, plan.analysis.margin) == (
        LOOKS,
        (0, 1, 2, 3, 4),
        2,
    )
    assert all(set(cell.ids) == {*range(5)} for cell in plan.cells)
    assert plan.to_come == 0
    assert Plan.from_tree(json.loads(plan.to_bytes())).checked() == plan
    assert len([*plan.design.at_most(plan).runs()]) == 6 * 9
    other = planned(until=12, margin=0.5)
    assert (other.design.seed_counts, other.analysis.margin) == ((5, 8, 12), 0.5)
    assert other.words == ("few", "--until", "12", "--margin", "0.5")
    assert other.name == "few"
    assert {c.ids[4] for c in other.cells} == {c.ids[4] for c in plan.cells}


UNTIL = "until: {looks: [5, 7, 9], margin: 2}"


@pytest.mark.parametrize(
    ("instead", "words", "options", "message"),
    [
        (f"{UNTIL}\nseeds: 3", (), {}, "until: stands without seeds"),
        (UNTIL, ("seeds=9",), {}, "seeds: sweeps/few.yaml: until gives out the seeds"),
        ("", ("seeds=9",), {"until": 12}, "seeds: --until gives out the seeds"),
        (UNTIL, ("analysis.looks=[3,5]",), {}, "analysis.looks; remove"),
        (UNTIL, ("analysis.diverged=chance",), {}, "analysis.diverged; remove"),
        (UNTIL, ("analysis.spread=predictions",), {}, "one of auto, paired, got 'predictions'"),
        (UNTIL, ("analysis.margin=1",), {}, "margin: analysis.margin says another"),
        ("until: {looks: [3, 5, 8]}", (), {}, "the first look expects at least 5 seeds, got 3"),
        ("until: {looks: [5, 6]}", (), {}, "expected looks at least 2 seeds apart"),
        ("until: {looks: [8, 5]}", (), {}, "two or more increasing numbers"),
        ("until: {looks: [5]}", (), {}, "two or more increasing numbers"),
        ("until: {looks: 12}", (), {}, "two or more increasing numbers"),
        ("until: {look: [5, 8]}", (), {}, "a key among looks, first_seed, margin, spread"),
        ("until: {margin: -1}", (), {}, "until.margin"),
        ("until: {spread: predictions}", (), {}, "one of auto, paired, got 'predictions'"),
        ("until: {first_seed: 992}", (), {}, "the last look reaches seed 1003"),
        ("until: {first_seed: -1}", (), {}, "until.first_seed: must be at least 0, got -1"),
        ("until: 12", (), {}, "until: expected {looks: [5, 8, 12], margin: 0.5}, got 12"),
        ("", (), {"until": 6}, "--until: expected at least 7 seeds, got 6"),
        ("", (), {"until": 5000}, "seeds from 1000 up are kept for tuning"),
        ("", (), {"margin": 0.5}, "--margin: needs --until N"),
        ("", (), {"until": 12, "margin": 0.0}, "--margin"),
        (
            f"{UNTIL}\ntune: {{space: {{optim.lr: {{log: [1e-4, 1e-2]}}}}, repeats: 3}}",
            *((), {}, "or give tune.repeats=null"),
        ),
        (f"{UNTIL}\nfrom: {{seed: 0, train.epochs: 1}}", (), {}, "remove from.seed"),
    ],
)
def test_mistakes_are_one_line(planned, instead, words, options, message):
    with pytest.raises(UserError) as error:
        planned(*words, text=FILE.replace(UNTIL, instead), **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_scales_seeds_replace_the_files_looks_and_its_looks_the_seeds(planned):
    text = f"{FILE}scales: {{small: {{seeds: 2}}, other: {{until: {{looks: [6, 8]}}}}}}\n"
    assert planned(text=text, scale="small").design.seed_counts == ()
    assert planned(text=text, scale="other").design.seed_counts == (6, 8)
    fixed = text.replace(UNTIL, "seeds: 3")
    assert planned(text=fixed).design.seed_counts == ()
    assert planned(text=fixed, scale="other").seeds == tuple(range(6))
    assert planned(text=fixed, until=9).design.seed_counts == (5, 9)


# --- Which seeds are asked for ------------------------------------------------------------------


class Planted:
    """Results of every run that a plan may ask for, by (row, column, seed), told when asked."""

    def __init__(self, plan, y, missing=(), diverged=()):
        self.results = {}
        for cell in plan.design.at_most(plan).cells:
            for at, (seed, run) in enumerate(cell.ids.items()):
                test = {"top1": y[cell.row, cell.column][at] / 100, "n": 300}
                self.results[run] = {"status": "finished", "test": test}
                if (cell.row, cell.column, seed) in diverged:
                    self.results[run] |= {"status": "diverged", "step": 3}
                if (cell.row, cell.column, seed) in missing:
                    del self.results[run]

    def __call__(self, run):
        return self.results.get(run)


def values(gains, columns=("64", "128"), seed=1):
    rng = np.random.default_rng(seed)
    return {
        (row, column): 60 + gain + rng.standard_normal(9)
        for column in columns
        for row, gain in gains.items()
    }


def grown(plan, results, folder, record=seeding.nobody):
    said: list[str] = []
    grower = Seeding(plan, Store(folder / "runs"), record, said.append)
    return grower.grow(results, lambda run: ()) or plan, said


def first_looks(plan, results):
    """The looks that are taken of these results."""
    courses = follow(Evidence.collect(plan, results))
    return [*look_events(plan, courses, PastLooks((), look(plan)), {})]


def counts(plan):
    return {(cell.row, cell.column): len(cell.ids) for cell in plan.cells}


@pytest.mark.parametrize("first", [0, 100])
def test_rows_that_go_on_get_seeds_and_their_baseline_all_of_them(planned, tmp_path, first):
    """Against the pure function on the same arrays, column by column."""
    plan = planned(text=FILE.replace("margin: 2", f"margin: 2, first_seed: {first}"))
    rows, fewer = ("plain", "DPN", "asleep"), []
    for seed in range(8):
        y = values({"plain": 0, "DPN": 1.5, "asleep": -6}, seed=seed)
        found, _ = grown(plan, Planted(plan, y), tmp_path)
        for column in ("64", "128"):
            expected = seeds_given(np.array([y[row, column] for row in rows]), rows, 2)
            assert {row: counts(found)[row, column] for row in rows} == expected
            fewer.append(expected["asleep"] == 5)
        assert found.seeds == tuple(range(first, first + max(counts(found).values())))
        assert all(min(cell.ids) == first for cell in found.cells)
    assert sum(fewer) >= 8


def test_a_look_waits_for_every_run_of_its_column_and_for_no_other_column(planned, tmp_path):
    plan = planned()
    y = values({"plain": 0, "DPN": 1.5, "asleep": -6}, seed=2)
    results = Planted(plan, y, missing={("asleep", "64", 4)})
    found, said = grown(plan, results, tmp_path)
    assert {n for (_, column), n in counts(found).items() if column == "64"} == {5}
    assert counts(found)["DPN", "128"] > 5
    assert all("of 128" in line for line in said if line.startswith("look"))


def test_one_result_after_the_other_gives_what_all_at_once_give(planned, tmp_path):
    plan, order = planned(), random.Random(1)
    whole = Planted(plan, values({"plain": 0, "DPN": 1.2, "asleep": 0.8}, seed=3))
    events: list[dict] = []
    again: list[dict] = []
    once, _ = grown(plan, whole, tmp_path, events.append)
    known, whole.results = whole.results, {}
    grower, now = Seeding(plan, Store(tmp_path / "runs"), again.append), plan
    while todo := [run.id for run in now.runs() if run.id not in whole.results]:
        run = order.choice(todo)
        whole.results[run] = known[run]
        now = grower.grow(whole, lambda run: ()) or now
    assert now.cells == once.cells
    assert sorted({json.dumps(e) for e in again}) == sorted({json.dumps(e) for e in events})


def test_a_row_unlikely_to_gain_the_margin_stops_and_its_word_is_that_of_its_interval(
    planned, tmp_path
):
    words = set()
    for seed in range(6):
        plan = planned()
        results = Planted(plan, values({"plain": 0, "DPN": 0.2, "asleep": 0}, seed=seed))
        found, said = grown(plan, results, tmp_path / str(seed))
        table = tabulate(found, results.results)
        for entry in table.entries:
            stops = notes_of(table, "look.stopped", (entry.row, entry.column))
            if not stops:
                continue
            [stop] = stops
            assert (stop.values["seeds"], stop.values["margin"]) == (entry.n, 2)
            assert stop.values["share"] == pytest.approx(0.9)
            inside = entry.gain.low > -2 and entry.gain.high < 2
            assert entry.verdict == ("same within 2" if inside else "can't tell")
            words.add(entry.verdict)
            course = follow(Evidence.collect(found, results.results))[entry.column]
            assert (course.rows[entry.row].unlikely, course.rows[entry.row].seeds) == (2, entry.n)
        assert not any("less than" in line for line in said)
    assert words == {"same within 2", "can't tell"}


def test_a_diverged_variant_stops_and_a_diverged_baseline_ends_its_column(planned, tmp_path):
    plan = planned()
    y = values({"plain": 0, "DPN": 1.5, "asleep": 1.5}, seed=4)
    results = Planted(plan, y, diverged={("DPN", "64", 2), ("plain", "128", 6)})
    found, _ = grown(plan, results, tmp_path)
    assert counts(found)["DPN", "64"] == 5
    assert counts(found)["plain", "128"] == 7
    courses = follow(Evidence.collect(found, results.results))
    assert courses["64"].rows["DPN"].word == STOPPED
    assert courses["128"].next_seeds is None
    table = tabulate(found, results.results)
    [void] = notes_of(table, "void")
    assert (void.values["baseline"], void.values["looks"]) == ("plain", True)
    assert [run["seed"] for run in void.values["diverged"]] == [6]
    words = {(e.row, e.column): e.verdict for e in table.entries}
    assert words["DPN", "64"] is None


def test_alpha_is_shared_by_the_family_that_the_analysis_names(planned):
    for family, contrasts in (("column", 2), ("table", 4)):
        method = sequential_of(planned(f"analysis.family={family}"), "64")
        assert (method.contrasts, method.looks, method.margin) == (contrasts, LOOKS, 2)
    assert sequential_of(planned("analysis.spread=paired"), "64").spread == "paired"


def test_later_rows_later_looks_and_another_margin_are_a_changed_analysis(planned, tmp_path):
    plan = planned()
    y = values({"plain": 0, "DPN": 6, "asleep": -6, "new": 0}, seed=4)
    results = Planted(plan, y)
    before = first_looks(plan, results.results)
    assert [read.n for read in before] == [5, 5]
    row = "  - asleep: {optim.lr: 3e-4}\n"
    for text, said in (
        (FILE.replace(row, f"{row}  - new: {{norm: rmsnorm}}\n"), "rows: +new"),
        (FILE.replace("[5, 7, 9]", "[5, 7, 9, 12]"), "until: [5, 7, 9] -> [5, 7, 9, 12]"),
        (FILE.replace("margin: 2", "margin: 1"), "analysis.margin: 2.0 -> 1.0"),
        (FILE.replace(UNTIL, "seeds: 5"), "until: [5, 7, 9] -> none"),
    ):
        other = planned(text=text)
        known = Planted(
            dataclasses.replace(other, design=Looks(other.design.seed_counts[:3] or LOOKS)), y
        ).results
        past = PastLooks(before, look(other))
        table = tabulate(other, known, past)
        assert any(said in note for note in table.texts(*WARNING_KINDS)), table.texts(
            *WARNING_KINDS
        )
        strict = tabulate(other, known, past, strict=True)
        assert len(notes_of(strict, "looks.strict")) == 1
        assert not any(entry.verdict for entry in strict.entries)
        ended = {note.values["outcome"] for note in notes_of(strict, "look.ended")}
        assert ended == ({"judged"} if other.design.seed_counts else set())
    table = tabulate(plan, results.results, PastLooks(before, look(plan)))
    assert notes_of(table, "looks.changed") == []
    ended = [note.values for note in notes_of(table, "look.ended")]
    assert {"seeds": 5, "outcome": "decided", "judged_by": "rows"} in ended


def test_what_looks_do_not_judge_has_no_place_for_a_verdict_and_is_not_counted(planned):
    plan = planned(text=FILE.replace("epochs: 2,", "epochs: 2, eval.also: [mnist5k],"))
    results = Planted(plan, values({"plain": 0, "DPN": 6, "asleep": -6}, seed=4)).results
    for result in results.values():
        result["also"] = {"mnist5k": {"test": result["test"]}}
    table = tabulate(plan, results)
    assert [column.on for column in table.columns] == ["", "mnist5k"] * 2
    assert table_headline(table).startswith(
        "On digits, against plain, over 5 seeds: DPN helps in train.batch=64 and train.batch=128; "
        "asleep hurts in train.batch=64 and train.batch=128. "
    )
    assert false_words(table) in table_headline(table)
    assert "a chance of up to 10 %" in false_words(table)
    rows = {row: [e for e in table.entries if e.row == row] for row in ("DPN", "asleep")}
    assert wins(table, rows["DPN"]) == "helps in 2 of 2"
    assert wins(table, [e for e in rows["DPN"] if "mnist5k" in e.column]) == ""
    [average] = [line for line in render_table(table, "md").splitlines() if "| columns |" in line]
    assert "verdict" not in average
    fixed = tabulate(dataclasses.replace(plan, design=Fixed()), results)
    [average] = [line for line in render_table(fixed, "md").splitlines() if "| columns |" in line]
    assert "| verdict |" in average
    assert wins(fixed, [e for e in fixed.entries if e.row == "DPN"]) == "helps in 4 of 4"


# --- Real trainings -----------------------------------------------------------------------------


def test_a_sweep_gives_seeds_at_its_looks_and_says_what_each_decided(calm):
    plan, said = driven(calm), (calm.folder / "said").read_text()
    assert counts(plan)["asleep", "64"] < counts(plan)["plain", "64"]
    for column in ("64", "128"):
        assert counts(plan)["plain", column] >= counts(plan)["DPN", column] >= 5
    store = Store(calm.folder / "runs")
    results = store.results(plan.runs()).results
    courses = follow(
        Evidence.collect(plan, results, RunFiles(store.metrics, store.probe, store.predictions))
    )
    assert all(course.next_seeds is None for course in courses.values())
    assert all(course.rows["asleep"].word == "hurts" for course in courses.values())
    rows = ("DPN", "asleep")
    told = {row: {c: course.rows[row] for c, course in courses.items()} for row in rows}
    told = {row: {c: (now.seeds, now.word) for c, now in of.items()} for row, of in told.items()}
    assert latest_decisions(plan, looks.parse_events(looks_of(calm))) == told
    of_one_column = looks_of(calm)
    for event in of_one_column:
        event["columns"]["128"]["decided"] = {}
    decided = latest_decisions(plan, looks.parse_events(of_one_column))
    assert decided == {row: of | {"128": (0, "goes on")} for row, of in told.items()}
    other = dataclasses.replace(plan, design=Looks((5, 6)))
    assert latest_decisions(other, looks.parse_events(looks_of(calm))) == {}
    assert "look at 5 seeds of 64: " in said
    status = calm("status", "few").out
    assert re.search(r"^ asleep .* 2 of 2 columns *$", status, re.MULTILINE)
    assert all(line in status for line in said.splitlines() if line.startswith("look at"))
    table = calm("table", "few", "--notes", "full").out
    assert "Decided at 5 seeds" in table
    assert "the looks at 5, 7 and 9 seeds" in table
    assert english.write("looks.below", {"seeds": 5}) in table
    found = reading.read_verdicts(plan, store, results).table
    verdicts = {(e.row, e.column): e.verdict for e in found.entries}
    assert verdicts["asleep", "64"] == "hurts"
    assert found.complete
    assert all(line.verdict is None for block in found.blocks for line in block.lines)


def test_every_look_is_sealed_once_whoever_reads_it_again(calm):
    events = looks_of(calm)
    assert len({json.dumps(event) for event in events}) == len(events)
    courses = [
        (label, column["n"])
        for event in events
        for label, column in event["columns"].items()
        if column["decided"]
    ]
    assert len(set(courses)) == len(courses)
    assert {("64", 5), ("128", 5)} <= set(courses)
    calm("table", "few")
    calm("sweep", "few", "launcher=inline")
    calm("report", "few")
    assert looks_of(calm) == events
    assert "nothing wrong" in calm("verify", "few").out


@pytest.mark.faults
def test_five_kills_decide_as_none_does(calm, tmp_path):
    shell = Shell(tmp_path)
    declare_seeding(tmp_path)
    shutil.copytree(calm.folder / "runs" / "cache", tmp_path / "runs" / "cache")
    disturb(shell, ("sweep", "few", "launcher.attempts=1000"), random.Random(9), 5)
    shell("sweep", "few", "launcher=inline")
    assert driven(shell).cells == driven(calm).cells
    # The table was of seeds of which more were to come: a peek, beside the same looks.
    assert looks_of(shell) == looks_of(calm)
    for words in (("table", "few"), ("table", "few", "--format", "tidy")):
        assert shell(*words).out == calm(*words).out


def test_a_crash_between_look_and_plan_changes_nothing(calm, tmp_path):
    """The look is sealed; the plan that it asks for is not written, and the driver dies."""
    shell = Shell(tmp_path)
    shutil.copytree(calm.folder, tmp_path, dirs_exist_ok=True)
    store = Store(tmp_path / "runs")
    before = driven(shell)
    cells = tuple(
        dataclasses.replace(cell, ids={s: run for s, run in cell.ids.items() if s < 5})
        for cell in before.cells
    )
    first = dataclasses.replace(before, seeds=before.seeds[:5], cells=cells)
    with Ledger.driving(store) as ledger:
        ledger.announce(first)
        store.write_plan(first)
        ledger.plan(first)
    table = shell("table", "few").out
    assert "to the next look, at 7 seeds" in table or before.seeds == first.seeds
    shell("sweep", "few", "launcher=inline")
    assert driven(shell).cells == before.cells
    # The table was of seeds of which more were to come: a peek, beside the same looks.
    assert [one for one in looks_of(shell) if not one["planned"]] == looks_of(calm)


def test_a_bundle_prints_the_verdicts_of_the_looks(calm, tmp_path):
    calm("export", "few", tmp_path / "bundle")
    bundle = ("--from", str(tmp_path / "bundle"))
    full = ("--notes", "full")
    assert calm("table", *bundle, *full).out == calm("table", "few", *full).out
    # Short notes differ in the command alone that prints the full ones.
    short, command = calm("table", *bundle).out, f"`ablate table {' '.join(bundle)} --notes full`"
    assert short.count(command) == 1
    short = short.replace(command, "`ablate table few --notes full`")
    assert short == calm("table", "few").out
    wide = calm("table", *bundle, "--wide", "--format", "md").out
    assert f"column by column: `ablate table {' '.join(bundle)} --no-wide`" in wide


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("analysis.margin=1", "or drive the sweep with the new value"),
        ("analysis.alpha=0.1", "or drive the sweep with the new value"),
        ("--until 12", "was driven with other looks"),
        ("--until 9 --margin 2", "was driven with other looks"),
    ],
)
def test_words_that_say_other_looks_or_another_analysis_are_refused(calm, words, message):
    assert message in calm("table", "few", *words.split(), code=2).err


@pytest.mark.parametrize("analysis", [{"margin": 1.0}, {"alpha": 0.1}])
def test_a_table_in_python_refuses_another_analysis_than_that_of_the_looks(calm, analysis):
    before = looks_of(calm)
    with refused("or drive the sweep with the new value"):
        ablate.Store(calm.folder / "runs").sweep("few").table(**analysis)
    assert looks_of(calm) == before


def test_a_plan_says_the_expected_and_the_greatest_number_of_runs(calm):
    told = calm("plan", "few", "--detect", "1", code=2).err
    assert told.startswith("ablate: --detect: forecasts a fixed number of seeds")
    assert told.count("\n") == 1
    text = calm("plan", "few").out
    for said in (
        *("until: looks at 5, 7, 9 seeds, margin 2 points", "at most 54 runs"),
        *("if no row gains anything", "if all rows gain the margin", "twice the margin"),
    ):
        assert said in text
    tree = json.loads(calm("plan", "few", "--spread", "1", "--format", "json").out)["until"]
    assert tree["most"]["runs"] == 54
    method = stats.Sequential(LOOKS, 2.0, contrasts=2)
    runs = [case["runs"] for case in tree["expected"]]
    assert runs == [pytest.approx(2 * stats.runs_until(method, 2, gain)) for gain in (0, 2, 4)]


class Reread:
    """Looks before, at nine comparisons of every column."""

    def contrasts(self, column):
        return 9

    gains = contrasts


def test_the_forecast_counts_the_comparisons_that_were_read_before(planned):
    """A look with more comparisons decides less, so that more runs follow."""
    plan = planned()
    costs = Costs({}, {}, "", 0.0, seed_s=dict.fromkeys([c.label for c in plan.columns], 36.0))
    spreads = seed_spreads(plan, 1.0, {}, lambda run: [])
    runs = {
        name: [runs for _, runs, _ in simulate_looks(plan, costs, spreads, past).expected]
        for name, past in (("new", None), ("reread", Reread()))
    }
    assert runs["reread"][-1] > 1.02 * runs["new"][-1]


def test_what_looks_under_another_analysis_decided_is_not_told(planned):
    plan, other = planned(), planned(until=12, margin=0.5)
    seen = [looks.until_look(p, "64", 5, DECIDED, 2) for p in (plan, other)]
    assert [*recorded_decisions(plan, seen)] == [*recorded_decisions(plan, seen[:1])]
    assert len([*recorded_decisions(plan, seen)]) == 1
    assert [*recorded_decisions(dataclasses.replace(plan, design=Fixed()), seen)] == []


def test_a_table_wide_family_has_the_contrasts_that_looks_judge(planned):
    """Sets of `eval.also` have no verdicts by looks, and so no share of alpha."""
    text = FILE.replace("epochs: 2,", "epochs: 2, eval.also: [mnist5k],")
    text += "analysis: {family: table}\n"
    plan = planned(text=text)
    assert sequential_of(plan, plan.columns[0].label).contrasts == 2 * 2


def test_the_baseline_alone_in_a_column_waits_for_no_look(planned):
    text = FILE + "exclude: [{train.batch: 128, stem: dpn}, {train.batch: 128, optim.lr: 3e-4}]\n"
    plan = planned(text=text)
    assert [len(cell.ids) for cell in plan.design.at_most(plan).cells] == [9, 9, 9, 5]
