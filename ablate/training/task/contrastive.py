"""Image-text training: the loss over the pairs of a batch, and zero-shot classification.

big_vision/trainers/proj/image_text/contrastive.py and evaluators/proj/image_text/
discriminative_classifier.py. Shapes: B pairs, C classes, E the width of embeddings.

Used by `task=contrastive`, through its path in run/metrics/contrastive.py. A new metric or field of
the predictions also needs a change of `CONTRASTIVE` and `contrastive_scores` there.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.data import AnySplit, Batches
from ablate.run import Run, Text, contrastive_scores
from ablate.shared import UserError, install_command
from ablate.training.model.towers import Towers, normalised, similarities
from ablate.training.task import Predictor, Task

if TYPE_CHECKING:  # it imports this
    from ablate.training.training import Training


# What predictions.npy holds for each test example, in the test set's order. `twin`: the tokens of
# its class are also those of a class before it, so it can't be right.
PREDICTION = np.dtype(
    [("label", "<i4"), ("class", "<i4"), ("loss", "<f8"), ("floor", "<f8"), ("twin", "?")]
)

PLAIN = ("{}",)  # a caption is used as it is
CLASSES = 1 << 15  # whose similarities to a batch of images are there at once


class Contrastive(Task):
    """Images (B, H, W, C) and the tokens (B, L) of their captions; the model is `Towers`.

    A label is the number of a text in `split.names`: of a caption or, where images have classes, of
    a name. The table of tokens is that of the training split, made when it is first needed.
    """

    def __init__(self, run: Run) -> None:
        assert run.text is not None
        self._text, self._batch, self._at_once = run.text, run.train.batch, run.eval.batch
        self._table: Tokens | None = None
        self._captions: Tensor | None = None  # tokens of every text of the training split
        # by names and prompts, see `_numbers`
        self._cached_numbers: dict[tuple[tuple[str, ...], tuple[str, ...]], np.ndarray] = {}

    def inputs(self, batches: Batches, step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return images, and the tokens of their captions."""
        images, labels = batches.at(step)
        if self._captions is None:
            captions = self._numbers(names_of(batches.split), PLAIN, batches.split)
            self._captions = torch.from_numpy(captions[:, 0]).to(labels.device)
        return images.to(dtype), self._captions[labels]

    def arguments(self, images: Tensor | None, target: Tensor) -> tuple[Tensor | None, ...]:
        """Return images and tokens; see `Towers`."""
        return images, target

    def loss(self, outputs: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
        """Return the mean loss over all pairs of the batch, a scalar. outputs: see `Towers`."""
        return pair_losses(similarities(*outputs)).mean()

    def backward(
        self, training: Training, images: Tensor, target: Tensor, weights: Mapping[str, Tensor]
    ) -> Tensor:
        """Compute the gradients as `Task.backward` does. The loss compares all pairs of the batch.
        So, with micro-batches, all rows are first embedded without a graph and the gradient of the
        loss by these embeddings is taken; then each micro-batch is embedded again, and that
        gradient is passed back through it. Gao et al. 2021 (arXiv 2101.06983, GradCache)."""
        if training.micro_batch == training.batches.size:
            return super().backward(training, images, target, weights)
        towers, parts = training.model, training.micro_batches()
        assert isinstance(towers, Towers)
        with torch.no_grad():
            embeddings = [training.outputs(images, target, rows, weights)[:2] for rows in parts]
        both = []
        for side_parts in zip(*embeddings, strict=True):
            side = training.ranks.gather(torch.cat(side_parts))
            both.append(side.requires_grad_())
        loss = self.loss((both[0], both[1], towers.theta.exp()), target)
        loss.backward()
        tower_images = images if towers.learns_from_images else None
        for rows in training.summed():
            outputs = training.outputs(tower_images, target, rows, weights)[:2]
            for side, embedded in zip(both, outputs, strict=True):
                if embedded is not None and embedded.requires_grad and side.grad is not None:
                    embedded.backward(side.grad[rows])
        return loss.detach().double()

    def prior_loss(self, train: AnySplit) -> float:
        """Return ln(batch), the loss where all embeddings are alike."""
        return log(self._batch)

    @torch.inference_mode()
    def evaluate(
        self, predict: Predictor, batches: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[dict[str, float], np.ndarray]:
        """Return metrics and predictions of a whole split. An image is classified among all classes
        of its set or, where `data.test_classes` is set, among those of its split; its loss is that
        among the pairs of its batch."""
        split, train, towers = predict.split, predict.train, predict.training.model
        assert isinstance(towers, Towers)
        names = names_of(split)
        captions = self._numbers(names, PLAIN, train)[:, 0]
        _, alike = np.unique(captions, axis=0, return_inverse=True)  # equal where the tokens are
        classes = np.arange(len(names))
        if predict.data.test_classes is not None:
            classes = np.unique(split.labels.cpu().numpy())
        class_names = tuple(names[number] for number in classes)
        prompts = self._numbers(class_names, tuple(self._text.prompts), train)
        class_embeddings, firsts = self._embedded(predict, towers, prompts), first_alike(prompts)
        twin = np.zeros(len(names), bool)
        twin[classes] = firsts != np.arange(len(firsts))

        parts = []
        for images, labels in batches:
            host = labels.cpu().numpy()
            of_images = predict.features(images)
            tokens = torch.from_numpy(captions[host]).to(labels.device)
            of_texts = predict.compute(towers.texts, tokens)
            answers = nearest(of_images.double(), class_embeddings).cpu().numpy()
            part = np.empty(len(host), PREDICTION)
            part["label"], part["class"] = host, classes[firsts[answers]]
            logits = towers.logits(of_images, of_texts).double()
            part["loss"] = pair_losses(logits).cpu().numpy()
            part["floor"] = floors(alike.reshape(-1)[host])
            part["twin"] = twin[host]
            parts.append(part)
        predictions = np.concatenate(predict.ranks.gathered(parts))
        return contrastive_scores(predictions, len(classes)), predictions

    def notes(self, train: AnySplit) -> dict[str, str]:
        """Return {"tokens_sha256": a hash of the tokens of all texts of the set}. The tokens depend
        on the version of `tokenizers`, which learns byte pairs."""
        numbers = self._numbers(names_of(train), PLAIN, train)
        return {"tokens_sha256": hashlib.sha256(numbers.data).hexdigest()}

    def check_notes(self, notes: Mapping[str, str], train: AnySplit, file: Path) -> None:
        """Raise UserError where the checkpoint's texts had other tokens."""
        if notes and notes != self.notes(train):
            raise UserError(
                f"text.tokens: {file}: was trained with other tokens for the same texts, because "
                f"another version of tokenizers learns other byte pairs; install the version that "
                f"env.json in its folder names, or remove the checkpoints there to train again"
            )

    def _embedded(self, predict: Predictor, towers: Towers, prompts: np.ndarray) -> Tensor:
        """Return for each class the mean of its prompts' embeddings, scaled to length 1: (C, E),
        float64. prompts (C, P, L) are their tokens. Only one batch of embeddings is kept in
        addition to the means, since those of millions of captions would fill a GPU."""
        means, start = torch.empty(0), 0
        rows = torch.empty(0)  # embeddings of classes that are not complete yet
        for some in torch.from_numpy(prompts).flatten(0, 1).split(self._at_once):
            embedded = predict.compute(towers.texts, some.to(towers.theta.device)).double()
            rows = torch.cat([rows, embedded]) if len(rows) else embedded
            count = len(rows) // prompts.shape[1]
            pieces = rows[: count * prompts.shape[1]].unflatten(0, (count, prompts.shape[1]))
            if not len(means):
                means = rows.new_empty(len(prompts), rows.shape[1])
            means[start : start + count] = normalised(pieces.mean(1))
            rows, start = rows[count * prompts.shape[1] :], start + count
        return means

    def _numbers(
        self, names: tuple[str, ...], prompts: tuple[str, ...], train: AnySplit
    ) -> np.ndarray:
        """Return the tokens of each name in each prompt, int64 (C, P, L), computed once."""
        if (names, prompts) not in self._cached_numbers:
            table = self._tokens(train)
            numbers = np.empty((len(names), len(prompts), self._text.length), np.int64)
            for row, name in zip(numbers, names, strict=True):
                row[:] = table(prompted(name, prompts))
            self._cached_numbers[names, prompts] = numbers
        return self._cached_numbers[names, prompts]

    def _tokens(self, train: AnySplit) -> Tokens:
        """Return the table of the training texts, made once."""
        if self._table is None:
            names = names_of(train)
            numbers, counts = np.unique(train.labels.cpu().numpy(), return_counts=True)
            text_counts: dict[str, int] = {}
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                text = canonical(names[number])
                text_counts[text] = text_counts.get(text, 0) + count
            self._table = Tokens(self._text, text_counts)
        return self._table


def first_alike(prompts: np.ndarray) -> np.ndarray:
    """Return for each class the first class whose prompts (C, P, L) have the same tokens, int64
    (C,). Two names may differ and their tokens not: in words that no caption has, or beyond the
    length at which texts are cut."""
    firsts: dict[bytes, int] = {}
    numbers = np.empty(len(prompts), np.int64)
    for number, row in enumerate(prompts):
        numbers[number] = firsts.setdefault(row.tobytes(), number)
    return numbers


def nearest(images: Tensor, embeddings: Tensor) -> Tensor:
    """Return for each image (B, E) the number of the nearest of the `embeddings` (C, E), int64
    (B,): the first of equal ones, any of those that agree up to rounding."""
    best = numbers = torch.empty(0)
    for start in range(0, len(embeddings), CLASSES):
        near = images @ embeddings[start : start + CLASSES].T
        place = near.argmax(1)
        similarity = near.gather(1, place[:, None])[:, 0]
        if start == 0:
            best, numbers = similarity, place
        else:
            numbers = torch.where(similarity > best, place + start, numbers)
            best = torch.maximum(similarity, best)
    return numbers


def names_of(split: AnySplit) -> tuple[str, ...]:
    """Return the texts of a split, by label. Raises UserError where it has none."""
    if split.names is None:
        raise UserError("task: contrastive reads texts, and the data has no names of classes")
    return split.names


def pair_losses(logits: Tensor) -> Tensor:
    """Return 1/2 (cross-entropy of row i + of column i) of logits (B, B), against the diagonal,
    (B,)."""
    target = torch.arange(len(logits), device=logits.device)
    rows = F.cross_entropy(logits, target, reduction="none")
    columns = F.cross_entropy(logits.T, target, reduction="none")
    return (rows + columns) / 2


def floors(texts: np.ndarray) -> np.ndarray:
    """Return ln m for each text, which occurs m times, float64 (B,). No loss of the batch is below
    their mean.

    Equal texts have equal embeddings, so at best each of the m has an m-th of the probability that
    they share. texts int64 (B,): equal where the texts are.
    """
    _, place, count = np.unique(texts, return_inverse=True, return_counts=True)
    log_counts: np.ndarray = np.log(count[place])
    return log_counts


# --- Tokens of texts ------------------------------------------------------------------------------

# A table of tokens is learnt from the training texts alone, and the same for every run on the same
# data: it is part of the data that `Data.fingerprint` stands for.

PAD, END, UNKNOWN = 0, 1, 2  # the numbers of [pad], [end] and [unk]; others follow
SPECIAL_TOKENS = 3  # how many these are, so the first number of the others
_AWAY = str.maketrans("", "", string.punctuation.replace(",", ""))


def canonical(text: str) -> str:
    """Return the text in small letters, with single spaces, and no punctuation but commas and the
    {} of a prompt.

    big_vision/evaluators/proj/image_text/prompt_engineering.py: an underscore becomes a space, all
    other punctuation is deleted without one, so that "T-shirt/top" is "tshirttop".
    """
    parts = (part.translate(_AWAY) for part in text.replace("_", " ").split("{}"))
    return re.sub(r"\s+", " ", "{}".join(parts)).lower().strip()


def prompted(name: str, prompts: Iterable[str]) -> list[str]:
    """Return the texts that stand for a class: its name in each prompt."""
    text = canonical(name)
    return [canonical(prompt).replace("{}", text) for prompt in prompts]


class Tokens:
    """A table from texts to token numbers: `tokens(["a red seven"])` is int64 (1, length)."""

    def __init__(self, text: Text, counts: Mapping[str, int]) -> None:
        """`counts`: how often each training text, in canonical form, occurs."""
        self._length = text.length
        self._numbers = TABLES[text.tokens](text.vocab, counts)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return the tokens of the texts, int64 (texts, length). A text that is too long is cut
        before an [end], and [end] fills up a shorter one: the last token is always [end]."""
        table = np.full((len(texts), self._length), END, dtype=np.int64)
        for row, text in zip(table, texts, strict=True):
            numbers = self._numbers(text)[: self._length - 1]
            row[: len(numbers)] = numbers
        return table


def words(vocab: int, counts: Mapping[str, int]) -> Callable[[str], list[int]]:
    """Return a function from a text to the numbers of its words. Words are numbered by how often
    they occur, then by spelling; those beyond `vocab` are [unk]."""
    word_counts: Counter[str] = Counter()
    for text, count in counts.items():
        for word in _words(text):
            word_counts[word] += count
    order = sorted(word_counts, key=lambda word: (-word_counts[word], word))
    known_words = order[: vocab - SPECIAL_TOKENS]
    numbers = {word: number for number, word in enumerate(known_words, SPECIAL_TOKENS)}
    return lambda text: [numbers.get(word, UNKNOWN) for word in _words(text)]


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def byte_pairs(vocab: int, counts: Mapping[str, int]) -> Callable[[str], list[int]]:
    """Return a function from a text to its byte-level BPE tokens (Sennrich et al. 2016, arXiv
    1508.07909) as in GPT-2, learned by `tokenizers`. Raises UserError where that is not installed,
    or `vocab` is too small."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise UserError(
            f"text.tokens: bpe needs the package tokenizers; {install_command('text')}"
        ) from error
    min_vocab = SPECIAL_TOKENS + len(pre_tokenizers.ByteLevel.alphabet())
    if vocab < min_vocab:
        raise UserError(f"text.vocab: bpe needs at least {min_vocab}, got {vocab}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["[pad]", "[end]", "[unk]"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (text for text in sorted(counts) for _ in range(counts[text]))
    tokenizer.train_from_iterator(texts, trainer)
    return lambda text: list(tokenizer.encode(text).ids)


TABLES: dict[str, Callable[[int, Mapping[str, int]], Callable[[str], list[int]]]] = {
    "words": words,
    "bpe": byte_pairs,
}
