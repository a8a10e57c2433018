"""The folder of one run: the names of its files, and how each is read and written.

The driver's half and the worker's half of the program both use it. Files are replaced whole, except
`metrics.jsonl` and `log.txt`, which are appended to.

The driver writes `run.json` before it starts the worker; the worker writes everything else, apart
from others' messages to it: `prune.json`, `stop.json` and `distrust`. Off the driver's host each
attempt has a folder of its own: see `ablate.running.attempts`. A run that `ablate merge` took from
a lean bundle has `thinned.json`: of each file that the bundle thinned or left out, the sha256 that
it had (`whole`) and the one that it has now (`kept`; null: there is no file). A run from
a bundle with whole files has `bundled`, an empty file.

The types of a result stand here, too: the keys that a worker writes into result.json, each with its
type.

Used by the driver (running/), by workers (training/attempt.py), and by every reader (store/,
report/, audit/). A new file of a run also needs its name in `_RUN_FILES`; a new key of result.json
its type in `_RESULT`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from ablate.run.metrics import TASKS, TaskChoice
from ablate.run.schema import fits_type
from ablate.shared import (
    Lock,
    is_number,
    is_shallow,
    make_folder,
    read_file,
    read_json,
    sha256_of,
    to_json,
    write_whole,
)

FINAL_STATUSES = ("finished", "diverged", "pruned")  # results: a retry would give the same bits


_SCORES = Mapping[str, float | None]
_SHARES = Mapping[Literal["train", "validation", "test"], tuple[int, int]]  # images, of how many
_NUMBERS = (
    *("step", "seconds", "train_loss", "prior_loss", "micro_batch", "threads", "parameters"),
    *("multiply_adds", "peak_bytes", "images_per_s", "utilisation", "ranks", "share"),
)
_TEXTS = (
    *("metrics_sha256", "predictions_sha256", "weights_sha256", "env_sha256", "start_sha256"),
    *("tokens_sha256", "kernel", "digest", "fingerprint", "device", "torch", "execution"),
)
_RESULT: dict[str, Any] = {
    **dict.fromkeys(_NUMBERS, float),
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(("collapsed", "deterministic", "tf32", "cudnn_benchmark"), bool),
    **dict.fromkeys(("test", "validation", "train"), _SCORES),
    **dict.fromkeys(("plugins", "probes_sha256"), Mapping[str, str | None]),
    **dict.fromkeys(("left_out", "overlap"), _SHARES),
    "also": Mapping[str, Mapping[str, Any]],
    "declared": tuple[str, ...],
}
# For each set in `also`: what the result holds of the run's own set, too.
_ALSO: dict[str, Any] = {
    **{"test": _SCORES, "predictions_sha256": str, "data_sha256": str},
    **dict.fromkeys(("left_out", "shared"), _SHARES | None),
}
# The scores that every finished run has, one set for each task: a result does not name its task.
_MEASURED = [{"n", *(m.key for m in task.metrics if not m.needs)} for task in TASKS.values()]


def parse_result(content: bytes) -> tuple[dict[str, Any] | None, str]:
    """Parse a file's bytes as a result. Return (result, ""), or (None, why no worker wrote it
    so)."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        return None, f"is no JSON ({error})"
    if not isinstance(tree, dict) or tree.get("status") not in FINAL_STATUSES:
        return None, f"has no status: expected one of {', '.join(FINAL_STATUSES)}"
    for key, value in tree.items():
        is_valid = fits_type(value, _RESULT[key] | None) if key in _RESULT else is_shallow(value)
        also = (value or {}).values() if key == "also" and is_valid else ()
        if not is_valid or not all(
            fits_type(set_result.get(k), t) for set_result in also for k, t in _ALSO.items()
        ):
            return None, f"{key}: {value!r:.60} is none that a result can hold"
    return tree, ""


def is_scored(result: Mapping[str, Any]) -> bool:
    """Return whether a result has the scores that tables and searches read of it."""
    if result["status"] != "finished":
        return True
    test = result.get("test") or {}
    if metric_names := result.get("declared"):  # by a trainer of the user's own
        return all(test.get(name) is not None for name in metric_names)
    return any(all(test.get(name) is not None for name in names) for names in _MEASURED)


