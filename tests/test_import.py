"""`ablate import`: sheets of results from elsewhere become sweeps, whole or not at all."""

import dataclasses
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import contents
from scipy import stats as oracle
from support.tables import notes_of

import ablate
from ablate.analysis import english, stats
from ablate.audit.sheet import check_sheets
from ablate.shared.errors import UserError
from ablate.store.ledger import Ledger
from ablate.store.record import run_histories
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


def write(path, some):
    fields = [*FIELDS, *(some[0].keys() - {*FIELDS})]
    text = [",".join(fields), *(",".join(str(line[f]) for f in fields) for line in some)]
    path.write_text("\n".join(text) + "\n")


@pytest.fixture
def bring(run, here):
    """`bring(lines)`: what an import of a sheet with these lines prints."""

    def bring(some, *words, file="runs.csv", of=WORDS, code=0):
        write(here / file, some)
        return run("import", file, *of, *words, code=code)

    return bring


def table(run, *words):
    text = run("table", *words, "--format", "json")
    return json.loads(text[text.index("{") :])


def entries(tree):
    return {(c["label"], e["row"]): e for c in tree["columns"] for e in c["entries"]}


# --- What a sheet becomes -----------------------------------------------------------------------


def test_a_sheet_is_judged_as_a_sweep(run, bring):
    assert "30 runs imported" in bring(lines())
    found = entries(table(run, "paper2"))
    y = {(line["data"], line["method"], line["seed"]): line["acc"] for line in lines()}
    for (data, row), entry in found.items():
        values = [y[data, row, seed] for seed in range(5)]
        assert entry["accuracy"]["mean"] == pytest.approx(np.mean(values), abs=1e-9)
    assert found["pets", "dpn"]["verdict"] == found["cars", "dpn"]["verdict"] == "better"
    assert found["pets", "wd"]["verdict"] == "can't tell"
    text = run("table", "paper2")
    assert "Trained elsewhere, not verified; n = 5." in text
    assert "Average over the 2 columns" in text
    assert "lr" not in text


def test_a_sheet_takes_no_name_of_a_sweeps_file_or_of_a_stream(here, bring):
    assert "stems: " in bring(lines(), "--as", "stems", code=2)
    assert not (here / "runs").exists()
    (here / "runs" / "streams").mkdir(parents=True)
    (here / "runs" / "streams" / "idea.jsonl").write_text("{}\n")
    assert "idea: " in bring(lines(), "--as", "idea", code=2)
    assert not (here / "runs" / "ledger.db").exists()
    bring(lines(), "--as", "my stems")


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("plan paper2 --scale smoke", "paper2: "),
        ("plan paper2 --margin 1", "paper2: "),
        ("export w --weights dpn@pets#3", "--weights: "),
        ("export w --weights dpn@pets#3 --lean", "leave out --lean"),
        ("export w --weights dpn@pets#3 --anonymous", "leave out --anonymous"),
        ("export w --weights dpn@pets#3 --scale smoke", "leave out the options"),
        ("export w --names timm", "--names: "),
        ("verify paper2 --trust", "--trust: "),
        ("plot paper2 curves", "only results"),
        ("plot paper2 gradnorm", "only results"),
    ],
)
def test_an_option_that_has_no_effect_on_it_is_refused(run, bring, here, words, place):
    bring(lines())
    assert place in run(*words.split(), code=2)
    assert not (here / "w").exists()


@pytest.mark.whole
def test_every_command_works_on_it(run, bring):
    bring(lines())
    detect = "to detect a gain of 0.3 points"
    for words, said in (
        (("verify", "paper2"), "nothing wrong"),
        (("status", "paper2"), "30 runs: 30 finished"),
        (("plan", "paper2", "--detect", "0.3"), detect),
        (("show", "dpn@pets#3"), "Trained elsewhere"),
        (("plot", "paper2", "gain", "--out", "gain.svg"), ""),
        (("report", "paper2"), ""),
        (("export", "paper2", "out"), ""),
        (("verify", "out"), "nothing wrong"),
        (("table", "--from", "out"), "Trained elsewhere"),
        (("merge", "out", "--store", "other"), "30 brought"),
        (("doctor", "--repair"), "30 finished"),
        (("run", "dpn@pets#3", "--delete", "--yes"), "the same import brings it back"),
        (("import", "runs.csv", *WORDS), "1 run imported, 29 here already"),
    ):
        assert said in run(*words)
    assert "missing" not in run("show", "dpn@pets#3", "--against", "base@pets#3")
    other = run("table", "paper2", "--store", "other").replace(" --store other", "")
    assert other == run("table", "paper2")


