"""Trends: slopes of gains along a number of the columns, against least squares by others."""

import csv
import dataclasses
import io
import json

import numpy as np
import pytest
from scipy import stats as oracle
from simulation import family
from test_table import finished, make_plan, tabulate

from ablate.analysis import stats
from ablate.analysis.stats import Method
from ablate.analysis.trends import where
from ablate.planning.cell import Column, series
from ablate.planning.expand import plan as expand
from ablate.planning.plan import Plan
from ablate.report.formats import render

X = np.array([1.0, 2.0, 4.0, 7.0])


def slopes(y, x=X):
    """By numpy's polyfit, of every row in every seed: (C, R, S) -> (R, S)."""
    columns, rows, seeds = y.shape
    return np.polyfit(x, y.reshape(columns, -1), 1)[0].reshape(rows, seeds)


def test_a_trend_is_a_line_through_the_gains_of_a_seed_and_an_interval_over_seeds():
    y = np.random.default_rng(70).normal(90, 1, (4, 3, 5)) + 2 * np.arange(3)[:, None]
    found = stats.trends(y, X, 1, Method("paired", contrasts=2, comparisons=2))
    assert found[1] is None
    for row in (0, 2):
        by_seed = [oracle.linregress(X, y[:, row, s] - y[:, 1, s]).slope for s in range(5)]
        expected = oracle.ttest_1samp(by_seed, 0)
        ends = expected.confidence_interval(1 - 0.05 / 2)
        gain = found[row].gain
        assert (gain.gain.low, gain.gain.high) == pytest.approx((ends.low, ends.high))
        assert (gain.gain.mean, gain.gain.n) == (pytest.approx(np.mean(by_seed)), 5)
        assert gain.raw_p == pytest.approx(expected.pvalue)
        assert found[row].columns == (0, 1, 2, 3)


def test_the_slope_is_that_of_one_least_squares_fit_with_all_seeds_and_rows():
    """A level for each row of each seed, a slope for each seed, a slope more for each variant; and
    the spread is that of a row's slopes over seeds."""
    y = np.random.default_rng(71).normal(90, 1, (4, 3, 5)) * np.arange(1, 6)
    places = [(c, r, s) for c in range(4) for r in range(3) for s in range(5)]
    design = np.array(
        [
            [
                *np.eye(15)[5 * r + s],
                *(X[c] * np.eye(5)[s]),
                *(X[c] * np.eye(3)[r][1:]),
            ]
            for c, r, s in places
        ]
    )
    fitted = np.linalg.lstsq(design, np.array([y[place] for place in places]))[0]
    method = Method(contrasts=2, comparisons=2)
    gains = [found.gain.gain for found in stats.trends(y, X, 0, method)[1:]]
    assert [gain.mean for gain in gains] == pytest.approx(fitted[-2:])
    table = slopes(y)
    assert gains[0].sd == pytest.approx(np.sqrt(2 * table.var(1, ddof=1).mean()))


def test_slopes_are_judged_as_a_column_is():
    y = np.random.default_rng(72).normal(90, 1, (4, 6, 4))
    y[:, 5] += 3 * np.random.default_rng(73).normal(0, 1, (4, 4))  # a screen sees this row
    for method in (family(6), family(6, spread="paired")):
        found = stats.trends(y, X, 0, method)
        expected = stats.column_gains(slopes(y), 0, method).rows
        for trend, gain in zip(found[1:], expected[1:], strict=True):
            assert trend.gain.gain.low == pytest.approx(gain.gain.low)
            assert trend.gain.gain.high == pytest.approx(gain.gain.high)
            assert trend.gain.own == gain.own


