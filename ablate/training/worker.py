"""The training half's door. Reached by name, never by import.

`work` trains the run of one folder. `answer` tells what only torch or the data can tell, JSON both
ways: `describe` (sizes and costs of specs), `prepare` (decode a dataset), `rehearse` (train a few
steps, compare with others), `deterministic` (what deterministic algorithms cost).
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import os
import platform
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from ablate.shared import choices, decoded, spec
from ablate.shared.build import build_run
from ablate.shared.errors import Failure, NoRoom, UserError
from ablate.shared.files import FULL, read_json, to_json, write_whole
from ablate.shared.rundir import (
    DISK_FULL,
    EXIT_DISK_FULL,
    EXIT_TAKEN,
    FAILED,
    LOST,
    OOM,
    ROTTEN,
    STOPPED,
    RunDir,
)
from ablate.shared.signals import noted
from ablate.training import resume_check
from ablate.training.calibrate import seconds_per_step
from ablate.training.data.building import shown
from ablate.training.data.cache import count, look, prepare
from ablate.training.loop import Machine, Stopped, train
from ablate.training.model.attention import kernel
from ablate.training.model.count import describe
from ablate.training.model.plugin import digest
from ablate.training.training import DTYPES

EXIT_STOPPED, EXIT_FAILED, EXIT_OOM, EXIT_LOST, EXIT_ROTTEN = 76, 1, 71, 72, 73
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
    """For whoever forks workers: with its first optimiser torch loads another second of modules,
    and what the platform is takes a process, whose fork would hold the worker's lock for a moment.
    """
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    platform.platform()  # kept by the module


def work(path: str, options: dict[str, Any]) -> int:
    """Train the run in the folder `path`; returns the exit code.

    `options`: device ("cpu" | "cuda"), threads, cache (folder), checkpoint_s, slot. Takes the
    folder's lock first; one that finds it taken returns EXIT_TAKEN. Why it left without a result
    stands in the lock's notes, for whoever drives by then.
    """
    rundir = RunDir(Path(path))
    with stop_signals() as stopping:
        if not rundir.lock.acquire(wait_s=1.0):  # a probe holds it for a moment
            return EXIT_TAKEN
        attempt = Attempt(rundir)
        try:
            rundir.lock.note(pid=os.getpid(), slot=options["slot"], phase="start")
            if not rundir.has_result():
                _train(rundir, attempt, options, stopping)
            return 0
        except Stopped:
            return _left(attempt, EXIT_STOPPED, STOPPED)
        except Damaged as error:
            return _left(attempt, EXIT_ROTTEN, ROTTEN, error)
        except torch.OutOfMemoryError as error:
            return _left(attempt, EXIT_OOM, OOM, error)
        except OSError as error:
            if error.errno in FULL:
                return _left(attempt, EXIT_DISK_FULL, DISK_FULL, error)
            return _left(attempt, *_reason(error), error)
        except Exception as error:
            return _left(attempt, *_reason(error), error)
        finally:
            rundir.lock.release()


def _reason(error: Exception) -> tuple[int, str]:
    """Host memory that ran out is no class of its own in torch; a device that is gone, or that
    went wrong in a kernel, is: no process that used it can go on."""
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate" in str(error):
        return EXIT_OOM, OOM
    if isinstance(error, torch.AcceleratorError):
        return EXIT_LOST, LOST
    return EXIT_FAILED, FAILED


def _left(attempt: Attempt, code: int, reason: str, error: Exception | None = None) -> int:
    why = {} if error is None else {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
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
    device = torch.device(options["device"])
    run = build_run(rundir.read_spec())
    attempt.note(
        at=time.time(),
        pid=os.getpid(),
        slot=options["slot"],
        from_step=max((step for step, _ in rundir.checkpoints()), default=0),
        seed=run.seed,
        fingerprint=run.data.fingerprint,
        kernel=kernel(device, DTYPES[run.train.precision]),
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
            own = {
                kind: version for kind in choices.CHOICES if (version := digest(getattr(run, kind)))
            }
            attempt.note(from_step=notes["step"], plugins=own)
            notes |= {"from_step": notes["step"], "from_at": time.time()}
        rundir.lock.note(**notes)

    machine = Machine(
        device=device,
        cache=Path(options["cache"]),
        checkpoint_s=options["checkpoint_s"],
        stopping=stopping,
        beat=beat,
        say=rundir.say,
    )
    home = machine.cache / run.data.fingerprint
    opened = decoded.stamp(home)
    try:
        result = train(run, rundir, machine)
    except Stopped:
        if opened not in (None, decoded.stamp(home)):
            rundir.drop_checkpoints()
        raise
    check_data(rundir, home, opened, max(CHECK_S, CHECK_SHARE * result["seconds"]))
    line = attempt.lineage()
    result |= {
        "digest": joined(other.get("digest", "unknown") for other in line),
        "plugins": {
            kind: joined(other.get("plugins", {}).get(kind) for other in line)
            for kind in choices.CHOICES
        },
        "fingerprint": run.data.fingerprint,
        "device": attempt.facts["device"],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **decoded.facts(read_json(machine.cache / run.data.fingerprint / decoded.META)),
    }
    attempt.end("result")  # the last word in env.json, which the result seals
    result["env_sha256"] = hashlib.sha256(rundir.env.read_bytes()).hexdigest()
    write_whole(rundir.result, to_json(result))
    rundir.drop_checkpoints()


class Damaged(Exception):
    """What the run was trained on is not what was decoded: it begins again."""


def check_data(rundir: RunDir, home: Path, opened: tuple[int, int] | None, within_s: float) -> None:
    """Raises Damaged where the set in `home` rotted since it was opened, or was decoded again
    because another worker found that. Then it counts as none, and nothing goes on from it."""
    if opened not in (None, decoded.stamp(home)):
        rundir.drop_checkpoints()
        raise Damaged(f"{home}: was found damaged and decoded again while this run trained on it")
    wrong = decoded.damage(home, within_s)
    if wrong in (None, decoded.OLDER):
        return
    decoded.discard(home.parent, home.name)
    decoded.begin_again(rundir.path.parent, home.name)
    rundir.drop_checkpoints()
    raise Damaged(f"{home}: {wrong}; this run was trained on it, and begins again")


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


# --- Questions ----------------------------------------------------------------------------------

Progress = Callable[[int, int], None]


def answer_describe(question: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{"specs": {key: tree}, "calibrate": [key], "cache": folder, "device"} -> {key: answer}.

    Of each spec `parameters`, `multiply_adds`, `groups` (see model.count), `warnings` and
    `examples` (images a split; null where only fetching the set would tell); of those to calibrate
    `step_s`, the seconds of a step here, with as many threads as a worker has.
    """
    device = torch.device(question["device"])
    torch.set_num_threads(1 if device.type == "cpu" else 4)
    cache, counts, answers = Path(question["cache"]), {}, {}
    for key, tree in question["specs"].items():
        run = build_run(tree)
        if run.data.fingerprint not in counts:
            counts[run.data.fingerprint] = count(run.data, cache)
        examples = counts[run.data.fingerprint]
        if examples and run.train.batch > examples["train"]:
            raise UserError(
                f"train.batch: {run.train.batch} is more than the {examples['train']} training "
                f"images of data={run.data.name}; give at most {examples['train']}"
            )
        with blaming(run):
            answers[key] = describe(run) | {"examples": examples, "warnings": slow(run, device)}
        if key in question["calibrate"] and examples is not None:  # else no time can be told
            answers[key]["step_s"] = seconds_per_step(run, device, answers[key]["multiply_adds"])
    return answers


