"""Results as programs leave them: nested objects, a line an epoch, TensorBoard's event files, lines
on either output. What counts is what pandas reads of the program's own files, where it was started
by hand."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from conftest import REPOSITORY, Shell, wait_for
from support.processes import kill, workers
from support.programs import attempts, results

from ablate.planning import expand
from ablate.run import OwnSpec
from ablate.run.rundir import RunDir
from ablate.training.own import outcome, processes, result_table
from ablate.training.own.result_table import ResultRow

PROGRAM = REPOSITORY / "tests" / "programs" / "epochs" / "train.py"
COMMAND = (
    "python train.py --out {folder} --log {log} --seed {seed} --epochs {epochs} --pause {pause}"
)
METRIC = {"direction": "more", "range": [0, 1], "key": "test/acc"}
BEST = {"key": "val_acc", "direction": "more"}
INLINE = "launcher=inline"
EPOCHS = 12
SEED = "3"  # of which the last epoch, the best by validation and the best by test are three


@pytest.fixture
def shell(shell, monkeypatch) -> Shell:
    """In a folder with the program, where `python` is that of the environment."""
    shutil.copy(PROGRAM, shell.folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return shell


def declare(shell: Shell, log: str, result: object, **changes: object) -> None:
    yaml = {
        "command": COMMAND,
        "keys": {"log": log, "epochs": EPOCHS, "pause": 0.0},
        "result": result,
        "metrics": {"acc": METRIC},
        "code": ["train.py"],
        **changes,
    }
    path = shell.folder / "conf" / "trainer" / "epochs.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(yaml))


def by_hand(folder: Path, log: str) -> str:
    """Start the program in a folder, as somebody does; return what it printed on standard error."""
    folder.mkdir()
    words = ["--out", str(folder), "--log", log, "--seed", SEED, "--epochs", str(EPOCHS)]
    done = subprocess.run(
        [sys.executable, PROGRAM, *words], check=True, capture_output=True, text=True
    )
    return done.stderr


def values(shell: Shell, key: str = "acc") -> list[float]:
    return [result["test"][key] for result in results(shell.folder).values()]


def sweep(shell: Shell, *words: str, code: int = 0):
    return shell("sweep", "trainer=epochs", f"seeds=[{SEED}]", INLINE, *words, code=code)


def rule(shell: Shell) -> list[dict]:
    """The sentence that says which row is the result."""
    table = json.loads(shell("table", "--format", "json").out)
    return [note["values"] for note in table["caption"] if note["key"] == "result.row"]


# --- Where it is --------------------------------------------------------------------------------


@pytest.mark.whole
def test_of_a_csv_the_last_line_or_the_best_by_validation_counts(shell, tmp_path):
    by_hand(tmp_path / "hand", "csv")
    log = pd.read_csv(tmp_path / "hand" / "metrics.csv")
    best = log["test/acc"][log["val_acc"].idxmax()]
    last = log["test/acc"].iloc[-1]
    assert len({best, last, log["test/acc"].max()}) == 3  # or this shows nothing

    declare(shell, "csv", {"file": "metrics.csv"})
    sweep(shell)
    assert values(shell) == [last]
    assert rule(shell) == [{"place": {"file": "metrics.csv"}, "best": None}]
    shutil.rmtree(shell.folder / "runs")

    declare(shell, "csv", {"file": "metrics.csv", "best": BEST})
    sweep(shell)
    assert values(shell) == [best]
    assert rule(shell) == [{"place": {"file": "metrics.csv"}, "best": BEST}]
    text = "".join(shell("table").out.split())
    assert "result" in text
    assert "highestval" in text
    assert "nothing wrong" in shell("verify").out


@pytest.mark.faults
def test_several_metrics_are_of_one_row_whatever_they_are_called(shell, tmp_path):
    by_hand(tmp_path / "hand", "jsonl")
    text = (tmp_path / "hand" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    best = min(lines, key=lambda line: line["test"]["acc"])
    metrics = {"val": {"direction": "more", "key": "val.acc"}, "epoch_": {"direction": "less"}}
    metrics["epoch_"]["key"] = "epoch"
    result = {"file": "*.jsonl", "best": {"key": "test.acc", "direction": "less"}}
    declare(shell, "jsonl", result, metrics=metrics)
    sweep(shell)
    assert values(shell, "val") == [best["val"]["acc"]]
    assert values(shell, "epoch_") == [best["epoch"]]


@pytest.mark.faults
def test_lines_of_a_step_are_one_row(shell, tmp_path):
    """As Lightning's logger writes them: validation, training and the test have lines of their
    own."""
    by_hand(tmp_path / "hand", "lightning")
    log = pd.read_csv(tmp_path / "hand" / "metrics.csv")
    test = log["test/acc"].dropna().iloc[-1]
    metrics = {"acc": METRIC}
    declare(shell, "lightning", {"file": "metrics.csv"}, metrics=metrics)
    sweep(shell)
    assert values(shell) == [test]
    # Of the best epoch the loss stands in another line.
    metrics = {"loss": {"direction": "less", "key": "train_loss"}}
    declare(shell, "lightning", {"file": "metrics.csv", "best": BEST}, metrics=metrics)
    done = sweep(shell, code=1)
    assert "lacks train_loss" in done.out + done.err
    shutil.rmtree(shell.folder / "runs")
    result = {"file": "metrics.csv", "step": "epoch", "best": BEST}
    declare(shell, "lightning", result, metrics=metrics)
    sweep(shell)
    epochs = log.groupby("epoch").first()
    assert values(shell, "loss") == [epochs["train_loss"][epochs["val_acc"].idxmax()]]


def test_curves_in_a_folder_with_a_date_are_found_by_a_pattern(shell, tmp_path):
    """As timm and Lightning write them. Of several, that of an earlier attempt is not read."""
    by_hand(tmp_path / "hand", "csv")
    table = pd.read_csv(tmp_path / "hand" / "metrics.csv")
    old = "mkdir $0/old $0/new && echo epoch,val_acc > $0/old/metrics.csv"
    program = COMMAND.replace("{folder}", "$0/new")
    changes = {
        "command": ["sh", "-c", f"{old} && {program}", "{folder}"],
        "curves": {"file": "*/metrics.csv", "step": "epoch"},
    }
    declare(shell, "csv", {"file": "new/metrics.csv"}, **changes)
    sweep(shell)
    [path] = (shell.folder / "runs" / "runs").glob("*/metrics.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    logged = {line["step"]: line["val_acc"] for line in lines if "val_acc" in line}
    assert logged == dict(zip(table["epoch"], table["val_acc"], strict=True))
    declare(shell, "csv", {"file": "new/metrics.csv"}, **{**changes, "curves": {"file": "a**/b"}})
    assert "trainer.curves.file" in sweep(shell, code=2).err


@pytest.mark.faults
@pytest.mark.parametrize("best", [None, {"key": "val/acc", "direction": "more"}])
def test_event_files_of_tensorboard(shell, tmp_path, best):
    """Written by torch's own writer; read here of the csv of the same training."""
    pytest.importorskip("tensorboard")
    by_hand(tmp_path / "hand", "csv")
    log = pd.read_csv(tmp_path / "hand" / "metrics.csv")
    row = log.iloc[-1] if best is None else log.loc[log["val_acc"].idxmax()]
    result = {"tensorboard": "tb"} | ({"best": best} if best else {})
    declare(shell, "tensorboard", result)
    sweep(shell)
    assert values(shell) == [pytest.approx(row["test/acc"], abs=1e-7)]  # scalars have 32 bits
    assert rule(shell) == [{"place": {"tensorboard": "tb"}, "best": best}]


