"""`import ablate`: a sweep, its runs and its table from Python, beside what the commands say."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pages import PAGES

import ablate
from ablate.planning.design import Fixed, Looks
from ablate.shared.errors import Failure, UserError

WORDS = ("recipe=quick", "data=digits", "stem=none,dpn", "model.depth=1")
SHORT = {"train": {"epochs": 2}, "launcher": "inline"}


def test_a_sweep_is_trained_read_and_resumed_as_by_the_commands(here, shell, capsys):
    sweep = ablate.Sweep(*WORDS, seeds=3, **SHORT)
    assert isinstance(sweep.design, Fixed)
    assert {run.status for run in sweep.train().runs()} == {"finished"}
    capsys.readouterr()

    facts = {
        (fact["row"], fact["quantity"]): float(fact["value"])
        for fact in shell.facts()
        if fact["row"] and fact["value"] and not fact["seed"]
    }
    frame = sweep.table().to_pandas().set_index("row")
    assert list(frame.index) == ["none", "dpn"]
    for row, quantity, column in (("none", "top1", "mean"), ("dpn", "gain", "gain")):
        assert frame.loc[row, column] == pytest.approx(facts[row, quantity])
        assert frame.loc[row, f"{column}_low"] == pytest.approx(facts[row, f"{quantity}.low"])
    assert sweep.table().verdicts.keys() == {("dpn", "")}
    assert str(sweep.table()) == shell("table", "--format", "md").out

    def written() -> list[int]:
        return [path.stat().st_mtime_ns for path in sorted(here.rglob("result.json"))]

    before = written()
    again = ablate.Sweep(*WORDS, seeds=3, **SHORT).train()
    assert written() == before
    runs = {run.id: run for run in again.runs()}
    plan = json.loads((here / "runs" / "sweeps" / f"{sweep.name}.json").read_bytes())
    assert {run for cell in plan["cells"] for run in cell["ids"].values()} == runs.keys()
    for run in runs.values():
        assert run.metrics == json.loads((run.folder / "result.json").read_bytes())["test"]
        assert run.config["stem"]["name"] == run.row
        assert run.label == f"{run.row}#{run.seed}"

    store = ablate.Store(here / "runs")
    assert store.sweeps == [sweep.name]
    assert list(store.sweep(sweep.name).to_pandas().id) == [*runs]
    shell("export", "out")
    bundle = ablate.Store(here / "out")
    assert len(bundle.sweeps) == 1
    assert bundle.sweep().table().to_pandas().equals(sweep.table().to_pandas())
    with pytest.raises(UserError, match="give Sweep the words"):  # opened by its name alone
        store.sweep().train()


def test_the_page_is_right(here):
    [code] = re.findall(r"```python\n(.*?)```", PAGES["docs/python.md"], re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("seeds=3", 'seeds=3, launcher="inline"'), names)
    assert list(names["gains"].row) == ["none", "dpn"]
    assert len(names["runs"]) == 6
    assert ablate.__all__ == sorted(
        re.findall(r"^\| `(\w+)", PAGES["docs/python.md"], re.MULTILINE)
    )


def test_words_are_those_of_the_command_and_so_are_their_mistakes(here):
    sweep = ablate.Sweep("stem=none,dpn", data="digits", until=8, optim={"lr": 1e-3})
    assert isinstance(sweep.design, Looks)
    assert "optim.lr=0.001" in sweep.plan.words
    keys = {"stem": ("none", "dpn"), "probe": ["gradnorm"], "block": {"attn": ("pre", "post")}}
    words = ("stem=none,dpn", "probe=[gradnorm]", "block.attn=pre,post")
    plan, same = (ablate.Sweep(*w, seeds=[3, 5], **k).plan for w, k in (((), keys), (words, {})))
    assert (plan.cells, plan.seeds) == (same.cells, (3, 5))
    assert [row.label for row in plan.rows][:2] == ["none · pre", "none · post"]
    with pytest.raises(UserError, match="did you mean"):
        ablate.Sweep("stem=none,dpm")
    with pytest.raises(UserError, match=r"train\.stepz"):
        ablate.Sweep("stem=none,dpn", train={"stepz": 1})
    with pytest.raises(UserError):
        ablate.Store(here / "nowhere").sweep()
    assert not (here / "runs" / "ledger.db").exists()


def test_runs_that_fail_are_a_failure(users):
    users(
        {
            "conf/trainer/bad.yaml": "name: bad:main\nkeys: {lr: 0.1}\n"
            "metrics: {accuracy: {direction: more}}\n",
            "bad.py": "def main(settings, run):\n    raise RuntimeError('no')\n",
        }
    )
    with pytest.raises(Failure, match="failed of 2 runs"):
        ablate.Sweep("trainer=bad", "trainer.lr=0.1,0.2", seeds=1, launcher="inline").train()


def test_import_ablate_takes_nothing_along():
    told = "import sys, ablate; print(sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert not {"numpy", "torch", "hydra", "pandas", "rich", "typing"} & {*eval(done.stdout)}
    assert (Path(ablate.__file__).parent / "py.typed").exists()
