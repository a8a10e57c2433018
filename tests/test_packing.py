"""How many runs share a GPU, where `launcher.runs_per_gpu=auto` leaves it open."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from ablate.planning.expand import plan_from_words as make_plan
from ablate.running import preflight
from ablate.running.board import PlaceRecord
from ablate.running.gpus import Gpu, GpuSet
from ablate.running.launchers import Slot, packed
from ablate.running.next_step import assign
from ablate.running.preflight import drop_unfit_slots, runs_that_share, settle_devices
from ablate.shared.errors import Failure
from ablate.store.events import RunState
from ablate.store.store import Store
from ablate.training import answers, calibrate
from ablate.training.training import Training

H100 = 85017493504
# As an H100 had them: a mu/4 of the quick start, a Ti/4 at a batch of 512, an S/16 at 512.
LOADS = {
    "mu/4": {"step_s": 0.01145, "device_s": 0.0007, "peak_bytes": 96468992},
    "Ti/4": {"step_s": 0.0524, "device_s": 0.0166, "peak_bytes": 2797600768},
    "S/16": {"step_s": 0.1033, "device_s": 0.1020, "peak_bytes": 18.8e9},
}


def load(arch, **changes):
    return {"total_bytes": H100, **LOADS[arch], **changes}


@pytest.mark.parametrize(
    ("arch", "changes", "cores", "runs"),
    [
        ("mu/4", {}, 15, 8),  # at most
        ("mu/4", {}, 7, 7),  # a core each
        ("mu/4", {}, 1, 1),
        ("Ti/4", {}, 15, 3),  # the GPU is busy then
        ("Ti/4", {"total_bytes": 10e9}, 15, 2),  # 1.1 x 2.8 GB and 0.8 GB each
        ("Ti/4", {"total_bytes": 3e9}, 15, 1),
        ("S/16", {}, 15, 1),
        ("S/16", {"device_s": 0.2}, 15, 1),  # noise
        ("S/16", {"device_s": 0.0645}, 15, 2),  # 1.6: one leaves it idle for a third of the time
    ],
)
def test_as_many_as_keep_it_busy_have_a_core_and_fit(arch, changes, cores, runs):
    assert runs_that_share(load(arch, **changes), cores) == runs


class Launcher:
    """A launcher on two GPUs, which answers `load` by the architecture."""

    remote, worlds, device = False, [1], "cuda"

    def __init__(self):
        gpus = tuple(Gpu(str(n), f"GPU-{n}", "H100", f"GPU-{n}") for n in range(2))
        self.devices = GpuSet(gpus)
        self.slots = [Slot(f"gpu:{n}", f"gpu:{n}", "cuda", f"GPU-{n}") for n in range(2)]
        self.questions = []

    def ask(self, verb, question):
        if verb == "rate":
            return {}
        assert verb == "load"
        self.questions.append(question)
        width = question["specs"][0]["model"]["width"]
        return load({32: "mu/4", 192: "Ti/4", 384: "S/16"}[width])


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(17)))


def names(tmp_path, launcher, *words, runs_per_gpu="auto", lines=None):
    plan, _ = make_plan([*words, "seeds=2"], store=tmp_path)
    say = (lines if lines is not None else []).append
    settle_devices(plan, Store(tmp_path), launcher, {"runs_per_gpu": runs_per_gpu}, say)
    return [slot.name for slot in launcher.slots]


def test_the_slots_of_a_gpu_share_its_memory_and_lie_apart(tmp_path):
    launcher, lines = Launcher(), []
    expected = [f"gpu:{gpu}.{n}" for n in range(3) for gpu in range(2)]
    assert names(tmp_path, launcher, "model.arch=Ti/4", "stem=none,dpn", lines=lines) == expected
    assert {slot.share for slot in launcher.slots} == {1 / 3}
    assert {slot.visible for slot in launcher.slots} == {"GPU-0", "GPU-1"}
    assert [*map(len, (lines, launcher.questions))] == [1, 1]
    assert "runs_per_gpu=auto" in lines[0]
    assert len(launcher.questions[0]["specs"]) == 2  # the worker takes the larger
    again = Launcher()  # measured once for a store
    assert names(tmp_path, again, "model.arch=Ti/4", "stem=none,dpn") == expected
    assert again.questions == []


def test_the_column_that_takes_a_gpu_most_decides(tmp_path):
    launcher = Launcher()
    assert len(names(tmp_path, launcher, "model.arch=mu/4,Ti/4", "stem=none,dpn")) == 6
    launcher = Launcher()
    assert names(tmp_path, launcher, "model.arch=mu/4,S/16", "data.size=32", "stem=none,dpn") == [
        "gpu:0",
        "gpu:1",
    ]


@pytest.mark.parametrize("change", ["number", "remote", "cpu", "groups", "failure"])
def test_a_run_has_its_gpu_alone_where_nothing_is_to_be_decided(tmp_path, change, monkeypatch):
    launcher, runs_per_gpu = Launcher(), "auto"
    if change == "number":
        runs_per_gpu = 1
    elif change == "remote":
        launcher.remote = True
    elif change == "cpu":
        launcher.device = "cpu"
    elif change == "groups":
        launcher.worlds = [1, 2]
    else:

        def fail(verb, question):
            raise Failure("worker load: no kernel")

        launcher.ask = fail
    lines = []
    words = "stem=none,dpn"
    shown = names(tmp_path, launcher, words, runs_per_gpu=runs_per_gpu, lines=lines)
    assert shown == ["gpu:0", "gpu:1"]
    assert ["no kernel" in line for line in lines] == [True] * (change == "failure")


def test_the_largest_run_is_timed_at_its_micro_batch(tmp_path, monkeypatch):
    """On a CPU, with what only a GPU has replaced: its events, memory, and waits."""
    sizes = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            pass

        def elapsed_time(self, end):
            return 4.0  # ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 5)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (6, 7))
    monkeypatch.setattr(calibrate, "TIMED_S", 0.0)
    step = Training.step

    def noted(training):
        sizes.append((training.run.model.depth, training.micro_batch))
        step(training)

    monkeypatch.setattr(Training, "step", noted)
    words = ["model.depth=1,3", "train.micro_batch=16", "seeds=1"]
    plan, _ = make_plan(words, store=tmp_path)
    specs = [cell.spec.with_seed(0).tree for cell in plan.cells]
    question = {"specs": specs, "settled": {}, "cache": str(tmp_path), "device": "cpu"}
    answer = answers.answer("load", question, lambda done, total: None)
    assert answer.pop("step_s") > 0
    assert answer == {"device_s": 0.004, "peak_bytes": 5, "total_bytes": 7}
    assert {*sizes} == {(3, 16)}


def test_a_run_without_memory_gets_all_of_it_alone():
    slots = packed([Slot("gpu:0", "gpu:0", "cuda")], 2)
    states = {"a": RunState("oom", oom=1), "b": RunState()}
    assert assign(["b"], {}, slots, states, PlaceRecord())[1].share == 0.5
    run, slot = assign(["a"], {}, slots, states, PlaceRecord())
    assert (run, slot) == ("a", replace(slots[0], share=1.0))
    assert assign(["b"], {"a": slot}, slots, states, PlaceRecord()) is None  # nobody joins it


def test_a_gpu_on_which_an_earlier_drivers_runs_train_is_not_tried(tmp_path):
    """Its slot has another name until it is decided how many share it."""
    launcher, tried = Launcher(), []

    def unfit(slots):
        tried.extend(slot.name for slot in slots)
        return {}

    launcher.unfit = unfit
    drop_unfit_slots(launcher, {"gpu:0.2"}, pytest.fail)
    assert tried == ["gpu:1"]
    assert preflight.usable(launcher.slots, {}) == launcher.slots
