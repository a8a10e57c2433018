"""The answers and the log of a stream, from its record and from the results of its baselines.

Used by api/stream.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.analysis import StreamJudge
from ablate.api.stream_answers import GateAnswer, MeasuredBaseline, StreamLog
from ablate.run import RunSpec
from ablate.shared import spelling
from ablate.store import CodeVersion, Store, StreamFile, StreamRecord


def answer_of(store: Store, record: StreamRecord, number: int) -> GateAnswer:
    """Return what the stream says of a proposal; its word is "" while it is open."""
    proposal = record.proposals[number - 1]
    metric = StreamJudge(record).metric
    last_look = proposal.looks[-1] if proposal.looks else None
    interval = None
    if last_look is not None and last_look.low is not None and last_look.high is not None:
        interval = last_look.low, last_look.high
    return GateAnswer(
        stream=record.name,
        proposal=number,
        word=proposal.word,
        reason=last_look.reason if last_look else "",
        gain=last_look.gain if last_look else None,
        interval=interval,
        unit=metric.metric.points,
        p=last_look.p if last_look else 1.0,
        runs=proposal.trained,
        baseline_runs=last_look.baseline_runs if last_look else 0,
        against=proposal.against,
        note=proposal.note,
        holdout=dict(last_look.holdout) if last_look else {},
        proposals=len(record.proposals),
        kept_so_far=sum(proposal.has_gained for proposal in record.proposals),
        expected_false_keeps=expected_false_keeps(record),
        next=_advice(store, record, number),
    )


def _advice(store: Store, record: StreamRecord, number: int) -> str:
    """Say what to do after the last look at a proposal."""
    proposal, name = record.proposals[number - 1], record.name
    baseline, words = record.baseline, record.proposals[number - 1].words
    if proposal.simplify is not None:
        words = (*words, "--simplify", spelling(proposal.simplify))
    undo = _undo(store, record, proposal.code)
    succession = f"the baseline is proposal {baseline.number} now"
    is_past = not record.is_answered(proposal)
    match proposal.word:
        case "keep" if is_past:
            return f"it was kept; {succession}"
        case "undecided" if is_past:
            return f"{succession}: the change on top of it is a new proposal"
        case "keep":
            return "it is the baseline now: commit it, and propose the next change on top of it"
        case "discard":
            return undo
        case "stale":
            return f"{succession}: make the change on top of it"
        case "undecided":
            reason = proposal.looks[-1].reason
            if reason == "bits":
                return "let the seed decide what its runs draw: they are all equal"
            if reason == "constant":
                return "let the seed decide what the baseline's runs draw: they are all equal"
            higher_limits = [n for n in StreamJudge.most_choices if n > proposal.most]
            if not higher_limits:
                return undo
            command = store.command("gate", "try", name, *words, "--most", str(higher_limits[0]))
            return f"`{command}` with the same code goes on; or {undo}"
    command = store.command("gate", "try", name, *words)
    return f"`{command}` with the same code goes on"


def _undo(store: Store, record: StreamRecord, code: CodeVersion) -> str:
    """Say how to undo the change of a proposal with this code."""
    name, baseline = record.name, record.baseline
    if not baseline.copy:
        return "undo the change"
    command = store.command("gate", "restore", name, str(baseline.number), ".")
    added_files = StreamFile(store, name).copies.added(code.copy, baseline.copy)
    removal = f", and remove {', '.join(added_files)}" if added_files else ""
    return f"undo the change: `{command}`{removal}"


def _count(record: StreamRecord, word: str) -> int:
    return sum(proposal.word == word for proposal in record.proposals)


def expected_false_keeps(record: StreamRecord) -> float:
    """Return the false keeps to expect at most, had no proposal gained anything. No keep of a
    simplification is false."""
    judged_count = sum(proposal.simplify is None for proposal in record.proposals)
    return round(record.rules.level * judged_count, 6)


def log_of(store: Store, record: StreamRecord) -> StreamLog:
    """Return the log of a stream."""
    judge = StreamJudge(record)
    metric = judge.metric
    simplifications = [p for p in record.proposals if p.simplify is not None]
    answers = tuple(answer_of(store, record, p.number) for p in record.proposals)
    measures = sorted({0, *(p.number for p in record.proposals if p.has_gained)})
    baselines = [measured_baseline(store, record, record.code(n)) for n in measures]
    return StreamLog(
        stream=record.name,
        metric=metric.name,
        unit=metric.metric.points,
        proposals=len(record.proposals),
        kept=_count(record, "keep"),
        discarded=_count(record, "discard"),
        undecided=_count(record, "undecided"),
        stale=_count(record, "stale"),
        open=_count(record, ""),
        simplifications=len(simplifications),
        simplified=sum(proposal.word == "keep" for proposal in simplifications),
        runs=record.runs,
        expected_false_keeps=expected_false_keeps(record),
        spread=judge.spread,
        margin=record.rules.margin,
        answers=answers,
        baselines=tuple(baseline for baseline in baselines if baseline is not None),
    )


def measured_baseline(
    store: Store, record: StreamRecord, code: CodeVersion
) -> MeasuredBaseline | None:
    """Return the fresh mean of a baseline, None where looks have not asked for its runs, or some of
    their files are not what the runs left. In a stream of pairs no code has runs of its own."""
    count = record.baseline_runs(code.number)
    if record.rules.pairs or not count:
        return None
    seeds = record.baseline_seeds(code.number, count)
    seals, results = store.seals(), list[Mapping[str, Any]]()
    for run in RunSpec.of(code.spec).ids(seeds).values():
        result, fault = store.rundir(run).sealed_result(seals.get(run))
        if result is None or fault:
            return None
        results.append(result)
    estimate = StreamJudge(record).measured(results)
    return MeasuredBaseline(code.number, count, estimate.mean, estimate.low, estimate.high)