@pytest.mark.whole
@pytest.mark.parametrize("key", ["test/acc", pytest.param("test.acc", marks=pytest.mark.whole)])
def test_a_key_of_a_nested_object(shell, tmp_path, key):
    by_hand(tmp_path / "hand", "nested")
    left = json.loads((tmp_path / "hand" / "result.json").read_text())
    metrics = {
        "acc": {"direction": "more", "key": key},
        "loss": {"direction": "less", "key": "test/loss"},  # not nested, but called so
    }
    declare(shell, "nested", {"file": "result.json"}, metrics=metrics)
    sweep(shell)
    assert values(shell) == [left["test"]["acc"]]
    assert values(shell, "loss") == [left["test/loss"]]
    assert rule(shell) == []


@pytest.mark.faults
def test_lines_of_both_outputs_by_several_patterns(shell, tmp_path):
    said = by_hand(tmp_path / "hand", "stderr").split()[-1]
    patterns = [r"loss (?P<loss>\S+)", r"test acc: (?P<test_acc>[\d.]+)"]
    metrics = {"acc": {**METRIC, "key": "test_acc"}, "loss": {"direction": "less"}}
    declare(shell, "stderr", {"lines": patterns}, metrics=metrics)
    sweep(shell)
    assert values(shell) == [float(said)]
    assert 0 < values(shell, "loss")[0] < 2


