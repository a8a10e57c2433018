"""Gains of the rows of a column over a baseline, with simultaneous intervals.

Used by analysis/sequential.py and change_gains.py (gains) and judging.py (verdicts). A new verdict
also needs its words in analysis/headline.py `STATEMENTS`, report/formats/grid.py `COLOURS` and
report/gains.html; other numbers need docs/statistics.md and `python tests/study_page.py --reprint`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit

from ablate.analysis.stats.estimate import (
    Bools,
    Estimate,
    Exact,
    Floats,
    holm,
    mean,
    mean_interval,
    sign_flip,
)
from ablate.analysis.stats.spread import (
    PERCENT,
    Flips,
    ImageFlips,
    Variances,
    by_images,
    one_way,
    paired,
    runs_behind,
)

POWER = 0.8  # of the seeds that it would take to tell
MOST_SEEDS = 100  # "more than" beyond
FEWEST_SEEDS = 3  # with two, a baseline of three times the spread errs in 12 % of tables
CANT_TELL = "can't tell"
UNSTABLE = "unstable"  # told from 0 by the other rows' spread, but not by its own
DID_NOTHING = "did nothing"  # the baseline's predictions in every seed

# Words for an interval above 0 and below: of a gain, of a difference that has no better direction.
BETTER = ("helps", "hurts")
NEUTRAL = ("higher", "lower")
# Metrics have a direction; "helps" would say that a change was made, and made the difference.
COMPARED = ("better", "worse")  # of results from elsewhere, where it isn't known what was changed
TARGET = ("above the target", "below the target")  # of a mean minus a fixed number


def verdict(
    low: float, high: float, margin: float | None = None, words: tuple[str, str] = BETTER
) -> str:
    """Return the word for a simultaneous interval of a gain: the strongest that holds.

    `words`, such as `helps` and `hurts`: it excludes 0. With a margin m, `same within m`: it lies
    in (-m, m); of a gain `no worse than m`: above -m (non-inferiority). Else `can't tell`.
    """
    if low > 0:
        return words[0]
    if high < 0:
        return words[1]
    if margin is not None and low > -margin:
        if high < margin:
            return f"same within {margin:g}"
        if words in (BETTER, COMPARED):
            return f"no worse than {margin:g}"
    return CANT_TELL


def agreement(low: float, high: float, published: float) -> str:
    """Compare the direction of our gain with that of a published one.

    Returns `same direction` or `opposite direction`; `can't tell` where our interval includes 0, or
    where the published gain was printed as 0.
    """
    if low <= 0 <= high or published == 0:
        return CANT_TELL
    return "same direction" if (low > 0) == (published > 0) else "opposite direction"


def population_gain(right: Bools, baseline: Bools, seeds: RowGain, alpha: float = 0.05) -> Estimate:
    """Compute the gain in accuracy, in points, for new seeds and images, from the images that each
    seed gets right: (n, N) for a row and for the baseline, seeds and images in the same order, n, N
    >= 2. `seeds`: the same gain over seeds alone, whose interval the new one contains.

    Seeds and images are crossed random effects on the differences: to the variance of their mean
    over seeds, (MS_i - MS_e) / (n N) is added for images drawn independently; df by Satterthwaite
    (1946). The result has no interval if the gain over seeds has none.
    """
    d = right.astype(int) - baseline
    n, images = d.shape
    alone = seeds.gain
    if alone.sd is None or alone.high is None or not seeds.df:
        return Estimate(alone.mean, None, None, n)
    # Sums of squares, n N times as large: whole numbers, for any order of seeds and images.
    squared_total = int(d.sum()) ** 2
    of_seed = n * int(np.square(d.sum(1)).sum()) - squared_total
    of_image = images * int(np.square(d.sum(0)).sum()) - squared_total
    rest = n * images * int(np.square(d).sum()) - squared_total - of_seed - of_image
    unit = PERCENT * PERCENT / (n * images)
    df_e = (n - 1) * (images - 1)
    ms_i, ms_e = unit * of_image / (images - 1), unit * rest / df_e
    of_seeds, of_images = alone.sd * alone.sd / n, max(ms_i - ms_e, 0.0) / (n * images)
    both = of_seeds + of_images
    noise = of_seeds * of_seeds / seeds.df
    if of_images:
        noise += (ms_i * ms_i / (images - 1) + ms_e * ms_e / df_e) / (n * images) ** 2
    df = both * both / noise if noise else n - 1.0
    half = float(stdtrit(df, 1 - alpha / 2)) * math.sqrt(both)
    half = max(half, alone.high - alone.mean)
    return Estimate(alone.mean, alone.mean - half, alone.mean + half, n, math.sqrt(both * n))


@dataclass(frozen=True)
class Method:
    """How the gains of a column are judged; fixed before results exist.

    `images`: by which images flip between seeds, where they are known, else as `one way`. `alpha`
    is the error of the whole family of `contrasts`, in this column or in all columns of a table,
    those between two rows included. `variants`: the rows of this column but the baseline, whose
    spread is estimated together. `repeated`: at each of several looks.
    """

    spread: Literal["images", "one way", "paired"] = "one way"
    alpha: float = 0.05
    contrasts: int = 1
    variants: int = 1
    repeated: bool = False
    blocks: bool = True

    @property
    def screened(self) -> bool:
        """True if rows share a spread, as far as screens find them alike."""
        return self.spread != "paired"

    def critical(self, df: Floats) -> Floats:
        """Return the half-width of a simultaneous interval, in standard errors: t at alpha /
        contrasts."""
        # A quantile is slow, and they repeat.
        some, inverse = np.unique(np.round(df, 3), return_inverse=True)
        quantiles = stdtrit(some, 1 - self.alpha / (2 * self.contrasts))
        return np.asarray(quantiles[inverse].reshape(np.shape(df)))

    def p(self, t: float, df: float) -> float:
        """Return the p-value of that interval: at most alpha where it excludes 0."""
        return min(2 * float(stdtr(df, -abs(t))) * self.contrasts, 1.0)


class Fit(NamedTuple):
    """The gains over row 0, shape (..., R), the half-widths of their intervals, and the variances
    by which they are judged."""

    gain: Floats
    half: Floats
    variances: Variances

    @property
    def sd(self) -> Floats:
        """The standard deviation (..., R) of one seed's gain."""
        return np.sqrt(self.variances.v)


