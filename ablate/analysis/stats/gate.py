"""Keep or discard: what one proposal of a stream of changes needs next, or what its runs say.

A stream has a *baseline*, the code that was kept last, whose runs all proposals share until another
is kept. A proposal gets fresh runs. Looks at 1 and 2 of them may only discard it; looks at 4, 8, 12
(20, 30) may keep it, each at a fixed share of the level, so the chance to keep a change that gains
nothing is at most the level, whatever became of other proposals. Expected false keeps therefore
add up: 0.01 for each proposal, under any order and dependence.

Results are "higher is better". A *spread* is the standard deviation of one run. The variance of a
proposal is moderated: `PRIOR_DF` parts of the variance of all earlier runs of the stream, n - 1
parts of its own (limma: Smyth 2004, doi:10.2202/1544-6115.1027), unless its own lies beyond the
90 % point of F over it; then it is judged by its own.

Used by analysis/stream_looks.py, and by benchmarks/gate.py, which simulates how often
`next_step_of` errs. A new rule also needs docs/how-to/keep-or-discard.md, whose figures that
benchmark prints.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from scipy.special import fdtri, stdtr, stdtrit

# Numbers of runs at which a proposal may be kept, and the share of the level spent at each. The
# shares are fixed, so a proposal that goes on to 30 runs later takes no new chance.
KEEPING_LOOKS = {4: 0.30, 8: 0.25, 12: 0.20, 20: 0.15, 30: 0.10}
SCREENS = (1, 2)  # numbers of runs at which a proposal may only be discarded
FIRST_RUNS = 8  # of a baseline, before the first look
MOST_RUNS = 40  # of a baseline, which grows to twice the runs of a proposal
FIRST_PAIRS = 6  # of a baseline with itself, where runs are compared side by side
LEVEL = 0.01  # the chance to keep a change that gains nothing, at most
MARGIN_SPREADS = 1.5  # the default margin
PRIOR_DF = 6.0
OWN_SPREAD = 0.90  # the point of F beyond which a proposal has a spread of its own
CONFIDENCE = 0.95  # of the interval of a gain

GateWord = Literal["keep", "discard", "goes on", "undecided"]
GateReason = Literal["", "gain", "small", "bits", "constant", "runs"]


class Pool(NamedTuple):
    """The spread of earlier runs: sums of squares about the mean of each code, and their degrees of
    freedom."""

    squares: float = 0.0
    df: int = 0

    def with_runs(self, results: Sequence[float]) -> Pool:
        """Return the pool with the runs of one more code. Runs that are all equal are left out: a
        code that fixes its seed says nothing of the spread."""
        if len(results) < 2 or is_constant(results):
            return self
        squares = _mean_squares(results)[1]
        return Pool(self.squares + squares, self.df + len(results) - 1)


@dataclass(frozen=True)
class GateRules:
    """How a proposal is judged; fixed before it has runs. Margins are in units of the results.

    `margin`: of a gain that matters: a proposal is discarded once its gain is below half of it;
    None: 1.5 spreads. `simplify`: the loss at most for which a simplification is kept; None: the
    proposal has to gain. `most`: runs of a proposal at most.
    """

    margin: float | None = None
    simplify: float | None = None
    most: int = 12
    level: float = LEVEL
    pairs: bool = False

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of runs at its looks."""
        return (*SCREENS, *(n for n in KEEPING_LOOKS if n <= self.most))


class Need(NamedTuple):
    """Runs that there have to be in all, of the proposal and of the baseline."""

    runs: int
    baseline_runs: int


@dataclass(frozen=True)
class GateLook:
    """A look at a proposal.

    `gain` with its interval `low` to `high`, at 95 %; nan where nothing has a spread. `p`: of the
    test of a look that may keep, 1 at others. `reason`: why it ends there: its gain is large enough
    ("gain") or too small ("small"), all runs of the proposal are equal to the bit ("bits"), all
    runs of both are ("constant"), or no look is left ("runs").
    """

    runs: int
    baseline_runs: int
    word: GateWord
    gain: float
    low: float
    high: float
    p: float
    reason: GateReason


def next_step_of(
    proposal: Sequence[float],
    baseline: Sequence[float],
    pool: Pool,
    looks: Collection[int],
    rules: GateRules,
) -> Need | GateLook:
    """Return the runs that a proposal needs next, or the next look at it.

    `proposal`, `baseline`: results in the order of their seeds; in pairs, run i of one stands next
    to run i of the other. `looks`: the numbers of runs of the looks so far, none of which ended it.
    Raises ValueError where no look is left.
    """
    if not rules.pairs and len(baseline) < FIRST_RUNS:
        return Need(len(proposal), FIRST_RUNS)
    for runs in rules.looks:
        if runs in looks:
            continue
        if rules.pairs:
            if min(len(proposal), len(baseline)) < runs:
                return Need(runs, runs)
            look = _paired_look(proposal[:runs], baseline[:runs], pool, rules)
        else:
            baseline_runs = min(2 * runs, MOST_RUNS) if runs in KEEPING_LOOKS else 0
            if len(proposal) < runs or len(baseline) < baseline_runs:
                return Need(runs, max(baseline_runs, len(baseline)))
            look = _shared_look(proposal[:runs], baseline, pool, rules)
        return look
    raise ValueError("no look is left")


def is_constant(results: Sequence[float]) -> bool:
    """Return whether all results are equal to the bit."""
    return len(set(results)) == 1


