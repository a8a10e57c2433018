"""The handle that a trainer is given as `run`; and the encoding of the state that it saves: nested
dicts, lists and tuples of tensors, arrays, numbers, texts, bytes and None. Nothing is pickled.

A state is a tree of JSON, whose leaves name arrays of bytes kept with it. So neither torch nor a
type of numpy's is needed to write a file, and values come back bit for bit.

Used by training/own/work.py, which gives it to the trainer of `ablate sweep trainer=NAME`, and by
training/own/command.py; `compare` by `ablate doctor` (training/answers.py). A new method is also to
be described in docs/own-training.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import operator
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ablate.run import (
    Metrics,
    OwnRun,
    RunDir,
    check_range,
    last_validation,
    sealed_part,
)
from ablate.shared import (
    UserError,
    is_number,
    unknown_value,
    write_whole,
)
from ablate.training import sealed_file

if TYPE_CHECKING:
    import torch


Arrays = dict[str, np.ndarray]  # uint8 (bytes,)
KIND = "~"  # the key that says that an object is no dict of the user's


def encode(state: Any) -> tuple[str, Arrays]:
    """Return the state as JSON, and the arrays of bytes that it names. Raises UserError, naming the
    place, for what can't be saved."""
    arrays: Arrays = {}
    return json.dumps(_encoded(state, "state", arrays)), arrays


