"""Sweep files and words: what they expand to, and what each mistake is told."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from support.plans import plan

from ablate.analysis.paper import published_figures
from ablate.planning import compose, expand
from ablate.planning.conf import shipped_folder
from ablate.planning.design import ONE_PARENT
from ablate.planning.plan import Plan
from ablate.run import choices
from ablate.run.schema import read_section
from ablate.run.sections import Optim, Train
from ablate.shared.errors import UserError
from ablate.training.optim import lengths

STUBS = Path(__file__).parent / "conf_stub"
SMALL = "variants: [{a: {}}, {b: {stem: dpn}}]\n"


@pytest.fixture(autouse=True)
def folder(here):
    """An empty folder with a `sweeps` in it; nothing of the user's is in reach."""
    (here / "sweeps").mkdir()


def write(text: str, name: str = "x"):
    Path(f"sweeps/{name}.yaml").write_text(text)


def count(planned: Plan) -> int:
    runs = list(planned.runs())
    assert len({run.id for run in runs}) == len(runs)
    return len(runs)


def labels(planned: Plan) -> list[str]:
    return [row.label for row in planned.rows]


# --- What ships ---------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "scale", "rows", "columns", "runs"),
    [
        ("quickstart", None, 4, 1, 48),
        ("figure1", None, 20, 5, 300),
        ("figure1", "cifar", 20, 3, 300),
        ("figure1", "smoke", 20, 1, 40),
        ("figure1", "small", 20, 2, 200),
        ("bnffn_depth", None, 2, 10, 100),
        ("bnffn_depth", "author", 2, 10, 100),
        ("bnffn_depth", "smoke", 2, 4, 16),
        ("table6", None, 8, 5, 120),
    ],
)
def test_what_ships_expands_to_so_many_runs(name, scale, rows, columns, runs):
    planned = plan(name, scale=scale)
    assert (len(planned.rows), len(planned.columns), count(planned)) == (rows, columns, runs)
    assert Plan.from_tree(json.loads(planned.to_bytes())) == planned
    for run in list(planned.runs())[::29]:
        assert run.run().id == run.id
    if name == "figure1" and scale == "cifar":
        assert labels(planned)[:4] == ["pre/pre", "pre/post", "pre/pre+post", "post/pre"]
        families = {row.family for row in planned.rows}
        assert families == {None, "LN after the addition", "LN on the branch"}
        assert [c.paper for c in planned.columns] == ["S/16", "Ti/16", "S/32"]
        tree = planned.cell("post/pre+post (branch)", "Ti/4").spec.tree
        assert [*tree["block"].values()] == ["vit", "post", "pre+post", "branch"]
        assert (tree["model"]["width"], tree["train"]["epochs"]) == (192, 300)
        first = [run.label for run in planned.runs()][:2]
        assert first == ["pre/pre@S/4#0", "pre/post@S/4#0"]
    if name == "figure1" and scale == "smoke":  # it is still what its words say
        words = ["recipe=quick", "data=digits", "model.depth=4", "model.arch=mu/4", "stem=dpn"]
        words += ["train.epochs=4", "optim.warmup_epochs=1"]
        ids = planned.cell("Dual PatchNorm", "mu/4").ids
        assert ids[0] == compose.resolve_run(words, Path("store"))[1]


def test_a_scale_drops_contrasts_and_excludes_that_it_has_no_columns_for():
    write(f"""\
across: {{model.depth: [1, 2, 3]}}
exclude: [{{model.depth: 1}}]
analysis: {{contrasts: {{deeper: {{across: model.depth, from: 2, to: 3}}}}}}
scales: {{s: {{across: {{model.depth: [4, 5]}}}}, wide: {{base: {{optim.wd: 0}}}}}}
{SMALL}""")
    assert list(plan("x").analysis.contrasts) == ["deeper"]
    planned = plan("x", scale="s")
    assert planned.analysis.contrasts == {}
    assert planned.notes == (
        "sweeps/x.yaml: exclude[0] matches no cell at this scale",
        "contrast 'deeper' has no columns at this scale",
    )
    wide = plan("x", scale="wide")
    assert wide.notes == ()
    assert {cell.spec.tree["optim"]["wd"] for cell in wide.cells} == {0}


