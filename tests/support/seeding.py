"""Declare a sweep with looks, and compute its seeds."""

from __future__ import annotations

import numpy as np

from ablate.analysis import stats

FILE = """
title: few seeds
base: {recipe: quick, data: digits, model.arch: mu/4, model.depth: 1, train.epochs: 2,
       optim.warmup_epochs: 0}
across: {train.batch: [64, 128]}
variants:
  - plain: {}
  - DPN: {stem: dpn}
  - asleep: {optim.lr: 3e-4}
until: {looks: [5, 7, 9], margin: 2}
"""
LOOKS = (5, 7, 9)


def declare_seeding(folder, text=FILE, name="few"):
    """Write the sweep file NAME.yaml, by default of a sweep with looks."""
    (folder / "sweeps").mkdir(exist_ok=True)
    (folder / "sweeps" / f"{name}.yaml").write_text(text)


def seeds_given(y, rows, margin):
    """Count the seeds that each row is given, by the pure function. Without images, as here, looks
    judge each row by its own spread."""
    method = stats.Sequential(LOOKS, margin, "paired", contrasts=len(rows) - 1)
    state, found = stats.before_looks(len(rows)), dict.fromkeys(rows, LOOKS[0])
    for at, n in enumerate(LOOKS):
        for row in (0, *np.flatnonzero(state.active)) if state.active.any() else ():
            found[rows[row]] = n
        _, state = stats.take_look(y[:, :n], at, state, method)
    return found
