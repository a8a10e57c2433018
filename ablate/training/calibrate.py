"""Measurements of a training on this machine: how long it takes, by a few steps and evaluations;
and how many images fit into memory at once (`train.micro_batch=auto`).

Used by training/answers.py for the forecasts of `ablate plan` and `ablate sweep`, by
training/column_decision.py and by training/loop.py. The fields of `Times` are also read in
running/estimate.py, those of `Load` in running/preflight.py (`is_load`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor, nn

from ablate.data import Batches, Split
from ablate.run import (
    DEFAULT_TASK,
    OOM,
    TASKS,
    Data,
    Run,
    batch_divisors,
)
from ablate.shared import HostHardware
from ablate.training import faults
from ablate.training.micro_batches import most_sums
from ablate.training.training import Training

SPARE = 0.8  # of the free memory: what is counted is not all that is taken
MARGIN = 0.9  # of a GPU's memory: blocks are cut otherwise in a run's thousandth step
SHARED = 0.95  # of a GPU's memory: each process on it takes some that is not counted
SAVED = 1e9  # bytes kept for a backward pass, beyond which a CPU is no faster

Forward = Callable[[Tensor], Tensor]  # images -> their part of the loss


def limit(device: torch.device, share: float, launcher_gpus: int = 1) -> None:
    """Take at most this share of a GPU's memory and cores from now on; other processes use the
    rest. `launcher_gpus`: see `Batches.share_gpu`."""
    if device.type != "cuda":
        return
    Batches.share_gpu(share, launcher_gpus)
    if share < 1:
        torch.cuda.set_per_process_memory_fraction(SHARED * share, device)


def micro_batch(training: Training, at_most: int | None = None) -> int:
    """Return the first of `batch_divisors` of the training's batch that fits into memory, at most
    `at_most`. The training is left as it was before.

    On a GPU two steps are tried, with a little less memory than there is. On a CPU, where a process
    that takes too much is killed, the size is computed: from what the backward pass of two images
    keeps, and a core's share of the free memory, of which it takes no more than `SAVED`. One image
    is not tried: if it does not fit, the first step raises torch.OutOfMemoryError.
    """
    fits = _tried if training.device.type == "cuda" else _computed
    *larger, smallest = batch_divisors(training.run.train.batch, at_most)
    for size in larger:
        if fits(size, training):
            return size
    return smallest


def _tried(size: int, training: Training) -> bool:
    tensors, state = training.state()
    snapshot = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
    training.micro_batch = size
    device = training.device
    share = torch.cuda.get_per_process_memory_fraction(device)
    torch.cuda.set_per_process_memory_fraction(MARGIN * share, device)
    try:
        retries = 0
        for _ in range(min(2, training.lengths.total)):  # from the second on there are moments
            retries = _allocation_retries(device)
            training.step()
        training.bad_step()  # waits for the device
        # A step that gives back cached memory to get more waits for the device each time.
        return _allocation_retries(device) == retries
    except Exception as error:
        if faults.reason_of(error, training.device.type) != OOM:
            raise
        return False
    finally:
        torch.cuda.set_per_process_memory_fraction(share, device)
        training.load(snapshot, state)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)  # what a trial took is no peak of the run's


def _allocation_retries(device: torch.device) -> int:
    """Return how often this process gave back its cached memory to get more."""
    return torch.cuda.memory_stats(device).get("num_alloc_retries", 0)


def _computed(size: int, training: Training) -> bool:
    images, target = training.inputs()

    def forward(some: Tensor) -> Tensor:
        return training.part(some, target, slice(0, len(some)))

    saved_bytes = size * kept_bytes(images[:2].clone(), training.model, forward)
    gradients = sum(p.nbytes for p in training.model.parameters() if p.requires_grad)
    sums = gradients * most_sums(training.batches.size // size)
    return saved_bytes <= SAVED and saved_bytes + sums <= SPARE * free_bytes()


def kept_bytes(images: Tensor, model: nn.Module, forward: Forward) -> float:
    """Return the bytes that the forward pass keeps for the backward pass, per image, without
    weights."""
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    saved_tensors: dict[int, Tensor] = {}  # by address: several operators keep the same tensor

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            saved_tensors[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward(images)
    total = sum(tensor.untyped_storage().nbytes() for tensor in saved_tensors.values())
    return total / len(images)


def free_bytes() -> float:
    """Return a core's share of the free memory in bytes: as many workers run as there are cores
    that this process may use."""
    return HostHardware.read().free_bytes / len(os.sched_getaffinity(0))


# --- The load on a GPU ----------------------------------------------------------------------------

WARM = 3  # steps, before which kernels are loaded and memory is taken
TIMED = 5  # steps or more
TIMED_S = 0.5
SPIN_HZ = 2e9  # cycles of a GPU in a second, about


@dataclass(frozen=True)
class Load:
    """The load that a training is for a GPU: seconds of a step, of which it computes for
    `device_s`, and the bytes that it takes at most, of all that there are."""

    step_s: float
    device_s: float
    peak_bytes: int
    total_bytes: int


def load(training: Training) -> Load:
    """Measure the load of a training on its GPU, which takes its first steps."""
    device = training.device
    evaluated = min(training.run.eval.batch, training.batches.size)
    for _ in range(WARM):
        training.step()
    training.evaluate(random_split(training.run.data, evaluated, device))
    step_s = _step_s(training)
    device_s = median(_device_s(training, step_s) for _ in range(TIMED))
    peak_bytes = torch.cuda.max_memory_reserved(device)
    _, total_bytes = torch.cuda.mem_get_info(device)
    return Load(step_s, device_s, peak_bytes, total_bytes)


def _step_s(training: Training) -> float:
    """Return the seconds of a step, host and device together."""
    torch.cuda.synchronize(training.device)
    start, steps = time.perf_counter(), 0
    while steps < TIMED or time.perf_counter() - start < TIMED_S:
        training.step()
        steps += 1
    torch.cuda.synchronize(training.device)
    return (time.perf_counter() - start) / steps


def _device_s(training: Training, duration_s: float) -> float:
    """Return the seconds in which the device computes a step, which takes `duration_s` in all. It
    spins while the host launches the step's kernels, and has them all when it starts on one."""
    torch.cuda.synchronize(training.device)
    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(round(2 * duration_s * SPIN_HZ))
    begin.record()
    training.step()
    end.record()
    torch.cuda.synchronize(training.device)
    return begin.elapsed_time(end) / 1e3


