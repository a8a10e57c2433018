"""The training of one run on one device. `Training.step` is the only training step there is.

Used by training/loop.py for every run of `ablate sweep`, and by training/calibrate.py and
training/rehearsal.py before it. Where the same settings would train differently, `DRAWS` in
run/spec.py must be raised.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from ablate.data import AnySplit, Batches, Delivery, Draws, ImageView, evaluation_batches
from ablate.run import TASKS, Data, Run
from ablate.training.attempt import RankLost
from ablate.training.bfloat16 import round_weights, rounded_weights
from ablate.training.device import device_of
from ablate.training.inputs_ahead import InputsAhead
from ablate.training.micro_batches import MicroBatches
from ablate.training.model import Host, build
from ablate.training.model.drop import StepKey
from ablate.training.model.whole_model import seeded
from ablate.training.optim import (
    Average,
    Lengths,
    learning_rate,
    lengths,
    make_optimizer,
    own_factor,
    restore,
    tensors_of,
)
from ablate.training.own_augment import Augmentations
from ablate.training.probes import Probes
from ablate.training.ranks import ALONE, Ranks, unequal
from ablate.training.starting_weights import begin
from ablate.training.task import Evaluation, Predictor, make_task

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,  # as it is kept; see numerics
    "bf16": torch.bfloat16,
    "fp64": torch.float64,
}
COMPARED = 50  # steps between looks at the weights of all ranks
LOSSES = 64  # steps after which they are looked at, at the latest
_NO_WEIGHTS: Mapping[str, Tensor] = MappingProxyType({})


@dataclass
class TrainState:
    """The state that a training carries from step to step, apart from its tensors."""

    step: int = 0
    loss_sum: float = 0.0  # of the steps since the last line of metrics.jsonl
    loss_steps: int = 0
    bad_step: int = -1  # first step with a non-finite loss
    seconds: float = 0.0
    micro_batch: int = 0  # images of a forward pass, once it was decided: kept, so bits are, too
    compiled: bool = False  # so are these


class Training:
    """A run between its first step and its last: task, batches, model, optimiser, average, probes.

    It knows no folder: `loop` writes its files, while calibration and the search for a micro-batch
    only make steps. Every random draw is keyed, so `state` is all that must be kept.
    """

    def __init__(
        self,
        run: Run,
        train: AnySplit,
        device: torch.device,
        beat: Callable[..., None] = lambda **notes: None,
        memo: Path | None = None,
        start: Mapping[str, Tensor] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """`beat` is called for every batch that is evaluated. `memo`: see `Host.fit`; None: what is
        measured before the first step is left as it was initialised. `start`: weights to start
        from, see `starting_weights`; None: those of the run's seed. `ranks`: the ranks that share
        the steps; all of them call `step`, `evaluate` and `compare` alike.

        Raises UserError where the data does not fit the spec, or the model can't be built.
        """
        self.ranks = ranks
        device = device_of(device)
        self.run, self.device, self.dtype = run, device, DTYPES[run.train.precision]
        self.weights = torch.float64 if self.dtype == torch.float64 else torch.float32
        self.task = make_task(run)
        self._beat, self._view, self.train = beat, ImageView.from_run(run), train
        trains = TASKS[run.task].trains
        batch = run.train.batch
        if not trains:
            batch = min(batch, len(train))

        # --- Batches and masks: keyed, so there is nothing to save or restore -------------------
        draws = Draws(run.seed, device)
        self._masks = StepKey(draws, batch, self.weights)
        delivery = Delivery(
            ahead=train.device.type != device.type,
            rows=ranks.share(batch),
            sum_over_rows=lambda count: ranks.summed(count[None])[0],
        )
        extra = Augmentations(run.augment)
        self.batches = Batches(train, batch, run.augment, draws, self._view, extra, delivery)

        # --- Model, optimiser, lengths in steps -------------------------------------------------
        self.model = build(run, device).to(self.weights)
        if isinstance(self.model, Host):
            self.model.bind(self._masks)
        if start is not None:
            begin(self.model, start)
        elif memo is not None and isinstance(self.model, Host):
            self.model.fit((images for images, _ in self.split_batches(train)), memo)
        # Lists of the model's tensors, which take a host as long to make as many kernels to launch.
        self._parameters = list(self.model.parameters())
        self.rounded: dict[str, Tensor] = {}
        if self.dtype == torch.bfloat16:
            self.rounded = rounded_weights(self.model)
        self.optimizer = make_optimizer(self.model, run.optim)
        self._micro_batches = MicroBatches(self.model, ranks)
        self.average = Average(self.model, run.train.ema)
        self.epoch = self.batches.steps_per_epoch
        self.lengths = Lengths(0, 0, 0)
        if trains:
            self.lengths = lengths(run.optim, run.train, self.epoch)
        self._factor = own_factor(run.optim)
        self.rate = 0.0  # of the last step
        self.probes = Probes(run, self.model, self.lengths.total)
        self._inputs = InputsAhead(
            lambda step: self.task.inputs(self.batches, step, self.weights),
            device,
            batch * run.data.size**2 * run.data.channels * self.weights.itemsize,
        )
        self._state, self._began_at = TrainState(), 0.0
        self._losses = torch.zeros(LOSSES, dtype=torch.float64, device=device)
        self._unread_losses = 0
        self._loss, self._outputs = self._eager_loss, self._call
        self._enter(self._state)
        self.model.train()

    # --- A step ---------------------------------------------------------------------------------

    def step(self) -> None:
        """Take one step of the optimiser, on a global batch. It doesn't wait for the device, except
        when an optimiser of torch.optim's does (adafactor), when other ranks are compared, and
        every `LOSSES` steps, when the losses are read."""
        images, target = self.inputs()
        # Calibration may go on past the last step, where a schedule of the user's has no rate.
        rated_step = min(self._state.step, self.lengths.total - 1)
        self.rate = learning_rate(self.run.optim, rated_step, self.lengths, self._factor)
        self.optimizer.set_rate(self.rate)
        self.optimizer.zero_grad()
        weights = round_weights(self.rounded, self.dtype)
        # Losses stay on the device, where they happen: to look at one is to wait.
        self._losses[self._unread_losses] = self.task.backward(self, images, target, weights)
        self.probes.gradients(self._state.step)
        self.update()
        self._state.step += 1
        if self._state.step < self.lengths.total:
            self._inputs.prepare(self._state.step)
        if self._state.step % COMPARED == 0:
            self.compare()
        self._unread_losses += 1
        if self._unread_losses == LOSSES:
            self._look()

    def update(self) -> None:
        """Clip the gradients, move the weights by them, and update the average."""
        if self.run.optim.clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self.run.optim.clip)
        self.optimizer.step()
        self.average.update()

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Return the model's inputs for the next step, and their target: this rank's rows of the
        global batch."""
        return self._inputs.receive(self._state.step)

    def micro_batches(self) -> list[slice]:
        """Return the rows of the global batch of each of this rank's forward passes."""
        size, micro = self.batches.size, self._state.micro_batch
        parts = [slice(start, start + micro) for start in range(0, size, micro)]
        return parts[self.ranks.share(len(parts))]

    def summed(self) -> Iterator[slice]:
        """Yield the rows of `micro_batches`, for a loop that computes the gradients of each.
        Afterwards the parameters have the sum over all ranks."""
        count = self.batches.size // self._state.micro_batch
        return self._micro_batches.accumulate(self.micro_batches(), count)

    def compare(self) -> None:
        """Raise RankLost where the ranks' weights differ. Waits for the device, if there are
        several ranks."""
        if self.ranks.world == 1:
            return
        digest = torch.stack([_bits(tensor) for tensor in self._tensors().values()])
        digests_by_rank = self.ranks.gather(digest[None]).tolist()
        line = unequal(digests_by_rank, self._state.step)
        if line is not None:
            raise RankLost(line)

    def part(
        self,
        images: Tensor,
        target: Tensor,
        rows: slice,
        weights: Mapping[str, Tensor] = _NO_WEIGHTS,
    ) -> Tensor:
        """Return the loss of a micro-batch, the `rows` of a global one, with its graph. `weights`
        replace the model's own, see `round_weights`."""
        with self._keyed(rows):
            local_rows = self._local_rows(rows)
            return self._loss(images[local_rows], target[local_rows], dict(weights))

    def outputs(
        self, images: Tensor | None, target: Tensor, rows: slice, weights: Mapping[str, Tensor]
    ) -> Any:
        """Return the model's outputs for a micro-batch, with their graph; see `part`. Without
        `images`, its outputs for the target alone."""
        with self._keyed(rows):
            local_rows = self._local_rows(rows)
            if images is not None:
                images = images[local_rows]
            return self._outputs(images, target[local_rows], dict(weights))

    def _local_rows(self, rows: slice) -> slice:
        """Return where these rows of the global batch are among those of this rank."""
        start = self.batches.rows.start
        if not start:
            return rows
        return slice(rows.start - start, rows.stop - start)

    def _keyed(self, rows: slice) -> AbstractContextManager[None]:
        """Key masks by these rows of this step; return the context in which a whole model draws for
        them."""
        self._masks.step, self._masks.rows = self._state.step, rows
        return self._keyed_draws("step", self._state.step, rows.start or 0)

    def _keyed_draws(self, *place: int | str) -> AbstractContextManager[None]:
        """Return a context in which a whole model's draws depend on this place alone. For a shipped
        model it does nothing: `StepKey` keys its masks."""
        if isinstance(self.model, Host):
            return nullcontext()
        return seeded(self.run.seed, "model", *place)

    def _eager_loss(self, images: Tensor, target: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the loss. This is what is compiled, so it keeps no draw, has no number that
        changes, and waits for nothing."""
        return self.task.loss(self._call(images, target, weights), target)

    def _call(self, images: Tensor | None, target: Tensor, weights: dict[str, Tensor]) -> Any:
        """Return the model's outputs."""
        arguments = self.task.arguments(images, target)
        return self.compute(self._forward, weights, arguments)

    def _forward(self, weights: dict[str, Tensor], arguments: tuple[Any, ...]) -> Any:
        # To look for tied weights takes a host a tenth of a step, and `weights` has all of them.
        return functional_call(self.model, weights, arguments, tie_weights=False)

    def compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the function's value in the run's arithmetic: autocast for bfloat16, the type of
        the weights in float32 and float64."""
        with arithmetic(self.device, self.dtype):
            return function(*arguments)

    def compile(self) -> None:
        """Have forward, loss and backward compiled when the next step calls them."""
        # torch asks each tensor that it captures for its gradient; rounded weights keep none.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        self._state.compiled = True
        self._loss = torch.compile(self._eager_loss, fullgraph=True, dynamic=False)
        self._outputs = torch.compile(self._call, fullgraph=True, dynamic=False)

    @property
    def compiled(self) -> bool:
        """True where the training is compiled, or was when it began."""
        return self._state.compiled

    @property
    def steps(self) -> int:
        """The number of steps done."""
        return self._state.step

    @property
    def epochs(self) -> float:
        """The number of epochs done, which need not be whole."""
        return self._state.step / self.epoch

    @property
    def micro_batch(self) -> int:
        """The number of images of a forward pass; 0 where `train.micro_batch` is auto and not yet
        decided."""
        return self._state.micro_batch

    @micro_batch.setter
    def micro_batch(self, images: int) -> None:
        self._state.micro_batch = images

    # --- What it has come to --------------------------------------------------------------------

    def bad_step(self) -> int | None:
        """Return the first step whose loss was not finite, or None. Waits for the device."""
        self._look()
        if self._state.bad_step < 0:
            return None
        return self._state.bad_step

    def mean_loss(self) -> float | None:
        """Return the mean loss of the steps since the last call, None where there were none. Waits
        for the device."""
        self._look()
        if not self._state.loss_steps:
            return None
        mean = self._state.loss_sum / self._state.loss_steps
        self._state.loss_sum, self._state.loss_steps = 0.0, 0
        return mean

    def _look(self) -> None:
        """Read the losses of the steps since the last look. Waits for the device."""
        state = self._state
        losses = self._losses[: self._unread_losses].tolist()
        first_step = state.step - self._unread_losses
        for step, loss in enumerate(losses, start=first_step):
            if state.bad_step < 0 and not isfinite(loss):
                state.bad_step = step
            state.loss_sum += loss
            state.loss_steps += 1
        self._unread_losses = 0

    def evaluate(
        self, split: AnySplit, data: Data | None = None
    ) -> tuple[dict[str, float], np.ndarray]:
        """Return (metrics, predictions) of a whole split, by the weights that are measured, in the
        run's arithmetic. The training is not changed. `data`: the split's set, where that isn't the
        run's."""
        self.compare()
        with self.average.applied():
            return self.measure(split, data=data, ranks=self.ranks)

    def measure(
        self,
        split: AnySplit,
        task: Evaluation | None = None,
        data: Data | None = None,
        ranks: Ranks = ALONE,
    ) -> tuple[dict[str, float], np.ndarray]:
        """Evaluate as `evaluate` does, but with the model's current weights, by another task if one
        is given, and by default on this rank alone."""
        predict = Predictor(self, split, data or self.run.data, ranks)
        view = self._view.of_set(predict.data)
        self.model.eval()
        try:
            with torch.inference_mode(), self._keyed_draws("evaluation"):
                batches = self.split_batches(split, ranks, view)
                return (task or self.task).evaluate(predict, batches)
        finally:
            self.model.train()

    def split_batches(
        self, split: AnySplit, ranks: Ranks = ALONE, view: ImageView | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a rank's share of a split's batches for evaluation, giving signs of life, so that a
        long evaluation isn't taken for a hang. `view`: that of the run's own set by default."""
        size, share = self.run.eval.batch, ranks.share
        batches = evaluation_batches(split, size, view or self._view, self.device, share)
        for number, batch in enumerate(batches):
            self._beat(batches=number)
            yield batch

    # --- To go on from --------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], TrainState]:
        """Return all that the next step needs: tensors by their names in files, and the rest.

        The tensors are those of the training itself: copy them to keep them beyond a step.
        """
        self._look()
        moments = tensors_of(self.optimizer, self.model, self.run.optim)
        return self._tensors() | moments, replace(self._state, seconds=self.seconds)

    def load(self, tensors: Mapping[str, Tensor], state: TrainState) -> None:
        """Continue from a state. Raises ValueError where it is no state of this model; then nothing
        has changed."""
        own_tensors = self._tensors()
        for name, tensor in own_tensors.items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                raise ValueError(f"{name}: not as this training has it")
        with torch.no_grad():
            for name, tensor in own_tensors.items():
                tensor.copy_(tensors[name])
        restore(self.optimizer, self.model, tensors)
        self._enter(state)

    @property
    def seconds(self) -> float:
        """The training time in seconds, as if the run had never been interrupted."""
        return time.monotonic() - self._began_at

    def _enter(self, state: TrainState) -> None:
        setting = self.run.train.micro_batch
        self._state = replace(state)
        if setting != "auto":
            self._state.micro_batch = state.micro_batch or setting or self.run.train.batch
        self._inputs.forget()
        self._unread_losses = 0
        self._began_at = time.monotonic() - state.seconds

    def _tensors(self) -> dict[str, Tensor]:
        """Return the tensors, not copies, that a training has from its first step on, by their
        names in files: all of its state except the optimiser's."""
        groups = {
            "model": self.model.state_dict(),
            "ema": self.average.weights,
            "probe": self.probes.checkpoint_tensors(),
        }
        tensors: dict[str, Tensor] = {}
        for group, group_tensors in groups.items():
            for name, tensor in group_tensors.items():
                tensors[f"{group}.{name}"] = tensor
        return tensors


def _bits(tensor: Tensor) -> Tensor:
    """Return the sum of the tensor's bit patterns, or of its whole numbers, int64 ()."""
    flat = tensor.detach().contiguous().flatten()
    kinds = {torch.float32: torch.int32, torch.float64: torch.int64}
    return flat.view(kinds.get(flat.dtype, flat.dtype)).sum(dtype=torch.int64)


def arithmetic(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Return the context of a run's arithmetic: autocast for bfloat16; none for float32 and
    float64, which compute in the type of the weights."""
    if dtype == torch.bfloat16:
        return torch.autocast(device.type, dtype)
    return nullcontext()
