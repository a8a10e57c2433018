"""Programs that know nothing of us as trainers: planned, trained, stopped, killed, resumed, judged,
by real processes. What they compute is computed here again."""

from __future__ import annotations

import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import Shell, wait_for
from support.processes import kill, workers
from support.programs import (
    COMMAND,
    RESUMES,
    TRAIN,
    YAML,
    attempts,
    declare,
    expected_loss,
    results,
)
from yaml import safe_load

from ablate.planning import expand
from ablate.run import program
from ablate.run.rundir import RunDir
from ablate.running.launchers.local import Inline
from ablate.shared import UserError, system
from ablate.training.own import outcome, processes
from ablate.training.own.curves import validation_columns

INLINE = "launcher=inline"


@pytest.fixture
def toy(shell, monkeypatch) -> Path:
    """A folder with the program; that we are in."""
    (shell.folder / "train.py").write_text(TRAIN)
    declare(shell.folder)
    (shell.folder / "sweeps").mkdir()
    one = {"base": {"trainer": "toy"}, "variants": [{"one": {}}], "seeds": 1}
    (shell.folder / "sweeps" / "one.yaml").write_text(json.dumps(one))
    monkeypatch.chdir(shell.folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return shell.folder


@pytest.mark.whole
def test_inline_loads_no_torch_for_a_program(toy, shell, monkeypatch):
    monkeypatch.setattr(Inline, "_worker", lambda launcher: pytest.fail("torch is loaded"))
    shell("sweep", "one", INLINE)
    assert "finished" in shell("status").out


def ids(*words: str) -> list[str]:
    return [run.id for run in expand.plan_from_words(list(words), store=Path("runs"))[0].runs()]


def curve(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def told(shell) -> dict[tuple[str, int], float]:
    """The losses of a table, by row and seed."""
    facts = [fact for fact in shell.facts() if fact["quantity"] == "loss.run"]
    return {(fact["row"], int(fact["seed"])): float(fact["value"]) for fact in facts}


# --- A sweep of it ------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_sweep_is_tabulated_verified_and_bundled(toy, shell):
    done = shell("sweep", "trainer=toy", "trainer.lr=0.1,0.3", "seeds=3")
    assert f"Trained by {COMMAND}" in done.out
    assert told(shell) == {
        (f"lr={rate}", seed): expected_loss(rate, seed) for rate in (0.1, 0.3) for seed in range(3)
    }
    (path, *_) = toy.glob("runs/runs/*/metrics.jsonl")
    lines = curve(path)
    assert [line["step"] for line in lines] == [1, 2, 3, 3]
    assert all(line["val_loss"] == line["train_loss"] + 1 for line in lines[:3])
    assert "nothing wrong" in shell("verify").out
    assert "the same bits" in shell("verify", "--rerun", "lr=0.1#0", INLINE).out
    shell("export", "bundle")
    assert "nothing wrong" in shell("verify", "bundle").out
    shell("table", "--strict")
    version = platform.python_version()
    assert {each["interpreter"]["python"] for each in attempts(toy)} == {version}
    assert {each["interpreter"] for each in results(toy).values()} == {f"python {version}"}
    path.write_text(path.read_text().replace('"test_loss": ', '"test_loss": 1'))
    assert "metrics.jsonl" in shell("verify", code=1).out


@pytest.mark.whole
def test_a_sweep_of_a_program_starts_without_torch(toy, shell, tmp_path_factory):
    broken = tmp_path_factory.mktemp("broken")
    (broken / "torch.py").write_text("raise ImportError('of no use here')")
    words = ("sweep", "one", "trainer.lr=0.3", "launcher.devices=cpu")
    shell.process(*words, PYTHONPATH=str(broken))
    assert told(shell) == {("one", 0): expected_loss(0.3, 0)}
    shell.process("sweep", "quickstart", "seeds=1", code=1, PYTHONPATH=str(broken))


@pytest.mark.whole
def test_a_search_is_judged_by_the_curves(toy, shell):
    sweep = {
        "base": {"trainer": "toy", "trainer.steps": 2},
        "variants": [{"gelu": {}}, {"tanh": {"trainer.act": "tanh"}}],
        "seeds": 2,
        "tune": {"space": {"trainer.lr": {"uniform": [0.05, 0.6]}}, "trials": 6, "repeats": 1},
    }
    (toy / "sweeps" / "rates.yaml").write_text(json.dumps(sweep))
    shell("sweep", "rates", INLINE)
    [column] = json.loads(shell("table", "--format", "json").out)["columns"]
    for entry in column["entries"]:
        for choice in entry["chosen"]:
            assert choice["params"]["trainer.lr"] > 0.3  # the loss falls with the rate


@pytest.mark.whole
def test_the_last_match_on_the_output_is_the_result(toy, shell):
    (toy / "train.py").write_text(
        "import sys\nfor n in range(3): print('acc=', n, file=sys.stderr if n > 1 else sys.stdout)"
        "\nprint('x' * 2_000_000, end='\\r')"
    )
    said = {"command": ["python", "train.py"], "metrics": {"acc": {"direction": "more"}}}
    declare(toy, "keys", "curves", **said, result={"lines": r"^acc= (?P<acc>\d)$"})
    shell("sweep", "one", INLINE)
    assert [each["test"] for each in results(toy).values()] == [{"acc": 2.0}]


@pytest.mark.whole
@pytest.mark.parametrize("fails", [False, True], ids=["ends well", "fails"])
def test_no_value_on_validation_data_is_matched_as_the_result(toy, shell, fails):
    """Our line on a step of the curves stands in the log, here within a line of the program."""
    (toy / "train.py").write_text(
        "import pathlib, sys, time\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "print('test acc 0.', end='')\n"
        "(folder / 'log.csv').write_text('step,val_acc\\n1,0.9\\n')\n"
        "while 'val_acc 0.9' not in (folder.parent / 'log.txt').read_text(): time.sleep(0.05)\n"
        f"print('5')\nsys.exit({fails:d})"
    )
    metrics = {"acc": {"direction": "more"}}
    result = {"lines": r"acc (?P<acc>[\d.]+)"}
    command = ["python", "train.py", "{folder}"]
    declare(toy, "keys", command=command, metrics=metrics, result=result)
    shell("sweep", "one", INLINE, "seeds=1", code=int(fails))
    if fails:
        assert "test acc 0.5" in shell("status").out
    else:
        assert [each["test"] for each in results(toy).values()] == [{"acc": 0.5}]


def test_a_long_output_begins_within_one_of_our_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(outcome, "TAIL", 8)
    log = tmp_path / "log.txt"
    log.write_bytes(b"before\nour line\nlost\n")
    assert outcome.read_output(log, 7, [(0, 7), (7, 16)]) == "lost\n"
    monkeypatch.setattr(outcome, "TAIL", 100)
    assert outcome.read_output(log, 0, [(7, 16)]) == "before\nlost\n"


def test_a_step_that_is_written_again_counts_as_it_was_last(toy, shell):
    (toy / "train.py").write_text(
        "import json, sys\n"
        "rows = ['step,loss', '1,0.9', '2,0.8', '2,0.7', '3,0.6']\n"
        "open(f'{sys.argv[1]}/log.csv', 'w').write('\\n'.join(rows))\n"
        "json.dump({'loss': 0.5}, open(f'{sys.argv[1]}/result.json', 'w'))"
    )
    declare(toy, "keys", command=["python", "train.py", "{folder}"])
    shell("sweep", "one", INLINE, "seeds=1")
    [log] = toy.glob("runs/runs/*/metrics.jsonl")
    lines = [(line["step"], line["val_loss"]) for line in curve(log) if "val_loss" in line]
    assert lines == [(1, 0.9), (2, 0.7), (3, 0.6)]


@pytest.mark.parametrize("file", ["log.csv", "log.jsonl"])
def test_a_metric_with_a_column_of_validation_is_that_of_training(toy, shell, file):
    rows = [(1, 0.1, 0.9), (2, 0.2, 0.8), (2, 0.05, None)]
    cells = ["step,loss,val_loss", *(f"{n},{a},{'' if b is None else b}" for n, a, b in rows)]
    objects = [{"step": n, "loss": a, **({} if b is None else {"val_loss": b})} for n, a, b in rows]
    lines = cells if file == "log.csv" else list(map(json.dumps, objects))
    (toy / "train.py").write_text(
        "import json, sys\n"
        f"open(f'{{sys.argv[1]}}/{file}', 'w').write({chr(10).join(lines)!r})\n"
        "json.dump({'loss': 0.5}, open(f'{sys.argv[1]}/result.json', 'w'))"
    )
    command = ["python", "train.py", "{folder}"]
    declare(toy, "keys", command=command, curves={"file": file})
    shell("sweep", "one", INLINE, "seeds=1")
    [log] = toy.glob("runs/runs/*/metrics.jsonl")
    logged = [(line["step"], line["val_loss"]) for line in curve(log) if "val_loss" in line]
    assert logged == [(1, 0.9), (2, 0.8)]


LIGHTNING = """\ufeffepoch, step, self, train_loss, val_loss, test_loss
1, 10, 1, , 0.9,
1, 10, 1, 0.8, ,
2, 20, 1, 0.7, , 0.75
2, 20, 1, , 0.6,
"""


@pytest.mark.whole
@pytest.mark.parametrize("file", ["log.csv", "log.jsonl"])
@pytest.mark.parametrize("parts", [1, 5], ids=["at once", "line by line"])
def test_rows_of_one_step_are_one_line_as_lightning_writes_them(toy, shell, file, parts):
    """Training and validation have a row each; the columns step, self and test_loss are no values
    of the curves; blanks and a byte order mark are no part of a name."""
    lines = LIGHTNING.splitlines()
    if file == "log.jsonl":
        names, *cells = [line.removeprefix("\ufeff").split(", ") for line in lines]
        rows = [zip(names, [c.strip(" ,") for c in row], strict=False) for row in cells]
        objects = [{name: float(cell) for name, cell in row if cell} for row in rows]
        lines = ["\ufeff" + json.dumps(objects[0]), *map(json.dumps, objects[1:])]
    (toy / "train.py").write_text(
        "import json, sys, time\n"
        f"lines, parts = {lines!r}, {parts}\n"
        f"with open(f'{{sys.argv[1]}}/{file}', 'w', encoding='utf-8') as log:\n"
        "    for line in lines:\n"
        "        print(line, file=log, flush=True)\n"
        "        time.sleep(1.2 if parts > 1 else 0)\n"
        "json.dump({'loss': 0.5}, open(f'{sys.argv[1]}/result.json', 'w'))"
    )
    curves = {"file": file, "step": "epoch"}
    declare(toy, "keys", command=["python", "train.py", "{folder}"], curves=curves)
    shell("sweep", "one", INLINE, "seeds=1")
    [log] = toy.glob("runs/runs/*/metrics.jsonl")
    assert [{k: v for k, v in line.items() if k != "seconds"} for line in curve(log)][:2] == [
        {"step": 1, "val_loss": 0.9, "train_loss": 0.8},
        {"step": 2, "val_loss": 0.6, "train_loss": 0.7},
    ]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("key", "columns", "expected"),
    [
        ("eval_top1", ("eval_top1", "top1"), 0),
        ("eval/top1", ("top1", "eval/top1"), 1),
        ("eval_top1", ("eval_top1", "val_top1"), 1),
        ("test/top1", ("test/top1", "top1"), 1),
        ("test/top1", ("test/top1",), None),
        ("eval/test_top1", ("eval/test_top1",), None),
    ],
)
@pytest.mark.parametrize("file", ["log.csv", "log.jsonl"])
def test_a_metric_is_followed_under_its_key(toy, shell, file, key, columns, expected):
    """The first column has 0.25 and 0.5, the second 1.25 and 1.5."""
    rows = [{"step": n, **{c: place + n / 4 for place, c in enumerate(columns)}} for n in (1, 2)]
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    if file == "log.jsonl":
        lines = []
        for row in rows:
            inner = {name.split("/")[1]: row.pop(name) for name in [*row] if "/" in name}
            lines.append(json.dumps(row | ({key.split("/")[0]: inner} if inner else {})))
    (toy / "train.py").write_text(
        "import json, sys\n"
        f"open(f'{{sys.argv[1]}}/{file}', 'w').write({chr(10).join(lines)!r})\n"
        f"json.dump({{{key!r}: 0.5}}, open(f'{{sys.argv[1]}}/result.json', 'w'))"
    )
    command = ["python", "train.py", "{folder}"]
    metrics = {"top1": {"direction": "more", "key": key}}
    declare(toy, "keys", command=command, metrics=metrics, curves={"file": file})
    shell("sweep", "one", INLINE, "seeds=1")
    [log] = toy.glob("runs/runs/*/metrics.jsonl")
    logged = [line["val_top1"] for line in curve(log) if "val_top1" in line]
    assert logged == ([] if expected is None else [expected + 0.25, expected + 0.5])


@pytest.mark.parametrize(
    ("key", "follows"),
    [
        *((key, False) for key in ("test_acc", "eval/test_acc", "Test/acc", "results/test/acc")),
        *(
            (key, False)
            for key in ("final.test.acc", "best_test_acc", "acc-TEST", "eval/val/test1")
        ),
        *((key, True) for key in ("latest_acc", "contest", "eval/acc", "attestation.acc")),
    ],
)
def test_a_key_of_the_test_set_is_no_column_of_validation(key, follows):
    """Searches choose by these columns."""
    assert (key in validation_columns({"acc": key})["acc"]) == follows


def test_a_metric_called_after_the_test_set_has_its_own_columns():
    assert validation_columns({"test_acc": "eval/test_acc"}) == {
        "test_acc": ["val_test_acc", "test_acc"]
    }


MARKS = """
import json, sys
import numpy as np
lr, seed, folder, how = sys.argv[1:]
draws = np.random.default_rng(0).random(400) + np.random.default_rng(int(seed)).random(400) / 8
right = draws < 0.7 + float(lr)
np.save(f"{folder}/preds.npy", right if how == "marks" else np.arange(400))
json.dump({"accuracy": right.mean().item(), "n": 400}, open(f"{folder}/result.json", "w"))
"""


@pytest.mark.whole
@pytest.mark.parametrize("how", ["marks", pytest.param("classes", marks=pytest.mark.slow)])
def test_a_spread_is_told_by_the_examples_that_predictions_mark(toy, shell, how):
    """As by the images of our own runs, which the reference of the statistics judges; other
    predictions are kept, and say nothing of a spread."""
    (toy / "train.py").write_text(MARKS)
    command = f"python train.py {{lr}} {{seed}} {{folder}} {how}"
    metrics = {"accuracy": {"direction": "more", "unit": "%", "range": [0, 1]}}
    said = {"command": command, "keys": {"lr": 0.1}, "metrics": metrics}
    declare(toy, "curves", **said, predictions="preds.npy")
    shell("sweep", "trainer=toy", "trainer.lr=0.1,0.12,0.2", "seeds=3", INLINE)
    [column] = json.loads(shell("table", "--format", "json").out)["columns"]
    assert column["judged_by"] == {"marks": "images", "classes": "one way"}[how]
    for path in toy.glob("runs/runs/*/predictions.npy"):
        kept = np.load(path)
        test = json.loads(path.with_name("result.json").read_text())["test"]
        assert kept.mean() == test["accuracy"] if how == "marks" else (kept == range(400)).all()
    assert "nothing wrong" in shell("verify").out


# --- What is planned ----------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"command": COMMAND + " --x {lrr}"}, r"trainer.command: \{lrr\}: .*did you mean 'lr'"),
        ({"command": COMMAND + ' {"a": 1}'}, r"\{a:: expected a placeholder such as \{lr\}; \{\{"),
        ({"command": COMMAND + " 'a"}, "trainer.command: .*No closing quotation"),
        ({"command": ""}, "trainer.command: expected a program and its arguments, got nothing"),
        ({"command": 3}, "trainer.command: expected a text or .*, got 3"),
        ({"command": "a.py {seed} {folder}"}, r"trainer.keys.lr: the command has no \{lr\}"),
        ({"command": COMMAND.partition(" --out")[0]}, r"trainer.command: has no \{folder\}"),
        ({"command": COMMAND + " a{overrides}"}, r"\{overrides\} is to be a word of its own"),
        ({"resume": "--from {fold}"}, r"trainer.resume: \{fold\}: .*did you mean 'folder'"),
        ({"result": {"lines": "loss=(.*)"}}, r"trainer.result.lines: has no group \(\?P<loss>"),
        ({"result": {"lines": "(?P<loss"}}, "trainer.result.lines: .*missing >"),
        ({"result": {}}, "trainer.result: expected one of {file: result.json}, .*, got none"),
        (
            {"result": {"file": "a.csv", "lines": "(?P<loss>.)"}},
            "trainer.result: expected one of .*, got file and lines",
        ),
        ({"result": {"lines": ["(?P<loss>.)", "x(?P<loss>.)"]}}, "two patterns have a group loss"),
        ({"result": {"file": "a.json", "step": "epoch"}}, "trainer.result.step: file has no rows"),
        (
            {"result": {"file": "a.csv", "best": {"key": "loss", "direction": "less"}}},
            "trainer.result.best.key: loss: is the metric loss itself",
        ),
        (
            {
                "result": {"file": "a.jsonl", "best": {"key": "test.loss", "direction": "less"}},
                "metrics": {"loss": {"direction": "less", "key": "test/loss"}},
            },
            "trainer.result.best.key: test.loss: is the metric loss itself",
        ),
        (
            {"result": {"file": "a.csv", "best": {"key": "val_loss", "direction": "low"}}},
            "trainer.result.best.direction: expected one of more, less, got 'low'",
        ),
        (
            {"result": {"file": "a.csv", "best": {"key": "v"}}},
            "trainer.result.best.direction: miss",
        ),
        ({"result": {"file": "a.csv", "colum": "v"}}, "trainer.result.colum: expected a key among"),
        (
            {"result": {"file": "a.csv", "best": {"key": "v", "direction": "more"}}, **RESUMES},
            "trainer.result.step: missing; name the column of steps of a.csv",
        ),
        ({"result": {"tensorboard": "tb", "step": "x"}}, "trainer.result.step: .*leave it out"),
        ({"result": "result.json"}, "trainer.result: expected .*, got 'result.json'"),
        ({"metrics": {"loss": {"direction": "less", "key": 3}}}, "trainer.metrics.loss.key: exp"),
        ({"result": {"file": "../r.json"}}, "trainer.result.file: expected a file within {folder}"),
        ({"predictions": "/p.npy"}, "trainer.predictions: expected a file within {folder}"),
        ({"curves": {"fil": "x"}}, "trainer.curves.fil: expected .*did you mean 'file'"),
        ({"code": ["trian.py"]}, "trainer.code: trian.py: no such file in "),
        ({"code": ["../train.py"]}, "trainer.code: ../train.py: expected files within "),
        ({"data": ["*.bin"]}, r"trainer.data: \*.bin: no such file in "),
        ({"fork_safe": True}, "trainer.fork_safe: expected in conf/trainer/toy.yaml one of "),
        ({"code": None}, "trainer.code: missing, and git knows nothing .*; write `code: .* `git i"),
    ],
)
def test_a_wrong_yaml_is_refused_in_a_line(toy, changes, line):
    declare(toy, **changes)
    with pytest.raises(UserError, match=line) as error:
        ids("trainer=toy", "trainer.lr=0.1,0.2", "seeds=2")
    assert "\n" not in str(error.value)


