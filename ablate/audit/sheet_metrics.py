"""The metrics of a sheet: what `--metric` declares of each, and whether its percents are shares.

Used by audit/importing.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.analysis import is_share
from ablate.audit.sheet import Sheet, SheetRun
from ablate.audit.sheet_values import decimals_needed
from ablate.run import DIRECTIONS, TAKEN_NAMES, declared_metric
from ablate.shared import UserError, count_text


def parse_metric(text: str) -> tuple[str, str, dict[str, Any]]:
    """Parse "acc=test/acc:more:%" into (name, column, {"direction": ..., "unit": ...}).

    Raises UserError where it can't be parsed, or where the name can't be a metric's.
    """
    assignment, _, rest = text.partition(":")
    key, _, column = assignment.partition("=")
    direction, _, unit = rest.partition(":")
    place = f"--metric {text}"
    if direction not in DIRECTIONS:
        raise UserError(
            f"{place}: expected KEY:more or KEY:less, and a unit, such as acc:more:%: which values "
            f"are better?"
        )
    if not key.isidentifier() or key in TAKEN_NAMES:
        raise UserError(f"{place}: {key!r} can't be a metric's name; write accuracy={key}:{rest}")
    return key, column or key, {"direction": direction, "unit": unit}


def declare_metrics(
    sheet: Sheet, runs: Sequence[SheetRun], texts: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the declaration of each metric: name, direction, unit, and its scale or its decimals.

    Raises UserError for values in % of which some are shares and some are percents, and where a
    metric after the first is called accuracy.
    """
    metrics = []
    for text in texts:
        key, _, options = parse_metric(text)
        if options["unit"] == "%":
            options["scale"] = _percent_scale(sheet, runs, text)
        else:
            written_decimals = min(4, 1 + max(run.decimals for run in runs))
            values = [run.values[key] for run in runs if not run.diverged]
            options["decimals"] = max(written_decimals, decimals_needed(values))
        metrics.append(declared_metric(key, options))
    later_keys = [metric["key"] for metric in metrics[1:]]
    if "accuracy" in later_keys:  # as --show calls the first one
        raise UserError("--metric accuracy: goes first, or is called otherwise: top1=accuracy:more")
    return metrics


FAR = 10.0  # a value so many times below the usual percents is a share, and no small percent


def _percent_scale(sheet: Sheet, runs: Sequence[SheetRun], text: str) -> float:
    """Return the factor that makes percents of a metric's values: 100.0 or 1.0. `text`: that of
    `--metric`.

    It is 100.0 for shares: all values lie from -1 to 1. Raises UserError for a sheet that mixes
    shares and percents, since their mean would mean nothing.
    """
    key, column, _ = parse_metric(text)
    sizes = {run.place: abs(run.values[key]) for run in runs if not run.diverged}
    percents = {place: size for place, size in sizes.items() if size > 1}
    if not percents:
        return 100.0
    usual_percent = statistics.median(percents.values())
    shares = {
        place: size for place, size in sizes.items() if 0 < size <= 1 and FAR * size < usual_percent
    }
    if not shares:
        return 1.0
    if len(shares) <= len(percents):
        odd_sizes, odd_unit, usual_units = shares, "share", "percents"
    else:
        odd_sizes, odd_unit, usual_units = percents, "percent", "shares"
    place, size = next(iter(odd_sizes.items()))
    more_lines = len(odd_sizes) - 1
    suffix = f" (and {count_text(more_lines, 'more line')})" if more_lines else ""
    raise UserError(
        f"{sheet.name}: {place}{suffix}: {column}: {size:g} looks like a {odd_unit} among "
        f"{usual_units}; write all values as shares from 0 to 1, or all as percents; if all are "
        f"percents, give --metric {text.removesuffix('%')}percent"
    )


def unlike_their_share(runs: Sequence[SheetRun], text: str) -> list[str]:
    """Return a line on runs whose first metric is not the share of right examples, [] for none.

    The predictions of these runs can't tell the spread. `text`: that of the first `--metric`.
    """
    key, _, options = parse_metric(text)
    if options["unit"] != "%":
        return []
    finished = [run for run in runs if not run.diverged]
    are_shares = all(abs(run.values[key]) <= 1 for run in finished)
    scale = 100.0 if are_shares else 1.0
    unlike = []
    for run in finished:
        if run.predictions is not None and run.predictions.right is not None:
            percent, right = scale * run.values[key], run.predictions.right
            if not is_share(percent, right):
                unlike.append((run, percent, right))
    if not unlike:
        return []
    run, value, right = unlike[0]
    return [
        f"{key} of {count_text(len(unlike), 'run')} is not the share of right examples (of "
        f"{run.label} it is {value:g} %, and {100 * right:.2f} % are right), so the spread is not "
        f"estimated from predictions; give two decimals at least"
    ]


def means_the_same(
    old_metrics: Sequence[Mapping[str, Any]],
    metrics: Sequence[Mapping[str, Any]],
    sheet: Sheet,
    texts: Sequence[str],
) -> bool:
    """Return whether a sheet has the metrics of an earlier one. `texts`: those of `--metric`.

    Raises UserError where they differ in nothing but that one sheet has shares and the other
    percents.
    """
    old_meanings, new_meanings = _meanings(old_metrics), _meanings(metrics)
    unscaled = {"scale": None}
    if [m | unscaled for m in old_meanings] != [m | unscaled for m in new_meanings]:
        return False
    for old, new, text in zip(old_meanings, new_meanings, texts, strict=True):
        percent = f"--metric {text.rpartition(':')[0]}:percent"
        if old["scale"] < new["scale"]:
            raise UserError(
                f"--metric {text}: the values of {sheet.name} lie within 1, so they are read as "
                f"shares, and those of before are percents; {percent} reads them as percents"
            )
        if old["scale"] > new["scale"]:
            raise UserError(
                f"--metric {text}: the values of {sheet.name} are percents, and those of before "
                f"were read as shares; write these as shares from 0 to 1, or, if all are percents, "
                f"import all by {percent} and --as NAME"
            )
    return True


# The parts of a metric's declaration that a second import must repeat.
MEANING_KEYS = ("key", "direction", "unit", "scale")


def _meanings(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the meaning of each metric. `percent` is the unit %, of values that are no shares."""
    units = {"percent": "%"}
    return [
        {key: metric[key] for key in MEANING_KEYS}
        | {"unit": units.get(metric["unit"], metric["unit"])}
        for metric in metrics
    ]
