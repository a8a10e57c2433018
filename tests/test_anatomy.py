"""The pages that explain a table: their numbers follow from one another, their sentences are those
that the tool writes."""

import re

import guides
import numpy as np
import pytest
import scipy.stats
from pages import PAGES, README

from ablate.analysis import english, stats

PAGE = PAGES["docs/anatomy.md"]
EXPLAINING = (
    *("docs/anatomy.md", "docs/statistics.md", "docs/designs.md"),
    *(page for page in PAGES if page.startswith(guides.FOLDERS)),
)
CONTRASTS, SEEDS, IMAGES, ALPHA = 3, 12, 500, 0.05
# Phrases that readers stumbled over.
UNCLEAR = (
    "told",
    "beside",
    "out of line",
    "hangs on",
    "leave away",
    "goes without",
    "counts whole",
    "by images",
    "is asked for",
    "of those",
    "whose it is",
)

INTERVAL = {
    "alpha": ALPHA,
    "examples": "images",
    "family": {"contrasts": [CONTRASTS], "scope": "column"},
    "looks": [],
    "methods": ["images"],
}
METRIC = {
    "contrast": "gain over plain ViT",
    "lower": False,
    "name": "top-1 accuracy",
    "neutral": False,
    "points": "points",
}
TEST = {"examples": "images", "on": "", "sizes": [IMAGES], "untested": ""}
NOISE = {
    "examples": "images",
    "half": 1.137,
    "heading": "",
    "share": 0.522,
    "size": IMAGES,
    "with_more": None,
}
COMMON = {"metric": METRIC, "alpha": ALPHA, "seeds": True, "interval": INTERVAL}
NOTES = {
    "reading": {**COMMON, "effects": None, "uneven": False},
    "metric": {**COMMON, "test": TEST},
    "noise.resolution": {"columns": [NOISE], "points": "points", "seeds": SEEDS},
    "interval.of-mean-and-gain": {},
}


