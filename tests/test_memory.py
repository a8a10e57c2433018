"""What fits into memory at once, and what a run has taken."""

import json
import os
import weakref
from math import inf
from types import SimpleNamespace

import pytest
import tiny
import torch
from conftest import refused
from torch import nn

from ablate.data import batches
from ablate.run.checks import batch_divisors
from ablate.shared import machine
from ablate.training import calibrate
from ablate.training.calibrate import random_split
from ablate.training.device import device_of
from ablate.training.journal import cost, utilisation
from ablate.training.micro_batches import MicroBatches, most_sums
from ablate.training.model import build
from ablate.training.ranks import ALONE
from ablate.training.rates import FILE, matmul_rate, measured
from ablate.training.training import Training

CPU = torch.device("cpu")
STEM = {"stem": "conv", "model.depth": 2}


def test_a_batch_is_halved_to_its_divisors():
    expected = {64: [64, 32, 16, 8, 4, 2, 1], 100: [100, 50, 25, 10, 5, 2, 1], 7: [7, 1], 1: [1]}
    assert {batch: list(batch_divisors(batch)) for batch in expected} == expected


def test_what_the_backward_pass_keeps_is_counted():
    """Of x -> tanh(W x), by hand: the input, 5 floats, and the result, 3; weights are not."""
    model = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Tanh())
    images = torch.randn(4, 5)
    assert calibrate.kept_bytes(images, model, lambda x: model(x).sum()) == 4 * (5 + 3)


def automatic(batch: int, changes: dict) -> Training:
    run = tiny.run({"train.batch": batch, "train.micro_batch": "auto", **changes})
    return Training(run, random_split(run.data, batch, CPU), CPU)


def kept(training: Training) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in training.state()[0].items()}


def is_as_before(training: Training, before: dict[str, torch.Tensor]) -> None:
    after, state = training.state()
    assert state.step == 0
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_on_a_cpu_what_fits_is_computed(monkeypatch):
    training = automatic(100, {"model.depth": 1})
    images, target = training.inputs()
    two = slice(0, 2)
    forward = lambda some: training.part(some, target, two)  # noqa: E731
    each = calibrate.kept_bytes(images[two].clone(), training.model, forward)
    before = kept(training)

    def chosen(bytes_free):
        monkeypatch.setattr(calibrate, "free_bytes", lambda: bytes_free)
        return calibrate.micro_batch(training)

    spare = each / calibrate.SPARE
    assert chosen(100 * spare + 1) == 100
    assert chosen(100 * spare - 1) == 50
    gradients = sum(p.nbytes for p in training.model.parameters()) / calibrate.SPARE
    assert chosen(10 * spare + 3 * gradients + 1) == 10  # three levels of a tree of ten
    assert chosen(10 * spare + 2 * gradients) < 10
    assert chosen(1) == 1
    monkeypatch.setattr(calibrate, "SAVED", 24 * each)  # however much is free
    assert chosen(1e12) == 10  # 25 don't
    is_as_before(training, before)


class Card:
    """A GPU's memory as torch manages it, for trainings on the CPU: `holds` images of a step, one
    less from the second step on, which has moments."""

    def __init__(self, monkeypatch, holds: int) -> None:
        self.share, self.said, self.steps = 1.0, [], []
        card, step = torch.cuda, Training.step
        monkeypatch.setattr(card, "get_per_process_memory_fraction", self.get)
        monkeypatch.setattr(card, "set_per_process_memory_fraction", self.set)
        monkeypatch.setattr(card, "empty_cache", lambda: self.said.append("empty"))
        monkeypatch.setattr(card, "reset_peak_memory_stats", lambda d: self.said.append("reset"))

        def stepped(training):
            self.steps.append((training.micro_batch, round(self.share, 3)))
            if training.micro_batch > int(holds * self.share / 0.9) - min(training.steps, 1):
                raise torch.OutOfMemoryError("CUDA out of memory")
            step(training)

        monkeypatch.setattr(Training, "step", stepped)

    def get(self, device):
        assert device != torch.device("cuda")  # torch's own wants its index
        return self.share

    def set(self, share, device):
        assert device != torch.device("cuda")
        self.share = share


