"""The declaration of a sweep as a value, and its printer.

A `Declared` is read from a command line by `planning.words`, or given by Python, and plans keep it.
`texts` prints the command line that declares the same again. Nothing reads printed words back.

Used by `planning/words.py`, `planning/expand.py` and `analysis/captions.py`. A new field of
`Options` also needs its option in `cli/selection.py` (`Selection`, and the names in its `options`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ablate.planning.settings import Word, bare, is_empty_factors, plain, single_values, value_text
from ablate.run import read_value
from ablate.shared import UserError

TUNE = ("tune", "from.tune")  # sections of a search: of runs, of their parents
PART_KEYS = ("rows", "columns")  # keys that choose a part of a sweep file
SWEEP_KEYS = (
    "seeds",
    "baseline",
    *PART_KEYS,
    "analysis",
    *TUNE,
)  # keys of the sweep, not of its runs
COLUMNS = ("data", "model.arch")  # keys that are columns by default
LAUNCHER = "launcher"


@dataclass(frozen=True)
class Change:
    """A change of a design: its name, and the settings that it makes."""

    name: str
    settings: tuple[Word, ...]

    @property
    def text(self) -> str:
        """The change as `--change` takes it."""
        return f"{self.name}: {' '.join(word.text for word in self.settings)}"

    @property
    def label(self) -> str:
        """The change as the identity of a sweep has it."""
        return f"{self.name}: {' '.join(map(_label, self.settings))}"


@dataclass(frozen=True)
class Options:
    """The options that declare a sweep: --scale, --across, ..., --as (`name`) and so on."""

    scale: str | None = None
    across: tuple[str, ...] = ()
    each: bool = False
    change: tuple[Change, ...] = ()
    design: str | None = None
    name: str | None = None
    until: int | None = None
    margin: float | None = None

    @property
    def texts(self) -> list[str]:
        """The options as the command line takes them."""
        words = []
        if self.scale is not None:
            words += ["--scale", self.scale]
        for key in self.across:
            words += ["--across", key]
        if self.each:
            words.append("--each")
        for change in self.change:
            words += ["--change", change.text]
        values = {"--design": self.design, "--as": self.name, "--until": self.until}
        for option, value in values.items():
            if value is not None:
                words += [option, str(value)]
        if self.margin is not None:
            words += ["--margin", value_text(self.margin).removesuffix(".0")]
        return words


@dataclass(frozen=True)
class Declared:
    """The declaration of a sweep that is trained here.

    `file`: the name or the path of its sweep file, if it has one. `words`: its settings, those of
    the sweep and of the launcher among them, in the order in which they were given.
    """

    file: str | None = None
    words: tuple[Word, ...] = ()
    options: Options = field(default_factory=Options)

    @property
    def texts(self) -> list[str]:
        """The command line after `ablate sweep` that declares the same again."""
        texts = [] if self.file is None else [self.file]
        texts += [word.text for word in self.words]
        return texts + self.options.texts

    @property
    def settings(self) -> tuple[Word, ...]:
        """The settings of its runs."""
        return tuple(word for word in self.words if not _section(word.key))

    @property
    def sweep(self) -> dict[str, Word]:
        """Its seeds, baseline, rows, columns, analysis.KEY, tune.KEY, tune=none, from.tune..., by
        key."""
        return {word.key: word for word in self.words if _section(word.key) in SWEEP_KEYS}

    @property
    def launcher(self) -> dict[str, Any]:
        """The launcher's settings, by key. Raises UserError where one has several values."""
        return single_values(word for word in self.words if _section(word.key) == LAUNCHER)

    @property
    def crossed(self) -> tuple[Word, ...]:
        """The words with several values that come with a file, whose columns they cross."""
        if not self.file:
            return ()
        return tuple(word for word in self.settings if word.swept)

    @property
    def says_seeds(self) -> bool:
        return "seeds" in self.sweep or self.options.until is not None

    @property
    def identity_words(self) -> tuple[Word, ...]:
        """The words that make it another sweep than others, in the order in which they were given.

        Words that cross a file with values are left out: they extend its sweep, as seeds do.
        """
        words = []
        for word in self.words:
            is_setting = not _section(word.key) and word not in self.crossed
            is_place = bare(word.key) == "data.path" and not word.swept
            if (is_setting and not is_place) or word.key in ("baseline", *PART_KEYS, *TUNE):
                words.append(word)
        return tuple(words)

    @property
    def identity(self) -> str:
        """All that makes it another sweep than others, on one line: its file, scale, and the words
        that change its results. A sweep with a file has it as its name, unless --as gives one."""
        options = self.options
        labels, last_labels = list[str](), {}
        for word in self.identity_words:
            if word.key in ("baseline", *TUNE):
                last_labels[word.key] = _label(word)
            else:
                labels.append(_label(word))
        labels.sort()
        labels += (last_labels[key] for key in ("baseline", *TUNE) if key in last_labels)
        labels += sorted(f"across={key}" for key in options.across)
        if options.each:
            labels.append("each")
        labels += sorted(change.label for change in options.change)
        if options.design:
            labels.append(f"design={options.design}")
        if self.file is not None:
            stem = Path(self.file).stem if self.file.endswith(".yaml") else self.file
            labels.insert(0, f"{stem}@{options.scale}" if options.scale else stem)
        return "+".join(labels)

    def is_same_sweep(self, declaration: Declared | DeclaredImport) -> bool:
        """Return whether both declare the same sweep, `--as` aside.

        They then differ at most in seeds, launcher, analysis and where their data lies.
        """
        return isinstance(declaration, Declared) and self.identity == declaration.identity

    def with_words(self, *words: Word) -> Declared:
        """Return the declaration with these words last, in place of those with the same keys."""
        new_keys = [word.key for word in words]
        unchanged_words = tuple(word for word in self.words if word.key not in new_keys)
        return replace(self, words=unchanged_words + words)

    def with_launcher(self, keys: Collection[str]) -> Declared:
        """Return the declaration for a launcher that has these settings: without its words for
        others."""
        unchanged_words = tuple(
            word
            for word in self.words
            if _section(word.key) != LAUNCHER or word.key.partition(".")[2] in {"", *keys}
        )
        return replace(self, words=unchanged_words)

    def with_seeds(self, seeds: int | Sequence[int]) -> Declared:
        """Return the declaration with this count, or list, of seeds."""
        seeds_word = Word("seeds", (seeds if isinstance(seeds, int) else list(seeds),))
        words = list(self.words)
        keys = [word.key for word in words]
        if "seeds" in keys:
            words[keys.index("seeds")] = seeds_word
        else:  # behind the first word, whether that is the file or a setting
            words.insert(0 if self.file is not None else 1, seeds_word)
        return replace(self, words=tuple(words))

    def with_options(self, **options: Any) -> Declared:
        """Return the declaration with some of its options replaced."""
        return replace(self, options=replace(self.options, **options))

    def placeless(self) -> Declared:
        """Return the declaration without folders and machines, which change no run's id."""
        words = tuple(word for word in self.words if not _says_place(word))
        return replace(self, file=_file_name(self.file), words=words)


