"""Lean bundles: small enough for a repository, with the runs' files thinned and packed into one.

A run's file WHOLE_HASHES has the hashes of the files before they were thinned, by name; so has its
result.

Used by `ablate export --lean` (audit/export.py), and where such a bundle is read (audit/bundle.py)
and checked (audit/bundle_check.py). What is kept of a file is declared with the task or probe, as
the `excerpt` in run/metrics/.
"""

from __future__ import annotations

import io
import lzma
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from ablate.analysis import own_metrics
from ablate.planning import Plan, PlannedRun
from ablate.run import (
    PROBE_METRICS,
    Excerpt,
    RunDir,
    TaskChoice,
)
from ablate.shared import (
    DISK_FULL_ERRORS,
    Failure,
    read_file,
    sha256_of,
    to_json,
)

PACKED = "runs.tar.xz"
FOLDERS = ("specs", "predictions")  # that are packed
WHOLE_HASHES = "whole.json"

MOST_RATIO = 500  # of unpacked to packed bytes; studies have 8 to 13, and zeros 7,000
MOST_SLACK = 16 << 20  # bytes that an archive may have beyond that
MOST_FILES = 200_000
MOST_AT_ONCE = 1 << 20  # bytes: a header is as large as a path
UNREADABLE = (OSError, ValueError, EOFError, RecursionError)  # next to errors of tarfile and lzma
MEMBER = re.compile(r"(specs/\w+|predictions)/[^/.][^/]*")
Take = Callable[[Any], Any]  # an excerpt of what numpy loads from a file


def thin(plan: Plan, rundir: Callable[[str], RunDir]) -> None:
    """Thin the files of a bundle's runs.

    Trials, and runs from which others start, appear in no table, so they keep neither predictions
    nor probes. No run keeps a log.
    """
    import numpy as np

    table_runs = {run for cell in plan.cells for run in cell.ids.values()}
    for run in {run.id: run for run in plan.runs()}.values():
        folder, hashes = rundir(run.id), dict[str, str | None]()
        for path, take in _large(plan, run, folder):
            stays = run.id in table_runs and path != folder.log
            hashes[path.name] = whole_hash = folder.whole_hash(path)
            if not path.exists() or (stays and (take is None or whole_hash is not None)):
                continue
            hashes[path.name] = whole_hash or sha256_of(path)
            excerpt = take(np.load(io.BytesIO(read_file(path)))) if stays and take else None
            path.unlink()
            if excerpt is not None:
                with open(path, "wb") as file:
                    np.savez(file, **excerpt) if path.suffix == ".npz" else np.save(file, excerpt)
        note_thinned(folder, hashes)


def note_thinned(folder: RunDir, hashes: Mapping[str, str | None]) -> None:
    """Write WHOLE_HASHES for a run of a bundle: hashes by the name of the file, None for a file
    that is whole."""
    content = {name: sha256 for name, sha256 in hashes.items() if sha256 is not None}
    (folder.path / WHOLE_HASHES).write_bytes(to_json(content))


def thinned_hashes(folder: RunDir, files: Mapping[str, Path]) -> dict[str, dict[str, str | None]]:
    """Return what the `thinned.json` of a run in a store has: by name, the sha256 that a thinned
    file had (`whole`) and the one that it has now (`kept`; None: there is no file).

    `files`: those of the run of which a result has hashes, by their names in a store. Files that
    are whole are left out.
    """
    hashes: dict[str, dict[str, str | None]] = {}
    for name, file in files.items():
        whole_hash = folder.whole_hash(file)
        if whole_hash is None:
            continue
        kept_hash = None
        if file.exists():
            kept_hash = sha256_of(file)
        hashes[name] = {"whole": whole_hash, "kept": kept_hash}
    return hashes


def _large(plan: Plan, run: PlannedRun, folder: RunDir) -> Iterator[tuple[Path, Take | None]]:
    """Yield each file of a run that may be large, with the function that takes an excerpt of it.

    None stands for the function where the file is not excerpted.
    """
    excerpt = excerpt_of(plan, run.spec.task)
    for name in ("", *(dataset["name"] for dataset in run.spec.also)):
        path = folder.predictions_on(name) if name else folder.predictions
        yield path, excerpt.take if excerpt is not None else None
    for probe in run.spec.probes:
        yield folder.probe(probe), PROBE_METRICS[probe].excerpt if probe in PROBE_METRICS else None
    yield folder.log, None