def test_a_plan_of_one_row_names_a_mistake_in_its_trainer(toy):
    words = ("trainer=toy", "seeds=2")
    assert len(ids(*words)) == 2
    declare(toy, command=COMMAND + " {lrr}")
    with pytest.raises(UserError, match=r"trainer.command: \{lrr\}: .*did you mean 'lr'"):
        ids(*words)


def test_patterns_of_code_leave_the_store_out(toy, shell):
    """Else each run changes the next one's code."""
    declare(toy, code=["**/*"])
    words = ("trainer=toy", "trainer.lr=0.1,0.2", "seeds=1")
    before = ids(*words)
    (toy / "runs" / "runs" / "a").mkdir(parents=True)
    (toy / "runs" / "runs" / "a" / "log.txt").write_text("1")
    assert ids(*words) == before
    (toy / "new.py").write_text("1")
    assert ids(*words) != before


def test_settings_are_single_arguments(toy, shell):
    (toy / "train.py").write_text(
        "import json, sys\n*words, folder = sys.argv[1:]\n"
        "json.dump({'loss': 1, 'n': 1}, open(f'{folder}/result.json', 'w'))\n"
        "json.dump(words, open(f'{folder}/words.json', 'w'))\n"
    )
    keys = {"text": "x", "switch": True, "sizes": [1, 2], "none": {"default": None, "type": "int"}}
    placed = ["-t={text}", "{switch}", "{sizes}", "{none}", "{{a}}", "{folder}"]
    declare(toy, "curves", command=["python", "train.py", *placed], keys=keys)

    def sweep(text: str) -> None:
        row = {"evil": {"trainer.text": text}}
        tree = {"base": {"trainer": "toy"}, "variants": [row], "seeds": 1}
        (toy / "sweeps" / "s.yaml").write_text(json.dumps(tree))

    sweep(evil := "$(touch owned); 'a\" `b` {lr} -x")
    shell("sweep", "s", INLINE)
    [path] = toy.glob("runs/runs/*/scratch/words.json")
    assert json.loads(path.read_text()) == [f"-t={evil}", "true", "[1, 2]", "null", "{a}"]
    assert not (toy / "owned").exists()
    sweep("a\0b")
    assert "control character" in shell("plan", "s", code=2).err


