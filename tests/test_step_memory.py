"""What a training step takes of a GPU's memory, without a GPU: against peaks that torch counted."""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
from nvidia import EIGHT, Machine, gpu

from ablate.data import batches
from ablate.planning.compose import resolve_run
from ablate.run.build import build_run
from ablate.running import gpu_memory
from ablate.running.gpu_memory import Card, smallest_card, step_memories
from ablate.running.gpus import find
from ablate.training import calibrate
from ablate.training.step_memory import peak_bytes, step_shape

CIFAR = "recipe=cifar data=cifar10"
FEW = f"{CIFAR} model.arch=B/16 train.batch=64"  # images: gradients and moments decide
IMAGENET = "data=imagenet1k"
AUGREG = f"recipe=augreg {IMAGENET}"
S16, B16 = f"{AUGREG} model.arch=S/16 train.batch=256", f"{AUGREG} model.arch=B/16"
# GB that torch 2.11's allocator gave out at most in three steps, on stand-ins of CUDA's libraries:
# kernels computed nothing, and all else was as on an H100.
COUNTED = {
    f"{CIFAR} model.arch=Ti/4": 3.036,
    f"{CIFAR} model.arch=S/8": 1.942,
    f"{CIFAR} model.arch=S/4": 6.193,
    f"{CIFAR} model.arch=S/4 model.act=swiglu": 6.986,
    f"{CIFAR} model.arch=S/4 train.precision=fp64 train.batch=64": 3.275,
    f"{AUGREG} model.arch=Ti/16 train.batch=512": 9.432,
    f"{AUGREG} model.arch=S/16 train.batch=512": 18.374,
    f"{AUGREG} model.arch=S/16 train.batch=288 train.micro_batch=96": 4.013,
    f"{B16} train.batch=256": 19.031,
    f"{B16} train.batch=256 model.dropout=0": 19.023,
    f"{B16} train.batch=256 norm=rmsnorm": 19.026,
    f"{B16} train.batch=256 stem=dpn": 19.342,
    f"{B16} train.batch=256 train.micro_batch=64": 6.606,
    f"{B16} train.batch=64 train.precision=fp32": 8.930,
    f"{B16} train.batch=64 train.precision=tf32": 8.930,
    f"{B16} train.batch=64 optim.name=lion": 5.393,
    f"{B16} train.batch=64 optim.name=muon": 5.404,
    f"{B16} train.batch=64 optim.name=adafactor_bv": 5.231,
    f"{AUGREG} model.arch=L/16 train.batch=128": 27.415,
    f"{AUGREG} model.arch=L/16 train.batch=256 train.micro_batch=32": 13.995,
    f"{S16} norm=scalenorm": 9.425,
    f"{S16} norm=dyt": 11.393,
    f"{S16} norm=batchnorm": 9.415,
    f"{S16} norm=groupnorm": 9.415,
    f"{S16} norm=instancenorm": 11.296,
    f"{S16} norm=powernorm": 11.307,
    f"{S16} norm=switchnorm": 11.315,
    f"{S16} stem=conv": 11.605,
    f"{S16} stem=whiten": 9.429,
    f"{S16} block.attn=post": 9.426,
    f"{S16} block=bnffn": 14.211,
    f"{S16} block=hybridnorm": 11.835,
    f"{S16} block=deepnorm": 9.360,
    f"{S16} block=lns": 9.423,
    f"{S16} norm=derf": 13.346,
    f"{S16} stem=hmlp": 10.462,
    f"{S16} model.posemb=rope2d": 10.816,
    f"{S16} model.qk_norm=true": 12.745,
    f"{S16} model.layerscale=0.1": 10.316,
    f"{S16} model.act=geglu": 10.617,
    f"{S16} data.size=384": 26.643,
    f"recipe=deit {IMAGENET} model.arch=S/16 train.batch=512": 18.496,
    f"recipe=deit {IMAGENET} model.arch=S/16": 36.427,
    f"recipe=deit {IMAGENET} model.arch=B/16 train.micro_batch=128": 12.345,
    f"recipe=deit3 {IMAGENET} model.arch=deit_s/16 train.batch=512": 20.208,
    f"recipe=dtn {IMAGENET} model.arch=S/16 train.batch=256": 16.275,
    f"recipe=dtn {IMAGENET} model.arch=S/16": 63.450,
    f"recipe=finetune {IMAGENET} model.arch=B/32 train.batch=256": 5.690,
    FEW: 1.758,
    f"{FEW} optim.name=lion": 1.610,
    f"{FEW} optim.name=lamb": 2.295,
    f"{FEW} optim.name=sgd": 1.416,
    f"{FEW} optim.name=adafactor": 1.071,
    f"{FEW} optim.name=adafactor_bv": 1.255,
    f"{FEW} optim.name=muon": 1.417,
    "recipe=quick data=mnist5k model.arch=mu/4 train.batch=128": 0.054,
}
GPU_TXT = Path(__file__).parents[1] / "benchmarks" / "results" / "gpu.txt"
# Cases of its part `steps` before which the process had held little; the others' peaks have up to
# 2.4 GB of earlier ones.
MEASURED = {
    "mu/4": "recipe=quick data=mnist5k model.arch=mu/4 train.batch=128",
    "Ti/4": f"{CIFAR} model.arch=Ti/4",
    "Ti/4 deterministic": f"{CIFAR} model.arch=Ti/4 train.deterministic=true",
    "S/16 augreg": f"{AUGREG} model.arch=S/16 train.batch=512",
    "B/16 augreg, no dropout": f"{B16} train.batch=256 model.dropout=0",
    "S/16 deit": f"recipe=deit {IMAGENET} model.arch=S/16 train.batch=512",
    "S/8": f"{CIFAR} model.arch=S/8",
    "S/16 dtn": f"recipe=dtn {IMAGENET} model.arch=S/16 train.batch=256",
}