ENOUGH = 2e9  # multiply-adds of a forward that tell a CPU's rate; a whole batch may not fit
LONGEST_S = 1.5  # of a size
MANY = 12  # steps, unless these are over within
SHORTEST_S = 0.4
MOST = 200  # steps


@dataclass(frozen=True)
class Times:
    """Seconds of a step at the run's batch, augmentation included, and of an evaluated image.
    `busy`: the share of a step in which the device computes; on a GPU the host may take longer."""

    step_s: float
    image_s: float
    busy: float


def times(run: Run, device: torch.device, multiply_adds: int) -> Times:
    """Return the times, measured on random images of the size that the model sees."""
    images = unit(run, device, multiply_adds)
    step_s = seconds_per_step(run, images, device)
    return Times(step_s, _image_s(run, images, device), _busy(run, images, device))


def _busy(run: Run, images: int, device: torch.device) -> float:
    """Return the share of a step of so many images in which the device computes; 1 for a CPU."""
    if device.type != "cuda":
        return 1.0
    training = _training(run, images, device, images)
    for _ in range(WARM):
        training.step()
    step_s = _step_s(training)
    return min(1.0, median(_device_s(training, step_s) for _ in range(TIMED)) / step_s)


def unit(run: Run, device: torch.device, multiply_adds: int) -> int:
    """Return how many images to time: on a GPU as many as are computed at once, on a CPU as many as
    take about `ENOUGH` multiply-adds."""
    batch = run.train.batch
    if device.type != "cuda":
        return int(min(batch, max(1, ENOUGH // max(multiply_adds, 1))))
    if run.train.micro_batch == "auto":
        return micro_batch(_training(run, batch, device))
    return run.train.micro_batch or batch


def seconds_per_step(run: Run, images: int, device: torch.device) -> float:
    """Return the seconds of one step at the run's batch. They are measured or, where a whole batch
    would take long or may not fit, extrapolated as a + b x batch from steps of two sizes. `images`:
    see `unit`; a GPU computes one and two times as many, a CPU, whose steps vary more, one and four
    times."""
    batch = run.train.batch
    micro, times_as_many = None, 4
    if device.type == "cuda":
        micro, times_as_many = images, 2
    many = min(batch, images * times_as_many)
    took = step_s(run, many, device, micro)
    if many == batch:
        return took
    image_s = (took - step_s(run, images, device, micro)) / (many - images)
    if not 0 < image_s * many <= took:  # noise: apart from its images a step takes no negative time
        image_s = took / many
    return took + image_s * (batch - many)


def step_s(run: Run, images: int, device: torch.device, micro: int | None = None) -> float:
    """Return the median seconds of a few steps of `images` images, `micro` or all of them at once;
    the first half warms up."""
    training = _training(run, images, device, micro)
    durations: list[float] = []
    min_steps, spent = 3, 0.0
    while len(durations) < MOST:
        enough_s = LONGEST_S if len(durations) < MANY else SHORTEST_S
        if len(durations) >= min_steps and spent >= enough_s:
            break
        start = time.perf_counter()
        training.step()
        training.bad_step()  # waits for the device
        durations.append(time.perf_counter() - start)
        spent += durations[-1]
        min_steps = 3 if durations[0] < LONGEST_S else 1  # so long a step tells enough by itself
    if len(durations) <= 3:
        return durations[-1]
    return median(durations[len(durations) // 2 :])


def _image_s(run: Run, images: int, device: torch.device) -> float:
    """Return the seconds of an evaluated image: the median of three evaluations of a few images,
    after one to warm up; of fewer where they take long."""
    training = _training(run, images, device)
    few = run.eval.batch if device.type == "cuda" else min(run.eval.batch, 3 * images)
    split = random_split(run.data, few, device)
    durations: list[float] = []
    while len(durations) < 4 and sum(durations) < LONGEST_S:
        start = time.perf_counter()
        training.evaluate(split)
        durations.append(time.perf_counter() - start)
    return median(durations[1:] or durations) / few


def _training(run: Run, images: int, device: torch.device, micro: int | None = None) -> Training:
    some = smaller(run, images)
    if micro is not None and images % micro == 0:
        some = replace(some, train=replace(some.train, micro_batch=micro))
    return Training(some, random_split(run.data, images, device), device)


def smaller(run: Run, batch: int) -> Run:
    """Return the run with `MOST` steps, a batch of this size computed at once, and no probes; with
    the default task where its own takes no steps."""
    train = replace(run.train, batch=batch, micro_batch=None, steps=MOST)
    repeats = min(run.augment.repeats, batch)
    augment = replace(run.augment, repeats=repeats)
    return replace(run, task=stepping(run.task), train=train, augment=augment, probe=())


def random_split(data: Data, images: int, device: torch.device) -> Split:
    """Return a split of `images` random images of the size that the model sees, with labels."""
    shape = (images, data.size, data.size, data.channels)
    if data.labels == "masks":
        return Split(
            torch.randint(256, shape, dtype=torch.uint8, device=device),
            torch.randint(data.classes, shape[:3], dtype=torch.uint8, device=device),
            torch.full((images, 2), float(data.size), device=device),
        )
    return Split(
        torch.randint(256, shape, dtype=torch.uint8, device=device),
        torch.randint(data.classes, (images,), device=device),
        torch.ones(images, device=device),
        tuple(map(str, range(data.classes))),
    )


def stepping(task: str) -> str:
    """Return the task of this name, or the default task where it takes no steps."""
    return task if TASKS[task].trains else DEFAULT_TASK
