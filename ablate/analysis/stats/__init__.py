"""The statistics of a sweep: pure functions of arrays (and docs/statistics.md: what and why).

A *seed* is one independent training of everything that differs between the rows, and seeds are
blocks: all rows of a seed share batches, masks and shared initial weights. Arrays of results are
y[..., R, n], rows x seeds, one column of a table; leading axes are simulations. Results are
"higher is better": the caller turns the sign of a loss.

Student's t, F and normal quantiles come from `scipy.special`: `scipy.stats`, the same code behind
a slower import, is the oracle in the tests.
"""

from ablate.analysis.stats.across import (
    AnovaLine,
    AverageGain,
    Combined,
    FactorialEffects,
    average_gains,
    changes,
    grid_effects,
    trends,
)
from ablate.analysis.stats.boundaries import boundaries
from ablate.analysis.stats.curves import Reached, auc, epochs_to, expected_best, reached
from ablate.analysis.stats.dunnett import dunnett, dunnett_p
from ablate.analysis.stats.estimate import Estimate, mean_interval, seed_correlation, welch_of_means
from ablate.analysis.stats.exact import Exact, RankAgreement, fisher, holm, kendall, sign_flip
from ablate.analysis.stats.gains import (
    ColumnGains,
    Fit,
    Method,
    RowGain,
    column_gains,
    fit,
    raw_p,
)
from ablate.analysis.stats.looks import look_error
from ablate.analysis.stats.pool import Pool
from ablate.analysis.stats.population import population_gain
from ablate.analysis.stats.power import (
    Design,
    Forecast,
    OverSpread,
    Spread,
    detect,
    fewest_runs,
    residual_spread,
    resolution,
)
from ablate.analysis.stats.predictions import Noise, noise
from ablate.analysis.stats.two_stages import (
    FirstStage,
    first_stage,
    runs_of_stages,
    second_stage,
)
from ablate.analysis.stats.until import (
    Decision,
    LookFit,
    LookState,
    Sequential,
    before_looks,
    runs_until,
    take_look,
)
from ablate.analysis.stats.verdict import (
    BETTER,
    CANT_TELL,
    DID_NOTHING,
    FEWEST_SEEDS,
    MOST_SEEDS,
    NEUTRAL,
    POWER,
    TREND,
    UNSTABLE,
    agreement,
    verdict,
)

__all__ = [
    "BETTER",
    "CANT_TELL",
    "DID_NOTHING",
    "FEWEST_SEEDS",
    "MOST_SEEDS",
    "NEUTRAL",
    "POWER",
    "TREND",
    "UNSTABLE",
    "AnovaLine",
    "AverageGain",
    "ColumnGains",
    "Combined",
    "Decision",
    "Design",
    "Estimate",
    "Exact",
    "FactorialEffects",
    "FirstStage",
    "Fit",
    "Forecast",
    "LookFit",
    "LookState",
    "Method",
    "Noise",
    "OverSpread",
    "Pool",
    "RankAgreement",
    "Reached",
    "RowGain",
    "Sequential",
    "Spread",
    "agreement",
    "auc",
    "average_gains",
    "before_looks",
    "boundaries",
    "changes",
    "column_gains",
    "detect",
    "dunnett",
    "dunnett_p",
    "epochs_to",
    "expected_best",
    "fewest_runs",
    "first_stage",
    "fisher",
    "fit",
    "grid_effects",
    "holm",
    "kendall",
    "look_error",
    "mean_interval",
    "noise",
    "population_gain",
    "raw_p",
    "reached",
    "residual_spread",
    "resolution",
    "runs_of_stages",
    "runs_until",
    "second_stage",
    "seed_correlation",
    "sign_flip",
    "take_look",
    "trends",
    "verdict",
    "welch_of_means",
]
