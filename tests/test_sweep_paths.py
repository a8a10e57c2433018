"""Which sweep file a word names, and what is said once a file is another than was planned."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.plans import record_plan

from ablate.api.training import recall_declared
from ablate.planning import expand
from ablate.planning.declared import Declared
from ablate.planning.design import Fixed
from ablate.planning.plan import Plan
from ablate.planning.sweep_file import edit_notes
from ablate.planning.sweep_paths import find_sweep_file, sweep_files
from ablate.shared.errors import UserError
from ablate.store.ledger import Ledger
from ablate.store.store import Store

TWO = "variants: [{a: {}}, {b: {stem: dpn}}]\n"


@pytest.fixture(autouse=True)
def folder(here):
    for name in ("sweeps", "x"):
        (here / name).mkdir()


def write(file: str, text: str = TWO) -> None:
    Path(file).write_text(text)


def plan(*words: str, **options: str) -> Plan:
    return expand.plan_from_words(words, store=Path("store"), **options)[0]


def test_a_sweep_file_lies_in_sweeps_or_in_the_folder_itself():
    write("photos.yaml", f"title: outer\n{TWO}")
    outer = plan("photos")
    assert (outer.title, outer.name, outer.notes) == ("outer", "photos", ())
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
    shipped = find_sweep_file("table1")
    write("table1.yaml", "services: {web: {variants: 3}}\n")
    write("big.yaml", TWO + "# " + "x" * 2**20)
    os.mkfifo("pipe.yaml")
    assert find_sweep_file("table1") == shipped
    assert not {"big", "pipe"} & sweep_files().keys()
    write("mine.yaml", "# with a mistake\nvariants: [\n")
    told = {name: title for name, title, _ in expand.list_sweeps()}
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

    def noted() -> list[str]:
        return list(edit_notes(made, Store(Path("runs")).command))

    for same in (whole, f"# said\n{whole}", whole.replace("seeds: 9", "seeds: 8")):
        write("sweeps/photos.yaml", same)
        assert noted() == []
    said = "sweeps/photos.yaml has changed since `ablate sweep photos --scale big` planned it: "
    for other in (whole.replace("dpn", "none"), whole.replace("a:", "c:"), TWO, "variants: ["):
        write("sweeps/photos.yaml", other)
        (line,) = noted()
        assert line.startswith(said)
    os.remove("sweeps/photos.yaml")
    assert noted() == []  # the store is read from another folder


@pytest.mark.whole
def test_a_row_is_renamed_without_training(shell):
    """`table` and `status` say that the file is another; the same `sweep` takes the label."""
    small = "base: {recipe: quick, data: digits, train.steps: 4, model.depth: 1}\nseeds: 2\n"
    write(shell.folder / "photos.yaml", TWO + small)
    assert shell("sweep", "photos", "launcher=inline").out.count("finished:") == 4
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
    done = [shell(command) for command in ("table", "status", "verify")]
    assert all("changed" not in one.out + one.err for one in done)
    assert "| patches | " in done[0].out
    assert "run " in shell("show", "patches#1").out


def test_a_driven_sweep_whose_file_is_elsewhere_is_not_told_its_own_words():
    driven = SimpleNamespace(name="gone", declared=Declared("gone"), design=Fixed(), stream=None)
    store = SimpleNamespace(read_plan=lambda _: driven)
    with pytest.raises(UserError, match=r"gone: .* its sweep file is neither in .*gone\.yaml lies"):
        recall_declared(["gone", "seeds=5"], {}, store)
    write("gone.yaml")
    assert recall_declared(["gone", "seeds=5"], {}, store) is None


def test_a_driven_sweep_goes_on_by_its_name_with_another_launcher():
    """Nobody can leave out of a name the settings that only the launcher of before has."""
    store = Store(Path("store"))
    places = ("launcher=ssh", "launcher.hosts=h", "launcher.gpus=2", "launcher.attempts=2")
    with Ledger.driving(store) as ledger:
        record_plan(store, ledger, plan("stem=none,dpn", *places, name="n"))

    def launcher_of(*words: str) -> dict[str, object]:
        return recall_declared(["n", *words], {}, store).launcher

    assert launcher_of("launcher=local") == {"launcher.attempts": 2, "launcher": "local"}
    lasting = {"launcher.gpus": 2, "launcher.attempts": 2, "launcher": "slurm"}
    assert launcher_of("launcher=slurm") == lasting
    assert {*launcher_of("launcher=ssh")} == {*launcher_of()} == {*lasting, "launcher.hosts"}
