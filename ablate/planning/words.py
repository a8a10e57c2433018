"""Reads the words after `ablate sweep` and `ablate plan`: `[NAME] k=v ...`.

NAME is a sweep file; without it, the words declare the whole sweep.

Used by `planning/expand.py` for every command that names a sweep; `read_line` also by
`api/training.py`, and `split_analysis_words` by `cli/selection.py` (`ablate table`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import JOINT
from ablate.planning.changes import DEFAULT as DESIGN
from ablate.planning.changes import WORD, changes_of, read_changes
from ablate.planning.declaration import (
    Item,
    Sweep,
    analysis,
    distinct,
    keyed_values,
    label_at,
    name_settings,
    products,
    seeds,
)
from ablate.planning.declared import (
    COLUMNS,
    PART_KEYS,
    SWEEP_KEYS,
    TUNE,
    Declared,
    Options,
    words_of,
)
from ablate.planning.settings import Word, parse_word, single_values, value_text, with_spelling
from ablate.planning.sweep_paths import find_sweep_file, read_yaml, sweep_files
from ablate.run import TRAINER
from ablate.shared import UserError, nearest_name

DEFAULT_SEEDS = 3


def read_options(groups: Mapping[str, Sequence[str]], **options: Any) -> Options:
    """Return the options of a command line. `change`: see `read_changes`.

    Raises UserError for a change that can't be read.
    """
    changes = read_changes(options.pop("change", ()), groups)
    return Options(across=tuple(options.pop("across", ())), change=changes, **options)


def read_line(
    words: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    options: Options | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Declared:
    """Return what the words `[NAME] k=v ...` declare.

    The name "" is that of no file, where there can be none. `settings`: more of them, as values of
    Python. Raises UserError for words that can't be read or come twice.
    """
    has_name = bool(words) and "=" not in words[0] and not words[0].startswith("~")
    for word in words[has_name:]:
        if "=" not in word and not word.startswith("~"):
            names_file = not has_name or words[0]
            remedy = "; a sweep's NAME comes first" if names_file else ", such as recipe=quick"
            raise UserError(f"{word}: expected KEY=VALUE{remedy}")
    parsed = [_read_word(word, groups) for word in words[has_name:]]
    options = options or Options()
    trainers = [name for word in parsed if word.key == TRAINER for name in word.values]
    if has_name and not trainers and any(word.key.startswith(f"{TRAINER}.") for word in parsed):
        trainers = [_base_trainer(words[0], options.scale)]
    text_keys = {f"{TRAINER}.{key}" for name in trainers for key in declared_texts(str(name))}
    parsed = [
        with_spelling(word, text) if word.key in text_keys else word
        for word, text in zip(parsed, words[has_name:], strict=True)
    ]
    parsed += words_of(settings or {})
    for key, count in Counter(word.key for word in parsed).items():
        if count > 1:
            raise UserError(f"{key}: given twice")
        if key == "seed":
            seed_list = ",".join(
                value_text(value) for w in parsed if w.key == key for value in w.values
            )
            raise UserError(f"seed: give a count, such as seeds=3, or a list: seeds=[{seed_list}]")
        if (section := key.partition(".")[0]) in (
            "seeds",
            "baseline",
            *PART_KEYS,
        ) and key != section:
            raise UserError(f"{key}: {section} has no keys; give {section}=VALUE")
        is_unknown = "." not in key and key not in (*SWEEP_KEYS, *groups)
        if is_unknown and (meant := nearest_name(key, SWEEP_KEYS, 0.75)):
            raise UserError(f"{key}: is no key; did you mean {meant}=VALUE?")
    return Declared(words[0] if has_name else None, tuple(parsed), options)


def _read_word(text: str, groups: Mapping[str, Sequence[str]]) -> Word:
    """Read one word. Labels that begin with no quote stay one text, which `part.with_labels`
    splits: a label may have commas and apostrophes, and 1e-3 is no number."""
    key, _, labels = text.partition("=")
    if key in PART_KEYS and not re.search(r"(^|,)\s*['\"]", labels):
        return Word(key, (labels.strip(),))
    return parse_word(text, groups)


def _base_trainer(name: str, scale: str | None) -> Any:
    """Return the trainer of a sweep file's base at a scale; None where there is none, or the file
    can't be read, as `from_file` says."""
    try:
        _, content = read_yaml(find_sweep_file(name))
        scaled = content.get("scales", {}).get(scale, {})
        base = (content.get("base") or {}) | (scaled.get("base") or {})
        return base.get(TRAINER)
    except (UserError, TypeError, AttributeError):  # or a section is no mapping
        return None


def declared_texts(trainer: str) -> set[str]:
    """Return the keys that `conf/trainer/NAME.yaml` declares as texts; none where there is no such
    file, or it can't be read, as the composer says."""
    from omegaconf import OmegaConf  # by which 5e-5 is a number, as it is for the composer
    from yaml import YAMLError

    path = Path("conf", TRAINER, f"{trainer}.yaml")
    try:
        section: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        keys = section["keys"]
        declarations = {
            key: value if isinstance(value, Mapping) else {"default": value}
            for key, value in keys.items()
        }
    except (OSError, ValueError, YAMLError, TypeError, KeyError, AttributeError):
        return set()
    examples = {
        key: (value.get("choices") or [value.get("default")])[0]
        for key, value in declarations.items()
    }
    return {
        key
        for key, example in examples.items()
        if isinstance(example, str) or declarations[key].get("type") == "str"
    }


