"""What is installed: the lowest versions that are allowed, the extras, the citation."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata

import yaml
from conftest import REPOSITORY
from packaging.requirements import Requirement

from ablate.audit.doctor import machine
from ablate.planning.launcher import LAUNCHERS
from ablate.planning.logger import LOGGERS
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


def test_extras_are_known_to_the_doctor_tested_and_pinned():
    assert EXTRAS.keys() == {*machine.EXTRAS, "dev"}
    pinned = {
        line.partition("==")[0] for line in (REPOSITORY / "constraints.txt").read_text().split()
    }
    names = {need.name for needs in EXTRAS.values() for need in needs}
    assert {
        "submitit",
        "timm",
        "tokenizers",
        "tensorboard",
        "wandb",
        "mlflow-skinny",
    } <= names & pinned
    makefile = (REPOSITORY / "Makefile").read_text()
    dev = {need.name: need.specifier for need in EXTRAS.pop("dev")}
    for need in (need for needs in EXTRAS.values() for need in needs):
        assert dev.get(need.name) == need.specifier or f" {need.name} " in makefile


def test_the_doctor_names_the_remedy_of_each_missing_extra(monkeypatch):
    needs = [f"{need}; extra == '{extra}'" for extra, all in EXTRAS.items() for need in all]
    monkeypatch.setattr(metadata, "requires", lambda name: ["torch>=2", *needs])
    there = {"submitit", "torch"}

    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    lines = [finding.text for finding in machine.extras()]
    assert len(lines) == len(machine.EXTRAS) - 1
    told = "wandb is not installed: logger=wandb needs it; pip install 'ablate-sweep[wandb]'"
    assert told in lines
    for choice in (*LAUNCHERS.values(), *LOGGERS.values()):  # the remedies elsewhere
        extra = choice.source.partition("[")[2].partition("]")[0]
        assert extra in {"", *machine.EXTRAS}


def test_the_citation_is_of_this_version():
    told = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert told.keys() >= {
        "cff-version",
        "message",
        "title",
        "authors",
    }  # which the schema asks for
    assert (told["cff-version"], told["type"]) == ("1.2.0", "software")
    assert told["version"] == __version__
    assert all(isinstance(told[key], str) for key in ("message", "title", "abstract", "version"))
    assert all(
        author.keys() <= {"name", "family-names", "given-names"} for author in told["authors"]
    )


def test_python_is_declared_as_far_as_it_was_tried():
    versions = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if ":: 3." in name]
    assert versions == ["3.11"]
    assert PROJECT["requires-python"] == ">=3.11"
