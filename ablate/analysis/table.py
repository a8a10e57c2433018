"""The gain table of a sweep as data. `tabulate` computes it; `formats` sets it.

Used by `tabulate.py`, which fills it, and by report/, which shows it. A new field also needs
`python tests/json_page.py`, which writes docs/json.md (meanings: docs/json.keys),
`python tests/test_formats.py`, which writes tests/golden/table.json, and its line in
report/formats/tidy.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ablate.analysis import stats
from ablate.analysis.note import EVERYWHERE, FOOTNOTES, Note, NoteKind, Place
from ablate.analysis.summary import PValues, Summary
from ablate.planning import TuningWinner
from ablate.run import (
    DEFAULT_TASK,
    TASKS,
    Metric,
    TaskChoice,
)

Sizes = Mapping[tuple[str, str], Mapping[str, Any]]  # (row, column) -> parameters, multiply_adds


@dataclass(frozen=True)
class Other:
    """Another metric of an entry. `never`: runs that never reached its threshold."""

    values: Mapping[int, float]
    estimate: stats.Estimate | None
    never: tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """The cost of the finished runs of an entry: means of runs, one sum and one peak."""

    device_s: float  # of all of them
    run_s: float
    images_per_s: float | None
    peak_bytes: int | None
    utilisation: float | None  # of the device's arithmetic


@dataclass(frozen=True)
class Beside:
    """The published figure for a cell of ours. `differs`: why the two can't be subtracted, "" where
    they can; `same_subject`: whether data and architecture are the published ones, so that the
    directions of the two gains can be compared."""

    table: str
    row: str
    column: str
    printed: str
    value: float | None
    pm: float | None
    gain: float | None
    differs: str
    same_subject: bool

    @property
    def figure_text(self) -> str:
        """The figure as printed; where it isn't comparable with ours, its published column comes
        first, without the text in brackets in that column's label, which the notes have."""
        shows_column = self.differs and self.printed
        return f"{self.column.partition(' (')[0]}: {self.printed}" if shows_column else self.printed


@dataclass(frozen=True)
class Against:
    """An entry's published figure. Differences are ours minus the published ones, if comparable."""

    published: Beside
    agreement: str | None  # of the gains' directions; None where it can't be said
    value: float | None = None
    gain: float | None = None
    # Does the published gain lie in our interval? With `agreement`, None: in one so wide
    # that this says nothing.
    inside: bool | None = None


@dataclass(frozen=True)
class Entry:
    """The numbers of a row in a column: values by seed, mean, gain, interval, verdict."""

    row: str
    column: str
    planned: int  # runs
    values: Mapping[int, float] = field(
        default_factory=dict
    )  # the metric by seed: what the mean is of
    missing: tuple[int, ...] = ()  # seeds without a result
    diverged: tuple[int, ...] = ()
    collapsed: tuple[int, ...] = ()
    accuracy: stats.Estimate | None = None  # the metric, whichever it is
    gain: stats.Estimate | None = None  # None for the baseline, and under a target
    difference: stats.Estimate | None = None  # the mean minus the target, of a table that has one
    pool: str = ""  # "kept", or why the row is judged by its own spread; "" where each is
    verdict: str | None = None  # None where none is given
    ratio: float | None = None  # of its own spread to the other rows', where it is judged by it
    never: tuple[int, ...] = ()  # finished, but never reached the metric's threshold
    others: Mapping[str, Other] = field(default_factory=dict)
    p_values: PValues = field(default_factory=PValues)
    parameters: int | None = None
    multiply_adds: float | None = None  # of one image
    cost: Cost | None = None  # where asked for
    against: Against | None = None
    chosen: tuple[TuningWinner, ...] = ()  # what tuning chose, one a search
    population: stats.Estimate | None = None  # the gain for new seeds and images, where asked for
    likeness: float | None = None  # of its flips to the baseline's: see `stats.ImageFlips`

    @property
    def n(self) -> int:
        """The independent trainings behind the gain, or behind the mean if there is no gain."""
        estimate = self.contrast or self.accuracy
        return estimate.n if estimate else 0

    @property
    def contrast(self) -> stats.Estimate | None:
        """The difference that the verdict is on: the gain or, under a target, that from it."""
        return self.gain or self.difference


@dataclass(frozen=True)
class TableRow:
    """A variant."""

    label: str
    family: str | None


