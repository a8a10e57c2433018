"""Writes the footnotes on entries, rows and columns of a table. Computes nothing."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ablate.analysis import stats
from ablate.analysis.captions import capitalized, first_few, plural
from ablate.analysis.judged_row import JudgedRow
from ablate.analysis.judging import is_wide
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
    [confounds] = (
        plan_row.confounds for plan_row in row.plan.rows if plan_row.label == row.scores.cell.row
    )
    if confounds:
        text = f"Confound: the row sets {', '.join(confounds)}, which belongs to the recipe."
        yield Note("footnote", text, (row.scores.cell.row, None))
    yield from notes("footnote", _of_runs(row), row.place)
    if row.course is not None:
        yield Note("gain", row.course.note(row.judge), row.place)
    yield from notes("gain", _of_gain(row), row.place)


def _of_runs(row: JudgedRow) -> list[str]:
    plan, scores, base = row.plan, row.scores, row.base
    texts = []
    if skipped := plan.skipped_seeds(scores.cell):
        fates = "; ".join(f"seed {seed}, {_how_far(detail)}" for seed, detail in skipped.items())
        texts.append(f"Skipped by the user: {fates}.")
    if scores.cell.chosen:
        texts.append(_tuning_note(scores.cell.chosen))
    if scores.cell.overrides:
        keys = ", ".join(scores.cell.overrides)
        texts.append(f"The sweep's overrides change the recipe of this cell: {keys}.")
    if scores.diverged:
        texts.append(_diverged(row))
    if scores.collapsed:
        texts.append(
            f"Collapsed: {seed_names(scores.collapsed)} "
            f"{plan.task.collapse or _no_lower(plan)}; the mean includes it"
            f"{_own_interval_clause(row.gain)}."
        )
    if scores.unstable and row.against and base and not base.unstable:  # else the column says it
        few = "" if row.against.tested else "; the test can decide from 4 runs on"
        texts[-1] += (
            f" Fisher's exact test against 0 of {len(base.results)} runs of {plan.baseline}: p = "
            f"{row.against.p:.2g}; the smallest p of so many runs is {row.against.floor:.2g}{few}."
        )
    if scores.main.never:
        texts.append(
            f"{seed_names(scores.main.never).capitalize()} never reached the threshold. The mean "
            f"leaves these runs out, so the row has no verdict."
        )
    for name, values in scores.beyond.items():
        metric_name = plan.metric_named(name, "--show").name
        texts.append(
            f"The {metric_name} of this row is left out: {by_seed(values)}; no interval can be "
            f"computed beyond {LARGEST:g}."
        )
    return texts


def _of_gain(row: JudgedRow) -> list[str]:
    """List what explains a gain and its verdict."""
    plan, gain, verdict = row.plan, row.gain, row.verdict
    texts = []
    if gain and gain.own_reason in ("spread", "outlier"):
        leaves = gain.own_reason == "outlier"
        reference = (
            f"its {plan.task.examples} and the other rows tell"
            if row.by_images
            else "the other rows have"
        )
        times = f"{gain.ratio:.1f} times" if gain.ratio is not None else "far above"
        test = "0.1" if leaves else "5" if row.by_images else "10"
        basis = f" (F test, {test} %): the row has its own paired"
        if not plan.design.blocks:
            basis = ": the row has its own Welch"
        if _few_beside_more(row):
            texts.append("Few runs beside a larger baseline: the row has its own Welch interval.")
        else:
            texts.append(
                f"The row's spread is {times} what {reference}{basis} interval, and "
                f"{'tells nothing' if leaves else 'still tells'} of the other rows' spread."
            )
    if gain and gain.own_reason == "vague":
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
        texts.append(_unstable(plan, row.scores, gain, row.base))
    if verdict == stats.DID_NOTHING:
        texts.append(
            f"The predictions equal those of {plan.baseline} in every seed, bit for bit: the "
            f"change did nothing."
        )
    elif gain and gain.gain.sd == 0:
        change = plan.metric.change
        texts.append(f"The {change} is the same in every seed: there is no spread to judge it by.")
    if gain and is_wide(gain.gain, plan.metric):
        limit, points = f"{plan.metric.most:g}", plan.metric.points
        texts.append(f"-: the interval is wider than {limit} {points}, so it says nothing.")
    return texts


def _few_beside_more(row: JudgedRow) -> bool:
    """Return whether the row has so few runs, and fewer than the baseline, that the rows' spread is
    hardly ever used for it. Then its own spread need not be far from theirs."""
    ours, theirs = (len(s.results) if s else 0 for s in (row.scores, row.base))
    return not row.plan.design.blocks and ours < min(stats.FEW_SEEDS, theirs)


def _how_far(skipped: Mapping[str, Any]) -> str:
    """How far a run had come when it was skipped."""
    step_words = f" at step {skipped['step']}" if skipped.get("step") else ""
    if skipped.get("was") in GIVEN_UP:
        return f"which had ended as {skipped['was']}{step_words}"
    return (
        f"which had begun, and stopped{step_words}" if skipped.get("begun") else "before it began"
    )


def _no_lower(plan: Plan) -> str:
    return f"ended with a training loss no lower than the loss of {plan.task.prior}"


def _unstable(plan: Plan, scores: Scores, gain: stats.RowGain, base: Scores) -> str:
    """Explain why a gain far from 0 is not resolved, and how many seeds would resolve it."""
    metric = plan.metric
    ours, theirs = scores.main.by_seed, base.main.by_seed
    gains = {seed: metric.sign * (ours[seed] - theirs[seed]) for seed in ours if seed in theirs}
    middle = statistics.median(gains.values())
    worst = max(gains, key=lambda seed: abs(gains[seed] - middle))
    decides = (
        f"{gain.decides} seeds of this spread would resolve a {metric.change} as large"
        if gain.decides is not None
        else f"{stats.MOST_SEEDS} seeds of this spread would not resolve a {metric.change} as large"
    )
    times = f"{gain.ratio:.1f} times" if gain.ratio is not None else "many times"
    return (
        f"Unstable: the other rows' spread would tell the {metric.change} from zero, but the row's "
        f"own spread is {times} as large and does not; seed {worst} is farthest from "
        f"the median ({gains[worst]:+.{metric.decimals}f} {metric.points}); {decides}."
    )


def _tuning_note(choices: Sequence[TuningWinner]) -> str:
    """Name the settings that searches chose for a cell, their cost, and doubts about them."""
    params = "; ".join(
        ", ".join(f"{key}={setting_text(value)}" for key, value in choice.params.items())
        + f" ({choice.name})"
        for choice in choices
    )
    trials, spent = (sum(getattr(c, name) for c in choices) for name in ("trials", "spent"))
    adds = sum(choice.multiply_adds for choice in choices)
    suffix = " each" if len(choices) > 1 else ""
    worth = f" at the cost of {spent:.1f}" if spent < trials else ""  # some pruned, or repeated
    used = f"; {short_number(adds)} multiply-adds" if adds else ""
    text = f"Tuned: {params}; best of {plural(choices[0].trials, 'trial')}{suffix}{worth}{used}."
    return " ".join([text, *(f"{capitalized(doubt)}." for doubt in winner_doubts(choices))])


def setting_text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "-" if value is None else str(value)


def winner_doubts(choices: Sequence[TuningWinner]) -> list[str]:
    """List doubts about a choice: it lies at the edge of a range, or it is noise."""
    doubts = []
    if edges := Counter(key for choice in choices for key in choice.edges):
        doubts.append(
            f"at the edge of its range: {_often(edges, choices)}; a better value may lie beyond"
        )
    if noise := Counter(key for choice in choices for key in choice.noise):
        doubts.append(
            f"the choice is noise: {_often(noise, choices)}; the best two trials differ by less "
            f"than the validation error"
        )
    return doubts


def _often(keys: Counter[str], choices: Sequence[TuningWinner]) -> str:
    """Write in how many searches each key is counted: "optim.lr in 2 of 3 searches"; for a single
    search, the keys alone."""
    suffix = f" of {len(choices)} searches"
    return ", ".join(
        f"{key} in {n}{suffix}" if len(choices) > 1 else key for key, n in keys.items()
    )


def _own_interval_clause(gain: stats.RowGain | None) -> str:
    unstable = gain is not None and gain.own_reason == "instability"
    return (
        "; the row has its own paired interval, and tells nothing of the other rows' spread"
        if unstable
        else ""
    )


def _diverged(row: JudgedRow) -> str:
    plan, scores = row.plan, row.scores
    runs = ", ".join(
        f"seed {seed}" + (f" at step {step}" if step is not None else "")
        for seed, step in scores.diverged.items()
    )
    exclusion = _own_interval_clause(row.gain)
    if plan.analysis.diverged == "chance" and scores.cell.row != plan.baseline:
        return f"Diverged: {runs}; scored at chance{exclusion}."
    if scores.cell.row == plan.baseline:
        return f"Diverged: {runs}; gains are over the other runs of the baseline."
    return (
        f"Diverged: {runs}; mean and gain are of the other runs, so the row has no "
        f"verdict{exclusion}."
    )


def mixtures(block: Sequence[Scores]) -> list[tuple[str, str]]:
    """List (key, sentence) for every unplanned difference between the runs of a column."""
    used: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for scores in block:
        for result in scores.results:
            for key, name, value in _circumstances(scores.cell, result):
                values = used.setdefault((key, name), {})
                values.setdefault(str(value), Counter())[scores.cell.row] += 1
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


def rounding_notes(plan: Plan, cells: Mapping[tuple[str, str], Scores]) -> Iterator[str]:
    """Yield a line for columns of which several ranks made runs, without the promise that these
    have the bits of one."""
    headings_by_reason: dict[str, list[str]] = {}
    for column, block in blocks_of(plan, cells):
        results = [result for scores in block for result in scores.results]
        devices = dict.fromkeys(str(result.get("device")) for result in results)
        # A trainer of the user's own promises nothing, and says nothing of determinism.
        parallel_results = [r for r in results if r.get("ranks", 1) > 1 and "deterministic" in r]
        loose = any(not r["deterministic"] and r["device"] != "cpu" for r in parallel_results)
        reasons = [
            *["deterministic algorithms were off"] * loose,
            *[f"devices differ ({', '.join(devices)})"] * (", " in ", ".join(devices)),
        ]
        if parallel_results and reasons:
            headings_by_reason.setdefault("; ".join(reasons), []).append(column.heading)
    for reason, headings in headings_by_reason.items():
        place = ", ".join(filter(None, headings))
        yield (
            f"{place}{': s' if place else 'S'}everal ranks shared runs, equal up to rounding: "
            f"{reason}."
        )


def column_notes(block: Sequence[Scores], label: str) -> list[Note]:
    """List the footnotes on a column: unplanned differences between its runs, and what decoding
    found in its images."""
    texts = [*(text for _, text in mixtures(block)), *data_notes(block)]
    return notes("footnote", texts, (None, label))


def data_notes(block: Sequence[Scores]) -> list[str]:
    """List what decoding found in the images of a column, as its runs recorded it."""
    rows_by_text: dict[str, dict[str, None]] = {}
    for scores in block:
        for result in scores.results:
            for key, text in decoded.decoding_words(result).items():
                name = scores.cell.spec.tree["data"]["name"]
                cause = " (data.broken=skip)" if key == "left_out" else ""
                rows_by_text.setdefault(f"data={name}: {text}{cause}", {})[scores.cell.row] = None
    row_count = len({scores.cell.row for scores in block if scores.results})
    return [
        f"{text}." if len(rows) == row_count else f"{text}: {first_few(list(rows))}."
        for text, rows in rows_by_text.items()
    ]


def _circumstances(cell: Cell, result: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield (key, name, value) of all facts that should be the same in the runs of a column."""
    facts = {**result, "precision": cell.spec.tree.get("train", {}).get("precision")}
    for key, name in MACHINE_FACTS.items():
        if facts.get(key) is not None:
            yield key, name, facts[key]
    digests = result.get("plugins")
    plugin_digests = {k: v for k, v in digests.items() if v} if isinstance(digests, dict) else {}
    # A digest is of all that was loaded from a folder: alike only for the same classes.
    if plugin_digests:
        places = (f"{kind}={_own_names(cell.spec, kind)}" for kind in plugin_digests)
        yield (
            "plugins",
            f"code of {', '.join(places)}",
            "/".join(dict.fromkeys(plugin_digests.values())),
        )


def seed_names(seeds: Sequence[int]) -> str:
    """Name seeds: "seed 1", "seeds 0, 2"."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _own_names(spec: Mapping[str, Any], kind: str) -> str:
    """Return the names of the user's own classes or probes in a run's spec. `kind`: a section,
    whose name is meant, `SECTION.KEY`, or "probe" for all own probes."""
    if kind == "probe":
        return ", ".join(spec["own_probes"]["versions"])
    section, _, key = kind.partition(".")
    names = spec[section][key or "name"]
    return ", ".join(names) if isinstance(names, list) else str(names)