def test_a_command_without_a_seed_has_one_run_a_row(toy):
    declare(toy, command=COMMAND.replace(" --seed {seed}", ""))
    assert len(ids("trainer=toy", "trainer.lr=0.1,0.2", "seeds=1")) == 2
    with pytest.raises(UserError, match=r"^seeds: .*\{seed\}.*seeds=1"):
        ids("trainer=toy", "trainer.lr=0.1,0.2", "seeds=2")


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)


@pytest.mark.whole
def test_the_same_content_is_the_same_run(toy, shell):
    """Whatever git has committed; an edit makes new runs, its undo brings the old ones back."""
    declare(toy, "code", data=["corpus.bin"])
    words = ("trainer=toy", "trainer.lr=0.1,0.2", "seeds=2")
    corpus = toy / "corpus.bin"
    corpus.write_bytes(b"one")
    git("init", "-q", ".")
    (toy / ".gitignore").write_text("corpus.bin\n*.txt\n")
    first = ids(*words)
    git("add", ".")
    git("commit", "-qm", "a")
    assert ids(*words) == first
    shell("sweep", *words, INLINE)
    (toy / "sweeps" / "other.yaml").write_text("seeds: 3")  # ours, no code
    (toy / "out.txt").write_text("ignored")
    (toy.parent / "images").mkdir()
    (toy / "images").symlink_to(toy.parent / "images")  # data, and no repository of code
    os.rename("conf/trainer/toy.yaml", "conf/trainer/toy2.yaml")  # called otherwise
    assert ids("trainer=toy2", *words[1:]) == first
    os.rename("conf/trainer/toy2.yaml", "conf/trainer/toy.yaml")
    assert ids(*words) == first
    declare(toy, "code", data=["corpus.bin"], resume="--resume {folder}/last.json", grace_s=1)
    assert ids(*words) == first  # how it goes on is no part of what it computes
    for path, change in ((toy / "train.py", b"# edited"), (corpus, b"two"), (toy / "new.py", b"")):
        before = path.read_bytes() if path.exists() else None
        path.write_bytes((before or b"") + change)
        assert not {*ids(*words)} & {*first}, path
        path.unlink() if before is None else path.write_bytes(before)
        assert ids(*words) == first
    shell("sweep", *words)
    assert len(attempts(toy)) == 4  # nothing was left to train
    declare(toy, "code", data=["corpus.bin"], command=COMMAND + " ")
    assert not {*ids(*words)} & {*first}


