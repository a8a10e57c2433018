"""Several changes to one baseline: the cells of a design, and the changes that each cell has.

A change is one or more settings. A cell has some of the changes; `none` has none of them, `all` has
all. `Changes` says which cells a design has; `ablate.analysis.effects` computes effects from them.

Used by `planning/words.py` (`--change`), `planning/sweep_file.py` (`changes:`) and
`analysis/effects.py`. A new entry of `EFFECT_KINDS` also needs the help of `--design` in
`cli/selection.py`, its row in docs/designs.md, and `python tests/options_page.py`, which writes
docs/options.md.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from ablate.planning.declaration import Item, label_at, mapping_at, settings_at
from ablate.planning.declared import Change, words_of
from ablate.planning.settings import parse_word, single_values, value_text
from ablate.run import Key
from ablate.shared import UserError, unknown_value

Kind = Literal["one_at_a_time", "leave_one_out", "both", "factorial", "fractional"]
EFFECT_KINDS: dict[str, str] = {
    "one_at_a_time": "none, and each change alone",
    "leave_one_out": "all, and all but each change",
    "both": "none, each change alone, all but each change, all",
    "factorial": "every combination",
    "fractional": "16 combinations of 5 to 8 changes, 32 of 9 to 16",
}
DEFAULT: Kind = "both"
NO_CHANGE, ALL_CHANGES, ALL_BUT, PLUS = "none", "all", "all but ", " + "
MAIN_EFFECT = "main effect"
MOST_CHANGES = 10  # changes in a factorial, which then has 1,024 cells

# The columns beyond the first 4 or 5 are products of these, so that main effects are clear of
# pairs: resolution IV, V for 5 changes (Box, Hunter, Hunter 1978, Statistics for Experimenters,
# table 12.15; Montgomery, Design and Analysis of Experiments, table 8.14). From 12 changes on, of
# products of three and of all five (Box, Hunter 1961, Technometrics 3:311).
GENERATORS: dict[int, tuple[str, ...]] = {
    5: ("ABCD",),
    6: ("ABC", "BCD"),
    7: ("ABC", "BCD", "ACD"),
    8: ("BCD", "ACD", "ABC", "ABD"),
    9: ("BCDE", "ACDE", "ABDE", "ABCE"),
    10: ("ABCD", "ABCE", "ABDE", "ACDE", "BCDE"),
    11: ("ABC", "BCD", "CDE", "ACD", "ADE", "BDE"),
}
_THREES = tuple(map("".join, itertools.combinations("ABCDE", 3)))
GENERATORS |= {k: (*_THREES, "ABCDE")[: k - 5] for k in range(12, 17)}


@dataclass(frozen=True)
class Changes:
    """The changes of a sweep, and its design. `rows`: row label -> the changes of that row."""

    names: tuple[str, ...]
    design: Annotated[Kind, Key("the combinations of changes that are trained")] = DEFAULT
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def crossed(self) -> bool:
        """True where every cell informs about every change: in a factorial or fractional design."""
        return self.design in ("factorial", "fractional")

    @property
    def baseline(self) -> str:
        return ALL_CHANGES if self.design == "leave_one_out" else NO_CHANGE

    @property
    def parts(self) -> tuple[str, ...]:
        """The effects that are computed of each change: see `ablate.analysis.effects`.

        They are "alone" (against `none`) and "among all" (against `all`), one or both, or the main
        effect.
        """
        parts: dict[str, tuple[str, ...]] = {
            "one_at_a_time": ("alone",),
            "leave_one_out": ("among all",),
            "both": ("alone", "among all"),
        }
        return parts.get(self.design, (MAIN_EFFECT,))

    @property
    def contrasts(self) -> int:
        """The number of gains of a column that have verdicts."""
        return len(self.names) * len(self.parts)

    def levels(self, labels: Sequence[str]) -> list[list[int]]:
        """Return a list for each row, in the order of `names`: 1 where it has a change, else 0."""
        return [[int(name in self.rows[label]) for name in self.names] for label in labels]

    def aliases(self) -> list[list[tuple[int, int]]]:
        """Return all pairs of changes, as indices into `names`, in groups.

        The interactions of the pairs in a group are aliased: no cell tells them apart.
        """
        signs = [[2 * level - 1 for level in cell] for cell in self.levels([*self.rows])]
        groups: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for a, b in itertools.combinations(range(len(self.names)), 2):
            groups.setdefault(tuple(cell[a] * cell[b] for cell in signs), []).append((a, b))
        return [*groups.values()]


def design_cells(names: Sequence[str], design: str, place: str = "design") -> list[tuple[str, ...]]:
    """Return the changes of every cell of a design, each combination once. `place`: the start of
    errors.

    Raises UserError where there is no such design for this number of changes.
    """
    count, full_cell = len(names), tuple(names)
    alone = [(name,) for name in names]
    but = [tuple(name for name in names if name != omitted) for omitted in names]
    if design == "factorial":
        if count > MOST_CHANGES:
            raise UserError(f"{place}: factorial takes up to {MOST_CHANGES} changes, got {count}")
        cells = _sorted(names, itertools.product((False, True), repeat=count))
    elif design == "fractional":
        if count not in GENERATORS:
            low, high = min(GENERATORS), max(GENERATORS)
            raise UserError(f"{place}: fractional takes {low} to {high} changes, got {count}")
        cells = _sorted(names, _fraction(count))
    elif design == "one_at_a_time":
        cells = [(), *alone]
    elif design == "leave_one_out":
        cells = [full_cell, *but]
    else:
        cells = [(), *alone, *but, full_cell]
    return [*dict.fromkeys(cells)]


def _sorted(names: Sequence[str], cells: Iterable[Iterable[bool]]) -> list[tuple[str, ...]]:
    """Return the names that each cell has, cells with few names first."""
    numbers = ([k for k, is_on in enumerate(on) if is_on] for on in cells)
    return [tuple(names[k] for k in on) for on in sorted(numbers, key=lambda on: (len(on), on))]


def _fraction(count: int) -> Iterator[tuple[bool, ...]]:
    """Yield the cells of a fraction that has `none` among them: True for the changes of a cell.

    For that, the sign of a product of an even number of columns is flipped.
    """
    base_count = count - len(GENERATORS[count])
    for base in itertools.product((-1, 1), repeat=base_count):
        cell = list(base)
        for word in GENERATORS[count]:
            sign = -1 if len(word) % 2 == 0 else 1
            for letter in word:
                sign *= base[ord(letter) - ord("A")]
            cell.append(sign)
        yield tuple(sign > 0 for sign in cell)


def effect_label(name: str, part: str) -> str:
    """Return the label of a change's effect: its name for the main effect, else "dpn alone"."""
    return name if part in ("", MAIN_EFFECT) else f"{name} {part}"