def folders(*words: str) -> tuple[str, ...]:
    """These words, with the folders and files that they name: planning opens no picture."""
    for name in ("a", "b"):
        (Path("imagenet21k/train") / name).mkdir(parents=True, exist_ok=True)
        (Path("imagenet21k/train") / name / "0.png").touch()
    for name in ("camvid", "pairs"):
        Path(name).mkdir(exist_ok=True)
    for split in ("train", "validation", "test"):
        Path(f"camvid/{split}.parquet").touch()
        Path(f"pairs/{split}.csv").write_text("path,text\na.png,one\nb.png,two\n")
    Path("pairs/validation.csv").unlink()
    return words


@pytest.mark.whole
@pytest.mark.parametrize(
    "name", sorted(path.stem for path in shipped_folder("sweeps").glob("*.yaml"))
)
def test_every_shipped_sweep_plans(name):
    file = shipped_folder("sweeps") / f"{name}.yaml"
    assert file.read_text().startswith(f"# ablate sweep {name}")
    declared = yaml.safe_load(file.read_text())
    scales, small = declared.get("scales", {}), {"cifar", "small", "smoke"}
    for scale in (None, *scales):
        words = ()
        if name == "table5" and scale in small:
            words = folders("data.path=camvid")
        elif scale not in small and "imagenet21k" in str(declared.get("from")):
            words = folders("from.data.path=imagenet21k", "from.data.classes=2")
        if scale not in small and declared.get("base", {}).get("data") == "imagetext":
            words = (*words, *folders("data.path=pairs"))
        by_hand = "imagenet_c" in str(declared["base"]) and scale is None
        planned = plan(name, *words, scale=scale, allow_missing=by_hand)
        of_scale = f"{declared['title']} (scale {scale})"
        if scale == "smoke":
            of_scale = f"Smoke test: {declared['title']}"
        own = scales[scale].get("title", of_scale) if scale else declared["title"]
        assert planned.title == own
        assert planned.smoke == (scale == "smoke")
        assert (ONE_PARENT in planned.conditions) == (scale == "once")
        # Before its search a tuned cell has the ids of its own settings, as an untuned one has.
        parts = [[c for c in planned.cells if planned.is_tuned(c) is on] for on in (True, False)]
        assert sum(count(replace(planned, cells=tuple(part))) for part in parts)
        for cell in planned.cells:  # of fewer values a norm of a patch leaves little to see
            assert cell.spec.tree["data"]["channels"] * cell.spec.tree["model"]["patch"] ** 2 >= 16
        assert bool(planned.analysis.contrasts) == ("contrasts" in declared.get("analysis", {}))
        if not planned.paper:
            unpublished = ("quickstart", "dnn_bn", "placement_2026", "robustness")
            assert name in unpublished or name.startswith("study_")
        elif scale in small and name != "bnffn_depth":  # all columns stand for one
            found = published_figures(planned, Path("store"))
            assert {column for _, column in found} == {c.label for c in planned.columns}
            assert all(theirs.differs for theirs in found.values())
        else:
            published_figures(planned, Path("store"))
    assert set(scales) & small or name == "quickstart" or name.startswith("study_")


