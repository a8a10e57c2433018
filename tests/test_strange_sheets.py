"""Sheets that somebody else wrote: what is no result of a run is refused, in one line that names
its place, before anything is written; what a sheet names lies in its own folder."""

import html
import json
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pytest
import yaml
from pyarrow import parquet

import ablate
from ablate.shared.errors import Failure, UserError
from ablate.store.folder import WRITES_AGAIN
from ablate.store.ledger import Ledger
from ablate.store.store import Store

OF = ("--row", "m", "--seed", "seed", "--metric", "acc:more:%", "--as", "sheet")
ROWS = [("base", 0, "90.1"), ("base", 1, "90.4"), ("base", 2, "90.2")]
ROWS += [("x", 0, "91.1"), ("x", 1, "91.5"), ("x", 2, "91.0")]
BIGGEST = 2**63 - 1


def write_csv(rows, file="sheet.csv", header="m,seed,acc"):
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    Path(file).write_text("\n".join(lines) + "\n")
    return file


def refused(run, file, *said, words=OF):
    """The import ends with one line that has all of these parts, and writes nothing."""
    text = run("import", file, *words, code=2)
    assert text.count("\n") == 1, text
    assert all(part in text for part in said), text
    assert not list(Path().glob("runs/sweeps/*"))
    assert not list(Path().glob("runs/runs/*"))


def seeds_of(store="runs", sweep="sheet"):
    return Store(Path(store)).read_plan(sweep).seeds


# --- Seeds --------------------------------------------------------------------------------------


def test_seeds_are_whole_numbers_to_the_last_digit(run):
    """As a float, 2^53 + 1 is 2^53: two lines would be of one run."""
    seeds = [2**53, 2**53 + 1, BIGGEST]
    file = write_csv(
        [(row, seed, acc) for (row, _, acc), seed in zip(ROWS, seeds * 2, strict=True)]
    )
    assert "6 runs imported" in run("import", file, *OF)
    assert seeds_of() == tuple(seeds)
    for words in (("status",), ("table",), ("verify", "sheet"), ("gc",), ("show", f"x#{BIGGEST}")):
        run(*words)
    assert "6 here already" in run("import", file, *OF)


@pytest.mark.parametrize(
    "seed",
    ["9223372036854775808", "18446744073709551615", "1e300", "1e999999999", "-1", "٣", "1_0"],
)
def test_a_seed_that_a_plan_can_not_hold_is_refused_by_line(run, seed):
    file = write_csv([*ROWS, ("x", seed, "91.2")])
    refused(run, file, "line 8: seed: expected a seed", f"0 to {BIGGEST}", f"got {seed!r}")


def test_a_float_that_stands_for_several_seeds_is_refused(run):
    frame = pd.DataFrame([("base", 2.0**53, 90.1), ("base", 1.0, 90.2)], columns=["m", "s", "a"])
    with pytest.raises(UserError, match=r"row 0: s: expected a seed.*rounded"):
        ablate.Store("runs").add_runs(frame, "sheet", "m", "a:more", seed="s")


def test_a_plan_that_nobody_could_read_is_not_written(tmp_path, run):
    run("import", write_csv(ROWS), *OF)
    store = Store(Path("runs"))
    plan, before = store.read_plan("sheet"), store.plan_path("sheet").read_bytes()
    with pytest.raises(Failure, match="so it is not written"):
        store.write_plan(vars_of(plan, seeds=(*plan.seeds, BIGGEST + 1)))
    assert store.plan_path("sheet").read_bytes() == before


def vars_of(plan, **changed):
    """The plan with other fields, unchecked, as a fault of ours would make it."""
    other = object.__new__(type(plan))
    for name, value in {**vars(plan), **changed}.items():
        object.__setattr__(other, name, value)
    return other


