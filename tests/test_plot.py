"""Every figure from one small real sweep: what is drawn is what the table and the folders say."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import Shell

from ablate.ledger import Store
from ablate.plan import Analysis, Plan, Row
from ablate.report.plot import FORMATS, KINDS, Nothing, draw, figure, figures
from ablate.report.plot.gradients import depths, profile
from ablate.report.plot.heads import uniform
from ablate.report.plot.maps import summary
from ablate.report.plot.measured import named
from ablate.report.plot.style import inks
from ablate.report.table import number, tabulate
from ablate.spec import UserError

UNTUNED = [kind for kind in KINDS if kind != "tuning"]  # which tests/test_tune.py draws
SVG = "{http://www.w3.org/2000/svg}"
WORDS = (
    "stem=none,dpn",
    "model.depth=1,2",
    "probe=[gradnorm,scales,attention,tokens]",
    "train.steps=20",
    "seeds=2",
)


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A folder in which a sweep of 2 rows, 2 columns and 2 seeds was driven."""
    shell = Shell(tmp_path_factory.mktemp("plots"))
    shell("sweep", *WORDS, "--across", "model.depth", "--as", "mine", OMP_NUM_THREADS="1")
    return shell


@pytest.fixture(scope="module")
def store(shell) -> Store:
    return Store(shell.folder / "runs")


@pytest.fixture(scope="module")
def plan(store) -> Plan:
    return store.read_plan("mine")


@pytest.fixture(scope="module")
def results(plan, store):
    return {run.id: store.rundir(run.id).read_result() for run in plan.runs()}


@pytest.fixture(scope="module")
def table(plan, results):
    return tabulate(plan, results)


@pytest.fixture(scope="module")
def drawn(plan, table, store):
    return figures(plan, table, store.rundir)


def marks(svg: str) -> list[tuple[str, ElementTree.Element]]:
    """(what it says when pointed at, its group) of every mark, in order."""
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    return [(title.text, g) for g in groups if (title := g.find(f"{SVG}title")) is not None]


def texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def points(group: ElementTree.Element) -> list[tuple[float, float]]:
    """Where its markers stand."""
    return [(float(u.get("x")), float(u.get("y"))) for u in group.iter(f"{SVG}use")]


def line(group: ElementTree.Element) -> list[tuple[float, float]]:
    """The corners of its line."""
    path = next(p for p in group.iter(f"{SVG}path") if p.get("d"))
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path.get("d"))]


def arrays(plan, store, row, column, probe):
    """By seed."""
    cell = plan.cell(row, column)
    return [store.rundir(cell.ids[seed]).read_probe(probe) for seed in plan.seeds]


# --- What is drawn ------------------------------------------------------------------------------


def test_every_kind_is_drawn_with_its_rows_and_columns(drawn):
    assert list(drawn) == list(UNTUNED)
    for kind, svg in drawn.items():
        labels = texts(svg)
        told = [title for title, _ in marks(svg)]
        rows = {"dpn"} if kind in ("gain", "forest", "scales") else {"none", "dpn"}
        assert {title.partition(",")[0] for title in told} == rows, kind
        assert all(re.search(rf"\b{column}\b", " ".join([*labels, *told])) for column in "12")
        assert "mathdefault" not in svg


@pytest.mark.parametrize(("kind", "axis"), [("gain", 1), ("forest", 0)])
def test_gains_and_intervals_stand_where_the_table_has_them(drawn, table, kind, axis):
    """Marks come in pairs, interval and point; one scale explains all places of a panel."""
    gains = {named(e.row, e.column): e.gain for e in table.entries if e.gain}
    found = marks(drawn[kind])
    assert len(found) == 2 * len(gains) == 4
    places: dict[str, list[tuple[float, float]]] = {}
    for (title, bar), (again, point) in zip(found[::2], found[1::2], strict=True):
        assert title == again
        cell, _, words = title.partition(": ")
        gain = gains[cell]
        texts_ = [number(v, "top1", sign=True) for v in (gain.mean, gain.low, gain.high)]
        assert words.startswith("{} [{}, {}]".format(*texts_))
        assert words.endswith(", n = 2")
        panel = "" if kind == "gain" else cell.partition(", ")[2]
        ((*middle,),) = points(point)
        low, high = line(bar)
        places.setdefault(panel, []).extend(
            [(gain.mean, middle[axis]), (gain.low, low[axis]), (gain.high, high[axis])]
        )
        assert low[1 - axis] == high[1 - axis] == pytest.approx(middle[1 - axis], abs=0.01)
    for pairs in places.values():
        values, at = np.array(pairs).T
        scale, offset = np.polyfit(values, at, 1)
        assert at == pytest.approx(scale * values + offset, abs=0.02)
        assert (scale < 0) == (axis == 1)  # SVG counts downwards