@pytest.mark.whole
@pytest.mark.parametrize("name", ["figure1", "figure2", "figure3", "stems", "table1", "table6"])
def test_augreg_is_as_long_as_big_visions_on_imagenet_alone(name):
    trees = [cell.spec.tree for cell in plan(name).cells]
    augreg = [tree for tree in trees if tree["train"]["batch"] == 4096]
    assert augreg
    for tree in augreg:
        train, optim = (
            read_section(Train, tree["train"], "train"),
            read_section(Optim, tree["optim"], "optim"),
        )
        assert lengths(optim, train, 1_268_355 // 4096).total == 92_897
    for scale in ("cifar", "smoke"):
        assert {cell.spec.tree["train"]["examples"] for cell in plan(name, scale=scale).cells} == {
            None
        }


def test_the_quick_start():
    planned = plan("quickstart")
    assert (planned.baseline, planned.columns[0].label) == ("plain ViT", "")
    assert planned.analysis.margin == 2.5
    model, data = (planned.cells[0].spec.tree[section] for section in ("model", "data"))
    assert (model["patch"], model["depth"], model["width"]) == (14, 2, 32)
    assert data["fingerprint"] == "026a9fc0e800b8e5"


def test_the_placements_on_digits():
    planned = plan("placement_2026", "seeds=2", scale="smoke", name="p")
    assert planned.words == ("placement_2026", "seeds=2", "--scale", "smoke", "--as", "p")
    places = [f"{a}/{m}" for a in ("pre", "post", "pre+post") for m in ("pre", "post", "pre+post")]
    assert {*places, "Peri-LN"} <= set(labels(planned))
    assert len(labels(planned)) == 18
    model = planned.cells[0].spec.tree["model"]
    assert (model["patch"], model["depth"], model["width"]) == (4, 4, 32)


# --- The grammar --------------------------------------------------------------------------------


def test_precedence_from_base_to_the_command_line():
    write("""\
base: {optim.lr: 0.1, optim.wd: 0.1, optim.b1: 0.1, optim.b2: 0.1, train.epochs: 1, train.batch: 1}
across: [{c: {optim.b1: 0.3, optim.b2: 0.3, train.epochs: 3, train.batch: 3}}]
variants: [{a: {}}, {b: {optim.b2: 0.4, train.epochs: 4, train.batch: 4}}]
overrides: [{if: {optim.b2: 0.4}, set: {train.epochs: 5, train.batch: 5}}]
scales: {s: {base: {optim.wd: 0.2, optim.b1: 0.2, optim.b2: 0.2, train.epochs: 2, train.batch: 2}}}
""")
    cell = plan("x", "train.batch=6", scale="s").cell("b", "c")
    assert cell is not None
    optim, train = cell.spec.tree["optim"], cell.spec.tree["train"]
    assert [optim[key] for key in ("lr", "wd", "b1", "b2")] == [0.1, 0.2, 0.3, 0.4]
    assert [train[key] for key in ("epochs", "batch")] == [5, 6]
    assert cell.overrides == ("train.epochs",)  # the other one is the command line's


@pytest.mark.parametrize(
    ("words", "scale", "length"),
    [
        ((), None, [None, None, 9]),
        ((), "s", [None, 960, 9]),
        (("train.steps=3",), "s", [3, 960, 9]),
        (("train.epochs=2", "train.examples=null"), "s", [None, None, 2]),
    ],
)
def test_the_length_of_a_higher_layer_counts(words, scale, length):
    write("base: {train.epochs: 9}\nscales: {s: {base: {train.examples: 960}}}\n" + SMALL)
    train = plan("x", *words, scale=scale).cells[0].spec.tree["train"]
    assert [train[key] for key in ("steps", "examples", "epochs")] == length


def test_a_scale_has_its_own_analysis_and_paper():
    write("""\
across: {model.depth: [1, 2]}
variants: [{a: {}}, {b: {stem: dpn}}]
analysis: {margin: 1, alpha: 0.1, contrasts: {deeper: {across: model.depth, from: 1, to: 2}}}
paper: {table: T1L, rows: {a: base, b: dpn}, columns: {2: S/16}}
scales:
  s:
    across: {model.depth: [3, 4]}
    analysis: {margin: 2, contrasts: {deeper: {across: model.depth, from: 3, to: 4}}}
    paper: {columns: {4: B/16}}
""")
    for scale, margin, last in ((None, 1, 2), ("s", 2, 4)):
        analysis = plan("x", scale=scale).analysis
        assert (analysis.margin, analysis.alpha) == (margin, 0.1)
        assert analysis.contrasts["deeper"]["to"] == last
    assert plan("x", "analysis.margin=3", scale="s").analysis.margin == 3
    found = published_figures(plan("x", scale="s"), Path("store"))
    columns = {key: theirs.column for key, theirs in found.items()}
    assert columns == {("a", "4"): "B/16", ("b", "4"): "B/16"}


def test_a_word_that_empties_an_exclude_is_noted():
    write("across: {model.depth: [1, 2]}\nexclude: [{model.depth: 2, train.batch: 64}]\n" + SMALL)
    assert len(plan("x").cells) == 2
    for word in ("train.batch=96", "recipe=cifar"):  # the latter brings a batch of 512
        planned = plan("x", word)
        assert len(planned.cells) == 4
        assert planned.notes == (f"sweeps/x.yaml: exclude[0] matches no cell under {word}",)


def test_groups_come_first_whatever_the_order_in_a_layer():
    write("base: {optim.lr: 0.5, recipe: cifar}\n" + SMALL)
    assert plan("x").cells[0].spec.tree["optim"]["lr"] == 0.5
    assert plan("x").cells[0].spec.tree["train"]["epochs"] == 300


def test_rows_with_equal_specs_are_one():
    write("baseline: again\nvariants: [{a: {}}, {b: {stem: dpn}}, {again: {stem: none}}]\n")
    planned = plan("x")
    assert labels(planned) == ["a", "b"]
    assert planned.rows[0].aliases == ("again",)
    assert planned.baseline == "a"
    assert planned.notes == ("'again' is 'a' again: equal settings",)
    assert len(planned.cells) == 2


def test_zip_each_set_and_label():
    write("""\
variants:
  - zip: {optim.lr: [0.1, 0.2], optim.wd: [0.3, null]}
    exclude: [{optim.wd: null}]
  - each: {block.attn: [post, pre+post], block.mlp: [post], norm: [identity]}
    set: {model.depth: 2}
  - product: {stem: [dpn], model.pool: [gap]}
    label: "{stem} with {model.pool}, {norm.eps}"
    set: {norm.eps: 1e-3}
""")
    planned = plan("x")
    each = ["block.attn=post", "pre+post", "block.mlp=post", "identity"]
    assert labels(planned) == ["lr=0.1 · wd=0.3", *each, "dpn with gap, 0.001"]
    assert dict(planned.rows[1].settings) == {"model.depth": 2, "block.attn": "post"}


DEPTHS = "{model.depth: [1, 2], model.pool: [tok, gap]}"
PRODUCT = ["depth=1 · tok", "depth=1 · gap", "depth=2 · tok", "depth=2 · gap"]


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (DEPTHS, PRODUCT),
        (f"{{zip: {DEPTHS}}}", [PRODUCT[0], PRODUCT[3]]),
        ("{product: {model.depth: [1, 2]}, label: 'depth {model.depth}'}", ["depth 1", "depth 2"]),
        ("[{shallow: {model.depth: 1}}, {8: {model.depth: 8}}]", ["shallow", "8"]),
        ("{model.depth: 'range(1,4)'}", ["1", "2", "3"]),
    ],
)
def test_axes(axes, expected):
    write(f"across: {axes}\n" + SMALL)
    assert [column.label for column in plan("x").columns] == expected