def test_one_plan_that_can_not_be_read_stops_no_other_sweep(run):
    for name in ("first", "second"):
        run("import", write_csv(ROWS), *OF[:-1], name)
    broken = Path("runs/sweeps/second.json")
    broken.write_text(broken.read_text().replace('"seeds": [0, 1, 2]', f'"seeds": [0, {2**64}]'))
    text = run("status")
    assert "sweep: first" in text
    [line] = [line for line in text.splitlines() if "second.json" in line]
    assert WRITES_AGAIN in line
    [line] = [line for line in run("gc", "--yes").splitlines() if "second.json" in line]
    assert "`ablate gc second` forgets that sweep" in line
    assert "sweep: first" in run("status", "first")
    assert "second.json" in run("status", "second", code=1)
    assert "0 runs imported, 6 here already" in run("import", "sheet.csv", *OF[:-1], "second")
    assert "nothing wrong" in run("verify", "second")


# --- Numbers ------------------------------------------------------------------------------------

NO_NUMBERS = ["1_000", "٩١", "９１", "0x5b", "1e", "--1", "9 1", "91%", "true"]
TOO_LARGE = ["1e400", "-1e400", "9" * 400, "1e-400"]


@pytest.mark.parametrize("text", [*NO_NUMBERS, *TOO_LARGE, ""])
def test_only_plain_decimal_notation_is_a_number(run, text):
    rows = [*ROWS, ("x", 3, text)]
    said = ["8: acc: is empty" if not text else "8: acc: expected a number"]
    said += ["up to 1.8e308"] * (text in TOO_LARGE)
    refused(run, write_csv(rows), "sheet.csv: line", *said)
    if text not in TOO_LARGE:
        return
    lines = [json.dumps({"m": m, "seed": seed, "acc": float(acc)}) for m, seed, acc in ROWS]
    lines.append(f'{{"m": "x", "seed": 3, "acc": {text}}}')
    Path("sheet.jsonl").write_text("\n".join(lines))
    refused(run, "sheet.jsonl", "sheet.jsonl: line 7: acc: expected a number", "up to 1.8e308")


@pytest.mark.parametrize("value", ["null", '"1_000"', "true", "[91]", '{"a": 1}', "1" + "0" * 400])
def test_what_json_has_else_is_no_number(run, value):
    lines = [json.dumps({"m": m, "seed": seed, "acc": float(acc)}) for m, seed, acc in ROWS]
    lines.append(f'{{"m": "x", "seed": 3, "acc": {value}}}')
    Path("sheet.jsonl").write_text("\n".join(lines))
    refused(run, "sheet.jsonl", "sheet.jsonl: line 7" if "{" not in value else "line")


def test_a_null_of_parquet_is_missing_and_nan_is_diverged(run):
    names = [row for row, _, _ in ROWS]
    seeds = [seed for _, seed, _ in ROWS]
    values = [float(acc) for _, _, acc in ROWS]
    for last, parts in (
        (None, ("row 5: acc: is empty", "diverged write nan")),
        (math.nan, ()),
    ):
        values[-1] = last
        table = pyarrow.table({"m": names, "seed": seeds, "acc": values})
        parquet.write_table(table, "sheet.parquet")
        if parts:
            refused(run, "sheet.parquet", *parts)
        else:
            assert "1 of these diverged" in run("import", "sheet.parquet", *OF)


def test_nan_of_a_frame_is_missing_and_inf_is_diverged(here):
    frame = pd.DataFrame(ROWS, columns=["m", "seed", "acc"]).astype({"acc": float})
    for missing in (math.nan, None, pd.NA):
        bad = frame.astype({"acc": object})
        bad.loc[5, "acc"] = missing
        with pytest.raises(UserError, match=r"row 5: acc: is empty.*inf"):
            ablate.Store("runs").add_runs(bad, "sheet", "m", "acc:more:%", seed="seed")
    frame.loc[5, "acc"] = math.inf
    sweep = ablate.Store("runs").add_runs(frame, "sheet", "m", "acc:more:%", seed="seed")
    [entry] = [e for e in sweep.table().data.columns[0].entries if e.row == "x"]
    assert list(entry.diverged) == [2]


