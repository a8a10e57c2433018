"""Tables as papers print them: lines are architectures x variants, a grid for each group of
columns, counts at a line's end, averages over groups; and how columns map to published ones."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from conftest import records
from support.plans import with_sections
from support.planted_sweeps import GAINS, GROUPS, grouped_sweep
from support.published_tables import LAID_OUT, PRINTED, THEIRS, against_table_3, planted, published
from support.tables import SPEC, finished, grids, make_plan, tabulate, text_of

from ablate.analysis import paper, stats
from ablate.analysis.headline import wins
from ablate.planning.cell import Column, ColumnGroup, TuningWinner, wide_places
from ablate.planning.design import Imported
from ablate.planning.expand import plan_from_words as make_real
from ablate.planning.plan import Plan
from ablate.report.formats import render_table
from ablate.shared.errors import UserError

# --- The layout of the papers -------------------------------------------------------------------


@pytest.mark.parametrize("name", LAID_OUT)
def test_a_sweep_is_laid_out_as_the_paper_prints_it(name):
    printed = [row for row in PRINTED if row["table"] == name]
    made = grids(render_table(published(name), "md", wide=True))
    made = made[: len(LAID_OUT[name])]  # averages stand below
    archs = [*dict.fromkeys(row["arch"] for row in printed)]
    values: dict = {}
    for row in printed:
        values.setdefault((row["arch"], row["variant"]), []).append(float(row["value"]))
    for grid, headings in zip(made, LAID_OUT[name].values(), strict=True):
        assert grid[0] == ["variant", *headings, "against base"]
        lines = iter(grid[1:])
        for arch in archs:
            assert next(lines)[0] == arch
            cells = {}
            for variant in ("base", "dpn"):
                of, values[arch, variant] = np.split(values[arch, variant], [len(headings)])
                cells[variant] = of
                assert next(lines)[:-1] == [variant, *(f"{value:.2f}" for value in of)]
            gains = cells["dpn"] - cells["base"]
            assert next(lines)[:-1] == ["gain", *(f"{gain:+.2f}" for gain in gains)]
        assert next(lines, None) is None
    assert not any(map(len, values.values()))  # all of it


def test_the_counts_are_those_of_the_papers_text():
    text = render_table(published("T3"), "md")
    counts = [grid[place][-1] for grid in grids(text)[:3] for place in (3, 7)]  # B/32, B/16
    assert counts == [
        *("above in 7 of 7", "above in 6 of 7"),  # "Sun397 is the only Natural drop
        *("above in 3 of 4", "above in 1 of 4"),  # "improves 1 of 4"
        *("above in 5 of 8", "above in 5 of 8"),
    ]
    assert "by however little" in text


def test_a_footnote_stands_where_it_is_of_all_below():
    text = render_table(published("T3"), "md", notes="full")
    assert re.search(r"\| variant([\d⁰¹²³⁴-⁹]+) \| Caltech101 \| CIFAR-100 \|", text)
    heads = r"\| variant \| Clevr-Count(\S+) \| Clevr-Dist(\S+) \| DMLab(\S+) \| dSpr-Loc(\S+) \|"
    marks = re.search(heads, text).groups()
    assert len({*marks[:3]}) == 1
    assert marks[3] != marks[0]
    assert "| base | 87.10 | 53.70 |" in text
    long = render_table(published("T2R"), "md", wide=True, notes="full")
    assert re.search(r"\| \*L/16\*[⁰¹²³⁴-⁹]+ \|  \|", long)


def test_the_long_table_is_asked_for_and_each_says_where_the_other_is(ask, golden_store):
    def table(*words, code=0):
        ended, text = ask("table", *words)
        assert ended == code, text
        return text

    assert "verdicts, column by column: `ablate table fixture --no-wide`" in table("--wide")
    for words in ((), ("--no-wide",)):  # without groups
        assert "--no-wide" not in table(*words)
    told = table("--wide", "--transpose", code=2)
    assert told == "ablate: --wide: its columns are not variants; leave --transpose out\n"
    assert "add gain, or --no-wide" in table("--wide", "--show", "n", code=2)


def test_eighty_columns_hold_every_number():
    table = published("T3")
    text = text_of(table, "rich", width=80)
    assert max(map(len, text.splitlines()[:100])) <= 80
    values = [f"{float(row['value']):.2f}" for row in PRINTED if row["table"] == "T3"]
    assert not Counter(values) - Counter(text.split())
    assert text.count("above in") == 6
    wider = text_of(table, "rich", width=120).splitlines()
    assert max(map(len, wider[:50])) <= 120
    assert all(wider.count(group) == 1 for group in LAID_OUT["T3"])  # in one piece


# --- A sweep with groups ------------------------------------------------------------------------

ARCHS, SETS = ("S/4", "B/4"), ("pets", "svhn", "dmlab")


def test_a_sweep_with_groups_is_a_grid_for_each_with_counts_of_verdicts():
    table = tabulate(*grouped_sweep())
    words = {e.column: e.verdict for e in table.entries if e.row == "dpn"}
    assert words["pets, S/4"] == "helps"
    assert words["svhn, S/4"] == "hurts"
    assert words["dmlab, S/4"] == "can't tell"
    natural, made, average, groups = grids(render_table(table, "md"))
    assert natural == [
        ["variant", "Pets", "svhn", "against vit"],
        ["S/4", "", "", ""],
        ["vit", "70.00", "70.00", ""],
        ["dpn", "72.00", "69.00", "helps in 1 of 2 (hurts in 1)"],
        ["gain", "+2.00", "-1.00", ""],
        ["B/4", "", "", ""],
        ["vit", "70.00", "70.00", ""],
        ["dpn", "71.10", "70.40", "helps in 2 of 2"],
        ["gain", "+1.10", "+0.40", ""],
    ]
    assert made[3] == ["dpn", "70.07", "helps in 0 of 1"]
    text = render_table(table, "md")
    assert text.index("**Natural**") < text.index("**Made**") < text.index("**Average over the 6")
    assert "**+2.00**" in text
    assert "**-1.00**" not in text
    assert "`ablate table planted --no-wide`" in text
    long = render_table(table, "md", wide=False)
    assert "| dpn | 72.00 [" in long
    assert "--no-wide" not in long
    assert (average[1][0], groups[1][:2]) == ("dpn", ["dpn", "Natural"])


def test_without_verdicts_means_are_counted():
    plan, results = grouped_sweep()
    results["dpn@dmlab, B/4#1"] = None
    table = tabulate(plan, results)  # unfinished
    found = grids(render_table(table, "md"))
    assert found[0][3][-1] == "above in 1 of 2"
    assert found[1][-1] == ["runs", "1/3 missing", ""]
    assert "by however little" in render_table(table, "md")
    of = {e.column: e for e in table.entries if e.row == "dpn"}
    lost = replace(of["pets, S/4"], gain=None)
    level = replace(lost, gain=stats.Estimate(0.0, None, None, 2))
    for several, said in (
        ([*of.values()], "above in 5 of 6"),
        ([lost, of["svhn, S/4"]], "above in 0 of 2 (no gain in 1)"),
        ([lost], ""),
        ([level], "above in 0 of 1"),
    ):
        assert wins(table, several) == said
    less = tabulate(grouped_sweep(metric="loss")[0], results)  # 1 - top-1: as much lower
    assert wins(less, [e for e in less.entries if e.row == "dpn"]) == "below in 5 of 6"


def test_a_diverged_run_is_shown_and_has_no_verdict():
    plan, results = grouped_sweep()
    results["dpn@svhn, B/4#1"] = {"status": "diverged", "step": 3}
    text = render_table(tabulate(plan, results), "md")
    assert "| runs |  | 1/3 diverged" in text
    assert "helps in 1 of 2 (no verdict in 1)" in text


def test_another_set_is_a_column_beside_its_own_in_the_same_group():
    plan, results = grouped_sweep()
    also = [{"name": "dark", "classes": 10}]
    tested = {"data": {**SPEC["data"], "name": "x"}, "eval": {"also": also}}
    plan = replace(plan, cells=tuple(with_sections(cell, **tested) for cell in plan.cells))
    for result in results.values():
        result["also"] = {"dark": finished(result["test"]["top1"] / 2)}
    natural, made, *_ = grids(render_table(tabulate(plan, results), "md"))
    assert natural[0][1:-1] == ["Pets", "Pets on dark", "svhn", "svhn on dark"]
    assert natural[3][1:] == ["72.00", "36.00", "69.00", "34.50", "helps in 2 of 4 (hurts in 2)"]
    assert made[0][1:-1] == ["dmlab", "dmlab on dark"]


@pytest.mark.parametrize("family", ["column", "table"])
def test_the_average_over_a_group_is_a_t_interval_of_the_means_over_its_columns(family):
    table = tabulate(*grouped_sweep(family=family))
    [block] = [block for block in table.blocks if block.kind == "group"]
    contrasts = {"column": 1, "table": 2}[family]
    assert block.contrasts == contrasts
    for line, wanted in zip(block.lines, (("pets", "svhn"), ("dmlab",)), strict=True):
        of = [label for label in GAINS if label.split(",")[0] in wanted]
        assert line.columns == tuple(of)
        means = np.mean([GAINS[label] for label in of], axis=0)
        t = scipy.stats.t(2, means.mean(), scipy.stats.sem(means))
        low, high = t.interval(1 - 0.05 / contrasts)
        assert (line.gain.low, line.gain.high) == pytest.approx((low, high))
    assert [line.column for line in block.lines] == ["Natural", "Made"]
    assert not [b for b in tabulate(*grouped_sweep(groups=())).blocks if b.kind == "group"]


def test_a_group_of_one_column_has_no_average_and_a_noisy_baseline_is_left_out():
    few = (replace(GROUPS[0], name="both"), replace(GROUPS[1], name="one"))
    plan, results = grouped_sweep(groups=few)
    results["vit@pets, S/4#0"]["collapsed"] = True
    [block] = [block for block in tabulate(plan, results).blocks if block.kind == "group"]
    assert block.lines[0].columns == ("svhn, S/4", "pets, B/4", "svhn, B/4")
    assert block.note.endswith("without pets, S/4: its baseline is unstable")
    single = replace(plan, columns=plan.columns[:3], cells=plan.cells[:6])
    [block] = [b for b in tabulate(single, grouped_sweep()[1]).blocks if b.kind == "group"]
    assert [line.column for line in block.lines] == ["both"]


def test_programs_get_the_group_of_each_column():
    table = tabulate(*grouped_sweep())
    tree = json.loads(render_table(table, "json"))
    assert tree["groups"] == ["Natural", "Made"]
    assert [column["group"] for column in tree["columns"]] == ["Natural", "Natural", "Made"] * 2
    facts = records(render_table(table, "tidy"))
    assert {f["column"]: f["text"] for f in facts if f["quantity"] == "group"} == {
        label: "Made" if "dmlab" in label else "Natural" for label in GAINS
    }
    means = {f["column"]: float(f["value"]) for f in facts if f["quantity"] == "group.gain"}
    assert means == pytest.approx({"Natural": 0.625, "Made": 4.65 / 3})
    # How it was judged, and that no predictions were read.
    caption = [note["key"] for note in tree["caption"]]
    assert caption == ["reading", "verdicts", "noise.resolution", "metric", "noise.no-floor"]
    assert sum(f["quantity"] == "caption" for f in facts) == len(caption)
    for format in ("latex", "html"):
        assert "helps in 1 of 2 (hurts in 1)" in render_table(table, format)


def test_a_heading_is_the_label_without_the_architecture():
    arch, fraction = {"model.arch": "B/32"}, {"data.fraction": 0.125}
    for columns, expected in (
        (
            {"DTD, B/32": arch, "B/32, 220k, 384": arch, "B/32": arch},
            [("B/32", "DTD"), ("B/32", "220k, 384"), ("B/32", "")],
        ),
        ({"2 · B/32": {"model.depth": 2, **arch}}, [("B/32", "model.depth=2")]),
        ({"small": arch, "1/8": fraction}, [("B/32", "small"), ("", "1/8")]),
        (  # of one place
            {"x, B/32": arch, "B/32, x": arch},
            [("B/32", "x, B/32"), ("B/32", "B/32, x")],
        ),
    ):
        places = wide_places([Column(*column) for column in columns.items()])
        assert [(places[label].arch, places[label].heading) for label in columns] == expected


# --- The sweep file -----------------------------------------------------------------------------

SWEEP = """\
across:
  product: {data: [digits, mnist5k], model.arch: [mu/2, mu/4]}
  label: "{data}, {model.arch}"
