"""Decode datasets in processes of their own, which are killed."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

from ablate.data import building, cache, picture
from ablate.data import splits as cached_files
from ablate.run.sections import Data
from support.processes import forked


def kill_decoding(
    data: Data,
    folder: Path,
    when: Callable[[int, str], bool],
    chunk: int = picture._IMAGES,
    threads: int = 1,
    before: Callable[[], None] = lambda: None,
) -> int:
    """Decode a dataset in a fork that kills itself (SIGKILL), and return how many images were done.

    `when(images done, text of the build's journal)` says whether to kill; the journal has a chunk
    before `when` is called again."""
    journal = folder / f".{data.fingerprint}.building" / "journal.json"
    note = building.BuildJournal.note

    def noting(self, *what):
        note(self, *what)
        self._writing.result()

    def progress(done, total):
        if when(done, journal.read_text() if journal.exists() else ""):
            print(done, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def build():
        picture._IMAGES, building._JOURNAL_S, building._REPORT = chunk, 0, 1
        building.BuildJournal.note = noting
        before()
        cache.prepare_cache(data, folder, progress, threads=threads)

    [said] = forked(build)
    assert said.returncode == -signal.SIGKILL, said.stderr
    assert cached_files.open_cached(data, folder) is None
    return int(said.stdout or 0)


def save_section(data: Data, tmp_path: Path) -> str:
    """Write a `data` section to a file, which `LOAD` reads in another process; return its name."""
    file = tmp_path / f"{data.fingerprint}.json"
    file.write_text(json.dumps(dataclasses.asdict(data)))
    return str(file)


LOAD = """
import json, os, sys
from pathlib import Path
from ablate.data import cache
from ablate.run.sections import Data
every = [Data(**json.loads(Path(file).read_text())) for file in os.environ["DATA"].split(":")]
data, folder = every[0], Path(os.environ["FOLDER"])
"""
