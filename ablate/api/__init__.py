"""The interface for Python code: the nouns of `import ablate`, and the steps of a sweep.

The command line is a client of this room: it reads words, calls these, and prints. Values come in
and values go out. A `Start` belongs to one process and one thread; it takes the driver's lock of
its store when it starts, and releases it at the end, also after an exception. Functions raise
`UserError` for the caller's mistakes and `Failure` for what broke; `import ablate` loads nothing
else.
"""

from ablate.doors import lazy

__all__ = [
    # Nouns
    "Design",  # the rows, columns and seeds of a sweep, as values
    "Run",  # a run, as the plans, the ledger and its folder describe it
    "Store",  # a folder of runs, or an exported bundle
    "Sweep",  # a sweep to train, read, export
    "Table",  # a table of gains with intervals and verdicts
    "Stream",  # a stream of proposals: keep or discard
    "GateOptions",  # what a stream declares at its start
    "GateAnswer",  # what a stream says of a proposal
    "StreamLog",  # what became of a stream
    # Errors
    "explain_in_scripts",  # let Python print our errors as one line
    "failure_of",  # the failure that a broken ledger or file is
    # What a sweep is printed as
    "draw_sweep",  # draw a figure of a sweep
    "render_report",  # render a sweep as one HTML page
    # Steps of a sweep
    "Start",  # a sweep that is about to be driven
    "SweepCost",  # what a sweep will cost, before it starts
    "forecast_plan",  # a plan with what its runs will cost
    "forecast_sweep",  # warnings of a sweep, and its cost at most
    "recall_declared",  # what a driven sweep declares, by its name
    "StoreRecall",  # what a store remembers of the sweeps that were driven there
    "grow_plan",  # the plan with the runs that are asked for by now
    "imported_plan",  # the plan of an imported sweep
    "renamed_lines",  # a line for each row and column with another label
    "check_retry",  # refuse to retry a state that can't be trained again
    "check_outcome",  # raise `Failure` for runs that a drive has left
]

TYPE_CHECKING = bool(0)  # a call: see `ablate/__init__.py`
if TYPE_CHECKING:
    from ablate.api.errors import explain_in_scripts, failure_of
    from ablate.api.forecast import Design
    from ablate.api.nouns import Run, Store, Sweep
    from ablate.api.publishing import draw_sweep, render_report
    from ablate.api.recall import StoreRecall
    from ablate.api.stream import Stream
    from ablate.api.stream_answers import GateAnswer, GateOptions, StreamLog
    from ablate.api.tables import Table
    from ablate.api.training import (
        Start,
        SweepCost,
        check_outcome,
        check_retry,
        forecast_plan,
        forecast_sweep,
        grow_plan,
        imported_plan,
        recall_declared,
        renamed_lines,
    )
else:
    __getattr__ = lazy(__name__, __file__)
