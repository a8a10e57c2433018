"""Recipes: each composes, says what its paper says, and what it says by architecture."""

from pathlib import Path

import pytest
from test_config import GOLDEN

from ablate.analysis.paper import recipe_notes
from ablate.planning.cell import caveats
from ablate.planning.compose import resolve
from ablate.planning.expand import plan
from ablate.shared import spec
from ablate.shared.build import build_run
from ablate.shared.errors import UserError
from ablate.shared.schema import added, hints

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
    return resolve([*words], Path("runs"))[0]


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
    tree = composed("recipe=augreg", f"model.arch={arch}", *RGB)
    model, augment, optim, train = (tree[k] for k in ("model", "augment", "optim", "train"))
    assert AUGREG[arch] == (
        augment["randaug_magnitude"],
        augment["mixup"],
        model["dropout"],
        model["drop_path"],
        model["rep"],
    )
    assert (augment["randaug"], augment["style"], augment["crop_area"]) == (2, "tf", 0.05)
    assert (train["batch"], train["epochs"], train["loss"]) == (4096, 300, "sigmoid")
    assert (optim["lr"], optim["wd"], optim["decay"]) == (1e-3, 1e-4, "independent")
    assert (optim["warmup_steps"], optim["clip"], optim["schedule"]) == (10_000, 1.0, "cosine")
    assert (model["head_bias"], model["pool"]) == (-6.9, "tok")
    assert (tree["eval"]["crop"], train["micro_batch"]) == (224 / 256, "auto")


def test_what_the_user_says_is_over_what_the_recipe_has_for_an_architecture(folder):
    words = ("recipe=augreg", "model.arch=B/16", *RGB)
    assert composed(*words, "augment.mixup=0.1")["augment"]["mixup"] == 0.1
    assert composed(*words, "model.dropout=0")["model"]["dropout"] == 0.0


def test_an_architecture_that_a_recipe_says_nothing_of_is_refused(folder):
    with pytest.raises(UserError, match=r"model\.arch: .* Ti/16, S/32, .* got 'S/8'"):
        composed("recipe=augreg", "model.arch=S/8", *RGB)


def test_a_recipe_of_the_users_own_may_have_rows_by_architecture(folder):
    (folder / "conf/recipe").mkdir(parents=True)
    text = "# @package _global_\ndefaults: [quick, _self_]\n"
    text += "by_arch: {mu/4: {optim.lr: 0.5}, mu/2: {}}\n"
    (folder / "conf/recipe/mine.yaml").write_text(text)
    assert composed("recipe=mine")["optim"]["lr"] == 0.5
    assert composed("recipe=mine", "optim.lr=0.1")["optim"]["lr"] == 0.1
    assert composed("recipe=mine", "model.arch=mu/2")["optim"]["lr"] == 3e-3
    (folder / "conf/recipe/mine.yaml").write_text(text.replace("optim.lr", "optim.lrr"))
    with pytest.raises(UserError, match=r"optim\.lrr: expected a key among"):
        composed("recipe=mine")
    (folder / "conf/recipe/mine.yaml").write_text(text.replace("{optim.lr: 0.5}", "3"))
    with pytest.raises(UserError, match="by_arch: expected SIZE/PATCH"):
        composed("recipe=mine")


def test_deit_and_dtn_are_their_tables(folder):
    deit = composed("recipe=deit", "model.arch=deit_s/16", *RGB)
    dtn = composed("recipe=dtn", "model.arch=dtn_s/16", "norm=dtn", *RGB)
    for tree in (deit, dtn):
        optim, augment, train = tree["optim"], tree["augment"], tree["train"]
        assert optim["lr"] == 5e-4 * train["batch"] / 512
        assert (optim["wd"], optim["decay"], optim["clip"], optim["eps"]) == (
            0.05,
            "by_lr",
            None,
            1e-8,
        )
        assert (optim["warmup_lr"], optim["min_lr"], optim["cooldown_epochs"]) == (1e-6, 1e-5, 10)
        assert (train["epochs"], train["label_smoothing"], train["ema"]) == (310, 0.1, 0.99996)
        assert (augment["style"], augment["randaug_magnitude"], augment["repeats"]) == (
            "timm",
            9,
            3,
        )
        assert (tree["model"]["drop_path"], tree["model"]["input"]) == (0.1, "imagenet")
    mixed = [
        (t["augment"]["mixup"], t["augment"]["cutmix"], t["augment"]["erase"]) for t in (deit, dtn)
    ]
    assert mixed == [(0.8, 1.0, 0.25), (0.0, 0.0, 0.0)]
    assert dtn["train"]["precision"] == "fp32"


