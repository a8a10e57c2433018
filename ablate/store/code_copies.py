"""Copies of the code of a stream, by content: `code/HASH/`, from which it is trained.

The folder that a user works in changes with every proposal, and the baseline is trained again
later. So every code of a stream is trained from its copy. Besides the files of the code, which are
copied, the copy has a link to everything else in that folder, such as data. What was not there when
it was made is linked later, unless it may be code of a later proposal.

Used by api/stream.py and audit/streams.py, and by store/gc.py, which removes copies that no stream
needs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import all_suffixes
from pathlib import Path, PurePosixPath
from typing import Any

from ablate.shared import (
    Failure,
    UserError,
    make_folder,
    read_file,
    read_json,
    sync_folder,
    to_json,
    write_whole,
)
from ablate.store.folder import StoreFolder

NEVER_LINKED = (".git", "__pycache__")
MANIFEST = ".ablate-code.json"  # hashes of its files, and what it has a link to


class CodeCopies:
    """The copies of a store."""

    def __init__(self, store: StoreFolder) -> None:
        self.root = store.code
        self._store = store.root

    def keep(self, files: Mapping[str, bytes], origin: Path, read_from: Path | None = None) -> str:
        """Keep files of the folder `origin`, by their paths there; return the name of the copy. A
        copy that is there already stays, and is young again, so that `gc` leaves it. What may be
        executed in `read_from`, where the files were read (None: `origin`), may be in the copy.
        Raises Failure for a path that leads out of it, and where it can't be written."""
        hashes = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
        _check_within(hashes)
        name = _name_of(hashes)
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.root / name)
            if (self.root / name / MANIFEST).exists():
                _let_execute(self.root / name, files, read_from or origin)
                return name
        folder = self.root / f".{name}.{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        make_folder(folder)
        for path, content in files.items():
            make_folder((folder / path).parent)
            write_whole(folder / path, content)
        _let_execute(folder, files, read_from or origin)
        manifest = {"files": hashes, "links": sorted(self._other_places(files, origin))}
        write_whole(folder / MANIFEST, to_json(manifest))
        try:
            folder.rename(self.root / name)
        except OSError as error:
            if not (self.root / name / MANIFEST).exists():  # else another process has made it
                raise Failure(
                    f"{self.root / name}: {error.strerror}, so the code can't be kept; move that "
                    f"folder away"
                ) from error
        shutil.rmtree(folder, ignore_errors=True)
        sync_folder(self.root)
        return name

    def files(self, name: str) -> dict[str, bytes]:
        """Return the files of a copy, by path. Raises Failure where one is missing or was
        edited."""
        folder = self.root / name
        hashes = self._manifest(name)["files"]
        contents = {}
        for path in hashes:
            try:
                contents[path] = read_file(folder / path)
            except OSError as error:
                raise Failure(
                    f"{folder / path}: {error.strerror}: a file of a kept code"
                ) from error
            if hashlib.sha256(contents[path]).hexdigest() != hashes[path]:
                raise Failure(f"{folder / path}: was edited; the kept file had other bytes")
        return contents

    def prepare(self, name: str, origin: Path) -> Path:
        """Return the folder of a copy, ready for training: whole, and with a link to everything
        else in the folder `origin`. Raises Failure as `files` does."""
        self.files(name)
        folder = self.root.resolve() / name
        manifest = self._manifest(name)
        for path in {*manifest["links"], *self._later_places(manifest, origin)}:
            make_folder((folder / path).parent)
            _link(folder / path, origin / path)
        return folder

    def restore(self, name: str, folder: Path) -> list[str]:
        """Write the files of a copy into a folder, over what is there; return their paths. A file
        that has these bytes stays as it is, also a link. Raises UserError for a folder within the
        store."""
        if folder.resolve().is_relative_to(self._store.resolve()):
            raise UserError(f"{folder}: lies in the store; name the folder that you work in")
        contents = self.files(name)
        for path, content in contents.items():
            place = folder / path
            if not place.is_file() or read_file(place) != content:
                make_folder(place.parent)
                write_whole(place, content)
        _let_execute(folder, contents, self.root / name)
        return sorted(contents)

    def edited(self, name: str, folder: Path, kept_names: Iterable[str]) -> list[str]:
        """List the paths of a copy whose files in a folder have other bytes than in each of the
        copies `kept_names` that can be read: `restore` would overwrite what nobody else has."""
        kept_hashes = [*self._readable_hashes(kept_names)]
        return [
            path
            for path in self._manifest(name)["files"]
            if (folder / path).is_file()
            and hashlib.sha256(read_file(folder / path)).hexdigest()
            not in [hashes.get(path) for hashes in kept_hashes]
        ]

    def added(self, name: str, old_name: str) -> list[str]:
        """List the files of a copy that are none of an older copy's, nor lay next to those then:
        `restore` of the older one leaves them. None where a copy is gone or damaged."""
        try:
            manifest, old_manifest = self._manifest(name), self._manifest(old_name)
        except Failure:
            return []
        old_places = {*old_manifest["files"], *old_manifest["links"]}
        return [
            path
            for path in sorted(manifest["files"])
            if old_places.isdisjoint([path, *map(str, PurePosixPath(path).parents)])
        ]

    def names(self) -> list[str]:
        """List the copies."""
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if (path / MANIFEST).exists())

    def _manifest(self, name: str) -> dict[str, Any]:
        match read_json(self.root / name / MANIFEST):
            case {"files": dict(hashes), "links": list(links)} as manifest:
                _check_within([*hashes, *links])
                if _name_of(hashes) == name:
                    return dict(manifest)
        raise Failure(f"{self.root / name}: is no whole copy of code")

    def _later_places(self, manifest: Mapping[str, Any], origin: Path) -> list[str]:
        """List the paths in a folder of what came into it after the copy with this manifest, and
        can't be code of a later proposal, which would change what this one does: no copy has it,
        and Python can't import it."""
        later = {*self._other_places(manifest["files"], origin)} - {*manifest["links"]}
        if not later:
            return []
        for hashes in self._readable_hashes(self.names()):
            for path in hashes:
                later -= {path, *map(str, PurePosixPath(path).parents)}
        return [path for path in later if not _is_importable(origin / path)]

    def _readable_hashes(self, names: Iterable[str]) -> Iterator[Mapping[str, str]]:
        """Yield the hashes of the files of copies, but for those whose manifest is damaged."""
        for name in names:
            with contextlib.suppress(Failure):
                yield self._manifest(name)["files"]

    def _other_places(self, files: Iterable[str], origin: Path) -> Iterator[str]:
        """Yield the paths in a folder of what is no file of the code: of folders that hold code,
        what lies in them. A link that leads nowhere, or in circles, is left out."""
        paths = {PurePosixPath(path) for path in files}
        folders = {parent for path in paths for parent in path.parents} or {PurePosixPath()}
        for folder in folders:
            for place in (origin / folder).iterdir() if (origin / folder).is_dir() else ():
                path = folder / place.name
                is_other = path not in paths and path not in folders
                if not is_other or place.name in NEVER_LINKED or not os.path.exists(place):
                    continue
                if place.resolve() != self._store.resolve():
                    yield str(path)


