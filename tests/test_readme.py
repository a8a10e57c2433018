"""The README does what it says: its commands parse, its files are there, its how-tos are followed.

What it shows is taken from it: commands from ```sh blocks, files from the blocks behind
`<!-- file: PATH -->`, table entries from those behind `<!-- entry: TABLE -->`.
"""

import dataclasses
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from conftest import REPOSITORY
from typer.testing import CliRunner

import ablate
from ablate import cli
from ablate.planning import compose, expand
from ablate.planning.plan import Analysis
from ablate.planning.sweep_file import KEYS
from ablate.report.plot import Nothing
from ablate.shared import choices
from ablate.store.ledger import Ledger, Store

README = (REPOSITORY / "README.md").read_text()
TABLES = {  # where entries go: the file, and the line that a new one is put behind
    "NORMS": ("ablate/shared/choices.py", "NORMS: dict[str, Choice] = {\n"),
    "STEMS": ("ablate/shared/choices.py", "STEMS: dict[str, Choice] = {\n"),
    "PLACES": ("ablate/training/model/block.py", "PLACES = {\n"),
}
PLACEMENT = 'Placement = Literal["pre", '


def blocks(marker: str) -> dict[str, str]:
    """what the marker names -> the code block behind it."""
    found = re.findall(rf"<!-- {marker}: (\S+) -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found
    return dict(found)


def commands() -> list[list[str]]:
    """Every `ablate ...` line of the sh blocks, in order, as words."""
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL)).splitlines()
    found = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("ablate ")]
    assert found
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's folder that has what the README takes for granted, and the files that it shows."""
    home = tmp_path_factory.mktemp("user")
    for name in ("train", "test"):
        file = home / "data" / "cifar10" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)  # plans read contents only for their hash
    for name in ("cat/1.png", "dog/1.png"):
        (home / "photos" / name).parent.mkdir(parents=True)
        (home / "photos" / name).write_bytes(b"")
    for name, text in blocks("file").items():
        if not name.startswith("ablate/"):
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
    return home


def planned(words):
    """The plan of a `sweep` or `plan` command, read as the command line reads it."""
    command = typer.main.get_command(cli.app).commands[words[0]]
    given = command.make_context(words[0], list(words[1:])).params
    options = {key: given[key] for key in ("scale", "name", "across", "each")}
    return expand.plan(given["words"] or [], store=Path("runs"), **options)[0]


def test_every_command_of_the_readme_is_right(folder, monkeypatch):
    """In order, as a reader types them. `sweep` only plans and notes what it would drive."""
    monkeypatch.chdir(folder)
    store = Store(Path("runs"))
    shown = set()
    for words in commands():
        shown.add(words[0])
        if words[0] in ("sweep", "plan"):
            plan = planned(words)
            if words[0] == "sweep":
                with Ledger.driving(store) as ledger:
                    store.write_plan(plan)
                    ledger.plan(plan)
        else:
            done = CliRunner().invoke(cli.app, words)
            if words[0] == "plot":  # of a sweep without results it says what to type
                assert isinstance(done.exception, Nothing), (words, done.exception)
                continue
            assert done.exit_code == 0, (words, done.output, done.exception)
    assert shown == set(typer.main.get_command(cli.app).commands)


def test_every_option_that_changes_a_plan_is_shown():
    options = ("--scale", "--as", "--replace", "--across", "--each", "--retry")
    for option in (*options, "--store", "--debug"):
        assert option in README, option


def test_every_file_that_is_named_exists(folder):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)
    inside = re.findall(r"`((?:ablate|conf|sweeps|tests|benchmarks|\.ci)/[\w./-]*\w)`", README)
    assert links
    assert inside
    for name in {*links, *inside} - blocks("file").keys():
        assert name.startswith("http") or (REPOSITORY / name).exists(), name
    for anchor in re.findall(r"\]\(#([^)]+)\)", README):
        assert anchor in [
            title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", README, re.M)
        ]


