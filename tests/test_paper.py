"""The published tables: as they are read, beside a sweep of ours, and what a sweep can tell."""

import csv
import dataclasses
import re
from collections import Counter

import numpy as np
import pytest
from conftest import REPOSITORY, records
from support.plans import with_sections
from support.tables import finished, make_plan, notes_of, tabulate

from ablate.analysis import paper, stats
from ablate.planning.cell import Column, Tune, TuningStage
from ablate.planning.expand import plan_from_words as make_real
from ablate.report.formats import render_table
from ablate.report.formats.parts import OTHER_SUBJECT
from ablate.report.power import ASSUMED, forecast_seeds, seed_spreads
from ablate.running.estimate import Costs
from ablate.shared.errors import UserError

# Table 1, left, of Dual PatchNorm: gains, read off by hand.
GAINS = {
    **{"S/32": 1.9, "Ti/16": 1.4, "B/32": 1.4, "S/16": 1.1, "S/16+": 0.5, "B/16": 0.7},
    **{"S/16 (DeiT)": 0.3, "B/16 (DeiT)": 0.2},
}


# --- As they are read ---------------------------------------------------------------------------


def test_the_published_gains_come_out():
    table = paper.tables()["T1L"]
    gains = {column: table.gain("dpn", column, "base") for column in table.columns}
    assert {column: gains[column] for column in GAINS} == pytest.approx(GAINS)
    assert len(gains) == 10
    tuned = [gain for column, gain in gains.items() if "384" in column]
    assert tuned == pytest.approx([1.0, 0.6])
    assert {table.gain("base", column, "base") for column in table.columns} == {None}
    assert paper.tables()["T6"].gain("pre", "B/32", "dpn") == -2.6  # printed as a gain
    assert paper.tables()["T6"].gain("pre", "B/32", "post") is None


def test_every_number_of_a_table_is_in_one_cell():
    with open(paper.FILE, newline="") as file:
        printed = Counter(number["table"] for number in csv.DictReader(file))
    assert {"T1L", "T1R", "T2L", "T6", "README-1", "README-2", "F10"} <= set(printed)
    assert {name: len(table.cells) for name, table in paper.tables().items()} == printed


def test_the_command_lists_them(shell):
    out = shell("list", "paper").out
    assert re.search(r"^  T1L +top1 of base, dpn: S/32, Ti/16", out, re.M)


# --- Beside a sweep -----------------------------------------------------------------------------


def real(name, tmp_path, *words, scale=None):
    return make_real([name, *words], store=tmp_path, scale=scale)[0]


def results_of(plan, gains, noise=0.02, seed=0):
    """70 % and the gain of each row, and a little noise."""
    draw = np.random.default_rng(seed)
    return {
        run.id: finished(0.7 + (gains.get(run.cell.row, 0) + draw.normal(0, noise)) / 100)
        for run in plan.runs()
    }


def test_at_paper_scale_values_are_subtracted(tmp_path):
    plan = real("figure1", tmp_path)
    found = paper.published_figures(plan, tmp_path)
    assert {beside.differs for beside in found.values()} == {""}  # archs map themselves
    assert {column for _, column in found} == {"S/16", "B/16", "B/32", "Ti/16", "S/32"}
    table = tabulate(plan, results_of(plan, {"Dual PatchNorm": 2.0}), paper=found)
    entry = next(e for e in table.entries if (e.row, e.column) == ("Dual PatchNorm", "S/16"))
    assert entry.against.value == pytest.approx(72.0 - 79.7, abs=0.1)
    assert entry.against.gain == pytest.approx(2.0 - 1.1, abs=0.1)
    assert entry.against.agreement is None
    assert "| 79.7 ± 0.20, +1.1 | -7." in render_table(table, "md", show=("gain", "paper"))
    facts = records(render_table(table, "tidy"))
    assert any(f["quantity"] == "paper.pm" and f["value"] == "0.2" for f in facts)


