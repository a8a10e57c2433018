"""Reads the published tables, and puts their figures beside a sweep.

Every number is in `paper_tables.csv` as it was printed. By the paper's text a 95 % interval stands
behind +-; it fits a standard error of values rounded to 0.1.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.analysis.also import on_set
from ablate.analysis.captions import names
from ablate.planning.cell import Cell, spec_parents
from ablate.planning.plan import Plan
from ablate.shared.errors import UserError, unknown
from ablate.shared.spec import also_of

if TYPE_CHECKING:  # numpy and scipy
    from ablate.analysis.table import TableColumn

FILE = Path(__file__).with_name("paper_tables.csv")
VALUES = ("top1", "fewshot25_top1", "test_top1", "zeroshot_top1", "miou", "test_top1_approx")
GAINS = {"delta_top1_vs_dpn": "dpn", "gain_top1_vs_pre_ln": "base"}  # over which variant
# A regime in our words, on ImageNet-1k where they say no data: what values may be subtracted from.
RECIPES: dict[str, Mapping[str, Any]] = {
    "AugReg 93k steps bs4096": {"recipe": "augreg", "train.examples": 380_506_500},
    "better-plain-vit": {"recipe": "s16_plus"},
    "DeiT": {"recipe": "deit"},
    "300 ep": {"recipe": "dtn"},
}
RECIPES |= {
    f"train fraction {share}, linear decoder, 10 seeds": {
        **{"recipe": "segment", "data": "ade20k", "model.rep": True},
        "data.fraction": float(Fraction(share)),
    }
    for share in ("1/16", "1/8", "1/4", "1/2", "1")
}
# Theirs -> ours.
DATA = {"imagenet1k": "imagenet1k", "augmented-mnist": "mnist", "sun397": "sun397"}
DATA["imagenet21k->imagenet1k"] = "imagenet21k->imagenet1k"
DATA["ade20k"] = "imagenet1k->ade20k"
MODEL = ("dropout", "drop_path", "head_bias", "rep", "input")  # what of it is a recipe's
MACHINES = {"train.micro_batch", "train.deterministic", "train.compile", "train.draws"}
MACHINES |= {"eval.every", "eval.batch"}


@dataclass(frozen=True)
class Printed:
    """One number of a table, with what stands around it."""

    source: str
    table: str
    dataset: str
    regime: str
    arch: str
    variant: str
    metric: str
    value: str
    pm: str
    note: str

    @property
    def column(self) -> tuple[str, str, str]:
        return self.arch, self.dataset, self.regime


@dataclass(frozen=True)
class PaperTable:
    """`columns`: label -> (arch, dataset, regime); `cells`: by variant and label. `over`: the
    variant that values are gains over, None where they are values."""

    name: str
    source: str
    metric: str
    rows: tuple[str, ...]
    columns: Mapping[str, tuple[str, str, str]]
    cells: Mapping[tuple[str, str], Printed]
    over: str | None

    @property
    def baseline(self) -> str:
        return self.over or self.rows[0]

    @property
    def rounding(self) -> float:
        """How far the gain that was rounded, or taken from rounded values, may be from the true
        one, of as many digits as the table prints."""
        digits = max(len(cell.value.partition(".")[2]) for cell in self.cells.values())
        return 10.0**-digits / (2 if self.over else 1)

    def gain(self, row: str, column: str, baseline: str | None = None) -> float | None:
        """Over `baseline`, as printed or from the printed values."""
        base = baseline or self.baseline
        if row == base:
            return None
        cell = self.cells.get((row, column))
        if cell is None or (self.over and base != self.over):
            return None
        if self.over:
            return float(cell.value)
        other = self.cells.get((base, column))
        return round(float(cell.value) - float(other.value), 6) if other else None


@functools.cache
def printed_numbers() -> tuple[Printed, ...]:
    with open(FILE, newline="", encoding="utf-8") as file:
        return tuple(Printed(**row) for row in csv.DictReader(file))


@functools.cache
def tables() -> dict[str, PaperTable]:
    """Every published table that has values or gains of variants, by its name."""
    found: dict[str, list[Printed]] = {}
    for number in printed_numbers():
        if number.metric in (*VALUES, *GAINS):
            found.setdefault(number.table, []).append(number)
    return {name: _table(name, numbers) for name, numbers in found.items()}


def _table(name: str, numbers: Sequence[Printed]) -> PaperTable:
    over = GAINS.get(numbers[0].metric)
    rows = dict.fromkeys(number.variant for number in numbers)
    labels: dict[tuple[str, str, str], str] = {}
    by_data = len({number.dataset for number in numbers}) > 1
    alike = len({number.arch for number in numbers}) == 1 and not by_data
    said = [{*number.regime.split(", ")} for number in numbers]
    common = set.intersection(*said) if alike else set()
    for number in numbers:
        label = number.dataset.rpartition("/")[2] if by_data else number.arch
        if common:  # one architecture, trained alike but for a part
            own = (part for part in number.regime.split(", ") if part not in common)
            label = ", ".join(own) or label
        if number.column not in labels and label in labels.values():
            label = f"{label} ({number.arch if by_data else number.regime})"
        labels.setdefault(number.column, label)
    return PaperTable(
        name=name,
        source=numbers[0].source,
        metric=numbers[0].metric,
        rows=tuple(dict.fromkeys([over, *rows])) if over else tuple(rows),
        columns={label: column for column, label in labels.items()},
        cells={(number.variant, labels[number.column]): number for number in numbers},
        over=over,
    )


def find(name: str) -> PaperTable:
    """Raises UserError for one that is not in the file."""
    if name not in tables():
        raise unknown("paper: table", name, tables())
    return tables()[name]


def listing() -> Iterator[tuple[str, str, str]]:
    """(name, what it is, where it is from) of every table."""
    for name, table in tables().items():
        what = f"{table.metric} of {', '.join(table.rows[:8])}: {names([*table.columns], 5)}"
        yield name, what, table.source


# --- A sweep beside it --------------------------------------------------------------------------


@dataclass(frozen=True)
class Beside:
    """What was published for a cell of ours. `differs`: why it isn't comparable, "" where it is."""

    table: str
    row: str
    column: str
    printed: str
    value: float | None
    pm: float | None
    gain: float | None
    differs: str


