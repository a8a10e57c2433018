"""Reading of a command line: `[NAME] k=v ...`; without NAME it is a whole sweep."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import JOINT
from ablate.planning.changes import DEFAULT as DESIGN
from ablate.planning.changes import WORD, changes_of
from ablate.planning.compose import Composer
from ablate.planning.declaration import (
    Item,
    Sweep,
    analysis,
    distinct,
    label_at,
    name_settings,
    products,
    seeds,
)
from ablate.planning.parents import bare
from ablate.planning.settings import Word, parse_word, single_values, value_text
from ablate.planning.sweep_paths import sweep_files
from ablate.shared import TRAINER, UserError, nearest_name

DEFAULT_SEEDS = 3
TUNE = ("tune", "from.tune")  # sections of a search: of runs, of their parents
SWEEP_KEYS = ("seeds", "baseline", "analysis", *TUNE)  # keys of the sweep, not of its runs
COLUMNS = ("data", "model.arch")  # keys that are columns by default
# The options that declare a sweep, in their order: the field of `Options`, and how a text is read.
OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--scale": ("scale", str),
    "--across": ("across", str),
    "--each": ("each", bool),
    "--change": ("change", str),
    "--design": ("design", str),
    "--as": ("name", str),
    "--until": ("until", int),
    "--margin": ("margin", float),
}
SEVERAL = ("across", "change")  # fields of options that may come more than once


@dataclass(frozen=True)
class Options:
    """The options of a command line that declare a sweep: --scale, --as and so on."""

    scale: str | None = None
    across: Sequence[str] = ()
    each: bool = False
    change: Sequence[str] = ()
    design: str | None = None
    name: str | None = None
    until: int | None = None
    margin: float | None = None

    @property
    def texts(self) -> list[str]:
        words = list[str]()
        for option, (field, kind) in OPTIONS.items():
            setting = getattr(self, field)
            for value in setting if field in SEVERAL else [setting]:
                if kind is bool:
                    words += [option] * value
                elif value is not None:
                    words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
        return words


def split_options(words: Sequence[str]) -> tuple[list[str], Options]:
    """Split the words of a plan into those without options, and the options."""
    option_values: dict[str, Any] = {field: [] for field in SEVERAL}
    rest, plain_words = iter(words), list[str]()
    for word in rest:
        field, kind = OPTIONS.get(word, ("", bool))
        if field in SEVERAL:
            option_values[field].append(next(rest))
        elif field:
            option_values[field] = True if kind is bool else kind(next(rest))
        else:
            plain_words.append(word)
    return plain_words, Options(**option_values)


@dataclass(frozen=True)
class CommandLine:
    """A command line, its words sorted by what they are about."""

    file: str | None
    settings: tuple[Word, ...]
    sweep: Mapping[str, Word]  # seeds, baseline, analysis.KEY, tune.KEY, tune=none, from.tune...
    launcher: Mapping[str, Any]
    options: Options
    words: tuple[str, ...]  # as they were written

    @property
    def texts(self) -> list[str]:
        """The command line that makes the sweep again, as plans keep it."""
        return [*self.words, *self.options.texts]

    @property
    def name(self) -> str:
        """The sweep's name without --as: its file, scale, and the words that change its results.

        Words that cross a file with values are left out: they extend its sweep, as seeds do.
        """
        places = [w for w in self.settings if bare(w.key) == "data.path" and not w.swept]
        name_words = [word for word in self.settings if word not in (*places, *self.crossed)]
        words = sorted(map(_word_text, name_words))
        words += [_word_text(self.sweep[key]) for key in ("baseline", *TUNE) if key in self.sweep]
        words += sorted(f"across={key}" for key in self.options.across)
        words += ["each"] * self.options.each
        words += sorted(" ".join(change.split()) for change in self.options.change)
        words += [f"design={self.options.design}"] if self.options.design else []
        if self.file is None:
            return "+".join(words)
        stem = Path(self.file).stem if self.file.endswith(".yaml") else self.file
        return "+".join([f"{stem}@{scale}" if (scale := self.options.scale) else stem, *words])

    @property
    def says_seeds(self) -> bool:
        return "seeds" in self.sweep or self.options.until is not None

    @property
    def crossed(self) -> tuple[Word, ...]:
        """The words with several values that come with a file, whose columns they cross."""
        return tuple(word for word in self.settings if word.swept) if self.file else ()


def read_line(
    words: Sequence[str], groups: Mapping[str, Sequence[str]], options: Options | None = None
) -> CommandLine:
    """Sort the words `[NAME] k=v ...`.

    Without `options`, the options are among the words. Raises UserError for words that can't be
    read or come twice.
    """
    if options is None:
        words, options = split_options(words)
    has_name = bool(words) and "=" not in words[0] and not words[0].startswith("~")
    for word in words[has_name:]:
        if "=" not in word and not word.startswith("~"):
            raise UserError(f"{word}: expected KEY=VALUE; a sweep's NAME comes first")
    parsed = [parse_word(word, groups) for word in words[has_name:]]
    for key, count in Counter(word.key for word in parsed).items():
        if count > 1:
            raise UserError(f"{key}: given twice")
        if key == "seed":
            seed_list = ",".join(
                value_text(value) for w in parsed if w.key == key for value in w.values
            )
            raise UserError(f"seed: give a count, such as seeds=3, or a list: seeds=[{seed_list}]")
        if (section := key.partition(".")[0]) in ("seeds", "baseline") and key != section:
            raise UserError(f"{key}: {section} has no keys; give {section}=VALUE")
        is_unknown = "." not in key and key not in (*SWEEP_KEYS, *groups)
        if is_unknown and (meant := nearest_name(key, SWEEP_KEYS, 0.75)):
            raise UserError(f"{key}: is no key; did you mean {meant}=VALUE?")

    def sweep_section(word: Word) -> str:
        sections = (*SWEEP_KEYS, "launcher")
        return next((s for s in sections if f"{word.key}.".startswith(f"{s}.")), "")

    return CommandLine(
        file=words[0] if has_name else None,
        settings=tuple(word for word in parsed if not sweep_section(word)),
        sweep={w.key: w for w in parsed if sweep_section(w) in SWEEP_KEYS},
        launcher=single_values(word for word in parsed if sweep_section(word) == "launcher"),
        options=options,
        words=tuple(words),
    )


def split_analysis_words(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Split words into (the others, the values of `analysis.KEY=VALUE` by KEY)."""
    ours = [word for word in words if re.match(r"\+*analysis(\.[^=]*)?=", word)]
    other_words = [word for word in words if word not in ours]
    return other_words, section_of(read_line(ours, {}), "analysis") if ours else {}


