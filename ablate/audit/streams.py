"""Streams of proposals, checked and merged.

A stream is checked by its own file: its seals, then every look, which is judged again from the
results of its runs, then the copies of its codes. Merging copies the file of a stream whole: of two
that have a name in common, one has to begin as the other does.

Used by `ablate verify` (cli/keeping.py) and by `ablate merge` (audit/merge.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate.analysis import ProposalRuns, StreamMetric, look_event, next_step, stream_metric
from ablate.analysis.stats import GateLook
from ablate.audit.verify import Verified
from ablate.run import RunSpec
from ablate.shared import Failure, make_folder, read_file, write_whole
from ablate.store import (
    CodeCopies,
    CodeVersion,
    Proposal,
    Store,
    StreamFile,
    StreamRecord,
    stream_files,
)

FAILED_RUNS = ("diverged", "collapsed")  # reasons of looks that no rule has judged
JUDGED = ("word", "gain", "low", "high", "p", "reason")  # fields of a look that are judged again


def verify_stream(store: Store, file: StreamFile) -> Verified:
    """Judge every look of a stream again from the results of its runs; nothing is changed. Raises
    Failure for a file that was edited."""
    check = _Check(store, file.record())
    for number in range(1, len(check.record.proposals) + 1):
        check.proposal(number)
    for code in check.record.kept_codes:
        check.copy(code)
    return check.report


class _Check:
    def __init__(self, store: Store, record: StreamRecord) -> None:
        self.store, self.record = store, record
        self.report = Verified()
        self.seals = store.seals()
        spec = RunSpec.of(record.start.spec)
        self.metric: StreamMetric = stream_metric(spec, record.rules.metric, "metric")
        self.results: dict[str, Mapping[str, Any] | None] = {}

    def finding(self, number: int, problem: str) -> None:
        self.report.findings.append(f"{self.record.name} {number}: {problem}")

    def copy(self, code: CodeVersion) -> None:
        if not code.copy:
            return
        try:
            CodeCopies(self.store).files(code.copy)
        except Failure as error:
            self.finding(code.number, str(error))

    def proposal(self, number: int) -> None:
        """Judge each look at a proposal by what it had seen."""
        proposal = self.record.proposals[number - 1]
        for position, look in enumerate(proposal.looks):
            if look.reason in FAILED_RUNS:
                self._failed(proposal, look.runs, look.reason)
                continue
            runs = self._runs(proposal, look.runs, look.baseline_runs)
            if runs is None:
                self.finding(number, f"look {look.runs}: lacks results of its runs")
                continue
            earlier = replace(proposal, looks=proposal.looks[:position])
            step = next_step(self._with(earlier), number, runs)
            if not isinstance(step, GateLook):
                self.finding(number, f"look {look.runs}: was taken before it could be")
                continue
            judged = look_event(self.record, step, runs)
            if judged["word"] == "keep" and look.word == "stale":
                judged["word"] = "stale"
            self.report.numbers += 1
            for key in JUDGED:
                if judged[key] != getattr(look, key):
                    sealed = getattr(look, key)
                    problem = f"{key} is {sealed}, but {judged[key]} by the results"
                    self.finding(number, f"look {look.runs}: {problem}")

    def _with(self, proposal: Proposal) -> StreamRecord:
        proposals = list(self.record.proposals)
        proposals[proposal.number - 1] = proposal
        return replace(self.record, proposals=tuple(proposals))

    def _failed(self, proposal: Proposal, runs: int, reason: str) -> None:
        result = self._results(proposal.code, "proposal", runs)[-1]
        is_so = result is not None and (result["status"] == reason or result.get("collapsed"))
        if not is_so:
            self.finding(proposal.number, f"look {runs}: no run {reason}, by the results")

    def _runs(self, proposal: Proposal, runs: int, baseline_runs: int) -> ProposalRuns | None:
        """Return the numbers that a look has seen, None where a result is missing."""
        measure = self.record.code(proposal.measure)
        own = self._results(proposal.code, "proposal", runs)
        if self.record.rules.pairs:
            others = self._results(measure, "", baseline_runs, of=proposal.code)
        else:
            others = self._results(measure, "baseline", baseline_runs)
        values = []
        for results in (own, others):
            if any(result is None for result in results):
                return None
            values.append([self.metric.value(result) for result in results if result is not None])
        return ProposalRuns(*values)

    def _results(
        self, code: CodeVersion, purpose: str, count: int, of: CodeVersion | None = None
    ) -> list[Mapping[str, Any] | None]:
        """Return results of a code's runs, None for one that is missing or was edited. `of`: the
        proposal whose seeds they have, in pairs."""
        seeds = [
            of.seed("proposal", position) if of is not None else code.seed(purpose, position)
            for position in range(count)
        ]
        ids = RunSpec.of(code.spec).ids(seeds)
        return [self._result(ids[seed]) for seed in seeds]

    def _result(self, run: str) -> Mapping[str, Any] | None:
        if run not in self.results:
            folder = self.store.rundir(run)
            result, fault = folder.sealed_result(self.seals.get(run), curves=True)
            if fault:
                self.report.findings.append(f"{self.record.name}: {fault}")
            self.results[run] = None if fault else result
            self.report.runs += result is not None
        return self.results[run]


# --- Merging --------------------------------------------------------------------------------------


def stream_conflicts(store: Store, sources: Sequence[Store]) -> Iterator[str]:
    """Yield a line for each stream of the sources that this store, or another source, has with
    other events."""
    longest = {file.name: file for file in stream_files(store)}
    for source in sources:
        for file in stream_files(source):
            other = longest.setdefault(file.name, file)
            contents = sorted([read_file(file.path), read_file(other.path)], key=len)
            if not contents[1].startswith(contents[0]):
                yield (
                    f"the stream {file.name!r} of {source.root} is another one than "
                    f"{other.path}; move one of the files away"
                )
            if len(read_file(file.path)) > len(read_file(other.path)):
                longest[file.name] = file


def bring_streams(store: Store, source: Store) -> dict[str, str]:
    """Bring the streams of a source, and the copies of their codes; return the state of each here:
    "new", "same" or "grown"."""
    states = {}
    for file in stream_files(source):
        mine = StreamFile(store, file.name)
        for code in file.record().needed_codes:
            if code.copy in CodeCopies(source).names():
                files = CodeCopies(source).files(code.copy)
                CodeCopies(store).keep(files, Path(code.origin))
        content, before = read_file(file.path), b""
        if mine.exists():
            before = read_file(mine.path)
        if len(content) > len(before):
            make_folder(mine.path.parent)
            write_whole(mine.path, content)
        grown = "grown" if len(content) > len(before) else "same"
        states[file.name] = grown if before else "new"
    return states