def test_another_recipe_is_not_subtracted(tmp_path):
    plan = real("table1", tmp_path, "optim.lr=0.002")
    found = paper.published_figures(plan, tmp_path)
    augreg = "not as in recipe=augreg train.examples=380506500"
    assert found["ViT", "S/16"].differs == f"optim.lr {augreg}"
    assert found["ViT", "DeiT-S/16"].column == "S/16 (DeiT)"
    assert found["ViT", "DeiT-S/16"].differs == "optim.lr not as in recipe=deit"
    plan = real("table6", tmp_path, "data.size=160", "eval.every=5")  # the latter is no part of it
    assert paper.published_figures(plan, tmp_path)["pre", "S/16"].differs == f"data.size {augreg}"
    plan = real("figure2", tmp_path, "train.examples=null")  # 92,700 steps
    assert (
        paper.published_figures(plan, tmp_path)["ViT", "S/16"].differs == f"train.examples {augreg}"
    )


def test_with_another_recipe_a_cell_says_whether_the_gains_agree(tmp_path):
    plan = real("table1", tmp_path, "optim.lr=0.002", "columns=S/16")
    found = paper.published_figures(plan, tmp_path)
    assert all(figure.same_subject for figure in found.values())

    def beside(results):
        table = tabulate(plan, results, paper=found)
        return table, next(e for e in table.entries if e.row == "Dual PatchNorm")

    for gain, word, inside in (
        (1.1, "same direction", True),
        (1.4, "same direction", False),
        (-1.0, "opposite direction", False),
        (0.0, "can't tell", False),
    ):
        results = results_of(plan, {"Dual PatchNorm": gain}, seed=2)
        table, entry = beside(results)
        against = entry.against
        assert (against.agreement, against.value, against.inside) == (word, None, inside)
        text = render_table(table, "md", show=("gain", "paper"))
        where = "in our interval" if inside else "outside our interval"
        assert f"| S/16: 79.7 ± 0.20, +1.1 | {word}, {where} |" in text
        facts = records(render_table(table, "tidy"))
        assert [f["value"] for f in facts if f["quantity"] == "paper.gain.inside"] == [str(+inside)]
        [why] = notes_of(table, "paper.not-subtracted")
        assert why.values["columns"] == ["S/16"]
        assert why.values["reason"].startswith("optim.lr ")
        assert why.text in text
    table, entry = beside(results_of(plan, {}, noise=10, seed=2))
    assert entry.gain.low < 1.1 < entry.gain.high > entry.gain.low + 5 * 1.1
    assert (entry.against.agreement, entry.against.inside) == ("can't tell", None)
    assert "| can't tell, our interval is too wide |" in render_table(table, "md", show=("paper",))
    assert "| too wide |" in render_table(table, "md", show=("paper",), wide=True)
    del results[plan.cells[0].ids[0]]
    table, _ = beside(results)
    assert {e.against.agreement for e in table.entries if e.against} == {None}  # unfinished


MINE = {"data": {"name": "cifar10"}, "model": {"arch": "S/4"}}
S_16 = {"arch": "S/16", "width": 384, "depth": 12, "heads": 6, "patch": 16, "mlp_ratio": 4.0}


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (MINE, False),
        ({**MINE, "model": S_16}, False),
        ({"data": {"name": "imagenet1k"}, "model": {**S_16, "arch": "S/8", "patch": 8}}, False),
        ({"data": {"name": "imagenet1k"}, "model": {**S_16, "depth": 1}}, False),
        ({"data": {"name": "imagenet1k"}, "model": S_16}, True),
    ],
)
def test_of_other_data_or_another_architecture_the_figure_stands_alone(tmp_path, other, same):
    rows = ["none", "dpn", "pre", "a", "b"]
    plan = make_plan(rows, ("S/4", "Ti/4"))
    data = {**plan.cells[0].spec.tree["data"], **other["data"]}
    plan = dataclasses.replace(
        plan,
        cells=tuple(with_sections(cell, **{**other, "data": data}) for cell in plan.cells),
        columns=(Column("S/4", {}, "S/16"), Column("Ti/4", {}, "S/16")),
        paper={"table": "T1L", "rows": {"none": "base", "dpn": "dpn"}},
    )
    recipes = paper.Recipes(tmp_path)
    assert recipes.have_subject(plan.cells[0], paper.tables()["T1L"], "S/16") is same
    if same:
        return
    found = paper.published_figures(plan, REPOSITORY)
    table = tabulate(plan, results_of(plan, {"dpn": -1.0}, seed=2), paper=found)
    [entry] = [e for e in table.entries if (e.row, e.column) == ("dpn", "S/4")]
    assert entry.verdict == "hurts"
    assert (entry.against.agreement, entry.against.inside) == (None, None)
    assert (entry.against.value, entry.against.gain) == (None, None)
    facts = records(render_table(table, "tidy"))
    assert {f["value"] for f in facts if f["quantity"] == "paper.same_subject"} == {"0"}
    assert not [f for f in facts if f["quantity"] == "paper.agreement" and f["text"]]
    line = f"| S/16: 79.7 ± 0.20, +1.1 | {OTHER_SUBJECT} |"
    assert line in render_table(table, "md", show=("gain", "paper"))
    assert f"| {OTHER_SUBJECT} |" in render_table(table, "md", show=("paper",), wide=True)


