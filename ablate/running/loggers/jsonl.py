"""JSON lines: a file for each run. The first line is about the run, the last one its result.

Used by `ablate sweep logger=jsonl`: named in planning/logger.py `LOGGERS`, run by loggers/feed.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.running.loggers.pages import Page, PageFiles, bring


class JsonLines(PageFiles):
    """A logger of JSON lines: see `Logger`."""

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        super().__init__(folder / "jsonl")

    def hand_on(self, page: Page) -> None:
        """See `Logger`."""
        lines = [{**page.facts(), "configuration": page.configuration()}]
        lines += [
            {"run": page.run.id, "step": step, **values} for step, values in page.lines.items()
        ]
        if page.result is not None:
            lines.append({"run": page.run.id, "status": page.result["status"], **page.final()})
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        bring(self.of_run(page, ".jsonl"), content, page.result is not None)
        self.note_done(page)
