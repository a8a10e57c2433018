"""Reading a sweep file: rows, columns, scales, and the settings that hold for all.

Used by `planning/expand.py`, for every command that names a sweep file. A new entry of `KEYS` or
`GENERATORS` also needs its row in docs/sweep-files.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Tune
from ablate.planning.changes import DEFAULT as DESIGN
from ablate.planning.changes import changes_at
from ablate.planning.declaration import (
    PAPER_FORM,
    CellRule,
    Item,
    Reader,
    Sweep,
    analysis,
    colon,
    combinations,
    distinct,
    fill_label,
    key_at,
    key_list,
    label_at,
    list_at,
    mapping_at,
    matches,
    name_settings,
    parent_at,
    parts_at,
    plain_at,
    products,
    read_groups,
    read_paper,
    seeds,
    settings_at,
    show_settings,
    text_at,
    truth_at,
)
from ablate.planning.declared import TUNE, Declared
from ablate.planning.design import DESIGNS, Design, Fixed
from ablate.planning.parents import check_once
from ablate.planning.settings import SettingsLayer, parse_word, single_values, value_text
from ablate.planning.sweep_paths import find_sweep_file, place_of, read_yaml
from ablate.planning.tuning import tuning
from ablate.planning.words import DEFAULT_SEEDS, cross, section_of, seeds_of
from ablate.run import check_keys
from ablate.shared import UserError, sha256_of, unknown_value

if TYPE_CHECKING:
    from ablate.planning.plan import Plan

MERGED = ("analysis", "paper", *TUNE)  # sections of which a scale may replace single keys
KEYS = (
    *("title", "base", "from", "across", "variants", "changes", "design", "baseline", "seeds"),
    *(*DESIGNS, "overrides", "exclude", "scales", "paper", "groups", "analysis", "tune"),
)
# Keys that no scale has.
UNSCALED_KEYS = ("variants", "changes", "design", "baseline", "exclude", "scales")
SCALE_KEYS = (*(key for key in KEYS if key not in UNSCALED_KEYS), "smoke")  # which no file has
GENERATORS = ("product", "zip", "each")
# Old names of scales that ship -> what they are called now.
RENAMED_SCALES = {"digits": "smoke", "camvid": "smoke", "mnist": "small"}


def load_sweep_file(path: Path) -> tuple[str, dict[str, Any]]:
    """Return (how errors name the file, its content).

    Raises UserError where it is no sweep file.
    """
    place, raw = read_yaml(path)
    content = mapping_at(raw, place, "keys such as variants:")
    for key in content:
        if key not in KEYS:
            key_at(key, place)  # has a better error for keys of the command line
    check_keys(place, content, KEYS, ": ")
    return place, content


def from_file(
    place: str, content: Mapping[str, Any], line: Declared, groups: Mapping[str, Sequence[str]]
) -> Sweep:
    """Return the sweep of a file's content under a command line, at the command line's scale."""
    reader, scale = _Reader(place, groups), line.options.scale
    scales = {
        name: reader.scale(raw, f"{place}: scales.{name}")
        for name, raw in mapping_at(
            content.get("scales", {}), f"{place}: scales", "NAME: {base: ..., seeds: ...}"
        ).items()
    }
    if scale is not None and not scales:
        raise UserError(f"--scale {scale}: {place} has no scales")
    if scale is not None and scale not in scales:
        if (new_name := RENAMED_SCALES.get(scale)) in scales:
            raise UserError(f"--scale {scale}: is called {new_name} now; give --scale {new_name}")
        raise unknown_value("--scale", scale, scales)
    if ("variants" in content) == ("changes" in content):
        fault = "can't be combined with changes" if "changes" in content else "missing"
        raise UserError(
            f"{place}: variants: {fault}; give variants: [LABEL: {{key: value}}, ...], or changes: "
            f"{{NAME: {{key: value}}, ...}}"
        )
    of_rows, changes = _Reader(place, groups), None
    if "changes" in content:
        declaration = changes_at(content["changes"], f"{place}: changes")
        design_place = "--design" if line.options.design else f"{place}: design"
        changes, rows = declaration.expand(
            line.options.design or content.get("design", DESIGN), design_place
        )
    else:
        rows = of_rows.entries(content["variants"])
        for kind, option in (
            (content.get("design"), f"{place}: design"),
            (line.options.design, "--design"),
        ):
            if kind is not None:
                raise UserError(f"{option}: {kind} is a design of changes; {place} has variants")
    file_parts = reader.scale({k: v for k, v in content.items() if k in SCALE_KEYS}, place)
    scaled = scales[scale] if scale is not None else {}
    levels = {f"{place}: ": file_parts, f"{place}: scales.{scale}.": scaled}
    both = {key: {**file_parts.get(key, {}), **scaled.get(key, {})} for key in MERGED}
    parts = {**file_parts, **scaled, **{key: value for key, value in both.items() if value}}
    paper = parts.get("paper", {})
    if paper and "table" not in paper:
        raise UserError(f"{place}: paper: table: missing; expected {PAPER_FORM}")
    baseline = content.get("baseline")
    if baseline is None and of_rows.globbed:
        raise UserError(
            f"{place}: baseline: missing; rows of glob() have no first one, so give baseline: LABEL"
        )
    baseline_place = f"{place}: baseline"
    if "baseline" in line.sweep:
        baseline, baseline_place = line.sweep["baseline"].value, "baseline"
    title, smoke = parts.get("title", ""), scaled.get("smoke", False)
    if scale is not None and "title" not in scaled and title:
        title = f"Smoke test: {title}" if smoke else f"{title} (scale {scale})"
    columns = parts.get("across", (Item("", {}, place),))
    if line.crossed:
        columns = cross(line.crossed, columns, rows, paper.pop("columns", {}))
    words = analysis(section_of(line, "analysis"), "analysis")
    design = _design(levels)
    return Sweep(
        place=place,
        title=title,
        rows=distinct(rows, "rows", f"{place}: variants"),
        columns=columns,
        base_layers=tuple(_base_layers(levels)),
        command_settings=single_values(word for word in line.settings if not word.swept),
        baseline=None if baseline is None else label_at(baseline, baseline_place),
        seeds=seeds_of(line, parts.get("seeds", DEFAULT_SEEDS), f"{place}: seeds"),
        analysis=Analysis(**{**parts.get("analysis", {}), **words}),
        overrides=parts.get("overrides", ()),
        excludes=tuple(reader.excludes(content.get("exclude", []), f"{place}: exclude")),
        paper=paper,
        scale=scale,
        scale_parts=frozenset(
            ["groups"] * ("groups" in scaled)
            + [f"{part}.{key}" for part in ("analysis", "paper") for key in scaled.get(part, {})]
        ),
        tune=_tune(place, parts, line, design),
        groups=parts.get("groups", ()),
        design=design,
        crossed=tuple(word.key for word in line.crossed),
        changes=changes,
        smoke=smoke,
    )


def _base_layers(levels: Mapping[str, Mapping[str, Any]]) -> Iterator[SettingsLayer]:
    """Yield the layers that hold for every cell: `base` and `from` of each level.

    `levels`: by the start of their places.
    """
    for prefix, level in levels.items():
        check_once({**level.get("base", {}), **level.get("from", {})}, prefix.rstrip(": ."))
        for key in ("base", "from"):
            if key in level:
                yield SettingsLayer(f"{prefix}{key}", level[key])


def _design(levels: Mapping[str, Mapping[str, Any]]) -> Design:
    """Return the design of the last level that declares one, or seeds, which make it `Fixed`.

    Raises UserError where a level has both seeds and a design such as `until`.
    """
    design: Design = Fixed()
    for prefix, level in levels.items():
        keys = [key for key in (*DESIGNS, "seeds") if key in level]
        if len(keys) > 1:
            raise UserError(
                f"{prefix}{keys[0]}: stands without {keys[1]}: it says which seeds there are; "
                f"remove one"
            )
        if keys:
            design = Fixed() if keys == ["seeds"] else level[keys[0]]
    return design


def _tune(place: str, parts: Mapping[str, Any], line: Declared, design: Design) -> Tune | None:
    """Return the searches; None where there are none, or `tune=none` leaves them out.

    The trials of a search depend on the number of seeds that the file declares, not on the command
    line's seeds. Raises UserError where both `tune` and `from.tune` are declared, and for words on
    a search that is not.
    """
    sections = [section for section in TUNE if section in parts]
    if len(sections) > 1:
        raise UserError(
            f"{place}: tune: a sweep has tune or from.tune, not both: it searches settings of "
            f"its runs, or of their parents; remove one"
        )
    words = {section: section_of(line, section) for section in TUNE}
    for section in TUNE:
        if section not in sections and (section in line.sweep or words[section]):
            form = "`tune:` section" if section == "tune" else "`tune:` to its `from:`"
            raise UserError(f"{section}: {place} declares no such search; add a {form}")
    if not sections or sections[0] in line.sweep:
        return None
    [section] = sections
    seeds, *_ = design.seed_counts or (len(parts.get("seeds", range(DEFAULT_SEEDS))),)
    return tuning(section, parts[section], words[section], place, seeds, design)


def _from_at(raw: Any, place: str) -> dict[str, Any]:
    """Read `from:`, and the search of parents, as a key `from.tune`, apart from it."""
    content = dict(mapping_at(raw, place, "{recipe: NAME, data: NAME, ...}"))
    tuned = {}
    if "tune" in content:
        tuned = {"from.tune": mapping_at(content.pop("tune"), f"{place}.tune", "{space: ...}")}
    return {"from": parent_at(content, place) if content or not tuned else {}, **tuned}


def _tune_at(raw: Any, place: str) -> dict[str, Any]:
    return mapping_at(raw, place, "{space: ..., trials: ...}")  # see `tuning`


@dataclass
class _Reader:
    """A reader of the parts of one sweep file."""

    file: str
    groups: Mapping[str, Sequence[str]]
    globbed: bool = False  # a row came from glob()

    def scale(self, raw: Any, place: str) -> dict[str, Any]:
        """Read the parts that a scale may replace; the file itself has the same."""
        readers: dict[str, Reader] = {
            "title": text_at,
            "base": settings_at,
            "from": _from_at,
            "across": lambda raw, place: distinct(self.axes(raw, place), "columns", place),
            "seeds": seeds,
            **{key: design.parse for key, design in DESIGNS.items()},
            "overrides": lambda raw, place: tuple(self.overrides(raw, place)),
            "tune": _tune_at,
            "analysis": analysis,
            "paper": read_paper,
            "groups": read_groups,
            "smoke": truth_at,
        }
        dot = ": " if place == self.file else "."
        parts = parts_at(raw, place, readers, "{base: ..., across: ..., seeds: ...}", dot)
        return {**parts, **parts.get("from", {})}

    def entries(self, raw: Any) -> list[Item]:
        """Read the rows."""
        place = f"{self.file}: variants"
        form = "a list of LABEL: {key: value}"
        return [
            row
            for n, entry in enumerate(list_at(raw, place, form))
            for row in self.entry(entry, f"{place}[{n}]")
        ]

    def entry(self, entry: Any, place: str) -> list[Item]:
        form = "LABEL: {key: value}"
        if isinstance(entry, str):
            right = colon(entry) or f"; write {entry}: {{}}"
            raise UserError(f"{place}: expected {form}, got {entry!r}{right}")
        entry = mapping_at(entry, place, form)
        if any(key in entry for key in GENERATORS):
            return list(self.generated(entry, place, GENERATORS))
        label, settings = self.label_and_settings(entry, place)
        return [Item(label, settings_at(settings, place), place)]

    def label_and_settings(self, entry: Mapping[str, Any], place: str) -> tuple[str, Any]:
        if len(entry) != 1:
            raise UserError(
                f"{place}: expected one LABEL: {{key: value}}, got {len(entry)} keys: "
                f"{key_list(entry)}"
            )
        [(label, settings)] = entry.items()
        label = label_at(label, place)
        if settings is None:
            raise UserError(f"{place}: {label}: expected {{key: value}}; write {label}: {{}}")
        if isinstance(settings, str) and (slip := colon(label)):  # a:{stem: dpn}
            raise UserError(f"{place}: {label}: expected {{key: value}}, got {settings!r}{slip}")
        return label, settings

    def axes(self, raw: Any, place: str) -> list[Item]:
        """Read the columns."""
        if isinstance(raw, list):
            return [self.column(entry, f"{place}[{n}]") for n, entry in enumerate(raw)]
        axes = mapping_at(raw, place, "{key: [values]} or a list of LABEL: {key: value}")
        if any(key in axes for key in GENERATORS):
            return list(self.generated(axes, place, ("product", "zip")))
        values = {key: self.values(key, value, place) for key, value in axes.items()}
        return [Item(name_settings(s), s, place) for s in products(values, f"{place}: ")]

    def column(self, entry: Any, place: str) -> Item:
        label, settings = self.label_and_settings(
            mapping_at(entry, place, "LABEL: {key: value}"), place
        )
        settings = dict(mapping_at(settings, place, "{key: value}"))
        paper = settings.pop("paper", None)
        if paper is not None and not isinstance(paper, str):
            raise UserError(f"{place}: paper: expected a column such as S/16, got {paper!r}")
        if (tune := settings.pop("tune", None)) not in (None, "none"):
            raise UserError(f"{place}: tune: expected none, for a column without it, got {tune!r}")
        settings = settings_at(settings, place)
        return Item(label, settings, place, paper=paper, tuned=tune is None)

    def generated(
        self, entry: Mapping[str, Any], place: str, kinds: Sequence[str]
    ) -> Iterator[Item]:
        """Yield the items of a product, zip or each.

        Raises UserError for an exclude that matches none of them, and where the form is wrong.
        """
        keys = (*kinds, "set", "exclude", "label", "family")
        check_keys(place, entry, keys, ": ", "one of")
        if len(both := [kind for kind in kinds if kind in entry]) != 1:
            raise UserError(f"{place}: expected one of {', '.join(kinds)}, got {len(both)}")
        kind = both[0]
        axes = mapping_at(entry[kind], f"{place}: {kind}", "{key: [values]}")
        if not axes:
            raise UserError(f"{place}: {kind}: expected {{key: [values]}}, got nothing")
        values = {key: self.values(key, raw, f"{place}: {kind}") for key, raw in axes.items()}
        added = settings_at(entry.get("set", {}), f"{place}: set")
        for key in added:
            if key in values:
                raise UserError(f"{place}: set: {key} is in {kind} as well; give {key} once")
        template, family = (entry.get(key) for key in ("label", "family"))
        for key, text in (("label", template), ("family", family)):
            if text is not None:
                text_at(text, f"{place}: {key}")
        excludes = list(self.excludes(entry.get("exclude", []), f"{place}: exclude"))
        matched: set[str] = set()
        for combination, name in combinations(kind, values, place):
            settings = {**added, **combination}
            hits = [ex for ex in excludes if matches(ex.condition, settings)]
            matched.update(ex.place for ex in hits)
            if hits:
                continue
            label = name if template is None else fill_label(template, settings, place)
            yield Item(label, settings, place, family)
        for ex in excludes:
            if ex.place not in matched:
                raise UserError(f"{ex.place}: matches nothing: {show_settings(ex.condition)}")

    def values(self, key: Any, raw: Any, place: str) -> tuple[Any, ...]:
        """Read the values of one key: a list, or one of Hydra's functions that make one."""
        key_at(key, place)
        location = f"{place}: {key}"
        if isinstance(raw, str) and re.match(r"\w+\(", raw):
            try:
                word = parse_word(f"{key}={raw}", self.groups)
            except UserError as error:
                raise UserError(f"{place}: {error}") from error
            self.globbed |= word.glob
            return word.values
        if not isinstance(raw, list):
            right = value_text(raw) if isinstance(raw, str | int | float | None) else "VALUE"
            raise UserError(f"{location}: expected a list, got {raw!r}; write {key}: [{right}]")
        if not raw:
            raise UserError(f"{location}: expected a list of values, got none")
        return tuple(plain_at(value, key, place) for value in raw)

    def excludes(self, raw: Any, place: str) -> Iterator[CellRule]:
        for n, condition in enumerate(list_at(raw, place, "a list of {key: value}", empty=True)):
            yield CellRule(f"{place}[{n}]", settings_at(condition, f"{place}[{n}]", empty=False))

    def overrides(self, raw: Any, place: str) -> Iterator[CellRule]:
        form = "{if: {key: value}, set: {key: value}}"
        for n, entry in enumerate(list_at(raw, place, f"a list of {form}", empty=True)):
            location = f"{place}[{n}]"
            if set(mapping_at(entry, location, form)) != {"if", "set"}:
                raise UserError(f"{location}: expected {form}, got the keys {key_list(entry)}")
            condition, settings = (
                settings_at(entry[key], f"{location}: {key}", empty=False) for key in ("if", "set")
            )
            yield CellRule(location, condition, settings)


