"""Writes `report`: a sweep as one HTML file without links to other files. Template: page.html.

The file has no date and no place of its writing: the same sweep gives the same bytes.

Used by api/publishing.py (`ablate report`) and audit/export.py (`ablate export`); watch/answers.py
takes `gains_html`. A new part also needs its place in page.html, its look in page.css.
"""

from __future__ import annotations

import functools
import math
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ablate.analysis import Entry, Table, gain_label
from ablate.planning import Cell, Plan, recipe_caveats
from ablate.report.formats.grid import REPORT_FOLDER, PrintedTable, template
from ablate.report.formats.layout import sheet
from ablate.report.formats.parts import DEFAULT_SHOW
from ablate.report.plot import FIGURE_KINDS
from ablate.report.show import count_provenance, grouped, leaves, tail, yaml_lines
from ablate.report.text import duration
from ablate.run import Metric
from ablate.shared import count_text
from ablate.store import GIVEN_UP, InterimLook, RunRecord
from ablate.version import __version__

PAGE_FIGURES = tuple(
    kind for kind in FIGURE_KINDS if kind not in ("gain", "forest")
)  # a forest is on it


def render_page(
    plan: Plan,
    table: Table,
    runs: Sequence[RunRecord],
    looks: Iterable[InterimLook],
    svgs: Mapping[str, str],
) -> str:
    """Render the HTML. `looks`: its own among them; `svgs`: SVG by the name of a figure, of which
    PAGE_FIGURES are taken."""
    figures = [_figure(kind, svgs[kind]) for kind in PAGE_FIGURES if kind in svgs]
    facts = count_provenance(runs)
    look_texts = dict.fromkeys(_look_words(plan, look) for look in looks if not look.planned)
    command = plan.repeat_command(lambda *words: shlex.join(["ablate", *words]))
    commands = facts.pop("command", {}) or {command: 0}
    by_status = _run_counts(runs)
    text = template("page.html").render(
        css=(REPORT_FOLDER / "page.css").read_text("utf-8"),
        title=table.heading,
        overview=_overview(plan, by_status),
        table=table,
        sheet=_sheet(table),
        forests=forests(plan, table),
        has_changes=plan.changes is not None,  # which have the verdicts, and not rows
        axis=table.metric_of().with_points(table.metric_of().contrast_with(table.baseline_words)),
        figures=figures,
        counted=by_status,
        variants=list(_variants(plan, runs)),
        named=len(plan.columns) > 1,
        measured=[
            *(m for m in plan.task.metrics if any(m.key in k.result.get("test", {}) for k in runs)),
            *([plan.metric] if plan.metric.probe or plan.metric.own else []),
        ],
        commands=commands,
        made=_provenance(plan, runs, look_texts, facts),
        base=next(cell for cell in plan.cells if cell.row == plan.baseline),
        version=__version__,
        # functions
        plural=count_text,
        score=functools.partial(_score, table),
        tail=tail,
        time=_time,
        yaml=yaml_lines,
    )
    return _plain(text)


def _plain(text: str) -> str:
    """Remove characters that HTML can't hold: terminal control codes, lone surrogates of JSON."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", text)
    return text.encode(errors="replace").decode()


def gains_html(table: Table, show: Sequence[str], no_interval: str = "[-]") -> str:
    """Render a table with its headline, warnings, caption and footnotes, as a fragment.
    `no_interval`: what is written where a mean or a gain has no interval."""
    macros, printed_table = template("gains.html").module, _sheet(table, show)
    fragment = macros.opening(printed_table) + macros.gains(printed_table, no_interval)
    return _plain(str(fragment))


def _sheet(table: Table, show: Sequence[str] = DEFAULT_SHOW) -> PrintedTable:
    """Lay out the columns of the sweep one below the other."""
    return sheet(table, show, transpose=False, width=0)


@dataclass(frozen=True)
class _Figure:
    """A figure in a page. `width`: in points, as it was drawn."""

    name: str
    alt: str
    svg: str
    width: float


def _figure(kind: str, svg: str) -> _Figure:
    """Strip the file's header, and its metadata, which have addresses."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    alt = f"Figure: {FIGURE_KINDS[kind].line.partition(';')[0]}"
    width = re.match(r'<svg[^>]* width="([\d.]+)pt"', svg)
    open_tag = f'<svg role="img" aria-label="{escape(alt, quote=True)}"'
    return _Figure(kind, alt, svg.replace("<svg", open_tag, 1), float(width[1]) if width else 0.0)


