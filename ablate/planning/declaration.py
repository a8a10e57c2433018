"""The declaration of a sweep, and the parts of its grammar that files and words share.

Every mistake is a UserError of one line: file, place in it, what was expected and the right form.

A sweep file also declares two things of its table alone, on which no run's id depends: the
published table to compare with (`paper:`), and the groups of its columns (`groups:`).

Used by `planning/words.py` and `planning/sweep_file.py`, which make a `Sweep`, and by
`planning/expand.py`, which makes it a plan; `change_analysis` also by `cli/selection.py`
(`ablate table analysis.KEY=VALUE`). The readers of parts also by tuning.py, changes.py, recall.py.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import FIRST_TUNING_SEED, JOINT, Column, ColumnGroup, Tune, wide_places
from ablate.planning.conf import MOST_VALUES
from ablate.planning.contrasts import ACROSS_COLUMNS, BETWEEN_ROWS
from ablate.planning.design import Design, Fixed
from ablate.planning.parents import FROM_PREFIX
from ablate.planning.settings import SettingsLayer, plain, value_text
from ablate.run import check_keys, field_types, read_field
from ablate.shared import UserError, spelling, unknown_value

if TYPE_CHECKING:
    from ablate.planning.changes import Changes
    from ablate.planning.plan import Plan


UNPLANNED_KEYS = ("logger", "notify")  # keys outside a sweep's plan: see ablate.planning.logger


@dataclass(frozen=True)
class Item:
    """A row or a column, as written."""

    label: str
    settings: Mapping[str, Any]
    place: str
    family: str | None = None
    paper: str | None = None
    tuned: bool = True

    @property
    def column(self) -> Column:
        return Column(self.label, self.settings, self.paper, self.tuned)


@dataclass(frozen=True)
class CellRule:
    """A rule for the cells that match `condition`.

    An override sets `settings` on them; an exclude leaves them out.
    """

    place: str
    condition: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)  # {} for an exclude


@dataclass(frozen=True)
class Sweep:
    """A declaration: rows, columns, and the settings that hold for all of them."""

    place: str  # the start of errors: the file, or "" for a command line without one
    title: str
    rows: tuple[Item, ...]
    columns: tuple[Item, ...]
    base_layers: tuple[SettingsLayer, ...]  # `base` and `from` of the file and of the scale
    command_settings: Mapping[str, Any]  # the command line, without the words that cross columns
    baseline: str | None
    seeds: tuple[int, ...]
    analysis: Analysis
    overrides: tuple[CellRule, ...] = ()
    excludes: tuple[CellRule, ...] = ()
    paper: Mapping[str, Any] = field(default_factory=dict)
    scale: str | None = None
    scale_parts: Collection[str] = ()  # parts that the scale declares: "paper.columns", "groups"
    tune: Tune | None = None
    groups: tuple[ColumnGroup, ...] = ()
    design: Design = field(default_factory=Fixed)
    crossed: tuple[str, ...] = ()  # keys of columns that the command line adds
    changes: Changes | None = None  # their cells are its rows
    smoke: bool = False  # does its scale only show that the sweep runs? Then no gain is judged

    def place_of(self, part: str) -> str:
        """Return the place of a part of the sweep, as errors begin."""
        return f"{self.place}: {part}" if self.place else part

    def place_and_fit(self, part: str) -> tuple[str, bool]:
        """Return (the place of a part of the table such as `paper.rows`, must all of it fit?).

        A part that a scale inherits from the file need not fit: the scale may lack rows and columns
        that the part names.
        """
        is_own = part in self.scale_parts
        return self.place_of(
            f"scales.{self.scale}.{part}" if is_own else part
        ), is_own or self.scale is None

    def layers(
        self, row: Item, column: Item, overrides: Iterable[CellRule] = ()
    ) -> list[SettingsLayer]:
        """Return a cell's settings, the lowest layer first."""
        if not self.place:  # all words are on one level, also those of rows and columns
            return [SettingsLayer("", {**self.command_settings, **column.settings, **row.settings})]
        words = {key: column.settings[key] for key in self.crossed}
        column_settings = {key: value for key, value in column.settings.items() if key not in words}
        return [
            *self.base_layers,
            SettingsLayer(column.place, column_settings),
            SettingsLayer(row.place, row.settings),
            *(SettingsLayer(override.place, override.settings) for override in overrides),
            SettingsLayer("", {**self.command_settings, **words}),
        ]