def test_a_row_has_the_columns_where_it_and_a_sound_baseline_have_all_seeds():
    y = np.random.default_rng(74).normal(90, 1, (4, 4, 5))
    y[1, 2, 3] = np.nan  # row 2 lacks a seed in column 1; row 3 two columns
    y[[0, 2], 3] = np.nan
    found = stats.trends(y, X, 0, family(4))
    assert [trend and trend.columns for trend in found] == [None, (0, 1, 2, 3), (0, 2, 3), None]
    without = stats.trends(y[[0, 2, 3]][:, [0, 1, 2]], X[[0, 2, 3]], 0, family(4))
    assert found[2].gain == without[2].gain
    unstable = np.zeros((4, 4), dtype=bool)
    unstable[3, 0] = unstable[0, 1] = True  # the baseline; a row
    found = stats.trends(y, X, 0, family(4), unstable)
    assert [trend and trend.columns for trend in found] == [None, (0, 1, 2), None, None]
    assert found[1].gain.own == "instability"


def wrong(tables, baseline_sd=1.0, n=5, levels=4, correlation=0.6):
    """The share of tables of 10 rows with a false word: gains that differ from column to column,
    but along no line; results of a seed correlate over rows and columns, spreads grow with x."""
    rng = np.random.default_rng(75)
    x = np.arange(1.0, levels + 1)
    bent = rng.normal(0, 3, (levels, 10, 1))
    bent -= bent.mean(0)
    bent -= x[:, None, None] * (slopes(bent, x) - slopes(bent[:, :1], x))  # one slope for all
    told = []
    for _ in range(tables):
        y = rng.normal(0, 1, (levels, 10, n)) * np.sqrt(x)[:, None, None]
        y[:, 0] *= baseline_sd
        y += rng.normal(0, np.sqrt(correlation / (1 - correlation)), (levels, 1, n)) + bent
        gains = (found.gain.gain for found in stats.trends(y, x, 0, family(10))[1:])
        told.append(any(gain.low > 0 or gain.high < 0 for gain in gains))
    return np.mean(told)


@pytest.mark.parametrize(
    ("tables", "settings", "most"),
    [
        (400, {}, 0.033 + 2 * 0.0089),
        (400, {"baseline_sd": 3.0}, 0.051 + 2 * 0.011),
        pytest.param(20_000, {}, 0.042, marks=pytest.mark.slow),
        pytest.param(20_000, {"n": 3}, 0.042, marks=pytest.mark.slow),
        pytest.param(20_000, {"baseline_sd": 3.0}, 0.052, marks=pytest.mark.slow),
        pytest.param(20_000, {"baseline_sd": 3.0, "n": 3}, 0.093, marks=pytest.mark.slow),
    ],
)
def test_a_false_word_is_as_rare_as_in_a_column(tables, settings, most):
    """The bounds are a column's (docs/statistics.md); short ones have twice the simulation's
    error."""
    assert wrong(tables, **settings) <= most


def test_a_true_slope_is_covered_and_found():
    rng, x = np.random.default_rng(76), np.arange(1.0, 6)
    true = np.array([0.0, 0.0, 0.5, -0.5])
    held, found = [], []
    for _ in range(400):
        y = rng.normal(0, 1, (5, 4, 5)) + x[:, None, None] * true[:, None]
        gains = [trend.gain.gain for trend in stats.trends(y, x, 0, family(4))[1:]]
        held.append(all(g.low <= t <= g.high for g, t in zip(gains, true[1:], strict=True)))
        found.append(gains[1].low > 0)
    assert np.mean(held) >= 0.95 - 2 * 0.011
    # A slope has the sd 1 / sqrt(10), a gain's mean sqrt(2 / 5) of it: .5 is 2.5 of these.
    assert 0.3 <= np.mean(found) <= 0.7


# --- In a table ---------------------------------------------------------------------------------

DEPTHS = (2, 4, 8, 16)
NOISE = np.random.default_rng(77).normal(0, 0.1, (2, 4, 4, 3))  # rate, depth, row, seed


