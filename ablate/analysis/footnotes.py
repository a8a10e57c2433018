"""The words of a table on one of its entries, rows or columns. Computes nothing."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablate.analysis.captions import count, names, sentence
from ablate.analysis.scores import LARGEST, Scores, by_seed, short
from ablate.planning.cell import Cell, TuningWinner
from ablate.planning.plan import Plan
from ablate.shared import decoded

if TYPE_CHECKING:
    from ablate.analysis.stats import Exact, RowGain


# What the machine chose, by its key in result.json (the precision: the recipe's): a column that
# mixes it says so, and `--strict` refuses it.
MACHINE = {
    "device": "device",
    "kernel": "attention kernel",
    "precision": "precision",
    "threads": "number of threads",
    "micro_batch": "micro-batch",
    "digest": "version of the training code",
    "torch": "version of torch",
}
CODE = ("digest", "plugins")  # "d1+d2": a run that went on under other code


class Footnotes:
    """Texts numbered as they first appear; equal ones share a number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, texts: Iterable[str]) -> tuple[int, ...]:
        return tuple(self.numbers.setdefault(text, len(self.numbers) + 1) for text in texts)


def row_notes(confounds: Sequence[str]) -> list[str]:
    if not confounds:
        return []
    return [f"A confound: sets {', '.join(confounds)}, which belongs to the recipe."]


def entry_notes(
    plan: Plan,
    found: Scores,
    gain: RowGain | None,
    verdict: str | None,
    base: Scores | None,
    against: Exact | None,
    unstable: str,
) -> list[str]:
    """`against`: Fisher's test of the diverged and collapsed runs; `unstable`: how many the
    baseline has, "0 of 3"."""
    from ablate.analysis import stats

    texts = []
    if found.cell.chosen:
        texts.append(_chosen(found.cell.chosen))
    if found.cell.overrides:
        keys = ", ".join(found.cell.overrides)
        texts.append(f"The sweep's overrides change the recipe of this cell: {keys}.")
    if found.diverged:
        texts.append(_diverged(plan, found, gain))
    if found.collapsed:
        texts.append(
            f"Collapsed: {_seeds(found.collapsed)} ended with a training loss no lower than that "
            f"of {plan.task.prior}; kept in the mean{_left(gain)}."
        )
    if found.unstable and against and base and not base.unstable:  # else it is said of the column
        texts[-1] += f" {_fisher(plan, against, unstable)}"
    if found.main.never:
        texts.append(
            f"{_seeds(found.main.never).capitalize()} never got there: counted, not averaged, so "
            f"no verdict."
        )
    for name, values in found.beyond.items():
        what = plan.named(name, "--show").name
        texts.append(
            f"Its {what} is left out: {by_seed(values)}; no interval can be computed beyond "
            f"{LARGEST:g}."
        )
    if gain and gain.own in ("spread", "outlier") and gain.ratio is not None:
        left, test = ("left the pool; ", "0.1 %") if gain.own == "outlier" else ("", "5 %")
        texts.append(
            f"Its spread is {gain.ratio:.1f} times the other rows' (F test, {test}): {left}its own "
            f"paired interval."
        )
    if gain and base and verdict == stats.UNSTABLE:
        texts.append(_unstable(plan, found, gain, base))
    if verdict == stats.DID_NOTHING:
        texts.append(
            f"Its predictions are those of {plan.baseline} in every seed, bit for bit: this change "
            f"did nothing."
        )
    elif gain and gain.gain.sd == 0:
        texts.append("The same gain in every seed: no spread to judge by.")
    return texts


def _unstable(plan: Plan, found: Scores, gain: RowGain, base: Scores) -> str:
    """Why a gain far from 0 is not told, and what would tell it."""
    from ablate.analysis import stats

    of = plan.metric
    ours, theirs = found.main.by_seed, base.main.by_seed
    gains = {seed: of.sign * (ours[seed] - theirs[seed]) for seed in ours if seed in theirs}
    middle = statistics.median(gains.values())
    worst = max(gains, key=lambda seed: abs(gains[seed] - middle))
    decides = (
        f"{gain.decides} seeds of this spread would tell a gain as large"
        if gain.decides is not None
        else f"{stats.MOST_SEEDS} seeds of this spread would not tell a gain as large"
    )
    return (
        f"Unstable: the other rows' spread would tell its gain from zero, its own spread, "
        f"{gain.ratio:.1f} times as large, does not; farthest out is seed {worst} "
        f"({gains[worst]:+.{of.decimals}f} {of.points}); {decides}."
    )


