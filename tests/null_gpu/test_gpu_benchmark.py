"""benchmarks/gpu.py, every part, on a null GPU: the paths that a CPU does not take."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import gpu
import pytest

# torch.profiler has no counters here, a compiled step no Triton, and the machine one GPU.
NOT_DONE = {"launches", "compiled", "several"}
RATE = re.compile(r"runs_per_gpu=([12]): \d+ steps/s, .*; [1-9]\d* s beside the training")


@pytest.mark.parametrize("part", gpu.PARTS)
def test_a_part_runs(tmp_path: Path, part: str):
    words = [sys.executable, gpu.__file__, part, "--tiny", "--out", str(tmp_path / "out")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    kept = json.loads((tmp_path / "out" / f"{part}.json").read_text())
    lines = kept["lines"]
    assert kept["ended"] == "in full", done.stdout + done.stderr
    assert kept["device"].startswith("NVIDIA")
    assert any("not done" in line for line in lines) == (part in NOT_DONE)
    if part == "steps":
        assert not [line for line in lines if "FAILED" in line]
    if part == "packing":
        assert [line[1] for line in map(RATE.search, lines) if line] == ["1", "2"]