RUNS_FOLDER = "runs"  # where the folders of a store's runs lie
ATTEMPTS_FOLDER = "attempts"  # where those of attempts off the driver's host lie: attempts/N/ID
SCRATCH_FOLDER = "scratch"

# The reasons that a worker without a result may note; any other end is a death of its own.
STOPPED = "stopped"  # asked to, checkpoint written
DISK_FULL = "disk full"
OOM = "oom"
DEVICE_LOST = "device lost"
RANK_LOST = "rank lost"  # of a run on several, which can't go on without it
RANK_KILLED = "rank killed"  # by a signal, as of a kernel that lacks memory
NO_DEVICE = "no device"  # it was gone, or never to be used: the run is not to blame
DATA_DAMAGED = "data damaged"
FAILED = "failed"  # an exception
WRONG_UNIT = "wrong unit"  # an exception, too: a metric's declaration is wrong, for every run
NO_WORD = "its worker died without an error message"  # where no note says why
CHECK_PHASE = (
    "check"  # the phase in which a worker looks at its data once more, its device left free
)
EXIT_DISK_FULL = 74  # EX_IOERR: what a full disk may have kept from the notes
EXIT_TAKEN = 75  # EX_TEMPFAIL: another worker holds this folder
# In place of the exit code of a worker whose place is gone. It counts as no attempt, and no process
# can exit with it.
EXIT_AWAY = 256


class Metrics:
    """The `metrics.jsonl` of a run in the hands of the worker that writes it.

    The worker keeps in memory what it wrote, and seals that: if the file is damaged during a
    training that takes a week, it is written again.
    """

    def __init__(self, path: Path, content: bytes = b"") -> None:
        """`content`: the lines that a resumed run continues, without those that it will write
        again."""
        self._path, self._content = path, bytearray(content)
        write_whole(path, content)

    def append(self, line: dict[str, Any], sync: bool = True) -> None:
        """Append a line to the file. `sync`: whether to make it survive a power cut now; otherwise
        call `Metrics.sync` before a checkpoint that relies on it."""
        new = json.dumps(line, allow_nan=False).encode() + b"\n"
        self._content += new
        with open(self._path, "ab") as file:
            file.write(new)
            file.flush()
            if sync:
                os.fsync(file.fileno())

    def sync(self) -> None:
        """Make the lines appended so far survive a power cut."""
        with open(self._path, "ab") as file:
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, Any]]:
        return parse_lines(self._content)

    def rewind(self, step: int) -> None:
        """Drop the lines after `step`."""
        self._content = bytearray(lines_until(self._content, step))
        write_whole(self._path, bytes(self._content))

    def seal(self) -> dict[str, Any]:
        """Return {"bytes": length, "sha256": hash} of all that was written. The file holds it by
        then: it is written again where it differs."""
        if not self._path.exists() or self._path.read_bytes() != self._content:
            write_whole(self._path, bytes(self._content))
        return {"bytes": len(self._content), "sha256": hashlib.sha256(self._content).hexdigest()}


def sealed_part(content: bytes, seal: Mapping[str, Any]) -> bytes | None:
    """Return the part of a `metrics.jsonl` that `seal`, made by `Metrics.seal`, covers; None where
    that part is damaged."""
    part = content[: seal["bytes"]]
    return part if hashlib.sha256(part).hexdigest() == seal["sha256"] else None


def parse_lines(content: bytes | bytearray) -> list[dict[str, Any]]:
    """Return every line that is a JSON object. A torn last line is left out."""
    lines = []
    for line in content.split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict)]


def lines_until(content: bytes | bytearray, step: int) -> bytes:
    """Return the lines of a `metrics.jsonl` up to `step`, that one included."""
    kept_lines = [
        line
        for line in parse_lines(content)
        if isinstance(line.get("step"), int) and line["step"] <= step
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in kept_lines)


