"""A command line, read: `[NAME] k=v ...`; without NAME it is a whole sweep."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import JOINT
from ablate.planning.declaration import (
    Item,
    Sweep,
    analysis,
    distinct,
    joined,
    label_at,
    products,
    seeds,
)
from ablate.planning.overrides import Word, once, parse, show
from ablate.shared.errors import UserError

DEFAULT_SEEDS = 3
TUNE = ("tune", "from.tune")  # sections of a search: of runs, of those that they start from
OWN = ("seeds", "baseline", "analysis", *TUNE)  # the sweep's, not its runs'
COLUMNS = ("data", "model.arch")  # columns without being told


@dataclass(frozen=True)
class CommandLine:
    """A command line, sorted by what its words are about."""

    file: str | None
    settings: tuple[Word, ...]
    sweep: Mapping[str, Word]  # seeds, baseline, analysis.KEY, tune.KEY, tune=none, from.tune...
    launcher: Mapping[str, Any]

    @property
    def crossed(self) -> tuple[Word, ...]:
        """The words with several values beside a file: its columns are crossed with them."""
        return tuple(word for word in self.settings if word.swept) if self.file else ()


def read_line(words: Sequence[str], groups: Mapping[str, Sequence[str]]) -> CommandLine:
    """Sort `[NAME] k=v ...`. Raises UserError for words that can't be read or come twice."""
    named = bool(words) and "=" not in words[0] and not words[0].startswith("~")
    for word in words[named:]:
        if "=" not in word and not word.startswith("~"):
            raise UserError(f"{word}: expected KEY=VALUE; a sweep's NAME comes first")
    parsed = [parse(word, groups) for word in words[named:]]
    for key, count in Counter(word.key for word in parsed).items():
        if count > 1:
            raise UserError(f"{key}: given twice")
        if key == "seed":
            given = ",".join(show(value) for w in parsed if w.key == key for value in w.values)
            raise UserError(f"seed: give a count, such as seeds=3, or a list: seeds=[{given}]")
        if (own := key.partition(".")[0]) in ("seeds", "baseline") and key != own:
            raise UserError(f"{key}: {own} has no keys; give {own}=VALUE")

    def about(word: Word) -> str:
        sections = (*OWN, "launcher")
        return next((s for s in sections if f"{word.key}.".startswith(f"{s}.")), "")

    return CommandLine(
        file=words[0] if named else None,
        settings=tuple(word for word in parsed if not about(word)),
        sweep={w.key: w for w in parsed if about(w) in OWN},
        launcher=once(word for word in parsed if about(word) == "launcher"),
    )


def analysis_apart(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """(the other words, the values of `analysis.KEY=VALUE` by KEY)."""
    ours = [word for word in words if re.match(r"\+*analysis(\.[^=]*)?=", word)]
    others = [word for word in words if word not in ours]
    return others, section_of(read_line(ours, {}), "analysis") if ours else {}


def from_words(line: CommandLine, across: Collection[str], each: bool, title: str) -> Sweep:
    """Every list of values is a factor of rows; `data`, `model.arch`, `across` are columns."""
    if tuned := [key for section in TUNE for key in line.sweep if key.startswith(section)]:
        raise UserError(f"{tuned[0]}: a search is declared in a sweep file, under `tune:`")
    swept = [word for word in line.settings if word.swept]
    for key in across:
        if key not in [word.key for word in swept]:
            raise UserError(f"--across {key}: needs values for the columns; give {key}=A,B")
    beside = [word for word in swept if word.key in (*COLUMNS, *across)]
    factors = [word for word in swept if word not in beside]
    baseline = line.sweep["baseline"].value if "baseline" in line.sweep else None
    if baseline is None and any(word.glob for word in factors):
        raise UserError("baseline: must be named where glob() is used; give baseline=LABEL")
    by_key = {word.key: word.values for word in factors}
    over = once(word for word in line.settings if not word.swept)
    if each:  # the first values hold for all rows; each other value is a change of one key
        first = {key: values[0] for key, values in by_key.items()}
        over |= first
        rows = [Item("base", {}, "")]
        rows += [
            Item(f"{key}={show(value)}", {key: value}, "")
            for key, values in by_key.items()
            for value in values[1:]
        ]
    else:
        rows = [_item(settings) for settings in products(by_key)]
    return Sweep(
        place="",
        title=title,
        rows=distinct(rows if factors else [Item("base", {}, "")], "rows", ""),
        columns=distinct(map(_item, products({w.key: w.values for w in beside})), "columns", ""),
        under=(),
        over=over,
        baseline=None if baseline is None else label_at(baseline, "baseline"),
        seeds=seeds_of(line, DEFAULT_SEEDS, "seeds"),
        analysis=Analysis(**analysis(section_of(line, "analysis"), "analysis")),
    )


def cross(
    words: Sequence[Word], columns: Sequence[Item], rows: Sequence[Item], paper: Mapping[str, str]
) -> tuple[Item, ...]:
    """The columns of a file, each for all values of the words. `paper`: label -> published column.
    Raises UserError for a key that rows or columns set themselves."""
    for word in words:
        for item in (*rows, *columns):
            if word.key in item.settings:
                raise UserError(
                    f"{word.text}: {item.place}: {item.label}: sets {word.key}; a sweep is crossed "
                    f"with a key that its rows and columns leave alone; a list value is bracketed: "
                    f"{word.key}=[{','.join(map(show, word.values))}]"
                )
    found = []
    for column in columns:
        for settings in products({word.key: word.values for word in words}):
            label = joined(settings.values())
            if column.label:
                named = (f"{key}={show(value)}" for key, value in settings.items())
                label = JOINT.join([column.label, *named])
            theirs = column.paper or paper.get(column.label)
            found.append(
                replace(column, label=label, settings={**column.settings, **settings}, paper=theirs)
            )
    return distinct(found, "columns", "")


def _item(settings: Mapping[str, Any]) -> Item:
    return Item(joined(settings.values()), settings, "")


def section_of(line: CommandLine, section: str) -> dict[str, Any]:
    """The command line's `SECTION.KEY=VALUE`, by KEY. Raises UserError for SECTION=VALUE, but for
    tune=none."""
    words = {}
    for key, word in line.sweep.items():
        if key.startswith(f"{section}."):
            words[key.removeprefix(f"{section}.")] = word.value
        elif key == section and not (section in TUNE and word.value == "none"):
            also = f", or {section}=none" if section in TUNE else ""
            raise UserError(f"{section}: give {section}.KEY=VALUE{also}")
    return words


def seeds_of(line: CommandLine, default: Any, place: str) -> tuple[int, ...]:
    """The command line's seeds, or those of the file (already read), or the default count."""
    if "seeds" not in line.sweep:
        return default if isinstance(default, tuple) else seeds(default, place)
    return seeds(_count(line.sweep["seeds"]), "seeds")


def _count(word: Word) -> Any:
    if word.swept:
        right = f"{word.key}=[{','.join(map(show, word.values))}]"
        raise UserError(f"{word.text}: expected a count or a bracketed list; write {right}")
    return word.value