@dataclass(frozen=True)
class DeclaredImport:
    """The declaration of a sweep that was trained elsewhere: a call of `ablate import`, or of
    Python's `Store.add_runs`.

    `sheet`: the file that it read, FRAME for a frame; `more_sheets`: the other ones. `arguments`:
    its options and their values, in their order.
    """

    FRAME = "a pandas frame"

    sheet: str
    arguments: tuple[tuple[str, str], ...]
    more_sheets: tuple[str, ...] = ()

    @property
    def is_frame(self) -> bool:
        return self.sheet == self.FRAME

    @property
    def texts(self) -> list[str]:
        """The command line after `ablate` that imports the sheet again; [] for a frame."""
        if self.is_frame:
            return []
        texts = ["import", self.sheet, *self.more_sheets]
        for option, value in self.arguments:
            texts += [option, value]
        return texts

    def placeless(self) -> DeclaredImport:
        """Return the declaration without the folder of the sheet."""
        names = tuple(Path(sheet).name for sheet in self.more_sheets)
        return replace(self, sheet=Path(self.sheet).name, more_sheets=names)


def declared_of(tree: Mapping[str, Any]) -> Declared | DeclaredImport:
    """Return the declaration that a plan's file has. Raises UserError for any other JSON."""
    kind = DeclaredImport if "sheet" in tree else Declared
    declaration: Declared | DeclaredImport = read_value(tree, kind, "declared")
    return declaration


def word_of(key: str, value: Any) -> Word:
    """Return the word of a value of Python; a tuple has several values, a list is one.

    Raises UserError for a value that no configuration has.
    """
    if not isinstance(value, tuple):
        return Word(key, (_plain_value(value, key),))
    if not value:
        raise UserError(f"{key}: expected a value or more, got (); a list without elements is []")
    return Word(key, tuple(_plain_value(item, key) for item in value), swept=len(value) > 1)


def words_of(keys: Mapping[str, Any], section: str = "") -> list[Word]:
    """Return the words of settings of Python: `{"train": {"epochs": 3}}` is `train.epochs=3`.

    Raises UserError for a key or a value that no configuration has.
    """
    words = list[Word]()
    for key, value in keys.items():
        if not isinstance(key, str) or not key:
            raise UserError(f"{section}{key!r}: expected a key such as 'train', a text")
        if isinstance(value, Mapping) and not is_empty_factors(value, f"{section}{key}"):
            words += words_of(value, f"{section}{key}.")
        else:
            words.append(word_of(f"{section}{key}", value))
    return words


def _plain_value(value: Any, key: str) -> Any:
    """Return a value of Python as JSON has it."""
    from numbers import Integral, Real
    from os import PathLike, fspath

    if isinstance(value, str | Mapping):
        return plain(value, key)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list | tuple):
        return [_plain_value(item, key) for item in value]
    if isinstance(value, PathLike):
        return str(fspath(value))
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise UserError(
        f"{key}: expected a text, a number, True, False, None or a list of these, got {value!r}; "
        f"several values are a tuple"
    )


def _section(key: str) -> str:
    """Return the section of a key that is no setting of runs, "" for any other."""
    for section in (*SWEEP_KEYS, LAUNCHER):
        if f"{key}.".startswith(f"{section}."):
            return section
    return ""


def _label(word: Word) -> str:
    """Return `key=a,b` as an identity has it, the same for every spelling of the values."""
    texts = []
    for value in word.values:
        has_comma = isinstance(value, str) and "," in value
        texts.append(repr(value) if has_comma else value_text(value))
    return f"{word.key}={','.join(texts)}"


def _says_place(word: Word) -> bool:
    """Return whether a word says where something lies, or where runs are trained."""
    key = bare(word.key)
    if key == "data.path" or _section(word.key) == LAUNCHER:
        return True
    if key == "weights" or key.startswith("weights."):
        return True
    if key != "eval.also":
        return False
    texts = map(value_text, word.values)
    return any("/" in text or ":" in text for text in texts)


def _file_name(file: str | None) -> str | None:
    if file is None or not file.endswith(".yaml"):
        return file
    return Path(file).name
