"""Every figure from one small real sweep: what is drawn is what the table and the folders say."""

from __future__ import annotations

import re
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import Shell
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image
from support.declared import declare
from support.plans import with_sections
from support.svg import SVG, marks, texts
from support.tables import make_plan, plant, tabulate

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Tune, TuningStage
from ablate.planning.plan import Plan
from ablate.report.plot import (
    FIGURE_FORMATS,
    FIGURE_KINDS,
    FigureForm,
    Nothing,
    curves,
    draw_figure,
    draw_figures,
    figure,
    probes,
)
from ablate.report.plot.form import cell_name
from ablate.report.plot.gains import limits, limits_of
from ablate.report.plot.probes import uniform
from ablate.report.plot.style import Drawing, Subject, styled
from ablate.run.metrics import TASKS
from ablate.run.metrics.probed import gradnorm_profile, read_gradnorm, scale_summary
from ablate.shared.errors import UserError
from ablate.store.store import Store

ELSEWHERE = ("tuning", "changes", "pairs")  # tests/test_tune.py and test_changes.py draw them
UNTUNED = [kind for kind in FIGURE_KINDS if kind not in ELSEWHERE]
WORDS = (
    "stem=none,dpn",
    "model.depth=1,2",
    "probe=[gradnorm,scales,attention,tokens]",
    "train.steps=20",
    "seeds=[1,7]",  # whose intervals are narrow enough to be told
)


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A folder in which a sweep of 2 rows, 2 columns and 2 seeds was driven."""
    shell = Shell(tmp_path_factory.mktemp("plots"))
    shell("sweep", *WORDS, "launcher=inline", "--across", "model.depth", "--as", "mine")
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
def table(plan, results, store):
    return tabulate(plan, results, predictions=store.predictions)


@pytest.fixture(scope="module")
def drawn(plan, table, store):
    return draw_figures(plan, table, store.rundir)


def points(group: ElementTree.Element) -> list[tuple[float, float]]:
    """Where its markers stand."""
    return [(float(u.get("x")), float(u.get("y"))) for u in group.iter(f"{SVG}use")]


def line(group: ElementTree.Element) -> list[tuple[float, float]]:
    """The corners of its line."""
    path = next(p for p in group.iter(f"{SVG}path") if p.get("d"))
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path.get("d"))]


def arrays(plan, store, row, column, probe):
    """By seed."""
    return [store.rundir(run).read_probe(probe) for run in plan.cell(row, column).ids.values()]


# --- What is drawn ------------------------------------------------------------------------------


@pytest.mark.whole
def test_every_kind_is_drawn_with_its_rows_and_columns(drawn):
    assert list(drawn) == list(UNTUNED)
    for kind, svg in drawn.items():
        labels = texts(svg)
        told = [title for title, _ in marks(svg)]
        rows = {"dpn"} if kind in ("gain", "forest", "scales") else {"none", "dpn"}
        assert {title.partition(",")[0] for title in told} == rows, kind
        assert all(re.search(rf"\b{column}\b", " ".join([*labels, *told])) for column in "12")
        assert "mathdefault" not in svg


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "axis"), [("gain", 1), ("forest", 0)])
def test_gains_and_intervals_stand_where_the_table_has_them(drawn, plan, table, kind, axis):
    """Marks come in threes: interval, mean and seeds; one scale explains all places of a panel."""
    metric = TASKS["classify"].metrics[0]
    values = {(e.row, e.column): e.values for e in table.entries}
    gains = {cell_name(e.row, e.column): e for e in table.entries if e.gain}
    found = marks(drawn[kind])
    assert len(found) == 3 * len(gains) == 6
    places: dict[str, list[tuple[float, float]]] = {}
    for (title, bar), (again, point), (seeds, dots) in zip(*(iter(found),) * 3, strict=True):
        assert title == again
        cell, _, words = title.partition(": ")
        entry = gains[cell]
        told = (entry.gain.mean, entry.gain.low, entry.gain.high)
        mean, least, most = (metric.text(value, sign=True) for value in told)
        assert words.startswith(f"{mean} [{least}, {most}]")
        assert words.endswith(", n = 2")
        ((*middle,),) = points(point)
        low, high = line(bar)
        base = values["none", entry.column]
        differences = [entry.values[seed] - base[seed] for seed in plan.seeds]
        said = [
            f"{s}: {metric.text(d, sign=True)}" for s, d in zip((1, 7), differences, strict=True)
        ]
        assert seeds == f"{cell}, gain by seed: {', '.join(said)}"
        at = [place[axis] for place in (middle, low, high, *points(dots))]
        panel = "" if kind == "gain" else entry.column
        places.setdefault(panel, []).extend(zip([*told, *differences], at, strict=True))
        assert low[1 - axis] == high[1 - axis] == pytest.approx(middle[1 - axis], abs=0.01)
    scales = []
    for pairs in places.values():
        shown, at = np.array(pairs).T
        scale, offset = np.polyfit(shown, at, 1)
        assert at == pytest.approx(scale * shown + offset, abs=0.02)
        assert (scale < 0) == (axis == 1)  # SVG counts downwards
        scales.append(scale)
    assert scales == pytest.approx([scales[0]] * len(scales), rel=1e-3)  # columns are compared


def test_an_interval_that_would_flatten_all_others_is_cut_and_told(plan, table, store):
    first, *others = (entry for entry in table.entries if entry.gain)
    wide = replace(first, gain=replace(first.gain, mean=-2.0, low=-5000.0, high=4000.0))
    columns = tuple(
        replace(c, entries=tuple(wide if e is first else e for e in c.entries))
        for c in table.columns
    )
    cut = replace(table, columns=columns)
    low, high = limits(cut, [wide, *others])
    kept = [end for e in others for end in (e.gain.low, e.gain.high)]
    assert -5000 < low < min([0, -2, *kept]) <= max([0, *kept]) < high < 4000
    for kind in ("gain", "forest"):
        told = " ".join(texts(figure(plan, cut, kind, store.rundir)))
        assert "Cut at the arrows: dpn, 1 -2.00 [-5000.00, +4000.00]" in told
        assert "Cut at" not in figure(plan, table, kind, store.rundir)
    assert limits(cut, []) == (-1, 1)


@pytest.mark.parametrize("width", [0.0, 1e-14])
def test_rows_without_a_width_cut_no_interval(width):
    """Gains that are equal in all seeds have none, but for the last digits of their differences."""
    low, high = limits_of([0.5, 0.5, 0.5, 0.9], [(0.5, 0.5 + width)] * 3 + [(0.2, 1.6)])
    assert low < 0
    assert high > 1.6
    low, high = limits_of([0.5, 0.9, 0.9], [(0.5, 0.5 + width), (0.2, 1.6), (-90.0, 90.0)])
    assert -90 < low < high < 90


def test_the_forest_prints_the_verdicts(drawn, table):
    labels = texts(drawn["forest"])
    for entry in table.entries:
        if entry.verdict:
            assert any(label.endswith(entry.verdict) for label in labels)


def test_curves_have_every_epoch_and_end_where_the_metrics_end(drawn, plan, store):
    found = dict(marks(drawn["curves"]))
    assert len(found) == 8  # 2 rows, 2 columns, loss and accuracy
    accuracy = "validation top-1 accuracy, %"
    for cell in plan.cells:
        runs = [store.rundir(run).read_metrics() for run in cell.ids.values()]
        for key, name, scale in (("train_loss", "training loss", 1), ("val_top1", accuracy, 100)):
            last = scale * np.mean([lines[-1][key] for lines in runs])
            title = f"{cell_name(cell.row, cell.column)}: {name}, ends at {last:.4g}, n = 2"
            assert len(line(found[title])) == len(runs[0]) == 2


def test_gradient_norms_by_depth_and_by_step(drawn, plan, store):
    found = marks(drawn["gradnorm"])
    assert len(found) == 8
    for cell in plan.cells:
        by_depth, by_step = (g for t, g in found if t.startswith(f"{cell.row}, {cell.column}:"))
        measured = arrays(plan, store, cell.row, cell.column, "gradnorm")
        depth = int(cell.column)
        assert len(points(by_depth)) == depth + 2
        norms = [read_gradnorm(a)[1][:, 0] for a in measured]
        assert len(line(by_step)) == np.prod(norms, 0).astype(bool).sum() == 9  # 0 in the first two
        assert [len(a["steps"]) for a in measured] == [11, 11]
        labels, norms = gradnorm_profile(measured[0])
        assert labels == ["embedding", *map(str, range(1, depth + 1)), "head"]
        groups = list(measured[0]["groups"])
        parts = [measured[0]["norms"][-1, groups.index(f"blocks.0.{s}")] for s in ("attn", "mlp")]
        assert norms[1] == pytest.approx(np.hypot(*map(float, parts)))
        assert read_gradnorm(measured[0])[1].shape == (11, depth + 2)


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
        means = scale_summary(scale.reshape(4, 4, 1)).items()
        words = ", ".join(f"{name} {mean:.3f}" for name, mean in means)
        expected.append(f"dpn, {column}: {words}")
    assert list(found) == expected


def test_tokens_by_layer(drawn, plan, store):
    found = [title for title, _ in marks(drawn["tokens"])]
    cells = [(row.label, column.label) for row in plan.rows for column in plan.columns]
    for title, cell in zip(found, cells, strict=True):
        norms = np.mean([a["norms"] for a in arrays(plan, store, *cell, "tokens")], 0)
        means = ", ".join(f"{mean:.3g}" for mean in norms.mean((1, 2)))
        assert title == f"{cell_name(*cell)}: means by layer {means}; n = 2"


# --- What is said -------------------------------------------------------------------------------


def test_a_figure_says_what_is_drawn_and_of_which_sweep(plan, drawn):
    headings = [texts(svg) for svg in drawn.values()]
    assert all("Sweep mine" in labels for labels in headings)
    assert "Gain over stem=none: top-1 accuracy" in texts(drawn["gain"])
    assert "Learning curves" in texts(drawn["curves"])
    for kind in ("gain", "forest", "curves", "gradnorm", "attention"):
        assert {"model.depth=1", "model.depth=2"} <= set(texts(drawn[kind])), kind
    said = " ".join(texts(drawn["gain"]))
    assert "joint for" not in said  # a single comparison


@pytest.mark.whole
def test_many_columns_go_on_in_the_next_line(plan, table, store):
    """A page scales what is wider than itself, down to letters that nobody reads."""
    rows, columns = ["base", "other"], [f"column {n}" for n in range(5)]
    wide = make_plan(rows, columns)
    found = tabulate(wide, plant(wide, {"base": [90.0, 90.2, 90.1], "other": [91.0, 91.1, 91.3]}))
    svg = figure(wide, found, "forest", store.rundir)
    assert float(re.search(r'width="([\d.]+)pt"', svg)[1]) < 11 * 72
    labels = texts(svg)
    assert [label for label in labels if label.startswith("column")] == columns
    assert labels.count("gain, points") == 5
    assert labels.count("other") == 3  # at the left of every line
    whole = next(iter(plan.cells[0].ids.values()))  # a run with curves, in every cell's place
    labels = texts(figure(wide, found, "curves", lambda _: store.rundir(whole)))
    assert [label for label in labels if label.startswith("column")] == columns
    assert (labels.count("epoch"), labels.count("training loss")) == (5, 2)


def test_long_words_stay_inside_of_the_figure(plan, table):
    words = "hundreds of random models " * 20
    with styled("long"):
        sheet = Drawing(Subject(plan, table, FigureForm(), "gain", words), (1, 1), (6, 6))
        sheet.foot(words)
        renderer = FigureCanvasAgg(sheet.figure).get_renderer()
        for text in sheet.figure.texts:
            box = text.get_window_extent(renderer)
            assert 0 <= box.x0 < box.x1 <= sheet.figure.bbox.width


def test_a_row_that_was_never_validated_is_named_beside_the_curves(plan, table, store):
    lost = {run for cell in plan.cells if cell.row == "dpn" for run in cell.ids.values()}
    nowhere = Store(Path("nowhere"))
    svg = figure(plan, table, "curves", lambda run: (nowhere if run in lost else store).rundir(run))
    assert "Without a validation: dpn, 1, dpn, 2." in texts(svg)


def test_bands_are_left_out_where_they_would_hide_the_lines(plan, table, store, monkeypatch):
    assert "FillBetween" in figure(plan, table, "curves", store.rundir)
    monkeypatch.setattr(curves, "MOST_BANDED_ROWS", 1)
    svg = figure(plan, table, "curves", store.rundir)
    assert "FillBetween" not in svg
    assert "Lines: means over the seeds that reached an epoch." in texts(svg)


def test_why_a_whole_sweep_has_no_gains(store):
    plan, alone = make_plan(["base", "other"]), make_plan(["base"])
    results = plant(plan, {"base": [90, 91, 92], "other": [0, 0, 0]})
    for seed in range(3):
        results[f"other@#{seed}"] = {"status": "diverged", "step": 2, "device": "cpu"}
    with pytest.raises(Nothing, match="no row shares a seed with base"):
        figure(plan, tabulate(plan, results), "gain", store.rundir)
    with pytest.raises(Nothing, match="the baseline base is the only row"):
        figure(alone, tabulate(alone, results), "gain", store.rundir)


@pytest.mark.whole
def test_an_unfinished_sweep_says_so(plan, results, table, store):
    lacking = tabulate(plan, {**results, next(iter(plan.runs())).id: None})
    for kind in UNTUNED:
        said = " ".join(texts(figure(plan, lacking, kind, store.rundir)))
        assert "UNFINISHED: 1 of 8" in said
    assert "UNFINISHED" not in figure(plan, table, "gain", store.rundir)


def test_what_to_type_where_a_run_has_not_measured_it(plan, table, store):
    bare = [with_sections(cell, probe=["scales"]) for cell in plan.cells]
    unasked = replace(plan, cells=tuple(bare), declared=declare("figure1", "--scale", "smoke"))
    with pytest.raises(Nothing) as caught:
        draw_figure(unasked, table, "gradnorm", store.rundir, command=Store(Path("other")).command)
    command = "ablate sweep figure1 'probe=[gradnorm,scales]' --scale smoke --store other"
    assert "gradnorm" in str(caught.value)
    assert f"`{command}`" in str(caught.value)
    nowhere = Store(Path("nowhere"))
    again = f"run `{nowhere.command(*plan.command)}`"
    assert "--store nowhere" in again
    tuned = replace(plan, tune=Tune((TuningStage({"optim.lr": {"log": (0.1, 1.0)}}, 2),)))
    for of, shown, kind, said in (
        (plan, table, "tokens", "no run has measured tokens yet"),
        (plan, tabulate(plan, {}), "curves", "no run has a loss or a validation yet"),
        (tuned, table, "tuning", "no round of trials has ended yet"),
        (plan, tabulate(plan, {}), "gain", "no gain yet"),
    ):
        with pytest.raises(Nothing, match=f"{said}.*; {re.escape(again)}$"):
            draw_figure(of, shown, kind, nowhere.rundir, command=nowhere.command)
    assert set(draw_figures(plan, table, nowhere.rundir)) == {"gain", "forest", "across"}


def test_no_sweep_is_named_to_runs_that_have_ended_without_curves(plan, results, table):
    def remedy(shown, **rows):
        of = {"form": FigureForm(**rows), "command": nowhere.command}
        with pytest.raises(Nothing) as caught:
            draw_figure(plan, shown, "curves", nowhere.rundir, **of)
        return [word for word in ("ablate sweep", "`curves:`") if word in str(caught.value)]

    nowhere = Store(Path("nowhere"))
    lacking = tabulate(plan, {**results, plan.cell("dpn", "1").ids[1]: None})
    assert remedy(table) == ["`curves:`"]
    assert remedy(lacking) == ["ablate sweep"]
    assert remedy(lacking, rows=("none",)) == ["`curves:`"]


def test_labels_are_text_whatever_is_in_them(plan, table, store):
    odd = replace(plan, title="5 $ & <b> $x$")
    svg = figure(odd, table, "gain", store.rundir)
    assert "5 $ & <b> $x$" in texts(svg)
    for margin, words in ((0.3, "0.3 points"), (1.0, "1 point")):
        judged = replace(plan, analysis=Analysis(margin=margin))
        drawn = figure(judged, table, "forest", store.rundir)
        assert f"Shaded: the margin of {words}." in texts(drawn)


def has_white_edges(content: bytes) -> bool:
    """Whether nothing that is drawn touches the edge of a PNG, where it would be cut."""
    with Image.open(BytesIO(content)) as image:
        pixels = np.asarray(image.convert("L"))
    edges = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    return bool((edges == 255).all())


@pytest.mark.whole
@pytest.mark.parametrize("kind", UNTUNED)
def test_no_letter_leaves_the_figure(plan, table, store, kind):
    assert has_white_edges(draw_figure(plan, table, kind, store.rundir, "png").content)


@pytest.mark.whole
def test_the_name_of_a_colour_bar_stays_inside_whatever_its_ticks(plan, table, store, monkeypatch):
    """By themselves they depend on a height that is laid out later: "10" becomes "10.0"."""
    for high in (8.2, 10.3, 11.1, 12.6):
        norms = np.linspace(5.05, high, 12).reshape(3, 2, 2)
        cells = {(row, "1"): {1: {"norms": norms}} for row in ("none", "dpn", "pre", "post")}
        monkeypatch.setattr(probes, "probed", lambda *_, cells=cells: cells)
        assert has_white_edges(draw_figure(plan, table, "tokens", store.rundir, "png").content)


def test_maps_are_titled_by_row_and_setting_and_are_equally_large(plan, table, store, drawn):
    titles = [f"{row}, model.depth={depth}" for row in ("none", "dpn") for depth in (1, 2)]
    assert set(titles[2:]) <= set(texts(drawn["scales"]))
    assert set(titles) <= set(texts(drawn["tokens"]))
    with styled("tokens"):
        sheet = probes.tokens(plan, table, store.rundir, FigureForm())
    widths = {image.get_array().shape for (axes,) in sheet.panels for image in axes.images}
    assert len(widths) == 1  # of cells with 2 maps and with 3


@pytest.mark.whole
def test_means_without_a_bar_are_named_with_the_reason(plan, results, table, store):
    def said(results):
        return texts(figure(plan, tabulate(plan, results), "across", store.rundir))

    def lines(results, word):
        return [line for line in said(results) if line.startswith(word)]

    assert lines(results, "Bars:")
    assert not lines(results, "Without a bar")
    diverged = {"status": "diverged", "step": 2, "device": "cpu"}
    first_of_dpn = {plan.cell("dpn", "1").ids[1]: diverged}
    assert lines({**results, **first_of_dpn}, "Bars:")
    (line,) = lines({**results, **first_of_dpn}, "Without a bar")
    assert "single seed" in line
    assert line.endswith(": dpn, 1.")
    second_of_all = {run: diverged for cell in plan.cells for s, run in cell.ids.items() if s == 7}
    assert lines({**results, **second_of_all}, "No mean")
    assert not lines({**results, **second_of_all}, "Bars:")


# --- Files --------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("format", FIGURE_FORMATS)
def test_the_same_figure_has_the_same_bytes(plan, table, store, format):
    one, other = (draw_figure(plan, table, "gain", store.rundir, format).content for _ in range(2))
    assert one == other
    begins = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}
    assert one.startswith(begins[format])


def test_the_last_bits_of_a_layout_change_no_byte(plan, table, store, monkeypatch):
    """The solver of matplotlib's layout gives places that differ by such bits."""
    drawn = draw_figure(plan, table, "gain", store.rundir, "svg").content
    solve = ConstrainedLayoutEngine.execute
    moved = []

    def jittered(engine, fig):
        result = solve(engine, fig)
        for axes in fig.axes:
            x, y, width, height = axes.get_position(original=True).bounds
            axes.set_position((x * (1 + 1e-15), y * (1 - 1e-15), width, height), which="original")
            axes.set_in_layout(True)
            moved.append(axes.get_position(original=True).bounds != (x, y, width, height))
        return result

    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", jittered)
    assert draw_figure(plan, table, "gain", store.rundir, "svg").content == drawn
    assert any(moved)