def fit(y: Floats, method: Method, images: ImageFlips | None = None) -> Fit:
    """Fit the gains of every row of y (..., R, n), n >= 2, over row 0, the baseline. No result is
    missing, except where rows are no blocks: there NaN pads the rows with fewer runs."""
    if not method.blocks:
        variances = one_way(y, blocks=False, separate=method.spread == "paired")
        means, n = mean(y), runs_behind((~np.isnan(y)).sum(-1).astype(float))
        return Fit(
            means - means[..., :1],
            method.critical(variances.df) * np.sqrt(variances.v / n),
            variances,
        )
    if method.spread == "paired":
        variances = paired(y)
    elif method.spread == "images" and images is not None:
        variances = by_images(y, images, method.repeated)
    else:
        variances = one_way(y)
    means = mean(y)
    half = method.critical(variances.df) * np.sqrt(variances.v / y.shape[-1])
    return Fit(means - means[..., :1], half, variances)


def raw_p(gain: Floats, v: Floats, df: Floats, n: float) -> Floats:
    """Compute the two-sided p (..., R) of each gain by itself; NaN where there is no spread to
    judge by."""
    nothing = np.full(np.shape(gain), np.nan)
    t = np.divide(gain * math.sqrt(n), np.sqrt(v), out=nothing, where=v > 0)
    return np.asarray(2 * stdtr(df, -np.abs(t)))


Reason = Literal["", "spread", "outlier", "instability", "vague"]


@dataclass(frozen=True)
class RowGain:
    """The gain of one row; `own_reason` says why it is judged by its own spread, if it is.

    `spread`: its spread is beyond the limit of the screen, but contributes to that of the others;
    `outlier`: it is so far beyond that it does not contribute; `instability`: it has a diverged or
    a collapsed run, and left the fit as well; `vague`: its own seeds determine its spread better
    than images and other rows do. `ratio`: its standard deviation over the one that the other rows
    lead us to expect, None where that is 0. `stands_out`: by the shared spread its gain would be
    distinguished from 0; `decides`: seeds at which its own spread would distinguish a gain as
    large, None beyond 100.

    p-values decide nothing. `raw_p` is this test's alone. `p` is adjusted for the family: that of
    the interval, and Holm's where a row is judged by its own spread, which may fall below alpha
    where the interval holds 0. `sign_flip` needs no normality, and is not adjusted. None where
    there is no spread. `few`: too few images flip to determine the row's spread, so it is that of
    all rows.
    """

    gain: Estimate
    own_reason: Reason = ""
    ratio: float | None = None
    stands_out: bool = False
    decides: int | None = None
    raw_p: float | None = None
    p: float | None = None
    sign_flip: Exact | None = None
    few: bool = False
    df: float | None = None