# --- What is refused ----------------------------------------------------------------------------

REFUSED = {
    "no file": (
        "csv",
        {"file": "log.csv"},
        "log.csv: missing, .* its folder has metrics.csv, last.pkl",
    ),
    "no column": ("csv", {"file": "metrics.csv"}, "lacks acc.* it has val_acc, test/acc, "),
    "no column of validation": (
        *("csv", {"file": "metrics.csv", "best": {"key": "val_auc", "direction": "more"}}),
        r"lacks val_auc.* it has val_acc, ",
    ),
    "no column of steps": (
        *("csv", {"file": "metrics.csv", "step": "iteration"}),
        "line 2 has no number in iteration, .*it has .*epoch",
    ),
    "no key": ("jsonl", {"file": "metrics.jsonl"}, "lacks acc.* it has val/acc, test/acc, epoch"),
    "no object": ("nested", {"file": "last*"}, "last.*: is no JSON"),
    "no tag": ("tensorboard", {"tensorboard": "tb"}, "lacks acc.* it has val/acc, test/acc"),
    "no event file": (
        "tensorboard",
        {"tensorboard": "logs"},
        "tensorboard: logs: missing, .* its folder has tb$",
    ),
    "no match": (
        "stderr",
        {"lines": r"accuracy (?P<acc>\d)"},
        "no line .* its last line is .INFO. test acc: 0",
    ),
}


@pytest.mark.faults
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_missing_is_named_and_what_is_there(shell, name):
    log, result, line = REFUSED[name]
    metrics = {"acc": {"direction": "more"}}
    declare(shell, log, result, metrics=metrics)
    done = sweep(shell, code=1)
    assert re.search(line, done.out + done.err, re.MULTILINE), done.out + done.err
    assert "failed" in shell("status").out
    assert results(shell.folder) == {}


BEFORE_TRAINING = {
    "metrics.tsv": ("trainer.result.file: metrics.tsv", ".csv"),
    "last.pkl": ("trainer.result.file: last.pkl", ".json"),
    "**metrics.csv": ("trainer.result.file: **metrics.csv", "**/metrics.csv"),
}


@pytest.mark.parametrize("file", BEFORE_TRAINING)
def test_a_file_that_no_result_can_be_in_is_refused_by_the_plan(shell, file):
    declare(shell, "csv", {"file": file})
    error = shell("plan", "trainer=epochs", "seeds=1", code=2).err
    assert error.count("\n") == 1
    for words in BEFORE_TRAINING[file]:
        assert words in error


@pytest.mark.parametrize("result", [{"file": "version_*/metrics.csv"}, {"tensorboard": "runs/*"}])
def test_a_pattern_that_a_second_attempt_would_match_twice_is_refused_by_the_plan(shell, result):
    """A program that goes on writes to another folder, and two folders are no result."""
    declare(shell, "csv", result, resume="--resume {folder}/last.pkl")
    error = shell("plan", "trainer=epochs", "seeds=1", code=2).err
    assert error.count("\n") == 1
    for words in ("trainer.result: ", *result.values(), "`resume`"):
        assert words in error
    declare(shell, "csv", result)
    shell("plan", "trainer=epochs", "seeds=1")


@pytest.mark.parametrize("key", ["code", "data"])
def test_a_pattern_of_files_that_can_match_none(shell, key):
    declare(shell, "csv", {"file": "metrics.csv"}, **{key: ["**.py"]})
    error = shell("plan", "trainer=epochs", "seeds=1", code=2).err
    assert error.startswith(f"ablate: trainer.{key}: **.py: ")


def test_a_folder_to_start_in_that_is_not_there(shell):
    declare(shell, "csv", {"file": "metrics.csv"}, cwd="nosuch")
    error = shell("plan", "trainer=epochs", "seeds=1", code=2).err
    assert error.startswith("ablate: trainer.cwd: nosuch: ")