def test_the_layer_drawing_has_every_module():
    drawing = re.search(r"```\n CONTROL HALF.*?```", README, re.DOTALL)[0]
    modules = {module.name for module in pkgutil.iter_modules(ablate.__path__)}
    named = set(re.findall(r"(?:^|  )(\w+)/?(?=\s|$)", drawing, re.M))
    assert modules <= named, modules - named


def test_every_key_of_a_sweep_file_and_of_its_analysis_is_explained():
    keys = [*KEYS, *(field.name for field in dataclasses.fields(Analysis))]
    for key in keys:
        assert re.search(rf"^\| `{key}` \|", README, re.M), key


def test_the_table_is_that_of_the_quick_start():
    table = re.search(r"<!-- quickstart table -->(.*?)<!-- end -->", README, re.DOTALL)[1]
    rows = re.findall(r"^\| ([^|*]+?) \| [\d.]+ \[", table, re.M)
    plan, _ = expand.plan(["quickstart"], store=Path("nowhere"))
    assert rows == [row.label for row in plan.rows]
    assert plan.title in table
    assert "UNFINISHED" not in table


def test_a_recipe_and_a_dataset_are_files_of_the_users_own(folder, monkeypatch):
    monkeypatch.chdir(folder)
    tree, _ = compose.resolve(["recipe=longer", "data=pets"], Path("runs"))
    assert (
        tree["train"]["epochs"]
        == yaml.safe_load(blocks("file")["conf/recipe/longer.yaml"])["train"]["epochs"]
    )
    assert (tree["data"]["classes"], tree["data"]["size"]) == (2, 64)


def run(words, folder, sources=None):
    """`ablate WORDS` in a folder, as a process; the sources are ours or a copy of them."""
    return subprocess.run(
        [sys.executable, "-P", "-c", "import sys; from ablate.cli import main; main()", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(sources or REPOSITORY), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_how_to_use_a_norm_of_ones_own(tmp_path):
    (tmp_path / "mynorms.py").write_text(blocks("file")["mynorms.py"])
    words = next(words for words in commands() if any("mynorms:" in word for word in words))
    done = run([*words[:-1], "norm.power=2", "train.steps=3", "seeds=2"], tmp_path)
    assert "norm.power: expected a key among" in done.stderr  # layernorm has none
    done = run([*words[:-1], "train.steps=3", "seeds=2"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\| mynorms:MeanNorm \| [\d.]+ \[.* \| 2 \| ", done.stdout, re.M), (
        done.stdout
    )


def followed(home: Path) -> Path:
    """A copy of the sources in which the how-tos for a norm, a placement and a stem were done."""
    for name in ("ablate", "conf", "sweeps"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, home / name, ignore=ignored)
    for name, text in blocks("file").items():
        if name.startswith("ablate/"):
            assert not (home / name).exists(), f"{name}: the README makes it anew"
            (home / name).write_text(text)
    for table, text in blocks("entry").items():
        file, line = TABLES[table]
        source = (home / file).read_text()
        assert source.count(line) == 1, f"{file} has no line {line!r}: the README says it has"
        (home / file).write_text(source.replace(line, line + text))
    source = (home / "ablate/shared/choices.py").read_text()
    assert source.count(PLACEMENT) == 1
    (home / "ablate/shared/choices.py").write_text(source.replace(PLACEMENT, f'{PLACEMENT}"all", '))
    return home


def test_how_to_add_a_norm_a_placement_and_a_stem(tmp_path):
    sources = followed(tmp_path / "sources")
    words = ["norm=layernorm,mynorm", "stem=none,mystem", "block.attn=pre,all"]
    short = ("train.steps=3", "seeds=2", "launcher=inline")
    done = run(["sweep", *words, "--each", *short], tmp_path, sources)
    assert done.returncode == 0, done.stdout + done.stderr
    for label in ("mynorm", "mystem", "all"):
        assert re.search(rf"^\| {label} \| [\d.]+ \[.* \| 2 \| ", done.stdout, re.M), done.stdout
    results = list(tmp_path.glob("runs/runs/*/result.json"))
    assert len(results) == 8
    assert "mynorm" not in choices.NORMS
