"""Checks the store: its disk, and whether ledger, plans and run folders agree. Changes nothing.

Every file is visited once and every result is read once, so the cost grows with the runs.

Used by `ablate doctor` (audit/doctor/__init__.py). What `doctor --repair` mends is in
store/repair.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

from ablate.audit.doctor.machine import Finding, Findings, size, some
from ablate.planning import Plan
from ablate.run import FINAL_STATUSES, META_FILE, decoded
from ablate.shared import (
    Failure,
    Lock,
    count_text,
    read_json,
    write_whole,
)
from ablate.store import (
    WRITES_AGAIN,
    Driver,
    Ledger,
    RunState,
    Store,
    connect_ledger,
    driver_of,
    journal_mode,
    other_ledger_error,
)
from ablate.version import FORMAT

States = Mapping[str, RunState]

# --- The disk -----------------------------------------------------------------------------------

LITTLE = 1e9  # bytes free: a checkpoint of a large model, and its temporary copy
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs"}


def disk(store: Store) -> Findings:
    """Check free space and file system, and try the operations that runs rely on. A store that does
    not exist yet is checked in the nearest folder that does."""
    place = next(p for p in (store.root, *store.root.absolute().parents) if p.exists())
    kind = filesystem(place, Path("/proc/self/mountinfo").read_text())
    if not place.is_dir():
        yield Finding("problem", "disk", f"{place} is not a folder; give --store DIR")
        return
    free = shutil.disk_usage(place).free
    text = f"{size(free)} free at {place}, file system {kind}"
    yield Finding("ok" if free >= LITTLE else "warning", "disk", text)
    if kind in NETWORK or kind.startswith("fuse"):
        yield Finding(
            "warning",
            "disk",
            f"{kind} is a network or FUSE file system: locks may fail silently, and two drivers or "
            f"workers may then write the same run; give --store DIR on a local disk",
        )
    if kind in ("tmpfs", "ramfs"):
        yield Finding("warning", "disk", f"{kind} is memory: a reboot deletes the store")
    if not os.access(place, os.W_OK):
        yield Finding("problem", "disk", f"{place} is not writable; give --store DIR")
        return
    failing = list(_failing(place))
    for failure in failing:
        yield Finding("problem", "disk", f"{failure} at {place}; give --store DIR on a local disk")
    if not failing:
        works = ", ".join(name for name, _ in TRIES)
        yield Finding("ok", "disk", f"all of these work: {works}")


def filesystem(place: Path, mounts: str) -> str:
    """Return the type of the file system at `place`. `mounts`: text of /proc/self/mountinfo."""
    kind, longest = "?", -1
    for line in mounts.splitlines():
        mount_part, _, type_part = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), mount_part.split()[4])
        if len(point) >= longest and place.resolve().is_relative_to(point):  # the last covers
            kind, longest = type_part.split()[0], len(point)
    return kind


def _flock(folder: Path) -> bool:
    lock, second_lock = Lock(folder / "lock"), Lock(folder / "lock")
    is_locked = lock.acquire() and second_lock.is_held()
    lock.release()
    return is_locked and not second_lock.is_held()


def _replace(folder: Path) -> bool:
    for content in (b"before", b"after"):
        write_whole(folder / "file", content)
    return [*folder.glob("*file*")] == [folder / "file"] and (
        folder / "file"
    ).read_bytes() == b"after"


def _allocate(folder: Path) -> bool:
    with open(folder / "room", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        return os.fstat(file.fileno()).st_size == 1 << 20


def _journal(folder: Path) -> bool:
    with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as db:
        expected_mode = journal_mode(folder)
        mode = db.execute(f"PRAGMA journal_mode = {expected_mode}").fetchone()[0]
        db.execute("CREATE TABLE tried (number INTEGER)")
        return bool(mode == expected_mode.lower())


TRIES: tuple[tuple[str, Callable[[Path], bool]], ...] = (
    ("flock", _flock),
    ("fsync and os.replace", _replace),
    ("posix_fallocate", _allocate),
    ("SQLite's journal", _journal),
)


def _failing(place: Path) -> Iterator[str]:
    """Try every operation in a new folder; yield a text for each that fails. Removes the folder."""
    folder = place / f".doctor.{os.getpid()}.0"
    folder.mkdir()
    try:
        for name, works in TRIES:
            try:
                if not works(folder):
                    yield f"{name} does not work"
            except (OSError, sqlite3.Error) as error:
                yield f"{name} fails ({error})"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- What is in it ------------------------------------------------------------------------------


def content(store: Store) -> Findings:
    """Check ledger, plans, run folders, locks and temporary files of a store that exists."""
    writable = os.access(store.root, os.W_OK)
    states = yield from _ledger(store, writable)
    yield from _plans(store)
    disk_use: Counter[str] = Counter()
    folders, leftovers = [], []
    for entry in _entries(store.root):
        inside = Path(entry.path).relative_to(store.root).parts
        if entry.is_dir(follow_symlinks=False):
            if len(inside) == 2 and inside[0] == "runs" and entry.name.isalnum():
                folders.append(entry.name)
        else:
            part = "ledger" if entry.name.startswith(store.ledger.name) else inside[0]
            with contextlib.suppress(FileNotFoundError):  # a sweep may be at work
                disk_use[part] += 512 * entry.stat(follow_symlinks=False).st_blocks
        if _is_leftover(entry.name):
            leftovers.append(str(Path(*inside)))
    yield Finding(
        "ok", "takes", ", ".join(f"{p} {size(disk_use[p])}" for p in ("runs", "cache", "ledger"))
    )
    driver = None
    if writable:  # or a lock can't be asked
        driver = driver_of(store)
        yield _locks(store, driver, folders)
    if states is not None:
        yield from _runs(store, states, driver is not None, folders)
    yield from _decoded(store)
    if leftovers:
        files = some(sorted(leftovers), "temporary file")
        yield Finding(
            "warning",
            "leftovers",
            f"{files} of dead processes; `{store.command('gc')}` removes them",
        )


def _ledger(store: Store, writable: bool) -> Generator[Finding, None, States | None]:
    """Check the ledger; return the state of every run, None where the ledger can't be read.

    The ledger is not repaired."""
    if not store.ledger.exists():
        lost = bool(store.plans())
        text = f"no {store.ledger.name}; the next `ablate sweep` makes it" + (
            " again" if lost else ""
        )
        yield Finding("warning" if lost else "ok", "ledger", text)
        return None
    mode = "rw" if writable else "ro&immutable=1"  # else SQLite would write files next to it
    command = store.command("doctor", "--repair")
    repair = f"`{command}` rebuilds it from the plans and run folders"
    try:
        with contextlib.closing(connect_ledger(store.ledger, mode)) as db:
            db.execute("PRAGMA query_only = ON")
            faults = [row[0] for row in db.execute("PRAGMA integrity_check(3)")]
            version = db.execute("SELECT version FROM meta").fetchone()[0]
            if type(version) is int and version != FORMAT:
                yield Finding("problem", "ledger", str(other_ledger_error(store.ledger, version)))
                return None
            sweeps = Ledger(db).sweeps()
            looks = Ledger(db).looks_text()
            edited = [*_edited(Ledger(db), store, sweeps)]
            is_changed = bool(Ledger(db).broken_seals()) or Ledger(db).lacks_its_end()
            states = Ledger(db).states()
    except sqlite3.Error as error:
        broken = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) in (
            sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_NOTADB,
            sqlite3.SQLITE_ERROR,  # no such table
        )
        hint = f"; {repair}" if broken else ""
        yield Finding("problem", "ledger", f"{store.ledger}: {error}{hint}")
        return None
    except TypeError:  # no version in it
        yield Finding("problem", "ledger", f"{store.ledger}: is not a whole ledger; {repair}")
        return None
    if faults != ["ok"]:
        messages = " ".join(" ".join(faults).split())
        yield Finding("problem", "ledger", f"{store.ledger}: integrity_check: {messages}; {repair}")
    elif is_changed:
        text = f"{store.ledger}: events were changed or removed; {repair}"
        yield Finding("problem", "ledger", text)
    else:
        text = f"format {version}, integrity_check ok, {count_text(len(sweeps), 'sweep')}"
        yield Finding("ok", "ledger", text)
        view = store.looks.read_bytes() if store.looks.exists() else b""
        if looks != view:
            text = f"{store.looks} differs from the ledger, which counts; the next look rewrites it"
            yield Finding("warning", "looks", text)
    for text in edited:
        yield Finding("problem", "plans", text)
    for name in sweeps:
        if not store.plan_path(name).exists():
            text = f"sweep {name}: its plan is lost; {WRITES_AGAIN}"
            yield Finding("problem", "plans", text)
    return states


def _edited(ledger: Ledger, store: Store, sweeps: list[str]) -> Iterator[str]:
    """Yield the error of each plan file that is whole, but differs from the sealed plan."""
    for name in sweeps:
        if _is_whole(store.plan_path(name)):
            try:
                ledger.sealed_plan(store, name)
            except Failure as error:
                yield str(error)


def _plans(store: Store) -> Findings:
    files = store.plans()
    torn = [path for path in files if not _is_whole(path)]
    for path in torn:
        yield Finding("problem", "plans", f"{path}: not whole; {WRITES_AGAIN}")
    if not torn:
        yield Finding("ok", "plans", f"{count_text(len(files), 'plan')}, each whole")


def _is_whole(path: Path) -> bool:
    try:
        Plan.from_tree(read_json(path)).checked()
    except ValueError:
        return False
    return True


def _decoded(store: Store) -> Findings:
    """Read every decoded dataset, and compare it with the hashes that were noted when written."""
    homes = sorted(path.parent for path in store.cache.glob(f"*/{META_FILE}"))
    sound = 0
    for home in homes:
        if home.name.startswith("."):
            continue  # of a builder
        wrong = decoded.damage(home)
        sound += wrong is None
        if wrong is not None:
            yield Finding(
                "problem",
                "data",
                f"{home}: {wrong}; the next `ablate sweep` with this dataset decodes it again",
            )
    if sound:
        yield Finding(
            "ok", "data", f"{count_text(sound, 'decoded dataset')}, unchanged since decoding"
        )


def _locks(store: Store, driver: Driver | None, folders: list[str]) -> Finding:
    """Report the living driver and workers: each holds a lock that dies with it."""
    worker_runs = [run for run in folders if store.liveness.alive(store.rundir(run))]
    workers = some(worker_runs, "worker") if worker_runs else "no worker"
    if driver is not None:
        pid = "?" if driver.pid is None else driver.pid
        return Finding("ok", "driver", f"process {pid} drives this store, {workers}")
    if worker_runs:
        text = (
            f"no driver, but {workers}; the same `ablate sweep` adopts the workers, "
            f"`{store.command('stop')}` stops them"
        )
        return Finding("warning", "driver", text)
    return Finding("ok", "driver", f"no driver, {workers}")


def _runs(store: Store, states: States, has_driver: bool, folders: list[str]) -> Findings:
    """Count runs by state, and report where the run folders and the ledger differ."""
    count = Counter(state.status for state in states.values())
    lost = [status for status in ("failed", "oom", "hung") if count[status]]
    text = f"{count_text(len(states), 'run')}: " + ", ".join(
        f"{n:,} {status}" for status, n in count.items()
    )
    if lost:
        text += (
            f"; `ablate status` shows why, `ablate sweep ... --retry {','.join(lost)}` trains them "
            f"again"
        )
    yield Finding("warning" if lost else "ok", "runs", text if states else "no run")

    missing, torn, unknown, differing = [], [], [], []
    for run, state in states.items():
        folder = store.rundir(run)
        result = folder.read_result()
        if result is None:
            if state.status in FINAL_STATUSES:
                missing.append(run)
            elif folder.has_result():
                torn.append(run)
        elif state.status not in FINAL_STATUSES:
            unknown.append(run)
        elif result["status"] != state.status:
            differing.append(run)
    if missing:
        text = f"{some(missing, 'run')} done in the ledger, but without a whole result"
        yield Finding("problem", "runs", f"{text}; {WRITES_AGAIN}")
    if torn:
        text = f"{some(torn, 'run')} with a torn result.json"
        yield Finding("problem", "runs", f"{text}; {WRITES_AGAIN}")
    if differing:
        text = f"{some(differing, 'run')} whose status in result.json and in the ledger differ"
        verify, repair = store.command("verify"), store.command("doctor", "--repair")
        text += f"; `{verify}` names edited files, `{repair}` mends the ledger"
        yield Finding("problem", "runs", text)
    if unknown and not has_driver:  # a driver is about to
        text = f"{some(unknown, 'run')} with a result that the ledger lacks"
        yield Finding("warning", "runs", f"{text}; the same `ablate sweep` or import records it")
    strangers = [run for run in folders if run not in states]
    if strangers:
        text = f"{some(strangers, 'run folder')} that no sweep of the ledger planned"
        yield Finding("warning", "runs", f"{text}; `{store.command('gc')}` lists them")


def _entries(top: Path) -> Iterator[os.DirEntry[str]]:
    """Yield every entry below a folder, without entries that vanish or can't be read."""
    with contextlib.suppress(FileNotFoundError, PermissionError), os.scandir(top) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path))


def _is_leftover(name: str) -> bool:
    """Return whether a name is a temporary one (see files.write_whole) whose process is dead."""
    parts = re.fullmatch(r"\..+\.(\d+)\.\d+", name)
    return parts is not None and not Path("/proc", parts[1]).exists()
