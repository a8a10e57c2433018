"""Files of loggers that are files: what stands in one is a function of the page alone, so nothing
else has to remember what was handed on."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path

from ablate.planning.tree import file_name
from ablate.running.loggers.page import Page
from ablate.shared.files import make_folder, read_file, write_whole
from ablate.shared.rundir import parse_lines


class PageFiles:
    """A folder for each sweep, and in its `done.jsonl` the pages that are there in full."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of_sweep(self, sweep: str) -> Path:
        return self._folder / file_name(sweep)

    def done(self, sweep: str) -> dict[str, str]:
        """See `Logger`."""
        with contextlib.suppress(FileNotFoundError):
            lines = parse_lines(read_file(self.of_sweep(sweep) / "done.jsonl"))
            return {line["run"]: line["seal"] for line in lines if {"run", "seal"} <= line.keys()}
        return {}

    def tell_done(self, page: Page) -> None:
        """Its files have the page in full. A line that a kill tears apart says nothing."""
        path = self.of_sweep(page.sweep) / "done.jsonl"
        line = json.dumps({"run": page.run.id, "seal": page.seal}).encode()
        make_folder(path.parent)
        with open(path, "ab") as file:
            file.write(b"\n" + line + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def of_run(self, page: Page, suffix: str = "") -> Path:
        """Its file or folder, called by its label as far as a name may say it, and its id. One with
        a label of old is renamed."""
        label = re.sub(r"[^\w.+=@#,-]+", "-", page.run.label)[:100]
        path = self.of_sweep(page.sweep) / f"{label}-{page.run.id}{suffix}"
        make_folder(path.parent)
        for other in path.parent.glob(f"*-{page.run.id}{suffix}"):
            if other != path and not path.exists():
                os.rename(other, path)
        return path


def bring(path: Path, content: bytes, whole: bool) -> None:
    """See to it that a file has this content, by what it lacks: who follows it reads on, and a kill
    tears at most its end, which is mended here. A file with other bytes is written anew.

    `whole`: nothing more will come. Else a file that is longer stays: its run has gone back, and
    comes there again.
    """
    try:
        had = read_file(path)
    except FileNotFoundError:
        had = None
    if had is None or not (content.startswith(had) or had.startswith(content)):
        write_whole(path, content)
    elif len(had) < len(content):
        with open(path, "ab") as file:
            file.write(content[len(had) :])
            file.flush()
            os.fsync(file.fileno())
    elif len(had) > len(content) and whole:
        write_whole(path, content)
