"""Reads a bundle of `ablate export`: the folder of a sweep.

A reviewer can recompute every table from it, without the store in which the sweep was trained.

Used by `ablate table --from` (cli/looking.py), `verify DIR` and `merge` (cli/keeping.py), and
`ablate.Store` of Python (api/nouns.py). A new raw file also needs its name in audit/export.py
`RAW`, which writes it, and a line in bundle_readme.txt.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import shlex
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate.analysis import Results
from ablate.audit.lean import PACKED, WHOLE_HASHES, unpack
from ablate.audit.verify import remake
from ablate.planning import Plan
from ablate.run import (
    FINAL_STATUSES,
    RunDir,
    fits_type,
)
from ablate.shared import (
    MOST_BYTES,
    Failure,
    UserError,
    is_number,
    other_format_error,
    read_file,
    read_json,
    to_json,
    unknown_value,
)
from ablate.store import (
    History,
    Ledger,
    Look,
    Store,
    Unrecorded,
    driven_plan,
    event_detail,
    fold_history,
    resolve_sweep_name,
    run_histories,
    sweep_names,
    unedited_plan,
)
from ablate.version import FORMAT

ANONYMOUS = "anonymous"  # says such an env.json


class _BundledRun(RunDir):
    """The files of a run in a bundle, where the predictions of all runs lie in one folder."""

    def __init__(self, path: Path, predictions: Path) -> None:
        super().__init__(path)
        vars(self)["predictions"] = predictions

    @functools.cached_property
    def _whole_hashes(self) -> Mapping[str, str]:
        """The hashes, by name, of files that a lean bundle thinned or left out."""
        content = read_json(self.path / WHOLE_HASHES)
        return content if isinstance(content, dict) else {}

    def whole_hash(self, path: Path) -> str | None:
        return self._whole_hashes.get(path.name)

    def sealed_attempts(self, result: Mapping[str, Any] | None) -> tuple[list[dict[str, Any]], str]:
        """Skip the seal of env.json in an anonymous bundle, where only the manifest covers it."""
        content = read_json(self.env)
        if isinstance(content, dict) and content.get(ANONYMOUS) is True:
            return self.read_attempts(), ""
        return super().sealed_attempts(result)


class Bundle(Store):
    """A bundle as a store of one sweep, with a file of events instead of a ledger."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.events = root / "events.json"
        self.environment = root / "environment.json"
        self.manifest = root / "manifest.json"
        # of metrics of the user's own: values by name, run and set
        self.own_metrics_file = root / "own.json"
        self.code = root / "code"  # what made them
        self.packed = root / PACKED  # of a lean one: the files of the runs
        self.is_lean = self.packed.exists()

    @functools.cached_property
    def _raw(self) -> Path:
        """The folder of the runs' files; for a lean bundle a temporary one, removed with this
        object."""
        if not self.packed.exists():
            return self.root
        folder = Path(tempfile.mkdtemp(prefix="ablate-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        unpack(self.root, folder)
        return folder

    def rundir(self, run: str) -> RunDir:
        name = super().rundir(run).id
        return _BundledRun(self._raw / "specs" / name, self._raw / "predictions" / f"{name}.npy")

    def plan_path(self, name: str) -> Path:
        return self.root / "sweep.json"

    @property
    def format(self) -> int:
        """The FORMAT of the bundle; 0 for any other folder."""
        environment = read_json(self.environment)
        format = environment.get("bundle") if isinstance(environment, dict) else None
        return format if isinstance(format, int) else 0

    def check_format(self) -> None:
        """Raise Failure for a bundle of another version, or with a file too large for a bundle.

        The sizes are checked before any file is read.
        """
        for name in self.names():
            if (size := os.lstat(self.root / name).st_size) > MOST_BYTES:
                raise Failure(
                    f"{self.root / name}: has {size:,} bytes; no file of an export has as many"
                )
        if self.format not in (0, FORMAT):
            raise other_format_error(self.root, self.format, "export the sweep again")

    def read_sealed(self) -> tuple[Plan, dict[str, History]]:
        """Read the plan, and the events of every run.

        Raises UserError for a folder that is no bundle, and Failure where one of its own files was
        changed or its format is another.
        """
        if not self.is_bundle:
            raise UserError(f"{self.root}: is no bundle; `ablate export DIR` writes one")
        self.check_format()
        hashes = self.read_manifest()
        own_files = (
            self.environment,
            self.plan_path(""),
            self.events,
            self.looks,
            self.own_metrics_file,
            self.packed,
        )
        for path in own_files:
            if (path.name in hashes or path.exists()) and hashes.get(path.name) != sha256_of(path):
                verify = shlex.join(["ablate", "verify", str(self.root)])
                raise Failure(f"{path}: was changed after the export; see `{verify}`")
        return self.read_unsealed()

    def read_manifest(self) -> dict[str, str]:
        """Read the hash of every file, by its place. Raises Failure for a missing or changed
        manifest."""
        match read_json(self.manifest):
            case {"files": dict(files), "seal": seal} if seal == _seal(files):
                return files
        raise Failure(f"{self.manifest}: is missing, or was changed after the export")

    def edited_files(self) -> dict[str, str]:
        """Map each file that was added or changed after the export to its fault. Raises as
        `read_manifest`."""
        hashes = self.read_manifest()
        faults = {}
        for name in self.names():
            if name not in hashes:
                faults[name] = "not in the manifest, so it was added later"
            elif sha256_of(self.root / name) != hashes[name]:
                faults[name] = "changed after the export"
        return faults

    def write_manifest(self) -> None:
        files = {name: sha256_of(self.root / name) for name in self.names()}
        self.manifest.write_bytes(to_json({"files": files, "seal": _seal(files)}))

    def names(self) -> list[str]:
        """List the places of all files but the manifest; links count as files."""
        paths = []
        for folder, folders, files in os.walk(self.root):
            links = [name for name in folders if Path(folder, name).is_symlink()]
            paths += [Path(folder, name).relative_to(self.root) for name in [*files, *links]]
        return sorted(path.as_posix() for path in paths if path.as_posix() != self.manifest.name)

    def read_unsealed(self) -> tuple[Plan, dict[str, History]]:
        """Read the plan and the events as `read_sealed` does, without comparing them with the
        manifest."""
        plan = self.read_plan("")
        if plan is None:
            raise Failure(f"{self.plan_path('')}: is missing or not whole")
        return placeless_own(unedited_plan(self, plan)), self._histories()

    def _histories(self) -> dict[str, History]:
        events = read_json(self.events)
        try:
            histories: dict[str, History] = {
                run: [(timestamp, kind, detail) for timestamp, kind, detail in events[run]]
                for run in events
            }
            for timestamp, kind, detail in itertools.chain.from_iterable(histories.values()):
                if not is_number(timestamp):
                    raise ValueError
                event_detail(kind, json.dumps(detail))
            for history in histories.values():
                fold_history(history)
            return histories
        except (ValueError, LookupError, TypeError, sqlite3.DatabaseError) as error:
            raise Failure(
                f"{self.events}: is not whole, or not written by `ablate export`"
            ) from error

    def own_values(self, name: str) -> dict[str, dict[str, float]] | None:
        """Return the stored values of a metric of the user's own, by run and set; else None.

        Raises Failure where the file is not whole.
        """
        try:
            values = (
                json.loads(read_file(self.own_metrics_file)).get(name)
                if self.own_metrics_file.exists()
                else None
            )
            if fits_type(values, Mapping[str, Mapping[str, float]] | None):
                typed_values: dict[str, dict[str, float]] | None = values
                return typed_values
        except (ValueError, AttributeError, RecursionError):
            pass
        raise Failure(f"{self.own_metrics_file}: is not whole, or not written by `ablate export`")

    def seals(self) -> dict[str, str]:
        last_events = {run: history[-1] for run, history in self._histories().items() if history}
        return {
            run: detail["result_sha256"]
            for run, (_, kind, detail) in last_events.items()
            if kind in FINAL_STATUSES
        }

    def read_looks(self) -> list[Look]:
        return self.looks_view()

    def add_look(self, look: Look) -> None:
        """Raise Unrecorded: a bundle has the look of its export, and nothing is ever added to
        it."""
        environment = read_json(self.environment)
        raise Unrecorded(environment.get("withheld") or "the bundle has other verdicts")

    def recompute(self, plan: Plan, histories: Mapping[str, History]) -> Results:
        """Recompute every result from the raw files. Raises Failure for files that were changed."""
        results, findings = remake(plan, self, histories)
        if findings:
            suffix = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
            raise Failure(f"{findings[0]}{suffix}")
        return results


def placeless_own(plan: Plan) -> Plan:
    """Return the plan without the folders from which the user's own metrics could be loaded."""
    return replace(
        plan, own={name: {**declaration, "folder": ""} for name, declaration in plan.own.items()}
    )


def is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _seal(files: Mapping[str, Any]) -> str:
    """Hash the content of a manifest."""
    return hashlib.sha256(to_json(files)).hexdigest()


def sha256_of(path: Path) -> str | None:
    """Hash a file; None for anything but a regular file."""
    if not is_regular(path):
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_sweep(root: Path, name: str | None) -> tuple[Plan, Store, Mapping[str, History]]:
    """Open a sweep of a store, the last driven one for None, or the sweep of a bundle."""
    bundle = Bundle(root)
    if bundle.is_bundle:
        plan, histories = bundle.read_sealed()
        if name not in (None, plan.name):
            raise unknown_value("sweep", name, [plan.name], f"the sweep of {root}:")
        return plan, bundle, histories
    store = Store(root)
    with Ledger.reading(store) as ledger:
        sweeps = sweep_names(store, ledger)
        plan = driven_plan(
            store, ledger, sweeps, (resolve_sweep_name(name, sweeps) or name) if name else sweeps[0]
        )
        return unedited_plan(store, plan).with_own(), store, run_histories(plan, ledger)
