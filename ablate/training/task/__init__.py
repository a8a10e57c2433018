"""What is learnt: a task is an entry of `ablate.shared.metrics.TASKS` and the class it names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, dtype

from ablate.shared.metrics import TASKS
from ablate.shared.sections import Data
from ablate.shared.spec import Run
from ablate.training.data.batches import Batches
from ablate.training.data.cached import AnySplit


@dataclass(frozen=True)
class Predictor:
    """The model as it is measured: a call with images gives its outputs.

    `features`: images (B, H, W, C) -> (B, D), what the model's head reads. `train`: the training
    split; `shown`: batches of (images, labels) of a split, as evaluation shows them. `texts`, of a
    model that reads them: tokens (B, L) -> (B, D); `logits`: of features and these, (B, B).
    `split`: the one that is measured, of the set `data`; `device`: where all this is computed.
    """

    outputs: Callable[[Tensor], Tensor]
    features: Callable[[Tensor], Tensor]
    train: AnySplit
    shown: Callable[[AnySplit], Iterable[tuple[Tensor, Tensor]]]
    texts: Callable[[Tensor], Tensor]
    logits: Callable[[Tensor, Tensor], Tensor]
    split: AnySplit
    device: torch.device
    data: Data

    def __call__(self, images: Tensor) -> Tensor:
        return self.outputs(images)


class Evaluation(Protocol):
    """How a model is measured: of a task, or of a probe."""

    def evaluate(
        self, predict: Predictor, batches: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[dict[str, float], np.ndarray]:
        """The declared metrics of a split, raw, and what `predictions.npy` keeps of its examples,
        of which alone `TaskChoice.score` makes the same metrics.

        batches: (images, labels), each example once, in stored order. predict(images): the model's
        outputs.
        """


class Task(Evaluation, Protocol):
    """What a training asks of a task. It keeps no state: all that a run learns is in its model.

    Its class is made of the run. B are the rows of a batch; what an input, a target and an output
    are is the task's own matter. One that trains nothing (`TaskChoice.shown`) has `evaluate` alone.
    """

    def inputs(self, batches: Batches, step: int, dtype: dtype) -> tuple[Tensor, Tensor]:
        """What the model is shown in a step, in this type, and the target: rows of the global
        batch, which micro-batches take slices of."""

    def loss(self, outputs: Any, target: Tensor) -> Tensor:
        """What is minimised: a mean over the rows given, so that the loss of a global batch is the
        sum over its micro-batches of (rows / global rows) times this."""

    def prior_loss(self, train: AnySplit) -> float | None:
        """The training loss of the best prediction that looks at no input; None: nobody knows it.
        A run whose last training loss is not below it has collapsed."""


def make_task(run: Run) -> Task:
    """The task of a run."""
    module, _, name = TASKS[run.task].path.partition(":")
    task: Task = getattr(importlib.import_module(module), name)(run)
    return task
