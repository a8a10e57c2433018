"""`show`, `show --against`, `show -f`, `status --watch`: of real runs, killed, stopped, torn.

Most tests look at one sweep whose first run was killed (-9) once and stopped once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ABLATE, Shell
from launcher_contract import end, settings, until
from nvidia import Machine, gpu
from support.processes import freeze_workers, thaw, workers

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Cell, Column, Row
from ablate.planning.compose import resolve_run
from ablate.planning.plan import Plan
from ablate.report.show import RunLog, compare_runs, describe_run
from ablate.report.text import sparkline
from ablate.run.rundir import RunDir
from ablate.run.spec import RunSpec
from ablate.running import launchers
from ablate.running.orders import check_order
from ablate.shared.errors import Failure, UserError
from ablate.shared.files import Lock, to_json
from ablate.store.events import RunState, result_detail
from ablate.store.find import find_run, sweeps_of_run
from ablate.store.ledger import Ledger
from ablate.store.progress import observe_progress
from ablate.store.store import Store

pytestmark = pytest.mark.whole

TINY = ("model.depth=1", "train.epochs=32", "eval.every=8")
SWEEP = ("sweep", "block.attn=pre,post", *TINY, "--as", "story", "launcher.checkpoint_s=0.1")


def rundir(shell: Shell, row: str, sweep: str = "story", seed: int = 0) -> RunDir:
    """The folder of a run of a driven sweep with one column."""
    store = Store(shell.folder / "runs")
    return store.rundir(store.read_plan(sweep).cell(row, "").ids[seed])


def reseal(shell: Shell, folder: RunDir) -> None:
    """The run ends once more, with its env.json as it lies there."""
    result = json.loads(folder.result.read_bytes())
    result["env_sha256"] = hashlib.sha256(folder.env.read_bytes()).hexdigest()
    folder.result.write_bytes(to_json(result))
    with Ledger.driving(Store(shell.folder / "runs")) as ledger:
        ledger.record(folder.id, "finished", **result_detail(folder, result))


@dataclasses.dataclass
class Story:
    """What was printed on the way to a store with the sweep `story`."""

    shell: Shell
    watched: str  # by `status --watch` while it was driven to its end


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> Story:
    """pre#0 is killed, then stopped; the third attempt ends it. post#0 waits meanwhile."""
    shell = Shell(tmp_path_factory.mktemp("story"))
    driver = shell.start(*SWEEP, "seeds=1")
    until((shell.folder / "runs" / "sweeps" / "story.json").exists)
    victim = rundir(shell, "pre")
    until(victim.checkpoints)
    until(lambda: len(workers(shell.folder)) == 2)
    waits = [*{*freeze_workers(shell)} - {victim.lock.notes().pid}]
    os.kill(victim.lock.notes().pid, signal.SIGKILL)
    until(lambda: len(victim.read_attempts()) == 2)
    begun = victim.read_attempts()[1]["from_step"]
    until(lambda: victim.checkpoints()[0][0] > begun)
    driver.send_signal(signal.SIGTERM)
    thaw(waits)
    assert "stopped after 0 of 2" in shell.end(driver).out
    driver = shell.start(*SWEEP, "seeds=1")
    until(lambda: len(workers(shell.folder)) == 2)
    both = freeze_workers(shell)
    look = Shell(shell.folder, number=100)
    watching = look.start("status", "--watch")
    until((shell.folder / "101.out").read_text)
    thaw(both)
    watched = look.end(watching).out
    assert shell.end(driver).code == 0
    return Story(shell, watched)


@pytest.fixture
def own(story, shell) -> Shell:
    """A folder of one's own with a copy of that store."""
    shutil.copytree(story.shell.folder / "runs", shell.folder / "runs")
    return shell


# --- One run ------------------------------------------------------------------------------------