@pytest.mark.whole
def test_the_command_writes_the_same_file_whatever_the_users_style(shell, drawn, store):
    (shell.folder / "matplotlibrc").write_text("font.size: 30\naxes.grid: False\n")
    done = shell("plot", "mine", "gain")
    assert done.out == "mine-gain.svg\n"
    assert (shell.folder / "mine-gain.svg").read_text() == drawn["gain"]
    shell("plot", "tokens", "--out", "t.PDF")  # of the last one driven
    assert (shell.folder / "t.PDF").read_bytes().startswith(b"%PDF")


def test_wrong_words(shell, plan, table, store):
    assert "did you mean 'gradnorm'" in shell("plot", "mine", "gradnrom", code=2).err
    with pytest.raises(UserError, match=r"--format: expected one of svg, pdf"):
        draw_figure(plan, table, "gain", store.rundir, "jpg")


# --- Numbers by hand ----------------------------------------------------------------------------


def test_summary_of_a_scale_by_hand():
    scale = np.ones((16, 16, 3))
    scale[0, 0] = 5.0
    scale[6:10, 6:10] = 0.5
    assert scale_summary(scale) == {"corners": 2.0, "centre": 0.5, "rest": 1.0}


def test_uniform_attention_by_hand():
    assert uniform(14, 14) == pytest.approx(7.2808, abs=5e-5)
    assert uniform(1, 2) == 0.5
