"""`ablate import`: sheets of results from elsewhere become sweeps, whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats as oracle

import ablate
from ablate.analysis import stats
from ablate.audit.sheet import check_sheets
from ablate.shared.errors import UserError
from ablate.store.ledger import Ledger
from ablate.store.record import histories
from ablate.store.store import Store

NAMED = ("--as", "paper2", "--row", "method", "--metric", "acc:more:%")
WORDS = (*NAMED, "--column", "data", "--seed", "seed", "--baseline", "base")
FIELDS = ("method", "data", "seed", "acc", "lr")


def lines(seeds=5, gain=2.0, rate=0.001):
    rng = random.Random(0)
    return [
        {
            "method": row,
            "data": data,
            "seed": seed,
            "acc": round(90 + more * gain + rng.gauss(0, 0.2), 2),
            "lr": rate if row == "dpn" else 0.001,
        }
        for data in ("pets", "cars")
        for row, more in (("base", 0), ("dpn", 1), ("wd", 0))
        for seed in range(seeds)
    ]


def write(path, some, fields=FIELDS):
    text = [",".join(fields), *(",".join(str(line[f]) for f in fields) for line in some)]
    path.write_text("\n".join(text) + "\n")
    return path


@pytest.fixture
def run(ask, tmp_path, monkeypatch):
    """`run(words)`: what a command prints; `code`: how it ends."""
    monkeypatch.chdir(tmp_path)

    def run(*words, code=0):
        ended, text = ask(*map(str, words))
        assert ended == code, text
        return text

    return run


def table(run, *words):
    text = run("table", *words, "--format", "json")
    return json.loads(text[text.index("{") :])


def entries(tree):
    return {(c["label"], e["row"]): e for c in tree["columns"] for e in c["entries"]}


# --- What a sheet becomes -----------------------------------------------------------------------


def test_a_sheet_is_judged_as_a_sweep(run, tmp_path):
    write(tmp_path / "runs.csv", lines())
    assert "30 runs imported" in run("import", "runs.csv", *WORDS)
    found = entries(table(run, "paper2"))
    y = {(line["data"], line["method"], line["seed"]): line["acc"] for line in lines()}
    for (data, row), entry in found.items():
        values = [y[data, row, seed] for seed in range(5)]
        assert entry["accuracy"]["mean"] == pytest.approx(np.mean(values), abs=1e-9)
    assert found["pets", "dpn"]["verdict"] == found["cars", "dpn"]["verdict"] == "helps"
    assert found["pets", "wd"]["verdict"] == "can't tell"
    text = run("table", "paper2")
    assert "Trained elsewhere, not verified; n = 5." in text
    assert "Average over the 2 columns" in text
    assert "lr" not in text


def test_every_command_works_on_it(run, tmp_path):
    write(tmp_path / "runs.csv", lines())
    run("import", "runs.csv", *WORDS)
    assert "nothing wrong" in run("verify", "paper2")
    assert "30 runs: 30 finished" in run("status", "paper2")
    assert "to detect a gain of 0.3 points" in run("plan", "paper2", "--detect", "0.3")
    assert "Trained elsewhere" in run("show", "dpn@pets#3")
    assert "missing" not in run("show", "dpn@pets#3", "--against", "base@pets#3")
    run("plot", "paper2", "gain", "--out", "gain.svg")
    run("report", "paper2")
    run("export", "paper2", "out")
    assert "nothing wrong" in run("verify", "out")
    assert "Trained elsewhere" in run("table", "--from", "out")
    assert "30 brought" in run("merge", "out", "--store", "other")
    assert run("table", "paper2", "--store", "other") == run("table", "paper2")
    assert "0 problem" not in run("doctor", "--repair")
    assert "the same `ablate import` imports it again" in run(
        "run", "dpn@pets#3", "--delete", "--yes"
    )
    assert "1 run imported, 29 here already" in run("import", "runs.csv", *WORDS)


def test_nothing_of_it_is_trained(run, tmp_path):
    write(tmp_path / "runs.csv", lines())
    run("import", "runs.csv", *WORDS)
    before = sorted(os.listdir("runs/runs"))
    said = run("sweep", "paper2", code=2)
    assert said.count("\n") == 1
    assert "was imported, and its runs were trained elsewhere" in said
    said = run("sweep", "stem=none,dpn", "--as", "paper2", code=2)
    assert "is the name of another sweep, `ablate import runs.csv" in said
    with pytest.raises(UserError, match="trained elsewhere"):
        ablate.Sweep("paper2")
    said = run("verify", "--rerun", "dpn@pets#0", code=2)
    assert "was trained elsewhere" in said
    assert sorted(os.listdir("runs/runs")) == before


def test_ids_hold_places_and_meaning_and_no_number(run, tmp_path):
    write(tmp_path / "runs.csv", lines())
    write(tmp_path / "other.csv", lines(gain=5.0))
    run("import", "runs.csv", *WORDS)
    run("import", "other.csv", *WORDS, "--store", "other")
    assert sorted(os.listdir("runs/runs")) == sorted(os.listdir("other/runs"))
    run("import", "runs.csv", *WORDS[2:], "--as", "else", "--store", "else")
    assert not {*os.listdir("runs/runs")} & {*os.listdir("else/runs")}


def test_importing_again_extends_and_a_changed_number_is_refused(run, tmp_path):
    write(tmp_path / "runs.csv", lines(seeds=3))
    run("import", "runs.csv", *WORDS)
    run("table", "paper2")
    more = [{"method": "new", "data": "pets", "seed": s, "acc": 91, "lr": 0.001} for s in range(3)]
    write(tmp_path / "runs.csv", [*lines(seeds=3), *more])
    assert "3 runs imported, 18 here already" in run("import", "runs.csv", *WORDS)
    text = run("table", "paper2")
    assert "Changed since verdicts were first read" in text
    assert "rows: +new" in text
    changed = lines(seeds=3)
    old, changed[4]["acc"] = changed[4]["acc"], 99.5
    write(tmp_path / "runs.csv", changed)
    files = {path: path.read_bytes() for path in Path("runs/runs").rglob("*") if path.is_file()}
    said = run("import", "runs.csv", *WORDS, code=2)
    assert f"line 6: dpn@pets#1: acc was {old}, and is 99.5: nothing was imported" in said
    assert files == {path: path.read_bytes() for path in files}
    assert run("table", "paper2") == text


def test_verify_reads_the_sheet_again_where_it_is_still_there(run, tmp_path):
    write(tmp_path / "runs.csv", lines())
    run("import", "runs.csv", *WORDS)
    said = run("verify", "paper2")
    assert "trained elsewhere: the numbers are those of the sheet, and nothing can retrain" in said
    assert "sealed" not in said
    write(tmp_path / "runs.csv", lines(gain=3.0))
    said = run("verify", "paper2")
    assert "runs.csv: is another file by now: its numbers are those that the ledger sealed" in said
    Path("runs.csv").unlink()
    assert "runs.csv: is not here" in run("verify", "paper2")


def test_numbers_that_are_not_the_sheets_are_findings(run, tmp_path):
    write(tmp_path / "runs.csv", lines())
    run("import", "runs.csv", *WORDS)
    plan = Store(Path("runs")).read_plan("paper2")
    results = {one.id: {"test": {"acc": 1.0}} for one in list(plan.runs())[:2]}
    findings, _ = check_sheets(plan, results)
    assert [finding.partition(": ")[2] for finding in findings] == [
        f"{{'acc': 1.0}}, but {{'acc': {line['acc']}}} in {tmp_path}/runs.csv: line {number}"
        for number, line in ((2, lines()[0]), (7, lines()[5]))
    ]


def test_an_anonymous_bundle_names_no_folder(run, tmp_path):
    write(tmp_path / "runs.csv", lines())
    run("import", tmp_path / "runs.csv", *WORDS)
    run("export", "paper2", "out", "--anonymous")
    assert "nothing wrong" in run("verify", "out")
    texts = (path.read_bytes() for path in Path("out").rglob("*") if path.is_file())
    assert not any(str(tmp_path).encode() in text for text in texts)


def test_a_damaged_run_is_written_again(run, tmp_path):
    write(tmp_path / "runs.csv", lines())
    run("import", "runs.csv", *WORDS)
    text = run("table", "paper2")
    [edited, gone, *_] = sorted(Path("runs/runs").iterdir())
    (edited / "result.json").write_text((edited / "result.json").read_text().replace("acc", "abc"))
    shutil.rmtree(gone)
    assert "withheld" in run("table", "paper2").lower()
    assert "2 runs imported, 28 here already" in run("import", "runs.csv", *WORDS)
    assert run("table", "paper2") == text
    assert "nothing wrong" in run("verify", "paper2")


# --- The forms of a sheet -----------------------------------------------------------------------


def test_all_forms_of_a_sheet_make_the_same_sweep(run, tmp_path):
    some = lines()
    frame = pd.DataFrame(some)
    write(tmp_path / "runs.csv", some)
    write(tmp_path / "german.csv", some).write_text(
        (tmp_path / "runs.csv").read_text().replace(",", ";")
    )
    frame.to_csv("runs.tsv", sep="\t", index=False)
    frame.to_parquet("runs.parquet")
    Path("runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in some))
    for number, line in enumerate(some):
        job = tmp_path / "multirun" / str(number)
        (job / ".hydra").mkdir(parents=True)
        words = [f"{key}={line[key]}" for key in ("method", "data", "seed", "lr")]
        (job / ".hydra" / "overrides.yaml").write_text("".join(f"- {word}\n" for word in words))
        (job / "result.json").write_text(json.dumps({"test": {"acc": line["acc"]}}))
    forms = dict.fromkeys(("runs.csv", "german.csv", "runs.tsv", "runs.parquet", "runs.jsonl"), ())
    forms |= {"multirun": ("--result", "result.json")}
    seen = []
    for name, more in forms.items():
        hydra = [w.replace("acc:", "acc=test.acc:") if more else w for w in WORDS]
        run("import", name, *hydra, *more, "--store", f"at-{name}")
        seen.append(entries(table(run, "paper2", "--store", f"at-{name}")))
    made = ablate.Store("at-frame").add_runs(
        frame, "paper2", "method", "acc:more:%", column="data", seed="seed", baseline="base"
    )
    assert made.name == "paper2"
    seen.append(entries(table(run, "paper2", "--store", "at-frame")))
    assert all(one == seen[0] for one in seen)
    assert [made.name] == ablate.Store("at-frame").sweeps


def test_shares_are_percent_and_metrics_have_their_own_decimals(run, tmp_path):
    for line in (some := lines()):
        line["acc"] = round(line["acc"] / 100, 4)
        line["loss"] = round(1 - line["acc"], 3)
    write(tmp_path / "runs.csv", some, (*FIELDS, "loss"))
    run("import", "runs.csv", *WORDS, "--metric", "nll=loss:less:nats")
    text = run("table", "paper2", "--show", "accuracy,nll")
    assert "90." in text
    assert "0.1" in text
    loss = entries(table(run, "paper2", "analysis.metric=nll"))
    assert loss["pets", "dpn"]["gain"]["mean"] == pytest.approx(0.02, abs=0.005)


def test_predictions_are_kept_and_equal_ones_are_said(run, tmp_path):
    some = [line for line in lines() if line["data"] == "pets"]
    for line in some:
        line["file"] = f"{line['seed']}{'x' * (line['method'] == 'dpn')}.npy"
        np.save(tmp_path / line["file"], np.array([line["seed"], line["method"] == "dpn"]))
        line["acc"] = 90 + line["seed"] / 10 + (line["method"] == "dpn")
    write(tmp_path / "runs.csv", some, (*FIELDS, "file"))
    run("import", "runs.csv", *NAMED, "--seed", "seed", "--predictions", "file")
    found = entries(table(run, "paper2"))
    assert found["", "wd"]["verdict"] == "did nothing"
    kept = next(Path("runs/runs").glob("*/predictions.npy"))
    kept.write_bytes(b"else")
    assert "predictions.npy: differs" in run("verify", "paper2", code=1)


# --- What a sheet hides -------------------------------------------------------------------------


def test_what_a_sheet_hides_is_said(run, tmp_path):
    some = lines(rate=0.003)
    for number, line in enumerate(some):
        line["host"] = f"node{number}"
    some = [s for s in some if (s["method"], s["data"], s["seed"]) != ("wd", "pets", 3)]
    some[-1]["acc"] = "inf"
    some += [{**some[0], "method": "one", "seed": 2, "host": "x"}]
    write(tmp_path / "runs.csv", some, (*FIELDS, "host"))
    said = run("import", "runs.csv", *WORDS)
    assert "30 runs imported, 1 of these diverged" in said
    assert "note: lr differs in 10 of 30 runs (dpn), so a gain may come from lr" in said
    assert "nearly every run has its own host" in said
    text = run("table", "paper2")
    assert "In the sheet lr differs in 10 of 30 runs (dpn)" in text
    assert "The sheet lacks wd@pets seed 3; one@pets seeds 0, 1, 3, 4: a gain is" in text
    assert "One run alone, so no verdict: one@pets." in text
    assert "The sheet has no run of one@cars." in text
    found = entries(table(run, "paper2"))
    assert found["pets", "one"]["verdict"] is None
    assert found["pets", "wd"]["gain"]["n"] == 4
    assert found["cars", "wd"]["diverged"] == [4]
    assert found["cars", "wd"]["verdict"] is None


def test_what_all_rows_have_alike_is_no_confound(run, tmp_path):
    some = lines()
    for line in some:
        line["lr"] = [0.1, 0.1, 0.2, 0.2, 0.3][line["seed"]]  # by seed, in every row
        line["size"] = len(line["data"]) + (line["data"] == "cars")  # by column
    write(tmp_path / "runs.csv", some, (*FIELDS, "size"))
    said = run("import", "runs.csv", *WORDS)
    assert said.endswith("note: runs of one row differ in lr, and count as repeats\n")
    assert said.count("note") == 1


def test_published_tables_are_sheets(run, tmp_path):
    """Of the Dual PatchNorm paper: one value each, so gains are its gains, and have no verdict."""
    file = Path(ablate.analysis.__file__).with_name("paper_tables.csv")
    tables = pd.read_csv(file, dtype=str)
    for name in ("T1L", "T2L"):
        shown = tables[tables["table"] == name]
        shown = shown.assign(where=shown["arch"] + " " + shown["regime"])
        said = ablate.Store("runs").add_runs(
            shown, name, "variant", "top1=value:more:%", column="where", baseline="base"
        )
        for column in said.table().data.columns:
            cells = shown[shown["where"] == column.label].set_index("variant")["value"]
            for entry in column.entries:
                assert entry.accuracy.mean == float(cells[entry.row])
                assert entry.verdict is None
                if entry.row != "base":
                    gain = float(cells[entry.row]) - float(cells["base"])
                    assert entry.gain.mean == pytest.approx(gain)
        assert "One run alone, so no verdict" in run("table", name)


BAD = {
    "twice": (
        lambda some: [*some, some[3]],
        "runs.csv: line 5 and line 32 are of the same run, base@pets#3: leave one of them out",
    ),
    "empty": (
        lambda some: [*some, {**some[0], "seed": 9, "acc": ""}],
        "line 32: acc: is empty: leave the line of a run without a result out; of one that "
        "diverged write nan",
    ),
    "no number": (
        lambda some: [*some, {**some[0], "seed": 9, "acc": "n/a"}],
        "line 32: acc: expected a number, got 'n/a'",
    ),
    "no seed": (
        lambda some: [*some, {**some[0], "seed": 1.5}],
        "line 32: seed: expected a seed, a whole number from 0 on, got '1.5'",
    ),
    "no baseline": (
        lambda some: [s for s in some if (s["method"], s["data"]) != ("base", "cars")],
        "data 'cars' has no run of the baseline 'base'",
    ),
    "no label": (
        lambda some: [*some, {**some[0], "seed": 9, "method": ""}],
        "line 32: method: expected a name, got nothing",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_sheet_is_refused_in_one_line(run, tmp_path, name):
    spoil, says = BAD[name]
    write(tmp_path / "runs.csv", spoil(lines()))
    said = run("import", "runs.csv", *WORDS, code=2)
    assert says in said
    assert said.count("\n") == 1
    assert not Path("runs/sweeps").exists()
    assert not list(Path("runs").rglob("result.json"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--metric", "acc"), "--metric acc: expected KEY:more or KEY:less"),
        (("--metric", "n=acc:more"), "'n' can't be a metric's name"),
        (("--metric", "top1:more"), "expected one of method, data, seed, acc, lr, got 'top1'"),
        (("--metric", "acc:more", "--baseline", "bas"), "did you mean 'base'?"),
        (("--metric", "acc:more", "--result", "x.json"), "--result: is of a Hydra multirun's jobs"),
    ],
)
def test_a_wrong_option_is_refused(run, tmp_path, words, says):
    write(tmp_path / "runs.csv", lines())
    assert says in run("import", "runs.csv", "--row", "method", *words, code=2)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("runs.csv", b"a,a\n1,2\n", "two columns are named 'a'"),
        ("runs.csv", b"method,acc\nbase\n", "line 2: has 1 values of 2 columns"),
        ("runs.csv", b"method,acc\n\xff,1\n", "byte 11 is no UTF-8"),
        ("runs.csv", b"", "has no line with values"),
        ("runs.jsonl", b'{"method": 1}\n[1]\n', "line 2: expected an object"),
        ("runs.jsonl", b"{\n", "line 1: is no JSON"),
        ("runs.parquet", b"PAR1", "is no parquet file"),
        ("runs.xlsx", b"", "expected a file .csv, .tsv, .jsonl, .parquet"),
    ],
)
def test_a_file_of_no_form_is_refused(run, tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    said = run("import", name, *NAMED, code=2)
    assert says in said
    assert said.count("\n") == 1


def test_a_sheet_of_other_metrics_seeds_or_of_a_trained_sweep_is_refused(run, tmp_path):
    write(tmp_path / "runs.csv", lines())
    run("import", "runs.csv", *WORDS)
    other = [word.replace("more", "less") for word in WORDS]
    said = run("import", "runs.csv", *other, code=2)
    assert "--metric: means something else than in `ablate import runs.csv --as paper2" in said
    without = [word for word in WORDS if word not in ("--seed", "seed")]
    assert "--seed: means something else than" in run("import", "runs.csv", *without, code=2)
    small = ("model.depth=1", "model.width=16", "model.heads=2", "train.steps=2", "stem=none,dpn")
    run("sweep", *small, "seeds=1", "launcher=inline", "--as", "mine", "--quiet")
    mine = ["mine" if word == "paper2" else word for word in WORDS]
    assert "was trained here; give another" in run("import", "runs.csv", *mine, code=2)
    said = run("table", "mine", "paper2", code=2)
    assert "--mixed shows them together" in said
    said = run("table", "mine", "paper2", "--mixed")
    assert "Mixed: the runs of paper2 were trained elsewhere, not verified, those of mine" in said


# --- Without seeds ------------------------------------------------------------------------------


def apart(rows, **settings):
    return stats.Method(contrasts=rows - 1, comparisons=rows - 1, blocks=False, **settings)


def drawn(counts, spreads, tables, seed=7):
    """Rows of so many runs, NaN behind them."""
    counts = np.array(counts)
    y = np.random.default_rng(seed).standard_normal((tables, len(counts), counts.max()))
    y *= np.array(spreads, float)[:, None]
    y[:, np.arange(counts.max()) >= counts[:, None]] = np.nan
    return y


COUNTS = {
    "3": [3] * 10,
    "5": [5] * 10,
    "10": [10] * 10,
    "unequal": [3, 5, 10, 8, 4, 6, 3, 10, 5, 3],
    "more of the baseline": [10] + [3] * 9,
    "fewer of the baseline": [3] + [10] * 9,
    "fewer of one": [10, 3] + [10] * 8,
}
SPREADS = {"equal": [1] * 10, "baseline 3x": [3] + [1] * 9, "one row 3x": [1, 3] + [1] * 8}


@pytest.mark.parametrize("variants", [1, 2, 9])
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("counts", COUNTS)
def test_rows_without_shared_seeds_err_in_six_percent_of_tables(counts, spread, variants):
    rows = variants + 1
    y = drawn(COUNTS[counts][:rows], SPREADS[spread][:rows], 10_000)
    found = stats.fit(y, apart(rows))
    assert (abs(found.gain) > found.half)[:, 1:].any(-1).mean() <= 0.06


def test_equal_numbers_of_runs_find_what_they_found_with_blocks():
    """Power of the first row: at least that of the paired t, and near one spread of all rows."""
    for n, least in ((3, 0.40), (5, 0.65), (10, 0.75)):
        y = drawn([n] * 10, [1] * 10, 5_000)
        found = stats.fit(y, apart(10))
        told = abs(found.gain[:, 1] + 4 * math.sqrt(2 / n)) > found.half[:, 1]
        assert told.mean() >= least


@pytest.mark.parametrize("n", [3, 5, 10])
def test_one_variant_has_welchs_t(n):
    y = drawn([n, n], [1, 2], 50)
    found = stats.fit(y, apart(2))
    for table in range(50):
        row, base = y[table, 1], y[table, 0]
        gain = oracle.ttest_ind(row, base, equal_var=False)
        low, high = gain.confidence_interval(0.95)
        assert found.gain[table, 1] - found.half[table, 1] == pytest.approx(low, abs=2e-3)
        assert found.gain[table, 1] + found.half[table, 1] == pytest.approx(high, abs=2e-3)


def test_without_seeds_runs_are_no_blocks(run, tmp_path):
    some = [line for line in lines() if line["data"] == "pets"]
    write(tmp_path / "runs.csv", some)
    run("import", "runs.csv", *NAMED)
    first = entries(table(run, "paper2"))
    rows = ["base", "dpn", "wd"]
    random.Random(1).shuffle(some)  # which would change the differences of pairs
    write(tmp_path / "runs.csv", sorted(some, key=lambda line: rows.index(line["method"])))
    run("import", "runs.csv", *NAMED, "--store", "other")
    other = entries(table(run, "paper2", "--store", "other"))
    for place, entry in first.items():
        for part in ("accuracy", "gain"):
            assert entry[part] == pytest.approx(other[place][part])
    text = run("table", "paper2")
    assert "whose runs share no seeds" in text
    assert "without seed blocks" not in text
    said = run("import", "runs.csv", *NAMED, code=2)
    assert "without --seed runs have the sheet's order" in said


def test_without_seeds_rows_may_have_unequal_numbers_of_runs(run, tmp_path):
    some = [s for s in lines() if s["method"] != "wd" or s["seed"] < 3]
    some += [{**some[0], "method": "one"}]
    write(tmp_path / "runs.csv", some)
    run("import", "runs.csv", *NAMED, "--column", "data")
    found = entries(table(run, "paper2"))
    assert [found["pets", row]["gain"]["n"] for row in ("dpn", "wd", "one")] == [5, 3, 1]
    assert found["pets", "dpn"]["verdict"] == "helps"
    assert found["pets", "one"]["verdict"] is None
    text = run("table", "paper2")
    assert "Columns are not averaged" in text
    assert "Average" not in text.replace("averaged", "")
    run("verify", "paper2")
    run("plan", "paper2", "--detect", "1")
    run("report", "paper2")
    pair = ("--rows", "base,dpn")
    assert "helps" in run("table", "paper2", *pair)


def test_two_rows_without_seeds_are_judged_by_welch(run, tmp_path):
    some = [s for s in lines() if s["data"] == "pets" and s["method"] != "wd"]
    write(tmp_path / "runs.csv", some[:-2])
    run("import", "runs.csv", *NAMED)
    entry = entries(table(run, "paper2"))["", "dpn"]
    values = {m: [s["acc"] for s in some[:-2] if s["method"] == m] for m in ("base", "dpn")}
    assert entry["gain"]["mean"] == pytest.approx(np.mean(values["dpn"]) - np.mean(values["base"]))
    plain = oracle.ttest_ind(values["dpn"], values["base"], equal_var=False)
    low, high = plain.confidence_interval(0.95)
    assert entry["gain"]["low"] < low  # of unequal numbers it has fewer degrees of freedom
    assert entry["gain"]["high"] > high
    assert "Welch's t, for runs share no seeds" in run("table", "paper2")


# --- kill -9 ------------------------------------------------------------------------------------

# Each line is [MOMENT, WORDS]: a process of its own runs the command, and is killed when it touches
# a file of the store for the MOMENT-th time. Says how often it did, and how it ended.
SERVER = """
import json, os, signal, sys
from ablate import cli
from ablate.audit import importing, sheet; from ablate.analysis import stats; import sqlite3
TOUCHED = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.listdir", "os.scandir")
for line in sys.stdin:
    moment, store, words = json.loads(line)
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        count = 0
        def hook(event, args):
            global count
            if event in TOUCHED and args and store in str(args[0]):
                count += 1
                os.write(there, b".")
                if count == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
        os.dup2(2, 1)
        sys.argv = ["ablate", *words, "--store", store]
        sys.addaudithook(hook)
        try:
            cli.main()
        except SystemExit as end:
            os._exit(end.code or 0)
    os.close(there)
    touched = len(b"".join(iter(lambda: os.read(here, 1 << 16), b"")))
    os.close(here)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps([touched, ended]), flush=True)
