"""What is typed, or written into a file, by mistake ends with one line: never with a traceback."""

import json
import shutil
import typing
from pathlib import Path

import pytest
from conftest import GOLDEN

from ablate.planning.analysis_keys import Analysis
from ablate.planning.data_section import ours
from ablate.planning.declared import Options
from ablate.planning.design import with_seeds
from ablate.planning.expand import plan_from_words
from ablate.planning.search import Search
from ablate.planning.settings import LIST_KEYS
from ablate.run.run import Run
from ablate.run.schema import field_types
from ablate.run.sections import SECTIONS
from ablate.shared import UserError, nearest_name

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


def declare(**keys):
    """Write sweeps/mine.yaml: two rows, unless `keys` has others."""
    rows = {} if "changes" in keys else {"variants": [{"a": {}}, {"b": {"stem": "dpn"}}]}
    base = {"recipe": "quick", "data": "digits", "model.depth": 1}
    Path("sweeps").mkdir(exist_ok=True)
    Path("sweeps/mine.yaml").write_text(json.dumps({"base": base, **rows, **keys}))


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


# --- Words of commands ----------------------------------------------------------------------------

WORDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("plan", "model.depth=range(6,2)", "data=digits"): ("model.depth: ", "range(6,2)", "; give"),
    ("plan", "norm=glob(layr*)"): ("norm: ", "glob(layr*)", "; give"),
    ("plan", "model.depth=range(1,5,0)"): ("model.depth: ", "range(1,5,0)", "; give a step"),
    ("plan", "model.depth=range(0.1,1,0)"): ("model.depth: ", "range(0.1,1,0)", "; give a step"),
    ("config", "norm=glob(layr*)"): ("norm: ", "glob(layr*)", "; give"),
    ("doctor", "stem=none,dpn"): ("stem: ", "'none,dpn'", "such as stem=none"),
    ("gate", "start", "idea", "line.py"): ("line.py: ", "KEY=VALUE, such as recipe=quick"),
    ("gate", "start", "idea", "stem=none,dpn"): ("stem: ", "'none,dpn'", "such as stem=none"),
    ("plan", "quickstart", "--each"): ("--each: ", "sweeps/quickstart.yaml", "leave it out"),
    ("plan", "quickstart", "model.depth=1,1"): ("columns: ", "'1'", "give each value once"),
    ("sweep", "-cn", "quickstart"): ("-cn: ", "`ablate sweep NAME`"),
    ("sweep", "-cn=quickstart"): ("-cn: ", "`ablate sweep NAME`"),
    ("sweep", "-cd", "conf"): ("-cd: ", "./conf", "leave it out"),
    ("sweep", "-c", "job"): ("-c: ", "`ablate config KEY=VALUE`"),
}


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_words_that_are_wrong_name_place_value_and_remedy(ask, here, words):
    code, text = ask(*words)
    assert (code, "Traceback" in text) == (2, False), text
    [line] = [line for line in text.splitlines() if line.startswith("ablate")]
    assert all(part in line for part in WORDS[words]), line
    assert "bracketed" not in line  # none of these keys takes a list


@pytest.mark.parametrize("field", ["norm=glob(*)", "optim.lr=glob(*)"])
def test_a_pattern_where_no_group_is_listed_is_written_out(mistake, field):
    shutil.copytree(GOLDEN / "store", "runs")
    mistake(("table", "fixture", "--where", field), field.partition("=")[0], "; write the value")


def test_a_list_is_offered_for_the_keys_that_take_one():
    """Those of the schema; `seeds` is none of its fields."""
    fields = {f"{name}.": kind for name, kind in SECTIONS.items()}
    fields |= {"": Run, "analysis.": Analysis}
    lists = {
        f"{section}{key}"
        for section, kind in fields.items()
        for key, annotation in field_types(kind).items()
        if any(
            typing.get_origin(each) is tuple and each.__args__[-1] is Ellipsis
            for each in (annotation, *typing.get_args(annotation))
        )
    }
    of_recipes = {"inferred", "not_followed"}  # lines of a file, which nobody types
    assert {*LIST_KEYS} == lists - of_recipes | {"seeds"}


# --- Files, and words over them -------------------------------------------------------------------

SEARCH = {"trials": 24, "space": {"optim.lr": {"log": [1e-4, 0.1]}}}
CHANGES = {"a": {"stem": "dpn"}, "b": {"norm": "rmsnorm"}}
CROWD = {name: {"optim.lr": number} for number, name in enumerate("abcd", 1)}


