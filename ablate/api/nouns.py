"""The nouns of `import ablate`: a sweep, its runs, its table, the store of all, and its design."""

from __future__ import annotations

import html
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.analysis import Table as GainTable
from ablate.analysis import read_verdicts
from ablate.api import training
from ablate.api.publishing import draw_sweep
from ablate.audit import Bundle, open_sweep
from ablate.planning import Design as Design
from ablate.planning import Plan, Recall, plan_declared, plan_from_words
from ablate.report import count_text, render_table
from ablate.shared import UserError
from ablate.store import History, Ledger, RunRecord, load_records
from ablate.store import Store as OpenStore

if TYPE_CHECKING:
    import pandas as pd

    from ablate.report import FigureForm

Place = str | os.PathLike[str] | None


class Store:
    """A folder of runs, or a bundle that `ablate export` wrote; None is $ABLATE_STORE or ./runs."""

    def __init__(self, path: Place = None) -> None:
        self.path = Path(path or os.environ.get("ABLATE_STORE", "runs"))

    def __repr__(self) -> str:
        return f"<ablate.Store {str(self.path)!r}>"

    @property
    def sweeps(self) -> list[str]:
        """The names of the driven sweeps, the last first."""
        from ablate.store import sweep_names

        if (bundle := Bundle(self.path)).is_one:
            return [bundle.read_sealed()[0].name]
        store = OpenStore(self.path)
        with Ledger.reading(store) as ledger:
            return sweep_names(store, ledger) if ledger.sweeps() else []

    def sweep(self, name: str | None = None) -> Sweep:
        """Return a driven sweep, the last for None. Raises UserError where there is none of this
        name, Failure where its plan is not whole."""
        plan, store, _ = open_sweep(self.path, name)
        sweep = Sweep.__new__(Sweep)
        sweep.plan, sweep._store = plan, store
        return sweep

    def add_runs(
        self,
        frame: pd.DataFrame,
        name: str,
        row: str,
        metrics: str | Sequence[str],
        *,
        column: str | None = None,
        seed: str | None = None,
        baseline: str | None = None,
        predictions: str | None = None,
    ) -> Sweep:
        """Import the runs of a frame, one a row, that were trained elsewhere, as `ablate import`
        does, and return them as a sweep. `row`, `column`, `seed`, `predictions` name columns;
        `metrics`: "acc:more:%", the first is the table's.

        Raises UserError for a mistake in the frame, and for a number that an earlier call had
        otherwise; Failure where another process drives the store.
        """
        from ablate.audit import SheetDeclaration, import_under_lock, read_frame

        keys = [metrics] if isinstance(metrics, str) else list(metrics)
        declaration = SheetDeclaration(name, row, keys, column, seed, baseline, predictions)
        import_under_lock(OpenStore(self.path), read_frame(frame), declaration)
        return self.sweep(name)


