"""The spread of rows from their predictions, and gains for new images: against the code that the
figures of the manual were simulated with, against their definitions, and what they promise."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import Shell
from scipy import stats as oracle
from simulation import answers, classify, family, judged, moved
from test_table import every_text, finished, make_plan, tabulate

from ablate.analysis import stats
from ablate.analysis.stats import Noise
from ablate.planning.probing import no_images
from ablate.report.formats import render
from ablate.shared.errors import UserError
from ablate.store.store import Store

GOLDEN = json.loads((Path(__file__).parent / "golden" / "predictions.json").read_text())
SHORT, LONG = 2_500, 20_000  # simulated tables


def by_predictions(rows, **settings):
    return family(rows, spread="predictions", **settings)


# --- One table ----------------------------------------------------------------------------------


def test_the_decisions_are_those_of_the_code_that_was_simulated():
    found = {True: 0, False: 0}
    for table in GOLDEN["tables"]:
        y = np.array(table["y"])
        told = Noise(*(np.array(table[key]) for key in ("flips", "squares")), 100 / table["images"])
        fit = stats.fit(y, 0, by_predictions(len(y)), told)
        same = ~fit.pool.few[1:]  # that code has no guard
        assert fit.gain[1:] == pytest.approx(table["gain"], abs=1e-7)
        assert fit.half[1:][same] == pytest.approx(np.array(table["half"])[same], rel=1e-6)
        assert fit.pool.tripped == table["tripped"]
        found[table["tripped"]] += 1
        assert same.sum() >= len(same) - 1
    assert min(found.values()) > 5


def test_the_noise_is_that_of_independent_flips():
    right = np.random.default_rng(0).random((2, 4, 7)) < 0.6
    found = stats.noise(right)
    for row in range(2):
        q = [right[row, :, i].astype(float).var(ddof=1) for i in range(7)]
        assert found.flips[row] == pytest.approx(sum(q))
        assert found.squares[row] == pytest.approx(sum(x**2 for x in q))
        assert found.variance[row] == pytest.approx(sum(q) * 100**2 / 7**2)
        assert found.error[row] == pytest.approx(sum(x**2 for x in q) * 100**4 / 7**4)
    never = stats.noise(np.ones((1, 4, 7), dtype=bool))
    assert never.variance == pytest.approx(0.25 * 100**2 / 7**2)


@pytest.mark.parametrize("n", [3, 5])
def test_equal_noise_gives_the_pooled_intervals(n):
    y = np.random.default_rng(1).normal(90, 1, (400, 7, n))
    y[:, 3] += np.random.default_rng(2).normal(0, 3, (400, n))
    same = Noise(np.full((400, 7), 5.0), np.full((400, 7), 1e-13), 100 / 300)
    plain, found = (stats.fit(y, 0, m, same) for m in (family(7), by_predictions(7)))
    assert (found.pool.own == plain.pool.own).all()
    assert (found.pool.tripped == plain.pool.tripped).all()
    alike = ~found.pool.tripped
    assert 0.7 < alike.mean() < 1
    np.testing.assert_allclose(found.half[alike, 1:], plain.half[alike, 1:], rtol=1e-12)
    np.testing.assert_allclose(found.pool.ratio, plain.pool.ratio, rtol=1e-9)
    # Pooled gains have other degrees of freedom; the variance of a gain is the same.
    both = found.pool.tripped & (plain.pool.ratio > 0)
    np.testing.assert_allclose(found.pool.gain[both, 1:], plain.pool.gain[both, 1:], rtol=1e-9)


def test_a_single_variant_has_its_paired_t():
    right, _ = answers(np.random.default_rng(3), [0.9, 0.8], [4.0, 4.0], 5, 200, 1)
    y = right[0].mean(-1) * 100
    expected = oracle.ttest_rel(y[1], y[0]).confidence_interval(0.95)
    gain = stats.column_gains(y, 0, by_predictions(2), None, right[0]).rows[1].gain
    assert (gain.low, gain.high) == pytest.approx((expected.low, expected.high))


def test_a_row_of_hardly_any_flips_has_the_spread_of_all():
    right = np.zeros((4, 3, 100), dtype=bool)
    right[2:] = np.random.default_rng(4).random((2, 3, 100)) < 0.5
    right[0, :, :90] = right[1, :, :90] = True
    right[0, 0, 95] = right[1, 1, 96] = right[1, 2, 97] = True  # 3 images flip
    y = right.mean(-1) * 100
    plain = stats.column_gains(y, 0, family(4))
    found = stats.column_gains(y, 0, by_predictions(4), None, right)
    assert [row.few for row in found.rows[1:]] == [True, False, False]
    assert found.rows[1].gain == plain.rows[1].gain
    assert found.rows[2].gain.high != pytest.approx(plain.rows[2].gain.high)
    assert not any(row.few for row in plain.rows[1:])


def test_rows_with_missing_seeds_and_unstable_ones_go_the_way_of_every_column():
    right, _ = answers(np.random.default_rng(5), [0.9] * 5, [4.0] * 5, 5, 300, 1)
    right = right[0]
    y = right.mean(-1) * 100
    y[2, 3:] = np.nan
    unstable = np.array([False, False, False, False, True])
    found = stats.column_gains(y, 0, by_predictions(5), unstable, right).rows
    # The row's three seeds are those of the fit, with the images of these seeds.
    three = stats.column_gains(y[:4, :3], 0, by_predictions(5), None, right[:4, :3]).rows
    assert found[2].gain == three[2].gain
    assert found[2].gain.n == 3
    # A row that is whole is fitted with all that are; the unstable one has left, with its images.
    rest = [0, 1, 3]
    whole = stats.column_gains(y[rest], 0, by_predictions(5), None, right[rest]).rows
    assert (found[1].gain, found[3].gain) == (whole[1].gain, whole[2].gain)
    assert found[4].own == "instability"
    assert found[4].gain.sd == pytest.approx((y[4] - y[0]).std(ddof=1))
    void = stats.column_gains(y, 0, by_predictions(5), np.array([True] + [False] * 4), right)
    assert void.void
    assert all(row.gain.low is None for row in void.rows[1:])


# --- What they promise --------------------------------------------------------------------------

MIXED = [0.98, *(0.98 - 0.38 * i / 9 for i in range(9, 0, -1))]
FLIPS = [12.0, *[0.3] * 4, *[12.0] * 5]


@pytest.mark.parametrize(
    "draws",
    [SHORT, pytest.param(LONG, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    ("accuracies", "sharpness", "shifted", "n", "error", "power"),
    [
        ([0.97] * 10, [4.0] * 10, (), 3, 0.035, 0.5),
        (MIXED, [4.0] * 10, (), 3, 0.052, 0.68),
        ([0.97] * 10, FLIPS, (), 3, 0.05, 0.45),
        ([0.97] * 10, [4.0] * 10, (0,), 3, 0.1, 0),
        ([0.97] * 10, [4.0] * 10, (0,), 5, 0.055, 0),
    ],
    ids=["equal", "accuracies", "half noisy by flips", "baseline 3x", "baseline 3x, 5 seeds"],
)
def test_predictions_keep_the_family_wise_error(
    accuracies, sharpness, shifted, n, error, power, draws
):
    rng = np.random.default_rng(6)
    made = moved(rng, classify(rng, accuracies, sharpness, n, 300, draws), shifted)
    found = judged(made, spread="predictions")
    assert found.error <= error
    assert found.power >= power
    if accuracies is MIXED:  # what they are for
        assert found.power > judged(made).power + 0.3


def population_by_hand(right, baseline):
    """(MS_s, MS_i, MS_e) of the differences, seed by image."""
    d = 100 * (right.astype(float) - baseline)
    n, images = d.shape
    rest = d - d.mean(1)[:, None] - d.mean(0)[None] + d.mean()
    return (
        images * sum((d[s].mean() - d.mean()) ** 2 for s in range(n)) / (n - 1),
        n * sum((d[:, i].mean() - d.mean()) ** 2 for i in range(images)) / (images - 1),
        (rest**2).sum() / ((n - 1) * (images - 1)),
    )


def test_a_gain_of_the_population_is_the_two_way_analysis_of_variance():
    right, _ = answers(np.random.default_rng(7), [0.8, 0.9], [4.0, 4.0], 4, 50, 1)
    baseline, row = right[0]
    found = stats.population_gain(row, baseline, 0.1)
    by_seed, by_image, rest = population_by_hand(row, baseline)
    total = by_seed + by_image - rest
    df = total**2 / (by_seed**2 / 3 + by_image**2 / 49 + rest**2 / (3 * 49))
    half = oracle.t.ppf(0.95, df) * math.sqrt(total / (4 * 50))
    assert found.mean == pytest.approx(100 * (row.mean() - baseline.mean()))
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))
    assert found.n == 4
    assert found.se == pytest.approx(math.sqrt(total / 200))
    nothing = stats.population_gain(row, row)
    assert (nothing.low, nothing.high) == (0, 0)


@pytest.mark.parametrize("draws", [1_500, pytest.param(LONG, marks=pytest.mark.slow)])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_a_gain_of_the_population_covers_new_images_too(n, draws):
    """Of two rows that are alike in the population the true gain is 0, whatever 300 images say."""
    rng = np.random.default_rng(8)
    wide = narrow = 0
    for start in range(0, draws, 250):
        right, _ = answers(rng, [0.9, 0.9], [4.0, 4.0], n, 300, min(250, draws - start))
        for baseline, row in right:
            found = stats.population_gain(row, baseline)
            wide += found.low <= 0 <= found.high
            d = 100 * (row.mean(1) - baseline.mean(1))
            half = oracle.t.ppf(0.975, n - 1) * d.std(ddof=1) / math.sqrt(n)
            narrow += abs(d.mean()) <= half
    assert 0.935 <= wide / draws <= 0.97
    assert narrow / draws < 0.93


# --- Tables -------------------------------------------------------------------------------------

ROWS = ["base", "quiet", "noisy", "other"]


def planted(**analysis):
    """A plan, its results, and a reader of what its runs predicted: one row flips far more."""
    plan = make_plan(ROWS, **analysis)
    right, _ = answers(
        np.random.default_rng(9), [0.9, 0.95, 0.8, 0.9], [4.0, 12.0, 0.5, 4.0], 3, 300, 1
    )
    tables, results = {}, {}
    for row, cell in zip(right[0], plan.cells, strict=True):
        for seed, run in cell.ids.items():
            tables[run] = np.rec.fromarrays([np.where(row[seed], 0, 3)], names="rank")
            results[run] = finished(float(row[seed].mean()), predictions_sha256=f"of {run}")

    def predictions(run, on, sha256):
        assert (on, sha256) == ("", f"of {run}")
        return tables.get(run)

    return plan, results, predictions, right[0], tables


def test_a_table_judges_each_row_by_its_own_images():
    plan, results, predictions, right, _ = planted(spread="predictions")
    table = tabulate(plan, results, predictions=predictions)
    expected = stats.column_gains(right.mean(-1) * 100, 0, by_predictions(4), None, right)
    found = {entry.row: entry for entry in table.entries}
    for row, gain in zip(ROWS, expected.rows, strict=True):
        assert found[row].pool == ("kept" if gain else "")
        if gain:
            assert (found[row].gain.low, found[row].gain.high) == pytest.approx(
                (gain.gain.low, gain.gain.high)
            )
    least, most = expected.spreads
    assert least < 0.8 * most
    for text in every_text(table):
        assert "seed blocks, each row's spread from its predictions" in text
        assert f"by their predictions {least:.2f} to {most:.2f})" in text
    lines = csv.DictReader(io.StringIO(render(table, "csv")))
    facts = {f["quantity"]: f["value"] for f in lines if f["quantity"].startswith("spread")}
    assert float(facts["spread.least"]) == pytest.approx(least)
    assert float(facts["spread.most"]) == pytest.approx(most)


def test_a_column_without_some_predictions_shares_one_spread_and_says_so():
    plan, results, predictions, *_, tables = planted(spread="predictions")
    del tables["noisy@#1"]
    table = tabulate(plan, results, predictions=predictions)
    plain = tabulate(make_plan(ROWS), results)
    assert [e.gain for e in table.entries] == [e.gain for e in plain.entries]
    for text in every_text(table):
        assert "one spread for all rows, since seed 1 of noisy has no predictions" in text
    tables["noisy@#1"] = tables["noisy@#0"][:-1]
    table = tabulate(plan, results, predictions=predictions)
    assert "since noisy was tested on other images" in every_text(table)[0]


def test_what_moves_all_images_of_a_run_is_said_of_its_row_or_of_the_baseline():
    for row, text in (
        ("other", "times the spread that its predictions and the other rows tell (F test, "),
        ("base", "times the spread that its predictions and the variants tell: judged by its own"),
    ):
        plan, results, predictions, right, tables = planted(spread="predictions")
        at = ROWS.index(row)
        right[at, 1] = True  # no flip of single images
        tables[f"{row}@#1"]["rank"] = 0
        results[f"{row}@#1"]["test"]["top1"] = 1.0
        table = tabulate(plan, results, predictions=predictions)
        expected = stats.column_gains(right.mean(-1) * 100, 0, by_predictions(4), None, right)
        ratio = expected.ratio if row == "base" else expected.rows[at].ratio
        assert ratio > 2
        for said in every_text(table)[:-1]:
            assert f"{ratio:.1f} {text}" in said.replace("&#x27;", "'")


def test_averages_and_contrasts_are_pooled():
    plan, results, *_ = planted(spread="predictions")
    two = dataclasses.replace(
        make_plan(ROWS, ("a", "b"), spread="predictions"), analysis=plan.analysis
    )
    results = {
        run: results[f"{cell.row}@#{seed}"] for cell in two.cells for seed, run in cell.ids.items()
    }
    found, plain = (
        tabulate(dataclasses.replace(two, analysis=a), results)
        for a in (two.analysis, dataclasses.replace(two.analysis, spread="pooled"))
    )
    assert found.blocks == plain.blocks
    assert found.blocks


@pytest.mark.parametrize(
    ("analysis", "line"),
    [
        ({"metric": "loss"}, "says which images are right, which makes top1 of classify, not loss"),
        ({"screen": False}, "needs both screens; leave analysis.screen out"),
    ],
)
def test_predictions_are_for_top1_and_both_screens(analysis, line):
    plan, results, predictions, *_ = planted(spread="predictions", **analysis)
    with pytest.raises(UserError) as told:
        tabulate(plan, results, predictions=predictions)
    assert str(told.value) == (
        f"analysis.spread: predictions {line}; choose pooled, paired or welch"
    )
    assert no_images(*(lambda p: (p, p.metric))(make_plan(ROWS))) == ""


def test_the_population_is_in_every_format_where_it_is_asked_for():
    plan, results, predictions, right, _ = planted(margin=1)
    table = tabulate(plan, results, predictions=predictions, population=True)
    by_row = {entry.row: entry.population for entry in table.entries}
    assert by_row["base"] is None
    for row in (1, 2, 3):
        assert by_row[ROWS[row]] == stats.population_gain(right[row], right[0], 0.05 / 3)
    plain = tabulate(plan, results)
    assert [(e.gain, e.verdict) for e in table.entries] == [
        (e.gain, e.verdict) for e in plain.entries
    ]
    interval = f"[{by_row['noisy'].low:+.2f}, {by_row['noisy'].high:+.2f}]"
    for format in ("md", "html", "latex"):
        text = render(table, format, show=("gain", "population"))
        assert "for new images, too" in text
        assert interval in text.replace("$-$", "-").replace("&#8722;", "-").replace("−", "-")
        assert "crossed random effects" in text
    assert f"{by_row['noisy'].low!r}" in render(table, "csv")
    tree = json.loads(render(table, "json"))
    [noisy] = [e for c in tree["columns"] for e in c["entries"] if e["row"] == "noisy"]
    assert noisy["population"]["high"] == by_row["noisy"].high
    assert "population" not in render(plain, "json")


# --- Real runs ----------------------------------------------------------------------------------

SWEEP = ("stem=none,dpn,pre", "model.depth=1", "train.steps=15", "seeds=3", "launcher=inline")
BY_IMAGES = "analysis.spread=predictions"


@pytest.fixture(scope="module")
def driven(tmp_path_factory) -> Shell:
    shell = Shell(tmp_path_factory.mktemp("predictions"))
    shell("sweep", *SWEEP, BY_IMAGES, "--as", "mine")
    return shell


def files_of(shell: Shell) -> list[list[Path]]:
    """What the runs of each row predicted."""
    store = Store(shell.folder / "runs")
    plan = store.read_plan("mine")
    return [[store.rundir(cell.ids[seed]).predictions for seed in range(3)] for cell in plan.cells]


def gains(text):
    """(low, high) by row, of a table in CSV."""
    facts = {
        (f["row"], f["quantity"]): float(f["value"])
        for f in csv.DictReader(io.StringIO(text))
        if f["value"] and not f["seed"]
    }
    rows = {row for row, quantity in facts if quantity == "gain.low"}
    return {row: (facts[row, "gain.low"], facts[row, "gain.high"]) for row in rows}


def test_the_stores_table_and_the_bundles_are_of_the_files_of_predictions(driven):
    shown = driven("table", "--format", "csv").out
    right = np.array([[np.load(p)["rank"] == 0 for p in row] for row in files_of(driven)])
    expected = stats.column_gains(right.mean(-1) * 100, 0, by_predictions(3), None, right).rows
    found = gains(shown)
    for row, gain in zip(("dpn", "pre"), expected[1:], strict=True):
        assert found[row] == pytest.approx((gain.gain.low, gain.gain.high))
    driven("export", "out")
    assert driven("table", "--from", "out", "--format", "csv").out == shown
    both = [
        driven("table", *words, "--show", "gain,population").out
        for words in ((), ("--from", "out"))
    ]
    assert both[0] == both[1]
    assert "for new images, too" in both[0]
    assert driven("verify", "out").code == 0


def test_predictions_that_a_run_did_not_leave_are_refused_and_missing_ones_are_told(
    driven, tmp_path
):
    shutil.copytree(driven.folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    shell = Shell(tmp_path, 100)
    [path, *_] = files_of(shell)[1]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    told = shell("table", code=1).err
    assert told.startswith(
        f"ablate: {path.relative_to(tmp_path)}: not what the run left; remove the run's folder"
    )
    assert told.count("\n") == 1
    path.unlink()
    text = shell("table").out
    assert "one spread for all rows, since seed 0 of dpn has no predictions" in text
    pooled, without = (
        gains(shell("table", *words, "--format", "csv").out)
        for words in (("analysis.spread=pooled",), ())
    )
    assert without == pooled


def test_words_that_predictions_cannot_judge_are_refused_in_one_line(driven):
    for words, line in (
        (("analysis.metric=loss",), "analysis.spread: predictions says which images are right"),
        (("analysis.screen=false",), "analysis.spread: predictions needs both screens"),
        (
            ("analysis.metric=loss", "analysis.spread=pooled", "--show", "gain,population"),
            "--show population: says which images are right",
        ),
    ):
        told = driven("table", *words, code=2).err
        assert told.startswith(f"ablate: {line}")
        assert told.count("\n") == 1
    told = driven("plan", "stem=none,dpn", BY_IMAGES, "analysis.metric=loss", code=2).err
    assert told.startswith("ablate: analysis.spread: predictions says which images are right")
