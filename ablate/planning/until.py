"""`until:` of a sweep file, and `--until`: the looks at which rows get more seeds, or no more."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import FIRST_TUNING_SEED
from ablate.planning.declaration import Sweep, mapping_at
from ablate.planning.overrides import Word
from ablate.planning.plan import Plan
from ablate.planning.words import DEFAULT_SEEDS
from ablate.shared.build import value_of
from ablate.shared.errors import UserError, unknown
from ablate.shared.spec import ids_of

FORM = "{looks: [5, 8, 12], margin: 0.5}"
KEYS = ("looks", "margin", "spread")
FEWEST = 5  # at the first look: with fewer, a noisy baseline or two noisy rows go unseen
APART = 2  # seeds between looks, at least: one has no spread
DEFAULT = (5, 8, 12)
USUAL = (*DEFAULT, 20, 30)  # looks of --until
# By row and column: at how many seeds the newest look at it was, and what the look said.
Standing = Mapping[str, Mapping[str, tuple[int, str]]]
WITHOUT = ("looks", "diverged")  # of `analysis`: looks are done in one way


def until_at(raw: Any, place: str) -> dict[str, Any]:
    """Read `until:`. Raises UserError. Its margin and spread are `analysis.margin` and `.spread` of
    a sweep with looks."""
    read: dict[str, Any] = {}
    for key, value in mapping_at(raw, place, FORM).items():
        if key == "looks":
            read[key] = _looks(value, f"{place}.looks")
        elif key in KEYS:
            read[key] = value_of(Analysis, key, value, f"{place}.{key}")
        else:
            raise unknown(f"{place}.{key}", str(key), KEYS, "a key among")
    return read


def _looks(raw: Any, place: str) -> tuple[int, ...]:
    form = "two or more increasing numbers of seeds such as [5, 8, 12]"
    whole = isinstance(raw, list) and all(type(n) is int for n in raw)
    if not whole or len(raw) < 2 or sorted(raw) != raw:
        raise UserError(f"{place}: expected {form}, got {raw!r}")
    if raw[0] < FEWEST:
        raise UserError(
            f"{place}: the first look expects at least {FEWEST} seeds, got {raw[0]}: with fewer, a "
            f"noisy baseline goes unseen"
        )
    if any(later - n < APART for n, later in itertools.pairwise(raw)):
        raise UserError(f"{place}: expected looks at least {APART} seeds apart, got {raw!r}")
    if raw[-1] > FIRST_TUNING_SEED:
        raise UserError(f"{place}: expected at most {FIRST_TUNING_SEED} seeds, got {raw[-1]}")
    return tuple(raw)


def looks_to(last: int) -> tuple[int, ...]:
    """The looks of `--until LAST`: the usual ones that are far enough below it, and it."""
    if last < FEWEST + APART:
        raise UserError(
            f"--until: expected at least {FEWEST + APART} seeds, got {last}: the first look is at "
            f"{FEWEST}, and looks are {APART} seeds apart; a fixed number is seeds={max(1, last)}"
        )
    return _looks([*(n for n in USUAL if n + APART <= last), last], "--until")


def declared(levels: Mapping[str, Mapping[str, Any]], place: str) -> dict[str, Any] | None:
    """What a file says, and over it its scale; `levels`: the place of each, and its parts. Seeds
    of a scale replace `until`, and it replaces them."""
    found = None
    for where, parts in levels.items():
        if "until" in parts and "seeds" in parts:
            raise UserError(
                f"{place}: {where}until: stands without seeds, which its looks give out; remove one"
            )
        if "until" in parts or "seeds" in parts:
            found = parts.get("until")
    return found


def first_seeds(until: Mapping[str, Any] | None, parts: Mapping[str, Any]) -> int:
    """How many seeds a file declares: those of its first look, or of its `seeds`."""
    if until is not None:
        return int(until.get("looks", DEFAULT)[0])
    return len(parts["seeds"]) if "seeds" in parts else DEFAULT_SEEDS


def with_until(
    sweep: Sweep, words: Mapping[str, Word], last: int | None, margin: float | None
) -> Sweep:
    """The sweep under `--until LAST --margin MARGIN`; if it has looks, with the seeds of the first.
    `words`: the sweep's own, by key. Raises UserError for what looks can't go with."""
    if sweep.until is None and last is None:
        if margin is not None:
            raise UserError("--margin: needs --until N; of a table it is analysis.margin=POINTS")
        return sweep
    place = "--until" if last is not None else f"{sweep.place}: until"
    until = {"looks": DEFAULT, **(sweep.until or {})}
    if last is not None:
        until["looks"] = looks_to(last)
    analysis = sweep.analysis
    for key in ("margin", "spread"):
        default = getattr(Analysis(), key)
        if key in until and getattr(analysis, key) not in (default, until[key]):
            raise UserError(f"{place}: {key}: analysis.{key} says another; give one")
        analysis = replace(analysis, **{key: until.get(key, getattr(analysis, key))})
    if margin is not None:
        analysis = replace(analysis, margin=value_of(Analysis, "margin", margin, "--margin"))
    if "seeds" in words:
        raise UserError(f"seeds: {place} gives out the seeds, at its looks; leave one of them away")
    if sweep.tune is not None and sweep.tune.repeats is not None:
        section = "from.tune" if sweep.tune.parents else "tune"
        raise UserError(
            f"{place}: goes without {section}.repeats: each seed that a look gives out brings a "
            f"search of its own; leave {section}.repeats away, or give {section}.repeats=null"
        )
    for key in WITHOUT:
        if getattr(analysis, key) != getattr(Analysis(), key):
            raise UserError(f"{place}: goes without analysis.{key}; leave one of them away")
    seeds = tuple(range(until["looks"][0]))
    return replace(sweep, until=until, seeds=seeds, analysis=analysis)


def with_seeds(plan: Plan, counts: Mapping[tuple[str, str], int]) -> Plan:
    """The plan with so many seeds of each (row, column) at least; where settings are tuned their
    runs have ids once a search has chosen the settings of each."""
    cells = []
    for cell in plan.cells:
        count = counts.get((cell.row, cell.column), 0)
        if count > len(plan.planned(cell)):
            seeds = tuple(range(count))
            if plan.is_tuned(cell):
                cell = replace(cell, seeds=seeds)
            else:
                cell = replace(cell, ids=ids_of(cell.spec, seeds))
        cells.append(cell)
    if tuple(cells) == plan.cells:
        return plan
    most = max(len(plan.planned(cell)) for cell in cells)
    return replace(plan, cells=tuple(cells), seeds=tuple(range(most)))


def at_most(plan: Plan) -> Plan:
    """The plan with all seeds of the last look, where a column has rows to judge."""
    judged = {cell.column for cell in plan.cells if cell.row != plan.baseline}
    cells = [cell for cell in plan.cells if cell.column in judged]
    return with_seeds(plan, {(cell.row, cell.column): plan.until[-1] for cell in cells})
