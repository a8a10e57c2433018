"""Code of the user's own: what holds of every kind, tried with the smallest file that is right.

Each file does what a shipped choice does, times a setting: so it is seen to be used. What a kind
has besides stands in a file of its own, test_own_parts.py or another.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import parts_page
import pytest
import typer
from conftest import Shell
from pages import PAGES

from ablate import cli
from ablate.audit import export
from ablate.planning import compose, templates
from ablate.planning.analysis_keys import read_own_metric
from ablate.run import (
    RunSpec,
    parts,
    sections,
    validated_run,
)
from ablate.run.schema import field_keys
from ablate.shared.errors import UserError
from ablate.store.store import Store
from ablate.training.answers import answer_describe

BEGIN = """from typing import Literal
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from ablate.training.model.block import Block
from ablate.training.model.stem import Plain
from ablate.training.probes.probe import Probe
from helper import ONE

"""
SETTINGS = 'by: float = 1.0, how: Literal["times", "never"] = "times"'
YAML = """name: own_trainer:Part
keys: {by: 1.0, how: {default: times, choices: [times, never]}}
metrics: {score: {direction: more}}
"""


@dataclass(frozen=True)
class Kind:
    """`key`: what it is in errors. `word`: chooses it. `place`: of its settings. `shipped`: does
    the same, "" being the baseline; None: nothing does. `version`: the key of what is read from
    the file."""

    key: str
    word: str
    place: str = ""
    shipped: str | None = None
    version: str = ""


# A shipped choice that does the same as the smallest part of a kind.
SHIPPED = {
    "norm": "norm=identity",
    "model": None,
    "optimizer": "optim.name=torch.optim:SGD",
    "schedule": "optim.schedule=constant",
    "activation": "model.act=relu",
    "posemb": "model.posemb=none",
}


def case(kind: parts.PartKind) -> Kind:
    """The smallest part of a kind."""
    path = f"own_{kind.name}:Part"
    word = f"{kind.key}=[{path}]" if kind.several else f"{kind.key}={path}"
    if kind is parts.PROBE:
        return Kind(kind.key, word, "", "", "own_probes.versions")
    version, _ = kind.computed
    place = kind.key if kind.is_section else f"{kind.section}.{kind.settings}"
    if kind.several:
        place += ".Part"
    shipped = SHIPPED.get(kind.name, "")
    return Kind(kind.key, word, place, shipped, f"{kind.section}.{version}")


KINDS = {
    **{kind.name: case(kind) for kind in parts.PART_KINDS},
    "metric": Kind("analysis.metric", "analysis.metric=own_metric:Part"),
    "trainer": Kind("trainer", "trainer=own_trainer", "trainer"),
}
MODULE = """class Part({base}):
    def __init__(self, {given}, *, SETTINGS):
        super().__init__({passed})
        self.by = by{more}

    def forward(self, {seen}):
        return self.by * {value} * ONE
"""
LINEAR = "\n        self.head = nn.Linear(images.channels * images.size**2, outputs)"


def module(base: str, given: str, passed: str, seen: str, value: str, more: str = "") -> str:
    given = {"base": base, "given": given, "passed": passed, "more": more}
    return MODULE.format(**given, seen=seen, value=value)


def function(given: str, value: str) -> str:
    return f"def Part({given}, SETTINGS):\n    return {value} * ONE\n"


TEXTS = {
    "norm": module("nn.Module", "shape", "", "x", "x"),
    "stem": module("Plain", *2 * ["patches, width"], "images", "super().forward(images)"),
    "block": module("Block", "layer", "layer", "x", "super().forward(x)"),
    "model": module(
        *("nn.Module", "images, outputs", "", "images", "self.head(images.flatten(1))", LINEAR)
    ),
    "probe": """class Part(Probe):
    numbers = {"steps": {"unit": "steps"}}

    def arrays(self, steps):
        return {"steps": np.array(steps * ONE)}
