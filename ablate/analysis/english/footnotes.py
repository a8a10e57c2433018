"""The sentences on entries, rows and columns.

Used by `write` in `registry.py`, for sentences that analysis/footnotes.py chooses. A new writer
also needs `python tests/json_page.py`, which lists its key in docs/json.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablate.analysis.english.registry import writes
from ablate.analysis.english.words import (
    capitalized,
    first_few,
    seed_names,
    setting_text,
)
from ablate.analysis.scores import short_number
from ablate.shared import amount_text, count_text

Values = Mapping[str, Any]

NAMED_ROWS = 3  # whose runs are of other code, or of another machine


# --- Runs ---------------------------------------------------------------------------------------


@writes("confound")
def confound(keys: Sequence[str]) -> str:
    verb = "belongs" if len(keys) == 1 else "belong"
    return f"Confounded: the row also sets {', '.join(keys)}, which {verb} to the recipe."


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
    """`scored`: "chance", "omitted" or, of the baseline, "baseline"; "none" where no other run
    is left."""
    seeds = ", ".join(diverged_run(run) for run in runs)
    exclusion = _own_interval_clause(own_interval)
    if scored == "chance":
        text = f"Diverged: {seeds}; scored at chance{exclusion}."
    elif scored == "none":
        text = f"Diverged: {seeds}; no run is left for a mean or a gain."
    elif scored == "baseline":
        text = f"Diverged: {seeds}; gains are over the baseline's other runs."
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
    pronoun = "it" if len(seeds) == 1 else "them"
    text = f"Collapsed: {seed_names(seeds)} {end}; the mean includes {pronoun}"
    return f"{text}{_own_interval_clause(own_interval)}." + _fisher_clause(fisher)


def _own_interval_clause(own_interval: bool) -> str:
    return (
        "; its interval is a paired t of its own, and the noise of the other rows is estimated "
        "without it"
        if own_interval
        else ""
    )


def _fisher_clause(fisher: Values | None) -> str:
    if fisher is None:
        return ""
    few = "" if fisher["tested"] else "; with 4 runs or more the test can decide"
    return (
        f" Fisher's exact test against 0 of {count_text(fisher['runs'], 'run')} of "
        f"{fisher['baseline']}: p = {fisher['p']:.2g} (so many runs can give "
        f"{fisher['floor']:.2g} at least{few})."
    )


@writes("never")
def never(seeds: Sequence[int], baseline: bool = False, looks: bool = False) -> str:
    """`baseline`: whether the row is the baseline, over which all gains of its column are;
    `looks`: whether looks judge these."""
    consequence = "the row has no verdict"
    if baseline:
        consequence = f"no row of this column has a {'further ' * looks}verdict"
    return (
        f"{seed_names(seeds).capitalize()} never reached the threshold and "
        f"{'is' if len(seeds) == 1 else 'are'} left out of the mean, so {consequence}."
    )


@writes("not-reached")
def not_reached(
    diverged: Sequence[Values], never: Sequence[int], planned: int, has_side: bool
) -> str:
    """Write of a row under a target. `diverged`: see `diverged_run`; `never`: seeds of runs that
    never reached the threshold of the metric; `has_side`: one side of the target is better."""
    lost = [diverged_run(run) for run in diverged]
    if never:
        lost.append(seed_names(never))
    number = len(diverged) + len(never)
    fate = "did not reach the target"
    if not has_side:
        fate = "has no number" if number == 1 else "have no number"
    return (
        f"{number} of {count_text(planned, 'run')} {fate} ({', '.join(lost)}). "
        f"A mean of the other runs would be of the lucky ones, so the row has neither a mean nor a "
        f"verdict."
    )


@writes("beyond")
def beyond(metric: str, values: Sequence[Values], largest: float) -> str:
    by_seed = ", ".join(f"{value['value']} in seed {value['seed']}" for value in values)
    return (
        f"The {metric} of this row is left out: {by_seed}; no interval can be "
        f"computed beyond {largest:g}."
    )


# --- Tuning -------------------------------------------------------------------------------------


@writes("tuned.settings", exact=True)
def tuned_settings(choices: Sequence[Values]) -> str:
    """`choices`: of each search its `params`, `name`, `trials`, `spent` and `multiply_adds`."""
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
    trial_words = count_text(choices[0]["trials"], "trial")
    return f"Tuned: {params}; best of {trial_words}{suffix}{worth}{used}."


@writes("tuned.doubts")
def tuned_doubts_text(searches: int, edges: Sequence[Values], noise: Sequence[Values]) -> str:
    """Write the doubts about the settings that tuning chose: see `tuned_doubts`."""
    doubts = tuned_doubts(searches, edges, noise)
    return " ".join(f"{capitalized(doubt)}." for doubt in doubts)


def tuned_doubts(searches: int, edges: Sequence[Values], noise: Sequence[Values]) -> list[str]:
    """List doubts about a choice. `edges`, `noise`: the number of `searches` in which the value of
    each `key` lies at the edge of its range, or is noise."""
    doubts = []
    if edges:
        doubts.append(
            f"tuned to the edge of its range: {_often(edges, searches)}; a better value may lie "
            f"beyond"
        )
    if noise:
        doubts.append(
            f"chosen by chance: {_often(noise, searches)}; the best two trials differ by less than "
            f"the error of validation"
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


@writes("spread.own", exact=True)
def spread_own(
    reason: str, ratio: float | None, by_images: bool, examples: str, paired: bool
) -> str:
    """`reason`: "spread" or "outlier", without which the noise of the other rows is estimated;
    `ratio`: of the row's spread to the others', None where these have none; `paired`: whether the
    runs have seeds."""
    leaves = reason == "outlier"
    reference = f"its {examples} and the other rows suggest" if by_images else "the other rows"
    times = f"{ratio:.1f} times as much as" if ratio is not None else "far more than"
    test = "0.1" if leaves else "5" if by_images else "10"
    significance = f" (F test, {test} %)" if paired else ""
    kind = "a paired t" if paired else "Welch's t"
    consequence = "; the noise of the other rows is estimated without it" if leaves else ""
    return (
        f"This row varies {times} {reference}{significance}, so its interval is {kind} of its "
        f"own{consequence}."
    )


@writes("spread.few-runs", exact=True)
def spread_few_runs() -> str:
    return "This row has few runs, fewer than the baseline, so its interval is Welch's t."


@writes("spread.own-seeds", exact=True)
def spread_own_seeds(examples: str) -> str:
    return (
        f"This row's own seeds say more about its noise than its {examples} and the other rows, "
        f"so its interval is a paired t of its own."
    )


@writes("spread.hardly-any-image", exact=True)
def spread_hardly_any_image() -> str:
    return (
        "Hardly any prediction changes between seeds in this row and the baseline, so the row is "
        "judged by one variance of all rows."
    )


@writes("verdict.unstable")
def verdict_unstable(
    metric: Values,
    ratio: float | None,
    seed: int | None,
    gain: float,
    needed_seeds: int | None,
    most_seeds: int,
    searches: bool = False,
) -> str:
    """`seed`, `gain`: those that lie farthest from the median, None for the seed of a run of a
    sheet without seeds and of a search; `needed_seeds`: those that would resolve such a gain, None
    for more than `most_seeds`; `searches`: whether n counts searches, each of several seeds."""
    change = metric["change"]
    repeats, farthest = "seeds", f"Seed {seed}"
    if seed is None:
        repeats, farthest = ("searches", "One search") if searches else ("runs", "One run")
    resolution = (
        f"about {needed_seeds} such {repeats} would resolve a {change} as large"
        if needed_seeds is not None
        else f"even {most_seeds} such {repeats} would not resolve a {change} as large"
    )
    amount = amount_text(f"{gain:+.{metric['decimals']}f}", metric["points"])
    times = f"{ratio:.1f} times" if ratio is not None else "many times"
    return (
        f"Unstable: this row varies {times} as much between {repeats} as the others; without that "
        f"its {change} would stand out. {farthest} is farthest from the median "
        f"({amount}); {resolution}."
    )


@writes("verdict.did-nothing")
def verdict_did_nothing(baseline: str) -> str:
    return (
        f"The change did nothing: in every seed the predictions equal those of {baseline}, bit for "
        f"bit."
    )


@writes("gain.no-spread")
def gain_no_spread(change: str) -> str:
    return f"The {change} is the same in every seed, so there is no noise to judge it by."


@writes("interval.wide")
def interval_wide(limit: float, points: str) -> str:
    width = amount_text(f"{limit:g}", points)
    return f"-: seeds differ so much that the interval is wider than {width}."


# --- Columns ------------------------------------------------------------------------------------


@writes("mixed")
def mixed(name: str, values: Sequence[Values]) -> str:
    """`name`: the fact in which runs differ; `values`: each `value` with its `runs` and `rows`, the
    most frequent first."""
    parts = [
        f"{group['value']} ({count_text(group['runs'], 'run')}"
        + (f": {first_few(group['rows'], NAMED_ROWS)})" if position else ")")
        for position, group in enumerate(values)
    ]
    return f"Runs differ in their {name}: {', '.join(parts)}."


@writes("rounding", exact=True)
def rounding(columns: Sequence[str], nondeterministic: bool, devices: Sequence[str]) -> str:
    """`nondeterministic`: algorithms were not deterministic; `devices`: that differ, if some do."""
    reasons = ["deterministic algorithms were off"] if nondeterministic else []
    if devices:
        reasons.append(f"devices differ ({', '.join(devices)})")
    place = ", ".join(filter(None, columns))
    return (
        f"{place}{': s' if place else 'S'}everal ranks shared runs, whose numbers hold up to "
        f"rounding: {'; '.join(reasons)}."
    )


@writes("data.decoded")
def data_decoded(data: str, finding: str, skipped: bool, rows: Sequence[str]) -> str:
    """`finding`: what decoding found; `skipped`: whether images are left out on request; `rows`: of
    which this holds, empty if of all."""
    cause = " (data.broken=skip)" if skipped else ""
    place = f": {first_few(rows)}" if rows else ""
    return f"data={data}: {finding}{cause}{place}."
