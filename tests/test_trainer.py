"""A training loop of the user's own: planned, trained, killed, resumed and told of as ours is, by
real processes. What it computes is compared with files and with arithmetic done here."""

from __future__ import annotations

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
from conftest import Shell, wait_for
from launcher_contract import settings, until
from pages import blocks
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from support.files import write_files
from support.processes import freeze, kill, thaw, workers

from ablate.audit import export
from ablate.audit.doctor import resume_check
from ablate.planning import compose, expand
from ablate.run import RunSpec, validated_run
from ablate.run.run import OwnRun
from ablate.run.rundir import RunDir
from ablate.run.spec import OwnSpec
from ablate.running import attempts
from ablate.running.launchers import Slot, pilots
from ablate.running.launchers import jobs as engines
from ablate.shared.errors import UserError
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
  other: {direction: less, unit: "%", range: [null, null]}
fork_safe: true
"""


@pytest.fixture
def toy(tmp_path, monkeypatch) -> Path:
    """The user's folder, in which this process works."""
    write_files(tmp_path, toy_py=TOY, helper_py=HELPER, conf__trainer__toy_yaml=YAML)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(*words: str):
    return expand.plan_from_words(["trainer=toy", *words], store=Path("runs"))[0]


OPTIONS = {"slot": "cpu", "device": "cpu", "threads": 1, "checkpoint_s": 60.0}


def planned(folder: Path, *words: str) -> RunDir:
    """The first run of a plan, in a folder of its own."""
    run = next(made(*words, "seeds=1").runs())
    (rundir := RunDir(folder / run.id)).create(run.spec.tree)
    return rundir


def ids(*words: str) -> list[str]:
    return [run.id for run in made(*words).runs()]


def results(folder: Path) -> dict[str, dict[str, object]]:
    """By run: what it left, but for times and machine."""
    kept = {"status", "step", "test", "validation", "metrics_sha256", "predictions_sha256"}
    kept |= {"plugins", "digest", "declared"}
    return {
        path.parent.name: {
            **{key: value for key, value in json.loads(path.read_text()).items() if key in kept},
            "metrics": (path.parent / "metrics.jsonl").read_bytes(),
        }
        for path in sorted((folder / "runs" / "runs").glob("*/result.json"))
    }


# --- What is planned ----------------------------------------------------------------------------


def refused(*words: str) -> str:
    with pytest.raises(UserError) as error:
        expand.plan_from_words([*words], store=Path("runs"))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_keys_are_checked_by_their_defaults(toy):
    cell = made("trainer.lr=1,0.5", "trainer.mode=b", "trainer.clip=2").cells[0]
    own = {"name": "toy:main", "steps": 3, "lr": 1.0, "mode": "b", "clip": 2.0}
    assert cell.spec.tree["trainer"] == {**own, "deep": 2, "sizes": [1, 2]}
    assert type(cell.spec.tree["trainer"]["lr"]) is float
    made("trainer.deep=null,3")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("trainer=toy trainer.steps=1.5,2", "trainer.steps: expected a whole number, got 1.5"),
        ("trainer=toy trainer.lr=null,1", "trainer.lr: expected a number, got null"),
        ("trainer=toy trainer.sizes=1,2", "trainer.sizes: expected a list, got 1"),
        ("trainer=toy norm=rmsnorm,dyt", "norm: applies to no run of trainer=toy, .* and a seed$"),
        ("trainer=toy optim.lr=1,2", r"optim.lr: applies to no run .*=toy, .*mean trainer.lr\?$"),
        ("trainer=toy lr=0.1,0.2", r"lr: .*did you mean trainer.lr\?$"),
        ("trainer=toy from.recipe=quick,cifar", "from.recipe: applies to no run of trainer=toy"),
        (
            "trainer=toy:main trainer.lr=1,2",
            "toy:main: has to be declared: write .*conf/trainer/to",
        ),
        ("trainer.lr=1,2", r"trainer\.lr: of which trainer"),
        ("trainer=tou trainer.lr=1,2", "did you mean 'toy'"),
    ],
)
def test_words_that_a_trainer_does_not_know_are_refused_in_a_line(toy, words, line):
    assert re.search(line, refused(*words.split()))


