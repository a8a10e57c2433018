"""The folders of attempts on other hosts: `attempts/N/ID`, one for each attempt.

Such an attempt may be given up for dead and still write. So `runs/ID` is a link to the folder of
the attempt that the ledger named last: to give an attempt up, the driver points the link to another
folder, and nothing reads what the old attempt writes later. Once the named attempt has left a
result, its folder becomes `runs/ID` by one rename. Only the driver does any of this, most of it by
`board.Folders`. What an attempt notes of itself is in `env.json`, which is carried along.

Used by `ablate sweep` on a cluster (running/driver.py and running/board.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path

from ablate.run import (
    ATTEMPTS_FOLDER,
    RunDir,
    RunSpec,
)
from ablate.shared import (
    make_folder,
    read_file,
    sync_folder,
    write_whole,
)
from ablate.store import StoreFolder

_APPENDED = ("metrics.jsonl", "log.txt")  # all others are written whole, so a link to them is safe
_NOT_CARRIED = ("lock", "result.json", "stop.json")  # of this attempt alone


def attempt_folder(store: StoreFolder, run: str, number: int) -> RunDir:
    return RunDir(store.attempts / str(number) / run)


def fork(store: StoreFolder, run: str, at_least: int) -> tuple[RunDir, int]:
    """Make a folder for a new attempt of a run, which continues from what the run has so far.
    Returns the folder and its number, which no other attempt of the run has had."""
    number = max(at_least, 1)
    if store.attempts.is_dir():
        for name in os.listdir(store.attempts):
            if name.isdecimal() and (store.attempts / name / run).exists():
                number = max(number, 1 + int(name))
    folder = attempt_folder(store, run, number)
    make_folder(folder.path)
    try:
        _carry(store.rundir(run), folder)
    except BaseException:  # a full disk: the next attempt gets a folder of its own
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return folder, number


def appoint(store: StoreFolder, run: str, number: int) -> None:
    """Make `runs/ID` a link to attempt `number`, which the ledger names already. Do nothing where
    it is that link. Where a `publish` crashed before its rename, the link is missing: it is made
    again, and the attempt can be published."""
    link, target = store.rundir(run).path, attempt_folder(store, run, number)
    if store.rundir(run).attempt == target.attempt or not target.path.exists():
        return
    if link.is_dir() and not link.is_symlink():  # trained here so far, and carried along
        original = attempt_folder(store, run, 0).path
        make_folder(original.parent)
        shutil.rmtree(original, ignore_errors=True)
        os.rename(link, original)
    make_folder(link.parent)
    new = link.with_name(f".{run}.link")
    new.unlink(missing_ok=True)
    os.symlink(os.path.join("..", ATTEMPTS_FOLDER, str(number), run), new)
    os.replace(new, link)
    sync_folder(link.parent)


def publish(store: StoreFolder, run: str) -> None:
    """Rename the folder of the attempt that the ledger names to `runs/ID`. The attempt has
    ended."""
    link = store.rundir(run)
    if link.attempt is None:
        return
    target = store.root / ATTEMPTS_FOLDER / link.attempt
    link.path.unlink()
    os.rename(target, link.path)
    sync_folder(link.path.parent)
    with contextlib.suppress(OSError):  # others have attempts of that number
        target.parent.rmdir()


def bring_home(store: StoreFolder, run: str) -> None:
    """Let the run continue in `runs/ID` itself, from a copy of what its attempt elsewhere has left:
    nobody can know here whether that attempt still writes."""
    link = store.rundir(run)
    if link.attempt is None:
        return
    new = RunDir(link.path.with_name(f".{run}.home"))
    shutil.rmtree(new.path, ignore_errors=True)
    make_folder(new.path)
    _carry(link, new)
    link.path.unlink()
    os.rename(new.path, link.path)
    sync_folder(link.path.parent)


def forget(store: StoreFolder, attempt: str | None) -> None:
    """Remove the folder of an attempt that has surely ended, once another has continued from it."""
    if attempt is not None:
        shutil.rmtree(store.root / ATTEMPTS_FOLDER / attempt, ignore_errors=True)


def _carry(old: RunDir, new: RunDir) -> None:
    """Copy or link everything that `old` has. Its worker may still write, and remove a checkpoint
    meanwhile."""
    names = os.listdir(old.path) if old.path.is_dir() else []
    folders = [name for name in names if (old.path / name).is_dir()]
    if _may_go_on_from_scratch(old):
        for name in folders:
            _copy_folder(old.path / name, new.path / name)
    for name in names:
        if name.startswith(".") or name in _NOT_CARRIED or name in folders:
            continue
        with contextlib.suppress(FileNotFoundError):
            if name not in _APPENDED:
                with contextlib.suppress(OSError):  # a file system without links
                    os.link(old.path / name, new.path / name)
                    continue
            write_whole(new.path / name, read_file(old.path / name))
    sync_folder(new.path)


def _may_go_on_from_scratch(run: RunDir) -> bool:
    """Return whether the run is a program's, which may go on from what it wrote: into `scratch`,
    and after a change of machine into `scratch.N`."""
    try:
        return RunSpec.of(run.read_spec()).is_command
    except ValueError:  # no whole run.json: the attempt never began
        return False


def _copy_folder(source: Path, target: Path) -> None:
    """Copy a folder that a program may still write to; what vanishes meanwhile is left out, and so
    is what is no file, folder or link. Raises OSError for what can't be copied: a part of it is
    not what a program may go on from."""
    faults: list[OSError] = []

    def copy(old: str, new: str) -> None:
        try:
            if stat.S_ISREG(os.lstat(old).st_mode):
                shutil.copy2(old, new)
        except FileNotFoundError:
            pass
        except OSError as error:  # copytree would keep its text alone
            faults.append(error)

    try:
        shutil.copytree(source, target, symlinks=True, copy_function=copy)
    except FileNotFoundError:
        return
    except shutil.Error as error:
        for old, _, reason in error.args[0]:
            if os.path.lexists(old):
                faults.append(OSError(errno.EIO, f"can't be copied: {reason}", old))
    if faults:
        raise faults[0]
