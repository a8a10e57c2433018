"""The English of tables: the one place that turns the key and the values of a sentence into words.

`write` is the way in. Each file has the sentences of one subject: a small function a key, whose
parameters are the values. Rounding, plurals and the order of words are decided here and nowhere
else; nothing here reads a plan or computes a statistic.

Used by `Sentence.text` in note.py alone. A new file also needs its import here, without which its
writers are not registered.
"""

from ablate.analysis.english import (
    across,
    captions,
    footnotes,
    imports,
    looks,
    noise,
    paper,
    tuning,
)
from ablate.analysis.english.registry import EXACT_KEYS, WRITERS, write

__all__ = [
    "write",  # write a sentence from its key and values
    "WRITERS",  # the function of each key
    "EXACT_KEYS",  # the keys of sentences that only full notes print
    "across",  # the sentences below the columns
    "captions",  # the caption, and warnings about a table
    "footnotes",  # the sentences on entries, rows and columns
    "imports",  # what runs were trained on, and what a sheet hides
    "looks",  # what was read before, what looks decided
    "noise",  # what the noise of gains was estimated from
    "paper",  # published figures beside ours
    "tuning",  # how settings were searched
]
