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
from ablate.running.gpu_memory import Card, memory_warnings, smallest_card, step_memories
from ablate.running.gpus import find
from ablate.training import answers, calibrate
from ablate.training.answers import countable_peaks
from ablate.training.step_memory import count_peaks

CIFAR = "recipe=cifar data=cifar10"
IMAGENET = "data=imagenet1k"
AUGREG = f"recipe=augreg {IMAGENET}"
DEIT = f"recipe=deit {IMAGENET}"
B16 = f"{AUGREG} model.arch=B/16"
# Bytes of runs on stand-ins of CUDA's libraries: kernels computed nothing, and all else was as on
# an H100. tests/null_gpu/step_peaks.py writes them.
PEAKS_FILE = Path(__file__).parent / "golden" / "step_peaks.json"
COUNTED: dict[str, int] = json.loads(PEAKS_FILE.read_text())
GPU_TXT = Path(__file__).parents[1] / "benchmarks" / "results" / "gpu.txt"
# Cases of its part `steps` before which the process had held little; the others' peaks have up to
# 2.4 GB of earlier ones. It has a digit behind the point.
MEASURED = {
    "Ti/4": f"{CIFAR} model.arch=Ti/4",
    "Ti/4 deterministic": f"{CIFAR} model.arch=Ti/4 train.deterministic=true",
    "S/16 augreg": f"{AUGREG} model.arch=S/16 train.batch=512",
    "B/16 augreg, no dropout": f"{B16} train.batch=256 model.dropout=0",
    "S/16 deit": f"recipe=deit {IMAGENET} model.arch=S/16 train.batch=512",
    "S/16 dtn": f"recipe=dtn {IMAGENET} model.arch=S/16 train.batch=256",
}


# A norm that looks at values where it trains.
LOOKING = """
import torch

class Norm(torch.nn.LayerNorm):
    def forward(self, x):
        if self.training and x.max() > 0:
            x = x + 0
        return super().forward(x)
"""


def run_of(words: str):
    return build_run(resolve_run(words.split(), Path("runs"))[0])


def peaks_of(words: str) -> dict[str, int]:
    """Return the peak of a step by the number of images at once."""
    return count_peaks(run_of(words)).peak_bytes


def peak_of(words: str) -> int:
    run = run_of(words)
    return count_peaks(run).peak_bytes[str(run.train.micro_batch or run.train.batch)]


def is_as_counted(words: str) -> None:
    counted = COUNTED[words]
    bound = 0.025
    if "stem=conv" in words:
        bound = 0.08  # its largest tensors are not its last
    elif counted < 2e9:
        bound = 0.065  # blocks of the allocator, of up to 20 MB
    assert peak_of(words) == pytest.approx(counted, rel=bound)


@pytest.mark.parametrize("words", [*COUNTED][::7])
def test_a_peak_is_what_torchs_allocator_counted(words):
    is_as_counted(words)


@pytest.mark.whole
@pytest.mark.parametrize("words", COUNTED)
def test_every_peak_is_what_torchs_allocator_counted(words):
    is_as_counted(words)


@pytest.mark.whole
@pytest.mark.parametrize("case", MEASURED)
def test_a_peak_is_what_an_h100_took(case):
    line = rf"^  {re.escape(case)}, batch .* peak ([\d.]+) GB"
    measured = float(re.search(line, GPU_TXT.read_text(), re.MULTILINE)[1])
    words = f"{MEASURED[case]} train.micro_batch=null"
    assert peak_of(words) / 1e9 == pytest.approx(measured, rel=0.06)


def test_a_micro_batch_takes_its_share_of_the_images_and_the_sums_of_gradients():
    """By the slope between sizes: what the backward pass of an image needs is the same in each."""
    peaks = peaks_of(f"{B16} train.batch=4096 train.micro_batch=auto")
    sizes = [2**n for n in range(12, -1, -1)]
    assert [*peaks] == [str(size) for size in sizes]
    gradients = 4 * 86_567_656
    whole = COUNTED[f"{B16} train.batch=256 train.micro_batch=null"]
    quarters = COUNTED[f"{B16} train.batch=256 train.micro_batch=64"]  # with two sums
    per_image = (whole - quarters + 2 * gradients) / 192
    for larger, smaller in pairwise(sizes[:5]):
        step = peaks[str(larger)] - peaks[str(smaller)] + gradients  # each halving: one sum more
        assert step / (larger - smaller) == pytest.approx(per_image, rel=0.02)


