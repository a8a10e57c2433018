"""Write stores whose runs were never trained: their folders as a worker leaves them."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from ablate.planning import expand
from ablate.run.metrics import classify
from ablate.run.rundir import Metrics
from ablate.shared.files import to_json
from ablate.store.ledger import Ledger
from ablate.store.store import Store

WORDS = ["optim.lr=0.001,0.003", "recipe=quick", "seeds=3"]
NAME = "planted"


def leave_run(store: Store, run: Any, top1: float) -> None:
    """Write a run's folder as a worker leaves it, except for the weights."""
    folder = store.rundir(run.id)
    folder.path.mkdir(parents=True)
    folder.run.write_bytes(to_json({"id": run.id, "spec": run.spec.tree}))
    folder.lock.path.write_text('{"pid": 1, "exit": "result"}')
    folder.write_attempts([{"at": 1.0, "ended": 2.0, "pid": 1, "exit": "result", "from_step": 0}])
    metrics = Metrics(folder.metrics)
    for n in (1, 2):
        scores = {"val_n": 300, "val_loss": 0.1, "val_top1": top1 / n, "val_top5": 1.0}
        line = {"step": 9 * n, "epoch": 1.0 * n, "lr": 0.1, "train_loss": 0.1, **scores}
        metrics.append(line)
    told = np.zeros(300, [("predicted", "u2"), ("rank", "u2"), ("loss", "f8")])
    told["rank"][round(300 * top1) :] = 1
    content = io.BytesIO()
    np.save(content, told)
    folder.predictions.write_bytes(content.getvalue())
    result = {
        **{"status": "finished", "step": 18, "seconds": 9.0, "collapsed": False, "digest": "a"},
        **{"device": "cpu", "threads": 1, "torch": "2", "kernel": "k", "micro_batch": 9},
        **{"train_loss": 0.1, "prior_loss": 2.3, "fingerprint": "f", "plugins": {"norm": None}},
        **{"parameters": 7, "multiply_adds": 9, "images_per_s": 3.0, "peak_bytes": None},
        "test": classify.classification_scores(told, 10),
        "validation": {key[4:]: value for key, value in scores.items()},
        "metrics_sha256": hashlib.sha256(folder.metrics.read_bytes()).hexdigest(),
        "predictions_sha256": hashlib.sha256(content.getvalue()).hexdigest(),
        "probes_sha256": {},
        "env_sha256": hashlib.sha256(folder.env.read_bytes()).hexdigest(),
    }
    folder.result.write_bytes(to_json(result))


ROWS = ("none", "dpn")
TINY = ("model.arch=mu/4", "model.depth=1", "train.steps=2")


def sow_store(folder: Path, name: str, seeds: int, *words: str, finish: int | None = None) -> Store:
    """Write a store with a sweep whose runs have results and predictions, but were never trained.
    `finish`: how many seeds of the rows with dpn have finished (default: all)."""
    store = Store(folder)
    words = (f"stem={','.join(ROWS)}", *TINY, f"seeds={seeds}", *words)
    plan, _ = expand.plan_from_words(words, store=folder, name=name)
    with Ledger.driving(store) as ledger:
        store.write_plan(plan)
        ledger.plan(plan)
    rng = np.random.default_rng(seeds)
    chance = np.where(rng.random(300) < 0.7, 1.0, 0.5)
    for cell in plan.cells:
        done = finish if ROWS[1] in cell.row and finish is not None else seeds
        for run in list(cell.ids.values())[:done]:
            # A run is better or worse as a whole, too.
            shift = rng.normal(0, 0.1, 1) * (chance < 1)
            finish(store, run, rng.random(300) < chance + shift)
    return store


def finish(store: Store, run: str, right: np.ndarray) -> None:
    """Write the result and predictions of a run; `right`: which images it got right."""
    folder = store.rundir(run)
    folder.path.mkdir(parents=True, exist_ok=True)
    table = np.zeros(len(right), [("class", "i4"), ("rank", "i4"), ("loss", "f8")])
    table["rank"] = np.where(right, 0, 7)
    np.save(folder.predictions, table)
    test = {"n": len(right), "loss": 1 - right.mean(), "top1": right.mean(), "top5": right.mean()}
    result = {
        **{"status": "finished", "collapsed": False, "test": test, "validation": test},
        "predictions_sha256": hashlib.sha256(folder.predictions.read_bytes()).hexdigest(),
    }
    folder.result.write_text(json.dumps(result))
