"""Errors, files, signals, plurals and the limits of the machine, for every room of both halves.

Nothing here knows what a run is.

A `UserError` is the user's mistake, a `Failure` something else that broke, `TryAgain` what may be
had later, `NoRoom` a full disk: each is one line with the place, the value and the remedy. Files
are written whole or not at all. No state is kept here; everything may be used in any thread, but
for `noted_signals`, which is the main thread's.
"""

from ablate.doors import lazy

__all__ = [
    # Errors
    "UserError",  # a mistake of the user's, in one line; exit code 2
    "Failure",  # something else broke, in one line; exit code 1
    "TryAgain",  # it can't be had now, and may be later; exit code 75
    "NoRoom",  # the disk is full
    "NotThere",  # a store or sweep that doesn't exist yet
    "NotRegular",  # a pipe or a device where a file should be
    "unknown_value",  # the error for a value outside its choices
    "expected_words",  # what `unknown_value` says of a value, without the place
    "did_you_mean",  # " (did you mean 'x'?)", where a name is near
    "nearest_name",  # the nearest of some names
    "printable",  # a text without what a terminal would obey
    "spelling",  # a value as a command line spells it
    "count_text",  # a count with its noun: "1 run", "1,200 runs"
    "amount_text",  # a number with its unit: "1 point"
    "short_error",  # an exception in one line of bounded length
    "other_format_error",  # the error for a store or bundle of another format
    "format_words",  # what to say of a file of another format
    "system",  # programs, signals, orphans, git, install commands
    "signal_words",  # the name of a signal
    "noted_signals",  # notes signals while a block runs
    "ENDING_SIGNALS",  # signals that ask to end
    "adopt_orphans",  # make this process the parent of orphans below it
    "install_command",  # the shell command that installs an extra
    "package_install_command",  # the shell command that installs a package
    "EXTRAS",  # the extras of the package, and what needs them
    "HostHardware",  # processor, memory and cores, and what a control group allows of them
    # Files
    "Lock",  # a file that is locked while its holder lives
    "Notes",  # what the holder of a lock says of itself
    "read_json",  # a parsed file, or None
    "read_file",  # all bytes of a regular file
    "read_hashed",  # a parsed file and its sha256
    "read_sealed",  # a sealed object, or None
    "write_sealed",  # write an object that carries its own hash
    "write_whole",  # write a file whole or not at all
    "open_file",  # open a regular file
    "make_folder",  # make a folder that survives a power cut
    "sync_folder",  # make names in a folder survive a power cut
    "sha256_of",  # the sha256 of a file
    "file_identity",  # the identity of a file, whatever its name
    "to_json",  # a value as JSON text
    "is_number",  # is a value a finite number?
    "is_shallow",  # can a tree be walked without overflow?
    "DISK_FULL_ERRORS",  # the error numbers of a full disk
    "MOST_BYTES",  # the most bytes of a file that is read whole
    "LARGEST_INTEGER",  # the largest integer of a sheet
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ablate.shared import system as system
    from ablate.shared.counts import amount_text, count_text
    from ablate.shared.errors import (
        Failure,
        NoRoom,
        NotThere,
        TryAgain,
        UserError,
        did_you_mean,
        expected_words,
        format_words,
        nearest_name,
        other_format_error,
        printable,
        short_error,
        spelling,
        unknown_value,
    )
    from ablate.shared.files import (
        DISK_FULL_ERRORS,
        LARGEST_INTEGER,
        MOST_BYTES,
        Lock,
        NotRegular,
        file_identity,
        is_number,
        is_shallow,
        make_folder,
        open_file,
        read_file,
        read_hashed,
        read_json,
        read_sealed,
        sha256_of,
        sync_folder,
        to_json,
        write_sealed,
        write_whole,
    )
    from ablate.shared.machine import HostHardware
    from ablate.shared.notes import Notes
    from ablate.shared.system import (
        ENDING_SIGNALS,
        EXTRAS,
        adopt_orphans,
        install_command,
        noted_signals,
        package_install_command,
        signal_words,
    )
else:
    __getattr__ = lazy(__name__, __file__)