def _name_of(hashes: Mapping[str, str]) -> str:
    """Return the name of a copy, a hash of the hashes of its files by their paths."""
    text = json.dumps(hashes, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_importable(place: Path) -> bool:
    """Return whether Python could import a file, or a file right in a folder."""
    files = os.listdir(place) if place.is_dir() else [place.name]
    return any(file.endswith(tuple(all_suffixes())) for file in files)


def _link(link: Path, target: Path) -> None:
    """Make a link, also in place of one that leads nowhere; whatever else is there stays."""
    if os.path.lexists(link) and not (link.is_symlink() and not link.exists()):
        return
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)  # another process may make the same


def _let_execute(folder: Path, paths: Iterable[str], source: Path) -> None:
    """Let those execute the files at these paths in a folder who may execute those in `source`."""
    for path in paths:
        if (source / path).is_file():
            mode = stat.S_IMODE((folder / path).stat().st_mode)
            allowed_mode = mode | (source / path).stat().st_mode & 0o111
            if allowed_mode != mode:
                (folder / path).chmod(allowed_mode)


def _check_within(paths: Iterable[str]) -> None:
    """Raise Failure for a path that leads out of the folder of a copy: a store of others may hold
    any text."""
    for path in paths:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise Failure(f"{path}: leads out of a copy of code; no stream has written that")