def same_sweep(words: Sequence[str], other_words: Sequence[str], store: Path) -> bool:
    """Return whether plans of these words would have the same name, `--as` aside.

    They then differ at most in seeds, launcher, analysis and where their data lies. Raises
    UserError for words that can't be read any more.
    """
    if list(words) == list(other_words):
        return True
    groups = Composer(store).groups
    return read_line(words, groups).name == read_line(other_words, groups).name


def from_words(line: CommandLine, title: str, groups: Mapping[str, Sequence[str]]) -> Sweep:
    """Return the sweep of a command line without a file.

    Every list of values is a factor of the rows, except `data`, `model.arch` and the keys of
    `across`, which are columns.
    """
    if tuned := [key for section in TUNE for key in line.sweep if key.startswith(section)]:
        raise UserError(f"{tuned[0]}: a search is declared in a sweep file, under `tune:`")
    swept, options = [word for word in line.settings if word.swept], line.options
    if options.scale is not None:
        raise UserError(
            f"--scale {options.scale}: only a sweep file has scales; give its NAME first"
        )
    alone = any(word.key == TRAINER for word in line.settings)  # a program's first try
    if not (options.change or swept or alone):
        raise _nothing_to_sweep(line, groups)
    if options.design is not None and not options.change:
        raise UserError(
            f"--design {options.design}: of which changes? give --change {WORD}, twice or more"
        )
    for key in options.across:
        if key not in [word.key for word in swept]:
            raise UserError(f"--across {key}: needs values for the columns; give {key}=A,B")
    column_words = [word for word in swept if word.key in (*COLUMNS, *options.across)]
    factors = [word for word in swept if word not in column_words]
    baseline = line.sweep["baseline"].value if "baseline" in line.sweep else None
    if baseline is None and any(word.glob for word in factors):
        raise UserError("baseline: must be named where glob() is used; give baseline=LABEL")
    by_key = {word.key: word.values for word in factors}
    common_settings = single_values(word for word in line.settings if not word.swept)
    changes = None
    if options.change:
        if factors:
            raise UserError(
                f"{factors[0].text}: the rows are those of --change; make it a change, or "
                f"columns by --across {factors[0].key}"
            )
        declaration = changes_of(options.change, groups)
        changes, rows = declaration.expand(options.design or DESIGN)
    elif options.each:  # the first values hold for all rows; each other one changes one key
        first_values = {key: values[0] for key, values in by_key.items()}
        common_settings |= first_values
        rows = [Item("base", {}, "")]
        rows += [
            Item(f"{key}={value_text(value)}", {key: value}, "")
            for key, values in by_key.items()
            for value in values[1:]
        ]
    else:
        rows = [_item(settings) for settings in products(by_key)]
    return Sweep(
        place="",
        title=title,
        rows=distinct(rows if factors or changes else [Item("base", {}, "")], "rows", ""),
        columns=distinct(
            map(_item, products({w.key: w.values for w in column_words})), "columns", ""
        ),
        base_layers=(),
        command_settings=common_settings,
        baseline=None if baseline is None else label_at(baseline, "baseline"),
        seeds=seeds_of(line, DEFAULT_SEEDS, "seeds"),
        analysis=Analysis(**analysis(section_of(line, "analysis"), "analysis")),
        changes=changes,
    )