def test_the_call_of_python_stands_where_a_command_would(run):
    frame = pd.DataFrame(ROWS, columns=["m", "seed", "acc"]).astype({"acc": float})
    ablate.Store("runs").add_runs(frame, "sheet", "m", "acc:more:%", seed="seed")
    run("report", "sheet")
    page = html.unescape(Path("sheet.html").read_text())
    sweep, table = run("sweep", "sheet", code=2), run("table", "sheet", "seeds=9", code=2)
    for text in (page, sweep, table):
        assert "Store.add_runs(frame, 'sheet', ...)" in text
        assert "ablate import" not in text
    assert "ablate import" not in run("plot", "sheet", "curves", code=2)
    assert json.loads(run("plan", "sheet", "--format", "json"))["words"] == []


def test_columns_of_lists_and_endless_parquet_are_refused(run, here):
    table = pyarrow.table({"m": [["a"], ["b"]], "seed": [0, 1], "acc": [1.0, 2.0]})
    parquet.write_table(table, "sheet.parquet")
    refused(run, "sheet.parquet", "expected one of seed, acc, got 'm'")
    column = pyarrow.array([1.0]).dictionary_encode()
    long = pyarrow.DictionaryArray.from_arrays(np.zeros(1_000_001, np.int8), column.dictionary)
    parquet.write_table(pyarrow.table({"acc": long}), "sheet.parquet")
    refused(run, "sheet.parquet", "has 1,000,001 rows; a sheet has at most 1,000,000")
    frame = pd.DataFrame({"m": [["a"], ["b"]], "acc": [1.0, 2.0]})
    with pytest.raises(UserError, match=r"row 0: m: expected a name, got .\['a'\]"):
        ablate.Store("runs").add_runs(frame, "sheet", "m", "acc:more")


# --- Shares and percents ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "line", "unit"),
    [
        ((23, 24, 0.25, 26, 27, 28), 4, "share among percents"),
        ((0.23, 0.24, 0.25, 0.26, 27, 0.28), 6, "percent among shares"),
        ((0.9, 1.1, 1.3, 0.8, 1.2, 1.4), 0, ""),  # errors of about a percent
        ((0.9, 1.0, 0.8, 0.0, 0.7, 1.0), 0, ""),
        ((90, 0.0, 91, 92, 93, 94), 0, ""),  # zero is zero in both
    ],
)
def test_a_sheet_that_mixes_shares_and_percents_is_refused_by_line(run, values, line, unit):
    rows = [(row, seed, value) for (row, seed, _), value in zip(ROWS, values, strict=True)]
    file = write_csv(rows)
    if not line:
        run("import", file, *OF)
        return
    value = f"{values[line - 2]:g} looks like a {unit}"
    refused(run, file, f"sheet.csv: line {line}: acc: {value}", "write all values as shares")
    if unit.startswith("share "):  # a run that collapsed, say: the remedy takes what is there
        remedy = "acc:more:percent"
        refused(run, file, remedy)
        words = [remedy if word == "acc:more:%" else word for word in OF]
        assert "imported" in run("import", file, *words)


def test_small_errors_in_percents_are_said_to_be_shares(run):
    """0.3 % looks like a share. The remedy that the note names keeps the values as they are."""
    rows = [(row, seed, 0.25 + 0.01 * n) for n, (row, seed, _) in enumerate(ROWS)]
    file = write_csv([*rows, ("x", 3, 0.0), ("x", 4, "nan")], header="m,seed,err")
    words = ("import", file, *OF[:4], "--metric")
    [note] = [line for line in run(*words, "err:less:%", "--as", "a").splitlines() if "0.3" in line]
    assert "0.3 is 30 %" in note
    assert note == run(*words, "err:less:%", "--as", "a").splitlines()[1]  # there already
    remedy = note.rpartition("--metric ")[2]
    for name, metric, scale in (("a", None, 100), ("b", remedy, 1), ("c", "err:more:%", 100)):
        said = "" if metric is None else run(*words, metric, "--as", name)
        assert "0.3" not in said
        [declared] = Store(Path("runs")).read_plan(name).cells[0].spec.tree["metrics"]
        assert declared["scale"] == scale
    write_csv([(row, seed, 10 * err) for row, seed, err in rows], header="m,seed,err")
    assert "percent" not in run(*words, "err:less:%", "--as", "d")  # these are no shares


