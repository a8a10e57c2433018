"""Composition: words and groups to the plain tree of a run."""

import copy
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import refused
from omegaconf import OmegaConf
from support.runs import GOLDEN_RUN

from ablate.planning.compose import Composer, resolve_run
from ablate.planning.conf import compose_config, shipped_folder
from ablate.planning.declaration import settings_at
from ablate.planning.declared import words_of
from ablate.planning.settings import SettingsLayer, Word, parse_word
from ablate.run import choices
from ablate.run.build import build_run
from ablate.shared.errors import UserError

pytestmark = pytest.mark.usefixtures("here")

STORE = Path("store")
OPTIONS = sorted((path.parent.name, path.stem) for path in shipped_folder("conf").glob("*/*.yaml"))


def images(*folders: str):
    for name in folders:
        Path("images", name).mkdir(parents=True)
        Path("images", name, "1.png").touch()


def conf(name: str, text: str):
    """An option of the user's own."""
    file = Path("conf", f"{name}.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


# --- Identity -----------------------------------------------------------------------------------


PLACED = {"name": "vit", "attn": "post", "mlp": "pre+post", "post": "branch"}


@pytest.mark.parametrize(
    ("changes", "identity"),
    [
        ({}, "3bed346958f78218"),
        ({"seed": 7}, "055c0bfa34dc624c"),
        ({"block": PLACED}, "8b1e00d0e552e69c"),
        ({"stem": {"name": "dpn", "eps": 1e-6}}, "e4137c77caf0fbac"),
    ],
)
def test_golden_ids(changes, identity):
    assert build_run({**copy.deepcopy(GOLDEN_RUN), **changes}).id == identity


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ("data", {"path": "/elsewhere"}),
        ("model", {"arch": "Ti/4"}),  # every field is given, so arch says nothing
        ("optim", {"clip": 1, "warmup_epochs": 4}),
    ],
)
def test_what_is_no_part_of_a_run_is_no_part_of_its_id(section, keys):
    assert (
        build_run({**GOLDEN_RUN, section: GOLDEN_RUN[section] | keys}).id
        == build_run(GOLDEN_RUN).id
    )


@pytest.mark.parametrize("name", ["digits", "mnist5k"])
def test_a_bundled_set_takes_no_path(name: str):
    with pytest.raises(UserError, match=f"data.path: data={name} is bundled and takes no path"):
        resolve_run([f"data={name}", "data.path=."], STORE)


def test_the_id_does_not_depend_on_how_the_data_path_is_spelled(here, monkeypatch):
    images("train/cat", "train/dog")
    shutil.copytree("images", "copy")
    (here / "link").symlink_to("images")
    monkeypatch.setenv("HOME", str(here))
    ids = set()
    for path in ("copy", "link", str(here / "images"), "~/images", "./images/", "images"):
        tree, identity = resolve_run(
            ["data=imagefolder", "data.size=8", f"data.path={path}"], STORE
        )
        ids.add(identity)
    assert len(ids) == 1
    assert tree["data"]["path"] == str(here / "images")


# --- Every option -------------------------------------------------------------------------------


FOLDER = ("data.path=images", "data.classes=2")
NEEDS = {  # words that an option takes beside it
    **dict.fromkeys(("imagefolder", "imagenet21k", "parquet"), FOLDER),
    **dict.fromkeys(("imagenet100", "tiny_imagenet"), (*FOLDER, "data.test=0.5")),
    "camvid": (FOLDER[0], "data.train=train", "data.validation=1", "data.test=1", "task=segment"),
    "ade20k": ("task=segment",),
    "segment": ("model.arch=B/16", "data=ade20k"),
    "imagetext": ("data.path=pairs",),
    "lit": ("task=contrastive",),
    "mnist_bn": ("data.cache=decoded",),  # it changes the whole test set once
}
TESTED_ON = ("imagenet_v2", "imagenet_r", "imagenet_real", "imagenet_c")  # by eval.also alone
IMAGENET = ("model.arch=B/16", "data=imagenet1k")  # for whose models and colours recipes speak


@pytest.mark.whole
@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_option_of_conf_composes_and_builds(group, name):
    images("train/cat", "train/dog")
    Path("pairs").mkdir()
    Path("pairs/train.csv").write_text("path,text\na.png,one\nb.png,two\n")
    if name in TESTED_ON:
        with refused(r"^data\.train: "):
            resolve_run([f"data={name}", FOLDER[0]], STORE)
        return
    recipe = IMAGENET if group == "recipe" and name != "segment" else ()
    tree, identity = resolve_run([f"{group}={name}", *recipe, *NEEDS.get(name, ())], STORE)
    assert build_run(tree).id == identity
    if group == "data":
        assert tree["data"]["name"] == name