def grown(scale="log2", **analysis):
    """Two learning rates x four depths, given out of order. At the first rate `deep` gains 1.5 a
    doubling from depth 4 on, `less` loses as much, `even` gains 2 everywhere."""
    depths = dict(zip(DEPTHS, range(4), strict=True))
    columns = {
        f"{lr} {depth}": Column(f"{lr} {depth}", {"lr": lr, "depth": depth})
        for lr in (0.1, 0.2)
        for depth in (16, 2, 8, 4)
    }
    rows = ["base", "deep", "less", "even"]
    contrasts = {"deeper": {"across": "depth", "trend": scale}}
    plan = make_plan(rows, tuple(columns), contrasts=contrasts, **analysis)
    plan = dataclasses.replace(plan, columns=tuple(columns.values()))
    results, y = {}, np.empty((2, 4, 4, 3))
    for cell in plan.cells:
        set_ = columns[cell.column].settings
        rate, depth, row = set_["lr"] == 0.2, depths[set_["depth"]], rows.index(cell.row)
        gain = (0, 1.5 * depth, -1.5 * depth, 2)[row] * (not rate)
        for seed, run in cell.ids.items():
            value = y[int(rate), depth, row, seed] = 80 + gain + NOISE[int(rate), depth, row, seed]
            results[run] = finished(value / 100)
    return plan, results, y


@pytest.mark.parametrize(("scale", "x"), [("log2", [1, 2, 3, 4]), ("linear", DEPTHS)])
def test_the_table_has_a_line_for_each_row_and_each_setting_of_the_other_keys(scale, x):
    plan, results, y = grown(scale)
    table = tabulate(plan, results)
    (block,) = (block for block in table.blocks if block.kind == "trend")
    assert [(line.column, line.label) for line in block.lines] == [
        (f"lr={lr}", row) for lr in (0.1, 0.2) for row in ("deep", "less", "even")
    ]
    assert block.contrasts == 3
    for rate in (0, 1):
        expected = stats.column_gains(slopes(y[rate], np.array(x, float)), 0, family(4)).rows[1:]
        for line, gain in zip(block.lines[3 * rate :], expected, strict=False):
            assert (line.gain.low, line.gain.high) == pytest.approx((gain.gain.low, gain.gain.high))
    assert [line.verdict for line in block.lines] == [
        *("grows", "shrinks", "can't tell"),
        *["can't tell"] * 3,
    ]
    assert [line.where for line in block.lines[:3]] == [
        *("helps from depth=4 on", "hurts from depth=4 on", "helps at all 4 values of depth")
    ]
    assert {line.where for line in block.lines[3:]} == {
        "no verdict of a difference at any value of depth"
    }
    facts = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    told = {
        (f["column"], f["row"], f["quantity"]): f["value"] or f["text"]
        for f in facts
        if f["quantity"].startswith("trend.")
    }
    assert float(told["lr=0.1", "deep", "trend.deeper"]) == block.lines[0].gain.mean
    assert told["lr=0.1", "deep", "trend.deeper.verdict"] == "grows"
    assert told["lr=0.1", "deep", "trend.deeper.where"] == "helps from depth=4 on"
    text = render(table, "md")
    per = {"log2": "doubling", "linear": "unit"}[scale]
    assert f"**Trend deeper: gain per {per} of depth** (slope of the least-squares line" in text
    assert "| variant | columns | slope of gain [95 % CI] | n | verdict | by the columns'" in text


def test_a_family_of_the_table_has_the_trends_of_all_settings():
    plan, results, _ = grown(family="table")
    (block,) = (block for block in tabulate(plan, results).blocks if block.kind == "trend")
    assert block.contrasts == 6


