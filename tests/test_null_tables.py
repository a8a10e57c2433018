"""`ablate doctor --statistics`: tables without any gain, made of a row's own runs, and of all rows.
What the pure functions count, by brute force; what they must find in normal data; and the command
on a store."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from scipy import stats as oracle
from support.stores import sow_store

from ablate.analysis import stats
from ablate.analysis.stats.null_tables import FEWEST_RUNS, mixed_error, null_error, null_shape

PAIRED, ONE_WAY, IMAGES = (stats.Method(spread=s) for s in ("paired", "one way", "images"))
LOOSE = stats.Method(spread="paired", alpha=0.5)  # of two seeds, hardly a table errs at 0.05


def wrong(tables: np.ndarray, k: int, n: int) -> np.ndarray:
    """Which tables (T, (k + 1) n) have a row that differs from the first by scipy's paired t."""
    rows = tables.reshape(-1, k + 1, n)
    ps = [oracle.ttest_rel(rows[:, r], rows[:, 0], axis=-1).pvalue for r in range(1, k + 1)]
    return np.min(ps, axis=0) < LOOSE.alpha / k


# --- The pure function --------------------------------------------------------------------------


def test_paired_agrees_with_every_table_that_there_is():
    """All 6! orders of 6 seeds in sets of 2; of 7 seeds all 7!/1!."""
    for seeds, seed in ((6, 3), (7, 8)):
        y = np.random.default_rng(seed).normal(90, 1, seeds) ** 2
        orders = np.array(list(itertools.permutations(range(seeds))))[:, :6]
        expected = wrong(y[orders], 2, 2).mean()
        found = null_error(y[None], None, LOOSE, 2, 2, tables=20_000)
        assert 0.1 < expected < 0.9
        assert found.share == pytest.approx(expected, abs=4 * (expected / 20_000) ** 0.5)


def test_the_jackknife_leaves_each_seed_out():
    """One seed is far out, so that the share hangs on it: the interval is that of all orders, in
    which another seed of the table has its place."""
    y = np.random.default_rng(5).normal(90, 1, 6)
    y[4] += 3
    orders = np.array(list(itertools.permutations(range(6))))
    without = []
    for seed in range(6):
        row, place = np.nonzero(orders == seed)
        tables = orders.copy()
        tables[row, place] = orders[row, (place + 3) % 6]  # of the next set, at the other place
        without.append(wrong(y[tables], 2, 2).mean())
    se = np.sqrt(5 / 6 * ((np.array(without) - np.mean(without)) ** 2).sum())
    found = null_error(y[None], None, LOOSE, 2, 2, tables=40_000)
    assert se > 0.01
    assert found.high - found.share == pytest.approx(1.96 * se, rel=0.1)
    assert found.low == pytest.approx(max(0, found.share - 1.96 * se), abs=0.2 * se)


@pytest.mark.whole
@pytest.mark.parametrize(("seeds", "k"), [(12, 3), (30, 9)])
def test_on_normal_results_paired_errs_as_often_as_it_may(seeds, k):
    """5 %, less what Bonferroni leaves; the interval holds it in most data sets."""
    rng = np.random.default_rng(seeds)
    shape = null_shape(seeds, 9)
    assert shape == (k, 3)
    found = [
        null_error(rng.normal(90, 1, (4, seeds)), None, PAIRED, 3, k, tables=1000)
        for _ in range(30)
    ]
    mean = np.mean([one.share for one in found])
    assert 0.044 < mean < 0.054
    assert np.mean([one.low <= mean <= one.high for one in found]) > 0.8


def test_mixed_rows_agree_with_every_table_that_there_is():
    """All 20 choices of 3 of 6 seeds, each of 3 rows as the baseline: a row's mean over them, less
    that over all, is as far out as the mean of 3 seeds is from the truth."""
    y = np.random.default_rng(9).normal(90, [[1.0], [3.0], [0.5]], (3, 6)) ** 2
    away = y - y.mean(1, keepdims=True)
    wrong_tables = []
    for seeds in itertools.combinations(range(6), 3):
        for base in range(3):
            others = [row for row in range(3) if row != base]
            gains = away[others][:, seeds] - away[base, seeds]
            mean, se = gains.mean(1) / np.sqrt(1 / 2), gains.std(1, ddof=1) / np.sqrt(3)
            critical = oracle.t.ppf(1 - LOOSE.alpha / 4, 2)
            wrong_tables.append((abs(mean) > critical * se).any())
    expected = np.mean(wrong_tables)
    found = mixed_error(y, None, LOOSE, 3, tables=15_000)
    assert 0.1 < expected < 0.9
    assert found.share == pytest.approx(expected, abs=4 * (expected / 15_000) ** 0.5)
    assert found.low < found.share < found.high


