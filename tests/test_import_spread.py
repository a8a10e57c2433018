"""By what gains of imported runs are judged: images where predictions say right or wrong, and the
remedy where there are none and seeds correlate."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from ablate.store.store import Store

IMAGES = 900
FLIPPED = {"base": 0.0, "copy": 0.01, "lr": 0.05, "far": 0.12, "farther": 0.2}
OF = ("--row", "m", "--seed", "seed", "--metric", "acc:more:%")


def table(run, name):
    text = run("table", name, "--format", "json")
    [column] = json.loads(text[text.index("{") :])["columns"]
    return column


def halves(column):
    """Half the width of the interval of each gain, by row."""
    gains = {entry["row"]: entry["gain"] for entry in column["entries"] if entry["gain"]}
    return {row: (gain["high"] - gain["low"]) / 2 for row, gain in gains.items()}


def marked(seeds=3, decimals=4, marks=lambda right: right):
    """Rows that differ from the baseline in some images of the same seed: `sheet.csv`, and a file
    of each run, with what `marks` makes of which images are right."""
    rng = np.random.default_rng(3)
    base = [rng.random(IMAGES) < 0.9 for _ in range(seeds)]
    lines = ["m,seed,acc,file"]
    for row, share in FLIPPED.items():
        for seed in range(seeds):
            other = rng.random(IMAGES) < 0.9
            right = np.where(rng.random(IMAGES) < share, other, base[seed])
            np.save(f"{row}{seed}.npy", marks(right))
            lines.append(f"{row},{seed},{100 * right.mean():.{decimals}f},{row}{seed}.npy")
    Path("sheet.csv").write_text("\n".join(lines) + "\n")


def test_predictions_of_right_and_wrong_tell_each_row_its_own_spread(run):
    """A row that changes few images of the baseline's has a narrow interval; by one spread of all
    rows, and so without predictions, all intervals are as wide."""
    marked()
    run("import", "sheet.csv", *OF, "--as", "images", "--predictions", "file")
    run("import", "sheet.csv", *OF, "--as", "plain")
    images, plain = (table(run, name) for name in ("images", "plain"))
    assert (images["judged_by"], plain["judged_by"]) == ("images", "one way")
    mine, alike = halves(images), list(halves(plain).values())
    assert max(alike) == pytest.approx(min(alike))
    assert all(narrow < wide for narrow, wide in itertools.pairwise(mine.values()))
    assert mine["copy"] < alike[0] / 4


@pytest.mark.parametrize(
    "marks", [lambda right: right.astype(np.uint8), lambda right: right.astype(float)]
)
def test_whole_numbers_are_marks_and_other_numbers_are_predictions_only(run, marks):
    marked(marks=marks)
    run("import", "sheet.csv", *OF, "--as", "images", "--predictions", "file")
    whole = marks(np.ones(1)).dtype.kind in "bui"
    assert table(run, "images")["judged_by"] == ("images" if whole else "one way")


def test_without_seeds_images_are_of_no_pairs(run):
    marked()
    words = ("--row", "m", "--metric", "acc:more:%", "--predictions", "file")
    run("import", "sheet.csv", *words, "--as", "images")
    assert table(run, "images")["judged_by"] == "one way"
    assert Store(Path("runs")).read_plan("images").spread == "one way"


def test_the_id_of_a_run_is_the_same_with_and_without_predictions(run):
    marked()
    for store, more in (("a", ()), ("b", ("--predictions", "file"))):
        run("import", "sheet.csv", *OF, "--as", "images", *more, "--store", store)
    ids = [{one.id for one in Store(Path(at)).read_plan("images").runs()} for at in ("a", "b")]
    assert ids[0] == ids[1]


def test_a_metric_that_is_not_the_share_of_right_images_is_said(run):
    """As of one decimal: images then tell nothing, and the note says how many decimals do."""
    marked(decimals=1)
    said = run("import", "sheet.csv", *OF, "--as", "images", "--predictions", "file")
    [line] = [line for line in said.splitlines() if "share of right examples" in line]
    assert "two decimals" in line
    assert table(run, "images")["judged_by"] == "one way"


# --- Without images -----------------------------------------------------------------------------


def losses(seeds, shared):
    rng = np.random.default_rng(1)
    of_seed = rng.normal(0, 1, seeds)
    lines = ["m,seed,loss"]
    for row in ("base", "x", "y", "z"):
        for seed in range(seeds):
            value = 3 + shared * of_seed[seed] + rng.normal(0, 0.2)
            lines.append(f"{row},{seed},{value:.4f}")
    Path("loss.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.whole
@pytest.mark.parametrize(
    ("seeds", "shared", "expected"), [(5, 1, True), (4, 1, False), (6, 0, False)]
)
def test_caption_and_plan_give_the_word_where_seeds_correlate(run, seeds, shared, expected):
    losses(seeds, shared)
    run("import", "loss.csv", "--row", "m", "--seed", "seed", "--metric", "loss:less")
    word = "`analysis.spread=paired`"
    for words in (("table", "loss"), ("plan", "loss", "--detect", "0.3")):
        lines = [line for line in run(*words).splitlines() if word in line]
        assert len(lines) == expected
        assert all("from 5 seeds on" in line for line in lines)