def beside(plan: Plan, store: Path) -> dict[tuple[str, str], Beside]:
    """Find the published figure of every cell that has one, by the sweep file's `paper:`.

    Raises UserError where the sweep names no table, or has nothing of it.
    """
    if not plan.paper:
        raise UserError(
            f"--against paper: {plan.name} names no published table; add to its file "
            f"paper: {{table: T1L, rows: {{LABEL: base, LABEL: dpn}}}}"
        )
    table = find(str(plan.paper["table"]))
    rows: Mapping[str, str] = plan.paper.get("rows", {})
    for label, row in rows.items():
        if row not in table.rows:
            raise unknown(f"paper: rows: {label}", row, table.rows)
    recipes = _Recipes(store)
    found = {}
    columns = {column.label: column.paper for column in plan.columns}
    mapped: Mapping[str, str] = plan.paper.get("columns", {})
    for trained, cell in ((own, shown) for own in plan.cells for shown in _shown(own)):
        if cell.row not in rows:
            continue
        named = mapped.get(cell.column, columns.get(cell.column))
        theirs = _column(table, named, cell)
        if theirs is None:
            continue
        row = rows[cell.row]
        printed = table.cells.get((row, theirs))
        base = table.over or rows.get(plan.baseline)
        gain = table.gain(row, theirs, base) if base else None
        if printed is None and not (table.over and row == table.over):
            continue
        found[cell.row, cell.column] = Beside(
            table=f"{table.source} {table.name}",
            row=row,
            column=theirs,
            printed=as_printed(table, printed, gain),
            value=float(printed.value) if printed and not table.over else None,
            pm=float(printed.pm) if printed and printed.pm else None,
            gain=gain,
            differs=recipes.difference(trained, table.columns[theirs]),
        )
    if not found:
        raise UserError(
            f"--against paper: no column of {plan.name} maps to a column of {table.name} "
            f"({names([*table.columns])}); give a column `paper: {next(iter(table.columns))}`"
        )
    return found


def _shown(cell: Cell) -> Iterator[Cell]:
    """The cell, and it in the column of each set of `eval.also`."""
    yield cell
    for other in also_of(cell.spec):
        yield on_set(cell, other["name"])


def _column(table: PaperTable, named: str | None, cell: Cell) -> str | None:
    """Find the published column of ours: as named, or by architecture on the same data."""
    if named is not None:
        if named not in table.columns:
            raise unknown(f"paper: columns: {cell.column}", named, table.columns)
        return named
    arch = str(cell.spec["model"].get("arch"))
    if arch in table.columns:
        ours = cell.spec["data"]["name"]
        return arch if DATA.get(table.columns[arch][1]) == ours else None
    return None


