"""What is typed, or written into a file, by mistake ends with one line: never with a traceback."""

import shutil
from pathlib import Path

import pytest
from conftest import GOLDEN

from ablate.planning.declared import Options
from ablate.shared import nearest_name

HUGE = 99999999999999999999
SWEEP = """\
title: A design of my own
base: {{model.depth: 1, model.width: 16, model.heads: 2, train.steps: 4, train.batch: 32}}
changes: {{dpn: {{stem: dpn}}, post: {{block.attn: post}}}}
design: {design}
seeds: 2
"""


@pytest.fixture
def mistake(ask, here):
    """`mistake(words, *parts)`: the command ends with one line that has all parts, and code 2."""

    def mistake(words, *parts):
        code, text = ask(*map(str, words))
        [line] = [line for line in text.splitlines() if line.startswith("ablate: ")]
        assert (code, "Traceback" in text) == (2, False), text
        assert all(str(part) in line for part in parts), line

    return mistake


def write_sweep(design):
    Path("sweeps").mkdir(exist_ok=True)
    Path("sweeps/mine.yaml").write_text(SWEEP.format(design=design))


def test_an_option_is_kept_to_its_last_digit():
    assert Options(until=HUGE, margin=0.5).texts == ["--until", str(HUGE), "--margin", "0.5"]


@pytest.mark.parametrize("words", [("stem=none,dpn",), ("mine",), ("stem=none,dpn", "--as", "x")])
def test_more_seeds_than_there_are_is_named(mistake, words):
    write_sweep("both")
    mistake(("plan", *words, "--until", HUGE), "--until", HUGE - 1)


@pytest.mark.parametrize("design", ["[x]", "{x: 1}", "3", "true", "fullfactorial"])
def test_a_design_that_is_none_is_named_with_the_choices(mistake, design):
    write_sweep(design)
    mistake(("plan", "mine"), "design: expected one of", "factorial", "got ")


@pytest.mark.parametrize("show", ["chosen", "chosen,params"])
def test_a_part_that_the_table_has_not_is_named(mistake, ask, show):
    shutil.copytree(GOLDEN / "store", "runs")
    words = ("table", "fixture", "--show", show)
    if show == "chosen":
        mistake(words, "--show chosen", "fixture")
        mistake((*words, "--format", "latex"), "--show chosen", "fixture")
    else:
        assert ask(*words)[0] == 0


NAMES = ["layernorm", "rmsnorm", "affine", "gpus_per_run", "lr", "lr_mult", "cifar10", "cifar100"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rmsnorn", "rmsnorm"),
        ("rms", "rmsnorm"),  # the only name that begins so
        ("gpu", "gpus_per_run"),
        ("lr_", "lr"),  # nearer than the one that begins so
        ("rm", None),  # two letters begin too much
        ("mine", None),  # half of "affine" is no guess
    ],
)
def test_a_guess_is_a_near_name_or_the_only_one_that_begins_so(typed, meant):
    assert nearest_name(typed, NAMES) == meant


@pytest.mark.parametrize(
    ("word", "home"),
    [
        ("train.lr=1", "optim.lr"),
        ("optim.epochs=3", "train.epochs"),
        ("train.weight_decay=1", "optim.wd"),
        ("model.lr=1", "optim.lr"),
    ],
)
def test_a_key_in_another_section_is_answered_with_its_home(mistake, word, home):
    mistake(("plan", "stem=none,dpn", word), word.partition("=")[0], f"mean {home}?")


def test_a_key_of_its_own_section_is_nearer_than_any_other(mistake):
    mistake(("plan", "stem=none,dpn", "optim.lr_mul=3"), "optim.lr_mul", "'lr_mult'")