def test_where_nothing_is_declared_the_command_that_declares_is_named(here):
    assert "`ablate new trainer`" in refused("trainer=toy")


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("  score: {direction", "  score: {way", r"score\.way: expected a key among key, name"),
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
    ],
)
def test_a_yaml_with_a_mistake_is_one_line(toy, before, after, line):
    assert before in YAML
    write_files(toy, conf__trainer__toy_yaml=YAML.replace(before, after, 1))
    assert re.search(line, refused("trainer=toy", "trainer.steps=1,2"))


@pytest.mark.whole
def test_what_a_metric_is_called_is_no_part_of_an_id_but_its_reading_is(toy):
    before = ids("trainer.lr=0.1,0.2")
    for old, new, same in (
        ("decimals: 3", "decimals: 1, name: points", True),
        ("chance: 0.2", "chance: 0.3", False),
        ("direction: less", "direction: more", False),
        ("other:", "another:", False),
        ("fork_safe: true", "fork_safe: false", True),
    ):
        write_files(toy, conf__trainer__toy_yaml=YAML.replace(old, new))
        assert (ids("trainer.lr=0.1,0.2") == before) is same, new


@pytest.mark.whole
def test_the_versions_of_what_it_imports_are_in_the_id(toy, monkeypatch):
    import importlib.metadata as metadata

    write_files(toy, helper_py="import json\nimport numpy.linalg\n" + HELPER)
    before = ids("trainer.lr=0.1,0.2")
    version = metadata.version("numpy")
    assert made("trainer.lr=0.1,0.2").cells[0].spec.tree["code"]["packages"] == {"numpy": version}
    monkeypatch.setattr(metadata, "version", lambda name: "9.9.9+cpu")
    assert made("trainer.lr=0.1,0.2").cells[0].spec.tree["code"]["packages"] == {"numpy": "9.9.9"}
    assert not set(ids("trainer.lr=0.1,0.2")) & set(before)


def test_the_tree_of_a_run_stands_for_itself(toy):
    tree, run = compose.resolve_run(["trainer=toy", "trainer.lr=0.2", "seed=3"], Path("runs"))
    for path in (toy / "toy.py", toy / "conf" / "trainer" / "toy.yaml"):
        path.unlink()
    again = json.loads(json.dumps(tree))
    spec = RunSpec.of(again)
    assert isinstance(validated_run(spec), OwnRun)
    assert validated_run(spec).spec.tree == tree
    assert spec.id == run
    first, other = spec.task.metrics
    assert (first.key, first.sign, first.chance(0), first.text(1 / 3)) == ("score", 1, 0.2, "0.333")
    assert (other.key, other.sign, other.unit, other.printed(0.5)) == ("other", -1, "%", "50.00 %")
    assert (spec.worst(first), spec.worst(other)) == (0.2, None)
    again["metrics"][0]["chance"] = None
    assert spec.worst(first) == 0  # the worse end of its range


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


@pytest.mark.whole
def test_a_sweep_of_it_is_tabulated_verified_and_bundled(toy, shell, monkeypatch):
    shell("sweep", "trainer=toy", "trainer.lr=0.1,0.3", "seeds=3", INLINE)
    told = {
        (fact["row"], fact["seed"]): float(fact["value"])
        for fact in shell.facts()
        if fact["quantity"] == "score.run"
    }
    assert told == {
        (f"lr={lr}", str(seed)): pytest.approx(expected(lr, seed), abs=1e-12)
        for lr in (0.1, 0.3)
        for seed in range(3)
    }
    shown = shell("table", "--show", "accuracy,other,cost", "--notes", "full").out
    assert "other %" in shown
    assert "tested by their trainer" in shown
    line = "analysis.metric: expected one of score"
    assert line in shell("table", "analysis.metric=x", code=2).err
    assert "lower being better" in shell("table", "analysis.metric=other").out
    for words in (("status",), ("report",), ("plot", "curves"), ("plot", "gain"), ("gc", "--yes")):
        shell(*words)
    log = [line[20:] for line in shell("show", "lr=0.1#0", "--log").out.splitlines()]
    lines = [f"step {n}: train_loss {loss}" for n, loss in ((1, "1"), (2, "0.5"), (3, "0.333333"))]
    assert [line.partition(", val_score ")[0] for line in log] == lines
    about = shell("show", "lr=0.1#0").out
    assert "val_score" in about
    assert "files: {helper.py:" in about
    assert "trainer.lr  0.1  0.3" in shell("show", "lr=0.1#0", "--against", "lr=0.3#0").out
    assert "6 runs" in shell("verify").out
    assert "the same bits" in shell("verify", "--rerun", "lr=0.1#0", INLINE).out
    monkeypatch.setattr(export, "draw_figures", lambda *_: {})  # which take the longest
    shell("export", "bundle", "--anonymous")
    assert "nothing wrong" in shell("verify", "bundle").out
    assert str(toy) not in (toy / "bundle" / "sweep.json").read_text()
    path = next((toy / "runs" / "runs").glob("*/result.json"))
    path.write_text(path.read_text().replace('"score": ', '"score": 1'))
    assert "result.json" in shell("verify", code=1).out


