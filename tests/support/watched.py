"""Write a store with a sweep of rows and columns in the middle of its training, for live views: runs
that have finished, failed or are trained now, with curves. Nothing is trained."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.planning import expand
from ablate.planning.cell import PlannedRun
from ablate.shared.files import to_json
from ablate.shared.notes import Notes
from ablate.shared.rundir import Metrics
from ablate.store.ledger import Ledger, result_detail
from ablate.store.store import Store
from support.stores import leave_run

EPOCHS = 12


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


SIZES = {
    4: Size(2, 1, 2, finished=1, failed=1, running=1),
    96: Size(6, 4, 4, finished=40, failed=2, running=2),
    1000: Size(10, 10, 10, finished=600, failed=8, running=4),
}


def whole(size: Size) -> Size:
    """Return the same sweep with every run finished."""
    return dataclasses.replace(size, finished=size.runs, failed=0, running=0)


@contextlib.contextmanager
def watched_store(folder: Path, size: Size, name: str = "watched") -> Iterator[Store]:
    """Write the store, and hold the locks of the workers meanwhile."""
    store = Store(folder)
    file = folder.parent / f"{name}.yaml"
    tree: dict[str, Any] = {
        "title": f"Weight decay, {size.runs} runs",
        "base": {"recipe": "quick", "model.arch": "mu/4"},
        "variants": [{f"decay {n}": {"optim.wd": n / 50}} for n in range(size.rows)],
        "seeds": size.seeds,
    }
    if size.columns > 1:
        tree["across"] = {"model.depth": list(range(1, size.columns + 1))}
    file.write_text(json.dumps(tree))
    plan, _ = expand.plan_from_words([str(file)], store=folder)
    with Ledger.driving(store) as ledger:
        store.write_plan(plan)
        ledger.plan(plan)
    runs = list(plan.runs())
    assert len(runs) == size.runs, [(r.cell.row, r.cell.column, r.seed) for r in runs]
    draw = random.Random(size.runs)
    histories = {}
    began = time.time() - 3600
    labels = [column.label for column in plan.columns]
    rows = [row.label for row in plan.rows]
    for place, run in enumerate(runs[: size.finished + size.failed + size.running]):
        at = began + 30.0 * place
        started = (at, "started", {"step": 0, "slot": "cpu:0"})
        best = 0.6 + 0.02 * rows.index(run.cell.row) + 0.02 * labels.index(run.cell.column)
        best += draw.gauss(0, 0.015)
        leave_run(store, run_of(run), round(min(best, 0.98), 4))
        folder_ = store.rundir(run.id)
        ended = place < size.finished
        write_curve(folder_.metrics, best, EPOCHS if ended else EPOCHS // 2, draw)
        folder_.log.write_text(f"{run.label}\n" + "epoch 1: loss 2.1\n" * 20)
        result = json.loads(folder_.result.read_bytes())
        if ended:
            result["metrics_sha256"] = hashlib.sha256(folder_.metrics.read_bytes()).hexdigest()
            folder_.result.write_bytes(to_json(result))
            histories[run.id] = [started, (at + 60, "finished", result_detail(folder_, result))]
        else:
            folder_.result.unlink()
            histories[run.id] = [started]
            if place < size.finished + size.failed:
                folder_.lock.path.write_text('{"pid": 1, "exit": "failed", "error": "a < b & c"}')
                histories[run.id].append((at + 5, "failed", {"reason": "failed"}))
    with Ledger.driving(store) as ledger:
        ledger.bring(histories, {}, [])
    with contextlib.ExitStack() as held:
        for n, run in enumerate(runs[size.finished + size.failed :][: size.running]):
            lock = store.rundir(run.id).lock
            held.enter_context(lock.hold())
            lock.note(
                **Notes(
                    pid=1, slot=f"cpu:{n}", phase="train", step=600, total=1200, from_step=0,
                    from_at=time.time() - 30,
                ).tree()
            )
        yield store


def run_of(run: PlannedRun):
    return type("Planned", (), {"id": run.id, "spec": run.cell.spec.with_seed(run.seed)})


def write_curve(path: Path, best: float, epochs: int, draw: random.Random) -> None:
    """Write the metrics of a training that approaches `best`."""
    metrics = Metrics(path)
    for n in range(1, epochs + 1):
        risen = 1 - math.exp(-n / 4)
        loss = 2.3 - 2.0 * risen * best + draw.gauss(0, 0.02)
        metrics.append(
            {
                **{"step": 100 * n, "epoch": float(n), "lr": 0.1, "train_loss": loss},
                **{"val_n": 300, "val_loss": loss, "val_top1": best * risen, "val_top5": 1.0},
            },
            sync=False,
        )
