"""Planning: words and files become a plan.

`plan_from_words` reads a command line and returns a `Plan`: rows, columns, cells and the ids of
their runs. A plan is immutable plain data and says all that a table needs, so that a sweep file
edited later leaves old tables as they were. Nothing here trains, or writes into a store.

Every mistake raises `UserError` with the place, the value and the remedy. `Composer` keeps caches
and belongs to one thread; everything else may be shared.
"""

from ablate.doors import lazy

__all__ = [
    # Plans
    "plan_from_words",  # make a plan from a command line
    "plan_declared",  # make a plan from a declaration
    "Declared",  # the declaration of a sweep, as a value; `texts` prints it
    "DeclaredImport",  # the declaration of a sweep that was trained elsewhere
    "Plan",  # a sweep, expanded: every cell and every run, in order
    "Row",  # a variant: the keys it sets
    "Column",  # a value of `across`
    "Cell",  # a row in a column: the configuration of its runs
    "PlannedRun",  # one run of a plan
    "Recall",  # what a store remembers of the sweeps that were driven there
    "with_seeds",  # a plan with at least so many seeds
    "unite_plans",  # the plan of two drives of the same sweep
    "find_cell",  # the cell of a row and a column
    "read_labels",  # split "A,B" into labels
    "first_run",  # the configuration and the id of a cell's first run
    "recipe_caveats",  # what recipes infer or don't follow
    "WidePlace",  # where a wide table has a column
    "wide_places",  # the places of all columns of a wide table
    # Designs
    "Design",  # which seeds the cells get: a fixed number, or by looks
    "Imported",  # the design of a sweep that was trained elsewhere
    "SheetKeys",  # which columns of a sheet say what
    "SheetSource",  # the file that runs were imported from
    "ONE_SEARCH",  # how verdicts are limited where settings were searched once
    "Standing",  # what the looks so far decided, by row and column
    "Changes",  # the changes of a sweep, and their design
    "EFFECT_KINDS",  # the kinds of effects of changes
    "MAIN_EFFECT",  # the effect of one change, averaged over the others
    "ALL_BUT",  # the label of all changes but one: "all but dpn"
    "design_cells",  # the combinations of changes that a design trains
    "effect_label",  # the label of an effect: "dpn", "dpn alone"
    # Analysis
    "Analysis",  # how the table is computed; fixed before results exist
    "METRICS",  # the metrics of every task
    "is_metric",  # is this the name of a metric?
    "read_own_metric",  # read what a function of the user's says of its metric
    "change_analysis",  # a driven sweep's analysis, with keys replaced
    "split_analysis_words",  # separate the words `analysis.KEY=VALUE`
    "matches_value",  # is a value the expected one, or one of a list?
    # Searches
    "Search",  # the tuning searches of a plan
    "Grower",  # what adds runs to a plan as results come
    "Tune",  # the searches that every cell gets
    "Trial",  # one training of a search
    "TuningWinner",  # the settings that a search chose
    "FIRST_TUNING_SEED",  # seeds from here on choose settings; tables leave them out
    "DEFAULT_TRIALS",  # trials of a search that says no number
    "LR_FACTORS",  # the prefix of learning-rate factors by parameter path
    "TUNER_KEYS",  # the keys of `tune` that are no settings
    "MetricLines",  # lines of metrics.jsonl
    "MetricsReader",  # reads the metric lines of a run
    "ResultReader",  # reads the result of a run, or None
    "apply_settings",  # a configuration with dotted keys set, checked
    "before_searches",  # the plan of a tuned sweep, without trials
    # A stream of proposals
    "ComposedCode",  # the code in the working folder, composed, and its plans
    # Words
    "Word",  # `key=value` of a declaration
    "SettingsLayer",  # settings, and where they were written
    "parse_word",  # read one word
    "read_line",  # sort the words of a command line
    "single_values",  # values by key; a key may come once
    "value_at",  # the value of a dotted key
    "value_text",  # a value as labels and command lines have it
    "split_launcher",  # separate the launcher's settings
    "split_logger_words",  # separate the words of loggers and notifications
    "edit_notes",  # a warning where a sweep file was edited since
    # Sweep files and configurations
    "Composer",  # composes configurations with Hydra
    "resolve_run",  # the whole configuration of one run, and its id
    "resolve_data",  # the configuration of a data set
    "list_sweeps",  # every sweep that can be named
    "sweep_files",  # the file of every sweep, by name
    "find_sweep_file",  # the file of a sweep's name or path
    "load_sweep_file",  # read a sweep file
    "check_sweep_name",  # refuse a name that `--as` can't give
    "sweep_file_name",  # a sweep's name as a safe file name
    "output_name",  # a sweep's name as the name of an output file
    "write_template",  # write a template into the working folder
    "shipped_folder",  # the `conf` or `sweeps` folder of the package
    "user_conf_folder",  # the user's `./conf`, if it is one of ours
    "other_app_trainers",  # trainers in another application's `./conf`
    "FROM_PREFIX",  # the prefix of keys about the parent run
    # Launchers and loggers
    "LAUNCHERS",  # the launchers, by name
    "DRIVER_KEYS",  # the keys that every launcher has
    "EngineFile",  # how a cluster is asked for jobs, as a file says it
    "launcher_line",  # a launcher's name and changed settings
    "LOGGERS",  # the loggers, by name
    "SHARED_LOGGER_KEYS",  # the keys that every logger has
    "LoggerSettings",  # the loggers of a sweep, and who is notified
    "read_logger_words",  # read the words of loggers and notifications
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ablate.planning.analysis_keys import METRICS, Analysis, is_metric, read_own_metric
    from ablate.planning.cell import (
        FIRST_TUNING_SEED,
        Cell,
        Column,
        PlannedRun,
        Row,
        Trial,
        Tune,
        TuningWinner,
        WidePlace,
        recipe_caveats,
        wide_places,
    )
    from ablate.planning.changes import (
        ALL_BUT,
        EFFECT_KINDS,
        MAIN_EFFECT,
        Changes,
        design_cells,
        effect_label,
    )
    from ablate.planning.compose import Composer, resolve_data, resolve_run
    from ablate.planning.conf import other_app_trainers, shipped_folder, user_conf_folder
    from ablate.planning.declaration import change_analysis, matches_value
    from ablate.planning.declared import Declared, DeclaredImport
    from ablate.planning.design import (
        ONE_SEARCH,
        Design,
        Imported,
        SheetKeys,
        SheetSource,
        Standing,
        with_seeds,
    )
    from ablate.planning.engine import EngineFile
    from ablate.planning.expand import (
        find_cell,
        first_run,
        list_sweeps,
        plan_declared,
        plan_from_words,
    )
    from ablate.planning.launcher import DRIVER_KEYS, LAUNCHERS, launcher_line
    from ablate.planning.logger import (
        LOGGERS,
        SHARED_LOGGER_KEYS,
        LoggerSettings,
        read_logger_words,
        split_logger_words,
    )
    from ablate.planning.parents import FROM_PREFIX
    from ablate.planning.part import read_labels
    from ablate.planning.plan import Plan, before_searches
    from ablate.planning.proposal import ComposedCode
    from ablate.planning.recall import Recall
    from ablate.planning.search import (
        Grower,
        MetricLines,
        MetricsReader,
        ResultReader,
        Search,
        apply_settings,
    )
    from ablate.planning.settings import (
        LR_FACTORS,
        SettingsLayer,
        Word,
        output_name,
        parse_word,
        single_values,
        split_launcher,
        sweep_file_name,
        value_at,
        value_text,
    )
    from ablate.planning.sweep_file import edit_notes, load_sweep_file
    from ablate.planning.sweep_paths import check_sweep_name, find_sweep_file, sweep_files
    from ablate.planning.templates import write_template
    from ablate.planning.tuning import DEFAULT_TRIALS, TUNER_KEYS
    from ablate.planning.unite import unite_plans
    from ablate.planning.words import read_line, split_analysis_words
else:
    __getattr__ = lazy(__name__, __file__)
