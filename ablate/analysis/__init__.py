"""Tables of gains, intervals and verdicts, made from the results of runs.

`read_verdicts` is the only way to a verdict: it records the look in the store's ledger before it
returns the table, and gives means alone where the look can't be recorded. `read_means` makes a
table without verdicts. A `Table` is plain data and says nothing about its layout.

Everything else is a function of values: a plan, results by run id, arrays. Nothing here trains,
locks or prints. The functions raise `UserError` for a metric that was not measured or that its own
function refuses, and `Failure` for files that are not what the ledger recorded. They keep no state
and may run in any thread.
"""

from ablate.doors import lazy

__all__ = [
    # Tables
    "read_verdicts",  # make a table with verdicts, once the look is recorded
    "read_means",  # make a table of means alone
    "make_table",  # make a table from results; records no look
    "Detail",  # the most that is shown of gains: means, intervals or verdicts
    "LoopNoise",  # how many keeps of a past loop could be noise
    "Extras",  # what a table shows beyond its metric and gains
    "Table",  # a whole table, or the part of one that is shown
    "TableColumn",  # a value of `across`, with the spread that judges its gains
    "TableRow",  # a variant
    "Entry",  # a row in a column: its mean, gain, interval and verdict
    "Against",  # an entry's published figure, and the difference from it
    "Cost",  # what the finished runs of an entry cost
    "Note",  # a sentence about a place of the table
    "Sentence",  # a key and values, which English makes a text of
    "Resolution",  # the gain that more seeds would resolve
    "WARNING_KINDS",  # kinds of notes that qualify a verdict
    "PValues",  # p-values for tidy CSV and JSON; they decide nothing
    "Summary",  # an average over columns, a contrast or a set of effects
    "SummaryLine",  # a line of a summary
    # Results
    "Results",  # result.json by run id
    "Curves",  # reads the lines of metrics.jsonl of a run
    "Predictions",  # reads the predictions of a run
    "Probes",  # reads the arrays of a probe of a run
    "Scores",  # the scores of a cell, by seed
    "Evidence",  # the results of a sweep, read once
    "ColumnEvidence",  # the results of a column
    "RunFiles",  # readers of the files of runs
    "is_share",  # does a metric in % count right examples?
    "with_own_metrics",  # add the user's own metrics to results
    "own_metrics",  # list the metrics that a function of the user's computes
    "measure_own",  # compute one of the user's own metrics for finished runs
    # Judging
    "stats",  # the statistics: pure functions of arrays
    "Estimate",  # a mean or a gain with its interval
    "Arrays",  # the evidence as the blocks below the columns judge it
    "gain_alpha",  # the alpha of gains; declared looks share it
    "method_of",  # the method that judges a column
    "sequential_of",  # the method for the looks at a column
    "judge_changes",  # judge what each change does in a column
    "cell_rows",  # the row of each cell, by its label
    "latest_decisions",  # what the newest look decided for each row
    "recorded_decisions",  # what every recorded look decided
    "GOES_ON",  # the decision that a row needs more seeds
    "make_grower",  # what adds runs to a plan as results come
    "null_error",  # how often sweeps without any effect show one
    "null_shape",  # the numbers of rows and runs of simulated null tables
    "mixed_error",  # null_error where some rows have an effect
    "FEWEST_RUNS",  # runs of a row from which null tables can be drawn
    "PAIRING_REMEDY",  # the word that judges gains by pairs of seeds, and when it is better
    "worth_pairing",  # would pairs of seeds narrow the intervals?
    # Streams of proposals
    "StreamJudge",  # judges the proposals of a stream
    # Published numbers
    "published_figures",  # find the published figure of each cell
    "list_papers",  # list the published tables
    # Words
    "table_headline",  # say in a sentence which rows help
    "wins",  # in how many columns a row helps
    "first_few",  # list the first few of many labels
    "confidence_level",  # 0.05 -> "95 %"
    "setting_text",  # a tuned value as text
    "short_number",  # a number in three figures: 22.1 M
    "title_line",  # a title, and what the runs were trained on
    "trained_on_words",  # data, resolution and length of runs
    "trained_elsewhere",  # "Trained elsewhere, not verified", of imported runs
    "parent_words",  # what a run starts from
    "joint_words",  # for what intervals hold together
    "withheld_notes",  # a note on each run whose files were changed later
    "winner_doubts",  # reasons to doubt a tuning choice
    "seeds_command",  # the command that gives a sweep more seeds
    "MACHINE_FACTS",  # the facts of a machine, in words
    "gain_label",  # a gain with its interval, n and verdict
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ablate.analysis import stats as stats
    from ablate.analysis.across import Arrays
    from ablate.analysis.captions import joint_words, parent_words, withheld_notes
    from ablate.analysis.change_gains import cell_rows, judge_changes
    from ablate.analysis.english.words import (
        confidence_level,
        first_few,
        setting_text,
    )
    from ablate.analysis.evidence import ColumnEvidence, Evidence, RunFiles
    from ablate.analysis.footnotes import MACHINE_FACTS, winner_doubts
    from ablate.analysis.headline import gain_label, table_headline, wins
    from ablate.analysis.judging import Detail, gain_alpha, method_of, sequential_of
    from ablate.analysis.loop_noise import LoopNoise
    from ablate.analysis.note import WARNING_KINDS, Note, Sentence
    from ablate.analysis.own import measure_own, own_metrics, with_own_metrics
    from ablate.analysis.pairing import PAIRING_REMEDY, worth_pairing
    from ablate.analysis.paper import list_papers, published_figures
    from ablate.analysis.reading import read_means, read_verdicts
    from ablate.analysis.scores import (
        Curves,
        Predictions,
        Probes,
        Results,
        Scores,
        is_share,
        short_number,
    )
    from ablate.analysis.seeding import make_grower, seeds_command
    from ablate.analysis.sequential import GOES_ON, latest_decisions, recorded_decisions
    from ablate.analysis.stats import Estimate
    from ablate.analysis.stats.null_tables import FEWEST_RUNS, mixed_error, null_error, null_shape
    from ablate.analysis.stream_looks import StreamJudge
    from ablate.analysis.summary import PValues, Summary, SummaryLine
    from ablate.analysis.table import (
        Against,
        Cost,
        Entry,
        Resolution,
        Table,
        TableColumn,
        TableRow,
        title_line,
    )
    from ablate.analysis.tabulate import Extras, make_table
    from ablate.analysis.trained_on import trained_elsewhere, trained_on_words
else:
    __getattr__ = lazy(__name__, __file__)
