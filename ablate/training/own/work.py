"""The work on one run of the user's own trainer, from its run.json to its result.

The user's files are imported as they were when the run was planned, or not at all.

Used by training/worker.py for `ablate sweep trainer=NAME`, and by training/own/__main__.py. A new
key of result.json should also get its type in run/rundir.py `_RESULT`, by which it is checked.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ablate.run import (
    OwnRun,
    OwnSpec,
    RunDir,
    RunSpec,
    build_own,
    code_file_hash,
    own_frame,
)
from ablate.shared import UserError, adopt_orphans, short_error
from ablate.training import faults
from ablate.training.attempt import Attempt, Stop, TrainingStopped, code_digest, device_names, hold
from ablate.training.own.command import Command
from ablate.training.own.handle import Ended, Handle
from ablate.training.own.processes import end_processes, tag_of


class Code(importlib.abc.MetaPathFinder):
    """A finder that imports modules from one folder, and runs exactly the bytes that were hashed.

    `files` maps each file's path in the folder to its hash, as the run's id has it. Other files of
    the folder are imported, too, since reading the source can't tell what `importlib` will be
    given; a warning names them.
    """

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self.folder, self.files = folder, files
        self.unforeseen: dict[str, str] = {}  # files that were not planned -> hash

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module whose file lies in the folder; None for any other."""
        if name.partition(".")[0] == "ablate":  # whose sources may lie there, too
            return None
        places = [str(self.folder)] if path is None else path
        spec = importlib.machinery.PathFinder.find_spec(name, places)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        inside = self.place_of(spec.origin)
        if inside is None:
            return None
        spec.loader = _Checked(name, spec.origin, self)
        return spec

    def place_of(self, file: str) -> str | None:
        """Return a file's path in the folder; None where the file is not the user's own."""
        path = Path(file)
        if not path.is_relative_to(self.folder) or "site-packages" in path.parts:
            return None
        return path.relative_to(self.folder).as_posix()

    def check(self, file: str, content: bytes) -> None:
        """Raise UserError for a file that was edited since the run was planned."""
        place, file_hash = self.place_of(file), code_file_hash(content)
        assert place is not None
        if place not in self.files:
            self.unforeseen[place] = file_hash
        elif self.files[place] != file_hash:
            raise UserError(
                f"{place} was edited after this run was planned; the same `ablate sweep` plans "
                f"new runs with what it is now"
            )

    @property
    def digest(self) -> str:
        """The hash of all files that are the run's code: those that were planned, and any others
        that were loaded from the folder."""
        hashes = {**self.files, **self.unforeseen}
        return code_file_hash(json.dumps(hashes, sort_keys=True).encode())

    @contextmanager
    def importing(self, name: str) -> Iterator[Callable[..., Any]]:
        """Yield the function `module:function`, while the folder's modules can be imported. They
        are forgotten afterwards: the next run in this process imports its own."""
        module, _, function = name.partition(":")
        self._forget()
        sys.meta_path.insert(0, self)
        # Last, for what a trainer spawns by itself: there this finder is missing.
        sys.path.append(str(self.folder))
        try:
            yield getattr(importlib.import_module(module), function)
        finally:
            sys.meta_path.remove(self)
            sys.path.remove(str(self.folder))
            self._forget()

    def _forget(self) -> None:
        files = {str(self.folder / place) for place in (*self.files, *self.unforeseen)}
        for name, module in list(sys.modules.items()):
            if name != "__main__" and getattr(module, "__file__", None) in files:
                del sys.modules[name]


class _Checked(importlib.machinery.SourceFileLoader):
    """A loader that runs the source it has hashed: never a .pyc, nor a version written in
    between."""

    def __init__(self, name: str, path: str, code: Code) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        content = Path(self.path).read_bytes()
        self._code.check(self.path, content)
        code: CodeType = compile(content, self.path, "exec", dont_inherit=True)
        return code


def own_spec(path: str) -> OwnSpec | None:
    """Return the spec of a run with the user's own trainer; None for any other run, and where its
    run.json is not whole."""
    try:
        spec = RunSpec.of(RunDir(Path(path)).read_spec())
    except (ValueError, OSError):
        return None  # its worker says what is wrong
    return spec if isinstance(spec, OwnSpec) else None