@pytest.mark.whole
def test_a_search_over_a_key_of_it(toy, shell):
    sweep = """
        base: {trainer: toy}
        variants: [a: {trainer.mode: a}, b: {trainer.mode: b}]
        seeds: 2
        tune: {space: {trainer.lr: {uniform: [0.05, 0.6]}}, trials: 6, repeats: 1}
    """
    write_files(toy, sweeps__rates_yaml=sweep)
    assert "trainer.lr" in shell("sweep", "rates", INLINE).out
    [column] = json.loads(shell("table", "--format", "json").out)["columns"]
    rates = [c["params"]["trainer.lr"] for entry in column["entries"] for c in entry["chosen"]]
    assert rates == [pytest.approx(0.3, abs=0.15)] * len(rates)  # where the score is the best
    assert "nothing wrong" in shell("verify").out
    write_files(toy, toy_py=TOY.replace(', score=helper.score(settings["lr"], state))', ")"))
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
@pytest.mark.slow
def test_two_variants_and_three_seeds_of_the_language_model_killed_twice(tmp_path):
    """kill -9 of driver and workers, each time once another run has finished and another is half
    trained: byte for byte what nobody disturbed. A state is saved at every step."""
    for name in ("calm", "killed"):
        (tmp_path / name / "conf" / "trainer").mkdir(parents=True)
        for file in ("chars.py", "conf/trainer/chars.yaml"):
            (tmp_path / name / file).write_text(FILES[file])
    calm, killed = Shell(tmp_path / "calm"), Shell(tmp_path / "killed")
    short = ("trainer.steps=40", "trainer.depth=1", "seeds=3")
    words = ("sweep", "trainer=chars", "trainer.act=gelu,tanh", *short)
    calm(*words, INLINE)
    runs = killed.folder / "runs" / "runs"
    for kills in (1, 2):
        driver = killed.start(*words, "launcher.checkpoint_s=0.01", "launcher.attempts=9")
        wait_for(lambda n=kills: len(list(runs.glob("*/result.json"))) >= 2 * n - 1)
        kill([driver.pid, *wait_for(lambda: half_trained(killed.folder))])
        assert driver.wait() != 0
    killed(*words, INLINE)
    assert len(results(calm.folder)) == 6
    assert results(killed.folder) == results(calm.folder)
    assert calm("table", "--format", "tidy").out == killed("table", "--format", "tidy").out
    attempts = [json.loads(path.read_text())["attempts"] for path in runs.glob("*/env.json")]
    begun = [attempt["from_step"] for tried in attempts for attempt in tried]
    assert len(begun) > 6  # some were tried twice,
    assert any(begun)  # and went on from a state


FOREST = """
import sys
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

assert "torch" not in sys.modules

def main(settings, run):
    images, labels = load_digits(return_X_y=True)
    images, test, labels, test_labels = train_test_split(
        images, labels, test_size=500, random_state=0
    )
    images, val, labels, val_labels = train_test_split(
        images, labels, test_size=300, random_state=0
    )
    seed = int(run.rng("forest").integers(2**31))
    model = RandomForestClassifier(settings["trees"], max_depth=None, random_state=seed)
    model.fit(images, labels)
    run.log(1, accuracy=model.score(val, val_labels))
    predicted = model.predict(test)
    run.result(accuracy=(predicted == test_labels).mean(), n=len(test), predictions=predicted)
"""


