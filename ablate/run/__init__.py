"""The run: its configuration, its metrics and its folder. Never torch, Hydra or the ledger.

A `Run` (our training) or an `OwnRun` (the user's) is immutable; its id hashes everything that the
training depends on, and nothing else. The driver writes `run.json` before a worker starts;
everything else in a run's folder is written by the worker that holds its lock, apart from others'
messages to it: `prune.json`, `stop.json` and `distrust`. Files are written whole or not at all.

Checks raise `UserError` with the key, the value and the remedy; broken files raise `Failure`. The
only state kept here is caches of files; everything here may be used in any thread.
"""

from ablate.doors import lazy

__all__ = [
    # The folder of a run
    "RunDir",  # the files of one run
    "Metrics",  # metrics.jsonl in the hands of its writer
    "parse_lines",  # the JSON objects of a file of lines
    "parse_result",  # a result, or why bytes are none
    "sealed_part",  # the sealed part of metrics
    "RUNS_FOLDER",  # the folder of a store's runs
    "ATTEMPTS_FOLDER",  # the folder of attempts on other hosts
    "FINAL_STATUSES",  # states with a result
    "FAILED",  # the state after an exception
    "WRONG_UNIT",  # the state after an exception on percents that were declared as shares
    "OOM",  # the state after memory ran out
    "STOPPED",  # the state after a request to stop
    "DISK_FULL",  # the state after the disk was full
    "DEVICE_LOST",  # the state after a device was lost
    "NO_DEVICE",  # the state of a run whose device was gone
    "NO_WORD",  # the reason of a worker that died without one
    "DATA_DAMAGED",  # the state of a run whose data are damaged
    "RANK_LOST",  # the state after one of several ranks died
    "RANK_KILLED",  # the state after a signal killed a rank
    "CHECK_PHASE",  # the phase in which a worker checks its data
    "EXIT_AWAY",  # the exit code of a worker whose place is gone
    "EXIT_DISK_FULL",  # the exit code of a full disk
    "EXIT_TAKEN",  # the exit code of a folder that another worker holds
    # What a run is
    "Run",  # one training: recipe, variant and seed
    "ShippedRun",  # a run of the shipped model, for type checkers
    "OwnRun",  # one training by a function or program of the user's
    "build_run",  # a checked `Run` from a plain tree
    "build_own",  # a checked `OwnRun` from its spec
    "validated_run",  # a checked run of a spec, whoever trains it
    "RunSpec",  # what a run trains, as a plain tree, and all questions about it
    "ShippedSpec",  # the spec of a run that ablate trains
    "OwnSpec",  # the spec of a run that something of the user's trains
    "as_read",  # a tree without keys that nothing reads
    "without_idle",  # a tree as its id has it
    "unread_by",  # the keys of `optim` that an optimiser doesn't read
    "switched_off",  # keys that only qualify what is off
    "LENGTH_KEYS",  # the keys that say how long a run trains
    "shipped",  # a run, known to be of the shipped model
    "is_whole",  # is a section that of a whole model?
    "is_whole_name",  # does a name mean a whole model?
    "none_chosen",  # refuse a norm, stem or block next to a whole model
    # Sections and choices of a run
    "sections",  # the sections of a run, as dataclasses
    "Data",  # what is learnt from
    "Model",  # the vision transformer
    "Whole",  # a model that is not the shipped one
    "Text",  # the text tower
    "Augment",  # random changes of training images
    "Optim",  # how weights move
    "Train",  # how long a training takes, and in what arithmetic
    "Weights",  # a file of weights to start from
    "NO_CLASS",  # the pixel class that counts nowhere
    "choices",  # everything that may be chosen by name
    "NAMED_VALUES",  # values of keys by name, with their sources
    "CHOICES",  # norms, stems and blocks, by name
    "Choice",  # one thing that may be chosen by name
    "ARCHS",  # the sizes of the shipped model
    "PROBES",  # the probes, by name
    "PlainValue",  # a value that a file holds as a plain tree
    "Key",  # what a field says of itself: help, unit, bounds
    "Param",  # a setting of a choice
    "Bounds",  # where a number may lie
    "read_section",  # a dataclass from its plain tree
    "read_field",  # the value of a field
    "read_value",  # a value as an annotated type
    "read_settings",  # the settings that parameters describe
    "check_keys",  # refuse keys that are not known
    "fits_type",  # does a JSON value fit an annotation?
    "field_types",  # the types of a dataclass's fields
    "field_keys",  # what the fields of a dataclass say of themselves
    "added_fields",  # fields that were added, and what means "as before"
    # Checks across sections
    "check_ranks",  # refuse ranks that would change bits
    "batch_divisors",  # the micro-batches that a batch allows
    "open_world_sizes",  # how many devices a run may have
    "WORLD_SIZES",  # the numbers of ranks
    "LEAST_MICRO_BATCHES",  # the fewest micro-batches where the machine decides
    "ORDERED_FROM",  # micro-batches from which statistics keep an order
    "SHOWN_KEYS",  # the keys that decide what is shown of an image
    # Tasks and metrics
    "TASKS",  # the tasks, by name
    "TaskChoice",  # what a task declares
    "Metric",  # what a metric declares
    "DEFAULT_TASK",  # the task of a run that names none
    "tasks_for_labels",  # the tasks that learn from such labels
    "threshold",  # the threshold in a metric's name
    "CROSSING",  # the prefix of epochs-to-threshold metrics
    "Excerpt",  # what a lean bundle keeps of predictions
    "classification_scores",  # loss and accuracies from predictions
    "contrastive_scores",  # zero-shot scores from predictions
    "segmentation_scores",  # mean IoU and pixel accuracy
    "FEWSHOT_SEEDS",  # the draws of a few-shot test
    "FEWSHOT_SHOTS",  # the numbers of shots
    "KNN_NEIGHBOURS",  # the numbers of neighbours
    "PROBE_METRICS",  # the metrics of each probe
    "probe_name",  # the name of a probe in files and metrics
    "probe_numbers",  # every number of a probe's file
    "read_gradnorm",  # gradient norms by depth
    "gradnorm_profile",  # the mean gradient norm at each depth
    "scale_summary",  # a norm's scale: corners, centre, rest
    "FIRST_SCALE",  # the norm before the patch embedding
    "GRADNORM_STEPS",  # the steps that gradient norms are averaged over
    # Parts by import path
    "parts",  # the kinds of parts
    "plugin",  # parts of the user's own
    "PART_KINDS",  # every kind of part
    "UsedPart",  # a part that a run names by import path
    "own_part",  # the part that a key names by import path
    "own_parts",  # the parts that a list names by import path
    "part_name",  # the name behind the module's
    "is_plugin",  # is a name an import path?
    "own_code",  # a hash of the user's code that a run names
    "code_sources",  # the user's files that runs are trained from
    "version_of",  # the version that stands for a part's code
    "PROBE",  # probes
    "TIMM",  # the prefix of timm's models
    "source_file",  # the file of `module:name`
    "find_source",  # the file of `module:name`, or an error
    "find_definition",  # a class or function in a file
    "missing_module",  # the error for a module that isn't there
    "parse_source",  # the syntax tree of a file
    "literal_value",  # the value of a literal node
    "local_files",  # a file and the local modules it imports
    "imported_modules",  # the modules that files import
    "distribution_of",  # the package that brings a module
    "code_hash",  # a hash of a file and its local modules
    "is_own_file",  # is a file the user's?
    "own_frame",  # the user's last line that an error came through
    "own_line",  # that line as text
    "raising_line",  # where an error was raised, as text
    # Trainers of the user's own
    "own",  # runs that functions and programs train
    "trainer",  # trainers, checked
    "program",  # what a yaml declares of a program
    "TRAINER",  # the section that such a run has, and no other
    "imported_tree",  # the tree of imported runs
    "declared_metric",  # a metric as a yaml declares it
    "METRIC_ATTRIBUTES",  # the attributes of a metric
    "read_attribute",  # an attribute of a metric, checked
    "DIRECTIONS",  # which way a metric is better
    "TAKEN_NAMES",  # names that no metric may have
    "PREDICTS",  # does a sheet name files of predictions?
    "IMPORT_EVENT",  # the kind of event of an imported result
    "check_range",  # refuse a raw value outside its declared range
    "check_shares",  # refuse percents declared as shares
    "last_validation",  # the last values on validation
    "code_file_hash",  # the hash of a file of code
    "Events",  # the scalars and settings of a run in event files
    "read_events",  # the scalars of TensorBoard's event files
    "data_hashes",  # the hashes of data files, remembered
    "Program",  # what a yaml declares of a program
    "program_of",  # the program of a run's tree
    "PLACEHOLDERS",  # the placeholders of a command
    "FOLDER_PLACE",  # the placeholder for the run's folder
    "SEED_PLACE",  # the placeholder for the seed
    "fill_command",  # a command with its placeholders filled in
    "split_command",  # the words of a command
    "resume_words",  # the words that continue an attempt
    "hydra_override",  # KEY=VALUE, quoted as Hydra needs it
    # Data sets
    "dataset",  # files of data sets
    "decoded",  # decoded data sets
    "data_fingerprint",  # the hash of a data set's content
    "FINGERPRINTS_FILE",  # where fingerprints are remembered
    "BUNDLED",  # the data sets that come with packages
    "MASKS",  # the split folders of masks
    "PICTURES",  # the split folders of pictures
    "Listing",  # the files of a data set
    "Slice",  # a stored split, or rows of it
    "list_local",  # list what lies at a path
    "local_splits",  # the splits of what lies at a path
    "select_splits",  # the stored splits that a section names
    "split_folder",  # the folder of a split's classes
    "split_of",  # the split that a table belongs to
    "class_folders",  # the class names of an image folder
    "parse_slice",  # read a split's name and rows
    "META_FILE",  # the file that describes a decoded set
    "SPLITS",  # train, validation, test
    "decoding_facts",  # what decoding left out, and overlaps
    "decoding_words",  # decoding facts in words
    "first_of_lines",  # the first of some lines, and how many more
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ablate.run import choices as choices
    from ablate.run import dataset as dataset
    from ablate.run import decoded as decoded
    from ablate.run import own as own
    from ablate.run import parts as parts
    from ablate.run import plugin as plugin
    from ablate.run import program as program
    from ablate.run import sections as sections
    from ablate.run import trainer as trainer
    from ablate.run.build import build_run, is_whole, none_chosen, validated_run
    from ablate.run.checks import (
        LEAST_MICRO_BATCHES,
        ORDERED_FROM,
        SHOWN_KEYS,
        WORLD_SIZES,
        batch_divisors,
        check_ranks,
        open_world_sizes,
    )
    from ablate.run.choices import ARCHS, CHOICES, PROBES, Choice
    from ablate.run.dataset import (
        BUNDLED,
        MASKS,
        PICTURES,
        Listing,
        Slice,
        class_folders,
        list_local,
        local_splits,
        parse_slice,
        select_splits,
        split_folder,
        split_of,
    )
    from ablate.run.decoded import (
        META_FILE,
        SPLITS,
        decoding_facts,
        decoding_words,
        first_of_lines,
    )
    from ablate.run.event_files import Events, read_events
    from ablate.run.fingerprint import FINGERPRINTS_FILE, data_fingerprint
    from ablate.run.idle import (
        LENGTH_KEYS,
        switched_off,
        unread_by,
        without_idle,
    )
    from ablate.run.metrics import (
        DEFAULT_TASK,
        TASKS,
        Metric,
        TaskChoice,
        tasks_for_labels,
        threshold,
    )
    from ablate.run.metrics.classify import classification_scores
    from ablate.run.metrics.contrastive import contrastive_scores
    from ablate.run.metrics.frozen import FEWSHOT_SEEDS, FEWSHOT_SHOTS, KNN_NEIGHBOURS
    from ablate.run.metrics.metric import CROSSING, Excerpt
    from ablate.run.metrics.probed import (
        FIRST_SCALE,
        GRADNORM_STEPS,
        PROBE_METRICS,
        gradnorm_profile,
        probe_name,
        probe_numbers,
        read_gradnorm,
        scale_summary,
    )
    from ablate.run.metrics.segment import segmentation_scores
    from ablate.run.named_values import NAMED_VALUES
    from ablate.run.own import (
        DIRECTIONS,
        IMPORT_EVENT,
        METRIC_ATTRIBUTES,
        PREDICTS,
        TAKEN_NAMES,
        TRAINER,
        check_range,
        check_shares,
        code_file_hash,
        declared_metric,
        imported_tree,
        last_validation,
        read_attribute,
    )
    from ablate.run.parts import (
        PART_KINDS,
        PROBE,
        TIMM,
        UsedPart,
        is_plugin,
        own_part,
        own_parts,
        part_name,
    )
    from ablate.run.plugin import code_sources, is_whole_name, own_code, version_of
    from ablate.run.program import (
        FOLDER_PLACE,
        PLACEHOLDERS,
        SEED_PLACE,
        Program,
        fill_command,
        hydra_override,
        program_of,
        resume_words,
        split_command,
    )
    from ablate.run.run import OwnRun, Run, ShippedRun, shipped
    from ablate.run.rundir import (
        ATTEMPTS_FOLDER,
        CHECK_PHASE,
        DATA_DAMAGED,
        DEVICE_LOST,
        DISK_FULL,
        EXIT_AWAY,
        EXIT_DISK_FULL,
        EXIT_TAKEN,
        FAILED,
        FINAL_STATUSES,
        NO_DEVICE,
        NO_WORD,
        OOM,
        RANK_KILLED,
        RANK_LOST,
        RUNS_FOLDER,
        STOPPED,
        WRONG_UNIT,
        Metrics,
        RunDir,
        parse_lines,
        parse_result,
        sealed_part,
    )
    from ablate.run.schema import (
        Bounds,
        Key,
        Param,
        PlainValue,
        added_fields,
        check_keys,
        field_keys,
        field_types,
        fits_type,
        read_field,
        read_section,
        read_settings,
        read_value,
    )
    from ablate.run.sections import (
        NO_CLASS,
        Augment,
        Data,
        Model,
        Optim,
        Text,
        Train,
        Weights,
        Whole,
    )
    from ablate.run.source import (
        code_hash,
        distribution_of,
        find_definition,
        find_source,
        imported_modules,
        is_own_file,
        literal_value,
        local_files,
        missing_module,
        own_frame,
        own_line,
        parse_source,
        raising_line,
        source_file,
    )
    from ablate.run.spec import OwnSpec, RunSpec, ShippedSpec, as_read
    from ablate.run.trainer import build_own, data_hashes
else:
    __getattr__ = lazy(__name__, __file__)