def test_an_override_matches_what_is_set_and_what_is_default():
    condition = "{block.attn: pre, recipe: quick, stem: [dpn]}"
    write(f"overrides: [{{if: {condition}, set: {{optim.lr: 0.5}}}}]\n{SMALL}")
    planned = plan("x")
    assert [cell.overrides for cell in planned.cells] == [(), ("optim.lr",)]
    assert planned.cells[1].spec.tree["optim"]["lr"] == 0.5


def test_a_wholly_excluded_row_or_column_is_gone_and_need_not_be_possible():
    write(
        "across: {model.arch: [mu/4, mu/3]}\nexclude: [{model.arch: mu/3}, {stem: dpn}]\n" + SMALL
    )
    planned = plan("x")
    assert (labels(planned), [column.label for column in planned.columns]) == (["a"], ["mu/4"])


def test_recipe_keys_of_a_variant_are_confounds():
    write("variants: [{a: {}}, {b: {stem: dpn, optim.lr: 0.1}}, {c: {recipe: cifar}}]\n")
    assert [row.confounds for row in plan("x").rows] == [(), ("optim.lr",), ("recipe",)]
    rows = plan("optim.lr=0.1,0.2", "stem=none,dpn").rows
    assert [row.confounds for row in rows] == [(), (), ("optim.lr",), ("optim.lr",)]


