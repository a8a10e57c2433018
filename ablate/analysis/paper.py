"""Reads the published tables, and compares their figures with those of a sweep.

Every number is in `paper_tables.csv` as it was printed. By the paper's text a 95 % interval follows
+-; it fits a standard error of values rounded to 0.1.

Used by cli/printing.py (`ablate table --against paper`), `tabulate.py`, for its notes, and
report/listing.py (`ablate list paper`). A new table is lines of paper_tables.csv; its data need a
line of paper_data.csv, its training an entry of RECIPES, or gains are not subtracted.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from ablate.analysis.english.words import first_few
from ablate.analysis.note import Sentence, sentence
from ablate.analysis.scores import on_set
from ablate.analysis.table import Beside, TableColumn
from ablate.planning import Cell, Plan, WidePlace, recipe_caveats, wide_places
from ablate.run import LENGTH_KEYS, RunSpec, ShippedSpec, without_idle
from ablate.shared import UserError, unknown_value

FILE = Path(__file__).with_name("paper_tables.csv")
GAINS = {"delta_top1_vs_dpn": "dpn", "gain_top1_vs_pre_ln": "base"}  # over which variant


@dataclass(frozen=True)
class Printed:
    """A number of a published table, with the other fields of its line in the file."""

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
    """`columns`: label -> (arch, dataset, regime), `places`: where in a wide table; `cells`: by
    variant and label. `reference_row`: the variant that values are gains over, None where they are
    values."""

    name: str
    source: str
    metric: str
    rows: tuple[str, ...]
    columns: Mapping[str, tuple[str, str, str]]
    cells: Mapping[tuple[str, str], Printed]
    reference_row: str | None
    places: Mapping[str, WidePlace]

    @property
    def by_data(self) -> bool:
        """True if the columns differ in their data."""
        return len({dataset for _, dataset, _ in self.columns.values()}) > 1

    def gain(self, row: str, column: str, baseline: str) -> float | None:
        """Return the published gain over `baseline`, as printed or from the printed values; None
        for the baseline itself, and where it was not published."""
        if row == baseline:
            return None
        cell = self.cells.get((row, column))
        if cell is None or (self.reference_row and baseline != self.reference_row):
            return None
        if self.reference_row:
            return float(cell.value)
        base_cell = self.cells.get((baseline, column))
        return round(float(cell.value) - float(base_cell.value), 6) if base_cell else None

    def figure(self, row: str, column: str, gain: float | None, text: str) -> Beside:
        """Return the published figure of a cell, printed as `text`. `gain`: the published gain over
        our baseline."""
        printed = self.cells.get((row, column))
        return Beside(
            table=f"{self.source} {self.name}",
            row=row,
            column=column,
            printed=text,
            value=float(printed.value) if printed and not self.reference_row else None,
            pm=float(printed.pm) if printed and printed.pm else None,
            gain=gain,
            differs="",
            same_subject=True,
        )


@functools.cache
def tables() -> dict[str, PaperTable]:
    """Read every published table, by its name."""
    numbers_by_table: dict[str, list[Printed]] = {}
    with open(FILE, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            numbers_by_table.setdefault(row["table"], []).append(Printed(**row))
    return {name: _table(name, numbers) for name, numbers in numbers_by_table.items()}


def _table(name: str, numbers: Sequence[Printed]) -> PaperTable:
    baseline = GAINS.get(numbers[0].metric)
    rows = dict.fromkeys(number.variant for number in numbers)
    labels: dict[tuple[str, str, str], str] = {}
    by_data = len({number.dataset for number in numbers}) > 1
    alike = len({number.arch for number in numbers}) == 1 and not by_data
    regime_parts = [{*number.regime.split(", ")} for number in numbers]
    common = set.intersection(*regime_parts) if alike else set()
    for number in numbers:
        label = number.dataset.rpartition("/")[2] if by_data else number.arch
        if common:  # one architecture, trained alike but for a part
            distinct_parts = (part for part in number.regime.split(", ") if part not in common)
            label = ", ".join(distinct_parts) or label
        if number.column not in labels and label in labels.values():
            label = f"{label} ({number.arch if by_data else number.regime})"
        labels.setdefault(number.column, label)
    return PaperTable(
        name=name,
        source=numbers[0].source,
        metric=numbers[0].metric,
        rows=tuple(dict.fromkeys([baseline, *rows])) if baseline else tuple(rows),
        columns={label: column for column, label in labels.items()},
        cells={(number.variant, labels[number.column]): number for number in numbers},
        reference_row=baseline,
        places={label: _place(column, labels) for column, label in labels.items()},
    )


def _varying(regimes: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Compare regimes word by word: return, for every place, the first word and the other words
    there. [] for regimes of different numbers of words."""
    words = [regime.split() for regime in dict.fromkeys(regimes)]
    if len({len(parts) for parts in words}) != 1:
        return []
    return [
        (alternatives[0], [*dict.fromkeys(alternatives)][1:])
        for alternatives in zip(*words, strict=True)
    ]