def test_the_cifar_recipe_is_between_the_two_it_names(folder):
    tree = composed("recipe=cifar", "model.arch=Ti/4", *RGB[:2], "data.classes=10", "data.size=32")
    optim, train, augment = tree["optim"], tree["train"], tree["augment"]
    assert (optim["lr"], optim["wd"], optim["decay"]) == (1e-3, 0.05, "by_lr")
    assert (optim["warmup_epochs"], optim["min_lr"], optim["schedule"]) == (10, 1e-5, "cosine")
    assert (train["epochs"], train["batch"], train["label_smoothing"]) == (300, 512, 0.1)
    assert (augment["style"], augment["randaug"], augment["randaug_magnitude"]) == ("timm", 2, 9)
    assert (augment["flip"], augment["crop_pad"], augment["cutmix"]) == (True, 4, 1.0)
    assert (train["micro_batch"], tree["model"]["drop_path"]) == ("auto", 0.1)
    assert tree["model"]["input"] == "range"


def test_the_mnist_recipe_is_the_articles(folder):
    tree = composed("recipe=mnist_bn", "model.arch=mnist_vit", "data=digits", "data.size=28")
    assert tree["augment"] | {"rotate": 20.0, "translate": 0.2, "zoom_out": 0.2} == tree["augment"]
    assert (tree["optim"]["schedule"], tree["optim"]["wd"], tree["train"]["batch"]) == (
        "constant",
        0,
        100,
    )
    assert (tree["eval"]["augment"], tree["model"]["input"]) == (True, "unit")
    assert composed("recipe=mnist_bn", "eval.augment=false")["eval"]["augment"] is False


# --- Ids ----------------------------------------------------------------------------------------


PAPER = ("data.channels=3", "data.size=224")  # of digits, whose files are here


def identified(*words):
    return resolve([*words], Path("runs"))[1]


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
        (
            ("recipe=cifar", "model.arch=Ti/4", "data.channels=3", "data.size=32"),
            "36daf241428f14ce",
        ),
        (("recipe=deit", "model.arch=deit_s/16", *PAPER), "b87b96752aa1e78e"),
        (("recipe=dtn", "model.arch=dtn_s/16", "norm=dtn", *PAPER), "048e579658650ba9"),
        (("recipe=augreg", "model.arch=B/16", *PAPER), "8ab28802f5e88a0f"),
        # style tf for its crops alone, and timm's operators behind augreg's settings
        (("recipe=augreg", "model.arch=B/16", "augment.randaug=0", *PAPER), "1e36e2edf720d3c4"),
        (("recipe=augreg", "model.arch=B/16", "augment.style=timm", *PAPER), "e83cce0825517bfc"),
        (("optim.name=adafactor_bv", "stem=dpn"), "43364ee0bda91b81"),
    ],
)
def test_runs_keep_their_ids(folder, words, identity):
    assert identified(*words) == identity


# --- What fields that were added later may say --------------------------------------------------


def build(key, value):
    section, _, name = key.partition(".")
    return build_run({**GOLDEN, section: {**GOLDEN[section], name: value}})


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
        for section, cls in hints(spec.Run).items()
        if section in ("data", "optim", "train", "augment", "eval")
        for name, value in added(cls).items()
    ],
)
def test_a_field_that_was_added_later_leaves_ids_at_its_default_alone(key, default):
    written = [*default] if isinstance(default, tuple) else default  # as JSON has it
    assert build(key, written).id == build_run(GOLDEN).id


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
    made, _ = plan([*words, "model.arch=B/16", "stem=none,dpn"], store=folder / "runs")
    told = caveats(made.cells)
    assert told["inferred"].count("class token") == 1
    assert "box means" in told["not followed"]
    assert "first moment" in told["not followed"]
    compared = {(cell.row, cell.column): None for cell in made.cells}
    lines = recipe_notes(made, compared)
    assert [line.split(":")[0] for line in lines] == [
        "Inferred in our recipe",
        "Not followed in our recipe",
    ]
    assert recipe_notes(made, {}) == []
