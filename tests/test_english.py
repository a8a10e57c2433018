"""The sentences of tables: a key and values, which alone make the text, also behind JSON."""

import itertools
import json
import re
from dataclasses import replace

import pytest
from support.planted_sweeps import grouped_sweep, planted_sweep
from support.tables import check_sentences, finished, make_plan, note, notes_of, tabulate

from ablate.analysis import english
from ablate.analysis.english.registry import writes
from ablate.analysis.note import Sentence
from ablate.report.formats import tidy
from ablate.report.selection import choose_part


def sentences(document):
    """Yield the sentences of a table's JSON."""
    for kind in ("caption", "notes", "footnotes"):
        yield from document[kind]


@pytest.fixture(scope="module")
def tables():
    planted, results = planted_sweep()
    whole = tabulate(planted, results)
    return {
        "whole": whole,
        "part": choose_part(whole, planted, rows="diverges,collapses", sort="gain"),
        "unfinished": tabulate(*planted_sweep(complete=False)),
        "wide": tabulate(*grouped_sweep()),
        "withheld": tabulate(planted, results, withheld={"pre#0": "pre#0: result.json"}),
    }


@pytest.mark.parametrize("name", ["whole", "part", "unfinished", "wide", "withheld"])
def test_json_has_all_that_a_sentence_is_written_from(tables, name):
    written = [*sentences(json.loads(tidy.json(tables[name])))]
    assert written
    for each in written:
        assert each.keys() == {"key", "values", "text"}
        assert each["text"] == english.write(each["key"], each["values"])


@pytest.mark.parametrize("name", ["whole", "part"])
def test_a_mark_is_the_place_of_its_sentence_in_the_list(tables, name):
    table = tables[name]
    document = json.loads(tidy.json(table))
    marked = 0
    for column in document["columns"]:
        for entry in column["entries"]:
            texts = [document["footnotes"][mark - 1]["text"] for mark in entry["footnotes"]]
            assert texts == table.on(entry["row"], column["label"])
            marked += len(texts)
    assert marked > 1


def test_a_text_that_several_notes_share_is_said_once():
    table = tabulate(make_plan(["base", "dpn"]), {})
    places = ("base", ""), ("dpn", "")
    notes = (*(note("footnote", "same", place) for place in places), note("footnote", "other"))
    marked = json.loads(tidy.json(replace(table, notes=notes)))["footnotes"]
    assert [each["text"] for each in marked] == ["same", "other"]


def test_a_table_whose_values_json_cannot_have_fails():
    table = tabulate(make_plan(["base", "dpn"]), {})
    for values in ({"columns": ("a", "b")}, {"columns": {1: "a"}}):
        wrong = Sentence("paper.comparable", values)
        with pytest.raises(AssertionError):
            check_sentences(replace(table, notes=(wrong,)))


COLLAPSED = {"end": "", "prior": "p", "own_interval": False, "fisher": None}


@pytest.mark.parametrize(
    ("key", "name", "values", "few", "many"),
    [
        ("collapsed", "seeds", COLLAPSED, "includes it.", "includes them."),
        ("confound", "keys", {}, "which belongs to", "which belong to"),
        ("skipped", "runs", {"uneven": True}, "out this seed;", "out these seeds;"),
        ("skipped", "runs", {"uneven": False}, "lets it train", "lets them train"),
    ],
)
def test_words_agree_in_number(key, name, values, few, many):
    for count, words in ((1, few), (2, many)):
        items = [0, 1][:count] if name == "seeds" else ["pre#3", "post#4"][:count]
        assert words in english.write(key, {**values, name: items}), count


