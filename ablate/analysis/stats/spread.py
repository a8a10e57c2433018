"""The spread of gains over a baseline, seeds as blocks, from which a column's intervals are made.

Results are y (..., R, n): R rows of n seeds, none missing, row 0 the baseline; leading axes are
tables. Where seeds are no blocks NaN fills up rows of fewer runs. A metric that is the share of N
test examples that a run gets right is judged by `by_images`: the images that flip between seeds
determine each row's spread, and how rows move together, from more images than there are seeds. All
other metrics are judged by `one_way` (docs/statistics.md).

Used by gains.py and effects.py here, so by every interval. A change also needs docs/statistics.md,
the same definition by hand in tests/test_spread.py, and `python tests/study_page.py --reprint` (the
bundles in docs/studies); benchmarks/spread.py measures its errors on real trainings.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri

from ablate.analysis.stats.estimate import Bools, Floats, mean, rounding, total, variance

# Levels of the F tests that check whether rows share one spread.
OWN_LEVEL = 0.95  # beyond it a row is judged by its own spread
OWN_ONE_WAY = 0.90  # the same without images, which tell more
OUT = 0.999  # beyond it a row tells nothing of the others, either
FEW_SEEDS = 5  # below it the baseline's test has little power, and flags it sooner
BASELINE = {True: 0.90, False: 0.95}  # by whether seeds are few
BASELINE_AT_LOOKS = 0.85  # where a column is judged several times, each of which may miss it
NOISY_CELL = {True: 0.90, False: 0.80}  # of a design: by whether it has many cells
MANY_CELLS = 8
OWN_EFFECT = 0.80  # of a design's effects: beyond it one is judged by its own spread over seeds

# Rows share 1 - (1 - likeness)^power of the shift.
LIKE_FLIPS, ALIKE = 2, 6

# Without blocks: by whether a row's runs are few; few, and fewer than the baseline's.
OWN_APART = {True: 0.80, False: 0.90}
OWN_FEWER = 0.55
BASELINE_APART = {True: 0.70, False: 0.90}

PERCENT = 100.0  # the scale of a share of images
# One image more, of the greatest variance of right or wrong: a row that never flipped may yet.
ONE_IMAGE = 0.25
FEWEST_IMAGES = 4.0  # from which a spread of gains is estimated; below, `one_way`
TINY = np.finfo(float).tiny
DENOMINATOR = 5040  # at most, of the weights of a design
EXACT = 2**24  # whole numbers below it, and sums of them, are exact in single precision


class Variances(NamedTuple):
    """The variances by which gains over row 0 are judged, shape (..., R); entry 0 means nothing.

    `v`: the variance of one seed's gain, so that a gain's standard error is sqrt(v / n), with `df`
    degrees of freedom and n by `runs_behind`. `is_own`: rows judged by their own differences from
    the baseline; among them, `out` are the rows that say nothing of the other rows' spread, and
    `vague` those whose own seeds determine their spread better than images and the other rows do.
    `tripped` (...): the baseline's spread is beyond the screen's limit; `ratio` (...): its standard
    deviation over the one that the variants lead us to expect. `ratios`: of a row's variance to the
    one that the rows lead us to expect. `few`: rows whose spread hardly any images determine,
    judged `one_way`. `shared_v`, `shared_df`: v and df before rows are judged by their own spread.
    `fixed`: the part of 1 / shared_df that more seeds don't lessen. `flips`: the part of `shared_v`
    that is flips of images.
    """

    v: Floats
    df: Floats
    is_own: Bools
    out: Bools
    vague: Bools
    few: Bools
    tripped: Bools
    ratio: Floats
    ratios: Floats
    shared_v: Floats
    shared_df: Floats
    fixed: Floats
    flips: Floats


class ImageFlips(NamedTuple):
    """The variances of R rows by the images that flip between seeds, in points^2.

    `covariance` (..., R, R): of the rows' results, where images flip independently of one another.
    `gain`, `gain_df` (..., R): the variance of gains by the flips of right against the baseline's,
    and its degrees of freedom. `shift` (..., R): the points by which one unit on the logit of all
    images moves a row. `few` (..., R): rows in which hardly any images flip, too few to determine a
    spread.
    """

    covariance: Floats
    gain: Floats
    gain_df: Floats
    shift: Floats
    few: Bools

    @classmethod
    def from_right(cls, right: Bools) -> ImageFlips:
        """Judge by `right` (..., R, n, N): which of N images each run gets right.

        Results are the same bits for any order of images and seeds, on any processor: all sums are
        whole numbers. n (n - 1) times a covariance over seeds is n times the sum of products minus
        the product of sums. They are exact while n^4 N is below 2^53 (30 seeds: 10^10 images).
        """
        n, size = right.shape[-2:]
        pairs = n * (n - 1)  # of seeds: what the whole numbers below are divided by
        marks: NDArray[Any] = right.astype(np.float32 if n * n * size < EXACT else float)
        flat = marks.reshape(*marks.shape[:-2], n * size)
        both = (flat @ np.swapaxes(flat, -1, -2)).astype(float)
        hits = marks.sum(-2)  # (..., R, N)
        covariance = n * both - (hits @ np.swapaxes(hits, -1, -2)).astype(float)

        with_baseline = (marks * marks[..., :1, :, :]).sum(-2)
        hits, with_baseline = hits.astype(float), with_baseline.astype(float)
        base = hits[..., :1, :]
        of_gain = n * (hits + base - 2 * with_baseline) - np.square(hits - base)
        image_flips = hits * (n - hits)
        total_flips = of_gain.sum(-1) / pairs + ONE_IMAGE
        squares = np.square(of_gain).sum(-1) / pairs**2 + ONE_IMAGE**2
        flips, own_squares = image_flips.sum(-1), np.square(image_flips).sum(-1)

        unit = (PERCENT / size) * (PERCENT / size)
        return cls(
            covariance=(covariance / pairs + ONE_IMAGE * np.eye(right.shape[-3])) * unit,
            gain=total_flips * unit,
            gain_df=2 * np.square(total_flips) / squares,
            shift=(flips / pairs + ONE_IMAGE) * PERCENT / size,
            few=np.square(flips + flips[..., :1])
            < FEWEST_IMAGES * (own_squares + own_squares[..., :1]),
        )

    @staticmethod
    def combined(parts: Sequence[ImageFlips], weights: Sequence[float]) -> ImageFlips:
        """Judge sum_c w_c y_c, columns c being of different images: an average, a change, a
        slope."""
        squares = np.square(np.asarray(weights, dtype=float))

        def summed(arrays: Sequence[Floats], factors: Floats) -> Floats:
            return total(np.stack([w * part for w, part in zip(factors, arrays, strict=True)], -1))

        gain = summed([p.gain for p in parts], squares)
        noise = summed([np.square(p.gain) / p.gain_df for p in parts], np.square(squares))
        return ImageFlips(
            covariance=summed([p.covariance for p in parts], squares),
            gain=gain,
            gain_df=np.square(gain) / noise,
            shift=np.sqrt(summed([np.square(p.shift) for p in parts], squares)),
            few=np.all([p.few for p in parts], axis=0),
        )

    @property
    def likeness(self) -> Floats:
        """How alike rows flip, (..., R, R): the correlation of their flips, cut to [0, 1]."""
        sd = np.sqrt(_diagonal(self.covariance))
        return np.asarray(np.clip(self.covariance / (sd[..., :, None] * sd[..., None, :]), 0, 1))

    def run_wide(self, power: int = LIKE_FLIPS) -> Floats:
        """Compute the covariance (..., R, R) of rows under a shift of whole runs on the logit, of
        variance 1. Rows share the more of it, the more alike they flip, and the larger `power`
        is."""
        unlike = 1 - self.likeness  # multiplied: processors raise to powers in ways of their own
        alike = 1 - functools.reduce(np.multiply, [unlike] * power)
        alike[..., np.arange(alike.shape[-1]), np.arange(alike.shape[-1])] = 1
        return np.asarray(self.shift[..., :, None] * self.shift[..., None, :] * alike)


class _RunWide(NamedTuple):
    """The variance u2 (...) of a shift of whole runs, by the squares of some rows about the fit of
    row and seed; `error`, its variance; `v` (..., R, R), the rows' covariance with it; `df` of the
    squares; `shares` (..., R): the weights, of sum 1, by which rows make the fit of a seed."""

    u2: Floats
    error: Floats
    v: Floats
    shares: Floats
    df: Floats


def by_images(y: Floats, images: ImageFlips, repeated: bool = False) -> Variances:
    """Judge gains by which images flip, R >= 2, n >= 2.

    The covariance of rows is that of their flips, plus one variance of a shift of whole runs on the
    logit; a gain's variance is that of its own flips, plus its part of the shift. Screens: a row
    whose squares about the fit are beyond F is judged by its own spread; if the baseline's are, its
    excess is added to the variance of every gain. Degrees of freedom by Satterthwaite (1946). A
    single variant has its paired t. A row's own variance is at least that of its flips: a few seeds
    may give it gains that are the same image for image. `repeated`: this is one of several looks.
    """
    rows, n = y.shape[-2:]
    alone = np.maximum(_own_variance(y), images.gain)
    if rows == 2:
        return _paired(alone, n)
    e, wide = _diagonal(images.covariance), images.run_wide()
    covariance, wide_gain = _covariance(y), _of_gains(wide)

    def shift_of(some: Floats) -> _RunWide:
        return _run_wide(some, images.covariance, wide, covariance, n)

    everyone = shift_of(np.ones(e.shape))
    ratios = _variances_about_mean(covariance, everyone.shares) / _variances_about_mean(
        everyone.v, everyone.shares
    )
    is_own = ratios > _f_limit(n - 1, everyone.df, OWN_LEVEL)[..., None]
    out = ratios > _f_limit(n - 1, everyone.df, OUT)[..., None]
    is_own[..., 0] = out[..., 0] = False

    row_weights = np.where(out, 0.0, 1.0)
    variants = row_weights.copy()
    variants[..., 0] = 0
    theirs, all_kept = shift_of(variants), shift_of(row_weights)
    # The baseline minus the variants' weighted mean.
    excess = _variances_about_mean(covariance, theirs.shares)[..., 0]
    in_line = _variances_about_mean(theirs.v, theirs.shares)[..., 0]
    level = BASELINE_AT_LOOKS if repeated else BASELINE[n < FEW_SEEDS]
    limit = _f_limit(n - 1, theirs.df, level)
    tripped = (variants.sum(-1) > 1) & (excess > limit * in_line)
    u2 = np.where(tripped, theirs.u2, all_kept.u2)[..., None]
    error = np.where(tripped, theirs.error, all_kept.error)[..., None]
    baseline_excess = np.where(tripped, np.maximum(excess - in_line, 0.0), 0.0)[..., None]
    more_noise = np.square(np.where(tripped, excess, 0.0))[..., None] / (n - 1)

    v = images.gain + u2 * wide_gain + baseline_excess
    flips = np.square(images.gain) / images.gain_df
    noise = flips + np.square(wide_gain) * error / 2 + more_noise
    df = np.square(v) / np.maximum(noise, TINY)
    vague = (df < n - 1) & ~is_own
    vague[..., 0] = False
    is_own = is_own | vague
    variances = Variances(
        v=np.where(is_own, alone, v),
        df=np.where(is_own, n - 1.0, df),
        is_own=is_own,
        out=out,
        vague=vague,
        few=np.zeros_like(is_own),
        tripped=tripped,
        ratio=np.sqrt(np.maximum(excess, 0.0) / in_line),
        ratios=ratios,
        shared_v=v,
        shared_df=df,
        fixed=flips / np.square(v),
        flips=images.gain / v,
    )
    return _few_by_seeds(variances, images.few, y) if images.few.any() else variances


def _covariance(y: Floats) -> Floats:
    """Compute the covariance of rows (..., R, R), over seeds."""
    away = y - mean(y)[..., None]
    products = away[..., :, None, :] * away[..., None, :, :]
    return np.asarray(total(products) / (y.shape[-1] - 1))


def _run_wide(some: Floats, flips: Floats, wide: Floats, observed: Floats, n: int) -> _RunWide:
    """Estimate the variance of the run-wide shift by the squares of `some` rows, 0 or 1 (..., R),
    with the covariances (..., R, R) of flips, of one unit of the shift (`wide`), and the one
    `observed` over n seeds.

    With weights w of rows and A = diag(w) - w w' / sum w, c' A c are the squares of rows c about
    the seed effects that they fit, and their traces need sums over rows and pairs of rows alone.
    """
    weights = some / _diagonal(flips)
    shares = weights / np.maximum(total(weights), TINY)[..., None]

    def trace(covariance: Floats) -> Floats:  # of A covariance
        return total(weights * (_diagonal(covariance) - _with_mean(covariance, shares)))

    scale = np.maximum(trace(wide), TINY)
    u2 = np.maximum((trace(observed) - trace(flips)) / scale, 0.0)
    v = flips + u2[..., None, None] * wide
    off = v - _with_mean(v, shares)[..., None, :]
    product = weights[..., :, None] * weights[..., None, :] * (off * np.swapaxes(off, -1, -2))
    squares = np.maximum(total(product.reshape(*product.shape[:-2], -1)), TINY)  # the trace of AVAV
    error = 2 * squares / ((n - 1) * np.square(scale))
    return _RunWide(u2, error, v, shares, (n - 1) * np.square(trace(v)) / squares)


def _with_mean(covariance: Floats, shares: Floats) -> Floats:
    """Compute the covariance (..., R) of each row with the weighted mean of rows."""
    return total(covariance * shares[..., None, :])


def _variances_about_mean(covariance: Floats, shares: Floats) -> Floats:
    """Compute the variance (..., R) of each row minus the weighted mean of rows."""
    with_mean = _with_mean(covariance, shares)
    of_mean = total(shares * with_mean)[..., None]
    return _diagonal(covariance) - 2 * with_mean + of_mean


class ContrastVariances(NamedTuple):
    """The variances of one seed's contrasts of cells, and their df, each (K,).

    `is_own`: contrasts judged by their own values over seeds; among them, `vague` are those whose
    own seeds determine their variance better than images and cells do; `ratios`: of the variance
    over seeds to the one by images. `noisy`: the cells (R,) whose own excess is in the contrasts
    that weigh them.
    """

    v: Floats
    df: Floats
    is_own: Bools
    vague: Bools
    ratios: Floats
    noisy: Bools


def of_contrasts(y: Floats, weights: Floats, right: NDArray[np.bool_]) -> ContrastVariances | None:
    """Judge contrasts of the cells of a design by which images flip: y (R, n), R >= 3; weights (K,
    R), each of sum 0; `right` (R, n, N): which images runs get right. None where too few images
    flip in a cell.

    A contrast's variance is that of its own flips, plus its part of the shift of whole runs. Cells
    share that shift as rows do, or more: the assumption that gives the larger variance holds, for a
    contrast adds up the shifts that alike cells share. A cell whose squares about the fit are
    beyond F says nothing of the shift, and puts its own excess into each contrast by its weight.

    The effect of a seed on one change, in all cells that have the change, is in no cell's squares
    and in no flips. So a contrast whose own variance over seeds lies beyond F is judged by its own
    values: the paired t. So is one with fewer than n - 1 degrees of freedom; its variance is at
    least that of its flips. Simulated: docs/statistics.md, "Effects of a design".
    """
    images = ImageFlips.from_right(right)
    if images.few.any():
        return None
    flips, squares = _contrast_flips(weights, right)
    extra_image, unit = (
        ONE_IMAGE / 2 * total(np.square(weights)),
        np.square(PERCENT / right.shape[-1]),
    )
    gain, noise = unit * (flips + extra_image), unit * unit * (squares + extra_image * extra_image)
    like_flips, alike = (
        _of_contrasts(y, weights, images, gain, noise, power) for power in (LIKE_FLIPS, ALIKE)
    )
    larger = alike.v > like_flips.v
    v, df = (
        np.where(larger, *pair) for pair in ((alike.v, like_flips.v), (alike.df, like_flips.df))
    )
    n = y.shape[-1]
    alone = np.maximum(variance(total(weights[:, :, None] * y, 1), rounding(y)), gain)
    beyond = alone > _f_limit(n - 1, df, OWN_EFFECT) * v
    vague = (df < n - 1) & ~beyond
    is_own = beyond | vague
    return ContrastVariances(
        v=np.where(is_own, alone, v),
        df=np.where(is_own, n - 1.0, df),
        is_own=is_own,
        vague=vague,
        ratios=alone / v,
        noisy=like_flips.noisy | alike.noisy,
    )


class _ByCells(NamedTuple):
    """The variances of contrasts (K,) by images and cells, their df, and the noisy cells (R,)."""

    v: Floats
    df: Floats
    noisy: Bools


def _contrast_flips(weights: Floats, right: Bools) -> tuple[Floats, Floats]:
    """Sum over images the variances over seeds of the contrasts of right or wrong, and the squares
    of these variances, each (K,).

    The weights of a design are fractions of small whole numbers. With their common denominator all
    sums are whole numbers, so that no order of cells, seeds or images changes a bit.
    """
    parts = [Fraction(weight).limit_denominator(DENOMINATOR) for weight in np.unique(weights)]
    scale = math.lcm(*(part.denominator for part in parts))
    integer_weights = np.rint(scale * weights)
    marks = right.astype(float)
    n = marks.shape[1]
    values = np.stack(
        [sum(w * cell for w, cell in zip(k, marks, strict=True) if w) for k in integer_weights]
    )
    variances = n * np.square(values).sum(1) - np.square(values.sum(1))  # (K, N)
    unit = float(n * (n - 1) * scale * scale)
    return variances.sum(-1) / unit, np.square(variances).sum(-1) / (unit * unit)


def _of_contrasts(
    y: Floats, weights: Floats, images: ImageFlips, gain: Floats, squares: Floats, power: int
) -> _ByCells:
    """Judge with the shift shared by this power. `gain` (K,): the variances by the contrasts' own
    flips; `squares`: the sums of the squares of each image's."""
    n = y.shape[-1]
    flips, wide, covariance = images.covariance, images.run_wide(power), _covariance(y)
    everyone = _run_wide(np.ones(len(y)), flips, wide, covariance, n)
    ratios = _variances_about_mean(covariance, everyone.shares) / _variances_about_mean(
        everyone.v, everyone.shares
    )
    noisy: Bools = ratios > _f_limit(n - 1, everyone.df, NOISY_CELL[len(y) >= MANY_CELLS])
    shift = _run_wide(np.where(noisy, 0.0, 1.0), flips, wide, covariance, n)

    # Each cell about the weighted mean of the others that are in line.
    cell_variance = _variances_about_mean(covariance, shift.shares)
    excess = np.where(
        noisy, np.maximum(cell_variance - _variances_about_mean(shift.v, shift.shares), 0.0), 0.0
    )
    excess_noise = np.where(noisy, np.square(cell_variance), 0.0) / (n - 1)

    pairs = weights[:, :, None] * weights[:, None, :] * wide
    of_shift = np.maximum(total(pairs.reshape(len(weights), -1)), 0.0)
    second = np.square(weights)
    v = gain + shift.u2 * of_shift + total(second * excess)
    noise = squares / 2 + np.square(of_shift) * shift.error / 2
    noise = noise + total(np.square(second) * excess_noise)
    return _ByCells(v, np.square(v) / noise, noisy)


