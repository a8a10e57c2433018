"""Recall of the last time that a sweep was driven: its seeds, and the words that crossed it.

Seeds are state: those that a sweep was driven with stay, until `--replace` gives them up.

Used by `planning/expand.py`; `api/recall.py` (`StoreRecall`) says how a sweep was driven before,
for `ablate sweep`, `ablate plan` and Python.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ablate.planning.compose import Composer
from ablate.planning.declaration import Sweep, matches_value
from ablate.planning.declared import Declared
from ablate.planning.design import seeds_value
from ablate.planning.plan import Plan
from ablate.planning.settings import Word, value_at, value_text
from ablate.shared import UserError


class Recall(Protocol):
    """The memory of a store: the sweeps that were driven there."""

    def plans(self, beginning: str, whole: str) -> list[Plan]:
        """Return the plans with the name `whole`, or with a name that has this beginning."""

    def plan(self, name: str, line: Declared) -> Plan | None:
        """Return the plan by which the sweep was driven last; None where it was not, or where that
        name is another sweep's."""


@dataclass(frozen=True)
class Recalled:
    """A sweep with its seeds.

    `line`: what declares it again. `notes`: a line where the seeds are those of last time.
    """

    sweep: Sweep
    line: Declared
    notes: tuple[str, ...] = ()


def recall_crossed(line: Declared, last_plan: Plan | None) -> list[Word]:
    """Return the words that `last_plan` was crossed with, and that the command line lacks."""
    if last_plan is None or line.file is None or not isinstance(last_plan.declared, Declared):
        return []
    keys = {word.key for word in line.settings}
    return [word for word in last_plan.declared.crossed if word.key not in keys]


def check_crossed(
    line: Declared,
    sweep: Sweep,
    last_plan: Plan | None,
    composer: Composer,
    name: str,
    has_own_name: bool,
) -> None:
    """Raise UserError where words that cross a file leave out a value that the sweep has.

    Those are the values that it was driven with (`last_plan`) and, where the name is the sweep's
    own (`has_own_name`), the file's own value of a key.
    """
    if not line.crossed:
        return
    trees = []
    if last_plan is not None:
        trees += [dict(cell.spec.tree) for cell in last_plan.cells]
    if has_own_name:
        row, column = sweep.rows[0], sweep.columns[0]
        own_settings = {
            key: value for key, value in column.settings.items() if key not in sweep.crossed
        }
        uncrossed = replace(sweep, crossed=())
        layers = uncrossed.layers(row, replace(column, settings=own_settings))
        trees.append(composer.tree(layers))
    for word in line.crossed:
        old_values = []
        for tree in trees:
            value = value_at(tree, word.key)
            if isinstance(value, Mapping):
                value = value.get("name")
            if value is not None:  # no tree has the name of a recipe
                old_values.append(value)
        lacking = [value for value in old_values if not matches_value([*word.values], value)]
        if lacking:
            lacking_text = _value_list(lacking)
            union = f"{word.key}={_value_list([*old_values, *word.values])}"
            raise UserError(
                f"{word.text}: {name} has {word.key}={lacking_text}, too; "
                f"`{shlex.quote(union)}` extends it, --as NAME makes another sweep"
            )


def _value_list(values: Sequence[Any]) -> str:
    """Return values as a word has them, "a,b", each once."""
    return ",".join(dict.fromkeys(map(value_text, values)))


def recall_seeds(
    declared_sweep: Sweep, line: Declared, last_plan: Plan | None, by_default: bool
) -> Recalled:
    """Return the declared sweep under what the command line says, with its seeds.

    Where the command line says nothing of seeds, the sweep has all seeds of `last_plan`, the plan
    by which it was driven last. `by_default`: the seeds are declared nowhere. Raises UserError
    where the command line gives seeds that lack some of `last_plan`.
    """
    design = declared_sweep.design
    if line.options.until is not None:
        design = design.extended(line.options.until)
    sweep = design.apply_to(replace(declared_sweep, design=design), line.sweep, line.options.margin)
    if last_plan is None or _covers(sweep, last_plan, line.says_seeds):
        return Recalled(sweep, line)
    if line.says_seeds:
        raise _lacking(sweep, last_plan, line)
    source = "the default is" if by_default else "the file says"
    otherwise = f"as last time; {source} {sweep.design.seeds_text(sweep.seeds)}"
    sweep, summary = last_plan.design.recall(declared_sweep, last_plan, line.sweep)
    line = sweep.design.declare_seeds(line, sweep.seeds)
    if isinstance(last_plan.declared, Declared):  # without these, a file declared the looks
        last_options = last_plan.declared.options
        line = line.with_options(until=last_options.until, margin=last_options.margin)
    return Recalled(sweep, line, (f"{summary}, {otherwise}",))


def _covers(sweep: Sweep, last_plan: Plan, says_seeds: bool) -> bool:
    """Return whether the sweep has, or may get, all seeds that it was driven with.

    `says_seeds`: a word gives seeds. Without one, a drive goes on to all seeds that the design of
    `last_plan` reaches, and a design of another kind must begin with all of them.
    """
    same_kind = type(sweep.design) is type(last_plan.design)
    seeds: Sequence[int] = sweep.seeds
    driven_seeds: Sequence[int] = last_plan.seeds
    if says_seeds or same_kind:
        seeds = sweep.design.reach(seeds)
    if not says_seeds:
        driven_seeds = last_plan.design.reach(driven_seeds)
    return {*seeds} >= {*driven_seeds}


def _lacking(sweep: Sweep, last_plan: Plan, line: Declared) -> UserError:
    if line.options.until is not None:
        text = f"--until {line.options.until}"
        first_seed = sweep.seeds[0]
        has_earlier = min(last_plan.seeds) < first_seed  # which no look reaches
        remedy = "" if has_earlier else f"--until {max(last_plan.seeds) - first_seed + 1}"
    else:
        text = line.sweep["seeds"].text
        all_seeds = sorted({*sweep.seeds, *last_plan.seeds})
        remedy = f"seeds={seeds_value(all_seeds)}"
    keeps = f"`{remedy}` keeps all of these, " if remedy else ""
    return UserError(
        f"{text}: {last_plan.name} was driven with seeds={seeds_value(last_plan.seeds)}; "
        f"{keeps}--replace gives up those that you leave out"
    )
