"""Finds and removes what no sweep refers to.

A sweep's plan file and the ledger say what the sweep refers to; where they differ, nothing is
removed. Runs of its earlier plans stay until the sweep gives them up. Only files whose names a
store gives are removed, and nothing behind a link: its target may belong to another store.

A folder is removed by renaming it into the store's `trash/` and deleting it there. A crash
therefore leaves nothing that could be taken for a whole run, and the next gc empties the trash.

Used by `ablate gc` (`cli/keeping.py`), `ablate run --delete` (`cli/driving.py`) and
`audit/merge.py`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from ablate.planning import Plan
from ablate.run import RunDir, RunSpec
from ablate.shared import (
    Failure,
    Lock,
    TryAgain,
    UserError,
    count_text,
    make_folder,
    read_json,
    sync_folder,
    unknown_value,
)
from ablate.store.events import RunState
from ablate.store.folder import WRITES_AGAIN
from ablate.store.ledger import Ledger
from ablate.store.store import Store
from ablate.store.streams import StreamFile

Kind = Literal["trash", "temporary", "diffs", "reruns", "attempts", "code", "data", "runs"]
WORDS: dict[Kind, str] = {
    "trash": "left in the trash by an earlier gc",
    "temporary": "temporary files of writes that a crash ended",
    "diffs": "diffs that no run refers to",
    "reruns": "runs that a killed `verify --rerun` left",
    "attempts": "attempts on other hosts that were given up",
    "code": "copies of code that no stream has kept",
    "data": "files and folders of decoded data that no sweep uses",
    "runs": "runs that no sweep contains",
}
ID = r"[0-9a-f]{16}"  # of a run, and of a dataset
YOUNG_S = 3600.0  # what was written since may be about to be used
MOST_SHOWN = 8  # names in a line or an error
JOBS = "jobs"  # of an engine, in `pilots/`: its logs


@dataclass(frozen=True)
class Rubbish:
    """A file or folder that may be removed. `lock`: the lock that whoever uses it holds."""

    kind: Kind
    path: Path
    bytes: int
    lock: Lock | None = None
    plan: str = ""  # of a run: the earlier plan that had it, which `--replace` gave up


class KeptSweeps(NamedTuple):
    """The sweeps that stay.

    `plans`: their readable plans. `unreadable`: for each sweep whose plan is missing or unreadable,
    the runs that the ledger has for it, all of which stay.
    """

    plans: list[Plan]
    unreadable: dict[str, set[str]]

    def notes(self, store: Store) -> Iterator[str]:
        """Yield a line for every plan that can't be read."""
        for name, runs in self.unreadable.items():
            forgets = f"`{store.command('gc', name)}` forgets that sweep"
            yield (
                f"{store.plan_path(name)}: can't be read, so its {count_text(len(runs), 'run')} "
                f"and all decoded data stay; {WRITES_AGAIN}, {forgets}"
            )


def kept_sweeps(store: Store, ledger: Ledger, forget: Collection[str]) -> KeptSweeps:
    """Return the sweeps that stay when those in `forget` are removed.

    Raises UserError for a name that no sweep has. Raises Failure where a plan was edited, lacks
    runs that the ledger has, or is unreadable and belongs to a sweep that the ledger doesn't know,
    since then nobody knows what it refers to.
    """
    forgotten = {store.plan_path(name) for name in forget}
    sweeps = ledger.sweeps()
    by_path = {store.plan_path(name): name for name in sweeps}
    names = list(sweeps)
    plans = []
    unreadable_paths = {path for path in by_path if not path.exists()} - forgotten
    for path in store.plans():
        try:
            plan = Plan.from_tree(read_json(path)).checked()
        except (LookupError, TypeError, AttributeError, ValueError):
            if path not in forgotten and path not in by_path:
                raise Failure(
                    f"{path}: is not whole, and the ledger doesn't know its runs; move it away, or "
                    f"{WRITES_AGAIN}"
                ) from None
            unreadable_paths |= {path} - forgotten
            continue
        names.append(plan.name)
        if path in forgotten:
            continue
        if path != store.plan_path(plan.name):
            raise Failure(
                f"{path}: is a plan of {plan.name!r}, which belongs in "
                f"{store.plan_path(plan.name).name}; move it away, or back"
            )
        _agree(store, plan, ledger)
        if plan.name in sweeps:
            ledger.sealed_plan(store, plan.name)
        plans.append(plan)
    for name in forget:
        is_missing = name not in names and not store.plan_path(name).exists()
        if is_missing and not ledger.knew(name):  # else a gc that was killed has forgotten it
            raise unknown_value("sweep", name, dict.fromkeys(names), f"one of {store.root}:")
    unreadable_sweeps = [by_path[path] for path in unreadable_paths]
    return KeptSweeps(plans, {name: _recorded(ledger, name) for name in unreadable_sweeps})


