"""What a sweep file says of its table alone: the published table beside it (`paper:`), and the
groups of its columns (`groups:`). No run's id depends on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ablate.planning.cell import ColumnGroup, wide_places
from ablate.planning.declaration import (
    Item,
    Sweep,
    label_at,
    list_at,
    mapping_at,
    parts_at,
    text_at,
)
from ablate.shared.errors import UserError, unknown

PAPER_FORM = "{table: NAME, rows: {LABEL: name}}"
GROUPS_FORM = "{GROUP: [column, ...]}"


def read_paper(raw: Any, place: str) -> dict[str, Any]:
    readers = {"table": text_at, "rows": _names_at, "columns": _names_at}
    return parts_at(raw, place, readers, PAPER_FORM)


def _names_at(raw: Any, place: str) -> dict[str, str]:
    names = mapping_at(raw, place, "{LABEL: name}")
    return {str(label): text_at(name, f"{place}: {label}") for label, name in names.items()}


def read_groups(raw: Any, place: str) -> tuple[ColumnGroup, ...]:
    """The groups, none of whose columns comes twice, nor is shown as another one is."""
    groups, seen, names = [], dict[str, str](), dict[str, str]()
    for key, value in mapping_at(raw, place, GROUPS_FORM).items():
        group = label_at(key, place)
        where = f"{place}.{group}"
        headings = {}
        for name, each in _named(value, where):
            heading = label_at(each, where)
            shown = heading if name is None else label_at(name, where)
            for text, others in ((heading, seen), (shown, names)):
                if text in others:
                    raise UserError(f"{where}: {text!r} is in {others[text]} as well; give it once")
                others[text] = group
            headings[heading] = shown
        groups.append(ColumnGroup(group, headings))
    return tuple(groups)


def _named(raw: Any, place: str) -> Iterator[tuple[Any, Any]]:
    """(name, column) of `{NAME: column}`; (None, column) of a list."""
    if isinstance(raw, dict) and raw:
        return iter(raw.items())
    return ((None, each) for each in list_at(raw, place, "[column, ...] or {NAME: column}"))


def paper_of(sweep: Sweep, first: Mapping[str, str]) -> Mapping[str, Any]:
    """`paper:`, its rows and columns being ours; columns by label or by their wide heading."""
    paper = dict(sweep.paper)
    places = wide_places([item.column for item in sweep.columns])
    headings = [place.heading for place in places.values() if place.arch and place.heading]
    for kind, labels in (
        ("rows", [item.label for item in sweep.rows]),
        ("columns", [*dict.fromkeys([*places, *headings])]),
    ):
        place, must_fit = sweep.where(f"paper.{kind}")
        for label in paper.get(kind, {}):
            named = label if kind == "rows" else label.partition(" on ")[0]  # LABEL on SET
            if not {label, named} & {*labels} and (kind == "rows" or must_fit):
                raise unknown(place, label, labels)
    if "rows" in paper:
        paper["rows"] = {first.get(label, label): name for label, name in paper["rows"].items()}
    return paper


def groups_of(sweep: Sweep, columns: Sequence[Item], notes: list[str]) -> tuple[ColumnGroup, ...]:
    """`groups:` of the `columns` that have cells. Raises UserError for a heading that no column
    has, and for a column that is in no group; a scale with other columns has its own, or none."""
    if sweep.groups and sweep.crossed:
        notes.append(f"groups are left out: {', '.join(sweep.crossed)} crosses their columns")
    if not sweep.groups or sweep.crossed:
        return ()
    place, must_fit = sweep.where("groups")
    declared, here = (_headings(items) for items in (sweep.columns, columns))
    named = {heading: group.name for group in sweep.groups for heading in group.headings}
    if must_fit:
        for heading, group in named.items():
            if heading not in (*declared, *here):
                raise unknown(f"{place}.{group}", heading, declared, "a column among")
    elif not named.keys() & here.keys():
        notes.append("groups have no columns at this scale")
        return ()
    for heading in here:
        if heading not in named:
            choices = ", ".join(group.name for group in sweep.groups)
            raise UserError(f"{place}: column {heading!r} is in none; add it to one of {choices}")
    kept = (
        replace(group, headings={h: name for h, name in group.headings.items() if h in here})
        for group in sweep.groups
    )
    return tuple(group for group in kept if group.headings)


def _headings(items: Sequence[Item]) -> dict[str, None]:
    places = wide_places([item.column for item in items])
    return dict.fromkeys(place.heading for place in places.values())
