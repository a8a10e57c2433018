"""A job of a cluster looks at what a sweep's jobs would see, before there is a sweep.

Used by `ablate doctor launcher=NAME` (audit/doctor/site.py). What the job does is in
launchers/pilot.py (`look`); a new fact needs both.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ablate.running.launchers.engine import FileEngine, host_names
from ablate.shared import make_folder, read_json
from ablate.store import store_token, write_proof


class SiteJob:
    """A job that looks. `settings`: the launcher group of an engine; `root`: the store."""

    def __init__(self, settings: Mapping[str, Any], root: Path) -> None:
        """Ask for the job. Raises UserError for settings that the engine can't use, and Failure
        with the site's own words where it refuses."""
        root = root.absolute()
        make_folder(root / "pilots")
        token = store_token(root) or secrets.token_hex(8)
        write_proof(root, token)
        # Of another name than the jobs of pilots, which a driver counts.
        name = f"doctor-{secrets.token_hex(4)}"
        self._engine = FileEngine(settings, root, token, look=name)
        folder = root / "pilots" / "jobs"
        self._facts = folder / f"{name}.json"
        # Earlier jobs may have written to the same log.
        sizes = {str(path): path.stat().st_size for path in folder.glob("*")}
        [self.job] = self._engine.submit(1, ())
        self.log = self._engine.log(self.job)
        self._log_start = sizes.get(self.log, 0)

    @staticmethod
    def settings_of_each(settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the settings of each job that a look at a site takes: one, or one on each of the
        hosts that the settings name."""
        return [{**settings, "hosts": host} for host in host_names(settings)] or [settings]

    def state(self) -> Literal["waiting", "running", "gone"] | None:
        """Return the state of the job; gone: the engine does not list it, because it has ended or
        is too new; None where the engine gives no answer."""
        states = self._engine.states()
        if states is None:
            return None
        if self.job not in states:
            return "gone"
        return "running" if states[self.job] else "waiting"

    def ending(self) -> str:
        """Return how the job ended, in the engine's words; "" where it has not, or nobody knows."""
        return self._engine.ended(self.job).words

    def facts(self) -> dict[str, Any] | None:
        """Return what the job has seen; None until then. Keys: host; python, ablate, torch
        (versions, torch null where it is missing); clock: seconds since 1970; slots: the names of
        those that it would offer; remarks: why others can't be used."""
        facts = read_json(self._facts)
        return facts if isinstance(facts, dict) else None

    def output(self) -> list[str]:
        """Return the lines that the job has printed, and those of its engine among them; [] where
        none can be read here."""
        try:
            output = Path(self.log).read_bytes()[self._log_start :]
        except OSError:
            return []
        return output.decode(errors="replace").splitlines()

    def end(self) -> None:
        """Cancel the job, if it is still there, and remove what it wrote."""
        self._engine.cancel([self.job])
        self._facts.unlink(missing_ok=True)