@pytest.mark.parametrize(
    ("keys", "words", "place", "parts"),
    [
        ({"tune": SEARCH}, ["tune.trials=abc"], "tune.trials: ", ["'abc'"]),
        ({"tune": SEARCH}, ["tune.trials=1"], "tune.trials: ", ["1 trial for 3 searches", "15"]),
        ({"tune": {**SEARCH, "trials": 1}}, [], "sweeps/mine.yaml: tune.trials: ", ["1 trial for"]),
        ({}, ["baseline=q"], "baseline: ", ["a, b", "'q'"]),
        ({"baseline": "q"}, [], "sweeps/mine.yaml: baseline: ", ["a, b", "'q'"]),
        ({"changes": CHANGES, "design": "fractional"}, [], "sweeps/mine.yaml: design: ", ["got 2"]),
        ({"changes": CHANGES}, ["--design", "fractional"], "--design: ", ["got 2"]),
        ({"changes": CHANGES}, ["--design", "x"], "--design: ", ["factorial", "'x'"]),
        ({"changes": CROWD}, [], "sweeps/mine.yaml: changes: ", ["b, c and d all set optim.lr"]),
        (
            {"tune": {"space": {"optim.lr": {"choices": [{"a": 1}]}}}},
            [],
            "sweeps/mine.yaml: tune.space.optim.lr: expected",
            ["[{'a': 1}]"],
        ),
    ],
)
def test_a_mistake_is_placed_where_it_was_written(mistake, keys, words, place, parts):
    declare(**keys)
    mistake(("plan", "mine", *words), f"ablate: {place}", *parts)


@pytest.mark.parametrize(
    ("word", "space", "parts"),
    [
        ("optim.wd=0", {"log": [1e-4, 0.1]}, ["optim.wd", "{uniform: [0, 0.1]}", "`base:`"]),
        ("optim.wd=0.5", {"log": [1e-4, 0.1]}, ["has 0.5", "widen [0.0001, 0.1]"]),
        ("optim.clip=null", {"log": [0.1, 1]}, ["has null", "to a number", "[null, ...]"]),
        ("optim.clip=null", {"choices": [0.1, 1]}, ["has null", "the choices [0.1, 1]"]),
        ("optim.clip=1", {"choices": [None, 2]}, ["has 1.0", "the choices [null, 2]"]),
        ("augment.flip=true", {"uniform": [0, 1]}, ["has true", "{choices: [true, ...]}"]),
    ],
)
def test_a_search_that_lacks_the_baseline_is_told_what_can_have_it(here, word, space, parts):
    key = word.partition("=")[0]
    declare(tune={"trials": 24, "space": {key: space}})
    plan, _ = plan_from_words(["mine", word], store=here / "runs")
    with pytest.raises(UserError) as error:
        Search(plan).grow({}.get, lambda _: [])
    assert str(error.value).startswith(f"tune.space: {key}: ")
    assert all(part in str(error.value) for part in parts), str(error.value)


class Driven:
    """A store that drove one sweep, by this plan."""

    def __init__(self, plan):
        self.last_plan = plan

    def plans(self, beginning, whole):
        return [self.last_plan]

    def plan(self, name, line):
        return self.last_plan


@pytest.mark.parametrize(("first", "remedy"), [(0, "`--until 8`"), (100, "`--until 8`")])
def test_looks_are_counted_from_their_first_seed(here, first, remedy):
    declare(until={"first_seed": first})
    plan, _ = plan_from_words(["mine"], store=here / "runs")
    driven = Driven(with_seeds(plan, {("b", ""): 8}))
    with pytest.raises(UserError) as error:
        plan_from_words(["mine"], store=here / "runs", recall=driven, until=7)
    assert remedy in str(error.value)
    plan_from_words(["mine"], store=here / "runs", recall=driven, until=8)


def test_seeds_before_the_first_of_looks_can_not_be_had_by_more_looks(here):
    declare(seeds=8)
    driven = Driven(plan_from_words(["mine"], store=here / "runs")[0])
    declare(until={"first_seed": 100})
    with pytest.raises(UserError) as error:
        plan_from_words(["mine"], store=here / "runs", recall=driven, until=8)
    assert "--replace" in str(error.value)
    assert str(error.value).count("--until") == 1


@pytest.mark.parametrize(("count", "words"), [(4, " and 1 more set,"), (5, " and 2 more sets,")])
def test_a_rest_of_one_set_is_no_plural(count, words):
    splits = {"train": "train[:9]", "validation": "test", "test": "test", "order": "keyed"}
    [line] = ours({"name": f"set{n}", **splits} for n in range(count))
    assert words in line
