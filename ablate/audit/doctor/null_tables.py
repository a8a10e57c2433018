"""Estimates how often the verdicts of a sweep err on its own runs, where there is no gain.

Used by `ablate doctor --statistics` (cli/keeping.py). A new key of `numbers` also needs its line in
docs/json.keys, and docs/json.md, which tests/json_page.py writes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.analysis import (
    ColumnEvidence,
    Evidence,
    RunFiles,
    method_of,
    seeds_command,
    stats,
    with_own_metrics,
)
from ablate.audit.doctor.machine import Finding, Findings
from ablate.planning import Plan
from ablate.shared import UserError, count_text
from ablate.store import (
    Ledger,
    Store,
    driven_plan,
    resolve_sweep_name,
    sweep_names,
    unedited_plan,
    without_skipped,
)

MIXED_SEEDS = 2  # times n that all rows have in common, for tables of mixed rows
METHODS = {
    "images": "by the test images",
    "one way": "by one variance of all rows",
    "paired": "by paired t",
}


@dataclass(frozen=True)
class JudgedColumn(Finding):
    """A finding on the verdicts of one column. `numbers`: the same facts for programs."""

    numbers: Mapping[str, Any]


def null_tables(store: Store, names: Sequence[str]) -> Findings:
    """Judge tables without gains, made of the runs of each row, for these sweeps.

    No `names` means all driven sweeps. Raises UserError where a named sweep, or every sweep, has
    too few seeds for such tables or gives no verdicts.
    """
    with Ledger.reading(store) as ledger:
        sweeps = sweep_names(store, ledger)
        plans = [
            without_skipped(
                unedited_plan(store, driven_plan(store, ledger, sweeps, name)), ledger
            ).with_own()
            for name in (resolve_sweep_name(name, sweeps) or name for name in names or sweeps)
        ]
    refusals = []
    for plan in plans:
        columns = [] if plan.conditions else [*_of_sweep(plan, store)]
        yield from columns
        if not any(isinstance(column, JudgedColumn) for column in columns):
            refusals.append(_refusal(plan, store.command))
            if names or len(refusals) == len(plans):
                raise UserError(refusals[-1])
            yield Finding("warning", "verdicts", refusals[-1])


def _of_sweep(plan: Plan, store: Store) -> Findings:
    metric = plan.metric
    sound = store.results(plan.runs(), curves=metric.of_curve, probes=bool(metric.probe))
    for fault in sound.withheld.values():
        yield Finding("problem", "verdicts", f"withheld: {fault}")
    results = with_own_metrics(plan, sound.results, store)
    files = RunFiles(store.metrics, store.probe, store.predictions)
    for column in Evidence.collect(plan, results, files).columns:
        if plan.cell(plan.baseline, column.column.label) is not None:
            yield from _of_column(plan, column, store.command)


def _of_column(plan: Plan, evidence: ColumnEvidence, command: Callable[..., str]) -> Findings:
    """Yield the finding on one column; nothing where no row has enough seeds."""
    import numpy as np

    from ablate.analysis import FEWEST_RUNS, mixed_error, null_error, null_shape

    column = evidence.column
    method = method_of(plan, column.label)
    y = _stable(plan, evidence)
    counts = (~np.isnan(y)).sum(1)
    enough = sorted(counts[counts >= FEWEST_RUNS].tolist())
    if not enough:
        return
    k, n = null_shape(enough[(len(enough) - 1) // 2], method.variants)
    paired = dataclasses.replace(method, spread="paired")
    if method.variants == 1:  # as tables judge a single row
        method = paired
    right, lacking = evidence.images if method.spread == "images" else (None, "")
    rows = np.flatnonzero(counts >= (k + 1) * n)
    images = None if right is None else right[rows]
    error = null_error(y[rows], images, method, n, k)
    paired_error = error if method is paired else null_error(y[rows], None, paired, n, k)
    mixed = mixed_pairs = None
    common = np.flatnonzero(~np.isnan(y[rows]).any(0))
    if len(rows) > 1 and len(common) >= MIXED_SEEDS * n:
        common_images = None if images is None else images[:, common]
        common_values = y[np.ix_(rows, common)]
        mixed = mixed_error(common_values, common_images, method, n)
        mixed_pairs = mixed if method is paired else mixed_error(common_values, None, paired, n)
    judged_by = "one way" if lacking else method.spread
    fewest_seeds, most_seeds = int(counts[rows].min()), int(counts[rows].max())
    share = _percent(error)
    if paired_error is not error:
        share += f", by paired t in {_percent(paired_error)}"
    seeds = (
        count_text(fewest_seeds, "seed")
        if fewest_seeds == most_seeds
        else f"{fewest_seeds} to {most_seeds} seeds"
    )
    judging = f"judged {METHODS[judged_by]}" + f", because {lacking}" * bool(lacking)
    place = f"{plan.name}@{column.label}" if column.label else plan.name
    text = (
        f"{place}: tables without a gain wrongly show one in {share} if all rows vary like the "
        f"same one, averaged over your rows (K = {k}, n = {n}; {count_text(len(rows), 'row')} of "
        f"{seeds}; {judging}; {100 * method.alpha:g} % is allowed)"
    )
    if mixed is not None and mixed_pairs is not None:
        pairs = f", by paired t in {_percent(mixed_pairs)}," * (mixed_pairs is not mixed)
        text += (
            f"; in {_percent(mixed)}{pairs} with your rows as they are, each as the baseline in "
            f"turn (K = {len(rows) - 1}, n = {n})"
        )
    beyond = max(error.low or 0, (mixed.low or 0) if mixed else 0) > method.alpha
    better = paired_error.share < error.share
    if mixed is not None and mixed_pairs is not None:
        better = better or mixed_pairs.share < mixed.share
    if beyond and better:
        remedy = command("table", plan.name, "analysis.spread=paired")
        text += f"; `{remedy}` judges each row by itself"
    numbers = {
        **{"sweep": plan.name, "column": column.label, "judged_by": judged_by},
        **{"variants": k, "seeds": n, "rows": len(rows), "row_seeds": [fewest_seeds, most_seeds]},
        **{"allowed": method.alpha, "wrong": error._asdict(), "paired": paired_error._asdict()},
        **{"mixed": None if mixed is None else mixed._asdict()},
    }
    yield JudgedColumn("warning" if beyond else "ok", "verdicts", text, numbers)


def _stable(plan: Plan, evidence: ColumnEvidence) -> stats.Floats:
    """Return the result of each row and replicate, NaN where a run is missing, diverged or
    collapsed.

    Tables judge such unstable runs separately.
    """
    import numpy as np

    y = evidence.means(plan)
    for row, scores in enumerate(evidence.scores):
        for place, seeds in enumerate(plan.replicates):
            if not {*seeds}.isdisjoint(scores.unstable):
                y[row, place] = np.nan
    return y


def _percent(error: Any) -> str:
    """Return a share as text, such as "3.9 % [2.1, 5.7: jackknife over seeds]"."""
    if error.low is None:
        return f"{100 * error.share:.1f} %"
    low, high = 100 * error.low, 100 * error.high
    return f"{100 * error.share:.1f} % [{low:.1f}, {high:.1f}: jackknife over seeds]"


def _refusal(plan: Plan, command: Callable[..., str]) -> str:
    """Return a line that says why a sweep has no such tables, and what would make them possible."""
    from ablate.analysis import FEWEST_RUNS

    for condition in plan.conditions:
        factor = condition.factor
        return f"{plan.name}: its tables give no verdicts, for all runs of a row share one {factor}"
    few = len(plan.seeds) < FEWEST_RUNS and not plan.design.grows
    remedy = plan.repeat_command(command)
    if few:
        remedy = seeds_command(plan, FEWEST_RUNS, command)
    return (
        f"{plan.name}: a row needs {FEWEST_RUNS} seeds that finished, three for a baseline and "
        f"three for each of two variants, and no row has as many: `{remedy}`"
    )