def _few_by_seeds(variances: Variances, few: Bools, y: Floats) -> Variances:
    """Return the variances with the rows in which too few images flip judged `one_way`."""
    plain = one_way(y)
    fields = {
        name: np.where(few, getattr(plain, name), getattr(variances, name))
        for name in Variances._fields
        if name not in ("few", "tripped", "ratio")
    }
    return variances._replace(few=few & ~plain.is_own, **fields)


def one_way(y: Floats, blocks: bool = True, separate: bool = False) -> Variances:
    """Judge gains by the variance of rows over seeds, R >= 2, n >= 2: y = row + residual, one
    variance, as far as rows are alike. No seed blocks, so conservative wherever seeds correlate.

    A row beyond F of the others' mean is judged by its own spread; where the baseline is, a gain's
    variance is the sum of its own and the variants' (Satterthwaite 1946). A single variant has its
    paired t. Without `blocks` runs share nothing: rows may have unequal numbers of them, two or
    more. Then a single variant has Welch's t, and so has a row that is judged by its own spread, as
    all are if `separate`.
    """
    rows = y.shape[-2]
    if blocks:
        alone = _paired(_own_variance(y), y.shape[-1])
        counts = np.full(y.shape[:-1], float(y.shape[-1]))
        s = variance(y, rounding(y))
    else:
        counts = (~np.isnan(y)).sum(-1).astype(float)
        s = variance(y, rounding(y[~np.isnan(y)]))
        alone = _welch(s, counts)
    if rows == 2 or separate:
        return alone
    d, weight = counts - 1, (counts - 1) / (counts - 1).max(-1, keepdims=True)
    total_weight, scale = total(weight)[..., None], (counts - 1).max(-1)
    others_variance = (total(s * weight)[..., None] - s * weight) / (total_weight - weight)
    ratios, others_df = (
        _spread_ratio(s, others_variance),
        (total_weight - weight) * scale[..., None],
    )
    is_own = s > _f_limit(d, others_df, _own_level(counts, blocks)) * others_variance
    out = s > _f_limit(d, others_df, OUT) * others_variance
    is_own[..., 0] = out[..., 0] = False
    kept_weight = np.where(out, 0.0, weight)
    kept_weight[..., 0] = 0.0
    k, s_0, w_0 = total(kept_weight), s[..., 0], weight[..., 0]
    theirs, theirs_df = total(s * kept_weight) / np.maximum(k, TINY), np.maximum(k * scale, 1)
    level = BASELINE if blocks else BASELINE_APART
    levels = np.where(counts[..., 0] < FEW_SEEDS, level[True], level[False])
    tripped = (k > 0) & (s_0 > _f_limit(d[..., 0], theirs_df, levels) * theirs)
    # The parts of the two means in a gain's variance: 1 and 1 of rows with as many runs.
    n = runs_behind(counts)
    of_base, of_row = n / counts[..., :1], n / counts
    noisy, in_line = of_base * s_0[..., None], of_row * theirs[..., None]
    noise = np.square(noisy) / d[..., :1] + np.square(in_line) / theirs_df[..., None]
    pooled = (k * theirs + w_0 * s_0) / (k + w_0)
    both = tripped[..., None]
    v = np.where(both, noisy + in_line, (of_base + of_row) * pooled[..., None])
    df = np.where(
        both, np.square(noisy + in_line) / np.maximum(noise, TINY), ((k + w_0) * scale)[..., None]
    )
    return alone._replace(
        v=np.where(is_own, alone.v, v),
        df=np.where(is_own, alone.df, df),
        is_own=is_own,
        out=out,
        tripped=tripped,
        ratio=np.sqrt(_spread_ratio(s_0, theirs)),
        ratios=ratios,
        shared_v=v,
        shared_df=df,
    )