# --- Files that a sheet names -------------------------------------------------------------------

WITH = (*OF, "--predictions", "file")


def with_file(name):
    return write_csv([(*row, name) for row in ROWS], header="m,seed,acc,file")


def test_predictions_lie_in_the_folder_of_their_sheet(run, here):
    np.save("../outside.npy", np.ones(4, dtype=bool))
    np.save("inside.npy", np.ones(4, dtype=bool))
    Path("link.npy").symlink_to(Path("../outside.npy").resolve())
    Path("up").symlink_to("..")
    for name in ("../outside.npy", Path("inside.npy").resolve(), "link.npy", "up/outside.npy"):
        refused(run, with_file(name), "line 2: file: expected a file in", str(name), words=WITH)
    refused(run, with_file("none.npy"), "line 2: file: none.npy: no such file", words=WITH)
    refused(run, with_file("a" * 300), "line 2: file: ", "is no file's name", words=WITH)
    os.mkfifo("pipe.npy")
    refused(run, with_file("pipe.npy"), "line 2: file: pipe.npy: no such file", words=WITH)
    Path("here.npy").symlink_to("inside.npy")
    assert "6 runs imported" in run("import", with_file("here.npy"), *WITH)


class Opened:
    def __reduce__(self):
        return (Path("opened").touch, ())


def endless() -> bytes:
    """A header of 10^14 numbers, and nothing behind it."""
    text = "{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000000,), }"
    text = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def test_predictions_are_arrays_and_nothing_is_unpickled(run, here):
    np.save("objects.npy", np.array([Opened()], dtype=object), allow_pickle=True)
    np.savez("archive.npz", a=np.ones(3))
    Path("archive.npz").rename("archive.npy")
    np.save("empty.npy", np.ones(0))
    np.save("number.npy", np.float64(3))
    np.save("cut.npy", np.ones(9))
    os.truncate("cut.npy", 150)
    Path("text.npy").write_text("root:x:0:0:root:/root:/bin/bash\n")
    Path("endless.npy").write_bytes(endless())
    for name in ("objects", "archive", "empty", "number", "cut", "text", "endless"):
        file = with_file(f"{name}.npy")
        refused(run, file, f"sheet.csv: line 2: file: {name}.npy: ", words=WITH)
    assert not Path("opened").exists()


# --- Multiruns ----------------------------------------------------------------------------------

JOBS = ("--row", "m", "--metric", "acc:more:%", "--as", "sheet")


def write_job(number=0, word="m=base", result='{"acc": 90.5}', name="out.json"):
    job = Path("multirun", str(number))
    (job / ".hydra").mkdir(parents=True, exist_ok=True)
    words = ["seed=1", word]
    (job / ".hydra/overrides.yaml").write_text(yaml.safe_dump(words))
    (job / name).write_text(result)
    return job


def test_values_of_overrides_are_texts_as_they_were_typed(run):
    values = ["*a", "@x", "%d", "a: b: c", "[1, {", "1e3", "'b c'", "0.10", "null", "true"]
    for number, value in enumerate(["base", *values]):
        write_job(number, f"m={value}")
    assert "11 rows" in run("import", "multirun", *JOBS, "--result", "out.json")
    rows = [row.label for row in Store(Path("runs")).read_plan("sheet").rows]
    assert rows == ["base", *(value.strip("'") for value in values)]


