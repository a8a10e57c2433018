"""The statistics of a sweep: pure functions of arrays (and docs/statistics.md: what and why).

A *seed* is one independent training of everything that differs between the rows, and seeds are
blocks: all rows of a seed share batches, masks and shared initial weights. Arrays of results are
y[..., R, n], rows x seeds, one column of a table; leading axes are simulations. Results are
"higher is better": the caller turns the sign of a loss.

A module is loaded when a name is first asked for: `--help` does without numpy and scipy.

Student's t, F and normal quantiles come from `scipy.special`: `scipy.stats`, the same code behind
a slower import, is the oracle in the tests.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

MODULES = ("effects", "estimate", "gains", "power", "spread", "until")

if TYPE_CHECKING:
    from ablate.analysis.stats.effects import *
    from ablate.analysis.stats.estimate import *
    from ablate.analysis.stats.gains import *
    from ablate.analysis.stats.power import *
    from ablate.analysis.stats.spread import *
    from ablate.analysis.stats.until import *


def __getattr__(name: str) -> Any:
    for module in MODULES:
        namespace = vars(import_module(f"{__name__}.{module}"))
        if name in namespace:
            return globals().setdefault(name, namespace[name])
    raise AttributeError(f"{__name__} has no {name}")
