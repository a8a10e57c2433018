"""Learning curves of the live page: single runs, and means over the seeds of a cell.

Used by `answers.py`; charts.js draws them. A new colour in plot/form.py `COLOURS` may need its
shade in ON_DARK; DARK_PAGE must agree with page.css.
"""

from __future__ import annotations

import colorsys
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.planning import PlannedRun
from ablate.report.live import first_metric, metrics_lines
from ablate.run import Metric
from ablate.shared import is_number
from ablate.store import Store

POINTS = 400  # of a curve, at most
LEAST_CONTRAST = 4.5  # of a line to the dark page, WCAG
DARK_PAGE = "#1e2125"  # --card of page.css in dark mode
# Colours of figures on it. Blue and green, made only as light as it takes, could be confused.
ON_DARK = {
    "#0072B2": "#4A9BE8",
    "#D55E00": "#F57F3C",
    "#009E73": "#52E3A4",
    "#CC79A7": "#DF9CC6",
    "#E69F00": "#FFC23D",
    "#56B4E9": "#A8DEFF",
}

Lines = Sequence[Mapping[str, Any]]  # of metrics.jsonl
Curves = Mapping[str, Any]


class CurveReader:
    """Reads the curves of a store's runs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def curves_of(
        self, groups: Sequence[Sequence[PlannedRun]], cached_tag: str
    ) -> tuple[str, list[Curves] | None]:
        """Return (tag, the curves of each group), None for the curves where the tag is
        `cached_tag`. A group of one run has its values; of several runs, the mean, the least and
        the greatest over those that reached an epoch."""
        lines: dict[str, Lines] = {}
        ends = []
        for group in groups:
            for run in group:
                lines[run.id] = metrics_lines(self._store.rundir(run.id))
                ends.append((run.id, len(lines[run.id]), lines[run.id][-1:]))
            ends.append(("", 0, []))  # the end of the group
        tag = hashlib.sha256(json.dumps(ends).encode()).hexdigest()[:16]
        if tag == cached_tag:
            return tag, None
        curves = []
        for group in groups:
            curves.append(_curves(first_metric(group[0]), [lines[run.id] for run in group]))
        return tag, curves


def _curves(metric: Metric, runs: Sequence[Lines]) -> Curves:
    """Return {by, n, loss, score} of the runs; `loss` and `score` are {x, mean} and, of several
    runs, low and high."""
    started_runs = [lines for lines in runs if lines]
    clock = "epoch" if started_runs and "epoch" in started_runs[0][-1] else "step"
    return {
        "by": clock,
        "n": len(started_runs),
        "loss": _course(started_runs, clock, "train_loss", 1.0),
        "score": _course(started_runs, clock, f"val_{metric.key}", metric.scale),
    }


def _course(runs: Sequence[Lines], clock: str, key: str, scale: float) -> dict[str, list[float]]:
    values: dict[float, list[float]] = {}
    for lines in runs:
        for line in lines:
            if is_number(line.get(clock)) and is_number(line.get(key)):
                values.setdefault(line[clock], []).append(scale * line[key])
    times = sorted(values)
    stride = -(-len(times) // POINTS) or 1
    if stride > 1:
        times = [*times[:-1:stride], times[-1]]
    course = {
        "x": [_short(time) for time in times],
        "mean": [_short(sum(values[time]) / len(values[time])) for time in times],
    }
    if len(runs) > 1:
        course["low"] = [_short(min(values[time])) for time in times]
        course["high"] = [_short(max(values[time])) for time in times]
    return course


def _short(value: float) -> float:
    """Round to five digits, which are fewer bytes."""
    return float(f"{value:.5g}")


# --- Colours ------------------------------------------------------------------------------------


def on_dark(colour: str) -> str:
    """Return a colour of figures, "#0072B2", as it is drawn on the dark page: one of `ON_DARK`, or
    of the same hue, and as light as LEAST_CONTRAST takes."""
    if colour in ON_DARK:
        return ON_DARK[colour]
    hue, lightness, saturation = colorsys.rgb_to_hls(*_parts(colour))
    while _contrast(colour, DARK_PAGE) < LEAST_CONTRAST:
        lightness = min(1.0, lightness + 0.02)
        parts = colorsys.hls_to_rgb(hue, lightness, saturation)
        colour = "#" + "".join(f"{round(255 * part):02x}" for part in parts)
    return colour


def _contrast(foreground: str, background: str) -> float:
    """Return the contrast of two colours: WCAG 2.1, section 1.4.3."""
    lights = sorted((_luminance(foreground), _luminance(background)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def _luminance(colour: str) -> float:
    """Return the relative luminance of a colour of sRGB: WCAG 2.1, its glossary."""
    red, green, blue = _parts(colour)
    return 0.2126 * _linear(red) + 0.7152 * _linear(green) + 0.0722 * _linear(blue)


def _linear(part: float) -> float:
    if part <= 0.04045:
        return part / 12.92
    return math.pow((part + 0.055) / 1.055, 2.4)


def _parts(colour: str) -> tuple[float, float, float]:
    """Return red, green and blue of "#rrggbb", each from 0 to 1."""
    return int(colour[1:3], 16) / 255, int(colour[3:5], 16) / 255, int(colour[5:7], 16) / 255