def test_ranks_of_other_data_are_not_compared(tmp_path):
    plan = real("table6", tmp_path, scale="cifar")
    found = paper.published_figures(plan, tmp_path)
    table = tabulate(plan, results_of(plan, {"pre": -3, "post": -1}), paper=found)
    assert {column.ranks for column in table.columns} == {None}


@pytest.mark.whole
def test_the_architectures_of_the_papers_are_known_by_our_names(tmp_path):
    for name in ("table1", "dtn_table1", "dtn_table2", "table5", "table7", "figure1"):
        found = paper.published_figures(real(name, tmp_path), tmp_path)
        assert {figure.same_subject for figure in found.values()} == {True}, name
    found = paper.published_figures(real("bnffn_depth", tmp_path), tmp_path)
    assert {figure.same_subject for figure in found.values()} == {True}


def test_rank_agreement_is_kendalls_tau_over_five_rows_or_more(tmp_path):
    plan = real("table6", tmp_path)
    found = paper.published_figures(plan, tmp_path)
    results = results_of(plan, {"pre": -3, "post": -1, "rmsnorm": -2})
    table = tabulate(plan, results, paper=found)
    column = next(c for c in table.columns if c.label == "B/32")
    rows = ("pre", "post", "post_posemb", "only_learnable", "rmsnorm", "no_learnable")
    ours = [e.gain.mean for e in column.entries if e.row in rows]
    theirs = [-2.6, -0.5, -0.4, -1.2, -0.4, -0.2]
    expected = stats.kendall(ours, theirs)
    assert column.ranks == expected
    assert (
        f"Kendall's tau {expected.tau:+.2f} (exact p = {expected.p:.2g}, 6 rows)"
        in render_table(table, "md")
    )
    few = {key: beside for key, beside in found.items() if key[0] in rows[:4]}
    table = tabulate(plan, results_of(plan, {}), paper=few)
    assert {column.ranks for column in table.columns} == {None}


def test_the_sweeps_of_published_tables_map_what_they_can(tmp_path):
    for name, cells in (("dtn_table1", 6), ("dtn_table2", 16)):
        found = paper.published_figures(real(name, tmp_path), tmp_path)
        assert len(found) == cells, name
        assert {beside.differs for beside in found.values()} == {""}, name


@pytest.mark.parametrize(
    ("name", "words", "differing"),
    [
        ("figure1", "norm=rmsnorm", "norm.name, norm.affine"),
        ("figure1", "model.act=swiglu", "model.act"),
        ("table6", "model.qk_norm=true", "model.qk_norm"),
        ("dtn_table2", "model.cls=exclude", "model.cls, model.cls_at"),
        ("figure1", "model.depth=6", "model.depth"),
        (
            "table5",
            "from.train.examples=null from.train.epochs=10",
            "parents: train.examples",
        ),
    ],
)
def test_of_another_model_or_other_parents_nothing_is_subtracted(tmp_path, name, words, differing):
    """Words that change the model of every row, so that gains are over another baseline."""
    found = paper.published_figures(real(name, tmp_path, *words.split()), tmp_path)
    assert {beside.differs.partition(" not as in ")[0] for beside in found.values()} == {differing}