def test_a_column_whose_baseline_is_unstable_is_left_out_and_named():
    plan, results, _ = grown()
    results["base@0.1 16#1"]["collapsed"] = True
    results["less@0.1 2#1"] = {"status": "diverged", "step": 3}
    (block,) = (block for block in tabulate(plan, results).blocks if block.kind == "trend")
    lines = {line.label: line for line in block.lines if line.column == "lr=0.1"}
    assert lines["deep"].columns == ("0.1 2", "0.1 4", "0.1 8")
    assert "without 0.1 16: its baseline is unstable" in block.note
    assert "less" not in lines  # two columns have no line
    assert lines["deep"].where == "helps at depth=4, 8"  # of 16 nothing is told


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (["can't tell", "helps", "helps"], "helps from d=2 on"),
        (["helps", "hurts", "hurts"], "helps at d=1; hurts from d=2 on"),
        (["higher", "higher", "can't tell"], "higher up to d=2"),
        (["helps", "can't tell", "helps"], "helps at d=1, 4.5"),
        (["can't tell", None, "helps"], "helps at d=4.5"),
        (
            ["no worse than 1", "same within 1", "unstable"],
            "no verdict of a difference at any value of d",
        ),
        ([None, None, None], ""),
    ],
)
def test_from_where_on_by_the_verdicts_of_the_columns(verdicts, said):
    assert where([1.0, 2.0, 4.5], verdicts, "d") == said


def test_columns_of_a_series_differ_in_one_number_alone():
    settings = [{"d": 4, "e": 1}, {"d": 1, "e": 1}, {"d": 1, "e": 2}, {"d": 2, "e": 1}]
    assert series(settings, "d") == [[1, 3, 0]]
    assert series([{"d": "4"}, {"d": True}, {"d": None}, {}], "d") == []


FILE = """
base: {recipe: quick, data: digits, model.arch: mu/4}
across: {model.depth: [1, 2, 4]}
variants: [{pre: {}}, {post: {block.mlp: post}}]
analysis:
  contrasts:
    deeper: {across: model.depth, trend: log2}
    again: {across: model.depth, from: 1, to: 2}
scales: {small: {across: {model.depth: [1, 2]}}}
"""


def test_a_scale_with_few_columns_is_without_the_trend(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(FILE)
    whole = expand([str(file)], store=tmp_path)[0]
    stored = Plan.from_tree(json.loads(whole.to_bytes()))
    assert [*whole.analysis.contrasts] == [*stored.analysis.contrasts] == ["again", "deeper"]
    small, _ = expand([str(file)], scale="small", store=tmp_path)
    assert [*small.analysis.contrasts] == ["again"]
    assert "contrast 'deeper' has no columns at this scale" in small.notes


UNTIL = "until: {looks: [5, 8], margin: 1.0}\n"


@pytest.mark.parametrize("until", ["", UNTIL])
def test_a_sweep_crossed_by_words_has_its_contrasts_at_each_value_and_its_looks(
    tmp_path, monkeypatch, until
):
    """The gain of post is 1 point a doubling at the lower rate, and 2 at the higher, by hand."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    text = FILE.replace("from: 1, to: 2", "from: 1, to: 4")
    (tmp_path / "sweeps" / "mine.yaml").write_text(text + until)
    words = ["mine", "optim.lr=1e-3,3e-3"]
    plan, _ = expand(words, store=tmp_path / "runs", name="other")
    assert plan.name == "other"
    assert plan.until == ((5, 8) if until else ())
    assert len(plan.columns) == 3 * 2
    noise = np.random.default_rng(1)
    settings = {column.label: column.settings for column in plan.columns}
    results = {}
    for run in plan.runs():
        one = settings[run.cell.column]
        slope = {1e-3: 1.0, 3e-3: 2.0}[one["optim.lr"]]
        gain = slope * np.log2(one["model.depth"]) * (run.cell.row == "post")
        results[run.id] = finished((60 + gain) / 100 + 1e-6 * noise.normal())
    found = {
        (block.name, line.column): line.gain.mean
        for block in tabulate(plan, results).blocks
        for line in block.lines
        if block.kind in ("contrast", "trend")
    }
    expected = {
        (name, f"optim.lr={lr}"): slope * (2 if name == "again" else 1)
        for name in ("deeper", "again")
        for lr, slope in ((0.001, 1.0), (0.003, 2.0))
    }
    assert found == {place: pytest.approx(mean, abs=0.01) for place, mean in expected.items()}