def work(path: str, options: dict[str, Any], spec: OwnSpec) -> int:
    """Work on a run as `hold` does. A process that was forked from a server becomes a fresh
    interpreter, unless the trainer declares that it is `fork_safe`."""
    if not options.get("forked") or spec.tree["code"]["fork_safe"]:
        return work_in_process(path, options)
    environment = dict(os.environ)
    environment["OMP_NUM_THREADS"] = str(options["threads"])
    environment["PYTHONHASHSEED"] = "0"
    environment["PYTHONUNBUFFERED"] = "1"
    words = [sys.executable, "-P", "-m", "ablate.training.own", path, json.dumps(options)]
    os.execve(sys.executable, words, environment)


def work_in_process(path: str, options: dict[str, Any]) -> int:
    """Work on a run as `hold` does, in this process."""
    path = os.path.abspath(path)  # it works in another folder
    forked = bool(options.get("forked"))  # this process is the worker's own then
    if forked:
        adopt_orphans()
    try:
        return hold(path, options, _train, lambda error: error_line(error, path))
    finally:
        if forked:  # whatever the trainer started; the fork server sees to it, too
            with contextlib.suppress(TimeoutError, OSError):
                end_processes(tag_of(RunDir(Path(path))), os.getpid())


def error_line(error: BaseException, path: str) -> str:
    """Return what an error says, after the file and line of the user's own at which it was
    raised."""
    spec = own_spec(path)
    code = spec.tree.get("code", {}) if spec is not None else {}
    folder = Path(code.get("folder", "/"))
    frame = None
    if error.__cause__ is not None:
        frame = own_frame(error.__cause__, [str(folder)])
    if frame is None:
        frame = own_frame(error, [str(folder)])
    if isinstance(error, UserError):
        line = short_error(str(error))
    else:
        line = faults.line(error)
    if frame is None:
        return line
    file = Path(frame.filename).relative_to(folder)
    return f"{file}:{frame.lineno}: {line}"


def _train(rundir: RunDir, attempt: Attempt, options: dict[str, Any], stopping: Stop) -> None:
    run = build_own(OwnSpec(rundir.read_spec()))
    code = Code(Path(run.code["folder"]), run.code["files"])
    attempt.begin(
        options,
        device=options["device"],
        threads=options["threads"],
        packages=("ablate-sweep", "numpy", *run.code["packages"]),
        digest=code_digest(Path(__file__).parents[2]),
        from_step=0,
        seed=run.seed,
        plugins={"trainer": code.digest},
    )
    handle = Handle(run, rundir, options, stopping, attempt.note)
    os.environ.update(_meeting(len(handle.devices)))
    try:
        if run.spec.is_command:
            rundir.lock.note(phase="train")
            Command(run, rundir, handle, attempt, options, stopping).train()
        else:
            with stopping.noting_arrivals():
                _call(run, rundir, handle, code, options)
            if handle.knows_of_stop or stopping.was_handled_elsewhere():
                rundir.say(
                    "stopped before its training ended: the next `ablate sweep` starts it again"
                )
                raise TrainingStopped
        if handle.ended is not None:
            raise handle.ended
        result = handle.finished()
    except Ended as end:
        if end.result is None:
            raise TrainingStopped from None
        result = end.result
    except (Exception, SystemExit) as error:
        if stopping.was_asked():  # however its code ends when it is asked to
            if not isinstance(error, TrainingStopped):
                rundir.say(f"stopped: it ended with {faults.line(error)}")
            raise TrainingStopped from error
        if isinstance(error, SystemExit):
            raise RuntimeError(f"the trainer called sys.exit({error.code!r})") from error
        raise
    if result is None:
        if stopping():
            raise TrainingStopped
        keys = ", ".join(f"{key}=..." for key in keys_of(run))
        raise UserError(f"{run.spec.trainer} returned without a result: call run.result({keys})")
    if code.unforeseen:
        files = ", ".join(code.unforeseen)
        rundir.say(
            f"warning: {files} was imported, but no import statement that ablate can read names "
            f"it, so an edit of it makes no new runs"
        )
        attempt.note(plugins={"trainer": code.digest})
    if result["status"] == "finished":
        result |= run.spec.result_of(handle.lines())
    attempt.finish(result | _provenance(run, handle, attempt))