@pytest.mark.whole
def test_on_normal_rows_of_unlike_spreads_paired_errs_as_often_as_it_may():
    rng = np.random.default_rng(10)
    scale = np.array([[1.0], [1.0], [3.0], [0.3]])
    found = [
        mixed_error(scale * rng.normal(0, 1, (4, 20)), None, PAIRED, 3, tables=400).share
        for _ in range(60)
    ]
    assert 0.040 < np.mean(found) < 0.056
    # One spread of all rows errs where they are unlike, which tables of one row can't show.
    y = scale * rng.normal(0, 1, (4, 60))
    mixed, alike = (f(y, None, ONE_WAY, 3, *k) for f, k in ((mixed_error, ()), (null_error, (3,))))
    assert mixed.share > alike.share + 0.015


def test_mixed_rows_are_judged_by_the_images_of_a_table():
    """The share is that of `fit` on all images of the same seeds of all rows."""
    rng = np.random.default_rng(11)
    shift = rng.normal(0, 0.1, (3, 12, 1))
    right = rng.random((3, 12, 200)) < np.where(rng.random(200) < 0.8, 1.0, 0.5 + shift)
    y = 100 * right.mean(-1)
    found = mixed_error(y, right, stats.Method(spread="images", alpha=0.5), 3, tables=150)
    method = stats.Method(spread="images", alpha=0.5, contrasts=2, variants=2)
    draw, told = np.random.default_rng(0), []  # as the function is seeded
    for base in range(3):
        order = [base, *(row for row in range(3) if row != base)]
        for seeds in draw.permuted(np.tile(np.arange(12), (50, 1)), axis=1)[:, :3]:
            some = y[order][:, seeds] - y[order].mean(1, keepdims=True)
            more = some.mean(1, keepdims=True) * (1 / np.sqrt(1 - 3 / 12) - 1)
            fit = stats.fit(
                some + more, method, stats.ImageFlips.from_right(right[order][:, seeds])
            )
            told.append((abs(fit.gain) > fit.half)[1:].any())
    assert found.share > 0.1
    assert found.share == np.mean(told)


def test_images_are_judged_as_a_table_of_them_is():
    """The share is that of `fit` on all images of the same seeds, though most of them never flip
    and are left away."""
    rng = np.random.default_rng(1)
    shift = rng.normal(0, 0.1, (2, 12, 1))
    right = rng.random((2, 12, 300)) < np.where(rng.random(300) < 0.8, 1.0, 0.5 + shift)
    y = 100 * right.mean(-1)
    loose = stats.Method(spread="images", alpha=0.5)
    found = null_error(y, right, loose, 3, 3, tables=400)
    told = []
    draw = np.random.default_rng(0)  # as the function is seeded
    for row in range(2):
        method = stats.Method(spread="images", alpha=0.5, contrasts=3, variants=3)
        for seeds in draw.permuted(np.tile(np.arange(12), (200, 1)), axis=1).reshape(-1, 4, 3):
            fit = stats.fit(y[row][seeds], method, stats.ImageFlips.from_right(right[row][seeds]))
            told.append((abs(fit.gain) > fit.half)[1:].any())
    assert found.share > 0.2
    assert found.share == np.mean(told)


def test_runs_that_are_all_alike_tell_nothing_and_have_no_interval():
    same = np.full((2, 9), 90.0)
    right = np.ones((2, 9, 50), dtype=bool)
    for method in (PAIRED, ONE_WAY, IMAGES):
        assert null_error(same, right, method, 3, 2, tables=50) == (0, None, None)


def test_rows_with_missing_results_use_the_seeds_that_they_have():
    y = np.random.default_rng(2).normal(90, 1, (2, 12))
    y[1, [0, 5, 7]] = np.nan
    found = null_error(y, None, PAIRED, 3, 2, tables=500)
    assert 0 < found.share < 0.2
    assert found == null_error(y, None, PAIRED, 3, 2, tables=500)  # seeded


