"""Views of sweeps for people: tables in every format, figures, the page, status, live views.

Nothing here computes a number that a table or a file doesn't hold, and nothing changes a store.
Renderers return text, or an object that a rich console prints; they are pure, so the same sweep
gives the same bytes. Live views draw in their own thread and give the terminal back at the end,
also after an exception. matplotlib and pandas are loaded when a figure or a frame is made.
"""

from ablate.doors import lazy

__all__ = [
    # Tables
    "render_table",  # set a table in one of the formats
    "choose_part",  # the part of a table that options select
    "check_show",  # check the parts to print
    "DEFAULT_SHOW",  # the parts that tables print without `--show`
    "SHOW",  # the parts that tables can print
    "NOTES",  # the levels of notes on a table
    "FORMAT_ENDINGS",  # the format of each file ending
    "OUR_FORMATS",  # the formats that come with the package
    "LatexFloat",  # how LaTeX tables float
    "table_tree",  # a table as a plain tree, for JSON
    "inert_cell",  # a cell that no spreadsheet takes for a formula
    "set_sheet",  # set a sheet in one of the formats for readers
    "trials",  # a sweep's tuning trials: a list, CSV, a tree
    "runs_frame",  # a data frame with a row for each run
    "curves_frame",  # a data frame with a row for each line of metrics
    "measured_records",  # the records of runs, with the user's own metrics
    # Figures and the page
    "draw_figure",  # draw one figure
    "draw_figures",  # draw the SVG of every figure that has data
    "FIGURE_KINDS",  # the kinds of figures
    "FIGURE_FORMATS",  # the file formats of figures
    "FigureForm",  # size, style and rows of a figure
    "render_page",  # render a sweep as one HTML page
    "PAGE_FIGURES",  # the figures that a page shows
    # Plans
    "show_head",  # print a plan's name and title
    "PlanForecast",  # a plan with what its runs will cost
    "SeedSpread",  # the spread between seeds in a column
    "seed_spreads",  # the spread between seeds in every column
    "forecast_seeds",  # seeds and hours that a gain takes to detect
    "simulate_looks",  # simulate the looks at every column
    "DesignForecast",  # what one design of changes would cost and detect
    "EffectSpreads",  # spreads of the effects of changes
    "effect_spreads",  # measure the spreads of the effects of changes
    "compare_designs",  # forecast every design for so many changes
    "show_designs",  # print the forecasts of designs
    "catalogue",  # list the choices of one kind, or of every kind
    "CATALOGUE_KINDS",  # the kinds of choices that can be listed
    "key_lines",  # every key with its default and its line of help
    # Runs and status
    "SweepView",  # a sweep at one moment
    "describe_run",  # describe a run
    "compare_runs",  # print the differences between two runs
    "RunLog",  # a run's log, printed at once or as it grows
    "count_provenance",  # count code, machines and commands of runs
    "trees",  # plans, runs and status as plain trees, for JSON
    "StoreAnswers",  # what the live page asks about a store
    "WatchServer",  # serves the live page
    # Streams of proposals
    "StreamView",  # a stream as text and as a figure
    # The terminal
    "progress_view",  # the view of a drive: bars on a terminal, else lines
    "python_view",  # the view of a drive from Python: also in notebooks, else silent
    "make_console",  # a rich console that lets no foreign escape code through
    "gate_output",  # make standard output and error safe to print to
    "announce",  # say on standard error what is about to take long
    "duration",  # 90 -> "1 min 30 s"
    "device_time",  # 2556000 -> "710 device-hours"
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ablate.report import trees as trees
    from ablate.report import trials as trials
    from ablate.report.designs import (
        DesignForecast,
        EffectSpreads,
        compare_designs,
        effect_spreads,
        show_designs,
    )
    from ablate.report.formats import (
        DEFAULT_SHOW,
        FORMAT_ENDINGS,
        NOTES,
        OUR_FORMATS,
        SHOW,
        LatexFloat,
        check_show,
        render_table,
        set_sheet,
    )
    from ablate.report.formats.tidy import inert_cell, table_tree
    from ablate.report.frames import curves_frame, measured_records, runs_frame
    from ablate.report.listing import CATALOGUE_KINDS, catalogue, key_lines
    from ablate.report.live import progress_view
    from ablate.report.notebook import python_view
    from ablate.report.page import PAGE_FIGURES, render_page
    from ablate.report.planned import PlanForecast, show_head
    from ablate.report.plot import (
        FIGURE_FORMATS,
        FIGURE_KINDS,
        draw_figure,
        draw_figures,
    )
    from ablate.report.plot.form import FigureForm
    from ablate.report.power import SeedSpread, forecast_seeds, seed_spreads, simulate_looks
    from ablate.report.selection import choose_part
    from ablate.report.show import (
        RunLog,
        compare_runs,
        count_provenance,
        describe_run,
    )
    from ablate.report.status import SweepView
    from ablate.report.stream import StreamView
    from ablate.report.text import (
        announce,
        device_time,
        duration,
        gate_output,
        make_console,
    )
    from ablate.report.watch.answers import StoreAnswers
    from ablate.report.watch.server import WatchServer
else:
    __getattr__ = lazy(__name__, __file__)
