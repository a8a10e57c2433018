"""The short name of a sweep that words declare: the keys and values that it sweeps.

`stem=none,dpn data=digits` is "stem-none-dpn", two factors are "norm-by-stem". Where another sweep
of the store has that name, a setting by which the two differ follows, else a number. A name has no
"=", so that it can take the place of the words on every command line.

Used by `planning/expand.py`; `api/recall.py` says which sweeps a store has.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ablate.planning.declared import COLUMNS, Declared
from ablate.planning.plan import Plan
from ablate.planning.recall import Recall
from ablate.planning.settings import Word, value_text
from ablate.planning.sweep_paths import sweep_files
from ablate.run import TRAINER

LONGEST_LIST = 28  # characters of a name that lists all values
LONGEST = 60  # characters of any name, without what tells it from another
FALLBACK = "sweep"  # the name where no letter of the words can stand in one


def base_name(line: Declared) -> str:
    """Return the short name of a sweep, whatever the store has: the same for every order of its
    words. A sweep with a file has its whole name."""
    if line.file is not None:
        return line.identity
    column_keys = (*COLUMNS, *line.options.across)
    swept = {word.key: word for word in line.settings if word.swept}
    names = _key_names(sorted(swept))
    rows, columns = list[str](), list[str]()
    for key, name in names.items():
        (columns if key in column_keys else rows).append(name)
    if line.options.change:
        rows = ["-and-".join(sorted(_slug(change.name) for change in line.options.change))]
    elif len(swept) == 1:
        [(key, word)] = swept.items()
        rows, columns = [_with_values(names[key], word)], []
    elif line.options.each and rows:
        rows = ["-and-".join(rows)]
    elif not swept:  # one variant of a program
        rows = [_slug(value_text(w.value)) for w in line.settings if w.key == TRAINER]
    return "-by-".join(rows + columns)[:LONGEST].strip("-.") or FALLBACK


def unique_name(line: Declared, recall: Recall) -> str:
    """Return the name of a sweep without `--as`.

    A sweep that the store has keeps its name, also one from before names were short. Any other gets
    a name that no sweep of the store and no sweep file has.
    """
    base = base_name(line)
    if line.file is not None:
        return base
    plans = recall.plans(base, line.identity)
    for plan in plans:
        if line.is_same_sweep(plan.declared) and (plan.name == base or not _is_given(plan)):
            return plan.name
    reserved_names = {*sweep_files(), *(plan.name for plan in plans)}
    return next(name for name in _candidates(line, base, plans) if name not in reserved_names)


def _is_given(plan: Plan) -> bool:
    """Return whether `--as` gave the plan its name."""
    return not isinstance(plan.declared, Declared) or plan.declared.options.name is not None


def _candidates(line: Declared, base: str, plans: Sequence[Plan]) -> Iterator[str]:
    """Yield the base; the base with each setting that the sweep of that name lacks, the data first;
    and the base with numbers."""
    yield base
    holder_words: Sequence[Word] = ()
    for plan in plans:
        if plan.name == base and isinstance(plan.declared, Declared):
            holder_words = plan.declared.words
    for word in sorted(line.identity_words, key=lambda word: word.key != "data"):
        if not word.swept and word not in holder_words:
            yield f"{base}-{_setting_name(word)}"
    for number in itertools.count(2):
        yield f"{base}-{number}"


def _setting_name(word: Word) -> str:
    """Return a setting as the end of a name: a text is enough, other values come with their key."""
    value = _slug(value_text(word.value))
    if isinstance(word.value, str) and word.key != "baseline":
        return value
    return f"{_key_name(word.key)}-{value}"


def _with_values(name: str, word: Word) -> str:
    """Return the name of a key with its values, with the first and the last of many, or alone."""
    values = [_slug(value_text(value)) for value in word.values]
    for value_list in ("-".join(values), f"{values[0]}-to-{values[-1]}"):
        if len(name) + len(value_list) < LONGEST_LIST:
            return f"{name}-{value_list}"
    return name


def _key_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the last part of each key, and the whole key where two would be the same."""
    names = {key: _key_name(key) for key in keys}
    often = Counter(names.values())
    for key, name in names.items():
        if often[name] > 1:
            names[key] = _slug(key)
    return names


def _key_name(key: str) -> str:
    """Return the last part of a key; a parent's key keeps that it is one."""
    name = _slug(key.rpartition(".")[2])
    if name.isdecimal():  # of a block: it says nothing alone
        return _slug(key)
    return f"from-{name}" if key.startswith("from.") else name


def _slug(text: str) -> str:
    """Return a text of letters, digits, dots and underscores that a shell takes as it is."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")
