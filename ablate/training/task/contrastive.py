"""Image-text training: the loss over the pairs of a batch, and zero-shot classification.

big_vision/trainers/proj/image_text/contrastive.py and evaluators/proj/image_text/
discriminative_classifier.py. Shapes: B pairs, C classes, E the width of embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.shared.errors import UserError
from ablate.shared.metrics.contrastive import score
from ablate.shared.spec import Run
from ablate.training.data.batches import Batches
from ablate.training.data.cached import AnySplit
from ablate.training.model.towers import normalised, similarities
from ablate.training.task import Predictor
from ablate.training.task.tokens import Tokens, canonical, prompted

# What predictions.npy holds for each test example, in the test set's order. `twin`: the name of its
# class is also that of a class before it, so it can't be right.
PREDICTION = np.dtype(
    [("label", "<i4"), ("class", "<i4"), ("loss", "<f8"), ("floor", "<f8"), ("twin", "?")]
)


class Contrastive:
    """Images (B, H, W, C) and the tokens (B, L) of their captions; the model is `Towers`.

    A label is the number of a text in `split.names`: of a caption or, where images have classes, of
    a name. The table of tokens is that of the training split, made when it is first asked for.
    """

    def __init__(self, run: Run) -> None:
        assert run.text is not None
        self._text, self._batch = run.text, run.train.batch
        self._test_classes, self._at_once = run.data.test_classes, run.eval.batch
        self._table: Tokens | None = None
        self._captions: Tensor | None = None  # tokens of every text of the training split

    def inputs(self, batches: Batches, step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Images, and the tokens of their captions."""
        images, labels = batches.at(step)
        if self._captions is None:
            table = self._tokens(batches.split)
            captions = table([canonical(name) for name in names_of(batches.split)])
            self._captions = torch.from_numpy(captions).to(labels.device)
        return images.to(dtype), self._captions[labels]

    def loss(self, outputs: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
        """Of all pairs of the batch, a scalar. outputs: see `Towers`."""
        return pair_losses(similarities(*outputs)).mean()

    def prior_loss(self, train: AnySplit) -> float:
        """That of embeddings that are all alike."""
        return log(self._batch)

    @torch.inference_mode()
    def evaluate(
        self, predict: Predictor, batches: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[dict[str, float], np.ndarray]:
        """Metrics and predictions of a whole split. An image's classes are those of the split, or
        all; its loss is that among the pairs of its batch."""
        split, table = predict.split, self._tokens(predict.train)
        names = names_of(split)
        captions = table([canonical(name) for name in names])
        _, alike = np.unique(captions, axis=0, return_inverse=True)  # equal where the tokens are
        classes = np.arange(len(names))
        if self._test_classes is not None:
            classes = np.unique(split.labels.cpu().numpy())
        known = self._embedded(predict, [names[number] for number in classes], table, split)
        firsts = {canonical(names[number]): number for number in reversed(classes)}
        twin = np.array([firsts.get(canonical(name)) != n for n, name in enumerate(names)])

        parts = []
        for images, labels in batches:
            host = labels.cpu().numpy()
            of_images = predict.features(images)
            of_texts = predict.texts(torch.from_numpy(captions[host]).to(labels.device))
            said = (of_images.double() @ known.T).argmax(1).cpu().numpy()
            part = np.empty(len(host), PREDICTION)
            part["label"], part["class"] = host, classes[said]
            part["loss"] = pair_losses(predict.logits(of_images, of_texts).double()).cpu().numpy()
            part["floor"] = floors(alike.reshape(-1)[host])
            part["twin"] = twin[host]
            parts.append(part)
        predictions = np.concatenate(parts)
        return score(predictions, len(classes)), predictions

    def _embedded(
        self, predict: Predictor, names: list[str], table: Tokens, split: AnySplit
    ) -> Tensor:
        """(C, E), float64: of each class the mean of its prompts' embeddings, of length 1."""
        prompts = self._text.prompts
        texts = [text for name in names for text in prompted(name, prompts)]
        tokens = torch.from_numpy(table(texts)).to(predict.device)
        rows = [predict.texts(some).double() for some in tokens.split(self._at_once)]
        return normalised(torch.cat(rows).unflatten(0, (-1, len(prompts))).mean(1))

    def _tokens(self, train: AnySplit) -> Tokens:
        """The table of the training texts."""
        if self._table is None:
            names = names_of(train)
            numbers, counts = np.unique(train.labels.cpu().numpy(), return_counts=True)
            found: dict[str, int] = {}
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                text = canonical(names[number])
                found[text] = found.get(text, 0) + count
            self._table = Tokens(self._text, found)
        return self._table


def names_of(split: AnySplit) -> tuple[str, ...]:
    """The texts of a split, by label. Raises UserError where it has none."""
    if split.names is None:
        raise UserError("task: contrastive reads texts, and the data has no names of classes")
    return split.names


def pair_losses(logits: Tensor) -> Tensor:
    """(B,): 1/2 (cross-entropy of row i + of column i), against the diagonal. logits (B, B)."""
    target = torch.arange(len(logits), device=logits.device)
    rows = F.cross_entropy(logits, target, reduction="none")
    columns = F.cross_entropy(logits.T, target, reduction="none")
    return (rows + columns) / 2


def floors(texts: np.ndarray) -> np.ndarray:
    """float64 (B,), whose mean no loss of a batch is below: ln m of a text that is there m times.

    Equal texts have equal embeddings, so at best each of the m has an m-th of what they share.
    texts int64 (B,): equal where the texts are.
    """
    _, place, count = np.unique(texts, return_inverse=True, return_counts=True)
    found: np.ndarray = np.log(count[place])
    return found
