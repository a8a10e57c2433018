"""Finds what a table notes on its entries, rows and columns. Computes nothing.

Used by `tabulate.py`, for every table; report/trials.py (`ablate trials`) takes `winner_doubts`. A
new sentence also needs its writer in english/footnotes.py. `ablate verify --rerun` compares
MACHINE_FACTS, too (audit/rerun.py).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ablate.analysis import stats
from ablate.analysis.english import footnotes as english
from ablate.analysis.judged_row import JudgedRow
from ablate.analysis.judging import is_partial, is_wide
from ablate.analysis.note import Note, Sentence, notes, sentence
from ablate.analysis.scores import LARGEST, Scores, blocks_of, mean_by_replicate
from ablate.analysis.table import better_side
from ablate.planning import Cell, Plan, TuningWinner
from ablate.run import RunSpec, decoding_words
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
        row_place = (row.scores.cell.row, None)
        yield from notes("footnote", [sentence("confound", keys=[*confounds])], row_place)
    yield from notes("footnote", _of_runs(row), row.place)
    if row.course is not None:
        yield from notes("gain", [row.course.note(row.judge)], row.place)
    yield from notes("gain", _of_gain(row), row.place)


def _of_runs(row: JudgedRow) -> Iterator[Sentence]:
    plan, scores = row.plan, row.scores
    if skipped := plan.skipped_seeds(scores.cell):
        runs = [_skipped_run(seed, detail) for seed, detail in skipped.items()]
        yield sentence("skipped.seeds", runs=runs)
    yield from _tuned_settings(scores.cell.chosen)
    if scores.cell.overrides:
        yield sentence("overrides", keys=[*scores.cell.overrides])
    own_interval = row.gain is not None and row.gain.own_reason == "instability"
    fisher = _fisher(row)
    has_target = plan.analysis.target is not None
    if has_target and is_partial(plan, scores):
        yield sentence(
            "not-reached",
            diverged=diverged_runs(scores),
            never=[*scores.main.never],
            planned=len(plan.planned(scores.cell)),
            has_side=bool(better_side(plan.metric)),
        )
    elif scores.diverged:
        yield sentence(
            "diverged",
            runs=diverged_runs(scores),
            scored=_scored(row),
            own_interval=own_interval,
            fisher=None if scores.collapsed else fisher,
        )
    if scores.collapsed:
        yield sentence(
            "collapsed",
            seeds=[*scores.collapsed],
            end=plan.task.collapse,
            prior=plan.task.prior,
            own_interval=own_interval,
            fisher=fisher,
        )
    if scores.main.never and not has_target:
        silences = {"baseline": True, "looks": bool(plan.design.seed_counts)}
        of_column = {} if plan.is_judged(scores.cell.row) else silences
        yield sentence("never", seeds=[*scores.main.never], **of_column)
    for name, values in scores.beyond.items():
        yield sentence(
            "beyond",
            metric=plan.metric_named(name, "--show").name,
            values=[{"seed": seed, "value": f"{value:.3g}"} for seed, value in values.items()],
            largest=LARGEST,
        )


def _skipped_run(seed: int, detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return how far a run had come when it was skipped."""
    return {
        "seed": seed,
        "status": detail["was"] if detail.get("was") in GIVEN_UP else "",
        "has_begun": bool(detail.get("begun")),
        "step": detail.get("step"),
    }


def diverged_runs(scores: Scores) -> list[dict[str, Any]]:
    """Return the seeds that diverged, and the step of each, None where it isn't known."""
    return [{"seed": seed, "step": step} for seed, step in scores.diverged.items()]


def _scored(row: JudgedRow) -> str:
    """Return how diverged runs are scored."""
    if not row.scores.main.by_seed:
        return "none"
    if not row.plan.is_judged(row.scores.cell.row):
        return "baseline"
    return "chance" if row.plan.analysis.diverged == "chance" else "omitted"