@dataclass(frozen=True)
class TableColumn:
    """A column of the table, for a value of `across`, with the spread that judges its gains."""

    label: str
    heading: str  # the label; of a bare number with its key
    entries: tuple[Entry, ...]  # in the rows' order; excluded cells have none
    contrasts: int  # in the family
    judged_by: str  # "images", "one way" or "paired"; with a target "one sample"
    spreads: tuple[float, float] | None  # of a result: the least and the greatest of the rows
    df: float | None  # of these, the median
    kept_rows: int  # that tell of one another's spread
    test_sizes: tuple[int, ...]  # images; more than one where rows were tested on different sets
    ranks: stats.RankAgreement | None = None  # of the published gains against ours
    tripped: bool = False  # the baseline is out of line with the rows
    baseline_ratio: float | None = None  # of its spread to what the rows have, where it is
    flips: float = 0.0  # the share of the variance that is flips of images
    void: bool = False  # the baseline is unstable: no verdicts
    forecast: Resolution | None = None  # where a verdict is "can't tell", and the spread is known
    on: str = ""  # the set of `eval.also` that it is of; "" for the own test set
    arch: str = ""  # in a wide table: the architecture of its lines,
    wide: str = ""  # its heading there, "" of an architecture alone,
    group: str = ""  # and the group of its heading, "" without groups
    lacking: str = ""  # the predictions without which rows share one spread
    beside: bool = False  # of a set that the looks of its sweep leave out: never a verdict


@dataclass(frozen=True)
class Resolution:
    """The gain that more seeds would resolve: the half-width of an interval, and its 80 % range."""

    seeds: int
    half: float
    low: float
    high: float


def title_line(title: str, trained_on: str) -> str:
    """Return a title and the sentence on what was trained on, if there is one."""
    end = "" if title.endswith((".", "?", "!")) else "."
    return f"{title}{end} {trained_on}" if trained_on else title