variants: [{a: {}}, {b: {stem: dpn}}]
groups: {Made: {MNIST: mnist5k}, Natural: [digits]}
scales:
  other: {across: [{"deep, mu/4": {model.depth: 2}}, {"deeper, mu/4": {model.depth: 3}}]}
  fewer: {across: [{"digits, mu/4": {data: digits, model.arch: mu/4}}]}
  own: {across: [{"c": {model.depth: 2}}, {"d": {model.depth: 3}}], groups: {Depth: [c, d]}}
  none: {groups: {}}
"""


def test_groups_are_of_the_columns_at_hand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def planned(text=SWEEP, scale=None):
        (tmp_path / "x.yaml").write_text(text)
        return make_real(["x.yaml"], store=tmp_path, scale=scale)[0]

    whole, digits = planned(), ColumnGroup("Natural", {"digits": "digits"})
    assert whole.groups == (ColumnGroup("Made", {"mnist5k": "MNIST"}), digits)
    without = planned(SWEEP.replace("groups: {Made: {MNIST: mnist5k}, Natural: [digits]}\n", ""))
    assert [run.id for run in whole.runs()] == [run.id for run in without.runs()]
    assert Plan.from_tree(json.loads(whole.to_bytes())).groups == whole.groups  # in their order
    assert json.loads(without.to_bytes())["groups"] == []
    assert planned(scale="fewer").groups == (digits,)
    assert planned(scale="own").groups == (ColumnGroup("Depth", {"c": "c", "d": "d"}),)
    assert planned(scale="none").groups == ()
    other = planned(scale="other")
    assert other.groups == ()
    assert other.notes == ("groups have no columns at this scale",)
    excluded = SWEEP + "exclude: [{data: mnist5k}]\n"
    assert planned(excluded).groups == (digits,)


# --- Columns that map themselves ----------------------------------------------------------------


def test_38_columns_map_themselves_by_their_data(tmp_path):
    ours = " ".join(THEIRS.values()).split()
    headings = [heading for group in LAID_OUT["T3"].values() for heading in group]
    found, table = against_table_3(tmp_path)
    assert len(found) == 2 * 38
    for data, theirs in zip(ours, headings, strict=True):
        assert found["dpn", f"{data}, B/32"].column == theirs
        assert found["dpn", f"{data}, B/16"].column == f"{theirs} (B/16)"
    assert {beside.differs[:12] for beside in found.values()} == {"ours 800/200"}
    text = render_table(table, "md", show=("gain", "paper"), wide=True)
    grid = grids(text)[0]
    assert grid[5][:3] == ["DPN T3", "Caltech101: 87.7, +0.6", "CIFAR-100: 58.1, +4.4"]
    assert (grid[6][0], grid[6][1]) == ("direction", "same")
    assert grid[6][headings.index("Retinopathy") + 1] == "opposite"
    assert (grid[7][0], {*grid[7][1:-1]}) == ("in our interval", {"no"})


def test_a_column_maps_by_its_heading_too(tmp_path):
    def column_of(label, arch, data, table="T3", **mapped):
        return paper.published_figures(planted({label: (arch, data)}, table, **mapped), tmp_path)[
            "dpn", label
        ].column

    jft = "L/16 (JFT 1.1M steps then full finetune at 384)"
    assert column_of("L/16, 1.1M, 384", "L/16", "imagenet1k", "T2R") == jft
    assert column_of("1.1M, L/16", "L/16", "imagenet1k", "T4").startswith("L/16 (LiT 55k steps")
    for name in ("Flowers102", "vtab-natural/Flowers102"):
        by_heading = {"columns": {"flowers": name}}
        assert column_of("flowers, B/16", "B/16", "x", **by_heading) == "Flowers102 (B/16)"
        assert column_of("flowers, mu/4", "mu/4", "x", **by_heading) == "Flowers102"
    by_label = {"columns": {"flowers, B/16": "Flowers102"}}
    assert column_of("flowers, B/16", "B/16", "x", **by_label) == "Flowers102"
    wrong = "paper: columns: flowers: got 'Flowers' .* expected one of Caltech101"
    with pytest.raises(UserError, match=wrong):
        column_of("flowers, B/16", "B/16", "x", columns={"flowers": "Flowers"})
    with pytest.raises(UserError, match="no column of planted maps"):  # other data
        column_of("1.1M, 384, L/16", "L/16", "cifar10", "T2R")


@pytest.mark.whole
def test_a_rate_that_both_searched_is_no_difference(here, monkeypatch):
    regime = "VTAB-1k finetune from imagenet1k 2500 steps bs512"
    recipe = {"recipe": "quick", "data": "digits", "data.size": 32}
    monkeypatch.setitem(paper.RECIPES, regime, recipe)
    of_parents = {"recipe": "quick", "data": "mnist5k", "data.size": 32}
    monkeypatch.setitem(paper.RECIPES, paper.PRETRAINING, of_parents)
    monkeypatch.setitem(paper.DATA, "vtab-natural/DTD", "mnist5k->digits")
    Path("x.yaml").write_text("""\
