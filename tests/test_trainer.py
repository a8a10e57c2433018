"""A training loop of the user's own: planned, trained, killed, resumed and told of as ours is, by
real processes. What it computes is compared with files and with arithmetic done here."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import process_engine
import pytest
import torch
from conftest import Shell
from launcher_contract import settings, until
from pages import blocks
from test_kill import freeze, kill, thaw, wait_for, workers

from ablate.audit import export
from ablate.audit.doctor import resume_check
from ablate.planning import compose, expand
from ablate.running.launchers import Slot, pilots
from ablate.running.launchers import pilots as engines
from ablate.shared import own, spec
from ablate.shared.errors import UserError
from ablate.shared.own import OwnRun
from ablate.shared.rundir import RunDir
from ablate.shared.trainer import any_run
from ablate.store import attempts
from ablate.store.store import Store
from ablate.training.answers import ANSWERS
from ablate.training.own import handle as states
from ablate.training.own import work

FILES = blocks("file")
INLINE = "launcher=inline"

# A trainer that takes no time: its score is a function of settings and seed, which tests compute.
TOY = """
import helper


def main(settings, run):
    state = run.resume() or {"step": 0, "sum": 0.0}
    for step in range(state["step"], settings["steps"]):
        state = {"step": step + 1, "sum": state["sum"] + run.rng("draw", step).random()}
        run.log(step + 1, train_loss=1.0 / (step + 1), score=helper.score(settings["lr"], state))
        run.save(state)
    score = helper.score(settings["lr"], state)
    run.result(score=score, other=-score, predictions=[score])
"""
HELPER = """
def score(lr, state):
    return 1 - (lr - 0.3) ** 2 + state["sum"] / 100
"""
YAML = """
name: toy:main
keys:
  steps: 3
  lr: 0.1
  mode: {default: a, choices: [a, b]}
  clip: {default: null, type: float}
  deep: {default: 2, nullable: true}
  sizes: [1, 2]
metrics:
  score: {direction: more, range: [0, null], chance: 0.2, decimals: 3}
  other: {direction: less, unit: "%"}
fork_safe: true
"""


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        place = folder / name.replace("__", "/").replace("_yaml", ".yaml").replace("_py", ".py")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


@pytest.fixture
def toy(tmp_path, monkeypatch) -> Path:
    """The user's folder, in which this process works."""
    write(tmp_path, toy_py=TOY, helper_py=HELPER, conf__trainer__toy_yaml=YAML)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(*words: str):
    return expand.plan(["trainer=toy", *words], store=Path("runs"))[0]


def ids(*words: str) -> list[str]:
    return [run.id for run in made(*words).runs()]


def results(folder: Path) -> dict[str, dict[str, object]]:
    """By run: what it left, but for times and machine."""
    found = {}
    for path in sorted((folder / "runs" / "runs").glob("*/result.json")):
        tree = json.loads(path.read_text())
        kept = ("status", "step", "test", "validation", "metrics_sha256", "predictions_sha256")
        found[path.parent.name] = {
            **{key: tree[key] for key in (*kept, "plugins", "digest", "declared") if key in tree},
            "metrics": (path.parent / "metrics.jsonl").read_bytes(),
        }
    return found


# --- What is planned ----------------------------------------------------------------------------


def refused(*words: str) -> str:
    with pytest.raises(UserError) as error:
        made(*words)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_keys_are_checked_by_their_defaults(toy):
    cell = made("trainer.lr=1,0.5", "trainer.mode=b", "trainer.clip=2").cells[0]
    assert cell.spec["trainer"] == {
        **{"name": "toy:main", "steps": 3, "lr": 1.0, "mode": "b", "clip": 2.0},
        **{"deep": 2, "sizes": [1, 2]},
    }
    assert type(cell.spec["trainer"]["lr"]) is float
    for word, line in {
        "trainer.steps=1.5,2": "trainer.steps: expected a whole number, got 1.5",
        "trainer.lr=null,1": "trainer.lr: expected a number, got None",
        "trainer.sizes=1,2": "trainer.sizes: expected a list, got 1",
        "norm=rmsnorm,layernorm": "norm: applies to no run of trainer=toy, .* and a seed$",
        "optim.lr=0.1,0.2": "optim.lr: applies to no run of trainer=toy, .*mean trainer.lr\\?$",
        "lr=0.1,0.2": "lr: .*did you mean trainer.lr\\?$",
        "from.recipe=quick,cifar": "from.recipe: applies to no run of trainer=toy",
    }.items():
        assert re.search(line, refused(word)), word
    made("trainer.deep=null,3")


