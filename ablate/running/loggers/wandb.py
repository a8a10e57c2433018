"""W&B, and Trackio through the same calls: a run of theirs for each run that has ended, written at
once.

A run whose writing was killed is written again: locally its remains are removed first; W&B's
service says which steps it has.

Used by `ablate sweep logger=wandb` and `logger=trackio`: named in planning/logger.py `LOGGERS`, run
by loggers/feed.py. A new setting also needs its `Param` there.
"""

from __future__ import annotations

import hashlib
import importlib
import netrc
import os
import shutil
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ablate.running.loggers.pages import Page, PageFiles
from ablate.shared import Failure, make_folder


class WandB(PageFiles):
    """A logger of W&B: see `Logger`. `module`: the module to import; its folder in `logger.folder`
    has the same name."""

    module = "wandb"

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        super().__init__(folder / self.module)  # where W&B itself writes, below `dir`
        self._settings, self._dir = settings, folder

    def hand_on(self, page: Page) -> None:
        """See `Logger`."""
        if page.result is not None and not self._is_disabled:
            make_folder(self._folder)
            self._write(page, page.result["status"])
            self.note_done(page)

    @property
    def _is_disabled(self) -> bool:
        """True if W&B would write nothing. Such runs are handed on by a later command."""
        return bool(_mode(self._settings["mode"]) == "disabled")

    def _write(self, page: Page, status: str) -> None:
        name = f"{page.run.id}-{_short(page.sweep)}"  # the same run may be in several sweeps
        run, first_step = self._begin(page, name, status)
        for step, values in page.lines.items():
            if step >= first_step:
                run.log(values, step=step)
        self._end(run, page, status)

    def _begin(self, page: Page, name: str, status: str) -> tuple[Any, int]:
        """Begin a run of the service; return it, and the first step that it lacks."""
        wandb = importlib.import_module(self.module)
        for rest in self._folder.glob(f"offline-run-*-{name}-*"):
            shutil.rmtree(rest)
        mode = _mode(self._settings["mode"])
        run = wandb.init(
            **self._description(page),
            entity=self._settings["entity"] or None,
            id=f"{name}-{_short(page.seal)}",
            name=page.run.label,
            dir=str(self._dir),
            mode=mode,
            resume="allow" if mode == "online" else None,
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, x_disable_stats=True
            ),
        )
        return run, run.step

    def _description(self, page: Page) -> dict[str, Any]:
        """Return the arguments that `init` of either module takes."""
        config = {**page.facts(), "configuration": page.run.spec.tree}
        return {"project": self._settings["project"], "group": page.sweep, "config": config}

    def _end(self, run: Any, page: Page, status: str) -> None:
        run.summary.update({**page.final(), "status": status})
        run.finish(exit_code=0)


class Trackio(WandB):
    """A logger of Trackio: see `Logger`. Trackio knows a run by its name alone, and has no summary:
    test scores are at the last step."""

    module = "trackio"
    _is_disabled = False

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        super().__init__(settings, folder)
        os.environ["TRACKIO_DIR"] = str(self._folder)  # read as trackio is imported
        for remote in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
            os.environ.pop(remote, None)  # no remains of a run could be deleted there

    def _write(self, page: Page, status: str) -> None:
        """Write values. Raises Failure where Trackio warns: by a warning it says that it lost
        values."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            super()._write(page, status)
        for warning in caught:
            if issubclass(warning.category, UserWarning):
                raise Failure(f"{page.run.label}: {warning.message}")

    def _begin(self, page: Page, name: str, status: str) -> tuple[Any, int]:
        trackio = importlib.import_module(self.module)
        description, name = self._description(page), f"{page.run.label}-{name}"
        with suppress(ValueError):  # there is no such project yet
            for rest in trackio.Api().runs(description["project"]):
                if rest.name == name:
                    rest.delete()
        description["config"]["status"] = status
        return trackio.init(**description, name=name, embed=False), 0

    def _end(self, run: Any, page: Page, status: str) -> None:
        run.log(page.final(), step=max(page.lines, default=0))
        run.finish()


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _mode(setting: str) -> Any:
    """Return online | offline | disabled, by `WANDB_MODE` or by a login on this machine. Asks no
    server."""
    if setting != "auto":
        return setting
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    login: object = os.environ.get("WANDB_API_KEY")
    with suppress(OSError, netrc.NetrcParseError):
        login = login or netrc.netrc().authenticators(host)
    return os.environ.get("WANDB_MODE") or ("online" if login else "offline")