def excerpt_of(plan: Plan, task: TaskChoice) -> Excerpt | None:
    """Return the excerpt of predictions that the plan's lean bundle keeps; None means all of them.

    All are kept where the plan's metric is a share that can't be computed from the excerpt, since a
    table judged by images may need more.
    """
    excerpt, metric = task.excerpt, plan.metric
    lacks = excerpt is not None and metric.is_share and metric.key not in excerpt.metrics
    return None if lacks else excerpt


def note(plan: Plan) -> str:
    """Return a line on what can't be recomputed from the plan's lean bundle."""
    excerpt = excerpt_of(plan, plan.task)
    lost = [m.name for m in plan.task.metrics if excerpt and m.key not in excerpt.metrics]
    names = ", ".join([*lost, *own_metrics(plan), "test results of trials"])
    return (
        f"lean: {names}, and the hashes of files that were thinned, can't be recomputed: they are "
        f"as the export read and checked them"
    )


def pack(root: Path) -> None:
    """Pack FOLDERS of a bundle into PACKED, always to the same bytes.

    Files of one kind are adjacent, since they are alike and so compress well.
    """
    paths = [path for name in FOLDERS for path in (root / name).rglob("*") if path.is_file()]
    names = [path.relative_to(root) for path in paths]
    names.sort(key=lambda name: (name.parts[0], name.name, name))
    with (
        lzma.open(root / PACKED, "wb", preset=9 | lzma.PRESET_EXTREME) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name in names:
            member = tarfile.TarInfo(name.as_posix())
            member.size = (root / name).stat().st_size
            with open(root / name, "rb") as file:
                archive.addfile(member, file)
    for folder in FOLDERS:
        shutil.rmtree(root / folder)


def unpack(root: Path, folder: Path) -> None:
    """Unpack PACKED into a folder. Raises Failure for a file that `pack` did not write.

    A stranger may have sealed the bundle, so nothing is read that is larger than `pack` could make
    it.
    """
    path = root / PACKED
    try:
        with lzma.open(path, "rb") as packed:
            byte_limit = MOST_SLACK + MOST_RATIO * path.stat().st_size
            source = cast(BinaryIO, _BoundedReader(packed, byte_limit))
            with tarfile.open(fileobj=source, mode="r:") as archive:
                for number, member in enumerate(archive):
                    if number >= MOST_FILES:
                        raise ValueError(f"it has more than {MOST_FILES:,} files")
                    _unpack_member(archive, member, folder, path)
    except (*UNREADABLE, tarfile.TarError, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS:  # of the temporary disk
            raise
        raise Failure(
            f"{path}: is cut, or was not written by `ablate export` ({error!s:.80}); get the "
            f"bundle again"
        ) from error


def _unpack_member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, path: Path
) -> None:
    plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.sparse is None
    if not (MEMBER.fullmatch(member.name) and plain and member.size >= 0):
        raise Failure(f"{path}: {member.name!r:.80}: is no file of a run")
    content = archive.extractfile(member)
    assert content is not None  # of a regular file
    (folder / member.name).parent.mkdir(parents=True, exist_ok=True)
    with open(folder / member.name, "wb") as file:
        shutil.copyfileobj(content, file, MOST_AT_ONCE // 2)
        if file.tell() != member.size:
            raise Failure(f"{path}: {member.name}: is cut; get the bundle again")


class _BoundedReader:
    """A stream that can be read up to a number of bytes, in parts no larger than those of `pack`.

    The header of a forged archive decides how much tarfile requests at once.
    """

    def __init__(self, stream: lzma.LZMAFile, limit: int) -> None:
        self._stream, self._limit = stream, limit

    def read(self, size: int) -> bytes:
        """Read a part. Raises ValueError for a part that is too large."""
        if not 0 <= size <= MOST_AT_ONCE:
            raise ValueError(f"a part of it has {size:,} bytes")
        self._check(self._stream.tell() + size)
        return self._stream.read(size)

    def seek(self, place: int) -> int:
        self._check(place)
        return self._stream.seek(place)

    def tell(self) -> int:
        return self._stream.tell()

    def _check(self, place: int) -> None:
        if place > self._limit:
            raise ValueError(f"it unpacks to more than {self._limit:,} bytes")
