"""Write a store with a sweep in the middle of its training, for live views: its runs have finished,
have failed or are trained now, and have curves. Nothing is trained."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ablate.planning import expand
from ablate.planning.cell import PlannedRun
from ablate.planning.plan import Plan
from ablate.shared.notes import Notes
from ablate.store.events import result_detail
from ablate.store.ledger import Ledger
from ablate.store.store import Store
from support.stores import finish

EPOCHS, IMAGES = 12, 300
RUN_S, EVERY_S = 60.0, 30.0  # seconds of a run; between starts: two slots
ERROR = "a < b & c"


@dataclass(frozen=True)
class Size:
    """The size of a made sweep, and how many of its runs, in the order of the plan, are in which
    state; the others are planned."""

    rows: int
    columns: int
    seeds: int
    finished: int
    failed: int = 0
    running: int = 0

    @property
    def runs(self) -> int:
        return self.rows * self.columns * self.seeds

    def complete(self) -> Size:
        """Return the same sweep with every run finished."""
        return dataclasses.replace(self, finished=self.runs, failed=0, running=0)


SIZES = {
    4: Size(2, 1, 2, finished=1, failed=1, running=1),
    96: Size(6, 4, 4, finished=40, failed=2, running=2),
    1000: Size(10, 10, 10, finished=600, failed=8, running=2),
}


@contextlib.contextmanager
def watched_store(folder: Path, size: Size) -> Iterator[Store]:
    """Write the store, and hold the locks of the workers meanwhile."""
    store = Store(folder)
    plan = _plan(folder, size)
    with Ledger.driving(store) as ledger:
        store.write_plan(plan)
        ledger.plan(plan)
    runs = list(plan.runs())
    assert len(runs) == size.runs
    draw = random.Random(size.runs)
    begun = runs[: size.finished + size.failed + size.running]
    first_start = time.time() - EVERY_S * len(begun)
    histories = {}
    for place, run in enumerate(begun):
        start = first_start + EVERY_S * place
        histories[run.id] = [(start, "started", {"step": 0, "slot": "cpu:0"})]
        kept = place < size.finished
        top1 = _leave_files(store, plan, run, EPOCHS if kept else EPOCHS // 2, draw)
        if kept:
            finish(store, run.id, np.arange(IMAGES) < IMAGES * top1)
            folder_of_run = store.rundir(run.id)
            detail = result_detail(folder_of_run, json.loads(folder_of_run.result.read_bytes()))
            histories[run.id].append((start + RUN_S, "finished", detail))
        elif place < size.finished + size.failed:
            left = {"pid": 1, "exit": "failed", "error": ERROR}
            store.rundir(run.id).lock.path.write_text(json.dumps(left))
            histories[run.id].append((start + 5, "failed", {"reason": "failed"}))
    with Ledger.driving(store) as ledger:
        ledger.bring(histories, {}, [])
    with contextlib.ExitStack() as held:
        for place, run in enumerate(begun[size.finished + size.failed :]):
            lock = store.rundir(run.id).lock
            held.enter_context(lock.hold())
            notes = Notes(pid=1, slot=f"cpu:{place}", phase="train", step=600, total=1200)
            lock.note(**notes.tree())
        yield store


def _plan(folder: Path, size: Size) -> Plan:
    tree: dict[str, Any] = {
        "title": f"Weight decay, {size.runs} runs",
        "base": {"recipe": "quick", "model.arch": "mu/4"},
        "variants": [{f"decay {n}": {"optim.wd": n / 50}} for n in range(size.rows)],
        "seeds": size.seeds,
    }
    if size.columns > 1:
        tree["across"] = {"model.depth": list(range(1, size.columns + 1))}
    file = folder.parent / "watched.yaml"
    file.write_text(json.dumps(tree))
    plan, _ = expand.plan_from_words([str(file)], store=folder)
    return plan


def _leave_files(
    store: Store, plan: Plan, run: PlannedRun, epochs: int, draw: random.Random
) -> float:
    """Write the log and the curves of a run; return the accuracy that it approaches."""
    rows, columns = ([part.label for part in parts] for parts in (plan.rows, plan.columns))
    place = rows.index(run.cell.row) + columns.index(run.cell.column)
    best = min(0.98, 0.6 + 0.02 * place + draw.gauss(0, 0.015))
    folder = store.rundir(run.id)
    folder.path.mkdir(parents=True)
    folder.log.write_text(f"{run.label}\n" + "epoch 1: loss 2.1\n" * 20)
    with open(folder.metrics, "w") as file:
        for epoch in range(1, epochs + 1):
            risen = 1 - math.exp(-epoch / 4)
            loss = 2.3 - 2.0 * risen * best + draw.gauss(0, 0.02)
            line = {"step": 100 * epoch, "epoch": float(epoch), "train_loss": loss}
            file.write(json.dumps({**line, "val_n": IMAGES, "val_top1": best * risen}) + "\n")
    return best
