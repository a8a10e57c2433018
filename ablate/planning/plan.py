"""The plan of a sweep: its rows, columns, cells and the ids of their runs. Plain data.

`sweep` makes a plan, `ledger` keeps it, `drive` trains it, `report` tabulates it. A plan says all
that a table needs to know of a sweep, so that an edited sweep file leaves old tables as they were.

Used by all rooms above planning. A new field also needs a default for older files in `_from_parts`,
or `FORMAT` in `version.py` raised and `tests/golden/write_store.py` run; and `planning/unite.py`
(`_agreed_parts`) if two plans of one sweep must agree in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from ablate.planning import analysis_keys
from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import (
    Cell,
    Column,
    ColumnGroup,
    PlannedRun,
    Row,
    Trial,
    Tune,
    lineage,
)
from ablate.planning.changes import NO_CHANGE, Changes
from ablate.planning.contrasts import (
    CONTRAST_KEYS,
    RowContrast,
    add_contrasts,
    check_row_contrasts,
)
from ablate.planning.declared import Declared, DeclaredImport, declared_of
from ablate.planning.design import ONE_PARENT, ONE_SEARCH, Condition, Design, Fixed, design_of
from ablate.planning.settings import Word, value_text
from ablate.planning.target import check_target
from ablate.run import (
    DEFAULT_TASK,
    PROBE,
    TASKS,
    Metric,
    PlainValue,
    TaskChoice,
    is_plugin,
    probe_name,
    read_value,
)
from ablate.shared import (
    Failure,
    UserError,
    count_text,
    format_words,
    printable,
    unknown_value,
)
from ablate.version import FORMAT

Spread = Literal["images", "one way", "paired"]
FEWEST_AT_ONCE = 5  # seeds; with fewer, a family of several columns has a paired spread


@dataclass(frozen=True)
class Plan:
    """A sweep, expanded: every cell and every run, in order.

    Without `across` it has one column, labelled "".
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    cells: tuple[Cell, ...]
    baseline: str
    seeds: tuple[int, ...]
    declared: Declared | DeclaredImport = field(default_factory=Declared)  # makes it again
    analysis: Analysis = field(default_factory=Analysis)
    paper: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # lines that `plan` prints with the table: aliases, unused excludes
    tune: Tune | None = None
    trials: tuple[Trial, ...] = ()  # asked so far
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # see `read_own_metric`
    groups: tuple[ColumnGroup, ...] = ()  # of the columns, in their order
    design: Design = field(default_factory=Fixed)  # which may give cells seeds of their own
    # Hashes of the sweep file (see `planning.sweep_file`); {} for a plan of words alone.
    file: Mapping[str, str] = field(default_factory=dict)
    # Labels of runs that the user has skipped -> how far each had come: see `find.without_skipped`.
    skipped: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    changes: Changes | None = None  # their cells are the rows
    smoke: bool = False  # do its runs only show that it works? Then no gain is judged
    stream: str | None = None  # of proposals, whose runs these are

    def runs(self) -> Iterator[PlannedRun]:
        """Yield every run, seed-major: every variant once before any twice.

        So half a sweep is a fair table. Trials come first, equal ones of a search once; reports
        follow as their settings are chosen. Before each run come the runs that it starts from, each
        only once.
        """
        ancestors: set[str] = set()
        for run in self._main_runs():
            for ancestor in lineage(run):
                if ancestor.id not in ancestors:
                    ancestors.add(ancestor.id)
                    yield ancestor
            yield run

    def parents(self) -> list[Cell]:
        """Return the cells of the runs that others start from, each once.

        A cell's label is that of the first run that starts from it, with ".from"; its ids are those
        of all of its seeds.
        """
        first_runs: dict[str, tuple[PlannedRun, dict[int, str]]] = {}
        for run in self.runs():
            if run.above:
                _, ids = first_runs.setdefault(run.cell.spec.identity, (run, {}))
                ids[run.seed] = run.id
        return [
            replace(run.cell, row=run.cell.row + ".from" * run.above, ids=ids)
            for run, ids in first_runs.values()
        ]

    def _main_runs(self) -> Iterator[PlannedRun]:
        """Yield `runs` without the runs that others start from."""
        places: set[tuple[str, str, str]] = set()
        for run in self.tried():
            place = run.cell.row, run.cell.column, run.id
            if place not in places:
                places.add(place)
                yield run
        for seed in self.seeds:
            for cell in self.cells:
                if seed in cell.ids:
                    yield PlannedRun(cell.ids[seed], cell.at_seed(seed), seed)

    def tried(self) -> Iterator[PlannedRun]:
        """Yield the run of every trial, also where it is the run of another trial."""
        for trial in self.trials:
            for seed, run in trial.cell.ids.items():
                yield PlannedRun(run, trial.cell, seed, trial)

    @property
    def words(self) -> tuple[str, ...]:
        """The words that declare it again, printed for people: nothing reads them."""
        return tuple(self.declared.texts)

    @property
    def command(self) -> tuple[str, ...]:
        """The words after `ablate` that make the plan again; () for an imported frame."""
        if self.stream is not None:
            return "gate", "try", self.stream
        return ("sweep", *self.words) if self.design.trains else self.words

    @property
    def task(self) -> TaskChoice:
        """The task of all its runs, with the user's own metrics."""
        task = self.cells[0].spec.task if self.cells else TASKS[DEFAULT_TASK]
        metrics = {
            name: analysis_keys.metric_of(name, declaration)
            for name, declaration in self.own.items()
        }
        return replace(task, user_metrics=metrics) if metrics else task

    @property
    def metric(self) -> Metric:
        """The metric of the table.

        Raises UserError where the runs don't have it, and where diverged runs are to be scored at
        chance but guessing has no such score.
        """
        metric = self.metric_named(
            self.analysis.metric or self.task.metrics[0].key, "analysis.metric"
        )
        if self.analysis.diverged == "chance" and (metric.neutral or not metric.guessed):
            raise UserError(f"analysis.diverged: guessing has no {metric.key}; leave chance out")
        return metric

    @property
    def spread(self) -> Spread:
        """The spread that gains are judged by, from `analysis.spread`.

        `auto` is `images` where the metric counts right and wrong test images, else `one way`. It
        is `paired` where the error rate of these is above .06 (docs/statistics.md). Without images,
        that is over several columns at once, and at declared looks; with images, over several
        columns at once with few seeds.
        """
        at_once = self.analysis.family == "table" and len(self.columns) > 1
        if self.analysis.spread == "paired" or self.analysis.target is not None:
            return "paired"
        if self.no_images(self.metric):
            return "paired" if at_once or self.analysis.looks else "one way"
        return "paired" if at_once and self.n < FEWEST_AT_ONCE else "images"

    def no_images(self, metric: Metric) -> str:
        """Return why the images that runs get right don't determine this metric; "" if they do."""
        for cell in self.cells[:1]:
            if cell.spec.marks_examples(metric.key):
                continue
            if not metric.right_within:
                keys = " and ".join(m.key for m in TASKS[DEFAULT_TASK].metrics if m.right_within)
                detail = f"which makes {keys} of {DEFAULT_TASK}, not {metric.key}"
                return f"says which images are right, {detail}"
        return "is not tried for tuned sweeps, whose n counts searches" if self.tune else ""

    def metric_named(self, name: str, place: str) -> Metric:
        """Return the metric of this name.

        Raises UserError, `place` first, for a metric that the task does not have, or that the runs
        don't measure.
        """
        metric = self.task.find(name)
        if metric is None:
            raise unknown_value(place, name, self.task.names)
        self._check_measured(metric, place)
        if metric.layer and not place.endswith("--show"):  # which prints "-" for such a row
            self._check_layer(metric, place)
        return metric

    def _check_measured(self, metric: Metric, place: str) -> None:
        """Raise UserError for a number of a probe that some of the runs lack."""
        labels = (c.row for c in self.cells if metric.probe not in c.spec.probes)
        if metric.probe and (rows := list(dict.fromkeys(labels))):
            suffix = f" and {count_text(len(rows) - 1, 'more row')}" if len(rows) > 1 else ""
            raise UserError(
                f"{place}: {metric.key}: the runs of {rows[0]!r}{suffix} do not measure "
                f"{metric.probe}; the sweep with {self._probe_word(metric.probe).text} trains runs "
                f"that do: new ones, with ids of their own"
            )

    def _check_layer(self, metric: Metric, place: str) -> None:
        """Raise UserError for a number of a layer that a row is known not to have.

        How many layers a class of the user's own has, only its runs can show; a whole model has no
        such probe.
        """
        for cell in self.cells:
            depth = cell.spec.tree["model"].get("depth", metric.layer)
            if depth < metric.layer and not is_plugin(cell.spec.tree["block"]["name"]):
                raise UserError(
                    f"{place}: {cell.row!r} has no {metric.key}: its model has "
                    f"{count_text(depth, 'layer')}; choose another metric, or other rows"
                )

    def repeat_command(self, command: Callable[..., str], probe: str = "") -> str:
        """Return the command that makes the plan again; for an imported frame, the call of Python.
        `command`: see `Store.command`. With `probe`, it is the command of the sweep whose runs
        measure that probe, too."""
        if isinstance(self.declared, DeclaredImport) and self.declared.is_frame:
            return f"Store.add_runs(frame, {self.name!r}, ...)"
        if not probe or not isinstance(self.declared, Declared):
            return command(*self.command)
        line = self.declared.with_words(self._probe_word(probe))
        return command("sweep", *line.with_options(name=None).texts)  # it is another sweep

    def _probe_word(self, probe: str) -> Word:
        """Return the word for the probes of all runs, and this one."""
        probes = {name for cell in self.cells for name in cell.spec.probes}
        return Word("probe", (sorted({*probes, probe}),))

    def is_judged(self, row: str) -> bool:
        """Return whether a row is judged: every row by a target, all but the baseline by gains."""
        return self.analysis.target is not None or row != self.baseline

    @property
    def row_names(self) -> dict[str, str]:
        """The labels of rows, by label and by alias."""
        return {name: row.label for row in self.rows for name in (row.label, *row.aliases)}

    def contrasts_in(self, rows: Collection[str]) -> list[RowContrast]:
        """Return the contrasts between rows both of which are among `rows`, labels of a column."""
        return [c for c in self.analysis.row_contrasts if c.row in rows and c.base in rows]

    def check_analysis(self, place: str) -> None:
        """Raise UserError for contrasts between rows, and for a target, that this plan can't have.
        `place`: what an error says before a contrast's name."""
        rows, lacking = None, list[str]()
        if self.changes is None:
            rows = [row.label for row in self.rows]
            lacking += [c.label for c in self.columns if not self.cell(self.baseline, c.label)]
        check_row_contrasts(place, self.analysis.row_contrasts, rows, self.baseline)
        check_target(self.analysis, bool(self.design.seed_counts), rows is None, lacking)

    def with_contrasts(self, texts: Sequence[str], option: str) -> Plan:
        """Return the plan with these contrasts between rows, each as "ROW - ROW"; `option` gives
        them. Raises UserError for those that it can't have."""
        contrasts = add_contrasts(self.analysis.contrasts, texts, self.row_names, option)
        if contrasts == self.analysis.contrasts:
            return self
        remedy = "declare it under analysis.contrasts of its sweep file"
        self.design.check_change(self, option, remedy)
        changed_plan = replace(self, analysis=replace(self.analysis, contrasts=contrasts))
        changed_plan.check_analysis(f"{option} ")
        return changed_plan

    def with_own(self, *names: str, place: str = "analysis.metric") -> Plan:
        """Return the plan with the current declarations of its metric and of `names`.

        Only the user's own metrics and probes have declarations; where a file is gone, the kept one
        stays. Raises UserError for a function that does not exist.
        """
        declarations, metric_names = dict(self.own), [self.analysis.metric, *names]
        probes = {
            probe_name(probe.name): (probe.name, Path(probe.folder or Path.cwd()))
            for cell in self.cells
            for probe in PROBE.used(cell.spec.tree)
        }
        for name in [name for name in metric_names if name.partition(":")[0] in probes]:
            if name not in declarations:
                declarations[name] = analysis_keys.number_of(
                    name, *probes[name.partition(":")[0]], place
                )
            metric_names.remove(name)
        declarations = analysis_keys.own_metrics_now(declarations, metric_names, place)
        return replace(self, own=declarations) if declarations != self.own else self

    @property
    def objective(self) -> Metric:
        """The metric that judges the trials of a search, on validation.

        Where the trials are parents, it is a metric of their own task.
        """
        task = self.task
        if self.tune is not None and self.tune.parents:
            parent = self.cells[0].spec.parent
            assert parent is not None
            task = parent.task
        return self.metric if self.metric in task.metrics else task.metrics[0]

    @property
    def baseline_words(self) -> str:
        """The baseline as a sentence names it.

        Where words declared the rows, it is named by its settings: "stem=none, norm=layernorm".
        """
        line = self.declared
        if not isinstance(line, Declared) or line.file is not None:
            return self.baseline
        if self.baseline == NO_CHANGE and self.changes is not None:
            return f"{self.baseline} (no change)"
        settings = next(row.settings for row in self.rows if row.label == self.baseline)
        if settings:
            return _setting_list(settings)
        varied_keys = {key for row in self.rows for key in row.settings}
        first_values = {w.key: w.values[0] for w in line.settings if w.key in varied_keys}
        if line.options.each and first_values:
            return f"{self.baseline} ({_setting_list(first_values)})"
        return self.baseline

    @property
    def replicates(self) -> tuple[tuple[int, ...], ...]:
        """The groups of seeds that are averaged to one observation of a variant; n counts groups.

        The seeds of tuned variants that share a search form a group. With one search for all seeds,
        settings are compared, not methods, and each seed is a group of its own.
        """
        if self.tune is None or ONE_SEARCH in self.conditions:
            return tuple((seed,) for seed in self.seeds)
        return tuple(self.tune.searches(self.seeds).values())

    @property
    def repeats(self) -> str:
        """The plural of what n counts: "seeds", "searches" that some share, "runs" of a sheet."""
        if not self.design.blocks:
            return "runs"
        return "searches" if any(len(seeds) > 1 for seeds in self.replicates) else "seeds"

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that the seeds of a row share, which leave gains without verdicts.

        They are the winner of a single search, and a single parent, whose seed the sweep names.
        """
        parents = (parent for cell in self.cells for parent in cell.spec.ancestors())
        one_search = self.tune is not None and self.tune.repeats == 1
        one_parent = any("seed" in parent.tree for parent in parents)
        return (ONE_SEARCH,) * one_search + (ONE_PARENT,) * one_parent

    def is_tuned(self, cell: Cell) -> bool:
        """Return whether the cell gets searches: a column may opt out of those of its sweep."""
        return self.tune is not None and all(
            column.tuned for column in self.columns if column.label == cell.column
        )

    def searches(self, cell: Cell) -> dict[int, tuple[int, ...]]:
        """Return the searches of a cell: number -> seeds of the reports that take its winner; {}
        where the cell gets none."""
        if self.tune is None or not self.is_tuned(cell):
            return {}
        return self.tune.searches(cell.seeds or self.seeds)

    @property
    def searches_said(self) -> str:
        """The number of a cell's searches, in words: "one search", "5 to 12 searches"."""
        counts = {len(self.searches(cell)) for cell in self.cells if self.is_tuned(cell)}
        low, high = min(counts), max(counts)
        if low < high:
            return f"{low} to {high} searches"
        return "one search" if high == 1 else f"{high} searches"

    def trials_of(self, cell: Cell) -> int:
        """Return the number of trials of a cell's searches, asked or not; 0 where it gets none."""
        return len(self.searches(cell)) * self.tune.trials_each if self.tune is not None else 0

    @property
    def expected_trials(self) -> int:
        """The number of trials of all searches, asked or not."""
        return sum(map(self.trials_of, self.cells))

    def planned(self, cell: Cell) -> tuple[int, ...]:
        """Return the seeds that a cell has, or will have, without those that no look has given it
        and those that the user has skipped."""
        return self.design.planned(self, cell)

    def skipped_seeds(self, cell: Cell) -> dict[int, Mapping[str, Any]]:
        """Return the seeds of a cell that the user has skipped -> how far each had come."""
        labels = {
            seed: PlannedRun("", cell, seed).label for seed in self.seeds * bool(self.skipped)
        }
        return {s: self.skipped[label] for s, label in labels.items() if label in self.skipped}

    @property
    def shared_seeds(self) -> tuple[int, ...]:
        """The seeds that all of its cells have, or will have."""
        all_have = set(self.seeds).intersection(*map(self.planned, self.cells))
        return tuple(seed for seed in self.seeds if seed in all_have)

    @property
    def counted_seeds(self) -> tuple[int, ...]:
        """The seeds, without those that the user has skipped in every cell."""
        if not self.skipped:
            return self.seeds
        some_have = set().union(*map(self.planned, self.cells))
        return tuple(seed for seed in self.seeds if seed in some_have)

    @property
    def unevenly_skipped(self) -> list[str]:
        """The labels of the skipped runs whose seed counts in other cells."""
        seeds = set(self.counted_seeds)
        labels = {
            PlannedRun("", cell, s).label: s
            for cell in self.cells
            for s in self.skipped_seeds(cell)
        }
        return [label for label, s in labels.items() if s in seeds]

    @property
    def n(self) -> int:
        """The number of trainings, or of searches, that are behind every row's gain."""
        seeds = set(self.counted_seeds)
        return sum(not seeds.isdisjoint(replicate) for replicate in self.replicates)

    @property
    def seeds_said(self) -> str:
        """The number of seeds, in words: "3 seeds"; "3 runs" for a sheet without seeds."""
        n, noun = len(self.counted_seeds), "seed" if self.design.blocks else "run"
        return count_text(n, noun)

    @property
    def to_come(self) -> int:
        """The number of runs without an id yet.

        These are trials that are not asked, and reports of seeds whose settings aren't chosen. With
        those of `runs` they are all that there will be, from the first moment on.
        """
        reports = sum(len(self.planned(cell)) - len(cell.ids) for cell in self.cells)
        return self.expected_trials - len(self.trials) + reports

    def heading(self, column: str) -> str:
        """Return the heading of the column that has this label."""
        return next(place.heading for place in self.columns if place.label == column)

    def cell(self, row: str, column: str) -> Cell | None:
        """Return the cell, or None where it is excluded."""
        return next((c for c in self.cells if (c.row, c.column) == (row, column)), None)

    def to_bytes(self) -> bytes:
        """Return the content of the plan's file, whose hash the ledger seals."""
        parts = {key: value for key, value in vars(self).items() if key != "design"}
        for key in ("changes", "smoke", "stream"):
            if not parts[key]:  # so the file stays as older versions wrote it
                del parts[key]
        parts["analysis"] = self.analysis.plain
        tree = {"format": FORMAT, **parts, **self.design.tree()}
        return json.dumps(tree, sort_keys=True, default=_plain).encode()

    def readable_bytes(self) -> bytes:
        """Return `to_bytes` after checking that they read as this plan.

        Raises Failure where they don't.
        """
        content = self.to_bytes()
        try:
            reads_back = Plan.from_tree(json.loads(content)).to_bytes() == content
        except ValueError as error:
            raise Failure(f"the plan of {self.name!r}: {error}, so it is not written") from error
        if not reads_back:
            raise Failure(f"the plan of {self.name!r}: reads as another plan, so it is not written")
        return content

    @classmethod
    def from_tree(cls, tree: Any) -> Plan:
        """Return the plan that `to_bytes` wrote, from its JSON: keys are texts, tuples are lists.

        Raises ValueError for any other JSON.
        """
        match tree:
            case {"format": int(written)} if written != FORMAT:
                raise ValueError(format_words(written))
        try:
            plan = cls._from_parts(tree)
        except (UserError, LookupError, TypeError, AttributeError, ValueError, RecursionError) as e:
            raise ValueError("is no plan of a sweep") from e
        parts = {"format", *(part.name for part in fields(cls)), *plan.design.tree()}
        for key in sorted(tree.keys() - parts):
            raise ValueError(f"has {_unknown(key, 'designs')}")
        _check(plan)
        return plan

    def checked(self) -> Plan:
        """Return the plan itself, for a caller that computes with it. Raises ValueError where the
        id of a run is not the hash of its configuration: the file was edited."""
        if self.baseline not in [row.label for row in self.rows]:
            raise ValueError(f"is no plan of a sweep: it lacks {self.baseline!r}")
        for cell in (*self.cells, *(trial.cell for trial in self.trials)):
            cell.check_ids()
        return self

    @classmethod
    def _from_parts(cls, tree: Mapping[str, Any]) -> Plan:
        own_readers = ("design", "changes", "declared")
        added = {key: tree.get(key) for key in ("changes", "stream")}
        added["smoke"] = tree.get("smoke", False)
        names = {part.name for part in fields(cls)} - {*own_readers, *added}
        parts = {**{name: tree[name] for name in names}, **added}
        metrics = analysis_keys.parse_own_metrics(tree["own"])
        plan: Plan = read_value(
            {**parts, "title": printable(tree["title"]), "own": metrics}, cls, ""
        )
        return replace(plan, design=design_of(tree), declared=declared_of(tree["declared"]))