def test_without_a_yaml_the_error_says_what_to_write(toy):
    with pytest.raises(UserError, match=r"toy:main: has to be declared: write .*conf/trainer/toy"):
        expand.plan(["trainer=toy:main", "trainer.lr=1,2"], store=Path("runs"))
    with pytest.raises(UserError, match=r"trainer\.lr: of which trainer"):
        expand.plan(["trainer.lr=1,2"], store=Path("runs"))
    with pytest.raises(UserError, match="did you mean 'toy'"):
        expand.plan(["trainer=tou", "trainer.lr=1,2"], store=Path("runs"))


def test_a_yaml_with_a_mistake_is_one_line(toy):
    for before, after, line in (
        ("  score: {direction", "  score: {way", "score.way: expected a key among name"),
        ("direction: more, ", "", r"score\.direction: missing; which values are better"),
        ("direction: more", "direction: up", r"score\.direction: expected one of more, less"),
        ("[0, null]", "[1, 0]", r"score\.range: expected \[least, most\], .*got \[1, 0\]"),
        ("chance: 0.2", "chance: -1", r"score\.chance: -1 lies outside its range"),
        ("  score:", "  n:", r"metrics\.n: expected a name such as accuracy"),
        ("{default: null, type: float}", "null", r"keys\.clip: null has no type: write \{default"),
        ("default: a,", "default: c,", r"keys\.mode\.default: expected one of a, b, got 'c'"),
        ("toy:main", "toy.main", "trainer.name: expected module:function, got 'toy.main'"),
        ("toy:main", "tooy:main", r"no tooy\.py in .*; start ablate where it lies"),
        ("fork_safe: true", "fork_safe: 1", "fork_safe: expected true or false, got 1"),
        ("fork_safe: true", "forksafe: true", "trainer.forksafe: expected in .*did you mean"),
    ):
        assert before in YAML
        write(toy, conf__trainer__toy_yaml=YAML.replace(before, after, 1))
        assert re.search(line, refused("trainer.steps=1,2")), after


def test_what_a_metric_is_called_is_no_part_of_an_id_but_its_reading_is(toy):
    before = ids("trainer.lr=0.1,0.2")
    for old, new, same in (
        ("decimals: 3", "decimals: 1, name: points", True),
        ("chance: 0.2", "chance: 0.3", False),
        ("direction: less", "direction: more", False),
        ("other:", "another:", False),
        ("fork_safe: true", "fork_safe: false", True),
    ):
        write(toy, conf__trainer__toy_yaml=YAML.replace(old, new))
        assert (ids("trainer.lr=0.1,0.2") == before) is same, new


def test_the_versions_of_what_it_imports_are_in_the_id(toy, monkeypatch):
    import importlib.metadata as metadata

    write(toy, helper_py="import json\nimport numpy.linalg\n" + HELPER)
    before = ids("trainer.lr=0.1,0.2")
    version = metadata.version("numpy")
    assert made("trainer.lr=0.1,0.2").cells[0].spec["code"]["packages"] == {"numpy": version}
    monkeypatch.setattr(metadata, "version", lambda name: "9.9.9+cpu")
    assert made("trainer.lr=0.1,0.2").cells[0].spec["code"]["packages"] == {"numpy": "9.9.9"}
    assert not set(ids("trainer.lr=0.1,0.2")) & set(before)


def test_the_tree_of_a_run_stands_for_itself(toy):
    tree, run = compose.resolve(["trainer=toy", "trainer.lr=0.2", "seed=3"], Path("runs"))
    for path in (toy / "toy.py", toy / "conf" / "trainer" / "toy.yaml"):
        path.unlink()
    again = json.loads(json.dumps(tree))
    assert isinstance(any_run(again), OwnRun)
    assert spec.to_tree(any_run(again)) == tree
    assert spec.run_id(spec.tree_identity(again), 3) == run
    first, other = spec.task_in(again).metrics
    assert (first.key, first.sign, first.chance(0), first.text(1 / 3)) == ("score", 1, 0.2, "0.333")
    assert (other.key, other.sign, other.unit, other.told(0.5)) == ("other", -1, "%", "50.00 %")
    assert (own.worst_of(again, "score"), own.worst_of(again, "other")) == (0.2, None)
    again["metrics"][0]["chance"] = None
    assert own.worst_of(again, "score") == 0  # the worse end of its range


# --- What is trained ----------------------------------------------------------------------------