def _place(column: tuple[str, str, str], columns: Iterable[tuple[str, str, str]]) -> WidePlace:
    """Return the place of a column in a wide table. Its heading names what differs between the
    columns: the dataset, and the words of the regime."""
    arch, dataset, regime = column
    datasets, regimes = ({other_column[i] for other_column in columns} for i in (1, 2))
    parts = [dataset.rpartition("/")[2]] if len(datasets) > 1 else []
    if len(regimes) > 1:
        places = _varying(sorted(regimes))
        word_places = zip(regime.split(), places, strict=bool(places))
        parts += [word.strip(",") for word, (_, other_words) in word_places if other_words] or [
            regime
        ]
    return WidePlace(arch, ", ".join(parts))


def find(name: str) -> PaperTable:
    """Return the published table of this name. Raises UserError for a name that is not in the
    file."""
    if name not in tables():
        raise unknown_value("paper: table", name, tables())
    return tables()[name]


def list_papers() -> Iterator[tuple[str, str, str]]:
    """Yield the name of every published table, what it holds, and its source."""
    for name, table in tables().items():
        description = (
            f"{table.metric} of {', '.join(table.rows[:8])}: {first_few([*table.columns], 5)}"
        )
        yield name, description, table.source


# --- A sweep beside it --------------------------------------------------------------------------


WIDE = 5  # published gains: an interval that is wider has nearly any gain in it


def published_figures(plan: Plan, store: Path) -> dict[tuple[str, str], Beside]:
    """Find the published figure of every cell that has one, by the sweep file's `paper:`.

    Raises UserError where the sweep names no table, or has nothing of it.
    """
    if not plan.paper:
        raise UserError(
            f"--against paper: {plan.name} names no published table; a "
            f"file of yours whose rows are in one ({', '.join(tables())}) names it by "
            f"paper: {{table: NAME, rows: {{LABEL: name}}}}"
        )
    table = find(str(plan.paper["table"]))
    rows: Mapping[str, str] = plan.paper.get("rows", {})
    for label, row in rows.items():
        if row not in table.rows:
            raise unknown_value(f"paper: rows: {label}", row, table.rows)
    recipes = Recipes(store)
    figures = {}
    find_theirs = _Columns(plan, table).published_label
    baselines = {cell.column: cell for cell in plan.cells if cell.row == plan.baseline}
    for trained, cell in (
        (plan_cell, table_cell)
        for plan_cell in plan.cells
        for table_cell in _cells_by_set(plan_cell)
    ):
        if cell.row not in rows:
            continue
        theirs = find_theirs(trained, cell)
        if theirs is None:
            continue
        row = rows[cell.row]
        printed = table.cells.get((row, theirs))
        base = table.reference_row or rows.get(plan.baseline)
        gain = table.gain(row, theirs, base) if base else None
        if printed is None and not (table.reference_row and row == table.reference_row):
            continue
        figure = table.figure(row, theirs, gain, as_printed(table, printed, gain))
        differs = recipes.difference(trained, table.columns[theirs])
        if not differs and trained.column in baselines:  # what it changes, the whole column does
            differs = recipes.difference(
                baselines[trained.column], table.columns[theirs], baseline=base
            )
        if plan.smoke:
            differs = "a smoke test"
        has_same_subject = not plan.smoke and recipes.have_subject(trained, table, theirs)
        if not differs and not has_same_subject:
            differs = "another architecture"
        figures[cell.row, cell.column] = replace(
            figure, differs=differs, same_subject=has_same_subject
        )
    if not figures:
        raise UserError(
            f"--against paper: no column of {plan.name} maps to a column of {table.name} "
            f"({first_few([*table.columns])}); give a column `paper: {next(iter(table.columns))}`"
        )
    return figures


