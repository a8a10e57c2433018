"""`ablate merge`: brings what other stores, and bundles, have into a store.

Everything is checked before anything is written. Each run is copied beside its place and gets its
name when it is whole; then the ledger says so, in one transaction, and then plans are written as a
driver writes them. A kill at any moment leaves a store that opens, and the same command goes on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.audit.bundle import ANONYMOUS, Bundle
from ablate.audit.verify import faults
from ablate.planning.cell import PlannedRun
from ablate.planning.plan import Plan
from ablate.planning.search import Search
from ablate.planning.unite import unasked, unite
from ablate.shared.errors import Failure, UserError
from ablate.shared.files import make_folder, open_file, read_json, sha256_of, sync_folder
from ablate.shared.result import FINAL
from ablate.shared.rundir import RunDir
from ablate.shared.spec import also_of
from ablate.store.events import BUNDLED, History, Look, RunState
from ablate.store.find import computed, driven
from ablate.store.gc import Rubbish, throw_away
from ablate.store.ledger import Ledger
from ablate.store.record import folded
from ablate.store.store import Store

# What two trainings of a run have alike where their bits are the same; times may differ.
BITS = (
    *("status", "step", "test", "also"),
    *("weights_sha256", "predictions_sha256", "metrics_sha256", "probes_sha256"),
)
SHOWN = 3  # runs that an error names
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """A store or a bundle, as it was when its ledger was read."""

    store: Store
    plans: Sequence[Plan]
    driven: Mapping[str, float]  # when, by sweep
    told: Mapping[str, History]  # by run
    looks: Sequence[tuple[float, Look]]


@dataclass
class Merged:
    """What came of a source: numbers of runs; `damaged`: a line on each; `sweeps`: what each is
    here now: "new", "same" or "grown"."""

    source: str
    brought: int = 0
    there: int = 0  # with the same bits
    unfinished: int = 0  # without a result that its ledger has recorded
    running: int = 0  # here
    damaged: list[str] = field(default_factory=list)
    sweeps: dict[str, str] = field(default_factory=dict)


# --- What a source has ----------------------------------------------------------------------------


def read_source(root: Path) -> Source:
    """Read what a store or a bundle has. Raises UserError for any other folder, Failure where its
    ledger, a plan or the bundle's own files were changed."""
    bundle, store = Bundle(root), Store(root)
    if bundle.is_one:
        return _read_bundle(bundle)
    if not store.ledger.exists() and not store.plans():
        raise UserError(f"{root}: is no store, and no bundle of `ablate export`")
    with Ledger.reading(store) as ledger:
        if ledger.broken_seals() or ledger.lacks_its_end():
            raise Failure(
                f"{store.ledger}: was changed, as `ablate verify` says; `ablate doctor --repair` "
                f"rebuilds it"
            )
        known = ledger.sweeps()
        plans = [computed(store, driven(store, ledger, known, name)) for name in known]
        with ledger.still():
            told = {run.id: ledger.events(run.id) for plan in plans for run in plan.runs()}
            return Source(store, plans, ledger.driven(), told, ledger.dated_looks())


def _read_bundle(bundle: Bundle) -> Source:
    if not bundle.is_sealed:
        raise Failure(
            f"{bundle.root}: an older version exported it without hashes of its files; export the "
            f"sweep again"
        )
    plan, told = bundle.read()
    for run in plan.runs():
        content = read_json(bundle.rundir(run.id).env)
        if isinstance(content, dict) and ANONYMOUS in content:
            raise UserError(
                f"{bundle.root}: is anonymous, so it lacks what the hashes of its runs are of; "
                f"export the sweep without --anonymous"
            )
    ends = {
        run.seed: max((at for at, kind, _ in told.get(run.id, ()) if kind in FINAL), default=0.0)
        for run in plan.runs()
    }
    looks, at = [], 0.0  # it tells their order; none was before the last result that it was of
    for look in bundle.looks_view():
        at = max(at, *(ends.get(seed, 0.0) for seed in look["seeds"]), 0.0)
        looks.append((at, look))
    marked = {run: [_bundled(*event) for event in history] for run, history in told.items()}
    last = max((at for history in told.values() for at, _, _ in history), default=0.0)
    return Source(bundle, [plan], {plan.name: last}, marked, looks)


def _bundled(at: float, kind: str, detail: dict[str, Any]) -> tuple[float, str, dict[str, Any]]:
    return at, kind, {**detail, BUNDLED: True} if kind in FINAL else detail


# --- Checked, then copied, then recorded ----------------------------------------------------------


def merge(store: Store, ledger: Ledger, sources: Sequence[Source]) -> list[Merged]:
    """Bring all that the sources have into a store, under the driver's lock.

    Raises Failure, before anything is written, where a run has other bits here or in another
    source, or where a sweep of the same name is another one.
    """
    work = _Merge(store, ledger)
    done = [work.choose(source) for source in sources]
    work.refuse()
    work.copy()
    work.record()
    return done


