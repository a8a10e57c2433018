"""The sentences on entries, rows and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablate.analysis.english.registry import writes
from ablate.analysis.english.words import (
    capitalized,
    first_few,
    plural,
    seed_names,
    setting_text,
)
from ablate.analysis.scores import short_number

Values = Mapping[str, Any]


# --- Runs ---------------------------------------------------------------------------------------


@writes("confound")
def confound(keys: Sequence[str]) -> str:
    return f"Confound: the row sets {', '.join(keys)}, which belongs to the recipe."


@writes("skipped.seeds")
def skipped_seeds(runs: Sequence[Values]) -> str:
    fates = "; ".join(f"seed {run['seed']}, {_how_far(**run)}" for run in runs)
    return f"Skipped by the user: {fates}."


def _how_far(seed: int, status: str, has_begun: bool, step: int | None) -> str:
    """Say how far a run had come when it was skipped. `status`: that of a run which had ended
    without a result, "" otherwise."""
    step_words = f" at step {step}" if step else ""
    if status:
        return f"which had ended as {status}{step_words}"
    return f"which had begun, and stopped{step_words}" if has_begun else "before it began"


@writes("overrides")
def overrides(keys: Sequence[str]) -> str:
    return f"The sweep's overrides change the recipe of this cell: {', '.join(keys)}."


@writes("diverged")
def diverged(runs: Sequence[Values], scored: str, own_interval: bool, fisher: Values | None) -> str:
    """`scored`: "chance", "omitted" or, of the baseline, "baseline"."""
    seeds = ", ".join(diverged_run(run) for run in runs)
    exclusion = _own_interval_clause(own_interval)
    if scored == "chance":
        text = f"Diverged: {seeds}; scored at chance{exclusion}."
    elif scored == "baseline":
        text = f"Diverged: {seeds}; gains are over the other runs of the baseline."
    else:
        text = (
            f"Diverged: {seeds}; mean and gain are of the other runs, so the row has no "
            f"verdict{exclusion}."
        )
    return text + _fisher_clause(fisher)


def diverged_run(run: Values) -> str:
    return f"seed {run['seed']}" + (f" at step {run['step']}" if run["step"] is not None else "")


@writes("collapsed")
def collapsed(
    seeds: Sequence[int], end: str, prior: str, own_interval: bool, fisher: Values | None
) -> str:
    """`end`: how a collapsed run of the task ends, "": with the loss of `prior`."""
    end = end or f"ended with a training loss no lower than the loss of {prior}"
    text = f"Collapsed: {seed_names(seeds)} {end}; the mean includes it"
    return f"{text}{_own_interval_clause(own_interval)}." + _fisher_clause(fisher)


def _own_interval_clause(own_interval: bool) -> str:
    return (
        "; the row has its own paired interval, and tells nothing of the other rows' spread"
        if own_interval
        else ""
    )


def _fisher_clause(fisher: Values | None) -> str:
    if fisher is None:
        return ""
    few = "" if fisher["tested"] else "; the test can decide from 4 runs on"
    return (
        f" Fisher's exact test against 0 of {fisher['runs']} runs of {fisher['baseline']}: p = "
        f"{fisher['p']:.2g}; the smallest p of so many runs is {fisher['floor']:.2g}{few}."
    )


@writes("never")
def never(seeds: Sequence[int]) -> str:
    return (
        f"{seed_names(seeds).capitalize()} never reached the threshold. The mean "
        f"leaves these runs out, so the row has no verdict."
    )


@writes("beyond")
def beyond(metric: str, values: Sequence[Values], largest: float) -> str:
    by_seed = ", ".join(f"{value['value']} in seed {value['seed']}" for value in values)
    return (
        f"The {metric} of this row is left out: {by_seed}; no interval can be "
        f"computed beyond {largest:g}."
    )


# --- Tuning -------------------------------------------------------------------------------------


@writes("tuned.settings")
def tuned_settings(
    choices: Sequence[Values], edges: Sequence[Values], noise: Sequence[Values]
) -> str:
    """`choices`: of each search its `params`, `name`, `trials`, `spent` and `multiply_adds`;
    `edges`, `noise`: see `tuned_doubts`."""
    params = "; ".join(
        ", ".join(f"{param['key']}={setting_text(param['value'])}" for param in choice["params"])
        + f" ({choice['name']})"
        for choice in choices
    )
    trials, spent, adds = (
        sum(choice[name] for choice in choices) for name in ("trials", "spent", "multiply_adds")
    )
    suffix = " each" if len(choices) > 1 else ""
    worth = f" at the cost of {spent:.1f}" if spent < trials else ""  # some pruned, or repeated
    used = f"; {short_number(adds)} multiply-adds" if adds else ""
    trial_words = plural(choices[0]["trials"], "trial")
    text = f"Tuned: {params}; best of {trial_words}{suffix}{worth}{used}."
    doubts = tuned_doubts(len(choices), edges, noise)
    return " ".join([text, *(f"{capitalized(doubt)}." for doubt in doubts)])


def tuned_doubts(searches: int, edges: Sequence[Values], noise: Sequence[Values]) -> list[str]:
    """List doubts about a choice. `edges`, `noise`: the number of `searches` in which the value of
    each `key` lies at the edge of its range, or is noise."""
    doubts = []
    if edges:
        doubts.append(
            f"at the edge of its range: {_often(edges, searches)}; a better value may lie beyond"
        )
    if noise:
        doubts.append(
            f"the choice is noise: {_often(noise, searches)}; the best two trials differ by less "
            f"than the validation error"
        )
    return doubts


def _often(keys: Sequence[Values], searches: int) -> str:
    """Write in how many searches each key is counted: "optim.lr in 2 of 3 searches"; for a single
    search, the keys alone."""
    suffix = f" of {searches} searches"
    return ", ".join(
        f"{entry['key']} in {entry['searches']}{suffix}" if searches > 1 else entry["key"]
        for entry in keys
    )


# --- Gains --------------------------------------------------------------------------------------


@writes("spread.own")
def spread_own(
    reason: str, ratio: float | None, by_images: bool, examples: str, paired: bool
) -> str:
    """`reason`: "spread" or "outlier", whose spread counts for no other row; `ratio`: of the row's
    spread to the others', None where these have none; `paired`: whether the runs have seeds."""
    leaves = reason == "outlier"
    reference = f"its {examples} and the other rows tell" if by_images else "the other rows have"
    times = f"{ratio:.1f} times" if ratio is not None else "far above"
    test = "0.1" if leaves else "5" if by_images else "10"
    basis = f" (F test, {test} %): the row has its own paired"
    if not paired:
        basis = ": the row has its own Welch"
    return (
        f"The row's spread is {times} what {reference}{basis} interval, and "
        f"{'tells nothing' if leaves else 'still tells'} of the other rows' spread."
    )