# --- The grammar that files and words share -----------------------------------------------------


def matches(condition: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Return whether each key of `condition` has its value, or one of a list of them, in
    `settings`."""
    return all(
        key in settings and matches_value(value, settings[key]) for key, value in condition.items()
    )


def matches_value(expected: Any, actual: Any) -> bool:
    """Return whether `actual` is the expected value, or one of a list. 1 is 1.0, but not true."""
    any_of = expected if isinstance(expected, list) else [expected]
    return any(
        value == actual and isinstance(value, bool) == isinstance(actual, bool)
        for value in [*any_of, expected]
    )


def seeds(raw: Any, place: str) -> tuple[int, ...]:
    """Return the seeds that a count or a list declares.

    Raises UserError for anything else, for a seed that comes twice, and for the seeds from
    FIRST_TUNING_SEED on, which are kept for tuning.
    """
    form = "a count or a bracketed list of whole numbers"
    if isinstance(raw, int) and not isinstance(raw, bool):
        if raw < 1:
            raise UserError(f"{place}: expected at least 1, got {raw}")
        raw = range(raw)
    elif not isinstance(raw, list) or not raw:
        raise UserError(f"{place}: expected {form} such as 3 or [0, 1, 2], got {raw!r}")
    for seed in raw:
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise UserError(f"{place}: expected {form}, got {seed!r} in the list")
        if seed >= FIRST_TUNING_SEED:
            raise UserError(
                f"{place}: seeds from {FIRST_TUNING_SEED} up are kept for tuning, got {seed}"
            )
    if len(set(raw)) < len(raw):
        raise UserError(f"{place}: each seed must be given once, got {list(raw)!r}")
    return tuple(raw)


Reader = Callable[[Any, str], Any]  # (value, place) -> the value; raises UserError


def parts_at(
    raw: Any, place: str, readers: Mapping[str, Reader], form: str, dot: str = "."
) -> dict[str, Any]:
    """Read the keys of a section, each by its reader. Raises UserError for any other key."""
    check_keys(place, mapping_at(raw, place, form), readers, dot)
    return {key: readers[key](value, f"{place}{dot}{key}") for key, value in raw.items()}


def field_readers(cls: Any, *keys: str) -> dict[str, Reader]:
    """Return the readers of a dataclass' fields, which check types and bounds.

    `keys`: the fields to read; all without any.
    """
    return {key: functools.partial(read_field, cls, key) for key in keys or field_types(cls)}


def analysis(raw: Any, place: str) -> dict[str, Any]:
    """Read `analysis:`, or the command line's `analysis.KEY`: the keys that are given, checked."""
    return parts_at(raw, place, ANALYSIS, "{key: value}")


def change_analysis(driven_plan: Plan, words: Mapping[str, Any]) -> Plan:
    """Return the plan of a driven sweep, with its analysis changed by `words`, the values by key.

    Raises UserError for what is no analysis, or not of this plan, and where looks of the sweep were
    by its own analysis.
    """
    changed_analysis = replace(driven_plan.analysis, **analysis(words, "analysis"))
    for key in words:
        if getattr(changed_analysis, key) != getattr(driven_plan.analysis, key):
            remedy = "drive the sweep with the new value"
            driven_plan.design.check_change(driven_plan, f"analysis.{key}", remedy)
    plan = replace(driven_plan, analysis=changed_analysis).with_own()
    plan.check_analysis("analysis.contrasts.")
    return plan


def _looks_at(value: Any, place: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(n) is int and n > 1 for n in value):
        raise UserError(f"{place}: expected numbers of seeds such as [3, 5], got {value!r}")
    if sorted(set(value)) != value:
        raise UserError(f"{place}: expected increasing numbers, got {value!r}")
    return tuple(value)


def _contrasts_at(value: Any, place: str) -> dict[str, Any]:
    contrasts = mapping_at(value, place, "NAME: {from: ..., to: ...}")
    return {
        label_at(name, place): _contrast(raw, f"{place}.{name}") for name, raw in contrasts.items()
    }


def _contrast(raw: Any, place: str) -> dict[str, Any]:
    form = "{from: row, to: row} or {across: key, from: value, to: value}"
    keys = set(mapping_at(raw, place, form))
    if keys == BETWEEN_ROWS:
        return {end: label_at(raw[end], f"{place}.{end}") for end in ("from", "to")}
    if keys != ACROSS_COLUMNS:
        raise UserError(f"{place}: expected {form}, got the keys {key_list(raw)}")
    return {**raw, "across": key_at(raw["across"], place)}


ANALYSIS = {**field_readers(Analysis), "looks": _looks_at, "contrasts": _contrasts_at}


def combinations(
    kind: str, values: Mapping[str, Sequence[Any]], place: str
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (settings, default label) of every combination of a product, zip or each.

    Raises UserError for a zip of lists that differ in length, and for too many combinations.
    """
    if kind == "each":
        yield from one_at_a_time(values)
        return
    if kind == "zip" and len({len(column) for column in values.values()}) > 1:
        lengths = ", ".join(f"{key} has {len(column)}" for key, column in values.items())
        raise UserError(f"{place}: zip: expected lists of one length, but {lengths}")
    steps = zip(*values.values(), strict=True) if kind == "zip" else _tuples(values, f"{place}: ")
    for step in steps:
        settings = dict(zip(values, step, strict=True))
        yield settings, name_settings(settings)


def one_at_a_time(values: Mapping[str, Sequence[Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (settings, label) for each value of each key, with that key set alone.

    The label is the value; with its key, where the value comes more than once.
    """
    often = Counter(value_text(value) for column in values.values() for value in column)
    for key, column in values.items():
        for value in column:
            text = value_text(value)
            yield {key: value}, text if often[text] == 1 else f"{key}={text}"


def products(values: Mapping[str, Sequence[Any]], place: str = "") -> Iterator[dict[str, Any]]:
    return (dict(zip(values, step, strict=True)) for step in _tuples(values, place))


def _tuples(values: Mapping[str, Sequence[Any]], place: str) -> Iterator[tuple[Any, ...]]:
    if (count := math.prod(map(len, values.values()))) > MOST_VALUES:
        keys = ", ".join(values)
        raise UserError(
            f"{place}{keys}: {count:,} combinations; at most {MOST_VALUES:,} are allowed"
        )
    return itertools.product(*values.values())


def name_settings(settings: Mapping[str, Any]) -> str:
    """Join the values to a label such as "dpn · lr=0.003".

    Among several keys, a value that is no text is labelled by its key; the key's last part is
    enough unless another key ends in the same part.
    """
    labels = _keyed_labels(settings)
    for key, value in settings.items():
        if len(settings) == 1 or isinstance(value, str):
            labels[key] = value_text(value)
    return JOINT.join(labels.values())


def keyed_values(settings: Mapping[str, Any]) -> str:
    """Join the values, each with its key as in `name_settings`: "stem=dpn · lr=0.003"."""
    return JOINT.join(_keyed_labels(settings).values())


def _keyed_labels(settings: Mapping[str, Any]) -> dict[str, str]:
    leaf_names = {key: key.rpartition(".")[2] for key in settings}
    often = Counter(leaf_names.values())
    labels = {}
    for key, value in settings.items():
        name = leaf_names[key] if often[leaf_names[key]] == 1 else key
        labels[key] = f"{name}={value_text(value)}"
    return labels


def fill_label(template: str, settings: Mapping[str, Any], place: str) -> str:
    """Fill a template such as `{block.attn}/{block.mlp}` with the row's own values.

    Raises UserError for a key that the row does not set.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in settings:
            raise unknown_value(f"{place}: label", match[1], settings, "a key of this entry:")
        return value_text(settings[match[1]])

    return re.sub(r"\{([^{}]*)\}", value, template)


def distinct(items: Iterable[Item], kind: str, place: str) -> tuple[Item, ...]:
    """Return the items. Raises UserError where a label comes twice, and where there are none."""
    by_label: dict[str, Item] = {}
    for item in items:
        one_line(item.label, f"{item.place}: label".removeprefix(": "))
        if item.label in by_label:
            first_place = by_label[item.label].place
            if not first_place:
                remedy = "give each value once"
            elif first_place == item.place:
                remedy = "give each value once, or a label with every key"
            else:
                remedy = (
                    f"one is in {first_place.rpartition(': ')[2]}; give the other another label"
                )
            raise UserError(f"{item.place or kind}: two {kind} are named {item.label!r}; {remedy}")
        by_label[item.label] = item
    if not by_label:
        raise UserError(f"{place}: there are no {kind}")
    return tuple(by_label.values())


def settings_at(raw: Any, place: str, empty: bool = True) -> dict[str, Any]:
    """Read {key: value}, values plain. `empty`: may there be no keys?"""
    settings = mapping_at(raw, place, "{key: value}")
    if not settings and not empty:
        raise UserError(f"{place}: expected {{key: value}}, got {{}}")
    return {key_at(key, place): plain_at(value, key, place) for key, value in settings.items()}


def parent_at(raw: Any, place: str) -> dict[str, Any]:
    """Read `from:`: its keys as `from.KEY`, those of its own `from:` as `from.from.KEY`."""
    content = dict(mapping_at(raw, place, "{recipe: NAME, data: NAME, ...}"))
    if "tune" in content:
        raise UserError(f"{place}.tune: only the parents of the table's runs can be searched")
    if not content:
        raise UserError(f"{place}: expected what the parent is trained with, got {{}}")
    above = parent_at(content.pop("from"), f"{place}.from") if "from" in content else {}
    seed = {"seed": content.pop("seed")} if "seed" in content else {}
    settings = seed | settings_at(content, place)
    return {f"{FROM_PREFIX}{key}": value for key, value in (settings | above).items()}


def key_at(key: Any, place: str) -> str:
    if not isinstance(key, str):
        raise UserError(f"{place}: expected a key such as model.depth, got {key!r}")
    section = key.partition(".")[0]
    if section in ("seed", "seeds"):
        raise UserError(f"{place}: {key}: seeds are declared under the file's `seeds:`")
    if section == "launcher":
        raise UserError(f"{place}: {key}: launchers are chosen on the command line only")
    if section in UNPLANNED_KEYS:
        raise UserError(f"{place}: {key}: {section}= is given on the command line only")
    if slip := colon(key):
        raise UserError(f"{place}: {key}: is no key{slip}")
    return key


def colon(text: Any) -> str:
    """Return a hint on the missing space in "norm:rmsnorm", which YAML reads as one word, or ""."""
    slip = isinstance(text, str) and re.search(r"[\w}]:\S", text)
    return "; put a space behind the colon" if slip else ""


def plain_at(value: Any, key: str, place: str) -> Any:
    try:
        return plain(value, key)
    except UserError as error:
        raise UserError(f"{place}: {error}") from error


def label_at(raw: Any, place: str) -> str:
    if isinstance(raw, bool) or not isinstance(raw, str | int | float) or raw == "":
        raise UserError(f"{place}: expected a label, got {raw!r}; put a text in quotes")
    return one_line(str(raw), place)


def text_at(raw: Any, place: str) -> str:
    if not isinstance(raw, str):
        raise UserError(f"{place}: expected a text, got {raw!r}")
    return one_line(raw, place)


def truth_at(raw: Any, place: str) -> bool:
    if not isinstance(raw, bool):
        raise UserError(f"{place}: expected true or false, got {raw!r}")
    return raw


def one_line(text: str, place: str) -> str:
    """Return a label or a title.

    Raises UserError for characters that would move a terminal's cursor or reverse the text.
    """
    if not text.isprintable():
        raise UserError(f"{place}: expected printable characters on one line, got {text!r}")
    return text


def mapping_at(raw: Any, place: str, form: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise UserError(f"{place}: expected {form}, got {raw!r}{colon(raw)}")
    return raw


def key_list(keys: Iterable[Any]) -> str:
    """Return the keys that a file has in place of others, as YAML has them: it reads on as true."""
    return ", ".join(key if isinstance(key, str) else spelling(key) for key in keys) or "none"


def list_at(raw: Any, place: str, form: str, empty: bool = False) -> list[Any]:
    if not isinstance(raw, list) or not (raw or empty):
        raise UserError(f"{place}: expected {form}, got {raw!r}")
    return raw


def show_settings(settings: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {value_text(value)}" for key, value in settings.items()) + "}"


PAPER_FORM = "{table: NAME, rows: {LABEL: name}}"
GROUPS_FORM = "{GROUP: [column, ...]}"


def read_paper(raw: Any, place: str) -> dict[str, Any]:
    readers = {"table": text_at, "rows": _names_at, "columns": _names_at}
    return parts_at(raw, place, readers, PAPER_FORM)


def _names_at(raw: Any, place: str) -> dict[str, str]:
    names = mapping_at(raw, place, "{LABEL: name}")
    return {str(label): text_at(name, f"{place}: {label}") for label, name in names.items()}


def read_groups(raw: Any, place: str) -> tuple[ColumnGroup, ...]:
    """Read `groups:`.

    Raises UserError where a column comes twice, or where two columns are shown under one name.
    """
    groups, heading_owners, names = [], dict[str, str](), dict[str, str]()
    for key, value in mapping_at(raw, place, GROUPS_FORM).items():
        group = label_at(key, place)
        location = f"{place}.{group}"
        headings = {}
        for name, column in _name_pairs(value, location):
            heading = label_at(column, location)
            display_name = heading if name is None else label_at(name, location)
            for text, owners in ((heading, heading_owners), (display_name, names)):
                if text in owners:
                    raise UserError(
                        f"{location}: {text!r} is in {owners[text]} as well; give it once"
                    )
                owners[text] = group
            headings[heading] = display_name
        groups.append(ColumnGroup(group, headings))
    return tuple(groups)


def _name_pairs(raw: Any, place: str) -> Iterator[tuple[Any, Any]]:
    """Return the pairs (name, column) of `{NAME: column}`; (None, column) of a list."""
    if isinstance(raw, dict) and raw:
        return iter(raw.items())
    return ((None, column) for column in list_at(raw, place, "[column, ...] or {NAME: column}"))


def paper_of(sweep: Sweep, first_rows: Mapping[str, str]) -> Mapping[str, Any]:
    """Return `paper:`, checked against the sweep's rows and columns.

    Its columns are named by label or by wide heading. A row that equals an earlier one is replaced
    by that one (`first_rows`). Raises UserError for an unknown row, and for an unknown column where
    the part must fit.
    """
    paper = dict(sweep.paper)
    places = wide_places([item.column for item in sweep.columns])
    headings = [place.heading for place in places.values() if place.arch and place.heading]
    for kind, labels in (
        ("rows", [item.label for item in sweep.rows]),
        ("columns", [*dict.fromkeys([*places, *headings])]),
    ):
        place, must_fit = sweep.place_and_fit(f"paper.{kind}")
        for label in paper.get(kind, {}):
            base_label = label if kind == "rows" else label.partition(" on ")[0]  # LABEL on SET
            if not {label, base_label} & {*labels} and (kind == "rows" or must_fit):
                raise unknown_value(place, label, labels)
    if "rows" in paper:
        paper["rows"] = {
            first_rows.get(label, label): name for label, name in paper["rows"].items()
        }
    return paper


def groups_of(sweep: Sweep, columns: Sequence[Item], notes: list[str]) -> tuple[ColumnGroup, ...]:
    """Return `groups:` without the columns that are not in `columns`, which have cells.

    Words that cross the columns leave the groups out, and so does a scale that has none of the
    groups' columns; `notes` says so. Raises UserError for a heading that no column has, and for a
    column that is in no group.
    """
    if sweep.groups and sweep.crossed:
        notes.append(f"groups are left out: {', '.join(sweep.crossed)} crosses their columns")
    if not sweep.groups or sweep.crossed:
        return ()
    place, must_fit = sweep.place_and_fit("groups")
    all_headings, cell_headings = (_headings(items) for items in (sweep.columns, columns))
    group_names = {heading: group.name for group in sweep.groups for heading in group.headings}
    if must_fit:
        for heading, group in group_names.items():
            if heading not in (*all_headings, *cell_headings):
                raise unknown_value(f"{place}.{group}", heading, all_headings, "a column among")
    elif not group_names.keys() & cell_headings.keys():
        notes.append("groups have no columns at this scale")
        return ()
    for heading in cell_headings:
        if heading not in group_names:
            choices = ", ".join(group.name for group in sweep.groups)
            one_of = "one of " if len(sweep.groups) > 1 else ""
            raise UserError(f"{place}: column {heading!r} is in none; add it to {one_of}{choices}")
    groups = (
        replace(
            group, headings={h: name for h, name in group.headings.items() if h in cell_headings}
        )
        for group in sweep.groups
    )
    return tuple(group for group in groups if group.headings)


def _headings(items: Sequence[Item]) -> dict[str, None]:
    places = wide_places([item.column for item in items])
    return dict.fromkeys(place.heading for place in places.values())