def test_analysis_and_paper():
    paper = "paper: {table: T6, rows: {b: dpn}}\n"
    write("analysis: {spread: paired, margin: 1, looks: [3, 5]}\n" + paper + SMALL)
    planned = plan("x", "analysis.spread=paired", "analysis.alpha=0.1")
    assert planned.name == "x"
    assert (planned.analysis.spread, planned.analysis.margin) == ("paired", 1.0)
    assert (planned.analysis.looks, planned.analysis.alpha) == ((3, 5), 0.1)
    assert planned.paper == {"table": "T6", "rows": {"b": "dpn"}}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("title: 'by ${oc.env:USER}'\nvariants: [{a: {stem: dpn}}]\n", "title"),
        ("variants: [{a: {stem: '${ oc.env:USER}'}}]\n", "variants.0.a.stem"),
        ("variants: [{'${oc.env:USER}': {stem: dpn}}]\n", "variants.0"),
        ("base: {optim.lr: '${mine:1}'}\nvariants: [{a: {stem: dpn}}]\n", "base.optim.lr"),
        (
            "base: {trainer: x, trainer.data.path: '${oc.env:USER}'}\nvariants: [{a: {}}]\n",
            "base.trainer.data.path",
        ),
    ],
)
def test_resolvers_are_refused(text, key):
    write(text)
    told = rf"^sweeps/x\.yaml: {re.escape(key)}: .*resolvers are refused"
    with pytest.raises(UserError, match=told):
        plan("x")


def test_interpolation_sees_the_values_over_it():
    write("base: {optim.warmup_epochs: '${train.epochs}'}\nvariants: [{a: {train.epochs: 7}}]\n")
    assert plan("x").cells[0].spec.tree["optim"]["warmup_epochs"] == 7.0


# --- Without a file -----------------------------------------------------------------------------


def test_lists_of_values_are_rows_and_data_and_arch_are_columns():
    planned = plan("stem=none,dpn", "data=digits,cifar10", "model.arch=mu/4,mu/8", "seeds=2")
    assert labels(planned) == ["none", "dpn"]
    columns = [f"{data} · {arch}" for data in ("digits", "cifar10") for arch in ("mu/4", "mu/8")]
    assert [column.label for column in planned.columns] == columns
    assert (planned.baseline, count(planned)) == ("none", 16)
    assert planned.name == "stem-by-data-by-arch"


def test_product_each_and_across():
    words = ("block.attn=pre,post", "block.mlp=pre,post,pre_post", "model.depth=1,2")
    assert len(plan(*words).rows) == 12
    beside = plan(*words, across=("model.depth",))
    assert (len(beside.rows), [c.label for c in beside.columns]) == (6, ["1", "2"])
    each = plan(*words[:2], each=True)
    assert labels(each) == ["base", "block.attn=post", "block.mlp=post", "block.mlp=pre+post"]
    assert (each.baseline, each.cells[0].ids) == ("base", plan(*words[:2]).cells[0].ids)
    assert each.words == (words[0], "block.mlp=pre,post,pre+post", "--each")
    assert len({p.declared.identity for p in (plan(*words), beside, each)}) == 3


def test_only_columns_is_one_row():
    planned = plan("data=digits,cifar10")
    assert (labels(planned), planned.baseline, len(planned.cells)) == (["base"], "base", 2)


def test_glob_lists_the_choices():
    planned = plan("stem=glob(*)", "baseline=none")
    assert labels(planned) == sorted(choices.STEMS)
    assert planned.baseline == "none"
    write("baseline: none\nvariants: [{product: {stem: glob(*)}}]\n")
    assert labels(plan("x")) == sorted(choices.STEMS)


def test_all_words_of_a_line_are_on_one_level():
    planned = plan("recipe=quick,cifar", "optim.lr=0.5")
    assert {cell.spec.tree["optim"]["lr"] for cell in planned.cells} == {0.5}


# --- Names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "options", "name"),
    [
        ("quickstart", {}, "quickstart"),
        ("placement_2026", {"scale": "smoke"}, "placement_2026@smoke"),
        (
            "quickstart optim.wd=0 optim.lr=1e-3 seeds=2 launcher=inline",
            {},
            "quickstart+optim.lr=0.001+optim.wd=0",
        ),
        ("quickstart +optim.lr=0.0010", {}, "quickstart+optim.lr=0.001"),
        ("stem=none,dpn seeds=[4] analysis.alpha=0.1", {}, "stem-none-dpn"),
        ("stem=none,dpn", {"name": "mine"}, "mine"),
        ("sweeps/x.yaml", {}, "x"),
        ("stem=none,dpn data=cifar10 data.path=.", {}, "stem-none-dpn"),
    ],
)
def test_names(words, options, name):
    write(SMALL)
    Path("train.parquet").touch()
    assert plan(*words.split(), **options).name == name


