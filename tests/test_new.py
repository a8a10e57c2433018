"""`ablate new`: every kind of file that it writes works, by the command that it prints."""

import re
import shlex

import numpy as np
import pytest
from conftest import Shell, contents
from PIL import Image
from sklearn.metrics import balanced_accuracy_score

from ablate.planning.templates import KINDS, _class_name, write_template
from ablate.shared.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Shell:
    return Shell(tmp_path_factory.mktemp("new"))


@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS)
def test_what_it_writes_can_be_planned(folder, kind):
    """By the printed command, in the folder where the file lies."""
    if kind == "data":
        for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
            path = folder.folder / f"my_{kind}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4)).save(path)
    names = () if kind == "skill" else (f"my_{kind}",)
    *wrote, told = folder("new", kind, *names).out.splitlines()
    assert all((folder.folder / line.removeprefix("wrote ")).is_file() for line in wrote)
    try_it, _, command = told.partition(": ablate ")
    assert try_it == "try it"
    out = folder(*shlex.split(command), *(["launcher=inline"] * (kind != "data"))).out
    expected = {
        "data": "classes: 2",
        "sweep": "4 variants x 5 seeds",
        "skill": "4 variants x 12 seeds",
    }
    assert expected.get(kind, "2 variants x 3 seeds") in out


@pytest.mark.whole
def test_what_it_writes_can_be_trained_and_measured(folder):
    """All parts at once, beside the shipped ones; then the metric and the probe's number."""
    for kind in ("norm", "stem", "block", "optimizer", "metric", "probe"):
        assert folder("new", kind, f"a_{kind}").out.startswith("wrote ")
    words = (
        *("norm=layernorm,a_norm:ANorm", "stem=none,a_stem:AStem", "block=vit,a_block:ABlock"),
        *("optim.name=adamw,a_optimizer:AOptimizer", "--each", "probe=[a_probe:AProbe]"),
        *("train.steps=4", "model.depth=1", "seeds=2", "launcher=inline", "--as", "all"),
    )
    folder("sweep", *words, "analysis.metric=a_metric:a_metric")
    text = folder("table", "--show", "accuracy,AProbe:distance,top1").out
    line = next(line for line in text.splitlines() if "AOptimizer" in line)
    balanced, moved, top1 = map(float, re.findall(r"\| ([\d.]+)", line))
    assert abs(balanced - top1) < 5  # digits have about as many images of each class
    assert moved > 0
    assert "nothing wrong" in folder("verify").out


@pytest.mark.parametrize(
    ("kind", "name", "line"),
    [
        ("norm", "mine", "mine.py exists; choose another name"),
        ("norm", "numpy", "an installed module is called numpy"),
        ("norm", "my-norm", "'my-norm': expected a name that Python can import, such as my_norm"),
        ("norm", "class", "a name that Python can import"),
        ("norm", "../up", "a name that Python can import"),
        ("sweep", "../up", "expected a name of letters, digits, - and _"),
        ("sweep", "quickstart", "a sweep called quickstart ships"),
        ("data", "digits", "a data called digits ships"),
        ("nrm", "mine", "(did you mean 'norm'?)"),
        ("trainer", "loop", "conf/trainer/loop.yaml exists"),  # neither of both is written
        ("skill", None, "SKILL.md exists; move it away first"),
    ],
)
def test_nothing_is_overwritten_and_names_are_checked(users, kind, name, line):
    home = users({"mine.py": "kept", "conf/trainer/loop.yaml": "", "SKILL.md": "kept"})
    before = contents(home)
    with pytest.raises(UserError) as caught:
        write_template(kind, name)
    assert line in str(caught.value)
    assert contents(home) == before


@pytest.mark.parametrize("command", ["./train.sh", "train.sh"])
def test_the_name_of_a_trainer_that_is_a_file_is_its_command(users, command):
    users({"train.sh": "#!/bin/sh\n"})
    written = write_template("trainer", command)
    assert [path.as_posix() for path in written.files] == ["conf/trainer/train.yaml"]
    assert command in written.files[0].read_text()


def test_a_class_is_called_as_its_file():
    names = {"my_norm": "MyNorm", "norm": "Norm", "RMS2": "RMS2", "gated_MLP": "GatedMLP"}
    assert {name: _class_name(name) for name in names} == names


def test_the_metric_of_the_template_is_its_definition(here):
    write_template("metric", "balanced")
    made: dict = {}
    exec((here / "balanced.py").read_text(), made)
    generator = np.random.default_rng(0)
    table = np.zeros(300, [("class", "<i4"), ("label", "<i4")])
    table["label"] = generator.choice(5, 300, p=[0.5, 0.2, 0.2, 0.05, 0.05])
    table["class"] = np.where(generator.random(300) < 0.6, table["label"], 0)
    expected = balanced_accuracy_score(table["label"], table["class"])
    assert made["balanced"](table, 7) == pytest.approx(expected)