# Logs with an end that lacks the metric: of the test, which has columns of its own, and of an epoch
# whose nan pandas wrote as nothing.
JOINED = {
    "epoch,val,test\n0,1,\n1,2,\n2,,5\n": "2",
    "epoch,loss,val\n0,1,\n0,,1\n1,3,\n1,,2\n2,4,\n": "2",
    "epoch,val\n0,1\n1,2\n2,\n": None,
    "epoch,loss,val\n0,9,1\n1,9,2\n2,8,\n": None,
    "epoch,val,lr\n0,1,1\n1,2,1\n1,,0.5\n": "2",
}


@pytest.mark.parametrize("text", JOINED)
def test_the_end_of_a_log_whose_lines_are_joined(text):
    rows = result_table.csv_rows(text.encode(), "x")
    if JOINED[text] is None:
        with pytest.raises(result_table.UserError) as caught:
            result_table.check_last_rows(rows, "val", "epoch", "x")
        assert "line 4" in str(caught.value)
        return
    result_table.check_last_rows(rows, "val", "epoch", "x")
    joined = result_table.rows_by_step(rows, "epoch", "x")
    assert result_table.value_of_last(joined, "val", "x")[1] == JOINED[text]


TABLES = {
    "a,b\n1\n": "line 2 has 1 value, the header 2 columns",
    "a,b\n1,2,3\n": "line 2 has 3 values, the header 2 columns",
    "a,a\n1,2\n": "two columns a",
    "a,b\n": "no line below a header",
    "": "no line below a header",
    "a,b\n0.5,\n0.4,\n,1\n": "line 4 has no a, though all before it have",
    "b,c\n1,2\n": "lacks a",
}


@pytest.mark.parametrize("text", TABLES)
def test_a_csv_that_is_not_whole_is_refused_in_a_line(text):
    def read() -> None:
        rows = result_table.csv_rows(text.encode(), "x.csv")
        result_table.check_last_rows(rows, "a", None, "x.csv")
        result_table.value_of_last(rows, "a", "x.csv")

    with pytest.raises(result_table.UserError) as error:
        read()
    assert TABLES[text] in str(error.value)
    assert "\n" not in str(error.value)


def test_forms_of_a_csv():
    """What pandas, spreadsheets and programs that begin again write."""
    text = '\ufeffa, b\r\n0.5,"1,5"\r\n\r\na, b\r\n0.25,\r\n1,"two\nlines"\r\n0.75,3\r\n'
    rows = result_table.csv_rows(text.encode(), "x.csv")
    assert [(row.place, row.cells["a"], row.cells["b"]) for row in rows] == [
        ("line 2", "0.5", "1,5"),
        ("line 5", "0.25", ""),
        ("line 7", "1", "two\nlines"),
        ("line 8", "0.75", "3"),
    ]
    assert result_table.value_of_last(rows, "a", "x.csv") == (rows[3], "0.75")


def test_steps_that_are_written_again_count_as_they_were_last():
    steps = [(1, 0.5), (2, 0.9), (3, 0.7), (2, 0.6), (4, 0.8)]
    rows = [ResultRow(f"line {n}", {"step": step, "a": a}) for n, (step, a) in enumerate(steps)]
    joined = result_table.rows_by_step(rows, "step", "x")
    assert [row.cells["a"] for row in joined] == [0.5, 0.6, 0.8]