BOMB = "\n".join([*("a: &a [1,1,1,1,1,1,1,1,1]", "b: &b [*a,*a,*a,*a,*a]"), "acc: 90"])


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ("x: &a {y: *a}\nacc: 90", "an alias"),
        (BOMB, "an alias"),
        ("[" * 5000, "can't be read"),
        ("acc: " + "{a: " * 200 + "1" + "}" * 200, ""),
        ("acc: 1_000", "expected a number"),
        ("acc: 1:30", "expected a number"),
        ("acc: null", "expected a number"),
        ("acc: 1.0e+400", "up to 1.8e308"),
        ("- 1", "expected keys and values"),
        ("acc: 90\nacc: 91", "'acc' is there twice"),
        ("test: {acc: 90}\ntest.acc: 91\nacc: 90", "test.acc is there twice"),
        ("acc: 90 # " + "x" * (1 << 20), "bytes; expected at most"),
    ],
)
def test_a_job_with_a_strange_result_is_named(run, result, says):
    write_job(0, result="acc: 91.5", name="out.yaml")
    write_job(1, word="m=x", result=result, name="out.yaml")
    words = (*JOBS, "--result", "out.yaml")
    refused(run, "multirun", "multirun: job 1: ", says, words=words)


def test_what_yaml_calls_not_a_number_is_diverged(run):
    write_job(0, result="acc: 91.5", name="out.yaml")
    write_job(1, word="m=x", result="acc: .nan", name="out.yaml")
    text = run("import", "multirun", *JOBS, "--result", "out.yaml")
    assert "1 of these diverged" in text


def test_a_result_lies_in_the_folder_of_its_job(run):
    job = write_job()
    Path("out.json").write_text('{"acc": 1}')
    (job / "link.json").symlink_to(Path("out.json").resolve())
    for name in ("../../out.json", "link.json", Path("out.json").resolve()):
        words = (*JOBS, "--result", str(name))
        refused(run, "multirun", "job 0: expected a file in", str(name), words=words)
    words = (*JOBS, "--result", "gone.json")
    refused(run, "multirun", "job 0: has no gone.json; remove the job", words=words)


# --- Names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", " ", "a\x1bb", "a\nb"])
def test_a_sweep_has_a_name_that_can_be_typed(run, name):
    refused(run, write_csv(ROWS), f"--as: expected a name, got {name!r}", words=(*OF[:-1], name))


def test_runs_without_seeds_are_called_runs_and_columns_without_a_name_so(run):
    """Such as the index that pandas writes."""
    rows = [(number, *row) for number, row in enumerate(ROWS)]
    file = write_csv(rows, header=",m,seed,acc")
    words = ("--row", "m", "--metric", "acc:more:%", "--as", "sheet")
    assert "differ in the column without a name and seed, and count" in run("import", file, *words)
    text = run("table", "sheet")
    assert "Against base, over 3 runs" in text
    assert "over 3 seeds" not in text


# --- Plans that somebody else sealed ------------------------------------------------------------


def test_the_sheet_of_another_store_is_never_opened(run, here):
    """Its path is a text: `verify` of a merged sweep must not read what lies there on this host."""
    run("import", write_csv(ROWS), *OF)
    run("export", "sheet", "out")
    run("merge", "out", "--store", "other")
    text = run("verify", "sheet", "--store", "other")
    assert "sheet.csv: was imported by another store, so it is not read" in text
    write_csv([*ROWS[:-1], ("x", 2, "12")])
    assert "was imported by another store" in run("verify", "sheet", "--store", "other")
    assert "is another file by now" in run("verify", "sheet")


@pytest.mark.parametrize("read", [{}, {"row": "m", "other": 1}, {"row": "m", "metrics": 3}, None])
def test_a_plan_whose_sheet_says_nonsense_is_no_plan(run, read):
    run("import", write_csv(ROWS), *OF)
    path = Path("runs/sweeps/sheet.json")
    tree = json.loads(path.read_text())
    tree["imported"]["sources"][0]["read"] = read
    path.write_text(json.dumps(tree))
    for words in (("verify", "sheet"), ("table", "sheet"), ("status",)):
        text = run(*words, code=1)
        assert "sheet.json: is no plan of a sweep" in text.splitlines()[-1]
    with Ledger.reading(Store(Path("runs"))) as ledger:
        assert ledger.sweeps() == ["sheet"]