def run_of(words: str):
    if "train.micro_batch" not in words:
        words += " train.micro_batch=null"
    tree, _ = resolve_run(words.split(), Path("runs"))
    return build_run(tree)


def peak_gb(words: str) -> float:
    run = run_of(words)
    return peak_bytes(run)[str(run.train.micro_batch or run.train.batch)] / 1e9


def is_as_counted(words: str) -> None:
    bound = 0.08 if "stem=conv" in words else 0.025  # its largest tensors are not its last
    assert peak_gb(words) == pytest.approx(COUNTED[words], rel=bound, abs=0.1)


@pytest.mark.parametrize("words", [*COUNTED][::7])
def test_a_peak_is_what_torchs_allocator_counted(words):
    is_as_counted(words)


@pytest.mark.whole
@pytest.mark.parametrize("words", COUNTED)
def test_every_peak_is_what_torchs_allocator_counted(words):
    is_as_counted(words)


@pytest.mark.parametrize("case", MEASURED)
def test_a_peak_is_what_an_h100_took(case):
    line = rf"^  {re.escape(case)}, batch .* peak ([\d.]+) GB"
    measured = float(re.search(line, GPU_TXT.read_text(), re.MULTILINE)[1])
    assert peak_gb(MEASURED[case]) == pytest.approx(measured, rel=0.1, abs=1.0)


def test_a_micro_batch_takes_its_share_of_the_images_and_the_sums_of_gradients():
    """By the slope between sizes: what the backward pass of an image needs is the same in each."""
    peaks = peak_bytes(run_of(f"{B16} train.batch=4096 train.micro_batch=auto"))
    sizes = [2**n for n in range(12, -1, -1)]
    assert [*peaks] == [str(size) for size in sizes]
    gradients = 4 * 86_567_656
    per_image = (19.031e9 - 6.606e9 + 2 * gradients) / 192  # of `COUNTED`, with two sums
    for larger, smaller in pairwise(sizes[:5]):
        step = peaks[str(larger)] - peaks[str(smaller)] + gradients  # each halving: one sum more
        assert step / (larger - smaller) == pytest.approx(per_image, rel=0.02)


def test_runs_that_differ_in_their_rates_and_data_alone_have_one_peak():
    base = run_of(f"{CIFAR} model.arch=Ti/4")
    for words in ("optim.lr=0.5", "train.epochs=3", "augment.mixup=0.2", "seed=7"):
        other = run_of(f"{CIFAR} model.arch=Ti/4 {words}")
        assert step_shape(other) == step_shape(base)
        assert peak_bytes(other) == peak_bytes(base)
    shapes = {step_shape(run_of(words)) for words in [*COUNTED][:12]}
    assert len(shapes) == 12


def test_what_cannot_be_counted_is_not_known():
    lit = {"task": "contrastive", "text": tiny.TEXT, "optim.lr_mult": {"image": 0}}
    assert peak_bytes(tiny.run(lit)) is None
    assert peak_bytes(tiny.run({"train.batch": 4})).keys() == {"4", "2", "1"}