@pytest.mark.parametrize(
    ("resume", "file"),
    [("--resume {folder}/last.pt", "last.pt"), ("--resume={folder}/step=9.pt", "step=9.pt")],
)
def test_a_checkpoint_is_found_in_a_folder_with_an_equals_sign(tmp_path, resume, file):
    declaration = program.read_program(
        {k: v for k, v in YAML.items() if k in program.FIELDS} | {"resume": resume}
    )
    folder = tmp_path / "lr=0.1"
    folder.mkdir()
    places = {"folder": str(folder), "seed": 0}
    assert program.resume_words(declaration, {}, places) == []
    (folder / file).touch()
    assert program.resume_words(declaration, {}, places) == resume.format(folder=folder).split(" ")


@pytest.mark.faults
def test_code_or_data_that_changed_after_the_plan_is_not_run(toy, shell):
    (toy / "corpus.bin").write_bytes(b"one")
    declare(toy, data=["corpus.bin"], command=COMMAND + " --pause 0.2")
    words = ("sweep", "trainer=toy", "trainer.lr=0.1,0.2,0.3", "seeds=2")
    for path, line in (
        (toy / "train.py", "train.py was edited after this run was planned"),
        (toy / "corpus.bin", "corpus.bin is data that was changed after this run was planned"),
    ):
        begun = len(attempts(toy))
        driver = shell.start(*words, "--as", path.stem, f"trainer.steps={3 + begun}")
        wait_for(lambda n=begun: len(attempts(toy)) > n)
        before = path.read_bytes()
        path.write_bytes(before + b" ")
        done = shell.end(driver)
        assert done.code == 1
        assert line in done.out + done.err
        path.write_bytes(before)


# --- What goes wrong ----------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize(
    ("text", "status", "line"),
    [
        ("print('a'); sys.exit('what?')", "failed", "the command ended with exit code 1: what?"),
        ("raise MemoryError('a')", "oom", "the command ended with exit code 1: MemoryError: a"),
        ("sys.exit()", "failed", "result.json: missing, though the command ended with exit code 0"),
        ("give('{\"loss\": 0.')", "failed", "result.json: is no JSON"),
        ("give('{\"los\": 1}')", "failed", "result.json: lacks loss, which the yaml declares; it"),
        ("give('[1]')", "failed", "result.json: expected an object of metrics, got [1]"),
        ('give(\'{"loss": "low"}\')', "failed", "result.json: loss: expected a number, got 'low"),
        ("give('{\"loss\": NaN}')", "diverged", "diverged"),
        ("give('{\"loss\": 1}'); os._exit(3)", "failed", "the command ended with exit code 3"),
        (
            "give('step,loss,a\\n1,2,nan\\n2,inf,1\\n', 'log.csv'); sleep(60)",
            "diverged",
            "diverged",
        ),
        ('give(\'{"loss": 1, "n": 3.7}\')', "failed", "json: n: expected a whole number of ex"),
        (
            'give(\'{"loss": 1, "n": 1e30}\')',
            "failed",
            "result.json: n: expected a whole number of",
        ),
        ("give(' ' * (17 << 20))", "failed", "result.json: is larger than 16,777,216 bytes"),
        ("give('[' * 100_000)", "failed", "result.json: is no JSON"),
        ("os.mkfifo(f'{sys.argv[1]}/result.json')", "failed", "result.json: is no regular file"),
        ("link('result.json')", "failed", "trainer.result.file: result.json: is no regular file"),
        ("link('log.csv'); sleep(60)", "failed", "curves.file: log.csv: is no regular file"),
        ("os.mkfifo(f'{sys.argv[1]}/log.csv'); sleep(60)", "failed", "log.csv: is no regular file"),
        (
            "give('step,loss\\n1,' + '9' * (2 << 20), 'log.csv'); sleep(60)",
            *("failed", "curves.file: log.csv: a line has more than 1,048,576 bytes"),
        ),
        ("os.kill(os.getpid(), 37)", "failed", "the command ended by signal number 37: it printed"),
        (
            "print('KeyError: 1'); sys.exit('Set the environment variable HYDRA_FULL_ERROR=1 for')",
            *("failed", "exit code 1: KeyError: 1"),
        ),
        ("os.abort()", "failed", "the command ended by signal SIGABRT"),
    ],
)
def test_a_run_without_a_whole_result(toy, shell, text, status, line):
    (toy / "train.py").write_text(
        "import os, sys\nfrom time import sleep\ndef give(text, name='result.json'):\n"
        "    with open(f'{sys.argv[1]}/{name}', 'w') as file: file.write(text)\n"
        "def link(name): os.symlink('/dev/zero', f'{sys.argv[1]}/{name}')\n"
        f"{text}"
    )
    declare(toy, "keys", command="python train.py {folder}")
    began = time.monotonic()
    done = shell("sweep", "one", INLINE, code=0 if status == "diverged" else 1)
    assert time.monotonic() - began < 50  # it waits for nothing
    assert status in shell("status").out
    assert line in done.out + done.err