@writes("spread.few-runs")
def spread_few_runs() -> str:
    return "Few runs beside a larger baseline: the row has its own Welch interval."


@writes("spread.own-seeds")
def spread_own_seeds(examples: str) -> str:
    return (
        f"The row's own seeds tell its spread better than {examples} and the other "
        f"rows do: the row has its own paired interval."
    )


@writes("spread.hardly-any-image")
def spread_hardly_any_image() -> str:
    return (
        "The predictions of hardly any image change between seeds, in this row and the "
        "baseline: the row is judged by one spread of all rows."
    )


@writes("verdict.unstable")
def verdict_unstable(
    metric: Values,
    ratio: float | None,
    seed: int,
    gain: float,
    needed_seeds: int | None,
    most_seeds: int,
) -> str:
    """`seed`, `gain`: those that lie farthest from the median; `needed_seeds`: those
    that would resolve such a gain, None for more than `most_seeds`."""
    change = metric["change"]
    resolution = (
        f"{needed_seeds} seeds of this spread would resolve a {change} as large"
        if needed_seeds is not None
        else f"{most_seeds} seeds of this spread would not resolve a {change} as large"
    )
    times = f"{ratio:.1f} times" if ratio is not None else "many times"
    return (
        f"Unstable: the other rows' spread would tell the {change} from zero, but the row's "
        f"own spread is {times} as large and does not; seed {seed} is farthest from "
        f"the median ({gain:+.{metric['decimals']}f} {metric['points']}); {resolution}."
    )


@writes("verdict.did-nothing")
def verdict_did_nothing(baseline: str) -> str:
    return (
        f"The predictions equal those of {baseline} in every seed, bit for bit: the "
        f"change did nothing."
    )


@writes("gain.no-spread")
def gain_no_spread(change: str) -> str:
    return f"The {change} is the same in every seed: there is no spread to judge it by."


@writes("interval.wide")
def interval_wide(limit: float, points: str) -> str:
    return f"-: the interval is wider than {limit:g} {points}, so it says nothing."


# --- Columns ------------------------------------------------------------------------------------


@writes("mixed")
def mixed(name: str, values: Sequence[Values]) -> str:
    """`name`: the fact in which runs differ; `values`: each `value` with its `runs` and `rows`, the
    most frequent first."""
    parts = [
        f"{group['value']} ({plural(group['runs'], 'run')}"
        + (f": {first_few(group['rows'])})" if position else ")")
        for position, group in enumerate(values)
    ]
    return f"Runs differ in their {name}: {', '.join(parts)}."


@writes("rounding")
def rounding(columns: Sequence[str], nondeterministic: bool, devices: Sequence[str]) -> str:
    """`nondeterministic`: algorithms were not deterministic; `devices`: that differ, if some do."""
    reasons = ["deterministic algorithms were off"] if nondeterministic else []
    if devices:
        reasons.append(f"devices differ ({', '.join(devices)})")
    place = ", ".join(filter(None, columns))
    return (
        f"{place}{': s' if place else 'S'}everal ranks shared runs, equal up to rounding: "
        f"{'; '.join(reasons)}."
    )


@writes("data.decoded")
def data_decoded(data: str, finding: str, skipped: bool, rows: Sequence[str]) -> str:
    """`finding`: what decoding found; `skipped`: whether images are left out on request; `rows`: of
    which this holds, empty if of all."""
    cause = " (data.broken=skip)" if skipped else ""
    place = f": {first_few(rows)}" if rows else ""
    return f"data={data}: {finding}{cause}{place}."
