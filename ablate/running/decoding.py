"""The images that a plan's trainings read a second, and the cores that it takes to decode them.

With `data.cache=encoded` each image is decoded every time that a step sees it, on the host, while
the GPU computes the step before. A forecast of the GPU's time holds only where the host keeps up.

Used by running/estimate.py, for the notes of `ablate plan` and `ablate sweep`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ablate.running.work import CellWork

# Seconds of a core for an image whose shorter side has 256 px: as AugReg crops and as DeiT does, by
# `benchmarks/input.py --whole` on an AMD EPYC (benchmarks/results/input.txt). Originals, of about
# twice as many pixels, take about twice as long.
DECODE_S = (0.66e-3, 1.08e-3)


def decode_seconds(work: CellWork, cores: float) -> float:
    """Return the seconds in which so many cores decode the images of a training, by the larger of
    `DECODE_S`; 0 where nothing is decoded while it trains, or the images are unknown."""
    if work.cell.spec.tree["data"]["cache"] != "encoded":
        return 0.0
    return work.images * max(DECODE_S) / cores


def decoding_lines(works: Sequence[CellWork], cores: float | None = None) -> list[str]:
    """Return a line on the cores that decode the images of a device, for the cell that reads most;
    no line where nothing is decoded while it trains, or no time is known.

    `cores`: those of this host for each device; None: of another host, whose cores are unknown.
    `works`: with the seconds in which the device computes.
    """
    rates = []
    for work in works:
        section = work.cell.spec.tree["data"]
        if section["cache"] == "encoded" and work.images and work.seconds:
            rates.append((work.images / (work.seconds * work.ranks), section["name"]))
    if not rates:
        return []
    rate, name = max(rates)
    low_cores, high_cores = (rate * seconds for seconds in DECODE_S)
    low_ms, high_ms = (1e3 * seconds for seconds in DECODE_S)
    line = (
        f"the files of {name} are decoded while a run trains: up to {rate:,.0f} images/s a device "
        f"keep {low_cores:.1f} to {high_cores:.1f} cores busy ({low_ms:g} to {high_ms:g} ms an "
        "image of 256 px, originals twice that)"
    )
    if cores is not None and cores < high_cores:
        slower = high_cores / cores
        line += (
            f"; this machine has {cores:g} for each, so decoding makes a run up to {slower:.1f} "
            f"times as long"
        )
    return [line]
