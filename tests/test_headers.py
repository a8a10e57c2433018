"""The header of a shipped sweep says what it takes on an H100: `ablate plan --on h100` says the
same, without the data. Costs on an A100: test_middle_scale."""

from __future__ import annotations

import json
import re

import pytest
from conftest import REPOSITORY, Shell

COST = re.compile(
    r"^# ablate sweep (\w+)(?: --scale (\w+))? .*?([\d,]+) (minutes|hours) of an H100\b",
    re.MULTILINE,
)
COSTS = [
    cost
    for file in sorted((REPOSITORY / "sweeps").glob("*.yaml"))
    for cost in COST.findall(file.read_text())
]


PLANNED_AT_ONCE = (("figure1", "small"), ("table1", "small"))  # the others have many large models


def test_some_headers_have_a_cost():
    assert len(COSTS) > 12


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "scale", "number", "unit"),
    [
        pytest.param(*cost, marks=[pytest.mark.slow] * (cost[:2] not in PLANNED_AT_ONCE))
        for cost in COSTS
    ],
)
def test_the_cost_on_an_h100_is_that_of_plan(
    shell: Shell, name: str, scale: str, number: str, unit: str
):
    words = ("--scale", scale) if scale else ()
    plan = json.loads(shell("plan", name, *words, "--on", "h100", "--format", "json").out)
    seconds = plan["left"]["device_seconds"]
    expected = round(seconds / 60) if unit == "minutes" else float(f"{seconds / 3600:.2g}")
    assert int(number.replace(",", "")) == expected
