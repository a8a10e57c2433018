"""The scale `cifar` of the tables whose runs start from runs or are searched: a GPU, a day.

Nobody has run it to its end. Here it is planned without data, and trains three steps on pictures
that are made here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import REPOSITORY, Shell
from support.images import noise, png, write_parquet
from support.masks import image_and_mask, write_masks

from ablate.planning.expand import plan_from_words as make_plan

# name -> (the children's sets, the parents')
SETS = {
    "table1_384": ({"cifar10"}, {"cifar10"}),
    "table2": ({"cifar100"}, {"cifar10"}),
    "table3": ({"vtab_cifar100", "vtab_dtd", "vtab_svhn"}, {"cifar10"}),
    "table5": ({"camvid"}, {"cifar10"}),
    "table7": ({"cifar100"}, set()),
}
STEPS = ("train.steps=3", "train.batch=4", "train.precision=fp32")
SHORT = {
    "table1_384": ("data.validation=8", "optim.warmup_steps=1"),
    "table2": ("data.validation=8", "optim.warmup_steps=1"),
    "table3": ("data.train='train[:24]'", "data.validation='train[24:]'", "optim.warmup_steps=1"),
    "table5": (),
    "table7": ("data.validation=8", "optim.warmup_epochs=0", "tune.repeats=1"),
}


@pytest.mark.whole
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != "table5")) for name in SETS],
)
def test_it_is_planned_without_its_data_and_its_header_has_the_hours(shell: Shell, name: str):
    said = shell("plan", name, "launcher=inline", "--scale", "cifar", "--on", "a100").out
    found = re.search(r"([\d.]+) device-hours", said)
    assert found is not None
    assert 1 < float(found[1]) < 24
    header = (REPOSITORY / "sweeps" / f"{name}.yaml").read_text()
    line = rf"# ablate sweep {name} --scale cifar .*: {re.escape(found[1])} hours of an A100 by "
    assert re.search(line + r"ablate plan --on a100, never run to its end\)\n", header)


@pytest.mark.whole
@pytest.mark.parametrize("name", SETS)
def test_what_it_learns_from(name: str, tmp_path: Path):
    plan, _ = make_plan([name], store=tmp_path, scale="cifar", allow_missing=True)
    own = {cell.spec.tree["data"]["name"] for cell in plan.cells}
    parents = (cell.spec.parent for cell in plan.cells)
    before = {parent.tree["data"]["name"] for parent in parents if parent is not None}
    assert (own, before) == SETS[name]


@pytest.mark.whole
def test_parents_that_are_alike_are_trained_once(tmp_path: Path):
    """Ti/4 of 300 epochs is a run of table1, and both of table1_384 are parents of table2."""

    def ids(cells: Any) -> set[str]:
        return {run for cell in cells for run in cell.ids.values()}

    one, tuned, two, few = (
        make_plan([name], store=tmp_path, scale="cifar")[0]
        for name in ("table1", "table1_384", "table2", "table1_fewshot")
    )
    parents = ids(tuned.parents())
    assert len(parents) == 2 * 2 * 5
    assert parents < ids(two.parents())
    assert len(ids(two.parents())) == 2 * 4 * 5
    assert ids(few.parents()) == parents & ids(one.cells)


def folders(place: Path, name: str) -> tuple[str, ...]:
    """Words of a folder in the layout of the children's set, and one in the parents'."""
    own, first = place / "own", place / "first"
    own.mkdir()
    first.mkdir()
    if name == "table5":
        for split, number in (("train", 32), ("validation", 2), ("test", 2)):
            pairs = [image_and_mask(240 + n, 240) for n in range(number)]
            write_masks(own / f"{split}.parquet", *([png(one[n]) for one in pairs] for n in (0, 1)))
    for folder in (first, *[own] * (name != "table5")):
        for split, number in (("train", 32), ("test", 6)):
            images = [png(noise(n, (32, 32))) for n in range(number)]
            fine = {"fine_label": [n % 7 for n in range(number)]} if folder == own else {}
            labels = [n % 3 for n in range(number)]
            write_parquet(folder / f"{split}.parquet", images, labels, classes=10, **fine)
    if name == "table7":
        return ("data.path=own",)
    if name == "table1_384":
        own = first
    return (f"data.path={own.name}", "from.data.path=first")


@pytest.mark.whole
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in ("table1_384", "table5")))
        for name in SETS
    ],
)
def test_three_steps_of_parents_and_children_on_made_pictures(shell: Shell, name: str):
    """The shipped file, with a column or two; of what is searched, the ends."""
    content = yaml.safe_load((REPOSITORY / "sweeps" / f"{name}.yaml").read_text())
    small = content["scales"]["cifar"]
    small["across"] = small["across"][: 2 if "tune" in content else 1]  # one without a search
    small.pop("groups", None)
    content.pop("groups", None)
    for stage in content.get("tune", {}).get("stages", []):
        stage["at"] = {"train.steps": 3}
        for key in stage["space"].values():
            key["choices"] = key["choices"][:: len(key["choices"]) - 1]
    (shell.folder / "sweeps").mkdir()
    (shell.folder / "sweeps" / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    words = [*folders(shell.folder, name), *STEPS, *SHORT[name]]
    if "from" in content:
        words += [f"from.{word}" for word in STEPS]
        words += ["from.optim.warmup_epochs=0", "from.data.validation=8"]
    words += ["seeds=1", "model.depth=1", "model.width=48", "launcher=inline"]
    shell("sweep", name, "--scale", "cifar", *words)
    trees = [file.parent for file in shell.folder.glob("runs/runs/*/result.json")]
    specs = [json.loads((place / "run.json").read_text()) for place in trees]
    kinds = {"parent" in spec.get("spec", spec) for spec in specs}
    assert kinds == ({True, False} if "from" in content else {False})
    assert {spec.get("spec", spec)["train"]["steps"] for spec in specs} == {3}
    shell("verify")
