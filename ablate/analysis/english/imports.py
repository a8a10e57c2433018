"""The sentences on what runs were trained on, and on what a sheet of imported runs hides.

Used by `write` in `registry.py`, for sentences that analysis/trained_on.py chooses. A new writer
also needs `python tests/json_page.py`, which lists its key in docs/json.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablate.analysis.english.registry import writes
from ablate.analysis.english.words import join_words, seed_names
from ablate.shared import count_text

Values = Mapping[str, Any]

NAMED_CELLS = 4  # cells that a line names


@writes("sheet.source", exact=True)
def sheet_source(files: Sequence[Values]) -> str:
    texts = ", ".join(
        f"{file['name']} ({count_text(file['lines'], 'line')}, sha256 {file['sha256'][:12]})"
        for file in files
    )
    return f"The numbers are from {texts}; how the runs were trained was not checked."


@writes("sheet.no-seeds")
def sheet_no_seeds() -> str:
    return (
        "The sheet has no seeds, so rows are compared by their means, not in pairs; n is that of "
        "the row or of the baseline, whichever has fewer runs."
    )


@writes("sheet.no-averages", exact=True)
def sheet_no_averages() -> str:
    return "Columns are not averaged, since their runs share no seeds."


@writes("sheet.hides")
def sheet_hides(line: str) -> str:
    """`line`: what makes the numbers of the sheet doubtful."""
    return f"In the sheet, {line}."


@writes("sheet.lacks-seeds")
def sheet_lacks_seeds(cells: Sequence[Values], unpaired: Sequence[Values]) -> str:
    """`cells`: the `place` of each, and the `seeds` that it lacks; `unpaired`: of the places with
    runs whose seeds the baseline lacks, the numbers of `pairs` and of `runs`."""
    places: dict[str, list[str]] = {}
    for cell in cells:
        places.setdefault(seed_names(cell["seeds"]), []).append(cell["place"])
    lacking = [
        f"{seeds} of {join_words(names) if len(names) <= NAMED_CELLS else _list(names)}"
        for seeds, names in places.items()
    ]
    text = (
        f"The sheet lacks {_list(lacking, '; ')}. A gain and its n are of the seeds that a row "
        f"shares with the baseline"
    )
    if not unpaired:
        return f"{text}."
    counts = [
        f"{cell['place']}: {cell['pairs']} of {count_text(cell['runs'], 'run')}"
        for cell in unpaired
    ]
    return f"{text} ({_list(counts)}); a mean is of all runs of its row."


@writes("sheet.single-runs")
def sheet_single_runs(cells: Sequence[str]) -> str:
    return f"No verdict, since there is one run only: {_list(cells)}."


@writes("sheet.no-runs")
def sheet_no_runs(cells: Sequence[str]) -> str:
    return f"The sheet has no run of {_list(cells)}."


def _list(parts: Sequence[object], between: str = ", ") -> str:
    remainder = f" and {len(parts) - NAMED_CELLS} more" if len(parts) > NAMED_CELLS else ""
    return between.join(map(str, parts[:NAMED_CELLS])) + remainder


@writes("trained-on.columns")
def trained_on_columns(columns: Sequence[str], training: str) -> str:
    """`training`: what these columns were trained on, in words."""
    return f"{', '.join(columns)}: {training[0].lower()}{training[1:]}."