def _overview(plan: Plan, by_status: str) -> str:
    columns = [count_text(len(plan.columns), "column")] if len(plan.columns) > 1 else []
    size = " x ".join([count_text(len(plan.rows), "variant"), *columns, plan.seeds_said])
    return f"{plan.name}: {size}. {by_status}."


# --- Runs ---------------------------------------------------------------------------------------


Difference = tuple[str, str, str | None]  # key, value, the baseline's or None for none


@dataclass(frozen=True)
class _Variant:
    """A row of the plan with its runs. `differs`: its differences from the baseline, by column."""

    label: str
    differs: Sequence[tuple[str, Sequence[Difference]]]
    runs: Sequence[RunRecord]
    run_counts: str

    @property
    def failed(self) -> list[RunRecord]:
        return [record for record in self.runs if record.status in GIVEN_UP]


def _variants(plan: Plan, runs: Sequence[RunRecord]) -> Iterator[_Variant]:
    by_row: dict[str, list[RunRecord]] = {row.label: [] for row in plan.rows}
    for record in runs:
        by_row[record.run.cell.row].append(record)
    columns = [column.label for column in plan.columns]
    for label, records in by_row.items():
        records.sort(key=lambda record: (columns.index(record.run.cell.column), record.run.seed))
        yield _Variant(label, _differs(plan, label), records, _run_counts(records))


def _differs(plan: Plan, row: str) -> list[tuple[str, Sequence[Difference]]]:
    """List the differences from the baseline of each column; equal lists are merged."""
    if row == plan.baseline:
        return [("the baseline", ())]
    groups: dict[tuple[Difference, ...], list[str]] = {}
    for cell in plan.cells:
        if cell.row == row:
            groups.setdefault(_differences(cell, _base(plan, cell.column)), []).append(cell.column)
    words = f"differs from {plan.baseline_words} in"
    if len(groups) == 1:
        return [(words, next(iter(groups)))]
    return [(f"on {', '.join(columns)} {words}", keys) for keys, columns in groups.items()]


def _base(plan: Plan, column: str) -> Cell:
    """Return the cell of the baseline in the column, else its first cell."""
    first_cell = next(cell for cell in plan.cells if cell.row == plan.baseline)
    return plan.cell(plan.baseline, column) or first_cell


def _differences(cell: Cell, base: Cell) -> tuple[Difference, ...]:
    # What only the base has goes with its choice.
    ours, theirs = leaves(cell.spec.tree), leaves(base.spec.tree)
    return tuple(
        (key, value, theirs.get(key)) for key, value in ours.items() if value != theirs.get(key)
    )


def _score(table: Table, record: RunRecord, metric: Metric) -> float | None:
    """Return a test metric, or the metric of the table, in the unit of the table; None if it was
    not measured, and for trials, which are judged on validation."""
    run = record.run
    if metric.probe or metric.own:
        entries = (e for e in table.entries if (e.row, e.column) == (run.cell.row, run.cell.column))
        is_own_run = not run.above and run.trial is None
        return next((entry.values.get(run.seed) for entry in entries if is_own_run), None)
    value = record.result.get("test", {}).get(metric.key)
    return None if value is None or record.run.trial is not None else float(value) * metric.scale


def _time(seconds: float) -> str:
    return duration(seconds) if seconds >= 60 else f"{seconds:.3g} s"


def _run_counts(runs: Sequence[RunRecord]) -> str:
    """Count runs by state: "24 runs: 23 finished, 1 failed". Trials are counted apart: they only
    choose settings."""
    reported = [record for record in runs if record.run.trial is None]
    tried = [record for record in runs if record.run.trial is not None]
    parts = []
    for noun, some in (("run", reported), ("tuning trial", tried)):
        counts = Counter(record.status for record in some)
        states = ", ".join(f"{count:,} {status}" for status, count in counts.most_common())
        if some:
            parts.append(f"{count_text(len(some), noun)}: {states}")
    return "; ".join(parts)


