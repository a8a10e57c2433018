"""Audits: checks, re-training, and what leaves or enters a store whole.

Whatever is written here is checked first and appears by one rename, so a kill leaves a store that
opens, and the same command goes on. Functions that write into a store take the driver's lock
themselves and raise `Failure` where another process holds it. Checks yield findings and change
nothing. A `UserError` names the file, the value and the remedy.
"""

from ablate.doors import lazy

__all__ = [
    # Checks
    "run_checks",  # check the machine, the store and bit-exact resume
    "check_store",  # check the store alone
    "null_tables",  # how often tables of this store's noise show an effect
    "print_findings",  # print each finding as it comes
    "findings_tree",  # findings as a plain tree, for JSON
    "write_constraints",  # write pip constraints that freeze this environment
    "verify_stream",  # judge every look of a stream again
    "verify_plan",  # recompute a sweep's numbers from its raw files
    "retrain",  # train a run again and compare the bits
    "RerunStopped",  # a signal stopped a re-training; nothing is left behind
    "SAME_BITS",  # the outcome of a re-training that gave the same bits
    # Bundles
    "export_bundle",  # write the bundle of a sweep
    "export_weights",  # write the weights of a run in safetensors
    "WEIGHT_NAMES",  # whose names exported tensors get: ours or timm's
    "check_folder",  # refuse a folder that no bundle may be written to
    "check_bundle",  # check a bundle's files and recompute the derived ones
    "Bundle",  # an exported sweep, opened like a store
    "open_sweep",  # open a sweep of a store or of a bundle
    # Sheets and other stores
    "SheetDeclaration",  # what the user says of a sheet's columns
    "read_sheet",  # read files of results, or the folder of jobs or of a tracker
    "read_frame",  # read a pandas frame of results
    "read_loop",  # read the log of a past loop
    "import_under_lock",  # make a sweep of a sheet, under the driver's lock
    "StoreMerge",  # other stores and bundles, to bring into a store
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ablate.audit.bundle import Bundle, open_sweep
    from ablate.audit.bundle_check import check_bundle
    from ablate.audit.doctor import (
        check_store,
        findings_tree,
        null_tables,
        print_findings,
        run_checks,
    )
    from ablate.audit.doctor.machine import write_constraints
    from ablate.audit.export import WEIGHT_NAMES, check_folder, export_bundle, export_weights
    from ablate.audit.importing import SheetDeclaration, import_under_lock
    from ablate.audit.loop_log import read_loop
    from ablate.audit.merge import StoreMerge
    from ablate.audit.rerun import SAME_BITS, RerunStopped, retrain
    from ablate.audit.sheet import read_frame, read_sheet
    from ablate.audit.streams import verify_stream
    from ablate.audit.verify import verify_plan
else:
    __getattr__ = lazy(__name__, __file__)
