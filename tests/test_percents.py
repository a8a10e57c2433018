"""Metrics in %: shares, unless `scale: 1` says that they are percents; for programs, functions and
metrics of the user's own, from the plan to the table."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ablate.planning.analysis_keys import attributes
from ablate.run.own import declared_metric
from ablate.shared.errors import UserError

WORDS = ("sweep", "trainer=p", "trainer.v=0,1", "seeds=2")
PROGRAM = "import sys\nprint(f'Accuracy: 5{sys.argv[1]}%')\n"
FUNCTION = "def main(settings, run):\n    run.result(acc=50 + run.seed)\n"
YAMLS = {
    "program": {
        "command": "python p.py {seed} {v}",
        "keys": {"v": 0},
        "result": {"lines": r"Accuracy: (?P<acc>\d+)%"},
        "code": ["p.py"],
    },
    "function": {"name": "p:main", "keys": {"v": 0}, "fork_safe": True},
}


def declare(folder, kind: str, **metric: object) -> None:
    (folder / "p.py").write_text(PROGRAM if kind == "program" else FUNCTION)
    (folder / "conf" / "trainer").mkdir(parents=True, exist_ok=True)
    said = YAMLS[kind] | {"metrics": {"acc": {"direction": "more", "unit": "%", **metric}}}
    (folder / "conf" / "trainer" / "p.yaml").write_text(json.dumps(said))


def trained(folder) -> dict[str, int]:
    """When each result was written, by its run."""
    found = (folder / "runs" / "runs").glob("*/result.json")
    return {path.parent.name: path.stat().st_mtime_ns for path in found}


@pytest.fixture(params=YAMLS)
def kind(request, shell, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return request.param


def one_line(err: str, *parts: str) -> None:
    assert err.count("\n") <= 1, err
    assert all(part in err for part in parts), err


@pytest.mark.whole
def test_percents_where_shares_are_declared_stop_the_sweep_and_are_kept(shell, kind):
    declare(shell.folder, kind)
    done = shell(*WORDS, "launcher=inline", code=2)
    one_line(done.err, "run v=0#0: acc: 50 ", "`scale: 1`")
    first = trained(shell.folder)
    assert len(first) == 1
    one_line(shell("table", code=2).err, "run v=0#0: acc: 50 ", "`scale: 1`")
    shell(*WORDS, "launcher=inline", code=2)  # nothing more is trained in vain
    assert trained(shell.folder) == first
    declare(shell.folder, kind, scale=1)
    shell(*WORDS, "launcher=inline")
    assert len(trained(shell.folder)) == 4
    assert first.items() <= trained(shell.folder).items()
    means = [fact for fact in shell.facts() if fact["quantity"] == "acc"]
    assert [float(fact["value"]) for fact in means] == [50.5, 50.5]


def test_percents_outside_a_declared_range_fail_the_first_run_and_stop_the_sweep(shell, kind):
    declare(shell.folder, kind, range=[0, 1])
    done = shell(*WORDS, "launcher=inline", code=2)
    last = done.err.splitlines()[-1]  # after what the worker, in this process, logs of its error
    one_line(last, "run v=0#0: ", "acc: 50 lies outside its range [0.0, 1.0]", "`scale: 1`")
    assert done.out.count("failed: ") == 1
    assert not trained(shell.folder)


@pytest.mark.parametrize("said", [{"range": [0, 100]}, {"range": [0, 1], "chance": 10}])
def test_a_plan_refuses_percents_that_are_declared_as_shares(shell, said):
    declare(shell.folder, "function", **said)
    name = [*said][-1]
    value = "[0.0, 100.0]" if name == "range" else "10"
    one_line(shell("plan", *WORDS[1:], code=2).err, f"trainer.metrics.acc.{name}: ", value)
    declare(shell.folder, "function", **said | {"scale": 1, "range": [0, 100]})
    shell("plan", *WORDS[1:])


def test_the_attributes_of_a_function_follow_the_same_rule():
    for said in ({"range": (0, 100)}, {"chance": 10}, {"range": (None, 1.5)}):
        [name] = said
        with pytest.raises(UserError) as caught:
            attributes({"unit": "%", **said}, "own.py")
        one_line(str(caught.value), f"own.py: {name}: ", "`scale: 1`")
        attributes({"unit": "%", "scale": 1, **said}, "own.py")
        attributes({"unit": "s", **said}, "own.py")


def test_a_percent_is_shown_once_or_a_hundred_times():
    with pytest.raises(UserError) as caught:
        declared_metric("acc", {"direction": "more", "unit": "%", "scale": 10})
    one_line(str(caught.value), "trainer.metrics.acc.scale: 10", "100 or 1", "`scale: 1`")


@pytest.mark.whole
def test_shares_beyond_1_are_shares_where_a_range_allows_them(shell):
    declare(shell.folder, "function", range=[0, None])
    (shell.folder / "p.py").write_text(FUNCTION.replace("50 + run.seed", "1.25"))
    shell(*WORDS, "launcher=inline")
    means = [fact for fact in shell.facts() if fact["quantity"] == "acc"]
    assert [float(fact["value"]) for fact in means] == [125.0, 125.0]
