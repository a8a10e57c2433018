"""The peak rates of other hardware, by data sheets, and the time of a training on it.

Used by `ablate plan --on` (cli/driving.py, running/estimate.py). A new GPU is an entry of `PEAKS`,
which benchmarks/gpu_steps.py reads, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.run import open_world_sizes
from ablate.running.gpu_memory import Card
from ablate.running.launchers import MOST_SHARING
from ablate.running.launchers.local import check_groups, fixed_runs
from ablate.running.work import CellWork
from ablate.shared import UserError, unknown_value

ASSUMED_MFU = 0.35  # at most: an assumption, for large ViTs reach 0.3 to 0.5 in bf16
# Values that a training moves in memory for a multiply-add, times the model's width: multiply-adds
# grow with the square of the width, activations with the width. It was fitted to steps of one H100,
# from Ti/4 to B/16 (benchmarks/results/gpu.txt), and has been compared with no other GPU.
MOVED = 10.5
EVALUATION = 1.15  # what validation adds to the steps' time
# Of a kernel, where `MOST_SHARING` runs share a GPU: one alone has a kernel launched every 50 to 80
# us by a slow host (benchmarks/results/gpu.txt).
LAUNCH_S = 5e-6
START_S = 2.0  # of a run: a context on the device, its first kernels. An assumption


@dataclass(frozen=True)
class Peak:
    """Floating-point operations a second by `train.precision`, bytes a second of the memory, its
    bytes, and the source.

    bf16, tf32: matrix products of the tensor cores, dense (data sheets print twice that, "with
    sparsity"). fp32: outside them.
    """

    rates: Mapping[str, float]
    bandwidth: float
    memory_bytes: float  # of the smallest card with this bandwidth, 1e9 for each GB of the sheet
    source: str


PEAKS: dict[str, Peak] = {
    "h100": Peak(
        {"bf16": 989e12, "tf32": 494.5e12, "fp32": 67e12},
        3.35e12,
        80e9,
        "NVIDIA H100 data sheet, SXM",
    ),
    "gh200": Peak(
        {"bf16": 989e12, "tf32": 494.5e12, "fp32": 67e12}, 4.0e12, 96e9, "NVIDIA GH200 data sheet"
    ),
    "b200": Peak(
        {"bf16": 2250e12, "tf32": 1125e12, "fp32": 75e12},
        8.0e12,
        180e9,
        "NVIDIA HGX B200 data sheet",
    ),
    "mi300x": Peak(
        {"bf16": 1307.4e12, "tf32": 653.7e12, "fp32": 163.4e12},
        5.3e12,
        192e9,
        "AMD Instinct MI300X data sheet",
    ),
    "h200": Peak(
        {"bf16": 989e12, "tf32": 494.5e12, "fp32": 67e12},
        4.8e12,
        141e9,
        "NVIDIA H200 data sheet, SXM",
    ),
    "a100": Peak(
        {"bf16": 312e12, "tf32": 156e12, "fp32": 19.5e12}, 2.04e12, 80e9, "NVIDIA A100 data sheet"
    ),
    "l40s": Peak(
        {"bf16": 362e12, "tf32": 183e12, "fp32": 91.6e12}, 0.864e12, 48e9, "NVIDIA L40S data sheet"
    ),
    "l4": Peak(
        {"bf16": 121e12, "tf32": 60e12, "fp32": 30.3e12}, 0.3e12, 24e9, "NVIDIA L4 data sheet"
    ),
    "a10": Peak(
        {"bf16": 125e12, "tf32": 62.5e12, "fp32": 31.2e12}, 0.6e12, 24e9, "NVIDIA A10 data sheet"
    ),
    "rtx4090": Peak(
        {"bf16": 165e12, "tf32": 82.6e12, "fp32": 82.6e12},
        1.008e12,
        24e9,
        "NVIDIA Ada architecture white paper",
    ),
    # These have fp16, and no bf16.
    "v100": Peak({"fp32": 15.7e12}, 0.9e12, 16e9, "NVIDIA V100 data sheet, SXM2"),
    "t4": Peak({"fp32": 8.1e12}, 0.32e12, 16e9, "NVIDIA T4 data sheet"),
}


@dataclass(frozen=True)
class Devices:
    """A number of devices of one kind, and how many may share a run. `mfu`: the share of their peak
    that a training reaches; None: that of a roofline. `runs`: how many share a device; None: as
    many as keep it busy.

    The share is model FLOPs utilisation (PaLM, arXiv 2204.02311, appendix B); the roofline takes
    the longer of arithmetic and memory (Williams, Waterman, Patterson 2009).
    """

    name: str
    count: int
    mfu: float | None
    worlds: Sequence[int] = (1,)
    runs: int | None = None

    @classmethod
    def parse(cls, text: str, mfu: float | None, launcher: Mapping[str, Any]) -> Devices:
        """Parse "h100:8", or "h100" for one device. `launcher`: the launcher group, for how many
        devices share a run and how many runs a device. Raises UserError."""
        name, colon, number = text.lower().partition(":")
        if name not in PEAKS:
            raise unknown_value("--on", name, PEAKS)
        if colon and not re.fullmatch(r"[1-9]\d*", number):
            raise UserError(f"--on: expected a number of devices such as {name}:8, got {text!r}")
        if mfu is not None and not 0 < mfu <= 1:
            raise UserError(f"--mfu: expected a share of the peak, 0 < mfu <= 1, got {mfu:g}")
        count = int(number or "1")
        per_run, setting = launcher.get("gpus_per_run", 1), launcher.get("runs_per_gpu", "auto")
        check_groups(fixed_runs(setting), per_run, count, f"--on has {count}")
        runs = None if setting == "auto" else int(setting)
        return cls(name, count, mfu, open_world_sizes(per_run, count), runs)

    def seconds(self, work: CellWork) -> float | None:
        """Return the seconds of a training on one device: those of its kernels, or of launching
        them. Raises UserError for a precision without a rate."""
        if work.multiply_adds is None:
            return None
        return START_S + max(self._kernels(work), self.launch_s * work.launches)

    @property
    def launch_s(self) -> float:
        """Seconds of a device for a kernel that is launched: the fewer runs share it, the longer it
        waits for the host."""
        return LAUNCH_S * MOST_SHARING / min(self.runs or MOST_SHARING, MOST_SHARING)

    @property
    def card(self) -> Card:
        """The card, its memory, and the runs that share it."""
        return Card(self.name, PEAKS[self.name].memory_bytes, self.runs or 1)

    def rate(self, precision: str) -> float:
        """Return the multiply-adds a second. Raises UserError for a precision without a rate."""
        rates = PEAKS[self.name].rates
        if precision not in rates:
            raise UserError(
                f"--on: no rate of {self.name} is known for train.precision={precision}; "
                f"its rates are for {', '.join(rates)}"
            )
        return rates[precision] * (self.mfu or ASSUMED_MFU) / 2

    def basis(self, precisions: list[str]) -> str:
        """Describe the assumptions of `seconds`."""
        peak = PEAKS[self.name]
        rates = []
        for precision in precisions:
            teraflops = peak.rates[precision] / 1e12
            rates.append(f"{teraflops:g} TFLOP/s in {precision}")
        percent = 100 * (self.mfu or ASSUMED_MFU)
        at = f"at {percent:g} % of the peak of {' and '.join(rates)}, dense"
        if self.mfu is None:
            terabytes = peak.bandwidth / 1e12
            at += f", or as {terabytes:g} TB/s of memory allow"
        return f"{at}; {peak.source}"

    def bound(self, works: Iterable[CellWork]) -> list[str]:
        """List a line where launches and starts take more of the remaining time than kernels."""
        launching_s = computing_s = 0.0
        for work in works:
            if work.multiply_adds is not None:
                launching_s += work.trainings_left * (START_S + self.launch_s * work.launches)
                computing_s += work.trainings_left * self._kernels(work)
        if launching_s <= computing_s:
            return []
        launch_us = 1e6 * self.launch_s
        return [
            f"the time on {self.name} is a lower bound: such small runs spend it on launching "
            f"kernels ({launch_us:g} us each) and on starting ({START_S:g} s each)"
        ]

    def _kernels(self, work: CellWork) -> float:
        """Return the seconds of a training's kernels: of their arithmetic, or of moving what they
        read and write. A whole model has no width that is known here."""
        tree, multiply_adds = work.cell.spec.tree, work.multiply_adds or 0.0
        precision, width = tree["train"]["precision"], tree["model"].get("width")
        seconds = multiply_adds / self.rate(precision)
        if self.mfu is None and width is not None:
            value_bytes = 2 if precision == "bf16" else 4
            moved_bytes = value_bytes * multiply_adds * MOVED / width
            seconds = max(seconds, moved_bytes / PEAKS[self.name].bandwidth)
        return EVALUATION * seconds
