"""Names of sweeps that words declare, and of their rows and baselines."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.files import write_files
from support.images import folders

from ablate.api.recall import StoreRecall
from ablate.planning.expand import plan_from_words
from ablate.planning.plan import Plan
from ablate.shared.errors import UserError
from ablate.store.store import Store


@pytest.fixture
def store(here) -> Store:
    return Store(Path("runs"))


def planned(store: Store, words: str, **options) -> Plan:
    plan, _ = plan_from_words(
        words.split(),
        store=store.root,
        recall=StoreRecall(store),
        allow_missing=True,
        **options,
    )
    return plan


def drive(store: Store, words: str, **options) -> str:
    """Record the plan as a drive does, and return its name."""
    plan = planned(store, words, **options)
    store.write_plan(plan)
    return plan.name


@pytest.mark.parametrize(
    ("words", "options", "name"),
    [
        ("stem=none,dpn data=digits recipe=quick seeds=2 train.epochs=1", {}, "stem-none-dpn"),
        ("model.depth=1,2 data=digits", {}, "depth-1-2"),
        ("stem=none,dpn norm=layernorm,dyt", {}, "norm-by-stem"),
        ("norm=layernorm,dyt stem=none,dpn", {}, "norm-by-stem"),
        ("norm=layernorm,dyt stem=none,dpn", {"each": True}, "norm-and-stem"),
        ("data=digits,cifar10 stem=none,dpn", {}, "stem-by-data"),
        ("block.attn=pre,post stem=none,dpn", {"across": ["block.attn"]}, "stem-by-attn"),
        ("data=digits,cifar10", {}, "data-digits-cifar10"),
        ("model.arch=mu/4,mu/8", {}, "arch-mu-4-mu-8"),
        ("optim.lr=1e-5,1e-4,1e-3,1e-2,1e-1,1", {}, "lr-1e-05-to-1"),
        ("stem=dpn stem.eps=1e-8,1e-7 norm.eps=1e-6,1e-5", {}, "norm.eps-by-stem.eps"),
        ("", {"change": ["wide: model.width=64", "dpn: stem=dpn"]}, "dpn-and-wide"),
    ],
)
def test_a_sweep_of_words_is_named_by_what_it_sweeps(store, words, options, name):
    assert planned(store, words, **options).name == name
    assert re.fullmatch(r"[\w.-]+", name)  # no shell quotes it, and it is no KEY=VALUE


def test_a_name_that_another_sweep_has_goes_on_with_what_tells_the_two_apart(store):
    names = [
        drive(store, f"stem=none,dpn {words}")
        for words in (
            "recipe=quick data=digits",
            "recipe=quick data=digits train.epochs=2",
            "recipe=quick data=cifar10 train.epochs=2",
            "recipe=quick train.epochs=2 data=digits optim.lr=0.1",
            "data=digits",
        )
    ]
    suffixes = ["", "-epochs-2", "-cifar10", "-lr-0.1", "-2"]
    assert names == [f"stem-none-dpn{suffix}" for suffix in suffixes]
    # The same words are the same sweep, in every order, also once the first name is free again.
    store.plan_path(names[0]).unlink()
    reordered = "train.epochs=2 data=digits stem=none,dpn recipe=quick"
    assert planned(store, reordered).name == names[1]
    assert planned(store, "stem=none,dpn data=digits seeds=5").name == names[-1]
    assert planned(store, "stem=none,dpn recipe=quick data=digits").name == names[0]


def test_a_name_that_as_gave_and_a_sweep_file_are_left_alone(store):
    Path("sweeps").mkdir()
    Path("sweeps/depth-1-2.yaml").write_text("variants: [{a: {}}]\n")
    assert planned(store, "model.depth=1,2").name == "depth-1-2-2"
    assert drive(store, "stem=none,dpn", name="stem-none-dpn-mine") == "stem-none-dpn-mine"
    assert planned(store, "stem=none,dpn").name == "stem-none-dpn"
    assert drive(store, "norm=layernorm,dyt", name="stem-none-dpn") == "stem-none-dpn"
    assert planned(store, "stem=none,dpn").name == "stem-none-dpn-2"


KEYS = ("patch", "width", "depth", "heads", "head_dim", "mlp_ratio", "pool", "rep", "posemb", "act")
MANY = " ".join(f"model.{key}=null" for key in KEYS)


@pytest.mark.parametrize("more", ["", MANY])  # the second has a digest in its file's name
def test_a_sweep_with_a_name_of_before_keeps_it(store, more):
    words = f"stem=none,dpn recipe=quick data=digits {more} train.steps=4"
    plan = planned(store, words)
    long_name = plan.declared.identity
    assert long_name.startswith("data=digits+")
    assert long_name.endswith("+recipe=quick+stem=none,dpn+train.steps=4")
    store.write_plan(replace(plan, name=long_name))
    assert planned(store, words).name == long_name
    assert planned(store, words + "0").name == "stem-none-dpn"


ROWS = ("block.attn=pre,post", "model.depth=1", "train.steps=1", "seeds=1")
SMALL = ("data=digits", "recipe=quick", *ROWS, "launcher=inline")


def test_a_short_name_stands_for_its_words_in_every_command(shell):
    shell("sweep", *SMALL)
    assert "sweep: attn-pre-post " in shell("status", "attn-pre-post").out
    more = shell("sweep", "attn-pre-post", "seeds=2").out
    assert more.count("finished: ") == 2
    assert "sweep: attn-pre-post\n" in more
    by_words = shell("table", *SMALL[:-2]).out
    assert by_words == shell("table", "attn-pre-post").out


def test_the_name_that_as_gives_is_the_title(shell):
    title = "title: Mine\n"
    variants = "variants: [{base: {}}, {after: {block.attn: post}}]\nseeds: 1\n"
    base = "base: {data: digits, model.depth: 1, train.steps: 1, recipe: quick}\n"
    folder = shell.folder / "sweeps"
    folder.mkdir()
    (folder / "mine.yaml").write_text(title + base + variants)
    shell("sweep", "mine", "launcher=inline", "--as", "first try")
    assert shell("table").out.startswith("**first try. ")
    shell("report")
    assert "<title>first try" in (shell.folder / "first try.html").read_text()
    shell("sweep", "mine", "launcher=inline")
    assert shell("table", "mine").out.startswith("**Mine. ")


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        ("stem=none,dpn", ["none", "dpn"]),
        ("model.qk_norm=true,false", ["qk_norm=true", "qk_norm=false"]),
        ("model.depth=1,2", ["depth=1", "depth=2"]),
        (
            "stem=none,dpn norm=layernorm,dyt",
            [
                f"stem={stem} · norm={norm}"
                for stem in ("none", "dpn")
                for norm in ("layernorm", "dyt")
            ],
        ),
        ("norm.eps=1e-8,1e-7", ["eps=1e-08", "eps=1e-07"]),
    ],
)
def test_rows_of_words_name_their_keys(store, words, labels):
    assert [row.label for row in planned(store, words).rows] == labels


@pytest.mark.parametrize(
    ("words", "options", "label", "text"),
    [
        ("stem=none,dpn", {}, "none", "stem=none"),
        ("stem=none,dpn baseline=dpn", {}, "dpn", "stem=dpn"),
        ("model.depth=1,2 baseline=2", {}, "depth=2", "model.depth=2"),
        ("model.qk_norm=true,false baseline=false", {}, "qk_norm=false", "model.qk_norm=false"),
        ("stem=none,dpn norm=dyt,affine", {}, "stem=none · norm=dyt", "stem=none, norm=dyt"),
        ("stem=none,dpn norm=dyt,affine", {"each": True}, "base", "base (stem=none, norm=dyt)"),
        ("data=digits,cifar10", {}, "base", "base"),
        ("", {"change": ["a: stem=dpn", "b: norm=dyt"]}, "none", "none (no change)"),
    ],
)
def test_a_baseline_is_named_by_its_settings(store, words, options, label, text):
    plan = planned(store, words, **options)
    assert (plan.baseline, plan.baseline_words) == (label, text)


# --- Words that cross a file --------------------------------------------------------------------

OURS = """\
base: {recipe: quick, data: digits}
variants:
  - pre: {block.attn: pre}
  - post: {block.attn: post}
