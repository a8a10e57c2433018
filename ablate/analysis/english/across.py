"""The sentences below the columns, and on pairs of seeds.

Used by `write` in `registry.py`, for notes from `pairing.py`. A new writer also needs
`python tests/json_page.py`, which lists its key in docs/json.md.
"""

from __future__ import annotations

from ablate.analysis.english.registry import writes


@writes("pairs.correlate")
def pairs_correlate(correlation: float, remedy: str) -> str:
    """`remedy`: the word that judges gains by pairs, and when it is better."""
    return f"Runs of the same seed correlate by {correlation:.2f} between rows: {remedy}."
