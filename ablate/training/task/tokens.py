"""From texts to tokens: how a text is written, and the tables that number its parts.

A table is learnt from the training texts alone, and the same for every run on the same data: it is
part of the data that `Data.fingerprint` stands for.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ablate.shared.errors import UserError
from ablate.shared.packages import installing
from ablate.shared.sections import Text

PAD, END, UNKNOWN = 0, 1, 2  # the numbers of [pad], [end] and [unk]; others follow
OTHERS = 3
_AWAY = str.maketrans("", "", string.punctuation.replace(",", ""))


def canonical(text: str) -> str:
    """Small letters, no punctuation but commas and the {} of a prompt, single spaces.

    big_vision/evaluators/proj/image_text/prompt_engineering.py: an underscore becomes a space, all
    other punctuation goes without one, so that "T-shirt/top" is "tshirttop".
    """
    parts = (part.translate(_AWAY) for part in text.replace("_", " ").split("{}"))
    return re.sub(r"\s+", " ", "{}".join(parts)).lower().strip()


def prompted(name: str, prompts: Iterable[str]) -> list[str]:
    """The texts that stand for a class."""
    own = canonical(name)
    return [canonical(prompt).replace("{}", own) for prompt in prompts]


class Tokens:
    """The numbers of texts: `tokens(["a red seven"])` is int64 (1, length)."""

    def __init__(self, text: Text, counts: Mapping[str, int]) -> None:
        """`counts`: how often each training text, canonical, is there."""
        self._length = text.length
        self._numbers = TABLES[text.tokens](text.vocab, counts)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """What is too long is cut before an [end], and [end] fills what is left: the last token
        always is one."""
        table = np.full((len(texts), self._length), END, dtype=np.int64)
        for row, text in zip(table, texts, strict=True):
            numbers = self._numbers(text)[: self._length - 1]
            row[: len(numbers)] = numbers
        return table


def words(vocab: int, counts: Mapping[str, int]) -> Callable[[str], list[int]]:
    """A number for each word, by how often it is there, then by spelling; the rest is [unk]."""
    found: Counter[str] = Counter()
    for text, count in counts.items():
        for word in _words(text):
            found[word] += count
    order = sorted(found, key=lambda word: (-found[word], word))[: vocab - OTHERS]
    numbers = {word: number for number, word in enumerate(order, OTHERS)}
    return lambda text: [numbers.get(word, UNKNOWN) for word in _words(text)]


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def byte_pairs(vocab: int, counts: Mapping[str, int]) -> Callable[[str], list[int]]:
    """Byte-level BPE (Sennrich et al. 2016, arXiv 1508.07909) as in GPT-2, by `tokenizers`."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise UserError(
            f"text.tokens: bpe needs the package tokenizers; {installing('text')}"
        ) from error
    least = OTHERS + len(pre_tokenizers.ByteLevel.alphabet())
    if vocab < least:
        raise UserError(f"text.vocab: bpe needs at least {least}, got {vocab}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["[pad]", "[end]", "[unk]"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    each = (text for text in sorted(counts) for _ in range(counts[text]))
    tokenizer.train_from_iterator(each, trainer)
    return lambda text: [*tokenizer.encode(text).ids]


TABLES: dict[str, Callable[[int, Mapping[str, int]], Callable[[str], list[int]]]] = {
    "words": words,
    "bpe": byte_pairs,
}
