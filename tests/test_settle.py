"""What is decided once for a column: whatever order its runs come in, however often it is asked."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import pytest
import tiny
import torch

from ablate.data.splits import Split
from ablate.planning.expand import plan_from_words as make_plan
from ablate.running.gpus import Gpu, GpuSet
from ablate.running.launchers import Slot
from ablate.running.preflight import decision_for, measure_rates, settle_auto_keys, shape
from ablate.shared.errors import Failure
from ablate.shared.files import write_sealed
from ablate.store.store import Store
from ablate.training import calibrate, numerics
from ablate.training import column_decision as training

CPU = torch.device("cpu")
BOTH = ("train.micro_batch=auto", "train.deterministic=auto", "seeds=2")


class Asked:
    """A launcher that answers `settle` with as many images as its deepest model leaves."""

    remote, worlds = False, [1]

    def __init__(self, device="cuda", model="H100", slots=1):
        self.slots = [Slot(f"gpu:0.{n}", "gpu:0", device) for n in range(slots)]
        gpus = (Gpu("0", "GPU-0", model, "GPU-0"),) if device == "cuda" else ()
        self.devices = GpuSet(gpus)
        self.asked, self.more = [], {}

    def ask(self, verb, question):
        assert not self.remote
        assert verb == "settle"
        self.asked.append(question)
        images = min(256 // spec["model"]["depth"] for spec in question["specs"])
        images = min(images, question["known"].get("micro_batch", images))
        found = {"micro_batch": images, "deterministic": images > 100}
        return {key: found[key] for key in question["wants"]} | self.more


def decided(store, launcher, *words):
    made, _ = make_plan([*words, *BOTH], store=store.root)
    decisions = settle_auto_keys(made, store, launcher, launcher.asked.append)
    by = {run.cell.row: decision_for(decisions, run) for run in made.runs()}
    assert len(by) == len(made.rows)
    return by, launcher.asked


def test_a_column_has_one_decision_and_is_asked_once(tmp_path):
    store, depths = Store(tmp_path), "1,4,2"
    by, asked = decided(store, Asked(slots=2), f"model.depth={depths}")
    assert list(by.values()) == [{"micro_batch": 64, "deterministic": False}] * 3
    assert (len(asked), asked[0]["share"], asked[0]["device"]) == (1, 0.5, "cuda")
    assert asked[0]["specs"][0]["model"]["depth"] == 1  # the baseline's
    assert sorted(asked[0]["wants"]) == ["deterministic", "micro_batch"]
    # in another order, by another name, with other lengths: what was decided
    again, asked = decided(store, Asked(slots=2), "model.depth=1,2,4", "train.epochs=2")
    assert (again, asked) == (by, [])
    # alone on the GPU, or on another one
    assert len(decided(store, Asked(), f"model.depth={depths}")[1]) == 1
    assert len(decided(store, Asked(model="A100", slots=2), f"model.depth={depths}")[1]) == 1


def test_nobody_here_is_asked_about_devices_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(Asked, "remote", True)
    asked = Asked()
    asked.slots = []  # no node is there yet
    assert decided(Store(tmp_path), asked, "model.depth=1,2") == (
        {"depth=1": {}, "depth=2": {}},
        [],
    )


def test_rows_that_join_a_column_take_its_decision_or_lower_it(tmp_path):
    store = Store(tmp_path)
    decided(store, Asked(), "model.depth=1,4")
    by, asked = decided(store, Asked(), "model.depth=1,4,2")
    assert {row["micro_batch"] for row in by.values()} == {64}
    assert [spec["model"]["depth"] for spec in asked[0]["specs"]] == [2]
    assert asked[0]["known"] == {"micro_batch": 64, "deterministic": False}
    by, asked = decided(store, Asked(), "model.depth=1,4,2,8")
    assert {row["micro_batch"] for row in by.values()} == {32}
    (store.cache / "settled.json").write_text("{}")  # damaged: it is asked again
    assert len(decided(store, Asked(), "model.depth=1,8")[1]) == 1


def test_columns_are_apart_and_what_is_said_is_not_asked(tmp_path):
    store = Store(tmp_path)
    made, _ = make_plan(["stem=none,dpn", "model.arch=mu/4,Ti/4", *BOTH], store=tmp_path)
    decisions = settle_auto_keys(made, store, Asked(), pytest.fail)
    columns = {column: one["micro_batch"] for (_, column), one in decisions.items()}
    assert columns == {"mu/4": 256, "Ti/4": 256 // 12}
    launcher = Asked("cpu")
    assert settle_auto_keys(made, store, launcher, pytest.fail)
    assert {tuple(question["wants"]) for question in launcher.asked} == {("micro_batch",)}
    made, _ = make_plan(["stem=none,dpn", "seeds=2"], store=tmp_path)
    launcher = Asked()
    assert settle_auto_keys(made, store, launcher, pytest.fail) == {}
    assert launcher.asked == []


@pytest.mark.parametrize(("free", "warns"), [(77e9, False), (75e9, True)])
def test_the_memory_that_a_micro_batch_was_tried_in_is_said_and_kept(free, warns, tmp_path):
    """A tenth of it in use by others is the bound."""
    store, launcher, lines = Store(tmp_path), Asked(), []
    launcher.more = {"memory": [int(free), int(84e9)]}
    made, _ = make_plan(["stem=none,dpn", *BOTH], store=tmp_path)
    decisions = settle_auto_keys(made, store, launcher, lines.append)
    assert all("memory" not in decision for decision in decisions.values())
    [line], file = lines, store.cache / "settled.json"
    assert f"none: train.micro_batch=auto is 256 on gpu:0, where {free / 1e9:.1f} of 84.0" in line
    assert (line.startswith("warning: "), f"delete {file}" in line) == (warns, warns)
    kept = json.loads(file.read_text())
    assert [each["memory"] for each in kept.values() if isinstance(each, dict)] == [
        launcher.more["memory"]
    ]
    settle_auto_keys(made, store, Asked(), pytest.fail)  # decided


def test_rates_are_measured_once_a_kind_of_gpu_and_precision(tmp_path):
    asked, store = [], Store(tmp_path)
    made, _ = make_plan(["train.precision=fp32,bf16", "seeds=2"], store=tmp_path)

    def ask(verb, question):
        precision = question["spec"]["train"]["precision"]
        asked.append((verb, precision, question["device"]))
        if precision == "bf16":
            raise Failure("worker rate: CUDA error")
        write_sealed(tmp_path / "cache" / "rates.json", {"H100, fp32": 3e13})

    (tmp_path / "cache").mkdir()
    gpus = GpuSet((Gpu("0", "GPU-0", "H100", "GPU-0"),))
    launcher = SimpleNamespace(remote=False, device="cuda", devices=gpus, ask=ask)
    measure_rates(made, store, launcher)
    assert asked == [("rate", "fp32", "cuda"), ("rate", "bf16", "cuda")]
    measure_rates(made, store, launcher)
    assert asked[2:] == [("rate", "bf16", "cuda")]
    for other in ({"remote": True}, {"device": "cpu"}):
        measure_rates(made, store, SimpleNamespace(**{**vars(launcher), **other}))
    assert len(asked) == 3


def test_a_shape_has_both_towers_and_what_of_them_is_frozen():
    lit = {"task": "contrastive", "text": tiny.TEXT, "optim.lr_mult": {"image": 0}}
    texts = ({**tiny.TEXT, "depth": 3}, {**tiny.TEXT, "vocab": 64})
    others = [{**lit, "text": text} for text in texts] + [{**lit, "optim.lr_mult": {"image": 0.1}}]
    shapes = [shape(tiny.run(changes).spec) for changes in ({}, lit, *others)]
    assert len({*shapes}) == 5


# --- The training half --------------------------------------------------------------------------


@pytest.fixture
def digits(monkeypatch):
    """Images of the right size, wherever they would come from."""
    images = torch.zeros((64, 8, 8, 3), dtype=torch.uint8)
    split = Split(images, torch.zeros(64).long(), torch.ones(64))
    made = SimpleNamespace(split=lambda name: split)
    monkeypatch.setattr(training, "prepare_cache", lambda data, cache: made)


def test_the_heaviest_decides_and_one_that_breaks_does_not(monkeypatch, digits, tmp_path):
    auto = {"train.batch": 64, "train.micro_batch": "auto"}
    one, three, two, broken = (tiny.run({**auto, "model.depth": depth}) for depth in (1, 3, 2, 9))
    each = [training._kept(run, CPU, {}) for run in (one, two, three)]
    assert each[0] < each[1] < each[2]
    monkeypatch.setattr(calibrate, "free_bytes", lambda: 30 * each[2] / calibrate.SPARE)
    small = training._small

    def breaks(run, device, found):
        if run is broken:
            raise RuntimeError("a mistake of its author")
        yield from small(run, device, found)

    def found(some, **known):
        return training.settle(some, ["micro_batch"], known, tmp_path, CPU)

    monkeypatch.setattr(training, "_small", breaks)
    runs = [one, three, two]
    for _ in range(3):
        random.shuffle(runs)
        assert found([*runs, broken]) == {"micro_batch": 16}
    assert found(runs, micro_batch=8) == {"micro_batch": 8}
    assert found([broken], micro_batch=8) == {"micro_batch": 8}
    assert found([broken]) == {}


@pytest.mark.parametrize(("ratio", "expected"), [(1.09, True), (1.11, False)])
def test_determinism_is_on_where_it_costs_little_and_all_have_it(monkeypatch, ratio, expected):
    asked = []
    monkeypatch.setattr(
        training, "deterministic_ratio", lambda run, device: asked.append(run) or ratio
    )
    runs = [tiny.run({"train.deterministic": "auto", "model.depth": depth}) for depth in (1, 2)]

    def found(some, **known):
        answer = training.settle(some, ["deterministic"], known, None, CPU)
        numerics.deterministic_algorithms(False)
        return answer["deterministic"]

    assert found(runs) is expected
    assert asked == runs[:1]  # the baseline's time alone
    if not expected:
        return
    assert found(runs, deterministic=True)  # a decision stands
    assert not found(runs, deterministic=False)
    assert len(asked) == 1
    step = training.Training.step

    def stepped(one):
        if one.run.model.depth == 2:
            raise RuntimeError("x_backward_cuda does not have a deterministic implementation")
        step(one)

    monkeypatch.setattr(training.Training, "step", stepped)
    assert not found(runs)
    assert not found(runs[1:], deterministic=True)


def test_a_sweep_keeps_it_and_its_runs_have_it(shell):
    """Rows whose own batches differ take their parts of what fits all."""
    words = ("train.batch=64,48", "train.steps=2", "model.depth=1", "seeds=1")
    shell("sweep", *words, "train.micro_batch=auto", "train.deterministic=auto", "launcher=inline")
    root = shell.folder / "runs"
    kept = json.loads((root / "cache" / "settled.json").read_text())
    [one] = [kept[key] for key in kept.keys() - {"seal"}]
    assert (one["micro_batch"], len(one["shapes"])) == (64, 2)
    results = [json.loads(path.read_text()) for path in root.glob("runs/*/result.json")]
    assert sorted(result["micro_batch"] for result in results) == [48, 64]
    assert all(result["deterministic"] for result in results)
