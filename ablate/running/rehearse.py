"""Rehearsal of a plan's rows before anything is trained: their first steps show a row that changes
nothing, parameters that no gradient reaches, and the cost of a step.

Each row is tried together with its baseline, in the column whose models are the smallest: see
`ablate.training.rehearsal`. Answers are kept in the store's cache, by the identity of both rows and
by the user's code in them.

Used by `ablate plan` and at the start of `ablate sweep` (api/training.py); report/planned.py prints
it. The torch side is training/rehearsal.py.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.planning import Cell, Plan, value_text
from ablate.run import (
    CHOICES,
    PART_KINDS,
    OwnSpec,
    own_code,
)
from ablate.running.answer_cache import AnswerCache
from ablate.running.launchers import Launcher
from ablate.shared import is_number
from ablate.store import Store
from ablate.version import __version__

# Multiply-adds of an image's forward, at most, of models that are tried: with a class of the
# user's own up to B/16, of shipped parts only what takes a tenth of a second.
LARGEST_OWN, SHIPPED = 2e10, 5e7
MOST_ROWS = 24  # rows of shipped parts alone

# Keys that act in the first steps of every run, wherever they act at all. Others act later (a
# schedule), at times (erasing, a small rotation), beyond a bound (clipping), or on arithmetic. Keys
# of parts are in the table of parts; all keys of a norm, stem or block act early.
EARLY_KEYS = {
    "optim": {
        "lr",
        "wd",
        "b1",
        "b2",
        "eps",
        "decay",
        "lr_mult",
        "beta2_decay",
        "momentum",
        "adjust_lr",
    },
    "train": {"label_smoothing"},
    "augment": {"flip", "crop_pad", "randaug", "style", "jitter"},
}
LATER = ("drop_path",)  # of model, where all other keys act early


@dataclass(frozen=True)
class Rehearsals:
    """The results of a rehearsal. `steps`: the cost of a step in steps of the baseline, by (row,
    column), for the cells that were tried. `warnings`: lines for the user."""

    steps: Mapping[tuple[str, str], float]
    warnings: Sequence[str]


def rehearse_rows(
    plan: Plan,
    store: Store,
    launcher: Launcher,
    described: Mapping[tuple[str, str], Mapping[str, Any]],
    *,
    own_only: bool = False,
) -> Rehearsals:
    """Rehearse the first steps of the plan's rows. `described`: the description of each cell, see
    `Costs`.

    Asks the launcher about the rows that have no answer yet; with `own_only` only about those with
    a class of the user's own. Raises UserError for such a class that can't take a step.
    """
    if isinstance(plan.cells[0].spec, OwnSpec):  # of such a trainer nobody knows what a step is
        return Rehearsals({}, [])
    cells = [cell for cell in plan.cells if cell.spec.trains]
    bases = [cell for cell in cells if cell.row == plan.baseline]
    if not bases:
        return Rehearsals({}, [])
    sizes = {place: answer["multiply_adds"] for place, answer in described.items()}
    baseline = min(bases, key=lambda cell: sizes[cell.row, cell.column])
    rows = [cell for cell in cells if cell.column == baseline.column]
    size = {cell.row: sizes[cell.row, cell.column] for cell in rows}
    device = launcher.device if not launcher.remote else "cpu"
    keys = {cell.row: _key(cell, baseline, device) for cell in rows}
    cache = AnswerCache(store.cache / "rehearsed.json", _is_answer)
    cached = cache.answers()
    tried = _worth(baseline, rows, size, own_only)
    new = [cell for cell in tried if keys[cell.row] not in cached]
    untried: dict[str, str] = {}
    if new:
        question = {
            "baseline": _question(baseline, size),
            "rows": {keys[cell.row]: _question(cell, size) for cell in new},
            "cache": str(store.cache),
            "device": device,
        }
        new_answers = launcher.ask("rehearse", question)
        for key in list(new_answers):
            if "untried" in new_answers[key]:
                untried[key] = new_answers.pop(key)["untried"]
        cached = cache.add(new_answers)
    answers = {row: cached[key] for row, key in keys.items() if key in cached}
    steps = {(row, baseline.column): answer["step"] for row, answer in answers.items()}
    warnings = _unchanged(plan, baseline, rows, answers)
    warnings += _faults(answers)
    warnings += _failures({row: untried[key] for row, key in keys.items() if key in untried})
    return Rehearsals(steps, warnings)


def _worth(
    baseline: Cell, rows: Sequence[Cell], size: Mapping[str, float], own_only: bool
) -> list[Cell]:
    """Return the rows that are worth trying: those with a class of the user's own, unless they are
    too large, and all rows where these are few and small."""
    few_and_small = max(size.values()) <= SHIPPED and len(rows) <= MOST_ROWS
    if few_and_small and not own_only:
        return list(rows)
    baseline_has_own = any(baseline.spec.own_parts)
    user_cells = []
    for cell in rows:
        has_own = baseline_has_own or any(cell.spec.own_parts)
        if has_own and max(size[cell.row], size[baseline.row]) <= LARGEST_OWN:
            user_cells.append(cell)
    return user_cells


def _question(cell: Cell, size: Mapping[str, float]) -> dict[str, Any]:
    return {"spec": cell.spec.with_seed(0).tree, "multiply_adds": size[cell.row]}


# --- Lines --------------------------------------------------------------------------------------


def _unchanged(
    plan: Plan, baseline: Cell, rows: Sequence[Cell], answers: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """List a line for each row whose weights remain the baseline's, though its settings act in the
    first steps."""
    row_settings = {row.label: row.settings for row in plan.rows}
    lines = []
    for cell in rows:
        if cell.row == baseline.row or not answers.get(cell.row, {}).get("same"):
            continue
        if not _act_early(_differing(cell.spec.tree, baseline.spec.tree)):
            continue
        settings = row_settings[cell.row]
        words = ", ".join(f"{key}={value_text(value)}" for key, value in settings.items())
        lines.append(
            f"{cell.row}: after 4 steps at the full rate every weight is that of {baseline.row}, "
            f"bit for bit: {words} changes nothing, or nothing so early"
        )
    return lines


def _faults(answers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """List a line for each fault, with the rows that have it."""
    idle, wrong = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for row, answer in answers.items():
        by_reason = defaultdict[str, list[str]](list)
        for name, reason in answer["idle"].items():
            by_reason[reason].append(name)
        for reason, names in by_reason.items():
            paths = _alike(names)
            text = ", ".join(paths[:MOST_NAMES])
            surplus = len(paths) - MOST_NAMES
            if surplus > 0:
                text += f" and {surplus} more"
            idle[f"no gradient reaches {text} in 4 steps: {IDLE[reason]}"].append(row)
        if answer["bad"] is not None:
            steps = answer["bad"]
            wrong[f"the loss is not finite after {steps} steps at the full rate"].append(row)
        if answer["differs"]:
            wrong[DIFFERS[answer["differs"]]].append(row)
    lines = [*idle.items(), *wrong.items()]
    return [f"{', '.join(rows)}: {line}" for line, rows in lines]


def _alike(names: Sequence[str]) -> list[str]:
    """Return names of parameters, where those that differ in one number are one: `blocks.{0-2,4}.w`
    for w of five blocks but the fourth."""
    groups = defaultdict[str, list[list[str]]](list)
    for name in names:
        groups[re.sub(r"\.\d+(?=\.|$)", ".*", name)].append(name.split("."))
    paths = []
    for group in groups.values():
        steps = [list(dict.fromkeys(step)) for step in zip(*group, strict=True)]
        if sum(len(step) > 1 for step in steps) > 1:
            paths += [".".join(name) for name in group]
        else:
            paths.append(".".join(step[0] if len(step) == 1 else _span(step) for step in steps))
    return paths


def _span(numbers: Sequence[str]) -> str:
    """Return numbers in braces, with what follows one another as a range: "{0-2,4}"."""
    ranges: list[list[int]] = []
    for number in sorted(map(int, numbers)):
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ranges]
    return "{" + ",".join(texts) + "}"


def _failures(untried: Mapping[str, str]) -> list[str]:
    """List a line for each reason why rows could not be tried, with these rows. The machine may be
    at fault, so they are tried again next time."""
    rows = defaultdict[str, list[str]](list)
    for row, reason in untried.items():
        rows[reason].append(row)
    return [
        f"{', '.join(names)}: the first 4 steps failed: {reason}" for reason, names in rows.items()
    ]


IDLE = {  # why no gradient reaches a parameter
    "unused": "the forward pass does not use it",
    "zero": "its gradient is 0 in each of them",
    "class token": "it changes only tokens that the head does not read; with model.pool=tok the "
    "head reads the class token of the last block alone",
    "patches": "it changes only tokens that the head does not read; the head reads the patches "
    "of the last block alone",
}
DIFFERS = {  # what a training of 4 steps is compared with
    "again": "a second training of the same 4 steps gives other weights, so a part draws random "
    "numbers of its own or keeps a state between trainings: no run of it repeats bit for bit",
    "resumed": "4 steps that are stopped and resumed give other weights, so a part keeps a state "
    "that no checkpoint has; keep it in a buffer (register_buffer)",
}
MOST_NAMES = 4  # names of parameters in a line


def _differing(
    our_tree: Mapping[str, Any], their_tree: Mapping[str, Any], path: str = ""
) -> set[str]:
    """Return the dotted keys in which two trees differ."""
    keys = set()
    for key in our_tree.keys() | their_tree.keys():
        ours, theirs = our_tree.get(key), their_tree.get(key)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and key != "settings":
            keys |= _differing(ours, theirs, f"{path}{key}.")
        elif ours != theirs:
            keys.add(path + key)
    return keys


def _act_early(keys: set[str]) -> bool:
    """Return whether all of these keys act in the first steps. A parent's key does where it is
    among the child's, too."""
    return all(_acts(key.rpartition("parent.")[2], keys) for key in keys)


def _acts(key: str, keys: set[str]) -> bool:
    section, _, name = key.partition(".")
    if key not in keys:  # a parent's alone
        return False
    if section == "model":
        return name not in LATER
    if section in CHOICES or name in EARLY_KEYS.get(section, ()):
        return True
    kinds = [kind for kind in PART_KINDS if kind.section == section and kind.acts_early]
    return any(name in kind.fields for kind in kinds)


# --- Cache --------------------------------------------------------------------------------------


def _key(cell: Cell, baseline: Cell, device: str) -> str:
    parts = [__version__, device]
    for side in (cell, baseline):
        parts += [side.spec.identity, own_code(side.spec)]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def _is_answer(tree: Any) -> bool:
    match tree:
        case {"same": bool(), "idle": {**idle}, "step": step, "bad": bad, "differs": differs}:
            plain = is_number(step) and (bad is None or is_number(bad))
            is_known = differs == "" or differs in DIFFERS
            return plain and is_known and all(reason in IDLE for reason in idle.values())
    return False
