"""Facts that a table says of itself, each with a key, which `english` turns into sentences.

Used by all files here that say something of a table. A new key of a sentence also needs its writer
in english/; a new kind of note needs its place in report/formats/layout.py and tidy.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ablate.analysis import english

# Warnings are read before any number is believed; footnotes are marked, those of kind "gain" where
# gains are shown.
NoteKind = Literal["smoke", "unfinished", "warning", "caption", "footnote", "gain"]
WARNING_KINDS: tuple[NoteKind, ...] = ("smoke", "unfinished", "warning")
FOOTNOTES: tuple[NoteKind, ...] = ("footnote", "gain")
Place = tuple[str | None, str | None]  # row and column; None: every one
EVERYWHERE: Place = (None, None)


@dataclass(frozen=True)
class Sentence:
    """A fact. `key`: names the sentence, in dotted words; `values`: what the sentence is about, as
    JSON has it: numbers, texts, lists, and maps with texts as keys, whose order says nothing."""

    key: str
    values: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        """The sentence in English."""
        return english.write(self.key, self.values)

    @property
    def is_exact(self) -> bool:
        """True if the sentence says how numbers are computed, which only full notes print."""
        return self.key in english.EXACT_KEYS

    def tree(self) -> dict[str, Any]:
        """Return the sentence as JSON has it."""
        return {"key": self.key, "values": dict(self.values), "text": self.text}


@dataclass(frozen=True)
class Note(Sentence):
    """A sentence on a place of a table: a row, a column, an entry or everything."""

    kind: NoteKind = "warning"
    place: Place = EVERYWHERE

    def followed_by(self, sentences: Iterable[Sentence]) -> Note:
        """Return the note with further sentences after its own, as a single text."""
        facts = [{"key": fact.key, "values": fact.values} for fact in (self, *sentences)]
        return replace(self, key="joined", values={"sentences": facts})


def sentence(key: str, **values: Any) -> Sentence:
    return Sentence(key, values)


def notes(kind: NoteKind, sentences: Iterable[Sentence], place: Place = EVERYWHERE) -> list[Note]:
    """Place sentences in a table."""
    return [Note(fact.key, fact.values, kind, place) for fact in sentences]