@pytest.mark.whole
def test_steps_of_other_memory_have_other_settings():
    """`answer_describe` counts runs of equal settings once."""
    base = f"{CIFAR} model.arch=Ti/4 train.micro_batch=null"
    for words in ("optim.lr=0.5", "train.epochs=3", "seed=7"):
        assert run_of(f"{base} {words}").spec.step_identity == run_of(base).spec.step_identity
        assert peaks_of(f"{base} {words}") == peaks_of(base)
    settings = [run_of(words).spec.step_identity for words in [*COUNTED][::5]]
    assert all(settings.count(a) == 1 for a in settings)
    sgd = f"{base} optim.name=sgd"
    bare = f"{sgd} optim.b1=0"
    assert peak_of(bare) < peak_of(sgd)
    assert run_of(bare).spec.step_identity != run_of(sgd).spec.step_identity


def test_what_cannot_be_counted_is_not_known():
    lit = {"task": "contrastive", "text": tiny.TEXT, "optim.lr_mult": {"image": 0}}
    assert count_peaks(tiny.run(lit)) is None
    assert count_peaks(tiny.run({"train.batch": 4})).peak_bytes.keys() == {"4", "2", "1"}


def test_who_looks_at_values_is_named_and_ours_is_no_reason(tmp_path, monkeypatch):
    (tmp_path / "looking.py").write_text(LOOKING)
    monkeypatch.chdir(tmp_path)
    own = run_of("recipe=quick data=digits norm=looking:Norm")
    peaks, lines = countable_peaks(own)
    assert peaks is None
    (line,) = lines
    assert line.startswith("norm: looking:Norm: ")

    def fail(run):
        raise RuntimeError("ours")

    monkeypatch.setattr(answers, "count_peaks", fail)
    with pytest.raises(RuntimeError, match="ours"):
        countable_peaks(tiny.run({}))


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
from ablate.training import answers, calibrate
from ablate.training.answers import countable_peaks
from ablate.training.step_memory import count_peaks
for words in ("{AUGREG} model.arch=S/16", "{DEIT} model.arch=S/16", "{CIFAR} model.arch=Ti/4"):
    count_peaks(build_run(resolve_run(words.split(), Path("runs"))[0]))
    assert "torch._dynamo" not in sys.modules, words
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- Whether it fits ------------------------------------------------------------------------------


def test_both_halves_leave_a_gpu_as_much():
    assert (gpu_memory.TRIAL_SHARE, gpu_memory.SHARED_SHARE, gpu_memory.SPLIT_SHARE) == (
        calibrate.MARGIN,
        calibrate.SHARED,
        batches.SHARE,
    )


GB = 10**9
PEAKS = {"64": 60 * GB, "32": 35 * GB, "16": 20 * GB, "8": 12 * GB, "4": 8 * GB, "2": 6 * GB}
PEAKS["1"] = 5 * GB
SPLITS = {"train": 100_000, "validation": 1_000, "test": 10_000}


def cell(row: str, micro_batch: object = "auto", column: str = "", **data: object):
    train = {"batch": 64, "micro_batch": micro_batch}
    data = {"size": 100, "channels": 3, "cache": "encoded", "cache_size": None, **data}
    tree = {"train": train, "data": {"labels": "classes", **data}}
    return SimpleNamespace(row=row, column=column, spec=SimpleNamespace(tree=tree))


def memories(cells, gigabytes: float | None, worlds=(1,), factors=None, runs: int = 1) -> dict:
    """`factors`: by row, how many times `PEAKS` its steps take."""
    described = {}
    for each in cells:
        factor = (factors or {}).get(each.row, 1)
        peaks = {size: factor * peak for size, peak in PEAKS.items()}
        step = {"image_bytes": factor * 0.8 * GB, "peak_bytes": peaks}
        described[each.row, each.column] = {"step": step, "examples": SPLITS}
    card = None if gigabytes is None else Card("card", gigabytes * GB, runs)
    return step_memories(cells, described, card, worlds)


def test_a_column_takes_the_micro_batch_of_its_largest_variant():
    found = memories([cell("a"), cell("b"), cell("a.from")], 40, factors={"b": 2})
    sizes = {row: (m.micro_batch, m.peak_bytes, m.fitting[0]) for (row, _), m in found.items()}
    assert sizes["a"] == (8, 12 * GB, 32)  # 36 of 40 GB may be taken
    assert sizes["b"] == (8, 24 * GB, 8)
    assert sizes["a.from"] == (32, 35 * GB, 32)  # parents decide for themselves
    assert all(m.fits for m in found.values())


def test_the_order_of_variants_decides_nothing():
    factors = {"small": 0.5, "large": 2}
    one = memories([cell("small"), cell("large")], 40, worlds=(1, 2), factors=factors)
    other = memories([cell("large"), cell("small")], 40, worlds=(1, 2), factors=factors)
    assert one == other
    assert {memory.micro_batch for memory in one.values()} == {8}


