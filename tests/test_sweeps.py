"""The shipped sweeps at their scale smoke run through and print their tables: one seed and a few
steps here, whole in `make soak`."""

import io
import os

import pytest
from PIL import Image

from ablate.analysis.paper import published_figures
from ablate.planning.expand import plan_from_words as make_plan

pytestmark = pytest.mark.whole

# name -> (rows, columns) at the scale smoke
SMOKE = {
    **{"table6": (8, 1), "dtn_table2": (8, 1), "bnffn_depth": (2, 4), "dnn_bn": (2, 2)},
    **{"stems": (14, 1), "dtn_table1": (2, 2), "table1": (2, 2), "table1_384": (2, 1)},
    **{"table2": (2, 2), "table3": (2, 6), "table7": (2, 3), "table1_fewshot": (2, 2)},
    **{"robustness": (4, 2), "figure1": (20, 1), "figure2": (2, 1), "figure3": (1, 1)},
}
# Whose runs start from runs -> by column the least points above chance, 10 %, of every row.
OF_TABLE3 = [
    f"{name}, {arch}"
    for name in ("digits", "mnist5k", "coloured digits")
    for arch in ("mu/14", "mu/7")
]
STARTED = {
    "table1_384": {"mu/7": 20.0},
    "table2": {"short": 20.0, "long": 20.0},
    "table3": dict.fromkeys(OF_TABLE3, 55.0),
    "table1_fewshot": {"short": 35.0, "long": 70.0},
}
QUICK = ("table6", "dtn_table2", "bnffn_depth", "dnn_bn")  # the others: whole, in the soak


def through(shell, name: str, *words: str) -> tuple[int, int]:
    """Run it; how many rows and columns of its table have a value."""
    done = shell("sweep", name, "launcher=inline", "--scale", "smoke", *words)
    assert "failed" not in done.out
    facts = [f for f in shell.facts() if f["quantity"] in ("top1", "fewshot25")]
    return len({f["row"] for f in facts}), len({f["column"] for f in facts})


FROM = ("optim.warmup_steps=1", "from.train.steps=45")
# Its columns differ in the length of the parent alone, which stays; the parent has fewer images.
SMALL_PARENT = (
    *("optim.warmup_steps=1", "from.data=digits", "from.data.size=28"),
    *("from.train.batch=600", "from.optim.cooldown_steps=2"),
)


@pytest.mark.parametrize(
    ("name", "words"),  # table3: test_table3
    [*((name, ()) for name in QUICK), ("table1_384", FROM), ("table2", SMALL_PARENT)],
)
def test_a_published_table_runs_through_on_digits(shell, name, words):
    assert through(shell, name, "seeds=1", "train.steps=5", *words) == SMOKE[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SMOKE if name not in STARTED])
def test_the_whole_digits_scale(shell, name):
    assert through(shell, name) == SMOKE[name]


def cpu_s(since: os.times_result) -> float:
    """Of this process and its children: other work on the machine doesn't count."""
    return sum(os.times()[:4]) - sum(since[:4])


def above_chance(shell, metric: str) -> dict[str, float]:
    """By column: how far the worse row is above guessing one of ten classes, in points."""
    facts = [f for f in shell.facts() if f["quantity"] == metric]
    margins = sorted(((f["column"], float(f["value"]) - 10.0) for f in facts), reverse=True)
    return dict(margins)  # of a column the least is the last


@pytest.mark.slow
def test_every_small_scale_that_starts_from_a_run_has_learnt(shell):
    """All but Tables 4 and 5, whole, in less than 15 minutes of two cores. `pytest -s`: tables."""
    began = os.times()
    for name, least in STARTED.items():
        assert through(shell, name) == SMOKE[name]
        print(shell("table").out)
        margins = above_chance(shell, "fewshot25" if name == "table1_fewshot" else "top1")
        print(f"{name}: points above chance: {margins}")
        assert {column: margins[column] > least[column] for column in least} == dict.fromkeys(
            margins, True
        )
    print(f"{cpu_s(began):.0f} CPU seconds")
    assert cpu_s(began) < 2 * 15 * 60


@pytest.mark.tour
def test_features_of_mnist_are_worth_something(shell):
    """25-shot, of ten classes, after one and two epochs of pre-training."""
    assert through(shell, "table1_fewshot", "seeds=1") == (2, 2)
    margins = above_chance(shell, "fewshot25")
    assert margins["short"] > 35.0
    assert margins["long"] > 35.0


@pytest.mark.slow
def test_table_2_is_planned_at_paper_scale_with_its_parents_once(shell):
    """Within 20 s, on a stand-in for ImageNet-21k: its classes, three images each. Of 16 cells two
    and two share a parent, and these are 24. Nothing of `T1R` can be subtracted."""
    picture = io.BytesIO()
    Image.new("RGB", (8, 8), (90, 60, 30)).save(picture, "PNG")
    for number in range(21_843):
        home = shell.folder / "i21k" / f"n{number:08}"
        home.mkdir(parents=True)
        for one in range(3):
            (home / f"{one}.png").write_bytes(picture.getvalue())
    path = f"from.data.path={shell.folder / 'i21k'}"
    began = os.times()
    said = shell("plan", "table2", path, "launcher=inline").out
    assert cpu_s(began) < 20
    assert "2 variants x 8 columns x 3 seeds = 48 runs, from 24 parents (72 planned)" in said
    plan, _ = make_plan(["table1_fewshot", path], store=shell.folder / "runs")
    found = published_figures(plan, shell.folder / "runs")
    assert len(found) == 20
    for there in found.values():
        assert "published training (93" in there.differs
