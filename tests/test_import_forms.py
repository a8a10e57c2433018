"""`ablate import` reads what people have: files as the formats' own libraries write them, and
sheets as programs export them. The oracle is the same results in a plain csv, and scipy."""

import json
import os
import shlex
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats as oracle

import ablate
from ablate.store.store import Store

ROWS = {"base": (90.12, 90.43, 90.21, 90.3), "x": (91.1, 91.52, 91.03, 91.44)}
OF = ("--row", "m", "--seed", "seed", "--metric", "acc:more:%")
LAST = (*OF, "--epochs", "last")
HEADER = ("m", "seed", "acc")


def records():
    return [
        {"m": row, "seed": seed, "acc": value}
        for row, values in ROWS.items()
        for seed, value in enumerate(values)
    ]


def csv_text(separator=",", point="."):
    lines = [separator.join(HEADER)]
    for record in records():
        texts = (record["m"], str(record["seed"]), str(record["acc"]).replace(".", point))
        lines.append(separator.join(texts))
    return "\n".join(lines) + "\n"


def entries(run, name, *words):
    text = run("table", name, *words, "--format", "json")
    [column] = json.loads(text[text.index("{") :])["columns"]
    return {entry["row"]: entry for entry in column["entries"]}


def check(run, file, words, name="sheet", approx=1e-9):
    """Import a sheet with the results of ROWS into a store of its own: the table has scipy's
    interval, `verify` reads the sheet again, and the same command finds every run there."""
    files = file if isinstance(file, tuple) else (file,)
    store = ("--store", name)
    text = run("import", *files, *words, "--as", name, *store)
    assert "; 8 runs" in text
    table = entries(run, name, *store)
    differences = np.subtract(ROWS["x"], ROWS["base"])
    low, high = oracle.ttest_1samp(differences, 0).confidence_interval(0.95)
    for row, values in ROWS.items():
        assert table[row]["accuracy"]["mean"] == pytest.approx(np.mean(values), abs=approx)
    if "--seed" in words:
        gain = table["x"]["gain"]
        assert (gain["low"], gain["high"]) == pytest.approx((low, high), abs=1e-3)
    verified = run("verify", name, *store)
    assert "nothing wrong" in verified
    assert "sealed" not in verified  # the sheet was found again, as it was
    assert "8 here already" in run("import", *files, *words, "--as", name, *store)
    return text


SHEET = ("sheet", "--store", "sheet")  # what `check` imports by default


# --- Text -----------------------------------------------------------------------------------------