def runs_behind(counts: Floats) -> Floats:
    """Return n of the gains over row 0, (..., R), for rows of these numbers of runs: the harmonic
    mean of the row's and the baseline's number."""
    base = counts[..., :1]
    return np.asarray(2 * counts * base / (counts + base))


def _own_level(counts: Floats, blocks: bool) -> Floats:
    """Return the level of F beyond which each row is judged by its own spread. The strictest level
    is for a row of few runs against a baseline of more: its spread is nearly all of its gain's."""
    if blocks:
        return np.full(counts.shape, OWN_ONE_WAY)
    few = counts < FEW_SEEDS
    fewer = few & (counts < counts[..., :1])
    return np.where(fewer, OWN_FEWER, np.where(few, OWN_APART[True], OWN_APART[False]))


def _welch(s: Floats, counts: Floats) -> Variances:
    """Judge each gain by the variances s of its two rows alone, as runs share nothing (Welch 1947).

    Its df go from Satterthwaite's towards those of fewer runs, the more their numbers differ: with
    3 runs against 10 a plain Welch errs in .064 to .070.
    """
    n = runs_behind(counts)
    parts = n / counts[..., :1] * s[..., :1], n / counts * s
    noise = np.square(parts[0]) / (counts[..., :1] - 1) + np.square(parts[1]) / (counts - 1)
    v = parts[0] + parts[1]
    fewer, larger = (f(counts, counts[..., :1]) for f in (np.minimum, np.maximum))
    like = fewer / larger
    welch = np.where(noise > 0, np.square(v) / np.maximum(noise, TINY), fewer - 1)
    df = 1 / (like / welch + (1 - like) / (fewer - 1))
    return _paired(v, 2)._replace(df=df, shared_df=df)


