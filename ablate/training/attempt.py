"""The attempt of one worker at one run, whoever trains it: it holds the folder's lock, notes facts
about itself, and says why it left. No torch.

Used by training/worker.py and training/own/work.py for every run of `ablate sweep`. A new reason to
leave also needs its constant in run/rundir.py and, where it is to be retried otherwise, a case in
running/next_step.py.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import signal
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from ablate.run import (
    DATA_DAMAGED,
    DEVICE_LOST,
    DISK_FULL,
    EXIT_DISK_FULL,
    EXIT_TAKEN,
    FAILED,
    NO_DEVICE,
    OOM,
    RANK_LOST,
    STOPPED,
    WRONG_UNIT,
    RunDir,
    parse_result,
    parts,
)
from ablate.shared import (
    DISK_FULL_ERRORS,
    noted_signals,
    to_json,
    write_whole,
)
from ablate.training import faults

WARNING = signal.SIGUSR2  # of the end of a cluster's job
EXIT_STOPPED, EXIT_FAILED, EXIT_ROTTEN = 76, 1, 73
EXITS = {
    FAILED: EXIT_FAILED,
    WRONG_UNIT: EXIT_FAILED,
    OOM: 71,
    DEVICE_LOST: 72,
    NO_DEVICE: 77,
    RANK_LOST: 78,
}


class TrainingStopped(Exception):
    """Raised where a training was asked to stop; what can be resumed is saved."""


class Damaged(Exception):
    """Raised where the data that a run used is not what was decoded: the run needs another
    attempt."""


class RankLost(Exception):
    """Raised where a rank of the run is gone, or has other weights than the others."""


class Attempt:
    """The facts that this worker notes about itself in the run's `env.json`, after those of earlier
    attempts."""

    def __init__(self, rundir: RunDir) -> None:
        self.rundir = rundir
        self.earlier_attempts = rundir.read_attempts()
        self.facts: dict[str, Any] = {}

    def note(self, **facts: Any) -> None:
        """Add facts; the file is complete at every moment."""
        if self.facts | facts != self.facts:
            self.facts |= facts
            self.rundir.write_attempts([*self.earlier_attempts, self.facts])

    def begin(
        self,
        options: Mapping[str, Any],
        *,
        device: str,
        threads: int,
        packages: Iterable[str],
        digest: str,
        **facts: Any,
    ) -> None:
        """Note which worker tries, where and with what. `device`: cpu, cuda, or a GPU's name;
        `digest`: the hash of our code."""
        self.note(
            at=time.time(),
            pid=os.getpid(),
            host=platform.node(),
            slot=options["slot"],
            **facts,
            origin=options.get("origin"),
            device=device,
            driver=None if device == "cpu" else driver(),
            python=platform.python_version(),
            platform=platform.platform(),
            packages={package: installed(package) for package in packages},
            threads=threads,
            digest=digest,
        )

    def code(self, kinds: Iterable[str]) -> dict[str, Any]:
        """Return {"digest": the hash of our code, "plugins": {kind: the hash of the user's own
        code}}, each over all attempts whose work is in this one's."""
        line = self.lineage()
        plugins = {}
        for kind in kinds:
            plugins[kind] = _joined(facts.get("plugins", {}).get(kind) for facts in line)
        digest = _joined(facts.get("digest", "unknown") for facts in line)
        return {"digest": digest, "plugins": plugins}

    def end(self, exit: str, **facts: str) -> None:
        """Note how an attempt that had begun ended. A full disk must not change how a worker
        leaves."""
        if self.facts:
            with suppress(OSError):
                self.note(exit=exit, ended=time.time(), **facts)

    def lineage(self) -> list[dict[str, Any]]:
        """Return the facts of the attempts whose work is in this one's, this one last: each
        continued from a checkpoint of the one before it. The first is {} where the attempt that
        began the run noted nothing."""
        line = [self.facts]
        for facts in reversed(self.earlier_attempts):
            if facts.get("from_step", 0) < line[0]["from_step"]:
                line.insert(0, {"from_step": 0, **facts})
        if line[0]["from_step"] != 0:
            line.insert(0, {})
        return line

    def finish(self, result: dict[str, Any]) -> None:
        """Note the end of the attempt, seal the notes in the result, and write it: the run is over.
        Raises ValueError for a result that could not be read back."""
        self.end("result")  # the last word in env.json
        result["env_sha256"] = hashlib.sha256(self.rundir.env.read_bytes()).hexdigest()
        content = to_json(result)
        _, problem = parse_result(content)
        if problem:
            raise ValueError(f"the run's result {problem}")
        write_whole(self.rundir.result, content)
        self.rundir.drop_checkpoints()


