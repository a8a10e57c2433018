"""Tests whose p-values are counted, and Holm's adjustment. Words are never drawn from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ablate.analysis.stats.estimate import TOLD_APART, Floats

MOST_FLIPPED = 20  # seeds: 2^19 sums
FISHER_TESTED = 4  # trainings a row
FEWEST_RANKED = 5  # rows
MOST_ORDERED = 8  # rows whose every order is counted
ORDERS = 100_000  # drawn where they are more


class Exact(NamedTuple):
    """A p-value, and the smallest that so few trainings can give. Not `tested`: for the record."""

    p: float
    floor: float
    tested: bool = True


def sign_flip(differences: Sequence[float] | Floats) -> Exact | None:
    """Two-sided p of a mean gain, differences (n,) a seed: the share of the 2^n signs whose mean
    is as far from 0 (Fisher 1935, par. 21). Assumes differences symmetric about 0 under no gain,
    no normality. Floor 2 / 2^n; None without seeds, and beyond 20, where it says nothing new.
    """
    values = np.asarray(differences, dtype=float)
    n = len(values)
    if not 1 <= n <= MOST_FLIPPED:
        return None
    sums = values[:1]  # the other half of the signs mirrors these
    for value in values[1:]:
        sums = np.concatenate([sums + value, sums - value])
    rounding = TOLD_APART * float(np.abs(values).sum())
    as_far = np.abs(sums) >= abs(float(values.sum())) - rounding
    return Exact(float(as_far.mean()), 2 / 2**n)


def fisher(diverged: int, n: int, others: int, m: int) -> Exact:
    """Fisher's exact test of `diverged` of n trainings against `others` of m, two-sided: the
    probability of all tables with these margins that are no likelier. n, m >= 1, independent
    trainings. `tested` from 4 a row: 3/3 against 0/3 is .10.
    """
    floor = min(_fisher_p(n, n, 0, m), _fisher_p(0, n, m, m))
    return Exact(_fisher_p(diverged, n, others, m), floor, min(n, m) >= FISHER_TESTED)


def _fisher_p(k: int, n: int, j: int, m: int) -> float:
    both = k + j
    ways = [
        math.comb(n, i) * math.comb(m, both - i) for i in range(max(0, both - m), min(n, both) + 1)
    ]
    seen = math.comb(n, k) * math.comb(m, j)
    return sum(way for way in ways if way <= seen) / math.comb(n + m, both)


def holm(p: Floats, contrasts: int) -> Floats:
    """Step-down adjustment of p (..., K) in a family of `contrasts` >= K tests (Holm 1979).

    NaN stays: a contrast without a result counts as never rejected. Strong control of the
    family's error, whatever the dependence. Where the family is larger than K, it is no less.
    """
    order = np.argsort(p, axis=-1)  # NaN last
    factor = contrasts - np.arange(p.shape[-1])
    stepped = np.maximum.accumulate(np.take_along_axis(p, order, -1) * factor, axis=-1)
    adjusted = np.empty_like(stepped)
    np.put_along_axis(adjusted, order, np.minimum(stepped, 1.0), -1)
    return adjusted


@dataclass(frozen=True)
class RankAgreement:
    """Kendall's tau-b between two rankings of n rows, with its two-sided p."""

    tau: float
    p: float
    n: int


def kendall(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> RankAgreement | None:
    """Do x and y, shape (n,), rank rows alike? None below 5 rows and where one ranks nothing.

    p is over the orders of one ranking, ties kept (Kendall 1970, ch. 4): exact where only one has
    ties (published values are rounded; ours are not) or n <= 8; else of 100,000 seeded orders.
    """
    n = len(x)
    above, right = np.triu_indices(n, 1)
    signs = [np.sign(values[above] - values[right]) for values in map(np.asarray, (x, y))]
    apart = [int(np.abs(sign).sum()) for sign in signs]  # pairs that it ranks
    if n < FEWEST_RANKED or not all(apart):
        return None
    score = int((signs[0] * signs[1]).sum())
    tau = score / math.sqrt(apart[0] * apart[1])
    if len(above) not in apart:
        return RankAgreement(tau, _ordered_p(np.asarray(x), np.asarray(y), score), n)
    tied = x if apart[0] < apart[1] else y
    ways = _inversions(np.unique(np.asarray(tied), return_counts=True)[1].tolist())
    as_far = sum(way for i, way in enumerate(ways) if abs(len(ways) - 1 - 2 * i) >= abs(score))
    return RankAgreement(tau, as_far / sum(ways), n)


def _inversions(groups: Sequence[int]) -> list[int]:
    """How many orders of a ranking with ties have 0, 1, ... discordant pairs against an untied one.

    `groups`: the sizes of its ties. The Gaussian multinomial coefficient [n]! / prod [group]!,
    where [k]! = (1 - q)(1 - q^2)...(1 - q^k) (MacMahon 1915), multiplied and divided in place.
    """
    n = sum(groups)
    pairs = (n * (n - 1) - sum(k * (k - 1) for k in groups)) // 2
    ways = [1] + [0] * pairs
    for k in range(1, n + 1):
        for i in range(pairs, k - 1, -1):
            ways[i] -= ways[i - k]
    for k in itertools.chain.from_iterable(range(1, size + 1) for size in groups):
        for i in range(k, pairs + 1):
            ways[i] += ways[i - k]
    return ways


def _ordered_p(x: Floats, y: Floats, score: int) -> float:
    n = len(x)
    if n <= MOST_ORDERED:
        orders = y[np.array(list(itertools.permutations(range(n))))]
    else:  # what was seen is one of the draws, so that p is never 0
        rng = np.random.default_rng(20230203)
        orders = np.concatenate([y[None], rng.permuted(np.tile(y, (ORDERS - 1, 1)), axis=1)])
    scores = np.zeros(len(orders))
    for i, j in itertools.combinations(range(n), 2):
        if x[i] != x[j]:
            scores += np.sign(x[i] - x[j]) * np.sign(orders[:, i] - orders[:, j])
    return float((np.abs(scores) >= abs(score)).mean())
