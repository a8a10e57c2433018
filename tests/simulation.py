"""Simulated results, for the tests of the statistics and benchmarks/errors.py: drawn, and resampled
from real runs."""

import functools
import itertools
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ablate.analysis import stats

DRAWS = 20_000
AT_ONCE = 4_000_000  # right or wrong images

# A true gain, in standard deviations of a run, by seeds: of a power near a half.
EFFECT = {2: 4.0, 3: 3.0, 5: 2.0, 10: 1.4, 12: 1.25}


def simulate(rng, rows, n, correlation=0.0, draws=DRAWS):
    """Results (draws, rows, n) without any gain: unit variance, seed blocks correlated so."""
    own = rng.standard_normal((draws, rows, n))
    seeds = rng.standard_normal((draws, 1, n))
    return math.sqrt(1 - correlation) * own + math.sqrt(correlation) * seeds


def searched(rng, trials, searches, sharpness, draws=DRAWS):
    """How good the winners are of searches of ten rows, (draws, 10, searches): each row has an
    optimum of its own, and what is tried is the same for all rows of a search."""
    best = rng.uniform(0.3, 0.7, (draws, 10, 1, 1))
    tried = rng.random((draws, 1, searches, trials))
    quality = -sharpness * (tried - best) ** 2
    winner = (quality + rng.standard_normal(quality.shape)).argmax(-1)
    return np.take_along_axis(quality, winner[..., None], -1)[..., 0]


def family(rows, **settings):
    """The method of a column of so many rows, the baseline included."""
    return stats.Method(contrasts=rows - 1, variants=rows - 1, **settings)


def family_wise_error(y, method):
    found = stats.fit(y, method)
    return (abs(found.gain) > found.half)[:, 1:].any(-1).mean()


# --- Which images runs get right ----------------------------------------------------------------


class Tables(NamedTuple):
    """Accuracies y (tables, rows, n) in %, which images each run gets right (tables, rows, n, N),
    what accuracies tend to (tables or 1, rows), and a gain that half of the tables tell, in
    points."""

    y: np.ndarray
    right: np.ndarray
    truth: np.ndarray
    effect: float


@functools.cache
def populations():
    """Which test images real runs get right, by data set and row: (runs, N). 590 small vision
    transformers, a seed each; runs of one place in two rows have the same seed."""
    with np.load(Path(__file__).parent / "populations.npz") as file:
        return {
            name: np.unpackbits(file[name], axis=-1, count=int(file[f"{name}.N"]))
            for name in file
            if not name.endswith(".N")
        }