def paired(y: Floats) -> Variances:
    """Judge each gain by its own differences over seeds, n >= 2: the paired t."""
    return _paired(_own_variance(y), y.shape[-1])


def _paired(alone: Floats, n: int) -> Variances:
    no_flags, zero = np.zeros(alone.shape, dtype=bool), np.zeros(alone.shape)
    return Variances(
        v=alone,
        df=(df := np.full(alone.shape, n - 1.0)),
        is_own=no_flags,
        out=no_flags,
        vague=no_flags,
        few=no_flags,
        tripped=no_flags[..., 0],
        ratio=zero[..., 0],
        ratios=zero,
        shared_v=alone,
        shared_df=df,
        fixed=zero,
        flips=zero,
    )


def _own_variance(y: Floats) -> Floats:
    return variance(y - y[..., :1, :], rounding(y))


def _of_gains(covariance: Floats) -> Floats:
    """Compute the variances (..., R) of rows less row 0, by their covariance."""
    variances = _diagonal(covariance)
    return np.maximum(variances + variances[..., :1] - 2 * covariance[..., :, 0], 0.0)


def _diagonal(a: Floats) -> Floats:
    return np.asarray(np.einsum("...ii->...i", a))


def _spread_ratio(s: Floats, reference: Floats) -> Floats:
    """Return the ratio of s to the `reference` spread, infinite where that is 0."""
    ratio = np.full(np.shape(reference), np.inf)
    return np.asarray(np.divide(s, reference, out=ratio, where=reference > 0))


def _f_limit(df: Floats | float, other_df: Floats | float, level: Floats | float) -> Floats:
    """Quantiles of F, by element. They are slow and repeat: the other df to two decimals."""
    cases = np.broadcast_arrays(df, np.round(np.maximum(other_df, 1), 2), level)
    keys = cases[0] + cases[2] + 1e6 * cases[1]  # levels are shares: each case has its key
    _, indices, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return np.asarray(
        fdtri(*(part.ravel()[indices] for part in cases))[inverse].reshape(keys.shape)
    )


class Flips(NamedTuple):
    """The images that runs get right, in the columns c whose results are summed: sum_c w_c y_c.
    `right`: an array (R, S, N) for each column; `weights`: w_c."""

    right: tuple[NDArray[np.bool_], ...]
    weights: tuple[float, ...] = (1.0,)

    def row_flips(self, rows: Sequence[int], seeds: Sequence[int]) -> ImageFlips:
        """Return the flips of these rows over these seeds; the baseline comes first in `rows`."""
        parts = [ImageFlips.from_right(right[np.ix_(rows, seeds)]) for right in self.right]
        return parts[0] if self.weights == (1.0,) else ImageFlips.combined(parts, self.weights)
