"""What a disk keeps when the power fails: of a file the bytes at its last fsync, of a folder the
names at its own. A kill alone shows nothing of it, since the kernel still writes what it was
given."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ablate.run.rundir import Metrics
from ablate.running import attempts
from ablate.shared.files import make_folder, write_whole
from ablate.store.folder import StoreFolder

RUN = "a" * 16


class Disk:
    """A disk that promises no more than POSIX does. `folder` and what it holds are on it from the
    start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents: dict[int, bytes] = {}  # of files, by inode
        self._names: dict[int, dict[str, tuple[int, str | None]]] = {}  # of folders, by inode
        for place, _, files in os.walk(folder):
            self._keep(place)
            for name in files:
                self._keep(os.path.join(place, name))

    def sync(self, descriptor: int) -> None:
        self._keep(f"/proc/self/fd/{descriptor}")

    def _keep(self, path: str) -> None:
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):
            self._contents[status.st_ino] = Path(path).read_bytes()
            return
        self._names[status.st_ino] = {
            entry.name: (entry.inode(), os.readlink(entry.path) if entry.is_symlink() else None)
            for entry in os.scandir(path)
        }

    def after_the_cut(self, path: Path) -> bytes | None:
        """The bytes of a file, by the names and contents that were synced; None where a name on the
        way to it is lost."""
        place, inode = self._folder, self._folder.stat().st_ino
        for name in path.relative_to(self._folder).parts:
            inode, link = self._names.get(inode, {}).get(name, (None, None))
            if inode is None:
                return None
            if link is not None:
                rest = path.relative_to(place / name)
                return self.after_the_cut(Path(os.path.normpath(place / link)) / rest)
            place /= name
        return self._contents.get(inode)


@pytest.fixture
def disk(tmp_path, monkeypatch) -> Disk:
    """The disk of the test's folder, which sees every fsync."""
    disk, fsync = Disk(tmp_path), os.fsync

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        disk.sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    return disk


def test_a_disk_loses_what_is_not_synced(disk, tmp_path):
    """Or the tests below would show nothing."""
    file = tmp_path / "file"
    file.write_bytes(b"a")
    assert disk.after_the_cut(file) is None
    with open(file, "ab") as opened:
        os.fsync(opened.fileno())
    assert disk.after_the_cut(file) is None  # its name is nowhere
    descriptor = os.open(tmp_path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    assert disk.after_the_cut(file) == b"a"
    file.write_bytes(b"b")
    assert disk.after_the_cut(file) == b"a"


def test_a_whole_write_is_there_when_it_returns(disk, tmp_path):
    file = tmp_path / "result.json"
    for content in (b"first", b"second, longer"):
        write_whole(file, content)
        assert disk.after_the_cut(file) == content


def test_a_new_folder_is_there_with_all_above_it(disk, tmp_path):
    make_folder(tmp_path / "a" / "b" / "c")
    write_whole(tmp_path / "a" / "b" / "c" / "file", b"kept")
    assert disk.after_the_cut(tmp_path / "a" / "b" / "c" / "file") == b"kept"


def test_lines_of_metrics_are_there_when_they_are_synced(disk, tmp_path):
    metrics, path = Metrics(tmp_path / "metrics.jsonl"), tmp_path / "metrics.jsonl"
    metrics.append({"step": 1})
    assert disk.after_the_cut(path) == path.read_bytes() == b'{"step": 1}\n'
    metrics.append({"step": 2}, sync=False)
    assert disk.after_the_cut(path) == b'{"step": 1}\n'
    metrics.sync()
    assert disk.after_the_cut(path) == path.read_bytes()


def test_an_attempt_is_the_run_when_it_is_appointed_and_published(disk, tmp_path):
    store = StoreFolder(tmp_path / "store")
    folder, number = attempts.fork(store, RUN, 1)
    write_whole(folder.result, b"{}")
    attempts.appoint(store, RUN, number)
    result = store.rundir(RUN).result
    assert disk.after_the_cut(result) == b"{}"
    attempts.publish(store, RUN)
    assert not store.rundir(RUN).path.is_symlink()
    assert disk.after_the_cut(result) == b"{}"


def test_a_run_that_comes_home_has_what_its_attempt_had(disk, tmp_path):
    store = StoreFolder(tmp_path / "store")
    folder, number = attempts.fork(store, RUN, 1)
    write_whole(folder.result.with_name("step-1"), b"state")
    attempts.appoint(store, RUN, number)
    attempts.bring_home(store, RUN)
    assert disk.after_the_cut(store.rundir(RUN).path / "step-1") == b"state"
