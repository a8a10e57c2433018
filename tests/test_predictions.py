"""Tables by which images runs get right: of planted predictions, and of real runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from conftest import Shell, records
from pages import blocks
from simulation import family
from support.tables import every_text, finished, make_plan, noted_texts, notes_of, tabulate

from ablate.analysis import stats
from ablate.planning.design import Looks
from ablate.planning.expand import plan_from_words as expanded
from ablate.planning.plan import Plan
from ablate.report.formats import render_table
from ablate.store import looks
from ablate.store.store import Store

ROWS = ["base", "quiet", "noisy", "other"]
SEVERAL = "stem=none,dpn,pre"


@pytest.mark.parametrize(
    ("words", "spread"),
    [
        ((SEVERAL,), "images"),
        ((SEVERAL, "data=digits,mnist5k", "seeds=[3,4]"), "images"),
        ((SEVERAL, "analysis.metric=loss"), "one way"),
        ((SEVERAL, "analysis.looks=[3,5]", "analysis.family=table"), "images"),
        ((SEVERAL, "analysis.spread=paired"), "paired"),
        (("figure2", "--scale", "smoke"), "one way"),  # of norms of gradients
    ],
    ids=" ".join,
)
def test_what_auto_comes_to(words, spread, tmp_path):
    scale = words[2] if "--scale" in words else None
    made, _ = expanded(words[:1] if scale else words, store=tmp_path, scale=scale)
    assert made.spread == spread
    assert Plan.from_tree(json.loads(made.to_bytes())).spread == spread


def chancy(rng, accuracies, n, images):
    """Which images each run gets right (R, n, images): of each row, some by chance."""
    easy = rng.normal(np.array(accuracies)[:, None, None], 0.2, (len(accuracies), 1, images))
    return rng.random((len(accuracies), n, images)) < easy


def by_images(right):
    flips = stats.Flips((right,))
    return stats.column_gains(100 * right.mean(-1), 0, family(4, spread="images"), None, flips)


def planted(**analysis):
    """A plan, its results, and a reader of what its runs predicted: one row flips far more."""
    right = chancy(np.random.default_rng(9), [0.9, 1.1, 0.6, 0.9], 3, 300)
    return predicted(make_plan(ROWS, **analysis), right)


def predicted(plan, right):
    """A plan, the results of its runs, a reader of their predictions, and these: `right` says which
    images each run gets right (R, S, images)."""
    tables, results = {}, {}
    for row, cell in zip(right, plan.cells, strict=True):
        for seed, run in cell.ids.items():
            tables[run] = np.rec.fromarrays([np.where(row[seed], 0, 3)], names="rank")
            results[run] = finished(float(row[seed].mean()), predictions_sha256=f"of {run}")

    def predictions(run, on, sha256):
        assert (on, sha256) == ("", f"of {run}")
        return tables.get(run)

    return plan, results, predictions, right, tables


def test_a_table_judges_each_row_by_its_own_images():
    plan, results, predictions, right, _ = planted()
    table = tabulate(plan, results, predictions=predictions)
    expected = by_images(right)
    entries = {entry.row: entry for entry in table.entries}
    for row, gain in zip(ROWS[1:], expected.rows[1:], strict=True):
        ends = entries[row].gain.low, entries[row].gain.high
        assert ends == pytest.approx((gain.gain.low, gain.gain.high))
    least, most = expected.spreads
    assert least < 0.8 * most
    assert table.columns[0].spreads == pytest.approx((least, most))
    [column] = json.loads(render_table(table, "json"))["columns"]
    assert column["spreads"] == pytest.approx([least, most])
    assert (column["flips"], column["df"]) == (expected.flips, expected.df)
    assert [e["likeness"] for e in column["entries"]] == [*expected.likeness]
    [metric] = notes_of(table, "metric")
    assert metric.values["interval"]["methods"] == ["images"]
    assert all(metric.text in text for text in noted_texts(table))
    assert not any(f"{least:.2f} to {most:.2f}" in text for text in every_text(table))


def test_intervals_are_computed_again_from_what_a_table_prints(here):
    """By the code of docs/anatomy.md, on a table as tidy CSV: each row has degrees of freedom of
    its own."""
    plan, results, predictions, *_ = planted()
    table = tabulate(plan, results, predictions=predictions)
    Path("table.tidy.csv").write_text(render_table(table, "tidy"))
    names = {}
    exec(compile(blocks("run")["intervals"], "docs/anatomy.md", "exec"), names)
    gains = {("", entry.row): entry.gain for entry in table.entries if entry.gain}
    means = {("", entry.row): entry.accuracy for entry in table.entries}
    for computed, estimates in ((names["gains"], gains), (names["means"], means)):
        assert computed.keys() == estimates.keys()
        for row, estimate in estimates.items():
            assert computed[row] == pytest.approx((estimate.low, estimate.high), rel=1e-4)
    degrees = {gain.df for gain in gains.values()}
    assert len(degrees) == len(gains)
    assert table.columns[0].df in degrees
    tree = json.loads(render_table(table, "json"))["columns"][0]["entries"]
    assert {one["gain"]["df"] for one in tree if one["gain"]} == degrees


def test_the_noise_of_gains_is_computed_again_from_the_predictions_of_a_bundle(here):
    """By the code of docs/statistics.md, on the files that a bundle has."""
    rng = np.random.default_rng(9)
    easy = rng.normal(0.9, 0.2, (4, 1, 300)) + rng.normal(0, 0.05, (4, 5, 1))  # better, worse runs
    right = rng.random((4, 5, 300)) < easy
    folder = Path("quickstart-bundle", "predictions")
    folder.mkdir(parents=True)
    lines = ["row,seed,id"]
    for row, seeds in zip(ROWS, right, strict=True):
        for seed, marks in enumerate(seeds):
            lines.append(f"{row},{seed},{row}-{seed}")
            np.save(
                folder / f"{row}-{seed}.npy",
                np.rec.fromarrays([np.where(marks, 0, 3)], names="rank"),
            )
    (folder.parent / "runs.csv").write_text("\n".join(lines) + "\n")
    names = {}
    exec(compile(blocks("run")["flips"], "docs/statistics.md", "exec"), names)
    expected = by_images(right)
    assert not expected.tripped
    assert names["rows"] == ROWS
    for row, gain in enumerate(expected.rows[1:], 1):
        assert gain.own_reason == ""
        assert names["df"][row] == pytest.approx(gain.df, rel=1e-9)
        assert names["v"][row] ** 0.5 == pytest.approx(gain.gain.sd, rel=1e-9)
        ends = names["gain"][row] - names["half"][row], names["gain"][row] + names["half"][row]
        assert ends == pytest.approx((gain.gain.low, gain.gain.high), rel=1e-4)
    assert names["u2"] > 0


def test_a_row_that_a_look_judges_alone_has_its_paired_t_and_says_so():
    """Two rows are decided at 5 seeds by their images; at 8 one row is left."""
    looks_at = (5, 8)
    right = chancy(np.random.default_rng(3), [0.9, 0.5, 0.9, 0.6], 8, 300)
    plan = make_plan(ROWS, seeds=8)
    decided = (ROWS[1], ROWS[3])
    cells = tuple(
        replace(
            cell, ids={s: run for s, run in cell.ids.items() if s < 5 or cell.row not in decided}
        )
        for cell in plan.cells
    )
    plan = replace(plan, cells=cells, design=Looks(looks_at))
    tables, results = {}, {}
    for row, cell in zip(right, plan.cells, strict=True):
        for seed, run in cell.ids.items():
            tables[run] = np.rec.fromarrays([np.where(row[seed], 0, 3)], names="rank")
            results[run] = finished(float(row[seed].mean()))
    table = tabulate(plan, results, predictions=lambda run, on, sha256: tables[run])
    entries = {entry.row: entry for entry in table.entries}
    for row in decided:
        assert (entries[row].n, entries[row].verdict) == (5, "hurts")
        assert entries[row].gain.df > 4
        [note] = table.on(row, "", "gain")
        assert "5 seeds" in note
        assert "paired" not in note
    last = entries[ROWS[2]]
    differences = 100 * (right[2] - right[0].astype(int)).mean(-1)
    alpha = stats.Sequential(looks_at, None, "images", contrasts=3).method_at(1).alpha
    half = scipy.stats.t.ppf(1 - alpha / 2, 7) * scipy.stats.sem(differences)
    assert (last.n, last.gain.df) == (8, 7.0)
    assert last.gain.high - last.gain.mean == pytest.approx(half)
    [note] = table.on(ROWS[2], "", "gain")
    assert "8 seeds" in note
    assert "paired t" in note


def test_a_column_without_some_predictions_is_judged_without_images_and_says_so():
    plan, results, predictions, right, tables = planted()
    del tables["noisy@#1"]
    table = tabulate(plan, results, predictions=predictions)
    expected = stats.column_gains(100 * right.mean(-1), 0, family(4, spread="one way")).rows
    entries = {entry.row: entry for entry in table.entries}
    for row, gain in zip(ROWS[1:], expected[1:], strict=True):
        assert entries[row].gain.low == pytest.approx(gain.gain.low)
    [lacking] = notes_of(table, "noise.lacking")
    assert lacking.values["reason"] == "seed 1 of noisy has no predictions.npy"
    assert all(lacking.text in text for text in noted_texts(table))
    tables["noisy@#1"] = tables["noisy@#0"][:-1]
    table = tabulate(plan, results, predictions=predictions)
    [lacking] = notes_of(table, "noise.lacking")
    assert lacking.values["reason"] == "noisy was tested on other images"


def test_one_variant_without_some_predictions_says_that_its_interval_may_be_too_narrow():
    """Seeds of alike accuracy that get other images right: the flips are its interval's floor."""
    rng = np.random.default_rng(4)
    counts = [[60, 60, 60], [66, 66, 67]]  # right images of 100, by row and seed
    right = np.array([[rng.permutation(100) < count for count in row] for row in counts])
    plan, results, predictions, _, tables = predicted(make_plan(ROWS[:2]), right)
    whole = tabulate(plan, results, predictions=predictions)
    assert whole.columns[0].lacking == ""
    del tables["quiet@#1"]
    table = tabulate(plan, results, predictions=predictions)
    [_, entry], [_, floored] = table.entries, whole.entries
    assert entry.gain.high - entry.gain.low < (floored.gain.high - floored.gain.low) / 5
    assert (entry.verdict, floored.verdict) == ("helps", "can't tell")
    [lacking] = notes_of(table, "noise.no-floor")
    assert lacking.values["reason"] == table.columns[0].lacking
    assert all(lacking.text in text for text in noted_texts(table))


