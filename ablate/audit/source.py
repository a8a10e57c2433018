"""What `merge` reads: a store, or a bundle of `export`, as it is at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.audit.bundle import ANONYMOUS, Bundle
from ablate.planning.plan import Plan
from ablate.shared.errors import Failure, UserError
from ablate.shared.files import read_json
from ablate.shared.result import FINAL
from ablate.store.events import BUNDLED, History, Look
from ablate.store.find import computed, driven
from ablate.store.ledger import Ledger
from ablate.store.pilots import beats_elsewhere
from ablate.store.store import Store


@dataclass(frozen=True)
class MergeSource:
    """A store or a bundle, as it was when its ledger was read. `in_use`: a driver may go on with
    runs that have no result."""

    store: Store
    plans: Sequence[Plan]
    driven: Mapping[str, float]  # when, by sweep
    told: Mapping[str, History]  # by run
    looks: Sequence[tuple[float, Look]]
    in_use: bool = False


def read_source(root: Path) -> MergeSource:
    """Read what a store or a bundle has. Raises UserError for any other folder, Failure where its
    ledger, a plan or the bundle's own files were changed."""
    bundle, store = Bundle(root), Store(root)
    if bundle.is_one:
        return _read_bundle(bundle)
    if not store.ledger.exists() and not store.plans():
        raise UserError(f"{root}: is no store, and no bundle of `ablate export`")
    with Ledger.reading(store) as ledger:
        if ledger.broken_seals() or ledger.lacks_its_end():
            raise Failure(
                f"{store.ledger}: was changed, as `ablate verify` says; `ablate doctor --repair` "
                f"rebuilds it"
            )
        known = ledger.sweeps()
        plans = [computed(store, driven(store, ledger, known, name)) for name in known]
        with ledger.still():
            told = {run.id: ledger.events(run.id) for plan in plans for run in plan.runs()}
            in_use = store.driver.is_held() or bool(beats_elsewhere(store.root))
            return MergeSource(store, plans, ledger.driven(), told, ledger.dated_looks(), in_use)


def _read_bundle(bundle: Bundle) -> MergeSource:
    plan, told = bundle.read()
    if bundle.is_lean:
        raise UserError(
            f"{bundle.root}: is lean, so it lacks files of runs; export the sweep without --lean"
        )
    for run in plan.runs():
        content = read_json(bundle.rundir(run.id).env)
        if isinstance(content, dict) and ANONYMOUS in content:
            raise UserError(
                f"{bundle.root}: is anonymous, so it lacks what the hashes of its runs are of; "
                f"export the sweep without --anonymous"
            )
    ends = {
        run: max((at for at, kind, _ in history if kind in FINAL), default=0.0)
        for run, history in told.items()
    }
    looks, at = [], 0.0  # it tells their order; none was before the last result that it was of
    for look in bundle.looks_view():
        rows = (row for column in look["columns"].values() for row in column["rows"].values())
        at = max(at, *(ends.get(run, 0.0) for row in rows for run in row["runs"].values()), 0.0)
        looks.append((at, look))
    marked = {run: [_bundled(*event) for event in history] for run, history in told.items()}
    last = max((at for history in told.values() for at, _, _ in history), default=0.0)
    return MergeSource(bundle, [plan], {plan.name: last}, marked, looks)


def _bundled(at: float, kind: str, detail: dict[str, Any]) -> tuple[float, str, dict[str, Any]]:
    return at, kind, {**detail, BUNDLED: True} if kind in FINAL else detail