@pytest.mark.whole
def test_every_choice_of_spec_is_a_group_option_as_hydra_would_compose_it():
    composer = Composer(STORE)
    for kind, table in choices.CHOICES.items():
        assert composer.groups[kind] == sorted(table)
        for name in table:
            layers = [SettingsLayer("", {kind: name})]
            composed, _ = compose_config("config", [f"{kind}={name}"])
            del composed["launcher"]
            assert composer.tree(layers) == composed


def test_a_new_choice_needs_no_file(monkeypatch: pytest.MonkeyPatch):
    param = choices.Param(float, 0.5, "a setting")
    with monkeypatch.context() as patch:
        patch.setitem(choices.NORMS, "mine", choices.Choice("-", "-", "a:b", {"alpha": param}))
        tree, _ = resolve_run(["norm=mine", "norm.alpha=2"], STORE)
    assert tree["norm"] == {"name": "mine", "alpha": 2.0}
    with pytest.raises(UserError, match=r"^norm: expected one of .*, got 'mine'$"):
        Composer(STORE).merge([SettingsLayer("", {"norm": "mine"})])


def test_the_launcher_is_no_part_of_a_run():
    plain, identity = resolve_run([], STORE)
    assert resolve_run(["launcher=inline", "launcher.attempts=1"], STORE) == (plain, identity)
    assert "launcher" not in plain
    assert Composer(STORE).launcher({})["name"] == "local"


def test_a_launcher_has_settings_of_its_own_beside_the_drivers():
    common = {"attempts": 3, "hang_s": 1800.0, "checkpoint_s": 60.0}
    ranks = {"gpus_per_run": 1, "cores_per_run": 1}
    local = {"name": "local", **common, "devices": "auto", "runs_per_gpu": "auto", **ranks}
    assert Composer(STORE).launcher({}) == local
    inline = Composer(STORE).launcher({"launcher": "inline"})
    assert inline == {"name": "inline", **common, "devices": "cpu"}
    conf("launcher/two", "name: local\nruns_per_gpu: 2\ndevices: [0, 2]\n")
    mine = Composer(STORE).launcher({"launcher": "two", "launcher.attempts": 9})
    assert mine == {**local, "attempts": 9, "runs_per_gpu": 2, "devices": "0,2"}


# --- The user's own conf ------------------------------------------------------------------------


def test_the_users_conf_comes_first():
    def rate(*words: str) -> float:
        return resolve_run(words, STORE)[0]["optim"]["lr"]

    assert rate() == 0.003
    text = (shipped_folder("conf") / "recipe" / "quick.yaml").read_text()
    conf("recipe/quick", text.replace("lr: 3e-3", "lr: 7e-3"))
    conf("recipe/mine", text.replace("lr: 3e-3", "lr: 9e-3"))
    conf("stem/dpn", "{name: dpn, eps: 0.25}")
    assert [rate(), rate("recipe=mine"), rate("recipe=cifar")] == [0.007, 0.009, 0.001]
    assert resolve_run(["stem=dpn"], STORE)[0]["stem"] == {"name": "dpn", "eps": 0.25}


def test_a_group_of_the_users_own():
    conf("optim/slow", "lr: 1e-5")
    optim = resolve_run(["optim=slow", "optim.wd=0"], STORE)[0]["optim"]
    assert (optim["lr"], optim["wd"], optim["b1"]) == (1e-5, 0.0, 0.9)


MINE = "conf: config recipe=mine: "


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("optim: [", f"{MINE}while parsing a flow node"),
        ("defaults: [nothing]", f"{MINE}In 'recipe/mine': Could not load 'recipe/nothing'"),
        ("defaults: [mine]", f"{MINE}its `defaults` include themselves"),
        ("a: &a [*a]", "conf/recipe/mine.yaml: the alias *a is inside its own anchor &a"),
        (f"optim: {{lr: {5000 * '9'}}}", MINE),
    ],
)
def test_a_broken_conf_is_told_in_one_line(text, told):
    conf("recipe/mine", f"# @package _global_\n{text}\n")
    with pytest.raises(UserError, match=f"^{re.escape(told)}[^\n]*$"):
        resolve_run(["recipe=mine"], STORE)