@pytest.mark.whole
def test_a_run_that_was_lost_says_by_which_signal_or_silence(toy, shell):
    (toy / "train.py").write_text(
        "import os, signal, sys, time\n"
        "if sys.argv[1] == 'silent': time.sleep(60)\n"
        "os.kill(os.getpid(), signal.Signals[sys.argv[1]])\n"
    )
    declare(toy, "curves", command="python train.py {how} {folder}", keys={"how": "silent"})
    ways = ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL", "silent")
    words = (f"trainer.how={','.join(ways)}", "launcher.attempts=1", "launcher.hang_s=5", "seeds=1")
    done = shell("sweep", "trainer=toy", *words, code=1)
    for text in (done.out, shell("status").out):
        reasons = dict(re.findall(r"^(?:failed|hung): (\w+)#0: (.*) \(", text, re.MULTILINE))
        assert reasons.keys() == {*ways}
        for way in ways:
            assert (way in reasons[way]) == (way != "silent")
            assert ("memory" in reasons[way]) == (way == "SIGKILL")
            assert ("launcher.hang_s" in reasons[way]) == (way == "silent")


@pytest.mark.whole
def test_curves_are_read_in_parts_whatever_their_size(toy, shell):
    """Cells that are longer than Python's csv takes by default, and many lines at once."""
    (toy / "train.py").write_text(
        "import json, sys\n"
        "rows = ['step,loss,note'] + [f'{n},0.5,x' for n in range(1, 20_001)]\n"
        "rows += ['20001,0.25,' + 'x' * 500_000, '20002,0.125,x']\n"
        "open(f'{sys.argv[1]}/log.csv', 'w').write('\\n'.join(rows))\n"
        "json.dump({'loss': 0.5}, open(f'{sys.argv[1]}/result.json', 'w'))"
    )
    declare(toy, "keys", command=["python", "train.py", "{folder}"])
    shell("sweep", "one", INLINE, "seeds=1")
    [log] = toy.glob("runs/runs/*/metrics.jsonl")
    lines = [(line["step"], line["val_loss"]) for line in curve(log) if "val_loss" in line]
    assert [step for step, _ in lines] == [*range(1, 20_003)]
    assert lines[-2:] == [(20_001, 0.25), (20_002, 0.125)]


TRACEBACK = ["Traceback (most recent call last):", "  File 'a.py'", "    f()"]


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([*TRACEBACK, "a.b.KeyError: 'x'", "bye"], "a.b.KeyError: 'x'"),
        ([*TRACEBACK, "lib.Diverged: at 3", "wandb: synced"], "lib.Diverged: at 3"),
        ([*TRACEBACK, "AssertionError"], "AssertionError"),
        (["INFO: it began", "Epoch: 3", "Segmentation fault"], "Segmentation fault"),
        (["  ValueError: in a note", "fatal"], "fatal"),
        (["a", "hint: try b"], "a"),
        (["hint: try b"], "hint: try b"),
        ([], "it printed nothing"),
    ],
)
def test_the_cause_of_a_failure_is_its_exception_else_its_last_line(lines, cause):
    assert system.failure_cause(lines) == cause


@pytest.mark.whole
def test_an_edit_while_it_runs_is_told(toy, shell):
    """The first run edits its own file: what a program loads late may be another code."""
    text = "import os\nif '--seed 0' in ' '.join(__import__('sys').argv):\n"
    text += "    print('#', file=open(__file__, 'a'))\n" + TRAIN
    (toy / "train.py").write_text(text)
    done = shell("sweep", "trainer=toy", "trainer.lr=0.1,0.2", "seeds=1", INLINE, code=1)
    assert "train.py was edited after this run was planned" in done.err
    [result] = results(toy).values()
    [path] = toy.glob("runs/runs/*/result.json")
    assert "code was edited while it ran" in path.with_name("log.txt").read_text()
    (toy / "train.py").write_text(text)
    shell("sweep", "trainer=toy", "trainer.lr=0.1,0.2", "seeds=[1]", "--as", "b", INLINE)
    codes = [each["plugins"]["trainer"] for each in results(toy).values()]
    assert len(codes) == 3
    assert codes.count(result["plugins"]["trainer"]) == 1  # the two that edit nothing are alike


def test_what_cannot_be_started(toy, shell):
    declare(toy, command=COMMAND.replace("python", "./no-such-program"))
    done = shell("sweep", "one", INLINE, code=1)
    assert "trainer.command: ./no-such-program: No such file or directory" in done.out + done.err


@pytest.mark.whole
def test_the_result_of_an_attempt_that_failed_is_none_of_the_next(toy, shell):
    """The first attempt writes a result and fails; the second writes none."""
    (toy / "train.py").write_text(
        "import json, os, sys\nfolder = sys.argv[1]\n"
        "first = not os.path.exists(folder + '/begun')\n"
        "open(folder + '/begun', 'w')\n"
        "if first: json.dump({'loss': 1}, open(folder + '/result.json', 'w')); sys.exit(1)\n"
    )
    declare(toy, "keys", "curves", command="python train.py {folder}")
    shell("sweep", "one", INLINE, code=1)
    done = shell("sweep", "one", "--retry", "failed", INLINE, code=1)
    assert "result.json: missing" in done.out + done.err
    [folder] = toy.glob("runs/runs/*/scratch")
    assert sorted(each.name for each in folder.iterdir()) == ["begun", "result.json.attempt-1"]


