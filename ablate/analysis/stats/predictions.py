"""The spread of each row from its predictions: how often an image flips between seeds tells how far
an accuracy moves, of more images than there are seeds.

A run's accuracy is the mean over images of right or wrong. Where images flip independently, its
variance over seeds is sum_i q_i / N^2, q_i being the variance of image i. Whatever moves all images
of a row together is not in it: the rows share one factor phi on these variances, and both screens
look after that as they do in `pool`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import fdtri

from ablate.analysis.stats.estimate import Bools, Floats
from ablate.analysis.stats.pool import OUT, OWN, Pool, baseline_limit, over, quotient, rounding

PERCENT = 100.0  # an accuracy's scale
LEAST = 0.25  # of sum_i q_i: what a run whose images never flipped may still move
FEWEST_IMAGES = 4.0  # that a gain's spread is told from: below, rows share theirs


class Noise(NamedTuple):
    """What images tell of rows, shape (..., R): `flips`, sum_i q_i, and `squares`, sum_i q_i^2;
    `image`, what one is worth in points."""

    flips: Floats
    squares: Floats
    image: float

    @property
    def variance(self) -> Floats:
        """Of a run's result, but for what its images share, in points^2."""
        return np.asarray(np.maximum(self.flips, LEAST) * self.image**2)

    @property
    def error(self) -> Floats:
        """The noise of `variance`: it has 2 variance^2 / error degrees of freedom. In points^4."""
        return self.squares * self.image**4


def noise(right: Bools) -> Noise:
    """Of rows by which images each seed gets right (..., R, n, N), n >= 2."""
    n, images = right.shape[-2:]
    share = right.mean(-2)
    q = share * (1 - share) * (n / (n - 1))
    return Noise(q.sum(-1), (q**2).sum(-1), PERCENT / images)


def predicted(y: Floats, baseline: int, images: Noise, plain: Pool) -> Pool:
    """What the rows of y (..., R, n), R >= 3, n >= 2, none missing, share: y = row + seed +
    residual, its variance phi e_r, where `images` tell e_r and the rows share phi.

    The two-way fit has the weights 1 / e_r, and both screens are those of `pool.pooled`, of its
    residuals over e_r. A gain's variance is phi (e_r + e_0); its degrees of freedom are those of
    phi, less what the images leave open of e. With the baseline out of line, it is v_0 + phi e_r,
    v_0 being the baseline's own. A row that hardly an image tells of, its own or the baseline's,
    has the pool `plain`.
    """
    rows, n = y.shape[-2:]
    e, g = images.variance, images.error
    smallest = rounding(y) / e.min(-1)
    weights = 1 / e
    centred = y - y.mean(-1, keepdims=True)
    total = weights.sum(-1, keepdims=True)
    apart = centred - (centred * weights[..., None]).sum(-2, keepdims=True) / total[..., None]
    squares = (apart**2).sum(-1) * weights
    left = 1 - weights / total  # of a row's squares, once the seeds are fitted
    others = (squares.sum(-1, keepdims=True) - squares) / ((rows - 1 - left) * (n - 1))
    ratios = over(squares / ((n - 1) * left), others)
    df = (n - 1, (rows - 1) * (n - 1))
    own, out = ratios > fdtri(*df, OWN), ratios > fdtri(*df, OUT)
    own[..., baseline] = out[..., baseline] = False

    variants = ~out
    variants[..., baseline] = False
    k = variants.sum(-1)
    theirs = weights * variants
    weight = np.maximum(theirs.sum(-1), np.finfo(float).tiny)
    shared = (centred * theirs[..., None]).sum(-2) / weight[..., None]  # (..., n)
    squares = (((centred - shared[..., None, :]) ** 2).sum(-1) * theirs).sum(-1)
    df_within = (k - 1.0) * (n - 1)
    within = quotient(squares, df_within, smallest)
    e_0, g_0 = e[..., baseline], g[..., baseline]
    about = e_0 + 1 / weight  # of the baseline about that mean, but for phi
    squares_0 = ((centred[..., baseline, :] - shared) ** 2).sum(-1) / about
    tripped = (k > 1) & (squares_0 / (n - 1) > baseline_limit(n, df_within) * within)

    phi = quotient(squares + squares_0, k * (n - 1.0), smallest)
    both = e + e_0[..., None]
    gain = phi[..., None] * both
    open_ = (g + g_0[..., None]) / (2 * both**2)
    df_gain = 1 / (1 / (np.maximum(k, 1) * (n - 1.0))[..., None] + open_)
    run = phi[..., None] * e

    v_0 = np.maximum(squares_0 / (n - 1) * about - within / weight, 0.0)[..., None]
    v = within[..., None] * e
    own_noise = v_0**2 / (n - 1) + v**2 * (1 / np.maximum(df_within, 1)[..., None] + g / (2 * e**2))
    tripping, none = tripped[..., None], (k < 1)[..., None]
    gain = np.where(tripping, v_0 + v, gain)
    df_gain = np.where(tripping, over((v_0 + v) ** 2, own_noise), df_gain)

    flips, most = images.flips, images.squares
    pair = over((flips + flips[..., [baseline]]) ** 2, most + most[..., [baseline]])
    few = (pair < FEWEST_IMAGES) | (flips + flips[..., [baseline]] == 0)

    return Pool(
        ratios=np.where(few, plain.ratios, ratios),
        own=np.where(few, plain.own, own),
        out=np.where(few, plain.out, out),
        tripped=tripped,
        ratio=np.sqrt(over(v_0[..., 0], within * e_0)),
        run=np.where(tripping, v, run),
        gain=np.where(few, plain.gain, np.where(none, np.nan, gain)),
        df=np.where(few, plain.df, df_gain),
        few=few,
    )
