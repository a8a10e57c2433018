"""Recipes: each composes, says what its paper says, and what it says by architecture."""

from pathlib import Path

import pytest
from support.runs import GOLDEN_RUN

from ablate.analysis.paper import recipe_notes
from ablate.planning.cell import recipe_caveats
from ablate.planning.compose import resolve_run
from ablate.planning.expand import plan_from_words
from ablate.run import spec
from ablate.run.build import build_run
from ablate.run.run import Run
from ablate.run.schema import added_fields, field_types
from ablate.shared.errors import UserError
from ablate.training.optim import lengths

RGB = ("data=parquet", "data.path=data", "data.classes=1000", "data.size=224")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder with parquet files; plans read them for their hash only."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("train", "validation", "test"):
        (tmp_path / "data" / f"{name}.parquet").write_text(name)
    return tmp_path


def composed(*words):
    return resolve_run([*words], Path("runs"))[0]


def has(tree, expected):
    """The tree has these values at these places, such as `optim.lr`."""
    found = {key: tree[key.partition(".")[0]][key.partition(".")[2]] for key in expected}
    assert found == expected


# REFERENCE E.1's table: randaug's magnitude, mixup, dropout, drop-path, representation layer.
AUGREG = {
    "Ti/16": (0, 0.0, 0.0, 0.0, True),
    "S/32": (15, 0.2, 0.0, 0.0, False),
    "S/16": (15, 0.5, 0.0, 0.0, True),
    "B/32": (15, 0.5, 0.1, 0.1, True),
    "B/16": (15, 0.5, 0.1, 0.1, True),
    "L/16": (15, 0.5, 0.1, 0.1, True),
}


@pytest.mark.parametrize("arch", AUGREG)
def test_augreg_is_its_table(folder, arch):
    keys = ("augment.randaug_magnitude", "augment.mixup", "model.dropout", "model.drop_path")
    expected = dict(zip((*keys, "model.rep"), AUGREG[arch], strict=True))
    expected |= {"augment.randaug": 2, "augment.style": "tf", "augment.crop_area": 0.05}
    expected |= {"train.batch": 4096, "train.epochs": 300, "train.loss": "sigmoid"}
    expected |= {"optim.lr": 1e-3, "optim.wd": 1e-4, "optim.decay": "independent"}
    expected |= {"optim.warmup_steps": 10_000, "optim.clip": 1.0, "optim.schedule": "cosine"}
    expected |= {"model.head_bias": -6.9, "model.pool": "tok"}
    expected |= {"eval.crop": 224 / 256, "train.micro_batch": "auto"}
    has(composed("recipe=augreg", f"model.arch={arch}", *RGB), expected)


def test_what_the_user_says_is_over_what_the_recipe_has_for_an_architecture(folder):
    words = ("recipe=augreg", "model.arch=B/16", *RGB)
    has(composed(*words, "augment.mixup=0.1"), {"augment.mixup": 0.1, "model.dropout": 0.1})
    has(composed(*words, "model.dropout=0"), {"model.dropout": 0.0})


def test_an_architecture_that_a_recipe_says_nothing_of_is_refused(folder):
    with pytest.raises(UserError, match=r"model\.arch: .* Ti/16, S/32, .* got 'S/8'"):
        composed("recipe=augreg", "model.arch=S/8", *RGB)


def test_a_recipe_of_the_users_own_may_have_rows_by_architecture(folder):
    (folder / "conf/recipe").mkdir(parents=True)
    mine = folder / "conf/recipe/mine.yaml"
    text = "# @package _global_\ndefaults: [quick, _self_]\n"
    text += "by_arch: {mu/4: {optim.lr: 0.5}, mu/2: {}}\n"
    mine.write_text(text)
    for word, rate in (("seed=0", 0.5), ("optim.lr=0.1", 0.1), ("model.arch=mu/2", 3e-3)):
        has(composed("recipe=mine", word), {"optim.lr": rate})
    for old, new, line in (
        ("optim.lr", "optim.lrr", r"optim\.lrr: .*expected a key among"),
        ("{optim.lr: 0.5}", "3", "by_arch: expected SIZE/PATCH"),
    ):
        mine.write_text(text.replace(old, new))
        with pytest.raises(UserError, match=line):
            composed("recipe=mine")


