"""The nouns of `import ablate`: a sweep, its runs, its table, the store of all, and its design.

Used by Python code, through ablate/__init__.py; no command uses it. A new noun also needs its name
in `__all__` there and in the table of docs/python.md, which tests/test_api.py compares.
"""

from __future__ import annotations

import functools
import html
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.analysis import read_verdicts
from ablate.api import training
from ablate.api.errors import explained, in_python, stopped
from ablate.api.forecast import Design, Forecast, html_grid
from ablate.api.publishing import draw_sweep
from ablate.api.recall import StoreRecall
from ablate.api.tables import Table
from ablate.audit import Bundle, open_sweep
from ablate.planning import Declared, Plan, Recall, plan_declared, plan_from_words
from ablate.shared import Failure, UserError, count_text
from ablate.store import History, Ledger, RunRecord, load_records
from ablate.store import Store as OpenStore

if TYPE_CHECKING:
    import pandas as pd

    from ablate.report import FigureForm

Place = str | os.PathLike[str] | None


class Store:
    """A folder of runs, or a bundle that `ablate export` wrote; None is $ABLATE_STORE or ./runs."""

    @explained
    def __init__(self, path: Place = None) -> None:
        self.path = Path(path or OpenStore.default_root())

    def __repr__(self) -> str:
        return f"<ablate.Store {str(self.path)!r}>"

    def _repr_html_(self) -> str:
        """Return a list of the sweeps, with the states of their runs."""
        heading = f"<p>store <b>{html.escape(str(self.path))}</b></p>"
        try:
            names = self.sweeps
        except (Failure, UserError) as error:
            return f"{heading}<p>{html.escape(str(error))}</p>"
        headings = ["sweep", "rows", "columns", "seeds", "runs"]
        return heading + html_grid(headings, map(self._sweep_cells, names))

    def _sweep_cells(self, name: str) -> list[object]:
        try:
            sweep = self.sweep(name)
            plan, states = sweep._plan, _state_words(sweep.status().sum())
        except (Failure, UserError) as error:
            return [name, "", "", "", str(error)]
        return [name, len(plan.rows), len(plan.columns), len(plan.seeds), states]

    @property
    @explained
    def sweeps(self) -> list[str]:
        """The names of the driven sweeps, the last first."""
        from ablate.store import sweep_names

        if (bundle := Bundle(self.path)).is_bundle:
            return [bundle.read_sealed()[0].name]
        store = OpenStore(self.path)
        with Ledger.reading(store) as ledger:
            return sweep_names(store, ledger) if ledger.sweeps() else []

    @explained
    def sweep(self, name: str | None = None) -> Sweep:
        """Return a driven sweep, the last for None. Raises UserError where there is none of this
        name, Failure where its plan is not whole."""
        plan, store, _ = open_sweep(self.path, name)
        sweep = Sweep.__new__(Sweep)
        sweep._plan, sweep._store = plan, store
        return sweep

    @explained
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
        target: float | None = None,
        predictions: str | None = None,
        ignore: Sequence[str] = (),
    ) -> Sweep:
        """Import the runs of a frame, one a row, that were trained elsewhere, as `ablate import`
        does, and return them as a sweep. `row`, `column`, `seed`, `predictions` name columns;
        `metrics`: "acc:more:%", the first is the table's; `target`: a number that means are judged
        against, instead of a baseline; `ignore`: columns that no note names.

        Raises UserError for a mistake in the frame, and for a number that an earlier call had
        otherwise; Failure where another process drives the store.
        """
        from ablate.audit import SheetDeclaration, import_under_lock, read_frame
        from ablate.planning import SheetKeys

        keys = [metrics] if isinstance(metrics, str) else list(metrics)
        layout = SheetKeys(row, {}, column, seed, predictions, ignore=tuple(ignore))
        declaration = SheetDeclaration(name, keys, layout, baseline, target)
        sheet = read_frame(frame, declaration.keys)
        import_under_lock(OpenStore(self.path), sheet, declaration)
        return self.sweep(name)