"""


def snapshot(root):
    """All that a store has but times: files of runs, the plan, events and states."""
    store = Store(root)
    plan = store.read_plan("paper2")
    assert plan is not None
    with Ledger.reading(store) as ledger:
        told = histories(plan, ledger)
        events = {
            run: [(kind, detail) for _, kind, detail in events] for run, events in told.items()
        }
        states = {run: dataclasses.astuple(state) for run, state in ledger.states().items()}
        planned = ledger.planned("paper2")
        broken = ledger.broken_seals()
    files = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in (*root.glob("runs/*/*"), root / "sweeps" / "paper2.json")
    }
    return files, events, states, planned, broken


@pytest.mark.faults
def test_a_killed_import_and_the_same_command_make_the_same_store(tmp_path):
    write(tmp_path / "runs.csv", lines(seeds=3))
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:

        def start(store, moment=0):
            print(json.dumps([moment, store, ["import", "runs.csv", *WORDS]]), file=server.stdin)
            server.stdin.flush()
            return json.loads(server.stdout.readline())

        touched, ended = start("untouched")
        assert ended == 0
        whole = snapshot(tmp_path / "untouched")
        moments = [*range(2, touched - 12, 7), *range(touched - 12, touched + 1)]
        assert len(moments) > 30
        for moment in moments:
            name = f"killed{moment}x"
            assert start(name, moment) == [moment, -signal.SIGKILL], moment
            if moment % 3 == 0:  # and once more, anywhere
                start(name, max(1, moment // 2))
            assert start(name)[1] == 0, moment
            assert snapshot(tmp_path / name) == whole, moment
            assert not [*(tmp_path / name / "runs").glob(".*")], moment
        server.stdin.close()