def test_images_tell_of_shares_of_right_ones_alone():
    plan, results, predictions, *_ = planted(metric="loss")
    assert "not loss" in plan.no_images(plan.metric)
    top1 = make_plan(ROWS)
    assert top1.no_images(top1.metric) == ""
    table = tabulate(plan, results, predictions=predictions)
    assert all(not column.lacking for column in table.columns)


def test_a_look_is_of_the_spread_that_judges(tmp_path):
    """So a word that says the default is no other analysis."""

    def look(*words):
        return looks.look(expanded(words, store=tmp_path, name="x")[0])

    assert look(SEVERAL) == look(SEVERAL, "analysis.spread=auto")
    assert look(SEVERAL) != look(SEVERAL, "analysis.spread=paired")


def test_the_population_is_in_every_format_where_it_is_asked_for():
    plan, results, predictions, right, _ = planted(margin=1)
    table = tabulate(plan, results, predictions=predictions, population=True)
    by_row = {entry.row: entry.population for entry in table.entries}
    gains = by_images(right).rows
    assert [*by_row.values()] == [
        (row and stats.population_gain(right[row], right[0], gains[row], 0.05 / 3)) or None
        for row in range(4)
    ]
    plain = tabulate(plan, results, predictions=predictions)
    judged = [[(e.gain, e.verdict) for e in one.entries] for one in (table, plain)]
    assert judged[0] == judged[1]
    low, high = by_row["noisy"].low, by_row["noisy"].high
    [population] = notes_of(table, "population")
    assert population.values["family"] == {"contrasts": [3], "scope": "column"}
    for format in ("md", "html", "latex"):
        text = render_table(table, format, show=("gain", "population"))
        assert f"[{low:+.2f}, {high:+.2f}]" in text.replace("$-$", "-").replace("−", "-")
        assert population.text in text.replace("\\", "")
    assert f"{low!r}" in render_table(table, "tidy")
    tree = json.loads(render_table(table, "json"))
    [noisy] = [e for c in tree["columns"] for e in c["entries"] if e["row"] == "noisy"]
    assert noisy["population"]["high"] == high
    assert "population" not in render_table(plain, "json")


