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
    line: Declared, plan: Plan, last_plan: Plan | None, own_tree: Mapping[str, Any] | None
) -> None:
    """Raise UserError where words that cross a file leave out a value that the sweep has.

    Those are the values that it was driven with (`last_plan`) and, where the name is the sweep's
    own, those of a run of the file alone, `own_tree`. They are compared as runs have them, since
    1k is 1000, and null may be the depth of the model.
    """
    trees = [cell.spec.tree for cell in last_plan.cells] if last_plan is not None else []
    if own_tree is not None:
        trees.append(own_tree)
    for word in line.crossed:
        values = [_named_value(cell.spec.tree, word.key) for cell in plan.cells]
        old_values = [_named_value(tree, word.key) for tree in trees]
        lacking = [
            value
            for value in old_values
            if value is not None  # no tree has the name of a recipe
            and not matches_value(values, value)
        ]
        if lacking:
            candidates = lacking + list(word.values)
            union = [value for value in old_values if value in candidates] + list(word.values)
            raise UserError(
                f"{word.text}: {plan.name} has {_word_of(word.key, lacking)}, too; "
                f"`{shlex.quote(_word_of(word.key, union))}` extends it, --as NAME makes another "
                f"sweep"
            )


def _named_value(tree: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key as a word has it: a section, or a list of these, by its
    names."""
    value = value_at(tree, key)
    if isinstance(value, list | tuple):
        return [_name_of(item) for item in value]
    return _name_of(value)


def _name_of(value: Any) -> Any:
    return value.get("name") if isinstance(value, Mapping) else value


def _word_of(key: str, values: Sequence[Any]) -> str:
    """Return the word of a key with these values, each once."""
    values_by_text = {value_text(value): value for value in values}
    return Word(key, tuple(values_by_text.values()), swept=len(values_by_text) > 1).text


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
