"""The statistics of a sweep: pure functions of arrays (and docs/statistics.md: what and why).

A *seed* is one independent training of everything that differs between the rows, and seeds are
blocks: all rows of a seed share batches, masks and shared initial weights. Arrays of results are
y[..., R, n], rows x seeds, one column of a table; leading axes are simulations. Results are
"higher is better": the caller turns the sign of a loss.

Student's t, F and normal quantiles come from `scipy.special`: `scipy.stats`, the same code behind
a slower import, is the oracle in the tests.

Used by all of analysis/, and by report/power.py and report/designs.py (`ablate plan`). A new public
function also needs its name in both lists below.
"""

from ablate.doors import lazy

__all__ = [
    # Means of a row, and what they agree on
    "auc",
    "Bools",
    "epochs_to",
    "Estimate",
    "Exact",
    "expected_best",
    "fisher",
    "Floats",
    "holm",
    "kendall",
    "mean",
    "mean_interval",
    "RankAgreement",
    "seed_correlation",
    "sign_flip",
    "total",
    # Gains over the baseline, and their verdicts
    "agreement",
    "BETTER",
    "CANT_TELL",
    "COMPARED",
    "column_gains",
    "contrast_gains",  # differences of two rows, as gains
    "ColumnGains",
    "DID_NOTHING",
    "FEWEST_SEEDS",
    "fit",
    "Method",
    "MOST_SEEDS",
    "NEUTRAL",
    "population_gain",
    "POWER",
    "raw_p",
    "own_reason",
    "Reason",
    "RowGain",
    "TARGET",
    "target_difference",  # the mean of a row minus a fixed number
    "UNSTABLE",
    "verdict",
    # The spread of gains: which images change
    "by_images",
    "FEW_SEEDS",
    "Flips",
    "ImageFlips",
    "one_way",
    # Effects of changes in a design
    "average_gains",
    "AverageGain",
    "changes",
    "design_effects",
    "DesignEffects",
    "level_effect",
    "pair_effect",
    "shapley",
    "smallest_gain",
    # Looks: when a sweep may stop
    "before_looks",
    "boundaries",
    "Decision",
    "FUTILITY",
    "ImagesAt",
    "is_futile",
    "LookFit",
    "runs_until",
    "Sequential",
    "stopped_word",
    "take_look",
    # Keep or discard: a proposal of a stream of changes
    "GateLook",
    "GateRules",
    "GateWord",
    "is_constant",
    "FIRST_PAIRS",  # pairs of a baseline with itself, where runs are compared side by side
    "KEEPING_LOOKS",
    "LEVEL",
    "Need",
    "next_step_of",
    "Pool",
    "self_pairs",
    "spread_of",
    # Seeds that a gain needs
    "detect",
    "detected_again",
    "detected_effect",
    "Forecast",
    "look_error",
    "OverSpread",
    "residual_spread",
    "resolution",
    "SHARED_PART",
    "Spread",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ablate.analysis.stats.effects import (
        AverageGain,
        DesignEffects,
        average_gains,
        changes,
        design_effects,
        level_effect,
        pair_effect,
        shapley,
        smallest_gain,
    )
    from ablate.analysis.stats.estimate import (
        Bools,
        Estimate,
        Exact,
        Floats,
        RankAgreement,
        auc,
        epochs_to,
        expected_best,
        fisher,
        holm,
        kendall,
        mean,
        mean_interval,
        seed_correlation,
        sign_flip,
        total,
    )
    from ablate.analysis.stats.gains import (
        BETTER,
        CANT_TELL,
        COMPARED,
        DID_NOTHING,
        FEWEST_SEEDS,
        MOST_SEEDS,
        NEUTRAL,
        POWER,
        TARGET,
        UNSTABLE,
        ColumnGains,
        Method,
        Reason,
        RowGain,
        agreement,
        column_gains,
        contrast_gains,
        fit,
        own_reason,
        population_gain,
        raw_p,
        target_difference,
        verdict,
    )
    from ablate.analysis.stats.gate import (
        FIRST_PAIRS,
        KEEPING_LOOKS,
        LEVEL,
        GateLook,
        GateRules,
        GateWord,
        Need,
        Pool,
        is_constant,
        next_step_of,
        self_pairs,
        spread_of,
    )
    from ablate.analysis.stats.power import (
        SHARED_PART,
        Forecast,
        OverSpread,
        Spread,
        detect,
        detected_again,
        detected_effect,
        look_error,
        residual_spread,
        resolution,
    )
    from ablate.analysis.stats.spread import (
        FEW_SEEDS,
        Flips,
        ImageFlips,
        by_images,
        one_way,
    )
    from ablate.analysis.stats.until import (
        FUTILITY,
        Decision,
        ImagesAt,
        LookFit,
        Sequential,
        before_looks,
        boundaries,
        is_futile,
        runs_until,
        stopped_word,
        take_look,
    )
else:
    __getattr__ = lazy(__name__, __file__)