# --- Words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "key", "values"),
    [
        ("stem=dpn", "stem", ("dpn",)),
        ("stem=none,dpn", "stem", ("none", "dpn")),
        ("+optim.lr=1e-3", "optim.lr", (0.001,)),
        ("++optim.lr=1", "optim.lr", (1,)),
        ("block.attn=pre,pre_post,pre+post", "block.attn", ("pre", "pre+post", "pre+post")),
        ("model.arch=Ti/4,S/4", "model.arch", ("Ti/4", "S/4")),
        ("optim.clip=null,1", "optim.clip", (None, 1)),
        ("seeds=[0,1]", "seeds", ([0, 1],)),
        ("probe=['a b',\"c\"],[]", "probe", (["a b", "c"], [])),
        ("optim.lr_mult={}", "optim.lr_mult", (None,)),
        ("from.optim.lr_mult={},3", "from.optim.lr_mult", (None, 3)),
        ("train.deterministic=true,false", "train.deterministic", (True, False)),
        ("model.depth=range(1,4)", "model.depth", (1, 2, 3)),
        ("stem=glob(d*)", "stem", ("dpn",)),
        ("norm=pkg.mod:Class", "norm", ("pkg.mod:Class",)),
        ("data.path=~/Bücher (alt)", "data.path", ("~/Bücher (alt)",)),
        ("data.path='a,b'", "data.path", ("a,b",)),
        ("data.path=2024,null,1.10,x", "data.path", ("2024", None, "1.10", "x")),
        ("from.data.path=1e3", "from.data.path", ("1e3",)),
        ("from.data.path=x (1)", "from.data.path", ("x (1)",)),
    ],
)
def test_words(word: str, key: str, values: tuple[object, ...]):
    parsed = parse_word(word, {"stem": ["dpn", "none"]})
    assert (parsed.key, parsed.values) == (key, values)
    assert [type(value) for value in parsed.values] == [type(value) for value in values]


def wrong_words() -> list[list[str]]:
    """(command line, what it is told) of wrong_words.txt."""
    text = (Path(__file__).parent / "conf_stub" / "wrong_words.txt").read_text()
    return [re.split("^[$>] ", block.strip(), flags=re.M)[1:] for block in text.split("\n\n")[1:]]


@pytest.mark.parametrize(("line", "told"), wrong_words())
def test_a_wrong_word_is_told_in_one_line(line: str, told: str):
    pattern = ".*".join(map(re.escape, told.split("...")))
    with pytest.raises(UserError, match=f"^{pattern}$"):
        resolve_run(line.split(), STORE)


# --- Data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folders", "classes", "validation", "test"),
    [
        (["cat", "dog", "eel"], 3, 0.1, 0.1),
        (["train/cat", "train/dog", "test/cat"], 2, 0.1, "test"),
        (["train/cat", "train/dog", "test/cat", "validation/cat"], 2, "validation", "test"),
        (["train-0.parquet", "train-1.parquet", "test.parquet"], 4, 0.1, "test"),
    ],
)
def test_a_folder_says_the_rest(folders, classes, validation, test):
    words = ["data=imagefolder", "data.path=images", "data.size=8"]
    images(*folders)
    if classes == 4:  # which files of tables do not say
        words = ["data=parquet", "data.path=.", "data.classes=4"]
        for name in folders:
            Path(name).touch()
    data = resolve_run(words, STORE)[0]["data"]
    assert (data["classes"], data["validation"], data["test"]) == (classes, validation, test)


RESOLVED = {
    "value": "defaults: [quick, _self_]\noptim: {lr: '${oc.env:SECRET}'}\n",
    "list": "defaults: [quick, _self_]\nprobe: ['${oc.decode:${oc.env:SECRET}}']\n",
    "default": "defaults: [quick, _self_, '/norm@x': '${oc.env:SECRET}']\n",
}


@pytest.mark.parametrize("kind", [*RESOLVED, "word"])
def test_resolvers_are_refused(kind, monkeypatch):
    """What they would say is never said."""
    monkeypatch.setenv("SECRET", "layernorm")
    conf("recipe/mine", RESOLVED.get(kind, ""))
    with pytest.raises(UserError) as caught:
        resolve_run(["optim.lr=${oc.env:SECRET}" if kind == "word" else "recipe=mine"], STORE)
    text = str(caught.value)
    assert "${oc." in text
    assert "layernorm" not in text
    assert "\n" not in text
    assert ("resolvers are refused" in text) is (kind != "default")  # there Hydra says so
    assert OmegaConf.create({"x": "${oc.env:SECRET}"}).x == "layernorm"  # others' are left alone