def test_nothing_of_it_is_trained(run, bring):
    bring(lines())
    before = sorted(os.listdir("runs/runs"))
    for words, told in (
        (("sweep", "paper2"), "was imported, and its runs were trained elsewhere"),
        (
            ("sweep", "stem=none,dpn", "--as", "paper2"),
            "is the name of another sweep, `ablate import runs.csv",
        ),
        (("verify", "--rerun", "dpn@pets#0"), "was trained elsewhere"),
    ):
        assert told in run(*words, code=2).splitlines()[-1]
    with pytest.raises(UserError, match="trained elsewhere"):
        ablate.Sweep("paper2")
    assert sorted(os.listdir("runs/runs")) == before


def test_ids_hold_places_and_meaning_and_no_number(run, bring):
    bring(lines())
    bring(lines(gain=5.0), "--store", "other", file="other.csv")
    assert sorted(os.listdir("runs/runs")) == sorted(os.listdir("other/runs"))
    run("import", "runs.csv", *WORDS[2:], "--as", "else", "--store", "else")
    assert not {*os.listdir("runs/runs")} & {*os.listdir("else/runs")}


def test_importing_again_extends_and_a_changed_number_is_refused(run, bring):
    bring(lines(seeds=3))
    run("table", "paper2")
    more = [{"method": "new", "data": "pets", "seed": s, "acc": 91, "lr": 0.001} for s in range(3)]
    assert "3 runs imported, 18 here already" in bring([*lines(seeds=3), *more])
    text = run("table", "paper2")
    assert "Changed after verdicts had been read" in text
    assert "rows: +new" in text
    changed = lines(seeds=3)
    old, changed[4]["acc"] = changed[4]["acc"], 99.5
    files = contents(Path("runs/runs"))
    said = bring(changed, code=2)
    assert f"line 6: dpn@pets#1: acc was {old}, and is 99.5: nothing was imported" in said
    assert files == contents(Path("runs/runs"))
    assert run("table", "paper2") == text


def test_a_run_that_the_sheet_lost_still_counts_and_is_named_while_it_is_missing(
    run, bring, here, monkeypatch
):
    everything = lines(seeds=3)
    bring(everything)
    rows = [line for line in run("table", "paper2").splitlines() if line.startswith("| ")]
    lost = [line for line in everything if (line["method"], line["seed"]) != ("dpn", 2)]
    lost_runs = [line for line in everything if line not in lost]
    labels = [f"{line['method']}@{line['data']}#{line['seed']}" for line in lost_runs]
    out = bring(lost)
    assert all(label in out for label in labels)
    assert "`ablate gc paper2`" in out
    text = run("table", "paper2")
    assert "`ablate gc paper2`" in text
    assert [line for line in text.splitlines() if line.startswith("| ")] == rows
    (here / "notes").mkdir()
    monkeypatch.chdir(here / "notes")  # the same sheet, typed from another folder
    out = run("import", "../runs.csv", *WORDS, "--store", here / "runs")
    assert all(label in out for label in labels)
    monkeypatch.chdir(here)
    assert "gc" not in bring(everything)
    assert "`ablate gc paper2`" not in run("table", "paper2")


def test_verify_reads_the_sheet_again_where_it_is_still_there(run, bring, tmp_path):
    bring(lines())
    said = run("verify", "paper2")
    assert "trained elsewhere: the numbers are those of the sheet, and nothing can retrain" in said
    assert "sealed" not in said
    write(tmp_path / "runs.csv", lines(gain=3.0))
    said = run("verify", "paper2")
    assert "runs.csv: is another file by now: its numbers are those that the ledger sealed" in said
    Path("runs.csv").unlink()
    assert "runs.csv: is not here" in run("verify", "paper2")


def test_numbers_that_are_not_the_sheets_are_findings(bring, tmp_path):
    bring(lines())
    plan = Store(Path("runs")).read_plan("paper2")
    results = {one.id: {"test": {"acc": 1.0}} for one in list(plan.runs())[:2]}
    [source] = plan.design.sources
    findings, _ = check_sheets(plan, results, {(source.file, source.sha256)})
    assert [finding.partition(": ")[2] for finding in findings] == [
        f"{{'acc': 1.0}}, but {{'acc': {line['acc']}}} in {tmp_path}/runs.csv: line {number}"
        for number, line in ((2, lines()[0]), (7, lines()[5]))
    ]


