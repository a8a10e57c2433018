"""Loggers: after kill -9 of driver, workers and loggers, each service's own library reads every
step once; a service that fails costs a warning. And `notify`."""

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Shell, wait_for
from support.processes import kill, workers

from ablate.cli.selection import Selection
from ablate.planning.cell import Cell, PlannedRun
from ablate.planning.logger import LOGGERS, read_logger_words, split_logger_words
from ablate.run.rundir import RunDir
from ablate.run.spec import RunSpec
from ablate.running import loggers
from ablate.running.loggers import Feeders, check_loggers_installed
from ablate.running.loggers.mlflow import MLflow
from ablate.running.loggers.pages import Page, bring, page_of
from ablate.running.loggers.tensorboard import TensorBoard
from ablate.running.loggers.wandb import WandB
from ablate.shared.errors import UserError
from ablate.shared.files import Lock

# Two runs, in words that leave time for a kill; and in words that don't.
ROWS = ("sweep", "block.attn=pre,post", "--as", "k")
SLOW = (*ROWS, "model.depth=2", "train.epochs=8", "seeds=1")
TINY = (*ROWS, "model.depth=1", "train.steps=4")

Facts = list[tuple[str, int, float]]  # key, step, value


def installed() -> list[str]:
    found = []
    for name in LOGGERS:
        with contextlib.suppress(UserError):
            check_loggers_installed([name])
            found.append(name)
    return found


# --- A sweep that is killed twice ---------------------------------------------------------------


