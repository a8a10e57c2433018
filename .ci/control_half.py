"""Tests the control half on the Python that runs this, without torch.

    python3.13 .ci/control_half.py FOLDER

The environment is made in FOLDER. Its tests are the files that name neither torch nor the rooms
that use it, and run no command that trains in a process of its own; tests/conftest.py skips a test
that comes to import torch.
"""

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# Also helpers that train or have a worker, and fixtures that run commands.
NEEDS_TORCH = re.compile(
    r"torch|ablate\.(training|data)\b|[sS]hell|\btiny\b|mark\.(slow|faults|cluster|tour)|"
    r"docs_site|support\.(decoding|drivers|looks|planted_sweeps|processes|trainings)"
)
OF_TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "pyte")


def install(folder: Path) -> str:
    """Make an environment with what ablate and its tests need, except torch; return its Python."""
    venv.create(folder, with_pip=True, clear=True)
    python = str(folder / "bin" / "python")
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    limits = folder / "constraints.txt"
    limits.write_text("\n".join(line for line in lines if not line.startswith("torch")))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    needs = [need for need in project["dependencies"] if not need.startswith("torch")]
    pip = [python, "-m", "pip", "install", "-q", "-c", str(limits)]
    subprocess.run([*pip, *needs, *OF_TESTS], check=True)
    return python


python = install(Path(sys.argv[1]).resolve())
files = sorted((REPOSITORY / "tests").glob("test_*.py"))
tests = [str(file) for file in files if not NEEDS_TORCH.search(file.read_text())]
words = [python, "-m", "pytest", "-m", "not whole", "-n", "2", "--dist", "loadfile", *tests]
sys.exit(subprocess.run(words, cwd=REPOSITORY).returncode)
