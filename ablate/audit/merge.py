"""`ablate merge`: brings the runs, plans and looks of other stores and bundles into a store.

Everything is checked before anything is written. Each run is copied under another name and renamed
when it is whole. Then the ledger records all runs, in one transaction, and then plans are written
as a driver writes them. A kill at any moment leaves a store that opens, and the same command goes
on.

A source is a store, or a bundle of `export`, as it is at one moment.

Used by `ablate merge` (cli/keeping.py, which prints its reports); `whole_folder` also by
audit/importing.py. A new field of `MergeReport` also needs docs/json.md, which tests/json_page.py
writes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ablate.audit.bundle import ANONYMOUS, Bundle
from ablate.audit.copies import (
    copy_file,
    copy_scratch,
    copy_whole,
    naming_full_disk,
    whole_folder,
)
from ablate.audit.lean import thinned_hashes
from ablate.audit.streams import bring_streams, stream_conflicts
from ablate.audit.verify import faults
from ablate.planning import Plan, PlannedRun, Search, before_searches, unite_plans
from ablate.run import (
    FINAL_STATUSES,
    OwnSpec,
    RunDir,
)
from ablate.running import take_decisions
from ablate.shared import (
    Failure,
    UserError,
    make_folder,
    read_json,
    sha256_of,
    sync_folder,
    to_json,
    write_whole,
)
from ablate.store import (
    FROM_BUNDLE,
    History,
    Ledger,
    Look,
    RunState,
    Store,
    beats_elsewhere,
    driven_plan,
    fold_history,
    unedited_plan,
)


@dataclass(frozen=True)
class MergeSource:
    """A store or a bundle, as it was when its ledger was read.

    `in_use`: whether a driver may go on with runs that have no result.
    """

    store: Store
    plans: Sequence[Plan]
    driven_at: Mapping[str, float]  # by sweep: when it was last driven
    histories: Mapping[str, History]  # by run
    looks: Sequence[tuple[float, Look]]
    in_use: bool = False


def _read_source(root: Path) -> MergeSource:
    """Read a store or a bundle to merge.

    Raises UserError for any other folder, and Failure where its ledger, a plan or the bundle's own
    files were changed.
    """
    bundle, store = Bundle(root), Store(root)
    if bundle.is_bundle:
        return _read_bundle(bundle)
    if not store.ledger.exists() and not store.plans():
        raise UserError(f"{root}: is no store, and no bundle of `ablate export`")
    with Ledger.reading(store, may_write=False) as ledger:
        if ledger.broken_seals() or ledger.lacks_its_end():
            raise Failure(
                f"{store.ledger}: was changed, as `{store.command('verify')}` says; "
                f"{store.repair_remedy}"
            )
        sweeps = ledger.sweeps()
        plans = [unedited_plan(store, driven_plan(store, ledger, sweeps, name)) for name in sweeps]
        with ledger.snapshot():
            histories = {run.id: ledger.events(run.id) for plan in plans for run in plan.runs()}
            in_use = store.driver.is_held() or bool(beats_elsewhere(store.root))
            return MergeSource(
                store, plans, ledger.drive_times(), histories, ledger.dated_looks(), in_use
            )


def _read_bundle(bundle: Bundle) -> MergeSource:
    plan, histories = bundle.read_sealed()
    if bundle.is_lean and bundle.own_metrics_file.exists():
        raise UserError(
            f"{bundle.root}: is lean, and has a metric of your own, which needs whole predictions; "
            f"export the sweep without --lean"
        )
    for run in plan.runs():
        content = read_json(bundle.rundir(run.id).env)
        if isinstance(content, dict) and ANONYMOUS in content:
            raise UserError(
                f"{bundle.root}: is anonymous, so it lacks data that its runs' hashes were "
                f"computed from; export the sweep without --anonymous"
            )
    ends = {
        run: max(
            (timestamp for timestamp, kind, _ in history if kind in FINAL_STATUSES), default=0.0
        )
        for run, history in histories.items()
    }
    # A bundle keeps the order of looks but not their times: each gets that of the last result that
    # could be seen at it, and never an earlier time than the look before it.
    looks, end = [], 0.0
    for look in bundle.looks_view():
        rows = (row for column in look["columns"].values() for row in column["rows"].values())
        end = max(end, *(ends.get(run, 0.0) for row in rows for run in row["runs"].values()), 0.0)
        looks.append((end, look))
    marked = {run: [_bundled(event) for event in history] for run, history in histories.items()}
    last_time = max(
        (timestamp for history in histories.values() for timestamp, _, _ in history), default=0.0
    )
    return MergeSource(bundle, [plan], {plan.name: last_time}, marked, looks)


def _bundled(
    event: tuple[float, str, dict[str, Any]], mark: Literal[True] | str = True
) -> tuple[float, str, dict[str, Any]]:
    timestamp, kind, detail = event
    if kind in FINAL_STATUSES:
        detail = {**detail, FROM_BUNDLE: mark}
    return timestamp, kind, detail


# What two trainings of a run have alike where their bits are the same; times may differ.
BITS = (
    *("status", "step", "test", "also"),
    *("weights_sha256", "predictions_sha256", "metrics_sha256", "probes_sha256"),
)
MOST_LISTED = 3  # runs that an error names
Result = Mapping[str, Any]


@dataclass
class MergeReport:
    """The outcome of merging a source: numbers of runs, lines on damaged ones, and its sweeps.

    The fields are keys of `--format json`. "Here" is the store that is merged into. `damaged`: a
    line for each fault. `sweeps`, `streams`: the state of each sweep, and of each stream of
    proposals, here after the merge: "new", "same" or "grown".
    """

    source: str
    brought: int = 0  # copied with their results
    there: int = 0  # already here, with the same bits
    half: int = 0  # half trained, copied to go on here
    unfinished: int = 0  # other runs for which the source's ledger records no result
    running: int = 0  # have a result in the source, but are being trained here: not copied
    damaged: list[str] = field(default_factory=list)
    sweeps: dict[str, str] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> Iterator[str]:
        """The report as lines of text."""
        counts = {
            "brought": self.brought,
            "here already": self.there,
            "half trained, to go on here": self.half,
            "not finished there": self.unfinished,
            "running here": self.running,
        }
        text = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
        yield f"{self.source}: runs: {text or 'none'}"
        words = {"new": "new", "same": "as it was", "grown": "has more runs now"}
        yield from (f"  sweep {name!r}: {words[change]}" for name, change in self.sweeps.items())
        yield from (f"  stream {name!r}: {words[change]}" for name, change in self.streams.items())
        yield from (f"  damaged: {line}" for line in self.damaged)


# --- Checked, then copied, then recorded ----------------------------------------------------------


@dataclass(frozen=True)
class StoreMerge:
    """A merge of other stores and bundles, which are read before a store is changed."""

    sources: Sequence[MergeSource]

    @staticmethod
    def of(folders: Sequence[Path]) -> StoreMerge:
        """Read the stores and bundles in these folders.

        Raises UserError for any other folder, and Failure where a ledger, a plan or a bundle's own
        files were changed.
        """
        return StoreMerge([_read_source(folder) for folder in folders])

    def bring_into(self, store: Store, ledger: Ledger) -> list[MergeReport]:
        """Bring everything that the sources have into a store, under the driver's lock.

        Raises Failure, before anything is written, where a run has other bits here or in another
        source, or where a sweep of the same name is a different one.
        """
        work = _Merge(store, ledger)
        reports = [work.choose_from_source(source) for source in self.sources]
        work.conflicts += stream_conflicts(store, [source.store for source in self.sources])
        work.refuse()
        with naming_full_disk(store.root):
            work.copy()
            for source in self.sources:
                take_decisions(store, source.store)
            work.record()
            for report, source in zip(reports, self.sources, strict=True):
                report.streams = bring_streams(store, source.store)
        return reports


@dataclass(frozen=True)
class _Move:
    """A run that is copied from a source. `result`: {} if the run is half trained."""

    run: PlannedRun
    source: MergeSource
    result: Result

    @property
    def folder(self) -> RunDir:
        return self.source.store.rundir(self.run.id)

    @property
    def history(self) -> History:
        """The run's events in the source; that of its result has the hash of `thinned.json`."""
        events = self.source.histories[self.run.id]
        if not self.thinned:
            return events
        thinned_hash = hashlib.sha256(to_json(self.thinned)).hexdigest()
        return [_bundled(event, thinned_hash) for event in events]

    @property
    def is_bundled(self) -> bool:
        """Return whether the source is a bundle, or has the run's result from one."""
        last_result = fold_history(self.history)[1]
        return last_result is not None and FROM_BUNDLE in last_result[1]

    @functools.cached_property
    def thinned(self) -> Mapping[str, Mapping[str, str | None]]:
        """The content of the run's `thinned.json`; {} where all of its files are whole."""
        store_folder = RunDir(Path(self.run.id))  # for the names that files have in a store
        names = [file.name for file, _ in _files(self, store_folder, None)]
        pairs = zip(names, _files(self, self.folder, None), strict=True)
        return thinned_hashes(self.folder, {name: file for name, (file, sha256) in pairs if sha256})


