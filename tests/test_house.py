"""The house: one noun, one owner; files and functions that can be read in one sitting; a budget of
nouns; rooms with doors; bounds on what makes code hard to read; and what the digest of the training
code is a hash of."""

import ast
import importlib
import re
import shutil
from collections import Counter
from collections.abc import Iterator

import pytest
from conftest import REPOSITORY
from glossary import OWNERS
from house import House, pinned_sentences

from ablate.training import worker

PACKAGE = REPOSITORY / "ablate"
LONGEST_FILE, LONGEST_FUNCTION = 600, 100
MOST_NOUNS = 25
TABLES = {"run/choices.py"}  # of data
# What a reader pays for, as tests/house.py measures it. A bound is what stands today, rounded up;
# it only falls.
BOUNDS = {
    "names across rooms": 655,
    "names that say nothing, %": 0.39,
    "expressions a line": 4.4,
    "packed expressions a thousand lines": 107.1,
    "docstrings that begin with a pronoun": 0,
    "functions of more than seven parameters": 6,
    "sentences that tests pin": 876,
}
# Modules of a room that import one another in a circle; a bound only falls.
CIRCLES = {"audit": 2, "planning": 4, "run": 2, "store": 2, "training": 4}
# In a string it is the program of another process.
IMPORTS_OF_TESTS = re.compile(r"^\s*(?:from|import)\s+(?:tests\.)?test_\w+", re.MULTILINE)


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")
    }


@pytest.fixture(scope="module")
def trees(files) -> dict[str, ast.Module]:
    return {name: ast.parse(text) for name, text in files.items()}


def test_each_class_is_named_once(trees):
    owners = Counter(
        node.name
        for file, tree in trees.items()
        if not file.startswith("api/")  # the nouns of Python are the faces of these
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, files in owners.items() if files > 1] == []


def test_a_file_can_be_read_in_one_sitting(files):
    long = {name for name, text in files.items() if len(text.splitlines()) > LONGEST_FILE}
    assert long - TABLES == set()


def test_a_function_fits_on_a_screen(trees):
    long = {
        f"{file}: {node.name}"
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= LONGEST_FUNCTION
    }
    assert long == set()


@pytest.fixture(scope="module")
def house() -> House:
    return House(PACKAGE)


@pytest.fixture(scope="module")
def figures(house) -> dict[str, float]:
    return {
        "names across rooms": len(house.taken),
        "names that say nothing, %": house.empty_names,
        "expressions a line": house.density,
        "packed expressions a thousand lines": house.packed,
        "docstrings that begin with a pronoun": house.pronoun_docstrings,
        "functions of more than seven parameters": len(house.long_signatures),
        "sentences that tests pin": pinned_sentences(REPOSITORY / "tests"),
    }


@pytest.mark.parametrize("figure", BOUNDS)
def test_the_house_gets_no_harder_to_read(figures, figure):
    assert figures[figure] <= BOUNDS[figure]


def test_no_circle_of_imports_grows_in_a_room(house):
    assert {room: n for room, n in house.circles.items() if n > CIRCLES.get(room, 0)} == {}


def test_a_circle_of_imports_is_found_behind_type_checking_and_in_functions(tmp_path):
    room = tmp_path / "house" / "room"
    room.mkdir(parents=True)
    (room / "__init__.py").touch()
    (room / "one.py").write_text("if TYPE_CHECKING:\n    from house.room.two import b\n")
    (room / "two.py").write_text("def b():\n    from house.room import three\n")
    (room / "three.py").write_text("from house.room.one import a\n")
    (room / "four.py").write_text("from house.room.one import a\n")
    assert House(tmp_path / "house").circles == {"room": 3}


def test_rooms_are_entered_by_their_doors(house):
    assert house.past_doors == []


DOORS = sorted(
    path.parent.name
    for path in PACKAGE.glob("*/__init__.py")
    if "from ablate.doors import lazy" in path.read_text()
)


def test_every_room_that_others_enter_has_a_door(house):
    assert {room for room, _ in house.taken} - {"cli"} == set(DOORS)  # `main` is eager: see cli


@pytest.mark.parametrize("room", DOORS)
def test_a_door_shows_what_it_lists_with_a_line_of_help_each(room):
    path = PACKAGE / room / "__init__.py"
    door = importlib.import_module(f"ablate.{room}")
    imports = {
        alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module.startswith(f"ablate.{room}")
        for alias in node.names
    }
    assert set(door.__all__) == set(imports)
    assert len(door.__all__) == len(set(door.__all__))
    modules = {file.stem for file in path.parent.glob("*.py")}
    modules |= {folder.name for folder in path.parent.iterdir() if folder.is_dir()}
    for name in door.__all__:
        shown = getattr(door, name)
        if name in modules:  # else whoever imports the module first would hide the name
            assert shown is importlib.import_module(f"ablate.{room}.{name}")
        assert re.search(rf'^    "{name}",  # \w?\S', path.read_text(), re.MULTILINE), name
    with pytest.raises(AttributeError):
        _ = door.no_such_name


def test_a_stranger_has_few_nouns_to_learn():
    assert len(OWNERS) <= MOST_NOUNS


def imported_test_modules(tree: ast.Module) -> Iterator[str]:
    """List the imports of test modules in a file, also in the programs that its strings hold."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            if any(part.startswith("test_") for name in names for part in name.split(".")):
                yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from IMPORTS_OF_TESTS.findall(node.value)


@pytest.mark.whole
def test_no_file_imports_a_test_module():
    """What several files share is in `tests/support`, in conftest, or in a module of its own."""
    imports = {
        path.relative_to(REPOSITORY).as_posix(): found
        for folder in ("tests", "benchmarks", ".ci")
        for path in (REPOSITORY / folder).rglob("*.py")
        if (found := [*imported_test_modules(ast.parse(path.read_text()))])
    }
    assert imports == {}


def test_the_digest_is_the_hash_of_what_a_worker_loads(tmp_path, monkeypatch):
    package = tmp_path / "ablate"  # which the worker takes for its own
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(worker, "__file__", str(package / "training" / "worker.py"))
    digest = worker._digest()
    assert digest == worker.DIGEST  # wherever the package lies
    moved = {}
    for file in {file.parent: file for file in sorted(package.rglob("*.py"))}.values():
        content = file.read_bytes()
        file.write_bytes(content + b"\n")
        moved[file.relative_to(package).as_posix()] = worker._digest() != digest
        file.write_bytes(content)
    rooms = ("data", "run", "shared", "training")
    assert moved == {name: name.split("/")[0] in rooms for name in moved}
    assert sum(moved.values()) > 5
    (package / "training" / "later.py").touch()
    assert worker._digest() != digest