def _recorded(ledger: Ledger, sweep: str) -> set[str]:
    """Return all runs that the ledger has for a sweep, of its last plan and of earlier ones."""
    earlier = ledger.earlier(sweep)
    runs = {run for _, run in ledger.planned(sweep)}
    return runs | earlier.kept_runs.keys() | earlier.given_up.keys()


def _agree(store: Store, plan: Plan, ledger: Ledger) -> None:
    """Raise Failure where the ledger has runs of the sweep that its plan lacks.

    More runs in the plan than in the ledger are what a crash between the two writes leaves; all of
    these are kept.
    """
    plan_ids = {run.id for run in plan.runs()}
    lost = list(dict.fromkeys(run for _, run in ledger.planned(plan.name) if run not in plan_ids))
    if lost:
        names = ", ".join(lost[:MOST_SHOWN])
        if len(lost) > MOST_SHOWN:
            names += ", ..."
        command = store.command("gc", plan.name)
        raise Failure(
            f"{store.plan_path(plan.name)}: lacks {count_text(len(lost), 'run')} that the ledger "
            f"has for {plan.name!r} ({names}), so nothing is removed: {WRITES_AGAIN}, `{command}` "
            f"forgets that sweep"
        )


def _planned_runs(sweeps: KeptSweeps) -> set[str]:
    """Return the runs of the plans, and those that the ledger has for sweeps without one."""
    runs: set[str] = set()
    for plan in sweeps.plans:
        runs.update(run.id for run in plan.runs())
    return runs.union(*sweeps.unreadable.values())