class Sweep:
    """A sweep: `Sweep("stem=none,dpn", seeds=5)`, `Sweep("figure1", scale="digits")`.

    `words` are those of `ablate sweep`, each a text that is read as there. `keys` are values, which
    are taken as they are: `train={"epochs": 3}` is `train.epochs=3`, and the tuple in
    `stem=("none", "dpn")` has several values, while a list is one. `changes`: of a design,
    `{"dpn": {"stem": "dpn"}, ...}`. The options are those of the command. Raises UserError for
    every mistake in them, one line.
    """

    def __init__(
        self,
        *words: str,
        store: Place = None,
        scale: str | None = None,
        name: str | None = None,
        across: Collection[str] = (),
        each: bool = False,
        changes: Mapping[str, Mapping[str, Any]] | None = None,
        design: str | None = None,
        until: int | None = None,
        margin: float | None = None,
        **keys: Any,
    ) -> None:
        self._store = OpenStore(Store(store).path)
        options: dict[str, Any] = {"scale": scale, "name": name, "across": across, "each": each}
        options |= {"change": changes or {}, "design": design, "until": until, "margin": margin}
        line = training.recall_declared(words, options, self._store, keys)

        def declare_plan(recall: Recall | None) -> tuple[Plan, dict[str, Any]]:
            root = self._store.root
            if line is not None:
                return plan_declared(line, store=root, recall=recall)
            return plan_from_words(words, store=root, recall=recall, settings=keys, **options)

        self._declare = declare_plan
        self.plan: Plan = declare_plan(training.make_recall(self._store))[0]

    def __repr__(self) -> str:
        return f"<ablate.Sweep {self.name!r}: {len(self.plan.rows)} rows, {self.plan.seeds_said}>"

    def _repr_html_(self) -> str:
        """Return a grid of rows and columns, and the states of their runs."""
        states = self.status().apply(_state_words, axis="columns").unstack("column")
        grid = states.loc[
            [row.label for row in self.plan.rows], [column.label for column in self.plan.columns]
        ]
        grid.columns = [column.heading or "runs" for column in self.plan.columns]
        return f"<p>{html.escape(repr(self))}</p>{grid.to_html(na_rep='')}"

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def design(self) -> Design:
        """The design of the sweep: the seeds of its cells, and when gains are judged."""
        return self.plan.design

    def train(self, retry: Sequence[str] = (), *, replace: bool = False) -> Sweep:
        """Train the missing runs, as `ablate sweep --yes` does, and return the sweep as it is then.

        Prints progress. Raises Failure where runs are left that can't be trained, KeyboardInterrupt
        where it was stopped: the same call goes on.
        """
        from ablate.planning import read_logger_words
        from ablate.report import progress_view
        from ablate.running import Observers, await_disk_room

        if not hasattr(self, "_declare"):
            raise UserError(
                f"{self.name}: was opened by its name; give Sweep the words to train it"
            )
        training.check_retry(retry)
        start = training.Start(self._declare, self._store, replace)
        await_disk_room(self._store, progress_view)
        with Observers(read_logger_words([]), self._store.root, self.name, print) as observers:
            outcome = start.train(observers, retry, _accept, print)
        if outcome.signal is not None:
            raise KeyboardInterrupt
        training.check_outcome(outcome, self._store)
        self.plan = outcome.plan
        return self

    def table(self, **analysis: Any) -> Table:
        """Read the table, which is a look, as `ablate table` does. `analysis`: keys of the analysis
        that change for this table (`margin=1.0`)."""
        from ablate.planning import change_analysis

        plan, store, events = self._opened_look()
        plan = replace(plan, analysis=change_analysis(plan.analysis, analysis)).with_own()
        if isinstance(store, Bundle):
            return Table(read_verdicts(plan, store, store.recompute(plan, events)).table)
        results, withheld = store.results(plan.runs(), curves=True, probes=True, predictions=True)
        return Table(read_verdicts(plan, store, results, withheld=withheld).table)

    def status(self) -> pd.DataFrame:
        """Return the number of runs in each state (planned, started, finished, ...), by row and
        column."""
        import pandas as pd

        if isinstance(self._store, Bundle):  # which has no ledger
            statuses = {record.run.id: record.status for record in self._records()[2]}
        else:
            states, _ = training.recorded_states(self.plan, self._store)
            statuses = {run: state.status for run, state in states.items()}
        counts: dict[tuple[str, str], Counter[str]] = {}
        for cell in self.plan.cells:
            runs = [cell.ids[seed] for seed in self.plan.planned(cell) if seed in cell.ids]
            counts[cell.row, cell.column] = Counter(statuses.get(run, "planned") for run in runs)
        frame = pd.DataFrame(counts.values(), index=pd.MultiIndex.from_tuples(counts))
        return frame.rename_axis(["row", "column"]).fillna(0).astype(int)

    def plot(self, kind: str = "gain", **form: Any) -> Figure:
        """Draw a figure, as `ablate plot` does: a notebook shows it. `kind`: one of
        `ablate list plots`; `form`: fields of `FigureForm`, such as style="paper".

        Figures with intervals are a look. Raises UserError where the data of the figure is missing.
        """
        from ablate.report import FigureForm

        plan, store, _ = self._opened_look()
        _refuse_bundle(store)
        return Figure(plan, store, kind, FigureForm(**form))

    def report(self, path: Place = None) -> Path:
        """Write the sweep as one HTML page, as `ablate report` does, and return its path; None is
        NAME.html. It is a look."""
        from ablate.api.publishing import render_report
        from ablate.planning import output_name
        from ablate.shared import write_whole

        plan, store, histories = self._opened_look()
        _refuse_bundle(store)
        page = Path(path or f"{output_name(plan.name)}.html")
        write_whole(page, render_report(plan, store, histories).encode())
        return page

    def runs(self) -> list[Run]:
        """Return every run that is reported, in the plan's order."""
        return [_run(record) for record in self._records()[2] if record.run.trial is None]

    def to_pandas(self, *, curves: bool = False, trials: bool = False) -> pd.DataFrame:
        """Return the runs as a tidy frame; with `curves` what was measured while they ran.

        Runs that are reported, a row each: `sweep`, `row`, `column`, `seed`, `id`,
        `family`; every key that varies (`stem`, `block.attn`, what was tuned, ...) as the
        run had it; `status` (finished, diverged, failed, planned, ...); the metrics of its
        task on the test set (of classification `top1` and `top5`, fractions, top5 from 10
        classes, and `loss`, nats), `test_n` (images), the same of each set of `eval.also`
        (`top1@dark`), and so the metric of your own that its table is of (`mymetrics:ece`);
        the numbers of its probes (`gradnorm:embedding`, ...: `ablate list metrics`); `step`
        (optimiser steps), `train_loss` (of the last epoch), `collapsed` (bool), `seconds`
        (of training), `device`; `parameters` and `multiply_adds` (of an image). What a run
        has not is missing. Where settings were tuned, `search` is the one whose winner the
        run has; with `trials` the trainings of searches come first: numbered by `trial`,
        with the validation `score` that they were judged by, and without test scores.

        Curves, a row an evaluation of a run: `sweep`, `row`, `column`, `seed`, `id`,
        `step`, `epoch`, and what it measured then: `lr`, `train_loss`, the metrics of the
        task (`val_top1`, ...) and `val_n` (images).

        Raises UserError where the store has no such sweep, Failure where its plan is not
        whole.
        """
        from ablate.report import curves_frame, measured_records, runs_frame

        plan, store, records = self._records()
        measured = measured_records(plan, store, records)
        return (curves_frame if curves else runs_frame)(plan, measured, trials)

    def _opened_look(self) -> tuple[Plan, OpenStore, Mapping[str, History]]:
        """Open the sweep for a look, without the seeds that were skipped."""
        from ablate.store import without_skipped

        plan, store, histories = open_sweep(self._store.root, self.name)
        if not isinstance(store, Bundle):
            with Ledger.reading(store) as ledger:
                plan = without_skipped(plan, ledger)
        return plan, store, histories

    def _records(self) -> tuple[Plan, OpenStore, list[RunRecord]]:
        plan, store, events = open_sweep(self._store.root, self.name)
        return plan, store, load_records(plan, store, events, probes=True)