# --- Real runs ----------------------------------------------------------------------------------

SWEEP = ("stem=none,dpn,pre", "model.depth=1", "train.steps=15", "seeds=3", "launcher=inline")


@pytest.fixture(scope="module")
def driven(tmp_path_factory) -> Shell:
    shell = Shell(tmp_path_factory.mktemp("predictions"))
    shell("sweep", *SWEEP, "--as", "mine")
    return shell


def files_of(shell: Shell) -> list[list[Path]]:
    """What the runs of each row predicted."""
    store = Store(shell.folder / "runs")
    plan = store.read_plan("mine")
    return [[store.rundir(cell.ids[seed]).predictions for seed in range(3)] for cell in plan.cells]


def gains(text):
    """(low, high) by row, of a table in CSV."""
    lines = [line for line in records(text) if line["value"] and not line["seed"]]
    facts = {(line["row"], line["quantity"]): float(line["value"]) for line in lines}
    rows = {row for row, quantity in facts if quantity == "gain.low"}
    return {row: (facts[row, "gain.low"], facts[row, "gain.high"]) for row in rows}


@pytest.mark.whole
def test_the_stores_table_and_the_bundles_are_of_the_files_of_predictions(driven):
    shown = driven("table", "--format", "tidy").out
    right = np.array([[np.load(p)["rank"] == 0 for p in row] for row in files_of(driven)])
    method = family(3, spread="images")
    expected = stats.column_gains(right.mean(-1) * 100, 0, method, None, stats.Flips((right,)))
    for row, gain in zip(("dpn", "pre"), expected.rows[1:], strict=True):
        assert gains(shown)[row] == pytest.approx((gain.gain.low, gain.gain.high))
    driven("export", "out")
    assert driven("table", "--from", "out", "--format", "tidy").out == shown
    words = ("--show", "gain,population", "--notes", "full")
    both = [driven("table", *where, *words).out for where in ((), ("--from", "out"))]
    assert both[0] == both[1]
    assert "for new images, too" in both[0]
    assert driven("verify", "out").code == 0


