"""Metrics of tables that probes measured: `PROBE:NUMBER`, each a number of a run's probe file.

No number is stored twice: it is computed from the arrays of `probe-NAME.npz` when a table is made,
and the run's result holds the hash of that file. The standard library only, until a number is
computed.

Used by `ablate table` (analysis/scores.py), by figures (report/plot/probes.py), frames
(report/frames.py) and `ablate export --lean` (audit/lean.py). The files are written by
training/probes/: a new number may need a new array there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ablate.run.metrics.frozen import FEWSHOT_SHOTS, KNN_NEIGHBOURS
from ablate.run.metrics.metric import Metric, share

Arrays = Mapping[str, Any]  # of a probe's file: numpy arrays by name
Spec = Mapping[str, Any]  # the plain tree of a run

KINDS = "biuf"  # of numpy: numbers
GRADNORM_STEPS = 1000  # steps that gradient norms are the mean of; of a short run its last tenth
EXCERPT_STRIDE = 8  # records of gradient norms of which a lean bundle keeps one
FIRST_SCALE = "stem.before.weight"  # the norm before the patch embedding, in probe-scales.npz


def no_chance(classes: int) -> None:
    """Return None: guessing has no gradients, scales or attention."""


# --- Gradient norms (Dual PatchNorm, arXiv 2302.01327, Fig. 2 and 4) ----------------------------


def read_gradnorm(arrays: Arrays) -> tuple[list[str], Any]:
    """Read the arrays of `probe-gradnorm.npz`: (labels of the depths, norms (records, depths)).

    The depths are the embedding (kernel and bias), each block with all that is in it, and the head.
    """
    import numpy as np

    groups = [str(group) for group in arrays["groups"]]
    members: dict[str, list[int]] = {"embedding": [], "head": []}
    blocks: dict[int, list[int]] = {}
    for n, group in enumerate(groups):
        if block := re.match(r"(?:blocks|layers)\.(\d+)", group):
            blocks.setdefault(int(block[1]), []).append(n)
        elif group in members:
            members[group].append(n)
    ordered = {
        "embedding": members["embedding"],
        **{f"{block + 1}": blocks[block] for block in sorted(blocks)},
        "head": members["head"],
    }
    indices_by_label = {label: indices for label, indices in ordered.items() if indices}
    squares = np.square(arrays["norms"].astype(np.float64))
    return list(indices_by_label), np.sqrt(
        np.stack([squares[:, i].sum(1) for i in indices_by_label.values()], 1)
    )


def gradnorm_profile(arrays: Arrays) -> tuple[list[str], Any]:
    """Return the labels of the depths, and the mean norm at each over the last records (see
    `_at_the_end`)."""
    labels, norms = read_gradnorm(arrays)
    return labels, norms[_at_the_end(arrays["steps"])].mean(0)


def _at_the_end(steps: Any) -> Any:
    """Return a mask (records,) of the records in the last tenth of a run's steps, at least 1 and at
    most GRADNORM_STEPS of them. `steps`: the step of each record; the mask is empty where there are
    none."""
    total_steps = steps[-1:].sum() + 1
    return steps >= total_steps - max(1, min(GRADNORM_STEPS, total_steps // 10))


def _excerpt(arrays: Arrays) -> dict[str, Any]:
    """Keep the records of the last steps, whose mean is a number of tables, and of all records
    every EVERYth."""
    import numpy as np

    steps = arrays["steps"]
    records = _at_the_end(steps) | (np.arange(len(steps)) % EXCERPT_STRIDE == 0)
    return {**arrays, "steps": steps[records], "norms": arrays["norms"][records]}


def _gradnorm(arrays: Arrays, spec: Spec) -> dict[str, float]:
    """Return log2 of the embedding's gradient norm over the blocks' mean norm. Norms differ by
    factors: without the logarithm, a row of large ones would have a large spread, too."""
    import numpy as np

    labels, norms = gradnorm_profile(arrays)
    blocks = [norm for label, norm in zip(labels, norms, strict=True) if label.isdecimal()]
    if labels[0] != "embedding" or not blocks:
        return {}
    with np.errstate(divide="ignore", invalid="ignore"):  # a frozen embedding has no gradient
        return {"embedding": float(np.log2(norms[0]) - np.log2(np.mean(blocks)))}


# --- Scales of the norm before the patch embedding (Dual PatchNorm, Fig. 3) ---------------------


def scale_summary(scale: Any) -> dict[str, float]:
    """Average a scale (P, P, C) at the four corners, in the centre (4 x 4; half of a side for
    patches smaller than 8), and elsewhere."""
    import numpy as np

    side = len(scale)
    middle = max(1, min(4, side // 2))
    start = (side - middle) // 2
    corners, centre = (np.zeros((side, side), bool) for _ in range(2))
    corners[np.ix_((0, -1), (0, -1))] = True
    centre[start : start + middle, start : start + middle] = True
    parts = {"corners": corners, "centre": centre, "rest": ~(corners | centre)}
    return {name: float(scale[mask].mean()) for name, mask in parts.items() if mask.any()}


def _scales(arrays: Arrays, spec: Spec) -> dict[str, float]:
    import numpy as np

    if FIRST_SCALE not in arrays:
        return {}
    side, channels = spec["model"]["patch"], spec["data"]["channels"]
    summary = scale_summary(arrays[FIRST_SCALE].astype(np.float64).reshape(side, side, channels))
    if rest := summary.get("rest"):
        summary |= {f"{part}/rest": summary[part] / rest for part in ("corners", "centre")}
    return summary


# --- Attention distance (DTN, arXiv 2112.02624), few-shot, k-NN ---------------------------------


def _attention(arrays: Arrays, spec: Spec) -> dict[str, float]:
    by_layer = arrays["distance"].astype(float).mean(1)
    layers = {str(number): float(mean) for number, mean in enumerate(by_layer, 1)}
    return {"mean": float(by_layer.mean()), **layers}


def _fewshot(arrays: Arrays, spec: Spec) -> dict[str, float]:
    means = arrays["accuracy"].mean(1)
    return {str(k): float(mean) for k, mean in zip(arrays["shots"], means, strict=True)}


def _knn(arrays: Arrays, spec: Spec) -> dict[str, float]:
    by_number = zip(arrays["neighbours"], arrays["accuracy"], strict=True)
    return {str(k): float(accuracy) for k, accuracy in by_number}


# --- All of them --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probed:
    """The numbers of one probe as metrics. `layer`: makes the metric of a layer, for a probe with a
    number for each. `excerpt`: the arrays that a lean bundle keeps, which give the same numbers;
    None: all of them."""

    probe: str
    metrics: tuple[Metric, ...]
    numbers: Callable[[Arrays, Spec], dict[str, float]]  # raw, by NUMBER
    layer: Callable[[str], Metric] | None = None
    excerpt: Callable[[Arrays], dict[str, Any]] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        layers = (f"{self.probe}:LAYER",) if self.layer else ()
        return (*(metric.key for metric in self.metrics), *layers)

    def find(self, number: str) -> Metric | None:
        if self.layer is not None and number.isdecimal() and number.isascii() and number[0] != "0":
            return self.layer(number)
        return {metric.key: metric for metric in self.metrics}.get(f"{self.probe}:{number}")


def _scale(part: str, description: str) -> Metric:
    names = f"scales:{part}", f"scale of the norm before the patch embedding, {description}", part
    return Metric(
        *(*names, "", "units", 1.0, 3, no_chance),
        probe="scales",
        neutral=True,
        on="weights of the last step",
        how="Scales are means over the values of a patch and its channels: 4 corners, a centre of "
        "4 x 4 places (half of a side in patches smaller than 8), the rest; a scale starts at 1.",
    )


def _distance(number: str, scope: str) -> Metric:
    names = f"attention:{number}", f"mean attention distance {scope}", f"distance {scope}"
    return Metric(
        *(*names, "grid units", "grid units", 1.0, 2, no_chance),
        probe="attention",
        neutral=True,
        on="the model of the last step on 500 to 999 evenly spaced validation images, or on all of "
        "fewer",
        how="Attention distance: from patch to patch, the class token left out, mean over heads; "
        "neighbours are 1 apart.",
    )


def _shots(shots: int) -> Metric:
    names = f"fewshot:{shots}", f"{shots}-shot accuracy", f"{shots}-shot"
    return share(
        *names,
        probe="fewshot",
        how="Few-shot: ridge regression on features of the model at the last step, with k training "
        "images a class; a run's accuracy is its mean over the draws of these images.",
    )


def _neighbours(neighbours: int) -> Metric:
    names = f"knn:{neighbours}", f"{neighbours}-NN accuracy", f"{neighbours}-NN"
    return share(
        *names,
        probe="knn",
        how="k-NN: the k training images nearest to a test image, by the cosine s of features of "
        "the model at the last step, vote for their classes, each with the weight exp(s / 0.07).",
    )


PROBE_METRICS = {
    probed.probe: probed
    for probed in (
        Probed(
            "gradnorm",
            (
                Metric(
                    "gradnorm:embedding",
                    "log2 of the embedding's gradient norm over the blocks' mean norm",
                    *("embedding/blocks", "log2", "doublings", 1.0, 2, no_chance),
                    probe="gradnorm",
                    neutral=True,
                    on="gradients of the last steps of training",
                    how=f"Gradient norms: 0 is on a par, 1 twice as large; before clipping, of the "
                    f"embedding's kernel and bias and of all parameters of a block, each a mean "
                    f"over the last tenth of the steps, at most {GRADNORM_STEPS:,}.",
                ),
            ),
            _gradnorm,
            excerpt=_excerpt,
        ),
        Probed(
            "scales",
            (
                _scale("corners", "corners of a patch"),
                _scale("centre", "centre of a patch"),
                _scale("rest", "rest of a patch"),
                _scale("corners/rest", "corners over the rest of a patch"),
                _scale("centre/rest", "centre over the rest of a patch"),
            ),
            _scales,
        ),
        Probed(
            "attention",
            (_distance("mean", "over all layers"),),
            _attention,
            layer=lambda number: replace(
                _distance(number, f"in layer {number}"), layer=int(number)
            ),
        ),
        Probed("fewshot", tuple(map(_shots, reversed(FEWSHOT_SHOTS))), _fewshot),
        Probed("knn", tuple(map(_neighbours, reversed(KNN_NEIGHBOURS))), _knn),
    )
}


def probe_numbers(probe: str, arrays: Arrays | None, spec: Spec) -> dict[str, float]:
    """Return every number of a probe's file, raw, by the name of its metric; {} where there is
    none. For a probe of the user's own, these are the arrays without a shape."""
    if not arrays:
        return {}
    if probe in PROBE_METRICS:
        numbers = PROBE_METRICS[probe].numbers(arrays, spec)
    elif ":" in probe:
        numbers = {
            key: float(a) for key, a in arrays.items() if a.shape == () and a.dtype.kind in KINDS
        }
    else:
        return {}
    return {f"{probe_name(probe)}:{number}": value for number, value in numbers.items()}


def probe_name(probe: str) -> str:
    """Return the name of a probe in files and numbers: "Sharpness" for myprobes:Sharpness."""
    return probe.rpartition(":")[2]
