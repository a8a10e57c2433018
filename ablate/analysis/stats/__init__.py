"""The statistics of a sweep: pure functions of arrays (and docs/statistics.md: what and why).

A *seed* is one independent training of everything that differs between the rows, and seeds are
blocks: all rows of a seed share batches, masks and shared initial weights. Arrays of results are
y[..., R, n], rows x seeds, one column of a table; leading axes are simulations. Results are
"higher is better": the caller turns the sign of a loss.

Student's t, F and normal quantiles come from `scipy.special`: `scipy.stats`, the same code behind
a slower import, is the oracle in the tests.
"""

from ablate.analysis.stats.across import (
    average_gains,
    changes,
    grid_effects,
)
from ablate.analysis.stats.estimate import (
    Estimate,
    auc,
    epochs_to,
    expected_best,
    mean_interval,
    seed_correlation,
    welch_of_means,
)
from ablate.analysis.stats.exact import Exact, fisher, holm, kendall, sign_flip
from ablate.analysis.stats.gains import (
    BETTER,
    CANT_TELL,
    DID_NOTHING,
    FEWEST_SEEDS,
    MOST_SEEDS,
    NEUTRAL,
    POWER,
    UNSTABLE,
    ColumnGains,
    Method,
    RowGain,
    agreement,
    column_gains,
    fit,
    population_gain,
    raw_p,
    verdict,
)
from ablate.analysis.stats.power import (
    Forecast,
    OverSpread,
    Spread,
    detect,
    look_error,
    residual_spread,
    resolution,
)
from ablate.analysis.stats.spread import Flips, ImageFlips, by_images
from ablate.analysis.stats.until import (
    Decision,
    LookFit,
    LookState,
    Sequential,
    before_looks,
    boundaries,
    runs_until,
    take_look,
)

__all__ = [
    "BETTER",
    "CANT_TELL",
    "DID_NOTHING",
    "FEWEST_SEEDS",
    "MOST_SEEDS",
    "NEUTRAL",
    "POWER",
    "UNSTABLE",
    "ColumnGains",
    "Decision",
    "Estimate",
    "Exact",
    "Flips",
    "Forecast",
    "ImageFlips",
    "LookFit",
    "LookState",
    "Method",
    "OverSpread",
    "RowGain",
    "Sequential",
    "Spread",
    "agreement",
    "auc",
    "average_gains",
    "before_looks",
    "boundaries",
    "by_images",
    "changes",
    "column_gains",
    "detect",
    "epochs_to",
    "expected_best",
    "fisher",
    "fit",
    "grid_effects",
    "holm",
    "kendall",
    "look_error",
    "mean_interval",
    "population_gain",
    "raw_p",
    "residual_spread",
    "resolution",
    "runs_until",
    "seed_correlation",
    "sign_flip",
    "take_look",
    "verdict",
    "welch_of_means",
]