class Stop:
    """The signals that ask a worker to stop. Calling it returns whether one has come."""

    def __init__(self, rundir: RunDir, heard: Sequence[int], numbers: Collection[int]) -> None:
        """`heard`: the signals that have come so far; `numbers`: those that ask to stop."""
        self._rundir, self._heard, self._numbers = rundir, heard, numbers
        self._handler = signal.getsignal(signal.SIGTERM)
        self._arrived: set[int] = set()  # whichever handler took them

    def __call__(self) -> bool:
        return bool(self._heard)

    def was_asked(self) -> bool:
        """Return whether the worker was asked to stop, even if another handler took the signal."""
        return bool(self._heard or self._arrived) or self._rundir.asked_to_stop()

    def was_handled_elsewhere(self) -> bool:
        """Return whether the worker was asked to stop by a signal that a handler of the user's own
        code took."""
        replaced = signal.getsignal(signal.SIGTERM) is not self._handler
        return self.was_asked() and (replaced or not self._heard)

    @contextmanager
    def noting_arrivals(self) -> Iterator[None]:
        """Note which signals arrive within the block, including those that the user's own handlers
        take: an engine that preempts a job signals all of its processes before anybody has asked
        this worker to stop. Python writes the number of every signal that it handles to its wakeup
        file."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        previous_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous_fd)
            with suppress(BlockingIOError):
                self._arrived |= {*os.read(reader, 1 << 16)} & {*self._numbers}
            os.close(reader)
            os.close(writer)


Train = Callable[[RunDir, Attempt, dict[str, Any], Stop], None]


def hold(
    path: str,
    options: dict[str, Any],
    train: Train,
    line: Callable[[BaseException], str] = faults.line,
) -> int:
    """Hold the run in the folder `path` while `train` trains it to a result; return the exit code.

    `options`: see `launchers.worker_options`. Takes the folder's lock first, and returns EXIT_TAKEN
    where another process has it. If the worker leaves without a result, it notes the reason in the
    lock for whoever drives the sweep; `line` makes the text of an error.
    """
    rundir = RunDir(Path(path))
    with stop_signals(rundir) as stopping:
        if not rundir.lock.acquire(wait_s=1.0):  # a probe holds it for a moment
            return EXIT_TAKEN
        attempt = Attempt(rundir)
        try:
            rundir.stop.unlink(missing_ok=True)  # it was said to the worker before
            rundir.lock.note(
                pid=os.getpid(), host=platform.node(), slot=options["slot"], phase="start"
            )
            if not rundir.has_result():
                train(rundir, attempt, options, stopping)
            return 0
        except TrainingStopped:
            return _note_exit(attempt, EXIT_STOPPED, STOPPED)
        except Exception as error:
            code, reason = exit_code_and_reason(error, options["device"])
            return _note_exit(attempt, code, reason, error, line(error))
        finally:
            rundir.lock.release()


def leave(attempt: Attempt, code: int, reason: str, line: str) -> NoReturn:
    """End the process at once, whatever it is doing; `line` says why."""
    with suppress(OSError):
        attempt.rundir.lock.note(exit=reason, error=line)
    attempt.end(reason, error=line)
    attempt.rundir.say(line)
    os._exit(code)


def exit_code_and_reason(error: Exception, device: str) -> tuple[int, str]:
    """Return the exit code and the reason of a worker that leaves with this error."""
    if isinstance(error, Damaged):
        return EXIT_ROTTEN, DATA_DAMAGED
    if isinstance(error, RankLost):
        return EXITS[RANK_LOST], RANK_LOST
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS:
        return EXIT_DISK_FULL, DISK_FULL
    reason = faults.reason_of(error, device)
    return EXITS[reason], reason


def _note_exit(
    attempt: Attempt, code: int, reason: str, error: Exception | None = None, line: str = ""
) -> int:
    error_note = {}
    if error is not None:
        error_note["error"] = line
    with suppress(OSError):  # on a full disk; the exit code says it, too
        attempt.rundir.lock.note(exit=reason, **error_note)
    attempt.end(reason, **error_note)
    if error is not None:
        with suppress(OSError):  # log.txt is on the same disk
            traceback.print_exception(error)
    return code


@contextmanager
def stop_signals(rundir: RunDir) -> Iterator[Stop]:
    """Note the signals that ask the worker to stop at the next step: SIGTERM, SIGINT, and on a
    pilot SIGUSR2, which Slurm sends to all processes of a job before its limit. The earlier
    handlers are restored afterwards."""
    heard: list[int] = []
    on_pilot = signal.getsignal(WARNING) is signal.SIG_IGN  # as its server has it
    try:
        with noted_signals(signal.SIGTERM, signal.SIGINT) as heard:
            numbers = {signal.SIGTERM, signal.SIGINT}
            if on_pilot:
                signal.signal(WARNING, lambda number, _: heard.append(number))
                numbers.add(WARNING)
            # Held back since the fork: see launchers/server.py.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            yield Stop(rundir, heard, numbers)
    finally:
        if on_pilot:
            signal.signal(WARNING, signal.SIG_IGN)
        for number in heard:  # in the driver's own process the driver shall hear of it, too
            handler = signal.getsignal(number)
            if callable(handler) and handler is not signal.default_int_handler:
                handler(number, None)


# --- What is noted ------------------------------------------------------------------------------


def code_digest(package: Path) -> str:
    """Return a hash of the code that trains, 16 hex digits: of the four folders that a worker
    loads, and of added tasks."""
    text = hashlib.sha256()
    for folder in ("data", "run", "shared", "training"):
        for file in sorted((package / folder).rglob("*.py")):
            text.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes())
    for file in parts.files("ablate_tasks"):
        text.update(file.name.encode() + b"\0" + file.read_bytes())
    return text.hexdigest()[:16]


def _joined(digests: Iterable[str | None]) -> str | None:
    """Return the digests joined as "d1+d2", each once, in order; None where there is none."""
    return "+".join(dict.fromkeys(filter(None, digests))) or None


def device_names(devices: Iterable[str]) -> str:
    """Return the names of a run's devices by rank, each once: equal devices have one name."""
    return ", ".join(dict.fromkeys(devices))


def driver() -> str | None:
    """Return the version of NVIDIA's kernel driver, None where it is unknown."""
    with suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text().strip()
    return None


def installed(package: str) -> str | None:
    """Return a package's installed version. A variant under another name gives None: packages that
    training needs are recorded under their own."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None