def _plain(value: Any) -> Mapping[str, Any]:
    """Return a part of a plan as a dict, for JSON."""
    return value.tree if isinstance(value, PlainValue) else vars(value)


def _unknown(name: Any, kind: str) -> str:
    """Return words on an unknown name and the file that would bring it: see `shared.parts`."""
    text = printable(str(name))
    return f"{text}, which is unknown here: ablate_{kind}/{text}.py is not on Python's path"


def _check(plan: Plan) -> None:
    """Raise ValueError where parts of a plan contradict each other, or name something unknown."""
    if not plan.cells:
        raise ValueError("is no plan of a sweep: it has no cells")
    rows, columns = ([part.label for part in parts] for parts in (plan.rows, plan.columns))
    cells = [*plan.cells, *(trial.cell for trial in plan.trials)]
    for value, allowed in (
        ({cell.row for cell in cells}, rows),
        ({cell.column for cell in cells}, columns),
        ({seed for cell in plan.cells for seed in (*cell.ids, *cell.seeds)}, plan.seeds),
    ):
        if not value <= {*allowed}:
            raise ValueError(f"is no plan of a sweep: it lacks {(value - {*allowed}).pop()!r}")
    for run in (run for cell in cells for run in cell.ids.values()):
        if not (run.isalnum() and run.isascii()):  # an id is also the name of a folder
            raise ValueError(f"is no plan of a sweep: {run!r} is no run's id")
    tasks = {cell.spec.task_name for cell in plan.cells}  # a trial that is a parent may differ
    for cell in cells:
        if not cell.spec.has_task:
            raise ValueError(f"has task={_unknown(cell.spec.tree.get('task'), 'tasks')}")
    if len(tasks) > 1:
        raise ValueError("is no plan of a sweep: its runs have several tasks")
    metric = plan.analysis.metric
    if (metric and not plan.task.find(metric)) or not 0 < plan.analysis.alpha < 1:
        raise ValueError("is no plan of a sweep: its analysis can't be computed")
    for name, contrast in plan.analysis.contrasts.items():
        if set(contrast) not in CONTRAST_KEYS:
            raise ValueError(f"is no plan of a sweep: its contrast {name!r} is none")


def before_searches(plan: Plan) -> Plan:
    """Return the plan of a tuned sweep as it was before its searches asked for a trial."""
    cells = (
        replace(cell, ids={}, chosen=(), specs=()) if plan.is_tuned(cell) else cell
        for cell in plan.cells
    )
    return replace(plan, trials=(), cells=tuple(cells))


def _setting_list(settings: Mapping[str, Any]) -> str:
    """Return settings as a sentence lists them: "stem=none, norm=layernorm"."""
    return ", ".join(f"{key}={value_text(value)}" for key, value in settings.items())