def split_analysis_words(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Split words into (the others, the values of `analysis.KEY=VALUE` by KEY)."""
    ours = [word for word in words if re.match(r"\+*analysis(\.[^=]*)?=", word)]
    other_words = [word for word in words if word not in ours]
    return other_words, section_of(read_line(ours, {}), "analysis") if ours else {}


def from_words(line: Declared, title: str, groups: Mapping[str, Sequence[str]]) -> Sweep:
    """Return the sweep of a command line without a file.

    Every list of values is a factor of the rows, except `data`, `model.arch` and the keys of
    `across`, which are columns.
    """
    if tuned := [key for section in TUNE for key in line.sweep if key.startswith(section)]:
        raise UserError(f"{tuned[0]}: a search is declared in a sweep file, under `tune:`")
    for key in PART_KEYS:
        if key in line.sweep:
            raise UserError(
                f"{line.sweep[key].text}: chooses from a sweep file; give its NAME first"
            )
    swept, options = [word for word in line.settings if word.swept], line.options
    if options.scale is not None:
        raise UserError(
            f"--scale {options.scale}: only a sweep file has scales; give its NAME first"
        )
    if is_single_run(line):
        raise _nothing_to_sweep(line)
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
                "columns by --across KEY"
            )
        declaration = changes_of(options.change)
        changes, rows = declaration.expand(options.design or DESIGN, "--design")
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
        rows = [Item(_row_label(settings), settings, "") for settings in products(by_key)]
    return Sweep(
        place="",
        title=title,
        rows=distinct(rows if factors or changes else [Item("base", {}, "")], "rows", ""),
        columns=distinct(
            map(_item, products({w.key: w.values for w in column_words})), "columns", ""
        ),
        base_layers=(),
        command_settings=common_settings,
        baseline=None if baseline is None else _baseline_label(baseline, rows),
        seeds=seeds_of(line, DEFAULT_SEEDS, "seeds"),
        analysis=Analysis(**analysis(section_of(line, "analysis"), "analysis")),
        changes=changes,
    )


def is_single_run(line: Declared) -> bool:
    """Return whether a command line without a file declares one variant, which `from_words`
    refuses: there is nothing to compare it with. A program may be tried with one variant, and a
    target judges one."""
    is_program = any(word.key == TRAINER for word in line.settings)
    has_target = "target" in section_of(line, "analysis")
    swept = any(word.swept for word in line.settings)
    return not (line.options.change or is_program or has_target or swept)


def check_values(line: Declared, groups: Mapping[str, Sequence[str]]) -> None:
    """Raise UserError where the words of a single run have several values in one: a list, or a text
    with commas."""
    for word in line.settings:
        if word.key in groups and isinstance(word.value, list):
            values = ",".join(map(value_text, word.value))
            raise UserError(
                f"{word.text}: is one value, a list; several values have no brackets: "
                f"{word.key}={values} (in Python they are a tuple)"
            )
        if word.key != "data.path" and isinstance(word.value, str) and "," in word.value:
            raise UserError(
                f"{word.text}: is one value, a text; several values have no quotes: "
                f"{word.key}={word.value} (in Python they are a tuple)"
            )


def _nothing_to_sweep(line: Declared) -> UserError:
    """Return the error for the words of a single run."""
    if line.settings:
        word = line.settings[0]
        return UserError(
            f"{word.text}: is one variant, with nothing to compare; give several values with "
            f"commas, such as stem=none,dpn"
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
                    f"with a key that its rows and columns leave alone{word.list_hint}"
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
    # A label that comes twice is a value that the words have twice, not a mistake in the file.
    distinct([replace(column, place="") for column in crossed_columns], "columns", "")
    return tuple(crossed_columns)


def _row_label(settings: Mapping[str, Any]) -> str:
    """Return the label of a row: its values with their keys, such as "stem=dpn · depth=2". The one
    value of a single key is alone where it says what it is: "dpn", but "depth=2"."""
    values = list(settings.values())
    if len(values) == 1 and isinstance(values[0], str) and _is_name(values[0]):
        return values[0]
    return keyed_values(settings)


def _is_name(text: str) -> bool:
    """Return whether YAML reads a text as a text, unlike "off", "False" or "1.10"."""
    import yaml

    try:
        return isinstance(yaml.safe_load(text), str)
    except yaml.YAMLError:
        return True


def _baseline_label(baseline: Any, rows: Sequence[Item]) -> str:
    """Return the label of the row that `baseline=VALUE` means: a label, or the value of its key."""
    if isinstance(baseline, bool):
        baseline = value_text(baseline)
    label = label_at(baseline, "baseline")
    for row in rows:
        if label != row.label and label == name_settings(row.settings):
            return row.label
    return label


def _item(settings: Mapping[str, Any]) -> Item:
    return Item(name_settings(settings), settings, "")


def section_of(line: Declared, section: str) -> dict[str, Any]:
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


def seeds_of(line: Declared, default: Any, place: str) -> tuple[int, ...]:
    """Return the seeds of the command line, else of the file (already read), else the default."""
    if (word := line.sweep.get("seeds")) is None:
        return default if isinstance(default, tuple) else seeds(default, place)
    if word.swept:
        right = f"{word.key}=[{','.join(map(value_text, word.values))}]"
        raise UserError(f"{word.text}: expected a count or a bracketed list; write {right}")
    return seeds(word.value, "seeds")