def _cells_by_set(cell: Cell) -> Iterator[Cell]:
    """Yield the cell, then the same runs in the column of each set of `eval.also`."""
    yield cell
    for test_set in cell.spec.also:
        yield on_set(cell, test_set["name"])


class _Columns:
    """Finds the published column for each column of a plan."""

    def __init__(self, plan: Plan, table: PaperTable) -> None:
        self.table = table
        self.places = wide_places(plan.columns)
        self.paper_labels = {c.label: c.paper for c in plan.columns if c.paper is not None}
        self.paper_labels |= plan.paper.get("columns", {})

    def published_label(self, trained: Cell, cell: Cell) -> str | None:
        """Return the label of the published column for a cell of ours, None if there is none.
        `trained`: the cell of the same runs on their own test set.

        A column that our plan names counts first, by our column's label or its wide heading; else a
        published column of our architecture on the same data, under our heading where there are
        several.
        """
        heading = self.places[trained.column].heading
        arch = str(cell.spec.tree["model"].get("arch"))
        also = cell.column.removeprefix(trained.column)  # " on dark" of a set of `eval.also`
        for column_name in (cell.column, f"{heading}{also}".strip()):
            if column_name in self.paper_labels:
                return self._called(
                    self.paper_labels[column_name], arch, column_name, column_name == cell.column
                )
        ours, columns = cell.spec.tree["data"]["name"], self.table.columns
        candidates = [
            label
            for label, (theirs, dataset, _) in columns.items()
            if theirs == arch and tested_on(dataset) == ours
        ]
        if self.table.by_data and len(candidates) == 1:
            return candidates[0]
        for label in candidates:
            if heading and heading == self.table.places[label].heading:
                return label
        return arch if arch in columns and DATA.get(columns[arch][1]) == ours else None

    def _called(self, paper_name: str, arch: str, column_name: str, by_label: bool) -> str:
        """Return the published column with this label; or the one with this heading or dataset: the
        one of our architecture, else the first. `column_name`: of our column; `by_label`: it is the
        column's label, so that `paper_name` is first taken as a label."""
        table = self.table
        candidates = [
            label
            for label, (_, dataset, _) in table.columns.items()
            if paper_name in (table.places[label].heading, dataset)
        ]
        if paper_name in table.columns and (by_label or not candidates):
            return paper_name
        if not candidates:
            headings = (place.heading for place in table.places.values())
            choices = dict.fromkeys([*table.columns, *filter(None, headings)])
            raise unknown_value(f"paper: columns: {column_name}", paper_name, choices)
        return next(
            (label for label in candidates if table.columns[label][0] == arch), candidates[0]
        )


def as_printed(table: PaperTable, printed: Printed | None, gain: float | None) -> str:
    if printed is None:
        return ""
    if table.reference_row:
        return f"+{printed.value}" if float(printed.value) > 0 else printed.value
    qualifier = "about " if table.metric.endswith("_approx") else ""
    text = qualifier + printed.value + (f" ± {printed.pm}" if printed.pm else "")
    return text if gain is None else f"{text}, {gain:+.1f}"


def recipe_notes(plan: Plan, paper: Mapping[Any, Beside]) -> list[Sentence]:
    """Return a sentence on what the recipes of the compared cells infer, and one on what they don't
    follow."""
    caveats = recipe_caveats(cell for cell in plan.cells if (cell.row, cell.column) in paper)
    return [sentence("recipe", caveat=key, lines=lines) for key, lines in caveats.items()]


