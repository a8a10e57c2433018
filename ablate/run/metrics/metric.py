"""Declarations of metrics and tasks. They need no library.

Used by all tables and figures (analysis/, report/) and by the other files of run/metrics/, which
declare metrics and tasks. A new attribute that users may set also needs run/own.py
`METRIC_ATTRIBUTES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ablate.shared import amount_text

if TYPE_CHECKING:  # numpy, which `ablate --help` does without
    import numpy as np

    from ablate.run.metrics.probed import Probed


SHARES = "a metric with unit % holds shares (0 to 1)"
PERCENTS = "add `scale: 1` if its values are percents"


@dataclass(frozen=True)
class Metric:
    """How a metric is named, printed and judged. Values are stored raw and printed `scale` times.

    `key` names it in `result.json`, `--show` and `analysis.metric` and, after `val_`, in
    `metrics.jsonl`. `chance`: the raw value that guessing gets, by the number of classes; a
    diverged run may count as that value. Every declared metric has one.
    """

    key: str
    name: str
    short: str  # the name as a part of another: "epochs to 90 % validation top-1"
    unit: str  # of a value
    points: str  # of a difference
    scale: float
    decimals: int
    chance: Callable[[int], float | None]
    sign: int = 1  # -1 where less is better
    most: float | None = None  # of a printed value, whose least is 0
    is_share: bool = False  # of the examples, each right or wrong: its error is binomial
    needs: str = ""  # without which it is not measured; "" where it always is
    of_curve: bool = False  # taken from the validation curve, not from the test set
    probe: str = ""  # whose file it is a number of; "" of none
    layer: int = 0  # whose number it is, counted from 1; 0: of no one layer
    neutral: bool = False  # neither more nor less is better
    on: str = ""  # what it is measured on, in the words of a caption; "": the test set
    how: str = ""  # a sentence of captions on what is measured
    own: str = ""  # the version of the user's function that it is made by; "" of a declared one
    right_within: int = 0  # it is the share of examples whose true class has a rank below it; 0: no
    guessed: bool = True  # is there what guessing gets, which `chance` then says?
    of_shares: bool = False  # raw values are shares (0 to 1), though no range was declared

    def text(self, value: float, sign: bool = False) -> str:
        """Return a printed value, rounded as tables print it; `sign`: with its sign, as a
        difference."""
        if abs(value) >= 1e9:
            return f"{value:{'+' if sign else ''}.3g}"
        value = round(value, self.decimals) + 0.0  # a rounded -0.001 is 0.00, not -0.00
        return f"{value:{'+' if sign else ''}.{self.decimals}f}"

    def interval(self, low: float | None, high: float | None, sign: bool = False) -> str:
        """Return an interval as "[+0.21, +1.03]"; "" where it is not known. An end of a difference
        that would be printed as 0, and is not, has as many decimals as its side of 0 takes, so that
        it contradicts no verdict: "[-0.97, -0.0004]"."""
        if low is None or high is None:
            return ""
        return f"[{self._end(low, sign)}, {self._end(high, sign)}]"

    def _end(self, value: float, sign: bool) -> str:
        extra = range(1, 7)  # decimals; what they round to 0 is the rounding of a computation
        exact = (f"{value:+.{self.decimals + more}f}" for more in extra)
        if sign and value and not round(value, self.decimals):
            return next((text for text in exact if float(text)), self.text(value, sign))
        return self.text(value, sign)

    def no_share(self, raw: float) -> str:
        """Say why a raw value of a metric of shares is none, with the remedy; "" where it is one. A
        metric with a declared range is not checked: a value outside it was refused when it was
        measured."""
        if not self.of_shares or 0 <= raw <= 1:
            return ""
        wider = "declare a `range` if it may have such values"
        return f"{self.key}: {raw:g} is no share, but {SHARES}; {PERCENTS}, or {wider}"

    @property
    def change(self) -> str:
        """The word for the difference of a row from the baseline: "gain", or "difference" where
        neither direction is better."""
        return "difference" if self.neutral else "gain"

    def contrast_with(self, baseline: str) -> str:
        """Name a row's difference from a baseline: "gain over pre/pre"."""
        return f"{self.change} {'from' if self.neutral else 'over'} {baseline}"

    @property
    def validated(self) -> str:
        """The name of the metric on the validation set: "validation top-1 accuracy"."""
        return f"validation {self.name.removeprefix('test ')}"

    def with_unit(self, name: str) -> str:
        """Return a name with the unit, as axes have it: "validation top-1 accuracy, %"."""
        return ", ".join(filter(None, (name, self.unit)))

    def with_points(self, name: str) -> str:
        """Return a name of differences with their unit, as axes have it: "gain, points"."""
        return ", ".join(filter(None, (name, amount_text("", self.points))))

    def printed(self, raw: float) -> str:
        """Return a raw value in printed form with its unit: "87.40 %"."""
        return f"{self.scale * raw:.{self.decimals}f} {self.unit}".rstrip()


def uniform(classes: int) -> float:
    """Return the share of examples that guessing gets right."""
    return 1 / classes


def share(
    key: str, name: str, short: str, chance: Callable[[int], float] = uniform, **fields: Any
) -> Metric:
    """Make the metric of a share of the test set, in per cent. `fields`: its other fields."""
    return Metric(key, name, short, "%", "points", 100.0, 2, chance, most=100.0, **fields)


