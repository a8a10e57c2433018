"""Norms, stems and blocks of the user's own: read as text, trained from their folder only."""

import dataclasses
import sys
from pathlib import Path

import pytest
import tiny

from ablate.planning import compose
from ablate.run import plugin, sections
from ablate.run.parts import UsedPart, is_plugin
from ablate.shared.errors import UserError
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

class Named(nn.Module):
    def __init__(self, shape, *, folder: str = "x"):
        super().__init__()

class Computed(nn.Module):
    def __init__(self, shape, *, eps: float = 2 * 3e-3):
        super().__init__()
"""


@pytest.fixture
def folder(users):
    return users({"package/own_norms.py": SOURCE})


def complete(cls, here, **settings):
    return plugin.complete({"norm": {"name": f"package.own_norms:{cls}", **settings}}, here)["norm"]


def test_settings_are_the_keyword_only_parameters(folder):
    section = complete("Base", folder, eps=1)
    own = {"name": "package.own_norms:Base", "folder": str(folder), "version": "3"}
    assert section == {**own, "eps": 1.0, "kind": "a", "groups": None, "names": ("x", "y")}
    assert isinstance(section["eps"], float)


def test_values_that_a_name_stands_for_are_left_to_the_code(users):
    source = "class Own:\n    def __init__(self, shape, *, kind: Literal[A, 'b'] = 'b'): pass\n"
    folder = users({"own.py": source})
    for kind in ("b", "c"):
        section = plugin.complete({"norm": {"name": "own:Own", "kind": kind}}, folder)["norm"]
        assert section["kind"] == kind


def test_bases_in_the_same_file_count(folder):
    assert complete("Child", folder, groups=2)["groups"] == 2
    assert complete("Child", folder)["version"] == "3"
    assert complete("Newer", folder)["version"] == "4-beta"


@pytest.mark.parametrize(
    ("cls", "settings", "line"),
    [
        ("Base", {"groups": 1.5}, "norm.groups: expected a whole number or null"),
        ("Named", {}, "a setting can't be called 'folder'"),
        ("Computed", {}, r"line \d+: the default of eps is to be a plain value, got 2 \* 0.003"),
    ],
)
def test_what_can_not_be_a_setting_is_refused(folder, cls, settings, line):
    with pytest.raises(UserError, match=line):
        complete(cls, folder, **settings)


@pytest.mark.parametrize("name", ["../up:C", "/abs:C", "a b:C", "a.py:C", "a:b:C", ":C", "a:"])
def test_a_name_never_leaves_the_folder(folder, name):
    assert name == "a.py:C" or not is_plugin(name)
    with pytest.raises(UserError):
        compose.resolve_run([f"norm='{name}'"], Path("runs"))


def test_what_is_installed_keeps_its_name(folder):
    (folder / "json.py").write_text("class A:\n    pass\n")
    with pytest.raises(UserError, match=r"'json' is .* already; give .*json.py another name"):
        load(UsedPart("norm", "json:A", {}, "1", str(folder)))


def test_the_folder_stands_last_on_the_import_path(folder, monkeypatch):
    """So what is Python's own is not hidden from it by a file of that name."""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    (folder / "colorsys.py").write_text("raise SystemError\n")
    (folder / "paints.py").write_text("import colorsys\nclass A:\n    version = 1\n")
    assert load(UsedPart("norm", "paints:A", {}, "1", str(folder))).version == 1


@pytest.mark.whole
def test_the_digest_is_of_the_code_that_was_loaded(folder):
    own, helper, unused = (
        folder / "package" / f"{name}.py" for name in ("own", "helper", "unused")
    )
    helper.write_text("ONE = 1\n")
    own.write_text("from package.helper import ONE\nclass A:\n    version = 1\n")
    unused.write_text("")
    chosen = sections.Chosen("package.own:A", {}, sections.Plugin(str(folder), "1"))
    assert digests(tiny.run()) == {}
    run = dataclasses.replace(tiny.run(), norm=chosen)
    load(UsedPart("norm", chosen.name, {}, "1", str(folder)))
    before = digests(run)
    assert before.keys() == {"norm"}
    unused.write_text("TWO = 2\n")
    assert digests(run) == before
    helper.write_text("ONE = 2\n")
    assert digests(run) != before