@pytest.mark.whole
def test_an_anonymous_bundle_names_no_folder(run, bring, tmp_path):
    bring(lines())
    run("import", tmp_path / "runs.csv", *WORDS, "--store", "named")
    run("export", "paper2", "out", "--anonymous", "--store", "named")
    assert "nothing wrong" in run("verify", "out")
    assert not any(str(tmp_path).encode() in text for text in contents(Path("out")).values())


def test_a_damaged_run_is_written_again(run, bring):
    bring(lines())
    text = run("table", "paper2")
    [edited, gone, *_] = sorted(Path("runs/runs").iterdir())
    (edited / "result.json").write_text((edited / "result.json").read_text().replace("acc", "abc"))
    shutil.rmtree(gone)
    assert "withheld" in run("table", "paper2").lower()
    report = run("import", "runs.csv", *WORDS)
    assert ("2 runs" in report, "28 here" in report) == (True, True)
    assert run("table", "paper2") == text
    assert "nothing wrong" in run("verify", "paper2")


# --- The forms of a sheet -----------------------------------------------------------------------


def test_all_forms_of_a_sheet_make_the_same_sweep(run, tmp_path):
    frame = pd.DataFrame(lines())
    write(tmp_path / "runs.csv", lines())
    Path("german.csv").write_text(Path("runs.csv").read_text().replace(",", ";"))
    frame.to_csv("runs.tsv", sep="\t", index=False)
    frame.to_parquet("runs.parquet")
    frame.to_json("runs.jsonl", orient="records", lines=True)
    for number, line in enumerate(lines()):
        job = tmp_path / "multirun" / str(number)
        (job / ".hydra").mkdir(parents=True)
        words = [f"- {key}={line[key]}\n" for key in ("method", "data", "seed", "lr")]
        (job / ".hydra" / "overrides.yaml").write_text("".join(words))
        (job / "result.json").write_text(json.dumps({"test": {"acc": line["acc"]}}))
    hydra = (*(w.replace("acc:", "acc=test.acc:") for w in WORDS), "--result", "result.json")
    forms = dict.fromkeys(("german.csv", "runs.tsv", "runs.parquet", "runs.jsonl"), WORDS)
    forms["multirun"] = hydra
    run("import", "runs.csv", *WORDS)
    first = entries(table(run, "paper2"))
    for name, words in forms.items():
        run("import", name, *words, "--store", f"at-{name}")
        assert entries(table(run, "paper2", "--store", f"at-{name}")) == first, name
    made = ablate.Store("at-frame").add_runs(
        frame, "paper2", "method", "acc:more:%", column="data", seed="seed", baseline="base"
    )
    assert [made.name] == ablate.Store("at-frame").sweeps == ["paper2"]
    assert entries(table(run, "paper2", "--store", "at-frame")) == first


def test_shares_are_percent_and_metrics_have_their_own_decimals(run, bring):
    for line in (some := lines()):
        line["acc"] = round(line["acc"] / 100, 4)
        line["loss"] = round(1 - line["acc"], 3)
    some[-1]["acc"] = "nan"  # one of two metrics: the run diverged
    bring(some, "--metric", "nll=loss:less:nats")
    text = run("table", "paper2", "--show", "accuracy,nll")
    assert "90." in text
    assert "0.1" in text
    loss = entries(table(run, "paper2", "analysis.metric=nll"))
    assert loss["pets", "dpn"]["gain"]["mean"] == pytest.approx(0.02, abs=0.005)
    assert loss["cars", "wd"]["diverged"] == [4]


def test_predictions_are_kept_and_equal_ones_are_said(run, bring, tmp_path):
    some = [line for line in lines() if line["data"] == "pets"]
    for line in some:
        line["file"] = f"{line['seed']}{'x' * (line['method'] == 'dpn')}.npy"
        np.save(tmp_path / line["file"], np.array([line["seed"], line["method"] == "dpn"]))
        line["acc"] = 90 + line["seed"] / 10 + (line["method"] == "dpn")
    bring(some, "--seed", "seed", "--predictions", "file", of=NAMED)
    assert entries(table(run, "paper2"))["", "wd"]["verdict"] == "did nothing"
    (tmp_path / some[0]["file"]).rename(tmp_path / "moved.npy")
    assert "nothing wrong" in run("verify", "paper2")  # the store has its copies
    next(Path("runs/runs").glob("*/predictions.npy")).write_bytes(b"else")
    assert "predictions.npy: differs" in run("verify", "paper2", code=1)