@pytest.mark.whole
def test_a_classifier_that_saves_nothing(tmp_path):
    """In fresh interpreters, without torch."""
    shell = Shell(tmp_path)
    yaml = "name: forest:main\nkeys: {trees: 20}\nmetrics: {accuracy: {direction: more, unit: '%',"
    write_files(
        tmp_path,
        forest_py=FOREST,
        conf__trainer__forest_yaml=f"{yaml} range: [0, 1], chance: 0.1}}}}\n",
    )
    done = shell("sweep", "trainer=forest", "trainer.trees=2,20", "seeds=1")
    low, high = (float(n) for n in re.findall(r"^\| trees=\d+ \| ([\d.]+) ", done.out, re.M))
    assert 60 < low < high < 100
    _, labels = train_test_split(load_digits().target, test_size=500, random_state=0)
    for path in (tmp_path / "runs" / "runs").iterdir():
        packages = json.loads((path / "env.json").read_text())["attempts"][0]["packages"]
        assert packages.keys() == {"ablate-sweep", "numpy", "scikit-learn"}
        right = (np.load(path / "predictions.npy") == labels).mean()
        test = json.loads((path / "result.json").read_text())["test"]
        assert test == {"accuracy": right, "n": 500}


AT = r": wrong.py:\d+: "


# --- What goes wrong ----------------------------------------------------------------------------

# What each does, and what the sweep says of it.
WRONG = {
    "hangs": ("time.sleep(600)", "hung", ": no sign of life for 6 s"),  # others go on meanwhile
    "isnan": ("run.log(2, score=nan)", "diverged at step 2", ""),
    "swallows": ("swallow(run.log, 2, score=nan)", "diverged at step 2", ""),
    "isinf": ("run.result(score=inf)", "diverged at step 1", ""),
    "none": ("return", "failed", r": .*returned without a result: call run.result\(score=\.\.\.\)"),
    "unknown": ("run.result(scor=1.0)", "failed", AT + "run.result: scor: .*did you mean 'score'"),
    "lacks": ("run.result(n=3)", "failed", AT + "run.result: lacks score, which its yaml declares"),
    "text": ("run.result(score='a')", "failed",
             AT + "run.result: score: expected a number, got 'a'"),
    "range": ("run.result(score=-1)", "failed", AT + r".*-1 lies outside its range \[0.0, 1.0\]"),
    "raises": ("raise KeyError('weights')", "failed", AT + "KeyError: 'weights'"),
    "long": ("raise ValueError('x' * 10**6)", "failed", AT + r"ValueError: x{480,490}\.\.\. \(se"),
    "exits": ("sys.exit(3)", "failed", AT + r"RuntimeError: the trainer called sys.exit\(3\)"),
    "saves": ("run.save({'model': [Path('x')]})", "failed",
              AT + r"run.save: state\['model'\]\[0\]: a PosixPath can't"),
    "eats": ("eat()", "oom", AT + "MemoryError"),
    "dies": ("os.kill(os.getpid(), 9)", "died", ": signal SIGKILL"),
    "huge": ("run.log(10**30, score=0.5)", "failed", AT + "run.log: step: 10+ is too large a num"),
    "far": ("run.progress(1, total=10**30)", "failed", AT + "run.progress: total: 10+ is too larg"),
    "after": ("run.result(score=0.5), run.log(2, score=1.0)", "failed",
              AT + "run.log: was called after run.result"),
    "hidden": ("run.log(2, val_score=0.99)", "failed",
               AT + "run.log: val_score: is the name that values of sc"),
    "nobody": ("run.result(score=0.5, n=0)", "failed",
               AT + "run.result: n: expected a whole number of examples, got 0"),
    "taken": ("os._exit(75)", "failed", ": exit code 75"),  # as who finds its folder taken
    "gone": ("os._exit(79)", "failed", ": exit code 79"),
    "stops": ("return os.kill(os.getpid(), 15)", "failed",
              ": its worker got SIGTERM, which ablate had not sent"),
    "random": ("run.log(3, score=1.0), run.log(2, score=1.0)", "failed",
               AT + "run.log: step 2 after step 3"),
    "silent": ("return run.result(score=1.0)", "finished", ", which logged no validation"),
    "leaves": ("leave()", "finished", ""),
    "last": ("pass", "finished", ""),
}  # fmt: skip


