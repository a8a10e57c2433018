"""Are the bytes of a decoded set those that were written? Hashes of its files, and their check.

    meta.json
        sha256     by file, of each block of BLOCK bytes in order
        seal       of everything else in meta.json

What wrote a set seals it; what drives a sweep asks once, before anything trains.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ablate.shared.files import read_json, to_json
from ablate.shared.lock import Lock

BLOCK = 64 << 20  # bytes: a large file is read by all cores at once
LARGE = 4 << 30  # bytes that take seconds to read
META = "meta.json"
_READ = 1 << 20

OLDER = "was decoded by an older version, which noted no hashes"


def hashes(home: Path, names: Mapping[str, int]) -> dict[str, list[str]]:
    """The sha256 of each block of files in `home`, given with their sizes in bytes.

    As fast as they can be read: hashing waits for no other thread.
    """
    blocks = [(name, at) for name, size in names.items() for at in range(0, size, BLOCK)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        digests = pool.map(lambda block: _hash(home / block[0], block[1]), blocks)
        found: dict[str, list[str]] = {name: [] for name in names}
        for (name, _), digest in zip(blocks, digests, strict=True):
            found[name].append(digest)
    return found


def _hash(path: Path, first: int) -> str:
    digest, last = hashlib.sha256(), first + BLOCK
    with open(path, "rb", buffering=0) as file:
        file.seek(first)
        while part := file.read(min(_READ, last - file.tell())):
            digest.update(part)
    return digest.hexdigest()


def sealed(meta: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """What meta.json says, with the hashes of the files in `home` that its "bytes" name."""
    whole = {**meta, "sha256": hashes(home, meta["bytes"])}
    return {**whole, "seal": _seal(whole)}


def digest(meta: Mapping[str, Any]) -> str:
    """One hash of all that a run reads of the set: what `result.json` keeps as `data_sha256`."""
    return hashlib.sha256(to_json(meta["sha256"])).hexdigest()


def _seal(meta: Mapping[str, Any]) -> str:
    return hashlib.sha256(to_json({key: meta[key] for key in meta if key != "seal"})).hexdigest()


def is_sealed(meta: Any) -> bool:
    """Is it as `sealed` made it? The files are not read."""
    return isinstance(meta, dict) and "sha256" in meta and meta.get("seal") == _seal(meta)


def size(home: Path) -> int:
    """Its bytes, to tell what `damage` will take; 0 where that is not known."""
    meta = read_json(home / META)
    return sum(meta["bytes"].values()) if is_sealed(meta) else 0


def damage(home: Path) -> str | None:
    """What is wrong with the decoded set in `home`, in words; None: every byte is as written."""
    meta = read_json(home / META)
    if not is_sealed(meta):
        older = isinstance(meta, dict) and not {"sha256", "seal"} & meta.keys()
        return OLDER if older else f"{META} is not as it was written"
    try:
        found = hashes(home, meta["bytes"])
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:  # a disk that fails reads no bytes at all
        return f"{Path(error.filename or home).name} can't be read ({error.strerror})"
    wrong = [name for name in found if found[name] != meta["sha256"][name]]
    return f"{' and '.join(wrong)}: not the bytes that were written" if wrong else None


def discard(cache: Path, fingerprint: str) -> None:
    """A damaged set counts as none from now on, and so does what was measured on it.

    Left alone where somebody builds it at the moment.
    """
    lock = Lock(cache / f"{fingerprint}.lock")
    if lock.acquire():
        try:
            (cache / fingerprint / META).unlink(missing_ok=True)
            for measured in cache.glob(f"{fingerprint}.*.safetensors"):
                measured.unlink(missing_ok=True)
        finally:
            lock.release()