@dataclass(frozen=True)
class Excerpt:
    """The part of a task's predictions that a lean bundle keeps.

    `take`: extracts it from the array of `predictions.npy`; `score`: computes metrics from it,
    among them `metrics`; `keeps`: what it holds of an example, in words.
    """

    take: Callable[[np.ndarray], np.ndarray]
    score: Callable[[np.ndarray], dict[str, float]]
    metrics: tuple[str, ...]
    keeps: str


@dataclass(frozen=True)
class TaskChoice:
    """A task as the half that decides knows it: tables, searches and captions read it here.

    `metrics`: the first is the one that tables show by default, and that of validation curves.
    `score`: computes the metrics of a test set, and the number of examples as `n`, from the array
    of `predictions.npy` (a row for each example) and the number of classes. `outputs`: how many
    values the model's head gives, by the number of classes. `how`: a sentence for captions that
    holds for every metric. `shown`, of a task that trains nothing: how many images a run is shown,
    by the images of each split and the number of classes. `probed`: the numbers of probes that its
    runs may have, by probe. `user_metrics`: the metrics that a plan takes from functions of the
    user's own, by import path. `labels`: what it learns from, as `data.labels` says. `host`: the
    class of the ViT; `unlike_timm`: what this class has and timm's lacks. `says`: keys of `model`
    that a run sets itself where it starts from another. `views`: about how many images of
    `data.size` the model is shown for each image evaluated. `reads_text`: whether its model has a
    text tower and reads the targets, too; its loss is then one of the whole batch. `label_sets`:
    whether it measures images that have several classes each. `excerpt`: the part of its
    predictions that a lean bundle keeps; None: all of them. `source`: a citation ("-": none).
    """

    line: str
    path: str  # of the class that trains it
    metrics: tuple[Metric, ...]
    score: Callable[[np.ndarray, int], dict[str, float]]
    prior: str  # the best prediction that looks at no image, in words
    keeps: str  # what `predictions.npy` has of an example, in words
    outputs: Callable[[int], int] = lambda classes: classes
    how: str = ""
    examples: str = "images"  # what a test set is of
    collapse: str = ""  # how a run ends that collapsed, in words; "": by its training loss
    untested: str = "no test result yet"
    clock: str = "epoch"  # what its curves are over
    shown: Callable[[Mapping[str, int], int], int] | None = None
    probed: Mapping[str, Probed] = field(default_factory=dict)
    user_metrics: Mapping[str, Metric] = field(default_factory=dict)
    labels: Literal["classes", "masks"] = "classes"
    host: str = "ablate.training.model.vit:ViT"
    unlike_timm: str = ""
    says: tuple[str, ...] = ("dropout", "drop_path")
    views: int = 1
    reads_text: bool = False
    label_sets: bool = False
    excerpt: Excerpt | None = None
    source: str = "-"

    @property
    def trains(self) -> bool:
        """True where runs of the task take steps. Other runs measure the weights that they start
        from."""
        return self.shown is None

    @property
    def curve(self) -> tuple[str, ...]:
        """The names of the metrics of the task's validation curve; () where it has none."""
        return (AREA, f"{CROSSING}:SHARE") if self.trains else ()

    def among(self, learnt: int, tested: int | None) -> int:
        """Return the number of classes among which a guess chooses in a test set of `tested`
        classes. A task with texts chooses among those, which may include classes that nothing was
        learnt of; a head always among all that it has learnt."""
        return tested if self.reads_text and tested is not None else learnt

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which `analysis.metric` and `--show` know the task's metrics."""
        metric_names = (*(metric.key for metric in self.metrics), AREA, f"{CROSSING}:SHARE")
        return (*metric_names, *(name for probed in self.probed.values() for name in probed.names))

    def find(self, name: str) -> Metric | None:
        """Return the metric of this name: a declared one, one of the validation curve or one of a
        probe. None where the task has none."""
        main_metric = self.metrics[0]
        if name in self.user_metrics:
            return self.user_metrics[name]
        probe, _, number = name.partition(":")
        if probe in self.probed:
            return self.probed[probe].find(number)
        if name == AREA:
            title = f"mean validation {main_metric.short} of the curve"
            curve = replace(main_metric, key=AREA, name=title, of_curve=True, needs="")
            return replace(curve, is_share=False, right_within=0)
        if (value := threshold(name)) is not None:
            limit = math.inf if main_metric.most is None else main_metric.most / main_metric.scale
            return _crossing(name, main_metric, value) if 0 < value <= limit else None
        return {metric.key: metric for metric in self.metrics}.get(name)


AREA, CROSSING = "auc", "epochs_to"  # of the validation curve of a task's first metric


def threshold(name: str) -> float | None:
    """Parse "epochs_to:0.9": return the value, as it is stored. None for another name, and for no
    finite value."""
    kind, _, value = name.partition(":")
    try:
        return float(value) if kind == CROSSING and math.isfinite(float(value)) else None
    except ValueError:
        return None


def _crossing(name: str, main_metric: Metric, value: float) -> Metric:
    """Make the metric of how many epochs pass until validation reaches a value of the first
    metric."""

    def chance(classes: int) -> float | None:
        """Return 0.0 epochs where guessing already reaches the value, else None."""
        guess = main_metric.chance(classes)
        return 0.0 if guess is not None and main_metric.sign * (guess - value) >= 0 else None

    level = f"{main_metric.scale * value:g} {main_metric.unit}".rstrip()
    title = f"epochs to {level} validation {main_metric.short}"
    return Metric(*(name, title, title, "", "epochs", 1.0, 1), chance, sign=-1, of_curve=True)