def cell_label(names: Sequence[str], on: Sequence[str], design: str) -> str:
    if not on or len(on) == len(names):
        return ALL_CHANGES if on else NO_CHANGE
    if len(on) == len(names) - 1 > 1 and design in ("leave_one_out", "both"):
        return ALL_BUT + next(name for name in names if name not in on)
    return PLUS.join(on)


# --- What is declared ---------------------------------------------------------------------------

FORM = "{NAME: {key: value}, ...}"
WORD = "'NAME: key=value ...'"


@dataclass(frozen=True)
class DeclaredChanges:
    """The section `changes:`, as written.

    `settings`: the settings of each change, by name. `together`: by several names, the settings
    that these changes have together, where two of them set the same key. `place`: the start of
    errors.
    """

    settings: Mapping[str, Mapping[str, Any]]
    together: Mapping[tuple[str, ...], Mapping[str, Any]]
    place: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.settings)

    def expand(self, design: str, place: str) -> tuple[Changes, list[Item]]:
        """Return the changes under a design, and a row for each of its cells. `place`: where the
        design is declared.

        Raises UserError for an unknown design, and as `design_cells` and `_settings` do.
        """
        if not isinstance(design, str) or design not in EFFECT_KINDS:
            raise unknown_value(place, design, EFFECT_KINDS)
        rows, items = {}, []
        for on in design_cells(self.names, design, place):
            label = cell_label(self.names, on, design)
            rows[label] = on
            items.append(Item(label, self._settings(on), self.place))
        return Changes(self.names, design, rows), items  # type: ignore[arg-type]

    def _settings(self, on: Sequence[str]) -> dict[str, Any]:
        """Return the settings of a cell.

        Raises UserError where two of its changes set the same key, and `together` has no value for
        it.
        """
        settings: dict[str, Any] = {}
        for key in dict.fromkeys(key for name in on for key in self.settings[name]):
            setters = tuple(name for name in on if key in self.settings[name])
            if len(setters) == 1:
                settings[key] = self.settings[setters[0]][key]
            elif key in (both := self.together.get(setters, {})):
                settings[key] = both[key]
            else:
                joined = PLUS.join(setters)
                names = f"{', '.join(setters[:-1])} and {setters[-1]}"
                quantifier = "both" if len(setters) == 2 else "all"
                raise UserError(
                    f"{self.place}: {names} {quantifier} set {key}; give {joined!r}, with "
                    f"the {key} that they set together, or make them one change"
                )
        return settings


