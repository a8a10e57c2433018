"""Chooses and shapes the lines of a sheet, as its keys say, until each line is one run.

First the columns that hold a run each become lines (`wide`), then texts become columns (`split`),
then lines are chosen by their values (`where`), and then each run keeps one of its lines
(`epochs`). A pattern of `wide` and `split` is a text with fields, such as `{method}/seed{seed}`;
`*` stands for any text, and in `wide` for a seed in digits, the column `seed`.

Used by audit/sheet.py, between a sheet's form and its runs, and by audit/job_folders.py, which asks
for the columns that the keys name.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ablate.analysis import first_few
from ablate.audit.sheet_forms import FOLDER, RUN, Line
from ablate.audit.sheet_values import is_missing, plain_text, read_number, value_text
from ablate.planning import SheetKeys
from ablate.run import DIRECTIONS
from ablate.shared import UserError, unknown_value

LAST_LINE, BEST_LINE = "last", "best"
MOST_LISTED = 8  # columns or values that an error names
_FIELD = re.compile(r"\{([A-Za-z_]\w*)\}|\*")


def shape_lines(
    lines: Sequence[Line], keys: SheetKeys, reader_columns: Collection[str]
) -> tuple[list[Line], list[str]]:
    """Return the lines that are runs, and sentences on what was left out.

    `reader_columns`: columns that the reader made, such as the name of a file: they tell runs
    apart, and leave unless `keys` names them. Raises UserError, which begins with the option, for
    what doesn't fit the lines.
    """
    shaped, notes = list(lines), list[str]()
    if keys.wide:
        shaped, without_runs = _to_long(shaped, keys, reader_columns)
        if without_runs:
            places = first_few(without_runs)
            notes.append(f"no run, since no column of {', '.join(keys.wide)} has a value: {places}")
    splits = [_Split.parse(text) for text in keys.split]
    for split in splits:
        shaped = split.lines(shaped)
    unfiltered = shaped
    for text in keys.where:
        shaped = _filter(shaped, text)
        notes += _absent_values(unfiltered, text)
    if len(shaped) < len(unfiltered):
        conditions = " and ".join(keys.where)
        counts = f"{len(shaped):,} of {len(unfiltered):,}"
        notes.append(f"only the lines with {conditions} count, {counts}")
    for split in splits:
        split.check(shaped)
    if keys.epochs is not None:
        shaped, epoch_notes = _line_of_each_run(shaped, keys, reader_columns)
        notes += epoch_notes
    else:
        _check_repeats(shaped, keys, reader_columns)
    hidden = {*reader_columns, *(split.column for split in splits), keys.run} - {*keys.used}
    return [
        (place, {key: value for key, value in values.items() if key not in hidden})
        for place, values in shaped
    ], notes


def named_columns(keys: SheetKeys) -> set[str]:
    """Return the columns that the keys name, whatever for; those of patterns of `wide` aside."""
    names = [*keys.used, keys.run, _Best.parse(keys.epochs or "").column]
    names += [text.partition("=")[0] for text in keys.split]
    names += [_Condition.parse(text).column for text in keys.where]
    return {name for name in names if name}


def _columns_of(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(key for _, values in lines for key in values))


# --- Columns that hold runs, and texts that hold columns ------------------------------------------


def _pattern(text: str, place: str, star: str) -> re.Pattern[str]:
    """Compile a text with fields. `star`: the expression that * stands for.

    Raises UserError for a text without a field, and for a field that it has twice.
    """
    expression, end = "", 0
    for field in _FIELD.finditer(text):
        expression += re.escape(text[end : field.start()])
        expression += f"(?P<{field[1]}>.+)" if field[1] else star
        end = field.end()
    try:
        pattern = re.compile(expression + re.escape(text[end:]))
    except re.error as error:
        raise UserError(f"{place}: has a field twice; give each a name of its own") from error
    if not pattern.groupindex:
        raise UserError(f"{place}: expected a field such as {{seed}}, got none")
    return pattern


@dataclass(frozen=True)
class _RunColumn:
    """A column that holds a run: the column of its metric, and the fields of its own name."""

    metric_column: str
    fields: Mapping[str, str]


def _to_long(
    lines: Sequence[Line], keys: SheetKeys, reader_columns: Collection[str]
) -> tuple[list[Line], list[str]]:
    """Return a line for each run of a line whose columns hold a run each, and the places of lines
    that name something and have no run.

    A run without any value has no line. Raises UserError for a pattern that doesn't fit.
    """
    long_lines: list[Line] = []
    without_runs = []
    run_columns = _run_columns(_columns_of(lines), keys, reader_columns)
    for place, values in lines:
        remaining = {key: value for key, value in values.items() if key not in run_columns}
        runs: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
        places: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for column, run_column in run_columns.items():
            if not is_missing(values.get(column)):
                fields = tuple(run_column.fields.items())
                runs.setdefault(fields, {})[run_column.metric_column] = values[column]
                places.setdefault(fields, []).append(column)
        if not runs and not all(map(is_missing, remaining.values())):
            without_runs.append(place)
        for fields, metric_values in runs.items():
            run_place = f"{place}, {', '.join(places[fields])}"
            long_lines.append((run_place, {**remaining, **dict(fields), **metric_values}))
    return long_lines, without_runs


def _run_columns(
    columns: Sequence[str], keys: SheetKeys, reader_columns: Collection[str]
) -> dict[str, _RunColumn]:
    """Return the columns that hold a run each. The n-th pattern is that of the n-th metric.

    A column that `keys` names for something else holds none; one that `where` alone names does, if
    its pattern is for seeds.
    """
    metric_columns = list(keys.metrics.values())
    if len(keys.wide) > len(metric_columns):
        raise UserError(f"--wide {keys.wide[-1]}: give a --metric for each --wide, in their order")
    filtered_columns = named_columns(keys) - named_columns(replace(keys, where=()))
    declared_columns = {*reader_columns, *named_columns(keys)} - {*metric_columns}
    run_columns: dict[str, _RunColumn] = {}
    for text, metric_column in zip(keys.wide, metric_columns, strict=False):
        pattern = _pattern(text, f"--wide {text}", "(?P<seed>[0-9]+)")
        fitting_columns = {}
        for column in columns:
            match = pattern.fullmatch(column)
            holds_run = "*" in text and column in filtered_columns
            if match is None or (column in declared_columns and not holds_run):
                continue
            if column in run_columns:
                raise UserError(
                    f"--wide {text}: fits {column!r}, as an earlier --wide does; give patterns "
                    f"that fit different columns"
                )
            fitting_columns[column] = _RunColumn(metric_column, match.groupdict())
        if not fitting_columns:
            raise UserError(
                f"--wide {text}: fits none of the columns {_quoted_list(columns)}; * stands for a "
                f"seed in digits, {{name}} for any text"
            )
        for new_column in (metric_column, *pattern.groupindex):
            if new_column in columns and new_column not in fitting_columns:
                raise UserError(
                    f"--wide {text}: the sheet has a column {new_column!r} already; name the "
                    f"field, or the metric, otherwise"
                )
        run_columns |= fitting_columns
    return run_columns


@dataclass(frozen=True)
class _Split:
    """A "COLUMN=PATTERN" of --split."""

    text: str
    column: str
    pattern: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> _Split:
        """Raises UserError for a malformed pattern."""
        column, _, pattern_text = text.partition("=")
        return cls(text, column, _pattern(pattern_text, f"--split {text}", ".*"))

    def lines(self, lines: Sequence[Line]) -> list[Line]:
        """Return the lines with the fields of the pattern as columns, None in those that it doesn't
        fit. Raises UserError for a column that isn't there, and for a field that is one already."""
        columns = _columns_of(lines)
        if self.column not in columns:
            raise unknown_value(f"--split {self.text}", self.column, columns, "a column among")
        for field in self.pattern.groupindex:
            if field in columns:
                raise UserError(
                    f"--split {self.text}: the sheet has a column {field!r} already; name it "
                    f"otherwise"
                )
        nothing: dict[str, str | None] = dict.fromkeys(self.pattern.groupindex)
        split_lines = list[Line]()
        for place, values in lines:
            match = self.pattern.fullmatch(plain_text(values.get(self.column)))
            split_lines.append((place, {**values, **(match.groupdict() if match else nothing)}))
        return split_lines

    def check(self, lines: Sequence[Line]) -> None:
        """Raise UserError for a line that the pattern didn't fit."""
        for place, values in lines:
            if any(values[field] is None for field in self.pattern.groupindex):
                value = plain_text(values.get(self.column))
                condition = shlex.quote(f"{self.column}!={value}")
                raise UserError(
                    f"--split {self.text}: {place}: doesn't fit {value!r}; change the pattern, or "
                    f"give --where {condition} to leave it out"
                )


