"""The entry to the training half. Reached by name, never by import.

`work` trains the run of one folder. `answer` answers questions of the control half: see
`ablate.training.answers`.

Used by running/launchers/server.py and running/launchers/local.py for every run of `ablate sweep`.
A new entry of `options` also needs its value in `worker_options` (running/launchers/__init__.py).
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ablate.data import BrokenImage
from ablate.run import (
    CHECK_PHASE,
    CHOICES,
    META_FILE,
    OOM,
    RANK_LOST,
    Run,
    RunDir,
    build_run,
    decoded,
    decoding_facts,
)
from ablate.shared import read_json
from ablate.training import calibrate, faults
from ablate.training.answers import answer as answer
from ablate.training.attempt import (
    EXITS,
    Attempt,
    Damaged,
    TrainingStopped,
    code_digest,
    device_names,
    exit_code_and_reason,
    hold,
    leave,
)
from ablate.training.device import device_of
from ablate.training.loop import Machine, train
from ablate.training.numerics import choose
from ablate.training.own import work as own_work
from ablate.training.plugin import digests, own_folders
from ablate.training.ranks import Children, Loss, Ranks
from ablate.training.starting_weights import start_sha256

LESS_MEMORY = "give train.micro_batch=auto, or a smaller one"
LESS_THAN_AUTO = "give a smaller train.micro_batch"
CHECK_S, CHECK_SHARE = 2.0, 0.02  # for a look at the data at a run's end, or of its time, if more


def _digest() -> str:
    """Return `code_digest` of this package, taken when this module was loaded."""
    return code_digest(Path(__file__).parent.parent)


DIGEST = _digest()


def preload() -> None:
    """Prepare a process that forks workers: finding the platform starts a process, whose fork would
    hold the worker's lock for a moment."""
    platform.platform()  # kept by the module


def work(path: str, options: dict[str, Any]) -> int:
    """Train the run in the folder `path`; return the exit code. See `attempt.hold`."""
    own_spec = own_work.own_spec(path)
    if own_spec is not None:
        return own_work.work(path, options, own_spec)
    rundir = RunDir(Path(path))
    return hold(path, options, _train, lambda error: error_line(error, rundir))


def error_line(error: BaseException, rundir: RunDir) -> str:
    """Return `faults.line` of the error; where memory is short, with the setting that makes the run
    of this folder use less."""
    line = faults.line(error)
    row = faults.fault(error)
    if row is None or row.reason != OOM:
        return line
    micro_batch = None
    with contextlib.suppress(ValueError):
        micro_batch = rundir.read_spec()["train"]["micro_batch"]
    return f"{line}; {LESS_THAN_AUTO if micro_batch == 'auto' else LESS_MEMORY}"


def _train(
    rundir: RunDir, attempt: Attempt, options: dict[str, Any], stopping: Callable[[], bool]
) -> None:
    torch.set_num_threads(options["threads"])
    run, world = build_run(rundir.read_spec()), options.get("ranks", 1)
    machine = Machine(
        device=_device(options, 0),
        cache=Path(options["cache"]),
        checkpoint_s=options["checkpoint_s"],
        stopping=stopping,
        beat=rundir.lock.note,
        say=rundir.say,
        settled=options.get("settled") or {},
    )
    if world == 1:
        return _lead(run, rundir, attempt, options, machine)

    def follow(ranks: Ranks) -> None:
        device = _device(options, ranks.rank)
        calibrate.limit(device, options.get("share", 1.0), options.get("gpus", 1))
        train(run, rundir, machine.follower(ranks, device))

    def explain(error: Exception) -> Loss:
        return Loss(*exit_code_and_reason(error, options["device"]), error_line(error, rundir))

    children = Children(
        world,
        partial(_device, options),
        follow,
        lambda loss: leave(attempt, *loss),
        explain,
        Loss(EXITS[RANK_LOST], RANK_LOST, ""),
    )
    try:
        rundir.lock.note(ranks=" ".join(str(pid) for pid in children.pids))
        _lead(run, rundir, attempt, options, replace(machine, ranks=children.ranks))
    finally:
        children.end()


def _device(options: Mapping[str, Any], rank: int) -> torch.device:
    """Return the device of a rank: ranks take the devices that the worker sees in their order."""
    device = device_of(options["device"])
    if device.type == "cpu":
        return device
    return torch.device(device.type, rank)


def _names(devices: Iterable[torch.device]) -> str:
    """Return the names of all ranks' devices, each once; they are the same throughout a column of
    the same bits."""
    names = []
    for device in devices:
        if device.type == "cuda":
            names.append(torch.cuda.get_device_name(device))
        else:
            names.append("cpu")
    return device_names(names)