@dataclass(frozen=True)
class GarbageCollection:
    """Rubbish, which nobody uses and no kept sweep refers to, by its plan or an earlier one, and
    its removal under the driver's lock.

    `sweeps`: those that stay; `forget`: the names of those that are forgotten. Decoded data stay
    while a plan can't be read: its future runs may need them.
    """

    store: Store
    ledger: Ledger
    sweeps: KeptSweeps
    forget: Sequence[str] = ()

    @staticmethod
    def forgetting(store: Store, ledger: Ledger, forget: Sequence[str]) -> GarbageCollection:
        """Return the collection that forgets these sweeps. Raises as `kept_sweeps` does."""
        return GarbageCollection(store, ledger, kept_sweeps(store, ledger, forget), forget)

    @cached_property
    def rubbish(self) -> list[Rubbish]:
        """Everything that may be removed. It is searched for once: what the user saw is what
        `remove` removes."""
        runs = _planned_runs(self.sweeps)
        data: set[str] = set()
        given_up: dict[str, str] = {}
        for plan in self.sweeps.plans:
            for cell in plan.cells:
                data |= _fingerprints(cell.spec)
            earlier = self.ledger.earlier(plan.name)
            runs |= earlier.kept_runs.keys()
            for run in earlier.kept_runs:
                data |= _data_of(self.store.rundir(run))
            given_up |= {run: f"{plan.name}, {seeds}" for run, seeds in earlier.given_up.items()}
        folders = sorted(self.store.runs.iterdir()) if self.store.runs.is_dir() else []
        free = []
        stay = []
        for path in folders:
            if not path.is_dir():
                continue
            linked = self.store.runs.is_symlink() or (
                path.is_symlink() and RunDir(path).attempt is None
            )
            is_run_folder = re.fullmatch(ID, path.name) and not RunDir(path).foreign()
            if linked or path.name in runs or not is_run_folder:
                stay.append(path)
            elif self.store.liveness.alive(RunDir(path)):  # a worker that outlived its driver
                stay.append(path)
                data |= _data_of(RunDir(path))
            else:
                free.append(path)
        rubbish = [_rubbish_at("trash", path) for path in _trash_entries(self.store)]
        rubbish += [_rubbish_at("temporary", path) for path in _temporary(self.store, stay)]
        rubbish += [_rubbish_at("temporary", path) for path in _half_done(self.store)]
        rubbish += [_rubbish_at("diffs", path) for path in _diffs(self.store, stay)]
        rubbish += _codes(self.store)
        rubbish += _reruns(self.store)
        rubbish += _attempts(self.store, {path.name for path in stay}, self.ledger.starts(runs))
        if not self.sweeps.unreadable:
            rubbish += _data(self.store, data)
        for path in free:
            lock = None if path.is_symlink() else RunDir(path).lock
            item = _rubbish_at("runs", path, lock)
            rubbish.append(replace(item, plan=given_up.get(path.name, "")))
        return rubbish

    @property
    def linked_folders(self) -> list[Path]:
        """Folders of the store that are links. They are left alone, with everything behind
        them."""
        store = self.store
        folders = (
            *(store.runs, store.attempts, store.cache),
            *(store.trash, store.reruns, store.diffs, store.code),
        )
        return [path for path in folders if path.is_symlink()]

    @property
    def foreign_files(self) -> list[Path]:
        """Files that ablate didn't write in the folders of runs that no plan contains. They
        stay."""
        runs = _planned_runs(self.sweeps)
        foreign = []
        for path in _entries(self.store.runs):
            if re.fullmatch(ID, path.name) and path.name not in runs:
                foreign += [path / name for name in RunDir(path).foreign()]
        return foreign

    def summary(self) -> Iterator[str]:
        """Yield one line for each kind of rubbish and each earlier plan: size, number and first
        names."""
        from rich.filesize import decimal

        groups: dict[str, list[Rubbish]] = {words: [] for words in WORDS.values()}
        for item in self.rubbish:
            group = WORDS[item.kind]
            if item.plan:
                group = f"runs of {item.plan}, which --replace gave up"
            groups.setdefault(group, []).append(item)
        for words, items in groups.items():
            if items:
                names = ", ".join(item.path.name for item in items[:MOST_SHOWN])
                suffix = ", ..." if len(items) > MOST_SHOWN else ""
                size = decimal(sum(item.bytes for item in items))
                yield f"{size:>10}  {len(items):,} {words}: {names}{suffix}"

    def remove(self) -> int:
        """Remove the rubbish and forget the sweeps; return the number of bytes freed.

        What needs no note in the ledger is removed first, and the removal of runs is recorded once
        they are gone. So there is room to write on a disk that was full, and a crash before the
        note does no harm.
        """
        # A stream may have begun to use a copy of code while the user was asked.
        unused_codes = {item.path for item in _codes(self.store)}
        freed = remove_rubbish(
            self.store,
            [
                item
                for item in self.rubbish
                if item.kind != "runs" and (item.kind != "code" or item.path in unused_codes)
            ],
        )
        for name in self.forget:
            # The plan last: without it the ledger's sweep is one that lost its plan.
            self.ledger.forget(name)
            self.store.plan_path(name).unlink(missing_ok=True)
            sync_folder(self.store.plan_path(name).parent)
        freed += remove_rubbish(self.store, [item for item in self.rubbish if item.kind == "runs"])
        planned = _planned_runs(self.sweeps)
        for run, state in self.ledger.states().items():
            if run in planned or state == RunState():
                continue
            if not self.store.rundir(run).path.exists():
                self.ledger.record(run, "collected")
        return freed