class Sweep:
    """A sweep: `Sweep("stem=none,dpn", seeds=5)`, `Sweep("figure1", scale="smoke")`.

    `words` are those of `ablate sweep`, each a text that is read as there. `keys` are values, which
    are taken as they are: `train={"epochs": 3}` is `train.epochs=3`, and the tuple in
    `stem=("none", "dpn")` has several values, while a list is one. `changes`: of a design,
    `{"dpn": {"stem": "dpn"}, ...}`. The options are those of the command. Raises UserError for
    every mistake in them, one line.
    """

    @explained
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
        _check_words(words)
        self._store = OpenStore(Store(store).path)
        columns = [across] if isinstance(across, str) else across
        options: dict[str, Any] = {"scale": scale, "name": name, "across": columns, "each": each}
        options |= {"change": changes or {}, "design": design, "until": until, "margin": margin}
        line = training.recall_declared(words, options, self._store, keys)

        def declare_plan(recall: Recall | None) -> tuple[Plan, dict[str, Any]]:
            root = self._store.root
            if line is not None:
                return plan_declared(line, store=root, recall=recall)
            return plan_from_words(words, store=root, recall=recall, settings=keys, **options)

        self._declare = declare_plan
        self._plan: Plan = declare_plan(StoreRecall(self._store))[0]

    def __repr__(self) -> str:
        return f"<ablate.Sweep {self.name!r}: {self.design.text}>"

    def _repr_html_(self) -> str:
        """Return a grid of rows and columns, and the states of their runs."""
        plan, states = self._plan, self.status().apply(_state_words, axis="columns")
        cells = states.to_dict()
        rows = [
            [_row_words(plan, row.label)]
            + [cells.get((row.label, column.label), "") for column in plan.columns]
            for row in plan.rows
        ]
        headings = ["row", *(column.heading or "runs" for column in plan.columns)]
        title = "" if plan.title == plan.name else f"<p>{html.escape(plan.title)}</p>"
        heading = f"<p><b>{html.escape(plan.name)}</b>: {html.escape(self.design.text)}</p>"
        return f"{heading}{title}{html_grid(headings, rows)}"

    @property
    def name(self) -> str:
        return self._plan.name

    @property
    def design(self) -> Design:
        """The rows, columns and seeds of the sweep, and when its gains are judged."""
        return Design.of_plan(self._plan)

    @explained
    def plan(self) -> Forecast:
        """Return what would be trained and how long it takes, as `ablate plan` prints it. Nothing
        is trained. Every model is built once, without weights, so the first call takes seconds.
        What looks, or a design of changes, would detect is forecast by the command alone.

        Raises UserError for a bundle, and for a class of your own that can't take a step.
        """
        _refuse_bundle(self._store, "plan")
        imported = training.imported_plan(self._store, [self.name])
        plan, settings = imported or self._declaration()(recall=StoreRecall(self._store))
        return Forecast(training.forecast_plan(plan, self._store, settings))

    @explained
    def train(self, retry: str | Sequence[str] = (), *, replace: bool = False) -> Sweep:
        """Train the missing runs, as `ablate sweep --yes` does, and return the sweep as it is then.

        Shows a bar in a notebook and on a terminal, and no progress elsewhere; there warnings, and
        runs that fail or diverge, go to standard error. `retry`: states whose runs are trained
        again, such as "failed"; `replace`: the sweep takes the place of another one of its name.

        Raises Failure where runs are left that can't be trained, KeyboardInterrupt where it was
        stopped: the same call goes on.
        """
        from ablate.planning import read_logger_words
        from ablate.report import announce, python_view
        from ablate.running import Observers, await_disk_room

        _refuse_bundle(self._store, "train")
        statuses = [retry] if isinstance(retry, str) else retry
        training.check_retry(statuses)
        start = training.Start(self._declaration(), self._store, replace)
        await_disk_room(self._store, python_view)
        observers = Observers(read_logger_words([]), self._store.root, self.name, announce)
        with observers:
            try:
                outcome = start.train(observers, statuses, _accept, _announce, python_view)
            except KeyboardInterrupt:  # once it trains the driver listens itself
                raise stopped("stopped before the first run; the same call goes on") from None
        self._plan = outcome.plan
        if outcome.signal is not None:
            progress = outcome.progress
            tally = f"{progress.ended_count} of {count_text(progress.total, 'run')}"
            raise stopped(f"stopped after {tally}; the same call goes on")
        training.check_outcome(outcome, self._store)
        return self

    def _declaration(self) -> training.Declare:
        """Return the function that plans this sweep, also one that was opened by its name. Raises
        UserError for an imported sweep."""
        if not hasattr(self, "_declare"):
            line = self._plan.declared
            if not isinstance(line, Declared):
                raise UserError(
                    f"{self.name}: was imported, and its runs were trained elsewhere, so none can "
                    f"be trained here; `Store.add_runs` adds runs to it"
                )
            self._declare = functools.partial(plan_declared, line, store=self._store.root)
        return self._declare

    @explained
    def table(self, **analysis: Any) -> Table:
        """Read the table, which is a look, as `ablate table` does. `analysis`: keys of the analysis
        that change for this table (`margin=1.0`)."""
        from ablate.planning import change_analysis

        plan, store, events = self._opened_look()
        plan = change_analysis(plan, analysis)
        if isinstance(store, Bundle):
            return Table(read_verdicts(plan, store, store.recompute(plan, events)).table)
        results, withheld = store.results(plan.runs(), curves=True, probes=True, predictions=True)
        return Table(read_verdicts(plan, store, results, withheld=withheld).table)

    @explained
    def status(self) -> pd.DataFrame:
        """Return the number of runs in each state (planned, started, finished, ...), by row and
        column."""
        import pandas as pd

        plan = self._plan
        if isinstance(self._store, Bundle):  # which has no ledger
            statuses = {record.run.id: record.status for record in self._records()[2]}
        else:
            if plan.design.trains and self._store.ledger.exists():
                plan = training.grow_plan(plan, self._store)  # by searches and looks
            states, _ = training.recorded_states(plan, self._store)
            statuses = {run: state.status for run, state in states.items()}
        counts: dict[tuple[str, str], Counter[str]] = {}
        for cell in plan.cells:
            runs = [cell.ids.get(seed, "") for seed in plan.planned(cell)]  # "": to come
            counts[cell.row, cell.column] = Counter(statuses.get(run, "planned") for run in runs)
        frame = pd.DataFrame(counts.values(), index=pd.MultiIndex.from_tuples(counts))
        return frame.rename_axis(["row", "column"]).fillna(0).astype(int)

    @explained
    def plot(
        self,
        kind: str = "gain",
        *,
        style: str = "page",
        size: tuple[float, float] | None = None,
        captioned: bool = True,
        rows: Sequence[str] | None = None,
        grouping: str | None = None,
        highlight: str | None = None,
    ) -> Figure:
        """Draw a figure, as `ablate plot` does: a notebook shows it.

        `kind`: one of `ablate list plots`; `style`: "page", "paper" or "slides"; `size`: width and
        height in inches; `captioned`: with heading and notes; `rows`: labels of the rows to draw;
        `grouping`: "family" gives rows of a family one style; `highlight`: the row that stands out.

        Figures with intervals are a look. Raises UserError where the data of the figure is missing.
        """
        from ablate.report import FigureForm

        plan, store, _ = self._opened_look()
        _refuse_bundle(store, "plot")
        labels = None if rows is None else tuple([rows] if isinstance(rows, str) else rows)
        form = FigureForm(style, size, captioned, labels, grouping, highlight)
        return Figure(plan, store, kind, form)

    @explained
    def report(self, path: Place = None) -> Path:
        """Write the sweep as one HTML page, as `ablate report` does, and return its path; None is
        NAME.html. It is a look."""
        from ablate.api.publishing import render_report
        from ablate.planning import output_name
        from ablate.shared import write_whole

        plan, store, histories = self._opened_look()
        _refuse_bundle(store, "report")
        page = Path(path or f"{output_name(plan.name)}.html")
        write_whole(page, render_report(plan, store, histories).encode())
        return page

    @explained
    def runs(self) -> list[Run]:
        """Return every run that is reported, in the plan's order."""
        return [
            _run(record)
            for record in self._records()[2]
            if record.run.trial is None and not record.run.above
        ]

    @explained
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

        self._check_name()
        plan, store, histories = open_sweep(self._store.root, self.name)
        if not isinstance(store, Bundle):
            with Ledger.reading(store) as ledger:
                plan = without_skipped(plan, ledger)
        return plan, store, histories

    def _check_name(self) -> None:
        """Raise UserError where the store's sweep of this name is not the one of these words."""
        if hasattr(self, "_declare") and not isinstance(self._store, Bundle):
            training.check_words(self._plan, self._store)

    def _records(self) -> tuple[Plan, OpenStore, list[RunRecord]]:
        self._check_name()
        plan, store, events = open_sweep(self._store.root, self.name)
        return plan, store, load_records(plan, store, events, probes=True)


