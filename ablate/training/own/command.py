"""The training of a run by a program: starts it, reads its curves while it runs, and its result at
its end.

Only what this attempt wrote counts, and only with exit code 0. So the result of an earlier attempt
is moved aside first, and no process of an earlier attempt lives on (see `processes`).

Used by training/own/work.py for `ablate sweep trainer=NAME`, where the yaml of the trainer has a
command. A new key of that yaml also needs its field in run/program.py `Program`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ablate.run import (
    FOLDER_PLACE,
    SEED_PLACE,
    OwnRun,
    Program,
    RunDir,
    code_file_hash,
    data_hashes,
    fill_command,
    imported_modules,
    program_of,
    resume_words,
)
from ablate.shared import UserError, read_file, signal_words, write_whole
from ablate.training.attempt import WARNING, Attempt, TrainingStopped
from ablate.training.own.curves import ProgramCurves
from ablate.training.own.handle import Handle
from ablate.training.own.outcome import (
    SET_ASIDE,
    fail,
    left_as_result,
    read_output,
    read_predictions,
    read_result,
)
from ablate.training.own.processes import TAG, Processes, machine

POLL_S, LOOK_S, NOTE_S = 0.05, 1.0, 10.0  # between questions: has it ended, what is new, notes
VERSIONS_S = 120.0  # an interpreter needs seconds to list its packages, minutes on a busy machine
KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # all others are its faults


@dataclass
class Command:
    """A run that its program trains, for one attempt."""

    run: OwnRun
    rundir: RunDir
    handle: Handle
    attempt: Attempt
    options: Mapping[str, Any]
    stopping: Callable[[], bool]

    def __post_init__(self) -> None:
        self.processes = Processes(self.rundir, adopts=bool(self.options.get("forked")))

    def train(self) -> None:
        """Train the run to the end of its program, and give `handle` its result.

        Raises TrainingStopped where it was asked to stop; UserError for a mistake in what the yaml
        declares; RuntimeError or MemoryError where the program ended with an error; TimeoutError
        for a process that can't be ended. A program that is killed takes its worker along: the run
        goes on in another attempt.
        """
        program = program_of(self.run.spec)
        self.processes.end()
        folder = self._folder()
        check_code(self.run, Path(self.options["cache"]))
        gpus = 0
        if self.handle.device != "cpu":
            gpus = len(self.handle.devices)
        place = {
            SEED_PLACE: self.run.seed,
            FOLDER_PLACE: str(folder),
            "gpus": gpus,
            "threads": self.handle.threads,
        }
        settings = {key: self.run.trainer[key] for key in self.run.keys}
        resumed = resume_words(program, settings, place)
        if not resumed:
            self._empty(program, folder)
        command, overrides = self.run.trainer["name"], self.run.code.get("overrides")
        words = [
            *fill_command(command, settings, place, overrides, self.run.spec.flags),
            *resumed,
        ]
        environment = program.environment(settings, place)
        goes_on = self.attempt.earlier_attempts and (resumed or any(folder.iterdir()))
        previous_attempt: Mapping[str, Any] = {}
        if goes_on:
            previous_attempt = self.attempt.earlier_attempts[-1]
        self.attempt.note(
            program=words,
            resumed=bool(resumed),
            folder=folder.name,
            machine=machine(),
            interpreter=interpreter(words[0], self.run),
            from_step=previous_attempt.get("from_step", -1) + 1,
            before_s=previous_attempt.get("before_s", 0.0) + previous_attempt.get("alive_s", 0.0),
        )
        self.handle.add_seconds(self.attempt.facts["before_s"])
        table = self._begin_result(program, folder, bool(resumed))
        self.rundir.say(f"$ {shlex.join(words)}")
        begin = self.rundir.log.stat().st_size
        curves = ProgramCurves(program, self.run.metrics, folder, self.handle)
        code = self._watch(words, program, environment, curves)
        if self.stopping():
            self._interrupt(program, folder)
        output = read_output(self.rundir.log, begin, self.rundir.own_lines)
        if -code in KILLS and self.options.get("forked"):
            self._die(-code)
        if code:
            fail(code, output)
        curves.read_rest()
        files = files_now(self.run)
        if files != self.run.code["files"]:
            self.rundir.say("warning: its code was edited while it ran, and may have been loaded")
            content = json.dumps(files, sort_keys=True).encode()
            self.attempt.note(plugins={"trainer": code_file_hash(content)})
        if table and table == states(table):
            store = str(self.rundir.runs.parent)
            delete = shlex.join(["ablate", "run", self.rundir.id, "--delete", "--store", store])
            raise UserError(
                f"trainer.result: {program.result.path}: this attempt, which resumed, wrote "
                f"nothing to it; if nothing was left to do, `{delete}` and sweep again"
            )
        source, result = read_result(program, folder, output, self.run)
        self.handle.give(source, result, read_predictions(program, folder))

    def _begin_result(self, program: Program, folder: Path, resumed: bool) -> dict[Path, Any]:
        """Set aside what an earlier attempt left as its result; return the state of the files that
        stay.

        A table stays where the program goes on by the words of `resume`, without the line that a
        kill cut off.
        """
        number = len(self.attempt.earlier_attempts)
        if resumed:
            table = _table(program, folder)
            if program.result.file is not None:
                for file in table:
                    cut_last_line(file)
            _set_aside(program, folder, number, but=table)
            return states(table)
        _set_aside(program, folder, number)
        return {}

    def _empty(self, program: Program, folder: Path) -> None:
        """Empty the folder of a run whose result is the best row of all, where no words of `resume`
        say that it goes on: it would lack the rows of the attempt before, or have them twice."""
        if program.result.best is not None and any(folder.iterdir()):
            self.rundir.say("begins in an empty folder: no `resume` says how it goes on")
            shutil.rmtree(folder)
            folder.mkdir()

    def _interrupt(self, program: Program, folder: Path) -> NoReturn:
        """Set aside what the program left as its result, whatever its exit code: it was asked to
        stop before it ended, so its training may not be whole. A table is left to the next attempt,
        which may append to it. Raises TrainingStopped."""
        self.rundir.ask_to_stop()
        number = len(self.attempt.earlier_attempts) + 1
        if _set_aside(program, folder, number, but=_table(program, folder)):
            self.rundir.say("stopped: the result that it left was set aside; it starts again")
        raise TrainingStopped

    def _folder(self) -> Path:
        """Return the program's folder: that of the last attempt, or a copy of it where that attempt
        may still be at work on another machine."""
        scratch, earlier_attempts = self.rundir.scratch, self.attempt.earlier_attempts
        facts: Mapping[str, Any] = {}
        if earlier_attempts:
            facts = earlier_attempts[-1]
        folder = self.rundir.path / facts.get("folder", scratch.name)
        if "exit" not in facts and facts.get("machine") not in (None, machine()):
            copy = self.rundir.path / f"{scratch.name}.{len(earlier_attempts)}"
            self.rundir.say(
                f"goes on in {copy.name}, a copy of {folder.name}: processes of the last attempt "
                f"may be alive, on another machine"
            )
            shutil.rmtree(copy, ignore_errors=True)
            if folder.exists():
                shutil.copytree(folder, copy, symlinks=True)
            folder = copy
        folder.mkdir(exist_ok=True)
        return folder

    def _watch(
        self,
        words: list[str],
        program: Program,
        environment: Mapping[str, str],
        curves: ProgramCurves,
    ) -> int:
        """Run the program; return its exit code once none of its processes lives. When asked to
        stop, send it SIGTERM, and SIGKILL if it doesn't end within its grace time."""
        began = time.monotonic()
        look_at = note_at = 0.0
        deadline = math.inf
        signs: tuple[float, ...] = ()
        child = self._start(words, program, environment)
        try:
            while (code := child.poll()) is None:
                clock_s = time.monotonic()
                if self.stopping() and deadline == math.inf:
                    deadline = clock_s + program.grace_s
                    self.rundir.ask_to_stop()
                    self.processes.send(signal.SIGTERM)
                if clock_s > deadline:
                    self.rundir.say(f"killed: SIGTERM did not end it within {program.grace_s:g} s")
                    return -signal.SIGKILL
                if clock_s >= look_at:
                    has_more = curves.log_new_lines()
                    look_at = clock_s if has_more else clock_s + LOOK_S
                    size = float(self.rundir.log.stat().st_size)
                    if clock_s >= note_at:
                        note_at = clock_s + NOTE_S
                        self.attempt.note(alive_s=round(clock_s - began, 1))
                        self.rundir.lock.note()  # its age says that the worker lives
                    previous_signs, signs = signs, (size, self.processes.cpu_seconds())
                    if signs != previous_signs:  # of life of the program
                        self.handle.should_stop()
                time.sleep(POLL_S)
            return code
        finally:
            self.processes.end()
            child.poll()  # it is known to have ended, whatever was raised meanwhile
            self.attempt.note(alive_s=round(time.monotonic() - began, 1))

    def _start(
        self, words: list[str], program: Program, declared_environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **declared_environment}
        environment["OMP_NUM_THREADS"] = str(self.handle.threads)
        environment["PYTHONUNBUFFERED"] = "1"
        environment["PYTHONHASHSEED"] = "0"
        environment[TAG] = self.processes.tag
        # The group of a worker that was forked ends with it.
        process_group = None if self.options.get("forked") else 0
        home = Path(self.run.code["folder"])
        stdin = os.devnull if program.stdin is None else home / program.stdin
        with (
            open(self.rundir.log, "ab") as log,
            open(stdin, "rb") as input_file,
            _ignoring(WARNING),
        ):
            try:
                return subprocess.Popen(
                    words,
                    cwd=home / (program.cwd or ""),
                    env=environment,
                    stdin=input_file,
                    stdout=log,
                    stderr=log,
                    process_group=process_group,
                )
            except OSError as error:
                raise UserError(f"trainer.command: {words[0]}: {error.strerror}") from error

    def _die(self, number: int) -> NoReturn:
        """End this worker by SIGKILL after its program was killed, so that whoever drives the sweep
        sees a kill."""
        error = f"the program was killed by {signal_words(number)}"
        self.rundir.say(error)
        if number != signal.SIGKILL:  # of which the driver has the usual reason
            with contextlib.suppress(OSError):
                self.rundir.lock.note(error=error)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("alive after SIGKILL")