def test_a_killed_and_a_stopped_attempt_are_shown_as_such(story):
    out = story.shell("show", "pre#0").out
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    first, second, third = re.findall(r"^  (\d\. .*)$", out, re.M)
    assert re.fullmatch(
        rf"1\. {when}, from step 0 on cpu:\d+: killed without an error message", first
    )
    assert re.fullmatch(rf"2\. {when}, \d+ s, from step [1-9]\d* on cpu:\d+: stopped", second)
    assert re.fullmatch(rf"3\. {when}, \d+ s, from step [1-9]\d* on cpu:\d+: result", third)
    assert re.search(rf"^  {when} died: step \d+, code -9$", out, re.M)
    assert re.search(rf"^  {when} interrupted: reason stopped$", out, re.M)
    other = story.shell("show", "post#0").out
    assert "killed" not in other
    assert "stopped" in other


def test_a_run_shows_its_result_curves_provenance_and_configuration(story):
    folder = rundir(story.shell, "pre")
    out = story.shell("show", "pre#0").out
    result = folder.read_result()
    assert out.startswith(
        f"run {folder.id}: pre#0\n  of story: pre#0\n  in runs/runs/{folder.id}\n"
    )
    assert re.search(r"peak_bytes: \d+ MiB", out)
    losses = [line["val_loss"] for line in folder.read_metrics()]
    assert len(losses) == 4
    bars = re.search(r"^  val_loss +(\S+)  first (\S+), last (\S+), lowest (\S+)$", out, re.M)
    ends = [f"{loss:.4g}" for loss in (losses[0], losses[-1], min(losses))]
    assert [*bars.groups()] == [sparkline(losses), *ends]
    for text in (
        "\nstatus: finished\n",
        f"top1 {result['test']['top1']:.6g}",
        f"images_per_s: {result['images_per_s']:.6g}",
        f"digest: {result['digest']}\n",
        f"command: ablate {' '.join(SWEEP)} seeds=1\n",
        f"folder: {story.shell.folder}\n",
        *("kernel: sdpa\n", "threads: 1\n", f"fingerprint: {result['fingerprint']}\n"),
        *("  block: {attn: pre, mlp: pre, name: vit, post: residual}\n", "  seed: 0\n"),
    ):
        assert text in out
    assert story.shell("show", folder.id[:6]).out == out  # any unique prefix, and the same again
    assert "missing" not in out


