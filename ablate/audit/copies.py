"""Copies of files and folders of a run: whole when they are in their place, or not there.

Used by `ablate merge` (audit/merge.py) and by `ablate import` (audit/importing.py);
`naming_full_disk` also by `ablate export` (audit/export.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from ablate.run import RunDir
from ablate.shared import DISK_FULL_ERRORS, Failure, TryAgain, open_file, sync_folder
from ablate.store import Rubbish, Store, remove_rubbish


@contextlib.contextmanager
def naming_full_disk(place: Path) -> Iterator[None]:
    """Let the error of a full disk name the place that is written to. By itself it names the file
    that was copied, which may lie on another disk, or none."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRORS:
            error.filename = str(place)
        raise


@contextlib.contextmanager
def whole_folder(store: Store, run: str) -> Iterator[RunDir]:
    """Make a new folder for a run under another name; at the end, move it to the run's place.

    A kill leaves a folder that the same command, or `gc`, removes.
    """
    place = store.rundir(run).path
    if not place.is_symlink() and (foreign := RunDir(place).foreign()):
        raise Failure(f"{place}: has {foreign[0]}, which ablate did not write; move it away")
    new_folder = RunDir(place.with_name(f".{run}.merge"))
    shutil.rmtree(new_folder.path, ignore_errors=True)
    new_folder.path.mkdir()
    try:
        yield new_folder
        if place.is_symlink():  # to an attempt that ended without a result: `gc` removes it
            place.unlink()
        elif place.exists():
            remove_rubbish(store, [Rubbish("runs", place, 0, RunDir(place).lock)])
        new_folder.path.rename(place)
    except BaseException:
        shutil.rmtree(new_folder.path, ignore_errors=True)
        raise


def copy_whole(source: Path, target: Path, sha256: str | None) -> None:
    """Copy a file as `copy_file` does, under another name, and rename it when it is whole."""
    part = target.with_name(f".{target.name}.{os.getpid()}.0")
    copy_file(source, part, sha256)
    os.replace(part, target)
    sync_folder(target.parent)


def copy_file(source: Path, target: Path, sha256: str | None) -> None:
    """Copy a file; it is on the disk when this returns.

    Raises Failure where its content is not what was checked.
    """
    hashed = hashlib.sha256()
    with open_file(source) as content, open(target, "wb") as file:
        while part := content.read(1 << 20):
            hashed.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    if sha256 not in (None, hashed.hexdigest()):
        raise TryAgain(f"{source}: was changed while it was copied; the same command goes on")


def copy_scratch(source: RunDir, target: RunDir) -> None:
    """Copy the folders that a trainer of the user's own wrote to, which have no hashes. What is no
    file, folder or link, such as a socket, is left out."""
    for folder in sorted(source.path.glob(f"{source.scratch.name}*")):
        if folder.is_dir() and not folder.is_symlink():
            copy = target.path / folder.name
            shutil.copytree(
                folder, copy, symlinks=True, ignore=_special_files, copy_function=_copy_with_mode
            )


def _copy_with_mode(source: str, target: str) -> None:
    copy_file(Path(source), Path(target), None)
    shutil.copystat(source, target)


def _special_files(folder: str, names: list[str]) -> list[str]:
    kinds = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    plain = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    return [name for name, mode in kinds.items() if not any(is_kind(mode) for is_kind in plain)]
