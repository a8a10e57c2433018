"""The statistics of a sweep: pure functions of arrays (and docs/statistics.md: what and why).

A *seed* is one independent training of everything that differs between the rows, and seeds are
blocks: all rows of a seed share batches, masks and shared initial weights. Arrays of results are
y[..., R, n], rows x seeds, one column of a table; leading axes are simulations. Results are
"higher is better": the caller turns the sign of a loss.

Student's t, F and normal quantiles come from `scipy.special`: `scipy.stats`, the same code behind
a slower import, is the oracle in the tests.
"""

from ablate.analysis.stats.across import average_gains as average_gains
from ablate.analysis.stats.across import changes as changes
from ablate.analysis.stats.effects import FEWEST_BY_IMAGES as FEWEST_BY_IMAGES
from ablate.analysis.stats.effects import design_effects as design_effects
from ablate.analysis.stats.effects import level_effect as level_effect
from ablate.analysis.stats.effects import pair_effect as pair_effect
from ablate.analysis.stats.effects import shapley as shapley
from ablate.analysis.stats.effects import smallest_gain as smallest_gain
from ablate.analysis.stats.estimate import Estimate as Estimate
from ablate.analysis.stats.estimate import auc as auc
from ablate.analysis.stats.estimate import epochs_to as epochs_to
from ablate.analysis.stats.estimate import expected_best as expected_best
from ablate.analysis.stats.estimate import mean_interval as mean_interval
from ablate.analysis.stats.estimate import seed_correlation as seed_correlation
from ablate.analysis.stats.estimate import welch_of_means as welch_of_means
from ablate.analysis.stats.exact import Exact as Exact
from ablate.analysis.stats.exact import fisher as fisher
from ablate.analysis.stats.exact import holm as holm
from ablate.analysis.stats.exact import kendall as kendall
from ablate.analysis.stats.exact import sign_flip as sign_flip
from ablate.analysis.stats.gains import BETTER as BETTER
from ablate.analysis.stats.gains import CANT_TELL as CANT_TELL
from ablate.analysis.stats.gains import DID_NOTHING as DID_NOTHING
from ablate.analysis.stats.gains import FEWEST_SEEDS as FEWEST_SEEDS
from ablate.analysis.stats.gains import MOST_SEEDS as MOST_SEEDS
from ablate.analysis.stats.gains import NEUTRAL as NEUTRAL
from ablate.analysis.stats.gains import POWER as POWER
from ablate.analysis.stats.gains import UNSTABLE as UNSTABLE
from ablate.analysis.stats.gains import ColumnGains as ColumnGains
from ablate.analysis.stats.gains import Method as Method
from ablate.analysis.stats.gains import RowGain as RowGain
from ablate.analysis.stats.gains import agreement as agreement
from ablate.analysis.stats.gains import column_gains as column_gains
from ablate.analysis.stats.gains import fit as fit
from ablate.analysis.stats.gains import population_gain as population_gain
from ablate.analysis.stats.gains import raw_p as raw_p
from ablate.analysis.stats.gains import verdict as verdict
from ablate.analysis.stats.power import Forecast as Forecast
from ablate.analysis.stats.power import OverSpread as OverSpread
from ablate.analysis.stats.power import Spread as Spread
from ablate.analysis.stats.power import detect as detect
from ablate.analysis.stats.power import look_error as look_error
from ablate.analysis.stats.power import residual_spread as residual_spread
from ablate.analysis.stats.power import resolution as resolution
from ablate.analysis.stats.spread import Flips as Flips
from ablate.analysis.stats.spread import ImageFlips as ImageFlips
from ablate.analysis.stats.spread import by_images as by_images
from ablate.analysis.stats.until import Decision as Decision
from ablate.analysis.stats.until import LookFit as LookFit
from ablate.analysis.stats.until import LookState as LookState
from ablate.analysis.stats.until import Sequential as Sequential
from ablate.analysis.stats.until import before_looks as before_looks
from ablate.analysis.stats.until import boundaries as boundaries
from ablate.analysis.stats.until import is_futile as is_futile
from ablate.analysis.stats.until import runs_until as runs_until
from ablate.analysis.stats.until import take_look as take_look