PROGRAM = """
import os, resource, sys, time
from math import inf, nan
from pathlib import Path

def swallow(function, *given, **named):
    try:
        function(*given, **named)
    except BaseException:
        pass

def eat():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    held = [bytearray(1 << 26) for _ in range(99)]

def leave():
    os.chdir("..")
    open("stray", "w").write("x")
    open(f"{os.getcwd()}/result.json", "w").write("{}")

def main(settings, run):
    how = settings["how"]
    assert "torch" in sys.modules  # it says that it is fork-safe
    open("here", "w").write("x")  # into its own folder, wherever the sweep was started
    if how != "silent":
        run.log(1, score=0.5)
"""


@pytest.mark.faults
def test_what_a_trainer_does_wrong_is_one_line_and_harms_nothing_else(tmp_path):
    cases = [f"    if how == {how!r}:\n        {code}\n" for how, (code, _, _) in WRONG.items()]
    write_files(
        tmp_path,
        wrong_py=PROGRAM + "".join(cases) + "    run.result(score=0.75)\n",
        conf__trainer__wrong_yaml="name: wrong:main\nkeys: {how: hangs}\n"
        "metrics: {score: {direction: more, range: [0, 1]}}\nfork_safe: true\n",
    )
    shell = Shell(tmp_path)
    words = ("sweep", "trainer=wrong", f"trainer.how={','.join(WRONG)}", "seeds=1")
    out = shell.process(*words, "launcher.hang_s=6", "launcher.attempts=1", code=1).out
    for how, (_, status, line) in WRONG.items():
        assert re.search(f"{status}: {how}#0{line}", out), (how, out)
    assert not (tmp_path / "here").exists()
    places = {path.parent.name for path in (tmp_path / "runs" / "runs").glob("*/*/here")}
    assert places == {"scratch"}
    assert not [*tmp_path.glob("*/stray"), *tmp_path.glob("runs/stray")]
    assert re.search(r"\| last \| 0.75", shell("table").out)


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