@pytest.mark.whole
def test_the_users_sweeps_come_first():
    assert len(plan("quickstart").rows) == 4
    write("title: mine\n" + SMALL, "quickstart")
    assert plan("quickstart").title == "mine"
    write("variants: [", "broken")
    found = {name: (title, path) for name, title, path in expand.list_sweeps()}
    assert found["quickstart"] == ("mine", Path("sweeps/quickstart.yaml"))
    assert found["stems"][1] == shipped_folder("sweeps") / "stems.yaml"
    assert found["broken"][0].startswith("(sweeps/broken.yaml: line 1: not YAML")


def test_the_launcher_is_returned_apart_and_changes_no_id():
    words = ["stem=none,dpn", "launcher=inline", "launcher.attempts=9", "launcher.hang_s=1"]
    planned, launcher = expand.plan_from_words(words, store=Path("store"))
    settings = {"attempts": 9, "hang_s": 1.0, "checkpoint_s": 60.0, "devices": "cpu"}
    assert launcher == {"name": "inline", **settings}
    assert planned.cells == plan("stem=none,dpn").cells
    assert planned.name == "stem-none-dpn"


def test_labels_and_stores_change_no_id():
    write("variants: [{a: {}}, {b: {stem: dpn}}]\n", "one")
    write("variants: [{x: {stem: dpn}}, {y: {model.depth: 1}}]\n", "two")
    one, two = plan("one"), expand.plan_from_words(["two"], store=Path("/elsewhere"))[0]
    assert one.cells[1].ids == two.cells[0].ids
    assert one.cells[0].ids == two.cells[1].ids  # mu has depth 1 by itself


def test_a_row_may_be_called_as_files_call_what_they_lack():
    write('variants: [{a: {}}, {"???": {stem: dpn}}]\n')
    assert Plan.from_tree(json.loads(plan("x").to_bytes())).rows[1].label == "???"


# --- Mistakes -----------------------------------------------------------------------------------


def mistakes() -> list[tuple[str, list[str], str]]:
    """(sweep file, words, what they are told) of mistakes.txt."""
    found, text = [], ""
    for block in (STUBS / "mistakes.txt").read_text().split("\n\n")[1:]:
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        told = [line[2:] for line in lines if line.startswith("> ")]
        words = [line[2:].split() for line in lines if line.startswith("$ ")] or [["x"]]
        rest = [line for line in lines if not line.startswith(("> ", "$ "))]
        text = "\n".join(rest).replace("...", SMALL) + "\n" if rest else text
        found += [(text, words[0], line) for line in told]
    return found


def options(words: list[str]) -> dict[str, object]:
    """The options among words, taken out of them."""
    taken: dict[str, object] = {}
    for name in ("scale", "across"):
        while f"--{name}" in words:
            value = words.pop(words.index(f"--{name}") + 1)
            taken[name] = [value] if name == "across" else value
            words.remove(f"--{name}")
    if "--each" in words:
        words.remove("--each")
        taken["each"] = True
    return taken


def test_there_are_enough_mistakes():
    assert len(mistakes()) > 120


@pytest.mark.parametrize(("text", "words", "told"), mistakes())
def test_a_mistake_is_told_in_one_line(text, words, told):
    write(text)
    words = list(words)
    taken = options(words)
    with pytest.raises(UserError) as caught:
        plan(*words, **taken)
    pattern = ".*".join(map(re.escape, told.split("...")))
    assert re.fullmatch(pattern, str(caught.value)), str(caught.value)


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
MERGED = BOMB.replace("[x, x]", "{x: 1}").replace("[*", "{<<: [*").replace("]\n", "]}\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, "more than 100,000 values"),
        (MERGED, "more than 100,000 values"),
        ("title: &a [*a]", r"\*a is inside its own anchor &a"),
        ("title: " + 5000 * "[" + 5000 * "]", "50 levels"),
        ("seeds: " + 5000 * "9", "can't be read: .*digits"),
        ("variants: [{a: {optim.lr: 1" + 400 * "0" + "}}, {b: {}}]", "optim.lr: .* 63 bits"),
        ("variants: [{product: {" + ", ".join(f"k{n}: [1, 2]" for n in range(40)) + "}}]", "most"),
    ],
)
def test_no_file_takes_the_memory_the_stack_or_the_day(text: str, told: str):
    write(text)
    start = time.process_time()
    with pytest.raises(UserError, match=f"^sweeps/x.yaml: [^\n]*{told}[^\n]*$"):
        plan("x")
    assert time.process_time() - start < 2