def _chosen(choices: Sequence[TuningWinner]) -> str:
    """What searches chose for a cell, and why it may not be the best."""
    params = "; ".join(
        ", ".join(f"{key}={setting(value)}" for key, value in choice.params.items())
        + f" ({choice.name})"
        for choice in choices
    )
    trials, spent = (sum(getattr(c, name) for c in choices) for name in ("trials", "spent"))
    adds = sum(choice.multiply_adds for choice in choices)
    each = " each" if len(choices) > 1 else ""
    worth = f", worth {spent:.1f}" if spent < trials else ""  # some pruned, or the same again
    used = f"; {short(adds)} multiply-adds" if adds else ""
    text = f"Tuned: {params}; best of {count(choices[0].trials, 'trial')}{each}{worth}{used}."
    return " ".join([text, *(f"{sentence(doubt)}." for doubt in doubts(choices))])


def setting(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "-" if value is None else str(value)


def doubts(choices: Sequence[TuningWinner]) -> list[str]:
    """Whether better may lie beyond what the searches of a cell were given, or luck chose."""
    found = []
    if edges := Counter(key for choice in choices for key in choice.edges):
        found.append(f"at the edge of its range: {_often(edges, choices)}; better may lie beyond")
    if noise := Counter(key for choice in choices for key in choice.noise):
        found.append(
            f"the choice is noise: {_often(noise, choices)}; the best two trials differ by less "
            f"than the validation error"
        )
    return found


def _often(keys: Counter[str], choices: Sequence[TuningWinner]) -> str:
    """ "optim.lr in 2 of 3 searches"; of a single search the keys alone."""
    of = f" of {len(choices)} searches"
    return ", ".join(f"{key} in {n}{of}" if len(choices) > 1 else key for key, n in keys.items())


def _left(gain: RowGain | None) -> str:
    unstable = gain is not None and gain.own == "instability"
    return "; left the pool, its own paired interval" if unstable else ""


def _fisher(plan: Plan, against: Exact, unstable: str) -> str:
    few = "" if against.tested else "; from 4 runs on it is a test"
    return (
        f"Fisher's exact test against {unstable} runs of {plan.baseline}: p = {against.p:.2g}, "
        f"which can't be below {against.floor:.2g}{few}."
    )


def _diverged(plan: Plan, found: Scores, gain: RowGain | None) -> str:
    runs = ", ".join(
        f"seed {seed}" + (f" at step {step}" if step is not None else "")
        for seed, step in found.diverged.items()
    )
    left = _left(gain)
    if plan.analysis.diverged == "chance" and found.cell.row != plan.baseline:
        return f"Diverged: {runs}; scored at chance{left}."
    if found.cell.row == plan.baseline:
        return f"Diverged: {runs}; gains are over the baseline's survivors."
    return f"Diverged: {runs}; mean and gain are of the survivors, so no verdict{left}."


def mixtures(block: Sequence[Scores]) -> list[tuple[str, str]]:
    """(key, sentence) for all that the runs of a column differ in beside what was planned."""
    used: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for found in block:
        for result in found.results:
            for key, name, value in _circumstances(found.cell, result):
                values = used.setdefault((key, name), {})
                values.setdefault(str(value), Counter())[found.cell.row] += 1
    sentences = []
    for (key, name), values in used.items():
        changed = key in CODE and any("+" in value for value in values)  # while a run trained
        if len(values) > 1 or changed:
            ranked = sorted(values.items(), key=lambda item: (-item[1].total(), item[0]))
            parts = [
                f"{value} ({count(rows.total(), 'run')}"
                + (f": {names(list(rows))})" if position else ")")
                for position, (value, rows) in enumerate(ranked)
            ]
            sentences.append((key, f"Runs differ in their {name}: {', '.join(parts)}."))
    return sentences


def data_notes(block: Sequence[Scores]) -> list[str]:
    """What was found in the images of a column when they were decoded, as its runs recorded it."""
    said: dict[str, dict[str, None]] = {}
    for found in block:
        for result in found.results:
            for key, text in decoded.words(result).items():
                name = found.cell.spec["data"]["name"]
                how = " (data.broken=skip)" if key == "left_out" else ""
                said.setdefault(f"data={name}: {text}{how}", {})[found.cell.row] = None
    whole = len({found.cell.row for found in block if found.results})
    return [
        f"{text}." if len(rows) == whole else f"{text}: {names(list(rows))}."
        for text, rows in said.items()
    ]


def _circumstances(cell: Cell, result: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(key, name, value) of all that should be the same for the runs of a column."""
    known = {**result, "precision": cell.spec.get("train", {}).get("precision")}
    for key, name in MACHINE.items():
        if known.get(key) is not None:
            yield key, name, known[key]
    digests = result.get("plugins")
    own = {k: v for k, v in digests.items() if v} if isinstance(digests, dict) else {}
    if own:  # a digest is of all that was loaded from a folder: alike only for the same classes
        places = (f"{kind}={cell.spec[kind]['name']}" for kind in own)
        yield "plugins", f"code of {', '.join(places)}", "/".join(dict.fromkeys(own.values()))


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
