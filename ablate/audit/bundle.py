"""A bundle of `ablate export`: a sweep as a folder that a reviewer recomputes from, without the
store it was trained in. Reading one."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.analysis.scores import Results
from ablate.audit.verify import remake
from ablate.planning.plan import Plan
from ablate.shared.errors import Failure, UserError, unknown
from ablate.shared.files import is_number, read_json, to_json
from ablate.shared.rundir import FINAL, RunDir
from ablate.store.events import History, Look
from ablate.store.find import computed, driven, instance, sweeps
from ablate.store.ledger import Ledger, Unrecorded
from ablate.store.record import folded, histories
from ablate.store.store import Store

FORMAT = 3  # of a bundle; 2 had no manifest, 1 did not say of which analysis verdicts were read
SEALED = 3  # the first with a manifest
ANONYMOUS = "anonymous"  # says such an env.json


class _BundledRun(RunDir):
    """A run's files as a bundle has them: predictions lie together."""

    def __init__(self, path: Path, predictions: Path) -> None:
        super().__init__(path)
        vars(self)["predictions"] = predictions

    def sealed_attempts(self, result: Mapping[str, Any] | None) -> tuple[list[dict[str, Any]], str]:
        """Of an anonymous bundle env.json is not what the run left: the manifest alone has it."""
        content = read_json(self.env)
        if isinstance(content, dict) and content.get(ANONYMOUS) is True:
            return self.read_attempts(), ""
        return super().sealed_attempts(result)


class Bundle(Store):
    """A bundle is a store of one sweep, whose ledger is a file of events."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.events = root / "events.json"
        self.environment = root / "environment.json"
        self.manifest = root / "manifest.json"

    def rundir(self, run: str) -> RunDir:
        name = super().rundir(run).id
        return _BundledRun(self.root / "specs" / name, self.root / "predictions" / f"{name}.npy")

    def plan_path(self, name: str) -> Path:
        return self.root / "sweep.json"

    @property
    def format(self) -> int:
        """Its FORMAT; 0 of what is no bundle."""
        environment = read_json(self.environment)
        format = environment.get("bundle") if isinstance(environment, dict) else None
        return format if isinstance(format, int) else 0

    @property
    def is_sealed(self) -> bool:
        """Has it a manifest, or should it have one? Older formats had none."""
        return self.format >= SEALED or os.path.lexists(self.manifest)

    @property
    def is_one(self) -> bool:
        return self.format > 0

    def read(self) -> tuple[Plan, dict[str, History]]:
        """The plan, and every run's events. Raises UserError for what is no bundle, Failure where
        one of its own files is not as it was exported."""
        if not self.is_one:
            raise UserError(f"{self.root}: no bundle of `ablate export DIR`")
        if self.is_sealed:
            listed = self.read_manifest()
            for path in (self.environment, self.plan_path(""), self.events, self.looks):
                if listed.get(path.name) != sha256_of(path):
                    raise Failure(
                        f"{path}: not as it was exported; `ablate verify {self.root}` says more"
                    )
        return self.read_unsealed()

    def read_manifest(self) -> dict[str, str]:
        """The hash of every file by its place in the bundle. Raises Failure where that lacks."""
        match read_json(self.manifest):
            case {"files": dict(files), "seal": seal} if seal == _seal(files):
                return files
            case {"files": dict(files), **others} if not others:  # of a version before
                return files
        raise Failure(f"{self.manifest}: missing, or not as it was exported")

    def write_manifest(self) -> None:
        files = {name: sha256_of(self.root / name) for name in self.names()}
        self.manifest.write_bytes(to_json({"files": files, "seal": _seal(files)}))

    def names(self) -> list[str]:
        """The place of every file but the manifest; of a link, wherever it leads, too."""
        found = []
        for folder, folders, files in os.walk(self.root):
            links = [name for name in folders if Path(folder, name).is_symlink()]
            found += [Path(folder, name).relative_to(self.root) for name in [*files, *links]]
        return sorted(path.as_posix() for path in found if path.as_posix() != self.manifest.name)

    def read_unsealed(self) -> tuple[Plan, dict[str, History]]:
        """`read`, without the manifest."""
        plan = self.read_plan("")
        if plan is None:
            raise Failure(f"{self.plan_path('')}: missing or not whole")
        return computed(self, plan), self._told()

    def _told(self) -> dict[str, History]:
        events = read_json(self.events)
        try:
            told: dict[str, History] = {
                run: [(at, kind, detail) for at, kind, detail in events[run]] for run in events
            }
            for at, kind, detail in itertools.chain.from_iterable(told.values()):
                if not (is_number(at) and isinstance(kind, str) and isinstance(detail, dict)):
                    raise ValueError
            for history in told.values():
                folded(history)
            return told
        except (ValueError, LookupError, TypeError) as error:
            raise Failure(
                f"{self.events}: not whole, or not what `ablate export` writes"
            ) from error

    def seals(self) -> dict[str, str]:
        last = {run: history[-1] for run, history in self._told().items() if history}
        return {
            run: str(detail["result_sha256"])
            for run, (_, kind, detail) in last.items()
            if kind in FINAL and "result_sha256" in detail
        }

    def read_looks(self, sweep: str) -> list[Look]:
        return self.looks_view()

    def add_look(self, look: Look) -> None:
        """A bundle is never written: it has the look that its export was, and no other's words."""
        environment = read_json(self.environment)
        if self.format > 1 and look not in self.looks_view():
            raise Unrecorded(environment.get("withheld") or "the bundle carries other verdicts")

    def recompute(self, plan: Plan, told: Mapping[str, History]) -> Results:
        """Every result from the raw files. Raises Failure where these aren't what was exported."""
        results, findings = remake(plan, self, told)
        if findings:
            more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
            raise Failure(f"{findings[0]}{more}")
        return results


def is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _seal(files: Mapping[str, Any]) -> str:
    """Of a manifest."""
    return hashlib.sha256(to_json(files)).hexdigest()


def sha256_of(path: Path) -> str | None:
    """None of what is no regular file."""
    if not is_regular(path):
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def opened(root: Path, name: str | None) -> tuple[Plan, Store, Mapping[str, History]]:
    """A sweep of a store, the last driven one for None, or the one of a bundle."""
    bundle = Bundle(root)
    if bundle.is_one:
        plan, told = bundle.read()
        if name not in (None, plan.name):
            raise unknown("sweep", name, [plan.name], f"that of {root}:")
        return plan, bundle, told
    store = Store(root)
    with Ledger.reading(store) as ledger:
        known = sweeps(store, ledger)
        plan = driven(store, ledger, known, (instance(name, known) or name) if name else known[0])
        return computed(store, plan), store, histories(plan, ledger)