@pytest.mark.parametrize("seeded", [True, False])
def test_a_report_has_seeds_where_there_are_some_and_no_cost(run, seeded):
    Path("few.csv").write_text("model,acc,s\na,71,0\na,72,1\na,74,2\nb,73,0\nb,74,1\nb,77,2\n")
    words = ("--row", "model", "--metric", "acc:more:%", "--seed" if seeded else "--ignore", "s")
    run("import", "few.csv", "--as", "few", *words)
    run("report", "few", "--out", "few.html")
    facts = re.findall("<dt>(.*?)</dt>\n<dd>(.*?)</dd>", Path("few.html").read_text())
    made = {name: re.sub("<.*?>", "", text).strip() for name, text in facts}
    assert ("seeds" in made, "cost" in made) == (seeded, False)
    assert made["verdicts read at"] == ("3 seeds" if seeded else "3 runs")
    assert "metric=," not in made["analysis"]


# --- What a sheet hides -------------------------------------------------------------------------


def test_what_a_sheet_hides_is_said(run, bring):
    some = [{**line, "host": f"node{number}"} for number, line in enumerate(lines(rate=0.003))]
    some = [s for s in some if (s["method"], s["data"], s["seed"]) != ("wd", "pets", 3)]
    some[-1]["acc"] = "inf"
    some += [{**some[0], "method": "one", "seed": 2, "host": "x"}]
    imported, text = bring(some), run("table", "paper2")
    for said in (
        "30 runs imported, 1 of these diverged",
        "note: lr differs in 10 of 30 runs (dpn), which may cause or hide its gain",
        "note: runs of one row differ in host, and count as repeats",
    ):
        assert said in imported
    for said in (
        "In the sheet, lr differs in 10 of 30 runs (dpn)",
        "The sheet lacks seed 3 of wd@pets; seeds 0, 1, 3, 4 of one@pets. A gain and its n are",
        english.write("sheet.single-runs", {"cells": ["one@pets"]}),
        "The sheet has no run of one@cars.",
    ):
        assert said in text
    found = entries(table(run, "paper2"))
    assert found["pets", "one"]["verdict"] is None
    assert found["pets", "wd"]["gain"]["n"] == 4
    assert (found["cars", "wd"]["diverged"], found["cars", "wd"]["verdict"]) == ([4], None)


def test_a_number_of_the_runs_of_a_row_is_no_confound(run, bring):
    """`rep` numbers the runs of rows of unequal numbers; `rate` is a confound of as many values."""
    some = [s for s in lines(10) if s["method"] == "base" or s["seed"] < 3]
    for line in some:
        line |= {"rep": line["seed"], "rate": 2 if line["method"] == "dpn" else line["seed"] % 2}
        line |= {"pred": f"{line['method']}{line['data']}{line['seed']}.npy"}
    said = bring(some, of=(*NAMED, "--column", "data", "--baseline", "base"))
    (confound,) = [line for line in said.splitlines() if "may cause or hide" in line]
    assert "rate differs in" in confound
    assert "rep" in said.splitlines()[-1]


def test_settings_that_differ_in_the_same_runs_share_a_note_and_notes_are_three_at_most(bring):
    for line in (some := lines()):
        line |= {"lr": 2.0 if line["method"] == "dpn" else 1.0, "act": line["method"] == "dpn"}
        line |= {f"k{key}": line["method"] == "wd" and line["seed"] > key for key in range(4)}
        line["epochs"] = 9 + (line["seed"] + len(line["method"])) % 3  # an outcome
    said = bring(some, of=(*WORDS, "--baseline", "base")).splitlines()
    notes = [line for line in said if "cause or hide" in line]
    assert len(notes) == 3
    assert "lr and act" in notes[0]
    assert "3 more columns" in notes[2]
    assert sum("epochs" in line for line in said) == 1


