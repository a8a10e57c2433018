"""Which sweep file a word names, and what is said once a file is another than was planned."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ablate.api.training import check_name
from ablate.planning import expand
from ablate.planning.design import Fixed
from ablate.planning.plan import Plan
from ablate.planning.sweep_file import edit_notes
from ablate.planning.sweep_paths import find, sweep_files
from ablate.shared.errors import UserError
from ablate.store.store import Store

FIXED = Fixed()
RUNS = Store(Path("runs"))

TWO = "variants: [{a: {}}, {b: {stem: dpn}}]\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "x").mkdir()


def write(file: str, text: str = TWO) -> None:
    Path(file).write_text(text)


def plan(*words: str, **options: str) -> Plan:
    return expand.plan(words, store=Path("store"), **options)[0]


def test_a_sweep_file_lies_in_sweeps_or_in_the_folder_itself():
    write("photos.yaml", f"title: outer\n{TWO}")
    assert (plan("photos").title, plan("photos").name) == ("outer", "photos")
    assert plan("photos").notes == ()
    write("sweeps/photos.yaml", f"title: inner\n{TWO}")
    assert plan("photos").title == "inner"
    assert plan("photos").notes == (
        "photos is sweeps/photos.yaml; the other file of this name is `ablate sweep ./photos.yaml`",
    )
    assert plan("./photos.yaml").title == plan("photos.yaml").title == "outer"
    os.remove("photos.yaml")
    assert plan("photos.yaml").title == "inner"  # its ending is no reason not to find it
    write("x/deep.yaml", f"title: deep\n{TWO}")
    assert plan("x/deep.yaml").title == "deep"


def test_other_yaml_files_of_a_folder_are_no_sweeps():
    shipped = find("table1")
    write("table1.yaml", "services: {web: {variants: 3}}\n")
    write("big.yaml", TWO + "# " + "x" * 2**20)
    os.mkfifo("pipe.yaml")
    assert find("table1") == shipped
    assert not {"big", "pipe"} & sweep_files().keys()
    write("mine.yaml", "# with a mistake\nvariants: [\n")
    told = {name: title for name, title, _ in expand.find_sweeps()}
    assert told["mine"].startswith("(mine.yaml: line 3: not YAML")
    write("plain.yaml", "a: 1\n")
    assert "plain" not in told
    with pytest.raises(UserError, match=r"plain\.yaml: a: expected a key among title, "):
        plan("plain")  # asked for by its name


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("y/photos.yaml", r"y/photos\.yaml: no such sweep file; `ablate sweep photos` is sweeps/"),
        ("y.yaml", r"y\.yaml: no such sweep file"),
        ("x/deep", r"no sweep named 'x/deep'; to name a file, give its ending: x/deep\.yaml"),
        ("photo", r"no sweep named 'photo' .*did you mean 'photos'"),
    ],
)
def test_a_file_that_is_elsewhere_is_named(name, told):
    write("sweeps/photos.yaml")
    write("x/deep.yaml")
    with pytest.raises(UserError, match=told):
        plan(name)


def test_a_file_that_declares_another_sweep_now_is_noticed():
    whole = f"title: t\n{TWO}scales: {{big: {{seeds: 5}}, long: {{seeds: 9}}}}\n"
    write("sweeps/photos.yaml", whole)
    made = Plan.from_tree(json.loads(plan("photos", scale="big").to_bytes()))
    assert list(edit_notes(made, RUNS.command)) == []
    for same in (f"# said\n{whole}", whole.replace("seeds: 9", "seeds: 8")):
        write("sweeps/photos.yaml", same)
        assert list(edit_notes(made, RUNS.command)) == []
    for other in (whole.replace("dpn", "none"), whole.replace("a:", "c:"), TWO, "variants: ["):
        write("sweeps/photos.yaml", other)
        (line,) = edit_notes(made, RUNS.command)
        assert line.startswith(
            "sweeps/photos.yaml has changed since `ablate sweep photos --scale big` planned it: "
        )
    os.remove("sweeps/photos.yaml")
    assert list(edit_notes(made, RUNS.command)) == []  # the store is read from another folder


def test_a_row_is_renamed_without_training(shell):
    """`table` and `status` say that the file is another; the same `sweep` takes the label."""
    small = "base: {recipe: quick, data: digits, train.steps: 4, model.depth: 1}\nseeds: 2\n"
    write(shell.folder / "photos.yaml", TWO + small)
    swept = shell("sweep", "photos", "launcher=inline").out
    assert swept.count("finished:") == 4
    assert shell("table").err == ""
    write(shell.folder / "photos.yaml", TWO.replace("b:", "patches:") + small)
    said = "photos.yaml has changed since `ablate sweep photos launcher=inline` planned it"
    assert said in shell("status").out
    table = shell("table")
    assert said in table.err
    assert "| b | " in table.out
    again = shell("sweep", "photos", "launcher=inline").out
    assert "renamed: 'b' is 'patches' now; all runs are kept" in again
    assert "finished:" not in again
    for command in ("table", "status", "verify"):
        done = shell(command)
        assert "changed" not in done.out + done.err
    assert "| patches | " in shell("table").out
    assert "run " in shell("show", "patches#1").out


def test_a_driven_sweep_whose_file_is_elsewhere_is_not_told_its_own_words():
    def read(_: str) -> SimpleNamespace:
        return SimpleNamespace(name="gone", words=("gone",), design=FIXED)

    with pytest.raises(UserError, match=r"gone: .* its sweep file is neither in .*gone\.yaml lies"):
        check_name(["gone", "seeds=5"], SimpleNamespace(read_plan=read))
    write("gone.yaml", TWO)
    check_name(["gone", "seeds=5"], SimpleNamespace(read_plan=read))
