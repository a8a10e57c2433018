"""Tasks, which define what a run learns: each is an entry of `ablate.run.metrics.TASKS` and the
class that it names.

Used by training/training.py, for every run; each file of task/ has a subclass of `Task`. A new task
also needs its `TaskChoice` in run/metrics/ and an entry in `TASKS` there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import Tensor, dtype

from ablate.data import AnySplit, Batches
from ablate.run import TASKS, Data, Run
from ablate.training.model.whole_model import features
from ablate.training.plugin import object_at
from ablate.training.ranks import ALONE, Ranks

if TYPE_CHECKING:  # it imports this
    from ablate.training.training import Training


@dataclass(frozen=True)
class Predictor:
    """The model of a training as it is measured; calling it with images returns its outputs.

    `split` is the split that is measured, of the set `data`.
    """

    training: Training
    split: AnySplit
    data: Data
    ranks: Ranks = ALONE  # who measures it, each some of its batches

    def __call__(self, images: Tensor) -> Tensor:
        """Return the model's outputs for images (B, H, W, C)."""
        outputs: Tensor = self.compute(self.training.model, images.to(self.training.weights))
        return outputs

    def features(self, images: Tensor) -> Tensor:
        """Return the features that the model's head reads: (B, H, W, C) -> (B, D)."""
        model_features: Tensor = self.compute(
            features, self.training.model, images.to(self.training.weights)
        )
        return model_features

    def compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the function's value in the run's arithmetic."""
        return self.training.compute(function, *arguments)

    @property
    def train(self) -> AnySplit:
        """The training split."""
        return self.training.train

    def split_batches(self, split: AnySplit) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of (images, labels) of a split, as evaluation shows them."""
        return self.training.split_batches(split)


class Evaluation(Protocol):
    """The interface of a task or a probe that measures a model."""

    def evaluate(
        self, predict: Predictor, batches: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[dict[str, float], np.ndarray]:
        """Return the declared metrics of a split, raw, and the array that `predictions.npy` keeps
        of its examples, from which alone `TaskChoice.score` computes the same metrics.

        `batches` yields (images, labels), each example once, in stored order; with several ranks
        each rank has a contiguous part of them, and `predict.ranks.gathered` joins what the ranks
        compute. `predict(images)` returns the model's outputs.
        """


class Task(Evaluation):
    """The interface of a task to training: inputs, loss and scores. A task keeps no state: all that
    a run learns is in its model.

    It is constructed from the run. B is the number of rows of a batch; each task defines its own
    inputs, targets and outputs. A task that trains nothing (`TaskChoice.shown`) has `evaluate`
    alone.
    """

    def inputs(self, batches: Batches, step: int, dtype: dtype) -> tuple[Tensor, Tensor]:
        """Return the model's inputs for a step, in the type `dtype`, and the target: the rows of
        the global batch, of which micro-batches take slices."""
        raise NotImplementedError

    def arguments(self, images: Tensor | None, target: Tensor) -> tuple[Tensor | None, ...]:
        """Return the arguments of the model's call."""
        return (images,)

    def loss(self, outputs: Any, target: Tensor) -> Tensor:
        """Return the loss to minimise, a mean over the rows given: the loss of a global batch is
        the sum over its micro-batches of (rows / global rows) times this."""
        raise NotImplementedError

    def backward(
        self, training: Training, images: Tensor, target: Tensor, weights: Mapping[str, Tensor]
    ) -> Tensor:
        """Compute the gradients of the loss of a global batch, in micro-batches; return that loss,
        float64 (). `weights`: see `Training.part`."""
        losses, share = [], training.micro_batch / training.batches.size
        for rows in training.summed():
            loss = training.part(images, target, rows, weights)
            loss = loss if share == 1 else loss * share
            loss.backward()
            losses.append(loss.detach().double())
        all_losses = training.ranks.gather_each(losses)
        return sum(all_losses[1:], all_losses[0])

    def prior_loss(self, train: AnySplit) -> float | None:
        """Return the training loss of the best prediction that looks at no input; None where it is
        unknown. A run whose last training loss is not below it has collapsed."""
        raise NotImplementedError

    def notes(self, train: AnySplit) -> dict[str, str]:
        """Return what the result and each checkpoint record about how the task reads its data."""
        return {}

    def check_notes(self, notes: Mapping[str, str], train: AnySplit, file: Path) -> None:
        """Raise UserError where the `notes` of the checkpoint `file` are not those that `train`
        gives."""


def make_task(run: Run) -> Task:
    """Return the task of a run."""
    task: Task = object_at(TASKS[run.task].path)(run)
    return task
