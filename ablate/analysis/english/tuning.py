"""The sentences on how the settings of variants were searched.

Used by `write` in `registry.py`, for sentences that analysis/captions.py chooses. A new writer also
needs `python tests/json_page.py`, which lists its key in docs/json.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablate.analysis.english.registry import writes
from ablate.analysis.english.words import first_few
from ablate.shared import count_text

Values = Mapping[str, Any]


@writes("tuned.keys")
def tuned_keys(keys: Sequence[str], trials: int, compared: bool, untuned: Sequence[str]) -> str:
    """`compared`: whether gains compare searches; `untuned`: columns."""
    exception = f", except in {first_few(untuned)}" if untuned else ""
    n_words = "; n counts searches" if compared else ""
    return (
        f"Tuned in the same way for every variant{exception}: {', '.join(keys)}, by "
        f"{count_text(trials, 'trial')} a search{n_words}."
    )


@writes("tuned", exact=True)
def tuned(
    searches: str,
    trials: int,
    sampler: str,
    explored: float | None,
    chosen_on: Values,
    compared: bool,
) -> str:
    """Say how settings were searched and chosen. `searches`: their `number` in words;
    `explored`: the least share of a range; `chosen_on`: whether on `parents`, and by which `metric`
    of the user's."""
    coverage = ""
    if explored is not None:
        coverage = f", which explored at least {100 * explored:.0f} % of each range"
    metric_words = f" by {chosen_on['metric']}" if chosen_on["metric"] else ""
    condition = "" if compared else "; intervals hold for the chosen settings only"
    return (
        f"Tuning: {searches} of {count_text(trials, 'trial')} (sampler {sampler}){coverage}; "
        f"settings were chosen on validation{' of the parents' * chosen_on['parents']}"
        f"{metric_words}, with seeds that the table doesn't use{condition}."
    )