def test_a_fixed_micro_batch_fits_or_does_not():
    found = memories([cell("all", None), cell("some", 16)], 40)
    assert [(m.micro_batch, m.fitting[0], m.fits) for m in found.values()] == [
        (64, 32, False),
        (16, 32, True),
    ]
    (tight,) = memories([cell("some", 32)], 36).values()
    assert (tight.fits, tight.fitting[0]) == (True, 16)  # 35 of 36 GB, which auto would not try
    (none,) = memories([cell("all", None)], 5).values()
    assert (none.fitting, none.fits) == ([], False)
    (unknown,) = memories([cell("all", None)], None).values()
    assert (unknown.fitting, unknown.fits) == (None, None)
    assert memories([cell("a")], None) == {}  # auto asks a GPU


def test_runs_that_share_a_gpu_share_its_memory():
    """Each has 0.95 of its part, as `calibrate.limit` gives it."""
    (alone,) = memories([cell("a")], 80).values()
    (shared,) = memories([cell("a")], 80, runs=4).values()
    assert (alone.micro_batch, shared.micro_batch) == (64, 8)  # 0.9 * 19 GB
    (fixed,) = memories([cell("a", 16)], 80, runs=4).values()
    assert not fixed.fits  # 20 of 19 GB
    assert Card("card", 80 * GB, 4).run_bytes == 19 * GB


def test_several_gpus_share_a_step_of_at_least_eight_micro_batches():
    (memory,) = memories([cell("a")], 80, worlds=(1, 2, 4, 8)).values()
    assert (memory.micro_batch, memory.fitting[0]) == (8, 64)


def remedy(cells, gigabytes: float, factors=None, runs: int = 1) -> str:
    found = memories(cells, gigabytes, factors=factors, runs=runs)
    (line,) = memory_warnings(found, Card("card", gigabytes * GB, runs))
    return line.rpartition("; give ")[2]


def test_a_remedy_helps_every_step_that_does_not_fit():
    """By `PEAKS`: of 40 GB a micro-batch of 32 fits, 8 where a step takes twice as much."""
    rows = [cell("small", None), cell("large", None)]
    assert remedy(rows, 40) == "train.micro_batch=auto, or 32"
    assert remedy(rows, 40, factors={"large": 2}) == "train.micro_batch=auto, or 8"
    assert remedy([*rows[::-1]], 40, factors={"large": 2}) == "train.micro_batch=auto, or 8"
    assert "train.micro_batch" not in remedy(rows, 4)
    assert "launcher.runs_per_gpu" in remedy(rows, 40, runs=8)


def test_a_line_names_a_parent_by_its_child():
    parents = [cell(row, None) for row in ("a.from.from", "a.from.tune")]
    for parent in parents:
        (line,) = memory_warnings(memories([parent], 40), Card("card", 40 * GB))
        assert ".from" not in line
        assert "parent of" in line
        assert " a: " in line


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
    assert smallest_card(find("auto", None).gpus, 1).memory_bytes == 24564 * 2**20
    assert smallest_card(find("0", None).gpus, 1).memory_bytes == 81559 * 2**20
    machine.has([gpu(0, **{"memory.total": "[N/A]"})])
    assert smallest_card(find("auto", None).gpus, 1) is None
    machine.has(EIGHT)
    assert smallest_card(find("auto", None).gpus, 1) is None  # two are in slices
    assert smallest_card((), 1) is None


@pytest.mark.whole
def test_a_plan_says_whether_its_steps_fit(shell):
    words = ("plan", "recipe=augreg", "data=imagenet21k", "model.arch=B/16", "stem=none,dpn")

    def planned(*more: str) -> dict:
        return json.loads(shell(*words, *more, "--format", "json").out)

    fits = planned("--on", "h100")
    assert fits["gpu"] == {"name": "h100", "memory_bytes": 80e9, "runs": 1}
    for variant in fits["variants"]:
        # as one H100 chose: 1,024 of 4,096 images did not fit
        assert (variant["memory"]["micro_batch"], variant["memory"]["is_auto"]) == (512, True)
        assert 38e9 < variant["memory"]["peak_bytes"] < 45e9
    assert re.search(r"^memory:", shell(*words, "--on", "h100").out, re.MULTILINE)
    whole = planned("--on", "l4", "train.micro_batch=null")
    assert all(variant["memory"]["fitting"][0] == 128 for variant in whole["variants"])
    (line,) = [line for line in whole["warnings"] if "train.micro_batch=" in line]
    assert line.endswith("128")
    here = planned()
    assert here["gpu"] is None
    assert [variant["memory"] for variant in here["variants"]] == [None, None]
