"""Tests the control half on the Python that runs this, without torch.

    python3.13 .ci/control_half.py FOLDER

The environment is made in FOLDER. Its tests are the files that name neither torch nor the rooms
that use it, and run no command that trains in a process of its own; tests/conftest.py skips a test
that comes to import torch. Fewer than `LEAST` tests that pass are a failure: so many are skipped or
left out by mistake.

Used by .ci/run.
"""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from environment import REPOSITORY, make_environment

# Also helpers that train or have a worker, and fixtures that run commands.
NEEDS_TORCH = re.compile(
    r"torch|ablate\.(training|data)\b|[sS]hell|\btiny\b|mark\.(slow|faults|cluster|tour)|"
    r"docs_site|support\.(decoding|drivers|looks|planted_sweeps|processes|trainings)"
)
OF_TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "pyte")
LEAST = 1  # tests that pass

folder = Path(sys.argv[1]).resolve()
python = make_environment(folder, OF_TESTS)
files = sorted((REPOSITORY / "tests").glob("test_*.py"))
tests = [str(file) for file in files if not NEEDS_TORCH.search(file.read_text())]
report = folder / "report.xml"
words = [python, "-m", "pytest", "-m", "not whole", "-n", "2", "--dist", "loadfile"]
code = subprocess.run([*words, f"--junitxml={report}", *tests], cwd=REPOSITORY).returncode
if code:
    sys.exit(code)
(suite,) = ElementTree.parse(report).getroot()
passed = int(suite.attrib["tests"]) - int(suite.attrib["skipped"])
if passed < LEAST:
    sys.exit(f"only {passed:,} tests passed, of at least {LEAST:,}")
print(f"{passed:,} tests passed")
