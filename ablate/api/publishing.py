"""Figures and the report of a sweep: what `ablate plot` and `ablate report` write.

Used by `ablate plot` (cli/looking.py), by `ablate report` (cli/publishing.py), and by the same
methods of Python (api/nouns.py). A new kind of figure is made in report/plot/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ablate.planning import Plan
    from ablate.report import FigureForm
    from ablate.store import History, Store


def draw_sweep(
    plan: Plan, store: Store, kind: str, format: str, form: FigureForm
) -> tuple[bytes, str, list[str]]:
    """Draw a figure of a sweep. Return its file, the text that it leaves to the caption of a paper,
    and a line for each run whose result is withheld.

    `kind`: one of FIGURE_KINDS; those that give intervals are a look, which is recorded. Raises
    UserError for an unknown kind or format, for a row that the sweep lacks, and where the figure's
    data is missing.
    """
    from ablate.analysis import (
        Evidence,
        RunFiles,
        make_table,
        read_verdicts,
        with_own_metrics,
        withheld_notes,
    )
    from ablate.report import FIGURE_KINDS, draw_figure
    from ablate.shared import unknown_value

    if kind not in FIGURE_KINDS:
        raise unknown_value("plot", kind, FIGURE_KINDS)
    form = form.of_sweep(plan, kind)
    results, withheld = store.results(plan.runs(), curves=True, probes=True, predictions=True)
    if FIGURE_KINDS[kind].gives_intervals:
        table = read_verdicts(plan, store, results, withheld=withheld).table
    else:
        own_results = with_own_metrics(plan, results, store)
        files = RunFiles(store.metrics, store.probe, store.predictions)
        table = make_table(Evidence.collect(plan, own_results, files, withheld=withheld))
    figure = draw_figure(plan, table, kind, store.rundir, format, form, store.command)
    lines = [note.text for note in withheld_notes(plan, withheld)]
    return figure.content, figure.caption, lines


def render_report(plan: Plan, store: Store, histories: Mapping[str, History]) -> str:
    """Render a sweep as one HTML page: verdicts, gains, figures, every run and its provenance. It
    is a look, which is recorded."""
    from ablate.analysis import read_verdicts
    from ablate.report import PAGE_FIGURES, draw_figures, render_page
    from ablate.store import load_records

    runs = load_records(plan, store, histories, probes=True)
    reading = read_verdicts(
        plan,
        store,
        {record.run.id: record.result for record in runs},
        withheld={r.run.id: f"{r.label}: {r.withheld}" for r in runs if r.withheld},
    )
    figures = draw_figures(plan, reading.table, store.rundir, PAGE_FIGURES)
    return render_page(plan, reading.table, runs, reading.looks, figures)