@contextlib.contextmanager
def _ignoring(number: signal.Signals) -> Iterator[None]:
    """Make processes started within the block ignore a signal that this process handles: by default
    it would kill them."""
    handler = signal.getsignal(number)
    if callable(handler):
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, handler)


# --- Before -------------------------------------------------------------------------------------


def check_code(run: OwnRun, cache: Path) -> None:
    """Raise UserError for a file of code or data that changed since the run was planned."""
    folder, files = Path(run.code["folder"]), run.code["files"]
    for name, digest in files_now(run).items():
        if digest != files[name]:
            hint = ""
            if not name.endswith(".py"):
                hint = "; if it is no code, list what is under `code: [...]` in the yaml"
            raise _changed(name, "was edited", hint)
    try:
        hashes = data_hashes(list(run.code["data"]), folder, cache)
    except OSError as error:
        raise UserError(f"trainer.data: {error.filename}: {error.strerror}") from error
    for name, digest in run.code["data"].items():
        if hashes[name] != digest:
            raise _changed(name, "is data that was changed")


def files_now(run: OwnRun) -> dict[str, str]:
    """Return the hashes of the files of code as they are now; "" for one that is gone."""
    hashes = {}
    for name in run.code["files"]:
        try:
            hashes[name] = code_file_hash(read_file(Path(run.code["folder"]) / name))
        except OSError:
            hashes[name] = ""
    return hashes