def test_on_a_gpu_two_steps_are_tried_in_less_than_there_is(monkeypatch):
    training = automatic(32, {"train.steps": 9})
    before = kept(training)
    monkeypatch.setattr(calibrate, "_computed", calibrate._tried)  # a device that is no GPU
    card = Card(monkeypatch, 16)
    assert calibrate.micro_batch(training) == 8  # 16 fit into the first step, not into the second
    assert card.steps == [(32, 0.9), (16, 0.9), (16, 0.9), (8, 0.9), (8, 0.9)]
    assert card.share == 1.0
    assert card.said == ["empty", "reset"] * 3
    is_as_before(training, before)
    card.steps.clear()
    assert calibrate.micro_batch(training, at_most=9) == 8
    assert [size for size, _ in card.steps] == [8, 8]
    assert calibrate.micro_batch(training, at_most=4) == 4


def test_who_shares_a_gpu_takes_its_share(monkeypatch):
    card = Card(monkeypatch, 1)
    calibrate.limit(torch.device("cpu"), 0.5)
    calibrate.limit(device_of("cuda"), 1.0)
    assert card.share == 1.0
    for name in ("_gpu_share", "_launcher_gpus"):
        monkeypatch.setattr(batches, name, 1)
    calibrate.limit(device_of("cuda"), 0.25, 4)
    assert 0.2 < card.share < 0.25
    assert (batches._gpu_share, batches._launcher_gpus) == (0.25, 4)
    calibrate.limit(device_of("cuda"), 1.0, 2)
    assert (batches._gpu_share, batches._launcher_gpus) == (1.0, 2)


def test_a_batch_takes_what_was_decided_for_its_column():
    sizes = [next(batch_divisors(batch, 24)) for batch in (100, 64, 24, 10)]
    assert sizes == [10, 16, 24, 10]
    assert list(batch_divisors(7, 0)) == [1]


@pytest.mark.parametrize("parts", range(1, 18))
def test_the_most_sums_are_those_that_a_step_holds(parts):
    """Of the tensors in memory while each micro-batch is computed."""
    model = nn.Linear(97, 89, bias=False)

    gradients = []
    held = []
    for _ in MicroBatches(model, ALONE).accumulate([slice(0)] * parts, parts):
        held.append(sum(gradient() is not None for gradient in gradients))
        model.weight.grad = torch.ones(89, 97)
        gradients.append(weakref.ref(model.weight.grad))
    assert max(held) == most_sums(parts)
    assert torch.equal(model.weight.grad, torch.full((89, 97), float(parts)))


def test_free_memory_is_that_of_this_machine():
    assert 1e7 < calibrate.free_bytes() < 1e13


@pytest.mark.parametrize(
    ("groups", "files", "free", "cores"),
    [
        (
            "0::/a/b",
            {"memory.max": "9000", "a/memory.max": "8000", "a/b/memory.max": "max"},
            8e3,
            2,
        ),
        ("3:cpu,memory:/a", {"memory/a/memory.limit_in_bytes": "7000"}, 7e3, inf),
        ("0::/a", {"a/memory.max": "9000000"}, 1.024e6, 2),  # more than there is
        (None, {"memory.max": "9000"}, 1.024e6, inf),  # a kernel without control groups
    ],
)
def test_workers_share_what_a_control_group_allows(
    groups, files, free, cores, tmp_path, monkeypatch
):
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "groups")
    content = {"proc/cpuinfo": "model name : x\nflags : a b\n\nmodel name : y\nflags : c\n"}
    content |= {"proc/meminfo": "MemTotal: 2000 kB\nMemFree: 1 kB\nMemAvailable: 1000 kB\n"}
    content |= {f"groups/{name}": f"{text}\n" for name, text in files.items()}
    content["groups/a/cpu.max"] = "200000 100000\n"
    if groups is not None:
        content["proc/self/cgroup"] = f"{groups}\n"
    for name, text in content.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    host = machine.HostHardware.read()
    assert (host.total_bytes, host.free_bytes, host.allowed_cores) == (2.048e6, free, cores)
    assert (host.cpu_model, host.cpu_flags) == ("x", {"a", "b"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5, 6})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert calibrate.free_bytes() == free / 4


@pytest.mark.parametrize(
    "changes",
    [{"norm": "batchnorm"}, STEM, {"block": "bnffn"}, {"norm": "powernorm"}],
)
def test_statistics_over_a_batch_are_not_split_unasked(changes):
    with refused(r"train\.micro_batch: auto .* set train\.micro_batch=N"):
        build(tiny.run({**changes, "train.micro_batch": "auto"}), device="meta")
    build(tiny.run({**changes, "train.micro_batch": 4}), device="meta")
    build(tiny.run({"train.micro_batch": "auto"}), device="meta")


