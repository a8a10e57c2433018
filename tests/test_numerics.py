"""How a device computes is set and told. There is no GPU here: torch's switches are its own, and
what torch says of a GPU is put in its mouth."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch.backends import cuda, cudnn

from ablate.shared.errors import UserError
from ablate.training import answers, numerics
from ablate.training.numerics import Numerics, choose

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _as_before():
    """The switches of this process stay as they were."""
    switches = [
        *((was, enable) for was, enable, _ in numerics.SWITCHES.values()),
        (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    ]
    before = [was() for was, _ in switches]
    yield
    numerics.deterministic_algorithms(False)
    cuda.matmul.fp32_precision = cudnn.conv.fp32_precision = "none"
    cudnn.benchmark = False
    for (_, enable), value in zip(switches, before, strict=True):
        enable(value)


@pytest.fixture
def gpu(monkeypatch):
    """`gpu(capability, fused=...)`: torch has a GPU of that capability, whose fused kernels of
    attention take what it says."""
    real = torch.empty

    def on_the_cpu(*shape, **more):
        device = "cpu" if more.get("device") == GPU else more.get("device")
        return real(*shape, **more | {"device": device})

    def has(capability=(9, 0), fused=lambda params: True):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch, "empty", on_the_cpu)
        for name, (was, enable, _) in list(numerics.SWITCHES.items()):
            if name != "math":  # as torch, which can't use what is switched off
                can = lambda params, was=was: was() and fused(params)  # noqa: E731
                monkeypatch.setitem(numerics.SWITCHES, name, (was, enable, can))

    return has


@pytest.mark.parametrize(
    ("precision", "kernel", "tf32"),
    [
        ("fp32", "efficient", False),
        ("tf32", "efficient", True),
        ("bf16", "flash", False),
        ("fp64", "math", False),
    ],
)
def test_each_precision_on_a_gpu(gpu, precision, kernel, tf32):
    gpu()
    run = tiny.run({"train.precision": precision})
    for _ in range(2):  # what is set is not what is chosen next by
        found = choose(run, GPU)
        assert found == Numerics(False, kernel, tf32=tf32, cudnn_benchmark=True)
        found.use()
        on = [name for name, (was, _, _) in numerics.SWITCHES.items() if was()]
        assert on == ([kernel] if kernel == "math" else [kernel, "math"])  # torch takes it last
        assert not cuda.cudnn_sdp_enabled()
        expected = "tf32" if tf32 else "ieee"
        assert cuda.matmul.fp32_precision == cudnn.conv.fp32_precision == expected
        assert cudnn.benchmark
        assert not torch.are_deterministic_algorithms_enabled()


def test_what_no_fused_kernel_takes_is_computed_by_products(gpu):
    seen = []
    gpu(fused=lambda params: seen.append(params.query.shape) or params.query.shape[-1] <= 16)
    assert choose(tiny.run({"model.head_dim": 17}), GPU).kernel == "math"
    assert choose(tiny.run(), GPU).kernel == "efficient"
    assert seen[0][2] == 5  # 8 x 8 pixels in patches of 4, and the class token
    assert choose(tiny.run({"model.pool": "gap"}), GPU).kernel == "efficient"
    assert seen[-1][2] == 4
    assert choose(tiny.run({"model.arch": "mlp/3x10"}), GPU).kernel == "math"


@pytest.mark.parametrize(
    ("asked", "settled", "expected"),
    [
        (False, {"deterministic": True}, False),
        (True, {"deterministic": False}, True),
        ("auto", {"deterministic": True}, True),
        ("auto", {"deterministic": False}, False),
        ("auto", {}, True),
    ],
)
def test_determinism_is_as_asked_or_as_it_was_settled(gpu, asked, settled, expected):
    gpu()
    run = tiny.run({"train.deterministic": asked})
    found = choose(run, GPU, settled)
    assert (found.deterministic, found.cudnn_benchmark) == (expected, not expected)
    found.use()
    assert torch.are_deterministic_algorithms_enabled() == expected
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert cudnn.benchmark != expected


def test_a_cpu_has_kernels_of_its_own_and_no_switch_is_touched():
    before = {name: was() for name, (was, _, _) in numerics.SWITCHES.items()}
    for precision, kernel in (("fp32", "sdpa"), ("bf16", "explicit"), ("fp64", "sdpa")):
        found = choose(tiny.run({"train.precision": precision}), CPU)
        assert found == Numerics(False, kernel)
        found.use()
    assert {name: was() for name, (was, _, _) in numerics.SWITCHES.items()} == before
    assert choose(tiny.run({"train.deterministic": "auto"}), CPU).deterministic


def test_tf32_is_refused_where_there_is_none(gpu, tmp_path):
    run = tiny.run({"train.precision": "tf32"})
    needs = r"^train\.precision: tf32 needs a GPU of compute capability 8\.0 \(A100\) or later, "
    needs += "and "
    with pytest.raises(UserError, match=needs + r"a CPU has none; give train\.precision=fp32$"):
        choose(run, CPU)
    gpu((7, 5))
    with pytest.raises(UserError, match=needs + r"this one has 7\.5; give"):
        choose(run, GPU)
    assert choose(tiny.run(), GPU).kernel == "efficient"
    question = {"specs": {"a": run.spec.tree}, "calibrate": [], "peaks": [], "cache": str(tmp_path)}
    with pytest.raises(UserError, match="a CPU has none"):  # before anything is trained
        answers.answer("describe", question | {"device": "cpu"}, lambda done, total: None)
    # reckoned for hardware that is not here
    told = answers.answer("describe", question | {"device": "cuda"}, lambda done, total: None)
    assert told["a"]["parameters"] > 0


def test_the_spec_says_it_and_no_id_does():
    assert tiny.run().id == "1b10adc6de6f6755"
    with pytest.raises(UserError, match=r"train\.deterministic: expected auto, true or false"):
        tiny.run({"train.deterministic": "sometimes"})