def _meeting(world: int) -> dict[str, str]:
    """Return the environment variables by which the processes of a run on several devices find one
    another, as torchrun sets them. The trainer starts these processes, and gives each its RANK."""
    if world == 1:
        return {}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        _, port = free.getsockname()
    return {
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _call(
    run: OwnRun, rundir: RunDir, handle: Handle, code: Code, options: Mapping[str, Any]
) -> None:
    """Train by calling the function, in a folder of the run's own."""
    if not rundir.checkpoints():  # what an attempt left that this one can't go on from
        shutil.rmtree(rundir.scratch, ignore_errors=True)
    rundir.scratch.mkdir(exist_ok=True)
    rundir.lock.note(phase="import")
    os.register_at_fork(after_in_child=lambda: _leave_to_parent(rundir))
    with contextlib.chdir(rundir.scratch), code.importing(run.trainer["name"]) as function:
        _seed(handle, options)
        rundir.lock.note(phase="train")
        try:
            function({key: run.trainer[key] for key in run.keys}, handle)
        except Exception:
            if handle.ended is None:
                raise


def _leave_to_parent(rundir: RunDir) -> None:
    """Give up, in a process that the trainer forked, what belongs to its parent: the run's lock,
    which must not stay held when the parent is killed; the file of signals that arrive there; and
    the threads of torch's pool, see `renew_threads`."""
    rundir.lock.release()
    signal.set_wakeup_fd(-1)
    if "torch" in sys.modules:  # a trainer may do without
        from ablate.training.ranks import renew_threads

        renew_threads()


def _seed(handle: Handle, options: Mapping[str, Any]) -> None:
    """Seed the global generators of the libraries that are loaded from the run's seed."""
    seed = handle.key_of("global")
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
        sys.modules["torch"].set_num_threads(options["threads"])


def _provenance(run: OwnRun, handle: Handle, attempt: Attempt) -> dict[str, Any]:
    """Return the entries of a result that say what it declares and cost, which code made it, and on
    what device."""
    interpreter = attempt.facts.get("interpreter", {})
    usage_target = resource.RUSAGE_SELF
    provenance: dict[str, Any] = {}
    if interpreter:  # a program trained, in a process of its own
        usage_target = resource.RUSAGE_CHILDREN
        provenance["interpreter"] = _interpreter_text(interpreter)
    provenance |= {
        "declared": keys_of(run),
        "metrics_sha256": handle.metrics_sha256(),
        "seconds": handle.seconds,
        "peak_bytes": 1024 * resource.getrusage(usage_target).ru_maxrss,
    }
    provenance |= attempt.code(["trainer"])
    provenance |= {
        "device": _device(handle),
        "ranks": len(handle.devices),
        "threads": handle.threads,
    }
    return provenance


def _interpreter_text(interpreter: Mapping[str, Any]) -> str:
    """Return "python 3.11.4, torch 2.13.0, numpy 2.3.0": a program's interpreter, or its path where
    it is no Python, and the packages that its code imports."""
    name = str(interpreter.get("path"))
    if "python" in interpreter:
        name = f"python {interpreter['python']}"
    versions = [f"{name} {version}" for name, version in interpreter.get("packages", {}).items()]
    return ", ".join([name, *versions])


def keys_of(run: OwnRun) -> list[str]:
    """Return the keys of the run's declared metrics."""
    return [metric["key"] for metric in run.metrics]


def _device(handle: Handle) -> str:
    """Return the GPUs' names where the trainer has loaded torch, else the kind of device."""
    torch = sys.modules.get("torch")
    if handle.device == "cuda" and torch is not None and torch.cuda.is_available():
        return device_names(map(torch.cuda.get_device_name, handle.devices))
    return handle.device