# --- Its processes ------------------------------------------------------------------------------

# Starts a child that leaves its parent, its group and its session, and one that clears its
# environment; all write where they are.
FAMILY = """
import json, os, signal, subprocess, sys, time
folder, how = sys.argv[1:]
child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execv(sys.executable, [sys.executable, "-c", child, folder + "/left"])
subprocess.Popen([sys.executable, "-c", child, folder + "/cleared"], env={})
for each in ("left", "cleared"):
    while not os.path.exists(f"{folder}/{each}") or not open(f"{folder}/{each}").read():
        time.sleep(0.01)
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(folder + "/ready", "w").write(str(os.getpid()))
if how != "ends":
    time.sleep(600)
json.dump({"loss": 1}, open(folder + "/result.json", "w"))
"""


def family(folder: Path) -> list[int]:
    """The pids of the program and its children, once all are there."""
    names = ("left", "cleared", "ready")
    return wait_for(
        lambda: [
            int(text)
            for path in folder.glob("runs/runs/*/scratch")
            for name in names
            if (path / "ready").exists() and (text := (path / name).read_text())
        ]
    )


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}/environ").exists() and _lives(pid) for pid in pids)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def kin(toy) -> Path:
    (toy / "train.py").write_text(FAMILY)
    said = {"command": "python train.py {folder} {how}", "keys": {"how": "ends"}}
    declare(toy, "curves", **said, grace_s=0.5)
    return toy


@pytest.mark.whole
def test_what_a_program_leaves_behind_ends_with_its_run(kin, shell):
    shell("sweep", "one")
    pids = family(kin)
    assert len(pids) == 3
    assert gone(pids)


@pytest.mark.faults
def test_a_program_that_ignores_a_stop_is_killed_after_its_grace(kin, shell):
    driver = shell.start("sweep", "one", "trainer.how=stubborn")
    pids = family(kin)
    driver.send_signal(signal.SIGINT)
    done = shell.end(driver)
    assert gone(pids)
    assert "stopped" in done.out + done.err
    [log] = kin.glob("runs/runs/*/log.txt")
    assert "SIGTERM did not end it within 0.5 s" in log.read_text()
    assert [attempt["exit"] for attempt in attempts(kin)] == ["stopped"]


@pytest.mark.faults
def test_an_attempt_begins_when_nothing_of_the_one_before_lives(kin, shell):
    """Driver and worker are killed: what the program started lives on until the next attempt."""
    driver = shell.start("sweep", "one", "trainer.how=waits")
    pids = family(kin)
    at_work = workers(kin)
    servers = [parent_of(pid) for pid in at_work]  # who would end what a worker leaves
    kill([driver.pid, *servers, *at_work])
    driver.wait()
    assert not gone(pids)  # or this shows nothing
    assert "exit" not in attempts(kin)[-1]
    again = shell.start("sweep", "one", "trainer.how=waits")
    wait_for(lambda: gone(pids))
    again.send_signal(signal.SIGINT)
    shell.end(again)
    later = [int(path.read_text()) for path in kin.glob("runs/runs/*/scratch/*") if path.is_file()]
    assert gone([pid for pid in later if pid])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# Leaves a process behind that has another parent, another session and no environment.
DAEMON = """
import os, sys, time
def leave(file):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()))"
            code += "; time.sleep(600)"
            os.execve(sys.executable, [sys.executable, "-S", "-c", code, file], {})
        os._exit(0)
    os.wait()
    while not os.path.exists(file) or not open(file).read():
        time.sleep(0.01)
"""
PROGRAM = """
leave(sys.argv[1] + "/daemon")
time.sleep(0 if sys.argv[2] == "ends" else 600)
open(sys.argv[1] + "/result.json", "w").write('{"loss": 1}')
"""
FUNCTION = """
def main(settings, run):
    leave("daemon")
    run.log(1, train_loss=1)
    while settings["how"] != "ends":  # until it is killed; the next attempt is asked to stop
        time.sleep(0.05)
        if run.should_stop():
            return
    run.result(loss=1)
"""


@pytest.mark.faults
@pytest.mark.parametrize("how", ["ends", "killed"])
@pytest.mark.parametrize("kind", ["program", "function"])
def test_a_daemon_without_an_environment_ends_with_its_worker(toy, shell, kind, how):
    (toy / "train.py").write_text(DAEMON + (PROGRAM if kind == "program" else FUNCTION))
    if kind == "program":
        command = "python -S train.py {folder} {how}"
        declare(toy, "curves", command=command, keys={"how": "ends"})
    else:
        said = {"name": "train:main", "keys": {"how": "ends"}, "metrics": YAML["metrics"]}
        (toy / "conf" / "trainer" / "toy.yaml").write_text(json.dumps(said))
    words = ("sweep", "one", f"trainer.how={how}", "launcher.devices=cpu")
    driver = shell.start(*words)
    [file] = wait_for(lambda: [*toy.glob("runs/runs/*/scratch/daemon")])
    pid = int(wait_for(file.read_text))
    if how == "killed":
        assert not gone([pid])
        kill(workers(toy))
    wait_for(lambda: gone([pid]), 30)
    driver.send_signal(signal.SIGINT)
    shell.end(driver)


def test_one_store_by_two_paths_has_the_same_tags(tmp_path):
    run = RunDir(tmp_path / "real" / "runs" / "a0")
    run.path.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    linked = RunDir(tmp_path / "link" / "runs" / "a0")
    assert processes.tag_of(run) == processes.tag_of(linked)
    other = RunDir(tmp_path / "other" / "runs" / "a0")
    other.path.mkdir(parents=True)
    assert processes.tag_of(run) != processes.tag_of(other)


def test_processes_are_those_that_have_the_tag_and_their_children(tmp_path):
    """One of which has cleared its environment."""
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    starts = [sys.executable, "-c", f"import subprocess; subprocess.run({sleep}, env={{}})"]
    one = subprocess.Popen(starts, env={**os.environ, processes.TAG: str(tmp_path)})
    other = subprocess.Popen(sleep)
    try:
        found = wait_for(
            lambda: len(pids := processes.processes_of(str(tmp_path))) == 2 and pids, 20
        )
        assert one.pid in found
        processes.end_processes(str(tmp_path))
        assert one.wait(5) == -signal.SIGKILL
        assert gone(found)
        assert other.poll() is None
    finally:
        kill([one.pid, other.pid])
        other.wait()


# --- Stopped, killed, resumed -------------------------------------------------------------------