def changes_at(raw: Any, place: str) -> DeclaredChanges:
    """Read `changes:`. Raises UserError, one line."""
    content = mapping_at(raw, place, FORM)
    settings: dict[str, Mapping[str, Any]] = {}
    together: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for key, value in content.items():
        name = label_at(key, place)
        change = settings_at(value, f"{place}.{name}", empty=False)
        if PLUS in name:
            together[tuple(name.split(PLUS))] = change
        elif name in (NO_CHANGE, ALL_CHANGES) or name.startswith(ALL_BUT):
            raise UserError(
                f"{place}: {name!r} names a cell of the design; give the change another name"
            )
        else:
            settings[name] = change
    if len(settings) < 2:
        raise UserError(f"{place}: expected two changes or more, got {len(settings)}")
    ordered = dict[tuple[str, ...], Mapping[str, Any]]()
    for names, both in together.items():
        for name in names:
            if name not in settings:
                raise unknown_value(
                    f"{place}: {PLUS.join(names)}", name, settings, "a change among"
                )
        for key in both:
            if sum(key in settings[name] for name in names) < 2:
                raise UserError(
                    f"{place}: {PLUS.join(names)}: {key}: is set by fewer than two of them alone; "
                    f"leave it to the change that sets it"
                )
        ordered[tuple(name for name in settings if name in names)] = both
    return DeclaredChanges(settings, ordered, place)


def read_changes(
    declarations: Iterable[str] | Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Sequence[str]],
) -> tuple[Change, ...]:
    """Read the texts of `--change`, of the form WORD, or changes of Python: name -> settings.

    Raises UserError, one line.
    """
    changes = list[Change]()
    if isinstance(declarations, Mapping):
        for name, values in declarations.items():
            changes.append(Change(str(name), tuple(words_of(values))))
        return tuple(changes)
    for text in declarations:
        name, colon, settings = text.partition(":")
        words = tuple(parse_word(word, groups) for word in _split_words(settings))
        if not colon or not name.strip() or not words:
            raise UserError(f"--change {text!r}: expected {WORD}")
        changes.append(Change(name.strip(), words))
    return tuple(changes)


# A text in quotes, spaces, or any other character.
_TOKEN = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\s+|.""")


def _split_words(settings: str) -> list[str]:
    """Return the words of a change, which spaces part that are in no quotes and no list."""
    words, depth = [""], 0
    for token in _TOKEN.findall(settings):
        depth += (token == "[") - (token == "]")
        if token.isspace() and depth < 1:
            words.append("")
        else:
            words[-1] += token
    return [word for word in words if word]


def changes_of(changes: Iterable[Change]) -> DeclaredChanges:
    """Return the changes of a command line, checked. Raises UserError, one line."""
    content: dict[str, dict[str, Any]] = {}
    for change in changes:
        if ":" in change.name or change.name != change.name.strip():
            raise UserError(
                f"--change: {change.name!r}: expected a name without a colon, and without a space "
                f"at either end; rename the change"
            )
        if change.name in content:
            raise UserError(f"--change {change.name}: given twice")
        try:
            content[change.name] = single_values(change.settings)
        except UserError as error:
            raise UserError(f"--change {change.name}: {error}") from error
    return changes_at(content, "--change")


def check_effective(changes: Changes, first_rows: Mapping[str, str]) -> None:
    """Raise UserError for a change that alters nothing.

    `first_rows`: row label -> the first row that has the same specs.
    """
    rows = {frozenset(on): label for label, on in changes.rows.items()}
    for name in changes.names:
        pairs = [(on - {name}, on) for on in rows if name in on and on - {name} in rows]
        if pairs and all(first_rows[rows[a]] == first_rows[rows[b]] for a, b in pairs):
            raise UserError(
                f"change {value_text(name)}: alters nothing: {rows[pairs[0][1]]} is "
                f"{rows[pairs[0][0]]} again; leave it out"
            )
