"""Decoded data, copied once to a disk of the node where workers read it: `launcher.cache`."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from pathlib import Path

from ablate.shared import decoded
from ablate.shared.files import make_folder
from ablate.shared.lock import Lock
from ablate.shared.rundir import RunDir
from ablate.shared.spec import datasets_of


class NodeCache:
    """Of one pilot. `path`: where its workers read; `here`: a folder of the node, "" for none."""

    def __init__(self, shared: Path, here: str) -> None:
        self._shared = shared
        self.path = Path(here) if here else shared
        self._copies: dict[str, threading.Thread] = {}
        self._whole: set[str] = set()  # copied at some time

    def has(self, run: RunDir) -> bool:
        """Can the run be trained now? Sets that are not there are copied beside, once a node."""
        if self.path == self._shared:
            return True
        try:
            read = {str(data["fingerprint"]) for data in datasets_of(run.read_spec())}
        except (ValueError, LookupError):
            return True  # its worker says what is wrong
        return not [one for one in read if not self._is_there(one)]  # all copies begin at once

    def _is_there(self, fingerprint: str) -> bool:
        """Copied, or it can't be. A copy that a worker discarded since is made again."""
        thread = self._copies.get(fingerprint)
        if thread is not None and thread.is_alive():
            return False
        lost = not (self.path / fingerprint / decoded.META).exists()
        if thread is not None and not (lost and fingerprint in self._whole):
            return True
        self._whole.discard(fingerprint)
        self._copies[fingerprint] = threading.Thread(
            target=self._copy, args=(fingerprint,), daemon=True
        )
        self._copies[fingerprint].start()
        return False

    def _copy(self, fingerprint: str) -> None:
        """Copy it by its hashes, or not at all: then workers decode the data themselves."""
        target = self.path / fingerprint
        make_folder(self.path)
        with Lock(self.path / f"{fingerprint}.copy").held(), contextlib.suppress(OSError):
            if target.exists() and decoded.damage(target) is None:
                self._whole.add(fingerprint)
                return
            new = target.with_name(f".{fingerprint}.{os.getpid()}")
            for old in (new, target):
                shutil.rmtree(old, ignore_errors=True)
            try:
                shutil.copytree(self._shared / fingerprint, new)
                if decoded.damage(new) is None:
                    os.rename(new, target)
                    self._whole.add(fingerprint)
            finally:
                shutil.rmtree(new, ignore_errors=True)