# --- Lines by their values ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Condition:
    """A "COLUMN=VALUE,VALUE" or "COLUMN!=VALUE,VALUE" of --where. The list may be one value, with
    commas in it."""

    column: str
    negated: bool
    value_list: str

    @classmethod
    def parse(cls, text: str) -> _Condition:
        """Raises UserError for a text without =."""
        column, equals, value_list = text.partition("=")
        if not equals:
            raise UserError(f"--where {text}: expected COLUMN=VALUE or COLUMN!=VALUE")
        return cls(column.removesuffix("!"), column.endswith("!"), value_list)


def _filter(lines: Sequence[Line], text: str) -> list[Line]:
    """Return the lines that a condition chooses. Raises UserError where there are none."""
    condition = _Condition.parse(text)
    column = condition.column
    columns = _columns_of(lines)
    if column not in columns:
        raise unknown_value(f"--where {text}", column, columns, "a column among")
    listed_values = {condition.value_list, *condition.value_list.split(",")}
    chosen_lines = [
        (place, values)
        for place, values in lines
        if (plain_text(values.get(column)) in listed_values) != condition.negated
    ]
    if not chosen_lines:
        column_values = _values_of(lines, column)
        raise UserError(
            f"--where {text}: chooses no line; {column} has {_quoted_list(column_values)}"
        )
    return chosen_lines


