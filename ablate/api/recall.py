"""The memory of a store: the names and the last plans of the sweeps that were driven there.

Used by `api/training.py`, `api/nouns.py`, and the commands that take the words of a sweep
(`cli/driving.py`, `cli/selection.py`).
"""

from __future__ import annotations

import contextlib
import urllib.parse

from ablate.planning import Declared, Plan
from ablate.shared import Failure, UserError
from ablate.store import Ledger, Store


class StoreRecall:
    """The memory of one store. `with_plans`: sweeps go on from their last plans; without, only
    their names are remembered."""

    def __init__(self, store: Store, with_plans: bool = True) -> None:
        self._store, self._with_plans = store, with_plans

    def plans(self, beginning: str, whole: str) -> list[Plan]:
        """Return the readable plans with the name `whole`, or a name that has this beginning."""
        names = [whole]
        for path in self._store.plans():
            name = urllib.parse.unquote(path.stem)
            if name.startswith(beginning) and name != whole:
                names.append(name)
        plans = []
        for name in names:
            if (plan := readable_plan(name, self._store)) is not None:
                plans.append(plan)
        return plans

    def plan(self, name: str, line: Declared) -> Plan | None:
        """Return the plan by which the store drove a sweep last; None where its words made another
        sweep, or where that plan is not the one that was recorded."""
        store = self._store
        if not (self._with_plans and (store.ledger.exists() or store.plans())):
            return None
        with Ledger.reading(store) as ledger, contextlib.suppress(Failure, UserError):
            last_plan = ledger.sealed_plan(store, name) if name in ledger.sweeps() else None
            if last_plan is not None and line.is_same_sweep(last_plan.declared):
                return last_plan
        return None


def readable_plan(name: str, store: Store) -> Plan | None:
    """Return the plan with this name, None if no such plan can be read: it is written again."""
    try:
        return store.read_plan(name)
    except Failure:
        return None