def _refuse_bundle(store: OpenStore, call: str) -> None:
    """Raise UserError for a bundle, which `call` can't read."""
    if isinstance(store, Bundle):
        raise UserError(
            f"{store.root}: is a bundle, for which there is no `{call}`: it has tables, runs and, "
            f"in {store.root / 'figures'}, figures; open the store that it was exported from"
        )


def _check_words(words: Sequence[object]) -> None:
    """Raise UserError for a word that is no text."""
    for word in words:
        if not isinstance(word, str):
            raise UserError(
                f"Sweep({word!r}): expected words as texts, such as 'stem=none,dpn', and settings "
                f"as keys, such as seeds=3; got a value without a key"
            )


def _row_words(plan: Plan, row: str) -> str:
    return f"{row} (baseline)" if row == plan.baseline else row


def _state_words(counts: pd.Series[int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in counts.items() if number)


def _announce(line: str) -> None:
    from ablate.report import announce

    announce(in_python(line))


def _accept(forecast: training.SweepCost) -> None:
    for warning in forecast.warnings:
        _announce(f"warning: {warning}")


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
        return f"<ablate.Run {self.label}: {', '.join([self.status, *self._scores])}>"

    def _repr_html_(self) -> str:
        """Return what the run is, and its numbers."""
        facts: dict[str, object] = {
            "status": self.status,
            "row": self.row,
            "column": self.column,
            "seed": self.seed,
        }
        facts = {key: value for key, value in facts.items() if value != ""}
        facts |= {key: f"{value:.4g}" for key, value in self.metrics.items()}
        facts |= {"id": self.id, "folder": self.folder}
        return f"<p>run <b>{html.escape(self.label)}</b></p>{html_grid(['', ''], facts.items())}"

    @property
    def _scores(self) -> list[str]:
        return [f"{key} {value:.4g}" for key, value in self.metrics.items() if key != "n"]


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

    @explained
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