def test_few_runs_beside_a_larger_baseline_have_welchs_interval(run, bring):
    """Their spread is not out of line, and no note says that it is."""
    for seed in range(9):
        rng = random.Random(seed)
        some = [s for s in lines(10) if s["method"] == "base" or s["seed"] < 3]
        some = [{**s, "acc": round(s["acc"] + rng.gauss(0, 0.3), 2)} for s in some]
        bring(some, file=f"{seed}.csv", of=(*WORDS[:-4], "--baseline", "base", "--as", f"s{seed}"))
        text = run("table", f"s{seed}", "--notes", "full")
        if english.write("spread.few-runs", {}) in text:
            break
    (note,) = {line.strip() for line in text.splitlines() if "few runs, fewer" in line}
    assert "Welch" in note
    assert "This row varies" not in text


def test_what_all_rows_have_alike_is_no_confound(bring):
    for line in (some := lines()):
        line["lr"] = [0.1, 0.1, 0.2, 0.2, 0.3][line["seed"]]  # by seed, in every row
        line["size"] = len(line["data"]) + (line["data"] == "cars")  # by column
    said = bring(some)
    assert said.endswith("note: runs of one row differ in lr, and count as repeats\n")
    assert said.count("note") == 1


@pytest.mark.parametrize("name", ["T1L", "T2L"])
def test_published_tables_are_sheets(run, name):
    """Of the Dual PatchNorm paper: one value each, so gains are its gains, and have no verdict."""
    file = Path(ablate.analysis.__file__).with_name("paper_tables.csv")
    shown = pd.read_csv(file, dtype=str).query("table == @name")
    shown = shown.assign(where=shown["arch"] + " " + shown["regime"])
    said = ablate.Store("runs").add_runs(
        shown, name, "variant", "top1=value:more:%", column="where", baseline="base"
    )
    for column in said.table().data.columns:
        cells = shown[shown["where"] == column.label].set_index("variant")["value"].astype(float)
        for entry in column.entries:
            assert (entry.accuracy.mean, entry.verdict) == (cells[entry.row], None)
            if entry.row != "base":
                assert entry.gain.mean == pytest.approx(cells[entry.row] - cells["base"])
    [note] = notes_of(said.table().data, "sheet.single-runs")
    assert note.text in run("table", name)


MORE = {**lines()[0], "seed": 9}
SEED = "expected a seed, a whole number from 0 to 9223372036854775807"
BAD = [  # more lines, and what is said
    ([lines()[3]], "line 5 and line 32 are of the same run, base@pets#3: leave one of them out"),
    ([MORE | {"acc": ""}], "line 32: acc: is empty"),
    ([MORE | {"acc": ""}], "--where 'acc!='"),
    ([MORE | {"acc": "n/a"}], "line 32: acc: expected a number such as 90.31, got 'n/a'"),
    ([MORE | {"seed": 1.5}], f"line 32: seed: {SEED}, got '1.5'"),
    ([MORE | {"data": "dogs", "method": "wd"}], "data 'dogs' has no run of the baseline 'base'"),
    ([MORE | {"method": ""}], "line 32: method: expected a name, got nothing"),
]


