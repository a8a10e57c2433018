"""Writes the footnotes on entries, rows and columns of a table. Computes nothing."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ablate.analysis import stats
from ablate.analysis.captions import capitalized, first_few, plural
from ablate.analysis.judging import JudgedRow, is_wide
from ablate.analysis.scores import LARGEST, Scores, blocks_of, by_seed, short_number
from ablate.analysis.table import Note, notes
from ablate.planning import Cell, Plan, TuningWinner
from ablate.shared import decoded
from ablate.store import GIVEN_UP

# What the machine chose, by its key in result.json (the precision: the recipe's): a column that
# mixes it says so, and `--strict` refuses it.
MACHINE_FACTS = {
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
    "interpreter": "interpreter and its packages",
}
CODE = ("digest", "plugins")  # "d1+d2": a run that went on under other code


def entry_notes(row: JudgedRow) -> Iterator[Note]:
    """Yield the footnotes on an entry and on its row."""
    [confounds] = (one.confounds for one in row.plan.rows if one.label == row.found.cell.row)
    if confounds:
        text = f"Confound: the row sets {', '.join(confounds)}, which belongs to the recipe."
        yield Note("footnote", text, (row.found.cell.row, None))
    yield from notes("footnote", _of_runs(row), row.place)
    if row.course is not None:
        yield Note("gain", row.course.note(row.judge), row.place)
    yield from notes("gain", _of_gain(row), row.place)


def _of_runs(row: JudgedRow) -> list[str]:
    plan, found, base = row.plan, row.found, row.base
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
        texts.append(_diverged(row))
    if found.collapsed:
        texts.append(
            f"Collapsed: {seed_names(found.collapsed)} "
            f"{plan.task.collapse or _no_lower(plan)}; the mean includes it{_left(row.gain)}."
        )
    if found.unstable and row.against and base and not base.unstable:  # else the column says it
        few = "" if row.against.tested else "; the test can decide from 4 runs on"
        texts[-1] += (
            f" Fisher's exact test against 0 of {len(base.results)} runs of {plan.baseline}: p = "
            f"{row.against.p:.2g}; the smallest p of so many runs is {row.against.floor:.2g}{few}."
        )
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


def _of_gain(row: JudgedRow) -> list[str]:
    """List what explains a gain and its verdict."""
    plan, gain, verdict = row.plan, row.gain, row.verdict
    texts = []
    if gain and gain.own in ("spread", "outlier"):
        leaves = gain.own == "outlier"
        told = (
            f"its {plan.task.examples} and the other rows tell"
            if row.by_images
            else "the other rows have"
        )
        times = f"{gain.ratio:.1f} times" if gain.ratio is not None else "far above"
        test = "0.1" if leaves else "5" if row.by_images else "10"
        by = f" (F test, {test} %): the row has its own paired"
        if not plan.design.blocks:
            by = ": the row has its own Welch"
        if _few_beside_more(row):
            texts.append("Few runs beside a larger baseline: the row has its own Welch interval.")
        else:
            texts.append(
                f"The row's spread is {times} what {told}{by} interval, and "
                f"{'tells nothing' if leaves else 'still tells'} of the other rows' spread."
            )
    if gain and gain.own == "vague":
        texts.append(
            f"The row's own seeds tell its spread better than {plan.task.examples} and the other "
            f"rows do: the row has its own paired interval."
        )
    if gain and gain.few:
        texts.append(
            "The predictions of hardly any image change between seeds, in this row and the "
            "baseline: the row is judged by one spread of all rows."
        )
    if gain and row.base and verdict == stats.UNSTABLE:
        texts.append(_unstable(plan, row.found, gain, row.base))
    if verdict == stats.DID_NOTHING:
        texts.append(
            f"The predictions equal those of {plan.baseline} in every seed, bit for bit: the "
            f"change did nothing."
        )
    elif gain and gain.gain.sd == 0:
        change = plan.metric.change
        texts.append(f"The {change} is the same in every seed: there is no spread to judge it by.")
    if gain and is_wide(gain.gain, plan.metric):
        most, points = f"{plan.metric.most:g}", plan.metric.points
        texts.append(f"-: the interval is wider than {most} {points}, so it says nothing.")
    return texts


def _few_beside_more(row: JudgedRow) -> bool:
    """Return whether the row has so few runs, and fewer than the baseline, that the rows' spread is
    hardly ever used for it. Then its own spread need not be far from theirs."""
    ours, theirs = (len(s.results) if s else 0 for s in (row.found, row.base))
    return not row.plan.design.blocks and ours < min(stats.FEW_SEEDS, theirs)


def _how_far(skipped: Mapping[str, Any]) -> str:
    """How far a run had come when it was skipped."""
    at = f" at step {skipped['step']}" if skipped.get("step") else ""
    if skipped.get("was") in GIVEN_UP:
        return f"which had ended as {skipped['was']}{at}"
    return f"which had begun, and stopped{at}" if skipped.get("begun") else "before it began"


def _no_lower(plan: Plan) -> str:
    return f"ended with a training loss no lower than the loss of {plan.task.prior}"


def _unstable(plan: Plan, found: Scores, gain: stats.RowGain, base: Scores) -> str:
    """Explain why a gain far from 0 is not resolved, and how many seeds would resolve it."""
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
        ", ".join(f"{key}={setting_text(value)}" for key, value in choice.params.items())
        + f" ({choice.name})"
        for choice in choices
    )
    trials, spent = (sum(getattr(c, name) for c in choices) for name in ("trials", "spent"))
    adds = sum(choice.multiply_adds for choice in choices)
    each = " each" if len(choices) > 1 else ""
    worth = f" at the cost of {spent:.1f}" if spent < trials else ""  # some pruned, or repeated
    used = f"; {short_number(adds)} multiply-adds" if adds else ""
    text = f"Tuned: {params}; best of {plural(choices[0].trials, 'trial')}{each}{worth}{used}."
    return " ".join([text, *(f"{capitalized(doubt)}." for doubt in winner_doubts(choices))])


def setting_text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "-" if value is None else str(value)


def winner_doubts(choices: Sequence[TuningWinner]) -> list[str]:
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
    """Write in how many searches each key is counted: "optim.lr in 2 of 3 searches"; for a single
    search, the keys alone."""
    of = f" of {len(choices)} searches"
    return ", ".join(f"{key} in {n}{of}" if len(choices) > 1 else key for key, n in keys.items())


def _left(gain: stats.RowGain | None) -> str:
    unstable = gain is not None and gain.own == "instability"
    return (
        "; the row has its own paired interval, and tells nothing of the other rows' spread"
        if unstable
        else ""
    )


def _diverged(row: JudgedRow) -> str:
    plan, found = row.plan, row.found
    runs = ", ".join(
        f"seed {seed}" + (f" at step {step}" if step is not None else "")
        for seed, step in found.diverged.items()
    )
    left = _left(row.gain)
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
                f"{value} ({plural(rows.total(), 'run')}"
                + (f": {first_few(list(rows))})" if position else ")")
                for position, (value, rows) in enumerate(ranked)
            ]
            sentences.append((key, f"Runs differ in their {name}: {', '.join(parts)}."))
    return sentences


def rounded(plan: Plan, cells: Mapping[tuple[str, str], Scores]) -> Iterator[str]:
    """Yield a line for columns of which several ranks made runs, without the promise that these
    have the bits of one."""
    why: dict[str, list[str]] = {}
    for column, block in blocks_of(plan, cells):
        results = [result for found in block for result in found.results]
        devices = dict.fromkeys(str(result.get("device")) for result in results)
        # A trainer of the user's own promises nothing, and says nothing of determinism.
        made = [r for r in results if r.get("ranks", 1) > 1 and "deterministic" in r]
        loose = any(not r["deterministic"] and r["device"] != "cpu" for r in made)
        reasons = [
            *["deterministic algorithms were off"] * loose,
            *[f"devices differ ({', '.join(devices)})"] * (", " in ", ".join(devices)),
        ]
        if made and reasons:
            why.setdefault("; ".join(reasons), []).append(column.heading)
    for reason, headings in why.items():
        at = ", ".join(filter(None, headings))
        yield f"{at}{': s' if at else 'S'}everal ranks shared runs, equal up to rounding: {reason}."


def column_notes(block: Sequence[Scores], label: str) -> list[Note]:
    """List the footnotes on a column: unplanned differences between its runs, and what decoding
    found in its images."""
    texts = [*(text for _, text in mixtures(block)), *data_notes(block)]
    return notes("footnote", texts, (None, label))


def data_notes(block: Sequence[Scores]) -> list[str]:
    """List what decoding found in the images of a column, as its runs recorded it."""
    said: dict[str, dict[str, None]] = {}
    for found in block:
        for result in found.results:
            for key, text in decoded.decoding_words(result).items():
                name = found.cell.spec["data"]["name"]
                how = " (data.broken=skip)" if key == "left_out" else ""
                said.setdefault(f"data={name}: {text}{how}", {})[found.cell.row] = None
    whole = len({found.cell.row for found in block if found.results})
    return [
        f"{text}." if len(rows) == whole else f"{text}: {first_few(list(rows))}."
        for text, rows in said.items()
    ]


def _circumstances(cell: Cell, result: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield (key, name, value) of all facts that should be the same in the runs of a column."""
    known = {**result, "precision": cell.spec.get("train", {}).get("precision")}
    for key, name in MACHINE_FACTS.items():
        if known.get(key) is not None:
            yield key, name, known[key]
    digests = result.get("plugins")
    own = {k: v for k, v in digests.items() if v} if isinstance(digests, dict) else {}
    if own:  # a digest is of all that was loaded from a folder: alike only for the same classes
        places = (f"{kind}={_named(cell.spec, kind)}" for kind in own)
        yield "plugins", f"code of {', '.join(places)}", "/".join(dict.fromkeys(own.values()))


def seed_names(seeds: Sequence[int]) -> str:
    """Name seeds: "seed 1", "seeds 0, 2"."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _named(spec: Mapping[str, Any], kind: str) -> str:
    """Return the names of the user's own classes or probes in a run's spec. `kind`: a section,
    whose name is meant, `SECTION.KEY`, or "probe" for all own probes."""
    if kind == "probe":
        return ", ".join(spec["own_probes"]["versions"])
    section, _, key = kind.partition(".")
    named = spec[section][key or "name"]
    return ", ".join(named) if isinstance(named, list) else str(named)