@pytest.mark.faults
@pytest.mark.parametrize("resumes", [True, False])
def test_a_stopped_run_goes_on_where_it_can(toy, shell, resumes):
    declare(toy, **(RESUMES if resumes else {}), grace_s=5)
    words = ("sweep", "one", "trainer.steps=12")
    driver = shell.start(*words, "trainer.pause=0.2")
    wait_for(lambda: any(toy.glob("runs/runs/*/scratch/last.json")))
    driver.send_signal(signal.SIGINT)
    assert "stopped" in (done := shell.end(driver)).out + done.err
    shell(*words, "trainer.pause=0.2")
    [result] = results(toy).values()
    assert result["test"]["loss"] == expected_loss(0.1, 0, 12)
    first, second = attempts(toy)
    assert first["exit"] == "stopped"
    assert second["resumed"] is resumes
    assert second["from_step"] == 1  # it had the folder of the first, with or without a word of it
    [log] = toy.glob("runs/runs/*/log.txt")
    assert ("went on after step" in log.read_text()) is resumes
    steps = [line["step"] for line in curve(log.with_name("metrics.jsonl"))]
    assert steps == [*range(1, 13), 12]  # none twice, none lost
    assert result["seconds"] > 2.2


@pytest.mark.faults
def test_where_the_old_processes_may_live_the_folder_is_copied(toy, shell):
    """The machine of the first attempt is unreachable: nobody knows whether it still writes."""
    declare(toy, **RESUMES)
    words = ("sweep", "one", "trainer.steps=4")
    driver = shell.start(*words, "trainer.pause=0.3")
    wait_for(lambda: any(toy.glob("runs/runs/*/scratch/last.json")))
    kill([driver.pid, *workers(toy)])
    driver.wait()
    [env] = toy.glob("runs/runs/*/env.json")
    processes.end_processes(processes.tag_of(RunDir(env.parent)))
    tree = json.loads(env.read_text())
    tree["attempts"][-1]["machine"] = "another"
    env.write_text(json.dumps(tree))
    before = (env.parent / "scratch" / "last.json").read_bytes()
    shell(*words, "trainer.pause=0.3", INLINE)
    [result] = results(toy).values()
    assert result["test"]["loss"] == expected_loss(0.1, 0, 4)
    assert attempts(toy)[-1]["folder"] == "scratch.1"
    assert (env.parent / "scratch" / "last.json").read_bytes() == before
    assert not (env.parent / "scratch" / "result.json").exists()


@pytest.mark.faults
@pytest.mark.parametrize("resumes", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_twenty_kills_of_driver_and_program_lose_and_double_nothing(toy, shell, resumes):
    """At random moments, of random ones of them; then to the end: what nobody disturbed gives."""
    declare(toy, **(RESUMES if resumes else {}))
    words = ("sweep", "trainer=toy", "trainer.lr=0.1,0.2", "trainer.steps=8", "trainer.pause=0.1")
    words = (*words, "seeds=2", "launcher.attempts=1000")
    draws = random.Random(resumes)
    driver = shell.start(*words)
    for _ in range(20):
        time.sleep(draws.uniform(0.3, 1.2))
        tags = [processes.tag_of(RunDir(path)) for path in toy.glob("runs/runs/*")]
        programs = [pid for tag in tags for pid in processes.processes_of(tag)]
        at_work = workers(toy)
        whom = draws.choice(["driver", "programs", "workers", "all"])
        if whom in ("driver", "all"):
            kill([driver.pid])
            driver.wait()
        kill(programs * (whom in ("programs", "all")) + at_work * (whom in ("workers", "all")))
        if driver.poll() is not None:
            driver = shell.start(*words)
    driver.wait(240)
    shell(*words)
    assert told(shell) == {
        (f"lr={lr}", s): expected_loss(lr, s, 8) for lr in (0.1, 0.2) for s in (0, 1)
    }
    assert "nothing wrong" in shell("verify").out
    for path in toy.glob("runs/runs/*/metrics.jsonl"):
        assert [line["step"] for line in curve(path)] == [*range(1, 9), 8]


# --- Hydra applications -------------------------------------------------------------------------

APP = """
import json, os
import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    folder = HydraConfig.get().runtime.output_dir
    OmegaConf.resolve(cfg)
    json.dump(OmegaConf.to_container(cfg), open(os.path.join(folder, "cfg.json"), "w"))
    json.dump({"loss": cfg.optim.lr * cfg.steps}, open(os.path.join(folder, "result.json"), "w"))


if __name__ == "__main__":
    main()
"""
APP_CONF = {
    "config": "defaults: [{model: small}, {optim: sgd}, _self_]\nseed: 0\nsteps: 3\nnote: null\n"
    "tag: ${model.name}-x\nneeds: ???\n",
    "model/small": "name: small\nwidth: 8\n",
    "model/big": "name: big\nwidths: [8, 8]\n",
    "optim/sgd": "lr: 0.1\nmomentum: 0.9\n",
    "optim/adam": "lr: 0.01\n",
}
HYDRA = "python app.py {overrides} seed={seed} hydra.run.dir={folder}"


@pytest.fixture
def app(toy) -> Path:
    (toy / "app.py").write_text(APP)
    for name, text in APP_CONF.items():
        path = toy / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    code = ["app.py", "conf/**/*.yaml"]
    declare(toy, "curves", name="app", command=HYDRA, keys="hydra", code=code)
    return toy


@pytest.mark.whole
def test_a_hydra_application_runs_as_it_is(app, shell):
    """With a folder conf of its own, whose configs are none of ours: its own composition says what
    each run had."""
    row = {"trainer.model": "big", "trainer.optim": "adam", "trainer.optim.lr": 0.5}
    text = "it's, {a} b=c \\"
    rows = [{"plain": {}}, {"other": {**row, "trainer.note": text, "trainer.tag": "y"}}]
    sweep = {"base": {"trainer": "app", "trainer.needs": 1}, "variants": rows, "seeds": 2}
    (app / "sweeps" / "two.yaml").write_text(json.dumps(sweep))
    shell("sweep", "two", INLINE)
    had = {
        (tree["model"]["name"], tree["seed"]): tree
        for path in app.glob("runs/runs/*/scratch/cfg.json")
        for tree in [json.loads(path.read_text())]
    }
    assert {*had} == {(name, seed) for name in ("small", "big") for seed in (0, 1)}
    small, big = had["small", 1], had["big", 1]
    found = [[tree[key] for key in ("tag", "optim", "note", "needs")] for tree in (small, big)]
    assert found[0] == ["small-x", {"lr": 0.1, "momentum": 0.9}, None, 1]
    assert found[1] == ["y", {"lr": 0.5}, text, 1]
    tree = json.loads((app / "runs" / "sweeps" / "two.json").read_text())
    assert '"model.widths": [8, 8]' in json.dumps(tree)
    assert "dpn" in shell("plan", "stem=none,dpn", "recipe=quick").out  # ours are composed as ever


@pytest.mark.slow
def test_unlike_failures_of_an_application_are_told_apart_and_end_no_sweep(app, shell):
    """Hydra ends each with the same hint. Three that fail alike would end the sweep."""
    raises = {8: "KeyError('no layer')", 9: "ValueError('odd')", 5: "RuntimeError('other')"}
    lines = [f"    if cfg.steps == {steps}: raise {error}\n" for steps, error in raises.items()]
    (app / "app.py").write_text(APP.replace("    folder =", "".join(lines) + "    folder =", 1))
    words = ("trainer=app", "trainer.needs=1", "trainer.steps=8,9,5,3", "seeds=1")
    done = shell("sweep", *words, INLINE, code=1)
    assert "all alike" not in done.out + done.err
    said = shell("status").out
    for error in ("KeyError: 'no layer'", "ValueError: odd", "RuntimeError: other"):
        assert f"exit code 1: {error}" in said
    assert [each["test"]["loss"] for each in results(app).values()] == [pytest.approx(0.3)]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("trainer.model=small,bigg", "trainer.model: expected one of big, small, got 'bigg'"),
        ("trainer.optim.lrr=1,2", "trainer.optim.lrr: .*did you mean 'optim.lr'.*expected a key "),
        ("trainer.optim.lr=a,2", "trainer.keys.optim.lr.default: expected a number, got 'a'"),
        ("trainer.steps=1,2", "trainer.needs: missing; give trainer.needs=VALUE"),
    ],
)
def test_the_keys_of_an_application_are_checked_by_composing_it(app, word, line):
    more = [] if "needs" in line else ["trainer.needs=1"]
    with pytest.raises(UserError, match=line) as error:
        ids("trainer=app", word, *more)
    assert "\n" not in str(error.value)