def feeders(folder: Path) -> list[int]:
    """The processes of loggers that were started in this folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                here = os.readlink(process / "cwd") == str(folder)
                if here and b"ablate.running.loggers.feed" in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
    return found


def kept(shell: Shell) -> int:
    """The furthest step that a run measured and has in a checkpoint."""
    runs = [RunDir(path) for path in (shell.folder / "runs" / "runs").glob("*")]
    steps = [x["step"] for r in runs for x in r.read_metrics() if x["step"] <= r.newest_step()]
    return max(steps, default=0)


def cut_off(shell: Shell, words: tuple[str, ...], beyond: int, all_of_them: bool) -> int:
    """Start the command. Once loggers have handed on a step of a training run, kill -9 the driver
    and the loggers, and perhaps the workers; that step."""
    driver = shell.start(*words)
    wait_for(lambda: kept(shell) > beyond or driver.poll() is not None)
    held = workers(shell.folder)
    kill(held, signal.SIGSTOP)  # what follows is no race against the training
    step = kept(shell)
    files = shell.folder / "runs" / "logs" / "jsonl" / "k"
    if step:
        wait_for(lambda: any(f'"step": {step},' in f.read_text() for f in files.glob("[!.]*#*")))
    kill([driver.pid, *feeders(shell.folder), *(held if all_of_them else ())])
    kill(() if all_of_them else held, signal.SIGCONT)
    driver.wait()
    return step


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Shell:
    """A sweep with every logger that is installed, killed twice, and then brought to its end."""
    shell = Shell(tmp_path_factory.mktemp("killed"))
    often = ("launcher.checkpoint_s=0.2", "launcher.attempts=1000")
    words = (*SLOW, *often, f"logger=[{','.join(installed())}]")
    step = cut_off(shell, words, beyond=0, all_of_them=True)
    cut_off(shell, words, beyond=step, all_of_them=False)
    assert "warning" not in shell.process(*words).out
    wait_for(lambda: not feeders(shell.folder))
    return shell


def jsonl(logs: Path) -> Iterator[tuple[str, str, Facts]]:
    for file in logs.glob("jsonl/k/[!.]*#*"):
        about, *lines, last = map(json.loads, file.read_text().splitlines())
        assert (about["sweep"], about["seed"], last["status"]) == ("k", 0, "finished")
        assert about["configuration"]["model.depth"] == 2
        facts = [(key, x["step"], x[key]) for x in lines for key in x.keys() - {"run", "step"}]
        yield about["run"], about["label"], facts


def tensorboard(logs: Path) -> Iterator[tuple[str, str, Facts]]:
    from tensorboard.backend.event_processing import event_accumulator as reader

    every = reader.STORE_EVERYTHING_SIZE_GUIDANCE
    for folder in logs.glob("tensorboard/k/*#*"):
        events = reader.EventAccumulator(str(folder), every).Reload()
        settings = events.Tensors("configuration")[0].tensor_proto.string_val[0].decode()
        assert "| model.depth | 2 |" in settings
        assert "| sweep | k |" in settings
        label, _, run = folder.name.rpartition("-")
        tags = events.Tags()["scalars"]
        yield run, label, [(tag, e.step, e.value) for tag in tags for e in events.Scalars(tag)]


def wandb(logs: Path) -> Iterator[tuple[str, str, Facts]]:
    from wandb.proto.wandb_internal_pb2 import Record

    for file in logs.glob("wandb/offline-run-*/*.wandb"):
        records = [Record.FromString(part) for part in framed(file.read_bytes())]
        [about] = [record.run for record in records if record.HasField("run")]
        config = {x.key: json.loads(x.value_json) for x in about.config.update}
        assert (config["seed"], config["configuration"]["model"]["depth"]) == (0, 2)
        assert (about.run_group, about.display_name) == ("k", config["label"])
        facts = [
            (item.nested_key[0], record.history.step.num, json.loads(item.value_json))
            for record in records
            for item in record.history.item
            if not item.nested_key[0].startswith("_")
        ]
        yield config["run"], config["label"], facts


def framed(content: bytes) -> Iterator[bytes]:
    """The records of W&B's file, which is a log of LevelDB's: blocks of 32 KiB, and in them parts,
    each with its hash, length and kind (1: whole, 2, 3, 4: the first, one between, the last)."""
    at, record = 7, b""
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        record += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield record
            record = b""


def mlflow(logs: Path) -> Iterator[tuple[str, str, Facts]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{logs}/mlflow.db")
    for run in client.search_runs([client.get_experiment_by_name("k").experiment_id]):
        assert run.data.params["model.depth"] == "2"
        assert (run.data.tags["ablate.seed"], run.info.status) == ("0", "FINISHED")
        facts = [
            (key, metric.step, metric.value)
            for key in run.data.metrics
            for metric in client.get_metric_history(run.info.run_id, key)
        ]
        yield run.data.tags["ablate.run"], run.info.run_name, facts


@pytest.mark.faults
@pytest.mark.parametrize(
    "read", [jsonl, tensorboard, wandb, mlflow], ids=lambda read: read.__name__
)
def test_no_step_twice_and_none_missing_after_two_kills(killed, read):
    if read.__name__ not in installed():
        pytest.importorskip(read.__name__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of their own making
        found = list(read(killed.folder / "runs" / "logs"))
    assert sorted(label for _, label, _ in found) == ["post#0", "pre#0"]
    for run, _, facts in found:
        lines = RunDir(killed.folder / "runs" / "runs" / run).read_metrics()
        wanted = sorted((k, x["step"], v) for x in lines for k, v in x.items() if k != "step")
        keys = {key for key, *_ in wanted}
        seen = sorted(fact for fact in facts if fact[0] in keys)
        assert [fact[:2] for fact in seen] == [fact[:2] for fact in wanted]
        assert [fact[2] for fact in seen] == pytest.approx([fact[2] for fact in wanted], rel=1e-6)
        assert len(lines) == 8


@pytest.mark.faults
def test_the_same_command_again_writes_nothing_twice(killed):
    """Nor where a kill came between a page and the note that it is there in full."""
    logs = killed.folder / "runs" / "logs"
    files = {file: file.stat().st_mtime_ns for file in logs.rglob("*#*") if file.is_file()}
    others = [name for name in installed() if name != "mlflow"]  # which is asked, and takes long
    assert files
    for _ in range(2):
        killed(*SLOW, "launcher=inline", f"logger=[{','.join(others)}]")
        wait_for(lambda: not feeders(killed.folder))
        assert {file: file.stat().st_mtime_ns for file in files} == files
        for note in logs.glob("*/k/done.jsonl"):
            note.unlink()
    for read in (jsonl, tensorboard, wandb):
        if read.__name__ in others:
            test_no_step_twice_and_none_missing_after_two_kills(killed, read)


# --- What a page has ----------------------------------------------------------------------------


def test_a_file_is_mended_from_wherever_a_kill_tore_it(tmp_path):
    path, content = tmp_path / "file", b"first\nsecond\nthird\n"
    for end in range(len(content) + 1):
        path.write_bytes(content[:end])
        node = path.stat().st_ino
        bring(path, content, final=False)
        assert path.read_bytes() == content
        assert path.stat().st_ino == node  # it was appended to: who follows the file reads on
    bring(path, content[:6], final=False)  # the run went back; it comes there again
    assert path.read_bytes() == content
    bring(path, b"first\nother\n", final=False)
    assert path.read_bytes() == b"first\nother\n"
    bring(path, b"first\n", final=True)
    assert path.read_bytes() == b"first\n"


def test_a_page_ends_at_the_checkpoint_and_has_each_step_once(tmp_path):
    folder = RunDir(tmp_path)
    lines = [(1, {"loss": 3.0}), (2, {"loss": 2.0}), (2, {"extra": 1.0, "note": "x"}), (3, {})]
    text = "".join(json.dumps({"step": step, **said}) + "\n" for step, said in lines)
    folder.metrics.write_text(text + '{"step": 4, "lo')
    run = PlannedRun("a" * 16, Cell("row", "column", RunSpec.of({}), {0: "a" * 16}), 0)
    page = page_of("sweep", run, folder, None, 2)
    assert page.lines == {1: {"loss": 3.0}, 2: {"loss": 2.0, "extra": 1.0}}
    ended = {"status": "finished", "metrics_sha256": "h", "test": {"top1": 0.5}, "seconds": 2.0}
    page = page_of("sweep", run, folder, ended, None)
    assert list(page.lines) == [1, 2, 3]
    assert page.final() == {"test_top1": 0.5, "seconds": 2.0}


# --- MLflow -------------------------------------------------------------------------------------


class MLflowRuns:
    """A client of MLflow, with the values of the one run that it has."""

    def __init__(self) -> None:
        self.info = SimpleNamespace(run_id="1")
        self.data = SimpleNamespace(metrics={}, params={})
        self.values: dict[tuple[str, int], float] = {}

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id="1")

    def search_runs(self, experiments, filter, page_token):
        return type("Page", (list,), {"token": None})([self])

    def get_metric_history(self, run, key):
        return [
            SimpleNamespace(key=name, step=step, value=value)
            for (name, step), value in self.values.items()
            if name == key
        ]

    def log_batch(self, run, metrics=(), params=()):
        from mlflow.utils.validation import _validate_metric_name, _validate_param_name

        for metric in metrics:
            _validate_metric_name(metric.key)
        for param in params:
            _validate_param_name(param.key)
            assert self.data.params.setdefault(param.key, param.value) == param.value
        self.values |= {(metric.key, metric.step): metric.value for metric in metrics}
        self.data.metrics = {key: 0.0 for key, _ in self.values}


@pytest.mark.faults
def test_a_run_whose_data_moved_goes_on_in_mlflow_and_names_have_its_characters(monkeypatch):
    pytest.importorskip("mlflow")
    client, logger = MLflowRuns(), object.__new__(MLflow)
    for path, step in (("here", 1), ("there", 2)):
        logger._client, logger._runs = client, {}  # as a later command has them
        spec = RunSpec.of({"data": {"path": path}, "k+": 3})
        run = PlannedRun("a" * 16, Cell("row", "column", spec, {0: "a" * 16}), 0)
        lines = {number: {"acc@1": float(number)} for number in range(1, step + 1)}
        logger.hand_on(Page("sweep", run, 0.0, lines, None))
    assert client.data.params == {"data.path": "here", "k_": "3", "seed": "0"}
    assert client.values == {("acc_1", 1): 1.0, ("acc_1", 2): 2.0}


# --- TensorBoard and W&B ------------------------------------------------------------------------


def test_a_run_that_is_trained_again_has_one_file_in_tensorboard(tmp_path):
    """Of one that was handed on in full the file stays until the run has ended again."""
    pytest.importorskip("tensorboard")
    run = PlannedRun("a" * 16, Cell("row", "column", RunSpec.of({}), {0: "a" * 16}), 0)
    logger = TensorBoard({}, tmp_path)
    ended = {"status": "finished", "metrics_sha256": "h"}
    found = []
    for started, result in ((1.0, None), (2.0, None), (2.0, ended), (3.0, None), (3.0, ended)):
        logger.hand_on(Page("sweep", run, started, {1: {"loss": 3.0}}, result))
        [file] = tmp_path.rglob("events.*")
        found.append(file.name.split(".")[3])
    assert found == ["1", "2", "2", "2", "3"]


def test_what_wandb_does_not_write_is_not_handed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setitem(sys.modules, "wandb", None)
    run = PlannedRun("a" * 16, Cell("row", "column", RunSpec.of({}), {0: "a" * 16}), 0)
    settings = {"mode": "auto", "entity": "", "project": "ablate"}
    logger = WandB(settings, tmp_path)
    logger.hand_on(Page("sweep", run, 0.0, {}, {"status": "finished", "metrics_sha256": "h"}))
    assert logger.seals("sweep") == {}


def test_the_folder_of_logs_may_be_below_ones_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(loggers, "_start", lambda request, log: asked.append(request))
    asked: list[dict] = []
    Feeders({"jsonl": {"folder": "~/tb"}}, tmp_path / "runs", "s", print)
    assert asked[0]["folder"] == str(tmp_path / "tb")


# --- Trackio ------------------------------------------------------------------------------------

STAND_IN = """
import json, os, pathlib, signal, warnings