base: {recipe: quick, data: digits, data.size: 32}
from: {recipe: quick, data: mnist5k, data.size: 32}
across: [{"DTD, B/16": {model.arch: B/16}}]
variants: [{a: {}}, {b: {stem: dpn}}]
paper: {table: T3, rows: {a: base, b: dpn}}
""")
    plan = make_real(["x.yaml"], store=here)[0]

    def differs(**chosen):
        cells = []
        for cell in plan.cells:
            cell = with_sections(cell, optim={**cell.spec.tree["optim"], "lr": 0.5})
            cells.append(replace(cell, specs=(cell.spec,), **chosen))
        found = paper.published_figures(replace(plan, cells=tuple(cells)), here)
        assert {beside.column for beside in found.values()} == {"DTD (B/16)"}
        return {beside.differs for beside in found.values()}

    assert differs() == {"optim.lr not as in recipe=quick data=digits data.size=32"}
    assert differs(chosen=(TuningWinner({"optim.lr": 0.5}, 1, 3, 0.9),)) == {""}
    assert differs(chosen=(TuningWinner({"optim.wd": 0.5}, 1, 3, 0.9),)) == differs()


def test_an_average_is_over_two_columns_whose_baseline_has_every_seed_or_is_none():
    """A sheet in which one data set was trained with fewer seeds than the others."""
    labels = ("cifar", "svhn", "pets")
    plan = make_plan(["base", "dpn"], labels, 5)
    results = {
        run: finished(0.7 + 0.01 * GAINS["pets, S/4"][seed % 3] * (cell.row == "dpn"))
        for cell in plan.cells
        for seed, run in cell.ids.items()
    }

    def without(*lacking: str) -> list:
        cells = tuple(
            replace(cell, ids={s: run for s, run in cell.ids.items() if s < 3})
            if cell.column in lacking
            else cell
            for cell in plan.cells
        )
        sheet = Imported(seeded=True, sources=())
        table = tabulate(replace(plan, cells=cells, design=sheet), results)
        return [block for block in table.blocks if block.kind == "average"]

    [average] = without("svhn")
    assert {line.columns for line in average.lines} == {("cifar", "pets")}
    assert re.findall(r"\d+", average.title) == ["2"]
    assert "svhn" in average.note
    assert without("svhn", "pets") == []
    [whole] = without()
    assert (re.findall(r"\d+", whole.title), whole.note) == (["3"], "")


def test_a_row_with_one_column_has_no_average():
    plan = make_plan(["base", "dpn", "swap"], ("cifar", "svhn"), 3)
    results = {
        run: finished(0.7 + 0.01 * GAINS["pets, S/4"][seed] * (cell.row != "base"))
        for cell in plan.cells
        for seed, run in cell.ids.items()
    }
    for lacking, averaged in ((["swap"], ["dpn"]), (["swap", "dpn"], [])):
        cells = tuple(c for c in plan.cells if not (c.row in lacking and c.column == "svhn"))
        table = tabulate(replace(plan, cells=cells), results)
        blocks = [block for block in table.blocks if block.kind == "average"]
        assert [line.label for block in blocks for line in block.lines] == averaged
        assert len(blocks) == bool(averaged)