def paper_notes(columns: Sequence[TableColumn], paper: Mapping[Any, Beside]) -> Iterator[Sentence]:
    """Explain the published figures next to ours, why some are not subtracted, and the ranks."""
    if not paper:
        return
    has_pm = any(figure.pm is not None for figure in paper.values())
    yield sentence("paper", table=next(iter(paper.values())).table, has_pm=has_pm, wide=WIDE)
    by_reason: dict[str, list[str]] = {}
    for (_, column), figure in paper.items():
        is_same_column = column in ("", figure.column)
        stands = figure.column if is_same_column else f"{column} for {figure.column}"
        places = by_reason.setdefault(figure.differs, [])
        if stands not in places:
            places.append(stands)
    for reason, places in by_reason.items():
        if reason:
            yield sentence("paper.not-subtracted", columns=places, reason=reason)
        else:
            yield sentence("paper.comparable", columns=places)
    for column in columns:
        if ranks := column.ranks:
            heading = column.heading
            yield sentence("paper.ranks", column=heading, tau=ranks.tau, p=ranks.p, rows=ranks.n)


# A regime in our words, on ImageNet-1k where they say no data: what values may be subtracted from.
RECIPES: dict[str, Mapping[str, Any]] = {
    "AugReg 93k steps bs4096": {"recipe": "augreg", "train.examples": 380_506_500},
    "better-plain-vit": {"recipe": "s16_plus"},
    "DeiT": {"recipe": "deit"},
    "300 ep": {"recipe": "dtn"},
    "VTAB-1k finetune from imagenet1k 2500 steps bs512": {"recipe": "vtab", "model.rep": True},
}
PRETRAINING = "AugReg 93k steps bs4096"  # of every published training of RECIPES that has a parent
# What the published runs searched over values that aren't printed: no difference where ours did.
SEARCHED = {"VTAB-1k finetune from imagenet1k 2500 steps bs512": {"optim.lr"}}
RECIPES |= {
    f"train fraction {share}, linear decoder, 10 seeds": {
        **{"recipe": "segment", "data": "ade20k", "model.rep": True},
        "data.fraction": float(Fraction(share)),
    }
    for share in ("1/16", "1/8", "1/4", "1/2", "1")
}
with open(FILE.with_name("paper_data.csv"), newline="", encoding="utf-8") as file:
    DATA = {row["published"]: row["ours"] for row in csv.DictReader(file)}
VTAB = "vtab-"  # begins the published names of its sets
MODEL = ("dropout", "drop_path", "head_bias", "rep", "input")  # what of it is a recipe's
PARTS = ("stem", "norm", "block")
# What baselines of the published tables change in the model of the recipe.
BASELINES: dict[str | None, Mapping[str, Any]] = {"base": {}, "ln": {}, "dpn": {"stem": "dpn"}}
# Published columns whose architecture has another name here. DTN's first table prints ViT-S as
# ViT-S*.
ARCHITECTURES = {
    "S/16 (DeiT)": ("deit_s/16",),
    "B/16 (DeiT)": ("deit_b/16",),
    "ViT-T*": ("dtn_t_star/16",),
    "ViT-S": ("dtn_s/16",),
    "ViT-S*": ("dtn_s_star/16", "dtn_s/16"),
    "ViT-B*": ("dtn_b_star/16",),
    "depth 3": ("mnist_vit",),
}
DEPTHS = {"depth 3": {"depth": 3}}  # where our name of the architecture does not say it
SIZES = ("width", "depth", "heads", "patch", "mlp_ratio")
MACHINES = {"train.micro_batch", "train.deterministic", "train.compile"}
MACHINES |= {"eval.every", "eval.batch"}


def tested_on(dataset: str) -> str:
    """Return our name of the data that published runs end on; theirs where we have none."""
    return DATA.get(dataset, dataset).rpartition("->")[2]


def data_of(cell: Cell) -> str:
    """Return the names of the data of a cell's runs, pre-training first, as `DATA` has them."""
    on = [spec.tree["data"]["name"] for spec in (cell.spec, *cell.spec.ancestors())]
    return "->".join(dict.fromkeys(reversed(on)))


