"""An environment with what ablate needs but torch, and the requirements that go into it.

Used by control_half.py, lowest.py and tests/null_gpu/build.py, with the standard library alone.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PIP = ("-m", "pip", "--disable-pip-version-check")
OF_TORCH = re.compile(r"torch(vision)?\b")


def requirements() -> list[str]:
    """Return what pyproject.toml says that ablate needs, without torch."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return [need for need in project["dependencies"] if not OF_TORCH.match(need)]


def constraints() -> Iterator[str]:
    """Yield the lines of constraints.txt, without torch's."""
    for line in (REPOSITORY / "constraints.txt").read_text().splitlines():
        if not OF_TORCH.match(line):
            yield line


def make_environment(folder: Path, packages: Sequence[str], *options: str) -> str:
    """Make an environment of this Python in `folder`, with what ablate needs but torch and these
    packages; return its Python. `options`: pip's. Raises CalledProcessError."""
    venv.create(folder, with_pip=True, clear=True)
    python = str(folder / "bin" / "python")
    limits = folder / "constraints.txt"
    limits.write_text("\n".join(constraints()) + "\n")
    install = [python, *PIP, "install", "-q", *options, "-c", str(limits)]
    subprocess.run([*install, *requirements(), *packages], check=True)
    return python
