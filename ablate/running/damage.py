"""Puts runs with damaged files aside, so that they are trained again."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator

from ablate.planning.cell import PlannedRun
from ablate.shared.errors import Failure
from ablate.shared.files import make_folder, sync_folder
from ablate.store.ledger import Ledger
from ablate.store.store import REMEDY, Store


def check_parents(runs: Iterable[PlannedRun], store: Store) -> None:
    """Raises Failure where weights that a run will start from are not those that were trained."""
    left = [run for run in runs if not store.rundir(run.id).has_result()]
    parents = [parent for run in left if (parent := run.parent()) is not None]
    if why := [*store.results(parents, weights=True).withheld.values()]:
        raise Failure(f"other runs start from damaged ones: {'; '.join(why)}; {REMEDY}")


def put_aside(runs: Iterable[PlannedRun], store: Store, ledger: Ledger) -> Iterator[str]:
    """Move the folder of every run that has ended and of which a file is not what it left into
    `damaged/`; yields a line on each. In the driver's turn.

    One rename a run, then the event: after a crash between the two the run's folder is lost, and
    the next driver trains it again as such.
    """
    runs = list(runs)
    every = dict.fromkeys(("curves", "probes", "predictions", "weights"), True)
    for run, why in store.results(runs, **every).withheld.items():
        folder = store.rundir(run)
        if folder.path.is_symlink() or store.liveness.alive(folder):
            continue  # its driver judges an attempt that has not ended
        make_folder(store.damaged)
        places = (store.damaged / f"{run}-{n}" for n in itertools.count(1))
        place = next(place for place in places if not os.path.lexists(place))
        folder.path.rename(place)
        sync_folder(store.damaged)
        sync_folder(store.runs)
        if run in ledger.states([run]):
            ledger.record(run, "interrupted", reason=why)
        yield f"put aside: {why}; its folder is {place} now"
