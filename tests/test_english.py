"""The sentences of tables: a key and values, which alone make the text, also behind JSON."""

import json
from dataclasses import replace

import pytest
from support.planted_sweeps import grouped_sweep, planted_sweep
from support.tables import check_sentences, make_plan, note, tabulate

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


def test_a_key_has_one_writer_and_a_key_without_one_is_no_sentence():
    with pytest.raises(ValueError, match="few-seeds"):
        writes("few-seeds")(str)
    with pytest.raises(KeyError):
        english.write("no-such-key", {})
    with pytest.raises(TypeError):
        english.write("few-seeds", {"seeds": 1})