@pytest.mark.parametrize(
    ("recipe", "epochs", "steps", "big_visions"),
    [("better_vit", 90, 111_420, 111_477), ("s16_plus", 300, 371_400, 371_588)],
)
def test_better_vit_is_its_file(folder, recipe, epochs, steps, big_visions):
    expected = {"train.epochs": epochs, "train.batch": 1024, "train.loss": "softmax"}
    expected |= {"optim.name": "adamw", "optim.lr": 1e-3, "optim.wd": 1e-4, "optim.clip": 1.0}
    expected |= {"optim.decay": "independent", "optim.schedule": "cosine", "optim.min_lr": 0.0}
    expected |= {"optim.warmup_steps": 10_000, "train.label_smoothing": 0.0}
    expected |= {"augment.randaug": 2, "augment.randaug_magnitude": 10, "augment.mixup": 0.2}
    expected |= {"augment.crop_area": 0.05, "augment.style": "tf", "augment.flip": True}
    expected |= {"model.pool": "gap", "model.posemb": "sincos2d", "model.rep": True}
    expected |= {"model.dropout": 0.0, "model.drop_path": 0.0, "eval.crop": 224 / 256}
    words = (f"recipe={recipe}", "model.arch=S/16+", *RGB)
    tree = composed(*words)
    has(tree, expected)
    run, images = build_run(tree), 1_268_355  # train[:99%] of ImageNet-1k
    assert lengths(run.optim, run.train, images // 1024).total == steps
    by_images = composed(*words, f"train.examples={images * epochs}")
    run = build_run(by_images)
    assert lengths(run.optim, run.train, images // 1024).total == big_visions
    numbers = [f"{steps:,}", f"{big_visions:,}", f"train.examples={images * epochs}"]
    assert all(number in tree["not_followed"][0] for number in numbers)
    assert tree["not_followed"][1:] == by_images["not_followed"]


@pytest.mark.parametrize(
    ("word", "lines"),
    [
        ("seed=1", ["5 epochs", "always"]),
        ("train.batch=8", ["5 epochs", "always"]),
        ("train.epochs=6", ["always"]),
        ("train.steps=7", ["always"]),
    ],
)
def test_a_line_of_a_recipe_on_a_key_is_left_out_where_the_key_is_set(folder, word, lines):
    (folder / "conf/recipe").mkdir(parents=True)
    text = "# @package _global_\ndefaults: [quick, _self_]\ntrain: {epochs: 5}\n"
    text += "inferred: [{train.epochs: 5 epochs}, always]\n"
    (folder / "conf/recipe/mine.yaml").write_text(text)
    assert composed("recipe=mine", word)["inferred"] == lines


def test_deit_and_dtn_are_their_tables(folder):
    deit = composed("recipe=deit", "model.arch=deit_s/16", *RGB)
    dtn = composed("recipe=dtn", "model.arch=dtn_s/16", "norm=dtn", *RGB)
    expected = {"optim.wd": 0.05, "optim.decay": "by_lr", "optim.clip": None, "optim.eps": 1e-8}
    expected |= {"optim.warmup_lr": 1e-6, "optim.min_lr": 1e-5, "train.label_smoothing": 0.1}
    expected |= {"augment.style": "timm", "augment.randaug_magnitude": 9, "augment.repeats": 3}
    expected |= {"model.drop_path": 0.1, "model.input": "imagenet"}
    for tree in (deit, dtn):
        has(tree, {**expected, "optim.lr": 5e-4 * tree["train"]["batch"] / 512})
    timm = composed("recipe=deit_timm", "model.arch=deit_s/16", *RGB)
    averaged = {"optim.cooldown_epochs": 10, "train.epochs": 310, "train.ema": 0.99996}
    for tree in (timm, dtn):
        has(tree, averaged)
    has(deit, {"optim.cooldown_epochs": 0.0, "train.epochs": 300, "train.ema": None})
    has(deit, {"augment.mixup": 0.8, "augment.cutmix": 1.0, "augment.erase": 0.25})
    has(dtn, {"augment.mixup": 0.0, "augment.cutmix": 0.0, "augment.erase": 0.0})
    has(dtn, {"train.precision": "fp32"})


DEIT3 = {"deit_s/16": (4e-3, 0.05), "deit_b/16": (3e-3, 0.2), "L/16": (3e-3, 0.45)}


@pytest.mark.parametrize("arch", DEIT3)
def test_deit3_is_its_readme(folder, arch):
    rate, drop_path = DEIT3[arch]
    expected = {"optim.name": "lamb", "optim.lr": rate, "optim.wd": 0.05, "optim.warmup_lr": 1e-6}
    expected |= {"train.epochs": 800, "train.batch": 2048, "train.loss": "sigmoid"}
    expected |= {"model.drop_path": drop_path, "model.layerscale": 1e-4, "model.cls_posemb": False}
    expected |= {"augment.three": True, "augment.jitter": 0.3, "augment.randaug": 0}
    expected |= {"augment.mixup": 0.8, "augment.cutmix": 1.0, "augment.repeats": 3}
    expected |= {"augment.crop_area": 0.08, "augment.style": "timm", "augment.erase": 0.0}
    expected |= {"train.label_smoothing": 0.0, "eval.crop": 1.0}
    has(composed("recipe=deit3", f"model.arch={arch}", *RGB), expected)


def test_the_cifar_recipe_is_between_the_two_it_names(folder):
    expected = {"optim.lr": 1e-3, "optim.wd": 0.05, "optim.decay": "by_lr"}
    expected |= {"optim.warmup_epochs": 10, "optim.min_lr": 1e-5, "optim.schedule": "cosine"}
    expected |= {"train.epochs": 300, "train.batch": 512, "train.label_smoothing": 0.1}
    expected |= {"augment.style": "timm", "augment.randaug": 2, "augment.randaug_magnitude": 9}
    expected |= {"augment.flip": True, "augment.crop_pad": 4, "augment.cutmix": 1.0}
    expected |= {"train.micro_batch": "auto", "model.drop_path": 0.1, "model.input": "range"}
    sized = ("data.classes=10", "data.size=32")
    has(composed("recipe=cifar", "model.arch=Ti/4", *RGB[:2], *sized), expected)


def test_the_mnist_recipe_is_the_articles(folder):
    tree = composed("recipe=mnist_bn", "model.arch=mnist_vit", "data=digits", "data.size=28")
    expected = {"augment.rotate": 20.0, "augment.translate": 0.2, "augment.zoom_out": 0.2}
    expected |= {"optim.schedule": "constant", "optim.wd": 0, "train.batch": 100}
    has(tree, {**expected, "eval.augment": True, "model.input": "unit"})
    assert composed("recipe=mnist_bn", "eval.augment=false")["eval"]["augment"] is False


# --- Ids ----------------------------------------------------------------------------------------


PAPER = ("data.channels=3", "data.size=224")  # of digits, whose files are here


def identified(*words):
    return resolve_run([*words], Path("runs"))[1]


def test_other_draws_are_another_run(folder, monkeypatch):
    """And no setting: whoever draws otherwise raises the version, and trains every run anew."""
    assert identified() == "7e26cc54ee7b1c20"
    monkeypatch.setattr(spec, "DRAWS", spec.DRAWS + 1)
    assert identified() != "7e26cc54ee7b1c20"
    with pytest.raises(UserError, match=r"train\.draws"):
        composed("train.draws=2")


@pytest.mark.parametrize(
    ("words", "identity"),
    [
        (("block=bnffn", "stem=dpn"), "154e854dfb100fb2"),
        (("block=vitbn",), "fc2763df11bcb3f2"),
        (("recipe=mnist_bn", "model.arch=mnist_vit", "data.size=28"), "4297ae897ab1db16"),
        (("recipe=cifar", "model.arch=Ti/4", PAPER[0], "data.size=32"), "36daf241428f14ce"),
        (("recipe=deit_timm", "model.arch=deit_s/16", *PAPER), "b87b96752aa1e78e"),
        (("recipe=dtn", "model.arch=dtn_s/16", "norm=dtn", *PAPER), "048e579658650ba9"),
        (("recipe=augreg", "model.arch=B/16", *PAPER), "7051b0e75574f62d"),
        # style tf for its crops alone, and timm's operators behind augreg's settings
        (("recipe=augreg", "model.arch=B/16", "augment.randaug=0", *PAPER), "daecd9b539c371cd"),
        (("recipe=augreg", "model.arch=B/16", "augment.style=timm", *PAPER), "a9d577ed9c40d437"),
        (("optim.name=adafactor_bv", "stem=dpn"), "43364ee0bda91b81"),
    ],
)
def test_runs_keep_their_ids(folder, words, identity):
    assert identified(*words) == identity


# --- What fields that were added later may say --------------------------------------------------


def build(key, value):
    section, _, name = key.partition(".")
    return build_run({**GOLDEN_RUN, section: {**GOLDEN_RUN[section], name: value}})


def test_a_thousand_has_a_short_form():
    assert build("train.steps", "20k").train.steps == 20_000
    assert build("train.examples", "1.5M").train.examples == 1_500_000
    assert build("optim.warmup_steps", "0.5k").optim.warmup_steps == 500
    for wrong in ("20K", "k", "1.2345k", "-1k", "1e3"):
        with pytest.raises(UserError, match=r"train\.steps: expected a whole number or null"):
            build("train.steps", wrong)


@pytest.mark.parametrize(
    ("key", "default"),
    [
        (f"{section}.{name}", [*value] if isinstance(value, tuple) else value)
        for section, cls in field_types(Run).items()
        if section in ("data", "optim", "train", "augment", "eval")
        for name, value in added_fields(cls).items()
    ],
)
def test_a_field_that_was_added_later_leaves_ids_at_its_default_alone(key, default):
    written = [*default] if isinstance(default, tuple) else default  # as JSON has it
    assert build(key, written).id == build_run(GOLDEN_RUN).id


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("augment.crop_area", 0, "must be more than 0"),
        ("augment.crop_area", 1.2, "more than 0 and at most 1, got 1.2"),
        ("augment.zoom_out", -0.1, "at least 0 and at most 1"),
        ("augment.mixup", -1, "must be at least 0"),
        ("augment.repeats", 0, "must be at least 1"),
        ("augment.style", "torch", "expected one of tf, timm"),
        ("eval.crop", 0, "must be more than 0"),
        ("optim.min_lr", 1.0, r"at most optim\.lr"),
        ("optim.decay", "none", "expected one of by_lr, independent"),
        ("optim.timescale", 0, "must be more than 0"),
        ("train.ema", 1.0, "less than 1"),
        ("train.examples", 0, "must be more than 0"),
        ("train.micro_batch", "all", "expected auto, a whole number or null, got 'all'"),
        ("model.input", "imagenet", "data=digits has 1; set model.input=range or unit"),
        ("data.cache_size", 4, "less than data.size 8"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(key, value, line):
    with pytest.raises(UserError, match=f"{key}: .*{line}"):
        build(key, value)


# --- What recipes infer, and don't follow -------------------------------------------------------


def test_what_a_recipe_infers_is_in_its_run_and_in_no_id(folder):
    words = ("recipe=i21k", "model.arch=B/16", *PAPER)
    tree = composed(*words)
    assert any("gap" in line for line in tree["inferred"])
    assert any("first moment" in line for line in tree["not_followed"])
    bare = {k: v for k, v in tree.items() if k not in ("inferred", "not_followed")}
    assert build_run(bare).id == build_run(tree).id == identified(*words)
    assert "inferred" not in composed()  # ours: nothing in it is of a paper
    with pytest.raises(UserError, match="inferred: expected a list of lines of text, got 3"):
        build_run({**tree, "inferred": 3})


def test_a_cell_says_what_its_recipe_and_its_parents_do_otherwise(folder):
    words = ["recipe=finetune", "data=imagenet1k", "from.recipe=i21k", "from.data=imagenet1k"]
    made, _ = plan_from_words([*words, "model.arch=B/16", "stem=none,dpn"], store=folder / "runs")
    told = recipe_caveats(made.cells)
    assert told["inferred"].count("class token") == 1
    assert "box means" in told["not followed"]
    assert "first moment" in told["not followed"]
    compared = {(cell.row, cell.column): None for cell in made.cells}
    assert [
        (note.key, note.values["caveat"], note.values["lines"])
        for note in recipe_notes(made, compared)
    ] == [("recipe", caveat, told[caveat]) for caveat in ("inferred", "not followed")]
    assert recipe_notes(made, {}) == []


@pytest.mark.parametrize("column", ["patch 4", "patch 8"])
@pytest.mark.parametrize(("name", "row"), [("figure1", "Dual PatchNorm"), ("table1", "ViT")])
def test_the_small_scale_trains_as_the_study_of_patch_norms_did(tmp_path, name, row, column):
    """Its runs differ from the study's in what they measure, in their seeds, and in precision: few
    CPUs have instructions for bfloat16, and without them a run takes ten times as long."""
    study, _ = plan_from_words(["study_patch_norm"], store=tmp_path)
    small, _ = plan_from_words([name], store=tmp_path, scale="small")
    rows = {"ViT": "plain ViT"}
    of_study = study.cell(rows.get(row, row), column).spec.tree
    of_small = small.cell(row, column).spec.tree
    assert of_study.keys() == of_small.keys()
    assert {key for key in of_small if of_small[key] != of_study[key]} == {"probe", "train"}
    assert of_small["train"] == of_study["train"] | {"precision": "fp32"}