FOLDER = pathlib.Path(os.environ["TRACKIO_DIR"])

class Run:
    def __init__(self, about):
        self.name, self.about, self.lines = about["name"], about, []
        self.file = FOLDER / about["project"] / (self.name + ".json")
        self.file.parent.mkdir(exist_ok=True)

    def log(self, metrics, step=None):
        self.lines.append([step, metrics])
        self.file.write_text(json.dumps([self.about, self.lines]))
        if (FOLDER / "kill").exists():
            (FOLDER / "kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if (FOLDER / "full").exists():
            warnings.warn("the batch is lost")

    def finish(self):
        pass

    def delete(self):
        self.file.unlink()
        return True

def init(project, name=None, group=None, config=None, resume="never", settings=None, embed=True):
    return Run({"project": project, "name": name, "group": group, "config": config})

class Api:
    def runs(self, project):
        if not (FOLDER / project).is_dir():
            raise ValueError("no such project")
        files = (FOLDER / project).glob("*.json")
        return [Run(json.loads(file.read_text())[0]) for file in files]
"""


def trackio_runs(folder: Path) -> dict[str, tuple[dict, list]]:
    files = (folder / "runs" / "logs" / "trackio" / "ablate").glob("*.json")
    found = [json.loads(file.read_text()) for file in files]
    return {about["config"]["run"]: (about, lines) for about, lines in found}


def trackio_sweep(shell: Shell) -> str:
    """Run the sweep with the stand-in; what it printed, once its logger has ended."""
    words = (*TINY, "seeds=1", "launcher=inline", "logger=trackio")
    out = shell.process(*words).out
    wait_for(lambda: not feeders(shell.folder))
    return out


@pytest.mark.faults
def test_trackio_has_each_step_once_also_after_a_kill(shell, tmp_path, monkeypatch):
    place = tmp_path / "packages"
    place.mkdir()
    (place / "trackio.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(place))
    monkeypatch.setenv("TRACKIO_SPACE_ID", "somebody/space")
    logs = shell.folder / "runs" / "logs" / "trackio"
    logs.mkdir(parents=True)
    for fault in ("kill", "full"):
        (logs / fault).touch()
        assert "warning: logger=trackio has stopped" in trackio_sweep(shell)
        (logs / fault).unlink(missing_ok=True)
        assert not list(logs.glob("k/done.jsonl"))
    assert "warning" not in trackio_sweep(shell)
    runs = trackio_runs(shell.folder)
    assert len(runs) == 2
    for run, (about, lines) in runs.items():
        folder = RunDir(shell.folder / "runs" / "runs" / run)
        measured = [(x.pop("step"), x) for x in folder.read_metrics()]
        assert [(step, values) for step, values in lines[:-1]] == measured
        step, final = lines[-1]
        assert step == measured[-1][0]
        assert final["test_top1"] == folder.read_result()["test"]["top1"]
        config = about["config"]
        assert (about["group"], config["sweep"], config["status"]) == ("k", "k", "finished")
        assert config["configuration"]["model"]["depth"] == 1
        assert about["name"].startswith(config["label"])


# --- Words --------------------------------------------------------------------------------------


def test_words_beside_a_sweep_are_read_and_are_no_part_of_its_plan():
    words, ours = split_logger_words(
        ["name", "logger=a,b", "logger.folder=x", "notify=curl 'x' | y=z"]
    )
    assert words == ["name"]
    assert ours == ["logger=a,b", "logger.folder=x", "notify=curl 'x' | y=z"]
    said = read_logger_words(["logger=wandb,jsonl", "logger.project=vit", ours[2]])
    assert list(said.loggers) == ["wandb", "jsonl"]
    assert said.loggers["wandb"]["project"] == "vit"
    assert said.loggers["jsonl"] == {"folder": ""}
    assert said.notify == "curl 'x' | y=z"
    assert Selection(["name", "logger=jsonl", "a=1", "notify=x"]).words == ["name", "a=1"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["logger=wandbb"], r"logger: expected one of .*did you mean 'wandb'"),
        (["logger=jsonl", "logger.project=x"], "logger.project: is a setting of logger=wandb"),
        (["logger=jsonl", "logger.flder=x"], "logger.flder: expected a key among .*'folder'"),
        (["logger.folder=x"], "logger.folder: of which logger"),
        (["logger=wandb", "logger.mode=of"], "logger.mode: expected one of auto, online, offline"),
        (["logger=jsonl", "logger=jsonl"], "logger: given twice"),
        (["notify= "], "notify: expected a shell command"),
    ],
)
def test_mistakes_are_named(words, line):
    with pytest.raises(UserError, match=line):
        read_logger_words(words)


def test_a_missing_extra_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"logger=wandb: needs wandb.*wandb>=0.22"):
        check_loggers_installed(["wandb"])


# --- What fails, and who is told ----------------------------------------------------------------


def fed(folder: Path) -> tuple[Feeders, subprocess.Popen, list[str]]:
    """A logger that hands on nothing yet, its process, and what is said of it."""
    said: list[str] = []
    feeders = Feeders({"jsonl": {"folder": ""}}, folder, "s", said.append)
    [process] = feeders._processes.values()
    return feeders, process, said


def test_a_service_that_hangs_is_left_behind(monkeypatch, tmp_path):
    def hangs(told, log):
        return subprocess.Popen(["sleep", "1000"], stdin=subprocess.PIPE, start_new_session=True)

    monkeypatch.setattr(loggers, "_start", hangs)
    monkeypatch.setattr(loggers, "END_S", 0.1)
    feeders, process, said = fed(tmp_path)
    feeders.look()
    assert said == []
    feeders.close()
    process.kill()
    process.wait()
    assert said == [f"logger=jsonl: process {process.pid} hands on the rest, and ends by itself"]


TOKEN = "hooks.example/T0KEN"


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> Shell:
    """A sweep whose logger can't write, and which tells a file what became of it."""
    shell = Shell(tmp_path_factory.mktemp("told"))
    (shell.folder / "jsonl").write_text("a file where a folder should be")
    words = (*TINY, "launcher=inline", "seeds=3", "logger=jsonl", "logger.folder=.")
    shell(*words, f"notify=cat > told.json; : {TOKEN}")
    return shell


def test_a_logger_that_fails_is_one_warning_and_nothing_else(told):
    out = (told.folder / "1.out").read_text()
    [line] = [line for line in out.splitlines() if "warning" in line]
    assert re.match(r"warning: logger=jsonl has stopped: .*Error: .* \(see .*jsonl\.log\);", line)
    assert "6 runs: 6 finished" in told("status").out


def test_a_logger_whose_log_was_removed_costs_the_sweep_nothing(tmp_path):
    feeders, process, said = fed(tmp_path)
    process.kill()
    process.wait()
    shutil.rmtree(tmp_path / "logs")
    feeders.look()
    feeders.close()
    assert [line.partition(";")[0] for line in said] == [
        f"warning: logger=jsonl has stopped: no word (see {tmp_path / 'logs' / 'jsonl.log'})"
    ]


def test_a_logger_that_never_had_its_turn_is_told(tmp_path):
    """Of the sweep before, whose service was slow: else a sweep would lack its logs unsaid."""
    (tmp_path / "logs").mkdir()
    with Lock(tmp_path / "logs" / ".jsonl.lock").hold():
        feeders, process, said = fed(tmp_path)
        process.stdin.close()
        process.wait()
        feeders.look()
    [line] = said
    assert "still hands on" in line
    assert "run the same command again to send it what is missing" in line


def test_the_end_is_told_with_the_verdicts_that_were_read(told):
    said = json.loads((told.folder / "told.json").read_text())
    assert (said["event"], said["done"], said["total"], said["exit"]) == ("end", 6, 6, 0)
    assert said["states"] == {"finished": 6}
    assert [verdict["row"] for verdict in said["verdicts"]] == ["post"]
    assert said["verdicts"][0]["verdict"] in told("table").out
    assert said["line"].startswith(f"{said['sweep']}: 6 of 6 runs done. On digits, against ")
    with contextlib.closing(sqlite3.connect(told.folder / "runs" / "ledger.db")) as ledger:
        assert ledger.execute("SELECT count(*) FROM event WHERE kind = 'look'").fetchone() == (1,)


def test_the_command_stands_nowhere(told):
    told("export", "k", "bundle")
    found = [f for f in told.folder.rglob("*") if f.is_file() and TOKEN.encode() in f.read_bytes()]
    assert found == []


def test_a_failed_run_is_told_and_a_command_that_fails_is_one_warning(shell):
    found = shell("config", "model.depth=1", "train.steps=4", "--format", "json").out
    folder = shell.folder / "runs" / "runs" / json.loads(found)["run"]
    (folder / "metrics.jsonl").mkdir(parents=True)
    words = (*TINY, "seeds=1", "launcher=inline", "notify=cat >> told; exit 3")
    done = shell(*words, code=1)
    assert done.out.count("warning: notify: the command ended with exit code 3; ") == 1
    told = map(json.loads, (shell.folder / "told").read_text().splitlines())
    said = {one["event"]: one for one in told}
    assert said.keys() == {"failure", "end"}
    assert [one["status"] for one in said["failure"]["lost"]] == ["failed"]
    assert (said["end"]["exit"], said["end"]["verdicts"]) == (1, [])
    where, failed = f"{said['end']['sweep']}: 1 of 2 runs done, 1 given up. ", "1 failed of 2"
    assert said["end"]["line"].startswith(f"{where}{failed}")


def notified(command: str) -> list[str]:
    """What is said of a command that is told something."""
    said: list[str] = []
    notifier = loggers.Notifier(command, said.append)
    notifier.send({})
    notifier.close()
    return said


def test_a_command_that_hangs_is_killed_with_what_it_started(monkeypatch, tmp_path):
    monkeypatch.setattr(loggers, "LIMIT_S", 0.5)
    pids = tmp_path / "pids"
    [line] = notified(f"echo $$ >> {pids}; sleep 1000 & echo $! >> {pids}; wait")
    assert line.startswith("warning: notify: the command took more than 0 s, and was killed; ")
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.read_text().split()))


def test_no_list_of_processes_shows_the_command(tmp_path):
    out = tmp_path / "out"
    said = notified(f"cat /proc/$PPID/cmdline /proc/$$/cmdline > {out}; : {TOKEN}")
    assert said == []
    assert "timeout" in out.read_text()
    assert TOKEN not in out.read_text()
