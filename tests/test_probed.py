"""Numbers of probes as metrics of tables, against their definitions. Through every reader of a
sweep: test_numbers.py."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest
from support.declared import declare
from support.plans import with_sections
from support.tables import finished, make_plan, notes_of, tabulate

from ablate.analysis.headline import table_headline
from ablate.analysis.scores import cell_scores
from ablate.planning.analysis_keys import is_metric
from ablate.report.formats import render_table
from ablate.run.metrics import TASKS
from ablate.run.metrics.probed import PROBE_METRICS, probe_numbers
from ablate.shared.errors import UserError

# --- The numbers by hand ------------------------------------------------------------------------


def gradients(*by_record):
    """A file of the probe: the norms of groups, a tuple for each recorded step."""
    groups = ["posemb", "embedding", "stem.norms", "blocks.0.attn", "blocks.0.mlp", "blocks.1.attn"]
    steps = np.arange(len(by_record)) * 10
    return {"groups": np.array(groups), "steps": steps, "norms": np.array(by_record, np.float32)}


def test_a_metrics_name_ends_with_a_word_as_titles_and_captions_take_it():
    metrics = {metric for task in TASKS.values() for metric in task.metrics}
    metrics |= {metric for of in PROBE_METRICS.values() for metric in of.metrics}
    assert [metric.name for metric in metrics if not re.search(r"\w\)?$", metric.name)] == []


def test_the_embeddings_gradient_is_over_the_mean_of_the_blocks_in_doublings():
    """Blocks of norms 5 = (3, 4) and 3; nothing else counts."""
    for embedding, expected in ((4.0, 0.0), (8.0, 1.0), (1.0, -2.0)):
        found = probe_numbers("gradnorm", gradients((99, embedding, 99, 3, 4, 3)), {})
        assert found == {"gradnorm:embedding": pytest.approx(expected)}


def test_it_is_of_the_mean_norms_of_the_last_tenth_of_the_steps():
    early = [(1, 1000, 1, 9, 9, 9)] * 18
    last = [(1, 2, 1, 3, 4, 3), (1, 6, 1, 3, 4, 3)]  # of 191 steps the last 19
    found = probe_numbers("gradnorm", gradients(*early, *last), {})["gradnorm:embedding"]
    assert found == pytest.approx(0.0)


def test_a_model_without_an_embedding_has_no_number_and_a_frozen_one_no_logarithm():
    whole = gradients((1, 0, 1, 3, 4, 3))
    assert probe_numbers("gradnorm", whole, {})["gradnorm:embedding"] == -math.inf
    mlp = {**whole, "groups": np.array(["layers.0.0", "layers.1.0", "head", *"xyz"])}
    assert probe_numbers("gradnorm", mlp, {}) == {}


def test_scales_are_means_over_places_of_a_patch_and_channels():
    scale = np.full((8, 8, 3), 2.0, np.float32)
    scale[2:6, 2:6] = 5.0
    scale[[0, 0, 7, 7], [0, 7, 0, 7], 0] = 6.0  # of one channel: with two of 2, 10 / 3
    spec = {"model": {"patch": 8}, "data": {"channels": 3}}
    found = probe_numbers("scales", {"stem.before.weight": scale.ravel()}, spec)
    expected = {"corners": 10 / 3, "centre": 5, "rest": 2, "corners/rest": 5 / 3}
    expected["centre/rest"] = 2.5
    assert found == {f"scales:{part}": pytest.approx(value) for part, value in expected.items()}
    assert probe_numbers("scales", {"norm.weight": np.ones(8)}, spec) == {}


def test_distances_are_means_over_heads_and_shots_over_draws():
    arrays = {"distance": np.array([[1.0, 2.0], [3.0, 6.0]], np.float32)}
    means = {"attention:mean": 3.0, "attention:1": 1.5, "attention:2": 4.5}
    assert probe_numbers("attention", arrays, {}) == means
    arrays = {"accuracy": np.array([[0.2, 0.4], [0.5, 0.6]]), "shots": np.array([1, 5])}
    means = {"fewshot:1": 0.3, "fewshot:5": 0.55}
    assert probe_numbers("fewshot", arrays, {}) == pytest.approx(means)
    assert probe_numbers("fewshot", None, {}) == probe_numbers("tokens", arrays, {}) == {}


def test_names():
    for name in ("attention:1", "attention:12", "attention:mean", "fewshot:25", "epochs_to:0.9"):
        assert is_metric(name)
    for name in ("0", "01", "²", "\u0663", ""):
        assert not is_metric(f"attention:{name}")
    assert not is_metric("fewshot:2")
    assert not is_metric("gradnorm")
    assert TASKS["fewshot"].find("gradnorm:embedding") is None  # it trains nothing
    assert {key for of in PROBE_METRICS.values() for key in of.names} < set(TASKS["classify"].names)


# --- Tables -------------------------------------------------------------------------------------


def ratio_table(by_row, metric="gradnorm:embedding", columns=("",), **analysis):
    """The table of planted ratios: row -> a value for each seed."""
    plan = make_plan(list(by_row), columns, metric=metric, **analysis)
    cells = tuple(with_sections(cell, probe=["gradnorm"]) for cell in plan.cells)

    def probes(run, probe):
        row, _, rest = run.partition("@")
        value = 2.0 ** by_row[row][int(rest.partition("#")[2])]
        return {**gradients((0, 5, 0, 3, 4, 5)), "norms": np.array([[0, 5 * value, 0, 3, 4, 5]])}

    results = {run.id: finished(0.9) for run in plan.runs()}
    return dataclasses.replace(plan, cells=cells), results, probes


def analysed(plan, **changes):
    return dataclasses.replace(plan, analysis=dataclasses.replace(plan.analysis, **changes))


PLANTED = {
    "base": [3.0, 3.1, 3.2],
    "up": [4.05, 4.1, 4.15],
    "down": [0.0, 0.15, 0.2],
    "alike": [3.1, 3.15, 3.2],
}


def test_what_has_no_better_direction_is_higher_or_lower():
    plan, results, probes = ratio_table(PLANTED, margin=0.4)
    table = tabulate(plan, results, probes=probes)
    verdicts = [entry.verdict for entry in table.entries]
    assert verdicts == [None, "higher", "lower", "same within 0.4"]
    values = [list(entry.values.values()) for entry in table.entries]
    assert values == [pytest.approx(row) for row in PLANTED.values()]
    sentence = re.sub(r"\[.*?\]", "[]", table_headline(table))
    assert sentence == (
        "On digits, against base, over 3 seeds: up is higher (+1.00 doublings []); down is lower "
        "(-2.98 doublings []); alike is the same within 0.4 doublings."
    )
    text = render_table(table, "md")
    assert "difference [95 % CI]" in text
    assert "difference from base in doublings, neither direction being better" in text
    [note] = notes_of(table, "metric")
    assert note.values["seeds"]
    assert note.values["test"]["on"] == "gradients of the last steps of training"
    assert note.text in render_table(table, "md", notes="full")
    assert "**" not in text.partition("| down |")[2]  # nothing is the best
    again = tabulate(analysed(plan, margin=0.05), results, probes=probes)
    assert again.entries[-1].verdict == "can't tell"  # nor no worse: which is worse?
    columns = ratio_table(PLANTED, columns=("S", "B"))
    said_of = table_headline(tabulate(*columns[:2], probes=columns[2]))
    assert "up is higher in S and B; down is lower in S and B" in said_of


def test_runs_that_do_not_measure_it_are_refused_with_the_word_that_does():
    plan, results, probes = ratio_table(PLANTED)
    bare = tuple(with_sections(cell, probe=["scales"] * (cell.row == "up")) for cell in plan.cells)
    declared = declare("mine", "--as", "it", "probe=[scales]", "seeds=3")
    lacking = dataclasses.replace(plan, cells=bare, declared=declared)
    with pytest.raises(UserError) as caught:
        lacking.metric  # noqa: B018
    assert str(caught.value) == (
        "analysis.metric: gradnorm:embedding: the runs of 'base' and 3 more rows do not measure "
        "gradnorm; the sweep with probe=[gradnorm,scales] trains runs that do: new ones, with ids "
        "of their own"
    )
    with pytest.raises(UserError, match="guessing has no gradnorm:embedding; leave chance out"):
        tabulate(analysed(plan, diverged="chance"), results, probes=probes)


def test_no_interval_is_taken_of_a_number_that_is_none():
    plan, results, probes = ratio_table({**PLANTED, "frozen": [-math.inf] * 3})
    with pytest.raises(UserError, match="gradnorm:embedding of 'frozen' is -inf in seed 0"):
        tabulate(plan, results, probes=probes)


def test_a_diverged_run_has_no_number():
    plan, results, probes = ratio_table(PLANTED)
    results["up@#1"] = {"status": "diverged", "step": 3}
    found = cell_scores(plan.cells[1], plan, results, (), None, probes).main
    assert (list(found.by_seed), found.never) == ([0, 2], ())
