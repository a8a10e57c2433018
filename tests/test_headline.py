"""The sentence above a table: of planted words, whatever the numbers that led to them."""

import dataclasses

import pytest
from test_formats import sown
from test_table import finished, make_plan

from ablate.analysis.headline import brief, false_words, headline
from ablate.analysis.tabulate import tabulate
from ablate.report.formats import render

SAME, WORSE, TELL = "same within 0.5", "no worse than 0.5", "can't tell"


def planted(words, columns=("",)):
    """A table with these words: {row: (verdict, gain in points), or such pairs by column}."""
    plan = make_plan(["base", *words], columns, seeds=4)
    ids = [run for cell in plan.cells for run in cell.ids.values()]
    table = tabulate(plan, {run: finished(0.9 + i * i % 7 / 1000) for i, run in enumerate(ids)})

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
            "as good is the same within 0.5 points; x is undecided.",
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
            "d and e are the same within 0.5 points; a and b are undecided; c is unstable.",
        ),
        (
            {"a": (None, 0), "b": ("did nothing", 0), "c": ("helps", 1)},
            "c helps (+1.00 points [+0.60, +1.40]); b did nothing; a has no verdict.",
        ),
        (
            {"a": (TELL, 9), **{f"down {i}": ("hurts", -i) for i in (2, 5, 3, 1)}},
            "4 of 5 hurt, most of all down 5 (-5.00 points [-5.40, -4.60]); a is undecided.",
        ),
    ],
)
def test_one_column_is_told_row_by_row(words, sentence):
    assert headline(planted(words)) == f"On digits, against base, over 4 seeds: {sentence}"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            {"DPN": ("hurts", -1.24), "RMS": ("same within 2", 0), "4x4": ("helps", 7.81)},
            "of three changes to base one helps: 4x4, +7.8 points; DPN hurts, -1.2; "
            "RMS is the same within 2 points.",
        ),
        (
            {"a": ("hurts", -2), "b": ("hurts", -1), "c": ("same within 1", 0), "d": (TELL, 9)},
            "of four changes to base none is shown to help; a and b hurt; "
            "c is the same within 1 point; d is undecided.",
        ),
        (
            {"a": ("hurts", -2), "b": ("same within 1", 0)},
            "of two changes to base none helps; a hurts, -2.0; b is the same within 1 point.",
        ),
        (
            {f"up {i}": ("helps", i) for i in range(1, 6)},
            "of five changes to base all help: up 5, +5.0 points, up 4, +4.0, up 3, +3.0 "
            "and two more.",
        ),
        (
            {"a": ("helps", 0.04), "b": ("helps", 2)},
            "of two changes to base both help: b, +2.0 points and a, +0.04.",
        ),
        ({"a": ("helps", 2)}, "a helps: +2.0 points."),
        ({"a": ("unstable", -30)}, "a is unstable."),
        ({"a": (None, 1)}, ""),
    ],
)
def test_an_adviser_reads_one_rounded_sentence(words, sentence):
    assert brief(planted(words)) == f"On digits, {sentence}" * bool(sentence)


def test_columns_are_counted():
    words = {
        "up": {"S": ("helps", 2), "B": ("helps", 2), "L": (TELL, 0)},
        "down": ("hurts", -1),
        "later": {"S": (TELL, 0), "B": ("helps", 1), "L": (None, 0)},
        "same": (SAME, 0),
    }
    of_three = planted(words, ("S", "B", "L"))
    assert headline(of_three) == (
        "On digits, against base, over 4 seeds: up helps in 2 of 3 columns and later in 1 of 3; "
        "down hurts in 3 of 3 columns; "
        "of 12 comparisons 3 same within 0.5, 2 can't tell and 1 no verdict. "
        f"{false_words(of_three)}"
    )
    assert brief(of_three).startswith(
        "On digits, of four changes to base: up helps in 2 of 3 columns and later in 1 of 3; "
    )
    assert "of 3 columns up to 0.15 are expected" in false_words(of_three)
    assert "analysis.family=table" in false_words(of_three)
    worse = planted({"down": ("hurts", -1), "x": (TELL, 0)}, ("S", "B"))
    assert brief(worse) == (
        "On digits, of two changes to base none is shown to help in any column; down hurts in 2 of "
        "2 columns; of 4 comparisons 2 can't tell."
    )
    many = {f"r{i}": ("helps", i) for i in range(5)}
    of_two = planted(many, ("S", "B"))
    assert headline(of_two) == (
        "On digits, against base, over 4 seeds: r0 helps in 2 of 2 columns, r1 in 2 of 2, r2 in 2 "
        f"of 2 and 2 more in some. {false_words(of_two)}"
    )
    assert "of 2 columns up to 0.1 are expected" in false_words(of_two)


def test_without_verdicts_there_is_no_sentence():
    plan, results = sown(complete=False)
    for table in (tabulate(plan, results), planted({"a": (None, 1), "b": (None, 2)})):
        assert headline(table) == ""
        for format in ("md", "html"):
            assert "against" not in render(table, format)


def test_it_stands_above_the_grid():
    table = planted({"up_1": ("helps", 2)})
    lines = render(table, "md").splitlines()
    assert lines[1:3] == ["", headline(table).replace("_", "\\_")]
    assert lines[4].startswith("| variant |")
    page = render(table, "html")
    assert page.index("<h2>") < page.index("<p>On digits, against base") < page.index("<table>")
    for format in ("latex", "csv", "json"):
        assert "against base" not in render(table, format)
