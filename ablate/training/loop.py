"""The training of one run, from its run.json to its result, top to bottom.

Used by training/worker.py for every run of `ablate sweep`, and by training/resume_check.py for
`ablate doctor`. What rank 0 announces (`ranks.tell`), here or in training/journal.py, must be known
to `_follow`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ablate.data import (
    AnySplit,
    Cached,
    ImageView,
    check_names,
    fraction_rows,
    match_labels,
    prepare_cache,
    resident_split,
    shake_once,
    shared_images,
)
from ablate.run import (
    LEAST_MICRO_BATCHES,
    META_FILE,
    Data,
    Run,
    RunDir,
    batch_divisors,
    check_ranks,
    decoding_facts,
)
from ablate.shared import read_json
from ablate.training.attempt import TrainingStopped
from ablate.training.calibrate import micro_batch
from ablate.training.journal import Journal, load_checkpoint
from ablate.training.model.norm.mixing import has_statistics
from ablate.training.numerics import choose, compile_step
from ablate.training.ranks import ALONE, Ranks
from ablate.training.starting_weights import start_of
from ablate.training.training import Training

LOOK_EVERY = 50  # steps between looks at the device for a non-finite loss


@dataclass(frozen=True)
class Machine:
    """The settings that the machine and the launcher decide: on one device none of them changes a
    result."""

    device: torch.device
    cache: Path
    checkpoint_s: float
    stopping: Callable[[], bool]
    beat: Callable[..., None]  # notes for whoever watches: step=, total=, phase=
    say: Callable[[str], None]  # a line for whoever reads the run's log
    settled: Mapping[str, Any] = field(default_factory=dict)  # see `settle`
    ranks: Ranks = ALONE  # which of them this is; all but the first follow its word

    def follower(self, ranks: Ranks, device: torch.device) -> Machine:
        """Return the settings for another rank, which is not watched."""
        return replace(self, ranks=ranks, device=device, beat=_silent, say=_silent)


def _silent(*words: Any, **notes: Any) -> None:
    """Say nothing."""


def train(run: Run, rundir: RunDir, machine: Machine) -> dict[str, Any]:
    """Train `run`; return the content of `result.json`. A rank that follows another returns nothing
    of use, and writes nothing.

    A run begins where it can, in this order:

    1. It resumes its newest usable checkpoint.
    2. It starts from the weights of its parent, or of a file.
    3. It initialises its weights from its seed.

    A checkpoint replaces whatever the model was built with. So the code goes the other way: it
    builds the model by 2 or 3, and then loads the checkpoint, if there is one.

    Writes checkpoints, `metrics.jsonl`, `predictions.npy` and what probes measure. Raises
    TrainingStopped when asked to stop (see `_Pulse` for the tests), UserError where the data does
    not fit the spec, OSError where the disk is full.
    """
    device, beat, say, ranks = machine.device, machine.beat, machine.say, machine.ranks
    choose(run, device, machine.settled).use()

    # --- Data -----------------------------------------------------------------------------------
    beat(phase="data")
    cached = prepare_cache(run.data, machine.cache, lambda count, _: beat(images=count))
    data, also, records = _splits(run, cached, machine)

    # --- Task, model, optimiser: 2. start from a parent or a file, or 3. initialise --------------
    memo = _memo(run, machine)
    start = start_of(run, rundir)  # None: the weights are initialised
    pulse = _Pulse(machine)
    training = Training(run, data["train"], device, pulse, memo, start, ranks)
    total, interval = training.lengths.total, run.eval.every * training.epoch

    # --- 1. Resume the newest checkpoint ---------------------------------------------------------
    if ranks.rank:
        load_checkpoint(rundir, training)
    else:
        sha256, checkpoint_s = cached.sha256, machine.checkpoint_s
        journal = Journal(training, rundir, sha256, machine.cache, checkpoint_s, beat, say)
        journal.resume()
    if total and not training.micro_batch:
        beat(phase="memory")
        training.micro_batch = _decided_micro_batch(training, machine)
    if total:
        check_ranks(run, training.micro_batch, ranks.world, has_statistics(training.model))
        compile_step(training, machine.cache, beat, say)
    training.compare()
    if ranks.rank:
        splits = {name: (data[name], run.data) for name in ("validation", "test")}
        for test_set in run.eval.also:
            splits[f"test {test_set.name}"] = also[test_set.name], test_set
        return _follow(training, splits)

    # --- Train loop -----------------------------------------------------------------------------
    if total:
        progress = f"step {training.steps} of {total}, {training.epoch} an epoch"
        say(f"training from {progress}, on {device}")
    while training.steps < total:
        enough = journal.watched()
        if enough is not None:
            return journal.pruned(enough)
        ranks.tell("step")
        training.step()
        step = training.steps
        measure = step % interval == 0 or step == total
        if measure or step % LOOK_EVERY == 0:
            bad = training.bad_step()
            if bad is not None:
                return journal.diverged(bad)
        if measure:
            beat(step=step, total=total, phase="validation")
            ranks.tell("validation")
            scores, _ = training.evaluate(data["validation"])
            if not journal.measured(scores):
                return journal.diverged(step - 1)
        if machine.stopping():
            journal.checkpoint()
            say(f"stopped at step {step}; its checkpoint is written")
            raise TrainingStopped
        if journal.is_due():
            journal.checkpoint()

    if not total:  # a task that trains nothing: what the run starts from is measured
        pulse.is_kept = True
        beat(step=0, total=0, phase="validation")
        ranks.tell("validation")
        scores, _ = training.evaluate(data["validation"])
        if not journal.measured(scores):
            return journal.diverged(0)

    # --- Test, once -----------------------------------------------------------------------------
    if run.eval.also:  # which may take longer than the notice that a job is given before its end
        journal.checkpoint_once()
        pulse.is_kept = True
    beat(step=total, total=total, phase="test")
    result = journal.finished(data)
    for test_set in run.eval.also:
        tested = records[test_set.name] | journal.tested(test_set, also[test_set.name])
        result.setdefault("also", {})[test_set.name] = tested
    return result


class _Pulse:
    """The signs of life of evaluations. `is_kept`: are all steps done, and in a checkpoint? Then it
    raises TrainingStopped between two batches when asked to stop."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self.is_kept = machine, False

    def __call__(self, **notes: Any) -> None:
        self._machine.beat(**notes)
        if self.is_kept and self._machine.stopping():
            self._machine.say("stopped during the tests, which begin again")
            raise TrainingStopped