class Recipes:
    """Composes each of our recipes and architectures once."""

    def __init__(self, store: Path) -> None:
        from ablate.planning import Composer

        self.composer = Composer(store)
        self.cached_settings: dict[tuple[str, str, str], Mapping[str, Any] | None] = {}
        self.cached_sizes: dict[str, Mapping[str, Any]] = {}

    def difference(
        self, cell: Cell, column: tuple[str, str, str], baseline: str | None = None
    ) -> str:
        """Name the differences from the published data, size, steps and recipe; "" for none.
        `baseline`: where the cell is that of the published baseline; then from its model, too."""
        _, dataset, regime = column
        ours = data_of(cell)
        if DATA.get(dataset) != ours:
            return f"trained on {ours}, the published runs on {dataset}"
        if dataset.startswith(VTAB) and cell.spec.tree["data"].get("order", "stored") == "keyed":
            return "ours 800/200 (data.order=keyed), the published runs have other images"
        if regime not in RECIPES:
            return f"no values are subtracted for the published training ({regime})"
        tuned_keys = {key for choice in cell.chosen for key in choice.params}
        searched_keys = SEARCHED.get(regime, set()) & tuned_keys
        differing = self._differing(cell.specs or (cell.spec,), regime, baseline, searched_keys)
        if differing or cell.spec.parent is None:
            return differing
        from_parent = self._differing([cell.spec.parent], PRETRAINING, baseline)
        return f"parents: {from_parent}" if from_parent else ""

    def _differing(
        self,
        specs: Iterable[RunSpec],
        regime: str,
        baseline: str | None,
        left_out: Iterable[str] = (),
    ) -> str:
        """Name the settings of runs that are not as in the recipe of a published training; "" for
        none. `baseline`: see `difference`."""
        trees = [without_idle(spec.tree) for spec in specs]
        arch = str(trees[0]["model"].get("arch") or trees[0]["model"]["name"])
        changes = BASELINES.get(baseline)
        expected = self._recipe_settings(regime, arch, changes or {})
        words = " ".join(f"{key}={value}" for key, value in RECIPES[regime].items())
        if expected is None:
            return f"{words} has no {arch}"
        in_epochs = {
            keys[-1] for keys in LENGTH_KEYS
        }  # None: the recipe says that length otherwise
        ignored_keys = {*MACHINES, *left_out}
        differing = [
            f"{section}.{key}"
            for section, settings in expected.items()
            for key, value in settings.items()
            if f"{section}.{key}" not in ignored_keys
            and (changes is not None or section not in PARTS)
            and (changes is not None or section != "model" or key in MODEL)
            and not (value is None and f"{section}.{key}" in in_epochs)
            and any(tree[section].get(key) != value for tree in trees)
        ]
        return f"{first_few(differing, 4)} not as in {words}" if differing else ""

    def have_subject(self, cell: Cell, table: PaperTable, column: str) -> bool:
        """Return whether data and architecture of a cell are those of a published column; only then
        does the direction of our gain say anything about the published one."""
        theirs, dataset, _ = table.columns[column]
        model = cell.spec.tree["model"]
        arch = str(model.get("arch"))
        names = ARCHITECTURES.get(column) or ARCHITECTURES.get(theirs, (theirs,))
        if DATA.get(dataset) != data_of(cell) or arch not in names:
            return False
        sizes = {**self._sizes(arch), **DEPTHS.get(theirs, {})}
        return all(model.get(key) == value for key, value in sizes.items())

    def _sizes(self, arch: str) -> Mapping[str, Any]:
        """Compose the sizes that an architecture stands for."""
        from ablate.planning import SettingsLayer

        if arch not in self.cached_sizes:
            settings = {"data": "imagenet1k", "model.arch": arch}
            tree = self.composer.tree([SettingsLayer("", settings)])
            model = self.composer.run(tree, seed=0).spec.tree["model"]
            self.cached_sizes[arch] = {key: model[key] for key in SIZES}
        return self.cached_sizes[arch]

    def _recipe_settings(
        self, regime: str, arch: str, changes: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Compose the settings of a recipe; None for an architecture that it does not know."""
        from ablate.planning import SettingsLayer

        key = regime, arch, str(changes)
        if key not in self.cached_settings:
            settings = {"data": "imagenet1k", **RECIPES[regime], "model.arch": arch, **changes}
            try:
                tree = self.composer.tree([SettingsLayer("", settings)])
                spec = self.composer.run(tree, seed=0).spec
            except UserError:
                self.cached_settings[key] = None
            else:
                assert isinstance(spec, ShippedSpec)
                run = spec.effective
                self.cached_settings[key] = {
                    **{section: run[section] for section in ("optim", "train", "augment", "eval")},
                    **{section: run[section] for section in (*PARTS, "model")},
                    "data": {key: run["data"][key] for key in ("size", "fraction")},
                }
        return self.cached_settings[key]