@pytest.fixture
def copied(driven, tmp_path) -> Shell:
    shutil.copytree(driven.folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    return Shell(tmp_path, 100)


@pytest.mark.whole
def test_missing_predictions_are_told(copied):
    files_of(copied)[1][0].unlink()
    text = copied("table").out
    assert "since seed 0 of dpn has no predictions.npy" in " ".join(text.split())


def test_files_without_which_figures_stand_are_retried_until_verify_finds_nothing(copied):
    """The note of who trained it, the spec, predictions and weights that are gone: no figure needs
    them."""
    before = copied("table", "--format", "tidy").out
    folders = sorted((copied.folder / "runs" / "runs").iterdir())
    env, spec = folders[0] / "env.json", folders[1] / "run.json"
    env.write_text(env.read_text().replace("attempts", "attempt"))
    spec.write_text(spec.read_text().replace('"batch"', '"batsch"'))
    (folders[2] / "predictions.npy").unlink()
    (folders[3] / "weights.safetensors").unlink()
    assert len(copied("verify", "mine", code=1).out.splitlines()) == 4
    out = copied("sweep", *SWEEP, "--as", "mine", "--retry", "damaged").out
    assert out.count("put aside: ") == out.count("finished: ") == 4
    assert "nothing wrong" in copied("verify", "mine").out
    assert copied("table", "--format", "tidy").out == before


@pytest.mark.whole
def test_damaged_files_are_named_all_at_once_and_retried_to_the_same_bits(copied):
    before = copied("table", "--format", "tidy").out
    folders = sorted((copied.folder / "runs" / "runs").iterdir())
    names = ("predictions.npy", "metrics.jsonl", "result.json", "predictions.npy")
    for folder, name in zip(folders, names, strict=False):
        with open(folder / name, "ab") as file:
            file.write(b" ")
    text = " ".join(copied("table").out.split())
    for folder, name in zip(folders, names, strict=False):
        assert f"{(folder / name).relative_to(copied.folder)} was edited since" in text
    assert "`ablate sweep ... --retry damaged` trains it again" in text
    retried = ("sweep", *SWEEP, "--as", "mine", "--retry", "damaged")
    out = copied(*retried).out
    assert out.count("put aside: ") == len(names) == out.count("finished: ")
    assert copied("table", "--format", "tidy").out == before
    aside = sorted((copied.folder / "runs" / "damaged").iterdir())
    assert [path.name for path in aside] == [f"{f.name}-1" for f in folders[: len(names)]]
    kept = (aside[0] / "metrics.jsonl").read_bytes()
    assert (folders[0] / "metrics.jsonl").read_bytes() == kept
    assert "put aside" not in copied(*retried).out


def test_a_population_is_of_shares_of_right_ones(driven):
    told = driven("table", "analysis.metric=loss", "--show", "gain,population", code=2).err
    assert told.startswith("ablate: --show population: says which images are right")
    assert told.count("\n") == 1
