"""benchmarks/gpu.py, rehearsed on a CPU: every part runs, and a part that is there is kept."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

pytestmark = [pytest.mark.tour, pytest.mark.timeout(300)]


def test_commands_find_this_checkout_first_and_what_was_found_before(monkeypatch):
    show = "import sys; sys.path.insert(0, sys.argv[1]); import gpu; "
    show += "print(gpu.environment()['PYTHONPATH'])"
    words = [sys.executable, "-c", show, str(REPOSITORY / "benchmarks")]
    for before, after in {"/one:/two": ":/one:/two", "": ""}.items():
        monkeypatch.setenv("PYTHONPATH", before)
        assert subprocess.check_output(words, text=True).strip() == f"{REPOSITORY}{after}"


@pytest.fixture
def run(tmp_path: Path):
    """`run(words)`: what the script prints, in an empty folder with one thread."""

    def run(*words: str) -> str:
        command = [sys.executable, str(REPOSITORY / "benchmarks" / "gpu.py"), "--out", "out"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.slow
def test_every_part_is_rehearsed(run, tmp_path: Path):
    printed = run("--tiny")
    parts = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("out/*.json")}
    assert len(parts) == 10
    assert all(part["ended"] == "in full" and part["lines"] for part in parts.values()), printed
    assert all(part["torch"] and part["device"].startswith("CPU") for part in parts.values())
    assert re.fullmatch("killed [2-9] processes", parts["kill"]["lines"][0])
    assert parts["kill"]["lines"][-1] == "the same bits"
    assert not [line for line in parts["agreement"]["lines"] if "FAR" in line]
    assert "not done" in parts["launches"]["lines"][-1]
    assert not [line for line in parts["steps"]["lines"] if "FAILED" in line]
    ratios = [line.rpartition(" times ") for line in parts["steps"]["lines"][1:3]]
    assert all(other == "mu/4" and float(r.split()[-1]) > 0 for r, _, other in ratios)


def test_a_finished_part_is_never_run_twice(run, tmp_path: Path):
    assert "skipped" not in run("--tiny", "launches")
    part = tmp_path / "out" / "launches.json"
    assert json.loads(part.read_text())["ended"] == "in full"
    assert run("--tiny", "launches").count("skipped: ") == 1
    part.write_text(json.dumps({**json.loads(part.read_text()), "ended": "after ten minutes"}))
    assert "skipped" not in run("--tiny", "launches")
    assert json.loads(part.read_text())["ended"] == "in full"
    assert "skipped" not in run("launches")  # what was rehearsed has not been done
