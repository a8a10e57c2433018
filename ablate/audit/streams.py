"""Streams of proposals, checked and merged.

A stream is checked by its own file: its seals, then every look, which is judged again from the
results of its runs, then the copies of its codes. Merging copies the file of a stream whole: of two
with the same name, one has to begin as the other does.

Used by `ablate verify` (cli/keeping.py) and by `ablate merge` (audit/merge.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate.analysis import StreamJudge
from ablate.audit.verify import Verified
from ablate.run import RunSpec
from ablate.shared import Failure, TryAgain, read_file, write_whole
from ablate.store import CodeVersion, Store, StreamFile, StreamRecord

_Results = list[Mapping[str, Any]]
# Fields of a look that are judged again.
JUDGED_FIELDS = ("word", "gain", "low", "high", "p", "reason")


def verify_stream(store: Store, file: StreamFile) -> Verified:
    """Judge every look of a stream again from the results of its runs; nothing is changed. Raises
    Failure for a file that was edited."""
    check = _Check(store, file)
    for number in range(1, len(check.record.proposals) + 1):
        check.proposal(number)
    for proposal, pool in zip(check.record.proposals, file.pools(), strict=True):
        if proposal.pool != pool:
            check.finding(proposal.number, f"its pool is {proposal.pool}, but {pool} by the looks")
    for code in check.record.kept_codes:
        check.copy(code)
    return check.report


class _Check:
    def __init__(self, store: Store, file: StreamFile) -> None:
        self.store, self.file, self.record = store, file, file.record()
        self.report = Verified()
        self.seals = store.seals()
        self.results: dict[str, Mapping[str, Any] | None] = {}

    def finding(self, number: int, problem: str) -> None:
        self.report.findings.append(f"{self.record.name} {number}: {problem}")

    def copy(self, code: CodeVersion) -> None:
        if not code.copy:
            return
        try:
            self.file.copies.files(code.copy)
        except Failure as error:
            self.finding(code.number, str(error))

    def proposal(self, number: int) -> None:
        """Judge each look at a proposal by what it had seen."""
        proposal = self.record.proposals[number - 1]
        for position, look in enumerate(proposal.looks):
            if look.has_failed:
                self._failed(number, look.runs, look.reason)
                continue
            results = self._results_at_look(number, look.runs, look.baseline_runs)
            if results is None:
                self.finding(number, f"look {look.runs}: lacks results of its runs")
                continue
            judge = StreamJudge(self._at_look(number, position))
            if judge.lacking(number, *results) is not None:
                self.finding(number, f"look {look.runs}: was taken before its runs were there")
                continue
            judged_look = judge.look(number, *results)
            if judged_look["word"] == "keep" and look.word == "stale":
                judged_look["word"] = "stale"
            self.report.numbers += 1
            spreads = {key: (*spread,) for key, spread in judged_look.get("spreads", {}).items()}
            if spreads != look.spreads:
                self.finding(number, f"look {look.runs}: its spreads are not those of the results")
            for key in JUDGED_FIELDS:
                if judged_look[key] != getattr(look, key):
                    sealed_value = getattr(look, key)
                    problem = f"{key} is {sealed_value}, but {judged_look[key]} by the results"
                    self.finding(number, f"look {look.runs}: {problem}")

    def _at_look(self, number: int, position: int) -> StreamRecord:
        """Return the stream as it was before a look at a proposal."""
        proposals = list(self.record.proposals)
        looks = proposals[number - 1].looks[:position]
        proposals[number - 1] = replace(proposals[number - 1], looks=looks)
        return replace(self.record, proposals=tuple(proposals))

    def _failed(self, number: int, runs: int, reason: str) -> None:
        seed = self.record.proposal_seeds(number, runs)[-1]
        result = self._results(self.record.code(number), [seed])[0]
        is_so = result is not None and (result["status"] == reason or result.get("collapsed"))
        if not is_so:
            self.finding(number, f"look {runs}: no run {reason}, by the results")

    def _results_at_look(
        self, number: int, runs: int, baseline_runs: int
    ) -> tuple[_Results, _Results] | None:
        """Return the results that a look has seen, the proposal's and the baseline's; None where
        one is missing."""
        proposal = self.record.proposals[number - 1]
        code, measure = proposal.code, self.record.code(proposal.measure)
        seeds = self.record.proposal_seeds(number, runs)
        other_seeds = seeds
        if not self.record.rules.pairs:
            other_seeds = self.record.baseline_seeds(measure.number, baseline_runs)
        proposal_results = self._results(code, seeds)
        baseline_results = self._results(measure, other_seeds)
        complete = [
            [r for r in results if r is not None]
            for results in (proposal_results, baseline_results)
        ]
        if len(complete[0]) < len(proposal_results) or len(complete[1]) < len(baseline_results):
            return None
        return complete[0], complete[1]

    def _results(self, code: CodeVersion, seeds: list[int]) -> list[Mapping[str, Any] | None]:
        """Return results of a code's runs, None for one that is missing or was edited."""
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
    longest = {file.name: file for file in StreamFile.of_store(store)}
    for source in sources:
        for file in StreamFile.of_store(source):
            longest_file = longest.setdefault(file.name, file)
            contents = sorted([read_file(file.path), read_file(longest_file.path)], key=len)
            if not contents[1].startswith(contents[0]):
                yield (
                    f"the stream {file.name!r} of {source.root} differs from "
                    f"{longest_file.path}; move one of the files away"
                )
            if len(read_file(file.path)) > len(read_file(longest_file.path)):
                longest[file.name] = file


def bring_streams(store: Store, source: Store) -> dict[str, str]:
    """Bring the streams of a source, and the copies of their codes; return the state of each here:
    "new", "same" or "grown". Raises TryAgain for a stream that has grown in both since
    `stream_conflicts` compared them."""
    states = {}
    for file in StreamFile.of_store(source):
        mine = StreamFile(store, file.name)
        content = read_file(file.path)  # before its codes: it may grow meanwhile
        for code in file.record().needed_codes:
            if code.copy in file.copies.names():
                files, read_from = file.copies.files(code.copy), file.copies.root / code.copy
                mine.copies.keep(files, Path(code.origin), read_from)
        with mine.appending():
            old_content = read_file(mine.path) if mine.exists() else b""
            is_longer = len(content) > len(old_content)
            shorter, longer = sorted((content, old_content), key=len)
            if not longer.startswith(shorter):
                raise TryAgain(
                    f"the stream {file.name!r} grew in both stores while they were merged; merge "
                    f"again, which names what to do"
                )
            if is_longer:
                write_whole(mine.path, content)
        states[file.name] = ("grown" if is_longer else "same") if old_content else "new"
    return states