class _Merge:
    def __init__(self, store: Store, ledger: Ledger) -> None:
        self.store, self.ledger = store, ledger
        self.states, self.sweeps = ledger.states(), ledger.sweeps()
        self.seals = ledger.seals()
        self.plans: dict[str, Plan] = {}
        self.driven_at = ledger.drive_times()
        self.claimed: dict[str, tuple[Path, Result]] = {}  # by run: its folder, here or in a source
        self.moves: dict[str, _Move] = {}  # by run
        self.weights: list[_Move] = []  # of runs that are here without theirs
        self.histories: dict[str, History] = {}
        self.looks: list[tuple[float, Look]] = []
        self.conflicts: list[str] = []

    # --- Checked: nothing is written ---

    def choose_from_source(self, source: MergeSource) -> MergeReport:
        report = MergeReport(str(source.store.root))
        chosen_ids: set[str] = set()
        for plan in source.plans:
            self._unite_plan(plan, source, report)
            is_bundle = isinstance(source.store, Bundle)
            findings = faults(plan, source.store, source.histories, weights=not is_bundle)
            for run in plan.runs():
                if run.id not in chosen_ids:
                    chosen_ids.add(run.id)
                    self._choose_run(run, source, findings[run.id], report)
        self.looks += source.looks
        return report

    def _choose_run(
        self, run: PlannedRun, source: MergeSource, findings: Sequence[str], report: MergeReport
    ) -> None:
        history = source.histories.get(run.id, ())
        if findings:
            report.damaged += findings
        elif fold_history(history)[0].status not in FINAL_STATUSES:
            self._take_half(run, source, history, report)
        elif (claim := self._claim(run)) is not None:
            self._compare(run, source, claim, report)
        elif self.store.liveness.alive(self.store.rundir(run.id)):
            report.running += 1
        else:
            self._bring(_Move(run, source, source.store.rundir(run.id).read_result() or {}))
            report.brought += 1

    def _bring(self, move: _Move) -> None:
        self.moves[move.run.id] = move
        self.claimed[move.run.id] = move.folder.path, move.result
        self._queue_history(move.run.id, move.history)

    def _take_half(
        self, run: PlannedRun, source: MergeSource, history: History, report: MergeReport
    ) -> None:
        """Choose a half-trained run to go on here, or count it as unfinished.

        It goes on here if nobody trains it, if it is further than what is here or chosen already,
        and if its metrics agree with those up to there.
        """
        theirs, ours = source.store.rundir(run.id), self.store.rundir(run.id)
        mine = self.moves[run.id].folder if run.id in self.moves else ours
        both, step = (theirs, ours), mine.newest_step()
        stopped = fold_history(history)[0].status in ("started", "interrupted")
        if (
            source.in_use
            or isinstance(run.cell.spec, OwnSpec)
            or not stopped
            or mine.has_result()
            or self.states.get(run.id, RunState()).status == "skipped"
            or any(self.store.liveness.alive(folder) for folder in both)
            or theirs.newest_step() <= step
            or theirs.metrics_content(step) != mine.metrics_content(step)
        ):
            report.unfinished += 1
            self._remember(run, history)
            return
        self.moves[run.id] = _Move(run, source, {})
        self._queue_history(
            run.id, [*history, (history[-1][0], "interrupted", {"reason": "merged"})]
        )
        report.half += 1

    def _remember(self, run: PlannedRun, history: History) -> None:
        """Keep the history of a run that is not merged but had begun, had a result or was skipped.

        Without it, the run could be skipped here as one whose results nobody has seen. Nothing is
        kept where this store has a history or a folder of the run.
        """
        mine = self.ledger.events(run.id)
        if run.id in self.histories or all(kind == "planned" for _, kind, _ in history):
            return
        if any(kind != "planned" for _, kind, _ in mine) or self.store.rundir(run.id).path.exists():
            return
        skipped = fold_history(history)[0].status == "skipped"
        if not skipped:  # "collected": its folder is gone, as after `ablate gc`
            history = [*history, (history[-1][0], "collected", {})]
        self._queue_history(run.id, history)
        self.seals.pop(run.id, None)

    def _claim(self, run: PlannedRun) -> tuple[Path, Result] | None:
        """Return the folder and the result of a run that is here or chosen already; else None.

        Raises Failure where a file of the run here is not what the run left.
        """
        if run.id not in self.claimed:
            folder = self.store.rundir(run.id)
            result, fault = folder.sealed_result(self.seals.get(run.id), curves=True, probes=True)
            if fault:
                raise Failure(
                    f"{fault}; remove the run's folder, and the same `ablate merge` brings the run"
                )
            if result is None:
                return None
            self.claimed[run.id] = folder.path, result
        return self.claimed[run.id]

    def _compare(
        self, run: PlannedRun, source: MergeSource, claim: tuple[Path, Result], report: MergeReport
    ) -> None:
        (path, mine), folder = claim, source.store.rundir(run.id)
        theirs = folder.read_result() or {}
        differ = [key for key in BITS if key in mine and key in theirs and mine[key] != theirs[key]]
        hashes = [sha256_of(RunDir(path).result), sha256_of(folder.result)]
        if differ:
            parts = ", ".join(key.removesuffix("_sha256") for key in differ)
            self.conflicts.append(
                f"{run.id} {run.label}: {path} (result.json {hashes[0][:16]}) and {folder.path} "
                f"({hashes[1][:16]}) differ in {parts}; remove the folder that shall not count"
            )
        state = self.states.get(run.id, RunState())
        crashed = path == self.store.rundir(run.id).path and state.status not in FINAL_STATUSES
        move = _Move(run, source, theirs)
        if self._is_fuller(move, path):
            self._bring(move)
            report.brought += 1
            return
        if crashed and hashes[0] == hashes[1]:  # copied by a merge that was killed
            self._queue_history(run.id, move.history)
            report.brought += 1
        else:
            report.there += 1
        if folder.weights.exists() and not RunDir(path).weights.exists():
            self.weights.append(move)

    def _is_fuller(self, move: _Move, path: Path) -> bool:
        """Return whether a run, whose folder here or in an earlier source is `path`, has thinned
        files there and whole ones in this source."""
        is_thinned = RunDir(path).thinned.exists()
        if move.run.id in self.moves:
            is_thinned = bool(self.moves[move.run.id].thinned)
        loses_weights = RunDir(path).weights.exists() and not move.folder.weights.exists()
        return is_thinned and not move.thinned and not loses_weights

    def _queue_history(self, run: str, history: History) -> None:
        """Queue the history of a run for `record`, without the attempts that it names.

        Attempts of other launchers have no folder here: everything is in the folder of the run.
        """
        self.histories[run] = [
            (timestamp, kind, {key: value for key, value in detail.items() if key != "attempt"})
            for timestamp, kind, detail in history
        ]
        self.seals.pop(run, None)
        last_result = fold_history(history)[1]
        if last_result is not None:
            self.seals[run] = last_result[1]["result_sha256"]

    def _unite_plan(self, plan: Plan, source: MergeSource, report: MergeReport) -> None:
        name = plan.name
        if name not in self.plans:
            ours = self.ledger.sealed_plan(self.store, name)
            if ours is None and name in self.sweeps:
                ours = driven_plan(self.store, self.ledger, self.sweeps, name)  # says what is wrong
            if ours is not None:
                self.plans[name] = unedited_plan(self.store, ours)
        new = name not in self.plans
        old_plan = self.plans.get(name, plan)
        try:
            self.plans[name] = unite_plans(old_plan, plan)
        except ValueError as error:
            self.conflicts.append(
                f"the sweep {name!r} of {source.store.root} is another one ({error}): "
                f"{self._renaming(plan, source.store)}"
            )
        has_grown = {run.id for run in self.plans[name].runs()} != {
            run.id for run in old_plan.runs()
        }
        report.sweeps[name] = "new" if new else "grown" if has_grown else "same"
        self.driven_at[name] = max(self.driven_at.get(name, 0.0), source.driven_at[name])

    def _renaming(self, plan: Plan, source: Store) -> str:
        """Return the remedy for two different sweeps of a name: another name for one of them, which
        a store can give it, but not a bundle."""
        export = "export it again without analysis.KEY=VALUE and --contrast if it has them, or "
        is_bundle = isinstance(source, Bundle)
        if is_bundle and plan.name not in self.sweeps:
            return f"{export}merge each into a store of its own"
        store = self.store if is_bundle else source
        rename = (
            f"drive that of {store.root} with --as NAME, which trains nothing,"
            if plan.design.trains
            else f"import that of {store.root} again with --as NAME"
        )
        command = store.command("gc", plan.name)
        return f"{export if is_bundle else ''}{rename} and forget the old name with `{command}`"

    def refuse(self) -> None:
        """Raise Failure for everything that can't be together in one store."""
        if self.conflicts:
            excess = len(self.conflicts) - MOST_LISTED
            suffix = f"; and {excess:,} more" if excess > 0 else ""
            raise Failure(f"nothing was merged: {'; '.join(self.conflicts[:MOST_LISTED])}{suffix}")

    # --- Copied ---

    def copy(self) -> None:
        make_folder(self.store.runs)
        for move in self.moves.values():
            self._copy(move)
        for move in self.weights:
            folder = self.store.rundir(move.run.id)
            if not folder.weights.exists():
                sha256 = move.result.get("weights_sha256")
                copy_whole(move.folder.weights, folder.weights, sha256)

    def _copy(self, move: _Move) -> None:
        with whole_folder(self.store, move.run.id) as new_folder:
            seal = self.seals.get(move.run.id)
            both = zip(_files(move, move.folder, seal), _files(move, new_folder, seal), strict=True)
            for (file, sha256), (target, _) in both:
                if target.parent != new_folder.path:
                    raise Failure(f"{move.folder.result}: names a file outside of its folder")
                if file.exists():
                    hashes = move.thinned.get(target.name, {"kept": sha256})
                    copy_file(file, target, hashes["kept"])
            if move.thinned:
                write_whole(new_folder.thinned, to_json(move.thinned))
            elif move.result and move.is_bundled:
                write_whole(new_folder.bundled, b"")
            self._copy_diffs(new_folder, move.source)
            if move.result:
                copy_scratch(move.folder, new_folder)
            sync_folder(new_folder.path)
        sync_folder(new_folder.path.parent)

    def _copy_diffs(self, folder: RunDir, source: MergeSource) -> None:
        for attempt in folder.read_attempts():
            match attempt:
                case {"origin": {"git": {"diff": str(name)}}}:
                    theirs = source.store.diffs / Path(name).name
                    mine = self.store.diffs / theirs.name
                    if theirs.exists() and not mine.exists():
                        make_folder(mine.parent)
                        copy_whole(theirs, mine, None)

    # --- Recorded ---

    def record(self) -> None:
        plans = [self._extended(plan) for plan in self.plans.values()]
        planned = {run.id: plan.name for plan in plans for run in plan.runs()}
        self.ledger.bring(self.histories, planned, self.looks)
        for plan in plans:
            content = hashlib.sha256(plan.to_bytes()).hexdigest()
            path = self.store.plan_path(plan.name)
            if not path.exists() or sha256_of(path) != content:
                self.ledger.announce(plan)
                self.store.write_plan(plan)
            self.ledger.plan(plan, self.driven_at[plan.name])
        self.ledger.write_view(self.store)

    def _extended(self, plan: Plan) -> Plan:
        """Return the plan, extended by the runs that its searches request if it is tuned.

        The searches now know the results of all sources and of this store.
        """
        if plan.tune is None:
            return plan

        def result(run: str) -> dict[str, Any] | None:
            return self.store.result(run, self.seals.get(run))

        return Search(before_searches(plan)).grow(result, self.store.metrics) or plan


def _files(move: _Move, folder: RunDir, seal: str | None) -> Iterator[tuple[Path, str | None]]:
    """Yield (file, hash or None) for every file that a run may have in a folder.

    The result comes last. `seal`: the hash of the result.
    """
    result = move.result
    yield folder.run, None
    yield folder.log, None
    yield folder.prune, None
    yield folder.env, result.get("env_sha256")
    yield folder.metrics, result.get("metrics_sha256")
    if not result:
        yield folder.distrust, None
        for _, path in reversed(move.folder.checkpoints()):
            yield folder.path / path.name, None
        return
    yield folder.weights, result.get("weights_sha256")
    yield folder.predictions, result.get("predictions_sha256")
    also_results = result.get("also") or {}
    for name in (dataset["name"] for dataset in move.run.spec.also):
        yield folder.predictions_on(name), (also_results.get(name) or {}).get("predictions_sha256")
    for name, sha256 in (result.get("probes_sha256") or {}).items():
        yield folder.probe(name), sha256
    yield folder.result, seal
