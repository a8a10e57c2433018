"""Mistakes in the import of sheets that ended well in silence, or with a remedy that didn't work:
each is refused, or noted, by what the sheet has, and the remedy that is named works."""

import re
from pathlib import Path

import pandas as pd
import pytest
from conftest import refused

import ablate
from ablate.audit import read_sheet
from ablate.planning import SheetKeys
from ablate.store.store import Store

OF = ("--row", "m", "--seed", "s", "--metric")
ERRORS = (*OF, "err:less:%")


def write(file, values, head="m,s,acc", seeds=2, **columns):
    """A sheet of the rows a and b: their values in turn, a line for each."""
    lines = [head]
    for number, value in enumerate(values):
        more = [str(column[number]) for column in columns.values()]
        lines.append(",".join(["ab"[number // seeds], str(number % seeds), str(value), *more]))
    Path(file).write_text("\n".join(lines) + "\n")
    return file


def sources_of(name):
    return Store(Path("runs")).read_plan(name).design.sources


def means_of(name):
    [column] = ablate.Store("runs").sweep(name).table().data.columns
    return {entry.row: entry.accuracy.mean for entry in column.entries}


@pytest.mark.parametrize("again", ["acc:less:%", "acc=other:more:%"])
def test_a_metric_has_one_column_and_one_direction(run, again):
    file = write("g.csv", (90, 91, 92, 93), "m,s,acc,other", other=(1, 2, 3, 4))
    text = run("import", file, *OF, "acc:more:%", "--metric", again, code=2)
    assert "--metric acc: " in text
    frame = pd.read_csv(file)
    with refused("metrics=acc: "):
        ablate.Store("runs").add_runs(frame, "g", "m", ["acc:more:%", again], seed="s")
    run("import", file, *OF, "acc:more:%", "--metric", "more=other:more:%")


def test_a_chosen_value_that_no_line_has_is_noted(run):
    statuses = ("ok", "ok", "ok", "failed")
    write("g.csv", (90, 91, 92, 93), "m,s,acc,status", status=statuses)
    words = ("import", "g.csv", *OF, "acc:more:%", "--where")
    for condition, absent in (
        ("status!=fail", "'fail'"),
        ("status=ok,failed,fial,okay", "'fial', 'okay'"),
    ):
        [note] = [line for line in run(*words, condition).splitlines() if condition in line]
        assert f"{absent}," in note
        assert note.endswith("'ok', 'failed'")
    for condition in ("status!=failed", "status!=failed,", "m=a,b"):
        assert "has" not in run(*words, condition, "--as", condition)
    text = run(*words, "s=0", "--where", "status!=failed", "--as", "both")
    assert "'failed'" not in text  # an earlier condition left it out


def test_a_sheet_that_is_read_whole_leaves_no_sentence_on_a_part_of_it(run):
    words = ("import", write("g.csv", (90, 91, 92, 93, 94, 95), seeds=3), *OF, "acc:more:%")
    run(*words, "--where", "s=0,1")
    assert [source.read.where for source in sources_of("g")] == [("s=0,1",)]
    run(*words)
    assert [(source.lines, source.read.where) for source in sources_of("g")] == [(6, ())]
    assert "s=0,1" not in run("table", "g")


def test_runs_that_a_narrower_condition_leaves_out_still_count_and_are_named(run):
    words = ("import", write("g.csv", (90, 91, 92, 93)), *OF, "acc:more:%", "--where")
    run(*words, "m!=c")
    [note] = [line for line in run(*words, "s=0").splitlines() if "gc" in line]
    assert "(a#1 and b#1)" in note
    assert "a#1 and b#1" in run("table", "g")
    run(*words, "s=0", "--as", "halves")
    assert "gc" not in run(*words, "s=1", "--as", "halves")


def test_percents_below_one_join_those_of_an_earlier_sheet(run):
    write("e1.csv", (5.1, 4.9, 5.3, 5.2), "m,s,err")
    Path("e2.csv").write_text("m,s,err\na,2,0.51\nb,2,0.48\n")
    run("import", "e1.csv", *ERRORS, "--as", "e")
    text = run("import", "e2.csv", *ERRORS, "--as", "e", code=2)
    assert text.count("\n") == 1
    [remedy] = re.findall("; --metric ([a-z:]+)", text)
    run("import", "e2.csv", *OF, remedy, "--as", "e")
    assert means_of("e")["b"] == pytest.approx((5.3 + 5.2 + 0.48) / 3)
    assert [source.file[-6:] for source in sources_of("e")] == ["e1.csv", "e2.csv"]
    run("import", "e2.csv", *OF, remedy, "--as", "percents")  # and the other way round
    run("import", "e1.csv", *ERRORS, "--as", "percents")
    run("import", "e2.csv", *ERRORS, "--as", "shares")
    text = run("import", "e1.csv", *ERRORS, "--as", "shares", code=2)
    assert "e1.csv" in text
    assert remedy in text


def test_of_two_lines_the_other_one_is_one_line(run):
    words = (write("g.csv", (23, 24, 0.25, 26, 0.27, 28), seeds=3), *OF, "acc:more:%")
    assert "1 more line)" in run("import", *words, code=2)


def test_runs_without_seeds_are_added_by_all_files_in_one_command(run):
    write("s1.csv", (90, 91, 92, 93))
    write("s2.csv", (80, 81, 82, 83))
    words = ("--row", "m", "--metric", "acc:more:%", "--ignore", "s", "--as", "un")
    run("import", "s1.csv", *words)
    remedy = "give all files"
    assert remedy in run("import", "s2.csv", *words, code=2)
    assert "4 here already" in run("import", "s1.csv", "s2.csv", *words)
    write("s1.csv", (90, 91, 92, 94))  # a number that was changed
    text = run("import", "s1.csv", *words, code=2)
    assert remedy not in text
    assert "gc" in text
    seeded = [word.replace("--ignore", "--seed") for word in words[:-1]] + ["seeded"]
    run("import", "s1.csv", *seeded)
    assert remedy not in run("import", "s2.csv", *seeded, code=2)


@pytest.mark.parametrize("mark", [";", "|", "\t"])
def test_the_separator_that_excel_declares_is_that_of_the_sheet(tmp_path, mark):
    file = tmp_path / "g.csv"
    lines = [f"sep={mark}", mark.join(("m", "acc, %")), mark.join(("a", "1,5")), "", "b,2"]
    for end in ("\n", "\r\n"):
        file.write_bytes(end.join(lines[:3]).encode())
        sheet = read_sheet([file], SheetKeys("m"))
        assert sheet.lines == [("line 3", {"m": "a", "acc, %": "1,5"})]
    file.write_text("\n".join(lines))
    with refused("line 5: "):
        read_sheet([file], SheetKeys("m"))


def test_an_empty_baseline_is_no_row(run):
    words = ("import", write("g.csv", (90, 91, 92, 93)), *OF, "acc:more:%")
    assert "--baseline: " in run(*words, "--baseline", "", code=2)
    assert not Path("runs/sweeps").exists()


FRAME = pd.DataFrame({"m": [*"aabb"], "s": [0, 1, 0, 1], "acc": [90.1, 91.2, 92.3, 93.4]})
MENDED = {  # a frame, and what the refusal names, with which it is mended
    "no result": (
        FRAME.assign(acc=[90.1, 91.2, 92.3, None]),
        "frame.dropna(subset=['acc'])",
    ),
    "no row": (FRAME.assign(m=["a", "a", "b", None]), "frame.dropna(subset=['m'])"),
    "an empty row": (FRAME.assign(m=["a", "a", "b", ""]), "frame[frame['m'] != '']"),
    "a dash": (FRAME.assign(acc=[90.1, 91.2, 92.3, "-"]), "frame[frame['acc'] != '-']"),
    "epochs": (
        pd.concat([FRAME, FRAME.assign(acc=FRAME["acc"] + 1)], ignore_index=True),
        "frame.drop_duplicates(['m', 's'], keep='last')",
    ),
}
ADVISED = {  # a frame, and the function of pandas that the refusal names
    "decimal commas": (FRAME.assign(acc=["90,1", "91,2", "92,3", "93,4"]), "pd.read_csv(decimal="),
    "thousands": (FRAME.assign(acc=["90,123", "91,2", "92,3", "93,4"]), "pd.read_csv(decimal="),
    "spaces": (FRAME[["m"]].set_axis(["m s acc"], axis=1), "pd.read_csv(sep="),
    "wide": (FRAME[["m"]].assign(s=0, acc_0=90.1, acc_1=91.2), "frame.melt"),
}


@pytest.mark.parametrize("case", [*MENDED, *ADVISED])
def test_a_refusal_of_a_frame_names_what_pandas_has(here, case):
    frame, remedy = {**MENDED, **ADVISED}[case]

    def add(frame):
        return ablate.Store("runs").add_runs(frame, "g", "m", "acc:more:%", seed="s")

    with pytest.raises(ablate.UserError) as caught:
        add(frame)
    text = str(caught.value)
    assert f"`{remedy}" in text
    for option in ("where '", "epochs last", "give wide", "decimal ,"):
        assert option not in text
    if case in MENDED:
        mended = eval(remedy, {"frame": frame})
        assert len(add(mended.astype({"acc": float})).runs()) == len(mended)