def test_a_tag_that_goes_back_loses_what_it_had_and_no_other_tag(tmp_path):
    """As TensorBoard shows it: a file of the test alone, and one of a program that resumed."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for part, values in enumerate(
        [[("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 3)], [("test", 1)], [("a", 2), ("a", 4)]]
    ):
        with SummaryWriter(str(tmp_path), filename_suffix=f".{part}") as writer:
            for tag, step in values:
                writer.add_scalar(tag, 10 * part + step, step)
    files = sorted(tmp_path.iterdir(), key=lambda file: file.suffix)
    assert [(row.place, row.cells) for row in result_table.event_rows(files, "tb")] == [
        ("step 1", {"a": 1, "b": 1, "test": 11}),
        ("step 2", {"a": 22}),
        ("step 3", {"b": 3}),
        ("step 4", {"a": 24}),
    ]


def test_the_first_of_equal_rows_is_the_best_and_a_nan_never():
    rows = [
        ResultRow(str(n), {"v": v}) for n, v in enumerate(["nan", 0.5, "inf", 0.75, 0.75, None])
    ]
    assert result_table.best_row(rows, "v", "more", "x") is rows[3]
    assert result_table.best_row(rows, "v", "less", "x") is rows[1]


# --- Attempts and ids ---------------------------------------------------------------------------


@pytest.mark.faults
@pytest.mark.parametrize("resumes", [False, True], ids=["from nothing", "resumes"])
def test_what_a_killed_attempt_wrote_does_not_count(shell, tmp_path, resumes):
    """The result is that of a run without a kill, though the table was cut within a line."""
    by_hand(tmp_path / "hand", "csv")
    log = pd.read_csv(tmp_path / "hand" / "metrics.csv")
    changes = {"resume": "--resume {folder}/last.pkl"} if resumes else {}
    result = {"file": "metrics.csv", "step": "epoch", "best": BEST}
    declare(shell, "csv", result, **changes)
    words = (
        "sweep",
        "trainer=epochs",
        f"seeds=[{SEED}]",
        "trainer.pause=0.3",
        "launcher.attempts=9",
    )
    driver = shell.start(*words)
    [table] = wait_for(lambda: [*shell.folder.glob("runs/runs/*/scratch/metrics.csv")])
    wait_for(lambda: table.read_text().count("\n") > 4)
    kill([driver.pid, *workers(shell.folder)])
    driver.wait()
    for path in shell.folder.glob("runs/runs/*"):
        processes.end_processes(processes.tag_of(RunDir(path)))
    # An epoch that never was, the best of all, and a line that was cut off.
    with open(table, "a") as file:
        file.write("11,0,1.0,0.999\n12,0,1." if resumes else "12,0,1.0,0.999\n")
    shell(*words, INLINE)
    assert values(shell) == [log["test/acc"][log["val_acc"].idxmax()]]
    first, second = attempts(shell.folder)
    assert (first["from_step"], second["from_step"]) == (0, 1 if resumes else 0)


@pytest.mark.whole
def test_the_place_of_a_metric_and_the_rule_are_part_of_the_id(shell, monkeypatch):
    monkeypatch.chdir(shell.folder)

    def run_id(result: object, key: str) -> str:
        declare(shell, "csv", result, metrics={"acc": {"direction": "more", "key": key}})
        plan, _ = expand.plan_from_words(["trainer=epochs", "seeds=2"], store=Path("runs"))
        run, _ = plan.runs()
        return run.id

    table = {"file": "metrics.csv"}
    ids = [
        run_id(table, "test/acc"),
        run_id(table, "acc"),
        run_id({**table, "best": BEST}, "acc"),
        run_id({**table, "best": {**BEST, "direction": "less"}}, "acc"),
        run_id({**table, "step": "epoch"}, "acc"),
        run_id({"tensorboard": "tb"}, "acc"),
    ]
    assert len({*ids}) == len(ids)
    assert run_id(table, "test/acc") == ids[0]


def test_a_tree_without_the_new_keys_is_as_it_was(shell, monkeypatch):
    """So runs of before keep their ids."""
    monkeypatch.chdir(shell.folder)
    declare(shell, "nested", {"file": "result.json"}, metrics={"acc": {"direction": "more"}})
    plan, _ = expand.plan_from_words(["trainer=epochs", "seeds=2"], store=Path("runs"))
    spec = next(iter(plan.runs())).cell.spec
    assert isinstance(spec, OwnSpec)
    assert spec.tree["code"]["program"]["result"] == {"file": "result.json"}
    assert "result_key" not in spec.tree["metrics"][0]


def test_a_function_has_no_key_of_a_result(shell):
    yaml = shell.folder / "conf" / "trainer" / "own.yaml"
    yaml.parent.mkdir(parents=True)
    yaml.write_text("name: own:main\nmetrics: {acc: {direction: more, key: test/acc}}\n")
    shell.folder.joinpath("own.py").write_text("def main(settings, run): pass\n")
    assert "metrics.acc.key" in shell("plan", "trainer=own", "seeds=2", code=2).err


def test_a_cause_has_no_colours():
    with pytest.raises(RuntimeError) as error:
        outcome.fail(1, "start\n\x1b[1m\x1b[31mValueError: no data\x1b[0m\n")
    assert str(error.value).endswith(": ValueError: no data")