def as_printed(table: PaperTable, printed: Printed | None, gain: float | None) -> str:
    if printed is None:
        return ""
    if table.over:
        return f"+{printed.value}" if float(printed.value) > 0 else printed.value
    about = "about " if table.metric.endswith("_approx") else ""
    text = about + printed.value + (f" ± {printed.pm}" if printed.pm else "")
    return text if gain is None else f"{text}, {gain:+.1f}"


class _Recipes:
    """Composes each of our recipes once."""

    def __init__(self, store: Path) -> None:
        from ablate.planning.compose import Composer

        self.composer = Composer(store)
        self.known: dict[tuple[str, str], Mapping[str, Any] | None] = {}

    def difference(self, cell: Cell, column: tuple[str, str, str]) -> str:
        """Name the differences from the published data, size, steps and recipe; "" for none."""
        _, dataset, regime = column
        on = [tree["data"]["name"] for tree in (cell.spec, *spec_parents(cell.spec))]
        ours = "->".join(dict.fromkeys(reversed(on)))  # pre-training first
        if DATA.get(dataset) != ours:
            return f"trained on {ours}, the published runs on {dataset}"
        if regime not in RECIPES:
            return f"the published training ({regime}) is no recipe of ours"
        arch = str(cell.spec["model"].get("arch") or cell.spec["model"]["name"])
        expected = self._of(regime, arch)
        words = " ".join(f"{key}={value}" for key, value in RECIPES[regime].items())
        if expected is None:
            return f"{words} has no {arch}"
        specs = cell.specs or (cell.spec,)
        differing = [
            f"{section}.{key}"
            for section, settings in expected.items()
            for key, value in settings.items()
            if f"{section}.{key}" not in MACHINES
            and any(spec[section].get(key) != value for spec in specs)
        ]
        return f"{names(differing, 4)} not as in {words}" if differing else ""

    def _of(self, regime: str, arch: str) -> Mapping[str, Any] | None:
        """Compose the settings of a recipe; None for an architecture that it does not know."""
        from ablate.planning.layers import SettingsLayer
        from ablate.shared import spec

        if (regime, arch) not in self.known:
            settings = {"data": "imagenet1k", **RECIPES[regime], "model.arch": arch}
            try:
                tree = self.composer.tree([SettingsLayer("", settings)])
                run = spec.effective(spec.to_tree(self.composer.run(tree, seed=0)))
            except UserError:
                self.known[regime, arch] = None
            else:
                self.known[regime, arch] = {
                    **{section: run[section] for section in ("optim", "train", "augment", "eval")},
                    "model": {key: run["model"][key] for key in MODEL},
                    "data": {key: run["data"][key] for key in ("size", "fraction")},
                }
        return self.known[regime, arch]


def paper_notes(columns: Sequence[TableColumn], paper: Mapping[Any, Beside]) -> list[str]:
    """Explain the published figures beside ours, why some are not subtracted, and the ranks."""
    if not paper:
        return []
    table = next(iter(paper.values())).table
    pm = " The paper calls its +- a 95 % interval over at least 3 runs; the printed values fit a "
    pm += "standard error."
    pm = pm if any(beside.pm is not None for beside in paper.values()) else ""
    found = [
        f"Beside it: {table}, with its gains.{pm} Where data, resolution, steps and recipe match, "
        f"a cell has our value minus the published value. Elsewhere a cell says whether our gain "
        f"has the direction of the published gain (can't tell: our interval includes 0, or the "
        f"published gain is 0), and whether the published gain lies in our interval."
    ]
    by_reason: dict[str, list[str]] = {}
    for (_, column), beside in paper.items():
        same = column in ("", beside.column)
        stands = beside.column if same else f"{column} for {beside.column}"
        reason = by_reason.setdefault(beside.differs or "comparable", [])
        if stands not in reason:
            reason.append(stands)
    found += [
        f"Comparable: {names(which)}."
        if reason == "comparable"
        else f"Not subtracted, {reason}: {names(which)}."
        for reason, which in by_reason.items()
    ]
    for column in columns:
        if ranks := column.ranks:
            place = f"{column.heading}: " if column.heading else ""
            found.append(
                f"{place}rank agreement of the gains, Kendall's tau {ranks.tau:+.2f} "
                f"(exact p = {ranks.p:.2g}, {ranks.n} rows)."
            )
    return found