@pytest.mark.whole
def test_counting_loads_no_compiler():
    """It would take as long as torch itself."""
    code = f"""
import sys
from pathlib import Path
from ablate.planning.compose import resolve_run
from ablate.data import batches
from ablate.run.build import build_run
from ablate.running import gpu_memory
from ablate.training import calibrate
from ablate.training.step_memory import peak_bytes
for words in ({S16!r}, "recipe=deit {IMAGENET} model.arch=S/16", "{CIFAR} model.arch=Ti/4"):
    peak_bytes(build_run(resolve_run(words.split(), Path("runs"))[0]))
    assert "torch._dynamo" not in sys.modules, words
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- Whether it fits ------------------------------------------------------------------------------


def test_both_halves_leave_a_gpu_as_much():
    assert (gpu_memory.STEP_SHARE, gpu_memory.SPLIT_SHARE) == (calibrate.MARGIN, batches.SHARE)


GB = 10**9
PEAKS = {"64": 60 * GB, "32": 35 * GB, "16": 20 * GB, "8": 12 * GB, "4": 8 * GB, "2": 6 * GB}
PEAKS["1"] = 5 * GB
SPLITS = {"train": 100_000, "validation": 1_000, "test": 10_000}


def cell(row: str, micro_batch: object = "auto", column: str = "", **data: object):
    train = {"batch": 64, "micro_batch": micro_batch}
    data = {"size": 100, "channels": 3, "cache": "encoded", "cache_size": None, **data}
    tree = {"train": train, "data": {"labels": "classes", **data}}
    return SimpleNamespace(row=row, column=column, spec=SimpleNamespace(tree=tree))


def memories(cells, gigabytes: float | None, worlds=(1,), factors=None) -> dict:
    described = {}
    for each in cells:
        factor = (factors or {}).get(each.row, 1)
        peaks = {size: factor * peak for size, peak in PEAKS.items()}
        described[each.row, each.column] = {"peak_bytes": peaks, "examples": SPLITS}
    card = None if gigabytes is None else Card("card", gigabytes * GB)
    return step_memories(cells, described, card, worlds)


def test_a_column_takes_the_micro_batch_of_its_largest_variant():
    found = memories([cell("a"), cell("b"), cell("a.from")], 40, factors={"b": 2})
    sizes = {row: (m.micro_batch, m.peak_bytes, m.fitting) for (row, _), m in found.items()}
    assert sizes["a"] == (8, 12 * GB, 32)  # 36 of 40 GB may be taken
    assert sizes["b"] == (8, 24 * GB, 8)
    assert sizes["a.from"] == (32, 35 * GB, 32)  # parents decide for themselves
    assert all(m.fits for m in found.values())


def test_a_fixed_micro_batch_fits_or_does_not():
    found = memories([cell("all", None), cell("some", 16)], 40)
    assert [(m.micro_batch, m.fitting, m.fits) for m in found.values()] == [
        (64, 32, False),
        (16, 32, True),
    ]
    (none,) = memories([cell("all", None)], 5).values()
    assert (none.fitting, none.fits) == (0, False)
    (unknown,) = memories([cell("all", None)], None).values()
    assert (unknown.fitting, unknown.fits) == (None, True)
    assert memories([cell("a")], None) == {}  # auto asks a GPU


def test_several_gpus_share_a_step_of_at_least_eight_micro_batches():
    (memory,) = memories([cell("a")], 80, worlds=(1, 2, 4, 8)).values()
    assert (memory.micro_batch, memory.fitting) == (8, 64)


def test_decoded_splits_stay_on_a_gpu_that_has_room_for_them():
    """30 kB an image: 3 GB of train, which a third of 10 GB takes and one of 9 GB does not."""
    decoded = {"cache": "decoded"}
    (beside,) = memories([cell("a", 2, **decoded)], 10.1).values()
    assert beside.peak_bytes == 6 * GB + sum(SPLITS.values()) * 30_000
    (without,) = memories([cell("a", 2, **decoded)], 9).values()
    assert without.peak_bytes == 6 * GB + 11_000 * 30_000
    (squeezed,) = memories([cell("a", 2, cache_size=50, **decoded)], 9).values()
    assert squeezed.peak_bytes == 6 * GB + sum(SPLITS.values()) * 7_500


def test_the_memory_of_the_gpus_here_is_that_of_the_smallest(tmp_path, monkeypatch):
    machine = Machine(tmp_path / "gpus", gpu(0), gpu(1, **{"memory.total": 24564}))
    monkeypatch.setenv("PATH", machine.path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert smallest_card(find("auto", None).gpus).memory_bytes == 24564 * 2**20
    assert smallest_card(find("0", None).gpus).memory_bytes == 81559 * 2**20
    machine.has([gpu(0, **{"memory.total": "[N/A]"})])
    assert smallest_card(find("auto", None).gpus) is None
    machine.has(EIGHT)
    assert smallest_card(find("auto", None).gpus) is None  # two are in slices
    assert smallest_card(()) is None


@pytest.mark.whole
def test_a_plan_says_whether_its_steps_fit(shell):
    words = ("plan", "recipe=augreg", "data=imagenet21k", "model.arch=B/16", "stem=none,dpn")

    def planned(*more: str) -> dict:
        return json.loads(shell(*words, *more, "--format", "json").out)

    fits = planned("--on", "h100")
    assert fits["gpu"] == {"name": "h100", "memory_bytes": 80e9}
    for variant in fits["variants"]:
        # as one H100 chose: 1,024 of 4,096 images did not fit
        assert (variant["memory"]["micro_batch"], variant["memory"]["is_auto"]) == (512, True)
        assert 38e9 < variant["memory"]["peak_bytes"] < 45e9
    assert re.search(r"^memory:", shell(*words, "--on", "h100").out, re.MULTILINE)
    whole = planned("--on", "l4", "train.micro_batch=null")
    assert all(variant["memory"]["fitting"] == 128 for variant in whole["variants"])
    (line,) = [line for line in whole["warnings"] if "train.micro_batch=" in line]
    assert line.endswith("128")
    here = planned()
    assert here["gpu"] is None
    assert [variant["memory"] for variant in here["variants"]] == [None, None]