def _fisher(row: JudgedRow) -> dict[str, Any] | None:
    """Return Fisher's test of the unstable runs against the baseline's; None where no run is
    unstable, and where the baseline's are, which the column says."""
    against, base = row.against, row.base
    if not row.scores.unstable or not against or not base or base.unstable:
        return None
    return {
        "runs": len(base.results),
        "baseline": row.plan.baseline_words,
        "p": against.p,
        "floor": against.floor,
        "tested": against.tested,
    }


def _of_gain(row: JudgedRow) -> Iterator[Sentence]:
    """Yield what explains a gain and its verdict."""
    plan, gain, verdict = row.plan, row.gain, row.verdict
    if gain and gain.own_reason in ("spread", "outlier"):
        if _few_beside_more(row):
            yield sentence("spread.few-runs")
        else:
            yield sentence(
                "spread.own",
                reason=gain.own_reason,
                ratio=gain.ratio,
                by_images=row.by_images,
                examples=plan.task.examples,
                paired=plan.design.blocks,
            )
    if gain and gain.own_reason == "vague":
        yield sentence("spread.own-seeds", examples=plan.task.examples)
    if gain and gain.few:
        yield sentence("spread.hardly-any-image")
    if gain and row.base and verdict == stats.UNSTABLE:
        yield _unstable(plan, row.scores, gain, row.base)
    if verdict == stats.DID_NOTHING:
        yield sentence("verdict.did-nothing", baseline=plan.baseline_words)
    elif gain and gain.gain.sd == 0:
        change = plan.metric.change if plan.analysis.target is None else "result"
        yield sentence("gain.no-spread", change=change)
    if gain and is_wide(gain.gain, plan.metric):
        yield sentence("interval.wide", limit=plan.metric.most, points=plan.metric.points)


def _few_beside_more(row: JudgedRow) -> bool:
    """Return whether the row has so few runs, and fewer than the baseline, that the rows' spread is
    hardly ever used for it. Then its own spread need not be far from theirs."""
    ours, theirs = (len(s.results) if s else 0 for s in (row.scores, row.base))
    return not row.plan.design.blocks and ours < min(stats.FEW_SEEDS, theirs)


def _unstable(plan: Plan, scores: Scores, gain: stats.RowGain, base: Scores) -> Sentence:
    """Explain why a gain far from 0 is not resolved, and how many seeds would resolve it. Without
    seeds, whose runs have no pairs, by each run's gain over the mean of the baseline's; of searches
    that several seeds share, by the mean of each."""
    metric, searches = plan.metric, plan.repeats == "searches"
    ours, theirs = scores.main.by_seed, base.main.by_seed
    if searches:
        ours, theirs = (_by_search(side, plan) for side in (scores, base))
    if not plan.design.blocks:
        theirs = dict.fromkeys(ours, statistics.fmean(theirs.values()))
    gains = {seed: metric.sign * (ours[seed] - theirs[seed]) for seed in ours if seed in theirs}
    middle = statistics.median(gains.values())
    worst = max(gains, key=lambda seed: abs(gains[seed] - middle))
    return sentence(
        "verdict.unstable",
        metric={"change": metric.change, "points": metric.points, "decimals": metric.decimals},
        ratio=gain.ratio,
        seed=worst if plan.repeats == "seeds" else None,
        gain=gains[worst],
        needed_seeds=gain.decides,
        most_seeds=stats.MOST_SEEDS,
        **({"searches": True} if searches else {}),
    )


def _by_search(scores: Scores, plan: Plan) -> dict[int, float]:
    """Return the mean of the seeds of each search that has a value, by its place."""
    means = enumerate(mean_by_replicate(scores.main, plan))
    return {search: mean for search, mean in means if not math.isnan(mean)}


