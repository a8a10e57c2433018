"""What is learnt: a task is an entry of `ablate.shared.metrics.TASKS` and the class it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import Tensor, dtype

from ablate.data import AnySplit, Batches
from ablate.shared import TASKS, Data, Run
from ablate.training.model.whole_model import features
from ablate.training.plugin import named
from ablate.training.ranks import ALONE, Ranks

if TYPE_CHECKING:  # it imports this
    from ablate.training.training import Training


@dataclass(frozen=True)
class Predictor:
    """The model of a training as it is measured: a call with images gives its outputs.

    `split`: the one that is measured, of the set `data`.
    """

    training: Training
    split: AnySplit
    data: Data
    ranks: Ranks = ALONE  # who measures it, each some of its batches

    def __call__(self, images: Tensor) -> Tensor:
        """(B, H, W, C) -> the model's outputs."""
        outputs: Tensor = self.compute(self.training.model, images.to(self.training.weights))
        return outputs

    def features(self, images: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, D): what the model's head reads."""
        found: Tensor = self.compute(
            features, self.training.model, images.to(self.training.weights)
        )
        return found

    def compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's value in the run's arithmetic."""
        return self.training.compute(function, *arguments)

    @property
    def train(self) -> AnySplit:
        """The training split."""
        return self.training.train

    def shown(self, split: AnySplit) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of (images, labels) of a split, as evaluation shows them."""
        return self.training.shown(split)


class Evaluation(Protocol):
    """How a model is measured: of a task, or of a probe."""

    def evaluate(
        self, predict: Predictor, batches: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[dict[str, float], np.ndarray]:
        """The declared metrics of a split, raw, and what `predictions.npy` keeps of its examples,
        of which alone `TaskChoice.score` makes the same metrics.

        batches: (images, labels), each example once, in stored order; of several ranks each has
        some, in a row, and `predict.ranks.gathered` all that they make of them. predict(images):
        the model's outputs.
        """


class Task(Evaluation):
    """What a training asks of a task: inputs, loss and scores. It keeps no state: all that a run
    learns is in its model.

    It is made of the run. B are the rows of a batch; what an input, a target and an output are is
    the task's own matter. One that trains nothing (`TaskChoice.shown`) has `evaluate` alone.
    """

    def inputs(self, batches: Batches, step: int, dtype: dtype) -> tuple[Tensor, Tensor]:
        """What the model is shown in a step, in this type, and the target: rows of the global
        batch, which micro-batches take slices of."""
        raise NotImplementedError

    def arguments(self, images: Tensor | None, target: Tensor) -> tuple[Tensor | None, ...]:
        """What the model is called with."""
        return (images,)

    def loss(self, outputs: Any, target: Tensor) -> Tensor:
        """What is minimised: a mean over the rows given, so that the loss of a global batch is the
        sum over its micro-batches of (rows / global rows) times this."""
        raise NotImplementedError

    def backward(
        self, training: Training, images: Tensor, target: Tensor, weights: Mapping[str, Tensor]
    ) -> Tensor:
        """Take the gradients of the loss of a global batch, in micro-batches; that loss, float64
        (). `weights`: see `Training.part`."""
        losses, share = [], training.micro_batch / training.batches.size
        for rows in training.summed():
            loss = training.part(images, target, rows, weights)
            loss = loss if share == 1 else loss * share
            loss.backward()
            losses.append(loss.detach().double())
        whole = training.ranks.gather_each(losses)
        return sum(whole[1:], whole[0])

    def prior_loss(self, train: AnySplit) -> float | None:
        """The training loss of the best prediction that looks at no input; None: nobody knows it.
        A run whose last training loss is not below it has collapsed."""
        raise NotImplementedError

    def notes(self, train: AnySplit) -> dict[str, str]:
        """What the result and each checkpoint say of how the task reads its data."""
        return {}

    def check_notes(self, notes: Mapping[str, str], train: AnySplit, file: Path) -> None:
        """Raises UserError where the checkpoint `file` has `notes` that are not those of here."""


def make_task(run: Run) -> Task:
    """The task of a run."""
    task: Task = named(TASKS[run.task].path)(run)
    return task