def _data_of(folder: RunDir) -> set[str]:
    """Return the fingerprints of the datasets of a run, an empty set where its folder doesn't
    say."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        return _fingerprints(RunSpec.of(folder.read_spec()))
    return set()


def _fingerprints(spec: RunSpec) -> set[str]:
    """Return the fingerprints of all datasets that a run with this spec and its parent runs
    read."""
    specs = (spec, *spec.ancestors())
    return {str(data["fingerprint"]) for run_spec in specs for data in run_spec.datasets}


def _temporary(store: Store, folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the temporary files that `write_whole` left because its process died before the rename.

    Young files and those of living processes are left out. `folders`: the run folders to search.
    """
    searched = [store.root.resolve(), store.root / "sweeps", store.diffs, store.cache]
    searched += [path for path in _entries(store.cache) if path.is_dir()]
    if not store.runs.is_symlink():
        searched += folders
    for path in [entry for folder in searched for entry in _entries(folder)]:
        match = re.fullmatch(r"\..+\.(\d+)\.\d+", path.name)
        if match and not Path(f"/proc/{match[1]}").exists() and not _is_young(path):
            yield path


def _half_done(store: Store) -> Iterator[Path]:
    """Yield what a killed driver or `merge` was about to rename or remove.

    That includes the folders of pilots that never wrote a beat. Young files and folders are left
    out.
    """
    for path in (*_entries(store.runs), *_links(store.runs)):
        if re.fullmatch(rf"\.{ID}\.(home|link|merge)", path.name) and not _is_young(path):
            yield path
    for path in _entries(store.pilots):
        silent = path.is_dir() and path.name != JOBS and not (path / "beat.json").exists()
        if (silent or path.name.endswith(".gone")) and not _is_young(path):
            yield path


def _diffs(store: Store, folders: Iterable[Path]) -> list[Path]:
    diffs = [path for path in _entries(store.diffs) if re.fullmatch(rf"{ID}\.diff", path.name)]
    if not diffs:
        return []
    used: set[str] = set()
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            used.update(re.findall(rf"{ID}\.diff", RunDir(folder).env.read_text(errors="replace")))
    return [path for path in diffs if path.name not in used and not _is_young(path)]


def _codes(store: Store) -> Iterator[Rubbish]:
    """Yield the copies of code that no stream may train again. Raises Failure where the file of a
    stream was edited: nobody knows then what it needs."""
    used = {code.copy for file in StreamFile.of_store(store) for code in file.record().needed_codes}
    for path in _entries(store.code):
        is_copy = re.fullmatch(rf"{ID}|\.{ID}\.\d+", path.name)
        if is_copy and path.name not in used and not _is_young(path):
            yield _rubbish_at("code", path)


def _reruns(store: Store) -> list[Rubbish]:
    if store.rerunning.is_held():
        return []
    reruns = []
    for path in _entries(store.reruns):
        if not re.fullmatch(ID, path.name):
            continue
        folder = RunDir(path)
        if not store.liveness.alive(folder) and not folder.foreign():
            reruns.append(_rubbish_at("reruns", path, folder.lock))
    return reruns


def _attempts(
    store: Store, stay: Collection[str], starts: Mapping[str, tuple[int, int | None]]
) -> Iterator[Rubbish]:
    """Yield the folders of attempts on other hosts from which no run continues.

    `starts`: the ledger's (number of starts, last attempt) of each planned run. The ledger names
    the attempt that counts before the link to it exists, and also where a dead driver left no link.
    """
    recorded_attempts = {f"{number}/{run}" for run, (_, number) in starts.items()}
    for folder in _entries(store.attempts):
        for path in _entries(folder):
            attempt = f"{folder.name}/{path.name}"
            linked = path.name in stay and RunDir(store.runs / path.name).attempt == attempt
            if linked or attempt in recorded_attempts:
                continue
            ours = re.fullmatch(r"\d+", folder.name) and re.fullmatch(ID, path.name)
            used = RunDir(path).foreign() or store.liveness.alive(RunDir(path))
            if ours and not used and not _is_young(path):
                yield _rubbish_at("attempts", path, RunDir(path).lock)


def _data(store: Store, used: Collection[str]) -> Iterator[Rubbish]:
    """Yield the cached files of datasets that are not `used` and that nobody has locked.

    All files of a dataset begin with its fingerprint. Its lock file stays: somebody may wait for
    it.
    """
    for path in _entries(store.cache):
        match = re.fullmatch(rf"\.?({ID})(?!\.lock$)(\..+)?", path.name)
        if match and match[1] not in used:
            lock = Lock(store.cache / f"{match[1]}.lock")
            if not lock.is_held():
                yield _rubbish_at("data", path, lock)