class _File:
    """The path of a file, made only when it is read: stores have thousands of folders."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunDir, owner: type) -> Path:
        return folder.path / self.name


# Every file that ablate writes into the folder: gc keeps a folder with any other. Files that are
# taken along into bundles are in `audit.export`, too.
_RUN_FILES = re.compile(
    r"(run|env|result|prune|stop|thinned)\.json|metrics\.jsonl|log\.txt|lock|distrust|bundled|"
    r"scratch(\.\d+)?|(weights|checkpoint-\d+)\.safetensors|predictions(-.+)?\.npy|probe-.+\.npz|\..+\.\d+\.\d+"
)


class RunDir:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.own_lines: list[tuple[int, int]] = []  # in the log, of `say`: (begin, end) in bytes

    @functools.cached_property
    def lock(self) -> Lock:
        return Lock(self.path / "lock")

    run = _File("run.json")
    env = _File("env.json")
    metrics = _File("metrics.jsonl")
    result = _File("result.json")
    thinned = _File("thinned.json")
    bundled = _File("bundled")  # the word of `ablate merge` that it came from a bundle
    predictions = _File("predictions.npy")
    weights = _File("weights.safetensors")  # of the finished model
    log = _File("log.txt")
    scratch = _File(SCRATCH_FOLDER)  # a folder: of a trainer of the user's own
    prune = _File("prune.json")  # the driver's word that a trial is not worth going on
    stop = _File("stop.json")  # the word of whoever asked its worker to stop
    distrust = _File("distrust")  # somebody's word that it was half trained on damaged data

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def attempt(self) -> str | None:
        """The name "N/ID" of an attempt off the driver's host, from its path or from the link to it
        in `runs/`; None where the run is trained in its own folder."""
        attempt_name = _attempt_of(str(self.path))
        if attempt_name is None:
            with contextlib.suppress(OSError):
                return _attempt_of(os.readlink(self.path))
        return attempt_name

    def foreign(self) -> list[str]:
        """List the names in the folder that no run uses: files of somebody else."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return sorted(name for name in os.listdir(self.path) if not _RUN_FILES.fullmatch(name))
        return []

    @property
    def runs(self) -> Path:
        """The folder of all runs of its store. The run itself may lie elsewhere in the store."""
        above = self.path.parent.parent
        return (above.parent if _attempt_of(str(self.path)) is not None else above) / RUNS_FOLDER

    def of_parent(self, run: str) -> RunDir:
        """Return the folder of a run that this one starts from."""
        return RunDir(self.runs / run)

    def predictions_on(self, name: str) -> Path:
        """Return the path of the predictions on the set of `eval.also` with this name."""
        return self.predictions.with_name(f"{self.predictions.stem}-{name}.npy")

    def probe(self, name: str) -> Path:
        """Return the path of what a probe has measured. A probe of the user's own goes by the name
        of its class."""
        return self.path / f"probe-{name.rpartition(':')[2]}.npz"

    def hash_of(self, path: Path) -> str:
        """Return the sha256 of a file that the run left, in hex, before it was thinned. Raise
        OSError where it can't be read."""
        return self.whole_hash(path) or sha256_of(path)

    def whole_hash(self, path: Path) -> str | None:
        """Return the sha256 that a file had before a lean bundle thinned it or left it out.

        None for a whole file, and for a thinned one that was changed since.
        """
        match read_json(self.thinned):
            case dict(content):
                hashes = content.get(path.name)
            case _:
                return None
        present_hash = None
        if path.exists():
            present_hash = sha256_of(path)
        match hashes:
            case {"whole": str(whole_hash), "kept": kept_hash} if kept_hash == present_hash:
                return whole_hash
        return None

    def bundle_mark(self) -> str | Literal[True] | None:
        """Return what says that a run without weights came from a bundle: the sha256 of its
        `thinned.json`, or True where its files are whole; None for any other run."""
        if self.weights.exists():
            return None
        if self.thinned.exists():
            return sha256_of(self.thinned)
        return True if self.bundled.exists() else None

    def read_table(self, path: Path) -> Any:
        """Return the records of a file of predictions, as a numpy array."""
        import numpy as np

        return np.load(io.BytesIO(read_file(path)))

    def score(
        self, path: Path, task: TaskChoice, classes: int, result_metrics: Mapping[str, Any]
    ) -> dict[str, float]:
        """Compute the test metrics from a file of predictions. `result_metrics`: the metrics in the
        result, of which those are taken that a thinned file does not give."""
        if self.whole_hash(path) is None:
            return task.score(self.read_table(path), classes)
        numbers = {key: value for key, value in result_metrics.items() if is_number(value)}
        if task.excerpt is None or not path.exists():
            return numbers
        return {**numbers, **task.excerpt.score(self.read_table(path))}

    def read_probe(self, name: str) -> dict[str, Any] | None:
        """Return the arrays of a probe by name; None where its file is missing or not whole."""
        import numpy as np

        try:
            content = read_file(self.probe(name))
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return dict(arrays)
        except Exception:  # whatever numpy and zip say of bytes that are not their own
            return None

    def create(self, spec: Mapping[str, Any]) -> None:
        """Make the folder with its `run.json`. What is not part of the id (where the data lies, or
        a class of the user's own) is written as it was given last, since things move."""
        content = {"id": self.id, "spec": spec}
        if read_json(self.run) != content:
            make_folder(self.path)
            write_whole(self.run, to_json(content))

    def read_spec(self) -> dict[str, Any]:
        """Return the plain tree of the run's spec. Raise ValueError where `run.json` is missing or
        not whole."""
        content = read_json(self.run)
        if not isinstance(content, dict) or not isinstance(content.get("spec"), dict):
            raise ValueError(f"{self.run}: missing or not whole")
        spec: dict[str, Any] = content["spec"]
        return spec

    def read_result(self) -> dict[str, Any] | None:
        """Return the result; None where there is none, or the file is not a whole result."""
        return self.examine_result()[0]

    def examine_result(self) -> tuple[dict[str, Any] | None, str]:
        """Return (result, ""), or (None, why the file in its place is none); (None, "") where there
        is no file."""
        try:
            return parse_result(read_file(self.result))
        except (FileNotFoundError, NotADirectoryError):
            return None, ""

    def sealed_result(
        self,
        sha256: str | None,
        curves: bool = False,
        probes: bool = False,
        predictions: bool = False,
        weights: bool = False,
    ) -> tuple[dict[str, Any] | None, str]:
        """Return the result for whoever prints it, and why it is withheld, "" where it is not.

        `sha256`: the hash recorded for the file; None where none was. `curves`: `metrics.jsonl` is
        read, too, so it must be the file that the result was made with; `probes`: the same for what
        probes measured; `predictions` and `weights`: the same for these files, unless they were
        removed.
        """
        try:
            content = read_file(self.result)
        except (FileNotFoundError, NotADirectoryError):
            return None, ""
        edited = sha256 is not None and hashlib.sha256(content).hexdigest() != sha256
        result, _ = parse_result(content)
        if result is None or not (edited or is_scored(result)):
            return None, f"{self.result}: missing or not whole"
        if edited:
            return None, f"{self.result} was edited since it was recorded"
        checks = {
            "curves": curves,
            "probes": probes,
            "predictions": predictions,
            "weights": weights,
        }
        for kind, path, hashed in self._hashed(result):
            may_lack = kind in ("predictions", "weights")
            if not checks[kind] or (may_lack and hashed is None):
                continue
            try:
                if self.hash_of(path) != hashed:
                    return None, f"{path} was edited since the run ended"
            except FileNotFoundError:
                if not may_lack:
                    return None, f"{path}: missing"
        return result, ""

    def _hashed(self, result: Mapping[str, Any]) -> Iterator[tuple[str, Path, str | None]]:
        """Yield (kind of file, file, hash) for each file of which a result has, or may lack, a
        hash."""
        yield "curves", self.metrics, result.get("metrics_sha256")
        for name, hashed in (result.get("probes_sha256") or {}).items():
            yield "probes", self.probe(name), hashed
        yield "predictions", self.predictions, result.get("predictions_sha256")
        for name, set_result in (result.get("also") or {}).items():
            yield "predictions", self.predictions_on(name), set_result.get("predictions_sha256")
        yield "weights", self.weights, result.get("weights_sha256")

    def has_result(self) -> bool:
        """Return whether there is a result. Results appear whole, so it is enough to look for the
        name."""
        return self.result.exists()

    def read_attempts(self) -> list[dict[str, Any]]:
        """Return what each worker that tried the run noted of itself, oldest first; [] where
        `env.json` is not whole."""
        content = read_json(self.env)
        attempts = content.get("attempts") if isinstance(content, dict) else None
        return [a for a in attempts if isinstance(a, dict)] if isinstance(attempts, list) else []

    def sealed_attempts(self, result: Mapping[str, Any] | None) -> tuple[list[dict[str, Any]], str]:
        """Return what `read_attempts` does, for whoever prints it, and why it is withheld, "" where
        it is not. `result`: as the run left it; None where it has none yet."""
        if result is not None:
            try:
                content = self.env.read_bytes()
            except FileNotFoundError:
                return [], f"{self.env}: missing"
            if hashlib.sha256(content).hexdigest() != result.get("env_sha256"):
                return [], f"{self.env} was edited since the run ended"
        return self.read_attempts(), ""

    def write_attempts(self, attempts: list[dict[str, Any]], **notes: Any) -> None:
        write_whole(self.env, to_json({"attempts": attempts, **notes}))

    def write_prune(self, step: int) -> None:
        """Write for the worker that its training counts up to `step` and no further. What was
        written first stays."""
        if self.prune_step() is None:
            write_whole(self.prune, to_json({"step": step}))

    def prune_step(self) -> int | None:
        """Return the step up to which a training counts; None where it is not pruned."""
        request = read_json(self.prune)
        step = request.get("step") if isinstance(request, dict) else None
        return step if isinstance(step, int) else None

    def ask_to_stop(self) -> None:
        """Record that the run's worker is asked to stop. Call this before sending the signal, since
        what a program leaves after that signal is no result. A disk that is full or gone does not
        prevent the stop."""
        if not self.asked_to_stop():
            with contextlib.suppress(OSError):
                write_whole(self.stop, to_json({"at": time.time()}))

    def asked_to_stop(self) -> bool:
        """Return whether the run's worker was asked to stop. Each worker first removes the request
        to its predecessor."""
        return self.stop.exists()

    def checkpoints(self) -> list[tuple[int, Path]]:
        """List (step, file) of every checkpoint, newest first."""
        step_files = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(self.path):
                if match := re.fullmatch(r"checkpoint-(\d+)\.safetensors", entry.name):
                    step_files.append((int(match[1]), Path(entry.path)))
        return sorted(step_files, reverse=True)

    def newest_step(self) -> int:
        """Return the step of the newest checkpoint, 0 where there is none."""
        return max((step for step, _ in self.checkpoints()), default=0)

    def write_checkpoint(self, step: int, previous_step: int, *content: bytes | memoryview) -> None:
        """Write a checkpoint, and remove all others but that of `previous_step`, in case the newest
        is torn.

        `previous_step` is that of the checkpoint that training resumed from, or wrote last. Any
        other is older, or training could not resume from it.
        """
        write_whole(self.path / f"checkpoint-{step}.safetensors", *content)
        for checkpoint_step, path in self.checkpoints():
            if checkpoint_step not in (step, previous_step):
                path.unlink()

    def drop_checkpoints(self) -> None:
        """Remove all checkpoints: a run with its result needs none. A distrusted run is trusted
        again, since nothing is left that it could resume from."""
        for _, path in self.checkpoints():
            path.unlink()
        self.distrust.unlink(missing_ok=True)

    def say(self, text: str) -> None:
        """Append a line to the run's log, where the worker's output goes, too. Errors of the disk
        are ignored: no training ends because of the log."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode(errors="replace")
        with contextlib.suppress(OSError), open(self.log, "ab", buffering=0) as file:
            size = file.write(line)
            end = file.tell()  # others append to it, too
            begin = end - size
            if self.own_lines and self.own_lines[-1][1] == begin:  # nothing in between
                begin, _ = self.own_lines.pop()
            self.own_lines.append((begin, end))

    def metrics_size(self) -> int:
        """Return the size of `metrics.jsonl` in bytes, 0 where it is missing. Whoever watches the
        file reads it again when its size has changed."""
        try:
            return self.metrics.stat().st_size
        except FileNotFoundError:
            return 0

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return every whole line of `metrics.jsonl`. A torn last line is left out."""
        return parse_lines(self.metrics_content())

    def metrics_content(self, last_step: int | None = None) -> bytes:
        """Return the bytes of `metrics.jsonl`, b"" where it is missing; with `last_step` those of
        its lines up to this step."""
        try:
            content = read_file(self.metrics)
        except FileNotFoundError:
            return b""
        return content if last_step is None else lines_until(content, last_step)


def _attempt_of(path: str) -> str | None:
    """Return "N/ID" from the path of an attempt; None for any other, even in a store named like
    one."""
    *_, above, number, run = ["", "", *path.rsplit("/", 3)]
    return f"{number}/{run}" if above == ATTEMPTS_FOLDER and number.isdecimal() else None