baseline: pre
"""


@pytest.mark.parametrize(
    "values",
    [
        "train.steps=1k,2k",
        "model.depth=null,2",
        "optim.warmup_steps=null,1k",
        "eval.also=[],[mnist]",
    ],
)
def test_a_crossed_sweep_is_planned_again_by_its_words_and_by_its_name(store, values):
    """However a value is spelled, it is that of the runs: 1k is 1000, and null the model's."""
    write_files(Path(), sweeps__ours_yaml=OURS)
    drive(store, f"ours {values}")
    headings = [column.heading for column in planned(store, f"ours {values}").columns]
    assert len(headings) == 2
    assert [column.heading for column in planned(store, "ours").columns] == headings


def test_a_crossed_value_that_is_left_out_is_put_back_as_it_is_typed(store):
    write_files(Path(), sweeps__ours_yaml=OURS)
    drive(store, "ours train.steps=1k,2k")
    with pytest.raises(UserError) as error:
        planned(store, "ours train.steps=2k,3k")
    word = re.search("`(.*)`", str(error.value))[1]
    assert word == "train.steps=1000,2k,3k"
    assert len(planned(store, f"ours {word}").columns) == 3


def test_a_file_that_is_no_run_alone_is_crossed_with_what_it_lacks(store):
    """The file names no folder of images, so it has no value of its own that words could lack."""
    text = OURS.replace("data: digits", "data: imagefolder, data.size: 8, train.batch: 8")
    write_files(Path(), sweeps__ours_yaml=text)
    for seed, name in enumerate(("one", "two")):
        folders(Path(name), "ab", 20, seed)
    words = ["ours", "data.path=one,two"]
    plan, _ = plan_from_words(words, store=store.root, recall=StoreRecall(store))
    assert len(plan.columns) == 2


def test_a_new_sweep_has_no_name_of_another_sweeps_file(store):
    """`ablate sweep stems` would train the shipped sweep, not go on with that of these words."""
    with pytest.raises(UserError) as refused:
        planned(store, "stem=none,dpn", name="stems")
    assert str(refused.value).startswith("stems:")
    assert planned(store, "stem=none,dpn", name="my stems").name == "my stems"
    assert planned(store, "quickstart", name="quickstart").name == "quickstart"


def test_a_sweep_that_was_named_first_goes_on_under_the_name_of_a_later_file(store):
    drive(store, "stem=none,dpn", name="mine")
    write_files(Path(), sweeps__mine_yaml="variants: [{a: {}}, {b: {stem: dpn}}]")
    assert planned(store, "stem=none,dpn", name="mine").name == "mine"


def test_labels_with_commas_are_told_apart(store):
    with pytest.raises(UserError) as refused:
        planned(store, "table2 columns=B/32")
    assert "224', 'B/32" in str(refused.value)
