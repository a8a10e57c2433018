"""The manual does what it says: its commands parse, its links lead somewhere, its keys are all
there, and the architecture page describes the code that is."""

import ast
import dataclasses
import itertools
import os
import pkgutil
import re
import shlex
import sys
import tomllib
from pathlib import Path
from unittest import mock

import docs_site
import glossary
import guides
import options_page
import pytest
import typer
import yaml
from conftest import REPOSITORY, forget
from pages import INDEX, PAGES, README, STUDIES, blocks, commands
from typer.testing import CliRunner

import ablate
from ablate import cli
from ablate.cli import help_texts
from ablate.planning import compose, expand, sweep_file, tuning
from ablate.planning.analysis_keys import Analysis
from ablate.planning.logger import split_logger_words
from ablate.report.plot import Nothing
from ablate.report.watch.server import WatchServer
from ablate.store.ledger import Ledger
from ablate.store.store import Store

COMMANDS = typer.main.get_command(cli.app).commands
ALL = "\n".join(PAGES.values())
ARCHITECTURE = PAGES["docs/architecture.md"]
EXTERNAL = ("http://", "https://")


IMAGENET_C = yaml.safe_load((REPOSITORY / "conf" / "data" / "imagenet_c.yaml").read_text())
DISTORTED = [*itertools.product(IMAGENET_C["corruptions"], range(1, 6))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's folder that has what the pages take for granted, and the files that they show."""
    home = tmp_path_factory.mktemp("user")
    files = {name: text for name, text in blocks("file").items() if not name.startswith("ablate/")}
    for name in ("train", "test"):
        files[f"data/cifar10/{name}.parquet"] = name  # plans read contents only for their hash
    files["dinov2.safetensors"] = "weights"
    folders = ["photos/cat", "photos/dog"]
    for wnid in ("n01440764", "n01443537"):
        folders += [f"imagenet/train/{wnid}", f"imagenet/val/{wnid}", f"sets/imagenet-r/{wnid}"]
        folders += [f"sets/imagenet-c/{name}/{severity}/{wnid}" for name, severity in DISTORTED]
    for name, text in (files | {f"{name}/1.png": "" for name in folders}).items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    path = list(sys.path)
    yield home
    sys.path[:] = path
    forget(home)


# --- Commands, options, keys --------------------------------------------------------------------


def planned(words):
    """The plan of a `sweep` or `plan` command, read as the command line reads it."""
    given = COMMANDS[words[0]].make_context(words[0], list(words[1:])).params
    options = {key: given[key] for key in ("scale", "name", "across", "each", "change", "design")}
    of_plan, _ = split_logger_words(given["words"] or [])
    return expand.plan_from_words(of_plan, store=Path("runs"), **options)[0]


@pytest.mark.whole
def test_every_command_of_the_pages_is_right(folder, monkeypatch):
    """In order, as a reader types them. `sweep` only plans and notes what it would drive; Ctrl-C
    ends `watch` at once.

    A command that several pages show is typed once, but for `sweep`, which says what is last.
    Tutorials, how-to pages and concepts are only parsed here.
    """
    monkeypatch.chdir(folder)
    # As in an environment that is activated: a page's program is started by `python`.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setattr(WatchServer, "serve_forever", mock.Mock(side_effect=KeyboardInterrupt))
    store, shown, typed = Store(Path("runs")), set(), []
    for page, words in [(name, words) for name in PAGES for words in commands(name)]:
        command, *rest = words
        shown.add(command)
        if words in typed and command != "sweep":
            continue
        typed.append(words)
        if page.startswith(guides.FOLDERS):  # typed in a folder of its own by test_guides.py
            COMMANDS[command].make_context(command, rest)
            continue
        there = store.read_plan(rest[0]) if command == "plan" and rest else None
        imported = there is not None and not there.design.trains
        if command in ("sweep", "plan") and not imported:
            plan = planned(words)
            if command == "sweep":
                with Ledger.driving(store) as ledger:
                    store.write_plan(plan)
                    ledger.plan(plan)
            continue
        # `--rerun`: of a run that the tour's test trains; `--watch` ends with the sweep; a launcher
        # of `doctor`: a job on a cluster, see test_sites.py
        asks_cluster = command == "doctor" and any(word.startswith("launcher=") for word in words)
        if asks_cluster or {"--rerun", "--watch"} & {*words}:
            COMMANDS[command].make_context(command, rest)
            continue
        done = CliRunner().invoke(cli.app, words)
        if command == "plot":  # of a sweep without results it says what to type
            assert isinstance(done.exception, Nothing), (page, words, done.exception)
            continue
        ends = 130 if command == "watch" else 0
        assert done.exit_code == ends, (page, words, done.output, done.exception)
    assert shown == set(COMMANDS)


def options() -> set[str]:
    """Every long option of every command but --help, subcommands included."""
    found = {"--version", "--install-completion", "--show-completion"}
    for command in COMMANDS.values():
        for one in (command, *getattr(command, "commands", {}).values()):
            found |= {name for param in one.params for name in (*param.opts, *param.secondary_opts)}
    return {name for name in found if name.startswith("--")} - {"--help"}


def test_every_command_and_option_is_explained():
    for name in COMMANDS:
        assert f"ablate {name}" in ALL, name
        assert f"## `ablate {name}" in PAGES["docs/options.md"], name
    table = re.findall(r"^\| `(-.*?)` \| \w", PAGES["docs/options.md"], re.M)
    explained = {name for row in table for name in re.findall(r"--[\w-]+", row)}
    assert explained == options()


def test_the_page_of_options_is_as_it_is_written_now():
    assert options_page.written() == PAGES["docs/options.md"], "python tests/options_page.py"


def test_each_help_begins_with_an_example_and_names_no_python_type():
    """The pages show the example, so that it is typed above; `doctor` trains, and `gc` asks."""
    on_pages = {tuple(words) for page in PAGES for words in commands(page)} | {("doctor",), ("gc",)}
    for name, _ in options_page.commands():
        example = help_texts.EXAMPLES[name]
        words = shlex.split(example)
        assert tuple(words) in on_pages
        assert words[: len(name.split())] == name.split()
        out = CliRunner().invoke(cli.app, [*name.split(), "--help"]).output
        usage, first, *_ = (" ".join(part.split()) for part in re.split(r"\n\s*\n", out.strip()))
        assert usage.startswith("Usage: ")
        assert first == f"Example: ablate {example}"
        assert not re.findall(r"<\w+(?:\[\w+\])?>", out), name
    assert not re.findall(r"<\w+>", CliRunner().invoke(cli.app, ["--help"]).output)


def test_no_option_is_named_that_is_not_there():
    texts = [text for text in re.findall(r"`[^`\n]+`", prose(ALL)) if "flag: " not in text]
    named = {name for text in texts for name in re.findall(r"--[a-z][\w-]*", text)}
    assert len(named) > 20
    assert named <= {*options(), "--help"}


@pytest.mark.parametrize(
    ("page", "keys"),
    [
        ("docs/sweep-files.md", sweep_file.KEYS),
        ("docs/sweep-files.md", [field.name for field in dataclasses.fields(Analysis)]),
        ("docs/tuning.md", tuning.KEYS),
    ],
    ids=["sweep file", "analysis", "tune"],
)
def test_every_key_is_explained(page, keys):
    rows = re.findall(r"^\| `(\w+)` \|", PAGES[page], re.M)
    assert set(keys) <= {*rows}


def test_what_a_scale_and_an_entry_take_is_explained():
    page = PAGES["docs/sweep-files.md"]
    scales = re.search(r"^\| `scales` \| `NAME: \{(.+?)\}`", page, re.M)[1]
    assert set(scales.split(", ")) == set(sweep_file.SCALE_KEYS)
    entries = set(re.findall(r"^\| `(\w+): \{key: \[values\], \.\.\.\}` \|", page, re.M))
    assert entries == set(sweep_file.GENERATORS)


def test_every_shipped_sweep_is_named():
    for path in (REPOSITORY / "sweeps").glob("*.yaml"):
        assert f"`{path.stem}`" in PAGES["docs/sweep-files.md"], path.stem


def test_a_recipe_and_a_dataset_are_files_of_the_users_own(folder, monkeypatch):
    monkeypatch.chdir(folder)
    tree, _ = compose.resolve_run(["recipe=longer", "data=pets"], Path("runs"))
    shown = yaml.safe_load(blocks("file")["conf/recipe/longer.yaml"])
    assert tree["train"]["epochs"] == shown["train"]["epochs"]
    assert (tree["data"]["classes"], tree["data"]["size"]) == (2, 64)


# --- Links --------------------------------------------------------------------------------------


def prose(text: str) -> str:
    """Without code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Of its headings, as code hosts make them."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_index_has_every_page():
    pages = {page for page in docs_site.written_pages() if not page.startswith(STUDIES)}
    assert pages == PAGES.keys() - {README, INDEX}
    docs_site.check_index()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    home = (REPOSITORY / page).parent
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(PAGES[page])):
        if target.startswith(EXTERNAL):
            continue
        name, _, anchor = target.partition("#")
        path = (home / name).resolve() if name else REPOSITORY / page
        assert path.is_relative_to(REPOSITORY), target
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text()), target


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_is_named_exists(page):
    inside = r"`((?:ablate|conf|sweeps|tests|benchmarks|docs|\.ci)/[\w./-]*\w)`"
    for name in {*re.findall(inside, PAGES[page])} - blocks("file").keys():
        assert (REPOSITORY / name).exists(), name


# --- The architecture page ----------------------------------------------------------------------


def ranks() -> dict[str, float]:
    """room -> its place in the import contract, 0 at the top; rooms of a line share it."""
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    found: dict[str, float] = {}
    for place, line in enumerate(contracts["contracts"][0]["layers"]):
        found |= {room.strip().removeprefix("ablate."): place for room in line.split("|")}
    # Above what a run is, which both halves know.
    return {**found, "training": found["run"] - 0.5, "data": found["run"] - 0.3}


def may_import(room: str, other: str) -> bool:
    """Downhill: the same room, or one below it, and never from one half into the other."""
    trains = ("training", "data")
    if room != other and (room in trains or other in trains):
        return room in trains and other in ("data", "run", "shared", "version") and room != "data"
    return room == other or ranks()[room] < ranks()[other]


def test_the_drawing_has_every_module():
    drawing = re.search(r"```\n CONTROL HALF.*?```", ARCHITECTURE, re.DOTALL)[0]
    modules = {module.name for module in pkgutil.iter_modules(ablate.__path__)}
    modules -= {"__main__"}  # which is `cli`, by another name
    assert modules == ranks().keys()
    named = re.findall(r"(?:^|  )(\w+)/?(?=\s|$)", drawing, re.M)
    assert modules <= {*named}, modules - {*named}
    rooms = [name for name in named if name in modules - {"training", "data"}]
    assert rooms == sorted(rooms, key=ranks().__getitem__)


def imported(file: str) -> set[str]:
    """The modules of the package that a file imports."""
    names = set()
    for node in ast.walk(ast.parse((REPOSITORY / file).read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: a relative import hides its room"
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.removeprefix("ablate.") for name in names if name.startswith("ablate.")}


def test_the_way_of_one_run_goes_downhill():
    section = re.search(r"^## The way of one run\n(.*?)^## ", ARCHITECTURE, re.M | re.DOTALL)[1]
    steps = re.findall(r"^\d+\. \*\*\w[\w ]*\.\*\* \[`(ablate/[\w/]+\.py)`\]", section, re.M)
    assert len(steps) == len(re.findall(r"^\d+\. ", section, re.M)) == len({*steps})
    assert 8 <= len(steps) <= 12
    assert sum(len(imported(file)) for file in steps) > 40
    for file in steps:
        for name in imported(file):
            room = file.split("/")[1]
            assert may_import(room, name.split(".")[0]), f"{file} imports {name}"
    assert not may_import("store", "running")  # uphill
    assert not may_import("running", "analysis")  # beside it
    assert not may_import("running", "training")


def test_the_glossary_is_of_this_code():
    """Written from the code, whose owners it finds; each noun in few words."""
    assert PAGES["docs/glossary.md"] == glossary.page(), "python tests/glossary.py"
    assert len(glossary.OWNERS) == 25
    for owner in glossary.OWNERS.values():
        assert 10 < len(glossary.meaning(*owner.split())) < 110, owner
