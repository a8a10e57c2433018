"""A gain for new seeds and new images: of the population that the test set was drawn from."""

from __future__ import annotations

import math

from scipy.special import stdtrit

from ablate.analysis.stats.estimate import Bools, Estimate
from ablate.analysis.stats.gains import RowGain
from ablate.analysis.stats.spread import PERCENT


def population_gain(right: Bools, baseline: Bools, seeds: RowGain, alpha: float = 0.05) -> Estimate:
    """The gain in accuracy, in points, by which images each seed gets right: (n, N) of a row and of
    the baseline, seeds and images in the same order, n, N >= 2. `seeds`: the same gain over seeds
    alone, whose interval it contains.

    Seeds and images are crossed random effects on the differences: to the variance of their mean
    over seeds comes (MS_i - MS_e) / (n N) of images drawn independently, its df by Satterthwaite
    (1946). None without an interval over seeds.
    """
    d = PERCENT * (right.astype(float) - baseline)
    n, images = d.shape
    alone = seeds.gain
    if alone.sd is None or alone.high is None or not seeds.df:
        return Estimate(alone.mean, None, None, n)
    mean = float(d.mean())
    by_seed, by_image = d.mean(1, keepdims=True), d.mean(0, keepdims=True)
    df_e = (n - 1) * (images - 1)
    ms_i = n * float(by_image.var(ddof=1))
    ms_e = float(((d - by_seed - by_image + mean) ** 2).sum()) / df_e
    of_seeds, of_images = alone.sd**2 / n, max(ms_i - ms_e, 0.0) / (n * images)
    total = of_seeds + of_images
    noise = of_seeds**2 / seeds.df
    if of_images:
        noise += (ms_i**2 / (images - 1) + ms_e**2 / df_e) / (n * images) ** 2
    df = total**2 / noise if noise else n - 1.0
    half = float(stdtrit(df, 1 - alpha / 2)) * math.sqrt(total)
    half = max(half, alone.high - alone.mean)
    return Estimate(alone.mean, alone.mean - half, alone.mean + half, n, math.sqrt(total * n))
