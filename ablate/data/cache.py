"""Decoded once, shared by all runs: memory-mapped uint8 images under the data's fingerprint. Or, by
data.cache=encoded, the files' own bytes: looked through once, and decoded for each batch.

    <folder>/<fingerprint>/            appears whole, by one rename
        train.images.npy               uint8 (N, side, side, channels); side: cache_size, else size
        train.labels.npy               int64 (N,)
        train.aspects.npy              float32 (N,), where there is a cache_size
        train.encoded.npy              instead of these, by data.cache=encoded: see `storage`
        ...                            so for validation and test
        meta.json                      written last: counts, class names, images left out or in
                                       two splits, sizes of the files, and their hashes (see
                                       `decoded`)
    <folder>/<fingerprint>.lock        held by whoever builds it
    <folder>/.<fingerprint>.building/  what a builder has so far
        journal.json                   how far it is, every 10 seconds: the next one goes on there

What a dead builder left is removed by the next, of whatever set; with a journal, after a week.

Nothing here imports `datasets`, `sklearn` or `mlxtend` once the cache is there.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ablate.data import source
from ablate.data.build_journal import JOURNAL, noted
from ablate.data.building import Progress, Work, build_cache, building_folder
from ablate.data.splits import Cached, open_cached
from ablate.shared.files import make_folder
from ablate.shared.lock import Lock
from ablate.shared.sections import Data

_JOURNAL_KEPT_S = 7 * 86400


def prepare(
    data: Data, folder: Path, progress: Progress | None = None, threads: int | None = None
) -> Cached:
    """The cache of `data`, built if need be: once, however many processes ask at the same moment.

    `progress(done, total)` is called, in images, while it is built here or by somebody else whom
    we wait for; what it raises ends the call. `threads`: see `decode_pool.write`. A build that
    was killed is gone on with; one that took less than ten seconds leaves nothing. Raises UserError
    for bad data (see `source`) and for data that changed since `data.fingerprint` was taken, Full
    where the disk is.
    """
    if cached := open_cached(data, folder):
        return cached
    make_folder(folder)
    lock = _lock(folder, data.fingerprint)
    while not lock.acquire(wait_s=0.5):
        notes = lock.notes()
        if progress and "total" in notes:
            progress(notes["done"], notes["total"])
    try:
        cached = open_cached(data, folder)  # somebody may have built it while we waited
        if cached is None:
            _remove_leftovers(folder)

            def report(done: int, total: int) -> None:
                lock.note(done=done, total=total)
                if progress:
                    progress(done, total)

            build_cache(data, folder, report, threads)
            cached = open_cached(data, folder)
            assert cached is not None
        return cached
    finally:
        lock.release()


@dataclass(frozen=True)
class CacheState:
    """What there is of a cache, without decoding an image."""

    folder: Path
    whole: bool
    counts: dict[str, int] | None  # None, and so `bytes`: not known before the set is fetched
    bytes: int | None  # of files' own bytes in tables an estimate, until they are written
    done: int  # images that a killed build has decoded


def look(data: Data, folder: Path) -> CacheState:
    """What `prepare` would begin with. Raises UserError as it does, where it can tell so early."""
    home = folder / data.fingerprint
    if cached := open_cached(data, folder):
        return CacheState(home, True, cached.counts, cached.bytes, 0)
    rows = source.rows(data)
    if rows is None:
        return CacheState(home, False, None, None, 0)
    building = building_folder(folder, data.fingerprint)
    sizes = source.sizes(data, rows) if data.cache == "encoded" else None
    work = Work(data, rows, building, sizes)
    bytes = None if data.cache == "encoded" and sizes is None else work.bytes
    journal = noted(building / JOURNAL, rows)
    if journal is None:
        return CacheState(home, False, work.counts, bytes, 0)
    bytes = sum(journal["of"]["bytes"].values())
    return CacheState(home, False, work.counts, bytes, work.images(journal["done"]))


def count(data: Data, folder: Path) -> dict[str, int] | None:
    """Examples of train, validation and test, without decoding one, as many as `data.fraction`
    leaves; None: not known before the set is fetched from the hub. Raises UserError as `prepare`
    does, where it can tell so early.
    """
    counts = look(data, folder).counts
    if counts is None or data.fraction == 1:
        return counts
    return {**counts, "train": len(source.share(data, counts["train"]))}


def class_names(data: Data, folder: Path) -> tuple[bool, list[str] | None]:
    """Are its classes' names known before the set is fetched, and what are they (None: none)?"""
    if cached := open_cached(data, folder):
        return True, cached.class_names
    if data.source == "datasets" and data.path is None:
        return False, None
    return True, source.open_source(data).class_names


def _lock(folder: Path, name: str) -> Lock:
    return Lock(folder / f"{name}.lock")


def _remove_leftovers(folder: Path) -> None:
    """Remove what dead builders of other sets left; they are dead if nobody holds their lock."""
    for leftover in folder.glob(".*.building"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - (leftover / JOURNAL).stat().st_mtime < _JOURNAL_KEPT_S:
                continue
        lock = _lock(folder, leftover.name[1:].removesuffix(".building"))
        if lock.acquire():
            shutil.rmtree(leftover, ignore_errors=True)
            lock.release()