def test_the_forest_prints_the_verdicts(drawn, table):
    labels = texts(drawn["forest"])
    for entry in table.entries:
        if entry.verdict:
            assert any(label.endswith(entry.verdict) for label in labels)


def test_curves_have_every_epoch_and_end_where_the_metrics_end(drawn, plan, store):
    found = dict(marks(drawn["curves"]))
    assert len(found) == 8  # 2 rows, 2 columns, loss and accuracy
    for cell in plan.cells:
        runs = [store.rundir(run).read_metrics() for run in cell.ids.values()]
        for key, name, scale in (
            ("train_loss", "training loss", 1),
            ("val_top1", "validation top-1 accuracy, %", 100),
        ):
            last = scale * np.mean([lines[-1][key] for lines in runs])
            title = f"{named(cell.row, cell.column)}: {name}, ends at {last:.4g}, n = 2"
            assert len(line(found[title])) == len(runs[0]) == 2


def test_gradient_norms_by_depth_and_by_step(drawn, plan, store):
    found = marks(drawn["gradnorm"])
    assert len(found) == 8
    for cell in plan.cells:
        by_depth, by_step = (g for t, g in found if t.startswith(f"{cell.row}, {cell.column}:"))
        measured = arrays(plan, store, cell.row, cell.column, "gradnorm")
        depth = int(cell.column)
        assert len(points(by_depth)) == depth + 2
        norms = [depths(a)[1][:, 0] for a in measured]
        assert len(line(by_step)) == np.prod(norms, 0).astype(bool).sum() == 9  # 0 in the first two
        assert [len(a["steps"]) for a in measured] == [11, 11]
        labels, norms = profile(measured[0])
        assert labels == ["embedding", *map(str, range(1, depth + 1)), "head"]
        groups = list(measured[0]["groups"])
        parts = [measured[0]["norms"][-1, groups.index(f"blocks.0.{s}")] for s in ("attn", "mlp")]
        assert norms[1] == pytest.approx(np.hypot(*map(float, parts)))
        assert depths(measured[0])[1].shape == (11, depth + 2)


def test_attention_has_a_point_a_head_a_layer_a_seed(drawn, plan, store):
    found = marks(drawn["attention"])
    assert len(found) == 8  # 2 rows, 2 columns, 2 seeds
    for title, group in found:
        depth = int(title.partition(", ")[2][0])
        assert title.endswith(f"{depth} x 2 heads")
        assert len(points(group)) == 2 * depth


def test_scales_are_told_and_a_row_without_them_is_left_out(drawn, plan, store):
    found = dict.fromkeys(title for title, _ in marks(drawn["scales"]))
    expected = []
    for column in "12":
        scale = arrays(plan, store, "dpn", column, "scales")[0]["stem.before.weight"]
        means = summary(scale.reshape(4, 4, 1)).items()
        words = ", ".join(f"{name} {mean:.3f}" for name, mean in means)
        expected.append(f"dpn, {column}: {words}")
    assert list(found) == expected


def test_tokens_by_layer(drawn, plan, store):
    found = [title for title, _ in marks(drawn["tokens"])]
    assert len(found) == 4
    for title, cell in zip(found, sorted_cells(plan), strict=True):
        norms = np.mean([a["norms"] for a in arrays(plan, store, *cell, "tokens")], 0)
        means = ", ".join(f"{mean:.3g}" for mean in norms.mean((1, 2)))
        assert title == f"{named(*cell)}: means by layer {means}; n = 2"


def sorted_cells(plan):
    return [(row.label, column.label) for row in plan.rows for column in plan.columns]


# --- What is said -------------------------------------------------------------------------------