@dataclass(frozen=True)
class ColumnGains:
    """The gains of a column, in the rows' order; None for the baseline and where there is none.

    `void`: the baseline has a diverged or a collapsed run, so gains have no intervals. The other
    fields are of the rows that have every seed of the baseline. `spreads`: the least and the
    greatest standard deviation of a result by which these are judged, with the median `df`.
    `shared_sd`: the root mean square of the spread that they share, for forecasts; `shared_df` its
    df, `fixed` the part of 1 / shared_df that more seeds don't lessen. `flips`: the mean share of
    the variance that is flips of images. `likeness`: by row, how alike its images flip with the
    baseline's. `tripped`: the baseline's spread is beyond the limit of the screen, and widens the
    interval of some row; `ratio`: its standard deviation over the one that the variants lead us to
    expect.
    """

    rows: tuple[RowGain | None, ...]
    spreads: tuple[float, float] | None = None
    df: float | None = None
    kept_rows: int = 0
    shared_sd: float | None = None
    shared_df: float | None = None
    fixed: float = 0.0
    flips: float = 0.0
    likeness: tuple[float | None, ...] = ()
    tripped: bool = False
    ratio: float | None = None
    void: bool = False


def column_gains(
    y: Floats,
    baseline: int,
    method: Method,
    unstable: Bools | None = None,
    flips: Flips | None = None,
    judged_rows: Collection[int] | None = None,
) -> ColumnGains:
    """Compute the gains of the rows of y (R, S), NaN where a result is missing, over the row
    `baseline`. `flips`: which images the runs of y get right, where y is a share of images;
    `judged_rows`: those that get a gain, all by default; the others tell of the spread alone.

    A row with missing seeds is fitted on the seeds that it shares with the baseline, together with
    the rows that have all of those. Rows of `unstable` (R,), with a diverged or a collapsed run,
    leave a screened fit: one such run is so far out that, left in it, it would be noise in every
    other row. An unstable baseline voids the column: one collapsed run of three would make most
    rows seem to help.
    """
    present = ~np.isnan(y)
    runs = present.sum(1)
    if not method.blocks:  # a row is there with all of its runs, or it tells no spread
        present = np.repeat((runs > 1)[:, None], y.shape[1], axis=1)
    shaky = np.zeros(len(y), dtype=bool) if unstable is None else unstable
    void = bool(shaky[baseline])
    out = shaky & method.screened
    out[baseline] = False
    both_present = present & present[baseline]

    @functools.cache  # most rows have the same seeds: one fit serves them all
    def together(seeds: tuple[int, ...]) -> tuple[int, ...]:
        complete = np.flatnonzero(present[:, list(seeds)].all(axis=1) & ~out)
        return (baseline, *(int(row) for row in complete if row != baseline))

    @functools.cache
    def images_of(rows: tuple[int, ...], seeds: tuple[int, ...]) -> ImageFlips | None:
        uses_images = method.spread == "images" and flips is not None
        return flips.row_flips(rows, seeds) if uses_images and flips is not None else None

    @functools.cache
    def fitted(rows: tuple[int, ...], seeds: tuple[int, ...]) -> Fit:
        return fit(y[np.ix_(rows, seeds)], method, images_of(rows, seeds))

    def pairs_of(row: int, seeds: tuple[int, ...]) -> _Pairs | None:
        if method.blocks:
            return _Pairs.from_differences((y[row] - y[baseline])[list(seeds)]) if seeds else None
        both = runs[[row, baseline]]
        if not both.all():
            return None
        gain = float(mean(y[row]) - mean(y[baseline]))
        return _Pairs(gain, int(both.min()), float(runs_behind(both.astype(float)[::-1])[1]))

    def gain_of(row: int) -> RowGain | None:
        seeds = tuple(int(s) for s in np.flatnonzero(both_present[row]))
        is_judged = row != baseline and (judged_rows is None or row in judged_rows)
        if not is_judged or (pairs := pairs_of(row, seeds)) is None:
            return None
        if void or pairs.n < 2:
            alone = Estimate(pairs.mean, None, None, pairs.n)
            return RowGain(alone, "instability" if out[row] else "")
        rows = together(seeds)
        if out[row]:
            by_itself = fit(y[np.ix_((baseline, row), seeds)], method)
            other_variances = fitted(rows, seeds).variances if len(rows) > 1 else None
            return row_gain(by_itself, 1, pairs, method, True, other_variances)
        return row_gain(fitted(rows, seeds), rows.index(row), pairs, method)

    gains = adjusted([gain_of(row) for row in range(len(y))], method)
    seeds = tuple(int(s) for s in np.flatnonzero(present[baseline]))
    rows = together(seeds)
    if void or len(rows) < 2 or len(seeds) < 2:
        return ColumnGains(gains, kept_rows=len(rows), void=void)
    variances, images = fitted(rows, seeds).variances, images_of(rows, seeds)
    alike: list[float | None] = [None] * len(y)
    for place, row in enumerate(rows[1:], 1) if images is not None and len(rows) > 2 else ():
        assert images is not None
        alike[row] = float(images.likeness[place, 0])
    gain_sds, typical = np.sqrt(variances.v[1:] / 2), ~variances.out[1:]
    ratio = float(variances.ratio)
    is_widened = bool(variances.tripped and not variances.is_own[1:].all())
    return ColumnGains(
        gains,
        spreads=(float(gain_sds.min()), float(gain_sds.max())),
        df=float(np.median(variances.df[1:])),
        kept_rows=1 + int(typical.sum()),
        shared_sd=math.sqrt(mean(variances.shared_v[1:]) / 2),
        shared_df=float(np.median(variances.shared_df[1:])),
        fixed=float(np.median(variances.fixed[1:])),
        flips=float(mean(variances.flips[1:])),
        likeness=tuple(alike),
        tripped=is_widened,
        ratio=ratio if is_widened and math.isfinite(ratio) else None,
    )