def slow(run: spec.Run, device: torch.device) -> list[str]:
    """What makes a run slower here than it need be, in words."""
    bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if device.type == "cpu" and run.train.precision == "bf16" and not bfloat16:
        return ["train.precision=bf16 is slow here: this CPU has no instructions for it; give fp32"]
    return []


@contextmanager
def blaming(run: spec.Run) -> Iterator[None]:
    """What goes wrong in a model with a class of the user's own is the user's to mend."""
    own = {
        f"{kind}: {chosen.name}": chosen.plugin.folder
        for kind in choices.CHOICES
        if (chosen := getattr(run, kind)).plugin is not None
    }
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not own:
            raise
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [f for f in frames if f.filename.startswith(tuple(own.values()))]
        where = (theirs or frames)[-1]
        raise UserError(
            f"{', '.join(own)}: {type(error).__name__}: {' '.join(str(error).split())} "
            f"({where.filename}, line {where.lineno})"
        ) from error


def answer_prepare(question: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{"spec": tree, "cache": folder} -> {"examples": counts, "folder", "whole", "done", "size",
    "free"}; see cache.Look, sizes are texts. `progress(done, total)` is called now and then.

    With "look": true nothing is decoded: this is what there is.
    """
    last = 0.0

    def report(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5 or done == total:
            last = time.monotonic()
            progress(done, total)

    data, cache = build_run(question["spec"]).data, Path(question["cache"])
    if not question.get("look"):
        prepare(data, cache, report)
    found = look(data, cache)
    place = next(folder for folder in (cache, *cache.absolute().parents) if folder.is_dir())
    return {
        "examples": found.counts,
        "folder": str(found.folder),
        "whole": found.whole,
        "done": found.done,
        "size": None if found.bytes is None else shown(found.bytes),
        "free": shown(shutil.disk_usage(place).free),
    }


def answer_rehearse(question: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{"spec": tree, "cache", "device", "folder", "until": step, "halfway": folder | null,
    "against": folder | null} -> what `rehearsal.leg` says of `folder`. In `halfway` the same is
    then stopped at half its steps; `against`: "compared", what `rehearsal.compare` says."""
    run, device = build_run(question["spec"]), resume_check.set_up(question["device"])
    folder, cache = Path(question["folder"]), Path(question["cache"])
    with blaming(run):
        answer = resume_check.leg(run, folder, cache, device, question["until"])
        if question["halfway"] is not None:
            resume_check.leg(run, Path(question["halfway"]), cache, device, answer["step"] // 2)
    if question["against"] is not None:
        answer["compared"] = resume_check.compare(Path(question["against"]), folder)
    return answer


def answer_deterministic(question: dict[str, Any], progress: Progress) -> dict[str, float]:
    """{"spec": tree, "device"} -> {"ratio"}: see rehearsal.deterministic_ratio."""
    run, device = build_run(question["spec"]), resume_check.set_up(question["device"])
    return {"ratio": resume_check.deterministic_ratio(run, device)}


ANSWERS = {
    "describe": answer_describe,
    "prepare": answer_prepare,
    "rehearse": answer_rehearse,
    "deterministic": answer_deterministic,
}


def answer(verb: str, question: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """One of the answers above. Raises UserError for the user's mistakes, NoRoom where the disk is
    full, Failure for anything else, in one line each."""
    try:
        return ANSWERS[verb](question, progress)
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            line = f"{error.filename or 'the store'}: {os.strerror(errno.ENOSPC)}"
            raise NoRoom(line, getattr(error, "needed", 0)) from error
        line = "".join(traceback.format_exception_only(error)).splitlines()[-1]
        raise Failure(f"worker {verb}: {line}") from error
