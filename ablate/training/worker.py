"""The training half's door. Reached by name, never by import.

`work` trains the run of one folder. `answer` answers questions of the control half: see
`ablate.training.answers`.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.metadata
import math
import os
import platform
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ablate.shared import choices, decoded
from ablate.shared.build import build_run
from ablate.shared.files import FULL, read_json, to_json, write_whole
from ablate.shared.rundir import (
    CHECK,
    DISK_FULL,
    EXIT_DISK_FULL,
    EXIT_TAKEN,
    FAILED,
    LOST,
    NO_DEVICE,
    OOM,
    ROTTEN,
    STOPPED,
    RunDir,
)
from ablate.shared.signals import noted
from ablate.shared.spec import Run
from ablate.training import faults, memory
from ablate.training.answers import answer as answer
from ablate.training.data.picture import Broken
from ablate.training.loop import Machine, TrainingStopped, train
from ablate.training.model.plugin import digests
from ablate.training.numerics import chosen, device_of
from ablate.training.start import start_sha256

EXIT_STOPPED, EXIT_FAILED, EXIT_ROTTEN = 76, 1, 73
EXITS = {FAILED: EXIT_FAILED, OOM: 71, LOST: 72, NO_DEVICE: 77}
CHECK_S, CHECK_SHARE = 2.0, 0.02  # for a look at the data at a run's end, or of its time, if more


def _digest() -> str:
    """What code trains: a hash of the two folders that a worker loads, taken when it did."""
    package = Path(__file__).parent.parent
    text = hashlib.sha256()
    for folder in ("shared", "training"):
        for file in sorted((package / folder).rglob("*.py")):
            text.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes())
    return text.hexdigest()[:16]


DIGEST = _digest()


def preload() -> None:
    """For whoever forks workers: what the platform is takes a process, whose fork would hold the
    worker's lock for a moment."""
    platform.platform()  # kept by the module


def work(path: str, options: dict[str, Any]) -> int:
    """Train the run in the folder `path`; returns the exit code.

    `options`: see `launchers.worker_options`. Takes the
    folder's lock first; one that finds it taken returns EXIT_TAKEN. Why it left without a result
    stands in the lock's notes, for whoever drives by then.
    """
    rundir = RunDir(Path(path))
    with stop_signals() as stopping:
        if not rundir.lock.acquire(wait_s=1.0):  # a probe holds it for a moment
            return EXIT_TAKEN
        attempt = Attempt(rundir)
        try:
            rundir.lock.note(
                pid=os.getpid(), host=platform.node(), slot=options["slot"], phase="start"
            )
            if not rundir.has_result():
                _train(rundir, attempt, options, stopping)
            return 0
        except TrainingStopped:
            return _left(attempt, EXIT_STOPPED, STOPPED)
        except Damaged as error:
            return _left(attempt, EXIT_ROTTEN, ROTTEN, error)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in FULL:
                return _left(attempt, EXIT_DISK_FULL, DISK_FULL, error)
            reason = faults.whose(error, options["device"])
            return _left(attempt, EXITS[reason], reason, error)
        finally:
            rundir.lock.release()


def _left(attempt: Attempt, code: int, reason: str, error: Exception | None = None) -> int:
    why = {} if error is None else {"error": faults.line(error)}
    with suppress(OSError):  # on a full disk; the exit code says it, too
        attempt.rundir.lock.note(exit=reason, **why)
    attempt.end(reason, **why)
    if error is not None:
        with suppress(OSError):  # log.txt is on the same disk
            traceback.print_exception(error)
    return code


class Attempt:
    """What this worker notes of itself in the run's `env.json`, behind those that tried before."""

    def __init__(self, rundir: RunDir) -> None:
        self.rundir = rundir
        self.before = rundir.read_attempts()
        self.facts: dict[str, Any] = {}

    def note(self, **facts: Any) -> None:
        """Add facts; the file is whole at every moment."""
        if self.facts | facts != self.facts:
            self.facts |= facts
            self.rundir.write_attempts([*self.before, self.facts])

    def end(self, exit: str, **why: str) -> None:
        """The last word of one that had begun. A full disk must not change how a worker leaves."""
        if self.facts:
            with suppress(OSError):
                self.note(exit=exit, ended=time.time(), **why)

    def lineage(self) -> list[dict[str, Any]]:
        """Those whose work is in this one's, oldest first: each went on from a checkpoint of the
        one before it. {} is first where nobody noted who began."""
        line = [self.facts]
        for other in reversed(self.before):
            if other.get("from_step", 0) < line[0]["from_step"]:
                line.insert(0, {"from_step": 0, **other})
        return line if line[0]["from_step"] == 0 else [{}, *line]


