"""What runs were trained on is said by every text and picture of their table: a title alone says
what somebody wrote into a file."""

import dataclasses
import re

import pytest
from omegaconf import OmegaConf
from support.plans import plan, with_sections
from support.tables import SPEC, finished, make_plan, notes_of, plant, tabulate

from ablate.planning.conf import shipped_folder
from ablate.report.formats import FORMATS, render_table
from ablate.report.page import render_page
from ablate.report.plot import draw_figures
from ablate.store.store import Store

# Those that have a title and notes, and are a text.
WITH_NOTES = [format for format in FORMATS if format not in ("csv", "rich")]
SMALL = ("cifar", "digits", "camvid")
SHIPPED = {
    (path.stem, scale): set(re.findall(r"\bdata: (\w+)", str(OmegaConf.to_yaml(told))))
    for path in sorted(shipped_folder("sweeps").glob("*.yaml"))
    for scale, told in OmegaConf.load(path).get("scales", {}).items()
    if scale in SMALL and path.stem not in ("table4", "table5")  # whose pictures must be there
}


def words(text: str) -> str:
    """Of any format: LaTeX's signs and the ends of lines apart."""
    return " ".join(text.replace("\\_", "_").replace("\\allowbreak{}", "").split())


@pytest.mark.whole
@pytest.mark.parametrize(("name", "scale"), SHIPPED)
def test_a_small_scale_of_a_paper_says_so_and_names_its_own_data(name, scale, tmp_path):
    planned = plan(name, scale=scale)
    assert planned.title.startswith("The design of ")
    assert planned.title.endswith(" at small scale, not its data")
    table = tabulate(planned, {})
    data = {cell.spec.tree["data"]["name"] for cell in planned.cells}
    assert data <= SHIPPED[name, scale]
    drawn = draw_figures(planned, table, Store(tmp_path).rundir)
    texts = [render_table(table, format) for format in WITH_NOTES]
    texts += [render_page(planned, table, [], [], drawn), *drawn.values()]
    for text in map(words, texts):
        assert "at small scale, not its data" in text
        assert "Trained on " in text
        assert len(data) > 3 or all(one in text for one in data)


def test_it_is_told_from_the_runs():
    plan = make_plan(["base", "other"], seeds=4)
    values = {"base": [90.0, 90.2, 90.1, 90.3], "other": [91.0, 91.1, 91.3, 91.1]}
    results = plant(plan, values)
    table = tabulate(plan, results)
    assert table.trained_on == "Trained on digits, 1,197 images at 8 px, 6 epochs; n = 4."
    assert table.heading == f"A planted sweep. {table.trained_on}"
    last = plan.cells[1].ids[3]
    part = results | {last: finished(0.9, train={"n": 1000})}
    assert "digits, 1,000 to 1,197 images" in tabulate(plan, part).trained_on
    without = {run: result for run, result in results.items() if run != last}
    assert tabulate(plan, without).trained_on.endswith("; n = 3 to 4.")
    assert tabulate(plan, {}).trained_on == "Trained on digits, 8 px, 6 epochs; n = 4."


def test_columns_that_differ_are_told_apart():
    plan = make_plan(["base", "other"], ("S", "B", "long"))
    parent = {**SPEC, "data": {**SPEC["data"], "name": "mnist5k"}, "seed": 0}
    train = {**SPEC["train"], "epochs": None, "steps": 2000}
    cells = [
        with_sections(cell, train=train, parent=parent) if cell.column == "long" else cell
        for cell in plan.cells
    ]
    plan = dataclasses.replace(plan, cells=tuple(cells))
    table = tabulate(plan, {})
    data = "digits; mnist5k, then digits, 8 px, 6 epochs, 2,000 steps"
    assert table.trained_on == f"Trained on {data}; n = 3."
    assert [note.values for note in notes_of(table, "trained-on.columns")] == [
        {"columns": ["S", "B"], "training": "Trained on digits, 8 px, 6 epochs"},
        {"columns": ["long"], "training": "Trained on mnist5k, then digits, 8 px, 2,000 steps"},
    ]