def table_rows(text: str, first: str) -> list[list[str]]:
    """Return the cells of the rows below the head whose first cells are `first`."""
    body = text[text.index(first) :].split("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in body.splitlines()[2:]]


def interval_of(cell: str) -> tuple[float, float]:
    low, high = re.search(r"\[([-+.\d]+), ([-+.\d]+)\]", cell).groups()
    return float(low), float(high)


def worked_example() -> tuple[dict[str, str], dict[str, float]]:
    """Return the cells of the worked example, and the numbers that they begin with, by quantity."""
    lines = table_rows(PAGES["docs/statistics.md"], "| quantity | how | value |")
    cells = {quantity: cell for quantity, _, cell in lines}
    first = {quantity: re.match(r"[\d.]+", cell) for quantity, cell in cells.items()}
    return cells, {quantity: float(number[0]) for quantity, number in first.items() if number}


@pytest.mark.parametrize("key", NOTES)
def test_the_notes_are_those_that_the_tool_writes(key):
    assert f"- {english.write(key, NOTES[key])}\n" in PAGE


def test_the_table_is_that_of_the_readme():
    head = "| variant | top1 %"
    shown = table_rows(PAGE, head)
    assert len(shown) == 1 + CONTRASTS
    assert shown == table_rows(PAGES[README], head)


def test_each_interval_follows_from_the_numbers_that_stand_next_to_it():
    shown = {row[0]: row for row in table_rows(PAGE, "| variant | top1 %")}
    lines = table_rows(PAGE, "| variant | gain | sd")
    assert len(lines) == CONTRASTS
    halves = []
    for row, *numbers, interval in lines:
        gain, sd, df, t, half = map(float, numbers)
        assert t == pytest.approx(scipy.stats.t.ppf(1 - ALPHA / (2 * CONTRASTS), df), abs=6e-4)
        assert half == pytest.approx(t * sd / SEEDS**0.5, abs=1e-3)
        assert interval_of(interval) == pytest.approx((gain - half, gain + half), abs=6e-3)
        assert interval_of(shown[row][2]) == interval_of(interval)
        halves.append(half)
    assert NOISE["half"] == sorted(halves)[1]


def test_the_worked_example_follows_from_its_own_numbers():
    cells, value = worked_example()
    flips = 100**2 * (value["sum over i of q"] + 0.25) / IMAGES**2
    assert value["F"] == pytest.approx(flips, abs=1e-3)
    own, baseline = map(float, re.findall(r"\d\.\d+", cells["S, and that of the baseline"]))
    share = 1 - (1 - value["kappa with the baseline"]) ** 2
    assert value["share"] == pytest.approx(share, abs=1e-3)
    shift = own**2 + baseline**2 - 2 * share * own * baseline
    assert value["W"] == pytest.approx(shift, abs=0.02)
    v = flips + value["u2, of all four rows"] * shift
    assert value["v"] == pytest.approx(v, abs=2e-3)
    assert value["F / v"] == pytest.approx(100 * flips / v, abs=0.5)
    df = v**2 / (flips**2 / value["df_F"] + shift**2 * value["var(u2)"] / 2)
    assert value["df"] == pytest.approx(df, abs=0.1)
    half = scipy.stats.t.ppf(1 - ALPHA / (2 * CONTRASTS), df) * (v / SEEDS) ** 0.5
    assert value["half"] == pytest.approx(half, abs=5e-3)
    assert interval_of(cells["interval"]) == pytest.approx((1.867 - half, 1.867 + half), abs=6e-3)


def test_the_half_widths_of_more_seeds_and_images_follow_from_the_worked_example():
    """F falls with the number of images, the variance of u2 with the number of seeds."""
    _, value = worked_example()
    page = PAGES["docs/concepts/how-many-seeds.md"]
    head, *lines = page[page.index("| | 500 test images |") :].split("\n\n")[0].splitlines()
    sizes = [int(size.replace(",", "")) for size in re.findall(r"[\d,]+\d", head)]
    assert sizes[0] == IMAGES
    for line in lines[1:]:
        seeds, *halves = map(float, re.findall(r"[\d.]+", line))
        for size, half in zip(sizes, halves, strict=True):
            flips, flips_df = value["F"] * IMAGES / size, value["df_F"] * size / IMAGES
            shift, shift_error = value["W"], value["var(u2)"] * (SEEDS - 1) / (seeds - 1)
            v = flips + value["u2, of all four rows"] * shift
            df = v**2 / (flips**2 / flips_df + shift**2 * shift_error / 2)
            t = scipy.stats.t.ppf(1 - ALPHA / (2 * CONTRASTS), df)
            assert half == pytest.approx(t * (v / seeds) ** 0.5, abs=6e-3)


def test_the_numbers_of_the_toy_designs_are_those_of_the_weights_of_effects():
    page = PAGES["docs/designs.md"]
    levels = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
    cases = [[float(cell) for cell in line[1:]] for line in table_rows(page, "| | `none` | A |")]
    lines = {line[0]: line[2:] for line in table_rows(page, "| | how | each adds")}
    alone, among_all = np.array([-1, 1, 0, 0]), np.array([0, 0, -1, 1])
    weights = {
        "A alone": alone,
        "A among all": among_all,
        "main effect of A": stats.level_effect(levels, 0),
        "main effect of B": stats.level_effect(levels, 1),
        "pair A x B": stats.pair_effect(levels, 0, 1),
        "share of A": stats.shapley(levels, 0),
        "share of B": stats.shapley(levels, 1),
        "whole gain": stats.shapley(levels, 0) + stats.shapley(levels, 1),
    }
    assert lines.keys() == weights.keys()
    for name, shown in lines.items():
        assert [float(cell) for cell in shown] == pytest.approx(cases @ weights[name], abs=1e-9)


@pytest.mark.parametrize("page", EXPLAINING)
def test_phrases_that_readers_stumbled_over_are_gone(page):
    words = " ".join(PAGES[page].split()).lower()
    assert [phrase for phrase in UNCLEAR if re.search(rf"\b{phrase}\b", words)] == []
