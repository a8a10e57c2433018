"""Sheets without seeds, whose numbers of runs link no rows: what figures, the report and footnotes
show of single runs doesn't pair them."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.svg import marks, texts
from support.tables import PLANTED, entries, make_plan, notes_of, plant, tabulate

from ablate.planning.design import Imported
from ablate.report.page import forests
from ablate.report.plot import figure
from ablate.report.plot.gains import by_seed

WILD = PLANTED | {"worse": np.array([88.0, 45.0, 37.0])}


def sheet(values, seeded=False):
    """Return the plan of a sheet and its table."""
    plan = replace(make_plan(list(values)), design=Imported(seeded=seeded, sources=()))
    return plan, tabulate(plan, plant(plan, values))


def test_a_run_is_drawn_by_its_distance_from_the_mean_of_the_baseline():
    plan, table = sheet(PLANTED)
    scattered, _ = marks(figure(plan, table, "forest", Path))[-1]
    base = np.mean(PLANTED["base"])
    for row, entry in entries(table).items():
        expected = np.asarray(PLANTED[row]) - base
        assert [*by_seed(table, entry).values()] == pytest.approx([*expected])
        if row != "base":
            assert np.mean([*by_seed(table, entry).values()]) == pytest.approx(entry.gain.mean)
    assert "gain by run" in scattered
    [forest] = forests(plan, table)
    better = forest.lines[0]
    shifts = np.diff(better.seeds) / np.diff(PLANTED["better"])
    assert shifts == pytest.approx([shifts[0]] * 2, rel=0.01)


@pytest.mark.parametrize(("seeded", "noun"), [(True, "seeds"), (False, "runs")])
def test_a_figure_names_its_dots(seeded, noun):
    plan, table = sheet(PLANTED, seeded)
    assert f"Dots: single {noun}." in " ".join(texts(figure(plan, table, "gain", Path)))


def test_the_order_of_the_baselines_runs_changes_nothing_that_is_said():
    orders = [
        sheet(WILD | {"base": np.array(order)})[1] for order in itertools.permutations(WILD["base"])
    ]
    notes = [notes_of(table, "verdict.unstable") for table in orders]
    assert all(len(found) == 1 for found in notes)
    assert len({found[0].text for found in notes}) == 1
    values = notes[0][0].values
    assert values["seed"] is None
    assert values["gain"] == pytest.approx(88 - np.mean(WILD["base"]))
    assert "eed" not in notes[0][0].text
