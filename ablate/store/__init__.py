"""The store: the ledger of events, the folders of runs, looks, and who is alive.

One process writes events of runs: the driver, while it holds its lock. Whoever reads verdicts
appends a look, even while a driver runs; everybody may read. An event is never changed, and each is
sealed with a hash of all events before it. Files in a run's folder are written whole, and only what
the ledger recorded counts.

Raises `UserError` for a name that matches nothing, `NotThere` for a store or sweep that doesn't
exist yet, `Failure` for a damaged ledger, plan or file, and `Unrecorded` where a look can't be
recorded. A `Store` may be shared between threads; a `Ledger` belongs to one.
"""

from ablate.doors import lazy

__all__ = [
    # The store
    "Store",  # a store: its folder, its ledger, its runs
    "StoreFolder",  # the names of all files of a store
    "HostLock",  # answers for workers on this host
    "Liveness",  # answers whether a run's worker is alive
    "RETRY_REMEDY",  # the remedy for a run whose files were edited
    "retry_remedy",  # the command that trains edited runs again
    "WRITES_AGAIN",  # the remedy for a missing plan
    # The ledger
    "Ledger",  # the open ledger
    "Unrecorded",  # a look can't be recorded, so no verdict is shown
    "History",  # the events of a run, the oldest first
    "RunState",  # what a run's events amount to
    "Status",  # the states of a run
    "FROM_BUNDLE",  # marks a result that came from a bundle
    "PLANNING_EVENTS",  # the kinds of events about plans
    "event_detail",  # read an event's detail
    "result_detail",  # what the event of a result keeps of it
    "connect_ledger",  # connect to a ledger's file
    "journal_mode",  # the journal mode that a ledger's file system allows
    "other_ledger_error",  # the error for a ledger of another format
    "repair_ledger",  # rebuild the ledger, under the driver's lock
    # Plans and runs by name
    "sweep_names",  # the names of the sweeps driven here
    "resolve_sweep_name",  # the driven sweep that a word names
    "driven_plan",  # the plan of a driven sweep
    "driven_plans",  # all driven plans
    "newest_plan",  # the plan of the sweep that was driven last
    "unedited_plan",  # a plan to compute with; refuses an edited file
    "without_skipped",  # a plan without the runs that were skipped
    "FollowedSweep",  # a driven plan as it grows
    "find_run",  # the id of the run that a text names
    "sweeps_of_run",  # every driven sweep that a run is part of
    # Records of runs
    "RunRecord",  # a run, as plans, ledger and folder describe it
    "RecordedResult",  # the event of a result: kind and detail
    "load_record",  # the record of a run
    "load_records",  # the records of all runs of a plan
    "run_histories",  # the events of every run of a plan
    "fold_history",  # the state that events amount to, and the last result
    # Progress
    "SweepProgress",  # how far a sweep is
    "Driver",  # a process that drives a store
    "Worker",  # a run that is being trained
    "driver_of",  # who drives a store now
    "observe_progress",  # observe the progress of a sweep
    "living_notes",  # the notes of living workers
    "worker_notes",  # the notes of a run's worker
    "GIVEN_UP",  # states that are started again only on request
    "BLOCKED",  # the state of a run whose parent has no weights
    "blocked_runs",  # the runs that can't start, and why
    "count_blocked",  # counts by state, with blocked runs apart
    "run_parents",  # the parent of each run that has one
    "turn_of_child",  # when a run that starts from another may start
    # Looks
    "looks",  # reading a table, recorded
    "Look",  # what is recorded of a reading
    "InterimLook",  # gains that were read, and the runs of each row
    "PastLooks",  # the earlier looks that bear upon a table
    "SeedCounts",  # numbers of seeds at which runs were read before
    "FEWEST_FOR_SPREAD",  # the fewest seeds that show a spread
    "look_changes",  # in what two looks differ
    "renamed_labels",  # labels that differ between two drives
    "trained_identity",  # what is trained for each row and column
    # Streams of proposals
    "StreamFile",  # the file of a stream
    "StreamRecord",  # a stream, folded from its events
    "CodeVersion",  # a code of a stream
    # Pilots: workers on other hosts
    "Pilots",  # the pilots of a store
    "PilotDir",  # the folder of one pilot
    "DriverBeat",  # the heartbeat of a driver
    "BEAT_S",  # seconds between two heartbeats
    "LOOK_S",  # seconds between two looks at the other side's files
    "STALE_S",  # seconds without a heartbeat until a process counts as gone
    "beats_elsewhere",  # the heartbeat of a driver on another host
    "store_token",  # a store's own token
    "write_proof",  # write what a node must see of the store
    "check_proof",  # check that this host sees the store
    "read_beat",  # read a heartbeat's file
    # Removing
    "Rubbish",  # a file or folder that may be removed
    "GarbageCollection",  # what no sweep refers to and nobody uses, and its removal
    "remove_rubbish",  # remove what nobody uses
    "RemovableRun",  # a run that the user wants to remove
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ablate.store import looks as looks
    from ablate.store.events import (
        FROM_BUNDLE,
        PLANNING_EVENTS,
        History,
        Look,
        RunState,
        Status,
        event_detail,
        result_detail,
    )
    from ablate.store.find import (
        FollowedSweep,
        driven_plan,
        driven_plans,
        find_run,
        newest_plan,
        resolve_sweep_name,
        sweep_names,
        sweeps_of_run,
        unedited_plan,
        without_skipped,
    )
    from ablate.store.folder import WRITES_AGAIN, HostLock, Liveness, StoreFolder
    from ablate.store.gc import GarbageCollection, RemovableRun, Rubbish, remove_rubbish
    from ablate.store.ledger import (
        Ledger,
        Unrecorded,
        connect_ledger,
        journal_mode,
        other_ledger_error,
    )
    from ablate.store.look_differences import look_changes, renamed_labels
    from ablate.store.looks import (
        FEWEST_FOR_SPREAD,
        InterimLook,
        PastLooks,
        SeedCounts,
        trained_identity,
    )
    from ablate.store.pilots import (
        BEAT_S,
        LOOK_S,
        STALE_S,
        DriverBeat,
        PilotDir,
        Pilots,
        beats_elsewhere,
        check_proof,
        read_beat,
        store_token,
        write_proof,
    )
    from ablate.store.progress import (
        BLOCKED,
        GIVEN_UP,
        Driver,
        SweepProgress,
        Worker,
        blocked_runs,
        count_blocked,
        driver_of,
        living_notes,
        observe_progress,
        run_parents,
        turn_of_child,
        worker_notes,
    )
    from ablate.store.record import (
        RecordedResult,
        RunRecord,
        fold_history,
        load_record,
        load_records,
        run_histories,
    )
    from ablate.store.repair import repair_ledger
    from ablate.store.store import RETRY_REMEDY, Store, retry_remedy
    from ablate.store.stream_record import CodeVersion, StreamRecord
    from ablate.store.streams import StreamFile
else:
    __getattr__ = lazy(__name__, __file__)