@pytest.mark.parametrize(("more", "says"), BAD)
def test_a_bad_sheet_is_refused_in_one_line(bring, more, says):
    said = bring([*lines(), *more], code=2)
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
        (("--metric", "acc:more", "--result", "x.json"), "--result: is of a folder of jobs"),
    ],
)
def test_a_wrong_option_is_refused(bring, words, says):
    assert says in bring(lines(), of=("--row", "method", *words), code=2)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("runs.csv", b"a,a\n1,2\n", "two columns are named 'a'"),
        ("runs.csv", b"method,acc\nbase\n", "line 2: has 1 value for 2 columns"),
        ("runs.csv", b"method,acc\n\xff,1\n", "byte 11 is no UTF-8"),
        ("runs.csv", b"", "has no line with values"),
        ("runs.jsonl", b'{"method": 1}\n[1]\n', "line 2: expected an object"),
        ("runs.jsonl", b"{\n", "line 1: is no JSON"),
        ("runs.jsonl", b'{"method": 1, "acc": 1, "acc": 2}\n', "key 'acc' is there twice"),
        ("runs.jsonl", b'{"test": {"acc": 1}, "test.acc": 2}\n', "line 1: test.acc is"),
        ("runs.parquet", b"PAR1", "is no parquet file"),
        ("runs.xlsx", b"", "expected a file .csv, .tsv, .txt, .json, .jsonl"),
    ],
)
def test_a_file_of_no_form_is_refused(run, tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    said = run("import", name, *NAMED, code=2)
    assert says in said
    assert said.count("\n") == 1


def test_a_sheet_of_other_metrics_seeds_or_of_a_trained_sweep_is_refused(run, bring):
    bring(lines())
    small = ("model.depth=1", "model.width=16", "model.heads=2", "train.steps=2", "stem=none,dpn")
    run("sweep", *small, "seeds=1", "launcher=inline", "--as", "mine", "--quiet")
    elsewhere = "means something else than in `ablate import runs.csv --as paper2"
    for words, told in (
        ([word.replace("more", "less") for word in WORDS], f"--metric: {elsewhere}"),
        ([word for word in WORDS if word not in ("--seed", "seed")], f"--seed: {elsewhere}"),
        (["mine" if word == "paper2" else word for word in WORDS], "was trained here; give anothe"),
    ):
        assert told in run("import", "runs.csv", *words, code=2)


# --- Without seeds ------------------------------------------------------------------------------


def apart(rows, **settings):
    return stats.Method(contrasts=rows - 1, variants=rows - 1, blocks=False, **settings)


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
        gain = oracle.ttest_ind(y[table, 1], y[table, 0], equal_var=False)
        gain, half = gain.confidence_interval(0.95), found.half[table, 1]
        ours = found.gain[table, 1] - half, found.gain[table, 1] + half
        assert ours == pytest.approx((gain.low, gain.high), abs=2e-3)


def test_without_seeds_runs_are_no_blocks(run, bring):
    some = [line for line in lines() if line["data"] == "pets"]
    bring(some, of=NAMED)
    first = entries(table(run, "paper2"))
    rows = ["base", "dpn", "wd"]
    random.Random(1).shuffle(some)  # which would change the differences of pairs
    some.sort(key=lambda line: rows.index(line["method"]))
    bring(some, "--store", "other", of=NAMED)
    other = entries(table(run, "paper2", "--store", "other"))
    for place, entry in first.items():
        for part in ("accuracy", "gain"):
            assert entry[part] == pytest.approx(other[place][part])
    text = run("table", "paper2", "--notes", "full")
    assert "whose runs share no seeds" in text
    assert "without pairs of seeds" not in text
    said = run("import", "runs.csv", *NAMED, code=2)
    assert "without --seed runs have the sheet's order" in said


def test_without_seeds_rows_may_have_unequal_numbers_of_runs(run, bring):
    some = [s for s in lines() if s["method"] != "wd" or s["seed"] < 3]
    bring([*some, {**some[0], "method": "one"}], "--column", "data", of=NAMED)
    found = entries(table(run, "paper2"))
    assert [found["pets", row]["gain"]["n"] for row in ("dpn", "wd", "one")] == [5, 3, 1]
    assert found["pets", "dpn"]["verdict"] == "better"
    assert found["pets", "one"]["verdict"] is None
    text = run("table", "paper2", "--notes", "full")
    assert "Columns are not averaged" in text
    assert "Average" not in text.replace("averaged", "")
    for words in (("verify", "paper2"), ("plan", "paper2", "--detect", "1"), ("report", "paper2")):
        run(*words)
    assert "better" in run("table", "paper2", "--rows", "base,dpn")
    assert 'class="verdict better"' in Path("paper2.html").read_text()  # which has a colour


def test_two_rows_without_seeds_are_judged_by_welch(run, bring):
    some = [s for s in lines() if s["data"] == "pets" and s["method"] != "wd"][:-2]
    bring(some, of=NAMED)
    gain = entries(table(run, "paper2"))["", "dpn"]["gain"]
    dpn, base = ([s["acc"] for s in some if s["method"] == m] for m in ("dpn", "base"))
    assert gain["mean"] == pytest.approx(np.mean(dpn) - np.mean(base))
    low, high = oracle.ttest_ind(dpn, base, equal_var=False).confidence_interval(0.95)
    assert gain["low"] < low  # of unequal numbers it has fewer degrees of freedom
    assert gain["high"] > high
    assert "(Welch's t; runs share no seeds)" in run("table", "paper2", "--notes", "full")


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
        events = {
            run: [(kind, detail) for _, kind, detail in events]
            for run, events in run_histories(plan, ledger).items()
        }
        states = {run: dataclasses.astuple(state) for run, state in ledger.states().items()}
        told = ledger.planned("paper2"), ledger.broken_seals()
    return contents(root / "runs"), store.plan_path("paper2").read_bytes(), events, states, told


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