# --- How it was made ----------------------------------------------------------------------------

Texts = Mapping[str, int]  # a text, and how many runs say so


def _provenance(
    plan: Plan, runs: Sequence[RunRecord], look_texts: Iterable[str], facts: Mapping[str, Texts]
) -> dict[str, Texts]:
    """Collect the facts by name: first of the sweep, then of its runs."""
    keys = vars(plan.analysis) | {"spread": plan.spread}
    columns = plan.columns if len(plan.columns) > 1 else ()
    data = (part for cell in plan.cells for part in cell.spec.datasets[:1])
    of_sweep = {
        "seeds": ", ".join(map(str, plan.counted_seeds)) if plan.design.blocks else "",
        "columns": "; ".join(f"{column.label}: {_settings(column.settings)}" for column in columns),
        "analysis": _settings({k: v for k, v in keys.items() if v not in (None, (), {}, "")}),
        "tuning": _tuning(plan),
        "chosen by tuning": "; ".join(_chosen_settings(plan)),
        "verdicts read at": "; ".join(look_texts),
        **recipe_caveats(plan.cells),
        "cost": _cost(runs) if plan.design.trains else "",
        "trained": _training_period(runs),
        "data": ", ".join(dict.fromkeys(f"{d['name']} ({d['fingerprint']})" for d in data)),
    }
    return {
        **{name: {text: len(runs)} for name, text in of_sweep.items() if text},
        **_grouped({key: texts for key, texts in facts.items() if key != "fingerprint"}),
    }


def _look_words(plan: Plan, look: InterimLook) -> str:
    """Write a look in words: "3 seeds (in corr)"."""
    noun = "seed" if plan.design.blocks else "run"
    return count_text(look.n, noun) + f" (in {look.sweep})" * (look.sweep != plan.name)


WORDS = {
    "digest": "code that trained",
    "plugins": "code of plug-ins",
    "micro_batch": "micro-batch",
    "kernel": "attention kernel",
    "deterministic": "deterministic algorithms",
    "tf32": "TF32",
    "cudnn_benchmark": "cuDNN's benchmark",
    "host": "machine",
}


def _grouped(facts: Mapping[str, Texts]) -> dict[str, Texts]:
    """Join the facts of each section: "packages": "numpy 2.1, torch 2.13". Facts that differ
    between runs are kept apart."""
    mixed = {key: texts for key, texts in facts.items() if len(texts) > 1}
    alike = grouped({key: next(iter(texts)) for key, texts in facts.items() if key not in mixed})
    sections = {**{section: {text: 1} for section, text in alike.items()}, **mixed}
    return {WORDS.get(key, key): texts for key, texts in sections.items()}


def _tuning(plan: Plan) -> str | None:
    """Describe the searches of every variant; None without `tune:`."""
    if plan.tune is None:
        return None
    stages = "; then ".join(
        f"{', '.join(f'{key} in {_space(space)}' for key, space in stage.space.items())}: "
        f"{count_text(stage.trials, 'trial')}{f' of {_settings(stage.at)}' if stage.at else ''}"
        for stage in plan.tune.stages
    )
    unit = "variant" if len(plan.columns) == 1 else "variant in every column that is tuned"
    if all(column.tuned for column in plan.columns):
        unit = unit.removesuffix(" that is tuned")
    return (
        f"{stages}; {plan.searches_said} for every {unit} (sampler {plan.tune.sampler}, pruner "
        f"{plan.tune.pruner}). "
        f"Trials are judged on validation and have seeds of their own: no gain or interval uses "
        f"them."
    )


def _space(space: Mapping[str, tuple[Any, ...]]) -> str:
    """Write a range or choices of a setting: "log 0.0003 to 0.01", "gelu, relu"."""
    ((kind, values),) = space.items()
    if kind == "choices":
        return ", ".join(map(str, values))
    return f"{kind} {' to '.join(f'{value:g}' for value in values)}"


def _chosen_settings(plan: Plan) -> Iterator[str]:
    for cell in plan.cells:
        place = f"{cell.row} on {cell.column}" if len(plan.columns) > 1 else cell.row
        for choice in cell.chosen:
            search = f", search {choice.search}" if len(cell.chosen) > 1 else ""
            yield f"{place}{search}: {_settings(choice.params)}"