def _absent_values(lines: Sequence[Line], text: str) -> list[str]:
    """Return a sentence on the values of a condition that no line has, [] for none. An empty value
    can't be misspelt."""
    condition = _Condition.parse(text)
    column_values = _values_of(lines, condition.column)
    if condition.value_list in column_values:
        return []
    listed_values = dict.fromkeys(condition.value_list.split(","))
    absent_values = [value for value in listed_values if value and value not in column_values]
    if not absent_values:
        return []
    return [
        f"no line has {_quoted_list(absent_values)}, which --where {text} names; "
        f"{condition.column} has {_quoted_list(column_values)}"
    ]


def _values_of(lines: Sequence[Line], column: str) -> list[str]:
    return list(dict.fromkeys(plain_text(values.get(column)) for _, values in lines))


# --- Lines of epochs ------------------------------------------------------------------------------


def _check_repeats(lines: Sequence[Line], keys: SheetKeys, reader_columns: Collection[str]) -> None:
    """Raise UserError where lines without --epochs may be of one run and would count as repeats."""
    if keys.run is not None:
        raise UserError(f"--run {keys.run}: give --epochs last, or best:COLUMN, which it serves")
    run_column = next((name for name in (RUN, FOLDER) if name in reader_columns), None)
    if run_column is None:
        return
    seeds = f"--seed {keys.seed or 'COLUMN'}"
    names = [name for name in (run_column, keys.row, keys.column, keys.seed) if name is not None]
    for block in _blocks(lines, names).values():
        if len(block) > 1:
            _, values = block[0]
            raise UserError(
                f"run {values[run_column]}: has {len(block):,} lines: give --epochs last, or "
                f"best:COLUMN, if they are of one run; {seeds} has to tell them apart if each is a "
                f"run"
            )


def _blocks(lines: Sequence[Line], names: Sequence[str]) -> dict[tuple[str, ...], list[Line]]:
    """Group lines by the values of some columns."""
    blocks: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        blocks.setdefault(tuple(plain_text(line[1].get(name)) for name in names), []).append(line)
    return blocks