@pytest.mark.parametrize("scale", [None, "smoke"])
def test_table_7_has_its_three_pairs(tmp_path, scale):
    """As printed: B/32 first, B/16 behind it; at smoke scale B/32's stand beside."""
    found = paper.published_figures(real("table7", tmp_path, scale=scale), tmp_path)
    pairs = [(41.4, 47.5), (48.3, 50.7), (52.5, 56.0), (45.6, 51.8), (58.7, 63.0), (60.8, 66.3)]
    columns = list(dict.fromkeys(column for _, column in found))
    theirs = [tuple(found[r, c].value for r in ("baseline", "Dual PatchNorm")) for c in columns]
    assert theirs == (pairs if scale is None else pairs[:3])


def test_table_7_has_a_rate_that_falls(tmp_path):
    """SUN397 has 76,128 training images: 18 steps an epoch, fewer than any warm-up in steps."""
    for cell in real("table7", tmp_path).cells:
        optim, train = cell.spec.tree["optim"], cell.spec.tree["train"]
        epoch = 76_128 // train["batch"]
        warmup = optim["warmup_steps"] or optim["warmup_epochs"] * epoch
        assert warmup <= train["epochs"] * epoch / 5


def test_a_row_of_another_size_is_another_architecture(tmp_path):
    (tmp_path / "deep.yaml").write_text("""\
base: {recipe: augreg, data: imagenet1k, model.arch: S/16, train.examples: 380506500}
variants: [{ViT: {}}, {deep: {stem: dpn, model.depth: 13}}]
paper: {table: T1L, rows: {ViT: base, deep: dpn}, columns: {"": S/16}}
""")
    found = paper.published_figures(real(str(tmp_path / "deep.yaml"), tmp_path), tmp_path)
    assert {row: beside.differs for (row, _), beside in found.items()} == {
        "ViT": "",
        "deep": "another architecture",
    }


def test_draws_of_one_parent_are_measured_once(tmp_path):
    """Each seed would measure the same three draws."""
    plan, _ = make_real(["table1_fewshot"], store=tmp_path, scale="once", allow_missing=True)
    assert plan.seeds == (0,)


def test_what_is_quoted_as_about_says_so(tmp_path):
    found = paper.published_figures(real("bnffn_depth", tmp_path), tmp_path)
    assert {key: (theirs.printed, theirs.gain) for key, theirs in found.items()} == {
        ("ViT", "lr=0.003 · depth=3"): ("about 91", None),
        ("ViTBNFFN", "lr=0.003 · depth=3"): ("about 92, +1.0", 1.0),
        ("ViT", "lr=0.005 · depth=3"): ("about 78", None),
        ("ViTBNFFN", "lr=0.005 · depth=3"): ("about 90, +12.0", 12.0),
    }
    assert all("no values are subtracted" in theirs.differs for theirs in found.values())


def test_nothing_to_stand_beside_is_said(tmp_path):
    plan = real("figure1", tmp_path, scale="smoke")
    alone = tuple(Column(column.label, {}, None) for column in plan.columns)
    for of, said in (
        (make_plan(["a", "b"]), "names no published table"),
        # Which has curves only: it is offered none.
        (real("dnn_bn", tmp_path), "dnn_bn names no published table"),
        (
            dataclasses.replace(plan, columns=alone),
            r"no column of figure1@smoke .* of T1L .*; give a column",
        ),
        (dataclasses.replace(plan, paper={**plan.paper, "table": "T9"}), "paper: "),
        (dataclasses.replace(plan, paper={**plan.paper, "rows": {"pre/pre": "bass"}}), "paper: "),
    ):
        with pytest.raises(UserError, match=said):
            paper.published_figures(of, tmp_path)


# --- What a sweep can tell ----------------------------------------------------------------------


def cost_of(plan, seconds=36.0):
    each = {(cell.row, cell.column): seconds for cell in plan.cells}
    rows = Counter(cell.column for cell in plan.cells)
    a_seed = {column: seconds and seconds * n for column, n in rows.items()}
    return Costs({}, each, "", 0.0, seed_s=a_seed)


def forecast_lines(plan, gain, assumed, costs, results):
    spreads = seed_spreads(plan, assumed, results, lambda run: [])
    return list(forecast_seeds(plan, gain, costs, spreads).lines())