COMMENTED = "# by harness 1.2, on a Tuesday\n# commit 3f2\n" + csv_text() + "# done\n"
TEXTS = {  # name -> how pandas writes it, options
    "plain.csv": ({}, ()),
    "excel.txt": ({"sep": "\t", "encoding": "utf-16"}, ("--encoding", "utf-16")),
    "german.csv": ({"sep": ";", "decimal": ",", "encoding": "latin-1"}, ("--decimal", ",")),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_of_any_kind_is_the_plain_sheet(run, name):
    written, options = TEXTS[name]
    pd.DataFrame(records()).to_csv(name, index=False, **written)
    check(run, name, (*OF, *options))


def test_lines_of_comments_are_left_out(run):
    Path("notes.csv").write_text(COMMENTED)
    assert pd.read_csv("notes.csv", comment="#").to_dict("records") == records()
    check(run, "notes.csv", (*OF, "--comment", "#"))


def test_letters_of_latin_1_are_read_as_such(run):
    Path("latin.csv").write_bytes(csv_text().replace("x,", "größe,").encode("latin-1"))
    run("import", "latin.csv", *OF, "--encoding", "latin-1")
    assert set(entries(run, "latin")) == {"base", "größe"}


def test_a_point_among_decimal_commas_is_refused_without_the_advice_of_a_comma(run):
    for number, cell in enumerate(("90.1", "1.234,5", "1.234")):
        Path(f"{number}.csv").write_text(f"{csv_text(';', ',')}x;9;{cell}\n")
        text = run("import", f"{number}.csv", *OF, "--decimal", ",", code=2)
        assert "line 10: acc: " in text
        assert "have a point" in text
        assert "give --decimal" not in text


def test_excels_commas_at_the_ends_of_lines_are_no_columns(run):
    head, *lines = csv_text().splitlines()
    Path("all.csv").write_text("".join(f"{line},,\n" for line in (head, *lines)))
    check(run, "all.csv", OF, "all")
    Path("lines.csv").write_text("\n".join((head, *(f"{line}," for line in lines))))
    check(run, "lines.csv", OF, "lines")
    Path("value.csv").write_text("\n".join((head, *(f"{line},3" for line in lines))))
    assert "4 values" in run("import", "value.csv", *OF, code=2)


@pytest.mark.parametrize("separator", ["\u2028", "\x0c", "\x85"])
def test_a_separator_within_a_value_ends_no_line(run, separator):
    """As pandas has it, and json."""
    frame = pd.DataFrame(records()).assign(note=f"a{separator}b")
    frame.to_csv("note.csv", index=False)
    frame.to_json("note.jsonl", orient="records", lines=True, force_ascii=False)
    assert len(pd.read_csv("note.csv")) == len(frame)
    check(run, "note.csv", OF, "plain")
    check(run, "note.csv", (*OF, "--comment", "#"), "comment")
    check(run, "note.jsonl", OF, "jsonl")


# --- JSON -----------------------------------------------------------------------------------------


def nested():
    return [
        {"config": {"m": r["m"], "seed": r["seed"]}, "summary": {"acc": r["acc"]}}
        for r in records()
    ]


def test_json_of_each_shape_is_the_plain_sheet(run):
    frame = pd.DataFrame(records())
    Path("list.json").write_text(json.dumps(records()))
    Path("columns.json").write_text(json.dumps(frame.to_dict("list")))
    frame.to_json("pandas.json")
    frame.to_json("records.json", orient="records")
    for name in ("list", "columns", "pandas", "records"):
        run("import", f"{name}.json", *OF, "--as", "sheet", "--store", name)
        table = entries(run, "sheet", "--store", name)
        assert table == entries(run, "sheet", "--store", "list")
    check(run, "list.json", OF)


def test_nested_json_has_dotted_columns(run):
    Path("wandb.json").write_text(json.dumps(nested()))
    words = ("--row", "config.m", "--seed", "config.seed", "--metric", "acc=summary.acc:more:%")
    check(run, "wandb.json", words)


@pytest.mark.parametrize(
    ("tree", "parts"),
    [
        ({"m": ["base"], "acc": [1, 2]}, ("acc has 2", "m has 1")),
        ([{"m": 1}, [2]], ("[1]", "[2]")),
        (3, ("an object",)),
        ([], ("no line",)),
    ],
)
def test_json_that_is_no_sheet_is_refused(run, tree, parts):
    Path("bad.json").write_text(json.dumps(tree))
    text = run("import", "bad.json", *OF, code=2)
    assert text.count("\n") == 1
    assert all(part in text for part in ("bad.json", *parts))


@pytest.mark.parametrize(
    ("name", "part"),
    [("runs.xlsx", "CSV"), ("mlflow.db", "`mlflow"), ("a.json", "--comment")],
)
def test_a_file_that_is_no_text_is_refused_with_the_way_out(run, name, part):
    Path(name).write_text("[]")
    assert part in run("import", name, *OF, "--comment", "#", code=2)


@pytest.mark.parametrize(
    ("words", "parts"),
    [((), ("--row", "m, seed, acc")), (("--row", "m"), ("--metric", "m, seed, acc"))],
)
def test_without_a_row_or_a_metric_the_columns_of_the_sheet_are_named(run, words, parts):
    Path("s.csv").write_text(csv_text())
    text = run("import", "s.csv", *words, code=2)
    assert text.count("\n") == 1
    assert all(part in text for part in parts)
    assert "nofile.csv" in run("import", "nofile.csv", *words, code=2)


# --- Several files, and folders of jobs -----------------------------------------------------------


def test_several_files_are_one_sheet_with_their_names_as_columns(run):
    for row, values in ROWS.items():
        Path("logs").mkdir(exist_ok=True)
        text = "".join(f"{seed},{value}\n" for seed, value in enumerate(values))
        Path("logs", f"{row}_run.csv").write_text(f"seed,acc\n{text}")
    files = ("logs/base_run.csv", "logs/x_run.csv")
    check(run, files, (*OF, "--split", "file={m}_run.csv"))
    plan = Store(Path("sheet")).read_plan("sheet")
    assert plan.command[:3] == ("import", *files)
    assert "logs:" in run("import", *files, *OF, "--split", "file={m}_run.csv")
    Path(files[1]).write_text("seed,acc\n0,1\n")
    assert "sealed" in run("verify", *SHEET)


def test_an_anonymous_bundle_of_several_files_names_no_folder(run):
    for row, values in ROWS.items():
        Path("secretive", row).mkdir(parents=True)
        text = "".join(f"{seed},{value}\n" for seed, value in enumerate(values))
        Path("secretive", row, f"{row}.csv").write_text(f"seed,acc\n{text}")
    files = ("secretive/base/base.csv", "secretive/x/x.csv")
    words = (*OF, "--split", "file=*/{m}.csv", "--as", "sheet")
    run("import", *files, *words)
    run("export", "sheet", "out", "--anonymous")
    assert "nothing wrong" in run("verify", "out")
    texts = [path.read_bytes() for path in Path("out").rglob("*") if path.is_file()]
    assert any(b"x.csv" in text for text in texts)
    assert not any(b"secretive" in text or b"base/base" in text for text in texts)


def test_a_file_that_fits_no_pattern_is_named_with_the_option_that_leaves_it_out(run):
    for name in ("base_0.csv", "x_0.csv", "total.csv"):
        Path(name).write_text("acc\n90\n")
    words = (*OF, "--split", "file={m}_{seed}.csv")
    files = ("base_0.csv", "x_0.csv", "total.csv")
    text = run("import", *files, *words, code=2)
    option = "file!=total.csv"
    assert f"--where {shlex.quote(option)} " in text
    assert "; 2 runs" in run("import", *files, *words, "--where", option)


def test_a_file_is_not_given_twice_and_its_own_columns_are_not_hidden(run):
    Path("logs").mkdir()
    for name in ("a.csv", "b.csv"):
        Path("logs", name).write_text("m,seed,acc,file\nbase,0,90,here\n")
    assert "twice" in run("import", "logs/a.csv", "logs/../logs/a.csv", *OF, code=2)
    text = run("import", "logs/a.csv", "logs/b.csv", *OF, code=2)
    assert all(part in text for part in ("a.csv: ", "'file'"))


def write_lightning(folder="lightning_logs"):
    """Write what Lightning's CSVLogger does: a line for training and one for validation, with empty
    cells, hparams.yaml beside them, and the test at the end."""
    for number, record in enumerate(records()):
        version = Path(folder, f"version_{number}")
        version.mkdir(parents=True)
        (version / "hparams.yaml").write_text(f"m: {record['m']}\nseed: {record['seed']}\n")
        lines = ["epoch,step,train_loss,val_acc,test_acc"]
        for epoch in range(3):
            validation = record["acc"] + (0.5 if epoch == 1 else 0)
            lines.append(f"{epoch},{10 * epoch},{1 / (1 + epoch)},,")
            lines.append(f"{epoch},{10 * epoch},,{validation},")
        lines.append(f"3,30,,,{record['acc']}")
        (version / "metrics.csv").write_text("\n".join(lines) + "\n")


def test_jobs_of_lightning_have_their_settings_and_their_last_values(run):
    write_lightning()
    words = [word.replace("acc:", "acc=test_acc:") for word in LAST]
    text = check(run, "lightning_logs", (*words, "--result", "metrics.csv", "--ignore", "t*"))
    assert "train_loss" not in text
    words = [word.replace("test_acc:", "val_acc:") for word in words]  # whose last cell is empty
    run("import", "lightning_logs", *words, "--result", "metrics.csv", "--as", "validation")
    for row, values in ROWS.items():
        mean = entries(run, "validation")[row]["accuracy"]["mean"]
        assert mean == pytest.approx(np.mean(values))


def test_the_best_epoch_is_that_of_the_validation_and_the_test_is_of_the_whole_run(run):
    write_lightning()
    words = [word.replace("acc:", "acc=test_acc:") for word in OF]
    words += ["--result", "metrics.csv", "--epochs"]
    text = run("import", "lightning_logs", *words, "best:val_acc", code=2)
    assert "best:val_acc:more" in text
    check(run, "lightning_logs", (*words, "best:val_acc:more"))
    words = [word.replace("acc=test_acc:", "acc=val_acc:") for word in words]
    text = run("import", "lightning_logs", *words, "best:val_acc", "--as", "own")
    assert "metric itself" in text
    for row, values in ROWS.items():
        mean = entries(run, "own")[row]["accuracy"]["mean"]
        assert mean == pytest.approx(np.mean(values) + 0.5)


def test_the_first_of_equally_good_epochs_counts_and_a_test_only_where_it_is_one(run):
    lines = ["m,seed,val,test,acc"]
    for r in records():
        lines += [f"{r['m']},{r['seed']},1,,{r['acc'] - 3}", f"{r['m']},{r['seed']},2,,{r['acc']}"]
        lines += [f"{r['m']},{r['seed']},2,,{r['acc'] - 1}", f"{r['m']},{r['seed']},,{r['acc']},"]
    Path("ties.csv").write_text("\n".join(lines) + "\n")
    check(run, "ties.csv", (*OF, "--epochs", "best:val:more"))
    losses = Path("ties.csv").read_text().replace(",2,,", ",0,,")
    Path("losses.csv").write_text(losses)
    check(run, "losses.csv", (*OF, "--epochs", "best:val:less"), "losses")
    words = [word.replace("acc:", "acc=test:") for word in (*OF, "--epochs", "best:val:more")]
    check(run, "ties.csv", words, "tests")
    Path("two.csv").write_text("\n".join([*lines, "x,3,,99,"]) + "\n")
    text = run("import", "two.csv", *words, code=2)  # of two tests none is that of the whole run
    assert "test: is empty" in text


def test_the_epoch_before_a_loss_that_is_not_finite_counts(run):
    lines = ["m,seed,val,acc"]
    for r in records():
        lines += [f"{r['m']},{r['seed']},1,{r['acc']}", f"{r['m']},{r['seed']},nan,1"]
    Path("log.csv").write_text("\n".join(lines) + "\n")
    for direction in ("more", "less"):
        check(run, "log.csv", (*OF, "--epochs", f"best:val:{direction}"), direction)


def test_results_of_hugging_face_are_jobs(run):
    """`all_results.json` has the end of a run, `trainer_state.json` its course."""
    for record in records():
        job = Path("out", f"{record['m']}-s{record['seed']}")
        job.mkdir(parents=True)
        results = {"epoch": 3.0, "eval_accuracy": record["acc"] / 100, "eval_runtime": 1.5}
        (job / "all_results.json").write_text(json.dumps(results))
        history = [{"epoch": epoch, "step": 10 * epoch, "loss": 1.0} for epoch in (1, 2)] + [
            {"epoch": 3, "step": 30, "eval_accuracy": record["acc"] / 100}
        ]
        (job / "trainer_state.json").write_text(
            json.dumps({"best_metric": None, "log_history": history, "max_steps": 30})
        )
    words = [word.replace("acc:", "acc=eval_accuracy:") for word in OF]
    words += ["--split", "run={m}-s{seed}", "--result"]
    check(run, "out", (*words, "all_results.json"))
    check(run, "out", (*words, "trainer_state.json", "--epochs", "last"), "course")


def test_a_folder_of_no_kind_is_refused_with_the_options_that_take_it(run):
    Path("out/a").mkdir(parents=True)
    Path("out/a/log.csv").write_text(csv_text())
    assert "--result" in run("import", "out", *OF, code=2)
    for name in ("none.csv", "*.csv", "/log.csv", "../log.csv", ".", ""):
        text = run("import", "out", *OF, "--result", name, code=2)
        assert text.count("\n") == 1
        assert f"--result {shlex.quote(name)}" in text
    assert "gone:" in run("import", "gone", *OF, "--result", "log.csv", code=2)
    check(run, "out", (*OF, "--result", "log.csv"))


def test_lines_of_one_job_are_no_runs_unless_they_are_declared(run):
    Path("out/a").mkdir(parents=True)
    Path("out/a/log.csv").write_text(f"{csv_text()}x,3,92.0\n")
    words = ("--row", "m", "--metric", "acc:more:%", "--result", "log.csv")
    for options, parts in ((words, ("--seed", "4 lines")), ((*OF, *words[4:]), ("2 lines",))):
        text = run("import", "out", *options, code=2)
        assert all(part in text for part in ("run a", "--epochs last", *parts))
    run("import", "out", *OF, *words[4:], "--epochs", "last", "--as", "last")
    mean = entries(run, "last")["x"]["accuracy"]["mean"]
    assert mean == pytest.approx(np.mean([*ROWS["x"][:3], 92.0]))


def write_jobs(settings, results=csv_text, folder="jobs"):
    """Write a job for each record: hparams.yaml by `settings`, metrics.csv by `results`."""
    for number, record in enumerate(records()):
        job = Path(folder, f"job_{number}")
        job.mkdir(parents=True)
        lines = [f"{key}: {value}\n" for key, value in settings(record).items()]
        (job / "hparams.yaml").write_text("".join(lines))
        (job / "metrics.csv").write_text(results(record))


def of_acc(record):
    return f"acc\n{record['acc']}\n"


def place(record):
    return {"m": record["m"], "seed": record["seed"]}


def test_a_setting_never_takes_the_place_of_a_result_of_its_name(run):
    write_jobs(lambda record: {**place(record), "acc": 1.0}, of_acc)
    text = run("import", "jobs", *OF, "--result", "metrics.csv", code=2)
    assert text.count("\n") == 1
    assert all(part in text for part in ("jobs: job job_0: ", "'acc'", "metrics.csv"))
    write_jobs(
        lambda record: {**place(record), "lr": 1}, lambda r: f"acc,lr,m\n{r['acc']},2,\n", "lrs"
    )
    words = (*OF, "--result", "metrics.csv")
    check(run, "lrs", words)  # a setting counts where the result has none
    text = run("import", "lrs", *words, "--where", "lr=2", code=2)
    assert all(part in text for part in ("lrs: job job_0: ", "'lr'"))


def test_a_job_whose_settings_have_a_run_keeps_it(run):
    write_jobs(lambda record: {"m": record["m"], "run": record["seed"]}, of_acc)
    words = ("--row", "m", "--metric", "acc:more:%", "--result", "metrics.csv")
    check(run, "jobs", (*words, "--seed", "run"))
    split = ("--split", "folder=job_{number}", "--where", "number=0,4")
    assert "; 2 runs" in run("import", "jobs", *words, "--seed", "run", *split)


def test_jobs_are_in_the_order_of_their_numbers(run):
    """Without --seed that is the order of a row's runs: 10 comes after 9."""
    for number in range(12):
        job = Path("logs", f"version_{number}")
        job.mkdir(parents=True)
        (job / "metrics.csv").write_text(f"m,acc\n{'ab'[number % 2]},{90 + number}\n")
    run("import", "logs", "--row", "m", "--metric", "acc:more:%", "--result", "metrics.csv")
    plan = Store(Path("runs")).read_plan("logs")
    for cell in plan.cells:
        results = [
            json.loads((Path("runs/runs") / cell.ids[seed] / "result.json").read_text())
            for seed in sorted(cell.ids)
        ]
        values = [result["test"]["acc"] for result in results]
        assert values == sorted(values)
        assert len(values) == 6


def test_a_run_without_numbers_is_refused_and_never_left_out_unseen(run):
    write_jobs(place, lambda r: "epoch,acc\n" + f"1,{r['acc']}\n" * (r["seed"] != 2))
    words = (*LAST, "--result", "metrics.csv")
    text = run("import", "jobs", *words, code=2)
    assert "acc: is empty" in text
    assert "job job_2" in text
    text = run("import", "jobs", *words, "--where", "acc!=")
    assert "; 6 runs" in text
    assert "6 of 8" in text
    for name, content in {"base_0": "acc\n90\n", "x_0": "acc\n91\n", "x_1": "acc\n"}.items():
        Path(f"{name}.csv").write_text(content)
    files = ("base_0.csv", "x_0.csv", "x_1.csv")
    text = run("import", *files, *OF, "--split", "file={m}_{seed}.csv", code=2)
    assert "x_1.csv: " in text


# --- Trackers -------------------------------------------------------------------------------------


@pytest.mark.whole
def test_mlflows_file_store_is_read_by_mlflow(run, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.tracking.MlflowClient(tracking_uri=Path("mlruns").absolute().as_uri())
    experiment = client.create_experiment("study")
    for record in [*records(), {"m": "x", "seed": 9, "acc": 1.0}]:
        run_id = client.create_run(experiment, run_name="same").info.run_id
        for key in ("m", "seed"):
            client.log_param(run_id, key, record[key])
        for step, value in enumerate((record["acc"] + 1, record["acc"])):
            client.log_metric(run_id, "acc", value, step=step)
        client.set_terminated(run_id, "FAILED" if record["seed"] == 9 else "FINISHED")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    words = ("--row", "params.m", "--seed", "params.seed", "--metric", "acc=metrics.acc:more:%")
    words += ("--where", "status=FINISHED")
    text = check(run, "mlruns", words)
    assert "8 of 9" in text
    run("import", "mlruns", *words, "--as", "best", "--epochs", "best:metrics.acc")
    mean = entries(run, "best")["x"]["accuracy"]["mean"]
    assert mean == pytest.approx(np.mean(ROWS["x"]) + 1)


def write_mlflow(monkeypatch, number):
    """Write a file store with so many runs, of which each has its number as `acc`."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.tracking.MlflowClient(tracking_uri=Path("mlruns").absolute().as_uri())
    experiment = client.create_experiment("study")
    for value in range(number):
        run_id = client.create_run(experiment, start_time=value).info.run_id
        client.log_param(run_id, "m", "ab"[value % 2])
        if value != 3:
            client.log_metric(run_id, "acc", 50 + value, step=1)
        client.set_terminated(run_id)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    return experiment


MLFLOW = ("--row", "params.m", "--metric", "acc=metrics.acc:more:%")


@pytest.mark.parametrize("setting", [None, "false"])
def test_all_pages_of_mlflow_are_read_and_the_environment_stays(run, monkeypatch, setting):
    write_mlflow(monkeypatch, 7)
    monkeypatch.setattr("ablate.audit.trackers.PAGE", 2)
    if setting is not None:
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", setting)
    assert "; 6 runs" in run("import", "mlruns", *MLFLOW, "--where", "metrics.acc!=")
    assert os.environ.get("MLFLOW_ALLOW_FILE_STORE") == setting


def test_a_run_of_mlflow_without_a_metric_is_refused_with_epochs_too(run, monkeypatch):
    write_mlflow(monkeypatch, 4)
    for name, words in {"end": MLFLOW, "course": (*MLFLOW, "--epochs", "last")}.items():
        text = run("import", "mlruns", *words, code=2)
        assert text.count("\n") == 1
        assert "metrics.acc: is empty" in text
        words += ("--where", "metrics.acc!=", "--as", name)
        assert "; 3 runs" in run("import", "mlruns", *words)


def test_one_experiment_of_mlflow_is_refused_with_the_way_out(run, monkeypatch):
    experiment = write_mlflow(monkeypatch, 2)
    for folder in (Path("mlruns", experiment), next(Path("mlruns", experiment).glob("*/"))):
        text = run("import", folder, *MLFLOW, code=2)
        assert text.count("\n") == 1
        assert "--where experiment=NAME" in text
    assert "; 2 runs" in run("import", "mlruns", *MLFLOW, "--where", "experiment=study")


def test_verify_without_mlflow_says_that_it_lacks_and_not_that_the_sheet_changed(run, monkeypatch):
    write_mlflow(monkeypatch, 2)
    run("import", "mlruns", *MLFLOW)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", None)
    text = run("verify", "mlruns")
    assert "mlflow is not" in text
    assert "another file" not in text


@pytest.mark.parametrize("new_style", [False, True])
def test_tensorboards_event_files_are_read_by_tensorboard(run, new_style):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    for record in records():
        folder = f"tb/{record['m']}/{record['seed']}"
        with tensorboard.SummaryWriter(folder) as writer:
            for step, value in enumerate((record["acc"] + 1, record["acc"])):
                writer.add_scalar("val/acc", value, step, new_style=new_style)
                writer.add_scalar("loss", 1 / (1 + step), step, new_style=new_style)
            settings = {"m": record["m"], "seed": record["seed"], "amp": True}
            writer.add_hparams(settings, {"final": record["acc"]}, run_name=".")
    words = [word.replace("acc:", "acc=val/acc:") for word in OF]
    text = run("import", "tb", *words, code=2)
    assert "--epochs last" in text
    check(run, "tb", (*words, "--epochs", "last"), approx=1e-5)
    paths = [word.replace("m", "row") if word == "m" else word for word in words]
    paths = [word.replace("seed", "s") if word == "seed" else word for word in paths]
    paths += ["--split", "run={row}/{s}", "--epochs", "last"]
    run("import", "tb", *paths, "--as", "paths")
    assert entries(run, "paths")["x"]["gain"] == entries(run, *SHEET)["x"]["gain"]


@pytest.mark.parametrize("run_name", [None, "hparams"])
def test_the_folder_that_add_hparams_makes_is_of_its_run(run, run_name):
    """torch names it by the time, below the folder of the run."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    for number, record in enumerate(records()):
        with tensorboard.SummaryWriter(f"tb/run{number}") as writer:
            for step, value in enumerate((record["acc"] + 1, record["acc"])):
                writer.add_scalar("val/acc", value, step)
            metrics = {"final": record["acc"]} if run_name is None else {}
            writer.add_hparams(place(record), metrics, run_name=run_name)
    assert len([*Path("tb").glob("run*/*/")]) == len(records())
    words = [word.replace("acc:", "acc=val/acc:") for word in LAST]
    check(run, "tb", words, approx=1e-5)
    if run_name is None:
        words = [word.replace("acc:", "acc=final:") for word in LAST]
        check(run, "tb", words, "final", approx=1e-5)


def test_one_writer_of_tensorboard_with_the_settings_of_each_run(run):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter("tb") as writer:
        for number, record in enumerate(records()):
            writer.add_hparams(place(record), {"acc": record["acc"]}, run_name=f"{number}")
    check(run, "tb", LAST, approx=1e-5)


def test_a_run_of_tensorboard_without_scalars_is_refused(run):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    for record in [*records(), {"m": "x", "seed": 9}]:
        with tensorboard.SummaryWriter(f"tb/{record['m']}_{record['seed']}") as writer:
            if "acc" in record:
                writer.add_scalar("acc", record["acc"], 1)
    words = (*LAST, "--split", "run={m}_{seed}")
    assert "run x_9: acc: " in run("import", "tb", *words, code=2)
    assert "; 8 runs" in run("import", "tb", *words, "--where", "acc!=")


# --- Wide sheets ----------------------------------------------------------------------------------


def test_columns_that_hold_a_run_each_become_runs(run):
    frame = pd.DataFrame.from_dict(ROWS, "index").add_prefix("seed_").rename_axis("m").reset_index()
    frame.to_csv("wide.csv", index=False)
    check(run, "wide.csv", (*OF, "--wide", "seed_*"))
    apart = ("--row", "m", "--metric", "acc:more:%", "--wide", "seed_*")
    check(run, "wide.csv", apart, "apart")
    assert "--wide 'seed_*'" in run("import", "wide.csv", *OF[:2], *OF[4:], code=2)
    frame.loc[1, "seed_3"] = np.nan  # a run that was not made
    frame.to_csv("gap.csv", index=False)
    assert "; 7 runs" in run("import", "gap.csv", *OF, "--wide", "seed_*")
    filtered = (*OF, "--as", "filtered", "--wide", "seed_*", "--where", "seed_3!=")
    assert "seed_3" in run("import", "gap.csv", *filtered, code=2)  # no run is lost by its name


def test_a_chart_of_weights_and_biases_is_wide_with_a_line_for_each_step(run):
    columns = {"Step": [0, 1, 2]}
    for record in records():
        name = f"{record['m']}-{record['seed']} - val_acc"
        columns[name] = [50, None, record["acc"]]
        columns |= {f"{name}__{end}": [50, None, record["acc"]] for end in ("MIN", "MAX")}
    pd.DataFrame(columns).to_csv("chart.csv", index=False)
    words = (*LAST, "--wide", "{m}-{seed} - val_acc", "--ignore", "*__M??")
    check(run, "chart.csv", words)


def test_several_metrics_have_a_pattern_each(run):
    lines = ["m,acc_0,acc_1,loss_0,loss_1", "base,90,91,0.5,0.4", "x,92,94,0.3,0.2"]
    Path("two.csv").write_text("\n".join(lines) + "\n")
    words = ("--row", "m", "--seed", "seed", "--metric", "acc:more:%", "--metric", "loss:less")
    run("import", "two.csv", *words, "--wide", "acc_*", "--wide", "loss_*")
    assert entries(run, "two")["x"]["accuracy"]["mean"] == pytest.approx(93)
    loss = entries(run, "two", "analysis.metric=loss")
    assert loss["x"]["accuracy"]["mean"] == pytest.approx(0.25)
    text = run("import", "two.csv", *words, "--wide", "acc_*", "--wide", "*_1", code=2)
    assert all(part in text for part in ("--wide *_1: ", "'acc_1'"))


def test_a_line_without_any_run_is_named(run):
    Path("lost.csv").write_text("m,seed_0,seed_1\nbase,0.5,0.6\nx,0.6,0.7\nlost,,\n,,\n")
    text = run("import", "lost.csv", *OF, "--wide", "seed_*")
    assert "value: line 4" in text
    assert "line 5" not in text


def test_a_star_of_wide_is_a_seed_in_digits_and_columns_that_are_named_hold_no_run(run):
    frame = pd.DataFrame.from_dict(ROWS, "index").add_prefix("acc_").rename_axis("m").reset_index()
    frame["acc_mean"] = frame["acc_std"] = 1.0
    frame.to_csv("stats.csv", index=False)
    check(run, "stats.csv", (*OF, "--wide", "acc_*", "--ignore", "acc_*"))
    frame = pd.DataFrame(ROWS).rename_axis("seed").reset_index()
    frame.to_csv("rows.csv", index=False)
    check(run, "rows.csv", (*OF, "--wide", "{m}"), "rows")
    text = run("import", "rows.csv", *OF, "--wide", "*", code=2)
    assert all(part in text for part in ("digits", "'base'", "'x'"))


# --- Which lines count ----------------------------------------------------------------------------

STATUSES = [("base", 9, "crash", "-"), ("x", 8, "crash", ""), ("x", 7, "todo, later", "")]


def test_lines_are_chosen_by_their_values_and_the_table_says_how_many(run):
    lines = ["m,seed,status,acc"]
    lines += [f"{r['m']},{r['seed']},keep,{r['acc']}" for r in records()]
    lines += [f'{m},{seed},"{status}",{acc}' for m, seed, status, acc in STATUSES]
    Path("log.csv").write_text("\n".join(lines) + "\n")
    text = check(run, "log.csv", (*OF, "--where", "status=keep"))
    assert "8 of 11" in text
    assert "8 of 11" in run("table", *SHEET)
    for name, wheres in {
        "two": ("--where", "status!=crash", "--where", "status!=todo, later"),
        "cells": ("--where", "acc!=,-"),
    }.items():
        text = run("import", "log.csv", *OF, *wheres, "--as", name)
        assert "; 8 runs" in text
        assert text.count("8 of 11") == 1  # all conditions have one note
    Path("plain.csv").write_text(csv_text())
    assert "note" not in run("import", "plain.csv", *OF, "--where", "m=base,x")
    assert "'crash'" in run("import", "log.csv", *OF, "--where", "status=kept", code=2)


def test_runs_of_a_row_are_told_apart_by_run_where_seeds_are_no_pairs(run):
    lines = ["m,id,epoch,acc"]
    for r in records():
        lines.append(f"{r['m']},{r['m']}{r['seed']},1,{r['acc'] - 1}")
        lines.append(f"{r['m']},{r['m']}{r['seed']},2,{r['acc']}")
    Path("log.csv").write_text("\n".join(lines) + "\n")
    words = ("--row", "m", "--metric", "acc:more:%", "--epochs", "last")
    assert "--run COLUMN" in run("import", "log.csv", *words, code=2)
    text = check(run, "log.csv", (*words, "--run", "id"))
    assert " id" not in text  # it is declared, so that no note names it
    gain = entries(run, *SHEET)["x"]["gain"]
    welch = oracle.ttest_ind(ROWS["x"], ROWS["base"], equal_var=False).confidence_interval(0.95)
    assert (gain["low"], gain["high"]) == pytest.approx(tuple(welch), abs=2e-3)


def test_an_ignored_column_is_in_no_note(run):
    lines = [f"{r['m']},{r['seed']},{r['acc']},{len(r['m'])},{r['acc']}" for r in records()]
    Path("log.csv").write_text("\n".join(["m,seed,acc,lr,train_acc", *lines]) + "\n")
    assert "lr differs" in run("import", "log.csv", *OF)
    text = run("import", "log.csv", *OF, "--as", "quiet", "--ignore", "lr", "--ignore", "train_*")
    assert "note" not in text
    assert " lr " not in run("table", "quiet")


def test_python_ignores_columns_too(here):
    frame = pd.DataFrame(records()).assign(lr=lambda each: each["m"].str.len())
    made = ablate.Store("runs").add_runs(
        frame, "frame", "m", "acc:more:%", seed="seed", ignore=["lr"]
    )
    keys = [note.key for note in made.table().data.notes]
    assert "sheet.source" in keys
    assert "sheet.hides" not in keys


def test_more_files_of_a_folder_take_the_place_of_fewer(run):
    for record in records():
        Path(f"{record['m']}_{record['seed']}.csv").write_text(f"acc\n{record['acc']}\n")
    words = (*OF, "--split", "file={m}_{seed}.csv", "--as", "sheet")
    files = [path.name for path in sorted(Path().glob("*.csv"))]
    halves = files[:1] + files[4:5], files[1:4] + files[5:]
    for number, (paths, sources) in enumerate(((halves[0], 1), (halves[1], 2), (files, 1))):
        run("import", *paths, *words)
        design = Store(Path("runs")).read_plan("sheet").design
        assert len(design.sources) == sources, number


def sources_of(name):
    return Store(Path("runs")).read_plan(name).design.sources


def test_a_sheet_that_is_read_again_keeps_its_source_and_notes_if_it_was_read_otherwise(run):
    log = csv_text().replace("acc\n", "acc,kind\n").splitlines()
    log = [log[0], *(f"{line},{'ab'[number % 2]}" for number, line in enumerate(log[1:]))]
    Path("log.csv").write_text("\n".join(log) + "\n")
    for kind in ("a", "b", "b"):
        run("import", "log.csv", *OF, "--where", f"kind={kind}")
    assert [source.read.where for source in sources_of("log")] == [("kind=a",), ("kind=b",)]
    text = run("table", "log")
    assert "kind=a" in text
    assert "kind=b" in text
    Path("log.csv").write_text("\n".join([*log, "y,0,92,b"]) + "\n")
    run("import", "log.csv", *OF, "--where", "kind=b")
    assert [source.lines for source in sources_of("log")] == [4, 5]
    Path("log.csv").write_text("\n".join([log[0], "base,9,90,b"]) + "\n")
    run("import", "log.csv", *OF, "--where", "kind=b")  # a shorter file has not all of the old one
    assert [source.lines for source in sources_of("log")] == [4, 5, 1]


def test_frames_of_other_runs_are_sources_of_their_own(here):
    frame = pd.DataFrame(records())

    def add(rows):
        return ablate.Store("runs").add_runs(
            frame[frame["m"].isin(rows)], "frame", "m", "acc:more:%", seed="seed"
        )

    for rows, number in ((["base"], 1), (["x"], 2), (["base", "x"], 1)):
        add(rows)
        assert len(sources_of("frame")) == number


# --- Refusals, and the way out that each names ----------------------------------------------------

REFUSED = {  # content, words, and the words that the refusal names, with which it is imported
    "comments": (COMMENTED.encode(), OF, ("--comment", "#")),
    "utf-16": (csv_text().encode("utf-16"), OF, ("--encoding", "utf-16")),
    "utf-16-le": (csv_text().encode("utf-16-le"), OF, ("--encoding", "utf-16-le")),
    "latin-1": (csv_text().replace("x,", "é,").encode("latin-1"), OF, ("--encoding", "latin-1")),
    "decimals": (csv_text(";", ",").encode(), OF, ("--decimal", ",")),
    "epochs": (f"{csv_text()}x,3,91.0\n".encode(), OF, ("--epochs", "last")),
    "empty": (f"{csv_text()}x,9,\n".encode(), OF, ("--where", "acc!=")),
    "dash": (f"{csv_text()}x,9,-\n".encode(), OF, ("--where", "acc!=-")),
    "n/a": (f"{csv_text()}x,9,n/a\n".encode(), OF, ("--where", "acc!=n/a")),
    "no row": (f"{csv_text()},9,90\n".encode(), OF, ("--where", "m!=")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_the_way_out_which_then_works(run, case):
    content, words, remedy = REFUSED[case]
    Path("sheet.csv").write_bytes(content)
    text = run("import", "sheet.csv", *words, code=2)
    assert text.count("\n") == 1
    assert remedy[0] in text
    assert remedy[1] in text
    assert "; 8 runs" in run("import", "sheet.csv", *words, *remedy)


@pytest.mark.parametrize(
    ("cell", "parts"),
    [
        ("0.80 ± 0.02", ("mean", "spread", "runs")),
        ("80.1 +/- 0.3", ("mean", "spread", "runs")),
        (r"80.1 \pm 0.3", ("mean", "spread", "runs")),
        ("80.1 (0.3)", ("mean", "spread", "runs")),
        ("90.00%", ("%,",)),
        ('"1,014.45"', ("thousands",)),
        ('"90,31"', ("--decimal ,",)),
        ('"12,345"', ("--decimal ,", "thousands")),
    ],
)
def test_a_cell_that_is_no_number_is_refused_with_the_reason(run, cell, parts):
    Path("sheet.csv").write_text(f"{csv_text()}x,9,{cell}\n")
    text = run("import", "sheet.csv", *OF, code=2)
    assert text.count("\n") == 1
    assert all(part in text for part in ("line 10: acc: ", *parts))


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--wide", "run_*"), ("'m'", "'seed'", "'acc'")),
        (("--wide", "acc"), ("{seed}",)),
        (("--wide", "{a}{a}"), ("twice",)),
        (("--wide", "a*", "--wide", "b*"), ("--metric",)),
        (("--split", "m=x"), ("{seed}",)),
        (("--split", "n={x}"), ("'n'", "m, seed")),
        (("--split", "m={seed}"), ("'seed' already",)),
        (("--where", "m"), ("COLUMN!=VALUE",)),
        (("--where", "n=1"), ("m, seed",)),
        (("--epochs", "first"), ("best:val_acc:more",)),
        (("--epochs", "best:loss:less"), ("m, seed",)),
        (("--run", "m"), ("--epochs", "last", "--run m")),
        (("--run", "n", "--epochs", "last"), ("--run: ", "'n'", "m, seed")),
        (("--seed", "n", "--epochs", "last"), ("--seed: ", "'n'", "m, seed")),
        (("--decimal", ";"), ("--decimal",)),
        (("--encoding", "utf-99"), ("latin-1",)),
        (("--encoding", "undefined"), ("latin-1",)),
        (("--result", "a.csv"), ("--result",)),
    ],
)
def test_an_option_that_does_not_fit_is_refused_with_what_does(run, words, parts):
    Path("sheet.csv").write_text(csv_text())
    text = run("import", "sheet.csv", *OF, *words, code=2)
    assert text.count("\n") == 1
    assert all(part in text for part in parts), text