def _train(
    rundir: RunDir, attempt: Attempt, options: dict[str, Any], stopping: Callable[[], bool]
) -> None:
    torch.set_num_threads(options["threads"])
    device = device_of(options["device"])
    run = build_run(rundir.read_spec())
    if rundir.distrust.exists():
        rundir.drop_checkpoints()
    settled = options.get("settled") or {}
    memory.limit(device, options.get("share", 1.0))
    numerics = asdict(chosen(run, device, settled))
    attempt.note(
        at=time.time(),
        pid=os.getpid(),
        slot=options["slot"],
        from_step=rundir.newest_step(),
        seed=run.seed,
        fingerprint=run.data.fingerprint,
        **numerics,
        plugins={},
        origin=options.get("origin"),
        **environment(device),
    )
    trains = False

    def beat(**notes: Any) -> None:
        """The first step tells which checkpoint was whole; by then plug-ins are loaded."""
        nonlocal trains
        if "step" in notes and not trains:
            trains = True
            attempt.note(from_step=notes["step"], plugins=digests(run))
            notes |= {"from_step": notes["step"], "from_at": time.time()}
        rundir.lock.note(**notes)

    machine = Machine(
        device=device,
        cache=Path(options["cache"]),
        checkpoint_s=options["checkpoint_s"],
        stopping=stopping,
        beat=beat,
        say=rundir.say,
        settled=settled,
    )
    home = machine.cache / run.data.fingerprint
    opened = decoded.stamp(home)
    try:
        result = train(run, rundir, machine)
    except TrainingStopped:
        if rundir.distrust.exists() or opened not in (None, decoded.stamp(home)):
            rundir.drop_checkpoints()
        raise
    except Broken:  # a file's own bytes, which were an image when they were kept
        check_data(rundir, home, opened, math.inf)
        for other in run.eval.also:
            check_tested(machine.cache / other.fingerprint, math.inf)
        raise
    if device.type == "cuda":
        gc.collect()  # the training is in cycles
        torch.cuda.empty_cache()
    rundir.lock.note(phase=CHECK)
    within_s = max(CHECK_S, CHECK_SHARE * result["seconds"])
    check_data(rundir, home, opened, within_s)
    for other in run.eval.also:
        check_tested(machine.cache / other.fingerprint, within_s)
    result |= _where(run, rundir, attempt, machine.cache) | numerics
    attempt.end("result")  # the last word in env.json, which the result seals
    result["env_sha256"] = hashlib.sha256(rundir.env.read_bytes()).hexdigest()
    write_whole(rundir.result, to_json(result))
    rundir.drop_checkpoints()


def _where(run: Run, rundir: RunDir, attempt: Attempt, cache: Path) -> dict[str, Any]:
    """Of a result: by which code, of which data, from which weights, on what."""
    line = attempt.lineage()
    return {
        "digest": joined(other.get("digest", "unknown") for other in line),
        "plugins": {
            kind: joined(other.get("plugins", {}).get(kind) for other in line)
            for kind in (*choices.CHOICES, *(["optim"] if run.optim.folder else []))
        },
        "fingerprint": run.data.fingerprint,
        "start_sha256": start_sha256(run, rundir),
        "device": attempt.facts["device"],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **decoded.facts(read_json(cache / run.data.fingerprint / decoded.META)),
    }


class Damaged(Exception):
    """What the run was trained on is not what was decoded: it begins again."""


def check_data(rundir: RunDir, home: Path, opened: tuple[int, int] | None, within_s: float) -> None:
    """Raises Damaged where the set in `home` rotted since it was opened, or was decoded again
    because another worker found that. Then it counts as none, and nothing goes on from it."""
    if rundir.distrust.exists() or opened not in (None, decoded.stamp(home)):
        rundir.drop_checkpoints()
        raise Damaged(f"{home}: was found damaged and decoded again while this run trained on it")
    wrong = decoded.damage(home, within_s)
    if wrong in (None, decoded.OLDER):
        return
    decoded.begin_again(rundir.runs, home.name)
    decoded.discard(home.parent, home.name)
    rundir.drop_checkpoints()
    raise Damaged(f"{home}: {wrong}; this run was trained on it, and begins again")


def check_tested(home: Path, within_s: float) -> None:
    """`check_data`, of a set that the finished model was tested on beside its own: its training is
    sound, and is gone on with from its last checkpoint."""
    wrong = decoded.damage(home, within_s)
    if wrong not in (None, decoded.OLDER):
        decoded.discard(home.parent, home.name)
        raise Damaged(f"{home}: {wrong}; this run was tested on it, and is tested again")


def joined(digests: Iterable[str | None]) -> str | None:
    """All that took part, each once, in order: "d1+d2"; None for none."""
    return "+".join(dict.fromkeys(filter(None, digests))) or None


PACKAGES = (
    "ablate-sweep",
    "torch",
    "numpy",
    "safetensors",
    "kornia",
    "datasets",
    "pyarrow",
    "pillow",
    "scikit-learn",
    "mlxtend",
)


def environment(device: torch.device) -> dict[str, Any]:
    """Where and with what a run is trained."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "driver": driver() if cuda else None,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {package: installed(package) for package in PACKAGES},
        "threads": torch.get_num_threads(),
        "digest": DIGEST,
    }


def driver() -> str | None:
    """The version of NVIDIA's kernel driver, as it tells it; None where it doesn't."""
    with suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text().strip()
    return None


def installed(package: str) -> str | None:
    """Its version. A variant of it by another name is none: what trains needs no such record."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """SIGTERM and SIGINT ask to stop at the next step; the handlers before are put back."""
    heard: list[int] = []
    try:
        with noted(signal.SIGTERM, signal.SIGINT) as heard:
            yield lambda: bool(heard)
    finally:
        for number in heard:  # in the driver's own process the driver shall hear of it, too
            handler = signal.getsignal(number)
            if callable(handler) and handler is not signal.default_int_handler:
                handler(number, None)