def _settings(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={text}" for key, text in leaves(dict(settings)).items())


def _cost(runs: Sequence[RunRecord]) -> str:
    seconds = {record.run.id: record.result.get("seconds") or 0.0 for record in runs}
    tuning = [seconds[record.run.id] for record in runs if record.run.trial is not None]
    devices = ", ".join(sorted({str(r.result.get("device")) for r in runs if r.result}))
    attempts = sum(len(record.attempts) for record in runs)
    return (
        f"{_time(sum(seconds.values()))} of device time ({devices or 'no run has finished yet'}), "
        f"{f'{_time(sum(tuning))} of it on tuning, ' if tuning else ''}"
        f"{count_text(attempts, 'attempt')} at {count_text(len(runs), 'run')}"
    )


def _training_period(runs: Sequence[RunRecord]) -> str | None:
    ends = [attempt.get(key) for r in runs for attempt in r.attempts for key in ("at", "ended")]
    times = [moment for moment in ends if isinstance(moment, float)]
    if not times:
        return None
    start, end = (
        time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment)) for moment in (min(times), max(times))
    )
    return f"{start} UTC" if start == end else f"{start} to {end} UTC"


TICKS = 5  # about so many


@dataclass(frozen=True)
class ForestLine:
    """A row. `interval`: where its bar begins and how long it is; `cut`: the ends that lie outside,
    of "left" and "right"."""

    label: str
    words: str
    kind: str  # its verdict
    mean: float
    interval: tuple[float, float] | None
    cut: tuple[str, ...]
    seeds: tuple[float, ...]


@dataclass(frozen=True)
class Forest:
    """The rows of a column. `margin`: where its band begins and how wide it is."""

    heading: str
    zero: float
    margin: tuple[float, float] | None
    ticks: tuple[tuple[float, str], ...]
    lines: tuple[ForestLine, ...]


def forests(plan: Plan, table: Table) -> list[Forest]:
    """Return a forest plot for each column with gains, all over the same range; [] where no gain
    has an interval, of which a forest has nothing to show."""
    from ablate.report.plot.gains import limits

    entries = [entry for entry in table.entries if entry.gain is not None]
    if not any(entry.gain and entry.gain.low is not None for entry in entries):
        return []
    scale, margin = _Scale(*limits(table, entries)), plan.analysis.margin
    band = scale.band(-margin, margin) if margin is not None else None
    ticks, with_headings = tuple(scale.ticks()), len(table.columns) > 1
    lines = [
        (column.heading, tuple(_line(table, e, scale) for e in entries if e.column == column.label))
        for column in table.columns
    ]
    return [
        Forest(heading if with_headings else "", scale.place(0.0), band, ticks, forest_lines)
        for heading, forest_lines in lines
        if forest_lines
    ]


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float

    def place(self, value: float) -> float:
        """Return the place of a value on the scale in per cent; a value beyond an end is put
        there."""
        inside = min(max(value, self.low), self.high)
        return round(100 * (inside - self.low) / (self.high - self.low), 3)

    def band(self, low: float, high: float) -> tuple[float, float]:
        return self.place(low), round(self.place(high) - self.place(low), 3)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Round numbers: 1, 2 or 5 times a power of ten apart."""
        raw = (self.high - self.low) / TICKS
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(n * size for n in (1, 2, 5, 10) if n * size >= raw)
        for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1):
            yield self.place(n * step), f"{n * step:.6g}"


def _line(table: Table, entry: Entry, scale: _Scale) -> ForestLine:
    from ablate.report.plot.gains import by_seed

    gain = entry.gain
    assert gain is not None
    interval, cut = None, tuple[str, ...]()
    if gain.low is not None and gain.high is not None:
        interval = scale.band(gain.low, gain.high)
        beyond = {"left": gain.low < scale.low, "right": gain.high > scale.high}
        cut = tuple(side for side, is_cut in beyond.items() if is_cut)
    return ForestLine(
        label=entry.row,
        words=gain_label(table, entry),
        kind=entry.verdict or "",
        mean=scale.place(gain.mean),
        interval=interval,
        cut=cut,
        seeds=tuple(map(scale.place, by_seed(table, entry).values())),
    )
