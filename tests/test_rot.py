"""Files of an interrupted run that rot: cut short, bits flipped, pages zeroed, gone. What the run
ends with is what it would have ended with, bit for bit, and nothing damaged is gone on from."""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from damage import DAMAGES, spoil
from safetensors.torch import load, save

from ablate.run import decoded
from ablate.run.build import build_run
from ablate.run.fingerprint import data_fingerprint
from ablate.run.rundir import RunDir
from ablate.training import journal, sealed_file, worker
from ablate.training.journal import read_checkpoint
from ablate.training.loop import Machine, TrainingStopped, train
from ablate.training.model import build

# Costs; and code that took part, which the stopped one, trained without a worker, has not noted.
pytestmark = pytest.mark.faults

OTHERWISE = ("seconds", "images_per_s", "peak_bytes", "utilisation", "digest", "env_sha256")
STOPS = (5, 4)  # steps that the first worker did, and the second: 2 are an epoch
TOTAL = 12


class Interrupted:
    """A tiny run, once trained to its end and once stopped twice, in the middle of epochs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "cache"
        small = {"model.depth": 1, "model.width": 16, "model.heads": 2, "data.channels": 1}
        length = {"train.batch": 512, "train.epochs": TOTAL // 2, "train.ema": 0.9}
        run = tiny.run({**small, **length, "data.fingerprint": "", "model.dropout": 0.1})
        self.tree = run.spec.tree
        data = {key: value for key, value in self.tree["data"].items() if key != "fingerprint"}
        self.tree["data"]["fingerprint"] = data_fingerprint(data)
        self.tree["model"]["patch"] = None
        self.straight, self.stopped = RunDir(folder / "straight"), RunDir(folder / "stopped")
        self.straight.create(self.tree)
        self.resume(self.straight)
        self.stopped.create(self.tree)
        for steps in STOPS:
            self.stop(self.stopped, steps)

    def stop(self, rundir: RunDir, after: int, checkpoint_s: float = 1e9) -> None:
        """Train on; stopped after so many steps."""
        steps, cpu = itertools.count(1), torch.device("cpu")
        rest = (lambda: next(steps) == after, lambda **notes: None, rundir.say)
        machine = Machine(cpu, self.cache, checkpoint_s, *rest)
        with pytest.raises(TrainingStopped):
            train(build_run(self.tree), rundir, machine)

    def resume(self, rundir: RunDir) -> int:
        """Work on it to the end, in this process; the step that it went on from."""
        options = {"slot": "cpu", "device": "cpu", "threads": 1, "checkpoint_s": 1e9}
        assert worker.work(str(rundir.path), {**options, "cache": str(self.cache)}) == 0
        return int(re.findall(r"training from step (\d+)", rundir.log.read_text())[-1])

    def copy(self, name: str) -> RunDir:
        return RunDir(shutil.copytree(self.stopped.path, self.folder / name))

    def same(self, rundir: RunDir) -> bool:
        """Is all that it ended with what the run has that was never stopped?"""

        def end(side: RunDir) -> list[Any]:
            told = {k: value for k, value in side.read_result().items() if k not in OTHERWISE}
            files = (side.metrics, side.predictions, side.weights)
            return [told, *(path.read_bytes() for path in files)]

        return end(self.straight) == end(rundir)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    before = torch.get_num_threads()
    yield Interrupted(tmp_path_factory.mktemp("rot"))
    torch.set_num_threads(before)


def test_nothing_goes_on_from_what_was_trained_on_damaged_data(run):
    """Somebody else finds the damage, decodes anew, and this one's worker is killed meanwhile."""
    rundir = run.copy("distrusted")
    assert len(rundir.checkpoints()) == 2
    rundir = RunDir(shutil.move(rundir.path, run.folder / "runs" / "distrusted"))
    decoded.begin_again(rundir.runs, rundir.read_spec()["data"]["fingerprint"])
    assert run.resume(rundir) == 0
    assert not rundir.distrust.exists()
    assert run.same(rundir)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("times", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_the_result_is_that_of_the_undisturbed_run(run, damage, times, capfd):
    moment = random.Random(f"{damage.__name__} {times}")
    begun = set()
    for n in range(times):
        rundir = run.copy("damaged")
        (newest, last), (older, before) = rundir.checkpoints()
        assert (newest, older) == (sum(STOPS), STOPS[0])
        files = [last, before, rundir.metrics]
        damaged = [[last], [before], [rundir.metrics], files[:2], files]
        for path in damaged[n % len(damaged)]:
            assert spoil(path, damage, moment)
        begun.add(run.resume(rundir))
        assert run.same(rundir)
        shutil.rmtree(rundir.path)
    assert begun == {0, older, newest}
    assert capfd.readouterr().err == ""


def test_every_bit_of_a_checkpoint_counts(run):
    """One at a time, at 300 places of the header and 100 behind it."""
    path = run.copy("bits").checkpoints()[0][1]
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    moment = random.Random(0)
    places = [moment.randrange(header) for _ in range(300)]
    places += [moment.randrange(header, len(whole)) for _ in range(100)]

    def is_read(content, more=0):
        path.write_bytes(content)
        return read_checkpoint(path, sum(STOPS) + more) is not None

    for place in places:
        bit = bytes([whole[place] ^ (1 << moment.randrange(8))])
        assert not is_read(whole[:place] + bit + whole[place + 1 :]), place
    unsealed = whole[:-1].replace(b'"sha256":"', b'"sha257":"')
    assert not is_read(unsealed + bytes([whole[-1] ^ 1]))
    assert not is_read(whole, more=1)  # another's name
    assert is_read(whole)
    lengths = {*range(header + 9), *range(header, len(whole), 997)}
    for length in sorted(lengths, reverse=True):  # writing each anew would wait for the disk
        os.truncate(path, length)
        assert read_checkpoint(path, sum(STOPS)) is None, length


@pytest.mark.parametrize("line", [0, 2, 3])
def test_damaged_metrics_go_back_to_a_checkpoint_before_the_damage(run, line):
    """Two lines are in the older checkpoint's seal, four in the newer's; all of them parse."""
    rundir = run.copy(f"line-{line}")
    lines = rundir.metrics.read_text().splitlines(keepends=True)
    assert len(lines) == 4
    lines[line] = re.sub(r'("train_loss": )\d', r"\g<1>7", lines[line])
    rundir.metrics.write_text("".join(lines))
    assert run.resume(rundir) == (0 if line < 2 else STOPS[0])
    assert "is passed over" in rundir.log.read_text()
    assert run.same(rundir)


def test_the_checkpoint_that_was_gone_on_from_outlives_a_damaged_newer_one(run, monkeypatch):
    rundir = run.copy("kept")
    (newest, last), (older, _) = rundir.checkpoints()
    last.write_bytes(last.read_bytes()[:-1])
    run.stop(rundir, newest - older + 1)
    assert [step for step, _ in rundir.checkpoints()] == [newest + 1, older]
    monkeypatch.setattr(journal, "CHECKPOINT_SHARE", math.inf)
    run.stop(rundir, 2, checkpoint_s=0)  # one after each step
    assert [step for step, _ in rundir.checkpoints()] == [newest + 3, newest + 2]
    assert run.resume(rundir) == newest + 3
    assert run.same(rundir)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_rotten_moments_of_the_data_are_computed_again(damage, tmp_path):
    """What `stem=whiten` keeps beside the decoded data, for all runs."""
    shape = tiny.run({"stem": "whiten", "model.depth": 1})
    images, moment = [tiny.images(64, shape)], random.Random(damage.__name__)

    def fitted():
        model = build(shape)
        model.fit(images, tmp_path / "memo")
        return model.state_dict()

    whole = fitted()
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for _ in range(20):
        spoil(path, damage, moment)
        assert all(torch.equal(tensor, whole[name]) for name, tensor in fitted().items())
        again, _ = sealed_file.read_tensors(path)
        assert torch.equal(again["mean"], load(content)["mean"])
    path.write_bytes(save(load(content)))  # without its seal
    assert all(torch.equal(tensor, whole[name]) for name, tensor in fitted().items())
    assert path.read_bytes() == content