@pytest.mark.parametrize(
    ("seeds", "variants", "shape"),
    [
        *((9, 9, (2, 3)), (11, 9, (2, 3)), (12, 9, (3, 3)), (30, 9, (9, 3)), (30, 20, (9, 3))),
        *((30, 4, (4, 6)), (12, 2, (2, 4)), (12, 1, (1, 6))),
    ],
)
def test_as_many_variants_as_fit_then_as_many_seeds(seeds, variants, shape):
    assert null_shape(seeds, variants) == shape
    assert FEWEST_RUNS == 9


# --- The command --------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_sweep_is_judged_by_its_images_and_beside_it_in_pairs(shell):
    sow_store(shell.folder / "runs", "photos", 12, "norm=layernorm,rmsnorm")
    done = shell("doctor", "--statistics")
    [line] = done.out.splitlines()
    assert line.startswith("ok       verdicts  photos: tables without a gain ")
    assert ": jackknife over seeds], by paired t in " in line
    assert "averaged over your rows" in line
    assert " (K = 3, n = 3; 4 rows of 12 seeds; judged by the test images; 5 % is " in line
    assert line.endswith("with your rows as they are, each as the baseline in turn (K = 3, n = 3)")
    assert not (shell.folder / "runs" / "looks.jsonl").exists()  # no rows were compared
    assert done.out == shell("doctor", "photos", "--statistics").out
    tree = json.loads(shell("doctor", "photos", "--statistics", "--format", "json").out)
    [told] = tree["statistics"]
    assert [told[key] for key in ("variants", "seeds", "rows", "row_seeds")] == [3, 3, 4, [12, 12]]
    assert f"in {100 * told['wrong']['share']:.1f} % [" in line
    assert f"; in {100 * told['mixed']['share']:.1f} % [" in line
    assert tree["findings"][0]["text"] in line


def test_a_metric_without_images_is_judged_one_way(shell):
    sow_store(shell.folder / "runs", "photos", 9, "norm=layernorm,rmsnorm", "analysis.metric=loss")
    line = shell("doctor", "photos", "--statistics").out
    assert "(K = 2, n = 3; 4 rows of 9 seeds; judged by one variance of all rows; 5 % " in line
    # Where predictions are gone, images tell nothing of top-1 either.
    store = sow_store(shell.folder / "more", "others", 9, "norm=layernorm,rmsnorm")
    next(iter((store.root / "runs").glob("*/predictions.npy"))).unlink()
    line = shell("doctor", "--statistics", "--store", store.root).out
    assert "judged by one variance of all rows, because seed " in line
    assert " has no predictions.npy; 5 % is allowed)" in line


def test_too_few_seeds_are_refused_with_what_would_do(shell):
    store = sow_store(shell.folder / "runs", "few", 3)
    needs = "a row needs 9 seeds that finished, three for a baseline and three for each of two"
    done = shell("doctor", "few", "--statistics", code=2)
    assert done.err.startswith(f"ablate: few: {needs} variants, and no row has as many: `ablate ")
    assert " seeds=9 " in done.err
    assert len(done.err.splitlines()) == 1
    assert shell("doctor", "--statistics", code=2).err == done.err
    # Beside a sweep that has enough it is a line; a row with too few seeds is left out.
    sow_store(store.root, "many", 9, "norm=scalenorm,rmsnorm", finished_seeds=8)
    first, second = sorted(shell("doctor", "--statistics").out.splitlines())
    assert "(K = 2, n = 3; 2 rows of 9 seeds; " in first
    assert second.startswith(f"warning  verdicts  few: {needs}")
    # A single variant is judged by its paired t, as in tables.
    line = shell(
        "doctor", "--statistics", "--store", sow_store(shell.folder / "one", "one", 9).root
    ).out
    assert line.count("[") == 2  # of one row's seeds, and of both rows as they are
    assert "(K = 1, n = 4; 2 rows of 9 seeds; judged by paired t; 5 % is allowed)" in line
    assert "expected one driven in" in shell("doctor", "fewer", "--statistics", code=2).err
    assert "--scale" in shell("doctor", "--statistics", "--scale", "s", code=2).err
    assert "--repair" in shell("doctor", "--statistics", "--repair", code=2).err
