"""Parts that ship, each trained for two epochs on digits: its losses fall, in training and on
images that it has not seen. More takes longer: what a part computes is compared elsewhere."""

from __future__ import annotations

import pytest
from conftest import REPOSITORY

from ablate.store.store import Store

PARTS = """\
title: Parts of recent papers
base: {recipe: quick, data: digits, data.channels: 3, model.arch: mu/4, model.depth: 2,
  train.epochs: 2, optim.warmup_epochs: 1}
baseline: plain
seeds: 1
variants:
  - plain: {}
  - axial RoPE: {model.posemb: rope2d}
  - axial RoPE of DINOv3: {model.posemb: rope2d_dinov3}
  - Derf: {norm: derf}
  - hMLP: {stem: hmlp}
  - LAMB: {optim.name: lamb, optim.lr: 0.1}
  - 3-Augment: {augment.three: true}
  - DeiT III: {recipe: deit3, model.arch: deit_s/16, model.width: 48, model.heads: 3, data.size: 32,
      model.input: null, train.batch: 64, train.precision: fp32, optim.lr: 0.1,
      optim.warmup_epochs: 1, train.epochs: 2, eval.every: 1}
"""


def histories(folder, name: str) -> dict[str, list[dict]]:
    """The metrics of every finished run, epoch by epoch, by its row."""
    store = Store(folder / "runs")
    runs = store.read_plan(name).runs()
    return {run.cell.row: store.rundir(run.id).read_metrics() for run in runs}


def learns(history: list[dict]) -> bool:
    first, last = history
    return all(last[name] < first[name] for name in ("train_loss", "val_loss"))


@pytest.mark.whole
def test_every_new_part_trains(shell):
    (shell.folder / "sweeps").mkdir()
    (shell.folder / "sweeps" / "recent.yaml").write_text(PARTS)
    shell("sweep", "recent")
    by_row = histories(shell.folder, "recent")
    assert len(by_row) == 8
    assert {row: learns(history) for row, history in by_row.items()} == dict.fromkeys(by_row, True)


@pytest.mark.whole
def test_every_named_placement_trains_at_the_scale_smoke(shell):
    (shell.folder / "sweeps").symlink_to(REPOSITORY / "sweeps")
    shell("sweep", "placement_2026", "--scale", "smoke")
    by_row = histories(shell.folder, "placement_2026@smoke")
    assert len(by_row) == 18
    assert {row: learns(history) for row, history in by_row.items()} == dict.fromkeys(by_row, True)
