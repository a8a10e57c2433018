"""The peak rates of other hardware, by data sheets, and the time of a training on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ablate.shared.errors import UserError, unknown

ASSUMED_MFU = 0.35  # an assumption: large ViTs reach 0.3 to 0.5 in bf16, small ones less


@dataclass(frozen=True)
class Peak:
    """Floating-point operations a second by `train.precision`, and the source.

    bf16, tf32: matrix products of the tensor cores, dense (data sheets print twice that, "with
    sparsity"). fp32: outside them.
    """

    rates: Mapping[str, float]
    source: str


PEAKS: dict[str, Peak] = {
    "h100": Peak({"bf16": 989e12, "tf32": 494.5e12, "fp32": 67e12}, "NVIDIA H100 data sheet, SXM"),
    "h200": Peak({"bf16": 989e12, "tf32": 494.5e12, "fp32": 67e12}, "NVIDIA H200 data sheet, SXM"),
    "a100": Peak({"bf16": 312e12, "tf32": 156e12, "fp32": 19.5e12}, "NVIDIA A100 data sheet"),
    "l40s": Peak({"bf16": 362e12, "tf32": 183e12, "fp32": 91.6e12}, "NVIDIA L40S data sheet"),
    "l4": Peak({"bf16": 121e12, "tf32": 60e12, "fp32": 30.3e12}, "NVIDIA L4 data sheet"),
    "a10": Peak({"bf16": 125e12, "tf32": 62.5e12, "fp32": 31.2e12}, "NVIDIA A10 data sheet"),
    "rtx4090": Peak(
        {"bf16": 165e12, "tf32": 82.6e12, "fp32": 82.6e12}, "NVIDIA Ada architecture white paper"
    ),
    "v100": Peak({"fp32": 15.7e12}, "NVIDIA V100 data sheet, SXM2"),  # it has fp16, and no bf16
}


@dataclass(frozen=True)
class Devices:
    """A number of devices of one kind, and the share of their peak that a training reaches: model
    FLOPs utilisation (PaLM, arXiv 2204.02311, appendix B)."""

    name: str
    count: int
    mfu: float

    @classmethod
    def parse(cls, text: str, mfu: float | None) -> Devices:
        """Parse "h100:8", or "h100" for one device. Raises UserError."""
        name, colon, number = text.partition(":")
        if name not in PEAKS:
            raise unknown("--on", name, PEAKS)
        if colon and not re.fullmatch(r"[1-9]\d*", number):
            raise UserError(f"--on: expected a number of devices such as {name}:8, got {text!r}")
        if mfu is not None and not 0 < mfu <= 1:
            raise UserError(f"--mfu: expected a share of the peak, 0 < mfu <= 1, got {mfu:g}")
        return cls(name, int(number or "1"), ASSUMED_MFU if mfu is None else mfu)

    def seconds(self, multiply_adds: float, precision: str) -> float:
        """Compute the seconds on one device. Raises UserError for a precision without a rate."""
        rates = PEAKS[self.name].rates
        if precision not in rates:
            raise UserError(
                f"--on: no rate of {self.name} is known for train.precision={precision}; "
                f"its rates are for {', '.join(rates)}"
            )
        return 2 * multiply_adds / (rates[precision] * self.mfu)

    def basis(self, precisions: list[str]) -> str:
        """Describe the assumptions of `seconds`."""
        peak = PEAKS[self.name]
        rates = " and ".join(f"{peak.rates[p] / 1e12:g} TFLOP/s in {p}" for p in precisions)
        return f"at {100 * self.mfu:g} % of the peak of {rates}, dense; {peak.source}"
