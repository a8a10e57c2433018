"""Sweeps on a null GPU, by the commands that a user types: they end as on a GPU, except that no
figure in their tables means anything."""

from __future__ import annotations

import json
import re

import pytest
from conftest import Folder

ROWS = ("stem=none,dpn", "seeds=1", "--yes")
SMALL = ("recipe=quick", "data=digits", "model.arch=mu/4", *ROWS)
# 41 GB in float32 at once.
LARGE = ("recipe=quick", "data=digits", "data.size=64", "model.arch=S/4", "train.batch=512")
LARGE += ("train.steps=2", *ROWS)


def test_the_quick_start_comes_to_its_table(folder: Folder):
    """NVRTC compiles nothing here, and whatever needs it fails: no run may."""
    folder.ablate("sweep", "quickstart", "seeds=2", "train.steps=10", "--yes")
    assert folder.states == ["finished"] * 8
    assert all(result["device"].startswith("NVIDIA H100") for result in folder.results)
    table = folder.ablate("table", "quickstart+train.steps=10", "--format", "json").out
    [column] = json.loads(table)["columns"]
    rows = {entry["row"]: entry["accuracy"]["n"] for entry in column["entries"]}
    names = ("plain ViT", "Dual PatchNorm", "RMSNorm in the blocks", "patch whitening")
    assert rows == dict.fromkeys(names, 2)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_train_up_to_their_first_comparison(folder: Folder, ranks: int):
    """It is at an epoch's end. Weights are whatever lay in memory, so they may differ there."""
    words = (*SMALL, "train.steps=20", "launcher.attempts=1", "train.micro_batch=8")
    variables = {"NULL_GPU_COUNT": str(ranks)}
    done = folder.ablate("sweep", *words, f"launcher.gpus_per_run={ranks}", code=None, **variables)
    logs = [log.read_text() for log in folder.path.glob("runs/runs/*/log.txt")]
    assert len(logs) == 2
    for log in logs:
        assert "step 18" in log  # its evaluation, or that weights differ
    assert "died" not in done.out


def test_two_runs_share_a_gpu(folder: Folder):
    folder.ablate("sweep", *SMALL, "train.steps=40", "launcher.runs_per_gpu=2")
    assert folder.states == ["finished"] * 2
    slots = [d["slot"] for events in folder.events for kind, d in events if kind == "started"]
    assert sorted(slots) == ["gpu:0.0", "gpu:0.1"]


@pytest.mark.parametrize(("gigabytes", "images"), [(24, 256), (80, 512)])
def test_micro_batches_are_settled_by_what_fits(folder: Folder, gigabytes: int, images: int):
    words = (*LARGE, "train.micro_batch=auto")
    done = folder.ablate("sweep", *words, NULL_GPU_GB=str(gigabytes))
    line = rf"auto is {images} on gpu:0, where [\d.]+ of {gigabytes}\.0 GB were free"
    assert re.search(line, done.out)
    assert folder.states == ["finished"] * 2
    assert {result["micro_batch"] for result in folder.results} == {images}
    for result in folder.results:
        assert gigabytes / 2 < result["peak_bytes"] / 1e9 < gigabytes


def test_a_batch_that_does_not_fit_is_tried_once_more_alone(folder: Folder):
    folder.ablate("sweep", *LARGE, "train.micro_batch=null", code=1, NULL_GPU_GB="24")
    for events in folder.events:
        kinds = [kind for kind, _ in events]
        assert kinds.count("started") == 2
    assert folder.states == ["oom"] * 2


@pytest.mark.parametrize(("code", "name"), [(214, "uncorrectable ECC"), (100, "No CUDA GPUs")])
def test_a_gpu_that_fails_at_once_is_not_used(folder: Folder, code: int, name: str):
    done = folder.ablate("sweep", *SMALL, code=1, NULL_GPU_FAULT=str(code))
    [line] = [line for line in done.err.splitlines() if line.startswith("ablate: ")]
    assert "gpu:0" in line
    assert name in line
    assert not (folder.path / "runs" / "runs").exists()


# By the table in ablate/training/faults.py: whether the device or the run is to blame.
FAULTS = {214: "device lost", 719: "device lost", 100: "no device", 700: "failed"}


@pytest.mark.parametrize("code", FAULTS)
def test_an_error_of_a_gpu_is_the_devices_or_the_runs(folder: Folder, code: int):
    """From the 1,500th launch of a process on, which no check before the first run comes to."""
    fault = f"{code}@1500"
    folder.ablate("sweep", *SMALL, "train.steps=60", code=1, NULL_GPU_FAULT=fault)
    reasons = [d["reason"] for events in folder.events for _, d in events if "reason" in d]
    assert {*reasons} == {FAULTS[code]}
    expected = "failed" if FAULTS[code] == "failed" else "interrupted"
    assert expected in folder.states
    folder.ablate("sweep", *SMALL, "train.steps=60", "--retry", "failed")
    assert folder.states == ["finished"] * 2


def test_runs_of_a_gpu_that_fails_finish_on_another(folder: Folder):
    variables = {"NULL_GPU_COUNT": "2", "NULL_GPU_FAULT": "719@1500", "NULL_GPU_FAULTY": "GPU-1"}
    folder.ablate("sweep", *SMALL, "train.steps=60", "launcher.runs_per_gpu=1", **variables)
    assert folder.states == ["finished"] * 2


def test_doctor_looks_at_a_checkout_that_is_not_installed(folder: Folder):
    """Here alone a checkout is run by its path. No memory is computed: resume need not be exact."""
    done = folder.ablate("doctor", "train.steps=10", code=None)
    assert "not installed" in done.out
    problems = [line for line in done.out.splitlines() if line.startswith("problem")]
    assert [line.split()[1] for line in problems] in ([], ["resume"])
    assert "Traceback" not in done.out + done.err
    assert "NVIDIA H100" in done.out