@pytest.mark.whole
def test_what_a_trainer_starts_ends_with_its_worker(tmp_path):
    write_files(
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


def test_what_a_trainer_starts_ends_with_a_worker_whose_driver_is_gone():
    words = [sys.executable, "-c", "import time; time.sleep(1000)"]
    script = (
        "import os, subprocess; from ablate.training.own.processes import end_processes; "
        f"print(subprocess.Popen({words}).pid); end_processes('a tag', os.getpid())"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
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


def test_an_edit_between_plan_and_start_fails_and_is_never_trained_under_the_old_id(toy):
    folder = planned(toy, "trainer.lr=0.1,0.2")
    write_files(toy, helper_py=f"{HELPER}\nimport time\n")
    assert work.work_in_process(str(folder.path), OPTIONS) == 1
    assert folder.read_result() is None
    [attempt] = folder.read_attempts()
    assert "helper.py was edited after this run was planned" in attempt["error"]


def test_what_importlib_brings_is_told(toy, shell):
    late = "import importlib\nhelper = importlib.import_module('helper')"
    write_files(toy, toy_py=TOY.replace("import helper", late))
    shell("sweep", "trainer=toy", "trainer.lr=0.1,0.2", "seeds=2", INLINE)
    assert set(made("trainer.lr=0.1,0.2").cells[0].spec.tree["code"]["files"]) == {"toy.py"}
    logs = [path.read_text() for path in (toy / "runs" / "runs").glob("*/log.txt")]
    assert all("helper.py was imported, but no import" in log for log in logs)
    assert len(logs) == 4
    assert len({tree["plugins"]["trainer"] for tree in results(toy).values()}) == 1


def test_a_torn_state_gives_way_to_the_one_before(toy):
    metrics, torn = {}, {}
    for name, damage in (("calm", 0), ("newest", 1), ("both", 2)):
        folder = planned(toy / name, "trainer.lr=0.1,0.2", "trainer.steps=6")
        options = {**OPTIONS, "checkpoint_s": 0.0}
        pid = os.fork()
        if not pid:  # it ends as a kill would end it, once two states are there
            os._exit(
                work.work_in_process(str(folder.path), {**options, "saves": 2 if damage else None})
            )
        os.waitpid(pid, 0)
        found = [path for _, path in folder.checkpoints()]
        assert len(found) == (2 if damage else 0)
        for path in found[:damage]:
            content = bytearray(path.read_bytes())
            content[-3] ^= 1
            path.write_bytes(content)
        if damage:
            assert work.work_in_process(str(folder.path), options) == 0
            torn[name] = folder.read_attempts()[-1]["from_step"]
        metrics[name] = folder.metrics_content()
    assert metrics["newest"] == metrics["both"] == metrics["calm"]
    assert torn == {"newest": 1, "both": 0}


def test_a_state_comes_back_bit_for_bit():
    linear = torch.nn.Linear(3, 2)
    adam = torch.optim.AdamW(linear.parameters())
    linear(torch.ones(1, 3)).sum().backward()
    adam.step()
    numbers = np.arange(6).reshape(2, 3)[:, ::-1]
    tensors = {
        **linear.state_dict(),
        "half": torch.tensor([1.5, -0.0, float("nan")], dtype=torch.bfloat16),
        "none": torch.zeros(0, 3),
        "one": torch.tensor(3),
        "rng": torch.random.get_rng_state(),
    }
    state = {
        "tensors": tensors,
        "adam": adam.state_dict(),
        7: (1, -0.0, float("inf"), None, True, "x", b"\0\xff"),
        "big": 1 << 100,
        "numpy": {"a": numbers, "s": np.float32(0.1), "b": np.array(True)},
        "rng": np.random.default_rng(0).bit_generator.state,
    }
    found = states.decode(*states.encode(state))
    assert found.keys() == state.keys()
    assert [found[key] for key in (7, "big", "rng")] == [state[key] for key in (7, "big", "rng")]
    assert str(found[7][1]) == "-0.0"
    assert str(found["adam"]) == str(state["adam"])
    for key, tensor in tensors.items():
        own = found["tensors"][key]
        assert (own.dtype, own.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(*(one.reshape(-1).view(torch.uint8) for one in (own, tensor)))
    assert found["numpy"]["a"].tolist() == [[2, 1, 0], [5, 4, 3]]
    assert type(found["numpy"]["s"]) is np.float32
    assert found["numpy"]["b"].shape == ()
    with pytest.raises(UserError, match=r"state\['a'\]\[1\]: a set can't be saved"):
        states.encode({"a": [1, {2}]})


def compared(verb: str, question: dict) -> dict:
    """As a worker answers."""
    return ANSWERS[verb](question, lambda done, total: None)


@pytest.mark.whole
def test_doctor_says_whether_a_kill_changes_its_bits(toy, shell):
    found = json.loads(shell("doctor", "trainer=toy", "--format", "json").out)["findings"]
    texts = [finding["text"] for finding in found if finding["check"] == "resume"]
    assert "resume is bit-exact: " in " ".join(texts)
    drifts = TOY.replace("import helper", "import helper, random")
    drifts = drifts.replace('run.rng("draw", step).random()', "random.random()")
    again = ": .* starts again from nothing"
    for name, text, line in (
        ("stateless", TOY.replace(SAVE, ""), f"never calls run.save{again}"),
        ("forgets", TOY.replace("run.resume() or ", ""), f"save and never run.resume{again}"),
        ("drifts", drifts, "resume is not bit-exact: .*so what it saves lacks some state"),
    ):
        yaml = YAML.replace("toy:main", f"{name}:main")
        write_files(toy, **{f"{name}_py": text, f"conf__trainer__{name}_yaml": yaml})
        tree, _ = compose.resolve_run([f"trainer={name}", "trainer.steps=9"], Path("runs"))
        found = resume_check.resume_own(Slot("cpu", "cpu", "cpu"), name, OwnSpec(tree), compared)
        assert re.search(line, " ".join(finding.text for finding in found)), name


# Until the file `slowly` is gone, which lies beside it.
SLOWLY = "        time.sleep(0.2 * os.path.exists(f'{os.path.dirname(__file__)}/slowly'))\n"


SAVE = "        run.save(state)\n"


TIMED = TOY.replace("import helper", "import helper, os, time")


@pytest.mark.whole
def test_a_stopped_run_saves_and_goes_on(toy, shell):
    (toy / "slowly").touch()
    write_files(toy, toy_py=TIMED.replace(SAVE, SAVE + SLOWLY))
    words = ("sweep", "trainer=toy", "trainer.lr=0.1,0.3", "trainer.steps=80", "seeds=1")
    driver = shell.start(*words)
    runs = toy / "runs" / "runs"
    wait_for(lambda: sum(p.stat().st_size > 200 for p in runs.glob("*/metrics.jsonl")) == 2)
    driver.terminate()
    assert "stopped after 0 of 2" in shell.end(driver).out
    assert len([*runs.glob("*/checkpoint-*")]) == 2
    (toy / "slowly").unlink()
    shell(*words, INLINE)
    for folder in map(RunDir, runs.iterdir()):
        lr = json.loads((folder.path / "run.json").read_text())["spec"]["trainer"]["lr"]
        score = folder.read_result()["test"]["score"]
        assert score == pytest.approx(expected(lr, 0, 80), abs=1e-9)
        assert [line["step"] for line in folder.read_metrics()] == [*range(1, 81), 80]
        assert folder.read_attempts()[-1]["from_step"] > 1


@pytest.mark.whole
def test_off_this_host_an_attempt_goes_on_from_the_state_of_the_one_before(toy, monkeypatch):
    """By pilots, on an engine of processes: each attempt has a folder of its own, and a scratch
    folder, which is not carried along."""
    for module, name in ((pilots, "BEAT_S"), (pilots, "LOOK_S"), (engines, "ASK_S")):
        monkeypatch.setattr(module, name, 0.1)
    (toy / "slowly").touch()
    slow = TIMED.replace(SAVE, SLOWLY + SAVE)
    write_files(toy, toy_py=slow.replace("def main", "open('here', 'w').close()\n\n\ndef main"))
    run = next(made("trainer.lr=0.1,0.2", "trainer.steps=80", "seeds=1").runs())
    store = Store(toy / "runs")
    launcher, engine = process_engine.launcher(settings("slurm", gpus=0, cpus=1), store.root)
    try:
        wait_for(lambda: launcher.poll(0.1) or launcher.offer(1, ()) or launcher.slots)
        first = attempts.attempt_folder(store, run.id, 1)
        first.create(run.spec.tree)
        attempts.appoint(store, run.id, 1)
        launcher.start(first, launcher.slots[0])
        wait_for(lambda: launcher.poll(0.1) or first.metrics_size() > 200)
        launcher.stop(first)
        wait_for(lambda: launcher.poll(0.1))
        assert first.checkpoints()
        (toy / "slowly").unlink()
        assert (first.scratch / "here").exists()
        second, number = attempts.fork(store, run.id, 2)
        assert not second.scratch.exists()
        attempts.appoint(store, run.id, number)
        launcher.start(second, launcher.slots[0])
        wait_for(lambda: launcher.poll(0.1))
    finally:
        launcher.free()
        assert [job.wait(60) for job in engine.jobs.values()] == [0]
    assert second.read_attempts()[-1]["from_step"] == first.newest_step()
    assert second.read_result()["test"]["score"] == pytest.approx(expected(0.1, 0, 80), abs=1e-9)


@pytest.mark.whole
def test_no_better_than_guessing_is_collapsed_and_a_prune_is_obeyed(toy, shell):
    """Where chance is declared, of the first metric; `other` declares none."""
    write_files(toy, conf__trainer__toy_yaml=YAML.replace("chance: 0.2", "chance: 0.9"))
    shell("sweep", "trainer=toy", "trainer.lr=0.3,0.8", "seeds=1", INLINE)
    assert expected(0.8, 0) < 0.9 < expected(0.3, 0)
    found = shell("table").out
    assert "Collapsed: seed 0 ended no better than guessing" in found
    assert re.search(r"\| lr=0\.8 .*1/1 collapsed", found)
    assert "lr=0.3 .*collapsed" not in found
    lacks = ("table", "analysis.metric=other", "analysis.diverged=chance")
    assert "guessing has no other" in shell(*lacks, code=2).err
    folder = planned(toy / "pruned", "trainer.lr=0.1,0.2", "trainer.steps=9")
    folder.write_prune(4)
    assert work.work_in_process(str(folder.path), OPTIONS) == 0
    result = folder.read_result()
    assert (result["status"], result["step"]) == ("pruned", 4)
    assert [line["step"] for line in folder.read_metrics()] == [1, 2, 3, 4]
    assert result["validation"] == {"score": expected(0.1, 0, 4)}