def test_cost_and_utilisation(monkeypatch):
    spent = cost(10.0, 500, CPU)
    assert (spent["seconds"], spent["images_per_s"]) == (10, 50)
    assert 1e7 < spent["peak_bytes"] < 1e12
    assert cost(10.0, 0, CPU)["images_per_s"] is None  # of a task without steps
    assert measured(torch.float32, CPU) > 1e6  # of any machine
    clock = iter([0, 90, 100, 101, 200, 203, 300, 302] * 2)  # products of 90, 1, 3 and 2 s
    monkeypatch.setattr("ablate.training.rates.time.perf_counter", lambda: next(clock))
    rate = measured(torch.float32, CPU)
    assert rate == 512**3 / 2
    assert utilisation(10**6, rate / 6e6, rate) == pytest.approx(0.5)


def test_a_gpus_rate_is_measured_once_a_store_and_a_cpus_each_time(monkeypatch, tmp_path):
    counted = []

    def count(dtype, device):
        counted.append(dtype)
        return 1e12 * len(counted)

    monkeypatch.setattr("ablate.training.rates.measured", count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    gpu, cache, fp32, bf16 = device_of("cuda"), tmp_path / "cache", torch.float32, torch.bfloat16
    asked = [("fp32", fp32), ("tf32", fp32), ("bf16", bf16), ("fp32", fp32), ("tf32", fp32)]
    found = [matmul_rate(*each, gpu, cache) for each in asked]
    assert found == [1e12, 2e12, 3e12, 1e12, 2e12]
    kept = json.loads((cache / FILE).read_text())
    assert kept.keys() - {"seal"} == {"H100, fp32", "H100, tf32", "H100, bf16"}
    (cache / FILE).write_text("{")  # damaged: it is measured again
    assert matmul_rate("fp32", fp32, gpu, cache) == 4e12
    assert [matmul_rate("fp32", fp32, CPU, cache) for _ in range(2)] == [5e12, 6e12]


# --- How long it takes --------------------------------------------------------------------------


def test_a_step_is_a_line_through_two_sizes(monkeypatch):
    """Seconds are 0.5 + 0.01 an image, so an image alone, times 1024, is 50 times too much."""
    run = tiny.run({"train.batch": 1024, "train.micro_batch": "auto"})
    cpu, gpu, asked = CPU, torch.device("cuda"), []

    def took(run, images, device, micro=None):
        asked.append((images, micro))
        return 0.5 + 0.01 * images

    monkeypatch.setattr(calibrate, "step_s", took)
    assert calibrate.seconds_per_step(run, 64, gpu) == pytest.approx(0.5 + 10.24)
    assert asked == [(128, 64), (64, 64)]  # whole micro-batches, two and one
    assert calibrate.seconds_per_step(run, 16, cpu) == pytest.approx(0.5 + 10.24)
    assert asked[2:] == [(64, None), (16, None)]
    assert calibrate.seconds_per_step(run, 512, cpu) == pytest.approx(0.5 + 10.24)
    assert asked[4:] == [(1024, None)]  # a step that fits is measured as it is
    monkeypatch.setattr(calibrate, "step_s", lambda run, images, *_: 0.5 + images % 64)
    assert calibrate.seconds_per_step(run, 16, cpu) == pytest.approx(0.5 * 16)  # noise: in share


def test_a_gpu_is_timed_on_what_it_computes_at_once(monkeypatch):
    monkeypatch.setattr(calibrate, "micro_batch", lambda training: training.run.train.batch // 2)
    monkeypatch.setattr(
        calibrate, "_training", lambda run, images, device: SimpleNamespace(run=run)
    )
    gpu = torch.device("cuda")
    for micro, images in (("auto", 512), (64, 64), (None, 1024)):
        run = tiny.run({"train.batch": 1024, "train.micro_batch": micro})
        assert calibrate.unit(run, gpu, 10**9) == images
    assert calibrate.unit(run, CPU, 10**8) == 20


def test_a_plan_on_a_cpu_times_a_real_step_and_evaluation():
    run = tiny.run({"train.batch": 16, "train.micro_batch": 4, "eval.batch": 20})
    told = calibrate.times(run, CPU, 10**6)
    assert 0 < told.image_s < told.step_s < 10
