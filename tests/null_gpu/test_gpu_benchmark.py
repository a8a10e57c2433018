"""benchmarks/gpu.py, every part, on a null GPU: the paths that a CPU does not take."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "gpu.py"
# torch.profiler has no counters here, and a compiled step no Triton.
NOT_DONE = {"launches", "compiled", "several"}


@pytest.mark.timeout(600)
def test_every_part_runs(tmp_path: Path):
    words = [sys.executable, str(SCRIPT), "--tiny", "--out", str(tmp_path / "out")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    parts = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("out/*.json")}
    assert len(parts) == 10
    assert {part["ended"] for part in parts.values()} == {"in full"}, done.stdout + done.stderr
    assert all(part["device"].startswith("NVIDIA") for part in parts.values())
    skipped = {
        name for name, part in parts.items() if any("not done" in line for line in part["lines"])
    }
    assert skipped == NOT_DONE
    assert not [line for line in parts["steps"]["lines"] if "FAILED" in line]
    timed = re.compile(r"runs_per_gpu=([12]): \d+ steps/s, .*; \d+ s beside the training")
    packed = [line[1] for line in map(timed.search, parts["packing"]["lines"]) if line]
    assert packed == ["1", "2"]