def self_pairs(results: Sequence[float]) -> Pool:
    """Return the pool that a stream of pairs begins with: the differences of `FIRST_PAIRS` pairs of
    runs of one baseline. `results`: twice as many, in the order of their seeds."""
    return Pool().with_runs(_differences(results[::2], results[1::2]))


def spread_of(pool: Pool, baseline: Sequence[float], pairs: bool) -> float:
    """Return the spread of one run: of the pool and, unless runs are paired, of the baseline; nan
    where nothing has a spread yet."""
    squares, df = pool
    if not pairs and len(baseline) > 1:
        squares, df = squares + _mean_squares(baseline)[1], df + len(baseline) - 1
    if not df:
        return math.nan
    return math.sqrt(squares / df / (2 if pairs else 1))  # a difference has the variance of two


class _GainEstimate(NamedTuple):
    """Numbers that the rules need: the gain, its standard error and degrees of freedom, and the
    spread of one run."""

    gain: float
    error: float
    df: float
    spread: float


def _shared_look(
    proposal: Sequence[float], baseline: Sequence[float], pool: Pool, rules: GateRules
) -> GateLook:
    runs, baseline_runs = len(proposal), len(baseline)
    baseline_mean, baseline_squares = _mean_squares(baseline)
    mean, squares = _mean_squares(proposal)
    shared_df = pool.df + baseline_runs - 1
    shared_variance = (pool.squares + baseline_squares) / shared_df
    if shared_variance == 0:
        return GateLook(
            runs, baseline_runs, "undecided", mean - baseline_mean, *_NOTHING, "constant"
        )
    variance, variance_df = _moderated(squares, runs - 1, shared_variance, shared_df, screened=True)
    base_variance, base_df = _moderated(
        baseline_squares, baseline_runs - 1, shared_variance, shared_df
    )
    variance, base_variance = variance / runs, base_variance / baseline_runs
    df = (variance + base_variance) ** 2 / (
        variance**2 / variance_df + base_variance**2 / base_df
    )  # Satterthwaite
    estimate = _GainEstimate(
        mean - baseline_mean,
        math.sqrt(variance + base_variance),
        min(df, shared_df + runs - 1),
        math.sqrt(shared_variance),
    )
    return _look(estimate, proposal, baseline_runs, rules)


def _paired_look(
    proposal: Sequence[float], baseline: Sequence[float], pool: Pool, rules: GateRules
) -> GateLook:
    runs = len(proposal)
    gain, squares = _mean_squares(_differences(proposal, baseline))
    if pool.df == 0:
        return GateLook(runs, runs, "undecided", gain, *_NOTHING, "constant")
    shared_variance = pool.squares / pool.df
    variance, df = _moderated(squares, runs - 1, shared_variance, pool.df, screened=True)
    df = min(df, pool.df + runs - 1)
    estimate = _GainEstimate(gain, math.sqrt(variance / runs), df, math.sqrt(shared_variance / 2))
    return _look(estimate, proposal, runs, rules)


_NOTHING = (math.nan, math.nan, 1.0)  # low, high and p where nothing has a spread


def _look(
    estimate: _GainEstimate, proposal: Sequence[float], baseline_runs: int, rules: GateRules
) -> GateLook:
    runs = len(proposal)
    half = float(stdtrit(estimate.df, (1 + CONFIDENCE) / 2)) * estimate.error
    p = 1.0
    word: GateWord = "goes on"
    reason: GateReason = ""
    if runs in KEEPING_LOOKS:
        p = float(stdtr(estimate.df, -(estimate.gain + (rules.simplify or 0.0)) / estimate.error))
        if p <= rules.level * KEEPING_LOOKS[runs]:
            word, reason = "keep", "gain"
            if is_constant(proposal):  # a hard-wired lucky seed has a "gain" without a spread
                word, reason = "undecided", "bits"
    if rules.simplify is None:
        margin = rules.margin or MARGIN_SPREADS * estimate.spread
        worth = margin / 2
    else:
        worth = -rules.simplify / 2
    if word == "goes on" and estimate.gain < worth:
        word, reason = "discard", "small"
    if word == "goes on" and runs == rules.looks[-1]:
        word, reason = "undecided", "bits" if is_constant(proposal) else "runs"
    gain = estimate.gain
    return GateLook(runs, baseline_runs, word, gain, gain - half, gain + half, p, reason)


def _moderated(
    squares: float, df: int, shared_variance: float, shared_df: int, screened: bool = False
) -> tuple[float, float]:
    """Return (variance, df) of one code's runs: moderated by the shared variance or, if `screened`
    and its own lies beyond the point of F, its own."""
    prior_df = min(PRIOR_DF, shared_df)
    if screened and df and squares / df > float(fdtri(df, shared_df, OWN_SPREAD)) * shared_variance:
        return squares / df, df
    return (prior_df * shared_variance + squares) / (prior_df + df), prior_df + df


def _differences(results: Sequence[float], base_results: Sequence[float]) -> list[float]:
    return [result - base_result for result, base_result in zip(results, base_results, strict=True)]


def _mean_squares(results: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sum of squares about it, 0 where all results are equal: the rounded
    mean of equal numbers may be another number."""
    if is_constant(results):
        return results[0], 0.0
    mean = sum(results) / len(results)
    return mean, sum((result - mean) ** 2 for result in results)