def test_the_place_of_data_may_name_a_variable(monkeypatch):
    """It is no part of an id."""
    images("train/cat", "train/dog", "test/cat")
    words = ["data=imagefolder", "data.size=8"]
    expected = resolve_run([*words, "data.path=images"], STORE)
    monkeypatch.setenv("HERE", os.getcwd())
    assert resolve_run([*words, "data.path=${oc.env:HERE}/images"], STORE) == expected
    conf("data/mine", "defaults: [imagefolder, _self_]\npath: '${oc.env:HERE}/images'\n")
    tree, _ = resolve_run(["data=mine", "data.size=8"], STORE)
    assert tree["data"]["path"] == expected[0]["data"]["path"]
    monkeypatch.delenv("HERE")
    with pytest.raises(UserError) as caught:
        resolve_run([*words, "data.path=${oc.env:HERE}/images"], STORE)
    assert str(caught.value).startswith("data.path: ")
    assert "HERE" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["${oc.env:HERE,x}", "${oc.env:HERE}/${oc.decode:1}", "${oc.env:${oc.env:HERE}}"]
)
def test_the_place_of_data_has_no_other_resolver(text, monkeypatch):
    monkeypatch.setenv("HERE", os.getcwd())
    with pytest.raises(UserError) as caught:
        resolve_run(["data=imagefolder", "data.size=8", f"data.path={text}"], STORE)
    assert "resolvers are refused" in str(caught.value)


def test_interpolations_are_resolved_after_values_are_set():
    words = ["optim.warmup_epochs=${train.epochs}", "train.epochs=9"]
    assert resolve_run(words, STORE)[0]["optim"]["warmup_epochs"] == 9.0


BOTH = {"blocks": 0.0, "blocks.0": 1.0}


@pytest.mark.parametrize(
    ("layers", "factors"),
    [
        ([{"blocks": 0, "blocks.0": 1}], BOTH),
        ([{"blocks.0": 1, "blocks": 0}], BOTH),
        ([{"blocks.0": 1}, {"blocks": 0}], BOTH),
        ([{"blocks": 0}, {"blocks.0": 1}], BOTH),
        ([{"": None}, {"blocks": 0}], {"blocks": 0.0}),
        ([{"blocks": 0}, {"": None}], None),
        ([{"blocks": 0}, {"": None}, {"blocks": 1}], {"blocks": 1.0}),
    ],
)
def test_a_path_of_lr_mult_and_one_below_it_each_have_a_factor(layers, factors):
    composer = Composer(STORE)
    settings = [{f"optim.lr_mult.{k}".strip("."): v for k, v in layer.items()} for layer in layers]
    tree = composer.tree([SettingsLayer(str(n), layer) for n, layer in enumerate(settings)])
    assert composer.run(tree).optim.lr_mult == factors


def test_no_factors_are_null_in_a_file_and_in_python():
    assert settings_at({"optim.lr_mult": {}}, "base") == {"optim.lr_mult": None}
    for settings in ({"optim": {"lr_mult": {}}}, {"optim.lr_mult": {}}):
        assert words_of(settings) == [Word("optim.lr_mult", (None,))]


def test_a_recipe_may_nest_the_paths_of_lr_mult():
    text = (shipped_folder("conf") / "recipe" / "quick.yaml").read_text()
    conf("recipe/mine", text.replace("lr: 3e-3", "lr: 3e-3, lr_mult: {blocks: {0: 0.5}}"))
    words = ["recipe=mine", "optim.lr_mult.blocks.0=1", "optim.lr_mult.head=2"]
    factors = resolve_run(words, STORE)[0]["optim"]["lr_mult"]
    assert factors == {"blocks.0": 1.0, "head": 2.0}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("adamw", {"b1", "b2", "eps"}),
        ("sgd", {"b1"}),
        ("adafactor", {"beta2_decay", "clip_threshold"}),
        ("muon", {"b1", "b2", "eps", "momentum", "adjust_lr"}),
        ("torch.optim:NAdam", set()),
    ],
)
def test_config_prints_the_keys_that_the_optimiser_reads(ask, name: str, keys: set[str]):
    code, out = ask("config", f"optim.name={name}", "--format", "json")
    assert code == 0
    of_some = {"b1", "b2", "eps", "momentum", "adjust_lr", "beta2_decay", "clip_threshold"}
    assert json.loads(out)["configuration"]["optim"].keys() & of_some == keys


@pytest.mark.whole
def test_hydra_knows_what_the_tables_of_choices_say_now(monkeypatch):
    """Its store is one for the process: what they said once would stay there."""

    def eps(name: str = "rmsnorm") -> float:
        return compose_config("config", [f"norm={name}"])[0]["norm"]["eps"]

    before, rms = eps(), choices.NORMS["rmsnorm"]
    with monkeypatch.context() as patch:
        other = replace(rms, params={"eps": replace(rms.params["eps"], default=0.5)})
        patch.setitem(choices.NORMS, "rmsnorm", other)
        patch.setitem(choices.NORMS, "another", rms)
        assert (eps(), eps("another")) == (0.5, before)
    assert eps() == before
    with pytest.raises(UserError, match="another"):
        eps("another")
