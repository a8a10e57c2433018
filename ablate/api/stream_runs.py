"""Trains the runs of a stream's proposals and baselines, as sweeps of their own.

Runs of proposal 3 of the stream `idea` are the sweep `idea.3`, those of the baseline that it
becomes `idea.3.baseline`; a stream of pairs has both in `idea.3`. So resume, launchers and the
ledger are those of any sweep. Everything is trained from the copy of its code.

Used by api/stream.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.api.errors import stopped
from ablate.api.training import Start, check_outcome
from ablate.planning import ComposedCode, Plan, Recall
from ablate.run import RunSpec
from ablate.shared import Failure
from ablate.store import CodeVersion, Store, StreamFile, StreamRecord

RETRIED_STATES = ("failed", "oom", "hung", "damaged")  # typing a proposal again trains these


class Collapsed(Exception):
    """A run diverged, or ended no better than guessing. `runs`: those of the code up to it."""

    def __init__(self, word: str, runs: int, label: str) -> None:
        super().__init__(f"{label} {word}")
        self.word, self.runs = word, runs


@dataclass
class StreamRuns:
    """The runs of a stream. `launcher`: its settings. `stop_mark`: the store's when the command
    began, so that a stop before the first drive, or between two, ends the next one."""

    store: Store
    record: StreamRecord
    launcher: Mapping[str, Any]
    stop_mark: int

    def of_baseline(self, code: CodeVersion, count: int) -> list[dict[str, Any]]:
        """Train the first `count` runs of a baseline; return their results. Raises Failure where
        one diverged or collapsed: then nothing can be compared with it."""
        name = f"{self.record.name}.{code.number}.baseline"
        seeds = self.record.baseline_seeds(code.number, count)
        return self._train(name, {"baseline": code}, seeds)["baseline"]

    def of_proposal(self, code: CodeVersion, count: int) -> list[dict[str, Any]]:
        """Train the first `count` runs of a proposal; return their results. Raises Collapsed."""
        name = f"{self.record.name}.{code.number}"
        seeds = self.record.proposal_seeds(code.number, count)
        return self._train(name, {"proposal": code}, seeds)["proposal"]

    def of_pairs(
        self, code: CodeVersion, baseline: CodeVersion, count: int
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Train the first `count` pairs, the proposal next to the baseline on the same seed; return
        the results of both. Raises Collapsed for a run of the proposal, Failure for one of the
        baseline."""
        name = f"{self.record.name}.{code.number}"
        codes = {"baseline": baseline, "proposal": code}
        results = self._train(name, codes, self.record.proposal_seeds(code.number, count))
        return results["proposal"], results["baseline"]

    def _train(
        self, name: str, codes: Mapping[str, CodeVersion], seeds: Sequence[int]
    ) -> dict[str, list[dict[str, Any]]]:
        """Train these codes with these seeds; return the results of each, by its label."""
        *_, newest = codes.values()
        specs = {label: self._spec(code) for label, code in codes.items()}
        title = f"stream {self.record.name}, {', '.join(codes)}"
        plan = ComposedCode.plan(name, title, specs, seeds, newest.declared, self.record.name)
        results, withheld = self.store.results(plan.runs())
        if any(result is None for result in results.values()) or withheld:
            self._drive(plan)
            results, withheld = self.store.results(plan.runs())
        for line in withheld.values():
            raise Failure(f"{name}: {line}; type the same again, and it is trained again")
        by_code: dict[str, list[dict[str, Any]]] = {label: [] for label in codes}
        for run in plan.runs():
            if run.above:
                continue
            result = results[run.id]
            if result is None:
                raise self._lost(name, run.id)
            row = by_code[run.cell.row]
            row.append(result)
            self._check_result(result, run.cell.row, len(row), run.label)
        return by_code

    def _spec(self, code: CodeVersion) -> RunSpec:
        """Return the spec of a code's runs, which are trained from its copy."""
        spec = RunSpec.of(code.spec)
        if not code.copy:
            return spec
        folder = StreamFile(self.store, self.record.name).copies.prepare(
            code.copy, Path(code.origin)
        )
        return spec.with_code_in(str(folder), code.origin)

    def _drive(self, plan: Plan) -> None:
        """Drive a plan to its end. Raises KeyboardInterrupt where it was stopped, Failure where a
        run failed."""
        from ablate.planning import read_logger_words
        from ablate.report import announce
        from ablate.running import Observers, await_disk_room

        def declare(recall: Recall | None) -> tuple[Plan, dict[str, Any]]:
            return plan, dict(self.launcher)

        with contextlib.redirect_stdout(sys.stderr):  # standard output is for the answer
            start = Start(declare, self.store, stop_mark=self.stop_mark)
            await_disk_room(self.store, _view)
            observers = Observers(read_logger_words([]), self.store.root, plan.name, announce)
            with observers:
                outcome = start.train(observers, RETRIED_STATES, lambda cost: None, announce, _view)
        if outcome.signal is not None:
            raise stopped("stopped; the same words go on", outcome.signal)
        lost = [run.id for run in plan.runs() if not self.store.rundir(run.id).has_result()]
        for run in lost:
            if outcome.progress.counts.keys() & {"failed", "oom", "hung"}:
                raise self._lost(plan.name, run)
        check_outcome(outcome, self.store)

    def _check_result(self, result: Mapping[str, Any], row: str, runs: int, label: str) -> None:
        word = str(result["status"])
        if word == "finished":
            if not result.get("collapsed"):
                return
            word = "collapsed"
        if row == "baseline":
            raise Failure(
                f"{label}: a run of the baseline {word}, so nothing can be compared with it; "
                f"`{self.store.command('show', label=label)}` shows it"
            )
        raise Collapsed(word, runs, label)

    def _lost(self, name: str, run: str) -> Failure:
        """Return the failure for a run that left no result: the proposal stays open."""
        folder = self.store.rundir(run)
        error = self.store.liveness.notes(folder).error or "left no result"
        return Failure(
            f"{name}: a run failed: {error} (see {folder.log}); mend it and try again, or type the "
            f"same words again: the proposal is open"
        )


def _view() -> Any:
    """Make the view of a drive: progress goes where standard output goes, to standard error."""
    from ablate.report import progress_view

    return progress_view()
