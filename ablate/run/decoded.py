"""Check of a decoded set: hashes that show whether its bytes are those that were written. Also what
was found while it was decoded, in numbers and words.

    meta.json
        counts     images a split
        left_out   by split, lines that name the images that could not be read, and why
        overlap    by split, how many of its images are in a split before it, too
        sha256     by file, of each block of BLOCK bytes in order
        seal       of everything else in meta.json

The writer of a set seals it; the driver of a sweep checks it once, before anything trains. Each
worker checks it again before it writes its result, for a share of the time that it trained: if the
set was damaged meanwhile, the run trained on the damage and no longer counts.

Used by decoding (data/building.py), by the driver of `ablate sweep` (launchers/fork.py), by workers
(training/worker.py), and by `ablate doctor` and `verify`. A new fact in meta.json also needs its
writer in data/building.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ablate.run.rundir import RunDir
from ablate.shared import (
    Lock,
    read_json,
    to_json,
    write_whole,
)

BLOCK = 64 << 20  # bytes: a large file is read by all cores at once
META_FILE = "meta.json"
SPLITS = ("train", "validation", "test")
_READ_BYTES = 1 << 20
_MOST_NAMED = 20  # images, of however many


def hashes(home: Path, names: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the sha256 of each block of the files in `home`. `names`: the size of each file in
    bytes.

    Files are read as fast as they can be: hashing waits for no other thread.
    """
    blocks = [(name, offset) for name, size in names.items() for offset in range(0, size, BLOCK)]
    digests: dict[str, list[str]] = {name: [] for name in names}
    for (name, _), digest in _block_hashes(home, blocks, math.inf).items():
        assert digest is not None
        digests[name].append(digest)
    return digests


_Block = tuple[str, int]  # file, first byte


def _block_hashes(
    home: Path, blocks: list[_Block], until: float, beat: Callable[[], None] = lambda: None
) -> dict[_Block, str | None]:
    """Return the sha256 of each block; None for a block not begun by `until`, on the monotonic
    clock. `beat` is called after each block that was read."""
    digests: dict[_Block, str | None] = {}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        hashed_blocks = pool.map(lambda block: _hash(home / block[0], block[1], until), blocks)
        for block, digest in zip(blocks, hashed_blocks, strict=True):
            digests[block] = digest
            if digest is not None:
                beat()
    return digests


def _hash(path: Path, offset: int, until: float) -> str | None:
    if time.monotonic() > until:
        return None
    digest, end = hashlib.sha256(), offset + BLOCK
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while part := file.read(min(_READ_BYTES, end - file.tell())):
            digest.update(part)
    return digest.hexdigest()