@pytest.mark.parametrize("points", ["", "points"])
@pytest.mark.parametrize("neutral", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("effects", [None, 0.05])
def test_no_comma_of_a_caption_is_doubled_or_ends_a_clause(points, neutral, lower, effects):
    metric = {"name": "loss", "contrast": "gain", "points": points}
    metric |= {"neutral": neutral, "lower": lower}
    for uneven, alpha in itertools.product((True, False), (0.05, None)):
        values = {"metric": metric, "alpha": alpha, "seeds": True, "interval": None}
        text = english.write("reading", {**values, "effects": effects, "uneven": uneven})
        assert not re.search(r",\s*[,.;\[]", text)
        assert ("that both have" in text) == (uneven and effects is None)


def test_a_key_has_one_writer_and_a_key_without_one_is_no_sentence():
    with pytest.raises(ValueError, match="few-seeds"):
        writes("few-seeds")(str)
    with pytest.raises(KeyError):
        english.write("no-such-key", {})
    with pytest.raises(TypeError):
        english.write("few-seeds", {"seeds": 1})


BASELINE = {"column": "S/4", "baseline": "base"}
RESOLVED = {
    **{"heading": "Ti", "half": 1.26, "share": 0.43, "size": 500, "examples": "pictures"},
    "with_more": {"seeds": 14, "half": 0.88},
}
# The values of a sentence, and what of each value its text has, whichever the words.
EXAMPLES = [
    (
        "verdicts",
        {"words": ["better", "worse"], "margin": 0.5, "between_rows": None},
        ["better (bold)", "worse = below 0", "±0.5 (analysis.margin)", "above -0.5"],
    ),
    (
        "verdicts",
        {"words": ["helps", "hurts"], "margin": None, "between_rows": ["better", "worse"]},
        ["helps (bold)", "better and worse stand for helps and hurts"],
    ),
    (
        "few-seeds",
        {"n": 2, "gains": [{"label": "depth", "low": -50.126, "high": 48.9}], "decimals": 2}
        | {"repeats": "searches"},
        ["three searches (n = 2)", "depth [-50.13, +48.90]", "two searches alone"],
    ),
    (
        "void",
        {**BASELINE, "diverged": [{"seed": 31, "step": 120}], "collapsed": [47], "looks": False},
        ["S/4", "base", "31", "120", "47"],
    ),
    (
        "void.rows",
        {
            **{**BASELINE, "unstable": 17, "runs": 43},
            "variants": [{"rows": ["a", "b"], "unstable": 23, "runs": 29, "p": 0.0312}],
        },
        ["S/4", "17 of 43", "base", "23 of 29 of a, b", "0.031"],
    ),
    (
        "void.lower-rate",
        {"column": "S/4", "rate": 0.001},
        ["S/4", "`optim.lr=0.001`"],
    ),
    (
        "unfinished",
        {
            **{"missing": 37, "planned": 118, "looks": False},
            "rows": [{"row": r, "missing": n} for r, n in (("a", 13), ("b", 11), ("c", 13))],
        },
        ["37 of 118 runs", "13 each of a, c; 11 of b"],
    ),
    (
        "verdict.unstable",
        {
            **{"metric": {"change": "drop", "points": "dB", "decimals": 1}, "ratio": 4.31},
            **{"seed": 53, "gain": 12.345, "needed_seeds": 71, "most_seeds": 1000},
        },
        ["drop", "4.3 times", "eed 53", "+12.3 dB", "about 71"],
    ),
    (
        "spread.own",
        {
            **{"reason": "outlier", "ratio": 6.18, "by_images": True, "examples": "pictures"},
            "paired": True,
        },
        ["6.2 times", "pictures", "0.1 %", "paired"],
    ),
    (
        "beyond",
        {
            **{"metric": "test loss", "largest": 1e60},
            "values": [{"seed": 1, "value": "1e+200"}, {"seed": 2, "value": "nan"}],
        },
        ["test loss", "1e+200 in seed 1, nan in seed 2", "1e+60"],
    ),
    (
        "diverged",
        {
            **{"runs": [{"seed": 3, "step": 12}, {"seed": 5, "step": None}], "scored": "chance"},
            "own_interval": True,
            "fisher": {"runs": 13, "baseline": "base", "p": 0.21, "floor": 0.07, "tested": True},
        },
        ["seed 3 at step 12, seed 5;", "chance", "paired", "of 13 runs of base", "0.21", "0.07"],
    ),
    (
        "not-reached",
        {
            "diverged": [{"seed": 2, "step": 120}],
            **{"never": [4, 6], "planned": 9, "has_side": True},
        },
        ["3 of 9 runs did not reach", "seed 2 at step 120, seeds 4, 6"],
    ),
    (
        "not-reached",
        {"diverged": [{"seed": 2, "step": None}], "never": [], "planned": 9, "has_side": False},
        ["1 of 9 runs has no number (seed 2)"],
    ),
    ("never", {"seeds": [4, 6]}, ["eeds 4, 6 ", "the row has no verdict"]),
    ("never", {"seeds": [4], "baseline": True, "looks": False}, ["eed 4 ", "column has a verdict"]),
    ("never", {"seeds": [4], "baseline": True, "looks": True}, ["column has a further verdict"]),
    (
        "noise.resolution",
        {"columns": [RESOLVED], "points": "dB", "seeds": 7},
        ["7 seeds", "1.3 dB", "with 14", "0.88", "43 %", "500 test pictures"],
    ),
    (
        "noise.resolution",
        {"columns": [RESOLVED, RESOLVED | {"heading": "S", "half": 12.4}], "points": "dB"}
        | {"seeds": None},
        ["1.3 in Ti", "12 in S", "(dB)"],
    ),
    (
        "noise.resolution",
        {"columns": [RESOLVED | {"half": half} for half in (0.5, 3, 2, 9.96)], "points": "dB"}
        | {"seeds": 3, "repeats": "searches"},
        ["3 searches", "±0.50 to ±10 dB"],
    ),
    (
        "tuned.keys",
        {"keys": ["optim.lr", "train.epochs"], "trials": 8, "compared": True, "untuned": ["S"]},
        ["in S", "optim.lr, train.epochs", "8 trials", "n counts searches"],
    ),
    (
        "tuned.doubts",
        {
            **{"searches": 5, "edges": [{"key": "optim.lr", "searches": 2}]},
            "noise": [{"key": "train.epochs", "searches": 1}],
        },
        ["optim.lr in 2 of 5 searches", "train.epochs in 1 of 5 searches"],
    ),
    (
        "noise.baseline",
        {"column": "Ti", "ratio": 5.07, "by_images": False},
        ["Ti: the baseline", "5.1 times"],
    ),
    (
        "look.noise",
        {"column": "Ti", "seeds": 8, "ratio": 2.12, "by_images": True},
        ["Ti, ", " 8 seeds: the gap", "2.1 times"],
    ),
    (
        "noise.lacking",
        {"column": "", "examples": "pictures", "reason": "none is kept"},
        ["pictures", "none is kept"],
    ),
    (
        "noise.no-floor",
        {"column": "Ti", "examples": "pictures", "reason": "none is kept"},
        ["Ti: ", "pictures", "none is kept"],
    ),
    ("interval.wide", {"limit": 100, "points": "points"}, ["100 points"]),
    (
        "looks.other-readings",
        {
            **{"columns": ["Ti"], "subject": "verdicts", "error": 0.087, "of_column": True},
            "verdicts": [{"n": 3, "sweeps": ["one"]}],
            "means": [{"n": 2, "sweeps": ["two", "three"]}],
        },
        ["Ti: ", "sweep one (n = 3)", "two (n = 2), three (n = 2)", "9 %", "variant of a column"],
    ),
    (
        "looks.among",
        {"columns": [], "sweeps": ["", "one"], "noun": "variant", "compared": 7, "contrasts": 14},
        ["one, earlier tables of this sweep", "7 variants", "14 comparisons"],
    ),
    (
        "looks.read-elsewhere",
        {
            **{"columns": [], "subject": "verdicts", "means": []},
            "verdicts": [{"n": 3, "sweeps": ["one"]}],
        },
        ["sweep one (n = 3)"],
    ),
    (
        "sheet.lacks-seeds",
        {
            "cells": [{"place": "a", "seeds": [5]}, {"place": "b", "seeds": [5]}],
            "unpaired": [{"place": "c", "pairs": 5, "runs": 6}],
        },
        ["seed 5 of a and b", "c: 5 of 6 runs"],
    ),
    (
        "looks.shared-baseline",
        {"columns": ["Ti"], "variants": 7, "families": 3, "alpha": 0.05},
        ["Ti: ", "7 variants", "3 sweeps", ".05"],
    ),
    (
        "looks.changed",
        {
            **{"subject": "intervals", "sweep": "one", "n": 3, "known_error": "table"},
            "changes": ["rows: +a", "metric: loss -> top1"],
        },
        ["intervals", " in one", "n = 3", "rows: +a; metric: loss -> top1", "all variants"],
    ),
    (
        "looks.next",
        {"column": "64", "noun": "row", "going_on": 2, "seeds": 7, "more_runs": 12},
        ["64: ", "2 rows", "7 seeds", "12 more runs"],
    ),
    (
        "look.stopped",
        {"seeds": 5, "margin": 2, "share": 0.9, "judged_by": "own"},
        ["5 seeds", "gain of 2", "90 %", "own noise"],
    ),
    (
        "look.ended",
        {"seeds": 5, "outcome": "judged", "judged_by": "alone"},
        ["Judged", "5 seeds", "paired t"],
    ),
    (
        "rounding",
        {"columns": ["S", "B"], "nondeterministic": True, "devices": ["H100", "A100"]},
        ["S, B: ", "deterministic", "H100, A100"],
    ),
    ("trained-on.columns", {"columns": ["S", "B"], "training": "Made"}, ["S, B: made."]),
    (
        "data.decoded",
        {"data": "mine", "finding": "3 of 50 are broken", "skipped": True, "rows": ["b"]},
        ["data=mine", "3 of 50 are broken", "data.broken=skip", "b."],
    ),
    ("recipe", {"caveat": "inferred", "lines": "the crop"}, ["Inferred", "the crop"]),
]


@pytest.mark.parametrize(("key", "values", "parts"), EXAMPLES, ids=[key for key, *_ in EXAMPLES])
def test_a_text_has_the_values(key, values, parts):
    text = english.write(key, values)
    assert [part for part in parts if part not in text] == [], text


@pytest.mark.parametrize("target", [None, 71.0])
def test_a_table_of_single_runs_speaks_of_no_mean_and_no_interval(target):
    for seeds, single in ((1, True), (3, False)):
        plan = make_plan(["base", "dpn"], ("cifar",), seeds)
        plan = replace(plan, analysis=replace(plan.analysis, target=target))
        results = {
            run: finished(0.7 + seed / 100) for c in plan.cells for seed, run in c.ids.items()
        }
        table = tabulate(plan, results)
        for key in ("reading", "metric") if target is None else ("reading.target", "metric.target"):
            [caption] = notes_of(table, key)
            assert caption.values.get("repeats", "seeds") == ("none" if single else "seeds")
            assert (caption.values["interval"] is None) == single
            assert ("interval" in caption.text) != single
            assert ("seeds" in caption.text) != single