def expected(lr: float, seed: int, steps: int = 3) -> float:
    """The toy's score, from the generators that the documentation promises: one a place."""
    from hashlib import blake2b

    total = 0.0
    for step in range(steps):
        place = "\x1f".join(map(str, ("trainer", seed, "rng", "draw", step))).encode()
        key = int.from_bytes(blake2b(place, digest_size=8).digest(), "little") >> 1
        total += np.random.Generator(np.random.Philox(key=key)).random()
    return 1 - (lr - 0.3) ** 2 + total / 100


def test_a_sweep_of_it_is_tabulated_verified_and_bundled(toy, shell, monkeypatch):
    shell("sweep", "trainer=toy", "trainer.lr=0.1,0.3", "seeds=3", INLINE)
    table = csv.DictReader(shell("table", "--format", "csv").out.splitlines())
    told = {(r["row"], r["seed"]): float(r["value"]) for r in table if r["quantity"] == "score.run"}
    for row in ("0.1", "0.3"):
        for seed in range(3):
            assert told[row, str(seed)] == pytest.approx(expected(float(row), seed), abs=1e-12)
    shown = shell("table", "--show", "accuracy,other,cost").out
    assert "other %" in shown
    assert "tested by their trainer" in shown
    assert (
        "analysis.metric: expected one of score" in shell("table", "analysis.metric=x", code=2).err
    )
    assert "lower being better" in shell("table", "analysis.metric=other").out
    for words in (("status",), ("report",), ("plot", "curves"), ("plot", "gain"), ("gc", "--yes")):
        shell(*words)
    told = [line[20:] for line in shell("show", "0.1#0", "--log").out.splitlines()]
    losses = enumerate(("1", "0.5", "0.333333"), 1)
    lines = [f"step {step}: train_loss {loss}" for step, loss in losses]
    assert [line.partition(", val_score ")[0] for line in told] == lines
    about = shell("show", "0.1#0")
    assert "val_score" in about.out
    assert "files: {helper.py:" in about.out
    assert "trainer.lr  0.1  0.3" in shell("show", "0.1#0", "--against", "0.3#0").out
    assert "6 runs" in shell("verify").out
    assert "the same bits" in shell("verify", "--rerun", "0.1#0", INLINE).out
    monkeypatch.setattr(export, "figures", lambda *_: {})  # which take the longest
    shell("export", "bundle", "--anonymous")
    assert "nothing wrong" in shell("verify", "bundle").out
    assert str(toy) not in (toy / "bundle" / "sweep.json").read_text()
    path = next((toy / "runs" / "runs").glob("*/result.json"))
    path.write_text(path.read_text().replace('"score": ', '"score": 1'))
    assert "result.json" in shell("verify", code=1).out


def test_a_search_over_a_key_of_it(toy, shell):
    sweep = """
        base: {trainer: toy}
        variants: [a: {trainer.mode: a}, b: {trainer.mode: b}]
        seeds: 2
        tune: {space: {trainer.lr: {uniform: [0.05, 0.6]}}, trials: 6, repeats: 1}
    """
    write(toy, sweeps__rates_yaml=sweep)
    done = shell("sweep", "rates", INLINE)
    assert "trainer.lr" in done.out
    table = json.loads(shell("table", "--format", "json").out)
    [column] = table["columns"]
    for entry in column["entries"]:
        for choice in entry["chosen"]:
            assert abs(choice["params"]["trainer.lr"] - 0.3) < 0.15  # where the score is the best
    assert "nothing wrong" in shell("verify").out
    text = TOY.replace(', score=helper.score(settings["lr"], state))', ")")
    write(toy, toy_py=text)
    line = "a trial logged no score, by which trials are judged; call run.log(step, score=...)"
    done = shell("sweep", "rates", "--as", "blind", "tune.trials=5", INLINE, code=2)
    assert line in done.err


def half_trained(folder: Path) -> list[int]:
    """Workers at work, frozen, one of whose runs has a state and no result; else they go on."""
    pids = freeze(workers(folder))
    saved = {path.parent for path in (folder / "runs" / "runs").glob("*/checkpoint-*")}
    if pids and any(not (path / "result.json").exists() for path in saved):
        return pids
    thaw(pids)
    return []