# --- Has the file of a sweep changed since the sweep was planned? -----------------------------
#
# A plan keeps two hashes of its file: of its bytes, which are quickly compared, and of what it
# declares at the plan's scale, so that a comment, or another scale, is no change.


def file_hashes(path: Path, scale: str | None) -> dict[str, str]:
    """Return the hashes of a sweep file, as plans keep them: of its bytes, and of what it declares.

    The scale is added if there is one. Raises UserError for a file that is no sweep file.
    """
    scale_entry = {} if scale is None else {"scale": scale}
    return {"sha256": sha256_of(path), "declares": _declaration_hash(path, scale), **scale_entry}


def _declaration_hash(path: Path, scale: str | None) -> str:
    _, content = load_sweep_file(path)
    scales = content.get("scales")
    if isinstance(scales, dict):
        content = {**content, "scales": {scale: scales.get(scale)}}
    # Keys are not sorted: their order is that of rows and columns.
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()


def edit_notes(plan: Plan, command: Callable[..., str]) -> Iterator[str]:
    """Yield a note where the sweep file of a plan has changed what it declares since then.

    A file that is not in reach, as the plan declares it, brings none. `command`: makes a command
    line for the plan's store.
    """
    line = plan.declared
    if not plan.file or not isinstance(line, Declared) or line.file is None:
        return
    try:
        path = find_sweep_file(line.file)
        sha256 = sha256_of(path)
    except (UserError, OSError):  # not in reach; this may be another folder
        return
    if sha256 == plan.file.get("sha256"):
        return
    try:
        if _declaration_hash(path, plan.file.get("scale")) == plan.file.get("declares"):
            return
    except UserError:
        pass  # `ablate sweep` will say what is wrong with it
    yield (
        f"{place_of(path)} has changed since `{command('sweep', *plan.words)}` planned it: all "
        f"that is shown is of that plan; the same command trains the file as it is now, "
        f"`{command('plan', *plan.words)}` shows its runs"
    )
