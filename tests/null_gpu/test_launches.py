"""A step launches what benchmarks/results/launches.txt says, and waits for nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings

import counters
import launches
import pytest
import torch

from ablate.data import draws

FIGURES = re.compile(
    r"(.{26,}?) +([\d.]+) kernels +([\d.]+) products +([\d.]+) waits +([\d.]+) copies"
)
WAITING = {"adafactor": 64}  # torch's reads two numbers of each tensor; documented


def rows(text: str) -> dict[tuple[str, str], tuple[float, ...]]:
    """Return (kernels, products, waits, copies) by section and name."""
    section, figures = "", {}
    for line in text.splitlines():
        if line.startswith("== "):
            section = line.removeprefix("== ")
        elif match := FIGURES.match(line):
            name, *numbers = match.groups()
            figures[section, name.strip()] = tuple(map(float, numbers))
    return figures


@pytest.mark.timeout(600)
def test_a_step_launches_what_the_page_says():
    """In a process of its own, which forks one a run before it uses the GPU."""
    words = [sys.executable, launches.__file__]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    written = launches.PAGE.read_text().splitlines()
    assert printed.splitlines() == written, "launches.py --reprint writes it"


def test_no_step_waits_for_the_gpu_or_copies_to_the_host():
    figures = rows(launches.PAGE.read_text())
    steps = {place: row for place, row in figures.items() if place[0] != launches.EVALUATION}
    assert len(steps) == sum(map(len, launches.sections().values())) - 3
    for (_, name), (_, _, waits, copies) in steps.items():
        assert waits == copies == WAITING.get(name, 0), name


def test_dropout_is_one_launch_each_way_and_falls_back_where_its_bits_differ(monkeypatch):
    """On a GPU the kernel is tried once a process; nothing is computed here, so that its bits
    differ is given."""
    device = torch.device("cuda", 0)
    draw = draws.Draws(0, device)
    draw.lanes("mask", 1, range(8), 4096)
    counters.reset()
    draw.lanes("mask", 1, range(8), 4096)
    by_kernel = counters.read()["launches"]
    monkeypatch.setattr(torch, "equal", lambda one, other: False)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert draws.kernel_on.checked(device) is None
    assert any("triton" in str(warning.message) for warning in warned)
    counters.reset()
    step, numbers = torch.full((), 1, device=device), torch.arange(8, device=device)
    counters.reset()
    draw.lanes_by_operations(draw.secret("mask"), step, numbers, 4096)
    assert by_kernel <= 3  # of which two are its arguments'
    assert counters.read()["launches"] > 50


def test_memory_of_an_evaluation_stays_on_the_gpu_without_an_index():
    """`torch.device("cuda")` has none, while the tensors on it have."""
    words = launches.SMALL
    training, _ = launches.begin(words, torch.device("cpu"))
    without_index = launches.Training(training.run, training.train, torch.device("cuda"))
    assert without_index.device == torch.device("cuda", 0)
    on_gpu = training.train.take(slice(64)).to(torch.device("cuda"))
    without_index.evaluate(on_gpu)