def _refuse_bundle(store: OpenStore) -> None:
    """Raise UserError for a bundle, whose numbers `table` alone recomputes."""
    if isinstance(store, Bundle):
        raise UserError(
            f"{store.root}: is a bundle, which has its figures in {store.root / 'figures'}; "
            f"`plot` and `report` need the store"
        )


def _state_words(counts: pd.Series[int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in counts.items() if number)


def _accept(forecast: training.SweepCost) -> None:
    for warning in forecast.warnings:
        print(f"warning: {warning}")


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A run, as the plans, the ledger and its folder describe it."""

    id: str
    label: str  # ROW@COLUMN#SEED, as the commands take it
    row: str
    column: str
    seed: int
    status: str  # finished, diverged, failed, planned, ...
    metrics: Mapping[str, float]  # of its task on the test set; {} where it has no result
    config: Mapping[str, Any]  # the whole configuration
    folder: Path

    def __repr__(self) -> str:
        return f"<ablate.Run {self.label}: {self.status}>"


def _run(record: RunRecord) -> Run:
    run, test = record.run, dict(record.result.get("test") or {})
    place = run.cell.row, run.cell.column, run.seed
    tree, folder = run.cell.spec.tree, record.folder.path
    return Run(run.id, record.label, *place, record.status, test, tree, folder)


class Figure:
    """A figure of a sweep: a notebook shows it, `save` writes it."""

    def __init__(self, plan: Plan, store: OpenStore, kind: str, form: FigureForm) -> None:
        self._source = plan, store, kind
        self._form = form
        self._svg = self._draw("svg")

    def __repr__(self) -> str:
        plan, _, kind = self._source
        return f"<ablate.Figure {kind} of {plan.name!r}>"

    def _repr_svg_(self) -> str:
        return self._svg.decode()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the figure as its file's ending says: .svg, .pdf or .png. Raises UserError for
        another ending."""
        from ablate.report import FIGURE_FORMATS
        from ablate.shared import unknown_value, write_whole

        file = Path(path)
        format = file.suffix.removeprefix(".").lower()
        if format not in FIGURE_FORMATS:
            expected = "a file that ends in one of"
            raise unknown_value(str(file), format, FIGURE_FORMATS, expected)
        write_whole(file, self._draw(format))

    def _draw(self, format: str) -> bytes:
        content, *_ = draw_sweep(*self._source, format, self._form)
        return content


class Table:
    """A table of gains with intervals and verdicts. `data`: every number of it."""

    def __init__(self, data: GainTable) -> None:
        self.data = data

    def __repr__(self) -> str:
        size = f"{len(self.data.rows)} rows, {count_text(len(self.data.columns), 'column')}"
        unfinished = "" if self.data.complete else ", unfinished"
        return f"<ablate.Table {self.data.sweep!r}: {size}{unfinished}>"

    def __str__(self) -> str:
        return self.render("md")

    def _repr_html_(self) -> str:
        return self.render("html")

    def render(self, format: str = "md", **options: Any) -> str:
        """Set it in a format: md, latex, html, csv, tidy or json. `options`: see `render_table`."""
        return str(render_table(self.data, format, **options))

    @property
    def verdicts(self) -> dict[tuple[str, str], str]:
        """(row, column) -> verdict, where one is given; (change, column) of a design's changes."""
        return {(e.row, e.column): e.verdict for e in self.data.contrasts if e.verdict is not None}

    def to_pandas(self) -> pd.DataFrame:
        """A row for each row and column: `column`, `row`, `n`, `mean`, `mean_low`, `mean_high` (of
        the metric), `gain`, `gain_low`, `gain_high`, `gain_sd`, `gain_df`, `verdict`; in the
        metric's printed unit. A gain's interval is t(gain_df) gain_sd / sqrt(n) wide to each side,
        n being that of the gain, at alpha over the contrasts of its family.
        """
        import pandas as pd

        return pd.DataFrame(
            {
                **{"column": e.column, "row": e.row, "n": e.accuracy.n if e.accuracy else 0},
                **_interval("mean", e.accuracy),
                **_interval("gain", e.gain),
                **{f"gain_{part}": getattr(e.gain, part, None) for part in ("sd", "df")},
                "verdict": e.verdict,
            }
            for e in self.data.entries
        )


def _interval(name: str, estimate: Any) -> dict[str, float | None]:
    """Return a mean and its interval under three names."""
    parts = {name: "mean", f"{name}_low": "low", f"{name}_high": "high"}
    return {key: getattr(estimate, part, None) for key, part in parts.items()}
