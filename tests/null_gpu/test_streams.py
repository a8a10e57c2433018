"""The inputs of the next step are computed on a stream of their own, and no access of the two
streams to one tensor is without an order between them.

torch's own sanitizer (torch.cuda._sanitizer) follows every launch, event and wait, and needs no
result, so it finds on a null GPU what it would on a real one.
"""

from __future__ import annotations

import subprocess
import sys

import launches
import pytest

STEPS = 4
MIXED = "augment.mixup=0.2 augment.cutmix=1 augment.erase=0.25"
TASKS = launches.sections()["task"]
CASES = [  # the words of a run, and where its images are
    (launches.changed(launches.SMALL, MIXED), "cuda"),
    (launches.changed(launches.SMALL, "train.micro_batch=16"), "cpu"),
    (TASKS["segment"], "cuda"),
    (TASKS["contrastive"], "cpu"),
]


def sanitized(words: str, place: str, breaks: str = "") -> subprocess.CompletedProcess[str]:
    """Train the run of these words for some steps under the sanitizer, its images on `place`, in a
    process of its own: the sanitizer can't be switched off. `breaks`: Python that runs before."""
    script = f"""
import sys; sys.path.insert(0, {str(launches.__file__).rsplit("/", 1)[0]!r})
import torch
import torch.cuda._sanitizer as sanitizer
sanitizer.enable_cuda_sanitizer()
import launches
{breaks}
training, _ = launches.begin({words!r}, torch.device({place!r}))
for _ in range({STEPS}):
    training.step()
"""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(("words", "place"), CASES)
def test_no_access_is_without_an_order(words: str, place: str):
    done = sanitized(words, place)
    assert done.returncode == 0, done.stderr


def test_a_missing_wait_is_seen():
    breaks = "torch.cuda.Stream.wait_stream = lambda self, stream: None"
    done = sanitized(launches.SMALL, "cuda", breaks)
    assert done.returncode != 0
    assert "data race" in done.stderr
