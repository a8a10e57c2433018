"""Norms, stems and blocks of the user's own: read as text, trained from their folder only."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch

from ablate.planning import compose
from ablate.shared import plugin, sections
from ablate.shared.build import build_run
from ablate.shared.errors import UserError
from ablate.shared.parts import Used, is_plugin
from ablate.training.model import build
from ablate.training.plugin import digests, load

SOURCE = """
import torch
from torch import nn
from typing import Literal, Optional

class Base(nn.Module):
    version = 3

    def __init__(self, shape, *, eps: float = 1e-6, kind: Literal["a", "b"] = "a",
                 groups: int | None = None, names=("x", "y")):
        super().__init__()
        self.eps, self.kind, self.groups = eps, kind, groups
        self.mix = nn.Linear(shape.width, shape.width)

    def forward(self, x):
        return self.mix(x)

class Child(Base):
    pass

class Newer(Base):
    version: str = "4-beta"

class Needs(nn.Module):
    def __init__(self, shape, *, alpha: float, free=None):
        super().__init__()

    def forward(self, x):
        return x

class Wrong(nn.Module):
    def __init__(self, shape):
        super().__init__()

    def forward(self, x):
        return x @ x

class Unsaid(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gain = nn.Parameter(torch.empty(3))

    def forward(self, x):
        return x

class Named(nn.Module):
    def __init__(self, shape, *, folder: str = "x"):
        super().__init__()

class Computed(nn.Module):
    def __init__(self, shape, *, eps: float = 2 * 3e-3):
        super().__init__()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder, with `package/own_norms.py`; what is loaded from it is forgotten after."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "own_norms.py").write_text(SOURCE)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "package"]:
        del sys.modules[name]


def complete(cls, here, **settings):
    return plugin.complete({"norm": {"name": f"package.own_norms:{cls}", **settings}}, here)["norm"]


def resolved(*words):
    tree, run = compose.resolve(words, Path("runs"))
    return tree, run


def test_settings_are_the_keyword_only_parameters(folder):
    section = complete("Base", folder, eps=1)
    assert section == {
        "name": "package.own_norms:Base",
        "folder": str(folder),
        "version": "3",
        "eps": 1.0,
        "kind": "a",
        "groups": None,
        "names": ("x", "y"),
    }
    assert isinstance(section["eps"], float)


def test_bases_in_the_same_file_count(folder):
    assert complete("Child", folder, groups=2)["groups"] == 2
    assert complete("Child", folder)["version"] == "3"
    assert complete("Newer", folder)["version"] == "4-beta"


@pytest.mark.parametrize(
    ("cls", "settings", "line"),
    [
        ("Bas", {}, "expected a class among .*'Bas' .did you mean 'Base'"),
        ("Base", {"epz": 1}, "norm.epz: expected a key among eps, .*did you mean 'eps'"),
        ("Base", {"eps": "x"}, "norm.eps: expected a number, got 'x'"),
        ("Base", {"kind": "c"}, "norm.kind: expected one of a, b, got 'c'"),
        ("Base", {"groups": 1.5}, "norm.groups: expected a whole number or null"),
        ("Base", {"version": "9"}, "norm.version: is read from package.own_norms:Base"),
        ("Base", {"folder": "/"}, "norm.folder: is read from"),
        ("Needs", {}, "norm.alpha: missing; give norm.alpha=VALUE"),
        ("Named", {}, "a setting can't be called 'folder'"),
        ("Computed", {}, r"line \d+: the default of eps is to be a plain value, got 2 \* 0.003"),
    ],
)
def test_what_the_class_does_not_take_is_refused_before_torch_is_loaded(
    folder, cls, settings, line
):
    with pytest.raises(UserError, match=line):
        complete(cls, folder, **settings)


def test_a_file_that_is_not_there_or_not_python_is_named(folder):
    with pytest.raises(UserError, match=rf"norm: other:Class: no other.py in {folder}"):
        plugin.complete({"norm": {"name": "other:Class"}}, folder)
    (folder / "torn.py").write_text("class A(:\n")
    with pytest.raises(UserError, match=r"stem: torn:A: .*torn.py: invalid syntax .*line 1"):
        plugin.complete({"stem": {"name": "torn:A"}}, folder)


@pytest.mark.parametrize(
    "name", ["../up:Class", "/abs:Class", "a b:C", "a.py:C", "a:b:C", ":C", "a:"]
)
def test_a_name_never_leaves_the_folder(folder, name):
    assert name == "a.py:C" or not is_plugin(name)
    with pytest.raises(UserError):
        resolved(f"norm='{name}'")


def test_the_version_is_in_the_id_and_the_folder_is_not(folder, tmp_path_factory, monkeypatch):
    word = "norm=package.own_norms:Base"
    _, before = resolved(word)
    file = folder / "package" / "own_norms.py"
    file.write_text(SOURCE + "# an edit\n")
    assert resolved(word)[1] == before  # it declares a version
    unsaid = resolved("norm=package.own_norms:Needs", "norm.alpha=1")[1]
    file.write_text(SOURCE)
    assert resolved("norm=package.own_norms:Needs", "norm.alpha=1")[1] != unsaid
    other = tmp_path_factory.mktemp("elsewhere")
    (folder / "package").rename(other / "package")
    monkeypatch.chdir(other)
    assert resolved(word)[1] == before
    assert resolved(word, "norm.groups=2")[1] != before
    (other / "package" / "own_norms.py").write_text(SOURCE.replace("version = 3", "version = 5"))
    assert resolved(word)[1] != before


def test_a_run_json_is_read_back_as_it_was(folder):
    tree, run = resolved("norm=package.own_norms:Base")
    again = build_run(json.loads(json.dumps(tree)))
    assert again.id == run


def test_composing_runs_nothing_of_the_users(folder):
    (folder / "trap.py").write_text("open('ran', 'w')\nclass A:\n    pass\n")
    code = (
        "import sys; from pathlib import Path; from ablate.planning import compose as config;"
        "config.resolve(['norm=trap:A'], Path('runs')); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    assert not (folder / "ran").exists()


def test_what_is_installed_keeps_its_name(folder):
    (folder / "json.py").write_text("class A:\n    pass\n")
    with pytest.raises(UserError, match=r"'json' is .* already; give .*json.py another name"):
        load(Used("norm", "json:A", {}, "1", str(folder)))


def test_torchs_own_layers_start_by_seed_and_place(folder):
    run = tiny.run({})
    own = sections.Chosen(
        "package.own_norms:Base",
        {"eps": 1e-6, "kind": "a", "groups": None, "names": ["x"]},
        sections.Plugin(str(folder), "3"),
    )
    run = dataclasses.replace(run, norm=own)
    first, second = (dict(build(run).named_parameters()) for _ in range(2))
    other = dict(build(dataclasses.replace(run, seed=7)).named_parameters())
    plain = dict(build(tiny.run({})).named_parameters())
    mixes = [name for name in first if ".mix." in name]
    assert len(mixes) == 4
    for name in mixes:
        assert torch.equal(first[name], second[name])
        assert not torch.equal(first[name], other[name])
        limit = first[name].shape[-1] ** -0.5 if name.endswith("weight") else 32**-0.5
        assert 0 < first[name].abs().max() <= limit
    assert not torch.equal(first[mixes[0]], first[mixes[2]])
    shared = first.keys() & plain.keys()
    assert shared
    assert all(torch.equal(first[name], plain[name]) for name in shared)


def test_the_digest_is_of_the_code_that_was_loaded(folder):
    (folder / "package" / "helper.py").write_text("ONE = 1\n")
    (folder / "package" / "own.py").write_text(
        "from package.helper import ONE\nclass A:\n    version = 1\n"
    )
    (folder / "package" / "unused.py").write_text("")
    chosen = sections.Chosen("package.own:A", {}, sections.Plugin(str(folder), "1"))
    run = tiny.run()
    assert digests(run) == {}
    run = dataclasses.replace(run, norm=chosen)
    load(Used("norm", chosen.name, {}, "1", str(folder)))
    before = digests(run)
    assert before.keys() == {"norm"}
    (folder / "package" / "unused.py").write_text("TWO = 2\n")
    assert digests(run) == before
    (folder / "package" / "helper.py").write_text("ONE = 2\n")
    assert digests(run) != before


@pytest.mark.parametrize(
    ("word", "launcher", "line"),
    [
        (
            "Wrong",
            "local",
            r"norm: package.own_norms:Wrong: RuntimeError: .*own_norms.py, line \d+",
        ),
        (
            "Unsaid",
            "inline",
            "nothing says how its parameter 'gain' starts; fill it in the constructor",
        ),
    ],
)
def test_a_class_that_does_not_work_is_a_mistake_of_the_users_at_plan_time(
    folder, word, launcher, line, shell
):
    words = (f"norm=layernorm,package.own_norms:{word}", f"launcher={launcher}")
    done = shell("plan", *words, code=2)
    assert len(done.err.strip().splitlines()) == 1
    assert re.search(line, done.err), done.err