def test_a_program_that_is_no_application(app):
    (app / "app.py").write_text("print(1)")
    with pytest.raises(UserError) as error:
        ids("trainer=app", "trainer.steps=1,2")
    assert "app.py --help" in str(error.value)


# --- From the words of a command ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "command", "keys"),
    [
        (
            "python train.py --lr 0.1 --act gelu --seed 1 --steps 3 --pause 0 --out results",
            COMMAND,
            {"lr": 0.1, "act": "gelu", "steps": 3, "pause": 0},
        ),
        (
            "./fit.sh out 7 -s 3 --wd=1e-4 --mode 'a b' --fast",
            "./fit.sh {folder} {arg2} -s {s} --wd={wd} --mode {mode} {fast}",
            {
                "arg2": 7,
                "s": 3,
                "wd": 0.0001,
                "mode": "a b",
                "fast": {"flag": "--fast", "default": True},
            },
        ),
        (
            "python -m pkg.train --config-file a.json --name x --json '{}'",
            "python -m pkg.train --config-file {config_file} --name {name_} --json {json}",
            {"config_file": "a.json", "name_": "x", "json": "{}"},
        ),
    ],
)
def test_a_command_becomes_a_yaml(toy, shell, words, command, keys):
    (toy / "fit.sh").write_text("")
    (toy / "pkg").mkdir()
    (toy / "pkg" / "train.py").write_text("")
    git("init", "-q", ".")
    said = shell("new", "trainer", words).out.splitlines()
    tree = safe_load((toy / said[0].removeprefix("wrote ")).read_text())
    assert (tree["command"], tree["keys"]) == (command, keys)
    tried = said[-1].removeprefix("try it: ablate ").split()
    if "{seed}" in command:
        tried.append("seeds=3")
    varies = any("," in word for word in tried)  # a setting has another value that makes sense
    assert ("2 variants" if varies else "1 variant ") in shell(*tried).out
    assert "--as NAME" in shell("new", "trainer", words, code=2).err


@pytest.mark.whole
def test_what_it_writes_trains(toy, shell):
    command = "python train.py --lr 0.1 --act gelu --seed 1 --steps 3 --pause 0 --out x"
    done = shell("new", "trainer", command)
    assert "wrote conf/trainer/train.yaml" in done.out
    shell("sweep", "trainer=train", "trainer.lr=0.1,0.2", "seeds=2", INLINE)
    found = sorted(each["test"]["loss"] for each in results(toy).values())
    assert found == sorted(expected_loss(lr, seed) for lr in (0.1, 0.2) for seed in (0, 1))


@pytest.mark.whole
def test_of_a_hydra_application_it_writes_its_keys(app, shell):
    """A group is what the first sweep may vary; what was typed stays in the command."""
    (app / "conf" / "trainer" / "app.yaml").unlink()
    (app / "conf" / "config.yaml").write_text(APP_CONF["config"].replace("needs: ???\n", ""))
    done = shell("new", "trainer", "python app.py model=small steps=4")
    tree = safe_load((app / "conf" / "trainer" / "app.yaml").read_text())
    command = HYDRA.replace("{overrides}", "model=small steps=4 {overrides}")
    assert (tree["command"], tree["keys"]) == (command, "hydra")
    [tried] = [line for line in done.out.splitlines() if line.startswith("try it: ")]
    assert re.search(r"trainer\.(model=big,small|optim=adam,sgd|optim\.lr=[\d.,]+)$", tried)
    assert "2 variants x 3 seeds" in shell(*tried.removeprefix("try it: ablate ").split()).out


# --- Strangers ----------------------------------------------------------------------------------


@pytest.mark.whole
def test_the_command_of_a_stranger_is_printed_and_not_started(toy, shell, tmp_path):
    """Reading a bundle, and merging it, start nothing; training again asks for trust."""
    shell("sweep", "trainer=toy", "trainer.lr=0.1,0.2", "seeds=2", INLINE)
    shell("export", "bundle")
    (toy / "train.py").write_text("open('owned', 'w')\n" + TRAIN)
    stranger = Shell(tmp_path / "stranger")
    stranger.folder.mkdir()
    bundle, rerun = str(toy / "bundle"), ("verify", "--rerun", "lr=0.1#0", INLINE)
    for words in (("verify", bundle), ("table", "--from", bundle), ("merge", bundle)):
        stranger(*words)
    stranger("table")
    stranger("verify")
    again = stranger(*rerun, code=2).err
    assert COMMAND in again
    assert "--trust" in again
    assert not list(tmp_path.rglob("owned"))
    again = stranger(*rerun, "--trust", code=1)
    assert "train.py was edited" in again.out + again.err  # it is other code than the run's
    (toy / "train.py").write_text(TRAIN)
    assert "the same bits" in stranger(*rerun, "--trust").out


SLOW = "python train.py --lr 0.1 --act gelu --seed {seed} --steps 8 --pause 0.25 --out {folder}"


@pytest.mark.faults
def test_doctor_says_how_a_killed_run_goes_on(toy, shell):
    """By words, from nothing, and wrongly."""
    declare(toy, "keys", command=SLOW, **RESUMES)
    assert "goes on by the words of `resume`; its result is that of" in doctor(shell)
    declare(toy, "keys", "resume", command=SLOW)
    assert "starts its program again, in the folder that it left" in doctor(shell)
    text = TRAIN.replace("step, loss = json.load(open(args.resume))", "step, loss = 1, 3.0")
    (toy / "train.py").write_text(text)
    declare(toy, "keys", command=SLOW, **RESUMES)
    assert "what it saves lacks some state" in doctor(shell, 1)


def doctor(shell: Shell, code: int = 0) -> str:
    done = shell("doctor", "trainer=toy", INLINE, code=code)
    return done.out + done.err