""",
    "optimizer": """class Part(torch.optim.SGD):
    def __init__(self, params, lr, weight_decay=0.0, *, SETTINGS):
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        self.by = by

    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(self.by * ONE)
        super().step()
""",
    "schedule": function("step, total", "by"),
    "loss": function("logits, target", "by * F.cross_entropy(logits, target)"),
    "activation": function("x", "by * x.relu()"),
    "attention": module(
        *("nn.Module", "shape", "", "q, k, v", "F.scaled_dot_product_attention(q, k, v)")
    ),
    "posemb": module("nn.Module", "shape", "", "x", "x"),
    "augmentation": function("images, draw", "by * images"),
    "metric": """def Part(table):
    return float(np.mean(table["class"] == table["label"])) * ONE

Part.unit = "%"
""",
    "trainer": """def Part(settings, run):
    run.log(1, score=settings["by"])
    run.result(score=settings["by"] * ONE)
""",
}
SECTIONS = {part.key for part in parts.PART_KINDS}
TRAINED = [new for new, kind in KINDS.items() if kind.key in SECTIONS]  # in one table
TOGETHER = [new for new in TRAINED if new != "model"]  # in one run
METRIC, TRAINER, INLINE = KINDS["metric"].word, KINDS["trainer"].word, "launcher=inline"
WITH_SETTINGS = [new for new, kind in KINDS.items() if kind.place]


# --- The table ----------------------------------------------------------------------------------


def test_every_kind_has_a_case_and_a_line_of_help():
    assert KINDS.keys() == TEXTS.keys()
    assert {*templates.KINDS} - {"sweep", "recipe", "skill", "data"} == KINDS.keys()
    command = typer.main.get_command(cli.app).commands["new"]
    text = next(param.help for param in command.params if param.name == "kind")
    assert re.findall(r"\w+(?=,|\.| or)", text) == [*templates.KINDS]


@pytest.mark.parametrize("kind", parts.PART_KINDS, ids=lambda kind: kind.name)
def test_a_template_is_as_the_table_says(kind):
    """Its arguments, and a class where a function will not do."""
    text = (templates.FOLDER / f"{kind.name}.py.txt").read_text()
    tree = ast.parse(text.replace("$Name", "Own").replace("$name", "own"))
    [part] = [node for node in tree.body if getattr(node, "name", "").lower() == "own"]
    assert f"$name:${'Name' if part.name == 'Own' else 'name'}" in kind.example
    if isinstance(part, ast.FunctionDef):
        assert kind.function
        assert ", ".join(argument.arg for argument in part.args.args) == kind.called
        return
    methods = {node.name: node.args for node in part.body if isinstance(node, ast.FunctionDef)}

    def arguments(method: str) -> list[str]:
        return [argument.arg for argument in methods[method].args[1:]]

    built = [*filter(None, kind.built.split(", ")), *(name for name, _ in kind.passed)]
    assert arguments("__init__") == built
    assert ", ".join(arguments(kind.method)) == kind.called


@pytest.mark.parametrize("kind", parts.FIELD_KINDS, ids=lambda kind: kind.name)
def test_a_section_has_the_fields_of_each_kind(kind):
    keys = field_keys(sections.SECTIONS[kind.section])
    assert {*kind.fields} <= keys.keys()
    assert all(keys[name].line.endswith("computed") for name in kind.computed)
    assert [keys[name].place for name in kind.computed] == [False, True]


def test_the_page_has_each_door_once_and_a_section_for_each():
    text = PAGES[parts_page.PAGE]
    assert parts_page.written(text) == text, "python tests/parts_page.py writes it"
    drawing = text.partition("```text\n")[2].partition("```")[0]
    marked = re.findall(rf"{parts_page.MARK} ([\w.]+)", drawing)
    assert sorted(marked) == sorted(kind.key for kind in parts.PART_KINDS)
    for key in marked:
        assert len(re.findall(rf"(?<![\w.]){re.escape(key)}(?![\w.])", drawing)) == 1, key
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert {kind.heading for kind in parts.PART_KINDS} <= {*headings}


# --- The smallest part of each kind -------------------------------------------------------------


def write(folder: Path, new: str, text: str = "", settings: str = SETTINGS) -> Path:
    """Its file, with another text or other settings; of a trainer its yaml, too."""
    file, yaml = folder / f"own_{new}.py", folder / "conf/trainer/own_trainer.yaml"
    file.write_text(BEGIN + (text or TEXTS[new]).replace("SETTINGS", settings))
    if new == "trainer":
        yaml.parent.mkdir(parents=True, exist_ok=True)
        yaml.write_text(YAML)
    return file


def write_all(folder: Path, kinds: Collection[str] = KINDS) -> None:
    folder.mkdir(exist_ok=True)
    for new in kinds:
        write(folder, new)
    (folder / "helper.py").write_text("ONE = 1\n")


@pytest.fixture
def folder(users, request) -> Path:
    """With the file of the test's kind alone: what is composed without a trainer's yaml is
    remembered."""
    write_all(folder := users({}), request.node.callspec.params.values())
    return folder


def resolve(new: str, *words: str) -> tuple[dict, str]:
    return compose.resolve_run([KINDS[new].word, *words], Path("runs"))


def identity(new: str) -> str:
    """The run's id; of a metric, which is none of a run's, its version."""
    if new == "metric":
        return read_own_metric("own_metric:Part", Path.cwd(), "analysis.metric")["version"]
    return resolve(new)[1]


def refused(new: str, *words: str) -> str:
    with pytest.raises(UserError) as error:
        resolve(new, *words) if new != "metric" else identity(new)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- Settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("new", WITH_SETTINGS)
def test_settings_are_read_from_the_file_and_checked(folder, new):
    place = KINDS[new].place
    tree, run = resolve(new)
    for part in place.split("."):
        tree = tree[part]
    assert (tree["by"], tree["how"]) == (1.0, "times")
    assert resolve(new, f"{place}.by=1")[1] == run  # its default, whatever its type
    assert resolve(new, f"{place}.by=2")[1] != run
    for word, said in {
        "bye=2": rf"^{re.escape(place)}\.bye: expected a key .*by, how, .*did you mean 'by'",
        "by=x": rf"^{re.escape(place)}\.by: expected a number, got 'x'$",
        "how=once": rf"^{re.escape(place)}\.how: expected one of times, never, got 'once'",
    }.items():
        assert re.search(said, refused(new, f"{place}.{word}")), refused(new, f"{place}.{word}")
    write(folder, new, settings=SETTINGS.replace(" = 1.0", ""))
    if new == "trainer":
        (folder / "conf/trainer/own_trainer.yaml").write_text(YAML.replace("1.0", "{type: float}"))
    assert f"{place}.by: missing; give {place}.by=VALUE" in refused(new)


@pytest.mark.parametrize("new", TRAINED)
def test_what_is_read_from_the_file_can_not_be_given(folder, new):
    for key in (version := KINDS[new].version, version.replace("version", "folder")):
        said = "own_probes" if new == "probe" else key
        assert re.match(rf"{said}: is read from .*; leave it out", refused(new, f"{key}=3"))


# --- Ids ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", KINDS)
def test_an_edit_is_another_run_and_its_undo_the_old_one(folder, new, monkeypatch):
    """Also of a file that it imports; nor does it matter where both lie."""
    before, file = identity(new), folder / f"own_{new}.py"
    (folder / "unused.py").write_text("")
    for each, other in ((file, True), (folder / "helper.py", True), (folder / "unused.py", False)):
        text = each.read_text()
        each.write_text(f"{text}# edited\n")
        assert (identity(new) != before) == other, each
        each.write_text(text)
    assert identity(new) == before
    write_all(folder / "elsewhere", [new])
    monkeypatch.chdir(folder / "elsewhere")
    assert identity(new) == before


@pytest.mark.parametrize("new", [new for new in TRAINED if "class" in TEXTS[new]])
def test_an_edit_under_a_declared_version_is_none(folder, new):
    text = re.sub(r"(class .*\n)", r"\1    version = 3\n", TEXTS[new], count=1)
    write(folder, new, text)
    before = identity(new)
    write(folder, new, f"{text}# edited\n")
    (folder / "helper.py").write_text("ONE = 1  # edited\n")
    assert identity(new) == before
    write(folder, new, text.replace("version = 3", "version = 4"))
    assert identity(new) != before


@pytest.mark.parametrize("new", TRAINED)
def test_nothing_is_trained_under_an_old_id(folder, new):
    tree, run = resolve(new)
    again = json.loads(json.dumps(tree))
    assert validated_run(RunSpec.of(again)).spec.id == run
    question = {
        "specs": {"": again},
        "calibrate": [],
        "peaks": [],
        "cache": "cache",
        "device": "cpu",
    }
    assert answer_describe(question, print)
    (folder / "helper.py").write_text("ONE = 1  # edited\n")
    said = rf"^{KINDS[new].key}: own_{new}:Part: was planned as version \w{{12}} and is \w{{12}} by"
    with pytest.raises(UserError, match=said):
        answer_describe(question, print)


# --- What goes wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize("new", KINDS)
def test_what_is_not_there_is_told(folder, new):
    file, key = folder / f"own_{new}.py", rf"^{KINDS[new].key}: own_{new}:Part: "
    write(folder, new, re.sub(r"(class|def) Part", r"\1 Parts", TEXTS[new]))
    among, got = "expected a [a-z ]+ among .*Parts", r"got 'Part' \(did you mean 'Parts'\?\)"
    named = f"{file}: ({among}.*, {got}|{got}, {among})"  # of many choices the guess comes first
    assert re.search(key + named, refused(new))
    file.write_text("import torch\nclass Part(:\n")
    assert re.search(rf"{file}: invalid syntax \({file.name}, line 2\)", refused(new))
    file.unlink()
    assert re.search(rf"{key}no own_{new}\.py in {folder}", refused(new))


@pytest.mark.whole
def test_nothing_of_the_users_runs_while_it_is_planned(users):
    """Nor is torch loaded."""
    write_all(folder := users({}))
    for new in KINDS:
        write(folder, new, f"open('ran', 'w')\n{TEXTS[new]}")
    code = (
        "import sys; from pathlib import Path; from ablate.planning import compose;"
        "from ablate.planning.analysis_keys import read_own_metric;"
        "trainer, model, *others = sys.argv[1:];"
        "[compose.resolve_run(words, Path('runs')) for words in ([trainer], [model], others)];"
        "read_own_metric('own_metric:Part', Path.cwd(), ''); assert 'torch' not in sys.modules"
    )
    words = [KINDS[new].word for new in ("trainer", "model", *TOGETHER)]
    subprocess.run([sys.executable, "-P", "-c", code, *words], check=True)
    assert not (folder / "ran").exists()


# --- One sweep of all ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driven(tmp_path_factory) -> Shell:
    """A sweep with each part beside what is shipped and with another setting, and all together; one
    of the trainer. The metric is of the first."""
    shell = Shell(tmp_path_factory.mktemp("contract"))
    write_all(shell.folder)
    rows = {"base": []}
    for new in TRAINED:
        kind = KINDS[new]
        rows[new] = [kind.word]
        rows |= {f"{new} shipped": [kind.shipped]} if kind.shipped else {}
        rows |= {f"{new} by": [kind.word, f"{kind.place}.by=0.5"]} if kind.place else {}
    rows["all"] = [KINDS[new].word for new in TOGETHER]
    write_sweep(shell.folder, "parts", rows)
    done = shell("sweep", "parts", METRIC, INLINE)
    (shell.folder / "told").write_text(done.out + done.err)
    shell("sweep", TRAINER, "trainer.by=1.0,0.5", "seeds=1", "--as", "trainer", INLINE)
    return shell


def write_sweep(folder: Path, name: str, rows: dict[str, list[str]]) -> None:
    def said(word: str) -> str:
        key, _, value = word.partition("=")
        return f"{key}: " + re.sub(r"[\w.]+:\w+", r'"\g<0>"', value)

    lines = [f"  - {row}: {{{', '.join(map(said, words))}}}\n" for row, words in rows.items()]
    base = "model.depth: 1, train.steps: 4, augment.crop_pad: 0, optim.warmup_epochs: 0"
    text = f"base: {{{base}}}\nseeds: 1\nvariants:\n{''.join(lines)}"
    (folder / "sweeps").mkdir(exist_ok=True)
    (folder / "sweeps" / f"{name}.yaml").write_text(text)


def results(shell: Shell, sweep: str) -> dict[str, dict]:
    store = Store(shell.folder / "runs")
    runs = store.read_plan(sweep).runs()
    return {run.cell.row: store.rundir(run.id).read_result() for run in runs}


@pytest.mark.whole
@pytest.mark.parametrize("new", TRAINED)
def test_it_does_what_is_shipped_and_otherwise_by_a_setting(driven, new):
    """Bit for bit, in weights and predictions; the rehearsal of the plan has seen it, too."""
    kind, found = KINDS[new], results(driven, "parts")
    key = "optim" if new == "optimizer" else kind.key
    assert found[new]["plugins"][key]
    assert not found["base"]["plugins"].get(key)
    files = ("weights_sha256", "predictions_sha256")
    bits = {row: [result[file] for file in files] for row, result in found.items()}
    if kind.shipped is not None:
        assert bits[new] == bits[f"{new} shipped" if kind.shipped else "base"]
    if kind.place:
        assert bits[f"{new} by"] != bits[new]
    same = f"warning: {new}: after 4 steps at the full rate every weight is that of base"
    assert (same in (driven.folder / "told").read_text()) == (kind.shipped == "" and new != "probe")


def facts(shell: Shell, *words: str) -> dict[tuple[str, str], str]:
    """(row, quantity) -> value, of a table."""
    return {(line["row"], line["quantity"]): line["value"] for line in shell.facts(*words)}


@pytest.mark.whole
def test_all_of_them_stand_in_one_table(driven):
    """The metric is a column; the rows of a trainer have a table of their own."""
    show = ("--show", "accuracy,own_metric:Part,top1")
    told = facts(driven, "parts", *show)
    for row, result in results(driven, "parts").items():
        assert float(told[row, "top1.run"]) == pytest.approx(100 * result["test"]["top1"])
        assert told[row, "own_metric:Part.run"] == told[row, "top1.run"]
    told = facts(driven, "trainer")
    assert [float(told[row, "score.run"]) for row in ("by=1.0", "by=0.5")] == [1.0, 0.5]


@pytest.mark.whole
def test_what_is_trained_is_found_again_verified_and_trained_to_the_same_bits(driven):
    for sweep, *words in (("parts", "parts"), ("trainer", TRAINER, "trainer.by=1.0,0.5")):
        number = len(results(driven, sweep))
        assert f"= {number} runs ({number} finished)" in driven("plan", *words, "seeds=1").out
        assert f"verified: {number} runs" in driven("verify", sweep).out
    assert "the same bits" in driven("verify", "parts", "--rerun", "all#0", INLINE).out


@pytest.mark.whole
def test_a_bundle_carries_them_and_runs_no_code_to_be_read(driven, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "draw_figures", lambda *_: {})  # which take the longest
    driven("export", "parts", str(tmp_path / "nameless"), "--anonymous")
    driven("export", "parts", str(tmp_path / "out"))
    assert (tmp_path / "out/code/own_metric.py").read_text() == BEGIN + TEXTS["metric"]
    files = [json.loads(file.read_text()) for file in tmp_path.glob("out/specs/*/run.json")]
    assert {used.key for tree in files for used in RunSpec.of(tree["spec"]).own_parts} == SECTIONS
    there, shown = Shell(tmp_path), ("--show", "accuracy,own_metric:Part")
    trap = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"
    for file in [*(tmp_path / f"own_{new}.py" for new in KINDS), *tmp_path.glob("out/code/*.py")]:
        file.write_text(trap)
    table = there("table", "--from", "out", "--format", "tidy", *shown).out
    assert table == driven("table", "parts", "--format", "tidy", *shown).out
    there("verify", "out", code=1)  # its code was edited
    assert not [*tmp_path.rglob("ran")]


# --- What does not work -------------------------------------------------------------------------


@pytest.fixture
def shell(driven, tmp_path) -> Shell:
    """A copy of the folder, to break a part in."""
    shutil.copytree(driven.folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    return Shell(tmp_path, 100)


def told(shell: Shell, new: str) -> str:
    """In one line, by the first command that reads or runs a part."""
    write_sweep(shell.folder, "broken", {"base": [], "part": [KINDS[new].word]})
    words = {"metric": ["table", "parts"], "trainer": ["plan", TRAINER, "trainer.by=1.0,0.5"]}
    done = shell(*words.get(new, ["plan", "broken"]), INLINE, code=2)
    assert done.err.count("\n") == 1, done.err
    return done.err.removeprefix("ablate: ").strip()


@pytest.mark.parametrize("new", KINDS)
def test_an_exception_in_it_is_told_with_its_file_and_line_before_anything_trains(shell, new):
    file = write(shell.folder, new, TEXTS[new].replace("ONE", "ONE.nothing"))
    number = file.read_text().partition("ONE.nothing")[0].count("\n") + 1
    error = "AttributeError: 'int' object has no attribute 'nothing'"
    if new == "trainer":  # which plans nothing runs of
        done = shell("sweep", TRAINER, "trainer.by=1.0,0.5", "seeds=1", INLINE, code=1)
        assert f"failed: by=1.0#0: {file.name}:{number}: {error}" in done.out
    else:
        key = "own_metric:Part: base#0" if new == "metric" else f"{KINDS[new].key}: own_{new}:Part"
        assert told(shell, new).startswith(f"{key}: {error} ({file}, line {number})")


WRONG = {
    "optimizer": r"optim\.lr: own_optimizer:Part takes no lr",
    "metric": r"own_metric:Part: expected Part\(predictions\) or .*, got Part\(\)",
    "trainer": r"trainer: own_trainer:Part: .*own_trainer\.py:11: expected def Part\(settings, run",
}


@pytest.mark.parametrize("new", KINDS)
def test_a_wrong_signature_is_told_before_anything_trains(shell, new):
    taken = r"(def \w+\()(self)?[^)]*?(SETTINGS)?\)"  # of the constructor, or the function
    write(shell.folder, new, re.sub(taken, _without, TEXTS[new], count=1))
    line = told(shell, new)
    mine = rf"{KINDS[new].key}: own_{new}:Part: TypeError: .*\(.*own_{new}\.py(, line \d+)?\)$"
    assert re.search(WRONG.get(new, mine), line), line


def _without(found: re.Match) -> str:
    """A function that is given nothing but settings."""
    settings = found[3] and "*, SETTINGS"
    return found[1] + ", ".join(filter(None, (found[2], settings))) + ")"


def test_a_worker_tells_what_does_not_work_as_well(shell):
    """Which a process of its own finds out."""
    file = write(shell.folder, "norm", TEXTS["norm"].replace("ONE", "ONE.nothing"))
    error = shell("plan", "norm=layernorm,own_norm:Part", code=2).err
    assert re.fullmatch(rf"ablate: norm: own_norm:Part: Attr.*\({file}, line 17\)\n", error)
