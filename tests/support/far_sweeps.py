"""Sweeps that train elsewhere, and what must be true of them in the end.

Runs take long because their norm sleeps, not because they compute.
"""

from __future__ import annotations

import shutil
import subprocess

from conftest import Shell, wait_for

from ablate.store.ledger import Ledger
from ablate.store.pilots import read_beat
from ablate.store.store import Store

NORM = """
import os, time
from torch import nn

class Norm(nn.LayerNorm):
    def __init__(self, shape):
        super().__init__(shape.width)

    def forward(self, x):
        if self.training:
            time.sleep(float(os.environ.get("SLEEP", "0")))
        return super().forward(x)
"""
ROWS = ("norm=sleepy:Norm", "block.attn=pre,post", "model.depth=1", "train.steps=60", "--as", "s")
OFTEN = ("launcher.checkpoint_s=1", "launcher.attempts=1000")
SELDOM = ("launcher.checkpoint_s=1000", "launcher.attempts=1")  # who is stopped writes one anyway
CPU = ("launcher.gpus=1", "launcher.devices=cpu", "launcher.cpus=1")


def train_here(shell: Shell) -> Shell:
    """The sweep, trained in this process: what others must equal."""
    (shell.folder / "sleepy.py").write_text(NORM)
    shell("sweep", *ROWS, "seeds=2", "launcher=inline")
    return shell


def share_data(shell: Shell, calm: Shell) -> None:
    """Give a new store the norm and the decoded data of another."""
    if not (shell.folder / "sleepy.py").exists():
        shutil.copytree(calm.folder / "runs" / "cache", shell.folder / "runs" / "cache")
        (shell.folder / "sleepy.py").write_text(NORM)


def beats(shell: Shell) -> list[dict]:
    """Of pilots with a run that has made steps."""
    training = []
    for path in (shell.folder / "runs" / "pilots").glob("*/beat.json"):
        beat = read_beat(path)  # which may go this moment
        if any(notes.get("step", 0) > 3 for notes in beat.get("runs", {}).values()):
            training.append(beat)
    return training


def train(shell: Shell, pilots: int = 2) -> list[dict]:
    """Wait until so many pilots train; their beats."""
    return wait_for(lambda: found if len(found := beats(shell)) >= pilots else [])


def check(
    shell: Shell, process: subprocess.Popen, calm: Shell, runs: int = 4, timeout: float = 400
) -> list[int]:
    """The sweep ends with the calm one's table and files; how often each run was started."""
    done = shell.end(process, timeout=timeout)
    assert done.code == 0, done.out + done.err
    ours, theirs = (Store(shell.folder / "runs") for shell in (shell, calm))
    if runs == 4:
        words = ("table", "s", "--format", "tidy")
        assert shell(*words).out == calm(*words).out
    starts = []
    with Ledger.reading(ours) as ledger:
        for run in ours.read_plan("s").runs():
            kinds = [kind for _, kind, _ in ledger.events(run.id)]
            assert kinds.count("finished") == 1
            starts.append(kinds.count("started"))
            one, other = ours.rundir(run.id), theirs.rundir(run.id)
            assert not one.path.is_symlink()
            for name in ("metrics", "predictions", "weights"):
                assert getattr(one, name).read_bytes() == getattr(other, name).read_bytes()
    assert shell("verify", "s").out.startswith(f"verified: {runs} runs")
    assert len(starts) == runs
    return starts