def test_an_unfinished_sweep_says_so(plan, results, store):
    missing = next(iter(plan.runs())).id
    table = tabulate(plan, {**results, missing: None})
    for kind in UNTUNED:
        assert any(
            "UNFINISHED: 1 of 8" in t for t in texts(figure(plan, table, kind, store.rundir))
        )
    whole = tabulate(plan, results)
    assert "UNFINISHED" not in figure(plan, whole, "gain", store.rundir)


def test_what_to_type_where_a_run_has_not_measured_it(plan, table, store):
    bare = [replace(cell, spec={**cell.spec, "probe": ["scales"]}) for cell in plan.cells]
    unasked = replace(plan, cells=tuple(bare), words=("figure1", "--scale", "digits"))
    with pytest.raises(Nothing) as caught:
        figure(unasked, table, "gradnorm", store.rundir)
    assert str(caught.value) == (
        "mine: its runs did not measure gradnorm: "
        "`ablate sweep figure1 --scale digits 'probe=[gradnorm,scales]'`"
    )
    elsewhere = Store(Path("nowhere"))
    with pytest.raises(Nothing, match="no run has got to its tokens yet"):
        figure(plan, table, "tokens", elsewhere.rundir)
    with pytest.raises(Nothing, match="no run has been validated yet"):
        figure(plan, table, "curves", elsewhere.rundir)
    with pytest.raises(Nothing, match="no gain yet"):
        figure(plan, tabulate(plan, {}), "gain", elsewhere.rundir)
    assert set(figures(plan, table, elsewhere.rundir)) == {"gain", "forest"}


def test_labels_are_text_whatever_is_in_them(plan, table, store):
    odd = replace(plan, title="5 $ & <b> $x$")
    svg = figure(odd, table, "gain", store.rundir)
    assert "5 $ & <b> $x$" in texts(svg)
    margin = replace(plan, analysis=Analysis(margin=0.3))
    assert "Shaded: the margin of 0.3." in texts(figure(margin, table, "forest", store.rundir))


# --- Files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_figure_has_the_same_bytes(plan, table, store, format):
    one, other = (draw(plan, table, "gain", store.rundir, format) for _ in range(2))
    assert one == other
    begins = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}
    assert one.startswith(begins[format])


def test_the_command_writes_the_same_file_whatever_the_users_style(shell, drawn, store):
    (shell.folder / "matplotlibrc").write_text("font.size: 30\naxes.grid: False\n")
    done = shell("plot", "mine", "gain")
    assert done.out == "mine-gain.svg\n"
    assert (shell.folder / "mine-gain.svg").read_text() == drawn["gain"]
    shell("plot", "tokens", "--out", "t.PDF")  # of the last one driven
    assert (shell.folder / "t.PDF").read_bytes().startswith(b"%PDF")


def test_a_measured_file_that_was_edited_is_named(shell, store, plan):
    path = store.rundir(next(iter(plan.runs())).id).probe("gradnorm")
    content = path.read_bytes()
    try:
        path.write_bytes(content[:-1] + b"!")
        assert "none@1#0: probe-gradnorm.npz: " in shell("verify", "mine", code=1).out
    finally:
        path.write_bytes(content)


def test_wrong_words(shell, plan, table, store):
    assert "did you mean 'gradnorm'" in shell("plot", "mine", "gradnrom", code=2).err
    with pytest.raises(UserError, match=r"--out: expected a file that ends in one of svg, pdf"):
        draw(plan, table, "gain", store.rundir, "jpg")


# --- Numbers by hand ----------------------------------------------------------------------------


def test_summary_of_a_scale_by_hand():
    scale = np.ones((16, 16, 3))
    scale[0, 0] = 5.0
    scale[6:10, 6:10] = 0.5
    assert summary(scale) == {"corners": 2.0, "centre": 0.5, "rest": 1.0}


def test_uniform_attention_by_hand():
    assert uniform(14, 14) == pytest.approx(7.2808, abs=5e-5)
    assert uniform(1, 2) == 0.5


def test_rows_are_told_apart_in_grey():
    rows = tuple(Row(f"row {n}", {}) for n in range(20))
    plan = Plan("p", "", (), rows, (), (), "row 3", (0,))
    found = inks(plan)
    assert found["row 3"].colour == "#000000"
    shapes = [(ink.marker, ink.filled) for ink in found.values()]
    assert len(set(shapes)) == 20
    assert all(one.colour != other.colour for one, other in pairwise(found.values()))
