"""The sentence above a table: of planted words, whatever the numbers that led to them."""

import dataclasses

import pytest
from support.planted_sweeps import planted_sweep
from support.tables import PLANTED, finished, make_plan, plant

from ablate.analysis.evidence import Evidence
from ablate.analysis.headline import false_words, table_headline
from ablate.analysis.judging import Detail
from ablate.analysis.note import Note
from ablate.analysis.tabulate import make_table
from ablate.report.formats import render_table

SAME, WORSE, TELL = "same within 0.5", "no worse than 0.5", "can't tell"


def planted(words, columns=("",)):
    """A table with these words: {row: (verdict, gain in points), or such pairs by column}."""
    plan = make_plan(["base", *words], columns, seeds=4)
    ids = [run for cell in plan.cells for run in cell.ids.values()]
    table = make_table(
        Evidence.collect(plan, {run: finished(0.9 + i * i % 7 / 1000) for i, run in enumerate(ids)})
    )

    def said(entry):
        if entry.row == "base":
            return entry
        found = words[entry.row]
        verdict, mean = found[entry.column] if isinstance(found, dict) else found
        gain = dataclasses.replace(entry.gain, mean=mean, low=mean - 0.4, high=mean + 0.4)
        return dataclasses.replace(entry, verdict=verdict, gain=gain)

    told = [
        dataclasses.replace(column, entries=tuple(map(said, column.entries)))
        for column in table.columns
    ]
    return dataclasses.replace(table, columns=tuple(told))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            {"down": ("hurts", -3), "as good": (SAME, 0), "up": ("helps", 2), "x": (TELL, 0.3)},
            "up helps (+2.00 points [+1.60, +2.40]); down hurts (-3.00 points [-3.40, -2.60]); "
            "as good is the same within 0.5 points; can't tell for x.",
        ),
        (
            {"a": ("helps", 2), "b": ("helps", 1), "c": (WORSE, 0.3)},
            "a (+2.00 points [+1.60, +2.40]) and b (+1.00 points [+0.60, +1.40]) help; "
            "c is less than 0.5 points worse, if at all.",
        ),
        (
            {
                **dict.fromkeys("ab", (TELL, 0)),
                "c": ("unstable", -30),
                "d": (SAME, 0),
                "e": (SAME, 0),
            },
            "d and e are the same within 0.5 points; can't tell for a and b; c is unstable.",
        ),
        (
            {"a": (None, 0), "b": ("did nothing", 0), "c": ("helps", 1)},
            "c helps (+1.00 points [+0.60, +1.40]); b did nothing; a has no verdict.",
        ),
        (
            {"a": (TELL, 9), **{f"down {i}": ("hurts", -i) for i in (2, 5, 3, 1)}},
            "4 of 5 hurt, most of all down 5 (-5.00 points [-5.40, -4.60]); can't tell for a.",
        ),
    ],
)
def test_one_column_is_told_row_by_row(words, sentence):
    assert table_headline(planted(words)) == f"On digits, against base, over 4 seeds: {sentence}"


def test_columns_are_counted():
    words = {
        "up": {"S": ("helps", 2), "B": ("helps", 2), "L": (TELL, 0)},
        "down": ("hurts", -1),
        "later": {"S": (TELL, 0), "B": ("helps", 1), "L": (None, 0)},
        "same": (SAME, 0),
    }
    of_three = planted(words, ("S", "B", "L"))
    assert table_headline(of_three) == (
        "On digits, against base, over 4 seeds: up helps in S and B, later in B; "
        "down hurts in S, B and L; "
        "same within 0.5 in 3, can't tell in 2 and no verdict in 1 of 12 comparisons. "
        f"{false_words(of_three)}"
    )
    assert "a chance of up to 15 %" in false_words(of_three)
    assert "analysis.family=table" in false_words(of_three)
    many = {f"r{i}": ("helps", i) for i in range(5)}
    of_two = planted(many, ("S", "B"))
    assert table_headline(of_two) == (
        "On digits, against base, over 4 seeds: r4, r3 and r2 help in S and B, "
        f"2 more in all. {false_words(of_two)}"
    )
    assert "a chance of up to 10 %" in false_words(of_two)
    labels = [f"c{number}" for number in range(12)]
    up = {label: ("helps", 1) if label in labels[:5] else (TELL, 0) for label in labels}
    of_twelve = planted({"up": up}, labels)
    assert "up helps in 5 of 12 columns" in table_headline(of_twelve)
    assert "up to 0.6 of 12 columns may" in false_words(of_twelve)