def _line_of_each_run(
    lines: Sequence[Line], keys: SheetKeys, reader_columns: Collection[str]
) -> tuple[list[Line], list[str]]:
    """Return one line for each run, which has several, and a sentence on how it was chosen."""
    assert keys.epochs is not None
    place = f"--epochs {keys.epochs}"
    columns = _columns_of(lines)
    for option, name in (("--seed", keys.seed), ("--run", keys.run)):
        if name is not None and name not in columns:
            raise unknown_value(option, name, columns, "a column among")
    run_columns = [name for name in (keys.seed, keys.run, *reader_columns) if name in columns]
    if not run_columns:
        raise UserError(
            f"{place}: which lines are of one run? give --seed COLUMN, or --run COLUMN where seeds "
            f"are no pairs"
        )
    names = [name for name in (keys.row, keys.column, *run_columns) if name is not None]
    choose, sentence = _chooser(keys, columns)
    runs = [choose(block) for block in _blocks(lines, names).values()]
    return runs, [sentence] if len(runs) < len(lines) else []


@dataclass(frozen=True)
class _Best:
    """A "best:COLUMN:more" of --epochs. Of any other text the column is "", and of one without a
    direction this is ""."""

    column: str
    direction: str

    @classmethod
    def parse(cls, text: str) -> _Best:
        kind, _, rest = text.partition(":")
        column, _, direction = rest.rpartition(":")
        if direction not in DIRECTIONS:
            column, direction = rest, ""
        return cls(column if kind == BEST_LINE else "", direction)


def _chooser(
    keys: SheetKeys, columns: Sequence[str]
) -> tuple[Callable[[Sequence[Line]], Line], str]:
    """Return what chooses a line among those of a run, and the sentence that says how."""
    assert keys.epochs is not None
    place = f"--epochs {keys.epochs}"
    if keys.epochs == LAST_LINE:
        return _last_values, "a run has several lines, and the last value of each column counts"
    best = _Best.parse(keys.epochs)
    column, direction = best.column, best.direction
    if not column:
        raise UserError(f"{place}: expected last, or best:COLUMN such as best:val_acc:more")
    if column not in columns:
        raise unknown_value(place, column, columns, "a column among")
    if not direction:
        raise UserError(f"{place}: which values are better? best:{column}:more or :less")
    metric_columns = list(keys.metrics.values())

    def choose(block: Sequence[Line]) -> Line:
        return _best_line(block, column, DIRECTIONS[direction], metric_columns, keys.decimal)

    sentence = f"a run has several lines, and the one with the best {column} counts"
    if column in metric_columns:
        sentence += "; a choice by the metric itself makes every run look better than it is"
    return choose, sentence


def _last_values(block: Sequence[Line]) -> Line:
    """Return the last value of each column. Loggers leave cells of other steps empty."""
    merged_values: dict[str, Any] = {}
    for _, values in block:
        for key, value in values.items():
            if key not in merged_values or not is_missing(value):
                merged_values[key] = value
    return block[-1][0], merged_values


def _best_line(
    block: Sequence[Line], column: str, sign: int, metric_columns: Sequence[str], decimal: str
) -> Line:
    """Return the line with the best value of a column, the first of equal ones; that of a run
    without any such number is its last.

    A metric that has one value in the whole run, such as that of a test at its end, is of every
    line. Raises UserError for a value that is no number.
    """
    best_line, best = block[-1], -math.inf
    for line in block:
        place, values = line
        if is_missing(values.get(column)):
            continue
        value = sign * read_number(values[column], f"{place}: {column}", decimal)
        if value > best:
            best_line, best = line, value
    place, best_values = best_line
    chosen_values = dict(best_values)
    for name in metric_columns:
        filled = [values[name] for _, values in block if not is_missing(values.get(name))]
        if is_missing(chosen_values.get(name)) and len(filled) == 1:
            chosen_values[name] = filled[0]
    return place, chosen_values


def _quoted_list(texts: Sequence[str]) -> str:
    suffix = f" and {len(texts) - MOST_LISTED} more" if len(texts) > MOST_LISTED else ""
    return ", ".join(map(value_text, texts[:MOST_LISTED])) + suffix
