"""Weights & Biases: a run of W&B for each run that has ended, written in one go.

One that a kill cut off is written again: offline its remains are removed first; online the service
says which steps it has.
"""

from __future__ import annotations

import hashlib
import netrc
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ablate.running.loggers.pages import Page, PageFiles
from ablate.shared.files import make_folder


class WandB(PageFiles):
    """See `Logger`."""

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        super().__init__(folder / "wandb")  # where W&B itself writes, below `dir`
        self._settings, self._dir = settings, folder
        self._mode = _mode(settings["mode"])

    def hand_on(self, page: Page) -> None:
        """See `Logger`."""
        if page.result is None:
            return
        import wandb

        name = f"{page.run.id}-{_short(page.sweep)}"  # the same run may be in several sweeps
        make_folder(self._folder)
        for rest in self._folder.glob(f"offline-run-*-{name}-*"):
            shutil.rmtree(rest)
        run = wandb.init(
            project=self._settings["project"],
            entity=self._settings["entity"] or None,
            id=f"{name}-{_short(page.seal)}",
            name=page.run.label,
            group=page.sweep,
            config={**page.facts(), "configuration": page.run.spec()},
            dir=str(self._dir),
            mode=self._mode,
            resume="allow" if self._mode == "online" else None,
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, x_disable_stats=True
            ),
        )
        for step, values in page.lines.items():
            if step >= run.step:
                run.log(values, step=step)
        run.summary.update({**page.final(), "status": page.result["status"]})
        run.finish(exit_code=0)
        self.note_done(page)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _mode(asked: str) -> Any:
    """Decide: online | offline, by `WANDB_MODE` or by a login on this machine. Asks nobody."""
    if asked != "auto":
        return asked
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    login: object = os.environ.get("WANDB_API_KEY")
    with suppress(OSError, netrc.NetrcParseError):
        login = login or netrc.netrc().authenticators(host)
    return os.environ.get("WANDB_MODE") or ("online" if login else "offline")
