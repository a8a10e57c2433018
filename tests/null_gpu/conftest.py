"""Commands on a null GPU, for the tests of this folder: `make null-gpu` runs them.

They run in the environment that build.py makes; elsewhere they end with one line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ablate.store.ledger import Ledger
from ablate.store.store import Store

if "null_gpu" not in os.environ.get("PYTHONPATH", ""):
    raise pytest.UsageError("these tests need a null GPU: make null-gpu")


@dataclass
class Done:
    """A command that ended: its exit code and what it printed."""

    code: int
    out: str
    err: str


@dataclass
class Folder:
    """A folder in which commands run, and its store."""

    path: Path

    def ablate(self, *words: str, code: int | None = 0, **variables: str) -> Done:
        """Run `ablate WORDS` to its end, which has this exit code (None: any), with more
        variables."""
        command = [sys.executable, "-m", "ablate", *words]
        environment = {**os.environ, **variables}
        done = subprocess.run(
            command, cwd=self.path, env=environment, capture_output=True, text=True
        )
        assert code in (None, done.returncode), done.stdout + done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    @property
    def states(self) -> list[str]:
        """The state of each run."""
        with Ledger.reading(Store(self.path / "runs")) as ledger:
            return [state.status for state in ledger.states().values()]

    @property
    def events(self) -> list[list[tuple[str, dict[str, Any]]]]:
        """What was recorded of each run: (kind, details) in their order."""
        recorded = []
        with Ledger.reading(Store(self.path / "runs")) as ledger:
            for run in ledger.states():
                recorded.append([(kind, details) for _, kind, details in ledger.events(run)])
        return recorded

    @property
    def results(self) -> list[dict[str, Any]]:
        """The result of each finished run."""
        files = self.path.glob("runs/runs/*/result.json")
        return [json.loads(file.read_text()) for file in files]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)