@pytest.mark.faults
def test_two_variants_and_three_seeds_of_the_language_model_killed_twice(tmp_path):
    """kill -9 of driver and workers, each time once another run has finished and another is half
    trained: byte for byte what nobody disturbed. A state is saved at every step."""
    shells = []
    for name in ("calm", "killed"):
        shell = Shell(tmp_path / name)
        for file in ("chars.py", "conf/trainer/chars.yaml"):
            (shell.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (shell.folder / file).write_text(FILES[file])
        shells.append(shell)
    calm, killed = shells
    short = ("trainer.steps=40", "trainer.depth=1", "seeds=3")
    words = ("sweep", "trainer=chars", "trainer.act=gelu,tanh", *short)
    calm(*words, INLINE)
    runs = killed.folder / "runs" / "runs"
    for kills in (1, 2):
        driver = killed.start(*words, "launcher.checkpoint_s=0.01", "launcher.attempts=9")
        wait_for(lambda n=kills: len(list(runs.glob("*/result.json"))) >= 2 * n - 1)
        kill([driver.pid, *wait_for(lambda: half_trained(killed.folder))])
        driver.wait()
        assert driver.returncode != 0
    killed(*words, INLINE)
    assert len(results(calm.folder)) == 6
    assert results(killed.folder) == results(calm.folder)
    tables = [s("table", "--format", "csv").out for s in (calm, killed)]
    assert tables[0] == tables[1]
    begun = [
        attempt["from_step"]
        for path in runs.glob("*/env.json")
        for attempt in json.loads(path.read_text())["attempts"]
    ]
    assert len(begun) > 6  # some were tried twice,
    assert any(begun)  # and went on from a state


FOREST = """
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split


def main(settings, run):
    images, labels = load_digits(return_X_y=True)
    images, test, labels, test_labels = train_test_split(
        images, labels, test_size=500, random_state=0
    )
    images, val, labels, val_labels = train_test_split(
        images, labels, test_size=300, random_state=0
    )
    model = RandomForestClassifier(
        settings["trees"],
        max_depth=settings["depth"],
        random_state=int(run.rng("forest").integers(2**31)),
    )
    model.fit(images, labels)
    run.log(1, accuracy=model.score(val, val_labels))
    predicted = model.predict(test)
    run.result(accuracy=(predicted == test_labels).mean(), n=len(test), predictions=predicted)
"""
FOREST_YAML = """
# A random forest on the digits of scikit-learn
name: forest:main
keys:
  trees: 20
  depth: {default: null, type: int}
metrics:
  accuracy: {direction: more, unit: "%", range: [0, 1], chance: 0.1}
"""


def test_a_classifier_that_saves_nothing(tmp_path):
    """In fresh interpreters, without torch."""
    shell = Shell(tmp_path)
    write(
        tmp_path,
        forest_py=FOREST + "\n\nimport sys\n\nassert 'torch' not in sys.modules\n",
        conf__trainer__forest_yaml=FOREST_YAML,
    )
    done = shell("sweep", "trainer=forest", "trainer.trees=2,20", "seeds=1")
    low, high = (float(n) for n in re.findall(r"^\| \d+ \| ([\d.]+) ", done.out, re.M))
    assert 60 < low < high < 100
    for path in (tmp_path / "runs" / "runs").iterdir():
        packages = json.loads((path / "env.json").read_text())["attempts"][0]["packages"]
        assert packages.keys() == {"ablate-sweep", "numpy", "scikit-learn"}
        predictions = np.load(path / "predictions.npy")
        test = json.loads((path / "result.json").read_text())["test"]
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        _, labels = load_digits(return_X_y=True)
        _, labels = train_test_split(labels, test_size=500, random_state=0)
        assert test == {"accuracy": (predictions == labels).mean(), "n": 500}


# --- What goes wrong ----------------------------------------------------------------------------

WRONG = """
import os, resource, sys, time
from pathlib import Path


def main(settings, run):
    how = settings["how"]
    assert "torch" in sys.modules  # it says that it is fork-safe
    open("here", "w").write("x")  # into its own folder, wherever the sweep was started
    if how == "silent":
        return run.result(score=1.0)
    run.log(1, score=0.5)
    if how == "isnan":
        run.log(2, score=float("nan"))
    if how == "swallows":
        try:
            run.log(2, score=float("nan"))
        except BaseException:
            pass
    if how == "isinf":
        run.result(score=float("inf"))
    if how == "none":
        return None
    if how == "unknown":
        run.result(scor=1.0)
    if how == "lacks":
        run.result(n=3)
    if how == "text":
        run.result(score="good")
    if how == "range":
        run.result(score=-1)
    if how == "raises":
        raise KeyError("weights")
    if how == "long":
        raise ValueError("x" * 10**6)
    if how == "exits":
        sys.exit(3)
    if how == "saves":
        run.save({"model": [Path("x")]})
    if how == "hangs":
        time.sleep(600)
    if how == "eats":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + (256 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        held = [bytearray(1 << 26) for _ in range(99)]
    if how == "dies":
        os.kill(os.getpid(), 9)
    if how == "huge":
        run.log(10**30, score=0.5)
    if how == "far":
        run.progress(1, total=10**30)
    if how == "after":
        run.result(score=0.5)
        run.log(2, score=1.0)
    if how == "hidden":
        run.log(2, val_score=0.99)
    if how == "nobody":
        run.result(score=0.5, n=0)
    if how == "taken":
        os._exit(75)  # as who finds its folder taken
    if how == "gone":
        os._exit(79)
    if how == "stops":
        os.kill(os.getpid(), 15)
        return
    if how == "leaves":
        os.chdir("..")
        open("stray", "w").write("x")
        open(f"{os.getcwd()}/result.json", "w").write("{}")
    if how == "random":
        run.log(3, score=1.0)
        run.log(2, score=1.0)
    run.result(score=0.75)
"""
LINES = {
    "hangs": r"hung: hangs#0: no sign of life for 6 s",  # first: others go on meanwhile
    "isnan": r"diverged at step 2: isnan#0",
    "swallows": r"diverged at step 2: swallows#0",
    "isinf": r"diverged at step 1: isinf#0",
    "none": r"failed: none#0: .*returned without a result: call run.result\(score=\.\.\.\)",
    "unknown": r"failed: unknown#0: wrong.py:\d+: run.result: scor: .*did you mean 'score'",
    "lacks": r"failed: lacks#0: wrong.py:\d+: run.result: lacks score, which its yaml declares",
    "text": r"failed: text#0: wrong.py:\d+: run.result: score: expected a number, got 'good'",
    "range": r"failed: range#0: wrong.py:\d+: .*-1 lies outside its range \[0.0, 1.0\]",
    "raises": r"failed: raises#0: wrong.py:\d+: KeyError: 'weights'",
    "long": r"failed: long#0: wrong.py:\d+: ValueError: x{480,490}\.\.\. \(see ",
    "exits": r"failed: exits#0: wrong.py:\d+: RuntimeError: the trainer called sys.exit\(3\)",
    "saves": r"failed: saves#0: wrong.py:\d+: run.save: state\['model'\]\[0\]: a PosixPath can't",
    "eats": r"oom: eats#0: wrong.py:\d+: MemoryError",
    "dies": r"died: dies#0: signal SIGKILL",
    "huge": r"failed: huge#0: wrong.py:\d+: run.log: step: 10+ is too large a number",
    "far": r"failed: far#0: wrong.py:\d+: run.progress: total: 10+ is too large a number",
    "after": r"failed: after#0: wrong.py:\d+: run.log: was called after run.result",
    "hidden": r"failed: hidden#0: wrong.py:\d+: run.log: val_score: is the name that values of sc",
    "nobody": r"failed: nobody#0: wrong.py:\d+: run.result: n: must be 1 example or more, got 0",
    "taken": r"failed: taken#0: exit code 75",
    "gone": r"failed: gone#0: exit code 79",
    "stops": r"failed: stops#0: its worker stopped, which nobody had asked it to",
    "random": r"failed: random#0: wrong.py:\d+: run.log: step 2 after step 3",
    "silent": r"finished: silent#0, which logged no validation",
}


@pytest.mark.faults
def test_what_a_trainer_does_wrong_is_one_line_and_harms_nothing_else(tmp_path):
    hows = ["good", *LINES, "leaves", "last"]
    write(
        tmp_path,
        wrong_py=WRONG,
        conf__trainer__wrong_yaml="name: wrong:main\n"
        f"keys: {{how: {{default: good, choices: [{', '.join(hows)}]}}}}\n"
        "metrics: {score: {direction: more, range: [0, 1]}}\nfork_safe: true\n",
    )
    shell = Shell(tmp_path)
    words = ("sweep", "trainer=wrong", f"trainer.how={','.join(hows)}", "seeds=1")
    short = ("launcher.hang_s=6", "launcher.attempts=1")
    out = shell.process(*words, *short, code=1).out
    for how, line in LINES.items():
        found = [text for text in out.splitlines() if re.search(line, text)]
        assert found, (how, out)
    for how in ("good", "last"):
        assert f"finished: {how}#0" in out
    assert not (tmp_path / "here").exists()
    places = {path.parent.name for path in (tmp_path / "runs" / "runs").glob("*/*/here")}
    assert places == {"scratch"}
    assert not [*tmp_path.glob("*/stray"), *tmp_path.glob("runs/stray")]
    table = shell("table").out
    assert re.search(r"\| last \| 0.75", table)


CHILDREN = """
import os, subprocess
from pathlib import Path

def main(settings, run):
    child = subprocess.Popen(["sleep", "1000"])
    (Path(__file__).parent / settings["how"]).write_text(str(child.pid))
    if settings["how"] == "dies":
        os.kill(os.getpid(), 9)
    run.result(score=0.5)
"""


def test_what_a_trainer_starts_ends_with_its_worker(tmp_path):
    write(
        tmp_path,
        starts_py=CHILDREN,
        conf__trainer__starts_yaml="name: starts:main\n"
        "keys: {how: {default: ends, choices: [ends, dies]}}\n"
        "metrics: {score: {direction: more, range: [0, 1]}}\nfork_safe: true\n",
    )
    words = ("trainer=starts", "trainer.how=ends,dies", "seeds=1", "launcher.attempts=1")
    Shell(tmp_path).process("sweep", *words, code=1)
    for how in ("ends", "dies"):
        end((tmp_path / how).read_text())


def test_what_a_trainer_starts_ends_with_a_worker_whose_driver_is_gone(tmp_path):
    words = [sys.executable, "-c", "import time; time.sleep(1000)"]
    script = (
        "import os, subprocess, sys; from ablate.training.own.work import _end_children; "
        f"os.setsid(); print(subprocess.Popen({words}).pid); _end_children()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, check=True, timeout=60
    )
    end(done.stdout.decode())


def end(pid: str) -> None:
    """Wait for it; one that nobody reaps has ended, too."""
    stat = Path(f"/proc/{pid.strip()}/stat")

    def ended() -> bool:
        try:
            return stat.read_text().rpartition(")")[2].split()[0] in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return True

    until(ended)


# --- Its code, its state, its checks ------------------------------------------------------------


def test_an_edit_between_plan_and_start_fails_and_is_never_trained_under_the_old_id(toy, shell):
    write(toy, toy_py=TOY.replace("import helper", "import helper, time"))
    text = "\nimport time\ntime.sleep(0)\n"
    plan = made("trainer.lr=0.1,0.2", "seeds=1")
    folder = RunDir(toy / "runs" / "runs" / next(plan.runs()).id)
    folder.create(next(plan.runs()).spec())
    write(toy, helper_py=HELPER + text)
    options = {"slot": "cpu", "device": "cpu", "threads": 1, "checkpoint_s": 60.0}
    assert work.here(str(folder.path), options) == 1
    assert folder.read_result() is None
    [attempt] = folder.read_attempts()
    assert "helper.py was edited after this run was planned" in attempt["error"]


def test_what_importlib_brings_is_told(toy, shell):
    write(
        toy,
        toy_py=TOY.replace(
            "import helper", "import importlib\nhelper = importlib.import_module('helper')"
        ),
    )
    shell("sweep", "trainer=toy", "trainer.lr=0.1,0.2", "seeds=2", INLINE)
    assert set(made("trainer.lr=0.1,0.2").cells[0].spec["code"]["files"]) == {"toy.py"}
    logs = [path.read_text() for path in (toy / "runs" / "runs").glob("*/log.txt")]
    assert all("helper.py was imported, which no import statement" in log for log in logs)
    assert len(logs) == 4
    found = [json.loads(p.read_text()) for p in (toy / "runs" / "runs").glob("*/result.json")]
    assert len({tree["plugins"]["trainer"] for tree in found}) == 1


def test_a_torn_state_gives_way_to_the_one_before(toy, shell):
    plan = made("trainer.lr=0.1,0.2", "trainer.steps=6", "seeds=1")
    planned = next(plan.runs())
    options = {"slot": "cpu", "device": "cpu", "threads": 1, "checkpoint_s": 0.0}
    torn = {}
    for name, damage in (("calm", 0), ("newest", 1), ("both", 2)):
        folder = RunDir(toy / name / planned.id)
        folder.create(planned.spec())
        pid = os.fork()
        if not pid:  # it ends as a kill would end it, once two states are there
            os._exit(work.here(str(folder.path), {**options, "saves": 2 if damage else None}))
        os.waitpid(pid, 0)
        found = [path for _, path in folder.checkpoints()]
        assert len(found) == (2 if damage else 0)
        for path in found[:damage]:
            content = bytearray(path.read_bytes())
            content[-3] ^= 1
            path.write_bytes(content)
        if damage:
            assert work.here(str(folder.path), options) == 0
            torn[name] = folder.read_attempts()[-1]["from_step"]
        assert (
            folder.metrics_content() == (toy / "calm" / planned.id / "metrics.jsonl").read_bytes()
        )
    assert torn == {"newest": 1, "both": 0}


def test_a_state_comes_back_bit_for_bit():
    linear = torch.nn.Linear(3, 2)
    adam = torch.optim.AdamW(linear.parameters())
    linear(torch.ones(1, 3)).sum().backward()
    adam.step()
    state = {
        "model": linear.state_dict(),
        "adam": adam.state_dict(),
        7: (1, -0.0, float("inf"), None, True, "x", b"\0\xff"),
        "big": 1 << 100,
        "half": torch.tensor([1.5, -0.0, float("nan")], dtype=torch.bfloat16),
        "none": torch.zeros(0, 3),
        "one": torch.tensor(3),
        "numpy": {
            "a": np.arange(6).reshape(2, 3)[:, ::-1],
            "s": np.float32(0.1),
            "b": np.array(True),
        },
        "rng": np.random.default_rng(0).bit_generator.state,
        "torch": torch.random.get_rng_state(),
    }
    found = states.decode(*states.encode(state))
    assert found.keys() == state.keys()
    assert found[7] == state[7]
    assert str(found[7][1]) == "-0.0"
    assert (found["big"], found["rng"]) == (state["big"], state["rng"])
    for name, tensor in state["model"].items():
        assert torch.equal(found["model"][name], tensor)
    assert str(found["adam"]) == str(state["adam"])
    for key in ("half", "none", "one", "torch"):
        assert found[key].dtype == state[key].dtype
        assert found[key].shape == state[key].shape
        bits = [one.reshape(-1).view(torch.uint8) for one in (found[key], state[key])]
        assert torch.equal(*bits)
    assert found["numpy"]["a"].tolist() == [[2, 1, 0], [5, 4, 3]]
    assert type(found["numpy"]["s"]) is np.float32
    assert found["numpy"]["b"].shape == ()
    with pytest.raises(UserError, match=r"state\['a'\]\[1\]: a set can't be saved"):
        states.encode({"a": [1, {2}]})


def compared(verb: str, question: dict) -> dict:
    """As a worker answers."""
    return ANSWERS[verb](question, lambda done, total: None)


def test_doctor_says_whether_a_kill_changes_its_bits(toy, shell):
    lines = {"toy": "resume is bit-exact: "}
    lines["stateless"] = "never calls run.save: .* starts again from nothing"
    lines["forgets"] = "calls run.save and never run.resume: .* starts again from nothing"
    lines["drifts"] = "resume is not bit-exact: .*so what it saves lacks some state"
    for name, text in {
        "stateless": TOY.replace("        run.save(state)\n", ""),
        "forgets": TOY.replace("run.resume() or ", ""),
        "drifts": TOY.replace("import helper", "import helper\nimport random").replace(
            'run.rng("draw", step).random()', "random.random()"
        ),
    }.items():
        write(toy, **{f"{name}_py": text})
        write(toy, **{f"conf__trainer__{name}_yaml": YAML.replace("toy:main", f"{name}:main")})
    told = json.loads(shell("doctor", "trainer=toy", "--format", "json").out)
    texts = [finding["text"] for finding in told["findings"] if finding["check"] == "resume"]
    assert re.search(lines.pop("toy"), " ".join(texts)), texts
    for name, line in lines.items():
        tree, _ = compose.resolve([f"trainer={name}", "trainer.steps=9"], Path("runs"))
        found = resume_check.resume_own(Slot("cpu", "cpu", "cpu"), name, tree, compared)
        assert re.search(line, " ".join(finding.text for finding in found)), name


# Until the file `slowly` is gone, which lies beside it.
SLOWLY = "        time.sleep(0.2 * os.path.exists(f'{os.path.dirname(__file__)}/slowly'))\n"


def test_a_stopped_run_saves_and_goes_on(toy, shell):
    (toy / "slowly").touch()
    slow = TOY.replace("import helper", "import helper, os, time").replace(
        "        run.save(state)\n", f"        run.save(state)\n{SLOWLY}"
    )
    write(toy, toy_py=slow)
    words = ("sweep", "trainer=toy", "trainer.lr=0.1,0.3", "trainer.steps=80", "seeds=1")
    driver = shell.start(*words)
    runs = toy / "runs" / "runs"
    begun = lambda path: path.stat().st_size > 200  # noqa: E731
    wait_for(lambda: len([*filter(begun, runs.glob("*/metrics.jsonl"))]) == 2)
    driver.terminate()
    assert "stopped after 0 of 2" in shell.end(driver).out
    assert len([*runs.glob("*/checkpoint-*")]) == 2
    (toy / "slowly").unlink()
    shell(*words, INLINE)
    for path in runs.iterdir():
        tree = json.loads((path / "result.json").read_text())
        lr = json.loads((path / "run.json").read_text())["spec"]["trainer"]["lr"]
        assert tree["test"]["score"] == pytest.approx(expected(lr, 0, 80), abs=1e-9)
        lines = (path / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [*range(1, 81), 80]
        assert json.loads((path / "env.json").read_text())["attempts"][-1]["from_step"] > 1


def test_off_this_host_an_attempt_goes_on_from_the_state_of_the_one_before(toy, monkeypatch):
    """By pilots, on an engine of processes: each attempt has a folder of its own, and a scratch
    folder, which is not carried along."""
    for module, name in ((pilots, "BEAT_S"), (pilots, "LOOK_S"), (engines, "ASK_S")):
        monkeypatch.setattr(module, name, 0.1)
    (toy / "slowly").touch()
    slow = TOY.replace("import helper", "import helper, os, time").replace(
        "        run.save(state)\n", f"{SLOWLY}        run.save(state)\n"
    )
    write(toy, toy_py=slow.replace("def main", "open('here', 'w').close()\n\n\ndef main"))
    planned = next(made("trainer.lr=0.1,0.2", "trainer.steps=80", "seeds=1").runs())
    store = Store(toy / "runs")
    launcher, engine = process_engine.launcher(settings("slurm", gpus=0, cpus=1), store.root)
    try:
        wait_for(lambda: launcher.poll(0.1) or launcher.offer(1, ()) or launcher.slots)
        first = attempts.attempt_folder(store, planned.id, 1)
        first.create(planned.spec())
        attempts.appoint(store, planned.id, 1)
        launcher.start(first, launcher.slots[0])
        wait_for(lambda: launcher.poll(0.1) or first.metrics_size() > 200)
        launcher.stop(first)
        wait_for(lambda: launcher.poll(0.1))
        assert first.checkpoints()
        (toy / "slowly").unlink()
        assert (first.scratch / "here").exists()
        second, number = attempts.fork(store, planned.id, 2)
        assert not second.scratch.exists()
        attempts.appoint(store, planned.id, number)
        launcher.start(second, launcher.slots[0])
        wait_for(lambda: launcher.poll(0.1))
    finally:
        launcher.free()
        assert [job.wait(60) for job in engine.jobs.values()] == [0]
    assert second.read_attempts()[-1]["from_step"] == first.newest_step()
    assert second.read_result()["test"]["score"] == pytest.approx(expected(0.1, 0, 80), abs=1e-9)


def test_no_better_than_guessing_is_collapsed_and_a_prune_is_obeyed(toy, shell):
    """Where chance is declared, of the first metric; `other` declares none."""
    write(toy, conf__trainer__toy_yaml=YAML.replace("chance: 0.2", "chance: 0.9"))
    shell("sweep", "trainer=toy", "trainer.lr=0.3,0.8", "seeds=1", INLINE)
    assert expected(0.8, 0) < 0.9 < expected(0.3, 0)
    found = shell("table").out
    assert "Collapsed: seed 0 ended no better than guessing" in found
    assert re.search(r"\| 0\.8 .*1/1 collapsed", found)
    assert "0.3 .*collapsed" not in found
    lacks = ("table", "analysis.metric=other", "analysis.diverged=chance")
    assert "guessing has no other" in shell(*lacks, code=2).err
    planned = next(made("trainer.lr=0.1,0.2", "trainer.steps=9", "seeds=1").runs())
    folder = RunDir(toy / "pruned" / planned.id)
    folder.create(planned.spec())
    folder.write_prune(4)
    options = {"slot": "cpu", "device": "cpu", "threads": 1, "checkpoint_s": 60.0}
    assert work.here(str(folder.path), options) == 0
    result = folder.read_result()
    assert (result["status"], result["step"]) == ("pruned", 4)
    assert [line["step"] for line in folder.read_metrics()] == [1, 2, 3, 4]
    assert result["validation"] == {"score": expected(0.1, planned.seed, 4)}