def test_a_sparkline_goes_from_the_least_to_the_greatest():
    assert sparkline([1.0, 2.0, 8.0]) == "▁▂█"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([1.7e308] * 3 + [-1.7e308] * 2 + [0.0], 3) == "█▃▁"
    assert sparkline([1e-295, 0.0, 4e-295]) == "▃▁█"
    assert sparkline([0.0, 2.8e-322, 5e-324]) == "▁▁▁"  # all but the same
    assert sparkline([i // 20 for i in range(160)]) == "".join(bar * 5 for bar in "▁▂▃▄▅▆▇█")


def test_who_is_looked_for_and_not_found_is_told_what_there_is(story):
    pre, post = (rundir(story.shell, row).id for row in ("pre", "post"))
    cases = {
        "pst#0": "such as post#0, pre#0, got 'pst#0' (did you mean 'post#0'?)",
        "pre#7": "pre#0",
        "pre": "or a label: pre#0",
        "zzz": "no id of runs begins with 'zzz'; give the first letters of one, or a label: pre#0",
        "": f"matches several runs, {', '.join(sorted((pre, post)))}; ",
    }
    for text, said in cases.items():
        done = story.shell("show", text, code=2)
        assert said in done.err
        assert done.err.count("\n") == 1
        assert done.out == ""


def plan(name: str, columns: list[str], **ids: list[str]) -> Plan:
    """A plan of rows with an id a column; the row `pre` is `first`, too."""
    return Plan(
        name=name,
        title=name,
        rows=tuple(Row(row, {}, aliases=("first",) if row == "pre" else ()) for row in ids),
        columns=tuple(Column(column, {}) for column in columns),
        cells=tuple(
            Cell(row, column, RunSpec.of({}), {2: run})
            for row, runs in ids.items()
            for column, run in zip(columns, runs, strict=True)
        ),
        baseline="pre",
        seeds=(2,),
        analysis=Analysis(),
    )


@contextlib.contextmanager
def planned(store: Store, *plans: Plan) -> Iterator[Ledger]:
    """The ledger of a store with these plans."""
    with Ledger.driving(store) as ledger:
        for made in plans:
            store.write_plan(made)
            ledger.plan(made)
        yield ledger


def test_a_run_is_found_by_label_in_the_sweep_that_was_driven_last(tmp_path):
    store = Store(tmp_path)
    wide = plan("wide", ["Ti/16", "S/16"], **{"post/post": ["c1", "d1"]})
    old = plan("old", [""], pre=["a1"], post=["b1"])
    with planned(store, old, wide, plan("new", ["mu/4"], pre=["a2"])) as ledger:
        names = {
            **dict.fromkeys(("pre@mu/4#2", "pre#2", "first#2", "first@mu/4#2"), "a2"),
            **{"post#2": "b1", "post/post@Ti/16#2": "c1", "c": "c1", "a1": "a1"},
        }
        assert {text: find_run(store, ledger, text) for text in names} == names
        for text in ("post/post#2", "pre#1", "a", "../a1"):
            with pytest.raises(UserError):
                find_run(store, ledger, text)


def test_an_edited_plan_is_in_the_way_of_its_own_runs_alone(tmp_path):
    store = Store(tmp_path)
    old, new = plan("old", [""], pre=["a1"], post=["b1"]), plan("new", [""], pre=["a2"])
    with planned(store, old, new) as ledger:
        store.write_plan(dataclasses.replace(new, title="another"))
        assert find_run(store, ledger, "post#2") == "b1"
        check_order(store, ledger, "skip", {"b1": "post#2"})
        assert [name for name, _ in sweeps_of_run(store, ledger, "b1")] == ["old"]
        edited = r"new\.json: was edited after it was planned"
        with pytest.raises(Failure, match=edited):
            find_run(store, ledger, "pre#2")
        with pytest.raises(Failure, match=edited):
            check_order(store, ledger, "skip", {"a2": "pre#2"})


def test_a_run_that_never_began_is_shown_as_planned(own):
    folder = rundir(own, "post")
    shutil.rmtree(folder.path)
    store = Store(own.folder / "runs")
    with Ledger.reading(store) as ledger:
        text = describe_run(store, ledger, folder.id)
        assert f"{folder.id} (missing)" in text
        assert "result.json: missing or not whole" in text
        assert "configuration, as planned (run.json: missing or not whole)\n" in text
        assert "block: {attn: post" in text
        assert "env.json: missing or not whole" in compare_runs(store, ledger, folder.id, folder.id)


@pytest.mark.parametrize("name", ["run.json", "env.json", "result.json", "metrics.jsonl", "lock"])
def test_whatever_file_is_torn_the_rest_is_shown(own, name):
    folder, other = rundir(own, "pre"), rundir(own, "post")
    whole = (folder.path / name).read_bytes()
    store = Store(own.folder / "runs")
    with Ledger.reading(store) as ledger:
        for length in range(0, len(whole) - 1, max(1, len(whole) // 12)):
            (folder.path / name).write_bytes(whole[:length])
            text = describe_run(store, ledger, folder.id)
            assert text.count("\n") > 20
            if name == "env.json":
                assert "env.json was edited since the run ended" in text
            elif name not in ("metrics.jsonl", "lock"):
                assert f"{name}: missing or not whole" in text
            assert "\nresult\n" in compare_runs(store, ledger, folder.id, other.id)
        (folder.path / name).unlink()
        describe_run(store, ledger, folder.id)
    assert (name == "lock") == ("missing" not in own("show", "pre#0").out)


# --- Two runs -----------------------------------------------------------------------------------


def blocks(out: str) -> dict[str, list[str]]:
    """Title -> lines of what `--against` printed."""
    parts = [part.splitlines() for part in out.split("\n\n")[1:]]
    return {title: lines for title, *lines in parts}


def test_against_names_the_one_key_that_differs(story):
    found = blocks(story.shell("show", "pre#0", "--against", "post#0").out)
    assert [*found] == ["configuration", "data", "code", "environment", "result"]
    assert found["configuration"] == ["  block.attn  pre  post"]
    assert [found[part] for part in ("data", "code", "environment")] == [["  no difference"]] * 3
    results = [rundir(story.shell, row).read_result() for row in ("pre", "post")]
    top1 = next(line for line in found["result"] if line.startswith("  test.top1 "))
    assert top1.split()[1:] == [f"{result['test']['top1']:.6g}" for result in results]
    same = blocks(story.shell("show", "pre#0", "--against", "pre#0").out)
    assert same["configuration"] == ["  no difference"]


def test_against_names_what_differs_in_code_and_environment(own):
    folder = rundir(own, "post")
    attempts = folder.read_attempts()
    attempts[-1]["packages"]["torch"] = "9.9"
    attempts[-1]["origin"]["git"] = {"commit": "abc", "dirty": True, "diff": "diffs/d.diff"}
    attempts[-1]["host"] = "elsewhere"  # of the worker
    attempts[-1]["origin"]["host"] = "login"  # of the driver
    folder.write_attempts(attempts)
    reseal(own, folder)
    found = blocks(own("show", "pre#0", "--against", "post#0").out)
    torch = rundir(own, "pre").read_attempts()[0]["packages"]["torch"]
    host = os.uname().nodename
    code = [line.split() for line in found["code"]]
    assert ["packages.torch", torch, torch, "+", "9.9"] in code
    assert ["git.diff", "-", "diffs/d.diff"] in code
    assert found["environment"] == [f"  host  {host}  {host} + elsewhere"]
    assert found["data"] == ["  no difference"]


NORM = """
from torch import nn

class Mine(nn.Module):
    version = 1

    def __init__(self, shape, *, eps: float = 1e-6) -> None:
        super().__init__()

    def forward(self, x):
        return x * {factor}
"""


def test_an_edited_plug_in_shows(own, monkeypatch):
    """Two runs of one version, the file edited between them."""
    monkeypatch.chdir(own.folder)
    store = Store(Path("runs"))
    launcher = launchers.make_launcher(settings("local"), store.cache)
    ids, digests = [], []
    for seed, factor in ((0, 1.0), (1, 0.5)):
        Path("mine.py").write_text(NORM.format(factor=factor))
        words = ["norm=mine:Mine", "model.depth=1", "train.steps=2", f"seed={seed}"]
        tree, run = resolve_run(words, store.root)
        folder = store.rundir(run)
        folder.create(tree)
        launcher.start(folder, launcher.slots[0])
        assert end(launcher, folder) == [0]
        ids.append(run)
        digests.append(folder.read_result()["plugins"]["norm"])
    launcher.free()
    assert digests[0] != digests[1]
    found = blocks(own("show", ids[0], "--against", ids[1]).out)
    assert [line.split() for line in found["code"]] == [["plugins.norm", *digests]]
    assert found["configuration"] == ["  seed  0  1"]
    out = own("show", ids[1]).out
    assert f"plugins: norm {digests[1]}\n" in out
    assert "\nstatus: not in the ledger\n" in out


# --- While it trains ----------------------------------------------------------------------------


def test_watching_off_a_terminal_is_a_line_a_change_and_the_last_state(story):
    lines = story.watched.splitlines()
    assert re.fullmatch(r"story: 0 of 2 done(, [12] running)?", lines[0])
    assert lines[-1] == "story: 2 of 2 done"
    assert len(set(lines)) == len(lines) <= 4
    done = story.shell("status", "--watch").out  # it is over: one look
    assert done == "story: 2 of 2 done\n"


WORKER = """
import itertools, os, pathlib, sys, time
from ablate.run.rundir import RunDir
run = RunDir(pathlib.Path(sys.argv[1]))
assert run.lock.acquire()
run.write_attempts([{"pid": os.getpid(), "at": time.time(), "from_step": 50, "slot": "gpu:0"}])
run.lock.note(pid=os.getpid(), slot="gpu:0", phase="train", total=10**6)
run.lock.note(from_step=50, from_at=time.time())
for step in itertools.count(51):
    run.lock.note(step=step)
    time.sleep(0.01)
"""


@pytest.fixture
def long(shell):
    """The folder of post#2 of the sweep `long`: driven by this process, its worker only counts."""
    store = Store(shell.folder / "runs")
    folder = store.rundir("feed")
    folder.path.mkdir(parents=True)
    folder.log.write_text("begun\n")
    assert store.driver.acquire()
    store.driver.note(pid=os.getpid(), sweep="long")
    only_row = dataclasses.replace(plan("long", [""], post=["feed"]), baseline="post")
    with planned(store, only_row) as ledger:
        ledger.record("feed", "started", step=50)
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(folder.path)])
    until(lambda: (folder.lock.notes().step or 0) > 50)
    yield folder
    worker.kill()
    worker.wait()
    store.driver.release()


def test_watching_and_following_what_trains(shell, long, tmp_path, monkeypatch):
    """On a terminal and off it; Ctrl-C leaves the sweep alone."""
    nvidia = Machine(tmp_path / "nvidia")
    nvidia.has([gpu(0, **{"utilization.gpu": 97, "memory.used": 31744}), gpu(1)])
    monkeypatch.setenv("PATH", nvidia.path)
    line = r"train [\d,]+/1000000, [\d.]+ steps/s, .* left$"
    assert re.search(rf"^running: post#2 on gpu:0: {line}", shell("status").out, re.M)
    out = shell("show", "post#2").out
    assert re.search(rf"^status: started, running: {line}", out, re.M)
    assert re.search(r"^  1\. .*, from step 50 on gpu:0: running$", out, re.M)

    watching = shell.start("status", "--watch")
    said = "long: 0 of 1 done, 1 running\n  gpu:0: 97 % busy, 31.0 of 79.6 GiB, 70 W\n"
    until(lambda: (shell.folder / f"{shell.number}.out").read_text() == said)
    watching.send_signal(signal.SIGINT)
    done = shell.end(watching)
    assert (done.code, done.err) == (130, "")
    head = f"sweep: long (driven by process {os.getpid()})"
    code, sent = interrupted_terminal(shell, "status", "--watch", after=b"busy", twice=head)
    assert code == 130
    assert "gpu:0: 97 % busy, 31.0 of 79.6 GiB, 70 W" in sent
    assert "gpu:1" not in sent
    assert sent.count(head) > 1
    assert "Traceback" not in sent

    following = shell.start("show", "feed", "--log", "--follow")
    printed = shell.folder / f"{shell.number}.out"
    until(lambda: printed.read_text() == "begun\n")
    with open(long.log, "a") as log:
        log.write("a word more\n")
    until(lambda: printed.read_text() == "begun\na word more\n")
    code, sent = interrupted_terminal(shell, "show", "post#2", "-f", after=b"more")
    assert (code, "Traceback" in sent) == (130, False)
    assert long.lock.is_held()
    os.kill(long.lock.notes().pid, signal.SIGKILL)
    until(lambda: not long.lock.is_held())
    with open(long.log, "a") as log:
        log.write("another attempt\n")
    until(lambda: printed.read_text() == "begun\na word more\nanother attempt\n")
    assert following.poll() is None  # its driver lives
    with Ledger.driving(Store(shell.folder / "runs")) as ledger:
        ledger.record("feed", "failed", reason="no more attempts")
    assert following.wait(60) == 0
    assert shell("show", "feed", "--log").out == printed.read_text()
    assert "running" not in shell("status").out
    assert ": killed without an error message\n" in shell("show", "feed").out


def test_following_what_nobody_trains_ends_with_the_remedy(tmp_path, capsys):
    store = Store(tmp_path / "runs")
    store.rundir("feed").path.mkdir(parents=True)
    store.rundir("feed").log.write_text("begun\n")
    with planned(store, plan("left", [""], post=["feed"])) as ledger:
        ledger.record("feed", "started", step=50)
        RunLog(store, "feed", out := io.BytesIO()).follow(ledger)
        assert out.getvalue() == b"begun\n"
        assert "the same `ablate sweep` goes on with it\n" in capsys.readouterr().err
        ledger.record("feed", "failed", reason="no more attempts")
        RunLog(store, "feed", out).follow(ledger)
        assert capsys.readouterr().err == ""


def interrupted_terminal(
    shell: Shell, *words: str, after: bytes, twice: str = ""
) -> tuple[int, str]:
    """Exit code and what a terminal was sent, where Ctrl-C was typed once it had `after`, and
    `twice` two times."""
    pid, ours = pty.fork()
    if pid == 0:
        os.chdir(shell.folder)
        os.execve(ABLATE, [ABLATE, *words], {**os.environ, "TERM": "xterm", "COLUMNS": "120"})
    sent, typed = b"", 0
    with contextlib.suppress(OSError):  # EIO: its end of the terminal is closed
        while chunk := os.read(ours, 1 << 16):
            sent += chunk
            if not typed and after in sent and (not twice or sent.count(twice.encode()) > 1):
                typed = os.write(ours, b"\x03")
    os.close(ours)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), sent.decode()


def test_a_log_that_is_not_there_is_a_failure_in_one_line(own):
    folder = rundir(own, "pre")
    folder.log.unlink()
    done = own("show", "pre#0", "--log", code=1)
    assert done.err.startswith(f"ablate: runs/runs/{folder.id}/log.txt: no log;")
    assert done.err.count("removed") == done.err.count("\n") == 1
    assert own("show", "pre#0", "-f", code=1).err == done.err
    assert own("show", "post#0", "-f").out == rundir(own, "post").log.read_text()  # it has ended


def test_an_imported_run_has_no_log_since_it_was_trained_elsewhere(shell):
    (shell.folder / "sheet.csv").write_text("m,seed,loss\nbase,0,1.5\nother,0,1.0\n")
    shell("import", "sheet.csv", "--row", "m", "--seed", "seed", "--metric", "loss:less")
    for flag in ("--log", "-f"):
        assert "trained elsewhere" in shell("show", "base#0", flag, code=1).err


def test_a_look_at_a_large_store_probes_only_runs_without_a_result(tmp_path, monkeypatch):
    store = Store(tmp_path)
    ids = [f"{number:04x}" for number in range(2000)]
    made = plan("large", [""], **{f"row {run}": [run] for run in ids})
    with planned(store, made) as ledger:
        for run in ids[:3]:
            ledger.record(run, "started", step=0)
            store.rundir(run).path.mkdir(parents=True)
        known = ledger.states() | dict.fromkeys(ids[3:], RunState(status="finished"))
        monkeypatch.setattr(ledger, "states", lambda runs: known)
        probed = []
        monkeypatch.setattr(Lock, "is_held", lambda lock: probed.append(lock.path.parent.name))
        begun = time.process_time()
        now = observe_progress(made, list(made.runs()), store, ledger)
        assert time.process_time() - begun < 1
    assert sorted(probed) == sorted([*ids[:3], tmp_path.name])
    assert now.counts == {"finished": 1997, "started": 3}
    assert not now.is_over