def decode(text: str, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the state that `encode` was given; tensors are on the CPU."""
    return _decoded(json.loads(text), arrays)


def _encoded(value: Any, place: str, arrays: Arrays) -> Any:
    torch = sys.modules.get("torch")
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {KIND: "float", "is": value.hex()}
    if isinstance(value, Mapping):
        pairs = [_encoded_pair(key, part, place, arrays) for key, part in value.items()]
        return {KIND: "dict", "is": pairs}
    if isinstance(value, list | tuple):
        parts = [_encoded(part, f"{place}[{n}]", arrays) for n, part in enumerate(value)]
        if isinstance(value, list):
            return parts
        return {KIND: "tuple", "is": parts}
    name = str(len(arrays))
    if isinstance(value, bytes | bytearray):
        arrays[name] = np.frombuffer(bytes(value), np.uint8)
        return {KIND: "bytes", "at": name}
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        array = np.ascontiguousarray(value)
        arrays[name] = array.reshape(-1).view(np.uint8)
        kind = "scalar" if isinstance(value, np.generic) else "array"
        shape = list(np.shape(value))
        return {KIND: kind, "dtype": array.dtype.str, "shape": shape, "at": name}
    if torch is not None and isinstance(value, torch.Tensor) and not value.is_sparse:
        array = value.detach().cpu().contiguous()
        arrays[name] = array.reshape(-1).view(torch.uint8).numpy()
        dtype = str(array.dtype).removeprefix("torch.")
        return {KIND: "tensor", "dtype": dtype, "shape": list(array.shape), "at": name}
    raise UserError(
        f"run.save: {place}: a {type(value).__name__} can't be saved; give tensors, arrays, "
        f"numbers, texts, bytes, None, and dicts, lists and tuples of them"
    )


def _encoded_pair(key: Any, value: Any, place: str, arrays: Arrays) -> list[Any]:
    encoded_key = _encoded(key, f"{place}: key {key!r}", arrays)
    encoded_value = _encoded(value, f"{place}[{key!r}]", arrays)
    return [encoded_key, encoded_value]


def _decoded(tree: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(tree, list):
        return [_decoded(part, arrays) for part in tree]
    if not isinstance(tree, dict):
        return tree
    match tree[KIND]:
        case "float":
            return float.fromhex(tree["is"])
        case "dict":
            return {_decoded(key, arrays): _decoded(part, arrays) for key, part in tree["is"]}
        case "tuple":
            return tuple([_decoded(part, arrays) for part in tree["is"]])
        case "bytes":
            return arrays[tree["at"]].tobytes()
        case "tensor":
            import torch

            dtype = getattr(torch, tree["dtype"])
            content = arrays[tree["at"]].copy()
            if not content.size:
                return torch.empty(tree["shape"], dtype=dtype)
            return torch.from_numpy(content).view(dtype).reshape(tree["shape"])
        case "array" | "scalar":
            content = arrays[tree["at"]].copy()
            array = content.view(np.dtype(tree["dtype"])).reshape(tree["shape"])
            if tree[KIND] == "scalar":
                return array[()]
            return array
    raise ValueError(tree[KIND])


# --- Two folders of a run -------------------------------------------------------------------------

TIMES = ("seconds", "peak_bytes", "env_sha256")  # of a result: no two runs have the same


def compare(run_folder: Path, other_folder: Path) -> dict[str, Any]:
    """Compare two folders of a run bit by bit. Return {"parts": how many parts there are,
    "differing": the names of those that differ}. The parts are the metrics and those of the newest
    saved state, or of the result where the run has ended."""
    parts = _parts(RunDir(run_folder))
    other_parts = _parts(RunDir(other_folder))
    names = list(parts | other_parts)
    differing = [name for name in names if parts.get(name) != other_parts.get(name)]
    return {"parts": len(names), "differing": differing}


def _parts(folder: RunDir) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    metrics_content = folder.metrics_content()
    result = folder.read_result()
    if result is not None:
        parts.update((key, value) for key, value in result.items() if key not in TIMES)
    else:
        [(_, newest), *_] = folder.checkpoints()
        arrays, metadata = sealed_file.read_arrays(newest)
        _walk(json.loads(metadata["state"]), "state", arrays, parts)
    parts["metrics.jsonl"] = metrics_content
    return parts


def _walk(tree: Any, place: str, arrays: Any, parts: dict[str, Any]) -> None:
    """Add every leaf of a state to `parts` by its place, an array by its bytes."""
    if isinstance(tree, list):
        for n, part in enumerate(tree):
            _walk(part, f"{place}[{n}]", arrays, parts)
    elif isinstance(tree, dict) and isinstance(tree.get("is"), list):
        for n, part in enumerate(tree["is"]):
            if tree[KIND] == "dict":
                key = part[0]
                _walk(part[1], f"{place}[{key!r}]", arrays, parts)
            else:
                _walk(part, f"{place}[{n}]", arrays, parts)
    else:
        content = b""
        if isinstance(tree, dict) and "at" in tree:
            content = arrays[tree["at"]].tobytes()
        parts[place] = json.dumps(tree), content


BEAT_S = 0.5  # between signs of life
CHECKPOINT_SHARE = 0.02  # of the time, at most
TEST = "test_"
MOST_EXAMPLES = 1 << 53  # of a test set: whole numbers up to there are exact in JSON


class Ended(BaseException):
    """The exception that ends the trainer's function from inside a call. It is no `Exception`, so
    the function's own `except Exception` doesn't catch it.

    `result` says why the run is over; None: it was asked to stop, and its state is saved.
    """

    def __init__(self, result: dict[str, Any] | None) -> None:
        super().__init__()
        self.result = result


class Handle:
    """A run, as the function that trains it sees it.

    seed; device: "cpu" or "cuda"; devices: all that the run has, one for each process that it may
    start; threads: how many each process may use; folder: the run's own scratch folder, which is
    also its working directory (`open("x", "w")` writes there).
    """

    def __init__(
        self,
        run: OwnRun,
        rundir: RunDir,
        options: Mapping[str, Any],
        stopping: Callable[[], bool],
        note: Callable[..., None],
    ) -> None:
        """`note` records facts of this attempt."""
        self.seed: int = run.seed
        self.device: str = options["device"]
        world = options.get("ranks", 1)
        self.devices: tuple[str, ...] = ("cpu",) * world
        if self.device != "cpu":
            self.devices = tuple(f"cuda:{rank}" for rank in range(world))
        self.threads: int = options["threads"]
        self.folder: Path = rundir.scratch
        self._declarations = {metric["key"]: metric for metric in run.metrics}
        self._kept_as: dict[str, str] = {}  # by the name in the run's files, the metric's key
        for key in self._declarations:
            self._kept_as[f"val_{key}"] = key
            self._kept_as[f"{TEST}{key}"] = key
        self._rundir, self._stopping, self._note = rundir, stopping, note
        self._checkpoint_s: float = options["checkpoint_s"]
        self._saves: int | None = options.get("saves")
        self._metrics: Metrics | None = None  # None: nothing was said yet
        self._step, self._number, self._beats = 0, 0, 0
        self._total: dict[str, int] = {}
        self._checkpoint_number = 0  # the number of the checkpoint that was written last
        self._began, self._before_s = time.monotonic(), 0.0
        self._beat_at = 0.0
        self._checkpoint_at = self._began + self._checkpoint_s
        self._tried = False
        self._final: tuple[dict[str, float], np.ndarray | None] | None = None
        self.knows_of_stop = False  # `should_stop` has told the function to stop
        self.ended: Ended | None = None  # it is over, whatever the function does with that

    # --- Randomness -----------------------------------------------------------------------------

    def rng(self, *place: int | str) -> np.random.Generator:
        """Return numpy's generator of a place such as ("batch", step). The seed and the place alone
        decide what it draws, so there is no state to save."""
        return np.random.Generator(np.random.Philox(key=self.key_of("rng", *place)))

    def generator(self, *place: int | str, device: str | None = None) -> torch.Generator:
        """Return torch's generator of a place, as `rng` does; on the CPU, unless `device` names
        another."""
        import torch

        return torch.Generator(device or "cpu").manual_seed(self.key_of("torch", *place))

    def key_of(self, *place: int | str) -> int:
        """Return the key of a place under the run's seed, an integer of 63 bits."""
        words = [str(word) for word in ("trainer", self.seed, *place)]
        digest = hashlib.blake2b("\x1f".join(words).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    # --- On the way -----------------------------------------------------------------------------

    def progress(self, step: int, total: int | None = None) -> None:
        """Report how far the run is. This is also a sign of life, as are `log`, `save` and
        `should_stop`: a run that gives none for `launcher.hang_s` is taken to hang."""
        self._step = max(self._step, _whole_number(step, "run.progress: step"))
        if total is not None:
            self._total = {"total": _whole_number(total, "run.progress: total")}
        self._beat()

    def log(self, step: int, **values: Any) -> None:
        """Write a line of the run's curves. The value of a declared metric is that on validation
        data.

        A value that is not finite ends the run as diverged. Raises UserError for a step below the
        last one, for a value that is no number, for a metric outside its range, for a name under
        which a declared metric's values are kept, and after `result`.
        """
        self._go_on()
        if self._final is not None:
            raise UserError("run.log: was called after run.result, which ends the run")
        step = _whole_number(step, "run.log: step")
        if step < self._step:
            raise UserError(f"run.log: step {step} after step {self._step}")
        self._step = step
        line: dict[str, Any] = {"step": step}
        for name, value in values.items():
            number = self._number_of(name, value, "run.log", step)
            if name in self._declarations:
                line[f"val_{name}"] = number
            elif name in self._kept_as:
                key = self._kept_as[name]
                raise UserError(f"run.log: {name}: is the name that values of {key} are kept under")
            else:
                line[name] = number
        metrics = self._metrics_file()
        metrics.append(line, sync=False)
        readings = [f"{key} {value:g}" for key, value in line.items() if key != "step"]
        self._rundir.say(f"step {step}: {', '.join(readings)}")
        self._beat()
        enough = self._rundir.prune_step()
        if enough is None:
            return
        logged_steps = [row["step"] for row in metrics.lines()]
        if enough in logged_steps:
            self._rundir.say(f"pruned: not worth going on after step {enough}")
            metrics.rewind(enough)
            self._end({"status": "pruned", "step": enough, **self._validation()})

    def should_stop(self) -> bool:
        """Return whether the run was asked to stop. Then the next `save` writes the state and ends
        the function; a function that saves nothing should return."""
        self._beat()
        self.knows_of_stop |= self._stopping()
        return self.knows_of_stop

    # --- The state ------------------------------------------------------------------------------

    def save(self, state: Any) -> None:
        """Save a state from which `resume` continues, every `launcher.checkpoint_s` seconds and
        when the run was asked to stop. Other calls write nothing, so call this whenever the state
        is complete. It doesn't return if the run was asked to stop.

        Raises UserError, naming the place in the state, for a state that can't be saved.
        """
        self._go_on()
        stopping = self._stopping()
        self._number = max(self._number + 1, self._step)
        self._beat()
        if not self._tried:
            self._tried = True
            encode(state)  # so that a mistake shows at once
        if not stopping and time.monotonic() < self._checkpoint_at:
            return
        start = time.monotonic()
        self._write(state)
        took = time.monotonic() - start
        wait = self._checkpoint_s
        if not self._saves:
            wait = max(wait, took / CHECKPOINT_SHARE)
        self._checkpoint_at = time.monotonic() + wait
        if stopping:
            self._rundir.say(f"stopped at step {self._step}; its state is saved")
            self._end(None)

    def resume(self) -> Any:
        """Return the state that was saved last, or None where the run begins. Call this before the
        first `log` or `save`. Tensors are on the CPU."""
        if self._metrics is not None:
            raise UserError("run.resume: comes before run.log and run.save, once")
        content = self._rundir.metrics_content()
        for number, path in self._rundir.checkpoints():
            try:
                arrays, metadata = sealed_file.read_arrays(path)
                progress = json.loads(metadata["about"])
                metrics_content = sealed_part(content, json.loads(metadata["metrics"]))
                if metrics_content is None:
                    raise ValueError("metrics.jsonl is not what it was")
                state = decode(metadata["state"], arrays)
            except (sealed_file.Rotten, OSError, ValueError, KeyError, TypeError):
                self._rundir.say(f"warning: {path.name} is passed over: it is damaged")
                continue
            self._number = self._checkpoint_number = number
            self._step, self._before_s = progress["step"], progress["seconds"]
            self._metrics = Metrics(self._rundir.metrics, metrics_content)
            self._note(from_step=number)
            return state
        self._metrics_file()
        return None

    def _write(self, state: Any) -> None:
        text, arrays = encode(state)
        metrics = self._metrics_file()
        metrics.sync()
        content = sealed_file.arrays_to_bytes(
            arrays,
            state=text,
            about=json.dumps({"step": self._step, "seconds": self.seconds}),
            metrics=json.dumps(metrics.seal()),
        )
        self._rundir.write_checkpoint(self._number, self._checkpoint_number, *content)
        self._checkpoint_number = self._number
        if self._saves is not None:
            self._saves -= 1
            if not self._saves:  # of a check of what a kill leaves: this is one
                os.kill(os.getpid(), signal.SIGKILL)

    # --- The end --------------------------------------------------------------------------------

    def result(self, *, predictions: Any = None, **test: Any) -> None:
        """Give the run's test result: a value for every declared metric, and `n`, the number of
        test examples. `predictions` is an array of the model's outputs for each example, which is
        kept and hashed.

        A value that is not finite ends the run as diverged. Raises UserError for a metric that is
        not declared or is missing, and as `log` does.
        """
        self.give("run.result", test, predictions)

    def give(self, place: str, test: Mapping[str, Any], predictions: Any) -> None:
        """Take the result as `result` does; messages call it `place`."""
        self._go_on()
        if self._final is not None:
            raise UserError(f"{place}: was called before; a run has one result")
        for name in test:
            if name not in (*self._declarations, "n"):
                raise unknown_value(
                    f"{place}: {name}", name, self._declarations, "a declared metric,"
                )
        lacking = [key for key in self._declarations if key not in test]
        if lacking:
            raise UserError(f"{place}: lacks {', '.join(lacking)}, which its yaml declares")
        numbers = {}
        for name, value in test.items():
            numbers[name] = self._number_of(name, value, place, self._step)
        count = numbers.get("n", 1)
        if count != int(count) or not 1 <= count <= MOST_EXAMPLES:
            raise UserError(f"{place}: n: expected a whole number of examples, got {test['n']:g}")
        array = None
        if predictions is not None:
            array = _array(predictions)
        self._final = numbers, array

    def finished(self) -> dict[str, Any] | None:
        """Write the test metrics and the predictions; return the status and the predictions' hash
        for `result.json`. Return None where `result` was not called."""
        if self._final is None:
            return None
        test, predictions = self._final
        metrics = self._metrics_file()
        if not metrics.lines():
            self._rundir.say("warning: the run logged nothing: it has no curves, and no validation")
        metrics.append({"step": self._step, **{f"{TEST}{k}": v for k, v in test.items()}})
        sha256 = None
        if predictions is not None:
            content = io.BytesIO()
            np.save(content, predictions, allow_pickle=False)
            write_whole(self._rundir.predictions, content.getvalue())
            sha256 = hashlib.sha256(content.getvalue()).hexdigest()
        return {"status": "finished", "predictions_sha256": sha256}

    def metrics_sha256(self) -> str:
        return str(self._metrics_file().seal()["sha256"])

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl, parsed."""
        return self._metrics_file().lines()

    # --- For a program ----------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The step of the last `log` or `progress`."""
        return self._step

    def judges(self, name: str) -> bool:
        """Return whether `name` is a declared metric or the training loss."""
        return name in self._declarations or name == "train_loss"

    def rewind(self, step: int) -> None:
        """Drop the lines that were logged after a step: the program writes them again."""
        self._metrics_file().rewind(step)
        self._step = max(step, 0)

    def add_seconds(self, seconds: float) -> None:
        """Add the training time of earlier attempts."""
        self._before_s += seconds

    @property
    def seconds(self) -> float:
        """The training time in seconds, including the attempts from which this one continues."""
        return self._before_s + time.monotonic() - self._began

    # --- Inside ---------------------------------------------------------------------------------

    def _end(self, result: dict[str, Any] | None) -> NoReturn:
        self.ended = Ended(result)
        raise self.ended

    def _go_on(self) -> None:
        if self.ended is not None:
            raise self.ended

    def _metrics_file(self) -> Metrics:
        if self._metrics is None:  # it began again from nothing
            self._metrics = Metrics(self._rundir.metrics)
        return self._metrics

    def _validation(self) -> dict[str, Any]:
        return {"validation": last_validation(self._declarations, self._metrics_file().lines())}

    def _beat(self) -> None:
        clock_s = time.monotonic()
        if clock_s >= self._beat_at:
            self._beat_at = clock_s + BEAT_S
            self._beats += 1
            self._rundir.lock.note(phase="train", step=self._step, beat=self._beats, **self._total)

    def _number_of(self, name: str, value: Any, call: str, step: int) -> float:
        """Return a number of Python or numpy, or a tensor of one value, as JSON has it."""
        if hasattr(value, "item") and getattr(value, "size", 1) != 0:
            with contextlib.suppress(ValueError, RuntimeError, TypeError):
                value = value.item()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{call}: {name}: expected a number, got {_short(value)}")
        if not math.isfinite(value):
            self._rundir.say(f"diverged: {call} at step {step}: {name} is {value}")
            self._end({"status": "diverged", "step": step})
        if not is_number(value):
            raise UserError(f"{call}: {name}: {_short(value)} is too large a number")
        if name in self._declarations:
            check_range(self._declarations[name], value, f"{call}: {name}")
        return value


def _whole_number(value: Any, place: str) -> int:
    number = operator.index(value)
    if not is_number(number):
        raise UserError(f"{place}: {_short(value)} is too large a number")
    return int(number)


def _short(value: Any) -> str:
    text = repr(value).splitlines()[0]
    if len(text) > 60:
        return f"{text[:57]}..."
    return text


def _array(predictions: Any) -> np.ndarray:
    if hasattr(predictions, "detach"):
        predictions = predictions.detach().cpu()
    try:
        array = np.asarray(predictions)
    except (ValueError, TypeError) as error:
        raise UserError(f"run.result: predictions: expected an array: {error}") from error
    if array.dtype.hasobject or not array.ndim:
        raise UserError(f"run.result: predictions: expected an array, got {_short(predictions)}")
    return array
