"""Writes the footnotes on entries, rows and columns of a table. Computes nothing."""

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
from ablate.store.progress import GIVEN_UP

if TYPE_CHECKING:
    from ablate.analysis.stats import Exact, RowGain


# What the machine chose, by its key in result.json (the precision: the recipe's): a column that
# mixes it says so, and `--strict` refuses it.
MACHINE = {
    "device": "device",
    "kernel": "attention kernel",
    "deterministic": "use of deterministic algorithms",
    "tf32": "use of TF32",
    "cudnn_benchmark": "use of cuDNN's benchmark",
    "precision": "precision",
    "threads": "number of threads",
    "micro_batch": "micro-batch",
    "execution": "execution of the step",
    "digest": "version of the training code",
    "torch": "version of torch",
}
CODE = ("digest", "plugins")  # "d1+d2": a run that went on under other code


class Footnotes:
    """Numbers texts in the order of their first appearance; equal texts share a number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, texts: Iterable[str]) -> tuple[int, ...]:
        return tuple(self.numbers.setdefault(text, len(self.numbers) + 1) for text in texts)


def row_notes(confounds: Sequence[str]) -> list[str]:
    if not confounds:
        return []
    return [f"Confound: the row sets {', '.join(confounds)}, which belongs to the recipe."]


def entry_notes(
    plan: Plan,
    found: Scores,
    gain: RowGain | None,
    base: Scores | None,
    against: Exact | None,
    unstable: str,
) -> list[str]:
    """List the footnotes on the runs of an entry. `against`: Fisher's test of its diverged and
    collapsed runs; `unstable`: such runs of the baseline, "0 of 3"."""
    texts = []
    if gone := plan.gone(found.cell):
        how = "; ".join(f"seed {seed}, {_how_far(detail)}" for seed, detail in gone.items())
        texts.append(f"Skipped by the user: {how}.")
    if found.cell.chosen:
        texts.append(_chosen(found.cell.chosen))
    if found.cell.overrides:
        keys = ", ".join(found.cell.overrides)
        texts.append(f"The sweep's overrides change the recipe of this cell: {keys}.")
    if found.diverged:
        texts.append(_diverged(plan, found, gain))
    if found.collapsed:
        texts.append(
            f"Collapsed: {seed_names(found.collapsed)} "
            f"{plan.task.collapse or _no_lower(plan)}; the mean includes it{_left(gain)}."
        )
    if found.unstable and against and base and not base.unstable:  # else it is said of the column
        texts[-1] += f" {_fisher(plan, against, unstable)}"
    if found.main.never:
        texts.append(
            f"{seed_names(found.main.never).capitalize()} never reached the threshold. The mean "
            f"leaves these runs out, so the row has no verdict."
        )
    for name, values in found.beyond.items():
        what = plan.named(name, "--show").name
        texts.append(
            f"The {what} of this row is left out: {by_seed(values)}; no interval can be computed "
            f"beyond {LARGEST:g}."
        )
    return texts


def gain_notes(
    plan: Plan,
    found: Scores,
    gain: RowGain | None,
    verdict: str | None,
    base: Scores | None,
    by_images: bool,
) -> list[str]:
    """List the footnotes that explain the gain of an entry and its verdict. `by_images`: is its
    column judged by images?"""
    from ablate.analysis import stats

    texts = []
    if gain and gain.own in ("spread", "outlier"):
        leaves = gain.own == "outlier"
        told = "its images and the other rows tell" if by_images else "the other rows have"
        times = f"{gain.ratio:.1f} times" if gain.ratio is not None else "far above"
        test = "0.1" if leaves else "5" if by_images else "10"
        by = f" (F test, {test} %): the row has its own paired"
        if not plan.design.blocks:
            by = ": the row has its own Welch"
        texts.append(
            f"The row's spread is {times} what {told}{by} interval, and "
            f"{'tells nothing' if leaves else 'still tells'} of the other rows' spread."
        )
    if gain and gain.own == "vague":
        texts.append(
            "The row's own seeds tell its spread better than images and the other rows do: the row "
            "has its own paired interval."
        )
    if gain and gain.few:
        texts.append(
            "The predictions of hardly any image change between seeds, in this row and the "
            "baseline: the row is judged by one spread of all rows."
        )
    if gain and base and verdict == stats.UNSTABLE:
        texts.append(_unstable(plan, found, gain, base))
    if verdict == stats.DID_NOTHING:
        texts.append(
            f"The predictions equal those of {plan.baseline} in every seed, bit for bit: the "
            f"change did nothing."
        )
    elif gain and gain.gain.sd == 0:
        change = plan.metric.change
        texts.append(f"The {change} is the same in every seed: there is no spread to judge it by.")
    return texts


def _how_far(skipped: Mapping[str, Any]) -> str:
    """How far a run had come when it was skipped."""
    at = f" at step {skipped['step']}" if skipped.get("step") else ""
    if skipped.get("was") in GIVEN_UP:
        return f"which had ended as {skipped['was']}{at}"
    return f"which had begun, and stopped{at}" if skipped.get("begun") else "before it began"


def _no_lower(plan: Plan) -> str:
    return f"ended with a training loss no lower than the loss of {plan.task.prior}"


def _unstable(plan: Plan, found: Scores, gain: RowGain, base: Scores) -> str:
    """Explain why a gain far from 0 is not resolved, and how many seeds would resolve it."""
    from ablate.analysis import stats

    of = plan.metric
    ours, theirs = found.main.by_seed, base.main.by_seed
    gains = {seed: of.sign * (ours[seed] - theirs[seed]) for seed in ours if seed in theirs}
    middle = statistics.median(gains.values())
    worst = max(gains, key=lambda seed: abs(gains[seed] - middle))
    decides = (
        f"{gain.decides} seeds of this spread would resolve a {of.change} as large"
        if gain.decides is not None
        else f"{stats.MOST_SEEDS} seeds of this spread would not resolve a {of.change} as large"
    )
    times = f"{gain.ratio:.1f} times" if gain.ratio is not None else "many times"
    return (
        f"Unstable: the other rows' spread would tell the {of.change} from zero, but the row's own "
        f"spread is {times} as large and does not; seed {worst} is farthest from "
        f"the median ({gains[worst]:+.{of.decimals}f} {of.points}); {decides}."
    )


def _chosen(choices: Sequence[TuningWinner]) -> str:
    """Name the settings that searches chose for a cell, their cost, and doubts about them."""
    params = "; ".join(
        ", ".join(f"{key}={setting(value)}" for key, value in choice.params.items())
        + f" ({choice.name})"
        for choice in choices
    )
    trials, spent = (sum(getattr(c, name) for c in choices) for name in ("trials", "spent"))
    adds = sum(choice.multiply_adds for choice in choices)
    each = " each" if len(choices) > 1 else ""
    worth = f" at the cost of {spent:.1f}" if spent < trials else ""  # some pruned, or repeated
    used = f"; {short(adds)} multiply-adds" if adds else ""
    text = f"Tuned: {params}; best of {count(choices[0].trials, 'trial')}{each}{worth}{used}."
    return " ".join([text, *(f"{sentence(doubt)}." for doubt in doubts(choices))])


def setting(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "-" if value is None else str(value)


def doubts(choices: Sequence[TuningWinner]) -> list[str]:
    """List doubts about a choice: it lies at the edge of a range, or it is noise."""
    found = []
    if edges := Counter(key for choice in choices for key in choice.edges):
        found.append(
            f"at the edge of its range: {_often(edges, choices)}; a better value may lie beyond"
        )
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
    return (
        "; the row has its own paired interval, and tells nothing of the other rows' spread"
        if unstable
        else ""
    )


def _fisher(plan: Plan, against: Exact, unstable: str) -> str:
    few = "" if against.tested else "; the test can decide from 4 runs on"
    return (
        f"Fisher's exact test against {unstable} runs of {plan.baseline}: p = {against.p:.2g}; "
        f"the smallest p of so many runs is {against.floor:.2g}{few}."
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
        return f"Diverged: {runs}; gains are over the other runs of the baseline."
    return (
        f"Diverged: {runs}; mean and gain are of the other runs, so the row has no verdict{left}."
    )


def mixtures(block: Sequence[Scores]) -> list[tuple[str, str]]:
    """List (key, sentence) for every unplanned difference between the runs of a column."""
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
    """List what decoding found in the images of a column, as its runs recorded it."""
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
    """Yield (key, name, value) of all facts that should be the same in the runs of a column."""
    known = {**result, "precision": cell.spec.get("train", {}).get("precision")}
    for key, name in MACHINE.items():
        if known.get(key) is not None:
            yield key, name, known[key]
    digests = result.get("plugins")
    own = {k: v for k, v in digests.items() if v} if isinstance(digests, dict) else {}
    if own:  # a digest is of all that was loaded from a folder: alike only for the same classes
        places = (f"{kind}={_named(cell.spec, kind)}" for kind in own)
        yield "plugins", f"code of {', '.join(places)}", "/".join(dict.fromkeys(own.values()))


def seed_names(seeds: Sequence[int]) -> str:
    """ "seed 1", "seeds 0, 2"."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _named(spec: Mapping[str, Any], kind: str) -> str:
    """What a run has of the user's own: a section with a name, `SECTION.KEY`, or its probes."""
    if kind == "probe":
        return ", ".join(spec["own_probes"]["versions"])
    section, _, key = kind.partition(".")
    named = spec[section][key or "name"]
    return ", ".join(named) if isinstance(named, list) else str(named)
