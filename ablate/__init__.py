"""`ablate`: does this change to a Vision Transformer help, and how sure are we?"""

from __future__ import annotations

import os

from ablate.version import __version__ as __version__

TYPE_CHECKING = False  # typing is long to import, and no Ctrl-C is ours to hear before `ablate.cli`
if TYPE_CHECKING:
    import pandas as pd


def load(
    name: str | None = None,
    store: str | os.PathLike[str] | None = None,
    *,
    curves: bool = False,
    trials: bool = False,
) -> pd.DataFrame:
    """The runs of a sweep as a tidy pandas frame; with `curves` what was measured while they ran.

    `name` is the sweep's, as `ablate table` takes it; None is the last driven. `store` is the
    folder of a store, or of a bundle that `ablate export` wrote; None is $ABLATE_STORE or ./runs.

    Runs that are reported, a row each: `sweep`, `row`, `column`, `seed`, `id`, `family`; every key
    that varies (`stem`, `block.attn`, what was tuned, ...) as the run had it; `status` (finished,
    diverged, failed, planned, ...); the metrics of its task on the test set (of classification
    `top1` and `top5`, fractions, top5 from 10 classes, and `loss`, nats), `test_n` (images), the
    same of each set of `eval.also` (`top1@dark`), and so the metric of your own that its table is
    of (`mymetrics:ece`); the numbers of its probes (`gradnorm:embedding`, ...: `ablate list
    metrics`);
    `step` (optimiser steps), `train_loss` (of the last epoch), `collapsed` (bool), `seconds` (of
    training), `device`; `parameters` and `multiply_adds` (of an image). What a run has not is
    missing. Where settings were tuned, `search` is the one whose winner the run has; with `trials`
    the trainings of searches come first: numbered by `trial`, with the validation `score` that
    they were judged by, and without test scores.

    Curves, a row an evaluation of a run: `sweep`, `row`, `column`, `seed`, `id`, `step`, `epoch`,
    and what it measured then: `lr`, `train_loss`, the metrics of the task (`val_top1`, ...) and
    `val_n` (images).

    Raises ablate.shared.errors.UserError where there is no such store or sweep, and
    ablate.shared.errors.Failure where its plan is not whole.
    """
    from pathlib import Path

    from ablate.audit.bundle import open_sweep
    from ablate.report.frames import curves_frame, measured_records, runs_frame
    from ablate.store.record import load_records

    root = Path(store or os.environ.get("ABLATE_STORE", "runs"))
    plan, kept, told = open_sweep(root, name)
    runs = measured_records(plan, kept, load_records(plan, kept, told, probes=True))
    return curves_frame(plan, runs, trials) if curves else runs_frame(plan, runs, trials)