@dataclass(frozen=True)
class RemovableRun:
    """A run that the user wants to remove, and its folder."""

    store: Store
    ledger: Ledger
    run: str
    folder: Rubbish

    @staticmethod
    def of(store: Store, ledger: Ledger, run: str, label: str) -> RemovableRun:
        """Return a run that may be removed. `label`: the name of the run in errors.

        Raises UserError where the run is skipped or being trained, has no folder, is behind a link,
        or has files that ablate didn't write.
        """
        path = store.rundir(run).path
        state = ledger.states([run]).get(run, RunState())
        if state.status == "skipped":
            raise UserError(f"{label}: is skipped; --undo comes before --delete")
        if not path.is_dir():
            raise UserError(f"{label}: has no folder at {path}")
        if path.is_symlink() or store.runs.is_symlink():
            raise UserError(f"{label}: {path} is behind a link, whose target stays as it is")
        if store.liveness.alive(store.rundir(run)):
            raise UserError(f"{label}: is being trained; `{store.command('stop')}` stops it")
        foreign = store.rundir(run).foreign()
        if foreign:
            raise UserError(f"{label}: {path / foreign[0]}: ablate did not write it; move it away")
        folder = _rubbish_at("runs", path, store.rundir(run).lock)
        return RemovableRun(store, ledger, run, folder)

    def remove(self) -> None:
        """Remove the run, then record that. A crash between the two does no harm.

        Raises TryAgain if the run is in use by now.
        """
        remove_rubbish(self.store, [self.folder])
        if self.folder.path.exists():
            raise TryAgain(f"{self.folder.path}: is in use by now, so it stays")
        if self.run in self.ledger.states([self.run]):
            self.ledger.record(self.run, "collected", by="the user")


def remove_rubbish(store: Store, items: Iterable[Rubbish]) -> int:
    """Remove the items that nobody uses by now; return the number of bytes freed.

    Raises Failure where the trash is a link.
    """
    freed = 0
    if store.trash.is_symlink():
        raise Failure(f"{store.trash}: is a link, so no file can be moved there; remove the link")
    _empty(store)
    make_folder(store.trash)
    places = (store.trash / str(number) for number in itertools.count())
    free = (place for place in places if not os.path.lexists(place))
    for item in items:
        if item.kind == "trash" or _move(item, next(free)):
            freed += item.bytes
    _empty(store)
    with contextlib.suppress(OSError):  # what somebody else put there stays
        store.trash.rmdir()
    return freed


def _trash_entries(store: Store) -> list[Path]:
    """List what an earlier gc left in the trash: entries that are named by a number."""
    return [path for path in _entries(store.trash) if re.fullmatch(r"\d+", path.name)]


def _empty(store: Store) -> None:
    for path in _trash_entries(store):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _move(item: Rubbish, place: Path) -> bool:
    """Move an item into the trash by one rename; return False if somebody uses it by now."""
    with contextlib.ExitStack() as stack:
        if item.lock is not None:
            if not item.lock.acquire():
                return False
            stack.callback(item.lock.release)
        try:
            item.path.rename(place)
        except OSError as error:
            if error.errno != errno.EXDEV or item.kind != "data":
                raise
            # cache/ is on another disk. A set counts only while all of it is there.
            if item.path.is_dir():
                shutil.rmtree(item.path)
            else:
                item.path.unlink()
    return True


def _rubbish_at(kind: Kind, path: Path, lock: Lock | None = None) -> Rubbish:
    files = [path]
    if not path.is_symlink():
        for folder, _, names in os.walk(path):
            files += [Path(folder, name) for name in names]
    return Rubbish(kind, path, sum(file.lstat().st_size for file in files), lock)


def _entries(folder: Path) -> list[Path]:
    """List the entries of a folder, sorted, without links; [] where it is missing or itself a
    link."""
    if folder.is_symlink():
        return []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(path for path in folder.iterdir() if not path.is_symlink())
    return []


def _links(folder: Path) -> list[Path]:
    """List the links in a folder, sorted; [] where the folder is missing or itself a link."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_symlink())


def _is_young(path: Path) -> bool:
    return time.time() - path.lstat().st_mtime < YOUNG_S
