"""The sentences on what the noise of a column's gains was estimated from.

Used by `write` in `registry.py`, for sentences that analysis/noise_notes.py and sequential.py
choose. A new writer also needs `python tests/json_page.py`, which lists its key in docs/json.md.
"""

from __future__ import annotations

from ablate.analysis.english.registry import writes
from ablate.analysis.english.words import capitalized, prefixed


@writes("noise.baseline")
def noise_baseline(column: str, ratio: float | None, by_images: bool) -> str:
    """`ratio`, `by_images`: see `noisy_words`."""
    return _of_column(column, f"{noisy_words(ratio, by_images)}.")


def noisy_words(ratio: float | None, by_images: bool) -> str:
    """`ratio`: of the baseline's standard deviation over seeds to that of the other rows, None
    where these have none. `by_images`: it is that of the baseline's distance from their mean, to
    the one that the images of these rows suggest."""
    times = f"{ratio:.1f} times as much" if ratio is not None else "far more"
    conjunction = "as" if ratio is not None else "than"
    subject, reference = "the baseline", "the other rows do"
    if by_images:
        subject, reference = f"the gap between {subject} and the other rows", "their images suggest"
    return (
        f"{subject} varies {times} between seeds {conjunction} {reference}, which widens intervals"
    )


@writes("look.noise")
def look_noise(column: str, seeds: int, ratio: float | None, by_images: bool) -> str:
    """`ratio`, `by_images`: see `noisy_words`; `seeds`: of the look."""
    place = ", ".join(filter(None, [column, f"look at {seeds} seeds"]))
    return prefixed(place, f"{noisy_words(ratio, by_images)}.")


@writes("noise.lacking")
def noise_lacking(column: str, examples: str, reason: str) -> str:
    """`reason`: why examples don't determine the spread."""
    return _of_column(column, f"the noise is not estimated from {examples}, since {reason}.")


@writes("noise.no-floor")
def noise_no_floor(column: str, examples: str, reason: str) -> str:
    """`reason`: why the interval of a lone gain takes nothing from examples."""
    return _of_column(
        column,
        f"the interval of the gain may be too narrow: it doesn't allow for {examples} that are "
        f"right with one seed and wrong with another, since {reason}.",
    )


def _of_column(column: str, clause: str) -> str:
    return prefixed(column, clause) if column else capitalized(clause)