@dataclass(frozen=True)
class _Move:
    """A run that is copied from a source."""

    run: PlannedRun
    source: Source
    result: Result

    @property
    def folder(self) -> RunDir:
        return self.source.store.rundir(self.run.id)


class _Merge:
    def __init__(self, store: Store, ledger: Ledger) -> None:
        self.store, self.ledger = store, ledger
        self.states, self.known = ledger.states(), ledger.sweeps()
        self.seals = ledger.seals()
        self.plans: dict[str, Plan] = {}
        self.driven = ledger.driven()
        self.claimed: dict[str, tuple[Path, Result]] = {}  # by run: the folder that counts
        self.moves: list[_Move] = []
        self.weights: list[_Move] = []  # of runs that are here without theirs
        self.told: dict[str, History] = {}
        self.looks: list[tuple[float, Look]] = []
        self.conflicts: list[str] = []

    # --- Checked: nothing is written ---

    def choose(self, source: Source) -> Merged:
        done = Merged(str(source.store.root))
        seen: set[str] = set()
        for plan in source.plans:
            self._unite(plan, source, done)
            is_bundle = isinstance(source.store, Bundle)
            found = faults(plan, source.store, source.told, weights=not is_bundle)
            for run in plan.runs():
                if run.id not in seen:
                    seen.add(run.id)
                    self._choose(run, source, found[run.id], done)
        self.looks += source.looks
        return done

    def _choose(self, run: PlannedRun, source: Source, found: Sequence[str], done: Merged) -> None:
        history = source.told.get(run.id, ())
        if found:
            done.damaged += found
        elif folded(history)[0].status not in FINAL:
            done.unfinished += 1
        elif (here := self._claim(run)) is not None:
            self._compare(run, source, here, done)
        elif self.store.liveness.alive(self.store.rundir(run.id)):
            done.running += 1
        else:
            move = _Move(run, source, source.store.rundir(run.id).read_result() or {})
            self.moves.append(move)
            self.claimed[run.id] = move.folder.path, move.result
            self._tell(run.id, history)
            done.brought += 1

    def _claim(self, run: PlannedRun) -> tuple[Path, Result] | None:
        """The folder and the result of a run that is here, or chosen already."""
        if run.id not in self.claimed:
            folder = self.store.rundir(run.id)
            result, why = folder.sealed_result(self.seals.get(run.id), curves=True, probes=True)
            if why:
                raise Failure(
                    f"{why}; remove the run's folder, and the same `ablate merge` brings the run"
                )
            if result is None:
                return None
            self.claimed[run.id] = folder.path, result
        return self.claimed[run.id]

    def _compare(
        self, run: PlannedRun, source: Source, here: tuple[Path, Result], done: Merged
    ) -> None:
        (path, mine), folder = here, source.store.rundir(run.id)
        theirs = folder.read_result() or {}
        differ = [key for key in BITS if key in mine and key in theirs and mine[key] != theirs[key]]
        hashes = [sha256_of(RunDir(path).result), sha256_of(folder.result)]
        if differ:
            what = ", ".join(key.removesuffix("_sha256") for key in differ)
            self.conflicts.append(
                f"{run.id} {run.label}: {path} (result.json {hashes[0][:16]}) and {folder.path} "
                f"({hashes[1][:16]}) differ in {what}; remove the folder that shall not count"
            )
        state = self.states.get(run.id, RunState())
        crashed = path == self.store.rundir(run.id).path and state.status not in FINAL
        if crashed and hashes[0] == hashes[1]:  # copied by a merge that was killed
            self._tell(run.id, source.told[run.id])
            done.brought += 1
        else:
            done.there += 1
        if folder.weights.exists() and not RunDir(path).weights.exists():
            self.weights.append(_Move(run, source, theirs))

    def _tell(self, run: str, history: History) -> None:
        """Attempts of other launchers have no folder here: all is in that of the run."""
        self.told[run] = [
            (at, kind, {key: value for key, value in detail.items() if key != "attempt"})
            for at, kind, detail in history
        ]
        seal = folded(history)[1]
        if seal is not None and "result_sha256" in seal[1]:
            self.seals[run] = seal[1]["result_sha256"]

    def _unite(self, plan: Plan, source: Source, done: Merged) -> None:
        name = plan.name
        if name not in self.plans:
            here = self.ledger.sealed_plan(self.store, name)
            if here is None and name in self.known:
                here = driven(self.store, self.ledger, self.known, name)  # says what is wrong
            if here is not None:
                self.plans[name] = computed(self.store, here)
        new = name not in self.plans
        before = self.plans.get(name, plan)
        try:
            self.plans[name] = unite(before, plan)
        except ValueError as error:
            self.conflicts.append(
                f"the sweep {name!r} of {source.store.root} is another one ({error}): drive one of "
                f"them with --as NAME in its store, which trains nothing, and forget the old name "
                f"with `ablate gc`"
            )
        grown = {run.id for run in self.plans[name].runs()} != {run.id for run in before.runs()}
        done.sweeps[name] = "new" if new else "grown" if grown else "same"
        self.driven[name] = max(self.driven.get(name, 0.0), source.driven[name])

    def refuse(self) -> None:
        """Raise Failure for whatever can't be together in one store."""
        if self.conflicts:
            more = len(self.conflicts) - SHOWN
            others = f"; and {more:,} more" if more > 0 else ""
            raise Failure(f"nothing was merged: {'; '.join(self.conflicts[:SHOWN])}{others}")

    # --- Copied ---

    def copy(self) -> None:
        make_folder(self.store.runs)
        for move in self.moves:
            self._copy(move)
        for move in self.weights:
            folder = self.store.rundir(move.run.id)
            if not folder.weights.exists():
                made = folder.path / f".{folder.weights.name}.{os.getpid()}.0"
                _copy_file(move.folder.weights, made, move.result.get("weights_sha256"))
                os.replace(made, folder.weights)
                sync_folder(folder.path)

    def _copy(self, move: _Move) -> None:
        place = self.store.rundir(move.run.id).path
        made = RunDir(place.with_name(f".{move.run.id}.merge"))
        shutil.rmtree(made.path, ignore_errors=True)
        made.path.mkdir()
        try:
            sealed = dict(_files(move.run, made, move.result, self.seals.get(move.run.id)))
            for (path, _), (target, sha256) in zip(
                _files(move.run, move.folder, move.result), sealed.items(), strict=True
            ):
                if target.parent != made.path:
                    raise Failure(f"{move.folder.result}: names a file outside of its folder")
                if path.exists():
                    _copy_file(path, target, sha256)
            self._copy_diffs(made, move.source)
            sync_folder(made.path)
            if place.is_symlink():  # to an attempt that ended without a result: `gc` removes it
                place.unlink()
            elif place.exists():
                throw_away(self.store, [Rubbish("runs", place, 0, RunDir(place).lock)])
            made.path.rename(place)
            sync_folder(place.parent)
        except BaseException:
            shutil.rmtree(made.path, ignore_errors=True)
            raise

    def _copy_diffs(self, made: RunDir, source: Source) -> None:
        for attempt in made.read_attempts():
            match attempt:
                case {"origin": {"git": {"diff": str(name)}}}:
                    theirs = source.store.diffs / Path(name).name
                    mine = self.store.diffs / theirs.name
                    if theirs.exists() and not mine.exists():
                        make_folder(mine.parent)
                        part = mine.with_name(f".{mine.name}.{os.getpid()}.0")
                        _copy_file(theirs, part, None)
                        os.replace(part, mine)
                        sync_folder(mine.parent)

    # --- Recorded ---

    def record(self) -> None:
        plans = [self._grown(plan) for plan in self.plans.values()]
        planned = {run.id: plan.name for plan in plans for run in plan.runs()}
        self.ledger.bring(self.told, planned, self.looks)
        for plan in plans:
            content = hashlib.sha256(plan.to_bytes()).hexdigest()
            path = self.store.plan_path(plan.name)
            if not path.exists() or sha256_of(path) != content:
                self.ledger.announce(plan)
                self.store.write_plan(plan)
            self.ledger.plan(plan, self.driven[plan.name])
        self.ledger.write_view(self.store)

    def _grown(self, plan: Plan) -> Plan:
        """Of a tuned sweep: with all that its searches ask, now that they know all results."""
        if plan.tune is None:
            return plan

        def result(run: str) -> dict[str, Any] | None:
            return self.store.result(run, self.seals.get(run))

        return Search(unasked(plan)).grow(result, self.store.metrics) or plan


def _files(
    run: PlannedRun, folder: RunDir, result: Result, seal: str | None = None
) -> Iterator[tuple[Path, str | None]]:
    """Every file that a finished run may leave, its hash where there is one, the result last."""
    yield folder.run, None
    yield folder.log, None
    yield folder.prune, None
    yield folder.env, result.get("env_sha256")
    yield folder.metrics, result.get("metrics_sha256")
    yield folder.weights, result.get("weights_sha256")
    yield folder.predictions, result.get("predictions_sha256")
    told = result.get("also") or {}
    for other in also_of(run.spec()):
        yield (
            folder.predictions_on(other["name"]),
            (told.get(other["name"]) or {}).get("predictions_sha256"),
        )
    for name, sha256 in (result.get("probes_sha256") or {}).items():
        yield folder.probe(name), sha256
    yield folder.result, seal


def _copy_file(source: Path, target: Path, sha256: str | None) -> None:
    """On disk when this returns. Raises Failure where it is not what was checked."""
    hashed = hashlib.sha256()
    with open_file(source) as content, open(target, "wb") as file:
        while part := content.read(1 << 20):
            hashed.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    if sha256 not in (None, hashed.hexdigest()):
        raise Failure(f"{source}: was changed while it was copied; the same command goes on")
