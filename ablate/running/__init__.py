"""Training the runs of a plan: the driver, its launchers and its loggers.

One process drives a store at a time: it holds the driver's lock, and it alone writes events of
runs. `Drive` decides the next step of every run with pure functions; a `Launcher` starts workers
and answers for them. Workers outlive the driver: the next one adopts them by their folders' locks.
A drive ends with an `Outcome`, also after a signal; it raises `UserError` where nothing was begun
and `Failure` where no device is left. A launcher and a drive belong to one thread; loggers run in
threads of their own and can't stop a drive.
"""

from ablate.doors import lazy

__all__ = [
    # The drive
    "Drive",  # one drive of a plan
    "Outcome",  # how a drive ended
    "Observers",  # the loggers around a drive
    "check_loggers_installed",  # refuse a logger whose package is missing
    "driver_session",  # hold the driver's lock and the open ledger
    "hold_driver_lock",  # hold the driver's lock for a command, or fail
    "stop_driver",  # stop the process that drives a store
    "detach_driver",  # start a driver without this terminal
    "give_order",  # have an order carried out, by the driver or here
    "check_order",  # refuse an order that can't be given to a run
    # Launchers
    "Launcher",  # starts workers, answers for them and stops them
    "Slot",  # room for one worker
    "Ask",  # asks the training half a question
    "ForkServer",  # a process that forks workers in milliseconds
    "make_launcher",  # make the launcher that the settings name
    "worker_options",  # the options of a worker
    "worker_environment",  # the environment variables of a worker
    "Here",  # workers of this machine, as a launcher has them
    "GpuSet",  # the GPUs that a launcher may use
    "SiteJob",  # a job that looks at what a cluster's nodes see
    "gpus",  # what nvidia-smi says of GPUs
    # Before the first run
    "drop_unfit_slots",  # drop the slots whose devices don't work
    "gpus_in_use",  # a line for each GPU that others use
    "check_parents",  # refuse to start from weights that have changed
    "set_damaged_aside",  # move the folders of damaged runs aside
    "take_decisions",  # take what another store settled for its columns
    "SETTLED_KEYS",  # the keys that are settled once for a column
    "settle_devices",  # decide by measurements what a plan's settings leave open
    "decode_data",  # check decoded data, or decode it
    "check_data",  # check a decoded set against its hashes
    "data_remarks",  # images of a set that are left out, or in two splits
    "await_disk_room",  # wait until the disk has room for a driver's files
    "retry_on_full_disk",  # repeat work until the disk has room for it
    # Costs
    "TimeLeft",  # how long a sweep still takes
    "Costs",  # the cost of each row and column
    "UNKNOWN_COST",  # why a cost is not known yet
    "estimate_costs",  # estimate the costs of a plan
    "estimate_sizes",  # parameters and multiply-adds of cells
    "Devices",  # a number of devices of one kind, and their rate
    "Rehearsals",  # what the first steps of rows cost
    "rehearse_rows",  # run the first steps of rows
    "Worlds",  # how many devices each group of runs gets
    "group_of",  # the group of runs that a cell belongs to
    "narrow_worlds",  # fewer devices where a micro-batch allows no more
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ablate.running import gpus as gpus
    from ablate.running.detach import detach_driver
    from ablate.running.devices import Devices
    from ablate.running.disk import await_disk_room, retry_on_full_disk
    from ablate.running.driver import Drive, Outcome
    from ablate.running.driver_lock import driver_session, hold_driver_lock, stop_driver
    from ablate.running.estimate import UNKNOWN_COST, Costs, estimate_costs, estimate_sizes
    from ablate.running.gpus import GpuSet
    from ablate.running.launchers import (
        Ask,
        Launcher,
        Slot,
        make_launcher,
        worker_options,
    )
    from ablate.running.launchers.fork import ForkServer, check_data, data_remarks, decode_data
    from ablate.running.launchers.local import Here, worker_environment
    from ablate.running.loggers import Observers, check_loggers_installed
    from ablate.running.orders import check_order, give_order
    from ablate.running.preflight import (
        SETTLED_KEYS,
        check_parents,
        drop_unfit_slots,
        gpus_in_use,
        set_damaged_aside,
        settle_devices,
        take_decisions,
    )
    from ablate.running.rehearse import Rehearsals, rehearse_rows
    from ablate.running.site import SiteJob
    from ablate.running.time_left import TimeLeft
    from ablate.running.world_sizes import Worlds, group_of, narrow_worlds
else:
    __getattr__ = lazy(__name__, __file__)