@pytest.mark.parametrize(
    ("readings", "level", "bound"),
    [
        ({}, "5 %", "up to 15 %"),
        ({"": 0.09}, "9 %", "about 27 %"),
        ({"S": 0.094}, "5 to 9.4 %", "about 19 %"),
        ({"S": 0.094, "B": 0.06}, "5 to 9.4 %", "about 20 %"),
        ({"": 0.2}, "20 %", "about 0.6 of 3 columns"),
    ],
)
def test_earlier_readings_raise_the_error_of_their_columns(readings, level, bound):
    table = planted({"up": ("helps", 1)}, ("S", "B", "L"))
    notes = tuple(
        Note("looks.other-readings", {"error": error, "columns": [heading] if heading else []})
        for heading, error in readings.items()
    )
    words = false_words(dataclasses.replace(table, notes=notes))
    assert f" {level}, so " in words
    assert f" {bound}" in words


def test_with_results_in_view_the_error_is_unknown():
    table = planted({"up": ("helps", 1)}, ("S", "B"))
    for known_error in ("table", "column", ""):
        changed = Note("looks.changed", {"known_error": known_error})
        words = false_words(dataclasses.replace(table, notes=(changed,)))
        assert bool(words) == bool(known_error)


def test_rows_that_help_in_as_many_other_columns_are_apart():
    labels = [f"c{number}" for number in range(6)]
    up = {label: ("helps", 1) if label in labels[:3] else (TELL, 0) for label in labels}
    down = {label: ("helps", 1) if label in labels[3:] else (TELL, 0) for label in labels}
    headline = table_headline(planted({"up": up, "down": down}, labels))
    assert "up helps in 3 of 6 columns, down in 3 of 6 columns" in headline


def test_the_rows_that_are_named_are_the_foremost_and_of_the_others_it_says_how_far_they_reach():
    rows = {
        "least": {"S": ("hurts", -9), "B": (TELL, 0)},
        "slight": ("hurts", -1),
        "most": {"S": ("hurts", -2), "B": ("hurts", -8)},
        **{"strong": ("hurts", -4), "middle": ("hurts", -3)},
    }
    words = table_headline(planted(rows, ("S", "B"))).replace(",", "").split()
    assert [word for word in words if word in rows] == ["most", "strong", "middle"]
    numbers = {words[i + 2]: words[i - 1] for i, word in enumerate(words) if word == "more"}
    assert numbers == {"all": "1", "some;": "1"}


@pytest.mark.parametrize(("family", "expected"), [("column", True), ("table", False)])
def test_false_verdicts_are_expected_of_families_of_columns_alone(family, expected):
    plan = make_plan(list(PLANTED), ("S/4", "Ti/4", "B/4"), family=family)
    sentence = table_headline(
        make_table(Evidence.collect(plan, plant(plan, PLANTED)), detail=Detail.VERDICTS)
    )
    assert ("a false verdict in some column has a chance of up to 15 %" in sentence) == expected
    assert ("analysis.family" in sentence) == expected


def test_without_verdicts_there_is_no_sentence():
    plan, results = planted_sweep(complete=False)
    for table in (
        make_table(Evidence.collect(plan, results)),
        planted({"a": (None, 1), "b": (None, 2)}),
    ):
        assert table_headline(table) == ""
        for format in ("md", "html"):
            assert "against" not in render_table(table, format)


def test_it_stands_above_the_grid():
    table = planted({"up_1": ("helps", 2)})
    lines = render_table(table, "md").splitlines()
    assert lines[1:3] == ["", table_headline(table)]
    assert lines[4].startswith("| variant |")
    page = render_table(table, "html")
    assert page.index("<h2>") < page.index("<p>On digits, against base") < page.index("<table>")
    for format in ("latex", "csv", "tidy", "json"):
        assert "against base" not in render_table(table, format)