def _changed(name: str, change: str, hint: str = "") -> UserError:
    return UserError(
        f"{name} {change} after this run was planned; the same `ablate sweep` plans new runs with "
        f"what it is now{hint}"
    )


def _table(program: Program, folder: Path) -> list[Path]:
    """Return the files of the table that the program left as its result; none for other results."""
    return left_as_result(program, folder) if program.result.is_table else []


def _set_aside(program: Program, folder: Path, number: int, but: Collection[Path] = ()) -> bool:
    """Rename the files that attempt `number` left as its result, which doesn't count, `but` those
    of a table that is appended to; return whether there were any."""
    predictions = [folder / name for name in [program.predictions] if name]
    files = [*left_as_result(program, folder), *filter(os.path.lexists, predictions)]
    leftovers = [file for file in files if file not in but]
    for file in leftovers:
        file.replace(file.with_name(f"{file.name}{SET_ASIDE}{number}"))
    return bool(leftovers)


def states(files: Iterable[Path]) -> dict[Path, Any]:
    """Return the size and the time of the last change of each file, None where it is gone."""
    stats = {file: file.stat() if file.is_file() else None for file in files}
    return {file: stat and (stat.st_size, stat.st_mtime_ns) for file, stat in stats.items()}


def cut_last_line(file: Path) -> None:
    """Cut off what follows the last end of a line, as a kill leaves it. What a program appends
    would become a part of that line."""
    content = file.read_bytes() if file.is_file() else b""
    if content and not content.endswith(b"\n"):
        write_whole(file, content[: content.rfind(b"\n") + 1])


VERSIONS = """
import importlib.metadata as m, json, platform, sys
names = {name for top in sys.argv[1:] for name in m.packages_distributions().get(top, [])}
versions = {name: m.version(name) for name in sorted(names)}
print(json.dumps({"python": platform.python_version(), "packages": versions}))
"""


def interpreter(word: str, run: OwnRun) -> dict[str, Any]:
    """Return the path of the program that runs the command (None where it is not found) and, for
    Python, its version and those of the distributions that the run's code imports."""
    folder = Path(run.code["folder"])
    if os.sep in word:
        word = os.path.join(folder, program_of(run.spec).cwd or "", word)
    path = shutil.which(word)
    if path is None or not Path(path).name.startswith("python"):
        return {"path": path}
    files = [folder / name for name in run.code["files"] if name.endswith(".py")]
    try:
        words = [path, "-c", VERSIONS, *sorted(imported_modules(files))]
        answer = subprocess.run(words, cwd="/", capture_output=True, timeout=VERSIONS_S, check=True)
        return {"path": path, **json.loads(answer.stdout)}
    except (OSError, subprocess.SubprocessError, ValueError):
        return {"path": path}