def _lead(
    run: Run, rundir: RunDir, attempt: Attempt, options: dict[str, Any], machine: Machine
) -> None:
    """Train the run, as the only rank or the first of several."""
    device, settled, world = machine.device, machine.settled, machine.ranks.world
    if rundir.distrust.exists():
        rundir.drop_checkpoints()
    calibrate.limit(device, options.get("share", 1.0), options.get("gpus", 1))
    numerics = asdict(choose(run, device, settled))
    attempt.begin(
        options,
        device=_names([_device(options, rank) for rank in range(world)]),
        ranks=world,
        threads=torch.get_num_threads(),
        packages=PACKAGES,
        digest=DIGEST,
        from_step=rundir.newest_step(),
        seed=run.seed,
        fingerprint=run.data.fingerprint,
        **numerics,
        plugins={},
    )
    trains = False

    def beat(**notes: Any) -> None:
        """Note what the run is doing. Its first step says which checkpoint was whole; by then
        plug-ins are loaded."""
        nonlocal trains
        if "step" in notes and not trains:
            trains = True
            attempt.note(from_step=notes["step"], plugins=digests(run))
            notes |= {"from_step": notes["step"], "from_at": time.time()}
        rundir.lock.note(**notes)

    machine = replace(machine, beat=beat)
    home = machine.cache / run.data.fingerprint
    opened, block_count = stamp(home), itertools.count(1)

    def beat_check() -> None:  # or a long look at the data would pass for a hang
        rundir.lock.note(beat=next(block_count))

    try:
        result = train(run, rundir, machine)
    except TrainingStopped:
        if rundir.distrust.exists() or opened not in (None, stamp(home)):
            rundir.drop_checkpoints()
        raise
    except BrokenImage:  # a file's own bytes, which were an image when they were kept
        rundir.lock.note(phase=CHECK_PHASE)
        check_data(rundir, home, opened, math.inf, beat_check)
        for test_set in run.eval.also:
            check_tested(machine.cache / test_set.fingerprint, math.inf, beat_check)
        raise
    if device.type == "cuda":
        gc.collect()  # the training is in cycles
        torch.cuda.empty_cache()
    rundir.lock.note(phase=CHECK_PHASE)
    within_s = max(CHECK_S, CHECK_SHARE * result["seconds"])
    check_data(rundir, home, opened, within_s, beat_check)
    for test_set in run.eval.also:
        check_tested(machine.cache / test_set.fingerprint, within_s, beat_check)
    result |= _provenance(run, rundir, attempt, machine.cache) | numerics
    if options.get("share", 1.0) < 1:  # then its seconds are those of others, too
        result["share"] = options["share"]
    attempt.finish(result)


def _provenance(run: Run, rundir: RunDir, attempt: Attempt, cache: Path) -> dict[str, Any]:
    """Return the entries of a result that say which code made it, from which data and starting
    weights, and on what device."""
    kinds = dict.fromkeys((*CHOICES, *own_folders(run)))
    return {
        **attempt.code(kinds),
        "fingerprint": run.data.fingerprint,
        "start_sha256": start_sha256(run, rundir),
        "device": attempt.facts["device"],
        "ranks": attempt.facts["ranks"],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **decoding_facts(read_json(cache / run.data.fingerprint / META_FILE)),
    }


def check_data(
    rundir: RunDir,
    home: Path,
    opened: tuple[int, int] | None,
    within_s: float,
    beat: Callable[[], None],
) -> None:
    """Raise Damaged where the set in `home` was damaged since it was opened, or was decoded again
    because another worker found that. Then the damaged set is discarded, the run's checkpoints are
    dropped, and the run begins again. `within_s`, `beat`: see `decoded.damage`."""
    if rundir.distrust.exists() or opened not in (None, stamp(home)):
        rundir.drop_checkpoints()
        raise Damaged(f"{home}: was found damaged and decoded again while this run trained on it")
    wrong = decoded.damage(home, within_s, beat)
    if wrong is None:
        return
    decoded.begin_again(rundir.runs, home.name)
    decoded.discard(home.parent, home.name)
    rundir.drop_checkpoints()
    raise Damaged(f"{home}: {wrong}; this run was trained on it, and begins again")


def check_tested(home: Path, within_s: float, beat: Callable[[], None]) -> None:
    """Check as `check_data` does, but a set other than its own on which the finished model was
    tested: its training is sound, so it continues from its last checkpoint."""
    wrong = decoded.damage(home, within_s, beat)
    if wrong is not None:
        decoded.discard(home.parent, home.name)
        raise Damaged(f"{home}: {wrong}; this run was tested on it, and is tested again")


PACKAGES = (
    "ablate-sweep",
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "datasets",
    "pyarrow",
    "pillow",
    "scikit-learn",
    "mlxtend",
)


def stamp(home: Path) -> tuple[int, int] | None:
    """Return a value that changes when the set is decoded again (inode and time of change of
    META_FILE); None while there is no set."""
    with contextlib.suppress(OSError):
        file_stat = (home / META_FILE).stat()
        return file_stat.st_ino, file_stat.st_mtime_ns
    return None