def resampled(rng, rows, n, tables, joint=False):
    """Tables of real runs, drawn with replacement; `joint`: the same seeds for all rows."""
    runs = [populations()[row] for row in rows]
    truth = np.array([[100 * row.mean() for row in runs]])
    accuracies = [100 * row.mean(1) for row in runs[:2]]
    if joint:
        spread = (accuracies[1] - accuracies[0]).std(ddof=1) / math.sqrt(2)
    else:
        spread = math.sqrt(np.mean([a.var(ddof=1) for a in accuracies]))
    most = max(1, AT_ONCE // (len(rows) * n * runs[0].shape[1]))
    fewest = min(len(row) for row in runs)
    for start in range(0, tables, most):
        size = (min(most, tables - start), n)
        one = rng.integers(fewest, size=size)
        drawn = [row[one if joint else rng.integers(len(row), size=size)] for row in runs]
        right = np.stack(drawn, 1)
        yield Tables(100 * right.mean(-1), right, truth, EFFECT[n] * spread)


def classified(
    rng, n, tables, accuracy=0.9, shift=0.0, points=0.0, near=0, clique=False, copies=1, rows=10
):
    """Tables of so many rows. An image's chance to be right is a logistic function of how easy it
    is, 80 % of which the rows share.

    By row: `accuracy`, `shift` (the sd of a run, on the logit of all its images), `points` (of a
    run, in points). `near` variants share the luck of nine images in ten and of the shift with the
    baseline, or, `clique`, with one another alone. `copies`: how often every image comes.
    """
    different = 300 // copies  # images
    shifts, moves = np.broadcast_to(shift, rows), np.broadcast_to(points, rows)
    levels = np.array([_level(float(a)) for a in np.broadcast_to(accuracy, rows)])
    alike = slice(1, 1 + near) if clique else slice(0, 1 + near)
    quantiles = math.sqrt(2) * np.polynomial.hermite.hermgauss(15)[0]
    weights = np.polynomial.hermite.hermgauss(15)[1] / math.sqrt(math.pi)
    for start in range(0, tables, most := max(1, AT_ONCE // (rows * n * different))):
        some = min(most, tables - start)
        easy = math.sqrt(0.8) * rng.standard_normal((some, 1, different))
        easy = easy + math.sqrt(0.2) * rng.standard_normal((some, rows, different))
        logit = levels[:, None] + SHARPNESS * easy
        luck = _random(rng, (some, rows, n, different))
        of_run = rng.standard_normal((some, rows, n))
        if near:
            shared = rng.standard_normal((some, 1, n))
            of_run[:, alike] = math.sqrt(0.02) * of_run[:, alike] + math.sqrt(0.98) * shared
            theirs = luck[:, alike]
            same = _random(rng, theirs.shape) < 0.9
            luck[:, alike] = np.where(same, _random(rng, (some, 1, n, different)), theirs)
        moved = logit[:, :, None] + (shifts[:, None] * of_run)[..., None]
        right = np.repeat(luck < 1 / (1 + np.exp(-moved.astype(np.float32))), copies, -1)
        truth = np.zeros((some, rows))
        for q, weight in zip(quantiles, weights, strict=True):
            truth += 100 * weight * (1 / (1 + np.exp(-logit - (shifts * q)[:, None]))).mean(-1)
        y = 100 * right.mean(-1) + moves[:, None] * rng.standard_normal((some, rows, n))
        spread = math.sqrt(y[:, :2].var(-1, ddof=1).mean())
        yield Tables(y, right, truth, EFFECT[n] * spread)


SHARPNESS = 2.5  # of the logistic function: the sharper, the fewer images flip between seeds


def _random(rng, shape):
    return rng.random(shape, np.float32)


@functools.cache
def _level(accuracy):
    """Of the logistic's argument, so that the chance to be right averages to `accuracy`."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(201)
    low, high = -60.0, 80.0
    for _ in range(80):
        middle = (low + high) / 2
        share = (weights / (1 + np.exp(-(middle + SHARPNESS * nodes)))).sum() / weights.sum()
        low, high = (middle, high) if share < accuracy else (low, middle)
    return low


class Judged(NamedTuple):
    """The share of tables in which some gain is wrongly told, and of those that tell the first
    variant's gain, were it larger by the tables' effect."""

    error: float
    power: float


def judged(several):
    """By which images flip."""
    wrong = told = count = 0
    for made in several:
        method = family(made.y.shape[1], spread="images")
        found = stats.fit(made.y, method, stats.ImageFlips.from_right(made.right))
        off = found.gain - (made.truth - made.truth[:, :1])
        wrong += ((np.abs(off) > found.half) & (found.sd > 0))[:, 1:].any(-1).sum()
        told += (off[:, 1] + made.effect > found.half[:, 1]).sum()
        count += len(made.y)
    return Judged(float(wrong / count), float(told / count))


# --- Forecasts of designs -------------------------------------------------------------------------


class DesignTable(NamedTuple):
    """One table of the cells of a factorial: accuracies y (cells, n) in %, the images that runs get
    right (cells, n, N), what accuracies tend to (cells,)."""

    y: np.ndarray
    right: np.ndarray
    truth: np.ndarray


MNIST = ("plain", "wd", "lr", "rms", "dpn", "whiten", "pre", "short")
FORECAST_DESIGNS = (
    "MNIST, rows as cells, same seeds",
    "digits, half of the cells short",
    "cells with a change share .3 of the shift",
    "one change has a shift of its own, .6",
)


def design_tables(case, rng, changes, n, tables):
    """Tables of the 2^changes cells of a factorial, of real runs or drawn. Drawn cells get 90 % of
    300 images right, and a seed shifts all images of a run by .3 on the logit."""
    levels = np.array([*itertools.product((0, 1), repeat=changes)])
    if case in FORECAST_DESIGNS[:2]:
        names = [f"mnist.{row}" for row in MNIST]
        if case == FORECAST_DESIGNS[1]:
            names = ["digits.plain70", "digits.short70"]
        # Cells that are one row again are its runs of other seeds.
        joint = case == FORECAST_DESIGNS[0] and len(levels) == len(MNIST)
        for made in resampled(rng, np.resize(names, len(levels)), n, tables, joint):
            for y, right in zip(made.y, made.right, strict=True):
                yield DesignTable(y, right, made.truth[0])
        return
    own, common = 0.3, 0.6  # of the shift of a run, on the logit
    nodes = math.sqrt(2) * np.polynomial.hermite.hermgauss(15)[0]
    weights = np.polynomial.hermite.hermgauss(15)[1] / math.sqrt(math.pi)
    for _ in range(tables):
        easy = math.sqrt(0.8) * rng.standard_normal((1, 300))
        easy = easy + math.sqrt(0.2) * rng.standard_normal((len(levels), 300))
        logit = _level(0.9) + SHARPNESS * easy
        shift = own * rng.standard_normal((len(levels), n))
        sd = np.full(len(levels), own)
        if case == FORECAST_DESIGNS[2]:
            part = rng.standard_normal((changes, 2, n))
            together = sum(part[k][levels[:, k]] for k in range(changes)) / math.sqrt(changes)
            shift = math.sqrt(0.7) * shift + math.sqrt(0.3) * own * together
        else:
            shift = shift + common * levels[:, :1] * rng.standard_normal((1, n))
            sd = np.sqrt(own**2 + (common * levels[:, 0]) ** 2)
        right = rng.random((len(levels), n, 300)) < 1 / (
            1 + np.exp(-(logit[:, None] + shift[..., None]))
        )
        truth = sum(
            100 * weight * (1 / (1 + np.exp(-(logit + (sd * node)[:, None])))).mean(-1)
            for node, weight in zip(nodes, weights, strict=True)
        )
        yield DesignTable(100 * right.mean(-1), right, truth)


class ForecastPower(NamedTuple):
    """The main effect that `plan` says n seeds detect, in points, its upper end, and the power of
    the table's own function to find an effect as large, averaged over the changes, and at the upper
    end."""

    gain: float
    power: float
    upper: float
    upper_power: float


def forecast_power(case, changes, n, tables, seed=15):
    """Of the forecast for a sweep whose spread between seeds is known."""
    levels = np.array([*itertools.product((0, 1), repeat=changes)])
    weights = np.array([stats.level_effect(levels, k) for k in range(changes)])
    made = [*design_tables(case, np.random.default_rng(seed), changes, n, tables)]
    spreads = [stats.residual_spread(table.y) for table in made]
    sd = math.sqrt(np.mean([0.0 if spread is None else spread.sd**2 for spread in spreads]))
    method = stats.Method("images", contrasts=changes, variants=changes)
    gains = [
        stats.detected_effect(sd, len(levels), n, method, part) for part in (0.0, stats.SHARED_PART)
    ]
    told = np.zeros(2)
    for table in made:
        found = stats.design_effects(table.y, weights, method, right=table.right)
        for effect, true in zip(found.gains, weights @ table.truth, strict=True):
            off, half = effect.gain.mean - true, effect.gain.high - effect.gain.mean
            told += [np.mean([gain + off > half, gain - off > half]) for gain in gains]
    power = told / (tables * changes)
    return ForecastPower(gains[0], float(power[0]), gains[1], float(power[1]))


# --- Designs -------------------------------------------------------------------------------------

REAL = {  # the rows of real runs that cells are, over and over
    "real": ("digits.plain70", "digits.dpn70"),
    "real, half short": ("digits.plain70", "digits.short70"),
    "real, same seeds": tuple(
        f"digits.{row}" for row in ("plain", "wd", "lr", "rms", "dpn", "short")
    ),
    "real, mnist": ("mnist.plain", "mnist.dpn"),
}
DESIGNS = (
    *("equal spreads", "baseline cell at 3x", "one cell at 3x", "seeds correlate", "interactions"),
    *REAL,
)


def cells(case, rng, n, tables, rows, common=0.0):
    """Tables of so many cells of a design of two levels, in the order of `itertools.product`.
    `common`: the sd, in points, of a part that all cells with the first change share by seed."""
    with_change = (np.arange(rows) >= rows // 2)[:, None]
    for made in _cells(case, rng, n, tables, rows):
        part = common * rng.standard_normal((len(made.y), 1, n)) if common else 0.0
        yield made._replace(y=made.y + part * with_change)


def _cells(case, rng, n, tables, rows):
    if case in REAL:
        names = np.resize(REAL[case], max(rows, len(REAL[case])))
        for made in resampled(rng, names, n, tables, joint=case == "real, same seeds"):
            yield made._replace(
                **{part: getattr(made, part)[:, :rows] for part in ("y", "right", "truth")}
            )
        return
    shift = np.full(rows, 0.3)
    shift[{"baseline cell at 3x": [0], "one cell at 3x": [3]}.get(case, [])] = 1.0
    near = rows // 2 - 1 if case == "seeds correlate" else 0
    levels = [0.9, 0.8, 0.85, 0.95, 0.7] if case == "interactions" else [0.9]
    accuracy = np.resize(levels, rows)
    yield from classified(rng, n, tables, accuracy, shift=shift, near=near, rows=rows)


class JudgedEffects(NamedTuple):
    """The share of tables in which the interval of some main effect misses the truth, and the
    half-widths (tables, effects)."""

    error: float
    halves: np.ndarray


def judged_effects(several, levels):
    """The main effects of a design with these levels (cells, factors), by images."""
    weights = np.array([stats.level_effect(levels, k) for k in range(levels.shape[1])])
    method = stats.Method("images", contrasts=len(weights))
    wrong, halves = [], []
    for made in several:
        truth = np.broadcast_to(made.truth, made.y.shape[:2]) @ weights.T
        for y, right, expected in zip(made.y, made.right, truth, strict=True):
            found = stats.design_effects(y, weights, method, right=right.astype(bool))
            gains = [effect.gain for effect in found.gains]
            halves.append([(g.high - g.low) / 2 for g in gains])
            wrong.append(
                any(not g.low <= e <= g.high for g, e in zip(gains, expected, strict=True))
            )
    return JudgedEffects(float(np.mean(wrong)), np.array(halves))


# --- One variant, and rows that looks stop -------------------------------------------------------

PAIRS = (
    ("digits.plain70", "digits.plain70"),
    ("digits.plain70", "digits.short70"),
    ("digits.plain", "digits.wd"),
    ("digits.plain", "digits.dpn"),
    ("mnist.plain", "mnist.short"),
    ("mnist.plain", "mnist.dpn"),
)


def pairs_of_rows(rng, names, n, tables):
    """Tables of a baseline and one variant, without a seed twice in a row. Rows of one population
    have seeds of their own; of two, the same seeds where runs have any in common."""
    first, second = (populations()[name] for name in names)
    joint = names[0] != names[1] and not names[0].endswith("70")
    order = rng.permuted(np.tile(np.arange(len(first)), (tables, 1)), axis=1)
    other = order[:, :n]
    if names[0] == names[1]:
        other = order[:, n : 2 * n]
    elif not joint:
        other = rng.permuted(np.tile(np.arange(len(second)), (tables, 1)), axis=1)[:, :n]
    right = np.stack([first[order[:, :n]], second[other]], 1).astype(bool)
    accuracies = [100 * row.mean(1) for row in (first, second)]
    spread = math.hypot(*(a.std(ddof=1) for a in accuracies)) / math.sqrt(2)
    if joint:
        spread = (accuracies[1] - accuracies[0]).std(ddof=1) / math.sqrt(2)
    truth = np.array([[a.mean() for a in accuracies]])
    return Tables(100 * right.mean(-1), right, truth, EFFECT[n] * spread)


def judged_pairs(made, spread):
    """Error and power of a table of one variant."""
    found = stats.fit(made.y, family(2, spread=spread), stats.ImageFlips.from_right(made.right))
    off = found.gain[:, 1] - (made.truth[:, 1] - made.truth[:, 0])
    wrong = (np.abs(off) > found.half[:, 1]) & (found.sd[:, 1] > 0)
    return Judged(float(wrong.mean()), float((off + made.effect > found.half[:, 1]).mean()))


class Stopped(NamedTuple):
    """Of rows that all gain the margin: the share of tables in which some row stops since a gain of
    the margin seems unlikely, and in which a verdict denies it (same within, hurts)."""

    stops: float
    denied: float


def stopped(rng, variants, margin, looks, tables):
    """Gaussian rows of one spread, seeds uncorrelated; `margin` in standard deviations of a run."""
    method = stats.Sequential(looks, margin, contrasts=variants)
    y = rng.standard_normal((tables, variants + 1, looks[-1]))
    y[:, 1:] += margin
    state = stats.before_looks(variants + 1, (tables,))
    denied = np.zeros(tables, dtype=bool)
    for look, n in enumerate(looks):
        before = state
        found, state = stats.take_look(y[..., :n], look, before, method)
        futile = before.active & (state.decided == stats.Decision.FUTILE)
        inside = np.abs(found.gain) + found.half < margin
        denied |= ((futile & inside) | (state.decided == stats.Decision.WORSE)).any(-1)
    stops = (state.decided == stats.Decision.FUTILE).any(-1)
    return Stopped(float(stops.mean()), float(denied.mean()))


def contrasts_error(tables, spread, contrasts=None):
    """The share of tables in which the interval of some gain, or of some contrast of two variants,
    misses the true one. `tables`: as `resampled` yields them, or arrays y (T, R, n) without any
    gain; `contrasts`: those that share the error, by default all."""
    wrong = []
    for table in tables:
        y, right, truth = table[:3] if isinstance(table, Tables) else (table, None, None)
        rows = y.shape[1]
        expected = np.zeros((1, rows)) if truth is None else truth
        method = stats.Method(spread, contrasts=contrasts or rows * (rows - 1) // 2)
        half, gain = np.zeros((2, len(y), rows, rows))
        for base in range(rows):
            order = [base, *(row for row in range(rows) if row != base)]
            images = None if right is None else stats.ImageFlips.from_right(right[:, order])
            found = stats.fit(y[:, order], method, images)
            half[:, base, order], gain[:, base, order] = found.half, found.gain
        # Gains are judged over the baseline alone, contrasts by the wider of both ways round.
        half[:, 1:, 1:] = np.maximum(half, np.swapaxes(half, 1, 2))[:, 1:, 1:]
        off = np.abs(gain - (expected[:, None, :] - expected[:, :, None]))
        wrong.append(np.triu(off > half, 1).any((1, 2)))
    return float(np.concatenate(wrong).mean())