def _tuned_settings(choices: Sequence[TuningWinner]) -> Iterator[Sentence]:
    """Name the settings that searches chose for a cell, their cost, and doubts about them."""
    if not choices:
        return
    names = ("name", "trials", "spent", "multiply_adds")
    described = [
        {
            "params": [{"key": key, "value": value} for key, value in choice.params.items()],
            **{name: getattr(choice, name) for name in names},
        }
        for choice in choices
    ]
    yield sentence("tuned.settings", choices=described)
    edges, noise = _doubts(choices)
    if edges or noise:
        yield sentence("tuned.doubts", searches=len(choices), edges=edges, noise=noise)


def _doubts(choices: Sequence[TuningWinner]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Count the searches whose choice lies at the edge of a range, and those whose choice is noise,
    by key."""
    edges = Counter(key for choice in choices for key in choice.edges)
    noise = Counter(key for choice in choices for key in choice.noise)
    return _counts(edges), _counts(noise)


def _counts(searches: Counter[str]) -> list[dict[str, Any]]:
    return [{"key": key, "searches": number} for key, number in searches.items()]


def winner_doubts(choices: Sequence[TuningWinner]) -> list[str]:
    """List doubts about a choice: it lies at the edge of a range, or it is noise."""
    return english.tuned_doubts(len(choices), *_doubts(choices))


def mixtures(block: Sequence[Scores]) -> list[tuple[str, Sentence]]:
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
            described = [
                {"value": value, "runs": rows.total(), "rows": [*rows]} for value, rows in ranked
            ]
            sentences.append((key, sentence("mixed", name=name, values=described)))
    return sentences


def rounding_notes(plan: Plan, cells: Mapping[tuple[str, str], Scores]) -> Iterator[Sentence]:
    """Yield a sentence for columns of which several ranks made runs, without the promise that these
    have the bits of one."""
    headings_by_reason: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for column, block in blocks_of(plan, cells):
        results = [result for scores in block for result in scores.results]
        devices = tuple(dict.fromkeys(str(result.get("device")) for result in results))
        # A trainer of the user's own promises nothing, and says nothing of determinism.
        parallel_results = [r for r in results if r.get("ranks", 1) > 1 and "deterministic" in r]
        loose = any(not r["deterministic"] and r["device"] != "cpu" for r in parallel_results)
        differing = devices if ", " in ", ".join(devices) else ()
        if parallel_results and (loose or differing):
            headings_by_reason.setdefault((loose, differing), []).append(column.heading)
    for (loose, differing), headings in headings_by_reason.items():
        yield sentence("rounding", columns=headings, nondeterministic=loose, devices=[*differing])


def column_notes(block: Sequence[Scores], label: str) -> list[Note]:
    """List the footnotes on a column: unplanned differences between its runs, and what decoding
    found in its images."""
    sentences = [*(difference for _, difference in mixtures(block)), *data_notes(block)]
    return notes("footnote", sentences, (None, label))


def data_notes(block: Sequence[Scores]) -> list[Sentence]:
    """List what decoding found in the images of a column, as its runs recorded it."""
    rows_by_fact: dict[tuple[str, str, str], dict[str, None]] = {}
    for scores in block:
        for result in scores.results:
            for key, text in decoding_words(result).items():
                name = scores.cell.spec.tree["data"]["name"]
                rows_by_fact.setdefault((name, key, text), {})[scores.cell.row] = None
    row_count = len({scores.cell.row for scores in block if scores.results})
    return [
        sentence(
            "data.decoded",
            data=name,
            finding=text,
            skipped=key == "left_out",
            rows=[] if len(rows) == row_count else [*rows],
        )
        for (name, key, text), rows in rows_by_fact.items()
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


def _own_names(spec: RunSpec, kind: str) -> str:
    """Return the names of the user's own classes or probes in a run's spec. `kind`: a section,
    whose name is meant, `SECTION.KEY`, or "probe" for all own probes."""
    if kind == "probe":
        return ", ".join(spec.tree["own_probes"]["versions"])
    section, _, key = kind.partition(".")
    names = spec.tree[section][key or "name"]
    return ", ".join(names) if isinstance(names, list) else str(names)
