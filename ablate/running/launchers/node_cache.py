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


class NodeCache:
    """Of one pilot. `path`: where its workers read; `here`: a folder of the node, "" for none."""

    def __init__(self, shared: Path, here: str) -> None:
        self._shared = shared
        self.path = Path(here) if here else shared
        self._copies: dict[str, threading.Thread] = {}

    def has(self, run: RunDir) -> bool:
        """Can the run be trained now? A set that is not there is copied beside, once a node."""
        if self.path == self._shared:
            return True
        try:
            fingerprint = str(run.read_spec()["data"]["fingerprint"])
        except (ValueError, LookupError):
            return True  # its worker says what is wrong
        if fingerprint not in self._copies:
            thread = threading.Thread(target=self._copy, args=(fingerprint,), daemon=True)
            self._copies[fingerprint] = thread
            thread.start()
        return not self._copies[fingerprint].is_alive()

    def _copy(self, fingerprint: str) -> None:
        """Whole and by its hashes, or not at all: then workers decode the data themselves."""
        target = self.path / fingerprint
        make_folder(self.path)
        with Lock(self.path / f"{fingerprint}.copy").held(), contextlib.suppress(OSError):
            if target.exists() and decoded.damage(target) is None:
                return
            new = target.with_name(f".{fingerprint}.{os.getpid()}")
            for old in (new, target):
                shutil.rmtree(old, ignore_errors=True)
            try:
                shutil.copytree(self._shared / fingerprint, new)
                if decoded.damage(new) is None:
                    os.rename(new, target)
            finally:
                shutil.rmtree(new, ignore_errors=True)