def contrast_gains(
    y: Floats,
    pairs: Sequence[tuple[int, int]],
    method: Method,
    unstable: Bools | None = None,
    flips: Flips | None = None,
) -> list[RowGain | None]:
    """Compute the contrast of each pair of rows of y (R, S), the first minus the second: the gain
    that the first would have if the second were the baseline. All rows tell of its spread, as of a
    gain's.

    Screens treat a noisy baseline in another way than a noisy variant, so it is computed both ways
    round, and the wider interval holds, or none: b - a is a - b with the sign changed. None where
    the rows share no seed. Other arguments: see `column_gains`.
    """
    partners: dict[int, set[int]] = {}
    for row, base in pairs:
        partners.setdefault(row, set()).add(base)
        partners.setdefault(base, set()).add(row)
    gains_over = {  # by baseline: a column is fitted once over each
        baseline: column_gains(y, baseline, method, unstable, flips, judged_rows=rows).rows
        for baseline, rows in partners.items()
    }
    return [_wider(gains_over[base][row], gains_over[row][base], method) for row, base in pairs]


def _wider(gain: RowGain | None, reverse: RowGain | None, method: Method) -> RowGain | None:
    """Return the gain with the wider interval of the two, or none where one has none. `reverse`:
    the same gain with the sign changed, computed the other way round."""
    if gain is None or reverse is None:
        return None

    def half(row_gain: RowGain) -> float:
        return math.inf if row_gain.gain.half is None else row_gain.gain.half

    wider = max(gain, reverse, key=half)
    mean, low, high, p = gain.gain.mean, None, None, None
    if wider.gain.half is not None:
        low, high = mean - wider.gain.half, mean + wider.gain.half
    if wider.raw_p is not None:  # `p` may be Holm's, which is of all gains over one baseline
        p = min(1.0, wider.raw_p * method.contrasts)
    estimate = dataclasses.replace(wider.gain, mean=mean, low=low, high=high)
    return dataclasses.replace(wider, gain=estimate, p=p)


def target_difference(values: Floats, target: float, method: Method) -> RowGain | None:
    """Compute the mean of `values` (n,), but for NaN, minus `target`, with the interval of the
    one-sample t at the row's share of the error; None without values. The sign is that of the
    values, whichever direction is better. p is Bonferroni's, as the interval."""
    present = values[~np.isnan(values)]
    if not len(present):
        return None
    estimate = mean_interval(present, method.alpha / method.contrasts)
    middle = estimate.mean - target
    if estimate.n < 2:
        return RowGain(Estimate(middle, None, None, estimate.n))
    half = estimate.half
    if half is None or not estimate.sd:  # equal values
        return RowGain(Estimate(middle, middle, middle, estimate.n, 0.0))
    difference = Estimate(middle, middle - half, middle + half, estimate.n, estimate.sd)
    df = estimate.n - 1.0
    raw = float(raw_p(np.array(middle), np.array(estimate.sd**2), np.array(df), estimate.n))
    adjusted_p = min(1.0, method.contrasts * raw)
    flip = sign_flip(present - target)
    return RowGain(difference, raw_p=raw, p=adjusted_p, sign_flip=flip, df=df)