def _nothing_to_sweep(line: CommandLine, groups: Mapping[str, Sequence[str]]) -> UserError:
    """Return the error for the words of a single run."""
    for word in line.settings:
        if word.key in groups and isinstance(word.value, list):
            values = ",".join(map(value_text, word.value))
            return UserError(
                f"{word.text}: is one value, a list; several values have no brackets: "
                f"{word.key}={values} (in Python they are a tuple)"
            )
    return UserError(
        f"nothing to sweep: give values with commas, such as stem=none,dpn, "
        f"or the NAME of a sweep ({', '.join(sweep_files())})"
    )


def cross(
    words: Sequence[Word], columns: Sequence[Item], rows: Sequence[Item], paper: Mapping[str, str]
) -> tuple[Item, ...]:
    """Return the columns of a file, each for all combinations of the words' values.

    `paper`: label -> published column. Raises UserError for a key that rows or columns set
    themselves.
    """
    for word in words:
        for item in (*rows, *columns):
            if word.key in item.settings:
                raise UserError(
                    f"{word.text}: {item.place}: {item.label}: sets {word.key}; a sweep is crossed "
                    f"with a key that its rows and columns leave alone; a list value is bracketed: "
                    f"{word.key}=[{','.join(map(value_text, word.values))}]"
                )
    crossed_columns = []
    for column in columns:
        for settings in products({word.key: word.values for word in words}):
            label = name_settings(settings)
            if column.label:
                value_labels = (f"{key}={value_text(value)}" for key, value in settings.items())
                label = JOINT.join([column.label, *value_labels])
            theirs = column.paper or paper.get(column.label)
            crossed_columns.append(
                replace(column, label=label, settings={**column.settings, **settings}, paper=theirs)
            )
    return distinct(crossed_columns, "columns", "")


def _item(settings: Mapping[str, Any]) -> Item:
    return Item(name_settings(settings), settings, "")


def section_of(line: CommandLine, section: str) -> dict[str, Any]:
    """Return the command line's `SECTION.KEY=VALUE`, by KEY.

    Raises UserError for SECTION=VALUE, except for tune=none and from.tune=none.
    """
    words = {}
    for key, word in line.sweep.items():
        if key.startswith(f"{section}."):
            words[key.removeprefix(f"{section}.")] = word.value
        elif key == section and not (section in TUNE and word.value == "none"):
            also = f", or {section}=none" if section in TUNE else ""
            raise UserError(f"{section}: give {section}.KEY=VALUE{also}")
    return words


def seeds_of(line: CommandLine, default: Any, place: str) -> tuple[int, ...]:
    """Return the seeds of the command line, else of the file (already read), else the default."""
    if (word := line.sweep.get("seeds")) is None:
        return default if isinstance(default, tuple) else seeds(default, place)
    if word.swept:
        right = f"{word.key}=[{','.join(map(value_text, word.values))}]"
        raise UserError(f"{word.text}: expected a count or a bracketed list; write {right}")
    return seeds(word.value, "seeds")


def _word_text(word: Word) -> str:
    """Return `key=a,b`, the same text for every spelling of the same values."""
    texts = (
        repr(value) if isinstance(value, str) and "," in value else value_text(value)
        for value in word.values
    )
    return f"{word.key}={','.join(texts)}"