@dataclass(frozen=True)
class Table:
    """A whole table, or the part of one that is shown."""

    sweep: str
    title: str
    trained_on: str  # a sentence: data, images, resolution, length, n
    data: str  # their names; "" of a user's own loop
    metric: str
    baseline: str
    baseline_words: str  # as sentences name it, by its settings where words declared the rows
    seeds: tuple[int, ...]
    family: str
    complete: bool
    alpha: float  # of an interval of the metric
    gain_alpha: float  # of a family of gains
    rows: tuple[TableRow, ...]
    columns: tuple[TableColumn, ...]
    notes: tuple[Note, ...]  # in order; those on what is not shown among them
    blocks: tuple[Summary, ...] = ()  # averages, contrasts between columns, the placement grid
    paper: str = ""  # the published table beside it
    withheld: Mapping[str, str] = field(default_factory=dict)  # runs that count as missing -> why
    task: str = DEFAULT_TASK
    choice: TaskChoice = TASKS[DEFAULT_TASK]  # that task
    groups: tuple[str, ...] = ()  # of columns, in order
    words: tuple[str, ...] = ()  # of `ablate table`, for this one; () where its name will do
    full_table: Table | None = None  # of which this one is the part that is shown
    repeats: str = "seeds"  # that n counts, or "searches", or "runs" of a sheet without seeds
    target: float | None = None  # that means are judged against, in the place of gains

    @property
    def of_value(self) -> str:
        """The noun for what each of an entry's `values` is of: "seed", also where n counts
        searches, or "run"."""
        return "run" if self.repeats == "runs" else "seed"

    @property
    def trained_repeats(self) -> str:
        """The noun for what intervals are over: "training seeds", "training runs" or "searches"."""
        return self.repeats if self.repeats == "searches" else f"training {self.repeats}"

    @property
    def heading(self) -> str:
        """The title and what the runs were trained on, in whole sentences."""
        return title_line(self.title or self.sweep, self.trained_on)

    @functools.cached_property
    def notes_by_place(self) -> dict[Place, list[Note]]:
        """The notes on the rows, columns and entries that the table has, by place."""
        places: list[Place] = [EVERYWHERE, *((row.label, None) for row in self.rows)]
        places += [(None, column.label) for column in self.columns]
        places += [(entry.row, entry.column) for entry in self.entries]
        notes_by_place: dict[Place, list[Note]] = {place: [] for place in places}
        for note in self.notes:
            if note.place in notes_by_place:
                notes_by_place[note.place].append(note)
        return notes_by_place

    @functools.cached_property
    def footnotes(self) -> dict[str, int]:
        """The footnotes on what the table has, in the order of the whole table: text -> number."""
        return {note.text: number for number, note in enumerate(self.marked_notes, 1)}

    @functools.cached_property
    def marked_notes(self) -> tuple[Note, ...]:
        """The notes that have the numbers 1, 2, ... of `footnotes`; equal texts share a number."""
        used = {note.text for note in self._placed_notes if note.kind in FOOTNOTES}
        notes = (note for note in self.notes if note.kind in FOOTNOTES and note.text in used)
        return _first_of_each_text(notes)

    def unmarked_notes(self, *kinds: NoteKind) -> tuple[Note, ...]:
        """Return the notes of these kinds, which have no marks, in order, each text once."""
        return _first_of_each_text(note for note in self._placed_notes if note.kind in kinds)

    def texts(self, *kinds: NoteKind) -> tuple[str, ...]:
        """Return the sentences of these kinds, which have no marks, in order."""
        return tuple(note.text for note in self.unmarked_notes(*kinds))

    @property
    def _placed_notes(self) -> Iterator[Note]:
        """The notes on everything, and on the rows, columns and entries that the table has."""
        return (note for note in self.notes if note.place in self.notes_by_place)

    def on(self, row: str | None, column: str | None, *kinds: NoteKind) -> list[str]:
        """Return the footnotes on a row, a column or an entry. `kinds`: only of these kinds, all if
        none is given."""
        return [n.text for n in self.notes_by_place[row, column] if n.kind in (kinds or FOOTNOTES)]

    def marks(self, row: str | None, column: str | None, *kinds: NoteKind) -> tuple[int, ...]:
        """Return the numbers of these footnotes."""
        return tuple(self.footnotes[text] for text in self.on(row, column, *kinds))

    def without_notes(self, kind: NoteKind) -> Table:
        return replace(self, notes=tuple(note for note in self.notes if note.kind != kind))

    def without_exact_notes(self) -> Table:
        """Return the table without the notes that say how its numbers are computed."""
        return replace(self, notes=tuple(note for note in self.notes if not note.is_exact))

    def metric_of(self, name: str | None = None) -> Metric:
        """Return the metric of the table, or another metric by its name."""
        metric = self.choice.find(name or self.metric)
        assert metric is not None
        return metric

    @property
    def entries(self) -> list[Entry]:
        return [entry for column in self.columns for entry in column.entries]

    @property
    def judged_columns(self) -> list[TableColumn]:
        """The columns that verdicts are for."""
        return [column for column in self.columns if not column.beside]

    @property
    def is_of_changes(self) -> bool:
        """True if effects of changes are judged, and no single cell, also where a part of the table
        shows no effect."""
        return any(block.kind == "change" for block in (self.full_table or self).blocks)

    @property
    def contrasts(self) -> list[Entry]:
        """The entries that verdicts are for: those of every row but the baseline, or one for the
        effect of every change."""
        if self.is_of_changes:
            return [
                Entry(line.full_label, block.name, 0, gain=line.gain, verdict=line.verdict)
                for block in self.blocks
                if block.kind == "change"
                for line in block.lines
            ]
        entries = [entry for column in self.judged_columns for entry in column.entries]
        return [entry for entry in entries if self.is_judged(entry.row)]

    def is_judged(self, row: str) -> bool:
        """Return whether a row is judged: every row by a target, all but the baseline by gains."""
        return self.target is not None or row != self.baseline

    @property
    def better_side(self) -> str:
        """The verdict of means on the better side of the target; "" where no side is better."""
        return better_side(self.metric_of())

    @property
    def has_verdicts(self) -> bool:
        verdicts = [entry.verdict for entry in self.entries]
        verdicts += [line.verdict for block in self.blocks for line in block.lines]
        return any(verdict is not None for verdict in verdicts)

    @property
    def is_look(self) -> bool:
        """True if a gain has an interval or a verdict. Then the table is a look, which the ledger
        records, even where an interval is hidden because it is wide."""
        gains = [(entry.contrast, entry.p_values.raw) for entry in self.entries]
        gains += [(line.gain, line.p_values.raw) for block in self.blocks for line in block.lines]
        has_intervals = any(gain and (gain.low is not None or p is not None) for gain, p in gains)
        return has_intervals or self.has_verdicts


def better_side(metric: Metric) -> str:
    """Return the verdict of means on the better side of a target; "" where no side is better."""
    if metric.neutral:
        return ""
    above, below = stats.TARGET
    return below if metric.sign < 0 else above


def _first_of_each_text(notes: Iterable[Note]) -> tuple[Note, ...]:
    by_text: dict[str, Note] = {}
    for note in notes:
        by_text.setdefault(note.text, note)
    return tuple(by_text.values())
