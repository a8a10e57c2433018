"""Numbers that were read are read, whatever their runs are called: imported under another name,
or trained again after an edit that changes no bit."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from support.looks import contrasts, reading

from ablate.store.looks import InterimLook, PastLooks

OF = ("--row", "m", "--seed", "seed", "--metric", "acc:more:%")
ROWS = ("base", "ln", "wd", "lr", "far")


def values(rows, seeds):
    rng = np.random.default_rng(5)
    drawn = {row: 90 + place + rng.normal(0, 0.4, 9) for place, row in enumerate(ROWS)}
    return [(row, seed, round(drawn[row][seed], 2)) for row in rows for seed in range(seeds)]


def write_sheet(file, rows, seeds, scale=1.0, names=None):
    lines = ["m,seed,acc"]
    for row, seed, value in values(rows, seeds):
        lines.append(f"{(names or {}).get(row, row)},{seed},{value * scale:.6g}")
    Path(file).write_text("\n".join(lines) + "\n")


def counted(run, sweep):
    """The contrasts that the intervals of a table are simultaneous over."""
    [look] = [one for one in looks() if one["sweep"] == sweep and not one["planned"]]
    return look["columns"][""]["contrasts"], run("table", sweep)


def looks():
    return [json.loads(line) for line in Path("runs/looks.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("scale", "names", "seeds"),
    [
        (1.0, {}, 5),
        (1.0, {"base": "plain", "ln": "post"}, 7),  # renamed, with more seeds
        (0.01, {}, 5),  # as shares
    ],
)
def test_a_sheet_of_fewer_rows_under_another_name_keeps_the_family(run, scale, names, seeds):
    write_sheet("a5.csv", ROWS, 5)
    run("import", "a5.csv", *OF, "--as", "wide5")
    run("table", "wide5")
    write_sheet("a2.csv", ROWS[:2], seeds, scale, names)
    run("import", "a2.csv", *OF, "--as", "two")
    run("table", "two")
    contrasts, text = counted(run, "two")
    assert contrasts == 4
    assert "wide5" in text  # the sweep in which the others were read is named


def test_other_numbers_of_the_same_seeds_are_another_family(run):
    """One value that agrees by chance, as rounded ones do, makes no run the same."""
    write_sheet("a5.csv", ROWS, 5)
    run("import", "a5.csv", *OF, "--as", "wide5")
    run("table", "wide5")
    lines = Path("a5.csv").read_text().splitlines()
    kept = [line for line in lines if line.startswith(("m,", "base,", "ln,"))]
    others = [
        line if n in (0, 1, 6) else f"{line.rpartition(',')[0]},{80 + n / 7:.2f}"
        for n, line in enumerate(kept)
    ]
    Path("a2.csv").write_text("\n".join(others) + "\n")
    run("import", "a2.csv", *OF, "--as", "two")
    run("table", "two")
    assert counted(run, "two")[0] == 1


def test_predictions_tell_equal_values_apart(run):
    """The same numbers with other predictions are other runs; with the same they are the same."""
    for name, rows, shift in (("one", ROWS, 0), ("two", ROWS[:2], 0), ("three", ROWS[:2], 1)):
        lines = ["m,seed,acc,file"]
        for row, seed, value in values(rows, 3):
            file = f"{row}{seed}{shift}.npy"
            np.save(file, np.array([ROWS.index(row), seed, shift]))
            lines.append(f"{row},{seed},{value},{file}")
        Path("sheet.csv").write_text("\n".join(lines) + "\n")
        run("import", "sheet.csv", *OF, "--predictions", "file", "--as", name)
        run("table", name)
    assert counted(run, "two")[0] == 4
    assert counted(run, "three")[0] == 1


PROGRAM = """#!/bin/sh
exec awk -v seed="$1" -v v="$2" 'BEGIN { srand(100 * seed + v); printf "acc=%.6f\\n", rand() }'
"""
TRAINER = """
command: sh prog.sh {seed} {v}
keys: {v: 0}
result: {lines: 'acc=(?P<acc>[0-9.]+)'}
metrics: {acc: {direction: more}}
code: [prog.sh]
"""


@pytest.mark.whole
def test_a_program_that_trains_the_same_bits_again_keeps_the_family(run):
    Path("conf/trainer").mkdir(parents=True)
    Path("conf/trainer/prog.yaml").write_text(TRAINER)
    Path("prog.sh").write_text(PROGRAM)
    words = ("trainer=prog", "seeds=3", "launcher=inline")
    run("sweep", "trainer.v=0,1,2,3,4,5,6,7,8,9", *words, "--as", "all")
    run("table", "all")
    assert counted(run, "all")[0] == 9
    Path("prog.sh").write_text(PROGRAM + "# a comment\n")
    run("sweep", "trainer.v=0,7", *words, "--as", "best")
    run("table", "best")
    contrasts, text = counted(run, "best")
    ids = [{run for row in look["columns"][""]["rows"].values() for run in row["runs"].values()}
           for look in looks()]  # fmt: skip
    assert not ids[0] & ids[-1]  # trained again
    assert contrasts == 9
    assert "all" in text


# --- By looks alone -----------------------------------------------------------------------------


def marked(look: InterimLook, sweep: str, marks: dict[str, dict[int, str]]) -> InterimLook:
    """The look under the name of a sweep, its specs and ids its own, with marks of results."""
    [column] = look.columns.values()
    rows = {
        label: dataclasses.replace(
            row,
            spec=f"{sweep} {row.spec}",
            runs={seed: f"{sweep}{run}" for seed, run in row.runs.items()},
            marks=marks.get(label, {}),
        )
        for label, row in column.rows.items()
    }
    columns = {"": dataclasses.replace(column, rows=rows)}
    return dataclasses.replace(look, sweep=sweep, columns=columns)


def strong(text: str, seeds: int = 3) -> dict[int, str]:
    return {seed: f"/{text}{seed}" for seed in range(seeds)}


def weak(text: str, seeds: int = 3) -> dict[int, str]:
    return {seed: f"{text}{seed}/" for seed in range(seeds)}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({r: strong(r) for r in "bxyz"}, {r: strong(r) for r in "bx"}, 3),
        ({r: weak(r) for r in "bxyz"}, {r: weak(r) for r in "bx"}, 3),
        ({r: weak(r) for r in "bxyz"}, {r: weak(r, 1) for r in "bx"}, 1),  # by chance
        ({r: strong(r) for r in "bxyz"}, {r: strong(r, 1) for r in "bx"}, 3),
        ({r: strong(r) for r in "bxyz"}, {"b": strong("b"), "x": {**strong("x"), 2: "/q"}}, 1),
        ({r: strong(r) for r in "bxyz"}, {"b": strong("b"), "x": strong("b")}, 1),  # did nothing
        ({"b": strong("b"), "x": strong("x")}, {}, 1),
    ],
)
def test_rows_are_the_same_where_their_results_are(before, now, expected):
    first = marked(reading("bxyz"[: len(before)], 3), "g", before)
    assert contrasts(marked(reading("bx", 3), "h", now), first) == expected


def test_changes_that_did_nothing_stay_apart(run):
    """Two rows of a look are two contrasts, though their results are those of the baseline."""
    marks = dict.fromkeys("bxy", strong("b"))
    look = marked(reading("bxy", 3), "g", marks)
    assert contrasts(look) == 2
    assert contrasts(marked(reading("bxy", 3), "h", marks), look) >= 2


def test_what_is_recorded_has_its_own_ids():
    first = marked(reading("bx", 3), "g", {r: strong(r) for r in "bx"})
    now = marked(reading("bx", 3), "h", {r: strong(r) for r in "bx"})
    past = PastLooks([first], now)
    assert past.judged_look().columns[""].rows == now.columns[""].rows
    assert past.related() == [first]