def sealed_meta(meta: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """Return the content of meta.json with the hashes of the files in `home` that its "bytes" name,
    and its seal."""
    content = {**meta, "sha256": hashes(home, meta["bytes"])}
    return {**content, "seal": _seal(content)}


def digest(meta: Mapping[str, Any]) -> str:
    """Return one hash of all that a run reads of the set. `result.json` keeps it as
    `data_sha256`."""
    return hashlib.sha256(to_json(meta["sha256"])).hexdigest()


def decoding_facts(meta: Any) -> dict[str, dict[str, list[int]]]:
    """Return {"left_out", "overlap": {split: [images, of how many]}}, as `result.json` keeps it. A
    key without images is left out; {} for what is no whole meta.json."""
    if not is_sealed(meta):
        return {}
    counts = meta["counts"]
    left_out = {split: len(lines) for split, lines in meta.get("left_out", {}).items()}
    overlap = meta.get("overlap", {})
    facts = {
        "left_out": {split: [n, counts[split] + n] for split, n in left_out.items()},
        "overlap": {split: [n, counts[split]] for split, n in overlap.items()},
    }
    return {key: splits for key, splits in facts.items() if splits}


def decoding_words(facts: Mapping[str, Any]) -> dict[str, str]:
    """Put the counts of `facts` into words, by its keys: those of `decoding_facts`, and "shared".
    All other keys are ignored."""
    return {
        key: f"{' and '.join(_share(s, *facts[key][s]) for s in SPLITS if s in facts[key])} {verb}"
        for key, verb in _WORDS.items()
        if facts.get(key)
    }


_WORDS = {
    "left_out": "can't be read and are left out",
    "overlap": "are in another split, too, pixel for pixel",
    "shared": "are training images, too, pixel for pixel",
}


def _share(split: str, number: int, total: int) -> str:
    return f"{number:,} of {total:,} {'training' if split == 'train' else split} images"


def first_of_lines(lines: Sequence[str]) -> str:
    """Join the first lines, at most _MOST_NAMED, and say how many more there are."""
    remainder = f"; and {len(lines) - _MOST_NAMED:,} more" if len(lines) > _MOST_NAMED else ""
    return "; ".join(lines[:_MOST_NAMED]) + remainder


def _seal(meta: Mapping[str, Any]) -> str:
    return hashlib.sha256(to_json({key: meta[key] for key in meta if key != "seal"})).hexdigest()


def is_sealed(meta: Any) -> bool:
    """Return whether `meta` is as `sealed_meta` made it. The files are not read."""
    return isinstance(meta, dict) and "sha256" in meta and meta.get("seal") == _seal(meta)


def size(home: Path) -> int:
    """Return the set's size in bytes, by which the time of `damage` can be estimated; 0 where it is
    not known."""
    meta = read_json(home / META_FILE)
    return sum(meta["bytes"].values()) if is_sealed(meta) else 0


def damage(
    home: Path, within_s: float = math.inf, beat: Callable[[], None] = lambda: None
) -> str | None:
    """Say how the decoded set in `home` is damaged; return None where no damage was found.

    Blocks are read in random order, a different one in every call, until `within_s` seconds have
    passed. None therefore means that each block read by then is as it was written: without a limit,
    every byte of the set. `beat` is called after each block, since reading takes minutes.
    """
    meta = read_json(home / META_FILE)
    if not is_sealed(meta):
        return f"{META_FILE} is damaged"
    expected = {
        (name, BLOCK * n): digest
        for name, digests in meta["sha256"].items()
        for n, digest in enumerate(digests)
    }
    blocks = random.Random().sample([*expected], len(expected))  # of all ranks, others each time
    try:
        actual_digests = _block_hashes(home, blocks, time.monotonic() + within_s, beat)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:  # a disk that fails reads no bytes at all
        return f"{Path(error.filename or home).name} can't be read ({error.strerror})"
    differ = {
        name
        for (name, offset), digest in actual_digests.items()
        if digest not in (None, expected[name, offset])
    }
    wrong = [name for name in meta["bytes"] if name in differ]
    return f"{' and '.join(wrong)}: not the bytes that were written" if wrong else None


def discard(cache: Path, fingerprint: str) -> None:
    """Make a damaged set count as missing from now on, and remove what was measured on it.

    Do nothing while somebody else is building the set.
    """
    lock = Lock(cache / f"{fingerprint}.lock")
    if lock.acquire():
        try:
            (cache / fingerprint / META_FILE).unlink(missing_ok=True)
            for measured in cache.glob(f"{fingerprint}.*.safetensors"):
                measured.unlink(missing_ok=True)
        finally:
            lock.release()


def begin_again(runs: Path, fingerprint: str) -> None:
    """Mark the unfinished runs on a damaged set, so that none resumes from a checkpoint that exists
    now: nobody knows when the damage began.

    The next worker of such a run drops the checkpoints; one that is training now leaves no result.
    Call this before `discard`: if the caller dies between the two, the damage is found again.
    """
    for path in runs.glob("*"):
        run = RunDir(path)
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            if run.read_spec()["data"]["fingerprint"] == fingerprint and not run.has_result():
                write_whole(run.distrust, b"")
