"""Prints the lowest version that pyproject.toml allows of each direct dependency, a line each, as
pip takes it. Not of torch: its builds are gigabytes, and constraints.txt names the one to use."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
for need in map(Requirement, project["dependencies"]):
    if need.name != "torch":
        [bound] = [part for part in need.specifier if part.operator == ">="]
        print(f"{need.name}=={bound.version}")
