"""The fork server: `python -m ablate.running.launchers.server [tied]`.

It loads the training half once, by name, before the first request that needs it: a sweep of
programs starts without torch. It reads requests from the socket that is its standard input, JSON,
one a packet (see `fork`, the other end):

    {"load": "torch"}                                        load the training half now
    {"run": folder, "log": file, "environment", "options"}   fork a process that trains it; when it
                                                             ends, send {"run": id, "exit": code}
    {"run": id, "signal": number}                            pass a signal to that process
    {"ask": verb, "environment"}, with two files             fork one that answers a question

When the socket closes, its driver is gone or done: the server ends, and the workers continue; with
`tied` they are asked to stop.

Used by running/launchers/fork.py, which starts it as a process: a change of the requests needs
both. What it runs is `work` in training/worker.py and `answer` in training/answers.py.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ablate.run import RunDir
from ablate.running.launchers.fork import NOTHING_ELSE
from ablate.shared import (
    Failure,
    NoRoom,
    UserError,
    adopt_orphans,
)

Work = Callable[[str, dict[str, Any]], int]  # trains the run of a folder; returns the exit code

IMPORT_S = 120.0  # for the file of a part and what it imports


def serve(tied: bool) -> None:
    if tied:  # children inherit it: Slurm signals every process of a job, and the pilot listens
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    line = socket.socket(fileno=0)
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    adopt_orphans()  # what a worker that was killed leaves is then this process's to end
    children: dict[int, Path | None] = {}  # folders of runs; None: it answers a question
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 1 << 12)
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # there are no children
                break
            if ended is None:
                break
            with contextlib.suppress(ProcessLookupError):  # what a worker started ends with it,
                os.killpg(ended.si_pid, signal.SIGKILL)  # while nobody else can have its number
            pid, status = os.waitpid(ended.si_pid, 0)
            _end_orphans(children)
            if pid not in children:  # an orphan
                continue
            folder = children.pop(pid)
            if folder is not None:
                answer = {"run": folder.name, "exit": os.waitstatus_to_exitcode(status)}
                with contextlib.suppress(OSError):  # the driver is gone, which is noticed below
                    line.send(json.dumps(answer).encode())
        if 0 in ready:
            content, files = b"", list[int]()
            with contextlib.suppress(ConnectionError):
                content, files, _, _ = socket.recv_fds(line, 1 << 18, 2)
            if not content:
                for pid, folder in children.items() if tied else ():
                    if folder is not None and RunDir(folder).lock.is_held():
                        RunDir(folder).ask_to_stop()
                    os.kill(pid, signal.SIGTERM)
                return
            match json.loads(content):
                case {"run": run, "signal": number}:  # not yet reaped: the pid is still the child's
                    for pid, folder in children.items():
                        if folder is not None and folder.name == run:
                            os.kill(pid, number)
                case {"load": "torch"}:
                    _worker()
                case {"ask": verb, "environment": environment}:
                    answer_it = partial(_answer, _worker().answer, verb, environment, *files)
                    children[_forked(answer_it)] = None
                case request:
                    train_it = partial(_train, work_on(request["run"]), request)
                    with _stop_held_back():
                        pid = _forked(train_it)
                    children[pid] = Path(request["run"])
            for file in files:
                os.close(file)


@functools.cache
def _worker() -> Any:
    """Load the training half, with torch; return `ablate.training.worker`."""
    try:
        worker = importlib.import_module("ablate.training.worker")
    except (MemoryError, ImportError, OSError) as error:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            raise
        sys.exit(
            f"ablate: workers can't load torch within the memory limit of this shell "
            f"({limit / 1e9:.1f} GB): {type(error).__name__}; raise it, as by `ulimit -v unlimited`"
        )
    worker.preload()
    gc.collect()
    gc.freeze()  # or every child's collector touches, and so copies, all of this process's pages
    return worker


def work_on(folder: str, load_worker: Callable[[], Any] = _worker) -> Work:
    """Return the function that trains the run in a folder. Only one that wants torch loads the
    worker, and torch."""
    own_work = importlib.import_module("ablate.training.own.work")
    spec = own_work.own_spec(folder)
    try:
        wants_torch = spec is None or spec.wants_torch
    except (KeyError, TypeError):  # run.json was edited: its worker fails, and this process lives
        wants_torch = True
    if wants_torch:
        work: Work = load_worker().work
        return work
    return partial(own_work.work, spec=spec)


def _end_orphans(children: Collection[int]) -> None:
    """Kill the children of this process that it did not fork: their worker is dead."""
    ours = os.getpid()
    for process_folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent = int((process_folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
            if parent == ours and int(process_folder.name) not in children:
                os.kill(int(process_folder.name), signal.SIGKILL)


def _forked(live: Callable[[], int]) -> int:
    """Fork a child that calls `live` and exits with the code that it returns. Returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        code = live()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):  # a full disk must not change the exit code
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


@contextlib.contextmanager
def _stop_held_back() -> Iterator[None]:
    """Let SIGTERM wait, in a process that is forked within the block, until `attempt.stop_signals`
    listens: a driver that stops while this process still loads torch sends it right after the
    request to train, and a worker that it killed would count as dead."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _files(*files: int) -> None:
    """Make these the only open files, numbered from 0."""
    for target, source in enumerate(files):
        os.dup2(source, target)
    os.closerange(len(files), 1024)


def _train(work: Work, request: dict[str, Any]) -> int:
    """Train a run in a session of its own, with nothing inherited."""
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    _files(os.open(os.devnull, os.O_RDONLY), log, log)
    os.environ.update(request["environment"])
    return work(request["run"], {**request["options"], "forked": True})


def _answer(
    answer: Callable[..., dict[str, Any]],
    verb: str,
    environment: dict[str, str],
    channel: int,
    output: int,
) -> int:
    """Answer the question that comes on the channel, JSON lines both ways. The output of libraries
    goes to `output`."""
    _files(os.open(os.devnull, os.O_RDONLY), output, output, channel)
    os.environ.update(environment)
    asker = socket.socket(fileno=3)

    def tell(**message: Any) -> None:
        asker.sendall(json.dumps(message).encode() + b"\n")

    tell(begun=True)
    with asker.makefile("rb") as lines:
        question = json.loads(lines.readline())
    threading.Thread(target=_end_with, args=(asker,), daemon=True).start()

    def progress(count: int, total: int) -> None:
        tell(done=count, total=total)

    try:
        tell(answer=answer(verb, question, progress, partial(importing, tell)))
    except UserError as error:
        tell(mistake=str(error))
    except NoRoom as error:
        tell(full=str(error), needed=error.bytes_needed)
    except Failure as error:
        tell(failure=str(error))
    return 0


@contextlib.contextmanager
def importing(tell: Callable[..., None], what: str, within_s: float = IMPORT_S) -> Iterator[None]:
    """Report over `tell` that `what` is being imported while the block runs, so that the process at
    the other end can name it should the import end this process.

    An import that takes longer than `within_s` seconds is reported as the user's mistake, and ends
    this process.
    """

    def give_up() -> None:
        minutes = f"{within_s / 60:g} minutes"
        tell(mistake=f"{what}: its import goes on for more than {minutes}; {NOTHING_ELSE}")
        os._exit(1)

    tell(importing=what)
    timer = threading.Timer(within_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        tell(importing="")


def _end_with(asker: socket.socket) -> None:
    """End this process when the asker's end of the channel closes. The asker sends nothing more, so
    any news is that it is gone."""
    with contextlib.suppress(OSError):
        asker.recv(1)
    os._exit(1)


if __name__ == "__main__":
    serve("tied" in sys.argv[1:])
