"""Prints the lowest version that pyproject.toml allows of each direct dependency, a line each, as
pip takes it. Not of torch: its builds are gigabytes, and constraints.txt names the one to use."""

from environment import requirements
from packaging.requirements import Requirement

for need in map(Requirement, requirements()):
    [bound] = [part for part in need.specifier if part.operator == ">="]
    print(f"{need.name}=={bound.version}")