def _memo(run: Run, machine: Machine) -> Path:
    """Return where the measures of the training images are kept, see `Host.fit`. Sums over other
    batches, or on another kind of device, have other last bits."""
    view, device = ImageView.from_run(run).name, machine.device.type
    return machine.cache / f"{run.data.fingerprint}.{view}.{run.eval.batch}.{device}"


def _decided_micro_batch(training: Training, machine: Machine) -> int:
    """Return the images of a forward pass where `train.micro_batch` is auto: as the column has
    settled it, else as many as fit into memory."""
    decided = machine.settled.get("micro_batch")
    batch = training.run.train.batch
    if machine.ranks.world > 1 and not decided:  # each would find its own
        decided = max(1, batch // LEAST_MICRO_BATCHES)
    if decided:
        return next(batch_divisors(batch, decided))
    return micro_batch(training)


def _follow(training: Training, splits: Mapping[str, tuple[AnySplit, Data]]) -> dict[str, Any]:
    """Do what rank 0 announces, until it ends this process."""
    while True:
        match training.ranks.hear():
            case "step":
                training.step()
            case "compare":
                training.compare()
            case name:
                training.evaluate(*splits[name])


def _splits(
    run: Run, cached: Cached, machine: Machine
) -> tuple[dict[str, AnySplit], dict[str, AnySplit], dict[str, dict[str, Any]]]:
    """Return the splits of the run's own set by name, and those of `eval.also` with what the result
    records about each (see `_also`): prepared as the run asks, its own on the device."""
    data = {name: cached.split(name) for name in ("train", "validation", "test")}
    also, records = _also(run, cached, data["train"], machine)
    if run.eval.augment:
        for name in ("validation", "test"):
            data[name] = shake_once(data[name], run.augment)
        also = {name: shake_once(split, run.augment) for name, split in also.items()}
    if run.data.fraction < 1:
        rows = torch.from_numpy(fraction_rows(run.data, len(data["train"])))
        data["train"] = data["train"].take(rows)
    data = {name: resident_split(split, machine.device) for name, split in data.items()}
    return data, also, records


def _also(
    run: Run, learnt: Cached, train: AnySplit, machine: Machine
) -> tuple[dict[str, AnySplit], dict[str, dict[str, Any]]]:
    """Return the sets of `eval.also` by name, labelled with the classes of the training set; and
    what the result records about each: the hash of its data, images left out, images that are
    trained on."""
    sets, records = {}, {}
    for test_set in run.eval.also:
        cached = prepare_cache(test_set, machine.cache, lambda count, _: machine.beat(images=count))
        split = cached.split("test")
        if run.text is None:
            numbers, _ = match_labels(test_set, cached, run.data, learnt)
            split = relabel(split, numbers)
        else:  # texts ask for the classes of any set that names them
            check_names(test_set, cached.class_names)
        facts = decoding_facts(read_json(cached.folder / META_FILE))
        if not machine.ranks.rank:  # the first alone tells of it
            overlap = shared_images(train, split, lambda row: machine.beat(images=row))
            if overlap:
                facts["shared"] = {"test": [overlap, len(split)]}
        sets[test_set.name] = split
        records[test_set.name] = {"data_sha256": cached.sha256, **facts}
    return sets, records


def relabel(split: AnySplit, numbers: list[int] | list[list[int]]) -> AnySplit:
    """Return the split with its own class numbers replaced by those of `match_labels`: labels
    (N,), or (N, K) where an image has up to K classes."""
    return dataclasses.replace(split, labels=torch.tensor(numbers)[split.labels])