class _Pairs(NamedTuple):
    """The runs behind a row's gain: `mean`, the gain; `n`, as it is printed; `behind`, the n of its
    standard error; `differences` (n,) of its seeds from the baseline's, None where rows share no
    seeds."""

    mean: float
    n: int
    behind: float
    differences: Floats | None = None

    @classmethod
    def from_differences(cls, differences: Floats) -> _Pairs:
        n = len(differences)
        return cls(float(mean(differences)), n, n, differences)


def own_reason(is_own: bool, out: bool, vague: bool) -> Reason:
    """Say why a row is judged by its own spread, "" if it isn't. See `Variances`."""
    if not is_own:
        return ""
    return "vague" if vague else "outlier" if out else "spread"


def row_gain(
    table_fit: Fit,
    row: int,
    pairs: _Pairs,
    method: Method,
    unstable: bool = False,
    other_variances: Variances | None = None,
) -> RowGain:
    """Return the gain of one row of a fit, as plain numbers. `other_variances`: for an `unstable`
    row, which has a fit of its own, the variances that the other rows share, None if there are no
    other rows. `p` is that of the interval until `adjusted` replaces it."""
    variances, n = table_fit.variances, pairs.behind
    gain, half, sd, df = (
        float(x[row]) for x in (table_fit.gain, table_fit.half, table_fit.sd, variances.df)
    )
    reason = own_reason(variances.is_own[row], variances.out[row], variances.vague[row])
    if unstable and not reason:
        reason = "instability"
    shared_variance, shared_df = float(variances.shared_v[row]), variances.shared_df[row]
    if unstable:
        shared_variance = 0.0
    if other_variances is not None:  # the most that any of them has
        widest = int(other_variances.shared_v[1:].argmax()) + 1
        shared_variance, shared_df = (
            float(other_variances.shared_v[widest]),
            other_variances.shared_df[widest],
        )
    ratio, stands_out, decides = None, False, None
    if reason and reason != "vague" and shared_variance > 0:
        ratio = (
            math.sqrt(variances.ratios[row])
            if other_variances is None
            else sd / math.sqrt(shared_variance)
        )
        stands_out = abs(gain) > float(method.critical(shared_df) * math.sqrt(shared_variance / n))
        decides = _deciding(gain, sd, method)
    raw = float(raw_p(table_fit.gain[row], variances.v[row], variances.df[row], n))
    flips = sign_flip(pairs.differences) if sd > 0 and pairs.differences is not None else None
    return RowGain(
        gain=Estimate(gain, gain - half, gain + half, pairs.n, sd),
        own_reason=reason,
        ratio=ratio if ratio is not None and math.isfinite(ratio) else None,
        stands_out=stands_out,
        decides=decides,
        raw_p=raw if sd > 0 else None,
        p=method.p(gain / sd * math.sqrt(n), df) if sd > 0 else None,
        sign_flip=flips,
        few=bool(variances.few[row]),
        df=df,
    )


def _deciding(gain: float, sd: float, method: Method) -> int | None:
    """Find the fewest seeds at which a paired t with this mean gain and sd excludes 0."""
    n = np.arange(2, MOST_SEEDS + 1)
    quantile = stdtrit(n - 1, 1 - method.alpha / (2 * method.contrasts))
    excludes_zero = quantile * sd / np.sqrt(n) < abs(gain)
    return int(n[excludes_zero.argmax()]) if excludes_zero.any() else None


def adjusted(gains: Sequence[RowGain | None], method: Method) -> tuple[RowGain | None, ...]:
    """Return `gains` with Holm's p where each is judged by its own spread, among all of this
    column.

    Where the family is a table, the p-values of the other columns are taken as smaller: the result
    is no less than Holm's.
    """
    raw = [gain.raw_p if gain and gain.raw_p is not None else math.nan for gain in gains]
    stepped = holm(np.array(raw), method.contrasts)
    return tuple(
        dataclasses.replace(gain, p=float(p))
        if gain and gain.p is not None and (gain.own_reason or not method.screened)
        else gain
        for gain, p in zip(gains, stepped, strict=True)
    )