def test_the_forecast_is_that_of_the_tables_own_function():
    plan = make_plan(["base", "a", "b", "c"], seeds=3)
    lines = forecast_lines(plan, 0.5, 0.4, cost_of(plan), {})
    found = stats.detect(0.5, 3, stats.Spread(0.4), stats.Method(contrasts=3, variants=3))
    assert lines[0].startswith("to detect a gain of 0.5 points over base with 80 % power")
    assert lines[1] == "  spread 0.4 points between seeds, given by --spread"
    n = found.seeds.expected
    assert lines[2] == f"    needs {n} seeds a variant: {0.04 * n:.2g} device-hours"
    assert len(lines) == 5  # nothing to sum up; the last says how tables judge
    power, smallest = found.power.expected, found.smallest.expected
    assert f"with the 3 seeds planned: power {100 * power:.0f} %" in lines[3]
    assert f"detects gains from {smallest:.2g} points" in lines[3]


def test_contrasts_between_rows_share_alpha_and_add_no_rows():
    """Their rows are in the column already: the spread is estimated from no more of them."""
    plan = make_plan(["base", "a", "b", "c"], seeds=3).with_contrasts(["a - b", "b - c"], "x")
    spreads = seed_spreads(plan, 0.4, {}, lambda run: [])
    (column,) = forecast_seeds(plan, 0.5, cost_of(plan), spreads).columns
    method = stats.Method(contrasts=5, variants=3)
    assert column.power_forecast == stats.detect(0.5, 3, stats.Spread(0.4), method)
    more_rows = stats.detect(0.5, 3, stats.Spread(0.4), stats.Method(contrasts=5, variants=5))
    assert more_rows.smallest.expected < 0.97 * column.power_forecast.smallest.expected


def test_a_measured_spread_is_a_range_and_below_8_df_barely_known():
    for seeds, known in ((3, False), (6, True)):
        plan = make_plan(["base", "a", "b"], ("S/4", "Ti/4"), seeds=seeds)
        results = results_of(plan, {}, noise=0.4)
        y = np.array(
            [[100 * results[run]["test"]["top1"] for run in c.ids.values()] for c in plan.cells[:3]]
        )
        spread = stats.residual_spread(y)
        lines = forecast_lines(plan, 1.0, None, cost_of(plan), results)
        said = f"S/4: spread {spread.sd:.2g} points between seeds [{spread.interval.low:.2g}, "
        assert said in lines[1]
        assert f"{2 * (seeds - 1)} df, {3 * seeds} finished runs" in lines[1]
        assert ("barely known" in lines[1]) is not known
        assert re.search(r"needs \d+ \(\d+ to >?\d+\) seeds", lines[2])
        needs = [int(n) for line in lines for n in re.findall(r"needs (\d+)", line)]
        total = 6 * 36 / 3600 * max(needs)  # six cells of 36 s a run, each with as many seeds
        assert lines[-2] == f"  all columns with {max(needs)} seeds: {total:.2g} device-hours"
        assert [line for line in lines if line.startswith("  Ti/4: ")]
        assert len(needs) == 2


def test_where_seeds_share_searches_searches_are_forecast_with_all_their_runs():
    tune = Tune((TuningStage({"optim.lr": {"log": (0.1, 1.0)}}, 5),), repeats=3)
    plan = dataclasses.replace(make_plan(["base", "a", "b"], ("S", "B"), seeds=7), tune=tune)
    lines = forecast_lines(plan, 1.0, None, cost_of(plan), results_of(plan, {}, noise=0.4))
    assert "3 searches" in lines[3]
    assert not [line for line in lines if "seed" in line]
    assert "21 finished" in lines[1]
    needed = max(int(n) for line in lines for n in re.findall(r"needs (\d+)", line))
    total = needed * 7 / 3 * 6 * 36 / 3600  # of six cells, a search has 7 / 3 runs of 36 s
    assert lines[-1].endswith(f"{needed} searches: {total:.2g} device-hours")


def test_without_runs_the_spread_is_an_assumption_that_is_said():
    plan = make_plan(["base", "a"], seeds=1)
    lines = forecast_lines(plan, 1.0, None, cost_of(plan, None), {})
    for word in (f"spread {ASSUMED:g} points between seeds", "a guess", "--spread"):
        assert word in lines[1]
    assert "the cost is not known yet" in lines[2]
    assert lines[3].startswith("    with 1 seed: no verdicts")
